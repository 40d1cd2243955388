//! Putting one record in the place of a chunk's whole list when data is lost: what the list showed and is still there
//! was copied into a new slice, and zeros stand for the rest.
//!
//! It differs from compaction in two ways. The old slices do not wait in the trash, for a volume with lost data would
//! go on missing them there; and the file's times change, for its content does.

use super::compact::released;
use crate::base::{AttrPatch, ChunkIndex, Errno, Ino, Kind, Outcome, Slice};
use crate::meta::Meta;
use crate::meta::engine::Change;
use crate::meta::record::{Key, Record};
use crate::meta::txn::{AttrOf, ChunkPrefixOf, Operation, Settled, Tx};

struct Substitute<'a> {
    ino: Ino,
    index: ChunkIndex,
    read: &'a [Slice],
    with: Slice,
}

impl Operation for Substitute<'_> {
    const NAME: &'static str = "substitute_slices";
    /// False: the list has changed.
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        let (node, list) = tx.load((AttrOf(self.ino), ChunkPrefixOf(self.ino, self.index))).await?;
        if node.exists()?.kind() != Kind::File {
            return Err(Errno::EPERM.into());
        }
        if !list.starts_with(self.read) {
            return Ok(false);
        }
        let (count, with) = (self.read.len(), vec![self.with]);
        tx.change(Change::ReplacePrefix { ino: self.ino, index: self.index, count, with });
        if !self.with.is_hole() {
            tx.change(Change::Put(Key::SliceRef(self.with.id, self.with.size), Record::Number(1)));
        }
        for ((id, size), references) in released(self.read.iter()) {
            tx.change(Change::AddSliceRef { id, size, delta: -references });
        }
        tx.patch(self.ino, AttrPatch::new().set_mtime(tx.now()).set_ctime(tx.now()));
        Ok(true)
    }

    /// The record in the list shows that it was applied, the old list that it was not.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        let list = tx.load(ChunkPrefixOf(self.ino, self.index)).await?;
        Ok(if list.first() == Some(&self.with) {
            Settled::Applied(true)
        } else if list.starts_with(self.read) {
            Settled::NotApplied
        } else {
            Settled::Unknown
        })
    }
}

impl Meta {
    /// Puts `with` (a new slice, or a hole) in the place of the records `read`, with which the list of the chunk
    /// begins. False when it no longer does. Slices that nothing refers to any more are left to the hourly job.
    pub async fn substitute_slices(&self, ino: Ino, index: ChunkIndex, read: &[Slice], with: Slice) -> Outcome<bool> {
        self.writable()?;
        self.run(&Substitute { ino, index, read, with }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{SliceId, Timestamp};
    use crate::meta::check::check;
    use crate::meta::testing::{file, references, volume};

    #[tokio::test]
    async fn what_a_list_showed_is_replaced_and_its_references_go() {
        let meta = volume().await;
        let (ino, index) = (file(&meta, "f").await, ChunkIndex(0));
        let written = |pos, id| Slice { pos, id: SliceId(id), size: 10, off: 0, len: 10 };
        for slice in [written(0, 1), Slice::hole(5, 10), written(8, 2)] {
            meta.append_slice(ino, index, slice, Timestamp::default()).await.unwrap();
        }
        let read = meta.read_chunk(ino, index).await.unwrap();
        let late = written(30, 3);
        meta.append_slice(ino, index, late, Timestamp::default()).await.unwrap();
        let new = Slice { pos: 2, id: SliceId(9), size: 16, off: 0, len: 16 };
        assert!(meta.substitute_slices(ino, index, &read, new).await.unwrap());
        assert_eq!(meta.read_chunk(ino, index).await.unwrap(), [new, late]);
        assert!(!meta.substitute_slices(ino, index, &read, new).await.unwrap(), "the list has changed");
        assert_eq!(references(&meta, SliceId(9), 16).await, 1);
        let hole = Slice::hole(0, 1);
        assert!(meta.substitute_slices(ino, index, &[new, late], hole).await.unwrap());
        assert_eq!(meta.read_chunk(ino, index).await.unwrap(), [hole]);
        let report = check(&**meta.engine()).await.unwrap();
        assert!(report.is_clean(), "{report}");
    }
}
