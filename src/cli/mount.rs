//! `mount META-URL MOUNTPOINT`: everything between the command line and a mount that serves (`spec/surface.md` 5.3).
//!
//! What was typed becomes a [`MountRequest`], with every path absolute and every setting checked; [`super::serve`] serves
//! it. In the background form this process only starts a copy of itself and waits for its word ([`super::daemon`]).

use super::daemon::{self, Ready};
use super::options::{ClientOptions, FuseOptions};
use super::{fstab, serve, umount};
use crate::config::{ClientSettings, MetaUri};
use anyhow::{Context as _, bail};
use std::ffi::OsString;
use std::path::{Path, PathBuf};
use std::process::ExitCode;

/// Nice value of a mount; only root may go below zero.
const PRIORITY: libc::c_int = -19;

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Directory to mount on
    #[arg(value_name = "MOUNTPOINT", required = true)]
    mount_point: PathBuf,
    /// Run in the background; return when the mount serves, or with the reason why not
    #[arg(short = 'd', long)]
    background: bool,
    /// Run in the foreground, the default
    #[arg(short, long, hide = true)]
    foreground: bool,
    /// Accepted: nothing is sent to syslog
    #[arg(long)]
    no_syslog: bool,
    /// Log file in the background [default: /var/log/sluicefs.log or ~/.sluicefs/sluicefs.log]
    #[arg(long, value_name = "FILE")]
    log: Option<PathBuf>,
    /// Mount although such a mount is there already
    #[arg(long)]
    force: bool,
    /// Add or update the line in /etc/fstab
    #[arg(long)]
    update_fstab: bool,
    /// Transparent huge pages are always off for this process; accepted so that command lines carry over
    #[arg(long = "disable-transparent-hugepage")]
    _disable_transparent_hugepage: bool,
    #[command(flatten)]
    fuse: FuseOptions,
    #[command(flatten)]
    client: ClientOptions,
}

/// A mount as it was asked for, with nothing left to interpret.
#[derive(Debug)]
pub struct MountRequest {
    pub meta: MetaUri,
    /// Absolute; a directory.
    pub mount_point: PathBuf,
    pub settings: ClientSettings,
    /// The lists given with `-o`, as typed.
    pub fuse_options: Vec<String>,
}

pub fn run(args: Args) -> anyhow::Result<ExitCode> {
    let handover = daemon::take_handover()?;
    let result = mount(args, handover.meta, handover.ready);
    result.map(|code| code.unwrap_or(ExitCode::SUCCESS))
}

fn mount(args: Args, handed: Option<MetaUri>, ready: Option<Ready>) -> anyhow::Result<Option<ExitCode>> {
    let is_child = handed.is_some();
    let outcome = request(&args, handed);
    let request = match outcome {
        Ok(request) => request,
        Err(error) => return Err(told(ready, error)),
    };
    let in_background = args.background && !args.foreground && std::env::var_os("JFS_FOREGROUND").is_none();
    if in_background && !is_child {
        let log = args.log.clone().unwrap_or_else(daemon::default_log);
        let log = std::path::absolute(&log).with_context(|| format!("find the log file {}", log.display()))?;
        let words = words_with(&args, &request);
        daemon::start(&words, &request.meta, &request.mount_point, &log)?;
        if args.update_fstab {
            fstab::update(&args.meta, &request.mount_point, &fstab_options(), &args.fuse.o)?;
        }
        return Ok(None);
    }
    if !is_child && request.meta.has_password() {
        // The process list shows every user the words of every process.
        return Err(daemon::replace(&words_with(&args, &request), &request.meta));
    }
    let served = prepare(&args, &request, in_background);
    match served {
        Ok(()) => serve::run(request, ready.unwrap_or_default())?,
        Err(error) => return Err(told(ready, error)),
    }
    Ok(None)
}

/// Tells the waiting parent too.
fn told(ready: Option<Ready>, error: anyhow::Error) -> anyhow::Error {
    if let Some(mut ready) = ready {
        ready.failed(&format!("{error:#}"));
    }
    error
}

fn request(args: &Args, handed: Option<MetaUri>) -> anyhow::Result<MountRequest> {
    let meta = match handed {
        Some(meta) => meta,
        None => {
            let cwd = std::env::current_dir().context("find the working directory")?;
            MetaUri::parse(&args.meta)?.absolute(&cwd)
        }
    };
    let mount_point = std::path::absolute(&args.mount_point)
        .with_context(|| format!("find the mount point {}", args.mount_point.display()))?;
    let mut settings = args.client.clone().settings(&args.fuse)?;
    for warning in settings.check()? {
        tracing::warn!("{warning}");
    }
    if let crate::config::client::CacheDirs::Dirs(dirs) = &mut settings.cache_dirs {
        for dir in dirs {
            *dir = std::path::absolute(&*dir).with_context(|| format!("find the cache directory {}", dir.display()))?;
        }
    }
    Ok(MountRequest { meta, mount_point, settings, fuse_options: args.fuse.o.clone() })
}

fn prepare(args: &Args, request: &MountRequest, in_background: bool) -> anyhow::Result<()> {
    prepare_mount_point(&request.mount_point, args.force)?;
    if let Err(error) = without_huge_pages() {
        tracing::warn!("transparent huge pages stay on: {error}");
    }
    // Whoever uses the volume waits for this process as for the kernel, so it goes before them; the peer asks for the same.
    // SAFETY: a call with plain numbers; threads that are started later inherit the priority.
    if unsafe { libc::setpriority(libc::PRIO_PROCESS, 0, PRIORITY) } != 0 {
        tracing::debug!("the priority stays as it is: {}", std::io::Error::last_os_error());
    }
    if in_background {
        // So that the file system that the command was typed in can be unmounted.
        std::env::set_current_dir("/").context("change to /")?;
    }
    Ok(())
}

/// The allocator asks the kernel for huge pages, and each one is cleared whole when its first byte is touched. On a
/// virtual machine whose host brings memory in on demand that takes tens of milliseconds: listing 600 files on SQLite
/// took 150 to 240 ms with them and 20 to 26 without (2 cores). Block buffers are reused and gain nothing. Those that it
/// has got by then stay, so it is done first of all: an idle mount holds 34 MiB instead of 41.
pub(super) fn without_huge_pages() -> std::io::Result<()> {
    // SAFETY: prctl with this option takes plain numbers and touches no memory of ours.
    match unsafe { libc::prctl(libc::PR_SET_THP_DISABLE, 1, 0, 0, 0) } {
        0 => Ok(()),
        _ => Err(std::io::Error::last_os_error()),
    }
}

/// Makes the mount point, or makes it usable again.
fn prepare_mount_point(point: &Path, force: bool) -> anyhow::Result<()> {
    if point == Path::new("/") {
        bail!("should not mount on the root directory");
    }
    if point.starts_with("/dev/fd") {
        bail!("mounting on an opened FUSE descriptor ({}) is not in this build", point.display());
    }
    let mut tries = 0;
    let metadata = loop {
        match point.metadata() {
            Ok(metadata) => break metadata,
            Err(error) if error.kind() == std::io::ErrorKind::NotFound && tries == 0 => {
                std::fs::create_dir_all(point).with_context(|| format!("make the mount point {}", point.display()))?;
            }
            Err(error) if matches!(error.raw_os_error(), Some(libc::ENOTCONN | libc::ESTALE)) && tries == 0 => {
                tracing::warn!("{} is a mount whose server is gone; it is unmounted", point.display());
                crate::fuse::umount(point, true)?;
            }
            Err(error) => return Err(error).with_context(|| format!("look at the mount point {}", point.display())),
        }
        tries += 1;
    };
    if !metadata.is_dir() {
        bail!("the mount point {} is not a directory", point.display());
    }
    if !nix::unistd::geteuid().is_root()
        && let Err(error) = nix::unistd::access(point, nix::unistd::AccessFlags::W_OK)
    {
        bail!("no permission to write to the mount point {}: {error}", point.display());
    }
    if !force && let Some(mounted) = umount::mounted_here(point)? {
        bail!("{} is mounted on {} already; unmount it, or use --force", mounted.source, point.display());
    }
    Ok(())
}

/// The words of this process with the paths absolute and the password masked: what the process list may show.
fn words_with(args: &Args, request: &MountRequest) -> Vec<OsString> {
    let meta = request.meta.to_string();
    std::env::args_os()
        .enumerate()
        .map(|(i, word)| match word {
            word if i == 0 => word,
            word if word == args.meta.as_str() => OsString::from(&meta),
            word if word == args.mount_point.as_os_str() => request.mount_point.clone().into(),
            word => word,
        })
        .collect()
}

/// The options of this process as fstab has them: without dashes, without what only this call is about.
fn fstab_options() -> Vec<String> {
    let words = std::env::args().skip(1).collect::<Vec<_>>();
    let mut root = <super::Cli as clap::CommandFactory>::command();
    root.build();
    let Ok(words) = super::args::prepare(&root, words.into_iter().map(OsString::from).collect()) else {
        return Vec::new();
    };
    words
        .iter()
        .filter_map(|word| word.to_str()?.strip_prefix("--"))
        .filter(|option| {
            !option.is_empty() && !matches!(*option, "background" | "update-fstab") && !option.starts_with("o=")
        })
        .map(str::to_string)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_points_are_made_and_checked() {
        let dir = tempfile::tempdir().unwrap();
        let point = dir.path().join("a/b");
        prepare_mount_point(&point, false).unwrap();
        assert!(point.is_dir());
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(prepare_mount_point(&file, false).unwrap_err().to_string().contains("not a directory"));
        assert!(prepare_mount_point(Path::new("/"), true).unwrap_err().to_string().contains("root directory"));
        assert!(prepare_mount_point(Path::new("/dev/fd/5"), true).is_err());
    }
}
