//! Volumes cross between SluiceFS and the peer (JuiceFS 1.4.2) in both directions: equal bytes, attributes, extended
//! attributes, ACLs and link counts, and nothing for either `fsck` or `gc` to complain about; whatever the engine, the
//! compression, the encryption, the names and the sizes of the blocks.

use crate::harness::{Engine, SLUICE, Store, Volume, output, program, ready, run, sh};
use std::path::{Path, PathBuf};
use std::process::Command;

pub fn peer() -> PathBuf {
    program("juicefs").expect("the peer is installed")
}

fn prepared(engine: Engine) -> bool {
    ready(&[&["juicefs", "setfattr", "setfacl", "python3"], engine.programs()].concat())
}

/// Fills `data` in a directory with what the format has to say: kinds, modes, owners, times, links, holes, overwritten
/// and truncated files, extended attributes, ACLs, names of any bytes.
pub fn fill(dir: &Path) {
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
for i in range(120): put(f"deep/er/{i}", bytes([i]) * (3 * i))
for name in ("small", "deep", "large"): os.utime("data/" + name, ns=(1_600_000_000_123_456_789, 1_500_000_000_987_654_321))
"#;
    run(Command::new("python3").arg("-c").arg(script).current_dir(dir));
    sh(
        dir,
        "setfacl -m u:1000:rwx,g:2000:r-x data/block && setfacl -d -m u:1000:rx data/deep/er && touch data/deep/er/inherits",
    );
}

/// Everything about the tree `data` in a directory that must be equal on both sides, as text. Directory sizes and times
/// of reading are not.
pub fn describe(dir: &Path) -> String {
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
    run(Command::new("python3").arg("-c").arg(script).current_dir(dir))
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

/// One side formats and fills the volume, the other one reads it and goes on, the first one reads what came of it.
fn carry(volume: &Volume, from_peer: bool, format: &[&str]) {
    let (first, second) = if from_peer { (peer(), PathBuf::from(SLUICE)) } else { (PathBuf::from(SLUICE), peer()) };
    volume.run_format(&first, Store::File, format);
    let written = {
        let mount = volume.mount_with(&first, &["--enable-xattr"]);
        fill(&mount.point);
        let text = describe(&mount.point);
        mount.umount();
        text
    };
    assert!(written.lines().count() > 120, "the tree was not made:\n{written}");
    is_whole(volume);
    let mount = volume.mount_with(&second, &["--enable-xattr"]);
    let read = describe(&mount.point);
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
    is_whole(volume);
    let back = volume.mount_with(&first, &["--enable-xattr"]);
    assert_eq!(std::fs::read_to_string(back.path("data/small")).expect("readable"), "hellomore\n");
    back.umount();
}

/// How an encrypted volume is sealed: the key (see `src/object/envelope/testkeys`) and the algorithm.
type Cipher = Option<(&'static str, &'static str)>;

const PLAIN: Cipher = None;
const AES: Cipher = Some(("rsa-pkcs1-aes256", "aes256gcm-rsa"));
const AES_PKCS8: Cipher = Some(("rsa-pkcs8-pbkdf2", "aes256gcm-rsa"));
const CHACHA: Cipher = Some(("rsa-pkcs1-aes256", "chacha20-rsa"));
const SM4: Cipher = Some(("sm2-pkcs8-pbkdf2", "sm4gcm"));

/// What distinguishes the volumes of the matrix.
#[derive(Clone, Copy)]
struct Layout {
    engine: Engine,
    compression: &'static str,
    cipher: Cipher,
    hash_prefix: bool,
    block_kib: u32,
    /// Format options beyond those.
    more: &'static [&'static str],
    /// Who formats and fills it; the other one goes on.
    from_peer: bool,
}

fn crosses(layout: Layout) {
    if !prepared(layout.engine) {
        return;
    }
    let block = format!("{}K", layout.block_kib);
    let mut options =
        vec!["--enable-acl", "--trash-days", "1", "--compress", layout.compression, "--block-size", &block];
    options.extend(layout.more);
    if layout.hash_prefix {
        options.push("--hash-prefix");
    }
    let volume = Volume::unformatted(layout.engine);
    let Some((key, algorithm)) = layout.cipher else { return carry(&volume, layout.from_peer, &options) };
    let volume = volume.with_env("JFS_RSA_PASSPHRASE", "test-passphrase");
    let key = format!("{}/src/object/envelope/testkeys/{key}.pem", env!("CARGO_MANIFEST_DIR"));
    options.extend(["--encrypt-rsa-key", &key, "--encrypt-algo", algorithm]);
    carry(&volume, layout.from_peer, &options);
    needs_its_passphrase(&volume, algorithm);
}

/// The record shows no key, and nobody gets in without the passphrase, or with another one.
fn needs_its_passphrase(volume: &Volume, algorithm: &str) {
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

/// One test for each layout, and `LAYOUTS` of them all.
macro_rules! layouts {
    ($($name:ident: $engine:ident, $compression:literal, $cipher:ident, $hash_prefix:literal, $block_kib:literal, $more:expr, $from_peer:literal;)*) => {
        /// Volumes of many layouts, crossing in both directions.
        mod matrix {
            use super::*;

            const LAYOUTS: &[Layout] = &[$(layouts!(@ $engine, $compression, $cipher, $hash_prefix, $block_kib, $more, $from_peer)),*];

            $(
                #[test]
                fn $name() {
                    crosses(layouts!(@ $engine, $compression, $cipher, $hash_prefix, $block_kib, $more, $from_peer));
                }
            )*

            /// Any two properties meet in some layout of the first two engines; what lies in the store does not depend on where
            /// the metadata is.
            #[test]
            fn every_pair_of_properties_is_covered() {
                let facts = |l: &Layout| {
                    [
                        format!("{:?}", l.engine),
                        l.compression.to_owned(),
                        l.cipher.map_or("plain", |(_, algorithm)| algorithm).to_owned(),
                        format!("hash prefix {}", l.hash_prefix),
                        format!("{} KiB", l.block_kib),
                        format!("from the peer {}", l.from_peer),
                    ]
                };
                let all: Vec<_> = LAYOUTS.iter().map(facts).filter(|facts| facts[2] != "sm4gcm")
                    .filter(|facts| matches!(&facts[0][..], "Sqlite" | "Redis")).collect();
                assert!(all.len() >= 14);
                for (i, j) in (0..6).flat_map(|i| (0..i).map(move |j| (i, j))) {
                    for (a, b) in all.iter().flat_map(|a| all.iter().map(move |b| (&a[i], &b[j]))) {
                        assert!(all.iter().any(|facts| facts[i] == *a && facts[j] == *b), "{a} with {b}");
                    }
                }
            }
        }
    };
    (@ $engine:ident, $compression:literal, $cipher:ident, $hash_prefix:literal, $block_kib:literal, $more:expr, $from_peer:literal) => {
        Layout {
            engine: Engine::$engine,
            compression: $compression,
            cipher: $cipher,
            hash_prefix: $hash_prefix,
            block_kib: $block_kib,
            more: $more,
            from_peer: $from_peer,
        }
    };
}

layouts! {
    sqlite_plain_small_blocks: Sqlite, "none", PLAIN, false, 64, &[], false;
    redis_plain: Redis, "none", PLAIN, false, 4096, &[], false;
    sqlite_plain: Sqlite, "none", PLAIN, false, 4096, &[], true;
    redis_aes_prefix: Redis, "none", AES, true, 4096, &[], true;
    sqlite_chacha_large_blocks: Sqlite, "none", CHACHA, true, 16384, &[], false;
    redis_lz4_prefix_large_blocks: Redis, "lz4", PLAIN, true, 16384, &[], true;
    sqlite_lz4_aes: Sqlite, "lz4", AES_PKCS8, false, 64, &[], false;
    redis_lz4_chacha: Redis, "lz4", CHACHA, false, 4096, &[], true;
    sqlite_zstd_prefix: Sqlite, "zstd", PLAIN, true, 4096, &[], false;
    redis_zstd_aes_large_blocks: Redis, "zstd", AES, false, 16384, &[], false;
    sqlite_zstd_chacha_small_blocks: Sqlite, "zstd", CHACHA, true, 64, &[], true;
    redis_prefix_small_blocks_in_shards: Redis, "none", PLAIN, true, 64, &["--shards", "3"], true;
    sqlite_aes_large_blocks: Sqlite, "none", AES, false, 16384, &[], true;
    redis_zstd_in_shards: Redis, "zstd", PLAIN, false, 4096, &["--shards", "2"], true;
    sqlite_lz4_chacha_prefix: Sqlite, "lz4", CHACHA, true, 4096, &[], false;
    sqlite_zstd_sm4_with_an_sm2_key: Sqlite, "zstd", SM4, false, 4096, &[], true;
    mariadb_plain: Mariadb, "none", PLAIN, false, 4096, &[], false;
    mariadb_from_the_peer: Mariadb, "none", PLAIN, false, 4096, &[], true;
    postgres_plain: Postgres, "none", PLAIN, false, 4096, &[], false;
    postgres_from_the_peer: Postgres, "none", PLAIN, false, 4096, &[], true;
    redis_cluster_plain: RedisCluster, "none", PLAIN, false, 4096, &[], false;
    redis_cluster_from_the_peer: RedisCluster, "none", PLAIN, false, 4096, &[], true;
    etcd_plain: Etcd, "none", PLAIN, false, 4096, &[], false;
    etcd_from_the_peer: Etcd, "none", PLAIN, false, 4096, &[], true;
    redis_sm4_with_an_sm2_key: Redis, "none", SM4, false, 4096, &[], false;
}
