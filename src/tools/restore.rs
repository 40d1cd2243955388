//! Brings back what lies in the trash (`spec/surface.md` 5.20, 6.5).
//!
//! An entry in an hour of the trash is called `<parent>-<inode>-<name>`. When a tree was removed, each of its entries
//! lies there by itself. So first the trees are put together again, inside the trash: what was in a directory that lies
//! there, too, goes back into it. What is left are the tops; they go back to where they were if that is asked for, and
//! never over something that is there now.
//!
//! Held in memory are the numbers of the directories in the hours that were asked for. Names were cut to 255 bytes on
//! their way into the trash; the end of a long one does not come back.

use super::Watch;
use crate::base::{Errno, Ino, Kind, Name, Outcome, Stop};
use crate::meta::ops::rename::RenameMode;
use crate::meta::{Caller, Meta};
use futures::{StreamExt, stream};
use std::collections::HashSet;

/// Entries read at a time.
const PAGE_ENTRIES: usize = 1000;

/// What came of it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    /// Put back into their directories inside the trash.
    pub rebuilt: u64,
    /// Put back to where they were.
    pub restored: u64,
    /// Tops of trees that could be put back.
    pub waiting: u64,
    /// Something else has their place now.
    pub conflicts: u64,
    /// Their directory is no more, or they could not be moved.
    pub failed: u64,
}

enum Came {
    Rebuilt,
    Restored,
    Waiting,
    Conflict,
    Failed,
    Gone,
}

/// What the name of an entry in the trash says: the directory it was in, its node, its name there.
fn parse(name: &Name) -> Option<(Ino, Ino, Name)> {
    let mut parts = name.as_bytes().splitn(3, |byte| *byte == b'-');
    let mut number = || -> Option<Ino> { std::str::from_utf8(parts.next()?).ok()?.parse().ok().map(Ino) };
    let (parent, ino) = (number()?, number()?);
    Some((parent, ino, Name::entry(parts.next()?).ok()?))
}

/// The directory of an hour (`YYYY-MM-DD-HH`, UTC); ENOENT when nothing was removed then.
pub async fn hour(meta: &Meta, name: &str) -> Outcome<Ino> {
    let name = Name::entry(name.as_bytes())?;
    let entry = meta.lookup(&Caller::root(), Ino::TRASH, &name).await?;
    if entry.ino.is_hourly() { Ok(entry.ino) } else { Err(Errno::ENOENT.into()) }
}

/// Restores what lies in these hours. What was done is in `report` also when the work is cut short, with ECANCELED.
pub async fn run(
    meta: &Meta,
    hours: &[Ino],
    put_back: bool,
    parallel: usize,
    watch: &Watch,
    report: &mut Report,
) -> Outcome<()> {
    watch.progress.phase("directories in the trash");
    let mut dirs: HashSet<Ino> = HashSet::new();
    for hour in hours {
        each_page(meta, *hour, watch, async |entries| {
            dirs.extend(entries.iter().filter(|entry| entry.3).map(|entry| entry.1));
            Ok(())
        })
        .await?;
    }
    // A directory that is moved away still takes what is moved into it, but a tree is put together before its top
    // leaves the trash: whoever looks at the place sees it come back at once.
    for tops in [false, true] {
        watch.progress.phase(if tops { "tops of trees" } else { "trees" });
        for hour in hours {
            let dirs = &dirs;
            each_page(meta, *hour, watch, async |entries| {
                let mut moves = stream::iter(entries.into_iter().filter(|entry| dirs.contains(&entry.0) != tops))
                    .take_while(|_| std::future::ready(!watch.stop.is_stopped()))
                    .map(|entry| move_entry(meta, *hour, entry, tops, put_back))
                    .buffer_unordered(parallel.max(1));
                while let Some(came) = moves.next().await {
                    watch.progress.add(1);
                    match came? {
                        Came::Rebuilt => report.rebuilt += 1,
                        Came::Restored => report.restored += 1,
                        Came::Waiting => report.waiting += 1,
                        Came::Conflict => report.conflicts += 1,
                        Came::Failed => report.failed += 1,
                        Came::Gone => {}
                    }
                }
                Ok(())
            })
            .await?;
        }
    }
    Ok(())
}

/// Where it was, its node, its name in the trash and before, and whether it is a directory.
type Entry = (Ino, Ino, (Name, Name), bool);

async fn each_page(
    meta: &Meta,
    hour: Ino,
    watch: &Watch,
    mut page: impl AsyncFnMut(Vec<Entry>) -> Outcome<()>,
) -> Outcome<()> {
    let mut after = None;
    loop {
        watch.go_on()?;
        let names = meta.list_names(hour, after.as_ref(), PAGE_ENTRIES).await?;
        let entry = |(name, dentry): (Name, crate::meta::record::Dentry)| {
            let (parent, ino, before) = parse(&name)?;
            (ino == dentry.ino).then(|| (parent, ino, (name, before), dentry.kind == Kind::Directory))
        };
        page(names.entries.into_iter().filter_map(entry).collect()).await?;
        match names.next {
            Some(next) => after = Some(next),
            None => return Ok(()),
        }
    }
}

async fn move_entry(meta: &Meta, hour: Ino, entry: Entry, top: bool, put_back: bool) -> Outcome<Came> {
    let (parent, ino, (name, before), _) = entry;
    if top && !put_back {
        return Ok(Came::Waiting);
    }
    match meta.getattr(parent).await {
        Ok(dir) if dir.is_dir() => {}
        Ok(_) | Err(Stop::Errno(Errno::ENOENT)) => return Ok(Came::Failed),
        Err(stop) => return Err(stop),
    }
    match meta.rename(&Caller::root(), hour, &name, parent, &before, RenameMode::Restore).await {
        Ok(_) if top => Ok(Came::Restored),
        Ok(_) => Ok(Came::Rebuilt),
        Err(Stop::Errno(Errno::EEXIST)) => Ok(Came::Conflict),
        // Somebody was faster.
        Err(Stop::Errno(Errno::ENOENT)) => Ok(Came::Gone),
        Err(Stop::Errno(errno)) => {
            tracing::warn!("{before} (inode {ino}) stays in the trash: {errno}");
            Ok(Came::Failed)
        }
        Err(stop) => Err(stop),
    }
}

#[cfg(test)]
#[path = "restore_tests.rs"]
mod tests;
