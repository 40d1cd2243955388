//! The repair tools on volumes that real mounts filled: `fsck` and `gc` say exactly what is wrong and mend it, and the
//! peer's own tools agree before and after; `restore`, `rmr` and `compact` do what they say.

use crate::harness::{Engine, SLUICE, Store, Volume, output, program, ready, run, sh};
use std::path::{Path, PathBuf};
use std::process::{Command, Output};

fn prepared(engine: Engine) -> bool {
    ready(&[&["juicefs", "python3"], engine.programs()].concat())
}

fn peer(volume: &Volume, args: &[&str]) -> Output {
    let peer = program("juicefs").expect("the peer is installed");
    output(volume.command(peer).args(args).arg(&volume.meta_url))
}

fn sluice(volume: &Volume, args: &[&str]) -> Output {
    output(volume.command(SLUICE).args(args).arg(&volume.meta_url))
}

fn told(output: &Output) -> String {
    String::from_utf8_lossy(&output.stderr).into_owned()
}

/// The value of a number in a report, as `"Name": 5` or as the count of `"Name": {"Count": 5`.
#[track_caller]
fn number(output: &Output, name: &str) -> u64 {
    let text = String::from_utf8_lossy(&output.stdout);
    let at = text.find(&format!("\"{name}\":")).unwrap_or_else(|| panic!("no {name}: {text}{}", told(output)));
    let rest = text[at + name.len() + 3..].trim_start();
    let rest = rest.strip_prefix('{').map_or(rest, |inner| inner.trim_start().trim_start_matches("\"Count\":"));
    let digits: String = rest.trim_start().chars().take_while(char::is_ascii_digit).collect();
    digits.parse().unwrap_or_else(|_| panic!("{name}: {text}"))
}

#[track_caller]
fn ends(output: &Output, code: i32) {
    assert_eq!(output.status.code(), Some(code), "{}{}", String::from_utf8_lossy(&output.stdout), told(output));
}

/// The objects of the volume.
fn chunks(volume: &Volume) -> PathBuf {
    volume.dir.path().join("objects").join(&volume.name).join("chunks")
}

fn object(volume: &Volume, ending: &str) -> PathBuf {
    let found = sh(&chunks(volume), &format!("find . -type f -name '*{ending}'"));
    assert_eq!(found.lines().count(), 1, "{ending}: {found}");
    chunks(volume).join(found.trim())
}

fn age(volume: &Volume) {
    sh(&chunks(volume), "find . -type f -exec touch -d '3 hours ago' {} +");
}

fn losses_and_leaks(engine: Engine) {
    if !prepared(engine) {
        return;
    }
    let volume = Volume::format(engine, Store::File, &["--trash-days", "1"]);
    let mount = volume.mount(&[]);
    let script = r#"
import os, random
random.seed(3)
os.mkdir("d")
open("d/big", "wb").write(random.randbytes(9_000_000))
open("d/small", "wb").write(b"small")
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point));
    let sum = sh(&mount.point, "head -c 4194304 d/big | sha256sum");
    mount.umount();

    let checked = sluice(&volume, &["fsck", "--json"]);
    ends(&checked, 0);
    assert_eq!((number(&checked, "Blocks"), number(&checked, "Slices")), (4, 2));
    ends(&peer(&volume, &["fsck"]), 0);
    let young = sluice(&volume, &["gc", "--json"]);
    assert_eq!((number(&young, "Scanned"), number(&young, "Skipped")), (4, 4), "nothing is old enough");

    // One block is gone, one is cut short, one is of nobody.
    let gone = object(&volume, "_1_4194304");
    std::fs::remove_file(&gone).expect("the second block");
    let short = object(&volume, "_2_611392");
    std::fs::write(&short, b"short").expect("the third block");
    std::fs::create_dir_all(chunks(&volume).join("0/4")).expect("a directory");
    std::fs::write(chunks(&volume).join("0/4/4000_0_5"), b"extra").expect("one more object");
    age(&volume);

    let broken = sluice(&volume, &["fsck", "--json"]);
    ends(&broken, 1);
    assert_eq!(number(&broken, "LostBlocks"), 2, "{}", told(&broken));
    assert!(told(&broken).contains(": /d/big"), "{}", told(&broken));
    assert!(!told(&broken).contains("small"), "{}", told(&broken));
    let theirs = peer(&volume, &["fsck"]);
    ends(&theirs, 1);
    assert!(told(&theirs).contains("/d/big"), "{}", told(&theirs));
    ends(&sluice(&volume, &["fsck", "--path", "/d/small"]), 0);
    ends(&sluice(&volume, &["fsck", "--path", "/d/big"]), 1);
    ends(&sluice(&volume, &["fsck", "--path", "/d", "-r"]), 1);
    ends(&sluice(&volume, &["fsck", "--path", "/nothing"]), 1);

    let leaks = sluice(&volume, &["gc", "--json"]);
    ends(&leaks, 0);
    assert_eq!((number(&leaks, "Leaked"), number(&leaks, "DeletedObjects")), (1, 0));
    assert!(told(&leaks).contains("1 leaked (5 bytes)"), "{}", told(&leaks));
    let theirs = peer(&volume, &["gc"]);
    assert!(told(&theirs).contains("1 leaked (5 bytes)"), "{}", told(&theirs));
    let cleaned = sluice(&volume, &["gc", "--delete", "--json"]);
    assert_eq!(number(&cleaned, "DeletedObjects"), 1, "{}", told(&cleaned));
    assert!(!chunks(&volume).join("0/4/4000_0_5").exists());
    let theirs = peer(&volume, &["gc"]);
    assert!(told(&theirs).contains(" 0 leaked (0 bytes)"), "{}", told(&theirs));

    ends(&sluice(&volume, &["fsck", "--lost-blocks", "zero"]), 0);
    ends(&sluice(&volume, &["fsck"]), 0);
    ends(&peer(&volume, &["fsck"]), 0);
    let cleaned = sluice(&volume, &["gc", "--delete", "--json"]);
    assert_eq!(number(&cleaned, "RemovedSlices"), 1, "the slice with holes: {}", told(&cleaned));
    let mount = volume.mount(&[]);
    assert_eq!(sh(&mount.point, "head -c 4194304 d/big | sha256sum"), sum);
    let script = r#"
data = open("d/big", "rb").read()
assert len(data) == 9_000_000 and not any(data[4194304:]) and open("d/small").read() == "small"
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point));
    mount.umount();
    ends(&sluice(&volume, &["fsck"]), 0);
    ends(&peer(&volume, &["fsck", "--path", "/", "-r"]), 0);
}

#[test]
fn losses_and_leaks_on_sqlite() {
    losses_and_leaks(Engine::Sqlite);
}

#[test]
fn losses_and_leaks_on_redis() {
    losses_and_leaks(Engine::Redis);
}

/// A volume that the peer filled, in which the record of a slice is gone: both programs call its objects leaked, with a
/// count of the slice and without, and ours removes both.
fn forgotten_slices(engine: Engine, store: Store) {
    if !prepared(engine) {
        return;
    }
    let juicefs = program("juicefs").expect("the peer is installed");
    let volume = Volume::unformatted(engine);
    volume.run_format(&juicefs, store, &["--trash-days", "0"]);
    let mount = volume.mount_with(&juicefs, &["--no-usage-report"]);
    sh(
        &mount.point,
        "head -c 5000000 /dev/urandom > kept; head -c 5000000 /dev/urandom > lost; head -c 7 kept > small; sync -f .",
    );
    let inode = sh(&mount.point, "stat -c %i lost");
    mount.umount();
    ends(&sluice(&volume, &["fsck"]), 0);
    let found = |name: &str| number(&sluice(&volume, &["gc", "--min-age", "0", "--json"]), name);
    assert_eq!((found("Valid"), found("Leaked")), (5, 0));
    match engine {
        Engine::Sqlite => {
            damage(&volume.dir.path().join("meta.db"), &format!("delete from jfs_chunk where inode = {}", inode.trim()))
        }
        Engine::Redis => {
            let forget = |script: &str| {
                let port = volume.meta_url.rsplit([':', '/']).nth(1).expect("a port");
                run(Command::new("redis-cli")
                    .args(["-p", port, "-n", "1", "eval", script, "1"])
                    .arg(format!("c{}_0", inode.trim())))
            };
            // A slice that was shared once has a count of its own: the field is kept at zero, which is one reference.
            forget(
                r#"local id, size = struct.unpack(">I8I4", redis.call("lindex", KEYS[1], 0), 5)
                   redis.call("hset", "sliceRef", "k" .. id .. "_" .. size, "0"); return redis.call("del", KEYS[1])"#,
            );
        }
        other => unreachable!("no test asks for it on {other:?}"),
    }
    assert_eq!((found("Valid"), found("Leaked"), found("LeakedSlices")), (3, 2, 1));
    let theirs = output(volume.command(&juicefs).env("JFS_GC_SKIPPEDTIME", "0").args(["gc", &volume.meta_url]));
    assert!(told(&theirs).contains(" 2 leaked (5000000 bytes)"), "{}", told(&theirs));
    ends(&sluice(&volume, &["gc", "--delete"]), 0);
    assert_eq!(found("Leaked"), 2, "they are too young");
    let cleaned = sluice(&volume, &["gc", "--delete", "--min-age", "0", "--json"]);
    assert_eq!(number(&cleaned, "RemovedLeakedSlices"), 1, "{}", told(&cleaned));
    assert_eq!((found("Valid"), found("Leaked"), found("LeakedSlices")), (3, 0, 0));
    let theirs = output(volume.command(&juicefs).env("JFS_GC_SKIPPEDTIME", "0").args(["gc", &volume.meta_url]));
    assert!(told(&theirs).contains("scanned 3 objects, 3 valid"), "{}", told(&theirs));
    assert!(told(&theirs).contains(" 0 leaked (0 bytes)"), "{}", told(&theirs));
    ends(&sluice(&volume, &["fsck"]), 0);
    ends(&peer(&volume, &["fsck"]), 0);
}

#[test]
fn forgotten_slices_on_sqlite() {
    forgotten_slices(Engine::Sqlite, Store::File);
}

#[test]
fn forgotten_slices_on_redis() {
    forgotten_slices(Engine::Redis, Store::File);
}

#[test]
fn forgotten_slices_in_s3() {
    if ready(&["weed"]) {
        forgotten_slices(Engine::Sqlite, Store::S3);
    }
}

fn removed_restored_compacted(engine: Engine) {
    if !prepared(engine) {
        return;
    }
    let volume = Volume::format(engine, Store::File, &["--trash-days", "1"]);
    let mount = volume.mount(&[]);
    sh(
        &mount.point,
        "mkdir -p t/u/v; for i in $(seq 30); do echo $i > t/u/$i; done; echo deep > t/u/v/deep; echo top > t/top",
    );
    let before = sh(&mount.point, "find t -type f | sort | xargs sha256sum");
    let on = |args: &[&str]| output(volume.command(SLUICE).args(args).current_dir(&mount.point));
    ends(&on(&["rmr", "t"]), 0);
    assert!(!mount.path("t").exists());
    let missing = on(&["rmr", "t"]);
    ends(&missing, 1);
    assert!(told(&missing).contains("RMR \"t\": no such file or directory"), "{}", told(&missing));

    let hours = sh(&mount.point, "ls .trash");
    let restore = |options: &[&str]| {
        let mut command = volume.command(SLUICE);
        output(command.arg("restore").args(options).arg(&volume.meta_url).args(hours.split_whitespace()))
    };
    ends(&restore(&[]), 0);
    // Kernel caches of names live for a second.
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(sh(&mount.point, "ls .trash/*").lines().filter(|line| line.ends_with("-t")).count(), 1);
    assert!(!mount.path("t").exists());
    ends(&restore(&["--put-back"]), 0);
    std::thread::sleep(std::time::Duration::from_millis(1500));
    assert_eq!(sh(&mount.point, "find t -type f | sort | xargs sha256sum"), before);

    ends(&on(&["rmr", "--skip-trash", "t"]), 0);
    assert!(!mount.path("t").exists());
    assert_eq!(sh(&mount.point, "find .trash -name '*-t' | wc -l").trim(), "0");

    let script = r#"
import os
with open("pieces", "wb") as f:
    for i in range(4):
        f.write(bytes([i + 1]) * 1000); f.flush(); os.fsync(f.fileno())
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point));
    ends(&on(&["compact", "pieces"]), 0);
    let shown = on(&["info", "--raw", "pieces"]);
    let records = String::from_utf8_lossy(&shown.stdout).lines().filter(|line| line.starts_with("|   ")).count();
    assert_eq!(records, 1, "{}", String::from_utf8_lossy(&shown.stdout));
    let content = std::fs::read(mount.path("pieces")).expect("readable");
    assert_eq!(content, (0..4000).map(|i| (i / 1000 + 1) as u8).collect::<Vec<_>>());
    mount.umount();
    ends(&sluice(&volume, &["fsck"]), 0);
    ends(&peer(&volume, &["fsck"]), 0);
    ends(&peer(&volume, &["fsck", "--path", "/", "-r"]), 0);
}

#[test]
fn removed_restored_compacted_on_sqlite() {
    removed_restored_compacted(Engine::Sqlite);
}

#[test]
fn removed_restored_compacted_on_redis() {
    removed_restored_compacted(Engine::Redis);
}

/// Damage of the records, put in with a program that is not ours.
#[test]
fn broken_metadata_is_repaired_and_the_peer_agrees() {
    if !prepared(Engine::Sqlite) {
        return;
    }
    let volume = Volume::format(Engine::Sqlite, Store::File, &[]);
    let mount = volume.mount(&[]);
    sh(&mount.point, "mkdir -p d/e; echo a > d/a; echo b > d/e/b; ln d/a d/e/second");
    mount.umount();
    let database = volume.dir.path().join("meta.db");
    damage(
        &database,
        "update jfs_node set nlink = 9 where inode = (select inode from jfs_edge where name = cast('d' as blob));
         delete from jfs_node where inode = (select inode from jfs_edge where name = cast('e' as blob));
         update jfs_dir_stats set used_inodes = 77 where inode = 1;
         update jfs_chunk_ref set refs = 5",
    );
    let broken = sluice(&volume, &["fsck", "--json"]);
    ends(&broken, 1);
    let text = String::from_utf8_lossy(&broken.stdout);
    for kind in ["DanglingDentry", "WrongLinks", "WrongReferences", "WrongDirStat"] {
        assert!(text.contains(kind), "{kind}: {text}");
    }
    ends(&peer(&volume, &["fsck", "--path", "/", "-r"]), 1);
    let repaired = sluice(&volume, &["fsck", "--repair"]);
    ends(&repaired, 0);
    assert!(told(&repaired).contains("repaired: "), "{}", told(&repaired));
    let clean = sluice(&volume, &["fsck", "--json"]);
    ends(&clean, 0);
    assert!(!told(&clean).contains("statistics"), "{}", told(&clean));
    ends(&peer(&volume, &["fsck", "--path", "/", "-r"]), 0);
    let mount = volume.mount(&[]);
    assert_eq!(sh(&mount.point, "cat d/a d/e/b d/e/second"), "a\nb\na\n");
    mount.umount();
}

pub fn damage(database: &Path, statements: &str) {
    let script = "import sqlite3, sys; db = sqlite3.connect(sys.argv[1]); db.executescript(sys.argv[2]); db.commit()";
    run(Command::new("python3").args(["-c", script]).arg(database).arg(statements));
}

/// Writes, overwrites, moves, shares and removes files for a while, and knows what each must contain. Everything is
/// synced at once, so that no object waits long for its record. What is there at the end is told in a file.
const WRITER: &str = r#"
import errno, hashlib, json, os, random, sys, time
where, seconds, told = sys.argv[1], float(sys.argv[2]), sys.argv[3]
rng = random.Random(where)
dirs = [where + "/a", where + "/b"]
for d in dirs: os.makedirs(d)
content, count = {}, 0
def write(path, at, data, flags=os.O_RDWR | os.O_CREAT):
    fd = os.open(path, flags, 0o644)
    assert os.pwrite(fd, data, at) == len(data)
    os.fsync(fd); os.close(fd)
def new():
    global count
    count += 1
    return f"{rng.choice(dirs)}/{count}"
def check(path):
    assert open(path, "rb").read() == content[path], path
for _ in range(10):
    path = new(); content[path] = rng.randbytes(rng.randrange(1, 300_000)); write(path, 0, content[path])
# What is old by the end: its bytes go from file to file all the time.
nomad = new(); content[nomad] = rng.randbytes(200_000); write(nomad, 0, content[nomad])
end = time.time() + seconds
while time.time() < end:
    path, what = rng.choice([p for p in content if p != nomad]), rng.randrange(9)
    if what == 0:
        path = new(); content[path] = rng.randbytes(rng.randrange(1, 300_000)); write(path, 0, content[path])
    elif what == 1 and len(content) > 8:
        os.unlink(path); del content[path]
    elif what in (2, 3):
        data, at = rng.randbytes(rng.randrange(1, 5_000)), rng.randrange(len(content[path]))
        write(path, at, data)
        old = content[path]; content[path] = old[:at] + data + old[at + len(data):]
    elif what == 4:
        to = new(); os.rename(path, to); content[to] = content.pop(path)
    elif what == 5:
        size = rng.randrange(len(content[path])) + 1
        os.truncate(path, size); content[path] = content[path][:size]
    elif what == 6:
        os.mkdir(path + ".d"); os.symlink("x", path + ".d/l"); os.link(path, path + ".d/h")
        os.unlink(path + ".d/l"); os.unlink(path + ".d/h"); os.rmdir(path + ".d")
    elif what == 7:
        to = new(); size = len(content[nomad])
        a, b = os.open(nomad, os.O_RDONLY), os.open(to, os.O_WRONLY | os.O_CREAT, 0o644)
        done = 0
        while done < size: done += os.copy_file_range(a, b, size - done, done, done)
        os.fsync(b); os.close(a); os.close(b)
        os.unlink(nomad); content[to] = content.pop(nomad); nomad = to
    else:
        check(path)
for path in content: check(path)
json.dump({p: hashlib.sha256(d).hexdigest() for p, d in content.items()}, open(told, "w"))
print(count)
"#;

const CHECKER: &str = r#"
import hashlib, json, os, sys
for told in sys.argv[1:]:
    content = json.load(open(told))
    for path, digest in content.items():
        assert hashlib.sha256(open(path, "rb").read()).hexdigest() == digest, path
    for top in {path.split("/")[0] for path in content}:
        found = {f"{d}/{f}" for d, _, files in os.walk(top) for f in files}
        assert found == {path for path in content if path.startswith(top + "/")}, found
"#;

/// `gc` and `fsck` run all the time while a mount of ours and one of the peer write, compact and delete: nothing that
/// lives is removed, nothing that is whole is called broken, and what is leaked goes.
fn under_load(engine: Engine, trash_days: &str) {
    const SECONDS: u64 = 20;
    if !prepared(engine) {
        return;
    }
    let volume = Volume::format(engine, Store::File, &["--trash-days", trash_days, "--block-size", "64K"]);
    let mounts = [
        volume.mount(&[]),
        volume.mount_with(program("juicefs").expect("the peer is installed"), &["--no-usage-report"]),
    ];
    let told_in = |who: usize| volume.dir.path().join(format!("writer{who}.json"));
    let mut writers: Vec<_> = (0..mounts.len())
        .map(|who| {
            let seconds = SECONDS.to_string();
            Command::new("python3")
                .args(["-c", WRITER, &format!("w{who}"), &seconds])
                .arg(told_in(who))
                .current_dir(&mounts[who].point)
                .stdout(std::process::Stdio::piped())
                .stderr(std::process::Stdio::piped())
                .spawn()
                .expect("a writer starts")
        })
        .collect();
    let leak = |n: u32| {
        let leaked = chunks(&volume).join(format!("0/0/{}_0_5", 990 - n));
        std::fs::create_dir_all(leaked.parent().expect("a directory")).expect("a directory");
        std::fs::write(&leaked, b"extra").expect("an object of nobody");
        sh(leaked.parent().expect("a directory"), &format!("touch -d '3 hours ago' {}_0_5", 990 - n));
    };
    let (mut rounds, mut removed) = (0, 0);
    // The ids of leaks are used by nobody: both clients take theirs in steps that are not used up here.
    while writers.iter_mut().any(|writer| writer.try_wait().expect("its status").is_none()) {
        if rounds > 0 {
            leak(rounds);
        }
        let cleaned = sluice(&volume, &["gc", "--delete", "--compact", "--min-age", "6s", "--json"]);
        ends(&cleaned, 0);
        assert_eq!(number(&cleaned, "LeakedSlices"), 0, "{}", told(&cleaned));
        assert_eq!(number(&cleaned, "LeakedChunks"), 0, "{}", told(&cleaned));
        removed += number(&cleaned, "DeletedObjects");
        ends(&sluice(&volume, &["fsck"]), 0);
        ends(&sluice(&volume, &["fsck", "--path", "/", "-r"]), 0);
        rounds += 1;
    }
    for (who, writer) in writers.into_iter().enumerate() {
        let output = writer.wait_with_output().expect("a writer ends");
        ends(&output, 0);
        eprintln!("writer {who} made {} files", String::from_utf8_lossy(&output.stdout).trim());
    }
    assert!(rounds > 2 && removed >= u64::from(rounds) - 1, "{removed} objects were removed in {rounds} rounds");
    mounts.iter().for_each(|mount| mount.umount());
    ends(&sluice(&volume, &["fsck"]), 0);
    ends(&peer(&volume, &["fsck"]), 0);
    // What the clients had no time to remove, and what their compactions left.
    ends(&sluice(&volume, &["gc", "--delete", "--min-age", "0"]), 0);
    let clean = sluice(&volume, &["gc", "--min-age", "0", "--json"]);
    for what in ["Leaked", "LeakedSlices", "LeakedChunks", "PendingDelete"] {
        assert_eq!(number(&clean, what), 0, "{what}: {}", told(&clean));
    }
    let theirs = output(
        volume
            .command(program("juicefs").expect("the peer"))
            .env("JFS_GC_SKIPPEDTIME", "0")
            .args(["gc", &volume.meta_url]),
    );
    assert!(told(&theirs).contains(" 0 leaked (0 bytes)"), "{}", told(&theirs));
    let fresh = volume.mount(&[]);
    run(Command::new("python3").args(["-c", CHECKER]).arg(told_in(0)).arg(told_in(1)).current_dir(&fresh.point));
    fresh.umount();
}

#[test]
fn gc_and_fsck_under_load_on_sqlite() {
    under_load(Engine::Sqlite, "0");
}

#[test]
fn gc_and_fsck_under_load_on_redis() {
    under_load(Engine::Redis, "0");
}

#[test]
fn gc_and_fsck_under_load_with_a_trash() {
    under_load(Engine::Redis, "1");
}
