//! The bytes of a file: chunks, slices and blocks, and how they travel.
//!
//! - [`layout`]: how a slice is cut into blocks. [`codec`]: how a block becomes the body of an object.
//! - [`store`]: [`ChunkStore`], reading and removing slices; [`fetch`]: one load per block, however many wait for it.
//! - [`writer`]: [`SliceWriter`], a slice under construction, uploaded while it grows.
//!
//! A slice is immutable once its writer has finished, and its id is never used again, so nothing here ever has to
//! invalidate a block.

pub mod codec;
mod fetch;
pub mod layout;
pub mod store;
pub mod writer;

pub use codec::Compression;
pub use store::{ChunkOptions, ChunkStore};
pub use writer::SliceWriter;

/// The longest slice: a slice never crosses a chunk.
pub const SLICE_BYTES_MAX: u32 = 64 << 20;
