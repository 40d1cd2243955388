//! A `Batch` as the arguments of `commit.lua`: first the checks (guards, and whatever could make a change fail
//! half-way), then the changes. The letters are those of the script.

use super::codec::*;
use crate::base::attr::{ATTR_FIXED_BYTES, offset};
use crate::base::{Attr, AttrPatch, Fault, FieldMask, Ino, Slice, Timestamp};
use crate::meta::engine::{Batch, Change, EngineResult, Guard};
use crate::meta::record::{Key, PlockRange, QuotaOwner, Record};
use redis::Cmd;
use std::fmt::Display;

/// Attributes before the tail (parent, ACL ids, tier): what is compared and patched at fixed offsets.
const HEAD_BYTES: usize = offset::PARENT;

/// Larger deltas could overflow where the script has made room for them.
const DELTA_MAX: u64 = 1_000_000_000_000_000_000;

/// Strings one after another; most batches need two allocations for all of them.
struct Strings {
    bytes: Vec<u8>,
    ends: Vec<usize>,
}

impl Strings {
    fn with_capacity(bytes: usize, count: usize) -> Strings {
        Strings { bytes: Vec::with_capacity(bytes), ends: Vec::with_capacity(count) }
    }

    /// Both as one.
    fn push_joined(&mut self, prefix: &Prefix, string: &[u8]) {
        self.bytes.extend_from_slice(prefix.as_bytes());
        self.push(string);
    }

    fn push(&mut self, string: &[u8]) {
        self.bytes.extend_from_slice(string);
        self.ends.push(self.bytes.len());
    }

    fn iter(&self) -> impl Iterator<Item = &[u8]> {
        self.ends.iter().scan(0, |start, end| Some(&self.bytes[std::mem::replace(start, *end)..*end]))
    }
}

/// One list of steps: checks or changes.
pub(super) struct Steps {
    prefix: Prefix,
    count: usize,
    keys: Strings,
    args: Strings,
}

impl Steps {
    fn new(prefix: Prefix) -> Steps {
        Steps { prefix, count: 0, keys: Strings::with_capacity(128, 8), args: Strings::with_capacity(512, 32) }
    }

    pub(super) fn keys(&self) -> impl Iterator<Item = &[u8]> {
        self.keys.iter()
    }

    pub(super) fn args(&self) -> impl Iterator<Item = &[u8]> {
        self.args.iter()
    }

    fn op(&mut self, op: &[u8; 1]) -> &mut Steps {
        self.count += 1;
        self.args.push(op);
        self
    }

    fn key(&mut self, key: impl AsRef<[u8]>) -> &mut Steps {
        self.keys.push_joined(&self.prefix, key.as_ref());
        self
    }

    /// A key as a value.
    fn key_arg(&mut self, key: &Text) -> &mut Steps {
        self.args.push_joined(&self.prefix, key.as_bytes());
        self
    }

    fn arg(&mut self, arg: &[u8]) -> &mut Steps {
        self.args.push(arg);
        self
    }

    fn number(&mut self, number: impl Display) -> &mut Steps {
        self.arg(text!("{number}").as_bytes())
    }
}

/// The arguments behind the script's name: number of keys, keys, number of checks, checks, changes.
pub(super) struct Encoded {
    checks: Steps,
    changes: Steps,
    /// Goes through on a full server as well.
    pub(super) vital: bool,
}

impl Encoded {
    pub(super) fn new(batch: &Batch, prefix: Prefix) -> EngineResult<Encoded> {
        let vital = batch.changes.iter().any(is_vital);
        let mut encoded = Encoded { checks: Steps::new(prefix), changes: Steps::new(prefix), vital };
        // Removals take no memory: one that comes first opens the way for the rest.
        if vital && !matches!(batch.changes.first(), Some(Change::Delete(_))) {
            // Its type is what the session's own record needs as well. No field is named so.
            encoded.typed(SESSION_INFOS, "HLEN");
            encoded.changes.op(b"o").key(SESSION_INFOS);
        }
        for guard in &batch.guards {
            encoded.guard(guard);
        }
        for (at, change) in batch.changes.iter().enumerate() {
            if let Change::Patch(ino, _) = change {
                patched_node_stays(*ino, &batch.changes[..at])?;
            }
            encoded.change(change)?;
        }
        Ok(encoded)
    }

    pub(super) fn checks(&self) -> &Steps {
        &self.checks
    }

    pub(super) fn changes(&self) -> &Steps {
        &self.changes
    }

    /// EVALSHA with the hash of the script, or EVAL with its text.
    pub(super) fn command(&self, name: &str, script: &str) -> Cmd {
        let parts = [&self.checks.keys, &self.changes.keys, &self.checks.args, &self.changes.args];
        let count: usize = parts.iter().map(|part| part.ends.len()).sum();
        let bytes: usize = parts.iter().map(|part| part.bytes.len()).sum();
        let mut cmd = Cmd::with_capacity(count + 4, bytes + name.len() + script.len() + 16);
        cmd.arg(name).arg(script).arg(self.checks.keys.ends.len() + self.changes.keys.ends.len());
        for key in self.checks.keys.iter().chain(self.changes.keys.iter()) {
            cmd.arg(key);
        }
        cmd.arg(self.checks.count);
        for arg in self.checks.args.iter().chain(self.changes.args.iter()) {
            cmd.arg(arg);
        }
        cmd
    }

    fn guard(&mut self, guard: &Guard) {
        let checks = &mut self.checks;
        match guard {
            Guard::Fields(ino, attr, mask) => fields(checks, *ino, attr, *mask),
            Guard::Same(key, record) => same(checks, key, record),
            Guard::Absent(key) => absent(checks, key),
            Guard::ChunkPrefix(ino, index, slices) => prefix(checks, chunk_key(*ino, *index), slices),
        }
    }

    fn change(&mut self, change: &Change) -> EngineResult<()> {
        match change {
            Change::Put(key, record) => return self.put(key, record),
            Change::Delete(key) => self.delete(key),
            Change::Patch(ino, patch) => self.patch(*ino, patch),
            Change::Append { ino, index, slices, only_existing } => {
                let key = chunk_key(*ino, *index);
                self.typed(&key, "LLEN");
                self.changes.op(b"A").key(&key).arg(if *only_existing { b"1" } else { b"0" }).number(slices.len());
                for slice in slices {
                    self.changes.arg(&slice.encode());
                }
            }
            Change::ReplacePrefix { ino, index, count, with } => {
                let key = chunk_key(*ino, *index);
                self.checks.op(b"p").key(&key).number(count);
                self.changes.op(b"T").key(&key).number(count).number(with.len());
                for slice in with.iter().rev() {
                    self.changes.arg(&slice.encode());
                }
            }
            Change::AddCounter(counter, delta) => {
                bounded(*delta)?;
                self.checks.op(b"n").key(counter_name(*counter));
                self.changes.op(b"+").key(counter_name(*counter)).number(delta);
            }
            Change::AddLinkParent { ino, parent, delta } => {
                self.add(parents_key(*ino), &text!("{parent}"), *delta)?;
            }
            Change::AddSliceRef { id, size, delta } => {
                bounded(*delta)?;
                let field = slice_ref_field(*id, *size);
                self.checks.op(b"i").key(SLICE_REFS).arg(field.as_bytes());
                self.changes.op(b"R").key(SLICE_REFS).arg(field.as_bytes()).number(delta);
            }
            Change::AddDirStat(ino, delta) => {
                let added = [(DIR_SPACE, delta.space), (DIR_LENGTH, delta.length), (DIR_INODES, delta.inodes)];
                self.add_where(DIR_SPACE, &text!("{ino}"), &added)?;
            }
            Change::AddQuota { owner, space, inodes } => {
                let [_, spaces, counts] = quota_hashes(*owner);
                let added = [(spaces, *space), (counts, *inodes)];
                self.add_where(counts, &text!("{}", quota_field(*owner)), &added)?;
            }
            Change::SetFlock { ino, session, owner, exclusive, last } => {
                let (key, field) = (flocks_key(*ino), owner_field(*session, *owner));
                match exclusive {
                    Some(exclusive) => self.put_field(&key, field.as_bytes(), encode_flock(*exclusive)),
                    None => self.delete_field(&key, field.as_bytes()),
                }
                self.hold(locked_key(*session), &key, exclusive.is_some(), *last);
            }
            Change::SetPlock { ino, session, owner, ranges, last } => {
                let (key, field) = (plocks_key(*ino), owner_field(*session, *owner));
                if ranges.is_empty() {
                    self.delete_field(&key, field.as_bytes());
                } else {
                    self.put_field(&key, field.as_bytes(), &PlockRange::encode_list(ranges));
                }
                self.hold(locked_key(*session), &key, !ranges.is_empty(), *last);
            }
        }
        Ok(())
    }

    fn put(&mut self, key: &Key, record: &Record) -> EngineResult<()> {
        match (key, record) {
            (Key::Attr(ino), Record::Attr(attr)) => {
                self.changes.op(b"s").key(attr_key(*ino)).arg(&attr.encode());
            }
            (Key::Setting | Key::Symlink(_), Record::Bytes(value)) => {
                self.changes.op(b"S").key(plain_name(key)).arg(value);
            }
            (Key::Counter(_), Record::Number(n)) => {
                self.changes.op(b"S").key(plain_name(key)).number(n);
            }
            (Key::Dentry(dir, name), Record::Dentry(dentry)) => {
                self.put_field(dir_key(*dir), name.as_bytes(), &encode_dentry(*dentry));
            }
            (Key::Chunk(ino, index), Record::Slices(slices)) => {
                self.changes.op(b"C").key(chunk_key(*ino, *index)).number(slices.len());
                for slice in slices {
                    self.changes.arg(&slice.encode());
                }
            }
            // One reference is stored as nothing.
            (Key::SliceRef(id, size), Record::Number(1)) => {
                self.delete_field(SLICE_REFS, slice_ref_field(*id, *size).as_bytes());
            }
            (Key::SliceRef(id, size), Record::Number(n)) => {
                let stored = text!("{}", n.saturating_sub(1));
                self.put_field(SLICE_REFS, slice_ref_field(*id, *size).as_bytes(), stored.as_bytes());
            }
            (Key::Xattr(ino, name), Record::Bytes(value)) => {
                self.put_field(xattrs_key(*ino), name.as_bytes(), value);
            }
            (Key::AclRule(id), Record::AclRule(rule)) => {
                self.put_field(ACL, text!("{id}").as_bytes(), &rule.encode());
            }
            (Key::DirStat(ino), Record::DirStat(stat)) => {
                let field = text!("{ino}");
                for (hash, n) in [(DIR_LENGTH, stat.length), (DIR_SPACE, stat.space), (DIR_INODES, stat.inodes)] {
                    self.put_field(hash, field.as_bytes(), text!("{n}").as_bytes());
                }
            }
            (Key::Quota(owner), Record::Quota(quota)) => {
                let ([limits, spaces, counts], field) = (quota_hashes(*owner), text!("{}", quota_field(*owner)));
                self.put_field(limits, field.as_bytes(), &encode_limits(quota));
                self.put_field(spaces, field.as_bytes(), text!("{}", quota.used_space).as_bytes());
                self.put_field(counts, field.as_bytes(), text!("{}", quota.used_inodes).as_bytes());
            }
            (Key::Session(session), Record::Session(record)) => {
                let member = text!("{session}");
                self.put_member(ALL_SESSIONS, record.expire, &member);
                if record.info.is_empty() {
                    self.delete_field(SESSION_INFOS, member.as_bytes());
                } else {
                    self.put_field(SESSION_INFOS, member.as_bytes(), &record.info);
                }
            }
            (Key::Sustained(session, ino), Record::Number(_)) => {
                let key = sustained_key(*session);
                self.typed(&key, "SCARD");
                self.changes.op(b"a").key(&key).number(ino);
            }
            (Key::DeletedFile(ino, length), Record::Number(time)) => {
                self.put_member(DELETED_FILES, *time, &deleted_member(*ino, *length));
            }
            (Key::DelayedSlices(id, time), Record::Slices(slices)) => {
                self.put_field(DELAYED_SLICES, delayed_field(*id, *time).as_bytes(), &encode_slices(key, slices));
            }
            (key, record) => {
                return Err(Fault::internal("put record")
                    .with("key", format_args!("{key:?}"))
                    .with("record", format_args!("{record:?}"))
                    .into());
            }
        }
        Ok(())
    }

    fn delete(&mut self, key: &Key) {
        let unlink = |changes: &mut Steps, name: Text| {
            changes.op(b"U").key(name);
        };
        match key {
            Key::Setting | Key::Symlink(_) | Key::Counter(_) => unlink(&mut self.changes, plain_name(key)),
            Key::Attr(ino) => unlink(&mut self.changes, attr_key(*ino)),
            Key::Dentry(dir, name) => self.delete_field(dir_key(*dir), name.as_bytes()),
            Key::AnyDentry(_) => {}
            Key::LinkParents(ino) => unlink(&mut self.changes, parents_key(*ino)),
            Key::Chunk(ino, index) => unlink(&mut self.changes, chunk_key(*ino, *index)),
            Key::SliceRef(id, size) => self.delete_field(SLICE_REFS, slice_ref_field(*id, *size).as_bytes()),
            Key::Xattr(ino, name) => self.delete_field(xattrs_key(*ino), name.as_bytes()),
            Key::Xattrs(ino) => unlink(&mut self.changes, xattrs_key(*ino)),
            Key::AclRule(id) => self.delete_field(ACL, text!("{id}").as_bytes()),
            Key::DirStat(ino) => {
                for hash in [DIR_LENGTH, DIR_SPACE, DIR_INODES] {
                    self.delete_field(hash, text!("{ino}").as_bytes());
                }
            }
            Key::Quota(owner) => {
                for hash in quota_hashes(*owner) {
                    self.delete_field(hash, text!("{}", quota_field(*owner)).as_bytes());
                }
            }
            Key::Session(session) => {
                let member = text!("{session}");
                self.delete_member(ALL_SESSIONS, &member);
                self.delete_field(SESSION_INFOS, member.as_bytes());
            }
            Key::Sustained(session, ino) => {
                let key = sustained_key(*session);
                self.typed(&key, "SCARD");
                self.changes.op(b"r").key(&key).number(ino);
            }
            Key::DeletedFile(ino, length) => self.delete_member(DELETED_FILES, &deleted_member(*ino, *length)),
            Key::DelayedSlices(id, time) => {
                self.delete_field(DELAYED_SLICES, delayed_field(*id, *time).as_bytes());
            }
            Key::Flocks(ino) => unlink(&mut self.changes, flocks_key(*ino)),
            Key::Plocks(ino) => unlink(&mut self.changes, plocks_key(*ino)),
        }
    }

    fn patch(&mut self, ino: Ino, patch: &AttrPatch) {
        let key = attr_key(ino);
        self.checks.op(b"F").key(&key);
        self.checks.op(b"c");
        let set = |field| patch.mask.has(field);
        // Ranges of the head that are set outright, neighbours joined: a touch is one range.
        let mut head = [0u8; HEAD_BYTES];
        let mut ranges = Ranges::default();
        let mut put = |field, at: usize, bytes: &[u8]| {
            if set(field) {
                head[at..at + bytes.len()].copy_from_slice(bytes);
                ranges.add(at, at + bytes.len());
            }
        };
        put(FieldMask::FLAGS, offset::FLAGS, &[patch.flags]);
        put(FieldMask::UID, offset::UID, &patch.uid.to_be_bytes());
        put(FieldMask::GID, offset::GID, &patch.gid.to_be_bytes());
        put(FieldMask::ATIME, offset::ATIME, &encode_time(patch.atime));
        put(FieldMask::MTIME, offset::MTIME, &encode_time(patch.mtime));
        put(FieldMask::CTIME, offset::CTIME, &encode_time(patch.ctime));
        put(FieldMask::LENGTH, offset::LENGTH, &patch.length.to_be_bytes());
        let changes = self.changes.op(b"P").key(&key).number(ranges.len);
        for (start, end) in ranges.iter() {
            changes.number(start + 1).arg(&head[start..end]);
        }
        optional(changes, set(FieldMask::MODE), text!("{}", patch.mode & 0o7777).as_bytes());
        optional(changes, patch.nlink != 0, text!("{}", patch.nlink).as_bytes());
        let grown = patch.length_at_least.filter(|length| *length > 0);
        optional(changes, grown.is_some(), &grown.unwrap_or(0).to_be_bytes());
        optional(changes, set(FieldMask::PARENT), &patch.parent.0.to_be_bytes());
        optional(changes, set(FieldMask::ACLS), &encode_acls(patch.access_acl, patch.default_acl));
        optional(changes, set(FieldMask::TIER), &[patch.tier]);
    }

    /// A change of the key will not fail half-way because the key holds something else.
    fn typed(&mut self, key: impl AsRef<[u8]>, command: &str) {
        self.checks.op(b"w").key(key).arg(command.as_bytes());
    }

    fn put_field(&mut self, key: impl AsRef<[u8]>, field: &[u8], value: &[u8]) {
        self.typed(&key, "HLEN");
        self.changes.op(b"h").key(key).arg(field).arg(value);
    }

    fn delete_field(&mut self, key: impl AsRef<[u8]>, field: &[u8]) {
        self.typed(&key, "HLEN");
        self.changes.op(b"x").key(key).arg(field);
    }

    fn put_member(&mut self, key: &str, score: i64, member: &Text) {
        self.typed(key, "ZCARD");
        self.changes.op(b"z").key(key).number(score).arg(member.as_bytes());
    }

    fn delete_member(&mut self, key: &str, member: &Text) {
        self.typed(key, "ZCARD");
        self.changes.op(b"y").key(key).arg(member.as_bytes());
    }

    fn add(&mut self, key: impl AsRef<[u8]>, field: &Text, delta: i64) -> EngineResult<()> {
        bounded(delta)?;
        self.checks.op(b"i").key(&key).arg(field.as_bytes());
        self.changes.op(b"i").key(key).arg(field.as_bytes()).number(delta);
        Ok(())
    }

    /// Adds to a field of several hashes if `wanted` has the field.
    fn add_where(&mut self, wanted: &str, field: &Text, added: &[(&str, i64)]) -> EngineResult<()> {
        let steps = added.iter().filter(|(_, delta)| *delta != 0).count();
        self.typed(wanted, "HLEN");
        self.changes.op(b"c").key(wanted).arg(field.as_bytes()).number(steps);
        for (hash, delta) in added.iter().filter(|(_, delta)| *delta != 0) {
            self.add(hash, field, *delta)?;
        }
        Ok(())
    }

    /// Keeps `locked{sid}`, the list of lock keys in which a session holds something.
    fn hold(&mut self, locked: Text, key: &Text, held: bool, last: bool) {
        if held || last {
            self.typed(&locked, "SCARD");
            self.changes.op(if held { b"a" } else { b"r" }).key(locked).key_arg(key);
        }
    }
}

/// Whether a batch with this change must go through on a server whose memory is full: removals make room there, and a
/// client that cannot renew its session is taken for dead by the others. What such a batch adds beside is little.
fn is_vital(change: &Change) -> bool {
    match change {
        Change::Delete(_) | Change::Put(Key::Session(_), _) => true,
        // Leases, of jobs that remove what nobody needs.
        Change::Put(Key::Counter(_), _) => true,
        // The trash's directory of this hour, without which nothing can be removed.
        Change::Put(Key::Dentry(Ino::TRASH, _), _) => true,
        Change::SetFlock { exclusive, .. } => exclusive.is_none(),
        Change::SetPlock { ranges, .. } => ranges.is_empty(),
        Change::Put(..)
        | Change::Patch(..)
        | Change::Append { .. }
        | Change::ReplacePrefix { .. }
        | Change::AddCounter(..)
        | Change::AddLinkParent { .. }
        | Change::AddSliceRef { .. }
        | Change::AddDirStat(..)
        | Change::AddQuota { .. } => false,
    }
}

fn plain_name(key: &Key) -> Text {
    string_name(key).expect("settings, counters, symlinks and attributes are plain strings")
}

fn optional(steps: &mut Steps, set: bool, arg: &[u8]) {
    steps.arg(if set { arg } else { b"" });
}

/// A patch of what the same batch has deleted would fail half-way.
fn patched_node_stays(ino: Ino, before: &[Change]) -> EngineResult<()> {
    let last = before.iter().rev().find(|change| match change {
        Change::Put(Key::Attr(other), _) | Change::Delete(Key::Attr(other)) => *other == ino,
        _ => false,
    });
    match last {
        Some(Change::Delete(_)) => Err(Fault::internal("commit")
            .with("inode", ino)
            .source("patch of a node that the same batch deletes")
            .into()),
        _ => Ok(()),
    }
}

fn bounded(delta: i64) -> EngineResult<()> {
    if delta.unsigned_abs() < DELTA_MAX {
        return Ok(());
    }
    Err(Fault::internal("commit").with("delta", delta).source("no counter changes by so much").into())
}

fn encode_time(time: Timestamp) -> [u8; 12] {
    let mut out = [0; 12];
    out[..8].copy_from_slice(&time.seconds.to_be_bytes());
    out[8..].copy_from_slice(&time.nanos.to_be_bytes());
    out
}

fn encode_acls(access: u32, default: u32) -> [u8; 8] {
    (u64::from(access) << 32 | u64::from(default)).to_be_bytes()
}

/// Up to seven byte ranges in ascending order; ranges that touch become one.
#[derive(Default)]
struct Ranges {
    list: [(usize, usize); 7],
    len: usize,
}

impl Ranges {
    fn add(&mut self, start: usize, end: usize) {
        match self.list[..self.len].last_mut() {
            Some(last) if last.1 == start => last.1 = end,
            _ => {
                self.list[self.len] = (start, end);
                self.len += 1;
            }
        }
    }

    fn iter(&self) -> impl Iterator<Item = (usize, usize)> {
        self.list[..self.len].iter().copied()
    }
}

/// The head's fields are compared where they lie; kind and mode share two bytes; the tail is decoded by the script.
fn fields(checks: &mut Steps, ino: Ino, attr: &Attr, mask: FieldMask) {
    checks.op(b"F").key(attr_key(ino));
    let bytes = attr.encode();
    let mut ranges = Ranges::default();
    let both = FieldMask::KIND | FieldMask::MODE;
    let places = [
        (FieldMask::FLAGS, offset::FLAGS, 1),
        (both, offset::KIND_MODE, 2),
        (FieldMask::UID, offset::UID, 4),
        (FieldMask::GID, offset::GID, 4),
        (FieldMask::ATIME, offset::ATIME, 12),
        (FieldMask::MTIME, offset::MTIME, 12),
        (FieldMask::CTIME, offset::CTIME, 12),
        (FieldMask::NLINK, offset::NLINK, 4),
        (FieldMask::LENGTH, offset::LENGTH, 8),
        (FieldMask::RDEV, offset::RDEV, 4),
    ];
    for (_, at, length) in places.into_iter().filter(|(field, ..)| mask.has(*field)) {
        ranges.add(at, at + length);
    }
    for (start, end) in ranges.iter() {
        checks.op(b"f").number(start + 1).arg(&bytes[start..end]);
    }
    if !mask.has(both) {
        if mask.has(FieldMask::KIND) {
            checks.op(b"k").number(attr.kind.code());
        }
        if mask.has(FieldMask::MODE) {
            checks.op(b"m").number(attr.mode & 0o7777);
        }
    }
    if mask.0 & (FieldMask::PARENT | FieldMask::ACLS | FieldMask::TIER).0 != 0 {
        checks.op(b"t");
        optional(checks, mask.has(FieldMask::PARENT), &bytes[offset::PARENT..ATTR_FIXED_BYTES]);
        optional(checks, mask.has(FieldMask::ACLS), &encode_acls(attr.access_acl, attr.default_acl));
        optional(checks, mask.has(FieldMask::TIER), &[attr.tier]);
    }
}

fn prefix(checks: &mut Steps, key: Text, slices: &[Slice]) {
    checks.op(b"L").key(key).number(slices.len()).arg(&Slice::encode_list(slices));
}

/// A field with this value.
fn field(checks: &mut Steps, key: impl AsRef<[u8]>, field: &[u8], value: &[u8]) {
    checks.op(b"H").key(key).arg(field).arg(value);
}

/// A field with this value; when it is not there it counts as `default`.
fn field_or(checks: &mut Steps, key: impl AsRef<[u8]>, field: &[u8], default: &[u8], value: &[u8]) {
    checks.op(b"D").key(key).arg(field).arg(default).arg(value);
}

/// A record that no load can have answered for its key holds never: `F` of a node that cannot exist.
fn never(checks: &mut Steps) {
    checks.op(b"F").key("i0");
}

/// A hash with exactly these fields.
fn whole<F: AsRef<[u8]>, V: AsRef<[u8]>>(checks: &mut Steps, key: Text, pairs: impl ExactSizeIterator<Item = (F, V)>) {
    checks.op(b"A").key(key).number(pairs.len());
    for (field, value) in pairs {
        checks.arg(field.as_ref()).arg(value.as_ref());
    }
}

fn same(checks: &mut Steps, key: &Key, record: &Record) {
    match (key, record) {
        (Key::Attr(ino), Record::Attr(attr)) => fields(checks, *ino, attr, FieldMask::ALL),
        (Key::Setting | Key::Symlink(_), Record::Bytes(value)) => {
            checks.op(b"G").key(plain_name(key)).arg(value);
        }
        (Key::Counter(_), Record::Number(n)) => {
            checks.op(b"G").key(plain_name(key)).number(n);
        }
        (Key::Dentry(dir, name), Record::Dentry(dentry)) => {
            field(checks, dir_key(*dir), name.as_bytes(), &encode_dentry(*dentry));
        }
        // Which entry was answered does not matter: the question was whether there is any.
        (Key::AnyDentry(dir), Record::Dentry(_)) => {
            checks.op(b"E").key(dir_key(*dir)).arg(b"1");
        }
        (Key::LinkParents(ino), Record::LinkParents(parents)) => {
            whole(checks, parents_key(*ino), parents.iter().map(|(p, n)| (text!("{p}"), text!("{n}"))));
        }
        (Key::Chunk(ino, index), Record::Slices(slices)) => {
            prefix(checks, chunk_key(*ino, *index), slices);
            checks.op(b"l").key(chunk_key(*ino, *index)).number(slices.len());
        }
        (Key::SliceRef(id, size), Record::Number(n)) => {
            let (name, stored) = (slice_ref_field(*id, *size), text!("{}", n.saturating_sub(1)));
            field_or(checks, SLICE_REFS, name.as_bytes(), b"0", stored.as_bytes());
        }
        (Key::Xattr(ino, name), Record::Bytes(value)) => field(checks, xattrs_key(*ino), name.as_bytes(), value),
        (Key::Xattrs(ino), Record::Xattrs(xattrs)) => {
            whole(checks, xattrs_key(*ino), xattrs.iter().map(|(name, value)| (name.as_bytes(), value)));
        }
        (Key::AclRule(id), Record::AclRule(rule)) => field(checks, ACL, text!("{id}").as_bytes(), &rule.encode()),
        (Key::DirStat(ino), Record::DirStat(stat)) => {
            let name = text!("{ino}");
            field(checks, DIR_SPACE, name.as_bytes(), text!("{}", stat.space).as_bytes());
            field_or(checks, DIR_LENGTH, name.as_bytes(), b"0", text!("{}", stat.length).as_bytes());
            field_or(checks, DIR_INODES, name.as_bytes(), b"0", text!("{}", stat.inodes).as_bytes());
        }
        (Key::Quota(owner), Record::Quota(quota)) => {
            let ([limits, spaces, counts], name) = (quota_hashes(*owner), text!("{}", quota_field(*owner)));
            field(checks, counts, name.as_bytes(), text!("{}", quota.used_inodes).as_bytes());
            field_or(checks, spaces, name.as_bytes(), b"0", text!("{}", quota.used_space).as_bytes());
            field_or(checks, limits, name.as_bytes(), &NO_LIMITS, &encode_limits(quota));
        }
        (Key::Session(session), Record::Session(record)) => {
            let member = text!("{session}");
            checks.op(b"Z").key(ALL_SESSIONS).arg(member.as_bytes()).number(record.expire);
            field_or(checks, SESSION_INFOS, member.as_bytes(), b"", &record.info);
        }
        (Key::Sustained(session, ino), Record::Number(_)) => {
            checks.op(b"M").key(sustained_key(*session)).number(ino).arg(b"1");
        }
        (Key::DeletedFile(ino, length), Record::Number(time)) => {
            checks.op(b"Z").key(DELETED_FILES).arg(deleted_member(*ino, *length).as_bytes()).number(time);
        }
        (Key::DelayedSlices(id, time), Record::Slices(slices)) => {
            field(checks, DELAYED_SLICES, delayed_field(*id, *time).as_bytes(), &encode_slices(key, slices));
        }
        (Key::Flocks(ino), Record::Flocks(holders)) => {
            let pair =
                |h: &crate::meta::record::FlockHolder| (owner_field(h.session, h.owner), encode_flock(h.exclusive));
            whole(checks, flocks_key(*ino), holders.iter().map(pair));
        }
        (Key::Plocks(ino), Record::Plocks(holders)) => {
            let pair = |h: &crate::meta::record::PlockHolder| {
                (owner_field(h.session, h.owner), PlockRange::encode_list(&h.ranges))
            };
            whole(checks, plocks_key(*ino), holders.iter().map(pair));
        }
        _ => never(checks),
    }
}

fn absent(checks: &mut Steps, key: &Key) {
    let no_key = |checks: &mut Steps, name: Text| {
        checks.op(b"E").key(name).arg(b"0");
    };
    let no_field = |checks: &mut Steps, name: &[u8], field: &[u8]| {
        checks.op(b"h").key(name).arg(field);
    };
    match key {
        Key::Setting | Key::Symlink(_) | Key::Counter(_) | Key::Attr(_) => no_key(checks, plain_name(key)),
        Key::AnyDentry(dir) => no_key(checks, dir_key(*dir)),
        Key::LinkParents(ino) => no_key(checks, parents_key(*ino)),
        Key::Chunk(ino, index) => no_key(checks, chunk_key(*ino, *index)),
        Key::Xattrs(ino) => no_key(checks, xattrs_key(*ino)),
        Key::Flocks(ino) => no_key(checks, flocks_key(*ino)),
        Key::Plocks(ino) => no_key(checks, plocks_key(*ino)),
        Key::Dentry(dir, name) => no_field(checks, dir_key(*dir).as_bytes(), name.as_bytes()),
        Key::Xattr(ino, name) => no_field(checks, xattrs_key(*ino).as_bytes(), name.as_bytes()),
        Key::AclRule(id) => no_field(checks, ACL.as_bytes(), text!("{id}").as_bytes()),
        Key::DirStat(ino) => no_field(checks, DIR_SPACE.as_bytes(), text!("{ino}").as_bytes()),
        Key::Quota(owner @ (QuotaOwner::Directory(_) | QuotaOwner::User(_) | QuotaOwner::Group(_))) => {
            no_field(checks, quota_hashes(*owner)[2].as_bytes(), text!("{}", quota_field(*owner)).as_bytes());
        }
        Key::DelayedSlices(id, time) => {
            no_field(checks, DELAYED_SLICES.as_bytes(), delayed_field(*id, *time).as_bytes());
        }
        // Nothing on record means one reference, and so does a zero.
        Key::SliceRef(id, size) => {
            field_or(checks, SLICE_REFS, slice_ref_field(*id, *size).as_bytes(), b"0", b"0");
        }
        Key::Session(session) => {
            checks.op(b"Z").key(ALL_SESSIONS).number(session).arg(b"");
        }
        Key::Sustained(session, ino) => {
            checks.op(b"M").key(sustained_key(*session)).number(ino).arg(b"0");
        }
        Key::DeletedFile(ino, length) => {
            checks.op(b"Z").key(DELETED_FILES).arg(deleted_member(*ino, *length).as_bytes()).arg(b"");
        }
    }
}
