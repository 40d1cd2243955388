//! What the kernel believes of files: how long each is and when it last changed, as it was told.
//!
//! The kernel keeps attributes for a while and does not ask again when a file is opened. What open finds in the
//! metadata is held against this table, so that a process that opens a file after another client closed it sees that
//! client's length at once (close-to-open), and no request is spent when nothing changed.

use crate::base::{Attr, Ino, Timestamp};
use parking_lot::Mutex;
use std::collections::HashMap;

const SHARDS: usize = 16;
/// Beyond this many in a shard it starts anew; forgetting costs a request for attributes at an open, nothing else.
const SHARD_MAX: usize = 4096;

/// Time of the last change, and length in bytes.
pub type Seen = (Timestamp, u64);

/// Files that the kernel was told of.
#[derive(Default)]
pub struct Told {
    shards: [Mutex<HashMap<Ino, Seen>>; SHARDS],
}

impl Told {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Seen>> {
        &self.shards[ino.0 as usize % SHARDS]
    }

    /// The kernel is being told `attr`. Only regular files are taken note of.
    pub fn note(&self, ino: Ino, attr: &Attr) {
        if !attr.is_file() {
            return;
        }
        let mut shard = self.shard(ino).lock();
        if shard.len() >= SHARD_MAX && !shard.contains_key(&ino) {
            shard.clear();
        }
        shard.insert(ino, (attr.mtime, attr.length));
    }

    /// Whether this is what the kernel was told last.
    pub fn knows(&self, ino: Ino, seen: Seen) -> bool {
        self.shard(ino).lock().get(&ino) == Some(&seen)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;
    use crate::fuse::convert::tests::file;

    #[test]
    fn the_last_word_counts_and_the_table_is_bounded() {
        let told = Told::default();
        let seen = |length| (Timestamp::default(), length);
        assert!(!told.knows(Ino(5), seen(1)));
        told.note(Ino(5), &file(1));
        told.note(Ino(5), &file(2));
        assert!(told.knows(Ino(5), seen(2)) && !told.knows(Ino(5), seen(1)));
        told.note(Ino(6), &Attr { kind: Kind::Directory, ..file(3) });
        assert!(!told.knows(Ino(6), seen(3)));
        for i in 0..SHARD_MAX as u64 {
            told.note(Ino(5 + (i + 1) * SHARDS as u64), &file(1));
        }
        assert!(!told.knows(Ino(5), seen(2)));
        assert!(told.shards.iter().all(|shard| shard.lock().len() <= SHARD_MAX));
    }
}
