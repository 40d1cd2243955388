//! Sealing a body with its data key, in place. AES and ChaCha20 are *ring*'s, which uses what the processor has for
//! them; SM4 is written in plain Rust and an order of magnitude slower.

use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{AeadInOut, KeyInit};
use ring::aead::{AES_256_GCM, Aad, CHACHA20_POLY1305, LessSafeKey, Nonce, Tag, UnboundKey};
use sm4::Sm4;

/// All algorithms have nonces and tags of these sizes.
pub(super) const NONCE_BYTES: usize = 12;
pub(super) const TAG_BYTES: usize = 16;

/// How the bodies of a volume's objects are sealed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Algorithm {
    Aes256Gcm,
    ChaCha20Poly1305,
    Sm4Gcm,
}

impl Algorithm {
    pub(super) const KEY_BYTES_MAX: usize = 32;

    /// As the volume's record names it; nothing is the default.
    pub fn parse(name: &str) -> Option<Algorithm> {
        match name {
            "" | "aes256gcm-rsa" => Some(Algorithm::Aes256Gcm),
            "chacha20-rsa" => Some(Algorithm::ChaCha20Poly1305),
            "sm4gcm" => Some(Algorithm::Sm4Gcm),
            _ => None,
        }
    }

    pub(super) fn key_bytes(self) -> usize {
        match self {
            Algorithm::Aes256Gcm | Algorithm::ChaCha20Poly1305 => 32,
            Algorithm::Sm4Gcm => 16,
        }
    }
}

/// An algorithm with a key.
pub(super) enum Aead {
    Ring(Box<LessSafeKey>),
    Sm4(Box<AesGcm<Sm4, U12>>),
}

impl Aead {
    /// `None` when the key has not the algorithm's length.
    pub fn new(algorithm: Algorithm, key: &[u8]) -> Option<Aead> {
        let ring = |algorithm| Some(Aead::Ring(Box::new(LessSafeKey::new(UnboundKey::new(algorithm, key).ok()?))));
        match algorithm {
            Algorithm::Aes256Gcm => ring(&AES_256_GCM),
            Algorithm::ChaCha20Poly1305 => ring(&CHACHA20_POLY1305),
            Algorithm::Sm4Gcm => Some(Aead::Sm4(Box::new(AesGcm::new_from_slice(key).ok()?))),
        }
    }

    /// Encrypts `body` and answers its tag; `None` when it is longer than the algorithm allows (64 GiB or more).
    pub fn seal(&self, nonce: [u8; NONCE_BYTES], body: &mut [u8]) -> Option<[u8; TAG_BYTES]> {
        match self {
            Aead::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                let tag = key.seal_in_place_separate_tag(nonce, Aad::empty(), body).ok()?;
                tag.as_ref().try_into().ok()
            }
            Aead::Sm4(key) => Some(key.encrypt_inout_detached(&nonce.into(), &[], body.into()).ok()?.into()),
        }
    }

    /// Decrypts `body`, or says that it is not what was sealed; then its bytes mean nothing.
    pub fn open(&self, nonce: [u8; NONCE_BYTES], body: &mut [u8], tag: &[u8; TAG_BYTES]) -> bool {
        match self {
            Aead::Ring(key) => {
                let nonce = Nonce::assume_unique_for_key(nonce);
                key.open_in_place_separate_tag(nonce, Aad::empty(), Tag::from(*tag), body, 0..).is_ok()
            }
            Aead::Sm4(key) => key.decrypt_inout_detached(&nonce.into(), &[], body.into(), &(*tag).into()).is_ok(),
        }
    }
}
