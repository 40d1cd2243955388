//! References that lead nowhere: slices that are counted although no record mentions them, and chunks of files that
//! are neither there nor recorded as deleted. Both keep their objects for ever.
//!
//! No transaction can ask whether *nothing* mentions a slice, and a slice may move while chunks are read (its bytes are
//! shared with another file, and then the first one goes). So a slice is only called leaked when several readings of all
//! chunks miss it, with the same count before and after each; before its count is dropped there is one more; and its
//! objects must be old, as those of every leak. A chunk is simpler: the record that its file was deleted is there for as
//! long as the chunk is, so chunks are read first, those records next, and then the chunk once more.

use super::{PAGE_RECORDS, StoreRemover, Volume, Watch};
use crate::base::{ChunkIndex, Ino, Outcome, SliceId};
use crate::chunk::layout;
use crate::meta::check::Finding;
use crate::meta::engine::Scan;
use crate::meta::outside;
use crate::meta::record::{Key, Record};
use crate::meta::repair::Mended;
use futures::{StreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::SystemTime;

/// Leaks dealt with in one run; the next run finds the others.
pub(super) const LEAKS_MAX: usize = 1 << 20;
/// Keys asked for at a time.
const PAGE_KEYS: usize = 1000;

/// A slice with the size that its records give it.
pub(super) type Sized = (SliceId, u32);

/// How often slices are counted and mentioned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Counted {
    /// By the record of their references, if they have one.
    pub stored: Option<i64>,
    pub mentions: i64,
}

/// Reads all chunks for these slices. Left out are those whose counts changed meanwhile: nothing can be said of them.
pub(super) async fn recount(
    volume: &Volume,
    slices: &HashSet<Sized>,
    watch: &Watch,
) -> Outcome<HashMap<Sized, Counted>> {
    let mut counted: HashMap<Sized, Counted> = HashMap::new();
    for (slice, stored) in stored(volume, slices).await? {
        counted.insert(slice, Counted { stored, mentions: 0 });
    }
    // An engine may answer a chunk twice; only those that matter here are remembered.
    let mut seen: HashSet<(Ino, ChunkIndex)> = HashSet::new();
    for scan in [Scan::Chunks, Scan::DelayedSlices] {
        watch
            .each(&volume.meta, scan, |key, record| {
                let Record::Slices(records) = record else { return };
                let named = |slice: &&crate::base::Slice| slices.contains(&(slice.id, slice.size));
                let mut named = records.iter().filter(named).peekable();
                if named.peek().is_none() || matches!(key, Key::Chunk(ino, index) if !seen.insert((ino, index))) {
                    return;
                }
                for slice in named {
                    if let Some(counted) = counted.get_mut(&(slice.id, slice.size)) {
                        counted.mentions += 1;
                    }
                }
            })
            .await?;
    }
    for (slice, stored) in stored(volume, slices).await? {
        if counted.get(&slice).is_some_and(|counted| counted.stored != stored) {
            counted.remove(&slice);
        }
    }
    Ok(counted)
}

async fn stored(volume: &Volume, slices: &HashSet<Sized>) -> Outcome<Vec<(Sized, Option<i64>)>> {
    let slices: Vec<Sized> = slices.iter().copied().collect();
    let mut all = Vec::with_capacity(slices.len());
    for part in slices.chunks(PAGE_KEYS) {
        let keys: Vec<Key> = part.iter().map(|(id, size)| Key::SliceRef(*id, *size)).collect();
        for (slice, record) in part.iter().zip(volume.meta.read(&keys).await?) {
            all.push((*slice, if let Some(Record::Number(count)) = record { Some(count) } else { None }));
        }
    }
    Ok(all)
}

/// Those of `slices` that are counted, that no record mentions, and whose objects are all from before `before`.
pub(super) async fn leaked_slices(
    volume: &Volume,
    slices: HashSet<Sized>,
    before: SystemTime,
    parallel: usize,
    watch: &Watch,
) -> Outcome<HashSet<Sized>> {
    if slices.is_empty() {
        return Ok(slices);
    }
    watch.progress.phase("slices that nothing mentions");
    let unmentioned = unmentioned(volume, &slices, watch).await?;
    let mut asked = stream::iter(unmentioned.into_keys())
        .map(|(id, size)| async move { ((id, size), is_old(volume, id, size, before).await) })
        .buffer_unordered(parallel.max(1));
    let mut leaked = HashSet::new();
    while let Some((slice, old)) = asked.next().await {
        watch.go_on()?;
        if old? {
            leaked.insert(slice);
        }
    }
    Ok(leaked)
}

/// With the counts that they have all the same.
async fn unmentioned(volume: &Volume, slices: &HashSet<Sized>, watch: &Watch) -> Outcome<HashMap<Sized, i64>> {
    let counted = recount(volume, slices, watch).await?;
    let leaked = |(slice, counted): (Sized, Counted)| match counted {
        Counted { stored: Some(stored), mentions: 0 } if stored > 0 => Some((slice, stored)),
        _ => None,
    };
    Ok(counted.into_iter().filter_map(leaked).collect())
}

async fn is_old(volume: &Volume, id: SliceId, size: u32, before: SystemTime) -> Outcome<bool> {
    for key in layout::blocks(id, size, volume.block_size()) {
        if volume.store.head(&volume.name_of(&key)).await?.is_some_and(|object| object.mtime > before) {
            return Ok(false);
        }
    }
    Ok(true)
}

/// Drops the counts of slices that were found to be leaked, and their objects. Answers those that went.
pub(super) async fn release(
    volume: &Volume,
    leaked: &HashSet<Sized>,
    parallel: usize,
    watch: &Watch,
) -> Outcome<usize> {
    if leaked.is_empty() {
        return Ok(0);
    }
    watch.progress.phase("slices that nothing mentions, once more");
    let mut dropped = Vec::new();
    for ((id, size), stored) in unmentioned(volume, leaked, watch).await? {
        watch.go_on()?;
        // A count that has changed meanwhile is left alone.
        let finding = Finding::LostSlice { id, size, stored };
        if let Some((_, Mended::Done(_))) = volume.meta.mend(&[finding], 0).await?.pop() {
            watch.progress.add(1);
            dropped.push((id, size));
        }
    }
    let remover = Arc::new(StoreRemover(volume.clone()));
    Ok(volume.meta.remove_slices(dropped, remover, parallel, watch.stop.clone()).await)
}

/// Chunks of files that are neither there nor recorded as deleted.
pub(super) async fn leaked_chunks(volume: &Volume, watch: &Watch) -> Outcome<Vec<Finding>> {
    watch.progress.phase("chunks without a file");
    let mut homeless: Vec<(Ino, ChunkIndex)> = Vec::new();
    let mut after = None;
    loop {
        watch.go_on()?;
        let page = outside(volume.meta.engine().scan(&Scan::Chunks, after.as_ref(), PAGE_RECORDS).await)?;
        watch.progress.add(page.rows.len() as u64);
        let chunk =
            |(key, _): &(Key, Record)| if let Key::Chunk(ino, index) = key { Some((*ino, *index)) } else { None };
        let chunks: Vec<(Ino, ChunkIndex)> = page.rows.iter().filter_map(chunk).collect();
        for part in chunks.chunks(PAGE_KEYS) {
            let keys: Vec<Key> = part.iter().map(|(ino, _)| Key::Attr(*ino)).collect();
            let nodes = volume.meta.read(&keys).await?;
            homeless.extend(part.iter().zip(nodes).filter(|(_, node)| node.is_none()).map(|(chunk, _)| *chunk));
        }
        homeless.truncate(LEAKS_MAX);
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    if homeless.is_empty() {
        return Ok(Vec::new());
    }
    homeless.sort_unstable();
    homeless.dedup();
    let inodes: HashSet<Ino> = homeless.iter().map(|(ino, _)| *ino).collect();
    let mut deleted = HashSet::new();
    watch
        .each(&volume.meta, Scan::DeletedFiles, |key, _| {
            if let Key::DeletedFile(ino, _) = key
                && inodes.contains(&ino)
            {
                deleted.insert(ino);
            }
        })
        .await?;
    let mut leaked = Vec::new();
    for (ino, index) in homeless.into_iter().filter(|(ino, _)| !deleted.contains(ino)) {
        let finding = Finding::LostChunk { ino, index };
        if volume.meta.holds(&finding).await? {
            leaked.push(finding);
        }
    }
    Ok(leaked)
}

/// Drops chunks that were found to be leaked: they are recorded as deleted, and take the way of deleted data. Answers
/// of how many files.
pub(super) async fn drop_chunks(volume: &Volume, leaked: &[Finding], parallel: usize, watch: &Watch) -> Outcome<usize> {
    let inodes: HashSet<Ino> = volume
        .meta
        .mend(leaked, 0)
        .await?
        .into_iter()
        .filter_map(|mended| match mended {
            (Finding::LostChunk { ino, .. }, Mended::Done(_)) => Some(ino),
            _ => None,
        })
        .collect();
    if inodes.is_empty() {
        return Ok(0);
    }
    let remover = Arc::new(StoreRemover(volume.clone()));
    volume.meta.remove_deleted_files(&inodes, remover, parallel, watch.stop.clone()).await
}

/// Of findings about references those that one more count agrees with; all others are left as they are.
pub(super) async fn confirm(volume: &Volume, findings: &mut Vec<Finding>, watch: &Watch) -> Outcome<()> {
    let about = |finding: &Finding| match finding {
        Finding::WrongReferences { id, size, stored, counted } => Some(((*id, *size), *stored, *counted)),
        Finding::LostSlice { id, size, stored } => Some(((*id, *size), *stored, 0)),
        _ => None,
    };
    let slices: HashSet<Sized> = findings.iter().filter_map(about).map(|(slice, ..)| slice).collect();
    if slices.is_empty() || slices.len() > LEAKS_MAX {
        return Ok(());
    }
    let now = recount(volume, &slices, watch).await?;
    findings.retain(|finding| {
        about(finding).is_none_or(|(slice, stored, counted)| {
            // Without a record a slice has one reference.
            now.get(&slice).is_some_and(|now| (now.stored.unwrap_or(1), now.mentions) == (stored, counted))
        })
    });
    Ok(())
}

#[cfg(test)]
#[path = "references_tests.rs"]
mod tests;
