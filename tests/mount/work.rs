//! Real work on a mount: what people do with a file system, on both engines and both stores.

use crate::exerciser::exercise;
use crate::harness::{Mount, Store, Volume, run, sh};
use std::path::Path;
use std::process::Command;

/// Minutes of work in an unoptimised build, since every few of them lead to a request to the store. `exercise` tells
/// how to run more.
const RANDOM_OPERATIONS_FILE: usize = 90_000;
const RANDOM_OPERATIONS_S3: usize = 10_000;

on_all_volumes! {
    trees needs ["git", "rsync", "tar"] => super::copy_trees;
    /// fio checks each block that it wrote.
    fio needs ["fio"] => super::fio_verifies;
    databases needs ["python3"] => super::database_and_mappings;
    random_operations needs [] => super::random_operations;
    /// The compiler and the linker write through mappings, rename, lock and set times.
    cargo needs ["cargo"] => super::cargo_build;
}

/// The state of a volume at the end of its test: unmounted without a warning in its log, and clean when mounted anew.
fn finish(volume: &Volume, mount: Mount) {
    mount.umount();
    let log = mount.log_text();
    // A request that a busy store refused once is tried again and loses nothing.
    let harmless = |line: &str| line.contains("will be tried again");
    let loud = |line: &&str| (line.contains("<ERROR>") || line.contains("<WARNING>")) && !harmless(line);
    let loud: Vec<&str> = log.lines().filter(loud).collect();
    assert!(loud.is_empty(), "the log has unexpected lines:\n{}", loud.join("\n"));
    volume.sluice(&["status", &volume.meta_url]);
}

fn repository() -> &'static Path {
    Path::new(env!("CARGO_MANIFEST_DIR"))
}

fn copy_trees(volume: &Volume) {
    let mount = volume.mount(&[]);
    let here = &mount.point;
    // The files that git tracks, so that build results stay out.
    sh(repository(), &format!("git ls-files -z | tar --null -T - -cf - | tar -xf - -C {}", mkdir(here, "tracked")));
    sh(here, "cp -a tracked copied && diff -r tracked copied");
    sh(
        here,
        "tar -cf tree.tar tracked && mkdir untarred && tar -xf tree.tar -C untarred && diff -r tracked untarred/tracked",
    );
    sh(
        here,
        "rsync -a --checksum tracked/ synced/ && diff -r tracked synced && rsync -a --delete copied/src/ synced/ && diff -r copied/src synced",
    );
    sh(
        here,
        &format!(
            "git clone -q --no-hardlinks {} cloned && git -C cloned fsck --strict && git -C cloned status --porcelain | wc -l | grep -qx 0",
            repository().display()
        ),
    );
    sh(
        here,
        "cd cloned && git checkout -q -b work && echo change >> README.md && git -c user.name=t -c user.email=t@t commit -qam change && git gc -q && git fsck",
    );
    // Not from `.`: the virtual files of the root are regular ones, and the access log never ends.
    let sums = "find * -path cloned/.git -prune -o -type f -print0 | sort -z | xargs -0 sha256sum | sha256sum";
    let before = sh(here, sums);
    mount.umount();
    let again = volume.mount(&[]);
    let after = sh(&again.point, sums);
    assert_eq!(before, after, "the tree reads differently after mounting again");
    sh(
        &again.point,
        "rm -rf tracked copied untarred synced cloned tree.tar && test -z \"$(find . -mindepth 1 -maxdepth 1 -not -name '.*')\"",
    );
    finish(volume, again);
}

fn mkdir(point: &Path, name: &str) -> String {
    let dir = point.join(name);
    std::fs::create_dir(&dir).expect("a directory");
    dir.display().to_string()
}

fn fio_verifies(volume: &Volume) {
    let mount = volume.mount(&[]);
    for (name, options) in [
        ("seq", "--rw=write --bs=1M --size=128M --numjobs=2"),
        ("rand", "--rw=randwrite --bs=4k-64k --size=24M --numjobs=4"),
        ("mixed", "--rw=randrw --bs=8k --size=12M --numjobs=2"),
        ("mmap", "--ioengine=mmap --rw=randwrite --bs=16k --size=24M"),
        ("direct", "--direct=1 --rw=randwrite --bs=32k --size=24M"),
    ] {
        let line = format!(
            "fio --name={name} {options} --verify=crc32c --do_verify=1 --verify_fatal=1 --end_fsync=1 --invalidate=1 --output-format=terse"
        );
        sh(&mount.point, &line);
    }
    finish(volume, mount);
}

fn database_and_mappings(volume: &Volume) {
    let mount = volume.mount(&[]);
    let script = r#"
import mmap, os, sqlite3, threading
def load(mode):
    def work(n):
        db = sqlite3.connect(f"{mode}.db", timeout=120)
        for i in range(15):
            with db:
                db.execute("insert into t values (?, ?)", (n * 1000 + i, os.urandom(300)))
                db.execute("update total set n = n + 1")
        db.close()
    db = sqlite3.connect(f"{mode}.db")
    assert db.execute(f"pragma journal_mode={mode}").fetchone()[0] == mode
    db.execute("create table t (id integer primary key, b blob)"); db.execute("create table total (n)")
    db.execute("insert into total values (0)"); db.commit()
    threads = [threading.Thread(target=work, args=(n,)) for n in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    assert db.execute("select n from total").fetchone() == (60,)
    assert db.execute("select count(*) from t").fetchone() == (60,)
    assert db.execute("pragma integrity_check").fetchone() == ("ok",)
    db.close()
load("delete"); load("truncate")
size = 8 << 20
with open("mapped", "w+b") as f:
    f.truncate(size)
    writers = mmap.mmap(f.fileno(), size)
    def fill(n):
        for at in range(n * 4096, size, 4 * 4096):
            writers[at:at + 4096] = bytes([at // 4096 % 251]) * 4096
    threads = [threading.Thread(target=fill, args=(n,)) for n in range(4)]
    for t in threads: t.start()
    for t in threads: t.join()
    writers.flush()
with open("mapped", "rb") as f:
    os.posix_fadvise(f.fileno(), 0, 0, os.POSIX_FADV_DONTNEED)
    readers = mmap.mmap(f.fileno(), size, prot=mmap.PROT_READ)
    for at in range(0, size, 4096):
        assert readers[at:at + 4096] == bytes([at // 4096 % 251]) * 4096, at
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point));
    finish(volume, mount);
}

fn random_operations(volume: &Volume) {
    let mount = volume.mount(&[]);
    let operations = if volume.store == Store::File { RANDOM_OPERATIONS_FILE } else { RANDOM_OPERATIONS_S3 };
    exercise(&mount.point, operations);
    finish(volume, mount);
}

fn cargo_build(volume: &Volume) {
    let mount = volume.mount(&[]);
    let dir = mount.path("small");
    std::fs::create_dir_all(dir.join("src")).expect("directories");
    std::fs::write(
        dir.join("Cargo.toml"),
        "[package]\nname = \"small\"\nversion = \"0.1.0\"\nedition = \"2021\"\n[workspace]\n",
    )
    .expect("a manifest");
    std::fs::write(dir.join("src/main.rs"), "mod sum;\nfn main() { println!(\"{}\", sum::of(&[1, 2, 39])); }\n")
        .expect("a source");
    std::fs::write(dir.join("src/sum.rs"), "pub fn of(n: &[u32]) -> u32 { n.iter().sum() }\n").expect("a source");
    let mut build = Command::new("cargo");
    build.args(["build", "--offline", "-q"]).current_dir(&dir).env("CARGO_TARGET_DIR", dir.join("target"));
    run(&mut build);
    assert_eq!(run(&mut Command::new(dir.join("target/debug/small"))).trim(), "42");
    std::fs::write(dir.join("src/sum.rs"), "pub fn of(n: &[u32]) -> u32 { n.iter().product() }\n").expect("a source");
    run(&mut build);
    assert_eq!(run(&mut Command::new(dir.join("target/debug/small"))).trim(), "78");
    finish(volume, mount);
}
