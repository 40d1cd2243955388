//! Every request ends in time: a request past its deadline is dropped and reported as a `Timeout`, which `retry`
//! above may try again.

use crate::base::Fault;
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use std::ops::Range;
use std::time::{Duration, Instant};

/// A request that took this long is worth a line in the log.
const SLOW: Duration = Duration::from_secs(10);

/// A store whose requests end in time.
pub struct Deadline {
    inner: SharedStore,
    get: Duration,
    put: Duration,
}

impl Deadline {
    /// `get` bounds reads, listings and questions; `put` bounds writes and deletions.
    pub fn new(inner: SharedStore, get: Duration, put: Duration) -> Deadline {
        Deadline { inner, get, put }
    }
}

async fn within<T>(
    method: &'static str,
    key: &str,
    limit: Duration,
    request: impl Future<Output = Result<T, Fault>>,
) -> Result<T, Fault> {
    let begun = Instant::now();
    let result = tokio::time::timeout(limit, request)
        .await
        .unwrap_or_else(|_| Err(Fault::timeout(method).with("key", key).with("limit_s", limit.as_secs_f64())));
    let took = begun.elapsed();
    if took > SLOW {
        // No warning: it ended in time, and what is past its deadline or failed is reported by `retry` above.
        let (seconds, ok) = (took.as_secs_f64(), result.is_ok());
        // The target is `telemetry::log::SLOW`: a bounded number of lines.
        tracing::info!(target: "sluicefs::slow", key, seconds, ok, "slow request: {method}");
    }
    result
}

#[async_trait]
impl ObjectStore for Deadline {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        within("get object", key, self.get, self.inner.get(key, range)).await
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        within("put object", key, self.put, self.inner.put_as(key, body, class)).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        within("delete object", key, self.put, self.inner.delete(key)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        within("head object", key, self.get, self.inner.head(key)).await
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        within("list objects", prefix, self.get, self.inner.list(prefix, after, limit)).await
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        within("create bucket", "", self.put, self.inner.create_bucket()).await
    }
}
