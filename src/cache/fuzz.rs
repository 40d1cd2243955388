//! Harness of the files of cached blocks: lengths, checksums and footers of any kind (`crate::fuzzing`).

use super::blockfile::{Outcome, Verify, read};
use crate::buf::{Budget, Pool};
use std::io::Write;
use std::sync::{Arc, LazyLock};

/// Small enough to try every place of, large enough for a second page.
const SIZE: u32 = (32 << 10) + 100;

/// Inputs are a size and a range in nine bytes, then the file.
pub fn files() -> Vec<Vec<u8>> {
    let block: Vec<u8> = (0..SIZE).map(|i| (i * 7) as u8).collect();
    let sums: Vec<u8> = block.chunks(32 << 10).flat_map(|page| crc32c::crc32c(page).to_be_bytes()).collect();
    let head = [&SIZE.to_be_bytes()[1..], &[0, 0, 9], &(SIZE - 20).to_be_bytes()[1..]].concat();
    let small = [&[0, 0, 5, 0, 0, 1, 0, 0, 4][..], b"hello"].concat();
    let footer = [&head[..], &block, &sums, b"18 bytes of footer"].concat();
    vec![[&head[..], &block, &sums].concat(), [&head[..], &block].concat(), footer, small]
}

pub fn file(data: &[u8]) {
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| Pool::new(Budget::new(1 << 30)));
    let Some((head, body)) = data.split_first_chunk::<9>() else { return };
    let number = |at: usize| u32::from_be_bytes([0, head[at], head[at + 1], head[at + 2]]);
    // Of every four sizes three fit what is there, more or less.
    let size = if head[2] % 4 == 3 { number(0) } else { number(0).min(body.len() as u32 + 1) };
    let (from, to) = (number(3).min(size), number(6).min(size));
    let range = from.min(to)..from.max(to);
    let mut file = tempfile_of(body);
    file.flush().expect("a file in memory");
    let path = format!("/proc/self/fd/{}", std::os::fd::AsRawFd::as_raw_fd(&file));
    for verify in [Verify::None, Verify::Full, Verify::Shrink, Verify::Extend] {
        for now in [false, true] {
            match read(path.as_ref(), size, range.clone(), verify, &POOL, now).expect("a file that can be read") {
                Outcome::Read(bytes) => {
                    assert_eq!(bytes, body[range.start as usize..range.end as usize]);
                }
                Outcome::WouldWait => assert!(now),
                Outcome::Broken(why) => assert!(!why.is_empty()),
            }
        }
    }
}

/// A file that lives in memory and has no name.
fn tempfile_of(body: &[u8]) -> std::fs::File {
    // SAFETY: the name is a string that ends; the descriptor is new and ours.
    let fd = unsafe { libc::memfd_create(c"block".as_ptr(), libc::MFD_CLOEXEC) };
    assert!(fd >= 0, "no memory file");
    // SAFETY: as above.
    let mut file = unsafe { <std::fs::File as std::os::fd::FromRawFd>::from_raw_fd(fd) };
    file.write_all(body).expect("a file in memory");
    file
}
