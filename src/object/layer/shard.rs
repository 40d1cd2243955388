//! One volume over several buckets (`spec/data.md` 3.4): an object lies in the bucket that FNV-1a-32 of its full key,
//! volume name included, says. Listings are merged.

use crate::base::Fault;
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use std::ops::Range;

/// Several stores that look like one.
pub struct Shard {
    shards: Vec<SharedStore>,
}

impl Shard {
    /// `shards` in the order of their numbers; at least one.
    pub fn new(shards: Vec<SharedStore>) -> Shard {
        assert!(!shards.is_empty(), "a sharded store has at least one bucket");
        Shard { shards }
    }

    fn of(&self, key: &str) -> &SharedStore {
        &self.shards[fnv1a(key.as_bytes()) as usize % self.shards.len()]
    }
}

/// FNV-1a, 32 bits.
fn fnv1a(bytes: &[u8]) -> u32 {
    bytes.iter().fold(0x811c_9dc5, |hash, &b| (hash ^ u32::from(b)).wrapping_mul(0x0100_0193))
}

#[async_trait]
impl ObjectStore for Shard {
    fn name(&self) -> &str {
        self.shards[0].name()
    }

    fn capabilities(&self) -> Capabilities {
        self.shards[0].capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        self.of(key).get(key, range).await
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        self.of(key).put_as(key, body, class).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.of(key).delete(key).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        self.of(key).head(key).await
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        // The first `limit` of all are among the first `limit` of each.
        let pages = self.shards.iter().map(|s| s.list(prefix, after, limit));
        let mut all = futures::future::try_join_all(pages).await?.concat();
        all.sort_unstable_by(|a, b| a.key.cmp(&b.key));
        all.truncate(limit);
        Ok(all)
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        for shard in &self.shards {
            shard.create_bucket().await?;
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::mem::MemStore;
    use std::sync::Arc;

    /// `spec/data.md` 20.3.
    #[test]
    fn the_hash_is_the_stored_one() {
        assert_eq!(fnv1a(b"vshard/chunks/0/0/1_0_4194304"), 0xf9e3_9b25);
        assert_eq!(fnv1a(b"vshard/chunks/0/8/8197_1_1048593"), 0x6b0a_5707);
        assert_eq!(fnv1a(b"vshard/juicefs_uuid"), 0xd55d_205b);
    }

    #[tokio::test]
    async fn objects_spread_and_listings_merge() {
        let parts: Vec<Arc<MemStore>> = (0..4).map(|_| Arc::new(MemStore::new())).collect();
        let store = Shard::new(parts.iter().map(|p| p.clone() as SharedStore).collect());
        let keys: Vec<String> = (0..50).map(|i| format!("k{i:02}")).collect();
        for key in &keys {
            store.put(key, vec![1].into()).await.unwrap();
        }
        let mut seen = Vec::<String>::new();
        loop {
            let after = seen.last().cloned().unwrap_or_default();
            let page = store.list("k", &after, 7).await.unwrap();
            let full = page.len() == 7;
            seen.extend(page.into_iter().map(|l| l.key));
            if !full {
                break;
            }
        }
        assert_eq!(seen, keys);
        for part in &parts {
            assert!(!part.list("", "", 99).await.unwrap().is_empty(), "every bucket got something");
        }
    }
}
