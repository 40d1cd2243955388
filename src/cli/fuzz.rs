//! Harnesses of what is typed and of what is shown (`crate::fuzzing`): command lines, the words of mount(8), the tables
//! of file systems and of mounts, what a mount answers, sessions in `status`.

use super::{Cli, args, control, fstab, helper, info, status, umount};
use crate::base::SessionId;
use crate::base::fault::one_line;
use crate::fuzzing::sentence;
use crate::meta::session::SessionEntry;
use clap::{Command, CommandFactory, FromArgMatches};
use std::cell::RefCell;
use std::ffi::OsString;
use std::os::unix::ffi::OsStringExt;
use std::path::Path;

/// Words end in a NUL.
fn words(data: &[u8]) -> Vec<OsString> {
    // The kernel takes more; a parser that takes quadratic time shows here all the same.
    data.split(|byte| *byte == 0).take(400).map(|word| OsString::from_vec(word.to_vec())).collect()
}

fn lines(lines: &[&str]) -> Vec<Vec<u8>> {
    lines.iter().map(|line| line.replace(' ', "\0").into_bytes()).collect()
}

pub fn command_lines() -> Vec<Vec<u8>> {
    lines(&[
        "mount -d --subdir x redis://h /mnt -v --cache-size=1024 -o allow_other,ro",
        "-q format sqlite3://meta.db --trash-days 7 vol -bucket objects --compress lz4 --block-size 4M",
        "mount a b --writeback=false --upload-hours=22-6 --attr-cache 1m --custom-labels a:b;c:d --root-squash 1:2",
        "config sqlite3://meta.db -y --capacity 10 --secret-key hunter2hunter2",
        "status redis://:hunter2hunter2@h/1 --session 4 --more",
        "info . -r -- -x",
        "umount -f /mnt --flush",
        "destroy --yes m 1234",
        "--log-level=warn version",
        "mount --subidr x",
    ])
}

thread_local! {
    static ROOT: RefCell<Command> = RefCell::new({
        let mut root = Cli::command();
        root.build();
        root
    });
}

pub fn command_line(data: &[u8]) {
    ROOT.with_borrow_mut(|root| {
        let prepared = match args::prepare(root, words(data)) {
            Ok(prepared) => prepared,
            Err(usage) => {
                if data.len() < 150 {
                    sentence(&one_line(&usage.to_string()));
                }
                return;
            }
        };
        if let Ok(mut matches) = root.try_get_matches_from_mut(prepared) {
            // Values were judged already; putting them together must not fail in another way.
            let _ = Cli::from_arg_matches_mut(&mut matches);
        }
    });
    let text = String::from_utf8_lossy(data);
    let masked = args::mask(&text);
    assert!(masked == text || masked.contains("****"));
}

pub fn mount_helper_lines() -> Vec<Vec<u8>> {
    lines(&[
        "redis://h/1 /mnt -o rw,_netdev,nofail,cache-size=1024,writeback,attrcacheto=2,allow_other,debug,x=y",
        "h /mnt -n -o ro,log-level=warn -s -v",
        "h /mnt -o cache-size",
        "h /mnt -o",
    ])
}

pub fn mount_helper(data: &[u8]) {
    match helper::translate(&words(data)) {
        Ok(words) => assert!(words.iter().any(|word| word == "--")),
        Err(error) if data.len() < 150 => drop(sentence(&one_line(&format!("{error:#}")))),
        Err(_) => {}
    }
}

pub fn tables() -> Vec<Vec<u8>> {
    let table = "# comment\nUUID=1 / ext4 defaults 0 1\nredis://h/1  /mnt/a\\040b  juicefs  _netdev,x  0 0\n";
    vec![table.into(), b"\n\n".to_vec(), b"a b".to_vec()]
}

/// Whatever the table holds, its other lines stay and ours is there once.
pub fn fstab(data: &[u8]) {
    let Ok(table) = std::str::from_utf8(data) else { return };
    let (source, target) = ("redis://h/1", Path::new("/mnt/a b"));
    let line = fstab::entry(source, target, &["x=y".into()], &[]);
    let once = fstab::replaced(table, source, target, &line);
    assert_eq!(once.lines().filter(|other| *other == line).count(), 1);
    assert_eq!(fstab::replaced(&once, source, target, &line), once);
    // A line is one line, whatever is mounted where.
    let hostile = fstab::entry(table, Path::new(table), &[], &[]);
    assert!(!hostile.contains('\n'), "{hostile:?}");
}

/// Inputs are the length of the pieces in which an answer comes, then the answer.
pub fn control_answers() -> Vec<Vec<u8>> {
    let progress = [&[0xFEu8][..], &7u64.to_be_bytes(), &9u64.to_be_bytes()].concat();
    let data = |json: &[u8]| [&[0xFFu8][..], &(json.len() as u32).to_be_bytes(), json].concat();
    let info = data(
        br#"{"Ino":5,"Failed":false,"Summary":{"Length":5,"Size":4096,"Files":1,"Dirs":0},"Paths":["/f"],"Chunks":null,
        "Objects":[{"ChunkIndex":1,"Key":"k","Size":1,"Off":0,"Len":1}],"FLocks":[{"Sid":1,"Owner":2,"Type":"W"}]}"#,
    );
    vec![
        [&[5u8][..], &progress, &progress, &[0]].concat(),
        [&[200u8][..], &progress, &[2]].concat(),
        [&[9u8][..], &info].concat(),
        [&[1u8][..], &data(b"{}")].concat(),
    ]
}

/// Whatever lies where the control file of a mount would be.
pub fn control_answer(data: &[u8]) {
    let Some((piece, rest)) = data.split_first() else { return };
    let mut pieces = rest.chunks(usize::from(*piece).max(1));
    let mut read = || pieces.next().map(<[u8]>::to_vec).ok_or_else(|| anyhow::anyhow!("no more"));
    match control::answer(&mut read, |_, _| ()) {
        Ok(control::Answer::Data(json)) => {
            for raw in [false, true] {
                if let Ok(shown) = info::shown(&json, raw) {
                    assert!(shown.starts_with("  inode: "), "{shown}");
                }
            }
        }
        Ok(control::Answer::Done | control::Answer::Errno(_)) => {}
        Err(error) => drop(sentence(&error)),
    }
}

pub fn mount_tables() -> Vec<Vec<u8>> {
    let lines = "22 28 0:20 / /sys rw,nosuid shared:7 - sysfs sysfs rw\n\
        36 35 98:0 / /mnt/a\\040b\\012c rw - fuse.juicefs JuiceFS:vol rw,user_id=0\n";
    vec![lines.into(), b" - ".to_vec(), b"1 2 3 4 \\+12 - \\777 \\".to_vec()]
}

pub fn mount_table(data: &[u8]) {
    for line in String::from_utf8_lossy(data).lines() {
        if let Some(mount) = umount::parse_mount(line) {
            // What is escaped is not longer than what it was written as, even where it is no text.
            assert!(mount.source.len() + mount.point.as_os_str().len() <= 3 * line.len());
        }
    }
}

/// A session as `status` shows it.
pub fn session(expire: i64, info: &[u8]) {
    let entry = SessionEntry { sid: SessionId(1), expire, info: serde_json::from_slice(info).ok() };
    let shown = status::described(&entry);
    assert!(shown["Expire"].is_string());
}
