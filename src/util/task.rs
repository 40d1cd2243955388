//! Background jobs: what each of them offers (a name, a way to stop, a last drain) and who keeps them.
//!
//! A job is told to stop by a `StopSignal` and returns when it has drained; it never holds the process up for longer
//! than its owner is willing to wait ([`Tasks::stop`]). Jobs look at the signal in every wait of their own.

use async_trait::async_trait;
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;
use tokio::task::JoinSet;

/// Something that runs beside the requests until it is told to stop.
#[async_trait]
pub trait Job: Send + Sync + 'static {
    /// For logs and metrics.
    fn name(&self) -> &'static str;

    /// Runs until `stop` says so, then drains and returns.
    async fn run(&self, stop: StopSignal);
}

/// The end that gives the signal. Dropping it gives the signal too: nobody is left who could.
pub struct Stopper(watch::Sender<bool>);

/// The end that listens; cheap to clone.
#[derive(Clone)]
pub struct StopSignal(watch::Receiver<bool>);

pub fn stop_signal() -> (Stopper, StopSignal) {
    let (sender, receiver) = watch::channel(false);
    (Stopper(sender), StopSignal(receiver))
}

impl Stopper {
    pub fn stop(&self) {
        self.0.send_replace(true);
    }

    /// One more listener.
    pub fn signal(&self) -> StopSignal {
        StopSignal(self.0.subscribe())
    }
}

impl StopSignal {
    pub fn is_stopped(&self) -> bool {
        *self.0.borrow() || self.0.has_changed().is_err()
    }

    /// Returns once the signal was given.
    pub async fn stopped(&self) {
        let mut receiver = self.0.clone();
        // An error means that the sender is gone, which is a stop as well.
        let _ = receiver.wait_for(|stopped| *stopped).await;
    }

    /// Waits for `pause`. False when the signal came first.
    pub async fn sleep(&self, pause: Duration) -> bool {
        tokio::select! {
            biased;
            () = self.stopped() => false,
            () = tokio::time::sleep(pause) => true,
        }
    }
}

/// `pause` give or take 5 %, so that the clients of a volume do not all come at once.
pub fn jittered(pause: Duration) -> Duration {
    pause.mul_f64(super::rng::random_range(0.95..=1.05))
}

/// The running jobs of one owner.
pub struct Tasks {
    stopper: Stopper,
    running: JoinSet<&'static str>,
}

impl Default for Tasks {
    fn default() -> Tasks {
        Tasks { stopper: stop_signal().0, running: JoinSet::new() }
    }
}

impl Tasks {
    pub fn signal(&self) -> StopSignal {
        self.stopper.signal()
    }

    pub fn spawn(&mut self, job: Arc<dyn Job>) {
        let stop = self.signal();
        self.running.spawn(async move {
            job.run(stop).await;
            job.name()
        });
    }

    /// Tells all jobs to stop and waits for their last drain; what has not returned by the deadline is cut off.
    pub async fn stop(mut self, deadline: Duration) {
        self.stopper.stop();
        let drained = tokio::time::timeout(deadline, async {
            while let Some(ended) = self.running.join_next().await {
                match ended {
                    Ok(name) => tracing::debug!(job = name, "background job ended"),
                    Err(error) => tracing::error!("background job failed: {error}"),
                }
            }
        });
        if drained.await.is_err() {
            tracing::warn!(left = self.running.len(), "background jobs did not end in time and are cut off");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::sync::atomic::{AtomicBool, Ordering};

    struct Drains(AtomicBool);

    #[async_trait]
    impl Job for Drains {
        fn name(&self) -> &'static str {
            "drains"
        }

        async fn run(&self, stop: StopSignal) {
            while stop.sleep(Duration::from_secs(3600)).await {}
            tokio::time::sleep(Duration::from_millis(30)).await;
            self.0.store(true, Ordering::SeqCst);
        }
    }

    #[tokio::test]
    async fn jobs_drain_within_the_deadline_and_are_cut_off_after_it() {
        for (deadline, drained) in [(60_000, true), (1, false)] {
            let job = Arc::new(Drains(AtomicBool::new(false)));
            let mut tasks = Tasks::default();
            tasks.spawn(job.clone());
            tasks.stop(Duration::from_millis(deadline)).await;
            assert_eq!(job.0.load(Ordering::SeqCst), drained);
        }
    }

    #[tokio::test]
    async fn losing_the_stopper_is_a_stop() {
        let (stopper, signal) = stop_signal();
        assert!(!signal.is_stopped());
        drop(stopper);
        assert!(signal.is_stopped());
        assert!(!signal.sleep(Duration::from_secs(3600)).await);
    }
}
