//! A volume in memory, without a kernel before it.

use super::{Vfs, VfsSettings};
use crate::base::{Ino, Name};
use crate::buf::{Budget, Pool};
use crate::cache::BlockCache;
use crate::chunk::{ChunkOptions, ChunkStore};
use crate::config::client::AtimeMode;
use crate::meta::engine::Engine;
use crate::meta::engine::mem::MemEngine;
use crate::meta::testing::Store;
use crate::meta::{Caller, Meta, MetaSettings, Rules};
use crate::object::mem::MemStore;
use crate::util::clock::SystemClock;
use bytes::Bytes;
use rand::{Rng, RngCore, SeedableRng};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) const BLOCK_BYTES: u32 = 1 << 20;

pub(crate) async fn volume() -> Arc<Vfs> {
    volume_on(Arc::new(MemEngine::default())).await
}

async fn volume_on(engine: Arc<dyn Engine>) -> Arc<Vfs> {
    let rules = Rules { trash_days: 0, capacity_bytes: 0, inodes_max: 0, acl: false, dir_stats: true };
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let meta = Meta::new(engine, Arc::new(SystemClock), settings, rules);
    meta.format(b"{}").await.unwrap();
    let pool = Pool::new(Budget::new(256 << 20));
    let cache = BlockCache::in_memory(64 << 20);
    let options = ChunkOptions { block_size: BLOCK_BYTES, ..ChunkOptions::default() };
    let data = ChunkStore::new(Arc::new(MemStore::new()), cache, pool, options);
    let settings = VfsSettings {
        root: Ino::ROOT,
        read_only: false,
        max_readahead_bytes: 4 << 20,
        atime: AtimeMode::Never,
        compactions_max: 1,
    };
    Vfs::new(meta, data, settings)
}

async fn read(vfs: &Vfs, ino: Ino, handle: super::Handle, from: usize, len: usize) -> Bytes {
    vfs.read(ino, handle, from as u64, len as u32).await.unwrap().into_bytes()
}

#[tokio::test]
async fn reads_show_what_is_not_committed_and_wait_for_no_upload() {
    let vfs = volume().await;
    let name = Name::stored(*b"f");
    let flags = libc::O_RDWR | libc::O_CREAT;
    let (entry, opened) = vfs.create(&Caller::root(), Ino::ROOT, &name, 0o644, 0, flags).await.unwrap();
    let (ino, handle) = (entry.ino, opened.handle);
    let seed = rand::random();
    println!("seed {seed}");
    let mut random = rand::rngs::StdRng::seed_from_u64(seed);
    // Over the border of two blocks.
    let area = BLOCK_BYTES as usize - 3000..BLOCK_BYTES as usize + 5000;
    let mut model = vec![7u8; 3 * BLOCK_BYTES as usize / 2];
    vfs.write(ino, handle, 0, model.clone().into()).await.unwrap();
    for _round in 0..20 {
        vfs.fsync(ino, handle, false).await.unwrap();
        let uploaded = vfs.data().metrics().blocks_uploaded.load(Ordering::Relaxed);
        for step in 0..40 {
            let from = random.random_range(area.clone());
            let len = random.random_range(1..2000);
            if random.random_bool(0.5) {
                let mut bytes = vec![0; len];
                random.fill_bytes(&mut bytes);
                model[from..from + len].copy_from_slice(&bytes);
                vfs.write(ino, handle, from as u64, bytes.into()).await.unwrap();
            } else {
                assert_eq!(read(&vfs, ino, handle, from, len).await, model[from..from + len], "step {step}");
            }
        }
        assert_eq!(read(&vfs, ino, handle, 0, 2 * model.len()).await, model);
        let now = vfs.data().metrics().blocks_uploaded.load(Ordering::Relaxed);
        assert_eq!(now, uploaded, "nothing was uploaded for a reader");
    }
    // Full blocks leave at once; a reader of theirs waits for the commit.
    let large = vec![9; 2 * BLOCK_BYTES as usize + 10];
    vfs.write(ino, handle, 0, large.clone().into()).await.unwrap();
    assert_eq!(read(&vfs, ino, handle, 5, large.len()).await, large[5..]);
    vfs.release(ino, handle).await.unwrap();
}

/// What is committed through one handle while the metadata answers to the opening of another stays: lengths do not go
/// back.
#[tokio::test]
async fn a_file_that_grows_while_it_is_opened_keeps_its_length() {
    let (engine, interrupt) = Store::new().await.interrupted_engine().await;
    let vfs = volume_on(engine).await;
    let flags = libc::O_RDWR | libc::O_CREAT;
    let (entry, first) = vfs.create(&Caller::root(), Ino::ROOT, &Name::stored(*b"f"), 0o644, 0, flags).await.unwrap();
    let (ino, first) = (entry.ino, first.handle);
    vfs.write(ino, first, 0, vec![1; 10].into()).await.unwrap();
    vfs.fsync(ino, first, false).await.unwrap();
    let writer = vfs.clone();
    interrupt.after_read(async move {
        writer.write(ino, first, 10, vec![2; 10].into()).await.unwrap();
        writer.fsync(ino, first, false).await.unwrap();
    });
    let second = vfs.open(&Caller::root(), ino, libc::O_RDONLY).await.unwrap().handle;
    assert!(interrupt.has_happened(), "opening reads");
    for handle in [first, second] {
        assert_eq!(read(&vfs, ino, handle, 0, 100).await, [[1; 10], [2; 10]].concat());
    }
    let closed = vfs.open(&Caller::root(), Ino(99), libc::O_RDONLY).await;
    assert!(closed.is_err() && vfs.files.get(Ino(99)).is_none(), "what cannot be opened is not kept");
}
