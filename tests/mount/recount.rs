//! Whether what a volume keeps of its usage, change by change, is what counting it anew finds.

use crate::harness::{Mount, Volume, run};
use std::process::Command;

/// Bytes and inodes in use.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Usage {
    bytes: u64,
    inodes: u64,
}

/// What statfs(2) says of a mount, and what its tree with the trash adds up to, every node once.
fn said_and_counted(mount: &Mount) -> (Usage, Usage) {
    const COUNT: &str = r#"
import os, stat
said = os.statvfs(".")
nodes = {}
for top, dirs, files in list(os.walk(".")) + list(os.walk(".trash")):
    # What a mount adds to the root is not in the volume.
    for name in (n for n in dirs + files if top != "." or n[0] != "."):
        s = os.lstat(os.path.join(top, name))
        nodes[s.st_ino] = max(-(-s.st_size // 4096), 1) if stat.S_ISREG(s.st_mode) else 1
print((said.f_blocks - said.f_bfree) * said.f_frsize, said.f_files - said.f_ffree, sum(nodes.values()) * 4096, len(nodes))
"#;
    let told = run(Command::new("python3").args(["-c", COUNT]).current_dir(&mount.point));
    let numbers: Vec<u64> = told.split_whitespace().map(|word| word.parse().expect("a number")).collect();
    let [said_bytes, said_inodes, bytes, inodes] = numbers[..] else { panic!("{told}") };
    (Usage { bytes: said_bytes, inodes: said_inodes }, Usage { bytes, inodes })
}

/// Nothing is wrong with the metadata, and the statistics of every directory and of the volume are those of a recount:
/// the tree checker's, and what a program that walks a fresh mount counts.
#[track_caller]
pub fn statistics_are_exact(volume: &Volume) {
    let checked = volume.sluice(&["fsck", "--json", &volume.meta_url]);
    let checked: serde_json::Value = serde_json::from_str(&checked).expect("JSON");
    for name in ["Problems", "Statistics", "Young"] {
        assert_eq!(checked[name], serde_json::json!([]), "{name}");
    }
    let mount = volume.mount(&[]);
    let (said, counted) = said_and_counted(&mount);
    assert!(counted.inodes > 0, "an empty volume shows nothing");
    assert_eq!(said, counted, "statfs (left) and a recount (right)");
    mount.umount();
}
