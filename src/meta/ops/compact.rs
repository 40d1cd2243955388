//! Compaction as far as the metadata goes: which records of a chunk are worth merging, and putting the merged slice
//! in their place (`spec/metadata.md` 1.8, 1.9). Reading the old bytes and writing the new ones is not done here.

use crate::base::slice::resolve;
use crate::base::{ChunkIndex, Ino, Outcome, SessionId, Slice, SliceId};
use crate::meta::Meta;
use crate::meta::engine::Change;
use crate::meta::record::{Key, Record};
use crate::meta::session::{require_alive, session_of};
use crate::meta::txn::{ChunkOf, ChunkPrefixOf, Operation, Peek, Settled, Tx};
use std::collections::BTreeMap;

/// Records that one compaction looks at, from the oldest on.
pub const COMPACTED_RECORDS_MAX: usize = 1000;
/// A record of at least this many bytes at the head of the list may be left as it is.
const KEPT_BYTES_MIN: u32 = 1 << 20;
/// … if it is not below this fraction of what would be rewritten.
const KEPT_SHARE: u64 = 5;

/// What a compaction would write.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CompactionPlan {
    /// How many records from the head of the list are considered: the prefix to hand to `Meta::replace_slices`.
    pub read: usize,
    /// How many of them, from the head, stay as they are.
    pub skipped: usize,
    /// Where the new slice begins in the chunk.
    pub pos: u32,
    /// Its bytes.
    pub size: u32,
    /// What to write, in order and without gaps from `pos` on; holes become zeros.
    pub pieces: Vec<Slice>,
}

/// The visible pieces of `records` without holes at either end. Of nothing but holes one byte is left, so that there
/// is something to put in their place.
fn merge(records: &[Slice]) -> Vec<Slice> {
    let pieces = resolve(records);
    let Some(first) = pieces.iter().position(|p| !p.is_hole()) else {
        return pieces.last().map(|p| Slice::hole(p.pos, 1)).into_iter().collect();
    };
    let last = pieces.iter().rposition(|p| !p.is_hole()).expect("there is a first one");
    pieces[first..=last].to_vec()
}

/// What is worth merging of a chunk's list; `None` when nothing is.
pub fn plan_compaction(records: &[Slice]) -> Option<CompactionPlan> {
    let records = &records[..records.len().min(COMPACTED_RECORDS_MAX)];
    let mut skipped = 0;
    loop {
        let (head, later) = records.get(skipped..)?.split_first()?;
        let pieces = merge(&records[skipped..]);
        let size: u64 = pieces.iter().map(|p| u64::from(p.len)).sum();
        let first = pieces.first()?;
        let is_first = (first.pos, first.id, first.off, first.len) == (head.pos, head.id, head.off, head.len);
        let is_big = head.len >= KEPT_BYTES_MIN && u64::from(head.len) * KEPT_SHARE >= size;
        if is_first && is_big && !later.contains(head) {
            skipped += 1;
            continue;
        }
        let pos = first.pos;
        let covered = |kept: &Slice| u64::from(kept.pos) < u64::from(pos) + size && u64::from(pos) < kept.end();
        if later.is_empty() || records[..skipped].iter().any(covered) {
            return None;
        }
        return Some(CompactionPlan { read: records.len(), skipped, pos, size: size as u32, pieces });
    }
}

/// How putting the new slice in place ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Replaced {
    /// It is in place. Nobody refers to the slices in `garbage` any more; their objects and then their records
    /// can go. With the trash on the old slices wait in it and there is no garbage yet.
    Done { garbage: Vec<(SliceId, u32)> },
    /// The list no longer begins with what was read; the new slice is garbage.
    Changed,
}

struct ReplaceSlices<'a> {
    /// The one that the new slice was written in; 0: none.
    session: SessionId,
    ino: Ino,
    index: ChunkIndex,
    read: &'a [Slice],
    skipped: usize,
    new: Slice,
    trash: bool,
}

impl ReplaceSlices<'_> {
    /// The records that the new slice stands for, without holes.
    fn replaced(&self) -> impl Iterator<Item = &Slice> {
        self.read[self.skipped..].iter().filter(|s| !s.is_hole())
    }

    fn released(&self) -> BTreeMap<(SliceId, u32), i64> {
        released(self.replaced())
    }
}

/// How many references go with records that go, by slice. Holes have none.
pub(super) fn released<'a>(records: impl Iterator<Item = &'a Slice>) -> BTreeMap<(SliceId, u32), i64> {
    let mut released = BTreeMap::new();
    for slice in records.filter(|slice| !slice.is_hole()) {
        *released.entry((slice.id, slice.size)).or_default() += 1;
    }
    released
}

impl Operation for ReplaceSlices<'_> {
    const NAME: &'static str = "replace_slices";
    /// False: the list has changed.
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        let prefix = ChunkPrefixOf(self.ino, self.index);
        let (list, session) = tx.load((prefix, session_of(self.session))).await?;
        require_alive(&session)?;
        if !list.starts_with(self.read) {
            return Ok(false);
        }
        let with: Vec<Slice> = self.read[..self.skipped].iter().copied().chain([self.new]).collect();
        tx.change(Change::ReplacePrefix { ino: self.ino, index: self.index, count: self.read.len(), with });
        tx.change(Change::Put(Key::SliceRef(self.new.id, self.new.size), Record::Number(1)));
        if self.trash {
            let waiting: Vec<Slice> = self.replaced().copied().collect();
            if !waiting.is_empty() {
                tx.change(Change::Put(Key::DelayedSlices(self.new.id, tx.now().seconds), Record::Slices(waiting)));
            }
        } else {
            for ((id, size), references) in self.released() {
                tx.change(Change::AddSliceRef { id, size, delta: -references });
            }
        }
        Ok(true)
    }

    /// The new slice in the list shows that it was applied, and the old list that it was not. With neither, the new
    /// slice may be in use elsewhere by now, and nobody may delete it.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        let list = tx.load(Peek(ChunkOf(self.ino, self.index))).await?;
        Ok(if list.contains(&self.new) {
            Settled::Applied(true)
        } else if list.starts_with(self.read) {
            Settled::NotApplied
        } else {
            Settled::Unknown
        })
    }
}

impl Meta {
    /// Puts a merged slice in the place of the records it was made of: `read` is the head of the list as planned,
    /// of which the first `skipped` records stay. Records appended meanwhile stay behind the new one. EIO when the
    /// session that the new slice was written in is gone, for its objects may be gone too.
    pub async fn replace_slices(
        &self,
        session: SessionId,
        ino: Ino,
        index: ChunkIndex,
        read: &[Slice],
        skipped: usize,
        new: Slice,
    ) -> Outcome<Replaced> {
        self.writable()?;
        let trash = self.rules().trash_days > 0;
        let op = ReplaceSlices { session, ino, index, read, skipped, new, trash };
        let (done, committed) = self.run_reporting(&op).await?;
        if !done {
            return Ok(Replaced::Changed);
        }
        // After a settled commit nothing is reported; the hourly job finds what is unreferenced then.
        let left = committed.references.into_iter();
        let garbage = op.released().into_keys().zip(left).filter(|(_, left)| *left <= 0).map(|(slice, _)| slice);
        Ok(Replaced::Done { garbage: garbage.collect() })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Timestamp;
    use crate::meta::engine::Scan;
    use crate::meta::testing::{file, plain_rules, rows, volume};
    use proptest::prelude::*;

    const MIB: u32 = 1 << 20;

    fn written(pos: u32, id: u64, len: u32) -> Slice {
        Slice { pos, id: SliceId(id), size: len, off: 0, len }
    }

    #[test]
    fn big_heads_that_stay_visible_are_skipped() {
        let list = [written(0, 1, MIB), written(MIB, 2, 100), written(MIB + 100, 3, 50)];
        let plan = plan_compaction(&list).unwrap();
        assert_eq!((plan.skipped, plan.pos, plan.size), (1, MIB, 150));
        // Less than a fifth of the whole is rewritten with the rest, as is what is partly covered.
        let list = [written(0, 1, MIB), written(MIB, 2, 5 * MIB)];
        assert_eq!(plan_compaction(&list).unwrap().skipped, 0);
        let list = [written(0, 1, MIB), written(MIB - 1, 2, 100), written(0, 3, 1)];
        assert_eq!(plan_compaction(&list).unwrap().skipped, 0);
        assert_eq!(plan_compaction(&[written(0, 1, MIB), written(0, 1, MIB)]).unwrap().skipped, 0);
    }

    #[test]
    fn one_record_alone_is_good() {
        assert_eq!(plan_compaction(&[]), None);
        assert_eq!(plan_compaction(&[written(5, 1, 10)]), None);
        assert_eq!(plan_compaction(&[written(0, 1, MIB), written(MIB, 2, 7)]), None);
    }

    #[test]
    fn holes_at_the_ends_are_dropped() {
        let list = [written(100, 1, 10), Slice::hole(0, 50), written(200, 2, 10), Slice::hole(205, 100)];
        let plan = plan_compaction(&list).unwrap();
        assert_eq!((plan.pos, plan.size), (100, 105));
        let plan = plan_compaction(&[written(100, 1, 10), Slice::hole(100, 10)]).unwrap();
        assert_eq!((plan.size, plan.pieces.len()), (1, 1), "one zero stands for nothing but holes");
    }

    proptest! {
        /// In units of 256 KiB, so that big records occur.
        #[test]
        fn a_compacted_chunk_shows_the_same_bytes(list in proptest::collection::vec((0u32..60, 1u32..30, 0u64..6), 1..12)) {
            const UNIT: u32 = MIB / 4;
            let records: Vec<Slice> = list.iter().map(|&(pos, len, id)| {
                if id == 0 { Slice::hole(pos * UNIT, len * UNIT) } else { written(pos * UNIT, id, len * UNIT) }
            }).collect();
            if let Some(plan) = plan_compaction(&records) {
                prop_assert!(plan.read == records.len() && plan.skipped + 2 <= records.len());
                let new = written(plan.pos, 99, plan.size);
                let after: Vec<Slice> = records[..plan.skipped].iter().copied().chain([new]).collect();
                // One sample per unit is enough: every border lies on one.
                let sample = |records: &[Slice], at: u32| {
                    let shown = resolve(records).into_iter().find(|p| p.pos <= at && u64::from(at) < p.end());
                    shown.filter(|p| !p.is_hole()).map(|p| (p.id.0, p.off + (at - p.pos)))
                };
                let mut at = plan.pos;
                for piece in &plan.pieces {
                    prop_assert_eq!(piece.pos, at, "pieces follow one another");
                    at += piece.len;
                }
                prop_assert_eq!(at, plan.pos + plan.size);
                for at in (0..90).map(|unit| unit * UNIT) {
                    let merged = match sample(&after, at) {
                        Some((99, off)) => sample(&plan.pieces, plan.pos + off),
                        other => other,
                    };
                    prop_assert_eq!(merged, sample(&records, at));
                }
            }
        }
    }

    #[tokio::test]
    async fn the_new_slice_takes_the_place_of_the_old_ones() {
        for trash_days in [0, 1] {
            let meta = volume().await;
            meta.set_rules(crate::meta::Rules { trash_days, ..plain_rules() });
            let ino = file(&meta, "f").await;
            let index = ChunkIndex(0);
            for slice in [written(0, 1, 10), Slice::hole(5, 10), written(8, 2, 10)] {
                meta.append_slice(ino, index, slice, Timestamp::default()).await.unwrap();
            }
            let read = meta.read_chunk(ino, index).await.unwrap();
            let plan = plan_compaction(&read).unwrap();
            let late = written(3, 7, 2);
            meta.append_slice(ino, index, late, Timestamp::default()).await.unwrap();
            let new = written(plan.pos, 50, plan.size);
            let done = meta.replace_slices(meta.session(), ino, index, &read, plan.skipped, new).await.unwrap();
            let garbage = if trash_days == 0 { vec![(SliceId(1), 10), (SliceId(2), 10)] } else { vec![] };
            assert_eq!(done, Replaced::Done { garbage });
            assert_eq!(meta.read_chunk(ino, index).await.unwrap(), [new, late]);
            let again = meta.replace_slices(meta.session(), ino, index, &read, plan.skipped, new).await.unwrap();
            assert_eq!(again, Replaced::Changed);
            let delayed = rows(&meta, Scan::DelayedSlices).await;
            assert_eq!(delayed.len(), trash_days as usize);
            if let Some((_, Record::Slices(waiting))) = delayed.first() {
                assert_eq!(waiting.iter().map(|s| (s.id.0, s.size)).collect::<Vec<_>>(), [(1, 10), (2, 10)]);
            }
        }
    }
}
