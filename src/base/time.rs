//! `Timestamp`: wall-clock time with nanoseconds, as stored in attributes.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

/// Seconds since the epoch (negative before it) and nanoseconds within the second (0..1,000,000,000).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Timestamp {
    pub seconds: i64,
    pub nanos: u32,
}

impl Timestamp {
    pub fn new(seconds: i64, nanos: u32) -> Timestamp {
        Timestamp { seconds, nanos }
    }

    pub fn from_system(time: SystemTime) -> Timestamp {
        match time.duration_since(UNIX_EPOCH) {
            Ok(after) => Timestamp::new(after.as_secs() as i64, after.subsec_nanos()),
            Err(before) => {
                let before = before.duration();
                match before.subsec_nanos() {
                    0 => Timestamp::new(-(before.as_secs() as i64), 0),
                    nanos => Timestamp::new(-(before.as_secs() as i64) - 1, 1_000_000_000 - nanos),
                }
            }
        }
    }

    pub fn to_system(self) -> SystemTime {
        let nanos = Duration::from_nanos(self.nanos.into());
        if self.seconds >= 0 {
            UNIX_EPOCH + Duration::from_secs(self.seconds as u64) + nanos
        } else {
            UNIX_EPOCH - Duration::from_secs(self.seconds.unsigned_abs()) + nanos
        }
    }

    /// Nanoseconds since the epoch; wide enough for every stored time.
    pub fn as_nanos(self) -> i128 {
        i128::from(self.seconds) * 1_000_000_000 + i128::from(self.nanos)
    }

    /// The next moment.
    pub fn after(self) -> Timestamp {
        match self.nanos {
            999_999_999 => Timestamp::new(self.seconds + 1, 0),
            nanos => Timestamp::new(self.seconds, nanos + 1),
        }
    }

    /// So much earlier.
    pub fn before(self, by: Duration) -> Timestamp {
        let nanos = self.as_nanos() - by.as_nanos() as i128;
        Timestamp::new(nanos.div_euclid(1_000_000_000) as i64, nanos.rem_euclid(1_000_000_000) as u32)
    }

    /// How much later `self` is than `earlier`; zero when it is not later.
    pub fn since(self, earlier: Timestamp) -> Duration {
        let nanos = (self.as_nanos() - earlier.as_nanos()).max(0);
        Duration::new((nanos / 1_000_000_000) as u64, (nanos % 1_000_000_000) as u32)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_before_the_epoch_survive_the_round_trip() {
        for (seconds, nanos) in [(0, 0), (5, 7), (-1, 0), (-1, 999_999_999), (-2, 500_000_000)] {
            let time = Timestamp::new(seconds, nanos);
            assert_eq!(Timestamp::from_system(time.to_system()), time);
        }
    }

    #[test]
    fn before_crosses_the_epoch() {
        let half = Duration::from_millis(500);
        assert_eq!(Timestamp::new(0, 0).before(half), Timestamp::new(-1, 500_000_000));
        assert_eq!(Timestamp::new(7, 600_000_000).before(half), Timestamp::new(7, 100_000_000));
        assert_eq!(Timestamp::new(7, 600_000_000).since(Timestamp::new(7, 600_000_000).before(half)), half);
    }

    #[test]
    fn since_never_goes_below_zero() {
        let (a, b) = (Timestamp::new(1, 900_000_000), Timestamp::new(2, 0));
        assert_eq!(b.since(a), Duration::from_millis(100));
        assert_eq!(a.since(b), Duration::ZERO);
    }
}
