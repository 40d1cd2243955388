//! What lies between the clients and what they share: latency, losses and outages, crashes and pauses.
//!
//! Each client has a [`Line`] of its own, with an engine of its own on the one volume, and to the one store. Requests and replies take time, so that
//! others get in between an effect and the news of it; either may be lost. A dead line never answers again, whatever
//! waits for it: that is a crash, for nothing of the client reaches anybody after it but what was on its way. A line
//! that is held answers later.
//!
//! The network keeps account of the slices that may be left in the store without a reference (`excuses`): their client
//! crashed before the commit, or was not told how a commit, an upload or a removal ended.

use super::real::Volume;
use crate::base::{Fault, Ino, Name, SliceId};
use crate::buf::Payload;
use crate::cache::BlockKey;
use crate::meta::engine::{
    Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan,
};
use crate::meta::record::{Counter, Key, Record};
use crate::object::mem::MemStore;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore};
use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Longer than a client goes on asking an engine that fails.
const ENGINE_AWAY: Duration = Duration::from_secs(25);

/// How often what goes wrong, as probabilities for each request.
#[derive(Clone, Debug, Default)]
pub struct Chances {
    /// Most requests and replies travel up to this long each.
    pub latency_ms: u64,
    /// Some take twenty times as long.
    pub slow: f64,
    pub engine_before: f64,
    pub engine_conflict: f64,
    pub engine_lost: f64,
    /// Of the commits without a reply, those after which the engine is out of reach of their client for longer than it
    /// goes on asking.
    pub engine_away: f64,
    pub store_before: f64,
    pub store_after: f64,
    /// The store is silent for longer than the client waits; what it was asked to do happens all the same.
    pub store_stall: f64,
    pub store_truncate: f64,
}

/// What is wrong with the whole system for a while.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Outage {
    EngineDown,
    EngineFull,
    StoreDown,
    StoreFull,
}

/// What all lines share.
pub struct Network {
    volume: Volume,
    /// For who looks on, past all lines.
    pub engine: Arc<dyn Engine>,
    pub store: Arc<MemStore>,
    chances: Mutex<Chances>,
    random: Mutex<StdRng>,
    outages: Mutex<BTreeMap<Outage, Instant>>,
    excuses: Mutex<BTreeMap<SliceId, &'static str>>,
    /// Longer than the client's own time-out.
    stall: Duration,
    /// Engines differ in what they can do; so do those of different runs.
    lists_chunks_of_file: bool,
    looks_up: bool,
    ranges: bool,
}

impl Network {
    pub fn new(seed: u64, chances: Chances, stall: Duration) -> Arc<Network> {
        let mut random = StdRng::seed_from_u64(seed);
        let volume = Volume::new();
        let engine = volume.engine();
        Arc::new(Network {
            store: Arc::default(),
            chances: Mutex::new(chances),
            lists_chunks_of_file: random.random::<bool>() && engine.lists_chunks_of_file(),
            looks_up: random.random(),
            ranges: random.random_bool(0.75),
            random: Mutex::new(random),
            volume,
            engine,
            outages: Mutex::default(),
            excuses: Mutex::default(),
            stall,
        })
    }

    /// From now on things go wrong like this.
    pub fn set(&self, chances: Chances) {
        *self.chances.lock() = chances;
    }

    /// Nothing goes wrong any more.
    fn is_healed(&self) -> bool {
        let chances = self.chances.lock();
        chances.engine_lost == 0.0
    }

    /// From now on nothing goes wrong and nothing takes time.
    pub fn heal(&self) {
        *self.chances.lock() = Chances::default();
        self.outages.lock().clear();
    }

    pub fn begin(&self, outage: Outage, length: Duration) {
        self.outages.lock().insert(outage, Instant::now() + length);
    }

    fn is(&self, outage: Outage) -> bool {
        self.outages.lock().get(&outage).is_some_and(|until| Instant::now() < *until)
    }

    fn falls(&self, chance: impl Fn(&Chances) -> f64) -> bool {
        let chance = chance(&self.chances.lock());
        chance > 0.0 && self.random.lock().random_bool(chance)
    }

    pub fn excuse(&self, slice: SliceId, why: &'static str) {
        self.excuses.lock().entry(slice).or_insert(why);
    }

    pub fn is_excused(&self, slice: SliceId) -> bool {
        self.excuses.lock().contains_key(&slice)
    }

    async fn latency(&self) {
        let (most, slow) = {
            let chances = self.chances.lock();
            (chances.latency_ms, chances.slow)
        };
        if most == 0 {
            return;
        }
        let pause = {
            let mut random = self.random.lock();
            let pause = random.random_range(0..=most);
            if slow > 0.0 && random.random_bool(slow) { pause * 20 } else { pause }
        };
        if pause > 0 {
            tokio::time::sleep(Duration::from_millis(pause)).await;
        }
    }
}

#[derive(Clone, Copy)]
enum State {
    Open,
    Held(Instant, Held),
    Dead,
}

/// What waits while a line is held.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Held {
    Everything,
    /// Uploads go on, so that what is to be committed afterwards is complete.
    Engine,
}

/// One incarnation of a client, as engine and store see it.
pub struct Line {
    net: Arc<Network>,
    engine: Arc<dyn Engine>,
    state: Mutex<State>,
    /// Slices of which something was uploaded over this line, and which are not committed yet.
    uploaded: Mutex<BTreeSet<SliceId>>,
    /// The engine refuses this client until then.
    away_until: Mutex<Option<Instant>>,
}

impl Line {
    pub fn new(net: Arc<Network>) -> Arc<Line> {
        Arc::new(Line {
            engine: net.volume.engine(),
            net,
            state: Mutex::new(State::Open),
            uploaded: Mutex::default(),
            away_until: Mutex::default(),
        })
    }

    /// Nothing is heard over this line any more.
    pub fn die(&self) {
        *self.state.lock() = State::Dead;
        self.excuse_uploaded("its client crashed");
    }

    /// What was uploaded and is not committed may never be.
    fn excuse_uploaded(&self, why: &'static str) {
        self.uploaded.lock().iter().for_each(|slice| self.net.excuse(*slice, why));
    }

    /// Requests and replies wait for so long.
    pub fn hold(&self, length: Duration, what: Held) {
        let mut state = self.state.lock();
        if let State::Open = *state {
            *state = State::Held(Instant::now() + length, what);
        }
    }

    async fn pass(&self, to: Held) {
        loop {
            let state = *self.state.lock();
            match state {
                State::Open => return,
                State::Dead => std::future::pending::<()>().await,
                State::Held(_, Held::Engine) if to != Held::Engine => return,
                State::Held(until, what) => {
                    tokio::time::sleep_until(until).await;
                    let mut state = self.state.lock();
                    if matches!(*state, State::Held(since, held) if (since, held) == (until, what)) {
                        *state = State::Open;
                    }
                }
            }
        }
    }

    async fn request(&self, to: Held) {
        self.pass(to).await;
        self.net.latency().await;
    }

    async fn reply(&self, from: Held) {
        self.net.latency().await;
        self.pass(from).await;
    }

    fn is_away(&self) -> bool {
        self.away_until.lock().is_some_and(|until| Instant::now() < until) && !self.net.is_healed()
    }

    fn engine_answers(&self, call: &'static str) -> EngineResult<()> {
        if self.net.is(Outage::EngineDown) || self.is_away() || self.net.falls(|chances| chances.engine_before) {
            self.excuse_uploaded("the engine failed before its commit");
            return Err(Fault::unavailable(call).with("injected", true).into());
        }
        Ok(())
    }

    async fn ask<T>(&self, call: &'static str, work: impl Future<Output = EngineResult<T>>) -> EngineResult<T> {
        self.request(Held::Engine).await;
        self.engine_answers(call)?;
        let answer = work.await;
        self.reply(Held::Engine).await;
        answer
    }

    fn store_answers(&self, request: &'static str) -> Result<(), Fault> {
        if self.net.is(Outage::StoreDown) || self.net.falls(|chances| chances.store_before) {
            return Err(Fault::unavailable(request).with("injected", "before"));
        }
        Ok(())
    }

    /// Tells a slice whose upload or removal is left in the dark.
    fn excuse(&self, key: &str, why: &'static str) {
        if let Some(slice) = slice_of(key) {
            self.net.excuse(slice, why);
        }
    }
}

/// The slice that an object belongs to.
pub fn slice_of(key: &str) -> Option<SliceId> {
    BlockKey::parse(key.rsplit('/').next().unwrap_or(key)).map(|block| block.slice)
}

/// The engine as one client has it.
pub struct LineEngine(pub Arc<Line>);

#[async_trait]
impl Engine for LineEngine {
    fn name(&self) -> &'static str {
        "simulated"
    }

    fn lists_chunks_of_file(&self) -> bool {
        self.0.net.lists_chunks_of_file
    }

    fn stores_empty_values(&self) -> bool {
        self.0.engine.stores_empty_values()
    }

    fn batch_max(&self) -> usize {
        self.0.engine.batch_max()
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.0.engine.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.0.ask("read", self.0.engine.read(keys)).await
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        if !self.0.net.looks_up {
            return Ok(None);
        }
        self.0.ask("lookup", self.0.engine.lookup(parent, name)).await
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let (txn, records) = self.0.ask("begin", self.0.engine.begin(first)).await?;
        Ok((Box::new(LineTxn { line: self.0.clone(), txn }), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.0.ask("scan", self.0.engine.scan_readable(scan, after, limit)).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.0.ask("scan", self.0.engine.scan_plus(dir, after, limit)).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.0.ask("allocate", self.0.engine.allocate(counter, count)).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.0.ask("sync", self.0.engine.sync()).await
    }

    async fn erase(&self) -> EngineResult<()> {
        Err(Fault::unsupported("erase").into())
    }
}

struct LineTxn {
    line: Arc<Line>,
    txn: Box<dyn EngineTxn>,
}

/// Slices that a batch makes visible or replaces.
fn slices_in(batch: &Batch) -> impl Iterator<Item = SliceId> + '_ {
    let of = |change: &Change| match change {
        Change::Append { slices, .. } | Change::ReplacePrefix { with: slices, .. } => {
            slices.iter().map(|slice| slice.id).collect()
        }
        _ => Vec::new(),
    };
    batch.changes.iter().flat_map(of)
}

#[async_trait]
impl EngineTxn for LineTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        if self.line.net.falls(|chances| chances.engine_conflict) {
            return Err(EngineError::Conflict);
        }
        self.line.ask("load", self.txn.load(keys)).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let LineTxn { line, txn } = *self;
        let net = &line.net;
        let excuse = |why| slices_in(&batch).for_each(|slice| net.excuse(slice, why));
        line.request(Held::Engine).await;
        if let Err(fault) = line.engine_answers("commit") {
            excuse("its commit failed");
            return Err(fault);
        }
        let grows = |change: &Change| matches!(change, Change::Put(..) | Change::Append { .. });
        if net.is(Outage::EngineFull) && batch.changes.iter().any(grows) {
            excuse("its commit found the engine full");
            return Err(Fault::full("commit").with("injected", true).into());
        }
        if net.falls(|chances| chances.engine_conflict) {
            return Err(EngineError::Conflict);
        }
        if net.falls(|chances| chances.engine_lost) {
            excuse("the reply to its commit was lost");
            if net.falls(|_| 0.5) {
                // Whatever came of it is lost.
                let _lost = txn.commit(batch).await;
            }
            line.reply(Held::Engine).await;
            if net.falls(|chances| chances.engine_away) {
                *line.away_until.lock() = Some(Instant::now() + ENGINE_AWAY);
            }
            return Err(EngineError::Undetermined(Fault::undetermined("commit").with("injected", true)));
        }
        let slices: Vec<SliceId> = slices_in(&batch).collect();
        let done = txn.commit(batch).await;
        if done.is_ok() {
            line.uploaded.lock().retain(|slice| !slices.contains(slice));
        }
        line.reply(Held::Engine).await;
        done
    }
}

/// The store as one client has it.
pub struct LineStore(pub Arc<Line>);

impl LineStore {
    /// Does `work` now or, when the store stalls, after the client has given up waiting.
    async fn perform(
        &self,
        key: &str,
        work: impl Future<Output = Result<(), Fault>> + Send + 'static,
    ) -> Result<(), Fault> {
        let Line { net, .. } = &*self.0;
        if net.falls(|chances| chances.store_stall) {
            self.0.excuse(key, "the store was silent about it");
            let stall = net.stall;
            let late = tokio::spawn(async move {
                tokio::time::sleep(stall).await;
                work.await
            });
            late.await.expect("a store in memory does not panic")?;
        } else {
            work.await?;
        }
        if net.falls(|chances| chances.store_after) {
            return Err(Fault::unavailable("store").with("injected", "after"));
        }
        self.0.reply(Held::Everything).await;
        Ok(())
    }
}

#[async_trait]
impl ObjectStore for LineStore {
    fn name(&self) -> &str {
        "simulated://"
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ranges: self.0.net.ranges, local_device: None }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        let net = &self.0.net;
        self.0.request(Held::Everything).await;
        self.0.store_answers("get")?;
        if net.falls(|chances| chances.store_stall) {
            tokio::time::sleep(net.stall).await;
        }
        let mut body = net.store.get(key, range).await?;
        if !body.is_empty() && net.falls(|chances| chances.store_truncate) {
            let left = net.random.lock().random_range(0..body.len());
            body = body.slice(..left);
        }
        self.0.reply(Held::Everything).await;
        Ok(body)
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        self.0.request(Held::Everything).await;
        self.0.store_answers("put")?;
        if self.0.net.is(Outage::StoreFull) {
            return Err(Fault::full("put").with("injected", true));
        }
        self.0.uploaded.lock().extend(slice_of(key));
        if let State::Dead = *self.0.state.lock() {
            self.0.excuse(key, "its client crashed");
        }
        let (store, name) = (self.0.net.store.clone(), key.to_owned());
        let class = class.map(str::to_owned);
        self.perform(key, async move { store.put_as(&name, body, class.as_deref()).await }).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.0.request(Held::Everything).await;
        if let Err(fault) = self.0.store_answers("delete") {
            self.0.excuse(key, "its removal failed");
            return Err(fault);
        }
        let (store, name) = (self.0.net.store.clone(), key.to_owned());
        self.perform(key, async move { store.delete(&name).await }).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        self.0.request(Held::Everything).await;
        self.0.store_answers("head")?;
        let found = self.0.net.store.head(key).await;
        self.0.reply(Held::Everything).await;
        found
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        self.0.request(Held::Everything).await;
        self.0.store_answers("list")?;
        let found = self.0.net.store.list(prefix, after, limit).await;
        self.0.reply(Held::Everything).await;
        found
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        Ok(())
    }
}
