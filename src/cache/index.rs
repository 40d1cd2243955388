//! What is on one cache disk: sizes and access times in memory, and which block to give up next.

use super::BlockKey;
use super::sampled::Sampled;
use std::collections::BTreeSet;

/// What a block costs beside its bytes (`spec/data.md` 12.2).
pub(super) const BLOCK_OVERHEAD: u64 = 4096;

/// Which block goes when room is needed (`--cache-eviction`).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Eviction {
    /// The less recently used of two random ones.
    #[default]
    TwoRandom,
    /// None: new blocks are dropped instead.
    None,
    /// Exactly the least recently used.
    Lru,
}

impl Eviction {
    pub fn parse(name: &str) -> Option<Eviction> {
        match name {
            "2-random" => Some(Eviction::TwoRandom),
            "none" => Some(Eviction::None),
            "lru" => Some(Eviction::Lru),
            _ => None,
        }
    }
}

/// Blocks with their access times in seconds.
pub(super) struct Index {
    eviction: Eviction,
    blocks: Sampled<u32>,
    /// Only for `Lru`: oldest first; of the same age the bigger goes first, then the smaller id.
    order: BTreeSet<(u32, std::cmp::Reverse<u32>, BlockKey)>,
    bytes: u64,
}

impl Index {
    pub fn new(eviction: Eviction) -> Index {
        Index { eviction, blocks: Sampled::default(), order: BTreeSet::new(), bytes: 0 }
    }

    /// With the overhead of each block.
    pub fn bytes(&self) -> u64 {
        self.bytes
    }

    pub fn len(&self) -> usize {
        self.blocks.len()
    }

    pub fn contains(&self, key: &BlockKey) -> bool {
        self.blocks.get(key).is_some()
    }

    pub fn insert(&mut self, key: BlockKey, atime: u32) {
        match self.blocks.insert(key, atime) {
            None => self.bytes += u64::from(key.size) + BLOCK_OVERHEAD,
            Some(before) => self.forget_order(key, before),
        }
        self.remember_order(key, atime);
    }

    /// Notes a use. False when the block is not here.
    pub fn touch(&mut self, key: &BlockKey, atime: u32) -> bool {
        let Some(at) = self.blocks.get_mut(key) else { return false };
        let before = std::mem::replace(at, atime);
        if before != atime {
            self.forget_order(*key, before);
            self.remember_order(*key, atime);
        }
        true
    }

    pub fn remove(&mut self, key: &BlockKey) -> bool {
        let Some(atime) = self.blocks.remove(key) else { return false };
        self.bytes -= u64::from(key.size) + BLOCK_OVERHEAD;
        self.forget_order(*key, atime);
        true
    }

    fn remember_order(&mut self, key: BlockKey, atime: u32) {
        if self.eviction == Eviction::Lru {
            self.order.insert((atime, std::cmp::Reverse(key.size), key));
        }
    }

    fn forget_order(&mut self, key: BlockKey, atime: u32) {
        if self.eviction == Eviction::Lru {
            self.order.remove(&(atime, std::cmp::Reverse(key.size), key));
        }
    }

    /// The block to give up next.
    pub fn victim(&self) -> Option<BlockKey> {
        match self.eviction {
            Eviction::None => None,
            Eviction::Lru => self.order.first().map(|(_, _, key)| *key),
            Eviction::TwoRandom => {
                let one = self.blocks.draw(rand::random())?;
                let two = self.blocks.draw(rand::random())?;
                Some(if one.1 <= two.1 { one.0 } else { two.0 })
            }
        }
    }

    /// Blocks last used at `limit` or before.
    pub fn older(&self, limit: u32) -> Vec<BlockKey> {
        self.blocks.iter().filter(|(_, atime)| *atime <= limit).map(|(key, _)| *key).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;

    fn key(id: u64) -> BlockKey {
        BlockKey { slice: SliceId(id), index: 0, size: 100 }
    }

    #[test]
    fn lru_is_exact() {
        let mut index = Index::new(Eviction::Lru);
        for id in 0..10 {
            index.insert(key(id), id as u32);
        }
        index.touch(&key(0), 100);
        assert_eq!(index.victim(), Some(key(1)));
        index.remove(&key(1));
        assert_eq!(index.victim(), Some(key(2)));
        assert_eq!(index.bytes(), 9 * (100 + 4096));
        assert_eq!(index.older(3), [key(2), key(3)].to_vec());
    }

    #[test]
    fn two_random_prefers_the_old_and_none_gives_nothing() {
        let mut index = Index::new(Eviction::TwoRandom);
        for id in 0..100 {
            index.insert(key(id), u32::from(id < 50));
        }
        let old = (0..1000).filter(|_| index.victim().is_some_and(|k| k.slice.0 >= 50)).count();
        assert!((650..850).contains(&old), "three of four: {old}");
        let mut kept = Index::new(Eviction::None);
        kept.insert(key(1), 0);
        assert_eq!(kept.victim(), None);
    }
}
