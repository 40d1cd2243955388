//! The volume's private key, which seals the data keys of objects (`spec/data.md` 5.1): RSA-OAEP with SHA-256 and the
//! label `keys`, or SM2 public-key encryption in its ASN.1 form.
//!
//! Opening is the expensive half, and every object that is read needs it once. It is blinded: whoever can put objects
//! into the bucket could otherwise learn from how long it takes.

use super::pem::{self, KeyDer, Work};
use crate::base::Fault;
use getrandom::SysRng;
use pkcs8::der::Decode as _;
use pkcs8::{DecodePrivateKey as _, ObjectIdentifier, PrivateKeyInfoRef};
use rsa::oaep::{DecryptingKey, EncryptingKey};
use rsa::pkcs1::DecodeRsaPrivateKey as _;
use rsa::traits::{PublicKeyParts as _, RandomizedDecryptor as _, RandomizedEncryptor as _};
use sha2::Sha256;

const LABEL: &[u8] = b"keys";
const RSA: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.113549.1.1.1");
const ELLIPTIC: ObjectIdentifier = ObjectIdentifier::new_unwrap("1.2.840.10045.2.1");

/// A key that seals data keys.
pub(super) enum WrapKey {
    Rsa(Box<RsaKey>),
    Sm2(Box<Sm2Key>),
}

pub(super) struct RsaKey {
    sealing: EncryptingKey<Sha256>,
    opening: DecryptingKey<Sha256>,
    /// What every sealed data key is long.
    modulus_bytes: usize,
}

pub(super) struct Sm2Key {
    sealing: sm2::pke::EncryptingKey,
    opening: sm2::pke::DecryptingKey,
}

impl WrapKey {
    /// Reads a private key.
    pub fn read(text: &str, passphrase: Option<&str>) -> Result<WrapKey, Fault> {
        WrapKey::read_within(text, passphrase, &Work::REASONABLE)
    }

    pub(super) fn read_within(text: &str, passphrase: Option<&str>, work: &Work) -> Result<WrapKey, Fault> {
        let protected = passphrase.is_some() && pem::is_protected(text);
        // A wrong passphrase can give bytes that look like a key for a while.
        let damaged = move || {
            pem::refuse(if protected { pem::WRONG_PASSPHRASE.into() } else { "the private key does not decode".into() })
        };
        match pem::read(text, passphrase, work)? {
            KeyDer::Pkcs1(der) => Ok(WrapKey::rsa(rsa::PrivateKey::from_pkcs1_der(&der).map_err(|_| damaged())?)),
            KeyDer::Pkcs8(der) => {
                let info = PrivateKeyInfoRef::from_der(&der).map_err(|_| damaged())?;
                match info.algorithm.oid {
                    RSA => Ok(WrapKey::rsa(rsa::PrivateKey::from_pkcs8_der(&der).map_err(|_| damaged())?)),
                    ELLIPTIC => match sm2::SecretKey::from_pkcs8_der(&der) {
                        Ok(key) => Ok(WrapKey::sm2(key)),
                        Err(_) => Err(pem::refuse("of elliptic-curve keys only those of SM2 can encrypt data".into())),
                    },
                    other => {
                        Err(pem::refuse(format!("keys of kind {other} cannot encrypt data: RSA or SM2 is needed")))
                    }
                }
            }
        }
    }

    fn rsa(key: rsa::PrivateKey) -> WrapKey {
        WrapKey::Rsa(Box::new(RsaKey {
            modulus_bytes: key.size(),
            sealing: EncryptingKey::new_with_label(key.to_public_key(), LABEL),
            opening: DecryptingKey::new_with_label(key, LABEL),
        }))
    }

    fn sm2(key: sm2::SecretKey) -> WrapKey {
        WrapKey::Sm2(Box::new(Sm2Key {
            sealing: sm2::pke::EncryptingKey::new(key.public_key()),
            opening: sm2::pke::DecryptingKey::new(key),
        }))
    }

    pub fn seal(&self, data_key: &[u8]) -> Result<Vec<u8>, Fault> {
        match self {
            WrapKey::Rsa(key) => key.sealing.encrypt_with_rng(&mut SysRng, data_key).map_err(|e| e.to_string()),
            WrapKey::Sm2(key) => key.sealing.encrypt_der(&mut SysRng, data_key).map_err(|e| e.to_string()),
        }
        .map_err(|why| Fault::internal("seal data key").source(why))
    }

    /// `None` when this key did not seal it. Why is not said: that would help those who try.
    pub fn open(&self, sealed: &[u8]) -> Option<Vec<u8>> {
        match self {
            WrapKey::Rsa(key) if sealed.len() != key.modulus_bytes => None,
            WrapKey::Rsa(key) => key.opening.decrypt_with_rng(&mut SysRng, sealed).ok(),
            WrapKey::Sm2(key) => key.opening.decrypt_der(sealed).ok(),
        }
    }
}
