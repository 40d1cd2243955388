//! Block arithmetic: how a slice is cut into blocks, and which blocks a range touches (`spec/data.md` 1.4).

use crate::base::SliceId;
use crate::cache::BlockKey;
use std::ops::Range;

/// How many blocks a slice of `size` bytes has.
pub fn block_count(size: u32, block_size: u32) -> u32 {
    size.div_ceil(block_size)
}

/// The length of block `index` of a slice of `size` bytes; 0 past its end.
pub fn block_len(size: u32, block_size: u32, index: u32) -> u32 {
    let start = u64::from(index) * u64::from(block_size);
    u64::from(size).saturating_sub(start).min(u64::from(block_size)) as u32
}

/// Block `index` of a slice.
pub fn block_key(slice: SliceId, size: u32, block_size: u32, index: u32) -> BlockKey {
    BlockKey { slice, index, size: block_len(size, block_size, index) }
}

/// All blocks of a slice.
pub fn blocks(slice: SliceId, size: u32, block_size: u32) -> impl Iterator<Item = BlockKey> {
    (0..block_count(size, block_size)).map(move |index| block_key(slice, size, block_size, index))
}

/// The blocks that `[off, off + len)` of a slice touches, each with the range inside the block.
pub fn split(
    slice: SliceId,
    size: u32,
    block_size: u32,
    off: u32,
    len: u32,
) -> impl Iterator<Item = (BlockKey, Range<u32>)> {
    let end = u64::from(off) + u64::from(len);
    let indexes = if len == 0 { 0..0 } else { off / block_size..end.div_ceil(u64::from(block_size)) as u32 };
    indexes.map(move |index| {
        let key = block_key(slice, size, block_size, index);
        let start = u64::from(index) * u64::from(block_size);
        let from = u64::from(off).saturating_sub(start) as u32;
        let to = (end - start).min(u64::from(block_size)) as u32;
        (key, from..to)
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn a_slice_is_cut_as_the_format_says() {
        let b = 4 << 20;
        assert_eq!(block_count(5242897, b), 2);
        assert_eq!(
            (block_len(5242897, b, 0), block_len(5242897, b, 1), block_len(5242897, b, 2)),
            (4194304, 1048593, 0)
        );
        assert_eq!((block_count(0, b), block_count(b, b), block_count(64 << 20, 64 << 10)), (0, 1, 1024));
        let names: Vec<_> = blocks(SliceId(8197), 5242897, b).map(|k| k.name(false)).collect();
        assert_eq!(names, ["chunks/0/8/8197_0_4194304", "chunks/0/8/8197_1_1048593"]);
    }

    proptest! {
        #[test]
        fn the_parts_of_a_range_join_to_the_range(size in 1u32..1000, block in 1u32..100, a in any::<u32>(), b in any::<u32>()) {
            let off = a % size;
            let len = b % (size - off + 1);
            let mut at = off;
            for (key, part) in split(SliceId(1), size, block, off, len) {
                prop_assert_eq!(key.index * block + part.start, at);
                prop_assert!(part.start < part.end && part.end <= key.size);
                at += part.end - part.start;
            }
            prop_assert_eq!(at, off + len);
            prop_assert_eq!(blocks(SliceId(1), size, block).map(|k| k.size).sum::<u32>(), size);
        }
    }
}
