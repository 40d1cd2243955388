//! Secrets: a text that no log shows, and the sealing that keeps the volume record from showing them at a glance.
//!
//! Sealing (`spec/metadata.md` 1.12) is obfuscation, not protection: the key derives from the UUID that stands in the same
//! record. It is part of the stored format, so its bytes are fixed: base64(nonce[12] ‖ AES-128-GCM ‖ tag[16]) under
//! MD5(UUID text), no associated data. Volumes whose data cipher is `sm4gcm` seal with SM4-GCM under the first half of
//! SM3(UUID text ‖ 1 as u32 BE) instead, whether their data is encrypted or not.

use super::{ConfigError, ConfigResult};
use aes_gcm::AesGcm;
use aes_gcm::aead::consts::U12;
use aes_gcm::aead::{AeadInOut, KeyInit};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest, Md5};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
use sm3::Sm3;
use sm4::Sm4;
use std::fmt;

/// What is shown in place of a secret, and what a dump leaves of one.
pub const REMOVED: &str = "removed";

/// A text that must not be shown. `Debug` says `removed`; there is no `Display`.
#[derive(Clone, Default, PartialEq, Eq)]
pub struct Secret(String);

impl Secret {
    pub fn new(text: impl Into<String>) -> Secret {
        Secret(text.into())
    }

    /// The text itself. The name is long so that its uses can be found and counted.
    pub fn expose(&self) -> &str {
        &self.0
    }

    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl From<String> for Secret {
    fn from(text: String) -> Secret {
        Secret(text)
    }
}

impl fmt::Debug for Secret {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(if self.0.is_empty() { "\"\"" } else { REMOVED })
    }
}

/// The passphrase of the key of an encrypted volume. It is never stored, so every client needs it from its environment.
pub fn data_key_passphrase() -> Option<Secret> {
    std::env::var("JFS_RSA_PASSPHRASE").ok().filter(|passphrase| !passphrase.is_empty()).map(Secret)
}

/// What to say of a secret that a dump left out.
pub(super) fn removed(field: &str) -> ConfigError {
    let again = if field == "encryption key" {
        "load a dump that was made with --keep-secret-key"
    } else {
        "set it again with the \"config\" command"
    };
    ConfigError::new(format!("the {field} of this volume was removed when it was dumped; {again}"))
}

/// A cipher with the key that a UUID gives.
enum Sealer {
    Aes(LessSafeKey),
    Sm4(Box<AesGcm<Sm4, U12>>),
}

impl Sealer {
    fn new(uuid: &str, algorithm: &str) -> Sealer {
        if algorithm == "sm4gcm" {
            let digest = Sm3::new().chain_update(uuid).chain_update(1u32.to_be_bytes()).finalize();
            let key = AesGcm::new_from_slice(&digest[..16]);
            return Sealer::Sm4(Box::new(key.expect("half an SM3 digest is as long as an SM4 key")));
        }
        let digest = Md5::digest(uuid.as_bytes());
        let key = UnboundKey::new(&AES_128_GCM, &digest).expect("an MD5 digest is as long as an AES-128 key");
        Sealer::Aes(LessSafeKey::new(key))
    }

    /// Turns `body` into ciphertext and tag; `None` when it is too long.
    fn seal(&self, nonce: [u8; NONCE_LEN], body: &mut Vec<u8>) -> Option<()> {
        match self {
            Sealer::Aes(key) => {
                key.seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), body).ok()
            }
            Sealer::Sm4(key) => key.encrypt_in_place(&nonce.into(), &[], body).ok(),
        }
    }

    /// Turns ciphertext and tag into what was sealed.
    fn open(&self, nonce: [u8; NONCE_LEN], body: &mut Vec<u8>) -> Option<()> {
        match self {
            Sealer::Aes(key) => {
                let opened = key.open_in_place(Nonce::assume_unique_for_key(nonce), Aad::empty(), body);
                let len = opened.ok()?.len();
                body.truncate(len);
                Some(())
            }
            Sealer::Sm4(key) => key.decrypt_in_place(&nonce.into(), &[], body).ok(),
        }
    }
}

/// Seals one secret; an empty one stays empty.
pub fn seal(secret: &Secret, uuid: &str, algorithm: &str) -> ConfigResult<Secret> {
    let mut nonce = [0u8; NONCE_LEN];
    SystemRandom::new()
        .fill(&mut nonce)
        .map_err(|_| ConfigError::new("cannot seal the secrets: the system gave no random bytes"))?;
    seal_with_nonce(secret, uuid, algorithm, nonce)
}

fn seal_with_nonce(secret: &Secret, uuid: &str, algorithm: &str, nonce: [u8; NONCE_LEN]) -> ConfigResult<Secret> {
    if secret.is_empty() {
        return Ok(Secret::default());
    }
    let mut body = secret.0.as_bytes().to_vec();
    Sealer::new(uuid, algorithm)
        .seal(nonce, &mut body)
        .ok_or_else(|| ConfigError::new("cannot seal a secret: it is too long"))?;
    let mut sealed = nonce.to_vec();
    sealed.append(&mut body);
    Ok(Secret(BASE64.encode(sealed)))
}

/// Opens one sealed secret; `field` names it in the error.
pub fn open(sealed: &Secret, uuid: &str, algorithm: &str, field: &str) -> ConfigResult<Secret> {
    if sealed.is_empty() {
        return Ok(Secret::default());
    }
    if sealed.0 == REMOVED {
        return Err(removed(field));
    }
    let broken = |why: &str| ConfigError::new(format!("cannot open the sealed {field} of the volume: {why}"));
    let bytes = BASE64.decode(&sealed.0).map_err(|_| broken("it is not base64"))?;
    let Some((nonce, body)) = bytes.split_first_chunk() else { return Err(broken("it is too short")) };
    let mut body = body.to_vec();
    Sealer::new(uuid, algorithm)
        .open(*nonce, &mut body)
        .ok_or_else(|| broken("it was sealed for another volume UUID or is damaged"))?;
    String::from_utf8(body).map(Secret).map_err(|_| broken("it is not text"))
}

#[cfg(test)]
mod tests {
    use super::*;

    const UUID: &str = "2fd07c25-f1eb-4359-ad5e-9c77cc932105";
    const ALGO: &str = "aes256gcm-rsa";

    #[test]
    fn secrets_of_the_peer_open() {
        for (sealed, plain) in [
            ("KLE9/Ylz7p4NlDX8zA1Ip/p4p04/IqIbgV9sVN8AZzskNg==", "SKTEST"),
            ("Y6Kjy7T27FGBrWtFVF2RyXSbg1vBtyZ9FBK24EdXU8b7doU=", "TOKTEST"),
        ] {
            let opened = open(&Secret::new(sealed), UUID, ALGO, "secret key").unwrap();
            assert_eq!(opened.expose(), plain);
            // The same nonce gives the same bytes back, so what we seal is what the peer would have sealed.
            let nonce: [u8; 12] = BASE64.decode(sealed).unwrap()[..12].try_into().unwrap();
            assert_eq!(seal_with_nonce(&opened, UUID, ALGO, nonce).unwrap().expose(), sealed);
        }
    }

    #[test]
    fn secrets_of_the_peers_sm4_volumes_open() {
        const UUID: &str = "1cb9005a-3066-41b4-ad2c-d4767da69f6e";
        let sealed = "rIUTnFSYZr1mM3F/oGM29dEST+3KxxOXzCw5ihWldkqOwg==";
        let opened = open(&Secret::new(sealed), UUID, "sm4gcm", "secret key").unwrap();
        assert_eq!(opened.expose(), "SKTEST");
        let nonce: [u8; 12] = BASE64.decode(sealed).unwrap()[..12].try_into().unwrap();
        assert_eq!(seal_with_nonce(&opened, UUID, "sm4gcm", nonce).unwrap().expose(), sealed);
        assert!(open(&Secret::new(sealed), UUID, ALGO, "secret key").is_err());
    }

    #[test]
    fn sealing_round_trips_and_empty_stays_empty() {
        let sealed = seal(&Secret::new("s3cr3t"), UUID, "").unwrap();
        assert_ne!(sealed, seal(&Secret::new("s3cr3t"), UUID, "").unwrap(), "nonces differ");
        assert_eq!(open(&sealed, UUID, ALGO, "x").unwrap().expose(), "s3cr3t");
        assert!(seal(&Secret::default(), UUID, ALGO).unwrap().is_empty());
        assert!(open(&Secret::default(), UUID, ALGO, "x").unwrap().is_empty());
    }

    #[test]
    fn what_cannot_be_opened_says_why() {
        let text =
            |sealed: &str, uuid, algo| open(&Secret::new(sealed), uuid, algo, "secret key").unwrap_err().to_string();
        assert!(text("removed", UUID, ALGO).contains("config"));
        assert!(removed("encryption key").to_string().contains("--keep-secret-key"));
        assert!(text("not base64!", UUID, ALGO).contains("base64"));
        assert!(text("AAAA", UUID, ALGO).contains("short"));
        assert!(text("KLE9/Ylz7p4NlDX8zA1Ip/p4p04/IqIbgV9sVN8AZzskNg==", "other", ALGO).contains("UUID"));
        assert!(text("KLE9/Ylz7p4NlDX8zA1Ip/p4p04/IqIbgV9sVN8AZzskNg==", UUID, "sm4gcm").contains("damaged"));
    }

    #[test]
    fn debug_never_shows_a_secret() {
        assert_eq!(format!("{:?} {:?}", Secret::new("hunter2"), Secret::default()), "removed \"\"");
    }
}
