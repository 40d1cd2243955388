//! Tests of finding references that lead nowhere.

use super::*;
use crate::base::{CHUNK_BYTES, Name, Slice};
use crate::meta::Caller;
use crate::meta::check::check;
use crate::meta::engine::Change;
use crate::object::ObjectStore as _;
use crate::tools::gc::{self, Options, Report, SAFETY_AGE};
use crate::tools::test_volume::{BLOCK, TestVolume};
use std::time::Duration;

async fn gc(v: &TestVolume, delete: bool) -> Report {
    let (mut report, (watch, _stopper)) = (Report::default(), v.watch());
    let options = Options { delete, compact: false, parallel: 4, age: SAFETY_AGE };
    gc::run(&v.volume, &options, &watch, &mut report).await.unwrap();
    report
}

#[tokio::test]
async fn a_slice_whose_record_is_gone_is_leaked_with_its_count_and_objects() {
    let v = TestVolume::new().await;
    let (a, lost) = v.write("a", 0, 2 * BLOCK).await;
    v.write("b", 0, 10).await;
    v.put(vec![
        Change::Delete(Key::Chunk(a, ChunkIndex(0))),
        Change::Put(Key::SliceRef(lost.0, lost.1), Record::Number(2)),
    ])
    .await;
    let report = gc(&v, false).await;
    assert_eq!((report.leaked_slices.count, report.leaked.count, report.valid.count), (1, 2, 1));
    let report = gc(&v, true).await;
    assert_eq!((report.leaked_slices.count, report.released_slices), (1, 1));
    assert_eq!(v.names().await.len(), 1);
    let report = gc(&v, true).await;
    assert_eq!((report.leaked_slices.count, report.leaked.count, report.valid.count), (0, 0, 1));
    assert!(check(&**v.meta().engine()).await.unwrap().is_clean());
}

#[tokio::test]
async fn young_slices_and_those_that_come_back_are_left_alone() {
    let v = TestVolume::new().await;
    let young = v.objects(10).await;
    // Its first objects are old, the last one is not.
    *v.store.age.lock() = Duration::ZERO;
    v.store.put(&v.block(young, 0), vec![0; 10].into()).await.unwrap();
    *v.store.age.lock() = SAFETY_AGE * 2;
    // One reference needs no record on every engine.
    let counted = |(id, size), n| Change::Put(Key::SliceRef(id, size), Record::Number(n));
    v.put(vec![counted(young, 2)]).await;
    assert_eq!(gc(&v, true).await.leaked_slices.count, 0);
    assert_eq!(v.names().await.len(), 1);
    // Between the finding and the drop somebody commits a record, and the count is another one.
    let (watch, _stopper) = v.watch();
    let old = v.objects(10).await;
    v.put(vec![counted(old, 2)]).await;
    let found = leaked_slices(&v.volume, HashSet::from([old]), std::time::SystemTime::now(), 4, &watch).await.unwrap();
    assert_eq!(found.len(), 1);
    let slice = Slice { pos: 0, id: old.0, size: old.1, off: 0, len: old.1 };
    let ino = v.file("late").await;
    v.meta().append_slice(ino, ChunkIndex(0), slice, v.meta().now()).await.unwrap();
    assert_eq!(release(&v.volume, &found, 4, &watch).await.unwrap(), 0);
    assert_eq!(v.read("late").await, v.content(10));
}

#[tokio::test]
async fn chunks_without_a_file_go_and_those_of_deleted_files_wait() {
    let v = TestVolume::new().await;
    let (a, slice) = v.write("a", 0, BLOCK).await;
    // So far behind the other that who removes the file by numbers does not look for it.
    let (_, far) = v.write("a", 40 * CHUNK_BYTES, 10).await;
    v.write("b", 0, BLOCK).await;
    let (c, kept) = v.write("c", 0, BLOCK).await;
    v.meta().unlink(&Caller::root(), Ino::ROOT, &Name::entry(b"c").unwrap(), true).await.unwrap();
    v.put(vec![Change::Delete(Key::Attr(a)), Change::Delete(Key::Dentry(Ino::ROOT, Name::entry(b"a").unwrap()))]).await;
    let report = gc(&v, false).await;
    assert_eq!((report.leaked_chunks, report.deleted_files.count), (2, 1));
    let report = gc(&v, true).await;
    assert_eq!((report.leaked_chunks, report.dropped_files), (2, 1));
    let names = v.names().await;
    assert!(!names.contains(&v.block(slice, 0)) && names.contains(&v.block(kept, 0)), "{names:?}");
    assert!(!names.contains(&v.block(far, 0)), "{names:?}");
    assert_ne!(a, c);
    assert_eq!(gc(&v, true).await.leaked_chunks, 0);
}

#[tokio::test]
async fn counts_are_compared_with_all_records() {
    let v = TestVolume::new().await;
    let (a, slice) = v.write("a", 0, 2 * BLOCK).await;
    v.meta().copy_range(&Caller::root(), a, 0, v.file("b").await, 0, u64::from(BLOCK)).await.unwrap();
    let (watch, _stopper) = v.watch();
    let other = (SliceId(77), 5);
    let counted = recount(&v.volume, &HashSet::from([slice, other]), &watch).await.unwrap();
    assert_eq!(counted[&slice], Counted { stored: Some(2), mentions: 2 });
    assert_eq!(counted[&other], Counted { stored: None, mentions: 0 });
    let (id, size) = slice;
    let right = Finding::WrongReferences { id, size, stored: 2, counted: 3 };
    let mut findings = vec![right, Finding::LostSlice { id: other.0, size: 5, stored: 1 }];
    confirm(&v.volume, &mut findings, &watch).await.unwrap();
    assert_eq!(findings, [Finding::LostSlice { id: other.0, size: 5, stored: 1 }]);
}
