//! What the metadata says about slices, small enough to be held: which there are, and of how many of their blocks
//! objects were seen.
//!
//! Sixteen bytes a slice, and at most [`SLICES_MAX`] slices at a time. A volume that has more is worked through in
//! several passes, each over the next ids, and each of which reads the slices and the store anew: time instead of
//! memory. While a pass collects, what is mentioned more than once is held more than once, so a pass may take twice
//! 256 MiB. Of the store nothing is held at all.

use super::{OnUnreadable, Volume, Watch};
use crate::base::{Fault, Outcome, SliceId};
use crate::cache::BlockKey;
use crate::chunk::layout;
use crate::meta::engine::Scan;
use crate::meta::record::{Key, Record};

/// Slices looked at in one pass.
pub const SLICES_MAX: usize = 16 << 20;

/// Why the objects of a slice are there; of several reasons the first one.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Class {
    /// A file refers to it, or its count says so.
    Used,
    /// Replaced by a compaction and kept for the trash.
    Delayed,
    /// Nothing refers to it any more and its objects are still to be removed.
    Pending,
}

/// A slice and what was seen of it.
#[derive(Clone, Copy, Debug)]
pub struct Row {
    pub id: SliceId,
    pub size: u32,
    pub class: Class,
    /// A record of a chunk names it; for one without, only a count speaks.
    pub mentioned: bool,
    /// Blocks whose objects were seen.
    seen: u16,
}

/// The slices of one pass, by id.
pub struct Table {
    rows: Vec<Row>,
    from: u64,
    /// Where the next pass begins; `None` in the last one.
    until: Option<u64>,
    max: usize,
}

impl Table {
    /// Whether this is the first pass.
    pub fn is_first(&self) -> bool {
        self.from == 0
    }

    /// Slices from id `from` on, of which at most `max`.
    pub async fn collect(
        volume: &Volume,
        from: u64,
        max: usize,
        on_unreadable: OnUnreadable,
        watch: &Watch,
    ) -> Outcome<Table> {
        let mut table = Table { rows: Vec::new(), from, until: None, max };
        let (meta, mut impossible) = (&volume.meta, None);
        watch
            .each_or(on_unreadable, meta, Scan::Chunks, |key, record| {
                if let Record::Slices(slices) = record {
                    if let Some(slice) = slices.iter().find(|slice| !slice.is_possible()) {
                        impossible = impossible.take().or(Some((key, *slice)));
                    }
                    slices.iter().for_each(|slice| table.push(slice.id, slice.size, Class::Used, true));
                }
            })
            .await?;
        // Nobody knows what stood there before, and it may be all that is left of a file.
        if let (OnUnreadable::Fail, Some((key, slice))) = (on_unreadable, impossible) {
            let fault = Fault::corrupt("collect slices").with("key", format_args!("{key:?}"));
            return Err(fault.source(format!("a record that cannot be: {slice:?}; see what fsck says")).into());
        }
        watch
            .each_or(on_unreadable, meta, Scan::DelayedSlices, |_, record| {
                if let Record::Slices(slices) = record {
                    slices.iter().for_each(|slice| table.push(slice.id, slice.size, Class::Delayed, false));
                }
            })
            .await?;
        watch
            .each_or(on_unreadable, meta, Scan::SliceRefs, |key, record| {
                if let (Key::SliceRef(id, size), Record::Number(references)) = (key, record) {
                    let class = if references > 0 { Class::Used } else { Class::Pending };
                    table.push(id, size, class, false);
                }
            })
            .await?;
        table.settle();
        Ok(table)
    }

    fn push(&mut self, id: SliceId, size: u32, class: Class, mentioned: bool) {
        let SliceId(n) = id;
        if n == 0 || n < self.from || self.until.is_some_and(|until| n >= until) {
            return;
        }
        self.rows.push(Row { id, size, class, mentioned, seen: 0 });
        if self.rows.len() >= 2 * self.max {
            self.settle();
        }
    }

    /// Each slice once, and no more of them than there may be.
    fn settle(&mut self) {
        self.rows.sort_unstable_by_key(|row| (row.id, row.size, !row.mentioned, row.class));
        // The rows of a slice follow one another. That its objects wait for the trash is what a count alone cannot
        // tell, so a delayed slice stays delayed unless a file has it too.
        self.rows.dedup_by(|later, kept| {
            let same = (later.id, later.size) == (kept.id, kept.size);
            if same && !kept.mentioned && later.class == Class::Delayed && kept.class == Class::Used {
                kept.class = Class::Delayed;
            }
            same
        });
        if self.rows.len() > self.max {
            // At least one id stays, whatever the rows of that id are.
            let first = self.rows[0].id;
            let cut = self.rows[self.max].id.0.max(first.0 + 1);
            self.rows.retain(|row| row.id.0 < cut);
            self.until = Some(cut);
        }
    }

    /// Whether this pass is about the slice.
    pub fn covers(&self, id: SliceId) -> bool {
        id.0 >= self.from && self.until.is_none_or(|until| id.0 < until)
    }

    /// Where the next pass begins.
    pub fn next(&self) -> Option<u64> {
        self.until
    }

    pub fn rows(&self) -> &[Row] {
        &self.rows
    }

    /// The slice that an object is a block of, by its name; the object counts as seen.
    pub fn see(&mut self, key: &BlockKey, block_size: u32) -> Option<Row> {
        let first = self.rows.partition_point(|row| row.id < key.slice);
        let mut owner = None;
        for row in self.rows[first..].iter_mut().take_while(|row| row.id == key.slice) {
            if is_block(row.size, block_size, key) {
                row.seen = row.seen.saturating_add(1);
                owner = owner.or(Some(*row));
            }
        }
        owner
    }

    /// Slices of files, not all of whose blocks were seen.
    pub fn incomplete(&self, block_size: u32) -> impl Iterator<Item = &Row> {
        self.rows
            .iter()
            .filter(|row| row.mentioned)
            .filter(move |row| u32::from(row.seen) < layout::block_count(row.size, block_size))
    }
}

/// Whether a slice of `size` bytes has exactly this block.
fn is_block(size: u32, block_size: u32, key: &BlockKey) -> bool {
    key.index < layout::block_count(size, block_size) && layout::block_len(size, block_size, key.index) == key.size
}

#[cfg(test)]
mod tests {
    use super::*;

    fn table(max: usize, from: u64, pushes: &[(u64, u32, Class, bool)]) -> Table {
        let mut table = Table { rows: Vec::new(), from, until: None, max };
        pushes.iter().for_each(|&(id, size, class, mentioned)| table.push(SliceId(id), size, class, mentioned));
        table.settle();
        table
    }

    #[test]
    fn a_slice_is_what_the_strongest_mention_says() {
        use Class::*;
        let table = table(
            100,
            0,
            &[
                (1, 5, Used, true),
                (1, 5, Used, false),
                (2, 5, Used, false),
                (2, 5, Delayed, false),
                (3, 5, Pending, false),
                (4, 5, Pending, false),
                (4, 5, Used, true),
                (0, 0, Used, true),
            ],
        );
        let classes: Vec<_> = table.rows().iter().map(|row| (row.id.0, row.class, row.mentioned)).collect();
        assert_eq!(classes, [(1, Used, true), (2, Delayed, false), (3, Pending, false), (4, Used, true)]);
    }

    #[test]
    fn passes_cover_every_slice_once() {
        let pushes: Vec<_> = (1..=1000u64).rev().map(|id| (id % 97 + 1, 5, Class::Used, true)).collect();
        let (mut from, mut seen) = (0, Vec::new());
        loop {
            let table = table(10, from, &pushes);
            assert!(table.rows().len() <= 10);
            seen.extend(table.rows().iter().map(|row| row.id.0));
            match table.next() {
                Some(next) => from = next,
                None => break,
            }
        }
        assert_eq!(seen, (1..=97).collect::<Vec<_>>());
    }

    #[test]
    fn blocks_count_when_they_are_of_the_slice() {
        let mut table = table(10, 0, &[(7, 250, Class::Used, true)]);
        let key = |index, size| BlockKey { slice: SliceId(7), index, size };
        for (index, size, fits) in [(0, 100, true), (1, 100, true), (2, 100, false), (2, 51, false), (3, 50, false)] {
            assert_eq!(table.see(&key(index, size), 100).is_some(), fits, "{index} {size}");
        }
        assert_eq!(table.incomplete(100).count(), 1);
        assert!(table.see(&key(2, 50), 100).is_some());
        assert_eq!(table.incomplete(100).count(), 0);
        assert!(table.see(&BlockKey { slice: SliceId(8), index: 0, size: 1 }, 100).is_none());
    }
}
