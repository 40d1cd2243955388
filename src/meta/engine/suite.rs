//! The contract of the engine seam as tests: every engine runs the same cases, so that a difference between two
//! engines is a failing test and not a surprise in an operation.
//!
//! An engine's test module writes `engine_suite!(open);`, where `open` is an
//! `async fn() -> Option<Opened>` that gives a fresh, empty store each time (`None`: announced as skipped). Each
//! case becomes one test. Layout (golden bytes, raw rows) is tested by each engine on its own.

use super::{Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, Guard, Scan};
use crate::base::acl::AclRule;
use crate::base::{Attr, AttrPatch, ChunkIndex, FieldMask, Ino, Kind, Name, SessionId, Slice, SliceId, Timestamp};
use crate::meta::record::{
    Counter, Dentry, DirStat, FlockHolder, Key, PlockHolder, PlockRange, Quota, QuotaOwner, Record, Session,
};
use bytes::Bytes;
use std::any::Any;
use std::collections::HashMap;
use std::sync::Arc;

/// A fresh store under test.
pub struct Opened {
    pub engine: Arc<dyn Engine>,
    /// Link parents are derived from the entries (SQL) instead of stored.
    pub derives_link_parents: bool,
    /// What must live as long as the engine: a temporary directory, a server process.
    pub keep: Box<dyn Any + Send>,
}

/// Changes of one commit where a case has many.
const PART: usize = 100;

/// Makes one test of each case; see the module's documentation.
macro_rules! engine_suite {
    ($open:path) => {
        engine_suite!(@each $open;
            every_family_survives_put_read_and_delete
            attributes_survive_whatever_their_tail
            what_was_never_put_is_absent
            collecting_keys_gather_and_drop_all_parts
            a_field_guard_minds_its_field_and_no_other
            a_field_guard_of_a_missing_node_conflicts
            record_guards_hold_and_fail
            emptiness_of_a_directory_is_guarded
            a_patch_changes_its_fields_and_no_other
            relative_patches_add_and_grow
            a_patch_of_a_missing_node_changes_nothing
            chunks_append_and_report_their_length
            a_chunk_prefix_is_guarded_and_replaced
            relative_changes_add
            slice_references_are_counted_and_reported
            statistics_and_quotas_are_added_to_where_they_exist
            locks_have_holders
            an_empty_value_is_stored_or_refused
            a_failing_batch_leaves_no_trace
            changes_apply_in_order
            ids_follow_one_another
            every_scan_finds_its_records
            a_directory_is_listed_in_pages
            listing_plus_joins_attributes
            a_lookup_in_one_trip_is_two_reads
            numbers_beyond_doubles_stay_exact
            concurrent_relative_changes_sum_up
            concurrent_guarded_changes_lose_none
            a_read_is_one_snapshot
            erase_leaves_nothing
        );
    };
    (@each $open:path; $($case:ident)*) => {
        $(
            #[tokio::test(flavor = "multi_thread", worker_threads = 2)]
            async fn $case() {
                if let Some(opened) = $open().await {
                    $crate::meta::engine::suite::$case(opened).await;
                }
            }
        )*
    };
}
pub(crate) use engine_suite;

impl Opened {
    /// One transaction without loads of its own.
    async fn commit(&self, guards: Vec<Guard>, changes: Vec<Change>) -> EngineResult<Committed> {
        let (txn, _) = self.engine.begin(&[Key::Setting]).await?;
        txn.commit(Batch { guards, changes }).await
    }

    async fn apply(&self, changes: Vec<Change>) -> Committed {
        self.commit(Vec::new(), changes).await.expect("changes without guards apply")
    }

    /// Many changes, in commits that every engine takes (`Engine::batch_max`).
    async fn apply_all(&self, changes: Vec<Change>) {
        for part in changes.chunks(PART) {
            self.apply(part.to_vec()).await;
        }
    }

    async fn put(&self, key: &Key, record: &Record) {
        self.apply(vec![Change::Put(key.clone(), record.clone())]).await;
    }

    async fn get(&self, key: &Key) -> Option<Record> {
        self.read(std::slice::from_ref(key)).await.pop().expect("one answer to one key")
    }

    async fn read(&self, keys: &[Key]) -> Vec<Option<Record>> {
        let records = self.engine.read(keys).await.expect("read");
        assert_eq!(records.len(), keys.len());
        records
    }

    async fn attr(&self, ino: Ino) -> Attr {
        match self.get(&Key::Attr(ino)).await {
            Some(Record::Attr(attr)) => attr,
            other => panic!("attributes of {ino}: {other:?}"),
        }
    }

    async fn number(&self, key: &Key) -> i64 {
        match self.get(key).await {
            Some(Record::Number(n)) => n,
            None => 0,
            other => panic!("number at {key:?}: {other:?}"),
        }
    }

    async fn holds(&self, guard: Guard) -> bool {
        match self.commit(vec![guard.clone()], vec![Change::AddCounter(Counter::LastCleanupFiles, 1)]).await {
            Ok(_) => true,
            Err(EngineError::Conflict) => false,
            Err(other) => panic!("guard {guard:?}: {other:?}"),
        }
    }

    /// All rows of a scan, in pages of `limit`.
    async fn scan(&self, scan: &Scan, limit: usize) -> HashMap<Key, Record> {
        let mut rows = HashMap::new();
        let mut after: Option<Cursor> = None;
        for _ in 0..100_000 {
            let page = self.engine.scan(scan, after.as_ref(), limit).await.expect("scan");
            rows.extend(page.rows);
            match page.next {
                Some(next) => after = Some(next),
                None => return rows,
            }
        }
        panic!("{scan:?} does not end");
    }
}

fn conflicts<T: std::fmt::Debug>(result: EngineResult<T>) {
    assert!(matches!(result, Err(EngineError::Conflict)), "{result:?}");
}

fn name(text: &[u8]) -> Name {
    Name::stored(text)
}

fn file() -> Attr {
    Attr {
        flags: 0,
        kind: Kind::File,
        mode: 0o644,
        uid: 1000,
        gid: 100,
        atime: Timestamp::new(1_700_000_001, 1),
        mtime: Timestamp::new(1_700_000_002, 999_999_999),
        ctime: Timestamp::new(1_700_000_003, 123_456_789),
        nlink: 1,
        length: 123_456,
        rdev: 0,
        parent: Ino::ROOT,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

/// The variants of the stored tail: nothing, tier, ACL ids, both.
fn tails() -> [Attr; 5] {
    [
        file(),
        Attr { tier: 2, ..file() },
        Attr { access_acl: 7, ..file() },
        Attr { default_acl: 9, ..file() },
        Attr { access_acl: 7, default_acl: 9, tier: 3, ..file() },
    ]
}

/// For each field: the field, and `attr` with another value in that field only.
fn altered(attr: &Attr) -> Vec<(FieldMask, Attr)> {
    let later = |t: Timestamp| Timestamp::new(t.seconds, t.nanos ^ 1);
    let kind = if attr.kind == Kind::File { Kind::Symlink } else { Kind::File };
    vec![
        (FieldMask::FLAGS, Attr { flags: attr.flags ^ 1, ..*attr }),
        (FieldMask::KIND, Attr { kind, ..*attr }),
        (FieldMask::MODE, Attr { mode: attr.mode ^ 0o4001, ..*attr }),
        (FieldMask::MODE, Attr { mode: attr.mode ^ 0o0400, ..*attr }),
        (FieldMask::UID, Attr { uid: attr.uid ^ 1, ..*attr }),
        (FieldMask::GID, Attr { gid: attr.gid ^ 0x100, ..*attr }),
        (FieldMask::ATIME, Attr { atime: later(attr.atime), ..*attr }),
        (FieldMask::MTIME, Attr { mtime: later(attr.mtime), ..*attr }),
        (FieldMask::CTIME, Attr { ctime: later(attr.ctime), ..*attr }),
        (FieldMask::NLINK, Attr { nlink: attr.nlink + 1, ..*attr }),
        (FieldMask::LENGTH, Attr { length: attr.length ^ 1, ..*attr }),
        (FieldMask::RDEV, Attr { rdev: attr.rdev ^ 1, ..*attr }),
        (FieldMask::PARENT, Attr { parent: Ino(attr.parent.0 ^ 1), ..*attr }),
        (FieldMask::ACLS, Attr { access_acl: attr.access_acl ^ 1, ..*attr }),
        (FieldMask::ACLS, Attr { default_acl: attr.default_acl ^ 1, ..*attr }),
        (FieldMask::TIER, Attr { tier: attr.tier ^ 1, ..*attr }),
    ]
}

fn slice(id: u64) -> Slice {
    Slice { pos: id as u32 * 10, id: SliceId(id), size: 100 + id as u32, off: 1, len: 50 }
}

fn rule(uid: u32) -> Record {
    let groups = vec![(5, 4), (6, 1)];
    Record::AclRule(AclRule { owner: 7, group: 5, mask: 4, other: 0, users: vec![(uid, 6)], groups })
}

fn bytes(text: &'static [u8]) -> Record {
    Record::Bytes(Bytes::from_static(text))
}

/// Two different records for a key of every family that is put.
fn families() -> Vec<(Key, Record, Record)> {
    let (a, b) = (Ino(2), Ino(1 << 40));
    let stat = |n| Record::DirStat(DirStat { length: n, space: 4096 * n, inodes: n + 1 });
    let quota = |n| Record::Quota(Quota { max_space: n, max_inodes: -1, used_space: 4096, used_inodes: n + 2 });
    let session = |expire, info: &'static [u8]| Record::Session(Session { expire, info: Bytes::from_static(info) });
    let delayed = |ids: &[u64]| {
        let slices = ids.iter().map(|id| Slice { pos: 0, id: SliceId(*id), size: 77, off: 0, len: 77 });
        Record::Slices(slices.collect())
    };
    let dentry = |kind, ino| Record::Dentry(Dentry { kind, ino });
    vec![
        (Key::Setting, bytes(b"{\"Name\": \"x\"}"), bytes(b"{\"Name\": \"y\"}")),
        (Key::Counter(Counter::UsedSpace), Record::Number(1 << 50), Record::Number(-4096)),
        (Key::Counter(Counter::TotalInodes), Record::Number(12), Record::Number(0)),
        (Key::Counter(Counter::LastCleanupSessions), Record::Number(1_700_000_000), Record::Number(1_700_000_001)),
        (Key::Counter(Counter::LastCleanupFiles), Record::Number(1_700_000_000), Record::Number(1_700_000_001)),
        (Key::Counter(Counter::LastCleanupTrash), Record::Number(1_700_000_000), Record::Number(1_700_000_001)),
        (Key::Counter(Counter::LastCleanupSlices), Record::Number(1_700_000_000), Record::Number(1_700_000_001)),
        (Key::Attr(a), Record::Attr(file()), Record::Attr(Attr { length: 5, tier: 1, ..file() })),
        (Key::Dentry(a, name(b"x")), dentry(Kind::File, Ino(9)), dentry(Kind::Directory, Ino(9))),
        (Key::Dentry(b, name(b"not \xff utf8")), dentry(Kind::Directory, b), dentry(Kind::Directory, a)),
        (Key::Symlink(a), bytes(b"../some where/\xfe"), bytes(b"/")),
        (Key::Chunk(a, ChunkIndex(0)), Record::Slices(vec![slice(1), slice(2)]), Record::Slices(vec![slice(1)])),
        (
            Key::Chunk(b, ChunkIndex(70_000)),
            Record::Slices(vec![Slice::hole(0, 9), slice(3)]),
            Record::Slices(vec![slice(3), Slice::hole(0, 9)]),
        ),
        (Key::SliceRef(SliceId(1), 4096), Record::Number(3), Record::Number(2)),
        (Key::Xattr(a, name(b"user.a")), bytes(b"value\0with zero"), bytes(b"\0")),
        (Key::AclRule(3), rule(1000), rule(1001)),
        (Key::DirStat(a), stat(10), stat(0)),
        (Key::Quota(QuotaOwner::Directory(a)), quota(10), quota(11)),
        (Key::Quota(QuotaOwner::User(1000)), quota(20), quota(21)),
        (Key::Quota(QuotaOwner::Group(1000)), quota(30), quota(31)),
        (Key::Session(SessionId(4)), session(1_700_000_000, b"{\"Version\":\"1\"}"), session(1_700_000_060, b"{}")),
        (Key::Sustained(SessionId(4), a), Record::Number(1), Record::Number(1)),
        (Key::DeletedFile(a, 1 << 30), Record::Number(1_700_000_000), Record::Number(1_700_000_001)),
        (Key::DelayedSlices(SliceId(8), 1_700_000_000), delayed(&[1, 2]), delayed(&[2])),
    ]
}

pub async fn every_family_survives_put_read_and_delete(o: Opened) {
    for (key, first, second) in families() {
        for record in [&first, &second, &first] {
            o.put(&key, record).await;
            assert_eq!(o.get(&key).await.as_ref(), Some(record), "{key:?}");
        }
    }
    // All of them at once, in one read, in a begin and in a later load.
    let keys: Vec<Key> = families().into_iter().map(|(key, ..)| key).collect();
    let records: Vec<Option<Record>> = families().into_iter().map(|(_, record, _)| Some(record)).collect();
    assert_eq!(o.read(&keys).await, records);
    let (mut txn, begun) = o.engine.begin(&keys).await.expect("begin");
    assert_eq!(begun, records);
    assert_eq!(txn.load(&keys).await.expect("load"), records);
    o.apply(keys.iter().cloned().map(Change::Delete).collect()).await;
    assert!(o.read(&keys).await.iter().all(Option::is_none));
    // Again: removing what is not there succeeds.
    o.apply(keys.iter().cloned().map(Change::Delete).collect()).await;
}

pub async fn attributes_survive_whatever_their_tail(o: Opened) {
    let ino = Ino(2);
    for kind in (1..=7).filter_map(Kind::from_code) {
        for attr in tails() {
            let attr = Attr { kind, mode: 0o7654, ..attr };
            o.put(&Key::Attr(ino), &Record::Attr(attr)).await;
            assert_eq!(o.attr(ino).await, attr);
        }
    }
    for time in [Timestamp::new(0, 0), Timestamp::new(-5, 250_000_001), Timestamp::new(4_102_444_800, 7)] {
        let attr = Attr { atime: time, mtime: time, ctime: time, length: 1 << 56, nlink: 0, ..file() };
        o.put(&Key::Attr(ino), &Record::Attr(attr)).await;
        assert_eq!(o.attr(ino).await, attr);
    }
}

pub async fn what_was_never_put_is_absent(o: Opened) {
    for (key, ..) in families() {
        assert_eq!(o.get(&key).await, None, "{key:?}");
    }
    for key in [
        Key::AnyDentry(Ino(2)),
        Key::LinkParents(Ino(2)),
        Key::Xattrs(Ino(2)),
        Key::Flocks(Ino(2)),
        Key::Plocks(Ino(2)),
    ] {
        assert_eq!(o.get(&key).await, None, "{key:?}");
    }
    assert!(o.read(&[]).await.is_empty());
}

pub async fn collecting_keys_gather_and_drop_all_parts(o: Opened) {
    let ino = Ino(5);
    o.put(&Key::Attr(ino), &Record::Attr(file())).await;
    for (attr_name, value) in [(b"user.b", b"2"), (b"user.a", b"1")] {
        o.put(&Key::Xattr(ino, name(attr_name)), &bytes(value)).await;
    }
    o.put(&Key::Xattr(Ino(6), name(b"user.other")), &bytes(b"x")).await;
    let both = vec![(name(b"user.a"), Bytes::from("1")), (name(b"user.b"), Bytes::from("2"))];
    assert_eq!(o.get(&Key::Xattrs(ino)).await, Some(Record::Xattrs(both.clone())));
    assert!(o.holds(Guard::Same(Key::Xattrs(ino), Record::Xattrs(both.clone()))).await);
    assert!(!o.holds(Guard::Same(Key::Xattrs(ino), Record::Xattrs(both[..1].to_vec()))).await);
    assert!(!o.holds(Guard::Absent(Key::Xattrs(ino))).await);
    o.apply(vec![Change::Delete(Key::Xattr(ino, name(b"user.a")))]).await;
    assert_eq!(o.get(&Key::Xattrs(ino)).await, Some(Record::Xattrs(both[1..].to_vec())));
    o.apply(vec![Change::Delete(Key::Xattrs(ino))]).await;
    assert_eq!(o.get(&Key::Xattrs(ino)).await, None);
    assert!(o.holds(Guard::Absent(Key::Xattrs(ino))).await);
    assert_eq!(o.get(&Key::Xattr(Ino(6), name(b"user.other"))).await, Some(bytes(b"x")));

    if !o.derives_link_parents {
        let add = |parent, delta| Change::AddLinkParent { ino, parent: Ino(parent), delta };
        o.apply(vec![add(9, 1), add(1, 1), add(9, 1)]).await;
        let parents = Record::LinkParents(vec![(Ino(1), 1), (Ino(9), 2)]);
        assert_eq!(o.get(&Key::LinkParents(ino)).await, Some(parents.clone()));
        assert!(o.holds(Guard::Same(Key::LinkParents(ino), parents.clone())).await);
        o.apply(vec![add(9, -1)]).await;
        assert!(!o.holds(Guard::Same(Key::LinkParents(ino), parents)).await);
        o.apply(vec![Change::Delete(Key::LinkParents(ino))]).await;
        assert_eq!(o.get(&Key::LinkParents(ino)).await, None);
    }
}

pub async fn a_field_guard_minds_its_field_and_no_other(o: Opened) {
    let ino = Ino(2);
    for seen in tails() {
        o.put(&Key::Attr(ino), &Record::Attr(seen)).await;
        assert!(o.holds(Guard::Fields(ino, seen, FieldMask::ALL)).await);
        assert!(o.holds(Guard::Same(Key::Attr(ino), Record::Attr(seen))).await);
        for (field, now) in altered(&seen) {
            o.put(&Key::Attr(ino), &Record::Attr(now)).await;
            assert!(!o.holds(Guard::Fields(ino, seen, field)).await, "{field:?} {seen:?} {now:?}");
            assert!(!o.holds(Guard::Fields(ino, seen, FieldMask::ALL)).await, "{field:?}");
            assert!(!o.holds(Guard::Same(Key::Attr(ino), Record::Attr(seen))).await, "{field:?}");
            let others = FieldMask(FieldMask::ALL.0 & !field.0);
            assert!(o.holds(Guard::Fields(ino, seen, others)).await, "{field:?} {seen:?} {now:?}");
            for (single, _) in altered(&seen).into_iter().filter(|(other, _)| *other != field) {
                assert!(o.holds(Guard::Fields(ino, seen, single)).await, "{field:?} disturbs {single:?}");
            }
        }
    }
}

pub async fn a_field_guard_of_a_missing_node_conflicts(o: Opened) {
    assert!(!o.holds(Guard::Fields(Ino(2), file(), FieldMask::KIND)).await);
    assert!(!o.holds(Guard::Fields(Ino(2), file(), FieldMask::NONE)).await);
}

pub async fn record_guards_hold_and_fail(o: Opened) {
    for (key, first, second) in families() {
        assert!(o.holds(Guard::Absent(key.clone())).await, "{key:?}");
        assert!(!o.holds(Guard::Same(key.clone(), first.clone())).await, "{key:?}");
        o.put(&key, &first).await;
        assert!(!o.holds(Guard::Absent(key.clone())).await, "{key:?}");
        // The counter that `holds` moves is not compared with what it was.
        if key != Key::Counter(Counter::LastCleanupFiles) {
            assert!(o.holds(Guard::Same(key.clone(), first.clone())).await, "{key:?}");
        }
        if first != second {
            assert!(!o.holds(Guard::Same(key.clone(), second.clone())).await, "{key:?}");
        }
        o.apply(vec![Change::Delete(key.clone())]).await;
        assert!(o.holds(Guard::Absent(key.clone())).await, "{key:?}");
        o.apply(vec![Change::Delete(Key::Counter(Counter::LastCleanupFiles))]).await;
    }
}

pub async fn emptiness_of_a_directory_is_guarded(o: Opened) {
    let dir = Ino(3);
    let entry = Dentry { kind: Kind::File, ino: Ino(9) };
    assert_eq!(o.get(&Key::AnyDentry(dir)).await, None);
    assert!(o.holds(Guard::Absent(Key::AnyDentry(dir))).await);
    o.put(&Key::Dentry(Ino(4), name(b"elsewhere")), &Record::Dentry(entry)).await;
    o.put(&Key::Dentry(Ino(2), name(b"elsewhere")), &Record::Dentry(entry)).await;
    assert!(o.holds(Guard::Absent(Key::AnyDentry(dir))).await);
    o.put(&Key::Dentry(dir, name(b"x")), &Record::Dentry(entry)).await;
    assert_eq!(o.get(&Key::AnyDentry(dir)).await, Some(Record::Dentry(entry)));
    assert!(!o.holds(Guard::Absent(Key::AnyDentry(dir))).await);
    o.apply(vec![Change::Delete(Key::Dentry(dir, name(b"x")))]).await;
    assert_eq!(o.get(&Key::AnyDentry(dir)).await, None);
}

pub async fn a_patch_changes_its_fields_and_no_other(o: Opened) {
    let ino = Ino(2);
    let time = Timestamp::new(1_800_000_000, 42);
    let patches = [
        AttrPatch::new().set_flags(32),
        AttrPatch::new().set_mode(0o7070),
        AttrPatch::new().set_uid(77),
        AttrPatch::new().set_gid(78),
        AttrPatch::new().set_atime(time),
        AttrPatch::new().set_mtime(time),
        AttrPatch::new().set_ctime(time),
        AttrPatch::new().touch(time),
        AttrPatch::new().set_length(1 << 40),
        AttrPatch::new().set_parent(Ino::MANY),
        AttrPatch::new().set_acls(1, 0),
        AttrPatch::new().set_acls(0, 2),
        AttrPatch::new().set_acls(0, 0),
        AttrPatch::new().set_tier(0),
        AttrPatch::new().set_tier(1),
        AttrPatch::new().set_acls(3, 4).set_tier(2),
        AttrPatch::new().set_acls(0, 0).set_tier(0),
        AttrPatch::new()
            .set_flags(1)
            .set_mode(0)
            .set_uid(0)
            .set_gid(0)
            .set_atime(time)
            .touch(time)
            .set_length(0)
            .set_parent(Ino(1 << 60))
            .set_acls(5, 6)
            .set_tier(3)
            .add_nlink(2),
        AttrPatch::new(),
    ];
    for before in tails() {
        for patch in &patches {
            o.put(&Key::Attr(ino), &Record::Attr(before)).await;
            o.apply(vec![Change::Patch(ino, *patch)]).await;
            let mut after = before;
            patch.apply(&mut after);
            assert_eq!(o.attr(ino).await, after, "{patch:?} of {before:?}");
        }
    }
}

pub async fn relative_patches_add_and_grow(o: Opened) {
    let ino = Ino(2);
    let patch = |patch: AttrPatch| vec![Change::Patch(ino, patch)];
    o.put(&Key::Attr(ino), &Record::Attr(Attr { length: 1000, nlink: 255, ..file() })).await;
    o.apply(patch(AttrPatch::new().grow_to(999))).await;
    assert_eq!(o.attr(ino).await.length, 1000);
    for length in [1001, 0x1_0000_0000, 0x1_0000_0001, 1 << 56] {
        o.apply(patch(AttrPatch::new().grow_to(length))).await;
        assert_eq!(o.attr(ino).await.length, length);
    }
    o.apply(patch(AttrPatch::new().grow_to(0xFF_FFFF_FFFF))).await;
    assert_eq!(o.attr(ino).await.length, 1 << 56);
    for (delta, nlink) in [(1, 256), (-2, 254), (65_536, 65_790), (-65_790, 0), (3, 3), (-1, 2)] {
        o.apply(patch(AttrPatch::new().add_nlink(delta))).await;
        assert_eq!(o.attr(ino).await.nlink, nlink);
    }
    // Below zero it stays at zero, as in `AttrPatch::apply`.
    o.apply(patch(AttrPatch::new().add_nlink(-9))).await;
    assert_eq!(o.attr(ino).await.nlink, 0);
}

pub async fn a_patch_of_a_missing_node_changes_nothing(o: Opened) {
    let dentry = Key::Dentry(Ino(1), name(b"x"));
    let put = Change::Put(dentry.clone(), Record::Dentry(Dentry { kind: Kind::File, ino: Ino(2) }));
    conflicts(o.commit(vec![], vec![put, Change::Patch(Ino(9), AttrPatch::new().set_uid(1))]).await);
    assert_eq!(o.get(&dentry).await, None);
    assert_eq!(o.get(&Key::Attr(Ino(9))).await, None);
}

pub async fn chunks_append_and_report_their_length(o: Opened) {
    let (ino, index) = (Ino(2), ChunkIndex(1));
    let append = |slices: Vec<Slice>, only_existing| Change::Append { ino, index, slices, only_existing };
    let done = o.apply(vec![append(vec![slice(1)], true)]).await;
    assert_eq!(done.list_lengths, [0]);
    assert_eq!(o.get(&Key::Chunk(ino, index)).await, None);
    let done = o.apply(vec![append(vec![slice(1)], false), append(vec![slice(2), slice(3)], true)]).await;
    assert_eq!(done.list_lengths, [1, 3]);
    let list = vec![slice(1), slice(2), slice(3)];
    assert_eq!(o.get(&Key::Chunk(ino, index)).await, Some(Record::Slices(list)));
    // The same record twice is two records.
    assert_eq!(o.apply(vec![append(vec![slice(3)], false)]).await.list_lengths, [4]);
    assert_eq!(o.get(&Key::Chunk(ino, ChunkIndex(0))).await, None);
}

pub async fn a_chunk_prefix_is_guarded_and_replaced(o: Opened) {
    let (ino, index) = (Ino(2), ChunkIndex(0));
    let key = Key::Chunk(ino, index);
    let guard = |ids: &[u64]| Guard::ChunkPrefix(ino, index, ids.iter().copied().map(slice).collect());
    let replace = |count, ids: &[u64]| Change::ReplacePrefix {
        ino,
        index,
        count,
        with: ids.iter().copied().map(slice).collect(),
    };
    conflicts(o.commit(vec![guard(&[1])], vec![replace(1, &[9])]).await);
    o.put(&key, &Record::Slices([1, 2, 3, 4].map(slice).to_vec())).await;
    assert!(o.holds(guard(&[1, 2])).await);
    assert!(o.holds(guard(&[1, 2, 3, 4])).await);
    assert!(!o.holds(guard(&[2])).await);
    assert!(!o.holds(guard(&[1, 3])).await);
    assert!(!o.holds(guard(&[1, 2, 3, 4, 5])).await);
    o.commit(vec![guard(&[1, 2, 3])], vec![replace(3, &[1, 9])]).await.expect("the prefix is unchanged");
    assert_eq!(o.get(&key).await, Some(Record::Slices([1, 9, 4].map(slice).to_vec())));
    conflicts(o.commit(vec![guard(&[1, 2])], vec![replace(2, &[7])]).await);
    o.commit(vec![guard(&[1, 9, 4])], vec![replace(3, &[7])]).await.expect("the whole list is the prefix");
    assert_eq!(o.get(&key).await, Some(Record::Slices(vec![slice(7)])));
}

pub async fn relative_changes_add(o: Opened) {
    let counter = Key::Counter(Counter::UsedSpace);
    o.apply(vec![Change::AddCounter(Counter::UsedSpace, 4096)]).await;
    assert_eq!(o.number(&counter).await, 4096);
    o.apply(vec![Change::AddCounter(Counter::UsedSpace, -8192), Change::AddCounter(Counter::TotalInodes, 1)]).await;
    assert_eq!(o.number(&counter).await, -4096);
    assert_eq!(o.number(&Key::Counter(Counter::TotalInodes)).await, 1);
}

pub async fn slice_references_are_counted_and_reported(o: Opened) {
    let (id, size) = (SliceId(77), 4096);
    let key = Key::SliceRef(id, size);
    let add = |delta| Change::AddSliceRef { id, size, delta };
    // One reference may be stored as nothing.
    let count = async || if let Some(Record::Number(n)) = o.get(&key).await { n } else { 1 };
    o.put(&key, &Record::Number(1)).await;
    assert_eq!(count().await, 1);
    assert_eq!(o.apply(vec![add(1)]).await.references, [2]);
    assert_eq!(count().await, 2);
    assert_eq!(o.apply(vec![add(2), add(-1)]).await.references, [4, 3]);
    assert_eq!(count().await, 3);
    assert_eq!(o.apply(vec![add(-2)]).await.references, [1]);
    assert_eq!(count().await, 1);
    assert_eq!(o.apply(vec![add(-1)]).await.references, [0]);
    // What is to be deleted is still on record until its objects are gone.
    assert_eq!(o.get(&key).await, Some(Record::Number(0)));
    // A reference that the same batch puts or takes away is counted from what that left.
    let put = |count| Change::Put(key.clone(), Record::Number(count));
    assert_eq!(o.apply(vec![put(5), add(1)]).await.references, [6]);
    assert_eq!(count().await, 6);
    assert_eq!(o.apply(vec![put(2), add(1), put(7), add(-1)]).await.references, [3, 6]);
    o.apply(vec![Change::Delete(key.clone())]).await;
    assert_eq!(o.get(&key).await, None);
}

pub async fn statistics_and_quotas_are_added_to_where_they_exist(o: Opened) {
    let delta = DirStat { length: 5, space: 4096, inodes: 1 };
    o.apply(vec![Change::AddDirStat(Ino(2), delta)]).await;
    assert_eq!(o.get(&Key::DirStat(Ino(2))).await, None);
    // Where they are gathered, there is nothing to add them to.
    o.engine.sync().await.expect("sync");
    assert_eq!(o.get(&Key::DirStat(Ino(2))).await, None);
    o.put(&Key::DirStat(Ino(2)), &Record::DirStat(DirStat::default())).await;
    let back = DirStat { length: -6, space: 0, inodes: 0 };
    o.apply(vec![Change::AddDirStat(Ino(2), delta), Change::AddDirStat(Ino(2), back)]).await;
    let sum = DirStat { length: -1, space: 4096, inodes: 1 };
    assert_eq!(o.get(&Key::DirStat(Ino(2))).await, Some(Record::DirStat(sum)));

    for owner in [QuotaOwner::Directory(Ino(2)), QuotaOwner::User(5), QuotaOwner::Group(5)] {
        let key = Key::Quota(owner);
        let add = |space, inodes| vec![Change::AddQuota { owner, space, inodes }];
        o.apply(add(4096, 1)).await;
        assert_eq!(o.get(&key).await, None);
        let quota = Quota { max_space: 1 << 40, max_inodes: -1, used_space: 0, used_inodes: 0 };
        o.put(&key, &Record::Quota(quota)).await;
        o.apply(add(4096, 1)).await;
        o.apply(add(-8192, 0)).await;
        let used = Quota { used_space: -4096, used_inodes: 1, ..quota };
        assert_eq!(o.get(&key).await, Some(Record::Quota(used)));
    }
}

pub async fn locks_have_holders(o: Opened) {
    let ino = Ino(2);
    o.put(&Key::Attr(ino), &Record::Attr(file())).await;
    let flock =
        |sid, owner, exclusive, last| vec![Change::SetFlock { ino, session: SessionId(sid), owner, exclusive, last }];
    let holder = |sid, owner, exclusive| FlockHolder { session: SessionId(sid), owner, exclusive };
    let wide = 0xD9D0_B0A1_C2D3_E4F5;
    o.apply(flock(2, 1, Some(false), false)).await;
    o.apply(flock(1, wide, Some(false), false)).await;
    o.apply(flock(1, 3, Some(true), false)).await;
    let all = vec![holder(1, 3, true), holder(1, wide, false), holder(2, 1, false)];
    assert_eq!(o.get(&Key::Flocks(ino)).await, Some(Record::Flocks(all.clone())));
    assert!(o.holds(Guard::Same(Key::Flocks(ino), Record::Flocks(all.clone()))).await);
    o.apply(flock(1, 3, Some(false), false)).await;
    assert!(!o.holds(Guard::Same(Key::Flocks(ino), Record::Flocks(all))).await);
    assert!(!o.holds(Guard::Absent(Key::Flocks(ino))).await);
    o.apply(flock(1, 3, None, false)).await;
    let rest = Record::Flocks(vec![holder(1, wide, false), holder(2, 1, false)]);
    let held = o.scan(&Scan::LocksOf(SessionId(1)), 10).await;
    assert_eq!(held, HashMap::from([(Key::Flocks(ino), rest)]));
    o.apply(flock(1, wide, None, true)).await;
    assert!(o.scan(&Scan::LocksOf(SessionId(1)), 10).await.is_empty());
    assert_eq!(o.get(&Key::Flocks(ino)).await, Some(Record::Flocks(vec![holder(2, 1, false)])));
    o.apply(flock(2, 1, None, true)).await;
    assert_eq!(o.get(&Key::Flocks(ino)).await, None);
    assert!(o.holds(Guard::Absent(Key::Flocks(ino))).await);

    let range = |exclusive, start, end| PlockRange { exclusive, pid: 4980, start, end };
    let ranges = vec![range(true, 50, 149), range(false, 200, i64::MAX as u64)];
    let plock = |sid, ranges: &[PlockRange], last| {
        vec![Change::SetPlock { ino, session: SessionId(sid), owner: wide, ranges: ranges.to_vec(), last }]
    };
    o.apply(plock(1, &ranges, false)).await;
    o.apply(plock(3, &ranges[..1], false)).await;
    o.apply(plock(3, &ranges[1..], false)).await;
    let holder =
        |sid, ranges: &[PlockRange]| PlockHolder { session: SessionId(sid), owner: wide, ranges: ranges.to_vec() };
    let both = Record::Plocks(vec![holder(1, &ranges), holder(3, &ranges[1..])]);
    assert_eq!(o.get(&Key::Plocks(ino)).await, Some(both.clone()));
    assert!(o.holds(Guard::Same(Key::Plocks(ino), both.clone())).await);
    assert_eq!(o.scan(&Scan::LocksOf(SessionId(3)), 10).await, HashMap::from([(Key::Plocks(ino), both.clone())]));
    o.apply(flock(7, 1, Some(true), false)).await;
    let flocks = Record::Flocks(vec![FlockHolder { session: SessionId(7), owner: 1, exclusive: true }]);
    for limit in [1, 10] {
        let all = HashMap::from([(Key::Flocks(ino), flocks.clone()), (Key::Plocks(ino), both.clone())]);
        assert_eq!(o.scan(&Scan::AllLocks, limit).await, all);
    }
    o.apply(flock(7, 1, None, true)).await;
    o.apply(plock(1, &[], true)).await;
    o.apply(plock(3, &[], true)).await;
    assert_eq!(o.get(&Key::Plocks(ino)).await, None);
    assert!(o.scan(&Scan::LocksOf(SessionId(3)), 10).await.is_empty());
}

/// One change of each kind, all of which could be applied after `everything_is_there`.
fn all_changes() -> Vec<Change> {
    let (ino, index) = (Ino(2), ChunkIndex(0));
    let mut changes: Vec<Change> = families().into_iter().map(|(key, _, second)| Change::Put(key, second)).collect();
    changes.extend([
        Change::Put(Key::Attr(Ino(500)), Record::Attr(file())),
        Change::Delete(Key::Symlink(ino)),
        Change::Delete(Key::Xattrs(ino)),
        Change::Patch(ino, AttrPatch::new().set_uid(4711).add_nlink(5).grow_to(1 << 50)),
        Change::Append { ino, index, slices: vec![slice(9)], only_existing: false },
        Change::ReplacePrefix { ino, index, count: 1, with: vec![slice(8)] },
        Change::AddCounter(Counter::TotalInodes, 1),
        Change::AddLinkParent { ino, parent: Ino(1), delta: 1 },
        Change::AddSliceRef { id: SliceId(1), size: 4096, delta: 1 },
        Change::AddDirStat(ino, DirStat { length: 1, space: 1, inodes: 1 }),
        Change::AddQuota { owner: QuotaOwner::User(1000), space: 1, inodes: 1 },
        Change::SetFlock { ino, session: SessionId(4), owner: 9, exclusive: Some(true), last: false },
        Change::SetPlock {
            ino,
            session: SessionId(4),
            owner: 9,
            ranges: vec![PlockRange { exclusive: true, pid: 1, start: 0, end: 9 }],
            last: false,
        },
    ]);
    changes
}

async fn everything_is_there(o: &Opened) -> Vec<Key> {
    o.apply(families().into_iter().map(|(key, first, _)| Change::Put(key, first)).collect()).await;
    let ino = Ino(2);
    let mut keys: Vec<Key> = families().into_iter().map(|(key, ..)| key).collect();
    keys.extend([
        Key::Attr(Ino(500)),
        Key::LinkParents(ino),
        Key::Xattrs(ino),
        Key::AnyDentry(ino),
        Key::Flocks(ino),
        Key::Plocks(ino),
    ]);
    keys
}

pub async fn an_empty_value_is_stored_or_refused(o: Opened) {
    let key = Key::Xattr(Ino(2), name(b"user.empty"));
    let stored = o.commit(vec![], vec![Change::Put(key.clone(), bytes(b""))]).await;
    if o.engine.stores_empty_values() {
        stored.expect("an empty value is a value");
        assert_eq!(o.get(&key).await, Some(bytes(b"")));
    } else {
        assert!(matches!(stored, Err(EngineError::Fault(_))), "{stored:?}");
        assert_eq!(o.get(&key).await, None);
    }
}

pub async fn a_failing_batch_leaves_no_trace(o: Opened) {
    let keys = everything_is_there(&o).await;
    let before = o.read(&keys).await;
    let bad_guards = [
        Guard::Absent(Key::Setting),
        Guard::Same(Key::Counter(Counter::TotalInodes), Record::Number(99)),
        Guard::Fields(Ino(2), Attr { uid: 1, ..file() }, FieldMask::UID),
        Guard::Fields(Ino(3), file(), FieldMask::UID),
        Guard::ChunkPrefix(Ino(2), ChunkIndex(0), vec![slice(2)]),
    ];
    for guard in bad_guards {
        let holds = Guard::Same(Key::Attr(Ino(2)), Record::Attr(file()));
        conflicts(o.commit(vec![holds, guard.clone()], all_changes()).await);
        assert_eq!(o.read(&keys).await, before, "{guard:?}");
    }
    let bad_changes = [
        Change::Patch(Ino(12345), AttrPatch::new().set_uid(1)),
        Change::ReplacePrefix { ino: Ino(2), index: ChunkIndex(9), count: 1, with: vec![] },
        Change::ReplacePrefix { ino: Ino(2), index: ChunkIndex(0), count: 50, with: vec![] },
    ];
    for change in bad_changes {
        let changes = all_changes().into_iter().chain([change.clone()]).collect();
        conflicts(o.commit(vec![], changes).await);
        assert_eq!(o.read(&keys).await, before, "{change:?}");
    }
    // The same changes do apply when nothing is in their way.
    o.commit(vec![Guard::Same(Key::Attr(Ino(2)), Record::Attr(file()))], all_changes()).await.expect("applies");
    assert_ne!(o.read(&keys).await, before);
}

pub async fn changes_apply_in_order(o: Opened) {
    let ino = Ino(7);
    let key = Key::Attr(ino);
    let put = |uid| Change::Put(key.clone(), Record::Attr(Attr { uid, ..file() }));
    let chunk = Key::Chunk(ino, ChunkIndex(0));
    o.apply(vec![
        put(1),
        put(2),
        Change::Put(chunk.clone(), Record::Slices(vec![slice(1)])),
        Change::Delete(chunk.clone()),
        Change::Append { ino, index: ChunkIndex(0), slices: vec![slice(2)], only_existing: false },
        Change::Put(Key::Counter(Counter::UsedSpace), Record::Number(10)),
        Change::AddCounter(Counter::UsedSpace, 1),
    ])
    .await;
    assert_eq!(o.attr(ino).await.uid, 2);
    assert_eq!(o.get(&chunk).await, Some(Record::Slices(vec![slice(2)])));
    assert_eq!(o.number(&Key::Counter(Counter::UsedSpace)).await, 11);
    o.apply(vec![
        Change::Patch(ino, AttrPatch::new().set_uid(3)),
        Change::Patch(ino, AttrPatch::new().add_nlink(1)),
        Change::Patch(ino, AttrPatch::new().add_nlink(1).set_gid(9)),
    ])
    .await;
    assert_eq!(o.attr(ino).await, Attr { uid: 3, gid: 9, nlink: 3, ..file() });
    o.apply(vec![Change::Delete(key.clone()), put(5)]).await;
    assert_eq!(o.attr(ino).await.uid, 5);
    o.apply(vec![put(6), Change::Delete(key.clone())]).await;
    assert_eq!(o.get(&key).await, None);
}

pub async fn ids_follow_one_another(o: Opened) {
    o.engine.prepare().await.expect("prepare");
    let counters = [
        (Counter::NextInode, 2),
        (Counter::NextSlice, 1),
        (Counter::NextSession, 1),
        (Counter::NextTrash, 1),
        (Counter::AclMaxId, 1),
    ];
    for (counter, first) in counters {
        let allocate = async |count| o.engine.allocate(counter, count).await.expect("allocate");
        assert_eq!(allocate(1024).await, first, "{counter:?}");
        assert_eq!(allocate(1).await, first + 1024, "{counter:?}");
        assert_eq!(allocate(4096).await, first + 1025, "{counter:?}");
        // A second prepare loses nothing.
        o.engine.prepare().await.expect("prepare again");
        assert_eq!(allocate(1).await, first + 5121, "{counter:?}");
    }
    let tasks = (0..8).map(|_| {
        let engine = o.engine.clone();
        tokio::spawn(async move {
            let mut mine = Vec::new();
            for _ in 0..20 {
                let first = engine.allocate(Counter::NextSlice, 3).await.expect("allocate");
                mine.extend(first..first + 3);
            }
            mine
        })
    });
    let mut ids: Vec<u64> =
        futures::future::join_all(tasks).await.into_iter().flat_map(|ids| ids.expect("no panic")).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!(ids.len(), 8 * 20 * 3);
}

pub async fn every_scan_finds_its_records(o: Opened) {
    everything_is_there(&o).await;
    let mut rows: HashMap<Key, Record> = families().into_iter().map(|(key, first, _)| (key, first)).collect();
    // More of what comes in pages, and neighbours that a careless pattern would catch.
    let mut add = Vec::new();
    for i in 0..20u64 {
        let slices = Record::Slices(vec![slice(i + 1)]);
        add.push((Key::Attr(Ino(20 + i)), Record::Attr(Attr { length: i, ..file() })));
        add.push((Key::Chunk(Ino(20 + i), ChunkIndex(0)), slices.clone()));
        add.push((Key::Chunk(Ino(2), ChunkIndex(10 + i as u32)), slices));
        add.push((Key::SliceRef(SliceId(100 + i), 5), Record::Number(2 + i as i64)));
        add.push((Key::Sustained(SessionId(4), Ino(30 + i)), Record::Number(1)));
        add.push((Key::Sustained(SessionId(44), Ino(30 + i)), Record::Number(1)));
        add.push((Key::DeletedFile(Ino(50 + i), i), Record::Number(i as i64 + 1)));
        add.push((Key::DirStat(Ino(60 + i)), Record::DirStat(DirStat { length: i as i64, space: 1, inodes: 2 })));
        add.push((Key::Session(SessionId(60 + i)), Record::Session(Session { expire: 1, info: Bytes::from("{}") })));
        add.push((
            Key::Dentry(Ino(20 + i % 3), name(format!("n{i}").as_bytes())),
            Record::Dentry(Dentry { kind: Kind::File, ino: Ino(i + 1) }),
        ));
    }
    o.apply_all(add.iter().map(|(key, record)| Change::Put(key.clone(), record.clone())).collect()).await;
    rows.extend(add);
    let expect = |of: &dyn Fn(&Key) -> bool| -> HashMap<Key, Record> {
        rows.iter().filter(|(key, _)| of(key)).map(|(key, record)| (key.clone(), record.clone())).collect()
    };
    for limit in [1, 7, 10_000] {
        let check = async |scan: Scan, of: &dyn Fn(&Key) -> bool| {
            let found = o.scan(&scan, limit).await;
            assert_eq!(found, expect(of), "{scan:?} by {limit}");
            assert!(!found.is_empty());
        };
        check(Scan::Dentries(Ino(20)), &|k| matches!(k, Key::Dentry(Ino(20), _))).await;
        check(Scan::AllDentries, &|k| matches!(k, Key::Dentry(..))).await;
        check(Scan::Attrs, &|k| matches!(k, Key::Attr(_))).await;
        check(Scan::Chunks, &|k| matches!(k, Key::Chunk(..))).await;
        check(Scan::ChunksOf(Ino(2)), &|k| matches!(k, Key::Chunk(Ino(2), _))).await;
        check(Scan::SliceRefs, &|k| matches!(k, Key::SliceRef(..))).await;
        check(Scan::Sessions, &|k| matches!(k, Key::Session(_))).await;
        check(Scan::Sustained(SessionId(4)), &|k| matches!(k, Key::Sustained(SessionId(4), _))).await;
        check(Scan::DeletedFiles, &|k| matches!(k, Key::DeletedFile(..))).await;
        check(Scan::DelayedSlices, &|k| matches!(k, Key::DelayedSlices(..))).await;
        check(Scan::DirStats, &|k| matches!(k, Key::DirStat(_))).await;
        check(Scan::Quotas, &|k| matches!(k, Key::Quota(_))).await;
        check(Scan::AclRules, &|k| matches!(k, Key::AclRule(_))).await;
        let xattrs = o.scan(&Scan::AllXattrs, limit).await;
        let all = Record::Xattrs(vec![(name(b"user.a"), Bytes::from_static(b"value\0with zero"))]);
        assert_eq!(xattrs, HashMap::from([(Key::Xattrs(Ino(2)), all)]));
    }
    for scan in [Scan::Dentries(Ino(77)), Scan::ChunksOf(Ino(77)), Scan::Sustained(SessionId(77))] {
        assert!(o.scan(&scan, 10).await.is_empty(), "{scan:?}");
    }
    if !o.derives_link_parents {
        let add = |ino, parent| Change::AddLinkParent { ino: Ino(ino), parent: Ino(parent), delta: 1 };
        o.apply(vec![add(2, 1), add(2, 20), add(30, 1)]).await;
        let parents = |list: &[(u64, i64)]| Record::LinkParents(list.iter().map(|(p, n)| (Ino(*p), *n)).collect());
        let all = HashMap::from([
            (Key::LinkParents(Ino(2)), parents(&[(1, 1), (20, 1)])),
            (Key::LinkParents(Ino(30)), parents(&[(1, 1)])),
        ]);
        for limit in [1, 10_000] {
            assert_eq!(o.scan(&Scan::AllLinkParents, limit).await, all);
        }
    }
}

async fn fill(o: &Opened, dir: Ino, entries: u64) {
    let put = |i: u64| {
        let entry = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(10_000 + i) });
        Change::Put(Key::Dentry(dir, name(format!("entry {i}").as_bytes())), entry)
    };
    o.apply_all((0..entries).map(put).collect()).await;
}

pub async fn a_directory_is_listed_in_pages(o: Opened) {
    let dir = Ino(3);
    fill(&o, dir, 2000).await;
    fill(&o, Ino(4), 3).await;
    assert_eq!(o.scan(&Scan::Dentries(dir), 100).await.len(), 2000);
    // What comes and goes meanwhile does not hide the others.
    let mut seen = HashMap::new();
    let mut after = None;
    let mut round = 0u64;
    loop {
        let page = o.engine.scan(&Scan::Dentries(dir), after.as_ref(), 100).await.expect("scan");
        seen.extend(page.rows);
        let new = name(format!("new {round}").as_bytes());
        let entry = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(1) });
        let gone = name(format!("entry {}", 1000 + round).as_bytes());
        o.apply(vec![Change::Put(Key::Dentry(dir, new), entry), Change::Delete(Key::Dentry(dir, gone))]).await;
        round += 1;
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    for i in (0..1000).chain(1000 + round..2000) {
        let key = Key::Dentry(dir, name(format!("entry {i}").as_bytes()));
        let entry = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(10_000 + i) });
        assert_eq!(seen.get(&key), Some(&entry), "entry {i}");
    }
}

pub async fn listing_plus_joins_attributes(o: Opened) {
    let dir = Ino(3);
    fill(&o, dir, 300).await;
    let attr = |i: u64| Attr { length: i, tier: (i % 4) as u8, ..file() };
    let with_node = |i: &u64| i % 10 != 0;
    let put = |i| Change::Put(Key::Attr(Ino(10_000 + i)), Record::Attr(attr(i)));
    o.apply_all((0..300).filter(with_node).map(put).collect()).await;
    let mut seen = HashMap::new();
    let mut after = None;
    loop {
        let page = o.engine.scan_plus(dir, after.as_ref(), 70).await.expect("scan plus");
        seen.extend(page.entries.into_iter().map(|(name, entry, attr)| (name, (entry, attr))));
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(seen.len(), 300);
    for i in 0..300 {
        let (entry, found) = seen[&name(format!("entry {i}").as_bytes())];
        assert_eq!(entry, Dentry { kind: Kind::File, ino: Ino(10_000 + i) });
        assert_eq!(found, with_node(&i).then(|| attr(i)), "entry {i}");
    }
    let nothing = o.engine.scan_plus(Ino(99), None, 10).await.expect("scan plus");
    assert!(nothing.entries.is_empty() && nothing.next.is_none());
}

/// An engine that looks up in one trip finds what two reads find.
pub async fn a_lookup_in_one_trip_is_two_reads(o: Opened) {
    let (dir, other) = (Ino(20), Ino(21));
    let (large, none) = (Ino(0x7FFF_FFFF_1000_0001), name(b"none"));
    let entry = |ino| Record::Dentry(Dentry { kind: Kind::File, ino });
    let names = [(&b"here"[..], Ino(22)), (b"gone", Ino(23)), (b"large", large)].map(|(text, ino)| (name(text), ino));
    o.put(&Key::Attr(dir), &Record::Attr(Attr { kind: Kind::Directory, ..file() })).await;
    o.put(&Key::Attr(Ino(22)), &Record::Attr(file())).await;
    o.put(&Key::Attr(large), &Record::Attr(file())).await;
    for (name, ino) in &names {
        o.put(&Key::Dentry(dir, name.clone()), &entry(*ino)).await;
    }
    for (parent, name) in names.iter().map(|(name, _)| (dir, name)).chain([(dir, &none), (other, &names[0].0)]) {
        let Some(looked) = o.engine.lookup(parent, name).await.unwrap() else { return };
        let attr = async |ino| match o.get(&Key::Attr(ino)).await {
            Some(Record::Attr(attr)) => Some(attr),
            _ => None,
        };
        assert_eq!(looked.parent, attr(parent).await);
        let dentry = match o.get(&Key::Dentry(parent, name.clone())).await {
            Some(Record::Dentry(dentry)) => Some(dentry),
            _ => None,
        };
        assert_eq!(looked.dentry, dentry);
        // A number that a script cannot hold is looked for again.
        if let Some(dentry) = dentry.filter(|dentry| looked.node.is_some() || dentry.ino != large) {
            assert_eq!(looked.node, attr(dentry.ino).await, "{name}");
        }
    }
}

pub async fn numbers_beyond_doubles_stay_exact(o: Opened) {
    let big = (1u64 << 53) + 1;
    let ino = Ino(Ino::TRASH.0 + 1);
    let near = Ino(Ino::TRASH.0 + 2);
    o.put(&Key::Attr(ino), &Record::Attr(Attr { length: big, parent: ino, ..file() })).await;
    assert!(o.holds(Guard::Fields(ino, Attr { length: big, ..file() }, FieldMask::LENGTH)).await);
    assert!(!o.holds(Guard::Fields(ino, Attr { length: big - 1, ..file() }, FieldMask::LENGTH)).await);
    assert!(!o.holds(Guard::Fields(ino, Attr { parent: near, ..file() }, FieldMask::PARENT)).await);
    assert_eq!(o.get(&Key::Attr(near)).await, None);
    o.apply(vec![Change::Patch(ino, AttrPatch::new().grow_to(big + 1))]).await;
    assert_eq!(o.attr(ino).await.length, big + 1);
    o.apply(vec![Change::Patch(ino, AttrPatch::new().grow_to(big))]).await;
    assert_eq!(o.attr(ino).await.length, big + 1);
    let counter = Key::Counter(Counter::UsedSpace);
    o.put(&counter, &Record::Number(big as i64)).await;
    o.apply(vec![Change::AddCounter(Counter::UsedSpace, 1)]).await;
    assert_eq!(o.number(&counter).await, big as i64 + 1);
    assert!(!o.holds(Guard::Same(counter, Record::Number(big as i64))).await);
    o.apply(vec![Change::Put(Key::DeletedFile(ino, big), Record::Number(1_700_000_000))]).await;
    assert_eq!(o.number(&Key::DeletedFile(ino, big)).await, 1_700_000_000);
    assert_eq!(o.get(&Key::DeletedFile(near, big)).await, None);
    let stat = DirStat { length: big as i64, space: big as i64, inodes: 1 };
    o.put(&Key::DirStat(ino), &Record::DirStat(stat)).await;
    o.apply(vec![Change::AddDirStat(ino, DirStat { length: 1, space: 2, inodes: 0 })]).await;
    let sum = DirStat { length: big as i64 + 1, space: big as i64 + 2, inodes: 1 };
    assert_eq!(o.get(&Key::DirStat(ino)).await, Some(Record::DirStat(sum)));
}

const TASKS: u64 = 8;
const ROUNDS: u64 = 25;

pub async fn concurrent_relative_changes_sum_up(o: Opened) {
    let ino = Ino(2);
    o.put(&Key::Attr(ino), &Record::Attr(Attr { nlink: 0, length: 0, ..file() })).await;
    o.put(&Key::SliceRef(SliceId(1), 1), &Record::Number(1)).await;
    o.put(&Key::DirStat(ino), &Record::DirStat(DirStat::default())).await;
    let tasks = (0..TASKS).map(|task| {
        let engine = o.engine.clone();
        tokio::spawn(async move {
            for round in 0..ROUNDS {
                let changes = vec![
                    Change::AddCounter(Counter::UsedSpace, 4096),
                    Change::Patch(ino, AttrPatch::new().add_nlink(1).grow_to(task * 1000 + round)),
                    Change::Append {
                        ino,
                        index: ChunkIndex(0),
                        slices: vec![slice(task * 1000 + round)],
                        only_existing: false,
                    },
                    Change::AddSliceRef { id: SliceId(1), size: 1, delta: 1 },
                    Change::AddDirStat(ino, DirStat { length: 1, space: 2, inodes: 3 }),
                ];
                // The loaded fields are guarded, the relative changes touch none of them.
                let (txn, loaded) = engine.begin(&[Key::Attr(ino)]).await.expect("begin");
                let Some(Some(Record::Attr(seen))) = loaded.first() else { panic!("{loaded:?}") };
                let guards = vec![Guard::Fields(ino, *seen, FieldMask::KIND | FieldMask::MODE | FieldMask::UID)];
                txn.commit(Batch { guards, changes }).await.expect("relative changes never conflict");
            }
        })
    });
    futures::future::join_all(tasks).await.into_iter().for_each(|task| task.expect("no panic"));
    let total = (TASKS * ROUNDS) as i64;
    assert_eq!(o.number(&Key::Counter(Counter::UsedSpace)).await, 4096 * total);
    let attr = o.attr(ino).await;
    assert_eq!((i64::from(attr.nlink), attr.length), (total, (TASKS - 1) * 1000 + ROUNDS - 1));
    assert_eq!(o.number(&Key::SliceRef(SliceId(1), 1)).await, total + 1);
    let stat = DirStat { length: total, space: 2 * total, inodes: 3 * total };
    assert_eq!(o.get(&Key::DirStat(ino)).await, Some(Record::DirStat(stat)));
    let Some(Record::Slices(list)) = o.get(&Key::Chunk(ino, ChunkIndex(0))).await else { panic!("no chunk") };
    let mut ids: Vec<u64> = list.iter().map(|s| s.id.0).collect();
    ids.sort_unstable();
    ids.dedup();
    assert_eq!((list.len() as i64, ids.len() as i64), (total, total));
}

pub async fn concurrent_guarded_changes_lose_none(o: Opened) {
    let ino = Ino(2);
    o.put(&Key::Attr(ino), &Record::Attr(Attr { length: 0, ..file() })).await;
    let tasks = (0..TASKS).map(|_| {
        let engine = o.engine.clone();
        tokio::spawn(async move {
            for _ in 0..ROUNDS {
                // Read, add one, write if unchanged; again if not.
                loop {
                    let (txn, loaded) = match engine.begin(&[Key::Attr(ino)]).await {
                        Err(EngineError::Conflict) => continue,
                        begun => begun.expect("begin"),
                    };
                    let Some(Some(Record::Attr(seen))) = loaded.first() else { panic!("{loaded:?}") };
                    let guards = vec![Guard::Fields(ino, *seen, FieldMask::LENGTH)];
                    let changes = vec![Change::Patch(ino, AttrPatch::new().set_length(seen.length + 1))];
                    match txn.commit(Batch { guards, changes }).await {
                        Ok(_) => break,
                        Err(EngineError::Conflict) => tokio::task::yield_now().await,
                        Err(other) => panic!("{other:?}"),
                    }
                }
            }
        })
    });
    futures::future::join_all(tasks).await.into_iter().for_each(|task| task.expect("no panic"));
    assert_eq!(o.attr(ino).await.length, TASKS * ROUNDS);
}

/// Not of the volume's usage, which an engine may store a moment after the commit (`Change::AddCounter`).
pub async fn a_read_is_one_snapshot(o: Opened) {
    let keys = [Key::Counter(Counter::LastCleanupFiles), Key::Attr(Ino(2)), Key::Counter(Counter::LastCleanupTrash)];
    o.put(&keys[1], &Record::Attr(Attr { nlink: 0, ..file() })).await;
    let engine = o.engine.clone();
    let writer = tokio::spawn(async move {
        for _ in 0..200 {
            let changes = vec![
                Change::AddCounter(Counter::LastCleanupFiles, 1),
                Change::Patch(Ino(2), AttrPatch::new().add_nlink(1)),
                Change::AddCounter(Counter::LastCleanupTrash, 1),
            ];
            let (txn, _) = engine.begin(&[Key::Setting]).await.expect("begin");
            txn.commit(Batch { guards: vec![], changes }).await.expect("commit");
        }
    });
    let mut reads = 0u64;
    while !writer.is_finished() || reads == 0 {
        let records = o.read(&keys).await;
        let number = |record: &Option<Record>| match record {
            None => 0,
            Some(Record::Number(n)) => *n,
            Some(Record::Attr(attr)) => i64::from(attr.nlink),
            other => panic!("{other:?}"),
        };
        let numbers: Vec<i64> = records.iter().map(number).collect();
        assert!(numbers.iter().all(|n| *n == numbers[0]), "{numbers:?}");
        reads += 1;
    }
    writer.await.expect("no panic");
    assert_eq!(o.number(&keys[0]).await, 200);
}

pub async fn erase_leaves_nothing(o: Opened) {
    let keys = everything_is_there(&o).await;
    o.apply(all_changes()).await;
    fill(&o, Ino(3), 300).await;
    o.engine.allocate(Counter::NextInode, 5).await.expect("allocate");
    o.engine.sync().await.expect("sync");
    o.engine.erase().await.expect("erase");
    assert!(o.scan(&Scan::Dentries(Ino(3)), 100).await.is_empty());
    o.engine.prepare().await.expect("prepare");
    for (key, record) in keys.iter().zip(o.read(&keys).await) {
        // A prepared store may have its counters at zero.
        assert!(record.is_none() || record == Some(Record::Number(0)), "{key:?}: {record:?}");
    }
    assert!(o.scan(&Scan::LocksOf(SessionId(4)), 10).await.is_empty());
    assert_eq!(o.engine.allocate(Counter::NextInode, 5).await.expect("allocate"), 2);
}
