//! Against real servers: the shared suite, the stored bytes, the trips, and what happens when many want the same key or
//! a server goes away.

use super::etcd::{self, EtcdOptions};
use super::{Kv, KvEngine};
use crate::base::acl::AclRule;
use crate::base::{
    Attr, AttrPatch, ChunkIndex, Errno, FaultKind, Ino, Kind, Name, SessionId, Slice, SliceId, Timestamp,
};
use crate::meta::engine::suite::{Opened, engine_suite};
use crate::meta::engine::{Batch, Change, Committed, Engine, EngineError, EngineResult, Guard, Scan};
use crate::meta::record::{Counter, Dentry, DirStat, Key, PlockRange, Quota, QuotaOwner, Record, Session};
use crate::meta::testing::{program, skip};
use bytes::Bytes;
use sluice_test_servers::etcd::Etcd;
use std::process::Command;
use std::sync::Arc;

/// Where a meta URL of the test servers leads.
pub fn etcd_options(url: &str) -> EtcdOptions {
    let (hosts, path) = url.strip_prefix("etcd://").and_then(|rest| rest.split_once('/')).expect("an etcd URL");
    let member = |host: &str| {
        let (host, port) = host.rsplit_once(':').expect("host:port");
        (host.to_owned(), port.parse().expect("a port"))
    };
    EtcdOptions { members: hosts.split(',').map(member).collect(), path: path.to_owned(), user: None, tls: None }
}

/// The meta URL of a fresh prefix; `None`: announced as skipped.
fn fresh() -> Option<String> {
    if program("etcd").is_none() {
        skip("etcd is not installed");
        return None;
    }
    Some(Etcd::shared().next_url())
}

async fn engine(url: &str) -> KvEngine {
    etcd::open(&etcd_options(url)).await.expect("the server of the tests")
}

mod on_etcd {
    use super::*;

    async fn open() -> Option<Opened> {
        let engine = Arc::new(engine(&fresh()?).await);
        Some(Opened { engine, derives_link_parents: false, keep: Box::new(()) })
    }

    engine_suite!(open);
}

pub mod on_tikv {
    use super::super::tikv::{self, TikvOptions};
    use super::*;
    use crate::meta::testing::{next_tikv_path, tikv_server};
    use sluice_test_tikv::{Calls, Fault, Plan, Rpc, TestTikv};

    pub fn options(server: &TestTikv, path: &str) -> TikvOptions {
        TikvOptions { members: vec![server.pd_address()], path: path.to_owned(), tls: None, gc_interval: None }
    }

    async fn engine(server: &TestTikv, path: &str) -> KvEngine {
        tikv::open(&options(server, path)).await.expect("the server of the tests")
    }

    async fn open() -> Option<Opened> {
        let engine = Arc::new(engine(tikv_server(), &next_tikv_path()).await);
        Some(Opened { engine, derives_link_parents: false, keep: Box::new(()) })
    }

    engine_suite!(open);

    #[tokio::test]
    async fn records_have_the_layout_of_the_format() {
        has_the_layout_of_the_format(&engine(tikv_server(), &next_tikv_path()).await).await;
    }

    #[tokio::test]
    async fn a_long_directory_is_listed_whole() {
        let inside: [&[u8]; 2] = [b"v\xfdA\x02\0\0\0\0\0\0\0D2", b"v\xfdA\x02\0\0\0\0\0\0\0D3"];
        let server = TestTikv::start_split(&inside);
        long_directories_are_listed_whole(&engine(&server, "v").await).await;
    }

    #[tokio::test]
    async fn the_prefix_is_the_path_without_its_slash() {
        let server = TestTikv::start();
        for path in ["vol", "/vol", "a/b"] {
            let engine = engine(&server, path).await;
            commit(&engine, vec![], vec![put(Key::Setting, Record::Bytes(Bytes::from("{}")))]).await.unwrap();
        }
        let keys: Vec<Vec<u8>> = server.dump_latest().into_keys().collect();
        assert_eq!(keys, [b"a/b\xfdsetting".to_vec(), b"vol\xfdsetting".to_vec()]);
    }

    /// Appends to one list; each is there once, and if it was said to be, it is.
    async fn append_all(engine: &KvEngine, ino: Ino, count: u64) -> u64 {
        let (mut sure, mut unsure) = (Vec::new(), Vec::new());
        for id in 1..=count {
            let append = Change::Append { ino, index: ChunkIndex(0), slices: vec![slice(id)], only_existing: false };
            let name = Key::Dentry(ino, Name::stored(format!("{id}").into_bytes()));
            let entry = put(name, Record::Dentry(Dentry { kind: Kind::File, ino: Ino(id) }));
            match commit(engine, vec![], vec![append, entry]).await {
                Ok(_) => sure.push(id),
                Err(EngineError::Undetermined(_)) => unsure.push(id),
                Err(error) => panic!("{error:?}"),
            }
        }
        let list = engine.read(&[Key::Chunk(ino, ChunkIndex(0))]).await.unwrap().pop().flatten();
        let Some(Record::Slices(list)) = list else { panic!("{list:?}") };
        let ids: Vec<u64> = list.iter().map(|slice| slice.id.0).collect();
        let mut once = ids.clone();
        once.dedup();
        assert_eq!(once, ids, "applied twice");
        assert!(sure.iter().all(|id| ids.contains(id)), "{sure:?} {ids:?}");
        assert!(ids.iter().all(|id| sure.contains(id) || unsure.contains(id)), "{ids:?}");
        let names = engine.scan(&Scan::Dentries(ino), None, 1000).await.unwrap().rows.len();
        assert_eq!(names, ids.len(), "half of a commit");
        unsure.len() as u64
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_commit_without_an_answer_is_looked_at() {
        let server = TestTikv::start();
        let engine = engine(&server, "v").await;
        for (number, rpc) in [Rpc::Prewrite, Rpc::Commit].into_iter().enumerate() {
            for (other, fault) in
                [Fault::FailBefore, Fault::FailAfter, Fault::CutBefore, Fault::CutAfter].into_iter().enumerate()
            {
                let ino = Ino((10 * number + other) as u64 + 2);
                let injected = server.inject(Plan::once(rpc, fault).after(1));
                let unsure = append_all(&engine, ino, 3).await;
                assert!(injected.hits() > 0, "{rpc:?} {fault:?}");
                assert_eq!(unsure, 0, "{rpc:?} {fault:?}");
            }
        }
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn regions_split_and_move_and_answers_are_lost() {
        let server = TestTikv::start_split(&[b"v\xfdA\x02", b"v\xfdA\x03", b"v\xfdS"]);
        let engine = engine(&server, "v").await;
        let plans = [
            Plan::always(Calls::Kv, Fault::EpochNotMatch).every(23),
            Plan::always(Calls::Kv, Fault::NotLeader).every(31).after(3),
            Plan::always(Calls::Kv, Fault::RegionNotFound).every(37).after(5),
            Plan::always(Calls::Kv, Fault::ServerIsBusy).every(41).after(7),
            Plan::always(Rpc::Prewrite, Fault::Split).every(19),
            Plan::always(Rpc::Commit, Fault::CutAfter).every(13),
            Plan::always(Rpc::Prewrite, Fault::CutAfter).every(17),
            Plan::always(Calls::Kv, Fault::FailAfter).every(43),
        ];
        let injected: Vec<_> = plans.into_iter().map(|plan| server.inject(plan)).collect();
        let tasks = (0..3u64).map(|task| {
            let engine = engine.clone();
            tokio::spawn(async move { append_all(&engine, Ino(2 + task), 25).await })
        });
        for task in futures::future::join_all(tasks).await {
            let unsure = task.unwrap();
            assert!(unsure < 5, "{unsure} of 25");
        }
        assert!(injected.iter().filter(|injected| injected.hits() > 0).count() > 5);
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn requests_outlive_a_short_outage() {
        let server = TestTikv::start();
        let engine = engine(&server, "v").await;
        append_all(&engine, Ino(2), 2).await;
        server.go_down();
        let reading = {
            let engine = engine.clone();
            tokio::spawn(async move { engine.read(&[Key::Chunk(Ino(2), ChunkIndex(0))]).await })
        };
        let writing = {
            let engine = engine.clone();
            tokio::spawn(async move { append_all(&engine, Ino(3), 2).await })
        };
        tokio::time::sleep(std::time::Duration::from_secs(2)).await;
        server.come_up();
        assert!(reading.await.unwrap().unwrap()[0].is_some());
        assert_eq!(writing.await.unwrap(), 0);
    }

    #[tokio::test]
    async fn a_cluster_that_is_not_there_is_unavailable_in_time() {
        let started = std::time::Instant::now();
        let options = TikvOptions {
            members: vec![format!("127.0.0.1:{}", sluice_test_servers::free_port())],
            path: "v".to_owned(),
            tls: None,
            gc_interval: None,
        };
        let Err(EngineError::Fault(fault)) = tikv::open(&options).await.map(drop) else { panic!("nobody is there") };
        assert!(matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Timeout), "{fault}");
        assert!(started.elapsed() < std::time::Duration::from_secs(10));
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn many_create_in_one_directory() {
        let path = next_tikv_path();
        siblings_are_all_made([engine(tikv_server(), &path).await, engine(tikv_server(), &path).await], 4).await;
    }

    #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
    async fn a_directory_is_removed_or_filled() {
        let path = next_tikv_path();
        let (here, there) = (engine(tikv_server(), &path).await, engine(tikv_server(), &path).await);
        emptiness_is_decided_once(&here, &there).await;
    }
}

async fn commit(engine: &KvEngine, guards: Vec<Guard>, changes: Vec<Change>) -> EngineResult<Committed> {
    engine.begin(&[]).await?.0.commit(Batch { guards, changes }).await
}

fn directory() -> Attr {
    let time = |n: u64| Timestamp::new(0x0102_0304_0506_0708 + n as i64, 0x0A0B_0C0D);
    Attr {
        flags: 0,
        kind: Kind::Directory,
        mode: 0o777,
        uid: 0,
        gid: 0,
        atime: time(0),
        mtime: time(0),
        ctime: time(0),
        nlink: 2,
        length: 4096,
        rdev: 0,
        parent: Ino::ROOT,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

fn put(key: Key, record: Record) -> Change {
    Change::Put(key, record)
}

fn slice(id: u64) -> Slice {
    Slice { pos: 1, id: SliceId(id), size: 3, off: 4, len: 5 }
}

/// Every key under the prefix, and its value.
async fn stored(engine: &KvEngine) -> Vec<(Vec<u8>, Vec<u8>)> {
    let rows = engine.0.kv.scan(&[], &[0xFF], 10_000).await.expect("scan");
    rows.into_iter().map(|(key, value)| (key, value.to_vec())).collect()
}

/// The layout of the format, byte for byte, whatever the back end.
async fn has_the_layout_of_the_format(engine: &KvEngine) {
    let ino = Ino(0x0102);
    let sid = SessionId(1);
    let wide = 0xD9D0_B0A1_C2D3_E4F5;
    let quota = Quota { max_space: 1, max_inodes: -1, used_space: 4096, used_inodes: 3 };
    let rule = AclRule { owner: 7, group: 5, mask: 4, other: 0, users: vec![(1000, 6)], groups: vec![] };
    let ranges = vec![PlockRange { exclusive: true, pid: 4980, start: 50, end: 149 }];
    let delayed = Slice { pos: 0, id: SliceId(5), size: 9, off: 0, len: 9 };
    let changes = vec![
        put(Key::Setting, Record::Bytes(Bytes::from("{}"))),
        put(Key::Attr(ino), Record::Attr(Attr { access_acl: 1, tier: 2, ..directory() })),
        put(Key::Dentry(Ino(1), Name::stored(*b"n\xff")), Record::Dentry(Dentry { kind: Kind::Directory, ino })),
        put(Key::Symlink(Ino(3)), Record::Bytes(Bytes::from("../x"))),
        put(Key::Xattr(ino, Name::stored(*b"user.a")), Record::Bytes(Bytes::from("v"))),
        put(Key::Chunk(ino, ChunkIndex(7)), Record::Slices(vec![slice(2)])),
        Change::Append { ino, index: ChunkIndex(7), slices: vec![Slice::hole(0, 9)], only_existing: true },
        put(Key::SliceRef(SliceId(2), 3), Record::Number(3)),
        put(Key::SliceRef(SliceId(9), 3), Record::Number(1)),
        put(Key::AclRule(1), Record::AclRule(rule)),
        put(Key::DirStat(ino), Record::DirStat(DirStat { length: 1, space: 4096, inodes: 2 })),
        put(Key::Quota(QuotaOwner::Directory(ino)), Record::Quota(quota)),
        put(Key::Quota(QuotaOwner::User(7)), Record::Quota(quota)),
        put(Key::Quota(QuotaOwner::Group(8)), Record::Quota(quota)),
        put(Key::Session(sid), Record::Session(Session { expire: 1_700_000_000, info: Bytes::from("{}") })),
        put(Key::Sustained(sid, ino), Record::Number(1)),
        put(Key::DeletedFile(ino, 9), Record::Number(1_700_000_001)),
        put(Key::DelayedSlices(SliceId(8), 1_700_000_002), Record::Slices(vec![delayed])),
        Change::AddLinkParent { ino, parent: Ino(1), delta: 1 },
        Change::SetFlock { ino, session: sid, owner: wide, exclusive: Some(true), last: false },
        Change::SetFlock { ino, session: sid, owner: 1, exclusive: Some(false), last: false },
        Change::SetPlock { ino, session: sid, owner: wide, ranges, last: false },
        Change::AddCounter(Counter::UsedSpace, 4096),
        Change::AddCounter(Counter::TotalInodes, 1),
        put(Key::Counter(Counter::LastCleanupSlices), Record::Number(5)),
    ];
    engine.prepare().await.unwrap();
    commit(engine, vec![], changes).await.unwrap();
    engine.sync().await.unwrap();
    for (counter, count, first) in [
        (Counter::NextInode, 1024, 2),
        (Counter::NextSlice, 4096, 1),
        (Counter::NextSession, 1, 1),
        (Counter::NextTrash, 1, 1),
    ] {
        assert_eq!(engine.allocate(counter, count).await.unwrap(), first);
    }

    let mut attr = vec![0u8, 0x21, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    attr.extend([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13].repeat(3));
    attr.extend([0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    attr.extend([0, 0, 0, 1, 0, 0, 0, 0, 2, 0]);
    let record = b"\0\0\0\x01\0\0\0\0\0\0\0\x02\0\0\0\x03\0\0\0\x04\0\0\0\x05";
    let quota = b"\0\0\0\0\0\0\0\x01\xff\xff\xff\xff\xff\xff\xff\xff\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x03";
    let flocks = b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\0\x01R\0\0\0\0\0\0\0\x01\xd9\xd0\xb0\xa1\xc2\xd3\xe4\xf5W";
    let plocks = b"\0\0\0\0\0\0\0\x01\xd9\xd0\xb0\xa1\xc2\xd3\xe4\xf5\0\0\0\x18\
        \0\0\0\x01\0\0\x13\x74\0\0\0\0\0\0\0\x32\0\0\0\0\0\0\0\x95";
    let rule = b"\0\x07\0\x05\0\x04\0\0\0\0\0\x01\0\0\x03\xe8\0\x06\0\0\0\0";
    let expected: Vec<(&[u8], Vec<u8>)> = vec![
        (b"A\x01\0\0\0\0\0\0\0Dn\xff", b"\x02\0\0\0\0\0\0\x01\x02".to_vec()),
        (b"A\x02\x01\0\0\0\0\0\0C\0\0\0\x07", [&record[..], &Slice::hole(0, 9).encode()].concat()),
        (b"A\x02\x01\0\0\0\0\0\0I", attr),
        (b"A\x02\x01\0\0\0\0\0\0P\x01\0\0\0\0\0\0\0", b"\x01\0\0\0\0\0\0\0".to_vec()),
        (b"A\x02\x01\0\0\0\0\0\0Xuser.a", b"v".to_vec()),
        (b"A\x03\0\0\0\0\0\0\0S", b"../x".to_vec()),
        (b"CnextChunk", b"\x01\x10\0\0\0\0\0\0".to_vec()),
        (b"CnextCleanupSlices", b"\0\0\0\0\0\0\0\x05".to_vec()),
        (b"CnextInode", b"\x02\x04\0\0\0\0\0\0".to_vec()),
        (b"CnextSession", b"\x01\0\0\0\0\0\0\0".to_vec()),
        (b"CnextTrash", b"\x01\0\0\0\0\0\0\0".to_vec()),
        (b"CtotalInodes", b"\x01\0\0\0\0\0\0\0".to_vec()),
        (b"CusedSpace", b"\0\x10\0\0\0\0\0\0".to_vec()),
        (b"D\x02\x01\0\0\0\0\0\0\0\0\0\0\0\0\0\x09", b"\0\0\0\0\x65\x53\xf1\x01".to_vec()),
        (b"F\x02\x01\0\0\0\0\0\0", flocks.to_vec()),
        (b"K\0\0\0\0\0\0\0\x02\0\0\0\x03", b"\x02\0\0\0\0\0\0\0".to_vec()),
        (b"L\0\0\0\0\x65\x53\xf1\x02\0\0\0\0\0\0\0\x08", b"\0\0\0\0\0\0\0\x05\0\0\0\x09".to_vec()),
        (b"P\x02\x01\0\0\0\0\0\0", plocks.to_vec()),
        (b"QD\x02\x01\0\0\0\0\0\0", quota.to_vec()),
        (b"QG\0\0\0\0\0\0\0\x08", quota.to_vec()),
        (b"QU\0\0\0\0\0\0\0\x07", quota.to_vec()),
        (b"R\0\0\0\x01", rule.to_vec()),
        (b"SE\0\0\0\0\0\0\0\x01", b"\0\0\0\0\x65\x53\xf1\0".to_vec()),
        (b"SI\0\0\0\0\0\0\0\x01", b"{}".to_vec()),
        (b"SS\0\0\0\0\0\0\0\x01\x02\x01\0\0\0\0\0\0", b"\x01".to_vec()),
        (b"U\x02\x01\0\0\0\0\0\0", b"\0\0\0\0\0\0\0\x01\0\0\0\0\0\0\x10\0\0\0\0\0\0\0\0\x02".to_vec()),
        (b"setting", b"{}".to_vec()),
    ];
    let found = stored(engine).await;
    for ((key, value), (wanted_key, wanted_value)) in found.iter().zip(&expected) {
        assert_eq!((key.escape_ascii().to_string(), value), (wanted_key.escape_ascii().to_string(), wanted_value));
    }
    assert_eq!(found.len(), expected.len());
    engine.erase().await.unwrap();
    assert!(stored(engine).await.is_empty());
}

#[tokio::test]
async fn records_have_the_layout_of_the_format() {
    let Some(url) = fresh() else { return };
    has_the_layout_of_the_format(&engine(&url).await).await;
}

/// More entries than any page holds, in pages of every size.
async fn long_directories_are_listed_whole(engine: &KvEngine) {
    const ENTRIES: u64 = 2 * 2048 + 5;
    let entry = |i: u64| {
        let name = Key::Dentry(Ino(2), Name::stored(format!("{i}").into_bytes()));
        put(name, Record::Dentry(Dentry { kind: Kind::File, ino: Ino(i) }))
    };
    for part in (0..ENTRIES).collect::<Vec<_>>().chunks(100) {
        commit(engine, vec![], part.iter().map(|i| entry(*i)).collect()).await.unwrap();
    }
    for limit in [1000, 2048, 100_000] {
        let (mut found, mut plus) = (0, 0);
        for with_attrs in [false, true] {
            let mut after = None;
            loop {
                after = if with_attrs {
                    let page = engine.scan_plus(Ino(2), after.as_ref(), limit).await.unwrap();
                    plus += page.entries.len() as u64;
                    page.next
                } else {
                    let page = engine.scan(&Scan::Dentries(Ino(2)), after.as_ref(), limit).await.unwrap();
                    found += page.rows.len() as u64;
                    page.next
                };
                if after.is_none() {
                    break;
                }
            }
        }
        assert_eq!((found, plus), (ENTRIES, ENTRIES), "by {limit}");
    }
}

#[tokio::test]
async fn a_long_directory_is_listed_whole() {
    let Some(url) = fresh() else { return };
    long_directories_are_listed_whole(&engine(&url).await).await;
}

#[tokio::test]
async fn erase_leaves_the_volumes_beside() {
    let Some(url) = fresh() else { return };
    let others = [format!("{url}a"), format!("{url}/a"), url[..url.len() - 1].to_owned() + "/"];
    let setting = || vec![put(Key::Setting, Record::Bytes(Bytes::from("{}")))];
    let mut engines = Vec::new();
    for url in others.iter().chain([&url]) {
        engines.push(engine(url).await);
        commit(engines.last().unwrap(), vec![], setting()).await.unwrap();
    }
    let ours = engines.pop().unwrap();
    ours.erase().await.unwrap();
    assert!(stored(&ours).await.is_empty());
    for other in engines {
        assert_eq!(stored(&other).await.len(), 1);
    }
}

/// Many make entries in one directory, through clients of their own: all come through, none twice, and the count is right.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn many_create_in_one_directory() {
    let Some(url) = fresh() else { return };
    siblings_are_all_made([engine(&url).await, engine(&url).await], 8).await;
}

async fn siblings_are_all_made(engines: [KvEngine; 2], each: u64) {
    const TASKS: u64 = 32;
    let dir = Ino(2);
    let first = engines[0].clone();
    let changes = vec![
        put(Key::Attr(dir), Record::Attr(directory())),
        put(Key::DirStat(dir), Record::DirStat(DirStat::default())),
    ];
    commit(&first, vec![], changes).await.unwrap();
    let tasks = (0..TASKS).map(|task| {
        let engine = engines[task as usize % 2].clone();
        tokio::spawn(async move {
            for number in 0..each {
                let name = Key::Dentry(dir, Name::stored(format!("{task}-{number}").into_bytes()));
                let (txn, loaded) = engine.begin(&[Key::Attr(dir), name.clone()]).await.unwrap();
                let Some(Record::Attr(seen)) = loaded[0] else { panic!("{loaded:?}") };
                let mask = crate::base::FieldMask::KIND | crate::base::FieldMask::MODE;
                let guards = vec![Guard::Fields(dir, seen, mask), Guard::Absent(name.clone())];
                let ino = Ino(1000 + task * each + number);
                let changes = vec![
                    put(Key::Attr(ino), Record::Attr(Attr { parent: dir, ..directory() })),
                    put(name, Record::Dentry(Dentry { kind: Kind::Directory, ino })),
                    Change::Patch(dir, AttrPatch::new().add_nlink(1).touch(Timestamp::new(number as i64, 1))),
                    Change::AddCounter(Counter::TotalInodes, 1),
                    Change::AddDirStat(dir, DirStat { length: 0, space: 4096, inodes: 1 }),
                ];
                txn.commit(Batch { guards, changes }).await.expect("siblings do not conflict");
            }
        })
    });
    let started = std::time::Instant::now();
    futures::future::join_all(tasks).await.into_iter().for_each(|task| task.expect("no panic"));
    eprintln!("{} creates in one directory took {:?}", TASKS * each, started.elapsed());
    for engine in &engines {
        engine.sync().await.unwrap();
    }
    let made = TASKS * each;
    let keys = [Key::Attr(dir), Key::Counter(Counter::TotalInodes), Key::DirStat(dir)];
    let records = first.read(&keys).await.unwrap();
    let [Some(Record::Attr(attr)), Some(Record::Number(nodes)), Some(Record::DirStat(stat))] = &records[..] else {
        panic!("{records:?}")
    };
    assert_eq!((u64::from(attr.nlink), *nodes as u64, stat.inodes as u64), (2 + made, made, made));
    let listed = first.scan(&Scan::Dentries(dir), None, 1000).await.unwrap();
    assert_eq!(listed.rows.len() as u64, made);
}

/// What creates in a directory and what removes it never both succeed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_directory_is_removed_or_filled() {
    let Some(url) = fresh() else { return };
    let (here, there) = (engine(&url).await, engine(&url).await);
    emptiness_is_decided_once(&here, &there).await;
}

async fn emptiness_is_decided_once(here: &KvEngine, there: &KvEngine) {
    for round in 0..40 {
        let dir = Ino(100 + round);
        commit(here, vec![], vec![put(Key::Attr(dir), Record::Attr(directory()))]).await.unwrap();
        let name = Key::Dentry(dir, Name::stored(*b"x"));
        // With and without a change of the parent: its times are left alone when they are fresh.
        let fill = async {
            let (txn, loaded) = there.begin(&[Key::Attr(dir), name.clone()]).await?;
            let Some(Record::Attr(seen)) = loaded[0] else { return Err(EngineError::Conflict) };
            let guards = vec![Guard::Fields(dir, seen, crate::base::FieldMask::KIND), Guard::Absent(name.clone())];
            let mut changes = vec![put(name.clone(), Record::Dentry(Dentry { kind: Kind::File, ino: Ino(7) }))];
            if round % 2 == 0 {
                changes.push(Change::Patch(dir, AttrPatch::new().touch(Timestamp::new(1, 1))));
            }
            txn.commit(Batch { guards, changes }).await
        };
        let remove = async {
            let (txn, loaded) = here.begin(&[Key::Attr(dir), Key::AnyDentry(dir)]).await?;
            let (Some(Record::Attr(seen)), None) = (&loaded[0], &loaded[1]) else { return Err(EngineError::Conflict) };
            let guards =
                vec![Guard::Fields(dir, *seen, crate::base::FieldMask::KIND), Guard::Absent(Key::AnyDentry(dir))];
            txn.commit(Batch { guards, changes: vec![Change::Delete(Key::Attr(dir))] }).await
        };
        let (filled, removed) = tokio::join!(fill, remove);
        let records = here.read(&[Key::Attr(dir), name]).await.unwrap();
        match (filled, removed) {
            (Ok(_), Err(EngineError::Conflict)) => assert!(records.iter().all(Option::is_some), "{records:?}"),
            (Err(EngineError::Conflict), Ok(_)) => assert!(records.iter().all(Option::is_none), "{records:?}"),
            other => panic!("{other:?}: {records:?}"),
        }
    }
}

#[tokio::test]
async fn a_batch_that_is_too_large_is_refused_whole() {
    let Some(url) = fresh() else { return };
    let engine = engine(&url).await;
    let entry = |i: u64| put(Key::Attr(Ino(i)), Record::Attr(directory()));
    commit(&engine, vec![], (0..128).map(entry).collect()).await.unwrap();
    let refused = commit(&engine, vec![], (1000..1129).map(entry).collect()).await;
    let Err(EngineError::Fault(fault)) = refused else { panic!("{refused:?}") };
    assert_eq!(fault.kind(), FaultKind::Unsupported);
    assert!(fault.to_string().contains("128"), "{fault}");
    assert_eq!(engine.read(&[Key::Attr(Ino(1000))]).await.unwrap(), [None]);
    // Many names of one node, or many attributes, are removed at once however many they are.
    let xattr =
        |i: u64| put(Key::Xattr(Ino(5), Name::stored(format!("user.{i}").into_bytes())), Record::Bytes("v".into()));
    for part in [0..100, 100..200] {
        commit(&engine, vec![], part.map(xattr).collect()).await.unwrap();
    }
    commit(&engine, vec![], vec![Change::Delete(Key::Xattrs(Ino(5)))]).await.unwrap();
    assert_eq!(engine.read(&[Key::Xattrs(Ino(5))]).await.unwrap(), [None]);
}

/// A cluster that loses a member goes on, whichever that is, and nothing is applied twice.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_goes_on_without_a_member() {
    if fresh().is_none() {
        return;
    }
    let mut cluster = tokio::task::spawn_blocking(|| Etcd::start(3)).await.unwrap();
    let engine = engine(&cluster.next_url()).await;
    let (ino, index) = (Ino(2), ChunkIndex(0));
    let stop = Arc::new(std::sync::atomic::AtomicBool::new(false));
    let tasks: Vec<_> = (0..4u64)
        .map(|task| {
            let (engine, stop) = (engine.clone(), stop.clone());
            tokio::spawn(async move {
                let (mut sure, mut unsure) = (Vec::new(), Vec::new());
                for number in 0.. {
                    if stop.load(std::sync::atomic::Ordering::Relaxed) {
                        break;
                    }
                    let id = task * 1_000_000 + number + 1;
                    let append =
                        Change::Append { ino: Ino(ino.0 + task), index, slices: vec![slice(id)], only_existing: false };
                    match commit(&engine, vec![], vec![append]).await {
                        Ok(_) => sure.push(id),
                        Err(EngineError::Undetermined(_)) => unsure.push(id),
                        Err(error) => panic!("{error:?}"),
                    }
                }
                (sure, unsure)
            })
        })
        .collect();
    for member in [0, 1] {
        tokio::time::sleep(std::time::Duration::from_secs(1)).await;
        tokio::task::block_in_place(|| cluster.kill_node(member));
        tokio::time::sleep(std::time::Duration::from_secs(4)).await;
        tokio::task::block_in_place(|| cluster.start_node(member));
    }
    stop.store(true, std::sync::atomic::Ordering::Relaxed);
    for (task, ended) in futures::future::join_all(tasks).await.into_iter().enumerate() {
        let (sure, unsure) = ended.unwrap();
        let list = engine.read(&[Key::Chunk(Ino(ino.0 + task as u64), index)]).await.unwrap().pop().flatten();
        let Some(Record::Slices(list)) = list else { panic!("{list:?}") };
        let ids: Vec<u64> = list.iter().map(|slice| slice.id.0).collect();
        let mut once = ids.clone();
        once.dedup();
        assert_eq!(once, ids, "applied twice");
        assert!(sure.len() > 20 && sure.iter().all(|id| ids.contains(id)), "{} of {}", ids.len(), sure.len());
        assert!(ids.iter().all(|id| sure.contains(id) || unsure.contains(id)));
        eprintln!("{} commits are sure and {} are not", sure.len(), unsure.len());
    }
    drop(engine);
    tokio::task::block_in_place(|| drop(cluster));
}

/// The peer as a program, with its own home.
async fn peer(dir: &std::path::Path, args: &[&str]) -> Option<String> {
    let Some(program) = program("juicefs") else {
        skip("juicefs is not installed");
        return None;
    };
    let output = Command::new(program).args(args).env("HOME", dir).output().unwrap();
    let text = format!("{}{}", String::from_utf8_lossy(&output.stdout), String::from_utf8_lossy(&output.stderr));
    assert!(output.status.success(), "{args:?}: {text}");
    Some(text)
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_volume_of_the_peer_is_read_and_written() {
    let Some(url) = fresh() else { return };
    let dir = tempfile::tempdir().unwrap();
    let bucket = dir.path().join("bucket");
    let format =
        ["format", &url, "peer", "--storage", "file", "--bucket", bucket.to_str().unwrap(), "--trash-days", "0"];
    if peer(dir.path(), &format).await.is_none() {
        return;
    }
    let engine = engine(&url).await;
    let records = engine.read(&[Key::Setting, Key::Attr(Ino::ROOT)]).await.unwrap();
    let [Some(Record::Bytes(setting)), Some(Record::Attr(root))] = &records[..] else { panic!("{records:?}") };
    assert!(String::from_utf8_lossy(setting).contains("\"peer\""));
    assert_eq!((root.kind, root.mode, root.nlink, root.parent), (Kind::Directory, 0o777, 2, Ino::ROOT));
    let keys: Vec<String> = stored(&engine)
        .await
        .iter()
        .map(|(key, _)| key.escape_ascii().to_string())
        .filter(|key| key.starts_with('C'))
        .collect();
    assert_eq!(keys, ["CnextChunk", "CnextInode"]);
    // Statistics of the root come with the first that asks for them.
    peer(dir.path(), &["fsck", &url, "--path", "/", "--repair", "--sync-dir-stat"]).await.unwrap();

    // Ours, through operations; then the peer checks the tree and its statistics.
    let settings = crate::meta::MetaSettings { read_only: false, skip_dir_mtime: std::time::Duration::ZERO };
    let clock = Arc::new(crate::util::clock::SystemClock);
    let meta = crate::meta::Meta::new(Arc::new(engine.clone()), clock, settings, crate::meta::testing::plain_rules());
    let root = crate::meta::Caller::root();
    let name = |text: &str| Name::entry(text.as_bytes()).unwrap();
    let node = |kind| crate::meta::ops::create::NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target: None };
    let d = meta.create(&root, Ino::ROOT, &name("d"), &node(Kind::Directory)).await.unwrap().ino;
    for i in 0..5 {
        meta.create(&root, d, &name(&format!("f{i}")), &node(Kind::File)).await.unwrap();
    }
    meta.link(&root, meta.lookup(&root, d, &name("f0")).await.unwrap().ino, Ino::ROOT, &name("l")).await.unwrap();
    meta.set_xattr(&root, d, b"user.a", b"1", crate::meta::ops::xattr::XattrMode::Set).await.unwrap();
    meta.unlink(&root, d, &name("f1"), true).await.unwrap();
    meta.engine().sync().await.unwrap();
    let checked = peer(dir.path(), &["fsck", &url, "--path", "/", "--recursive"]).await.unwrap();
    assert!(!checked.contains("ERROR") && !checked.contains("is not correct"), "{checked}");
    let status = peer(dir.path(), &["status", &url, "--more"]).await.unwrap();
    let status = &status[status.find('{').unwrap()..];
    assert!(status.contains("\"UsedInodes\": 5"), "{status}");
    // 4096 for the directory and each of its files.
    assert!(status.contains("\"UsedSpace\": 20480"), "{status}");
    let report = crate::meta::check::check(&engine).await.unwrap();
    assert!(report.is_clean(), "{report}");
    assert_eq!(meta.create(&root, d, &name("f0"), &node(Kind::File)).await.unwrap_err().errno(), Errno::EEXIST);
}

/// Requests to the store, of any kind.
#[derive(Default)]
struct Counted {
    trips: std::sync::atomic::AtomicU64,
}

/// A back end that counts its trips.
struct CountingKv(Arc<dyn Kv>, Arc<Counted>);
struct CountingTxn(Box<dyn super::KvTxn>, Arc<Counted>);

impl Counted {
    fn one(&self) {
        self.trips.fetch_add(1, std::sync::atomic::Ordering::Relaxed);
    }

    fn take(&self) -> u64 {
        self.trips.swap(0, std::sync::atomic::Ordering::Relaxed)
    }
}

#[async_trait::async_trait]
impl Kv for CountingKv {
    fn name(&self) -> &'static str {
        self.0.name()
    }

    fn operations_max(&self) -> usize {
        self.0.operations_max()
    }

    fn stores_empty_values(&self) -> bool {
        self.0.stores_empty_values()
    }

    async fn read(&self, wants: &[super::Want]) -> EngineResult<super::View> {
        self.1.one();
        self.0.read(wants).await
    }

    async fn begin(&self) -> EngineResult<Box<dyn super::KvTxn>> {
        Ok(Box::new(CountingTxn(self.0.begin().await?, self.1.clone())))
    }

    async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> EngineResult<Vec<(Vec<u8>, Bytes)>> {
        self.1.one();
        self.0.scan(from, to, limit).await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.0.erase().await
    }
}

#[async_trait::async_trait]
impl super::KvTxn for CountingTxn {
    async fn read(&mut self, wants: &[super::Want]) -> EngineResult<super::View> {
        self.1.one();
        self.0.read(wants).await
    }

    async fn commit(self: Box<Self>, attempt: super::Attempt<'_>) -> EngineResult<super::Ended> {
        self.1.one();
        let CountingTxn(inner, counted) = *self;
        Ok(match inner.commit(attempt).await? {
            super::Ended::Changed(next, now) => super::Ended::Changed(Box::new(CountingTxn(next, counted)), now),
            applied => applied,
        })
    }
}

#[tokio::test]
async fn operations_cost_few_trips() {
    let Some(url) = fresh() else { return };
    let counted = Arc::new(Counted::default());
    let kv = CountingKv(engine(&url).await.0.kv.clone(), counted.clone());
    let meta = crate::meta::testing::volume_on(
        Arc::new(KvEngine::new(Arc::new(kv))),
        Arc::new(crate::util::clock::SystemClock),
    )
    .await;
    let root = crate::meta::Caller::root();
    let name = |text: &str| Name::entry(text.as_bytes()).unwrap();
    let node = |kind| crate::meta::ops::create::NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target: None };
    // The numbers that a client takes for itself.
    let d = meta.create(&root, Ino::ROOT, &name("d"), &node(Kind::Directory)).await.unwrap().ino;
    let mut costs = Vec::new();
    let mut cost = |what: &'static str, most: u64| {
        let trips = counted.take();
        costs.push(format!("{what} {trips}"));
        assert!(trips <= most, "{what} costs {trips} trips, {most} are enough");
    };
    cost("(preparing)", u64::MAX);
    let f = meta.create(&root, d, &name("f"), &node(Kind::File)).await.unwrap().ino;
    cost("create", 3);
    let written = Slice { pos: 0, id: SliceId(700), size: 10, off: 0, len: 10 };
    meta.append_slice(f, ChunkIndex(0), written, Timestamp::new(1, 1)).await.unwrap();
    cost("slice commit", 3);
    meta.rename(&root, d, &name("f"), d, &name("g"), crate::meta::ops::rename::RenameMode::Replace).await.unwrap();
    cost("rename", 5);
    meta.unlink(&root, d, &name("g"), true).await.unwrap();
    cost("unlink", 4);
    meta.rmdir(&root, Ino::ROOT, &name("d"), true).await.unwrap();
    cost("rmdir", 5);
    eprintln!("trips: {}", costs.join(", "));
}

/// The peer makes a tree while we make and remove entries in the same directory: nobody's is lost, and all is counted.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_peer_and_we_change_one_directory() {
    let Some(url) = fresh() else { return };
    let dir = tempfile::tempdir().unwrap();
    let bucket = dir.path().join("bucket");
    let format =
        ["format", &url, "peer", "--storage", "file", "--bucket", bucket.to_str().unwrap(), "--trash-days", "0"];
    if peer(dir.path(), &format).await.is_none() {
        return;
    }
    let clock = Arc::new(crate::util::clock::SystemClock);
    let settings =
        crate::meta::MetaSettings { read_only: false, skip_dir_mtime: std::time::Duration::from_millis(100) };
    let engine = Arc::new(engine(&url).await);
    let meta = crate::meta::Meta::new(engine, clock, settings, crate::meta::testing::plain_rules());
    let root = crate::meta::Caller::root();
    let name = |text: &str| Name::entry(text.as_bytes()).unwrap();
    let node = |kind| crate::meta::ops::create::NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target: None };
    let t = meta.create(&root, Ino::ROOT, &name("t"), &node(Kind::Directory)).await.unwrap().ino;
    let (home, at) = (dir.path().to_owned(), url.clone());
    let theirs = tokio::task::spawn_blocking(move || {
        let args =
            ["mdtest", &at, "/t", "--threads", "4", "--dirs", "4", "--depth", "2", "--files", "20", "--no-bgjob"];
        let output = Command::new(program("juicefs").unwrap()).args(args).env("HOME", home).output().unwrap();
        assert!(output.status.success(), "{}", String::from_utf8_lossy(&output.stderr));
    });
    let (mut made, mut removed) = (0u64, 0u64);
    while !theirs.is_finished() || made < 20 {
        let (file, sub) = (name(&format!("ours {made}")), name(&format!("sub {made}")));
        meta.create(&root, t, &file, &node(Kind::File)).await.unwrap();
        meta.create(&root, t, &sub, &node(Kind::Directory)).await.unwrap();
        meta.rmdir(&root, t, &sub, true).await.unwrap();
        made += 1;
        if made.is_multiple_of(3) {
            meta.unlink(&root, t, &file, true).await.unwrap();
            removed += 1;
        }
    }
    theirs.await.unwrap();
    meta.engine().sync().await.unwrap();
    let listed = crate::meta::testing::rows(&meta, Scan::Dentries(t)).await;
    let ours =
        listed.iter().filter(|(key, _)| matches!(key, Key::Dentry(_, name) if name.as_bytes().starts_with(b"ours")));
    assert_eq!(ours.count() as u64, made - removed);
    let nodes = crate::meta::testing::rows(&meta, Scan::Attrs).await.len();
    eprintln!("{made} of ours, {nodes} nodes in all");
    assert!(listed.len() as u64 > made - removed, "the peer has made nothing");
    let report = crate::meta::check::check(&**meta.engine()).await.unwrap();
    assert!(report.is_clean(), "{report}");
}
