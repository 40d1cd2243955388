//! Cached blocks on local disks: `<dir>/<UUID>/raw/chunks/…`, shared by all clients of the format on this machine
//! (`spec/data.md` 12.1).
//!
//! Reads try without waiting first and hop to another thread only when the disk is needed. Writes go through a bounded
//! queue per directory ([`super::queue`]) that is drained by one thread while there is something to write; a block that
//! finds the queue full is dropped and counted. A block in the queue can be read already.
//!
//! A directory that fails three times within a minute is left alone for five minutes: readers then go to the store.
//! One whose disk is full keeps serving what it has; what cannot be written is dropped until there is room again.
//! Nothing here is ever the only copy.

use super::BlockKey;
use super::blockfile::{self, Outcome, Verify};
use super::index::{BLOCK_OVERHEAD, Eviction, Index};
use super::queue::{Offered, Queue};
use super::ring::Ring;
use crate::base::Fault;
use crate::buf::Pool;
use crate::util::outage::Outage;
use bytes::Bytes;
use parking_lot::Mutex;
use std::fs;
use std::io::{self, ErrorKind, Write};
use std::ops::Range;
use std::os::unix::fs::{DirBuilderExt, MetadataExt, OpenOptionsExt};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant, SystemTime};
use tokio::runtime::Handle;
use tokio::sync::Notify;

/// Failures within [`FAILURE_WINDOW`] that put a directory to rest.
const FAILURES_MAX: u32 = 3;
const FAILURE_WINDOW: Duration = Duration::from_secs(60);
const REST: Duration = Duration::from_secs(300);
/// The file system is asked for its free space at most this often.
const FREE_CHECK: Duration = Duration::from_secs(1);
/// A full disk is written to at most this often.
const FULL_PAUSE: Duration = Duration::from_secs(1);
/// Temporary files older than this are left over from a crash.
const LEFTOVER: Duration = Duration::from_secs(60);

/// How the cache on disk is kept. The defaults are those of `spec/surface.md` section 4.
#[derive(Clone, Debug)]
pub struct DiskOptions {
    /// The directories, without the volume's id.
    pub dirs: Vec<PathBuf>,
    /// The volume's id, the name of our directory in each of them.
    pub uuid: String,
    /// Bytes over all directories.
    pub capacity: u64,
    /// Blocks over all directories; 0 for what the file system has room for.
    pub items: u64,
    /// This part of space and of inodes stays free, whoever uses the rest.
    pub free_space_ratio: f64,
    pub verify: Verify,
    pub eviction: Eviction,
    /// Of block files.
    pub mode: u32,
    pub hash_prefix: bool,
    /// Bytes waiting to be written, over all directories.
    pub queue_bytes: u64,
    /// Between two looks at the directory; none for a look at start only.
    pub scan_interval: Option<Duration>,
    /// Blocks not used for this long are removed.
    pub expire: Option<Duration>,
}

impl Default for DiskOptions {
    fn default() -> DiskOptions {
        DiskOptions {
            dirs: Vec::new(),
            uuid: String::new(),
            capacity: 100 << 30,
            items: 0,
            free_space_ratio: 0.1,
            verify: Verify::Extend,
            eviction: Eviction::TwoRandom,
            mode: 0o600,
            hash_prefix: false,
            queue_bytes: 60 << 20,
            scan_interval: Some(Duration::from_secs(3600)),
            expire: None,
        }
    }
}

/// Counters over all directories.
#[derive(Default)]
pub struct DiskMetrics {
    pub writes: AtomicU64,
    pub write_bytes: AtomicU64,
    /// Blocks that found the queue full or the disk short of space.
    pub drops: AtomicU64,
    pub evictions: AtomicU64,
    pub io_errors: AtomicU64,
    /// Files that did not match their checksums or their length.
    pub broken: AtomicU64,
}

/// All cache directories.
pub(super) struct DiskCache {
    dirs: Vec<Arc<Directory>>,
    ring: Ring,
    hash_prefix: bool,
}

impl DiskCache {
    /// Opens the directories, leaving out (with a line in the log) those that cannot be used. `None` when none can.
    pub fn open(options: &DiskOptions, pool: &Arc<Pool>, metrics: &Arc<DiskMetrics>) -> Option<DiskCache> {
        let mut paths = options.dirs.clone();
        paths.sort();
        paths.dedup();
        let share = paths.len().max(1) as u64;
        let mut dirs = Vec::new();
        for path in paths {
            match Directory::open(&path, options, share, pool, metrics) {
                Ok(dir) => dirs.push(dir),
                Err(e) => tracing::warn!(path = %path.display(), "cache directory cannot be used: {e}"),
            }
        }
        if dirs.is_empty() {
            return None;
        }
        let ids: Vec<String> = dirs.iter().map(|d| d.id.clone()).collect();
        dirs.iter().for_each(Directory::watch);
        Some(DiskCache { dirs, ring: Ring::new(&ids), hash_prefix: options.hash_prefix })
    }

    fn of(&self, key: &BlockKey) -> (&Arc<Directory>, String) {
        let name = key.name(self.hash_prefix);
        let at = if self.dirs.len() == 1 { 0 } else { self.ring.locate(&name) };
        (&self.dirs[at], name)
    }

    pub async fn load(&self, key: &BlockKey, range: Range<u32>) -> Option<Bytes> {
        let (dir, name) = self.of(key);
        dir.load(key, &name, range).await
    }

    /// Queues a block for writing; drops it when there is no room.
    pub fn offer(&self, key: BlockKey, block: Bytes) {
        self.of(&key).0.offer(key, block);
    }

    /// Writes a block and returns when it is there.
    pub async fn fill(&self, key: BlockKey, block: Bytes) -> Result<(), Fault> {
        let dir = self.of(&key).0.clone();
        match tokio::task::spawn_blocking(move || dir.write(key, &block)).await {
            Ok(Err(e)) if is_full(&e) => Err(Fault::full("fill cache").source(e)),
            Ok(done) => done.map_err(|e| Fault::unavailable("fill cache").source(e)),
            Err(e) => Err(Fault::internal("fill cache").source(e)),
        }
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        let dir = self.of(key).0;
        dir.writes.lock().queue.contains(key) || dir.index.lock().contains(key)
    }

    pub async fn remove(&self, key: &BlockKey) {
        let (dir, name) = self.of(key);
        let (dir, key) = (dir.clone(), *key);
        dir.writes.lock().queue.forget(&key);
        let known = dir.index.lock().remove(&key);
        if !known && dir.scanned.load(Ordering::Acquire) {
            return;
        }
        // A file that stays behind is a copy of a block that nobody asks for again, and is evicted in time.
        let _ended = tokio::task::spawn_blocking(move || dir.unlink(&name)).await;
    }

    /// Blocks and bytes (with the overhead of each) on all disks.
    pub fn usage(&self) -> (u64, u64) {
        self.dirs.iter().fold((0, 0), |(blocks, bytes), dir| {
            let index = dir.index.lock();
            (blocks + index.len() as u64, bytes + index.bytes())
        })
    }

    /// Writes what waits in the queues, and returns when it is on the disks.
    pub async fn flush(&self) {
        futures::future::join_all(self.dirs.iter().map(Directory::flush)).await;
    }

    /// Regular care: free space, expiry. May wait for a disk.
    pub fn tend(&self) {
        for dir in &self.dirs {
            dir.tend();
        }
    }
}

/// What is to be written, and who sees to it.
struct Writes {
    queue: Queue,
    /// A thread is writing. It looks at the queue again before it ends.
    writing: bool,
    /// A task waits for the time of the block that lingers longest.
    timed: bool,
}

/// One cache directory of one volume.
struct Directory {
    root: PathBuf,
    /// Its place on the ring.
    id: String,
    options: DiskOptions,
    /// This directory's share of the limits.
    capacity: u64,
    items: u64,
    pool: Arc<Pool>,
    metrics: Arc<DiskMetrics>,
    /// Each lock is held for map operations only, and never two of them at once.
    index: Mutex<Index>,
    writes: Mutex<Writes>,
    /// Told when the thread that writes has found nothing more that is due.
    drained: Notify,
    health: Mutex<Health>,
    full: Outage,
    /// Until the first scan has ended, a block that is not in the index may still be on the disk.
    scanned: AtomicBool,
    runtime: Handle,
}

#[derive(Default)]
struct Health {
    failures: u32,
    since: Option<Instant>,
    resting_until: Option<Instant>,
    /// Nothing is written before this.
    full_until: Option<Instant>,
    checked: Option<Instant>,
    /// Result of the last look at the free space: bytes and inodes that must go.
    short_bytes: u64,
    short_items: u64,
}

fn now_s() -> u32 {
    SystemTime::now().duration_since(SystemTime::UNIX_EPOCH).map_or(0, |d| d.as_secs() as u32)
}

impl Directory {
    fn open(
        path: &Path,
        options: &DiskOptions,
        share: u64,
        pool: &Arc<Pool>,
        metrics: &Arc<DiskMetrics>,
    ) -> io::Result<Arc<Directory>> {
        let root = path.join(&options.uuid);
        let mode = blockfile::directory_mode(options.mode);
        fs::DirBuilder::new().recursive(true).mode(mode).create(root.join("raw"))?;
        let id = directory_id(&root.join(".lock"))?;
        let fs = nix::sys::statvfs::statvfs(&root)?;
        let keep = 1.0 - options.free_space_ratio;
        let room = (fs.blocks() as f64 * fs.fragment_size() as f64 * keep) as u64;
        let inodes = (fs.files() as f64 * keep) as u64;
        let items = match (options.items / share, inodes) {
            (0, 0) => u64::MAX,
            (0, inodes) => inodes,
            (items, 0) => items,
            (items, inodes) => items.min(inodes),
        };
        Ok(Arc::new(Directory {
            root,
            id,
            capacity: (options.capacity / share).min(room),
            items,
            pool: pool.clone(),
            metrics: metrics.clone(),
            index: Mutex::new(Index::new(options.eviction)),
            writes: Mutex::new(Writes { queue: Queue::new(options.queue_bytes / share), writing: false, timed: false }),
            drained: Notify::new(),
            health: Mutex::default(),
            full: Outage::default(),
            scanned: AtomicBool::new(false),
            runtime: Handle::current(),
            options: options.clone(),
        }))
    }

    fn path(&self, name: &str) -> PathBuf {
        self.root.join("raw").join(name)
    }

    /// Scans at start and then regularly, in the background.
    fn watch(self: &Arc<Directory>) {
        let dir = Arc::downgrade(self);
        let interval = self.options.scan_interval;
        self.runtime.spawn(async move {
            loop {
                let Some(scanned) = dir.upgrade() else { return };
                let _ended = tokio::task::spawn_blocking(move || scanned.scan()).await;
                match interval {
                    Some(interval) => tokio::time::sleep(interval).await,
                    None => return,
                }
            }
        });
    }

    /// Takes what lies on the disk into the index; removes what a crash left behind.
    fn scan(&self) {
        let begun = Instant::now();
        let mut pending = vec![self.root.join("raw")];
        let mut found = 0u64;
        while let Some(dir) = pending.pop() {
            let entries = match fs::read_dir(&dir) {
                Ok(entries) => entries,
                // Removed meanwhile, perhaps by another client.
                Err(_) => continue,
            };
            for entry in entries.flatten() {
                let Ok(kind) = entry.file_type() else { continue };
                if kind.is_dir() {
                    pending.push(entry.path());
                    continue;
                }
                let Ok(meta) = entry.metadata() else { continue };
                let name = entry.file_name();
                let name = name.to_string_lossy();
                if name.ends_with(".tmp") {
                    if meta.modified().is_ok_and(|m| m.elapsed().is_ok_and(|age| age > LEFTOVER)) {
                        let _leftover = fs::remove_file(entry.path());
                    }
                } else if let Some(key) = BlockKey::parse(&name) {
                    let mut index = self.index.lock();
                    if !index.contains(&key) {
                        index.insert(key, meta.atime().clamp(0, i64::from(u32::MAX)) as u32);
                    }
                    found += 1;
                }
            }
        }
        self.scanned.store(true, Ordering::Release);
        tracing::debug!(dir = %self.root.display(), blocks = found, seconds = begun.elapsed().as_secs_f64(), "cache scanned");
        self.make_room();
    }

    fn is_resting(&self) -> bool {
        let mut health = self.health.lock();
        match health.resting_until {
            Some(until) if Instant::now() < until => true,
            Some(_) => {
                health.resting_until = None;
                false
            }
            None => false,
        }
    }

    /// No room for a block: not a fault of the directory. Somebody else may have filled the disk, so what we hold goes
    /// as far as the promised free space asks for it.
    fn found_full(&self, error: &io::Error) {
        self.metrics.drops.fetch_add(1, Ordering::Relaxed);
        if self.full.failed() {
            tracing::warn!(dir = %self.root.display(), "the disk of the cache is full, blocks are not kept: {error}");
        }
        {
            let mut health = self.health.lock();
            (health.full_until, health.checked) = (Some(Instant::now() + FULL_PAUSE), None);
        }
        self.make_room();
    }

    fn is_full(&self) -> bool {
        self.health.lock().full_until.is_some_and(|until| Instant::now() < until)
    }

    fn failed(&self, what: &str, error: &io::Error) {
        self.metrics.io_errors.fetch_add(1, Ordering::Relaxed);
        let mut health = self.health.lock();
        if health.since.is_none_or(|since| since.elapsed() > FAILURE_WINDOW) {
            (health.since, health.failures) = (Some(Instant::now()), 0);
            tracing::warn!(dir = %self.root.display(), "cache cannot {what}: {error}");
        }
        health.failures += 1;
        if health.failures >= FAILURES_MAX && health.resting_until.is_none() {
            health.resting_until = Some(Instant::now() + REST);
            health.since = None;
            tracing::error!(dir = %self.root.display(), "cache directory is left alone for {REST:?}: {error}");
        }
    }

    async fn load(self: &Arc<Directory>, key: &BlockKey, name: &str, range: Range<u32>) -> Option<Bytes> {
        {
            let writes = self.writes.lock();
            if let Some(block) = writes.queue.get(key) {
                return Some(block.slice(range.start as usize..range.end as usize));
            }
        }
        let known = self.index.lock().touch(key, now_s());
        if (!known && self.scanned.load(Ordering::Acquire)) || self.is_resting() {
            return None;
        }
        let path = self.path(name);
        let (size, verify) = (key.size, self.options.verify);
        let mut outcome = blockfile::read(&path, size, range.clone(), verify, &self.pool, true);
        if matches!(outcome, Ok(Outcome::WouldWait)) {
            let (path, pool) = (path.clone(), self.pool.clone());
            let work = move || blockfile::read(&path, size, range, verify, &pool, false);
            outcome = match tokio::task::spawn_blocking(work).await {
                Ok(outcome) => outcome,
                // The runtime is going down.
                Err(_) => return None,
            };
        }
        match outcome {
            Ok(Outcome::Read(bytes)) => {
                if !known {
                    self.index.lock().insert(*key, now_s());
                }
                return Some(bytes);
            }
            Ok(Outcome::Broken(reason)) => {
                self.metrics.broken.fetch_add(1, Ordering::Relaxed);
                tracing::warn!(path = %path.display(), "cached block is dropped: {reason}");
                self.index.lock().remove(key);
                let (dir, name) = (self.clone(), name.to_owned());
                let _ended = tokio::task::spawn_blocking(move || dir.unlink(&name)).await;
            }
            // Removed by another client, or by hand.
            Err(e) if e.kind() == ErrorKind::NotFound => {
                self.index.lock().remove(key);
            }
            Err(e) => self.failed("read a block", &e),
            Ok(Outcome::WouldWait) => {}
        }
        None
    }

    fn offer(self: &Arc<Directory>, key: BlockKey, block: Bytes) {
        if self.index.lock().contains(&key) || self.is_resting() {
            return;
        }
        let mut writes = self.writes.lock();
        match writes.queue.offer(key, block, Instant::now()) {
            Offered::Taken => self.see_to(&mut writes),
            Offered::Known => {}
            Offered::NoRoom => {
                self.metrics.drops.fetch_add(1, Ordering::Relaxed);
            }
        }
    }

    /// Sees to it that what is queued is written when it is time.
    fn see_to(self: &Arc<Directory>, writes: &mut Writes) {
        if writes.writing {
            return;
        }
        let dir = self.clone();
        match writes.queue.due_in(Instant::now()) {
            None => {}
            Some(Duration::ZERO) => {
                writes.writing = true;
                self.runtime.spawn_blocking(move || dir.drain());
            }
            Some(time) if !writes.timed => {
                writes.timed = true;
                self.runtime.spawn(async move {
                    tokio::time::sleep(time).await;
                    let mut writes = dir.writes.lock();
                    writes.timed = false;
                    dir.see_to(&mut writes);
                });
            }
            Some(_) => {}
        }
    }

    /// Writes what is due until nothing is left.
    fn drain(self: &Arc<Directory>) {
        loop {
            let (key, block) = {
                let mut writes = self.writes.lock();
                match writes.queue.next(Instant::now()) {
                    Some(next) => next,
                    None => {
                        writes.writing = false;
                        self.see_to(&mut writes);
                        drop(writes);
                        self.drained.notify_waiters();
                        return;
                    }
                }
            };
            // What was queued before the directory failed too often is not tried on it either.
            if self.is_resting() || self.is_full() {
                self.metrics.drops.fetch_add(1, Ordering::Relaxed);
            } else {
                match self.write(key, &block) {
                    Ok(()) => {}
                    Err(e) if is_full(&e) => self.found_full(&e),
                    Err(e) => self.failed("write a block", &e),
                }
            }
            // Readers find it on the disk from now on, or in the store.
            let wanted = self.writes.lock().queue.forget(&key);
            // Somebody has removed it while it was being written, and has not seen the file.
            if !wanted && self.index.lock().remove(&key) {
                self.unlink(&key.name(self.options.hash_prefix));
            }
        }
    }

    /// Writes everything that is queued now, and returns when it is there.
    async fn flush(self: &Arc<Directory>) {
        loop {
            let drained = self.drained.notified();
            {
                let mut writes = self.writes.lock();
                writes.queue.hurry();
                self.see_to(&mut writes);
                if !writes.writing {
                    return;
                }
            }
            drained.await;
        }
    }

    fn write(&self, key: BlockKey, block: &[u8]) -> io::Result<()> {
        if self.options.eviction == Eviction::None {
            let full = {
                let index = self.index.lock();
                index.bytes() + block.len() as u64 + BLOCK_OVERHEAD > self.capacity || index.len() as u64 >= self.items
            };
            if full || self.shortage() != (0, 0) {
                self.metrics.drops.fetch_add(1, Ordering::Relaxed);
                return Ok(());
            }
        }
        let path = self.path(&key.name(self.options.hash_prefix));
        blockfile::write(&self.root, &path, block, self.options.verify != Verify::None, self.options.mode)?;
        if let Some(over) = self.full.succeeded() {
            tracing::info!(dir = %self.root.display(), "the disk of the cache has room again after {:.0} s", over.lasted.as_secs_f64());
        }
        self.metrics.writes.fetch_add(1, Ordering::Relaxed);
        self.metrics.write_bytes.fetch_add(block.len() as u64, Ordering::Relaxed);
        self.index.lock().insert(key, now_s());
        self.make_room();
        Ok(())
    }

    fn unlink(&self, name: &str) {
        match fs::remove_file(self.path(name)) {
            Err(e) if e.kind() != ErrorKind::NotFound => self.failed("remove a block", &e),
            _ => {}
        }
    }

    /// Bytes and blocks that must go to keep the promised part of the file system free; looked up once a second.
    fn shortage(&self) -> (u64, u64) {
        let mut health = self.health.lock();
        if health.checked.is_some_and(|at| at.elapsed() < FREE_CHECK) {
            return (health.short_bytes, health.short_items);
        }
        health.checked = Some(Instant::now());
        let Ok(fs) = nix::sys::statvfs::statvfs(&self.root) else { return (0, 0) };
        let short =
            |total: u64, free: u64| ((total as f64 * self.options.free_space_ratio) as u64).saturating_sub(free);
        health.short_bytes = short(fs.blocks() as u64, fs.blocks_available() as u64) * fs.fragment_size() as u64;
        health.short_items = short(fs.files() as u64, fs.files_available() as u64);
        (health.short_bytes, health.short_items)
    }

    /// Evicts down to 95 % of the capacity and 99 % of the items when over, and what the free space asks for.
    fn make_room(&self) {
        let (short_bytes, short_items) = self.shortage();
        let (bytes, items) = {
            let index = self.index.lock();
            (index.bytes(), index.len() as u64)
        };
        let mut bytes_goal = if bytes > self.capacity { self.capacity / 100 * 95 } else { u64::MAX };
        let mut items_goal = if items > self.items { self.items / 100 * 99 } else { u64::MAX };
        if short_bytes > 0 {
            bytes_goal = bytes_goal.min(bytes.saturating_sub(short_bytes));
        }
        if short_items > 0 {
            items_goal = items_goal.min(items.saturating_sub(short_items));
        }
        if bytes_goal == u64::MAX && items_goal == u64::MAX {
            return;
        }
        loop {
            let victim = {
                let mut index = self.index.lock();
                if index.bytes() <= bytes_goal && index.len() as u64 <= items_goal {
                    break;
                }
                let Some(victim) = index.victim() else { break };
                index.remove(&victim);
                victim
            };
            self.metrics.evictions.fetch_add(1, Ordering::Relaxed);
            self.unlink(&victim.name(self.options.hash_prefix));
        }
        // What was short a moment ago must not be evicted twice.
        let mut health = self.health.lock();
        (health.short_bytes, health.short_items) = (0, 0);
    }

    fn tend(&self) {
        if self.is_resting() {
            return;
        }
        if let Some(expire) = self.options.expire {
            let limit = now_s().saturating_sub(expire.as_secs().min(u64::from(u32::MAX)) as u32);
            let old = self.index.lock().older(limit);
            for key in old {
                self.index.lock().remove(&key);
                self.unlink(&key.name(self.options.hash_prefix));
            }
        }
        self.make_room();
    }
}

fn is_full(error: &io::Error) -> bool {
    matches!(error.kind(), ErrorKind::StorageFull | ErrorKind::QuotaExceeded)
}

/// The id of a directory, which is made with its first use.
fn directory_id(path: &Path) -> io::Result<String> {
    let fresh = uuid::Uuid::new_v4().to_string();
    match fs::OpenOptions::new().write(true).create_new(true).mode(0o666).open(path) {
        Ok(mut file) => {
            file.write_all(fresh.as_bytes())?;
            Ok(fresh)
        }
        Err(e) if e.kind() == ErrorKind::AlreadyExists => {
            let id = fs::read_to_string(path)?.trim().to_owned();
            if id.len() == fresh.len() {
                return Ok(id);
            }
            // Cut off by a crash; any id will do, since no block can have been placed by this one.
            fs::write(path, &fresh)?;
            Ok(fresh)
        }
        Err(e) => Err(e),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;
    use crate::buf::Budget;

    fn key(id: u64, size: u32) -> BlockKey {
        BlockKey { slice: SliceId(id), index: 0, size }
    }

    fn open(dirs: Vec<PathBuf>, change: impl FnOnce(&mut DiskOptions)) -> (DiskCache, Arc<DiskMetrics>) {
        let mut options = DiskOptions { dirs, uuid: "vol".into(), free_space_ratio: 0.0, ..DiskOptions::default() };
        change(&mut options);
        let metrics = Arc::new(DiskMetrics::default());
        (DiskCache::open(&options, &Pool::new(Budget::new(1 << 30)), &metrics).unwrap(), metrics)
    }

    async fn settled(cache: &DiskCache) {
        for _ in 0..500 {
            cache.flush().await;
            if cache.dirs.iter().all(|d| d.scanned.load(Ordering::Acquire)) {
                return;
            }
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        panic!("the writer does not come to rest");
    }

    #[tokio::test]
    async fn blocks_are_found_again_by_the_next_client() {
        let dir = tempfile::tempdir().unwrap();
        let block = Bytes::from(vec![b'A'; 40000]);
        {
            let (cache, _) = open(vec![dir.path().into()], |_| {});
            cache.offer(key(1, 40000), block.clone());
            assert_eq!(cache.load(&key(1, 40000), 1..3).await.unwrap(), "AA", "readable while it is queued");
            settled(&cache).await;
        }
        let path = dir.path().join("vol/raw/chunks/0/0/1_0_40000");
        let file = fs::read(&path).unwrap();
        assert_eq!(file.len(), 40008);
        assert_eq!(file[40000..], [0x5a, 0xb9, 0x92, 0xb7, 0xaf, 0x1b, 0x52, 0x80]);
        assert_eq!(fs::metadata(&path).unwrap().mode() & 0o777, 0o600);
        assert_eq!(fs::read_to_string(dir.path().join("vol/.lock")).unwrap().len(), 36);

        let (cache, metrics) = open(vec![dir.path().into()], |_| {});
        assert_eq!(cache.load(&key(1, 40000), 0..40000).await.unwrap(), block, "scanned or not");
        settled(&cache).await;
        assert_eq!(cache.usage(), (1, 40000 + 4096));
        let mut damaged = file.clone();
        damaged[5] ^= 1;
        fs::write(&path, damaged).unwrap();
        assert_eq!(cache.load(&key(1, 40000), 0..1).await, None);
        assert_eq!(metrics.broken.load(Ordering::Relaxed), 1);
        assert!(!path.exists());
        assert_eq!(cache.load(&key(1, 40000), 0..1).await, None);
    }

    #[tokio::test]
    async fn the_capacity_is_kept() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, metrics) = open(vec![dir.path().into()], |o| {
            o.capacity = 50 * (1000 + 4096);
            o.eviction = Eviction::Lru;
        });
        settled(&cache).await;
        for id in 0..200 {
            cache.fill(key(id, 1000), Bytes::from(vec![0; 1000])).await.unwrap();
            let (_, bytes) = cache.usage();
            assert!(bytes <= 50 * 5096);
        }
        let (blocks, _) = cache.usage();
        assert_eq!(blocks + metrics.evictions.load(Ordering::Relaxed), 200);
        let mut files = 0;
        for id in 0..200 {
            let exists = dir.path().join("vol/raw").join(key(id, 1000).name(false)).exists();
            assert_eq!(exists, cache.contains(&key(id, 1000)), "{id}");
            files += u64::from(exists);
        }
        assert_eq!(files, blocks);
    }

    #[tokio::test]
    async fn a_full_queue_drops_and_a_broken_directory_only_misses() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, metrics) = open(vec![dir.path().into()], |o| o.queue_bytes = 1500);
        settled(&cache).await;
        // No block can be written where a file stands.
        fs::write(dir.path().join("vol/raw/chunks"), "").unwrap();
        for id in 0..50 {
            cache.offer(key(id, 1000), Bytes::from(vec![0; 1000]));
        }
        settled(&cache).await;
        assert!(metrics.drops.load(Ordering::Relaxed) > 0);
        for id in 50..60 {
            cache.offer(key(id, 1000), Bytes::from(vec![0; 1000]));
            settled(&cache).await;
            assert_eq!(cache.load(&key(id, 1000), 0..1).await, None);
        }
        assert_eq!(metrics.io_errors.load(Ordering::Relaxed), u64::from(FAILURES_MAX), "then it is left alone");
    }

    /// Also while it is being written.
    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn what_is_removed_does_not_come_back() {
        let dir = tempfile::tempdir().unwrap();
        let (cache, metrics) = open(vec![dir.path().into()], |_| {});
        settled(&cache).await;
        const SIZE: u32 = 1 << 20;
        let block = Bytes::from(vec![7; SIZE as usize]);
        for id in 0..300 {
            cache.offer(key(id, SIZE), block.clone());
            tokio::time::sleep(Duration::from_micros(10 * (id % 150))).await;
            cache.remove(&key(id, SIZE)).await;
            settled(&cache).await;
            assert!(!cache.contains(&key(id, SIZE)), "{id}");
            assert!(!dir.path().join("vol/raw").join(key(id, SIZE).name(false)).exists(), "{id}");
        }
        assert!(metrics.writes.load(Ordering::Relaxed) > 0, "some were late");
    }

    #[tokio::test]
    async fn several_directories_share_the_blocks() {
        let dirs: Vec<_> = (0..3).map(|_| tempfile::tempdir().unwrap()).collect();
        let paths: Vec<PathBuf> = dirs.iter().map(|d| d.path().into()).collect();
        let (cache, _) = open(paths.clone(), |_| {});
        settled(&cache).await;
        for id in 0..90 {
            cache.fill(key(id, 10), Bytes::from(vec![id as u8; 10])).await.unwrap();
        }
        for dir in &dirs {
            assert!(dir.path().join("vol/raw/chunks/0/0").exists(), "every directory got some");
        }
        let (again, _) = open(paths.into_iter().rev().collect(), |_| {});
        for id in 0..90 {
            assert_eq!(again.load(&key(id, 10), 0..1).await.unwrap(), [id as u8][..]);
        }
        again.remove(&key(7, 10)).await;
        assert_eq!(again.load(&key(7, 10), 0..1).await, None);
    }
}
