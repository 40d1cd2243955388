//! Requests that failed for a passing reason are tried again, with a wait of k² seconds before try k (`spec/data.md`
//! 8.5). Faults that trying again cannot mend (no such object, no rights, a full store) are final at once.
//!
//! The log hears of a store that fails when that begins and when it is over, not of each try: in an outage every reader
//! of a mount would have ten lines to say.

use crate::base::{Fault, FaultKind, Retry as Class};
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use crate::util::outage::Outage;
use async_trait::async_trait;
use std::ops::Range;
use std::time::Duration;

/// A store that is patient with its inner one.
pub struct Retry {
    inner: SharedStore,
    retries: u32,
    /// The first real wait; the others are square multiples of it.
    unit: Duration,
    outage: Outage,
}

impl Retry {
    /// `retries` further tries after the first.
    pub fn new(inner: SharedStore, retries: u32, unit: Duration) -> Retry {
        Retry { inner, retries, unit, outage: Outage::default() }
    }

    fn succeeded(&self) {
        if let Some(over) = self.outage.succeeded() {
            let (failures, seconds) = (over.failures, over.lasted.as_secs_f64());
            tracing::info!(
                store = self.inner.name(),
                "the store works again, {failures} requests failed within {seconds:.1} s"
            );
        }
    }

    /// After try number `tried` failed: waits and says that there is another one, or gives the fault back.
    async fn again(&self, method: &str, key: &str, tried: u32, fault: Fault) -> Result<(), Fault> {
        // All methods may be repeated: a put of the same bytes or a second deletion changes nothing.
        match fault.retry() {
            Class::Now | Class::Later | Class::Unknown => {}
            Class::Never => {
                // These do not pass by themselves either, and what fails is every request.
                let lasts = matches!(fault.kind(), FaultKind::Full | FaultKind::Denied);
                if lasts && self.outage.failed() {
                    tracing::warn!(store = self.inner.name(), "the store refuses requests: {fault}");
                }
                return Err(fault);
            }
        }
        let first = self.outage.failed();
        if tried >= self.retries {
            return Err(fault.with("tries", tried + 1));
        }
        if first {
            tracing::warn!(store = self.inner.name(), key, "{method} will be tried again: {fault}");
        } else {
            tracing::debug!(key, tried = tried + 1, "{method} will be tried again: {fault}");
        }
        tokio::time::sleep(self.unit * tried.saturating_mul(tried)).await;
        Ok(())
    }
}

/// A macro rather than a function over closures: futures that borrow their arguments cannot be proved `Send` there.
macro_rules! patiently {
    ($self:ident, $method:literal, $key:expr, $request:expr) => {{
        let mut tried = 0;
        loop {
            match $request.await {
                Ok(done) => {
                    $self.succeeded();
                    break Ok(done);
                }
                Err(fault) => {
                    if let Err(last) = $self.again($method, $key, tried, fault).await {
                        break Err(last);
                    }
                }
            }
            tried += 1;
        }
    }};
}

#[async_trait]
impl ObjectStore for Retry {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        patiently!(self, "get", key, self.inner.get(key, range.clone()))
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        patiently!(self, "put", key, self.inner.put_as(key, body.clone(), class))
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        match patiently!(self, "delete", key, self.inner.delete(key)) {
            Err(fault) if fault.kind() == FaultKind::NotFound => Ok(()),
            other => other,
        }
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        patiently!(self, "head", key, self.inner.head(key))
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        patiently!(self, "list", prefix, self.inner.list(prefix, after, limit))
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        self.inner.create_bucket().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::layer::fault::{FaultPlan, FaultStore};
    use crate::object::mem::MemStore;
    use std::sync::Arc;

    #[tokio::test]
    async fn passing_faults_are_outlived() {
        let plan = FaultPlan { before: 0.4, after: 0.3, ..FaultPlan::default() };
        let faulty = Arc::new(FaultStore::new(Arc::new(MemStore::new()), plan, 7));
        let store = Retry::new(faulty.clone(), 30, Duration::from_micros(10));
        for i in 0..20 {
            store.put(&format!("k{i}"), vec![i].into()).await.unwrap();
            assert!(store.get(&format!("k{i}"), None).await.unwrap() == [i][..]);
        }
        assert!(faulty.injected() > 10);
    }

    #[tokio::test]
    async fn final_faults_are_not_repeated_and_patience_ends() {
        let begun = std::time::Instant::now();
        let store = Retry::new(Arc::new(MemStore::new()), 10, Duration::from_secs(9));
        assert_eq!(store.get("missing", None).await.unwrap_err().kind(), FaultKind::NotFound);
        assert!(begun.elapsed() < Duration::from_secs(9));

        let plan = FaultPlan { before: 1.0, ..FaultPlan::default() };
        let store =
            Retry::new(Arc::new(FaultStore::new(Arc::new(MemStore::new()), plan, 7)), 3, Duration::from_millis(10));
        assert_eq!(store.get("missing", None).await.unwrap_err().kind(), FaultKind::Unavailable);
        assert!(begun.elapsed() >= Duration::from_millis(10 + 40), "waits of 0, 1 and 4 units before three more tries");
    }
}
