//! Removing directories (`spec/metadata.md` 7.6); `rename` drops a replaced directory by the same rules.

use super::access::{permit, sticky_permits};
use super::unlink::{Removal, removable_from};
use crate::base::mode::{EXECUTE, WRITE, flag};
use crate::base::{AttrPatch, Errno, FieldMask, Ino, Kind, Name, Outcome};
use crate::meta::engine::Change;
use crate::meta::known::USEFUL;
use crate::meta::record::{DirStat, Key, QuotaOwner};
use crate::meta::trash::{self, Spot, SpotOf};
use crate::meta::txn::{AttrOf, DentryOf, HasEntries, Operation, Seen, Settled, Tx};
use crate::meta::{Caller, Meta};
use parking_lot::Mutex;
use std::time::Duration;

struct Rmdir<'a> {
    caller: &'a Caller,
    parent: Ino,
    name: &'a Name,
    removal: Removal,
    /// What the last attempt was about to remove, for a commit without a reply.
    decided: Mutex<Option<Ino>>,
}

impl Operation for Rmdir<'_> {
    const NAME: &'static str = "rmdir";
    const RELIES_ON: Duration = USEFUL;
    /// `None`: the hourly directory is no more, ask for another one.
    type Output = Option<Ino>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<Ino>> {
        let (parent, dentry) = tx.load((AttrOf(self.parent), DentryOf(self.parent, self.name))).await?;
        let parent = parent.directory()?;
        permit(tx, &parent, self.caller, EXECUTE).await?;
        let dentry = dentry.ok_or(Errno::ENOENT)?;
        permit(tx, &parent, self.caller, WRITE | EXECUTE).await?;
        if dentry.kind != Kind::Directory {
            return Err(Errno::ENOTDIR.into());
        }
        removable_from(&parent)?;
        let spot = SpotOf::new(self.removal.hourly, self.parent, dentry.ino, self.name);
        let (dir, occupied, spot) = tx.load((AttrOf(dentry.ino), HasEntries(dentry.ino), spot)).await?;
        let Ok(spot) = trash::spot(spot) else { return Ok(None) };
        let dir = dir.of_entry(self.parent, self.name, dentry)?;
        if let Some(dir) = &dir {
            sticky_permits(&parent, dir, self.caller)?;
        }
        if occupied {
            return Err(Errno::ENOTEMPTY.into());
        }
        tx.delete_dentry(self.parent, self.name);
        if !self.parent.is_trash() {
            tx.patch(self.parent, AttrPatch::new().add_nlink(-1).touch(tx.now()));
        }
        // An entry whose node is missing is damage that rmdir clears away.
        if let Some(dir) = &dir {
            drop_directory(tx, self.parent, dir, spot);
        }
        *self.decided.lock() = Some(dentry.ino);
        Ok(Some(dentry.ino))
    }

    /// The caller wanted the name gone: if it is, the rmdir has happened.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<Ino>>> {
        let decided = *self.decided.lock();
        let Some(ino) = decided else { return Ok(Settled::Unknown) };
        Ok(match tx.load(DentryOf(self.parent, self.name)).await? {
            Some(dentry) if dentry.ino == ino => Settled::NotApplied,
            _ => Settled::Applied(Some(ino)),
        })
    }
}

/// What one sub-directory adds to the statistics of its parent.
pub(crate) const DIRECTORY_STAT: DirStat = DirStat { length: 0, space: 4096, inodes: 1 };

/// Everything that follows for an empty directory from losing its name below `parent`, but for the entry and the
/// parent's attributes, which are the caller's.
pub(crate) fn drop_directory(tx: &mut Tx<'_>, parent: Ino, dir: &Seen, spot: Option<Spot>) {
    let ino = dir.ino();
    // A move of the directory, or its removal, would contradict this.
    dir.saw(FieldMask::KIND | FieldMask::PARENT);
    tx.add_dir_stat(parent, super::unlink::negative(DIRECTORY_STAT));
    tx.change(Change::Delete(Key::DirStat(ino)));
    tx.change(Change::Delete(Key::Quota(QuotaOwner::Directory(ino))));
    match spot.filter(|_| dir.flags() & flag::SKIP_TRASH == 0) {
        Some(spot) => {
            tx.put_dentry(spot.hourly, &spot.name, ino, Kind::Directory);
            tx.add_dir_stat(spot.hourly, DIRECTORY_STAT);
            tx.patch(ino, AttrPatch::new().set_ctime(tx.now()).set_parent(spot.hourly));
        }
        None => {
            tx.delete_attr(ino);
            tx.change(Change::Delete(Key::Xattrs(ino)));
            tx.add_usage(-4096, -1);
        }
    }
}

impl Meta {
    /// Removes an empty directory; answers which one it was.
    pub async fn rmdir(&self, caller: &Caller, parent: Ino, name: &Name, skip_trash: bool) -> Outcome<Ino> {
        if name.is_dot() {
            return Err(Errno::EINVAL.into());
        }
        if name.is_dot_dot() {
            return Err(Errno::ENOTEMPTY.into());
        }
        if trash::protected(parent, name) || parent == Ino::TRASH || (parent.is_trash() && !caller.is_root()) {
            return Err(Errno::EPERM.into());
        }
        self.remove_directory(caller, parent, name, skip_trash).await
    }

    /// As `rmdir`, for hourly directories too: the purge of the trash removes them in the end.
    pub(crate) async fn remove_directory(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        skip_trash: bool,
    ) -> Outcome<Ino> {
        self.writable()?;
        loop {
            let removal = self.removal(skip_trash || parent.is_trash()).await?;
            let rmdir = Rmdir { caller, parent, name, removal, decided: Mutex::new(None) };
            match self.run(&rmdir).await? {
                Some(ino) => return Ok(ino),
                None => self.forget_trash_dir(),
            }
        }
    }
}
