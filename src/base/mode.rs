//! What kind of node it is and who may do what: `Kind` and `Mode`.

/// The kind of a node; the numbers are stored (`spec/metadata.md` section 0).
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash)]
#[repr(u8)]
pub enum Kind {
    File = 1,
    Directory = 2,
    Symlink = 3,
    Fifo = 4,
    BlockDevice = 5,
    CharDevice = 6,
    Socket = 7,
}

impl Kind {
    pub fn from_code(code: u8) -> Option<Kind> {
        Some(match code {
            1 => Kind::File,
            2 => Kind::Directory,
            3 => Kind::Symlink,
            4 => Kind::Fifo,
            5 => Kind::BlockDevice,
            6 => Kind::CharDevice,
            7 => Kind::Socket,
            _ => return None,
        })
    }

    pub fn code(self) -> u8 {
        self as u8
    }

    /// The S_IFMT bits.
    pub fn format_bits(self) -> u32 {
        match self {
            Kind::File => libc::S_IFREG,
            Kind::Directory => libc::S_IFDIR,
            Kind::Symlink => libc::S_IFLNK,
            Kind::Fifo => libc::S_IFIFO,
            Kind::BlockDevice => libc::S_IFBLK,
            Kind::CharDevice => libc::S_IFCHR,
            Kind::Socket => libc::S_IFSOCK,
        }
    }

    /// From the S_IFMT bits of a mode.
    pub fn from_format_bits(mode: u32) -> Option<Kind> {
        Some(match mode & libc::S_IFMT {
            libc::S_IFREG => Kind::File,
            libc::S_IFDIR => Kind::Directory,
            libc::S_IFLNK => Kind::Symlink,
            libc::S_IFIFO => Kind::Fifo,
            libc::S_IFBLK => Kind::BlockDevice,
            libc::S_IFCHR => Kind::CharDevice,
            libc::S_IFSOCK => Kind::Socket,
            _ => return None,
        })
    }
}

/// The twelve permission bits: suid, sgid, sticky and rwx for owner, group and others.
pub type Mode = u16;

pub const SUID: Mode = 0o4000;
pub const SGID: Mode = 0o2000;
pub const STICKY: Mode = 0o1000;
pub const GROUP_EXECUTE: Mode = 0o010;
pub const PERMISSION_BITS: Mode = 0o7777;

/// What is asked of a node, as in access(2).
pub const READ: u8 = 4;
pub const WRITE: u8 = 2;
pub const EXECUTE: u8 = 1;

/// Flags byte of a node (`spec/metadata.md` 1.3).
pub mod flag {
    pub const IMMUTABLE: u8 = 1;
    pub const APPEND: u8 = 2;
    pub const SKIP_TRASH: u8 = 32;
}
