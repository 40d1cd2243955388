//! Tests of removing the data of what was deleted.

use super::*;
use crate::base::{Slice, Timestamp};
use crate::meta::engine::counting::{CountingEngine, Trips};
use crate::meta::engine::fault::{FaultEngine, FaultPlan};
use crate::meta::testing::{self, Store, volume, volume_on};
use crate::util::clock::SystemClock;
use crate::util::task::stop_signal;
use std::collections::HashSet;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

/// Remembers what was removed; refuses while `broken`.
#[derive(Default)]
pub(in crate::meta) struct Removed {
    pub slices: Mutex<HashSet<(SliceId, u32)>>,
    pub broken: AtomicBool,
}

#[async_trait]
impl SliceRemover for Removed {
    async fn remove(&self, id: SliceId, size: u32) -> Result<(), Fault> {
        if self.broken.load(Ordering::SeqCst) {
            return Err(Fault::unavailable("remove slice"));
        }
        self.slices.lock().insert((id, size));
        Ok(())
    }
}

/// Puts records as they are.
pub(in crate::meta) struct Put(pub Vec<Change>);

impl Operation for Put {
    const NAME: &'static str = "put";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        tx.load(AttrOf(Ino::ROOT)).await?;
        self.0.iter().for_each(|change| tx.change(change.clone()));
        Ok(())
    }

    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        Ok(Settled::NotApplied)
    }
}

pub(in crate::meta) fn slice(id: u64) -> Slice {
    Slice { pos: 0, id: SliceId(id), size: 100, off: 0, len: 100 }
}

pub(in crate::meta) const FILE: Ino = Ino(7);

/// Slices 1 (in two records), 2 and 3 in chunks 0, 1 and far past the end; slice 3 has one more reference elsewhere.
pub(in crate::meta) fn deleted_file(deleted: Timestamp) -> Put {
    let chunk = |index, slices| Change::Put(Key::Chunk(FILE, ChunkIndex(index)), Record::Slices(slices));
    let count = |id, n| Change::Put(Key::SliceRef(SliceId(id), 100), Record::Number(n));
    Put(vec![
        chunk(0, vec![slice(1), Slice::hole(0, 5), slice(1)]),
        chunk(1, vec![slice(2)]),
        chunk(200, vec![slice(3)]),
        count(1, 2),
        count(2, 1),
        count(3, 2),
        Change::Put(Key::DeletedFile(FILE, 100), Record::Number(deleted.seconds)),
    ])
}

pub(in crate::meta) async fn rows(meta: &Meta, scan: Scan) -> Vec<Key> {
    testing::rows(meta, scan).await.into_iter().map(|(key, _)| key).collect()
}

/// The slices that wait to be removed, and the references of the one that stays.
async fn references(meta: &Meta) -> (Vec<u64>, i64) {
    let rows = testing::rows(meta, Scan::SliceRefs).await;
    let mut waiting: Vec<u64> = rows
        .into_iter()
        .filter_map(|row| match row {
            (Key::SliceRef(id, 100), Record::Number(references)) if references <= 0 => Some(id.0),
            _ => None,
        })
        .collect();
    waiting.sort_unstable();
    (waiting, testing::references(meta, SliceId(3), 100).await)
}

/// Reclaims until the queue is empty, then stops.
async fn work_off(meta: &Arc<Meta>, remover: &Arc<Removed>, done: impl AsyncFn() -> bool) {
    let (stopper, stop) = stop_signal();
    let work = meta.clone().run_reclaim(remover.clone(), 4, stop);
    let wait = async {
        while !done().await {
            tokio::time::sleep(Duration::from_millis(2)).await;
        }
        stopper.stop();
    };
    tokio::time::timeout(Duration::from_secs(60), async { tokio::join!(work, wait) }).await.expect("within the time");
}

#[tokio::test]
async fn a_deleted_file_goes_with_its_chunks_and_the_slices_nobody_else_needs() {
    let meta = volume().await;
    let removed = Arc::new(Removed::default());
    meta.run(&deleted_file(meta.now())).await.unwrap();
    meta.queue_deleted_file(FILE, 100);
    work_off(&meta, &removed, async || rows(&meta, Scan::DeletedFiles).await.is_empty()).await;
    assert_eq!(*removed.slices.lock(), HashSet::from([(SliceId(1), 100), (SliceId(2), 100)]));
    assert_eq!(rows(&meta, Scan::Chunks).await, []);
    assert_eq!(references(&meta).await, (vec![], 1));
}

#[tokio::test]
async fn what_cannot_be_removed_keeps_its_record_for_the_hourly_job() {
    let meta = volume().await;
    let removed = Arc::new(Removed::default());
    removed.broken.store(true, Ordering::SeqCst);
    meta.run(&deleted_file(meta.now())).await.unwrap();
    meta.queue_deleted_file(FILE, 100);
    work_off(&meta, &removed, async || rows(&meta, Scan::DeletedFiles).await.is_empty()).await;
    assert_eq!(references(&meta).await, (vec![1, 2], 1));
    removed.broken.store(false, Ordering::SeqCst);
    let removal = Removal::new(removed.clone(), 2, stop_signal().1);
    assert_eq!(meta.clean_slices(&removal).await.unwrap(), 0, "a dropped stopper is a stop");
    let (_stopper, stop) = stop_signal();
    assert_eq!(meta.clean_slices(&removal.until(stop)).await.unwrap(), 2);
    assert_eq!(references(&meta).await, (vec![], 1));
}

#[tokio::test]
async fn chunks_are_found_by_number_where_they_cannot_be_listed() {
    let meta = volume_on(Store::new().await.unlisted_engine().await, Arc::new(SystemClock)).await;
    let removed = Arc::new(Removed::default());
    meta.run(&deleted_file(meta.now())).await.unwrap();
    meta.queue_deleted_file(FILE, 100);
    work_off(&meta, &removed, async || rows(&meta, Scan::DeletedFiles).await.is_empty()).await;
    assert_eq!(rows(&meta, Scan::Chunks).await, [], "what lies past the end is found, too");
}

#[tokio::test]
async fn reclaim_survives_faults_and_lost_replies() {
    for seed in 0..20 {
        let engine = FaultEngine::new(Store::new().await.engine().await, seed, FaultPlan::NONE);
        let meta = volume_on(Arc::new(engine.clone()), Arc::new(SystemClock)).await;
        meta.run(&deleted_file(meta.now())).await.unwrap();
        engine.set_plan(FaultPlan { conflict: 0.3, lost_reply: 0.3, ..FaultPlan::NONE });
        let removed = Arc::new(Removed::default());
        let (_stopper, stop) = stop_signal();
        let removal = Removal::new(removed.clone(), 2, stop);
        meta.reclaim_file(FILE, 100, &removal).await.unwrap();
        meta.clean_slices(&removal).await.unwrap();
        assert_eq!(*removed.slices.lock(), HashSet::from([(SliceId(1), 100), (SliceId(2), 100)]), "seed {seed}");
        assert_eq!(references(&meta).await, (vec![], 1), "seed {seed}");
    }
}

/// A slice that another file shares would lose two references for one otherwise, and its objects with them.
#[tokio::test]
async fn two_clients_that_drop_a_chunk_count_it_once() {
    let store = Store::new().await;
    let (engine, interrupt) = store.interrupted_engine().await;
    let meta = volume_on(engine, Arc::new(SystemClock)).await;
    let other = store.client(Arc::new(SystemClock)).await;
    meta.run(&deleted_file(meta.now())).await.unwrap();
    let only_the_last = Put([0, 1].into_iter().map(|i| Change::Delete(Key::Chunk(FILE, ChunkIndex(i)))).collect());
    meta.run(&only_the_last).await.unwrap();
    let removed = Arc::new(Removed::default());
    let (_stopper, stop) = stop_signal();
    let removal = Removal::new(removed.clone(), 2, stop);
    let others = removal.clone();
    interrupt.before_commit(async move { other.reclaim_file(FILE, 20_000_000_000, &others).await.unwrap() });
    meta.reclaim_file(FILE, 20_000_000_000, &removal).await.unwrap();
    assert!(interrupt.has_happened());
    assert_eq!(testing::references(&meta, SliceId(3), 100).await, 1);
    assert!(removed.slices.lock().is_empty());
}

#[tokio::test]
async fn a_file_that_is_there_keeps_its_data() {
    let meta = volume().await;
    let removed = Arc::new(Removed::default());
    meta.run(&deleted_file(meta.now())).await.unwrap();
    let attr = meta.getattr(Ino::ROOT).await.unwrap();
    meta.run(&Put(vec![Change::Put(Key::Attr(FILE), Record::Attr(attr))])).await.unwrap();
    let (_stopper, stop) = stop_signal();
    meta.reclaim_file(FILE, 100, &Removal::new(removed.clone(), 2, stop)).await.unwrap_err();
    assert_eq!(rows(&meta, Scan::Chunks).await.len(), 3);
    assert!(removed.slices.lock().is_empty());
}

#[test]
fn the_queue_is_bounded() {
    let queue = ReclaimQueue::default();
    queue.push((0..QUEUE_MAX as u64 + 10).map(|id| Garbage::Slice { id: SliceId(id), size: 1 }));
    queue.push([Garbage::File { ino: FILE, length: 0 }]);
    assert_eq!(queue.waiting.lock().len(), QUEUE_MAX);
}

/// Deleted files with one slice each, their inodes from `FILE` on.
fn short_files(count: u64) -> Vec<Change> {
    let one = |i: u64| {
        let ino = Ino(FILE.0 + i);
        [
            Change::Put(Key::Chunk(ino, ChunkIndex(0)), Record::Slices(vec![slice(i + 1)])),
            Change::Put(Key::SliceRef(SliceId(i + 1), 100), Record::Number(1)),
            Change::Put(Key::DeletedFile(ino, 100), Record::Number(1)),
        ]
    };
    (0..count).flat_map(one).collect()
}

#[tokio::test]
async fn short_files_go_together() {
    for listed in [true, false] {
        let store = Store::new().await;
        let engine = if listed { store.engine().await } else { store.unlisted_engine().await };
        let listed = engine.lists_chunks_of_file();
        let counting = Arc::new(CountingEngine::new(engine));
        let meta = volume_on(counting.clone(), Arc::new(SystemClock)).await;
        let removed = Arc::new(Removed::default());
        let count = GROUP as u64;
        meta.run(&Put(short_files(count))).await.unwrap();
        let (_stopper, stop) = stop_signal();
        counting.take();
        let files = (0..count).map(|i| (Ino(FILE.0 + i), 100)).collect();
        let done = meta.reclaim_files(files, &Removal::new(removed.clone(), 2, stop)).await;
        assert_eq!((done, removed.slices.lock().len()), (GROUP, GROUP), "listed {listed}");
        let found =
            if listed { Trips { scan: count, ..Trips::default() } } else { Trips { read: 1, ..Trips::default() } };
        assert_eq!(counting.take(), Trips { begin: 2, commit: 2, ..found }, "listed {listed}");
        for scan in [Scan::Chunks, Scan::DeletedFiles, Scan::SliceRefs] {
            assert_eq!(rows(&meta, scan).await, [], "listed {listed}");
        }
    }
}

#[tokio::test]
async fn what_is_wrong_with_one_file_is_not_held_against_the_others() {
    for listed in [true, false] {
        let store = Store::new().await;
        let engine = if listed { store.engine().await } else { store.unlisted_engine().await };
        let meta = volume_on(engine, Arc::new(SystemClock)).await;
        let removed = Arc::new(Removed::default());
        let (there, long) = (Ino(FILE.0 + 3), Ino(FILE.0 + 5));
        let attr = meta.getattr(Ino::ROOT).await.unwrap();
        let mut volume = short_files(10);
        volume.push(Change::Put(Key::Attr(there), Record::Attr(attr)));
        // It was longer once.
        volume.push(Change::Put(Key::Chunk(long, ChunkIndex(9)), Record::Slices(vec![slice(99)])));
        volume.push(Change::Put(Key::SliceRef(SliceId(99), 100), Record::Number(1)));
        meta.run(&Put(volume)).await.unwrap();
        for i in 0..10 {
            meta.queue_deleted_file(Ino(FILE.0 + i), 100);
        }
        work_off(&meta, &removed, async || rows(&meta, Scan::DeletedFiles).await.len() == 1).await;
        assert_eq!(rows(&meta, Scan::DeletedFiles).await, [Key::DeletedFile(there, 100)], "listed {listed}");
        assert_eq!(rows(&meta, Scan::Chunks).await, [Key::Chunk(there, ChunkIndex(0))], "listed {listed}");
        assert_eq!(testing::references(&meta, SliceId(4), 100).await, 1, "listed {listed}");
        assert!(!removed.slices.lock().contains(&(SliceId(4), 100)), "listed {listed}");
        assert_eq!(removed.slices.lock().len(), 10, "listed {listed}");
    }
}
