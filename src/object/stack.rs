//! The order of the layers around a store, in one place.
//!
//! ```text
//! prefix ─► encrypt ─► retry ─► limit ─► deadline ─► metrics ─► shard ─► store …
//! ```
//!
//! Read from the inside: *shard* needs the full key, volume name included, so it stands below *prefix*. *Metrics* see
//! every single request, so they stand below *retry*. The *deadline* bounds one request and not the wait for a slot,
//! so it stands below *limit*. A slot is not held while a retry waits, so *retry* stands above *limit*. *Encrypt*, which
//! only encrypted volumes have, works once for all tries, so it stands above *retry*; what is checked below it (the
//! checksum of an object) is then checked, and tried again, before anything is opened.

use super::layer::deadline::Deadline;
use super::layer::encrypt::{Encrypted, Encryption};
use super::layer::limit::{Limited, Limits};
use super::layer::metrics::{Metered, ObjectMetrics};
use super::layer::prefix::Prefix;
use super::layer::retry::Retry;
use super::layer::shard::Shard;
use super::{ObjectStore, SharedStore};
use std::sync::Arc;
use std::time::Duration;

/// What the layers need to know. The defaults are those of `spec/data.md` section 19.
#[derive(Clone, Debug)]
pub struct StackOptions {
    /// Put before every key, with its final `/`; the volume's name.
    pub prefix: String,
    /// How the objects of an encrypted volume are sealed.
    pub encryption: Option<Encryption>,
    pub max_downloads: usize,
    pub max_uploads: usize,
    pub max_deletes: usize,
    pub get_timeout: Duration,
    pub put_timeout: Duration,
    /// Tries after the first.
    pub retries: u32,
    /// Before try k the client waits k² of these.
    pub retry_unit: Duration,
    /// 10⁶ bit/s, 0 for no limit.
    pub upload_mbps: u64,
    pub download_mbps: u64,
}

impl Default for StackOptions {
    fn default() -> StackOptions {
        StackOptions {
            prefix: String::new(),
            encryption: None,
            max_downloads: 200,
            max_uploads: 20,
            max_deletes: 10,
            get_timeout: Duration::from_secs(60),
            put_timeout: Duration::from_secs(60),
            retries: 10,
            retry_unit: Duration::from_secs(1),
            upload_mbps: 0,
            download_mbps: 0,
        }
    }
}

/// A store with all its layers, and what can be read or set from outside.
#[derive(Clone)]
pub struct Stack {
    pub store: SharedStore,
    pub metrics: Arc<ObjectMetrics>,
    /// Bandwidth may change while mounted (the format record is read again at every heartbeat).
    pub limits: Arc<Limits>,
}

/// Puts the layers around `stores`: one for a plain volume, the buckets in order for a sharded one.
pub fn stack(mut stores: Vec<SharedStore>, options: &StackOptions) -> Stack {
    let metrics = Arc::new(ObjectMetrics::default());
    let limits = Limits::new(
        options.max_downloads,
        options.max_uploads,
        options.max_deletes,
        options.upload_mbps,
        options.download_mbps,
    );
    let base: SharedStore = match stores.len() {
        1 => stores.remove(0),
        _ => Arc::new(Shard::new(stores)),
    };
    let store = wrap(base, |s| Metered::new(s, metrics.clone()));
    let store = wrap(store, |s| Deadline::new(s, options.get_timeout, options.put_timeout));
    let store = wrap(store, |s| Limited::new(s, limits.clone()));
    let store = wrap(store, |s| Retry::new(s, options.retries, options.retry_unit));
    let store = match &options.encryption {
        Some(encryption) => wrap(store, |s| Encrypted::new(s, encryption.clone())),
        None => store,
    };
    let store = if options.prefix.is_empty() { store } else { wrap(store, |s| Prefix::new(s, options.prefix.clone())) };
    Stack { store, metrics, limits }
}

fn wrap<L: ObjectStore>(store: SharedStore, layer: impl FnOnce(SharedStore) -> L) -> SharedStore {
    Arc::new(layer(store))
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::layer::fault::{FaultPlan, FaultStore};
    use crate::object::mem::MemStore;

    #[tokio::test]
    async fn the_stack_counts_tries_and_hides_the_prefix() {
        let mem = Arc::new(MemStore::new());
        let plan = FaultPlan { before: 0.5, ..FaultPlan::default() };
        let faulty = Arc::new(FaultStore::new(mem.clone(), plan, 3));
        let options = StackOptions {
            prefix: "v/".into(),
            retries: 40,
            retry_unit: Duration::from_micros(10),
            ..StackOptions::default()
        };
        let Stack { store, metrics, .. } = stack(vec![faulty.clone()], &options);
        for i in 0..10 {
            store.put(&format!("{i}"), vec![0; 5].into()).await.unwrap();
        }
        assert!(mem.head("v/9").await.unwrap().is_some());
        let put = metrics.put.read();
        assert_eq!((put.requests - put.errors, put.bytes), (10, 50));
        assert_eq!(put.errors, faulty.injected());
    }

    #[tokio::test]
    async fn a_silent_store_ends_in_a_timeout() {
        let plan = FaultPlan { latency_max: Duration::from_secs(1 << 20), ..FaultPlan::default() };
        let silent = Arc::new(FaultStore::new(Arc::new(MemStore::new()), plan, 3));
        let options = StackOptions {
            retries: 2,
            retry_unit: Duration::from_millis(1),
            get_timeout: Duration::from_millis(10),
            ..StackOptions::default()
        };
        let fault = stack(vec![silent], &options).store.get("k", None).await.unwrap_err();
        assert_eq!(fault.kind(), crate::base::FaultKind::Timeout);
    }
}
