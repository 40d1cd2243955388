//! Objects in a store: the seam [`ObjectStore`], the stores behind it, and the layers around them.
//!
//! A store keeps whole values under keys. It knows nothing of blocks, slices or files. Bodies are [`Payload`]s, so a
//! retried put costs no copy. Answers are faults with a kind that callers branch on: `NotFound` and `Denied` are
//! final, `Unavailable`, `Throttled`, `Timeout` and `Integrity` may be tried again.
//!
//! - [`file`]: a directory, with I/O of our own. [`mem`]: this process. [`service`]: everything OpenDAL serves,
//!   opened from a [`Place`].
//! - [`layer`]: decorators, each one subject; [`stack`] joins them in the one right order.
//! - [`probe`]: the write-and-read-back test that `format` and `mount --check-storage` make.
//!
//! Every object of an encrypted volume lies in an [`envelope`], which a layer puts on and takes off. An envelope cannot
//! be read in part, so the store of such a volume reports `ranges: false`; nothing else above has to know.

pub mod envelope;
pub mod file;
pub mod layer;
pub mod mem;
pub mod place;
pub mod service;
mod sigv4;
pub mod stack;

pub use envelope::Envelope;
pub use layer::encrypt::Encryption;
pub use layer::metrics::ObjectMetrics;
pub use place::Place;
pub use service::open;
pub use stack::{Stack, StackOptions, stack};

use crate::base::{Fault, FaultKind};
use crate::buf::Payload;
use async_trait::async_trait;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, Instant, SystemTime};

/// What a store can do beyond the plain methods.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Capabilities {
    /// A range read costs what the range costs, not the whole object.
    pub ranges: bool,
    /// The device (`st_dev`) of a store that is a directory on a disk of this machine: the system's page cache keeps
    /// what was read of it, and loading more than was asked for gains little. None for any other store.
    pub local_device: Option<u64>,
}

impl Capabilities {
    pub fn is_local(&self) -> bool {
        self.local_device.is_some()
    }
}

/// What a store says about an object without its bytes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ObjectMeta {
    pub size: u64,
    pub mtime: SystemTime,
}

/// One line of a listing.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Listed {
    pub key: String,
    pub size: u64,
    pub mtime: SystemTime,
}

/// Whole values under keys.
#[async_trait]
pub trait ObjectStore: Send + Sync + 'static {
    /// Where the objects are, for logs. Never holds a secret.
    fn name(&self) -> &str;

    fn capabilities(&self) -> Capabilities;

    /// The object, or the part of `range` that exists. A missing object is a `NotFound` fault.
    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault>;

    /// Stores `body` under `key`, replacing what was there. Nobody sees a part of it.
    async fn put(&self, key: &str, body: Payload) -> Result<(), Fault> {
        self.put_as(key, body, None).await
    }

    /// The same with a storage class, which may be empty; without one it is what the store was opened with. Stores that
    /// know of no classes ignore it.
    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault>;

    /// Afterwards there is no such object; that there was none is success.
    async fn delete(&self, key: &str) -> Result<(), Fault>;

    /// `None` when there is no such object.
    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault>;

    /// Up to `limit` objects whose keys begin with `prefix` and sort after `after`, in the order of keys. Fewer than
    /// `limit` means that there are no more.
    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault>;

    /// Makes the bucket or directory; that it exists is success.
    async fn create_bucket(&self) -> Result<(), Fault>;
}

/// A store that may be shared.
pub type SharedStore = Arc<dyn ObjectStore>;

/// Sizes and waits of [`probe`], which are those of `spec/data.md` 3.5.
const PROBE_BYTES: usize = 100;
const PROBE_WAITS: [Duration; 3] = [Duration::from_secs(1), Duration::from_secs(4), Duration::from_secs(7)];

/// Writes `testing/<10 random>`, reads it back, compares and deletes it. When the put fails for another reason than
/// a lack of rights, the bucket is made and the put repeated. A failure that may pass is tried again after a while,
/// but not after `deadline`.
pub async fn probe(store: &dyn ObjectStore, deadline: Option<Instant>) -> Result<(), Fault> {
    let mut waits = PROBE_WAITS.into_iter();
    loop {
        let fault = match probe_once(store).await {
            Ok(()) => return Ok(()),
            Err(fault) => fault,
        };
        match waits.next() {
            Some(wait)
                if fault.retry() != crate::base::Retry::Never
                    && deadline.is_none_or(|deadline| Instant::now() + wait < deadline) =>
            {
                tokio::time::sleep(wait).await
            }
            _ => return Err(fault.with("store", store.name())),
        }
    }
}

async fn probe_once(store: &dyn ObjectStore) -> Result<(), Fault> {
    let key: String = "testing/"
        .chars()
        .chain((0..10).map(|_| char::from(rand::Rng::sample(&mut rand::rng(), rand::distr::Alphanumeric))))
        .collect();
    let body: [u8; PROBE_BYTES] = rand::random();
    let put = || store.put(&key, Payload::from(body.to_vec()));
    if let Err(fault) = put().await {
        if fault.kind() == FaultKind::Denied {
            return Err(fault);
        }
        // The reason for the first failure says more than that of a failed creation.
        store.create_bucket().await.map_err(|_| fault)?;
        put().await?;
    }
    let read = store.get(&key, None).await?;
    if read != body[..] {
        return Err(Fault::integrity("read back a test object").with("key", &key).with("length", read.len()));
    }
    store.delete(&key).await?;
    // A directory store keeps the empty directory; its own name for it ends in `/`.
    store.delete("testing/").await
}
