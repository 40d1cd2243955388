//! Whether a `create` costs the same however much there is already: in the volume, and in the directory itself. Run by
//! hand, on a machine that does nothing else:
//!
//! ```text
//! SLUICE_TEST_META=sqlite SLUICE_SCALE_INODES=5000000 cargo test --lib -- --ignored --nocapture costs_the_same
//! ```

use super::testing::{Store, volume_on};
use super::{Caller, Meta};
use crate::base::{Attr, Ino, Kind, Name, Timestamp};
use crate::meta::engine::{Batch, Change, Engine};
use crate::meta::ops::create::NewNode;
use crate::meta::record::{Counter, Dentry, Key, Record};
use crate::util::clock::SystemClock;
use futures::StreamExt as _;
use std::sync::Arc;
use std::time::Instant;

const INODES: u64 = 1_000_000;
const FILES_PER_DIRECTORY: u64 = 1000;
/// Creates at once, creates of each of them in a round, and rounds of which the quickest counts: whatever else the machine
/// does only adds to it.
const TASKS: usize = 16;
const CREATES: usize = 150;
const ROUNDS: usize = 21;
/// Commits of a fill under way, and changes in each.
const COMMITS: usize = 8;
const CHANGES: usize = 2000;
/// How much dearer the last create may be than the first.
const DEARER_MAX: f64 = 1.5;

fn inodes() -> u64 {
    std::env::var("SLUICE_SCALE_INODES").map_or(INODES, |text| text.parse().unwrap())
}

fn node(kind: Kind) -> NewNode {
    NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target: None }
}

async fn directory(meta: &Meta, name: &str) -> Ino {
    let name = Name::entry(name.as_bytes()).unwrap();
    meta.create(&Caller::root(), Ino::ROOT, &name, &node(Kind::Directory)).await.unwrap().ino
}

/// Puts files into directories of a thousand each, or all into one.
async fn fill(meta: &Arc<Meta>, files: u64, into: Option<Ino>) {
    let engine = meta.engine();
    let first = engine.allocate(Counter::NextInode, files).await.unwrap();
    let mut parents = Vec::new();
    for number in 0..files.div_ceil(FILES_PER_DIRECTORY) {
        parents.push(match into {
            Some(dir) => dir,
            None => directory(meta, &format!("directory {first} {number:06}")).await,
        });
    }
    let at_a_time = (engine.batch_max().min(CHANGES) / 2) as u64;
    let file = |number: u64| {
        let (ino, parent) = (Ino(first + number), parents[(number / FILES_PER_DIRECTORY) as usize]);
        let name = Name::stored(format!("a file of some length {:09}", first + number).into_bytes());
        let dentry = Record::Dentry(Dentry { kind: Kind::File, ino });
        let empty = Attr { length: 0, ..attr(Kind::File, parent, 1) };
        [Change::Put(Key::Dentry(parent, name), dentry), Change::Put(Key::Attr(ino), Record::Attr(empty))]
    };
    let commits = (0..files).step_by(at_a_time as usize).map(|from| {
        let changes: Vec<Change> = (from..files.min(from + at_a_time)).flat_map(file).collect();
        let engine = engine.clone();
        async move { tokio::spawn(commit(engine, changes)).await.unwrap() }
    });
    futures::stream::iter(commits).buffer_unordered(COMMITS).collect::<()>().await;
}

async fn commit(engine: Arc<dyn Engine>, changes: Vec<Change>) {
    for tries in 1.. {
        let (txn, _) = engine.begin(&[]).await.unwrap();
        match txn.commit(Batch { guards: Vec::new(), changes: changes.clone() }).await {
            Ok(_) => return,
            Err(error) => assert!(tries < 10, "{error:?}"),
        }
    }
}

/// Attributes as fills put them; those of a file with one slice, where it is a file.
pub fn attr(kind: Kind, parent: Ino, links: u32) -> Attr {
    let time = Timestamp::new(1_796_086_800, 123_456_789);
    let length = if kind == Kind::Directory { 4096 } else { 100_000 };
    Attr {
        flags: 0,
        kind,
        mode: 0o640,
        uid: 1000,
        gid: 1000,
        atime: time,
        mtime: time,
        ctime: time,
        nlink: links,
        length,
        rdev: 0,
        parent,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

/// Microseconds for a create, of `TASKS` that create at once: the least of the rounds. `into`: or a fresh directory.
async fn cost(meta: &Arc<Meta>, point: usize, into: Option<Ino>) -> f64 {
    let mut rounds = Vec::new();
    for round in 0..ROUNDS {
        let dir = match into {
            Some(dir) => dir,
            None => directory(meta, &format!("measured {point} {round}")).await,
        };
        let began = Instant::now();
        let tasks = (0..TASKS).map(|task| {
            let meta = meta.clone();
            tokio::spawn(async move {
                for number in 0..CREATES {
                    let name = Name::entry(format!("new {point} {round} {task} {number}").as_bytes()).unwrap();
                    meta.create(&Caller::root(), dir, &name, &node(Kind::File)).await.unwrap();
                }
            })
        });
        for done in futures::future::join_all(tasks).await {
            done.unwrap();
        }
        rounds.push(began.elapsed().as_secs_f64() * 1e6 / (TASKS * CREATES) as f64);
    }
    rounds.sort_by(f64::total_cmp);
    eprintln!("    least {:.0} µs, median {:.0} µs, most {:.0} µs", rounds[0], rounds[ROUNDS / 2], rounds[ROUNDS - 1]);
    rounds[0]
}

async fn costs(into_one: bool) {
    let meta = volume_on(Store::new().await.unsynced_engine().await, Arc::new(SystemClock)).await;
    let into = if into_one { Some(directory(&meta, "all").await) } else { None };
    let (inodes, what) = (inodes(), if into_one { "entries of one directory" } else { "inodes" });
    // Connections and statements are there before it counts.
    cost(&meta, 0, into).await;
    let (mut filled, mut costs) = (0, Vec::new());
    for (point, quarter) in [0, 1, 2, 3, 4].into_iter().enumerate() {
        let (began, wanted) = (Instant::now(), inodes * quarter / 4);
        fill(&meta, wanted - filled, into).await;
        filled = wanted;
        eprintln!("{}: {wanted} {what}, filled in {:.0} s", meta.engine().name(), began.elapsed().as_secs_f64());
        costs.push(cost(&meta, point + 1, into).await);
    }
    let dearer = costs[costs.len() - 1] / costs[0];
    eprintln!("{}: {dearer:.2} times the first", meta.engine().name());
    assert!(dearer <= DEARER_MAX, "a create costs {dearer:.2} times as much as in the empty one: {costs:.0?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes; see the head of this file"]
async fn a_create_costs_the_same_in_a_large_volume() {
    costs(false).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes; see the head of this file"]
async fn a_create_costs_the_same_in_a_large_directory() {
    costs(true).await;
}
