//! Transactional key-value stores (etcd, TiKV): records in the layout of `spec/metadata.md` section 4, so that JuiceFS
//! clients can use the same volume at the same time.
//!
//! One engine over a narrow seam ([`Kv`]): read keys and ranges as one snapshot, and write some keys if others are still
//! what they were. `codec` names keys and values, `view` holds what was read, `batch` works guards and changes out on
//! it, `scan` pages through what there is, `etcd` and `tikv` are the back ends,
//! and each decides how it finds out that a key has changed (revisions; locks and timestamps).
//!
//! **A commit** takes what its transaction has loaded, reads what is missing (in one trip, or none), checks the guards
//! on these values itself, works out the new values and has them written if every key it looked at is unchanged. When
//! one has changed, all are read anew, and the same batch is worked out again: a relative change never conflicts, and a
//! guard on some fields of a record fails only when one of those fields has moved. Those of this process that change the
//! same node stand in line, for two that overlap cannot both go through; against other processes each tries again after
//! a short pause. So a directory in which many create costs each of them about one more trip and not many.
//!
//! **Other clients** of the same volume (the peer, older versions) look at whole keys as well and know nothing of ours;
//! no key of the store is ours alone. What is safe among ourselves is therefore safe with them: the emptiness of a
//! directory is compared as a range where the store can, and guarded by its attributes where it cannot, which everybody
//! who creates in it reads and whoever removes it deletes.
//!
//! **Usage** of the volume (`UsedSpace`, `TotalInodes`) and the statistics of directories are not part of a commit: a key
//! that every commit (in a directory) writes would let one of them through at a time. See [`super::gathered`]. Quotas stay
//! in the transaction, and are exact so.
//!
//! **Size**: a store takes so many keys in one transaction ([`Kv::operations_max`]: 128 on etcd). A batch that is larger
//! is refused with nothing applied; the peer commits the first part and goes on, which leaves half of an operation when
//! it dies in between. [`Engine::batch_max`] tells operations that work through lists how long a piece may be.

mod batch;
mod codec;
#[cfg(feature = "etcd")]
pub mod etcd;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod scan;
#[cfg(test)]
pub mod tests;
#[cfg(feature = "tikv")]
pub mod tikv;
mod view;

use super::gathered::{Gathered, Gathers, flush, flush_while_alive, is_named_by, take_note, wanted};
use super::{Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Page, PlusPage, Scan};
use crate::base::{Fault, Ino};
use crate::meta::record::{Counter, Key, Record};
use async_trait::async_trait;
use batch::{Decision, Writes};
use bytes::Bytes;
use std::collections::BTreeSet;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::Arc;
use std::time::{Duration, Instant};
use view::{View, Want, wants_of};

/// A commit whose keys keep changing gives up this long after the first time, and lets the operation decide anew.
const COMMIT_DEADLINE: Duration = Duration::from_secs(20);
/// Defeats after which a commit tries again at once.
const QUICK_TRIES: u32 = 4;
/// Ceilings of the pauses between its tries: a change means that another commit has just gone through.
const PAUSE_FIRST: Duration = Duration::from_micros(500);
/// All clients of a volume may want one key, as when hundreds are started together: the more of them there are, the longer
/// each has lost already, and the longer it has to keep out of the way of the others.
const PAUSE_MAX: Duration = Duration::from_millis(500);
/// Nobody decides anew what to do with a counter, so this is when a client gives up.
const COUNTER_DEADLINE: Duration = Duration::from_secs(45);
/// Queues for keys that several commits of this process change at once. Keys that share one only wait for each other.
const QUEUES: usize = 1024;
/// Commits wait so long for others of this process. The line stands still while a store is away.
const QUEUE_TIMEOUT: Duration = Duration::from_secs(10);
/// Records that operations may put into one commit beside the list they work through: attributes, entries, statistics.
const BESIDE_LIST: usize = 28;

/// An ordered key-value store with transactions, under the prefix of one volume. Each call has a deadline of its own,
/// and waits out short outages.
#[async_trait]
trait Kv: Send + Sync + 'static {
    fn name(&self) -> &'static str;

    /// Most keys that one commit may look at, and most that it may write.
    fn operations_max(&self) -> usize;

    /// Whether a value may be empty.
    fn stores_empty_values(&self) -> bool;

    /// One snapshot, in one trip.
    async fn read(&self, wants: &[Want]) -> EngineResult<View>;

    async fn begin(&self) -> EngineResult<Box<dyn KvTxn>>;

    /// Up to `limit` keys from `from` on and before `to`, in their order.
    async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> EngineResult<Vec<(Vec<u8>, Bytes)>>;

    /// Removes every key of the prefix.
    async fn erase(&self) -> EngineResult<()>;
}

/// One attempt to commit, from the first read on.
#[async_trait]
trait KvTxn: Send {
    async fn read(&mut self, wants: &[Want]) -> EngineResult<View>;

    async fn commit(self: Box<Self>, attempt: Attempt<'_>) -> EngineResult<Ended>;
}

/// What to write, and on what ground.
#[derive(Clone, Copy)]
struct Attempt<'a> {
    view: &'a View,
    /// Must be as `view` has it.
    checks: &'a BTreeSet<Want>,
    writes: &'a Writes,
    /// What to read should it not be.
    wants: &'a [Want],
}

/// How an attempt ended that is not an error.
enum Ended {
    Applied,
    /// Something is not as it was; what is wanted as it is now, if it came along.
    Changed(Box<dyn KvTxn>, Option<View>),
}

/// A volume in a key-value store. Clones share it.
#[derive(Clone)]
pub struct KvEngine(Arc<Shared>);

struct Shared {
    kv: Arc<dyn Kv>,
    usage: Gathered,
    queues: [tokio::sync::Mutex<()>; QUEUES],
}

/// Where a commit stands among those that change the same key.
struct Place<'a> {
    queue: usize,
    _held: Option<tokio::sync::MutexGuard<'a, ()>>,
    waited: bool,
}

impl KvEngine {
    /// An engine over a store that was found to serve. Its usage is flushed in the background while it lives.
    fn new(kv: Arc<dyn Kv>) -> KvEngine {
        let queues = std::array::from_fn(|_| tokio::sync::Mutex::default());
        let shared = Arc::new(Shared { kv, usage: Gathered::default(), queues });
        flush_while_alive(Arc::downgrade(&shared));
        KvEngine(shared)
    }
}

impl Shared {
    fn records(&self, keys: &[Key], view: &View) -> EngineResult<Vec<Option<Record>>> {
        let corrupt = |key: &Key| {
            Fault::corrupt("read record").with("engine", self.kv.name()).with("key", format_args!("{key:?}"))
        };
        keys.iter().map(|key| view.record(key).map_err(|_| corrupt(key).into())).collect()
    }

    /// Works the batch out and has it written, again while what it looks at keeps changing.
    /// `whole`: with what is gathered otherwise.
    async fn commit(
        &self,
        mut txn: Box<dyn KvTxn>,
        mut view: View,
        batch: &Batch,
        whole: bool,
    ) -> EngineResult<Committed> {
        let wants = batch::wants(batch, whole);
        let mut place = None;
        // Two commits that overlap and change the same node cannot both go through. Whoever finds the line empty tries
        // what it has read; the others have read what is gone by the time that they get there.
        if let Some(hot) = batch::hot_key(batch) {
            let line = self.stand_in(queue_of(&Want::Key(hot))).await;
            if line.waited {
                (txn, view) = (self.kv.begin().await?, View::default());
            }
            place = Some(line);
        }
        let deadline = Instant::now() + COMMIT_DEADLINE;
        let mut tries = 0u32;
        loop {
            let missing: Vec<Want> = wants.iter().filter(|want| !view.has(want)).cloned().collect();
            if !missing.is_empty() {
                view.add(txn.read(&missing).await?);
            }
            let Decision { checks, writes, committed } = batch::decide(batch, &view, whole, self.kv.name())?;
            self.check_fits(&writes)?;
            let ended = match checks.is_empty() && writes.is_empty() {
                true => Ended::Applied,
                false => txn.commit(Attempt { view: &view, checks: &checks, writes: &writes, wants: &wants }).await?,
            };
            let (next, now) = match ended {
                Ended::Applied => return Ok(committed),
                Ended::Changed(next, now) => (next, now),
            };
            if Instant::now() >= deadline {
                return Err(EngineError::Conflict);
            }
            tries += 1;
            let queue = changed_queue(&checks, &view, now.as_ref());
            let fresh = match &place {
                Some(line) if line.queue == queue => {
                    // Somebody outside of this process.
                    let quick = tries < QUICK_TRIES;
                    if !quick {
                        tokio::time::sleep(pause(tries)).await;
                    }
                    quick
                }
                _ => {
                    // Let go of one place before waiting for another: nobody waits while holding one.
                    drop(place.take());
                    let line = self.stand_in(queue).await;
                    let fresh = !line.waited;
                    place = Some(line);
                    fresh
                }
            };
            // What came with the news is of use only if nobody was waited for since.
            (txn, view) = (next, now.filter(|_| fresh).unwrap_or_default());
        }
    }

    /// A place at the head of a queue. Whoever does not get there in time goes on without one.
    async fn stand_in(&self, queue: usize) -> Place<'_> {
        match self.queues[queue].try_lock() {
            Ok(held) => Place { queue, _held: Some(held), waited: false },
            Err(_) => {
                let held = tokio::time::timeout(QUEUE_TIMEOUT, self.queues[queue].lock()).await.ok();
                Place { queue, _held: held, waited: true }
            }
        }
    }

    fn check_fits(&self, writes: &Writes) -> EngineResult<()> {
        if !self.kv.stores_empty_values() && writes.values().flatten().any(Vec::is_empty) {
            let said = format!("{} cannot store an empty value", self.kv.name());
            return Err(Fault::unsupported("commit").with("engine", self.kv.name()).source(said).into());
        }
        Ok(())
    }

    /// Reads one counter as it is stored and writes it changed; `None` leaves it alone.
    async fn change_counter(
        &self,
        counter: Counter,
        change: impl Fn(Option<i64>) -> Option<i64> + Send + Sync,
    ) -> EngineResult<Option<i64>> {
        let key = Key::Counter(counter);
        let (deadline, mut tries) = (Instant::now() + COUNTER_DEADLINE, 0);
        loop {
            let mut txn = self.kv.begin().await?;
            let wants: Vec<Want> = wants_of(&key).collect();
            let view = txn.read(&wants).await?;
            let before = match self.records(std::slice::from_ref(&key), &view)?.pop().flatten() {
                Some(Record::Number(n)) => Some(n),
                _ => None,
            };
            let Some(after) = change(before) else { return Ok(before) };
            let writes = codec::encode(&key, &Record::Number(after)).ok_or_else(|| self.odd_counter(counter))?;
            let (checks, writes) = (wants.iter().cloned().collect(), writes.into_iter().collect());
            match txn.commit(Attempt { view: &view, checks: &checks, writes: &writes, wants: &[] }).await? {
                Ended::Applied => return Ok(Some(after)),
                Ended::Changed(..) if Instant::now() >= deadline => {
                    let fault = Fault::timeout("count").with("engine", self.kv.name()).with("tries", tries);
                    let fault = fault.with("counter", format_args!("{counter:?}"));
                    return Err(fault.source("other clients change the counter all the time").into());
                }
                Ended::Changed(..) => tries += 1,
            }
            tokio::time::sleep(pause(tries)).await;
        }
    }

    fn odd_counter(&self, counter: Counter) -> EngineError {
        let fault = Fault::corrupt("count").with("engine", self.kv.name()).with("counter", format_args!("{counter:?}"));
        fault.source("the number is at its end").into()
    }
}

fn queue_of(want: &Want) -> usize {
    let mut hasher = DefaultHasher::new();
    want.hash(&mut hasher);
    hasher.finish() as usize % QUEUES
}

/// The queue of the first key that has changed; that of the first that was looked at, if it is not known which.
fn changed_queue(checks: &BTreeSet<Want>, view: &View, now: Option<&View>) -> usize {
    let changed = |want: &&Want| match (want, now) {
        (Want::Key(key), Some(now)) => now.key(key) != view.key(key),
        (list, Some(now)) => now.list(list) != view.list(list),
        (_, None) => true,
    };
    checks.iter().find(changed).map_or(0, queue_of)
}

/// Doubling with each try, jittered.
fn pause(tries: u32) -> Duration {
    let ceiling = PAUSE_FIRST.saturating_mul(1 << tries.min(10)).min(PAUSE_MAX);
    Duration::from_micros(crate::util::rng::random_range(0..=ceiling.as_micros() as u64))
}

impl Gathers for Shared {
    fn gathered(&self) -> &Gathered {
        &self.usage
    }

    async fn store(&self, changes: Vec<Change>) -> EngineResult<()> {
        let batch = Batch { guards: Vec::new(), changes };
        // All clients add to the same keys, and nobody above decides anew.
        let deadline = Instant::now() + COUNTER_DEADLINE;
        loop {
            match self.commit(self.kv.begin().await?, View::default(), &batch, true).await {
                Err(EngineError::Conflict) if Instant::now() < deadline => {}
                ended => return ended.map(drop),
            }
        }
    }
}

#[async_trait]
impl Engine for KvEngine {
    fn name(&self) -> &'static str {
        self.0.kv.name()
    }

    fn stores_empty_values(&self) -> bool {
        self.0.kv.stores_empty_values()
    }

    fn batch_max(&self) -> usize {
        match self.0.kv.operations_max() {
            usize::MAX => usize::MAX,
            most => most.saturating_sub(BESIDE_LIST),
        }
    }

    /// The two counters that a fresh volume of the peer has as well.
    async fn prepare(&self) -> EngineResult<()> {
        for counter in [Counter::NextInode, Counter::NextSlice] {
            let first = codec::counter_start(counter);
            self.0.change_counter(counter, |stored| stored.is_none().then_some(first)).await?;
        }
        Ok(())
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let wants = wanted(keys);
        let _still = match wants {
            true => Some(self.0.usage.still().await),
            false => None,
        };
        let all: Vec<Want> = keys.iter().flat_map(wants_of).collect();
        let view = self.0.kv.read(&all).await?;
        let mut records = self.0.records(keys, &view)?;
        if wants {
            self.0.usage.add_to(keys, &mut records);
        }
        Ok(records)
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let txn = self.0.kv.begin().await?;
        let mut txn = KvEngineTxn { shared: self.0.clone(), txn, view: View::default() };
        let records = txn.load(first).await?;
        Ok((Box::new(txn), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        if matches!(scan, Scan::DirStats) {
            flush(&*self.0).await?;
        }
        scan::page(&*self.0.kv, scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        scan::plus_page(&*self.0.kv, dir, after, limit).await
    }

    /// Ids that were handed out to a request whose reply was lost are never used, which the format allows.
    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        let count = i64::try_from(count).map_err(|_| self.0.odd_counter(counter))?;
        // One that is damaged must not give out the root's.
        let start = codec::counter_start(counter);
        let last = self.0.change_counter(counter, |last| last.unwrap_or(start).max(start).checked_add(count)).await?;
        match last {
            Some(last) if last >= count => Ok((last - count + 1).cast_unsigned()),
            _ => Err(self.0.odd_counter(counter)),
        }
    }

    /// The usage that was gathered; everything else is durable when its commit is answered.
    async fn sync(&self) -> EngineResult<()> {
        flush(&*self.0).await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.0.usage.forget();
        self.0.kv.erase().await
    }
}

/// A transaction: what it has loaded is what its commit tries first.
struct KvEngineTxn {
    shared: Arc<Shared>,
    txn: Box<dyn KvTxn>,
    view: View,
}

#[async_trait]
impl EngineTxn for KvEngineTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        // Who decides on the usage of the volume decides on what is stored.
        if wanted(keys) {
            flush(&*self.shared).await?;
        }
        let wants: BTreeSet<Want> = keys.iter().flat_map(wants_of).chain(keys.iter().flat_map(likely)).collect();
        let wants: Vec<Want> = wants.into_iter().collect();
        let loaded = self.txn.read(&wants).await?;
        let records = self.shared.records(keys, &loaded)?;
        self.view.add(loaded);
        Ok(records)
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let whole = is_named_by(&batch);
        if whole {
            flush(&*self.shared).await?;
        }
        let reports = self.shared.commit(self.txn, self.view, &batch, whole).await?;
        take_note(&*self.shared, &batch.changes, whole).await;
        Ok(reports)
    }
}

/// What a commit will want that its operation does not load: who asks for an entry in a transaction is about to make or
/// remove one, which changes the directory, whose attributes may be known and are guarded then. It spares a trip and costs
/// the store a key.
fn likely(key: &Key) -> impl Iterator<Item = Want> + use<> {
    let keys = match key {
        Key::Dentry(dir, _) => vec![Key::Attr(*dir)],
        _ => Vec::new(),
    };
    keys.into_iter().flat_map(|key| wants_of(&key).collect::<Vec<_>>())
}
