//! Tests of finding and removing what is for nobody.

use super::*;
use crate::base::{Name, Slice};
use crate::meta::check::check;
use crate::meta::engine::Change;
use crate::meta::{Caller, Rules};
use crate::object::ObjectStore as _;
use crate::tools::test_volume::{BLOCK, TestVolume};

fn options(delete: bool) -> Options {
    Options { delete, compact: false, parallel: 4, age: SAFETY_AGE }
}

async fn gc(v: &TestVolume, options: &Options) -> Report {
    let mut report = Report::default();
    let (watch, _stopper) = v.watch();
    run(&v.volume, options, &watch, &mut report).await.unwrap();
    report
}

#[tokio::test]
async fn each_object_is_what_it_is_and_only_leaked_ones_go() {
    let v = TestVolume::new().await;
    v.meta().set_rules(Rules { trash_days: 1, ..crate::meta::testing::plain_rules() });
    v.write("a", 0, 2 * BLOCK).await;
    let replaced = v.objects(BLOCK).await;
    let pending = v.objects(BLOCK).await;
    let leaked = v.objects(BLOCK + 1).await;
    *v.store.age.lock() = Duration::from_secs(60);
    v.objects(10).await;
    let wait = Slice { pos: 0, id: replaced.0, size: replaced.1, off: 0, len: replaced.1 };
    let now = v.meta().now().seconds;
    v.put(vec![
        Change::Put(Key::DelayedSlices(SliceId(4000), now), Record::Slices(vec![wait])),
        Change::Put(Key::SliceRef(replaced.0, replaced.1), Record::Number(1)),
        Change::Put(Key::SliceRef(pending.0, pending.1), Record::Number(0)),
    ])
    .await;
    v.store.put("chunks/0/0/notes.txt", vec![1].into()).await.unwrap();
    let report = gc(&v, &options(false)).await;
    let one = |bytes: u32| Tally { count: 1, bytes: bytes.into() };
    assert_eq!((report.scanned, report.valid.count), (7, 2));
    assert_eq!((report.compacted, report.pending, report.skipped), (one(BLOCK), one(BLOCK), one(10)));
    assert_eq!(report.leaked, Tally { count: 2, bytes: u64::from(BLOCK + 1) });
    assert_eq!((report.delayed_slices, report.deleted.count), (one(BLOCK), 0));
    let before = v.names().await;
    let report = gc(&v, &options(true)).await;
    assert_eq!((report.deleted.count, report.cleaned.slices), (2, 1));
    let after = v.names().await;
    let gone: Vec<_> = before.into_iter().filter(|name| !after.contains(name)).collect();
    assert_eq!(gone, [v.block(pending, 0), v.block(leaked, 0), v.block(leaked, 1)]);
    let report = gc(&v, &options(true)).await;
    assert_eq!((report.leaked.count, report.valid.count, report.pending.count), (0, 2, 0));
    assert!(check(&**v.meta().engine()).await.unwrap().is_clean());
}

#[tokio::test]
async fn what_a_dead_writer_left_unfinished_is_leaked_once_it_is_old() {
    let v = TestVolume::new().await;
    v.write("a", 0, BLOCK).await;
    let (old, young) = ("chunks/0/0/.jfs.77_0_512.tmp.0badcafe", "chunks/0/0/.jfs.78_0_512.tmp.0badcafe");
    v.store.put(old, Vec::new().into()).await.unwrap();
    *v.store.age.lock() = Duration::from_secs(60);
    v.store.put(young, vec![1; 100].into()).await.unwrap();
    let report = gc(&v, &options(false)).await;
    assert_eq!((report.scanned, report.valid.count), (3, 1));
    assert_eq!((report.leaked, report.skipped), (Tally { count: 1, bytes: 0 }, Tally { count: 1, bytes: 100 }));
    assert_eq!(gc(&v, &options(true)).await.deleted.count, 1);
    assert!(v.store.head(old).await.unwrap().is_none() && v.store.head(young).await.unwrap().is_some());
}

#[tokio::test]
async fn a_block_that_does_not_fit_its_slice_is_leaked() {
    let v = TestVolume::new().await;
    let (_, (id, _)) = v.write("a", 0, 2 * BLOCK).await;
    for (index, size) in [(1, BLOCK - 1), (2, BLOCK), (2, 5)] {
        v.store.put(&BlockKey { slice: id, index, size }.name(false), vec![0; size as usize].into()).await.unwrap();
    }
    assert_eq!(gc(&v, &options(true)).await.deleted.count, 3);
    assert_eq!(v.names().await.len(), 2);
    assert_eq!(v.read("a").await, v.content(2 * BLOCK));
}

#[tokio::test]
async fn a_slice_that_is_committed_during_the_listing_is_kept() {
    let v = TestVolume::new().await;
    let ino = v.file("late").await;
    let (id, size) = v.objects(BLOCK).await;
    let leaked = v.objects(BLOCK).await;
    let writer = v.place.client(Arc::new(crate::util::clock::SystemClock)).await;
    v.store.before_list(async move {
        let slice = Slice { pos: 0, id, size, off: 0, len: size };
        writer.append_slice(ino, ChunkIndex(0), slice, writer.now()).await.unwrap();
    });
    let report = gc(&v, &options(true)).await;
    assert_eq!((report.valid.count, report.deleted.count), (1, 1));
    assert_eq!(v.names().await, [v.block((id, size), 0)]);
    assert_ne!(id, leaked.0);
    assert_eq!(v.read("late").await, v.content(BLOCK));
}

#[tokio::test]
async fn ids_that_were_never_handed_out_are_not_touched() {
    let v = TestVolume::new().await;
    v.write("a", 0, 10).await;
    let ahead = BlockKey { slice: SliceId(1_234_567), index: 0, size: 5 }.name(false);
    v.store.put(&ahead, vec![0; 5].into()).await.unwrap();
    let report = gc(&v, &options(true)).await;
    assert_eq!((report.leaked.count, report.ahead.count, report.skipped.count), (0, 1, 1));
    assert!(v.names().await.contains(&ahead));
}

#[tokio::test]
async fn an_object_that_was_put_anew_is_kept() {
    let v = TestVolume::new().await;
    let leaked = v.objects(10).await;
    let name = v.block(leaked, 0);
    let before = SystemTime::now() - SAFETY_AGE;
    let listed = v.store.list("", "", 10).await.unwrap().remove(0);
    assert!(listed.mtime <= before);
    *v.store.age.lock() = Duration::ZERO;
    v.store.put(&name, vec![0; 10].into()).await.unwrap();
    let (watch, _stopper) = v.watch();
    let mut report = Report::default();
    let table = Table::collect(&v.volume, 0, 10, OnUnreadable::Fail, &watch).await.unwrap();
    let options = options(true);
    let mut pass = Pass {
        volume: &v.volume,
        options: &options,
        watch: &watch,
        report: &mut report,
        table,
        orphans: HashSet::new(),
        before,
        ahead: SliceId(u64::MAX),
        candidates: Vec::new(),
        unfinished: Vec::new(),
    };
    pass.delete(vec![listed]).await.unwrap();
    assert_eq!((report.deleted.count, v.names().await), (0, vec![name]));
}

#[tokio::test]
async fn chunks_of_many_slices_become_one_and_the_old_ones_go() {
    let v = TestVolume::new().await;
    for i in 0..6u32 {
        v.write("a", (i * 1000).into(), 1000).await;
    }
    let before = v.read("a").await;
    let report = gc(&v, &Options { compact: true, ..options(false) }).await;
    assert_eq!((report.chunks, report.merged, report.merged_bytes), (1, 6, 6000));
    assert_eq!(v.read("a").await, before);
    assert_eq!(v.names().await.len(), 1, "without a trash nothing waits");
    assert!(check(&**v.meta().engine()).await.unwrap().is_clean());
}

#[tokio::test]
async fn deleted_files_go_after_an_hour() {
    let v = TestVolume::new().await;
    let (ino, slice) = v.write("a", 0, 10).await;
    let name = Name::entry(b"a").unwrap();
    v.meta().unlink(&Caller::root(), Ino::ROOT, &name, true).await.unwrap();
    let report = gc(&v, &options(true)).await;
    assert_eq!((report.deleted_files.count, report.valid.count), (1, 1), "left to the client that deleted it");
    let now = v.meta().now().seconds;
    v.put(vec![Change::Put(Key::DeletedFile(ino, 10), Record::Number(now - 3700))]).await;
    let report = gc(&v, &options(true)).await;
    assert_eq!((report.cleaned.files, report.deleted_files.count, report.scanned), (1, 0, 0));
    assert!(!v.names().await.contains(&v.block(slice, 0)));
}

#[tokio::test]
async fn a_stop_is_heard() {
    let v = TestVolume::new().await;
    v.objects(10).await;
    let (watch, stopper) = v.watch();
    stopper.stop();
    let stopped = run(&v.volume, &options(true), &watch, &mut Report::default()).await.unwrap_err();
    assert_eq!(stopped.errno(), Errno::ECANCELED);
    assert_eq!(v.names().await.len(), 1);
}
