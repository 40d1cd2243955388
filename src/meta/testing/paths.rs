//! Fast paths off, on and mixed, as `SLUICE_TEST_PATHS` says: `fast` (the default), `slow` or `mixed`. Slow means that
//! nothing is answered from what is known, an entry is looked up with two reads, a directory is listed with one scan and
//! one read, and the chunks of a file are asked for by number. Mixed means one or the other at each call, by a seeded
//! draw, and that a fast answer is compared with the slow one whenever nobody came between. (Servers without scripts are
//! an engine of their own, `redis-plain`.)

use crate::base::{Ino, Name};
use crate::meta::engine::{Cursor, Engine, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan};
use crate::meta::record::{Counter, Dentry, Key, Record};
use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, LazyLock};

pub const PATHS_VARIABLE: &str = "SLUICE_TEST_PATHS";
const SEED: u64 = 11;
/// Entries of a page when the end of a test is looked at.
const PAGE_ENTRIES: usize = 1000;

#[derive(Clone, Copy, PartialEq, Eq)]
enum Paths {
    Fast,
    Slow,
    Mixed,
}

static PATHS: LazyLock<Paths> = LazyLock::new(|| match std::env::var(PATHS_VARIABLE).as_deref() {
    Err(_) | Ok("fast") => Paths::Fast,
    Ok("slow") => Paths::Slow,
    Ok("mixed") => Paths::Mixed,
    Ok(other) => panic!("{PATHS_VARIABLE}={other}: it may be fast, slow or mixed"),
});
static DRAWS: LazyLock<Mutex<StdRng>> = LazyLock::new(|| Mutex::new(StdRng::seed_from_u64(SEED)));
/// Fast answers that were compared.
static COMPARED: AtomicU64 = AtomicU64::new(0);

fn draw() -> bool {
    DRAWS.lock().random()
}

/// Whether the next call may take a fast path.
pub fn takes_fast() -> bool {
    match *PATHS {
        Paths::Fast => true,
        Paths::Slow => false,
        Paths::Mixed => draw(),
    }
}

/// The engine with its fast paths as they are asked for.
pub fn wrap(inner: Arc<dyn Engine>) -> Arc<dyn Engine> {
    if *PATHS == Paths::Fast { inner } else { Arc::new(PathsEngine { inner }) }
}

struct PathsEngine {
    inner: Arc<dyn Engine>,
}

async fn slow_lookup(engine: &dyn Engine, parent: Ino, name: &Name) -> EngineResult<Looked> {
    let mut records = engine.read(&[Key::Attr(parent), Key::Dentry(parent, name.clone())]).await?.into_iter();
    let mut looked = Looked::default();
    if let Some(Some(Record::Attr(attr))) = records.next() {
        looked.parent = Some(attr);
    }
    if let Some(Some(Record::Dentry(dentry))) = records.next() {
        looked.dentry = Some(dentry);
        if let Some(Record::Attr(attr)) = engine.read(&[Key::Attr(dentry.ino)]).await?.pop().flatten() {
            looked.node = Some(attr);
        }
    }
    Ok(looked)
}

async fn slow_page(engine: &dyn Engine, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
    let page = engine.scan(&Scan::Dentries(dir), after, limit).await?;
    let entry = |row| match row {
        (Key::Dentry(_, name), Record::Dentry(dentry)) => (name, dentry),
        other => panic!("{other:?} in directory {dir}"),
    };
    let entries: Vec<(Name, Dentry)> = page.rows.into_iter().map(entry).collect();
    let keys: Vec<Key> = entries.iter().map(|(_, dentry)| Key::Attr(dentry.ino)).collect();
    let attrs = if keys.is_empty() { Vec::new() } else { engine.read(&keys).await? };
    let attr = |record| match record {
        Some(Record::Attr(attr)) => Some(attr),
        _ => None,
    };
    let entries = entries.into_iter().zip(attrs).map(|((name, dentry), record)| (name, dentry, attr(record)));
    Ok(PlusPage { entries: entries.collect(), next: page.next })
}

/// What two pages are compared by; an order is the engine's own.
fn in_order(mut page: PlusPage) -> String {
    page.entries.sort_by(|one, other| one.0.cmp(&other.0));
    format!("{page:?}")
}

/// A fast answer between two slow ones: where those agree, nobody came between.
fn compare<T: PartialEq + std::fmt::Debug>(what: &str, before: &T, fast: &T, after: &T) {
    if before == after {
        COMPARED.fetch_add(1, Ordering::Relaxed);
        assert_eq!(fast, before, "{what}: the fast answer is not the slow one");
    }
}

async fn compared_lookup(engine: &dyn Engine, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
    let before = slow_lookup(engine, parent, name).await?;
    let Some(fast) = engine.lookup(parent, name).await? else { return Ok(None) };
    let after = slow_lookup(engine, parent, name).await?;
    // A node that could not be had in the same trip is asked for afterwards.
    let as_fast = |slow: Looked| if fast.node.is_none() { Looked { node: None, ..slow } } else { slow };
    compare("lookup", &as_fast(before), &fast, &as_fast(after));
    Ok(Some(fast))
}

async fn compared_page(engine: &dyn Engine, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
    let first = in_order(slow_page(engine, dir, after, limit).await?);
    let fast = engine.scan_plus(dir, after, limit).await?;
    let again = in_order(slow_page(engine, dir, after, limit).await?);
    let shown = in_order(PlusPage { entries: fast.entries.clone(), next: fast.next.clone() });
    compare("list", &first, &shown, &again);
    Ok(fast)
}

/// At the end of a test, in mixed mode: whatever is there is found alike on both paths.
pub async fn agree(engine: &dyn Engine) {
    if *PATHS != Paths::Mixed {
        return;
    }
    let (mut dirs, mut after) = (Vec::new(), None);
    loop {
        let page = engine.scan(&Scan::Attrs, after.as_ref(), PAGE_ENTRIES).await.expect("scan");
        dirs.extend(page.rows.into_iter().filter_map(|row| match row {
            (Key::Attr(ino), Record::Attr(attr)) if attr.is_dir() => Some(ino),
            _ => None,
        }));
        after = page.next;
        if after.is_none() {
            break;
        }
    }
    for dir in dirs {
        let mut after = None;
        loop {
            let page = compared_page(engine, dir, after.as_ref(), PAGE_ENTRIES).await.expect("list");
            for (name, ..) in &page.entries {
                compared_lookup(engine, dir, name).await.expect("look up");
            }
            after = page.next;
            if after.is_none() {
                break;
            }
        }
    }
}

#[async_trait]
impl Engine for PathsEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn lists_chunks_of_file(&self) -> bool {
        self.inner.lists_chunks_of_file() && takes_fast()
    }

    fn stores_empty_values(&self) -> bool {
        self.inner.stores_empty_values()
    }

    fn batch_max(&self) -> usize {
        self.inner.batch_max()
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.inner.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.inner.read(keys).await
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        if takes_fast() { compared_lookup(&*self.inner, parent, name).await } else { Ok(None) }
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        self.inner.begin(first).await
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.inner.scan_readable(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        let fast = takes_fast();
        let inner = &*self.inner;
        if fast { compared_page(inner, dir, after, limit).await } else { slow_page(inner, dir, after, limit).await }
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.inner.allocate(counter, count).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.inner.sync().await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.inner.erase().await
    }
}

/// Of the run that is asked for: the comparisons do happen.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn fast_answers_are_compared() {
    let meta = super::volume().await;
    for number in 0..20 {
        super::file(&meta, &format!("f{number}")).await;
    }
    let before = COMPARED.load(Ordering::Relaxed);
    agree(&**meta.engine()).await;
    for number in 0..20 {
        let name = Name::entry(format!("f{number}").as_bytes()).expect("a valid name");
        meta.lookup(&crate::meta::Caller::root(), Ino::ROOT, &name).await.expect("it was made");
    }
    let page = meta.list(Ino::ROOT, None, PAGE_ENTRIES).await.expect("list");
    assert_eq!(page.entries.len(), 20);
    assert_eq!(COMPARED.load(Ordering::Relaxed) > before, *PATHS == Paths::Mixed);
}
