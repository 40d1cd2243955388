//! Freeing what nothing refers to any more: the chunks of deleted files and the slices nobody references
//! (`spec/metadata.md` 1.7, 1.10).
//!
//! The records are the truth (a deleted-file record, a reference count at zero or below), and the hourly jobs
//! ([`super::jobs`]) work from them. This queue only spares a client that just deleted something the wait: it is
//! bounded, and what does not fit or fails is left to the hourly job. The order makes every crash harmless: a chunk
//! and its references go in one commit, objects go before the record of the count, and the deleted-file record goes
//! last. And no chunk is dropped of a node that is there, whatever a deleted-file record says.
//!
//! Nobody waits for any of it, while an `rm -r` goes on beside it that should not wait for it either: short files that
//! were deleted one after the other are reclaimed together, in five trips for all of them instead of seven for each.

use super::engine::{Change, Cursor, Scan};
use super::record::{Key, Record};
use super::txn::{AttrOf, ChunkOf, Operation, RecordOf, Settled, Tx};
use super::{Meta, outside};
use crate::base::{CHUNK_BYTES, ChunkIndex, Fault, Ino, Outcome, SliceId};
use crate::util::task::StopSignal;
use async_trait::async_trait;
use futures::stream;
use futures::{Stream, StreamExt};
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::{Notify, Semaphore};

/// Removes the objects of slices: where metadata and bytes meet, the other side. Removing what is not there
/// succeeds.
#[async_trait]
pub trait SliceRemover: Send + Sync {
    async fn remove(&self, id: SliceId, size: u32) -> Result<(), Fault>;
}

/// Enough for the bursts of an `rm -r`; 64 bytes each.
const QUEUE_MAX: usize = 100_000;
/// What is taken from the queue at a time. Dropping the chunks of that many files keeps a Redis server for half a
/// millisecond.
const GROUP: usize = 32;
/// A group that is not complete waits so long for more.
const LINGER: Duration = Duration::from_millis(100);
/// Groups under way at once: one waits for its objects while another drops chunks.
const GROUPS_AT_ONCE: usize = 4;
/// Counts forgotten in one commit.
const FORGET_AT_ONCE: usize = 64;
/// Chunks asked about in one trip where an engine cannot list the chunks of a file.
const CHUNKS_PER_TRIP: u64 = 256;
/// How far past the end of a file chunks are looked for at first.
const CHUNKS_PAST_END: u64 = 16;
/// Files of more chunks than this (64 TiB) are mostly holes, or their record is damaged: to list the chunks of the whole
/// volume costs less than to ask for each number.
const CHUNKS_BY_NUMBER_MAX: u64 = 1 << 20;
/// Chunk numbers have 32 bits.
const CHUNKS_MAX: u64 = 1 << 32;
const SCAN_PAGE: usize = 1000;

#[derive(Debug, PartialEq, Eq)]
enum Garbage {
    File { ino: Ino, length: u64 },
    Slice { id: SliceId, size: u32 },
}

/// What waits to be reclaimed by this client. The lock is held for field updates only.
#[derive(Default)]
pub(super) struct ReclaimQueue {
    waiting: Mutex<VecDeque<Garbage>>,
    added: Notify,
}

impl ReclaimQueue {
    fn push(&self, garbage: impl IntoIterator<Item = Garbage>) {
        let mut waiting = self.waiting.lock();
        let room = QUEUE_MAX - waiting.len();
        waiting.extend(garbage.into_iter().take(room));
        drop(waiting);
        self.added.notify_one();
    }

    /// The next group, at least one.
    async fn next(&self) -> Vec<Garbage> {
        while self.waiting.lock().is_empty() {
            self.added.notified().await;
        }
        if self.waiting.lock().len() < GROUP {
            tokio::time::sleep(LINGER).await;
        }
        let mut waiting = self.waiting.lock();
        let group = waiting.len().min(GROUP);
        waiting.drain(..group).collect()
    }
}

/// How slices are removed: through whom, how many at once, and until when.
#[derive(Clone)]
pub(super) struct Removal {
    remover: Arc<dyn SliceRemover>,
    permits: Arc<Semaphore>,
    parallel: usize,
    stop: StopSignal,
}

impl Removal {
    /// At most `parallel` slices are removed at a time, over all clones.
    pub fn new(remover: Arc<dyn SliceRemover>, parallel: usize, stop: StopSignal) -> Removal {
        Removal { remover, permits: Arc::new(Semaphore::new(parallel)), parallel: parallel.max(1), stop }
    }

    pub fn is_stopped(&self) -> bool {
        self.stop.is_stopped()
    }

    /// Removes the objects of slices and answers the keys of the counts of those that went.
    fn remove(&self, slices: Vec<(SliceId, u32)>) -> impl Stream<Item = Key> {
        let remove = move |(id, size)| async move {
            let _permit = self.permits.acquire().await.ok()?;
            if self.is_stopped() {
                return None;
            }
            match self.remover.remove(id, size).await {
                Ok(()) => Some(Key::SliceRef(id, size)),
                Err(fault) => {
                    tracing::warn!(slice = %id, size, "slice is left to the hourly job: {fault}");
                    None
                }
            }
        };
        stream::iter(slices).map(remove).buffer_unordered(self.parallel).filter_map(std::future::ready)
    }

    /// The same, with another signal.
    pub fn until(&self, stop: StopSignal) -> Removal {
        Removal { stop, ..self.clone() }
    }
}

/// Drops chunks of deleted files and takes back their references, as many as fit into one commit.
struct DropChunks {
    chunks: Vec<(Ino, ChunkIndex)>,
    /// References and chunks that one commit may change.
    most: usize,
}

/// What went.
struct Dropped {
    /// One for each reference, in the order of the `AddSliceRef` changes.
    slices: Vec<(SliceId, u32)>,
    /// Something is left for another commit.
    unfinished: bool,
}

impl DropChunks {
    fn lists(&self) -> Vec<ChunkOf> {
        self.chunks.iter().map(|&(ino, index)| ChunkOf(ino, index)).collect()
    }
}

impl Operation for DropChunks {
    const NAME: &'static str = "drop_chunks";
    type Output = Dropped;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Dropped> {
        let nodes: Vec<AttrOf> = self.chunks.iter().map(|&(ino, _)| AttrOf(ino)).collect();
        let (nodes, lists) = tx.load((nodes, self.lists())).await?;
        let mut dropped = Dropped { slices: Vec::new(), unfinished: false };
        // Each chunk is looked at with the node that it no longer has.
        let mut room = self.most.saturating_sub(2 * self.chunks.len()).max(1);
        for ((&(ino, index), node), slices) in self.chunks.iter().zip(nodes).zip(lists) {
            if node.into_option().is_some() {
                return Err(Fault::internal("drop chunk of a file that is there").with("inode", ino).into());
            }
            let now = slices.len().min(room);
            if now == slices.len() && now > 0 {
                tx.change(Change::Delete(Key::Chunk(ino, index)));
            } else if now > 0 {
                tx.change(Change::ReplacePrefix { ino, index, count: now, with: Vec::new() });
            }
            dropped.unfinished |= now < slices.len();
            room -= now;
            dropped.slices.extend(unreference(tx, slices[..now].iter().map(|slice| (slice.id, slice.size))));
        }
        Ok(dropped)
    }

    /// The counts are not known then; slices without references are left to the hourly job.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Dropped>> {
        Ok(match tx.load(self.lists()).await?.iter().all(|slices| slices.is_empty()) {
            true => Settled::Applied(Dropped { slices: Vec::new(), unfinished: false }),
            false => Settled::NotApplied,
        })
    }
}

/// Takes back one reference for each record that names a slice; holes are nobody's.
pub(super) fn unreference(tx: &mut Tx<'_>, slices: impl Iterator<Item = (SliceId, u32)>) -> Vec<(SliceId, u32)> {
    let slices: Vec<_> = slices.filter(|(id, _)| id.0 > 0).collect();
    for &(id, size) in &slices {
        tx.change(Change::AddSliceRef { id, size, delta: -1 });
    }
    slices
}

/// Those of `slices` whose last reported count is zero or less. Without a report (a reply that was lost) none.
pub(super) fn unreferenced(slices: Vec<(SliceId, u32)>, references: &[i64]) -> Vec<(SliceId, u32)> {
    let mut counts = std::collections::BTreeMap::new();
    // A slice named twice is reported twice, and the later count is the one that stands.
    counts.extend(slices.into_iter().zip(references.iter().copied()));
    counts.into_iter().filter(|(_, count)| *count <= 0).map(|(slice, _)| slice).collect()
}

/// Removes records whose work is done.
struct Forget(Vec<Key>);

impl Operation for Forget {
    const NAME: &'static str = "forget";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        let records = tx.load(self.0.iter().cloned().map(RecordOf).collect::<Vec<_>>()).await?;
        for (key, record) in self.0.iter().zip(records) {
            let stands = match (key, record) {
                (_, None) => false,
                // Never the count of a slice that is in use.
                (Key::SliceRef(..), Some(Record::Number(references))) => references <= 0,
                _ => true,
            };
            if stands {
                tx.change(Change::Delete(key.clone()));
            }
        }
        Ok(())
    }

    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        // Removing it twice is removing it.
        Ok(Settled::NotApplied)
    }
}

impl Meta {
    /// Has the data of a deleted file removed soon. Its record is committed already.
    pub fn queue_deleted_file(&self, ino: Ino, length: u64) {
        self.reclaim.push([Garbage::File { ino, length }]);
    }

    /// Has slices without references removed soon. Their counts are committed already.
    pub fn queue_slices(&self, slices: Vec<(SliceId, u32)>) {
        self.reclaim.push(slices.into_iter().map(|(id, size)| Garbage::Slice { id, size }));
    }

    /// How much waits to be reclaimed: a gauge.
    pub fn reclaim_waiting(&self) -> usize {
        self.reclaim.waiting.lock().len()
    }

    /// Works the queue off until it is told to stop, with at most `max_deletes` removals at once; with zero this
    /// client removes nothing.
    pub async fn run_reclaim(self: Arc<Self>, remover: Arc<dyn SliceRemover>, max_deletes: usize, stop: StopSignal) {
        if max_deletes == 0 {
            return stop.stopped().await;
        }
        let (meta, removal) = (&*self, &Removal::new(remover, max_deletes, stop.clone()));
        let worked = stream::unfold(&meta.reclaim, |queue| async move { Some((queue.next().await, queue)) })
            .for_each_concurrent(GROUPS_AT_ONCE, |group| async move {
                let (mut files, mut slices) = (Vec::new(), Vec::new());
                for garbage in group {
                    match garbage {
                        Garbage::File { ino, length } => files.push((ino, length)),
                        Garbage::Slice { id, size } => slices.push((id, size)),
                    }
                }
                meta.reclaim_slices(slices, removal).await;
                meta.reclaim_files(files, removal).await;
            });
        // Dropping what is under way is safe at every await: the records still say what is to be done.
        tokio::select! {
            biased;
            () = worked => {}
            () = stop.stopped() => {}
        }
    }

    /// Removes the data of deleted files, the short ones of them together. Answers how many were done; what fails is
    /// left to the hourly job. Stops early when told to.
    pub(super) async fn reclaim_files(&self, files: Vec<(Ino, u64)>, removal: &Removal) -> usize {
        let (short, mut alone): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, length)| *length <= CHUNK_BYTES);
        let mut done = 0;
        for group in short.chunks(GROUP.min(self.engine().batch_max() / 3).max(1)) {
            match self.reclaim_together(group, removal).await {
                Ok(()) => done += group.len(),
                // One of them is not what it should be, and it will be told which.
                Err(stop) => {
                    tracing::debug!(files = group.len(), "deleted files are reclaimed one by one: {stop}");
                    alone.extend_from_slice(group);
                }
            }
        }
        let one_by_one = stream::iter(alone).map(|(ino, length)| async move {
            let reclaimed =
                if removal.is_stopped() { return false } else { self.reclaim_file(ino, length, removal).await };
            if let Err(stop) = &reclaimed {
                tracing::warn!(%ino, length, "deleted file is left to the hourly job: {stop}");
            }
            reclaimed.is_ok()
        });
        done + one_by_one.buffer_unordered(removal.parallel).filter(|done| std::future::ready(*done)).count().await
    }

    /// Removes the chunks of files of one chunk at most, in one commit, and then their records in another.
    async fn reclaim_together(&self, files: &[(Ino, u64)], removal: &Removal) -> Outcome<()> {
        let mut chunks = Vec::with_capacity(files.len());
        if self.engine().lists_chunks_of_file() {
            for &(ino, _) in files {
                chunks.extend(self.list_chunks(ino, None).await?.0.into_iter().map(|index| (ino, index)));
            }
        } else {
            let candidates = 0..(1 + CHUNKS_PAST_END) as u32;
            let of = |&(ino, _): &(Ino, u64)| candidates.clone().map(move |index| (ino, ChunkIndex(index)));
            let asked: Vec<_> = files.iter().flat_map(of).collect();
            let keys: Vec<Key> = asked.iter().map(|&(ino, index)| Key::Chunk(ino, index)).collect();
            let records = outside(self.engine().read(&keys).await)?;
            chunks.extend(asked.into_iter().zip(records).filter(|(_, record)| record.is_some()).map(|(at, _)| at));
        }
        if let Some((ino, index)) = chunks.iter().find(|(_, index)| index.0 > 0) {
            let fault = Fault::internal("reclaim a short file with others").with("inode", ino).with("chunk", index);
            return Err(fault.source("it has chunks past its end, and there may be more").into());
        }
        if removal.is_stopped() {
            return Ok(());
        }
        let most = self.engine().batch_max();
        let drop_chunks = DropChunks { chunks, most };
        let mut over: Vec<Key> = Vec::new();
        loop {
            let (dropped, committed) = self.run_reporting(&drop_chunks).await?;
            let slices = unreferenced(dropped.slices, &committed.references);
            over.extend(removal.remove(slices).collect::<Vec<_>>().await);
            if removal.is_stopped() {
                return Ok(());
            }
            if !dropped.unfinished {
                break;
            }
        }
        over.extend(files.iter().map(|&(ino, length)| Key::DeletedFile(ino, length)));
        for part in over.chunks(most) {
            self.run(&Forget(part.to_vec())).await?;
        }
        Ok(())
    }

    /// A page of the numbers of a file's chunks.
    async fn list_chunks(&self, ino: Ino, after: Option<Cursor>) -> Outcome<(Vec<ChunkIndex>, Option<Cursor>)> {
        let page = outside(self.engine().scan(&Scan::ChunksOf(ino), after.as_ref(), SCAN_PAGE).await)?;
        let number = |(key, _)| match key {
            Key::Chunk(_, index) => Some(index),
            _ => None,
        };
        Ok((page.rows.into_iter().filter_map(number).collect(), page.next))
    }

    /// Removes the chunks of a deleted file, one commit each, then its record. Stops early, without an error, when
    /// told to; the record stays then.
    pub(super) async fn reclaim_file(&self, ino: Ino, length: u64, removal: &Removal) -> Outcome<()> {
        if self.engine().lists_chunks_of_file() || length.div_ceil(CHUNK_BYTES) > CHUNKS_BY_NUMBER_MAX {
            let mut after = None;
            loop {
                let (chunks, next) = self.list_chunks(ino, after).await?;
                for index in chunks {
                    self.reclaim_chunk(ino, index, removal).await?;
                    if removal.is_stopped() {
                        return Ok(());
                    }
                }
                if next.is_none() {
                    break;
                }
                after = next;
            }
        } else {
            self.reclaim_chunks_by_number(ino, length, removal).await?;
        }
        if removal.is_stopped() {
            return Ok(());
        }
        self.run(&Forget(vec![Key::DeletedFile(ino, length)])).await
    }

    /// Where listing the chunks of a file would read the whole volume: asks for them by number up to the length and
    /// some way on, and further for as long as any are found there. That also finds what lies past the end of a
    /// file that was shrunk; chunks behind a gap of 1 GiB leak until `gc` looks (as all past the end do with the
    /// peer). Most deleted files have one chunk, so each number asked for in vain counts: with 512 of them a server
    /// was kept busy by removals alone.
    async fn reclaim_chunks_by_number(&self, ino: Ino, length: u64, removal: &Removal) -> Outcome<()> {
        let chunks = length.div_ceil(CHUNK_BYTES);
        let mut from = 0;
        let mut until = chunks + CHUNKS_PAST_END;
        while from < until.min(CHUNKS_MAX) {
            let to = until.min(from + CHUNKS_PER_TRIP).min(CHUNKS_MAX);
            let keys: Vec<Key> = (from..to).map(|index| Key::Chunk(ino, ChunkIndex(index as u32))).collect();
            let records = outside(self.engine().read(&keys).await)?;
            for (index, _) in (from..to).zip(&records).filter(|(_, record)| record.is_some()) {
                if index >= chunks {
                    until = until.max(index + CHUNKS_PER_TRIP);
                }
                self.reclaim_chunk(ino, ChunkIndex(index as u32), removal).await?;
                if removal.is_stopped() {
                    return Ok(());
                }
            }
            from = to;
        }
        Ok(())
    }

    async fn reclaim_chunk(&self, ino: Ino, index: ChunkIndex, removal: &Removal) -> Outcome<()> {
        let drop_chunk = DropChunks { chunks: vec![(ino, index)], most: self.engine().batch_max() };
        loop {
            let (dropped, committed) = self.run_reporting(&drop_chunk).await?;
            self.reclaim_slices(unreferenced(dropped.slices, &committed.references), removal).await;
            if !dropped.unfinished || removal.is_stopped() {
                return Ok(());
            }
        }
    }

    /// Removes the objects of slices and then the records of their counts. A slice that could not be removed keeps
    /// its record, from which the hourly job tries again. Answers how many went.
    pub(super) async fn reclaim_slices(&self, slices: Vec<(SliceId, u32)>, removal: &Removal) -> usize {
        let mut done = 0;
        let mut removed = pin!(removal.remove(slices).chunks(FORGET_AT_ONCE));
        while let Some(over) = removed.next().await {
            let count = over.len();
            match self.run(&Forget(over)).await {
                Ok(()) => done += count,
                Err(stop) => tracing::warn!(slices = count, "slices were removed, their counts were not: {stop}"),
            }
        }
        done
    }
}

#[cfg(test)]
pub(super) mod tests;
