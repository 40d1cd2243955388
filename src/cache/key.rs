//! `BlockKey`: which block, and what it is called in the store and in a cache directory (`spec/data.md` 3.1 to 3.3).

use crate::base::SliceId;

/// One block of a slice. `size` is its plain length and part of its name.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub struct BlockKey {
    pub slice: SliceId,
    pub index: u32,
    pub size: u32,
}

impl BlockKey {
    /// The object's name below the volume's prefix. The two schemes differ in the middle level, not only in the hash.
    pub fn name(&self, hash_prefix: bool) -> String {
        let BlockKey { slice: SliceId(id), index, size } = *self;
        if hash_prefix {
            format!("chunks/{:02X}/{}/{id}_{index}_{size}", id % 256, id / 1_000_000)
        } else {
            format!("chunks/{}/{}/{id}_{index}_{size}", id / 1_000_000, id / 1_000)
        }
    }

    /// The block that the last part of a name stands for; `None` for any other text.
    pub fn parse(file_name: &str) -> Option<BlockKey> {
        let mut parts = file_name.split('_');
        let key = BlockKey {
            slice: SliceId(parts.next()?.parse().ok()?),
            index: parts.next()?.parse().ok()?,
            size: parts.next()?.parse().ok()?,
        };
        // Only the canonical spelling, or two files could stand for one block.
        (parts.next().is_none() && file_name == format!("{}_{}_{}", key.slice, key.index, key.size)).then_some(key)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_the_format() {
        let key = |id, index, size| BlockKey { slice: SliceId(id), index, size };
        assert_eq!(key(8197, 0, 4194304).name(false), "chunks/0/8/8197_0_4194304");
        assert_eq!(key(8197, 1, 1048593).name(false), "chunks/0/8/8197_1_1048593");
        assert_eq!(key(8197, 0, 4194304).name(true), "chunks/05/0/8197_0_4194304");
        assert_eq!(key(12_345_678, 3, 1).name(false), "chunks/12/12345/12345678_3_1");
        assert_eq!(key(255, 0, 1).name(true), "chunks/FF/0/255_0_1");
        assert_eq!(BlockKey::parse("8197_1_1048593"), Some(key(8197, 1, 1048593)));
        for bad in ["", "1_2", "1_2_3_4", "a_2_3", "01_2_3", "1_2_3.tmp", "1_2_-3"] {
            assert_eq!(BlockKey::parse(bad), None, "{bad}");
        }
    }
}
