//! The file of one cached block (`spec/data.md` 12.3): the plain bytes, then a CRC-32C in big-endian for each 32 KiB of
//! them, and, for blocks that were staged, a footer that we step over. What a read touches is verified on its way in.

use crate::buf::Pool;
use crate::util::fileio;
use crate::util::publish::{Target, publish};
use bytes::Bytes;
use std::fs::File;
use std::io::{self, Write};
use std::ops::Range;
use std::path::{Path, PathBuf};
use std::sync::Arc;

/// Bytes under one checksum.
const PAGE: u32 = 32 << 10;

/// What is verified when a range is read (`--verify-cache-checksum`, `spec/data.md` 12.4). All but `None` write the
/// same checksums.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Verify {
    None,
    /// Only reads of the whole block.
    Full,
    /// The pages that lie inside the range.
    Shrink,
    /// Every page that the range touches.
    #[default]
    Extend,
}

impl Verify {
    pub fn parse(name: &str) -> Option<Verify> {
        match name {
            "none" => Some(Verify::None),
            "full" => Some(Verify::Full),
            "shrink" => Some(Verify::Shrink),
            "extend" => Some(Verify::Extend),
            _ => None,
        }
    }
}

/// How a read of a block file ended.
pub(super) enum Outcome {
    Read(Bytes),
    /// Only with `now`: a thread that may wait must do it.
    WouldWait,
    /// The file is not a whole and sound block; the reason.
    Broken(&'static str),
}

/// Whether a file of `file_len` bytes for a block of `size` has checksums; `Err` when it cannot be such a file.
fn has_checksums(file_len: u64, size: u32) -> Result<bool, &'static str> {
    let sums = 4 * u64::from(size.div_ceil(PAGE));
    match file_len.checked_sub(u64::from(size)) {
        None => Err("too short"),
        Some(0) => Ok(false),
        // Checksums, perhaps a footer after them.
        Some(extra) if extra % 4 == 0 && extra >= sums => Ok(true),
        Some(extra) if extra % 4 == 0 => Err("too few checksums"),
        // A footer alone; its length is never a multiple of four.
        Some(_) => Ok(false),
    }
}

/// What to read and which pages of it to verify, for a wanted range.
fn plan(range: &Range<u32>, size: u32, verify: Verify) -> (Range<u32>, Range<u32>) {
    let inner = range.start.div_ceil(PAGE)..if range.end == size { size.div_ceil(PAGE) } else { range.end / PAGE };
    match verify {
        Verify::None => (range.clone(), 0..0),
        Verify::Full if *range == (0..size) => (range.clone(), inner),
        Verify::Full => (range.clone(), 0..0),
        Verify::Shrink if inner.start < inner.end => (range.clone(), inner),
        Verify::Shrink => (range.clone(), 0..0),
        Verify::Extend => {
            let pages = range.start / PAGE..range.end.div_ceil(PAGE);
            (pages.start * PAGE..(pages.end * PAGE).min(size), pages)
        }
    }
}

/// Reads `range` of the block of `size` bytes in `path`. With `now` it never waits for a disk.
pub(super) fn read(
    path: &Path,
    size: u32,
    range: Range<u32>,
    verify: Verify,
    pool: &Arc<Pool>,
    now: bool,
) -> io::Result<Outcome> {
    let file = if now {
        match fileio::open_now(path)? {
            Some(file) => file,
            None => return Ok(Outcome::WouldWait),
        }
    } else {
        File::open(path)?
    };
    let with_sums = match has_checksums(file.metadata()?.len(), size) {
        Ok(with_sums) => with_sums,
        Err(reason) => return Ok(Outcome::Broken(reason)),
    };
    let (wide, pages) = plan(&range, size, if with_sums { verify } else { Verify::None });
    let short = || if now { Outcome::WouldWait } else { Outcome::Broken("shorter than it says") };
    let len = (wide.end - wide.start) as usize;
    let mut buf = pool.take(len);
    let n = buf.fill_with(len, |out| match now {
        true => Ok(fileio::read_now(&file, out, u64::from(wide.start))),
        false => fileio::read_full(&file, out, u64::from(wide.start)),
    })?;
    if n < len {
        return Ok(short());
    }
    if pages.start < pages.end {
        let len = 4 * (pages.end - pages.start) as usize;
        let mut sums = pool.take(len);
        let at = u64::from(size) + 4 * u64::from(pages.start);
        let n = sums.fill_with(len, |out| match now {
            true => Ok(fileio::read_now(&file, out, at)),
            false => fileio::read_full(&file, out, at),
        })?;
        if n < len {
            return Ok(short());
        }
        let first = (pages.start * PAGE - wide.start) as usize;
        let wanted = sums.as_slice().chunks_exact(4);
        let data = buf.as_slice()[first..].chunks(PAGE as usize);
        if data.zip(wanted).any(|(page, sum)| crc32c::crc32c(page).to_be_bytes() != sum) {
            return Ok(Outcome::Broken("a checksum does not match"));
        }
    }
    let from = (range.start - wide.start) as usize;
    Ok(Outcome::Read(buf.freeze().slice(from..from + (range.end - range.start) as usize)))
}

/// The checksums of a block, as they follow it in the file.
fn checksums(block: &[u8]) -> Vec<u8> {
    block.chunks(PAGE as usize).flat_map(|page| crc32c::crc32c(page).to_be_bytes()).collect()
}

/// The mode of directories for a mode of files: whoever may read a block may work in its directory.
pub(super) fn directory_mode(file_mode: u32) -> u32 {
    [0o400, 0o040, 0o004].iter().filter(|&&r| file_mode & r != 0).fold(file_mode, |mode, &r| mode | r >> 1 | r >> 2)
}

/// Writes a block, which nobody sees a part of: it may be on its way to the disk twice, from this process or from another
/// that shares the directory.
pub(super) fn write(root: &Path, path: &Path, block: &[u8], with_sums: bool, mode: u32) -> io::Result<()> {
    let temporary = || {
        let mut temporary = path.as_os_str().to_owned();
        temporary.push(format!(".{:08x}.tmp", rand::random::<u32>()));
        PathBuf::from(temporary)
    };
    let sums = if with_sums { checksums(block) } else { Vec::new() };
    let write = |file: &mut File| {
        fileio::write_all(file, block)?;
        file.write_all(&sums)
    };
    publish(Target { root, path, mode, directory_mode: directory_mode(mode) }, temporary, write)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::buf::Budget;
    use std::fs;

    /// `spec/data.md` 20.3.
    #[test]
    fn checksums_are_the_format_s() {
        assert_eq!(crc32c::crc32c(b"123456789"), 0xe306_9283);
        assert_eq!(checksums(&vec![b'A'; 40000]), [0x5a, 0xb9, 0x92, 0xb7, 0xaf, 0x1b, 0x52, 0x80]);
        assert_eq!([0o600, 0o640, 0o644].map(directory_mode), [0o700, 0o770, 0o777]);
    }

    #[test]
    fn lengths_tell_the_layout() {
        let size = 40000;
        assert_eq!(has_checksums(size, 40000), Ok(false));
        assert_eq!(has_checksums(size + 8, 40000), Ok(true));
        assert_eq!(has_checksums(size + 8 + 20, 40000), Ok(true), "checksums and footer");
        assert_eq!(has_checksums(size + 18, 40000), Ok(false), "a footer alone");
        assert!(has_checksums(size + 4, 40000).is_err());
        assert!(has_checksums(size - 1, 40000).is_err());
    }

    #[test]
    fn damage_is_found_where_the_level_looks() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a/1_0_100000");
        let pool = Pool::new(Budget::new(1 << 30));
        let block: Vec<u8> = (0..100_000u32).map(|i| (i * 7) as u8).collect();
        write(dir.path(), &path, &block, true, 0o600).unwrap();
        let get = |range: Range<u32>, verify| match read(&path, 100_000, range, verify, &pool, false).unwrap() {
            Outcome::Read(bytes) => Some(bytes),
            Outcome::WouldWait => panic!("may wait"),
            Outcome::Broken(_) => None,
        };
        for range in [0..100_000, 5..6, 32767..32769, 98304..100_000, 40000..99_999] {
            for verify in [Verify::None, Verify::Full, Verify::Shrink, Verify::Extend] {
                assert_eq!(get(range.clone(), verify).unwrap(), block[range.start as usize..range.end as usize]);
            }
        }
        let mut file = fs::read(&path).unwrap();
        file[40_000] ^= 1; // in page 1
        fs::write(&path, &file).unwrap();
        assert!(get(33_000..33_001, Verify::Extend).is_none());
        assert!(get(5..6, Verify::Extend).is_some());
        assert!(get(33_000..33_001, Verify::Shrink).is_some());
        assert!(get(0..70_000, Verify::Shrink).is_none());
        assert!(get(0..70_000, Verify::Full).is_some());
        assert!(get(0..100_000, Verify::Full).is_none());
        assert!(get(0..100_000, Verify::None).is_some());
        fs::write(&path, &file[..99_999]).unwrap();
        assert!(get(0..1, Verify::None).is_none(), "too short");
    }
}
