//! Serves a [`MountRequest`] until it is unmounted or told to end.

use super::daemon::Ready;
use super::mount::MountRequest;
use anyhow::bail;

pub fn run(request: MountRequest, mut ready: Ready) -> anyhow::Result<()> {
    let why = "this build cannot serve a mount yet";
    ready.failed(why);
    tracing::debug!("not served: {request:?}");
    bail!("{why}")
}
