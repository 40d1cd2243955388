//! What is stored about a volume, and what a client was told.
//!
//! Three kinds of settings, three types (design section 11): the volume's own record ([`VolumeFormat`], stored, versioned,
//! read with tolerance), the client's settings ([`ClientSettings`], from flags and environment, checked strictly), and
//! where the metadata is ([`MetaUri`]). Text becomes meaning here in one step, with units as types; what is wrong is said
//! in a sentence that names the option and the value. Nothing here opens a connection.

pub mod client;
pub mod dumped;
pub mod effective;
pub mod seal;
pub mod units;
pub mod uri;
pub mod version;
pub mod volume;

pub use client::ClientSettings;
pub use seal::Secret;
pub use units::{Bandwidth, Size};
pub use uri::MetaUri;
pub use volume::{Access, Version, VolumeFormat};

use crate::base::Fault;
use crate::base::fault::one_line;

/// A setting that is wrong, in a sentence for the person who typed it. Nothing branches on the kind of mistake, so a
/// sentence is all it is. It never contains a secret.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{0}")]
pub struct ConfigError(String);

impl ConfigError {
    pub fn new(sentence: impl Into<String>) -> ConfigError {
        let sentence = sentence.into();
        match one_line(&sentence) {
            std::borrow::Cow::Borrowed(_) => ConfigError(sentence),
            std::borrow::Cow::Owned(escaped) => ConfigError(escaped),
        }
    }
}

impl From<ConfigError> for Fault {
    fn from(error: ConfigError) -> Fault {
        Fault::config("apply settings").source(error)
    }
}

pub type ConfigResult<T> = Result<T, ConfigError>;
