//! How many requests run at once, and how many bytes per second they may move.
//!
//! Requests of one kind queue for a slot in order of arrival. A slot is held for one request only, never while a
//! retry waits. Bandwidth is a token bucket that may go into debt: a transfer begins when the debt is paid and is
//! charged for what it moved, so the size of an answer need not be known beforehand.

use crate::base::Fault;
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Semaphore, SemaphorePermit};
use tokio::time::Instant;

/// Longest wait for a slot. Everybody before us holds a slot for one request, which has a deadline of its own, so
/// this only ends waits in a store that answers nothing for minutes.
const SLOT_WAIT_MAX: Duration = Duration::from_secs(300);

/// Share of a bandwidth limit that payload may use; the rest is left to headers and retransmissions
/// (`spec/data.md` 8.5).
const PAYLOAD_SHARE: f64 = 0.85;
/// What may be moved at once after a pause, in seconds at full speed.
const BURST_SECONDS: f64 = 0.1;

/// Bytes per second, zero for no limit.
pub struct Bandwidth {
    state: Mutex<Bucket>,
}

struct Bucket {
    bytes_per_s: f64,
    /// May be negative: then somebody moved more than was there, and the next one waits.
    tokens: f64,
    at: Instant,
}

impl Bandwidth {
    /// `mbps` in 10⁶ bit/s, as the format record has it; 0 for no limit.
    pub fn new(mbps: u64) -> Bandwidth {
        Bandwidth {
            state: Mutex::new(Bucket { bytes_per_s: mbps as f64 * 1e6 / 8.0, tokens: 0.0, at: Instant::now() }),
        }
    }

    /// A new limit, effective at once.
    pub fn set(&self, mbps: u64) {
        let mut bucket = self.state.lock();
        bucket.refill();
        bucket.bytes_per_s = mbps as f64 * 1e6 / 8.0;
    }

    /// Waits until what was moved before is paid for.
    async fn ready(&self) {
        loop {
            let wait = {
                let mut bucket = self.state.lock();
                bucket.refill();
                if bucket.bytes_per_s == 0.0 || bucket.tokens >= 0.0 {
                    return;
                }
                Duration::from_secs_f64(-bucket.tokens / (bucket.bytes_per_s * PAYLOAD_SHARE))
            };
            tokio::time::sleep(wait).await;
        }
    }

    fn charge(&self, bytes: usize) {
        let mut bucket = self.state.lock();
        if bucket.bytes_per_s > 0.0 {
            bucket.tokens -= bytes as f64;
        }
    }
}

impl Bucket {
    fn refill(&mut self) {
        let now = Instant::now();
        let earned = (now - self.at).as_secs_f64() * self.bytes_per_s * PAYLOAD_SHARE;
        self.tokens = (self.tokens + earned).min(self.bytes_per_s * BURST_SECONDS);
        self.at = now;
    }
}

/// The limits of one client, shared by everything that reaches the store.
pub struct Limits {
    gets: Semaphore,
    puts: Semaphore,
    deletes: Semaphore,
    pub upload: Bandwidth,
    pub download: Bandwidth,
}

impl Limits {
    pub fn new(gets: usize, puts: usize, deletes: usize, upload_mbps: u64, download_mbps: u64) -> Arc<Limits> {
        Arc::new(Limits {
            gets: Semaphore::new(gets.max(1)),
            puts: Semaphore::new(puts.max(1)),
            deletes: Semaphore::new(deletes.max(1)),
            upload: Bandwidth::new(upload_mbps),
            download: Bandwidth::new(download_mbps),
        })
    }
}

async fn slot<'a>(slots: &'a Semaphore, method: &'static str) -> Result<SemaphorePermit<'a>, Fault> {
    match tokio::time::timeout(SLOT_WAIT_MAX, slots.acquire()).await {
        Ok(permit) => Ok(permit.expect("the slots of a store are never closed")),
        Err(_) => Err(Fault::timeout(method).with("waited_s", SLOT_WAIT_MAX.as_secs())),
    }
}

/// A store with limits.
pub struct Limited {
    inner: SharedStore,
    limits: Arc<Limits>,
}

impl Limited {
    pub fn new(inner: SharedStore, limits: Arc<Limits>) -> Limited {
        Limited { inner, limits }
    }
}

#[async_trait]
impl ObjectStore for Limited {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        let _slot = slot(&self.limits.gets, "wait to get an object").await?;
        self.limits.download.ready().await;
        let body = self.inner.get(key, range).await?;
        self.limits.download.charge(body.len());
        Ok(body)
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        let _slot = slot(&self.limits.puts, "wait to put an object").await?;
        self.limits.upload.ready().await;
        self.limits.upload.charge(body.len());
        self.inner.put_as(key, body, class).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        let _slot = slot(&self.limits.deletes, "wait to delete an object").await?;
        self.inner.delete(key).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        self.inner.head(key).await
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        self.inner.list(prefix, after, limit).await
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

    #[tokio::test]
    async fn bandwidth_is_kept() {
        // 8 Mbit/s are 850,000 payload bytes per second.
        let store = Limited::new(Arc::new(MemStore::new()), Limits::new(9, 9, 9, 8, 0));
        let begun = Instant::now();
        for i in 0..9 {
            store.put(&format!("{i}"), vec![0; 85_000].into()).await.unwrap();
        }
        let took = begun.elapsed().as_secs_f64();
        assert!((0.79..2.0).contains(&took), "nine tenths of a second's worth, the last on credit: {took}");
        let begun = Instant::now();
        store.get("0", None).await.unwrap();
        assert!(begun.elapsed() < Duration::from_millis(500), "downloads are not limited");
    }

    #[tokio::test]
    async fn no_more_than_allowed_run_at_once() {
        let slow = FaultPlan { latency_max: Duration::from_millis(100), ..FaultPlan::default() };
        let inner = Arc::new(FaultStore::new(Arc::new(MemStore::new()), slow, 1));
        let store = Arc::new(Limited::new(inner.clone(), Limits::new(2, 3, 9, 0, 0)));
        let tasks: Vec<_> = (0..10)
            .map(|i| {
                let store = store.clone();
                tokio::spawn(async move { store.put(&format!("{i}"), vec![0].into()).await })
            })
            .collect();
        tokio::task::yield_now().await;
        assert_eq!(inner.requests(), 3);
        for task in tasks {
            task.await.unwrap().unwrap();
        }
        assert_eq!(inner.requests(), 10);
    }
}
