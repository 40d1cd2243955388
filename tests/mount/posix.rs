//! Own cases of POSIX behaviour on a real mount, learnt where file systems usually go wrong; with the trash off and with
//! the default trash of one day, which must not show.

use crate::harness::{Engine, Mount, Store, Volume, ready, run};
use std::process::Command;

fn on_each_engine(case: fn(&Mount)) {
    for engine in Engine::ALL {
        if !ready(&[&["python3"], engine.programs()].concat()) {
            continue;
        }
        for trash_days in ["0", "1"] {
            let volume = Volume::format(engine, Store::File, &["--trash-days", trash_days]);
            let mount = volume.mount(&[]);
            case(&mount);
            mount.umount();
        }
    }
}

fn python(mount: &Mount, script: &str) {
    run(Command::new("python3").arg("-c").arg(script).current_dir(&mount.point));
}

#[test]
fn links_are_counted_without_the_trash() {
    on_each_engine(|mount| {
        python(
            mount,
            r#"
import os, time
open("a", "w").close(); os.link("a", "b"); os.link("a", "c")
assert os.stat("a").st_nlink == 3
before = os.stat("a").st_ctime_ns; time.sleep(0.02)
os.unlink("b"); s = os.stat("a")
assert s.st_nlink == 2 and s.st_ctime_ns > before, s
open("x", "w").close(); os.rename("x", "c")
assert os.stat("a").st_nlink == 1
fd = os.open("a", os.O_RDWR); os.unlink("a")
assert os.fstat(fd).st_nlink == 0
os.write(fd, b"still here"); assert os.pread(fd, 20, 0) == b"still here"; os.close(fd)
"#,
        );
    });
}

#[test]
fn renames_replace_exchange_and_refuse() {
    on_each_engine(|mount| {
        python(
            mount,
            r#"
import ctypes, errno, os
libc = ctypes.CDLL(None, use_errno=True)
def renameat2(a, b, flags):
    return 0 if libc.renameat2(-100, a.encode(), -100, b.encode(), flags) == 0 else ctypes.get_errno()
os.mkdir("d"); os.mkdir("d/e"); os.mkdir("full"); open("full/f", "w").write("f"); open("a", "w").write("a"); open("b", "w").write("b")
def fails(number, call):
    try: call()
    except OSError as e: assert e.errno == number, e
    else: raise AssertionError("it was allowed")
fails(errno.ENOTEMPTY, lambda: os.rename("d", "full"))
fails(errno.ENOTDIR, lambda: os.rename("d", "a"))
fails(errno.EISDIR, lambda: os.rename("a", "d"))
fails(errno.EINVAL, lambda: os.rename("d", "d/e/inside"))
assert renameat2("a", "b", 1) == errno.EEXIST and open("a").read() == "a"
assert renameat2("a", "b", 2) == 0 and open("a").read() == "b" and open("b").read() == "a"
assert renameat2("a", "full", 2) == 0 and open("full").read() == "b" and open("a/f").read() == "f"
before = os.stat(".").st_nlink
os.rename("d/e", "moved"); assert os.stat(".").st_nlink == before + 1 and os.stat("d").st_nlink == 2
os.link("b", "same"); os.rename("b", "same"); assert os.path.exists("b") and os.path.exists("same")
"#,
        );
    });
}

#[test]
fn permissions_bits_and_owners_follow_the_rules() {
    on_each_engine(|mount| {
        python(
            mount,
            r#"
import errno, os
os.chmod(".", 0o1777); os.mkdir("g"); os.chown("g", 0, 777); os.chmod("g", 0o2775)
open("g/f", "w").close(); os.mkdir("g/sub")
assert os.stat("g/f").st_gid == 777 and os.stat("g/sub").st_mode & 0o2000
open("s", "w").write("x"); os.chmod("s", 0o6755); os.chown("s", 5, 5); assert os.stat("s").st_mode & 0o7777 == 0o755
open("w", "w").write("x"); os.chown("w", 1000, 1000); os.chmod("w", 0o4777)
if os.fork() == 0:
    os.setgroups([]); os.setgid(1000); os.setuid(1000)
    try:
        with open("w", "r+") as f: f.write("y")
        assert not os.stat("w").st_mode & 0o4000
        for call in (lambda: os.unlink("s"), lambda: os.rename("s", "t"), lambda: os.chown("w", 0, 0), lambda: os.mkdir("g/no")):
            try: call()
            except PermissionError: pass
            else: os._exit(2)
        os.mkdir("mine"); os.rmdir("mine")
    except BaseException as e:
        print(e); os._exit(1)
    os._exit(0)
assert os.wait()[1] == 0
"#,
        );
    });
}

#[test]
fn directories_list_what_changes_meanwhile_once() {
    on_each_engine(|mount| {
        python(
            mount,
            r#"
import os
os.mkdir("many")
for i in range(6000): open(f"many/{i}", "w").close()
assert sorted(os.listdir("many"), key=int) == [str(i) for i in range(6000)]
seen = []
with os.scandir("many") as entries:
    for n, e in enumerate(entries):
        seen.append(e.name)
        if n == 100:
            for i in range(0, 6000, 2): os.unlink(f"many/{i}")
assert len(seen) == len(set(seen)) and set(map(str, range(1, 6000, 2))) <= set(seen)
for i in range(1, 6000, 2): os.unlink(f"many/{i}")
os.rmdir("many")
"#,
        );
    });
}

/// Names and attributes come to the kernel by the thousand, and some are old by the time it takes them.
#[test]
fn a_listing_under_way_does_not_undo_what_was_changed_since() {
    on_each_engine(|mount| {
        python(
            mount,
            r#"
import os, time
os.mkdir("many"); os.chdir("many")
for i in range(3000): open(str(i), "w").close()
time.sleep(1.2)
with os.scandir(".") as entries:
    next(entries)
    for i in range(0, 1000): os.chmod(str(i), 0o600)
    for i in range(1000, 2000): os.unlink(str(i))
    for i in range(2000, 2500): os.rename(str(i), str(i + 500))
    for e in entries: pass
for i in range(0, 1000): assert os.stat(str(i)).st_mode & 0o777 == 0o600, i
for i in range(1000, 2500): assert not os.path.lexists(str(i)), i
kept = {os.stat(str(i)).st_ino for i in range(2500, 3000)}
assert len(kept) == 500 and sorted(os.listdir(), key=int) == [str(i) for i in (*range(1000), *range(2500, 3000))]
"#,
        );
    });
}
