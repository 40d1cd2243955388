//! Requests and answers in the words of the access log (`spec/surface.md` 6.2).
//!
//! Text is made only while somebody reads the log; otherwise a request costs one atomic load here.

use super::transport::{Answer, Changes, NewTime, Node, RangeLock, Request};
use crate::base::{Attr, Kind, Timestamp};
use std::fmt::Write;

/// Every name that [`operation`] answers.
pub const OPERATIONS: [&str; 34] = [
    "lookup",
    "getattr",
    "setattr",
    "readlink",
    "mknod",
    "mkdir",
    "symlink",
    "link",
    "unlink",
    "rmdir",
    "rename",
    "create",
    "open",
    "read",
    "write",
    "flush",
    "fsync",
    "release",
    "fallocate",
    "copy_file_range",
    "opendir",
    "readdir",
    "releasedir",
    "fsyncdir",
    "statfs",
    "access",
    "getxattr",
    "setxattr",
    "listxattr",
    "removexattr",
    "getlk",
    "setlk",
    "flock",
    "ioctl",
];

/// The operation's name, as in the access log and in metrics.
pub fn operation(request: &Request<'_>) -> &'static str {
    match request {
        Request::Lookup { .. } => "lookup",
        Request::GetAttr { .. } => "getattr",
        Request::SetAttr { .. } => "setattr",
        Request::ReadLink { .. } => "readlink",
        Request::MakeNode { .. } => "mknod",
        Request::MakeDir { .. } => "mkdir",
        Request::Symlink { .. } => "symlink",
        Request::Link { .. } => "link",
        Request::Unlink { .. } => "unlink",
        Request::RemoveDir { .. } => "rmdir",
        Request::Rename { .. } => "rename",
        Request::Create { .. } => "create",
        Request::Open { .. } => "open",
        Request::Read { .. } => "read",
        Request::Write { .. } => "write",
        Request::Flush { .. } => "flush",
        Request::Fsync { .. } => "fsync",
        Request::Release { .. } => "release",
        Request::Allocate { .. } => "fallocate",
        Request::CopyRange { .. } => "copy_file_range",
        Request::OpenDir { .. } => "opendir",
        Request::ReadDir { .. } => "readdir",
        Request::ReleaseDir { .. } => "releasedir",
        Request::FsyncDir { .. } => "fsyncdir",
        Request::StatFs { .. } => "statfs",
        Request::Access { .. } => "access",
        Request::GetXattr { .. } => "getxattr",
        Request::SetXattr { .. } => "setxattr",
        Request::ListXattr { .. } => "listxattr",
        Request::RemoveXattr { .. } => "removexattr",
        Request::GetLock { .. } => "getlk",
        Request::SetLock { .. } => "setlk",
        Request::Flock { .. } => "flock",
        Request::Ioctl { .. } => "ioctl",
    }
}

/// `(arguments)`.
pub fn arguments(request: &Request<'_>) -> String {
    match *request {
        Request::Lookup { parent, name } | Request::Unlink { parent, name } | Request::RemoveDir { parent, name } => {
            format!("({parent},{})", quoted(name))
        }
        Request::GetAttr { ino, .. } | Request::ReadLink { ino } | Request::OpenDir { ino, .. } => format!("({ino})"),
        Request::SetAttr { ino, handle, changes } => {
            let handle = handle.map_or(String::new(), |handle| format!("[{}]", handle.0));
            let (mask, list) = changed(&changes);
            format!("({ino}{handle},0x{mask:X},[{list}])")
        }
        Request::MakeNode { parent, name, mode, rdev, .. } => {
            let kind = Kind::from_format_bits(mode).unwrap_or(Kind::File);
            format!("({parent},{},{}:0{:04o},0x{rdev:X})", quoted(name), permissions(kind, mode), mode & 0o7777)
        }
        Request::MakeDir { parent, name, mode, .. } => {
            format!("({parent},{},{}:0{:04o})", quoted(name), permissions(Kind::Directory, mode), mode & 0o7777)
        }
        Request::Create { parent, name, mode, .. } => {
            format!("({parent},{},{}:0{:04o})", quoted(name), permissions(Kind::File, mode), mode & 0o7777)
        }
        Request::Symlink { parent, name, target } => format!("({parent},{},{})", quoted(name), quoted(target)),
        Request::Link { ino, parent, name } => format!("({ino},{parent},{})", quoted(name)),
        Request::Rename { parent, name, new_parent, new_name, flags } => {
            format!("({parent},{},{new_parent},{},{flags})", quoted(name), quoted(new_name))
        }
        Request::Open { ino, flags } => format!("({ino},0x{flags:X})"),
        Request::Read { ino, handle, offset, len } => format!("({ino},{len},{offset},{})", handle.0),
        Request::Write { ino, handle, offset, data } => format!("({ino},{},{offset},{})", data.len(), handle.0),
        Request::Flush { ino, handle, owner } => format!("({ino},{},{owner:016X})", handle.0),
        Request::Fsync { ino, datasync, .. } | Request::FsyncDir { ino, datasync, .. } => {
            format!("({ino},{})", u8::from(datasync))
        }
        Request::Release { ino, handle, .. } => format!("({ino},{})", handle.0),
        Request::Allocate { ino, mode, offset, len, .. } => format!("({ino},{mode},{offset},{len})"),
        Request::CopyRange { from, to, len, flags } => {
            format!("({},{},{},{},{len},{flags})", from.0, from.2, to.0, to.2)
        }
        Request::ReadDir { ino, offset, plus, .. } => format!("({ino},{offset},{})", u8::from(plus)),
        Request::ReleaseDir { ino, .. } | Request::StatFs { ino } => format!("({ino})"),
        Request::Access { ino, mask } => format!("({ino},0x{mask:X})"),
        Request::GetXattr { ino, name, size } => format!("({ino},{},{size})", quoted(name)),
        Request::SetXattr { ino, name, value, flags } => format!("({ino},{},{},{flags})", quoted(name), value.len()),
        Request::ListXattr { ino, size } => format!("({ino},{size})"),
        Request::RemoveXattr { ino, name } => format!("({ino},{})", quoted(name)),
        Request::GetLock { ino, handle, owner, lock } => {
            format!("({ino},{},{owner:016X},{},{},{})", handle.0, lock.start, lock.end, letter(&lock))
        }
        Request::SetLock { ino, handle, owner, lock, wait } => {
            let (start, end, kind, pid) = (lock.start, lock.end, letter(&lock), lock.pid);
            format!("({ino},{},{owner:016X},{start},{end},{kind},{wait},{pid})", handle.0)
        }
        Request::Flock { ino, handle, owner, kind, wait } => {
            let kind = match kind {
                libc::F_RDLCK => "LOCKSH",
                libc::F_WRLCK => "LOCKEX",
                _ => "UNLOCK",
            };
            format!("({ino},{},{owner:016X},{kind},{wait})", handle.0)
        }
        Request::Ioctl { ino, command, input, output_bytes, .. } => {
            format!("({ino},0x{command:X},0x0,{},{output_bytes})", input.len())
        }
    }
}

/// `: (result)`, ` [fh:n]`, or nothing.
pub fn result(answer: &Answer) -> String {
    match answer {
        Answer::Done | Answer::Locked(_) | Answer::NoNode(_) | Answer::Written(_) => String::new(),
        Answer::Node(node) | Answer::Attr(node) => format!(": {}", entry(node)),
        Answer::Created(node, opening) => format!(": {} [fh:{}]", entry(node), opening.handle.0),
        Answer::Opened(opening) => format!(" [fh:{}]", opening.handle.0),
        Answer::Target(target) => format!(": ({})", quoted(target)),
        Answer::Data(payload) => format!(": ({})", payload.len()),
        Answer::Listing(entries) => format!(": ({})", entries.len()),
        Answer::Space(space) => {
            let size = |blocks: u64| blocks * u64::from(space.block_bytes);
            let used = space.blocks.saturating_sub(space.blocks_free);
            let nodes = space.files.saturating_sub(space.files_free);
            format!(": ({},{},{nodes},{})", size(used), size(space.blocks_free), space.files_free)
        }
        Answer::Lock(lock) => format!(": ({},{},{},{})", lock.start, lock.end, letter(lock), lock.pid),
        Answer::Xattr(value) => format!(": ({})", value.len()),
        Answer::XattrSize(size) => format!(": ({size})"),
        Answer::Ioctl(output) => format!(": ({})", output.len()),
    }
}

/// `(inode,[type+perm:0octal,nlink,uid,gid,atime,mtime,ctime,length])`.
fn entry(node: &Node) -> String {
    let Attr { kind, mode, nlink, uid, gid, atime, mtime, ctime, length, .. } = node.attr;
    let shown = permissions(kind, mode.into());
    let bits = kind.format_bits() | u32::from(mode);
    let seconds = [atime, mtime, ctime].map(|time| time.seconds);
    format!(
        "({},[{shown}:0{bits:06o},{nlink},{uid},{gid},{},{},{},{length}])",
        node.ino, seconds[0], seconds[1], seconds[2]
    )
}

/// `-rw-r--r--`.
fn permissions(kind: Kind, mode: u32) -> String {
    let mut shown = String::with_capacity(10);
    shown.push(match kind {
        Kind::File => '-',
        Kind::Directory => 'd',
        Kind::Symlink => 'l',
        Kind::Fifo => 'p',
        Kind::BlockDevice => 'b',
        Kind::CharDevice => 'c',
        Kind::Socket => 's',
    });
    let special = [(0o4000, 's'), (0o2000, 's'), (0o1000, 't')];
    for (class, (bit, letter)) in special.into_iter().enumerate() {
        let shift = 6 - 3 * class;
        let executes = mode >> shift & 1 != 0;
        shown.push(if mode >> shift & 4 != 0 { 'r' } else { '-' });
        shown.push(if mode >> shift & 2 != 0 { 'w' } else { '-' });
        shown.push(match (mode & bit != 0, executes) {
            (true, true) => letter,
            (true, false) => letter.to_ascii_uppercase(),
            (false, true) => 'x',
            (false, false) => '-',
        });
    }
    shown
}

/// The kernel's mask of a setattr, and its parts by name.
fn changed(changes: &Changes) -> (u32, String) {
    let (mut mask, mut list) = (0, Vec::new());
    let mut note = |bit: u32, name: &str, value: Option<String>| {
        if let Some(value) = value {
            mask |= bit;
            list.push(format!("{name}={value}"));
        }
    };
    let time = |time: NewTime| match time {
        NewTime::Now => "now".to_owned(),
        NewTime::At(Timestamp { seconds, .. }) => seconds.to_string(),
    };
    note(1, "mode", changes.mode.map(|mode| format!("0{:o}", mode & 0o7777)));
    note(2, "uid", changes.uid.map(|uid| uid.to_string()));
    note(4, "gid", changes.gid.map(|gid| gid.to_string()));
    note(16, "atime", changes.atime.map(time));
    note(32, "mtime", changes.mtime.map(time));
    note(8, "size", changes.size.map(|size| size.to_string()));
    (mask, list.join(","))
}

fn letter(lock: &RangeLock) -> char {
    match lock.kind {
        libc::F_RDLCK => 'R',
        libc::F_WRLCK => 'W',
        _ => 'U',
    }
}

/// A name that cannot break the line: text as it is, anything else escaped.
fn quoted(name: &[u8]) -> String {
    let mut out = String::with_capacity(name.len());
    for chunk in name.utf8_chunks() {
        for c in chunk.valid().chars() {
            if c.is_control() || c == '"' || c == '\\' {
                out.extend(c.escape_default());
            } else {
                out.push(c);
            }
        }
        for byte in chunk.invalid() {
            let _ = write!(out, "\\x{byte:02x}");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Ino;
    use crate::fuse::transport::Belief;
    use crate::vfs::Handle;

    #[test]
    fn requests_read_as_the_log_has_them() {
        let read = Request::Read { ino: Ino(2051), handle: Handle(9), offset: 0, len: 4096 };
        assert_eq!((operation(&read), arguments(&read).as_str()), ("read", "(2051,4096,0,9)"));
        let made = Request::MakeDir { parent: Ino(1), name: "ä\n".as_bytes(), mode: 0o755, umask: 0 };
        assert_eq!(arguments(&made), "(1,ä\\n,drwxr-xr-x:00755)");
        let changes = Changes { mode: Some(0o100600), mtime: Some(NewTime::Now), ..Changes::default() };
        let set = Request::SetAttr { ino: Ino(5), handle: Some(Handle(7)), changes };
        assert_eq!(arguments(&set), "(5[7],0x21,[mode=0600,mtime=now])");
        assert_eq!(quoted(b"a\xffb"), "a\\xffb");
    }

    #[test]
    fn entries_show_type_and_bits() {
        let attr = Attr {
            flags: 0,
            kind: Kind::File,
            mode: 0o4644,
            uid: 1,
            gid: 2,
            atime: Timestamp::new(3, 0),
            mtime: Timestamp::new(4, 0),
            ctime: Timestamp::new(5, 0),
            nlink: 1,
            length: 6,
            rdev: 0,
            parent: Ino::ROOT,
            access_acl: 0,
            default_acl: 0,
            tier: 0,
        };
        let answer = Answer::Node(Node { ino: Ino(8), attr, belief: Belief::default() });
        assert_eq!(result(&answer), ": (8,[-rwSr--r--:0104644,1,1,2,3,4,5,6])");
    }
}
