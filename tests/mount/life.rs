//! The life of a mount: what its options change, and how it ends.

use crate::harness::{Engine, Mount, SLUICE, Store, Volume, free_port, output, ready, run, sh};
use crate::several::engines;
use std::fs::OpenOptions;
use std::io::{Read, Write};
use std::net::TcpStream;
use std::os::unix::fs::FileExt;
use std::process::Command;
use std::time::Duration;

/// With its write-back cache on, the kernel reads by itself what it needs to complete a page, through whatever handle
/// there is: one that was opened for writing only too.
#[test]
fn the_write_back_cache_completes_pages_through_write_only_handles() {
    if !ready(&[]) {
        return;
    }
    let volume = Volume::format(Engine::Sqlite, Store::File, &[]);
    let original: Vec<u8> = (0..100_000u32).map(|i| (i % 251) as u8).collect();
    let first = volume.mount(&[]);
    std::fs::write(first.path("file"), &original).expect("a file is written");
    first.umount();

    let mount = volume.mount(&["-o", "writeback_cache"]);
    let mut expected = original;
    let file = OpenOptions::new().write(true).open(mount.path("file")).expect("it opens for writing only");
    for at in [1usize, 4095, 50_003, 99_990] {
        file.write_all_at(b"changed!", at as u64).expect("a few bytes inside a page");
        expected[at..at + 8].copy_from_slice(b"changed!");
    }
    file.sync_all().expect("fsync");
    drop(file);
    assert!(std::fs::read(mount.path("file")).expect("it is read") == expected, "the bytes differ in this mount");
    mount.umount();
    let again = volume.mount(&[]);
    assert!(std::fs::read(again.path("file")).expect("it is read") == expected, "the bytes differ after mounting anew");
    again.umount();
}

/// Nobody is left to say goodbye to, and the process ends all the same.
#[test]
fn a_mount_whose_engine_is_gone_ends_when_it_is_detached() {
    if !ready(&["redis-server"]) {
        return;
    }
    let mut volume = Volume::format(Engine::Redis, Store::File, &[]);
    let mount = volume.mount(&[]);
    sh(&mount.point, "mkdir d && echo text > d/f && sync d/f");
    volume.lose_engine();
    run(Command::new("umount").arg("-l").arg(&mount.point));
    mount.wait_for_exit();
}

/// Close-to-open between mounts, while the kernel still believes what it was told of the file before.
#[test]
fn a_file_is_opened_as_another_mount_left_it() {
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &[]);
        let (ours, theirs) = (volume.mount(&[]), volume.mount(&[]));
        for (round, len) in [1_000_000, 2_000_000, 2_000_000, 500, 0, 70_000, 70_001].into_iter().enumerate() {
            let bytes = vec![round as u8 + 1; len];
            std::fs::write(theirs.path("file"), &bytes).expect("the other mount writes");
            let mut file = std::fs::File::open(ours.path("file")).expect("it opens");
            let opened = file.metadata().expect("fstat").len();
            let mut read = Vec::new();
            file.read_to_end(&mut read).expect("it is read");
            assert_eq!((opened, read.len()), (len as u64, len), "{engine:?}, round {round}");
            assert!(read == bytes, "{engine:?}, round {round}: other bytes");
        }
        ours.umount();
        theirs.umount();
    }
}

#[test]
fn chattr_sets_what_lsattr_shows() {
    if !ready(&["chattr"]) {
        return;
    }
    let volume = Volume::format(Engine::Sqlite, Store::File, &[]);
    let mount = volume.mount(&["--enable-ioctl"]);
    sh(&mount.point, "echo one > f && chattr +i f && lsattr f | grep -q '^----i' && ! echo two > f && ! rm -f f");
    sh(&mount.point, "chattr -i f && chattr +a f && echo two >> f && ! echo three > f && chattr -a f && rm f");
    mount.umount();
}

/// The engine is away for some seconds: whoever writes waits, nothing fails, and the log tells of it in two lines.
#[test]
fn an_outage_of_the_engine_is_waited_for_and_logged() {
    if !ready(&["redis-server", "redis-cli"]) {
        return;
    }
    let mut volume = Volume::format(Engine::Redis, Store::File, &[]);
    let mount = volume.mount(&[]);
    let lines = |words: &str| mount.log_text().lines().filter(|line| line.contains(words)).count();
    sh(&mount.point, "echo before > f && sync f");
    std::thread::scope(|scope| {
        let away = scope.spawn(|| volume.interrupt_engine(Duration::from_secs(4)));
        std::thread::sleep(Duration::from_secs(1));
        sh(&mount.point, "echo during > g && sync g && cat f g > h && sync h");
        away.join().expect("the engine came back");
    });
    assert_eq!(sh(&mount.point, "cat h"), "before\nduring\n");
    assert_eq!(lines("redis cannot be reached"), 1, "{}", mount.log_text());
    assert_eq!(lines("redis can be reached again"), 1, "{}", mount.log_text());
}

fn scrape(address: &str) -> String {
    let mut stream = TcpStream::connect(address).expect("the metrics endpoint listens");
    stream.write_all(b"GET /metrics HTTP/1.1\r\nHost: h\r\n\r\n").expect("ask");
    let mut text = String::new();
    stream.read_to_string(&mut text).expect("an answer");
    text
}

#[test]
fn a_subdirectory_is_mounted_as_a_root() {
    for engine in engines() {
        let volume = Volume::format(engine, Store::File, &[]);
        let whole = volume.mount(&[]);
        sh(&whole.point, "mkdir -p a/b/c && echo text > a/b/f && ln -s f a/link");
        let address = format!("127.0.0.1:{}", free_port());
        let part = volume.mount(&["--subdir", "/a/b", "--metrics", &address]);
        let numbers = scrape(&address);
        assert!(numbers.contains("juicefs_subdir_info{") && numbers.contains("subdir=\"/a/b\"} 1"), "{numbers}");
        assert_eq!(
            sh(&part.point, "ls -A && stat -c %i . c/.. && cat f"),
            ".accesslog\n.config\n.stats\nc\nf\n1\n1\ntext\n"
        );
        assert!(!part.path(".trash").exists() && whole.path(".trash").exists());
        sh(&part.point, "mkdir d && mv f d/g && ln d/g h && echo more >> h && rm d/g && echo new > .trash");
        assert_eq!(sh(&whole.point, "cat a/b/h && ls -A a/b"), "text\nmore\n.trash\nc\nd\nh\n");
        let point = part.point.to_str().expect("text");
        let info = volume.sluice(&["info", point]);
        assert!(info.contains("dirs: 3") && info.contains("/a/b"), "{info}");
        volume.sluice(&["info", part.path("h").to_str().expect("text")]);
        for (wrong, why) in [("a/none", "no such directory"), ("a/link", "not a directory"), ("a/..", "no meaning")] {
            let mut command = volume.command(SLUICE);
            let output = output(command.args(["mount", "-d", "--subdir", wrong, &volume.meta_url]).arg("/tmp/none"));
            let text = String::from_utf8_lossy(&output.stderr).into_owned();
            assert!(!output.status.success() && text.contains(why), "{wrong}: {text}");
        }
    }
}

#[test]
fn access_times_move_as_the_mode_says() {
    let volume = Volume::format(Engine::Sqlite, Store::File, &[]);
    let relative = volume.mount(&["--atime-mode", "relatime", "--attr-cache", "0"]);
    let atime = |mount: &Mount, name: &str| sh(&mount.point, &format!("stat -c %.X {name}"));
    sh(&relative.point, "mkdir d && sleep 0.2 && echo text > d/f && ln -s f d/link && sleep 0.1");
    let read = "cat d/f && ls d && readlink d/link && sleep 0.3";
    let names = ["d/f", "d", "d/link"];
    let written = names.map(|name| atime(&relative, name));
    sh(&relative.point, read);
    let read_once = names.map(|name| atime(&relative, name));
    assert!(written[0] < read_once[0] && written[1] < read_once[1], "{written:?} {read_once:?}");
    // Made and never changed since: for a symlink nothing was due.
    assert_eq!(written[2], read_once[2]);
    sh(&relative.point, read);
    assert_eq!(read_once, names.map(|name| atime(&relative, name)), "once after a change is enough");
    let strict = volume.mount(&["--atime-mode", "strictatime", "--attr-cache", "0"]);
    sh(&strict.point, &format!("sleep 1.2 && {read}"));
    let read_again = names.map(|name| atime(&strict, name));
    assert!((0..3).all(|at| read_once[at] < read_again[at]), "{read_once:?} {read_again:?}");
    let never = volume.mount(&["--attr-cache", "0"]);
    sh(&never.point, &format!("echo more >> d/f && {read}"));
    assert_eq!(read_again[0], atime(&never, "d/f"));
}
