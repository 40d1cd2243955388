//! Mounting in the background: a copy of this program serves, this one waits for its word.
//!
//! The copy is started before any thread exists, by running the program again rather than by forking, because a fork of a
//! process with a runtime in it is not a working process. The copy gets the meta URL, which may hold a password, through its
//! environment, and a pipe on which it says once that it serves, or why it does not. Its command line shows the masked URL
//! and the absolute mount point, where tools look for them.

use crate::config::MetaUri;
use anyhow::{Context as _, bail};
use std::ffi::OsString;
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::os::fd::{AsRawFd as _, FromRawFd as _, OwnedFd};
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::os::unix::process::CommandExt as _;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::mpsc;
use std::time::{Duration, Instant};

/// The meta URL, complete.
const META_URL: &str = "_SLUICE_META_URL";
/// The number of the pipe's descriptor.
const READY_FD: &str = "_SLUICE_READY_FD";

/// How long a mount may take to serve.
const TIMEOUT: Duration = Duration::from_secs(10);
/// A mount that failed is given this long to end by itself.
const END: Duration = Duration::from_secs(2);

/// Where a mount says, once, that it serves or why not. In the foreground that is only logged.
#[derive(Default)]
pub struct Ready {
    pipe: Option<File>,
    deadline: Option<Instant>,
}

impl Ready {
    fn on(pipe: File) -> Ready {
        Ready { pipe: Some(pipe), deadline: Some(Instant::now() + timeout() * 4 / 5) }
    }

    /// When somebody waits for the word: what is not done by then must have failed, to say why before the waiting ends.
    pub fn deadline(&self) -> Option<Instant> {
        self.deadline
    }

    /// The kernel's first requests are answered.
    pub fn serving(&mut self, volume: &str, mount_point: &Path) {
        tracing::info!("OK, {volume} is ready at \"{}\"", mount_point.display());
        self.tell(&format!("+{volume}"));
    }

    pub fn failed(&mut self, why: &str) {
        self.tell(&format!("-{why}"));
    }

    fn tell(&mut self, word: &str) {
        if let Some(mut pipe) = self.pipe.take()
            && let Err(error) = pipe.write_all(word.as_bytes())
        {
            tracing::debug!("the process that started this one is gone: {error}");
        }
    }
}

/// What the process that started this one handed over; nothing, when a user did.
#[derive(Default)]
pub struct Handover {
    pub meta: Option<MetaUri>,
    pub ready: Option<Ready>,
}

/// Takes the handover out of the environment, so that no child of ours inherits it.
pub fn take_handover() -> anyhow::Result<Handover> {
    let take = |name: &str| {
        let value = std::env::var(name).ok();
        if value.is_some() {
            // SAFETY: commands take the handover before they start a thread, so nobody reads the environment meanwhile.
            unsafe { std::env::remove_var(name) };
        }
        value
    };
    let meta = take(META_URL).map(|url| MetaUri::parse(&url)).transpose()?;
    let pipe = take(READY_FD).and_then(|number| number.parse::<i32>().ok()).filter(|number| *number > 2);
    let ready = pipe.map(|number| {
        // SAFETY: the process that started this one opened the descriptor for it and nothing else here owns it.
        let pipe = unsafe { OwnedFd::from_raw_fd(number) };
        Ready::on(File::from(pipe))
    });
    Ok(Handover { meta, ready })
}

/// The log file of a mount in the background.
pub fn default_log() -> PathBuf {
    match std::env::var_os("HOME") {
        Some(home) if !nix::unistd::geteuid().is_root() => PathBuf::from(home).join(".sluicefs/sluicefs.log"),
        _ => "/var/log/sluicefs.log".into(),
    }
}

/// The program, under the name it was called by.
fn program(words: &[OsString], meta: &MetaUri) -> anyhow::Result<Command> {
    let mut command = Command::new(std::env::current_exe().context("find this program")?);
    let (name, words) = words.split_first().context("this process has no name")?;
    command.arg0(name).args(words).env(META_URL, meta.with_password().expose());
    Ok(command)
}

/// Replaces this process by one that shows `words`. Answers only when that failed.
pub fn replace(words: &[OsString], meta: &MetaUri) -> anyhow::Error {
    match program(words, meta) {
        Ok(mut command) => anyhow::Error::from(command.exec()).context("hide the password from the process list"),
        Err(error) => error,
    }
}

/// Starts the mount in the background and waits until it serves.
pub fn start(words: &[OsString], meta: &MetaUri, mount_point: &Path, log: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + timeout();
    let log_file = open_log(log)?;
    let (mut reader, writer) = std::io::pipe().context("make a pipe")?;
    let number = writer.as_raw_fd();
    let mut command = program(words, meta)?;
    command
        .env(READY_FD, number.to_string())
        .stdin(Stdio::null())
        .stdout(log_file.try_clone().context("share the log file")?)
        .stderr(log_file);
    // SAFETY: between fork and exec only these two system calls are made; neither allocates nor takes a lock.
    unsafe {
        command.pre_exec(move || {
            // A session of its own, so that the terminal's signals do not reach it.
            nix::unistd::setsid()?;
            // The pipe is closed on exec in every other child.
            match libc::fcntl(number, libc::F_SETFD, 0) {
                0 => Ok(()),
                _ => Err(std::io::Error::last_os_error()),
            }
        });
    }
    let mut child = command.spawn().context("start the mount in the background")?;
    // Ours must be closed, or the end of the child would not end the reading.
    drop(writer);
    let (word, heard) = mpsc::channel();
    std::thread::spawn(move || {
        let mut text = String::new();
        let read = reader.read_to_string(&mut text).map(|_| text);
        // Nobody listens any more when the deadline has passed.
        let _ = word.send(read);
    });
    let left = deadline.saturating_duration_since(Instant::now());
    let text = match heard.recv_timeout(left) {
        Ok(read) => read.context("read from the mount")?,
        Err(_) => {
            end(&mut child);
            bail!(
                "the mount did not serve within {} s (JFS_MOUNT_TIMEOUT) and was ended; its log is {}",
                timeout().as_secs(),
                log.display()
            );
        }
    };
    match (text.strip_prefix('+'), text.strip_prefix('-')) {
        (Some(volume), _) => {
            wait_for_root(mount_point, deadline)?;
            tracing::info!("OK, {volume} is ready at \"{}\"", mount_point.display());
            Ok(())
        }
        (None, Some(why)) => {
            end(&mut child);
            bail!("{why}")
        }
        (None, None) => {
            let status = child.wait().context("wait for the mount")?;
            bail!("the mount ended without a word ({status}); its log is {}", log.display())
        }
    }
}

fn timeout() -> Duration {
    match std::env::var("JFS_MOUNT_TIMEOUT").ok().and_then(|text| text.parse().ok()) {
        Some(seconds) if seconds > 0 => Duration::from_secs(seconds),
        _ => TIMEOUT,
    }
}

fn open_log(path: &Path) -> anyhow::Result<File> {
    if let Some(dir) = path.parent() {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("make the directory of the log file {}", path.display()))?;
    }
    let mut options = OpenOptions::new();
    options.create(true).append(true).mode(0o644);
    options.open(path).with_context(|| format!("open the log file {}", path.display()))
}

/// The kernel answers for the root of the volume. The look itself may hang, so it is had from a thread.
fn wait_for_root(mount_point: &Path, deadline: Instant) -> anyhow::Result<()> {
    let (found, seen) = mpsc::channel();
    let point = mount_point.to_path_buf();
    std::thread::spawn(move || {
        while !point.metadata().is_ok_and(|metadata| metadata.ino() == 1) {
            std::thread::sleep(Duration::from_millis(20));
            if Instant::now() > deadline {
                return;
            }
        }
        let _ = found.send(());
    });
    // A mount that said so just before the deadline gets a moment to show it.
    let left = deadline.saturating_duration_since(Instant::now()).max(Duration::from_millis(500));
    match seen.recv_timeout(left) {
        Ok(()) => Ok(()),
        Err(_) => bail!("the mount says that it serves, but {} does not show its root", mount_point.display()),
    }
}

/// Asks the child to end, and makes it.
fn end(child: &mut Child) {
    let pid = nix::unistd::Pid::from_raw(child.id() as i32);
    // It may have ended already; then there is nothing to ask.
    let _ = nix::sys::signal::kill(pid, nix::sys::signal::Signal::SIGTERM);
    let deadline = Instant::now() + END;
    while matches!(child.try_wait(), Ok(None)) {
        if Instant::now() > deadline {
            let _ = child.kill();
            let _ = child.wait();
            return;
        }
        std::thread::sleep(Duration::from_millis(20));
    }
}
