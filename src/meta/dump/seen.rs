//! `Seen`: which numbers were met, at one bit each where they lie close together, as those of inodes and slices do.

use std::collections::HashMap;

/// Numbers per block: 64 bytes of bits and a key.
const BLOCK_NUMBERS: u64 = 512;

#[derive(Default)]
pub struct Seen(HashMap<u64, [u64; 8]>);

impl Seen {
    /// Whether the number is met for the first time.
    pub fn insert(&mut self, number: u64) -> bool {
        let block = self.0.entry(number / BLOCK_NUMBERS).or_default();
        let (word, bit) = place(number);
        let new = block[word] & bit == 0;
        block[word] |= bit;
        new
    }

    pub fn has(&self, number: u64) -> bool {
        let (word, bit) = place(number);
        self.0.get(&(number / BLOCK_NUMBERS)).is_some_and(|block| block[word] & bit != 0)
    }
}

fn place(number: u64) -> (usize, u64) {
    (((number % BLOCK_NUMBERS) / 64) as usize, 1 << (number % 64))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn each_number_is_new_once() {
        let numbers = [0, 1, 63, 64, 511, 512, 1 << 40, u64::MAX, u64::MAX - 1];
        let mut seen = Seen::default();
        for number in numbers {
            assert!(!seen.has(number));
            assert!(seen.insert(number), "{number}");
            assert!(seen.has(number) && !seen.insert(number), "{number}");
        }
        assert!(!seen.has(2) && !seen.has(513));
    }
}
