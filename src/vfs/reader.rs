//! Reading: a range of a file becomes pieces of slices, the pieces become one `Payload`; and read-ahead.
//!
//! Bytes that this client wrote and has not committed yet lie over the committed ones. They are copied from the slices
//! that still grow; a read of what is being uploaded waits for its commit.

use super::Vfs;
use super::file::{ChunkView, File, Uncommitted};
use super::handle::{FileHandle, Handle};
use super::seen::Stamp;
use crate::base::{CHUNK_BYTES, ChunkIndex, Errno, Fault, FaultKind, Ino, Outcome, Slice};
use crate::buf::Payload;
use futures::future::{join_all, try_join_all};
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Reads that find a slice gone look at the chunk again this often: another client's compaction may have replaced it.
const STALE_TRIES_MAX: u32 = 5;

/// The kernel splits large reads and sends the parts a little out of order; this much slack tells that from random
/// access.
const REORDER_BYTES: u64 = 1 << 20;

/// Reading that begins inside a file counts as sequential once it went on for this long. Random readers of records
/// often take them in a few requests in a row (mapped files: one for each page), and would fetch megabytes for each.
const RUN_BYTES_MIN: u64 = 256 << 10;

/// How a handle is being read.
#[derive(Debug, Default)]
pub struct ReadAhead {
    /// Where a sequential reader would go on.
    expected: u64,
    /// Where reading in a row began.
    run_start: u64,
    /// Bytes to hold ready beyond the reader; 0 while reading looks random.
    window_bytes: u64,
    /// What has been asked for already ends here.
    requested: u64,
}

impl ReadAhead {
    /// Takes note of a read and answers the range that should be fetched now, if any.
    fn advance(&mut self, off: u64, len: u64, block: u64, window_max: u64) -> Option<(u64, u64)> {
        let end = off + len;
        let sequential = off <= self.expected + REORDER_BYTES
            && end + REORDER_BYTES >= self.expected
            && (off != 0 || self.expected == 0);
        if !sequential {
            *self = ReadAhead { expected: end, run_start: off, window_bytes: 0, requested: end };
            return None;
        }
        self.expected = self.expected.max(end);
        // A file that is read from its start is mostly read to its end.
        if self.run_start > 0 && self.expected - self.run_start < RUN_BYTES_MIN {
            return None;
        }
        self.window_bytes = if self.window_bytes == 0 { block } else { self.window_bytes * 2 }.min(window_max);
        let target = end + self.window_bytes;
        let from = self.requested.max(end);
        // Ask for whole blocks at a time, not for the sliver that each small read adds.
        if target < from + block / 2 {
            return None;
        }
        self.requested = target;
        Some((from, target))
    }
}

impl Vfs {
    /// Bytes of `[off, off + len)`, cut at the end of the file. Ready at the first poll when everything is in memory.
    pub async fn read(&self, ino: Ino, handle: Handle, off: u64, len: u32) -> Outcome<Payload> {
        let handle = self.handles.file(handle)?;
        if handle.ino != ino {
            return Err(Errno::EBADF.into());
        }
        // A handle opened for writing only may be read: the kernel refuses such a read to a process, and reads itself to
        // complete pages of its write-back cache.
        let file = &handle.file;
        let wanted_end = off.checked_add(u64::from(len)).ok_or(Errno::EFBIG)?;
        let (mut end, uncommitted) = {
            let state = file.state();
            let end = wanted_end.min(state.length);
            (end, state.uncommitted(off, end))
        };
        let copies = match uncommitted {
            Uncommitted::Copied(copies) => copies,
            Uncommitted::Leaving => {
                self.flush_file(file).await?;
                end = wanted_end.min(file.state().length);
                Vec::new()
            }
        };
        if off >= end {
            return Ok(Payload::new());
        }
        let payload = self.read_around(file, off, end, copies).await?;
        self.read_ahead(&handle, off, end);
        self.accessed_through(&handle);
        Ok(payload)
    }

    /// Bytes of `[off, end)`: the copies where there are any, what is committed between them.
    async fn read_around(&self, file: &Arc<File>, off: u64, end: u64, copies: Vec<(u64, Payload)>) -> Outcome<Payload> {
        if copies.is_empty() {
            return self.read_range(file, off, end).await;
        }
        let mut gaps = Vec::new();
        let mut at = off;
        for (start, copy) in &copies {
            gaps.push(at..*start);
            at = start + copy.len() as u64;
        }
        gaps.push(at..end);
        let fetch = |gap: Range<u64>| async move {
            if gap.is_empty() { Ok(Payload::new()) } else { self.read_range(file, gap.start, gap.end).await }
        };
        let mut fetched = try_join_all(gaps.into_iter().map(fetch)).await?.into_iter();
        let mut out = fetched.next().expect("a gap before each copy");
        for ((_, copy), after) in copies.into_iter().zip(fetched) {
            out.append(copy);
            out.append(after);
        }
        Ok(out)
    }

    async fn read_range(&self, file: &Arc<File>, off: u64, end: u64) -> Outcome<Payload> {
        let mut tries = 0;
        loop {
            let pieces = self.pieces(file, off, end).await?;
            match self.gather(&pieces).await {
                Ok(payload) => return Ok(payload),
                Err(fault) if stale(&fault) && tries < STALE_TRIES_MAX => {
                    tries += 1;
                    tracing::debug!(ino = file.ino.0, tries, "looking at the chunk again: {fault}");
                    file.state().forget_chunks();
                    tokio::time::sleep(Duration::from_millis(20 << tries)).await;
                }
                Err(fault) => return Err(fault.with("ino", file.ino).into()),
            }
        }
    }

    /// Pieces that cover `[off, end)` without gaps, in order; what no record covers is a hole.
    async fn pieces(&self, file: &Arc<File>, off: u64, end: u64) -> Outcome<Vec<Slice>> {
        let mut out = Vec::with_capacity(2);
        let mut at = off;
        while at < end {
            let index = ChunkIndex((at / CHUNK_BYTES) as u32);
            let start = u64::from(index.0) * CHUNK_BYTES;
            let (from, to) = ((at - start) as u32, (end - start).min(CHUNK_BYTES) as u32);
            let view = self.view(file, index).await?;
            let mut shown = from;
            for piece in view.cut(from, to) {
                if piece.pos > shown {
                    out.push(Slice::hole(shown, piece.pos - shown));
                }
                shown = piece.pos + piece.len;
                out.push(piece);
            }
            if shown < to {
                out.push(Slice::hole(shown, to - shown));
            }
            at = start + u64::from(to);
        }
        Ok(out)
    }

    /// The chunk as last read, or read now. May suggest a compaction.
    pub(super) async fn view(&self, file: &Arc<File>, index: ChunkIndex) -> Outcome<Arc<ChunkView>> {
        let asked = {
            let state = file.state();
            if let Some(view) = state.chunks.get(&index) {
                return Ok(view.clone());
            }
            (state.version, state.forgotten)
        };
        let records = self.meta.read_chunk_of_file(file.ino, index).await?;
        let view = Arc::new(ChunkView::new(records));
        let mut state = file.state();
        if (state.version, state.forgotten) == asked {
            state.chunks.insert(index, view.clone());
        }
        drop(state);
        self.suggest_compaction(file.ino, index, view.records().len(), view.pieces().len());
        Ok(view)
    }

    /// A chunk that was read together with the attributes of this stamp, if the file still is what they say.
    pub(super) fn take_view(&self, file: &File, index: ChunkIndex, records: Vec<Slice>, of: Stamp) {
        let view = Arc::new(ChunkView::new(records));
        let mut state = file.state();
        if state.seen != Some(of) || state.chunks.contains_key(&index) {
            return;
        }
        state.chunks.insert(index, view.clone());
        drop(state);
        self.suggest_compaction(file.ino, index, view.records().len(), view.pieces().len());
    }

    async fn gather(&self, pieces: &[Slice]) -> Result<Payload, Fault> {
        let mut ready: Vec<Option<Payload>> = Vec::with_capacity(pieces.len());
        for piece in pieces {
            ready.push(if piece.is_hole() {
                Some(Payload::zeros(piece.len as usize))
            } else {
                self.data.probe(piece.id, piece.size, piece.off, piece.len)
            });
        }
        let missing = pieces.iter().zip(&ready).filter(|(_, payload)| payload.is_none()).map(|(piece, _)| piece);
        let mut fetched = join_all(missing.map(|p| self.data.read(p.id, p.size, p.off, p.len))).await.into_iter();
        let mut out = Payload::new();
        for payload in ready {
            out.append(match payload {
                Some(payload) => payload,
                None => fetched.next().expect("one fetch for each piece that was not ready")?,
            });
        }
        Ok(out)
    }

    fn read_ahead(&self, handle: &Arc<FileHandle>, off: u64, end: u64) {
        let window_max = self.settings.max_readahead_bytes;
        if window_max == 0 {
            return;
        }
        let block = u64::from(self.data.block_size());
        let range = handle.read_ahead.lock().advance(off, end - off, block, window_max);
        let Some((from, to)) = range else { return };
        let to = to.min(handle.file.state().length);
        if from >= to {
            return;
        }
        let Some(vfs) = self.me.upgrade() else { return };
        let file = handle.file.clone();
        self.spawn(async move {
            let Ok(pieces) = vfs.pieces(&file, from, to).await else {
                return; // the read itself will meet the same failure and report it
            };
            for piece in pieces.iter().filter(|piece| !piece.is_hole()) {
                vfs.data.warm(piece.id, piece.size, piece.off, piece.len);
            }
        });
    }
}

/// A slice whose objects are gone or do not fit: perhaps the list we hold is older than a compaction.
fn stale(fault: &Fault) -> bool {
    matches!(fault.kind(), FaultKind::NotFound | FaultKind::Integrity)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sequential_reads_open_the_window_and_random_ones_close_it() {
        const B: u64 = 4 << 20;
        let mut ahead = ReadAhead::default();
        assert_eq!(ahead.advance(0, 128 << 10, B, 8 * B), Some((128 << 10, (128 << 10) + B)));
        assert_eq!(ahead.advance(128 << 10, 128 << 10, B, 8 * B), Some(((128 << 10) + B, (256 << 10) + 2 * B)));
        assert_eq!(ahead.advance(100 * B, 4096, B, 8 * B), None);
        assert_eq!(ahead.advance(50 * B, 4096, B, 8 * B), None);
        // Records of 64 KiB, page by page; then a reader that goes on.
        for record in [300, 700, 200] {
            for page in 0..16 {
                assert_eq!(ahead.advance(record * B + page * 4096, 4096, B, 8 * B), None);
            }
        }
        let from = 200 * B + (64 << 10);
        assert_eq!(ahead.advance(from, 128 << 10, B, 8 * B), None);
        assert_eq!(
            ahead.advance(from + (128 << 10), 128 << 10, B, 8 * B),
            Some((from + (256 << 10), from + (256 << 10) + B))
        );
        let mut limited = ReadAhead::default();
        for i in 0..64 {
            limited.advance(i * (1 << 20), 1 << 20, B, 2 * B);
        }
        assert!(limited.requested <= 64 * (1 << 20) + 2 * B);
        assert!(limited.requested >= 64 * (1 << 20) + B);
    }
}
