//! The usage of the volume, gathered.
//!
//! Every operation that makes, removes or grows a node changes the two counters of the volume. A store that compares
//! whole keys would then let one commit of all clients through at a time, whatever they are about. So what commits add
//! to the counters is summed up here once they are applied, and stored every second, at [`Engine::sync`] (which a client
//! that closes calls) and before a transaction looks at the counters. The peer does the same with the same interval.
//!
//! What this client reads outside of transactions contains what it has gathered. What others see is a second late, and a
//! client that is killed takes up to a second of its changes with it; `fsck --repair` counts anew. They are figures:
//! limits that are checked against them are near, not exact (`meta::usage`).
//!
//! Road not taken: many counter keys per volume, added up by readers. Nobody contends for them, but the peer would
//! neither read nor keep them.

use super::Shared;
use super::batch::is_gathered;
use crate::meta::engine::{Change, EngineError, EngineResult};
use crate::meta::record::{Counter, Key, Record};
use parking_lot::Mutex;
use std::sync::Weak;
use std::time::Duration;

/// How long what was gathered stays in memory. The peer's interval.
const FLUSH_EVERY: Duration = Duration::from_secs(1);

const COUNTERS: [Counter; 2] = [Counter::UsedSpace, Counter::TotalInodes];

/// What this client has added to each of the counters and not stored yet.
type Sums = [i64; COUNTERS.len()];

#[derive(Default)]
pub(super) struct Gathered {
    sums: Mutex<Sums>,
    /// Held while the sums move from here to the store, so that nobody sees them in both or in neither.
    moving: tokio::sync::RwLock<()>,
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

    pub fn pending(&self) -> Sums {
        *self.sums.lock()
    }

    /// Until it is dropped nothing moves.
    pub async fn still(&self) -> tokio::sync::RwLockReadGuard<'_, ()> {
        self.moving.read().await
    }

    /// The volume goes, and its counters with it.
    pub fn forget(&self) {
        *self.sums.lock() = Sums::default();
    }

    fn stored(&self, at: usize, sum: i64) {
        let mut sums = self.sums.lock();
        sums[at] = sums[at].saturating_sub(sum);
    }
}

impl Shared {
    /// Adds what was gathered to the stored counters. When it is not known whether that happened, it counts as done: a
    /// figure that is off by a second of one client, once per lost reply, is not worth counting something twice for.
    pub(super) async fn flush_usage(&self) -> EngineResult<()> {
        if self.usage.pending() == Sums::default() {
            return Ok(());
        }
        let _moving = self.usage.moving.write().await;
        for (at, counter) in COUNTERS.into_iter().enumerate() {
            let sum = self.usage.pending()[at];
            if sum == 0 {
                continue;
            }
            match self.change_counter(counter, |stored| Some(stored.unwrap_or(0).saturating_add(sum))).await {
                Ok(_) => self.usage.stored(at, sum),
                Err(EngineError::Undetermined(fault)) => {
                    tracing::debug!("the usage of the volume was stored without a reply: {fault}");
                    self.usage.stored(at, sum);
                }
                Err(error) => return Err(error),
            }
        }
        Ok(())
    }
}

/// Whether any of the keys is a gathered counter.
pub(super) fn wanted(keys: &[Key]) -> bool {
    keys.iter().any(|key| matches!(key, Key::Counter(counter) if is_gathered(*counter)))
}

/// Adds what was gathered to what is stored.
pub(super) fn add_pending(keys: &[Key], records: &mut [Option<Record>], pending: Sums) {
    for (key, record) in keys.iter().zip(records) {
        let Key::Counter(counter) = key else { continue };
        let Some(at) = COUNTERS.iter().position(|of| of == counter) else { continue };
        match record {
            Some(Record::Number(n)) => *n = n.saturating_add(pending[at]),
            None if pending[at] != 0 => *record = Some(Record::Number(pending[at])),
            _ => {}
        }
    }
}

/// Flushes every second while the engine lives. Whoever drops the last clone has called `sync` before.
pub(super) fn flush_while_alive(engine: Weak<Shared>) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(FLUSH_EVERY).await;
            let Some(engine) = engine.upgrade() else { return };
            if let Err(error) = engine.flush_usage().await {
                // The outage has its own line in the log, and the sums stay here.
                tracing::debug!("the usage of the volume could not be stored: {error:?}");
            }
        }
    });
}
