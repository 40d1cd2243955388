//! Writing: bytes are copied once into slices under construction; full blocks leave for the store at once; a flush
//! finishes what is left and commits. Objects first, metadata second; slices of a file commit in the order in which
//! they were begun, so that a reader never sees a later write without an earlier one.
//!
//! Nothing acknowledged is forgotten silently: a slice that cannot be stored or committed leaves its error on the
//! file, and every later write, flush and fsync reports it until all handles are closed.

use super::Vfs;
use super::file::{File, FileState};
use super::handle::Handle;
use super::seen::Stamp;
use crate::base::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Outcome, Slice, SliceId, Stop, Timestamp};
use crate::buf::Payload;
use crate::chunk::SliceWriter;
use crate::meta::ops::slices::AppendedAll;
use bytes::Bytes;
use futures::future::join_all;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Largest offset a file may reach, exclusive (`spec/metadata.md` section 0).
pub const FILE_BYTES_MAX: u64 = CHUNK_BYTES << 31;
/// A slice that old is finished even if it still grows, one that idle too (`spec/data.md` 8.3).
const AGE_MAX: Duration = Duration::from_secs(5);
const IDLE_MAX: Duration = Duration::from_secs(1);
/// Slices of a file that may still grow: a few interleaved sequential writers.
const GROWING_MAX: usize = 4;
/// Uncommitted slices of a file beyond which writers wait for commits.
const PENDING_MAX: usize = 800;
/// A writer that finds no buffer memory, or a store that takes nothing, for this long is refused.
const MEMORY_WAIT_MAX: Duration = Duration::from_secs(120);
/// Slices committed in one transaction.
const COMMIT_BATCH: usize = 64;
/// A slice that was begun longer ago is not committed: this client must have stood still, and once they are an hour
/// old, objects that no record names are removed as leaks (`spec/surface.md`, gc).
const COMMIT_AGE_MAX: Duration = Duration::from_secs(30 * 60);

/// A slice that is not committed yet.
pub struct Pending {
    number: u64,
    index: ChunkIndex,
    /// Where it begins inside the chunk.
    pos: u32,
    len: u32,
    /// No more bytes are taken.
    frozen: bool,
    born: Instant,
    touched: Instant,
    /// `None` while it is being finished and committed.
    writer: Option<SliceWriter>,
}

impl Pending {
    /// File offsets.
    pub fn start(&self) -> u64 {
        u64::from(self.index.0) * CHUNK_BYTES + u64::from(self.pos)
    }

    pub fn end(&self) -> u64 {
        self.start() + u64::from(self.len)
    }

    /// A copy of the bytes between two offsets of the file that lie inside; `None` when the uploader has them.
    pub fn copy(&self, start: u64, end: u64) -> Option<Payload> {
        self.writer.as_ref()?.copy((start - self.start()) as u32, (end - start) as u32)
    }

    fn due(&self, now: Instant) -> bool {
        self.frozen || now - self.born > AGE_MAX || now - self.touched > IDLE_MAX
    }
}

impl Vfs {
    /// Takes the bytes without waiting: `None` when something must be waited for, and nothing was taken then.
    pub fn try_write(&self, ino: Ino, handle: Handle, off: u64, data: &[u8]) -> Option<Outcome<u32>> {
        let file = match self.writable_file(ino, handle, off, data.len()) {
            Ok(file) => file,
            Err(stop) => return Some(Err(stop)),
        };
        let fits_one_chunk = off % CHUNK_BYTES + data.len() as u64 <= CHUNK_BYTES;
        if !fits_one_chunk || !self.data.takes_writes() || file.state().pending.len() >= PENDING_MAX {
            return None;
        }
        self.take(&file, off, data, || self.meta.try_next_slice()).then_some(Ok(data.len() as u32))
    }

    /// Takes the bytes, waiting for memory, for a slice id and for earlier commits as needed.
    pub async fn write(&self, ino: Ino, handle: Handle, off: u64, data: Bytes) -> Outcome<u32> {
        let file = self.writable_file(ino, handle, off, data.len())?;
        let mut at = 0;
        while at < data.len() {
            let start = off + at as u64;
            let room = (CHUNK_BYTES - start % CHUNK_BYTES) as usize;
            let part = &data[at..data.len().min(at.saturating_add(room))];
            if file.state().pending.len() >= PENDING_MAX {
                self.flush_file(&file).await?;
            }
            self.data.wait_to_write(MEMORY_WAIT_MAX).await?;
            if !self.take(&file, start, part, || self.meta.try_next_slice()) {
                let id = self.meta.next_slice().await?;
                self.take(&file, start, part, || Some(id));
            }
            at += part.len();
        }
        Ok(data.len() as u32)
    }

    fn writable_file(&self, ino: Ino, handle: Handle, off: u64, len: usize) -> Outcome<Arc<File>> {
        let handle = self.handles.file(handle)?;
        if handle.ino != ino || !handle.writes() {
            return Err(Errno::EBADF.into());
        }
        let end = off.checked_add(len as u64).filter(|end| *end < FILE_BYTES_MAX).ok_or(Errno::EFBIG)?;
        let grown = {
            let state = handle.file.state();
            if let Some(error) = state.error {
                return Err(error.into());
            }
            end.saturating_sub(state.length)
        };
        if grown > 0 {
            self.meta.check_space(grown as i64, 0)?;
        }
        Ok(handle.file.clone())
    }

    /// Copies bytes that lie in one chunk into a growing slice, or into a new one with the id that `new_id` gives.
    /// False when it gives none; nothing was taken then.
    fn take(&self, file: &Arc<File>, off: u64, data: &[u8], new_id: impl FnOnce() -> Option<SliceId>) -> bool {
        if data.is_empty() {
            return true;
        }
        let index = ChunkIndex((off / CHUNK_BYTES) as u32);
        let pos = (off % CHUNK_BYTES) as u32;
        let now = Instant::now();
        let mut state = file.state();
        let at = match state.growing_slice(index, pos, data.len() as u32) {
            Some(at) => at,
            None => {
                let Some(id) = new_id() else { return false };
                let number = state.next_pending;
                state.next_pending += 1;
                let writer = Some(self.data.writer(Some(id), state.tier));
                let begun = Pending { number, index, pos, len: 0, frozen: false, born: now, touched: now, writer };
                state.pending.push_back(begun);
                state.pending.len() - 1
            }
        };
        let slice = &mut state.pending[at];
        let writer = slice.writer.as_mut().expect("a slice that still grows has its writer");
        if let Err(fault) = writer.write_at(pos - slice.pos, data) {
            // It said that it can take the range, so this is a broken promise of ours; nothing may be lost silently.
            tracing::error!(ino = file.ino.0, "{fault}");
            state.error.get_or_insert(fault.errno());
            return true;
        }
        slice.len = slice.len.max(pos - slice.pos + data.len() as u32);
        slice.touched = now;
        let full = u64::from(slice.pos) + u64::from(slice.len) == CHUNK_BYTES;
        if full {
            slice.frozen = true;
        }
        state.length = state.length.max(off + data.len() as u64);
        state.written_at = self.meta.now();
        state.version += 1;
        drop(state);
        if full {
            self.commit_soon(file.clone());
        }
        true
    }

    /// Commits what is finished, in the background.
    fn commit_soon(&self, file: Arc<File>) {
        let Some(vfs) = self.me.upgrade() else { return };
        self.spawn(async move {
            if let Err(stop) = vfs.commit_frozen(&file).await {
                tracing::warn!(ino = file.ino.0, "background commit: {stop}");
            }
        });
    }

    /// Stores and commits everything written so far; reports what was lost.
    pub(super) async fn flush_file(&self, file: &Arc<File>) -> Outcome<()> {
        {
            let mut state = file.state();
            if state.pending.is_empty() {
                return state.error.map_or(Ok(()), |error| Err(error.into()));
            }
            state.pending.iter_mut().for_each(|slice| slice.frozen = true);
        }
        self.commit_frozen(file).await
    }

    /// Stores and commits the frozen slices at the head of the file's list, in order.
    async fn commit_frozen(&self, file: &Arc<File>) -> Outcome<()> {
        let _one_at_a_time = file.committing.lock().await;
        loop {
            // Each slice changes a chunk and a reference.
            let most = COMMIT_BATCH.min(self.meta.engine().batch_max() / 2).max(1);
            let (batch, mtime) = file.state().take_frozen(most);
            if batch.is_empty() {
                break;
            }
            self.commit_batch(file, batch, mtime).await;
        }
        let (error, idle) = {
            let state = file.state();
            (state.error, state.users == 0 && state.pending.is_empty())
        };
        if idle {
            self.files.forget_idle(file);
        }
        error.map_or(Ok(()), |error| Err(error.into()))
    }

    async fn commit_batch(&self, file: &Arc<File>, batch: Vec<Taken>, mtime: Timestamp) {
        // Asked for before the file's error is looked at: a session that is lost later than this fails the commit.
        let session = self.meta.session();
        let born = batch.iter().map(|taken| taken.born).min().expect("a batch has slices");
        let finished = join_all(batch.into_iter().map(|taken| async move {
            let Taken { number, index, pos, writer, .. } = taken;
            let id = writer.id().expect("a slice is begun with its id in hand");
            let size = writer.finish().await;
            (number, index, size.map(|size| Slice { pos, id, size, off: 0, len: size }))
        }))
        .await;
        let mut slices = Vec::with_capacity(finished.len());
        let mut failure = file.state().error.map(Stop::from);
        if failure.is_none() && born.elapsed() > COMMIT_AGE_MAX {
            tracing::error!(ino = file.ino.0, "written data is lost: this client stood still for too long");
            failure = Some(Errno::EIO.into());
        }
        let numbers: Vec<u64> = finished.iter().map(|(number, ..)| *number).collect();
        for (_, index, stored) in finished {
            match stored {
                // Nothing is committed over a hole that an earlier slice left, or without the session that it was
                // written in; the objects go.
                Ok(slice) if failure.is_none() => slices.push((index, slice)),
                Ok(slice) => self.discard(slice).await,
                Err(fault) => {
                    tracing::error!(ino = file.ino.0, "written data is lost: {fault}");
                    failure = Some(Stop::from(fault));
                }
            }
        }
        if !slices.is_empty() {
            // What is known of other chunks, and the kernel's pages, stay good only if nobody else came between.
            let seen = file.state().seen;
            let known = seen.map(|seen| (seen.mtime, seen.ctime, seen.length));
            match self.meta.append_slices_of(session, file.ino, slices.clone(), mtime, known).await {
                Ok(appended) => self.note_commit(file, &slices, &appended, seen),
                Err(stop) => {
                    // When it is not known whether the commit was applied, the objects must stay.
                    if matches!(stop, Stop::Errno(_)) {
                        for (_, slice) in &slices {
                            self.discard(*slice).await;
                        }
                    }
                    match &stop {
                        // Removed by another client while open here: nobody can read it any more.
                        Stop::Errno(Errno::ENOENT) => {
                            tracing::debug!(ino = file.ino.0, "written data is not committed: the file is gone")
                        }
                        Stop::Errno(errno) => {
                            tracing::error!(ino = file.ino.0, "written data is not committed: {errno:?}")
                        }
                        Stop::Fault(fault) => {
                            tracing::error!(ino = file.ino.0, "written data is not committed: {fault}")
                        }
                    }
                    failure = failure.or(Some(stop));
                }
            }
        }
        let mut state = file.state();
        state.pending.retain(|slice| !numbers.contains(&slice.number));
        if let Some(stop) = failure {
            state.fail(stop.errno());
        }
    }

    /// Objects of a slice that will never be committed.
    async fn discard(&self, slice: Slice) {
        if let Err(fault) = self.data.remove(slice.id, slice.size).await {
            tracing::warn!(slice = slice.id.0, "objects of an uncommitted slice are left behind: {fault}");
        }
    }

    /// Carries a commit of ours over into what we know of the file, so that it need not be read back. `before` is what
    /// had been seen of the file when it was sent.
    fn note_commit(
        &self,
        file: &Arc<File>,
        slices: &[(ChunkIndex, Slice)],
        appended: &AppendedAll,
        before: Option<Stamp>,
    ) {
        let mut state = file.state();
        if !appended.unchanged {
            state.pages_old = true;
            state.forget_chunks();
        }
        for (index, count) in &appended.records {
            let Some(view) = state.chunks.get_mut(index) else { continue };
            let ours = || slices.iter().filter(|(i, _)| i == index).map(|(_, slice)| *slice);
            if view.records().len() + ours().count() == *count {
                Arc::make_mut(view).append(ours());
            } else {
                // Somebody else changed the list meanwhile: read it afresh next time.
                state.forget_chunk(*index);
            }
        }
        state.committed(&appended.attr, before);
        drop(state);
        for (index, count) in &appended.records {
            if count % 100 == 99 || *count > 350 {
                self.suggest_compaction(file.ino, *index, *count, 0);
            }
        }
    }

    /// Freezes and commits what has become old; called by the mount's ticker.
    pub(super) fn commit_aged(&self) {
        for file in self.files.dirty() {
            let now = Instant::now();
            let mut state = file.state();
            let due = state.pending.iter().rposition(|slice| slice.due(now));
            if let Some(last) = due {
                state.pending.iter_mut().take(last + 1).for_each(|slice| slice.frozen = true);
                drop(state);
                self.commit_soon(file);
            }
        }
    }

    /// Commits everything of all files; answers the first failure after having tried them all.
    pub async fn flush_all(&self) -> Outcome<()> {
        let mut first = Ok(());
        for file in self.files.dirty() {
            let flushed = self.flush_file(&file).await;
            if first.is_ok() {
                first = flushed;
            }
        }
        first
    }
}

/// A slice on its way into the metadata.
struct Taken {
    number: u64,
    index: ChunkIndex,
    pos: u32,
    born: Instant,
    writer: SliceWriter,
}

impl FileState {
    /// The slice that can take `len` bytes at `pos` of the chunk: looked for from the newest, because a slice under
    /// a newer one must not change what the newer one shows. All but the newest few stop growing.
    fn growing_slice(&mut self, index: ChunkIndex, pos: u32, len: u32) -> Option<usize> {
        let mut growing = 0;
        let mut found = None;
        for (at, slice) in self.pending.iter_mut().enumerate().rev() {
            if slice.frozen || slice.writer.is_none() {
                break;
            }
            growing += 1;
            if growing > GROWING_MAX {
                slice.frozen = true;
                continue;
            }
            if found.is_some() || slice.index != index {
                continue;
            }
            let takes =
                pos >= slice.pos && slice.writer.as_ref().is_some_and(|writer| writer.can_accept(pos - slice.pos, len));
            if takes {
                found = Some(at);
            } else if u64::from(pos) < u64::from(slice.pos) + u64::from(slice.len) && slice.pos < pos + len {
                break;
            }
        }
        found
    }

    /// Up to so many of the frozen slices at the head of the list, their writers taken out.
    fn take_frozen(&mut self, most: usize) -> (Vec<Taken>, Timestamp) {
        let mut batch = Vec::new();
        for slice in self.pending.iter_mut().take(most) {
            if !slice.frozen {
                break;
            }
            match slice.writer.take() {
                Some(writer) => {
                    let Pending { number, index, pos, born, .. } = *slice;
                    batch.push(Taken { number, index, pos, born, writer });
                }
                // Its commit was given up half-way, which only a dropped runtime can do.
                None => self.error = self.error.or(Some(Errno::EIO)),
            }
        }
        if batch.is_empty() && self.pending.front().is_some_and(|slice| slice.frozen) {
            self.pending.retain(|slice| slice.writer.is_some());
        }
        if !batch.is_empty() {
            if self.seen.is_some_and(|seen| seen.mtime == self.written_at) {
                self.written_at = self.written_at.after();
            }
            self.written_at = self.written_at.max(self.committed_at.after());
            self.committed_at = self.written_at;
        }
        (batch, self.written_at)
    }
}
