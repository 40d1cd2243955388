//! One run's world: the shared engine and store, the clients on them, their clocks, and what may befall them.

use super::model::{Incarnation, Model};
use super::network::{Chances, Held, Line, LineEngine, LineStore, Network};
use super::pages::Pages;
use super::plan::Plan;
use crate::base::{Ino, Timestamp};
use crate::config::client::{CacheDirs, ClientSettings};
use crate::config::units::Size;
use crate::config::volume::VolumeFormat;
use crate::meta::engine::Scan;
use crate::meta::record::{Key, Record};
use crate::object::{StackOptions, stack};
use crate::util::clock::Clock;
use crate::vfs::Vfs;
use crate::vfs::client::{Client, Parts, pool_for};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::sync::atomic::{AtomicBool, AtomicI64, AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;
use tokio::sync::Notify;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// What a client waits for a reply of the store.
const STORE_TIMEOUT: Duration = Duration::from_secs(10);
/// Whatever was on its way to the engine when a client crashed has arrived after this.
pub const IN_FLIGHT_MAX: Duration = Duration::from_secs(2);
/// No operation takes longer than this, whatever goes wrong: a few tries with their time-outs, and a pause of a client.
pub const OPERATION_MAX: Duration = Duration::from_secs(600);
/// Records asked for at a time.
const PAGE_RECORDS: usize = 4096;
/// Steps that are shown when a run fails.
const STEPS_SHOWN: usize = 150;
/// 2026-01-01, a Thursday.
const EPOCH_SECONDS: i64 = 1_767_225_600;

/// A client's wall clock.
struct SkewedClock {
    begun: Instant,
    skew_ms: Arc<AtomicI64>,
    wall_ms: Arc<AtomicI64>,
    /// Two readings never agree to the nanosecond.
    readings: AtomicU64,
    slot: u32,
}

impl Clock for SkewedClock {
    fn now(&self) -> Timestamp {
        let readings = self.readings.fetch_add(1, Ordering::Relaxed) as u32 % 60_000;
        let elapsed = self.begun.elapsed().as_millis() as i64;
        let ms = elapsed + self.skew_ms.load(Ordering::Relaxed) + self.wall_ms.load(Ordering::Relaxed);
        let nanos = ms.rem_euclid(1000) as u32 * 1_000_000 + readings * 16 + self.slot;
        Timestamp::new(EPOCH_SECONDS + ms.div_euclid(1000), nanos)
    }
}

/// A client that is up.
#[derive(Clone)]
pub struct Up {
    pub incarnation: Incarnation,
    pub vfs: Arc<Vfs>,
}

/// The place of one client, which may come and go.
pub struct Slot {
    up: Mutex<Option<Up>>,
    /// Told of each change of `up`. Those who wait are woken in the order in which they came, unlike by a channel that
    /// spreads them over several lists by chance: a seed has to be the same run each time.
    changed: Notify,
    running: Mutex<Option<(Client, Arc<Line>)>>,
    incarnations: AtomicU64,
    skew_ms: Arc<AtomicI64>,
    /// The present incarnation was held at some time: what it asked for may have failed.
    was_held: AtomicBool,
}

impl Slot {
    /// Says who is up now; answers who was.
    fn turn(&self, up: Option<Up>) -> Option<Up> {
        let before = std::mem::replace(&mut *self.up.lock(), up);
        self.changed.notify_waiters();
        before
    }

    /// What `look` finds, once it finds something.
    async fn wait<T>(&self, look: impl Fn(&Option<Up>) -> Option<T>) -> T {
        loop {
            let mut changed = std::pin::pin!(self.changed.notified());
            changed.as_mut().enable();
            let found = look(&self.up.lock());
            match found {
                Some(found) => return found,
                None => changed.await,
            }
        }
    }
}

/// The last steps, and a sum over all of them.
struct Trace {
    hasher: DefaultHasher,
    last: VecDeque<String>,
    steps: usize,
}

pub struct World {
    pub plan: Plan,
    pub net: Arc<Network>,
    pub model: Mutex<Model>,
    pub slots: Vec<Slot>,
    pub begun: Instant,
    pub wall_ms: Arc<AtomicI64>,
    /// Who holds the lock of the shared counter.
    pub lock_holder: Mutex<Option<(Incarnation, usize)>>,
    pub pages: Mutex<Pages>,
    /// What goes on beside the processes.
    pub errands: Mutex<Vec<JoinHandle<()>>>,
    /// Some client stood still at some time.
    pub held_once: AtomicBool,
    pub dir: OnceLock<Ino>,
    format: VolumeFormat,
    trace: Mutex<Trace>,
}

impl World {
    pub async fn new(plan: Plan) -> Arc<World> {
        let mut format = VolumeFormat::new("sim", "11111111-2222-3333-4444-555555555555");
        format.block_size_kib = 64;
        format.compression = plan.compression.to_owned();
        format.hash_prefix = plan.hash_prefix;
        format.trash_days = plan.trash_days;
        format.storage = "mem".into();
        let net = Network::new(plan.seed ^ 0xA5A5, Chances::default(), 3 * STORE_TIMEOUT);
        let slot = |_| Slot {
            up: Mutex::default(),
            changed: Notify::new(),
            running: Mutex::default(),
            incarnations: AtomicU64::new(0),
            skew_ms: Arc::default(),
            was_held: AtomicBool::new(false),
        };
        let world = Arc::new(World {
            slots: (0..plan.clients).map(slot).collect(),
            net,
            model: Mutex::default(),
            begun: Instant::now(),
            wall_ms: Arc::default(),
            lock_holder: Mutex::default(),
            pages: Mutex::default(),
            errands: Mutex::default(),
            held_once: AtomicBool::new(false),
            dir: OnceLock::new(),
            format,
            trace: Mutex::new(Trace { hasher: DefaultHasher::new(), last: VecDeque::new(), steps: 0 }),
            plan,
        });
        let maker = world.meta(world.net_line(), 0);
        maker.format(&world.format.to_json()).await.expect("the engine takes a volume");
        world
    }

    pub fn net_line(&self) -> Arc<Line> {
        Line::new(self.net.clone())
    }

    /// Metadata without a session, over a line.
    pub fn meta(&self, line: Arc<Line>, slot: usize) -> Arc<crate::meta::Meta> {
        let settings = crate::meta::MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
        let rules = crate::vfs::client::rules_of(&self.format);
        crate::meta::Meta::new(Arc::new(LineEngine(line)), self.clock(slot), settings, rules)
    }

    fn clock(&self, slot: usize) -> Arc<dyn Clock> {
        Arc::new(SkewedClock {
            begun: self.begun,
            skew_ms: self.slots[slot].skew_ms.clone(),
            wall_ms: self.wall_ms.clone(),
            readings: AtomicU64::new(0),
            slot: slot as u32,
        })
    }

    pub fn set_skew(&self, slot: usize, skew_ms: i64) {
        self.slots[slot].skew_ms.store(skew_ms, Ordering::Relaxed);
    }

    fn settings(&self) -> ClientSettings {
        ClientSettings {
            cache_dirs: CacheDirs::Memory,
            cache_size: Size(self.plan.cache_bytes),
            buffer_size: Size(self.plan.buffer_bytes),
            io_retries: 4,
            atime_mode: self.plan.atime,
            skip_dir_mtime: self.plan.skip_dir_mtime,
            // Who asks here remembers nothing, so that every answer has to be true when it is given.
            attr_cache: Duration::ZERO,
            // The models know of no other objects than blocks.
            backup_meta: Duration::ZERO,
            ..ClientSettings::default()
        }
    }

    fn parts(&self, slot: usize, line: &Arc<Line>) -> Parts {
        let options = StackOptions {
            prefix: "sim/".to_owned(),
            retries: 4,
            get_timeout: STORE_TIMEOUT,
            put_timeout: STORE_TIMEOUT,
            ..StackOptions::default()
        };
        Parts {
            engine: Arc::new(LineEngine(line.clone())),
            format: self.format.clone(),
            objects: stack(vec![Arc::new(LineStore(line.clone()))], &options),
            pool: pool_for(&self.settings()),
            clock: self.clock(slot),
        }
    }

    /// A store over a line, with the layers that clients have.
    pub fn chunks(&self, slot: usize, line: &Arc<Line>) -> crate::chunk::ChunkStore {
        let Parts { objects, pool, .. } = self.parts(slot, line);
        let options = crate::chunk::ChunkOptions {
            block_size: self.format.block_bytes() as u32,
            compression: crate::chunk::Compression::parse(&self.format.compression).expect("a known compression"),
            hash_prefix: self.format.hash_prefix,
            ..crate::chunk::ChunkOptions::default()
        };
        crate::chunk::ChunkStore::new(objects.store, crate::cache::BlockCache::in_memory(0), pool, options)
    }

    pub fn format(&self) -> &VolumeFormat {
        &self.format
    }

    /// Starts the client of a slot, however often it takes.
    pub async fn open(&self, slot: usize) -> Up {
        let place = &self.slots[slot];
        let mut tries = 0;
        loop {
            tries += 1;
            let line = self.net_line();
            let settings = self.settings();
            let opened =
                tokio::time::timeout(OPERATION_MAX, Client::assemble(self.parts(slot, &line), &settings, "/sim"));
            match opened.await.expect("opening a volume ends in time") {
                Ok(client) => {
                    place.was_held.store(false, Ordering::Relaxed);
                    let number = place.incarnations.fetch_add(1, Ordering::Relaxed) as u32 + 1;
                    let up = Up { incarnation: (slot, number), vfs: client.vfs.clone() };
                    *place.running.lock() = Some((client, line));
                    place.turn(Some(up.clone()));
                    self.step(|| format!("client {slot} is up: {number}"));
                    return up;
                }
                Err(stop) => {
                    assert!(self.plan.is_faulty() && tries < 100, "opening a volume failed: {stop}");
                    line.die();
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
    }

    /// The client of a slot, waiting until it is up.
    pub async fn up(&self, slot: usize) -> Up {
        self.slots[slot].wait(|up| up.clone()).await
    }

    /// Returns once this incarnation is gone.
    pub async fn gone(&self, incarnation: Incarnation) {
        let another = |up: &Option<Up>| up.as_ref().is_none_or(|up| up.incarnation != incarnation).then_some(());
        self.slots[incarnation.0].wait(another).await;
    }

    /// A client of this slot if one is up now.
    pub fn up_now(&self, slot: usize) -> Option<Up> {
        self.slots[slot].up.lock().clone()
    }

    /// Everything that the client has in memory is gone, without a word to anybody.
    pub async fn crash(&self, slot: usize) {
        let Some((client, line)) = self.slots[slot].running.lock().take() else { return };
        let up = self.slots[slot].turn(None).expect("what runs is up");
        self.step(|| format!("client {slot} crashes"));
        line.die();
        drop(client);
        self.model.lock().crashed(up.incarnation);
        self.unlock_for(up.incarnation);
        drop(up.vfs);
        tokio::time::sleep(IN_FLIGHT_MAX).await;
        self.model.lock().settle(up.incarnation);
    }

    /// The locks of a client that is no more are nobody's.
    fn unlock_for(&self, incarnation: Incarnation) {
        let mut holder = self.lock_holder.lock();
        if holder.is_some_and(|(by, _)| by == incarnation) {
            *holder = None;
        }
    }

    pub fn hold(&self, slot: usize, length: Duration, what: Held) {
        if let Some((_, line)) = &*self.slots[slot].running.lock() {
            self.slots[slot].was_held.store(true, Ordering::Relaxed);
            self.held_once.store(true, Ordering::Relaxed);
            line.hold(length, what);
        }
    }

    /// What the client of a slot is asked for may fail, and others may take it for dead: it stood still, or everything
    /// in this run may fail.
    pub fn may_fail(&self, slot: usize) -> bool {
        self.plan.is_faulty() || self.slots[slot].was_held.load(Ordering::Relaxed)
    }

    /// An orderly end of a client. Whatever could not be flushed is in the answer of the flushes before.
    pub async fn close(&self, slot: usize) {
        let Some((client, _line)) = self.slots[slot].running.lock().take() else { return };
        let up = self.slots[slot].turn(None).expect("what runs is up");
        let closed = tokio::time::timeout(OPERATION_MAX, client.close()).await.expect("closing ends in time");
        let kept = up.vfs.files_without_users();
        assert!(kept.is_empty(), "client {slot} knows files that nobody has open and that miss nothing: {kept:?}");
        self.step(|| format!("client {slot} closes: {closed:?}"));
        drop(up.vfs);
        let mut model = self.model.lock();
        for file in 0..model.files.len() {
            let writes = model.unsettled(file, up.incarnation);
            let flushed = model.flushed(file, &writes, closed.is_ok());
            if let Err(why) = flushed {
                panic!("file {file}: {why}");
            }
        }
        model.crashed(up.incarnation);
        model.settle(up.incarnation);
    }

    /// All rows of an administrative scan, past all lines.
    pub async fn rows(&self, scan: &Scan) -> Vec<(Key, Record)> {
        let (mut rows, mut after) = (Vec::new(), None);
        loop {
            let page = self.net.engine.scan(scan, after.as_ref(), PAGE_RECORDS).await;
            let page = page.expect("the engine answers who looks on");
            rows.extend(page.rows);
            after = page.next;
            if after.is_none() {
                return rows;
            }
        }
    }

    pub fn step(&self, what: impl FnOnce() -> String) {
        let line = format!("{:>9} {}", self.begun.elapsed().as_millis(), what());
        let mut trace = self.trace.lock();
        line.hash(&mut trace.hasher);
        trace.steps += 1;
        if trace.last.len() == STEPS_SHOWN {
            trace.last.pop_front();
        }
        trace.last.push_back(line);
    }

    pub fn last_steps(&self) -> String {
        self.trace.lock().last.iter().map(|line| format!("{line}\n")).collect()
    }

    /// How many steps there were, and a number that two runs of a seed must share.
    pub async fn sum(&self) -> (usize, u64) {
        let mut hasher = self.trace.lock().hasher.clone();
        for scan in [Scan::Attrs, Scan::AllDentries, Scan::Chunks] {
            // Each engine has an order of its own.
            let mut rows: Vec<String> = self.rows(&scan).await.iter().map(|row| format!("{row:?}")).collect();
            rows.sort();
            rows.dedup();
            rows.hash(&mut hasher);
        }
        (self.trace.lock().steps, hasher.finish())
    }

    /// The model's number of a file; `shared`: anybody may remove it at any time.
    pub fn file_of(&self, ino: Ino, phase: u64, shared: bool) -> usize {
        let mut model = self.model.lock();
        if let Some(known) = model.files.iter().position(|file| file.ino == ino) {
            return known;
        }
        let file = model.add_file(ino, phase);
        model.files[file].going = shared.then_some(0);
        file
    }

    /// The file that processes count in, and some that everybody uses and nobody removes.
    pub async fn make_files(&self, up: &Up) {
        for number in 0..=self.plan.hot_files {
            let name = crate::base::Name::entry(format!("f{number}").as_bytes()).expect("a valid name");
            let made = up.vfs.create(&crate::meta::Caller::root(), Ino::ROOT, &name, 0o644, 0, libc::O_RDWR).await;
            let (entry, opened) = made.expect("a fresh volume");
            up.vfs.release(entry.ino, opened.handle).await.expect("nothing was written");
            assert_eq!(self.file_of(entry.ino, number as u64, false), number);
        }
    }

    /// A directory in the root.
    pub async fn make_dir(&self, up: &Up, name: &str) -> Ino {
        let node = crate::meta::ops::create::NewNode {
            kind: crate::base::Kind::Directory,
            mode: 0o755,
            umask: 0,
            rdev: 0,
            target: None,
        };
        let name = crate::base::Name::entry(name.as_bytes()).expect("a valid name");
        up.vfs.make(&crate::meta::Caller::root(), Ino::ROOT, &name, &node).await.expect("a fresh volume").ino
    }
}
