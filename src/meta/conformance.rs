//! What operations have to show together, on every engine (`testing`): each case ends with the tree checker.

mod contention;
mod directories;
mod races;
mod trips;

use super::check::check;
use super::engine::counting::CountingEngine;
use super::engine::fault::{FaultEngine, FaultPlan};
use super::engine::{Change, Engine, Scan};
use super::ops::create::NewNode;
use super::ops::rename::RenameMode;
use super::ops::xattr::XattrMode;
use super::record::Key;
use super::testing::{self, Store};
use super::{Caller, Entry, Meta, Rules};
use crate::base::mode::flag;
use crate::base::{
    Attr, AttrPatch, ChunkIndex, Errno, FaultKind, Ino, Kind, Name, Outcome, Slice, SliceId, Stop, Timestamp,
};
use crate::util::clock::SystemClock;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// One more client of the volume on the engine.
async fn client(engine: Arc<dyn Engine>, with_trash: bool) -> Arc<Meta> {
    let rules = Rules { trash_days: u32::from(with_trash), ..testing::plain_rules() };
    testing::volume_with(engine, Arc::new(SystemClock), rules).await
}

/// An empty volume.
async fn volume(with_trash: bool) -> Arc<Meta> {
    client(Store::new().await.engine().await, with_trash).await
}

async fn clean(meta: &Meta) {
    let report = check(&**meta.engine()).await.expect("a readable volume");
    assert!(report.is_clean(), "{report}");
    testing::paths::agree(&**meta.engine()).await;
}

fn name(text: &str) -> Name {
    Name::entry(text.as_bytes()).expect("a name of these tests")
}

fn node(kind: Kind) -> NewNode {
    let target = (kind == Kind::Symlink).then(|| Bytes::from_static(b"target"));
    NewNode { kind, mode: 0o777, umask: 0o022, rdev: 0, target }
}

/// Short words for what the cases do as the superuser.
struct Shell<'a>(&'a Meta);

impl Shell<'_> {
    async fn make(&self, dir: Ino, text: &str, kind: Kind) -> Ino {
        self.0.create(&Caller::root(), dir, &name(text), &node(kind)).await.expect("create").ino
    }

    async fn file(&self, dir: Ino, text: &str) -> Ino {
        self.make(dir, text, Kind::File).await
    }

    async fn dir(&self, dir: Ino, text: &str) -> Ino {
        self.make(dir, text, Kind::Directory).await
    }

    async fn look(&self, dir: Ino, text: &str) -> Outcome<Entry> {
        self.0.lookup(&Caller::root(), dir, &name(text)).await
    }

    async fn attr(&self, ino: Ino) -> Attr {
        self.0.getattr(ino).await.expect("getattr")
    }

    async fn mv(&self, from: (Ino, &str), to: (Ino, &str), how: RenameMode) -> Result<Ino, Errno> {
        let (old, new) = (name(from.1), name(to.1));
        let renamed = self.0.rename(&Caller::root(), from.0, &old, to.0, &new, how).await;
        renamed.map(|renamed| renamed.ino).map_err(|stop| stop.errno())
    }

    async fn rm(&self, dir: Ino, text: &str) -> super::ops::unlink::Removed {
        self.0.unlink(&Caller::root(), dir, &name(text), false).await.expect("unlink")
    }

    async fn rmdir(&self, dir: Ino, text: &str) -> Result<Ino, Errno> {
        self.0.rmdir(&Caller::root(), dir, &name(text), false).await.map_err(|stop| stop.errno())
    }

    /// The one entry of the trash that ends in `-text`: its directory and its name.
    async fn trashed(&self, text: &str) -> (Ino, String) {
        let hours = self.0.list_names(Ino::TRASH, None, 100).await.expect("list the trash").entries;
        for (_, hour) in hours {
            for (name, _) in self.0.list_names(hour.ino, None, 1000).await.expect("list an hour").entries {
                let name = String::from_utf8(name.as_bytes().to_vec()).expect("names of these tests are text");
                if name.ends_with(&format!("-{text}")) {
                    return (hour.ino, name);
                }
            }
        }
        panic!("nothing called {text} in the trash");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_count_names_and_the_last_one_frees() {
    let meta = volume(false).await;
    let sh = Shell(&meta);
    let (a, b) = (sh.dir(Ino::ROOT, "a").await, sh.dir(Ino::ROOT, "b").await);
    let f = sh.file(a, "f").await;
    assert_eq!(meta.link(&Caller::root(), f, b, &name("g")).await.unwrap().nlink, 2);
    assert_eq!(meta.link(&Caller::root(), f, b, &name("g")).await.unwrap_err().errno(), Errno::EEXIST);
    assert_eq!(meta.link(&Caller::root(), a, b, &name("d")).await.unwrap_err().errno(), Errno::EPERM);
    assert_eq!((sh.attr(f).await.nlink, sh.attr(f).await.parent), (2, Ino::MANY));
    let first = sh.rm(a, "f").await;
    assert_eq!((first.ino, first.attr.nlink, first.freed), (f, 1, false));
    clean(&meta).await;
    let last = sh.rm(b, "g").await;
    assert_eq!((last.attr.nlink, last.freed), (0, true));
    assert_eq!(meta.getattr(f).await.unwrap_err().errno(), Errno::ENOENT);
    sh.make(a, "s", Kind::Symlink).await;
    assert_eq!(sh.rmdir(Ino::ROOT, "a").await, Err(Errno::ENOTEMPTY));
    sh.rm(a, "s").await;
    assert_eq!(sh.rmdir(Ino::ROOT, "a").await, Ok(a));
    assert_eq!(sh.attr(Ino::ROOT).await.nlink, 3);
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn data_goes_with_the_last_name_and_the_last_handle() {
    let meta = volume(false).await;
    let sh = Shell(&meta);
    for text in ["a", "b", "c"] {
        sh.file(Ino::ROOT, text).await;
    }
    sh.rm(Ino::ROOT, "a").await;
    assert_eq!(meta.reclaim_waiting(), 1, "an unlink");
    sh.mv((Ino::ROOT, "b"), (Ino::ROOT, "c"), RenameMode::Replace).await.unwrap();
    assert_eq!(meta.reclaim_waiting(), 2, "a rename over a file");
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_full_volume_takes_no_new_nodes() {
    let meta = volume(false).await;
    let sh = Shell(&meta);
    sh.file(Ino::ROOT, "a").await;
    meta.set_rules(Rules { inodes_max: 2, ..meta.rules() });
    meta.refresh_usage().await.unwrap();
    sh.file(Ino::ROOT, "b").await;
    meta.refresh_usage().await.unwrap();
    let refused = meta.create(&Caller::root(), Ino::ROOT, &name("c"), &node(Kind::File)).await;
    assert_eq!(refused.unwrap_err().errno(), Errno::ENOSPC);
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_name_waits_in_the_trash_and_comes_back() {
    let meta = volume(true).await;
    let sh = Shell(&meta);
    let d = sh.dir(Ino::ROOT, "d").await;
    let f = sh.file(d, "f").await;
    assert!(!sh.rm(d, "f").await.freed);
    assert_eq!(sh.look(d, "f").await.unwrap_err().errno(), Errno::ENOENT);
    let (hour, kept) = sh.trashed("f").await;
    assert_eq!(kept, format!("{d}-{f}-f"));
    assert_eq!(sh.look(hour, &kept).await.unwrap().attr.nlink, 1);
    clean(&meta).await;
    let user = Caller { uid: 5, gid: 5, ..Caller::root() };
    let refused = meta.rename(&user, hour, &name(&kept), d, &name("f"), RenameMode::Replace).await;
    assert_eq!(refused.unwrap_err().errno(), Errno::EPERM);
    assert_eq!(sh.mv((hour, &kept), (d, "f"), RenameMode::NoReplace).await, Ok(f));
    assert_eq!(sh.attr(f).await.parent, d);
    assert_eq!(sh.mv((d, "f"), (hour, "x"), RenameMode::Replace).await, Err(Errno::EPERM));
    // Skipped by the caller, and by the node itself.
    let g = sh.file(d, "g").await;
    assert!(meta.unlink(&Caller::root(), d, &name("f"), true).await.unwrap().freed);
    meta.run(&SetFlags(g, flag::SKIP_TRASH)).await.unwrap();
    assert!(sh.rm(d, "g").await.freed);
    clean(&meta).await;
}

/// For the cases: sets the flags of a node.
struct SetFlags(Ino, u8);

impl super::txn::Operation for SetFlags {
    const NAME: &'static str = "set_flags";
    type Output = ();
    async fn run(&self, tx: &mut super::txn::Tx<'_>) -> Outcome<()> {
        tx.load(super::txn::AttrOf(self.0)).await?.exists()?;
        tx.change(Change::Patch(self.0, AttrPatch::new().set_flags(self.1)));
        Ok(())
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn links_in_the_trash_are_not_shown() {
    let meta = volume(true).await;
    let sh = Shell(&meta);
    let f = sh.file(Ino::ROOT, "f").await;
    meta.link(&Caller::root(), f, Ino::ROOT, &name("g")).await.unwrap();
    sh.rm(Ino::ROOT, "g").await;
    assert_eq!(sh.look(Ino::ROOT, "f").await.unwrap().attr.nlink, 1);
    assert_eq!(sh.attr(f).await.nlink, 1);
    assert_eq!(meta.link(&Caller::root(), f, Ino::ROOT, &name("h")).await.unwrap().nlink, 2);
    let page = meta.list(Ino::ROOT, None, 100).await.unwrap();
    assert!(page.entries.iter().all(|(_, _, attr)| attr.unwrap().nlink == 2), "{page:?}");
    meta.open_file(f);
    sh.rm(Ino::ROOT, "f").await;
    assert_eq!(sh.attr(f).await.nlink, 1);
    sh.rm(Ino::ROOT, "h").await;
    assert_eq!(sh.attr(f).await.nlink, 0);
    let (hour, kept) = sh.trashed("h").await;
    assert_eq!(sh.look(hour, &kept).await.unwrap().attr.nlink, 1);
    let o = sh.file(Ino::ROOT, "o").await;
    meta.open_file(o);
    sh.rm(Ino::ROOT, "o").await;
    assert_eq!(sh.attr(o).await.nlink, 0);
    meta.close_file(o).await.unwrap();
    assert_eq!(sh.attr(o).await.nlink, 1);
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_removed_directory_comes_back_from_the_trash() {
    let meta = volume(true).await;
    let sh = Shell(&meta);
    let d = sh.dir(Ino::ROOT, "d").await;
    let f = sh.file(d, "f").await;
    sh.rm(d, "f").await;
    assert_eq!(sh.rmdir(Ino::ROOT, "d").await, Ok(d));
    let refused = meta.create(&Caller::root(), d, &name("x"), &node(Kind::File)).await;
    assert_eq!(refused.unwrap_err().errno(), Errno::ENOENT);
    clean(&meta).await;
    let (hour, kept) = sh.trashed("f").await;
    assert_eq!(sh.mv((hour, &kept), (d, "f"), RenameMode::NoReplace).await, Err(Errno::ENOENT));
    assert_eq!(sh.mv((hour, &kept), (d, "f"), RenameMode::Restore).await, Ok(f));
    let (hour, kept) = sh.trashed("d").await;
    assert_eq!(sh.mv((hour, &kept), (Ino::ROOT, "d"), RenameMode::Restore).await, Ok(d));
    assert_eq!(sh.look(d, "f").await.unwrap().ino, f);
    clean(&meta).await;
    // An empty one has no statistics in the trash, and has them again afterwards: only so they are kept.
    let e = sh.dir(Ino::ROOT, "e").await;
    assert!(has_stat(&meta, e).await, "from its beginning");
    assert_eq!(sh.rmdir(Ino::ROOT, "e").await, Ok(e));
    assert!(!has_stat(&meta, e).await);
    let (hour, kept) = sh.trashed("e").await;
    assert_eq!(sh.mv((hour, &kept), (Ino::ROOT, "e"), RenameMode::NoReplace).await, Ok(e));
    assert!(has_stat(&meta, e).await);
    clean(&meta).await;
}

async fn has_stat(meta: &Meta, dir: Ino) -> bool {
    meta.engine().read(&[Key::DirStat(dir)]).await.expect("read")[0].is_some()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn extended_attributes_go_with_their_node() {
    for with_trash in [false, true] {
        let meta = volume(with_trash).await;
        let sh = Shell(&meta);
        for (text, kind) in [("f", Kind::File), ("d", Kind::Directory), ("s", Kind::Symlink)] {
            let ino = sh.make(Ino::ROOT, text, kind).await;
            meta.set_xattr(&Caller::root(), ino, b"user.a", b"value", XattrMode::Set).await.unwrap();
        }
        meta.unlink(&Caller::root(), Ino::ROOT, &name("f"), true).await.unwrap();
        meta.unlink(&Caller::root(), Ino::ROOT, &name("s"), true).await.unwrap();
        meta.rmdir(&Caller::root(), Ino::ROOT, &name("d"), true).await.unwrap();
        assert_eq!(testing::rows(&meta, Scan::AllXattrs).await, []);
        clean(&meta).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn renames_replace_exchange_and_refuse() {
    let meta = volume(false).await;
    let sh = Shell(&meta);
    use RenameMode::*;
    let (a, b) = (sh.dir(Ino::ROOT, "a").await, sh.dir(Ino::ROOT, "b").await);
    let (f, g) = (sh.file(a, "f").await, sh.file(b, "g").await);
    let (d, e) = (sh.dir(a, "d").await, sh.dir(b, "e").await);
    assert_eq!(sh.mv((a, "none"), (b, "x"), Replace).await, Err(Errno::ENOENT));
    assert_eq!(sh.mv((a, "f"), (b, "g"), NoReplace).await, Err(Errno::EEXIST));
    assert_eq!(sh.mv((a, "f"), (b, "e"), Replace).await, Err(Errno::EISDIR));
    assert_eq!(sh.mv((a, "d"), (b, "g"), Replace).await, Err(Errno::ENOTDIR));
    assert_eq!(sh.mv((a, "f"), (b, "none"), Exchange).await, Err(Errno::ENOENT));
    assert_eq!(sh.mv((a, "f"), (a, "f"), Replace).await, Ok(f));
    assert_eq!(sh.mv((a, "f"), (b, "e"), Exchange).await, Ok(f));
    assert_eq!((sh.look(a, "f").await.unwrap().ino, sh.look(b, "e").await.unwrap().ino), (e, f));
    assert_eq!((sh.attr(a).await.nlink, sh.attr(b).await.nlink, sh.attr(e).await.parent), (4, 2, a));
    clean(&meta).await;
    assert_eq!(sh.mv((b, "e"), (b, "g"), Replace).await, Ok(f));
    assert_eq!(meta.getattr(g).await.unwrap_err().errno(), Errno::ENOENT);
    meta.link(&Caller::root(), f, a, &name("g")).await.unwrap();
    assert_eq!(sh.mv((a, "g"), (b, "g"), Replace).await, Ok(f), "two names of one node");
    assert_eq!(sh.attr(f).await.nlink, 2, "both stay");
    assert_eq!(sh.mv((a, "g"), (Ino::ROOT, "g"), Replace).await, Ok(f));
    let inner = sh.file(d, "inner").await;
    assert_eq!(sh.mv((a, "f"), (a, "d"), Replace).await, Err(Errno::ENOTEMPTY));
    assert_eq!(sh.mv((a, "d"), (a, "f"), Replace).await, Ok(d), "over an empty directory");
    assert_eq!((sh.look(d, "inner").await.unwrap().ino, sh.attr(a).await.nlink), (inner, 3));
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_directory_becomes_its_own_ancestor() {
    let meta = volume(false).await;
    let sh = Shell(&meta);
    let a = sh.dir(Ino::ROOT, "a").await;
    let b = sh.dir(a, "b").await;
    let c = sh.dir(b, "c").await;
    let x = sh.dir(Ino::ROOT, "x").await;
    for (dir, text) in [(a, "in"), (b, "in"), (c, "in")] {
        assert_eq!(sh.mv((Ino::ROOT, "a"), (dir, text), RenameMode::Replace).await, Err(Errno::EINVAL));
    }
    assert_eq!(sh.mv((Ino::ROOT, "a"), (b, "c"), RenameMode::Exchange).await, Err(Errno::EINVAL));
    assert_eq!(sh.mv((b, "c"), (Ino::ROOT, "a"), RenameMode::Exchange).await, Err(Errno::EINVAL));
    assert_eq!(sh.mv((b, "c"), (x, "c"), RenameMode::Replace).await, Ok(c));
    assert_eq!(sh.mv((Ino::ROOT, "a"), (c, "a"), RenameMode::Replace).await, Ok(a));
    clean(&meta).await;
}

/// A small tree below the root, under `text`: 3 directories of 2 files and 1 directory of 1 file; 13 entries.
async fn tree(sh: &Shell<'_>, text: &str) -> Ino {
    let top = sh.dir(Ino::ROOT, text).await;
    for i in 0..3 {
        let dir = sh.dir(top, &format!("d{i}")).await;
        sh.file(dir, "f").await;
        sh.make(dir, "s", Kind::Symlink).await;
    }
    let below = sh.look(top, "d0").await.expect("just made").ino;
    let deep = sh.dir(below, "deep").await;
    sh.file(deep, "f").await;
    sh.file(top, "f").await;
    top
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn trees_go_at_once() {
    let meta = volume(false).await;
    let sh = Shell(&meta);
    let top = tree(&sh, "t").await;
    let summary = meta.summary(top, &|| false).await.unwrap();
    assert_eq!((summary.dirs, summary.files, summary.space), (5, 8, 13 * 4096));
    let heard = AtomicU64::new(0);
    let hear = |n: u64| {
        heard.fetch_add(n, Ordering::SeqCst);
    };
    let removed = meta.remove_tree(&Caller::root(), Ino::ROOT, &name("t"), false, 4, &hear).await.unwrap();
    assert_eq!((removed, heard.into_inner()), (13, 13));
    assert_eq!(meta.list_names(Ino::ROOT, None, 10).await.unwrap().entries.len(), 0);
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_trash_is_purged_by_the_hour() {
    let meta = volume(true).await;
    let sh = Shell(&meta);
    tree(&sh, "t").await;
    meta.remove_tree(&Caller::root(), Ino::ROOT, &name("t"), false, 4, &|_| {}).await.unwrap();
    let now = meta.now().seconds;
    assert_eq!(meta.purge_trash(now - 7200, 4, &|| false).await.unwrap(), 0, "too young");
    assert_eq!(meta.purge_trash(now + 7200, 4, &|| true).await.unwrap(), 0, "cancelled");
    clean(&meta).await;
    assert_eq!(meta.purge_trash(now + 7200, 4, &|| false).await.unwrap(), 14);
    assert_eq!(meta.list_names(Ino::TRASH, None, 10).await.unwrap().entries.len(), 0);
    clean(&meta).await;
    // The directory this client knew is gone; the next removal makes another one.
    sh.file(Ino::ROOT, "f").await;
    sh.rm(Ino::ROOT, "f").await;
    sh.trashed("f").await;
    clean(&meta).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn paths_are_found_both_ways() {
    let meta = volume(true).await;
    let sh = Shell(&meta);
    let top = tree(&sh, "t").await;
    let entry = meta.resolve(&Caller::root(), Ino::ROOT, b"/t//d0/deep/f").await.unwrap();
    assert_eq!(meta.paths_of(entry.ino).await.unwrap(), [b"/t/d0/deep/f".to_vec()]);
    meta.link(&Caller::root(), entry.ino, top, &name("again")).await.unwrap();
    let mut paths = meta.paths_of(entry.ino).await.unwrap();
    paths.sort();
    assert_eq!(paths, [b"/t/again".to_vec(), b"/t/d0/deep/f".to_vec()]);
    assert_eq!(meta.paths_of(Ino::ROOT).await.unwrap(), [b"/".to_vec()]);
    assert_eq!(meta.resolve(&Caller::root(), Ino::ROOT, b"t/nothing").await.unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(meta.resolve(&Caller::root(), Ino::ROOT, b"t/f/x").await.unwrap_err().errno(), Errno::ENOTDIR);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_take_few_trips() {
    let counting = Arc::new(CountingEngine::new(Store::new().await.engine().await));
    let meta = client(counting.clone(), true).await;
    let sh = Shell(&meta);
    // Fills the pool of numbers and finds the hourly directory.
    let (a, b) = (sh.dir(Ino::ROOT, "a").await, sh.dir(Ino::ROOT, "b").await);
    sh.file(a, "first").await;
    sh.rm(a, "first").await;
    counting.take();
    let mut trips = BTreeMap::new();
    let f = sh.file(a, "f").await;
    trips.insert("create", counting.take().total());
    sh.look(a, "f").await.unwrap();
    trips.insert("lookup", counting.take().total());
    let slice = Slice { pos: 0, id: SliceId(1), size: 10, off: 0, len: 10 };
    meta.append_slice(f, ChunkIndex(0), slice, Timestamp::new(1, 0)).await.unwrap();
    trips.insert("append a slice", counting.take().total());
    sh.mv((a, "f"), (b, "f"), RenameMode::Replace).await.unwrap();
    trips.insert("rename", counting.take().total());
    sh.file(a, "f").await;
    counting.take();
    sh.mv((b, "f"), (a, "f"), RenameMode::Replace).await.unwrap();
    trips.insert("rename over a file", counting.take().total());
    meta.link(&Caller::root(), f, b, &name("l")).await.unwrap();
    trips.insert("link", counting.take().total());
    sh.rm(a, "f").await;
    trips.insert("unlink", counting.take().total());
    sh.dir(a, "d").await;
    counting.take();
    sh.rmdir(a, "d").await.unwrap();
    trips.insert("rmdir", counting.take().total());
    let limits = [
        ("create", 2),
        ("lookup", 2),
        ("rename", 3),
        ("rename over a file", 3),
        ("link", 2),
        ("unlink", 3),
        ("rmdir", 3),
        ("append a slice", 2),
    ];
    for (operation, limit) in limits {
        assert!(trips[operation] <= limit, "{trips:?}");
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn lost_replies_are_settled() {
    for with_trash in [false, true] {
        let meta = client(Store::new().await.lossy_engine().await, with_trash).await;
        let sh = Shell(&meta);
        let (a, b) = (sh.dir(Ino::ROOT, "a").await, sh.dir(Ino::ROOT, "b").await);
        for i in 0..8 {
            let text = format!("f{i}");
            let f = sh.file(a, &text).await;
            meta.link(&Caller::root(), f, b, &name(&text)).await.expect("link");
            assert_eq!(sh.mv((a, &text), (a, "moved"), RenameMode::Replace).await, Ok(f));
            assert_eq!(sh.rm(b, &text).await.ino, f);
            let d = sh.dir(b, &text).await;
            assert_eq!(sh.mv((a, "moved"), (b, &text), RenameMode::Exchange).await, Ok(f));
            assert_eq!(sh.rmdir(a, "moved").await, Ok(d));
            assert_eq!(sh.rm(b, &text).await.ino, f);
        }
        clean(&meta).await;
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn colliding_operations_leave_a_sound_tree() {
    collide(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn colliding_operations_leave_a_sound_tree_and_trash() {
    collide(true).await;
}

const COLLIDING_TASKS: u64 = 8;
const COLLIDING_OPERATIONS: u32 = 1500;

/// Many tasks do random things under few names, on two clients of one volume.
async fn collide(with_trash: bool) {
    let store = Store::new().await;
    let first = client(store.engine().await, with_trash).await;
    let second = client(store.engine().await, with_trash).await;
    let tasks: Vec<_> = (0..COLLIDING_TASKS)
        .map(|seed| {
            let meta = if seed % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..testing::cases(COLLIDING_OPERATIONS) {
                    if let Err(stop) = random_step(&meta, &mut random).await {
                        assert!(matches!(stop, crate::base::Stop::Errno(_)), "an answer was due, not a fault: {stop}");
                    }
                }
            })
        })
        .collect();
    for task in tasks {
        task.await.expect("no task gives up");
    }
    clean(&first).await;
}

/// A directory somewhere along a random walk from the root.
async fn random_dir(meta: &Meta, random: &mut StdRng) -> Outcome<Ino> {
    let mut dir = Ino::ROOT;
    for _ in 0..random.random_range(0..4) {
        let next = name(&format!("n{}", random.random_range(0..5)));
        match meta.lookup(&Caller::root(), dir, &next).await {
            Ok(entry) if entry.attr.is_dir() => dir = entry.ino,
            _ => break,
        }
    }
    Ok(dir)
}

async fn random_step(meta: &Meta, random: &mut StdRng) -> Outcome<()> {
    let caller = Caller::root();
    let (dir, other) = (random_dir(meta, random).await?, random_dir(meta, random).await?);
    let [old, new] = [(); 2].map(|()| name(&format!("n{}", random.random_range(0..5))));
    match random.random_range(0..20) {
        0..=2 => drop(meta.create(&caller, dir, &old, &node(Kind::File)).await?),
        3..=6 => drop(meta.create(&caller, dir, &old, &node(Kind::Directory)).await?),
        7 => drop(meta.create(&caller, dir, &old, &node(Kind::Symlink)).await?),
        8..=9 => {
            let target = meta.lookup(&caller, dir, &old).await?;
            meta.link(&caller, target.ino, other, &new).await?;
        }
        10..=11 => drop(meta.unlink(&caller, dir, &old, random.random_bool(0.3)).await?),
        12..=13 => drop(meta.rmdir(&caller, dir, &old, random.random_bool(0.3)).await?),
        14..=17 => drop(meta.rename(&caller, dir, &old, other, &new, RenameMode::Replace).await?),
        18 => drop(meta.rename(&caller, dir, &old, other, &new, RenameMode::Exchange).await?),
        _ => drop(meta.rename(&caller, dir, &old, other, &new, RenameMode::NoReplace).await?),
    }
    Ok(())
}

/// Random sequences, compared step by step with the small tree of `model`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_sequences_match_the_model() {
    let store = Store::new().await;
    for seed in 0..24 {
        let engine = store.engine().await;
        engine.erase().await.expect("erase");
        let meta = client(engine, seed % 2 == 1).await;
        super::model::run(&meta, seed).await;
        clean(&meta).await;
    }
}

/// Conflicts, faults and lost replies, with and without other writers: whatever the callers were told, the tree is sound.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn injected_faults_leave_a_sound_tree() {
    for (seed, tasks, with_trash) in [(1, 1, false), (2, 1, true), (3, 4, false), (4, 4, true)] {
        let store = Store::new().await;
        let faults = FaultEngine::new(store.engine().await, seed, FaultPlan::NONE);
        let others = FaultEngine::new(store.engine().await, seed + 10, FaultPlan::NONE);
        let meta = client(Arc::new(faults.clone()), with_trash).await;
        let other = client(Arc::new(others.clone()), with_trash).await;
        faults.set_plan(FaultPlan::conformance());
        others.set_plan(FaultPlan::conformance());
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let meta = if task % 2 == 0 { meta.clone() } else { other.clone() };
                tokio::spawn(async move {
                    let mut random = StdRng::seed_from_u64(seed * 100 + task);
                    for _ in 0..INJECTED_OPERATIONS {
                        match random_step(&meta, &mut random).await {
                            Ok(()) | Err(Stop::Errno(_)) => {}
                            // With other writers about, the state need not tell what became of a commit.
                            Err(Stop::Fault(fault)) => assert_eq!(fault.kind(), FaultKind::Undetermined, "{fault}"),
                        }
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.expect("no task gives up");
        }
        faults.set_plan(FaultPlan::NONE);
        clean(&meta).await;
    }
}

const INJECTED_OPERATIONS: u32 = 120;
