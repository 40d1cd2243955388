//! Which directory holds a block: consistent hashing over the ids of the directories, so that a renamed or moved disk
//! keeps its blocks (`spec/data.md` 12.5). Every client of the format must place blocks alike.

/// Points a directory begins with.
const POINTS: i64 = 100;
/// Rounds of balancing.
const ROUNDS: usize = 5;

/// MurmurHash3, 32 bits, seed 0.
pub(super) fn murmur3(bytes: &[u8]) -> u32 {
    let scramble = |k: u32| k.wrapping_mul(0xcc9e_2d51).rotate_left(15).wrapping_mul(0x1b87_3593);
    let mut hash = 0u32;
    let mut words = bytes.chunks_exact(4);
    for word in &mut words {
        let k = u32::from_le_bytes(word.try_into().expect("four bytes"));
        hash = (hash ^ scramble(k)).rotate_left(13).wrapping_mul(5).wrapping_add(0xe654_6b64);
    }
    let rest = words.remainder();
    if !rest.is_empty() {
        let k = rest.iter().rev().fold(0u32, |k, &b| (k << 8) | u32::from(b));
        hash ^= scramble(k);
    }
    hash ^= bytes.len() as u32;
    hash = (hash ^ (hash >> 16)).wrapping_mul(0x85eb_ca6b);
    hash = (hash ^ (hash >> 13)).wrapping_mul(0xc2b2_ae35);
    hash ^ (hash >> 16)
}

/// Points in order, each with the number of its directory.
pub(super) struct Ring {
    points: Vec<(u32, usize)>,
}

impl Ring {
    /// `ids` in the order of the directories; at least one.
    pub fn new(ids: &[String]) -> Ring {
        let mut counts = vec![POINTS; ids.len()];
        let mut points = spread(ids, &counts);
        if ids.len() > 1 {
            for _ in 0..ROUNDS {
                let shares = shares(&points, ids.len());
                let expected = 1.0 / ids.len() as f64;
                let mut settled = true;
                for (count, share) in counts.iter_mut().zip(shares) {
                    let step = (*count as f64 * (expected - share) / expected * 0.75).trunc() as i64;
                    if step != 1 {
                        settled = false;
                        *count += step;
                    }
                }
                if settled {
                    break;
                }
                points = spread(ids, &counts);
            }
        }
        Ring { points }
    }

    /// The directory of a block, by its name (`chunks/…`).
    pub fn locate(&self, name: &str) -> usize {
        let hash = murmur3(name.as_bytes());
        let at = self.points.partition_point(|(point, _)| *point < hash);
        self.points.get(at).or(self.points.first()).map_or(0, |(_, directory)| *directory)
    }
}

fn spread(ids: &[String], counts: &[i64]) -> Vec<(u32, usize)> {
    let of = |i: usize| (0..counts[i]).map(move |node| (murmur3(format!("{node}{}", ids[i]).as_bytes()), i));
    let mut points: Vec<_> = (0..ids.len()).flat_map(of).collect();
    points.sort_unstable();
    points
}

/// The part of the circle that ends at each directory's points.
fn shares(points: &[(u32, usize)], directories: usize) -> Vec<f64> {
    let mut shares = vec![0.0; directories];
    let mut before = points.last().map_or(0, |(point, _)| *point);
    for (point, directory) in points {
        shares[*directory] += f64::from(point.wrapping_sub(before)) / 4_294_967_296.0;
        before = *point;
    }
    shares
}

#[cfg(test)]
mod tests {
    use super::*;

    /// `spec/data.md` 20.3.
    #[test]
    fn the_hash_is_the_format_s() {
        assert_eq!(murmur3(b"chunks/0/0/1_0_4194304"), 3576660226);
        assert_eq!(murmur3(b"chunks/0/8/8197_1_1048593"), 3396574019);
        assert_eq!(murmur3(b"00761918a-2d63-4ca7-a2a9-e109c6c00da6"), 3006855670);
    }

    #[test]
    fn blocks_spread_evenly_and_stay_when_a_directory_leaves() {
        let ids: Vec<String> = (0..4).map(|i| format!("{i}761918a-2d63-4ca7-a2a9-e109c6c00da{i}")).collect();
        let ring = Ring::new(&ids);
        let names: Vec<String> = (0..8000).map(|i| format!("chunks/0/{}/{i}_0_4194304", i / 1000)).collect();
        let mut counts = [0; 4];
        for name in &names {
            counts[ring.locate(name)] += 1;
        }
        assert!(counts.iter().all(|c| (1500..2500).contains(c)), "{counts:?}");
        let fewer = Ring::new(&ids[..3]);
        let moved = names.iter().filter(|n| ring.locate(n) < 3 && fewer.locate(n) != ring.locate(n)).count();
        assert!(moved < 1600, "{moved} of 6000 moved although their directory stayed");
        assert_eq!(Ring::new(&ids[..1]).locate("x"), 0);
    }
}
