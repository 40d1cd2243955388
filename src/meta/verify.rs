//! Whether a finding of the tree checker ([`super::check`]) still holds, asked of the few records that it is about.
//!
//! A walk over a volume reads pages, and what moves meanwhile may be missed: a file that is renamed to and fro between
//! two directories can be without an entry in each of two walks. What a finding says is therefore looked at once more by
//! itself: in one snapshot where that can tell, else a directory is read between two looks at the node, and a node
//! that changed meanwhile is not judged. A finding that does not hold now is not one.
//!
//! Counts over the whole volume (references of slices, statistics) cannot be judged from here; of them only the stored
//! side is looked at.

use super::Meta;
use super::check::{Finding, is_held_by};
use super::record::{Key, Record};
use crate::base::{Attr, Ino, Kind, Outcome};

/// Entries read at a time.
const PAGE_ENTRIES: usize = 4096;

fn attr_of(record: &Option<Record>) -> Option<&Attr> {
    match record {
        Some(Record::Attr(attr)) => Some(attr),
        _ => None,
    }
}

/// The kind that an entry gives the node, if it names it.
fn named(record: &Option<Record>, ino: Ino) -> Option<Kind> {
    match record {
        Some(Record::Dentry(dentry)) if dentry.ino == ino => Some(dentry.kind),
        _ => None,
    }
}

impl Meta {
    /// Whether what the finding says is so now. That it cannot be told, because something is changing, is a no.
    pub async fn holds(&self, finding: &Finding) -> Outcome<bool> {
        match finding {
            // Nothing says where it is; the walks have both met it.
            Finding::Unreadable { .. } => Ok(true),
            Finding::DanglingDentry { parent, name, ino } => {
                let [entry, node] = self.snapshot([Key::Dentry(*parent, name.clone()), Key::Attr(*ino)]).await?;
                Ok(named(&entry, *ino).is_some() && node.is_none())
            }
            Finding::DentryInMissing { parent, name, ino } => {
                let [entry, dir] = self.snapshot([Key::Dentry(*parent, name.clone()), Key::Attr(*parent)]).await?;
                Ok(named(&entry, *ino).is_some() && dir.is_none())
            }
            Finding::DentryInNonDirectory { parent, name, ino } => {
                let [entry, dir] = self.snapshot([Key::Dentry(*parent, name.clone()), Key::Attr(*parent)]).await?;
                Ok(named(&entry, *ino).is_some() && attr_of(&dir).is_some_and(|dir| !dir.is_dir()))
            }
            Finding::WrongKind { parent, name, ino, .. } => {
                let [entry, node] = self.snapshot([Key::Dentry(*parent, name.clone()), Key::Attr(*ino)]).await?;
                let (entry, node) = (named(&entry, *ino), attr_of(&node).map(|node| node.kind));
                Ok(entry.is_some() && node.is_some() && entry != node)
            }
            Finding::Orphan { ino, .. } => Ok(self.entries_of(*ino).await? == Some(0)),
            Finding::WrongLinks { ino, stored, .. } => self.links_differ(*ino, *stored).await,
            Finding::WrongParent { ino, stored, found } => {
                for name in self.names_in(*found, *ino, false).await? {
                    let [entry, node] = self.snapshot([Key::Dentry(*found, name), Key::Attr(*ino)]).await?;
                    if named(&entry, *ino).is_some() && attr_of(&node).is_some_and(|node| node.parent == *stored) {
                        return Ok(true);
                    }
                }
                Ok(false)
            }
            Finding::WrongLinkParent { ino, parent, stored, .. } => {
                let before = self.link_parents(*ino).await?;
                let counted = self.names_in(*parent, *ino, false).await?.len() as i64;
                let count = before.iter().find(|(dir, _)| dir == parent).map_or(0, |(_, count)| (*count).max(0));
                Ok(count == *stored && counted != *stored && before == self.link_parents(*ino).await?)
            }
            Finding::Cycle { ino } => Ok(self.circle_at(*ino).await?.is_some()),
            Finding::DeletedButAlive { ino, length } => {
                let [record, node] = self.snapshot([Key::DeletedFile(*ino, *length), Key::Attr(*ino)]).await?;
                Ok(record.is_some() && node.is_some())
            }
            Finding::LostChunk { ino, index } => self.is_left_of_nothing(*ino, Key::Chunk(*ino, *index)).await,
            Finding::LostXattrs { ino } => self.is_left_of_nothing(*ino, Key::Xattrs(*ino)).await,
            Finding::LostLinkParents { ino } => self.is_left_of_nothing(*ino, Key::LinkParents(*ino)).await,
            Finding::LostDirStat { dir } => self.is_left_of_nothing(*dir, Key::DirStat(*dir)).await,
            Finding::SustainedMissing { session, ino } => {
                self.is_left_of_nothing(*ino, Key::Sustained(*session, *ino)).await
            }
            Finding::MissingTarget { ino } => {
                let [node, target] = self.snapshot([Key::Attr(*ino), Key::Symlink(*ino)]).await?;
                Ok(node.is_some() && target.is_none())
            }
            Finding::BadSlice { ino, index, slice } => {
                let [list] = self.snapshot([Key::Chunk(*ino, *index)]).await?;
                Ok(matches!(list, Some(Record::Slices(slices)) if slices.contains(slice)))
            }
            Finding::WrongReferences { id, size, stored, .. } | Finding::LostSlice { id, size, stored } => {
                let [record] = self.snapshot([Key::SliceRef(*id, *size)]).await?;
                // Without a record a slice has one reference.
                Ok(if let Some(Record::Number(now)) = record { now == *stored } else { *stored == 1 })
            }
            Finding::LowCounter { counter, used } => {
                let [record] = self.snapshot([Key::Counter(*counter)]).await?;
                Ok(if let Some(Record::Number(last)) = record { last < *used } else { *used > 0 })
            }
            Finding::LockOfNobody { session, ino, sort } => {
                let [locks, session_record] = self.snapshot([sort.key(*ino), Key::Session(*session)]).await?;
                Ok(session_record.is_none() && locks.is_some_and(|locks| is_held_by(&locks, *session)))
            }
            Finding::MissingAclRule { id, ino } => {
                let [rule, node] = self.snapshot([Key::AclRule(*id), Key::Attr(*ino)]).await?;
                let named = attr_of(&node).is_some_and(|node| [node.access_acl, node.default_acl].contains(id));
                Ok(named && rule.is_none())
            }
            Finding::WrongDirStat { dir, stored, .. } => {
                let [record] = self.snapshot([Key::DirStat(*dir)]).await?;
                Ok(record == Some(Record::DirStat(*stored)))
            }
            Finding::WrongCounter { counter, stored, .. } => {
                let [record] = self.snapshot([Key::Counter(*counter)]).await?;
                Ok(if let Some(Record::Number(now)) = record { now == *stored } else { *stored == 0 })
            }
        }
    }

    async fn snapshot<const N: usize>(&self, keys: [Key; N]) -> Outcome<[Option<Record>; N]> {
        let records = self.read(&keys).await?;
        Ok(records.try_into().expect("an engine answers each key"))
    }

    /// A part of a node that is not there.
    async fn is_left_of_nothing(&self, ino: Ino, part: Key) -> Outcome<bool> {
        let [node, part] = self.snapshot([Key::Attr(ino), part]).await?;
        Ok(node.is_none() && part.is_some())
    }

    async fn link_parents(&self, ino: Ino) -> Outcome<Vec<(Ino, i64)>> {
        match self.snapshot([Key::LinkParents(ino)]).await? {
            [Some(Record::LinkParents(parents))] => Ok(parents.into_iter().collect()),
            _ => Ok(Vec::new()),
        }
    }

    /// How many entries lead to the node in the directories that it says are its parents; `None` when it is not there
    /// or changed while they were read.
    pub(super) async fn entries_of(&self, ino: Ino) -> Outcome<Option<u32>> {
        let [node] = self.snapshot([Key::Attr(ino)]).await?;
        let Some(attr) = attr_of(&node) else { return Ok(None) };
        let parents = match attr.parent {
            Ino::MANY => self.link_parents(ino).await?.into_iter().map(|(parent, _)| parent).collect(),
            parent => vec![parent],
        };
        let mut entries = 0;
        for parent in parents {
            entries += self.names_in(parent, ino, false).await?.len() as u32;
        }
        let [now] = self.snapshot([Key::Attr(ino)]).await?;
        Ok((now == node).then_some(entries))
    }

    async fn links_differ(&self, ino: Ino, stored: u32) -> Outcome<bool> {
        let [before] = self.snapshot([Key::Attr(ino)]).await?;
        let Some(attr) = attr_of(&before).filter(|attr| attr.nlink == stored) else { return Ok(false) };
        if !attr.is_dir() {
            return Ok(self.entries_of(ino).await?.is_some_and(|entries| entries != stored));
        }
        // The trash and its hours count no directories.
        let mut links = 2;
        let mut after = None;
        while !ino.is_trash() {
            let page = self.list_names(ino, after.as_ref(), PAGE_ENTRIES).await?;
            links += page.entries.iter().filter(|(_, dentry)| dentry.kind == Kind::Directory).count() as u32;
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        let [now] = self.snapshot([Key::Attr(ino)]).await?;
        Ok(links != stored && now == before)
    }
}
