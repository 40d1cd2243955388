//! `umount MOUNTPOINT`: takes a volume off, and returns when its mount has flushed and ended (`spec/surface.md` 5.4).
//!
//! A mount flushes what was written before it leaves; a script that goes on after `umount` may rely on that, so the command
//! waits for the process of the mount. It is found among the processes of this machine and not asked for: a mount whose
//! engine is away keeps whoever asks waiting, and cannot be unmounted while somebody does.

use super::control;
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// A mount gets this long to flush and end.
const END: Duration = Duration::from_secs(60);
const POLL: Duration = Duration::from_millis(50);
/// `--flush` gives up when nothing was uploaded for this long.
const STALLED: Duration = Duration::from_secs(600);

#[derive(clap::Args)]
pub struct Args {
    /// Directory that the volume is mounted on
    #[arg(value_name = "MOUNTPOINT", required = true)]
    mount_point: PathBuf,
    /// Unmount although files are open
    #[arg(short, long)]
    force: bool,
    /// Wait until everything staged is uploaded
    #[arg(long)]
    flush: bool,
}

/// A mount in the kernel's table.
#[derive(Debug, PartialEq, Eq)]
pub struct MountEntry {
    pub point: PathBuf,
    pub source: String,
    pub kind: String,
}

pub fn run(args: Args) -> anyhow::Result<()> {
    let point = std::path::absolute(&args.mount_point)
        .with_context(|| format!("find the mount point {}", args.mount_point.display()))?;
    let point = point.components().collect::<PathBuf>();
    let server = if args.force { None } else { server_of(&point) };
    if args.flush {
        wait_for_uploads(&point)?;
    }
    crate::fuse::umount(&point, args.force).with_context(|| format!("failed to unmount {}", point.display()))?;
    match server {
        Some(pid) => wait_for_end(pid, &point),
        None => Ok(()),
    }
}

/// The volume of ours or the peer's that is mounted exactly here, on top.
pub fn mounted_here(point: &Path) -> anyhow::Result<Option<MountEntry>> {
    let table = std::fs::read_to_string("/proc/self/mountinfo").context("read the table of mounts")?;
    let top = table.lines().rev().filter_map(parse_mount).find(|mount| mount.point == point);
    Ok(top.filter(|mount| matches!(mount.kind.as_str(), "fuse.sluicefs" | "fuse.juicefs")))
}

/// A line of mountinfo: `36 35 98:0 /root /point options … - type source super-options`.
pub(super) fn parse_mount(line: &str) -> Option<MountEntry> {
    let (head, tail) = line.split_once(" - ")?;
    let point = unescape(head.split(' ').nth(4)?);
    let mut tail = tail.split(' ');
    let kind = tail.next()?.to_string();
    Some(MountEntry { point: point.into(), source: unescape(tail.next()?), kind })
}

/// The table writes blanks and the like as three octal digits.
fn unescape(text: &str) -> String {
    let mut out = Vec::with_capacity(text.len());
    let bytes = text.as_bytes();
    let mut at = 0;
    while at < bytes.len() {
        let digits = bytes.get(at + 1..at + 4).and_then(|digits| std::str::from_utf8(digits).ok());
        match (bytes[at], digits.and_then(|digits| u8::from_str_radix(digits, 8).ok())) {
            (b'\\', Some(byte)) => {
                out.push(byte);
                at += 4;
            }
            (byte, _) => {
                out.push(byte);
                at += 1;
            }
        }
    }
    String::from_utf8_lossy(&out).into_owned()
}

/// The process that serves a mount, if it is one of this machine and not in another container.
fn server_of(point: &Path) -> Option<i32> {
    let pids = std::fs::read_dir("/proc").ok()?.filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok());
    let found: Vec<i32> = pids.filter(|pid| serves(*pid, point)).collect();
    match found[..] {
        [] => None,
        [pid] => Some(pid),
        // Mounts on top of each other, or a client of several processes: the one on top knows.
        _ => named_by_config(point),
    }
}

fn named_by_config(point: &Path) -> Option<i32> {
    let config = std::fs::read(control::special(point, ".config")?).ok()?;
    let config: serde_json::Value = serde_json::from_slice(&config).ok()?;
    let pid = i32::try_from(config.get("Pid")?.as_i64()?).ok().filter(|pid| *pid > 1)?;
    serves(pid, point).then_some(pid)
}

/// Whether a process runs `mount` with the mount point among its words, or the helper of that name.
fn serves(pid: i32, point: &Path) -> bool {
    std::fs::read(format!("/proc/{pid}/cmdline")).is_ok_and(|line| is_mount_of(&line, point))
}

fn is_mount_of(command_line: &[u8], point: &Path) -> bool {
    let mut words = command_line.split(|byte| *byte == 0);
    let program = words.next().unwrap_or_default().rsplit(|byte| *byte == b'/').next().unwrap_or_default();
    let mut mounts = program.starts_with(b"mount.");
    let mut there = false;
    for word in words {
        mounts |= word == b"mount";
        there |= word == point.as_os_str().as_encoded_bytes();
    }
    mounts && there
}

fn wait_for_end(pid: i32, point: &Path) -> anyhow::Result<()> {
    let deadline = Instant::now() + END;
    while serves(pid, point) {
        if Instant::now() > deadline {
            bail!("{} is unmounted, but its process {pid} has not ended after {} s", point.display(), END.as_secs());
        }
        std::thread::sleep(POLL);
    }
    Ok(())
}

/// Waits until `.stats` says that nothing is staged any more.
fn wait_for_uploads(point: &Path) -> anyhow::Result<()> {
    let stats = control::special(point, ".stats").with_context(|| format!("{} is not a mount", point.display()))?;
    let (mut last, mut moved) = (u64::MAX, Instant::now());
    loop {
        let text = std::fs::read_to_string(&stats).with_context(|| format!("read {}", stats.display()))?;
        let staged = number(&text, "juicefs_staging_blocks");
        if staged == 0 {
            break;
        }
        let bytes = number(&text, "juicefs_staging_block_bytes");
        eprint!("\r{staged} staging blocks ({bytes} bytes) to be uploaded ");
        if staged < last {
            (last, moved) = (staged, Instant::now());
        } else if moved.elapsed() > STALLED {
            bail!("nothing was uploaded for {} s; {staged} blocks are still staged", STALLED.as_secs());
        }
        std::thread::sleep(Duration::from_millis(500));
    }
    println!("All staging chunks are flushed");
    Ok(())
}

/// A number of `.stats`; one that is not there is zero.
fn number(stats: &str, name: &str) -> u64 {
    let value = stats.lines().find_map(|line| line.strip_prefix(name)?.strip_prefix(' ')?.parse::<f64>().ok());
    value.map_or(0, |value| value.max(0.0) as u64)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn lines_of_the_mount_table_are_read() {
        let line = r"61 28 0:50 / /mnt/a\040b rw,nosuid shared:5 - fuse.sluicefs SluiceFS:vol rw,user_id=0";
        let expected =
            MountEntry { point: "/mnt/a b".into(), source: "SluiceFS:vol".into(), kind: "fuse.sluicefs".into() };
        assert_eq!(parse_mount(line), Some(expected));
        assert_eq!(parse_mount("what"), None);
        assert_eq!(unescape("a\\04"), "a\\04");
        assert_eq!(mounted_here(Path::new("/proc")).unwrap(), None);
    }

    #[test]
    fn the_process_of_a_mount_is_known_by_its_words() {
        for (line, mounts) in [
            ("sluice\0mount\0-d\0redis://h/1\0/mnt/v\0", true),
            ("/sbin/mount.sluicefs\0redis://h/1\0/mnt/v\0-o\0rw\0", true),
            ("sluice\0mount\0redis://h/1\0/mnt/v2\0", false),
            ("sluice\0umount\0/mnt/v\0", false),
            ("ls\0/mnt/v\0", false),
            ("", false),
        ] {
            assert_eq!(is_mount_of(line.as_bytes(), Path::new("/mnt/v")), mounts, "{line}");
        }
    }

    #[test]
    fn numbers_of_stats_are_found_by_their_whole_name() {
        let stats = "juicefs_staging_blocks_x 9\njuicefs_staging_blocks 3\njuicefs_uptime 1.5\n";
        assert_eq!((number(stats, "juicefs_staging_blocks"), number(stats, "missing")), (3, 0));
    }
}
