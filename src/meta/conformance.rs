//! What every engine has to show: the same cases, run on each by `conformance!`, each ending with the tree checker.

use super::check::check;
use super::engine::fault::{FaultEngine, FaultPlan};
use super::engine::mem::MemEngine;
use super::engine::{Batch, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Page, PlusPage, Scan};
use super::ops::create::NewNode;
use super::ops::rename::RenameMode;
use super::record::{Counter, Key, Record};
use super::{Caller, Entry, Meta, MetaSettings, Rules, testing};
use crate::base::mode::flag;
use crate::base::{Attr, AttrPatch, Errno, Fault, FaultKind, Ino, Kind, Name, Outcome, Stop};
use crate::meta::engine::Change;
use crate::util::clock::SystemClock;
use async_trait::async_trait;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::BTreeMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

type Shared = Arc<dyn Engine>;

/// Counts round trips, and may lose the reply of commits: applied or not, nobody hears of it.
pub(super) struct Watched {
    inner: Shared,
    trips: Arc<AtomicU64>,
    /// One commit in this many loses its reply; 0 for none.
    lossy: u64,
    commits: Arc<AtomicU64>,
}

struct WatchedTxn {
    inner: Box<dyn EngineTxn>,
    trips: Arc<AtomicU64>,
    lossy: u64,
    commits: Arc<AtomicU64>,
}

impl Watched {
    fn new(inner: Shared, lossy: u64) -> Arc<Watched> {
        Arc::new(Watched { inner, trips: Arc::default(), lossy, commits: Arc::default() })
    }

    fn trip(&self) {
        self.trips.fetch_add(1, Ordering::SeqCst);
    }

    fn take(&self) -> u64 {
        self.trips.swap(0, Ordering::SeqCst)
    }
}

#[async_trait]
impl Engine for Watched {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.inner.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.trip();
        self.inner.read(keys).await
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        self.trip();
        let (inner, records) = self.inner.begin(first).await?;
        let (trips, lossy, commits) = (self.trips.clone(), self.lossy, self.commits.clone());
        Ok((Box::new(WatchedTxn { inner, trips, lossy, commits }), records))
    }

    async fn scan(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.trip();
        self.inner.scan(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.trip();
        self.inner.scan_plus(dir, after, limit).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.trip();
        self.inner.allocate(counter, count).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.inner.sync().await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.inner.erase().await
    }
}

#[async_trait]
impl EngineTxn for WatchedTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.trips.fetch_add(1, Ordering::SeqCst);
        self.inner.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        self.trips.fetch_add(1, Ordering::SeqCst);
        let nth = self.commits.fetch_add(1, Ordering::SeqCst) + 1;
        if self.lossy == 0 || !nth.is_multiple_of(self.lossy) {
            return self.inner.commit(batch).await;
        }
        // Every other lost reply belongs to a commit that was applied.
        if (nth / self.lossy).is_multiple_of(2) {
            self.inner.commit(batch).await?;
        }
        Err(EngineError::Undetermined(Fault::undetermined("commit").with("engine", "lossy")))
    }
}

/// A fresh volume on the engine.
async fn volume(engine: Shared, with_trash: bool) -> Arc<Meta> {
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let rules = Rules { trash_days: u32::from(with_trash), ..testing::plain_rules() };
    let meta = Meta::new(engine, Arc::new(SystemClock), settings, rules);
    meta.format(b"{}").await.expect("a fresh volume");
    meta
}

async fn clean(meta: &Meta) {
    let report = check(&**meta.engine()).await.expect("a readable volume");
    assert!(report.is_clean(), "{report}");
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

macro_rules! conformance {
    ($($case:ident),* $(,)?) => {
        mod memory {
            use super::*;
            $(#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                super::$case(Arc::new(MemEngine::default())).await;
            })*
        }
    };
}

conformance! {
    links_count_names_and_the_last_one_frees,
    data_goes_with_the_last_name_and_the_last_handle,
    a_full_volume_takes_no_new_nodes,
    a_removed_name_waits_in_the_trash_and_comes_back,
    links_in_the_trash_are_not_shown,
    a_removed_directory_comes_back_from_the_trash,
    renames_replace_exchange_and_refuse,
    no_directory_becomes_its_own_ancestor,
    trees_go_at_once,
    the_trash_is_purged_by_the_hour,
    paths_are_found_both_ways,
    operations_take_few_trips,
    lost_replies_are_settled,
    colliding_operations_leave_a_sound_tree,
    colliding_operations_leave_a_sound_tree_and_trash,
    random_sequences_match_the_model,
    injected_faults_leave_a_sound_tree,
}

async fn links_count_names_and_the_last_one_frees(engine: Shared) {
    let meta = volume(engine, false).await;
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

async fn data_goes_with_the_last_name_and_the_last_handle(engine: Shared) {
    let meta = volume(engine, false).await;
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

async fn a_full_volume_takes_no_new_nodes(engine: Shared) {
    let meta = volume(engine, false).await;
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

async fn a_removed_name_waits_in_the_trash_and_comes_back(engine: Shared) {
    let meta = volume(engine, true).await;
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

async fn links_in_the_trash_are_not_shown(engine: Shared) {
    let meta = volume(engine, true).await;
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

async fn a_removed_directory_comes_back_from_the_trash(engine: Shared) {
    let meta = volume(engine, true).await;
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
}

async fn renames_replace_exchange_and_refuse(engine: Shared) {
    let meta = volume(engine, false).await;
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

async fn no_directory_becomes_its_own_ancestor(engine: Shared) {
    let meta = volume(engine, false).await;
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

async fn trees_go_at_once(engine: Shared) {
    let meta = volume(engine, false).await;
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

async fn the_trash_is_purged_by_the_hour(engine: Shared) {
    let meta = volume(engine, true).await;
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

async fn paths_are_found_both_ways(engine: Shared) {
    let meta = volume(engine, true).await;
    let sh = Shell(&meta);
    let top = tree(&sh, "t").await;
    let entry = meta.resolve(&Caller::root(), b"/t//d0/deep/f").await.unwrap();
    assert_eq!(meta.paths_of(entry.ino).await.unwrap(), [b"/t/d0/deep/f".to_vec()]);
    meta.link(&Caller::root(), entry.ino, top, &name("again")).await.unwrap();
    let mut paths = meta.paths_of(entry.ino).await.unwrap();
    paths.sort();
    assert_eq!(paths, [b"/t/again".to_vec(), b"/t/d0/deep/f".to_vec()]);
    assert_eq!(meta.paths_of(Ino::ROOT).await.unwrap(), [b"/".to_vec()]);
    assert_eq!(meta.resolve(&Caller::root(), b"t/nothing").await.unwrap_err().errno(), Errno::ENOENT);
    assert_eq!(meta.resolve(&Caller::root(), b"t/f/x").await.unwrap_err().errno(), Errno::ENOTDIR);
}

async fn operations_take_few_trips(engine: Shared) {
    let watched = Watched::new(engine, 0);
    let meta = volume(watched.clone(), true).await;
    let sh = Shell(&meta);
    // Fills the pool of numbers and finds the hourly directory.
    let (a, b) = (sh.dir(Ino::ROOT, "a").await, sh.dir(Ino::ROOT, "b").await);
    sh.file(a, "first").await;
    sh.rm(a, "first").await;
    watched.take();
    let mut trips = BTreeMap::new();
    let f = sh.file(a, "f").await;
    trips.insert("create", watched.take());
    sh.look(a, "f").await.unwrap();
    trips.insert("lookup", watched.take());
    sh.mv((a, "f"), (b, "f"), RenameMode::Replace).await.unwrap();
    trips.insert("rename", watched.take());
    sh.file(a, "f").await;
    watched.take();
    sh.mv((b, "f"), (a, "f"), RenameMode::Replace).await.unwrap();
    trips.insert("rename over a file", watched.take());
    meta.link(&Caller::root(), f, b, &name("l")).await.unwrap();
    trips.insert("link", watched.take());
    sh.rm(a, "f").await;
    trips.insert("unlink", watched.take());
    sh.dir(a, "d").await;
    watched.take();
    sh.rmdir(a, "d").await.unwrap();
    trips.insert("rmdir", watched.take());
    let limits = [
        ("create", 2),
        ("lookup", 2),
        ("rename", 3),
        ("rename over a file", 3),
        ("link", 2),
        ("unlink", 3),
        ("rmdir", 3),
    ];
    for (operation, limit) in limits {
        assert!(trips[operation] <= limit, "{trips:?}");
    }
}

async fn lost_replies_are_settled(engine: Shared) {
    for with_trash in [false, true] {
        engine.erase().await.expect("erase");
        let meta = volume(Watched::new(engine.clone(), 3), with_trash).await;
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

async fn colliding_operations_leave_a_sound_tree(engine: Shared) {
    collide(engine, false).await;
}

async fn colliding_operations_leave_a_sound_tree_and_trash(engine: Shared) {
    collide(engine, true).await;
}

const COLLIDING_TASKS: u64 = 8;
const COLLIDING_OPERATIONS: u32 = 1500;

/// Many tasks do random things under few names, on two clients of one volume.
async fn collide(engine: Shared, with_trash: bool) {
    let first = volume(engine.clone(), with_trash).await;
    let second = volume(engine, with_trash).await;
    let tasks: Vec<_> = (0..COLLIDING_TASKS)
        .map(|seed| {
            let meta = if seed % 2 == 0 { first.clone() } else { second.clone() };
            tokio::spawn(async move {
                let mut random = StdRng::seed_from_u64(seed);
                for _ in 0..COLLIDING_OPERATIONS {
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
async fn random_sequences_match_the_model(engine: Shared) {
    for seed in 0..24 {
        engine.erase().await.expect("erase");
        let meta = volume(engine.clone(), seed % 2 == 1).await;
        super::model::run(&meta, seed).await;
        clean(&meta).await;
    }
}

/// Conflicts, faults and lost replies, with and without other writers: whatever the callers were told, the tree is sound.
async fn injected_faults_leave_a_sound_tree(engine: Shared) {
    for (seed, tasks, with_trash) in [(1, 1, false), (2, 1, true), (3, 4, false), (4, 4, true)] {
        engine.erase().await.expect("erase");
        let faults = FaultEngine::new(engine.clone(), seed, FaultPlan::NONE);
        let meta = volume(Arc::new(faults.clone()), with_trash).await;
        faults.set_plan(FaultPlan::conformance());
        let tasks: Vec<_> = (0..tasks)
            .map(|task| {
                let meta = meta.clone();
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
