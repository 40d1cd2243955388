//! What only this engine promises: the peer's layout to the byte, several engines on one file, and what a broken or
//! missing file is answered with. What every engine promises is in `engine/suite.rs`.

use super::*;
use crate::base::{
    Attr, AttrPatch, ChunkIndex, FaultKind, FieldMask, Kind, Name, SessionId, Slice, SliceId, Timestamp,
};
use crate::meta::engine::{Change, Guard};
use crate::meta::record::{Dentry, FlockHolder, PlockHolder, PlockRange, Quota, QuotaOwner, Session};
use bytes::Bytes;
use rusqlite::types::Value;

struct Volume {
    engine: SqliteEngine,
    dir: tempfile::TempDir,
}

impl Volume {
    fn path(&self) -> PathBuf {
        self.dir.path().join("meta.db")
    }

    fn again(&self) -> SqliteEngine {
        SqliteEngine::open(&self.path(), SqliteOptions::default()).unwrap()
    }

    /// The file as others see it.
    fn raw(&self) -> Connection {
        Connection::open(self.path()).unwrap()
    }

    fn rows(&self, text: &str) -> Vec<Vec<Value>> {
        rows(&self.raw(), text)
    }
}

fn rows(conn: &Connection, text: &str) -> Vec<Vec<Value>> {
    let mut statement = conn.prepare(text).unwrap();
    let columns = statement.column_count();
    let rows = statement.query_map((), |row| (0..columns).map(|at| row.get(at)).collect()).unwrap();
    rows.collect::<Result<_, _>>().unwrap()
}

async fn volume() -> Volume {
    let dir = tempfile::tempdir().unwrap();
    let engine = SqliteEngine::open(&dir.path().join("meta.db"), SqliteOptions::default()).unwrap();
    engine.prepare().await.unwrap();
    Volume { engine, dir }
}

fn attr(kind: Kind) -> Attr {
    let time = Timestamp::new(1_795_968_751, 802_140_652);
    Attr {
        flags: 0,
        kind,
        mode: 0o644,
        uid: 0,
        gid: 0,
        atime: time,
        mtime: time,
        ctime: time,
        nlink: if kind == Kind::Directory { 2 } else { 1 },
        length: if kind == Kind::Directory { 4096 } else { 0 },
        rdev: 0,
        parent: Ino::ROOT,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

fn name(text: &str) -> Name {
    Name::entry(text.as_bytes()).unwrap()
}

fn slice(id: u64) -> Slice {
    Slice { pos: 0, id: SliceId(id), size: 10, off: 0, len: 10 }
}

async fn commit(engine: &SqliteEngine, guards: Vec<Guard>, changes: Vec<Change>) -> EngineResult<Committed> {
    let (txn, _) = engine.begin(&[]).await?;
    txn.commit(Batch { guards, changes }).await
}

async fn get(engine: &SqliteEngine, key: Key) -> Option<Record> {
    engine.read(&[key]).await.unwrap().pop().unwrap()
}

fn put(key: Key, record: Record) -> Change {
    Change::Put(key, record)
}

/// `sqlite_master` of a volume that JuiceFS 1.4.2 has made.
const PEER_SCHEMA: &str = include_str!("peer_schema.sql");

#[tokio::test]
async fn the_schema_is_the_peers() {
    let v = volume().await;
    let made = v.rows("SELECT sql FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'");
    let made: Vec<String> = made
        .into_iter()
        .map(|row| match &row[0] {
            Value::Text(sql) => sql.clone(),
            other => panic!("{other:?}"),
        })
        .collect();
    let peer: Vec<&str> = PEER_SCHEMA.lines().collect();
    assert_eq!(made, peer);
    // Preparing again changes nothing.
    v.engine.prepare().await.unwrap();
    assert_eq!(
        v.rows("SELECT COUNT(*) FROM sqlite_master WHERE sql IS NOT NULL AND name NOT LIKE 'sqlite_%'").len(),
        1
    );
    assert_eq!(
        v.rows("SELECT name, value FROM jfs_counter ORDER BY rowid"),
        [
            ("nextInode", 2),
            ("nextChunk", 1),
            ("nextSession", 0),
            ("usedSpace", 0),
            ("totalInodes", 0),
            ("nextCleanupSlices", 0)
        ]
        .map(|(n, v)| vec![Value::Text(n.into()), Value::Integer(v)])
    );
    assert_eq!(v.rows("PRAGMA journal_mode"), [[Value::Text("wal".into())]]);
}

#[tokio::test]
async fn rows_have_the_peers_form() {
    let v = volume().await;
    let e = &v.engine;
    let rule = crate::base::acl::AclRule {
        owner: 7,
        mask: 0xFFFF,
        users: vec![(1000, 6)],
        ..crate::base::acl::AclRule::empty()
    };
    commit(
        e,
        vec![],
        vec![
            put(Key::Setting, Record::Bytes(Bytes::from_static(b"{}"))),
            put(Key::Attr(Ino(2)), Record::Attr(Attr { kind: Kind::File, uid: 3_000_000_000, ..attr(Kind::File) })),
            put(Key::Dentry(Ino(1), name("f")), Record::Dentry(Dentry { kind: Kind::File, ino: Ino(2) })),
            put(Key::Chunk(Ino(2), ChunkIndex(3)), Record::Slices(vec![slice(5)])),
            put(Key::SliceRef(SliceId(5), 10), Record::Number(1)),
            put(Key::Xattr(Ino(2), name("user.k")), Record::Bytes(Bytes::from_static(b"v\0"))),
            put(Key::AclRule(1), Record::AclRule(rule.clone())),
            put(
                Key::Quota(QuotaOwner::Group(8)),
                Record::Quota(Quota { max_space: -1, max_inodes: 5, used_space: 1, used_inodes: 2 }),
            ),
            put(Key::Session(SessionId(4)), Record::Session(Session { expire: 9, info: Bytes::new() })),
            Change::SetFlock {
                ino: Ino(2),
                session: SessionId(4),
                owner: u64::MAX,
                exclusive: Some(true),
                last: false,
            },
            put(Key::Counter(Counter::NextInode), Record::Number(1025)),
        ],
    )
    .await
    .unwrap();
    let text = |s: &str| Value::Text(s.into());
    let int = Value::Integer;
    let blob = |b: &[u8]| Value::Blob(b.into());
    let time = int(1_795_968_751_802_140);
    assert_eq!(v.rows("SELECT * FROM jfs_setting"), [[text("format"), text("{}")]]);
    assert_eq!(
        v.rows("SELECT * FROM jfs_node"),
        [[
            int(2),
            int(1),
            int(0),
            int(0o644),
            int(3_000_000_000),
            int(0),
            time.clone(),
            time.clone(),
            time,
            int(652),
            int(652),
            int(652),
            int(1),
            int(0),
            int(0),
            int(1),
            int(0),
            int(0),
            int(0)
        ]]
    );
    assert_eq!(v.rows("SELECT * FROM jfs_edge"), [[int(1), int(1), blob(b"f"), int(2), int(1)]]);
    assert_eq!(v.rows("SELECT * FROM jfs_chunk"), [[int(1), int(2), int(3), blob(&slice(5).encode())]]);
    assert_eq!(v.rows("SELECT * FROM jfs_chunk_ref"), [[int(5), int(10), int(1)]]);
    assert_eq!(v.rows("SELECT * FROM jfs_xattr"), [[int(1), int(2), text("user.k"), blob(b"v\0")]]);
    assert_eq!(
        v.rows("SELECT * FROM jfs_acl"),
        [[int(1), int(7), int(65535), int(65535), int(65535), blob(&[0, 0, 3, 0xe8, 0, 6]), blob(b"")]]
    );
    assert_eq!(v.rows("SELECT * FROM jfs_user_group_quota"), [[int(2), int(8), int(-1), int(5), int(1), int(2)]]);
    assert_eq!(v.rows("SELECT * FROM jfs_session2"), [[int(4), int(9), Value::Null]]);
    assert_eq!(v.rows("SELECT * FROM jfs_flock"), [[int(1), int(2), int(4), int(-1), int(87)]]);
    assert_eq!(v.rows("SELECT value FROM jfs_counter WHERE name = 'nextInode'"), [[int(1026)]]);
    assert_eq!(e.allocate(Counter::NextInode, 10).await.unwrap(), 1026);
    assert_eq!(get(e, Key::AclRule(1)).await, Some(Record::AclRule(rule)));
    assert_eq!(get(e, Key::Counter(Counter::AclMaxId)).await, Some(Record::Number(1)));
    assert_eq!(e.allocate(Counter::AclMaxId, 1).await.unwrap(), 2);
    // The database numbers the peer's next rule after ours.
    v.raw().execute("INSERT INTO jfs_acl (owner) VALUES (1)", ()).unwrap();
    assert_eq!(v.rows("SELECT id FROM jfs_acl"), [[int(1)], [int(3)]]);
}

#[tokio::test]
async fn a_list_that_became_text_is_read_and_stays_a_list() {
    let v = volume().await;
    let key = || Key::Chunk(Ino(2), ChunkIndex(0));
    commit(&v.engine, vec![], vec![put(key(), Record::Slices(vec![slice(1)]))]).await.unwrap();
    v.raw().execute("UPDATE jfs_chunk SET slices = slices || ?1", [slice(2).encode()]).unwrap();
    assert_eq!(v.rows("SELECT typeof(slices) FROM jfs_chunk"), [[Value::Text("text".into())]]);
    let two = vec![slice(1), slice(2)];
    assert_eq!(get(&v.engine, key()).await, Some(Record::Slices(two.clone())));
    let append = Change::Append { ino: Ino(2), index: ChunkIndex(0), slices: vec![slice(3)], only_existing: true };
    let guard = Guard::ChunkPrefix(Ino(2), ChunkIndex(0), two);
    let done = commit(&v.engine, vec![guard], vec![append]).await.unwrap();
    assert_eq!(done.list_lengths, [3]);
    assert_eq!(
        v.rows("SELECT typeof(slices), length(slices) FROM jfs_chunk"),
        [[Value::Text("blob".into()), Value::Integer(72)]]
    );
    let page = v.engine.scan(&Scan::Chunks, None, 10).await.unwrap();
    assert_eq!(page.rows, [(key(), Record::Slices(vec![slice(1), slice(2), slice(3)]))]);
}

#[tokio::test]
async fn a_record_that_does_not_decode_is_named() {
    let v = volume().await;
    v.raw().execute("INSERT INTO jfs_chunk (inode, indx, slices) VALUES (7, 0, x'00')", ()).unwrap();
    let broken = v.engine.read(&[Key::Attr(Ino(1)), Key::Chunk(Ino(7), ChunkIndex(0))]).await;
    match broken {
        Err(EngineError::Fault(fault)) => {
            assert_eq!(fault.kind(), FaultKind::Corrupt);
            assert!(fault.to_string().contains("Chunk(Ino(7), ChunkIndex(0))"), "{fault}");
        }
        other => panic!("{other:?}"),
    }
    // The connection is none the worse.
    assert_eq!(get(&v.engine, Key::Attr(Ino(1))).await, None);
}

#[tokio::test]
async fn a_batch_that_stops_half_way_leaves_nothing() {
    let v = volume().await;
    let patch = Change::Patch(Ino(99), AttrPatch::new().add_nlink(1));
    let counted = Change::AddCounter(Counter::UsedSpace, 5);
    let refused = commit(&v.engine, vec![], vec![counted.clone(), patch]).await;
    assert!(matches!(refused, Err(EngineError::Conflict)), "{refused:?}");
    assert_eq!(get(&v.engine, Key::Counter(Counter::UsedSpace)).await, Some(Record::Number(0)));
    commit(&v.engine, vec![], vec![counted]).await.unwrap();
    assert_eq!(get(&v.engine, Key::Counter(Counter::UsedSpace)).await, Some(Record::Number(5)));
}

/// Several engines on one file: each increment is guarded by what its load saw, so none is lost, whoever commits in
/// place, in a group, or meets another's lock.
#[tokio::test(flavor = "multi_thread", worker_threads = 4)]
async fn engines_on_one_file_lose_no_update() {
    const TASKS: u32 = 6;
    const ROUNDS: u32 = 40;
    let v = volume().await;
    commit(&v.engine, vec![], vec![put(Key::Attr(Ino(1)), Record::Attr(attr(Kind::Directory)))]).await.unwrap();
    let engines = [v.again(), v.again(), v.engine.clone()];
    let mut tasks = tokio::task::JoinSet::new();
    for task in 0..TASKS {
        let engine = engines[task as usize % engines.len()].clone();
        tasks.spawn(async move {
            let mut conflicts = 0;
            for round in 0..ROUNDS {
                loop {
                    let (txn, mut loaded) = engine.begin(&[Key::Attr(Ino(1))]).await.unwrap();
                    let Some(Some(Record::Attr(seen))) = loaded.pop() else { panic!("{loaded:?}") };
                    let batch = Batch {
                        guards: vec![Guard::Fields(Ino(1), seen, FieldMask::UID)],
                        changes: vec![
                            Change::Patch(Ino(1), AttrPatch::new().set_uid(seen.uid + 1).add_nlink(1)),
                            Change::AddCounter(Counter::TotalInodes, 1),
                            put(
                                Key::Dentry(Ino(1), name(&format!("{task}-{round}"))),
                                Record::Dentry(Dentry { kind: Kind::File, ino: Ino(2) }),
                            ),
                        ],
                    };
                    match txn.commit(batch).await {
                        Ok(_) => break,
                        Err(EngineError::Conflict) => conflicts += 1,
                        Err(other) => panic!("{other:?}"),
                    }
                    tokio::task::yield_now().await;
                }
            }
            conflicts
        });
    }
    tasks.join_all().await;
    let all = TASKS * ROUNDS;
    let Some(Record::Attr(end)) = get(&v.engine, Key::Attr(Ino(1))).await else { panic!() };
    assert_eq!((end.uid, end.nlink), (all, 2 + all));
    assert_eq!(get(&v.engine, Key::Counter(Counter::TotalInodes)).await, Some(Record::Number(all.into())));
    let parents = get(&v.engine, Key::LinkParents(Ino(2))).await;
    assert_eq!(parents, Some(Record::LinkParents(vec![(Ino(1), all.into())])));
    assert_eq!(v.rows("PRAGMA integrity_check"), [[Value::Text("ok".into())]]);
}

/// Another process in the middle of a transaction is waited for, and readers are not kept from what was committed.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_foreign_transaction_is_waited_for() {
    let v = volume().await;
    let foreign = v.raw();
    foreign.execute_batch("BEGIN IMMEDIATE; UPDATE jfs_counter SET value = 7 WHERE name = 'usedSpace'").unwrap();
    let engine = v.engine.clone();
    let ours = tokio::spawn(async move {
        commit(&engine, vec![], vec![Change::AddCounter(Counter::UsedSpace, 1)]).await.unwrap();
    });
    tokio::time::sleep(Duration::from_millis(50)).await;
    assert!(!ours.is_finished());
    assert_eq!(get(&v.engine, Key::Counter(Counter::UsedSpace)).await, Some(Record::Number(0)));
    foreign.execute_batch("COMMIT").unwrap();
    ours.await.unwrap();
    assert_eq!(get(&v.engine, Key::Counter(Counter::UsedSpace)).await, Some(Record::Number(8)));
    v.engine.sync().await.unwrap();
}

#[tokio::test]
async fn volumes_share_a_file_under_their_prefixes() {
    let v = volume().await;
    let other = SqliteOptions { table_prefix: Some("abc".to_owned()) };
    let other = SqliteEngine::open(&v.path(), other).unwrap();
    assert_eq!(get(&other, Key::Setting).await, None);
    other.prepare().await.unwrap();
    let setting = put(Key::Setting, Record::Bytes(Bytes::from_static(b"other")));
    commit(&other, vec![], vec![setting]).await.unwrap();
    assert_eq!(get(&v.engine, Key::Setting).await, None);
    v.engine.erase().await.unwrap();
    assert_eq!(
        v.rows("SELECT COUNT(*) FROM sqlite_master WHERE name LIKE 'jfs_abc_%' AND type = 'table'"),
        [[Value::Integer(21)]]
    );
    assert_eq!(
        v.rows("SELECT COUNT(*) FROM sqlite_master WHERE name LIKE '%jfs_%' AND name NOT LIKE '%jfs_abc_%'"),
        [[Value::Integer(0)]]
    );
    assert_eq!(get(&other, Key::Setting).await, Some(Record::Bytes(Bytes::from_static(b"other"))));
    assert_eq!(get(&v.engine, Key::Setting).await, None);
}

#[tokio::test]
async fn what_is_no_database_is_said_in_a_sentence() {
    let dir = tempfile::tempdir().unwrap();
    let open = |path: &Path| SqliteEngine::open(path, SqliteOptions::default());
    let error = open(&dir.path().join("no/meta.db")).err().unwrap();
    assert_eq!(error.kind(), FaultKind::Config);
    assert!(error.to_string().contains("directory of the database file does not exist"), "{error}");
    let text = dir.path().join("text");
    std::fs::write(&text, "just some text, and enough of it to be no header of a database").unwrap();
    let error = open(&text).err().unwrap();
    assert!(error.to_string().contains("not a SQLite database"), "{error}");
    assert!(open(dir.path()).err().unwrap().to_string().contains("is a directory"));
    // A path that is mistyped is an empty volume, and stays no file.
    let missing = dir.path().join("missing.db");
    let engine = open(&missing).unwrap();
    assert_eq!(get(&engine, Key::Setting).await, None);
    assert!(engine.scan(&Scan::Attrs, None, 1).await.unwrap().rows.is_empty());
    match engine.allocate(Counter::NextInode, 1).await {
        Err(EngineError::Fault(fault)) => assert_eq!(fault.kind(), FaultKind::NotFound),
        other => panic!("{other:?}"),
    }
    engine.sync().await.unwrap();
    assert!(!missing.exists());
}

/// A volume of an older client: columns, tables and indexes that came later are completed, rows stay.
#[tokio::test]
async fn an_older_schema_is_completed() {
    let v = volume().await;
    commit(&v.engine, vec![], vec![put(Key::Attr(Ino(1)), Record::Attr(attr(Kind::Directory)))]).await.unwrap();
    v.raw()
        .execute_batch(
            "ALTER TABLE jfs_node DROP COLUMN tier_id; ALTER TABLE jfs_node DROP COLUMN mtimensec; \
             DROP TABLE jfs_user_group_quota; DROP INDEX IDX_jfs_edge_inode",
        )
        .unwrap();
    v.engine.prepare().await.unwrap();
    let Some(Record::Attr(root)) = get(&v.engine, Key::Attr(Ino(1))).await else { panic!() };
    assert_eq!(root.mtime, Timestamp::new(1_795_968_751, 802_140_000));
    assert_eq!(
        v.rows("SELECT COUNT(*) FROM sqlite_master WHERE name IN ('jfs_user_group_quota', 'IDX_jfs_edge_inode')"),
        [[Value::Integer(2)]]
    );
}

/// A log that has grown is moved into the database beside the commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_grown_log_is_checkpointed() {
    let v = volume().await;
    let value = Bytes::from(vec![7u8; 60 << 10]);
    for i in 0..400 {
        let key = Key::Xattr(Ino(i), name("user.big"));
        commit(&v.engine, vec![], vec![put(key, Record::Bytes(value.clone()))]).await.unwrap();
    }
    let moved = || std::fs::metadata(v.path()).unwrap().len() > 10 << 20;
    for _ in 0..500 {
        if moved() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(10)).await;
    }
    assert!(moved());
    assert_eq!(get(&v.again(), Key::Xattr(Ino(399), name("user.big"))).await, Some(Record::Bytes(value)));
}

/// The contract of the seam, on a store whose counters were never written.
mod contract {
    use super::*;
    use crate::meta::engine::suite::{Opened, engine_suite};

    async fn open() -> Option<Opened> {
        let v = volume().await;
        v.raw().execute("DELETE FROM jfs_counter", ()).unwrap();
        Some(Opened { engine: Arc::new(v.engine), derives_link_parents: true, keep: Box::new(v.dir) })
    }

    engine_suite!(open);
}

/// Rows as JuiceFS leaves them, with chunk lists that its appends have made text.
#[tokio::test]
async fn a_volume_that_the_peer_filled_is_read_right() {
    let v = volume().await;
    v.raw().execute_batch(&format!("DELETE FROM jfs_counter; {}", include_str!("peer_volume.sql"))).unwrap();
    let e = &v.engine;
    let piece = |pos, id, len| Slice { pos, id: SliceId(id), size: len, off: 0, len };
    let list = vec![piece(0, 1, 6), piece(1, 2, 2), piece(3, 3, 2)];
    assert_eq!(v.rows("SELECT typeof(slices) FROM jfs_chunk WHERE inode = 4"), [[Value::Text("text".into())]]);
    assert_eq!(get(e, Key::Chunk(Ino(4), ChunkIndex(0))).await, Some(Record::Slices(list)));
    let file = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(4) });
    assert_eq!(get(e, Key::Dentry(Ino(2), name("f"))).await, Some(file));
    assert_eq!(get(e, Key::LinkParents(Ino(4))).await, Some(Record::LinkParents(vec![(Ino(2), 1), (Ino(3), 1)])));
    let big = Attr {
        flags: 0,
        kind: Kind::File,
        mode: 0o4770,
        uid: 1000,
        gid: 3_000_000_000,
        atime: Timestamp::new(1_234_567_890, 123_456_789),
        mtime: Timestamp::new(1_700_000_000, 1),
        ctime: Timestamp::new(1_795_971_038, 917_853_856),
        nlink: 1,
        length: 5000,
        rdev: 0,
        parent: Ino::ROOT,
        access_acl: 1,
        default_acl: 0,
        tier: 0,
    };
    assert_eq!(get(e, Key::Attr(Ino(6))).await, Some(Record::Attr(big)));
    let rule =
        crate::base::acl::AclRule { owner: 7, group: 5, mask: 7, other: 0, users: vec![(1000, 6)], groups: vec![] };
    assert_eq!(get(e, Key::AclRule(1)).await, Some(Record::AclRule(rule)));
    assert_eq!(get(e, Key::Symlink(Ino(5))).await, Some(Record::Bytes(Bytes::from_static(b"d/f"))));
    let xattrs = vec![(name("user.k"), Bytes::from_static(b"v\0w"))];
    assert_eq!(get(e, Key::Xattrs(Ino(4))).await, Some(Record::Xattrs(xattrs)));
    let owner = -2_284_238_986_877_986_483i64 as u64;
    let flocks = vec![FlockHolder { session: SessionId(1), owner, exclusive: false }];
    assert_eq!(get(e, Key::Flocks(Ino(4))).await, Some(Record::Flocks(flocks)));
    let ranges = vec![PlockRange { exclusive: true, pid: 24102, start: 50, end: 149 }];
    let owner = -7_570_454_419_576_785_045i64 as u64;
    let plocks = vec![PlockHolder { session: SessionId(1), owner, ranges }];
    assert_eq!(get(e, Key::Plocks(Ino(6))).await, Some(Record::Plocks(plocks)));
    let listed = e.scan_plus(Ino::ROOT, None, 10).await.unwrap().entries;
    let names: Vec<String> = listed.iter().map(|(name, ..)| name.to_string()).collect();
    assert_eq!(names, ["big", "d", "fifo", "s"]);
    assert!(listed.iter().all(|(.., attr)| attr.is_some()));
    let trashed = e.scan(&Scan::Dentries(Ino(Ino::TRASH.0 + 1)), None, 10).await.unwrap().rows;
    assert_eq!(trashed[0].0, Key::Dentry(Ino(Ino::TRASH.0 + 1), name("1-7-gone")));
    for scan in [Scan::Attrs, Scan::AllDentries, Scan::Chunks, Scan::SliceRefs, Scan::DirStats, Scan::Sessions] {
        assert!(!e.scan(&scan, None, 100).await.unwrap().rows.is_empty(), "{scan:?}");
    }
    let locked = e.scan(&Scan::LocksOf(SessionId(1)), None, 100).await.unwrap().rows;
    assert_eq!(locked.into_iter().map(|(key, _)| key).collect::<Vec<_>>(), [Key::Flocks(Ino(4))]);
    // Where the peer stopped, ours go on.
    assert_eq!(e.allocate(Counter::NextInode, 1).await.unwrap(), 1026);
    assert_eq!(e.allocate(Counter::NextSlice, 1).await.unwrap(), 4097);
    assert_eq!(e.allocate(Counter::NextSession, 1).await.unwrap(), 2);
    assert_eq!(e.allocate(Counter::NextTrash, 1).await.unwrap(), 2);
}

/// How long things take; run by hand: `cargo test --release sqlite_timings -- --ignored --nocapture`.
#[tokio::test]
#[ignore = "prints timings"]
async fn sqlite_timings() {
    let v = volume().await;
    let e = &v.engine;
    commit(e, vec![], vec![put(Key::Attr(Ino(1)), Record::Attr(attr(Kind::Directory)))]).await.unwrap();
    let rounds = 5000u64;
    let started = Instant::now();
    let mut loading = Duration::ZERO;
    for i in 0..rounds {
        let begun = Instant::now();
        let entry = name(&format!("file {i}"));
        let keys = [Key::Attr(Ino(1)), Key::Dentry(Ino(1), entry.clone())];
        let (txn, loaded) = e.begin(&keys).await.unwrap();
        loading += begun.elapsed();
        let Some(Some(Record::Attr(seen))) = loaded.first() else { panic!() };
        let ino = Ino(10 + i);
        let batch = Batch {
            guards: vec![
                Guard::Fields(Ino(1), *seen, FieldMask::KIND | FieldMask::MODE | FieldMask::UID),
                Guard::Absent(keys[1].clone()),
            ],
            changes: vec![
                put(Key::Attr(ino), Record::Attr(attr(Kind::File))),
                put(keys[1].clone(), Record::Dentry(Dentry { kind: Kind::File, ino })),
                Change::Patch(Ino(1), AttrPatch::new().touch(Timestamp::new(i as i64, 0))),
                Change::AddCounter(Counter::UsedSpace, 4096),
                Change::AddCounter(Counter::TotalInodes, 1),
            ],
        };
        txn.commit(batch).await.unwrap();
    }
    let each = started.elapsed() / rounds as u32;
    println!("create: {each:?}, of it loads {:?}", loading / rounds as u32);
    let started = Instant::now();
    for i in 0..rounds {
        get(e, Key::Attr(Ino(10 + i))).await.unwrap();
    }
    println!("read: {:?}", started.elapsed() / rounds as u32);
    let started = Instant::now();
    let tasks = (0..16).map(|task: u64| {
        let engine = e.clone();
        tokio::task::spawn_blocking(move || {
            tokio::runtime::Handle::current().block_on(async {
                for i in 0..500 {
                    let key = Key::Attr(Ino(100_000 + task * 1000 + i));
                    commit(&engine, vec![], vec![put(key, Record::Attr(attr(Kind::File)))]).await.unwrap();
                }
            })
        })
    });
    futures::future::join_all(tasks).await;
    println!("put, 16 writers: {:?}", started.elapsed() / 8000);
}

/// Who closes last leaves one file behind, with everything in it.
#[tokio::test]
async fn a_closed_engine_leaves_no_log() {
    let Volume { engine, dir } = volume().await;
    commit(&engine, vec![], vec![put(Key::Setting, Record::Bytes(Bytes::from_static(b"kept")))]).await.unwrap();
    assert!(dir.path().join("meta.db-wal").exists());
    drop(engine);
    let left: Vec<_> = std::fs::read_dir(dir.path()).unwrap().map(|f| f.unwrap().file_name()).collect();
    assert_eq!(left, ["meta.db"]);
    let engine = SqliteEngine::open(&dir.path().join("meta.db"), SqliteOptions::default()).unwrap();
    assert_eq!(get(&engine, Key::Setting).await, Some(Record::Bytes(Bytes::from_static(b"kept"))));
}
