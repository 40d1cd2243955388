//! What this client knows of an open file: its length, its chunks as last read, and what is written but not yet
//! committed. One `File` is shared by all handles of an inode.
//!
//! A `version` counts every change made through this client, and every look that showed one of others. Attributes
//! that were asked for before a change and arrive after it may be older than it or newer: they are not believed, and
//! when they say something else, neither is what was known.

use super::seen::Stamp;
use super::writer::Pending;
use crate::base::slice::resolve;
use crate::base::{Attr, ChunkIndex, Errno, Ino, Slice, Timestamp};
use crate::buf::Payload;
use parking_lot::{Mutex, MutexGuard};
use std::collections::{HashMap, VecDeque};
use std::sync::{Arc, OnceLock};

/// A chunk's list as read, and what is visible of it.
#[derive(Clone)]
pub struct ChunkView {
    records: Vec<Slice>,
    /// Worked out by the first reader: writers append to the list many times without looking.
    pieces: OnceLock<Vec<Slice>>,
}

impl ChunkView {
    pub fn new(records: Vec<Slice>) -> ChunkView {
        ChunkView { records, pieces: OnceLock::new() }
    }

    pub fn records(&self) -> &[Slice] {
        &self.records
    }

    /// What is visible, in order of position.
    pub fn pieces(&self) -> &[Slice] {
        self.pieces.get_or_init(|| resolve(&self.records))
    }

    /// A commit of this client has put more records at the end of the list.
    pub fn append(&mut self, records: impl IntoIterator<Item = Slice>) {
        self.records.extend(records);
        self.pieces.take();
    }

    /// The visible pieces inside `[from, to)` of the chunk, cut to it. What no record covers is left out.
    pub fn cut(&self, from: u32, to: u32) -> impl Iterator<Item = Slice> {
        let pieces = self.pieces();
        let first = pieces.partition_point(|piece| piece.end() <= u64::from(from));
        pieces[first..].iter().take_while(move |piece| piece.pos < to).map(move |piece| {
            let skipped = from.saturating_sub(piece.pos);
            let pos = piece.pos + skipped;
            let end = piece.end().min(u64::from(to)) as u32;
            Slice { pos, off: piece.off + skipped, len: end - pos, ..*piece }
        })
    }
}

/// An inode with open handles in this client.
pub struct File {
    pub ino: Ino,
    state: Mutex<FileState>,
    /// Held while slices are finished and committed: one commit of a file at a time, in the order of their creation.
    pub(super) committing: tokio::sync::Mutex<()>,
}

pub struct FileState {
    /// Bytes, own uncommitted writes included.
    pub length: u64,
    /// As of the last look; what is written from then on is stored as this tier says.
    pub tier: u8,
    /// The file when `chunks` was last known to be right.
    pub seen: Option<Stamp>,
    pub version: u64,
    /// How often lists were forgotten: one that was asked for before that and arrives after it is not kept.
    pub forgotten: u64,
    pub chunks: HashMap<ChunkIndex, Arc<ChunkView>>,
    /// Uncommitted slices, oldest first.
    pub pending: VecDeque<Pending>,
    pub next_pending: u64,
    /// Time of the last write that is not committed yet.
    pub written_at: Timestamp,
    /// The time that the last commit gave the file. Each commit gives a later one, or a client that looked between two
    /// would take the file for the one it knows.
    pub committed_at: Timestamp,
    /// A write that was acknowledged and then lost; every later write, flush and fsync reports it until the file is
    /// closed by all.
    pub error: Option<Errno>,
    /// The kernel's pages of the file may be older than `seen`: somebody else changed it while it was open here, or what
    /// was written was lost.
    pub pages_old: bool,
    /// Open handles, and handles being opened.
    pub users: usize,
}

impl File {
    pub fn new(ino: Ino) -> File {
        File {
            ino,
            state: Mutex::new(FileState {
                length: 0,
                tier: 0,
                seen: None,
                version: 0,
                forgotten: 0,
                chunks: HashMap::new(),
                pending: VecDeque::new(),
                next_pending: 0,
                written_at: Timestamp::default(),
                committed_at: Timestamp::default(),
                error: None,
                pages_old: false,
                users: 0,
            }),
            committing: tokio::sync::Mutex::new(()),
        }
    }

    pub fn state(&self) -> MutexGuard<'_, FileState> {
        self.state.lock()
    }

    /// To be called before attributes are asked for; `observe` wants it back.
    pub fn version(&self) -> u64 {
        self.state.lock().version
    }

    /// Takes attributes from the metadata, asked for when the file was at `version`, and completes them with what
    /// only this client knows. False when another look or a commit of this client was noted meanwhile and said something
    /// else: which one is newer cannot be told then, and what is known of the file is forgotten.
    pub fn observe(&self, attr: &mut Attr, version: u64) -> bool {
        let mut state = self.state.lock();
        let stamp = Stamp::of(attr);
        state.tier = attr.tier;
        let agrees = state.seen == Some(stamp);
        let in_order = agrees || state.version == version;
        if !in_order {
            state.doubt(attr);
        } else if !agrees {
            state.version += 1;
            state.pages_old |= state.seen.is_some();
            state.forget_chunks();
            state.seen = Some(stamp);
            state.length = attr.length.max(state.pending_end());
        }
        state.complete(attr, in_order);
        in_order
    }

    /// Completes attributes that were asked for before the file was known to be open here.
    pub fn complete(&self, attr: &mut Attr) {
        self.state.lock().complete(attr, false);
    }
}

impl FileState {
    /// Nothing that was seen of the file counts any more.
    fn forget(&mut self) {
        self.seen = None;
        self.pages_old = true;
        self.forget_chunks();
    }

    /// The lists are to be read afresh.
    pub fn forget_chunks(&mut self) {
        self.chunks.clear();
        self.forgotten += 1;
    }

    /// As `forget_chunks`, of one chunk.
    pub fn forget_chunk(&mut self, index: ChunkIndex) {
        self.chunks.remove(&index);
        self.forgotten += 1;
    }

    /// A change made through this client has reached the metadata, which said `attr` then; `before` is what had been
    /// seen of the file when it was sent.
    pub fn committed(&mut self, attr: &Attr, before: Option<Stamp>) {
        self.version += 1;
        let stamp = Stamp::of(attr);
        if self.seen == before || self.seen == Some(stamp) {
            self.seen = Some(stamp);
            self.length = attr.length.max(self.pending_end());
        } else {
            // Others looked while the answer was on its way, and may have seen what came after the change.
            self.doubt(attr);
        }
    }

    /// Two looks at the file differ, and it is not known which one is newer: the next look decides.
    fn doubt(&mut self, attr: &Attr) {
        self.forget();
        self.length = self.length.max(attr.length).max(self.pending_end());
    }

    fn complete(&self, attr: &mut Attr, in_order: bool) {
        if !self.pending.is_empty() {
            attr.mtime = attr.mtime.max(self.written_at);
            attr.ctime = attr.ctime.max(self.written_at);
        }
        if !self.pending.is_empty() || !in_order {
            attr.length = attr.length.max(self.length);
        }
    }

    /// Acknowledged writes are lost. What is known of the file is forgotten, for it may have counted on them.
    pub fn fail(&mut self, error: Errno) {
        self.error.get_or_insert(error);
        self.version += 1;
        self.forget();
    }

    /// Where uncommitted data ends.
    pub fn pending_end(&self) -> u64 {
        self.pending.iter().map(Pending::end).max().unwrap_or(0)
    }

    /// What `[from, to)` shows of bytes that are not committed yet.
    pub fn uncommitted(&self, from: u64, to: u64) -> Uncommitted {
        let mut copies = Vec::new();
        // Newer slices lie over older ones, so an older one shows only where the newer ones left gaps.
        let mut gaps = vec![from..to];
        for slice in self.pending.iter().rev() {
            let mut left = Vec::with_capacity(gaps.len() + 1);
            for gap in gaps {
                let (start, end) = (gap.start.max(slice.start()), gap.end.min(slice.end()));
                if start >= end {
                    left.push(gap);
                    continue;
                }
                let Some(copy) = slice.copy(start, end) else { return Uncommitted::Leaving };
                copies.push((start, copy));
                left.extend([gap.start..start, end..gap.end].into_iter().filter(|rest| !rest.is_empty()));
            }
            gaps = left;
        }
        copies.sort_unstable_by_key(|(start, _)| *start);
        Uncommitted::Copied(copies)
    }
}

/// Uncommitted bytes of a range.
pub enum Uncommitted {
    /// All that shows of them, with their offsets in the file: in order, without overlap. Empty when there are none.
    Copied(Vec<(u64, Payload)>),
    /// Some of them are on their way to the store and must be waited for.
    Leaving,
}

const SHARDS: usize = 16;

/// All open files of a mount.
#[derive(Default)]
pub struct Files {
    shards: [Mutex<HashMap<Ino, Arc<File>>>; SHARDS],
}

impl Files {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Arc<File>>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub fn get(&self, ino: Ino) -> Option<Arc<File>> {
        self.shard(ino).lock().get(&ino).cloned()
    }

    /// The file of a handle that is being opened; pairs with `leave`.
    pub fn enter(&self, ino: Ino) -> Arc<File> {
        let mut shard = self.shard(ino).lock();
        let file = shard.entry(ino).or_insert_with(|| Arc::new(File::new(ino))).clone();
        // Under the lock of the shard, or the last one to leave could take it for idle.
        file.state().users += 1;
        file
    }

    /// A handle is gone. The file is forgotten with its last handle once nothing is pending.
    pub fn leave(&self, file: &Arc<File>) {
        file.state().users -= 1;
        self.forget_idle(file);
    }

    /// Forgets a file without handles once its last slice is committed. A commit that ends late may hold one that is
    /// forgotten already, and in whose place another was opened.
    pub fn forget_idle(&self, file: &Arc<File>) {
        let mut shard = self.shard(file.ino).lock();
        let idle = {
            let state = file.state();
            state.users == 0 && state.pending.is_empty()
        };
        if idle && shard.get(&file.ino).is_some_and(|known| Arc::ptr_eq(known, file)) {
            shard.remove(&file.ino);
        }
    }

    /// Every file that is open or has uncommitted data, in the order of their numbers.
    pub fn all(&self) -> Vec<Arc<File>> {
        let of_shard = |shard: &Mutex<HashMap<Ino, Arc<File>>>| shard.lock().values().cloned().collect::<Vec<_>>();
        let mut all: Vec<Arc<File>> = self.shards.iter().flat_map(of_shard).collect();
        all.sort_by_key(|file| file.ino);
        all
    }

    /// Every file with uncommitted data, or with data that was lost, in the order of their numbers.
    pub fn dirty(&self) -> Vec<Arc<File>> {
        let mut files = self.all();
        files.retain(|file| {
            let state = file.state();
            !state.pending.is_empty() || state.error.is_some()
        });
        files
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_lost_in_the_background_is_not_passed_over() {
        let files = Files::default();
        let file = files.enter(Ino(5));
        assert!(files.dirty().is_empty());
        file.state().error = Some(Errno::ENOSPC);
        assert_eq!(files.dirty().len(), 1, "flushing all answers with its error");
    }

    #[test]
    fn a_commit_that_ends_late_forgets_no_file_that_was_opened_meanwhile() {
        let files = Files::default();
        let first = files.enter(Ino(5));
        files.leave(&first);
        assert!(files.get(Ino(5)).is_none());
        let second = files.enter(Ino(5));
        files.forget_idle(&first);
        assert!(files.get(Ino(5)).is_some_and(|known| Arc::ptr_eq(&known, &second)));
        files.leave(&second);
        assert!(files.get(Ino(5)).is_none());
    }
}
