//! A volume in memory, without a kernel before it.

use super::{Handle, Vfs, VfsSettings};
use crate::base::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Name, Outcome};
use crate::buf::{Budget, Pool};
use crate::cache::BlockCache;
use crate::chunk::{ChunkOptions, ChunkStore, layout};
use crate::config::client::AtimeMode;
use crate::meta::engine::Engine;
use crate::meta::engine::mem::MemEngine;
use crate::meta::ops::attr::{SetAttr, SetTime};
use crate::meta::ops::plock::LockKind;
use crate::meta::session::SessionInfo;
use crate::meta::testing::{Interrupt, Store};
use crate::meta::{Caller, Meta, MetaSettings, Rules};
use crate::object::mem::MemStore;
use crate::util::clock::{ManualClock, SharedClock, SystemClock};
use bytes::Bytes;
use rand::{Rng, RngCore, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

pub(crate) const BLOCK_BYTES: u32 = 1 << 20;

pub(crate) async fn volume() -> Arc<Vfs> {
    volume_on(Arc::new(MemEngine::default())).await
}

/// The tier that has a storage class of its own.
const COLD_TIER: u8 = 2;

async fn volume_on(engine: Arc<dyn Engine>) -> Arc<Vfs> {
    client_on(engine, Arc::new(MemStore::new()), Arc::new(SystemClock)).await
}

async fn client_on(engine: Arc<dyn Engine>, objects: Arc<MemStore>, clock: SharedClock) -> Arc<Vfs> {
    client_believing(engine, objects, clock, Duration::ZERO).await
}

/// A client of a kernel that believes names and attributes for so long.
pub(super) async fn client_believing(
    engine: Arc<dyn Engine>,
    objects: Arc<MemStore>,
    clock: SharedClock,
    belief: Duration,
) -> Arc<Vfs> {
    let rules = Rules { trash_days: 0, capacity_bytes: 0, inodes_max: 0, acl: false, dir_stats: true };
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let meta = Meta::new(engine, clock, settings, rules);
    meta.format(b"{}").await.unwrap();
    let pool = Pool::new(Budget::new(256 << 20));
    let cache = BlockCache::in_memory(64 << 20);
    let classes = BTreeMap::from([(COLD_TIER, "COLD".to_owned())]);
    let options = ChunkOptions { block_size: BLOCK_BYTES, classes, ..ChunkOptions::default() };
    let data = ChunkStore::new(objects, cache, pool, options);
    let settings = VfsSettings {
        root: Ino::ROOT,
        read_only: false,
        max_readahead_bytes: 4 << 20,
        atime: AtimeMode::Never,
        compactions_max: 1,
        belief,
    };
    Vfs::new(meta, data, settings)
}

async fn read(vfs: &Vfs, ino: Ino, handle: Handle, from: usize, len: usize) -> Bytes {
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

async fn open(vfs: &Vfs, ino: Ino) -> Handle {
    vfs.open(&Caller::root(), ino, libc::O_RDWR).await.unwrap().handle
}

async fn make(vfs: &Vfs) -> (Ino, Handle) {
    let (root, name) = (Caller::root(), Name::stored(*b"f"));
    let (entry, opened) = vfs.create(&root, Ino::ROOT, &name, 0o644, 0, libc::O_RDWR | libc::O_CREAT).await.unwrap();
    (entry.ino, opened.handle)
}

/// Writes ten bytes and closes the handle.
async fn write_and_close(vfs: &Vfs, ino: Ino, handle: Handle, off: u64, byte: u8) {
    vfs.write(ino, handle, off, vec![byte; 10].into()).await.unwrap();
    vfs.flush(ino, handle, 1).await.unwrap();
    vfs.release(ino, handle).await.unwrap();
}

/// Two clients of one volume; the second can be interrupted.
async fn two_clients(clock: SharedClock) -> (Arc<Vfs>, Arc<Vfs>, Interrupt) {
    let (store, objects) = (Store::new().await, Arc::new(MemStore::new()));
    let (engine, interrupt) = store.interrupted_engine().await;
    let here = client_on(store.engine().await, objects.clone(), clock.clone()).await;
    (here, client_on(engine, objects, clock).await, interrupt)
}

#[tokio::test]
async fn a_commit_of_ours_does_not_hide_what_another_client_wrote_elsewhere_in_the_file() {
    let (here, there, _) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, CHUNK_BYTES, 1).await;
    let held = open(&there, ino).await;
    let far = CHUNK_BYTES as usize;
    assert_eq!(read(&there, ino, held, far, 10).await, [1; 10][..]);
    write_and_close(&here, ino, open(&here, ino).await, CHUNK_BYTES, 2).await;
    there.write(ino, held, 0, vec![3; 10].into()).await.unwrap();
    there.fsync(ino, held, false).await.unwrap();
    let opened = open(&there, ino).await;
    assert_eq!(read(&there, ino, opened, far, 10).await, [2; 10][..]);
}

/// Of a commit whose reply is late and of a look at the file, which may be answered first, either can be the newer one.
#[tokio::test]
async fn a_late_reply_to_a_commit_does_not_hide_what_was_seen_before_it() {
    let (here, there, interrupt) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, CHUNK_BYTES, 1).await;
    let held = open(&there, ino).await;
    let far = CHUNK_BYTES as usize;
    assert_eq!(read(&there, ino, held, far, 10).await, [1; 10][..]);
    let (looked, noted) = (Arc::new(tokio::sync::Notify::new()), Arc::new(tokio::sync::Notify::new()));
    let (send, opening) = tokio::sync::oneshot::channel();
    let (writer, opener, inner, note) = (here.clone(), there.clone(), interrupt.clone(), noted.clone());
    interrupt.after_commit(async move {
        write_and_close(&writer, ino, open(&writer, ino).await, CHUNK_BYTES, 2).await;
        write_and_close(&writer, ino, open(&writer, ino).await, CHUNK_BYTES + 10, 2).await;
        let look = looked.clone();
        inner.after_read(async move {
            look.notify_one();
            note.notified().await;
        });
        let _ = send.send(tokio::spawn(async move { open(&opener, ino).await }));
        looked.notified().await;
    });
    there.write(ino, held, 0, vec![3; 10].into()).await.unwrap();
    there.fsync(ino, held, false).await.unwrap();
    noted.notify_one();
    let opened = opening.await.unwrap().await.unwrap();
    assert!(interrupt.has_happened(), "opening reads");
    assert_eq!(read(&there, ino, opened, far, 30).await, [2; 20][..]);
}

/// Of two looks at a file that cross, the one that is answered last need not be the newer one.
#[tokio::test]
async fn an_old_look_that_is_answered_late_takes_nothing_back() {
    let (here, there, interrupt) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, 0, 1).await;
    let (writer, opener) = (here.clone(), there.clone());
    let (send, opened) = tokio::sync::oneshot::channel();
    let held = open(&there, ino).await;
    assert_eq!(read(&there, ino, held, 0, 10).await, [1; 10][..]);
    interrupt.after_read(async move {
        write_and_close(&writer, ino, open(&writer, ino).await, 0, 2).await;
        write_and_close(&writer, ino, open(&writer, ino).await, 10, 2).await;
        send.send(open(&opener, ino).await).unwrap();
    });
    there.getattr(ino).await.unwrap();
    assert_eq!(read(&there, ino, opened.await.unwrap(), 0, 30).await, [2; 20][..]);
}

/// The kernel keeps its pages over an open only if it has all that was committed before.
#[tokio::test]
async fn a_commit_of_ours_does_not_vouch_for_pages_that_another_client_made_old() {
    let (here, there, _) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, 0, 1).await;
    let keeps = async || {
        let opened = there.open(&Caller::root(), ino, libc::O_RDWR).await.unwrap();
        there.release(ino, opened.handle).await.unwrap();
        opened.keep_cache
    };
    assert!(!keeps().await && keeps().await);
    // Nobody else: ours are its last bytes.
    write_and_close(&there, ino, open(&there, ino).await, 10, 2).await;
    assert!(keeps().await);
    // Somebody else, before a commit of ours; also when we have looked between.
    for looks in [false, true] {
        let held = open(&there, ino).await;
        read(&there, ino, held, 0, 20).await;
        write_and_close(&here, ino, open(&here, ino).await, 0, 3).await;
        if looks {
            there.getattr(ino).await.unwrap();
        }
        write_and_close(&there, ino, held, 10, 4).await;
        assert!(!keeps().await, "looked: {looks}");
        assert!(keeps().await);
    }
    // Somebody else, before we change the length.
    let held = open(&there, ino).await;
    write_and_close(&here, ino, open(&here, ino).await, 0, 5).await;
    there.setattr(&Caller::root(), ino, Some(held), Some(15), &SetAttr::default()).await.unwrap();
    there.release(ino, held).await.unwrap();
    assert!(!keeps().await);
}

#[tokio::test]
async fn a_list_asked_for_before_a_file_was_opened_is_not_kept_for_who_opened_it() {
    let (here, there, interrupt) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, 0, 1).await;
    let held = open(&there, ino).await;
    let (writer, opener) = (here.clone(), there.clone());
    let (send, opened) = tokio::sync::oneshot::channel();
    interrupt.after_read(async move {
        write_and_close(&writer, ino, open(&writer, ino).await, 0, 2).await;
        send.send(open(&opener, ino).await).unwrap();
    });
    read(&there, ino, held, 0, 10).await;
    assert!(interrupt.has_happened(), "the list was asked for");
    assert_eq!(read(&there, ino, opened.await.unwrap(), 0, 10).await, [2; 10][..]);
}

/// Coarse clocks and clocks that were set back give the same time twice.
#[tokio::test]
async fn two_commits_within_one_moment_are_told_apart() {
    let (here, there, _) = two_clients(Arc::new(ManualClock::at(1_700_000_000_000_000_000))).await;
    let (ino, handle) = make(&here).await;
    for byte in 1..4 {
        here.write(ino, handle, 0, vec![byte; 10].into()).await.unwrap();
        here.fsync(ino, handle, false).await.unwrap();
        let opened = there.open(&Caller::root(), ino, libc::O_RDONLY).await.unwrap();
        assert!(!opened.keep_cache, "the kernel's pages are of another commit");
        assert_eq!(read(&there, ino, opened.handle, 0, 10).await, [byte; 10][..]);
        there.release(ino, opened.handle).await.unwrap();
    }
}

#[tokio::test]
async fn a_time_that_was_set_back_hides_no_change() {
    let (here, there, _) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, 0, 1).await;
    let look = async || there.open(&Caller::root(), ino, libc::O_RDONLY).await.unwrap();
    for keeps in [false, true] {
        let opened = look().await;
        assert_eq!(opened.keep_cache, keeps);
        assert_eq!(read(&there, ino, opened.handle, 0, 10).await, [1; 10][..]);
        there.release(ino, opened.handle).await.unwrap();
    }
    let before = here.getattr(ino).await.unwrap();
    write_and_close(&here, ino, open(&here, ino).await, 0, 2).await;
    let set = SetAttr { mtime: Some(SetTime::At(before.mtime)), ..SetAttr::default() };
    let after = here.setattr(&Caller::root(), ino, None, None, &set).await.unwrap();
    assert_eq!((after.mtime, after.length), (before.mtime, before.length));
    let opened = look().await;
    assert!(!opened.keep_cache, "the kernel's pages are of another commit");
    assert_eq!(read(&there, ino, opened.handle, 0, 10).await, [2; 10][..]);
}

#[tokio::test]
async fn a_file_that_is_removed_while_it_is_opened_is_there_for_its_handle() {
    let (here, there, interrupt) = two_clients(Arc::new(SystemClock)).await;
    let (ino, handle) = make(&here).await;
    write_and_close(&here, ino, handle, 0, 1).await;
    there.meta.start_session(SessionInfo::default(), Duration::from_secs(12)).await.unwrap();
    let remover = there.clone();
    interrupt.after_read(async move {
        remover.unlink(&Caller::root(), Ino::ROOT, &Name::stored(*b"f")).await.unwrap();
    });
    let opened = open(&there, ino).await;
    assert!(interrupt.has_happened(), "opening reads");
    assert_eq!(read(&there, ino, opened, 0, 10).await, [1; 10][..]);
    there.getattr(ino).await.unwrap();
    there.release(ino, opened).await.unwrap();
    there.getattr(ino).await.unwrap_err();
}

/// A file has the tier of its directory, and one that is changed counts for what is written from then on.
#[tokio::test]
async fn what_is_written_is_stored_as_the_tier_of_its_file_says() {
    let objects = Arc::new(MemStore::new());
    let vfs = client_on(Arc::new(MemEngine::default()), objects.clone(), Arc::new(SystemClock)).await;
    let root = Caller::root();
    let of_tier = |tier| SetAttr { tier: Some(tier), ..SetAttr::default() };
    vfs.meta().setattr(&root, Ino::ROOT, &of_tier(COLD_TIER)).await.unwrap();
    let (ino, handle) = make(&vfs).await;
    let class_of_last = async || {
        let slices = vfs.meta().read_chunk(ino, ChunkIndex(0)).await.unwrap();
        let last = slices.last().unwrap();
        objects.class_of(&layout::block_key(last.id, last.size, BLOCK_BYTES, 0).name(false))
    };
    vfs.write(ino, handle, 0, vec![1; 10].into()).await.unwrap();
    vfs.fsync(ino, handle, false).await.unwrap();
    assert_eq!(class_of_last().await.as_deref(), Some("COLD"));
    vfs.setattr(&root, ino, None, None, &of_tier(0)).await.unwrap();
    vfs.write(ino, handle, 20, vec![1; 10].into()).await.unwrap();
    vfs.fsync(ino, handle, false).await.unwrap();
    assert_eq!(class_of_last().await, None);
    vfs.setattr(&root, ino, None, None, &of_tier(COLD_TIER)).await.unwrap();
    vfs.write(ino, handle, 30, vec![1; 10].into()).await.unwrap();
    vfs.fsync(ino, handle, false).await.unwrap();
    vfs.compact_chunk(ino, ChunkIndex(0)).await.unwrap();
    assert_eq!(class_of_last().await.as_deref(), Some("COLD"), "what is merged, too");
}

/// A client that was away for too long commits nothing of what it had taken before, and tells so; files without
/// anything at stake go on.
#[tokio::test]
async fn a_client_that_was_taken_for_dead_fails_what_it_had_not_committed() {
    let vfs = volume().await;
    let heartbeat = Duration::from_secs(12);
    let session = vfs.meta().start_session(SessionInfo::default(), heartbeat).await.unwrap();
    let open = async |name: &[u8]| {
        let flags = libc::O_RDWR | libc::O_CREAT;
        let name = Name::stored(name.to_vec());
        let (entry, opened) = vfs.create(&Caller::root(), Ino::ROOT, &name, 0o644, 0, flags).await.unwrap();
        vfs.write(entry.ino, opened.handle, 0, vec![1; 10].into()).await.unwrap();
        vfs.fsync(entry.ino, opened.handle, false).await.unwrap();
        (entry.ino, opened.handle)
    };
    let (first, second) = (open(b"dirty before it is known").await, open(b"dirty when it is known").await);
    let (locked, flocked, clean) = (open(b"locked").await, open(b"flocked").await, open(b"clean").await);
    vfs.setlk(locked.0, 1, 0, 9, LockKind::Write, 1, false).await.unwrap();
    vfs.flock(flocked.0, flocked.1, 9, LockKind::Read).await.unwrap();
    let errno = |outcome: Outcome<()>| outcome.map_err(|stop| stop.errno());
    for (ino, handle) in [first, second] {
        vfs.write(ino, handle, 5, vec![2; 10].into()).await.unwrap();
    }

    vfs.meta().clean_session(session).await.unwrap();
    assert_eq!(errno(vfs.fsync(first.0, first.1, false).await), Err(Errno::EIO));
    vfs.lose_session();
    vfs.meta().start_session(SessionInfo::default(), heartbeat).await.unwrap();
    for (ino, handle) in [first, second, locked, flocked] {
        let written = vfs.write(ino, handle, 0, vec![3; 10].into()).await;
        assert_eq!(written.map_err(|stop| stop.errno()), Err(Errno::EIO));
        assert_eq!(errno(vfs.fsync(ino, handle, false).await), Err(Errno::EIO));
        vfs.release(ino, handle).await.unwrap_err();
    }
    vfs.write(clean.0, clean.1, 10, vec![2; 10].into()).await.unwrap();
    vfs.fsync(clean.0, clean.1, false).await.unwrap();
    for (ino, handle) in [first, second, locked, flocked] {
        let again = vfs.open(&Caller::root(), ino, libc::O_RDWR).await.unwrap();
        assert!(!again.keep_cache, "the kernel has pages of what was lost");
        let again = again.handle;
        assert_eq!(read(&vfs, ino, again, 0, 100).await, [1; 10][..], "inode {ino:?}, handle {handle:?}");
        vfs.write(ino, again, 0, vec![4; 10].into()).await.unwrap();
        vfs.fsync(ino, again, false).await.unwrap();
    }
}
