//! Handles: the numbers that the kernel holds for what it has open in this client.
//!
//! Read-only handles are odd, the others even, as the peer numbers them: after a crash an unknown odd handle can be
//! made anew, for it has nothing to lose (`spec/data.md` 17.4).

use super::atime::LastLook;
use super::dirs::DirStream;
use super::file::File;
use super::reader::ReadAhead;
use crate::base::{Errno, Ino, Outcome};
use parking_lot::{Mutex, RwLock};
use std::collections::HashMap;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// A number the kernel holds for an open file or directory.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct Handle(pub u64);

/// An open file.
pub struct FileHandle {
    pub ino: Ino,
    pub file: Arc<File>,
    /// open(2) flags.
    pub flags: i32,
    pub read_ahead: Mutex<ReadAhead>,
    pub last_look: LastLook,
}

impl FileHandle {
    pub fn writes(&self) -> bool {
        self.flags & libc::O_ACCMODE != libc::O_RDONLY
    }
}

/// An open directory.
pub struct DirHandle {
    pub ino: Ino,
    pub stream: tokio::sync::Mutex<DirStream>,
}

#[derive(Clone)]
pub enum Open {
    File(Arc<FileHandle>),
    Dir(Arc<DirHandle>),
}

const SHARDS: usize = 16;

/// All handles of a mount.
pub struct Handles {
    next: AtomicU64,
    shards: [RwLock<HashMap<Handle, Open>>; SHARDS],
}

impl Default for Handles {
    fn default() -> Handles {
        Handles { next: AtomicU64::new(1), shards: Default::default() }
    }
}

impl Handles {
    fn shard(&self, handle: Handle) -> &RwLock<HashMap<Handle, Open>> {
        &self.shards[(handle.0 / 2) as usize % SHARDS]
    }

    pub fn insert(&self, open: Open) -> Handle {
        let read_only = match &open {
            Open::File(file) => !file.writes(),
            Open::Dir(_) => true,
        };
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed) * 2 + u64::from(read_only));
        self.shard(handle).write().insert(handle, open);
        handle
    }

    pub fn remove(&self, handle: Handle) -> Option<Open> {
        self.shard(handle).write().remove(&handle)
    }

    /// EBADF when it is not an open file.
    pub fn file(&self, handle: Handle) -> Outcome<Arc<FileHandle>> {
        match self.shard(handle).read().get(&handle) {
            Some(Open::File(file)) => Ok(file.clone()),
            _ => Err(Errno::EBADF.into()),
        }
    }

    /// EBADF when it is not an open directory.
    pub fn dir(&self, handle: Handle) -> Outcome<Arc<DirHandle>> {
        match self.shard(handle).read().get(&handle) {
            Some(Open::Dir(dir)) => Ok(dir.clone()),
            _ => Err(Errno::EBADF.into()),
        }
    }

    pub fn len(&self) -> usize {
        self.shards.iter().map(|shard| shard.read().len()).sum()
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }
}
