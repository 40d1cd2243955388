//! `gc META-URL`: what the store holds for nobody (`spec/surface.md` 5.18). The exit code is 0 also when something was
//! found, 1 when the volume could not be looked through or something could not be removed; the line that begins with
//! `scanned` is read by scripts.

use super::{open, progress};
use crate::base::{Errno, Stop};
use crate::config::units;
use crate::config::volume::{Access, go_json};
use crate::tools::Tally;
use crate::tools::gc::{self, Options, Report, SAFETY_AGE};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::time::Duration;

/// Seconds that an object must be old to be judged, instead of an hour.
const AGE_VARIABLE: &str = "JFS_GC_SKIPPEDTIME";

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Remove leaked objects, and what is too old in the trash or waits for deletion
    #[arg(long)]
    delete: bool,
    /// Rewrite chunks of many slices as one each, before anything else
    #[arg(long)]
    compact: bool,
    /// Leave objects alone that are younger than this. Only lower it when nobody writes, or when uploads are known to be
    /// quick: the objects of a write are there before anything refers to them
    #[arg(long, value_name = "AGE", value_parser = units::parse_duration)]
    min_age: Option<Duration>,
    /// Requests to the object store at a time
    #[arg(short = 'p', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let uri = open::meta_uri(&args.meta)?;
    let age = match (args.min_age, std::env::var(AGE_VARIABLE)) {
        (Some(age), _) => age,
        (None, Ok(text)) => {
            let seconds = text.trim().parse();
            Duration::from_secs(seconds.with_context(|| format!("{AGE_VARIABLE}={text}: not a number of seconds"))?)
        }
        (None, Err(_)) => SAFETY_AGE,
    };
    let meta = open::meta(&uri).await?;
    let access = if args.delete || args.compact { Access::Write } else { Access::Read };
    let format = open::usable_format(&meta, access).await?;
    let volume = open::volume(meta, &format)?;
    if args.delete && age < SAFETY_AGE {
        let sessions = volume.meta.sessions().await.context("list the sessions")?.len();
        if sessions > 0 {
            tracing::warn!(
                "the volume has {sessions} sessions: a write of theirs that takes longer than {age:?} would lose its data"
            );
        }
    }
    let options = Options { delete: args.delete, compact: args.compact, parallel: usize::from(args.threads), age };
    let mut report = Report::default();
    let done = progress::watched(async |watch| gc::run(&volume, &options, watch, &mut report).await).await?;
    open::let_go(&volume.meta).await;
    tell(&report, &options);
    if args.json {
        println!("{}", go_json(&described(&report, done.is_ok()), "  "));
    }
    match done {
        Ok(()) => {}
        Err(Stop::Errno(Errno::ECANCELED)) => bail!("interrupted: only a part of the volume was looked through"),
        Err(stop) => return Err(stop).context("gc"),
    }
    if report.failed > 0 {
        bail!("{} leaked objects could not be removed", report.failed);
    }
    Ok(())
}

fn tell(report: &Report, options: &Options) {
    if options.compact {
        let Report { chunks, merged, merged_bytes, .. } = report;
        tracing::info!("Compacted {chunks} chunks ({merged} slices, {merged_bytes} bytes).");
    }
    tracing::info!("using {} slices ({} bytes)", report.using.count, report.using.bytes);
    if options.delete {
        tracing::info!("Deleted {} pending slices", report.cleaned.slices);
        if report.cleaned.files > 0 || report.cleaned.trash > 0 {
            let (files, trash) = (report.cleaned.files, report.cleaned.trash);
            tracing::info!("Removed the data of {files} deleted files, and {trash} things from the trash");
        }
    }
    if report.ahead.count > 0 {
        tracing::warn!(
            "skipped {} objects of slices that were never handed out: was the metadata brought back from a backup?",
            report.ahead.count
        );
    }
    if report.leaked_slices.count > 0 {
        let Tally { count, bytes } = report.leaked_slices;
        tracing::info!("{count} slices ({bytes} bytes) are counted and mentioned nowhere");
    }
    if report.leaked_chunks > 0 {
        tracing::info!("{} chunks are of files that are not there", report.leaked_chunks);
    }
    tracing::info!("{}", scanned(report));
    if options.delete && report.deleted.count > 0 {
        tracing::info!("Deleted {} leaked objects ({} bytes)", report.deleted.count, report.deleted.bytes);
    }
    if report.released_slices + report.dropped_files > 0 {
        let (slices, files) = (report.released_slices, report.dropped_files);
        tracing::info!("Removed {slices} leaked slices, and the chunks of {files} files that are not there");
    }
    if !options.delete && report.leaked.count + report.leaked_chunks > 0 {
        tracing::info!("Please add `--delete` to clean leaked objects");
    }
}

fn scanned(report: &Report) -> String {
    let part = |tally: Tally, what: &str| format!("{} {what} ({} bytes)", tally.count, tally.bytes);
    format!(
        "scanned {} objects, {} valid, {}, {}, {}, {}, {}, {}",
        report.scanned,
        report.valid.count,
        part(report.pending, "pending delete"),
        part(report.compacted, "compacted"),
        part(report.leaked, "leaked"),
        part(report.delayed_slices, "delslices"),
        part(report.deleted_files, "delfiles"),
        part(report.skipped, "skipped"),
    )
}

fn described(report: &Report, complete: bool) -> Value {
    let tally = |tally: Tally| json!({ "Count": tally.count, "Bytes": tally.bytes });
    json!({
        "Complete": complete,
        "Scanned": report.scanned,
        "Valid": tally(report.valid),
        "PendingDelete": tally(report.pending),
        "Compacted": tally(report.compacted),
        "Leaked": tally(report.leaked),
        "Skipped": tally(report.skipped),
        "NeverHandedOut": tally(report.ahead),
        "DelayedSlices": tally(report.delayed_slices),
        "DeletedFiles": tally(report.deleted_files),
        "UsingSlices": tally(report.using),
        "LeakedSlices": tally(report.leaked_slices),
        "LeakedChunks": report.leaked_chunks,
        "DeletedObjects": tally(report.deleted),
        "FailedObjects": report.failed,
        "RemovedLeakedSlices": report.released_slices,
        "RemovedLeakedFiles": report.dropped_files,
        "RemovedSlices": report.cleaned.slices,
        "RemovedFiles": report.cleaned.files,
        "RemovedFromTrash": report.cleaned.trash,
        "CompactedChunks": report.chunks,
        "CompactedSlices": report.merged,
        "CompactedBytes": report.merged_bytes,
    })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_last_line_is_the_one_that_scripts_know() {
        let report = Report { scanned: 87, valid: Tally { count: 87, bytes: 5 }, ..Report::default() };
        let expected = "scanned 87 objects, 87 valid, 0 pending delete (0 bytes), 0 compacted (0 bytes), 0 leaked (0 bytes), 0 delslices (0 bytes), 0 delfiles (0 bytes), 0 skipped (0 bytes)";
        assert_eq!(scanned(&report), expected);
    }
}
