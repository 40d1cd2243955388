//! Names, attributes and slices: the semantics, written once.
//!
//! [`record`] says what there is, [`engine`] who stores it, [`txn`] how a decision becomes a commit, [`known`] what a
//! client need not ask for, and [`ops`] what each operation of the file system means. [`Meta`] is the one front that
//! vfs, gateway and tools use; its methods stand beside the operations they run.

#[cfg(test)]
mod bounded_tests;
pub mod check;
#[cfg(test)]
mod conformance;
#[cfg(test)]
mod damage_tests;
pub mod dump;
pub mod engine;
pub mod format;
pub mod ids;
pub mod jobs;
pub mod known;
pub mod lease;
#[cfg(test)]
mod model;
pub mod open;
pub mod ops;
pub mod reclaim;
pub mod record;
pub mod repair;
#[cfg(test)]
mod scale_tests;
pub mod session;
#[cfg(test)]
pub mod testing;
pub mod trash;
pub mod txn;
pub mod usage;
mod verify;

use crate::base::{Attr, Fault, Ino, Outcome, SessionId, Stop, Timestamp};
use crate::util::clock::SharedClock;
use bytes::Bytes;
use engine::{Committed, Engine, EngineError, EngineResult};
use futures::future::BoxFuture;
use ids::IdPool;
use ops::acl::RuleBook;
use parking_lot::{Mutex, RwLock};
use record::{Counter, Key, Record};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use txn::Operation;

/// Who asks. `check` is off where somebody else has checked permissions already (the kernel, for a mount with
/// default_permissions); sticky directories are judged all the same.
#[derive(Clone, Debug)]
pub struct Caller {
    pub uid: u32,
    pub gid: u32,
    /// Supplementary groups; `gid` need not be among them.
    pub groups: Arc<[u32]>,
    pub pid: u32,
    pub check: bool,
}

impl Caller {
    /// The superuser: for background work and tools.
    pub fn root() -> Caller {
        Caller { uid: 0, gid: 0, groups: Arc::new([]), pid: 0, check: false }
    }

    pub fn in_group(&self, gid: u32) -> bool {
        self.gid == gid || self.groups.contains(&gid)
    }

    pub fn is_root(&self) -> bool {
        self.uid == 0
    }
}

/// A node as lookups answer it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Entry {
    pub ino: Ino,
    pub attr: Attr,
}

/// What the volume's format asks of operations; refreshed from the stored document at each heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Rules {
    /// 0: no trash.
    pub trash_days: u32,
    /// Bytes, 0: no limit.
    pub capacity_bytes: u64,
    /// Nodes, 0: no limit.
    pub inodes_max: u64,
    pub acl: bool,
    pub dir_stats: bool,
}

/// How this client behaves.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct MetaSettings {
    pub read_only: bool,
    /// A directory's times are left alone by entries that come and go within this time of its mtime; zero touches
    /// them always.
    pub skip_dir_mtime: Duration,
}

/// The metadata of one volume.
pub struct Meta {
    engine: Arc<dyn Engine>,
    clock: SharedClock,
    settings: MetaSettings,
    rules: RwLock<Rules>,
    session: AtomicU64,
    /// The session's description as stored, to register again with.
    session_info: Mutex<Bytes>,
    /// Sessions of this client that others cleaned, and for how many heartbeats they are still looked after.
    former_sessions: Mutex<Vec<(SessionId, u32)>>,
    inodes: IdPool,
    slices: IdPool,
    open: open::OpenFiles,
    trash: trash::TrashCache,
    rule_book: RuleBook,
    usage: usage::UsageCache,
    reclaim: reclaim::ReclaimQueue,
    plock_notes: ops::plock::LockNotes,
    flock_notes: ops::plock::LockNotes,
    known: known::Known,
}

impl Meta {
    pub fn new(engine: Arc<dyn Engine>, clock: SharedClock, settings: MetaSettings, rules: Rules) -> Arc<Meta> {
        Arc::new(Meta {
            inodes: IdPool::new(Counter::NextInode, ids::INODE_BATCH),
            slices: IdPool::new(Counter::NextSlice, ids::SLICE_BATCH),
            engine,
            clock,
            settings,
            rules: RwLock::new(rules),
            session: AtomicU64::new(0),
            session_info: Mutex::default(),
            former_sessions: Mutex::default(),
            open: open::OpenFiles::default(),
            trash: trash::TrashCache::default(),
            rule_book: RuleBook::default(),
            usage: usage::UsageCache::default(),
            reclaim: reclaim::ReclaimQueue::default(),
            plock_notes: ops::plock::LockNotes::default(),
            flock_notes: ops::plock::LockNotes::default(),
            known: known::Known::default(),
        })
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    pub fn now(&self) -> Timestamp {
        self.clock.now()
    }

    pub fn settings(&self) -> &MetaSettings {
        &self.settings
    }

    pub fn rules(&self) -> Rules {
        *self.rules.read()
    }

    pub fn set_rules(&self, rules: Rules) {
        *self.rules.write() = rules;
    }

    /// The ACL rules this client has met.
    pub(crate) fn rule_book(&self) -> &RuleBook {
        &self.rule_book
    }

    /// The registered session, or 0 when there is none.
    pub fn session(&self) -> SessionId {
        SessionId(self.session.load(Ordering::Acquire))
    }

    /// What this client has just read or committed.
    pub fn known(&self) -> &known::Known {
        &self.known
    }

    /// Runs one operation to its end.
    pub(crate) async fn run<O: Operation>(&self, op: &O) -> Outcome<O::Output> {
        self.run_reporting(op).await.map(|(output, _)| output)
    }

    /// As `run`, with what the commit reported.
    pub(crate) async fn run_reporting<O: Operation>(&self, op: &O) -> Outcome<(O::Output, Committed)> {
        // Boxed, so that the future of an operation is no part of the types of all who call it.
        let driven: BoxFuture<'_, Outcome<txn::Done<O::Output>>> =
            Box::pin(txn::drive(&*self.engine, || self.clock.now(), op, &self.known));
        let done = driven.await?;
        self.usage.committed(done.usage);
        Ok((done.output, done.committed))
    }

    /// Reads records outside of a transaction, as patiently as an operation.
    pub(crate) async fn read(&self, keys: &[Key]) -> Outcome<Vec<Option<Record>>> {
        txn::read(&*self.engine, keys).await
    }

    /// EROFS for a client that must not write.
    pub(crate) fn writable(&self) -> Outcome<()> {
        if self.settings.read_only { Err(crate::base::Errno::EROFS.into()) } else { Ok(()) }
    }
}

/// For calls outside transactions: an engine has no conflicts there.
pub(crate) fn outside<T>(result: EngineResult<T>) -> Outcome<T> {
    result.map_err(|error| match error {
        EngineError::Conflict => Stop::from(Fault::conflict("read outside a transaction")),
        EngineError::Undetermined(fault) | EngineError::Fault(fault) => fault.into(),
    })
}
