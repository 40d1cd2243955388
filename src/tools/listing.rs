//! The blocks in a store, listed in several ranges of keys at once.
//!
//! A listing is one request after the other, so a large store takes long; ranges that have nothing to do with each
//! other can be listed side by side. Where the ranges begin only decides how evenly the work is spread: together they
//! are always the whole of `chunks/`, and each key lies in one of them.

use crate::base::Fault;
use crate::object::{Listed, SharedStore};
use futures::stream::{self, BoxStream, StreamExt};

const PREFIX: &str = "chunks/";
/// What stores give at most at a time.
const PAGE_OBJECTS: usize = 1000;

/// Where the ranges begin, in order: by the digits that the first levels of the names begin with (`spec/data.md` 3).
fn beginnings(hash_prefix: bool) -> Vec<String> {
    let mut begin = vec![PREFIX.to_owned()];
    if hash_prefix {
        begin.extend("123456789ABCDEF".chars().map(|digit| format!("{PREFIX}{digit}")));
    } else {
        begin.extend((1..=9).map(|digit| format!("{PREFIX}0/{digit}")));
        begin.extend((1..=9).map(|digit| format!("{PREFIX}{digit}")));
    }
    begin
}

/// Pages of everything below `chunks/`, in no order, `parallel` ranges at a time.
pub fn pages(
    store: &SharedStore,
    hash_prefix: bool,
    parallel: usize,
) -> BoxStream<'static, Result<Vec<Listed>, Fault>> {
    let begin = beginnings(hash_prefix);
    let ends: Vec<Option<String>> = begin.iter().skip(1).cloned().map(Some).chain([None]).collect();
    let ranges: Vec<_> = begin.into_iter().zip(ends).map(|(from, to)| range(store.clone(), from, to)).collect();
    stream::iter(ranges).flatten_unordered(parallel.max(1)).boxed()
}

fn range(store: SharedStore, from: String, to: Option<String>) -> BoxStream<'static, Result<Vec<Listed>, Fault>> {
    let begin = Some((store, from, to));
    stream::try_unfold(begin, |state| async move {
        let Some((store, after, to)) = state else { return Ok(None) };
        let mut page = store.list(PREFIX, &after, PAGE_OBJECTS).await?;
        let full = page.len() >= PAGE_OBJECTS;
        let last = page.last().map(|listed| listed.key.clone());
        if let Some(to) = &to {
            page.retain(|listed| listed.key < *to);
        }
        let next = match last {
            Some(last) if full && to.as_ref().is_none_or(|to| last < *to) => Some((store, last, to)),
            _ => None,
        };
        Ok::<_, Fault>(Some((page, next)))
    })
    .boxed()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;
    use crate::cache::BlockKey;
    use crate::object::mem::MemStore;
    use futures::TryStreamExt;
    use std::sync::Arc;

    #[tokio::test]
    async fn each_object_is_listed_once_whatever_the_names() {
        for hash_prefix in [false, true] {
            let store: SharedStore = Arc::new(MemStore::new());
            let mut names = Vec::new();
            for n in 1..2600u64 {
                let id = SliceId(n * 7919 % 23_000_000);
                names.push(BlockKey { slice: id, index: 0, size: 1 }.name(hash_prefix));
            }
            names.extend((1..1500).map(|id| BlockKey { slice: SliceId(id), index: 3, size: 2 }.name(hash_prefix)));
            for name in &names {
                store.put(name, vec![1].into()).await.unwrap();
            }
            store.put("meta/dump", vec![1].into()).await.unwrap();
            let pages: Vec<Vec<Listed>> = pages(&store, hash_prefix, 4).try_collect().await.unwrap();
            let mut listed: Vec<String> = pages.into_iter().flatten().map(|listed| listed.key).collect();
            listed.sort();
            names.sort();
            assert_eq!(listed, names);
        }
    }

    #[test]
    fn ranges_are_in_the_order_of_keys() {
        for hash_prefix in [false, true] {
            assert!(beginnings(hash_prefix).is_sorted());
        }
    }
}
