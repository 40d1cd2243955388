//! `rmr PATH…`: has a mount remove directories with everything in them (`spec/surface.md` 5.15). The mount does not ask the
//! kernel about each entry, which is what makes it faster than `rm -r`.

use super::control::{self, Answer};
use super::progress;
use anyhow::{Context as _, bail};
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::MetadataExt as _;
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Paths in a mount
    #[arg(value_name = "PATH", required = true, num_args = 1..)]
    paths: Vec<PathBuf>,
    /// Remove for good instead of into the trash; for the superuser
    #[arg(long)]
    skip_trash: bool,
    /// Removals at a time; more than 255 are 255
    #[arg(short = 'p', long, value_name = "N", default_value_t = 50, value_parser = clap::value_parser!(u16).range(1..))]
    threads: u16,
}

/// Bit 0 of the request's flags.
const SKIP_TRASH: u8 = 1;

pub fn run(args: Args) -> anyhow::Result<()> {
    // SAFETY: geteuid has no preconditions.
    if args.skip_trash && unsafe { libc::geteuid() } != 0 {
        bail!("only root can remove files past the trash");
    }
    let threads = u8::try_from(args.threads).unwrap_or(u8::MAX);
    progress::end_on_signals("rmr")?;
    args.paths.iter().try_for_each(|path| remove(path, args.skip_trash, threads))
}

fn remove(path: &Path, skip_trash: bool, threads: u8) -> anyhow::Result<()> {
    let absolute = std::path::absolute(path).with_context(|| format!("find {path:?}"))?;
    let (Some(parent), Some(name)) = (absolute.parent(), absolute.file_name()) else {
        bail!("RMR {path:?}: this has no name that could be removed");
    };
    let metadata = parent.metadata().with_context(|| format!("RMR {path:?}"))?;
    let mut file = control::open(parent)?;
    let mut body = metadata.ino().to_be_bytes().to_vec();
    body.push(u8::try_from(name.len()).with_context(|| format!("RMR {path:?}: its name is too long"))?);
    body.extend(name.as_bytes());
    body.extend([if skip_trash { SKIP_TRASH } else { 0 }, threads]);
    match progress::asked(&mut file, control::REMOVE, &body, "removed", |removed, _| removed)? {
        Answer::Done | Answer::Data(_) => Ok(()),
        Answer::Errno(errno) => {
            bail!("RMR {path:?}: {}", nix::errno::Errno::from_raw(errno.raw()).desc().to_lowercase())
        }
    }
}
