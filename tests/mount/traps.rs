//! What the peer stores that a careless reader would get wrong: the traps of `spec/metadata.md` section 11, each on a
//! volume that the peer itself made so, or that was made so with a program that is neither of the two.
//!
//! | trap | where it is tested |
//! | --- | --- |
//! | 1 tier and padding of attributes | `base/attr.rs`, `engine/redis/tests.rs`; `tiers_are_kept_and_shown` here |
//! | 2 counters, 3 slice counts | `engine/redis/tests.rs`, `engine/sql/sqlite/tests.rs`, `meta/reclaim/tests.rs`; all of `peer.rs` |
//! | 5 lists that became TEXT, 6 times, 24 indexes | `engine/sql/sqlite/tests.rs`, `engine/sql/records.rs` |
//! | 8, 23 trash | `meta/conformance.rs`, `both.rs` |
//! | 9 link parents | `meta/repair/tests.rs`; `counts_of_links_fall_to_zero_and_below` here |
//! | 10 holes, 20 chunks past the end | `meta/ops/truncate.rs`, `meta/reclaim/tests.rs`; `chunks_past_the_end` here |
//! | 11 compaction, 12 caches, 17 locks, 25 open files | `meta/ops/compact.rs`, `tools.rs` under load, `both.rs` |
//! | 13 times of directories, 16 quotas and statistics, 22 xattrs | `meta/conformance/directories.rs`, `meta/ops/xattr.rs`, `both.rs` |
//! | 14 the setting, 15 secrets | `config/volume.rs`, `config/seal.rs`, `meta/session/tests.rs`; `another_volume_ends_the_mounts` and `unknown_keys_outlive_a_config` here |
//! | 21 restored dumps | `meta/lease.rs`, `meta/damage_tests.rs`; `counts_of_a_restored_dump` here |
//! | 4, 7, 18, 19 | engines that are not served yet; a Redis cluster is refused |

use crate::harness::{Engine, Mount, SLUICE, Store, UNCACHED, Volume, output, ready, run, sh};
use crate::peer::peer;
use crate::several::eventually;
use crate::tools::damage;
use std::fs;
use std::os::unix::fs::MetadataExt;
use std::process::Command;

fn prepared(engine: Engine) -> bool {
    ready(&[&["juicefs", "python3"], engine.programs()].concat())
}

/// A volume of the peer's.
fn of_the_peer(engine: Engine, options: &[&str]) -> Volume {
    let volume = Volume::unformatted(engine);
    volume.run_format(peer(), Store::File, options);
    volume
}

/// A mount that shows at once what the other one has done.
fn mount(volume: &Volume, program: impl AsRef<std::path::Path>) -> Mount {
    volume.mount_with(program, &[&UNCACHED[..], &["--heartbeat", "1"]].concat())
}

fn redis(volume: &Volume, words: &[&str]) -> String {
    let port = volume.meta_url.rsplit([':', '/']).nth(1).expect("a port");
    run(Command::new("redis-cli").args(["-p", port, "-n", "1"]).args(words)).trim_end().to_owned()
}

/// Rows of a SQLite volume, as Python shows them.
fn rows(volume: &Volume, query: &str) -> String {
    let script = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute(sys.argv[2]).fetchall())";
    let database = volume.dir.path().join("meta.db");
    run(Command::new("python3").args(["-c", script]).arg(database).arg(query)).trim_end().to_owned()
}

#[track_caller]
fn fsck_of_both(volume: &Volume) {
    run(volume.command(SLUICE).args(["fsck", &volume.meta_url]));
    run(volume.command(peer()).args(["fsck", "--path", "/", "-r", &volume.meta_url]));
}

/// What `gc` of ours removes, and that nothing is left afterwards that either program finds.
#[track_caller]
fn collect(volume: &Volume) -> String {
    let delete = run(volume.command(SLUICE).args(["gc", "--delete", "--min-age", "0", "--json", &volume.meta_url]));
    let again = output(volume.command(SLUICE).args(["gc", "--min-age", "0", &volume.meta_url]));
    let theirs = output(volume.command(peer()).env("JFS_GC_SKIPPEDTIME", "0").args(["gc", &volume.meta_url]));
    for told in [again, theirs].map(|output| String::from_utf8_lossy(&output.stderr).into_owned()) {
        assert!(told.contains(" 0 leaked (0 bytes)") && told.contains(" 0 pending delete (0 bytes)"), "{told}");
    }
    delete
}

/// The format document as it is stored.
fn setting(volume: &Volume) -> serde_json::Value {
    let text = match volume.redis {
        Some(_) => redis(volume, &["get", "setting"]),
        None => {
            let script = "import sqlite3, sys; print(sqlite3.connect(sys.argv[1]).execute('select value from jfs_setting').fetchone()[0])";
            run(Command::new("python3").args(["-c", script]).arg(volume.dir.path().join("meta.db")))
        }
    };
    serde_json::from_str(&text).unwrap_or_else(|error| panic!("{error}: {text}"))
}

fn store_setting(volume: &Volume, setting: &serde_json::Value) {
    let text = setting.to_string();
    match volume.redis {
        Some(_) => assert_eq!(redis(volume, &["set", "setting", &text]), "OK"),
        None => damage(
            &volume.dir.path().join("meta.db"),
            &format!("update jfs_setting set value = '{text}' where name = 'format'"),
        ),
    }
}

/// Trap 9: the peer leaves the counts of directories that a link has left, and programs of the past left worse.
#[test]
fn counts_of_links_fall_to_zero_and_below() {
    if !prepared(Engine::Redis) {
        return;
    }
    let volume = of_the_peer(Engine::Redis, &["--trash-days", "0"]);
    let theirs = mount(&volume, peer());
    sh(
        &theirs.point,
        "mkdir a b c; echo text > a/f; ln a/f b/g; mv a/f c/f; mkdir keep; echo 1 > keep/one; ln keep/one keep/two",
    );
    let inode = |name: &str| fs::metadata(theirs.path(name)).expect("there").ino();
    let (file, left) = (inode("b/g"), inode("a"));
    let parents = format!("p{file}");
    assert_eq!(redis(&volume, &["hget", &parents, &left.to_string()]), "0", "the peer does not leave zeros any more");
    redis(&volume, &["hset", &parents, "999999", "-1"]);
    theirs.umount();
    fsck_of_both(&volume);

    let ours = mount(&volume, SLUICE);
    let shown = volume.sluice(&["info", ours.path("b/g").to_str().expect("text")]);
    assert!(shown.contains("/b/g") && shown.contains("/c/f") && !shown.contains("/a/f"), "{shown}");
    assert_eq!(fs::metadata(ours.path("b/g")).expect("there").nlink(), 2);
    // Back into the directory whose count is zero, written to, linked, and then removed name by name.
    sh(&ours.point, "mv c/f a/again; echo more >> a/again; ln b/g c/third; rm b/g; cat c/third");
    assert_eq!(redis(&volume, &["hget", &parents, &left.to_string()]), "1");
    fsck_of_both(&volume);
    sh(&ours.point, "rm a/again c/third; rmdir a b c");
    assert_eq!(redis(&volume, &["exists", &parents]), "0", "the record of a file that is gone");
    ours.umount();
    collect(&volume);
    fsck_of_both(&volume);
}

/// Traps 10 and 20: lists that reach past the end of the file, chunks beyond it, chunks that are not there; and on Redis
/// the peer forgets those past the end when it deletes such a file.
fn chunks_past_the_end(engine: Engine) {
    /// The worked example of `spec/metadata.md` 7.9, and one whose last chunk was written.
    const SHRINK: &str = r#"
import os, sys
for name in sys.argv[1:]:
    with open(name, "wb") as f:
        f.write(b"a" * 9000); f.flush(); os.fsync(f.fileno())
        f.seek(200 << 20); f.write(b"far" * 1000); f.flush(); os.fsync(f.fileno())
        f.truncate(209715205); f.truncate(4000)
"#;
    if !prepared(engine) {
        return;
    }
    let volume = of_the_peer(engine, &["--trash-days", "0"]);
    let theirs = mount(&volume, peer());
    run(Command::new("python3").args(["-c", SHRINK, "grown", "gone", "left"]).current_dir(&theirs.point));
    let ours = mount(&volume, SLUICE);
    run(Command::new("python3").args(["-c", SHRINK, "ours"]).current_dir(&ours.point));
    // Grown again by a write far behind and by a truncate: what was there once does not come back.
    let grown = r#"
import os
with open("grown", "r+b") as f:
    f.truncate(201 << 20); f.seek(150 << 20); f.write(b"end"); f.flush(); os.fsync(f.fileno())
def look(path):
    with open(path, "rb") as f:
        assert f.read(4000) == b"a" * 4000 and not any(f.read(1 << 20)), path
        for at in (64 << 20, 100 << 20, (150 << 20) + 3, (200 << 20) - 1, 200 << 20):
            f.seek(at); assert not any(f.read(1 << 20)), (path, at)
        f.seek(150 << 20); assert f.read(3) == b"end"
look("grown")
"#;
    run(Command::new("python3").args(["-c", grown]).current_dir(&ours.point));
    run(Command::new("python3")
        .args([
            "-c",
            &grown.replace("r+b", "rb").replace(
                "f.truncate(201 << 20); f.seek(150 << 20); f.write(b\"end\"); f.flush(); os.fsync(f.fileno())",
                "pass",
            ),
        ])
        .current_dir(&theirs.point));
    fsck_of_both(&volume);

    let lists = |inode: u64| match engine {
        Engine::Redis => redis(&volume, &["--raw", "keys", &format!("c{inode}_*")]).lines().count(),
        Engine::Sqlite => {
            rows(&volume, &format!("select indx from jfs_chunk where inode = {inode}")).matches('(').count()
        }
        other => unreachable!("no test asks for it on {other:?}"),
    };
    let inode = |mount: &Mount, name: &str| fs::metadata(mount.path(name)).expect("there").ino();
    let (left, gone, own) = (inode(&theirs, "left"), inode(&ours, "gone"), inode(&ours, "ours"));
    assert_eq!((lists(left), lists(gone), lists(own)), (2, 2, 2));
    // Whoever made it, what ours deletes is gone with all of it.
    sh(&ours.point, "rm gone ours");
    eventually("the lists go with their file", || lists(gone) + lists(own) == 0);
    sh(&theirs.point, "rm left");
    let leaked = usize::from(engine == Engine::Redis);
    eventually("the peer removes what it finds", || lists(left) == leaked);
    theirs.umount();
    ours.umount();
    let report: serde_json::Value = serde_json::from_str(&collect(&volume)).expect("a report");
    assert_eq!(report["LeakedChunks"], leaked, "{report}");
    assert_eq!(lists(left), 0);
    fsck_of_both(&volume);
}

#[test]
fn chunks_past_the_end_on_redis() {
    chunks_past_the_end(Engine::Redis);
}

#[test]
fn chunks_past_the_end_on_sqlite() {
    chunks_past_the_end(Engine::Sqlite);
}

/// Trap 14: a client that finds another volume where its own was writes no more into it.
fn another_volume_ends_the_mounts(engine: Engine) {
    if !prepared(engine) {
        return;
    }
    let volume = of_the_peer(engine, &[]);
    for gone in [false, true] {
        let (ours, theirs) = (mount(&volume, SLUICE), mount(&volume, peer()));
        sh(&ours.point, "echo 1 > f");
        let before = setting(&volume);
        match (gone, engine) {
            (false, _) => {
                let mut other = before.clone();
                other["UUID"] = "11111111-2222-4333-8444-555555555555".into();
                store_setting(&volume, &other);
            }
            (true, Engine::Redis) => drop(redis(&volume, &["del", "setting"])),
            (true, Engine::Sqlite) => damage(&volume.dir.path().join("meta.db"), "delete from jfs_setting"),
            (true, other) => unreachable!("no test asks for it on {other:?}"),
        }
        ours.wait_for_exit();
        theirs.wait_for_exit();
        match (gone, engine) {
            (true, Engine::Sqlite) => damage(
                &volume.dir.path().join("meta.db"),
                &format!("insert into jfs_setting (name, value) values ('format', '{before}')"),
            ),
            _ => store_setting(&volume, &before),
        }
    }
    let ours = mount(&volume, SLUICE);
    assert_eq!(sh(&ours.point, "cat f"), "1\n");
    ours.umount();
}

#[test]
fn another_volume_ends_the_mounts_on_redis() {
    another_volume_ends_the_mounts(Engine::Redis);
}

#[test]
fn another_volume_ends_the_mounts_on_sqlite() {
    another_volume_ends_the_mounts(Engine::Sqlite);
}

/// Trap 14: what a newer client has put into the setting is still there after ours has changed it.
#[test]
fn unknown_keys_outlive_a_config() {
    for engine in [Engine::Redis, Engine::Sqlite] {
        if !prepared(engine) {
            return;
        }
        let volume = of_the_peer(engine, &["--trash-days", "1"]);
        let mut newer = setting(&volume);
        newer["FromTheFuture"] = serde_json::json!({"a": [1, null, "x"]});
        newer["Tiers"]["0"]["Rehydrate"] = 7.into();
        store_setting(&volume, &newer);
        let ours = mount(&volume, SLUICE);
        sh(&ours.point, "echo 1 > f");
        volume.sluice(&["config", "--yes", "--trash-days", "3", &volume.meta_url]);
        ours.umount();
        newer["TrashDays"] = 3.into();
        assert_eq!(setting(&volume), newer, "{engine:?}");
        let theirs = mount(&volume, peer());
        assert_eq!(sh(&theirs.point, "cat f"), "1\n");
        theirs.umount();
    }
}

/// Trap 21: the peer's loader counts holes as slice 0, and on SQL writes their number over the count of every slice.
fn counts_of_a_restored_dump(engine: Engine) {
    if !prepared(engine) {
        return;
    }
    let original = of_the_peer(Engine::Sqlite, &["--trash-days", "0"]);
    let theirs = mount(&original, peer());
    let script = r#"
import os, random
random.seed(5)
for name in ("one", "two", "shared", "holes"):
    open(name, "wb").write(random.randbytes(50_000))
a, b = os.open("shared", os.O_RDONLY), os.open("copy", os.O_CREAT | os.O_WRONLY)
assert os.copy_file_range(a, b, 50_000) == 50_000
os.truncate("holes", 200_000); os.truncate("holes", 300_000); os.truncate("holes", 100_000); os.truncate("one", 60_000)
"#;
    run(Command::new("python3").args(["-c", script]).current_dir(&theirs.point));
    let sums = sh(&theirs.point, "sha256sum *");
    theirs.umount();
    let dump = original.dir.path().join("dump.json");
    run(original.command(peer()).args(["dump", "--keep-secret-key", &original.meta_url]).arg(&dump));
    let restored = Volume::unformatted(engine);
    run(restored.command(peer()).args(["load", &restored.meta_url]).arg(&dump));
    if engine == Engine::Sqlite {
        let counts = rows(&restored, "select distinct refs from jfs_chunk_ref");
        assert!(!counts.contains("(1,)"), "the peer's loader counts right now: {counts}");
    } else {
        assert_ne!(redis(&restored, &["hget", "sliceRef", "k0_0"]), "", "the peer's loader counts right now");
    }
    let ours = mount(&restored, SLUICE);
    assert_eq!(sh(&ours.point, "sha256sum *"), sums);
    ours.umount();
    let found = output(restored.command(SLUICE).args(["fsck", &restored.meta_url]));
    let told = String::from_utf8_lossy(&found.stderr);
    assert_eq!(found.status.success(), engine == Engine::Redis, "{told}");
    assert!(!told.contains("slice 0 "), "holes are no slice: {told}");
    run(restored.command(SLUICE).args(["fsck", "--repair", &restored.meta_url]));
    fsck_of_both(&restored);
    // What is removed now frees its objects, and nothing that is still used.
    let ours = mount(&restored, SLUICE);
    sh(&ours.point, "rm one shared holes");
    let objects = || sh(original.dir.path(), "find objects -type f -path '*/chunks/*'").lines().count();
    eventually("the objects of what was removed go", || objects() == 2);
    assert_eq!(
        sh(&ours.point, "sha256sum *"),
        sums.lines()
            .filter(|sum| sum.ends_with("copy") || sum.ends_with("two"))
            .map(|sum| format!("{sum}\n"))
            .collect::<String>()
    );
    sh(&ours.point, "rm *");
    eventually("all objects go", || objects() == 0);
    ours.umount();
    collect(&restored);
    fsck_of_both(&restored);
}

#[test]
fn counts_of_a_restored_dump_on_redis() {
    counts_of_a_restored_dump(Engine::Redis);
}

#[test]
fn counts_of_a_restored_dump_on_sqlite() {
    counts_of_a_restored_dump(Engine::Sqlite);
}

/// Trap 1 and `spec/data.md` section 7, as far as records go: a tier that the peer has set is kept through every change
/// of the attributes, is inherited, and is shown as the peer shows it.
fn tiers_are_kept_and_shown(engine: Engine) {
    if !prepared(engine) {
        return;
    }
    let volume = of_the_peer(engine, &["--enable-acl"]);
    let config =
        |options: &[&str]| run(volume.command(peer()).args(["config", "--yes", &volume.meta_url]).args(options));
    config(&["--tier", "2", "--storage-class", "COLD", "--tag", "kind=old"]);
    config(&["--tier", "3", "--tag", "only=tag"]);
    let (ours, theirs) = (mount(&volume, SLUICE), mount(&volume, peer()));
    sh(
        &theirs.point,
        "mkdir -p cold/below lukewarm; head -c 5000 /dev/urandom > cold/file; echo 1 > plain; echo 2 > lukewarm/f",
    );
    let set = |tier: &str, path: &str| {
        run(volume.command(peer()).args(["tier", "set", "--tier", tier, "-r", &volume.meta_url, path]));
    };
    set("2", "/cold");
    set("3", "/lukewarm");
    sh(
        &ours.point,
        "chmod 600 cold/file; chown 5:6 cold/file; echo more >> cold/file; truncate -s 3000 cold/file; touch cold/file
         mv cold/file cold/moved; ln cold/moved cold/linked; setfacl -m u:7:r cold/moved; mv plain cold/plain
         echo new > cold/below/new; mkdir cold/dir; echo x > cold/dir/x; ln -s x cold/dir/link; mv cold/dir/x lukewarm/x",
    );
    let tier = |mount: &Mount, name: &str, path: &str| {
        let program = if mount.point == ours.point { SLUICE.into() } else { peer() };
        let shown = run(volume.command(program).arg("info").arg(mount.path(path)));
        let line = shown.lines().find(|line| line.contains("tier:")).unwrap_or_else(|| panic!("{name}: {shown}"));
        line.trim().to_owned()
    };
    for (path, number) in [
        ("cold", 2),
        ("cold/below", 2),
        ("cold/below/new", 2),
        ("cold/moved", 2),
        ("cold/linked", 2),
        ("cold/plain", 0),
        ("cold/dir", 2),
        ("lukewarm", 3),
        ("lukewarm/f", 3),
        ("lukewarm/x", 2),
    ] {
        let (here, there) = (tier(&ours, "ours", path), tier(&theirs, "theirs", path));
        assert!(there.starts_with(&format!("tier: {number}->")), "{path}: {there}");
        assert_eq!(here, there, "{path}, ours (left) and theirs (right)");
    }
    assert!(tier(&ours, "ours", "cold").contains("COLD tag: kind=old"));
    ours.umount();
    theirs.umount();
    fsck_of_both(&volume);
}

#[test]
fn tiers_are_kept_and_shown_on_redis() {
    tiers_are_kept_and_shown(Engine::Redis);
}

#[test]
fn tiers_are_kept_and_shown_on_sqlite() {
    tiers_are_kept_and_shown(Engine::Sqlite);
}

/// Keys that older and other programs have left on Redis: nobody stumbles over them, and they are left alone.
#[test]
fn keys_of_others_are_left_alone() {
    if !prepared(Engine::Redis) {
        return;
    }
    let volume = of_the_peer(Engine::Redis, &["--trash-days", "0"]);
    let theirs = mount(&volume, peer());
    sh(&theirs.point, "echo kept > f; ln f g");
    theirs.umount();
    for words in [
        &["set", "lastChangelog", "17"][..],
        &["set", "nextCleanupChangelog", "1"],
        &["zadd", "sessions", "1600000000", "99"],
        &["hset", "krbToken", "1", "token"],
        &["rpush", "unrelated", "x"],
    ] {
        redis(&volume, words);
    }
    fsck_of_both(&volume);
    let ours = mount(&volume, SLUICE);
    assert_eq!(sh(&ours.point, "cat f g; rm g; cat f"), "kept\nkept\nkept\n");
    ours.umount();
    collect(&volume);
    assert_eq!(redis(&volume, &["get", "lastChangelog"]), "17");
    assert_eq!(redis(&volume, &["hget", "krbToken", "1"]), "token");
    assert_eq!(redis(&volume, &["llen", "unrelated"]), "1");
}
