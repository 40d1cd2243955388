//! Buffers of blocks: counted against the budget, reused while the data flows, given back when it stops.
//!
//! A block to be read counts whole from the start; of one that is written, what is filled counts: the rest is address
//! space that no memory stands behind yet. A block that is finished short moves to memory of its own size, because a
//! cache may keep it for long: blocks of 70 KiB that each held on to a buffer of 4 MiB once filled the budget, and
//! writers waited for room that nobody was going to make.
//!
//! A fresh 4 MiB buffer costs a thousand page faults, about as much time as filling it, so a few whole-block buffers
//! are kept for reuse. They are kept only while blocks are moving: a mount at rest holds none. Small buffers are left
//! to the allocator.

use super::{Budget, Charge};
use bytes::Bytes;
use parking_lot::Mutex;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};

/// Smaller buffers are not worth keeping: the allocator reuses them well by itself.
const KEPT_BYTES_MIN: usize = 1 << 20;
/// At most this many bytes wait for reuse.
const KEPT_BYTES_MAX: usize = 32 << 20;
/// A kept buffer that nobody asked for during this time is freed.
const KEPT_IDLE: Duration = Duration::from_secs(2);
/// A block that begins smaller than this starts small and grows; one that begins larger gets its full size at once.
const SMALL_BYTES: usize = 64 << 10;
/// What is filled is counted in steps of this.
const CHARGE_STEP: usize = 64 << 10;

/// Where block buffers come from and go back to.
pub struct Pool {
    budget: Arc<Budget>,
    kept: Mutex<Kept>,
}

#[derive(Default)]
struct Kept {
    bytes: usize,
    /// Oldest first; the newest is the warmest and is taken first.
    buffers: Vec<(Instant, Vec<u8>)>,
    /// A trimmer is running.
    trimmed: bool,
}

impl Pool {
    pub fn new(budget: Arc<Budget>) -> Arc<Pool> {
        Arc::new(Pool { budget, kept: Mutex::default() })
    }

    pub fn budget(&self) -> &Arc<Budget> {
        &self.budget
    }

    /// An empty buffer for `capacity` bytes.
    pub fn take(self: &Arc<Pool>, capacity: usize) -> BlockBuf {
        let charge = self.budget.charge(capacity);
        BlockBuf { bytes: self.memory(capacity), charge, capacity, pool: Arc::downgrade(self) }
    }

    /// An empty buffer that may grow to `capacity` bytes and begins with room for `first`.
    pub fn take_growing(self: &Arc<Pool>, first: usize, capacity: usize) -> BlockBuf {
        let room = if first > SMALL_BYTES { capacity } else { capacity.min(first.next_power_of_two().max(4096)) };
        BlockBuf { bytes: self.memory(room), charge: self.budget.charge(0), capacity, pool: Arc::downgrade(self) }
    }

    fn memory(&self, capacity: usize) -> Vec<u8> {
        if capacity >= KEPT_BYTES_MIN {
            let mut kept = self.kept.lock();
            // A buffer up to twice as large will do; more would hide memory from the budget.
            if let Some(i) = kept.buffers.iter().rposition(|(_, b)| (capacity..=capacity * 2).contains(&b.capacity())) {
                let (_, buffer) = kept.buffers.remove(i);
                kept.bytes -= buffer.capacity();
                return buffer;
            }
        }
        Vec::with_capacity(capacity)
    }

    fn give_back(self: &Arc<Pool>, mut buffer: Vec<u8>) {
        // Without a runtime nobody would free it later.
        let Ok(runtime) = tokio::runtime::Handle::try_current() else { return };
        let mut kept = self.kept.lock();
        if kept.bytes + buffer.capacity() > KEPT_BYTES_MAX {
            return;
        }
        buffer.clear();
        kept.bytes += buffer.capacity();
        kept.buffers.push((Instant::now(), buffer));
        if !std::mem::replace(&mut kept.trimmed, true) {
            runtime.spawn(trim(Arc::downgrade(self)));
        }
    }
}

/// Frees what was not asked for, and ends when nothing is left.
async fn trim(pool: Weak<Pool>) {
    loop {
        tokio::time::sleep(KEPT_IDLE).await;
        let Some(pool) = pool.upgrade() else { return };
        let mut kept = pool.kept.lock();
        let idle = kept.buffers.iter().take_while(|(since, _)| since.elapsed() >= KEPT_IDLE).count();
        let freed: Vec<_> = kept.buffers.drain(..idle).collect();
        kept.bytes -= freed.iter().map(|(_, b)| b.capacity()).sum::<usize>();
        kept.trimmed = !kept.buffers.is_empty();
        if !kept.trimmed {
            kept.buffers.shrink_to_fit();
            return;
        }
    }
}

/// The memory of one block while it is filled. Becomes `Bytes` without a copy; the memory is counted until the last
/// of them is dropped.
pub struct BlockBuf {
    bytes: Vec<u8>,
    charge: Charge,
    /// What it may grow to.
    capacity: usize,
    pool: Weak<Pool>,
}

impl BlockBuf {
    pub fn len(&self) -> usize {
        self.bytes.len()
    }

    pub fn is_empty(&self) -> bool {
        self.bytes.is_empty()
    }

    /// The most it can hold.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    pub fn as_slice(&self) -> &[u8] {
        &self.bytes
    }

    /// Copies `data` to `at`, filling a gap before it with zeros.
    ///
    /// # Panics
    /// When the end would lie past the capacity.
    pub fn write_at(&mut self, at: usize, data: &[u8]) {
        let end = at + data.len();
        assert!(end <= self.capacity, "write up to {end} in a block of {} bytes", self.capacity);
        self.make_room(end);
        if at > self.bytes.len() {
            self.bytes.resize(at, 0);
        }
        super::copied(data.len());
        let over = data.len().min(self.bytes.len() - at);
        self.bytes[at..at + over].copy_from_slice(&data[..over]);
        self.bytes.extend_from_slice(&data[over..]);
        self.count();
    }

    /// Adds `data` at the end. For landing several pieces in one block: the caller counts the copy.
    pub fn append(&mut self, data: &[u8]) {
        let end = self.bytes.len() + data.len();
        assert!(end <= self.capacity, "append up to {end} in a block of {} bytes", self.capacity);
        self.make_room(end);
        self.bytes.extend_from_slice(data);
        self.count();
    }

    /// Lets `fill` write up to `len` bytes at the end and takes in as many as it says it wrote.
    pub fn fill_with<E>(
        &mut self,
        len: usize,
        fill: impl FnOnce(&mut [std::mem::MaybeUninit<u8>]) -> Result<usize, E>,
    ) -> Result<usize, E> {
        let end = self.bytes.len() + len;
        assert!(end <= self.capacity, "fill up to {end} in a block of {} bytes", self.capacity);
        self.make_room(end);
        let spare = &mut self.bytes.spare_capacity_mut()[..len];
        let n = fill(spare)?;
        assert!(n <= len, "{n} bytes filled where {len} were asked for");
        // SAFETY: `fill` reports that it initialised the first `n` bytes of the spare room, and n ≤ len.
        unsafe { self.bytes.set_len(self.bytes.len() + n) };
        self.count();
        Ok(n)
    }

    /// Sets the length, adding zeros or cutting; for codecs that write into a slice.
    pub fn resize(&mut self, len: usize) {
        assert!(len <= self.capacity, "resize to {len} in a block of {} bytes", self.capacity);
        self.make_room(len);
        self.bytes.resize(len, 0);
        self.count();
    }

    /// Charges for what is filled now. Memory once filled stays counted until the buffer is finished.
    fn count(&mut self) {
        if self.bytes.len() > self.charge.bytes() {
            let step = self.bytes.len().next_multiple_of(CHARGE_STEP);
            self.charge.resize(step.min(self.bytes.capacity()));
        }
    }

    pub fn as_mut_slice(&mut self) -> &mut [u8] {
        &mut self.bytes
    }

    fn make_room(&mut self, end: usize) {
        if end <= self.bytes.capacity() {
            return;
        }
        // Small blocks double; past `SMALL_BYTES` the next step is the whole block, so that little is moved.
        let room = if end > SMALL_BYTES { self.capacity } else { end.next_power_of_two().min(self.capacity) };
        let mut grown = match self.pool.upgrade() {
            Some(pool) => pool.memory(room),
            None => Vec::with_capacity(room),
        };
        grown.extend_from_slice(&self.bytes);
        self.bytes = grown;
    }

    /// The filled part, shared from now on.
    pub fn freeze(mut self) -> Bytes {
        if self.bytes.is_empty() {
            return Bytes::new();
        }
        let len = self.bytes.len();
        if len < self.bytes.capacity() / 4 * 3 {
            let exact = self.bytes.as_slice().to_vec();
            super::copied(len);
            self.release(exact);
        }
        self.charge.resize(len);
        Bytes::from_owner(self)
    }

    /// Puts `bytes` in place of the memory held so far, which may serve another block.
    fn release(&mut self, bytes: Vec<u8>) {
        let old = std::mem::replace(&mut self.bytes, bytes);
        if old.capacity() >= KEPT_BYTES_MIN
            && let Some(pool) = self.pool.upgrade()
        {
            pool.give_back(old);
        }
    }
}

impl AsRef<[u8]> for BlockBuf {
    fn as_ref(&self) -> &[u8] {
        &self.bytes
    }
}

impl Drop for BlockBuf {
    fn drop(&mut self) {
        self.release(Vec::new());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rewrites_appends_and_gaps_show_what_was_written() {
        let pool = Pool::new(Budget::new(1 << 30));
        let mut buf = pool.take_growing(3, 1 << 20);
        buf.write_at(0, b"abc");
        buf.write_at(6, b"xyz");
        buf.write_at(1, b"BCDEFGH");
        assert_eq!(buf.as_slice(), b"aBCDEFGHz");
        assert!(pool.budget().used() <= 4096, "a small block takes little memory");
        buf.write_at(200_000, b"!");
        assert_eq!(buf.len(), 200_001);
        let room = pool.budget().used();
        assert!((200_001..300_000).contains(&room), "what is filled counts: {room}");
        let bytes = buf.freeze();
        assert_eq!(pool.budget().used(), 200_001, "a finished block holds no more than its bytes");
        let part = bytes.slice(..1);
        drop(bytes);
        assert_eq!(pool.budget().used(), 200_001, "a part keeps the whole");
        drop(part);
        assert_eq!(pool.budget().used(), 0);
    }

    #[tokio::test]
    async fn a_large_buffer_is_used_again() {
        let pool = Pool::new(Budget::new(1 << 30));
        let mut first = pool.take(4 << 20);
        first.resize(10);
        let at = first.as_slice().as_ptr();
        drop(first.freeze());
        let second = pool.take(4 << 20);
        assert!(second.is_empty());
        assert_eq!(second.as_slice().as_ptr(), at);
        assert_eq!(pool.kept.lock().bytes, 0);
    }

    #[tokio::test]
    async fn what_nobody_asks_for_is_freed() {
        let pool = Pool::new(Budget::new(1 << 30));
        drop(pool.take(4 << 20));
        assert!(pool.kept.lock().bytes > 0);
        tokio::time::sleep(KEPT_IDLE + Duration::from_millis(200)).await;
        assert_eq!(pool.kept.lock().bytes, 0);
    }
}
