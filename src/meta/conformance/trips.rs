//! How many trips to the engine operations take, on each engine: no more than `design.md` section 5 allows, and as many
//! as `tests/bench/trips.md` says. `SLUICE_TEST_TRIPS=write` writes the column of the engine under test anew.

use super::{Shell, client};
use crate::base::{ChunkIndex, Ino, Slice, SliceId, Timestamp};
use crate::meta::engine::counting::CountingEngine;
use crate::meta::ops::rename::RenameMode;
use crate::meta::testing::{self, Store};
use std::sync::Arc;

const TABLE: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/tests/bench/trips.md");
const WRITE_VARIABLE: &str = "SLUICE_TEST_TRIPS";
/// Most trips of each operation for a client that knows nothing of what it is about, and for one that has just looked.
const LIMITS: [(&str, u64, u64); 5] = [
    ("lookup", 2, 2),
    ("create", 2, 1),
    ("unlink, last name", 3, 1),
    ("rename to a free name", 3, 1),
    ("commit a slice", 2, 1),
];
/// Engines that look a name up in one trip.
const LOOK_UP_AT_ONCE: [&str; 4] = ["memory", "redis", "mysql", "postgres"];

/// Trips of an operation on a file that another client has made in a directory of its own; `known`: this client has just
/// looked both up, and the name that is to be made, as a kernel does before most requests.
async fn trips(operation: &str, known: bool) -> u64 {
    let store = Store::new().await;
    let counting = Arc::new(CountingEngine::new(store.engine().await));
    let (meta, other) = (client(counting.clone(), false).await, client(store.engine().await, false).await);
    let (sh, others) = (Shell(&meta), Shell(&other));
    // Fills the pool of numbers.
    sh.file(Ino::ROOT, "numbers").await;
    let dir = others.dir(Ino::ROOT, "d").await;
    let file = others.file(dir, "f").await;
    if known {
        sh.look(Ino::ROOT, "d").await.expect("it was made");
        sh.look(dir, "f").await.expect("it was made");
        sh.look(dir, "new").await.expect_err("nobody has made it");
    }
    counting.take();
    match operation {
        "lookup" => assert_eq!(sh.look(dir, "f").await.expect("it was made").ino, file),
        "create" => drop(sh.file(dir, "new").await),
        "unlink, last name" => assert!(sh.rm(dir, "f").await.freed),
        "rename to a free name" => assert_eq!(sh.mv((dir, "f"), (dir, "new"), RenameMode::Replace).await, Ok(file)),
        "commit a slice" => {
            let slice = Slice { pos: 0, id: SliceId(1), size: 10, off: 0, len: 10 };
            meta.append_slice(file, ChunkIndex(0), slice, Timestamp::new(1, 0)).await.expect("appended");
        }
        other => panic!("{other} is not measured"),
    }
    let total = counting.take().total();
    let (kept, made) = (others.look(dir, "f").await.is_ok(), others.look(dir, "new").await.is_ok());
    let goes = ["unlink, last name", "rename to a free name"].contains(&operation);
    let comes = ["create", "rename to a free name"].contains(&operation);
    assert_eq!((kept, made), (!goes, comes), "{operation}");
    total
}

/// The cells of a line of a table.
fn cells(line: &str) -> Vec<String> {
    let inner = line.trim().trim_start_matches('|').trim_end_matches('|');
    inner.split('|').map(|cell| cell.trim().to_owned()).collect()
}

/// The table with what was measured in the column of an engine.
fn with_column(text: &str, engine: &str, measured: &[(&str, String)]) -> String {
    let mut column = None;
    let mut lines = Vec::new();
    for line in text.lines() {
        let mut row = cells(line);
        if row[0] == "operation" {
            column = row.iter().position(|cell| cell == engine);
            assert!(column.is_some(), "{TABLE} has no column for {engine}");
        }
        match (column, measured.iter().find(|(operation, _)| line.starts_with('|') && row[0] == *operation)) {
            (Some(column), Some((_, trips))) => {
                row[column] = trips.clone();
                lines.push(format!("| {} |", row.join(" | ")));
            }
            _ => lines.push(line.to_owned()),
        }
    }
    lines.join("\n") + "\n"
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_take_as_many_trips_as_is_written() {
    let engine = testing::engine_under_test();
    let mut measured = Vec::new();
    for (operation, limit, limit_known) in LIMITS {
        let (cold, known) = (trips(operation, false).await, trips(operation, true).await);
        let at_once = operation == "lookup" && LOOK_UP_AT_ONCE.contains(&engine.as_str());
        let limit = if at_once { 1 } else { limit };
        assert!(
            cold <= limit && known <= limit_known,
            "{operation}: {cold} trips, {known} for who has just looked it up"
        );
        measured.push((operation, format!("{cold} / {known}")));
    }
    let written = std::fs::read_to_string(TABLE).expect("the table of trips");
    let table = with_column(&written, &engine, &measured);
    if std::env::var(WRITE_VARIABLE).is_ok_and(|how| how == "write") {
        std::fs::write(TABLE, table).expect("the table is written");
        return;
    }
    for (operation, ..) in LIMITS {
        assert!(written.contains(&format!("\n| {operation} |")), "{TABLE} has no line for {operation}");
    }
    assert_eq!(written, table, "{TABLE} is out of date; {WRITE_VARIABLE}=write writes the column of {engine} anew");
}
