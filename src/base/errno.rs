//! `Errno`: an *answer* of the file system (there is no such file, it exists already …), as opposed to a fault.

use std::fmt;
use std::num::NonZeroI32;

/// A Linux error number. Small, `Copy`, and logged quietly: most of them are normal answers.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Errno(NonZeroI32);

macro_rules! errnos {
    ($($name:ident),* $(,)?) => {
        impl Errno {
            $(pub const $name: Errno = Errno(NonZeroI32::new(libc::$name).expect("errno numbers are not zero"));)*

            /// The symbol (`ENOENT`), or `None` for a number without one here.
            pub fn symbol(self) -> Option<&'static str> {
                match self {
                    $(Errno::$name => Some(stringify!($name)),)*
                    _ => None,
                }
            }
        }
    };
}

errnos! {
    EPERM, ENOENT, EINTR, EIO, ENXIO, E2BIG, EBADF, EAGAIN, ENOMEM, EACCES, EBUSY, EEXIST, EXDEV, ENODEV, ENOTDIR,
    EISDIR, EINVAL, ENFILE, EMFILE, ENOTTY, ETXTBSY, EFBIG, ENOSPC, ESPIPE, EROFS, EMLINK, EPIPE, ERANGE, EDEADLK,
    ENAMETOOLONG, ENOLCK, ENOSYS, ENOTEMPTY, ELOOP, ENODATA, EOVERFLOW, EOPNOTSUPP, ETIMEDOUT, ESTALE, EDQUOT,
    ECANCELED, EPROTO,
}

impl Errno {
    /// Linux has no ENOTSUP of its own; it is EOPNOTSUPP.
    pub const ENOTSUP: Errno = Errno::EOPNOTSUPP;

    /// The error number itself, positive.
    pub fn raw(self) -> i32 {
        self.0.get()
    }

    /// From a positive error number; zero and negative numbers become EIO.
    pub fn from_raw(raw: i32) -> Errno {
        NonZeroI32::new(raw).filter(|n| n.get() > 0).map_or(Errno::EIO, Errno)
    }
}

impl fmt::Debug for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.symbol() {
            Some(symbol) => f.write_str(symbol),
            None => write!(f, "errno {}", self.0),
        }
    }
}

/// The sentence the C library has for it ("no such file or directory"), in lower case as access logs have it.
impl fmt::Display for Errno {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&nix::errno::Errno::from_raw(self.raw()).desc().to_lowercase())
    }
}

impl std::error::Error for Errno {}
