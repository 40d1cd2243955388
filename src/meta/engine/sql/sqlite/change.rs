//! Changing: guards and changes of one batch, inside a transaction that somebody else begins and commits.
//!
//! A transaction that began with `BEGIN IMMEDIATE` is alone in writing, so what a guard found stays as it is until the
//! changes are made, and a patch may read the node and write it back.

use super::fault::Failed;
use super::read::{Reading, TextBytes};
use crate::base::acl::encode_entries;
use crate::base::slice::SLICE_RECORD_BYTES;
use crate::base::{Attr, AttrPatch, ChunkIndex, Fault, Ino, Slice};
use crate::meta::engine::sql::records::{
    counter_name, counter_shift, counter_start, flock_letter, node_columns, quota_key,
};
use crate::meta::engine::{Batch, Change, Committed, Guard};
use crate::meta::record::{Counter, Key, PlockRange, Quota, QuotaOwner, Record, encode_delayed};
use rusqlite::{Params, params, params_from_iter};

/// How a batch, or another piece of work, ended before its transaction did.
pub enum Step<T> {
    Done(T),
    /// Refused before anything was changed.
    Refused(Failed),
    /// Stopped half-way: the transaction must be rolled back.
    Spoiled(Failed),
}

/// The nodes that the guards of a batch have read, so that its patches need not read them again.
type Known = Vec<(Ino, Attr)>;

impl Reading<'_> {
    /// Checks every guard, then makes every change.
    pub fn commit(&self, batch: &Batch) -> Step<Committed> {
        let mut known = Known::new();
        for guard in &batch.guards {
            match self.holds(guard, &mut known) {
                Ok(true) => {}
                Ok(false) => return Step::Refused(Failed::Conflict),
                Err(failed) => return Step::Refused(failed),
            }
        }
        let mut done = Committed::default();
        for change in &batch.changes {
            if let Err(failed) = self.apply(change, &mut known, &mut done) {
                return Step::Spoiled(failed);
            }
        }
        Step::Done(done)
    }

    fn holds(&self, guard: &Guard, known: &mut Known) -> Result<bool, Failed> {
        match guard {
            Guard::Fields(ino, seen, mask) => {
                let Some(attr) = self.attr(*ino)? else { return Ok(false) };
                known.push((*ino, attr));
                Ok(attr.same(seen, *mask))
            }
            Guard::Same(key, record) => Ok(self.get(key)?.as_ref() == Some(record)),
            Guard::Absent(key) => Ok(self.get(key)?.is_none()),
            Guard::ChunkPrefix(ino, index, prefix) => {
                Ok(self.chunk_bytes(*ino, *index)?.is_some_and(|list| list.starts_with(&Slice::encode_list(prefix))))
            }
        }
    }

    /// How many rows it touched.
    fn execute(&self, text: &str, params: impl Params) -> Result<usize, Failed> {
        Ok(self.conn.prepare_cached(text)?.execute(params)?)
    }

    fn apply(&self, change: &Change, known: &mut Known, done: &mut Committed) -> Result<(), Failed> {
        let t = self.texts;
        match change {
            Change::Put(key, record) => {
                if let Key::Attr(ino) = key {
                    known.retain(|(i, _)| i != ino);
                }
                self.put(key, record)?;
            }
            Change::Delete(key) => {
                if let Key::Attr(ino) = key {
                    known.retain(|(i, _)| i != ino);
                }
                self.delete(key)?;
            }
            Change::Patch(ino, patch) => self.patch(*ino, patch, known)?,
            Change::Append { ino, index, slices, only_existing } => {
                done.list_lengths.push(self.append(*ino, *index, slices, *only_existing)?);
            }
            Change::ReplacePrefix { ino, index, count, with } => {
                let list = self.chunk_bytes(*ino, *index)?.ok_or(Failed::Conflict)?;
                let rest = list.get(count * SLICE_RECORD_BYTES..).ok_or(Failed::Conflict)?;
                let mut list = Slice::encode_list(with);
                list.extend_from_slice(rest);
                self.execute(&t.update_chunk, (list, ino.0 as i64, index.0))?;
            }
            Change::AddCounter(counter, delta) => self.add_counter(*counter, *delta).map(|_| ())?,
            Change::AddLinkParent { .. } => {}
            Change::AddSliceRef { id, size, delta } => {
                let key = Key::SliceRef(*id, *size);
                let counted = self.one(&t.add_slice_ref, (delta, id.0 as i64), &key, |r| r.get::<_, i64>(0).ok())?;
                done.references.push(match counted {
                    Some(references) => references,
                    // Every live slice has a row; one that lost it, as restored dumps may, has one reference.
                    None => {
                        self.execute(&t.put_slice_ref, (id.0 as i64, size, 1 + delta))?;
                        1 + delta
                    }
                });
            }
            Change::AddDirStat(ino, delta) => {
                self.execute(&t.add_dir_stat, (delta.length, delta.space, delta.inodes, ino.0 as i64))?;
            }
            Change::AddQuota { owner, space, inodes } => {
                match (owner, quota_key(*owner)) {
                    (_, Some((of, id))) => self.execute(&t.add_owner_quota, (space, inodes, of, id))?,
                    (QuotaOwner::Directory(ino), None) => {
                        self.execute(&t.add_dir_quota, (space, inodes, ino.0 as i64))?
                    }
                    (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
                };
            }
            Change::SetFlock { ino, session, owner, exclusive, last: _ } => {
                let holder = (ino.0 as i64, session.0 as i64, *owner as i64);
                match exclusive {
                    Some(exclusive) => {
                        self.execute(&t.put_flock, (holder.0, holder.1, holder.2, flock_letter(*exclusive)))?
                    }
                    None => self.execute(&t.delete_flock, holder)?,
                };
            }
            Change::SetPlock { ino, session, owner, ranges, last: _ } => {
                let holder = (ino.0 as i64, session.0 as i64, *owner as i64);
                if ranges.is_empty() {
                    self.execute(&t.delete_plock, holder)?;
                } else {
                    self.execute(&t.put_plock, (holder.0, holder.1, holder.2, PlockRange::encode_list(ranges)))?;
                }
            }
        }
        Ok(())
    }

    fn patch(&self, ino: Ino, patch: &AttrPatch, known: &mut Known) -> Result<(), Failed> {
        let at = match known.iter().position(|(i, _)| *i == ino) {
            Some(at) => at,
            None => {
                known.push((ino, self.attr(ino)?.ok_or(Failed::Conflict)?));
                known.len() - 1
            }
        };
        let attr = &mut known[at].1;
        patch.apply(attr);
        let columns = node_columns(attr);
        let id = ino.0 as i64;
        match self.execute(&self.texts.update_node, params_from_iter(columns.iter().chain(Some(&id))))? {
            0 => Err(Failed::Conflict),
            _ => Ok(()),
        }
    }

    /// Answers the records of the list afterwards. Most appends find a list, and an insert that ends in an update would
    /// still write the table's row numbers, hence the update first.
    fn append(&self, ino: Ino, index: ChunkIndex, slices: &[Slice], only_existing: bool) -> Result<usize, Failed> {
        let key = Key::Chunk(ino, index);
        let bytes = Slice::encode_list(slices);
        let grown = self.one(&self.texts.append_chunk, (&bytes, ino.0 as i64, index.0), &key, |r| {
            r.get::<_, u32>(0)
                .ok()
                .map(|length| length as usize)
                .filter(|length| length.is_multiple_of(SLICE_RECORD_BYTES))
        })?;
        match grown {
            Some(length) => Ok(length / SLICE_RECORD_BYTES),
            None if only_existing => Ok(0),
            None => {
                self.execute(&self.texts.put_chunk, (ino.0 as i64, index.0, bytes))?;
                Ok(slices.len())
            }
        }
    }

    /// Answers the stored number afterwards.
    fn add_counter(&self, counter: Counter, delta: i64) -> Result<i64, Failed> {
        let Some(name) = counter_name(counter) else {
            let value = self.last_acl_id()?.unwrap_or(0) + delta;
            self.set_last_acl_id(value)?;
            return Ok(value);
        };
        let key = Key::Counter(counter);
        if let Some(value) = self.one(&self.texts.add_counter, (delta, name), &key, |r| r.get(0).ok())? {
            return Ok(value);
        }
        let value = counter_start(counter) + delta;
        self.execute(&self.texts.put_counter, (name, value))?;
        Ok(value)
    }

    /// Reserves ids; answers the first.
    pub fn allocate(&self, counter: Counter, count: u64) -> Result<u64, Failed> {
        let count = i64::try_from(count).map_err(|_| Fault::internal("allocate ids").with("count", count))?;
        let after = self.add_counter(counter, count)?;
        // The stored number is the first that is free or the last that is used.
        Ok((after - count + 1 - counter_shift(counter)) as u64)
    }

    fn set_last_acl_id(&self, value: i64) -> Result<(), Failed> {
        // The database's own table of row numbers: other clients let it number the rules, so it is the counter.
        let table = format!("{}acl", self.prefix);
        if self.execute("UPDATE sqlite_sequence SET seq = ?1 WHERE name = ?2", (value, &table))? == 0 {
            self.execute("INSERT INTO sqlite_sequence (seq, name) VALUES (?1, ?2)", (value, &table))?;
        }
        Ok(())
    }

    fn put(&self, key: &Key, record: &Record) -> Result<(), Failed> {
        let t = self.texts;
        let id = |ino: &Ino| ino.0 as i64;
        match (key, record) {
            (Key::Setting, Record::Bytes(text)) => self.execute(&t.put_setting, ("format", TextBytes(text))),
            (Key::Counter(counter), Record::Number(n)) => match counter_name(*counter) {
                Some(name) => self.execute(&t.put_counter, (name, n + counter_shift(*counter))),
                None => self.set_last_acl_id(*n).map(|()| 1),
            },
            (Key::Attr(i), Record::Attr(attr)) => {
                let columns = node_columns(attr);
                self.execute(&t.put_node, params_from_iter(Some(&id(i)).into_iter().chain(&columns)))
            }
            (Key::Dentry(dir, name), Record::Dentry(d)) => {
                self.execute(&t.put_edge, (id(dir), name.as_bytes(), id(&d.ino), d.kind.code()))
            }
            (Key::Symlink(i), Record::Bytes(target)) => self.execute(&t.put_symlink, (id(i), &target[..])),
            (Key::Chunk(i, index), Record::Slices(list)) => {
                self.execute(&t.put_chunk, (id(i), index.0, Slice::encode_list(list)))
            }
            (Key::SliceRef(slice, size), Record::Number(n)) => {
                self.execute(&t.put_slice_ref, (slice.0 as i64, size, n))
            }
            (Key::Xattr(i, name), Record::Bytes(value)) => {
                self.execute(&t.put_xattr, (id(i), TextBytes(name.as_bytes()), &value[..]))
            }
            (Key::AclRule(rule), Record::AclRule(r)) => {
                let (users, groups) = (encode_entries(&r.users), encode_entries(&r.groups));
                self.execute(&t.put_acl, (rule, r.owner, r.group, r.mask, r.other, users, groups))
            }
            (Key::DirStat(i), Record::DirStat(s)) => {
                self.execute(&t.put_dir_stat, (id(i), s.length, s.space, s.inodes))
            }
            (Key::Quota(owner), Record::Quota(q)) => {
                let Quota { max_space, max_inodes, used_space, used_inodes } = q;
                match (owner, quota_key(*owner)) {
                    (_, Some((of, key))) => self
                        .execute(&t.put_owner_quota, params![of, key, max_space, max_inodes, used_space, used_inodes]),
                    (QuotaOwner::Directory(i), None) => {
                        self.execute(&t.put_dir_quota, params![id(i), max_space, max_inodes, used_space, used_inodes])
                    }
                    (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
                }
            }
            (Key::Session(sid), Record::Session(s)) => {
                let info: Option<&[u8]> = if s.info.is_empty() { None } else { Some(&s.info) };
                self.execute(&t.put_session, (sid.0 as i64, s.expire, info))
            }
            (Key::Sustained(sid, i), Record::Number(_)) => self.execute(&t.put_sustained, (sid.0 as i64, id(i))),
            (Key::DeletedFile(i, length), Record::Number(time)) => {
                self.execute(&t.put_deleted_file, (id(i), *length as i64, time))
            }
            (Key::DelayedSlices(slice, time), Record::Slices(list)) => {
                self.execute(&t.put_delayed, (slice.0 as i64, time, encode_delayed(list)))
            }
            (key, record) => {
                return Err(Fault::internal("put record")
                    .with("key", format_args!("{key:?}"))
                    .with("record", format_args!("{record:?}"))
                    .into());
            }
        }?;
        Ok(())
    }

    fn delete(&self, key: &Key) -> Result<(), Failed> {
        let t = self.texts;
        let id = |ino: &Ino| ino.0 as i64;
        match key {
            Key::Setting => self.execute(&t.delete_setting, ())?,
            Key::Counter(counter) => match counter_name(*counter) {
                Some(name) => self.execute(&t.delete_counter, [name])?,
                None => {
                    let table = format!("{}acl", self.prefix);
                    self.execute("DELETE FROM sqlite_sequence WHERE name = ?1", [table])?
                }
            },
            Key::Attr(i) => self.execute(&t.delete_node, [id(i)])?,
            Key::Dentry(dir, name) => self.execute(&t.delete_edge, (id(dir), name.as_bytes()))?,
            // A question, and a count of entries: neither is stored.
            Key::AnyDentry(_) | Key::LinkParents(_) => 0,
            Key::Symlink(i) => self.execute(&t.delete_symlink, [id(i)])?,
            Key::Chunk(i, index) => self.execute(&t.delete_chunk, (id(i), index.0))?,
            Key::SliceRef(slice, _) => self.execute(&t.delete_slice_ref, [slice.0 as i64])?,
            Key::Xattr(i, name) => self.execute(&t.delete_xattr, (id(i), TextBytes(name.as_bytes())))?,
            Key::Xattrs(i) => self.execute(&t.delete_xattrs, [id(i)])?,
            Key::AclRule(rule) => self.execute(&t.delete_acl, [i64::from(*rule)])?,
            Key::DirStat(i) => self.execute(&t.delete_dir_stat, [id(i)])?,
            Key::Quota(owner) => match (owner, quota_key(*owner)) {
                (_, Some(place)) => self.execute(&t.delete_owner_quota, place)?,
                (QuotaOwner::Directory(i), None) => self.execute(&t.delete_dir_quota, [id(i)])?,
                (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
            },
            Key::Session(sid) => self.execute(&t.delete_session, [sid.0 as i64])?,
            Key::Sustained(sid, i) => self.execute(&t.delete_sustained, (sid.0 as i64, id(i)))?,
            Key::DeletedFile(i, length) => self.execute(&t.delete_deleted_file, (id(i), *length as i64))?,
            Key::DelayedSlices(slice, time) => self.execute(&t.delete_delayed, (slice.0 as i64, time))?,
            Key::Flocks(i) => self.execute(&t.delete_flocks, [id(i)])?,
            Key::Plocks(i) => self.execute(&t.delete_plocks, [id(i)])?,
        };
        Ok(())
    }
}
