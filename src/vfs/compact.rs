//! Background compaction: chunks whose lists have grown long are rewritten as one slice (`spec/metadata.md` 1.8).
//!
//! Suggested by reads and commits that meet a long list, planned by `meta`, carried out here, because only here bytes
//! and records meet. A chunk is compacted once at a time and a mount compacts only a few; what is not taken now is
//! suggested again by the next read.

use super::Vfs;
use crate::base::{ChunkIndex, Ino, Outcome, Slice, SliceId, Stop};
use crate::chunk::ChunkStore;
use crate::meta::Meta;
use crate::meta::ops::compact::{Replaced, plan_compaction};
use parking_lot::Mutex;
use std::collections::HashSet;

/// A chunk with so many records or visible pieces is worth rewriting once it is read.
const READ_TRIGGER: usize = 5;

/// The compactions under way.
pub struct Compactions {
    running: Mutex<HashSet<(Ino, ChunkIndex)>>,
    max: usize,
}

impl Compactions {
    pub fn new(max: usize) -> Compactions {
        Compactions { running: Mutex::default(), max }
    }

    fn begin(&self, ino: Ino, index: ChunkIndex) -> bool {
        let mut running = self.running.lock();
        running.len() < self.max && running.insert((ino, index))
    }

    fn end(&self, ino: Ino, index: ChunkIndex) {
        self.running.lock().remove(&(ino, index));
    }
}

impl Vfs {
    /// Takes note of a long list; compacts it in the background if there is room for one more.
    pub(super) fn suggest_compaction(&self, ino: Ino, index: ChunkIndex, records: usize, pieces: usize) {
        if self.settings.read_only || records.max(pieces) < READ_TRIGGER || records < 2 {
            return;
        }
        let Some(vfs) = self.me.upgrade() else { return };
        if !self.compactions.begin(ino, index) {
            return;
        }
        self.spawn(async move {
            if let Err(stop) = vfs.compact_once(ino, index).await {
                tracing::warn!(ino = ino.0, chunk = index.0, "compaction: {stop}");
            }
            vfs.compactions.end(ino, index);
        });
    }

    /// Compacts a chunk until nothing is left to do; answers whether anything was done.
    pub async fn compact_chunk(&self, ino: Ino, index: ChunkIndex) -> Outcome<bool> {
        let mut done = false;
        while self.compact_once(ino, index).await? {
            done = true;
        }
        Ok(done)
    }

    async fn compact_once(&self, ino: Ino, index: ChunkIndex) -> Outcome<bool> {
        match compact_once(&self.meta, &self.data, ino, index).await? {
            Compacted::Done { garbage, .. } => {
                if let Some(file) = self.files.get(ino) {
                    file.state().forget_chunk(index);
                }
                self.meta.queue_slices(garbage);
                Ok(true)
            }
            Compacted::Nothing => Ok(false),
        }
    }
}

/// What one compaction did.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Compacted {
    /// There was nothing worth merging, or the list changed meanwhile.
    Nothing,
    Done {
        /// The records that the new slice stands for.
        merged: usize,
        /// Its bytes.
        bytes: u32,
        /// Slices that nobody refers to any more.
        garbage: Vec<(SliceId, u32)>,
    },
}

/// The tier that rewritten data of a file goes to. Where all tiers are alike nobody need ask.
pub async fn tier_of(meta: &Meta, data: &ChunkStore, ino: Ino) -> Outcome<u8> {
    if data.options().classes.is_empty() { Ok(0) } else { Ok(meta.getattr(ino).await?.tier) }
}

/// Rewrites what is worth it of a chunk as one slice; for a client of its own or a tool without one.
pub async fn compact_once(meta: &Meta, data: &ChunkStore, ino: Ino, index: ChunkIndex) -> Outcome<Compacted> {
    let session = meta.session();
    let mut records = meta.read_chunk(ino, index).await?;
    // References of all that is replaced go in one commit.
    records.truncate(meta.engine().batch_max());
    let Some(plan) = plan_compaction(&records) else { return Ok(Compacted::Nothing) };
    let id = meta.next_slice().await?;
    let size = data.merge(&plan.pieces, id, tier_of(meta, data, ino).await?).await?;
    let new = Slice { pos: plan.pos, id, size, off: 0, len: size };
    // Whether the new slice is in use is not known after a fault, so its objects stay for `gc` to judge.
    match meta.replace_slices(session, ino, index, &records[..plan.read], plan.skipped, new).await {
        Err(stop) => {
            // Refused (the session has ended meanwhile), not failed half-way: nobody refers to the new slice.
            if matches!(stop, Stop::Errno(_)) {
                data.remove(id, size).await?;
            }
            Err(stop)
        }
        Ok(Replaced::Done { garbage }) => {
            Ok(Compacted::Done { merged: plan.read - plan.skipped, bytes: size, garbage })
        }
        Ok(Replaced::Changed) => {
            data.remove(id, size).await?;
            Ok(Compacted::Nothing)
        }
    }
}
