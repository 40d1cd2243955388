//! Leases: which client of the volume does a background job this time (`spec/metadata.md` section 6).
//!
//! A lease is a counter that holds the time of the last run, shared with the peer's clients. Whoever finds it old
//! enough writes the present time, in a commit that is lost to anybody who came first, and does the job. A lease
//! is not held: it only spaces the runs, so a job must be harmless when two clients do it at once.

use super::Meta;
use super::engine::Change;
use super::record::{Counter, Key, Record};
use super::txn::{CounterOf, Operation, Settled, Tx};
use crate::base::Outcome;

/// A last run further ahead than this was written by a clock that is wrong (or in the wrong byte order, as restored
/// dumps of the peer have it); believing it would stop the job for good.
const AHEAD_SECONDS_MAX: i64 = 86_400;

struct TakeLease {
    lease: Counter,
    distance_seconds: i64,
}

impl Operation for TakeLease {
    const NAME: &'static str = "take_lease";
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        let last = tx.load(CounterOf(self.lease)).await?;
        let now = tx.now().seconds;
        if last > now - self.distance_seconds && last <= now + AHEAD_SECONDS_MAX {
            return Ok(false);
        }
        tx.change(Change::Put(Key::Counter(self.lease), Record::Number(now)));
        Ok(true)
    }

    /// Whoever wrote it: the next run comes soon enough.
    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        Ok(Settled::Applied(false))
    }
}

impl Meta {
    /// True when the job of this lease is due and was taken by this client: the last run of any client lies at least
    /// `distance_seconds` back.
    pub async fn take_lease(&self, lease: Counter, distance_seconds: i64) -> Outcome<bool> {
        self.run(&TakeLease { lease, distance_seconds }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::testing::{Store, volume};
    use crate::util::clock::ManualClock;
    use std::sync::Arc;
    use std::time::Duration;

    const LEASE: Counter = Counter::LastCleanupFiles;

    #[tokio::test]
    async fn one_client_takes_the_lease_per_distance() {
        let store = Store::new().await;
        let clock = Arc::new(ManualClock::at(1_000_000_000_000_000));
        let here = store.client(clock.clone()).await;
        let there = store.client(clock.clone()).await;
        assert!(here.take_lease(LEASE, 3240).await.unwrap(), "never run");
        assert!(!there.take_lease(LEASE, 3240).await.unwrap());
        clock.advance(Duration::from_secs(3239));
        assert!(!here.take_lease(LEASE, 3240).await.unwrap());
        clock.advance(Duration::from_secs(1));
        assert!(there.take_lease(LEASE, 3240).await.unwrap());
        assert!(!here.take_lease(LEASE, 3240).await.unwrap());
    }

    #[tokio::test]
    async fn a_time_far_ahead_does_not_stop_the_job_for_good() {
        let meta = volume().await;
        struct Set(i64);
        impl Operation for Set {
            const NAME: &'static str = "set";
            type Output = ();
            async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
                tx.load(CounterOf(LEASE)).await?;
                tx.change(Change::Put(Key::Counter(LEASE), Record::Number(self.0)));
                Ok(())
            }
        }
        let now = meta.now().seconds;
        meta.run(&Set(now + 3600)).await.unwrap();
        assert!(!meta.take_lease(LEASE, 3240).await.unwrap(), "a clock may be an hour off");
        meta.run(&Set(now.swap_bytes() & i64::MAX)).await.unwrap();
        assert!(meta.take_lease(LEASE, 3240).await.unwrap());
    }
}
