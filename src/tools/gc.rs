//! Finds what the store holds for nobody, and removes it (`spec/data.md` 15.1).
//!
//! **Why it is safe while clients write.** An object is *leaked* when all of this holds:
//! 1. it was put longer ago than the safety age (one hour), by the store's own clock: before anything is deleted, an
//!    object is put to ask it, so that the clocks of this machine and the store need not agree;
//! 2. its slice id was handed out before the run began (it lies below the counter of ids read first);
//! 3. no record mentions its slice, neither when all were read before the listing nor when all are read once more after
//!    it; and right before it is removed, it is still the object that was listed.
//!
//! A writer puts the blocks of a slice first and commits the record seconds later, or fails: after an hour a block
//! without a record has no writer any more, and (3) would have seen a record that came meanwhile. Slice ids are used
//! once, so no later slice has the same blocks. A new reference to an old slice is only ever made from another one
//! (clone, copying a range), so a slice that had none can get none; and while a reference moves from one chunk to
//! another during a read, the slice's count is stored, which is why the counts are read last. The first look could be
//! outwitted by such a move only if the second one is, too.
//!
//! A writer that stands still for that long (a stopped process, a suspended machine) and then goes on is kept from
//! committing: its session is past, sessions that are past are cleaned before the second look, and what was written in
//! a session cannot be committed once that is gone. (The peer's clients have no such rule.)
//!
//! The age is what keeps writers safe that have put blocks and not yet committed their record, so a smaller one is for
//! volumes without writers, or with writers that are known to be quick: an upload that is tried again and again during
//! an outage can take many minutes.
//!
//! References that lead nowhere are found and dropped before the listing ([`super::references`]). What a writer left in
//! a directory store that died before an object was whole ([`is_unfinished`]) is leaked as soon as it is old enough.
//!
//! Objects of ids that were never handed out are not touched at all: a volume whose metadata was brought back from an
//! old backup has such objects, and they are the only copy of what came after it. They are counted as skipped and told
//! in the log.
//!
//! Candidates are held, [`CANDIDATES_MAX`] at a time; when there are more, the second look is taken for each lot. What
//! else is held, [`super::slices`] says.

use super::fsck::block_of;
use super::references::{self, Sized};
use super::slices::{Class, SLICES_MAX, Table};
use super::{OnUnreadable, PAGE_RECORDS, StoreRemover, Tally, Volume, Watch, listing};
use crate::base::{ChunkIndex, Errno, Fault, Ino, Outcome, SliceId, Stop};
use crate::buf::Payload;
use crate::cache::BlockKey;
use crate::chunk::layout;
use crate::meta::engine::Scan;
use crate::meta::jobs::CleanedUp;
use crate::meta::outside;
use crate::meta::record::{Counter, Key, Record};
use crate::meta::session::unheard;
use crate::object::Listed;
use crate::object::file::is_unfinished;
use crate::vfs::compact::{Compacted, compact_once};
use futures::{StreamExt, stream};
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::time::{Duration, SystemTime};

/// Objects are left alone for so long after they were put.
pub const SAFETY_AGE: Duration = Duration::from_secs(3600);
/// About 100 bytes each.
const CANDIDATES_MAX: usize = 1 << 20;
/// Chunks compacted at a time; each holds some blocks in memory.
const COMPACTIONS_MAX: usize = 10;

#[derive(Clone, Debug)]
pub struct Options {
    pub delete: bool,
    pub compact: bool,
    /// Requests to the store at a time.
    pub parallel: usize,
    pub age: Duration,
}

/// What was found, and done. A run that was cut short has seen only a part.
#[derive(Clone, Debug, Default)]
pub struct Report {
    /// Objects with names of blocks, and unfinished ones.
    pub scanned: u64,
    pub valid: Tally,
    /// Of slices that nothing refers to any more, and that are not removed yet.
    pub pending: Tally,
    /// Of slices that a compaction replaced, kept for the trash.
    pub compacted: Tally,
    pub leaked: Tally,
    /// Too young to judge, or of ids that were never handed out.
    pub skipped: Tally,
    /// Those of `skipped` whose ids were never handed out.
    pub ahead: Tally,
    /// Replaced slices in the trash.
    pub delayed_slices: Tally,
    /// Deleted files whose data is still there.
    pub deleted_files: Tally,
    /// Slices of files.
    pub using: Tally,
    /// Slices that are counted as used and mentioned nowhere; their objects are leaked.
    pub leaked_slices: Tally,
    /// Chunks of files that are neither there nor recorded as deleted.
    pub leaked_chunks: u64,
    pub cleaned: CleanedUp,
    /// Leaked slices whose counts and objects were removed.
    pub released_slices: u64,
    /// Files of leaked chunks whose data was removed.
    pub dropped_files: u64,
    /// Leaked objects that were removed.
    pub deleted: Tally,
    /// Leaked objects that could not be removed.
    pub failed: u64,
    /// Chunks that were compacted, and how many slices became how many bytes.
    pub chunks: u64,
    pub merged: u64,
    pub merged_bytes: u64,
}

/// Looks through a volume, and with `delete` removes what is for nobody. What was found is in `report` also when the
/// run is cut short, with ECANCELED, or fails.
pub async fn run(volume: &Volume, options: &Options, watch: &Watch, report: &mut Report) -> Outcome<()> {
    if options.compact {
        compact(volume, options, watch, report).await?;
    }
    if options.delete {
        watch.progress.phase("trash and deleted files");
        let remover = Arc::new(StoreRemover(volume.clone()));
        report.cleaned = volume.meta.clean_up(remover, options.parallel, watch.stop.clone()).await?;
        watch.go_on()?;
    }
    waiting(volume, watch, report).await?;
    let now = match options.delete {
        true => store_time(volume).await?,
        false => volume.meta.now().to_system(),
    };
    let before = now.checked_sub(options.age).unwrap_or(SystemTime::UNIX_EPOCH);
    // Before anything else is read: what is handed out from now on is not ours to judge.
    let ahead = match volume.meta.read(&[Key::Counter(Counter::NextSlice)]).await?.pop().flatten() {
        Some(Record::Number(next)) => SliceId(next.max(0) as u64),
        _ => SliceId(0),
    };
    let chunks = references::leaked_chunks(volume, watch).await?;
    report.leaked_chunks = chunks.len() as u64;
    if options.delete {
        report.dropped_files = references::drop_chunks(volume, &chunks, options.parallel, watch).await? as u64;
    }
    let mut from = 0;
    loop {
        watch.progress.phase("slices");
        let table = Table::collect(volume, from, SLICES_MAX, OnUnreadable::Fail, watch).await?;
        let mut unmentioned: HashSet<Sized> = HashSet::new();
        for row in table.rows().iter().filter(|row| row.class == Class::Used) {
            if row.mentioned {
                report.using.add(row.size.into());
            } else if row.id < ahead && unmentioned.len() < references::LEAKS_MAX {
                unmentioned.insert((row.id, row.size));
            }
        }
        let orphans = references::leaked_slices(volume, unmentioned, before, options.parallel, watch).await?;
        orphans.iter().for_each(|(_, size)| report.leaked_slices.add((*size).into()));
        if options.delete {
            report.released_slices += references::release(volume, &orphans, options.parallel, watch).await? as u64;
        }
        let next = table.next();
        let report = &mut *report;
        let (candidates, unfinished) = (Vec::new(), Vec::new());
        let mut pass = Pass { volume, options, watch, report, table, orphans, before, ahead, candidates, unfinished };
        pass.objects().await?;
        match next {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The store's clock, by an object that is put and asked for.
async fn store_time(volume: &Volume) -> Outcome<SystemTime> {
    let key = format!("testing/gc-{:08x}", rand::random::<u32>());
    volume.store.put(&key, Payload::from(b"gc".to_vec())).await?;
    let found = volume.store.head(&key).await;
    volume.store.delete(&key).await?;
    // A directory store keeps the empty directory; its own name for it ends in `/`.
    volume.store.delete("testing/").await?;
    match found? {
        Some(object) => Ok(object.mtime),
        None => Err(Fault::not_found("ask the store for its time").with("key", key).into()),
    }
}

/// What waits in the trash and for deletion.
async fn waiting(volume: &Volume, watch: &Watch, report: &mut Report) -> Outcome<()> {
    watch.progress.phase("what waits for deletion");
    watch
        .each(&volume.meta, Scan::DelayedSlices, |_, record| {
            if let Record::Slices(slices) = record {
                slices.iter().for_each(|slice| report.delayed_slices.add(slice.size.into()));
            }
        })
        .await?;
    watch
        .each(&volume.meta, Scan::DeletedFiles, |key, _| {
            if let Key::DeletedFile(_, length) = key {
                report.deleted_files.add(length);
            }
        })
        .await
}

/// One pass over the store.
struct Pass<'a> {
    volume: &'a Volume,
    options: &'a Options,
    watch: &'a Watch,
    report: &'a mut Report,
    table: Table,
    /// Leaked slices.
    orphans: HashSet<Sized>,
    /// What was put later is left alone.
    before: SystemTime,
    ahead: SliceId,
    candidates: Vec<(BlockKey, Listed)>,
    /// Old enough to be leaked.
    unfinished: Vec<Listed>,
}

impl Pass<'_> {
    async fn objects(&mut self) -> Outcome<()> {
        self.watch.progress.phase("objects");
        let hash_prefix = self.volume.data.options().hash_prefix;
        let mut pages = listing::pages(&self.volume.store, hash_prefix, self.options.parallel);
        while let Some(page) = pages.next().await {
            self.watch.go_on()?;
            let page = page?;
            self.watch.progress.add(page.len() as u64);
            for object in page {
                self.object(object).await?;
            }
            if self.candidates.len() + self.unfinished.len() >= CANDIDATES_MAX {
                self.remove().await?;
                self.watch.progress.phase("objects");
            }
        }
        self.remove().await
    }

    /// Judges what was held back, and with `delete` removes what is leaked.
    async fn remove(&mut self) -> Outcome<()> {
        self.second_look().await?;
        let unfinished = std::mem::take(&mut self.unfinished);
        match self.options.delete {
            true => self.delete(unfinished).await,
            false => Ok(()),
        }
    }

    async fn object(&mut self, mut object: Listed) -> Outcome<()> {
        let key = block_of(self.volume, &object.key);
        let is_ours = match &key {
            Some(key) => self.table.covers(key.slice),
            // They belong to no slice of a table: the first pass has them.
            None => self.table.is_first() && is_unfinished(&object.key),
        };
        if !is_ours {
            return Ok(());
        }
        self.report.scanned += 1;
        // Some stores do not tell everything in a listing.
        if object.size == 0 || object.mtime == SystemTime::UNIX_EPOCH {
            match self.volume.store.head(&object.key).await? {
                Some(meta) => (object.size, object.mtime) = (meta.size, meta.mtime),
                None => return Ok(()),
            }
        }
        let bytes = object.size;
        if object.mtime > self.before {
            self.report.skipped.add(bytes);
            return Ok(());
        }
        let Some(key) = key else {
            self.report.leaked.add(bytes);
            self.unfinished.push(object);
            return Ok(());
        };
        let row = self.table.see(&key, self.volume.block_size());
        if row.is_some_and(|row| self.orphans.contains(&(row.id, row.size))) {
            // Removed with its count, or not at all.
            self.report.leaked.add(bytes);
            return Ok(());
        }
        match row.map(|row| row.class) {
            Some(Class::Used) => self.report.valid.add(bytes),
            Some(Class::Delayed) => self.report.compacted.add(bytes),
            Some(Class::Pending) => self.report.pending.add(bytes),
            None if key.slice >= self.ahead => {
                self.report.skipped.add(bytes);
                self.report.ahead.add(bytes);
            }
            None => self.candidates.push((key, object)),
        }
        Ok(())
    }

    /// Reads all references again, for the candidates; what nothing mentions now either is leaked.
    async fn second_look(&mut self) -> Outcome<()> {
        let candidates = std::mem::take(&mut self.candidates);
        if candidates.is_empty() {
            return Ok(());
        }
        self.watch.progress.phase("a second look");
        if self.options.delete {
            // A tool has no heartbeat.
            self.volume.meta.clean_stale_sessions(unheard(Duration::ZERO), &self.watch.stop).await?;
        }
        let ids: HashSet<SliceId> = candidates.iter().map(|(key, _)| key.slice).collect();
        let mut mentioned: HashMap<SliceId, HashSet<u32>> = HashMap::new();
        let mut mention = |id: SliceId, size: u32| {
            if ids.contains(&id) {
                mentioned.entry(id).or_default().insert(size);
            }
        };
        // The counts last: they tell of a slice that moved past us meanwhile.
        for scan in [Scan::Chunks, Scan::DelayedSlices, Scan::SliceRefs] {
            self.watch
                .each(&self.volume.meta, scan, |key, record| match (key, record) {
                    (_, Record::Slices(slices)) => slices.iter().for_each(|slice| mention(slice.id, slice.size)),
                    (Key::SliceRef(id, size), _) => mention(id, size),
                    _ => {}
                })
                .await?;
        }
        let block_size = self.volume.block_size();
        let is_of =
            |size: &u32, key: &BlockKey| layout::blocks(key.slice, *size, block_size).any(|block| block == *key);
        let (used, leaked): (Vec<_>, Vec<_>) = candidates
            .into_iter()
            .partition(|(key, _)| mentioned.get(&key.slice).is_some_and(|sizes| sizes.iter().any(|s| is_of(s, key))));
        used.iter().for_each(|(_, object)| self.report.valid.add(object.size));
        leaked.iter().for_each(|(_, object)| self.report.leaked.add(object.size));
        if self.options.delete {
            self.delete(leaked.into_iter().map(|(_, object)| object).collect()).await?;
        }
        Ok(())
    }

    async fn delete(&mut self, leaked: Vec<Listed>) -> Outcome<()> {
        self.watch.progress.phase("leaked objects");
        let (store, before, stop) = (&self.volume.store, self.before, &self.watch.stop);
        let mut removals = stream::iter(leaked)
            .take_while(|_| std::future::ready(!stop.is_stopped()))
            .map(|object| async move {
                let removed = match store.head(&object.key).await {
                    Ok(Some(now)) if now.mtime <= before && now.size == object.size => {
                        store.delete(&object.key).await.map(|()| true)
                    }
                    // Somebody was faster, or put it anew.
                    Ok(_) => Ok(false),
                    Err(fault) => Err(fault),
                };
                (object, removed)
            })
            .buffer_unordered(self.options.parallel.max(1));
        while let Some((object, removed)) = removals.next().await {
            self.watch.progress.add(1);
            match removed {
                Ok(true) => self.report.deleted.add(object.size),
                Ok(false) => {}
                Err(fault) => {
                    self.report.failed += 1;
                    tracing::warn!("leaked object stays: {fault}");
                }
            }
        }
        self.watch.go_on()
    }
}

/// Rewrites every chunk that has several records, until nothing is left to do.
async fn compact(volume: &Volume, options: &Options, watch: &Watch, report: &mut Report) -> Outcome<()> {
    watch.progress.phase("chunks to compact");
    let engine = volume.meta.engine();
    let mut after = None;
    loop {
        watch.go_on()?;
        let page = outside(engine.scan(&Scan::Chunks, after.as_ref(), PAGE_RECORDS).await)?;
        let several = |(key, record): (Key, Record)| match (key, record) {
            (Key::Chunk(ino, index), Record::Slices(slices)) if slices.len() > 1 => Some((ino, index)),
            _ => None,
        };
        let chunks: Vec<(Ino, ChunkIndex)> = page.rows.into_iter().filter_map(several).collect();
        let mut work = stream::iter(chunks)
            .take_while(|_| std::future::ready(!watch.stop.is_stopped()))
            .map(|(ino, index)| async move { (ino, index, compact_chunk(volume, watch, ino, index).await) })
            .buffer_unordered(options.parallel.clamp(1, COMPACTIONS_MAX));
        while let Some((ino, index, done)) = work.next().await {
            watch.progress.add(1);
            match done {
                Ok((merged, bytes, garbage)) => {
                    report.chunks += u64::from(merged > 0);
                    report.merged += merged as u64;
                    report.merged_bytes += bytes;
                    let remover = Arc::new(StoreRemover(volume.clone()));
                    volume.meta.remove_slices(garbage, remover, options.parallel, watch.stop.clone()).await;
                }
                Err(stop) => tracing::warn!("chunk {index} of {ino} is not compacted: {stop}"),
            }
        }
        match page.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

type Merged = (usize, u64, Vec<(SliceId, u32)>);

async fn compact_chunk(volume: &Volume, watch: &Watch, ino: Ino, index: ChunkIndex) -> Outcome<Merged> {
    let (mut records, mut written, mut slices) = (0, 0, Vec::new());
    // The data of a deleted file is not worth it.
    match volume.meta.getattr(ino).await {
        Err(Stop::Errno(Errno::ENOENT)) => return Ok((0, 0, slices)),
        attr => attr.map(|_| ())?,
    }
    while !watch.stop.is_stopped() {
        match compact_once(&volume.meta, &volume.data, ino, index).await? {
            Compacted::Nothing => break,
            Compacted::Done { merged, bytes, garbage } => {
                records += merged;
                written += u64::from(bytes);
                slices.extend(garbage);
            }
        }
    }
    Ok((records, written, slices))
}

#[cfg(test)]
#[path = "gc_tests.rs"]
mod tests;
