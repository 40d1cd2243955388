//! Harnesses of what a key-value store answers (`crate::fuzzing`): stored keys, and values under a known key.

use super::codec::{self, Place};
use super::view::collected;
use crate::base::{ChunkIndex, Ino, Name, SessionId, Slice, SliceId};
use crate::fuzzing::choice;
use crate::meta::record::{Counter, Key, PlockRange, QuotaOwner, Record};
use bytes::Bytes;

fn keys() -> [Key; 21] {
    let ino = Ino(5);
    let name = || Name::stored(*b"name");
    [
        Key::Setting,
        Key::Counter(Counter::NextInode),
        Key::Counter(Counter::LastCleanupFiles),
        Key::Attr(ino),
        Key::Dentry(ino, name()),
        Key::AnyDentry(ino),
        Key::Symlink(ino),
        Key::LinkParents(ino),
        Key::Chunk(ino, ChunkIndex(0)),
        Key::SliceRef(SliceId(1), 2),
        Key::Xattr(ino, name()),
        Key::Xattrs(ino),
        Key::AclRule(1),
        Key::DirStat(ino),
        Key::Quota(QuotaOwner::User(7)),
        Key::Session(SessionId(1)),
        Key::Sustained(SessionId(1), ino),
        Key::DeletedFile(ino, 9),
        Key::DelayedSlices(SliceId(1), 2),
        Key::Flocks(ino),
        Key::Plocks(ino),
    ]
}

/// Inputs are a choice of the key, then the value.
pub fn values() -> Vec<Vec<u8>> {
    let attr = crate::meta::format::first_directory(0o755, crate::base::Timestamp::new(1, 2)).encode();
    let slice = Slice { pos: 0, id: SliceId(1), size: 100, off: 0, len: 100 }.encode();
    let lock = PlockRange::encode_list(&[PlockRange { exclusive: true, pid: 1, start: 0, end: 9 }]);
    let plock = [&[0, 0, 0, 0, 0, 0, 0, 1, 0xD9, 0xD0, 0xB0, 0xA1, 0xC2, 0xD3, 0xE4, 0xF5, 0, 0, 0, 24][..], &lock];
    let of = |key: u8, value: &[u8]| std::iter::once(key).chain(value.iter().copied()).collect::<Vec<u8>>();
    vec![
        of(0, b"{}"),
        of(1, &1025i64.to_le_bytes()),
        of(2, &1_700_000_000i64.to_be_bytes()),
        of(3, &attr),
        of(4, &[2, 0, 0, 0, 0, 0, 0, 0, 9]),
        of(7, &1i64.to_le_bytes()),
        of(8, &[slice, slice].concat()),
        of(9, &(-1i64).to_le_bytes()),
        of(11, b"value"),
        of(12, &[0, 7, 0, 5, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0xe8, 0, 6, 0, 0, 0, 0]),
        of(13, &[0; 24]),
        of(14, &[0xFF; 32]),
        of(15, &[0, 0, 0, 0, 0x65, 0x53, 0xf1, 0]),
        of(16, &[1]),
        of(18, &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9]),
        of(19, b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x02W"),
        of(20, &plock.concat()),
    ]
}

/// What decodes is written as it can be read again.
pub fn value(data: &[u8]) {
    let keys = keys();
    let Some((chosen, value)) = choice(data, keys.len()) else { return };
    let key = &keys[chosen];
    if let Key::LinkParents(_) | Key::Xattrs(_) = key {
        let Place::All(mut stored) = codec::place(key) else { panic!("a collecting key is a range") };
        stored.extend([7; 8]);
        let _ = collected(key, std::iter::once((&stored[..], &Bytes::copy_from_slice(value))));
        return;
    }
    let Some(record) = codec::decode(key, value) else { return };
    let again = match &record {
        Record::Flocks(holders) => codec::encode_flocks(holders),
        Record::Plocks(holders) => codec::encode_plocks(holders),
        record => match codec::encode(key, record) {
            Some(writes) => writes.into_iter().next().and_then(|(_, value)| value),
            None => return assert!(matches!(key, Key::AnyDentry(_) | Key::SliceRef(..) | Key::Counter(_)), "{key:?}"),
        },
    };
    match again {
        Some(stored) => assert_eq!(codec::decode(key, &stored), Some(record)),
        // What stands for nothing is stored as nothing.
        None => assert!(match record {
            Record::Flocks(holders) => holders.is_empty(),
            Record::Plocks(holders) => holders.is_empty(),
            Record::Slices(slices) => slices.is_empty(),
            Record::Number(references) => references == 1,
            _ => false,
        }),
    }
}

pub fn stored_keys() -> Vec<Vec<u8>> {
    let mut all: Vec<Vec<u8>> = keys()
        .iter()
        .map(|key| match codec::place(key) {
            Place::Key(stored) | Place::Pair(stored, _) | Place::All(stored) | Place::Any(stored) => stored,
        })
        .collect();
    all.push(codec::link_parent_key(Ino(1), Ino(2)));
    all.push(b"XLOG\0\0\0\0\0\0\0\x01".to_vec());
    all
}

/// A stored key is read as the one record that lies under it, or not at all.
pub fn stored_key(data: &[u8]) {
    let Some(key) = codec::parse_key(data) else { return };
    match (&key, codec::place(&key)) {
        (_, Place::Key(stored)) | (_, Place::Pair(stored, _)) => assert_eq!(stored, data),
        (Key::LinkParents(ino), Place::All(_)) => {
            let parent = codec::parent_in(data).expect("its key names a parent");
            assert_eq!(codec::link_parent_key(*ino, parent), data);
        }
        (key, _) => panic!("{key:?} is not stored under a key of its own"),
    }
    if let Some(anchor) = codec::anchor(data) {
        assert!(matches!(codec::parse_key(&anchor), Some(Key::Attr(_))));
    }
}
