//! A volume with a record of every kind, and all that can be asked of it: what the tests of damage have in common.

use super::{dir, name, put};
use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Errno, Ino, Kind, Outcome, SessionId, Slice, SliceId, Stop, Timestamp};
use crate::config::volume::{Access, VolumeFormat};
use crate::fuzzing::sentence;
use crate::meta::engine::Scan;
use crate::meta::ops::acl::{self, AclKind};
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::create::NewNode;
use crate::meta::ops::plock::LockKind;
use crate::meta::ops::rename::RenameMode;
use crate::meta::ops::xattr::XattrMode;
use crate::meta::record::{DirStat, Key, PlockRange, Quota, QuotaOwner, Record, Session};
use crate::meta::session::SessionInfo;
use crate::meta::{Caller, Meta};
use crate::util::task::stop_signal;
use bytes::Bytes;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;
use tokio::time::Instant;

/// Operations that meet a fault of the kind that passes try for ten seconds; damage does not pass.
const SOON: Duration = Duration::from_secs(6);

pub struct Volume {
    pub dir: Ino,
    pub file: Ino,
    pub link: Ino,
    pub symlink: Ino,
    pub sid: SessionId,
}

fn slice(pos: u32, id: u64, len: u32) -> Slice {
    Slice { pos, id: SliceId(id), size: len, off: 0, len }
}

const FORMAT: &[u8] =
    br#"{"Name":"vol","UUID":"58e59682-7faf-4d9f-a900-6d35c920d84b","Storage":"file","Tiers":{},"Bucket":"/b/",
    "BlockSize":4096,"Compression":"none","TrashDays":1,"MetaVersion":1,"MinClientVersion":"1.1.0-A","DirStats":true}"#;

/// A volume with a record of every kind.
pub async fn make(meta: &Meta) -> Volume {
    let root = Caller::root();
    meta.format(FORMAT).await.unwrap();
    let info = SessionInfo { host_name: "host".into(), mount_point: "/mnt".into(), ..SessionInfo::default() };
    let sid = meta.start_session(info, Duration::from_secs(12)).await.unwrap();
    let dir = dir(meta, Ino::ROOT, "dir").await;
    let node = |kind, target: Option<&'static [u8]>| {
        let target = target.map(Bytes::from_static);
        NewNode { kind, mode: 0o644, umask: 0, rdev: 0, target }
    };
    let make = async |text: &str, node: NewNode| meta.create(&root, dir, &name(text), &node).await.unwrap().ino;
    let file = make("file", node(Kind::File, None)).await;
    let link = make("link", node(Kind::File, None)).await;
    let symlink = make("symlink", node(Kind::Symlink, Some(b"target"))).await;
    let gone = make("gone", node(Kind::File, None)).await;
    let deleted = make("deleted", node(Kind::File, None)).await;
    meta.link(&root, link, Ino::ROOT, &name("second")).await.unwrap();
    for (pos, id) in [(0, 1), (50, 2)] {
        meta.append_slice(file, ChunkIndex(0), slice(pos, id, 100), Timestamp::new(5, 6)).await.unwrap();
    }
    meta.append_slice(deleted, ChunkIndex(0), slice(0, 3, 100), Timestamp::new(5, 6)).await.unwrap();
    meta.set_xattr(&root, file, b"user.a", b"value", XattrMode::Set).await.unwrap();
    let rule = AclRule { owner: 6, group: 4, mask: 6, other: 0, users: vec![(1000, 7)], groups: vec![(20, 4)] };
    meta.set_acl(&root, dir, AclKind::Default, &acl::format(&rule)).await.unwrap();
    meta.set_acl(&root, file, AclKind::Access, &acl::format(&rule)).await.unwrap();
    meta.set_plock(file, 0xD9D0_B0A1_C2D3_E4F5, LockKind::Write, 0, 9, 7, false).await.unwrap();
    meta.flock(file, 0x19D0_B0A1_C2D3_E4F5, LockKind::Read, false).await.unwrap();
    meta.open_file(gone);
    meta.unlink(&root, dir, &name("gone"), true).await.unwrap();
    meta.unlink(&root, dir, &name("deleted"), true).await.unwrap();
    let quota = Quota { max_space: 1 << 40, max_inodes: 1000, used_space: 4096, used_inodes: 1 };
    for owner in [QuotaOwner::Directory(dir), QuotaOwner::User(1000), QuotaOwner::Group(20)] {
        put(meta, Key::Quota(owner), Record::Quota(quota)).await;
    }
    put(meta, Key::DirStat(Ino::ROOT), Record::DirStat(DirStat { length: 1, space: 4096, inodes: 3 })).await;
    put(meta, Key::SliceRef(SliceId(2), 100), Record::Number(2)).await;
    put(meta, Key::DelayedSlices(SliceId(9), 1_700_000_000), Record::Slices(vec![slice(0, 8, 100)])).await;
    let stale = Session { expire: 5, info: Bytes::from_static(b"{}") };
    put(meta, Key::Session(SessionId(77)), Record::Session(stale)).await;
    Volume { dir, file, link, symlink, sid }
}

/// One operation: it ends soon, with a value or with a reason in one sentence.
pub async fn asked<T>(what: &str, told: &str, operation: impl Future<Output = Outcome<T>>) -> Option<T> {
    let started = Instant::now();
    let ended = tokio::time::timeout(Duration::from_secs(60), operation).await;
    assert!(ended.is_ok() && started.elapsed() < SOON, "{what} took {:?} after {told}", started.elapsed());
    match ended.expect("it ended") {
        Ok(value) => Some(value),
        Err(Stop::Errno(_)) => None,
        Err(stop @ Stop::Fault(_)) => {
            assert!(matches!(stop.errno(), Errno::EIO | Errno::EOPNOTSUPP), "{what} after {told}: {stop}");
            sentence(&stop);
            None
        }
    }
}

pub async fn read_setting(meta: &Meta, told: &str) {
    if let Some(Some(setting)) = asked("setting", told, meta.setting()).await {
        match VolumeFormat::from_json(&setting).and_then(|format| format.admit(Access::Write)) {
            Ok(()) => {}
            Err(error) => drop(sentence(&error)),
        }
    }
}

pub async fn read_sessions(meta: &Meta, volume: &Volume, told: &str) {
    asked("sessions", told, meta.sessions()).await;
    asked("session_detail", told, meta.session_detail(volume.sid)).await;
}

pub async fn read_everything(meta: &Meta, volume: &Volume, told: &str) {
    let root = Caller::root();
    let someone = Caller { uid: 1000, gid: 20, groups: Arc::new([20]), pid: 1, check: true };
    let Volume { dir, file, link, symlink, sid } = *volume;
    for ino in [Ino::ROOT, dir, file, link, symlink] {
        let attr = asked("getattr", told, meta.getattr(ino)).await;
        let _ = attr.as_ref().map(Attr::space);
        asked("statfs", told, meta.statfs(ino)).await;
        asked("list_xattr", told, meta.list_xattr(ino)).await;
        asked("get_acl", told, meta.get_acl(ino, AclKind::Access)).await;
        asked("get_acl", told, meta.get_acl(ino, AclKind::Default)).await;
        asked("list", told, meta.list(ino, None, 100)).await;
        asked("list_names", told, meta.list_names(ino, None, 100)).await;
        asked("paths_of", told, meta.paths_of(ino)).await;
        asked("check_open", told, meta.check_open(&someone, ino, libc::O_RDWR)).await;
    }
    for (parent, text) in
        [(Ino::ROOT, "dir"), (Ino::ROOT, "second"), (dir, "file"), (dir, "link"), (dir, "symlink"), (dir, "none")]
    {
        asked("lookup", told, meta.lookup(&root, parent, &name(text))).await;
        asked("lookup", told, meta.lookup(&someone, parent, &name(text))).await;
    }
    asked("readlink", told, meta.readlink(symlink)).await;
    asked("get_xattr", told, meta.get_xattr(&root, file, b"user.a")).await;
    let chunks = asked("read_chunks", told, meta.read_chunks(file, ChunkIndex(0)..ChunkIndex(3))).await;
    for (_, slices) in chunks.into_iter().flatten() {
        crate::base::slice::resolve(&slices);
        crate::meta::ops::compact::plan_compaction(&slices);
    }
    let wanted = PlockRange { exclusive: true, pid: 1, start: 0, end: u64::MAX };
    asked("get_plock", told, meta.get_plock(file, 1, wanted)).await;
    asked("summary", told, meta.summary(Ino::ROOT, &|| false)).await;
    asked("refresh_usage", told, meta.refresh_usage()).await;
    read_sessions(meta, volume, told).await;
    read_setting(meta, told).await;
    let checked = asked("check", told, crate::meta::check::check(&**meta.engine())).await;
    let report = checked.unwrap_or_else(|| panic!("there is no report after {told}"));
    report.findings.iter().for_each(|finding| drop(sentence(finding)));
    for scan in [
        Scan::AllDentries,
        Scan::Attrs,
        Scan::Chunks,
        Scan::ChunksOf(file),
        Scan::SliceRefs,
        Scan::Sustained(sid),
        Scan::DeletedFiles,
        Scan::DelayedSlices,
        Scan::DirStats,
        Scan::Quotas,
        Scan::AclRules,
        Scan::LocksOf(sid),
        Scan::AllLocks,
        Scan::AllXattrs,
        Scan::AllLinkParents,
    ] {
        let page = async { crate::meta::outside(meta.engine().scan(&scan, None, 100).await) };
        asked(&format!("{scan:?}"), told, page).await;
    }
}

pub async fn write_everything(meta: &Meta, volume: &Volume, told: &str) {
    let root = Caller::root();
    let Volume { dir, file, link, sid, .. } = *volume;
    let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
    asked("create", told, meta.create(&root, dir, &name("new"), &node)).await;
    let written = slice(20, 11, 100);
    asked("append_slice", told, meta.append_slice(file, ChunkIndex(0), written, Timestamp::new(9, 9))).await;
    asked("append_slice", told, meta.append_slice(link, ChunkIndex(0), slice(0, 12, 9), Timestamp::new(9, 9))).await;
    asked("copy_range", told, meta.copy_range(&root, file, 0, link, 5, 100)).await;
    asked("truncate", told, meta.truncate(&root, file, 10, true)).await;
    asked("set_xattr", told, meta.set_xattr(&root, file, b"user.b", b"v", XattrMode::Set)).await;
    asked("remove_xattr", told, meta.remove_xattr(&root, file, b"user.a")).await;
    let set = SetAttr { mode: Some(0o600), ..SetAttr::default() };
    asked("setattr", told, meta.setattr(&root, file, &set)).await;
    asked("set_plock", told, meta.set_plock(file, 5, LockKind::Read, 20, 29, 1, false)).await;
    asked("set_plock", told, meta.set_plock(file, 0xD9D0_B0A1_C2D3_E4F5, LockKind::Unlock, 0, 5, 7, false)).await;
    asked("flock", told, meta.flock(file, 6, LockKind::Read, false)).await;
    asked("link", told, meta.link(&root, file, Ino::ROOT, &name("third"))).await;
    asked("unlink", told, meta.unlink(&root, Ino::ROOT, &name("second"), true)).await;
    let (link_name, moved) = (name("link"), name("moved"));
    asked("rename", told, meta.rename(&root, dir, &link_name, Ino::ROOT, &moved, RenameMode::Replace)).await;
    asked("unlink", told, meta.unlink(&root, dir, &name("file"), true)).await;
    asked("rmdir", told, meta.rmdir(&root, Ino::ROOT, &name("dir"), true)).await;
    let (_stopper, stop) = stop_signal();
    asked("clean_stale_sessions", told, meta.clean_stale_sessions(Duration::ZERO, &stop)).await;
    asked("clean_session", told, meta.clean_session(sid)).await;
    asked("remove_tree", told, meta.remove_tree(&root, Ino::ROOT, &name("dir"), true, 2, &|_| ())).await;
}
