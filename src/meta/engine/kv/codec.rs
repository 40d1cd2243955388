//! The layout of ordered key-value stores (`spec/metadata.md` section 4): what a record is called and what it holds.
//! Bytes only; nothing here talks to a store, and the prefix of a volume is the back end's.
//!
//! Inode numbers inside keys are little endian, which spreads neighbours over the key space; every other number in a
//! key is big endian. Counters that are added to, reference counts and link parents are little endian values, times
//! big endian. Families that begin with the same letter are told apart by their length.
//!
//! Reading is tolerant where the format is (attributes of every age, counts that are not there); whatever else does not
//! decode is `None` here and `Fault::corrupt` with the name of the record above.

use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Ino, Kind, Name, SessionId, Slice, SliceId};
use crate::meta::engine::Scan;
use crate::meta::record::{
    Counter, Dentry, DirStat, FlockHolder, Key, PlockHolder, PlockRange, Quota, QuotaOwner, Record, Session,
    decode_delayed, encode_delayed,
};
use bytes::Bytes;

/// Bytes of a flock holder: session, owner, a letter.
const FLOCK_BYTES: usize = 17;
/// The value of a sustained inode.
const SUSTAINED: &[u8] = &[1];

/// Where a record lies.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Place {
    Key(Vec<u8>),
    /// A session: the time it ends, and what it says of itself.
    Pair(Vec<u8>, Vec<u8>),
    /// All keys that begin so.
    All(Vec<u8>),
    /// Any one key that begins so.
    Any(Vec<u8>),
}

/// A key and its new value; `None` removes it.
pub(super) type Write = (Vec<u8>, Option<Vec<u8>>);

fn of_inode(ino: Ino, letter: u8, rest: &[u8]) -> Vec<u8> {
    let mut key = Vec::with_capacity(10 + rest.len());
    key.push(b'A');
    key.extend(ino.0.to_le_bytes());
    key.push(letter);
    key.extend(rest);
    key
}

fn joined(parts: &[&[u8]]) -> Vec<u8> {
    parts.concat()
}

pub(super) fn attr_key(ino: Ino) -> Vec<u8> {
    of_inode(ino, b'I', &[])
}

pub(super) fn dentries_prefix(dir: Ino) -> Vec<u8> {
    of_inode(dir, b'D', &[])
}

pub(super) fn link_parent_key(ino: Ino, parent: Ino) -> Vec<u8> {
    of_inode(ino, b'P', &parent.0.to_le_bytes())
}

pub(super) fn chunk_key(ino: Ino, index: ChunkIndex) -> Vec<u8> {
    of_inode(ino, b'C', &index.0.to_be_bytes())
}

pub(super) fn slice_ref_key(id: SliceId, size: u32) -> Vec<u8> {
    joined(&[b"K", &id.0.to_be_bytes(), &size.to_be_bytes()])
}

pub(super) fn session_info_key(session: SessionId) -> Vec<u8> {
    joined(&[b"SI", &session.0.to_be_bytes()])
}

pub(super) fn counter_key(counter: Counter) -> Vec<u8> {
    joined(&[b"C", counter_name(counter).as_bytes()])
}

/// What a key of a collecting family belongs to: the attributes of its inode. Whoever removes them or decides on all
/// keys of the family, and whoever adds a key, meet there where a back end cannot compare ranges.
#[cfg_attr(not(feature = "tikv"), allow(dead_code, reason = "etcd compares ranges"))]
pub(super) fn anchor(key: &[u8]) -> Option<Vec<u8>> {
    match (key.first()?, key.get(9)?) {
        (b'A', b'D' | b'X' | b'P') => Some(joined(&[&key[..9], b"I"])),
        _ => None,
    }
}

fn counter_name(counter: Counter) -> &'static str {
    match counter {
        Counter::NextInode => "nextInode",
        Counter::NextSlice => "nextChunk",
        Counter::NextSession => "nextSession",
        Counter::NextTrash => "nextTrash",
        Counter::AclMaxId => "aclMaxId",
        Counter::UsedSpace => "usedSpace",
        Counter::TotalInodes => "totalInodes",
        Counter::LastCleanupSessions => "lastCleanupSessions",
        Counter::LastCleanupFiles => "lastCleanupFiles",
        Counter::LastCleanupTrash => "lastCleanupTrash",
        Counter::LastCleanupSlices => "nextCleanupSlices",
    }
}

/// How much larger the stored number is than the last id handed out, which is what the seam speaks of: inode and
/// slice counters hold the first number that is free.
fn counter_shift(counter: Counter) -> i64 {
    match counter {
        Counter::NextInode | Counter::NextSlice => 1,
        _ => 0,
    }
}

/// What a counter that was never written counts as: inode 1 is the root's.
pub(super) fn counter_start(counter: Counter) -> i64 {
    i64::from(counter == Counter::NextInode)
}

/// Times are big endian, numbers that are added to little endian.
fn is_time(counter: Counter) -> bool {
    match counter {
        Counter::NextInode
        | Counter::NextSlice
        | Counter::NextSession
        | Counter::NextTrash
        | Counter::AclMaxId
        | Counter::UsedSpace
        | Counter::TotalInodes => false,
        Counter::LastCleanupSessions
        | Counter::LastCleanupFiles
        | Counter::LastCleanupTrash
        | Counter::LastCleanupSlices => true,
    }
}

/// A counter as the seam has it.
pub(super) fn encode_counter(counter: Counter, number: i64) -> Option<[u8; 8]> {
    let stored = number.checked_add(counter_shift(counter))?;
    Some(if is_time(counter) { stored.to_be_bytes() } else { stored.to_le_bytes() })
}

pub(super) fn decode_counter(counter: Counter, value: &[u8]) -> Option<i64> {
    let bytes = value.try_into().ok()?;
    let stored = if is_time(counter) { i64::from_be_bytes(bytes) } else { i64::from_le_bytes(bytes) };
    stored.checked_sub(counter_shift(counter))
}

pub(super) fn place(key: &Key) -> Place {
    Place::Key(match key {
        Key::Setting => b"setting".to_vec(),
        Key::Counter(counter) => counter_key(*counter),
        Key::Attr(ino) => attr_key(*ino),
        Key::Dentry(dir, name) => of_inode(*dir, b'D', name.as_bytes()),
        Key::AnyDentry(dir) => return Place::Any(dentries_prefix(*dir)),
        Key::Symlink(ino) => of_inode(*ino, b'S', &[]),
        Key::LinkParents(ino) => return Place::All(of_inode(*ino, b'P', &[])),
        Key::Chunk(ino, index) => chunk_key(*ino, *index),
        Key::SliceRef(id, size) => slice_ref_key(*id, *size),
        Key::Xattr(ino, name) => of_inode(*ino, b'X', name.as_bytes()),
        Key::Xattrs(ino) => return Place::All(of_inode(*ino, b'X', &[])),
        Key::AclRule(id) => joined(&[b"R", &id.to_be_bytes()]),
        Key::DirStat(ino) => joined(&[b"U", &ino.0.to_le_bytes()]),
        Key::Quota(QuotaOwner::Directory(ino)) => joined(&[b"QD", &ino.0.to_le_bytes()]),
        Key::Quota(QuotaOwner::User(uid)) => joined(&[b"QU", &u64::from(*uid).to_be_bytes()]),
        Key::Quota(QuotaOwner::Group(gid)) => joined(&[b"QG", &u64::from(*gid).to_be_bytes()]),
        Key::Session(session) => {
            return Place::Pair(joined(&[b"SE", &session.0.to_be_bytes()]), session_info_key(*session));
        }
        Key::Sustained(session, ino) => joined(&[b"SS", &session.0.to_be_bytes(), &ino.0.to_le_bytes()]),
        Key::DeletedFile(ino, length) => joined(&[b"D", &ino.0.to_le_bytes(), &length.to_be_bytes()]),
        Key::DelayedSlices(id, time) => joined(&[b"L", &time.to_be_bytes(), &id.0.to_be_bytes()]),
        Key::Flocks(ino) => joined(&[b"F", &ino.0.to_le_bytes()]),
        Key::Plocks(ino) => joined(&[b"P", &ino.0.to_le_bytes()]),
    })
}

/// The first key after all that begin with `prefix`; none of ours is all ones.
pub(super) fn end_of(prefix: &[u8]) -> Vec<u8> {
    let mut end = prefix.to_vec();
    while let Some(last) = end.pop() {
        if last < u8::MAX {
            end.push(last + 1);
            break;
        }
    }
    end
}

/// What to look through for a scan, in the order of the keys.
pub(super) fn prefixes(scan: &Scan) -> Vec<Vec<u8>> {
    let one = |prefix: &[u8]| vec![prefix.to_vec()];
    match scan {
        Scan::Dentries(dir) => vec![dentries_prefix(*dir)],
        Scan::AllDentries | Scan::Attrs | Scan::Chunks | Scan::AllXattrs | Scan::AllLinkParents => one(b"A"),
        Scan::ChunksOf(ino) => vec![of_inode(*ino, b'C', &[])],
        Scan::SliceRefs => one(b"K"),
        Scan::Sessions => one(b"SE"),
        Scan::Sustained(session) => vec![joined(&[b"SS", &session.0.to_be_bytes()])],
        Scan::DeletedFiles => one(b"D"),
        Scan::DelayedSlices => one(b"L"),
        Scan::DirStats => one(b"U"),
        Scan::Quotas => one(b"Q"),
        Scan::AclRules => one(b"R"),
        Scan::LocksOf(_) | Scan::AllLocks => vec![b"F".to_vec(), b"P".to_vec()],
    }
}

fn be64(bytes: &[u8]) -> Option<u64> {
    Some(u64::from_be_bytes(bytes.try_into().ok()?))
}

fn be32(bytes: &[u8]) -> Option<u32> {
    Some(u32::from_be_bytes(bytes.try_into().ok()?))
}

fn inode(bytes: &[u8]) -> Option<Ino> {
    Some(Ino(u64::from_le_bytes(bytes.try_into().ok()?)))
}

/// The parent that a link-parent key names.
pub(super) fn parent_in(key: &[u8]) -> Option<Ino> {
    inode(key.get(10..)?)
}

/// The record that a stored key is of, read strictly. Keys of a collecting family give the collecting key, but for
/// entries and attributes, which are records of their own.
pub(super) fn parse_key(stored: &[u8]) -> Option<Key> {
    let (first, rest) = stored.split_first()?;
    match first {
        b'A' => parse_inode_key(rest),
        b'D' if rest.len() == 16 => Some(Key::DeletedFile(inode(&rest[..8])?, be64(&rest[8..])?)),
        b'F' => inode(rest).map(Key::Flocks),
        b'P' => inode(rest).map(Key::Plocks),
        b'K' if rest.len() == 12 => Some(Key::SliceRef(SliceId(be64(&rest[..8])?), be32(&rest[8..])?)),
        b'L' if rest.len() == 16 => {
            Some(Key::DelayedSlices(SliceId(be64(&rest[8..])?), be64(&rest[..8])?.cast_signed()))
        }
        b'U' => inode(rest).map(Key::DirStat),
        b'R' => be32(rest).map(Key::AclRule),
        b'Q' => {
            let (kind, id) = rest.split_first()?;
            let number = |id| u32::try_from(be64(id)?).ok();
            Some(Key::Quota(match kind {
                b'D' => QuotaOwner::Directory(inode(id)?),
                b'U' => QuotaOwner::User(number(id)?),
                b'G' => QuotaOwner::Group(number(id)?),
                _ => return None,
            }))
        }
        b'S' => match rest.split_first()? {
            (b'E', session) => be64(session).map(|session| Key::Session(SessionId(session))),
            (b'S', rest) if rest.len() == 16 => Some(Key::Sustained(SessionId(be64(&rest[..8])?), inode(&rest[8..])?)),
            _ => None,
        },
        _ => None,
    }
}

/// What follows the letter of the nodes.
fn parse_inode_key(rest: &[u8]) -> Option<Key> {
    let (ino, rest) = rest.split_at_checked(8)?;
    let (letter, rest) = rest.split_first()?;
    let ino = inode(ino)?;
    match letter {
        b'I' if rest.is_empty() => Some(Key::Attr(ino)),
        b'D' if !rest.is_empty() => Some(Key::Dentry(ino, Name::stored(rest))),
        b'X' if !rest.is_empty() => Some(Key::Xattr(ino, Name::stored(rest))),
        b'C' => be32(rest).map(|index| Key::Chunk(ino, ChunkIndex(index))),
        b'S' if rest.is_empty() => Some(Key::Symlink(ino)),
        b'P' if rest.len() == 8 => Some(Key::LinkParents(ino)),
        _ => None,
    }
}

/// How a record is stored under its key; `None` for a record of another family, and for what is never put.
pub(super) fn encode(key: &Key, record: &Record) -> Option<Vec<Write>> {
    let value: Option<Vec<u8>> = match (key, record) {
        (Key::Setting | Key::Symlink(_) | Key::Xattr(..), Record::Bytes(bytes)) => Some(bytes.to_vec()),
        (Key::Counter(counter), Record::Number(n)) => Some(encode_counter(*counter, *n)?.to_vec()),
        (Key::Attr(_), Record::Attr(attr)) => Some(attr.encode()),
        (Key::Dentry(..), Record::Dentry(dentry)) => Some(encode_dentry(*dentry).to_vec()),
        // An empty list is none.
        (Key::Chunk(..), Record::Slices(list)) => Some(Slice::encode_list(list)).filter(|bytes| !bytes.is_empty()),
        // One reference is no record.
        (Key::SliceRef(..), Record::Number(n)) => encode_references(*n)?,
        (Key::AclRule(_), Record::AclRule(rule)) => Some(rule.encode()),
        (Key::DirStat(_), Record::DirStat(stat)) => Some(encode_numbers([stat.length, stat.space, stat.inodes])),
        (Key::Quota(_), Record::Quota(quota)) => Some(encode_quota(quota)),
        (Key::Session(_), Record::Session(session)) => {
            let Place::Pair(expire, info) = place(key) else { return None };
            let said = Some(session.info.to_vec()).filter(|said| !said.is_empty());
            return Some(vec![(expire, Some(session.expire.to_be_bytes().to_vec())), (info, said)]);
        }
        (Key::Sustained(..), Record::Number(_)) => Some(SUSTAINED.to_vec()),
        (Key::DeletedFile(..), Record::Number(time)) => Some(time.to_be_bytes().to_vec()),
        (Key::DelayedSlices(..), Record::Slices(list)) => Some(encode_delayed(list)),
        _ => return None,
    };
    match place(key) {
        Place::Key(stored) => Some(vec![(stored, value)]),
        Place::Pair(..) | Place::All(_) | Place::Any(_) => None,
    }
}

/// The record of a key that is one stored value. `None`: it does not decode.
pub(super) fn decode(key: &Key, value: &[u8]) -> Option<Record> {
    Some(match key {
        Key::Setting | Key::Symlink(_) | Key::Xattr(..) => Record::Bytes(Bytes::copy_from_slice(value)),
        Key::Counter(counter) => Record::Number(decode_counter(*counter, value)?),
        Key::Attr(_) => Record::Attr(Attr::decode(value)?),
        Key::Dentry(..) | Key::AnyDentry(_) => Record::Dentry(decode_dentry(value)?),
        Key::Chunk(..) => Record::Slices(Slice::decode_list(value)?),
        Key::SliceRef(..) => Record::Number(decode_references(value)?),
        Key::AclRule(_) => Record::AclRule(AclRule::decode(value)?),
        Key::DirStat(_) => {
            let [length, space, inodes] = decode_numbers(value)?;
            Record::DirStat(DirStat { length, space, inodes })
        }
        Key::Quota(_) => {
            let [max_space, max_inodes, used_space, used_inodes] = decode_numbers(value)?;
            Record::Quota(Quota { max_space, max_inodes, used_space, used_inodes })
        }
        Key::Session(_) => Record::Session(Session { expire: be64(value)?.cast_signed(), info: Bytes::new() }),
        Key::Sustained(..) => Record::Number(1),
        Key::DeletedFile(..) => Record::Number(be64(value)?.cast_signed()),
        Key::DelayedSlices(..) => Record::Slices(decode_delayed(value)?),
        Key::Flocks(_) => Record::Flocks(decode_flocks(value)?),
        Key::Plocks(_) => Record::Plocks(decode_plocks(value)?),
        Key::LinkParents(_) | Key::Xattrs(_) => return None,
    })
}

pub(super) fn encode_dentry(dentry: Dentry) -> [u8; 9] {
    let mut out = [0; 9];
    out[0] = dentry.kind.code();
    out[1..].copy_from_slice(&dentry.ino.0.to_be_bytes());
    out
}

fn decode_dentry(value: &[u8]) -> Option<Dentry> {
    let (kind, ino) = value.split_first()?;
    Some(Dentry { kind: Kind::from_code(*kind)?, ino: Ino(be64(ino)?) })
}

/// Stored is one less; of one reference there is no record. `None` for an impossible number.
pub(super) fn encode_references(references: i64) -> Option<Option<Vec<u8>>> {
    let stored = references.checked_sub(1)?;
    Some((stored != 0).then(|| stored.to_le_bytes().to_vec()))
}

pub(super) fn decode_references(value: &[u8]) -> Option<i64> {
    decode_count(value)?.checked_add(1)
}

/// A little-endian number: counts of link parents, and references less one.
pub(super) fn decode_count(value: &[u8]) -> Option<i64> {
    Some(i64::from_le_bytes(value.try_into().ok()?))
}

pub(super) fn encode_numbers<const N: usize>(numbers: [i64; N]) -> Vec<u8> {
    numbers.iter().flat_map(|n| n.to_be_bytes()).collect()
}

fn decode_numbers<const N: usize>(value: &[u8]) -> Option<[i64; N]> {
    let (numbers, rest) = value.as_chunks::<8>();
    let numbers: &[[u8; 8]; N] = numbers.try_into().ok()?;
    rest.is_empty().then(|| numbers.map(i64::from_be_bytes))
}

pub(super) fn encode_quota(quota: &Quota) -> Vec<u8> {
    encode_numbers([quota.max_space, quota.max_inodes, quota.used_space, quota.used_inodes])
}

/// Nothing when nobody holds one.
pub(super) fn encode_flocks(holders: &[FlockHolder]) -> Option<Vec<u8>> {
    let mut out = Vec::with_capacity(holders.len() * FLOCK_BYTES);
    for holder in holders {
        out.extend(holder.session.0.to_be_bytes());
        out.extend(holder.owner.to_be_bytes());
        out.push(if holder.exclusive { b'W' } else { b'R' });
    }
    Some(out).filter(|out| !out.is_empty())
}

pub(super) fn decode_flocks(value: &[u8]) -> Option<Vec<FlockHolder>> {
    let (records, rest) = value.as_chunks::<FLOCK_BYTES>();
    if !rest.is_empty() {
        return None;
    }
    let holder = |record: &[u8; FLOCK_BYTES]| {
        let exclusive = match record[16] {
            b'W' => true,
            b'R' => false,
            _ => return None,
        };
        Some(FlockHolder { session: SessionId(be64(&record[..8])?), owner: be64(&record[8..16])?, exclusive })
    };
    let mut holders: Vec<FlockHolder> = records.iter().map(holder).collect::<Option<_>>()?;
    holders.sort_by_key(|holder| (holder.session, holder.owner));
    Some(holders)
}

/// Nothing when nobody holds one. `None` inside for lists that their length field cannot hold.
pub(super) fn encode_plocks(holders: &[PlockHolder]) -> Option<Vec<u8>> {
    let mut out = Vec::new();
    for holder in holders {
        let ranges = PlockRange::encode_list(&holder.ranges);
        out.extend(holder.session.0.to_be_bytes());
        out.extend(holder.owner.to_be_bytes());
        // Lists are bounded by what a client may lock, far below four gigabytes.
        out.extend((ranges.len() as u32).to_be_bytes());
        out.extend(ranges);
    }
    Some(out).filter(|out| !out.is_empty())
}

pub(super) fn decode_plocks(mut value: &[u8]) -> Option<Vec<PlockHolder>> {
    let mut holders = Vec::new();
    while !value.is_empty() {
        let (head, rest) = value.split_at_checked(20)?;
        let (ranges, rest) = rest.split_at_checked(be32(&head[16..])? as usize)?;
        let (session, owner) = (SessionId(be64(&head[..8])?), be64(&head[8..16])?);
        holders.push(PlockHolder { session, owner, ranges: PlockRange::decode_list(ranges)? });
        value = rest;
    }
    holders.retain(|holder| !holder.ranges.is_empty());
    holders.sort_by_key(|holder| (holder.session, holder.owner));
    Some(holders)
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn any_key() -> impl Strategy<Value = Key> {
        let name = prop::collection::vec(any::<u8>(), 1..20);
        (0..14u8, any::<u64>(), any::<u64>(), any::<u32>(), name).prop_map(|(family, a, b, c, name)| {
            let (ino, name) = (Ino(a), Name::stored(name));
            match family {
                0 => Key::Attr(ino),
                1 => Key::Dentry(ino, name),
                2 => Key::Symlink(ino),
                3 => Key::Chunk(ino, ChunkIndex(c)),
                4 => Key::SliceRef(SliceId(a), c),
                5 => Key::Xattr(ino, name),
                6 => Key::AclRule(c),
                7 => Key::DirStat(ino),
                8 => Key::Quota(QuotaOwner::Directory(ino)),
                9 => Key::Quota(if b % 2 == 0 { QuotaOwner::User(c) } else { QuotaOwner::Group(c) }),
                10 => Key::Sustained(SessionId(a), Ino(b)),
                11 => Key::DeletedFile(ino, b),
                12 => Key::DelayedSlices(SliceId(a), b.cast_signed()),
                _ => {
                    if b % 2 == 0 {
                        Key::Flocks(ino)
                    } else {
                        Key::Plocks(ino)
                    }
                }
            }
        })
    }

    proptest! {
        #[test]
        fn keys_are_read_as_they_are_written(key in any_key()) {
            let Place::Key(stored) = place(&key) else { panic!("{key:?} is one key") };
            prop_assert_eq!(parse_key(&stored), Some(key));
        }

        #[test]
        fn keys_of_one_inode_lie_together(ino in any::<u64>(), other in any::<u64>(), name in prop::collection::vec(any::<u8>(), 1..20)) {
            let Place::Key(key) = place(&Key::Dentry(Ino(ino), Name::stored(name))) else { panic!("one key") };
            let prefix = dentries_prefix(Ino(other));
            let within = prefix <= key && key < end_of(&prefix);
            prop_assert_eq!(within, ino == other);
            prop_assert_eq!(anchor(&key), Some(attr_key(Ino(ino))));
        }
    }

    #[test]
    fn a_prefix_ends_before_what_does_not_begin_so() {
        assert_eq!(end_of(b"A"), b"B");
        assert_eq!(end_of(b"A\xff"), b"B");
        assert_eq!(end_of(&dentries_prefix(Ino(u64::MAX))), [&b"A"[..], &[0xFF; 8], b"E"].concat());
    }

    #[test]
    fn counters_hold_the_first_free_number_and_times_are_big_endian() {
        assert_eq!(encode_counter(Counter::NextInode, 1025), Some([2, 4, 0, 0, 0, 0, 0, 0]));
        assert_eq!(decode_counter(Counter::NextInode, &[2, 4, 0, 0, 0, 0, 0, 0]), Some(1025));
        assert_eq!(encode_counter(Counter::UsedSpace, -1), Some([0xFF; 8]));
        assert_eq!(encode_counter(Counter::LastCleanupTrash, 5), Some([0, 0, 0, 0, 0, 0, 0, 5]));
        // A restored dump of the peer has the other order: a time far ahead, which `meta::lease` does not believe.
        assert_eq!(decode_counter(Counter::LastCleanupTrash, &[5, 0, 0, 0, 0, 0, 0, 0]), Some(5 << 56));
        assert_eq!(decode_counter(Counter::NextInode, b"12"), None);
    }

    #[test]
    fn one_reference_is_no_record() {
        assert_eq!(encode_references(1), Some(None));
        assert_eq!(encode_references(3), Some(Some(vec![2, 0, 0, 0, 0, 0, 0, 0])));
        assert_eq!(encode_references(0), Some(Some(vec![0xFF; 8])));
        assert_eq!(decode_references(&[0; 8]), Some(1));
    }
}
