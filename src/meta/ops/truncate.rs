//! Truncate, and the hole records that it shares with fallocate (`spec/metadata.md` 7.9).
//!
//! Shrinking leaves chunks beyond the new end in place and growing meets them again, so both cover what lies between
//! the two lengths with holes. Chunks that do not exist are zeros already and are not made. Which exist is not asked
//! for ranges of moderate width: the change itself leaves a missing list missing. For very wide ranges that would be
//! too many changes, so the existing chunks are listed first, outside the transaction, in a `Chart`; it holds as long
//! as nobody has written to the file since, which its times tell.

use super::access::permit;
use super::slices::{LENGTH_BYTES_MAX, account_length, chunk_start};
use crate::base::mode::{WRITE, flag};
use crate::base::{Attr, AttrPatch, CHUNK_BYTES, ChunkIndex, Errno, Fault, Ino, Kind, Outcome, Slice, Stop, Timestamp};
use crate::meta::engine::{Change, Scan};
use crate::meta::record::Key;
use crate::meta::txn::{AttrOf, Operation, Seen, Settled, Tx};
use crate::meta::{Caller, Meta, outside};
use std::ops::Range;

/// Ranges over more chunks than this (256 GiB) are covered by way of a chart.
const TRIED_CHUNKS_MAX: u64 = 4096;
/// Chunks per page of a chart's scan.
const CHART_PAGE: usize = 4096;
/// How often a chart is drawn anew because somebody wrote to the file meanwhile.
pub(crate) const CHARTS_MAX: u32 = 20;

/// Which chunks a file had while its times were these.
pub(crate) struct Chart {
    mtime: Timestamp,
    ctime: Timestamp,
    /// In ascending order.
    chunks: Vec<ChunkIndex>,
}

impl Chart {
    /// The same chunks, after a commit of our own that left the file like this.
    pub(crate) fn after(self, attr: &Attr) -> Chart {
        Chart { mtime: attr.mtime, ctime: attr.ctime, ..self }
    }
}

/// The hole records that cover `range` of a file, one per chunk that is there or may be there. `None`: the range is
/// wide and `chart` does not fit (any more).
///
/// `most`: holes that one commit may take; a wider range is charted.
pub(crate) fn holes(
    node: &Seen,
    range: Range<u64>,
    chart: Option<&Chart>,
    most: usize,
) -> Option<Vec<(ChunkIndex, Slice)>> {
    if range.is_empty() {
        return Some(Vec::new());
    }
    let (first, last) = (range.start / CHUNK_BYTES, (range.end - 1) / CHUNK_BYTES);
    let hole = |index: u64| {
        let start = index * CHUNK_BYTES;
        let (from, to) = (range.start.max(start), range.end.min(start + CHUNK_BYTES));
        (ChunkIndex(index as u32), Slice::hole((from - start) as u32, (to - from) as u32))
    };
    if last - first < TRIED_CHUNKS_MAX.min(most as u64) {
        return Some((first..=last).map(hole).collect());
    }
    let chart = chart.filter(|c| (c.mtime, c.ctime) == (node.mtime(), node.ctime()))?;
    let between = chart.chunks.iter().map(|index| u64::from(index.0)).filter(|index| first < *index && *index < last);
    Some(std::iter::once(first).chain(between).chain([last]).map(hole).collect())
}

struct Truncate<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    ino: Ino,
    length: u64,
    by_handle: bool,
    chart: Option<&'a Chart>,
}

impl Operation for Truncate<'_> {
    const NAME: &'static str = "truncate";
    /// `None`: a chart is needed.
    type Output = Option<Attr>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<Attr>> {
        let node = tx.load(AttrOf(self.ino)).await?.exists()?;
        if node.kind() != Kind::File || node.flags() & (flag::IMMUTABLE | flag::APPEND) != 0 {
            return Err(Errno::EPERM.into());
        }
        if !self.by_handle {
            if node.parent().is_hourly() {
                return Err(Errno::EPERM.into());
            }
            permit(tx, &node, self.caller, WRITE).await?;
        }
        let present = node.length();
        if present == self.length {
            return Ok(Some(*node.peek()));
        }
        let most = self.meta.engine().batch_max();
        let (mut left, right) = (present.min(self.length), present.max(self.length));
        let Some(mut holes) = holes(&node, left..right, self.chart, most) else { return Ok(None) };
        // More than one commit takes: as far as one comes, from where the file ends now.
        let mut length = self.length;
        if holes.len() > most && length < present {
            holes.drain(..holes.len() - most);
            length = holes.first().map_or(length, |(index, _)| chunk_start(*index));
            left = length;
        } else if holes.len() > most {
            holes.truncate(most);
            length = holes.last().map_or(length, |(index, _)| chunk_start(*index) + CHUNK_BYTES);
        }
        account_length(tx, self.meta, &node, length).await?;
        for (index, hole) in holes {
            // The chunk of the shorter end and a partly covered last one are made if need be, as the format has it.
            let only_existing = chunk_start(index) > left && u64::from(hole.len) == CHUNK_BYTES;
            tx.change(Change::Append { ino: self.ino, index, slices: vec![hole], only_existing });
        }
        let patch = AttrPatch::new().set_length(length).touch(tx.now());
        tx.patch(self.ino, patch);
        let mut attr = *node.peek();
        patch.apply(&mut attr);
        Ok(Some(attr))
    }

    /// Truncating once more to the same length harms nobody.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<Attr>>> {
        Ok(match tx.load(AttrOf(self.ino)).await?.into_option() {
            Some(node) if node.peek().length == self.length => Settled::Applied(Some(*node.peek())),
            _ => Settled::NotApplied,
        })
    }
}

impl Meta {
    /// Sets the length of a regular file; what is gained reads as zeros. Through an open handle (`by_handle`) neither
    /// permission bits nor the trash matter any more. EPERM for anything but a regular file, and for immutable and
    /// append-only ones; EFBIG past the longest length.
    pub async fn truncate(&self, caller: &Caller, ino: Ino, length: u64, by_handle: bool) -> Outcome<Attr> {
        self.writable()?;
        if length > LENGTH_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let (mut chart, mut charts) = (None, 0);
        loop {
            let op = Truncate { meta: self, caller, ino, length, by_handle, chart: chart.as_ref() };
            match self.run(&op).await? {
                Some(attr) if attr.length == length => return Ok(attr),
                // A part of the way; the chart fits to what the file is since.
                Some(attr) => chart = chart.map(|chart: Chart| chart.after(&attr)),
                None if charts < CHARTS_MAX => {
                    charts += 1;
                    chart = Some(self.chart(ino).await?);
                }
                None => return Err(never_still(Truncate::NAME, ino)),
            }
        }
    }

    /// The chunks of a file. The times are read first: whoever writes during the scan makes the chart unfit.
    pub(crate) async fn chart(&self, ino: Ino) -> Outcome<Chart> {
        let attr = self.getattr(ino).await?;
        let (mut chunks, mut after) = (Vec::new(), None);
        loop {
            let page = outside(self.engine().scan(&Scan::ChunksOf(ino), after.as_ref(), CHART_PAGE).await)?;
            chunks.extend(page.rows.into_iter().filter_map(|(key, _)| match key {
                Key::Chunk(of, index) if of == ino => Some(index),
                _ => None,
            }));
            after = page.next;
            if after.is_none() {
                break;
            }
        }
        chunks.sort_unstable();
        chunks.dedup();
        Ok(Chart { mtime: attr.mtime, ctime: attr.ctime, chunks })
    }
}

/// Somebody keeps writing to a file whose chunks are to be listed.
pub(crate) fn never_still(operation: &'static str, ino: Ino) -> Stop {
    Fault::conflict(operation).with("inode", ino).with("charts", CHARTS_MAX).into()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;
    use crate::meta::record::{Counter, Record};
    use crate::meta::testing::{file, lossy_volume, volume};

    fn written(pos: u32, id: u64, len: u32) -> Slice {
        Slice { pos, id: SliceId(id), size: len, off: 0, len }
    }

    async fn used_space(meta: &Meta) -> i64 {
        match meta.engine().read(&[Key::Counter(Counter::UsedSpace)]).await.unwrap().pop().flatten() {
            Some(Record::Number(n)) => n,
            other => panic!("{other:?}"),
        }
    }

    /// The verified example of the format: write 9000 bytes, truncate to 209715205, then to 4000.
    #[tokio::test]
    async fn both_directions_leave_holes() {
        for meta in [volume().await, lossy_volume().await] {
            let (ino, root) = (file(&meta, "f").await, Caller::root());
            meta.append_slice(ino, ChunkIndex(0), written(0, 9, 9000), Timestamp::default()).await.unwrap();
            let long = meta.truncate(&root, ino, 209_715_205, false).await.unwrap();
            assert_eq!(long.length, 209_715_205);
            assert_eq!(used_space(&meta).await, 209_715_205 / 4096 * 4096 + 4096);
            let short = meta.truncate(&root, ino, 4000, true).await.unwrap();
            assert_eq!(meta.getattr(ino).await.unwrap(), short);
            assert_eq!(used_space(&meta).await, 4096);
            let chunks = meta.read_chunks(ino, ChunkIndex(0)..ChunkIndex(5)).await.unwrap();
            let lists: Vec<_> = chunks.into_iter().map(|(_, list)| list).collect();
            assert_eq!(
                lists,
                [
                    vec![written(0, 9, 9000), Slice::hole(9000, 67_099_864), Slice::hole(4000, 67_104_864)],
                    vec![],
                    vec![],
                    vec![Slice::hole(0, 8_388_613); 2],
                    vec![],
                ]
            );
            assert_eq!(meta.truncate(&root, ino, 4000, true).await.unwrap(), short, "not even times change");
        }
    }

    #[tokio::test]
    async fn very_wide_ranges_reach_every_existing_chunk_and_make_none() {
        let (meta, root) = (volume().await, Caller::root());
        let ino = file(&meta, "f").await;
        let far = ChunkIndex(1 << 30);
        meta.append_slice(ino, far, written(0, 1, 100), Timestamp::default()).await.unwrap();
        meta.append_slice(ino, ChunkIndex(9), written(0, 2, 100), Timestamp::default()).await.unwrap();
        meta.truncate(&root, ino, LENGTH_BYTES_MAX, false).await.unwrap();
        meta.truncate(&root, ino, 5, false).await.unwrap();
        let whole = Slice::hole(0, CHUNK_BYTES as u32);
        assert_eq!(meta.read_chunk(ino, ChunkIndex(9)).await.unwrap(), [written(0, 2, 100), whole]);
        assert_eq!(
            meta.read_chunk(ino, far).await.unwrap(),
            [written(0, 1, 100), Slice::hole(100, CHUNK_BYTES as u32 - 100), whole]
        );
        assert_eq!(meta.chart(ino).await.unwrap().chunks.len(), 4, "0, 9, far and the last");
        assert_eq!(used_space(&meta).await, 4096);
    }

    #[tokio::test]
    async fn what_is_no_plain_file_keeps_its_length() {
        let (meta, root) = (volume().await, Caller::root());
        let ino = file(&meta, "f").await;
        let stranger = Caller { uid: 5, gid: 5, check: true, ..Caller::root() };
        let truncate = async |caller, ino, length, by_handle| {
            meta.truncate(caller, ino, length, by_handle).await.map(|attr| attr.length).map_err(|stop| stop.errno())
        };
        assert_eq!(truncate(&root, Ino::ROOT, 0, false).await, Err(Errno::EPERM));
        assert_eq!(truncate(&root, Ino(99), 0, false).await, Err(Errno::ENOENT));
        assert_eq!(truncate(&root, ino, LENGTH_BYTES_MAX + 1, false).await, Err(Errno::EFBIG));
        assert_eq!(truncate(&stranger, ino, 7, false).await, Err(Errno::EACCES));
        assert_eq!(truncate(&stranger, ino, 7, true).await, Ok(7), "the open handle is permission enough");
        let append = super::super::attr::SetAttr { flags: Some(flag::APPEND), ..Default::default() };
        meta.setattr(&root, ino, &append).await.unwrap();
        assert_eq!(truncate(&root, ino, 8, true).await, Err(Errno::EPERM));
    }
}
