//! The store in a local directory (`spec/data.md` 3.6): a key is a path below the root.
//!
//! Nobody sees a part of an object ([`crate::util::publish`]). Where it is written under a temporary name beside its
//! target, as the reference client does, a writer that dies leaves that file behind; like the reference client, this
//! store lists it as an object of that name ([`is_unfinished`]), because nobody else could find and remove it. As in the
//! reference client nothing is synced to the device: the directory's file system decides how durable it is.
//!
//! A read first tries what needs no disk ([`crate::util::fileio`]) on the thread that asks; the rest, and writes, go
//! to threads that may wait, at most [`IO_MAX`] at a time. Small objects are written in place when a task of the
//! runtime asks: the hop to another thread would cost about as much as the write. A FUSE thread that polls a request
//! is no such task and never waits here.

use super::mem::clamp;
use super::{Capabilities, Listed, ObjectMeta, ObjectStore};
use crate::base::Fault;
use crate::buf::{BlockBuf, Payload, Pool};
use crate::util::directories;
use crate::util::fileio;
use crate::util::publish::{Target, publish};
use async_trait::async_trait;
use nix::fcntl::PosixFadviseAdvice;
use std::fs::{self, File};
use std::io::{self, ErrorKind};
use std::ops::Range;
use std::os::unix::fs::MetadataExt;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::SystemTime;
use tokio::sync::Semaphore;

/// Waiting requests at a time. More threads do not make a disk faster.
const IO_MAX: usize = 32;
/// Objects up to this size are written by the task that asks.
const INLINE_PUT_BYTES: usize = 64 << 10;

/// A short read that has to wait for the disk takes along what lies around it, by this much. Random readers of 4 KiB
/// come to the pages beside those they have read: with 1 GiB of data one reader gets 11,700 a second instead of 8,000, and
/// eight get 218,000 instead of 47,000 (6 s from a cold start, 2 cores).
const READ_AROUND: u64 = 32 << 10;

/// Objects as files.
pub struct FileStore {
    root: PathBuf,
    name: String,
    pool: Arc<Pool>,
    io: Arc<Semaphore>,
    local_device: Option<u64>,
}

/// File systems whose files are on another machine, or come from a program that may get them from one
/// (`f_type` of statfs(2)).
const REMOTE: [i64; 11] = [
    0x6969,      // NFS
    0x517B,      // SMB
    0xFF53_4D42, // CIFS
    0xFE53_4D42, // SMB 2
    0x6573_5546, // FUSE
    0x00C3_6400, // Ceph
    0x0BD0_0BD0, // Lustre
    0x4750_4653, // GPFS
    0x5346_414F, // AFS
    0x0102_1997, // 9P
    0x1983_0326, // BeeGFS
];

/// The device of the directory, or of where it will be made, if that is a disk of this machine.
fn local_device(root: &Path) -> Option<u64> {
    let there = fileio::nearest_that_exists(root);
    let found = nix::sys::statfs::statfs(there).ok()?;
    let local = !REMOTE.contains(&(found.filesystem_type().0 as i64));
    if local { fileio::device_of(there) } else { None }
}

impl FileStore {
    /// `root` need not exist yet; `pool` gives the memory that objects are read into.
    pub fn new(root: impl Into<PathBuf>, pool: Arc<Pool>) -> FileStore {
        let root = root.into();
        let name = format!("file://{}", root.display());
        let local_device = local_device(&root);
        FileStore { root, name, pool, io: Arc::new(Semaphore::new(IO_MAX)), local_device }
    }

    fn path(&self, key: &str) -> Result<PathBuf, Fault> {
        if key.split('/').any(|part| part == "..") || key.contains('\0') {
            return Err(Fault::denied("find object").with("key", key).source("the key leaves the directory"));
        }
        Ok(self.root.join(key.trim_start_matches('/')))
    }

    /// Runs `work` on a thread that may wait.
    async fn waiting<T: Send + 'static>(
        &self,
        operation: &'static str,
        key: &str,
        work: impl FnOnce() -> io::Result<T> + Send + 'static,
    ) -> Result<T, Fault> {
        let slot = self.io.clone().acquire_owned().await.expect("the slots of a directory are never closed");
        let done = tokio::task::spawn_blocking(move || {
            let _slot = slot;
            work()
        });
        match done.await {
            Ok(result) => result.map_err(|e| fault(operation, key, e)),
            Err(e) => Err(Fault::internal(operation).with("key", key).source(e)),
        }
    }
}

fn fault(operation: &'static str, key: &str, error: io::Error) -> Fault {
    let fault = match error.kind() {
        ErrorKind::NotFound => Fault::not_found(operation),
        ErrorKind::PermissionDenied | ErrorKind::ReadOnlyFilesystem => Fault::denied(operation),
        ErrorKind::StorageFull | ErrorKind::QuotaExceeded => Fault::full(operation),
        _ => Fault::unavailable(operation),
    };
    fault.with("key", key).source(error)
}

/// A read under way: what was read so far, and what is missing.
struct Reading {
    file: File,
    part: Range<u64>,
    buf: BlockBuf,
}

impl Reading {
    fn begin(file: File, range: Option<&Range<u64>>, pool: &Arc<Pool>) -> io::Result<Reading> {
        let meta = file.metadata()?;
        if meta.is_dir() {
            return Err(ErrorKind::NotFound.into());
        }
        let part = range.map_or(0..meta.len(), |r| clamp(r, meta.len()));
        let buf = pool.take((part.end - part.start) as usize);
        Ok(Reading { file, part, buf })
    }

    fn missing(&self) -> usize {
        self.buf.capacity() - self.buf.len()
    }

    fn read_now(&mut self) {
        let at = self.part.start + self.buf.len() as u64;
        let file = &self.file;
        let done: Result<usize, std::convert::Infallible> =
            self.buf.fill_with(self.missing(), |out| Ok(fileio::read_now(file, out, at)));
        let Ok(_) = done;
    }

    fn read_full(mut self) -> io::Result<BlockBuf> {
        let at = self.part.start + self.buf.len() as u64;
        let file = &self.file;
        if self.missing() < READ_AROUND as usize {
            let start = (at - at % READ_AROUND) as libc::off_t;
            // Without it the read is no less right.
            let _hint =
                nix::fcntl::posix_fadvise(file, start, READ_AROUND as _, PosixFadviseAdvice::POSIX_FADV_WILLNEED);
        }
        self.buf.fill_with(self.missing(), |out| fileio::read_full(file, out, at))?;
        Ok(self.buf)
    }
}

/// Of directories; the umask decides.
const DIRECTORY_MODE: u32 = 0o777;

fn write(root: &Path, path: &Path, body: &Payload) -> io::Result<()> {
    let temporary = || {
        let name = path.file_name().unwrap_or_default().to_string_lossy();
        let cut: String = name.chars().take(200).collect();
        path.with_file_name(format!(".jfs.{cut}.tmp.{:08x}", rand::random::<u32>()))
    };
    let write = |file: &mut File| body.iter().try_for_each(|piece| fileio::write_all(file, piece));
    publish(Target { root, path, mode: 0o666, directory_mode: DIRECTORY_MODE }, temporary, write)
}

/// Whether a key is the temporary name of an object that is being written, or was when its writer died.
pub fn is_unfinished(key: &str) -> bool {
    let name = key.rsplit('/').next().unwrap_or_default();
    name.starts_with(".jfs.") && name.contains(".tmp.")
}

/// Adds what lies below `dir` (whose key is `base`) in the order of keys, until `limit` are found.
fn walk(dir: &Path, base: &str, prefix: &str, after: &str, limit: usize, out: &mut Vec<Listed>) -> io::Result<()> {
    let mut names = Vec::new();
    let entries = match fs::read_dir(dir) {
        Err(e) if e.kind() == ErrorKind::NotFound => return Ok(()),
        entries => entries?,
    };
    for entry in entries {
        let entry = entry?;
        // No key of a volume is anything but text.
        let Ok(mut name) = entry.file_name().into_string() else { continue };
        let is_dir = entry.file_type()?.is_dir();
        if is_dir {
            name.push('/');
        }
        names.push((name, is_dir));
    }
    names.sort_unstable();
    for (name, is_dir) in names {
        if out.len() >= limit {
            return Ok(());
        }
        let key = [base, &name].concat();
        if is_dir {
            let wanted = key.starts_with(prefix) || prefix.starts_with(&key);
            if wanted && (key.as_str() > after || after.starts_with(&key)) {
                walk(&dir.join(&name), &key, prefix, after, limit, out)?;
            }
        } else if key.starts_with(prefix) && key.as_str() > after {
            match fs::metadata(dir.join(&name)) {
                Ok(meta) => out.push(Listed { key, size: meta.len(), mtime: mtime(&meta) }),
                // Deleted since the directory was read.
                Err(e) if e.kind() == ErrorKind::NotFound => {}
                Err(e) => return Err(e),
            }
        }
    }
    Ok(())
}

fn mtime(meta: &fs::Metadata) -> SystemTime {
    let nanos = std::time::Duration::from_nanos(meta.mtime_nsec().clamp(0, 999_999_999) as u64);
    SystemTime::UNIX_EPOCH + std::time::Duration::from_secs(meta.mtime().max(0) as u64) + nanos
}

#[async_trait]
impl ObjectStore for FileStore {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ranges: true, local_device: self.local_device }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        const OPERATION: &str = "get object";
        let path = self.path(key)?;
        let begun = match fileio::open_now(&path).map_err(|e| fault(OPERATION, key, e))? {
            Some(file) => {
                let mut reading =
                    Reading::begin(file, range.as_ref(), &self.pool).map_err(|e| fault(OPERATION, key, e))?;
                reading.read_now();
                if reading.missing() == 0 {
                    return Ok(reading.buf.freeze().into());
                }
                Some(reading)
            }
            None => None,
        };
        let pool = self.pool.clone();
        let buf = self
            .waiting(OPERATION, key, move || match begun {
                Some(reading) => reading.read_full(),
                None => Reading::begin(File::open(path)?, range.as_ref(), &pool)?.read_full(),
            })
            .await?;
        Ok(buf.freeze().into())
    }

    async fn put_as(&self, key: &str, body: Payload, _class: Option<&str>) -> Result<(), Fault> {
        const OPERATION: &str = "put object";
        let (root, path) = (self.root.clone(), self.path(key)?);
        if key.ends_with('/') {
            return self.waiting(OPERATION, key, move || directories::make(&root, &path, DIRECTORY_MODE)).await;
        }
        if body.len() <= INLINE_PUT_BYTES && tokio::task::try_id().is_some() {
            return write(&root, &path, &body).map_err(|e| fault(OPERATION, key, e));
        }
        self.waiting(OPERATION, key, move || write(&root, &path, &body)).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        let path = self.path(key)?;
        let is_dir = key.ends_with('/');
        let work = move || {
            let done = if is_dir { fs::remove_dir(&path) } else { fs::remove_file(&path) };
            match done {
                Err(e) if e.kind() == ErrorKind::NotFound => Ok(()),
                // A directory that other objects still need is no object of its own.
                Err(e) if is_dir && e.kind() == ErrorKind::DirectoryNotEmpty => Ok(()),
                other => other,
            }
        };
        if tokio::task::try_id().is_some() {
            return work().map_err(|e| fault("delete object", key, e));
        }
        self.waiting("delete object", key, work).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        let path = self.path(key)?;
        self.waiting("head object", key, move || match fs::metadata(path) {
            Ok(meta) if meta.is_dir() => Ok(None),
            Ok(meta) => Ok(Some(ObjectMeta { size: meta.len(), mtime: mtime(&meta) })),
            Err(e) if e.kind() == ErrorKind::NotFound || e.kind() == ErrorKind::NotADirectory => Ok(None),
            Err(e) => Err(e),
        })
        .await
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        let (root, wanted, after) = (self.root.clone(), prefix.to_owned(), after.to_owned());
        self.waiting("list objects", prefix, move || {
            let mut out = Vec::new();
            walk(&root, "", &wanted, &after, limit, &mut out)?;
            Ok(out)
        })
        .await
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        let root = self.root.clone();
        self.waiting("create directory", "", move || directories::make(&root, &root, DIRECTORY_MODE)).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::FaultKind;
    use crate::buf::Budget;

    fn store() -> (tempfile::TempDir, FileStore) {
        let dir = tempfile::tempdir().unwrap();
        let store = FileStore::new(dir.path().join("root"), Pool::new(Budget::new(1 << 30)));
        (dir, store)
    }

    #[tokio::test]
    async fn objects_are_files_with_the_names_of_their_keys() {
        let (dir, store) = store();
        super::super::probe(&store, None).await.unwrap();
        let big: Vec<u8> = (0..300_000u32).map(|i| i as u8).collect();
        store.put("v/chunks/0/0/1_0_300000", big.clone().into()).await.unwrap();
        store.put("v/small", b"hello".to_vec().into()).await.unwrap();
        assert_eq!(fs::read(dir.path().join("root/v/chunks/0/0/1_0_300000")).unwrap(), big);
        assert!(store.get("v/chunks/0/0/1_0_300000", None).await.unwrap() == big[..]);
        assert!(store.get("v/chunks/0/0/1_0_300000", Some(299_990..400_000)).await.unwrap() == big[299_990..]);
        assert!(store.get("v/small", Some(1..3)).await.unwrap() == b"el"[..]);
        assert_eq!(store.head("v/small").await.unwrap().unwrap().size, 5);
        assert_eq!(store.head("v").await.unwrap(), None);
        assert_eq!(store.get("v/none", None).await.unwrap_err().kind(), FaultKind::NotFound);
        assert_eq!(store.get("v", None).await.unwrap_err().kind(), FaultKind::NotFound);
        assert_eq!(store.get("../etc", None).await.unwrap_err().kind(), FaultKind::Denied);
        store.delete("v/small").await.unwrap();
        store.delete("v/small").await.unwrap();
        assert_eq!(store.head("v/small").await.unwrap(), None);
    }

    #[tokio::test]
    async fn listings_are_in_the_order_of_keys() {
        let (dir, store) = store();
        assert!(store.list("", "", 9).await.unwrap().is_empty(), "no directory yet");
        let mut keys = ["a", "a-b/1", "a/b/2", "a/b/1", "a.c", "b/x"].map(String::from).to_vec();
        for key in keys.iter().filter(|k| *k != "a") {
            store.put(key, vec![0; 3].into()).await.unwrap();
        }
        // What a writer left that died.
        fs::write(dir.path().join("root/a/.jfs.1_0_5.tmp.123"), "").unwrap();
        keys.push("a/.jfs.1_0_5.tmp.123".to_owned());
        keys.retain(|k| k != "a");
        keys.sort();
        let listed = |page: Vec<Listed>| page.into_iter().map(|l| l.key).collect::<Vec<_>>();
        assert_eq!(listed(store.list("", "", 99).await.unwrap()), keys);
        for (i, after) in keys.iter().enumerate() {
            assert_eq!(listed(store.list("", after, 2).await.unwrap()), keys[i + 1..keys.len().min(i + 3)]);
        }
        assert_eq!(listed(store.list("a/b", "", 99).await.unwrap()), ["a/b/1", "a/b/2"]);
    }

    #[test]
    fn unfinished_objects_are_known_by_their_names() {
        for key in ["chunks/0/0/.jfs.1_0_5.tmp.0badcafe", ".jfs..tmp."] {
            assert!(is_unfinished(key), "{key}");
        }
        for key in ["", "chunks/0/0/1_0_5", ".jfs.tmp", "jfs.1_0_5.tmp.1", ".jfs.1_0_5.tmp.1/x"] {
            assert!(!is_unfinished(key), "{key}");
        }
    }

    #[tokio::test]
    async fn a_failed_write_leaves_nothing_behind() {
        let (dir, store) = store();
        store.put("d/x", vec![1].into()).await.unwrap();
        let fault = store.put("d", vec![1].into()).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault}");
        let names: Vec<_> = fs::read_dir(dir.path().join("root")).unwrap().map(|e| e.unwrap().file_name()).collect();
        assert_eq!(names, ["d"]);
    }
}
