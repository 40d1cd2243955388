//! Against a real server: the shared suite, the stored bytes, and what happens when the server misbehaves.

use super::{Connection, RedisEngine, codec, url};
use crate::base::{Attr, AttrPatch, ChunkIndex, FaultKind, FieldMask, Ino, Kind, Name, SessionId, Slice, SliceId};
use crate::base::{Timestamp, acl::AclRule};
use crate::meta::engine::suite::{Opened, engine_suite};
use crate::meta::engine::{Batch, Change, Committed, Engine, EngineError, EngineResult, Guard, Scan};
use crate::meta::ops::plock::LockKind;
use crate::meta::record::{Counter, Dentry, DirStat, Key, PlockRange, Quota, QuotaOwner, Record, Session};
use crate::meta::session::SessionInfo;
use crate::meta::testing::{file, program, skip, volume_on};
use crate::util::clock::SystemClock;
use bytes::Bytes;
use redis::Value;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::time::{Duration, Instant};

/// A server of our own on a free port, without persistence; ends with the value.
struct Server {
    program: PathBuf,
    child: Child,
    port: u16,
    dir: tempfile::TempDir,
    options: Vec<&'static str>,
}

impl Server {
    async fn start(options: &[&'static str]) -> Option<Server> {
        let Some(program) = program("redis-server") else {
            skip("redis-server is not installed");
            return None;
        };
        let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
        let dir = tempfile::tempdir().unwrap();
        let child = spawn(&program, port, dir.path(), options);
        let server = Server { program, child, port, dir, options: options.to_vec() };
        server.wait().await;
        Some(server)
    }

    async fn wait(&self) {
        let deadline = Instant::now() + Duration::from_secs(20);
        while std::net::TcpStream::connect(("127.0.0.1", self.port)).is_err() {
            assert!(Instant::now() < deadline, "the server does not come up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
    }

    fn stop(&mut self) {
        self.child.kill().unwrap();
        self.child.wait().unwrap();
    }

    async fn restart(&mut self) {
        self.child = spawn(&self.program, self.port, self.dir.path(), &self.options);
        self.wait().await;
    }

    fn url(&self, db: u32) -> String {
        format!("redis://127.0.0.1:{}/{db}", self.port)
    }

    async fn engine(&self) -> Arc<RedisEngine> {
        RedisEngine::open(&self.url(1)).await.unwrap()
    }

    /// A connection beside the engine's.
    fn raw(&self) -> Raw {
        Raw(Connection::new(url::Target::parse(&self.url(1), |_| None).unwrap()))
    }
}

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn spawn(program: &Path, port: u16, dir: &Path, options: &[&str]) -> Child {
    Command::new(program)
        .args(["--bind", "127.0.0.1", "--save", "", "--appendonly", "no", "--port", &port.to_string()])
        .args(options)
        .current_dir(dir)
        .stdout(Stdio::null())
        .spawn()
        .unwrap()
}

/// Plain commands.
struct Raw(Connection);

impl Raw {
    async fn run(&self, words: &[&str]) -> Value {
        let args: Vec<&[u8]> = words[1..].iter().map(|word| word.as_bytes()).collect();
        self.0.query(&codec::command(words[0], &args)).await.unwrap()
    }

    async fn bytes(&self, words: &[&str]) -> Vec<u8> {
        match self.run(words).await {
            Value::BulkString(bytes) => bytes,
            other => panic!("{words:?}: {other:?}"),
        }
    }

    async fn text(&self, words: &[&str]) -> String {
        String::from_utf8(self.bytes(words).await).unwrap()
    }

    async fn keys(&self) -> Vec<String> {
        let Value::Array(keys) = self.run(&["KEYS", "*"]).await else { panic!("no keys") };
        let mut keys: Vec<String> = keys.into_iter().map(|key| redis::from_redis_value(key).unwrap()).collect();
        keys.sort();
        keys
    }
}

async fn open() -> Option<Opened> {
    let server = Server::start(&[]).await?;
    let engine = server.engine().await;
    Some(Opened { engine, derives_link_parents: false, keep: Box::new(server) })
}

engine_suite!(open);

async fn commit(engine: &RedisEngine, guards: Vec<Guard>, changes: Vec<Change>) -> EngineResult<Committed> {
    engine.commit(&Batch { guards, changes }).await
}

fn kind_of<T: std::fmt::Debug>(result: EngineResult<T>) -> FaultKind {
    match result {
        Err(EngineError::Fault(fault)) => fault.kind(),
        other => panic!("{other:?}"),
    }
}

fn directory() -> Attr {
    let time = Timestamp::new(0x0102_0304_0506_0708, 0x0a0b_0c0d);
    Attr {
        flags: 0,
        kind: Kind::Directory,
        mode: 0o777,
        uid: 0,
        gid: 0,
        atime: time,
        mtime: time,
        ctime: time,
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

#[tokio::test]
async fn records_have_the_layout_of_the_format() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let ino = Ino(2);
    let sid = SessionId(1);
    let wide = 0xD9D0_B0A1_C2D3_E4F5;
    let quota = Quota { max_space: 1, max_inodes: -1, used_space: 4096, used_inodes: 3 };
    let rule = AclRule { owner: 7, group: 5, mask: 4, other: 0, users: vec![(1000, 6)], groups: vec![] };
    let ranges = vec![PlockRange { exclusive: true, pid: 4980, start: 50, end: 149 }];
    let delayed = Slice { pos: 0, id: SliceId(5), size: 9, off: 0, len: 9 };
    let changes = vec![
        put(Key::Setting, Record::Bytes(Bytes::from("{}"))),
        put(Key::Attr(Ino(1)), Record::Attr(directory())),
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
    commit(&engine, vec![], changes).await.unwrap();
    assert_eq!(engine.allocate(Counter::NextInode, 1024).await.unwrap(), 2);
    assert_eq!(engine.allocate(Counter::NextSlice, 4096).await.unwrap(), 1);
    assert_eq!(engine.allocate(Counter::NextSession, 1).await.unwrap(), 1);
    assert_eq!(engine.allocate(Counter::NextTrash, 1).await.unwrap(), 1);

    let keys = "acl allSessions c2_7 d1 delSlices delfiles dirDataLength dirQuota dirQuotaUsedInodes \
        dirQuotaUsedSpace dirUsedInodes dirUsedSpace groupQuota groupQuotaUsedInodes groupQuotaUsedSpace i1 i2 \
        locked1 lockf2 lockp2 nextCleanupSlices nextTrash nextchunk nextinode nextsession p2 s3 session1 \
        sessionInfos setting sliceRef totalInodes usedSpace userQuota userQuotaUsedInodes userQuotaUsedSpace x2";
    assert_eq!(raw.keys().await.join(" "), keys);

    let mut root = vec![0u8, 0x21, 0xff, 0, 0, 0, 0, 0, 0, 0, 0];
    root.extend([1, 2, 3, 4, 5, 6, 7, 8, 10, 11, 12, 13].repeat(3));
    root.extend([0, 0, 0, 2, 0, 0, 0, 0, 0, 0, 0x10, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 1]);
    let tail = [0, 0, 0, 1, 0, 0, 0, 0, 2, 0];
    assert_eq!(raw.bytes(&["GET", "i1"]).await, [&root[..], &[0]].concat());
    assert_eq!(raw.bytes(&["GET", "i2"]).await, [&root[..], &tail].concat());
    assert_eq!(
        codec::pairs(raw.run(&["HGETALL", "d1"]).await).unwrap(),
        [(b"n\xff".to_vec(), vec![2, 0, 0, 0, 0, 0, 0, 0, 2])]
    );
    assert_eq!(raw.text(&["GET", "s3"]).await, "../x");
    assert_eq!(raw.text(&["HGET", "x2", "user.a"]).await, "v");
    let first = [0, 0, 0, 1, 0, 0, 0, 0, 0, 0, 0, 2, 0, 0, 0, 3, 0, 0, 0, 4, 0, 0, 0, 5];
    assert_eq!(raw.bytes(&["LINDEX", "c2_7", "0"]).await, first);
    assert_eq!(raw.bytes(&["LINDEX", "c2_7", "1"]).await, Slice::hole(0, 9).encode());
    assert_eq!(codec::pairs(raw.run(&["HGETALL", "sliceRef"]).await).unwrap(), [(b"k2_3".to_vec(), b"2".to_vec())]);
    assert_eq!(raw.bytes(&["HGET", "acl", "1"]).await[..12], [0, 7, 0, 5, 0, 4, 0, 0, 0, 0, 0, 1]);
    for (hash, value) in [("dirDataLength", "1"), ("dirUsedSpace", "4096"), ("dirUsedInodes", "2")] {
        assert_eq!(raw.text(&["HGET", hash, "2"]).await, value);
    }
    for (family, field) in [("dirQuota", "2"), ("userQuota", "7"), ("groupQuota", "8")] {
        let limits = raw.bytes(&["HGET", family, field]).await;
        assert_eq!(limits, [&[0, 0, 0, 0, 0, 0, 0, 1][..], &[0xff; 8]].concat());
        assert_eq!(raw.text(&["HGET", &format!("{family}UsedSpace"), field]).await, "4096");
        assert_eq!(raw.text(&["HGET", &format!("{family}UsedInodes"), field]).await, "3");
    }
    assert_eq!(raw.text(&["ZSCORE", "allSessions", "1"]).await, "1700000000");
    assert_eq!(raw.text(&["HGET", "sessionInfos", "1"]).await, "{}");
    assert_eq!(raw.run(&["SISMEMBER", "session1", "2"]).await, Value::Int(1));
    assert_eq!(raw.text(&["ZSCORE", "delfiles", "2:9"]).await, "1700000001");
    assert_eq!(raw.bytes(&["HGET", "delSlices", "8_1700000002"]).await, [0, 0, 0, 0, 0, 0, 0, 5, 0, 0, 0, 9]);
    assert_eq!(raw.text(&["HGET", "p2", "1"]).await, "1");
    assert_eq!(raw.text(&["HGET", "lockf2", "1_D9D0B0A1C2D3E4F5"]).await, "W");
    assert_eq!(raw.text(&["HGET", "lockf2", "1_0000000000000001"]).await, "R");
    let range = [0, 0, 0, 1, 0, 0, 0x13, 0x74, 0, 0, 0, 0, 0, 0, 0, 50, 0, 0, 0, 0, 0, 0, 0, 149];
    assert_eq!(raw.bytes(&["HGET", "lockp2", "1_D9D0B0A1C2D3E4F5"]).await, range);
    assert_eq!(raw.run(&["SISMEMBER", "locked1", "lockf2"]).await, Value::Int(1));
    assert_eq!(raw.run(&["SISMEMBER", "locked1", "lockp2"]).await, Value::Int(1));
    // Redis keeps the last id handed out.
    for (counter, value) in [
        ("nextinode", "1025"),
        ("nextchunk", "4096"),
        ("nextsession", "1"),
        ("nextTrash", "1"),
        ("usedSpace", "4096"),
        ("totalInodes", "1"),
        ("nextCleanupSlices", "5"),
    ] {
        assert_eq!(raw.text(&["GET", counter]).await, value, "{counter}");
    }

    engine.erase().await.unwrap();
    assert!(raw.keys().await.is_empty());
}

#[tokio::test]
async fn an_attribute_is_written_as_the_format_has_it_whatever_it_was() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let plain = Attr { length: 1 << 57, ..directory() };
    let encoded = plain.encode();
    let full = Attr { access_acl: 3, default_acl: 4, tier: 1, ..plain }.encode();
    // (stored before: every age of the record, what it means)
    for stored in [&encoded[..63], &encoded[..64], &encoded[..71], &encoded[..], &full[..80], &full[..79], &full[..]] {
        let before = Attr::decode(stored).unwrap();
        for patch in [
            AttrPatch::new().set_uid(5),
            AttrPatch::new().grow_to((1 << 57) + 1).add_nlink(1),
            AttrPatch::new().set_parent(Ino(9)).set_tier(2),
            AttrPatch::new().set_acls(1, 0),
            AttrPatch::new().set_mode(0o1234).touch(Timestamp::new(9, 8)),
            AttrPatch::new(),
        ] {
            let set = codec::command("SET", &[b"i5", stored]);
            raw.0.query(&set).await.unwrap();
            let guard = Guard::Fields(Ino(5), before, FieldMask::ALL);
            commit(&engine, vec![guard], vec![Change::Patch(Ino(5), patch)]).await.unwrap();
            let mut after = before;
            patch.apply(&mut after);
            assert_eq!(raw.bytes(&["GET", "i5"]).await, after.encode(), "{patch:?} of {} bytes", stored.len());
        }
    }
    // What is too short to be attributes is left alone.
    raw.run(&["SET", "i5", "short"]).await;
    assert_eq!(kind_of(engine.read(&[Key::Attr(Ino(5))]).await), FaultKind::Corrupt);
    let patch = vec![Change::AddCounter(Counter::UsedSpace, 1), Change::Patch(Ino(5), AttrPatch::new().set_uid(5))];
    assert_eq!(kind_of(commit(&engine, vec![], patch).await), FaultKind::Corrupt);
    assert_eq!(raw.keys().await, ["i5"]);
}

#[tokio::test]
async fn an_absent_count_is_one_reference() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let key = Key::SliceRef(SliceId(7), 100);
    let add = |delta| vec![Change::AddSliceRef { id: SliceId(7), size: 100, delta }];
    assert_eq!(engine.read(std::slice::from_ref(&key)).await.unwrap(), [None]);
    assert_eq!(commit(&engine, vec![Guard::Absent(key.clone())], add(1)).await.unwrap().references, [2]);
    assert_eq!(raw.text(&["HGET", "sliceRef", "k7_100"]).await, "1");
    let two = Guard::Same(key.clone(), Record::Number(2));
    assert_eq!(commit(&engine, vec![two], add(-1)).await.unwrap().references, [1]);
    assert_eq!(raw.run(&["HGET", "sliceRef", "k7_100"]).await, Value::Nil);
    assert_eq!(commit(&engine, vec![], add(-1)).await.unwrap().references, [0]);
    assert_eq!(raw.text(&["HGET", "sliceRef", "k7_100"]).await, "-1");
    assert_eq!(engine.read(std::slice::from_ref(&key)).await.unwrap(), [Some(Record::Number(0))]);
    // A zero that another client left means the same as nothing.
    raw.run(&["HSET", "sliceRef", "k7_100", "0"]).await;
    let guards = vec![Guard::Absent(key.clone()), Guard::Same(key, Record::Number(1))];
    commit(&engine, guards, vec![]).await.unwrap();
}

#[tokio::test]
async fn a_key_of_another_type_stops_the_whole_batch() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let entry = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(9) });
    let ino = Ino(5);
    let bad: Vec<(&[&str], Change)> = vec![
        (&["SET", "d5", "x"], put(Key::Dentry(ino, Name::stored(*b"n")), entry.clone())),
        (&["SET", "d5", "x"], Change::Delete(Key::Dentry(ino, Name::stored(*b"n")))),
        (
            &["SET", "c5_0", "x"],
            Change::Append { ino, index: ChunkIndex(0), slices: vec![slice(1)], only_existing: false },
        ),
        (&["SET", "session1", "x"], put(Key::Sustained(SessionId(1), ino), Record::Number(1))),
        (&["SET", "delfiles", "x"], put(Key::DeletedFile(ino, 1), Record::Number(1))),
        (&["SET", "totalInodes", "many"], Change::AddCounter(Counter::TotalInodes, 1)),
        (&["SET", "totalInodes", "9223372036854775807"], Change::AddCounter(Counter::TotalInodes, 1)),
        (&["RPUSH", "totalInodes", "1"], Change::AddCounter(Counter::TotalInodes, 1)),
        (&["HSET", "sliceRef", "k1_1", "01"], Change::AddSliceRef { id: SliceId(1), size: 1, delta: 1 }),
        (&["HSET", "p5", "1", "x"], Change::AddLinkParent { ino, parent: Ino(1), delta: 1 }),
        (&["HSET", "dirUsedSpace", "5", "x"], Change::AddDirStat(ino, DirStat { length: 0, space: 1, inodes: 0 })),
        (&["RPUSH", "i5", "x"], Change::Patch(ino, AttrPatch::new().set_uid(1))),
        (
            &["SET", "locked1", "x"],
            Change::SetFlock { ino, session: SessionId(1), owner: 1, exclusive: Some(true), last: false },
        ),
    ];
    for (spoil, change) in bad {
        raw.run(&["FLUSHDB"]).await;
        raw.run(spoil).await;
        let changes = vec![
            Change::AddCounter(Counter::UsedSpace, 4096),
            put(Key::Attr(Ino(9)), Record::Attr(directory())),
            put(Key::Dentry(Ino(1), Name::stored(*b"n")), entry.clone()),
            change.clone(),
        ];
        assert_eq!(kind_of(commit(&engine, vec![], changes).await), FaultKind::Corrupt, "{change:?}");
        assert_eq!(raw.keys().await, [spoil[1]], "{change:?}");
    }
    raw.run(&["FLUSHDB"]).await;
    raw.run(&["SET", "d5", "x"]).await;
    for key in [Key::AnyDentry(ino), Key::Dentry(ino, Name::stored(*b"n"))] {
        assert_eq!(kind_of(engine.read(&[key, Key::Setting]).await), FaultKind::Corrupt);
    }
    assert_eq!(kind_of(engine.scan(&Scan::Dentries(ino), None, 10).await), FaultKind::Corrupt);
}

/// MGET takes a key of another type for none.
#[tokio::test]
async fn a_node_of_another_type_is_told_by_scans_and_not_taken_for_missing() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    commit(&engine, vec![], vec![put(Key::Attr(Ino(4)), Record::Attr(directory()))]).await.unwrap();
    raw.run(&["RPUSH", "i5", "x"]).await;
    let page = engine.scan_readable(&Scan::Attrs, None, 10).await.unwrap();
    assert_eq!(page.rows.len(), 1);
    let told: Vec<String> = page.unreadable.iter().map(|fault| fault.to_string()).collect();
    assert!(told.len() == 1 && told[0].contains("Attr(Ino(5))"), "{told:?}");
}

#[tokio::test]
async fn erase_leaves_the_keys_of_others() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    for foreign in ["cache:1", "i1:backup", "dinner", "sessions:web", "lockfile", "x"] {
        raw.run(&["SET", foreign, "1"]).await;
    }
    for ours in ["i1", "setting", "k5_4096", "txnLog", "session7", "locked7", "nextinode", "d9"] {
        raw.run(&["SET", ours, "1"]).await;
    }
    engine.erase().await.unwrap();
    assert_eq!(raw.keys().await, ["cache:1", "dinner", "i1:backup", "lockfile", "sessions:web", "x"]);
}

#[tokio::test]
async fn a_full_or_read_only_server_applies_nothing() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let entry = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(9) });
    let changes = vec![put(Key::Dentry(Ino(1), Name::stored(*b"n")), entry), Change::AddCounter(Counter::UsedSpace, 1)];
    raw.run(&["CONFIG", "SET", "maxmemory", "1"]).await;
    assert_eq!(kind_of(commit(&engine, vec![], changes.clone()).await), FaultKind::Full);
    assert_eq!(kind_of(engine.allocate(Counter::NextInode, 1).await.map(drop)), FaultKind::Full);
    // Reads of several records are transactions, which it refuses as well.
    assert_eq!(
        engine.read(&[Key::Setting, Key::AnyDentry(Ino(1)), Key::Session(SessionId(3))]).await.unwrap(),
        [None, None, None]
    );
    // What keeps a client alive and what makes room goes through.
    let session = Record::Session(Session { expire: 7, info: Bytes::from_static(b"{}") });
    commit(&engine, vec![], vec![put(Key::Session(SessionId(3)), session.clone())]).await.unwrap();
    let keys = [Key::Setting, Key::Session(SessionId(3))];
    assert_eq!(engine.read(&keys).await.unwrap(), [None, Some(session)]);
    assert_eq!(engine.allocate(Counter::NextTrash, 1).await.unwrap(), 1);
    let removed = vec![Change::AddCounter(Counter::UsedSpace, -1), Change::Delete(Key::Session(SessionId(3)))];
    commit(&engine, vec![], removed).await.unwrap();
    assert_eq!(raw.keys().await, ["nextTrash", "usedSpace"]);
    raw.run(&["DEL", "nextTrash", "usedSpace"]).await;
    raw.run(&["CONFIG", "SET", "maxmemory", "0"]).await;
    assert!(raw.keys().await.is_empty());
    raw.run(&["REPLICAOF", "127.0.0.1", "1"]).await;
    assert_eq!(kind_of(commit(&engine, vec![], changes.clone()).await), FaultKind::Unavailable);
    raw.run(&["REPLICAOF", "NO", "ONE"]).await;
    assert!(raw.keys().await.is_empty());
    // A server that forgot the script is given it again.
    raw.run(&["SCRIPT", "FLUSH"]).await;
    commit(&engine, vec![], changes.clone()).await.unwrap();
    commit(&engine, vec![], changes).await.unwrap();
    assert_eq!(raw.text(&["GET", "usedSpace"]).await, "2");
}

#[tokio::test]
async fn evicting_servers_are_told_not_to() {
    let Some(server) = Server::start(&["--maxmemory-policy", "allkeys-lru"]).await else { return };
    server.engine().await;
    let policy = codec::pairs(server.raw().run(&["CONFIG", "GET", "maxmemory-policy"]).await).unwrap();
    assert_eq!(policy[0].1, b"noeviction");
}

#[tokio::test]
async fn a_wrong_password_is_a_denial_and_stays_secret() {
    let Some(server) = Server::start(&["--requirepass", "right"]).await else { return };
    RedisEngine::open(&format!("redis://:right@127.0.0.1:{}/1", server.port)).await.unwrap();
    for url in [format!("redis://:hunter2@127.0.0.1:{}/1", server.port), server.url(1)] {
        match RedisEngine::open(&url).await.err() {
            Some(EngineError::Fault(fault)) => {
                assert_eq!(fault.kind(), FaultKind::Denied, "{fault}");
                assert!(!fault.to_string().contains("hunter2"));
            }
            other => panic!("{other:?}"),
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn reads_outlive_a_restart_and_a_lost_commit_is_undetermined() {
    let Some(mut server) = Server::start(&[]).await else { return };
    let engine = server.engine().await;
    commit(&engine, vec![], vec![Change::AddCounter(Counter::UsedSpace, 1)]).await.unwrap();
    // The connection is dead, the server is back: nobody notices.
    server.stop();
    server.restart().await;
    assert_eq!(engine.read(&[Key::Setting]).await.unwrap(), [None]);
    // The server comes back while the read waits.
    server.stop();
    let reading = tokio::spawn({
        let engine = engine.clone();
        async move { engine.read(&[Key::Setting, Key::AnyDentry(Ino(1))]).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.restart().await;
    assert_eq!(reading.await.unwrap().unwrap(), [None, None]);
    // The commit is on its way when the server dies.
    server.raw().run(&["CLIENT", "PAUSE", "60000", "WRITE"]).await;
    let committing = tokio::spawn({
        let engine = engine.clone();
        async move { commit(&engine, vec![], vec![Change::AddCounter(Counter::UsedSpace, 1)]).await }
    });
    tokio::time::sleep(Duration::from_millis(300)).await;
    server.stop();
    let lost = committing.await.unwrap();
    assert!(matches!(lost, Err(EngineError::Undetermined(_))), "{lost:?}");
    server.restart().await;
    commit(&engine, vec![], vec![Change::AddCounter(Counter::UsedSpace, 1)]).await.unwrap();
}

#[tokio::test]
async fn a_server_that_is_not_there_is_unavailable_in_time() {
    let port = std::net::TcpListener::bind("127.0.0.1:0").unwrap().local_addr().unwrap().port();
    let started = Instant::now();
    let opened = RedisEngine::open(&format!("redis://127.0.0.1:{port}/1?max-retry-backoff=1s")).await.map(|_| ());
    assert_eq!(kind_of(opened), FaultKind::Unavailable);
    assert!(started.elapsed() < Duration::from_secs(30));
}

/// `locked{sid}` is a list that nothing else removes: names left in it would stay after the session.
#[tokio::test]
async fn a_session_that_holds_no_lock_has_no_list_of_them() {
    let Some(server) = Server::start(&[]).await else { return };
    let here = volume_on(server.engine().await, Arc::new(SystemClock)).await;
    let there = volume_on(server.engine().await, Arc::new(SystemClock)).await;
    let ino = file(&here, "f").await;
    for client in [&here, &there] {
        client.start_session(SessionInfo::default(), Duration::from_secs(12)).await.unwrap();
        for owner in [1, 2] {
            client.flock(ino, owner, LockKind::Read, false).await.unwrap();
            client.set_plock(ino, owner, LockKind::Read, 0, 9, 1, false).await.unwrap();
        }
    }
    let lists = async || server.raw().keys().await.into_iter().filter(|key| key.starts_with("locked")).count();
    assert_eq!(lists().await, 2);
    for owner in [1, 2] {
        here.flock(ino, owner, LockKind::Unlock, false).await.unwrap();
        here.set_plock(ino, owner, LockKind::Unlock, 0, 9, 1, false).await.unwrap();
    }
    assert_eq!(lists().await, 1, "unlocked");
    here.clean_session(there.session()).await.unwrap();
    assert_eq!(lists().await, 0, "cleaned up");
}

#[tokio::test]
async fn the_volume_of_the_peer_is_read() {
    let Some(server) = Server::start(&[]).await else { return };
    let Some(peer) = program("juicefs") else { return skip("juicefs is not installed") };
    let bucket = tempfile::tempdir().unwrap();
    let formatted = Command::new(peer)
        .args(["format", &server.url(1), "peer", "--storage", "file", "--bucket"])
        .arg(bucket.path())
        .env("HOME", bucket.path())
        .output()
        .unwrap();
    assert!(formatted.status.success(), "{}", String::from_utf8_lossy(&formatted.stderr));
    let engine = server.engine().await;
    let records = engine.read(&[Key::Setting, Key::Attr(Ino::ROOT), Key::Attr(Ino::TRASH)]).await.unwrap();
    let [Some(Record::Bytes(setting)), Some(Record::Attr(root)), Some(Record::Attr(trash))] = &records[..] else {
        panic!("{records:?}")
    };
    assert!(String::from_utf8_lossy(setting).contains("\"peer\""));
    assert_eq!(
        (root.kind, root.mode, root.nlink, root.length, root.parent),
        (Kind::Directory, 0o777, 2, 4096, Ino::ROOT)
    );
    assert_eq!((trash.kind, trash.mode, trash.parent), (Kind::Directory, 0o555, Ino::ROOT));
    assert_eq!(server.raw().bytes(&["GET", "i1"]).await, root.encode());
    assert_eq!(engine.scan(&Scan::Attrs, None, 1000).await.unwrap().rows.len(), 2);
}

/// A create as the operation lists it: what the server spends on it, printed for the curious, bounded for CI.
#[tokio::test]
async fn a_create_costs_the_server_little() {
    let Some(server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let parent = Ino(1);
    commit(&engine, vec![], vec![put(Key::Attr(parent), Record::Attr(directory()))]).await.unwrap();
    raw.run(&["CONFIG", "RESETSTAT"]).await;
    const CREATES: u64 = 500;
    let started = Instant::now();
    for i in 0..CREATES {
        let name = Key::Dentry(parent, Name::stored(format!("file {i}").into_bytes()));
        let (txn, loaded) = engine.begin(&[Key::Attr(parent), name.clone()]).await.unwrap();
        assert_eq!(loaded, [Some(Record::Attr(seen(&loaded))), None]);
        let looked_at = FieldMask::KIND | FieldMask::MODE | FieldMask::UID | FieldMask::GID | FieldMask::FLAGS;
        let guards = vec![
            Guard::Fields(parent, seen(&loaded), looked_at | FieldMask::ACLS | FieldMask::TIER),
            Guard::Absent(name.clone()),
        ];
        let ino = Ino(10 + i);
        let changes = vec![
            put(Key::Attr(ino), Record::Attr(Attr { kind: Kind::File, parent, ..directory() })),
            put(name, Record::Dentry(Dentry { kind: Kind::File, ino })),
            Change::Patch(parent, AttrPatch::new().touch(Timestamp::new(i as i64, 1))),
            Change::AddCounter(Counter::UsedSpace, 4096),
            Change::AddCounter(Counter::TotalInodes, 1),
            Change::AddDirStat(parent, DirStat { length: 0, space: 4096, inodes: 1 }),
        ];
        txn.commit(Batch { guards, changes }).await.unwrap();
    }
    let elapsed = started.elapsed();
    let stats = raw.text(&["INFO", "commandstats"]).await;
    let per_call = |command: &str| -> f64 {
        let line = stats.lines().find(|line| line.starts_with(&format!("cmdstat_{command}:"))).expect(command);
        let value = line.split(',').find_map(|part| part.strip_prefix("usec_per_call=")).expect("usec_per_call");
        value.parse().unwrap()
    };
    let (script, load) = (per_call("evalsha"), per_call("exec"));
    eprintln!(
        "create: script {script:.1} us, load {load:.1} us of server time; {:.0} us a create in all",
        elapsed.as_micros() as f64 / CREATES as f64
    );
    // A loaded machine is slow; a script that has become quadratic is slower.
    assert!(script < 1000.0, "{stats}");
}

fn seen(loaded: &[Option<Record>]) -> Attr {
    match loaded[0] {
        Some(Record::Attr(attr)) => attr,
        _ => panic!("{loaded:?}"),
    }
}

#[tokio::test]
async fn reads_wait_for_a_server_that_loads_its_data() {
    let Some(mut server) = Server::start(&[]).await else { return };
    let (engine, raw) = (server.engine().await, server.raw());
    let keys = [Key::Counter(Counter::NextInode), Key::Attr(Ino::ROOT)];
    commit(&engine, vec![], vec![Change::AddCounter(Counter::NextInode, 7)]).await.unwrap();
    raw.run(&["EVAL", "for i = 1, 2000 do redis.call('SET', 'filler' .. i, i) end", "0"]).await;
    raw.run(&["SAVE"]).await;
    server.stop();
    // A millisecond for each key, and requests are answered meanwhile, with LOADING.
    server.options = vec!["--key-load-delay", "1000", "--loading-process-events-interval-bytes", "1024"];
    server.restart().await;
    let begun = Instant::now();
    let read = engine.read(&keys).await.unwrap();
    assert!(begun.elapsed() > Duration::from_millis(500), "the server was up at once: nothing was tested");
    assert!(read[0].is_some() && read[1].is_none());
    server.stop();
    server.restart().await;
    let (_, records) = engine.begin(&keys).await.unwrap();
    assert_eq!(records, read);
}
