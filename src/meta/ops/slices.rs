//! Slices of a file: the lists of its chunks as they are stored, the commit of what was written, and the accounting
//! of a changed length (`spec/metadata.md` 1.6, 1.15, 7.11).
//!
//! The bytes of a slice are stored before its commit; nothing here knows where. A commit only ever appends, so that
//! writers of one file disturb one another no more than the length of the file makes them.

use crate::base::{
    Attr, AttrPatch, CHUNK_BYTES, ChunkIndex, Errno, FieldMask, Ino, Kind, Outcome, SessionId, Slice, Timestamp,
    align4k,
};
use crate::meta::Meta;
use crate::meta::engine::{Change, Committed};
use crate::meta::known::FRESH;
use crate::meta::record::{DirStat, Key, Record};
use crate::meta::session::{require_alive, session_of};
use crate::meta::txn::{AttrOf, ChunkOf, LinkParentsOf, Operation, Peek, Seen, Settled, Tx, possible};
use parking_lot::Mutex;
use std::ops::Range;
use std::time::Duration;

/// The longest a file can be: chunk indexes have 31 bits (`spec/metadata.md` section 0).
pub const LENGTH_BYTES_MAX: u64 = (1 << 57) - 1;

/// What committing a slice tells.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Appended {
    /// The node as the commit left it, as far as it was looked at: for a reply, not for a decision.
    pub attr: Attr,
    /// Records in the chunk's list now; long lists ask for compaction.
    pub records: usize,
}

/// What committing several slices of one file tells.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct AppendedAll {
    /// As in `Appended`.
    pub attr: Attr,
    /// Records in the list of each chunk that was written.
    pub records: Vec<(ChunkIndex, usize)>,
    /// Up to the commit the file was as the caller knew it.
    pub unchanged: bool,
}

/// Where a chunk begins in its file.
pub(crate) fn chunk_start(index: ChunkIndex) -> u64 {
    u64::from(index.0) * CHUNK_BYTES
}

/// Accounts for a file growing or shrinking to `length`: volume usage, and the statistics of each directory that
/// names it, once per entry. Guards the present length, and the places of the file when they matter. ENOSPC when the
/// volume is full.
pub(crate) async fn account_length(tx: &mut Tx<'_>, meta: &Meta, node: &Seen, length: u64) -> Outcome<()> {
    let present = node.length();
    if length == present {
        return Ok(());
    }
    let space = align4k(length) as i64 - align4k(present) as i64;
    meta.check_space(space, 0)?;
    let delta = DirStat { length: length as i64 - present as i64, space, inodes: 0 };
    tx.add_usage(space, 0);
    // An unlinked file that is still open counts for the volume, but for no directory any more.
    if !meta.rules().dir_stats || node.nlink() == 0 {
        return Ok(());
    }
    match node.parent() {
        Ino::MANY => {
            for (dir, entries) in tx.load(LinkParentsOf(node.ino())).await? {
                let times = |part: i64| part.saturating_mul(entries.max(0));
                let delta = DirStat { length: times(delta.length), space: times(delta.space), inodes: 0 };
                tx.add_dir_stat(dir, delta);
            }
        }
        dir => tx.add_dir_stat(dir, delta),
    }
    Ok(())
}

struct AppendSlices<'a> {
    meta: &'a Meta,
    /// The one that the bytes were written in; 0: none.
    session: SessionId,
    ino: Ino,
    /// Within a chunk in the order in which they take effect.
    chunks: &'a [(ChunkIndex, Vec<Slice>)],
    mtime: Timestamp,
    /// Times of change and length as the caller knows them.
    known: Option<(Timestamp, Timestamp, u64)>,
    /// What the latest attempt saw and would leave: by it `settle` knows its own commit again.
    attempt: Mutex<Option<Attempt>>,
}

#[derive(Clone, Copy)]
struct Attempt {
    before: (Timestamp, Timestamp),
    after: (Timestamp, Timestamp),
}

impl Operation for AppendSlices<'_> {
    const NAME: &'static str = "append_slice";
    const RELIES_ON: Duration = FRESH;
    /// The second is the list lengths, when they were looked at; the third, that nothing came between.
    type Output = (Attr, Vec<usize>, bool);

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Self::Output> {
        let (node, session) = tx.load((AttrOf(self.ino), session_of(self.session))).await?;
        require_alive(&session)?;
        let node = node.exists()?;
        if node.kind() != Kind::File {
            return Err(Errno::EPERM.into());
        }
        // The length is guarded even if it stays: commits inside it do not change it and so never meet, but a
        // truncate between load and commit would leave this one with the wrong accounting.
        let length = node.length().max(self.end());
        // The times are guarded only while there is something to lose: writers of one file meet once at most.
        let unchanged = self.known.is_some_and(|known| {
            let attr = node.peek();
            known == (attr.mtime, attr.ctime, attr.length)
        });
        if unchanged {
            node.saw(FieldMask::MTIME);
            node.saw(FieldMask::CTIME);
        }
        account_length(tx, self.meta, &node, length).await?;
        let mut patch = AttrPatch::new().set_mtime(self.mtime).set_ctime(tx.now());
        if length > node.length() {
            patch = patch.grow_to(length);
        }
        for (index, slices) in self.chunks {
            tx.change(Change::Append { ino: self.ino, index: *index, slices: slices.clone(), only_existing: false });
            for slice in slices.iter().filter(|s| !s.is_hole()) {
                tx.change(Change::Put(Key::SliceRef(slice.id, slice.size), Record::Number(1)));
            }
        }
        tx.patch(self.ino, patch);
        let mut attr = *node.peek();
        let before = (attr.mtime, attr.ctime);
        patch.apply(&mut attr);
        *self.attempt.lock() = Some(Attempt { before, after: (attr.mtime, attr.ctime) });
        Ok((attr, Vec::new(), unchanged))
    }

    /// Slice ids are used once, so a slice in its chunk was put there by us. Without it, the commit was lost, or
    /// the slice was compacted away since; appending it again then would show old bytes, and point at objects that
    /// are about to go.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Self::Output>> {
        let lists: Vec<_> = self.chunks.iter().map(|(index, _)| Peek(ChunkOf(self.ino, *index))).collect();
        let (node, lists) = tx.load((AttrOf(self.ino), lists)).await?;
        let Some(node) = node.into_option() else { return Ok(Settled::NotApplied) };
        let attr = *node.peek();
        let written =
            || self.chunks.iter().zip(&lists).flat_map(|((_, slices), list)| slices.iter().map(move |s| (s, list)));
        let times = (attr.mtime, attr.ctime);
        let attempt = *self.attempt.lock();
        if written().any(|(slice, list)| list.contains(slice)) || attempt.is_some_and(|a| a.after == times) {
            return Ok(Settled::Applied((attr, lists.iter().map(Vec::len).collect(), false)));
        }
        // Only a record over the same bytes could be the compaction that took the slice in.
        let compacted = |slice: &Slice, list: &[Slice]| {
            list.iter().any(|r| !r.is_hole() && u64::from(r.pos) < slice.end() && r.end() > u64::from(slice.pos))
        };
        let untouched = attempt.is_some_and(|a| a.before == times);
        Ok(if untouched || !written().all(|(slice, list)| compacted(slice, list)) {
            Settled::NotApplied
        } else {
            Settled::Unknown
        })
    }
}

impl AppendSlices<'_> {
    /// Where the last byte ends, in the file.
    fn end(&self) -> u64 {
        let ends = self.chunks.iter().flat_map(|(index, slices)| slices.iter().map(|s| chunk_start(*index) + s.end()));
        ends.max().unwrap_or(0)
    }
}

/// Slices by chunk, each chunk once; within a chunk the order is kept.
fn by_chunk(slices: Vec<(ChunkIndex, Slice)>) -> Vec<(ChunkIndex, Vec<Slice>)> {
    let mut chunks: Vec<(ChunkIndex, Vec<Slice>)> = Vec::new();
    for (index, slice) in slices {
        match chunks.iter_mut().find(|(i, _)| *i == index) {
            Some((_, list)) => list.push(slice),
            None => chunks.push((index, vec![slice])),
        }
    }
    chunks
}

impl Meta {
    /// The slice records of a chunk as stored, oldest first; empty for a missing chunk, which is all zeros.
    pub async fn read_chunk(&self, ino: Ino, index: ChunkIndex) -> Outcome<Vec<Slice>> {
        let key = Key::Chunk(ino, index);
        possible(&key, self.read(std::slice::from_ref(&key)).await?.pop().flatten())
    }

    /// The attributes of a node and one of its chunks, of the same moment; ENOENT when it is gone.
    pub(super) async fn stored_attr_and_chunk(&self, ino: Ino, index: ChunkIndex) -> Outcome<(Attr, Vec<Slice>)> {
        let keys = [Key::Attr(ino), Key::Chunk(ino, index)];
        let mut records = self.read(&keys).await?;
        let list = possible(&keys[1], records.pop().flatten())?;
        let attr = records.pop().flatten();
        self.known().note(&keys[0], attr.as_ref());
        match attr {
            Some(Record::Attr(attr)) => Ok((attr, list)),
            _ => Err(Errno::ENOENT.into()),
        }
    }

    /// As `read_chunk`, for who reads through a handle: ENOENT when another client has removed the file. Its chunks go
    /// with it, and what was in them is no hole.
    pub async fn read_chunk_of_file(&self, ino: Ino, index: ChunkIndex) -> Outcome<Vec<Slice>> {
        let slices = self.read_chunk(ino, index).await?;
        // Asked for afterwards: a file that is there now was there before.
        if slices.is_empty() && self.read(&[Key::Attr(ino)]).await?.pop().flatten().is_none() {
            return Err(Errno::ENOENT.into());
        }
        Ok(slices)
    }

    /// As `read_chunk` for a range of chunks, in one trip; every index of the range is answered.
    pub async fn read_chunks(&self, ino: Ino, indexes: Range<ChunkIndex>) -> Outcome<Vec<(ChunkIndex, Vec<Slice>)>> {
        let indexes: Vec<ChunkIndex> = (indexes.start.0..indexes.end.0).map(ChunkIndex).collect();
        let keys: Vec<Key> = indexes.iter().map(|index| Key::Chunk(ino, *index)).collect();
        let records = self.read(&keys).await?;
        let lists = keys.iter().zip(records).map(|(key, record)| possible(key, record));
        indexes.into_iter().zip(lists).map(|(index, list)| Ok((index, list?))).collect()
    }

    /// Makes a slice visible whose bytes are stored: the write commit. `mtime` is when the bytes were last changed.
    /// EPERM for anything but a regular file.
    pub async fn append_slice(&self, ino: Ino, index: ChunkIndex, slice: Slice, mtime: Timestamp) -> Outcome<Appended> {
        let AppendedAll { attr, records, .. } = self.append_slices(ino, vec![(index, slice)], mtime).await?;
        Ok(Appended { attr, records: records.first().map_or(0, |(_, records)| *records) })
    }

    /// Commits several slices of one file at once, in order: all become visible, or none.
    pub async fn append_slices(
        &self,
        ino: Ino,
        slices: Vec<(ChunkIndex, Slice)>,
        mtime: Timestamp,
    ) -> Outcome<AppendedAll> {
        self.append_slices_of(self.session(), ino, slices, mtime, None).await
    }

    /// As `append_slices`, of bytes that were written in `session`: EIO when it was cleaned since. Then others may
    /// hold the locks that the bytes were written under, and may have removed their objects. A caller that knows the
    /// file as it was with the mtime, ctime and length in `known` learns whether it was still that when the commit was
    /// made.
    pub async fn append_slices_of(
        &self,
        session: SessionId,
        ino: Ino,
        slices: Vec<(ChunkIndex, Slice)>,
        mtime: Timestamp,
        known: Option<(Timestamp, Timestamp, u64)>,
    ) -> Outcome<AppendedAll> {
        self.writable()?;
        for (index, slice) in &slices {
            if !slice.is_possible() {
                return Err(Errno::EINVAL.into());
            }
            if chunk_start(*index) + slice.end() > LENGTH_BYTES_MAX {
                return Err(Errno::EFBIG.into());
            }
        }
        let chunks = by_chunk(slices);
        let op = AppendSlices { meta: self, session, ino, chunks: &chunks, mtime, known, attempt: Mutex::new(None) };
        let ((attr, settled, unchanged), Committed { list_lengths, .. }) = self.run_reporting(&op).await?;
        let lengths = if list_lengths.is_empty() { settled } else { list_lengths };
        let records = chunks.iter().map(|(index, _)| *index).zip(lengths).collect();
        Ok(AppendedAll { attr, records, unchanged })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;
    use crate::meta::engine::Batch;
    use crate::meta::record::Counter;
    use crate::meta::testing::{Store, file, lossy_volume, references, volume};
    use crate::util::clock::SystemClock;
    use std::sync::Arc;

    fn written(pos: u32, id: u64, len: u32) -> Slice {
        Slice { pos, id: SliceId(id), size: len, off: 0, len }
    }

    async fn number(meta: &Meta, key: Key) -> i64 {
        match meta.engine().read(&[key]).await.unwrap().pop().flatten() {
            Some(Record::Number(n)) => n,
            other => panic!("{other:?}"),
        }
    }

    async fn root_stat(meta: &Meta) -> DirStat {
        match meta.engine().read(&[Key::DirStat(Ino::ROOT)]).await.unwrap().pop().flatten() {
            Some(Record::DirStat(stat)) => stat,
            other => panic!("{other:?}"),
        }
    }

    /// Gives the root the statistics that only made directories have from the start.
    async fn with_root_stat(meta: &Meta) {
        let (txn, _) = meta.engine().begin(&[Key::DirStat(Ino::ROOT)]).await.unwrap();
        let put = Change::Put(Key::DirStat(Ino::ROOT), Record::DirStat(DirStat::default()));
        txn.commit(Batch { guards: vec![], changes: vec![put] }).await.unwrap();
    }

    #[tokio::test]
    async fn a_commit_grows_the_file_and_is_accounted() {
        let meta = volume().await;
        with_root_stat(&meta).await;
        let ino = file(&meta, "f").await;
        let mtime = Timestamp::new(5, 6);
        let done = meta.append_slice(ino, ChunkIndex(1), written(10, 1, 90), mtime).await.unwrap();
        assert_eq!((done.attr.length, done.attr.mtime, done.records), (CHUNK_BYTES + 100, mtime, 1));
        assert_eq!(meta.getattr(ino).await.unwrap(), done.attr);
        let done = meta.append_slice(ino, ChunkIndex(1), written(0, 2, 5), mtime).await.unwrap();
        assert_eq!((done.attr.length, done.records), (CHUNK_BYTES + 100, 2));
        assert_eq!(meta.read_chunk(ino, ChunkIndex(1)).await.unwrap(), [written(10, 1, 90), written(0, 2, 5)]);
        assert_eq!(meta.read_chunks(ino, ChunkIndex(0)..ChunkIndex(2)).await.unwrap()[0], (ChunkIndex(0), vec![]));
        let space = (CHUNK_BYTES + 4096) as i64;
        assert_eq!(number(&meta, Key::Counter(Counter::UsedSpace)).await, space);
        assert_eq!(references(&meta, SliceId(1), 90).await, 1);
        assert_eq!(root_stat(&meta).await, DirStat { length: (CHUNK_BYTES + 100) as i64, space, inodes: 1 });
    }

    #[tokio::test]
    async fn a_hard_linked_file_counts_once_for_each_entry() {
        let meta = volume().await;
        with_root_stat(&meta).await;
        let ino = file(&meta, "f").await;
        let other = crate::base::Name::entry(b"g").unwrap();
        meta.link(&crate::meta::Caller::root(), ino, Ino::ROOT, &other).await.unwrap();
        assert_eq!(root_stat(&meta).await, DirStat { length: 0, space: 2 * 4096, inodes: 2 });
        meta.append_slice(ino, ChunkIndex(0), written(0, 1, 5000), Timestamp::default()).await.unwrap();
        assert_eq!(root_stat(&meta).await, DirStat { length: 10000, space: 2 * 8192, inodes: 2 });
    }

    #[tokio::test]
    async fn a_full_volume_takes_no_more_bytes() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        meta.refresh_usage().await.unwrap();
        meta.set_rules(crate::meta::Rules { capacity_bytes: 3 * 4096, ..meta.rules() });
        let append =
            async |pos, id| meta.append_slice(ino, ChunkIndex(0), written(pos, id, 4096), Timestamp::default()).await;
        append(8192, 1).await.unwrap();
        append(0, 2).await.unwrap();
        assert_eq!(append(12288, 3).await.unwrap_err().errno(), Errno::ENOSPC);
        let root = crate::meta::Caller::root();
        assert_eq!(meta.truncate(&root, ino, 12289, true).await.unwrap_err().errno(), Errno::ENOSPC);
        meta.truncate(&root, ino, 1, true).await.unwrap();
        meta.truncate(&root, ino, 12288, true).await.unwrap();
    }

    #[tokio::test]
    async fn a_chunk_that_went_with_its_file_is_no_hole() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        assert_eq!(meta.read_chunk_of_file(ino, ChunkIndex(3)).await.unwrap(), []);
        meta.unlink(&crate::meta::Caller::root(), Ino::ROOT, &crate::base::Name::entry(b"f").unwrap(), true)
            .await
            .unwrap();
        assert_eq!(meta.read_chunk_of_file(ino, ChunkIndex(3)).await.unwrap_err().errno(), Errno::ENOENT);
    }

    #[tokio::test]
    async fn a_commit_tells_whether_the_file_was_as_its_writer_knew_it() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        let stamp = |attr: Attr| Some((attr.mtime, attr.ctime, attr.length));
        let append = async |id, known| {
            let slices = vec![(ChunkIndex(0), written(0, id, 10))];
            meta.append_slices_of(meta.session(), ino, slices, Timestamp::new(id as i64, 0), known).await.unwrap()
        };
        let first = append(1, stamp(meta.getattr(ino).await.unwrap())).await;
        assert!(first.unchanged);
        let second = append(2, stamp(first.attr)).await;
        assert!(second.unchanged && !append(3, stamp(first.attr)).await.unchanged && !append(4, None).await.unchanged);
    }

    #[tokio::test]
    async fn only_regular_files_take_slices() {
        let meta = volume().await;
        let append = async |ino, slice| {
            meta.append_slice(ino, ChunkIndex(0), slice, Timestamp::default()).await.unwrap_err().errno()
        };
        assert_eq!(append(Ino::ROOT, written(0, 1, 1)).await, Errno::EPERM);
        assert_eq!(append(Ino(77), written(0, 1, 1)).await, Errno::ENOENT);
        let ino = file(&meta, "f").await;
        assert_eq!(append(ino, written(CHUNK_BYTES as u32 - 1, 1, 2)).await, Errno::EINVAL);
        let far = meta.append_slice(ino, ChunkIndex(1 << 31), written(0, 1, 1), Timestamp::default()).await;
        assert_eq!(far.unwrap_err().errno(), Errno::EFBIG);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn eight_writers_of_one_chunk_lose_nothing() {
        let store = Store::new().await;
        let meta = store.client(Arc::new(SystemClock)).await;
        let other = store.client(Arc::new(SystemClock)).await;
        let ino = file(&meta, "f").await;
        let tasks: Vec<_> = (0..8u64)
            .map(|task| {
                let meta = if task % 2 == 0 { meta.clone() } else { other.clone() };
                tokio::spawn(async move {
                    for turn in 0..50u64 {
                        let id = task * 50 + turn + 1;
                        let slice = written(id as u32 * 10, id, 10);
                        meta.append_slice(ino, ChunkIndex(0), slice, Timestamp::new(id as i64, 0)).await.unwrap();
                    }
                })
            })
            .collect();
        for task in tasks {
            task.await.unwrap();
        }
        let mut ids: Vec<u64> = meta.read_chunk(ino, ChunkIndex(0)).await.unwrap().iter().map(|s| s.id.0).collect();
        ids.sort_unstable();
        assert_eq!(ids, (1..=400).collect::<Vec<_>>());
        assert_eq!(meta.getattr(ino).await.unwrap().length, 4010);
        assert_eq!(number(&meta, Key::Counter(Counter::UsedSpace)).await, 4096);
    }

    #[tokio::test]
    async fn a_lost_reply_neither_loses_nor_repeats_a_slice() {
        let meta = lossy_volume().await;
        let ino = file(&meta, "f").await;
        for id in 1..=20u64 {
            // Each second one lies over what is there.
            let slice = written((id as u32 / 2) * 10, id, 10);
            let done = meta.append_slice(ino, ChunkIndex(0), slice, Timestamp::new(7, 0)).await.unwrap();
            assert_eq!(done.records, id as usize);
        }
        let ids: Vec<u64> = meta.read_chunk(ino, ChunkIndex(0)).await.unwrap().iter().map(|s| s.id.0).collect();
        assert_eq!(ids, (1..=20).collect::<Vec<_>>());
        assert_eq!(meta.getattr(ino).await.unwrap().length, 110);
    }
}
