//! Which files this client has open: an unlinked file that is open here must outlive its last name.

use super::Meta;
use crate::base::Ino;
use parking_lot::Mutex;
use std::collections::HashMap;

/// Enough shards that opens on many threads seldom meet.
const SHARDS: usize = 32;

/// Open counts by inode.
pub(crate) struct OpenFiles([Mutex<HashMap<Ino, u32>>; SHARDS]);

impl OpenFiles {
    pub(crate) fn new() -> OpenFiles {
        OpenFiles(std::array::from_fn(|_| Mutex::default()))
    }

    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, u32>> {
        &self.0[ino.0 as usize % SHARDS]
    }
}

impl Meta {
    /// Counts one more handle of the file.
    pub fn open_file(&self, ino: Ino) {
        *self.open_files.shard(ino).lock().entry(ino).or_default() += 1;
    }

    /// Counts one handle less; true when it was the last one.
    pub fn close_file(&self, ino: Ino) -> bool {
        let mut files = self.open_files.shard(ino).lock();
        let Some(count) = files.get_mut(&ino) else { return false };
        *count -= 1;
        let last = *count == 0;
        if last {
            files.remove(&ino);
        }
        last
    }

    /// This client has a handle of the file.
    pub fn is_open(&self, ino: Ino) -> bool {
        self.open_files.shard(ino).lock().contains_key(&ino)
    }
}
