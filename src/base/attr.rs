//! `Attr`: the attributes of a node, their stored byte form (`spec/metadata.md` 1.3), and changes to single fields.
//!
//! `FieldMask` names fields, both for guards ("these fields must still hold") and for patches ("these fields are
//! set"). A patch touches nothing but its fields, so patches to different fields never undo one another.

use super::{Ino, Kind, Mode, Timestamp};
use std::fmt;
use std::ops::{BitOr, BitOrAssign};

/// Attributes of one node.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Attr {
    pub flags: u8,
    pub kind: Kind,
    /// The twelve permission bits, without the kind.
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub nlink: u32,
    /// Bytes; 4096 for directories, the target's length for symlinks, 0 for other special nodes.
    pub length: u64,
    pub rdev: u32,
    /// `Ino::MANY` once a non-directory has had a second link.
    pub parent: Ino,
    /// 0: none.
    pub access_acl: u32,
    /// 0: none.
    pub default_acl: u32,
    pub tier: u8,
}

/// Bytes of the encoded attributes before the optional tail (ACL ids, tier, padding).
pub const ATTR_FIXED_BYTES: usize = 71;

/// Longer than any file can be: chunk indexes have 32 bits. A record that says more is damaged, and a length that fits
/// 63 bits lets every sum and difference of lengths be made without a thought.
pub const LENGTH_BYTES_POSSIBLE: u64 = 1 << 58;

/// Where the fields lie in the stored form; engines that patch bytes in place need to know.
pub mod offset {
    pub const FLAGS: usize = 0;
    pub const KIND_MODE: usize = 1;
    pub const UID: usize = 3;
    pub const GID: usize = 7;
    pub const ATIME: usize = 11;
    pub const MTIME: usize = 23;
    pub const CTIME: usize = 35;
    pub const NLINK: usize = 47;
    pub const LENGTH: usize = 51;
    pub const RDEV: usize = 59;
    pub const PARENT: usize = 63;
}

impl Attr {
    /// The stored form of Redis and TKV records; always ends in one surplus zero byte.
    pub fn encode(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(ATTR_FIXED_BYTES + 10);
        out.push(self.flags);
        out.extend((u16::from(self.kind.code()) << 12 | (self.mode & 0o7777)).to_be_bytes());
        out.extend(self.uid.to_be_bytes());
        out.extend(self.gid.to_be_bytes());
        for time in [self.atime, self.mtime, self.ctime] {
            out.extend(time.seconds.to_be_bytes());
            out.extend(time.nanos.to_be_bytes());
        }
        out.extend(self.nlink.to_be_bytes());
        out.extend(self.length.to_be_bytes());
        out.extend(self.rdev.to_be_bytes());
        out.extend(self.parent.0.to_be_bytes());
        debug_assert_eq!(out.len(), ATTR_FIXED_BYTES);
        out.extend(self.encode_tail());
        out
    }

    /// What follows the fixed part: ACL ids if any, tier if any, and the padding byte.
    pub fn encode_tail(&self) -> Vec<u8> {
        let mut out = Vec::with_capacity(10);
        if self.access_acl != 0 || self.default_acl != 0 {
            out.extend(self.access_acl.to_be_bytes());
            out.extend(self.default_acl.to_be_bytes());
        }
        if self.tier != 0 {
            out.push(self.tier);
        }
        out.push(0);
        out
    }

    /// Reads every historic variant: 63 bytes are needed, later fields default to zero.
    /// `None` when the record is too short, names an unknown kind or says an impossible length.
    pub fn decode(bytes: &[u8]) -> Option<Attr> {
        let mut rest = Reader(bytes);
        let flags = rest.u8()?;
        let kind_mode = rest.u16()?;
        let mut attr = Attr {
            flags,
            kind: Kind::from_code((kind_mode >> 12) as u8)?,
            mode: kind_mode & 0o7777,
            uid: rest.u32()?,
            gid: rest.u32()?,
            atime: rest.time()?,
            mtime: rest.time()?,
            ctime: rest.time()?,
            nlink: rest.u32()?,
            length: rest.u64()?,
            rdev: rest.u32()?,
            parent: Ino::MANY,
            access_acl: 0,
            default_acl: 0,
            tier: 0,
        };
        if let Some(parent) = rest.u64() {
            attr.parent = Ino(parent);
            if rest.0.len() >= 8 {
                attr.access_acl = rest.u32()?;
                attr.default_acl = rest.u32()?;
            }
            attr.tier = rest.u8().unwrap_or(0);
        }
        attr.is_possible().then_some(attr)
    }

    /// What no client ever wrote is damage, even if it decodes.
    pub fn is_possible(&self) -> bool {
        self.length <= LENGTH_BYTES_POSSIBLE
    }

    pub fn is_dir(&self) -> bool {
        self.kind == Kind::Directory
    }

    pub fn is_file(&self) -> bool {
        self.kind == Kind::File
    }

    /// Space this node is accounted as (`spec/metadata.md` 1.15).
    pub fn space(&self) -> u64 {
        if self.is_file() { super::align4k(self.length) } else { 4096 }
    }

    /// The fields of `mask` are equal in both.
    pub fn same(&self, other: &Attr, mask: FieldMask) -> bool {
        let differs = |field: FieldMask, equal: bool| mask.has(field) && !equal;
        !(differs(FieldMask::FLAGS, self.flags == other.flags)
            || differs(FieldMask::KIND, self.kind == other.kind)
            || differs(FieldMask::MODE, self.mode == other.mode)
            || differs(FieldMask::UID, self.uid == other.uid)
            || differs(FieldMask::GID, self.gid == other.gid)
            || differs(FieldMask::ATIME, self.atime == other.atime)
            || differs(FieldMask::MTIME, self.mtime == other.mtime)
            || differs(FieldMask::CTIME, self.ctime == other.ctime)
            || differs(FieldMask::NLINK, self.nlink == other.nlink)
            || differs(FieldMask::LENGTH, self.length == other.length)
            || differs(FieldMask::RDEV, self.rdev == other.rdev)
            || differs(FieldMask::PARENT, self.parent == other.parent)
            || differs(FieldMask::ACLS, (self.access_acl, self.default_acl) == (other.access_acl, other.default_acl))
            || differs(FieldMask::TIER, self.tier == other.tier))
    }
}

struct Reader<'a>(&'a [u8]);

impl Reader<'_> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|b| b[0])
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn u32(&mut self) -> Option<u32> {
        self.take().map(u32::from_be_bytes)
    }

    fn u64(&mut self) -> Option<u64> {
        self.take().map(u64::from_be_bytes)
    }

    fn time(&mut self) -> Option<Timestamp> {
        Some(Timestamp { seconds: self.take().map(i64::from_be_bytes)?, nanos: self.u32()? })
    }
}

/// A set of attribute fields.
#[derive(Clone, Copy, Default, PartialEq, Eq, Hash)]
pub struct FieldMask(pub u32);

impl FieldMask {
    pub const NONE: FieldMask = FieldMask(0);
    pub const FLAGS: FieldMask = FieldMask(1);
    pub const KIND: FieldMask = FieldMask(1 << 1);
    pub const MODE: FieldMask = FieldMask(1 << 2);
    pub const UID: FieldMask = FieldMask(1 << 3);
    pub const GID: FieldMask = FieldMask(1 << 4);
    pub const ATIME: FieldMask = FieldMask(1 << 5);
    pub const MTIME: FieldMask = FieldMask(1 << 6);
    pub const CTIME: FieldMask = FieldMask(1 << 7);
    pub const NLINK: FieldMask = FieldMask(1 << 8);
    pub const LENGTH: FieldMask = FieldMask(1 << 9);
    pub const RDEV: FieldMask = FieldMask(1 << 10);
    pub const PARENT: FieldMask = FieldMask(1 << 11);
    /// Both ACL ids.
    pub const ACLS: FieldMask = FieldMask(1 << 12);
    pub const TIER: FieldMask = FieldMask(1 << 13);
    pub const ALL: FieldMask = FieldMask((1 << 14) - 1);

    /// Every field of `other` is in `self`.
    pub fn has(self, other: FieldMask) -> bool {
        self.0 & other.0 == other.0
    }

    pub fn is_empty(self) -> bool {
        self.0 == 0
    }
}

impl BitOr for FieldMask {
    type Output = FieldMask;
    fn bitor(self, other: FieldMask) -> FieldMask {
        FieldMask(self.0 | other.0)
    }
}

impl BitOrAssign for FieldMask {
    fn bitor_assign(&mut self, other: FieldMask) {
        self.0 |= other.0;
    }
}

impl fmt::Debug for FieldMask {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let names = [
            "flags", "kind", "mode", "uid", "gid", "atime", "mtime", "ctime", "nlink", "length", "rdev", "parent",
            "acls", "tier",
        ];
        f.debug_set().entries(names.iter().enumerate().filter(|(i, _)| self.0 >> i & 1 == 1).map(|(_, n)| n)).finish()
    }
}

/// A change to some fields of one node: fields set outright, and the two relative changes (`nlink` and
/// `length_at_least`) that never conflict among themselves. A patch of a node that is not there is a conflict.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct AttrPatch {
    /// Which of the fields below are set. Never `KIND`, `NLINK`; `LENGTH` excludes `length_at_least`.
    pub mask: FieldMask,
    pub flags: u8,
    pub mode: Mode,
    pub uid: u32,
    pub gid: u32,
    pub atime: Timestamp,
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub length: u64,
    pub parent: Ino,
    pub access_acl: u32,
    pub default_acl: u32,
    pub tier: u8,
    /// Added to the link count.
    pub nlink: i32,
    /// The length grows to this many bytes if it is smaller.
    pub length_at_least: Option<u64>,
    /// The times need not be set where somebody else has set mtime to later than this meanwhile. An engine that would
    /// have to wait for each other's commits otherwise leaves them; the others need not look.
    pub fresh_since: Option<Timestamp>,
}

macro_rules! setters {
    ($($(#[$doc:meta])* $name:ident: $field:ident $type:ty => $mask:ident),* $(,)?) => {
        $($(#[$doc])* pub fn $name(mut self, value: $type) -> AttrPatch {
            self.$field = value;
            self.mask |= FieldMask::$mask;
            self
        })*
    };
}

impl AttrPatch {
    pub fn new() -> AttrPatch {
        AttrPatch::default()
    }

    setters! {
        set_flags: flags u8 => FLAGS,
        set_mode: mode Mode => MODE,
        set_uid: uid u32 => UID,
        set_gid: gid u32 => GID,
        set_atime: atime Timestamp => ATIME,
        set_mtime: mtime Timestamp => MTIME,
        set_ctime: ctime Timestamp => CTIME,
        set_length: length u64 => LENGTH,
        set_parent: parent Ino => PARENT,
        set_tier: tier u8 => TIER,
    }

    pub fn set_acls(mut self, access: u32, default: u32) -> AttrPatch {
        (self.access_acl, self.default_acl) = (access, default);
        self.mask |= FieldMask::ACLS;
        self
    }

    pub fn add_nlink(mut self, delta: i32) -> AttrPatch {
        self.nlink += delta;
        self
    }

    pub fn grow_to(mut self, length: u64) -> AttrPatch {
        self.length_at_least = Some(self.length_at_least.map_or(length, |l| l.max(length)));
        self
    }

    /// "touch": mtime and ctime are `now`.
    pub fn touch(self, now: Timestamp) -> AttrPatch {
        self.set_mtime(now).set_ctime(now)
    }

    /// As `touch`, of a node that is fresh enough if its mtime is later than `since` by then.
    pub fn touch_unless_fresh(self, now: Timestamp, since: Timestamp) -> AttrPatch {
        AttrPatch { fresh_since: Some(since), ..self.touch(now) }
    }

    /// Since when the node would have to be fresh for the patch to be left out, if it may be at all.
    pub fn left_if_fresh_since(&self) -> Option<Timestamp> {
        let touches_only = self.mask == FieldMask::MTIME | FieldMask::CTIME && self.nlink == 0;
        self.fresh_since.filter(|_| touches_only && self.length_at_least.is_none())
    }

    pub fn is_empty(&self) -> bool {
        self.mask.is_empty() && self.nlink == 0 && self.length_at_least.is_none()
    }

    /// What a node looks like afterwards.
    pub fn apply(&self, attr: &mut Attr) {
        let set = |field| self.mask.has(field);
        if set(FieldMask::FLAGS) {
            attr.flags = self.flags;
        }
        if set(FieldMask::MODE) {
            attr.mode = self.mode;
        }
        if set(FieldMask::UID) {
            attr.uid = self.uid;
        }
        if set(FieldMask::GID) {
            attr.gid = self.gid;
        }
        if set(FieldMask::ATIME) {
            attr.atime = self.atime;
        }
        if set(FieldMask::MTIME) {
            attr.mtime = self.mtime;
        }
        if set(FieldMask::CTIME) {
            attr.ctime = self.ctime;
        }
        if set(FieldMask::LENGTH) {
            attr.length = self.length;
        }
        if set(FieldMask::PARENT) {
            attr.parent = self.parent;
        }
        if set(FieldMask::ACLS) {
            (attr.access_acl, attr.default_acl) = (self.access_acl, self.default_acl);
        }
        if set(FieldMask::TIER) {
            attr.tier = self.tier;
        }
        attr.nlink = attr.nlink.saturating_add_signed(self.nlink);
        attr.length = attr.length.max(self.length_at_least.unwrap_or(0));
    }

    /// Both patches in one: what `later` sets wins.
    pub fn merge(&mut self, later: &AttrPatch) {
        let mut merged = Attr {
            flags: self.flags,
            kind: Kind::File,
            mode: self.mode,
            uid: self.uid,
            gid: self.gid,
            atime: self.atime,
            mtime: self.mtime,
            ctime: self.ctime,
            nlink: 0,
            length: self.length,
            rdev: 0,
            parent: self.parent,
            access_acl: self.access_acl,
            default_acl: self.default_acl,
            tier: self.tier,
        };
        AttrPatch { nlink: 0, length_at_least: None, ..*later }.apply(&mut merged);
        *self = AttrPatch {
            mask: self.mask | later.mask,
            flags: merged.flags,
            mode: merged.mode,
            uid: merged.uid,
            gid: merged.gid,
            atime: merged.atime,
            mtime: merged.mtime,
            ctime: merged.ctime,
            length: merged.length,
            parent: merged.parent,
            access_acl: merged.access_acl,
            default_acl: merged.default_acl,
            tier: merged.tier,
            nlink: self.nlink + later.nlink,
            length_at_least: self.length_at_least.max(later.length_at_least),
            // What one of them must set is set.
            fresh_since: self.fresh_since.and(later.fresh_since),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn root() -> Attr {
        let time = Timestamp::new(0x0102_0304_0506_0708, 0x0a0b_0c0d);
        Attr {
            flags: 0,
            kind: Kind::Directory,
            mode: 0o777,
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
            ctime: time,
            nlink: 2,
            length: 4096,
            rdev: 0,
            parent: Ino::ROOT,
            access_acl: 0,
            default_acl: 0,
            tier: 0,
        }
    }

    #[test]
    fn the_stored_sizes_are_72_73_80_and_81() {
        let plain = root();
        let bytes = plain.encode();
        assert_eq!(bytes.len(), 72);
        assert_eq!(bytes[..3], [0, 0x21, 0xff]);
        assert_eq!(
            bytes[offset::NLINK..],
            [0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1, 0]
        );
        for (attr, size) in [
            (Attr { tier: 2, ..plain }, 73),
            (Attr { access_acl: 3, ..plain }, 80),
            (Attr { default_acl: 3, tier: 1, ..plain }, 81),
            (plain, 72),
        ] {
            assert_eq!(attr.encode().len(), size);
            assert_eq!(Attr::decode(&attr.encode()), Some(attr));
        }
        assert!(Attr { tier: 2, ..plain }.encode().ends_with(&[1, 2, 0]));
    }

    #[test]
    fn old_records_without_parent_are_read() {
        let bytes = root().encode();
        assert_eq!(Attr::decode(&bytes[..64]), Some(Attr { parent: Ino::MANY, ..root() }));
        assert_eq!(Attr::decode(&bytes[..62]), None);
        let mut unknown = bytes;
        unknown[1] = 0xF1;
        assert_eq!(Attr::decode(&unknown), None);
        let long = |length| Attr::decode(&Attr { length, ..root() }.encode());
        assert!(long(LENGTH_BYTES_POSSIBLE).is_some());
        assert_eq!([long(LENGTH_BYTES_POSSIBLE + 1), long(u64::MAX)], [None, None]);
    }

    #[test]
    fn merged_patches_equal_patches_in_turn() {
        let (t1, t2) = (Timestamp::new(1, 1), Timestamp::new(2, 2));
        let first = AttrPatch::new().touch(t1).add_nlink(1).set_mode(0o600).grow_to(10);
        let second = AttrPatch::new().set_ctime(t2).add_nlink(-2).set_parent(Ino(9)).grow_to(5000);
        let (mut in_turn, mut at_once) = (root(), root());
        first.apply(&mut in_turn);
        second.apply(&mut in_turn);
        let mut merged = first;
        merged.merge(&second);
        merged.apply(&mut at_once);
        assert_eq!(in_turn, at_once);
        assert!(!in_turn.same(&root(), FieldMask::MTIME));
        assert!(in_turn.same(&root(), FieldMask::UID | FieldMask::KIND));
    }
}
