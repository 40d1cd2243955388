//! Tests of mending: each puts one kind of damage into a sound volume as records, lets the checker find it, mends it
//! and ends with the checker content.

use super::*;
use crate::base::acl::AclRule;
use crate::base::{SessionId, SliceId};
use crate::meta::check::{LockSort, check};
use crate::meta::reclaim::tests::{Put, slice};
use crate::meta::record::{Counter, Dentry, DirStat, PlockRange, Session};
use crate::meta::testing::{Store, file};
use crate::util::clock::{Clock, ManualClock, SystemClock};
use bytes::Bytes;
use std::sync::Arc;
use std::time::Duration;

/// `/d/f` with a slice, `/d/s` a directory with `/d/s/g`, `/l` a symlink; two days old.
struct Volume {
    meta: Arc<Meta>,
    d: Ino,
    s: Ino,
    f: Ino,
    g: Ino,
    l: Ino,
}

fn name(text: &str) -> Name {
    Name::entry(text.as_bytes()).unwrap()
}

impl Volume {
    async fn new() -> Volume {
        let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
        let meta = Store::new().await.client(clock.clone()).await;
        let root = Caller::root();
        let node = |kind: Kind, target: Option<Bytes>| NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target };
        let make = async |parent: Ino, text: &str, kind: Kind, target: Option<Bytes>| {
            meta.create(&root, parent, &name(text), &node(kind, target)).await.unwrap().ino
        };
        let d = make(Ino::ROOT, "d", Kind::Directory, None).await;
        let s = make(d, "s", Kind::Directory, None).await;
        let f = make(d, "f", Kind::File, None).await;
        let g = make(s, "g", Kind::File, None).await;
        let l = make(Ino::ROOT, "l", Kind::Symlink, Some(Bytes::from_static(b"target"))).await;
        meta.append_slice(f, ChunkIndex(0), slice(1), clock.now()).await.unwrap();
        clock.advance(Duration::from_secs(2 * 86_400));
        let report = check(&**meta.engine()).await.unwrap();
        assert!(report.is_clean(), "{report}");
        Volume { meta, d, s, f, g, l }
    }

    async fn damage(&self, changes: Vec<Change>) {
        self.meta.run(&Put(changes)).await.unwrap();
    }

    async fn attr(&self, ino: Ino) -> Option<Attr> {
        match self.meta.engine().read(&[Key::Attr(ino)]).await.unwrap().pop().flatten() {
            Some(Record::Attr(attr)) => Some(attr),
            _ => None,
        }
    }

    async fn change_attr(&self, ino: Ino, change: impl FnOnce(&mut Attr)) -> Change {
        let mut attr = self.attr(ino).await.unwrap();
        change(&mut attr);
        Change::Put(Key::Attr(ino), Record::Attr(attr))
    }

    async fn findings(&self) -> Vec<Finding> {
        check(&**self.meta.engine()).await.unwrap().findings
    }

    /// The damage is found as `expected` and mended, and nothing is left.
    async fn mended(&self, expected: impl Fn(&Finding) -> bool) -> Vec<(Finding, Mended)> {
        let mut all = Vec::new();
        for round in 0..20 {
            let findings = self.findings().await;
            if round == 0 {
                assert!(findings.iter().any(&expected), "{findings:?}");
            }
            if findings.is_empty() {
                assert!(round > 0);
                return all;
            }
            all.extend(self.meta.mend(&findings, 0o755).await.unwrap());
        }
        panic!("never mended: {all:?}, left {:?}", self.findings().await);
    }

    async fn lookup(&self, path: &str) -> Ino {
        self.meta
            .resolve(&Caller::root(), Ino::ROOT, path.as_bytes())
            .await
            .unwrap_or_else(|e| panic!("{path}: {e}"))
            .ino
    }
}

fn dentry(parent: Ino, text: &str, ino: Ino, kind: Kind) -> Change {
    Change::Put(Key::Dentry(parent, name(text)), Record::Dentry(Dentry { kind, ino }))
}

#[tokio::test]
async fn a_directory_without_a_node_is_made_again_with_what_is_in_it() {
    let v = Volume::new().await;
    v.damage(vec![Change::Delete(Key::Attr(v.s))]).await;
    v.mended(|finding| matches!(finding, Finding::DanglingDentry { .. })).await;
    assert_eq!(v.lookup("d/s/g").await, v.g);
    assert_eq!(v.attr(v.s).await.unwrap().mode, 0o755);
}

#[tokio::test]
async fn a_file_without_a_node_is_made_of_its_data_and_an_entry_of_nothing_goes() {
    let v = Volume::new().await;
    v.damage(vec![Change::Delete(Key::Attr(v.f)), Change::Delete(Key::Attr(v.g)), Change::Delete(Key::Attr(v.l))])
        .await;
    v.mended(|finding| matches!(finding, Finding::LostChunk { .. })).await;
    let f = v.attr(v.f).await.unwrap();
    assert_eq!((f.length, f.mode, f.kind), (100, 0o600, Kind::File));
    assert!(v.attr(v.g).await.is_none());
    assert_eq!(v.meta.readlink(v.l).await.unwrap(), "target");
    assert!(v.meta.resolve(&Caller::root(), Ino::ROOT, b"d/s/g").await.is_err());
}

#[tokio::test]
async fn a_directory_that_only_its_entries_tell_of_is_found_again() {
    let v = Volume::new().await;
    v.damage(vec![Change::Delete(Key::Attr(v.s)), Change::Delete(Key::Dentry(v.d, name("s")))]).await;
    v.mended(|finding| matches!(finding, Finding::DentryInMissing { .. })).await;
    assert_eq!(v.lookup(&format!("lost+found/#{}/g", v.s)).await, v.g);
}

#[tokio::test]
async fn what_lies_in_a_file_is_taken_out() {
    let v = Volume::new().await;
    v.damage(vec![Change::Delete(Key::Dentry(v.s, name("g"))), dentry(v.f, "g", v.g, Kind::File)]).await;
    v.mended(|finding| matches!(finding, Finding::DentryInNonDirectory { .. })).await;
    assert_eq!(v.lookup(&format!("lost+found/#{}", v.g)).await, v.g);
}

#[tokio::test]
async fn nodes_without_entries_are_found_again() {
    let v = Volume::new().await;
    let deleted = v.change_attr(v.g, |attr| attr.nlink = 0).await;
    v.damage(vec![Change::Delete(Key::Dentry(v.d, name("f"))), Change::Delete(Key::Dentry(v.s, name("g"))), deleted])
        .await;
    v.mended(|finding| matches!(finding, Finding::Orphan { .. })).await;
    assert_eq!(v.lookup(&format!("lost+found/#{}", v.f)).await, v.f);
    assert!(v.attr(v.g).await.is_none(), "a file without links was deleted");
}

/// A directory that is being cloned has no entry yet, and a file without links may be on its way out.
#[tokio::test]
async fn what_may_be_in_the_making_is_left_alone() {
    let v = Volume::new().await;
    let dir = NewNode { kind: Kind::Directory, mode: 0o755, umask: 0, rdev: 0, target: None };
    let dir = v.meta.create(&Caller::root(), Ino::ROOT, &name("dir"), &dir).await.unwrap().ino;
    let (removed, lost) = (file(&v.meta, "removed").await, file(&v.meta, "lost").await);
    let without_links = v.change_attr(removed, |attr| attr.nlink = 0).await;
    let entries = ["dir", "removed", "lost"].map(|text| Change::Delete(Key::Dentry(Ino::ROOT, name(text))));
    v.damage([&entries[..2], &[without_links]].concat()).await;
    let mended = v.meta.mend(&v.findings().await, 0o755).await.unwrap();
    let is_left = |ino: Ino| {
        mended.iter().any(|(finding, mended)| {
            matches!((finding, mended), (Finding::Orphan { ino: found, .. }, Mended::Left(_)) if *found == ino)
        })
    };
    assert!(is_left(dir) && is_left(removed), "{mended:?}");
    let home = Key::Dentry(Ino::ROOT, name("lost+found"));
    assert_eq!(v.meta.engine().read(std::slice::from_ref(&home)).await.unwrap(), [None], "nobody needs it");
    // Nobody makes a file with links that has no entry.
    v.damage(vec![entries[2].clone()]).await;
    v.meta.mend(&v.findings().await, 0o755).await.unwrap();
    assert_eq!(v.lookup(&format!("lost+found/#{lost}")).await, lost);
}

#[tokio::test]
async fn the_root_is_made_again_before_anything_else() {
    let v = Volume::new().await;
    v.damage(vec![Change::Delete(Key::Attr(Ino::ROOT)), Change::Delete(Key::Dentry(v.d, name("f")))]).await;
    v.mended(|finding| matches!(finding, Finding::DentryInMissing { parent: Ino::ROOT, .. })).await;
    assert_eq!(v.lookup("d/s").await, v.s);
    assert_eq!(v.lookup(&format!("lost+found/#{}", v.f)).await, v.f);
}

#[tokio::test]
async fn a_circle_of_directories_is_opened() {
    let v = Volume::new().await;
    // `d` moves below its own child `s`.
    let d = v.change_attr(v.d, |attr| attr.parent = v.s).await;
    v.damage(vec![Change::Delete(Key::Dentry(Ino::ROOT, name("d"))), dentry(v.s, "d", v.d, Kind::Directory), d]).await;
    v.mended(|finding| matches!(finding, Finding::Cycle { .. })).await;
    let found: Vec<Vec<u8>> = v.meta.paths_of(v.g).await.unwrap();
    assert!(found[0].starts_with(b"/lost+found/#"), "{found:?}");
}

#[tokio::test]
async fn kinds_links_and_parents_are_those_that_are_there() {
    let v = Volume::new().await;
    let d = v.change_attr(v.d, |attr| attr.nlink = 9).await;
    let f = v.change_attr(v.f, |attr| attr.nlink = 5).await;
    let g = v.change_attr(v.g, |attr| attr.parent = v.d).await;
    v.damage(vec![dentry(Ino::ROOT, "l", v.l, Kind::File), d, f, g]).await;
    let mended = v.mended(|finding| matches!(finding, Finding::WrongLinks { stored: 9, counted: 3, .. })).await;
    for kind in ["WrongKind", "WrongParent", "WrongLinks"] {
        assert!(mended.iter().any(|(finding, _)| format!("{finding:?}").starts_with(kind)), "{kind}: {mended:?}");
    }
}

#[tokio::test]
async fn a_file_with_a_forgotten_second_link_has_several_parents() {
    let v = Volume::new().await;
    v.damage(vec![dentry(v.s, "second", v.f, Kind::File)]).await;
    v.mended(|finding| matches!(finding, Finding::WrongParent { .. })).await;
    let f = v.attr(v.f).await.unwrap();
    assert_eq!((f.nlink, f.parent), (2, Ino::MANY));
    assert_eq!(v.meta.paths_of(v.f).await.unwrap().len(), 2);
}

#[tokio::test]
async fn counts_of_link_parents_are_those_of_the_entries() {
    let v = Volume::new().await;
    v.meta.link(&Caller::root(), v.f, v.s, &name("second")).await.unwrap();
    let wrong = Change::AddLinkParent { ino: v.f, parent: v.s, delta: 3 };
    v.damage(vec![wrong]).await;
    // Where they are derived there is nothing to be wrong.
    if !v.findings().await.is_empty() {
        v.mended(|finding| matches!(finding, Finding::WrongLinkParent { stored: 4, counted: 1, .. })).await;
    }
}

#[tokio::test]
async fn references_are_those_of_the_records() {
    let v = Volume::new().await;
    let count = |id, n| Change::Put(Key::SliceRef(SliceId(id), 100), Record::Number(n));
    v.damage(vec![count(1, 3), count(50, 2)]).await;
    v.mended(|finding| matches!(finding, Finding::LostSlice { .. })).await;
    assert_eq!(crate::meta::testing::references(&v.meta, SliceId(1), 100).await, 1);
    let record = v.meta.engine().read(&[Key::SliceRef(SliceId(50), 100)]).await.unwrap();
    assert_eq!(record, [Some(Record::Number(0))], "it waits to be removed");
}

#[tokio::test]
async fn statistics_are_counted_anew() {
    let v = Volume::new().await;
    let stat = DirStat { length: 1, space: 2, inodes: 3 };
    v.damage(vec![
        Change::Put(Key::DirStat(v.d), Record::DirStat(stat)),
        Change::Put(Key::DirStat(Ino(4711)), Record::DirStat(stat)),
        Change::AddCounter(Counter::UsedSpace, 4096),
        Change::AddCounter(Counter::TotalInodes, -1),
    ])
    .await;
    assert!(v.findings().await.iter().all(is_statistic));
    v.mended(|finding| matches!(finding, Finding::WrongDirStat { .. })).await;
}

#[tokio::test]
async fn what_is_left_of_nodes_that_are_gone_goes() {
    let v = Volume::new().await;
    let gone = Ino(4711);
    let session = SessionId(3);
    v.damage(vec![
        Change::Put(Key::Xattr(gone, name("user.a")), Record::Bytes(Bytes::from_static(b"1"))),
        Change::AddLinkParent { ino: gone, parent: v.d, delta: 1 },
        Change::Put(Key::DeletedFile(v.f, 100), Record::Number(1)),
        Change::Put(
            Key::Session(session),
            Record::Session(Session { expire: 1 << 40, info: Bytes::from_static(b"{}") }),
        ),
        Change::Put(Key::Sustained(session, gone), Record::Number(1)),
        Change::Put(Key::Chunk(gone, ChunkIndex(2)), Record::Slices(vec![slice(7)])),
        Change::Put(Key::SliceRef(SliceId(7), 100), Record::Number(1)),
    ])
    .await;
    v.mended(|finding| matches!(finding, Finding::LostXattrs { .. })).await;
    assert_eq!(v.attr(v.f).await.unwrap().length, 100);
    let length = 2 * CHUNK_BYTES + 100;
    let record = v.meta.engine().read(&[Key::DeletedFile(gone, length)]).await.unwrap();
    assert!(record[0].is_some(), "lost data takes the way of deleted data");
}

async fn next(v: &Volume, counter: Counter) -> u64 {
    v.meta.engine().allocate(counter, 1).await.unwrap()
}

#[tokio::test]
async fn counters_are_raised_above_what_is_in_use() {
    let v = Volume::new().await;
    // What was given to other clients before, and they have not used yet.
    let held = [Counter::NextInode, Counter::NextSlice];
    let mut given = Vec::new();
    for counter in held {
        given.push(v.meta.engine().allocate(counter, 10_000).await.unwrap() + 9_999);
    }
    let rule = AclRule { owner: 7, group: 7, mask: 7, other: 0, users: vec![(5, 7)], groups: Vec::new() };
    let session = Session { expire: 1 << 40, info: Bytes::from_static(b"{}") };
    let mut changes: Vec<Change> = [
        (Key::AclRule(12), Record::AclRule(rule)),
        (Key::Session(SessionId(9)), Record::Session(session)),
        (Key::DeletedFile(Ino(5000), 1), Record::Number(1)),
        (Key::DelayedSlices(SliceId(6000), 1), Record::Slices(Vec::new())),
        (Key::SliceRef(SliceId(7000), 100), Record::Number(0)),
        // Nobody's number.
        (Key::SliceRef(SliceId(1 << 62), 100), Record::Number(0)),
    ]
    .into_iter()
    // Nobody stores an empty list either.
    .filter(|(key, _)| v.meta.engine().stores_empty_values() || !matches!(key, Key::DelayedSlices(..)))
    .map(|(key, record)| Change::Put(key, record))
    .collect();
    let numbering = [Counter::NextInode, Counter::NextSlice, Counter::NextSession, Counter::AclMaxId];
    changes.extend(numbering.map(|counter| Change::Put(Key::Counter(counter), Record::Number(0))));
    v.damage(changes).await;
    let low = |counter, used| Finding::LowCounter { counter, used };
    let mut expected = vec![
        low(Counter::NextInode, 5000),
        low(Counter::NextSlice, 7000),
        low(Counter::NextSession, 9),
        low(Counter::AclMaxId, 12),
    ];
    if v.meta.engine().name() == "mysql" {
        // It numbers above all rules by itself.
        expected.pop();
    }
    assert_eq!(v.findings().await, expected);
    v.mended(|finding| matches!(finding, Finding::LowCounter { .. })).await;
    for (counter, given) in held.into_iter().zip(given) {
        assert!(next(&v, counter).await > given, "{counter:?}");
    }
    assert_eq!(next(&v, Counter::NextSession).await, 10);
    assert_eq!(next(&v, Counter::AclMaxId).await, 13);

    // Below all numbers.
    v.damage(vec![Change::Put(Key::Counter(Counter::NextTrash), Record::Number(-3))]).await;
    v.mended(|finding| *finding == low(Counter::NextTrash, 0)).await;
    assert_eq!(next(&v, Counter::NextTrash).await, 1);
}

/// What a repair makes needs a number of its own.
#[tokio::test]
async fn numbers_are_set_right_before_they_are_used() {
    let v = Volume::new().await;
    let counter = Change::Put(Key::Counter(Counter::NextInode), Record::Number(0));
    v.damage(vec![counter, Change::Delete(Key::Dentry(v.d, name("f")))]).await;
    let fresh = v.meta.engine();
    let meta = crate::meta::testing::volume_on(fresh.clone(), Arc::new(SystemClock)).await;
    for _ in 0..20 {
        let findings = v.findings().await;
        meta.mend(&findings, 0o755).await.unwrap();
    }
    assert!(v.findings().await.is_empty());
    assert_eq!(v.lookup(&format!("lost+found/#{}", v.f)).await, v.f);
    assert!(v.lookup("lost+found").await.0 > v.l.0, "no number twice");
}

#[tokio::test]
async fn locks_of_sessions_that_are_not_there_are_given_back() {
    let v = Volume::new().await;
    let flock = |session, owner| Change::SetFlock {
        ino: v.f,
        session: SessionId(session),
        owner,
        exclusive: Some(false),
        last: false,
    };
    let range = PlockRange { exclusive: true, pid: 1, start: 0, end: 9 };
    let plock = |session| Change::SetPlock {
        ino: v.g,
        session: SessionId(session),
        owner: 1,
        ranges: vec![range],
        last: false,
    };
    let live = next(&v, Counter::NextSession).await;
    let session = Session { expire: 1 << 40, info: Bytes::from_static(b"{}") };
    let session = Change::Put(Key::Session(SessionId(live)), Record::Session(session));
    // Zero is who has none.
    v.damage(vec![session, flock(live, 1), flock(0, 1), plock(live), plock(0)]).await;
    assert_eq!(v.findings().await, []);
    let sound = [Key::Flocks(v.f), Key::Plocks(v.g)];
    let before = v.meta.engine().read(&sound).await.unwrap();

    v.damage(vec![flock(77, 1), flock(77, 2), plock(77)]).await;
    let nobodys = |ino, sort| Finding::LockOfNobody { session: SessionId(77), ino, sort };
    assert_eq!(v.findings().await, [nobodys(v.f, LockSort::Flock), nobodys(v.g, LockSort::Posix)]);
    v.mended(|finding| matches!(finding, Finding::LockOfNobody { .. })).await;
    assert_eq!(v.meta.engine().read(&sound).await.unwrap(), before, "those of others stay");
    for finding in [
        nobodys(v.f, LockSort::Flock),
        Finding::LockOfNobody { session: SessionId(live), ino: v.f, sort: LockSort::Flock },
    ] {
        assert!(!v.meta.holds(&finding).await.unwrap(), "{finding}");
    }
}

#[tokio::test]
async fn an_acl_without_its_rule_is_told_once() {
    let v = Volume::new().await;
    let changes = vec![
        v.change_attr(v.g, |attr| attr.access_acl = 4).await,
        v.change_attr(v.s, |attr| attr.default_acl = 4).await,
    ];
    v.damage(changes).await;
    let missing = Finding::MissingAclRule { id: 4, ino: v.s.min(v.g) };
    assert_eq!(v.findings().await, std::slice::from_ref(&missing));
    let mended = v.meta.mend(std::slice::from_ref(&missing), 0o755).await.unwrap();
    assert!(matches!(mended[..], [(_, Mended::Left(_))]), "{mended:?}");
    let rule = AclRule { owner: 7, group: 7, mask: 7, other: 0, users: vec![(5, 7)], groups: Vec::new() };
    v.damage(vec![Change::Put(Key::AclRule(4), Record::AclRule(rule)), Change::AddCounter(Counter::AclMaxId, 4)]).await;
    assert_eq!(v.findings().await, []);
    assert!(!v.meta.holds(&missing).await.unwrap());
}

/// A finding of a moment ago must not undo what came meanwhile.
#[tokio::test]
async fn a_finding_that_went_by_is_left_alone() {
    let v = Volume::new().await;
    let stale = [
        Finding::WrongLinks { ino: v.d, kind: Kind::Directory, stored: 7, counted: 3 },
        Finding::WrongReferences { id: SliceId(1), size: 100, stored: 5, counted: 2 },
        Finding::DanglingDentry { parent: v.d, name: name("f"), ino: v.f },
        Finding::LostChunk { ino: v.f, index: ChunkIndex(0) },
        Finding::WrongParent { ino: v.g, stored: v.d, found: v.s },
        Finding::LostXattrs { ino: v.f },
        // What a walk says of files that are renamed while it reads.
        Finding::Orphan { ino: v.f, kind: Kind::File },
        Finding::WrongParent { ino: v.g, stored: v.s, found: v.d },
        Finding::DentryInMissing { parent: v.s, name: name("g"), ino: v.g },
        Finding::WrongLinks { ino: v.g, kind: Kind::File, stored: 1, counted: 0 },
        Finding::WrongLinks { ino: v.d, kind: Kind::Directory, stored: 3, counted: 2 },
        Finding::WrongKind { parent: v.d, name: name("f"), ino: v.f, entry: Kind::File, node: Kind::Directory },
        Finding::WrongLinkParent { ino: v.f, parent: v.d, stored: 1, counted: 2 },
        Finding::Cycle { ino: v.d },
        Finding::LostDirStat { dir: v.d },
        Finding::MissingTarget { ino: v.l },
    ];
    for finding in stale {
        assert!(!v.meta.holds(&finding).await.unwrap(), "{finding}");
        let mended = v.meta.mend(std::slice::from_ref(&finding), 0o755).await.unwrap();
        assert_eq!(mended, [(finding, Mended::Gone)]);
    }
    assert!(v.findings().await.is_empty());
}
