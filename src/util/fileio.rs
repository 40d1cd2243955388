//! Local files, as the kernel serves them best.
//!
//! Reading without waiting, where the kernel lets us: an open that only uses cached directory entries, and reads that
//! only take what is in the page cache. What would wait is left to a thread that may. A hop to such a thread and back
//! costs 20 to 25 µs, many times a read of a cached 4 KiB; a FUSE thread must not wait for a disk. So everybody tries
//! here first.
//!
//! Writing in pieces of which the page cache makes no huge pages.

use std::fs::File;
use std::io::{self, Write as _};
use std::mem::MaybeUninit;
use std::os::fd::{AsRawFd, FromRawFd};
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::MetadataExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};

/// Most bytes of one write. For longer ones file systems take pages of 2 MiB into the page cache, and on a virtual machine
/// whose free memory goes back to its host each of those is fetched from there again: 512 MiB into files on ext4, by
/// 4 MiB 600 MiB/s, by 1 MiB 4,900 MiB/s (2 cores). Elsewhere it makes no difference.
const WRITE_BYTES_MAX: usize = 1 << 20;

/// Writes all of `data` at the file's position.
pub fn write_all(file: &mut File, data: &[u8]) -> io::Result<()> {
    data.chunks(WRITE_BYTES_MAX).try_for_each(|piece| file.write_all(piece))
}

/// The path, or the directory above it that is there.
pub fn nearest_that_exists(path: &Path) -> &Path {
    let above = path.ancestors().map(|path| if path.as_os_str().is_empty() { Path::new(".") } else { path });
    let mut there = above.filter(|path| path.exists());
    there.next().unwrap_or(Path::new("/"))
}

/// The device that a path is on, or would be on (`st_dev`).
pub fn device_of(path: &Path) -> Option<u64> {
    nearest_that_exists(path).metadata().ok().map(|meta| meta.dev())
}

/// The kernel (or a sandbox) knows no `openat2` or no `RESOLVE_CACHED`; learned once.
static NO_CACHED_OPEN: AtomicBool = AtomicBool::new(false);

/// Opens a file for reading if that needs no disk. `Ok(None)` means: ask a thread that may wait. That the file does
/// not exist is an error only when the kernel knows it without looking.
pub fn open_now(path: &Path) -> io::Result<Option<File>> {
    if NO_CACHED_OPEN.load(Ordering::Relaxed) {
        return Ok(None);
    }
    let path = std::ffi::CString::new(path.as_os_str().as_bytes())?;
    // SAFETY: open_how is plain data for which zeros are valid.
    let mut how: libc::open_how = unsafe { std::mem::zeroed() };
    how.flags = (libc::O_RDONLY | libc::O_CLOEXEC) as u64;
    how.resolve = libc::RESOLVE_CACHED;
    // SAFETY: the path is a C string and `how` lives through the call; its size is passed.
    let fd = unsafe {
        libc::syscall(libc::SYS_openat2, libc::AT_FDCWD, path.as_ptr(), &how, std::mem::size_of::<libc::open_how>())
    };
    if fd >= 0 {
        // SAFETY: the kernel just returned this descriptor and nobody else has it.
        return Ok(Some(unsafe { File::from_raw_fd(fd as i32) }));
    }
    let error = io::Error::last_os_error();
    match error.raw_os_error() {
        Some(libc::EAGAIN) => Ok(None),
        Some(libc::ENOSYS | libc::EINVAL | libc::EPERM) => {
            NO_CACHED_OPEN.store(true, Ordering::Relaxed);
            Ok(None)
        }
        _ => Err(error),
    }
}

/// Reads from `offset` what the page cache has, from the start of `out` on. A count below `out.len()` means that
/// the rest must be read by a thread that may wait (or that the file ends there).
pub fn read_now(file: &File, out: &mut [MaybeUninit<u8>], offset: u64) -> usize {
    read(file, out, offset, libc::RWF_NOWAIT).unwrap_or_else(|(n, _)| n)
}

/// Reads from `offset` until `out` is full or the file ends, waiting where needed.
pub fn read_full(file: &File, out: &mut [MaybeUninit<u8>], offset: u64) -> io::Result<usize> {
    read(file, out, offset, 0).map_err(|(_, error)| error)
}

fn read(file: &File, out: &mut [MaybeUninit<u8>], offset: u64, flags: i32) -> Result<usize, (usize, io::Error)> {
    let mut done = 0;
    while done < out.len() {
        let rest = &mut out[done..];
        let iov = libc::iovec { iov_base: rest.as_mut_ptr().cast(), iov_len: rest.len() };
        // SAFETY: the vector points at `rest`, writable memory that outlives the call.
        let n = unsafe { libc::preadv2(file.as_raw_fd(), &iov, 1, (offset + done as u64) as libc::off_t, flags) };
        match n {
            0 => break,
            n if n > 0 => done += n as usize,
            _ => {
                let error = io::Error::last_os_error();
                if error.kind() != io::ErrorKind::Interrupted {
                    return Err((done, error));
                }
            }
        }
    }
    Ok(done)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_just_written_is_read_at_once() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("f");
        std::fs::write(&path, b"hello").unwrap();
        let file = open_now(&path).unwrap().unwrap_or_else(|| File::open(&path).unwrap());
        let mut out = Vec::with_capacity(10);
        let n = read_full(&file, &mut out.spare_capacity_mut()[..10], 1).unwrap();
        // SAFETY: `read_full` filled `n` bytes.
        unsafe { out.set_len(n) };
        assert_eq!(out, b"ello");
        let mut now = [MaybeUninit::uninit(); 3];
        assert!(read_now(&file, &mut now, 0) <= 3);
    }
}
