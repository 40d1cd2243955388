//! Faults below a real mount: stores that stall, cut and answer late, servers that refuse, fall silent or are full,
//! full disks. What must hold: no wrong byte, an error in bounded time, a log that says it once, removals that still
//! work, and recovery without a restart.

use crate::cells::{CELL, cells, versions};
use crate::harness::{Engine, Mount, Redis, SLUICE, Store, Volume, Weed, output, program, ready, run, sh};
use crate::proxy::{HttpProxy, TcpProxy, Trouble, Wire};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fs::{File, OpenOptions};
use std::io::{self, Write};
use std::os::fd::IntoRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// Lines of the log at WARN and above that a fault may cost, all its causes and consequences together.
const LINES_MAX: usize = 25;

fn loud(mount: &Mount) -> Vec<String> {
    let text = mount.log_text();
    text.lines().filter(|line| line.contains("<WARNING>") || line.contains("<ERROR>")).map(str::to_owned).collect()
}

fn count(mount: &Mount, words: &str) -> usize {
    mount.log_text().lines().filter(|line| line.contains(words)).count()
}

#[track_caller]
fn told_once(mount: &Mount, begin: &str, end: &str) {
    let loud = loud(mount);
    assert_eq!(count(mount, begin), 1, "`{begin}` is told once:\n{}", mount.log_text());
    assert_eq!(count(mount, end), 1, "`{end}` is told once:\n{}", mount.log_text());
    assert!(loud.len() <= LINES_MAX, "{} lines:\n{}", loud.len(), loud.join("\n"));
}

/// Writes a file of one write and closes it; an error of close counts.
fn write_file(path: &Path, file: u32, count: usize) -> io::Result<()> {
    let mut open = OpenOptions::new().write(true).create(true).truncate(true).open(path)?;
    open.write_all(&cells(file, 0, count, 1))?;
    // SAFETY: the descriptor is ours, and is not used after this.
    if unsafe { libc::close(open.into_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

#[track_caller]
fn check_file(path: &Path, file: u32, count: usize) {
    let read = || {
        let open = File::open(path)?;
        drop_pages(&open);
        let mut bytes = Vec::new();
        io::Read::read_to_end(&mut &open, &mut bytes).map(|_| bytes)
    };
    let bytes = read().unwrap_or_else(|error| panic!("{}: {error}", path.display()));
    assert_eq!(bytes.len(), count * CELL, "{}", path.display());
    let found = versions(file, 0, &bytes).unwrap_or_else(|why| panic!("{}: {why}", path.display()));
    assert!(found.iter().all(|version| *version == 1), "{} has holes", path.display());
}

/// Calls until it works, at most for `limit`.
#[track_caller]
fn until_it_works<T>(limit: Duration, what: &str, mut call: impl FnMut() -> io::Result<T>) -> T {
    let begun = Instant::now();
    loop {
        match call() {
            Ok(done) => return done,
            Err(error) => assert!(begun.elapsed() < limit, "{what} still fails after {limit:?}: {error}"),
        }
        std::thread::sleep(Duration::from_millis(200));
    }
}

/// A small file system of its own, so that it can be full.
struct Disk(TempDir);

impl Disk {
    fn of_mib(size: u32) -> Disk {
        let dir = TempDir::new().expect("a temporary directory");
        run(Command::new("mount").args(["-t", "tmpfs", "-o", &format!("size={size}m"), "tmpfs"]).arg(dir.path()));
        Disk(dir)
    }

    fn path(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Somebody else takes what is left.
    fn fill(&self) {
        let mut file = File::create(self.path("filler")).expect("a file");
        while file.write_all(&[1; 4096]).is_ok() {}
    }

    fn make_room(&self) {
        std::fs::remove_file(self.path("filler")).expect("the filler goes");
    }
}

impl Drop for Disk {
    fn drop(&mut self) {
        let _ = Command::new("umount").arg("-l").arg(self.0.path()).output();
    }
}

// ---------------------------------------------------------------------------------------------------------------------
// Stores

/// Together more than the caches of the mount hold.
const FILES: u32 = 32;
/// 1 MiB and a bit: some blocks of 256 KiB.
const FILE_CELLS: usize = (1 << 20) / CELL + 37;
const READERS: u64 = 16;
const STORMY: Duration = Duration::from_secs(20);
const GET_TIMEOUT: &str = "2s";
/// One request: three tries of two seconds and waits of 0 and 1 s between them, a bit more for a loaded machine. A read
/// of a part falls back to the whole block, and looks up to five times again when bytes do not fit.
const ANSWER_MAX: Duration = Duration::from_secs(100);
/// Longer than the time-out of a request.
const LATE: Duration = Duration::from_millis(2600);

/// All troubles at once, for readers and for writers: what is read is right or an error, and what was acknowledged is
/// there afterwards.
#[test]
fn a_store_in_trouble_never_yields_wrong_bytes() {
    if !ready(&["weed"]) {
        return;
    }
    let seed = std::env::var("SLUICE_FAULT_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("SLUICE_FAULT_SEED={seed}");
    let proxy = HttpProxy::to(Weed::shared().s3_port, seed);
    let mut volume = Volume::unformatted(Engine::Sqlite);
    volume.s3_port = Some(proxy.port);
    volume.run_format(SLUICE, Store::S3, &["--block-size", "256", "--trash-days", "0"]);
    let first = volume.mount(&[]);
    for file in 0..FILES {
        write_file(&first.path(format!("file-{file}")), file, FILE_CELLS).expect("the store is well");
    }
    first.umount();

    let options = ["--cache-size", "4", "--buffer-size", "32", "--get-timeout", GET_TIMEOUT, "--put-timeout", "2s"];
    let mount = volume.mount(&[&options[..], &["--io-retries", "2"]].concat());
    let half = Duration::from_millis(400);
    proxy.set(
        &[
            Trouble::Stall,
            Trouble::Reset,
            Trouble::ResetAfter,
            Trouble::Short,
            Trouble::Cut,
            Trouble::Trickle,
            Trouble::Status(500),
            Trouble::Status(503),
            Trouble::Late(LATE),
            Trouble::Late(half),
        ],
        0.3,
    );
    let (right, refused, calm) = (AtomicU64::new(0), AtomicU64::new(0), AtomicBool::new(false));
    let acknowledged = parking_lot::Mutex::new(Vec::new());
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let (mount, right, refused, calm) = (&mount, &right, &refused, &calm);
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(seed ^ reader);
                while !calm.load(Ordering::Relaxed) {
                    let begun = Instant::now();
                    match read_some(mount, &mut random) {
                        Ok(()) => right.fetch_add(1, Ordering::Relaxed),
                        Err(error) => {
                            assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}");
                            refused.fetch_add(1, Ordering::Relaxed)
                        }
                    };
                    assert!(begun.elapsed() < ANSWER_MAX, "a read took {:?}", begun.elapsed());
                }
            });
        }
        for writer in 0..3u32 {
            let (mount, acknowledged, calm) = (&mount, &acknowledged, &calm);
            scope.spawn(move || {
                for number in 0.. {
                    if calm.load(Ordering::Relaxed) {
                        return;
                    }
                    let (file, begun) = (1000 + writer * 1000 + number, Instant::now());
                    match write_file(&mount.path(format!("new-{file}")), file, FILE_CELLS / 3) {
                        Ok(()) => acknowledged.lock().push(file),
                        Err(error) => assert_eq!(error.raw_os_error(), Some(libc::EIO), "{error}"),
                    }
                    assert!(begun.elapsed() < ANSWER_MAX, "a write took {:?}", begun.elapsed());
                }
            });
        }
        std::thread::sleep(STORMY);
        calm.store(true, Ordering::Relaxed);
    });
    let acknowledged = acknowledged.into_inner();
    let numbers = (right.into_inner(), refused.into_inner(), acknowledged.len(), proxy.spoilt());
    println!("{numbers:?}: right reads, errors, acknowledged writes, troubles");
    assert!(numbers.0 > 0 && numbers.2 > 0 && numbers.3 > 20, "{numbers:?}");

    // Nothing works at all for a while: every read ends, and the log does not repeat itself.
    proxy.set(&[Trouble::Reset, Trouble::Status(503)], 1.0);
    std::thread::scope(|scope| {
        for reader in 0..READERS {
            let mount = &mount;
            scope.spawn(move || {
                let mut random = StdRng::seed_from_u64(reader);
                let begun = Instant::now();
                while begun.elapsed() < Duration::from_secs(3) {
                    let _right_or_refused = read_some(mount, &mut random);
                }
            });
        }
    });
    proxy.set(&[], 0.0);
    let mut random = StdRng::seed_from_u64(seed);
    until_it_works(Duration::from_secs(30), "reading", || read_some(&mount, &mut random));
    std::thread::sleep(Duration::from_secs(6));
    for file in 0..FILES {
        check_file(&mount.path(format!("file-{file}")), file, FILE_CELLS);
    }
    told_once(&mount, "will be tried again", "the store works again");
    mount.umount();
    let again = volume.mount(&[]);
    for file in acknowledged {
        check_file(&again.path(format!("new-{file}")), file, FILE_CELLS / 3);
    }
    again.umount();
}

/// A read somewhere in one of the files, past the page cache.
fn read_some(mount: &Mount, random: &mut StdRng) -> io::Result<()> {
    let file = random.random_range(0..FILES);
    let open = File::open(mount.path(format!("file-{file}")))?;
    drop_pages(&open);
    let first = random.random_range(0..FILE_CELLS);
    let longest = if random.random_bool(0.2) { FILE_CELLS } else { 600 };
    let count = random.random_range(1..=longest).min(FILE_CELLS - first);
    let mut bytes = vec![0xEE; count * CELL];
    open.read_exact_at(&mut bytes, (first * CELL) as u64)?;
    let found = versions(file, first, &bytes).unwrap_or_else(|why| panic!("wrong bytes: {why}"));
    assert!(found.iter().all(|version| *version == 1), "zeros that nobody wrote in file {file}");
    Ok(())
}

fn drop_pages(file: &File) {
    use std::os::fd::AsRawFd;
    // SAFETY: a call on an open descriptor with plain numbers.
    unsafe { libc::posix_fadvise(file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
}

/// The disk under a directory store is full.
#[test]
fn a_full_store_refuses_writes_and_recovers() {
    if !ready(&[]) {
        return;
    }
    let disk = Disk::of_mib(24);
    let mut volume = Volume::unformatted(Engine::Sqlite);
    volume.objects = Some(disk.path("objects"));
    volume.run_format(SLUICE, Store::File, &["--trash-days", "0", "--block-size", "256"]);
    let mount = volume.mount(&[]);
    const COUNT: usize = (1 << 20) / CELL;
    let mut kept = Vec::new();
    let error = loop {
        let file = kept.len() as u32 + 1;
        let begun = Instant::now();
        match write_file(&mount.path(format!("f{file}")), file, COUNT) {
            Ok(()) => kept.push(file),
            Err(error) => {
                assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
                break error;
            }
        }
        assert!(kept.len() < 40, "the disk never fills");
    };
    assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    for n in 0..10 {
        let error = write_file(&mount.path(format!("more{n}")), 999, COUNT).expect_err("the disk is full");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
    }
    for file in &kept {
        check_file(&mount.path(format!("f{file}")), *file, COUNT);
    }
    // Removing works and makes room.
    let gone = kept.split_off(kept.len() / 2);
    for file in &gone {
        std::fs::remove_file(mount.path(format!("f{file}"))).expect("a file is removed");
    }
    until_it_works(Duration::from_secs(60), "writing", || write_file(&mount.path("again"), 500, COUNT));
    std::thread::sleep(Duration::from_secs(6));
    write_file(&mount.path("later"), 501, COUNT).expect("there is room");
    told_once(&mount, "the store refuses requests", "the store works again");
    mount.umount();
    let again = volume.mount(&[]);
    for file in &kept {
        check_file(&again.path(format!("f{file}")), *file, COUNT);
    }
    check_file(&again.path("again"), 500, COUNT);
    check_file(&again.path("later"), 501, COUNT);
    again.umount();
}

/// The disk of the cache is full: nobody but the cache notices, and it is used again when there is room.
#[test]
fn a_full_cache_disk_is_no_fault_of_the_volume() {
    if !ready(&[]) {
        return;
    }
    let volume = Volume::format(Engine::Sqlite, Store::File, &["--trash-days", "0", "--block-size", "256"]);
    let disk = Disk::of_mib(16);
    let cache = disk.path("cache");
    let mount = volume.mount(&["--cache-dir", cache.to_str().expect("text"), "--cache-large-write"]);
    let cached = || {
        let blocks = sh(disk.0.path(), "find cache -path '*/raw/*' -type f | wc -l");
        blocks.trim().parse::<usize>().expect("a number")
    };
    const COUNT: usize = (1 << 20) / CELL;
    write_file(&mount.path("before"), 1, COUNT).expect("written");
    until_it_works(Duration::from_secs(20), "caching", || {
        if cached() > 0 { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    disk.fill();
    for file in 2..12 {
        write_file(&mount.path(format!("f{file}")), file, COUNT).expect("the volume is not full");
        check_file(&mount.path(format!("f{file}")), file, COUNT);
    }
    check_file(&mount.path("before"), 1, COUNT);
    std::thread::sleep(Duration::from_secs(1));
    disk.make_room();
    std::thread::sleep(Duration::from_secs(6));
    for file in 12..16 {
        write_file(&mount.path(format!("f{file}")), file, COUNT).expect("written");
    }
    until_it_works(Duration::from_secs(20), "caching", || {
        if cached() > 0 { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    until_it_works(Duration::from_secs(20), "telling", || {
        write_file(&mount.path("last"), 99, COUNT)?;
        if count(&mount, "has room again") > 0 { Ok(()) } else { Err(io::ErrorKind::NotFound.into()) }
    });
    told_once(&mount, "the disk of the cache is full", "has room again");
    mount.umount();
}

/// The disk under the SQLite database is full.
#[test]
fn a_full_disk_of_sqlite_refuses_writes_and_recovers() {
    if !ready(&[]) {
        return;
    }
    let disk = Disk::of_mib(24);
    let mut volume = Volume::unformatted(Engine::Sqlite);
    volume.meta_url = format!("sqlite3://{}", disk.path("meta.db").display());
    volume.run_format(SLUICE, Store::File, &["--trash-days", "0"]);
    let mount = volume.mount(&[]);
    sh(&mount.point, "mkdir d && for i in $(seq 100); do echo $i > d/$i; done && sync -f d/1");
    disk.fill();
    // What is left in the pages of the database and its log is used up.
    let mut refused = 0;
    for n in 0..3000 {
        let begun = Instant::now();
        if let Err(error) = write_file(&mount.path(format!("d/new-{n}-{}", "x".repeat(150))), 7, 1) {
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
            refused += 1;
            if refused == 5 {
                break;
            }
        }
    }
    assert_eq!(refused, 5, "the disk never fills");
    assert_eq!(sh(&mount.point, "cat d/1 d/100"), "1\n100\n");
    disk.make_room();
    until_it_works(Duration::from_secs(20), "writing", || write_file(&mount.path("after"), 8, 10));
    sh(&mount.point, "rm -r d");
    check_file(&mount.path("after"), 8, 10);
    assert!(loud(&mount).len() <= LINES_MAX, "{}", loud(&mount).join("\n"));
    mount.umount();
}

// ---------------------------------------------------------------------------------------------------------------------
// Redis

fn redis(redis: &Redis, words: &[&str]) -> String {
    run(Command::new("redis-cli").args(["-p", &redis.port.to_string()]).args(words))
}

/// `maxmemory` without eviction.
#[test]
fn a_full_redis_refuses_what_takes_memory_and_nothing_else() {
    if !ready(&["redis-server", "redis-cli"]) {
        return;
    }
    for trash_days in ["0", "1"] {
        let volume = Volume::format(Engine::Redis, Store::File, &["--trash-days", trash_days]);
        let server = volume.redis.as_ref().expect("a server");
        let mount = volume.mount(&["--heartbeat", "1"]);
        sh(
            &mount.point,
            "mkdir -p d/e/f g && for i in $(seq 20); do echo $i > d/$i; done && ln d/1 d/e/hard && sync d/1",
        );
        let held = OpenOptions::new().read(true).append(true).open(mount.path("d/20")).expect("it opens");
        redis(server, &["config", "set", "maxmemory", "1"]);
        for n in 0..30 {
            let begun = Instant::now();
            let error = write_file(&mount.path(format!("new{n}")), 1, 10).expect_err("no memory is left");
            assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
            assert!(begun.elapsed() < Duration::from_secs(20), "{:?}", begun.elapsed());
        }
        let error = std::fs::create_dir(mount.path("dir")).expect_err("no memory is left");
        assert_eq!(error.raw_os_error(), Some(libc::ENOSPC), "{error}");
        assert_eq!(sh(&mount.point, "cat d/3 d/e/hard && ls d | wc -l"), "3\n1\n21\n");
        // Another file's write reaches the store, and is refused by fsync.
        (&held).write_all(b"lost?\n").expect("taken into memory");
        assert_eq!(held.sync_all().expect_err("no memory is left").raw_os_error(), Some(libc::ENOSPC));
        drop(held);
        sh(&mount.point, "rm d/2 d/e/hard && rmdir d/e/f && mv d/4 d/5 && rm -r d/e && test ! -e d/2");
        // Longer than a session lives without heartbeats.
        std::thread::sleep(Duration::from_secs(7));
        let status = volume.sluice(&["status", &volume.meta_url]);
        assert_eq!(status.matches("\"Sid\"").count(), 1, "the mount is no member any more: {status}");
        redis(server, &["config", "set", "maxmemory", "0"]);
        until_it_works(Duration::from_secs(20), "writing", || write_file(&mount.path("after"), 2, 10));
        check_file(&mount.path("after"), 2, 10);
        assert_eq!(sh(&mount.point, "cat d/1 d/5 d/20"), "1\n4\n20\n");
        std::thread::sleep(Duration::from_secs(5));
        write_file(&mount.path("later"), 3, 10).expect("there is memory");
        told_once(&mount, "redis has no memory left", "redis takes changes again");
        assert_eq!(count(&mount, "took this one for dead"), 0, "{}", mount.log_text());
        mount.umount();
        if let Some(peer) = program("juicefs") {
            run(volume.command(peer).args(["fsck", &volume.meta_url]));
        }
    }
}

/// A wire that is cut for some seconds: whoever waits gets what they asked for; nothing is done twice.
fn short_outage(wire: Wire) {
    let (mut volume, proxy) = wired();
    let mount = volume.mount(&["--heartbeat", "1"]);
    let calm = AtomicBool::new(false);
    let done: Vec<u32> = std::thread::scope(|scope| {
        let writers: Vec<_> = (0..4u32)
            .map(|writer| {
                let (mount, calm) = (&mount, &calm);
                scope.spawn(move || {
                    let mut done = Vec::new();
                    for number in 0.. {
                        if calm.load(Ordering::Relaxed) {
                            break;
                        }
                        let file = writer << 16 | number;
                        let path = mount.path(format!("f{file}"));
                        write_file(&path, file, 20).unwrap_or_else(|error| panic!("{wire:?}: {error}"));
                        let renamed = mount.path(format!("r{file}"));
                        std::fs::rename(&path, &renamed).unwrap_or_else(|error| panic!("{wire:?}: rename: {error}"));
                        if number % 3 == 0 {
                            std::fs::remove_file(&renamed).unwrap_or_else(|error| panic!("{wire:?}: {error}"));
                        } else {
                            done.push(file);
                        }
                    }
                    done
                })
            })
            .collect();
        std::thread::sleep(Duration::from_secs(1));
        proxy.set(wire);
        std::thread::sleep(Duration::from_secs(3));
        proxy.set(Wire::Passes);
        std::thread::sleep(Duration::from_secs(4));
        calm.store(true, Ordering::Relaxed);
        writers.into_iter().flat_map(|writer| writer.join().expect("a writer")).collect()
    });
    for file in &done {
        check_file(&mount.path(format!("r{file}")), *file, 20);
    }
    assert_eq!(sh(&mount.point, "ls | wc -l").trim(), done.len().to_string(), "{wire:?}");
    let loud = loud(&mount);
    assert!(loud.len() <= LINES_MAX, "{wire:?}: {} lines:\n{}", loud.len(), loud.join("\n"));
    mount.umount();
    volume.meta_url = volume.direct_url();
    if let Some(peer) = program("juicefs") {
        run(volume.command(peer).args(["fsck", &volume.meta_url]));
    }
}

/// A volume on a Redis server behind a proxy.
fn wired() -> (Volume, TcpProxy) {
    let mut volume = Volume::format(Engine::Redis, Store::File, &["--trash-days", "0"]);
    let proxy = TcpProxy::to(volume.redis.as_ref().expect("a server").port);
    volume.meta_url = format!("redis://127.0.0.1:{}/1?read-timeout=2s", proxy.port);
    (volume, proxy)
}

/// A wire that stays cut: an error in bounded time, few lines, an unmount that does not hang, and recovery.
fn long_outage(wire: Wire) {
    let (volume, proxy) = wired();
    let (mount, other) = (volume.mount(&[]), volume.mount(&[]));
    for mount in [&mount, &other] {
        sh(&mount.point, "echo text > f && sync f");
    }
    proxy.set(wire);
    std::thread::scope(|scope| {
        for n in 0..8u32 {
            let mount = &mount;
            scope.spawn(move || {
                let begun = Instant::now();
                let error = write_file(&mount.path(format!("n{n}")), n, 10).expect_err("the engine is away");
                assert_eq!(error.raw_os_error(), Some(libc::EIO), "{wire:?}: {error}");
                assert!(begun.elapsed() < Duration::from_secs(90), "{wire:?}: {:?}", begun.elapsed());
            });
        }
        // Meanwhile the other mount is taken off, as at a shutdown of the machine.
        std::thread::sleep(Duration::from_secs(4));
        let begun = Instant::now();
        let ended = output(Command::new(SLUICE).arg("umount").arg(&other.point));
        let took = begun.elapsed();
        println!("{wire:?}: umount took {took:?}");
        assert!(ended.status.success(), "{}", String::from_utf8_lossy(&ended.stderr));
        assert!(took < Duration::from_secs(15), "{wire:?}: {took:?}");
        other.wait_for_exit();
    });
    proxy.set(Wire::Passes);
    until_it_works(Duration::from_secs(60), "writing", || write_file(&mount.path("after"), 9, 10));
    check_file(&mount.path("after"), 9, 10);
    assert_eq!(sh(&mount.point, "cat f"), "text\n");
    told_once(&mount, "redis cannot be reached", "redis can be reached again");
    mount.umount();
}

macro_rules! outages {
    ($($name:ident => $kind:ident($wire:expr);)*) => {
        $(#[test]
        fn $name() {
            if ready(&["redis-server"]) {
                $kind($wire);
            }
        })*
    };
}

outages! {
    a_redis_that_refuses_for_a_while_is_waited_for => short_outage(Wire::Refuses);
    a_redis_that_resets_for_a_while_is_waited_for => short_outage(Wire::Resets);
    a_redis_that_is_silent_for_a_while_is_waited_for => short_outage(Wire::Silent);
    a_redis_whose_answers_are_lost_for_a_while_is_waited_for => short_outage(Wire::Mute);
    a_redis_that_refuses_for_long_is_an_error => long_outage(Wire::Refuses);
    a_redis_that_is_silent_for_long_is_an_error => long_outage(Wire::Silent);
}

// ---------------------------------------------------------------------------------------------------------------------

/// `warmup` of the root of a mount, asked by the peer's program: afterwards the store is not needed.
#[test]
fn the_root_of_a_mount_is_warmed_up() {
    if !ready(&["juicefs"]) {
        return;
    }
    let volume = Volume::format(Engine::Sqlite, Store::File, &["--block-size", "256"]);
    let first = volume.mount(&[]);
    sh(&first.point, "mkdir -p a/b");
    for (file, name) in [(1, "top"), (2, "a/middle"), (3, "a/b/deep")] {
        write_file(&first.path(name), file, FILE_CELLS).expect("written");
    }
    first.umount();
    let mount = volume.mount(&[]);
    run(Command::new(program("juicefs").expect("looked for")).arg("warmup").arg(&mount.point));
    let objects = volume.dir.path().join("objects");
    std::fs::rename(&objects, volume.dir.path().join("away")).expect("the store goes");
    for (file, name) in [(1, "top"), (2, "a/middle"), (3, "a/b/deep")] {
        check_file(&mount.path(name), file, FILE_CELLS);
    }
    mount.umount();
}
