//! How much memory and time dumps of large volumes take. Run by hand:
//!
//! ```text
//! SLUICE_TEST_META=sqlite SLUICE_DUMP_INODES=5000000 cargo test --lib -- --ignored --nocapture dumps_at_scale
//! ```
//!
//! `SLUICE_LOAD_THREADS` says how many commits of a load may be under way (10).

use super::stream::{Packing, Pipe};
use super::*;
use crate::base::{Attr, ChunkIndex, Kind, Name, Slice, SliceId};
use crate::meta::engine::{Batch, Change};
use crate::meta::record::{Dentry, DirStat, Key, Record};
use crate::meta::scale_tests::attr;
use crate::meta::testing::Store;
use crate::util::task::stop_signal;
use std::fs::File;
use std::io::Read;
use std::time::Instant;

const INODES: u64 = 1_000_000;
const FILES_PER_DIRECTORY: u64 = 1000;
/// What a dump may hold of a volume of five million nodes.
const MEMORY_MAX: u64 = 512 << 20;

fn course() -> Course {
    // The other end is forgotten, not dropped: nobody stops this.
    let (stopper, stop) = stop_signal();
    std::mem::forget(stopper);
    Course { tell: Arc::new(|_, _| ()), stop }
}

fn entry(changes: &mut Vec<Change>, parent: Ino, name: String, ino: Ino, attr: Attr) {
    let dentry = Dentry { kind: attr.kind, ino };
    changes.push(Change::Put(Key::Dentry(parent, Name::stored(name.into_bytes())), Record::Dentry(dentry)));
    changes.push(Change::Put(Key::Attr(ino), Record::Attr(attr)));
}

/// Directories of files of one slice each.
async fn fill(engine: &dyn Engine, inodes: u64) {
    outside(engine.prepare().await).unwrap();
    let mut next = 2..;
    let mut number = || next.next().unwrap_or_default();
    let directories = inodes / (FILES_PER_DIRECTORY + 1);
    let mut first = vec![
        Change::Put(Key::Setting, Record::Bytes(Bytes::from_static(b"{\"DirStats\":true}"))),
        Change::Put(Key::Attr(Ino::ROOT), Record::Attr(attr(Kind::Directory, Ino::ROOT, 2 + directories as u32))),
    ];
    for directory in 0..directories {
        let dir = Ino(number());
        let mut changes = std::mem::take(&mut first);
        entry(&mut changes, Ino::ROOT, format!("directory-{directory:06}"), dir, attr(Kind::Directory, Ino::ROOT, 2));
        for file in 0..FILES_PER_DIRECTORY {
            let ino = Ino(number());
            entry(&mut changes, dir, format!("a file of some length {file:04}"), ino, attr(Kind::File, dir, 1));
            let slice = Slice { pos: 0, id: SliceId(ino.0), size: 100_000, off: 0, len: 100_000 };
            changes.push(Change::Put(Key::Chunk(ino, ChunkIndex(0)), Record::Slices(vec![slice])));
            changes.push(Change::Put(Key::SliceRef(slice.id, slice.size), Record::Number(1)));
        }
        let files = FILES_PER_DIRECTORY as i64;
        let stat = DirStat { length: files * 100_000, space: files * 102_400, inodes: files };
        changes.push(Change::Put(Key::DirStat(dir), Record::DirStat(stat)));
        let (txn, _) = engine.begin(&[]).await.unwrap();
        txn.commit(Batch { guards: Vec::new(), changes }).await.unwrap();
    }
}

/// The most memory that this process had since it was asked last.
fn peak_bytes() -> u64 {
    let status = std::fs::read_to_string("/proc/self/status").unwrap();
    let line = status.lines().find_map(|line| line.strip_prefix("VmHWM:")).unwrap();
    let kib: u64 = line.trim().trim_end_matches(" kB").parse().unwrap();
    std::fs::write("/proc/self/clear_refs", "5").unwrap();
    kib << 10
}

fn tell(what: &str, began: Instant, before: u64) -> u64 {
    let (seconds, peak) = (began.elapsed().as_secs_f64(), peak_bytes());
    eprintln!("{what}: {seconds:.1} s, peak {} MiB (before: {} MiB)", peak >> 20, before >> 20);
    peak
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "minutes; see the head of this file"]
async fn dumps_at_scale() {
    let inodes = std::env::var("SLUICE_DUMP_INODES").map_or(INODES, |text| text.parse().unwrap());
    let at_a_time = std::env::var("SLUICE_LOAD_THREADS").map_or(10, |text| text.parse().unwrap());
    let dir = tempfile::tempdir().unwrap();
    let engine = Store::new().await.engine().await;
    eprintln!("{inodes} nodes on {}", engine.name());
    let before = peak_bytes();
    let began = Instant::now();
    fill(&*engine, inodes).await;
    tell("fill", began, before);
    for (name, packing) in [("v.json.gz", Packing::Gzip), ("v.bin", Packing::Plain)] {
        let path = dir.path().join(name);
        let options =
            DumpOptions { setting: b"{\"DirStats\":true}".to_vec(), top: Ino::ROOT, skip_trash: false, threads: 10 };
        let (before, began) = (peak_bytes(), Instant::now());
        let mut pipe = Pipe::new(packing, File::create(&path).unwrap()).unwrap();
        let dumped = match packing {
            Packing::Plain => binary::dump(&*engine, &options, &mut pipe, &course()).await.unwrap(),
            _ => json::dump(&*engine, &options, &mut pipe, &course()).await.unwrap(),
        };
        pipe.finish().await.unwrap();
        eprintln!("{name}: {} entries, {} MiB", dumped.entries, std::fs::metadata(&path).unwrap().len() >> 20);
        assert!(tell("dump", began, before) < MEMORY_MAX);

        let target = Store::new().await.engine().await;
        let (before, began) = (peak_bytes(), Instant::now());
        let mut input: Box<dyn Read + Send> = packing.reader(File::open(&path).unwrap()).unwrap();
        let admit = |document: &[u8]| Ok(Bytes::copy_from_slice(document));
        let loaded = match packing {
            Packing::Plain => binary_load::load(&target, &mut input, &admit, at_a_time, &course()).await.unwrap(),
            _ => json_load::load(&target, &mut input, &admit, at_a_time, &course()).await.unwrap(),
        };
        assert_eq!(loaded.inodes, inodes / (FILES_PER_DIRECTORY + 1) * (FILES_PER_DIRECTORY + 1));
        assert!(tell("load", began, before) < MEMORY_MAX);
    }
}
