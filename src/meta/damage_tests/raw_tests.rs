//! Damage to the bytes of a volume, on Redis and SQLite: any byte of any record is another one, or the record is cut.
//! The operations that read are asked again, and answer a value or one sentence that names the record, soon, having
//! written nothing; then those that write, which may do what they can with what they find, and end soon as well.
//!
//! A run tries as much as its time allows, from a new seed each time (`SLUICE_FUZZ_SEED`, `SLUICE_FUZZ_SECONDS`).

use super::{dir, name, put};
use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Errno, Ino, Kind, Outcome, SessionId, Slice, SliceId, Stop, Timestamp};
use crate::config::volume::{Access, VolumeFormat};
use crate::fuzzing::sentence;
use crate::meta::engine::Scan;
use crate::meta::ops::acl::{self, AclKind};
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::create::NewNode;
use crate::meta::ops::plock::LockKind;
use crate::meta::ops::rename::RenameMode;
use crate::meta::ops::xattr::XattrMode;
use crate::meta::record::{DirStat, Key, PlockRange, Quota, QuotaOwner, Record, Session};
use crate::meta::session::SessionInfo;
use crate::meta::testing::{Store, StoredBytes, file};
use crate::meta::{Caller, Meta};
use crate::util::clock::SystemClock;
use crate::util::task::stop_signal;
use bytes::Bytes;
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::future::Future;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For each engine, unless asked otherwise.
const SECONDS: u64 = 8;
/// Operations that meet a fault of the kind that passes try for ten seconds; damage does not pass.
const SOON: Duration = Duration::from_secs(6);

/// One place of the stored volume that can be damaged.
#[derive(Clone, Debug)]
enum Cell {
    Text(Vec<u8>),
    /// Key and field of a hash: its value, or the field's name.
    Value(Vec<u8>, Vec<u8>),
    Field(Vec<u8>, Vec<u8>),
    Item(Vec<u8>, isize),
    /// Key and member of a sorted set, whose name is damaged; of a set.
    Scored(Vec<u8>, Vec<u8>),
    Member(Vec<u8>, Vec<u8>),
    /// Table, row and column.
    Column(String, i64, String),
}

#[derive(Clone, Debug, PartialEq)]
enum Content {
    Bytes(Vec<u8>),
    Number(i64),
}

/// The stored bytes of a volume, and the way to change and to restore them.
enum Raw {
    Redis(Box<redis::Connection>),
    Sqlite(rusqlite::Connection),
}

/// Everything that is stored.
enum Image {
    Redis(Vec<(Vec<u8>, Vec<u8>)>),
    Sqlite(Vec<(String, Vec<Vec<rusqlite::types::Value>>)>),
}

impl Raw {
    fn open(stored: StoredBytes) -> Raw {
        match stored {
            StoredBytes::Redis(url) => {
                // `unix://PATH?db=N` is what the engine takes; the crate's own form differs.
                let url = url.replacen("unix://", "redis+unix://", 1);
                let client = redis::Client::open(url).expect("the server of the tests");
                Raw::Redis(Box::new(client.get_connection().expect("a connection")))
            }
            StoredBytes::Sqlite(path) => Raw::Sqlite(rusqlite::Connection::open(path).expect("a database")),
        }
    }

    /// Changes whenever anybody has written anything. (Other databases of the Redis server are other tests'.)
    fn generation(&mut self) -> u64 {
        match self {
            Raw::Redis(connection) => {
                let mut keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection).expect("KEYS");
                keys.sort();
                let mut dumps = redis::pipe();
                for key in &keys {
                    dumps.cmd("DUMP").arg(key);
                }
                let dumps: Vec<Vec<u8>> = dumps.query(connection).expect("DUMP");
                let mut hasher = DefaultHasher::new();
                (keys, dumps).hash(&mut hasher);
                hasher.finish()
            }
            Raw::Sqlite(connection) => {
                let version = connection.query_row("PRAGMA data_version", (), |row| row.get::<_, i64>(0));
                version.expect("a version") as u64
            }
        }
    }

    fn image(&mut self) -> Image {
        match self {
            Raw::Redis(connection) => {
                let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(connection).expect("KEYS");
                let mut dumped = |key: Vec<u8>| {
                    let dump: Vec<u8> = redis::cmd("DUMP").arg(&key).query(connection).expect("DUMP");
                    (key, dump)
                };
                Image::Redis(keys.into_iter().map(&mut dumped).collect())
            }
            Raw::Sqlite(connection) => {
                let rows = |table: String| {
                    let mut all = connection.prepare(&format!("SELECT rowid, * FROM {table}")).expect("a table");
                    let width = all.column_count();
                    let row = |row: &rusqlite::Row<'_>| -> rusqlite::Result<Vec<rusqlite::types::Value>> {
                        (0..width).map(|column| row.get(column)).collect()
                    };
                    let rows = all.query_map((), row).and_then(Iterator::collect).expect("rows");
                    (table, rows)
                };
                Image::Sqlite(tables(connection).into_iter().map(rows).collect())
            }
        }
    }

    fn restore(&mut self, image: &Image) {
        match (self, image) {
            (Raw::Redis(connection), Image::Redis(keys)) => {
                let mut all = redis::pipe();
                all.cmd("FLUSHDB").ignore();
                for (key, dump) in keys {
                    all.cmd("RESTORE").arg(key).arg(0).arg(dump).ignore();
                }
                all.exec(connection).expect("RESTORE");
            }
            (Raw::Sqlite(connection), Image::Sqlite(tables)) => {
                let all = connection.transaction().expect("a transaction");
                for (table, rows) in tables {
                    all.execute(&format!("DELETE FROM {table}"), ()).expect("DELETE");
                    let columns = columns(&all, table).join(", ");
                    for row in rows {
                        let marks = vec!["?"; row.len()].join(", ");
                        let put = format!("INSERT INTO {table} (rowid, {columns}) VALUES ({marks})");
                        all.prepare_cached(&put)
                            .and_then(|mut put| put.execute(rusqlite::params_from_iter(row)))
                            .expect("INSERT");
                    }
                }
                all.commit().expect("COMMIT");
            }
            _ => unreachable!("an image is put back where it was taken"),
        }
    }

    fn cells(&mut self) -> Vec<(Cell, Content)> {
        let mut cells = Vec::new();
        match self {
            Raw::Redis(c) => {
                let keys: Vec<Vec<u8>> = redis::cmd("KEYS").arg("*").query(c).expect("KEYS");
                for key in keys {
                    let kind: String = redis::cmd("TYPE").arg(&key).query(c).expect("TYPE");
                    let bytes = Content::Bytes;
                    match kind.as_str() {
                        "string" => {
                            let value: Vec<u8> = redis::cmd("GET").arg(&key).query(c).expect("GET");
                            cells.push((Cell::Text(key), bytes(value)));
                        }
                        "hash" => {
                            let all: Vec<(Vec<u8>, Vec<u8>)> =
                                redis::cmd("HGETALL").arg(&key).query(c).expect("HGETALL");
                            for (field, value) in all {
                                cells.push((Cell::Value(key.clone(), field.clone()), bytes(value)));
                                cells.push((Cell::Field(key.clone(), field.clone()), bytes(field)));
                            }
                        }
                        "list" => {
                            let all: Vec<Vec<u8>> =
                                redis::cmd("LRANGE").arg(&key).arg(0).arg(-1).query(c).expect("LRANGE");
                            let item = |(at, value)| (Cell::Item(key.clone(), at as isize), bytes(value));
                            cells.extend(all.into_iter().enumerate().map(item));
                        }
                        "zset" => {
                            let all: Vec<Vec<u8>> =
                                redis::cmd("ZRANGE").arg(&key).arg(0).arg(-1).query(c).expect("ZRANGE");
                            cells.extend(all.into_iter().map(|m| (Cell::Scored(key.clone(), m.clone()), bytes(m))));
                        }
                        "set" => {
                            let all: Vec<Vec<u8>> = redis::cmd("SMEMBERS").arg(&key).query(c).expect("SMEMBERS");
                            cells.extend(all.into_iter().map(|m| (Cell::Member(key.clone(), m.clone()), bytes(m))));
                        }
                        other => panic!("a key of type {other}"),
                    }
                }
            }
            Raw::Sqlite(c) => {
                for table in tables(c) {
                    for column in columns(c, &table) {
                        let mut all = c.prepare(&format!("SELECT rowid, {column} FROM {table}")).expect("a column");
                        let content = |row: &rusqlite::Row<'_>| -> rusqlite::Result<(Cell, Content)> {
                            let content = match row.get(1)? {
                                rusqlite::types::Value::Integer(number) => Content::Number(number),
                                rusqlite::types::Value::Text(text) => Content::Bytes(text.into_bytes()),
                                rusqlite::types::Value::Blob(bytes) => Content::Bytes(bytes),
                                _ => Content::Number(0),
                            };
                            Ok((Cell::Column(table.clone(), row.get(0)?, column.clone()), content))
                        };
                        let found = all.query_map((), content).and_then(Iterator::collect::<Result<Vec<_>, _>>);
                        cells.extend(found.expect("contents"));
                    }
                }
            }
        }
        cells
    }

    /// False when the place does not take it (a key that must be unique).
    fn damage(&mut self, cell: &Cell, content: &Content) -> bool {
        let c = match self {
            Raw::Redis(c) => c,
            Raw::Sqlite(c) => {
                let Cell::Column(table, row, column) = cell else { unreachable!("a cell of SQLite is a column") };
                let put = format!("UPDATE {table} SET {column} = ? WHERE rowid = ?");
                return match content {
                    Content::Number(number) => c.execute(&put, (number, row)).is_ok(),
                    Content::Bytes(bytes) => c.execute(&put, (bytes, row)).is_ok(),
                };
            }
        };
        let Content::Bytes(bytes) = content else { unreachable!("Redis keeps bytes") };
        let mut all = redis::pipe();
        match cell {
            Cell::Text(key) => all.cmd("SET").arg(key).arg(bytes),
            Cell::Value(key, field) => all.cmd("HSET").arg(key).arg(field).arg(bytes),
            Cell::Item(key, at) => all.cmd("LSET").arg(key).arg(*at).arg(bytes),
            Cell::Field(key, field) => {
                let value: Vec<u8> = redis::cmd("HGET").arg(key).arg(field).query(c).expect("HGET");
                all.cmd("HDEL").arg(key).arg(field).cmd("HSET").arg(key).arg(bytes).arg(value)
            }
            Cell::Scored(key, member) => {
                let score: String = redis::cmd("ZSCORE").arg(key).arg(member).query(c).expect("ZSCORE");
                all.cmd("ZREM").arg(key).arg(member).cmd("ZADD").arg(key).arg(score).arg(bytes)
            }
            Cell::Member(key, member) => all.cmd("SREM").arg(key).arg(member).cmd("SADD").arg(key).arg(bytes),
            Cell::Column(..) => unreachable!("Redis has no columns"),
        };
        all.exec(c).is_ok()
    }
}

fn tables(connection: &rusqlite::Connection) -> Vec<String> {
    let text = "SELECT name FROM sqlite_master WHERE type = 'table' AND name LIKE 'jfs_%' ORDER BY name";
    let mut all = connection.prepare(text).expect("the list of tables");
    all.query_map((), |row| row.get(0)).and_then(Iterator::collect).expect("names")
}

fn columns(connection: &rusqlite::Connection, table: &str) -> Vec<String> {
    let all = connection.prepare(&format!("SELECT * FROM {table}")).expect("a table");
    all.column_names().into_iter().map(|name| format!("`{name}`")).collect()
}

/// What can become of a content: every byte another, every length, and more.
fn damaged(content: &Content, rng: &mut StdRng) -> Content {
    match content {
        Content::Number(number) => Content::Number(match rng.random_range(0..8) {
            0 => return Content::Bytes(b"text".to_vec()),
            1 => [i64::MIN, i64::MAX, -1, 0, 1 << 58, (1 << 58) + 1, 1 << 32, 9][rng.random_range(0..8)],
            _ => number ^ (rng.random_range(1..256) << (8 * rng.random_range(0..8))),
        }),
        Content::Bytes(bytes) => {
            let mut bytes = bytes.clone();
            match rng.random_range(0..10) {
                0 => bytes.truncate(rng.random_range(0..=bytes.len())),
                1 => bytes.push(rng.random()),
                2 if !bytes.is_empty() => drop(bytes.remove(rng.random_range(0..bytes.len()))),
                3 if bytes.len() >= 8 => {
                    let at = rng.random_range(0..=bytes.len() - 8);
                    bytes[at..at + 8].copy_from_slice(&[u64::MAX, 1 << 63, 0][rng.random_range(0..3)].to_be_bytes());
                }
                4 if !bytes.is_empty() => {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] = b"+- 0.eE:_/\n"[rng.random_range(0..11)];
                }
                _ if bytes.is_empty() => bytes = vec![0; rng.random_range(1..100)],
                _ => {
                    let at = rng.random_range(0..bytes.len());
                    bytes[at] ^= rng.random_range(1..=255u8);
                }
            }
            Content::Bytes(bytes)
        }
    }
}

struct Volume {
    dir: Ino,
    file: Ino,
    link: Ino,
    symlink: Ino,
    sid: SessionId,
}

fn slice(pos: u32, id: u64, len: u32) -> Slice {
    Slice { pos, id: SliceId(id), size: len, off: 0, len }
}

const FORMAT: &[u8] =
    br#"{"Name":"vol","UUID":"58e59682-7faf-4d9f-a900-6d35c920d84b","Storage":"file","Tiers":{},"Bucket":"/b/",
    "BlockSize":4096,"Compression":"none","TrashDays":1,"MetaVersion":1,"MinClientVersion":"1.1.0-A","DirStats":true}"#;

/// A volume with a record of every kind.
async fn make(meta: &Meta) -> Volume {
    let root = Caller::root();
    meta.format(FORMAT).await.unwrap();
    let info = SessionInfo { host_name: "host".into(), mount_point: "/mnt".into(), ..SessionInfo::default() };
    let sid = meta.start_session(info, Duration::from_secs(12)).await.unwrap();
    let dir = dir(meta, Ino::ROOT, "dir").await;
    let node = |kind, target: Option<&'static [u8]>| {
        let target = target.map(Bytes::from_static);
        NewNode { kind, mode: 0o644, umask: 0, rdev: 0, target }
    };
    let make = async |text: &str, node: NewNode| meta.create(&root, dir, &name(text), &node).await.unwrap().ino;
    let file = make("file", node(Kind::File, None)).await;
    let link = make("link", node(Kind::File, None)).await;
    let symlink = make("symlink", node(Kind::Symlink, Some(b"target"))).await;
    let gone = make("gone", node(Kind::File, None)).await;
    let deleted = make("deleted", node(Kind::File, None)).await;
    meta.link(&root, link, Ino::ROOT, &name("second")).await.unwrap();
    for (pos, id) in [(0, 1), (50, 2)] {
        meta.append_slice(file, ChunkIndex(0), slice(pos, id, 100), Timestamp::new(5, 6)).await.unwrap();
    }
    meta.append_slice(deleted, ChunkIndex(0), slice(0, 3, 100), Timestamp::new(5, 6)).await.unwrap();
    meta.set_xattr(&root, file, b"user.a", b"value", XattrMode::Set).await.unwrap();
    let rule = AclRule { owner: 6, group: 4, mask: 6, other: 0, users: vec![(1000, 7)], groups: vec![(20, 4)] };
    meta.set_acl(&root, dir, AclKind::Default, &acl::format(&rule)).await.unwrap();
    meta.set_acl(&root, file, AclKind::Access, &acl::format(&rule)).await.unwrap();
    meta.set_plock(file, 0xD9D0_B0A1_C2D3_E4F5, LockKind::Write, 0, 9, 7, false).await.unwrap();
    meta.flock(file, 0x19D0_B0A1_C2D3_E4F5, LockKind::Read, false).await.unwrap();
    meta.open_file(gone);
    meta.unlink(&root, dir, &name("gone"), true).await.unwrap();
    meta.unlink(&root, dir, &name("deleted"), true).await.unwrap();
    let quota = Quota { max_space: 1 << 40, max_inodes: 1000, used_space: 4096, used_inodes: 1 };
    for owner in [QuotaOwner::Directory(dir), QuotaOwner::User(1000), QuotaOwner::Group(20)] {
        put(meta, Key::Quota(owner), Record::Quota(quota)).await;
    }
    put(meta, Key::DirStat(Ino::ROOT), Record::DirStat(DirStat { length: 1, space: 4096, inodes: 3 })).await;
    put(meta, Key::SliceRef(SliceId(2), 100), Record::Number(2)).await;
    put(meta, Key::DelayedSlices(SliceId(9), 1_700_000_000), Record::Slices(vec![slice(0, 8, 100)])).await;
    let stale = Session { expire: 5, info: Bytes::from_static(b"{}") };
    put(meta, Key::Session(SessionId(77)), Record::Session(stale)).await;
    Volume { dir, file, link, symlink, sid }
}

/// One operation: it ends soon, with a value or with a reason in one sentence.
async fn asked<T>(what: &str, told: &str, operation: impl Future<Output = Outcome<T>>) -> Option<T> {
    let started = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(60), operation).await;
    assert!(ended.is_ok() && started.elapsed() < SOON, "{what} took {:?} after {told}", started.elapsed());
    match ended.expect("it ended") {
        Ok(value) => Some(value),
        Err(Stop::Errno(_)) => None,
        Err(stop @ Stop::Fault(_)) => {
            assert!(matches!(stop.errno(), Errno::EIO | Errno::EOPNOTSUPP), "{what} after {told}: {stop}");
            sentence(&stop);
            None
        }
    }
}

async fn read_everything(meta: &Meta, volume: &Volume, told: &str) {
    let root = Caller::root();
    let someone = Caller { uid: 1000, gid: 20, groups: Arc::new([20]), pid: 1, check: true };
    let Volume { dir, file, link, symlink, sid } = *volume;
    for ino in [Ino::ROOT, dir, file, link, symlink] {
        let attr = asked("getattr", told, meta.getattr(ino)).await;
        let _ = attr.as_ref().map(Attr::space);
        asked("statfs", told, meta.statfs(ino)).await;
        asked("list_xattr", told, meta.list_xattr(ino)).await;
        asked("get_acl", told, meta.get_acl(ino, AclKind::Access)).await;
        asked("get_acl", told, meta.get_acl(ino, AclKind::Default)).await;
        asked("list", told, meta.list(ino, None, 100)).await;
        asked("list_names", told, meta.list_names(ino, None, 100)).await;
        asked("paths_of", told, meta.paths_of(ino)).await;
        asked("check_open", told, meta.check_open(&someone, ino, libc::O_RDWR)).await;
    }
    for (parent, text) in
        [(Ino::ROOT, "dir"), (Ino::ROOT, "second"), (dir, "file"), (dir, "link"), (dir, "symlink"), (dir, "none")]
    {
        asked("lookup", told, meta.lookup(&root, parent, &name(text))).await;
        asked("lookup", told, meta.lookup(&someone, parent, &name(text))).await;
    }
    asked("readlink", told, meta.readlink(symlink)).await;
    asked("get_xattr", told, meta.get_xattr(&root, file, b"user.a")).await;
    let chunks = asked("read_chunks", told, meta.read_chunks(file, ChunkIndex(0)..ChunkIndex(3))).await;
    for (_, slices) in chunks.into_iter().flatten() {
        crate::base::slice::resolve(&slices);
        crate::meta::ops::compact::plan_compaction(&slices);
    }
    let wanted = PlockRange { exclusive: true, pid: 1, start: 0, end: u64::MAX };
    asked("get_plock", told, meta.get_plock(file, 1, wanted)).await;
    asked("summary", told, meta.summary(Ino::ROOT, &|| false)).await;
    asked("sessions", told, meta.sessions()).await;
    asked("session_detail", told, meta.session_detail(sid)).await;
    asked("refresh_usage", told, meta.refresh_usage()).await;
    if let Some(Some(setting)) = asked("setting", told, meta.setting()).await {
        match VolumeFormat::from_json(&setting).and_then(|format| format.admit(Access::Write)) {
            Ok(()) => {}
            Err(error) => drop(sentence(&error)),
        }
    }
    let checked = asked("check", told, crate::meta::check::check(&**meta.engine())).await;
    for finding in checked.into_iter().flat_map(|report| report.findings) {
        sentence(&finding);
    }
    for scan in [
        Scan::AllDentries,
        Scan::Attrs,
        Scan::Chunks,
        Scan::ChunksOf(file),
        Scan::SliceRefs,
        Scan::Sustained(sid),
        Scan::DeletedFiles,
        Scan::DelayedSlices,
        Scan::DirStats,
        Scan::Quotas,
        Scan::AclRules,
        Scan::LocksOf(sid),
        Scan::AllXattrs,
        Scan::AllLinkParents,
    ] {
        let page = async { crate::meta::outside(meta.engine().scan(&scan, None, 100).await) };
        asked(&format!("{scan:?}"), told, page).await;
    }
}

async fn write_everything(meta: &Meta, volume: &Volume, told: &str) {
    let root = Caller::root();
    let Volume { dir, file, link, sid, .. } = *volume;
    let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
    asked("create", told, meta.create(&root, dir, &name("new"), &node)).await;
    let written = slice(20, 11, 100);
    asked("append_slice", told, meta.append_slice(file, ChunkIndex(0), written, Timestamp::new(9, 9))).await;
    asked("append_slice", told, meta.append_slice(link, ChunkIndex(0), slice(0, 12, 9), Timestamp::new(9, 9))).await;
    asked("copy_range", told, meta.copy_range(&root, file, 0, link, 5, 100)).await;
    asked("truncate", told, meta.truncate(&root, file, 10, true)).await;
    asked("set_xattr", told, meta.set_xattr(&root, file, b"user.b", b"v", XattrMode::Set)).await;
    asked("remove_xattr", told, meta.remove_xattr(&root, file, b"user.a")).await;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    asked("setattr", told, meta.setattr(&root, file, &set)).await;
    asked("set_plock", told, meta.set_plock(file, 5, LockKind::Read, 20, 29, 1, false)).await;
    asked("set_plock", told, meta.set_plock(file, 0xD9D0_B0A1_C2D3_E4F5, LockKind::Unlock, 0, 5, 7, false)).await;
    asked("flock", told, meta.flock(file, 6, LockKind::Read, false)).await;
    asked("link", told, meta.link(&root, file, Ino::ROOT, &name("third"))).await;
    asked("unlink", told, meta.unlink(&root, Ino::ROOT, &name("second"), true)).await;
    let (link_name, moved) = (name("link"), name("moved"));
    asked("rename", told, meta.rename(&root, dir, &link_name, Ino::ROOT, &moved, RenameMode::Replace)).await;
    asked("unlink", told, meta.unlink(&root, dir, &name("file"), true)).await;
    asked("rmdir", told, meta.rmdir(&root, Ino::ROOT, &name("dir"), true)).await;
    let (_stopper, stop) = stop_signal();
    asked("clean_stale_sessions", told, meta.clean_stale_sessions(Duration::ZERO, &stop)).await;
    asked("clean_session", told, meta.clean_session(sid)).await;
    asked("remove_tree", told, meta.remove_tree(&root, Ino::ROOT, &name("dir"), true, 2, &|_| ())).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn no_damage_to_a_stored_byte_brings_anything_down() {
    let store = Store::new().await;
    let Some(stored) = store.stored_bytes() else { return };
    let variable = |name: &str| std::env::var(name).ok().map(|value| value.parse::<u64>().expect(name));
    let seed = variable("SLUICE_FUZZ_SEED").unwrap_or_else(|| rand::rng().random());
    let seconds = Duration::from_secs(variable("SLUICE_FUZZ_SECONDS").unwrap_or(SECONDS));
    eprintln!("SLUICE_FUZZ_SEED={seed}");
    let mut rng = StdRng::seed_from_u64(seed);
    let meta = store.client(Arc::new(SystemClock)).await;
    let volume = make(&meta).await;
    file(&meta, "last").await;
    let mut raw = Raw::open(stored);
    let image = raw.image();
    let mut cells = raw.cells();
    cells.sort_by_key(|(cell, _)| format!("{cell:?}"));
    assert!(cells.len() > 60, "{} places", cells.len());
    let (started, mut tried, mut complaints) = (Instant::now(), 0, Vec::new());
    while started.elapsed() < seconds && complaints.len() <= 10 {
        cells.shuffle(&mut rng);
        for (cell, content) in &cells {
            let content = damaged(content, &mut rng);
            let writes = rng.random_bool(0.3);
            if started.elapsed() > seconds || complaints.len() > 10 || !raw.damage(cell, &content) {
                continue;
            }
            let told = format!("{cell:?} became {content:?} (SLUICE_FUZZ_SEED={seed})");
            let before = raw.generation();
            let attempt = async {
                // A client without memory of what was there before.
                let meta = store.client_of_what_is_there().await;
                read_everything(&meta, &volume, &told).await;
                assert_eq!(raw.generation(), before, "reading wrote something after {told}");
                if writes {
                    write_everything(&meta, &volume, &told).await;
                }
            };
            if let Err(panic) = AssertUnwindSafe(attempt).catch_unwind().await {
                let text = panic.downcast_ref::<String>().cloned();
                complaints.push(text.unwrap_or_else(|| format!("a panic after {told}")));
            }
            raw.restore(&image);
            tried += 1;
        }
    }
    eprintln!("{tried} damages of {} places", cells.len());
    assert!(complaints.is_empty(), "{}", complaints.join("\n"));
}
