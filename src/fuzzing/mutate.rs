//! What can happen to bytes: every byte another value, a cut at every length, numbers that decoders trip over, pieces
//! lost, doubled, or taken from another input. All of it repeatable from a seed.

use rand::Rng;
use rand::rngs::StdRng;

/// Numbers at the edges of types and of the format.
const NUMBERS: [u64; 18] = [
    0,
    1,
    0x7F,
    0x80,
    0xFF,
    0xFFFF,
    (1 << 16) - 24,
    (64 << 20) - 1,
    64 << 20,
    (64 << 20) + 1,
    0x7FFF_FFFF,
    0x8000_0000,
    0xFFFF_FFFF,
    1 << 57,
    0x7FFF_FFFF_1000_0001,
    i64::MAX as u64,
    i64::MIN as u64,
    u64::MAX,
];

/// Pieces of text that mean something to one parser or another.
const WORDS: [&str; 40] = [
    "://",
    "@",
    ":",
    "/",
    "?",
    "&",
    "=",
    "%",
    "%4",
    "%ff",
    "%00",
    "%0a",
    ",",
    "[",
    "]",
    "[::1]",
    "..",
    "-",
    "--",
    "-o",
    "\0",
    "\n",
    "\r\n",
    "\u{1b}[31m",
    "\u{2028}",
    "ü",
    "\u{fffd}",
    "1e309",
    "-1",
    "+1",
    "0x1",
    "99999999999999999999",
    "18446744073709551615",
    "null",
    "{}",
    "[]",
    "\"",
    "\\u0000",
    " ",
    "%d",
];

/// The longest input that growing mutations make.
const BYTES_MAX: usize = 64 << 10;

/// Damage that is worth doing at each place: an input of `n` bytes gives some twenty times as many.
pub fn every(seed: &[u8]) -> impl Iterator<Item = Vec<u8>> + '_ {
    // Long inputs are damaged at some places of their middle only, so that the number stays near that of short ones.
    const PLACES_MAX: usize = 600;
    let step = seed.len().div_ceil(PLACES_MAX).max(1);
    let places = move || (0..seed.len()).filter(move |at| *at < 64 || at % step == 0 || *at + 64 > seed.len());
    let values = move |at: usize| {
        let b = seed[at];
        [b ^ 1, b ^ 0x80, !b, 0, 1, 0x7F, 0xFF, b.wrapping_add(1), b.wrapping_sub(1), b'/', b'@', b'\n']
    };
    let bytes = places().flat_map(move |at| {
        values(at).into_iter().filter(move |value| *value != seed[at]).map(move |value| {
            let mut out = seed.to_vec();
            out[at] = value;
            out
        })
    });
    let cuts = places().map(move |len| seed[..len].to_vec());
    let tails = places().map(move |from| seed[from..].to_vec());
    let losses = places().map(move |at| [&seed[..at], &seed[at + 1..]].concat());
    let numbers = places().flat_map(move |at| {
        [4usize, 8].into_iter().flat_map(move |width| {
            NUMBERS.into_iter().filter(move |_| at % width == 0 || at < 64).filter_map(move |number| {
                let mut out = seed.to_vec();
                out.get_mut(at..at + width)?.copy_from_slice(&number.to_be_bytes()[8 - width..]);
                Some(out)
            })
        })
    });
    let longer = [vec![0], vec![0xFF; 1], seed.to_vec(), vec![0; 4096], vec![b'9'; 4096]];
    let longer = longer.into_iter().map(move |more| [seed, &more].concat());
    bytes.chain(cuts).chain(tails).chain(losses).chain(numbers).chain(longer)
}

/// A few things at once, at random.
pub fn some(rng: &mut StdRng, corpus: &[Vec<u8>]) -> Vec<u8> {
    let pick = |rng: &mut StdRng| -> Vec<u8> {
        if corpus.is_empty() { Vec::new() } else { corpus[rng.random_range(0..corpus.len())].clone() }
    };
    let mut out = pick(rng);
    for _ in 0..rng.random_range(1..=5) {
        let at = rng.random_range(0..=out.len());
        let end = (at + rng.random_range(0..=16usize)).min(out.len());
        match rng.random_range(0..12) {
            0 if at < out.len() => out[at] ^= 1 << rng.random_range(0..8),
            1 if at < out.len() => out[at] = rng.random(),
            2 => out.truncate(at),
            3 => drop(out.drain(at..end)),
            4 => {
                let piece = out[at..end].to_vec();
                let times = rng.random_range(1..40);
                out.splice(at..at, piece.repeat(times));
            }
            5 => {
                let word = WORDS[rng.random_range(0..WORDS.len())];
                out.splice(at..at, word.bytes());
            }
            6 => {
                let word = WORDS[rng.random_range(0..WORDS.len())];
                out.splice(at..end, word.bytes());
            }
            7 | 8 => {
                let number = NUMBERS[rng.random_range(0..NUMBERS.len())].wrapping_add(rng.random_range(0..3));
                let width = [1, 2, 4, 8][rng.random_range(0..4)];
                let mut bytes = number.to_be_bytes()[8 - width..].to_vec();
                if rng.random_bool(0.3) {
                    bytes.reverse();
                }
                let end = (at + width).min(out.len());
                out.splice(at..end, bytes);
            }
            9 => {
                let other = pick(rng);
                let from = rng.random_range(0..=other.len());
                out.truncate(at);
                out.extend_from_slice(&other[from..]);
            }
            10 => {
                let other = pick(rng);
                out.splice(at..at, other);
            }
            _ => {
                let noise: Vec<u8> = (0..rng.random_range(0..24)).map(|_| rng.random()).collect();
                out.splice(at..end, noise);
            }
        }
        out.truncate(BYTES_MAX);
    }
    out
}
