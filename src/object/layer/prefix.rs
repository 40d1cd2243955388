//! All keys of a volume lie under `<Name>/` in the bucket (`spec/data.md` section 3). Above this layer nobody sees it.

use crate::base::Fault;
use crate::buf::Payload;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore};
use async_trait::async_trait;
use std::ops::Range;

/// The part of a store whose keys begin with a prefix.
pub struct Prefix {
    inner: SharedStore,
    prefix: String,
    name: String,
}

impl Prefix {
    /// `prefix` includes its final `/`.
    pub fn new(inner: SharedStore, prefix: impl Into<String>) -> Prefix {
        let prefix = prefix.into();
        let name = format!("{}{prefix}", inner.name());
        Prefix { inner, prefix, name }
    }

    fn key(&self, key: &str) -> String {
        [&self.prefix, key].concat()
    }
}

#[async_trait]
impl ObjectStore for Prefix {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        self.inner.get(&self.key(key), range).await
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        self.inner.put_as(&self.key(key), body, class).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.inner.delete(&self.key(key)).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        self.inner.head(&self.key(key)).await
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        // An empty `after` must stay the start of the listing, not become a key.
        let after = if after.is_empty() { String::new() } else { self.key(after) };
        let mut page = self.inner.list(&self.key(prefix), &after, limit).await?;
        for listed in &mut page {
            listed.key.drain(..self.prefix.len());
        }
        Ok(page)
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        self.inner.create_bucket().await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::object::mem::MemStore;
    use std::sync::Arc;

    #[tokio::test]
    async fn keys_gain_and_lose_the_prefix() {
        let mem = Arc::new(MemStore::new());
        let volume = Prefix::new(mem.clone(), "vol/");
        for key in ["a", "b"] {
            volume.put(key, vec![1].into()).await.unwrap();
        }
        mem.put("other/a", vec![1].into()).await.unwrap();
        assert!(mem.head("vol/a").await.unwrap().is_some());
        let keys = |page: Vec<Listed>| page.into_iter().map(|l| l.key).collect::<Vec<_>>();
        assert_eq!(keys(volume.list("", "", 9).await.unwrap()), ["a", "b"]);
        assert_eq!(keys(volume.list("", "a", 9).await.unwrap()), ["b"]);
        assert_eq!(volume.name(), "mem://vol/");
    }
}
