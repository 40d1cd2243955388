//! The Redis layout (`spec/metadata.md` section 2): key and field names, the commands that read a record, and what
//! their replies mean. Bytes only; nothing here talks to a server.
//!
//! Reading is tolerant where the format is (attributes of every age, slice counts that are not there); whatever else
//! does not decode is `Fault::corrupt` with the name of its key.

use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Fault, Ino, Kind, Name, SessionId, Slice, SliceId};
use crate::meta::engine::{EngineError, EngineResult};
use crate::meta::record::{
    Counter, Dentry, DirStat, FlockHolder, Key, PlockHolder, PlockRange, Quota, QuotaOwner, Record, Session,
    decode_delayed, encode_delayed,
};
use bytes::Bytes;
use redis::{Cmd, Value};
use std::fmt::Write;

pub(super) const SETTING: &str = "setting";
pub(super) const SLICE_REFS: &str = "sliceRef";
pub(super) const ALL_SESSIONS: &str = "allSessions";
pub(super) const SESSION_INFOS: &str = "sessionInfos";
pub(super) const DELETED_FILES: &str = "delfiles";
pub(super) const DELAYED_SLICES: &str = "delSlices";
pub(super) const ACL: &str = "acl";
pub(super) const DIR_LENGTH: &str = "dirDataLength";
pub(super) const DIR_SPACE: &str = "dirUsedSpace";
pub(super) const DIR_INODES: &str = "dirUsedInodes";

/// Bytes of a stored directory entry: kind and inode.
const DENTRY_BYTES: usize = 9;
/// Bytes of stored quota limits: space and inodes.
const LIMITS_BYTES: usize = 16;

/// The keys of a volume that have a fixed name.
pub(super) const FIXED: [&str; 37] = [
    SETTING,
    SLICE_REFS,
    ALL_SESSIONS,
    SESSION_INFOS,
    "sessions",
    DELETED_FILES,
    "detachedNodes",
    DELAYED_SLICES,
    ACL,
    "krbToken",
    "txnLog",
    "txnLastLog",
    DIR_LENGTH,
    DIR_SPACE,
    DIR_INODES,
    "dirQuota",
    "dirQuotaUsedSpace",
    "dirQuotaUsedInodes",
    "userQuota",
    "userQuotaUsedSpace",
    "userQuotaUsedInodes",
    "groupQuota",
    "groupQuotaUsedSpace",
    "groupQuotaUsedInodes",
    "usedSpace",
    "totalInodes",
    "nextinode",
    "nextchunk",
    "nextsession",
    "nextTrash",
    "aclMaxId",
    "krbTokenMaxId",
    "lastCleanupSessions",
    "lastCleanupFiles",
    "lastCleanupTrash",
    "nextCleanupSlices",
    "lastCleanupChangelog",
];

/// The stored name of a counter; Redis has its own spelling of three of them.
pub(super) fn counter_name(counter: Counter) -> &'static str {
    match counter {
        Counter::NextInode => "nextinode",
        Counter::NextSlice => "nextchunk",
        Counter::NextSession => "nextsession",
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

/// The hashes of a quota: limits, used space, used inodes; the field is the owner's number.
pub(super) fn quota_hashes(owner: QuotaOwner) -> [&'static str; 3] {
    match owner {
        QuotaOwner::Directory(_) => ["dirQuota", "dirQuotaUsedSpace", "dirQuotaUsedInodes"],
        QuotaOwner::User(_) => ["userQuota", "userQuotaUsedSpace", "userQuotaUsedInodes"],
        QuotaOwner::Group(_) => ["groupQuota", "groupQuotaUsedSpace", "groupQuotaUsedInodes"],
    }
}

pub(super) fn quota_field(owner: QuotaOwner) -> u64 {
    match owner {
        QuotaOwner::Directory(ino) => ino.0,
        QuotaOwner::User(id) | QuotaOwner::Group(id) => id.into(),
    }
}

/// A key or field name built in place: names are short, and a commit writes a dozen of them.
pub(super) struct Text {
    bytes: [u8; Text::MAX],
    len: usize,
}

impl Text {
    /// The longest: `c{u64}_{u32}`, `{u64}_{i64}`, `session{u64}`, an owner field, all below 48; and a prefix.
    const MAX: usize = 64;

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }
}

impl AsRef<[u8]> for Text {
    fn as_ref(&self) -> &[u8] {
        self.as_bytes()
    }
}

impl Write for Text {
    fn write_str(&mut self, text: &str) -> std::fmt::Result {
        let end = self.len + text.len();
        self.bytes.get_mut(self.len..end).ok_or(std::fmt::Error)?.copy_from_slice(text.as_bytes());
        self.len = end;
        Ok(())
    }
}

/// `text!("i{ino}")`: a name, formatted in place. (A block, so that the arguments do not live as long as the name: they
/// are not `Send`, and names are held over awaits.)
macro_rules! text {
    ($($format:tt)*) => {{
        let text = $crate::meta::engine::redis::codec::format_text(format_args!($($format)*));
        text
    }};
}
pub(super) use text;

pub(super) fn format_text(arguments: std::fmt::Arguments<'_>) -> Text {
    let mut text = Text { bytes: [0; Text::MAX], len: 0 };
    text.write_fmt(arguments).expect("names of keys and fields fit 64 bytes");
    text
}

/// What the keys of the volume begin with: nothing, or in a cluster `{db}`, a hash tag that keeps all of them in one slot.
/// Names of keys inside of values (the members of `locked{sid}`) begin so too, fields never.
#[derive(Clone, Copy)]
pub(super) struct Prefix {
    bytes: [u8; Prefix::MAX],
    len: usize,
}

impl Prefix {
    /// `{4294967295}`.
    const MAX: usize = 12;
    pub(super) const NONE: Prefix = Prefix { bytes: [0; Prefix::MAX], len: 0 };

    pub(super) fn of_cluster(db: u32) -> Prefix {
        let text = text!("{{{db}}}");
        let mut prefix = Prefix { len: text.len, ..Prefix::NONE };
        prefix.bytes[..text.len].copy_from_slice(text.as_bytes());
        prefix
    }

    pub(super) fn as_bytes(&self) -> &[u8] {
        &self.bytes[..self.len]
    }

    pub(super) fn key(&self, name: impl AsRef<[u8]>) -> Text {
        let (name, mut text) = (name.as_ref(), Text { bytes: [0; Text::MAX], len: 0 });
        text.len = self.len + name.len();
        text.bytes[..self.len].copy_from_slice(self.as_bytes());
        text.bytes[self.len..text.len].copy_from_slice(name);
        text
    }

    /// The name of a stored key; nothing for the keys of others.
    pub(super) fn strip<'a>(&self, key: &'a [u8]) -> Option<&'a [u8]> {
        key.strip_prefix(self.as_bytes())
    }

    /// The slot of all the keys: CRC-16 of what stands between the braces.
    pub(super) fn slot(&self) -> u16 {
        let tag = self.as_bytes().get(1..self.len.saturating_sub(1)).unwrap_or_default();
        let crc = tag.iter().fold(0u16, |crc, byte| {
            (0..8).fold(crc ^ (u16::from(*byte) << 8), |crc, _| (crc << 1) ^ if crc >> 15 == 1 { 0x1021 } else { 0 })
        });
        crc % 16384
    }
}

pub(super) fn attr_key(ino: Ino) -> Text {
    text!("i{ino}")
}

pub(super) fn dir_key(ino: Ino) -> Text {
    text!("d{ino}")
}

pub(super) fn symlink_key(ino: Ino) -> Text {
    text!("s{ino}")
}

pub(super) fn parents_key(ino: Ino) -> Text {
    text!("p{ino}")
}

pub(super) fn xattrs_key(ino: Ino) -> Text {
    text!("x{ino}")
}

pub(super) fn chunk_key(ino: Ino, index: ChunkIndex) -> Text {
    text!("c{ino}_{index}")
}

pub(super) fn flocks_key(ino: Ino) -> Text {
    text!("lockf{ino}")
}

pub(super) fn plocks_key(ino: Ino) -> Text {
    text!("lockp{ino}")
}

pub(super) fn sustained_key(session: SessionId) -> Text {
    text!("session{session}")
}

pub(super) fn locked_key(session: SessionId) -> Text {
    text!("locked{session}")
}

pub(super) fn slice_ref_field(id: SliceId, size: u32) -> Text {
    text!("k{id}_{size}")
}

pub(super) fn deleted_member(ino: Ino, length: u64) -> Text {
    text!("{ino}:{length}")
}

pub(super) fn delayed_field(id: SliceId, time: i64) -> Text {
    text!("{id}_{time}")
}

/// The owner field of a lock (`spec/metadata.md` 2.3).
pub(super) fn owner_field(session: SessionId, owner: u64) -> Text {
    text!("{session}_{owner:016X}")
}

pub(super) fn encode_dentry(dentry: Dentry) -> [u8; DENTRY_BYTES] {
    let mut out = [0; DENTRY_BYTES];
    out[0] = dentry.kind.code();
    out[1..].copy_from_slice(&dentry.ino.0.to_be_bytes());
    out
}

pub(super) fn decode_dentry(bytes: &[u8]) -> Option<Dentry> {
    let (kind, ino) = bytes.split_first()?;
    Some(Dentry { kind: Kind::from_code(*kind)?, ino: Ino(u64::from_be_bytes(ino.try_into().ok()?)) })
}

pub(super) fn encode_limits(quota: &Quota) -> [u8; LIMITS_BYTES] {
    let mut out = [0; LIMITS_BYTES];
    out[..8].copy_from_slice(&quota.max_space.to_be_bytes());
    out[8..].copy_from_slice(&quota.max_inodes.to_be_bytes());
    out
}

/// Limits that are not on record: none.
pub(super) const NO_LIMITS: [u8; LIMITS_BYTES] = [0xFF; LIMITS_BYTES];

fn decode_limits(bytes: &[u8]) -> Option<(i64, i64)> {
    let (space, inodes) = bytes.split_at_checked(8)?;
    Some((i64::from_be_bytes(space.try_into().ok()?), i64::from_be_bytes(inodes.try_into().ok()?)))
}

pub(super) fn encode_flock(exclusive: bool) -> &'static [u8] {
    if exclusive { b"W" } else { b"R" }
}

pub(super) fn encode_slices(key: &Key, slices: &[Slice]) -> Vec<u8> {
    match key {
        Key::DelayedSlices(..) => encode_delayed(slices),
        _ => Slice::encode_list(slices),
    }
}

/// A number in the only spelling that is ever written: no sign but `-`, no leading zeros.
pub(super) fn parse<T: std::str::FromStr + ToString>(bytes: &[u8]) -> Option<T> {
    let text = std::str::from_utf8(bytes).ok()?;
    let number: T = text.parse().ok()?;
    (number.to_string() == text).then_some(number)
}

/// A number as counters and statistics have it. The server adds to no other spelling, and a guard would never find
/// what it compares with.
fn parse_i64(bytes: &[u8]) -> Option<i64> {
    parse(bytes)
}

fn parse_pair<A, B>(bytes: &[u8], separator: u8) -> Option<(A, B)>
where
    A: std::str::FromStr + ToString,
    B: std::str::FromStr + ToString,
{
    let at = bytes.iter().position(|b| *b == separator)?;
    Some((parse(&bytes[..at])?, parse(&bytes[at + 1..])?))
}

pub(super) fn parse_slice_ref(field: &[u8]) -> Option<Key> {
    parse_pair(field.strip_prefix(b"k")?, b'_').map(|(id, size)| Key::SliceRef(SliceId(id), size))
}

/// `None` for the members of very old volumes, which other jobs clean.
pub(super) fn parse_deleted(member: &[u8]) -> Option<Key> {
    parse_pair(member, b':').map(|(ino, length)| Key::DeletedFile(Ino(ino), length))
}

pub(super) fn parse_delayed(field: &[u8]) -> Option<Key> {
    parse_pair(field, b'_').map(|(id, time)| Key::DelayedSlices(SliceId(id), time))
}

pub(super) fn parse_owner(field: &[u8]) -> Option<(SessionId, u64)> {
    let at = field.iter().position(|b| *b == b'_')?;
    let owner = std::str::from_utf8(&field[at + 1..]).ok()?;
    let (session, owner) = (SessionId(parse(&field[..at])?), u64::from_str_radix(owner, 16).ok()?);
    // Only as it is written, or the lock could be seen and never be removed.
    (owner_field(session, owner).as_bytes() == field).then_some((session, owner))
}

/// The key of one inode that a stored key name stands for, read strictly: other keys begin with the same letters.
pub(super) fn parse_key(name: &[u8]) -> Option<Key> {
    let numbered = |prefix: &[u8]| name.strip_prefix(prefix).and_then(parse::<u64>).map(Ino);
    match name.first()? {
        b'i' => numbered(b"i").map(Key::Attr),
        b'd' => numbered(b"d").map(Key::AnyDentry),
        b'c' => parse_pair(&name[1..], b'_').map(|(ino, index)| Key::Chunk(Ino(ino), ChunkIndex(index))),
        b'x' => numbered(b"x").map(Key::Xattrs),
        b'p' => numbered(b"p").map(Key::LinkParents),
        b's' => numbered(b"s").map(Key::Symlink),
        b'l' => numbered(b"lockf").map(Key::Flocks).or_else(|| numbered(b"lockp").map(Key::Plocks)),
        _ => None,
    }
}

/// Whether a stored key belongs to a volume.
pub(super) fn is_ours(name: &[u8]) -> bool {
    let session = |prefix: &[u8]| name.strip_prefix(prefix).and_then(parse::<u64>).is_some();
    FIXED.iter().any(|fixed| fixed.as_bytes() == name)
        || name == b"lastChangelog"
        || parse_key(name).is_some()
        || session(b"session")
        || session(b"locked")
        || parse_slice_ref(name).is_some()
}

/// Adds the commands that read one record.
pub(super) fn wish(prefix: &Prefix, key: &Key, add: &mut impl FnMut(Cmd)) {
    let keyed = |name: &str, key: &[u8], rest: &[&[u8]]| keyed(prefix, name, key, rest);
    let get = |name: &[u8]| keyed("GET", name, &[]);
    match key {
        Key::Setting => add(get(SETTING.as_bytes())),
        Key::Counter(counter) => add(get(counter_name(*counter).as_bytes())),
        Key::Attr(ino) => add(get(attr_key(*ino).as_bytes())),
        Key::Dentry(dir, name) => add(keyed("HGET", dir_key(*dir).as_bytes(), &[name.as_bytes()])),
        Key::AnyDentry(dir) => add(keyed("HRANDFIELD", dir_key(*dir).as_bytes(), &[b"1", b"WITHVALUES"])),
        Key::Symlink(ino) => add(get(symlink_key(*ino).as_bytes())),
        Key::LinkParents(ino) => add(keyed("HGETALL", parents_key(*ino).as_bytes(), &[])),
        Key::Chunk(ino, index) => add(keyed("LRANGE", chunk_key(*ino, *index).as_bytes(), &[b"0", b"-1"])),
        Key::SliceRef(id, size) => {
            add(keyed("HGET", SLICE_REFS.as_bytes(), &[slice_ref_field(*id, *size).as_bytes()]));
        }
        Key::Xattr(ino, name) => add(keyed("HGET", xattrs_key(*ino).as_bytes(), &[name.as_bytes()])),
        Key::Xattrs(ino) => add(keyed("HGETALL", xattrs_key(*ino).as_bytes(), &[])),
        Key::AclRule(id) => add(keyed("HGET", ACL.as_bytes(), &[text!("{id}").as_bytes()])),
        Key::DirStat(ino) => {
            for hash in [DIR_SPACE, DIR_LENGTH, DIR_INODES] {
                add(keyed("HGET", hash.as_bytes(), &[text!("{ino}").as_bytes()]));
            }
        }
        Key::Quota(owner) => {
            for hash in quota_hashes(*owner) {
                add(keyed("HGET", hash.as_bytes(), &[text!("{}", quota_field(*owner)).as_bytes()]));
            }
        }
        Key::Session(session) => {
            let field = text!("{session}");
            add(keyed("ZSCORE", ALL_SESSIONS.as_bytes(), &[field.as_bytes()]));
            add(keyed("HGET", SESSION_INFOS.as_bytes(), &[field.as_bytes()]));
        }
        Key::Sustained(session, ino) => {
            add(keyed("SISMEMBER", sustained_key(*session).as_bytes(), &[text!("{ino}").as_bytes()]));
        }
        Key::DeletedFile(ino, length) => {
            add(keyed("ZSCORE", DELETED_FILES.as_bytes(), &[deleted_member(*ino, *length).as_bytes()]));
        }
        Key::DelayedSlices(id, time) => {
            add(keyed("HGET", DELAYED_SLICES.as_bytes(), &[delayed_field(*id, *time).as_bytes()]));
        }
        Key::Flocks(ino) => add(keyed("HGETALL", flocks_key(*ino).as_bytes(), &[])),
        Key::Plocks(ino) => add(keyed("HGETALL", plocks_key(*ino).as_bytes(), &[])),
    }
}

/// The name of a record that is one plain string, so that several can be read by one MGET.
pub(super) fn string_name(key: &Key) -> Option<Text> {
    match key {
        Key::Attr(ino) => Some(attr_key(*ino)),
        Key::Symlink(ino) => Some(symlink_key(*ino)),
        Key::Setting => Some(text!("{SETTING}")),
        Key::Counter(counter) => Some(text!("{}", counter_name(*counter))),
        _ => None,
    }
}

pub(super) fn command(name: &str, args: &[&[u8]]) -> Cmd {
    let size = name.len() + args.iter().map(|arg| arg.len()).sum::<usize>();
    let mut cmd = Cmd::with_capacity(1 + args.len(), size);
    cmd.arg(name);
    for arg in args {
        cmd.arg(arg);
    }
    cmd
}

/// A command on a key of the volume.
pub(super) fn keyed(prefix: &Prefix, name: &str, key: &[u8], rest: &[&[u8]]) -> Cmd {
    let size = name.len() + prefix.len + key.len() + rest.iter().map(|arg| arg.len()).sum::<usize>();
    let mut cmd = Cmd::with_capacity(2 + rest.len(), size);
    cmd.arg(name);
    match prefix.len {
        0 => cmd.arg(key),
        _ => cmd.arg(prefix.key(key).as_bytes()),
    };
    for arg in rest {
        cmd.arg(arg);
    }
    cmd
}

/// The error of a record that does not decode.
pub(super) fn corrupt(key: &Key) -> EngineError {
    Fault::corrupt("read record").with("engine", "redis").with("key", format_args!("{key:?}")).into()
}

/// Replies in the order of their commands.
pub(super) struct Replies(std::vec::IntoIter<Value>);

impl Replies {
    pub(super) fn new(values: Vec<Value>) -> Replies {
        Replies(values.into_iter())
    }

    fn next(&mut self, key: &Key) -> EngineResult<Value> {
        match self.0.next() {
            Some(Value::ServerError(error)) => {
                Err(super::conn::server_fault(&error, "read record").with("key", format_args!("{key:?}")).into())
            }
            Some(value) => Ok(value),
            None => Err(Fault::internal("read record").with("key", format_args!("{key:?}")).source("no reply").into()),
        }
    }

    fn bytes(&mut self, key: &Key) -> EngineResult<Option<Vec<u8>>> {
        match self.next(key)? {
            Value::Nil => Ok(None),
            Value::BulkString(bytes) => Ok(Some(bytes)),
            _ => Err(corrupt(key)),
        }
    }

    fn number(&mut self, key: &Key) -> EngineResult<Option<i64>> {
        self.bytes(key)?.map(|bytes| parse_i64(&bytes).ok_or_else(|| corrupt(key))).transpose()
    }

    /// A score: whole seconds, though Redis keeps doubles.
    fn score(&mut self, key: &Key) -> EngineResult<Option<i64>> {
        self.bytes(key)?.map(|bytes| parse_score(&bytes).ok_or_else(|| corrupt(key))).transpose()
    }

    fn pairs(&mut self, key: &Key) -> EngineResult<Vec<(Vec<u8>, Vec<u8>)>> {
        pairs(self.next(key)?).ok_or_else(|| corrupt(key))
    }
}

/// A score as text: whole seconds, though Redis keeps doubles.
pub(super) fn parse_score(bytes: &[u8]) -> Option<i64> {
    let score: f64 = std::str::from_utf8(bytes).ok()?.parse().ok()?;
    (!score.is_nan()).then_some(score.floor() as i64)
}

/// The fields and values of HGETALL and of the scans.
pub(super) fn pairs(value: Value) -> Option<Vec<(Vec<u8>, Vec<u8>)>> {
    let items = match value {
        Value::Nil => return Some(Vec::new()),
        Value::Array(items) => items,
        _ => return None,
    };
    let mut items = items.into_iter();
    let mut out = Vec::with_capacity(items.len() / 2);
    while let Some(field) = items.next() {
        match (field, items.next()?) {
            (Value::BulkString(field), Value::BulkString(value)) => out.push((field, value)),
            _ => return None,
        }
    }
    Some(out)
}

/// What the replies to `wish(key)` say.
pub(super) fn answer(key: &Key, replies: &mut Replies) -> EngineResult<Option<Record>> {
    let decode = |bytes: Option<Vec<u8>>, record: &dyn Fn(Vec<u8>) -> Option<Record>| {
        bytes.map(|bytes| record(bytes).ok_or_else(|| corrupt(key))).transpose()
    };
    match key {
        Key::Setting | Key::Symlink(_) | Key::Xattr(..) => Ok(replies.bytes(key)?.map(|b| Record::Bytes(b.into()))),
        Key::Counter(_) => Ok(replies.number(key)?.map(Record::Number)),
        Key::SliceRef(..) => Ok(replies.number(key)?.map(|stored| Record::Number(stored.saturating_add(1)))),
        Key::DeletedFile(..) => Ok(replies.score(key)?.map(Record::Number)),
        Key::Attr(_) => decode(replies.bytes(key)?, &|b| Attr::decode(&b).map(Record::Attr)),
        Key::Dentry(..) => decode(replies.bytes(key)?, &|b| decode_dentry(&b).map(Record::Dentry)),
        Key::AclRule(_) => decode(replies.bytes(key)?, &|b| AclRule::decode(&b).map(Record::AclRule)),
        Key::DelayedSlices(..) => decode(replies.bytes(key)?, &|b| decode_delayed(&b).map(Record::Slices)),
        Key::AnyDentry(_) => {
            let entry = replies.pairs(key)?.pop();
            decode(entry.map(|(_, value)| value), &|b| decode_dentry(&b).map(Record::Dentry))
        }
        Key::Chunk(..) => match replies.next(key)? {
            Value::Array(items) => chunk_record(key, &items),
            _ => Err(corrupt(key)),
        },
        Key::LinkParents(_) => hash_record(key, replies.pairs(key)?),
        Key::Xattrs(_) => hash_record(key, replies.pairs(key)?),
        Key::Flocks(_) => hash_record(key, replies.pairs(key)?),
        Key::Plocks(_) => hash_record(key, replies.pairs(key)?),
        Key::DirStat(_) => {
            let (space, length, inodes) = (replies.number(key)?, replies.number(key)?, replies.number(key)?);
            Ok(space.map(|space| {
                let (length, inodes) = (length.unwrap_or(0), inodes.unwrap_or(0));
                Record::DirStat(DirStat { length, space, inodes })
            }))
        }
        Key::Quota(_) => {
            let (limits, space, inodes) = (replies.bytes(key)?, replies.number(key)?, replies.number(key)?);
            inodes.map(|inodes| quota_record(key, limits.as_deref(), space, inodes)).transpose()
        }
        Key::Session(_) => {
            let (expire, info) = (replies.score(key)?, replies.bytes(key)?);
            Ok(expire.map(|expire| Record::Session(Session { expire, info: info.unwrap_or_default().into() })))
        }
        Key::Sustained(..) => match replies.next(key)? {
            Value::Int(member) => Ok((member == 1).then_some(Record::Number(1))),
            _ => Err(corrupt(key)),
        },
    }
}

pub(super) fn quota_record(key: &Key, limits: Option<&[u8]>, space: Option<i64>, inodes: i64) -> EngineResult<Record> {
    let (max_space, max_inodes) = decode_limits(limits.unwrap_or(&NO_LIMITS)).ok_or_else(|| corrupt(key))?;
    Ok(Record::Quota(Quota { max_space, max_inodes, used_space: space.unwrap_or(0), used_inodes: inodes }))
}

fn chunk_record(key: &Key, items: &[Value]) -> EngineResult<Option<Record>> {
    if items.is_empty() {
        return Ok(None);
    }
    let slice = |item: &Value| match item {
        Value::BulkString(bytes) => Slice::decode(bytes),
        _ => None,
    };
    let slices: Option<Vec<Slice>> = items.iter().map(slice).collect();
    Ok(Some(Record::Slices(slices.ok_or_else(|| corrupt(key))?)))
}

/// The record of a collecting key from all its fields; `None` when it has none.
fn hash_record(key: &Key, pairs: Vec<(Vec<u8>, Vec<u8>)>) -> EngineResult<Option<Record>> {
    if pairs.is_empty() {
        return Ok(None);
    }
    let mut bad = false;
    let record = match key {
        Key::LinkParents(_) => {
            let parent = |(field, value): (Vec<u8>, Vec<u8>)| Some((Ino(parse(&field)?), parse_i64(&value)?));
            let mut parents = keep(pairs, parent, &mut bad);
            parents.sort_unstable();
            Record::LinkParents(parents)
        }
        Key::Xattrs(_) => {
            let mut xattrs: Vec<(Name, Bytes)> =
                pairs.into_iter().map(|(name, value)| (Name::stored(name), value.into())).collect();
            xattrs.sort_unstable();
            Record::Xattrs(xattrs)
        }
        Key::Flocks(_) => {
            let holder = |(field, value): (Vec<u8>, Vec<u8>)| {
                let (session, owner) = parse_owner(&field)?;
                let exclusive = match &value[..] {
                    b"W" => true,
                    b"R" => false,
                    _ => return None,
                };
                Some(FlockHolder { session, owner, exclusive })
            };
            let mut holders = keep(pairs, holder, &mut bad);
            holders.sort_unstable_by_key(|h| (h.session, h.owner));
            Record::Flocks(holders)
        }
        Key::Plocks(_) => {
            let holder = |(field, value): (Vec<u8>, Vec<u8>)| {
                let (session, owner) = parse_owner(&field)?;
                Some(PlockHolder { session, owner, ranges: PlockRange::decode_list(&value)? })
            };
            let mut holders = keep(pairs, holder, &mut bad);
            holders.sort_unstable_by_key(|h| (h.session, h.owner));
            Record::Plocks(holders)
        }
        other => return Err(Fault::internal("decode hash").with("key", format_args!("{other:?}")).into()),
    };
    if bad { Err(corrupt(key)) } else { Ok(Some(record)) }
}

fn keep<T>(pairs: Vec<(Vec<u8>, Vec<u8>)>, decode: impl Fn((Vec<u8>, Vec<u8>)) -> Option<T>, bad: &mut bool) -> Vec<T> {
    let count = pairs.len();
    let out: Vec<T> = pairs.into_iter().filter_map(decode).collect();
    *bad = out.len() != count;
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn stored_names_are_read_strictly() {
        assert_eq!(parse_key(b"i1"), Some(Key::Attr(Ino(1))));
        assert_eq!(parse_key(b"i9223372032828243968"), Some(Key::Attr(Ino::TRASH)));
        assert_eq!(parse_key(b"c7_0"), Some(Key::Chunk(Ino(7), ChunkIndex(0))));
        assert_eq!(parse_key(b"lockf3"), Some(Key::Flocks(Ino(3))));
        assert_eq!(parse_key(b"lockp3"), Some(Key::Plocks(Ino(3))));
        for other in [
            "i",
            "i01",
            "i+1",
            "i-1",
            "i1x",
            "info",
            "c7",
            "c7_",
            "c7_0_1",
            "c_1",
            "dirQuota",
            "delfiles",
            "session1",
            "setting",
            "x",
            "lockf",
            "locked1",
            "d18446744073709551616",
        ] {
            assert_eq!(parse_key(other.as_bytes()), None, "{other}");
        }
        for ours in FIXED.iter().copied().chain(["session12", "locked1", "k5_4096", "lockp8", "d1"]) {
            assert!(is_ours(ours.as_bytes()), "{ours}");
        }
        for foreign in ["sessionx", "locked", "k5", "cache:1", "i1:backup", "Setting", ""] {
            assert!(!is_ours(foreign.as_bytes()), "{foreign}");
        }
    }

    #[test]
    fn a_prefix_is_a_hash_tag() {
        let prefix = Prefix::of_cluster(3);
        assert_eq!(prefix.key(attr_key(Ino(1))).as_bytes(), b"{3}i1");
        assert_eq!(prefix.strip(b"{3}i1"), Some(&b"i1"[..]));
        assert_eq!((prefix.strip(b"i1"), prefix.strip(b"{33}i1")), (None, None));
        assert_eq!(Prefix::NONE.key("i1").as_bytes(), b"i1");
        let longest = Prefix::of_cluster(u32::MAX).key(owner_field(SessionId(u64::MAX), u64::MAX));
        assert!(longest.as_bytes().starts_with(b"{4294967295}18446744073709551615_"));
        // As `CLUSTER KEYSLOT` has it.
        assert_eq!([0, 3, 123_456_789].map(|db| Prefix::of_cluster(db).slot()), [13907, 1584, 12739]);
    }

    #[test]
    fn names_and_values_have_the_stored_form() {
        assert_eq!(owner_field(SessionId(1), 0xD9D0_B0A1_C2D3_E4F5).as_bytes(), b"1_D9D0B0A1C2D3E4F5");
        assert_eq!(owner_field(SessionId(u64::MAX), 1).as_bytes(), b"18446744073709551615_0000000000000001");
        assert_eq!(parse_owner(b"1_D9D0B0A1C2D3E4F5"), Some((SessionId(1), 0xD9D0_B0A1_C2D3_E4F5)));
        for other in [&b"1_d9d0b0a1c2d3e4f5"[..], b"1_5", b"01_0000000000000005", b"1_+000000000000005"] {
            assert_eq!(parse_owner(other), None, "{}", other.escape_ascii());
        }
        assert_eq!([&b"+5"[..], b" 5", b"05", b"-0", b"5"].map(parse_i64), [None, None, None, None, Some(5)]);
        assert_eq!(chunk_key(Ino(u64::MAX), ChunkIndex(u32::MAX)).as_bytes().len(), 32);
        assert_eq!(delayed_field(SliceId(u64::MAX), i64::MIN).as_bytes().len(), 41);
        let dentry = Dentry { kind: Kind::Directory, ino: Ino(0x0102) };
        assert_eq!(encode_dentry(dentry), [2, 0, 0, 0, 0, 0, 0, 1, 2]);
        assert_eq!(decode_dentry(&encode_dentry(dentry)), Some(dentry));
        assert_eq!(decode_dentry(&[2, 0, 0]), None);
        assert_eq!(decode_limits(&NO_LIMITS), Some((-1, -1)));
        assert_eq!(parse_score(b"1700000000"), Some(1_700_000_000));
    }
}
