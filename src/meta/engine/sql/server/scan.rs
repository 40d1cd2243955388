//! Pages of scans, by the key of the table that is read. What the pages of SQLite's engine say of cursors holds here too.

use super::driver::Cells;
use super::load::rows;
use super::script::Value;
use super::{Failed, Shared, read_error};
use crate::base::{ChunkIndex, Fault, Ino, Name, SessionId, Slice, SliceId};
use crate::meta::engine::sql::records::{GROUP_QUOTA, USER_QUOTA};
use crate::meta::engine::sql::rows::{Columns, acl, attr, dentry, dir_stat, quota, session};
use crate::meta::engine::{Cursor, EngineResult, Page, PlusPage, Scan};
use crate::meta::record::{Key, QuotaOwner, Record, decode_delayed};
use bytes::Bytes;

/// Where a scan goes on: after this row of this part. A scan over several tables has several parts.
#[derive(Clone, Copy)]
struct Place {
    part: u8,
    row: i64,
}

/// Before every number that is stored.
const FIRST_ROW: i64 = -1;

impl Place {
    fn of(cursor: Option<&Cursor>) -> Place {
        let read = |cursor: &Cursor| {
            let (part, row) = cursor.0.split_first()?;
            Some(Place { part: *part, row: i64::from_be_bytes(row.try_into().ok()?) })
        };
        cursor.and_then(read).unwrap_or(Place { part: 0, row: FIRST_ROW })
    }

    fn cursor(self) -> Cursor {
        let mut bytes = vec![self.part];
        bytes.extend(self.row.to_be_bytes());
        Cursor(bytes.into())
    }
}

/// What a scan reads, and how its rows are records.
struct Reading<'a> {
    text: &'a str,
    /// Before the row that the page goes on after, and the limit.
    values: Vec<Value<'a>>,
    /// The column with the number that the next page goes on after.
    numbered: usize,
    decode: Box<dyn Fn(&Cells) -> Option<(Key, Record)> + Send + 'a>,
    /// The last part of a scan that has several.
    parts: u8,
}

/// A scan over collecting keys reads the inodes that have any, and then the keys.
struct Owners<'a> {
    text: &'a str,
    values: Vec<Value<'a>>,
    key: fn(Ino) -> Key,
    parts: u8,
}

enum Plan<'a> {
    Rows(Reading<'a>),
    Owners(Owners<'a>),
    Nothing,
}

fn slice_id(row: &Cells, column: usize) -> Option<SliceId> {
    row.int(column).map(|id| SliceId(id as u64))
}

fn session_id(row: &Cells, column: usize) -> Option<SessionId> {
    row.int(column).map(|id| SessionId(id as u64))
}

impl Shared {
    fn plan(&self, scan: &Scan, part: u8) -> Plan<'_> {
        let t = &self.texts;
        let plain = |text, numbered, decode: fn(&Cells) -> Option<(Key, Record)>| {
            Plan::Rows(Reading { text, values: Vec::new(), numbered, decode: Box::new(decode), parts: 0 })
        };
        let of = |text, id: i64, decode: Box<dyn Fn(&Cells) -> Option<(Key, Record)> + Send>| {
            Plan::Rows(Reading { text, values: vec![Value::Int(id)], numbered: 0, decode, parts: 0 })
        };
        match scan {
            Scan::Dentries(_) => unreachable!("pages of a directory go by name"),
            Scan::AllDentries => plain(&t.edges, 0, |r| {
                let key = Key::Dentry(r.ino(1)?, Name::stored(r.bytes(2)?.to_vec()));
                Some((key, Record::Dentry(dentry(r, 3, 4)?)))
            }),
            Scan::Attrs => plain(&t.nodes, 18, |r| Some((Key::Attr(r.ino(18)?), Record::Attr(attr(r, 0)?)))),
            Scan::Chunks => plain(&t.chunks, 0, |r| {
                let key = Key::Chunk(r.ino(1)?, ChunkIndex(r.int(2)?.try_into().ok()?));
                Some((key, Record::Slices(Slice::decode_list(r.bytes(3)?)?)))
            }),
            Scan::ChunksOf(ino) => {
                let ino = *ino;
                let decode = move |r: &Cells| {
                    let key = Key::Chunk(ino, ChunkIndex(r.int(0)?.try_into().ok()?));
                    Some((key, Record::Slices(Slice::decode_list(r.bytes(1)?)?)))
                };
                of(&t.chunks_of, ino.0 as i64, Box::new(decode))
            }
            Scan::SliceRefs => plain(&t.slice_refs, 0, |r| {
                let key = Key::SliceRef(slice_id(r, 0)?, r.int(1)?.try_into().ok()?);
                Some((key, Record::Number(r.int(2)?)))
            }),
            Scan::Sessions => {
                plain(&t.sessions, 0, |r| Some((Key::Session(session_id(r, 0)?), Record::Session(session(r, 1)?))))
            }
            Scan::Sustained(sid) => {
                let sid = *sid;
                let decode = move |r: &Cells| Some((Key::Sustained(sid, r.ino(0)?), Record::Number(1)));
                of(&t.sustained_of, sid.0 as i64, Box::new(decode))
            }
            Scan::DeletedFiles => plain(&t.deleted_files, 0, |r| {
                Some((Key::DeletedFile(r.ino(0)?, r.int(1)? as u64), Record::Number(r.int(2)?)))
            }),
            Scan::DelayedSlices => plain(&t.all_delayed, 0, |r| {
                let key = Key::DelayedSlices(slice_id(r, 0)?, r.int(1)?);
                Some((key, Record::Slices(decode_delayed(r.bytes(2)?)?)))
            }),
            Scan::DirStats => {
                plain(&t.dir_stats, 0, |r| Some((Key::DirStat(r.ino(0)?), Record::DirStat(dir_stat(r, 1)?))))
            }
            Scan::AclRules => {
                plain(&t.acls, 6, |r| Some((Key::AclRule(r.int(6)?.try_into().ok()?), Record::AclRule(acl(r)?))))
            }
            Scan::Quotas => self.quotas(part),
            Scan::LocksOf(sid) => {
                let values = vec![Value::Int(sid.0 as i64)];
                let (text, key): (_, fn(Ino) -> Key) =
                    if part == 0 { (&t.flocked_by, Key::Flocks) } else { (&t.plocked_by, Key::Plocks) };
                Plan::Owners(Owners { text, values, key, parts: 1 })
            }
            Scan::AllLocks => {
                let (text, key): (_, fn(Ino) -> Key) =
                    if part == 0 { (&t.flocked, Key::Flocks) } else { (&t.plocked, Key::Plocks) };
                Plan::Owners(Owners { text, values: Vec::new(), key, parts: 1 })
            }
            Scan::AllXattrs => {
                Plan::Owners(Owners { text: &t.xattr_owners, values: Vec::new(), key: Key::Xattrs, parts: 0 })
            }
            // They are counted from the entries.
            Scan::AllLinkParents => Plan::Nothing,
        }
    }

    /// Part 0 are directories; users and groups have their own numbers as parts.
    fn quotas(&self, part: u8) -> Plan<'_> {
        let owner_of = move |id: i64| match i64::from(part) {
            0 => Some(QuotaOwner::Directory(Ino(id as u64))),
            USER_QUOTA => Some(QuotaOwner::User(id.try_into().ok()?)),
            _ => Some(QuotaOwner::Group(id.try_into().ok()?)),
        };
        let decode = move |r: &Cells| Some((Key::Quota(owner_of(r.int(4)?)?), Record::Quota(quota(r)?)));
        let (text, values) = match i64::from(part) {
            0 => (&self.texts.dir_quotas, Vec::new()),
            USER_QUOTA => (&self.texts.owner_quotas, vec![Value::Int(USER_QUOTA)]),
            _ => (&self.texts.owner_quotas, vec![Value::Int(GROUP_QUOTA)]),
        };
        Plan::Rows(Reading { text, values, numbered: 4, decode: Box::new(decode), parts: GROUP_QUOTA as u8 })
    }

    async fn answer_of(&self, text: &str, values: &[Value<'_>]) -> EngineResult<Vec<Cells>> {
        let mut script = self.script();
        script.add(text, values);
        match self.driver.read(script.text, "scan records").await {
            Err(Failed::MissingTable) => Ok(Vec::new()),
            answers => {
                let answers = answers.map_err(|failed| read_error(failed, "scan records"))?;
                Ok(answers.into_iter().next().unwrap_or_default())
            }
        }
    }

    pub(super) async fn scan(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        let limit = limit.max(1);
        if let Scan::Dentries(dir) = scan {
            return self.entries(*dir, after, limit).await;
        }
        let place = Place::of(after);
        // Loaders of dumps leave a row for holes, slice 0, which is nothing.
        let row = if *scan == Scan::SliceRefs { place.row.max(0) } else { place.row };
        let bounds = [Value::Int(row), Value::Int(limit as i64)];
        match self.plan(scan, place.part) {
            Plan::Nothing => Ok(Page::default()),
            Plan::Rows(reading) => {
                let values: Vec<Value<'_>> = reading.values.iter().cloned().chain(bounds).collect();
                let found = self.answer_of(reading.text, &values).await?;
                let numbers: Vec<Option<i64>> = found.iter().map(|row| row.int(reading.numbered)).collect();
                let rows = found.iter().map(|row| (reading.decode)(row).ok_or_else(|| self.undecoded_row(scan, row)));
                let next = next(&numbers, limit, place, reading.parts);
                Ok(Page::of(rows, next))
            }
            Plan::Owners(owners) => {
                let values: Vec<Value<'_>> = owners.values.iter().cloned().chain(bounds).collect();
                let found = self.answer_of(owners.text, &values).await?;
                let numbers: Vec<Option<i64>> = found.iter().map(|row| row.int(0)).collect();
                let rows = self.of_inodes(&numbers, owners.key).await?;
                Ok(Page::of(rows, next(&numbers, limit, place, owners.parts)))
            }
        }
    }

    /// Collecting keys, one per inode; one whose rows have just gone has no record.
    async fn of_inodes(
        &self,
        numbers: &[Option<i64>],
        key: fn(Ino) -> Key,
    ) -> EngineResult<Vec<Result<(Key, Record), Fault>>> {
        let keys: Vec<Key> = numbers.iter().flatten().map(|number| key(Ino(*number as u64))).collect();
        if keys.is_empty() {
            return Ok(Vec::new());
        }
        let mut script = self.script();
        let asked: Vec<usize> = keys.iter().map(|key| self.ask_one(key, &mut script)).collect();
        let answers = self.driver.read(script.text, "scan records").await;
        let answers = answers.map_err(|failed| read_error(failed, "scan records"))?;
        let records = keys.into_iter().zip(asked).filter_map(|(key, at)| {
            let record = self.record_of(&key, rows(&answers, at)).transpose()?;
            Some(record.map(|record| (key, record)))
        });
        Ok(records.collect())
    }

    async fn entries(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        let start = after.map_or(&b""[..], |cursor| &cursor.0);
        let values = [Value::Int(dir.0 as i64), Value::Bytes(start), Value::Int(limit as i64)];
        let found = self.answer_of(&self.texts.edges_of, &values).await?;
        let rows = found.iter().map(|row| {
            let name = Name::stored(row.bytes(0).unwrap_or_default().to_vec());
            let record = dentry(row, 1, 2).map(Record::Dentry);
            let key = Key::Dentry(dir, name);
            let record = record.ok_or_else(|| self.undecoded(&key))?;
            Ok((key, record))
        });
        Ok(Page::of(rows, name_cursor(&found, limit, 0)))
    }

    pub(super) async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        let limit = limit.max(1);
        let start = after.map_or(&b""[..], |cursor| &cursor.0);
        let values = [Value::Int(dir.0 as i64), Value::Bytes(start), Value::Int(limit as i64)];
        let found = self.answer_of(&self.texts.edges_of_plus, &values).await?;
        let entries = found.iter().map(|row| {
            let name = Name::stored(row.bytes(18).unwrap_or_default().to_vec());
            let undecoded = || self.undecoded(&Key::Dentry(dir, name.clone()));
            let entry = dentry(row, 19, 20).ok_or_else(undecoded)?;
            // A node has a type; without one the entry's node is missing.
            let node = match row.is_null(0) {
                true => None,
                false => Some(attr(row, 0).ok_or_else(|| self.undecoded(&Key::Attr(entry.ino)))?),
            };
            Ok((name, entry, node))
        });
        let entries = entries.collect::<Result<_, Fault>>()?;
        Ok(PlusPage { entries, next: name_cursor(&found, limit, 18) })
    }

    /// Names the row as well: that of a scan is one of very many, and somebody will have to mend it.
    fn undecoded_row(&self, scan: &Scan, row: &Cells) -> Fault {
        let numbers: Vec<i64> = (0..4).filter_map(|column| row.int(column)).collect();
        self.undecoded(scan).with("row", format!("{numbers:?}"))
    }
}

fn name_cursor(found: &[Cells], limit: usize, column: usize) -> Option<Cursor> {
    let last = found.last().filter(|_| found.len() == limit)?;
    Some(Cursor(Bytes::copy_from_slice(last.bytes(column)?)))
}

/// A full page goes on after its last row; a scan of several parts goes on with the next part when one has ended.
fn next(numbers: &[Option<i64>], limit: usize, place: Place, parts: u8) -> Option<Cursor> {
    let last = numbers.iter().rev().find_map(|number| *number).filter(|_| numbers.len() == limit);
    match last {
        Some(row) => Some(Place { row, ..place }.cursor()),
        None if place.part < parts => Some(Place { part: place.part + 1, row: FIRST_ROW }.cursor()),
        None => None,
    }
}
