//! One commit as one script: locks and guards first, then the changes; see the module for why that keeps the contract.

use super::load::rows;
use super::script::{Script, Value};
use super::{ServerKind, Shared, write_error};
use crate::base::acl::encode_entries;
use crate::base::slice::SLICE_RECORD_BYTES;
use crate::base::{Attr, AttrPatch, FaultKind, FieldMask, Ino, Name, Slice, Timestamp};
use crate::meta::engine::gathered::is_gathered;
use crate::meta::engine::sql::dialect::ServerDialect;
use crate::meta::engine::sql::records::{
    counter_name, counter_shift, counter_start, flock_letter, node_columns, quota_key, split_time,
};
use crate::meta::engine::sql::rows::Columns;
use crate::meta::engine::{Batch, Change, Committed, EngineError, EngineResult, Guard};
use crate::meta::record::{Counter, Key, PlockRange, Quota, QuotaOwner, Record, encode_delayed};
use std::collections::{BTreeMap, HashSet};
use std::iter::Peekable;

fn number(ino: Ino) -> Value<'static> {
    Value::Int(ino.0 as i64)
}

/// What a commit has to do with a node.
#[derive(Default)]
struct Claim {
    /// It changes the node, or its locks, which count as a part of it here.
    exclusive: bool,
    /// What its row must be like; the row has to be there if this is `Some`.
    conditions: Option<String>,
    /// It changes the node if this holds, and otherwise not.
    stale: Option<String>,
}

/// That a node has not been touched since.
fn is_stale(since: Timestamp) -> String {
    format!(" AND mtime <= {}", split_time(since).0)
}

/// Adds to a counter, in a transaction that the script has begun.
pub(super) fn add_to_counter(
    script: &mut Script,
    dialect: &ServerDialect,
    table: &str,
    name: &str,
    counter: Counter,
    delta: i64,
) {
    let tail = upsert_tail(dialect, &["name"], &[format!("value = {} + ?", (dialect.present)(table, "value"))]);
    let values =
        [Value::Text(name.as_bytes()), Value::Int(counter_start(counter).saturating_add(delta)), Value::Int(delta)];
    script.add(&format!("INSERT INTO {table} (name, value) VALUES (?, ?) {tail}"), &values);
}

/// The end of an insert that becomes an update with these assignments.
fn upsert_tail(dialect: &ServerDialect, keys: &[&str], assignments: &[String]) -> String {
    let assignments = assignments.join(", ");
    match dialect.of.quote {
        '`' => format!("ON DUPLICATE KEY UPDATE {assignments}"),
        _ => format!("ON CONFLICT ({}) DO UPDATE SET {assignments}", keys.join(", ")),
    }
}

/// Columns of a field, by their names, with their places among the columns of a node.
const FIELDS: &[(FieldMask, &[(&str, usize)])] = &[
    (FieldMask::FLAGS, &[("flags", 1)]),
    (FieldMask::KIND, &[("type", 0)]),
    (FieldMask::MODE, &[("mode", 2)]),
    (FieldMask::UID, &[("uid", 3)]),
    (FieldMask::GID, &[("gid", 4)]),
    (FieldMask::ATIME, &[("atime", 5), ("atimensec", 8)]),
    (FieldMask::MTIME, &[("mtime", 6), ("mtimensec", 9)]),
    (FieldMask::CTIME, &[("ctime", 7), ("ctimensec", 10)]),
    (FieldMask::NLINK, &[("nlink", 11)]),
    (FieldMask::LENGTH, &[("length", 12)]),
    (FieldMask::RDEV, &[("rdev", 13)]),
    (FieldMask::PARENT, &[("parent", 14)]),
    (FieldMask::ACLS, &[("access_acl_id", 15), ("default_acl_id", 16)]),
    (FieldMask::TIER, &[("tier_id", 17)]),
];
const MODE_BITS: i64 = 0o7777;

/// That the fields of a node's row are those of `attr`.
fn fields_are(attr: &Attr, mask: FieldMask) -> String {
    let columns = node_columns(attr);
    let mut conditions = String::new();
    for (_, named) in FIELDS.iter().filter(|(field, _)| mask.has(*field)) {
        for (name, at) in *named {
            let value = columns[*at];
            conditions += &match *name {
                // More than the permission bits may be stored there.
                "mode" => format!(" AND (mode & {MODE_BITS}) = {value}"),
                "rdev" | "parent" | "access_acl_id" | "default_acl_id" | "tier_id" => {
                    format!(" AND COALESCE({name}, 0) = {value}")
                }
                name => format!(" AND {name} = {value}"),
            };
        }
    }
    conditions
}

fn all_fields() -> FieldMask {
    FIELDS.iter().fold(FieldMask::default(), |mask, (field, _)| mask | *field)
}

impl Shared {
    /// `whole`: with what is gathered otherwise.
    pub(super) async fn commit(&self, batch: &Batch, whole: bool) -> EngineResult<Committed> {
        let (script, reports) = self.script_of(batch, whole)?;
        let answers = self.driver.run(script.text, "commit").await.map_err(|failed| write_error(failed, "commit"))?;
        let numbers = |places: &[usize]| {
            let number = |at: &usize| rows(&answers, *at).first().map_or(Some(0), |row| row.int(0));
            places.iter().map(number).collect::<Option<Vec<i64>>>()
        };
        match (numbers(&reports.list_bytes), numbers(&reports.references)) {
            (Some(bytes), Some(references)) => Ok(Committed {
                list_lengths: bytes.into_iter().map(|bytes| bytes as usize / SLICE_RECORD_BYTES).collect(),
                references,
            }),
            // It was applied.
            _ => Err(EngineError::Undetermined(
                self.fault(FaultKind::Undetermined, "commit").source("an answer of another shape"),
            )),
        }
    }

    fn script_of(&self, batch: &Batch, whole: bool) -> EngineResult<(Script, Reports)> {
        let mut script = self.script();
        script.raw(self.dialect.begin);
        self.lock_nodes(batch, &mut script);
        for guard in &batch.guards {
            self.guard(guard, batch, &mut script)?;
        }
        let absent: HashSet<&Key> = batch
            .guards
            .iter()
            .filter_map(|guard| match guard {
                Guard::Absent(key) => Some(key),
                _ => None,
            })
            .collect();
        let mut reports = Reports::default();
        let mut changes = batch.changes.iter().filter(|change| whole || !is_gathered(change)).peekable();
        while let Some(change) = changes.peek() {
            match change {
                Change::Put(..) => self.put_all(&mut changes, &absent, &mut script)?,
                _ => self.change(changes.next().expect("peeked"), &mut script, &mut reports)?,
            }
        }
        script.raw("COMMIT");
        Ok((script, reports))
    }

    /// In the order of their numbers, so that two commits do not wait for each other.
    fn lock_nodes(&self, batch: &Batch, script: &mut Script) {
        let mut claims: BTreeMap<Ino, Claim> = BTreeMap::new();
        for guard in &batch.guards {
            match guard {
                Guard::Fields(ino, attr, mask) => {
                    *claims.entry(*ino).or_default().conditions.get_or_insert_default() += &fields_are(attr, *mask);
                }
                Guard::Same(Key::Attr(ino), Record::Attr(attr)) => {
                    let conditions = fields_are(attr, all_fields());
                    *claims.entry(*ino).or_default().conditions.get_or_insert_default() += &conditions;
                }
                Guard::Same(Key::Flocks(ino) | Key::Plocks(ino), _)
                | Guard::Absent(Key::Flocks(ino) | Key::Plocks(ino)) => {
                    claims.entry(*ino).or_default().exclusive = true;
                }
                _ => {}
            }
        }
        for change in &batch.changes {
            match change {
                Change::Patch(ino, patch) => {
                    let claim = claims.entry(*ino).or_default();
                    claim.conditions.get_or_insert_default();
                    match patch.left_if_fresh_since() {
                        Some(since) => claim.stale = Some(is_stale(since)),
                        None => claim.exclusive = true,
                    }
                }
                Change::Put(Key::Attr(ino), _) | Change::Delete(Key::Attr(ino)) => {
                    if let Some(claim) = claims.get_mut(ino) {
                        claim.exclusive = true;
                    }
                }
                Change::SetFlock { ino, .. } | Change::SetPlock { ino, .. } => {
                    claims.entry(*ino).or_default().exclusive = true;
                }
                _ => {}
            }
        }
        // A node that the batch puts before it patches it is its own.
        let put: HashSet<Ino> = batch
            .changes
            .iter()
            .filter_map(|change| match change {
                Change::Put(Key::Attr(ino), _) => Some(*ino),
                _ => None,
            })
            .collect();
        let node = self.table("node");
        for (ino, claim) in claims {
            let lock = if claim.exclusive { self.dialect.exclusive } else { self.dialect.shared };
            let guarded = batch.guards.iter().any(|guard| guard.key() == Key::Attr(ino));
            // Of many that want to touch it the first one does, and the others go on together once that is committed:
            // their condition is looked at again by then. A row that does not meet it is let go, by InnoDB only if it is
            // not sought by its exact key, which `=` and `BETWEEN` do.
            if let (Some(stale), false) = (&claim.stale, claim.exclusive) {
                let row = format!("inode >= {at} AND inode <= {at}", at = ino.0 as i64);
                script.raw(&format!("SELECT 1 FROM {node} WHERE {row}{stale}{}", self.dialect.exclusive));
            }
            match claim.conditions {
                Some(conditions) if guarded || !put.contains(&ino) => {
                    script.require(&format!("{node} WHERE inode = {}{conditions}{lock}", ino.0 as i64));
                }
                _ => {
                    script.raw(&format!("SELECT 1 FROM {node} WHERE inode = {}{lock}", ino.0 as i64));
                }
            }
        }
    }

    fn guard(&self, guard: &Guard, batch: &Batch, script: &mut Script) -> EngineResult<()> {
        let changed = |key: &Key| {
            batch.changes.iter().any(|change| match change {
                Change::Put(of, _) | Change::Delete(of) => of == key,
                Change::Append { ino, index, .. } | Change::ReplacePrefix { ino, index, .. } => {
                    *key == Key::Chunk(*ino, *index)
                }
                Change::AddSliceRef { id, size, .. } => *key == Key::SliceRef(*id, *size),
                Change::AddDirStat(ino, _) => *key == Key::DirStat(*ino),
                Change::AddQuota { owner, .. } => *key == Key::Quota(*owner),
                Change::AddCounter(counter, _) => *key == Key::Counter(*counter),
                _ => false,
            })
        };
        let put = |key: &Key| batch.changes.iter().any(|change| matches!(change, Change::Put(of, _) if of == key));
        let lock = |key: &Key| if changed(key) { self.dialect.exclusive } else { self.dialect.shared };
        match guard {
            // Compared as they were locked.
            Guard::Fields(..) | Guard::Same(Key::Attr(_), _) => Ok(()),
            Guard::Absent(key) => {
                // The insert keeps it out, for the whole transaction.
                if !(put(key) && inserts_plainly(key)) {
                    script.refuse(&self.place(key, script)?);
                }
                Ok(())
            }
            Guard::ChunkPrefix(ino, index, prefix) => {
                let key = Key::Chunk(*ino, *index);
                let list = Slice::encode_list(prefix);
                let begins = format!("{} AND SUBSTRING(slices, 1, ?) = ?", self.place(&key, script)?);
                let length = list.len() as i64;
                let query = script.part(&begins, &[Value::Int(length), Value::Owned(list)]);
                script.require(&format!("{query}{}", lock(&key)));
                Ok(())
            }
            Guard::Same(key, record) => self.same(key, record, lock(key), script),
        }
    }

    /// Where the rows of a key lie: `table WHERE …`.
    fn place(&self, key: &Key, script: &Script) -> EngineResult<String> {
        let at = |table: &str, condition: &str, values: &[Value<'_>]| {
            format!("{} WHERE {}", self.table(table), script.part(condition, values))
        };
        Ok(match key {
            Key::Setting => at("setting", "name = 'format'", &[]),
            Key::Counter(counter) => match counter_name(*counter) {
                Some(name) => at("counter", "name = ?", &[Value::Text(name.as_bytes())]),
                None => match self.kind {
                    ServerKind::Postgres => format!("{} WHERE is_called", self.table("acl_id_seq")),
                    ServerKind::Mysql => format!("{} WHERE 1 = 1", self.table("acl")),
                },
            },
            Key::Attr(ino) => at("node", "inode = ?", &[number(*ino)]),
            Key::Dentry(dir, name) => {
                at("edge", "parent = ? AND name = ?", &[number(*dir), Value::Bytes(name.as_bytes())])
            }
            Key::AnyDentry(dir) => at("edge", "parent = ?", &[number(*dir)]),
            Key::Symlink(ino) => at("symlink", "inode = ?", &[number(*ino)]),
            Key::LinkParents(ino) => at("edge", "inode = ?", &[number(*ino)]),
            Key::Chunk(ino, index) => {
                at("chunk", "inode = ? AND indx = ?", &[number(*ino), Value::Int(index.0.into())])
            }
            Key::SliceRef(id, _) => at("chunk_ref", "chunkid = ?", &[Value::Int(id.0 as i64)]),
            Key::Xattr(ino, name) => format!(
                "{} AND {}",
                at("xattr", "inode = ?", &[number(*ino)]),
                (self.dialect.exactly)("name", &script.part("?", &[Value::Text(name.as_bytes())]))
            ),
            Key::Xattrs(ino) => at("xattr", "inode = ?", &[number(*ino)]),
            Key::AclRule(id) => at("acl", "id = ?", &[Value::Int((*id).into())]),
            Key::DirStat(ino) => at("dir_stats", "inode = ?", &[number(*ino)]),
            Key::Quota(owner) => match (owner, quota_key(*owner)) {
                (QuotaOwner::Directory(ino), _) => at("dir_quota", "inode = ?", &[number(*ino)]),
                (_, Some((of, id))) => {
                    at("user_group_quota", "qtype = ? AND qkey = ?", &[Value::Int(of), Value::Int(id)])
                }
                (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
            },
            Key::Session(sid) => at("session2", "sid = ?", &[Value::Int(sid.0 as i64)]),
            Key::Sustained(sid, ino) => {
                at("sustained", "sid = ? AND inode = ?", &[Value::Int(sid.0 as i64), number(*ino)])
            }
            Key::DeletedFile(ino, length) => {
                at("delfile", "inode = ? AND length = ?", &[number(*ino), Value::Int(*length as i64)])
            }
            Key::DelayedSlices(id, time) => {
                at("delslices", "chunkid = ? AND deleted = ?", &[Value::Int(id.0 as i64), Value::Int(*time)])
            }
            Key::Flocks(ino) => at("flock", "inode = ?", &[number(*ino)]),
            Key::Plocks(ino) => at("plock", "inode = ?", &[number(*ino)]),
        })
    }

    /// The record of a key is this one.
    fn same(&self, key: &Key, record: &Record, lock: &str, script: &mut Script) -> EngineResult<()> {
        let place = self.place(key, script)?;
        let mut require = |condition: &str, values: &[Value<'_>]| {
            let condition = script.part(condition, values);
            script.require(&format!("{place} AND {condition}{lock}"));
        };
        match (key, record) {
            (Key::Setting, Record::Bytes(text)) => match self.kind {
                ServerKind::Postgres => require("value = ?", &[Value::Text(text)]),
                ServerKind::Mysql => {
                    require("CONVERT(value USING utf8mb4) COLLATE utf8mb4_bin = ?", &[Value::Text(text)])
                }
            },
            (Key::Counter(Counter::AclMaxId), Record::Number(n)) => match self.kind {
                ServerKind::Postgres => script.require(&format!("{place} AND last_value = {n}")),
                ServerKind::Mysql => {
                    script.require(&format!("(SELECT MAX(id) AS last FROM {place}) AS numbered WHERE last = {n}"))
                }
            },
            (Key::Counter(counter), Record::Number(n)) => require("value = ?", &[(n + counter_shift(*counter)).into()]),
            (Key::Dentry(..) | Key::AnyDentry(_), Record::Dentry(dentry)) => {
                require("inode = ? AND type = ?", &[number(dentry.ino), i64::from(dentry.kind.code()).into()])
            }
            (Key::Symlink(_), Record::Bytes(target)) => require("target = ?", &[Value::Bytes(target)]),
            (Key::Chunk(..), Record::Slices(list)) => require("slices = ?", &[Value::Owned(Slice::encode_list(list))]),
            (Key::SliceRef(..), Record::Number(n)) => require("refs = ?", &[(*n).into()]),
            (Key::Xattr(..), Record::Bytes(value)) => require("value = ?", &[Value::Bytes(value)]),
            (Key::AclRule(_), Record::AclRule(rule)) => {
                let [owner, group, mask, other] = [rule.owner, rule.group, rule.mask, rule.other].map(i64::from);
                let group_column = self.dialect.of.quoted("group");
                let absent = i64::from(crate::base::acl::ABSENT);
                let text = format!(
                    "COALESCE(owner, {absent}) = ? AND COALESCE({group_column}, {absent}) = ? AND COALESCE(mask, {absent}) \
                     = ? AND COALESCE(other, {absent}) = ? AND COALESCE(named_users, ?) = ? AND COALESCE(named_groups, ?) = ?"
                );
                let (users, groups) = (encode_entries(&rule.users), encode_entries(&rule.groups));
                let none = || Value::Bytes(b"");
                let numbers = [owner, group, mask, other].map(Value::Int);
                let lists = [none(), Value::Owned(users), none(), Value::Owned(groups)];
                require(&text, &numbers.into_iter().chain(lists).collect::<Vec<_>>())
            }
            (Key::DirStat(_), Record::DirStat(stat)) => require(
                "data_length = ? AND used_space = ? AND used_inodes = ?",
                &[stat.length.into(), stat.space.into(), stat.inodes.into()],
            ),
            (Key::Quota(_), Record::Quota(quota)) => {
                let Quota { max_space, max_inodes, used_space, used_inodes } = *quota;
                require(
                    "max_space = ? AND max_inodes = ? AND used_space = ? AND used_inodes = ?",
                    &[max_space.into(), max_inodes.into(), used_space.into(), used_inodes.into()],
                )
            }
            (Key::Session(_), Record::Session(session)) => require(
                "expire = ? AND COALESCE(info, ?) = ?",
                &[session.expire.into(), Value::Bytes(b""), Value::Bytes(&session.info)],
            ),
            (Key::Sustained(..), Record::Number(_)) => require("1 = 1", &[]),
            (Key::DeletedFile(..), Record::Number(time)) => require("expire = ?", &[(*time).into()]),
            (Key::DelayedSlices(..), Record::Slices(list)) => {
                require("slices = ?", &[Value::Owned(encode_delayed(list))])
            }
            (Key::LinkParents(_), Record::LinkParents(parents)) => {
                for (parent, count) in parents {
                    script.require(&format!(
                        "(SELECT COUNT(*) AS links FROM {place} AND parent = {}) AS counted WHERE links = {count}",
                        parent.0 as i64
                    ));
                }
                script.require(&counted(&place, "COUNT(DISTINCT parent)", parents.len()));
            }
            (Key::Xattrs(ino), Record::Xattrs(all)) => {
                script.require(&counted(&place, "COUNT(*)", all.len()));
                for (name, value) in all {
                    self.same(&Key::Xattr(*ino, name.clone()), &Record::Bytes(value.clone()), lock, script)?;
                }
            }
            (Key::Flocks(_), Record::Flocks(holders)) => {
                script.require(&counted(&place, "COUNT(*)", holders.len()));
                for holder in holders {
                    let holds = script.part(
                        "sid = ? AND owner = ? AND ltype = ?",
                        &[
                            (holder.session.0 as i64).into(),
                            (holder.owner as i64).into(),
                            flock_letter(holder.exclusive).into(),
                        ],
                    );
                    script.require(&format!("{place} AND {holds}"));
                }
            }
            (Key::Plocks(_), Record::Plocks(holders)) => {
                let any = script.part("records <> ?", &[Value::Bytes(b"")]);
                script.require(&counted(&format!("{place} AND {any}"), "COUNT(*)", holders.len()));
                for holder in holders {
                    let holds = script.part(
                        "sid = ? AND owner = ? AND records = ?",
                        &[
                            (holder.session.0 as i64).into(),
                            (holder.owner as i64).into(),
                            Value::Owned(PlockRange::encode_list(&holder.ranges)),
                        ],
                    );
                    script.require(&format!("{place} AND {holds}"));
                }
            }
            (key, record) => return Err(self.unfit("guard record", key, record)),
        }
        Ok(())
    }

    fn unfit(&self, attempted: &'static str, key: &Key, record: &Record) -> EngineError {
        let fault = self.fault(FaultKind::Internal, attempted);
        fault.with("key", format!("{key:?}")).with("record", format!("{record:?}")).into()
    }

    /// Whatever is no put: those are `put_all`'s.
    fn change(&self, change: &Change, script: &mut Script, reports: &mut Reports) -> EngineResult<()> {
        let t = &self.texts;
        match change {
            Change::Put(..) => unreachable!("puts are collected"),
            Change::Delete(key) => self.delete(key, script)?,
            Change::Patch(ino, patch) => {
                if let Some(assignments) = assignments(self.dialect, patch) {
                    let (node, at) = (self.table("node"), ino.0 as i64);
                    let stale = patch.left_if_fresh_since().map(is_stale).unwrap_or_default();
                    script.raw(&format!("UPDATE {node} SET {assignments} WHERE inode = {at}{stale}"));
                }
            }
            Change::Append { ino, index, slices, only_existing } => {
                let list = Slice::encode_list(slices);
                let place = [number(*ino), Value::Int(index.0.into())];
                let chunk = self.table("chunk");
                if *only_existing {
                    let appended = (self.dialect.of.appended)("slices");
                    let text = format!("UPDATE {chunk} SET slices = {appended} WHERE inode = ? AND indx = ?");
                    let values = [Value::Bytes(&list)].into_iter().chain(place.clone());
                    script.add(&text, &values.collect::<Vec<_>>());
                } else {
                    let appended = (self.dialect.of.appended)(&(self.dialect.present)(&chunk, "slices"));
                    let tail = upsert_tail(self.dialect, &["inode", "indx"], &[format!("slices = {appended}")]);
                    let values = place.clone().into_iter().chain([Value::Bytes(&list), Value::Bytes(&list)]);
                    let text = format!("INSERT INTO {chunk} (inode, indx, slices) VALUES (?, ?, ?) {tail}");
                    script.add(&text, &values.collect::<Vec<_>>());
                }
                let text = format!("SELECT LENGTH(slices) FROM {chunk} WHERE inode = ? AND indx = ?");
                reports.list_bytes.push(script.add(&text, &place));
            }
            Change::ReplacePrefix { ino, index, count, with } => {
                let (key, bytes) = (Key::Chunk(*ino, *index), count * SLICE_RECORD_BYTES);
                let place = self.place(&key, script)?;
                script.require(&format!("{place} AND LENGTH(slices) >= {bytes}{}", self.dialect.exclusive));
                let list = Slice::encode_list(with);
                let rest = (self.dialect.tail)("slices", bytes + 1);
                let joined = match self.kind {
                    ServerKind::Postgres => format!("? || {rest}"),
                    ServerKind::Mysql => format!("CONCAT(?, {rest})"),
                };
                let text = format!("UPDATE {} SET slices = {joined} WHERE inode = ? AND indx = ?", self.table("chunk"));
                script.add(&text, &[Value::Bytes(&list), number(*ino), Value::Int(index.0.into())]);
            }
            Change::AddCounter(counter, delta) => match counter_name(*counter) {
                Some(name) => {
                    add_to_counter(script, self.dialect, &self.table("counter"), name, *counter, *delta);
                }
                None if self.kind == ServerKind::Postgres => {
                    let (table, source) = (self.table("acl"), self.table("acl_id_seq"));
                    script.raw(&format!(
                        "SELECT setval(pg_get_serial_sequence('{table}', 'id'), \
                         (CASE WHEN is_called THEN last_value ELSE 0 END) + {delta}) FROM {source}"
                    ));
                }
                // The table numbers above all rules that there are.
                None => {}
            },
            // They are counted from the entries.
            Change::AddLinkParent { .. } => {}
            Change::AddSliceRef { id, size, delta } => {
                let table = self.table("chunk_ref");
                // Every live slice has a row; one that lost it, as restored dumps may, has one reference.
                let more = format!("refs = {} + ?", (self.dialect.present)(&table, "refs"));
                let tail = upsert_tail(self.dialect, &["chunkid"], &[more]);
                let id = Value::Int(id.0 as i64);
                let values = [id.clone(), Value::Int((*size).into()), Value::Int(1 + delta), Value::Int(*delta)];
                script.add(&format!("INSERT INTO {table} (chunkid, size, refs) VALUES (?, ?, ?) {tail}"), &values);
                reports.references.push(script.add(&t.slice_ref, &[id]));
            }
            Change::AddDirStat(ino, delta) => {
                let values = [delta.length.into(), delta.space.into(), delta.inodes.into(), number(*ino)];
                script.add(&t.add_dir_stat, &values);
            }
            Change::AddQuota { owner, space, inodes } => {
                let added = [Value::Int(*space), Value::Int(*inodes)].into_iter();
                match (owner, quota_key(*owner)) {
                    (QuotaOwner::Directory(ino), _) => {
                        script.add(&t.add_dir_quota, &added.chain([number(*ino)]).collect::<Vec<_>>());
                    }
                    (_, Some((of, id))) => {
                        let place = [Value::Int(of), Value::Int(id)];
                        script.add(&t.add_owner_quota, &added.chain(place).collect::<Vec<_>>());
                    }
                    (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
                }
            }
            Change::SetFlock { ino, session, owner, exclusive, last: _ } => {
                let holder = [number(*ino), Value::Int(session.0 as i64), Value::Int(*owner as i64)];
                match exclusive {
                    Some(exclusive) => {
                        let letter = Value::Int(flock_letter(*exclusive));
                        script.add(&t.put_flock, &holder.into_iter().chain([letter]).collect::<Vec<_>>());
                    }
                    None => {
                        script.add(&t.delete_flock, &holder);
                    }
                }
            }
            Change::SetPlock { ino, session, owner, ranges, last: _ } => {
                let holder = [number(*ino), Value::Int(session.0 as i64), Value::Int(*owner as i64)];
                if ranges.is_empty() {
                    script.add(&t.delete_plock, &holder);
                } else {
                    let records = Value::Owned(PlockRange::encode_list(ranges));
                    script.add(&t.put_plock, &holder.into_iter().chain([records]).collect::<Vec<_>>());
                }
            }
        }
        Ok(())
    }

    /// Puts that follow each other, with one statement for all rows of a table: a fill of a thousand files is four
    /// statements, not three thousand. `absent`: what there must be none of before.
    fn put_all<'a>(
        &'a self,
        changes: &mut Peekable<impl Iterator<Item = &'a Change>>,
        absent: &HashSet<&Key>,
        script: &mut Script,
    ) -> EngineResult<()> {
        let mut tables: Vec<(&str, Vec<Vec<Value<'a>>>)> = Vec::new();
        let mut rows = HashSet::new();
        // A row that is put again is put later.
        while let Some(Change::Put(key, record)) =
            changes.next_if(|next| matches!(next, Change::Put(key, _) if !rows.contains(&row_of(key))))
        {
            rows.insert(row_of(key));
            let is_absent = absent.contains(key);
            let (text, values) = match (key, record) {
                (Key::Counter(Counter::AclMaxId), Record::Number(n)) => {
                    self.put_last_rule(*n, false, script);
                    continue;
                }
                // Each is looked at when those before it are there.
                (Key::Xattr(ino, name), _) => {
                    self.tell_case_apart(*ino, name, script);
                    let (text, values) = self.row(key, record, is_absent)?;
                    script.add(text, &values);
                    continue;
                }
                _ => self.row(key, record, is_absent)?,
            };
            match tables.iter_mut().find(|(of, _)| std::ptr::eq(*of, text)) {
                Some((_, rows)) => rows.push(values),
                None => tables.push((text, vec![values])),
            }
            if let (Key::AclRule(id), ServerKind::Postgres) = (key, self.kind) {
                self.put_last_rule((*id).into(), true, script);
            }
        }
        for (text, rows) in tables {
            script.add_rows(text, &rows);
        }
        Ok(())
    }

    /// The statement that puts a record, and the values of its row. `absent`: there must be none before.
    fn row<'a>(&'a self, key: &'a Key, record: &'a Record, absent: bool) -> EngineResult<(&'a str, Vec<Value<'a>>)> {
        let t = &self.texts;
        Ok(match (key, record) {
            (Key::Setting, Record::Bytes(text)) => (&t.put_setting, vec![Value::Text(b"format"), Value::Text(text)]),
            (Key::Counter(counter), Record::Number(n)) => match counter_name(*counter) {
                Some(name) => {
                    (&t.put_counter, vec![Value::Text(name.as_bytes()), Value::Int(n + counter_shift(*counter))])
                }
                None => return Err(self.unfit("put record", key, record)),
            },
            (Key::Attr(ino), Record::Attr(attr)) => {
                let columns = node_columns(attr).map(Value::Int);
                (&t.put_node, [number(*ino)].into_iter().chain(columns).collect())
            }
            (Key::Dentry(dir, name), Record::Dentry(dentry)) => {
                let target = [number(dentry.ino), Value::Int(dentry.kind.code().into())];
                let values = [number(*dir), Value::Bytes(name.as_bytes())].into_iter().chain(target).collect();
                (if absent { &t.insert_edge } else { &t.put_edge }, values)
            }
            (Key::Symlink(ino), Record::Bytes(target)) => (&t.put_symlink, vec![number(*ino), Value::Bytes(target)]),
            (Key::Chunk(ino, index), Record::Slices(list)) => {
                let list = Value::Owned(Slice::encode_list(list));
                (&t.put_chunk, vec![number(*ino), Value::Int(index.0.into()), list])
            }
            (Key::SliceRef(id, size), Record::Number(n)) => {
                (&t.put_slice_ref, vec![Value::Int(id.0 as i64), Value::Int((*size).into()), Value::Int(*n)])
            }
            (Key::Xattr(ino, name), Record::Bytes(value)) => {
                let values = vec![number(*ino), Value::Text(name.as_bytes()), Value::Bytes(value)];
                (if absent { &t.insert_xattr } else { &t.put_xattr }, values)
            }
            (Key::AclRule(id), Record::AclRule(rule)) => {
                let numbers = [rule.owner, rule.group, rule.mask, rule.other].map(|perm| Value::Int(perm.into()));
                let lists = [encode_entries(&rule.users), encode_entries(&rule.groups)].map(Value::Owned);
                (&t.put_acl, [Value::Int((*id).into())].into_iter().chain(numbers).chain(lists).collect())
            }
            (Key::DirStat(ino), Record::DirStat(stat)) => {
                let numbers = [stat.length, stat.space, stat.inodes].map(Value::Int);
                (&t.put_dir_stat, [number(*ino)].into_iter().chain(numbers).collect())
            }
            (Key::Quota(owner), Record::Quota(quota)) => {
                let Quota { max_space, max_inodes, used_space, used_inodes } = *quota;
                let numbers = [max_space, max_inodes, used_space, used_inodes].map(Value::Int);
                match (owner, quota_key(*owner)) {
                    (QuotaOwner::Directory(ino), _) => {
                        (&t.put_dir_quota, [number(*ino)].into_iter().chain(numbers).collect())
                    }
                    (_, Some((of, id))) => {
                        let place = [Value::Int(of), Value::Int(id)];
                        (&t.put_owner_quota, place.into_iter().chain(numbers).collect())
                    }
                    (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
                }
            }
            (Key::Session(sid), Record::Session(session)) => {
                let info = if session.info.is_empty() { Value::Null } else { Value::Bytes(&session.info) };
                (&t.put_session, vec![Value::Int(sid.0 as i64), Value::Int(session.expire), info])
            }
            (Key::Sustained(sid, ino), Record::Number(_)) => {
                (&t.put_sustained, vec![Value::Int(sid.0 as i64), number(*ino)])
            }
            (Key::DeletedFile(ino, length), Record::Number(time)) => {
                (&t.put_deleted_file, vec![number(*ino), Value::Int(*length as i64), Value::Int(*time)])
            }
            (Key::DelayedSlices(id, time), Record::Slices(list)) => {
                let list = Value::Owned(encode_delayed(list));
                (&t.put_delayed, vec![Value::Int(id.0 as i64), Value::Int(*time), list])
            }
            (key, record) => return Err(self.unfit("put record", key, record)),
        })
    }

    /// The number that rules are handed out after. `raise`: unless it is larger already.
    fn put_last_rule(&self, last: i64, raise: bool, script: &mut Script) {
        let table = self.table("acl");
        match self.kind {
            ServerKind::Postgres => {
                let sequence = format!("pg_get_serial_sequence('{table}', 'id')");
                let source = self.table("acl_id_seq");
                // Of a sequence that was never asked the last number is the first one, and not taken.
                let text = match (raise, last) {
                    (true, last) => format!(
                        "SELECT setval({sequence}, GREATEST({last}, CASE WHEN is_called THEN last_value ELSE 0 END)) FROM {source}"
                    ),
                    (false, ..=0) => format!("SELECT setval({sequence}, 1, false)"),
                    (false, last) => format!("SELECT setval({sequence}, {last})"),
                };
                script.raw(&text);
            }
            // The table numbers above all rules that there are.
            ServerKind::Mysql if last <= 0 => {}
            ServerKind::Mysql => {
                script.raw(&format!("INSERT IGNORE INTO {table} (id) VALUES ({last})"));
                let none = "owner IS NULL AND mask IS NULL AND other IS NULL AND named_users IS NULL";
                script.raw(&format!("DELETE FROM {table} WHERE id = {last} AND {none}"));
            }
        }
    }

    /// A column that takes names for equal that differ in case would lose one of them. The sum that is too large is what
    /// fails, with an error that nothing else here has.
    fn tell_case_apart(&self, ino: Ino, name: &Name, script: &mut Script) {
        if self.kind == ServerKind::Mysql {
            let table = self.table("xattr");
            let values = [number(ino), Value::Text(name.as_bytes()), Value::Text(name.as_bytes())];
            script.add(
                &format!(
                    "SELECT 9223372036854775807 + COUNT(*) FROM {table} \
                     WHERE inode = ? AND name = ? AND BINARY name <> BINARY ?"
                ),
                &values,
            );
        }
    }

    fn delete(&self, key: &Key, script: &mut Script) -> EngineResult<()> {
        match key {
            // A question, and a count of entries: neither is stored.
            Key::AnyDentry(_) | Key::LinkParents(_) => {}
            Key::Counter(Counter::AclMaxId) => {}
            key => {
                script.raw(&format!("DELETE FROM {}", self.place(key, script)?));
            }
        }
        Ok(())
    }
}

/// A key that all keys of the same row share.
fn row_of(key: &Key) -> Key {
    match key {
        Key::SliceRef(id, _) => Key::SliceRef(*id, 0),
        Key::DeletedFile(ino, _) => Key::DeletedFile(*ino, 0),
        Key::DelayedSlices(id, _) => Key::DelayedSlices(*id, 0),
        key => key.clone(),
    }
}

/// Whether putting a record that must not be there is an insert that fails if it is.
fn inserts_plainly(key: &Key) -> bool {
    matches!(key, Key::Dentry(..) | Key::Xattr(..))
}

/// That so many were counted.
fn counted(place: &str, what: &str, count: usize) -> String {
    format!("(SELECT {what} AS found FROM {place}) AS counted WHERE found = {count}")
}

/// Statements whose answers are reported.
#[derive(Default)]
struct Reports {
    list_bytes: Vec<usize>,
    references: Vec<usize>,
}

/// A patch as assignments, each relative to what is stored; `None` when it changes nothing.
fn assignments(dialect: &ServerDialect, patch: &AttrPatch) -> Option<String> {
    let AttrPatch { flags, mode, uid, gid, atime, mtime, ctime, length, parent, access_acl, default_acl, tier, .. } =
        *patch;
    let named = Attr {
        flags,
        mode,
        uid,
        gid,
        atime,
        mtime,
        ctime,
        length,
        parent,
        access_acl,
        default_acl,
        tier,
        kind: crate::base::Kind::File,
        nlink: 0,
        rdev: 0,
    };
    let columns = node_columns(&named);
    let set = FIELDS.iter().filter(|(field, _)| patch.mask.has(*field)).flat_map(|(_, named)| *named);
    let mut assignments: Vec<String> = set.map(|(name, at)| format!("{name} = {}", columns[*at])).collect();
    if patch.nlink != 0 {
        assignments.push(format!("nlink = {}(nlink + {}, 0)", dialect.greatest, i64::from(patch.nlink)));
    }
    if let Some(least) = patch.length_at_least {
        let of = if patch.mask.has(FieldMask::LENGTH) { (length as i64).to_string() } else { "length".to_owned() };
        assignments.retain(|assignment| !assignment.starts_with("length = "));
        assignments.push(format!("length = {}({of}, {})", dialect.greatest, least as i64));
    }
    (!assignments.is_empty()).then(|| assignments.join(", "))
}
