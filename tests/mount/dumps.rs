//! Volumes that move between engines by way of dumps, ours and the peer's (JuiceFS 1.4.2): every pair of a program that
//! dumps and one that loads, in both forms. And the backups that mounts make by themselves.

use crate::harness::{Engine, SLUICE, Store, Volume, output, ready, run, sh};
use crate::peer::peer;
use std::fs;
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

fn prepared() -> bool {
    ready(&["juicefs", "redis-server", "setfattr", "setfacl"])
}

const FILL: &str = r#"
mkdir -p a/b/c empty 'sp ace'
head -c 300000 /dev/urandom > a/f1
ln a/f1 a/b/hl; ln a/f1 hl2
ln -s 'target "\é' sl
touch "$(printf 'bad\xff"\\%%41\x01<>&')"
mkfifo fifo
for i in 1 2 3 4 5 6 7; do echo line $i >> lines; done
truncate -s 150M sparse; printf end | dd of=sparse bs=1 seek=100000000 conv=notrunc 2>/dev/null
setfattr -n user.x -v '0sAAH/IiU0MQ==' a/f1; setfattr -n user.y -v plain a
setfacl -m u:1000:rw a/f1; setfacl -d -m u:1001:rx a/b
cp a/f1 gone; rm gone; mkdir -p d1/d2; touch d1/d2/x; rm -rf d1
touch -d @1000000000.123456789 lines
"#;

/// Everything that can be seen of a tree.
fn seen(point: &Path) -> String {
    let line = r#"find . -not -path './.*' -printf '%P %y %m %n %s %T@ %l\n' | LC_ALL=C sort
        find . -type f -not -path './.*' -print0 | LC_ALL=C sort -z | xargs -0 md5sum
        getfattr -R -h -d -m user -e hex . | LC_ALL=C sort; getfacl -R -n . | LC_ALL=C sort"#;
    sh(point, line)
}

/// Our JSON dump of a volume from its tree on: what is the same whoever has loaded it.
fn tree(volume: &Volume) -> String {
    let text = run(volume.command(SLUICE).args(["dump", "-q", &volume.meta_url]));
    let from = text.find("\"FSTree\"").expect("a tree");
    text[from..].to_owned()
}

fn without_xattrs(tree: &str) -> String {
    tree.lines().filter(|line| !line.trim_start().starts_with("\"xattrs\"")).collect::<Vec<_>>().join("\n")
}

/// The volume is whole. Into SQL engines the peer loads JSON dumps with references of slices that are not there, if a
/// hole is in one of the files.
fn check(volume: &Volume, miscounted: bool) {
    if miscounted {
        output(volume.command(SLUICE).args(["fsck", "--repair", &volume.meta_url]));
    }
    run(volume.command(SLUICE).args(["fsck", &volume.meta_url]));
}

fn moves_from(from: Engine, to: Engine) {
    if !prepared() {
        return;
    }
    let volume = Volume::format(from, Store::File, &["--enable-acl", "--trash-days", "1"]);
    let options = ["--enable-xattr", "--backup-meta", "0"];
    let mount = volume.mount(&options);
    sh(&mount.point, FILL);
    let before = seen(&mount.point);
    mount.umount();
    let golden = tree(&volume);
    let programs = [PathBuf::from(SLUICE), peer()];
    for (dumper, loader) in programs.iter().flat_map(|dumper| programs.iter().map(move |loader| (dumper, loader))) {
        for (file, binary) in [("v.json", false), ("v.json.gz", false), ("v.bin", true)] {
            let case = format!("{} -> {} {file}", dumper.display(), loader.display());
            let target = Volume::unformatted(to);
            let file = target.dir.path().join(file);
            let form: &[&str] = if binary { &["--binary"] } else { &[] };
            run(volume.command(dumper).args(["dump", "--keep-secret-key"]).args(form).arg(&volume.meta_url).arg(&file));
            run(target.command(loader).arg("load").args(form).arg(&target.meta_url).arg(&file));
            check(&target, loader == &peer() && !binary && to == Engine::Sqlite);
            // Into SQL engines the peer loads extended attributes of binary dumps sometimes.
            let loses_xattrs = loader == &peer() && binary && to == Engine::Sqlite;
            let (loaded, golden) = match loses_xattrs {
                true => (without_xattrs(&tree(&target)), without_xattrs(&golden)),
                false => (tree(&target), golden.clone()),
            };
            assert!(loaded.trim_end() == golden.trim_end(), "{case}:\n{golden}\n{loaded}");
            if !loses_xattrs {
                let mount = target.mount(&options);
                assert_eq!(seen(&mount.point), before, "{case}");
                mount.umount();
            }
        }
    }
}

#[test]
fn volumes_move_from_redis_to_sqlite() {
    moves_from(Engine::Redis, Engine::Sqlite);
}

#[test]
fn volumes_move_from_sqlite_to_redis() {
    moves_from(Engine::Sqlite, Engine::Redis);
}

#[test]
fn mounts_make_backups_that_both_programs_load() {
    if !prepared() {
        return;
    }
    let volume = Volume::format(Engine::Redis, Store::File, &["--enable-acl", "--trash-days", "1"]);
    let volume = volume.with_env("SKIP_BACKUP_META_CHECK", "true");
    let folder = volume.dir.path().join("objects").join(&volume.name).join("meta");
    let backups = || {
        let all = fs::read_dir(&folder).into_iter().flatten().map(|entry| entry.expect("an entry").path());
        let mut all: Vec<PathBuf> = all.filter(|path| path.extension().is_some_and(|end| end == "gz")).collect();
        all.sort();
        all
    };
    // One that backs up nothing, one that must not, and two that share the work.
    let quiet = [&["--backup-meta", "0"], &["--read-only", "--backup-meta", "10s"][..], &["--no-bgjob"]];
    let mount = volume.mount(quiet[0]);
    sh(&mount.point, FILL);
    let _others: Vec<_> = quiet[1..].iter().map(|options| volume.mount(options)).collect();
    std::thread::sleep(Duration::from_secs(3));
    assert_eq!(backups(), Vec::<PathBuf>::new());
    let two = [volume.mount(&["--backup-meta", "10s"]), volume.mount(&["--backup-meta", "10s"])];
    let began = Instant::now();
    while backups().len() < 2 {
        assert!(began.elapsed() < Duration::from_secs(90), "there are only {:?}", backups());
        std::thread::sleep(Duration::from_millis(200));
    }
    let stats = |mount: &crate::harness::Mount| fs::read_to_string(mount.path(".stats")).expect("statistics");
    assert!(two.iter().any(|mount| stats(mount).lines().any(|line| {
        line.strip_prefix("juicefs_last_successful_backup ")
            .is_some_and(|time| time.parse::<f64>().is_ok_and(|t| t > 1e9))
    })));
    assert!(!stats(&mount).contains("last_successful_backup"));
    mount.umount();
    two.iter().for_each(|mount| mount.umount());
    let names: Vec<String> =
        backups().iter().map(|path| path.file_name().expect("a name").to_string_lossy().into_owned()).collect();
    let mut times: Vec<u32> = names.iter().map(|name| name[16..22].parse().expect("a time of day")).collect();
    times.dedup();
    assert_eq!(times.len(), names.len(), "each turn is taken once: {names:?}");

    let last = backups().pop().expect("a backup");
    let golden = tree(&volume);
    for program in [PathBuf::from(SLUICE), peer()] {
        let target = Volume::unformatted(Engine::Sqlite);
        run(target.command(&program).args(["load", &target.meta_url]).arg(&last));
        run(target.command(SLUICE).args(["config", &target.meta_url, "--secret-key", "what it was"]));
        check(&target, program == peer());
        // The time of the last backup is part of the volume.
        let (loaded, golden) = (without_xattrs(&tree(&target)), without_xattrs(&golden));
        assert!(loaded == golden, "{golden}\n{loaded}");
    }
}
