//! Operations that work through lists, on an engine that takes little in one commit (`Engine::batch_max`): they do it in
//! pieces, each of which leaves a sound volume.

use super::check::check;
use super::engine::Scan;
use super::reclaim::{Removal, tests::Removed};
use super::testing::{BOUNDED_BATCH, Store, file, rows, volume_on};
use super::{Caller, Meta};
use crate::base::{CHUNK_BYTES, ChunkIndex, Ino, Name, Slice, SliceId, Timestamp};
use crate::util::clock::SystemClock;
use crate::util::task::stop_signal;
use std::sync::Arc;

const CHUNKS: u32 = 3 * BOUNDED_BATCH as u32 + 5;

async fn bounded() -> Arc<Meta> {
    volume_on(Store::new().await.bounded_engine().await, Arc::new(SystemClock)).await
}

/// Ten bytes at the beginning of each chunk.
async fn long_file(meta: &Meta, name: &str, first_id: u64) -> Ino {
    let ino = file(meta, name).await;
    for index in 0..CHUNKS {
        let id = SliceId(first_id + u64::from(index));
        let slice = Slice { pos: 0, id, size: 10, off: 0, len: 10 };
        meta.append_slice(ino, ChunkIndex(index), slice, Timestamp::new(1, 1)).await.unwrap();
    }
    ino
}

async fn is_sound(meta: &Meta) {
    let report = check(&**meta.engine()).await.unwrap();
    assert!(report.is_clean(), "{report}");
}

async fn reclaim(meta: &Meta, ino: Ino, length: u64) -> usize {
    let removed = Arc::new(Removed::default());
    let (_stopper, signal) = stop_signal();
    let removal = Removal::new(removed.clone(), 4, signal);
    assert_eq!(meta.reclaim_files(vec![(ino, length)], &removal).await, 1);
    assert!(rows(meta, Scan::ChunksOf(ino)).await.is_empty());
    let count = removed.slices.lock().len();
    count
}

#[tokio::test]
async fn a_long_file_shrinks_grows_and_is_cleared() {
    let (meta, root) = (bounded().await, Caller::root());
    let ino = long_file(&meta, "f", 1).await;
    let length = u64::from(CHUNKS - 1) * CHUNK_BYTES + 10;
    assert_eq!(meta.getattr(ino).await.unwrap().length, length);
    // Punched up to the middle of a chunk in the last third, kept long.
    let punch = (libc::FALLOC_FL_KEEP_SIZE | libc::FALLOC_FL_PUNCH_HOLE) as u32;
    let cleared = u64::from(CHUNKS - 3) * CHUNK_BYTES + 5;
    assert_eq!(meta.fallocate(&root, ino, punch, 5, cleared - 5).await.unwrap().length, length);
    is_sound(&meta).await;
    let visible = async |index: u32| {
        let list = meta.read_chunk(ino, ChunkIndex(index)).await.unwrap();
        crate::base::slice::resolve(&list).iter().filter(|s| !s.is_hole()).map(|s| (s.pos, s.len)).collect::<Vec<_>>()
    };
    assert_eq!(visible(0).await, [(0, 5)]);
    assert_eq!(visible(1).await, []);
    assert_eq!(visible(CHUNKS - 4).await, []);
    assert_eq!(visible(CHUNKS - 3).await, [(5, 5)]);
    assert_eq!(visible(CHUNKS - 1).await, [(0, 10)]);
    // Shrunk, and grown again over what lies past the end.
    assert_eq!(meta.truncate(&root, ino, 3, true).await.unwrap().length, 3);
    is_sound(&meta).await;
    assert_eq!(meta.truncate(&root, ino, length, true).await.unwrap().length, length);
    assert_eq!(meta.getattr(ino).await.unwrap().length, length);
    for index in [1, CHUNKS / 2, CHUNKS - 3, CHUNKS - 1] {
        assert_eq!(visible(index).await, [], "{index}");
    }
    assert_eq!(visible(0).await, [(0, 3)]);
    is_sound(&meta).await;
}

#[tokio::test]
async fn a_long_file_is_copied_and_removed() {
    let (meta, root) = (bounded().await, Caller::root());
    let (src, dst) = (long_file(&meta, "src", 1).await, file(&meta, "dst").await);
    let length = u64::from(CHUNKS - 1) * CHUNK_BYTES + 10;
    assert_eq!(meta.copy_range(&root, src, 0, dst, 0, length).await.unwrap(), (length, length));
    // Many slices in one chunk.
    let many = file(&meta, "many").await;
    for i in 0..CHUNKS {
        let slice = Slice { pos: i * 10, id: SliceId(500 + u64::from(i)), size: 10, off: 0, len: 10 };
        meta.append_slice(many, ChunkIndex(0), slice, Timestamp::new(1, 1)).await.unwrap();
    }
    let bytes = u64::from(CHUNKS) * 10;
    assert_eq!(meta.copy_range(&root, many, 0, dst, length, bytes).await.unwrap(), (bytes, length + bytes));
    assert_eq!(meta.getattr(dst).await.unwrap().length, length + bytes);
    is_sound(&meta).await;
    for (name, ino, length, gone) in
        [("src", src, length, 0), ("many", many, bytes, 0), ("dst", dst, length + bytes, 2 * CHUNKS as usize)]
    {
        meta.unlink(&root, Ino::ROOT, &Name::entry(name.as_bytes()).unwrap(), true).await.unwrap();
        assert_eq!(reclaim(&meta, ino, length).await, gone, "{name}");
        is_sound(&meta).await;
    }
}
