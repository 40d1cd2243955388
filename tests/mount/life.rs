//! The life of a mount: what its options change, and how it ends.

use crate::harness::{Engine, Store, Volume, ready, run, sh};
use std::fs::OpenOptions;
use std::io::Read;
use std::os::unix::fs::FileExt;
use std::process::Command;

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
    if !ready(&["redis-server"]) {
        return;
    }
    for engine in [Engine::Sqlite, Engine::Redis] {
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
