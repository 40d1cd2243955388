//! Names to nodes: lookup, attributes of a node, the target of a symlink.

use super::access::permit;
use crate::base::mode::EXECUTE;
use crate::base::{Attr, Errno, Ino, Kind, Name, Outcome, Timestamp};
use crate::meta::format::first_directory;
use crate::meta::record::{Key, Record};
use crate::meta::txn::{AttrOf, DentryOf, Operation, Tx};
use crate::meta::{Caller, Entry, Meta};
use bytes::Bytes;
use std::time::Duration;

struct Lookup<'a> {
    caller: &'a Caller,
    parent: Ino,
    name: &'a Name,
}

impl Lookup<'_> {
    /// In one trip, where the engine has a way and nobody's permissions matter. `None` when that did not settle it.
    async fn at_once(&self, tx: &mut Tx<'_>) -> Outcome<Option<Entry>> {
        if self.caller.check && !self.caller.is_root() {
            return Ok(None);
        }
        let Some(looked) = tx.look_up(self.parent, self.name).await? else { return Ok(None) };
        if !looked.parent.ok_or(Errno::ENOENT)?.is_dir() {
            return Err(Errno::ENOTDIR.into());
        }
        let dentry = looked.dentry.ok_or(Errno::ENOENT)?;
        Ok(looked.node.map(|attr| Entry { ino: dentry.ino, attr }))
    }
}

impl Operation for Lookup<'_> {
    const NAME: &'static str = "lookup";
    type Output = Entry;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Entry> {
        if let Some(entry) = self.at_once(tx).await? {
            return Ok(entry);
        }
        let (parent, dentry) = tx.load((AttrOf(self.parent), DentryOf(self.parent, self.name))).await?;
        let parent = parent.directory()?;
        permit(tx, &parent, self.caller, EXECUTE).await?;
        let dentry = dentry.ok_or(Errno::ENOENT)?;
        match tx.load(AttrOf(dentry.ino)).await?.into_option() {
            Some(node) => Ok(Entry { ino: dentry.ino, attr: *node.peek() }),
            // Removed between the two loads, or a damaged volume: look at the entry again.
            None => match tx.load(DentryOf(self.parent, self.name)).await? {
                Some(still) if still == dentry => Ok(Entry { ino: dentry.ino, attr: stub(dentry.kind) }),
                Some(_) => Err(tx.conflict()),
                None => Err(Errno::ENOENT.into()),
            },
        }
    }
}

/// An entry whose node is missing shows its kind and nothing else, so that it can be seen and removed
/// (`spec/metadata.md` 2.6).
pub(crate) fn stub(kind: Kind) -> Attr {
    let never = Timestamp::default();
    Attr {
        flags: 0,
        kind,
        mode: 0,
        uid: 0,
        gid: 0,
        atime: never,
        mtime: never,
        ctime: never,
        nlink: 1,
        length: 0,
        rdev: 0,
        parent: Ino::MANY,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

impl Meta {
    /// The node behind a name; `.` and `..` included, `.trash` in the root too.
    pub async fn lookup(&self, caller: &Caller, parent: Ino, name: &Name) -> Outcome<Entry> {
        if parent == Ino::ROOT && name.as_bytes() == b".trash" {
            return self.entry_of(Ino::TRASH).await;
        }
        if name.is_dot() {
            return self.entry_of(parent).await;
        }
        if name.is_dot_dot() {
            let dir = self.getattr(parent).await?;
            return self.entry_of(if dir.is_dir() { dir.parent } else { return Err(Errno::ENOTDIR.into()) }).await;
        }
        let Entry { ino, attr } = self.run(&Lookup { caller, parent, name }).await?;
        let links = attr.nlink.min(1);
        let mut attr = self.shown(ino, attr).await?;
        // What is reached through the trash has the name it is reached by.
        if parent.is_trash() {
            attr.nlink = attr.nlink.max(links);
        }
        Ok(Entry { ino, attr })
    }

    async fn entry_of(&self, ino: Ino) -> Outcome<Entry> {
        Ok(Entry { ino, attr: self.getattr(ino).await? })
    }

    /// The attributes of a node; ENOENT when it is gone. The trash is there even before a volume has used it: it is
    /// stored with the first setting that keeps anything in it, which may come while a client is at work.
    pub async fn getattr(&self, ino: Ino) -> Outcome<Attr> {
        let attr = self.stored_attr(ino).await?;
        self.shown(ino, attr).await
    }

    /// As `getattr`, links in the trash included.
    pub(super) async fn stored_attr(&self, ino: Ino) -> Outcome<Attr> {
        let record = self.read(&[Key::Attr(ino)]).await?.pop().flatten();
        self.known().note(&Key::Attr(ino), record.as_ref());
        match record {
            Some(Record::Attr(attr)) => Ok(attr),
            None if ino == Ino::TRASH => Ok(first_directory(0o555, self.now())),
            _ => Err(Errno::ENOENT.into()),
        }
    }

    /// The attributes of a node that this client has read or changed within a time, with their age: if it has, and they
    /// tell all that is shown.
    pub fn known_attr(&self, ino: Ino, within: Duration) -> Option<(Attr, Duration)> {
        let (attr, age) = self.known().attr(ino, within)?;
        (!self.shows_by_parents(ino, &attr)).then(|| (self.shown_with(ino, attr, 0), age))
    }

    /// The target of a symlink; EINVAL for any other node.
    pub async fn readlink(&self, ino: Ino) -> Outcome<Bytes> {
        let mut records = self.read(&[Key::Symlink(ino), Key::Attr(ino)]).await?;
        match (records.pop().flatten(), records.pop().flatten()) {
            (None, _) => Err(Errno::ENOENT.into()),
            (Some(_), Some(Record::Bytes(target))) => Ok(target),
            (Some(_), _) => Err(Errno::EINVAL.into()),
        }
    }
}
