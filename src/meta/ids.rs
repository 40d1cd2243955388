//! Pools of ids: inode and slice numbers are taken from the volume's counters in batches and handed out from memory,
//! so that an operation pays no trip for its number. What is left of a batch at exit is lost, as the format allows.

use super::engine::Engine;
use super::record::Counter;
use super::{Meta, outside};
use crate::base::{Ino, Outcome, SliceId};
use parking_lot::Mutex;
use std::ops::Range;

/// Ids per trip (`spec/metadata.md` section 0).
pub const INODE_BATCH: u64 = 1024;
pub const SLICE_BATCH: u64 = 4096;

pub struct IdPool {
    counter: Counter,
    batch: u64,
    ready: Mutex<Range<u64>>,
    /// One refill at a time; the others wait for it.
    refill: tokio::sync::Mutex<()>,
}

impl IdPool {
    pub fn new(counter: Counter, batch: u64) -> IdPool {
        IdPool { counter, batch, ready: Mutex::new(0..0), refill: tokio::sync::Mutex::new(()) }
    }

    /// The next id, from memory: `None` when the pool is empty.
    pub fn try_next(&self) -> Option<u64> {
        self.ready.lock().next()
    }

    /// The next id; at most one trip.
    pub async fn next(&self, engine: &dyn Engine) -> Outcome<u64> {
        loop {
            if let Some(id) = self.try_next() {
                return Ok(id);
            }
            let _refilling = self.refill.lock().await;
            if !self.ready.lock().is_empty() {
                continue;
            }
            let first = outside(engine.allocate(self.counter, self.batch).await)?;
            *self.ready.lock() = first..first + self.batch;
        }
    }
}

impl Meta {
    pub(crate) async fn next_inode(&self) -> Outcome<Ino> {
        self.inodes.next(&*self.engine).await.map(Ino)
    }

    /// A slice id that was never used.
    pub async fn next_slice(&self) -> Outcome<SliceId> {
        self.slices.next(&*self.engine).await.map(SliceId)
    }

    /// As `next_slice`, from memory only.
    pub fn try_next_slice(&self) -> Option<SliceId> {
        self.slices.try_next().map(SliceId)
    }
}
