//! Damage that decodes: records that are well-formed and cannot be. Whoever meets them is told so, and nobody goes on
//! to change what lies behind them.

#[cfg(all(feature = "redis", feature = "sqlite"))]
mod every_tests;
#[cfg(all(feature = "redis", feature = "sqlite"))]
mod raw_tests;
#[cfg(all(feature = "redis", feature = "sqlite"))]
mod volume_tests;

use super::check::check;
use super::engine::{Batch, Change};
use super::ops::create::NewNode;
use super::ops::rename::RenameMode;
use super::reclaim::{Removal, SliceRemover};
use super::record::{Dentry, Key, Record};
use super::testing::{Store, file, volume, volume_on};
use super::{Caller, Meta};
use crate::base::{ChunkIndex, Fault, FaultKind, Ino, Kind, Name, Outcome, Slice, SliceId, Stop, Timestamp};
use crate::util::clock::SystemClock;
use crate::util::task::stop_signal;
use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;

async fn put(meta: &Meta, key: Key, record: Record) {
    let (txn, _) = meta.engine().begin(&[]).await.expect("begin");
    let batch = Batch { guards: Vec::new(), changes: vec![Change::Put(key, record)] };
    txn.commit(batch).await.expect("the engine stores what it is given");
}

fn name(text: &str) -> Name {
    Name::entry(text.as_bytes()).expect("a name")
}

async fn dir(meta: &Meta, parent: Ino, text: &str) -> Ino {
    let node = NewNode { kind: Kind::Directory, mode: 0o755, umask: 0, rdev: 0, target: None };
    meta.create(&Caller::root(), parent, &name(text), &node).await.expect("the name is free").ino
}

fn corrupt<T>(outcome: Outcome<T>, says: &str) {
    match outcome {
        Err(Stop::Fault(fault)) => {
            assert_eq!(fault.kind(), FaultKind::Corrupt, "{fault}");
            assert!(fault.to_string().contains(says), "{fault}");
        }
        Err(stop) => panic!("{stop}"),
        Ok(_) => panic!("accepted, should say {says}"),
    }
}

#[tokio::test]
async fn an_entry_that_lies_about_the_kind_removes_nothing() {
    let meta = volume().await;
    let root = Caller::root();
    let top = dir(&meta, Ino::ROOT, "top").await;
    let inner = dir(&meta, top, "inner").await;
    let kept = file(&meta, "kept").await;
    // Both entries say the other kind.
    put(&meta, Key::Dentry(Ino::ROOT, name("top")), Record::Dentry(Dentry { kind: Kind::File, ino: top })).await;
    put(&meta, Key::Dentry(Ino::ROOT, name("kept")), Record::Dentry(Dentry { kind: Kind::Directory, ino: kept })).await;
    file(&meta, "other").await;
    dir(&meta, Ino::ROOT, "empty").await;

    corrupt(meta.unlink(&root, Ino::ROOT, &name("top"), false).await, "says File, the node is Directory");
    corrupt(meta.rmdir(&root, Ino::ROOT, &name("kept"), false).await, "says Directory, the node is File");
    for (from, to) in [("other", "top"), ("empty", "kept"), ("top", "x"), ("kept", "x")] {
        let moved = meta.rename(&root, Ino::ROOT, &name(from), Ino::ROOT, &name(to), RenameMode::Replace).await;
        corrupt(moved, "the entry says");
    }
    let outer = dir(&meta, Ino::ROOT, "outer").await;
    put(&meta, Key::Dentry(outer, name("in")), Record::Dentry(Dentry { kind: Kind::File, ino: top })).await;
    corrupt(meta.remove_tree(&root, Ino::ROOT, &name("outer"), true, 2, &|_| ()).await, "the entry says");
    assert!(meta.getattr(top).await.is_ok() && meta.getattr(inner).await.is_ok() && meta.getattr(kept).await.is_ok());
}

#[tokio::test]
async fn a_chunk_with_an_impossible_record_shows_nothing() {
    let meta = volume().await;
    let ino = file(&meta, "f").await;
    let good = Slice { pos: 0, id: SliceId(1), size: 10, off: 0, len: 10 };
    meta.append_slice(ino, ChunkIndex(0), good, Timestamp::default()).await.unwrap();
    for wrong in [
        Slice { pos: u32::MAX - 3, len: 10, ..good },
        Slice { len: 11, ..good },
        Slice { off: u32::MAX, ..good },
        Slice { pos: 64 << 20, ..good },
    ] {
        put(&meta, Key::Chunk(ino, ChunkIndex(0)), Record::Slices(vec![good, wrong])).await;
        corrupt(meta.read_chunk(ino, ChunkIndex(0)).await, "Chunk(Ino(");
        corrupt(meta.read_chunks(ino, ChunkIndex(0)..ChunkIndex(2)).await, "a record that cannot be");
        let copied = file(&meta, &format!("copy of {wrong:?}")).await;
        corrupt(meta.copy_range(&Caller::root(), ino, 0, copied, 0, 10).await, "a record that cannot be");
        // A file with such a chunk can still be removed; its slices stay, for nobody can tell which they are.
        let (_stopper, stop) = stop_signal();
        let removal = Removal::new(Arc::new(NoRemover), 1, stop);
        put(&meta, Key::Chunk(Ino(99), ChunkIndex(0)), Record::Slices(vec![good, wrong])).await;
        corrupt(meta.reclaim_file(Ino(99), 10, &removal).await, "a record that cannot be");
    }
}

#[tokio::test]
async fn a_count_of_holes_says_nothing() {
    let meta = volume().await;
    put(&meta, Key::SliceRef(SliceId(0), 0), Record::Number(4)).await;
    let report = check(&**meta.engine()).await.expect("readable");
    assert!(report.is_clean(), "{report}");
}

struct NoRemover;

#[async_trait]
impl SliceRemover for NoRemover {
    async fn remove(&self, id: SliceId, _size: u32) -> Result<(), Fault> {
        panic!("slice {id} is in use")
    }
}

#[tokio::test]
async fn a_loop_of_directories_is_walked_once() {
    let meta = volume().await;
    let top = dir(&meta, Ino::ROOT, "top").await;
    let below = dir(&meta, top, "below").await;
    for (parent, to) in [(below, top), (below, below), (top, Ino::ROOT)] {
        let up = Record::Dentry(Dentry { kind: Kind::Directory, ino: to });
        put(&meta, Key::Dentry(parent, name(&format!("to{to}"))), up).await;
    }
    let walked = tokio::time::timeout(Duration::from_secs(30), meta.summary(top, &|| false)).await;
    assert_eq!(walked.expect("an end").unwrap().files, 0);
}

/// A length of 128 PiB has two billion chunks, and most of them are not there.
#[tokio::test]
async fn a_deleted_file_of_any_length_is_reclaimed_soon() {
    let store = Store::new().await;
    let meta = volume_on(store.unlisted_engine().await, Arc::new(SystemClock)).await;
    // Columns of servers hold the numbers of the longest files that there can be, and no more.
    let is_server = ["mysql", "postgres"].contains(&meta.engine().name());
    let last = ChunkIndex(if is_server { i32::MAX as u32 } else { u32::MAX });
    for length in [(1 << 57) - 1, u64::MAX] {
        put(&meta, Key::Chunk(Ino(99), last), Record::Slices(vec![Slice::hole(0, 5)])).await;
        put(&meta, Key::DeletedFile(Ino(99), length), Record::Number(1)).await;
        let (_stopper, stop) = stop_signal();
        let removal = Removal::new(Arc::new(NoRemover), 1, stop);
        let reclaimed = tokio::time::timeout(Duration::from_secs(30), meta.reclaim_file(Ino(99), length, &removal));
        reclaimed.await.expect("an end").unwrap();
        assert_eq!(meta.read_chunk(Ino(99), last).await.unwrap(), []);
    }
}
