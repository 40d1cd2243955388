//! The server of the metadata fails under a load of names and of bytes, and comes back or is replaced: operations pause
//! and go on, none fails, what was acknowledged is there, nothing is done twice (a second `link`, `mkdir` or `rename`
//! would be an error), and neither program finds anything wrong afterwards.

use crate::harness::{Engine, Mount, SLUICE, Store, Volume, program, ready, run, sh};
use sluice_test_servers::etcd::Etcd;
use sluice_test_servers::postgres::Postgres;
use sluice_test_servers::redis::{Redis, Watched};
use std::fs::OpenOptions;
use std::io::Write;
use std::path::Path;
use std::process::Command;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

const WRITERS: usize = 6;
/// Before the first failure and after the last one.
const CALM: Duration = Duration::from_secs(3);
/// How long a server is away.
const AWAY: Duration = Duration::from_secs(3);

/// What a writer was told is there.
#[derive(Default)]
struct Acknowledged {
    files: Vec<String>,
    lines: usize,
}

/// Makes, links, renames and removes in a directory of its own and appends to a log, until it is told to stop.
fn write_names(dir: &Path, calm: &AtomicBool) -> Result<Acknowledged, String> {
    let mut done = Acknowledged::default();
    let told = |what: &'static str| move |error: std::io::Error| format!("{what}: {error}");
    std::fs::create_dir(dir).map_err(told("mkdir"))?;
    let log = OpenOptions::new().create(true).append(true).open(dir.join("log"));
    let mut log = log.map_err(told("open the log"))?;
    for number in 0u32.. {
        if calm.load(Ordering::Relaxed) {
            break;
        }
        let path = |kind: &str| dir.join(format!("{kind}{number}"));
        let mut file = OpenOptions::new().write(true).create_new(true).open(path("made")).map_err(told("create"))?;
        file.write_all(number.to_string().as_bytes()).map_err(told("write"))?;
        file.sync_all().map_err(told("fsync"))?;
        drop(file);
        std::fs::hard_link(path("made"), path("linked")).map_err(told("link"))?;
        std::fs::rename(path("made"), path("renamed")).map_err(told("rename"))?;
        std::fs::create_dir(path("dir")).map_err(told("mkdir"))?;
        std::fs::remove_dir(path("dir")).map_err(told("rmdir"))?;
        if number % 3 == 0 {
            std::fs::remove_file(path("linked")).map_err(told("unlink"))?;
            std::fs::remove_file(path("renamed")).map_err(told("unlink"))?;
        } else {
            done.files.push(number.to_string());
        }
        writeln!(log, "{number}").map_err(told("append"))?;
        log.sync_all().map_err(told("fsync the log"))?;
        done.lines += 1;
    }
    Ok(done)
}

fn is_there(dir: &Path, done: &Acknowledged) {
    let mut wanted: Vec<String> =
        done.files.iter().flat_map(|number| [format!("linked{number}"), format!("renamed{number}")]).collect();
    wanted.push("log".to_owned());
    wanted.sort();
    let entries = std::fs::read_dir(dir).expect("the directory is listed");
    let mut found: Vec<String> =
        entries.map(|entry| entry.expect("an entry").file_name().into_string().expect("a name")).collect();
    found.sort();
    assert_eq!(found, wanted, "in {}", dir.display());
    for number in &done.files {
        for kind in ["linked", "renamed"] {
            let text = std::fs::read_to_string(dir.join(format!("{kind}{number}"))).expect("it is read");
            assert_eq!(&text, number);
        }
    }
    let log = std::fs::read_to_string(dir.join("log")).expect("it is read");
    let numbers: Vec<usize> = log.lines().map(|line| line.parse().expect("a number")).collect();
    assert_eq!(numbers, (0..done.lines).collect::<Vec<_>>());
}

/// fio checks what it wrote itself.
fn load_bytes(mount: &Mount, calm: &AtomicBool) {
    while !calm.load(Ordering::Relaxed) {
        sh(
            &mount.point,
            "fio --name=bytes --rw=randrw --bs=8k --size=4M --numjobs=2 --fsync=64 --verify=crc32c --do_verify=1 \
             --verify_fatal=1 --end_fsync=1 --output-format=terse",
        );
    }
}

/// Runs the load while `fail` does its worst.
fn survives(volume: &Volume, fail: impl FnOnce()) {
    volume.run_format(SLUICE, Store::File, &["--trash-days", "0"]);
    let mount = volume.mount(&["--heartbeat", "1"]);
    let calm = AtomicBool::new(false);
    let dirs: Vec<_> = (0..WRITERS).map(|writer| mount.path(format!("writer{writer}"))).collect();
    let done: Vec<Acknowledged> = std::thread::scope(|scope| {
        let writers: Vec<_> = dirs.iter().map(|dir| scope.spawn(|| write_names(dir, &calm))).collect();
        scope.spawn(|| load_bytes(&mount, &calm));
        std::thread::sleep(CALM);
        fail();
        std::thread::sleep(CALM);
        calm.store(true, Ordering::Relaxed);
        writers
            .into_iter()
            .map(|writer| writer.join().expect("a writer").unwrap_or_else(|error| panic!("{error}")))
            .collect()
    });
    println!("operations: {:?}", done.iter().map(|done| done.lines).collect::<Vec<_>>());
    dirs.iter().zip(&done).for_each(|(dir, done)| is_there(dir, done));
    mount.umount();
    let again = volume.mount(&[]);
    for (writer, done) in done.iter().enumerate() {
        is_there(&again.path(format!("writer{writer}")), done);
    }
    again.umount();
    volume.sluice(&["fsck", &volume.meta_url]);
    if let Some(peer) = program("juicefs") {
        run(Command::new(peer).args(["fsck", &volume.meta_url]));
    }
}

/// A volume whose metadata is at this URL.
fn volume_at(url: String) -> Volume {
    let mut volume = Volume::unformatted(Engine::Sqlite);
    volume.meta_url = url;
    volume
}

#[test]
fn a_postgres_that_is_restarted_is_waited_for() {
    if !ready(&[&["fio"], &Postgres::PROGRAMS[..]].concat()) {
        return;
    }
    // What it has acknowledged is in the system's memory, which outlives its crash.
    let mut server = Postgres::start_with(&["fsync=off"]);
    let volume = volume_at(server.url(&server.next_database()));
    survives(&volume, || {
        for _ in 0..2 {
            server.restart_after(AWAY);
            std::thread::sleep(CALM);
        }
    });
}

/// It has just acknowledged what Redis has not replicated: the mount waits for the replicas.
#[test]
fn a_redis_master_that_dies_under_sentinels_is_replaced() {
    if !ready(&[&["fio"], &Redis::PROGRAMS[..]].concat()) {
        return;
    }
    let mut watched = Watched::start(&[]);
    let volume = volume_at(watched.url(1));
    survives(&volume, || {
        let master = watched.master();
        watched.servers[master].kill();
        watched.wait_for_another_than(master);
    });
}

/// Sentinels promote a replica while the old master still takes writes, for a second or more; then it says READONLY.
#[test]
fn a_redis_master_that_hands_over_under_sentinels_loses_nothing() {
    if !ready(&[&["fio"], &Redis::PROGRAMS[..]].concat()) {
        return;
    }
    let watched = Watched::start(&[]);
    let volume = volume_at(watched.url(1));
    survives(&volume, || watched.fail_over());
}

#[test]
fn an_etcd_that_loses_a_node_goes_on() {
    if !ready(&[&["fio"], &Etcd::PROGRAMS[..]].concat()) {
        return;
    }
    let mut etcd = Etcd::start(3);
    let volume = volume_at(etcd.next_url());
    survives(&volume, || {
        // One of them is the leader, and one the node that the client talks to.
        for node in 0..3 {
            etcd.kill_node(node);
            std::thread::sleep(AWAY);
            etcd.start_node(node);
            std::thread::sleep(CALM);
        }
    });
}
