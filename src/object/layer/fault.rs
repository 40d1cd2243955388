//! A store that breaks on purpose, for tests: faults before and after the effect and latency, all from one seed.

use crate::base::Fault;
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// How often and how things go wrong.
#[derive(Clone, Copy, Debug, Default)]
pub struct FaultPlan {
    /// Share of requests that fail without an effect.
    pub before: f64,
    /// Share of requests that fail although they had their effect.
    pub after: f64,
    /// Each request waits up to this long.
    pub latency_max: Duration,
}

/// A store whose requests fail by plan.
pub struct FaultStore {
    inner: SharedStore,
    plan: Mutex<FaultPlan>,
    random: Mutex<StdRng>,
    injected: AtomicU64,
    requests: AtomicU64,
}

impl FaultStore {
    pub fn new(inner: SharedStore, plan: FaultPlan, seed: u64) -> FaultStore {
        FaultStore {
            inner,
            plan: Mutex::new(plan),
            random: Mutex::new(StdRng::seed_from_u64(seed)),
            injected: AtomicU64::new(0),
            requests: AtomicU64::new(0),
        }
    }

    /// From now on things go wrong like this.
    pub fn set_plan(&self, plan: FaultPlan) {
        *self.plan.lock() = plan;
    }

    /// How many faults were injected.
    pub fn injected(&self) -> u64 {
        self.injected.load(Ordering::Relaxed)
    }

    /// How many requests arrived.
    pub fn requests(&self) -> u64 {
        self.requests.load(Ordering::Relaxed)
    }

    async fn run<T>(&self, request: impl Future<Output = Result<T, Fault>>) -> Result<T, Fault> {
        let plan = *self.plan.lock();
        self.requests.fetch_add(1, Ordering::Relaxed);
        let (before, after, wait) = {
            let mut random = self.random.lock();
            (random.random_bool(plan.before), random.random_bool(plan.after), plan.latency_max.mul_f64(random.random()))
        };
        if !wait.is_zero() {
            tokio::time::sleep(wait).await;
        }
        let injected = |when| {
            self.injected.fetch_add(1, Ordering::Relaxed);
            Err(Fault::unavailable("injected fault").with("when", when))
        };
        if before {
            return injected("before");
        }
        let done = request.await;
        if after { injected("after") } else { done }
    }
}

#[async_trait]
impl ObjectStore for FaultStore {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        self.run(self.inner.get(key, range)).await
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        self.run(self.inner.put_as(key, body, class)).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.run(self.inner.delete(key)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        self.run(self.inner.head(key)).await
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        self.run(self.inner.list(prefix, after, limit)).await
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        self.run(self.inner.create_bucket()).await
    }
}
