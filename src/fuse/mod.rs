//! The kernel's protocol and nothing else.
//!
//! A [`transport`] reads requests and sends replies ([`fuser`] is the one there is), [`dispatch`] turns a request into
//! an operation of the vfs, [`attend`] drives it and sends the answer, [`convert`] has the numbers, [`reply`] the data on its way
//! out, [`trace`] and [`access_log`] the words and lines of the access log, and [`mount`] mounts and unmounts. No policy
//! lives here: what a request means is decided in `vfs` and `meta`.

pub mod access_log;
pub mod attend;
pub mod convert;
pub mod dispatch;
pub mod fuser;
pub mod mount;
pub mod reply;
pub mod trace;
pub mod transport;

pub use access_log::AccessLog;
pub use attend::{Finished, Observer};
pub use dispatch::Squash;
pub use mount::{Fuse, Mounted, Options, umount};

#[cfg(test)]
mod tests;
