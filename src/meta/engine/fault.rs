//! A wrapper that makes an engine fail from a seed: conflicts, faults before any effect, commits whose reply is lost,
//! and latency on tokio's clock. The conformance and simulation suites run operations over it.
//!
//! Calls outside transactions can fail too (`outside`), but do not by default: they have no retry driver above
//! them, so a fault there is an answer to the caller.

use super::{Batch, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan};
use crate::base::{Fault, Ino, Name};
use crate::meta::record::{Counter, Key, Record};
use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// How often what goes wrong, as probabilities.
#[derive(Clone, Debug)]
pub struct FaultPlan {
    /// A begin, load or commit that fails before any effect.
    pub fault: f64,
    /// A load or commit that reports a conflict where there was none.
    pub conflict: f64,
    /// A commit without a reply: applied or not, even odds.
    pub lost_reply: f64,
    /// A read, scan or allocation that fails.
    pub outside: f64,
    /// How long each call takes; an empty range: no time.
    pub latency: Range<Duration>,
}

impl FaultPlan {
    pub const NONE: FaultPlan =
        FaultPlan { fault: 0.0, conflict: 0.0, lost_reply: 0.0, outside: 0.0, latency: Duration::ZERO..Duration::ZERO };

    /// One in ten begins, loads and commits fails in one of the ways.
    pub fn conformance() -> FaultPlan {
        FaultPlan { fault: 0.04, conflict: 0.04, lost_reply: 0.02, ..FaultPlan::NONE }
    }
}

/// Fails as planned, and otherwise does what the engine inside does.
#[derive(Clone)]
pub struct FaultEngine {
    inner: Arc<dyn Engine>,
    dice: Arc<Dice>,
}

struct Dice {
    plan: Mutex<FaultPlan>,
    random: Mutex<StdRng>,
}

impl Dice {
    fn falls(&self, chance: impl Fn(&FaultPlan) -> f64) -> bool {
        let chance = chance(&self.plan.lock());
        chance > 0.0 && self.random.lock().random_bool(chance)
    }

    async fn latency(&self) {
        let range = self.plan.lock().latency.clone();
        if !range.is_empty() {
            let pause = self.random.lock().random_range(range);
            tokio::time::sleep(pause).await;
        }
    }

    /// Latency, then perhaps a fault of which the engine never learns.
    async fn before(&self, call: &'static str, chance: impl Fn(&FaultPlan) -> f64) -> EngineResult<()> {
        self.latency().await;
        if self.falls(chance) { Err(Fault::unavailable(call).with("injected", true).into()) } else { Ok(()) }
    }
}

impl FaultEngine {
    pub fn new(inner: Arc<dyn Engine>, seed: u64, plan: FaultPlan) -> FaultEngine {
        let random = Mutex::new(StdRng::seed_from_u64(seed));
        FaultEngine { inner, dice: Arc::new(Dice { plan: Mutex::new(plan), random }) }
    }

    /// From now on; so that a volume can be made in peace and checked in peace.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.dice.plan.lock() = plan;
    }
}

#[async_trait]
impl Engine for FaultEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn lists_chunks_of_file(&self) -> bool {
        self.inner.lists_chunks_of_file()
    }

    fn stores_empty_values(&self) -> bool {
        self.inner.stores_empty_values()
    }

    fn unstorable_xattr(&self, name: &Name, value: &[u8]) -> Option<&'static str> {
        self.inner.unstorable_xattr(name, value)
    }

    fn batch_max(&self) -> usize {
        self.inner.batch_max()
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.inner.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.dice.before("read", |plan| plan.outside).await?;
        self.inner.read(keys).await
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        self.dice.before("lookup", |plan| plan.outside).await?;
        self.inner.lookup(parent, name).await
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        self.dice.before("begin", |plan| plan.fault).await?;
        let (inner, records) = self.inner.begin(first).await?;
        Ok((Box::new(FaultTxn { inner, dice: self.dice.clone() }), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.dice.before("scan", |plan| plan.outside).await?;
        self.inner.scan_readable(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.dice.before("scan", |plan| plan.outside).await?;
        self.inner.scan_plus(dir, after, limit).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.dice.before("allocate", |plan| plan.outside).await?;
        self.inner.allocate(counter, count).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.dice.before("sync", |plan| plan.outside).await?;
        self.inner.sync().await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.inner.erase().await
    }
}

struct FaultTxn {
    inner: Box<dyn EngineTxn>,
    dice: Arc<Dice>,
}

#[async_trait]
impl EngineTxn for FaultTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.dice.before("load", |plan| plan.fault).await?;
        if self.dice.falls(|plan| plan.conflict) {
            return Err(EngineError::Conflict);
        }
        self.inner.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        self.dice.before("commit", |plan| plan.fault).await?;
        if self.dice.falls(|plan| plan.conflict) {
            return Err(EngineError::Conflict);
        }
        if !self.dice.falls(|plan| plan.lost_reply) {
            return self.inner.commit(batch).await;
        }
        if self.dice.falls(|_| 0.5) {
            // Whatever came of it is lost.
            let _ = self.inner.commit(batch).await;
        }
        Err(EngineError::Undetermined(Fault::undetermined("commit").with("injected", true)))
    }
}
