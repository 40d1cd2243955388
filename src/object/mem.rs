//! The store in the memory of this process: `--storage mem`, and the store under most tests.

use super::{Capabilities, Listed, ObjectMeta, ObjectStore};
use crate::base::Fault;
use crate::buf::Payload;
use async_trait::async_trait;
use parking_lot::RwLock;
use std::collections::BTreeMap;
use std::ops::{Bound, Range};
use std::time::SystemTime;

/// Objects in a sorted map.
#[derive(Default)]
pub struct MemStore {
    objects: RwLock<BTreeMap<String, (Payload, SystemTime)>>,
    /// The classes that objects were put with, which change nothing here.
    classes: RwLock<BTreeMap<String, String>>,
}

impl MemStore {
    pub fn new() -> MemStore {
        MemStore::default()
    }

    /// The storage class that an object was put with.
    #[cfg(test)]
    pub fn class_of(&self, key: &str) -> Option<String> {
        self.classes.read().get(key).cloned()
    }
}

/// The part of an object of `size` bytes that `range` asks for.
pub(super) fn clamp(range: &Range<u64>, size: u64) -> Range<u64> {
    let end = range.end.min(size);
    range.start.min(end)..end
}

#[async_trait]
impl ObjectStore for MemStore {
    fn name(&self) -> &str {
        "mem://"
    }

    fn capabilities(&self) -> Capabilities {
        // What is tested over it is meant for stores that are far away.
        Capabilities { ranges: true, local_device: None }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        let objects = self.objects.read();
        let (body, _) = objects.get(key).ok_or_else(|| Fault::not_found("get object").with("key", key))?;
        Ok(match range {
            None => body.clone(),
            Some(range) => {
                let part = clamp(&range, body.len() as u64);
                body.slice(part.start as usize..part.end as usize)
            }
        })
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        // The caller's buffers are counted against the budget of data in flight, so the store keeps a copy.
        let mut own = vec![0; body.len()];
        body.copy_to(&mut own);
        let mut objects = self.objects.write();
        match class {
            Some(class) => drop(self.classes.write().insert(key.to_owned(), class.to_owned())),
            None => drop(self.classes.write().remove(key)),
        }
        objects.insert(key.to_owned(), (own.into(), SystemTime::now()));
        Ok(())
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.objects.write().remove(key);
        Ok(())
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        let objects = self.objects.read();
        Ok(objects.get(key).map(|(body, mtime)| ObjectMeta { size: body.len() as u64, mtime: *mtime }))
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        let from = if after >= prefix { Bound::Excluded(after) } else { Bound::Included(prefix) };
        let objects = self.objects.read();
        Ok(objects
            .range::<str, _>((from, Bound::Unbounded))
            .take_while(|(key, _)| key.starts_with(prefix))
            .take(limit)
            .map(|(key, (body, mtime))| Listed { key: key.clone(), size: body.len() as u64, mtime: *mtime })
            .collect())
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn pages_are_sorted_and_continue() {
        let store = MemStore::new();
        for key in ["b/2", "a/1", "b/1", "b/3", "c/1"] {
            store.put(key, vec![1].into()).await.unwrap();
        }
        let keys = async |after: &str, limit| {
            store.list("b/", after, limit).await.unwrap().into_iter().map(|l| l.key).collect::<Vec<_>>()
        };
        assert_eq!(keys("", 2).await, ["b/1", "b/2"]);
        assert_eq!(keys("b/2", 2).await, ["b/3"]);
        assert_eq!(keys("a", 9).await, ["b/1", "b/2", "b/3"]);
    }

    #[tokio::test]
    async fn a_range_past_the_end_gives_what_there_is() {
        let store = MemStore::new();
        store.put("k", b"hello".to_vec().into()).await.unwrap();
        assert!(store.get("k", Some(3..9)).await.unwrap() == b"lo"[..]);
        assert!(store.get("k", Some(7..9)).await.unwrap().is_empty());
        assert_eq!(store.get("x", None).await.unwrap_err().kind(), crate::base::FaultKind::NotFound);
        super::super::probe(&store, None).await.unwrap();
        assert!(store.list("", "", 9).await.unwrap().iter().all(|l| l.key == "k"));
    }
}
