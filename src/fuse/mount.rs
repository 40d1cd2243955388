//! Mounting and unmounting: options, mount(2) or its helper, broken mount points, the kernel's read-ahead.
//!
//! As root the mount is made here, with mount(2): that gives it its own type (`fuse.sluicefs`) and needs no helper
//! program. Others go through `fusermount3`. A mount point whose server died (ENOTCONN) is detached first.

use super::attend::{Attendant, Observer};
use super::dispatch::{Dispatcher, Squash};
use super::fuser::Serving;
use super::transport::KernelCache;
use crate::base::mode::Mode;
use crate::base::{Errno, Fault};
use crate::vfs::Vfs;
use crate::vfs::control::Control;
use nix::mount::{MntFlags, MsFlags};
use parking_lot::Mutex;
use std::io;
use std::os::fd::{AsRawFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::Arc;
use std::time::Duration;
use tokio::sync::watch;

/// `fuse.sluicefs` in the mount table.
pub const SUBTYPE: &str = "sluicefs";

/// The largest request the kernel makes without a raised `fs.fuse.max_pages_limit` (256 pages).
pub const IO_BYTES_MAX: u32 = 1 << 20;

/// How a volume is mounted and what the kernel is told.
#[derive(Clone, Debug)]
pub struct Options {
    /// The volume's name, shown as `SluiceFS:NAME`.
    pub volume: String,
    pub point: PathBuf,
    pub read_only: bool,
    /// Users other than the one who mounts; always so for root.
    pub allow_other: bool,
    /// The kernel judges permissions. Without it every operation is judged here, with the groups of the caller.
    pub default_permissions: bool,
    pub suid: bool,
    pub dev: bool,
    /// Further options as given with `-o`, by name (`noexec`) or for the kernel (`max_read=…`).
    pub further: Vec<String>,
    /// Largest read or write request, in bytes.
    pub io_bytes_max: u32,
    /// Threads that read requests.
    pub threads: usize,
    /// Requests that the kernel has under way at a time without anybody waiting (read-ahead, write-back).
    pub background_max: u16,
    /// The kernel's read-ahead per file; `None` leaves what the system has.
    pub read_ahead_kib: Option<u32>,
    pub writeback_cache: bool,
    pub async_dio: bool,
    /// The volume has ACLs.
    pub acl: bool,
    pub xattr: bool,
    /// `security.capability` and `security.selinux` may be stored.
    pub security_capability: bool,
    pub security_selinux: bool,
    /// chattr and lsattr.
    pub ioctl: bool,
    /// Takes the place of each caller's umask.
    pub umask: Option<Mode>,
    pub squash: Squash,
    pub attr_cache: Duration,
    pub entry_cache: Duration,
    pub dir_entry_cache: Duration,
    pub negative_entry_cache: Duration,
    /// The kernel may keep directory listings.
    pub readdir_cache: bool,
    /// The longest that any request may take before its caller gets an error.
    pub deadline: Duration,
}

impl Options {
    /// The defaults of a mount of `volume` at `point`.
    pub fn new(volume: impl Into<String>, point: impl Into<PathBuf>) -> Options {
        // More threads than cores only take turns; two keep one slow operation from being everybody's.
        let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
        Options {
            volume: volume.into(),
            point: point.into(),
            read_only: false,
            allow_other: nix::unistd::geteuid().is_root(),
            default_permissions: true,
            suid: false,
            dev: false,
            further: Vec::new(),
            // Null file system, 2 cores: buffered writes 1.3 GiB/s with 128 KiB requests, 2.1 with 1 MiB; reads alike.
            io_bytes_max: IO_BYTES_MAX,
            threads: cores.clamp(2, 16),
            background_max: 128,
            // Buffered sequential reads: 2.4 GiB/s with the kernel's 128 KiB, 3.1 with 1 MiB, 3.4 with 4 MiB. Larger
            // windows fetch more than random readers want.
            read_ahead_kib: Some(1024),
            writeback_cache: false,
            async_dio: false,
            acl: false,
            xattr: false,
            security_capability: false,
            security_selinux: false,
            ioctl: false,
            umask: None,
            squash: Squash::default(),
            attr_cache: Duration::from_secs(1),
            entry_cache: Duration::from_secs(1),
            dir_entry_cache: Duration::from_secs(1),
            negative_entry_cache: Duration::ZERO,
            readdir_cache: false,
            // Longer than the object store's own retries, so that their verdict arrives first.
            deadline: Duration::from_secs(600),
        }
    }

    /// Takes one list as given with `-o`. What is not known here is passed to the kernel.
    pub fn add(&mut self, list: &str) {
        for option in list.split(',').map(str::trim).filter(|option| !option.is_empty()) {
            match option {
                "ro" => self.read_only = true,
                "rw" => self.read_only = false,
                "allow_other" => self.allow_other = true,
                "default_permissions" => self.default_permissions = true,
                "suid" => self.suid = true,
                "nosuid" => self.suid = false,
                "dev" => self.dev = true,
                "nodev" => self.dev = false,
                "writeback_cache" => self.writeback_cache = true,
                "async_dio" => self.async_dio = true,
                // Debug output is the log level's business; the rest speaks to mount(8) and other helpers.
                "debug" | "nonempty" | "defaults" | "auto" | "noauto" | "user" | "nouser" | "users" | "_netdev"
                | "nofail" => {}
                other => self.further.push(other.to_owned()),
            }
        }
    }

    /// The source in the mount table. A comma would end it.
    pub fn source(&self) -> String {
        format!("SluiceFS:{}", self.volume.replace(',', "_"))
    }

    /// Options that the FUSE file system itself reads.
    pub(super) fn kernel_options(&self) -> Vec<String> {
        let mut options = Vec::new();
        if self.default_permissions {
            options.push("default_permissions".to_owned());
        }
        options.push(format!("max_read={}", self.io_bytes_max));
        options.extend(self.further.iter().filter(|option| flag(option).is_none()).cloned());
        options
    }

    /// Options of every file system, by name.
    pub(super) fn flag_names(&self) -> Vec<&str> {
        let mut names = vec![
            if self.suid { "suid" } else { "nosuid" },
            if self.dev { "dev" } else { "nodev" },
            if self.read_only { "ro" } else { "rw" },
        ];
        names.extend(self.further.iter().map(String::as_str).filter(|option| flag(option).is_some()));
        names
    }

    fn flags(&self) -> MsFlags {
        self.flag_names().into_iter().filter_map(flag).fold(MsFlags::empty(), |all, one| all | one)
    }
}

/// The flag of mount(2) for an option; empty for one that switches nothing on, `None` for one that is no flag.
fn flag(option: &str) -> Option<MsFlags> {
    Some(match option {
        "ro" => MsFlags::MS_RDONLY,
        "nosuid" => MsFlags::MS_NOSUID,
        "nodev" => MsFlags::MS_NODEV,
        "noexec" => MsFlags::MS_NOEXEC,
        "noatime" => MsFlags::MS_NOATIME,
        "nodiratime" => MsFlags::MS_NODIRATIME,
        "relatime" => MsFlags::MS_RELATIME,
        "strictatime" => MsFlags::MS_STRICTATIME,
        "sync" => MsFlags::MS_SYNCHRONOUS,
        "dirsync" => MsFlags::MS_DIRSYNC,
        "rw" | "suid" | "dev" | "exec" | "atime" | "diratime" | "async" => MsFlags::empty(),
        _ => return None,
    })
}

/// Where a transport finds the kernel.
pub enum Channel {
    /// A mounted `/dev/fuse`.
    Device(OwnedFd),
    /// Nothing is mounted yet: the transport mounts here with the helper program.
    Helper(PathBuf),
}

/// A mounted volume.
pub struct Fuse;

impl Fuse {
    /// Mounts; when this returns, the kernel and we have shaken hands and requests are being served.
    pub fn mount(
        vfs: Arc<Vfs>,
        control: Arc<Control>,
        observer: Arc<dyn Observer>,
        options: Options,
        runtime: tokio::runtime::Handle,
    ) -> Result<Mounted, Fault> {
        prepare(&options.point)?;
        let point = options.point.canonicalize().map_err(|error| broken("find mount point", &options.point, error))?;
        let options = Options { point, ..options };
        let dispatcher = Dispatcher::new(vfs, control.clone(), observer, &options, runtime);
        let attendant = dispatcher.attendant().clone();
        let channel = open(&options)?;
        let mounted_here = matches!(channel, Channel::Device(_));
        let (ended, end) = watch::channel(None);
        let finish = move |result: io::Result<()>| {
            if let Err(error) = &result {
                tracing::warn!(%error, "FUSE session ended");
            }
            ended.send_replace(Some(result.is_ok()));
        };
        let serving = Serving::start(channel, &options, dispatcher, finish).inspect_err(|_| {
            if mounted_here && let Err(fault) = umount(&options.point, true) {
                tracing::warn!(%fault, "mount point left behind");
            }
        })?;
        control.connect(Arc::new(Forgetting(serving.cache())));
        if let Some(kib) = options.read_ahead_kib {
            set_read_ahead(&options.point, kib);
        }
        Ok(Mounted { point: options.point, attendant, end, serving: Mutex::new(Some(serving)) })
    }
}

/// What the virtual files may tell the kernel.
struct Forgetting(Arc<dyn KernelCache>);

impl crate::vfs::control::EntryCache for Forgetting {
    fn forget_entry(&self, parent: crate::base::Ino, name: &crate::base::Name) {
        self.0.forget_entry(parent, name.as_bytes());
    }
}

/// A mount that is being served. Dropping it unmounts.
pub struct Mounted {
    point: PathBuf,
    attendant: Arc<Attendant>,
    end: watch::Receiver<Option<bool>>,
    serving: Mutex<Option<Serving>>,
}

impl Mounted {
    pub fn point(&self) -> &Path {
        &self.point
    }

    /// Waits until the mount is gone, whoever unmounted it. Requests under way get `grace` to finish.
    pub async fn wait(&self, grace: Duration) -> Result<(), Fault> {
        let mut end = self.end.clone();
        let orderly = match end.wait_for(Option::is_some).await {
            Ok(ended) => ended.unwrap_or(false),
            Err(_) => false,
        };
        let serving = self.serving.lock().take();
        if let Some(serving) = serving {
            tokio::task::spawn_blocking(|| serving.join())
                .await
                .map_err(|error| Fault::internal("join FUSE session").source(error))??;
        }
        let left = self.attendant.drain(grace).await;
        if left > 0 {
            tracing::warn!(requests = left, "requests still under way after unmount");
        }
        if orderly { Ok(()) } else { Err(Fault::unavailable("serve FUSE session").with("point", self.point.display())) }
    }

    /// True once the mount is gone.
    pub fn is_over(&self) -> bool {
        self.end.borrow().is_some()
    }

    /// Unmounts; a mount in use is detached, and ends when its last user lets go.
    pub fn unmount(&self) -> Result<(), Fault> {
        if self.is_over() {
            return Ok(());
        }
        match umount(&self.point, false) {
            Ok(()) => Ok(()),
            Err(_) => umount(&self.point, true),
        }
    }

    /// Requests being answered now.
    pub fn requests_in_flight(&self) -> usize {
        self.attendant.in_flight()
    }
}

impl Drop for Mounted {
    fn drop(&mut self) {
        if let Err(fault) = self.unmount() {
            tracing::debug!(%fault, "unmount at exit");
        }
    }
}

fn broken(what: &'static str, point: &Path, error: io::Error) -> Fault {
    let fault = match error.kind() {
        io::ErrorKind::PermissionDenied => Fault::denied(what),
        _ => Fault::config(what),
    };
    fault.with("point", point.display()).source(error)
}

/// Makes the mount point if it is missing and detaches a mount whose server is gone.
fn prepare(point: &Path) -> Result<(), Fault> {
    match std::fs::metadata(point) {
        Ok(found) if found.is_dir() => Ok(()),
        Ok(_) => Err(Fault::config("mount").with("point", point.display()).source("not a directory")),
        Err(error) if error.raw_os_error() == Some(libc::ENOTCONN) => {
            tracing::warn!(point = %point.display(), "detaching a mount whose server is gone");
            umount(point, true)
        }
        Err(error) if error.kind() == io::ErrorKind::NotFound => {
            std::fs::create_dir_all(point).map_err(|error| broken("make mount point", point, error))
        }
        Err(error) => Err(broken("look at mount point", point, error)),
    }
}

/// mount(2), or a word to use the helper when that is not for us.
fn open(options: &Options) -> Result<Channel, Fault> {
    let device = std::fs::OpenOptions::new()
        .read(true)
        .write(true)
        .open("/dev/fuse")
        .map_err(|error| broken("open /dev/fuse", &options.point, error))?;
    let mut data = vec![
        format!("fd={}", device.as_raw_fd()),
        "rootmode=40000".to_owned(),
        format!("user_id={}", nix::unistd::geteuid()),
        format!("group_id={}", nix::unistd::getegid()),
    ];
    data.extend(options.kernel_options());
    if options.allow_other {
        data.push("allow_other".to_owned());
    }
    let kind = format!("fuse.{SUBTYPE}");
    let mounted = nix::mount::mount(
        Some(options.source().as_str()),
        &options.point,
        Some(kind.as_str()),
        options.flags(),
        Some(data.join(",").as_str()),
    );
    match mounted {
        Ok(()) => Ok(Channel::Device(device.into())),
        Err(nix::errno::Errno::EPERM) => Ok(Channel::Helper(options.point.clone())),
        Err(error) => Err(broken("mount", &options.point, error.into()).with("options", data.join(","))),
    }
}

/// Unmounts `point`. Lazily: it leaves the tree at once and ends when its last user lets go.
pub fn umount(point: &Path, lazy: bool) -> Result<(), Fault> {
    let flags = if lazy { MntFlags::MNT_DETACH } else { MntFlags::empty() } | MntFlags::UMOUNT_NOFOLLOW;
    match nix::mount::umount2(point, flags) {
        Ok(()) => Ok(()),
        // Users unmount what they mounted through the helper of FUSE, which is setuid.
        Err(nix::errno::Errno::EPERM) => umount_with_helper(point, lazy),
        Err(error) => {
            let errno = Errno::from_raw(error as i32);
            let fault = match errno {
                Errno::EBUSY => {
                    Fault::unavailable("unmount").source("it is in use; end what uses it, or detach it by force")
                }
                Errno::EINVAL => Fault::config("unmount").source("nothing is mounted there"),
                errno => Fault::config("unmount").source(errno),
            };
            Err(fault.with("point", point.display()))
        }
    }
}

fn umount_with_helper(point: &Path, lazy: bool) -> Result<(), Fault> {
    let fault = || Fault::denied("unmount").with("point", point.display());
    for helper in ["fusermount3", "fusermount"] {
        let mut command = Command::new(helper);
        command.arg(if lazy { "-uz" } else { "-u" }).arg("--").arg(point).stdin(Stdio::null());
        match command.output() {
            Ok(output) if output.status.success() => return Ok(()),
            Ok(output) => return Err(fault().source(String::from_utf8_lossy(&output.stderr).trim().to_owned())),
            Err(error) if error.kind() == io::ErrorKind::NotFound => {}
            Err(error) => return Err(fault().with("helper", helper).source(error)),
        }
    }
    Err(fault().source("not permitted, and no fusermount3 or fusermount to ask"))
}

/// Raises the kernel's read-ahead for the mount; INIT can only lower it. Only root may, and only where sysfs is
/// writable: without it reads are right, and slower.
fn set_read_ahead(point: &Path, kib: u32) {
    let Some(device) = std::fs::read("/proc/self/mountinfo").ok().and_then(|table| device_of(&table, point)) else {
        tracing::debug!(point = %point.display(), "mount not found in mountinfo");
        return;
    };
    let setting = format!("/sys/class/bdi/{device}/read_ahead_kb");
    if let Err(error) = std::fs::write(&setting, kib.to_string()) {
        tracing::debug!(%setting, %error, "read-ahead stays as it is");
    }
}

/// `major:minor` of the last mount at `point` in a mountinfo table.
fn device_of(table: &[u8], point: &Path) -> Option<String> {
    use std::os::unix::ffi::OsStrExt;
    let wanted = escape(point.as_os_str().as_bytes());
    let lines = table.split(|byte| *byte == b'\n').rev();
    lines.map(|line| line.split(|byte| *byte == b' ').collect::<Vec<_>>()).find_map(|fields| {
        let (device, at) = (fields.get(2)?, fields.get(4)?);
        (*at == wanted).then(|| String::from_utf8_lossy(device).into_owned())
    })
}

/// As mountinfo writes paths: blanks and backslashes in octal.
fn escape(path: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity(path.len());
    for &byte in path {
        match byte {
            b' ' | b'\t' | b'\n' | b'\\' => out.extend(format!("\\{byte:03o}").bytes()),
            _ => out.push(byte),
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mount_options_go_where_they_belong() {
        let mut options = Options::new("vol", "/mnt");
        options.add("ro, noexec,allow_other,nonempty,max_idle=3,writeback_cache");
        assert!(options.read_only && options.allow_other && options.writeback_cache);
        let (flags, names) = (options.flags(), options.flag_names());
        assert_eq!(flags, MsFlags::MS_RDONLY | MsFlags::MS_NOSUID | MsFlags::MS_NODEV | MsFlags::MS_NOEXEC);
        assert_eq!(names, ["nosuid", "nodev", "ro", "noexec"]);
        assert_eq!(options.kernel_options(), ["default_permissions", "max_read=1048576", "max_idle=3"]);
        options.add("suid,dev,rw");
        assert_eq!(options.flags(), MsFlags::MS_NOEXEC);
        assert_eq!(options.source(), "SluiceFS:vol");
    }

    #[test]
    fn the_latest_mount_at_a_point_is_found() {
        let table = b"36 35 98:0 / /mnt/a\\040b rw - ext3 /dev/root rw\n\
                      40 35 0:50 / /mnt/a\\040b rw - fuse.sluicefs x rw\n\
                      41 35 0:51 / /mnt rw - fuse y rw\n";
        assert_eq!(device_of(table, Path::new("/mnt/a b")).as_deref(), Some("0:50"));
        assert_eq!(device_of(table, Path::new("/mnt/a")), None);
    }

    #[test]
    fn a_point_that_is_a_file_is_refused() {
        let dir = tempfile::tempdir().unwrap();
        let file = dir.path().join("file");
        std::fs::write(&file, "").unwrap();
        assert!(prepare(&file).is_err());
        let below = dir.path().join("made/here");
        prepare(&below).unwrap();
        assert!(below.is_dir());
    }
}
