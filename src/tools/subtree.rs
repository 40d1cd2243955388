//! What the tree checker checks ([`crate::meta::check`]), of one directory tree or one node only: for volumes that
//! take too long to check as a whole.
//!
//! It sees less, for much of a volume cannot be judged from one of its trees: references of slices, orphans, totals.
//! Directories wait in memory, a page of entries is held at a time.
//!
//! What does not decode is a finding like others, and the walk goes on. Which record that is is known here, so that
//! only what follows from that one is not judged: what the directory counts that it is in.

use super::Watch;
use crate::base::{Attr, Errno, Fault, FaultKind, Ino, Kind, Name, Outcome, Stop};
use crate::meta::check::Finding;
use crate::meta::engine::{Cursor, Scan};
use crate::meta::record::{Dentry, DirStat, Key, Record};
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

/// What was found where a record should be.
#[derive(Clone, Copy)]
enum Look<T> {
    There(T),
    Missing,
    Unreadable,
}

impl<T> Look<T> {
    fn there(self) -> Option<T> {
        match self {
            Look::There(value) => Some(value),
            Look::Missing | Look::Unreadable => None,
        }
    }
}

/// A page of a directory.
#[derive(Default)]
struct Part {
    entries: Vec<(Name, Dentry, Look<Attr>)>,
    /// Entries that do not decode.
    unreadable: u64,
    next: Option<Cursor>,
}

/// What a walk saw.
#[derive(Default)]
pub(super) struct Walked {
    pub nodes: u64,
    pub entries: u64,
    pub findings: Vec<Finding>,
}

/// What is known of a directory when its entries have been read.
#[derive(Default)]
struct Counted {
    stat: DirStat,
    subdirectories: u32,
    /// Something in it cannot be read, so that the counts are of the rest.
    partly: bool,
}

/// ENOENT when an entry of the path is missing; nothing when one cannot be read. That nodes are missing is for the
/// walk to find.
async fn find(meta: &Meta, path: &[u8], walked: &mut Walked) -> Outcome<Option<Spot>> {
    let mut at = Spot { parent: Ino::ROOT, name: None, ino: Ino::ROOT, kind: Kind::Directory };
    for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
        if at.ino == Ino::ROOT && part == TRASH_NAME {
            at.ino = Ino::TRASH;
            continue;
        }
        let name = Name::entry(part)?;
        let dentry = match walked.read(meta, Key::Dentry(at.ino, name.clone())).await? {
            Look::There(Record::Dentry(dentry)) => dentry,
            Look::There(_) | Look::Missing => return Err(Errno::ENOENT.into()),
            Look::Unreadable => return Ok(None),
        };
        at = Spot { parent: at.ino, name: Some(name), ino: dentry.ino, kind: dentry.kind };
    }
    Ok(Some(at))
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
    let mut walked = Walked::default();
    let Some(top) = find(meta, path, &mut walked).await? else { return Ok(walked) };
    let node = walked.attrs(meta, &[top.ino]).await?.pop().unwrap_or(Look::Missing);
    if matches!(node, Look::Missing) && top.name.is_none() && top.ino == Ino::ROOT {
        return Err(Fault::corrupt("check the tree").source("the root has no node").into());
    }
    watch.progress.add(1);
    walked.node(&top, &node);
    if let Look::There(attr) = node
        && attr.is_file()
    {
        files(vec![(top.ino, attr)]).await?;
    }
    let is_dir = |kind: Kind, node: &Look<Attr>| match node {
        Look::There(attr) => attr.is_dir(),
        Look::Missing => false,
        // Its entry says so, and what it holds can be looked at.
        Look::Unreadable => kind == Kind::Directory,
    };
    let mut waiting = if is_dir(top.kind, &node) { vec![(top.ino, node.there())] } else { Vec::new() };
    // In a damaged tree an entry may lead back to where the walk has been.
    let mut met_dirs = HashSet::from([top.ino]);
    while let Some((dir, attr)) = waiting.pop() {
        let (mut counted, mut after) = (Counted::default(), None);
        loop {
            watch.go_on()?;
            let part = walked.part(meta, dir, after.as_ref()).await?;
            counted.partly |= part.unreadable > 0;
            if recursive {
                walked.entries += part.unreadable;
            }
            let mut met = Vec::new();
            for (name, dentry, child) in part.entries {
                counted.add(&child);
                if !recursive {
                    continue;
                }
                if is_dir(dentry.kind, &child) && met_dirs.insert(dentry.ino) {
                    waiting.push((dentry.ino, child.there()));
                } else if let Look::There(attr) = child
                    && attr.is_file()
                {
                    met.push((dentry.ino, attr));
                }
                walked.entries += 1;
                watch.progress.add(1);
                walked.node(&Spot { parent: dir, name: Some(name), ino: dentry.ino, kind: dentry.kind }, &child);
            }
            if !met.is_empty() {
                files(met).await?;
            }
            match part.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        walked.directory(meta, dir, attr.as_ref(), &counted).await?;
    }
    Ok(walked)
}

impl Counted {
    fn add(&mut self, child: &Look<Attr>) {
        match child {
            Look::There(attr) => {
                self.stat.length += if attr.is_file() { attr.length as i64 } else { 0 };
                self.stat.space += attr.space() as i64;
                self.stat.inodes += 1;
                self.subdirectories += u32::from(attr.is_dir());
            }
            Look::Missing => {}
            Look::Unreadable => self.partly = true,
        }
    }
}

impl Walked {
    /// The answer to a question, unless what it is about does not decode, which is a finding.
    fn readable<T>(&mut self, answer: Outcome<T>) -> Outcome<Option<T>> {
        match answer {
            Ok(value) => Ok(Some(value)),
            Err(Stop::Fault(fault)) if fault.kind() == FaultKind::Corrupt => {
                self.unreadable(&fault);
                Ok(None)
            }
            Err(stop) => Err(stop),
        }
    }

    fn unreadable(&mut self, fault: &Fault) {
        let finding = Finding::Unreadable { why: fault.to_string() };
        if !self.findings.contains(&finding) {
            self.findings.push(finding);
        }
    }

    async fn read(&mut self, meta: &Meta, key: Key) -> Outcome<Look<Record>> {
        let answer = outside(meta.engine().read(&[key]).await);
        Ok(match self.readable(answer)?.map(|mut records| records.pop().flatten()) {
            Some(Some(record)) => Look::There(record),
            Some(None) => Look::Missing,
            None => Look::Unreadable,
        })
    }

    /// The nodes of some entries.
    async fn attrs(&mut self, meta: &Meta, inodes: &[Ino]) -> Outcome<Vec<Look<Attr>>> {
        let keys: Vec<Key> = inodes.iter().map(|ino| Key::Attr(*ino)).collect();
        let answers = outside(meta.engine().read_readable(&keys).await)?;
        let look = |answer| match answer {
            Ok(Some(Record::Attr(attr))) => Look::There(attr),
            Ok(_) => Look::Missing,
            Err(fault) => {
                self.unreadable(&fault);
                Look::Unreadable
            }
        };
        let mut looks: Vec<Look<Attr>> = answers.into_iter().map(look).collect();
        // Among several, one that an engine does not take for a node at all may look as if it were not there.
        for (look, key) in looks.iter_mut().zip(keys).filter(|(look, _)| matches!(look, Look::Missing)) {
            if let Look::Unreadable = self.read(meta, key).await? {
                *look = Look::Unreadable;
            }
        }
        Ok(looks)
    }

    /// A page of a directory with the nodes behind its entries, as far as it can be read.
    async fn part(&mut self, meta: &Meta, dir: Ino, after: Option<&Cursor>) -> Outcome<Part> {
        match outside(meta.engine().scan_plus(dir, after, PAGE_ENTRIES).await) {
            Ok(page) if page.entries.iter().all(|(.., attr)| attr.is_some()) => {
                let entry = |(name, dentry, attr): (Name, Dentry, Option<Attr>)| {
                    (name, dentry, attr.map_or(Look::Missing, Look::There))
                };
                return Ok(Part {
                    entries: page.entries.into_iter().map(entry).collect(),
                    unreadable: 0,
                    next: page.next,
                });
            }
            Ok(_) => {}
            Err(Stop::Fault(fault)) if fault.kind() == FaultKind::Corrupt => {}
            Err(stop) => return Err(stop),
        }
        // Something in it does not decode, or is not there: the entries by themselves, then the nodes.
        let page = match outside(meta.engine().scan_readable(&Scan::Dentries(dir), after, PAGE_ENTRIES).await) {
            Err(Stop::Fault(fault)) if fault.kind() == FaultKind::Corrupt => {
                self.unreadable(&fault.with("directory", dir));
                return Ok(Part { unreadable: 1, ..Part::default() });
            }
            page => page?,
        };
        page.unreadable.iter().for_each(|fault| self.unreadable(fault));
        let entry = |row| match row {
            (Key::Dentry(_, name), Record::Dentry(dentry)) => Some((name, dentry)),
            _ => None,
        };
        let rows: Vec<(Name, Dentry)> = page.rows.into_iter().filter_map(entry).collect();
        let inodes: Vec<Ino> = rows.iter().map(|(_, dentry)| dentry.ino).collect();
        let nodes = self.attrs(meta, &inodes).await?;
        let entries = rows.into_iter().zip(nodes).map(|((name, dentry), node)| (name, dentry, node)).collect();
        Ok(Part { entries, unreadable: page.unreadable.len() as u64, next: page.next })
    }

    /// What a directory says of its entries.
    async fn directory(&mut self, meta: &Meta, dir: Ino, attr: Option<&Attr>, counted: &Counted) -> Outcome<()> {
        // The trash does not count its directories.
        let links = 2 + if dir.is_trash() { 0 } else { counted.subdirectories };
        if let Some(stored) = attr.map(|attr| attr.nlink)
            && stored != links
            && !counted.partly
        {
            self.findings.push(Finding::WrongLinks { ino: dir, kind: Kind::Directory, stored, counted: links });
        }
        if let Look::There(Record::DirStat(stored)) = self.read(meta, Key::DirStat(dir)).await?
            && stored != counted.stat
            && !counted.partly
        {
            self.findings.push(Finding::WrongDirStat { dir, stored, counted: counted.stat });
        }
        Ok(())
    }

    /// What an entry and its node tell of each other.
    fn node(&mut self, spot: &Spot, node: &Look<Attr>) {
        let Spot { parent, name, ino, kind } = spot;
        let Some(name) = name else {
            self.nodes += 1;
            return;
        };
        let (parent, name, ino) = (*parent, name.clone(), *ino);
        let attr = match node {
            Look::There(attr) => attr,
            Look::Missing => return self.findings.push(Finding::DanglingDentry { parent, name, ino }),
            // It is told by itself.
            Look::Unreadable => return,
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
