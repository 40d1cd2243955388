//! `dump META-URL [FILE]`: all metadata of a volume in a file, for a backup or for another engine (`spec/surface.md` 5.21).
//!
//! A file is written under a temporary name and renamed when it is whole. Without one the dump goes to standard output,
//! and everything else to standard error. What is there already and no file (a device, a pipe) is written to and stays.

use super::{open, progress};
use crate::base::{Errno, Ino, Outcome, Stop};
use crate::config::volume::Access;
use crate::meta::dump::stream::{Packing, Pipe};
use crate::meta::dump::{DumpOptions, Dumped, Sink, binary, json};
use crate::meta::{Caller, Meta};
use crate::tools::Watch;
use anyhow::{Context as _, bail};
use std::fs::File;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// The file to write, compressed if its name ends in .gz, .zst or .zstd [default: standard output]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// Only this directory and what is in it
    #[arg(long, value_name = "DIR")]
    subdir: Option<String>,
    /// Leave the secrets of the volume in the dump: whoever reads it can use the object store
    #[arg(long)]
    keep_secret_key: bool,
    /// Directories read at a time
    #[arg(short = 'p', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Accepted: every dump reads many records at a time, and holds no more than a directory of them in memory
    #[arg(long)]
    fast: bool,
    /// Leave the trash out
    #[arg(long)]
    skip_trash: bool,
    /// Write the binary form, which is smaller and faster, and always of the whole volume
    #[arg(long)]
    binary: bool,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    let format = open::usable_format(&meta, Access::Read).await?;
    let removed = format.secrets_left_out(args.keep_secret_key, args.binary);
    if !removed.is_empty() {
        tracing::warn!("the {} of the volume is left out of the dump", removed.join(", "));
    }
    let ignored = [("subdir", args.subdir.is_some()), ("skip-trash", args.skip_trash)];
    for (option, _) in ignored.into_iter().filter(|(_, given)| *given && args.binary) {
        tracing::warn!("{option} has no effect on the binary form");
    }
    let top = match &args.subdir {
        Some(path) if !args.binary => directory(&meta, path).await?,
        _ => Ino::ROOT,
    };
    let options = DumpOptions {
        setting: format.dumped(args.keep_secret_key, args.binary),
        top,
        skip_trash: args.skip_trash,
        threads: usize::from(args.threads),
    };
    let work = Work { meta: &meta, options: &options, binary: args.binary };
    let done = progress::watched(async |watch| {
        let dumping = async {
            match &args.file {
                Some(file) => work.into_file(file, watch).await,
                None => work.into_standard_output(watch).await,
            }
        };
        tokio::select! {
            biased;
            done = dumping => done,
            // It may wait for somebody to read what it writes.
            () = watch.stop.stopped() => Err(Errno::ECANCELED.into()),
        }
    })
    .await?;
    let dumped = match done {
        Ok(dumped) => dumped,
        Err(Stop::Errno(Errno::ECANCELED)) => bail!("interrupted: no dump was made"),
        Err(stop) => return Err(stop).context("dump"),
    };
    if dumped.dangling > 0 {
        tracing::warn!("{} entries without a node were left out; `fsck --repair` mends them", dumped.dangling);
    }
    if dumped.odd_names > 0 {
        tracing::warn!(
            "{} names of extended attributes are no text: JuiceFS cannot load this dump, this program can",
            dumped.odd_names
        );
    }
    let place = args.file.map_or("STDOUT".into(), |file| format!("\"{}\"", file.display()));
    tracing::info!("Dump metadata into {place} succeed ({} {})", dumped.entries, what(args.binary));
    Ok(())
}

fn what(binary: bool) -> &'static str {
    if binary { "records" } else { "entries" }
}

async fn directory(meta: &Meta, path: &str) -> anyhow::Result<Ino> {
    match meta.resolve(&Caller::root(), Ino::ROOT, path.as_bytes()).await {
        Ok(entry) if entry.attr.is_dir() && !entry.ino.is_trash() => Ok(entry.ino),
        Ok(_) => bail!("{path} is not a directory of the volume"),
        Err(Stop::Errno(errno)) => bail!("{path}: {errno}"),
        Err(stop) => Err(stop).context("look up the directory"),
    }
}

struct Work<'a> {
    meta: &'a Meta,
    options: &'a DumpOptions,
    binary: bool,
}

impl Work<'_> {
    async fn into_standard_output(&self, watch: &Watch) -> Outcome<Dumped> {
        let mut pipe = Pipe::new(Packing::Plain, std::io::stdout())?;
        let dumped = self.dump(&mut pipe, watch).await?;
        pipe.finish().await?;
        Ok(dumped)
    }

    async fn into_file(&self, path: &Path, watch: &Watch) -> Outcome<Dumped> {
        let failed = |what: &'static str, error: std::io::Error| {
            crate::base::Fault::unavailable(what).with("path", path.display()).source(error)
        };
        if std::fs::metadata(path).is_ok_and(|there| !there.is_file() && !there.is_dir()) {
            let special = File::options().write(true).open(path);
            let mut pipe = Pipe::new(Packing::of(path), special.map_err(|error| failed("open the file", error))?)?;
            let dumped = self.dump(&mut pipe, watch).await?;
            pipe.finish().await?;
            return Ok(dumped);
        }
        let mut name = path.file_name().unwrap_or_default().to_owned();
        name.push(".tmp");
        let temporary = path.with_file_name(name);
        // It says who owns what, and may hold secrets.
        let file = File::options().write(true).create(true).truncate(true).mode(0o600).open(&temporary);
        let file = file.map_err(|error| failed("make the file of the dump", error))?;
        let unfinished = Unfinished(&temporary);
        let mut pipe = Pipe::new(Packing::of(path), file)?;
        let dumped = self.dump(&mut pipe, watch).await?;
        let file = pipe.finish().await?;
        file.sync_all().map_err(|error| failed("write dump", error))?;
        std::fs::rename(&temporary, path).map_err(|error| failed("rename the file of the dump", error))?;
        std::mem::forget(unfinished);
        Ok(dumped)
    }

    async fn dump(&self, sink: &mut dyn Sink, watch: &Watch) -> Outcome<Dumped> {
        let (engine, course) = (&**self.meta.engine(), watch.course());
        match self.binary {
            true => binary::dump(engine, self.options, sink, &course).await,
            false => json::dump(engine, self.options, sink, &course).await,
        }
    }
}

/// Removes what is no dump yet.
struct Unfinished<'a>(&'a Path);

impl Drop for Unfinished<'_> {
    fn drop(&mut self) {
        // What stays is found by its name.
        let _left = std::fs::remove_file(self.0);
    }
}
