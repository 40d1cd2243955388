//! Blocks on this machine: whole blocks in memory, and on local disks in the format of the reference client.
//!
//! [`BlockCache::probe`] answers from memory and never waits, so a FUSE thread may call it; [`BlockCache::load`] reads
//! just the range from a disk. Everything here is a copy of something in the store: whatever goes wrong is a miss, is
//! logged once, and never fails a reader.

mod blockfile;
mod disk;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod index;
pub mod key;
pub mod memory;
mod queue;
mod ring;
mod sampled;

pub use blockfile::Verify;
pub use disk::{DiskMetrics, DiskOptions};
pub use index::Eviction;
pub use key::BlockKey;
pub use memory::MemoryCache;

use crate::base::Fault;
use crate::buf::{Payload, Pool};
use bytes::Bytes;
use disk::DiskCache;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two rounds of care: idle blocks in memory, free space and expiry on disk.
const TEND: Duration = Duration::from_secs(5);
/// Memory that takes over when no cache directory can be used (`spec/data.md` 12.5).
const FALLBACK_BYTES: u64 = 100 << 20;

/// What is cached where.
#[derive(Clone, Debug, Default)]
pub struct CacheOptions {
    /// Blocks in memory; 0 for none.
    pub memory_bytes: u64,
    /// Blocks in memory that nobody touched for this long are dropped. None when memory is the only cache.
    pub memory_idle: Option<Duration>,
    pub disk: Option<DiskOptions>,
}

/// What the cache did, for metrics.
#[derive(Default)]
pub struct CacheMetrics {
    pub memory_hits: AtomicU64,
    pub memory_hit_bytes: AtomicU64,
    pub disk_hits: AtomicU64,
    pub disk_hit_bytes: AtomicU64,
    pub misses: AtomicU64,
    pub miss_bytes: AtomicU64,
}

fn count(hits: &AtomicU64, bytes: &AtomicU64, range: &Range<u32>) {
    hits.fetch_add(1, Ordering::Relaxed);
    bytes.fetch_add(u64::from(range.end - range.start), Ordering::Relaxed);
}

/// All tiers as one.
pub struct BlockCache {
    memory: MemoryCache,
    disk: Option<DiskCache>,
    pub metrics: CacheMetrics,
    pub disk_metrics: Arc<DiskMetrics>,
}

impl BlockCache {
    /// Memory only, without any background work; 0 bytes keep nothing.
    pub fn in_memory(bytes: u64) -> Arc<BlockCache> {
        Arc::new(BlockCache {
            memory: MemoryCache::new(bytes),
            disk: None,
            metrics: CacheMetrics::default(),
            disk_metrics: Arc::default(),
        })
    }

    /// Opens the tiers and starts their background work; must be called inside the runtime that it is to run on.
    pub fn open(options: &CacheOptions, pool: &Arc<Pool>) -> Arc<BlockCache> {
        let disk_metrics = Arc::<DiskMetrics>::default();
        let wanted = options.disk.as_ref().filter(|d| d.capacity > 0);
        let disk = wanted.and_then(|options| DiskCache::open(options, pool, &disk_metrics));
        let mut memory_bytes = options.memory_bytes;
        if wanted.is_some() && disk.is_none() {
            tracing::warn!("no cache directory can be used; caching up to 100 MiB in memory");
            // But never all of what data in flight may use.
            memory_bytes = memory_bytes.max(FALLBACK_BYTES.min(pool.budget().limit() / 2));
        }
        let cache = Arc::new(BlockCache {
            memory: MemoryCache::new(memory_bytes),
            disk,
            metrics: CacheMetrics::default(),
            disk_metrics,
        });
        let (watched, idle) = (Arc::downgrade(&cache), options.memory_idle);
        tokio::spawn(async move {
            loop {
                tokio::time::sleep(TEND).await;
                let Some(cache) = watched.upgrade() else { return };
                if let Some(idle) = idle {
                    cache.memory.drop_idle(idle);
                }
                if cache.disk.is_some() {
                    let work = move || cache.disk.iter().for_each(DiskCache::tend);
                    let _ended = tokio::task::spawn_blocking(work).await;
                }
            }
        });
        cache
    }

    pub fn memory(&self) -> &MemoryCache {
        &self.memory
    }

    /// Whether anything is cached at all.
    pub fn enabled(&self) -> bool {
        self.memory.limit() > 0 || self.disk.is_some()
    }

    /// The range of a block if it is in memory. Never waits.
    pub fn probe(&self, key: &BlockKey, range: Range<u32>) -> Option<Payload> {
        let hit = self.memory.get(key, range.clone())?;
        count(&self.metrics.memory_hits, &self.metrics.memory_hit_bytes, &range);
        Some(hit.into())
    }

    /// The range of a block if it is on a local disk. Waits only when the bytes are not in the page cache.
    pub async fn load(&self, key: &BlockKey, range: Range<u32>) -> Option<Payload> {
        let hit = match &self.disk {
            Some(disk) => disk.load(key, range.clone()).await,
            None => None,
        };
        match &hit {
            Some(_) => count(&self.metrics.disk_hits, &self.metrics.disk_hit_bytes, &range),
            None => count(&self.metrics.misses, &self.metrics.miss_bytes, &range),
        }
        hit.map(Payload::from)
    }

    /// Keeps a whole block in memory, and on disk too if `to_disk` and the writer has room. Returns at once.
    pub fn insert(&self, key: BlockKey, block: Bytes, to_disk: bool) {
        if let Some(disk) = self.disk.as_ref().filter(|_| to_disk) {
            disk.offer(key, block.clone());
        }
        self.memory.insert(key, block);
    }

    /// Writes a whole block to the disk, or keeps it in memory when there is none, and returns when it is there.
    pub async fn fill(&self, key: BlockKey, block: Bytes) -> Result<(), Fault> {
        match &self.disk {
            Some(disk) => disk.fill(key, block).await,
            None => {
                self.memory.insert(key, block);
                Ok(())
            }
        }
    }

    /// Whether a block is on a disk, or in memory.
    pub fn contains(&self, key: &BlockKey) -> bool {
        self.memory.contains(key) || self.is_on_disk(key)
    }

    pub fn is_on_disk(&self, key: &BlockKey) -> bool {
        self.disk.as_ref().is_some_and(|disk| disk.contains(key))
    }

    pub async fn remove(&self, key: &BlockKey) {
        self.memory.remove(key);
        if let Some(disk) = &self.disk {
            disk.remove(key).await;
        }
    }

    /// Writes to the disks what waits for that, and returns when it is there.
    pub async fn flush(&self) {
        if let Some(disk) = &self.disk {
            disk.flush().await;
        }
    }

    /// Blocks and bytes on disk.
    pub fn disk_usage(&self) -> (u64, u64) {
        self.disk.as_ref().map_or((0, 0), DiskCache::usage)
    }
}
