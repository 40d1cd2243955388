//! Harness of the rows of a volume, whatever class their values are of (`crate::fuzzing`), and the reading of one row
//! by itself for the tests of damage.

use super::fault::Failed;
use super::read::Reading;
use crate::base::{ChunkIndex, Fault, Ino, Name, SessionId, SliceId};
use crate::fuzzing::{choice, sentence};
use crate::meta::engine::sql::dialect::SQLITE;
use crate::meta::engine::sql::schema::{TABLES, prefix};
use crate::meta::engine::sql::texts::Texts;
use crate::meta::engine::{EngineError, Page, Scan};
use crate::meta::record::{Counter, Key, QuotaOwner, Record};
use rusqlite::Connection;
use rusqlite::types::Value;
use std::path::Path;

/// A database in memory with the tables of a volume.
pub struct Rows {
    conn: Connection,
    texts: Texts,
    prefix: String,
}

/// What one row says.
pub type Said = Result<Vec<(Key, Record)>, Fault>;

impl Rows {
    pub fn new() -> Rows {
        let prefix = prefix(None);
        let conn = Connection::open_in_memory().expect("memory");
        conn.set_prepared_statement_cache_capacity(200);
        for table in TABLES {
            conn.execute(&table.create(&SQLITE, &prefix), ()).expect("a table");
        }
        Rows { conn, texts: Texts::new(&SQLITE, &prefix), prefix }
    }

    /// The records of these keys and of the scans, when this row of the table is all that there is. `None`: the table
    /// cannot hold such a row.
    pub fn read(&self, table: &str, row: &[Value], keys: &[Key]) -> Option<Said> {
        let name = format!("{}{table}", self.prefix);
        let marks = vec!["?"; row.len()].join(", ");
        let put = format!("INSERT INTO `{name}` VALUES ({marks})");
        let put = self.conn.prepare_cached(&put).and_then(|mut put| put.execute(rusqlite::params_from_iter(row)));
        let said = put.is_ok().then(|| self.said(table, keys));
        let all = format!("DELETE FROM `{name}`");
        self.conn.prepare_cached(&all).and_then(|mut all| all.execute(())).expect("what was put can be deleted");
        said
    }

    fn said(&self, table: &str, keys: &[Key]) -> Said {
        let reading = Reading { conn: &self.conn, texts: &self.texts, prefix: &self.prefix };
        let fault = |failed: Failed| match failed.into_engine_error("read", Path::new("memory")) {
            EngineError::Fault(fault) => fault,
            other => panic!("a read that ends in {other:?}"),
        };
        let mut records = Vec::new();
        for key in keys {
            records.extend(reading.get(key).map_err(fault)?.map(|record| (key.clone(), record)));
        }
        for scan in scans(table) {
            let mut after = None;
            // One row, in each of at most three parts.
            for page in 0.. {
                assert!(page < 8, "{scan:?} of one row does not end");
                let Page { rows, unreadable, next } = reading.scan(&scan, after.as_ref(), 1).map_err(fault)?;
                if let Some(fault) = unreadable.into_iter().next() {
                    return Err(fault);
                }
                records.extend(rows);
                after = next;
                if after.is_none() {
                    break;
                }
            }
        }
        if table == "edge" {
            reading.scan_plus(Ino(5), None, 10).map_err(fault)?;
        }
        Ok(records)
    }
}

fn scans(table: &str) -> Vec<Scan> {
    match table {
        "edge" => vec![Scan::AllDentries, Scan::Dentries(Ino(5)), Scan::AllLinkParents],
        "node" => vec![Scan::Attrs],
        "xattr" => vec![Scan::AllXattrs],
        "chunk" => vec![Scan::Chunks, Scan::ChunksOf(Ino(5))],
        "chunk_ref" => vec![Scan::SliceRefs],
        "delslices" => vec![Scan::DelayedSlices],
        "session2" => vec![Scan::Sessions],
        "sustained" => vec![Scan::Sustained(SessionId(1))],
        "delfile" => vec![Scan::DeletedFiles],
        "flock" | "plock" => vec![Scan::LocksOf(SessionId(1)), Scan::AllLocks],
        "dir_quota" | "user_group_quota" => vec![Scan::Quotas],
        "dir_stats" => vec![Scan::DirStats],
        "acl" => vec![Scan::AclRules],
        _ => Vec::new(),
    }
}

/// The keys of the rows in the corpus.
fn keys(table: &str) -> Vec<Key> {
    let ino = Ino(5);
    let name = || Name::stored(*b"name");
    match table {
        "setting" => vec![Key::Setting],
        "counter" => vec![Key::Counter(Counter::UsedSpace), Key::Counter(Counter::NextInode)],
        "edge" => vec![Key::Dentry(ino, name()), Key::AnyDentry(ino), Key::LinkParents(ino)],
        "node" => vec![Key::Attr(ino)],
        "symlink" => vec![Key::Symlink(ino)],
        "xattr" => vec![Key::Xattr(ino, name()), Key::Xattrs(ino)],
        "chunk" => vec![Key::Chunk(ino, ChunkIndex(0))],
        "chunk_ref" => vec![Key::SliceRef(SliceId(5), 9)],
        "delslices" => vec![Key::DelayedSlices(SliceId(5), 9)],
        "session2" => vec![Key::Session(SessionId(5))],
        "sustained" => vec![Key::Sustained(SessionId(1), ino)],
        "delfile" => vec![Key::DeletedFile(ino, 9)],
        "flock" => vec![Key::Flocks(ino)],
        "plock" => vec![Key::Plocks(ino)],
        "dir_quota" => vec![Key::Quota(QuotaOwner::Directory(ino))],
        "user_group_quota" => vec![Key::Quota(QuotaOwner::User(5))],
        "dir_stats" => vec![Key::DirStat(ino)],
        "acl" => vec![Key::AclRule(5)],
        _ => Vec::new(),
    }
}

/// Inputs are a choice of the table, then its values: a class in one byte, and eight bytes or a length in two and so
/// many.
pub fn rows() -> Vec<Vec<u8>> {
    let number = |n: i64| [&[1u8][..], &n.to_be_bytes()].concat();
    let bytes = |class: u8, bytes: &[u8]| [&[class][..], &(bytes.len() as u16).to_be_bytes(), bytes].concat();
    let slice = [&[0u8; 4][..], &[0, 0, 0, 0, 0, 0, 0, 1], &[0, 0, 0, 100], &[0; 4], &[0, 0, 0, 100]].concat();
    let lock = [&[0, 0, 0, 1, 0, 0, 0, 1][..], &[0; 8], &[0, 0, 0, 0, 0, 0, 0, 9]].concat();
    let of = |name: &str, values: &[Vec<u8>]| {
        let at = TABLES.iter().position(|table| table.name == name).expect("a table");
        [&[at as u8][..], &values.concat()].concat()
    };
    let numbers = |numbers: &[i64]| numbers.iter().map(|n| number(*n)).collect::<Vec<_>>();
    vec![
        of("setting", &[bytes(2, b"format"), bytes(2, b"{}")]),
        of("counter", &[bytes(2, b"usedSpace"), number(4096)]),
        of("edge", &[number(1), number(5), bytes(3, b"name"), number(7), number(2)]),
        of("node", &numbers(&[5, 1, 0, 0o644, 0, 0, 1, 1, 1, 2, 2, 2, 1, 4096, 0, 1, 0, 0, 0])),
        of("symlink", &[number(5), bytes(3, b"/target")]),
        of("xattr", &[number(1), number(5), bytes(2, b"name"), bytes(3, b"value")]),
        of("chunk", &[number(1), number(5), number(0), bytes(3, &slice)]),
        of("chunk_ref", &numbers(&[5, 9, 1])),
        of("delslices", &[number(5), number(9), bytes(3, &[0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9])]),
        of("session2", &[number(5), number(1_700_000_000), bytes(3, b"{}")]),
        of("sustained", &numbers(&[1, 1, 5])),
        of("delfile", &numbers(&[5, 9, 1_700_000_000])),
        of("flock", &numbers(&[1, 5, 1, -77, i64::from(b'W')])),
        of("plock", &[number(1), number(5), number(1), number(-77), bytes(3, &lock)]),
        of("dir_quota", &numbers(&[5, 1 << 30, -1, 4096, 1])),
        of("user_group_quota", &numbers(&[1, 5, 1 << 30, -1, 4096, 1])),
        of("dir_stats", &numbers(&[5, 1, 4096, 1])),
        of("acl", &[&numbers(&[5, 7, 5, 4, 0])[..], &[bytes(3, &[0, 0, 3, 0xE8, 0, 6]), vec![0]]].concat()),
    ]
}

pub fn row(data: &[u8]) {
    thread_local! {
        static ROWS: Rows = Rows::new();
    }
    let Some((chosen, mut rest)) = choice(data, TABLES.len()) else { return };
    let table = &TABLES[chosen];
    let mut values = Vec::new();
    while values.len() < table.columns.len() {
        let Some((class, tail)) = rest.split_first() else { break };
        rest = tail;
        values.push(match class % 5 {
            0 => Value::Null,
            class @ (1 | 4) => {
                let Some((number, tail)) = rest.split_first_chunk::<8>() else { break };
                rest = tail;
                let number = i64::from_be_bytes(*number);
                if class == 1 { Value::Integer(number) } else { Value::Real(f64::from_bits(number as u64)) }
            }
            class => {
                let Some((length, tail)) = rest.split_first_chunk::<2>() else { break };
                let (bytes, tail) = tail.split_at(usize::from(u16::from_be_bytes(*length)).min(tail.len()));
                rest = tail;
                match (class, std::str::from_utf8(bytes)) {
                    (2, Ok(text)) => Value::Text(text.to_owned()),
                    _ => Value::Blob(bytes.to_vec()),
                }
            }
        });
    }
    values.resize(table.columns.len(), Value::Null);
    match ROWS.with(|database| database.read(table.name, &values, &keys(table.name))) {
        None => {}
        Some(Ok(records)) => assert!(records.len() < 10),
        Some(Err(fault)) => {
            let said = sentence(&fault);
            assert!(said.contains("key="), "{said}");
        }
    }
}

/// The rows of a volume in a file, by table.
pub fn rows_of(path: &Path) -> Vec<(&'static str, Vec<Value>)> {
    let conn = Connection::open(path).expect("a database");
    let mut all = Vec::new();
    for table in TABLES {
        let mut rows = conn.prepare(&format!("SELECT * FROM `{}{}`", prefix(None), table.name)).expect("a table");
        let width = rows.column_count();
        let row = |row: &rusqlite::Row<'_>| (0..width).map(|column| row.get(column)).collect();
        let rows: rusqlite::Result<Vec<Vec<Value>>> = rows.query_map((), row).and_then(Iterator::collect);
        all.extend(rows.expect("rows").into_iter().map(|row| (table.name, row)));
    }
    all
}
