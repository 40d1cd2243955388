//! SluiceFS: a POSIX file system over object storage, byte-compatible with JuiceFS Community Edition 1.4.
//!
//! Layers, each importing only what stands to its right or below (checked by `tests/tidy.rs`):
//!
//! ```text
//! cli ─► fuse ─► vfs ─► chunk ─► cache ─► buf ─► base, util
//!  │              │  └───► meta ─► (engine) ─► base, util
//!  ├─► tools ─► vfs, meta, object
//!  └─► config     chunk ─► object ─► buf
//! ```
//!
//! - [`base`]: nouns without I/O; [`util`]: tools without an opinion.
//! - [`meta`]: names, attributes and slices; each operation written once over typed record transactions.
//! - [`object`], [`cache`], [`chunk`]: blocks in the store, blocks on the local disk, and the bytes of a file.
//! - [`vfs`]: where names and bytes meet; [`fuse`]: the kernel's protocol and nothing else.
//! - [`tools`]: check, clean and restore a volume, without mounting it.
//! - `simulation` (tests only): seeded worlds of several clients with crashes and faults, on all of the layers but
//!   `fuse` and `cli`.
//! - [`config`]: what is stored about a volume and what a client was told; [`cli`]: the commands.
//! - `fuzzing`: every decoder, for whoever throws bytes at it; not part of the program.

pub mod base;
pub mod buf;
pub mod cache;
pub mod chunk;
pub mod cli;
pub mod config;
#[cfg(feature = "fuse")]
pub mod fuse;
#[doc(hidden)]
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzzing;
pub mod meta;
pub mod object;
#[cfg(test)]
mod simulation;
pub mod telemetry;
pub mod tools;
pub mod util;
pub mod vfs;
