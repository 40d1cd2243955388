//! The envelope of an encrypted object (`spec/data.md` 5.1), as bytes and nothing else.
//!
//! ```text
//! K u16 BE | N u8 | data key, sealed with the volume's key: K bytes | nonce: N bytes | ciphertext | tag: 16 bytes
//! ```
//!
//! Every object has a data key and a nonce of its own, so no two bodies share a key stream. There is no associated
//! data: an object does not know its name, and whoever can write to the bucket can swap two of them. The format has it
//! so.
//!
//! What is read here may come from anybody. Reading is total: whatever the bytes are, the answer is the body that was
//! sealed or a fault, `Corrupt` when the bytes cannot be an envelope of ours and `Integrity` when they could and do not
//! open; and it allocates no more than the object is long. A body is copied once each way, into the buffer in which it
//! is sealed or opened in place.
//!
//! [`pem`] reads the volume's private key, [`wrap`] seals data keys with it, [`aead`] seals bodies. All of it is work
//! for the processor and waits for nothing: milliseconds for a private RSA operation and for 4 MiB alike. Where it runs
//! is decided by [`super::layer::encrypt`].

mod aead;
#[cfg(any(test, feature = "fuzzing"))]
pub(crate) mod fuzz;
mod pem;
mod wrap;

pub use aead::Algorithm;

use crate::base::Fault;
use crate::buf::{self, Payload, Pool};
use aead::{Aead, NONCE_BYTES, TAG_BYTES};
use bytes::Bytes;
use std::fmt;
use std::sync::Arc;
use wrap::WrapKey;

/// K and N.
const LENGTHS_BYTES: usize = 3;
const SEAL: &str = "seal object";
const OPEN: &str = "open sealed object";

/// Seals and opens the objects of one volume.
pub struct Envelope {
    algorithm: Algorithm,
    key: WrapKey,
}

impl Envelope {
    /// `algorithm` as the volume's record names it, `pem` the private key in it, and the passphrase of that key if
    /// there is one. The faults are for people, and show neither key nor passphrase.
    pub fn new(algorithm: &str, pem: &str, passphrase: Option<&str>) -> Result<Envelope, Fault> {
        let Some(algorithm) = Algorithm::parse(algorithm) else {
            return Err(Fault::config("encrypt objects").source(format!("unsupported cipher: {algorithm:?}")));
        };
        Ok(Envelope { algorithm, key: WrapKey::read(pem, passphrase)? })
    }

    /// The object for a body.
    pub fn seal(&self, body: &Payload, pool: &Arc<Pool>) -> Result<Bytes, Fault> {
        let no_random = |_| Fault::internal(SEAL).source("the system gave no random bytes");
        let mut data_key = [0; Algorithm::KEY_BYTES_MAX];
        let data_key = &mut data_key[..self.algorithm.key_bytes()];
        let mut nonce = [0; NONCE_BYTES];
        getrandom::fill(data_key).map_err(no_random)?;
        getrandom::fill(&mut nonce).map_err(no_random)?;
        let sealed_key = self.key.seal(data_key)?;
        let Ok(sealed_key_len) = u16::try_from(sealed_key.len()) else {
            return Err(Fault::internal(SEAL).source("a sealed data key is longer than the format allows"));
        };

        let body_at = LENGTHS_BYTES + sealed_key.len() + NONCE_BYTES;
        let mut object = pool.take(body_at + body.len() + TAG_BYTES);
        object.append(&sealed_key_len.to_be_bytes());
        object.append(&[NONCE_BYTES as u8]);
        object.append(&sealed_key);
        object.append(&nonce);
        buf::copied(body.len());
        body.iter().for_each(|piece| object.append(piece));
        let aead = Aead::new(self.algorithm, data_key).expect("the data key was made with the algorithm's length");
        let Some(tag) = aead.seal(nonce, &mut object.as_mut_slice()[body_at..]) else {
            return Err(Fault::internal(SEAL).with("length", body.len()).source("the body is too long to be sealed"));
        };
        object.append(&tag);
        Ok(object.freeze())
    }

    /// The body of an object.
    pub fn open(&self, object: &Payload, pool: &Arc<Pool>) -> Result<Bytes, Fault> {
        let malformed = |why: &'static str| Fault::corrupt(OPEN).with("length", object.len()).source(why);
        let broken = |why: &'static str| Fault::integrity(OPEN).with("length", object.len()).source(why);
        if object.len() < LENGTHS_BYTES {
            return Err(malformed("it is too short for an encrypted object"));
        }
        let lengths = object.slice(..LENGTHS_BYTES).into_bytes();
        let nonce_at = LENGTHS_BYTES + usize::from(u16::from_be_bytes([lengths[0], lengths[1]]));
        if usize::from(lengths[2]) != NONCE_BYTES {
            return Err(malformed("its header does not have the nonce that all algorithms have"));
        }
        let body_at = nonce_at + NONCE_BYTES;
        if object.len() < body_at + TAG_BYTES {
            return Err(malformed("it is shorter than its header says"));
        }
        let tag_at = object.len() - TAG_BYTES;
        let (mut nonce, mut tag) = ([0; NONCE_BYTES], [0; TAG_BYTES]);
        object.slice(nonce_at..body_at).copy_to(&mut nonce);
        object.slice(tag_at..).copy_to(&mut tag);
        let sealed_key = object.slice(LENGTHS_BYTES..nonce_at).into_bytes();
        let Some(data_key) = self.key.open(&sealed_key) else {
            return Err(broken("its data key does not open with the volume's key"));
        };
        let Some(aead) = Aead::new(self.algorithm, &data_key) else {
            return Err(malformed("its data key is not one for the volume's algorithm"));
        };

        let mut body = pool.take(tag_at - body_at);
        buf::copied(tag_at - body_at);
        object.slice(body_at..tag_at).iter().for_each(|piece| body.append(piece));
        if !aead.open(nonce, body.as_mut_slice(), &tag) {
            return Err(broken("its bytes are not those that were sealed"));
        }
        Ok(body.freeze())
    }
}

/// No key.
impl fmt::Debug for Envelope {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Envelope").field("algorithm", &self.algorithm).finish_non_exhaustive()
    }
}

#[cfg(test)]
mod tests;
