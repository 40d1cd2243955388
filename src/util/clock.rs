//! The clock, injected so that any run can be repeated: code asks a `Clock` and never the system.

use crate::base::Timestamp;
use std::sync::Arc;
use std::sync::atomic::{AtomicI64, Ordering};
use std::time::SystemTime;

/// Wall-clock time. Waiting is tokio's business (`tokio::time` can be paused by tests).
pub trait Clock: Send + Sync + 'static {
    fn now(&self) -> Timestamp;
}

pub type SharedClock = Arc<dyn Clock>;

/// The system's clock.
pub struct SystemClock;

impl Clock for SystemClock {
    fn now(&self) -> Timestamp {
        Timestamp::from_system(SystemTime::now())
    }
}

/// A clock that stands still until it is moved; for tests.
pub struct ManualClock(AtomicI64);

impl ManualClock {
    /// `nanos` since the epoch.
    pub fn at(nanos: i64) -> ManualClock {
        ManualClock(AtomicI64::new(nanos))
    }

    pub fn advance(&self, by: std::time::Duration) {
        self.0.fetch_add(by.as_nanos() as i64, Ordering::SeqCst);
    }
}

impl Clock for ManualClock {
    fn now(&self) -> Timestamp {
        let nanos = self.0.load(Ordering::SeqCst);
        Timestamp::new(nanos.div_euclid(1_000_000_000), nanos.rem_euclid(1_000_000_000) as u32)
    }
}
