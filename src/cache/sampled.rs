//! `Sampled`: a map that can also draw random entries, which is what 2-random eviction needs: entries lie in a dense
//! list, and a removed one is replaced by the last.

use super::BlockKey;
use std::collections::HashMap;

/// Keys with values, and a dense list to draw from.
pub(super) struct Sampled<V> {
    places: HashMap<BlockKey, u32>,
    entries: Vec<(BlockKey, V)>,
}

impl<V> Default for Sampled<V> {
    fn default() -> Sampled<V> {
        Sampled { places: HashMap::new(), entries: Vec::new() }
    }
}

impl<V> Sampled<V> {
    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn get(&self, key: &BlockKey) -> Option<&V> {
        self.places.get(key).map(|&at| &self.entries[at as usize].1)
    }

    pub fn get_mut(&mut self, key: &BlockKey) -> Option<&mut V> {
        self.places.get(key).map(|&at| &mut self.entries[at as usize].1)
    }

    /// Returns the value it replaced.
    pub fn insert(&mut self, key: BlockKey, value: V) -> Option<V> {
        if let Some(old) = self.get_mut(&key) {
            return Some(std::mem::replace(old, value));
        }
        self.places.insert(key, self.entries.len() as u32);
        self.entries.push((key, value));
        None
    }

    pub fn remove(&mut self, key: &BlockKey) -> Option<V> {
        let at = self.places.remove(key)?;
        let (_, value) = self.entries.swap_remove(at as usize);
        if let Some((moved, _)) = self.entries.get(at as usize) {
            self.places.insert(*moved, at);
        }
        // An emptied map should not keep the memory of its best days.
        if self.entries.is_empty() {
            *self = Sampled::default();
        }
        Some(value)
    }

    /// The entry at `draw` modulo the number of entries; `None` when there are none.
    pub fn draw(&self, draw: u64) -> Option<&(BlockKey, V)> {
        let at = draw.checked_rem(self.entries.len() as u64)?;
        self.entries.get(at as usize)
    }

    pub fn iter(&self) -> impl Iterator<Item = &(BlockKey, V)> {
        self.entries.iter()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::SliceId;

    #[test]
    fn every_entry_is_found_after_removals() {
        let key = |id| BlockKey { slice: SliceId(id), index: 0, size: 1 };
        let mut map = Sampled::default();
        for id in 0..100 {
            assert_eq!(map.insert(key(id), id), None);
        }
        for id in (0..100).step_by(3) {
            assert_eq!(map.remove(&key(id)), Some(id));
        }
        assert_eq!(map.insert(key(1), 7), Some(1));
        for id in 2..100 {
            assert_eq!(map.get(&key(id)).copied(), (id % 3 != 0).then_some(id));
        }
        assert_eq!(map.iter().count(), map.len());
        assert!((0..1000).all(|d| map.get(&map.draw(d).unwrap().0).is_some()));
    }
}
