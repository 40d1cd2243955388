//! Freeing what nothing refers to any more: the chunks of deleted files and the slices nobody references
//! (`spec/metadata.md` 1.7, 1.10).
//!
//! The records are the truth (a deleted-file record, a reference count at zero or below), and the hourly jobs
//! ([`super::jobs`]) work from them. This queue only spares a client that just deleted something the wait: it is
//! bounded, and what does not fit or fails is left to the hourly job. The order makes every crash harmless: a chunk
//! and its references go in one commit, objects go before the record of the count, and the deleted-file record goes
//! last. And no chunk is dropped of a node that is there, whatever a deleted-file record says.

use super::engine::{Change, Scan};
use super::record::{Key, Record};
use super::txn::{AttrOf, ChunkOf, Operation, RecordOf, Settled, Tx};
use super::{Meta, outside};
use crate::base::{CHUNK_BYTES, ChunkIndex, Fault, Ino, Outcome, SliceId};
use crate::util::task::StopSignal;
use async_trait::async_trait;
use futures::StreamExt;
use futures::stream;
use parking_lot::Mutex;
use std::collections::VecDeque;
use std::sync::Arc;
use tokio::sync::{Notify, Semaphore};

/// Removes the objects of slices: where metadata and bytes meet, the other side. Removing what is not there
/// succeeds.
#[async_trait]
pub trait SliceRemover: Send + Sync {
    async fn remove(&self, id: SliceId, size: u32) -> Result<(), Fault>;
}

/// Enough for the bursts of an `rm -r`; 64 bytes each.
const QUEUE_MAX: usize = 100_000;
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

    async fn next(&self) -> Garbage {
        loop {
            if let Some(garbage) = self.waiting.lock().pop_front() {
                return garbage;
            }
            self.added.notified().await;
        }
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

    /// The same, with another signal.
    pub fn until(&self, stop: StopSignal) -> Removal {
        Removal { stop, ..self.clone() }
    }
}

/// Drops one chunk of a deleted file and takes back its references. Answers the slices it referred to, each once.
struct DropChunk {
    ino: Ino,
    index: ChunkIndex,
}

impl Operation for DropChunk {
    const NAME: &'static str = "drop_chunk";
    /// In the order of the `AddSliceRef` changes.
    type Output = Vec<(SliceId, u32)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Vec<(SliceId, u32)>> {
        let (node, slices) = tx.load((AttrOf(self.ino), ChunkOf(self.ino, self.index))).await?;
        if node.into_option().is_some() {
            return Err(Fault::internal("drop chunk of a file that is there").with("inode", self.ino).into());
        }
        if slices.is_empty() {
            return Ok(Vec::new());
        }
        tx.change(Change::Delete(Key::Chunk(self.ino, self.index)));
        Ok(unreference(tx, slices.iter().map(|slice| (slice.id, slice.size))))
    }

    /// The counts are not known then; slices without references are left to the hourly job.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Vec<(SliceId, u32)>>> {
        Ok(match tx.load(ChunkOf(self.ino, self.index)).await?.is_empty() {
            true => Settled::Applied(Vec::new()),
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

/// Removes a record whose work is done.
struct Forget(Key);

impl Operation for Forget {
    const NAME: &'static str = "forget";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        let stands = match (&self.0, tx.load(RecordOf(self.0.clone())).await?) {
            (_, None) => false,
            // Never the count of a slice that is in use.
            (Key::SliceRef(..), Some(Record::Number(references))) => references <= 0,
            _ => true,
        };
        if stands {
            tx.change(Change::Delete(self.0.clone()));
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
            .for_each_concurrent(max_deletes, |garbage| async move {
                match garbage {
                    Garbage::File { ino, length } => {
                        if let Err(stop) = meta.reclaim_file(ino, length, removal).await {
                            tracing::warn!(%ino, length, "deleted file is left to the hourly job: {stop}");
                        }
                    }
                    Garbage::Slice { id, size } => {
                        meta.reclaim_slices(vec![(id, size)], removal).await;
                    }
                }
            });
        // Dropping what is under way is safe at every await: the records still say what is to be done.
        tokio::select! {
            biased;
            () = worked => {}
            () = stop.stopped() => {}
        }
    }

    /// Removes the chunks of a deleted file, one commit each, then its record. Stops early, without an error, when
    /// told to; the record stays then.
    pub(super) async fn reclaim_file(&self, ino: Ino, length: u64, removal: &Removal) -> Outcome<()> {
        if self.engine().lists_chunks_of_file() || length.div_ceil(CHUNK_BYTES) > CHUNKS_BY_NUMBER_MAX {
            let mut after = None;
            loop {
                let page = outside(self.engine().scan(&Scan::ChunksOf(ino), after.as_ref(), SCAN_PAGE).await)?;
                for (key, _) in page.rows {
                    if let Key::Chunk(_, index) = key {
                        self.reclaim_chunk(ino, index, removal).await?;
                    }
                    if removal.is_stopped() {
                        return Ok(());
                    }
                }
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        } else {
            self.reclaim_chunks_by_number(ino, length, removal).await?;
        }
        if removal.is_stopped() {
            return Ok(());
        }
        self.run(&Forget(Key::DeletedFile(ino, length))).await
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
        let (slices, committed) = self.run_reporting(&DropChunk { ino, index }).await?;
        self.reclaim_slices(unreferenced(slices, &committed.references), removal).await;
        Ok(())
    }

    /// Removes the objects of slices and then the records of their counts. A slice that could not be removed keeps
    /// its record, from which the hourly job tries again. Answers how many went.
    pub(super) async fn reclaim_slices(&self, slices: Vec<(SliceId, u32)>, removal: &Removal) -> usize {
        stream::iter(slices)
            .map(|(id, size)| async move {
                let Ok(_permit) = removal.permits.acquire().await else { return false };
                if removal.is_stopped() {
                    return false;
                }
                if let Err(fault) = removal.remover.remove(id, size).await {
                    tracing::warn!(slice = %id, size, "slice is left to the hourly job: {fault}");
                    return false;
                }
                match self.run(&Forget(Key::SliceRef(id, size))).await {
                    Ok(()) => true,
                    Err(stop) => {
                        tracing::warn!(slice = %id, size, "slice was removed, its count was not: {stop}");
                        false
                    }
                }
            })
            .buffer_unordered(removal.parallel)
            .filter(|removed| std::future::ready(*removed))
            .count()
            .await
    }
}

#[cfg(test)]
pub(super) mod tests;
