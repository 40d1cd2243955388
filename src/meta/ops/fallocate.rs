//! Fallocate: growing, punching and zeroing (`spec/metadata.md` 7.10). No space is ever reserved.

use super::access::permit;
use super::slices::{LENGTH_BYTES_MAX, account_length, chunk_start};
use super::truncate::{CHARTS_MAX, Chart, holes, never_still};
use crate::base::mode::{WRITE, flag};
use crate::base::{Attr, AttrPatch, Errno, Ino, Kind, Outcome};
use crate::meta::engine::Change;
use crate::meta::txn::{AttrOf, Operation, Settled, Tx};
use crate::meta::{Caller, Meta};

const KEEP_SIZE: u32 = libc::FALLOC_FL_KEEP_SIZE as u32;
const PUNCH_HOLE: u32 = libc::FALLOC_FL_PUNCH_HOLE as u32;
const COLLAPSE_RANGE: u32 = libc::FALLOC_FL_COLLAPSE_RANGE as u32;
const ZERO_RANGE: u32 = libc::FALLOC_FL_ZERO_RANGE as u32;
const INSERT_RANGE: u32 = libc::FALLOC_FL_INSERT_RANGE as u32;

/// What is asked for is possible at all.
fn judge(mode: u32, off: u64, size: u64) -> Result<(), Errno> {
    if mode == COLLAPSE_RANGE || mode == INSERT_RANGE {
        return Err(Errno::ENOTSUP);
    }
    let moves = mode & (COLLAPSE_RANGE | INSERT_RANGE) != 0;
    let punches_outward = mode & PUNCH_HOLE != 0 && mode & KEEP_SIZE == 0;
    if moves || punches_outward || size == 0 {
        return Err(Errno::EINVAL);
    }
    if mode & !(KEEP_SIZE | PUNCH_HOLE | ZERO_RANGE) != 0 {
        return Err(Errno::ENOTSUP);
    }
    if off.checked_add(size).is_none_or(|end| end > LENGTH_BYTES_MAX) {
        return Err(Errno::EFBIG);
    }
    Ok(())
}

struct Fallocate<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    ino: Ino,
    mode: u32,
    off: u64,
    size: u64,
    chart: Option<&'a Chart>,
}

impl Operation for Fallocate<'_> {
    const NAME: &'static str = "fallocate";
    /// `None`: a chart is needed. With where to go on, if one commit does not take all.
    type Output = Option<(Attr, Option<u64>)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<(Attr, Option<u64>)>> {
        let node = tx.load(AttrOf(self.ino)).await?.exists()?;
        match node.kind() {
            Kind::Fifo => return Err(Errno::EPIPE.into()),
            Kind::File if node.flags() & flag::IMMUTABLE == 0 => {}
            _ => return Err(Errno::EPERM.into()),
        }
        permit(tx, &node, self.caller, WRITE).await?;
        if node.flags() & flag::APPEND != 0 && self.mode & !KEEP_SIZE != 0 {
            return Err(Errno::EPERM.into());
        }
        let (present, end) = (node.length(), self.off + self.size);
        let mut length = if self.mode & KEEP_SIZE == 0 { present.max(end) } else { present };
        let zeroes = self.mode & (PUNCH_HOLE | ZERO_RANGE) != 0;
        let cleared = if zeroes { self.off..end.min(present) } else { 0..0 };
        let most = self.meta.engine().batch_max();
        let Some(mut holes) = holes(&node, cleared, self.chart, most) else { return Ok(None) };
        let rest = holes.get(most).map(|(index, _)| chunk_start(*index));
        if rest.is_some() {
            holes.truncate(most);
            length = present;
        }
        account_length(tx, self.meta, &node, length).await?;
        for (index, hole) in holes {
            tx.change(Change::Append { ino: self.ino, index, slices: vec![hole], only_existing: true });
        }
        let mut patch = AttrPatch::new().touch(tx.now());
        if length != present {
            patch = patch.set_length(length);
        }
        tx.patch(self.ino, patch);
        let mut attr = *node.peek();
        patch.apply(&mut attr);
        Ok(Some((attr, rest)))
    }

    /// Clearing what is clear and growing to a length that is reached change nothing that can be read.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<(Attr, Option<u64>)>>> {
        tx.load(AttrOf(self.ino)).await?;
        Ok(Settled::NotApplied)
    }
}

impl Meta {
    /// fallocate(2) with its Linux mode bits: grows the file, or clears a range of it. Moving ranges is not
    /// supported.
    pub async fn fallocate(&self, caller: &Caller, ino: Ino, mode: u32, off: u64, size: u64) -> Outcome<Attr> {
        judge(mode, off, size)?;
        self.writable()?;
        let (mut chart, mut charts, mut from) = (None, 0, off);
        loop {
            let (off, size) = (from, off + size - from);
            let op = Fallocate { meta: self, caller, ino, mode, off, size, chart: chart.as_ref() };
            match self.run(&op).await? {
                Some((attr, None)) => return Ok(attr),
                Some((attr, Some(next))) => {
                    from = next;
                    chart = chart.map(|chart: Chart| chart.after(&attr));
                }
                None if charts < CHARTS_MAX => {
                    charts += 1;
                    chart = Some(self.chart(ino).await?);
                }
                None => return Err(never_still(Fallocate::NAME, ino)),
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{CHUNK_BYTES, ChunkIndex, Slice, SliceId, Timestamp};
    use crate::meta::testing::{file, volume};

    #[test]
    fn impossible_requests_are_refused() {
        let refused = |mode, off, size| judge(mode, off, size).err();
        assert_eq!(refused(COLLAPSE_RANGE, 0, 1), Some(Errno::ENOTSUP));
        assert_eq!(refused(INSERT_RANGE, 0, 1), Some(Errno::ENOTSUP));
        assert_eq!(refused(INSERT_RANGE | KEEP_SIZE, 0, 1), Some(Errno::EINVAL));
        assert_eq!(refused(PUNCH_HOLE, 0, 1), Some(Errno::EINVAL));
        assert_eq!(refused(0, 0, 0), Some(Errno::EINVAL));
        assert_eq!(refused(0x40, 0, 1), Some(Errno::ENOTSUP));
        assert_eq!(refused(0, LENGTH_BYTES_MAX, 1), Some(Errno::EFBIG));
        assert_eq!(refused(0, u64::MAX, 2), Some(Errno::EFBIG));
        assert_eq!(refused(PUNCH_HOLE | KEEP_SIZE, 0, 1), None);
        assert_eq!(refused(ZERO_RANGE, LENGTH_BYTES_MAX - 1, 1), None);
    }

    #[tokio::test]
    async fn punching_stops_at_the_end_and_splits_at_chunks() {
        let (meta, root) = (volume().await, Caller::root());
        let ino = file(&meta, "f").await;
        let slice = |pos, id, len| Slice { pos, id: SliceId(id), size: len, off: 0, len };
        let border = CHUNK_BYTES as u32;
        let put = [(ChunkIndex(0), slice(border - 10, 1, 10)), (ChunkIndex(1), slice(0, 2, 10))];
        meta.append_slices(ino, put.to_vec(), Timestamp::default()).await.unwrap();
        let mode = PUNCH_HOLE | KEEP_SIZE;
        let attr = meta.fallocate(&root, ino, mode, CHUNK_BYTES - 3, CHUNK_BYTES * 3).await.unwrap();
        assert_eq!(attr.length, CHUNK_BYTES + 10);
        let list = async |index| meta.read_chunk(ino, ChunkIndex(index)).await.unwrap();
        assert_eq!(list(0).await, [put[0].1, Slice::hole(border - 3, 3)]);
        assert_eq!(list(1).await, [put[1].1, Slice::hole(0, 10)]);
        assert_eq!(list(2).await, []);
        let attr = meta.fallocate(&root, ino, 0, CHUNK_BYTES, 100).await.unwrap();
        assert_eq!(attr.length, CHUNK_BYTES + 100);
        assert_eq!(list(1).await.len(), 2, "growing writes no record");
        let same = meta.fallocate(&root, ino, KEEP_SIZE, 0, CHUNK_BYTES * 9).await.unwrap();
        assert_eq!(same.length, attr.length);
    }
}
