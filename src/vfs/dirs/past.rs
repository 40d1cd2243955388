//! What a stream has told already, without attributes: a directory of millions of entries is read through once, and few
//! ever go back in it. Names lie one behind the other, and who asks whether one was there compares it with what lies
//! there, so that the index needs no names of its own.

use crate::base::{Ino, Kind, Name};
use std::collections::HashMap;
use std::hash::BuildHasher as _;

struct Row {
    ino: Ino,
    /// Where the name begins; it ends where the next one does.
    start: usize,
    kind: Kind,
}

#[derive(Default)]
pub struct Past {
    rows: Vec<Row>,
    names: Vec<u8>,
    /// Rows by a number made of their name. Where several have the same, the next one that is free.
    index: HashMap<u64, usize>,
}

impl Past {
    pub fn len(&self) -> usize {
        self.rows.len()
    }

    fn name(&self, row: usize) -> &[u8] {
        let end = self.rows.get(row + 1).map_or(self.names.len(), |next| next.start);
        &self.names[self.rows[row].start..end]
    }

    pub fn get(&self, row: usize) -> Option<(Name, Ino, Kind)> {
        let Row { ino, kind, .. } = self.rows.get(row)?;
        Some((Name::stored(self.name(row)), *ino, *kind))
    }

    /// `indexed`: it is to be found by its name.
    pub fn push(&mut self, name: &Name, ino: Ino, kind: Kind, indexed: bool) {
        if indexed {
            let place = self.place(name.as_bytes());
            self.index.insert(place, self.rows.len());
        }
        self.rows.push(Row { ino, start: self.names.len(), kind });
        self.names.extend_from_slice(name.as_bytes());
    }

    pub fn has(&self, name: &Name) -> bool {
        self.index.contains_key(&self.place(name.as_bytes()))
    }

    /// Where the name stands in the index, or would.
    fn place(&self, name: &[u8]) -> u64 {
        let mut place = self.index.hasher().hash_one(name);
        while self.index.get(&place).is_some_and(|row| self.name(*row) != name) {
            place = place.wrapping_add(1);
        }
        place
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_was_told_is_found_by_number_and_by_name() {
        let mut past = Past::default();
        let name = |number: u64| Name::stored(format!("a name {number}").into_bytes());
        for number in 0..5000 {
            assert!(!past.has(&name(number)));
            past.push(&name(number), Ino(number + 2), Kind::File, true);
        }
        for number in [0, 1, 4999] {
            assert!(past.has(&name(number)));
            assert_eq!(past.get(number as usize), Some((name(number), Ino(number + 2), Kind::File)));
        }
        assert!(past.get(5000).is_none() && !past.has(&name(5000)) && !past.has(&Name::stored(*b"a name")));
    }

    /// Names that share a number are told apart.
    #[test]
    fn names_that_collide_are_two() {
        let mut past = Past::default();
        let (one, other) = (Name::stored(*b"one"), Name::stored(*b"other"));
        past.push(&one, Ino(2), Kind::File, false);
        let place = past.place(other.as_bytes());
        past.index.insert(place, 0);
        assert!(!past.has(&other));
        past.push(&other, Ino(3), Kind::File, true);
        assert!(past.has(&other));
        assert_eq!(past.index[&place.wrapping_add(1)], 1);
    }
}
