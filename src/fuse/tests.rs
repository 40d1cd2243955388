//! A volume in memory, mounted for real: what programs do with files through the kernel.
//!
//! Needs `/dev/fuse` and the right to mount; where either is missing the test says so and passes.

use super::{AccessLog, Fuse, Mounted, Options};
use crate::util::clock::SystemClock;
use crate::vfs::control::{Control, ControlSettings};
use crate::vfs::tests::volume;
use std::ffi::CString;
use std::fs;
use std::io::{Read, Seek, SeekFrom, Write};
use std::os::fd::AsRawFd;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{FileExt, MetadataExt, PermissionsExt, symlink};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

async fn mount(point: &Path) -> Option<Mounted> {
    if !Path::new("/dev/fuse").exists() || !nix::unistd::geteuid().is_root() {
        println!("skipped: mounting needs /dev/fuse and root");
        return None;
    }
    let vfs = volume().await;
    let log = AccessLog::new(Arc::new(SystemClock), None);
    let settings = ControlSettings {
        volume: "memory".into(),
        prefixed: false,
        hidden: false,
        trash: false,
        uid: 0,
        gid: 0,
        mounted_at: vfs.meta().now(),
        config: Arc::new(|| b"{\"Format\": {}}".to_vec()),
        stats: Arc::new(|| b"juicefs_uptime 1\n".to_vec()),
        log: log.clone(),
    };
    let control = Control::new(vfs.clone(), settings);
    let options = Options { xattr: true, ioctl: true, ..Options::new("memory", point) };
    let runtime = tokio::runtime::Handle::current();
    // A refusal to mount is the machine's, not ours.
    match Fuse::mount(vfs, control, log, options, runtime) {
        Ok(mounted) => Some(mounted),
        Err(fault) => {
            println!("skipped: {fault}");
            None
        }
    }
}

fn names(dir: &Path) -> Vec<String> {
    let mut names: Vec<_> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into_string().unwrap()).collect();
    names.sort();
    names
}

fn names_and_attributes(root: &Path) {
    assert_eq!(fs::metadata(root).unwrap().ino(), 1);
    fs::create_dir_all(root.join("d/e")).unwrap();
    fs::write(root.join("d/a"), b"hello").unwrap();
    fs::hard_link(root.join("d/a"), root.join("d/b")).unwrap();
    symlink("a", root.join("d/s")).unwrap();
    let a = fs::metadata(root.join("d/a")).unwrap();
    assert_eq!((a.len(), a.nlink(), a.blocks(), a.blksize()), (5, 2, 1, 65536));
    assert_eq!(fs::read_link(root.join("d/s")).unwrap(), Path::new("a"));
    assert_eq!(fs::read(root.join("d/s")).unwrap(), b"hello");
    fs::set_permissions(root.join("d/a"), fs::Permissions::from_mode(0o640)).unwrap();
    assert_eq!(fs::metadata(root.join("d/b")).unwrap().mode() & 0o7777, 0o640);
    fs::rename(root.join("d/b"), root.join("c")).unwrap();
    assert_eq!(names(&root.join("d")), ["a", "e", "s"]);
    assert_eq!(names(root), [".accesslog", ".config", ".stats", "c", "d"]);
    let missing = fs::metadata(root.join("nothing")).unwrap_err();
    assert_eq!(missing.raw_os_error(), Some(libc::ENOENT));
    assert_eq!(fs::remove_dir(root.join("d")).unwrap_err().raw_os_error(), Some(libc::ENOTEMPTY));
    let before = std::time::SystemTime::UNIX_EPOCH - Duration::from_millis(1500);
    fs::File::open(root.join("c")).unwrap().set_modified(before).unwrap();
    assert_eq!(fs::metadata(root.join("c")).unwrap().modified().unwrap(), before, "times before 1970 keep fractions");
    for i in 0..600 {
        fs::write(root.join(format!("d/e/{i}")), b"").unwrap();
    }
    assert_eq!(names(&root.join("d/e")).len(), 600);
    fs::remove_dir_all(root.join("d")).unwrap();
    fs::remove_file(root.join("c")).unwrap();
}

fn data(root: &Path) {
    let path = root.join("file");
    let bytes: Vec<u8> = (0..5_000_000u32).map(|i| (i.wrapping_mul(2654435761) >> 24) as u8).collect();
    fs::write(&path, &bytes).unwrap();
    assert!(fs::read(&path).unwrap() == bytes);
    let mut file = fs::File::options().read(true).write(true).open(&path).unwrap();
    file.seek(SeekFrom::Start(1_000_000)).unwrap();
    file.write_all(b"in the middle").unwrap();
    let mut around = [0; 15];
    file.read_exact_at(&mut around, 999_999).unwrap();
    assert_eq!(&around[1..14], b"in the middle", "a write is read before it is flushed");
    file.set_len(1_000_003).unwrap();
    file.sync_all().unwrap();
    let mut now = Vec::new();
    fs::File::open(&path).unwrap().read_to_end(&mut now).unwrap();
    assert!(now[..1_000_000] == bytes[..1_000_000] && &now[1_000_000..] == b"in ");
    file.set_len(2_000_000).unwrap();
    assert!(fs::read(&path).unwrap()[1_000_003..].iter().all(|byte| *byte == 0));
    drop(file);
    fs::remove_file(&path).unwrap();
}

/// F_OFD_SETLK(W): the owner is the open file, so that one process can stand for two.
fn lock(file: &fs::File, wait: bool, kind: i32) -> Result<(), Option<i32>> {
    let command = if wait { libc::F_OFD_SETLKW } else { libc::F_OFD_SETLK };
    // SAFETY: `flock` is plain data, and fcntl reads it before it returns.
    let done = unsafe {
        let mut lock: libc::flock = std::mem::zeroed();
        (lock.l_type, lock.l_len) = (kind as i16, 100);
        libc::fcntl(file.as_raw_fd(), command, &lock)
    };
    if done == 0 { Ok(()) } else { Err(std::io::Error::last_os_error().raw_os_error()) }
}

fn locks_and_figures(root: &Path) {
    let path = root.join("locked");
    let open = || fs::File::options().create(true).truncate(false).read(true).write(true).open(&path).unwrap();
    let (ours, theirs) = (open(), open());
    lock(&ours, false, libc::F_WRLCK).unwrap();
    assert_eq!(lock(&theirs, false, libc::F_RDLCK), Err(Some(libc::EAGAIN)));
    let waiter = std::thread::spawn(move || {
        lock(&theirs, true, libc::F_WRLCK).and_then(|()| lock(&theirs, false, libc::F_UNLCK))
    });
    std::thread::sleep(Duration::from_millis(50));
    assert!(!waiter.is_finished(), "a blocking lock waits");
    lock(&ours, false, libc::F_UNLCK).unwrap();
    waiter.join().unwrap().unwrap();
    let name = CString::new(path.as_os_str().as_bytes()).unwrap();
    let mut value = [0u8; 8];
    // SAFETY: names end in NUL, and the lengths are those of the buffers.
    let (set, got, ours_only) = unsafe {
        (
            libc::setxattr(name.as_ptr(), c"user.k".as_ptr(), b"value".as_ptr().cast(), 5, 0),
            libc::getxattr(name.as_ptr(), c"user.k".as_ptr(), value.as_mut_ptr().cast(), value.len()),
            libc::listxattr(name.as_ptr(), std::ptr::null_mut(), 0),
        )
    };
    assert_eq!((set, got, ours_only, &value[..5]), (0, 5, 7, &b"value"[..]));
    let figures = nix::sys::statvfs::statvfs(root).unwrap();
    assert_eq!((figures.block_size(), figures.name_max(), figures.blocks()), (4096, 255, (1 << 50) / 4096));
    fs::remove_file(&path).unwrap();
}

fn virtual_files(root: &Path) {
    assert_eq!(fs::read(root.join(".stats")).unwrap(), b"juicefs_uptime 1\n");
    assert_eq!(fs::metadata(root.join(".config")).unwrap().len(), 14);
    assert_eq!(fs::remove_file(root.join(".stats")).unwrap_err().raw_os_error(), Some(libc::EPERM));
    assert!(fs::write(root.join(".stats"), b"x").is_err());
    // The access log shows what happens while it is open.
    let mut log = fs::File::open(root.join(".accesslog")).unwrap();
    fs::create_dir(root.join("seen")).unwrap();
    let (mut lines, mut buffer) = (String::new(), vec![0; 65536]);
    // A line is written after the reply it tells of, so it may come with a later read.
    for _ in 0..10 {
        let read = log.read(&mut buffer).unwrap();
        lines.push_str(&String::from_utf8_lossy(&buffer[..read]));
        if lines.contains("mkdir") {
            break;
        }
    }
    assert!(lines.contains("mkdir (1,seen,drwxr-xr-x:00755): (") && lines.contains(" - OK <0."), "{lines}");
    // A control request: the response follows the request in the stream.
    fs::create_dir_all(root.join("seen/below/deep")).unwrap();
    fs::write(root.join("seen/file"), b"12345").unwrap();
    let answer =
        request(root, 1005, &[&fs::metadata(root.join("seen")).unwrap().ino().to_be_bytes()[..], &[1]].concat());
    let json = answer.windows(1).position(|w| w[0] == 0xFF).map(|at| answer[at + 5..].to_vec()).unwrap();
    let json: serde_json::Value = serde_json::from_slice(&json).unwrap();
    assert_eq!(json["Summary"], serde_json::json!({ "Length": 5, "Size": 16384, "Files": 1, "Dirs": 3 }));
    assert_eq!(json["Paths"], serde_json::json!(["/seen"]));
    assert_eq!(request(root, 77, b""), [0x16]);
    let removed = request(root, 1002, &[&1u64.to_be_bytes()[..], &[4], b"seen"].concat());
    assert_eq!(removed.last(), Some(&0));
    assert!(!root.join("seen").exists());
}

/// Sends a request to `.control` and reads until its answer is complete.
fn request(root: &Path, op: u32, body: &[u8]) -> Vec<u8> {
    let mut control = fs::File::options().read(true).write(true).open(root.join(".control")).unwrap();
    control.write_all(&[&op.to_be_bytes()[..], &(body.len() as u32).to_be_bytes(), body].concat()).unwrap();
    let (mut answer, mut buffer) = (Vec::new(), vec![0; 65536]);
    for _ in 0..500 {
        let read = control.read(&mut buffer).unwrap();
        answer.extend_from_slice(&buffer[..read]);
        let mut rest = &answer[..];
        while rest.first() == Some(&0xFE) && rest.len() > 17 {
            rest = &rest[17..];
        }
        if matches!(rest.first(), Some(byte) if *byte != 0xFE) {
            return answer;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("no answer: {answer:?}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn programs_use_a_mounted_volume() {
    let dir = tempfile::tempdir().unwrap();
    let point = dir.path().join("made/here");
    let Some(mounted) = mount(&point).await else { return };
    let table = fs::read_to_string("/proc/self/mountinfo").unwrap();
    let used = {
        let point = point.clone();
        tokio::task::spawn_blocking(move || {
            names_and_attributes(&point);
            data(&point);
            locks_and_figures(&point);
            virtual_files(&point);
        })
        .await
    };
    mounted.unmount().unwrap();
    mounted.wait(Duration::from_secs(5)).await.unwrap();
    assert!(mounted.is_over() && fs::read_dir(&point).unwrap().next().is_none());
    used.unwrap();
    let line = table.lines().find(|line| line.contains("made/here")).expect("the mount is in the table");
    assert!(line.contains(" - fuse.sluicefs SluiceFS:memory "), "{line}");
    assert!(line.contains("nosuid,nodev") && line.contains("default_permissions,allow_other"), "{line}");
}
