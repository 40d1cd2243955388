//! The blocks of the files at and below a path, asked for one by one: for a part of a volume whose store is too large
//! to be listed.
//!
//! Most files are small, so blocks are collected over files until there are enough to keep the store busy; the chunks
//! of small files are read many in one trip. Held are the slices of one such lot. A chunk that cannot be read, or that
//! has an impossible record, is a finding, and its blocks are not looked for.

use super::fsck::{Options, Report};
use super::lost::{self, Owner};
use super::subtree::Walked;
use super::{PAGE_RECORDS, Volume, Watch, subtree};
use crate::base::{Attr, CHUNK_BYTES, ChunkIndex, Fault, Ino, Outcome, Slice, SliceId};
use crate::chunk::layout;
use crate::meta::check::Finding;
use crate::meta::engine::{Cursor, Scan};
use crate::meta::outside;
use crate::meta::record::{Key, Record};
use std::collections::HashSet;

/// Blocks asked for in one lot.
const LOT_BLOCKS: usize = 4096;
/// Chunks asked for in one trip.
const CHUNKS_AT_ONCE: usize = 256;

/// Looks for every block, and answers which chunks have a record of those that are lost.
pub(super) async fn blocks(
    volume: &Volume,
    path: &[u8],
    options: &Options,
    watch: &Watch,
    report: &mut Report,
) -> Outcome<Vec<Owner>> {
    watch.progress.phase("blocks");
    let mut lots = Lots { volume, options, watch, report, waiting: Vec::new(), blocks: 0, owners: Vec::new() };
    let mut findings = Vec::new();
    subtree::walk(&volume.meta, path, options.recursive, watch, async |files| {
        each_chunk(volume, files, &mut findings, async |ino, index, slices| lots.add(ino, index, slices).await).await
    })
    .await?;
    lots.ask().await?;
    let (mut owners, report) = (lots.owners, lots.report);
    // Who repairs has met them already.
    findings.retain(|finding| !report.problems.contains(finding));
    report.problems.append(&mut findings);
    // A slice that two files share was asked for twice.
    let lost = &mut report.lost;
    lost.blocks.sort_unstable();
    lost.blocks.dedup();
    let slices: HashSet<SliceId> = lost.blocks.iter().map(|block| block.key.slice).collect();
    owners.retain(|(.., slice)| slices.contains(slice));
    let gone = lost.tally();
    report.blocks.count = report.blocks.count.saturating_sub(gone.count);
    report.blocks.bytes = report.blocks.bytes.saturating_sub(gone.bytes);
    Ok(owners)
}

/// The walk of a part, its chunks too: they are read without their blocks, for who wants to know whether everything can
/// be read.
pub(super) async fn metadata(volume: &Volume, path: &[u8], recursive: bool, watch: &Watch) -> Outcome<Walked> {
    let mut findings = Vec::new();
    let mut walked = subtree::walk(&volume.meta, path, recursive, watch, async |files| {
        each_chunk(volume, files, &mut findings, async |_, _, _| watch.go_on()).await
    })
    .await?;
    walked.findings.append(&mut findings);
    Ok(walked)
}

/// Hands out the chunks of some files that have slices; what is wrong with the others is found.
async fn each_chunk(
    volume: &Volume,
    files: Vec<(Ino, Attr)>,
    findings: &mut Vec<Finding>,
    mut chunk: impl AsyncFnMut(Ino, ChunkIndex, Vec<Slice>) -> Outcome<()>,
) -> Outcome<()> {
    let (small, large): (Vec<_>, Vec<_>) = files.into_iter().partition(|(_, attr)| attr.length <= CHUNK_BYTES);
    let filled = small.into_iter().filter(|(_, attr)| attr.length > 0);
    let filled: Vec<Key> = filled.map(|(ino, _)| Key::Chunk(ino, ChunkIndex(0))).collect();
    for keys in filled.chunks(CHUNKS_AT_ONCE) {
        for (ino, index, slices) in possible(read(volume, keys).await?, findings) {
            chunk(ino, index, slices).await?;
        }
    }
    for (ino, attr) in large {
        let mut chunks = ChunksOf::new(volume, ino, &attr);
        while let Some(page) = chunks.next().await? {
            for (ino, index, slices) in possible(page, findings) {
                chunk(ino, index, slices).await?;
            }
        }
    }
    Ok(())
}

/// Chunks that have a record, and why others do not decode.
type Chunks = Vec<Result<(Ino, ChunkIndex, Vec<Slice>), Fault>>;

async fn read(volume: &Volume, keys: &[Key]) -> Outcome<Chunks> {
    let answers = outside(volume.meta.engine().read_readable(keys).await)?;
    let chunk = |(key, answer): (&Key, Result<Option<Record>, Fault>)| match (key, answer) {
        (Key::Chunk(ino, index), Ok(Some(Record::Slices(slices)))) => Some(Ok((*ino, *index, slices))),
        (_, Ok(_)) => None,
        (_, Err(fault)) => Some(Err(fault)),
    };
    Ok(keys.iter().zip(answers).filter_map(chunk).collect())
}

/// The chunks whose records can be read and can be.
fn possible(chunks: Chunks, findings: &mut Vec<Finding>) -> Vec<(Ino, ChunkIndex, Vec<Slice>)> {
    let mut sound = Vec::with_capacity(chunks.len());
    for chunk in chunks {
        let finding = match chunk {
            Err(fault) => Finding::Unreadable { why: fault.to_string() },
            Ok((ino, index, slices)) => match slices.iter().find(|slice| !slice.is_possible()) {
                Some(slice) => Finding::BadSlice { ino, index, slice: *slice },
                None => {
                    sound.push((ino, index, slices));
                    continue;
                }
            },
        };
        // A file of several names is met as often.
        if !findings.contains(&finding) {
            findings.push(finding);
        }
    }
    sound
}

/// What was read of files and is still to be asked for.
struct Lots<'a> {
    volume: &'a Volume,
    options: &'a Options,
    watch: &'a Watch,
    report: &'a mut Report,
    waiting: Vec<(Ino, ChunkIndex, Vec<Slice>)>,
    blocks: usize,
    owners: Vec<Owner>,
}

impl Lots<'_> {
    async fn add(&mut self, ino: Ino, index: ChunkIndex, mut slices: Vec<Slice>) -> Outcome<()> {
        self.watch.go_on()?;
        slices.retain(|slice| !slice.is_hole());
        slices.sort_unstable_by_key(|slice| (slice.id, slice.size));
        slices.dedup_by_key(|slice| (slice.id, slice.size));
        if slices.is_empty() {
            return Ok(());
        }
        for slice in &slices {
            self.report.slices.add(slice.size.into());
            self.blocks += layout::block_count(slice.size, self.volume.block_size()) as usize;
        }
        self.waiting.push((ino, index, slices));
        if self.blocks >= LOT_BLOCKS { self.ask().await } else { Ok(()) }
    }

    async fn ask(&mut self) -> Outcome<()> {
        let (volume, watch, report) = (self.volume, self.watch, &mut *self.report);
        self.blocks = 0;
        let waiting = std::mem::take(&mut self.waiting);
        let slices = waiting.iter().flat_map(|(.., slices)| slices);
        let keys = slices.flat_map(|slice| layout::blocks(slice.id, slice.size, volume.block_size()));
        let keys: Vec<_> = keys.collect();
        keys.iter().for_each(|key| report.blocks.add(key.size.into()));
        let (known, more) = (report.lost.blocks.len(), report.lost.more);
        let parallel = self.options.parallel;
        lost::missing(volume, keys.into_iter(), parallel, watch, &mut report.lost, &mut report.unreadable).await?;
        let gone: HashSet<SliceId> = report.lost.blocks[known..].iter().map(|block| block.key.slice).collect();
        let all = report.lost.more > more;
        for (ino, index, slices) in waiting {
            if !slices.iter().any(|slice| all || gone.contains(&slice.id)) {
                continue;
            }
            // What was replaced meanwhile lost its objects as it should.
            let still = volume.meta.read_chunk(ino, index).await?;
            let held = slices.iter().filter(|slice| still.iter().any(|now| now.id == slice.id));
            self.owners.extend(held.map(|slice| (ino, index, slice.id)));
        }
        Ok(())
    }
}

/// The chunks of a file, page by page. A sparse file can have very many that are not there, so they are listed where
/// that is possible, and else asked for many at a time.
struct ChunksOf<'a> {
    volume: &'a Volume,
    ino: Ino,
    /// Behind the last one.
    end: u32,
    next: u32,
    after: Option<Cursor>,
    ended: bool,
}

impl<'a> ChunksOf<'a> {
    fn new(volume: &'a Volume, ino: Ino, attr: &Attr) -> ChunksOf<'a> {
        let end = u32::try_from(attr.length.div_ceil(CHUNK_BYTES)).unwrap_or(u32::MAX);
        ChunksOf { volume, ino, end, next: 0, after: None, ended: end == 0 }
    }

    async fn next(&mut self) -> Outcome<Option<Chunks>> {
        if self.ended {
            return Ok(None);
        }
        let (meta, most) = (&self.volume.meta, CHUNKS_AT_ONCE as u32);
        if self.end <= most || !meta.engine().lists_chunks_of_file() {
            let (from, to) = (self.next, self.next.saturating_add(most).min(self.end));
            (self.next, self.ended) = (to, to == self.end);
            let keys: Vec<Key> = (from..to).map(|index| Key::Chunk(self.ino, ChunkIndex(index))).collect();
            return Ok(Some(read(self.volume, &keys).await?));
        }
        let (scan, after) = (Scan::ChunksOf(self.ino), self.after.as_ref());
        let page = outside(meta.engine().scan_readable(&scan, after, PAGE_RECORDS).await)?;
        (self.ended, self.after) = (page.next.is_none(), page.next);
        let chunk = |row| match row {
            (Key::Chunk(ino, index), Record::Slices(slices)) => Some(Ok((ino, index, slices))),
            _ => None,
        };
        let unreadable = page.unreadable.into_iter().map(Err);
        Ok(Some(page.rows.into_iter().filter_map(chunk).chain(unreadable).collect()))
    }
}
