//! Tests of the envelope against objects and keys of the peer, and against hostile ones. The keys guard nothing, see
//! `testkeys/README.md`.

use super::*;
use crate::base::FaultKind;
use crate::buf::Budget;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use proptest::prelude::*;

macro_rules! key {
    ($name:literal) => {
        include_str!(concat!("testkeys/", $name, ".pem"))
    };
}

const HELLO: &[u8] = b"hello juicefs";
const AES: &str = include_str!("testkeys/object-aes256gcm.b64");
const AES_LZ4: &str = include_str!("testkeys/object-aes256gcm-lz4.b64");
const CHACHA: &str = include_str!("testkeys/object-chacha20.b64");
const SM4: &str = include_str!("testkeys/object-sm4gcm.b64");
const SM4_SM2: &str = include_str!("testkeys/object-sm4gcm-sm2.b64");
const PASSPHRASE: &str = "test-passphrase";

/// All the ways in which the one RSA key is written.
const RSA_KEYS: [(&str, bool); 10] = [
    (key!("rsa-pkcs1"), false),
    (key!("rsa-pkcs8"), false),
    (key!("rsa-pkcs1-aes256"), true),
    (key!("rsa-pkcs1-aes192"), true),
    (key!("rsa-pkcs1-aes128"), true),
    (key!("rsa-pkcs1-des3"), true),
    (key!("rsa-pkcs1-des"), true),
    (key!("rsa-pkcs8-pbkdf2"), true),
    (key!("rsa-pkcs8-scrypt"), true),
    (key!("rsa-pkcs8-des3"), true),
];

fn pool() -> Arc<Pool> {
    Pool::new(Budget::new(1 << 30))
}

fn envelope(algorithm: &str, pem: &str) -> Envelope {
    Envelope::new(algorithm, pem, None).unwrap()
}

fn object(base64: &str) -> Vec<u8> {
    BASE64.decode(base64.split_whitespace().collect::<String>()).unwrap()
}

fn open(envelope: &Envelope, object: Vec<u8>) -> Result<Bytes, Fault> {
    envelope.open(&object.into(), &pool())
}

#[test]
fn objects_of_the_peer_open() {
    let rsa = |algorithm| envelope(algorithm, key!("rsa-pkcs1"));
    assert_eq!(open(&rsa("aes256gcm-rsa"), object(AES)).unwrap(), HELLO);
    assert_eq!(open(&rsa(""), object(AES)).unwrap(), HELLO);
    assert_eq!(open(&rsa("chacha20-rsa"), object(CHACHA)).unwrap(), HELLO);
    assert_eq!(open(&rsa("sm4gcm"), object(SM4)).unwrap(), HELLO);
    assert_eq!(open(&rsa(""), object(AES_LZ4)).unwrap(), b"\xd0hello juicefs"[..]);
    let uuid = open(&envelope("sm4gcm", key!("sm2-pkcs8")), object(SM4_SM2)).unwrap();
    assert_eq!(uuid, "1cb9005a-3066-41b4-ad2c-d4767da69f6e");
}

#[test]
fn every_kind_of_key_opens_with_its_passphrase_and_only_with_it() {
    for (pem, protected) in RSA_KEYS {
        let title = pem.lines().take(3).collect::<Vec<_>>().join(" ");
        let envelope = Envelope::new("", pem, Some(PASSPHRASE)).unwrap_or_else(|e| panic!("{title}: {e}"));
        assert_eq!(open(&envelope, object(AES)).unwrap(), HELLO, "{title}");
        // A key that has none does not mind one.
        assert_eq!(Envelope::new("", pem, None).is_ok(), !protected, "{title}");
        if protected {
            let text = Envelope::new("", pem, None).unwrap_err().to_string();
            assert!(text.contains("JFS_RSA_PASSPHRASE") && text.contains("has a passphrase"), "{title}: {text}");
            let text = Envelope::new("", pem, Some("hunter2")).unwrap_err().to_string();
            assert!(text.contains("does not open the private key") && !text.contains("hunter2"), "{title}: {text}");
        }
    }
    assert!(Envelope::new("sm4gcm", key!("sm2-pkcs8-pbkdf2"), Some(PASSPHRASE)).is_ok());
    // One of 256 wrong passphrases leaves something that looks padded; the sentence is the same.
    for i in 0..1000 {
        let text = Envelope::new("", key!("rsa-pkcs1-aes256"), Some(&format!("wrong{i}"))).unwrap_err().to_string();
        assert!(text.ends_with(pem::WRONG_PASSPHRASE), "{text}");
    }
}

#[test]
fn what_is_no_usable_key_is_refused_in_a_sentence() {
    let refused = |pem: &str| Envelope::new("", pem, Some(PASSPHRASE)).unwrap_err().to_string();
    assert!(refused("hello").contains("no private key"));
    assert!(refused("").contains("no private key"));
    assert!(refused(key!("p256-pkcs8")).contains("SM2"));
    assert!(refused(key!("rsa-pkcs8-pbes1")).contains("PBES2"));
    assert!(
        refused("-----BEGIN OPENSSH PRIVATE KEY-----\nAAAA\n-----END OPENSSH PRIVATE KEY-----\n").contains("OPENSSH")
    );
    assert!(refused("-----BEGIN PRIVATE KEY-----\nAAAA\n-----END PRIVATE KEY-----\n").contains("decode"));
    assert!(refused("-----BEGIN PRIVATE KEY-----\n").contains("decode"));
    assert!(refused(&key!("rsa-pkcs1-aes256").replace("AES-256-CBC", "RC2-40-CBC")).contains("RC2-40-CBC"));
    assert!(refused(&key!("rsa-pkcs1-aes256").replace("DEK-Info", "Comment")).contains("headers"));
    let unknown = Envelope::new("rot13", key!("rsa-pkcs1"), None).unwrap_err();
    assert!(unknown.kind() == FaultKind::Config && unknown.to_string().contains("unsupported cipher: \"rot13\""));
    // What is said in place of a name is short.
    let long = "A".repeat(64);
    let text = refused(&format!("-----BEGIN {long} PRIVATE KEY-----\nAAAA\n-----END {long} PRIVATE KEY-----\n"));
    assert!(text.contains("of kind a long name") && !text.contains(&long), "{text}");
    let text = refused(&key!("rsa-pkcs1-aes256").replace("AES-256-CBC", &long));
    assert!(text.contains("with a long name") && !text.contains(&long), "{text}");
    let huge = BASE64.encode(vec![0x30; 17 << 10]);
    let text = refused(&format!("-----BEGIN PRIVATE KEY-----\n{huge}\n-----END PRIVATE KEY-----\n"));
    assert!(text.contains("longer than any"), "{text}");
    // What stands before the key does not matter.
    let after =
        format!("note\n-----BEGIN EC PARAMETERS-----\nAAAA\n-----END EC PARAMETERS-----\n{}", key!("rsa-pkcs8"));
    assert_eq!(open(&envelope("", &after.replace('\n', "\r\n")), object(AES)).unwrap(), HELLO);
}

/// A scrypt key whose cost is nothing made the library panic; others would take the memory of a server.
#[test]
fn work_that_makes_no_sense_is_not_begun() {
    let body =
        |pem: &str| BASE64.decode(pem.lines().filter(|line| !line.starts_with('-')).collect::<String>()).unwrap();
    let text = |der: &[u8]| {
        format!("-----BEGIN ENCRYPTED PRIVATE KEY-----\n{}\n-----END ENCRYPTED PRIVATE KEY-----\n", BASE64.encode(der))
    };
    let scrypt = body(key!("small-scrypt"));
    // Cost 16, block size 1, once: three integers of a byte.
    let at = scrypt.windows(9).position(|window| window == [2, 1, 16, 2, 1, 1, 2, 1, 1]).unwrap();
    let pbkdf2 = body(key!("small-pbkdf2"));
    let rounds = pbkdf2.windows(3).position(|window| window == [2, 1, 16]).unwrap();
    for (cost, size, parallel) in [(0, 1, 1), (16, 0, 1), (16, 1, 0), (3, 1, 1), (16, 1, 17), (127, 127, 127)] {
        let mut der = scrypt.clone();
        (der[at + 2], der[at + 5], der[at + 8]) = (cost, size, parallel);
        let refused = Envelope::new("", &text(&der), Some(PASSPHRASE)).unwrap_err().to_string();
        assert!(refused.contains("more work"), "{cost} {size} {parallel}: {refused}");
    }
    // No rounds at all, and as many as fit into the number.
    let mut der = pbkdf2.clone();
    der[rounds + 2] = 0;
    assert!(Envelope::new("", &text(&der), Some(PASSPHRASE)).is_err());
    let mut der = [&pbkdf2[..rounds], &[2, 4, 0x7F, 0xFF, 0xFF, 0xFF], &pbkdf2[rounds + 3..]].concat();
    // Each sequence around it grows by three bytes: the key, the algorithm, its parameters, the function, its own.
    let mut at = 0;
    let mut grown = 0;
    while at < rounds {
        match (der[at], der[at + 1]) {
            (0x30, 0x82) => {
                let length = u16::from_be_bytes([der[at + 2], der[at + 3]]) + 3;
                der[at + 2..at + 4].copy_from_slice(&length.to_be_bytes());
                (at, grown) = (at + 4, grown + 1);
            }
            (0x30, _) => {
                der[at + 1] += 3;
                (at, grown) = (at + 2, grown + 1);
            }
            (_, length) => at += 2 + usize::from(length),
        }
    }
    assert_eq!(grown, 5);
    let refused = Envelope::new("", &text(&der), Some(PASSPHRASE)).unwrap_err().to_string();
    assert!(refused.contains("more work"), "{refused}");
}

#[test]
fn a_key_with_damaged_bytes_is_refused_or_read_but_never_a_panic() {
    for pem in [key!("rsa-pkcs1"), key!("rsa-pkcs8"), key!("sm2-pkcs8")] {
        let label = pem.lines().next().unwrap().to_owned();
        let body = pem.lines().filter(|line| !line.starts_with('-')).collect::<String>();
        let der = BASE64.decode(body).unwrap();
        for i in 0..der.len() {
            let mut bad = der.clone();
            bad[i] ^= 1 << (i % 8);
            let text = format!("{label}\n{}\n{}\n", BASE64.encode(&bad), label.replace("BEGIN", "END"));
            if let Ok(envelope) = Envelope::new("", &text, None) {
                let _ = open(&envelope, object(AES));
            }
            let text = format!("{label}\n{}\n{}\n", BASE64.encode(&der[..i]), label.replace("BEGIN", "END"));
            assert!(Envelope::new("", &text, None).is_err(), "cut at {i}");
        }
    }
}

#[test]
fn no_changed_or_cut_object_opens() {
    for (envelope, object) in [
        (envelope("", key!("rsa-pkcs1")), object(AES)),
        (envelope("chacha20-rsa", key!("rsa-pkcs1")), object(CHACHA)),
        (envelope("sm4gcm", key!("sm2-pkcs8")), object(SM4_SM2)),
    ] {
        let broken = |object: Vec<u8>, what: &str, at| match open(&envelope, object) {
            Ok(_) => panic!("{what} at {at} opens"),
            Err(fault) => assert!(matches!(fault.kind(), FaultKind::Integrity | FaultKind::Corrupt), "{fault}"),
        };
        // Each takes one operation with the key. All of the header and of the data, every seventh byte of the data key.
        let key = 3..3 + usize::from(u16::from_be_bytes([object[0], object[1]]));
        for i in (0..object.len()).filter(|i| !key.contains(i) || i % 7 == 0) {
            let mut bad = object.clone();
            bad[i] ^= 1 << (i % 8);
            broken(bad, "a changed byte", i);
            broken(object[..i].to_vec(), "an object that ends", i);
            let mut bad = object.clone();
            bad.remove(i);
            broken(bad, "a missing byte", i);
        }
        broken([&object[..], b"x"].concat(), "an object with more", object.len());
    }
}

#[test]
fn hostile_headers_are_answered_without_memory_for_what_they_promise() {
    let envelope = envelope("", key!("rsa-pkcs1"));
    let pool = pool();
    for (k, n) in [(0u16, 0u8), (0, 12), (1, 12), (256, 0), (256, 255), (257, 12), (65535, 255), (65535, 12), (20, 12)]
    {
        for len in [0usize, 1, 12, 28, 29, 300, 70_000] {
            let bytes = [&k.to_be_bytes()[..], &[n], &vec![0; len]].concat();
            let fault = envelope.open(&bytes.into(), &pool).unwrap_err();
            assert!(matches!(fault.kind(), FaultKind::Integrity | FaultKind::Corrupt), "{k} {n} {len}: {fault}");
            assert_eq!(pool.budget().used(), 0);
        }
    }
}

#[test]
fn a_data_key_of_another_length_is_a_fault() {
    // Sealed for SM4 (16 bytes), opened as AES (32 bytes), by the same RSA key.
    let fault = open(&envelope("", key!("rsa-pkcs1")), object(SM4)).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Corrupt);
    // And by another key.
    let fault = open(&envelope("sm4gcm", key!("sm2-pkcs8")), object(SM4)).unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Integrity);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(24))]
    #[test]
    fn what_is_sealed_opens(
        body in proptest::collection::vec(any::<u8>(), 0..5000),
        cuts in any::<(u16, u16)>(),
        which in 0usize..4,
    ) {
        let (algorithm, pem) = [
            ("aes256gcm-rsa", key!("rsa-pkcs8")),
            ("chacha20-rsa", key!("rsa-pkcs8")),
            ("sm4gcm", key!("rsa-pkcs8")),
            ("sm4gcm", key!("sm2-pkcs8")),
        ][which];
        let envelope = envelope(algorithm, pem);
        let in_pieces = |bytes: &[u8], cut: u16| -> Payload {
            let at = usize::from(cut) % (bytes.len() + 1);
            [&bytes[..at], &bytes[at..]].into_iter().map(Bytes::copy_from_slice).collect()
        };
        let sealed = envelope.seal(&in_pieces(&body, cuts.0), &pool()).unwrap();
        let again = envelope.seal(&in_pieces(&body, cuts.0), &pool()).unwrap();
        prop_assert_ne!(&sealed, &again, "keys and nonces are fresh");
        let opened = envelope.open(&in_pieces(&sealed, cuts.1), &pool()).unwrap();
        prop_assert_eq!(&opened[..], &body[..]);
    }

    #[test]
    fn no_bytes_make_opening_panic(bytes in proptest::collection::vec(any::<u8>(), 0..700), real in any::<bool>()) {
        let envelope = envelope("", key!("rsa-pkcs1"));
        let mut bytes = bytes;
        if real && bytes.len() > 3 {
            bytes[..3].copy_from_slice(&[1, 0, 12]);
        }
        prop_assert!(open(&envelope, bytes).is_err());
    }
}

/// Numbers, not a test: `cargo test --release --lib envelope -- --ignored --nocapture`.
#[test]
#[ignore = "measures instead of testing"]
fn throughput() {
    let pool = pool();
    let time = |name: &str, times: u32, work: &mut dyn FnMut()| {
        work();
        let begun = std::time::Instant::now();
        (0..times).for_each(|_| work());
        println!("{name}: {:.2} ms", begun.elapsed().as_secs_f64() * 1e3 / f64::from(times));
    };
    for (algorithm, pem) in [
        ("aes256gcm-rsa", key!("rsa-pkcs1")),
        ("chacha20-rsa", key!("rsa-pkcs1")),
        ("sm4gcm", key!("rsa-pkcs1")),
        ("sm4gcm", key!("sm2-pkcs8")),
    ] {
        let envelope = envelope(algorithm, pem);
        for (size, times) in [(0, 200), (4 << 20, 20)] {
            let body = Payload::from(vec![7; size]);
            let sealed = Payload::from(envelope.seal(&body, &pool).unwrap());
            time(&format!("{algorithm} seal {size}"), times, &mut || drop(envelope.seal(&body, &pool).unwrap()));
            time(&format!("{algorithm} open {size}"), times, &mut || drop(envelope.open(&sealed, &pool).unwrap()));
        }
    }
}
