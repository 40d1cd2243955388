//! A fault that lasts, for the log: one line when it begins and one when it is over, however many requests meet it.

use parking_lot::Mutex;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A success ends an outage only when nothing has failed for so long: where some requests fail and others do not, the
/// log would have two lines for each change otherwise.
const QUIET: Duration = Duration::from_secs(5);

/// Whether something below works.
pub struct Outage {
    /// Looked at by every success, so without the lock.
    lasts: AtomicBool,
    state: Mutex<Option<Lasting>>,
    quiet: Duration,
}

#[derive(Clone, Copy)]
struct Lasting {
    since: Instant,
    last: Instant,
    failures: u64,
}

/// An outage that has ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Over {
    /// From the first failure to the last.
    pub lasted: Duration,
    pub failures: u64,
}

impl Default for Outage {
    fn default() -> Outage {
        Outage { lasts: AtomicBool::new(false), state: Mutex::default(), quiet: QUIET }
    }
}

impl Outage {
    /// Takes note of a failure; whether it is the one to tell of.
    pub fn failed(&self) -> bool {
        let now = Instant::now();
        let mut state = self.state.lock();
        self.lasts.store(true, Ordering::Release);
        match &mut *state {
            Some(lasting) => {
                lasting.last = now;
                lasting.failures += 1;
                false
            }
            None => {
                *state = Some(Lasting { since: now, last: now, failures: 1 });
                true
            }
        }
    }

    /// Takes note of a success; tells of an outage that it ends.
    pub fn succeeded(&self) -> Option<Over> {
        if !self.lasts.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state.lock();
        let over = state.filter(|lasting| lasting.last.elapsed() >= self.quiet)?;
        *state = None;
        self.lasts.store(false, Ordering::Release);
        Some(Over { lasted: over.last - over.since, failures: over.failures })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_outage_is_told_of_at_its_beginning_and_at_its_end() {
        let outage = Outage { quiet: Duration::from_millis(20), ..Outage::default() };
        assert_eq!(outage.succeeded(), None);
        assert!(outage.failed());
        assert!(!outage.failed());
        assert_eq!(outage.succeeded(), None, "requests succeed between failures");
        assert!(!outage.failed());
        std::thread::sleep(Duration::from_millis(25));
        assert_eq!(outage.succeeded().map(|over| over.failures), Some(3));
        assert_eq!(outage.succeeded(), None);
        assert!(outage.failed());
    }
}
