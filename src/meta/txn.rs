//! Transactions over records: batched typed loads, guards recorded by what a decision read, one commit, and the
//! one retry driver.
//!
//! An operation is a request struct with `run`. It loads first, decides, and lists changes; there is no reading of
//! its own writes. `Seen` remembers which attribute fields were looked at, and commit turns them into a guard, so
//! that a create (which looks at its parent's kind, mode and owner) neither blocks nor is blocked by a sibling
//! create (which moves times), and still loses against a chmod or an rmdir. Other records are guarded whole.
//!
//! The driver retries conflicts with growing, jittered pauses until the deadline, retries faults of the retryable
//! kinds a few times, and has the operation settle commits that may or may not have been applied.

use super::engine::{Batch, Change, Committed, Engine, EngineError, EngineTxn, Guard, Looked};
use super::known::Known;
use super::record::{Counter, Dentry, DirStat, FlockHolder, Key, PlockHolder, Quota, QuotaOwner, Record, Session};
use super::usage::Usage;
use crate::base::acl::AclRule;
use crate::base::{
    Attr, AttrPatch, ChunkIndex, Errno, Fault, FieldMask, Ino, Kind, Mode, Name, Outcome, Retry, SessionId, Slice,
    SliceId, Stop, Timestamp,
};
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// An operation on metadata: the request is the struct, the semantics are `run`.
pub trait Operation: Send + Sync {
    /// For metrics and logs; the name of the operation in words of the field.
    const NAME: &'static str;
    type Output: Send;
    /// How old the records may be that it decides on without asking ([`super::known`]): more than nothing for operations
    /// that follow a lookup and change something.
    const RELIES_ON: Duration = Duration::ZERO;

    /// Loads, decides, lists changes. The order of its lines is the order of the errors a caller can see.
    /// May run several times; nothing it does before the commit may have an effect outside `tx`.
    fn run(&self, tx: &mut Tx<'_>) -> impl Future<Output = Outcome<Self::Output>> + Send;

    /// Whether a commit whose reply was lost was applied. `Some(output)` when the state shows that it was, `None`
    /// when it shows that it was not (the driver runs the operation again). The default cannot tell.
    fn settle(&self, _tx: &mut Tx<'_>) -> impl Future<Output = Outcome<Settled<Self::Output>>> + Send {
        async { Ok(Settled::Unknown) }
    }
}

/// What the state says about a commit without a reply.
pub enum Settled<T> {
    Applied(T),
    NotApplied,
    /// The state fits neither, or both.
    Unknown,
}

/// An operation gives up on conflicts this long after the first; the peer's fifty tries take about as long. Time before
/// that does not count: a client that stood still with a transaction open has met a conflict, but not tried again.
const CONFLICT_DEADLINE: Duration = Duration::from_secs(30);
/// Faults of retryable kinds are tried this often in a row; the engines reconnect on their own meanwhile.
const FAULT_TRIES_MAX: u32 = 10;
/// No try begins later than this after the first fault. With the engine's own wait for a connection (up to 15 s on
/// Redis) an operation on an engine that is gone for good fails after half a minute, about when the peer's does.
const FAULT_DEADLINE: Duration = Duration::from_secs(10);

/// An operation that ran to its end.
pub struct Done<T> {
    pub output: T,
    pub committed: Committed,
    /// By how much the commit changed the usage of the volume.
    pub usage: Usage,
}

/// Runs an operation to its end: the only retry loop of the metadata layer. What is read and committed becomes
/// known before anybody else hears of it.
pub async fn drive<O: Operation>(
    engine: &dyn Engine,
    now: impl Fn() -> Timestamp,
    op: &O,
    known: &Known,
) -> Outcome<Done<O::Output>> {
    let mut relies_on = O::RELIES_ON;
    let mut first_conflict = None;
    let mut conflicts = 0u32;
    let mut faults = Faults::default();
    loop {
        match attempt(engine, now(), op, known, relies_on).await {
            Ok(done) => return Ok(done),
            Err(Failed::Mistaken) => relies_on = Duration::ZERO,
            Err(Failed::Conflict) => {
                conflicts += 1;
                let first = *first_conflict.get_or_insert_with(Instant::now);
                if first.elapsed() > CONFLICT_DEADLINE {
                    return Err(Fault::conflict(O::NAME).with("engine", engine.name()).with("tries", conflicts).into());
                }
                tokio::time::sleep(conflict_pause(conflicts)).await;
            }
            Err(Failed::Undetermined(fault, usage)) => {
                tracing::warn!(operation = O::NAME, "commit without a reply, looking whether it was applied: {fault}");
                relies_on = Duration::ZERO;
                match settle(engine, now(), op, known, &mut faults).await? {
                    Settled::Applied(output) => return Ok(Done { output, committed: Committed::default(), usage }),
                    Settled::NotApplied if faults.another_try() => faults.pause().await,
                    Settled::NotApplied | Settled::Unknown => return Err(fault.into()),
                }
            }
            Err(Failed::Stop(Stop::Fault(fault))) if retryable(&fault) && faults.another_try() => {
                // No warning: the engine tells of an outage, and whoever waits of what comes of it.
                tracing::debug!(operation = O::NAME, attempt = faults.count, "will try again: {fault}");
                faults.pause().await;
            }
            Err(Failed::Stop(stop)) => return Err(stop),
        }
    }
}

enum Failed {
    /// On what was known it does not succeed. That says nothing.
    Mistaken,
    Conflict,
    /// With the usage that the commit would have changed.
    Undetermined(Fault, Usage),
    Stop(Stop),
}

async fn attempt<O: Operation>(
    engine: &dyn Engine,
    now: Timestamp,
    op: &O,
    known: &Known,
    relies_on: Duration,
) -> Result<Done<O::Output>, Failed> {
    let mut tx = Tx::new(engine, now, known);
    tx.relies_on = relies_on;
    let output = match op.run(&mut tx).await {
        Ok(output) => output,
        Err(_) if tx.relied => return Err(Failed::Mistaken),
        // A decision on records of different moments may see a state that never was; so look again before answering
        // with anything but success. One load is one snapshot and cannot mislead.
        Err(_) if tx.conflicted => return Err(Failed::Conflict),
        Err(stop) => return Err(Failed::Stop(stop)),
    };
    let relied = tx.relied;
    let Some((txn, batch)) = tx.finish() else {
        return match relied {
            true => Err(Failed::Mistaken),
            false => Ok(Done { output, committed: Committed::default(), usage: Usage::default() }),
        };
    };
    let txn = match txn {
        Some(txn) => txn,
        // All that was needed was known.
        None => match engine.begin(&[]).await {
            Ok((txn, _)) => txn,
            Err(EngineError::Conflict) => return Err(Failed::Conflict),
            Err(EngineError::Undetermined(fault) | EngineError::Fault(fault)) => {
                return Err(Failed::Stop(fault.into()));
            }
        },
    };
    let usage = Usage::changed_by(&batch.changes);
    let (changes, sent) = (Known::concerned(&batch.changes), Instant::now());
    let guarded: Vec<Key> = match relied {
        true => batch.guards.iter().map(Guard::key).collect(),
        false => Vec::new(),
    };
    let committed = txn.commit(batch).await;
    match &committed {
        Err(EngineError::Conflict) => known.forget(&guarded),
        committed => known.committed(&changes, sent, committed.is_ok()),
    }
    match committed {
        Ok(committed) => Ok(Done { output, committed, usage }),
        Err(EngineError::Conflict) if relied => Err(Failed::Mistaken),
        Err(EngineError::Conflict) => Err(Failed::Conflict),
        Err(EngineError::Undetermined(fault)) => Err(Failed::Undetermined(fault, usage)),
        Err(EngineError::Fault(fault)) => Err(Failed::Stop(fault.into())),
    }
}

async fn settle<O: Operation>(
    engine: &dyn Engine,
    now: Timestamp,
    op: &O,
    known: &Known,
    faults: &mut Faults,
) -> Outcome<Settled<O::Output>> {
    let mut tries = 0;
    loop {
        let mut tx = Tx::new(engine, now, known);
        match op.settle(&mut tx).await {
            Err(_) if tx.conflicted && tries < FAULT_TRIES_MAX => {
                tries += 1;
                tokio::time::sleep(conflict_pause(tries)).await;
            }
            Err(Stop::Fault(fault)) if retryable(&fault) && faults.another_try() => faults.pause().await,
            other => return other,
        }
    }
}

fn retryable(fault: &Fault) -> bool {
    match fault.retry() {
        Retry::Now | Retry::Later => true,
        Retry::Never | Retry::Unknown => false,
    }
}

/// Short and jittered: a conflict means that another commit has just gone through.
fn conflict_pause(conflicts: u32) -> Duration {
    let ceiling_us = 500u64 << conflicts.min(6);
    Duration::from_micros(crate::util::rng::random_range(0..=ceiling_us))
}

/// Reads records outside of a transaction; faults of the retryable kinds are retried as those of an operation.
pub(super) async fn read(engine: &dyn Engine, keys: &[Key]) -> Outcome<Vec<Option<Record>>> {
    let mut faults = Faults::default();
    loop {
        match super::outside(engine.read(keys).await) {
            Err(Stop::Fault(fault)) if retryable(&fault) && faults.another_try() => {
                tracing::debug!(attempt = faults.count, "will read again: {fault}");
                faults.pause().await;
            }
            answered => return answered,
        }
    }
}

/// The faults that one operation met, and whether it may go on.
#[derive(Default)]
struct Faults {
    count: u32,
    first: Option<Instant>,
}

impl Faults {
    /// Counts one more; whether another try follows. The first fault has one, however late it comes: a request that
    /// a silent server keeps for the whole response time-out was never tried on another connection.
    fn another_try(&mut self) -> bool {
        self.count += 1;
        let first = *self.first.get_or_insert_with(Instant::now);
        self.count <= FAULT_TRIES_MAX && first.elapsed() < FAULT_DEADLINE
    }

    /// 50 ms, doubling to 3 s: about ten seconds over all tries.
    async fn pause(&self) {
        let pause = Duration::from_millis((25u64 << self.count.min(7)).min(3000));
        tokio::time::sleep(pause).await;
    }
}

/// What an operation sees of the volume while it decides.
pub struct Tx<'a> {
    engine: &'a dyn Engine,
    txn: Option<Box<dyn EngineTxn>>,
    now: Timestamp,
    watches: Watches,
    changes: Vec<Change>,
    conflicted: bool,
    known: &'a Known,
    /// Known records that are no older need not be loaded.
    relies_on: Duration,
    /// One of them was not.
    relied: bool,
}

/// A loaded record that commit must guard.
enum Watch {
    Fields(Ino, Attr, Arc<AtomicU32>),
    Guard(Guard),
}

impl<'a> Tx<'a> {
    fn new(engine: &'a dyn Engine, now: Timestamp, known: &'a Known) -> Tx<'a> {
        Tx {
            engine,
            txn: None,
            now,
            watches: Watches::default(),
            changes: Vec::new(),
            conflicted: false,
            known,
            relies_on: Duration::ZERO,
            relied: false,
        }
    }

    /// The time of this attempt; every time an operation stores comes from here.
    pub fn now(&self) -> Timestamp {
        self.now
    }

    /// Loads a tuple, array or vector of wishes in one trip and answers in the same shape.
    pub async fn load<L: LoadSet>(&mut self, wishes: L) -> Outcome<L::Out> {
        let mut keys = Vec::new();
        wishes.keys(&mut keys);
        let mut records = self.fetch(&keys).await?.into_iter();
        wishes.answer(&mut records, &mut self.watches)
    }

    /// What there is at a name, where the engine has it in one trip. Nothing of it is guarded: for operations that change
    /// nothing.
    pub async fn look_up(&mut self, parent: Ino, name: &Name) -> Outcome<Option<Looked>> {
        let looked = super::outside(self.engine.lookup(parent, name).await)?;
        if let Some(Looked { parent: dir, dentry, node }) = &looked {
            self.known.note(&Key::Attr(parent), dir.map(Record::Attr).as_ref());
            self.known.note(&Key::Dentry(parent, name.clone()), dentry.map(Record::Dentry).as_ref());
            // Without a node this engine may not have asked for it.
            if let (Some(dentry), Some(node)) = (dentry, node) {
                self.known.note(&Key::Attr(dentry.ino), Some(&Record::Attr(*node)));
            }
        }
        Ok(looked)
    }

    /// What is known, and the rest loaded.
    async fn fetch(&mut self, keys: &[Key]) -> Outcome<Vec<Option<Record>>> {
        if self.relies_on.is_zero() {
            return self.fetch_all(keys).await;
        }
        let mut records: Vec<Option<Option<Record>>> =
            keys.iter().map(|key| self.known.get(key, self.relies_on)).collect();
        let missing: Vec<Key> =
            keys.iter().zip(&records).filter(|(_, record)| record.is_none()).map(|(key, _)| key.clone()).collect();
        self.relied |= missing.len() < keys.len();
        let mut loaded = self.fetch_all(&missing).await?.into_iter();
        for record in &mut records {
            if record.is_none() {
                *record = loaded.next();
            }
        }
        Ok(records.into_iter().map(Option::flatten).collect())
    }

    async fn fetch_all(&mut self, keys: &[Key]) -> Outcome<Vec<Option<Record>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let loaded = match &mut self.txn {
            Some(txn) => txn.load(keys).await,
            None => self.engine.begin(keys).await.map(|(txn, records)| {
                self.txn = Some(txn);
                records
            }),
        };
        match loaded {
            Ok(records) if records.len() == keys.len() => {
                for (key, record) in keys.iter().zip(&records) {
                    self.known.note(key, record.as_ref());
                }
                Ok(records)
            }
            Ok(records) => Err(Fault::internal("load records")
                .with("wanted", keys.len())
                .with("answered", records.len())
                .with("engine", self.engine.name())
                .into()),
            Err(EngineError::Conflict) => {
                self.conflicted = true;
                Err(Errno::EAGAIN.into())
            }
            Err(EngineError::Undetermined(fault) | EngineError::Fault(fault)) => Err(fault.into()),
        }
    }

    /// Gives up this attempt and starts the operation again: what was loaded does not fit together.
    pub fn conflict(&mut self) -> Stop {
        self.conflicted = true;
        Errno::EAGAIN.into()
    }

    pub fn change(&mut self, change: Change) {
        self.changes.push(change);
    }

    pub fn put_attr(&mut self, ino: Ino, attr: &Attr) {
        self.change(Change::Put(Key::Attr(ino), Record::Attr(*attr)));
    }

    pub fn delete_attr(&mut self, ino: Ino) {
        self.change(Change::Delete(Key::Attr(ino)));
    }

    /// Patches of one node are merged, so that each node is written once.
    pub fn patch(&mut self, ino: Ino, patch: AttrPatch) {
        if patch.is_empty() {
            return;
        }
        for change in &mut self.changes {
            if let Change::Patch(patched, earlier) = change
                && *patched == ino
            {
                earlier.merge(&patch);
                return;
            }
        }
        self.change(Change::Patch(ino, patch));
    }

    pub fn put_dentry(&mut self, parent: Ino, name: &Name, ino: Ino, kind: Kind) {
        self.change(Change::Put(Key::Dentry(parent, name.clone()), Record::Dentry(Dentry { kind, ino })));
    }

    pub fn delete_dentry(&mut self, parent: Ino, name: &Name) {
        self.change(Change::Delete(Key::Dentry(parent, name.clone())));
    }

    /// Volume usage: bytes as accounted, and nodes.
    pub fn add_usage(&mut self, space: i64, inodes: i64) {
        for (counter, delta) in [(Counter::UsedSpace, space), (Counter::TotalInodes, inodes)] {
            if delta != 0 {
                self.change(Change::AddCounter(counter, delta));
            }
        }
    }

    pub fn add_dir_stat(&mut self, dir: Ino, delta: DirStat) {
        if delta != DirStat::default() {
            self.change(Change::AddDirStat(dir, delta));
        }
    }

    /// Without a transaction, when nothing was loaded.
    fn finish(self) -> Option<(Option<Box<dyn EngineTxn>>, Batch)> {
        if self.changes.is_empty() {
            return None;
        }
        let mut guards = Vec::with_capacity(self.watches.0.len());
        for watch in self.watches.0 {
            match watch {
                Watch::Guard(guard) => guards.push(guard),
                Watch::Fields(ino, attr, mask) => match FieldMask(mask.load(Ordering::Relaxed)) {
                    FieldMask::NONE => {}
                    mask => guards.push(Guard::Fields(ino, attr, mask)),
                },
            }
        }
        Some((self.txn, Batch { guards, changes: self.changes }))
    }
}

/// Attributes that remember which of their fields a decision looked at.
#[derive(Clone, Debug)]
pub struct Seen {
    ino: Ino,
    attr: Attr,
    mask: Arc<AtomicU32>,
}

macro_rules! seen_fields {
    ($($name:ident: $type:ty => $mask:ident),* $(,)?) => {
        $(pub fn $name(&self) -> $type {
            self.saw(FieldMask::$mask);
            self.attr.$name
        })*
    };
}

impl Seen {
    pub fn ino(&self) -> Ino {
        self.ino
    }

    seen_fields! {
        flags: u8 => FLAGS, kind: Kind => KIND, mode: Mode => MODE, uid: u32 => UID, gid: u32 => GID,
        mtime: Timestamp => MTIME, ctime: Timestamp => CTIME, atime: Timestamp => ATIME, nlink: u32 => NLINK,
        length: u64 => LENGTH, rdev: u32 => RDEV, parent: Ino => PARENT, access_acl: u32 => ACLS,
        default_acl: u32 => ACLS, tier: u8 => TIER,
    }

    /// Guards fields without reading them here: "this decision holds only while these stay".
    pub fn saw(&self, fields: FieldMask) {
        self.mask.fetch_or(fields.0, Ordering::Relaxed);
    }

    /// Everything, unguarded: for values that go only into the reply, or into a rule that may be a moment late.
    /// The node's existence is not guarded either.
    pub fn peek(&self) -> &Attr {
        &self.attr
    }

    /// Everything, guarded.
    pub fn all(&self) -> &Attr {
        self.saw(FieldMask::ALL);
        &self.attr
    }
}

/// A node that was asked for; whether it is there is the first thing an operation decides.
#[derive(Clone, Debug)]
pub struct Node(Option<Seen>);

impl Node {
    /// ENOENT when there is no such node.
    pub fn exists(self) -> Outcome<Seen> {
        self.0.ok_or(Errno::ENOENT.into())
    }

    /// ENOENT, ENOTDIR.
    pub fn directory(self) -> Outcome<Seen> {
        let seen = self.exists()?;
        if seen.kind() == Kind::Directory { Ok(seen) } else { Err(Errno::ENOTDIR.into()) }
    }

    pub fn into_option(self) -> Option<Seen> {
        self.0
    }

    /// The node that an entry leads to, if it is there. Kinds never change and numbers are used once, so an entry that
    /// says another kind is damage; to go on would be to remove a directory as if it were a file.
    pub fn of_entry(self, dir: Ino, name: &Name, entry: Dentry) -> Outcome<Option<Seen>> {
        match self.0 {
            Some(node) if node.kind() != entry.kind => Err(Fault::corrupt("read entry")
                .with("directory", dir)
                .with("name", name)
                .with("inode", entry.ino)
                .source(format!("the entry says {:?}, the node is {:?}", entry.kind, node.kind()))
                .into()),
            node => Ok(node),
        }
    }
}

/// One wish of a batched load.
pub trait Get {
    type Out;
    fn key(&self) -> Key;
    fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<Self::Out>;
}

/// What the loads of a transaction have to guard at commit.
#[derive(Default)]
pub struct Watches(Vec<Watch>);

impl Watches {
    fn whole(&mut self, key: Key, record: Option<&Record>) {
        self.0.push(Watch::Guard(match record {
            Some(record) => Guard::Same(key, record.clone()),
            None => Guard::Absent(key),
        }));
    }
}

/// The same wish, unguarded: for what only shapes the reply, or for what a relative change does not depend on.
pub struct Peek<G>(pub G);

impl<G: Get> Get for Peek<G> {
    type Out = G::Out;

    fn key(&self) -> Key {
        self.0.key()
    }

    fn answer(self, record: Option<Record>, _watches: &mut Watches) -> Outcome<G::Out> {
        self.0.answer(record, &mut Watches::default())
    }
}

/// The attributes of a node; guarded field by field, as they are looked at.
pub struct AttrOf(pub Ino);

impl Get for AttrOf {
    type Out = Node;

    fn key(&self) -> Key {
        Key::Attr(self.0)
    }

    fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<Node> {
        match record {
            None => {
                watches.whole(self.key(), None);
                Ok(Node(None))
            }
            Some(Record::Attr(attr)) => {
                let mask = Arc::new(AtomicU32::new(0));
                watches.0.push(Watch::Fields(self.0, attr, mask.clone()));
                Ok(Node(Some(Seen { ino: self.0, attr, mask })))
            }
            Some(other) => Err(mismatch(&self.key(), &other)),
        }
    }
}

/// Whether a directory has any entry. Guarded only when it has none: only emptiness is ever acted upon.
pub struct HasEntries(pub Ino);

impl Get for HasEntries {
    type Out = bool;

    fn key(&self) -> Key {
        Key::AnyDentry(self.0)
    }

    fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<bool> {
        if record.is_none() {
            watches.whole(self.key(), None);
        }
        Ok(record.is_some())
    }
}

/// The slice records of a chunk, guarded as the beginning of its list: what is appended meanwhile does no harm to who
/// shares or replaces what was there.
pub struct ChunkPrefixOf(pub Ino, pub ChunkIndex);

impl Get for ChunkPrefixOf {
    type Out = Vec<Slice>;

    fn key(&self) -> Key {
        Key::Chunk(self.0, self.1)
    }

    fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<Vec<Slice>> {
        let slices = possible(&self.key(), record)?;
        if !slices.is_empty() {
            watches.0.push(Watch::Guard(Guard::ChunkPrefix(self.0, self.1, slices.clone())));
        }
        Ok(slices)
    }
}

/// The records of a chunk, unless one of them cannot be: showing the others would show bytes that nobody wrote.
pub(crate) fn possible(key: &Key, record: Option<Record>) -> Outcome<Vec<Slice>> {
    let slices = match record {
        None => return Ok(Vec::new()),
        Some(Record::Slices(slices)) => slices,
        Some(other) => return Err(mismatch(key, &other)),
    };
    match slices.iter().find(|slice| !slice.is_possible()) {
        None => Ok(slices),
        Some(wrong) => Err(Fault::corrupt("read chunk")
            .with("key", format_args!("{key:?}"))
            .source(format!("a record that cannot be: {wrong:?}"))
            .into()),
    }
}

/// The slice records of a chunk.
pub struct ChunkOf(pub Ino, pub ChunkIndex);

impl Get for ChunkOf {
    type Out = Vec<Slice>;

    fn key(&self) -> Key {
        Key::Chunk(self.0, self.1)
    }

    fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<Vec<Slice>> {
        watches.whole(self.key(), record.as_ref());
        possible(&self.key(), record)
    }
}

/// The wish for a record under any key, as the engine has it.
pub struct RecordOf(pub Key);

impl Get for RecordOf {
    type Out = Option<Record>;

    fn key(&self) -> Key {
        self.0.clone()
    }

    fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<Option<Record>> {
        watches.whole(self.0, record.as_ref());
        Ok(record)
    }
}

fn mismatch(key: &Key, record: &Record) -> Stop {
    Fault::internal("load record").with("key", format_args!("{key:?}")).with("got", format_args!("{record:?}")).into()
}

/// Wishes whose records are guarded whole, and answered as `Option` or as a list that is empty when absent.
macro_rules! wishes {
    ($($(#[$doc:meta])* $name:ident $(<$life:lifetime>)? ($($field:tt: $type:ty),*) => $key:expr, $variant:ident($value:ty) $(, $absent:tt)?;)*) => {
        $(
            $(#[$doc])*
            pub struct $name $(<$life>)? ($(pub $type),*);

            impl $(<$life>)? Get for $name $(<$life>)? {
                type Out = wishes!(@out $value $(, $absent)?);

                fn key(&self) -> Key {
                    let make: fn(&Self) -> Key = $key;
                    make(self)
                }

                fn answer(self, record: Option<Record>, watches: &mut Watches) -> Outcome<Self::Out> {
                    watches.whole(self.key(), record.as_ref());
                    match record {
                        None => Ok(Default::default()),
                        Some(Record::$variant(value)) => Ok(wishes!(@some value $(, $absent)?)),
                        Some(other) => Err(mismatch(&self.key(), &other)),
                    }
                }
            }
        )*
    };
    (@out $value:ty) => { Option<$value> };
    (@out $value:ty, default) => { $value };
    (@some $value:ident) => { Some($value) };
    (@some $value:ident, default) => { $value };
}

wishes! {
    /// The entry of a name.
    DentryOf<'a>(0: Ino, 1: &'a Name) => |w| Key::Dentry(w.0, w.1.clone()), Dentry(Dentry);
    TargetOf(0: Ino) => |w| Key::Symlink(w.0), Bytes(Bytes);
    /// (parent, count), counts at or below zero included.
    LinkParentsOf(0: Ino) => |w| Key::LinkParents(w.0), LinkParents(Vec<(Ino, i64)>), default;
    /// The slice records of a chunk; empty when the chunk is missing.
    XattrOf<'a>(0: Ino, 1: &'a Name) => |w| Key::Xattr(w.0, w.1.clone()), Bytes(Bytes);
    XattrsOf(0: Ino) => |w| Key::Xattrs(w.0), Xattrs(Vec<(Name, Bytes)>), default;
    AclRuleOf(0: u32) => |w| Key::AclRule(w.0), AclRule(AclRule);
    DirStatOf(0: Ino) => |w| Key::DirStat(w.0), DirStat(DirStat);
    QuotaOf(0: QuotaOwner) => |w| Key::Quota(w.0), Quota(Quota);
    /// 0 when never counted.
    CounterOf(0: Counter) => |w| Key::Counter(w.0), Number(i64), default;
    SessionOf(0: SessionId) => |w| Key::Session(w.0), Session(Session);
    /// `Some` when the session sustains the inode.
    SustainedOf(0: SessionId, 1: Ino) => |w| Key::Sustained(w.0, w.1), Number(i64);
    DeletedFileOf(0: Ino, 1: u64) => |w| Key::DeletedFile(w.0, w.1), Number(i64);
    DelayedSlicesOf(0: SliceId, 1: i64) => |w| Key::DelayedSlices(w.0, w.1), Slices(Vec<Slice>), default;
    FlocksOf(0: Ino) => |w| Key::Flocks(w.0), Flocks(Vec<FlockHolder>), default;
    PlocksOf(0: Ino) => |w| Key::Plocks(w.0), Plocks(Vec<PlockHolder>), default;
    SettingOf() => |_| Key::Setting, Bytes(Bytes);
}

/// Several wishes loaded in one trip.
pub trait LoadSet {
    type Out;
    fn keys(&self, out: &mut Vec<Key>);
    fn answer(self, records: &mut std::vec::IntoIter<Option<Record>>, watches: &mut Watches) -> Outcome<Self::Out>;
}

/// One wish alone.
impl<G: Get> LoadSet for G {
    type Out = G::Out;

    fn keys(&self, out: &mut Vec<Key>) {
        out.push(self.key());
    }

    fn answer(self, records: &mut std::vec::IntoIter<Option<Record>>, watches: &mut Watches) -> Outcome<G::Out> {
        Get::answer(self, records.next().flatten(), watches)
    }
}

impl<L: LoadSet> LoadSet for Vec<L> {
    type Out = Vec<L::Out>;

    fn keys(&self, out: &mut Vec<Key>) {
        self.iter().for_each(|wish| wish.keys(out));
    }

    fn answer(self, records: &mut std::vec::IntoIter<Option<Record>>, watches: &mut Watches) -> Outcome<Self::Out> {
        self.into_iter().map(|wish| wish.answer(records, watches)).collect()
    }
}

/// A wish that only some cases have.
impl<L: LoadSet> LoadSet for Option<L> {
    type Out = Option<L::Out>;

    fn keys(&self, out: &mut Vec<Key>) {
        self.iter().for_each(|wish| wish.keys(out));
    }

    fn answer(self, records: &mut std::vec::IntoIter<Option<Record>>, watches: &mut Watches) -> Outcome<Self::Out> {
        self.map(|wish| wish.answer(records, watches)).transpose()
    }
}

macro_rules! tuples {
    ($($($part:ident)+;)*) => {
        $(
            #[allow(non_snake_case)]
            impl<$($part: LoadSet),+> LoadSet for ($($part,)+) {
                type Out = ($($part::Out,)+);

                fn keys(&self, out: &mut Vec<Key>) {
                    let ($($part,)+) = self;
                    $($part.keys(out);)+
                }

                fn answer(self, records: &mut std::vec::IntoIter<Option<Record>>, watches: &mut Watches) -> Outcome<Self::Out> {
                    let ($($part,)+) = self;
                    Ok(($($part.answer(records, watches)?,)+))
                }
            }
        )*
    };
}

tuples! {
    A B;
    A B C;
    A B C D;
    A B C D E;
    A B C D E F;
}
