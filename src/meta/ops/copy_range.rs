//! copy_file_range: bytes of one file appear in another by sharing slices; none is copied (`spec/metadata.md` 7.12).
//! Every record that names a slice counts as one reference to it.

use super::slices::{LENGTH_BYTES_MAX, account_length, chunk_start};
use crate::base::mode::flag;
use crate::base::slice::resolve;
use crate::base::{AttrPatch, CHUNK_BYTES, ChunkIndex, Errno, Ino, Kind, Outcome, Slice, SliceId, Timestamp};
use crate::meta::engine::Change;
use crate::meta::txn::{AttrOf, ChunkPrefixOf, Operation, Settled, Tx};
use crate::meta::{Caller, Meta};
use parking_lot::Mutex;
use std::collections::BTreeMap;
use std::ops::Range;

/// Longer copies are made in steps of this many bytes (4 GiB, 64 chunks), each a transaction.
const STEP_BYTES_MAX: u64 = 64 * CHUNK_BYTES;

/// A piece of a file: `len` bytes at `at`, from byte `off` of a slice of `size` bytes. Id 0 is a hole.
#[derive(Clone, Copy, Debug)]
struct Extent {
    at: u64,
    id: SliceId,
    size: u32,
    off: u32,
    len: u64,
}

impl Extent {
    fn end(&self) -> u64 {
        self.at + self.len
    }

    /// What of it lies in `range`.
    fn clip(&self, range: &Range<u64>) -> Option<Extent> {
        let (from, to) = (self.at.max(range.start), self.end().min(range.end));
        if from >= to {
            return None;
        }
        let skipped = if self.id.0 == 0 { 0 } else { (from - self.at) as u32 };
        Some(Extent { at: from, off: self.off + skipped, len: to - from, ..*self })
    }
}

/// What is visible of `range`, without gaps, in ascending order. `chunks` hold the records of every chunk it touches.
fn visible(chunks: &[(ChunkIndex, Vec<Slice>)], range: &Range<u64>) -> Vec<Extent> {
    let mut extents = Vec::new();
    for (index, records) in chunks {
        let start = chunk_start(*index);
        let extent =
            |s: Slice| Extent { at: start + u64::from(s.pos), id: s.id, size: s.size, off: s.off, len: s.len.into() };
        let pieces = resolve(records);
        let end = pieces.last().map_or(0, Slice::end);
        extents.extend(pieces.into_iter().map(extent).filter_map(|e| e.clip(range)));
        let rest = Extent { at: start + end, id: SliceId(0), size: 0, off: 0, len: CHUNK_BYTES - end };
        extents.extend(rest.clip(range));
    }
    extents
}

/// The records that show `extents`, moved so that `from` lies at `to`, chunk by chunk.
fn records_at(extents: &[Extent], from: u64, to: u64) -> BTreeMap<ChunkIndex, Vec<Slice>> {
    let mut chunks: BTreeMap<ChunkIndex, Vec<Slice>> = BTreeMap::new();
    for extent in extents {
        let moved = Extent { at: extent.at - from + to, ..*extent };
        for number in moved.at / CHUNK_BYTES..=(moved.end() - 1) / CHUNK_BYTES {
            let start = number * CHUNK_BYTES;
            let Some(part) = moved.clip(&(start..start + CHUNK_BYTES)) else { continue };
            let (pos, len) = ((part.at - start) as u32, part.len as u32);
            let record = if part.id.0 == 0 {
                Slice::hole(pos, len)
            } else {
                Slice { pos, id: part.id, size: part.size, off: part.off, len }
            };
            chunks.entry(ChunkIndex(number as u32)).or_default().push(record);
        }
    }
    chunks
}

/// What the last try was to add to the destination, when, and its answer.
struct Tried {
    records: BTreeMap<ChunkIndex, Vec<Slice>>,
    at: Timestamp,
    answer: (u64, u64),
}

struct CopyRange<'a> {
    meta: &'a Meta,
    tried: Mutex<Option<Tried>>,
    src: Ino,
    src_off: u64,
    dst: Ino,
    dst_off: u64,
    len: u64,
}

impl Operation for CopyRange<'_> {
    const NAME: &'static str = "copy_range";
    /// Bytes copied, and the length of the destination.
    type Output = (u64, u64);

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<(u64, u64)> {
        let indexes = self.src_off / CHUNK_BYTES..=(self.src_off + self.len - 1) / CHUNK_BYTES;
        let indexes: Vec<ChunkIndex> = indexes.map(|index| ChunkIndex(index as u32)).collect();
        let lists: Vec<_> = indexes.iter().map(|index| ChunkPrefixOf(self.src, *index)).collect();
        let (src, dst, lists) = tx.load((AttrOf(self.src), AttrOf(self.dst), lists)).await?;
        let (src, dst) = (src.exists()?, dst.exists()?);
        if src.kind() != Kind::File || dst.kind() != Kind::File {
            return Err(Errno::EINVAL.into());
        }
        if dst.flags() & (flag::IMMUTABLE | flag::APPEND) != 0 {
            return Err(Errno::EPERM.into());
        }
        let mut len = self.len.min(src.length().saturating_sub(self.src_off));
        if len == 0 {
            return Ok((0, dst.peek().length));
        }
        let chunks: Vec<_> = indexes.into_iter().zip(lists).collect();
        // Chunks on both sides, and the references.
        let room = self.meta.engine().batch_max().saturating_sub(chunks.len());
        let records = loop {
            let range = self.src_off..self.src_off + len;
            let records = records_at(&visible(&chunks, &range), self.src_off, self.dst_off);
            let slices = records.values().flatten().filter(|slice| !slice.is_hole()).count();
            if slices + records.len() <= room || len == 1 {
                break records;
            }
            // What is left is asked for again.
            len = len.div_ceil(2);
        };

        let length = dst.length().max(self.dst_off + len);
        account_length(tx, self.meta, &dst, length).await?;
        let mut references: BTreeMap<(SliceId, u32), i64> = BTreeMap::new();
        for slice in records.values().flatten().filter(|s| !s.is_hole()) {
            *references.entry((slice.id, slice.size)).or_default() += 1;
        }
        let tried = Tried { records: records.clone(), at: tx.now(), answer: (len, length) };
        *self.tried.lock() = Some(tried);
        for (index, slices) in records {
            tx.change(Change::Append { ino: self.dst, index, slices, only_existing: false });
        }
        for ((id, size), delta) in references {
            tx.change(Change::AddSliceRef { id, size, delta });
        }
        let mut patch = AttrPatch::new().touch(tx.now());
        if length > dst.length() {
            patch = patch.grow_to(length);
        }
        tx.patch(self.dst, patch);
        Ok((len, length))
    }

    /// Applied, if the destination has the records and the time of the try. If somebody has changed it since, copying
    /// once more shows the bytes there are now, and counts every record it adds.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<(u64, u64)>> {
        let Some(Tried { records, at, answer }) = self.tried.lock().take() else { return Ok(Settled::NotApplied) };
        let lists: Vec<_> = records.keys().map(|index| ChunkPrefixOf(self.dst, *index)).collect();
        let (dst, lists) = tx.load((AttrOf(self.dst), lists)).await?;
        let touched = dst.into_option().is_some_and(|dst| dst.peek().mtime == at);
        let mut added = records.values().zip(&lists);
        let applied = touched && added.all(|(new, list)| list.windows(new.len()).any(|part| part == new.as_slice()));
        Ok(if applied { Settled::Applied(answer) } else { Settled::NotApplied })
    }
}

impl Meta {
    /// Makes `len` bytes of `src` appear in `dst`; answers how many there were and how long `dst` is now. What was
    /// written to either file has to be committed before. EINVAL for anything but regular files, and for ranges of
    /// one file that overlap; EPERM for a destination that is immutable or append-only. Permissions were checked
    /// when the files were opened.
    pub async fn copy_range(
        &self,
        _caller: &Caller,
        src: Ino,
        src_off: u64,
        dst: Ino,
        dst_off: u64,
        len: u64,
    ) -> Outcome<(u64, u64)> {
        self.writable()?;
        let end = |off: u64| off.checked_add(len).filter(|end| *end <= LENGTH_BYTES_MAX);
        let (Some(src_end), Some(dst_end)) = (end(src_off), end(dst_off)) else { return Err(Errno::EFBIG.into()) };
        if src == dst && src_off < dst_end && dst_off < src_end {
            return Err(Errno::EINVAL.into());
        }
        if len == 0 {
            return Ok((0, self.getattr(dst).await?.length));
        }
        let (mut copied, mut length) = (0, 0);
        let len = if src == dst { self.before_end(src, src_off, len).await? } else { len };
        // Each chunk counts on both sides, and leaves room for as many references.
        let most = self.engine().batch_max();
        let step_max = STEP_BYTES_MAX.min(CHUNK_BYTES.saturating_mul((most / 4).max(1) as u64));
        while copied < len {
            let step = (len - copied).min(step_max);
            let op = CopyRange {
                meta: self,
                tried: Mutex::default(),
                src,
                src_off: src_off + copied,
                dst,
                dst_off: dst_off + copied,
                len: step,
            };
            match self.run(&op).await {
                Ok((done, now)) => {
                    copied += done;
                    length = now;
                    // Less than was asked for is the end of the file, or all that fits into one commit.
                    if done == 0 || (done < step && most == usize::MAX) {
                        break;
                    }
                }
                // What is there is there: the caller will ask for the rest and meet the error then.
                Err(_) if copied > 0 => break,
                Err(stop) => return Err(stop),
            }
        }
        Ok((copied, length))
    }

    /// `len`, or what of it lies before the end of the file. A file that is copied within itself may grow by that, and
    /// neither the next step nor a repetition after a lost reply may take what was added for part of the source.
    async fn before_end(&self, ino: Ino, off: u64, len: u64) -> Outcome<u64> {
        let attr = self.getattr(ino).await?;
        // With nothing to copy the operation itself says what is wrong, if anything is.
        Ok(if attr.length > off { len.min(attr.length - off) } else { len })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Timestamp;
    use crate::meta::record::{Key, Record};
    use crate::meta::testing::{file, lossy_volume, volume};

    fn written(pos: u32, id: u64, len: u32) -> Slice {
        Slice { pos, id: SliceId(id), size: len, off: 0, len }
    }

    async fn references(meta: &Meta, id: u64, size: u32) -> i64 {
        match meta.engine().read(&[Key::SliceRef(SliceId(id), size)]).await.unwrap().pop().flatten() {
            Some(Record::Number(n)) => n,
            other => panic!("{other:?}"),
        }
    }

    #[tokio::test]
    async fn pieces_split_at_the_chunks_of_the_destination() {
        let (meta, root) = (volume().await, Caller::root());
        let (src, dst) = (file(&meta, "src").await, file(&meta, "dst").await);
        let now = Timestamp::default();
        meta.append_slice(src, ChunkIndex(0), written(0, 1, 1000), now).await.unwrap();
        meta.append_slice(src, ChunkIndex(0), written(1500, 2, 500), now).await.unwrap();
        // [100, 1800) lands so that its byte 400 is the first of the second chunk.
        let to = CHUNK_BYTES - 300;
        assert_eq!(meta.copy_range(&root, src, 100, dst, to, 1700).await.unwrap(), (1700, to + 1700));
        let border = CHUNK_BYTES as u32;
        let part = |pos, off, len| Slice { pos, id: SliceId(1), size: 1000, off, len };
        assert_eq!(meta.read_chunk(dst, ChunkIndex(0)).await.unwrap(), [part(border - 300, 100, 300)]);
        let tail = Slice { pos: 1100, id: SliceId(2), size: 500, off: 0, len: 300 };
        assert_eq!(
            meta.read_chunk(dst, ChunkIndex(1)).await.unwrap(),
            [part(0, 400, 600), Slice::hole(600, 500), tail]
        );
        assert_eq!((references(&meta, 1, 1000).await, references(&meta, 2, 500).await), (3, 2));
        assert_eq!(meta.getattr(dst).await.unwrap().length, to + 1700);
    }

    #[tokio::test]
    async fn a_file_copied_within_itself_ends_where_it_ended() {
        for meta in [volume().await, lossy_volume().await] {
            let (root, now) = (Caller::root(), Timestamp::default());
            let ino = file(&meta, "f").await;
            meta.append_slice(ino, ChunkIndex(0), written(0, 1, 27), now).await.unwrap();
            for to in [100, 200, 300] {
                let end = to + meta.getattr(ino).await.unwrap().length;
                let copied = meta.copy_range(&root, ino, 0, ino, to, 100.min(to)).await.unwrap();
                assert_eq!(copied, (end.min(to + 100) - to, end.min(to + 100)));
            }
            // More than one step.
            let length = STEP_BYTES_MAX + 100;
            meta.truncate(&root, ino, length, true).await.unwrap();
            let copied = meta.copy_range(&root, ino, 0, ino, 4 * length, 3 * length).await.unwrap();
            assert_eq!(copied, (length, 5 * length));
        }
    }

    #[tokio::test]
    async fn the_end_of_the_source_is_the_end_of_the_copy() {
        let (meta, root) = (volume().await, Caller::root());
        let (src, dst) = (file(&meta, "src").await, file(&meta, "dst").await);
        meta.append_slice(src, ChunkIndex(0), written(0, 1, 1000), Timestamp::default()).await.unwrap();
        assert_eq!(meta.copy_range(&root, src, 1000, dst, 5, 10).await.unwrap(), (0, 0));
        assert_eq!(meta.copy_range(&root, src, 990, dst, 5, 1 << 40).await.unwrap(), (10, 15));
        assert_eq!(meta.copy_range(&root, src, 0, src, 500, 500).await.unwrap(), (500, 1000));
        let copy = async |src, src_off, dst, dst_off, len| {
            meta.copy_range(&root, src, src_off, dst, dst_off, len).await.unwrap_err().errno()
        };
        assert_eq!(copy(src, 0, src, 499, 500).await, Errno::EINVAL);
        assert_eq!(copy(src, 499, src, 0, 500).await, Errno::EINVAL);
        assert_eq!(copy(Ino::ROOT, 0, dst, 0, 5).await, Errno::EINVAL);
        assert_eq!(copy(src, 0, dst, LENGTH_BYTES_MAX, 5).await, Errno::EFBIG);
    }
}
