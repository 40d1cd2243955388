//! Random operations on one file, checked against plain memory: writes, reads, truncates, punched holes, zeroed
//! ranges, mapped reads and writes, copy_file_range, fsync, reopening, dropped caches.
//!
//! The seed is printed with a failure and can be given again as `SLUICE_EXERCISE_SEED`.

use rand::rngs::StdRng;
use rand::{Rng, RngCore, SeedableRng};
use std::fs::{File, OpenOptions};
use std::os::fd::AsRawFd;
use std::os::unix::fs::FileExt;
use std::path::{Path, PathBuf};

/// The file stays below this; small enough that operations overlap all the time.
const FILE_BYTES_MAX: usize = 512 << 10;
/// One file in four reaches across a chunk border, where slices are cut.
const CHUNK_BYTES: u64 = 64 << 20;

struct Exerciser {
    path: PathBuf,
    file: File,
    model: Vec<u8>,
    /// Where in the file the model begins.
    base: u64,
    random: StdRng,
    noise: Vec<u8>,
}

/// What is written is cut from this much random data, which is made once.
const NOISE_BYTES: usize = 1 << 20;

/// Runs `operations` random operations on new files in `dir`, or as many as `SLUICE_EXERCISE_OPERATIONS` says.
pub fn exercise(dir: &Path, operations: usize) {
    let wanted = std::env::var("SLUICE_EXERCISE_OPERATIONS").ok().and_then(|n| n.parse().ok());
    let operations = wanted.unwrap_or(operations);
    let seed = std::env::var("SLUICE_EXERCISE_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("SLUICE_EXERCISE_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let per_file = operations.div_ceil(8);
    let mut noise = vec![0; NOISE_BYTES];
    random.fill_bytes(&mut noise);
    for round in 0..8 {
        let path = dir.join(format!("exercised-{round}"));
        let base = if round % 4 == 3 { CHUNK_BYTES - FILE_BYTES_MAX as u64 / 2 } else { 0 };
        let file = open(&path, true);
        let random = StdRng::seed_from_u64(random.random());
        let mut run = Exerciser { path, file, model: Vec::new(), base, random, noise };
        for step in 0..per_file {
            run.step(&format!("seed {seed}, file {round}, operation {step}"));
        }
        run.reopen();
        run.compare("at the end");
        std::fs::remove_file(&run.path).expect("the file is removed");
        noise = run.noise;
    }
}

fn open(path: &Path, new: bool) -> File {
    OpenOptions::new().read(true).write(true).create(new).truncate(new).open(path).expect("the file opens")
}

impl Exerciser {
    fn range(&mut self) -> (usize, usize) {
        let from = self.random.random_range(0..FILE_BYTES_MAX - 1);
        let longest = if self.random.random_bool(0.2) { 64 << 10 } else { 6000 };
        (from, self.random.random_range(1..=longest.min(FILE_BYTES_MAX - from)))
    }

    fn step(&mut self, what: &str) {
        match self.random.random_range(0..100) {
            0..35 => self.write(),
            35..65 => self.read(what),
            65..72 => self.truncate(),
            72..79 => self.punch(),
            79..83 => self.mapped_write(),
            83..88 => self.mapped_read(what),
            88..92 => self.copy_range(),
            92..95 => self.file.sync_all().expect("fsync"),
            95..97 => self.drop_pages(),
            97..99 => self.reopen(),
            _ => self.compare(what),
        }
    }

    fn some_bytes(&mut self, len: usize) -> Vec<u8> {
        let at = self.random.random_range(0..=NOISE_BYTES - len);
        self.noise[at..at + len].to_vec()
    }

    fn grow(&mut self, end: usize) {
        if self.model.len() < end {
            self.model.resize(end, 0);
        }
    }

    fn write(&mut self) {
        let (from, len) = self.range();
        let bytes = self.some_bytes(len);
        self.file.write_all_at(&bytes, self.base + from as u64).expect("write");
        self.grow(from + len);
        self.model[from..from + len].copy_from_slice(&bytes);
    }

    fn read(&mut self, what: &str) {
        let (from, len) = self.range();
        let mut bytes = vec![0xEE; len];
        let mut got = 0;
        while got < len {
            match self.file.read_at(&mut bytes[got..], self.base + (from + got) as u64).expect("read") {
                0 => break,
                n => got += n,
            }
        }
        let end = self.model.len().min(from + len).max(from.min(self.model.len()));
        let expected = &self.model[from.min(end)..end];
        assert_eq!(got, expected.len(), "{what}: read at {from} of {} bytes", self.model.len());
        same(&bytes[..got], expected, from, what);
    }

    fn truncate(&mut self) {
        let len = self.random.random_range(0..FILE_BYTES_MAX);
        self.file.set_len(self.base + len as u64).expect("truncate");
        self.model.resize(len, 0);
    }

    fn punch(&mut self) {
        let (from, len) = self.range();
        let mode = if self.random.random_bool(0.5) {
            libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE
        } else {
            libc::FALLOC_FL_ZERO_RANGE
        };
        // SAFETY: a call on an open descriptor with plain numbers.
        let done =
            unsafe { libc::fallocate(self.file.as_raw_fd(), mode, (self.base + from as u64) as i64, len as i64) };
        assert_eq!(done, 0, "fallocate: {}", std::io::Error::last_os_error());
        if mode == libc::FALLOC_FL_ZERO_RANGE {
            self.grow(from + len);
        }
        let end = self.model.len().min(from + len);
        self.model[from.min(end)..end].fill(0);
    }

    /// A shared mapping of the pages that hold `[from, from + len)`, given to `use_it` with the place inside it.
    fn map<T>(&self, from: usize, len: usize, use_it: impl FnOnce(&mut [u8]) -> T) -> T {
        let start = self.base + from as u64;
        let page = start / 4096 * 4096;
        let total = (start - page) as usize + len;
        // SAFETY: the mapping covers `total` bytes of a file that is at least that long, it is used by this thread
        // alone, and it is gone before this function returns.
        unsafe {
            let prot = libc::PROT_READ | libc::PROT_WRITE;
            let at =
                libc::mmap(std::ptr::null_mut(), total, prot, libc::MAP_SHARED, self.file.as_raw_fd(), page as i64);
            assert_ne!(at, libc::MAP_FAILED, "mmap: {}", std::io::Error::last_os_error());
            let bytes = std::slice::from_raw_parts_mut(at.cast::<u8>(), total);
            let result = use_it(&mut bytes[(start - page) as usize..]);
            assert_eq!(libc::munmap(at, total), 0);
            result
        }
    }

    fn range_inside(&mut self) -> Option<(usize, usize)> {
        let (from, len) = self.range();
        (from < self.model.len()).then(|| (from, len.min(self.model.len() - from)))
    }

    fn mapped_write(&mut self) {
        let Some((from, len)) = self.range_inside() else { return };
        let bytes = self.some_bytes(len);
        self.map(from, len, |mapped| mapped.copy_from_slice(&bytes));
        self.model[from..from + len].copy_from_slice(&bytes);
    }

    fn mapped_read(&mut self, what: &str) {
        let Some((from, len)) = self.range_inside() else { return };
        let bytes = self.map(from, len, |mapped| mapped.to_vec());
        same(&bytes, &self.model[from..from + len], from, what);
    }

    fn copy_range(&mut self) {
        let Some((from, len)) = self.range_inside() else { return };
        let to = self.random.random_range(0..FILE_BYTES_MAX - len);
        if to < from + len && from < to + len {
            return; // one file's ranges must not overlap
        }
        let (mut off_in, mut off_out) = ((self.base + from as u64) as i64, (self.base + to as u64) as i64);
        let mut left = len;
        while left > 0 {
            let fd = self.file.as_raw_fd();
            // SAFETY: a call on open descriptors with pointers to live numbers.
            let n = unsafe { libc::copy_file_range(fd, &mut off_in, fd, &mut off_out, left, 0) };
            assert!(n > 0, "copy_file_range: {n}, {}", std::io::Error::last_os_error());
            left -= n as usize;
        }
        self.grow(to + len);
        self.model.copy_within(from..from + len, to);
    }

    /// What the kernel holds of the file is dropped, so that reads come to the file system.
    fn drop_pages(&mut self) {
        self.file.sync_all().expect("fsync");
        // SAFETY: a call on an open descriptor with plain numbers.
        unsafe { libc::posix_fadvise(self.file.as_raw_fd(), 0, 0, libc::POSIX_FADV_DONTNEED) };
    }

    fn reopen(&mut self) {
        self.file = open(&self.path, false);
    }

    fn compare(&mut self, what: &str) {
        self.drop_pages();
        let len = self.file.metadata().expect("fstat").len();
        let expected = if self.model.is_empty() && len == 0 { 0 } else { self.base + self.model.len() as u64 };
        assert_eq!(len, expected, "{what}: length");
        let mut bytes = vec![0; self.model.len()];
        self.file.read_exact_at(&mut bytes, self.base).expect("read all");
        same(&bytes, &self.model, 0, what);
    }
}

#[track_caller]
fn same(got: &[u8], expected: &[u8], from: usize, what: &str) {
    // Told at once when they are equal: looking byte by byte takes most of a run in an unoptimised build.
    if got == expected {
        return;
    }
    if let Some(at) = got.iter().zip(expected).position(|(a, b)| a != b) {
        let differing = got.iter().zip(expected).filter(|(a, b)| a != b).count();
        panic!(
            "{what}: {differing} of {} bytes differ, the first at {}: got {:#x}, expected {:#x}",
            got.len(),
            from + at,
            got[at],
            expected[at]
        );
    }
}
