//! The signals that end a mount (`spec/surface.md` 11.4): TERM, INT and HUP all mean flush, unmount, exit 0. PIPE is
//! ignored by the Rust runtime already.

use anyhow::Context as _;
use tokio::signal::unix::{Signal, SignalKind, signal};

/// Waits for the first of the signals that ask a mount to end.
pub struct Termination {
    terminate: Signal,
    interrupt: Signal,
    hangup: Signal,
}

impl Termination {
    /// Starts listening; from here on the signals no longer end the process by themselves. Needs a runtime.
    pub fn listen() -> anyhow::Result<Termination> {
        let listen = |kind| signal(kind).context("listen for signals");
        Ok(Termination {
            terminate: listen(SignalKind::terminate())?,
            interrupt: listen(SignalKind::interrupt())?,
            hangup: listen(SignalKind::hangup())?,
        })
    }

    /// The name of the signal that came. May be called again: a second signal can hurry what the first one began.
    pub async fn received(&mut self) -> &'static str {
        tokio::select! {
            _ = self.terminate.recv() => "SIGTERM",
            _ = self.interrupt.recv() => "SIGINT",
            _ = self.hangup.recv() => "SIGHUP",
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use nix::sys::signal::{Signal, raise};

    #[tokio::test]
    async fn the_signals_are_told_apart() {
        let mut termination = Termination::listen().unwrap();
        for (signal, name) in [(Signal::SIGTERM, "SIGTERM"), (Signal::SIGHUP, "SIGHUP"), (Signal::SIGINT, "SIGINT")] {
            raise(signal).unwrap();
            assert_eq!(termination.received().await, name);
        }
    }
}
