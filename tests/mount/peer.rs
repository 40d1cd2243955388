//! Volumes cross between SluiceFS and the peer (JuiceFS 1.4.2) in both directions: equal bytes, attributes, extended
//! attributes, ACLs and link counts, and nothing for the peer's `fsck` to complain about. So do encrypted ones, with
//! the keys of `src/object/envelope/testkeys`.

use crate::harness::{Engine, Mount, SLUICE, Store, Volume, output, program, ready, run, sh};
use std::path::PathBuf;
use std::process::Command;

fn peer() -> PathBuf {
    program("juicefs").expect("the peer is installed")
}

fn prepared(engine: Engine) -> bool {
    let mut programs = vec!["juicefs", "setfattr", "setfacl", "python3"];
    if engine == Engine::Redis {
        programs.push("redis-server");
    }
    ready(&programs)
}

/// Fills a directory with what the format has to say: kinds, modes, owners, times, links, holes, overwritten and
/// truncated files, extended attributes, ACLs, names of any bytes.
fn fill(mount: &Mount) {
    let script = r#"
import os, random
random.seed(7)
os.makedirs("data/deep/er")
def put(name, data): open("data/" + name, "wb").write(data)
put("empty", b""); put("small", b"hello"); put("block", random.randbytes(4 << 20)); put("large", random.randbytes(9_000_001))
with open("data/edited", "w+b") as f:
    f.write(random.randbytes(300_000)); f.flush(); os.fsync(f.fileno())
    f.seek(100_000); f.write(b"x" * 50_000); f.flush(); os.fsync(f.fileno())
    f.truncate(120_000); f.truncate(500_000)
with open("data/sparse", "wb") as f:
    f.seek(70 << 20); f.write(b"beyond a chunk")
os.link("data/small", "data/deep/linked"); os.symlink("../small", "data/deep/symlink"); os.mkfifo("data/deep/er/fifo")
os.mknod("data/deep/er/device", 0o20644, os.makedev(1, 3))
open(b"data/n\xe4me \xff\n%41", "wb").write(b"any bytes")
open("data/" + "n" * 255, "wb").write(b"long")
os.chmod("data/block", 0o4751); os.chown("data/large", 1234, 5678); os.mkdir("data/sticky"); os.chmod("data/sticky", 0o3775)
os.setxattr("data/small", "user.colour", b"\x00green\xff"); os.setxattr("data/deep", "trusted.note", b"dir")
os.rename("data/edited", "data/renamed"); put("gone", b"gone"); os.unlink("data/gone")
for i in range(300): put(f"deep/er/{i}", bytes([i % 256]) * i)
for name in ("small", "deep", "large"): os.utime("data/" + name, ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point));
    sh(
        &mount.point,
        "setfacl -m u:1000:rwx,g:2000:r-x data/block && setfacl -d -m u:1000:rx data/deep/er && touch data/deep/er/inherits",
    );
}

/// Everything about the tree that must be equal on both sides, as text. Directory sizes and times of reading are not.
fn describe(mount: &Mount) -> String {
    let script = r#"
import hashlib, os, stat
for top, dirs, files in sorted(os.walk(b"data")):
    dirs.sort()
    for name in sorted(dirs + files):
        path = os.path.join(top, name)
        s = os.lstat(path)
        what = [path, oct(s.st_mode), s.st_nlink, s.st_uid, s.st_gid, s.st_size, s.st_mtime_ns, s.st_ctime_ns, s.st_rdev, s.st_ino]
        if stat.S_ISLNK(s.st_mode): what.append(os.readlink(path))
        if stat.S_ISREG(s.st_mode): what.append(hashlib.sha256(open(path, "rb").read()).hexdigest())
        if not stat.S_ISLNK(s.st_mode): what += [(x, os.getxattr(path, x)) for x in sorted(os.listxattr(path))]
        print(*what)
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point))
}

/// Neither program has anything to say against the volume, nor finds what is leaked in it.
#[track_caller]
fn is_whole(volume: &Volume) {
    for binary in [peer(), PathBuf::from(SLUICE)] {
        run(volume.command(&binary).args(["fsck", &volume.meta_url]));
        let mut gc = volume.command(&binary);
        let answer = output(gc.env("JFS_GC_SKIPPEDTIME", "0").args(["gc", &volume.meta_url]));
        let told = String::from_utf8_lossy(&answer.stderr);
        assert!(answer.status.success() && told.contains(" 0 leaked (0 bytes)"), "{told}");
    }
}

fn crosses(engine: Engine, from_peer: bool) {
    if prepared(engine) {
        carry(&Volume::unformatted(engine), from_peer, &["--enable-acl", "--trash-days", "1"]);
    }
}

/// One side formats and fills the volume, the other one reads it and goes on, the first one reads what came of it.
fn carry(volume: &Volume, from_peer: bool, format: &[&str]) {
    let (first, second) = if from_peer { (peer(), PathBuf::from(SLUICE)) } else { (PathBuf::from(SLUICE), peer()) };
    volume.run_format(&first, Store::File, format);
    let written = {
        let mount = volume.mount_with(&first, &["--enable-xattr"]);
        fill(&mount);
        let text = describe(&mount);
        mount.umount();
        text
    };
    assert!(written.lines().count() > 300, "the tree was not made:\n{written}");
    is_whole(&volume);
    let mount = volume.mount_with(&second, &["--enable-xattr"]);
    let read = describe(&mount);
    for (a, b) in written.lines().zip(read.lines()) {
        assert_eq!(a, b, "written (above) and read (below) differ");
    }
    assert_eq!(written, read);
    // The other side goes on where the first one stopped.
    sh(
        &mount.point,
        "cp -a data copied && diff -r --no-dereference -x device -x fifo data copied && rm -rf data && mv copied data && echo more >> data/small",
    );
    mount.umount();
    is_whole(&volume);
    let back = volume.mount_with(&first, &["--enable-xattr"]);
    assert_eq!(std::fs::read_to_string(back.path("data/small")).expect("readable"), "hellomore\n");
    back.umount();
}

#[test]
fn the_peer_reads_our_sqlite_volume() {
    crosses(Engine::Sqlite, false);
}

#[test]
fn the_peer_reads_our_redis_volume() {
    crosses(Engine::Redis, false);
}

#[test]
fn we_read_the_peers_sqlite_volume() {
    crosses(Engine::Sqlite, true);
}

#[test]
fn we_read_the_peers_redis_volume() {
    crosses(Engine::Redis, true);
}

/// An encrypted volume with a key that has a passphrase.
fn crosses_encrypted(key: &str, algorithm: &str, compression: &str, from_peer: bool) {
    if !prepared(Engine::Sqlite) {
        return;
    }
    let volume = Volume::unformatted(Engine::Sqlite).with_env("JFS_RSA_PASSPHRASE", "test-passphrase");
    let key = format!("{}/src/object/envelope/testkeys/{key}.pem", env!("CARGO_MANIFEST_DIR"));
    let options = ["--encrypt-rsa-key", &key, "--encrypt-algo", algorithm, "--compress", compression, "--enable-acl"];
    carry(&volume, from_peer, &options);
    // The record shows no key, and nobody gets in without the passphrase, or with another one.
    let status = volume.sluice(&["status", &volume.meta_url]);
    assert!(status.contains(r#""EncryptKey": "removed""#) && status.contains(algorithm), "{status}");
    let point = volume.dir.path().join("nowhere");
    std::fs::create_dir(&point).expect("a mount point");
    for wrong in ["", "hunter2"] {
        let mut command = volume.command(SLUICE);
        command.env("JFS_RSA_PASSPHRASE", wrong).args(["mount", "-d", "--log"]).arg(volume.dir.path().join("log"));
        let output = command.arg(&volume.meta_url).arg(&point).output().expect("mount runs");
        let said = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
        assert!(!output.status.success(), "mounted with the passphrase {wrong:?}");
        assert!(said.contains("JFS_RSA_PASSPHRASE") && !said.contains("hunter2"), "{said}");
    }
}

#[test]
fn we_read_the_peers_aes_volume() {
    crosses_encrypted("rsa-pkcs1-aes256", "aes256gcm-rsa", "none", true);
}

#[test]
fn the_peer_reads_our_aes_volume_with_lz4() {
    crosses_encrypted("rsa-pkcs8-pbkdf2", "aes256gcm-rsa", "lz4", false);
}

#[test]
fn we_read_the_peers_chacha_volume_with_lz4() {
    crosses_encrypted("rsa-pkcs1-aes256", "chacha20-rsa", "lz4", true);
}

#[test]
fn the_peer_reads_our_chacha_volume() {
    crosses_encrypted("rsa-pkcs1-aes256", "chacha20-rsa", "none", false);
}

#[test]
fn we_read_the_peers_sm4_volume_with_an_sm2_key() {
    crosses_encrypted("sm2-pkcs8-pbkdf2", "sm4gcm", "zstd", true);
}

#[test]
fn the_peer_reads_our_sm4_volume_with_an_sm2_key() {
    crosses_encrypted("sm2-pkcs8-pbkdf2", "sm4gcm", "none", false);
}
