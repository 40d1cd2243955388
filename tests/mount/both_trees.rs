//! What our mount and the peer's show of one volume while both are mounted: the same tree, whoever made or changed it.

use crate::both::{end, in_turn, prepared, statistics_are_right_for_the_peer};
use crate::harness::{Engine, SLUICE, Store, Volume, run, sh};
use crate::peer::{describe, fill, peer};
use crate::several::eventually;
use std::fs;
use std::time::Duration;

on_every_engine! {
    each_works_in_the_directories_of_the_other: ["--enable-acl"];
}

fn each_works_in_the_directories_of_the_other(volume: &Volume) {
    /// Changes of what the other one has made, of every kind.
    const EDIT: &str = r#"
cd data
chmod 640 small && chown 77:88 block && setfattr -n user.colour -v blue small && setfattr -n user.more -v x deep
setfattr -x trusted.note deep && setfacl -m u:3000:r-- block && setfacl -x g:2000 block && setfacl -k deep/er
mv renamed deep/edited && ln block deep/er/again && rm deep/er/1? && mkdir deep/er/new && echo tail >> large
truncate -s 4000 sparse && ln -sfn elsewhere deep/symlink && mv -T deep/er/new deep/er/newer
touch -d '2020-02-02 02:02:02.123456789' small"#;
    // With the caches of every day: there is much to look at.
    let mounts = [SLUICE.into(), peer()].map(|program| volume.mount_with(program, &["--enable-xattr"]));
    let [ours, theirs] = &mounts;
    let same = || {
        // What a kernel knows of names and attributes lives for a second.
        std::thread::sleep(Duration::from_millis(1200));
        for dir in ["ours", "theirs"] {
            let (here, there) = (describe(&ours.path(dir)), describe(&theirs.path(dir)));
            assert!(here.lines().count() > 120, "the tree is not there:\n{here}");
            for (here, there) in here.lines().zip(there.lines()) {
                assert_eq!(here, there, "ours (above) and theirs (below) differ in {dir}");
            }
            assert_eq!(here, there);
            for list in ["find . | sort", "getfacl -Rp data | sort", "stat -c '%n %h %b %s' data/* data/deep/*"] {
                assert_eq!(sh(&ours.path(dir), list), sh(&theirs.path(dir), list), "{list}");
            }
        }
    };
    fs::create_dir(ours.path("ours")).expect("made");
    fs::create_dir(theirs.path("theirs")).expect("made");
    fill(&theirs.path("ours"));
    fill(&ours.path("theirs"));
    // Long holes are read elsewhere, and take longer than all the rest.
    sh(&ours.path("ours/data"), "truncate -s 70000 sparse");
    sh(&theirs.path("theirs/data"), "truncate -s 70000 sparse");
    same();
    sh(&ours.path("ours"), EDIT);
    sh(&theirs.path("theirs"), EDIT);
    same();
    for program in [SLUICE.into(), peer()] {
        let status = run(volume.command(program).args(["status", &volume.meta_url]));
        for (mount, _) in in_turn(&mounts) {
            assert!(status.contains(&format!("{:?}", mount.point)), "{status}");
        }
    }
    sh(&ours.point, "rm -rf ours");
    sh(&theirs.point, "rm -rf theirs");
    for mount in &mounts {
        eventually("both are gone", || sh(&mount.point, "ls").is_empty());
    }
    end(volume, &mounts);
    statistics_are_right_for_the_peer(volume);
}
