//! What the requests to the store came to, per method: how many, how many failed, bytes and time.

use crate::base::{Fault, FaultKind};
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// Counters of one method.
#[derive(Default)]
pub struct MethodMetrics {
    requests: AtomicU64,
    errors: AtomicU64,
    bytes: AtomicU64,
    nanos: AtomicU64,
}

/// A reading of one method's counters.
#[derive(Clone, Copy, Debug, Default, PartialEq)]
pub struct MethodReading {
    pub requests: u64,
    /// Requests that failed; that there is no such object is an answer, not a failure.
    pub errors: u64,
    pub bytes: u64,
    pub seconds: f64,
}

impl MethodMetrics {
    fn record(&self, begun: Instant, bytes: usize, failed: bool) {
        self.requests.fetch_add(1, Ordering::Relaxed);
        self.errors.fetch_add(failed.into(), Ordering::Relaxed);
        self.bytes.fetch_add(bytes as u64, Ordering::Relaxed);
        self.nanos.fetch_add(begun.elapsed().as_nanos() as u64, Ordering::Relaxed);
    }

    pub fn read(&self) -> MethodReading {
        MethodReading {
            requests: self.requests.load(Ordering::Relaxed),
            errors: self.errors.load(Ordering::Relaxed),
            bytes: self.bytes.load(Ordering::Relaxed),
            seconds: Duration::from_nanos(self.nanos.load(Ordering::Relaxed)).as_secs_f64(),
        }
    }
}

/// Counters of a store, by method.
#[derive(Default)]
pub struct ObjectMetrics {
    pub get: MethodMetrics,
    pub put: MethodMetrics,
    pub delete: MethodMetrics,
    pub head: MethodMetrics,
    pub list: MethodMetrics,
}

impl ObjectMetrics {
    /// All methods with the names that metrics give them.
    pub fn read(&self) -> [(&'static str, MethodReading); 5] {
        [
            ("GET", self.get.read()),
            ("PUT", self.put.read()),
            ("DELETE", self.delete.read()),
            ("HEAD", self.head.read()),
            ("LIST", self.list.read()),
        ]
    }
}

/// A store that is counted.
pub struct Metered {
    inner: SharedStore,
    metrics: Arc<ObjectMetrics>,
}

impl Metered {
    pub fn new(inner: SharedStore, metrics: Arc<ObjectMetrics>) -> Metered {
        Metered { inner, metrics }
    }
}

fn failed<T>(result: &Result<T, Fault>) -> bool {
    result.as_ref().err().is_some_and(|f| f.kind() != FaultKind::NotFound)
}

#[async_trait]
impl ObjectStore for Metered {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        let begun = Instant::now();
        let result = self.inner.get(key, range).await;
        self.metrics.get.record(begun, result.as_ref().map_or(0, Payload::len), failed(&result));
        result
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        let (begun, bytes) = (Instant::now(), body.len());
        let result = self.inner.put_as(key, body, class).await;
        self.metrics.put.record(begun, if result.is_ok() { bytes } else { 0 }, failed(&result));
        result
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        let begun = Instant::now();
        let result = self.inner.delete(key).await;
        self.metrics.delete.record(begun, 0, failed(&result));
        result
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        let begun = Instant::now();
        let result = self.inner.head(key).await;
        self.metrics.head.record(begun, 0, failed(&result));
        result
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        let begun = Instant::now();
        let result = self.inner.list(prefix, after, limit).await;
        self.metrics.list.record(begun, 0, failed(&result));
        result
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        self.inner.create_bucket().await
    }
}
