//! Moving and exchanging names (`spec/metadata.md` 7.8).
//!
//! No directory may become its own ancestor. When a directory changes its parent, the operation walks from the new
//! parent towards the root and guards the parent of every directory it meets, so that two renames which are harmless
//! alone and a cycle together conflict at commit, on every engine.

use super::access::{permit, sticky_permits};
use super::create::touch_dir;
use super::rmdir::drop_directory;
use super::unlink::{Removal, Removed, drop_name, negative, removable, removable_from, stat_of};
use crate::base::mode::{EXECUTE, STICKY, WRITE, flag};
use crate::base::{Attr, AttrPatch, Errno, Fault, Ino, Kind, Name, Outcome};
use crate::meta::engine::Change;
use crate::meta::known::USEFUL;
use crate::meta::record::{Dentry, DirStat, Key, Record};
use crate::meta::trash::{self, SpotOf};
use crate::meta::txn::{AttrOf, DentryOf, HasEntries, Operation, Seen, Settled, Tx};
use crate::meta::{Caller, Meta};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;

/// What happens to an entry that has the new name already.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum RenameMode {
    /// It goes, as if removed.
    Replace,
    /// EEXIST.
    NoReplace,
    /// It takes the old name.
    Exchange,
    /// As `NoReplace`, and the new parent may itself lie in the trash: whole trees come back piece by piece.
    Restore,
}

/// The moved node as it is afterwards, and what became of the entry in its way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Renamed {
    pub ino: Ino,
    pub attr: Attr,
    pub replaced: Option<Removed>,
}

struct Rename<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    from: (Ino, &'a Name),
    to: (Ino, &'a Name),
    how: RenameMode,
    removal: Removal,
    with_trash: bool,
    /// What the last attempt was about to do, for a commit without a reply: the answer, and the entries it was
    /// decided on.
    decided: Mutex<Option<(Renamed, Option<Dentry>)>>,
}

impl Operation for Rename<'_> {
    const NAME: &'static str = "rename";
    const RELIES_ON: Duration = USEFUL;
    /// `None`: the replaced entry goes to the trash and there is no hourly directory yet, or no more.
    type Output = Option<Renamed>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<Renamed>> {
        let (from, to) = (self.from.0, self.to.0);
        let across = from != to;
        let (source, target_parent, moved, taken) = tx
            .load((AttrOf(from), across.then_some(AttrOf(to)), DentryOf(from, self.from.1), DentryOf(to, self.to.1)))
            .await?;
        let source = source.directory()?;
        let target = match target_parent {
            Some(node) => node.directory()?,
            None => source.clone(),
        };
        permit(tx, &source, self.caller, EXECUTE).await?;
        permit(tx, &target, self.caller, EXECUTE).await?;
        let moved = moved.ok_or(Errno::ENOENT)?;
        match (self.how, &taken) {
            (RenameMode::NoReplace | RenameMode::Restore, Some(_)) => return Err(Errno::EEXIST.into()),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT.into()),
            _ => {}
        }
        // Two names of one node: nothing happens, both stay.
        if taken.is_some_and(|taken| taken.ino == moved.ino) {
            let attr = *tx.load(AttrOf(moved.ino)).await?.exists()?.peek();
            return Ok(Some(Renamed { ino: moved.ino, attr, replaced: None }));
        }
        permit(tx, &source, self.caller, WRITE | EXECUTE).await?;
        permit(tx, &target, self.caller, WRITE | EXECUTE).await?;
        if target.parent().is_hourly() && self.how != RenameMode::Restore {
            return Err(Errno::ENOENT.into());
        }
        removable_from(&source)?;
        if target.flags() & flag::IMMUTABLE != 0 || (taken.is_some() && target.flags() & flag::APPEND != 0) {
            return Err(Errno::EPERM.into());
        }

        let exchange = self.how == RenameMode::Exchange;
        if taken.is_some() && !exchange && self.with_trash && self.removal.hourly.is_none() {
            return Ok(None);
        }
        let spot =
            taken.filter(|_| !exchange).and_then(|taken| SpotOf::new(self.removal.hourly, to, taken.ino, self.to.1));
        let (node, other, occupied, spot, filled) = tx
            .load((
                AttrOf(moved.ino),
                taken.map(|taken| AttrOf(taken.ino)),
                taken.filter(|taken| taken.kind == Kind::Directory).map(|taken| HasEntries(taken.ino)),
                spot,
                (from.is_trash() && moved.kind == Kind::Directory).then_some(HasEntries(moved.ino)),
            ))
            .await?;
        let Ok(spot) = trash::spot(spot) else { return Ok(None) };
        let node = node.of_entry(from, self.from.1, moved)?.ok_or(Errno::ENOENT)?;
        let other = match (other, taken) {
            (Some(other), Some(taken)) => Some(other.of_entry(to, self.to.1, taken)?.ok_or(Errno::ENOENT)?),
            _ => None,
        };
        if let Some(other) = other.as_ref().filter(|_| !exchange) {
            match (node.kind() == Kind::Directory, other.kind() == Kind::Directory) {
                (true, false) => return Err(Errno::ENOTDIR.into()),
                (false, true) => return Err(Errno::EISDIR.into()),
                _ => {}
            }
        }
        self.may_leave(tx, &source, &node, across).await?;
        removable(&node)?;
        if let Some(other) = &other {
            sticky_permits(&target, other, self.caller)?;
            removable(other)?;
            if exchange {
                self.may_leave(tx, &target, other, across).await?;
            }
        }
        if across && node.kind() == Kind::Directory {
            not_below(tx, &target, node.ino(), from).await?;
        }
        if let Some(other) = other.as_ref().filter(|other| across && exchange && other.kind() == Kind::Directory) {
            not_below(tx, &source, other.ino(), to).await?;
        }
        if occupied == Some(true) && !exchange {
            return Err(Errno::ENOTEMPTY.into());
        }

        // All checks passed; what follows only lists changes.
        let (node_dir, other_dir) =
            (node.kind() == Kind::Directory, other.as_ref().is_some_and(|other| other.kind() == Kind::Directory));
        let mut replaced = None;
        match &other {
            Some(other) if exchange => {
                tx.put_dentry(from, self.from.1, other.ino(), other.kind());
                move_node(tx, other, to, from);
            }
            Some(other) => {
                tx.delete_dentry(from, self.from.1);
                replaced = Some(if other_dir {
                    let kept = spot.is_some() && other.flags() & flag::SKIP_TRASH == 0;
                    drop_directory(tx, to, other, spot);
                    Removed { ino: other.ino(), attr: Attr { ctime: tx.now(), ..*other.peek() }, freed: !kept }
                } else {
                    drop_name(tx, self.meta, &self.removal, to, other, spot).await?
                });
            }
            None => tx.delete_dentry(from, self.from.1),
        }
        tx.put_dentry(to, self.to.1, node.ino(), node.kind());
        let patch = move_node(tx, &node, from, to);
        if filled == Some(false) {
            // Its statistics were dropped on the way into the trash; those of a filled one are rebuilt when needed.
            tx.change(Change::Put(Key::DirStat(node.ino()), Record::DirStat(DirStat::default())));
        }

        // Sub-directories gained and lost by each parent.
        let (moves, swaps, replaces) = (
            i32::from(across && node_dir),
            i32::from(across && exchange && other_dir),
            i32::from(!exchange && other_dir),
        );
        if across {
            self.touch(tx, &source, swaps - moves);
        }
        self.touch(tx, &target, moves - swaps - replaces);

        let mut attr = *node.peek();
        patch.apply(&mut attr);
        let renamed = Renamed { ino: node.ino(), attr, replaced };
        *self.decided.lock() = Some((renamed, taken));
        Ok(Some(renamed))
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<Renamed>>> {
        let decided = *self.decided.lock();
        let Some((renamed, taken)) = decided else { return Ok(Settled::Unknown) };
        let (old, new) = tx.load((DentryOf(self.from.0, self.from.1), DentryOf(self.to.0, self.to.1))).await?;
        let ino = |dentry: Option<Dentry>| dentry.map(|dentry| dentry.ino);
        Ok(if ino(new) == Some(renamed.ino) && ino(old) != Some(renamed.ino) {
            Settled::Applied(Some(renamed))
        } else if ino(old) == Some(renamed.ino) && ino(new) == ino(taken) {
            Settled::NotApplied
        } else {
            Settled::Unknown
        })
    }
}

impl Rename<'_> {
    /// Sticky directories, and what a directory needs to change its parent.
    async fn may_leave(&self, tx: &mut Tx<'_>, dir: &Seen, node: &Seen, across: bool) -> Outcome<()> {
        sticky_permits(dir, node, self.caller)?;
        let moves_away = across && node.kind() == Kind::Directory;
        // Its `..` changes, which even the owner of a sticky directory may not do to a directory of somebody else.
        if moves_away && !self.caller.is_root() && dir.mode() & STICKY != 0 && self.caller.uid != node.uid() {
            return Err(Errno::EACCES.into());
        }
        if moves_away {
            permit(tx, node, self.caller, WRITE).await?;
        }
        Ok(())
    }

    /// Parents whose link count changes are touched, the others unless they are fresh; trash directories never.
    fn touch(&self, tx: &mut Tx<'_>, dir: &Seen, links: i32) {
        if dir.ino().is_trash() {
            return;
        }
        if links == 0 {
            touch_dir(tx, dir, self.removal.skip_dir_mtime);
        } else {
            tx.patch(dir.ino(), AttrPatch::new().add_nlink(links).touch(tx.now()));
        }
    }
}

/// What follows for a node from leaving one directory for another (or for the same one).
fn move_node(tx: &mut Tx<'_>, node: &Seen, from: Ino, to: Ino) -> AttrPatch {
    let ino = node.ino();
    let mut patch = AttrPatch::new().set_ctime(tx.now());
    if from != to {
        if node.parent() != Ino::MANY {
            patch = patch.set_parent(to);
        } else {
            tx.change(Change::AddLinkParent { ino, parent: to, delta: 1 });
            tx.change(Change::AddLinkParent { ino, parent: from, delta: -1 });
        }
        let stat = stat_of(node);
        tx.add_dir_stat(from, negative(stat));
        tx.add_dir_stat(to, stat);
    }
    tx.patch(ino, patch);
    patch
}

/// EINVAL when `dir` is `moved` or lies below it. The walk may end at `until`, the present parent of `moved`: what is
/// above that is above `moved` as well.
async fn not_below(tx: &mut Tx<'_>, dir: &Seen, moved: Ino, until: Ino) -> Outcome<()> {
    let mut met = HashSet::new();
    let (mut ino, mut parent) = (dir.ino(), dir.parent());
    loop {
        if ino == moved {
            return Err(Errno::EINVAL.into());
        }
        if ino == until || ino == Ino::ROOT || ino.is_trash() {
            return Ok(());
        }
        if !met.insert(ino) {
            return Err(Fault::corrupt("walk to the root").with("directory", dir.ino()).with("cycle at", ino).into());
        }
        ino = parent;
        if ino == moved {
            return Err(Errno::EINVAL.into());
        }
        if ino == until || ino == Ino::ROOT || ino.is_trash() {
            return Ok(());
        }
        parent = tx.load(AttrOf(ino)).await?.exists()?.parent();
    }
}

impl Meta {
    /// Moves a name, within a directory or to another one.
    pub async fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        new_parent: Ino,
        new_name: &Name,
        how: RenameMode,
    ) -> Outcome<Renamed> {
        if trash::protected(parent, name) || trash::protected(new_parent, new_name) || new_parent.is_trash() {
            return Err(Errno::EPERM.into());
        }
        // An hourly directory stays where it is; what lies in it is the superuser's to bring back.
        if parent == Ino::TRASH || (parent.is_trash() && (!caller.is_root() || how == RenameMode::Exchange)) {
            return Err(Errno::EPERM.into());
        }
        self.writable()?;
        if [name, new_name].iter().any(|name| name.is_dot() || name.is_dot_dot()) {
            return Err(Errno::EINVAL.into());
        }
        let with_trash = self.rules().trash_days > 0;
        // Most renames replace nothing, so no hourly directory is made before one is needed.
        let mut removal = self.removal(true).await?;
        removal.hourly = self.cached_trash_dir().filter(|_| with_trash);
        loop {
            let (from, to) = ((parent, name), (new_parent, new_name));
            let rename = Rename { meta: self, caller, from, to, how, removal, with_trash, decided: Mutex::new(None) };
            if let Some(renamed) = self.run(&rename).await? {
                if let Some(replaced) = &renamed.replaced {
                    self.after_removal(replaced).await;
                }
                return Ok(renamed);
            }
            if removal.hourly.is_some() {
                self.forget_trash_dir();
            }
            removal.hourly = Some(self.trash_dir().await?);
        }
    }
}
