//! `compact PATH…`: has a mount rewrite the chunks of files that consist of many slices (`spec/surface.md` 5.17).

use super::control::{self, Answer};
use super::progress;
use anyhow::{Context as _, bail};
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Files or directories in a mount
    #[arg(value_name = "PATH", required = true, num_args = 1..)]
    paths: Vec<PathBuf>,
    /// Files at a time
    #[arg(short = 'p', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    progress::end_on_signals("compact")?;
    args.paths.iter().try_for_each(|path| compact(path, args.threads))
}

fn compact(path: &Path, threads: u16) -> anyhow::Result<()> {
    let absolute = std::path::absolute(path).with_context(|| format!("find {path:?}"))?;
    let metadata = absolute.metadata().with_context(|| format!("lookup inode for {path:?}"))?;
    if !metadata.is_dir() && !metadata.is_file() {
        bail!("compact {path:?}: neither a file nor a directory");
    }
    let dir = match metadata.is_dir() {
        true => absolute.as_path(),
        false => absolute.parent().unwrap_or(Path::new("/")),
    };
    let mut file = control::open(dir)?;
    let ino = metadata.ino();
    let mut body = ino.to_be_bytes().to_vec();
    body.extend(threads.to_be_bytes());
    match progress::asked(&mut file, control::COMPACT, &body, "compacted files", |_, done| done)? {
        Answer::Done | Answer::Data(_) => tracing::info!("compact [{ino}:{absolute:?}] success."),
        Answer::Errno(errno) => bail!("compact [{ino}:{absolute:?}]: {errno}"),
    }
    Ok(())
}
