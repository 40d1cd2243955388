//! Who owns the bytes of a file between the store, the cache and the kernel.
//!
//! File bytes travel as [`Payload`]: a few reference-counted pieces that are sliced and joined without being copied.
//! They are born in a [`BlockBuf`], a buffer of the [`Pool`] that counts its memory against one [`Budget`] until the
//! last reader lets go. Where a copy cannot be avoided it is reported with [`copied`], so that a test can say how many
//! copies a read may make. Nothing here does I/O.

pub mod budget;
pub mod payload;
pub mod pool;

pub use budget::{Budget, Charge};
pub use payload::Payload;
pub use pool::{BlockBuf, Pool};

use bytes::Bytes;
use std::sync::atomic::{AtomicU64, Ordering};

static COPIED_BYTES: AtomicU64 = AtomicU64::new(0);

/// Reports that `n` bytes of file data were copied in user space.
pub fn copied(n: usize) {
    COPIED_BYTES.fetch_add(n as u64, Ordering::Relaxed);
}

/// All bytes reported with [`copied`] since the process started.
pub fn copied_bytes() -> u64 {
    COPIED_BYTES.load(Ordering::Relaxed)
}

/// What holes are made of: one page of zeros for everybody. 128 KiB is a common size of a read, so most holes are
/// one piece.
static ZEROS: [u8; 128 << 10] = [0; 128 << 10];

/// The zero page.
pub fn zero_page() -> Bytes {
    Bytes::from_static(&ZEROS)
}
