//! How a block becomes the body of its object: as it is, one raw LZ4 block, or one Zstandard frame (`spec/data.md`
//! section 4). The plain length is in the object's name, so decoding knows exactly what must come out; anything else
//! is an integrity fault, never a panic and never more memory than the bound.

use crate::base::Fault;

/// The encoding of all blocks of a volume.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Compression {
    #[default]
    None,
    Lz4,
    Zstd,
}

/// The level the format's own client writes; any level can be read.
const ZSTD_LEVEL: i32 = 1;

impl Compression {
    /// The name in the format record; `None` for an encoding we do not know.
    pub fn parse(name: &str) -> Option<Compression> {
        match name.to_ascii_lowercase().as_str() {
            "" | "none" => Some(Compression::None),
            "lz4" => Some(Compression::Lz4),
            "zstd" => Some(Compression::Zstd),
            _ => None,
        }
    }

    pub fn name(self) -> &'static str {
        match self {
            Compression::None => "none",
            Compression::Lz4 => "lz4",
            Compression::Zstd => "zstd",
        }
    }

    /// The longest body that a reader of the format takes for a block of `size` plain bytes.
    pub fn bound(self, size: usize) -> usize {
        match self {
            Compression::None => size,
            Compression::Lz4 => size + size / 255 + 16,
            Compression::Zstd => {
                const SMALL: usize = 128 << 10;
                size + size / 256 + SMALL.saturating_sub(size) / 2048
            }
        }
    }

    /// Room that encoding `size` plain bytes needs. The LZ4 encoder asks for more than it can ever fill.
    pub fn room(self, size: usize) -> usize {
        match self {
            Compression::Lz4 => lz4_flex::block::get_maximum_output_size(size),
            Compression::None | Compression::Zstd => self.bound(size),
        }
    }

    /// Writes the encoded form of `plain` to `out`, which has at least [`Compression::room`] bytes; returns its length,
    /// which is at most [`Compression::bound`].
    pub fn encode(self, plain: &[u8], out: &mut [u8]) -> Result<usize, Fault> {
        let broken = |e: String| Fault::internal("compress block").with("codec", self.name()).source(e);
        match self {
            Compression::None => {
                out[..plain.len()].copy_from_slice(plain);
                Ok(plain.len())
            }
            Compression::Lz4 => lz4_flex::block::compress_into(plain, out).map_err(|e| broken(e.to_string())),
            Compression::Zstd => {
                zstd::bulk::compress_to_buffer(plain, out, ZSTD_LEVEL).map_err(|e| broken(e.to_string()))
            }
        }
    }

    /// Writes the plain form of `body` to `out`, which has exactly the plain length.
    pub fn decode(self, body: &[u8], out: &mut [u8]) -> Result<(), Fault> {
        let size = out.len();
        let wrong =
            || Fault::integrity("decode block").with("codec", self.name()).with("body", body.len()).with("plain", size);
        let n = match self {
            Compression::None => {
                // Longer objects are accepted by the format.
                let plain = body.get(..size).ok_or_else(wrong)?;
                out.copy_from_slice(plain);
                size
            }
            _ if body.len() > self.bound(size) => return Err(wrong().source("longer than the bound")),
            Compression::Lz4 => lz4_flex::block::decompress_into(body, out).map_err(|e| wrong().source(e))?,
            // Takes several frames, frames without a content size and frames with a checksum.
            Compression::Zstd => zstd::bulk::decompress_to_buffer(body, out).map_err(|e| wrong().source(e))?,
        };
        if n == size { Ok(()) } else { Err(wrong().with("decoded", n)) }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const BOTH: [Compression; 2] = [Compression::Lz4, Compression::Zstd];

    fn hex(text: &str) -> Vec<u8> {
        let digits: Vec<u8> = text.bytes().filter(u8::is_ascii_hexdigit).collect();
        digits.chunks(2).map(|d| u8::from_str_radix(std::str::from_utf8(d).unwrap(), 16).unwrap()).collect()
    }

    fn encode(codec: Compression, plain: &[u8]) -> Vec<u8> {
        let mut out = vec![0; codec.room(plain.len())];
        let n = codec.encode(plain, &mut out).unwrap();
        out.truncate(n);
        out
    }

    fn decode(codec: Compression, body: &[u8], size: usize) -> Result<Vec<u8>, Fault> {
        let mut out = vec![0; size];
        codec.decode(body, &mut out).map(|()| out)
    }

    /// `spec/data.md` 20.1, made by the reference client.
    #[test]
    fn golden_bodies_are_read_and_written() {
        let (hello, abc) = (b"hello juicefs".to_vec(), b"abcdefgh".repeat(25));
        let golden = [
            (Compression::Lz4, &hello, "d0 68656c6c6f206a75696365 6673"),
            (Compression::Lz4, &abc, "8f6162636465666768 0800 a8 50 6465666768"),
            (Compression::Zstd, &hello, "28b52ffd 20 0d 690000 68656c6c6f206a756963656673"),
            (Compression::Zstd, &abc, "28b52ffd 20 c8 7d0000 40 6162636465666768 0100 bd51850b"),
        ];
        for (codec, plain, body) in golden {
            assert_eq!(&decode(codec, &hex(body), plain.len()).unwrap(), plain, "{codec:?}");
        }
        assert_eq!(encode(Compression::Lz4, &hello), hex(golden[0].2));
        // One frame, single segment, with content size and without checksum.
        assert_eq!(encode(Compression::Zstd, &hello), hex(golden[2].2));
    }

    #[test]
    fn wrong_lengths_are_refused() {
        let plain = b"abcdefgh".repeat(25);
        for codec in BOTH {
            let body = encode(codec, &plain);
            for size in [0, 1, plain.len() - 1, plain.len() + 1] {
                assert!(decode(codec, &body, size).is_err(), "{codec:?} {size}");
            }
            assert!(decode(codec, &[&body[..], b"x"].concat(), plain.len()).is_err(), "trailing byte");
            assert!(decode(codec, &body[..body.len() - 1], plain.len()).is_err(), "cut short");
            assert!(decode(codec, &[], 5).is_err());
        }
        assert!(decode(Compression::None, b"abc", 4).is_err());
        assert_eq!(decode(Compression::None, b"abcd", 3).unwrap(), b"abc");
    }

    proptest! {
        #[test]
        fn what_was_encoded_is_decoded(plain in proptest::collection::vec(any::<u8>(), 0..5000), repeat in 1usize..4) {
            let plain = plain.repeat(repeat);
            for codec in BOTH {
                let body = encode(codec, &plain);
                prop_assert!(body.len() <= codec.bound(plain.len()));
                prop_assert_eq!(&decode(codec, &body, plain.len()).unwrap(), &plain);
            }
        }

        #[test]
        fn garbage_is_refused_quietly(body in proptest::collection::vec(any::<u8>(), 0..300), size in 0usize..1000) {
            for codec in BOTH {
                let _ = decode(codec, &body, size);
            }
        }
    }
}
