//! Harnesses of what a server answers and what keys are called (`crate::fuzzing`), and the answers for the tests of
//! damage.

use super::codec::{self, Replies};
use super::resp;
use super::url;
use crate::base::{Attr, ChunkIndex, Fault, Ino, Name, SessionId, Slice, SliceId};
use crate::fuzzing::{choice, sentence};
use crate::meta::engine::EngineError;
use crate::meta::record::{Counter, Key, PlockRange, QuotaOwner, Record};
use redis::Value;

fn keys() -> [Key; 20] {
    let ino = Ino(5);
    let name = || Name::stored(*b"name");
    [
        Key::Setting,
        Key::Counter(Counter::UsedSpace),
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

/// Inputs are a choice of the key, then parts with a length in two bytes each; the highest bit makes it another kind
/// of value.
pub fn replies() -> Vec<Vec<u8>> {
    let attr = crate::meta::format::first_directory(0o755, crate::base::Timestamp::new(1, 2)).encode();
    let slice = Slice { pos: 0, id: SliceId(1), size: 100, off: 0, len: 100 }.encode();
    let lock = PlockRange::encode_list(&[PlockRange { exclusive: true, pid: 1, start: 0, end: 9 }]);
    assert!(Attr::decode(&attr).is_some());
    let of = |key: u8, parts: &[&[u8]]| {
        let parts = parts.iter().flat_map(|part| [&(part.len() as u16).to_be_bytes()[..], *part].concat());
        std::iter::once(key).chain(parts).collect::<Vec<u8>>()
    };
    vec![
        of(0, &[b"{}"]),
        of(1, &[b"-12"]),
        of(2, &[&attr]),
        of(3, &[&[2, 0, 0, 0, 0, 0, 0, 0, 9]]),
        of(4, &[b"name", &[2, 0, 0, 0, 0, 0, 0, 0, 9]]),
        of(5, &[b"/target"]),
        of(6, &[b"7", b"2", b"9", b"-1"]),
        of(7, &[&slice, &slice]),
        of(8, &[b"3"]),
        of(10, &[b"user.a", b"value", b"", b""]),
        of(11, &[&[0, 7, 0, 5, 0, 4, 0, 0, 0, 0, 0, 1, 0, 0, 3, 0xe8, 0, 6, 0, 0, 0, 0]]),
        of(12, &[b"4096", b"10", b"1"]),
        of(13, &[&[0xFF; 16], b"4096", b"1"]),
        of(14, &[b"1700000000.5", b"{}"]),
        of(16, &[b"1.7e9"]),
        of(17, &[&[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9]]),
        of(18, &[b"1_D9D0B0A1C2D3E4F5", b"W"]),
        of(19, &[b"1_D9D0B0A1C2D3E4F5", &lock]),
    ]
}

pub fn reply(data: &[u8]) {
    let keys = keys();
    let Some((chosen, mut rest)) = choice(data, keys.len()) else { return };
    let key = &keys[chosen];
    let mut values = Vec::new();
    while let Some((length, tail)) = rest.split_first_chunk::<2>() {
        let length = u16::from_be_bytes(*length);
        let (part, tail) = tail.split_at(usize::from(length & 0x7FFF).min(tail.len()));
        values.push(match length >> 15 {
            0 => Value::BulkString(part.to_vec()),
            _ if part.is_empty() => Value::Nil,
            _ => Value::Int(part[0].into()),
        });
        rest = tail;
    }
    let listed = matches!(
        key,
        Key::AnyDentry(_) | Key::LinkParents(_) | Key::Chunk(..) | Key::Xattrs(_) | Key::Flocks(_) | Key::Plocks(_)
    );
    let values = if listed { vec![Value::Array(values)] } else { values };
    match codec::answer(key, &mut Replies::new(values)) {
        Ok(_) => {}
        Err(EngineError::Fault(fault)) => {
            let said = sentence(&fault);
            assert!(said.contains(&format!("{key:?}").chars().take(6).collect::<String>()), "{said}");
        }
        Err(other) => panic!("{other:?}"),
    }
}

/// The first byte says in what pieces the rest arrives.
pub fn resps() -> Vec<Vec<u8>> {
    let replies: [&[u8]; 6] = [
        b"+OK\r\n:-5\r\n$-1\r\n",
        b"$5\r\nhello\r\n$0\r\n\r\n",
        b"*3\r\n+QUEUED\r\n*0\r\n*-1\r\n",
        b"-ERR unknown command\r\n-NOSCRIPT\r\n",
        b"*2\r\n$1\r\n0\r\n*4\r\n$1\r\na\r\n$1\r\n1\r\n$1\r\nb\r\n$1\r\n2\r\n",
        b"*1\r\n*1\r\n*1\r\n*1\r\n:9223372036854775807\r\n",
    ];
    replies.iter().zip(1..).map(|(reply, piece)| [&[piece], *reply].concat()).collect()
}

/// Whatever the pieces, the replies are the same, and those that the crate reads.
pub fn resp(data: &[u8]) {
    let Some((piece, bytes)) = data.split_first() else { return };
    let parsed = |piece: usize| {
        let (mut replies, mut found) = (resp::Replies::default(), Vec::new());
        for piece in bytes.chunks(piece.max(1)) {
            replies.room().extend_from_slice(piece);
            loop {
                match replies.next() {
                    Ok(Some(value)) => found.push(value),
                    Ok(None) => break,
                    Err(_) => return (found, false),
                }
            }
        }
        (found, true)
    };
    let whole = parsed(bytes.len());
    assert_eq!(parsed(usize::from(*piece)), whole);
    if let Some(first) = whole.0.first() {
        assert_eq!(redis::parse_redis_value(bytes).as_ref(), Ok(first));
    }
}

pub fn names() -> Vec<Vec<u8>> {
    let all = ["i1", "d7", "c7_0", "x1", "p9", "s3", "lockf3", "lockp3", "session12", "locked4", "k5_4096", "setting"];
    let others = ["9:4096", "5_1700000000", "1_D9D0B0A1C2D3E4F5", "1.7e308", "i18446744073709551616"];
    [&all[..], &others].concat().iter().map(|name| name.as_bytes().to_vec()).collect()
}

/// A name is read as the one key that is stored under it, or not at all.
pub fn name(data: &[u8]) {
    match codec::parse_key(data) {
        None => {}
        Some(Key::AnyDentry(dir)) => assert_eq!(codec::dir_key(dir).as_bytes(), data),
        Some(Key::Xattrs(ino)) => assert_eq!(codec::xattrs_key(ino).as_bytes(), data),
        Some(Key::LinkParents(ino)) => assert_eq!(codec::parents_key(ino).as_bytes(), data),
        Some(Key::Chunk(ino, index)) => assert_eq!(codec::chunk_key(ino, index).as_bytes(), data),
        Some(Key::Flocks(ino)) => assert_eq!(codec::flocks_key(ino).as_bytes(), data),
        Some(Key::Plocks(ino)) => assert_eq!(codec::plocks_key(ino).as_bytes(), data),
        Some(key) => assert_eq!(codec::string_name(&key).expect("a plain string").as_bytes(), data),
    }
    if let Some(Key::SliceRef(id, size)) = codec::parse_slice_ref(data) {
        assert_eq!(codec::slice_ref_field(id, size).as_bytes(), data);
    }
    if let Some(Key::DeletedFile(ino, length)) = codec::parse_deleted(data) {
        assert_eq!(codec::deleted_member(ino, length).as_bytes(), data);
    }
    if let Some(Key::DelayedSlices(id, time)) = codec::parse_delayed(data) {
        assert_eq!(codec::delayed_field(id, time).as_bytes(), data);
    }
    if let Some((session, owner)) = codec::parse_owner(data) {
        assert_eq!(codec::owner_field(session, owner).as_bytes(), data, "a lock that cannot be found again");
    }
    let _ = (codec::is_ours(data), codec::parse_score(data));
}

/// The engine's own reading of a URL that settings have accepted.
pub fn url(text: &str) {
    match url::Target::parse(text, |_| None) {
        Ok(target) => assert!(!target.address.chars().any(char::is_control), "{:?}", target.address),
        Err(EngineError::Fault(fault)) => drop(sentence(&fault)),
        Err(other) => panic!("{other:?}"),
    }
}

/// What the server answers to whoever asks for a record that was stored, one value for each command of `wish`.
pub fn stored(key: &Key, record: &Record) -> Vec<Value> {
    let text = |n: &dyn std::fmt::Display| bulk(n.to_string().as_bytes());
    let pairs = |pairs: Vec<(Value, Value)>| vec![Value::Array(pairs.into_iter().flat_map(|(a, b)| [a, b]).collect())];
    let owner = |session, owner| bulk(codec::owner_field(session, owner).as_bytes());
    match (key, record) {
        (Key::AnyDentry(_), Record::Dentry(entry)) => pairs(vec![(bulk(b"name"), bulk(&codec::encode_dentry(*entry)))]),
        (Key::SliceRef(..), Record::Number(n)) => vec![text(&(n - 1))],
        (Key::Sustained(..), Record::Number(n)) => vec![Value::Int(*n)],
        (Key::Chunk(..), Record::Slices(list)) => {
            vec![Value::Array(list.iter().map(|slice| bulk(&slice.encode())).collect())]
        }
        (_, Record::Bytes(bytes)) => vec![bulk(bytes)],
        (_, Record::Number(n)) => vec![text(n)],
        (_, Record::Attr(attr)) => vec![bulk(&attr.encode())],
        (_, Record::Dentry(entry)) => vec![bulk(&codec::encode_dentry(*entry))],
        (_, Record::LinkParents(list)) => pairs(list.iter().map(|(ino, n)| (text(ino), text(n))).collect()),
        (_, Record::Slices(list)) => vec![bulk(&codec::encode_slices(key, list))],
        (_, Record::Xattrs(list)) => pairs(list.iter().map(|(name, v)| (bulk(name.as_bytes()), bulk(v))).collect()),
        (_, Record::AclRule(rule)) => vec![bulk(&rule.encode())],
        (_, Record::DirStat(stat)) => vec![text(&stat.space), text(&stat.length), text(&stat.inodes)],
        (_, Record::Quota(quota)) => {
            vec![bulk(&codec::encode_limits(quota)), text(&quota.used_space), text(&quota.used_inodes)]
        }
        (_, Record::Session(session)) => vec![text(&session.expire), bulk(&session.info)],
        (_, Record::Flocks(list)) => {
            pairs(list.iter().map(|h| (owner(h.session, h.owner), bulk(codec::encode_flock(h.exclusive)))).collect())
        }
        (_, Record::Plocks(list)) => {
            pairs(list.iter().map(|h| (owner(h.session, h.owner), bulk(&PlockRange::encode_list(&h.ranges)))).collect())
        }
    }
}

fn bulk(bytes: &[u8]) -> Value {
    Value::BulkString(bytes.to_vec())
}

/// What such an answer says.
pub fn read(key: &Key, values: Vec<Value>) -> Result<Option<Record>, Fault> {
    codec::answer(key, &mut Replies::new(values)).map_err(|error| match error {
        EngineError::Fault(fault) => fault,
        other => panic!("an answer that ends in {other:?}"),
    })
}
