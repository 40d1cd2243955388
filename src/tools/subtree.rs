//! What the tree checker checks ([`crate::meta::check`]), of one directory tree or one node only: for volumes that
//! take too long to check as a whole.
//!
//! It sees less, for much of a volume cannot be judged from one of its trees: references of slices, orphans, totals.
//! Directories wait in memory, a page of entries is held at a time.

use super::Watch;
use crate::base::{Attr, Errno, Fault, Ino, Kind, Name, Outcome};
use crate::meta::check::Finding;
use crate::meta::record::{DirStat, Key, Record};
use crate::meta::trash::TRASH_NAME;
use crate::meta::{Meta, outside};
use std::collections::HashSet;

/// Entries read at a time.
const PAGE_ENTRIES: usize = 4096;

/// A node, and the entry by which it was found; none for the roots.
struct Spot {
    parent: Ino,
    name: Option<Name>,
    ino: Ino,
    kind: Kind,
}

/// What a walk saw.
#[derive(Default)]
pub(super) struct Walked {
    pub nodes: u64,
    pub entries: u64,
    pub findings: Vec<Finding>,
}

/// ENOENT when an entry of the path is missing. That nodes are missing is for the walk to find.
async fn find(meta: &Meta, path: &[u8]) -> Outcome<Spot> {
    let mut at = Spot { parent: Ino::ROOT, name: None, ino: Ino::ROOT, kind: Kind::Directory };
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        if at.ino == Ino::ROOT && part == TRASH_NAME {
            at.ino = Ino::TRASH;
            continue;
        }
        let name = Name::entry(part)?;
        let Some(Record::Dentry(dentry)) =
            outside(meta.engine().read(&[Key::Dentry(at.ino, name.clone())]).await)?.pop().flatten()
        else {
            return Err(Errno::ENOENT.into());
        };
        at = Spot { parent: at.ino, name: Some(name), ino: dentry.ino, kind: dentry.kind };
    }
    Ok(at)
}

/// Checks the node at `path`, and everything below it if `recursive`. `files` is handed the regular files that are
/// met.
pub(super) async fn walk(
    meta: &Meta,
    path: &[u8],
    recursive: bool,
    watch: &Watch,
    mut files: impl AsyncFnMut(Vec<(Ino, Attr)>) -> Outcome<()>,
) -> Outcome<Walked> {
    let top = find(meta, path).await?;
    let mut walked = Walked::default();
    let attr = match outside(meta.engine().read(&[Key::Attr(top.ino)]).await)?.pop().flatten() {
        Some(Record::Attr(attr)) => Some(attr),
        _ if top.name.is_none() && top.ino == Ino::ROOT => {
            return Err(Fault::corrupt("check the tree").source("the root has no node").into());
        }
        _ => None,
    };
    watch.progress.add(1);
    walked.node(&top, attr.as_ref());
    let Some(attr) = attr else { return Ok(walked) };
    if attr.is_file() {
        files(vec![(top.ino, attr)]).await?;
    }
    let mut waiting = if attr.is_dir() { vec![(top.ino, attr)] } else { Vec::new() };
    // In a damaged tree an entry may lead back to where the walk has been.
    let mut met_dirs = HashSet::from([top.ino]);
    while let Some((dir, attr)) = waiting.pop() {
        let (mut counted, mut subdirectories, mut after) = (DirStat::default(), 0, None);
        loop {
            watch.go_on()?;
            let page = outside(meta.engine().scan_plus(dir, after.as_ref(), PAGE_ENTRIES).await)?;
            let mut met = Vec::new();
            for (name, dentry, child) in page.entries {
                let spot = Spot { parent: dir, name: Some(name), ino: dentry.ino, kind: dentry.kind };
                if let Some(child) = &child {
                    let is_dir = child.is_dir();
                    counted.length += if child.is_file() { child.length as i64 } else { 0 };
                    counted.space += child.space() as i64;
                    counted.inodes += 1;
                    subdirectories += u32::from(is_dir);
                    if recursive && is_dir && met_dirs.insert(dentry.ino) {
                        waiting.push((dentry.ino, *child));
                    } else if recursive && child.is_file() {
                        met.push((dentry.ino, *child));
                    }
                }
                if recursive {
                    walked.entries += 1;
                    watch.progress.add(1);
                    walked.node(&spot, child.as_ref());
                }
            }
            if !met.is_empty() {
                files(met).await?;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        // The trash does not count its directories.
        let links = 2 + if dir.is_trash() { 0 } else { subdirectories };
        if attr.nlink != links {
            let (stored, counted) = (attr.nlink, links);
            walked.findings.push(Finding::WrongLinks { ino: dir, kind: Kind::Directory, stored, counted });
        }
        let stored = outside(meta.engine().read(&[Key::DirStat(dir)]).await)?.pop().flatten();
        if let Some(Record::DirStat(stored)) = stored
            && stored != counted
        {
            walked.findings.push(Finding::WrongDirStat { dir, stored, counted });
        }
    }
    Ok(walked)
}

impl Walked {
    /// What an entry and its node tell of each other.
    fn node(&mut self, spot: &Spot, attr: Option<&Attr>) {
        let Spot { parent, name, ino, kind } = spot;
        let Some(name) = name else {
            self.nodes += 1;
            return;
        };
        let (parent, name, ino) = (*parent, name.clone(), *ino);
        let Some(attr) = attr else {
            return self.findings.push(Finding::DanglingDentry { parent, name, ino });
        };
        self.nodes += 1;
        if attr.kind != *kind {
            self.findings.push(Finding::WrongKind { parent, name, ino, entry: *kind, node: attr.kind });
        }
        if attr.parent != Ino::MANY && attr.parent != parent {
            self.findings.push(Finding::WrongParent { ino, stored: attr.parent, found: parent });
        }
        if !attr.is_dir() && attr.parent != Ino::MANY && attr.nlink != 1 {
            let (kind, stored) = (attr.kind, attr.nlink);
            self.findings.push(Finding::WrongLinks { ino, kind, stored, counted: 1 });
        }
    }
}
