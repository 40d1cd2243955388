//! Commits: what a batch has to have read, and what it comes to on what was read — the guards that hold, the keys that
//! must stay as they are, the values to write.
//!
//! A store of this kind compares whole values; the seam's guards name fields, and its relative changes name differences.
//! So both are worked out here, on values that were read, and the store is asked for one thing only: apply these values
//! if those keys are still what they were. When they are not, the same batch is worked out again on what they have
//! become. That is a conflict of the seam only if a guard fails on it; siblings that create in one directory each move
//! its times and meet here, not above.

use super::codec::{self, Place};
use super::view::{Undecodable, View, Want, wants_of};
use crate::base::slice::SLICE_RECORD_BYTES;
use crate::base::{Attr, Fault, Ino, Slice};
use crate::meta::engine::gathered::is_gathered;
use crate::meta::engine::{Batch, Change, Committed, EngineError, EngineResult, Guard};
use crate::meta::record::{DirStat, FlockHolder, Key, PlockHolder, Quota, QuotaOwner, Record};
use std::collections::{BTreeMap, BTreeSet};

/// What to write: keys and their new values, `None` for removals.
pub(super) type Writes = BTreeMap<Vec<u8>, Option<Vec<u8>>>;

/// What a batch comes to.
#[derive(Debug, Default)]
pub(super) struct Decision {
    /// What must still be as it was read.
    pub checks: BTreeSet<Want>,
    pub writes: Writes,
    pub committed: Committed,
}

/// What has to be read before the batch can be worked out. `whole`: gathered counters are part of it.
pub(super) fn wants(batch: &Batch, whole: bool) -> Vec<Want> {
    let mut wants = BTreeSet::new();
    for guard in &batch.guards {
        wants.extend(wants_of(&guard.key()));
    }
    for change in &batch.changes {
        match change {
            Change::Put(..) => {}
            Change::Delete(key) => wants.extend(wants_of(key).filter(|want| matches!(want, Want::All(_)))),
            gathered if is_gathered(gathered) && !whole => {}
            Change::AddLinkParent { ino, parent, .. } => {
                wants.insert(Want::Key(codec::link_parent_key(*ino, *parent)));
            }
            relative => wants.extend(changed_key(relative).iter().flat_map(wants_of)),
        }
    }
    wants.into_iter().collect()
}

/// The attributes that others are most likely to change at the same time: those of the first node that is patched.
pub(super) fn hot_key(batch: &Batch) -> Option<Vec<u8>> {
    batch.changes.iter().find_map(|change| match change {
        Change::Patch(ino, _) => Some(codec::attr_key(*ino)),
        _ => None,
    })
}

/// The record that a relative change changes; none for those that have no record of their own.
fn changed_key(change: &Change) -> Option<Key> {
    Some(match change {
        Change::Patch(ino, _) => Key::Attr(*ino),
        Change::Append { ino, index, .. } | Change::ReplacePrefix { ino, index, .. } => Key::Chunk(*ino, *index),
        Change::AddCounter(counter, _) => Key::Counter(*counter),
        Change::AddSliceRef { id, size, .. } => Key::SliceRef(*id, *size),
        Change::AddDirStat(ino, _) => Key::DirStat(*ino),
        Change::AddQuota { owner, .. } => Key::Quota(*owner),
        Change::SetFlock { ino, .. } => Key::Flocks(*ino),
        Change::SetPlock { ino, .. } => Key::Plocks(*ino),
        Change::Put(..) | Change::Delete(_) | Change::AddLinkParent { .. } => return None,
    })
}

/// Works a batch out on what was read. `Conflict` when a guard does not hold there.
pub(super) fn decide(batch: &Batch, view: &View, whole: bool, engine: &'static str) -> EngineResult<Decision> {
    let mut work = Work { view, engine, decision: Decision::default() };
    for guard in &batch.guards {
        if !work.holds(guard)? {
            return Err(EngineError::Conflict);
        }
    }
    for change in &batch.changes {
        work.apply(change, whole)?;
    }
    let Decision { checks, writes, .. } = &mut work.decision;
    // What stays as it is need not be written, only be so still.
    writes.retain(|key, value| {
        !checks.contains(&Want::Key(key.clone()))
            || view.key(key).is_none_or(|stored| stored.map(|stored| &stored.value[..]) != value.as_deref())
    });
    Ok(work.decision)
}

struct Work<'a> {
    view: &'a View,
    engine: &'static str,
    decision: Decision,
}

impl Work<'_> {
    fn corrupt(&self, key: &Key) -> EngineError {
        Fault::corrupt("read record").with("engine", self.engine).with("key", format_args!("{key:?}")).into()
    }

    fn record(&self, key: &Key) -> EngineResult<Option<Record>> {
        self.view.record(key).map_err(|Undecodable| self.corrupt(key))
    }

    fn holds(&mut self, guard: &Guard) -> EngineResult<bool> {
        let key = guard.key();
        self.decision.checks.extend(wants_of(&key));
        let found = self.record(&key)?;
        Ok(match (guard, found) {
            (Guard::Fields(_, seen, mask), Some(Record::Attr(attr))) => attr.same(seen, *mask),
            (Guard::ChunkPrefix(_, _, prefix), Some(Record::Slices(list))) => list.starts_with(prefix),
            (Guard::Fields(..) | Guard::ChunkPrefix(..), _) => false,
            // Which entry was answered does not matter: the question was whether there is any.
            (Guard::Same(Key::AnyDentry(_), _), found) => found.is_some(),
            // One reference may be stored as nothing.
            (Guard::Same(Key::SliceRef(..), Record::Number(1)), None) => true,
            (Guard::Same(_, record), found) => found.as_ref() == Some(record),
            (Guard::Absent(_), found) => found.is_none(),
        })
    }

    /// The value of a key as the changes before have left it. Whoever asks decides on it.
    fn get(&mut self, key: &[u8]) -> EngineResult<Option<Vec<u8>>> {
        if let Some(written) = self.decision.writes.get(key) {
            return Ok(written.clone());
        }
        let Some(read) = self.view.key(key) else {
            return Err(Fault::internal("commit").with("engine", self.engine).source("a key that was not read").into());
        };
        self.decision.checks.insert(Want::Key(key.to_vec()));
        Ok(read.map(|stored| stored.value.to_vec()))
    }

    fn set(&mut self, key: Vec<u8>, value: Option<Vec<u8>>) {
        self.decision.writes.insert(key, value);
    }

    /// The record of a key that is one stored value, as the changes before have left it.
    fn get_record(&mut self, key: &Key) -> EngineResult<Option<Record>> {
        let Place::Key(stored) = codec::place(key) else { return Err(self.unfit(key)) };
        let value = self.get(&stored)?;
        value.map(|value| codec::decode(key, &value).ok_or_else(|| self.corrupt(key))).transpose()
    }

    fn put(&mut self, key: &Key, record: &Record) -> EngineResult<()> {
        let writes = codec::encode(key, record).ok_or_else(|| self.unfit(key))?;
        self.decision.writes.extend(writes);
        Ok(())
    }

    fn unfit(&self, key: &Key) -> EngineError {
        Fault::internal("put record").with("engine", self.engine).with("key", format_args!("{key:?}")).into()
    }

    fn delete(&mut self, key: &Key) {
        match codec::place(key) {
            Place::Key(stored) => self.set(stored, None),
            Place::Pair(one, other) => {
                self.set(one, None);
                self.set(other, None);
            }
            Place::Any(_) => {}
            Place::All(prefix) => {
                // What was written of it by the changes before goes as well.
                let written = self.decision.writes.range(prefix.clone()..codec::end_of(&prefix));
                let mut gone: Vec<Vec<u8>> = written.map(|(key, _)| key.clone()).collect();
                let want = Want::All(prefix);
                if let Some(listed) = self.view.list(&want) {
                    gone.extend(listed.rows.iter().map(|(key, _)| key.clone()));
                }
                self.decision.checks.insert(want);
                for key in gone {
                    self.set(key, None);
                }
            }
        }
    }

    fn add(&self, to: i64, delta: i64) -> EngineResult<i64> {
        let sum = to.checked_add(delta);
        sum.ok_or_else(|| Fault::corrupt("add to record").with("engine", self.engine).with("number", to).into())
    }

    fn apply(&mut self, change: &Change, whole: bool) -> EngineResult<()> {
        match change {
            Change::Put(key, record) => self.put(key, record),
            Change::Delete(key) => {
                self.delete(key);
                Ok(())
            }
            gathered if is_gathered(gathered) && !whole => Ok(()),
            Change::AddCounter(counter, delta) => {
                let key = Key::Counter(*counter);
                let before = number(self.get_record(&key)?);
                let sum = self.add(before, *delta)?;
                self.put(&key, &Record::Number(sum))
            }
            Change::Patch(ino, patch) => {
                let key = Key::Attr(*ino);
                let Some(Record::Attr(mut attr)) = self.get_record(&key)? else { return Err(EngineError::Conflict) };
                patch.apply(&mut attr);
                self.put(&key, &Record::Attr(attr))
            }
            Change::Append { ino, index, slices, only_existing } => {
                let stored = codec::chunk_key(*ino, *index);
                let list = self.get(&stored)?;
                if list.is_none() && *only_existing {
                    self.decision.committed.list_lengths.push(0);
                    return Ok(());
                }
                let mut list = list.unwrap_or_default();
                if !list.len().is_multiple_of(SLICE_RECORD_BYTES) {
                    return Err(self.corrupt(&Key::Chunk(*ino, *index)));
                }
                list.extend(Slice::encode_list(slices));
                self.decision.committed.list_lengths.push(list.len() / SLICE_RECORD_BYTES);
                self.set(stored, Some(list));
                Ok(())
            }
            Change::ReplacePrefix { ino, index, count, with } => {
                let stored = codec::chunk_key(*ino, *index);
                let list = self.get(&stored)?.ok_or(EngineError::Conflict)?;
                let rest = list.get(count * SLICE_RECORD_BYTES..).ok_or(EngineError::Conflict)?;
                let list = [&Slice::encode_list(with), rest].concat();
                self.set(stored, Some(list).filter(|list| !list.is_empty()));
                Ok(())
            }
            Change::AddLinkParent { ino, parent, delta } => {
                let stored = codec::link_parent_key(*ino, *parent);
                let count = match self.get(&stored)? {
                    None => 0,
                    Some(value) => codec::decode_count(&value).ok_or_else(|| self.corrupt(&Key::LinkParents(*ino)))?,
                };
                let count = self.add(count, *delta)?;
                self.set(stored, Some(count.to_le_bytes().to_vec()));
                Ok(())
            }
            Change::AddSliceRef { id, size, delta } => {
                let key = Key::SliceRef(*id, *size);
                let before = match self.get_record(&key)? {
                    Some(Record::Number(references)) => references,
                    _ => 1,
                };
                let after = self.add(before, *delta)?;
                self.decision.committed.references.push(after);
                self.put(&key, &Record::Number(after))
            }
            Change::AddDirStat(ino, delta) => self.add_dir_stat(*ino, delta),
            Change::AddQuota { owner, space, inodes } => self.add_quota(*owner, *space, *inodes),
            Change::SetFlock { ino, session, owner, exclusive, last: _ } => {
                let mut holders = match self.get_record(&Key::Flocks(*ino))? {
                    Some(Record::Flocks(holders)) => holders,
                    _ => Vec::new(),
                };
                holders.retain(|h| (h.session, h.owner) != (*session, *owner));
                holders.extend(exclusive.map(|exclusive| FlockHolder { session: *session, owner: *owner, exclusive }));
                holders.sort_by_key(|h| (h.session, h.owner));
                self.put_locks(&Key::Flocks(*ino), codec::encode_flocks(&holders))
            }
            Change::SetPlock { ino, session, owner, ranges, last: _ } => {
                let mut holders = match self.get_record(&Key::Plocks(*ino))? {
                    Some(Record::Plocks(holders)) => holders,
                    _ => Vec::new(),
                };
                holders.retain(|h| (h.session, h.owner) != (*session, *owner));
                if !ranges.is_empty() {
                    holders.push(PlockHolder { session: *session, owner: *owner, ranges: ranges.clone() });
                }
                holders.sort_by_key(|h| (h.session, h.owner));
                self.put_locks(&Key::Plocks(*ino), codec::encode_plocks(&holders))
            }
        }
    }

    fn add_dir_stat(&mut self, ino: Ino, delta: &DirStat) -> EngineResult<()> {
        let key = Key::DirStat(ino);
        let Some(Record::DirStat(stat)) = self.get_record(&key)? else { return Ok(()) };
        let stat = DirStat {
            length: self.add(stat.length, delta.length)?,
            space: self.add(stat.space, delta.space)?,
            inodes: self.add(stat.inodes, delta.inodes)?,
        };
        self.put(&key, &Record::DirStat(stat))
    }

    fn add_quota(&mut self, owner: QuotaOwner, space: i64, inodes: i64) -> EngineResult<()> {
        let key = Key::Quota(owner);
        let Some(Record::Quota(quota)) = self.get_record(&key)? else { return Ok(()) };
        let used_space = self.add(quota.used_space, space)?;
        let used_inodes = self.add(quota.used_inodes, inodes)?;
        self.put(&key, &Record::Quota(Quota { used_space, used_inodes, ..quota }))
    }

    fn put_locks(&mut self, key: &Key, value: Option<Vec<u8>>) -> EngineResult<()> {
        let Place::Key(stored) = codec::place(key) else { return Err(self.unfit(key)) };
        self.set(stored, value);
        Ok(())
    }
}

fn number(record: Option<Record>) -> i64 {
    match record {
        Some(Record::Number(n)) => n,
        _ => 0,
    }
}

/// Attributes that a page of a directory is joined with.
pub(super) fn attr(record: Option<Record>) -> Option<Attr> {
    match record {
        Some(Record::Attr(attr)) => Some(attr),
        _ => None,
    }
}
