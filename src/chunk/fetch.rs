//! Single flight: a whole block is loaded once, however many readers wait for it.
//!
//! The load is a task of its own. A reader that goes away does not stop it, and its result reaches the memory cache
//! before the flight ends, so nobody can slip between the two and load again.

use crate::base::Fault;
use crate::cache::BlockKey;
use bytes::Bytes;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::{Arc, OnceLock};
use tokio::sync::Notify;

/// What a flight ended with. Faults are shared, see [`again`].
pub(super) type Landed = Result<Bytes, Arc<Fault>>;
type Seat = Arc<Flight>;

/// One load. Those who wait are woken in the order in which they came: a channel would spread them over lists by chance,
/// and whoever reads first would be read for last.
#[derive(Default)]
pub(super) struct Flight {
    landed: OnceLock<Landed>,
    ended: Notify,
}

impl Flight {
    fn end(&self, landed: Landed) {
        // The first end counts; a pilot that has landed is dropped afterwards.
        let _ = self.landed.set(landed);
        self.ended.notify_waiters();
    }
}

/// The loads under way.
#[derive(Default)]
pub(super) struct Flights {
    /// Held for map operations only.
    flying: Mutex<HashMap<BlockKey, Seat>>,
}

/// What [`Flights::board`] found.
pub(super) enum Boarding {
    /// Somebody loads this block already.
    Joined(Seat),
    /// The caller must start the load and hand its end to the pilot.
    Pilot(Pilot, Seat),
}

/// The duty to end a flight. Dropping it without [`Pilot::land`] (a panic, a stopped runtime) ends the flight too.
pub(super) struct Pilot {
    flights: Arc<Flights>,
    key: BlockKey,
    flight: Seat,
}

impl Flights {
    /// The flight of `key`, if there is one.
    pub fn find(&self, key: &BlockKey) -> Option<Seat> {
        self.flying.lock().get(key).cloned()
    }

    /// A seat in the flight of `key`, which begins now if there is none.
    pub fn board(self: &Arc<Flights>, key: BlockKey) -> Boarding {
        let mut flying = self.flying.lock();
        if let Some(seat) = flying.get(&key) {
            return Boarding::Joined(seat.clone());
        }
        let flight = Seat::default();
        flying.insert(key, flight.clone());
        Boarding::Pilot(Pilot { flights: self.clone(), key, flight: flight.clone() }, flight)
    }
}

impl Pilot {
    pub fn land(self, landed: Result<Bytes, Fault>) {
        self.flight.end(landed.map_err(Arc::new));
    }
}

impl Drop for Pilot {
    fn drop(&mut self) {
        let mut flying = self.flights.flying.lock();
        flying.remove(&self.key);
        // An idle mount should not keep the memory of its busiest moment.
        if flying.is_empty() && flying.capacity() > 64 {
            flying.shrink_to_fit();
        }
        drop(flying);
        let lost = Fault::internal("load block").source("the load ended without a result");
        self.flight.end(Err(Arc::new(lost)));
    }
}

/// Waits for the end of a flight. The load has deadlines of its own.
pub(super) async fn arrive(seat: Seat) -> Result<Bytes, Fault> {
    let landed = loop {
        let mut ended = std::pin::pin!(seat.ended.notified());
        ended.as_mut().enable();
        match seat.landed.get() {
            Some(landed) => break landed,
            None => ended.await,
        }
    };
    landed.as_ref().map(Bytes::clone).map_err(again)
}

/// A fault for one more waiter: same kind, same text.
fn again(fault: &Arc<Fault>) -> Fault {
    Fault::new(fault.kind(), "load block").source(fault.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{FaultKind, SliceId};

    const KEY: BlockKey = BlockKey { slice: SliceId(1), index: 0, size: 3 };

    #[tokio::test]
    async fn one_pilot_many_passengers() {
        let flights = Arc::new(Flights::default());
        let Boarding::Pilot(pilot, first) = flights.board(KEY) else { panic!("nobody flies yet") };
        let Boarding::Joined(second) = flights.board(KEY) else { panic!("a flight is under way") };
        let waiting = tokio::spawn(arrive(second));
        pilot.land(Ok(Bytes::from_static(b"abc")));
        assert_eq!(waiting.await.unwrap().unwrap(), "abc");
        assert_eq!(arrive(first).await.unwrap(), "abc");
        assert_eq!(flights.flying.lock().len(), 0);
    }

    #[tokio::test]
    async fn a_lost_pilot_is_a_fault_and_not_a_wait() {
        let flights = Arc::new(Flights::default());
        let Boarding::Pilot(pilot, seat) = flights.board(KEY) else { panic!("nobody flies yet") };
        drop(pilot);
        assert_eq!(arrive(seat).await.unwrap_err().kind(), FaultKind::Internal);
        assert!(matches!(flights.board(KEY), Boarding::Pilot(..)));
    }
}
