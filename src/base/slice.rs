//! `Slice`: one record of a chunk's list, saying which bytes of which slice are visible where.

use super::{CHUNK_BYTES, SliceId};

/// Size of the stored record in bytes (`spec/metadata.md` 1.6).
pub const SLICE_RECORD_BYTES: usize = 24;

/// `len` bytes of slice `id`, beginning at `off` inside the slice, show at `pos` inside the chunk. Id 0 is a hole.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub struct Slice {
    pub pos: u32,
    pub id: SliceId,
    /// Full size in bytes of the slice as uploaded; fixes its blocks and their object names.
    pub size: u32,
    pub off: u32,
    pub len: u32,
}

impl Slice {
    /// Zeros over `[pos, pos + len)`.
    pub fn hole(pos: u32, len: u32) -> Slice {
        Slice { pos, id: SliceId(0), size: 0, off: 0, len }
    }

    pub fn is_hole(&self) -> bool {
        self.id.0 == 0
    }

    pub fn end(&self) -> u64 {
        u64::from(self.pos) + u64::from(self.len)
    }

    /// Whether a chunk can have this record: inside the chunk, and showing bytes that the slice has. What is not
    /// possible is damage; it is shown to nobody.
    pub fn is_possible(&self) -> bool {
        let shown = u64::from(self.off) + u64::from(self.len);
        self.end() <= CHUNK_BYTES && (self.is_hole() || shown <= u64::from(self.size))
    }

    pub fn encode(&self) -> [u8; SLICE_RECORD_BYTES] {
        let mut out = [0; SLICE_RECORD_BYTES];
        out[0..4].copy_from_slice(&self.pos.to_be_bytes());
        out[4..12].copy_from_slice(&self.id.0.to_be_bytes());
        out[12..16].copy_from_slice(&self.size.to_be_bytes());
        out[16..20].copy_from_slice(&self.off.to_be_bytes());
        out[20..24].copy_from_slice(&self.len.to_be_bytes());
        out
    }

    /// `None` when the record is not 24 bytes long.
    pub fn decode(bytes: &[u8]) -> Option<Slice> {
        let bytes: &[u8; SLICE_RECORD_BYTES] = bytes.try_into().ok()?;
        let u32_at = |at: usize| u32::from_be_bytes(bytes[at..at + 4].try_into().expect("4 bytes"));
        Some(Slice {
            pos: u32_at(0),
            id: SliceId(u64::from_be_bytes(bytes[4..12].try_into().expect("8 bytes"))),
            size: u32_at(12),
            off: u32_at(16),
            len: u32_at(20),
        })
    }

    pub fn encode_list(slices: &[Slice]) -> Vec<u8> {
        slices.iter().flat_map(Slice::encode).collect()
    }

    /// `None` when the length is not a multiple of 24.
    pub fn decode_list(bytes: &[u8]) -> Option<Vec<Slice>> {
        if !bytes.len().is_multiple_of(SLICE_RECORD_BYTES) {
            return None;
        }
        bytes.chunks_exact(SLICE_RECORD_BYTES).map(Slice::decode).collect()
    }
}

/// What is visible of a chunk whose list is `records`, oldest first (`spec/metadata.md` 1.6): pieces in order of
/// position, without overlap, gaps filled with hole pieces, ending where the last record ends. The records are
/// possible ones (`Slice::is_possible`); others give pieces that mean nothing.
pub fn resolve(records: &[Slice]) -> Vec<Slice> {
    // Keyed by position. A new record cuts what it overlaps; the surviving right part keeps its distance.
    let mut visible = std::collections::BTreeMap::<u32, Slice>::new();
    // A hole has no bytes to point into, whatever its record says.
    let plain = |record: &Slice| if record.is_hole() { Slice::hole(record.pos, record.len) } else { *record };
    for record in records.iter().filter(|r| r.len > 0).map(plain) {
        let (start, end) = (record.pos, record.end());
        let before = visible.range(..start).next_back().map(|(_, s)| *s).filter(|s| s.end() > u64::from(start));
        let inside: Vec<Slice> =
            visible.range(start..).map(|(_, s)| *s).take_while(|s| u64::from(s.pos) < end).collect();
        if let Some(left) = before {
            visible.insert(left.pos, Slice { len: start - left.pos, ..left });
        }
        for covered in &inside {
            visible.remove(&covered.pos);
        }
        for cut in before.iter().chain(&inside).filter(|s| s.end() > end) {
            let lost = (end - u64::from(cut.pos)) as u32;
            let (pos, off) = (cut.pos.wrapping_add(lost), cut.off.wrapping_add(lost));
            let right = Slice { pos, off, len: cut.len - lost, ..*cut };
            visible.insert(right.pos, plain(&right));
        }
        visible.insert(start, record);
    }
    let mut pieces = Vec::with_capacity(visible.len());
    let mut at = 0;
    for piece in visible.into_values() {
        if piece.pos > at {
            pieces.push(Slice::hole(at, piece.pos - at));
        }
        at = piece.pos.saturating_add(piece.len);
        pieces.push(piece);
    }
    pieces
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        /// Byte by byte: each byte shows what the last record that covers it says.
        #[test]
        fn the_last_record_over_a_byte_wins(list in proptest::collection::vec((0u32..60, 1u32..40, 0u64..4, 0u32..50), 0..20)) {
            let records: Vec<Slice> = list.iter().map(|&(pos, len, id, off)| {
                if id == 0 { Slice::hole(pos, len) } else { Slice { pos, id: SliceId(id), size: off + len, off, len } }
            }).collect();
            let mut bytes = vec![(0u64, 0u32); 100];
            for r in &records {
                for i in 0..r.len {
                    bytes[(r.pos + i) as usize] = if r.is_hole() { (0, 0) } else { (r.id.0, r.off + i) };
                }
            }
            let pieces = resolve(&records);
            let mut at = 0;
            for p in &pieces {
                prop_assert_eq!(p.pos, at);
                for i in 0..p.len {
                    let shown = if p.is_hole() { (0, 0) } else { (p.id.0, p.off + i) };
                    prop_assert_eq!(bytes[(p.pos + i) as usize], shown);
                }
                at += p.len;
            }
            prop_assert_eq!(u64::from(at), records.iter().map(Slice::end).max().unwrap_or(0));
        }
    }

    #[test]
    fn the_record_has_the_stored_form() {
        let slice = Slice { pos: 1, id: SliceId(2), size: 3, off: 4, len: 5 };
        let golden = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5];
        assert_eq!(slice.encode(), golden);
        assert_eq!(Slice::decode_list(&golden), Some(vec![slice]));
        assert_eq!(Slice::decode_list(&golden[1..]), None);
        assert!(!slice.is_possible(), "9 bytes of 3");
    }

    #[test]
    fn impossible_records_are_known_and_harm_nobody() {
        let possible = Slice { pos: 10, id: SliceId(2), size: 30, off: 4, len: 26 };
        assert!(possible.is_possible() && Slice::hole(0, CHUNK_BYTES as u32).is_possible());
        assert!(Slice { size: 0, off: 9, ..Slice::hole(0, 5) }.is_possible(), "a hole has no bytes to point into");
        let far = Slice { pos: u32::MAX - 5, len: 26, ..possible };
        let beyond = Slice { off: u32::MAX, ..possible };
        for wrong in [far, beyond, Slice { size: 29, ..possible }, Slice::hole(1, CHUNK_BYTES as u32)] {
            assert!(!wrong.is_possible(), "{wrong:?}");
            let odd = Slice { off: u32::MAX, size: 7, ..Slice::hole(5, 10) };
            assert_eq!(resolve(&[odd])[1], Slice::hole(5, 10));
            resolve(&[possible, wrong, possible, Slice { len: u32::MAX, ..wrong }, far]);
        }
    }
}
