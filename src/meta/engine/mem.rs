//! The reference engine: records in ordered maps behind one mutex. It is what the others are compared with, and what
//! unit tests run on. Nothing is stored anywhere.

use super::{
    Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Guard, Looked, Page, PlusPage, Scan,
};
use crate::base::{Attr, ChunkIndex, Fault, Ino, Name, SessionId, Slice, SliceId};
use crate::meta::record::{
    Counter, Dentry, DirStat, FlockHolder, Key, PlockHolder, Quota, QuotaOwner, Record, Session,
};
use async_trait::async_trait;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::{BTreeMap, HashMap};
use std::sync::Arc;

/// An engine in this process's memory; clones share one store.
#[derive(Clone, Default)]
pub struct MemEngine(Arc<Mutex<Store>>);

#[derive(Clone, Default, PartialEq)]
struct Store {
    setting: Option<Bytes>,
    counters: HashMap<Counter, i64>,
    attrs: BTreeMap<Ino, Attr>,
    dentries: BTreeMap<(Ino, Name), Dentry>,
    symlinks: BTreeMap<Ino, Bytes>,
    link_parents: BTreeMap<(Ino, Ino), i64>,
    chunks: BTreeMap<(Ino, ChunkIndex), Vec<Slice>>,
    references: BTreeMap<(SliceId, u32), i64>,
    xattrs: BTreeMap<(Ino, Name), Bytes>,
    acl_rules: BTreeMap<u32, Record>,
    dir_stats: BTreeMap<Ino, DirStat>,
    quotas: BTreeMap<QuotaOwner, Quota>,
    sessions: BTreeMap<SessionId, Session>,
    sustained: BTreeMap<(SessionId, Ino), ()>,
    deleted_files: BTreeMap<(Ino, u64), i64>,
    delayed_slices: BTreeMap<(SliceId, i64), Vec<Slice>>,
    flocks: BTreeMap<Ino, Vec<FlockHolder>>,
    plocks: BTreeMap<Ino, Vec<PlockHolder>>,
}

/// Entries of a map keyed by (inode, something), of one inode.
fn of<'a, K: Ord + Clone, V>(map: &'a BTreeMap<(Ino, K), V>, ino: Ino) -> impl Iterator<Item = (&'a K, &'a V)> {
    map.iter()
        .skip_while(move |((i, _), _)| *i < ino)
        .take_while(move |((i, _), _)| *i == ino)
        .map(|((_, k), v)| (k, v))
}

fn list<T>(items: Vec<T>, record: impl FnOnce(Vec<T>) -> Record) -> Option<Record> {
    if items.is_empty() { None } else { Some(record(items)) }
}

impl Store {
    fn get(&self, key: &Key) -> Option<Record> {
        match key {
            Key::Setting => self.setting.clone().map(Record::Bytes),
            Key::Counter(counter) => self.counters.get(counter).map(|n| Record::Number(*n)),
            Key::Attr(ino) => self.attrs.get(ino).map(|a| Record::Attr(*a)),
            Key::Dentry(dir, name) => self.dentries.get(&(*dir, name.clone())).map(|d| Record::Dentry(*d)),
            Key::AnyDentry(dir) => {
                let first = (*dir, Name::stored(*b""));
                self.dentries.range(first..).next().filter(|((d, _), _)| d == dir).map(|(_, d)| Record::Dentry(*d))
            }
            Key::Symlink(ino) => self.symlinks.get(ino).cloned().map(Record::Bytes),
            Key::LinkParents(ino) => {
                list(of(&self.link_parents, *ino).map(|(p, n)| (*p, *n)).collect(), Record::LinkParents)
            }
            Key::Chunk(ino, index) => self.chunks.get(&(*ino, *index)).cloned().map(Record::Slices),
            Key::SliceRef(id, size) => self.references.get(&(*id, *size)).map(|n| Record::Number(*n)),
            Key::Xattr(ino, name) => self.xattrs.get(&(*ino, name.clone())).cloned().map(Record::Bytes),
            Key::Xattrs(ino) => {
                list(of(&self.xattrs, *ino).map(|(n, v)| (n.clone(), v.clone())).collect(), Record::Xattrs)
            }
            Key::AclRule(id) => self.acl_rules.get(id).cloned(),
            Key::DirStat(ino) => self.dir_stats.get(ino).map(|s| Record::DirStat(*s)),
            Key::Quota(owner) => self.quotas.get(owner).map(|q| Record::Quota(*q)),
            Key::Session(sid) => self.sessions.get(sid).cloned().map(Record::Session),
            Key::Sustained(sid, ino) => self.sustained.get(&(*sid, *ino)).map(|()| Record::Number(1)),
            Key::DeletedFile(ino, length) => self.deleted_files.get(&(*ino, *length)).map(|t| Record::Number(*t)),
            Key::DelayedSlices(id, time) => self.delayed_slices.get(&(*id, *time)).cloned().map(Record::Slices),
            Key::Flocks(ino) => self.flocks.get(ino).cloned().and_then(|l| list(l, Record::Flocks)),
            Key::Plocks(ino) => self.plocks.get(ino).cloned().and_then(|l| list(l, Record::Plocks)),
        }
    }

    fn holds(&self, guard: &Guard) -> bool {
        match guard {
            Guard::Fields(ino, seen, mask) => self.attrs.get(ino).is_some_and(|a| a.same(seen, *mask)),
            Guard::Same(key, record) => self.get(key).as_ref() == Some(record),
            Guard::Absent(key) => self.get(key).is_none(),
            Guard::ChunkPrefix(ino, index, prefix) => {
                self.chunks.get(&(*ino, *index)).is_some_and(|list| list.starts_with(prefix))
            }
        }
    }

    fn put(&mut self, key: &Key, record: &Record) -> EngineResult<()> {
        match (key, record) {
            (Key::Setting, Record::Bytes(b)) => self.setting = Some(b.clone()),
            (Key::Counter(c), Record::Number(n)) => drop(self.counters.insert(*c, *n)),
            (Key::Attr(i), Record::Attr(a)) => drop(self.attrs.insert(*i, *a)),
            (Key::Dentry(d, n), Record::Dentry(e)) => drop(self.dentries.insert((*d, n.clone()), *e)),
            (Key::Symlink(i), Record::Bytes(b)) => drop(self.symlinks.insert(*i, b.clone())),
            (Key::Chunk(i, x), Record::Slices(l)) => drop(self.chunks.insert((*i, *x), l.clone())),
            (Key::SliceRef(i, s), Record::Number(n)) => drop(self.references.insert((*i, *s), *n)),
            (Key::Xattr(i, n), Record::Bytes(b)) => drop(self.xattrs.insert((*i, n.clone()), b.clone())),
            (Key::AclRule(i), rule @ Record::AclRule(_)) => drop(self.acl_rules.insert(*i, rule.clone())),
            (Key::DirStat(i), Record::DirStat(s)) => drop(self.dir_stats.insert(*i, *s)),
            (Key::Quota(o), Record::Quota(q)) => drop(self.quotas.insert(*o, *q)),
            (Key::Session(s), Record::Session(r)) => drop(self.sessions.insert(*s, r.clone())),
            (Key::Sustained(s, i), Record::Number(_)) => drop(self.sustained.insert((*s, *i), ())),
            (Key::DeletedFile(i, l), Record::Number(t)) => drop(self.deleted_files.insert((*i, *l), *t)),
            (Key::DelayedSlices(i, t), Record::Slices(l)) => drop(self.delayed_slices.insert((*i, *t), l.clone())),
            (key, record) => return Err(unfit(key, record)),
        }
        Ok(())
    }

    fn delete(&mut self, key: &Key) {
        match key {
            Key::Setting => self.setting = None,
            Key::Counter(c) => drop(self.counters.remove(c)),
            Key::Attr(i) => drop(self.attrs.remove(i)),
            Key::Dentry(d, n) => drop(self.dentries.remove(&(*d, n.clone()))),
            Key::AnyDentry(_) => {}
            Key::Symlink(i) => drop(self.symlinks.remove(i)),
            Key::LinkParents(i) => self.link_parents.retain(|(ino, _), _| ino != i),
            Key::Chunk(i, x) => drop(self.chunks.remove(&(*i, *x))),
            Key::SliceRef(i, s) => drop(self.references.remove(&(*i, *s))),
            Key::Xattr(i, n) => drop(self.xattrs.remove(&(*i, n.clone()))),
            Key::Xattrs(i) => self.xattrs.retain(|(ino, _), _| ino != i),
            Key::AclRule(i) => drop(self.acl_rules.remove(i)),
            Key::DirStat(i) => drop(self.dir_stats.remove(i)),
            Key::Quota(o) => drop(self.quotas.remove(o)),
            Key::Session(s) => drop(self.sessions.remove(s)),
            Key::Sustained(s, i) => drop(self.sustained.remove(&(*s, *i))),
            Key::DeletedFile(i, l) => drop(self.deleted_files.remove(&(*i, *l))),
            Key::DelayedSlices(i, t) => drop(self.delayed_slices.remove(&(*i, *t))),
            Key::Flocks(i) => drop(self.flocks.remove(i)),
            Key::Plocks(i) => drop(self.plocks.remove(i)),
        }
    }

    fn apply(&mut self, change: &Change, done: &mut Committed) -> EngineResult<()> {
        match change {
            Change::Put(key, record) => self.put(key, record)?,
            Change::Delete(key) => self.delete(key),
            Change::Patch(ino, patch) => patch.apply(self.attrs.get_mut(ino).ok_or(EngineError::Conflict)?),
            Change::Append { ino, index, slices, only_existing } => {
                let key = (*ino, *index);
                if *only_existing && !self.chunks.contains_key(&key) {
                    done.list_lengths.push(0);
                } else {
                    let chunk = self.chunks.entry(key).or_default();
                    chunk.extend(slices);
                    done.list_lengths.push(chunk.len());
                }
            }
            Change::ReplacePrefix { ino, index, count, with } => {
                let chunk = self.chunks.get_mut(&(*ino, *index)).ok_or(EngineError::Conflict)?;
                if chunk.len() < *count {
                    return Err(EngineError::Conflict);
                }
                chunk.splice(..*count, with.iter().copied());
            }
            Change::AddCounter(counter, delta) => add(self.counters.entry(*counter).or_default(), *delta)?,
            Change::AddLinkParent { ino, parent, delta } => {
                add(self.link_parents.entry((*ino, *parent)).or_default(), *delta)?;
            }
            Change::AddSliceRef { id, size, delta } => {
                let references = self.references.entry((*id, *size)).or_insert(1);
                add(references, *delta)?;
                done.references.push(*references);
            }
            Change::AddDirStat(ino, delta) => {
                if let Some(stat) = self.dir_stats.get_mut(ino) {
                    add(&mut stat.length, delta.length)?;
                    add(&mut stat.space, delta.space)?;
                    add(&mut stat.inodes, delta.inodes)?;
                }
            }
            Change::AddQuota { owner, space, inodes } => {
                if let Some(quota) = self.quotas.get_mut(owner) {
                    add(&mut quota.used_space, *space)?;
                    add(&mut quota.used_inodes, *inodes)?;
                }
            }
            Change::SetFlock { ino, session, owner, exclusive, last: _ } => {
                let holders = self.flocks.entry(*ino).or_default();
                holders.retain(|h| (h.session, h.owner) != (*session, *owner));
                holders.extend(exclusive.map(|exclusive| FlockHolder { session: *session, owner: *owner, exclusive }));
                holders.sort_by_key(|h| (h.session, h.owner));
            }
            Change::SetPlock { ino, session, owner, ranges, last: _ } => {
                let holders = self.plocks.entry(*ino).or_default();
                holders.retain(|h| (h.session, h.owner) != (*session, *owner));
                if !ranges.is_empty() {
                    holders.push(PlockHolder { session: *session, owner: *owner, ranges: ranges.clone() });
                }
                holders.sort_by_key(|h| (h.session, h.owner));
            }
        }
        Ok(())
    }

    /// All rows of a scan, in the order of their maps.
    fn rows(&self, scan: &Scan) -> Vec<(Key, Record)> {
        fn rows<K, V>(map: &BTreeMap<K, V>, row: impl Fn(&K, &V) -> (Key, Record)) -> Vec<(Key, Record)> {
            map.iter().map(|(k, v)| row(k, v)).collect()
        }
        let inodes = |of: &mut dyn Iterator<Item = Ino>, key: fn(Ino) -> Key| -> Vec<(Key, Record)> {
            let mut inodes: Vec<Ino> = of.collect();
            inodes.dedup();
            inodes.into_iter().filter_map(|ino| self.get(&key(ino)).map(|record| (key(ino), record))).collect()
        };
        match scan {
            Scan::Dentries(dir) => of(&self.dentries, *dir)
                .map(|(name, d)| (Key::Dentry(*dir, name.clone()), Record::Dentry(*d)))
                .collect(),
            Scan::AllDentries => rows(&self.dentries, |(d, n), e| (Key::Dentry(*d, n.clone()), Record::Dentry(*e))),
            Scan::Attrs => rows(&self.attrs, |i, a| (Key::Attr(*i), Record::Attr(*a))),
            Scan::Chunks => rows(&self.chunks, |(i, x), l| (Key::Chunk(*i, *x), Record::Slices(l.clone()))),
            Scan::ChunksOf(ino) => {
                of(&self.chunks, *ino).map(|(index, l)| (Key::Chunk(*ino, *index), Record::Slices(l.clone()))).collect()
            }
            Scan::SliceRefs => rows(&self.references, |(i, s), n| (Key::SliceRef(*i, *s), Record::Number(*n))),
            Scan::Sessions => rows(&self.sessions, |s, r| (Key::Session(*s), Record::Session(r.clone()))),
            Scan::Sustained(sid) => self
                .sustained
                .keys()
                .filter(|(s, _)| s == sid)
                .map(|(s, i)| (Key::Sustained(*s, *i), Record::Number(1)))
                .collect(),
            Scan::DeletedFiles => rows(&self.deleted_files, |(i, l), t| (Key::DeletedFile(*i, *l), Record::Number(*t))),
            Scan::DelayedSlices => {
                rows(&self.delayed_slices, |(i, t), l| (Key::DelayedSlices(*i, *t), Record::Slices(l.clone())))
            }
            Scan::DirStats => rows(&self.dir_stats, |i, s| (Key::DirStat(*i), Record::DirStat(*s))),
            Scan::Quotas => rows(&self.quotas, |o, q| (Key::Quota(*o), Record::Quota(*q))),
            Scan::AclRules => rows(&self.acl_rules, |i, r| (Key::AclRule(*i), r.clone())),
            Scan::AllLocks => {
                let mut found = inodes(&mut self.flocks.keys().copied(), Key::Flocks);
                found.extend(inodes(&mut self.plocks.keys().copied(), Key::Plocks));
                found
            }
            Scan::LocksOf(sid) => {
                let flocked = self.flocks.iter().filter(|(_, l)| l.iter().any(|h| h.session == *sid)).map(|(i, _)| *i);
                let plocked = self.plocks.iter().filter(|(_, l)| l.iter().any(|h| h.session == *sid)).map(|(i, _)| *i);
                let mut found = inodes(&mut { flocked }, Key::Flocks);
                found.extend(inodes(&mut { plocked }, Key::Plocks));
                found
            }
            Scan::AllXattrs => inodes(&mut self.xattrs.keys().map(|(i, _)| *i), Key::Xattrs),
            Scan::AllLinkParents => inodes(&mut self.link_parents.keys().map(|(i, _)| *i), Key::LinkParents),
        }
    }
}

/// No number that is counted comes near its end; one that is there was damaged.
fn add(to: &mut i64, delta: i64) -> EngineResult<()> {
    *to = to.checked_add(delta).ok_or_else(|| Fault::corrupt("add to record").with("number", *to))?;
    Ok(())
}

fn unfit(key: &Key, record: &Record) -> EngineError {
    Fault::internal("put record").with("key", format_args!("{key:?}")).with("record", format_args!("{record:?}")).into()
}

/// Pages of a directory go on after the last name; the administrative scans come in one page whatever the limit, for
/// everything is in memory anyway.
fn page(mut rows: Vec<(Key, Record)>, after: Option<&Cursor>, limit: usize) -> Page {
    let name_of = |key: &Key| match key {
        Key::Dentry(_, name) => name.clone(),
        other => unreachable!("a directory page holds entries only, not {other:?}"),
    };
    if let Some(Cursor(last)) = after {
        rows.retain(|(key, _)| name_of(key).as_bytes() > last.as_ref());
    }
    let next = (rows.len() > limit).then(|| {
        rows.truncate(limit);
        rows.last().map(|(key, _)| Cursor(Bytes::copy_from_slice(name_of(key).as_bytes())))
    });
    Page { rows, next: next.flatten(), ..Page::default() }
}

#[async_trait]
impl Engine for MemEngine {
    fn name(&self) -> &'static str {
        "memory"
    }

    async fn prepare(&self) -> EngineResult<()> {
        Ok(())
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let store = self.0.lock();
        Ok(keys.iter().map(|key| store.get(key)).collect())
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        let store = self.0.lock();
        let attr = |ino| match store.get(&Key::Attr(ino)) {
            Some(Record::Attr(attr)) => Some(attr),
            _ => None,
        };
        let dentry = match store.get(&Key::Dentry(parent, name.clone())) {
            Some(Record::Dentry(dentry)) => Some(dentry),
            _ => None,
        };
        Ok(Some(Looked { parent: attr(parent), dentry, node: dentry.and_then(|dentry| attr(dentry.ino)) }))
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let records = self.read(first).await?;
        Ok((Box::new(MemTxn(self.clone())), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        let rows = self.0.lock().rows(scan);
        Ok(match scan {
            Scan::Dentries(_) => page(rows, after, limit.max(1)),
            _ => Page { rows, ..Page::default() },
        })
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        let store = self.0.lock();
        let Page { rows, next, .. } = page(store.rows(&Scan::Dentries(dir)), after, limit.max(1));
        let entries = rows
            .into_iter()
            .map(|row| match row {
                (Key::Dentry(_, name), Record::Dentry(dentry)) => {
                    let attr = store.attrs.get(&dentry.ino).copied();
                    (name, dentry, attr)
                }
                other => unreachable!("a directory page holds entries only, not {other:?}"),
            })
            .collect();
        Ok(PlusPage { entries, next })
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        let mut store = self.0.lock();
        // The stored value is the last id handed out, and inode 1 is the root's.
        let last = store.counters.entry(counter).or_insert(i64::from(counter == Counter::NextInode));
        let first = last.wrapping_add(1) as u64;
        add(last, count as i64)?;
        Ok(first)
    }

    async fn sync(&self) -> EngineResult<()> {
        Ok(())
    }

    async fn erase(&self) -> EngineResult<()> {
        *self.0.lock() = Store::default();
        Ok(())
    }
}

/// Loads see the store as it is; the guards of the commit make up for it.
struct MemTxn(MemEngine);

#[async_trait]
impl EngineTxn for MemTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.0.read(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let mut store = self.0.0.lock();
        if !batch.guards.iter().all(|guard| store.holds(guard)) {
            return Err(EngineError::Conflict);
        }
        // What is only found while applying is looked for before: a patch of a missing node, a list shorter than what
        // is to be replaced. Nothing else can fail half-way but a programming error, or a number that was damaged.
        let misfit = |change: &Change| match change {
            Change::Patch(ino, _) => !store.attrs.contains_key(ino),
            Change::ReplacePrefix { ino, index, count, .. } => {
                store.chunks.get(&(*ino, *index)).is_none_or(|list| list.len() < *count)
            }
            _ => false,
        };
        if batch.changes.iter().any(misfit) {
            return Err(EngineError::Conflict);
        }
        let mut done = Committed::default();
        for change in &batch.changes {
            store.apply(change, &mut done)?;
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests {
    use super::MemEngine;
    use crate::meta::engine::suite::{Opened, engine_suite};
    use std::sync::Arc;

    async fn open() -> Option<Opened> {
        let engine = Arc::new(MemEngine::default());
        Some(Opened { engine, derives_link_parents: false, keep: Box::new(()) })
    }

    engine_suite!(open);
}

/// For tests that take a store apart.
#[cfg(test)]
impl MemEngine {
    /// A store of its own with the same records.
    pub fn fork(&self) -> MemEngine {
        MemEngine(Arc::new(Mutex::new(self.0.lock().clone())))
    }

    pub fn holds_the_same_as(&self, other: &MemEngine) -> bool {
        *self.0.lock() == *other.0.lock()
    }

    /// Every record, those of collecting keys as a whole.
    pub fn records(&self) -> Vec<(Key, Record)> {
        let store = self.0.lock();
        let mut keys = vec![Key::Setting];
        keys.extend(store.counters.keys().map(|counter| Key::Counter(*counter)));
        keys.extend(store.attrs.keys().map(|ino| Key::Attr(*ino)));
        keys.extend(store.dentries.keys().map(|(dir, name)| Key::Dentry(*dir, name.clone())));
        keys.extend(store.symlinks.keys().map(|ino| Key::Symlink(*ino)));
        keys.extend(store.link_parents.keys().map(|(ino, _)| Key::LinkParents(*ino)));
        keys.extend(store.chunks.keys().map(|(ino, index)| Key::Chunk(*ino, *index)));
        keys.extend(store.references.keys().map(|(id, size)| Key::SliceRef(*id, *size)));
        keys.extend(store.xattrs.keys().map(|(ino, _)| Key::Xattrs(*ino)));
        keys.extend(store.acl_rules.keys().map(|id| Key::AclRule(*id)));
        keys.extend(store.dir_stats.keys().map(|ino| Key::DirStat(*ino)));
        keys.extend(store.quotas.keys().map(|owner| Key::Quota(*owner)));
        keys.extend(store.sessions.keys().map(|session| Key::Session(*session)));
        keys.extend(store.sustained.keys().map(|(session, ino)| Key::Sustained(*session, *ino)));
        keys.extend(store.deleted_files.keys().map(|(ino, length)| Key::DeletedFile(*ino, *length)));
        keys.extend(store.delayed_slices.keys().map(|(id, time)| Key::DelayedSlices(*id, *time)));
        keys.extend(store.flocks.keys().map(|ino| Key::Flocks(*ino)));
        keys.extend(store.plocks.keys().map(|ino| Key::Plocks(*ino)));
        keys.dedup();
        keys.into_iter().filter_map(|key| store.get(&key).map(|record| (key, record))).collect()
    }

    /// Replaces a record past all rules, those of collecting keys as a whole; `None` removes it.
    pub fn force(&self, key: &Key, record: Option<&Record>) {
        let mut store = self.0.lock();
        store.delete(key);
        match (key, record) {
            (_, None) => {}
            (Key::LinkParents(ino), Some(Record::LinkParents(parents))) => {
                store.link_parents.extend(parents.iter().map(|(parent, count)| ((*ino, *parent), *count)));
            }
            (Key::Xattrs(ino), Some(Record::Xattrs(all))) => {
                store.xattrs.extend(all.iter().map(|(name, value)| ((*ino, name.clone()), value.clone())));
            }
            (Key::Flocks(ino), Some(Record::Flocks(holders))) => drop(store.flocks.insert(*ino, holders.clone())),
            (Key::Plocks(ino), Some(Record::Plocks(holders))) => drop(store.plocks.insert(*ino, holders.clone())),
            (key, Some(record)) => store.put(key, record).expect("a record of its key's family"),
        }
    }
}
