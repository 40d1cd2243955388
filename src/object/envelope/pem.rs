//! Private keys as people have them: PEM text around PKCS#1 or PKCS#8, plain or under a passphrase (`spec/data.md` 5.2).
//!
//! Passphrases come in two forms. The old one encrypts any block and says how in its headers (`Proc-Type: 4,ENCRYPTED`,
//! RFC 1421); the key is MD5 of the passphrase, which protects little, but such keys exist. The other one is encrypted
//! PKCS#8 with PBES2.
//!
//! The text comes out of the volume's record, so it may be anybody's: what it makes us compute is bounded.

use crate::base::Fault;
use aes::{Aes128, Aes192, Aes256};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use cbc::cipher::block_padding::Pkcs7;
use cbc::cipher::{BlockCipherDecrypt, BlockModeDecrypt as _, KeyInit, KeyIvInit as _};
use des::{Des, TdesEde3};
use md5::{Digest as _, Md5};
use pkcs8::EncryptedPrivateKeyInfoRef;
use pkcs8::der::Decode as _;
use pkcs8::pkcs5::EncryptionScheme;
use pkcs8::pkcs5::pbes2::Kdf;

/// Said in place of whatever decoder stumbled over what a wrong passphrase makes of a key.
pub(super) const WRONG_PASSPHRASE: &str = "the passphrase in JFS_RSA_PASSPHRASE does not open the private key";

/// How much a key may ask for before its passphrase can be tried.
pub(super) struct Work {
    pub pbkdf2_rounds: u32,
    pub scrypt_bytes: u64,
    pub scrypt_parallel: u16,
}

impl Work {
    /// A minute at most. OpenSSL makes 2,048 rounds, or takes 16 MiB, unless told otherwise.
    pub const REASONABLE: Work = Work { pbkdf2_rounds: 10_000_000, scrypt_bytes: 256 << 20, scrypt_parallel: 16 };

    fn allows(&self, kdf: &Kdf) -> bool {
        match kdf {
            Kdf::Pbkdf2(kdf) => kdf.iteration_count <= self.pbkdf2_rounds,
            // A cost that is no power of two, or nothing at all, is not one that can be computed with.
            Kdf::Scrypt(kdf) => {
                let bytes = kdf.cost_parameter.checked_mul(128 * u64::from(kdf.block_size));
                kdf.cost_parameter.is_power_of_two()
                    && bytes.is_some_and(|bytes| (1..=self.scrypt_bytes).contains(&bytes))
                    && (1..=self.scrypt_parallel).contains(&kdf.parallelization)
            }
            _ => false,
        }
    }
}

/// The largest RSA keys that can be used (8192 bits) take less than 5 KiB; arithmetic with larger ones takes minutes.
const KEY_BYTES_MAX: usize = 16 << 10;
/// Longer words of a text are not repeated: they could be anything.
const WORD_BYTES_MAX: usize = 40;

/// A key out of its wrapping.
pub(super) enum KeyDer {
    Pkcs1(Vec<u8>),
    Pkcs8(Vec<u8>),
}

/// Why there is no key: a sentence for people. Never holds any of the text.
pub(super) fn refuse(why: String) -> Fault {
    Fault::config("read the encryption key").source(why)
}

/// One block of a PEM text.
struct Block<'a> {
    label: &'a str,
    /// `DEK-Info`, when the headers say that the body is encrypted.
    encrypted: Option<&'a str>,
    body: Vec<u8>,
}

impl Block<'_> {
    fn is_protected(&self) -> bool {
        self.encrypted.is_some() || self.label == "ENCRYPTED PRIVATE KEY"
    }
}

/// Whether the key is of use only with its passphrase.
pub(super) fn is_protected(text: &str) -> bool {
    private_key_block(text).is_some_and(|block| block.is_protected())
}

/// A word of the text, as far as it may be shown.
fn shown(word: &str) -> String {
    if word.len() <= WORD_BYTES_MAX { format!("{word:?}") } else { "a long name".into() }
}

/// Reads the first private key of a PEM text, with no more than this work.
pub(super) fn read(text: &str, passphrase: Option<&str>, work: &Work) -> Result<KeyDer, Fault> {
    let Some(mut block) = private_key_block(text) else {
        return Err(refuse("there is no private key in PEM form in it".into()));
    };
    if block.body.len() > KEY_BYTES_MAX {
        return Err(refuse("the private key is longer than any that can be used".into()));
    }
    let passphrase = match (block.is_protected(), passphrase) {
        (false, _) => "",
        (true, Some(passphrase)) => passphrase,
        (true, None) => {
            return Err(refuse("the private key has a passphrase; put it into JFS_RSA_PASSPHRASE".into()));
        }
    };
    if let Some(how) = block.encrypted {
        block.body = open_by_headers(how, passphrase.as_bytes(), block.body)?;
    }
    match block.label {
        "RSA PRIVATE KEY" => Ok(KeyDer::Pkcs1(block.body)),
        "ENCRYPTED PRIVATE KEY" => Ok(KeyDer::Pkcs8(open_pkcs8(passphrase.as_bytes(), &block.body, work)?)),
        "PRIVATE KEY" => Ok(KeyDer::Pkcs8(block.body)),
        other => Err(refuse(format!(
            "a block of kind {} is not read; `openssl pkcs8 -topk8 -in FILE` makes one that is",
            shown(other)
        ))),
    }
}

/// The first whole block that names a private key.
fn private_key_block(text: &str) -> Option<Block<'_>> {
    let mut lines = text.lines().map(str::trim);
    loop {
        let label = lines.by_ref().find_map(|line| line.strip_prefix("-----BEGIN ")?.strip_suffix("-----"))?;
        let end = format!("-----END {label}-----");
        let lines = lines.by_ref().take_while(|line| *line != end);
        if !label.ends_with("PRIVATE KEY") {
            lines.for_each(|_| ());
            continue;
        }
        let (mut encrypted, mut how, mut base64) = (false, None, String::new());
        for line in lines {
            match line.split_once(':') {
                Some(("Proc-Type", value)) => encrypted = value.contains("ENCRYPTED"),
                Some(("DEK-Info", value)) => how = Some(value.trim()),
                Some(_) => {}
                None => base64.push_str(line),
            }
        }
        let body = BASE64.decode(base64).ok()?;
        return Some(Block { label, encrypted: if encrypted { Some(how.unwrap_or("")) } else { None }, body });
    }
}

/// The old form: `how` is `ALGORITHM,IV in hexadecimal`.
fn open_by_headers(how: &str, passphrase: &[u8], body: Vec<u8>) -> Result<Vec<u8>, Fault> {
    let (algorithm, iv) = how.split_once(',').unwrap_or((how, ""));
    let unhex = |iv: &str| -> Option<Vec<u8>> {
        let digits = iv.trim().chars().map(|c| c.to_digit(16)).collect::<Option<Vec<u32>>>()?;
        digits.chunks(2).map(|pair| u8::try_from((pair.first()? << 4) | pair.get(1)?).ok()).collect()
    };
    let Some(iv) = unhex(iv).filter(|iv| iv.len() >= 8) else {
        return Err(refuse("the headers of the private key do not say how it is encrypted".into()));
    };
    let opened = match algorithm.trim() {
        "AES-256-CBC" => open_cbc::<Aes256>(32, passphrase, &iv, body),
        "AES-192-CBC" => open_cbc::<Aes192>(24, passphrase, &iv, body),
        "AES-128-CBC" => open_cbc::<Aes128>(16, passphrase, &iv, body),
        "DES-EDE3-CBC" => open_cbc::<TdesEde3>(24, passphrase, &iv, body),
        "DES-CBC" => open_cbc::<Des>(8, passphrase, &iv, body),
        other => {
            return Err(refuse(format!(
                "the private key is encrypted with {}, which is not read; `openssl pkcs8 -topk8 -in FILE` changes that",
                shown(other)
            )));
        }
    };
    opened.ok_or_else(|| refuse(WRONG_PASSPHRASE.into()))
}

fn open_cbc<C: BlockCipherDecrypt + KeyInit>(
    key_bytes: usize,
    passphrase: &[u8],
    iv: &[u8],
    mut body: Vec<u8>,
) -> Option<Vec<u8>> {
    // MD5 chained until there is enough of it; the salt is the start of the nonce.
    let (mut key, mut last) = (Vec::new(), Vec::new());
    while key.len() < key_bytes {
        last = Md5::new().chain_update(&last).chain_update(passphrase).chain_update(&iv[..8]).finalize().to_vec();
        key.extend_from_slice(&last);
    }
    let opened = cbc::Decryptor::<C>::new_from_slices(&key[..key_bytes], iv).ok()?;
    let len = opened.decrypt_padded::<Pkcs7>(&mut body).ok()?.len();
    body.truncate(len);
    Some(body)
}

fn open_pkcs8(passphrase: &[u8], der: &[u8], work: &Work) -> Result<Vec<u8>, Fault> {
    let key = EncryptedPrivateKeyInfoRef::from_der(der).map_err(|_| {
        refuse("the encrypted private key does not decode, or is protected in a way that is not read (PBES2 is)".into())
    })?;
    let EncryptionScheme::Pbes2(how) = &key.encryption_algorithm else {
        return Err(refuse(
            "the private key is protected by PBES1, which is not read; `openssl pkcs8 -topk8` renews it".into(),
        ));
    };
    if !work.allows(&how.kdf) {
        return Err(refuse("the private key asks for more work to open it than is reasonable".into()));
    }
    let opened = key.decrypt(passphrase).map_err(|e| match e {
        pkcs8::Error::EncryptedPrivateKey(pkcs8::pkcs5::Error::UnsupportedAlgorithm { oid }) => {
            refuse(format!("the private key is protected by the algorithm {oid}, which is not read"))
        }
        _ => refuse(WRONG_PASSPHRASE.into()),
    })?;
    Ok(opened.as_bytes().to_vec())
}
