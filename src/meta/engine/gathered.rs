//! Usage, gathered before it is stored: of the volume and of its directories.
//!
//! Every operation that makes, removes or grows a node changes the two counters of the volume and the statistics of the
//! directory it is in. A store that locks rows or compares whole keys would then let one commit at a time through, of all
//! clients or of all that work in one directory, and each would wait until the one before is on disk. So engines of such
//! stores sum up here what commits add once they are applied, and store it every second, when the client closes, and
//! before a transaction looks at it. The peer does the same with the same interval.
//!
//! What a client reads outside of transactions contains what it has gathered. What others see is a second late, and a
//! client that is killed takes up to a second of its changes with it; `fsck --repair` counts anew. They are figures: limits
//! that are checked against them are near, not exact (`meta::usage`).
//!
//! Road not taken: many counters per volume, added up by readers. Nobody contends for them, but the peer would neither read
//! nor keep them.

use super::{Batch, Change, EngineError, EngineResult};
use crate::base::Ino;
use crate::meta::record::{Counter, DirStat, Key, Record};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::sync::Weak;
use std::time::Duration;

/// How long what was gathered stays in memory. The peer's interval.
const FLUSH_EVERY: Duration = Duration::from_secs(1);
/// Directories whose sums are kept at a time. With more, whoever adds one stores them first.
const DIRECTORIES_MAX: usize = 16_384;
/// Changes in one transaction that stores sums: few enough for any store, and for nobody to wait long for its locks.
const STORED_AT_A_TIME: usize = 64;

const COUNTERS: [Counter; 2] = [Counter::UsedSpace, Counter::TotalInodes];

/// What this client has added and not stored yet.
#[derive(Default)]
struct Sums {
    counters: [i64; COUNTERS.len()],
    dirs: BTreeMap<Ino, DirStat>,
}

impl Sums {
    fn is_empty(&self) -> bool {
        self.counters == [0; COUNTERS.len()] && self.dirs.is_empty()
    }

    fn add_counter(&mut self, counter: Counter, delta: i64) {
        if let Some(at) = COUNTERS.iter().position(|of| *of == counter) {
            self.counters[at] = self.counters[at].saturating_add(delta);
        }
    }

    fn add_dir(&mut self, dir: Ino, delta: &DirStat) {
        let sum = sum_of(self.dirs.get(&dir).copied().unwrap_or_default(), delta);
        match sum == DirStat::default() {
            true => self.dirs.remove(&dir),
            false => self.dirs.insert(dir, sum),
        };
    }

    /// Takes out what one transaction stores: the counters, or some directories in the order of their numbers, so that
    /// two clients do not wait for each other.
    fn take_some(&mut self) -> Vec<Change> {
        let counters = std::mem::take(&mut self.counters);
        let added = COUNTERS.into_iter().zip(counters).filter(|(_, sum)| *sum != 0);
        let mut changes: Vec<Change> = added.map(|(counter, sum)| Change::AddCounter(counter, sum)).collect();
        if changes.is_empty() {
            let dirs = std::iter::from_fn(|| self.dirs.pop_first()).take(STORED_AT_A_TIME);
            changes.extend(dirs.map(|(dir, sum)| Change::AddDirStat(dir, sum)));
        }
        changes
    }
}

fn sum_of(stat: DirStat, delta: &DirStat) -> DirStat {
    DirStat {
        length: stat.length.saturating_add(delta.length),
        space: stat.space.saturating_add(delta.space),
        inodes: stat.inodes.saturating_add(delta.inodes),
    }
}

/// An engine that gathers.
pub trait Gathers: Send + Sync + 'static {
    fn gathered(&self) -> &Gathered;

    /// Applies changes that are gathered otherwise, in a transaction of its own.
    fn store(&self, changes: Vec<Change>) -> impl Future<Output = EngineResult<()>> + Send;

    /// Whatever else is to be done every second.
    fn tidy(&self) {}
}

/// Flushes every second while the engine lives. Whoever drops the last clone has called `sync` before.
pub fn flush_while_alive(engine: Weak<impl Gathers>) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(FLUSH_EVERY).await;
            let Some(engine) = engine.upgrade() else { return };
            engine.tidy();
            if let Err(error) = flush(&*engine).await {
                // The outage has its own line in the log, and the sums stay here.
                tracing::debug!("gathered usage could not be stored: {error:?}");
            }
        }
    });
}

/// Stores what was gathered. When it is not known whether that happened, it counts as done: a figure that is off by a
/// second of one client, once per lost reply, is not worth counting something twice for.
pub async fn flush(engine: &impl Gathers) -> EngineResult<()> {
    let gathered = engine.gathered();
    {
        // What somebody else is storing at this moment is no longer here and not yet there.
        let _still = gathered.still().await;
        if gathered.sums.lock().is_empty() {
            return Ok(());
        }
    }
    let _moving = gathered.moving.write().await;
    loop {
        let changes = gathered.sums.lock().take_some();
        if changes.is_empty() {
            return Ok(());
        }
        match engine.store(changes.clone()).await {
            Ok(()) => {}
            Err(EngineError::Undetermined(fault)) => tracing::debug!("usage was stored without a reply: {fault}"),
            Err(error) => {
                gathered.add(&changes);
                return Err(error);
            }
        }
    }
}

/// Takes note of what an applied commit adds. `whole`: it has stored what it adds itself.
pub async fn take_note(engine: &impl Gathers, changes: &[Change], whole: bool) {
    let gathered = engine.gathered();
    if !whole {
        gathered.add(changes);
    }
    gathered.drop_deleted(changes);
    if gathered.sums.lock().dirs.len() > DIRECTORIES_MAX
        && let Err(error) = flush(engine).await
    {
        tracing::debug!("gathered usage could not be stored: {error:?}");
    }
}

#[derive(Default)]
pub struct Gathered {
    sums: Mutex<Sums>,
    /// Held while the sums move from here to the store, so that nobody sees them in both or in neither.
    moving: tokio::sync::RwLock<()>,
}

/// Whether a change is gathered, where nothing else asks for what it changes.
pub fn is_gathered(change: &Change) -> bool {
    match change {
        Change::AddCounter(counter, _) => COUNTERS.contains(counter),
        Change::AddDirStat(..) => true,
        _ => false,
    }
}

fn is_counter(key: &Key) -> bool {
    matches!(key, Key::Counter(counter) if COUNTERS.contains(counter))
}

fn is_sum(key: &Key) -> bool {
    is_counter(key) || matches!(key, Key::DirStat(_))
}

/// Whether changes of any of the keys are gathered.
pub fn wanted(keys: &[Key]) -> bool {
    keys.iter().any(is_sum)
}

/// Whether a batch does more with what is gathered than add to it: then what is stored counts. Statistics of a directory
/// are put and deleted with the directory, which nobody else counts then.
pub fn is_named_by(batch: &Batch) -> bool {
    let is_put = |change: &Change| match change {
        Change::Put(key, _) | Change::Delete(key) => is_counter(key),
        _ => false,
    };
    batch.guards.iter().any(|guard| is_sum(&guard.key())) || batch.changes.iter().any(is_put)
}

impl Gathered {
    fn add(&self, changes: &[Change]) {
        let mut sums = self.sums.lock();
        for change in changes {
            match change {
                Change::AddCounter(counter, delta) => sums.add_counter(*counter, *delta),
                Change::AddDirStat(dir, delta) => sums.add_dir(*dir, delta),
                _ => {}
            }
        }
    }

    /// A directory that comes back from the trash begins anew. (One that was put is new: who has found it by now may have
    /// added to it before its maker hears that it is there.)
    fn drop_deleted(&self, changes: &[Change]) {
        for change in changes {
            if let Change::Delete(Key::DirStat(dir)) = change {
                self.sums.lock().dirs.remove(dir);
            }
        }
    }

    /// Until it is dropped nothing moves.
    pub async fn still(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.moving.read().await
    }

    /// The volume goes, and its counters with it.
    pub fn forget(&self) {
        *self.sums.lock() = Sums::default();
    }

    /// Adds what was gathered to what is stored. While `still`.
    pub fn add_to(&self, keys: &[Key], records: &mut [Option<Record>]) {
        let sums = self.sums.lock();
        for (key, record) in keys.iter().zip(records) {
            match (key, record) {
                (Key::DirStat(dir), Some(Record::DirStat(stat))) => {
                    if let Some(sum) = sums.dirs.get(dir) {
                        *stat = sum_of(*stat, sum);
                    }
                }
                (Key::Counter(counter), record) => {
                    let Some(at) = COUNTERS.iter().position(|of| of == counter) else { continue };
                    match record {
                        Some(Record::Number(n)) => *n = n.saturating_add(sums.counters[at]),
                        None if sums.counters[at] != 0 => *record = Some(Record::Number(sums.counters[at])),
                        _ => {}
                    }
                }
                _ => {}
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const DIR: Ino = Ino(7);
    const ONE: DirStat = DirStat { length: 0, space: 4096, inodes: 1 };

    fn of(gathered: &Gathered) -> Option<Record> {
        let mut records = [Some(Record::DirStat(DirStat::default()))];
        gathered.add_to(&[Key::DirStat(DIR)], &mut records);
        let [record] = records;
        record
    }

    /// Who finds a new directory may fill it before its maker hears that it is there.
    #[test]
    fn a_directory_may_be_added_to_before_it_is_known_to_be_made() {
        let gathered = Gathered::default();
        gathered.add(&[Change::AddDirStat(DIR, ONE)]);
        gathered.drop_deleted(&[Change::Put(Key::DirStat(DIR), Record::DirStat(DirStat::default()))]);
        assert_eq!(of(&gathered), Some(Record::DirStat(ONE)));
        gathered.drop_deleted(&[Change::Delete(Key::DirStat(DIR))]);
        assert_eq!(of(&gathered), Some(Record::DirStat(DirStat::default())));
    }

    /// A store that takes its time.
    #[derive(Default)]
    struct Slow {
        gathered: Gathered,
        begun: tokio::sync::Notify,
        may_end: tokio::sync::Notify,
        stored: Mutex<Vec<Change>>,
    }

    impl Gathers for Slow {
        fn gathered(&self) -> &Gathered {
            &self.gathered
        }

        async fn store(&self, changes: Vec<Change>) -> EngineResult<()> {
            self.begun.notify_one();
            self.may_end.notified().await;
            self.stored.lock().extend(changes);
            Ok(())
        }
    }

    /// Who closes a client relies on it.
    #[tokio::test]
    async fn a_flush_ends_when_everything_is_stored_whoever_stores_it() {
        let slow = std::sync::Arc::new(Slow::default());
        slow.gathered.add(&[Change::AddDirStat(DIR, ONE)]);
        let flushed = |slow: &std::sync::Arc<Slow>| {
            let slow = slow.clone();
            tokio::spawn(async move {
                flush(&*slow).await.unwrap();
                slow.stored.lock().clone()
            })
        };
        let first = flushed(&slow);
        slow.begun.notified().await;
        let second = flushed(&slow);
        for _ in 0..10 {
            tokio::task::yield_now().await;
        }
        assert!(!second.is_finished(), "nothing is stored yet");
        slow.may_end.notify_one();
        assert_eq!(first.await.unwrap(), [Change::AddDirStat(DIR, ONE)]);
        assert_eq!(second.await.unwrap(), [Change::AddDirStat(DIR, ONE)]);
    }

    #[test]
    fn sums_are_stored_in_parts_and_in_order() {
        let gathered = Gathered::default();
        let dirs = (1..=2 * STORED_AT_A_TIME as u64).rev().map(|dir| Change::AddDirStat(Ino(dir), ONE));
        let back = Change::AddDirStat(DIR, DirStat { length: 0, space: -4096, inodes: -1 });
        gathered.add(&dirs.chain([Change::AddCounter(Counter::UsedSpace, 5), back]).collect::<Vec<_>>());
        let mut parts = Vec::new();
        loop {
            let part = gathered.sums.lock().take_some();
            if part.is_empty() {
                break;
            }
            parts.push(part);
        }
        assert_eq!(parts[0], [Change::AddCounter(Counter::UsedSpace, 5)]);
        assert!(parts.iter().all(|part| part.len() <= STORED_AT_A_TIME));
        let stored = parts[1..].iter().flatten().map(|change| match change {
            Change::AddDirStat(dir, _) => dir.0,
            other => panic!("{other:?}"),
        });
        let wanted = (1..=2 * STORED_AT_A_TIME as u64).filter(|dir| *dir != DIR.0);
        assert_eq!(stored.collect::<Vec<_>>(), wanted.collect::<Vec<_>>());
    }
}
