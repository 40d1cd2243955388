//! The seam between the kernel and the file system: requests in, replies out.
//!
//! A transport reads the kernel's messages, turns each into a [`Request`] with an [`Origin`] and a [`Reply`], and hands
//! the three to the dispatcher. It knows the wire and nothing of the file system; the dispatcher knows the file system
//! and nothing of the wire. `fuser.rs` is one transport; another (interrupts, vectored replies, io_uring) can take its
//! place without a change on the other side.
//!
//! A request borrows the transport's receive buffer, so whatever outlives the call is copied out of it first.

use crate::base::{Attr, Errno, Ino, Timestamp};
use crate::buf::Payload;
use crate::vfs::seen::Stamp;
use crate::vfs::{DirItem, Handle};
use bytes::Bytes;
use std::time::Duration;

/// Who sent a request.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Origin {
    /// The kernel's number of the request.
    pub unique: u64,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
}

/// A time as utimensat(2) gives it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NewTime {
    Now,
    At(Timestamp),
}

/// What setattr asks to change.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Changes {
    /// May carry the format bits; only the twelve permission bits count.
    pub mode: Option<u32>,
    pub uid: Option<u32>,
    pub gid: Option<u32>,
    pub size: Option<u64>,
    pub atime: Option<NewTime>,
    pub mtime: Option<NewTime>,
    /// Sent by a kernel that keeps times itself (writeback cache).
    pub ctime: Option<Timestamp>,
}

/// A range lock as the kernel describes it; `end` is inclusive and `kind` is one of `F_RDLCK`, `F_WRLCK`, `F_UNLCK`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RangeLock {
    pub start: u64,
    pub end: u64,
    pub kind: i32,
    pub pid: u32,
}

/// One request of the kernel. Names are as they came: any bytes, of any length.
#[derive(Clone, Copy, Debug)]
pub enum Request<'a> {
    Lookup {
        parent: Ino,
        name: &'a [u8],
    },
    GetAttr {
        ino: Ino,
        handle: Option<Handle>,
    },
    SetAttr {
        ino: Ino,
        handle: Option<Handle>,
        changes: Changes,
    },
    ReadLink {
        ino: Ino,
    },
    /// `mode` carries the format bits.
    MakeNode {
        parent: Ino,
        name: &'a [u8],
        mode: u32,
        umask: u32,
        rdev: u32,
    },
    MakeDir {
        parent: Ino,
        name: &'a [u8],
        mode: u32,
        umask: u32,
    },
    Symlink {
        parent: Ino,
        name: &'a [u8],
        target: &'a [u8],
    },
    Link {
        ino: Ino,
        parent: Ino,
        name: &'a [u8],
    },
    Unlink {
        parent: Ino,
        name: &'a [u8],
    },
    RemoveDir {
        parent: Ino,
        name: &'a [u8],
    },
    Rename {
        parent: Ino,
        name: &'a [u8],
        new_parent: Ino,
        new_name: &'a [u8],
        flags: u32,
    },
    Create {
        parent: Ino,
        name: &'a [u8],
        mode: u32,
        umask: u32,
        flags: i32,
    },
    Open {
        ino: Ino,
        flags: i32,
    },
    Read {
        ino: Ino,
        handle: Handle,
        offset: u64,
        len: u32,
    },
    Write {
        ino: Ino,
        handle: Handle,
        offset: u64,
        data: &'a [u8],
    },
    Flush {
        ino: Ino,
        handle: Handle,
        owner: u64,
    },
    Fsync {
        ino: Ino,
        handle: Handle,
        datasync: bool,
    },
    /// `owner` is given when the process that closes held a flock.
    Release {
        ino: Ino,
        handle: Handle,
        flags: i32,
        owner: Option<u64>,
    },
    Allocate {
        ino: Ino,
        handle: Handle,
        mode: i32,
        offset: u64,
        len: u64,
    },
    CopyRange {
        from: (Ino, Handle, u64),
        to: (Ino, Handle, u64),
        len: u64,
        flags: u64,
    },
    OpenDir {
        ino: Ino,
        flags: i32,
    },
    ReadDir {
        ino: Ino,
        handle: Handle,
        offset: u64,
        plus: bool,
    },
    ReleaseDir {
        ino: Ino,
        handle: Handle,
    },
    FsyncDir {
        ino: Ino,
        handle: Handle,
        datasync: bool,
    },
    StatFs {
        ino: Ino,
    },
    Access {
        ino: Ino,
        mask: i32,
    },
    GetXattr {
        ino: Ino,
        name: &'a [u8],
        size: u32,
    },
    SetXattr {
        ino: Ino,
        name: &'a [u8],
        value: &'a [u8],
        flags: i32,
    },
    ListXattr {
        ino: Ino,
        size: u32,
    },
    RemoveXattr {
        ino: Ino,
        name: &'a [u8],
    },
    GetLock {
        ino: Ino,
        handle: Handle,
        owner: u64,
        lock: RangeLock,
    },
    SetLock {
        ino: Ino,
        handle: Handle,
        owner: u64,
        lock: RangeLock,
        wait: bool,
    },
    /// flock(2): on the whole file, of one open file. `kind` is that of fcntl(2).
    Flock {
        ino: Ino,
        handle: Handle,
        owner: u64,
        kind: i32,
        wait: bool,
    },
    Ioctl {
        ino: Ino,
        handle: Handle,
        command: u32,
        input: &'a [u8],
        output_bytes: u32,
    },
}

/// How long the kernel may believe an answer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Belief {
    pub attr: Duration,
    pub entry: Duration,
}

impl Belief {
    /// For replies that carry one time-out for both.
    pub fn joined(self) -> Duration {
        self.attr.min(self.entry)
    }
}

/// A node and how long the kernel may believe it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    pub ino: Ino,
    pub attr: Attr,
    pub belief: Belief,
}

impl Node {
    /// As an answer that is so old already: the kernel believes it for what is left.
    pub fn aged(mut self, age: Duration) -> Node {
        let Belief { attr, entry } = self.belief;
        self.belief = Belief { attr: attr.saturating_sub(age), entry: entry.saturating_sub(age) };
        self
    }
}

/// An open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opening {
    pub handle: Handle,
    pub keep_cache: bool,
    pub direct_io: bool,
    /// Files only: what the metadata says now. A kernel that was told otherwise has to ask again.
    pub seen: Option<(Ino, Stamp)>,
    /// Directories only: the kernel may keep the listing.
    pub cache_dir: bool,
}

/// One entry of a listing. `belief` matters for listings with attributes only.
#[derive(Clone, Debug)]
pub struct Listed {
    pub item: DirItem,
    pub belief: Belief,
}

/// What statfs answers; blocks and files, sizes in bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Space {
    pub blocks: u64,
    pub blocks_free: u64,
    pub files: u64,
    pub files_free: u64,
    pub block_bytes: u32,
    pub name_bytes_max: u32,
}

/// An answer to a request. Each request has its kind of answer; a transport that is handed another one answers EIO.
#[derive(Debug)]
pub enum Answer {
    Done,
    /// A lock was taken: what the kernel believes of the file's attributes is from before that.
    Locked(Ino),
    Node(Node),
    /// There is no such name, and the kernel may believe so for this long.
    NoNode(Duration),
    Attr(Node),
    Target(Bytes),
    Data(Payload),
    Opened(Opening),
    Created(Node, Opening),
    Written(u32),
    /// Entries from the requested offset on; the transport takes as many as fit.
    Listing(Vec<Listed>),
    Space(Space),
    Lock(RangeLock),
    /// The bytes of an extended attribute or of the list of their names.
    Xattr(Bytes),
    /// How many bytes there would be.
    XattrSize(u32),
    Ioctl(Bytes),
}

/// The way back to the kernel, used exactly once. One that is dropped unused answers EIO.
pub trait Reply: Send + 'static {
    fn answer(self, answer: Answer);
    fn refuse(self, errno: Errno);
}

/// What we may tell the kernel unasked.
pub trait KernelCache: Send + Sync {
    /// Forget that `name` in `parent` leads anywhere.
    fn forget_entry(&self, parent: Ino, name: &[u8]);
}
