//! `fsck META-URL`: whether a volume is whole, and how it is made whole again (`spec/surface.md` 5.19). The exit code is 0
//! for a volume that is whole (now), else 1.

use super::{open, progress};
use crate::base::fault::one_line;
use crate::base::{Errno, Ino, Stop};
use crate::config::units;
use crate::config::volume::{Access, go_json};
use crate::meta::check::Finding;
use crate::telemetry::log::{FATAL, REPORT};
use crate::tools::fsck::{self, Options, Report};
use crate::tools::lost::{BrokenFile, LostBlock, OnLost};
use anyhow::{Context as _, bail};
use serde_json::{Value, json};
use std::collections::HashMap;
use std::ffi::OsString;
use std::fmt::Write as _;
use std::os::unix::ffi::OsStringExt as _;
use std::process::ExitCode;

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Check only this path of the volume: its entries, nodes, statistics and blocks. What belongs to the whole volume
    /// (counters, locks, ACL rules, what no entry leads to) is left out
    #[arg(long, value_name = "PATH")]
    path: Option<OsString>,
    /// With --path: check everything below it, too
    #[arg(short, long)]
    recursive: bool,
    /// Repair the metadata; lost data stays lost
    #[arg(long)]
    repair: bool,
    /// Set the statistics of all directories right
    #[arg(long)]
    sync_dir_stat: bool,
    /// Permissions of directories that are made anew, in octal
    #[arg(long, value_name = "MODE", default_value = "0755", value_parser = units::parse_octal)]
    repair_dir_mode: u16,
    /// What to do with files whose data is lost: report; zero (zeros take the place of what is lost); remove (past the
    /// trash)
    #[arg(long, value_name = "WHAT", default_value = "report", value_parser = on_lost)]
    lost_blocks: OnLost,
    /// Requests to the object store at a time
    #[arg(short = 'p', long, value_name = "N", default_value_t = 20, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Print a report as JSON
    #[arg(long)]
    json: bool,
}

fn on_lost(text: &str) -> Result<OnLost, String> {
    match text {
        "report" => Ok(OnLost::Report),
        "zero" => Ok(OnLost::Zero),
        "remove" => Ok(OnLost::Remove),
        _ => Err("it may be report, zero or remove".into()),
    }
}

pub async fn run(args: Args) -> anyhow::Result<ExitCode> {
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    let changes = args.repair || args.sync_dir_stat || args.lost_blocks != OnLost::Report;
    let access = if changes { Access::Write } else { Access::Read };
    let format = open::usable_format(&meta, access).await?;
    let volume = open::volume(meta, &format)?;
    let options = Options {
        path: args.path.map(OsString::into_vec),
        recursive: args.recursive,
        repair: args.repair,
        sync_dir_stat: args.sync_dir_stat,
        dir_mode: args.repair_dir_mode,
        on_lost: args.lost_blocks,
        parallel: usize::from(args.threads),
    };
    let mut report = Report::default();
    let done = progress::watched(async |watch| fsck::run(&volume, &options, watch, &mut report).await).await?;
    open::let_go(&volume.meta).await;
    tell(&report);
    let interrupted = matches!(done, Err(Stop::Errno(Errno::ECANCELED)));
    if args.json {
        println!("{}", go_json(&described(&report, done.is_ok()), "  "));
    }
    match done {
        Ok(()) => {}
        Err(_) if interrupted => bail!("interrupted: only a part of the volume was checked"),
        Err(Stop::Errno(errno)) => {
            let what = options.path.as_ref().map_or("the volume".into(), |path| String::from_utf8_lossy(path));
            bail!("check {what}: {errno}");
        }
        Err(stop) => return Err(stop).context("check"),
    }
    if report.is_clean() {
        return Ok(ExitCode::SUCCESS);
    }
    // Several lines, unlike other reasons to fail: a table is one of them.
    tracing::error!(target: FATAL, "{}", verdict(&report));
    Ok(ExitCode::FAILURE)
}

fn tell(report: &Report) {
    for (finding, how) in &report.mended {
        tracing::info!(target: REPORT, "repaired: {finding}: {how}");
    }
    for (finding, why) in &report.left {
        tracing::warn!(target: REPORT, "not repaired: {finding}: {why}");
    }
    for finding in &report.statistics {
        tracing::warn!(target: REPORT, "{finding}");
    }
    if !report.statistics.is_empty() {
        tracing::warn!(target: REPORT, "{} statistics are off, please add `--repair` to set them right", report.statistics.len());
    }
    for finding in &report.young {
        tracing::warn!(target: REPORT, "{finding}, but it changed within a day: it may be a clone that is being made");
    }
    for finding in &report.leaked {
        tracing::warn!(target: REPORT, "{finding}: `gc --delete` removes it");
    }
    for finding in &report.problems {
        tracing::error!(target: REPORT, "{finding}");
    }
    tracing::info!(target: REPORT, "Checked {} nodes", report.nodes);
    let files: HashMap<Ino, &BrokenFile> = report.lost.files.iter().map(|file| (file.ino, file)).collect();
    for block in &report.lost.blocks {
        let name = block.key.name(false);
        let file = report.lost.file_of.get(&block.key.slice).and_then(|ino| files.get(ino));
        let path = file.map_or_else(|| "?".into(), |file| first_path(file));
        let why = match block.bytes {
            None => "there is no such object".to_owned(),
            Some(bytes) => format!("its object has only {bytes} bytes"),
        };
        tracing::error!(target: REPORT, "can't find block {} for file {path}: {why}", name.trim_start_matches("chunks/"));
    }
    for file in &report.lost.files {
        if let Some(what) = file.mended {
            tracing::info!(target: REPORT, "{} (inode {}): {what}", first_path(file), file.ino);
        }
    }
    tracing::info!(target: REPORT, "Found {} blocks ({} bytes)", report.blocks.count, report.blocks.bytes);
    tracing::info!(target: REPORT, "Used by {} slices ({} bytes)", report.slices.count, report.slices.bytes);
}

fn first_path(file: &BrokenFile) -> String {
    file.paths.first().map_or_else(|| "?".into(), |path| one_line(&String::from_utf8_lossy(path)).into_owned())
}

/// Why the volume is not whole.
fn verdict(report: &Report) -> String {
    let mut parts = Vec::new();
    if !report.problems.is_empty() {
        parts.push(format!("{} problems in the metadata", report.problems.len()));
    }
    if report.unreadable > 0 {
        parts.push(format!("{} blocks could not be checked", report.unreadable));
    }
    if report.lost.broken() > 0 {
        let lost = report.lost.tally();
        let mut text =
            format!("{} objects are lost ({} bytes), {} broken files:", lost.count, lost.bytes, report.lost.broken());
        // Writing to a string does not fail.
        let _ = write!(text, "\n{:>13}: PATH", "INODE");
        for file in report.lost.files.iter().filter(|file| file.mended.is_none()) {
            let _ = write!(text, "\n{:>13}: {}", file.ino.0, first_path(file));
        }
        parts.push(text);
    }
    parts.join("; ")
}

fn described(report: &Report, complete: bool) -> Value {
    let finding = |finding: &Finding| {
        let debug = format!("{finding:?}");
        let kind = debug.split([' ', '{']).next().unwrap_or_default().to_owned();
        json!({ "Kind": kind, "Text": finding.to_string() })
    };
    let with = |found: &Finding, text: &str, key: &str| {
        let mut value = finding(found);
        value[key] = json!(text);
        value
    };
    let block = |block: &LostBlock| {
        let name = block.key.name(false);
        let name = name.rsplit('/').next().unwrap_or_default();
        json!({ "Block": name, "Slice": block.key.slice.0, "Size": block.key.size, "Found": block.bytes })
    };
    let file = |file: &BrokenFile| {
        let paths: Vec<String> = file.paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        let chunks: Vec<u32> = file.chunks.iter().map(|index| index.0).collect();
        json!({ "Inode": file.ino.0, "Paths": paths, "Chunks": chunks, "Mended": file.mended })
    };
    let lost = report.lost.tally();
    json!({
        "Complete": complete,
        "Clean": complete && report.is_clean(),
        "Nodes": report.nodes,
        "Entries": report.entries,
        "Problems": report.problems.iter().map(finding).collect::<Vec<_>>(),
        "Statistics": report.statistics.iter().map(finding).collect::<Vec<_>>(),
        "Leaked": report.leaked.iter().map(finding).collect::<Vec<_>>(),
        "Young": report.young.iter().map(finding).collect::<Vec<_>>(),
        "Repaired": report.mended.iter().map(|(f, how)| with(f, how, "How")).collect::<Vec<_>>(),
        "NotRepaired": report.left.iter().map(|(f, why)| with(f, why, "Why")).collect::<Vec<_>>(),
        "Blocks": report.blocks.count,
        "BlockBytes": report.blocks.bytes,
        "Slices": report.slices.count,
        "SliceBytes": report.slices.bytes,
        "LostBlocks": lost.count,
        "LostBytes": lost.bytes,
        "UnreadableBlocks": report.unreadable,
        "Lost": report.lost.blocks.iter().map(block).collect::<Vec<_>>(),
        "BrokenFiles": report.lost.files.iter().map(file).collect::<Vec<_>>(),
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{ChunkIndex, SliceId};
    use crate::cache::BlockKey;

    #[test]
    fn what_is_lost_is_told_as_the_peer_tells_it() {
        let mut report = Report::default();
        let key = BlockKey { slice: SliceId(1), index: 1, size: 4_194_304 };
        report.lost.blocks.push(LostBlock { key, bytes: None });
        let file = BrokenFile {
            ino: Ino(4),
            paths: vec![b"/d/big\n\x1b[2J".to_vec()],
            chunks: vec![ChunkIndex(0)],
            mended: None,
        };
        report.lost.files.push(file);
        let expected = "1 objects are lost (4194304 bytes), 1 broken files:\n        INODE: PATH\n            4: /d/big\\n\\u{1b}[2J";
        assert_eq!(verdict(&report), expected);
        assert_eq!(described(&report, true)["Clean"], false);
        report.lost.files[0].mended = Some("removed");
        assert!(report.is_clean());
    }
}
