//! Our mount and the peer's (JuiceFS 1.4.2) on one volume at the same time: each works on the other's files, under the
//! other's locks, out of the other's trash. Both are mounted without kernel caches where one must see at once what the
//! other has done; what either promises with them is close-to-open.
//!
//! `kill.rs` has what happens when one of the two dies under load, `tools.rs` the repair tools beside both. Every test
//! ends with the `fsck` and the `gc` of both programs and a recount of what the volume says it holds.

use crate::harness::{Engine, Mount, SLUICE, Store, UNCACHED, Volume, output, ready, run, sh};
use crate::kill::{collect_and_check, sessions_end};
use crate::peer::peer;
use crate::several::{eventually, open};
use std::fs::{self, File, OpenOptions};
use std::io::{self, ErrorKind, Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// Sessions of dead mounts end after five of these; no client goes below one second.
const HEARTBEAT: [&str; 2] = ["--heartbeat", "1"];
/// A dead session is over after 5 s, and whoever looks after it looks every second.
const CLEANED: Duration = Duration::from_secs(60);

on_every_engine! {
    locks_exclude_each_other: [];
    the_dead_are_cleaned_up_by_the_other_program: ["--trash-days", "0"];
    names_change_under_open_files: ["--trash-days", "1"];
    the_trash_is_one: ["--trash-days", "1"];
    appends_under_flock_are_all_kept: [];
    lengths_change_under_readers: [];
    links_are_counted_together: ["--trash-days", "0"];
    unlinked_while_open: ["--trash-days", "0"];
}

pub fn prepared(more: &[&str]) -> bool {
    ready(&[&["juicefs", "python3", "setfattr", "setfacl"], more].concat())
}

fn mount(volume: &Volume, program: impl AsRef<Path>) -> Mount {
    volume.mount_with(program, &[&HEARTBEAT[..], &UNCACHED, &["--enable-xattr"]].concat())
}

/// Ours and theirs.
fn mount_both(volume: &Volume) -> [Mount; 2] {
    [mount(volume, SLUICE), mount(volume, peer())]
}

/// Each of the two beside the other one.
pub fn in_turn(mounts: &[Mount; 2]) -> [(&Mount, &Mount); 2] {
    let [ours, theirs] = mounts;
    [(ours, theirs), (theirs, ours)]
}

/// Ends the mounts; nobody has anything to say against the volume, and it holds what it says. (Clients of some engines
/// store their part of a directory's statistics a second late. Where the peer's part is stored first and makes them
/// negative, it counts the directory anew and says so, and the other part is in them twice: `fsck --repair` is for that.)
#[track_caller]
pub fn end(volume: &Volume, mounts: &[Mount; 2]) {
    let told = end_but_for_statistics(volume, mounts);
    let counted_anew = mounts.iter().any(|mount| mount.log_text().contains("dir stat of inode"));
    assert!(!told.contains("statistics") || counted_anew, "{told}");
}

/// The same where the peer's statistics need not be right: it writes its part of them down a second late, by the inode,
/// and a directory that was removed and brought back within that second has been counted anew meanwhile. (It drifts
/// alone with itself; two of ours do not.)
#[track_caller]
fn end_but_for_statistics(volume: &Volume, mounts: &[Mount; 2]) -> String {
    mounts.iter().for_each(Mount::umount);
    collect_and_check(volume, &peer());
    let ours = output(volume.command(SLUICE).args(["fsck", &volume.meta_url]));
    let told = String::from_utf8_lossy(&ours.stderr).into_owned();
    assert!(ours.status.success(), "{told}");
    told
}

/// The statistics of all directories by the peer's recount, which does not survive a directory without any: one that
/// came back from the trash and was not looked at since.
#[track_caller]
pub fn statistics_are_right_for_the_peer(volume: &Volume) {
    let theirs = ["fsck", "--path", "/", "-r", "--sync-dir-stat", &volume.meta_url];
    let theirs = output(volume.command(peer()).args(theirs));
    let told = String::from_utf8_lossy(&theirs.stderr);
    assert!(theirs.status.success() && !told.contains("should be"), "{told}");
}

fn flock(file: &File, how: i32) -> io::Result<()> {
    // SAFETY: flock has no preconditions.
    if unsafe { libc::flock(file.as_raw_fd(), how) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// fcntl(2) on `len` bytes from `start` on; answers what F_GETLK found.
fn range_lock(file: &File, command: i32, kind: i32, start: i64, len: i64) -> io::Result<(i32, i64, i64)> {
    // SAFETY: the lock is plain data that outlives the call.
    unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_start, lock.l_len) = (kind as libc::c_short, start, len);
        match libc::fcntl(file.as_raw_fd(), command, &mut lock) {
            0 => Ok((lock.l_type.into(), lock.l_start, lock.l_len)),
            _ => Err(io::Error::last_os_error()),
        }
    }
}

#[track_caller]
fn is_refused<T: std::fmt::Debug>(taken: io::Result<T>) {
    let error = taken.expect_err("a lock that the other one holds");
    assert_eq!(error.raw_os_error(), Some(libc::EAGAIN), "{error}");
}

/// Takes a lock that the other program holds: not before that one gives it up, and soon afterwards.
#[track_caller]
fn waits(file: File, take: impl Fn(&File) -> io::Result<()> + Send + 'static, give_up: impl FnOnce()) -> File {
    let (tell, told) = mpsc::channel();
    std::thread::spawn(move || {
        let taken = take(&file).map(|()| file);
        // Nobody listens any more when the test has failed.
        let _ = tell.send(taken);
    });
    assert!(told.recv_timeout(Duration::from_millis(400)).is_err(), "did not wait");
    give_up();
    told.recv_timeout(CLEANED).expect("in time").expect("the lock")
}

fn locks_exclude_each_other(volume: &Volume) {
    const REFUSED: i32 = libc::LOCK_NB;
    let mounts = mount_both(volume);
    for (holder, other) in in_turn(&mounts) {
        let (held, wanted) = (open(&holder.path("flock")), open(&other.path("flock")));
        flock(&held, libc::LOCK_EX).expect("free");
        is_refused(flock(&wanted, libc::LOCK_EX | REFUSED));
        is_refused(flock(&wanted, libc::LOCK_SH | REFUSED));
        flock(&held, libc::LOCK_SH).expect("its own");
        flock(&wanted, libc::LOCK_SH | REFUSED).expect("readers share");
        is_refused(flock(&wanted, libc::LOCK_EX | REFUSED));
        is_refused(flock(&held, libc::LOCK_EX | REFUSED));
        flock(&wanted, libc::LOCK_UN).expect("its own");
        flock(&held, libc::LOCK_EX | REFUSED).expect("alone again");
        // Given up by closing the file.
        let wanted = waits(wanted, |file| flock(file, libc::LOCK_EX), || drop(held));
        is_refused(flock(&open(&holder.path("flock")), libc::LOCK_SH | REFUSED));
        drop(wanted);

        let (write, read, free) = (libc::F_WRLCK, libc::F_RDLCK, libc::F_UNLCK);
        let (held, wanted) = (open(&holder.path("ranges")), open(&other.path("ranges")));
        range_lock(&held, libc::F_SETLK, write, 0, 100).expect("free");
        range_lock(&held, libc::F_SETLK, read, 200, 0).expect("free, to the end of the file");
        is_refused(range_lock(&wanted, libc::F_SETLK, write, 50, 100));
        is_refused(range_lock(&wanted, libc::F_SETLK, read, 99, 1));
        is_refused(range_lock(&wanted, libc::F_SETLK, write, 1 << 40, 1));
        range_lock(&wanted, libc::F_SETLK, write, 100, 100).expect("between the two");
        range_lock(&wanted, libc::F_SETLK, read, 1 << 40, 1).expect("readers share");
        for (mount, program) in mounts.iter().zip([PathBuf::from(SLUICE), peer()]) {
            let path = mount.path("ranges");
            let shown = run(volume.command(program).args(["info", path.to_str().expect("text")])).replace(' ', "");
            assert!(["plocks:", "|W|", "|0|99|"].iter().all(|word| shown.contains(word)), "{shown}");
        }
        let found = |kind, start| range_lock(&wanted, libc::F_GETLK, kind, start, 1).expect("asked");
        assert_eq!(found(read, 10), (write, 0, 100));
        assert_eq!(found(write, 300), (read, 200, 0));
        assert_eq!(found(read, 300).0, free);
        assert_eq!(range_lock(&held, libc::F_GETLK, write, 150, 1).expect("asked"), (write, 100, 100));
        range_lock(&held, libc::F_SETLK, free, 0, 50).expect("its own");
        range_lock(&wanted, libc::F_SETLK, write, 0, 50).expect("given up");
        is_refused(range_lock(&wanted, libc::F_SETLK, write, 50, 1));
        let take = move |file: &File| range_lock(file, libc::F_SETLKW, write, 0, 0).map(|_| ());
        drop(waits(wanted, take, || drop(held)));
    }
    end(volume, &mounts);
}

/// A mount that is killed leaves locks and a file that has no name any more. The other program takes its session for
/// dead, gives its locks to whoever waits for them and removes the file.
fn the_dead_are_cleaned_up_by_the_other_program(volume: &Volume) {
    for (dies, lives) in [(PathBuf::from(SLUICE), peer()), (peer(), PathBuf::from(SLUICE))] {
        let (dead, living) = (mount(volume, &dies), mount(volume, &lives));
        let (flocked, ranged) = (open(&dead.path("flock")), open(&dead.path("range")));
        let (wanted, wanted_range) = (open(&living.path("flock")), open(&living.path("range")));
        flock(&flocked, libc::LOCK_EX).expect("free");
        range_lock(&ranged, libc::F_SETLK, libc::F_WRLCK, 5, 10).expect("free");
        let held = open(&dead.path("nameless"));
        held.write_all_at(&[7; 100_000], 0).expect("written");
        held.sync_all().expect("fsync");
        fs::remove_file(dead.path("nameless")).expect("removed");
        assert!(!living.path("nameless").exists());
        let stays = chunks(volume);
        let locked = waits(wanted, |file| flock(file, libc::LOCK_EX), || dead.kill());
        let started = Instant::now();
        while let Err(error) = range_lock(&wanted_range, libc::F_SETLK, libc::F_WRLCK, 0, 0) {
            assert!(started.elapsed() < CLEANED, "the dead still holds its lock: {error}");
            std::thread::sleep(Duration::from_millis(50));
        }
        sessions_end(volume, 1);
        eventually("the data of the nameless file goes", || chunks(volume) < stays);
        drop((locked, wanted_range, flocked, ranged, held));
        living.umount();
    }
    collect_and_check(volume, &peer());
}

/// How many objects of data there are.
fn chunks(volume: &Volume) -> usize {
    sh(volume.dir.path(), "find objects -type f -path '*/chunks/*'").lines().count()
}

fn names_change_under_open_files(volume: &Volume) {
    let mounts = mount_both(volume);
    for (here, there) in in_turn(&mounts) {
        sh(
            &here.point,
            "mkdir mine && echo -n old > mine/file && echo -n new > mine/new && echo -n third > mine/third",
        );
        sh(&there.point, "mkdir yours && echo -n goes > yours/file");
        // Replaced: what is open is the old file (which is in the trash), what is opened is the new one.
        let old = open(&there.path("mine/file"));
        fs::rename(here.path("mine/new"), here.path("mine/file")).expect("renamed over");
        let mut read = String::new();
        (&old).read_to_string(&mut read).expect("still readable");
        assert_eq!(read, "old");
        drop(old);
        assert_eq!(fs::read_to_string(there.path("mine/file")).expect("readable"), "new");
        assert!(!there.path("mine/new").exists());
        // Moved into a directory of the other one, which goes on writing.
        let moved = open(&there.path("mine/file"));
        fs::rename(here.path("mine/file"), here.path("yours/moved")).expect("moved");
        moved.write_all_at(b" and more", 3).expect("written");
        moved.sync_all().expect("fsync");
        drop(moved);
        assert_eq!(fs::read_to_string(here.path("yours/moved")).expect("readable"), "new and more");
        // A directory with an open file in it, into another directory.
        let inside = open(&there.path("mine/third"));
        fs::rename(here.path("mine"), here.path("yours/mine")).expect("moved");
        inside.write_all_at(b"3rd", 0).expect("written");
        inside.sync_all().expect("fsync");
        assert_eq!(fs::read_to_string(here.path("yours/mine/third")).expect("readable"), "3rdrd");
        assert_eq!(inside.metadata().expect("fstat").ino(), fs::metadata(here.path("yours/mine/third")).unwrap().ino());
        drop(inside);
        // Exchanged, and not replaced.
        let rename = |from: &str, to: &str, flags| {
            let [from, to] = [from, to]
                .map(|name| std::ffi::CString::new(here.path(name).to_str().expect("text")).expect("no NUL in a path"));
            // SAFETY: both paths are terminated strings that outlive the call.
            match unsafe { libc::renameat2(libc::AT_FDCWD, from.as_ptr(), libc::AT_FDCWD, to.as_ptr(), flags) } {
                0 => Ok(()),
                _ => Err(io::Error::last_os_error()),
            }
        };
        let kept = rename("yours/moved", "yours/file", libc::RENAME_NOREPLACE).expect_err("the name is taken");
        assert_eq!(kept.raw_os_error(), Some(libc::EEXIST));
        rename("yours/mine", "yours/file", libc::RENAME_EXCHANGE).expect("exchanged");
        for mount in &mounts {
            assert_eq!(sh(&mount.point, "cat yours/file/third yours/mine"), "3rdrdgoes");
            assert_eq!(sh(&mount.point, "stat -c %h yours yours/file"), "3\n2\n");
        }
        let busy = fs::remove_dir(there.path("yours")).expect_err("it is not empty");
        assert_eq!(busy.raw_os_error(), Some(libc::ENOTEMPTY));
        sh(&there.point, "rm -r yours");
        assert_eq!(sh(&here.point, "ls"), "");
    }
    end(volume, &mounts);
    statistics_are_right_for_the_peer(volume);
}

/// What is in the trash with this ending, as hour and name.
fn trashed(mount: &Mount, ending: &str) -> Vec<(String, String)> {
    let found = sh(&mount.path(".trash"), "find . -mindepth 2 -maxdepth 2 -printf '%P\\n'");
    let split = |line: &str| line.split_once('/').map(|(hour, name)| (hour.to_owned(), name.to_owned()));
    found.lines().filter_map(split).filter(|(_, name)| name.ends_with(ending)).collect()
}

fn the_trash_is_one(volume: &Volume) {
    let mounts = mount_both(volume);
    let mut turn = 0;
    for (deletes, other) in in_turn(&mounts) {
        for restorer in [PathBuf::from(SLUICE), peer()] {
            turn += 1;
            let top = format!("t{turn}");
            sh(
                &other.point,
                &format!(
                    "mkdir -p {top}/d/e && echo kept > {top}/d/f && echo deep > {top}/d/e/g && ln {top}/d/f {top}/d/e/h"
                ),
            );
            let facts = |mount: &Mount| {
                sh(&mount.point, &format!("find {top} -printf '%P %i %n %s %m\\n' | sort; cat {top}/d/f {top}/d/e/*"))
            };
            let before = facts(deletes);
            let inode = |name: &str| fs::metadata(other.path(format!("{top}/{name}"))).expect("there").ino();
            let names = [("", "d"), ("d", "e"), ("d", "f"), ("d/e", "g")]
                .map(|(dir, name)| format!("{}-{}-{name}", inode(dir), inode(&format!("{dir}/{name}"))));
            fs::remove_dir_all(deletes.path(format!("{top}/d"))).expect("removed");
            assert!(!other.path(format!("{top}/d")).exists());
            for name in &names {
                assert_eq!(trashed(other, name).len(), 1, "{name} in the trash of the other");
                assert_eq!(trashed(other, name), trashed(deletes, name));
            }
            let (hour, name) = trashed(other, &names[3]).remove(0);
            let text = fs::read_to_string(other.path(".trash").join(&hour).join(name)).expect("readable in the trash");
            assert_eq!(text, "deep\n");
            let mut hours: Vec<String> =
                names.iter().flat_map(|name| trashed(other, name)).map(|(hour, _)| hour).collect();
            hours.dedup();
            run(volume.command(&restorer).args(["restore", "--put-back", &volume.meta_url]).args(&hours));
            for mount in [deletes, other] {
                assert_eq!(facts(mount), before, "put back by {}", restorer.display());
                assert_eq!(trashed(mount, ""), [], "nothing else was in the trash");
            }
            // By hand, by the one that did not remove it.
            fs::remove_file(deletes.path(format!("{top}/d/e/g"))).expect("removed");
            let (hour, name) = trashed(other, &names[3]).remove(0);
            fs::rename(other.path(".trash").join(hour).join(name), other.path(format!("{top}/d/e/g")))
                .expect("put back");
            assert_eq!(facts(deletes), before);
            assert_eq!(facts(other), before);
            // Nobody writes into the trash, and what is purged there is gone for both.
            fs::remove_file(deletes.path(format!("{top}/d/e/g"))).expect("removed");
            let (hour, name) = trashed(other, &names[3]).remove(0);
            let inside = other.path(".trash").join(hour).join(name);
            let refused = OpenOptions::new().write(true).open(&inside).expect_err("it is in the trash");
            assert_eq!(refused.raw_os_error(), Some(libc::EPERM));
            fs::remove_file(&inside).expect("purged");
            assert_eq!(trashed(deletes, ""), []);
        }
    }
    end_but_for_statistics(volume, &mounts);
}

fn appends_under_flock_are_all_kept(volume: &Volume) {
    const RECORD: usize = 700;
    const EACH: usize = 20;
    const THREADS: usize = 4;
    let mounts = mount_both(volume);
    std::thread::scope(|scope| {
        for number in 0..THREADS {
            let path = mounts[number % 2].path("log");
            scope.spawn(move || {
                for turn in 0..EACH {
                    let mut file = OpenOptions::new().append(true).create(true).open(&path).expect("it opens");
                    let started = Instant::now();
                    while let Err(error) = flock(&file, libc::LOCK_EX | libc::LOCK_NB) {
                        assert!(started.elapsed() < CLEANED, "no lock: {error}");
                        std::thread::sleep(Duration::from_millis(10));
                    }
                    // Whoever has the lock opens the file again: this is what close-to-open is about.
                    let mut again = OpenOptions::new().append(true).open(&path).expect("it opens");
                    let writer = if turn % 2 == 0 { &mut again } else { &mut file };
                    writer.write_all(&[(number * EACH + turn) as u8; RECORD]).expect("appended");
                    writer.sync_all().expect("fsync");
                }
            });
        }
    });
    for mount in &mounts {
        let log = fs::read(mount.path("log")).expect("readable");
        assert_eq!(log.len(), THREADS * EACH * RECORD);
        let mut records = Vec::new();
        for record in log.chunks(RECORD) {
            assert!(record.iter().all(|byte| *byte == record[0]), "records lie over one another");
            records.push(record[0]);
        }
        records.sort_unstable();
        assert_eq!(records, (0..(THREADS * EACH) as u8).collect::<Vec<_>>());
    }
    end(volume, &mounts);
}

/// Truncated and extended by either while the other one has it open and has read it. Ours with the caches that a mount
/// has by default: opening a file asks how it was left.
fn lengths_change_under_readers(volume: &Volume) {
    enum Step {
        Length(usize),
        Write(usize, usize),
    }
    use Step::{Length, Write};
    let mounts = [volume.mount(&[]), mount(volume, peer())];
    let steps = [
        Write(0, 300_000),
        Length(100_001),
        Length(250_000),
        Write(200_000, 5000),
        Length(0),
        Length(4097),
        Write(4090, 10),
        Length(70 << 20),
        Write((64 << 20) - 10, 20),
        Length((64 << 20) - 3),
        Length((64 << 20) + 5000),
        Length(1 << 20),
        Length(1 << 20),
        Write((2 << 20) - 1, 1),
        Length(5),
    ];
    /// The file as long as it should be, with the right bytes where any step is at work and at its end. Nothing else of
    /// it is ever written, and reading all of it takes as long as everything else.
    #[track_caller]
    fn shows(mount: &Mount, content: &[u8], step: usize) {
        const BORDER: usize = 64 << 20;
        let mut file = File::open(mount.path("file")).expect("it opens");
        assert_eq!(file.metadata().expect("fstat").len(), content.len() as u64, "step {step}");
        let end = content.len().saturating_sub(70_000);
        for window in
            [0..500_000, (1 << 20) - 50_000..(2 << 20) + 50_000, BORDER - 70_000..BORDER + 70_000, end..usize::MAX]
        {
            let expected = &content[window.start.min(content.len())..window.end.min(content.len())];
            let mut read = Vec::new();
            file.seek(SeekFrom::Start(window.start as u64)).expect("a place in the file");
            (&file).take((window.end - window.start) as u64).read_to_end(&mut read).expect("readable");
            assert!(read == *expected, "step {step}: other bytes in {window:?} of {}", content.len());
        }
    }
    let mut content: Vec<u8> = Vec::new();
    File::create(mounts[0].path("file")).expect("made");
    for (number, step) in steps.iter().chain(&steps).enumerate() {
        // An odd number of steps: in the second run each is done by the other one.
        let (writer, reader) = in_turn(&mounts)[number % 2];
        shows(reader, &content, number);
        let file = OpenOptions::new().write(true).open(writer.path("file")).expect("it opens");
        match step {
            Length(len) => {
                content.resize(*len, 0);
                file.set_len(*len as u64).expect("truncated");
            }
            Write(at, len) => {
                let bytes = vec![number as u8 + 1; *len];
                content.resize(content.len().max(at + len), 0);
                content[*at..at + len].copy_from_slice(&bytes);
                file.write_all_at(&bytes, *at as u64).expect("written");
            }
        }
        drop(file);
        for mount in [reader, writer] {
            shows(mount, &content, number);
        }
    }
    end(volume, &mounts);
}

fn links_are_counted_together(volume: &Volume) {
    let mounts = mount_both(volume);
    for (here, there) in in_turn(&mounts) {
        sh(&here.point, "mkdir -p a b && echo text > a/one");
        fs::hard_link(there.path("a/one"), there.path("b/two")).expect("linked");
        fs::hard_link(here.path("b/two"), here.path("a/three")).expect("linked");
        let links = |name: &str| mounts.each_ref().map(|mount| fs::metadata(mount.path(name)).expect("there").nlink());
        assert_eq!((links("a/one"), links("b/two"), links("a/three")), ([3; 2], [3; 2], [3; 2]));
        for program in [PathBuf::from(SLUICE), peer()] {
            let paths = run(volume.command(program).args(["info", here.path("b/two").to_str().expect("text")]));
            assert!(["/a/one", "/b/two", "/a/three"].iter().all(|path| paths.contains(path)), "{paths}");
        }
        // Moved by one, replaced by the other, and what one name says all say.
        fs::rename(there.path("a/three"), there.path("b/three")).expect("moved");
        fs::write(here.path("a/other"), "other").expect("written");
        fs::rename(here.path("a/other"), here.path("a/one")).expect("renamed over");
        assert_eq!((links("b/two"), links("b/three"), links("a/one")), ([2; 2], [2; 2], [1; 2]));
        OpenOptions::new()
            .append(true)
            .open(there.path("b/three"))
            .and_then(|mut file| file.write_all(b"more"))
            .unwrap();
        assert_eq!(fs::read_to_string(here.path("b/two")).expect("readable"), "text\nmore");
        // Renaming one name of a file over another one of it does nothing.
        fs::rename(there.path("b/two"), there.path("b/three")).expect("nothing happens");
        fs::remove_file(there.path("b/two")).expect("removed");
        assert_eq!(links("b/three"), [1; 2]);
        assert_eq!(fs::read_to_string(here.path("b/three")).expect("readable"), "text\nmore");
        fs::remove_file(here.path("b/three")).expect("removed");
        assert!(!there.path("b/three").exists());
        sh(&there.point, "rm -r a b");
    }
    end(volume, &mounts);
    statistics_are_right_for_the_peer(volume);
}

/// A file that is unlinked while it is open. Only the client that unlinks it knows whether it has it open, and keeps it
/// for its own handles: ours and the peer's do, against the other one's clean-up too. A handle in the *other* client
/// is not protected, by neither program (as in NFS): it gets what it still has of the file or an error, a write is
/// refused and never acknowledged, and it sees no other file's bytes.
fn unlinked_while_open(volume: &Volume) {
    let mounts = mount_both(volume);
    let programs = [(PathBuf::from(SLUICE), "--min-age"), (peer(), "")];
    let bytes: Vec<u8> = (0..300_000u32).map(|at| (at % 239) as u8 + 1).collect();
    for (here, there) in in_turn(&mounts) {
        // By the client that has it open, with writes after that.
        let held = open(&here.path("mine"));
        held.write_all_at(&bytes, 0).expect("written");
        held.sync_all().expect("fsync");
        let mut before = chunks(volume);
        // What the turn before has removed goes when nobody is waiting for it.
        eventually("nothing more goes", || {
            std::thread::sleep(Duration::from_millis(500));
            std::mem::replace(&mut before, chunks(volume)) == before
        });
        fs::remove_file(here.path("mine")).expect("removed");
        assert!(!there.path("mine").exists());
        held.write_all_at(b"later", 100_000).expect("written without a name");
        held.sync_all().expect("fsync");
        for (program, age) in &programs {
            let mut gc = volume.command(program);
            gc.env("JFS_GC_SKIPPEDTIME", "0").args(["gc", "--delete"]);
            if !age.is_empty() {
                gc.args([age, "0"]);
            }
            run(gc.arg(&volume.meta_url));
            run(volume.command(program).args(["fsck", &volume.meta_url]));
        }
        assert!(chunks(volume) > before, "objects of a file that is open are gone");
        // Not what the kernel has of it.
        // SAFETY: posix_fadvise has no preconditions.
        unsafe { libc::posix_fadvise(held.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
        let mut read = vec![0; bytes.len()];
        held.read_exact_at(&mut read, 0).expect("readable");
        assert!(read[..100_000] == bytes[..100_000] && &read[100_000..100_005] == b"later");
        assert_eq!(held.metadata().expect("fstat").nlink(), 0);
        drop(held);
        eventually("its data goes with the last handle", || chunks(volume) < before);

        // By the other one.
        fs::write(here.path("theirs"), &bytes).expect("written");
        let held = open(&here.path("theirs"));
        fs::remove_file(there.path("theirs")).expect("removed");
        fs::write(there.path("theirs"), vec![0xff; 300_000]).expect("another file of that name");
        let mut read = vec![0; bytes.len()];
        match held.read_at(&mut read, 0) {
            Ok(len) => assert!(read[..len] == bytes[..len], "bytes of another file"),
            Err(error) => {
                assert!([libc::ENOENT, libc::EIO].contains(&error.raw_os_error().expect("a code")), "{error}")
            }
        }
        let written = held.write_all_at(b"lost", 0).and_then(|()| held.sync_all());
        written.expect_err("a write to a file that is gone was acknowledged");
        drop(held);
        assert!(fs::read(here.path("theirs")).expect("readable") == [0xff; 300_000], "it hit the other file");
        fs::remove_file(here.path("theirs")).expect("removed");
        assert_eq!(there.path("theirs").metadata().expect_err("gone").kind(), ErrorKind::NotFound);
    }
    end(volume, &mounts);
}
