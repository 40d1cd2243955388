//! All objects of an encrypted volume, `juicefs_uuid` and test objects included, are sealed in an [`Envelope`] on their
//! way to the store and opened on their way back. Above this layer nobody sees it, except that a range read costs the
//! whole object, and that sizes in listings are those of the sealed objects.
//!
//! Sealing and opening is work for the processor, a few milliseconds per object, so it is done on threads that may take
//! their time, and only as many at once as there are processors: more would wait for each other and hold memory.

use crate::base::Fault;
use crate::buf::{Payload, Pool};
use crate::object::envelope::Envelope;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use bytes::Bytes;
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::thread::available_parallelism;
use tokio::sync::Semaphore;

/// How objects are sealed, and where the memory for it comes from.
#[derive(Clone)]
pub struct Encryption {
    pub envelope: Arc<Envelope>,
    pub pool: Arc<Pool>,
}

impl fmt::Debug for Encryption {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.envelope.fmt(f)
    }
}

/// A store that keeps sealed objects and shows open ones.
pub struct Encrypted {
    inner: SharedStore,
    encryption: Encryption,
    /// Held for one piece of work each, which ends by itself; so no wait for one needs a deadline.
    turns: Arc<Semaphore>,
}

impl Encrypted {
    pub fn new(inner: SharedStore, encryption: Encryption) -> Encrypted {
        // Two even on one processor: the thread of one may be waiting for memory that the kernel must clear.
        let turns = available_parallelism().map_or(2, |n| n.get().max(2));
        Encrypted { inner, encryption, turns: Arc::new(Semaphore::new(turns)) }
    }

    async fn compute(
        &self,
        operation: &'static str,
        key: &str,
        body: Payload,
        work: fn(&Envelope, &Payload, &Arc<Pool>) -> Result<Bytes, Fault>,
    ) -> Result<Payload, Fault> {
        let turn = self.turns.clone().acquire_owned().await.expect("the turns are never closed");
        let Encryption { envelope, pool } = self.encryption.clone();
        let done = tokio::task::spawn_blocking(move || {
            // Goes with the work: a caller who goes away does not end it.
            let _turn = turn;
            work(&envelope, &body, &pool)
        });
        match done.await {
            Ok(result) => result.map(Payload::from).map_err(|fault| fault.with("key", key)),
            Err(e) => Err(Fault::internal(operation).with("key", key).source(e)),
        }
    }
}

#[async_trait]
impl ObjectStore for Encrypted {
    fn name(&self) -> &str {
        self.inner.name()
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ranges: false, ..self.inner.capabilities() }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        let sealed = self.inner.get(key, None).await?;
        let body = self.compute("open sealed object", key, sealed, Envelope::open).await?;
        let Some(range) = range else { return Ok(body) };
        let within = |at: u64| usize::try_from(at).unwrap_or(usize::MAX).min(body.len());
        Ok(body.slice(within(range.start).min(within(range.end))..within(range.end)))
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        let sealed = self.compute("seal object", key, body, Envelope::seal).await?;
        self.inner.put_as(key, sealed, class).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
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
    use crate::base::FaultKind;
    use crate::buf::Budget;
    use crate::object::mem::MemStore;
    use crate::object::{StackOptions, probe, stack};

    /// A test key; it guards nothing.
    const KEY: &str = include_str!("../envelope/testkeys/rsa-pkcs1.pem");

    fn encryption() -> Encryption {
        let envelope = Arc::new(Envelope::new("", KEY, None).unwrap());
        Encryption { envelope, pool: Pool::new(Budget::new(64 << 20)) }
    }

    #[tokio::test]
    async fn everything_in_the_store_is_sealed_and_everything_above_is_open() {
        let mem = Arc::new(MemStore::new());
        let options =
            StackOptions { prefix: "v/".into(), encryption: Some(encryption()), retries: 0, ..StackOptions::default() };
        let store = stack(vec![mem.clone()], &options).store;
        probe(&*store, None).await.unwrap();
        assert!(!store.capabilities().ranges && mem.capabilities().ranges);
        let body: Vec<u8> = (0..100_000u32).map(|i| i as u8).collect();
        let (left, right) = body.split_at(70_001);
        let pieces = [left.to_vec(), right.to_vec()].into_iter().map(Bytes::from).collect();
        store.put("juicefs_uuid", pieces).await.unwrap();
        let kept = mem.get("v/juicefs_uuid", None).await.unwrap().into_bytes();
        assert_eq!(kept.len(), body.len() + 287, "the overhead of RSA-2048");
        assert!(!kept.windows(16).any(|window| window == &body[..16]));
        assert!(store.get("juicefs_uuid", None).await.unwrap() == body[..]);
        for (range, shown) in [
            (0..10, 0..10),
            (69_990..70_010, 69_990..70_010),
            (99_999..200_000, 99_999..100_000),
            (100_000..100_001, 0..0),
            (u64::MAX - 1..u64::MAX, 0..0),
        ] {
            let got = store.get("juicefs_uuid", Some(range.clone())).await.unwrap();
            assert!(got == body[shown], "{range:?}");
        }
        store.put("empty", Payload::new()).await.unwrap();
        assert_eq!(store.get("empty", None).await.unwrap().len(), 0);
        assert_eq!(store.head("empty").await.unwrap().unwrap().size, 287);
        assert_eq!(store.get("missing", None).await.unwrap_err().kind(), FaultKind::NotFound);
    }

    #[tokio::test]
    async fn a_fault_names_the_object_and_no_secret() {
        let mem = Arc::new(MemStore::new());
        let store = Encrypted::new(mem.clone(), encryption());
        mem.put("plain", b"not sealed at all".to_vec().into()).await.unwrap();
        let fault = store.get("plain", None).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Corrupt);
        let text = format!("{fault} {:?} {:?}", store.encryption, StackOptions::default());
        assert!(text.contains("key=plain") && !text.contains("MII"), "{text}");
    }

    #[tokio::test]
    async fn a_body_takes_the_memory_of_one_copy_each_way() {
        let store = Encrypted::new(Arc::new(MemStore::new()), encryption());
        let body = Bytes::from(vec![7; 4 << 20]);
        let envelope = store.encryption.envelope.clone();
        let sealed = envelope.seal(&body.clone().into(), &store.encryption.pool).unwrap();
        assert_eq!(store.encryption.pool.budget().used(), sealed.len() as u64);
        let opened = envelope.open(&sealed.clone().into(), &store.encryption.pool).unwrap();
        assert_eq!(store.encryption.pool.budget().used(), (sealed.len() + opened.len()) as u64);
        assert!(opened == body);
    }
}
