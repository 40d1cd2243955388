//! Reading: one record under its key, and pages of scans. Shared by readers, by guards, and by changes that need to
//! know what is there.

use super::fault::{Failed, undecoded};
use crate::base::slice::SLICE_RECORD_BYTES;
use crate::base::{Attr, ChunkIndex, Fault, Ino, Name, SessionId, Slice, SliceId};
use crate::meta::engine::sql::records::{GROUP_QUOTA, USER_QUOTA, counter_name, counter_shift, quota_key};
use crate::meta::engine::sql::rows::{
    Columns, acl, attr, dentry, dir_stat, flock_holder, flock_holders, plock_holder, plock_holders, quota, session,
};
use crate::meta::engine::sql::texts::Texts;
use crate::meta::engine::{Cursor, Page, PlusPage, Scan};
use crate::meta::record::{Counter, Key, QuotaOwner, Record, decode_delayed};
use bytes::Bytes;
use rusqlite::types::{ToSqlOutput, ValueRef};
use rusqlite::{Connection, Params, Row, ToSql};
use std::fmt::Debug;

/// Reads one volume's rows through any connection to its database.
pub struct Reading<'a> {
    pub conn: &'a Connection,
    pub texts: &'a Texts,
    /// All tables of a volume begin with this.
    pub prefix: &'a str,
}

/// Bytes that a column of text holds; they need not be UTF-8.
pub struct TextBytes<'a>(pub &'a [u8]);

impl ToSql for TextBytes<'_> {
    fn to_sql(&self) -> rusqlite::Result<ToSqlOutput<'_>> {
        Ok(ToSqlOutput::Borrowed(ValueRef::Text(self.0)))
    }
}

impl Columns for Row<'_> {
    fn is_null(&self, column: usize) -> bool {
        matches!(self.get_ref(column), Ok(ValueRef::Null))
    }

    fn int(&self, column: usize) -> Option<i64> {
        match self.get_ref(column).ok()? {
            ValueRef::Null => Some(0),
            ValueRef::Integer(number) => Some(number),
            ValueRef::Real(_) | ValueRef::Text(_) | ValueRef::Blob(_) => None,
        }
    }

    /// Of whichever class: `||` makes text of a chunk's list (`spec/metadata.md` 3.4).
    fn bytes(&self, column: usize) -> Option<&[u8]> {
        match self.get_ref(column).ok()? {
            ValueRef::Null => Some(&[]),
            ValueRef::Text(bytes) | ValueRef::Blob(bytes) => Some(bytes),
            ValueRef::Integer(_) | ValueRef::Real(_) => None,
        }
    }
}

/// Names the row as well: that of a scan is one of very many, and somebody will have to mend it.
fn undecoded_row(what: &dyn Debug, row: &Row<'_>) -> Fault {
    let mut fault = undecoded(what);
    for column in ["id", "sid", "chunkid", "parent", "inode"] {
        if let Ok(ValueRef::Integer(number)) = row.get_ref(column) {
            fault = fault.with(column, number);
        }
    }
    fault
}

/// Rows of a scan, each with the number that the next page goes on after, if it is one: what it holds, if it is still
/// there, or why that is no record.
type Rows = Vec<(Option<i64>, Result<Option<(Key, Record)>, Fault>)>;

/// Where a scan goes on: after this row of this part. A scan over two tables has two parts.
struct Place {
    part: u8,
    row: i64,
}

impl Place {
    fn of(cursor: Option<&Cursor>) -> Place {
        let read = |cursor: &Cursor| {
            let (part, row) = cursor.0.split_first()?;
            Some(Place { part: *part, row: i64::from_be_bytes(row.try_into().ok()?) })
        };
        cursor.and_then(read).unwrap_or(Place { part: 0, row: FIRST_ROW })
    }

    fn cursor(&self) -> Cursor {
        let mut bytes = vec![self.part];
        bytes.extend(self.row.to_be_bytes());
        Cursor(bytes.into())
    }
}

/// Before every number that is stored: ids, inodes and indexes are zero or more.
const FIRST_ROW: i64 = -1;

impl Reading<'_> {
    /// The first row of a query; `decode` answers `None` for what is not a record.
    pub fn one<T>(
        &self,
        text: &str,
        params: impl Params,
        what: &dyn Debug,
        decode: impl FnOnce(&Row<'_>) -> Option<T>,
    ) -> Result<Option<T>, Failed> {
        let mut statement = self.conn.prepare_cached(text)?;
        let mut rows = statement.query(params)?;
        match rows.next()? {
            Some(row) => decode(row).map(Some).ok_or_else(|| Failed::corrupt(what)),
            None => Ok(None),
        }
    }

    fn all<T>(
        &self,
        text: &str,
        params: impl Params,
        what: &dyn Debug,
        mut decode: impl FnMut(&Row<'_>) -> Option<T>,
    ) -> Result<Vec<T>, Failed> {
        let mut statement = self.conn.prepare_cached(text)?;
        let mut rows = statement.query(params)?;
        let mut out = Vec::new();
        while let Some(row) = rows.next()? {
            out.push(decode(row).ok_or_else(|| undecoded_row(what, row))?);
        }
        Ok(out)
    }

    /// Rows of a scan with the numbers that the next page goes on after, which are in column `numbered`.
    fn rows(
        &self,
        text: &str,
        params: impl Params,
        what: &dyn Debug,
        numbered: usize,
        mut decode: impl FnMut(&Row<'_>) -> Option<(Key, Record)>,
    ) -> Result<Rows, Failed> {
        let numbered = |row: &Row<'_>| {
            let number = row.int(numbered);
            let record = number.and_then(|_| decode(row)).map(Some).ok_or_else(|| undecoded_row(what, row));
            Ok::<_, Failed>((number, record))
        };
        let mut statement = self.conn.prepare_cached(text)?;
        statement.query(params)?.and_then(numbered).collect()
    }

    /// Several records of one moment.
    pub fn snapshot(&self, keys: &[Key]) -> Result<Vec<Option<Record>>, Failed> {
        // One statement is a snapshot by itself.
        let several = keys.len() > 1;
        if several {
            self.conn.prepare_cached("BEGIN")?.execute(())?;
        }
        let mut records = Vec::with_capacity(keys.len());
        for key in keys {
            match self.get(key) {
                Ok(record) => records.push(record),
                Err(failed) if failed.table_missing() => records.push(None),
                Err(failed) => {
                    self.end(several);
                    return Err(failed);
                }
            }
        }
        self.end(several);
        Ok(records)
    }

    fn end(&self, begun: bool) {
        if begun && let Err(error) = self.conn.prepare_cached("COMMIT").and_then(|mut end| end.execute(())) {
            tracing::debug!("end of a read: {error}");
        }
    }

    pub fn get(&self, key: &Key) -> Result<Option<Record>, Failed> {
        let t = self.texts;
        let id = |ino: &Ino| ino.0 as i64;
        match key {
            Key::Setting => self.one(&t.setting, (), key, |r| r.owned(0).map(Record::Bytes)),
            Key::Counter(counter) => Ok(self.counter(*counter)?.map(Record::Number)),
            Key::Attr(i) => self.one(&t.node, [id(i)], key, |r| attr(r, 0).map(Record::Attr)),
            Key::Dentry(dir, name) => {
                self.one(&t.edge, (id(dir), name.as_bytes()), key, |r| dentry(r, 0, 1).map(Record::Dentry))
            }
            Key::AnyDentry(dir) => self.one(&t.any_edge, [id(dir)], key, |r| dentry(r, 0, 1).map(Record::Dentry)),
            Key::Symlink(i) => self.one(&t.symlink, [id(i)], key, |r| r.owned(0).map(Record::Bytes)),
            Key::LinkParents(i) => {
                let parents = self.all(&t.link_parents, [id(i)], key, |r| Some((r.ino(0)?, r.int(1)?)))?;
                Ok(some_list(parents, Record::LinkParents))
            }
            Key::Chunk(i, index) => {
                self.one(&t.chunk, (id(i), index.0), key, |r| Slice::decode_list(r.bytes(0)?).map(Record::Slices))
            }
            Key::SliceRef(slice, _) => self.one(&t.slice_ref, [slice.0 as i64], key, |r| r.int(0).map(Record::Number)),
            Key::Xattr(i, name) => {
                self.one(&t.xattr, (id(i), TextBytes(name.as_bytes())), key, |r| r.owned(0).map(Record::Bytes))
            }
            Key::Xattrs(i) => {
                let list = self.all(&t.xattrs, [id(i)], key, |r| Some((Name::stored(r.bytes(0)?), r.owned(1)?)))?;
                Ok(some_list(list, Record::Xattrs))
            }
            Key::AclRule(rule) => self.one(&t.acl, [i64::from(*rule)], key, |r| acl(r).map(Record::AclRule)),
            Key::DirStat(i) => self.one(&t.dir_stat, [id(i)], key, |r| dir_stat(r, 0).map(Record::DirStat)),
            Key::Quota(owner) => match (owner, quota_key(*owner)) {
                (_, Some(place)) => self.one(&t.owner_quota, place, key, |r| quota(r).map(Record::Quota)),
                (QuotaOwner::Directory(i), None) => {
                    self.one(&t.dir_quota, [id(i)], key, |r| quota(r).map(Record::Quota))
                }
                (QuotaOwner::User(_) | QuotaOwner::Group(_), None) => unreachable!("users and groups have a place"),
            },
            Key::Session(sid) => self.one(&t.session, [sid.0 as i64], key, |r| session(r, 0).map(Record::Session)),
            Key::Sustained(sid, i) => self.one(&t.sustained, (sid.0 as i64, id(i)), key, |_| Some(Record::Number(1))),
            Key::DeletedFile(i, length) => {
                self.one(&t.deleted_file, (id(i), *length as i64), key, |r| r.int(0).map(Record::Number))
            }
            Key::DelayedSlices(slice, time) => {
                self.one(&t.delayed, (slice.0 as i64, *time), key, |r| decode_delayed(r.bytes(0)?).map(Record::Slices))
            }
            Key::Flocks(i) => {
                let holders = self.all(&t.flocks, [id(i)], key, |r| flock_holder(r))?;
                Ok(some_list(flock_holders(holders), Record::Flocks))
            }
            Key::Plocks(i) => {
                let holders = self.all(&t.plocks, [id(i)], key, |r| plock_holder(r))?;
                Ok(some_list(plock_holders(holders), Record::Plocks))
            }
        }
    }

    /// In the sense of the seam: ids count the last one handed out.
    fn counter(&self, counter: Counter) -> Result<Option<i64>, Failed> {
        match counter_name(counter) {
            Some(name) => {
                let stored = self.one(&self.texts.counter, [name], &Key::Counter(counter), |r| r.int(0))?;
                Ok(stored.map(|stored| stored.saturating_sub(counter_shift(counter))))
            }
            None => self.last_acl_id(),
        }
    }

    /// The number that the rules' table has reached; rules are never deleted, but who loads a dump may.
    pub fn last_acl_id(&self) -> Result<Option<i64>, Failed> {
        let table = format!("{}acl", self.prefix);
        let text = "SELECT seq FROM sqlite_sequence WHERE name = ?1";
        self.one(text, [table], &Key::Counter(Counter::AclMaxId), |r| r.int(0))
    }

    /// The stored bytes of a chunk's list.
    pub fn chunk_bytes(&self, ino: Ino, index: ChunkIndex) -> Result<Option<Vec<u8>>, Failed> {
        let key = Key::Chunk(ino, index);
        let list = self.one(&self.texts.chunk, (ino.0 as i64, index.0), &key, |r| r.bytes(0).map(<[u8]>::to_vec))?;
        match list {
            Some(list) if !list.len().is_multiple_of(SLICE_RECORD_BYTES) => Err(Failed::corrupt(&key)),
            list => Ok(list),
        }
    }

    /// The attributes of a node.
    pub fn attr(&self, ino: Ino) -> Result<Option<Attr>, Failed> {
        self.one(&self.texts.node, [ino.0 as i64], &Key::Attr(ino), |r| attr(r, 0))
    }

    pub fn scan(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> Result<Page, Failed> {
        let t = self.texts;
        let limit = limit.max(1);
        let most = limit as i64;
        let place = Place::of(after);
        let row = place.row;
        let page = |rows: Rows| page(rows, limit, place.part);
        Ok(match scan {
            Scan::Dentries(dir) => {
                let start = after.map_or(&b""[..], |cursor| &cursor.0);
                let rows = self.all(&t.edges_of, (dir.0 as i64, start, most), scan, |r| {
                    let name = Name::stored(r.bytes(0)?);
                    let record = dentry(r, 1, 2).map(Record::Dentry).ok_or_else(|| undecoded(&(scan, &name)));
                    Some((name, record))
                })?;
                let next = (rows.len() == limit).then(|| rows.last().map(|(name, _)| name_cursor(name))).flatten();
                let rows = rows.into_iter().map(|(name, record)| Ok((Key::Dentry(*dir, name), record?)));
                Page::of(rows, next)
            }
            Scan::AllDentries => page(self.rows(&t.edges, (row, most), scan, 0, |r| {
                let key = Key::Dentry(r.ino(1)?, Name::stored(r.bytes(2)?));
                Some((key, Record::Dentry(dentry(r, 3, 4)?)))
            })?),
            Scan::Attrs => {
                page(self.rows(&t.nodes, (row, most), scan, 18, |r| {
                    Some((Key::Attr(r.ino(18)?), Record::Attr(attr(r, 0)?)))
                })?)
            }
            Scan::Chunks => page(self.rows(&t.chunks, (row, most), scan, 0, |r| {
                let key = Key::Chunk(r.ino(1)?, ChunkIndex(r.int(2)?.try_into().ok()?));
                Some((key, Record::Slices(Slice::decode_list(r.bytes(3)?)?)))
            })?),
            Scan::ChunksOf(i) => page(self.rows(&t.chunks_of, (i.0 as i64, row, most), scan, 0, |r| {
                let key = Key::Chunk(*i, ChunkIndex(r.int(0)?.try_into().ok()?));
                Some((key, Record::Slices(Slice::decode_list(r.bytes(1)?)?)))
            })?),
            // Loaders of dumps leave a row for holes, slice 0, which is nothing.
            Scan::SliceRefs => page(self.rows(&t.slice_refs, (row.max(0), most), scan, 0, |r| {
                let key = Key::SliceRef(SliceId(r.int(0)? as u64), r.int(1)?.try_into().ok()?);
                Some((key, Record::Number(r.int(2)?)))
            })?),
            Scan::Sessions => page(self.rows(&t.sessions, (row, most), scan, 0, |r| {
                Some((Key::Session(SessionId(r.int(0)? as u64)), Record::Session(session(r, 1)?)))
            })?),
            Scan::Sustained(sid) => page(self.rows(&t.sustained_of, (sid.0 as i64, row, most), scan, 0, |r| {
                Some((Key::Sustained(*sid, r.ino(0)?), Record::Number(1)))
            })?),
            Scan::DeletedFiles => page(self.rows(&t.deleted_files, (row, most), scan, 0, |r| {
                Some((Key::DeletedFile(r.ino(0)?, r.int(1)? as u64), Record::Number(r.int(2)?)))
            })?),
            Scan::DelayedSlices => page(self.rows(&t.all_delayed, (row, most), scan, 0, |r| {
                let key = Key::DelayedSlices(SliceId(r.int(0)? as u64), r.int(1)?);
                Some((key, Record::Slices(decode_delayed(r.bytes(2)?)?)))
            })?),
            Scan::DirStats => page(self.rows(&t.dir_stats, (row, most), scan, 0, |r| {
                Some((Key::DirStat(r.ino(0)?), Record::DirStat(dir_stat(r, 1)?)))
            })?),
            Scan::AclRules => page(self.rows(&t.acls, (row, most), scan, 6, |r| {
                Some((Key::AclRule(r.int(6)?.try_into().ok()?), Record::AclRule(acl(r)?)))
            })?),
            Scan::Quotas => {
                let rows = self.all_quotas(place.part, row, most, scan)?;
                in_parts(page(rows), place.part, GROUP_QUOTA as u8)
            }
            Scan::LocksOf(sid) => {
                let (owners, key): (_, fn(Ino) -> Key) =
                    if place.part == 0 { (&t.flocked_by, Key::Flocks) } else { (&t.plocked_by, Key::Plocks) };
                let inodes = self.all(owners, (sid.0 as i64, row, most), scan, |r| Some(r.int(0)))?;
                in_parts(page(self.of_inodes(inodes, scan, key)?), place.part, 1)
            }
            Scan::AllLocks => {
                let (owners, key): (_, fn(Ino) -> Key) =
                    if place.part == 0 { (&t.flocked, Key::Flocks) } else { (&t.plocked, Key::Plocks) };
                let inodes = self.all(owners, (row, most), scan, |r| Some(r.int(0)))?;
                in_parts(page(self.of_inodes(inodes, scan, key)?), place.part, 1)
            }
            Scan::AllXattrs => {
                let inodes = self.all(&t.xattr_owners, (row, most), scan, |r| Some(r.int(0)))?;
                page(self.of_inodes(inodes, scan, Key::Xattrs)?)
            }
            Scan::AllLinkParents => Page::default(),
        })
    }

    /// Part 0 are directories; users and groups have their own numbers as parts.
    fn all_quotas(&self, part: u8, row: i64, most: i64, scan: &Scan) -> Result<Rows, Failed> {
        let entry = |r: &Row<'_>, owner: &dyn Fn(i64) -> Option<QuotaOwner>| {
            Some((Key::Quota(owner(r.int(4)?)?), Record::Quota(quota(r)?)))
        };
        let user = |id: i64| Some(QuotaOwner::User(id.try_into().ok()?));
        let group = |id: i64| Some(QuotaOwner::Group(id.try_into().ok()?));
        match i64::from(part) {
            0 => self.rows(&self.texts.dir_quotas, (row, most), scan, 4, |r| {
                entry(r, &|id| Some(QuotaOwner::Directory(Ino(id as u64))))
            }),
            USER_QUOTA => self.rows(&self.texts.owner_quotas, (USER_QUOTA, row, most), scan, 4, |r| entry(r, &user)),
            _ => self.rows(&self.texts.owner_quotas, (GROUP_QUOTA, row, most), scan, 4, |r| entry(r, &group)),
        }
    }

    /// Collecting keys, one per inode; one whose rows have just gone has no record.
    fn of_inodes(&self, inodes: Vec<Option<i64>>, scan: &Scan, key: fn(Ino) -> Key) -> Result<Rows, Failed> {
        let mut rows = Vec::with_capacity(inodes.len());
        for number in inodes {
            let Some(i) = number else {
                rows.push((None, Err(undecoded(scan))));
                continue;
            };
            let key = key(Ino(i as u64));
            let record = match self.get(&key) {
                Ok(record) => Ok(record),
                Err(failed) => Err(failed.into_corrupt()?),
            };
            rows.push((number, record.map(|record| record.map(|record| (key, record)))));
        }
        Ok(rows)
    }

    pub fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> Result<PlusPage, Failed> {
        let limit = limit.max(1);
        let start = after.map_or(&b""[..], |cursor| &cursor.0);
        let what = Scan::Dentries(dir);
        let entries = self.all(&self.texts.edges_of_plus, (dir.0 as i64, start, limit as i64), &what, |r| {
            // A node has a type; without one the entry's node is missing.
            let node = match r.get_ref(0).ok()? {
                ValueRef::Null => None,
                _ => Some(attr(r, 0)?),
            };
            Some((Name::stored(r.bytes(18)?), dentry(r, 19, 20)?, node))
        })?;
        let next = (entries.len() == limit).then(|| entries.last().map(|(name, ..)| name_cursor(name))).flatten();
        Ok(PlusPage { entries, next })
    }
}

fn name_cursor(name: &Name) -> Cursor {
    Cursor(Bytes::copy_from_slice(name.as_bytes()))
}

fn some_list<T>(items: Vec<T>, record: fn(Vec<T>) -> Record) -> Option<Record> {
    if items.is_empty() { None } else { Some(record(items)) }
}

/// A page of one part of a scan.
fn page(rows: Rows, limit: usize, part: u8) -> Page {
    // What is no number sorts after all numbers, and is met again until they are through.
    let last = rows.iter().rev().find_map(|(number, _)| *number).filter(|_| rows.len() == limit);
    let next = last.map(|row| Place { part, row }.cursor());
    Page::of(rows.into_iter().filter_map(|(_, row)| row.transpose()), next)
}

/// A scan of several parts goes on with the next part when one has ended.
fn in_parts(mut page: Page, part: u8, last: u8) -> Page {
    if page.next.is_none() && part < last {
        page.next = Some(Place { part: part + 1, row: FIRST_ROW }.cursor());
    }
    page
}
