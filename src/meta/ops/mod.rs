//! What each operation of the file system means, one family per file, written once for all engines
//! (`spec/metadata.md` section 7). A method of `Meta` checks what needs no record, then runs the operation.

pub mod access;
pub mod acl;
pub mod attr;
pub mod compact;
pub mod copy_range;
pub mod create;
#[cfg(test)]
mod data_model;
pub mod fallocate;
pub mod flock;
pub mod link;
pub mod list;
pub mod lookup;
pub mod plock;
pub mod remove_tree;
pub mod rename;
pub mod rmdir;
pub mod slices;
pub mod substitute;
pub mod truncate;
pub mod unlink;
pub mod xattr;
