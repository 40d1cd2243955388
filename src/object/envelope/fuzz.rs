//! Harnesses of sealed objects and of the keys that open them (`crate::fuzzing`).

use super::Envelope;
use super::pem::Work;
use super::wrap::WrapKey;
use crate::base::FaultKind;
use crate::buf::{Budget, Payload, Pool};
use crate::fuzzing::{choice, sentence};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use std::sync::{Arc, LazyLock};

macro_rules! key {
    ($name:literal) => {
        include_str!(concat!("testkeys/", $name, ".pem"))
    };
}

const PASSPHRASE: &str = "test-passphrase";

/// Algorithms and keys, an object of each that the peer wrote, and its body.
const SEALED: [(&str, &str, &str, &[u8]); 4] = [
    ("aes256gcm-rsa", key!("rsa-pkcs1"), include_str!("testkeys/object-aes256gcm.b64"), b"hello juicefs"),
    ("chacha20-rsa", key!("rsa-pkcs1"), include_str!("testkeys/object-chacha20.b64"), b"hello juicefs"),
    ("sm4gcm", key!("rsa-pkcs1"), include_str!("testkeys/object-sm4gcm.b64"), b"hello juicefs"),
    (
        "sm4gcm",
        key!("sm2-pkcs8"),
        include_str!("testkeys/object-sm4gcm-sm2.b64"),
        b"1cb9005a-3066-41b4-ad2c-d4767da69f6e",
    ),
];

/// Inputs are a choice, then an object of another hand, or what to do to one of ours: a place in two bytes, a byte, and
/// the body.
pub fn objects() -> Vec<Vec<u8>> {
    let theirs = SEALED.iter().enumerate().map(|(which, (_, _, object, _))| {
        let object = BASE64.decode(object.split_whitespace().collect::<String>()).expect("base64");
        [&[which as u8][..], &object].concat()
    });
    let ours = (4..8u8).map(|which| [&[which, 0, 200, 1][..], b"what is sealed"].concat());
    theirs.chain(ours).collect()
}

pub fn object(data: &[u8]) {
    static POOL: LazyLock<Arc<Pool>> = LazyLock::new(|| Pool::new(Budget::new(1 << 30)));
    static ENVELOPES: LazyLock<[Envelope; 4]> =
        LazyLock::new(|| SEALED.map(|(algorithm, pem, ..)| Envelope::new(algorithm, pem, None).expect("a key")));
    let Some((which, rest)) = choice(data, 8) else { return };
    let envelope = &ENVELOPES[which % 4];
    let opened = if which < 4 {
        envelope.open(&Payload::from(rest.to_vec()), &POOL)
    } else {
        let Some(([high, low, change], body)) = rest.split_first_chunk::<3>() else { return };
        let mut object = envelope.seal(&Payload::from(body.to_vec()), &POOL).expect("any body is sealed").to_vec();
        let at = usize::from(u16::from_be_bytes([*high, *low])) % object.len();
        match change {
            0 => object.truncate(at),
            0xFF => object.insert(at, *low),
            bits => object[at] ^= bits,
        }
        let opened = envelope.open(&Payload::from(object), &POOL);
        assert!(opened.is_err(), "{change} at {at} is not seen");
        opened
    };
    match opened {
        // Nobody can make another one without the key.
        Ok(body) => assert_eq!(body, SEALED[which].3),
        Err(fault) => {
            sentence(&fault);
            assert!(matches!(fault.kind(), FaultKind::Integrity | FaultKind::Corrupt), "{fault}");
        }
    }
    assert_eq!(POOL.budget().used(), 0, "memory is kept");
}

const PEMS: [&str; 13] = [
    key!("small-pbkdf2"),
    key!("small-scrypt"),
    key!("small-headers"),
    key!("rsa-pkcs1"),
    key!("rsa-pkcs8"),
    key!("sm2-pkcs8"),
    key!("p256-pkcs8"),
    key!("rsa-pkcs1-aes256"),
    key!("rsa-pkcs1-des"),
    key!("rsa-pkcs1-des3"),
    key!("rsa-pkcs8-pbes1"),
    key!("rsa-pkcs8-pbkdf2"),
    key!("sm2-pkcs8-pbkdf2"),
];
const LABELS: [&str; 3] = ["RSA PRIVATE KEY", "PRIVATE KEY", "ENCRYPTED PRIVATE KEY"];

/// Inputs are a choice, then a text, or what is in one.
pub fn keys() -> Vec<Vec<u8>> {
    let mut all = Vec::new();
    for pem in PEMS {
        let protected = u8::from(pem.contains("ENCRYPTED"));
        all.push([&[protected][..], pem.as_bytes()].concat());
        let body: String = pem.lines().filter(|line| !line.contains('-') && !line.contains(':')).collect();
        let form = LABELS.iter().position(|label| pem.contains(&format!("BEGIN {label}"))).expect("a known label");
        all.push([&[protected + 2 * (1 + form as u8)][..], &BASE64.decode(body).expect("base64")].concat());
    }
    all
}

/// A key of anybody, with the passphrase of somebody: neither is ever shown, and what it asks for is not done.
pub fn key(data: &[u8]) {
    const LITTLE: Work = Work { pbkdf2_rounds: 64, scrypt_bytes: 64 << 10, scrypt_parallel: 2 };
    let Some((how, rest)) = choice(data, 8) else { return };
    let text = match how / 2 {
        0 => String::from_utf8_lossy(rest).into_owned(),
        form => {
            let label = LABELS[form - 1];
            format!("-----BEGIN {label}-----\n{}\n-----END {label}-----\n", BASE64.encode(rest))
        }
    };
    let passphrase = (how % 2 == 1).then_some(PASSPHRASE);
    match WrapKey::read_within(&text, passphrase, &LITTLE) {
        Ok(key) => {
            let data_key = [7; 32];
            if let Ok(sealed) = key.seal(&data_key)
                && let Some(opened) = key.open(&sealed)
            {
                assert_eq!(opened, data_key);
            }
        }
        Err(fault) => {
            let said = sentence(&fault);
            assert!(!said.contains(PASSPHRASE), "{said}");
            // Labels are shorter, and may be said; what has a space may be a piece of the sentence itself.
            for line in text.lines().map(str::trim).filter(|line| line.len() > 48 && !line.contains(' ')) {
                assert!(!said.contains(line), "{said}");
            }
        }
    }
}
