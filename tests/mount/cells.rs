//! Bytes that tell where they belong: cells of 64 bytes that name their file, their place in it and the write that
//! made them, so that a foreign or a stale byte is known for what it is wherever it shows up.

/// Bytes of a cell. Small beside a page, so that writes begin and end inside pages.
pub const CELL: usize = 64;

/// The write that made a cell. 0 stands for a hole.
pub type Version = u32;

/// One cell, of which every bit follows from its name.
fn cell(file: u32, at: usize, version: Version) -> [u8; CELL] {
    let mut out = [0; CELL];
    out[0..4].copy_from_slice(&file.to_le_bytes());
    out[4..8].copy_from_slice(&version.to_le_bytes());
    out[8..16].copy_from_slice(&(at as u64).to_le_bytes());
    let mut state = u64::from(file) << 40 ^ u64::from(version) << 20 ^ at as u64;
    for word in out[16..].chunks_exact_mut(8) {
        // The finaliser of SplitMix64.
        state = state.wrapping_add(0x9E37_79B9_7F4A_7C15);
        let mut mixed = (state ^ state >> 30).wrapping_mul(0xBF58_476D_1CE4_E5B9);
        mixed = (mixed ^ mixed >> 27).wrapping_mul(0x94D0_49BB_1331_11EB);
        word.copy_from_slice(&(mixed ^ mixed >> 31).to_le_bytes());
    }
    out
}

/// `count` cells of a file from cell number `first` on.
pub fn cells(file: u32, first: usize, count: usize, version: Version) -> Vec<u8> {
    (first..first + count).flat_map(|at| cell(file, at, version)).collect()
}

/// The writes that made `bytes`, which lie in the file from cell number `first` on; an error when a cell is neither a
/// hole nor a cell of this file and place.
pub fn versions(file: u32, first: usize, bytes: &[u8]) -> Result<Vec<Version>, String> {
    assert_eq!(bytes.len() % CELL, 0, "whole cells are looked at");
    let one = |(at, found): (usize, &[u8])| {
        if found == [0; CELL] {
            return Ok(0);
        }
        let number = |range: std::ops::Range<usize>| u32::from_le_bytes(found[range].try_into().expect("four bytes"));
        let version = number(4..8);
        if found == cell(file, at, version) {
            return Ok(version);
        }
        let place = u64::from_le_bytes(found[8..16].try_into().expect("eight bytes"));
        Err(format!(
            "cell {at} of file {file:#x} is foreign: it says file {:#x}, cell {place}, version {version}: {found:02x?}",
            number(0..4)
        ))
    };
    bytes.chunks_exact(CELL).enumerate().map(|(i, found)| one((first + i, found))).collect()
}
