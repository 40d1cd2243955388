//! `restore META-URL HOUR…`: brings back what lies in the trash (`spec/surface.md` 5.20).

use super::{open, progress};
use crate::base::{Errno, Stop};
use crate::config::volume::Access;
use crate::tools::restore::{self, Report};
use anyhow::{Context as _, bail};

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Directories of the trash: YYYY-MM-DD-HH, in UTC
    #[arg(value_name = "HOUR", required = true, num_args = 1..)]
    hours: Vec<String>,
    /// Put what was restored back to where it was; nothing is overwritten
    #[arg(long)]
    put_back: bool,
    /// Entries moved at a time
    #[arg(short = 'p', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        bail!("only root can restore files from trash");
    }
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    open::usable_format(&meta, Access::Write).await?;
    let mut hours = Vec::new();
    for hour in &args.hours {
        tracing::info!("restore files in \"{hour}\" ...");
        match restore::hour(&meta, hour).await {
            Ok(ino) => hours.push(ino),
            Err(Stop::Errno(errno)) => bail!("lookup {hour} in the trash: {errno}"),
            Err(stop) => return Err(stop).with_context(|| format!("lookup {hour} in the trash")),
        }
    }
    let mut report = Report::default();
    let (put_back, threads) = (args.put_back, usize::from(args.threads));
    let done =
        progress::watched(async |watch| restore::run(&meta, &hours, put_back, threads, watch, &mut report).await)
            .await?;
    open::let_go(&meta).await;
    let Report { rebuilt, restored, waiting, conflicts, failed } = report;
    tracing::info!(
        "{rebuilt} entries are in their directories again, {restored} were put back, {waiting} need to be put back, {conflicts} conflicts, {failed} failed"
    );
    if waiting > 0 {
        tracing::info!("Please add `--put-back` to move them back to where they were");
    }
    match done {
        Ok(()) => {}
        Err(Stop::Errno(Errno::ECANCELED)) => bail!("interrupted: not everything was restored"),
        Err(stop) => return Err(stop).context("restore"),
    }
    if conflicts + failed > 0 {
        bail!("{} entries could not be restored and stay in the trash", conflicts + failed);
    }
    Ok(())
}
