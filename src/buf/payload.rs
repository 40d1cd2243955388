//! `Payload`: the bytes of a read or a write as a few shared pieces.
//!
//! One to three pieces lie inline, more in a list that is shared by clones. Slicing and joining never copy; only
//! [`Payload::into_bytes`] over several pieces and [`Payload::copy_to`] do, and they report it.

use bytes::Bytes;
use std::io::IoSlice;
use std::ops::{Bound, RangeBounds};
use std::sync::Arc;

const INLINE: usize = 3;

/// Bytes in order, cheap to clone.
#[derive(Clone, Default)]
pub struct Payload {
    len: usize,
    pieces: Pieces,
}

#[derive(Clone)]
enum Pieces {
    /// Unused places hold empty `Bytes`, which own nothing.
    Inline([Bytes; INLINE]),
    List(Arc<Vec<Bytes>>),
}

impl Default for Pieces {
    fn default() -> Pieces {
        Pieces::Inline([Bytes::new(), Bytes::new(), Bytes::new()])
    }
}

impl Payload {
    /// No bytes.
    pub fn new() -> Payload {
        Payload::default()
    }

    /// `len` zeros, all from the one zero page.
    pub fn zeros(len: usize) -> Payload {
        let page = super::zero_page();
        let mut out = Payload::new();
        let mut left = len;
        while left > 0 {
            let n = left.min(page.len());
            out.push(page.slice(..n));
            left -= n;
        }
        out
    }

    pub fn len(&self) -> usize {
        self.len
    }

    pub fn is_empty(&self) -> bool {
        self.len == 0
    }

    /// Adds a piece at the end. An empty piece leaves no trace.
    pub fn push(&mut self, piece: Bytes) {
        if piece.is_empty() {
            return;
        }
        self.len += piece.len();
        match &mut self.pieces {
            Pieces::Inline(places) => match places.iter_mut().find(|p| p.is_empty()) {
                Some(free) => *free = piece,
                None => {
                    let mut list = Vec::with_capacity(2 * INLINE);
                    list.extend(places.iter_mut().map(std::mem::take));
                    list.push(piece);
                    self.pieces = Pieces::List(Arc::new(list));
                }
            },
            Pieces::List(list) => Arc::make_mut(list).push(piece),
        }
    }

    /// Adds all pieces of `other` at the end.
    pub fn append(&mut self, other: Payload) {
        if self.is_empty() {
            *self = other;
            return;
        }
        for piece in other.iter() {
            self.push(piece.clone());
        }
    }

    /// The pieces in order; none is empty.
    pub fn iter(&self) -> impl Iterator<Item = &Bytes> {
        match &self.pieces {
            Pieces::Inline(places) => places.as_slice(),
            Pieces::List(list) => list.as_slice(),
        }
        .iter()
        .filter(|p| !p.is_empty())
    }

    /// How many pieces there are.
    pub fn pieces(&self) -> usize {
        self.iter().count()
    }

    /// The bytes as one slice, when they lie in one piece.
    pub fn as_single(&self) -> Option<&[u8]> {
        let mut pieces = self.iter();
        match (pieces.next(), pieces.next()) {
            (None, _) => Some(&[]),
            (Some(one), None) => Some(one),
            _ => None,
        }
    }

    /// For a vectored write.
    pub fn as_io_slices(&self) -> Vec<IoSlice<'_>> {
        self.iter().map(|p| IoSlice::new(p)).collect()
    }

    /// A part of the bytes, without copying.
    ///
    /// # Panics
    /// When the range does not lie inside the payload.
    pub fn slice(&self, range: impl RangeBounds<usize>) -> Payload {
        let start = match range.start_bound() {
            Bound::Included(&n) => n,
            Bound::Excluded(&n) => n + 1,
            Bound::Unbounded => 0,
        };
        let end = match range.end_bound() {
            Bound::Included(&n) => n + 1,
            Bound::Excluded(&n) => n,
            Bound::Unbounded => self.len,
        };
        assert!(start <= end && end <= self.len, "slice {start}..{end} of a payload of {} bytes", self.len);
        if start == 0 && end == self.len {
            return self.clone();
        }
        let mut out = Payload::new();
        let mut at = 0;
        for piece in self.iter() {
            let (from, to) = (start.max(at), end.min(at + piece.len()));
            if from < to {
                out.push(piece.slice(from - at..to - at));
            }
            at += piece.len();
            if at >= end {
                break;
            }
        }
        out
    }

    /// The bytes in one piece. Copies only when there are several.
    pub fn into_bytes(self) -> Bytes {
        let mut pieces = self.iter();
        match (pieces.next(), pieces.next()) {
            (None, _) => Bytes::new(),
            (Some(one), None) => one.clone(),
            _ => {
                super::copied(self.len);
                let mut out = Vec::with_capacity(self.len);
                self.iter().for_each(|p| out.extend_from_slice(p));
                out.into()
            }
        }
    }

    /// Copies the bytes to the start of `out`, which must be long enough.
    pub fn copy_to(&self, out: &mut [u8]) {
        super::copied(self.len);
        let mut at = 0;
        for piece in self.iter() {
            out[at..at + piece.len()].copy_from_slice(piece);
            at += piece.len();
        }
    }
}

impl From<Bytes> for Payload {
    fn from(piece: Bytes) -> Payload {
        let mut out = Payload::new();
        out.push(piece);
        out
    }
}

impl From<Vec<u8>> for Payload {
    fn from(bytes: Vec<u8>) -> Payload {
        Bytes::from(bytes).into()
    }
}

impl FromIterator<Bytes> for Payload {
    fn from_iter<I: IntoIterator<Item = Bytes>>(pieces: I) -> Payload {
        let mut out = Payload::new();
        pieces.into_iter().for_each(|p| out.push(p));
        out
    }
}

/// Equal when the bytes are, however they are cut.
impl PartialEq<[u8]> for Payload {
    fn eq(&self, other: &[u8]) -> bool {
        let mut rest = other;
        self.len == other.len()
            && self.iter().all(|p| {
                let (head, tail) = rest.split_at(p.len());
                rest = tail;
                head == p
            })
    }
}

/// The shape, never the bytes: they are somebody's data.
impl std::fmt::Debug for Payload {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Payload({} bytes in {} pieces)", self.len, self.pieces())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slices_and_joins_show_the_same_bytes(lens in proptest::collection::vec(0usize..9, 0..8), cut in any::<(u8, u8)>()) {
            let mut flat = Vec::new();
            let mut payload = Payload::new();
            for (i, n) in lens.iter().enumerate() {
                let piece = vec![i as u8; *n];
                flat.extend_from_slice(&piece);
                payload.push(piece.into());
            }
            let end = usize::from(cut.0) % (flat.len() + 1);
            let start = usize::from(cut.1) % (end + 1);
            prop_assert!(payload.slice(start..end) == flat[start..end]);
            let mut joined = payload.slice(..start);
            joined.append(payload.slice(start..));
            prop_assert_eq!(joined.len(), flat.len());
            prop_assert_eq!(&joined.clone().into_bytes()[..], &flat[..]);
            let mut out = vec![0xff; flat.len()];
            joined.copy_to(&mut out);
            prop_assert_eq!(out, flat);
        }
    }

    #[test]
    fn one_piece_is_handed_out_without_a_copy() {
        let piece = Bytes::from(vec![7; 100]);
        let payload = Payload::from(piece.clone()).slice(10..90);
        assert_eq!(payload.into_bytes().as_ptr(), piece[10..].as_ptr());
    }

    #[test]
    fn a_hole_borrows_the_zero_page() {
        let hole = Payload::zeros(1 << 20);
        assert_eq!((hole.len(), hole.pieces()), (1 << 20, 8));
        assert!(hole.iter().all(|p| p.as_ptr() == crate::buf::zero_page().as_ptr()));
        assert_eq!(Payload::zeros(0).pieces(), 0);
    }
}
