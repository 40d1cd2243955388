//! The kernel's protocol and nothing else.
//!
//! A [`transport`] reads requests and sends replies ([`fuser`] is the one there is), [`dispatch`] turns a request into
//! an operation of the vfs, [`attend`] drives it and sends the answer. [`convert`] translates words and numbers,
//! [`reply`] has the data on its way out, [`trace`] and [`access_log`] the words and lines of the access log, [`metrics`]
//! the counts, `raw` reads what the transport leaves out, and [`mount`] mounts and unmounts. No policy lives here: what
//! a request means is decided in `vfs` and `meta`.

pub mod access_log;
pub mod attend;
pub mod convert;
pub mod dispatch;
pub mod fuser;
pub mod metrics;
pub mod mount;
mod raw;
pub mod reply;
pub mod trace;
pub mod transport;

pub use access_log::AccessLog;
pub use attend::{Finished, Observer};
pub use dispatch::Squash;
pub use metrics::FuseMetrics;
pub use mount::{Fuse, Mounted, Options, umount};

#[cfg(test)]
mod tests;
