//! Every byte of every kind of record is damaged, and every record is cut wherever it can be, as Redis and as SQLite
//! store it. What still decodes takes the record's place in a volume in memory, where everything is asked that reads,
//! and at times everything that writes: each answers a value or one sentence, soon, and what reads writes nothing.
//!
//! The servers themselves are met by `raw_tests`, which cannot try as much.

use super::volume_tests::{Volume, asked, make, read_everything, read_sessions, read_setting, write_everything};
use crate::base::{Fault, FaultKind, Kind};
use crate::fuzzing::sentence;
use crate::meta::engine::Engine;
use crate::meta::engine::mem::MemEngine;
use crate::meta::engine::redis::fuzz as redis_layout;
use crate::meta::engine::sql::sqlite::fuzz::{Rows, rows_of};
use crate::meta::engine::sql::sqlite::{SqliteEngine, SqliteOptions};
use crate::meta::record::{Key, Record};
use crate::meta::testing::{ENGINE_VARIABLE, block_on, plain_rules};
use crate::meta::{Meta, MetaSettings};
use crate::util::clock::SystemClock;
use futures::FutureExt;
use redis::Value;
use rusqlite::types::Value as Column;
use std::collections::{HashMap, HashSet};
use std::panic::{AssertUnwindSafe, resume_unwind};
use std::sync::{Arc, Mutex};
use std::time::{Duration, Instant};

/// For one case, on a machine with other things to do.
const DEADLINE: Duration = Duration::from_secs(60);
/// The operations that write take longer than those that read, and are tried on every so many of the records.
const WRITES_EACH: u64 = 5;
/// More of a kind in a table are like those.
const ROWS_MAX: usize = 3;
const COMPLAINTS_MAX: usize = 10;

/// What happens to some bytes, and whether the operations are tried on what comes of it. They are for one bit of each
/// byte, not for all of them: three at each byte took 45 seconds of a processor.
fn damages(bytes: &[u8]) -> impl Iterator<Item = (Vec<u8>, bool)> + '_ {
    let flips = (0..bytes.len()).flat_map(move |at| {
        let patterns = (0..8).map(|bit| 1u8 << bit).chain([0xFF]);
        patterns.map(move |pattern| {
            let mut damaged = bytes.to_vec();
            damaged[at] ^= pattern;
            (damaged, pattern == 1 << (at % 8))
        })
    });
    let cuts = (0..bytes.len()).map(|len| (bytes[..len].to_vec(), true));
    let longer = [0, b'0', 0xFF].into_iter().map(move |more| ([bytes, &[more]].concat(), true));
    flips.chain(cuts).chain(longer)
}

/// The same for a column: of its number each byte, and another class.
fn damaged_columns(column: &Column) -> Vec<(Column, bool)> {
    let of_bytes = |bytes: Vec<u8>| match String::from_utf8(bytes) {
        Ok(text) if matches!(column, Column::Text(_)) => Column::Text(text),
        Ok(text) => Column::Blob(text.into_bytes()),
        Err(other) => Column::Blob(other.into_bytes()),
    };
    let mut all: Vec<(Column, bool)> = match column {
        Column::Integer(number) => damages(&number.to_be_bytes())
            .filter_map(|(bytes, ask)| Some((Column::Integer(i64::from_be_bytes(bytes.try_into().ok()?)), ask)))
            .collect(),
        Column::Text(text) => damages(text.as_bytes()).map(|(bytes, ask)| (of_bytes(bytes), ask)).collect(),
        Column::Blob(bytes) => damages(bytes).map(|(bytes, ask)| (of_bytes(bytes), ask)).collect(),
        Column::Null | Column::Real(_) => Vec::new(),
    };
    let classes = [Column::Null, Column::Real(0.5), Column::Text("text".into()), Column::Blob(vec![0; 24])];
    all.extend(classes.into_iter().filter(|other| other != column).map(|other| (other, true)));
    all
}

fn client(engine: impl Engine) -> Arc<Meta> {
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    Meta::new(Arc::new(engine), Arc::new(SystemClock), settings, plain_rules())
}

/// All strings of an answer.
fn strings(values: &mut [Value]) -> Vec<&mut Vec<u8>> {
    let mut all = Vec::new();
    for value in values {
        match value {
            Value::BulkString(bytes) => all.push(bytes),
            Value::Array(inner) => all.extend(strings(inner)),
            _ => {}
        }
    }
    all
}

/// Records that differ in nothing that matters here have the same name.
fn kind_of(key: &Key, record: &Record) -> String {
    let family: String = format!("{key:?}").chars().take_while(|c| c.is_alphanumeric()).collect();
    match (key, record) {
        (Key::Counter(counter), _) => format!("{counter:?}"),
        (_, Record::Attr(attr)) => format!("{family} {:?}", attr.kind),
        (_, Record::Dentry(entry)) => format!("{family} {:?}", entry.kind),
        (Key::Quota(owner), _) => format!("{owner:?}"),
        _ => family,
    }
}

/// What is being tried, for whoever watches.
type Case = Arc<Mutex<(String, Instant)>>;

struct Run {
    case: Case,
    /// The volume as it should be, in memory.
    whole: MemEngine,
    volume: Volume,
    seen: HashSet<String>,
    decoded: u64,
    refused: u64,
    tried: u64,
    complaints: Vec<String>,
}

impl Run {
    fn refused(&mut self, fault: &Fault, told: &str) {
        self.refused += 1;
        let said = sentence(fault);
        if fault.kind() != FaultKind::Corrupt || !said.contains("key=") {
            self.complaints.push(format!("{said}: {told}"));
        }
    }

    /// A record that decodes, or one that is gone, in the place of the one that should be there.
    async fn meet(&mut self, key: &Key, record: Option<&Record>, told: &str) {
        // Not a record of its own.
        if matches!(key, Key::AnyDentry(_)) || !self.seen.insert(format!("{key:?} {record:?}")) {
            return;
        }
        *self.case.lock().expect("no panic holds it") = (told.to_owned(), Instant::now());
        let engine = self.whole.fork();
        engine.force(key, record);
        let before = engine.fork();
        let writes = self.tried.is_multiple_of(WRITES_EACH);
        let volume = &self.volume;
        let attempt = async {
            let meta = client(engine.clone());
            match key {
                Key::Setting => read_setting(&meta, told).await,
                Key::Session(_) => read_sessions(&meta, volume, told).await,
                _ => read_everything(&meta, volume, told).await,
            }
            asked("read", told, async { crate::meta::outside(engine.read(std::slice::from_ref(key)).await) }).await;
            assert!(engine.holds_the_same_as(&before), "reading wrote something after {told}");
            if writes {
                write_everything(&meta, volume, told).await;
            }
        };
        if let Err(panic) = AssertUnwindSafe(attempt).catch_unwind().await {
            let text = panic.downcast_ref::<String>().cloned();
            self.complaints.push(text.unwrap_or_else(|| format!("a panic after {told}")));
        }
        self.tried += 1;
    }

    async fn redis(&mut self, samples: &[(Key, Record)]) {
        for (key, record) in samples {
            let mut values = redis_layout::stored(key, record);
            let whole = redis_layout::read(key, values.clone()).expect("what we write can be read");
            assert_eq!(whole.as_ref(), Some(record), "{key:?}");
            for n in 0..strings(&mut values).len() {
                let bytes = strings(&mut values)[n].clone();
                for (damaged, ask) in damages(&bytes) {
                    let told = format!("Redis: string {n} of {key:?} became \"{}\"", damaged.escape_ascii());
                    *strings(&mut values)[n] = damaged;
                    self.decoded += 1;
                    match redis_layout::read(key, values.clone()) {
                        Err(fault) => self.refused(&fault, &told),
                        Ok(read) if ask && read != whole => self.meet(key, read.as_ref(), &told).await,
                        Ok(_) => {}
                    }
                    if self.complaints.len() > COMPLAINTS_MAX {
                        return;
                    }
                }
                *strings(&mut values)[n] = bytes;
            }
        }
    }

    async fn sqlite(&mut self, rows: Vec<(&'static str, Vec<Column>)>, keys: &[Key]) {
        let database = Rows::new();
        let mut count: HashMap<&str, usize> = HashMap::new();
        for (table, row) in rows {
            let met = count.entry(table).or_default();
            *met += 1;
            // Each counter is of its own kind.
            if *met > ROWS_MAX && table != "counter" {
                continue;
            }
            let keys: Vec<Key> = keys.iter().filter(|key| tables_of(key).contains(&table)).cloned().collect();
            let whole =
                database.read(table, &row, &keys).expect("a row of the table").expect("what we write can be read");
            assert!(!whole.is_empty() || table == "counter", "{table} {row:?}");
            for n in 0..row.len() {
                for (damaged, ask) in damaged_columns(&row[n]) {
                    let told = format!("SQLite: column {n} of {table} {row:?} became {damaged:?}");
                    let mut row = row.clone();
                    row[n] = damaged;
                    self.decoded += 1;
                    match database.read(table, &row, &keys) {
                        Some(Err(fault)) => self.refused(&fault, &told),
                        Some(Ok(read)) if ask => {
                            for (key, record) in read.iter().filter(|one| !whole.contains(one)) {
                                self.meet(key, Some(record), &told).await;
                            }
                            for (key, _) in whole.iter().filter(|(key, _)| !read.iter().any(|(other, _)| other == key))
                            {
                                self.meet(key, None, &told).await;
                            }
                        }
                        Some(Ok(_)) | None => {}
                    }
                    if self.complaints.len() > COMPLAINTS_MAX {
                        return;
                    }
                }
            }
        }
    }
}

/// Where a record's rows lie; empty for those that a scan of their table finds anyway.
fn tables_of(key: &Key) -> &'static [&'static str] {
    match key {
        Key::Setting => &["setting"],
        Key::Counter(_) => &["counter"],
        Key::Symlink(_) => &["symlink"],
        Key::Dentry(..) | Key::LinkParents(_) => &["edge"],
        Key::Xattrs(_) => &["xattr"],
        Key::Chunk(..) => &["chunk"],
        Key::SliceRef(..) => &["chunk_ref"],
        Key::Sustained(..) => &["sustained"],
        Key::DelayedSlices(..) => &["delslices"],
        Key::Flocks(_) => &["flock"],
        Key::Plocks(_) => &["plock"],
        _ => &[],
    }
}

/// The same volume in a file, row by row.
fn sqlite_rows() -> Vec<(&'static str, Vec<Column>)> {
    let place = tempfile::tempdir().expect("a temporary directory");
    let path = place.path().join("meta.db");
    let engine = SqliteEngine::open(&path, SqliteOptions::default()).expect("a database in a fresh directory");
    let meta = client(engine);
    block_on(make(&meta));
    rows_of(&path)
}

fn try_everything(case: Case) {
    let rows = sqlite_rows();
    // Waits end at once here: how long they would have been is what the operations are judged by.
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().start_paused(true).build();
    runtime.expect("a runtime").block_on(async {
        let whole = MemEngine::default();
        let volume = make(&client(whole.clone())).await;
        let records = whole.records();
        let keys: Vec<Key> = records.iter().map(|(key, _)| key.clone()).collect();
        let mut kinds = HashSet::new();
        let samples: Vec<_> = records.into_iter().filter(|(key, record)| kinds.insert(kind_of(key, record))).collect();
        for kind in [Kind::File, Kind::Directory, Kind::Symlink] {
            assert!(
                kinds.contains(&format!("Attr {kind:?}")) && kinds.contains(&format!("Dentry {kind:?}")),
                "{kinds:?}"
            );
        }
        assert!(kinds.len() > 22, "{kinds:?}");
        let (seen, complaints) = (HashSet::new(), Vec::new());
        let mut run = Run { case, whole, volume, seen, decoded: 0, refused: 0, tried: 0, complaints };
        run.redis(&samples).await;
        run.sqlite(rows, &keys).await;
        eprintln!("{} damages, {} refused, {} tried on all operations", run.decoded, run.refused, run.tried);
        assert!(run.complaints.is_empty(), "{}", run.complaints.join("\n"));
        assert!(run.refused > 3000 && run.tried > 500);
    });
}

#[test]
fn every_byte_of_every_record_may_be_another_one() {
    if std::env::var(ENGINE_VARIABLE).is_ok_and(|engine| engine != "memory") {
        return eprintln!("the same on each engine");
    }
    let case = Case::new(Mutex::new((String::new(), Instant::now())));
    let (started, trying) = (Instant::now(), case.clone());
    let work = std::thread::spawn(move || try_everything(trying));
    while !work.is_finished() {
        std::thread::sleep(Duration::from_millis(20));
        let (told, since) = case.lock().expect("no panic holds it").clone();
        assert!(since.elapsed() < DEADLINE, "no end after {told}");
    }
    if let Err(panic) = work.join() {
        resume_unwind(panic);
    }
    eprintln!("{:?}", started.elapsed());
}
