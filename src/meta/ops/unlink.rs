//! Removing names of files, symlinks and special nodes, and what becomes of the node (`spec/metadata.md` 7.5).
//!
//! A name goes to the trash or away; a node whose last name goes away is removed, or sustained while this client has
//! it open. `rename` drops a replaced target by the same rules, so they stand here for both.

use super::access::{permit, sticky_permits};
use super::create::touch_dir;
use crate::base::mode::{EXECUTE, WRITE, flag};
use crate::base::{Attr, AttrPatch, Errno, Ino, Kind, Name, Outcome, SessionId};
use crate::meta::engine::Change;
use crate::meta::known::USEFUL;
use crate::meta::record::{DirStat, Key, Record};
use crate::meta::session::{require_alive, session_of};
use crate::meta::trash::{self, Spot, SpotOf};
use crate::meta::txn::{AttrOf, DentryOf, Operation, Seen, Settled, Tx};
use crate::meta::{Caller, Meta};
use parking_lot::Mutex;
use std::time::Duration;

/// A node that lost a name.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Removed {
    pub ino: Ino,
    /// As it is afterwards; as it last was, with no links, when it is gone.
    pub attr: Attr,
    /// The node itself is gone now.
    pub freed: bool,
}

/// What the fate of a node depends on besides its records.
#[derive(Clone, Copy)]
pub(crate) struct Removal {
    pub session: SessionId,
    /// The current hourly directory, when names may go to the trash.
    pub hourly: Option<Ino>,
    pub skip_dir_mtime: Duration,
}

struct Unlink<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    parent: Ino,
    name: &'a Name,
    removal: Removal,
    /// What the last attempt was about to do, for a commit without a reply.
    decided: Mutex<Option<Removed>>,
}

impl Operation for Unlink<'_> {
    const NAME: &'static str = "unlink";
    const RELIES_ON: Duration = USEFUL;
    /// `None`: the hourly directory is no more, ask for another one.
    type Output = Option<Removed>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<Removed>> {
        let (parent, dentry) = tx.load((AttrOf(self.parent), DentryOf(self.parent, self.name))).await?;
        let parent = parent.directory()?;
        permit(tx, &parent, self.caller, EXECUTE).await?;
        let dentry = dentry.ok_or(Errno::ENOENT)?;
        permit(tx, &parent, self.caller, WRITE | EXECUTE).await?;
        removable_from(&parent)?;
        if dentry.kind == Kind::Directory {
            return Err(Errno::EPERM.into());
        }
        let spot = SpotOf::new(self.removal.hourly, self.parent, dentry.ino, self.name);
        let (node, spot) = tx.load((AttrOf(dentry.ino), spot)).await?;
        let Ok(spot) = trash::spot(spot) else { return Ok(None) };
        tx.delete_dentry(self.parent, self.name);
        if !self.parent.is_trash() {
            touch_dir(tx, &parent, self.removal.skip_dir_mtime);
        }
        // An entry whose node is missing is damage that unlink clears away.
        let removed = match node.of_entry(self.parent, self.name, dentry)? {
            None => Removed { ino: dentry.ino, attr: super::lookup::stub(dentry.kind), freed: false },
            Some(node) => {
                sticky_permits(&parent, &node, self.caller)?;
                removable(&node)?;
                drop_name(tx, self.meta, &self.removal, self.parent, &node, spot).await?
            }
        };
        *self.decided.lock() = Some(removed);
        Ok(Some(removed))
    }

    /// The caller wanted the name gone: if it is, the unlink has happened.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<Removed>>> {
        let decided = *self.decided.lock();
        let Some(removed) = decided else { return Ok(Settled::Unknown) };
        Ok(match tx.load(DentryOf(self.parent, self.name)).await? {
            Some(dentry) if dentry.ino == removed.ino => Settled::NotApplied,
            _ => Settled::Applied(Some(removed)),
        })
    }
}

/// EPERM for a directory that keeps its entries.
pub(crate) fn removable_from(dir: &Seen) -> Outcome<()> {
    if dir.flags() & (flag::APPEND | flag::IMMUTABLE) != 0 { Err(Errno::EPERM.into()) } else { Ok(()) }
}

/// EPERM for a node that keeps its names.
pub(crate) fn removable(node: &Seen) -> Outcome<()> {
    if node.flags() & (flag::APPEND | flag::IMMUTABLE) != 0 { Err(Errno::EPERM.into()) } else { Ok(()) }
}

/// What a node adds to the statistics of its directory; guards what it depends on.
pub(crate) fn stat_of(node: &Seen) -> DirStat {
    let file = node.kind() == Kind::File;
    let length = if file { node.length() as i64 } else { 0 };
    let space = if file { crate::base::align4k(node.length()) as i64 } else { 4096 };
    DirStat { length, space, inodes: 1 }
}

pub(crate) fn negative(stat: DirStat) -> DirStat {
    DirStat { length: -stat.length, space: -stat.space, inodes: -stat.inodes }
}

/// Whether this client, having the file open, keeps it now that it loses its last name. A session that others take for
/// dead keeps nothing: nobody would look at its record again, and the file would stay for ever.
async fn sustains(tx: &mut Tx<'_>, meta: &Meta, removal: &Removal, ino: Ino) -> Outcome<bool> {
    if removal.session == SessionId(0) || !meta.is_open(ino) {
        return Ok(false);
    }
    let session = tx.load(session_of(removal.session)).await?;
    Ok(require_alive(&session).is_ok())
}

/// Everything that follows for a non-directory from losing one name below `parent`; the entry itself is the caller's.
/// `spot`: its place in the trash, if the volume keeps what is removed.
pub(crate) async fn drop_name(
    tx: &mut Tx<'_>,
    meta: &Meta,
    removal: &Removal,
    parent: Ino,
    node: &Seen,
    spot: Option<Spot>,
) -> Outcome<Removed> {
    let (ino, now) = (node.ino(), tx.now());
    let stat = stat_of(node);
    let many = node.parent() == Ino::MANY;
    let patched = |patch: &AttrPatch| {
        let mut attr = *node.peek();
        patch.apply(&mut attr);
        attr
    };
    tx.add_dir_stat(parent, negative(stat));
    let kept = spot.filter(|_| node.flags() & flag::SKIP_TRASH == 0);
    // A second name of the same node is not kept twice under one trash name.
    if let Some(spot) = kept.filter(|spot| !(spot.taken && node.nlink() > 1)) {
        tx.put_dentry(spot.hourly, &spot.name, ino, node.kind());
        tx.add_dir_stat(spot.hourly, stat);
        let mut patch = AttrPatch::new().set_ctime(now);
        if many {
            tx.change(Change::AddLinkParent { ino, parent: spot.hourly, delta: 1 });
            tx.change(Change::AddLinkParent { ino, parent, delta: -1 });
        } else {
            patch = patch.set_parent(spot.hourly);
        }
        tx.patch(ino, patch);
        return Ok(Removed { ino, attr: patched(&patch), freed: false });
    }
    let patch = AttrPatch::new().set_ctime(now).add_nlink(-1);
    if node.nlink() > 1 {
        if many {
            tx.change(Change::AddLinkParent { ino, parent, delta: -1 });
        }
        tx.patch(ino, patch);
        return Ok(Removed { ino, attr: patched(&patch), freed: false });
    }
    let file = node.kind() == Kind::File;
    tx.change(Change::Delete(Key::Xattrs(ino)));
    if many {
        tx.change(Change::Delete(Key::LinkParents(ino)));
    }
    if file && sustains(tx, meta, removal, ino).await? {
        tx.patch(ino, patch);
        tx.change(Change::Put(Key::Sustained(removal.session, ino), Record::Number(1)));
        return Ok(Removed { ino, attr: patched(&patch), freed: false });
    }
    tx.delete_attr(ino);
    if file {
        let deleted = Key::DeletedFile(ino, node.length());
        tx.change(Change::Put(deleted, Record::Number(now.seconds)));
    } else if node.kind() == Kind::Symlink {
        tx.change(Change::Delete(Key::Symlink(ino)));
    }
    tx.add_usage(-stat.space, -1);
    Ok(Removed { ino, attr: patched(&patch), freed: true })
}

impl Meta {
    /// Removes a name of anything but a directory. `skip_trash`: for good, even where the volume keeps what is removed.
    pub async fn unlink(&self, caller: &Caller, parent: Ino, name: &Name, skip_trash: bool) -> Outcome<Removed> {
        if trash::protected(parent, name) || (parent.is_trash() && !caller.is_root()) {
            return Err(Errno::EPERM.into());
        }
        self.writable()?;
        if name.is_dot() || name.is_dot_dot() {
            return Err(Errno::EPERM.into());
        }
        loop {
            let removal = self.removal(skip_trash || parent.is_trash()).await?;
            let unlink = Unlink { meta: self, caller, parent, name, removal, decided: Mutex::new(None) };
            match self.run(&unlink).await? {
                Some(removed) => {
                    self.after_removal(&removed).await;
                    return Ok(removed);
                }
                None => self.forget_trash_dir(),
            }
        }
    }

    /// What removals of this moment go by. With the trash in play this finds the hourly directory: a trip or two,
    /// once an hour.
    pub(crate) async fn removal(&self, skip_trash: bool) -> Outcome<Removal> {
        let hourly = if skip_trash || self.rules().trash_days == 0 { None } else { Some(self.trash_dir().await?) };
        Ok(Removal { session: self.session(), hourly, skip_dir_mtime: self.settings().skip_dir_mtime })
    }
}
