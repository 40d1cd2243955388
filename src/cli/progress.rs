//! How long work is watched and ended: a line on standard error that says how far it is, when that is a terminal, and
//! SIGINT, which asks the work to stop where it is. A second one ends the process, as does work that does not stop in
//! time: what it waits for may never answer, and all of it can be cut short anywhere.

use super::control::{self, Answer};
use super::signal::Termination;
use crate::tools::{Progress, Watch};
use crate::util::task::stop_signal;
use anyhow::Context as _;
use std::fs::File;
use std::io::{IsTerminal as _, Write as _};
use std::sync::Arc;
use std::time::Duration;
use tokio::task::JoinHandle;

/// Between two looks at the progress.
const SHOW: Duration = Duration::from_millis(200);
/// As a shell says it of a process that SIGINT ended.
const INTERRUPTED: i32 = 130;
/// Work looks at its signal between requests, and a request that is tried again takes as long as this.
const STOPS_WITHIN: Duration = Duration::from_secs(30);

/// Runs `work`, which is told to stop by the signals that end a process.
pub async fn watched<T>(work: impl AsyncFnOnce(&Watch) -> T) -> anyhow::Result<T> {
    let (stopper, stop) = stop_signal();
    let mut signals = Termination::listen()?;
    let ends = tokio::spawn(async move {
        let name = signals.received().await;
        tracing::warn!("{name}: stopping");
        stopper.stop();
        let why = tokio::select! {
            name = signals.received() => name,
            () = tokio::time::sleep(STOPS_WITHIN) => "the work does not stop",
        };
        tracing::error!("{why}: given up; what was done so far stays done");
        std::process::exit(INTERRUPTED);
    });
    let progress = Arc::new(Progress::default());
    let shown = std::io::stderr().is_terminal().then(|| show(progress.clone()));
    let done = work(&Watch { progress, stop }).await;
    ends.abort();
    if let Some(shown) = shown {
        shown.abort();
        clear();
    }
    Ok(done)
}

/// For a command that waits for a mount without a runtime: a signal that ends processes does so with a sentence. The
/// mount gives up what it does for a client that closes its request.
pub fn end_on_signals(command: &'static str) -> anyhow::Result<()> {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().context("start the runtime")?;
    let wait = async move {
        match Termination::listen() {
            Ok(mut signals) => {
                let name = signals.received().await;
                tracing::error!("{name}: {command} is cut short; what was done so far stays done");
                std::process::exit(INTERRUPTED);
            }
            Err(error) => tracing::warn!("signals end {command} without a word: {error:#}"),
        }
    };
    let thread = std::thread::Builder::new().name("signals".into());
    thread.spawn(move || runtime.block_on(wait)).context("start a thread for signals")?;
    Ok(())
}

fn show(progress: Arc<Progress>) -> JoinHandle<()> {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(SHOW).await;
            let (phase, done) = progress.now();
            if !phase.is_empty() {
                // That standard error is closed is no reason to stop the work.
                let _ = write!(std::io::stderr().lock(), "\r\x1b[K{phase}: {done}");
            }
        }
    })
}

/// Removes the line.
pub fn clear() {
    let _ = write!(std::io::stderr().lock(), "\r\x1b[K");
}

/// Sends a request to a mount and shows on a terminal how far it is: `count` picks from what the mount reports, `what`
/// says of what.
pub fn asked(
    file: &mut File,
    command: u32,
    body: &[u8],
    what: &str,
    count: fn(u64, u64) -> u64,
) -> anyhow::Result<Answer> {
    let is_terminal = std::io::stderr().is_terminal();
    let mut shown = false;
    let answer = control::request(file, command, body, |first, second| {
        if is_terminal {
            shown = true;
            let _ = write!(std::io::stderr().lock(), "\r\x1b[K{what}: {}", count(first, second));
        }
    });
    if shown {
        clear();
    }
    answer
}
