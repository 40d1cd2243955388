//! New nodes: files, directories, symlinks and special nodes (`spec/metadata.md` 7.2).

use super::access::permit;
use super::acl::{self, Inherited, RuleBook, Ruled};
use crate::base::mode::{EXECUTE, GROUP_EXECUTE, Mode, PERMISSION_BITS, SGID, WRITE, flag};
use crate::base::{Attr, AttrPatch, Errno, Ino, Kind, Name, Outcome};
use crate::meta::engine::Change;
use crate::meta::known::FRESH;
use crate::meta::record::{DirStat, Key, Record};
use crate::meta::txn::{AttrOf, DentryOf, Operation, Seen, Settled, Tx};
use crate::meta::{Caller, Entry, Meta};
use bytes::Bytes;
use std::time::Duration;

/// What is to be made.
#[derive(Clone, Debug)]
pub struct NewNode {
    pub kind: Kind,
    /// Permission bits as asked for; `umask` is applied here, unless the parent has a default ACL.
    pub mode: Mode,
    pub umask: Mode,
    pub rdev: u32,
    /// Symlinks only.
    pub target: Option<Bytes>,
}

/// Longest symlink target in bytes.
const TARGET_BYTES_MAX: usize = 4096;

struct Create<'a> {
    book: &'a RuleBook,
    caller: &'a Caller,
    parent: Ino,
    name: &'a Name,
    node: &'a NewNode,
    ino: Ino,
    skip_dir_mtime: Duration,
}

impl Operation for Create<'_> {
    const NAME: &'static str = "create";
    const RELIES_ON: Duration = FRESH;
    type Output = Ruled<Entry>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Ruled<Entry>> {
        let (parent, taken) = tx.load((AttrOf(self.parent), DentryOf(self.parent, self.name))).await?;
        let parent = parent.directory()?;
        if parent.parent().is_hourly() {
            return Err(Errno::ENOENT.into());
        }
        permit(tx, &parent, self.caller, WRITE | EXECUTE).await?;
        if parent.flags() & flag::IMMUTABLE != 0 {
            return Err(Errno::EPERM.into());
        }
        if taken.is_some() {
            return Err(Errno::EEXIST.into());
        }
        let attr = match self.attr_under(tx, &parent).await? {
            Ruled::Done(attr) => attr,
            Ruled::Wants(rule) => return Ok(Ruled::Wants(rule)),
        };
        tx.put_attr(self.ino, &attr);
        tx.put_dentry(self.parent, self.name, self.ino, attr.kind);
        if let Some(target) = &self.node.target {
            tx.change(Change::Put(Key::Symlink(self.ino), Record::Bytes(target.clone())));
        }
        if attr.is_dir() {
            tx.change(Change::Put(Key::DirStat(self.ino), Record::DirStat(DirStat::default())));
            tx.patch(self.parent, AttrPatch::new().add_nlink(1).touch(tx.now()));
        } else {
            touch_dir(tx, &parent, self.skip_dir_mtime);
        }
        tx.add_usage(4096, 1);
        tx.add_dir_stat(self.parent, DirStat { length: 0, space: 4096, inodes: 1 });
        Ok(Ruled::Done(Entry { ino: self.ino, attr }))
    }

    /// The inode number was never used before: an entry that points at it can only be this one.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Ruled<Entry>>> {
        let (dentry, node) = tx.load((DentryOf(self.parent, self.name), AttrOf(self.ino))).await?;
        Ok(match (dentry, node.into_option()) {
            (Some(dentry), Some(node)) if dentry.ino == self.ino => {
                Settled::Applied(Ruled::Done(Entry { ino: self.ino, attr: *node.peek() }))
            }
            (_, None) => Settled::NotApplied,
            _ => Settled::Unknown,
        })
    }
}

impl Create<'_> {
    async fn attr_under(&self, tx: &mut Tx<'_>, parent: &Seen) -> Outcome<Ruled<Attr>> {
        let kind = self.node.kind;
        let now = tx.now();
        let inherits_group = parent.mode() & SGID != 0;
        let asked = self.node.mode & PERMISSION_BITS;
        let inherited = match parent.default_acl() {
            _ if kind == Kind::Symlink => Inherited { mode: 0o777, access_acl: 0, default_acl: 0 },
            0 => Inherited { mode: asked & !self.node.umask, access_acl: 0, default_acl: 0 },
            rule => match acl::inherit(tx, self.book, rule, asked, kind).await? {
                Ruled::Done(inherited) => inherited,
                Ruled::Wants(rule) => return Ok(Ruled::Wants(rule)),
            },
        };
        let mut mode = inherited.mode;
        if inherits_group && kind == Kind::Directory {
            mode |= SGID;
        } else if inherits_group
            && mode & (SGID | GROUP_EXECUTE) == SGID | GROUP_EXECUTE
            && self.caller.check
            && !self.caller.is_root()
            && !self.caller.in_group(parent.gid())
        {
            mode &= !SGID;
        }
        Ok(Ruled::Done(Attr {
            flags: parent.flags() & flag::SKIP_TRASH,
            kind,
            mode,
            uid: self.caller.uid,
            gid: if inherits_group { parent.gid() } else { self.caller.gid },
            atime: now,
            mtime: now,
            ctime: now,
            nlink: if kind == Kind::Directory { 2 } else { 1 },
            length: match kind {
                Kind::Directory => 4096,
                Kind::Symlink => self.node.target.as_ref().map_or(0, |t| t.len() as u64),
                _ => 0,
            },
            rdev: if matches!(kind, Kind::Directory | Kind::Symlink) { 0 } else { self.node.rdev },
            parent: self.parent,
            access_acl: inherited.access_acl,
            default_acl: inherited.default_acl,
            tier: parent.tier(),
        }))
    }
}

/// Touches a directory whose link count stays, unless its mtime is fresh anyway: the rule that keeps hot directories
/// from being written by each of a burst of entries (`spec/metadata.md` 7.2).
pub(crate) fn touch_dir(tx: &mut Tx<'_>, dir: &Seen, skip: Duration) {
    let now = tx.now();
    // Unguarded: that a touch comes a moment early or late harms nobody. A clock set back must not freeze times.
    let mtime = dir.peek().mtime;
    if skip.is_zero() || mtime > now {
        tx.patch(dir.ino(), AttrPatch::new().touch(now));
    } else if now.since(mtime) >= skip {
        // All clients that work in a directory see that it is due in the same moment.
        tx.patch(dir.ino(), AttrPatch::new().touch_unless_fresh(now, now.before(skip)));
    }
}

impl Meta {
    /// Makes a node. EEXIST when the name is taken: the caller decides whether that is an error.
    pub async fn create(&self, caller: &Caller, parent: Ino, name: &Name, node: &NewNode) -> Outcome<Entry> {
        self.make(caller, parent, name, node, false).await
    }

    /// As `create`; the file is open from before it has its name, so that nobody here can remove it for good until it
    /// is closed.
    pub async fn create_open(&self, caller: &Caller, parent: Ino, name: &Name, node: &NewNode) -> Outcome<Entry> {
        self.make(caller, parent, name, node, true).await
    }

    async fn make(&self, caller: &Caller, parent: Ino, name: &Name, node: &NewNode, open: bool) -> Outcome<Entry> {
        if parent.is_trash() || (parent == Ino::ROOT && name.as_bytes() == b".trash") {
            return Err(Errno::EPERM.into());
        }
        self.writable()?;
        if name.is_dot() || name.is_dot_dot() {
            return Err(Errno::EEXIST.into());
        }
        match (&node.target, node.kind) {
            (Some(target), Kind::Symlink) => {
                if target.is_empty() || target.len() > TARGET_BYTES_MAX || target.contains(&0) {
                    return Err(Errno::EINVAL.into());
                }
            }
            (None, kind) if kind != Kind::Symlink => {}
            _ => return Err(Errno::EINVAL.into()),
        }
        self.check_space(4096, 1)?;
        let ino = self.next_inode().await?;
        let skip_dir_mtime = self.settings().skip_dir_mtime;
        let book = self.rule_book();
        if open {
            self.open_file(ino);
        }
        let made = self.run_ruled(&Create { book, caller, parent, name, node, ino, skip_dir_mtime }).await;
        if open && made.is_err() {
            self.close_in_vain(ino).await;
        }
        made
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::acl::AclRule;
    use crate::meta::ops::acl::AclKind;
    use crate::meta::testing::{Store, volume, volume_on};
    use crate::util::clock::SystemClock;
    use std::sync::Arc;

    #[tokio::test]
    async fn a_new_file_has_the_attributes_of_its_place_and_its_maker() {
        let meta = volume().await;
        let caller = Caller { uid: 7, gid: 8, ..Caller::root() };
        let name = Name::entry(b"f").unwrap();
        let node = NewNode { kind: Kind::File, mode: 0o666, umask: 0o027, rdev: 0, target: None };
        let made = meta.create(&caller, Ino::ROOT, &name, &node).await.unwrap();
        assert_eq!((made.ino, made.attr.mode, made.attr.uid, made.attr.gid), (Ino(2), 0o640, 7, 8));
        assert_eq!(meta.lookup(&caller, Ino::ROOT, &name).await.unwrap(), made);
        assert_eq!(meta.create(&caller, Ino::ROOT, &name, &node).await.unwrap_err().errno(), Errno::EEXIST);
    }

    #[tokio::test]
    async fn a_file_that_is_made_open_is_open_before_others_see_it() {
        let (engine, interrupt) = Store::new().await.interrupted_engine().await;
        let meta = volume_on(engine, Arc::new(SystemClock)).await;
        let (root, name) = (Caller::root(), Name::entry(b"f").unwrap());
        let node = NewNode { kind: Kind::File, mode: 0o666, umask: 0, rdev: 0, target: None };
        let watcher = meta.clone();
        interrupt.before_commit(async move { assert!(watcher.is_open(Ino(2))) });
        assert_eq!(meta.create_open(&root, Ino::ROOT, &name, &node).await.unwrap().ino, Ino(2));
        assert!(interrupt.has_happened() && meta.is_open(Ino(2)));
        meta.create_open(&root, Ino::ROOT, &name, &node).await.unwrap_err();
        assert!(!meta.is_open(Ino(3)));
    }

    #[tokio::test]
    async fn a_default_acl_takes_the_place_of_the_umask() {
        let meta = volume().await;
        let root = Caller::root();
        let node = |kind| NewNode { kind, mode: 0o666, umask: 0o077, rdev: 0, target: None };
        let rule = AclRule { owner: 7, group: 5, mask: 6, other: 4, users: vec![(9, 7)], groups: vec![] };
        meta.set_acl(&root, Ino::ROOT, AclKind::Default, &acl::format(&rule)).await.unwrap();
        let file = meta.create(&root, Ino::ROOT, &Name::entry(b"f").unwrap(), &node(Kind::File)).await.unwrap();
        assert_eq!((file.attr.mode, file.attr.default_acl), (0o664, 0));
        assert_ne!(file.attr.access_acl, 0);
        let dir = meta.create(&root, Ino::ROOT, &Name::entry(b"d").unwrap(), &node(Kind::Directory)).await.unwrap();
        assert_eq!(dir.attr.default_acl, meta.getattr(Ino::ROOT).await.unwrap().default_acl);
        assert_eq!(dir.attr.access_acl, file.attr.access_acl);
    }
}
