//! Tests of checking a volume: metadata on the engine under test, objects in memory.

use super::*;
use crate::base::{Attr, CHUNK_BYTES, Ino, Name};
use crate::meta::Caller;
use crate::meta::engine::Change;
use crate::meta::record::{Key, Record};
use crate::meta::testing::references;
use crate::object::ObjectStore as _;
use crate::tools::test_volume::{BLOCK, TestVolume};

fn options() -> Options {
    Options { parallel: 4, dir_mode: 0o755, ..Options::default() }
}

async fn fsck(v: &TestVolume, options: &Options) -> Report {
    let mut report = Report::default();
    let (watch, _stopper) = v.watch();
    run(&v.volume, options, &watch, &mut report).await.unwrap();
    report
}

#[tokio::test]
async fn a_sound_volume_is_clean() {
    let v = TestVolume::new().await;
    v.write("a", 0, 3 * BLOCK + 5).await;
    v.write("b", 70 << 20, 10).await;
    let report = fsck(&v, &options()).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!((report.blocks.count, report.slices.count), (5, 2));
    assert_eq!(report.blocks.bytes, u64::from(3 * BLOCK + 15));
}

#[tokio::test]
async fn lost_and_short_blocks_are_told_with_their_files() {
    let v = TestVolume::new().await;
    let (a, key) = v.write("a", 0, 3 * BLOCK + 5).await;
    v.write("b", 0, 10).await;
    v.store.delete(&v.block(key, 1)).await.unwrap();
    v.store.put(&v.block(key, 3), vec![1, 2].into()).await.unwrap();
    let report = fsck(&v, &options()).await;
    let lost: Vec<_> = report.lost.blocks.iter().map(|block| (block.key.index, block.bytes)).collect();
    assert_eq!(lost, [(1, None), (3, Some(2))]);
    assert_eq!(report.lost.files.len(), 1);
    assert_eq!((report.lost.files[0].ino, &report.lost.files[0].paths[..]), (a, &[b"/a".to_vec()][..]));
    assert!(!report.is_clean());
    // Only what is asked for.
    let part = |path: &[u8]| Options { path: Some(path.to_vec()), ..options() };
    assert!(fsck(&v, &part(b"/b")).await.is_clean());
    let report = fsck(&v, &part(b"/a")).await;
    assert_eq!((report.lost.blocks.len(), report.lost.files[0].ino), (2, a));
    assert!(fsck(&v, &part(b"/")).await.is_clean(), "not below it");
    assert_eq!(fsck(&v, &Options { recursive: true, ..part(b"/") }).await.lost.blocks.len(), 2);
}

#[tokio::test]
async fn zeros_take_the_place_of_lost_blocks_and_nothing_else_changes() {
    let v = TestVolume::new().await;
    let (a, key) = v.write("a", 0, 3 * BLOCK).await;
    v.meta().copy_range(&Caller::root(), a, 0, v.file("shared").await, 0, u64::from(2 * BLOCK)).await.unwrap();
    v.store.delete(&v.block(key, 1)).await.unwrap();
    let report = fsck(&v, &Options { on_lost: OnLost::Zero, ..options() }).await;
    assert!(report.is_clean(), "{report:?}");
    assert_eq!(report.lost.files.len(), 2);
    let again = fsck(&v, &options()).await;
    assert!(again.is_clean() && again.lost.blocks.is_empty(), "{again:?}");
    let expected: Vec<u8> =
        v.content(3 * BLOCK).into_iter().enumerate().map(|(i, b)| if i as u32 / BLOCK == 1 { 0 } else { b }).collect();
    assert_eq!(v.read("a").await, expected);
    assert_eq!(v.read("shared").await, expected[..2 * BLOCK as usize]);
    // The old slice is nobody's now.
    let record = v.meta().engine().read(&[Key::SliceRef(key.0, key.1)]).await.unwrap();
    assert_eq!(record, [Some(Record::Number(0))]);
}

#[tokio::test]
async fn files_with_lost_blocks_are_removed_when_asked() {
    let v = TestVolume::new().await;
    let (_, key) = v.write("a", 0, BLOCK).await;
    let (b, kept) = v.write("b", 0, BLOCK).await;
    v.store.delete(&v.block(key, 0)).await.unwrap();
    let report = fsck(&v, &Options { on_lost: OnLost::Remove, ..options() }).await;
    assert_eq!(report.lost.files[0].mended, Some("removed"));
    assert!(fsck(&v, &options()).await.is_clean());
    assert_eq!(v.meta().resolve(&Caller::root(), Ino::ROOT, b"b").await.unwrap().ino, b);
    assert_eq!(references(v.meta(), kept.0, kept.1).await, 1);
}

#[tokio::test]
async fn nothing_is_done_when_the_store_seems_to_be_another_one() {
    let v = TestVolume::new().await;
    let (_, key) = v.write("a", 0, BLOCK).await;
    v.store.delete(&v.block(key, 0)).await.unwrap();
    let mut report = Report::default();
    let (watch, _stopper) = v.watch();
    let wanted = Options { on_lost: OnLost::Remove, ..options() };
    run(&v.volume, &wanted, &watch, &mut report).await.unwrap_err();
    assert_eq!(v.read_len("a").await, u64::from(BLOCK));
    assert_eq!(report.lost.broken(), 1, "it is told all the same");
}

#[tokio::test]
async fn damage_of_the_metadata_is_found_and_repaired() {
    let v = TestVolume::new().await;
    let (a, _) = v.write("a", 0, 10).await;
    let attr = v.meta().getattr(a).await.unwrap();
    v.put(vec![
        Change::Put(Key::Attr(a), Record::Attr(Attr { nlink: 7, ..attr })),
        Change::AddCounter(crate::meta::record::Counter::UsedSpace, 1),
    ])
    .await;
    let report = fsck(&v, &options()).await;
    assert_eq!((report.problems.len(), report.statistics.len()), (1, 1));
    let part = Options { path: Some(b"/a".to_vec()), ..options() };
    assert_eq!(fsck(&v, &part).await.problems, report.problems);
    let report = fsck(&v, &Options { repair: true, ..options() }).await;
    assert!(report.is_clean() && report.statistics.is_empty(), "{report:?}");
    assert_eq!(report.mended.len(), 2);
    assert!(check(&**v.meta().engine()).await.unwrap().is_clean());
}

#[tokio::test]
async fn what_lies_far_behind_the_end_of_a_removed_file_is_told_and_repaired_as_a_leak() {
    let v = TestVolume::new().await;
    let (a, _) = v.write("a", 40 * CHUNK_BYTES, 10).await;
    v.put(vec![Change::Delete(Key::Attr(a)), Change::Delete(Key::Dentry(Ino::ROOT, Name::entry(b"a").unwrap()))]).await;
    let report = fsck(&v, &options()).await;
    assert!(report.is_clean() && report.leaked.len() == 1, "{report:?}");
    let report = fsck(&v, &Options { repair: true, ..options() }).await;
    assert!(report.is_clean() && report.leaked.is_empty(), "{report:?}");
    let deleted = Key::DeletedFile(a, 40 * CHUNK_BYTES + 10);
    assert!(v.meta().engine().read(&[deleted]).await.unwrap()[0].is_some(), "it takes the way of deleted data");
}

#[tokio::test]
async fn a_stop_is_heard() {
    let v = TestVolume::new().await;
    v.write("a", 0, 10).await;
    let (watch, stopper) = v.watch();
    stopper.stop();
    let stopped = run(&v.volume, &options(), &watch, &mut Report::default()).await.unwrap_err();
    assert_eq!(stopped.errno(), Errno::ECANCELED);
}
