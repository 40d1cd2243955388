//! Where names and bytes meet: the operations of a mounted volume, on inodes and handles, as the kernel asks them.
//!
//! `Vfs` decides nothing about names (that is `meta`) and nothing about blocks (that is `chunk`). It owns what lies
//! between: handles, open files with their uncommitted writes, read-ahead, the order of flushes, and the background
//! work of a mount. Replies are values; `fuse` turns them into the kernel's protocol.
//!
//! Consistency: a read through this mount sees every write through this mount; another mount sees them after close or
//! fsync here and open there (close-to-open). Operations run to their end once begun: whoever waits for one may give
//! up waiting, the operation itself is not dropped.

pub mod ahead;
pub mod atime;
pub mod backup;
pub mod client;
pub mod compact;
pub mod control;
pub mod dirs;
pub mod engines;
pub mod file;
pub mod handle;
pub mod locks;
pub mod ops;
pub mod reader;
pub mod seen;
#[cfg(test)]
pub(crate) mod tests;
pub mod writer;

use crate::base::Ino;
use crate::chunk::ChunkStore;
use crate::config::client::AtimeMode;
use crate::meta::Meta;
use ahead::Ahead;
use compact::Compactions;
use file::Files;
use handle::Handles;
use seen::{SeenFiles, Stamp};
use std::future::Future;
use std::sync::{Arc, Weak};
use std::time::Duration;

pub use ahead::Found;
pub use dirs::DirItem;
pub use handle::Handle;

/// How a mount behaves.
#[derive(Clone, Debug)]
pub struct VfsSettings {
    /// The directory that is mounted: the volume's root, or the one of `--subdir`.
    pub root: Ino,
    pub read_only: bool,
    /// Read-ahead per sequential reader, in bytes; 0 for none.
    pub max_readahead_bytes: u64,
    /// When reading moves access times.
    pub atime: AtimeMode,
    /// Slices compacted in the background at a time; 0 for none.
    pub compactions_max: usize,
    /// How long whoever looks names up believes the answers; zero for always asking.
    pub belief: Duration,
}

/// What open answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Opened {
    pub handle: Handle,
    /// The kernel may keep the pages it has of this file.
    pub keep_cache: bool,
    pub direct_io: bool,
    /// Files only: as open found them.
    pub seen: Option<Stamp>,
}

/// Inode numbers as users and the kernel see them: the directory that is mounted, wherever it is in the volume, is
/// number 1, and everything else keeps its own.
#[derive(Clone, Copy, Debug)]
pub struct Numbers {
    root: Ino,
}

impl Numbers {
    pub fn shown(self, ino: Ino) -> Ino {
        if ino == self.root { Ino::ROOT } else { ino }
    }

    /// The node behind a number that was shown.
    pub fn stored(self, shown: Ino) -> Ino {
        if shown == Ino::ROOT { self.root } else { shown }
    }
}

/// One mounted volume.
pub struct Vfs {
    pub(crate) meta: Arc<Meta>,
    pub(crate) data: ChunkStore,
    pub(crate) settings: VfsSettings,
    handles: Handles,
    files: Files,
    /// Files that were open here before: the kernel's pages of those that were not seen otherwise since are still good.
    opened_before: SeenFiles,
    /// Directories whose files are looked up one after the other.
    ahead: Ahead,
    compactions: Compactions,
    runtime: tokio::runtime::Handle,
    me: Weak<Vfs>,
}

impl Vfs {
    /// Must be called inside the runtime that is to carry the background work.
    pub fn new(meta: Arc<Meta>, data: ChunkStore, settings: VfsSettings) -> Arc<Vfs> {
        Arc::new_cyclic(|me| Vfs {
            compactions: Compactions::new(settings.compactions_max),
            ahead: Ahead::new(settings.belief),
            meta,
            data,
            settings,
            handles: Handles::default(),
            files: Files::default(),
            opened_before: SeenFiles::default(),
            runtime: tokio::runtime::Handle::current(),
            me: me.clone(),
        })
    }

    /// The directory that is mounted.
    pub fn root(&self) -> Ino {
        self.settings.root
    }

    pub fn numbers(&self) -> Numbers {
        Numbers { root: self.root() }
    }

    pub fn meta(&self) -> &Arc<Meta> {
        &self.meta
    }

    pub fn data(&self) -> &ChunkStore {
        &self.data
    }

    /// Files that nobody has open and that miss nothing, yet are known: there are none, but for a moment.
    #[cfg(test)]
    pub(crate) fn files_without_users(&self) -> Vec<Ino> {
        let idle = |file: &std::sync::Arc<file::File>| {
            let state = file.state();
            state.users == 0 && state.pending.is_empty()
        };
        self.files.all().iter().filter(|file| idle(file)).map(|file| file.ino).collect()
    }

    /// Handles that the kernel holds here.
    pub fn open_handles(&self) -> usize {
        self.handles.len()
    }

    /// Work that nobody waits for. It is bounded by what starts it: one commit per file, one
    /// read-ahead per read or directory.
    fn spawn(&self, work: impl Future<Output = ()> + Send + 'static) {
        self.runtime.spawn(work);
    }
}
