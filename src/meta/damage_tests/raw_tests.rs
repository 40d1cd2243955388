//! Damage to the bytes of a volume, on Redis and SQLite: any byte of any record is another one, or the record is cut.
//! The operations that read are asked again, and answer a value or one sentence that names the record, soon, having
//! written nothing; then those that write, which may do what they can with what they find, and end soon as well.
//!
//! A run tries as much as its time allows, from a new seed each time (`SLUICE_FUZZ_SEED`, `SLUICE_FUZZ_SECONDS`); all of
//! it without a server is tried by `every_tests`.

use super::volume_tests::{make, read_everything, write_everything};
use crate::meta::testing::{Store, StoredBytes, file};
use crate::util::clock::SystemClock;
use futures::FutureExt;
use rand::rngs::StdRng;
use rand::seq::SliceRandom;
use rand::{Rng, SeedableRng};
use std::hash::{DefaultHasher, Hash, Hasher};
use std::panic::AssertUnwindSafe;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// For each engine, unless asked otherwise.
const SECONDS: u64 = 5;

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
