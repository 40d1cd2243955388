//! `Name`: the name of an entry or of an extended attribute. Bytes, never text.

use super::Errno;
use std::borrow::Borrow;
use std::fmt;

/// 1 to 255 bytes of any encoding. Entry names additionally hold no `/` and no NUL (`Name::entry`).
#[derive(Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Name(Box<[u8]>);

/// The longest name, in bytes (`spec/metadata.md` section 0).
pub const NAME_BYTES_MAX: usize = 255;

impl Name {
    /// The name of a directory entry. EINVAL for an empty name, `/` or NUL; ENAMETOOLONG past 255 bytes.
    pub fn entry(bytes: &[u8]) -> Result<Name, Errno> {
        if bytes.len() > NAME_BYTES_MAX {
            return Err(Errno::ENAMETOOLONG);
        }
        if bytes.is_empty() || bytes.iter().any(|b| matches!(b, 0 | b'/')) {
            return Err(Errno::EINVAL);
        }
        Ok(Name(bytes.into()))
    }

    /// The name of an extended attribute. EINVAL when empty, ERANGE past 255 bytes (`spec/metadata.md` 7.17).
    pub fn xattr(bytes: &[u8]) -> Result<Name, Errno> {
        match bytes.len() {
            0 => Err(Errno::EINVAL),
            1..=NAME_BYTES_MAX => Ok(Name(bytes.into())),
            _ => Err(Errno::ERANGE),
        }
    }

    /// A name as it stands in a stored record; what is stored is not judged again.
    pub fn stored(bytes: impl Into<Box<[u8]>>) -> Name {
        Name(bytes.into())
    }

    /// Whether an entry can have this name. A stored one that cannot is damage: no program could say it, and the kernel
    /// refuses a whole listing for it.
    pub fn is_possible_entry(&self) -> bool {
        Name::entry(&self.0).is_ok() && !self.is_dot() && !self.is_dot_dot()
    }

    pub fn as_bytes(&self) -> &[u8] {
        &self.0
    }

    pub fn is_dot(&self) -> bool {
        *self.0 == *b"."
    }

    pub fn is_dot_dot(&self) -> bool {
        *self.0 == *b".."
    }
}

impl Borrow<[u8]> for Name {
    fn borrow(&self) -> &[u8] {
        &self.0
    }
}

/// Printable even when the bytes are not UTF-8.
impl fmt::Display for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(&self.0.escape_ascii(), f)
    }
}

impl fmt::Debug for Name {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "\"{self}\"")
    }
}
