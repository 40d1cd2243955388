//! `ChunkStore`: slices as bytes. Reads go memory → local disk → object store; a block that is loaded whole is loaded
//! once for all who want it and stays in the cache.
//!
//! Small reads in the middle of an uncompressed block fetch just their range and let the whole block follow in the
//! background (`spec/data.md` 11.4): the reader waits for kilobytes, the next one finds the block. Whatever is not
//! waited for (prefetch, read-ahead) is bounded and dropped under pressure.

use super::codec::Compression;
use super::fetch::{self, Boarding, Flights};
use super::layout;
use super::writer::SliceWriter;
use crate::base::{Fault, Slice, SliceId};
use crate::buf::{Budget, Payload, Pool};
use crate::cache::{BlockCache, BlockKey};
use crate::object::SharedStore;
use bytes::Bytes;
use futures::StreamExt;
use futures::stream::FuturesUnordered;
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::runtime::Handle;
use tokio::sync::Semaphore;

/// Longest wait of a load for buffer memory. The budget is soft: after this a reader goes on anyway, since it cannot
/// know whether those who hold the memory wait for it.
const ROOM_WAIT_MAX: Duration = Duration::from_secs(1);
/// Full blocks on their way to a local directory beyond which writers wait. A directory takes blocks as fast as the
/// processor copies them, so more only means more memory to fault in: sequential writes of 512 MiB with fsync were
/// 1.4 times as fast with 48 MiB under way as with 300, at 0.6 of the CPU time (2 cores). A remote store is another
/// matter; what it takes is bounded by the buffer memory.
const LOCAL_UPLOADS_MAX: u64 = 8;
/// Codec work on less than this is done where it comes up; more goes to a thread of its own.
const CODEC_INLINE_BYTES: usize = 8 << 10;
/// Removals of one slice at a time; the store's own limit is below.
const REMOVE_MAX: usize = 16;
/// Bytes that a merge reads and writes at a time.
const MERGE_STEP_BYTES: u32 = 4 << 20;

/// How this client cuts, encodes and caches. The defaults are those of `spec/data.md` section 19.
#[derive(Clone, Debug)]
pub struct ChunkOptions {
    /// Bytes; a property of the volume.
    pub block_size: u32,
    pub compression: Compression,
    pub hash_prefix: bool,
    /// The storage classes of tiers other than the volume's own, by their numbers; tiers that are not here are as that.
    pub classes: BTreeMap<u8, String>,
    /// Background loads after range reads at a time; 0 for none.
    pub prefetch: usize,
    /// Blocks read ahead at a time.
    pub readahead_blocks_max: usize,
    /// Keep blocks that were read or written on disk. False where that is the disk on which the store keeps them as
    /// they are: the copy would be read no faster, and takes the room and the time to write it.
    pub copy_to_disk: bool,
    /// Keep only blocks smaller than the block size on disk.
    pub cache_partial_only: bool,
    /// Keep full blocks on disk after their upload too.
    pub cache_large_write: bool,
}

impl Default for ChunkOptions {
    fn default() -> ChunkOptions {
        ChunkOptions {
            block_size: 4 << 20,
            compression: Compression::None,
            hash_prefix: false,
            classes: BTreeMap::new(),
            prefetch: 1,
            readahead_blocks_max: 64,
            copy_to_disk: true,
            cache_partial_only: false,
            cache_large_write: false,
        }
    }
}

/// What moved through the store, for metrics.
#[derive(Default)]
pub struct ChunkMetrics {
    pub range_reads: AtomicU64,
    pub block_loads: AtomicU64,
    pub prefetches: AtomicU64,
    pub prefetch_drops: AtomicU64,
    pub readahead_drops: AtomicU64,
    pub blocks_uploaded: AtomicU64,
}

/// Which loaded blocks go to the disk cache.
#[derive(Clone, Copy)]
enum Fill {
    /// As `cache_partial_only` says.
    AsAsked,
    /// Prefetched blocks and warmed ones, whatever it says (`spec/data.md` 11.4).
    Always,
}

/// Slices as bytes. Cheap to clone.
#[derive(Clone)]
pub struct ChunkStore {
    inner: Arc<Inner>,
}

struct Inner {
    objects: SharedStore,
    cache: Arc<BlockCache>,
    pool: Arc<Pool>,
    options: ChunkOptions,
    flights: Arc<Flights>,
    prefetch_workers: Semaphore,
    /// Prefetches queued or running; a handful.
    prefetches: Mutex<Vec<BlockKey>>,
    readahead: Arc<Semaphore>,
    /// Bytes of full blocks under way to the store.
    uploading: Arc<Budget>,
    metrics: ChunkMetrics,
    /// Where background work runs; the caller may be a thread outside the runtime.
    runtime: Handle,
}

impl ChunkStore {
    /// Must be called inside the runtime that background work is to run on. `objects` is the whole stack, `pool` the
    /// one its local stores read into.
    pub fn new(objects: SharedStore, cache: Arc<BlockCache>, pool: Arc<Pool>, options: ChunkOptions) -> ChunkStore {
        let local = objects.capabilities().is_local();
        let uploading_max = if local { LOCAL_UPLOADS_MAX * u64::from(options.block_size) } else { u64::MAX };
        ChunkStore {
            inner: Arc::new(Inner {
                uploading: Budget::new(uploading_max),
                objects,
                cache,
                pool,
                flights: Arc::default(),
                prefetch_workers: Semaphore::new(options.prefetch),
                prefetches: Mutex::default(),
                readahead: Arc::new(Semaphore::new(options.readahead_blocks_max)),
                metrics: ChunkMetrics::default(),
                runtime: Handle::current(),
                options,
            }),
        }
    }

    pub fn options(&self) -> &ChunkOptions {
        &self.inner.options
    }

    /// The objects are files on a disk of this machine.
    pub fn is_local(&self) -> bool {
        self.inner.objects.capabilities().is_local()
    }

    pub fn block_size(&self) -> u32 {
        self.inner.options.block_size
    }

    /// The memory that data in flight and the memory cache share.
    pub fn budget(&self) -> &Arc<Budget> {
        self.inner.pool.budget()
    }

    pub fn cache(&self) -> &Arc<BlockCache> {
        &self.inner.cache
    }

    pub fn metrics(&self) -> &ChunkMetrics {
        &self.inner.metrics
    }

    /// Whether writers may take in more: there is buffer memory, and the store keeps up.
    pub fn takes_writes(&self) -> bool {
        self.budget().has_room() && self.inner.uploading.has_room()
    }

    /// Waits until [`ChunkStore::takes_writes`], at most for about `deadline`.
    pub async fn wait_to_write(&self, deadline: Duration) -> Result<(), Fault> {
        self.budget().wait_for_room(deadline).await?;
        self.inner.uploading.wait_for_room(deadline).await
    }

    pub(super) fn uploading(&self) -> &Arc<Budget> {
        &self.inner.uploading
    }

    pub fn pool(&self) -> &Arc<Pool> {
        &self.inner.pool
    }

    pub(super) fn runtime(&self) -> &Handle {
        &self.inner.runtime
    }

    /// `len` bytes from `off` of a slice of `size` bytes, if all of them are in memory. Never waits. A hole (id 0) is
    /// always there.
    pub fn probe(&self, slice: SliceId, size: u32, off: u32, len: u32) -> Option<Payload> {
        if slice.0 == 0 {
            return Some(Payload::zeros(len as usize));
        }
        if u64::from(off) + u64::from(len) > u64::from(size) {
            return None;
        }
        let mut out = Payload::new();
        for (key, part) in layout::split(slice, size, self.block_size(), off, len) {
            out.append(self.inner.cache.probe(&key, part)?);
        }
        Some(out)
    }

    /// `len` bytes from `off` of a slice of `size` bytes. Exactly that many, or a fault.
    pub async fn read(&self, slice: SliceId, size: u32, off: u32, len: u32) -> Result<Payload, Fault> {
        if slice.0 == 0 {
            return Ok(Payload::zeros(len as usize));
        }
        if u64::from(off) + u64::from(len) > u64::from(size) {
            return Err(Fault::corrupt("read slice")
                .with("slice", slice)
                .with("size", size)
                .with("off", off)
                .with("len", len));
        }
        let mut parts = layout::split(slice, size, self.block_size(), off, len);
        let out = match (parts.next(), parts.next()) {
            (None, _) => Payload::new(),
            (Some((key, part)), None) => self.read_block(key, part).await?,
            (Some(first), Some(second)) => {
                let all = [first, second].into_iter().chain(parts).map(|(key, part)| self.read_block(key, part));
                let mut out = Payload::new();
                for piece in futures::future::try_join_all(all).await? {
                    out.append(piece);
                }
                out
            }
        };
        debug_assert_eq!(out.len(), len as usize, "a read is never short");
        Ok(out)
    }

    async fn read_block(&self, key: BlockKey, part: Range<u32>) -> Result<Payload, Fault> {
        let inner = &self.inner;
        if let Some(hit) = inner.cache.probe(&key, part.clone()) {
            return Ok(hit);
        }
        if let Some(seat) = inner.flights.find(&key) {
            return Ok(cut(&fetch::arrive(seat).await?, part));
        }
        if let Some(hit) = inner.cache.load(&key, part.clone()).await {
            return Ok(hit);
        }
        let len = part.end - part.start;
        // The start of a block is mostly the start of reading it, so it is loaded whole.
        let small = !inner.cache.enabled() || (part.start > 0 && len <= inner.options.block_size / 4);
        if small && len < key.size && self.seekable() {
            match self.read_range(key, part.clone()).await {
                Ok(bytes) => {
                    self.prefetch(key);
                    return Ok(bytes);
                }
                Err(fault) => tracing::debug!(?key, "range read failed, loading the whole block: {fault}"),
            }
        }
        Ok(cut(&self.load_block(key).await?, part))
    }

    /// Whether a part of an object can be read by itself.
    fn seekable(&self) -> bool {
        self.inner.options.compression == Compression::None && self.inner.objects.capabilities().ranges
    }

    async fn read_range(&self, key: BlockKey, part: Range<u32>) -> Result<Payload, Fault> {
        let name = key.name(self.inner.options.hash_prefix);
        let range = u64::from(part.start)..u64::from(part.end);
        let bytes = self.inner.objects.get(&name, Some(range)).await?;
        self.inner.metrics.range_reads.fetch_add(1, Ordering::Relaxed);
        let wanted = (part.end - part.start) as usize;
        if bytes.len() != wanted {
            return Err(Fault::integrity("read block")
                .with("key", name)
                .with("wanted", wanted)
                .with("got", bytes.len()));
        }
        Ok(bytes)
    }

    /// The whole block, from the flight that is under way or a new one.
    async fn load_block(&self, key: BlockKey) -> Result<Bytes, Fault> {
        match self.inner.flights.board(key) {
            Boarding::Joined(seat) => fetch::arrive(seat).await,
            Boarding::Pilot(pilot, seat) => {
                // A flight may have landed since the caller looked into the cache.
                if let Some(hit) = self.inner.cache.probe(&key, 0..key.size) {
                    let block = hit.into_bytes();
                    pilot.land(Ok(block.clone()));
                    return Ok(block);
                }
                let store = self.clone();
                self.inner.runtime.spawn(async move {
                    // Readers wait for this, so lack of memory delays it but does not stop it.
                    let _full = store.budget().wait_for_room(ROOM_WAIT_MAX).await;
                    let landed = store.fetch(key, Fill::AsAsked).await;
                    pilot.land(landed);
                });
                fetch::arrive(seat).await
            }
        }
    }

    /// Gets, decodes and caches a block.
    async fn fetch(&self, key: BlockKey, fill: Fill) -> Result<Bytes, Fault> {
        let inner = &self.inner;
        let name = key.name(inner.options.hash_prefix);
        let body = inner.objects.get(&name, None).await?;
        inner.metrics.block_loads.fetch_add(1, Ordering::Relaxed);
        let block = self.decode(key, body).await.map_err(|f| f.with("key", &name))?;
        let to_disk = match fill {
            Fill::Always => true,
            Fill::AsAsked => {
                inner.options.copy_to_disk && (key.size < inner.options.block_size || !inner.options.cache_partial_only)
            }
        };
        inner.cache.insert(key, block.clone(), to_disk);
        Ok(block)
    }

    async fn decode(&self, key: BlockKey, body: Payload) -> Result<Bytes, Fault> {
        let size = key.size as usize;
        let codec = self.inner.options.compression;
        if codec == Compression::None {
            if body.len() < size {
                return Err(Fault::integrity("read block").with("size", size).with("got", body.len()));
            }
            // The bytes past the name's length are ignored, as the format has it.
            let body = body.slice(..size);
            return Ok(match body.pieces() {
                0 | 1 => body.into_bytes(),
                _ => {
                    let mut block = self.inner.pool.take(size);
                    crate::buf::copied(size);
                    for piece in body.iter() {
                        block.append(piece);
                    }
                    block.freeze()
                }
            });
        }
        let mut block = self.inner.pool.take(size);
        let work = move || {
            let body = body.into_bytes();
            block.resize(size);
            codec.decode(&body, block.as_mut_slice()).map(|()| block.freeze())
        };
        compute(size, "decompress block", work).await
    }

    /// Loads the whole block in the background if there is room; what is too much is dropped. Only a load that has
    /// begun is a flight: a reader must not wait for the turn of a prefetch.
    fn prefetch(&self, key: BlockKey) {
        let inner = &self.inner;
        // Random readers of a local directory would wait for the disk that copies whole blocks they may never ask for.
        let in_vain = inner.objects.capabilities().is_local() || !inner.cache.enabled();
        if in_vain || inner.options.prefetch == 0 || inner.flights.find(&key).is_some() {
            return;
        }
        {
            let mut queued = inner.prefetches.lock();
            if queued.contains(&key) {
                return;
            }
            // Four loads for each worker, at least ten (`spec/data.md` 11.4).
            if queued.len() >= (4 * inner.options.prefetch).max(10) {
                inner.metrics.prefetch_drops.fetch_add(1, Ordering::Relaxed);
                return;
            }
            queued.push(key);
        }
        let store = self.clone();
        inner.runtime.spawn(async move {
            let inner = &store.inner;
            {
                let _turn = inner.prefetch_workers.acquire().await.expect("the workers are never closed");
                if !inner.cache.memory().contains(&key)
                    && let Boarding::Pilot(pilot, _) = inner.flights.board(key)
                {
                    inner.metrics.prefetches.fetch_add(1, Ordering::Relaxed);
                    let landed = store.fetch(key, Fill::Always).await;
                    if let Err(fault) = &landed {
                        tracing::debug!(?key, "prefetch failed: {fault}");
                    }
                    pilot.land(landed);
                }
            }
            inner.prefetches.lock().retain(|queued| *queued != key);
        });
    }

    /// Starts loading the blocks of a range into memory, for a reader that will come soon. Returns at once; loads
    /// beyond the limit or without memory for them are dropped. The number of blocks not in memory afterwards that are
    /// not on their way either is returned, so the caller knows whether to ask again.
    pub fn warm(&self, slice: SliceId, size: u32, off: u32, len: u32) -> usize {
        let inner = &self.inner;
        if slice.0 == 0 || !inner.cache.enabled() {
            return 0;
        }
        let len = len.min(size.saturating_sub(off));
        let mut dropped = 0;
        for (key, _) in layout::split(slice, size, self.block_size(), off, len) {
            if inner.cache.memory().contains(&key) {
                continue;
            }
            let permit = if self.budget().has_room() { inner.readahead.clone().try_acquire_owned().ok() } else { None };
            let Some(permit) = permit else {
                if inner.flights.find(&key).is_none() {
                    inner.metrics.readahead_drops.fetch_add(1, Ordering::Relaxed);
                    dropped += 1;
                }
                continue;
            };
            let Boarding::Pilot(pilot, _) = inner.flights.board(key) else { continue };
            let store = self.clone();
            inner.runtime.spawn(async move {
                let _permit = permit;
                pilot.land(store.bring_to_memory(key).await);
            });
        }
        dropped
    }

    async fn bring_to_memory(&self, key: BlockKey) -> Result<Bytes, Fault> {
        if let Some(hit) = self.inner.cache.load(&key, 0..key.size).await {
            let block = hit.into_bytes();
            self.inner.cache.insert(key, block.clone(), false);
            return Ok(block);
        }
        self.fetch(key, Fill::AsAsked).await
    }

    /// A slice to be written, for a file of this tier. Its id may come later, see [`SliceWriter::set_id`].
    pub fn writer(&self, id: Option<SliceId>, tier: u8) -> SliceWriter {
        SliceWriter::new(self.clone(), id, tier)
    }

    /// Writes what `pieces` show as the new slice `new_id`: pieces in order of position, without gaps (as
    /// `base::slice::resolve` gives them), holes inside become zeros. Returns the size of the new slice, which begins
    /// where the first piece does. It is stored as those of the tier are.
    pub async fn merge(&self, pieces: &[Slice], new_id: SliceId, tier: u8) -> Result<u32, Fault> {
        let Some(first) = pieces.first() else { return Ok(0) };
        let mut writer = self.writer(Some(new_id), tier);
        for piece in pieces {
            let mut done = 0;
            while done < piece.len {
                let step = (piece.len - done).min(MERGE_STEP_BYTES);
                let _full = self.budget().wait_for_room(ROOM_WAIT_MAX).await;
                let bytes = self.read(piece.id, piece.size, piece.off.wrapping_add(done), step).await?;
                let mut at = piece.pos - first.pos + done;
                for part in bytes.iter() {
                    writer.write_at(at, part)?;
                    at += part.len() as u32;
                }
                done += step;
            }
        }
        writer.finish().await
    }

    /// Removes the objects of a slice, and its blocks from the cache. All blocks are tried; the last fault is returned.
    pub async fn remove(&self, slice: SliceId, size: u32) -> Result<(), Fault> {
        if slice.0 == 0 {
            return Ok(());
        }
        let keys: Vec<BlockKey> = layout::blocks(slice, size, self.block_size()).collect();
        self.remove_blocks(keys).await
    }

    pub(super) async fn remove_blocks(&self, keys: Vec<BlockKey>) -> Result<(), Fault> {
        let mut last = Ok(());
        let mut keys = keys.into_iter();
        let mut running = FuturesUnordered::new();
        loop {
            while running.len() < REMOVE_MAX
                && let Some(key) = keys.next()
            {
                running.push(async move {
                    self.inner.cache.remove(&key).await;
                    self.inner.objects.delete(&key.name(self.inner.options.hash_prefix)).await
                });
            }
            match running.next().await {
                Some(Ok(())) => {}
                Some(Err(fault)) => last = Err(fault),
                None => return last,
            }
        }
    }

    /// Brings all blocks of a slice into the cache and waits for it; returns how many bytes were not there before.
    pub async fn warm_up(&self, slice: SliceId, size: u32) -> Result<u64, Fault> {
        let mut loaded = 0;
        if slice.0 == 0 {
            return Ok(0);
        }
        for key in layout::blocks(slice, size, self.block_size()) {
            if self.inner.cache.is_on_disk(&key) {
                continue;
            }
            let block = self.load_block(key).await?;
            self.inner.cache.fill(key, block).await?;
            loaded += u64::from(key.size);
        }
        Ok(loaded)
    }

    /// Drops all blocks of a slice from the cache.
    pub async fn evict(&self, slice: SliceId, size: u32) {
        if slice.0 != 0 {
            for key in layout::blocks(slice, size, self.block_size()) {
                self.inner.cache.remove(&key).await;
            }
        }
    }

    /// How many bytes of a slice are in the cache.
    pub fn cached_bytes(&self, slice: SliceId, size: u32) -> u64 {
        if slice.0 == 0 {
            return 0;
        }
        let cached = layout::blocks(slice, size, self.block_size()).filter(|key| self.inner.cache.contains(key));
        cached.map(|key| u64::from(key.size)).sum()
    }

    /// Uploads one block of a slice. Small ones are kept in the cache (`spec/data.md` 8.5); of what is written in bulk the
    /// kernel keeps the pages, and a second copy here would be memory that is touched for nothing: 1 GiB written took
    /// 46,000 page faults instead of 9,000.
    pub(super) async fn upload(&self, key: BlockKey, block: Bytes, tier: u8) -> Result<(), Fault> {
        let inner = &self.inner;
        let body = self.encode(block.clone()).await?;
        let class = inner.options.classes.get(&tier).map(String::as_str);
        inner.objects.put_as(&key.name(inner.options.hash_prefix), body, class).await?;
        inner.metrics.blocks_uploaded.fetch_add(1, Ordering::Relaxed);
        let large = key.size == inner.options.block_size;
        if !large || inner.options.cache_large_write {
            inner.cache.insert(key, block, inner.options.copy_to_disk || large);
        }
        Ok(())
    }

    async fn encode(&self, block: Bytes) -> Result<Payload, Fault> {
        let codec = self.inner.options.compression;
        if codec == Compression::None {
            return Ok(block.into());
        }
        let room = codec.room(block.len());
        let mut body = self.inner.pool.take(room);
        let size = block.len();
        let work = move || {
            body.resize(room);
            let n = codec.encode(&block, body.as_mut_slice())?;
            body.resize(n);
            Ok(body.freeze().into())
        };
        compute(size, "compress block", work).await
    }
}

/// The part of a whole block.
fn cut(block: &Bytes, part: Range<u32>) -> Payload {
    block.slice(part.start as usize..part.end as usize).into()
}

/// Runs work for the processor: where we are when it is little, else on a thread that may take its time.
async fn compute<T: Send + 'static>(
    bytes: usize,
    operation: &'static str,
    work: impl FnOnce() -> Result<T, Fault> + Send + 'static,
) -> Result<T, Fault> {
    if bytes <= CODEC_INLINE_BYTES || crate::util::rng::is_seeded() {
        return work();
    }
    match tokio::task::spawn_blocking(work).await {
        Ok(result) => result,
        Err(e) => Err(Fault::internal(operation).source(e)),
    }
}

#[cfg(test)]
#[path = "store_tests.rs"]
mod tests;
