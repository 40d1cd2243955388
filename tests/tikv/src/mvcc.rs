//! The rules of Percolator as TiKV applies them: for each key one lock at most, and versions by commit timestamp.
//!
//! Nothing here knows of networks, regions or waiting. A request is checked as a whole before anything of it is
//! written, as TiKV does with the keys of one region: it leaves all of its locks or none.
//!
//! Left out, because nobody here can tell the difference: rollback records are never collapsed, values lie in the
//! write records (TiKV has a column family for long ones), and asynchronous commit and one-phase commit are declined
//! as a TiKV may do (`min_commit_ts` and `one_pc_commit_ts` of the answer stay 0).

use std::collections::BTreeMap;
use std::ops::Bound;

use crate::proto::{
    Action, AlreadyExist, Assertion, CommitTsExpired, ConflictReason, Deadlock, KeyError, LockInfo, Mutation, Op,
    PessimisticAction, PrimaryMismatch, TxnNotFound, WriteConflict,
};

pub type Key = Vec<u8>;
pub type Value = Vec<u8>;
/// Milliseconds, shifted left by 18, and a counter below.
pub type Ts = u64;

/// The limit of TiKV 6 and later (`storage.max-key-size`).
pub const KEY_BYTES_MAX: usize = 8 << 10;

const LOGICAL_BITS: u32 = 18;

pub fn physical_ms(ts: Ts) -> u64 {
    ts >> LOGICAL_BITS
}

pub fn compose(physical_ms: u64, logical: u64) -> Ts {
    (physical_ms << LOGICAL_BITS) + logical
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    Put,
    Delete,
    /// Of a key that was locked and not written.
    Lock,
    /// Taken before the commit; says nothing about what will be written.
    Pessimistic,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Lock {
    pub kind: LockKind,
    pub primary: Key,
    pub start_ts: Ts,
    pub ttl_ms: u64,
    pub for_update_ts: Ts,
    pub min_commit_ts: Ts,
    pub txn_size: u64,
    pub value: Option<Value>,
}

impl Lock {
    fn expired(&self, current_ts: Ts) -> bool {
        physical_ms(self.start_ts).saturating_add(self.ttl_ms) < physical_ms(current_ts)
    }

    pub fn info(&self, key: &[u8]) -> LockInfo {
        let kind = match self.kind {
            LockKind::Put => Op::Put,
            LockKind::Delete => Op::Del,
            LockKind::Lock => Op::Lock,
            LockKind::Pessimistic => Op::PessimisticLock,
        };
        LockInfo {
            primary_lock: self.primary.clone(),
            lock_version: self.start_ts,
            key: key.to_vec(),
            lock_ttl: self.ttl_ms,
            txn_size: self.txn_size,
            lock_type: kind as i32,
            lock_for_update_ts: self.for_update_ts,
            min_commit_ts: self.min_commit_ts,
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum WriteKind {
    Put(Value),
    Delete,
    Lock,
    /// Lies at the start timestamp of the transaction that it forbids.
    Rollback,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Write {
    pub start_ts: Ts,
    pub kind: WriteKind,
    /// A transaction that started exactly when this was committed has been rolled back.
    pub hides_rollback: bool,
}

#[derive(Debug, Default)]
struct Entry {
    lock: Option<Lock>,
    writes: BTreeMap<Ts, Write>,
}

impl Entry {
    fn value_at(&self, version: Ts) -> Option<&Value> {
        for (_, write) in self.writes.range(..=version).rev() {
            match &write.kind {
                WriteKind::Put(value) => return Some(value),
                WriteKind::Delete => return None,
                WriteKind::Lock | WriteKind::Rollback => {}
            }
        }
        None
    }

    /// What became of the transaction that started at `start_ts`, as far as this key knows.
    fn record_of(&self, start_ts: Ts) -> Record {
        for (commit_ts, write) in self.writes.range(start_ts..) {
            if write.start_ts == start_ts {
                return match write.kind {
                    WriteKind::Rollback => Record::RolledBack,
                    _ => Record::Committed(*commit_ts),
                };
            }
            if *commit_ts == start_ts && write.hides_rollback {
                return Record::RolledBack;
            }
        }
        Record::Nothing
    }

    fn put_rollback(&mut self, start_ts: Ts) {
        match self.writes.get_mut(&start_ts) {
            Some(write) => write.hides_rollback = true,
            None => {
                let write = Write { start_ts, kind: WriteKind::Rollback, hides_rollback: false };
                self.writes.insert(start_ts, write);
            }
        }
    }

    /// The newest record of any kind, rollbacks too: TiKV compares with that.
    fn newest(&self) -> Option<(Ts, &Write)> {
        self.writes.iter().next_back().map(|(ts, write)| (*ts, write))
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Record {
    Committed(Ts),
    RolledBack,
    Nothing,
}

/// Why a request is refused.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Refusal {
    Locked(LockInfo),
    Conflict {
        start_ts: Ts,
        conflict_ts: Ts,
        commit_ts: Ts,
        key: Key,
        primary: Key,
        reason: ConflictReason,
    },
    AlreadyExists {
        key: Key,
    },
    TxnNotFound {
        start_ts: Ts,
        key: Key,
    },
    TxnLockNotFound {
        start_ts: Ts,
        commit_ts: Ts,
        key: Key,
    },
    PessimisticLockNotFound {
        start_ts: Ts,
        key: Key,
    },
    CommitTsExpired {
        start_ts: Ts,
        commit_ts: Ts,
        key: Key,
        min_commit_ts: Ts,
    },
    PrimaryMismatch(LockInfo),
    Deadlock {
        lock_ts: Ts,
        key: Key,
    },
    /// Everything that TiKV answers with a text that tells the client to give up.
    Abort(String),
}

impl From<Refusal> for KeyError {
    fn from(refusal: Refusal) -> KeyError {
        let mut error = KeyError::default();
        match refusal {
            Refusal::Locked(info) => error.locked = Some(info),
            Refusal::Conflict { start_ts, conflict_ts, commit_ts, key, primary, reason } => {
                error.conflict = Some(WriteConflict {
                    start_ts,
                    conflict_ts,
                    key,
                    primary,
                    conflict_commit_ts: commit_ts,
                    reason: reason as i32,
                });
            }
            Refusal::AlreadyExists { key } => error.already_exist = Some(AlreadyExist { key }),
            Refusal::TxnNotFound { start_ts, key } => {
                error.txn_not_found = Some(TxnNotFound { start_ts, primary_key: key });
            }
            // The two texts as TiKV forms them: clients look for these words.
            Refusal::TxnLockNotFound { start_ts, commit_ts, key } => {
                error.retryable = format!(
                    "Error(Txn(Error(Mvcc(Error(TxnLockNotFound {{ start_ts: TimeStamp({start_ts}), commit_ts: \
                     TimeStamp({commit_ts}), key: {key:?} }})))))"
                );
            }
            Refusal::PessimisticLockNotFound { start_ts, key } => {
                error.abort = format!(
                    "Error(Txn(Error(Mvcc(Error(PessimisticLockNotFound {{ start_ts: TimeStamp({start_ts}), key: \
                     {key:?} }})))))"
                );
            }
            Refusal::CommitTsExpired { start_ts, commit_ts, key, min_commit_ts } => {
                let expired = CommitTsExpired { start_ts, attempted_commit_ts: commit_ts, key, min_commit_ts };
                error.commit_ts_expired = Some(expired);
            }
            Refusal::PrimaryMismatch(info) => error.primary_mismatch = Some(PrimaryMismatch { lock_info: Some(info) }),
            Refusal::Deadlock { lock_ts, key } => error.deadlock = Some(Deadlock { lock_ts, lock_key: key }),
            Refusal::Abort(text) => error.abort = text,
        }
        error
    }
}

/// What `KvCheckTxnStatus` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TxnStatus {
    Committed(Ts),
    RolledBack(Action),
    Locked { info: LockInfo, pushed: bool },
}

/// What `KvCheckSecondaryLocks` found.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Secondaries {
    Locked(Vec<LockInfo>),
    Committed(Ts),
    RolledBack,
}

/// A lock that went away, for those who wait for it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Released {
    pub key: Key,
    pub start_ts: Ts,
    /// 0 when it was rolled back.
    pub commit_ts: Ts,
}

#[derive(Clone, Debug, Default)]
pub struct Prewrite {
    pub mutations: Vec<Mutation>,
    pub actions: Vec<i32>,
    pub primary: Key,
    pub start_ts: Ts,
    pub ttl_ms: u64,
    /// 0: an optimistic transaction.
    pub for_update_ts: Ts,
    pub min_commit_ts: Ts,
    pub txn_size: u64,
    pub skip_constraint_check: bool,
}

#[derive(Clone, Debug, Default)]
pub struct PessimisticLock {
    pub mutations: Vec<Mutation>,
    pub primary: Key,
    pub start_ts: Ts,
    pub ttl_ms: u64,
    pub for_update_ts: Ts,
    pub min_commit_ts: Ts,
}

/// All keys, whatever their region.
#[derive(Debug, Default)]
pub struct Mvcc {
    entries: BTreeMap<Key, Entry>,
    safe_point: Ts,
    released: Vec<Released>,
}

/// `[start, end)`, where an empty end has no end; `None` when nothing can lie in it.
fn bounds(start: &[u8], end: &[u8]) -> Option<(Bound<Key>, Bound<Key>)> {
    if end.is_empty() {
        return Some((Bound::Included(start.to_vec()), Bound::Unbounded));
    }
    (start < end).then(|| (Bound::Included(start.to_vec()), Bound::Excluded(end.to_vec())))
}

// Reads.
impl Mvcc {
    /// Whether the lock hides what a reader at `version` would see.
    fn blocking<'a>(&self, key: &[u8], entry: &'a Entry, version: Ts, resolved: &[Ts]) -> Option<&'a Lock> {
        let lock = entry.lock.as_ref()?;
        let harmless = lock.start_ts > version
            || matches!(lock.kind, LockKind::Lock | LockKind::Pessimistic)
            || lock.min_commit_ts > version
            || resolved.contains(&lock.start_ts)
            // The newest version of the primary: the transaction is not committed yet.
            || (version == Ts::MAX && lock.primary == key);
        (!harmless).then_some(lock)
    }

    /// TiKV itself would answer from what garbage collection has left. Its clients for Go refuse such a read, and so
    /// does this server, so that a test sees the mistake.
    fn check_version(&self, version: Ts) -> Result<(), Refusal> {
        if version < self.safe_point {
            let safe_point = self.safe_point;
            return Err(Refusal::Abort(format!("the read at {version} is below the safe point {safe_point} of GC")));
        }
        Ok(())
    }

    fn read(&self, key: &[u8], entry: &Entry, version: Ts, resolved: &[Ts]) -> Result<Option<Value>, Refusal> {
        match self.blocking(key, entry, version, resolved) {
            Some(lock) => Err(Refusal::Locked(lock.info(key))),
            None => Ok(entry.value_at(version).cloned()),
        }
    }

    pub fn get(&self, key: &[u8], version: Ts, resolved: &[Ts]) -> Result<Option<Value>, Refusal> {
        self.check_version(version)?;
        self.entries.get(key).map_or(Ok(None), |entry| self.read(key, entry, version, resolved))
    }

    /// The first `limit` keys of `[start, end)` with a value or a lock in the way; the last ones in `reverse`.
    pub fn scan(
        &self,
        (start, end): (&[u8], &[u8]),
        limit: usize,
        reverse: bool,
        version: Ts,
        resolved: &[Ts],
    ) -> Result<Vec<(Key, Result<Value, Refusal>)>, Refusal> {
        self.check_version(version)?;
        let Some(bounds) = bounds(start, end) else { return Ok(Vec::new()) };
        let found = |(key, entry): (&Key, &Entry)| {
            self.read(key, entry, version, resolved).transpose().map(|answer| (key.clone(), answer))
        };
        let range = self.entries.range(bounds);
        Ok(match reverse {
            false => range.filter_map(found).take(limit).collect(),
            true => range.rev().filter_map(found).take(limit).collect(),
        })
    }

    /// The newest committed value of each key. A lock whose primary is committed counts as committed: clients commit
    /// the other keys after they have told of the success.
    pub fn latest(&self) -> BTreeMap<Key, Value> {
        let mut latest = BTreeMap::new();
        for (key, entry) in &self.entries {
            let pending = entry.lock.as_ref().filter(|lock| self.fate(lock).is_some());
            let value = match pending.map(|lock| (lock.kind, &lock.value)) {
                Some((LockKind::Put, value)) => value.as_ref(),
                Some((LockKind::Delete, _)) => None,
                Some((LockKind::Lock | LockKind::Pessimistic, _)) | None => entry.value_at(Ts::MAX),
            };
            if let Some(value) = value {
                latest.insert(key.clone(), value.clone());
            }
        }
        latest
    }

    /// When the transaction of this lock was committed, by its primary.
    fn fate(&self, lock: &Lock) -> Option<Ts> {
        match self.record_of(&lock.primary, lock.start_ts) {
            Record::Committed(commit_ts) => Some(commit_ts),
            Record::RolledBack | Record::Nothing => None,
        }
    }

    /// Commits what is decided and not yet done, as the next reader of these keys would.
    pub fn settle(&mut self) {
        let locks = self.entries.iter().filter_map(|(key, entry)| Some((key, entry.lock.as_ref()?)));
        let decided: Vec<(Key, Ts)> = locks.filter_map(|(key, lock)| Some((key.clone(), self.fate(lock)?))).collect();
        for (key, commit_ts) in decided {
            self.commit_lock(&key, commit_ts);
        }
    }

    /// The records of a key, oldest first.
    pub fn writes_of(&self, key: &[u8]) -> Vec<(Ts, Write)> {
        let entry = self.entries.get(key);
        entry.map(|entry| entry.writes.iter().map(|(ts, write)| (*ts, write.clone())).collect()).unwrap_or_default()
    }

    /// Locks of `[start, end)` that are not younger than `max_version`.
    pub fn locks(&self, start: &[u8], end: &[u8], max_version: Ts, limit: usize) -> Vec<LockInfo> {
        let Some(bounds) = bounds(start, end) else { return Vec::new() };
        let locks = self.entries.range(bounds).filter_map(|(key, entry)| Some((key, entry.lock.as_ref()?)));
        let old = locks.filter(|(_, lock)| lock.start_ts <= max_version);
        let limit = if limit == 0 { usize::MAX } else { limit };
        old.take(limit).map(|(key, lock)| lock.info(key)).collect()
    }

    pub fn is_locked(&self, key: &[u8], start_ts: Ts) -> bool {
        self.lock_of(key, start_ts).is_some()
    }

    /// The locks that have gone since the last call.
    pub fn take_released(&mut self) -> Vec<Released> {
        std::mem::take(&mut self.released)
    }
}

// The first phase.
impl Mvcc {
    fn check_mutation(&self, mutation: &Mutation, op: Op) -> Result<(), Refusal> {
        let bytes = mutation.key.len();
        if bytes > KEY_BYTES_MAX {
            return Err(Refusal::Abort(format!("KeyTooLarge: a key of {bytes} bytes, limit {KEY_BYTES_MAX}")));
        }
        // Clients for Go, and so JuiceFS, cannot write these; whoever does would make a volume that they cannot keep.
        if matches!(op, Op::Put | Op::Insert) && mutation.value.is_empty() {
            return Err(Refusal::Abort(format!("cannot set nil value: key {:?} has an empty value", mutation.key)));
        }
        Ok(())
    }

    /// The lock to write, `None` if there is nothing to do.
    fn prewrite_one(&self, request: &Prewrite, at: usize) -> Result<Option<Lock>, Refusal> {
        let mutation = &request.mutations[at];
        let key = &mutation.key;
        let op = Op::try_from(mutation.op).unwrap_or(Op::Rollback);
        self.check_mutation(mutation, op)?;
        let kind = match op {
            Op::Put | Op::Insert => LockKind::Put,
            Op::Del => LockKind::Delete,
            Op::Lock | Op::CheckNotExists => LockKind::Lock,
            Op::Rollback | Op::PessimisticLock => {
                return Err(Refusal::Abort(format!("mismatch Op {op:?} in a prewrite")));
            }
        };
        let pessimistic = request.for_update_ts > 0;
        if pessimistic && op == Op::CheckNotExists {
            return Err(Refusal::Abort("cannot handle checkNotExists in pessimistic prewrite".to_owned()));
        }
        let locked_before =
            pessimistic && request.actions.get(at).copied() == Some(PessimisticAction::DoPessimisticCheck as i32);
        let held = self.entries.get(key).and_then(|entry| entry.lock.as_ref());
        let mut lock = Lock {
            kind,
            primary: request.primary.clone(),
            start_ts: request.start_ts,
            ttl_ms: request.ttl_ms,
            for_update_ts: request.for_update_ts,
            min_commit_ts: request.min_commit_ts,
            txn_size: request.txn_size,
            value: (kind == LockKind::Put).then(|| mutation.value.clone()),
        };
        match held {
            Some(held) if held.start_ts != request.start_ts => {
                if locked_before {
                    return Err(Refusal::PessimisticLockNotFound { start_ts: request.start_ts, key: key.clone() });
                }
                let mut info = held.info(key);
                if pessimistic {
                    // Tells the client to resolve it at once: the pessimistic locks already keep others out.
                    info.lock_ttl = 0;
                }
                return Err(Refusal::Locked(info));
            }
            Some(held) if held.kind == LockKind::Pessimistic => {
                if !pessimistic {
                    return Err(Refusal::Abort("LockTypeNotMatch: a pessimistic lock of this transaction".to_owned()));
                }
                lock.ttl_ms = lock.ttl_ms.max(held.ttl_ms);
                lock.min_commit_ts = lock.min_commit_ts.max(held.min_commit_ts);
                return Ok(Some(lock));
            }
            // The same request again.
            Some(_) => return Ok(None),
            None if locked_before => self.check_lost_lock(request.start_ts, key)?,
            None => {}
        }
        if !pessimistic && !request.skip_constraint_check {
            self.check_newer(request, key)?;
            if matches!(op, Op::Insert | Op::CheckNotExists) {
                self.check_absent(key)?;
            }
        }
        Ok((op != Op::CheckNotExists).then_some(lock))
    }

    /// A pessimistic lock may get lost in TiKV; it can be made up for while nobody has written since the start.
    fn check_lost_lock(&self, start_ts: Ts, key: &[u8]) -> Result<(), Refusal> {
        match self.entries.get(key).and_then(Entry::newest) {
            Some((commit_ts, _)) if commit_ts >= start_ts => {
                Err(Refusal::PessimisticLockNotFound { start_ts, key: key.to_vec() })
            }
            _ => Ok(()),
        }
    }

    fn check_newer(&self, request: &Prewrite, key: &[u8]) -> Result<(), Refusal> {
        let Some((commit_ts, write)) = self.entries.get(key).and_then(Entry::newest) else { return Ok(()) };
        let rolled_back = commit_ts == request.start_ts && (write.kind == WriteKind::Rollback || write.hides_rollback);
        let reason = match commit_ts > request.start_ts {
            true => ConflictReason::Optimistic,
            false if rolled_back => ConflictReason::SelfRolledBack,
            false => return Ok(()),
        };
        Err(Refusal::Conflict {
            start_ts: request.start_ts,
            conflict_ts: write.start_ts,
            commit_ts,
            key: key.to_vec(),
            primary: request.primary.clone(),
            reason,
        })
    }

    fn check_absent(&self, key: &[u8]) -> Result<(), Refusal> {
        match self.entries.get(key).and_then(|entry| entry.value_at(Ts::MAX)) {
            Some(_) => Err(Refusal::AlreadyExists { key: key.to_vec() }),
            None => Ok(()),
        }
    }

    fn is_committed(&self, key: &[u8], start_ts: Ts) -> bool {
        let record = self.entries.get(key).map(|entry| entry.record_of(start_ts));
        matches!(record, Some(Record::Committed(_)))
    }

    /// All locks or none; locks of others are reported together, anything else alone.
    pub fn prewrite(&mut self, request: &Prewrite) -> Result<(), Vec<Refusal>> {
        let mut locks = Vec::new();
        let mut locked = Vec::new();
        for at in 0..request.mutations.len() {
            let key = &request.mutations[at].key;
            match self.prewrite_one(request, at) {
                Ok(Some(lock)) => locks.push((key.clone(), lock)),
                Ok(None) => {}
                Err(refusal @ Refusal::Locked(_)) => locked.push(refusal),
                // The answer to the first attempt was lost, and somebody has committed the transaction since.
                Err(Refusal::Conflict { .. } | Refusal::PessimisticLockNotFound { .. })
                    if self.is_committed(key, request.start_ts) =>
                {
                    return Ok(());
                }
                Err(refusal) => return Err(vec![refusal]),
            }
        }
        if !locked.is_empty() {
            return Err(locked);
        }
        for (key, lock) in locks {
            self.entries.entry(key).or_default().lock = Some(lock);
        }
        Ok(())
    }

    fn lock_one(&self, request: &PessimisticLock, mutation: &Mutation) -> Result<Option<Lock>, Refusal> {
        let key = &mutation.key;
        self.check_mutation(mutation, Op::PessimisticLock)?;
        let lock = Lock {
            kind: LockKind::Pessimistic,
            primary: request.primary.clone(),
            start_ts: request.start_ts,
            ttl_ms: request.ttl_ms,
            for_update_ts: request.for_update_ts,
            min_commit_ts: request.min_commit_ts,
            txn_size: 0,
            value: None,
        };
        let Some(entry) = self.entries.get(key) else { return Ok(Some(lock)) };
        if let Some(held) = &entry.lock {
            if held.start_ts != request.start_ts {
                return Err(Refusal::Locked(held.info(key)));
            }
            if held.kind != LockKind::Pessimistic {
                return Err(Refusal::Abort("LockTypeNotMatch: prewritten by this transaction".to_owned()));
            }
            return Ok((request.for_update_ts > held.for_update_ts).then_some(lock));
        }
        if let Some((commit_ts, write)) = entry.newest().filter(|(commit_ts, _)| *commit_ts > request.for_update_ts) {
            return Err(Refusal::Conflict {
                start_ts: request.start_ts,
                conflict_ts: write.start_ts,
                commit_ts,
                key: key.clone(),
                primary: request.primary.clone(),
                reason: ConflictReason::PessimisticRetry,
            });
        }
        let own = entry.writes.get(&request.start_ts);
        if own.is_some_and(|write| write.kind == WriteKind::Rollback || write.hides_rollback) {
            let start_ts = request.start_ts;
            return Err(Refusal::Abort(format!(
                "Error(Txn(Error(Mvcc(Error(PessimisticLockRolledBack {{ start_ts: TimeStamp({start_ts}), key: \
                 {key:?} }})))))"
            )));
        }
        if mutation.assertion == Assertion::NotExist as i32 {
            self.check_absent(key)?;
        }
        Ok(Some(lock))
    }

    /// Locks all keys or none, and tells their values as of `for_update_ts`.
    pub fn pessimistic_lock(&mut self, request: &PessimisticLock) -> Result<Vec<Option<Value>>, Refusal> {
        let mut locks = Vec::new();
        for mutation in &request.mutations {
            if let Some(lock) = self.lock_one(request, mutation)? {
                locks.push((mutation.key.clone(), lock));
            }
        }
        for (key, lock) in locks {
            self.entries.entry(key).or_default().lock = Some(lock);
        }
        let value = |mutation: &Mutation| {
            self.entries.get(&mutation.key).and_then(|entry| entry.value_at(request.for_update_ts)).cloned()
        };
        Ok(request.mutations.iter().map(value).collect())
    }

    /// Leaves no record: the transaction goes on without this lock.
    pub fn pessimistic_rollback(&mut self, keys: &[Key], start_ts: Ts, for_update_ts: Ts) {
        for key in keys {
            let lock = self.entries.get(key).and_then(|entry| entry.lock.as_ref());
            let ours = |lock: &&Lock| {
                lock.kind == LockKind::Pessimistic && lock.start_ts == start_ts && lock.for_update_ts <= for_update_ts
            };
            if lock.filter(ours).is_some() {
                self.unlock(key, 0);
            }
        }
    }
}

// The second phase, and what others do about a transaction.
impl Mvcc {
    fn unlock(&mut self, key: &[u8], commit_ts: Ts) {
        if let Some(lock) = self.entries.get_mut(key).and_then(|entry| entry.lock.take()) {
            self.released.push(Released { key: key.to_vec(), start_ts: lock.start_ts, commit_ts });
        }
    }

    fn lock_of(&self, key: &[u8], start_ts: Ts) -> Option<&Lock> {
        let lock = self.entries.get(key).and_then(|entry| entry.lock.as_ref());
        lock.filter(|lock| lock.start_ts == start_ts)
    }

    fn record_of(&self, key: &[u8], start_ts: Ts) -> Record {
        self.entries.get(key).map_or(Record::Nothing, |entry| entry.record_of(start_ts))
    }

    /// Whether there is a lock to commit; `false` when that has happened before.
    fn check_commit(&self, key: &[u8], start_ts: Ts, commit_ts: Ts) -> Result<bool, Refusal> {
        let Some(lock) = self.lock_of(key, start_ts) else {
            return match self.record_of(key, start_ts) {
                Record::Committed(_) => Ok(false),
                Record::RolledBack | Record::Nothing => {
                    Err(Refusal::TxnLockNotFound { start_ts, commit_ts, key: key.to_vec() })
                }
            };
        };
        if commit_ts < lock.min_commit_ts {
            let min_commit_ts = lock.min_commit_ts;
            return Err(Refusal::CommitTsExpired { start_ts, commit_ts, key: key.to_vec(), min_commit_ts });
        }
        Ok(true)
    }

    /// Commits all keys or none; those that are committed already count as done.
    pub fn commit(&mut self, keys: &[Key], start_ts: Ts, commit_ts: Ts) -> Result<(), Refusal> {
        if commit_ts <= start_ts {
            return Err(Refusal::Abort(format!("InvalidTxnTso: start {start_ts}, commit {commit_ts}")));
        }
        let mut due = Vec::new();
        for key in keys {
            if self.check_commit(key, start_ts, commit_ts)? {
                due.push(key);
            }
        }
        for key in due {
            self.commit_lock(key, commit_ts);
        }
        Ok(())
    }

    fn commit_lock(&mut self, key: &[u8], commit_ts: Ts) {
        let Some(entry) = self.entries.get_mut(key) else { return };
        let Some(lock) = &mut entry.lock else { return };
        let kind = match lock.kind {
            LockKind::Put => WriteKind::Put(lock.value.take().unwrap_or_default()),
            LockKind::Delete => WriteKind::Delete,
            LockKind::Lock | LockKind::Pessimistic => WriteKind::Lock,
        };
        let hides_rollback = entry.writes.contains_key(&commit_ts);
        entry.writes.insert(commit_ts, Write { start_ts: lock.start_ts, kind, hides_rollback });
        self.unlock(key, commit_ts);
    }

    fn rollback_key(&mut self, key: &[u8], start_ts: Ts) {
        self.entries.entry(key.to_vec()).or_default().put_rollback(start_ts);
        if self.lock_of(key, start_ts).is_some() {
            self.unlock(key, 0);
        }
    }

    /// Forbids the transaction on these keys for ever.
    pub fn rollback(&mut self, keys: &[Key], start_ts: Ts) -> Result<(), Refusal> {
        for key in keys {
            if let (None, Record::Committed(commit_ts)) = (self.lock_of(key, start_ts), self.record_of(key, start_ts)) {
                return Err(Refusal::Abort(format!("Error(Txn(Error(Mvcc(Error(Committed {{ {commit_ts} }})))))")));
            }
        }
        keys.iter().for_each(|key| self.rollback_key(key, start_ts));
        Ok(())
    }

    /// Finishes what a transaction has left in `[start, end)`: commits at `commit_ts`, rolls back if that is 0.
    pub fn resolve(&mut self, start: &[u8], end: &[u8], start_ts: Ts, commit_ts: Ts) -> Result<(), Refusal> {
        let locks = self.locks(start, end, Ts::MAX, 0);
        let keys: Vec<Key> =
            locks.into_iter().filter(|lock| lock.lock_version == start_ts).map(|lock| lock.key).collect();
        self.resolve_keys(&keys, start_ts, commit_ts)
    }

    pub fn resolve_keys(&mut self, keys: &[Key], start_ts: Ts, commit_ts: Ts) -> Result<(), Refusal> {
        if commit_ts == 0 {
            return self.rollback(keys, start_ts);
        }
        self.commit(keys, start_ts, commit_ts)
    }

    pub fn heart_beat(&mut self, primary: &[u8], start_ts: Ts, ttl_ms: u64) -> Result<u64, Refusal> {
        let lock = self.entries.get_mut(primary).and_then(|entry| entry.lock.as_mut());
        match lock.filter(|lock| lock.start_ts == start_ts) {
            Some(lock) => {
                lock.ttl_ms = lock.ttl_ms.max(ttl_ms);
                Ok(lock.ttl_ms)
            }
            None => Err(Refusal::TxnNotFound { start_ts, key: primary.to_vec() }),
        }
    }

    /// Whether the transaction of this primary lives; one whose lock has expired dies by the question.
    pub fn check_txn_status(&mut self, check: &StatusCheck) -> Result<TxnStatus, Refusal> {
        let (primary, start_ts) = (&check.primary, check.lock_ts);
        let Some(lock) = self.lock_of(primary, start_ts).cloned() else { return self.status_without_lock(check) };
        if check.verify_is_primary && lock.primary != *primary {
            return Err(Refusal::PrimaryMismatch(lock.info(primary)));
        }
        if lock.expired(check.current_ts) {
            if check.resolving_pessimistic_lock && lock.kind == LockKind::Pessimistic {
                self.unlock(primary, 0);
                return Ok(TxnStatus::RolledBack(Action::TtlExpirePessimisticRollback));
            }
            self.rollback_key(primary, start_ts);
            return Ok(TxnStatus::RolledBack(Action::TtlExpireRollback));
        }
        Ok(self.status_of_live(check, lock))
    }

    fn status_without_lock(&mut self, check: &StatusCheck) -> Result<TxnStatus, Refusal> {
        let (primary, start_ts) = (&check.primary, check.lock_ts);
        match self.record_of(primary, start_ts) {
            Record::Committed(commit_ts) => return Ok(TxnStatus::Committed(commit_ts)),
            Record::RolledBack => return Ok(TxnStatus::RolledBack(Action::NoAction)),
            Record::Nothing => {}
        }
        if !check.rollback_if_not_exist {
            return Err(Refusal::TxnNotFound { start_ts, key: primary.clone() });
        }
        if check.resolving_pessimistic_lock {
            return Ok(TxnStatus::RolledBack(Action::LockNotExistDoNothing));
        }
        self.rollback_key(primary, start_ts);
        Ok(TxnStatus::RolledBack(Action::LockNotExistRollback))
    }

    /// A reader pushes the commit of a large transaction behind itself; others have no `min_commit_ts` to push.
    fn status_of_live(&mut self, check: &StatusCheck, mut lock: Lock) -> TxnStatus {
        let caller = check.caller_start_ts;
        if lock.min_commit_ts > 0 && caller < Ts::MAX && caller >= lock.min_commit_ts {
            lock.min_commit_ts = (caller + 1).max(check.current_ts);
            if let Some(entry) = self.entries.get_mut(&check.primary) {
                entry.lock = Some(lock.clone());
            }
        }
        let pushed = (caller > 0 && lock.min_commit_ts > caller) || caller == Ts::MAX;
        TxnStatus::Locked { info: lock.info(&check.primary), pushed }
    }

    pub fn check_secondaries(&mut self, keys: &[Key], start_ts: Ts) -> Secondaries {
        let mut locks = Vec::new();
        for key in keys {
            if let Some(lock) = self.lock_of(key, start_ts).filter(|lock| lock.kind != LockKind::Pessimistic) {
                locks.push(lock.info(key));
                continue;
            }
            if let (None, Record::Committed(commit_ts)) = (self.lock_of(key, start_ts), self.record_of(key, start_ts)) {
                return Secondaries::Committed(commit_ts);
            }
            self.rollback_key(key, start_ts);
            return Secondaries::RolledBack;
        }
        Secondaries::Locked(locks)
    }
}

/// The question of `KvCheckTxnStatus`.
#[derive(Clone, Debug, Default)]
pub struct StatusCheck {
    pub primary: Key,
    pub lock_ts: Ts,
    pub caller_start_ts: Ts,
    pub current_ts: Ts,
    pub rollback_if_not_exist: bool,
    pub resolving_pessimistic_lock: bool,
    pub verify_is_primary: bool,
}

// Housekeeping.
impl Mvcc {
    /// Raises the safe point and drops what no read above it can see. Answers with the safe point that holds now.
    pub fn collect_garbage(&mut self, safe_point: Ts) -> Ts {
        self.safe_point = self.safe_point.max(safe_point);
        for entry in self.entries.values_mut() {
            let seen = entry
                .writes
                .range(..=self.safe_point)
                .rev()
                .find(|(_, write)| matches!(write.kind, WriteKind::Put(_) | WriteKind::Delete))
                .filter(|(_, write)| write.kind != WriteKind::Delete)
                .map(|(ts, _)| *ts);
            entry.writes.retain(|ts, _| *ts > self.safe_point || Some(*ts) == seen);
        }
        self.entries.retain(|_, entry| entry.lock.is_some() || !entry.writes.is_empty());
        self.safe_point
    }

    /// Versions, locks and all.
    pub fn destroy_range(&mut self, start: &[u8], end: &[u8]) {
        let Some(bounds) = bounds(start, end) else { return };
        let keys: Vec<Key> = self.entries.range(bounds).map(|(key, _)| key.clone()).collect();
        for key in keys {
            self.unlock(&key, 0);
            self.entries.remove(&key);
        }
    }
}

#[cfg(test)]
mod tests;
