//! What each operation of the file system means, one family per file, written once for all engines
//! (`spec/metadata.md` section 7). A method of `Meta` checks what needs no record, then runs the operation.

pub mod access;
pub mod create;
pub mod link;
pub mod lookup;
pub mod rename;
pub mod rmdir;
pub mod unlink;
