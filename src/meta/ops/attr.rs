//! Changing attributes (chmod, chown, utimens, chattr, tiers), access times, and what opening a file asks of it
//! (`spec/metadata.md` 7.14, 7.18, section 6).

use super::access::permit;
use super::acl::{self, Ruled};
use crate::base::mode::{GROUP_EXECUTE, PERMISSION_BITS, READ, SGID, SUID, WRITE, flag};
use crate::base::{
    Attr, AttrPatch, ChunkIndex, Errno, FaultKind, FieldMask, Ino, Kind, Mode, Outcome, Slice, Stop, Timestamp,
};
use crate::meta::known::FRESH;
use crate::meta::txn::{AttrOf, Operation, Seen, Settled, Tx};
use crate::meta::{Caller, Meta};
use std::time::Duration;

/// Attributes to set; what is `None` stays.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SetAttr {
    /// The twelve permission bits.
    pub mode: Option<Mode>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub atime: Option<SetTime>,
    pub mtime: Option<SetTime>,
    /// The whole flags byte (`base::mode::flag`).
    pub flags: Option<u8>,
    pub tier: Option<u8>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SetTime {
    Now,
    At(Timestamp),
}

struct SetAttrs<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    ino: Ino,
    set: &'a SetAttr,
}

impl Operation for SetAttrs<'_> {
    const NAME: &'static str = "setattr";
    const RELIES_ON: Duration = FRESH;
    type Output = Ruled<Attr>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Ruled<Attr>> {
        let SetAttrs { caller, set, .. } = self;
        let node = tx.load(AttrOf(self.ino)).await?.exists()?;
        if node.parent().is_hourly() {
            return Err(Errno::EPERM.into());
        }
        let checked = caller.check && !caller.is_root();
        let owner = caller.is_root() || caller.uid == node.uid();
        let mut patch = AttrPatch::new();

        let mode = self.mode_after_chown(&node);
        let mut gid = node.peek().gid;
        if let Some(group) = set.gid {
            if !owner {
                return Err(Errno::EPERM.into());
            }
            if group != node.gid() {
                if checked && !caller.in_group(group) {
                    return Err(Errno::EPERM.into());
                }
                patch = patch.set_gid(group);
                gid = group;
            }
        }
        if let Some(uid) = set.uid
            && uid != node.uid()
        {
            if checked {
                return Err(Errno::EPERM.into());
            }
            patch = patch.set_uid(uid);
        }
        if let Some(mut mode) = mode {
            let present = node.mode();
            if checked && mode & SGID != 0 {
                // The group that the node will have; looked at above if it stays.
                node.gid();
                if !caller.in_group(gid) {
                    mode &= !SGID;
                }
            }
            if mode != present {
                let only_clears_ids = mode & !present == 0 && (mode ^ present) & !(SUID | SGID) == 0;
                if !owner && !only_clears_ids {
                    return Err(Errno::EPERM.into());
                }
                match acl::chmod(tx, self.meta.rule_book(), &node, mode).await? {
                    Ruled::Done(access) if access != node.access_acl() => {
                        patch = patch.set_acls(access, node.default_acl());
                    }
                    Ruled::Done(_) => {}
                    Ruled::Wants(rule) => return Ok(Ruled::Wants(rule)),
                }
                patch = patch.set_mode(mode);
            }
        }
        if let Some(time) = self.time(tx, &node, owner, set.atime, (node.peek().atime, FieldMask::ATIME)).await? {
            patch = patch.set_atime(time);
        }
        if let Some(time) = self.time(tx, &node, owner, set.mtime, (node.peek().mtime, FieldMask::MTIME)).await? {
            patch = patch.set_mtime(time);
        }
        if let Some(flags) = set.flags
            && flags != node.flags()
        {
            let privileged = flags & (flag::IMMUTABLE | flag::APPEND | flag::SKIP_TRASH) != 0;
            if checked && (privileged || !owner) {
                return Err(Errno::EPERM.into());
            }
            patch = patch.set_flags(flags);
        }
        if let Some(tier) = set.tier
            && tier != node.tier()
        {
            if checked && !owner {
                return Err(Errno::EPERM.into());
            }
            patch = patch.set_tier(tier);
        }
        let mut attr = *node.peek();
        if !patch.is_empty() {
            patch = patch.set_ctime(tx.now());
            tx.patch(self.ino, patch);
            patch.apply(&mut attr);
        }
        Ok(Ruled::Done(attr))
    }

    /// Doing it again has the same effect; but whoever gave the node away may not do it again.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Ruled<Attr>>> {
        let Some(node) = tx.load(AttrOf(self.ino)).await?.into_option() else { return Ok(Settled::NotApplied) };
        let attr = *node.peek();
        let given_away = self.set.uid == Some(attr.uid) && self.caller.uid != attr.uid && !self.caller.is_root();
        Ok(if given_away { Settled::Applied(Ruled::Done(attr)) } else { Settled::NotApplied })
    }
}

impl SetAttrs<'_> {
    /// The mode to set, with what a change of owner or group does to suid and sgid, even if both stay as they are.
    fn mode_after_chown(&self, node: &Seen) -> Option<Mode> {
        let mode = self.set.mode.map(|mode| mode & PERMISSION_BITS);
        if self.set.uid.is_none() && self.set.gid.is_none() {
            return mode;
        }
        let present = node.mode();
        let special = present & (SUID | SGID);
        let mode = mode.map(|mode| mode | special);
        if special == 0 || node.kind() == Kind::Directory {
            return mode;
        }
        let lost = if self.caller.is_root() && present & GROUP_EXECUTE == 0 { SUID } else { SUID | SGID };
        Some(mode.unwrap_or(present) & !lost)
    }

    /// The time to store, if it changes. The present one is guarded only where it decides.
    async fn time(
        &self,
        tx: &mut Tx<'_>,
        node: &Seen,
        owner: bool,
        wish: Option<SetTime>,
        (present, field): (Timestamp, FieldMask),
    ) -> Outcome<Option<Timestamp>> {
        let time = match wish {
            None => return Ok(None),
            Some(SetTime::At(time)) if time == present => {
                node.saw(field);
                return Ok(None);
            }
            Some(SetTime::At(time)) => {
                if node.uid() == 0 && !self.caller.is_root() {
                    return Err(Errno::EPERM.into());
                }
                time
            }
            Some(SetTime::Now) => tx.now(),
        };
        if !owner {
            permit(tx, node, self.caller, WRITE).await?;
        }
        Ok(Some(time))
    }
}

struct TouchAtime {
    ino: Ino,
    now: Timestamp,
}

impl Operation for TouchAtime {
    const NAME: &'static str = "touch_atime";
    type Output = Attr;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Attr> {
        let node = tx.load(AttrOf(self.ino)).await?.exists()?;
        let mut attr = *node.peek();
        if attr.atime < self.now {
            attr.atime = self.now;
            tx.patch(self.ino, AttrPatch::new().set_atime(self.now));
        }
        Ok(attr)
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Attr>> {
        Ok(match tx.load(AttrOf(self.ino)).await?.into_option() {
            Some(node) if node.peek().atime >= self.now => Settled::Applied(*node.peek()),
            _ => Settled::NotApplied,
        })
    }
}

struct CheckOpen<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    ino: Ino,
    flags: i32,
}

impl CheckOpen<'_> {
    fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY || self.flags & libc::O_TRUNC != 0
    }

    /// What the node itself, as it is stored, forbids, whoever asks.
    fn judge(&self, attr: &Attr) -> Outcome<()> {
        // It has no name, not even in the trash, and no handle but the one it is looked at for keeps it.
        if attr.nlink == 0 && !self.meta.is_open_twice(self.ino) {
            return Err(Errno::ENOENT.into());
        }
        let writes = self.writes();
        if writes && (attr.flags & flag::IMMUTABLE != 0 || attr.parent.is_hourly()) {
            return Err(Errno::EPERM.into());
        }
        let rewrites = self.flags & libc::O_APPEND == 0 || self.flags & libc::O_TRUNC != 0;
        if writes && rewrites && attr.flags & flag::APPEND != 0 {
            return Err(Errno::EPERM.into());
        }
        Ok(())
    }
}

impl Operation for CheckOpen<'_> {
    const NAME: &'static str = "open";
    type Output = Attr;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Attr> {
        let node = tx.load(AttrOf(self.ino)).await?.exists()?;
        let want = match self.flags & libc::O_ACCMODE {
            libc::O_RDONLY => READ,
            libc::O_WRONLY => WRITE,
            _ => READ | WRITE,
        };
        let want = if self.writes() { want | WRITE } else { want };
        permit(tx, &node, self.caller, want).await?;
        self.judge(node.peek())?;
        Ok(*node.peek())
    }
}

impl Meta {
    /// Changes attributes. Nothing is written when nothing changes. EPERM and EACCES by the rules of ownership,
    /// EPERM for a node in the trash.
    pub async fn setattr(&self, caller: &Caller, ino: Ino, set: &SetAttr) -> Outcome<Attr> {
        self.writable()?;
        self.run_ruled(&SetAttrs { meta: self, caller, ino, set }).await
    }

    /// Moves the access time forward; ctime stays.
    pub async fn touch_atime(&self, ino: Ino, now: Timestamp) -> Outcome<Attr> {
        self.writable()?;
        self.run(&TouchAtime { ino, now }).await
    }

    /// Whether a file may be opened with these open(2) flags, and its attributes. The handle is counted before
    /// (`open_file`). ENOENT also when the file is being let go: it has no name, and no other handle.
    pub async fn check_open(&self, caller: &Caller, ino: Ino, flags: i32) -> Outcome<Attr> {
        let op = CheckOpen { meta: self, caller, ino, flags };
        if op.writes() {
            self.writable()?;
        }
        if caller.check && !caller.is_root() {
            return self.run(&op).await;
        }
        // Nobody's permissions matter: a plain read is enough, which on some engines is cheaper than a transaction.
        let attr = self.stored_attr(ino).await?;
        op.judge(&attr)?;
        self.shown(ino, attr).await
    }

    /// As `check_open` for a file that is about to be read, with the list of its first chunk as of the same moment, which
    /// so costs no trip of its own. `None` where it would.
    pub async fn check_open_to_read(
        &self,
        caller: &Caller,
        ino: Ino,
        flags: i32,
    ) -> Outcome<(Attr, Option<Vec<Slice>>)> {
        let op = CheckOpen { meta: self, caller, ino, flags };
        if op.writes() || (caller.check && !caller.is_root()) {
            return Ok((self.check_open(caller, ino, flags).await?, None));
        }
        let (attr, first) = match self.stored_attr_and_chunk(ino, ChunkIndex(0)).await {
            // If it is the list, that concerns who reads it.
            Err(Stop::Fault(fault)) if fault.kind() == FaultKind::Corrupt => {
                return Ok((self.check_open(caller, ino, flags).await?, None));
            }
            looked => looked?,
        };
        op.judge(&attr)?;
        Ok((self.shown(ino, attr).await?, Some(first)))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Name;
    use crate::meta::ops::create::NewNode;
    use crate::meta::testing::volume;
    use std::sync::Arc;

    async fn node(meta: &Meta, kind: Kind, mode: Mode, uid: u32) -> Ino {
        let name = Name::entry(format!("{kind:?}{mode:o}{uid}{}", rand::random::<u64>()).as_bytes()).unwrap();
        let node = NewNode { kind, mode: mode & !0o6000, umask: 0, rdev: 0, target: None };
        let owner = Caller { uid, gid: uid, ..Caller::root() };
        let ino = meta.create(&owner, Ino::ROOT, &name, &node).await.unwrap().ino;
        meta.setattr(&Caller::root(), ino, &SetAttr { mode: Some(mode), ..SetAttr::default() }).await.unwrap();
        ino
    }

    fn user(uid: u32) -> Caller {
        Caller { uid, gid: uid, groups: Arc::new([77]), pid: 1, check: true }
    }

    #[tokio::test]
    async fn a_change_of_owner_clears_suid_and_sgid() {
        let meta = volume().await;
        let (root, owner) = (Caller::root(), user(9));
        let to_root = SetAttr { uid: Some(9), gid: Some(9), ..SetAttr::default() };
        for (kind, caller, before, after) in [
            (Kind::File, &root, 0o6755, 0o0755),
            (Kind::File, &root, 0o6745, 0o2745),
            (Kind::File, &root, 0o4745, 0o0745),
            (Kind::File, &owner, 0o6745, 0o0745),
            (Kind::File, &owner, 0o6755, 0o0755),
            (Kind::Directory, &root, 0o6777, 0o6777),
            (Kind::Directory, &owner, 0o6777, 0o6777),
        ] {
            let ino = node(&meta, kind, before, 9).await;
            let attr = meta.setattr(caller, ino, &to_root).await.unwrap();
            assert_eq!(attr.mode, after, "{kind:?} {before:o} by {}", caller.uid);
            // The kernel sends the mode it has cleared along; the node's own bits decide all the same.
            let ino = node(&meta, kind, before, 9).await;
            let with_mode = SetAttr { mode: Some(before & 0o777), ..to_root };
            assert_eq!(meta.setattr(caller, ino, &with_mode).await.unwrap().mode, after);
        }
    }

    #[tokio::test]
    async fn ownership_decides_who_may_change_what() {
        let meta = volume().await;
        let ino = node(&meta, Kind::File, 0o644, 9).await;
        let set = async |caller: &Caller, set: SetAttr| meta.setattr(caller, ino, &set).await.map_err(|s| s.errno());
        let none = SetAttr::default();
        let (mode, uid, gid) = (
            |m| SetAttr { mode: Some(m), ..none },
            |u| SetAttr { uid: Some(u), ..none },
            |g| SetAttr { gid: Some(g), ..none },
        );
        assert_eq!(set(&user(5), mode(0o600)).await, Err(Errno::EPERM));
        assert_eq!(set(&user(5), gid(9)).await, Err(Errno::EPERM));
        assert_eq!(set(&user(9), uid(5)).await, Err(Errno::EPERM));
        assert_eq!(set(&user(9), gid(5)).await, Err(Errno::EPERM), "not a member");
        assert_eq!(set(&user(9), gid(77)).await.unwrap().gid, 77, "a supplementary group");
        assert_eq!(set(&user(9), mode(0o2755)).await.unwrap().mode, 0o2755);
        let outside = Caller { groups: Arc::new([]), ..user(9) };
        assert_eq!(set(&outside, mode(0o2750)).await.unwrap().mode, 0o750, "sgid is for members");
        assert_eq!(set(&Caller::root(), mode(0o4750)).await.unwrap().mode, 0o4750);
        assert_eq!(set(&user(5), mode(0o750)).await.unwrap().mode, 0o750, "a write clears suid, whoever writes");
        let flags = |f| SetAttr { flags: Some(f), ..none };
        assert_eq!(set(&user(9), flags(flag::IMMUTABLE)).await, Err(Errno::EPERM));
        assert_eq!(set(&Caller::root(), flags(flag::IMMUTABLE)).await.unwrap().flags, flag::IMMUTABLE);
        assert_eq!(set(&Caller::root(), SetAttr { tier: Some(2), ..none }).await.unwrap().tier, 2);
    }

    #[tokio::test]
    async fn times_need_the_owner_or_write_permission() {
        let meta = volume().await;
        let ino = node(&meta, Kind::File, 0o642, 9).await;
        let set = async |caller: &Caller, atime| {
            let set = SetAttr { atime: Some(atime), ..SetAttr::default() };
            meta.setattr(caller, ino, &set).await.map(|attr| attr.atime).map_err(|stop| stop.errno())
        };
        let then = Timestamp::new(1000, 5);
        assert_eq!(set(&user(9), SetTime::At(then)).await, Ok(then));
        assert!(set(&user(5), SetTime::Now).await.unwrap() > then, "others may write");
        let denied = Caller { gid: 9, ..user(5) };
        assert_eq!(set(&denied, SetTime::Now).await, Err(Errno::EACCES));
        let early = Timestamp::new(-5, 0);
        assert_eq!(set(&user(9), SetTime::At(early)).await, Ok(early));
        let of_root = node(&meta, Kind::File, 0o666, 0).await;
        let explicit = SetAttr { mtime: Some(SetTime::At(then)), ..SetAttr::default() };
        assert_eq!(meta.setattr(&user(5), of_root, &explicit).await.unwrap_err().errno(), Errno::EPERM);
    }

    #[tokio::test]
    async fn nothing_changed_is_nothing_written() {
        let meta = volume().await;
        let ino = node(&meta, Kind::File, 0o644, 9).await;
        let before = meta.getattr(ino).await.unwrap();
        let same = SetAttr {
            mode: Some(0o644),
            uid: Some(9),
            gid: Some(9),
            atime: Some(SetTime::At(before.atime)),
            flags: Some(0),
            tier: Some(0),
            mtime: None,
        };
        assert_eq!(meta.setattr(&Caller::root(), ino, &same).await.unwrap(), before);
        assert_eq!(meta.getattr(ino).await.unwrap(), before);
        let changed = meta.setattr(&Caller::root(), ino, &SetAttr { mode: Some(0o600), ..same }).await.unwrap();
        assert!(changed.ctime > before.ctime && changed.mtime == before.mtime);
    }

    #[tokio::test]
    async fn open_respects_flags_and_permissions() {
        let meta = volume().await;
        let ino = node(&meta, Kind::File, 0o640, 9).await;
        let open =
            async |caller: &Caller, flags| meta.check_open(caller, ino, flags).await.map(|_| ()).map_err(|s| s.errno());
        assert_eq!(open(&user(5), libc::O_RDONLY).await, Err(Errno::EACCES));
        assert_eq!(open(&Caller { gid: 9, ..user(5) }, libc::O_RDONLY).await, Ok(()));
        assert_eq!(open(&Caller { gid: 9, ..user(5) }, libc::O_RDWR).await, Err(Errno::EACCES));
        let root = Caller::root();
        meta.setattr(&root, ino, &SetAttr { flags: Some(flag::APPEND), ..SetAttr::default() }).await.unwrap();
        assert_eq!(open(&root, libc::O_WRONLY).await, Err(Errno::EPERM));
        assert_eq!(open(&root, libc::O_WRONLY | libc::O_APPEND).await, Ok(()));
        assert_eq!(open(&root, libc::O_WRONLY | libc::O_APPEND | libc::O_TRUNC).await, Err(Errno::EPERM));
        meta.setattr(&root, ino, &SetAttr { flags: Some(flag::IMMUTABLE), ..SetAttr::default() }).await.unwrap();
        assert_eq!(open(&root, libc::O_WRONLY | libc::O_APPEND).await, Err(Errno::EPERM));
        assert_eq!(open(&root, libc::O_RDONLY).await, Ok(()));
    }

    #[tokio::test]
    async fn access_times_only_move_forward() {
        let meta = volume().await;
        let ino = node(&meta, Kind::File, 0o644, 9).await;
        let before = meta.getattr(ino).await.unwrap();
        let at = |seconds| Timestamp::new(before.ctime.seconds + seconds, 0);
        let touched = meta.touch_atime(ino, at(10)).await.unwrap();
        assert_eq!((touched.atime, touched.ctime), (at(10), before.ctime));
        assert_eq!(meta.touch_atime(ino, at(5)).await.unwrap().atime, at(10));
    }
}
