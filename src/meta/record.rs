//! Records and keys: what the metadata of a volume is made of, independent of any engine.
//!
//! A `Key` names one record, a `Record` is its value. Engines translate both to their own layout (hashes, rows,
//! ordered keys) and hold no opinion about what they mean. Two keys are questions rather than records:
//! `AnyDentry` ("does this directory have an entry?"), so that emptiness is guarded like any other read, and the
//! collecting keys (`LinkParents`, `Xattrs`, `Flocks`, `Plocks`), which stand for all parts of one inode at once.

use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Ino, Kind, Name, SessionId, Slice, SliceId};
use bytes::Bytes;

/// Names one record.
#[derive(Clone, Debug, PartialEq, Eq, Hash)]
pub enum Key {
    /// The volume's format document.
    Setting,
    Counter(Counter),
    Attr(Ino),
    Dentry(Ino, Name),
    /// Any one entry of a directory; absent when the directory is empty. Loads answer with some entry. Never written.
    AnyDentry(Ino),
    Symlink(Ino),
    /// All link parents of an inode with their counts. `Delete` drops them all; single counts change by
    /// `Change::AddLinkParent`. SQL engines derive the record from the entries (`spec/metadata.md` 1.5).
    LinkParents(Ino),
    Chunk(Ino, ChunkIndex),
    /// How often a slice is referenced. Loads answer `None` when the engine has no record, which in the Redis
    /// layout means one reference (`spec/metadata.md` 1.7).
    SliceRef(SliceId, u32),
    Xattr(Ino, Name),
    /// All extended attributes of an inode. `Delete` drops them all. Never put.
    Xattrs(Ino),
    AclRule(u32),
    DirStat(Ino),
    Quota(QuotaOwner),
    Session(SessionId),
    Sustained(SessionId, Ino),
    /// A deleted file whose data is still to be removed: inode and length at deletion.
    DeletedFile(Ino, u64),
    /// Slices replaced by a compaction, kept until the trash expires: new slice id and time of the compaction (s).
    DelayedSlices(SliceId, i64),
    /// All flock holders of an inode. Changed by `Change::SetFlock`.
    Flocks(Ino),
    /// All POSIX lock holders of an inode. Changed by `Change::SetPlock`.
    Plocks(Ino),
}

/// The value of one record. Which variant belongs to which key is part of the seam: engines answer a key of one
/// family with the record of that family.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Record {
    /// `Key::Setting`: the JSON text as stored. `Key::Symlink`: the target. `Key::Xattr`: the value.
    Bytes(Bytes),
    /// `Key::Counter`, `Key::SliceRef` (number of references, 1 based), `Key::Sustained` (always 1),
    /// `Key::DeletedFile` (time of deletion, s).
    Number(i64),
    Attr(Attr),
    /// `Key::Dentry`, `Key::AnyDentry`.
    Dentry(Dentry),
    /// `Key::LinkParents`: (parent, count), by parent. Counts that fell to zero may still be listed.
    LinkParents(Vec<(Ino, i64)>),
    /// `Key::Chunk`: slice records, oldest first. `Key::DelayedSlices`: only `id` and `size` are meaningful.
    Slices(Vec<Slice>),
    /// `Key::Xattrs`, by name.
    Xattrs(Vec<(Name, Bytes)>),
    AclRule(AclRule),
    DirStat(DirStat),
    Quota(Quota),
    Session(Session),
    /// `Key::Flocks`, by (session, owner).
    Flocks(Vec<FlockHolder>),
    /// `Key::Plocks`, by (session, owner).
    Plocks(Vec<PlockHolder>),
}

/// What a directory knows of an entry.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Dentry {
    pub kind: Kind,
    pub ino: Ino,
}

/// The counters of a volume. Ids are handed out by `Engine::allocate`, which hides that Redis stores the last id
/// used and the others the first one free (`spec/metadata.md` 1.2).
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Counter {
    NextInode,
    NextSlice,
    NextSession,
    NextTrash,
    AclMaxId,
    /// Bytes, as accounted (`align4k`).
    UsedSpace,
    TotalInodes,
    LastCleanupSessions,
    LastCleanupFiles,
    LastCleanupTrash,
    /// A time in spite of its stored name `nextCleanupSlices`.
    LastCleanupSlices,
}

/// Statistics of the direct children of one directory (`spec/metadata.md` 1.15); as a change, what to add.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct DirStat {
    /// Bytes of regular files.
    pub length: i64,
    pub space: i64,
    pub inodes: i64,
}

/// Whose quota it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub enum QuotaOwner {
    Directory(Ino),
    User(u32),
    Group(u32),
}

/// Limits (-1: none) and usage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Quota {
    pub max_space: i64,
    pub max_inodes: i64,
    pub used_space: i64,
    pub used_inodes: i64,
}

/// One mounted client as the others see it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Session {
    /// Unix seconds; later than this the session counts as dead.
    pub expire: i64,
    /// The session-info JSON (`spec/metadata.md` section 5); empty when there is none.
    pub info: Bytes,
}

/// One holder of a flock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FlockHolder {
    pub session: SessionId,
    pub owner: u64,
    pub exclusive: bool,
}

/// One holder of POSIX locks with its ranges, sorted by start and not overlapping.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct PlockHolder {
    pub session: SessionId,
    pub owner: u64,
    pub ranges: Vec<PlockRange>,
}

/// One locked range (`spec/metadata.md` section 8).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct PlockRange {
    pub exclusive: bool,
    pub pid: u32,
    pub start: u64,
    /// Inclusive; `i64::MAX` reaches to the end of the file.
    pub end: u64,
}

/// Size in bytes of a stored POSIX lock range.
pub const PLOCK_RANGE_BYTES: usize = 24;
/// Size in bytes of an item of a delayed-slices record (`spec/metadata.md` 1.9).
pub const DELAYED_SLICE_BYTES: usize = 12;

impl PlockRange {
    pub fn encode_list(ranges: &[PlockRange]) -> Vec<u8> {
        let mut out = Vec::with_capacity(ranges.len() * PLOCK_RANGE_BYTES);
        for range in ranges {
            // The numbers of Linux: F_RDLCK 0, F_WRLCK 1.
            out.extend(u32::from(range.exclusive).to_be_bytes());
            out.extend(range.pid.to_be_bytes());
            out.extend(range.start.to_be_bytes());
            out.extend(range.end.to_be_bytes());
        }
        out
    }

    /// `None` when the length is not a multiple of 24, a type is neither read nor write, or a range ends before it begins.
    pub fn decode_list(bytes: &[u8]) -> Option<Vec<PlockRange>> {
        let (records, rest) = bytes.as_chunks::<PLOCK_RANGE_BYTES>();
        if !rest.is_empty() {
            return None;
        }
        let number = |b: &[u8]| b.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        records
            .iter()
            .map(|r| {
                Some(PlockRange {
                    exclusive: match number(&r[0..4]) {
                        0 => false,
                        1 => true,
                        _ => return None,
                    },
                    pid: number(&r[4..8]) as u32,
                    start: number(&r[8..16]),
                    end: number(&r[16..24]),
                })
            })
            .map(|range: Option<PlockRange>| range.filter(|range| range.start <= range.end))
            .collect()
    }
}

/// The stored form of a delayed-slices record: (u64 id, u32 size) each.
pub fn encode_delayed(slices: &[Slice]) -> Vec<u8> {
    slices.iter().flat_map(|s| s.id.0.to_be_bytes().into_iter().chain(s.size.to_be_bytes())).collect()
}

/// `None` when the length is not a multiple of 12.
pub fn decode_delayed(bytes: &[u8]) -> Option<Vec<Slice>> {
    let (items, rest) = bytes.as_chunks::<DELAYED_SLICE_BYTES>();
    rest.is_empty().then(|| {
        items
            .iter()
            .map(|item| {
                let id = u64::from_be_bytes(item[..8].try_into().expect("8 of 12 bytes"));
                let size = u32::from_be_bytes(item[8..].try_into().expect("4 of 12 bytes"));
                Slice { pos: 0, id: SliceId(id), size, off: 0, len: size }
            })
            .collect()
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lock_ranges_have_the_stored_form() {
        // The sample of spec/metadata.md section 8.
        let ranges = vec![
            PlockRange { exclusive: true, pid: 4980, start: 50, end: 149 },
            PlockRange { exclusive: false, pid: 4980, start: 200, end: 249 },
        ];
        let bytes = PlockRange::encode_list(&ranges);
        assert_eq!(bytes[..24], [0, 0, 0, 1, 0, 0, 0x13, 0x74, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 149]);
        assert_eq!(PlockRange::decode_list(&bytes), Some(ranges));
        assert_eq!(PlockRange::decode_list(&bytes[1..]), None);
        assert_eq!(PlockRange::decode_list(&[2; 24]), None);
        let backwards = PlockRange { exclusive: true, pid: 1, start: 5, end: 4 };
        assert_eq!(PlockRange::decode_list(&PlockRange::encode_list(&[backwards])), None);
    }

    #[test]
    fn delayed_slices_have_the_stored_form() {
        let slices = vec![Slice { pos: 0, id: SliceId(5), size: 9, off: 0, len: 9 }];
        assert_eq!(encode_delayed(&slices), [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9]);
        assert_eq!(decode_delayed(&encode_delayed(&slices)), Some(slices));
        assert_eq!(decode_delayed(&[0; 13]), None);
    }
}
