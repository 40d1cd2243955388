//! Nouns without I/O: inode numbers, names, attributes, times, errors. Everything above speaks in these words.
//!
//! Nothing here waits, allocates resources or knows an engine; the stored byte forms of the nouns
//! (`spec/metadata.md` section 1) live beside the nouns themselves.

pub mod acl;
pub mod attr;
pub mod errno;
pub mod fault;
pub mod ids;
pub mod mode;
pub mod name;
pub mod slice;
pub mod time;

pub use attr::{Attr, AttrPatch, FieldMask};
pub use errno::Errno;
pub use fault::{Fault, FaultKind, Outcome, Retry, Stop};
pub use ids::{ChunkIndex, Ino, SessionId, SliceId};
pub use mode::{Kind, Mode};
pub use name::Name;
pub use slice::Slice;
pub use time::Timestamp;

/// Bytes of a file that one chunk covers (`spec/metadata.md` section 0).
pub const CHUNK_BYTES: u64 = 64 << 20;

/// Space that `length` bytes are accounted as: whole 4 KiB pages, at least one (`align4K`, section 0).
pub fn align4k(length: u64) -> u64 {
    if length == 0 { 4096 } else { length.div_ceil(4096).saturating_mul(4096) }
}

#[cfg(test)]
mod tests {
    use super::align4k;

    #[test]
    fn accounting_rounds_up_to_pages() {
        assert_eq!([0, 1, 4096, 4097].map(align4k), [4096, 4096, 4096, 8192]);
    }
}
