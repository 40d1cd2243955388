//! Numbers and words of the kernel's protocol against ours: kinds, times, modes, flags, errors.
//!
//! Each translation is one function with one `match`; nothing is decided here.

use crate::base::mode::PERMISSION_BITS;
use crate::base::{Attr, Errno, Fault, FaultKind, Kind, Mode, Stop, Timestamp};
use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// `st_blksize` of every node (`spec/surface.md`, kernel answers): what buffered readers and `cp` size their calls by.
pub const PREFERRED_IO_BYTES: u32 = 64 << 10;

/// Unit of `st_blocks`.
const BLOCK_BYTES: u64 = 512;

/// `st_blocks`: holes count, because what is stored of a file is not known to its attributes.
pub fn blocks(attr: &Attr) -> u64 {
    attr.length.div_ceil(BLOCK_BYTES)
}

/// The permission bits of a mode that may carry format bits.
pub fn permission_bits(mode: u32) -> Mode {
    (mode & u32::from(PERMISSION_BITS)) as Mode
}

/// The kind of node that mknod(2) asks for; no format bits mean a regular file. Directories are made by mkdir.
pub fn node_kind(mode: u32) -> Result<Kind, Errno> {
    if mode & libc::S_IFMT == 0 {
        return Ok(Kind::File);
    }
    match Kind::from_format_bits(mode) {
        Some(Kind::Directory | Kind::Symlink) | None => Err(Errno::EINVAL),
        Some(kind @ (Kind::File | Kind::Fifo | Kind::BlockDevice | Kind::CharDevice | Kind::Socket)) => Ok(kind),
    }
}

/// A time on its way out. Times outside what the system's clock type holds stop at its ends.
pub fn system_time(time: Timestamp) -> SystemTime {
    let nanos = Duration::from_nanos(u64::from(time.nanos));
    let shifted = if time.seconds >= 0 {
        UNIX_EPOCH.checked_add(Duration::from_secs(time.seconds as u64))
    } else {
        UNIX_EPOCH.checked_sub(Duration::from_secs(time.seconds.unsigned_abs()))
    };
    shifted.and_then(|whole| whole.checked_add(nanos)).unwrap_or(UNIX_EPOCH)
}

/// A time on its way in, from a transport that turns the wire's `(seconds, nanos)` into the time `seconds + nanos`
/// after the epoch, but `|seconds| + nanos` before it for negative seconds (fuser 0.18). The wire's numbers are read
/// back out of it; a plain conversion would move times before 1970 that have a fraction.
pub fn wire_time(time: SystemTime) -> Timestamp {
    match time.duration_since(UNIX_EPOCH) {
        Ok(after) => Timestamp::new(after.as_secs() as i64, after.subsec_nanos()),
        Err(before) => {
            let before = before.duration();
            Timestamp::new((before.as_secs() as i64).saturating_neg(), before.subsec_nanos())
        }
    }
}

/// How loud an outcome is in the log.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Loudness {
    /// An answer of the file system: normal.
    Answer,
    /// Something below is not well, and trying again can help.
    Warning,
    /// Something broke, or data is at stake.
    Error,
}

/// What an application sees of an operation that did not succeed, and how loud the log is about it.
pub fn refusal(stop: &Stop) -> (Errno, Loudness) {
    match stop {
        Stop::Errno(errno) => (*errno, Loudness::Answer),
        Stop::Fault(fault) => (fault.errno(), loudness(fault)),
    }
}

fn loudness(fault: &Fault) -> Loudness {
    match fault.kind() {
        FaultKind::Conflict
        | FaultKind::Unavailable
        | FaultKind::Throttled
        | FaultKind::Timeout
        | FaultKind::Denied
        | FaultKind::Unsupported
        | FaultKind::Full => Loudness::Warning,
        // An object or record that is gone, wrong or unreadable is somebody's data.
        FaultKind::NotFound
        | FaultKind::Undetermined
        | FaultKind::Integrity
        | FaultKind::Corrupt
        | FaultKind::Config
        | FaultKind::Internal => Loudness::Error,
    }
}

/// The flags word of FS_IOC_GETFLAGS for the stored flags of a node (`spec/metadata.md` 1.3).
pub fn ioctl_flags(flags: u8) -> u32 {
    use crate::base::mode::flag::{APPEND, IMMUTABLE, SKIP_TRASH};
    word_of(flags, &[(SKIP_TRASH, FS_SECRM_FL), (IMMUTABLE, FS_IMMUTABLE_FL), (APPEND, FS_APPEND_FL)])
}

/// The bits that stand for stored flags.
fn word_of(flags: u8, bits: &[(u8, u32)]) -> u32 {
    bits.iter().filter(|(stored, _)| flags & stored != 0).fold(0, |word, (_, bit)| word | bit)
}

/// The stored flags for the flags word of FS_IOC_SETFLAGS; any other bit cannot be kept and is ENOTSUP.
pub fn stored_flags(word: u32) -> Result<u8, Errno> {
    use crate::base::mode::flag::{APPEND, IMMUTABLE, SKIP_TRASH};
    if word & !(FS_SECRM_FL | FS_IMMUTABLE_FL | FS_APPEND_FL) != 0 {
        return Err(Errno::ENOTSUP);
    }
    let mut flags = 0;
    for (stored, bit) in [(SKIP_TRASH, FS_SECRM_FL), (IMMUTABLE, FS_IMMUTABLE_FL), (APPEND, FS_APPEND_FL)] {
        if word & bit != 0 {
            flags |= stored;
        }
    }
    Ok(flags)
}

/// Bits of `chattr`: `s`, `i` and `a`.
const FS_SECRM_FL: u32 = 0x01;
const FS_IMMUTABLE_FL: u32 = 0x10;
const FS_APPEND_FL: u32 = 0x20;

/// Commands of `chattr` and `lsattr`. The kernel's headers declare them with `long`, every program passes `int`; both
/// sizes occur.
pub const GETFLAGS: [u32; 2] = [0x8008_6601, 0x8004_6601];
pub const SETFLAGS: [u32; 2] = [0x4008_6602, 0x4004_6602];
/// FS_IOC_FSGETXATTR: the kernel asks with it before it sets flags.
pub const GETXFLAGS: u32 = 0x801c_581f;

/// `struct fsxattr` for the stored flags of a node: the word `fsx_xflags`, then nothing of what we do not keep.
pub fn fsxattr(flags: u8) -> [u8; 28] {
    use crate::base::mode::flag::{APPEND, IMMUTABLE};
    let word = word_of(flags, &[(IMMUTABLE, FS_XFLAG_IMMUTABLE), (APPEND, FS_XFLAG_APPEND)]);
    let mut record = [0; 28];
    record[..4].copy_from_slice(&word.to_ne_bytes());
    record
}

const FS_XFLAG_IMMUTABLE: u32 = 0x08;
const FS_XFLAG_APPEND: u32 = 0x10;

#[cfg(test)]
pub(super) mod tests {
    use super::*;
    use crate::base::Ino;
    use proptest::prelude::*;

    pub fn file(length: u64) -> Attr {
        let time = Timestamp::default();
        Attr {
            flags: 0,
            kind: Kind::File,
            mode: 0o644,
            uid: 0,
            gid: 0,
            atime: time,
            mtime: time,
            ctime: time,
            nlink: 1,
            length,
            rdev: 0,
            parent: Ino::ROOT,
            access_acl: 0,
            default_acl: 0,
            tier: 0,
        }
    }

    #[test]
    fn blocks_count_what_has_begun() {
        assert_eq!([0, 1, 512, 513, 4 << 20].map(|length| blocks(&file(length))), [0, 1, 1, 2, 8192]);
    }

    #[test]
    fn mknod_makes_everything_but_directories_and_symlinks() {
        assert_eq!(node_kind(0o644), Ok(Kind::File));
        assert_eq!(node_kind(libc::S_IFIFO | 0o600), Ok(Kind::Fifo));
        assert_eq!(node_kind(libc::S_IFBLK), Ok(Kind::BlockDevice));
        assert_eq!(node_kind(libc::S_IFDIR | 0o755), Err(Errno::EINVAL));
        assert_eq!(node_kind(libc::S_IFLNK), Err(Errno::EINVAL));
    }

    #[test]
    fn chattr_bits_map_both_ways_and_strangers_are_refused() {
        assert_eq!(ioctl_flags(1 | 32), 0x11);
        assert_eq!(ioctl_flags(4), 0, "flags of other systems are not chattr's");
        for word in [0, 0x01, 0x10, 0x20, 0x31] {
            assert_eq!(stored_flags(word).map(ioctl_flags), Ok(word));
        }
        assert_eq!(stored_flags(0x40), Err(Errno::ENOTSUP));
    }

    #[test]
    fn faults_are_louder_than_answers() {
        assert_eq!(refusal(&Errno::ENOENT.into()), (Errno::ENOENT, Loudness::Answer));
        assert_eq!(refusal(&Fault::unavailable("get").into()), (Errno::EIO, Loudness::Warning));
        assert_eq!(refusal(&Fault::corrupt("read attr").into()), (Errno::EIO, Loudness::Error));
        assert_eq!(refusal(&Fault::full("put").into()), (Errno::ENOSPC, Loudness::Warning));
    }

    proptest! {
        #[test]
        fn times_survive_the_transport(seconds in -(1i64 << 40)..(1i64 << 40), nanos in 0u32..1_000_000_000) {
            let time = Timestamp::new(seconds, nanos);
            // What fuser makes of the wire's numbers.
            let distorted = if seconds >= 0 {
                UNIX_EPOCH + Duration::new(seconds as u64, nanos)
            } else {
                UNIX_EPOCH - Duration::new(seconds.unsigned_abs(), nanos)
            };
            prop_assert_eq!(wire_time(distorted), time);
            prop_assert_eq!(Timestamp::from_system(system_time(time)), time);
        }
    }
}
