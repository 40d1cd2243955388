//! Several mounts of one volume: what one of them does the others see, two that collide both get an answer that is
//! right, and one that was away for too long does no harm when it comes back.

use crate::harness::{Engine, Store, Volume, ready, run};
use crate::recount::statistics_are_exact;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::time::{Duration, Instant};

/// How long one mount may not notice what another one has done: a little longer than what the kernel caches, and
/// generous beside other tests.
const SEEN: Duration = Duration::from_secs(20);

pub fn engines() -> impl Iterator<Item = Engine> {
    Engine::ALL.into_iter().filter(|engine| ready(engine.programs()))
}

#[track_caller]
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let started = Instant::now();
    while !holds() {
        assert!(started.elapsed() < SEEN, "not within {SEEN:?}: {what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// fcntl(2) with a write lock on the whole file: taken, or refused at once.
fn try_lock(file: &File) -> io::Result<()> {
    // SAFETY: the lock is plain data that outlives the call.
    let done = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        lock.l_type = libc::F_WRLCK as libc::c_short;
        libc::fcntl(file.as_raw_fd(), libc::F_SETLK, &lock)
    };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

fn lock(file: &File, limit: Duration) {
    let started = Instant::now();
    while let Err(error) = try_lock(file) {
        assert!(started.elapsed() < limit, "no lock within {limit:?}: {error}");
        std::thread::sleep(Duration::from_millis(20));
    }
}

pub fn open(path: &Path) -> File {
    OpenOptions::new().read(true).write(true).create(true).truncate(false).open(path).expect("the file opens")
}

/// The tree and every object of the volume are as they should be.
#[track_caller]
fn is_whole(volume: &Volume) {
    volume.sluice(&["fsck", &volume.meta_url]);
}

/// A mount that stands still (a stopped process, a suspended machine) until the others have taken it for dead: the lock
/// it held goes to another mount, and what it had not committed must not appear any more. It finds out, its programs
/// get EIO, and after opening the file again they go on.
#[test]
fn a_mount_that_was_taken_for_dead_fails_its_writes() {
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &[]);
        let (paused, other) = (volume.mount(&["--heartbeat", "1s"]), volume.mount(&["--heartbeat", "1s"]));
        let file = open(&paused.path("locked"));
        lock(&file, SEEN);
        file.write_all_at(&[b'a'; 5000], 0).expect("written under the lock");
        file.sync_all().expect("fsync under the lock");
        let clean = open(&paused.path("clean"));
        clean.write_all_at(b"clean", 0).expect("written");
        clean.sync_all().expect("fsync");
        file.write_all_at(&[b'b'; 3000], 1000).expect("taken, not committed");
        paused.signal(libc::SIGSTOP);

        let taken = open(&other.path("locked"));
        lock(&taken, Duration::from_secs(90));
        taken.write_all_at(&[b'c'; 2000], 2000).expect("written by the new holder");
        taken.sync_all().expect("fsync of the new holder");
        paused.signal(libc::SIGCONT);

        assert!(file.sync_all().is_err(), "{engine:?}: what was not committed was acknowledged");
        eventually("the client knows", || paused.log_text().contains("took this one for dead"));
        let refused = file.write_all_at(b"more", 0).and_then(|()| file.sync_all());
        assert_eq!(refused.expect_err("a write without the lock").raw_os_error(), Some(libc::EIO), "{engine:?}");
        drop(file);
        clean.write_all_at(b"still", 5).expect("nothing was at stake here");
        clean.sync_all().expect("fsync");
        drop(clean);

        let expected = [&[b'a'; 2000][..], &[b'c'; 2000], &[b'a'; 1000]].concat();
        // Not opened anew in `other`: closing a file drops all locks that the process has on it there.
        let again = open_after_close(&paused.path("locked"));
        for file in [&taken, &again] {
            let mut bytes = vec![0; 6000];
            let len = file.read_at(&mut bytes, 0).expect("readable");
            assert!(bytes[..len] == expected, "{engine:?}: other bytes");
        }
        for mount in [&other, &paused] {
            assert_eq!(fs::read(mount.path("clean")).expect("readable"), b"cleanstill");
        }
        assert!(try_lock(&again).is_err(), "the other one holds it");
        drop(taken);
        lock(&again, SEEN);
        again.write_all_at(b"d", 4999).expect("written under a new lock");
        again.sync_all().expect("fsync under a new lock");
        drop(again);
        paused.umount();
        assert_eq!(fs::read(other.path("locked")).expect("readable")[4999], b'd');
        other.umount();
        is_whole(&volume);
    }
}

/// Opens a file that was just closed with an error. The kernel tells of a close after close(2) has returned, and whoever
/// has the file open at that moment gets the error as well: so each try waits longer than the one before.
fn open_after_close(path: &Path) -> File {
    let mut pause = Duration::from_millis(300);
    loop {
        std::thread::sleep(pause);
        let file = open(path);
        match file.sync_all() {
            Ok(()) => return file,
            Err(error) => assert!(pause < SEEN, "the error stays after the close: {error}"),
        }
        pause *= 2;
    }
}

/// Records appended by many processes of several mounts, each under a lock on the file, are all there, whole.
#[test]
fn appends_under_a_lock_are_all_kept() {
    const RECORD: usize = 700;
    const EACH: usize = 25;
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &[]);
        let mounts = [volume.mount(&[]), volume.mount(&[]), volume.mount(&[])];
        std::thread::scope(|scope| {
            for (number, mount) in mounts.iter().enumerate() {
                scope.spawn(move || {
                    for turn in 0..EACH {
                        let file = open(&mount.path("log"));
                        lock(&file, Duration::from_secs(120));
                        let end = file.metadata().expect("its length").len();
                        let record = [number as u8 * 100 + turn as u8; RECORD];
                        file.write_all_at(&record, end).expect("appended");
                        // Closing gives up the lock, after what was written under it is visible.
                    }
                });
            }
        });
        let log = fs::read(mounts[0].path("log")).expect("readable");
        assert_eq!(log.len(), 3 * EACH * RECORD, "{engine:?}");
        let mut records: Vec<u8> = Vec::new();
        for record in log.chunks(RECORD) {
            assert!(record.iter().all(|byte| *byte == record[0]), "{engine:?}: records lie over one another");
            records.push(record[0]);
        }
        records.sort_unstable();
        records.dedup();
        assert_eq!(records.len(), 3 * EACH, "{engine:?}: a record is there twice");
    }
}

/// What one mount has removed, replaced or moved while another has it open or cached.
#[test]
fn names_change_under_each_other() {
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &["--trash-days", "0"]);
        let (here, there) = (volume.mount(&[]), volume.mount(&[]));
        fs::create_dir_all(here.path("d/sub")).expect("made");
        fs::write(here.path("d/old"), "old").expect("written");
        eventually("a new file", || fs::read(there.path("d/old")).is_ok_and(|text| text == b"old"));

        // Replaced: whoever opens it from now on sees the new file.
        fs::write(here.path("d/new"), "the new one").expect("written");
        fs::rename(here.path("d/new"), here.path("d/old")).expect("renamed over");
        eventually("the new content", || fs::read(there.path("d/old")).is_ok_and(|text| text == b"the new one"));
        eventually("the old name gone", || !there.path("d/new").exists());
        // Removed: a cached entry answers for a moment, then there is none.
        fs::remove_file(there.path("d/old")).expect("removed");
        eventually("the removal", || here.path("d/old").metadata().is_err_and(|e| e.kind() == ErrorKind::NotFound));
        // The kernel may believe the entry a moment longer than it believed the node.
        eventually("the name is free", || fs::write(here.path("d/old"), "again").is_ok());
        // A directory that another mount has filled is not removed, whatever is cached here.
        fs::write(there.path("d/sub/kept"), "x").expect("written");
        let refused = fs::remove_dir(here.path("d/sub")).expect_err("it is not empty");
        assert_eq!(refused.raw_os_error(), Some(libc::ENOTEMPTY), "{engine:?}");
        // Moved away together with what is open in it.
        let open_there = open(&there.path("d/sub/kept"));
        fs::rename(here.path("d"), here.path("moved")).expect("renamed");
        open_there.write_all_at(b"written after the move", 0).expect("written");
        open_there.sync_all().expect("fsync");
        assert_eq!(fs::read(here.path("moved/sub/kept")).expect("readable"), b"written after the move");
        eventually("the move", || there.path("moved/sub").is_dir() && !there.path("d").exists());
        // A file removed by another mount while it is open here: only the client that unlinks a file keeps it for its
        // own handles (as in NFS), so this one gets an error or what it still has, and no other file's bytes.
        fs::remove_file(here.path("moved/sub/kept")).expect("removed");
        let written = open_there.write_all_at(b"lost", 0).and_then(|()| open_there.sync_all());
        assert!(written.is_err(), "{engine:?}: a write to a file that is gone was acknowledged");
        drop(open_there);
        for mount in [&here, &there] {
            mount.umount();
        }
        is_whole(&volume);
    }
}

/// One directory, many hands: creates, renames, links and removals of the same few names from four mounts. Every error
/// is one that the operation may give, nothing is left that the tree checker minds, and usage is what a recount finds.
#[test]
fn four_mounts_contend_for_one_directory() {
    const NAMES: u64 = 12;
    let seconds = std::env::var("SLUICE_CONTEND_SECONDS").ok().and_then(|s| s.parse().ok()).unwrap_or(10);
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &["--trash-days", "0"]);
        let mounts = [volume.mount(&[]), volume.mount(&[]), volume.mount(&[]), volume.mount(&[])];
        fs::create_dir(mounts[0].path("shared")).expect("made");
        let end = Instant::now() + Duration::from_secs(seconds);
        let done: usize = std::thread::scope(|scope| {
            let workers: Vec<_> = (0..32u64)
                .map(|worker| {
                    let dir = mounts[worker as usize % 4].path("shared");
                    scope.spawn(move || contend(&dir, worker, NAMES, end))
                })
                .collect();
            workers.into_iter().map(|worker| worker.join().expect("a worker without an unexpected error")).sum()
        });
        println!("{engine:?}: {done} operations in {seconds} s");
        assert!(done > 100, "{engine:?}: only {done} operations");
        for mount in &mounts {
            mount.umount();
        }
        is_whole(&volume);
        statistics_are_exact(&volume);
    }
}

/// Answers how many operations were done. What may be: the name is there or is not, or is another kind by now.
fn contend(dir: &Path, worker: u64, names: u64, end: Instant) -> usize {
    let mut source = StdRng::seed_from_u64(worker);
    let mut random = |below: u64| source.random_range(0..below);
    let mut done = 0;
    while Instant::now() < end {
        let (a, b) = (dir.join(random(names).to_string()), dir.join(random(names).to_string()));
        let (what, outcome) = match random(6) {
            0 | 1 => ("create", fs::write(&a, [worker as u8; 100])),
            2 => ("rename", fs::rename(&a, &b)),
            3 => ("link", fs::hard_link(&a, &b)),
            4 => ("remove", fs::remove_file(&a)),
            _ => ("make and remove a directory", fs::create_dir(&a).and_then(|()| fs::remove_dir(&a))),
        };
        if let Err(error) = outcome {
            let expected = [libc::ENOENT, libc::EEXIST, libc::ENOTDIR, libc::EISDIR, libc::ENOTEMPTY, libc::EPERM];
            let code = error.raw_os_error().expect("an error of the system");
            assert!(expected.contains(&code), "{what} of {} and {}: {error}", a.display(), b.display());
        }
        done += 1;
    }
    done
}

/// Two mounts move directories into one another: never a cycle, never a directory that is lost.
#[test]
fn two_mounts_build_no_cycle() {
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &[]);
        let mounts = [volume.mount(&[]), volume.mount(&[])];
        for name in ["a", "b", "c"] {
            fs::create_dir(mounts[0].path(name)).expect("made");
        }
        let names = ["a", "b", "c", "a/b", "b/a", "a/c", "c/a", "b/c", "c/b", "a/b/c", "c/b/a", "b/c/a", "a/c/b"];
        std::thread::scope(|scope| {
            for worker in 0..4usize {
                let mount = &mounts[worker % 2];
                scope.spawn(move || {
                    for step in 0..150usize {
                        let (from, to) =
                            (names[(step * 7 + worker * 3) % names.len()], names[(step * 5 + worker) % names.len()]);
                        if from.rsplit('/').next() != to.rsplit('/').next() {
                            continue;
                        }
                        // Most moves are impossible at the moment; what is asked is that none is half done.
                        let _ = fs::rename(mount.path(from), mount.path(to));
                    }
                });
            }
        });
        for mount in &mounts {
            mount.umount();
        }
        let mount = volume.mount(&[]);
        let found = run(std::process::Command::new("find").arg(&mount.point).args(["-type", "d", "-name", "[abc]"]));
        assert_eq!(found.lines().count(), 3, "{engine:?}:\n{found}");
        mount.umount();
        is_whole(&volume);
    }
}
