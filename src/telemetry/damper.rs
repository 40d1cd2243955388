//! A bound on warnings: an outage makes every request fail, and a log that repeats itself a thousand times a second
//! fills the disk it lies on. Each place in the code that warns may do so a few times a minute; what is left out is
//! counted, and the next line from there says how many.

use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tracing::callsite::Identifier;
use tracing::{Level, Metadata};

const WINDOW: Duration = Duration::from_secs(60);
/// Enough to see whether one file is meant or all.
const WARNINGS_MAX: u64 = 5;
/// Errors name data at stake.
const ERRORS_MAX: u64 = 20;

#[derive(Default)]
pub struct Damper {
    /// As many as there are places that warn.
    places: Mutex<HashMap<Identifier, Place>>,
}

struct Place {
    begun: Instant,
    lines: u64,
    left_out: u64,
}

impl Damper {
    /// Whether this line is to be written, and how many like it were left out before it.
    pub fn admit(&self, line: &Metadata<'_>) -> Option<u64> {
        let lines_max = match *line.level() {
            _ if [super::log::FATAL, super::log::REPORT].contains(&line.target()) => return Some(0),
            Level::ERROR => ERRORS_MAX,
            Level::WARN => WARNINGS_MAX,
            Level::INFO if line.target() == super::log::SLOW => WARNINGS_MAX,
            Level::INFO | Level::DEBUG | Level::TRACE => return Some(0),
        };
        self.take(line.callsite(), lines_max, Instant::now())
    }

    fn take(&self, place: Identifier, lines_max: u64, now: Instant) -> Option<u64> {
        let mut places = self.places.lock();
        let place = places.entry(place).or_insert(Place { begun: now, lines: 0, left_out: 0 });
        if now.duration_since(place.begun) >= WINDOW {
            (place.begun, place.lines) = (now, 0);
        }
        if place.lines == lines_max {
            place.left_out += 1;
            return None;
        }
        place.lines += 1;
        Some(std::mem::take(&mut place.left_out))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tracing::callsite::Callsite;

    struct Somewhere;

    impl Callsite for Somewhere {
        fn set_interest(&self, _: tracing::subscriber::Interest) {}

        fn metadata(&self) -> &Metadata<'_> {
            unreachable!("nobody asks")
        }
    }

    #[test]
    fn what_was_left_out_is_told_in_the_next_window() {
        static SOMEWHERE: Somewhere = Somewhere;
        let place = || Identifier(&SOMEWHERE);
        let (damper, begun) = (Damper::default(), Instant::now());
        let taken: Vec<_> = (0..7).map(|_| damper.take(place(), 5, begun)).collect();
        assert_eq!(taken, [Some(0), Some(0), Some(0), Some(0), Some(0), None, None]);
        assert_eq!(damper.take(place(), 5, begun + WINDOW), Some(2));
        assert_eq!(damper.take(place(), 5, begun + WINDOW), Some(0));
    }
}
