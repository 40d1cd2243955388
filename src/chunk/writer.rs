//! `SliceWriter`: a slice under construction.
//!
//! Bytes are copied once, into the block they belong to. A full block is handed to an upload task at once and can no
//! longer be changed; later bytes may still rewrite the blocks behind it. The id may come after the first bytes: then
//! full blocks wait here for it. [`SliceWriter::finish`] uploads the rest and waits for everything; a writer that is
//! dropped or aborted removes what it uploaded, since nobody knows of it.

use super::store::ChunkStore;
use super::{SLICE_BYTES_MAX, layout};
use crate::base::{Fault, SliceId};
use crate::buf::{BlockBuf, Payload};
use crate::cache::BlockKey;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use tokio::task::JoinHandle;

/// One slice while it is written. Not for several threads at once: its owner orders the writes.
pub struct SliceWriter {
    store: ChunkStore,
    id: Option<SliceId>,
    /// That of the file.
    tier: u8,
    len: u32,
    /// Blocks before this number belong to the uploader.
    handed: u32,
    /// Blocks from number `handed` on.
    blocks: VecDeque<BlockBuf>,
    /// Blocks handed over, and their tasks until these were waited for.
    uploads: Vec<(BlockKey, Option<JoinHandle<Result<(), Fault>>>)>,
    /// Set by the first upload that fails, so that the others do not begin.
    failed: Arc<AtomicBool>,
}

impl SliceWriter {
    pub(super) fn new(store: ChunkStore, id: Option<SliceId>, tier: u8) -> SliceWriter {
        SliceWriter {
            store,
            id,
            tier,
            len: 0,
            handed: 0,
            blocks: VecDeque::new(),
            uploads: Vec::new(),
            failed: Arc::default(),
        }
    }

    pub fn id(&self) -> Option<SliceId> {
        self.id
    }

    /// Bytes from the start of the slice to the end of the last write.
    pub fn len(&self) -> u32 {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Whether `[pos, pos + len)` can be written here without a gap: it appends to or rewrites blocks that are not
    /// being uploaded yet.
    pub fn can_accept(&self, pos: u32, len: u32) -> bool {
        let uploading = u64::from(self.handed) * u64::from(self.store.block_size());
        pos <= self.len
            && u64::from(pos) >= uploading
            && u64::from(pos) + u64::from(len) <= u64::from(SLICE_BYTES_MAX)
            && !self.failed()
    }

    /// An upload failed: finishing will fail too.
    pub fn failed(&self) -> bool {
        self.failed.load(Ordering::Relaxed)
    }

    /// Gives the slice its id. Full blocks that waited for it begin their upload.
    ///
    /// # Panics
    /// When there is an id already.
    pub fn set_id(&mut self, id: SliceId) {
        assert!(self.id.is_none(), "a slice has one id");
        self.id = Some(id);
        self.hand_over_full();
    }

    /// Copies `data` to `pos` of the slice; a gap before it becomes zeros. Fails, without a change, when the range lies
    /// in blocks that are being uploaded or past the longest slice.
    pub fn write_at(&mut self, pos: u32, data: &[u8]) -> Result<(), Fault> {
        let block_size = self.store.block_size();
        let end = u64::from(pos) + data.len() as u64;
        let uploading = u64::from(self.handed) * u64::from(block_size);
        if u64::from(pos) < uploading || end > u64::from(SLICE_BYTES_MAX) {
            return Err(Fault::internal("write to slice")
                .with("pos", pos)
                .with("len", data.len())
                .with("uploading", uploading));
        }
        if data.is_empty() {
            return Ok(());
        }
        let mut rest = data;
        let mut at = pos;
        while !rest.is_empty() {
            let (index, inside) = (at / block_size, at % block_size);
            let n = rest.len().min((block_size - inside) as usize);
            self.block(index, inside as usize + n).write_at(inside as usize, &rest[..n]);
            rest = &rest[n..];
            at += n as u32;
        }
        self.len = self.len.max(end as u32);
        self.hand_over_full();
        Ok(())
    }

    /// The block with number `index`, made with room for its first `first` bytes. Blocks before it that end early are
    /// filled with zeros: a gap was jumped over.
    fn block(&mut self, index: u32, first: usize) -> &mut BlockBuf {
        let block_size = self.store.block_size() as usize;
        let at = (index - self.handed) as usize;
        while self.blocks.len() <= at {
            if let Some(last) = self.blocks.back_mut() {
                last.resize(block_size);
            }
            let first = if self.blocks.len() == at { first } else { block_size };
            self.blocks.push_back(self.store.pool().take_growing(first, block_size));
        }
        &mut self.blocks[at]
    }

    /// A copy of `[pos, pos + len)` as written so far; `None` when the range lies outside or blocks of it belong to the
    /// uploader already.
    pub fn copy(&self, pos: u32, len: u32) -> Option<Payload> {
        let block_size = self.store.block_size();
        let end = pos.checked_add(len).filter(|end| *end <= self.len)?;
        let mut out = Payload::new();
        let mut at = pos;
        while at < end {
            let (index, inside) = (at / block_size, at % block_size);
            let n = (end - at).min(block_size - inside) as usize;
            let block = self.blocks.get(index.checked_sub(self.handed)? as usize)?;
            let mut piece = self.store.pool().take(n);
            piece.append(&block.as_slice()[inside as usize..inside as usize + n]);
            crate::buf::copied(n);
            out.push(piece.freeze());
            at += n as u32;
        }
        Some(out)
    }

    fn hand_over_full(&mut self) {
        let Some(id) = self.id else { return };
        let block_size = self.store.block_size();
        while self.blocks.front().is_some_and(|b| b.len() == block_size as usize) {
            let block = self.blocks.pop_front().expect("looked at just now");
            let key = BlockKey { slice: id, index: self.handed, size: block_size };
            self.handed += 1;
            self.hand_over(key, block);
        }
    }

    fn hand_over(&mut self, key: BlockKey, block: BlockBuf) {
        let under_way = self.store.uploading().charge(key.size as usize);
        let upload = upload(self.store.clone(), key, block, self.tier, self.failed.clone());
        let upload = async move {
            let _under_way = under_way;
            upload.await
        };
        self.uploads.push((key, Some(self.store.runtime().spawn(upload))));
    }

    /// Uploads what is left and waits for all of it. The slice is durable in the store when this returns its size; on a
    /// fault it is removed.
    pub async fn finish(mut self) -> Result<u32, Fault> {
        if self.len == 0 {
            return Ok(0);
        }
        let Some(id) = self.id else {
            return Err(Fault::internal("finish slice").source("it has no id yet"));
        };
        let (size, block_size) = (self.len, self.store.block_size());
        let mut left = std::mem::take(&mut self.blocks);
        // The last block goes up from here: a small file then costs no task of its own.
        let tail = left.pop_back();
        for block in left {
            let key = layout::block_key(id, size, block_size, self.handed);
            self.handed += 1;
            self.hand_over(key, block);
        }
        let mut result = Ok(());
        if let Some(block) = tail {
            let key = layout::block_key(id, size, block_size, self.handed);
            self.handed += 1;
            // Known to the clean-up even if this future is dropped half way.
            self.uploads.push((key, None));
            result = upload(self.store.clone(), key, block, self.tier, self.failed.clone()).await;
        }
        for (_, task) in &mut self.uploads {
            let Some(running) = task else { continue };
            let done = running.await;
            *task = None;
            let done = done.unwrap_or_else(|e| Err(Fault::internal("upload block").source(e)));
            // The first fault is the cause; the others only noticed.
            result = result.and(done);
        }
        match result {
            Ok(()) => {
                self.uploads.clear();
                Ok(size)
            }
            Err(fault) => Err(fault.with("slice", id)),
        }
    }

    /// Gives the slice up: uploads stop, and what was uploaded is removed in the background.
    pub fn abort(self) {}
}

async fn upload(
    store: ChunkStore,
    key: BlockKey,
    block: BlockBuf,
    tier: u8,
    failed: Arc<AtomicBool>,
) -> Result<(), Fault> {
    if failed.load(Ordering::Relaxed) {
        return Err(Fault::unavailable("upload block").source("another block of the slice failed"));
    }
    let result = store.upload(key, block.freeze(), tier).await;
    if result.is_err() {
        failed.store(true, Ordering::Relaxed);
    }
    result
}

impl Drop for SliceWriter {
    fn drop(&mut self) {
        let uploads = std::mem::take(&mut self.uploads);
        if uploads.is_empty() {
            return;
        }
        self.failed.store(true, Ordering::Relaxed);
        let store = self.store.clone();
        self.store.runtime().spawn(async move {
            let mut keys = Vec::with_capacity(uploads.len());
            for (key, task) in uploads {
                if let Some(task) = task {
                    task.abort();
                    // Ended either way; what a local store has begun on a thread of its own may still appear, as a
                    // block that nobody refers to and `gc` finds.
                    let _ended = task.await;
                }
                keys.push(key);
            }
            if let Err(fault) = store.remove_blocks(keys).await {
                tracing::warn!("blocks of an abandoned slice were left behind: {fault}");
            }
        });
    }
}
