//! Further names for a node (`spec/metadata.md` 7.4).

use super::access::permit;
use super::create::touch_dir;
use super::unlink::stat_of;
use crate::base::mode::{EXECUTE, WRITE, flag};
use crate::base::{Attr, AttrPatch, Errno, Ino, Kind, Name, Outcome};
use crate::meta::engine::Change;
use crate::meta::trash;
use crate::meta::txn::{AttrOf, DentryOf, LinkParentsOf, Operation, Peek, Settled, Tx};
use crate::meta::{Caller, Meta};
use std::time::Duration;

struct Link<'a> {
    caller: &'a Caller,
    ino: Ino,
    parent: Ino,
    name: &'a Name,
    with_trash: bool,
    skip_dir_mtime: Duration,
}

impl Operation for Link<'_> {
    const NAME: &'static str = "link";
    type Output = Attr;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Attr> {
        let (parent, taken, node, links) = tx
            .load((
                AttrOf(self.parent),
                DentryOf(self.parent, self.name),
                AttrOf(self.ino),
                // Only for the number of links that is shown.
                self.with_trash.then_some(Peek(LinkParentsOf(self.ino))),
            ))
            .await?;
        let parent = parent.directory()?;
        if parent.parent().is_hourly() {
            return Err(Errno::ENOENT.into());
        }
        permit(tx, &parent, self.caller, WRITE | EXECUTE).await?;
        if parent.flags() & flag::IMMUTABLE != 0 {
            return Err(Errno::EPERM.into());
        }
        let node = node.exists()?;
        if node.kind() == Kind::Directory || node.flags() & (flag::APPEND | flag::IMMUTABLE) != 0 {
            return Err(Errno::EPERM.into());
        }
        // What has lost its last name is on its way out; a name in the trash is no name to link from.
        if node.nlink() == 0 || node.parent().is_hourly() {
            return Err(Errno::ENOENT.into());
        }
        if taken.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let mut patch = AttrPatch::new().set_ctime(tx.now()).add_nlink(1);
        if node.parent() != Ino::MANY {
            patch = patch.set_parent(Ino::MANY);
            tx.change(Change::AddLinkParent { ino: self.ino, parent: node.parent(), delta: 1 });
        }
        tx.change(Change::AddLinkParent { ino: self.ino, parent: self.parent, delta: 1 });
        tx.put_dentry(self.parent, self.name, self.ino, node.kind());
        tx.patch(self.ino, patch);
        touch_dir(tx, &parent, self.skip_dir_mtime);
        tx.add_dir_stat(self.parent, stat_of(&node));
        let mut attr = *node.peek();
        patch.apply(&mut attr);
        attr.nlink -= trash::links_in(links.as_deref().unwrap_or_default()).min(attr.nlink - 1);
        Ok(attr)
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Attr>> {
        let (dentry, node) = tx.load((DentryOf(self.parent, self.name), AttrOf(self.ino))).await?;
        Ok(match (dentry, node.into_option()) {
            (Some(dentry), Some(node)) if dentry.ino == self.ino => Settled::Applied(*node.peek()),
            // Applied and removed again at once looks the same; linking once more is what was asked for.
            (None, _) => Settled::NotApplied,
            _ => Settled::Unknown,
        })
    }
}

impl Meta {
    /// Gives `ino` one more name.
    pub async fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &Name) -> Outcome<Attr> {
        if parent.is_trash() || trash::protected(parent, name) {
            return Err(Errno::EPERM.into());
        }
        self.writable()?;
        if name.is_dot() || name.is_dot_dot() {
            return Err(Errno::EEXIST.into());
        }
        let with_trash = self.rules().trash_days > 0;
        let skip_dir_mtime = self.settings().skip_dir_mtime;
        self.run(&Link { caller, ino, parent, name, with_trash, skip_dir_mtime }).await
    }
}
