//! Secrets: a text that no log shows, and the sealing that keeps the volume record from showing them at a glance.
//!
//! Sealing (`spec/metadata.md` 1.12) is obfuscation, not protection: the key derives from the UUID that stands in the same
//! record. It is part of the stored format, so its bytes are fixed: base64(nonce[12] ‖ AES-128-GCM ‖ tag[16]) under
//! MD5(UUID text), no associated data.

use super::{ConfigError, ConfigResult};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use md5::{Digest, Md5};
use ring::aead::{AES_128_GCM, Aad, LessSafeKey, NONCE_LEN, Nonce, UnboundKey};
use ring::rand::{SecureRandom, SystemRandom};
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

fn key_of(uuid: &str) -> LessSafeKey {
    let digest = Md5::digest(uuid.as_bytes());
    LessSafeKey::new(UnboundKey::new(&AES_128_GCM, &digest).expect("an MD5 digest is as long as an AES-128 key"))
}

fn known_algorithm(algorithm: &str) -> ConfigResult<()> {
    if algorithm == "sm4gcm" {
        return Err(ConfigError::new(
            "the secrets of this volume are sealed with sm4gcm, which this build does not have; \
             only the default sealing (AES) can be opened",
        ));
    }
    Ok(())
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
    known_algorithm(algorithm)?;
    if secret.is_empty() {
        return Ok(Secret::default());
    }
    let mut body = secret.0.as_bytes().to_vec();
    key_of(uuid)
        .seal_in_place_append_tag(Nonce::assume_unique_for_key(nonce), Aad::empty(), &mut body)
        .map_err(|_| ConfigError::new("cannot seal a secret: it is too long"))?;
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
        return Err(ConfigError::new(format!(
            "the {field} of this volume was removed when it was dumped; set it again with the \"config\" command"
        )));
    }
    known_algorithm(algorithm)?;
    let broken = |why: &str| ConfigError::new(format!("cannot open the sealed {field} of the volume: {why}"));
    let mut bytes = BASE64.decode(&sealed.0).map_err(|_| broken("it is not base64"))?;
    if bytes.len() < NONCE_LEN {
        return Err(broken("it is too short"));
    }
    let mut body = bytes.split_off(NONCE_LEN);
    let nonce = Nonce::try_assume_unique_for_key(&bytes).map_err(|_| broken("it is too short"))?;
    let plain = key_of(uuid)
        .open_in_place(nonce, Aad::empty(), &mut body)
        .map_err(|_| broken("it was sealed for another volume UUID or is damaged"))?;
    let plain = std::str::from_utf8(plain).map_err(|_| broken("it is not text"))?;
    Ok(Secret(plain.to_string()))
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
        assert!(text("not base64!", UUID, ALGO).contains("base64"));
        assert!(text("AAAA", UUID, ALGO).contains("short"));
        assert!(text("KLE9/Ylz7p4NlDX8zA1Ip/p4p04/IqIbgV9sVN8AZzskNg==", "other", ALGO).contains("UUID"));
        assert!(text("KLE9/Ylz7p4NlDX8zA1Ip/p4p04/IqIbgV9sVN8AZzskNg==", UUID, "sm4gcm").contains("sm4gcm"));
    }

    #[test]
    fn debug_never_shows_a_secret() {
        assert_eq!(format!("{:?} {:?}", Secret::new("hunter2"), Secret::default()), "removed \"\"");
    }
}
