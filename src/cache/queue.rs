//! Blocks on their way to a local disk.
//!
//! Large blocks are written as soon as the disk takes them. Small ones stay in memory for [`LINGER`] first: many are
//! removed before that (temporary files, a slice that compaction replaces), and a file of their own is most of what such
//! a block costs. With files of 4 KiB on an ext4 without a journal, which steps over each inode of the last minutes'
//! removals to find a free one, creating took 1.5 times as long with a file in the cache for each. Nothing is lost with
//! what a crash takes from here: the store has every block.

use super::BlockKey;
use super::index::BLOCK_OVERHEAD;
use bytes::Bytes;
use std::collections::{HashMap, VecDeque};
use std::time::{Duration, Instant};

/// How long a small block waits for its removal.
const LINGER: Duration = Duration::from_secs(5);
/// Larger blocks do not wait: what writing them costs is their bytes, and those in memory count.
const SMALL_BYTES: usize = 128 << 10;

/// What became of a block that was offered.
#[derive(Debug, PartialEq)]
pub(super) enum Offered {
    Taken,
    /// It waits already.
    Known,
    NoRoom,
}

/// Stale keys of blocks that do not wait any more, before they are swept out of the orders.
const STALE_MAX: usize = 1024;

struct Waiting {
    block: Bytes,
    lingers: bool,
}

/// Bounded by bytes. A block in it can be read.
pub(super) struct Queue {
    limit: u64,
    blocks: HashMap<BlockKey, Waiting>,
    /// To be written now, in this order. Keys of blocks that were removed meanwhile are in it, too.
    due: VecDeque<BlockKey>,
    /// Small blocks with the time of their coming, the oldest first; as above.
    lingering: VecDeque<(Instant, BlockKey)>,
    bytes: u64,
    /// The part of `bytes` that lingers, with what a file of its own takes beside the data for each.
    lingering_bytes: u64,
}

impl Queue {
    /// `limit` in bytes; half of it is for blocks that linger.
    pub fn new(limit: u64) -> Queue {
        Queue {
            limit,
            blocks: HashMap::new(),
            due: VecDeque::new(),
            lingering: VecDeque::new(),
            bytes: 0,
            lingering_bytes: 0,
        }
    }

    pub fn get(&self, key: &BlockKey) -> Option<&Bytes> {
        self.blocks.get(key).map(|waiting| &waiting.block)
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        self.blocks.contains_key(key)
    }

    pub fn offer(&mut self, key: BlockKey, block: Bytes, now: Instant) -> Offered {
        if self.contains(&key) {
            return Offered::Known;
        }
        // An empty queue takes any block, so that a small budget still caches.
        if !self.blocks.is_empty() && self.bytes + block.len() as u64 > self.limit {
            return Offered::NoRoom;
        }
        let lingers = block.len() <= SMALL_BYTES;
        self.bytes += block.len() as u64;
        if lingers {
            self.lingering.push_back((now, key));
            self.lingering_bytes += weight(&block);
        } else {
            self.due.push_back(key);
        }
        self.blocks.insert(key, Waiting { block, lingers });
        while self.lingering_bytes > self.limit / 2 && self.oldest_is_due() {}
        Offered::Taken
    }

    /// The block that lingers longest does so no longer. False when there is none.
    fn oldest_is_due(&mut self) -> bool {
        let Some((_, key)) = self.lingering.pop_front() else { return false };
        if let Some(waiting) = self.blocks.get_mut(&key)
            && std::mem::take(&mut waiting.lingers)
        {
            self.lingering_bytes -= weight(&waiting.block);
            self.due.push_back(key);
        }
        true
    }

    /// Nothing lingers any longer.
    pub fn hurry(&mut self) {
        while self.oldest_is_due() {}
    }

    fn age(&mut self, now: Instant) {
        while let Some((since, key)) = self.lingering.front()
            && (now.saturating_duration_since(*since) >= LINGER || !self.contains(key))
        {
            self.oldest_is_due();
        }
    }

    /// When something is to be written, from now on. None when nothing waits.
    pub fn due_in(&mut self, now: Instant) -> Option<Duration> {
        self.age(now);
        if !self.due.is_empty() {
            return Some(Duration::ZERO);
        }
        let (since, _) = self.lingering.front()?;
        Some(LINGER.saturating_sub(now.saturating_duration_since(*since)))
    }

    /// What is to be written now. The block stays readable until [`Queue::forget`].
    pub fn next(&mut self, now: Instant) -> Option<(BlockKey, Bytes)> {
        self.age(now);
        while let Some(key) = self.due.pop_front() {
            if let Some(waiting) = self.blocks.get(&key) {
                return Some((key, waiting.block.clone()));
            }
        }
        None
    }

    /// Takes a block out: it is on the disk, or of no more use. False when it was not there any more.
    pub fn forget(&mut self, key: &BlockKey) -> bool {
        let Some(waiting) = self.blocks.remove(key) else { return false };
        self.bytes -= waiting.block.len() as u64;
        if waiting.lingers {
            self.lingering_bytes -= weight(&waiting.block);
        }
        // Many that come and go within the time leave their keys behind.
        if self.lingering.len() > 2 * self.blocks.len() + STALE_MAX {
            let blocks = &self.blocks;
            self.lingering.retain(|(_, key)| blocks.contains_key(key));
        }
        if self.due.len() > 2 * self.blocks.len() + STALE_MAX {
            let blocks = &self.blocks;
            self.due.retain(|key| blocks.contains_key(key));
        }
        true
    }
}

/// Many small blocks must not be many files to be written at the end.
fn weight(block: &Bytes) -> u64 {
    block.len() as u64 + BLOCK_OVERHEAD
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;

    fn key(id: u64) -> BlockKey {
        BlockKey { slice: SliceId(id), index: 0, size: 1 }
    }

    fn block(len: usize) -> Bytes {
        Bytes::from(vec![0; len])
    }

    fn written(queue: &mut Queue, now: Instant) -> Vec<u64> {
        let mut written = Vec::new();
        while let Some((key, _)) = queue.next(now) {
            queue.forget(&key);
            written.push(key.slice.0);
        }
        written
    }

    #[test]
    fn small_blocks_linger_and_large_ones_do_not() {
        let start = Instant::now();
        let mut queue = Queue::new(60 << 20);
        assert_eq!(queue.offer(key(1), block(10), start), Offered::Taken);
        assert_eq!(queue.offer(key(1), block(10), start), Offered::Known);
        assert_eq!(queue.offer(key(2), block(SMALL_BYTES + 1), start), Offered::Taken);
        assert_eq!(queue.offer(key(3), block(20), start + LINGER / 2), Offered::Taken);
        assert_eq!(written(&mut queue, start), [2]);
        assert_eq!(queue.due_in(start), Some(LINGER));
        queue.offer(key(4), block(30), start + LINGER / 2);
        queue.forget(&key(3));
        assert!(queue.contains(&key(1)) && queue.get(&key(3)).is_none());
        assert_eq!(written(&mut queue, start + LINGER), [1]);
        assert_eq!(queue.due_in(start + LINGER), Some(LINGER / 2), "one was removed and is not written");
        queue.hurry();
        assert_eq!(written(&mut queue, start + LINGER), [4]);
        assert_eq!(queue.due_in(start + LINGER), None);
        assert_eq!((queue.bytes, queue.lingering_bytes), (0, 0));
    }

    #[test]
    fn what_waits_is_bounded() {
        let now = Instant::now();
        let mut queue = Queue::new(10 << 10);
        assert_eq!(queue.offer(key(0), block(20 << 10), now), Offered::Taken, "an empty one takes any");
        assert_eq!(queue.offer(key(1), block(1), now), Offered::NoRoom);
        assert_eq!(written(&mut queue, now), [0], "too large to linger");
        for id in 1..=5 {
            assert_eq!(queue.offer(key(id), block(1 << 10), now), Offered::Taken);
        }
        assert_eq!(written(&mut queue, now), [1, 2, 3, 4], "one with its overhead is half of the bound");
        for id in 10..20_000 {
            queue.offer(key(id), block(1), now);
            queue.forget(&key(id));
            assert!(queue.lingering.len() + queue.due.len() <= 2 * (2 + STALE_MAX) + 2);
        }
        assert_eq!(written(&mut queue, now + LINGER), [5]);
        assert_eq!((queue.bytes, queue.lingering_bytes), (0, 0));
    }
}
