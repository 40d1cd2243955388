//! From directories to what lies in them: listings, paths to nodes and nodes to paths, totals of trees
//! (`spec/metadata.md` 7.3, 7.16). None of it is a transaction: pages are read one after the other.

use crate::base::{Attr, Errno, Ino, Kind, Name, Outcome};
use crate::meta::engine::{Cursor, Page, PlusPage, Scan};
use crate::meta::record::{Dentry, Key, Record};
use crate::meta::trash::{TRASH_NAME, links_in};
use crate::meta::{Caller, Entry, Meta, outside};
use std::collections::VecDeque;

/// Entries read at a time where the whole of a directory is wanted.
pub(crate) const PAGE_ENTRIES: usize = 1024;

/// A page of a directory without attributes.
#[derive(Debug, Default)]
pub struct NamesPage {
    pub entries: Vec<(Name, Dentry)>,
    pub next: Option<Cursor>,
}

/// What a tree holds, the top included; lengths are those of regular files.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Summary {
    pub files: u64,
    pub dirs: u64,
    pub length: u64,
    /// As accounted: whole pages per file, one page for anything else.
    pub space: u64,
}

impl Meta {
    /// A page of a directory with attributes, after the cursor of the page before. `.` and `..` are not in it.
    pub async fn list(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> Outcome<PlusPage> {
        let mut page = outside(self.engine().scan_plus(dir, after, limit).await)?;
        self.show_listed(&mut page.entries).await?;
        Ok(page)
    }

    /// What there is now at names of a directory that were listed before: attributes where the same nodes are still
    /// there. One trip.
    pub async fn listed_again(&self, dir: Ino, listed: &[(Name, Ino)]) -> Outcome<Vec<Option<Attr>>> {
        let entries = listed.iter().map(|(name, _)| Key::Dentry(dir, name.clone()));
        let keys: Vec<Key> = entries.chain(listed.iter().map(|(_, ino)| Key::Attr(*ino))).collect();
        let mut records = self.read(&keys).await?;
        let attrs = records.split_off(listed.len());
        let found = listed.iter().zip(records).zip(attrs).map(|(((name, ino), entry), attr)| match (entry, attr) {
            (Some(Record::Dentry(dentry)), Some(Record::Attr(attr))) if dentry.ino == *ino => {
                (name.clone(), dentry, Some(attr))
            }
            _ => (name.clone(), Dentry { ino: *ino, kind: Kind::File }, None),
        });
        let mut found: Vec<_> = found.collect();
        self.show_listed(&mut found).await?;
        Ok(found.into_iter().map(|(.., attr)| attr).collect())
    }

    /// Attributes of listed entries as they are shown.
    async fn show_listed(&self, entries: &mut [(Name, Dentry, Option<Attr>)]) -> Outcome<()> {
        let several: Vec<Key> = entries
            .iter()
            .filter(|(_, dentry, attr)| attr.as_ref().is_some_and(|attr| self.shows_by_parents(dentry.ino, attr)))
            .map(|(_, dentry, _)| Key::LinkParents(dentry.ino))
            .collect();
        let mut parents =
            if several.is_empty() { Vec::new().into_iter() } else { self.read(&several).await?.into_iter() };
        for (_, dentry, attr) in entries {
            let Some(attr) = attr else { continue };
            let in_trash = if self.shows_by_parents(dentry.ino, attr) {
                match parents.next().flatten() {
                    Some(Record::LinkParents(parents)) => links_in(&parents),
                    _ => 0,
                }
            } else {
                0
            };
            // What stands in a listing has a name there.
            attr.nlink = self.shown_with(dentry.ino, *attr, in_trash).nlink.max(attr.nlink.min(1));
        }
        Ok(())
    }

    /// As `list`, without attributes.
    pub async fn list_names(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> Outcome<NamesPage> {
        let Page { rows, next, .. } = outside(self.engine().scan(&Scan::Dentries(dir), after, limit).await)?;
        let entries = rows
            .into_iter()
            .filter_map(|row| match row {
                (Key::Dentry(_, name), Record::Dentry(dentry)) => Some((name, dentry)),
                _ => None,
            })
            .collect();
        Ok(NamesPage { entries, next })
    }

    /// The node at a path from a directory, `/` between names. Symlinks are not followed: one in the middle is ENOTDIR.
    pub async fn resolve(&self, caller: &Caller, from: Ino, path: &[u8]) -> Outcome<Entry> {
        let mut entry = Entry { ino: from, attr: self.getattr(from).await? };
        for part in path.split(|byte| *byte == b'/').filter(|part| !part.is_empty()) {
            entry = self.lookup(caller, entry.ino, &Name::entry(part)?).await?;
        }
        Ok(entry)
    }

    /// All paths that lead to a node, from the root; ENOENT when there is no such node. Names are found by reading
    /// the directories on the way.
    pub async fn paths_of(&self, ino: Ino) -> Outcome<Vec<Vec<u8>>> {
        // Paths grow from their end: the directory whose own path is still to be found, and what follows it.
        let mut growing: VecDeque<(Ino, Vec<u8>)> = VecDeque::from([(ino, Vec::new())]);
        let mut paths = Vec::new();
        while let Some((ino, rest)) = growing.pop_front() {
            if ino == Ino::ROOT {
                paths.push(if rest.is_empty() { b"/".to_vec() } else { rest });
                continue;
            }
            if ino == Ino::TRASH {
                paths.push([b"/", TRASH_NAME, &rest].concat());
                continue;
            }
            let attr = self.getattr(ino).await?;
            let parents = if attr.parent != Ino::MANY {
                vec![attr.parent]
            } else {
                match self.read(&[Key::LinkParents(ino)]).await?.pop().flatten() {
                    Some(Record::LinkParents(parents)) => {
                        parents.into_iter().filter(|(_, count)| *count > 0).map(|(parent, _)| parent).collect()
                    }
                    _ => Vec::new(),
                }
            };
            for parent in parents {
                for name in self.names_in(parent, ino, attr.is_dir()).await? {
                    growing.push_back((parent, [b"/", name.as_bytes(), &rest].concat()));
                }
            }
        }
        Ok(paths)
    }

    /// The names under which `ino` stands in `dir`.
    pub(crate) async fn names_in(&self, dir: Ino, ino: Ino, only_one: bool) -> Outcome<Vec<Name>> {
        let (mut names, mut after) = (Vec::new(), None);
        loop {
            let page = self.list_names(dir, after.as_ref(), PAGE_ENTRIES).await?;
            names.extend(page.entries.into_iter().filter(|(_, dentry)| dentry.ino == ino).map(|(name, _)| name));
            match page.next {
                Some(next) if !(only_one && !names.is_empty()) => after = Some(next),
                _ => return Ok(names),
            }
        }
    }

    /// Counts a tree. `cancelled` is asked before each page: when it says so, ECANCELED.
    pub async fn summary(&self, ino: Ino, cancelled: &(dyn Fn() -> bool + Sync)) -> Outcome<Summary> {
        let top = self.getattr(ino).await?;
        let mut summary = Summary::default();
        summary.add(top.kind, top.length, top.space());
        // Depth first, so that what waits is the siblings along one path and not a whole level of the tree.
        let mut waiting = if top.is_dir() { vec![ino] } else { Vec::new() };
        while let Some(dir) = waiting.pop() {
            let mut after = None;
            loop {
                if cancelled() {
                    return Err(Errno::ECANCELED.into());
                }
                let page = outside(self.engine().scan_plus(dir, after.as_ref(), PAGE_ENTRIES).await)?;
                for (_, dentry, attr) in page.entries {
                    let Some(attr) = attr else { continue };
                    summary.add(attr.kind, attr.length, attr.space());
                    // A directory knows the one place it has. An entry that leads elsewhere is damage, and may lead up.
                    if attr.is_dir() && attr.parent == dir {
                        waiting.push(dentry.ino);
                    }
                }
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
        }
        Ok(summary)
    }
}

impl Summary {
    fn add(&mut self, kind: Kind, length: u64, space: u64) {
        match kind {
            Kind::Directory => self.dirs += 1,
            Kind::File => {
                self.files += 1;
                self.length = self.length.saturating_add(length);
            }
            _ => self.files += 1,
        }
        self.space = self.space.saturating_add(space);
    }
}
