//! The memory budget of file data: how many bytes buffers may hold, and a way to wait for room.
//!
//! The limit is soft, as `--buffer-size` is: who wants to take more data in first waits for room, and a buffer once
//! admitted never has to wait again. Nothing can deadlock over it, and the bytes over the limit are at most one request
//! for each waiter. Blocks that the memory cache keeps count like all others; the cache has a smaller limit of its own,
//! so that room for data in flight is always left.

use crate::base::Fault;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::sync::Notify;

/// Bytes in buffers against a soft limit.
pub struct Budget {
    limit: u64,
    held: AtomicU64,
    room: Notify,
}

impl Budget {
    /// `limit` in bytes.
    pub fn new(limit: u64) -> Arc<Budget> {
        Arc::new(Budget { limit, held: AtomicU64::new(0), room: Notify::new() })
    }

    pub fn limit(&self) -> u64 {
        self.limit
    }

    /// Bytes that count against the limit now.
    pub fn used(&self) -> u64 {
        self.held.load(Ordering::Relaxed)
    }

    /// Whether more data may be taken in.
    pub fn has_room(&self) -> bool {
        self.used() < self.limit
    }

    /// Waits until [`Budget::has_room`], at most for `deadline`.
    pub async fn wait_for_room(&self, deadline: Duration) -> Result<(), Fault> {
        if self.has_room() {
            return Ok(());
        }
        let wait = async {
            loop {
                let freed = self.room.notified();
                if self.has_room() {
                    // Room freed once may suffice for several waiters, and a notification wakes one.
                    self.room.notify_one();
                    return;
                }
                freed.await;
            }
        };
        tokio::time::timeout(deadline, wait)
            .await
            .map_err(|_| Fault::timeout("wait for buffer memory").with("limit", self.limit).with("used", self.used()))
    }

    /// Counts `bytes` until the charge is dropped.
    pub fn charge(self: &Arc<Budget>, bytes: usize) -> Charge {
        self.held.fetch_add(bytes as u64, Ordering::Relaxed);
        Charge { budget: self.clone(), bytes: bytes as u64 }
    }

    fn wake(&self) {
        if self.has_room() {
            self.room.notify_one();
        }
    }
}

/// Bytes counted against a budget.
pub struct Charge {
    budget: Arc<Budget>,
    bytes: u64,
}

impl Charge {
    pub fn bytes(&self) -> usize {
        self.bytes as usize
    }

    /// Changes the count to `bytes`, for a buffer that grew or was cut.
    pub fn resize(&mut self, bytes: usize) {
        let (before, bytes) = (self.bytes, bytes as u64);
        self.budget.held.fetch_add(bytes.wrapping_sub(before), Ordering::Relaxed);
        self.bytes = bytes;
        if bytes < before {
            self.budget.wake();
        }
    }
}

impl Drop for Charge {
    fn drop(&mut self) {
        self.budget.held.fetch_sub(self.bytes, Ordering::Relaxed);
        self.budget.wake();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[tokio::test]
    async fn waiting_ends_with_room_or_with_the_deadline() {
        let budget = Budget::new(100);
        let mut charge = budget.charge(10);
        charge.resize(100);
        assert_eq!(charge.bytes(), 100);
        let fault = budget.wait_for_room(Duration::from_millis(20)).await.expect_err("the budget is used up");
        assert_eq!(fault.kind(), crate::base::FaultKind::Timeout);

        let (a, b) = (budget.clone(), budget.clone());
        let both = tokio::spawn(async move {
            tokio::join!(a.wait_for_room(Duration::from_secs(9)), b.wait_for_room(Duration::from_secs(9)))
        });
        tokio::task::yield_now().await;
        // Room comes from a buffer that is cut as from one that goes.
        charge.resize(99);
        let (one, two) = both.await.expect("the waiter runs to its end");
        assert!(one.is_ok() && two.is_ok());
        drop(charge);
        assert_eq!(budget.used(), 0);
    }
}
