//! Blocks and where they lie: compressed bodies, names of blocks, bucket URLs.

use super::{choice, sentence, texts};
use crate::cache::BlockKey;
use crate::chunk::Compression;
use crate::object::place::{BucketUrl, Place, s3_bucket};

/// A block of the largest size would take as long as all others together.
const PLAIN_BYTES_MAX: usize = 256 << 10;

/// Inputs are a plain length in three bytes, then a body.
fn bodies(codec: Compression) -> Vec<Vec<u8>> {
    let noise: Vec<u8> = (0..2000u32).map(|i| (i.wrapping_mul(2_654_435_761) >> 24) as u8).collect();
    let plains = [b"hello juicefs".to_vec(), b"abcdefgh".repeat(25), vec![0; 70_000], noise, Vec::new()];
    plains
        .iter()
        .map(|plain| {
            let mut body = vec![0; codec.room(plain.len())];
            let n = codec.encode(plain, &mut body).expect("any bytes can be compressed");
            [&(plain.len() as u32).to_be_bytes()[1..], &body[..n]].concat()
        })
        .collect()
}

fn body(codec: Compression, data: &[u8]) {
    let Some((length, body)) = data.split_first_chunk::<3>() else { return };
    let length = u32::from_be_bytes([0, length[0], length[1], length[2]]) as usize % (PLAIN_BYTES_MAX + 1);
    let mut plain = vec![0xA5; length];
    match codec.decode(body, &mut plain) {
        Ok(()) => {
            let mut again = vec![0; codec.room(length)];
            let n = codec.encode(&plain, &mut again).expect("any bytes can be compressed");
            let mut decoded = vec![0; length];
            codec.decode(&again[..n], &mut decoded).expect("what we write can be read");
            assert!(decoded == plain);
        }
        Err(fault) => {
            let said = sentence(&fault);
            assert!(said.contains(codec.name()), "{said}");
        }
    }
}

pub fn lz4_bodies() -> Vec<Vec<u8>> {
    bodies(Compression::Lz4)
}

pub fn lz4(data: &[u8]) {
    body(Compression::Lz4, data);
}

pub fn zstd_bodies() -> Vec<Vec<u8>> {
    let mut all = bodies(Compression::Zstd);
    // A frame that says it holds 2^60 bytes, one with a window of 2 GiB, one to be skipped, and one with a dictionary.
    for frame in [
        &[0x28, 0xB5, 0x2F, 0xFD, 0xE0, 0, 0, 0, 0, 0, 0, 0, 0x10, 1, 0, 0][..],
        &[0x28, 0xB5, 0x2F, 0xFD, 0x00, 0xA8, 0x0B, 0, 0, 1],
        &[0x50, 0x2A, 0x4D, 0x18, 0xFF, 0xFF, 0xFF, 0xFF, 1, 2],
        &[0x28, 0xB5, 0x2F, 0xFD, 0x23, 0xFF, 0xFF, 0xFF, 0xFF, 0x05, 0x29, 0, 0, 1, 2, 3, 4, 5],
    ] {
        all.push([&[0u8, 0, 5][..], frame].concat());
    }
    all
}

pub fn zstd(data: &[u8]) {
    body(Compression::Zstd, data);
}

pub fn block_names() -> Vec<Vec<u8>> {
    texts(&["8197_1_1048593", "18446744073709551615_4294967295_4294967295", "1_0_5.tmp"])
}

pub fn block_name(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Some(key) = BlockKey::parse(text) else { return };
    for hashed in [false, true] {
        let name = key.name(hashed);
        assert_eq!(name.rsplit('/').next(), Some(text));
    }
}

pub fn bucket_urls() -> Vec<Vec<u8>> {
    texts(&[
        "https://bucket.s3.eu-west-1.amazonaws.com/prefix",
        "http://127.0.0.1:9000/bucket?disable-checksum=true&x",
        "http://[::1]:9000/bucket",
        "bucket.s3.cn-north-1.amazonaws.com.cn",
        "my-bucket",
        "ks3-cn-beijing.ksyuncs.com/b%d",
        "https://s3.dualstack.us-east-1.amazonaws.com/a.s3.b",
        "https://b.s3.wasabisys.com",
    ])
}

pub fn bucket_url(data: &[u8]) {
    let Some((shards, rest)) = choice(data, 256) else { return };
    let Ok(text) = std::str::from_utf8(rest) else { return };
    for text in [text, &String::from_utf8_lossy(data)] {
        let url = BucketUrl::parse(text);
        if let Some(bucket) = s3_bucket(&url) {
            assert!(!bucket.bucket.is_empty());
        }
        if let Some((bucket, _)) = url.bucket_and_endpoint() {
            assert!(!bucket.is_empty());
        }
        let place = Place { bucket: text.into(), shards: shards as u32, ..Place::default() };
        match place.expand() {
            Ok(places) => assert_eq!(places.len(), shards.max(1)),
            Err(fault) => drop(sentence(&fault)),
        }
    }
}
