//! Known records save trips, decide nothing, and are forgotten in time.

use super::*;
use crate::base::mode::flag;
use crate::base::{AttrPatch, ChunkIndex, Errno, Kind, Name, Slice, SliceId, Timestamp};
use crate::meta::engine::counting::{CountingEngine, Trips};
use crate::meta::ops::attr::{SetAttr, SetTime};
use crate::meta::ops::create::NewNode;
use crate::meta::ops::rename::RenameMode;
use crate::meta::testing::{Store, file, volume_on};
use crate::meta::{Caller, Meta};
use crate::util::clock::SystemClock;
use std::sync::Arc;

const FILE: NewNode = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };

fn name(text: &str) -> Name {
    Name::entry(text.as_bytes()).expect("a name")
}

async fn create(meta: &Meta, text: &str) -> Result<Ino, Errno> {
    let made = meta.create(&Caller::root(), Ino::ROOT, &name(text), &FILE).await;
    made.map(|entry| entry.ino).map_err(|stop| stop.errno())
}

async fn look(meta: &Meta, text: &str) -> Option<Ino> {
    meta.lookup(&Caller::root(), Ino::ROOT, &name(text)).await.ok().map(|entry| entry.ino)
}

async fn unlink(meta: &Meta, text: &str) -> Result<(), Errno> {
    let removed = meta.unlink(&Caller::root(), Ino::ROOT, &name(text), true).await;
    removed.map(drop).map_err(|stop| stop.errno())
}

async fn rename(meta: &Meta, from: &str, to: &str) -> Result<(), Errno> {
    let (root, from, to) = (Caller::root(), name(from), name(to));
    let moved = meta.rename(&root, Ino::ROOT, &from, Ino::ROOT, &to, RenameMode::Replace).await;
    moved.map(drop).map_err(|stop| stop.errno())
}

/// A client of a fresh volume whose trips are counted, and another one.
async fn two() -> (Arc<CountingEngine>, Arc<Meta>, Arc<Meta>) {
    let store = Store::new().await;
    let engine = Arc::new(CountingEngine::new(store.engine().await));
    let here = volume_on(engine.clone(), Arc::new(SystemClock)).await;
    (engine, here, store.client_of_what_is_there().await)
}

/// What follows the lookups of a name takes a commit, and nothing before it.
#[tokio::test]
async fn what_was_looked_up_is_not_loaded_again() {
    let (engine, here, _) = two().await;
    // Numbers are reserved many at a time.
    create(&here, "first").await.expect("made");
    let once = |trips: Trips| (trips.read, trips.load, trips.commit, trips.scan);
    look(&here, "f").await;
    engine.take();
    let ino = create(&here, "f").await.expect("made");
    assert_eq!(once(engine.take()), (0, 0, 1, 0), "create");
    let slice = Slice { pos: 0, id: SliceId(1), size: 100, off: 0, len: 100 };
    here.append_slice(ino, ChunkIndex(0), slice, Timestamp::default()).await.expect("written");
    assert_eq!(once(engine.take()), (0, 0, 1, 0), "append");
    here.setattr(&Caller::root(), ino, &mode(0o600)).await.expect("changed");
    assert_eq!(once(engine.take()), (0, 0, 1, 0), "chmod");
    look(&here, "g").await;
    engine.take();
    rename(&here, "f", "g").await.expect("moved");
    assert_eq!(once(engine.take()), (0, 0, 1, 0), "rename");
    assert_eq!(here.getattr(ino).await.expect("there").length, 100);
    engine.take();
    unlink(&here, "g").await.expect("removed");
    let trips = engine.take();
    assert_eq!((trips.load, trips.commit), (0, 1), "unlink");
}

fn mode(mode: u16) -> SetAttr {
    SetAttr { mode: Some(mode), ..SetAttr::default() }
}

/// A time, the flags or the tier that a node seems to have already may be another one by now.
#[tokio::test]
async fn what_seems_to_be_so_already_is_set_all_the_same() {
    let (_, here, there) = two().await;
    let (root, one, other) = (Caller::root(), Timestamp::new(1_000, 1), Timestamp::new(2_000, 2));
    let at = |time| Some(SetTime::At(time));
    let wish = |time, mode| SetAttr { mode: Some(mode), atime: at(time), mtime: at(time), ..SetAttr::default() };
    let ino = create(&here, "f").await.expect("made");
    here.setattr(&root, ino, &wish(one, 0o600)).await.expect("set");
    there.setattr(&root, ino, &wish(other, 0o600)).await.expect("set");
    here.setattr(&root, ino, &wish(one, 0o640)).await.expect("set");
    let attr = there.getattr(ino).await.expect("there");
    assert_eq!((attr.atime, attr.mtime, attr.mode), (one, one, 0o640));

    let flagged = |flags, mode| SetAttr { mode: Some(mode), flags: Some(flags), ..SetAttr::default() };
    here.setattr(&root, ino, &flagged(0, 0o644)).await.expect("set");
    there.setattr(&root, ino, &flagged(flag::SKIP_TRASH, 0o644)).await.expect("set");
    here.setattr(&root, ino, &flagged(0, 0o600)).await.expect("set");
    assert_eq!(there.getattr(ino).await.expect("there").flags, 0);
}

/// Whatever another client has changed since, the outcome is that of an operation that looked first.
#[tokio::test]
async fn what_is_known_decides_nothing() {
    let (_, here, there) = two().await;
    assert_eq!(look(&here, "new").await, None);
    create(&there, "new").await.expect("made");
    assert_eq!(create(&here, "new").await, Err(Errno::EEXIST));

    let ino = look(&here, "new").await.expect("there");
    unlink(&there, "new").await.expect("removed");
    assert_eq!(unlink(&here, "new").await, Err(Errno::ENOENT));
    assert_eq!(here.getattr(ino).await.expect_err("gone").errno(), Errno::ENOENT);
    assert_eq!(create(&there, "new").await.map(|_| ()), Ok(()));
    // That it was gone was known.
    assert_eq!(unlink(&here, "new").await, Ok(()));

    let ino = file(&there, "linked").await;
    assert_eq!(look(&here, "linked").await, Some(ino));
    there.link(&Caller::root(), ino, Ino::ROOT, &name("other")).await.expect("linked");
    unlink(&here, "linked").await.expect("removed");
    assert_eq!((look(&there, "other").await, there.getattr(ino).await.expect("kept").nlink), (Some(ino), 1));

    let longer = Slice { pos: 0, id: SliceId(7), size: 5000, off: 0, len: 5000 };
    assert_eq!(here.getattr(ino).await.expect("there").length, 0);
    there.append_slice(ino, ChunkIndex(0), longer, Timestamp::default()).await.expect("written");
    let shorter = Slice { id: SliceId(8), len: 10, size: 10, ..longer };
    let appended = here.append_slice(ino, ChunkIndex(0), shorter, Timestamp::default()).await.expect("written");
    assert_eq!((appended.attr.length, appended.records), (5000, 2));

    look(&here, "other").await;
    look(&here, "target").await;
    let target = create(&there, "target").await.expect("made");
    rename(&here, "other", "target").await.expect("moved over");
    assert_eq!(look(&there, "target").await, Some(ino));
    assert_eq!(there.getattr(target).await.expect_err("replaced").errno(), Errno::ENOENT);
}

/// What answers with no attributes relies on records of some seconds ago; what somebody else changed since is noticed.
#[tokio::test]
async fn removals_and_moves_rely_on_what_is_older() {
    let (engine, here, there) = two().await;
    let once = |trips: Trips| (trips.read, trips.load, trips.commit, trips.scan);
    for text in ["a", "b", "c"] {
        create(&here, text).await.expect("made");
    }
    look(&here, "free").await;
    tokio::time::sleep(FRESH + Duration::from_millis(20)).await;
    engine.take();
    unlink(&here, "a").await.expect("removed");
    rename(&here, "b", "free").await.expect("moved");
    assert_eq!(once(engine.take()), (0, 0, 2, 0));
    let other = create(&there, "other").await.expect("made");
    rename(&there, "other", "c").await.expect("moved over");
    unlink(&here, "c").await.expect("removed");
    assert_eq!(there.getattr(other).await.expect_err("it was this one").errno(), Errno::ENOENT);
}

#[tokio::test]
async fn a_directory_is_known_as_this_client_left_it() {
    let (engine, here, _) = two().await;
    look(&here, "d").await;
    let dir = NewNode { kind: Kind::Directory, ..FILE };
    let made = here.create(&Caller::root(), Ino::ROOT, &name("d"), &dir).await.expect("made");
    engine.take();
    let known = [here.known_attr(Ino::ROOT, USEFUL), here.known_attr(made.ino, USEFUL)];
    assert_eq!(engine.take().total(), 0);
    let known = known.map(|known| known.expect("just changed").0);
    let stored = [here.getattr(Ino::ROOT).await.expect("there"), here.getattr(made.ino).await.expect("there")];
    assert_eq!(known, stored);
    let ino = file(&here, "f").await;
    let known = here.known_attr(ino, USEFUL).expect("just made").0;
    assert_eq!(known, here.getattr(ino).await.expect("there"));
    assert_eq!(here.known_attr(ino, Duration::ZERO), None, "for a kernel that believes nothing");
}

fn attr(ino: u64, length: u64) -> (Key, Record) {
    (Key::Attr(Ino(ino)), Record::Attr(Attr { length, ..crate::meta::ops::lookup::stub(Kind::File) }))
}

fn length(known: &Known, ino: u64) -> Option<u64> {
    known.attr(Ino(ino), FRESH).map(|(attr, _)| attr.length)
}

#[tokio::test(start_paused = true)]
async fn what_was_read_amid_a_commit_is_not_known_after_it() {
    let known = Known::default();
    let grow = |ino| Change::Patch(Ino(ino), AttrPatch::new().grow_to(9));
    let tick = || tokio::time::advance(Duration::from_millis(1));
    for ino in [1, 2, 3] {
        let (key, record) = attr(ino, 4);
        known.note(&key, Some(&record));
    }
    tick().await;
    let sent = Instant::now();
    tick().await;
    // It may show the commit, or may not.
    let (key, record) = attr(2, 4);
    known.note(&key, Some(&record));
    known.committed(&[grow(1), grow(2), grow(4)], sent, true);
    assert_eq!([1, 2, 3, 4].map(|ino| length(&known, ino)), [Some(9), None, Some(4), None]);
    known.committed(&[grow(1)], Instant::now(), false);
    assert_eq!(length(&known, 1), None, "nobody knows");
    let (key, record) = attr(5, 1);
    known.committed(&[Change::Put(key.clone(), record)], Instant::now(), true);
    assert_eq!(length(&known, 5), Some(1));
    known.committed(&[Change::Delete(key.clone())], Instant::now() + Duration::from_millis(1), true);
    assert_eq!(known.get(&key, FRESH), Some(None));
    tokio::time::advance(FRESH).await;
    assert_eq!((length(&known, 3), known.get(&key, FRESH)), (None, None), "too old");
    assert_eq!(known.get(&key, USEFUL), Some(None), "not for this");
    tokio::time::advance(USEFUL).await;
    assert_eq!(known.get(&key, Duration::MAX), None);
}

/// A listing tells of a moment that has passed.
#[tokio::test(start_paused = true)]
async fn what_was_asked_for_earlier_is_no_newer_than_what_came_meanwhile() {
    let known = Known::default();
    let tick = || tokio::time::advance(Duration::from_millis(1));
    let listed = |ino, length, at| {
        let (key, record) = attr(ino, length);
        known.note_earlier([(key, record, at)]);
    };
    let first = Instant::now();
    tick().await;
    let (key, record) = attr(1, 20);
    known.note(&key, Some(&record));
    known.committed(&[Change::Patch(Ino(2), AttrPatch::new().grow_to(9))], Instant::now(), true);
    tick().await;
    let (key, record) = attr(4, 10);
    known.note(&key, Some(&record));
    for ino in [1, 2, 3, 4] {
        listed(ino, 10, first);
    }
    assert_eq!([1, 2, 3, 4].map(|ino| length(&known, ino)), [None, None, Some(10), Some(10)]);
    listed(3, 11, Instant::now());
    assert_eq!(known.attr(Ino(3), FRESH).map(|(attr, age)| (attr.length, age)), Some((11, Duration::ZERO)));
}

#[tokio::test(start_paused = true)]
async fn own_changes_are_remembered_for_long_enough() {
    let known = Known::default();
    let key = |ino| Key::Attr(Ino(ino));
    let touch = |ino| known.committed(&[Change::Delete(key(ino))], Instant::now(), true);
    let then = Instant::now();
    touch(1);
    for _ in 0..4 {
        tokio::time::advance(TOUCHED_FOR / 4).await;
        touch(2);
        assert!(known.touched_since(&key(1), then) && !known.touched_since(&key(3), then));
    }
    assert!(!known.touched_since(&key(1), Instant::now()));
    for ino in 0..3 * TOUCHED_MAX as u64 {
        touch(ino);
    }
    assert!(known.touched_since(&key(u64::MAX), then), "some are forgotten: any may be meant");
    assert!(known.touched.lock().len() <= 2 * TOUCHED_MAX);
    assert!(known.records.lock().len() <= RECORDS_MAX);
}
