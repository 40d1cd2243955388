//! Whether a volume is whole: its metadata fits together, and every block of every file is in the store with the bytes
//! it should have (`spec/data.md` 15.2).
//!
//! The metadata is walked by the tree checker ([`crate::meta::check`], about a hundred bytes a node), or by
//! [`super::subtree`] when only a part of the volume is asked for. Its pages are not one snapshot, so what a first walk
//! finds is looked for again by a second one, and what both find is asked for by itself ([`crate::meta::Meta::holds`], and one more
//! count of references): a volume in use is not called broken for what was going on in it. Between the walks clients
//! have the time to write down the statistics that they collect. A node without an entry that changed within a day may
//! be a copy of a tree that is being made (a clone gets its entry last), so it is told and not held against the volume.
//!
//! Blocks are compared with the listing of the store, so that a whole volume costs one request for a thousand blocks;
//! those that the listing does not show are asked for one by one. A slice is collected before the store is listed, and
//! its objects were there before its record, so a slice that is being written is never missed. See [`super::slices`]
//! for what is held in memory.
//!
//! Repairs ([`crate::meta::repair`]) go stage by stage, each followed by a new check, until nothing is left that can be
//! mended. Lost data is only touched when it is said how ([`OnLost`]). A record that does not decode is told, its slices
//! if it had any are not looked for, and nothing is repaired beside it: what else looks wrong may follow from it.

use super::lost::{self, Lost, OnLost};
use super::slices::{SLICES_MAX, Table};
use super::subtree::{self, Walked};
use super::{OnUnreadable, Tally, Volume, Watch, below, listing, references};
use crate::base::{Errno, Fault, FaultKind, Ino, Mode, Outcome, Stop};
use crate::cache::BlockKey;
use crate::chunk::layout;
use crate::meta::check::{Finding, check};
use crate::meta::record::{Key, Record};
use crate::meta::repair::{Mended, UNREADABLE, is_statistic, may_be_in_the_making};
use futures::StreamExt;
use std::collections::HashSet;
use std::time::Duration;

/// More rounds than any damage has stages; a circle of directories takes one each.
const ROUNDS_MAX: usize = 64;
/// Clients write their part of the statistics down every second.
const SETTLES: Duration = Duration::from_millis(1500);
/// More findings are no coincidence, and asking for each of them would take too long.
const JUDGED_MAX: usize = 10_000;

/// What to check, and what to do about what is found.
#[derive(Clone, Debug, Default)]
pub struct Options {
    /// A path in the volume; the whole volume when there is none.
    pub path: Option<Vec<u8>>,
    /// With a path: everything below it, too.
    pub recursive: bool,
    pub repair: bool,
    /// Sets the statistics of directories right, whatever else is to be repaired.
    pub sync_dir_stat: bool,
    /// Permissions of directories that are made anew.
    pub dir_mode: Mode,
    pub on_lost: OnLost,
    /// Requests to the store at a time.
    pub parallel: usize,
}

/// Whether a finding is to be repaired.
enum Due {
    Now,
    /// It would be, but for this.
    Left(&'static str),
    /// Nobody asked for it.
    Never,
}

impl Options {
    /// Whether anything of the metadata is to be repaired.
    fn mends(&self) -> bool {
        self.repair || self.sync_dir_stat
    }

    fn due(&self, finding: &Finding) -> Due {
        match finding {
            // The walk of a part does not look for chunks, which may be anywhere.
            Finding::DanglingDentry { .. } if self.repair && self.path.is_some() => {
                Due::Left("whether its data is left takes a check of the whole volume: repair it without --path")
            }
            _ if self.repair => Due::Now,
            Finding::WrongDirStat { .. } | Finding::LostDirStat { .. } if self.sync_dir_stat => Due::Now,
            _ => Due::Never,
        }
    }
}

/// What was found. A check that was cut short has seen only a part.
#[derive(Debug, Default)]
pub struct Report {
    pub nodes: u64,
    pub entries: u64,
    /// What does not fit together, and was not mended.
    pub problems: Vec<Finding>,
    /// Statistics that are off. They are best effort, so a volume is whole in spite of them.
    pub statistics: Vec<Finding>,
    /// Nodes without an entry, too young to be judged.
    pub young: Vec<Finding>,
    /// Chunks of files that are gone with their last name: whoever removed a file that was longer once may have left
    /// what lay past its end (the peer does). Nothing is lost, and `gc` removes them.
    pub leaked: Vec<Finding>,
    /// What was mended, and how.
    pub mended: Vec<(Finding, String)>,
    /// Why something was not.
    pub left: Vec<(Finding, &'static str)>,
    /// In the store.
    pub blocks: Tally,
    /// Of files.
    pub slices: Tally,
    pub lost: Lost,
    /// Blocks of which the store would not tell whether they are there.
    pub unreadable: u64,
}

impl Report {
    /// Whether the volume is whole, now.
    pub fn is_clean(&self) -> bool {
        self.problems.is_empty() && self.lost.broken() == 0 && self.unreadable == 0
    }
}

/// Checks a volume. What is found is in `report` also when the check is cut short, with ECANCELED, or fails.
pub async fn run(volume: &Volume, options: &Options, watch: &Watch, report: &mut Report) -> Outcome<()> {
    tree(volume, options, watch, report).await?;
    let owners = match &options.path {
        Some(path) => below::blocks(volume, path, options, watch, report).await?,
        None => {
            blocks(volume, options, watch, report).await?;
            if report.lost.blocks.is_empty() {
                return Ok(());
            }
            watch.progress.phase("files of lost blocks");
            lost::owners(volume, &report.lost, watch).await?
        }
    };
    lost::name_files(volume, &mut report.lost, owners, watch).await?;
    if options.on_lost == OnLost::Report || report.lost.blocks.is_empty() {
        return Ok(());
    }
    if options.path.is_none() && report.blocks.count == 0 {
        // Nobody loses everything at once and wants to go on; a wrong bucket looks the same.
        let why = "the store has no block of this volume at all: is it the right one?";
        return Err(Fault::config("mend lost blocks").with("store", volume.store.name()).source(why).into());
    }
    watch.progress.phase("lost blocks");
    lost::mend(volume, &mut report.lost, options.on_lost, watch).await
}

async fn tree(volume: &Volume, options: &Options, watch: &Watch, report: &mut Report) -> Outcome<()> {
    // Findings are told apart by what they say.
    let (mut left, mut done): (HashSet<String>, HashSet<String>) = Default::default();
    for round in 0.. {
        let found = confirmed(volume, options, watch).await?;
        (report.nodes, report.entries) = (found.nodes, found.entries);
        let is_unreadable = |finding: &&Finding| matches!(finding, Finding::Unreadable { .. });
        if options.mends() && found.findings.iter().any(|finding| is_unreadable(&finding)) {
            let unreadable = found.findings.iter().filter(is_unreadable).cloned();
            report.left.extend(unreadable.map(|finding| (finding, UNREADABLE)));
            return sort(volume, found.findings, report).await;
        }
        let mut due = Vec::new();
        for finding in &found.findings {
            let text = format!("{finding:?}");
            if left.contains(&text) {
                continue;
            }
            match options.due(finding) {
                Due::Never => {}
                Due::Now if !done.contains(&text) => due.push(finding.clone()),
                Due::Now => {
                    left.insert(text);
                    report.left.push((finding.clone(), "it was repaired, and is there again"));
                }
                Due::Left(why) => {
                    left.insert(text);
                    report.left.push((finding.clone(), why));
                }
            }
        }
        if due.is_empty() || round == ROUNDS_MAX {
            return sort(volume, found.findings, report).await;
        }
        watch.progress.phase("repairs");
        for (finding, mended) in volume.meta.mend(&due, options.dir_mode).await? {
            watch.progress.add(1);
            match mended {
                Mended::Done(how) => {
                    done.insert(format!("{finding:?}"));
                    report.mended.push((finding, how));
                }
                Mended::Gone => {}
                Mended::Left(why) => {
                    left.insert(format!("{finding:?}"));
                    report.left.push((finding, why));
                }
            }
        }
    }
    Ok(())
}

/// Tells what is wrong with the volume from what is only untidy.
async fn sort(volume: &Volume, findings: Vec<Finding>, report: &mut Report) -> Outcome<()> {
    let named = |finding: &Finding| match finding {
        Finding::DanglingDentry { ino, .. } => Some(*ino),
        _ => None,
    };
    let named: HashSet<Ino> = findings.iter().filter_map(named).collect();
    let is_leaked = |finding: &Finding| matches!(finding, Finding::LostChunk { ino, .. } if !named.contains(ino));
    (report.statistics, report.problems) = findings.into_iter().partition(is_statistic);
    report.leaked = report.problems.extract_if(.., |finding| is_leaked(finding)).collect();
    young(volume, report).await
}

/// Takes what may still be in the making out of the problems.
async fn young(volume: &Volume, report: &mut Report) -> Outcome<()> {
    let now = volume.meta.now().seconds;
    let mut problems = Vec::with_capacity(report.problems.len());
    for finding in std::mem::take(&mut report.problems) {
        let young = match &finding {
            Finding::Orphan { ino, .. } => match volume.meta.read(&[Key::Attr(*ino)]).await?.pop().flatten() {
                Some(Record::Attr(attr)) => may_be_in_the_making(attr.kind, attr.nlink, attr.ctime.seconds, now),
                _ => false,
            },
            _ => false,
        };
        if young { report.young.push(finding) } else { problems.push(finding) }
    }
    report.problems = problems;
    report.left.retain(|(finding, _)| !report.young.contains(finding));
    Ok(())
}

/// What two walks find, and what holds when it is looked at by itself.
async fn confirmed(volume: &Volume, options: &Options, watch: &Watch) -> Outcome<Walked> {
    watch.progress.phase("metadata");
    let mut first = findings(volume, options, watch).await?;
    if !first.findings.is_empty() {
        watch.progress.phase("metadata, once more");
        if !watch.stop.sleep(SETTLES).await {
            return Err(Errno::ECANCELED.into());
        }
        let second = findings(volume, options, watch).await?;
        let again: HashSet<String> = second.findings.iter().map(|finding| format!("{finding:?}")).collect();
        first.findings.retain(|finding| again.contains(&format!("{finding:?}")));
    }
    if first.findings.len() > JUDGED_MAX {
        return Ok(first);
    }
    references::confirm(volume, &mut first.findings, watch).await?;
    let mut holding = Vec::with_capacity(first.findings.len());
    for finding in std::mem::take(&mut first.findings) {
        watch.go_on()?;
        match volume.meta.holds(&finding).await {
            Ok(true) => holding.push(finding),
            Ok(false) => {}
            // A walk may pass over what is of no use to it; asked for by itself it is what is wrong here.
            Err(Stop::Fault(fault)) if fault.kind() == FaultKind::Corrupt => {
                let unreadable = Finding::Unreadable { why: fault.to_string() };
                if !holding.contains(&unreadable) {
                    holding.push(unreadable);
                }
            }
            Err(stop) => return Err(stop),
        }
    }
    Ok(Walked { findings: holding, ..first })
}

async fn findings(volume: &Volume, options: &Options, watch: &Watch) -> Outcome<Walked> {
    if let Some(path) = &options.path {
        // Its blocks are looked for later, but nothing is repaired beside a chunk that cannot be read.
        return match options.mends() {
            true => below::metadata(volume, path, options.recursive, watch).await,
            false => subtree::walk(&volume.meta, path, options.recursive, watch, async |_| Ok(())).await,
        };
    }
    let checked = tokio::select! {
        checked = check(&**volume.meta.engine()) => checked?,
        () = watch.stop.stopped() => return Err(Errno::ECANCELED.into()),
    };
    watch.progress.add(checked.nodes);
    Ok(Walked { nodes: checked.nodes, entries: checked.entries, findings: checked.findings })
}

/// All blocks of the volume.
async fn blocks(volume: &Volume, options: &Options, watch: &Watch, report: &mut Report) -> Outcome<()> {
    let hash_prefix = volume.data.options().hash_prefix;
    let mut from = 0;
    loop {
        watch.progress.phase("slices");
        let mut table = Table::collect(volume, from, SLICES_MAX, OnUnreadable::Skip, watch).await?;
        for row in table.rows().iter().filter(|row| row.mentioned) {
            report.slices.add(row.size.into());
        }
        watch.progress.phase("objects");
        let mut pages = listing::pages(&volume.store, hash_prefix, options.parallel);
        while let Some(page) = pages.next().await {
            watch.go_on()?;
            let page = page?;
            watch.progress.add(page.len() as u64);
            for object in page {
                let Some(key) = block_of(volume, &object.key).filter(|key| table.covers(key.slice)) else { continue };
                report.blocks.add(key.size.into());
                if volume.fits(&key, object.size) {
                    table.see(&key, volume.block_size());
                }
            }
        }
        watch.progress.phase("blocks that were not listed");
        let incomplete = table.incomplete(volume.block_size());
        let keys = incomplete.flat_map(|row| layout::blocks(row.id, row.size, volume.block_size()));
        lost::missing(volume, keys, options.parallel, watch, &mut report.lost, &mut report.unreadable).await?;
        match table.next() {
            Some(next) => from = next,
            None => return Ok(()),
        }
    }
}

/// The block that an object is, by its name; objects with other names are nobody's business.
pub(super) fn block_of(volume: &Volume, name: &str) -> Option<BlockKey> {
    let key = BlockKey::parse(name.rsplit('/').next()?)?;
    (volume.name_of(&key) == name).then_some(key)
}

#[cfg(test)]
#[path = "fsck_tests.rs"]
mod tests;
