//! The life of a mount: what its options change, and how it ends.

use crate::harness::{Engine, Store, Volume, ready, run, sh};
use std::fs::OpenOptions;
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
