//! The seam to what stores metadata. An engine loads records in batches and commits a `Batch` atomically, if and
//! only if every guard in it holds. It knows no operation and no errno.
//!
//! The contract in one sentence: **a commit is applied only if every field its decision read still holds, as if
//! nothing had come between.** Loads of one transaction need not be one snapshot: what a decision read is guarded.
//!
//! Road not taken: pessimistic transactions as the only form (`BEGIN … COMMIT` around the decision). They hold
//! locks over round trips; guards compare at commit and hold nothing. An engine that needs a handle between its
//! first load and its commit (a start timestamp, a connection) keeps it in its `EngineTxn`.

pub mod counting;
pub mod fault;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd", feature = "tikv"))]
pub mod gathered;
#[cfg(any(feature = "mysql", feature = "postgres", feature = "etcd", feature = "tikv"))]
pub mod handshake;
#[cfg(any(feature = "etcd", feature = "tikv"))]
pub mod kv;
pub mod mem;
#[cfg(feature = "redis")]
pub mod redis;
#[cfg(any(feature = "sqlite", feature = "mysql", feature = "postgres"))]
pub mod sql;
#[cfg(test)]
pub mod suite;
#[cfg(any(feature = "redis", feature = "etcd"))]
pub mod unverified;

use super::record::{Counter, Dentry, DirStat, Key, PlockRange, QuotaOwner, Record};
use crate::base::{Attr, AttrPatch, ChunkIndex, Fault, FaultKind, FieldMask, Ino, Name, SessionId, Slice, SliceId};
use async_trait::async_trait;
use bytes::Bytes;

/// Why an engine did not do what it was asked.
#[derive(Debug)]
pub enum EngineError {
    /// A guard did not hold; nothing was applied.
    Conflict,
    /// The commit may or may not have been applied.
    Undetermined(Fault),
    /// Nothing was applied.
    Fault(Fault),
}

pub type EngineResult<T> = Result<T, EngineError>;

impl From<Fault> for EngineError {
    fn from(fault: Fault) -> EngineError {
        EngineError::Fault(fault)
    }
}

/// What must still hold when a batch is applied.
#[derive(Clone, Debug, PartialEq)]
pub enum Guard {
    /// The named fields of the node's attributes are those of `Attr`; the node exists.
    Fields(Ino, Attr, FieldMask),
    /// The record is exactly this.
    Same(Key, Record),
    /// There is no such record.
    Absent(Key),
    /// The chunk's list begins with exactly these records (compaction).
    ChunkPrefix(Ino, ChunkIndex, Vec<Slice>),
}

impl Guard {
    /// The record it is about.
    pub fn key(&self) -> Key {
        match self {
            Guard::Fields(ino, ..) => Key::Attr(*ino),
            Guard::Same(key, _) | Guard::Absent(key) => key.clone(),
            Guard::ChunkPrefix(ino, index, _) => Key::Chunk(*ino, *index),
        }
    }
}

/// One change. Puts and deletes overwrite; the others are relative and never conflict among themselves.
#[derive(Clone, Debug, PartialEq)]
pub enum Change {
    /// Creates or replaces a record. For `Key::SliceRef` with one reference the Redis layout stores nothing.
    /// Collecting keys (`LinkParents`, `Xattrs`, `Flocks`, `Plocks`, `AnyDentry`) are not put.
    Put(Key, Record),
    /// Removes a record, or all parts of a collecting key. Removing what is not there succeeds.
    Delete(Key),
    /// A patch of a node that is not there makes the commit a conflict.
    Patch(Ino, AttrPatch),
    /// Appends to a chunk's list. `only_existing`: a missing list stays missing.
    Append { ino: Ino, index: ChunkIndex, slices: Vec<Slice>, only_existing: bool },
    /// Replaces the first `count` records of a chunk's list; guarded by `Guard::ChunkPrefix`.
    ReplacePrefix { ino: Ino, index: ChunkIndex, count: usize, with: Vec<Slice> },
    /// What is added to the usage of the volume (`UsedSpace`, `TotalInodes`) is seen by this engine's reads as soon as
    /// the commit is answered; where all commits of all clients would meet on that key, it is stored, and seen by others,
    /// a second later or at `sync`. Whoever loads the counter in a transaction, or puts it, has it exact.
    AddCounter(Counter, i64),
    /// Adds to the count of entries of `ino` below `parent`. SQL engines derive it and do nothing.
    AddLinkParent { ino: Ino, parent: Ino, delta: i64 },
    /// Adds references to a slice; the count afterwards is reported in `Committed::references`.
    AddSliceRef { id: SliceId, size: u32, delta: i64 },
    /// Adds to a directory's statistics if it has any; where they are [`gathered`], if it has any when they are stored.
    AddDirStat(Ino, DirStat),
    /// Adds to the usage of a quota if there is one.
    AddQuota { owner: QuotaOwner, space: i64, inodes: i64 },
    /// Sets or removes one flock holder. `last`: the session holds nothing else on this inode afterwards
    /// (`locked{sid}` of the Redis layout).
    SetFlock { ino: Ino, session: SessionId, owner: u64, exclusive: Option<bool>, last: bool },
    /// Replaces the ranges of one POSIX lock holder; an empty list removes it. `last` as above.
    SetPlock { ino: Ino, session: SessionId, owner: u64, ranges: Vec<PlockRange>, last: bool },
}

/// Guards and changes of one commit. Changes are applied in order.
#[derive(Clone, Debug, Default)]
pub struct Batch {
    pub guards: Vec<Guard>,
    pub changes: Vec<Change>,
}

/// What a commit reports.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Committed {
    /// For each `Append`, in order: how many records the list has now; 0 when `only_existing` kept it missing.
    pub list_lengths: Vec<usize>,
    /// For each `AddSliceRef`, in order: the references left. At zero or less the slice's objects may go.
    pub references: Vec<i64>,
}

/// A question over many records, answered in pages outside transactions. The order is the engine's own, but
/// stable: what is neither added nor removed meanwhile is seen at least once.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Scan {
    /// Entries of one directory.
    Dentries(Ino),
    /// All entries of the volume.
    AllDentries,
    Attrs,
    /// All chunks of the volume.
    Chunks,
    /// Chunks of one inode, wherever they lie.
    ChunksOf(Ino),
    SliceRefs,
    Sessions,
    Sustained(SessionId),
    DeletedFiles,
    DelayedSlices,
    DirStats,
    Quotas,
    AclRules,
    /// Rows of `Key::Flocks` and `Key::Plocks` of the inodes on which the session holds something, whole records.
    LocksOf(SessionId),
    /// All rows of `Key::Flocks` and `Key::Plocks`, whoever holds what they tell of.
    AllLocks,
    /// One `Key::Xattrs` record per inode that has any.
    AllXattrs,
    /// One `Key::LinkParents` record per inode that has any; none where they are derived.
    AllLinkParents,
}

/// Where a scan goes on; made and read by the engine alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Cursor(pub Bytes);

/// One page of a scan. `next` is `None` at the end; a page may be empty before that.
#[derive(Debug, Default)]
pub struct Page {
    pub rows: Vec<(Key, Record)>,
    /// What is stored there and is no record, one fault of the kind `Corrupt` each.
    pub unreadable: Vec<Fault>,
    pub next: Option<Cursor>,
}

impl Page {
    /// Of the answers to a question, what decodes and what does not; any other failure is one of the question.
    fn gather(
        answers: impl IntoIterator<Item = EngineResult<(Key, Record)>>,
        next: Option<Cursor>,
    ) -> EngineResult<Page> {
        let rows = answers.into_iter().map(decoded).collect::<EngineResult<Vec<_>>>()?;
        Ok(Page::of(rows, next))
    }

    /// Of rows, what decodes and why the others do not.
    fn of(rows: impl IntoIterator<Item = Result<(Key, Record), Fault>>, next: Option<Cursor>) -> Page {
        let mut page = Page { next, ..Page::default() };
        for row in rows {
            match row {
                Ok(row) => page.rows.push(row),
                Err(fault) => page.unreadable.push(fault),
            }
        }
        page
    }
}

/// Tells what does not decode from a question that failed.
fn decoded<T>(answer: EngineResult<T>) -> EngineResult<Result<T, Fault>> {
    match answer {
        Ok(value) => Ok(Ok(value)),
        Err(EngineError::Fault(fault)) if fault.kind() == FaultKind::Corrupt => Ok(Err(fault)),
        Err(error) => Err(error),
    }
}

/// A page of a directory with attributes; `None` for an entry whose node is missing.
#[derive(Debug, Default)]
pub struct PlusPage {
    pub entries: Vec<(Name, Dentry, Option<Attr>)>,
    pub next: Option<Cursor>,
}

/// What there is at a name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Looked {
    pub parent: Option<Attr>,
    pub dentry: Option<Dentry>,
    /// `None` when it is not there, or could not be had in the same trip.
    pub node: Option<Attr>,
}

/// One metadata engine, opened on one volume. Each call is one round trip unless it says otherwise, and every
/// call has a deadline of the engine's own.
#[async_trait]
pub trait Engine: Send + Sync + 'static {
    /// "redis", "sqlite", "memory": for logs and metrics.
    fn name(&self) -> &'static str;

    /// Whether `Scan::ChunksOf` costs no more than the chunks it finds. False where it reads through the whole volume
    /// (Redis); the chunks of a file are then asked for by number.
    fn lists_chunks_of_file(&self) -> bool {
        true
    }

    /// Whether the value of an extended attribute may be empty. Operations refuse it where it may not (TiKV).
    fn stores_empty_values(&self) -> bool {
        true
    }

    /// What the store has instead, where it cannot hold an extended attribute as it is ("no empty values"). Loads leave
    /// it out; whoever sets it is refused by the store itself.
    fn unstorable_xattr(&self, _name: &Name, value: &[u8]) -> Option<&'static str> {
        (value.is_empty() && !self.stores_empty_values()).then_some("no empty values")
    }

    /// How many records of a list one commit may work through (references of slices, mostly) beside what an operation
    /// changes anyway. Bounded where a transaction of the store is (etcd).
    fn batch_max(&self) -> usize {
        usize::MAX
    }

    /// Makes the store ready to hold a volume: schema and initial counters. Nothing is lost if it already does.
    async fn prepare(&self) -> EngineResult<()>;

    /// One consistent snapshot outside any transaction.
    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>>;

    /// The same for who can do with a part: each record, or why it does not decode. When one does not, they are read one
    /// by one, which is no snapshot.
    async fn read_readable(&self, keys: &[Key]) -> EngineResult<Vec<Result<Option<Record>, Fault>>> {
        if let Ok(records) = decoded(self.read(keys).await)? {
            return Ok(records.into_iter().map(Ok).collect());
        }
        let mut answers = Vec::with_capacity(keys.len());
        for key in keys {
            let answer = decoded(self.read(std::slice::from_ref(key)).await)?;
            answers.push(answer.map(|mut records| records.pop().flatten()));
        }
        Ok(answers)
    }

    /// An entry with its directory and its node, as one snapshot in one trip. `None`: this engine has no faster way
    /// than two reads.
    async fn lookup(&self, _parent: Ino, _name: &Name) -> EngineResult<Option<Looked>> {
        Ok(None)
    }

    /// Opens a transaction and does its first load in the same trip.
    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)>;

    /// Up to about `limit` records of the scan after `after` (from the start when `None`), and what there does not
    /// decode.
    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page>;

    /// The same, for all who cannot do with a part: what does not decode is a failure.
    async fn scan(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        let mut page = self.scan_readable(scan, after, limit).await?;
        match page.unreadable.pop() {
            Some(fault) => Err(fault.into()),
            None => Ok(page),
        }
    }

    /// Like `Scan::Dentries`, each entry with its node's attributes, and the same cursors. At most two trips.
    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage>;

    /// Reserves `count` ids and answers the first; the rest follow it. Inodes start at 2, slices at 1, sessions
    /// and hourly trash directories at 1.
    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64>;

    /// Makes what was committed before durable against power loss, as far as the engine can. Whoever has changed
    /// something calls it before it lets go of the engine, for what the engine has gathered.
    async fn sync(&self) -> EngineResult<()>;

    /// Removes every record of the volume (`destroy`). Any number of trips.
    async fn erase(&self) -> EngineResult<()>;
}

/// One transaction between its first load and its commit.
#[async_trait]
pub trait EngineTxn: Send {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>>;
    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed>;
}
