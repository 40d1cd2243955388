//! The usage of the volume, gathered before it is stored.
//!
//! Every operation that makes, removes or grows a node changes the two counters of the volume. A store that locks rows or
//! compares whole keys would then let one commit of all clients through at a time, whatever they are about. So engines of
//! such stores sum up here what commits add to the counters once they are applied, and store it every second, when the
//! client closes, and before a transaction looks at the counters. The peer does the same with the same interval.
//!
//! What a client reads outside of transactions contains what it has gathered. What others see is a second late, and a
//! client that is killed takes up to a second of its changes with it; `fsck --repair` counts anew. They are figures: limits
//! that are checked against them are near, not exact (`meta::usage`).
//!
//! Road not taken: many counters per volume, added up by readers. Nobody contends for them, but the peer would neither read
//! nor keep them.

use super::{Batch, Change, EngineError, EngineResult};
use crate::meta::record::{Counter, Key, Record};
use parking_lot::Mutex;
use std::sync::Weak;
use std::time::Duration;

/// How long what was gathered stays in memory. The peer's interval.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

const COUNTERS: [Counter; 2] = [Counter::UsedSpace, Counter::TotalInodes];

/// What this client has added to each of the counters and not stored yet.
type Sums = [i64; COUNTERS.len()];

/// An engine that gathers.
pub trait Gathers: Send + Sync + 'static {
    fn gathered(&self) -> &Gathered;

    /// Adds to a stored counter, in a transaction of its own.
    fn add(&self, counter: Counter, delta: i64) -> impl Future<Output = EngineResult<()>> + Send;

    /// Whatever else is to be done every second.
    fn tidy(&self) {}
}

/// Flushes every second while the engine lives. Whoever drops the last clone has called `sync` before.
pub fn flush_while_alive(engine: Weak<impl Gathers>) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(FLUSH_EVERY).await;
            let Some(engine) = engine.upgrade() else { return };
            engine.tidy();
            if let Err(error) = flush(&*engine).await {
                // The outage has its own line in the log, and the sums stay here.
                tracing::debug!("the usage of the volume could not be stored: {error:?}");
            }
        }
    });
}

/// Stores what was gathered. When it is not known whether that happened, it counts as done: a figure that is off by a
/// second of one client, once per lost reply, is not worth counting something twice for.
pub async fn flush(engine: &impl Gathers) -> EngineResult<()> {
    let gathered = engine.gathered();
    if *gathered.sums.lock() == Sums::default() {
        return Ok(());
    }
    let _moving = gathered.moving.write().await;
    for (at, counter) in COUNTERS.into_iter().enumerate() {
        let sum = gathered.sums.lock()[at];
        if sum == 0 {
            continue;
        }
        match engine.add(counter, sum).await {
            Ok(()) => {}
            Err(EngineError::Undetermined(fault)) => {
                tracing::debug!("the usage of the volume was stored without a reply: {fault}");
            }
            Err(error) => return Err(error),
        }
        let mut sums = gathered.sums.lock();
        sums[at] = sums[at].saturating_sub(sum);
    }
    Ok(())
}

#[derive(Default)]
pub struct Gathered {
    sums: Mutex<Sums>,
    /// Held while the sums move from here to the store, so that nobody sees them in both or in neither.
    moving: tokio::sync::RwLock<()>,
}

/// Whether changes of a counter are gathered.
pub fn is_gathered(counter: Counter) -> bool {
    COUNTERS.contains(&counter)
}

/// Whether any of the keys is a gathered counter.
pub fn wanted(keys: &[Key]) -> bool {
    keys.iter().any(|key| matches!(key, Key::Counter(counter) if is_gathered(*counter)))
}

/// Whether a batch does more with a gathered counter than add to it: then what is stored counts.
pub fn is_named_by(batch: &Batch) -> bool {
    let is_put = |change: &Change| match change {
        Change::Put(key, _) | Change::Delete(key) => wanted(std::slice::from_ref(key)),
        _ => false,
    };
    batch.guards.iter().any(|guard| wanted(&[guard.key()])) || batch.changes.iter().any(is_put)
}

impl Gathered {
    /// Takes note of what an applied commit adds.
    pub fn committed(&self, changes: &[Change]) {
        for change in changes {
            if let Change::AddCounter(counter, delta) = change
                && let Some(at) = COUNTERS.iter().position(|of| of == counter)
            {
                let mut sums = self.sums.lock();
                sums[at] = sums[at].saturating_add(*delta);
            }
        }
    }

    /// Until it is dropped nothing moves.
    pub async fn still(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.moving.read().await
    }

    /// The volume goes, and its counters with it.
    pub fn forget(&self) {
        *self.sums.lock() = Sums::default();
    }

    /// Adds what was gathered to what is stored. While `still`.
    pub fn add_to(&self, keys: &[Key], records: &mut [Option<Record>]) {
        let sums = *self.sums.lock();
        for (key, record) in keys.iter().zip(records) {
            let Key::Counter(counter) = key else { continue };
            let Some(at) = COUNTERS.iter().position(|of| of == counter) else { continue };
            match record {
                Some(Record::Number(n)) => *n = n.saturating_add(sums[at]),
                None if sums[at] != 0 => *record = Some(Record::Number(sums[at])),
                _ => {}
            }
        }
    }
}
