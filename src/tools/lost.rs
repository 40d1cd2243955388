//! Blocks that are in no store any more: whose they are, and what may be done about it.
//!
//! The bytes are gone, so somebody has to decide: zeros in their place, or the files out of the way. Neither is done
//! unless it was asked for. A client that still has the block in its cache or waiting for its upload may be its last
//! owner: that is worth a look before anything is decided.

use super::{OnUnreadable, Tally, Volume, Watch};
use crate::base::slice::resolve;
use crate::base::{ChunkIndex, Errno, Fault, Ino, Name, Outcome, Slice, SliceId, Stop};
use crate::cache::BlockKey;
use crate::chunk::layout;
use crate::meta::Caller;
use crate::meta::engine::Scan;
use crate::meta::record::{Key, Record};
use crate::vfs::compact::tier_of;
use futures::{StreamExt, stream};
use std::collections::{BTreeMap, HashMap, HashSet};

/// Blocks that are told one by one; more are counted.
pub const BLOCKS_MAX: usize = 1 << 20;
/// A chunk that is written to all the time is given up after so many tries.
const TRIES_MAX: u32 = 16;
/// Keys read at a time.
const PAGE_KEYS: usize = 1000;

/// What is to become of files with lost blocks.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum OnLost {
    /// They are told.
    #[default]
    Report,
    /// Zeros take the place of what is lost.
    Zero,
    /// They are removed, past the trash.
    Remove,
}

/// A block without its object.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub struct LostBlock {
    pub key: BlockKey,
    /// The size of an object that is too small to be the block; `None` when there is none.
    pub bytes: Option<u64>,
}

/// A file that a block is missing of.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct BrokenFile {
    pub ino: Ino,
    pub paths: Vec<Vec<u8>>,
    pub chunks: Vec<ChunkIndex>,
    /// What became of it.
    pub mended: Option<&'static str>,
}

/// Everything that is lost.
#[derive(Clone, Debug, Default)]
pub struct Lost {
    /// By key.
    pub blocks: Vec<LostBlock>,
    /// Blocks that were too many to be told one by one.
    pub more: u64,
    pub files: Vec<BrokenFile>,
    /// For each slice with lost blocks, one of the files that it is of.
    pub file_of: BTreeMap<SliceId, Ino>,
}

/// A chunk that has a record of a slice.
pub(super) type Owner = (Ino, ChunkIndex, SliceId);

impl Lost {
    pub(super) fn push(&mut self, block: LostBlock) {
        if self.blocks.len() < BLOCKS_MAX {
            self.blocks.push(block);
        } else {
            self.more += 1;
        }
    }

    /// How many blocks are lost, and their bytes.
    pub fn tally(&self) -> Tally {
        let mut tally = Tally::default();
        self.blocks.iter().for_each(|block| tally.add(block.key.size.into()));
        tally.count += self.more;
        tally
    }

    /// Files that are still broken.
    pub fn broken(&self) -> usize {
        self.files.iter().filter(|file| file.mended.is_none()).count()
    }

    fn slices(&self) -> HashSet<SliceId> {
        self.blocks.iter().map(|block| block.key.slice).collect()
    }
}

/// Which of `keys` have no object that could be them, asked one by one.
pub(super) async fn missing(
    volume: &Volume,
    keys: impl Iterator<Item = BlockKey>,
    parallel: usize,
    watch: &Watch,
    lost: &mut Lost,
    unreadable: &mut u64,
) -> Outcome<()> {
    let mut asked = stream::iter(keys)
        .map(|key| async move { (key, volume.store.head(&volume.name_of(&key)).await) })
        .buffer_unordered(parallel.max(1));
    while let Some((key, found)) = asked.next().await {
        watch.go_on()?;
        watch.progress.add(1);
        match found {
            Ok(Some(object)) if volume.fits(&key, object.size) => {}
            Ok(object) => lost.push(LostBlock { key, bytes: object.map(|object| object.size) }),
            // Not there and not to be had are different things: only the first is a loss.
            Err(fault) => {
                *unreadable += 1;
                tracing::error!("can't tell whether block {} is there: {fault}", volume.name_of(&key));
            }
        }
    }
    Ok(())
}

/// Every chunk with a record of one of the lost slices.
pub(super) async fn owners(volume: &Volume, lost: &Lost, watch: &Watch) -> Outcome<Vec<Owner>> {
    let slices = lost.slices();
    let mut owners: Vec<Owner> = Vec::new();
    watch
        .each_or(OnUnreadable::Skip, &volume.meta, Scan::Chunks, |key, record| {
            if let (Key::Chunk(ino, index), Record::Slices(records)) = (key, record) {
                let named = records.iter().filter(|slice| slices.contains(&slice.id));
                owners.extend(named.map(|slice| (ino, index, slice.id)));
            }
        })
        .await?;
    Ok(owners)
}

/// Finds out which files the lost blocks are of. Blocks that only deleted files have are no loss and are left out.
pub(super) async fn name_files(volume: &Volume, lost: &mut Lost, owners: Vec<Owner>, watch: &Watch) -> Outcome<()> {
    let mut files: BTreeMap<Ino, Vec<ChunkIndex>> = BTreeMap::new();
    owners.iter().for_each(|(ino, index, _)| files.entry(*ino).or_default().push(*index));
    let inodes: Vec<Ino> = files.keys().copied().collect();
    // Those of one directory are found by reading it once.
    let mut by_parent: BTreeMap<Ino, HashSet<Ino>> = BTreeMap::new();
    for part in inodes.chunks(PAGE_KEYS) {
        watch.go_on()?;
        let keys: Vec<Key> = part.iter().map(|ino| Key::Attr(*ino)).collect();
        for (ino, attr) in part.iter().zip(volume.meta.read(&keys).await?) {
            match attr {
                Some(Record::Attr(attr)) => {
                    by_parent.entry(attr.parent).or_default().insert(*ino);
                }
                _ => {
                    files.remove(ino);
                }
            }
        }
    }
    lost.file_of = owners.iter().filter(|(ino, ..)| files.contains_key(ino)).map(|(ino, _, id)| (*id, *ino)).collect();
    lost.blocks.retain(|block| lost.file_of.contains_key(&block.key.slice));
    lost.blocks.sort_unstable();
    let mut paths: HashMap<Ino, Vec<Vec<u8>>> = HashMap::new();
    for (parent, wanted) in by_parent.into_iter().filter(|(parent, _)| *parent != Ino::MANY) {
        names_of(volume, parent, &wanted, &mut paths, watch).await?;
    }
    for (ino, mut chunks) in files {
        watch.go_on()?;
        chunks.sort_unstable();
        chunks.dedup();
        let paths = match paths.remove(&ino) {
            Some(paths) => paths,
            // It has several directories, or went to another one.
            None => match volume.meta.paths_of(ino).await {
                // Removed meanwhile.
                Err(Stop::Errno(Errno::ENOENT)) => continue,
                paths => paths?,
            },
        };
        lost.files.push(BrokenFile { ino, paths, chunks, mended: None });
    }
    Ok(())
}

/// The paths of some nodes in one directory.
async fn names_of(
    volume: &Volume,
    dir: Ino,
    wanted: &HashSet<Ino>,
    paths: &mut HashMap<Ino, Vec<Vec<u8>>>,
    watch: &Watch,
) -> Outcome<()> {
    let tops = match volume.meta.paths_of(dir).await {
        Err(Stop::Errno(Errno::ENOENT)) => return Ok(()),
        tops => tops?,
    };
    let Some(top) = tops.first() else { return Ok(()) };
    let top: &[u8] = if top == b"/" { b"" } else { top };
    let mut after = None;
    loop {
        watch.go_on()?;
        let page = volume.meta.list_names(dir, after.as_ref(), PAGE_KEYS).await?;
        watch.progress.add(page.entries.len() as u64);
        for (name, dentry) in page.entries.into_iter().filter(|(_, dentry)| wanted.contains(&dentry.ino)) {
            paths.entry(dentry.ino).or_default().push([top, b"/", name.as_bytes()].concat());
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

/// Does with the files what was asked for. A file that could not be mended is told in the log and stays broken.
pub(super) async fn mend(volume: &Volume, lost: &mut Lost, how: OnLost, watch: &Watch) -> Outcome<()> {
    let blocks: HashSet<BlockKey> = lost.blocks.iter().map(|block| block.key).collect();
    for file in &mut lost.files {
        watch.go_on()?;
        let done = match how {
            OnLost::Report => return Ok(()),
            OnLost::Zero => zero(volume, file, &blocks).await.map(|()| "zeros take the place of what was lost"),
            OnLost::Remove => remove(volume, file, &blocks).await.map(|()| "removed"),
        };
        watch.progress.add(1);
        match done {
            Ok(what) => file.mended = Some(what),
            Err(stop) => tracing::error!("inode {} stays broken: {stop}", file.ino),
        }
    }
    Ok(())
}

async fn zero(volume: &Volume, file: &BrokenFile, lost: &HashSet<BlockKey>) -> Outcome<()> {
    for index in &file.chunks {
        let mut tries = 0;
        while !zero_chunk(volume, file.ino, *index, lost).await? {
            tries += 1;
            if tries == TRIES_MAX {
                return Err(Fault::conflict("replace lost blocks").with("chunk", index).into());
            }
        }
    }
    Ok(())
}

/// False: the chunk changed meanwhile.
async fn zero_chunk(volume: &Volume, ino: Ino, index: ChunkIndex, lost: &HashSet<BlockKey>) -> Outcome<bool> {
    let (meta, data) = (&volume.meta, &volume.data);
    let records = meta.read_chunk(ino, index).await?;
    // Also what no longer shows: the next check would miss it again.
    if !records.iter().any(|slice| has_lost(slice, volume.block_size(), lost)) {
        return Ok(true);
    }
    let pieces = left_of(&records, volume.block_size(), lost);
    let Some(first) = pieces.first() else {
        return meta.substitute_slices(ino, index, &records, Slice::hole(0, 1)).await;
    };
    let id = meta.next_slice().await?;
    let size = data.merge(&pieces, id, tier_of(meta, data, ino).await?).await?;
    let new = Slice { pos: first.pos, id, size, off: 0, len: size };
    let done = meta.substitute_slices(ino, index, &records, new).await?;
    if !done {
        data.remove(id, size).await?;
    }
    Ok(done)
}

/// What a list shows, with holes for the lost blocks; without holes at either end.
fn left_of(records: &[Slice], block_size: u32, lost: &HashSet<BlockKey>) -> Vec<Slice> {
    let mut pieces: Vec<Slice> = Vec::new();
    for piece in resolve(records) {
        if piece.is_hole() {
            pieces.push(piece);
            continue;
        }
        let mut at = piece.pos;
        for (key, part) in layout::split(piece.id, piece.size, block_size, piece.off, piece.len) {
            let len = part.end - part.start;
            pieces.push(match lost.contains(&key) {
                true => Slice::hole(at, len),
                false => Slice { pos: at, off: piece.off + (at - piece.pos), len, ..piece },
            });
            at += len;
        }
    }
    let first = pieces.iter().position(|piece| !piece.is_hole());
    let last = pieces.iter().rposition(|piece| !piece.is_hole());
    match (first, last) {
        (Some(first), Some(last)) => pieces[first..=last].to_vec(),
        _ => Vec::new(),
    }
}

/// Removes all names of a file, if it still has lost blocks and they are still its names.
async fn remove(volume: &Volume, file: &BrokenFile, lost: &HashSet<BlockKey>) -> Outcome<()> {
    let (meta, caller) = (&volume.meta, Caller::root());
    let mut broken = false;
    for index in &file.chunks {
        broken |=
            meta.read_chunk(file.ino, *index).await?.iter().any(|slice| has_lost(slice, volume.block_size(), lost));
    }
    if !broken {
        return Ok(());
    }
    let paths = match meta.paths_of(file.ino).await {
        Err(Stop::Errno(Errno::ENOENT)) => return Ok(()),
        paths => paths?,
    };
    for path in paths {
        let cut = path.iter().rposition(|byte| *byte == b'/').unwrap_or(0);
        let name = Name::entry(&path[cut + 1..])?;
        let parent = meta.resolve(&caller, Ino::ROOT, &path[..cut]).await?.ino;
        let removed = match meta.lookup(&caller, parent, &name).await {
            Ok(entry) if entry.ino == file.ino => meta.unlink(&caller, parent, &name, true).await.map(|_| ()),
            Ok(_) => Ok(()),
            Err(stop) => Err(stop),
        };
        match removed {
            Ok(()) | Err(Stop::Errno(Errno::ENOENT)) => {}
            Err(stop) => return Err(stop),
        }
    }
    Ok(())
}

/// Whether a record is of a slice that blocks are lost of.
fn has_lost(slice: &Slice, block_size: u32, lost: &HashSet<BlockKey>) -> bool {
    !slice.is_hole() && layout::blocks(slice.id, slice.size, block_size).any(|block| lost.contains(&block))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_is_left_of_a_chunk_has_holes_for_what_is_lost() {
        let records = [
            Slice { pos: 0, id: SliceId(1), size: 250, off: 0, len: 250 },
            Slice { pos: 110, id: SliceId(2), size: 10, off: 0, len: 10 },
        ];
        let block = |id, index, size| BlockKey { slice: SliceId(id), index, size };
        let left = left_of(&records, 100, &HashSet::from([block(1, 1, 100)]));
        let shown: Vec<_> = left.iter().map(|piece| (piece.pos, piece.id.0, piece.off, piece.len)).collect();
        assert_eq!(shown, [(0, 1, 0, 100), (100, 0, 0, 10), (110, 2, 0, 10), (120, 0, 0, 80), (200, 1, 200, 50)]);
        let all = HashSet::from([block(1, 0, 100), block(1, 1, 100), block(1, 2, 50)]);
        let left = left_of(&records, 100, &all);
        assert_eq!(left, [Slice { pos: 110, id: SliceId(2), size: 10, off: 0, len: 10 }]);
        assert!(left_of(&records[..1], 100, &all).is_empty());
    }
}
