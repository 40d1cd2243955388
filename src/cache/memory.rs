//! Whole blocks in memory, bounded by their bytes.
//!
//! Blocks come from reading ahead, from the store, and from this client's own writes; a reader gets a slice of the
//! block where it lies. The oldest of a few random entries goes first, which is as good as exact order here and keeps
//! a hit to one short lock. Blocks that nobody touched for a while are dropped, so that a mount at rest is small.

use super::BlockKey;
use super::sampled::Sampled;
use crate::util::rng;
use bytes::Bytes;
use parking_lot::Mutex;
use std::ops::Range;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Locks; two busy cores rarely meet on one of eight.
const SHARDS: usize = 8;
/// Entries looked at to find one to drop. Five come close to exact order even for a cache of few large blocks.
const SAMPLE: usize = 5;

/// Blocks by key.
pub struct MemoryCache {
    limit: u64,
    bytes: AtomicU64,
    epoch: Instant,
    shards: [Mutex<Sampled<Entry>>; SHARDS],
}

struct Entry {
    block: Bytes,
    /// Milliseconds since the cache's epoch.
    used_ms: u64,
}

impl MemoryCache {
    /// `limit` in bytes; 0 keeps nothing.
    pub fn new(limit: u64) -> MemoryCache {
        MemoryCache { limit, bytes: AtomicU64::new(0), epoch: Instant::now(), shards: Default::default() }
    }

    pub fn bytes(&self) -> u64 {
        self.bytes.load(Ordering::Relaxed)
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// How many blocks there are.
    pub fn blocks(&self) -> usize {
        self.shards.iter().map(|s| s.lock().len()).sum()
    }

    fn shard(&self, key: &BlockKey) -> &Mutex<Sampled<Entry>> {
        // Blocks of one slice are read one after the other, so neighbours go to different shards.
        &self.shards[(key.slice.0 as usize).wrapping_mul(31).wrapping_add(key.index as usize) % SHARDS]
    }

    fn now_ms(&self) -> u64 {
        self.epoch.elapsed().as_millis() as u64
    }

    /// The range of a block, sharing its memory.
    pub fn get(&self, key: &BlockKey, range: Range<u32>) -> Option<Bytes> {
        let now = self.now_ms();
        let mut shard = self.shard(key).lock();
        let entry = shard.get_mut(key)?;
        entry.used_ms = now;
        Some(entry.block.slice(range.start as usize..range.end as usize))
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        self.shard(key).lock().get(key).is_some()
    }

    /// Keeps `block`, which must be whole.
    pub fn insert(&self, key: BlockKey, block: Bytes) {
        debug_assert_eq!(block.len(), key.size as usize, "a cached block is whole");
        if block.len() as u64 > self.limit || block.is_empty() {
            return;
        }
        let added = block.len() as u64;
        let entry = Entry { block, used_ms: self.now_ms() };
        let replaced = self.shard(&key).lock().insert(key, entry);
        self.bytes.fetch_add(added, Ordering::Relaxed);
        if let Some(old) = replaced {
            self.bytes.fetch_sub(old.block.len() as u64, Ordering::Relaxed);
        }
        while self.bytes() > self.limit && self.evict_one(&key) {}
    }

    /// Drops the least recently used of a few random blocks, but not `spare`. False when there was none.
    fn evict_one(&self, spare: &BlockKey) -> bool {
        let mut victim: Option<(u64, BlockKey)> = None;
        let start: usize = rng::random_range(0..SHARDS);
        let mut seen = 0;
        // With few blocks some shards are empty: look at all of them until enough candidates were seen.
        for i in 0..SHARDS {
            let shard = self.shards[(start + i) % SHARDS].lock();
            for _ in 0..SAMPLE.div_ceil(2).min(shard.len()) {
                let Some((key, entry)) = shard.draw(rng::random()) else { break };
                if key != spare {
                    seen += 1;
                    if victim.is_none_or(|(used, _)| entry.used_ms < used) {
                        victim = Some((entry.used_ms, *key));
                    }
                }
            }
            if seen >= SAMPLE {
                break;
            }
        }
        match victim {
            Some((_, key)) => {
                self.remove(&key);
                true
            }
            // Bad luck with the draws is possible while others change the shards; the next insert tries again.
            None => false,
        }
    }

    pub fn remove(&self, key: &BlockKey) -> bool {
        let removed = self.shard(key).lock().remove(key);
        if let Some(entry) = &removed {
            self.bytes.fetch_sub(entry.block.len() as u64, Ordering::Relaxed);
        }
        removed.is_some()
    }

    /// Drops what nobody used for `idle`.
    pub fn drop_idle(&self, idle: Duration) {
        let Some(limit) = self.now_ms().checked_sub(idle.as_millis() as u64) else { return };
        for shard in &self.shards {
            let old: Vec<BlockKey> = {
                let shard = shard.lock();
                shard.iter().filter(|(_, e)| e.used_ms <= limit).map(|(k, _)| *k).collect()
            };
            for key in old {
                self.remove(&key);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;

    fn key(id: u64, size: u32) -> BlockKey {
        BlockKey { slice: SliceId(id), index: 0, size }
    }

    #[test]
    fn a_hit_shares_the_memory_of_the_block() {
        let cache = MemoryCache::new(1000);
        let block = Bytes::from(vec![1; 100]);
        cache.insert(key(1, 100), block.clone());
        let hit = cache.get(&key(1, 100), 10..20).unwrap();
        assert_eq!(hit.as_ptr(), block[10..].as_ptr());
        assert_eq!(cache.get(&key(2, 100), 0..1), None);
        assert!(cache.remove(&key(1, 100)));
        assert_eq!((cache.bytes(), cache.blocks()), (0, 0));
    }

    #[test]
    fn the_bound_holds_and_what_is_used_stays() {
        let cache = MemoryCache::new(100 * 50);
        for id in 0..1000 {
            cache.insert(key(id, 100), Bytes::from(vec![0; 100]));
            if id % 10 == 0 {
                std::thread::sleep(Duration::from_millis(1));
            }
            assert!(cache.bytes() <= cache.limit());
            if cache.contains(&key(0, 100)) {
                cache.get(&key(0, 100), 0..100);
            }
        }
        assert_eq!(cache.bytes(), cache.blocks() as u64 * 100);
        assert!(cache.contains(&key(999, 100)));
        assert!(cache.contains(&key(0, 100)), "in use all the time");
        cache.insert(key(5000, 6000), Bytes::from(vec![0; 6000]));
        assert!(!cache.contains(&key(5000, 6000)), "larger than the whole cache");
        cache.drop_idle(Duration::ZERO);
        assert_eq!(cache.bytes(), 0);
    }
}
