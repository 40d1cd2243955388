//! How files were seen last: when each changed and how long it was ([`Stamp`]). Two such tables make close-to-open
//! cheap: the vfs knows whether the kernel's pages of a file are still good, and the transport whether its attributes
//! are.

use crate::base::{Attr, Ino, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;

const SHARDS: usize = 16;
/// Beyond this many files a shard starts anew; forgetting costs a request or a read, nothing else.
const SHARD_MAX: usize = 4096;

/// By what a file that another client changed is known from the one that was seen. Its time of change alone can be set
/// back by anybody.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stamp {
    pub mtime: Timestamp,
    pub ctime: Timestamp,
    pub length: u64,
}

impl Stamp {
    pub fn of(attr: &Attr) -> Stamp {
        Stamp { mtime: attr.mtime, ctime: attr.ctime, length: attr.length }
    }
}

/// A bounded table of files as they were seen last.
#[derive(Default)]
pub struct SeenFiles {
    shards: [Mutex<HashMap<Ino, Stamp>>; SHARDS],
}

impl SeenFiles {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Stamp>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    pub fn note(&self, ino: Ino, seen: Stamp) {
        let mut shard = self.shard(ino).lock();
        if shard.len() >= SHARD_MAX && !shard.contains_key(&ino) {
            shard.clear();
        }
        shard.insert(ino, seen);
    }

    /// As `note`; nodes of other kinds are not taken note of.
    pub fn note_attr(&self, ino: Ino, attr: &Attr) {
        if attr.is_file() {
            self.note(ino, Stamp::of(attr));
        }
    }

    /// Whether this is how the file was seen last.
    pub fn knows(&self, ino: Ino, seen: Stamp) -> bool {
        self.shard(ino).lock().get(&ino) == Some(&seen)
    }

    pub fn forget(&self, ino: Ino) {
        self.shard(ino).lock().remove(&ino);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;
    use crate::meta::ops::lookup::stub;

    #[test]
    fn the_last_look_counts_and_the_table_is_bounded() {
        let files = SeenFiles::default();
        let seen = |length| Stamp { mtime: Timestamp::default(), ctime: Timestamp::default(), length };
        assert!(!files.knows(Ino(5), seen(1)));
        files.note(Ino(5), seen(1));
        files.note(Ino(5), seen(2));
        assert!(files.knows(Ino(5), seen(2)) && !files.knows(Ino(5), seen(1)));
        files.forget(Ino(5));
        assert!(!files.knows(Ino(5), seen(2)));
        let (dir, file) = (stub(Kind::Directory), stub(Kind::File));
        files.note_attr(Ino(6), &dir);
        files.note_attr(Ino(7), &file);
        assert!(!files.knows(Ino(6), Stamp::of(&dir)) && files.knows(Ino(7), Stamp::of(&file)));
        files.note(Ino(5), seen(2));
        for i in 0..SHARD_MAX as u64 {
            files.note(Ino(5 + (i + 1) * SHARDS as u64), seen(1));
        }
        assert!(!files.knows(Ino(5), seen(2)));
        assert!(files.shards.iter().all(|shard| shard.lock().len() <= SHARD_MAX));
    }
}
