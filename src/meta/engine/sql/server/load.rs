//! Records under their keys: one script for any number of them, with one query for all attributes, one for the names of
//! a directory, one for the chunks of a file, and one for each other key.

use super::driver::{Answers, Cells};
use super::script::{Script, Value};
use super::{ServerKind, Shared, read_error};
use crate::base::{ChunkIndex, Fault, FaultKind, Ino, Name, Slice};
use crate::meta::engine::sql::records::{counter_name, counter_shift, quota_key};
use crate::meta::engine::sql::rows::{
    Columns, acl, attr, dentry, dir_stat, flock_holder, flock_holders, plock_holder, plock_holders, quota, session,
};
use crate::meta::engine::{EngineResult, Looked};
use crate::meta::record::{Key, QuotaOwner, Record, decode_delayed};
use std::fmt::Debug;

/// Keys that one query answers, with their places among all that were asked for.
enum Question {
    Attrs(Vec<(usize, Ino)>),
    Dentries(Ino, Vec<(usize, Name)>),
    Chunks(Ino, Vec<(usize, ChunkIndex)>),
    One(usize, Key),
}

fn questions(keys: &[Key]) -> Vec<Question> {
    let mut questions: Vec<Question> = Vec::new();
    for (at, key) in keys.iter().enumerate() {
        let joined = questions.iter_mut().any(|question| match (question, key) {
            (Question::Attrs(list), Key::Attr(ino)) => {
                list.push((at, *ino));
                true
            }
            (Question::Dentries(of, list), Key::Dentry(dir, name)) if of == dir => {
                list.push((at, name.clone()));
                true
            }
            (Question::Chunks(of, list), Key::Chunk(ino, index)) if of == ino => {
                list.push((at, *index));
                true
            }
            _ => false,
        });
        if !joined {
            questions.push(match key {
                Key::Attr(ino) => Question::Attrs(vec![(at, *ino)]),
                Key::Dentry(dir, name) => Question::Dentries(*dir, vec![(at, name.clone())]),
                Key::Chunk(ino, index) => Question::Chunks(*ino, vec![(at, *index)]),
                key => Question::One(at, key.clone()),
            });
        }
    }
    questions
}

fn number(ino: Ino) -> Value<'static> {
    Value::Int(ino.0 as i64)
}

fn parameters(count: usize) -> String {
    vec!["?"; count].join(", ")
}

fn some_list<T>(items: Vec<T>, record: fn(Vec<T>) -> Record) -> Option<Record> {
    if items.is_empty() { None } else { Some(record(items)) }
}

impl Shared {
    /// One snapshot, one trip.
    pub(super) async fn load(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let mut records = vec![None; keys.len()];
        if keys.is_empty() {
            return Ok(records);
        }
        let questions = questions(keys);
        // One statement is a snapshot by itself.
        let several = questions.len() > 1;
        let mut script = self.script();
        if several {
            script.raw(self.dialect.begin_snapshot);
        }
        let asked: Vec<usize> = questions.iter().map(|question| self.ask(question, &mut script)).collect();
        if several {
            script.raw("COMMIT");
        }
        let answers = match self.driver.read(script.text, "load records").await {
            // There is no volume yet.
            Err(super::Failed::MissingTable) => return Ok(records),
            answers => answers.map_err(|failed| read_error(failed, "load records"))?,
        };
        for (question, at) in questions.iter().zip(asked) {
            self.answer(question, rows(&answers, at), &mut records)?;
        }
        Ok(records)
    }

    fn ask(&self, question: &Question, script: &mut Script) -> usize {
        let t = &self.texts;
        match question {
            Question::Attrs(list) => {
                let text = format!("{} ({})", t.nodes_among, parameters(list.len()));
                script.add(&text, &list.iter().map(|(_, ino)| number(*ino)).collect::<Vec<_>>())
            }
            Question::Dentries(dir, list) => {
                let text = format!("{} ({})", t.edges_among, parameters(list.len()));
                let names = list.iter().map(|(_, name)| Value::Bytes(name.as_bytes()));
                script.add(&text, &[number(*dir)].into_iter().chain(names).collect::<Vec<_>>())
            }
            Question::Chunks(ino, list) => {
                let text = format!("{} ({})", t.chunks_among, parameters(list.len()));
                let indexes = list.iter().map(|(_, index)| Value::Int(index.0.into()));
                script.add(&text, &[number(*ino)].into_iter().chain(indexes).collect::<Vec<_>>())
            }
            Question::One(_, key) => self.ask_one(key, script),
        }
    }

    pub(super) fn ask_one(&self, key: &Key, script: &mut Script) -> usize {
        let t = &self.texts;
        match key {
            Key::Setting => script.add(&t.setting, &[]),
            Key::Counter(counter) => match counter_name(*counter) {
                Some(name) => script.add(&t.counter, &[Value::Text(name.as_bytes())]),
                // Rules are numbered by their table.
                None => match self.kind {
                    ServerKind::Mysql => script.raw(&format!("SELECT MAX(id) FROM {}", self.table("acl"))),
                    ServerKind::Postgres => {
                        script.raw(&format!("SELECT last_value FROM {} WHERE is_called", self.table("acl_id_seq")))
                    }
                },
            },
            Key::Attr(_) | Key::Dentry(..) | Key::Chunk(..) => unreachable!("asked for together with others"),
            Key::AnyDentry(dir) => script.add(&t.any_edge, &[number(*dir)]),
            Key::Symlink(ino) => script.add(&t.symlink, &[number(*ino)]),
            Key::LinkParents(ino) => script.add(&t.link_parents, &[number(*ino)]),
            Key::SliceRef(id, _) => script.add(&t.slice_ref, &[Value::Int(id.0 as i64)]),
            Key::Xattr(ino, name) => {
                let name = script.part("?", &[Value::Text(name.as_bytes())]);
                let table = self.table("xattr");
                let exactly = (self.dialect.exactly)("name", &name);
                script.raw(&format!("SELECT value FROM {table} WHERE inode = {} AND {exactly}", ino.0 as i64))
            }
            Key::Xattrs(ino) => script.add(&t.xattrs, &[number(*ino)]),
            Key::AclRule(id) => script.add(&t.acl, &[Value::Int((*id).into())]),
            Key::DirStat(ino) => script.add(&t.dir_stat, &[number(*ino)]),
            Key::Quota(owner) => match (owner, quota_key(*owner)) {
                (QuotaOwner::Directory(ino), _) => script.add(&t.dir_quota, &[number(*ino)]),
                (_, Some((of, id))) => script.add(&t.owner_quota, &[Value::Int(of), Value::Int(id)]),
                (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
            },
            Key::Session(sid) => script.add(&t.session, &[Value::Int(sid.0 as i64)]),
            Key::Sustained(sid, ino) => script.add(&t.sustained, &[Value::Int(sid.0 as i64), number(*ino)]),
            Key::DeletedFile(ino, length) => script.add(&t.deleted_file, &[number(*ino), Value::Int(*length as i64)]),
            Key::DelayedSlices(id, time) => script.add(&t.delayed, &[Value::Int(id.0 as i64), Value::Int(*time)]),
            Key::Flocks(ino) => script.add(&t.flocks, &[number(*ino)]),
            Key::Plocks(ino) => script.add(&t.plocks, &[number(*ino)]),
        }
    }

    fn answer(&self, question: &Question, rows: &[Cells], records: &mut [Option<Record>]) -> EngineResult<()> {
        match question {
            Question::Attrs(list) => {
                for row in rows {
                    let ino = row.ino(18);
                    let wanted: Vec<usize> =
                        list.iter().filter(|(_, wanted)| Some(*wanted) == ino).map(|(at, _)| *at).collect();
                    let decoded = attr(row, 0).map(Record::Attr);
                    let key = Key::Attr(ino.unwrap_or(Ino(0)));
                    let record = decoded.ok_or_else(|| self.undecoded(&key))?;
                    wanted.iter().for_each(|at| records[*at] = Some(record.clone()));
                }
            }
            Question::Dentries(dir, list) => {
                for row in rows {
                    let name = row.bytes(0).unwrap_or_default();
                    let record = dentry(row, 1, 2).map(Record::Dentry);
                    let record =
                        record.ok_or_else(|| self.undecoded(&Key::Dentry(*dir, Name::stored(name.to_vec()))))?;
                    for (at, _) in list.iter().filter(|(_, wanted)| wanted.as_bytes() == name) {
                        records[*at] = Some(record.clone());
                    }
                }
            }
            Question::Chunks(ino, list) => {
                for row in rows {
                    let index = row.int(0).and_then(|index| u32::try_from(index).ok()).map(ChunkIndex);
                    let record = row.bytes(1).and_then(Slice::decode_list).map(Record::Slices);
                    let key = Key::Chunk(*ino, index.unwrap_or(ChunkIndex(0)));
                    let record = record.ok_or_else(|| self.undecoded(&key))?;
                    for (at, _) in list.iter().filter(|(_, wanted)| Some(*wanted) == index) {
                        records[*at] = Some(record.clone());
                    }
                }
            }
            Question::One(at, key) => {
                records[*at] = self.record_of(key, rows)?;
            }
        }
        Ok(())
    }

    /// What the rows that were asked for under a key make of it.
    pub(super) fn record_of(&self, key: &Key, rows: &[Cells]) -> Result<Option<Record>, Fault> {
        let undecoded = || self.undecoded(key);
        let first = |decode: &dyn Fn(&Cells) -> Option<Record>| match rows.first() {
            Some(row) => decode(row).map(Some).ok_or_else(undecoded),
            None => Ok(None),
        };
        match key {
            Key::Setting | Key::Symlink(_) | Key::Xattr(..) => first(&|row| row.owned(0).map(Record::Bytes)),
            Key::Counter(counter) => match rows.first() {
                Some(row) if !row.is_null(0) => {
                    let stored = row.int(0).ok_or_else(undecoded)?;
                    Ok(Some(Record::Number(stored.saturating_sub(counter_shift(*counter)))))
                }
                _ => Ok(None),
            },
            Key::Attr(_) => first(&|row| attr(row, 0).map(Record::Attr)),
            Key::Dentry(..) | Key::AnyDentry(_) => first(&|row| dentry(row, 0, 1).map(Record::Dentry)),
            Key::LinkParents(_) => {
                let parents = rows.iter().map(|row| Some((row.ino(0)?, row.int(1)?))).collect::<Option<Vec<_>>>();
                Ok(some_list(parents.ok_or_else(undecoded)?, Record::LinkParents))
            }
            Key::Chunk(..) => first(&|row| row.bytes(0).and_then(Slice::decode_list).map(Record::Slices)),
            Key::SliceRef(..) | Key::DeletedFile(..) => first(&|row| row.int(0).map(Record::Number)),
            Key::Sustained(..) => first(&|_| Some(Record::Number(1))),
            Key::Xattrs(_) => {
                let all = rows.iter().map(|row| Some((Name::stored(row.bytes(0)?.to_vec()), row.owned(1)?)));
                let mut all = all.collect::<Option<Vec<_>>>().ok_or_else(undecoded)?;
                // The database may sort by something else than bytes.
                all.sort();
                Ok(some_list(all, Record::Xattrs))
            }
            Key::AclRule(_) => first(&|row| acl(row).map(Record::AclRule)),
            Key::DirStat(_) => first(&|row| dir_stat(row, 0).map(Record::DirStat)),
            Key::Quota(_) => first(&|row| quota(row).map(Record::Quota)),
            Key::Session(_) => first(&|row| session(row, 0).map(Record::Session)),
            Key::DelayedSlices(..) => first(&|row| row.bytes(0).and_then(decode_delayed).map(Record::Slices)),
            Key::Flocks(_) => {
                let holders = rows.iter().map(flock_holder).collect::<Option<Vec<_>>>().ok_or_else(undecoded)?;
                Ok(some_list(flock_holders(holders), Record::Flocks))
            }
            Key::Plocks(_) => {
                let holders = rows.iter().map(plock_holder).collect::<Option<Vec<_>>>().ok_or_else(undecoded)?;
                Ok(some_list(plock_holders(holders), Record::Plocks))
            }
        }
    }

    /// What lies at a key is no record.
    pub(super) fn undecoded(&self, what: &dyn Debug) -> Fault {
        self.fault(FaultKind::Corrupt, "decode record").with("key", format!("{what:?}"))
    }

    /// One query joins directory, entry and node.
    pub(super) async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Looked> {
        let mut script = self.script();
        let at = script.add(&self.texts.look_up, &[number(parent), number(parent), Value::Bytes(name.as_bytes())]);
        let answers = match self.driver.read(script.text, "look up").await {
            Err(super::Failed::MissingTable) => return Ok(Looked::default()),
            answers => answers.map_err(|failed| read_error(failed, "look up"))?,
        };
        let Some(row) = rows(&answers, at).first() else { return Ok(Looked::default()) };
        // A node has a type, and an entry an inode.
        let node_at = |first: usize, key: Key| match row.is_null(first) {
            true => Ok(None),
            false => attr(row, first).map(Some).ok_or_else(|| self.undecoded(&key)),
        };
        let dentry = match row.is_null(18) {
            true => None,
            false => Some(dentry(row, 18, 19).ok_or_else(|| self.undecoded(&Key::Dentry(parent, name.clone())))?),
        };
        let node = match dentry {
            Some(dentry) => node_at(20, Key::Attr(dentry.ino))?,
            None => None,
        };
        Ok(Looked { parent: node_at(0, Key::Attr(parent))?, dentry, node })
    }
}

/// The rows of one statement.
pub(super) fn rows(answers: &Answers, at: usize) -> &[Cells] {
    answers.get(at).map_or(&[], |rows| rows)
}
