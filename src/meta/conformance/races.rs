//! What a decision read still holds when its commit is applied: in each case another client gets in between the loads
//! and the commit of an operation, and the operation has to answer, and leave the tree, as if it had come second.

use super::{Shell, clean, client, name, node};
use crate::base::acl::AclRule;
use crate::base::slice::resolve;
use crate::base::{ChunkIndex, Errno, Ino, Kind, Outcome, Slice, SliceId, Timestamp};
use crate::meta::ops::acl::{self, AclKind};
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::compact::{Replaced, plan_compaction};
use crate::meta::ops::plock::LockKind;
use crate::meta::ops::rename::RenameMode::{Exchange, Replace};
use crate::meta::ops::xattr::XattrMode;
use crate::meta::reclaim::Removal;
use crate::meta::reclaim::tests::Removed;
use crate::meta::record::Counter;
use crate::meta::session::SessionInfo;
use crate::meta::testing::{Interrupt, Store, file};
use crate::meta::{Caller, Meta, Rules};
use crate::util::task::stop_signal;
use std::future::Future;
use std::sync::Arc;
use std::time::Duration;

const ROOT: Ino = Ino::ROOT;
const FIRST: ChunkIndex = ChunkIndex(0);

struct Race {
    meta: Arc<Meta>,
    other: Arc<Meta>,
    interrupt: Interrupt,
}

impl Race {
    async fn new(with_trash: bool) -> Race {
        let store = Store::new().await;
        let (engine, interrupt) = store.interrupted_engine().await;
        let race = Race {
            meta: client(engine, with_trash).await,
            other: client(store.engine().await, with_trash).await,
            interrupt,
        };
        for client in [&race.meta, &race.other] {
            client.start_session(SessionInfo::default(), Duration::from_secs(12)).await.expect("a session");
        }
        race
    }

    fn sh(&self) -> Shell<'_> {
        Shell(&self.meta)
    }

    /// What the other client does before the next commit of this one.
    fn lose_to<F: Future + Send + 'static>(&self, what: impl FnOnce(Arc<Meta>) -> F) {
        let what = what(self.other.clone());
        self.interrupt.before_commit(async move { drop(what.await) });
    }

    async fn end(self) {
        assert!(self.interrupt.has_happened(), "nothing was committed");
        clean(&self.meta).await;
    }
}

fn written(pos: u32, id: u64, len: u32) -> Slice {
    Slice { pos, id: SliceId(id), size: len, off: 0, len }
}

async fn append(meta: &Meta, ino: Ino, index: ChunkIndex, slice: Slice) {
    meta.append_slice(ino, index, slice, Timestamp::new(1, 0)).await.expect("append");
}

fn errno<T: std::fmt::Debug>(outcome: Outcome<T>) -> Errno {
    outcome.expect_err("the other came first").errno()
}

#[tokio::test]
async fn one_of_two_nodes_gets_the_name() {
    let race = Race::new(false).await;
    race.lose_to(|other| async move { file(&other, "f").await });
    assert_eq!(errno(race.meta.create(&Caller::root(), ROOT, &name("f"), &node(Kind::File)).await), Errno::EEXIST);
    race.end().await;
}

#[tokio::test]
async fn nothing_is_made_in_a_directory_that_goes() {
    let race = Race::new(false).await;
    let d = race.sh().dir(ROOT, "d").await;
    race.lose_to(|other| async move { Shell(&other).rmdir(ROOT, "d").await.unwrap() });
    assert_eq!(errno(race.meta.create(&Caller::root(), d, &name("f"), &node(Kind::File)).await), Errno::ENOENT);
    race.end().await;
}

#[tokio::test]
async fn nothing_is_made_in_a_directory_that_is_closed_to_the_caller() {
    let race = Race::new(false).await;
    let d = race.sh().dir(ROOT, "d").await;
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    race.meta.setattr(&Caller::root(), d, &mode(0o777)).await.unwrap();
    race.lose_to(|other| async move { other.setattr(&Caller::root(), d, &mode(0o755)).await.unwrap() });
    let user = Caller { uid: 5, gid: 5, check: true, ..Caller::root() };
    assert_eq!(errno(race.meta.create(&user, d, &name("f"), &node(Kind::File)).await), Errno::EACCES);
    race.end().await;
}

#[tokio::test]
async fn a_directory_that_is_filled_stays() {
    for with_trash in [false, true] {
        let race = Race::new(with_trash).await;
        let d = race.sh().dir(ROOT, "d").await;
        race.sh().dir(ROOT, "e").await;
        // Finds the hourly directory, so that the next commit is the one in question.
        race.sh().file(ROOT, "f").await;
        race.sh().rm(ROOT, "f").await;
        race.lose_to(move |other| async move { Shell(&other).file(d, "f").await });
        assert_eq!(race.sh().rmdir(ROOT, "d").await, Err(Errno::ENOTEMPTY));
        race.sh().rm(d, "f").await;
        race.lose_to(move |other| async move { Shell(&other).file(d, "f").await });
        assert_eq!(race.sh().mv((ROOT, "e"), (ROOT, "d"), Replace).await, Err(Errno::ENOTEMPTY));
        race.end().await;
    }
}

#[tokio::test]
async fn a_name_that_is_no_longer_the_last_frees_nothing() {
    let race = Race::new(false).await;
    let (f, g) = (race.sh().file(ROOT, "f").await, race.sh().file(ROOT, "g").await);
    let link =
        |other: Arc<Meta>, ino, text| async move { other.link(&Caller::root(), ino, ROOT, &name(text)).await.unwrap() };
    race.lose_to(|other| link(other, f, "f2"));
    let removed = race.sh().rm(ROOT, "f").await;
    assert_eq!((removed.attr.nlink, removed.freed), (1, false));
    race.lose_to(|other| link(other, g, "g2"));
    assert_eq!(race.sh().mv((ROOT, "f2"), (ROOT, "g"), Replace).await, Ok(f));
    assert_eq!(race.sh().look(ROOT, "g2").await.unwrap().attr.nlink, 1);
    // And one that is the last by now frees the node.
    link(race.meta.clone(), f, "f2").await;
    race.lose_to(|other| async move { assert!(!Shell(&other).rm(ROOT, "f2").await.freed) });
    assert!(race.sh().rm(ROOT, "g").await.freed);
    race.end().await;
}

#[tokio::test]
async fn what_has_lost_its_last_name_is_not_linked() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    race.other.open_file(f);
    race.lose_to(|other| async move { assert!(!Shell(&other).rm(ROOT, "f").await.freed, "sustained") });
    assert_eq!(errno(race.meta.link(&Caller::root(), f, ROOT, &name("g")).await), Errno::ENOENT);
    clean(&race.meta).await;
    race.other.close_file(f).await.unwrap();
    race.end().await;
}

#[tokio::test]
async fn one_of_two_names_wins_a_moved_node() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    race.lose_to(|other| async move { Shell(&other).mv((ROOT, "f"), (ROOT, "g"), Replace).await.unwrap() });
    assert_eq!(race.sh().mv((ROOT, "f"), (ROOT, "h"), Replace).await, Err(Errno::ENOENT));
    let d = race.sh().dir(ROOT, "d").await;
    race.lose_to(move |other| async move { Shell(&other).mv((ROOT, "g"), (d, "g"), Replace).await.unwrap() });
    assert_eq!(race.sh().mv((ROOT, "g"), (ROOT, "d"), Exchange).await, Err(Errno::ENOENT));
    assert_eq!(race.sh().look(d, "g").await.unwrap().ino, f);
    race.end().await;
}

#[tokio::test]
async fn two_moves_make_no_cycle() {
    let race = Race::new(false).await;
    let (a, b) = (race.sh().dir(ROOT, "a").await, race.sh().dir(ROOT, "b").await);
    let c = race.sh().dir(b, "c").await;
    race.lose_to(move |other| async move { Shell(&other).mv((ROOT, "b"), (a, "b"), Replace).await.unwrap() });
    assert_eq!(race.sh().mv((ROOT, "a"), (c, "a"), Replace).await, Err(Errno::EINVAL));
    race.end().await;
}

#[tokio::test]
async fn a_length_is_accounted_from_what_it_is() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    race.lose_to(move |other| async move { append(&other, f, FIRST, written(0, 1, 5000)).await });
    append(&race.meta, f, FIRST, written(0, 2, 9000)).await;
    clean(&race.meta).await;
    // A truncate by the other client, then one by this.
    race.lose_to(move |other| async move { other.truncate(&Caller::root(), f, 0, true).await.unwrap() });
    append(&race.meta, f, FIRST, written(0, 3, 100)).await;
    assert_eq!(race.sh().attr(f).await.length, 100);
    clean(&race.meta).await;
    race.lose_to(move |other| async move { append(&other, f, ChunkIndex(1), written(0, 4, 5000)).await });
    race.meta.truncate(&Caller::root(), f, 10, true).await.unwrap();
    let shown = resolve(&race.meta.read_chunk(f, ChunkIndex(1)).await.unwrap());
    assert!(shown.iter().all(Slice::is_hole), "what was appended meanwhile is cut off: {shown:?}");
    race.end().await;
}

#[tokio::test]
async fn attributes_are_judged_as_they_are() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    let root = Caller::root();
    let mode = |mode| SetAttr { mode: Some(mode), ..SetAttr::default() };
    let owner = |uid| SetAttr { uid: Some(uid), ..SetAttr::default() };
    race.meta.setattr(&root, f, &mode(0o755)).await.unwrap();
    race.lose_to(|other| async move { other.setattr(&Caller::root(), f, &mode(0o4755)).await.unwrap() });
    assert_eq!(race.meta.setattr(&root, f, &owner(5)).await.unwrap().mode, 0o755, "suid goes with the owner");
    assert_eq!(race.sh().attr(f).await.mode, 0o755);
    race.lose_to(|other| async move { other.setattr(&Caller::root(), f, &owner(6)).await.unwrap() });
    let former = Caller { uid: 5, gid: 5, check: true, ..Caller::root() };
    assert_eq!(errno(race.meta.setattr(&former, f, &mode(0o777)).await), Errno::EPERM);
    race.end().await;
}

/// A file of three slices, and what a compaction read of it.
async fn written_thrice(meta: &Meta, text: &str, id: u64) -> (Ino, Vec<Slice>) {
    let ino = file(meta, text).await;
    for (i, pos) in [0, 8, 16].into_iter().enumerate() {
        append(meta, ino, FIRST, written(pos, id + i as u64, 10)).await;
    }
    (ino, meta.read_chunk(ino, FIRST).await.expect("read"))
}

async fn compact(meta: &Meta, ino: Ino, read: &[Slice], id: u64) -> Replaced {
    let plan = plan_compaction(read).expect("worth it");
    meta.replace_slices(meta.session(), ino, FIRST, read, plan.skipped, written(plan.pos, id, plan.size))
        .await
        .expect("compact")
}

#[tokio::test]
async fn one_of_two_compactions_wins() {
    for with_trash in [false, true] {
        let race = Race::new(with_trash).await;
        let (f, read) = written_thrice(&race.meta, "f", 1).await;
        let others = read.clone();
        race.lose_to(move |other| async move {
            assert_ne!(compact(&other, f, &others, 50).await, Replaced::Changed);
            // The list is as long again as it was.
            append(&other, f, FIRST, written(30, 60, 1)).await;
            append(&other, f, FIRST, written(40, 61, 1)).await;
        });
        assert_eq!(compact(&race.meta, f, &read, 51).await, Replaced::Changed);
        race.end().await;
    }
}

#[tokio::test]
async fn a_copy_shares_the_slices_that_are_there() {
    let race = Race::new(false).await;
    let (f, read) = written_thrice(&race.meta, "f", 1).await;
    let g = race.sh().file(ROOT, "g").await;
    race.lose_to(move |other| async move { compact(&other, f, &read, 50).await });
    race.meta.copy_range(&Caller::root(), f, 0, g, 0, 26).await.unwrap();
    let ids: Vec<u64> = race.meta.read_chunk(g, FIRST).await.unwrap().iter().map(|slice| slice.id.0).collect();
    assert_eq!(ids, [50]);
    race.end().await;
}

#[tokio::test]
async fn a_file_is_released_once() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    race.meta.open_file(f);
    race.sh().rm(ROOT, "f").await;
    let dead = race.meta.session();
    race.lose_to(move |other| async move { other.clean_session(dead).await.unwrap() });
    race.meta.close_file(f).await.unwrap();
    race.end().await;
}

#[tokio::test]
async fn what_goes_to_the_trash_is_not_lost_with_its_directory() {
    let race = Race::new(true).await;
    let later = race.meta.now().seconds + 7200;
    let purge = |other: Arc<Meta>| async move { other.purge_trash(later, 1, &|| false).await.unwrap() };
    let (sh, root) = (race.sh(), ROOT);
    for text in ["before", "f", "g"] {
        sh.file(root, text).await;
    }
    sh.dir(root, "d").await;
    sh.rm(root, "before").await;
    race.lose_to(purge);
    let f = sh.rm(root, "f").await;
    assert!(!f.freed);
    sh.trashed("f").await;
    race.lose_to(purge);
    sh.rmdir(root, "d").await.unwrap();
    sh.trashed("d").await;
    sh.file(root, "h").await;
    race.lose_to(purge);
    sh.mv((root, "h"), (root, "g"), Replace).await.unwrap();
    sh.trashed("g").await;
    race.end().await;
}

#[tokio::test]
async fn one_of_two_exclusive_locks_is_taken() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    race.lose_to(move |other| async move { other.flock(f, 1, LockKind::Write, false).await.unwrap() });
    assert_eq!(errno(race.meta.flock(f, 2, LockKind::Write, false).await), Errno::EAGAIN);
    race.lose_to(move |other| async move {
        other.set_plock(f, 1, LockKind::Write, 0, 9, 1, false).await.unwrap();
    });
    assert_eq!(errno(race.meta.set_plock(f, 2, LockKind::Read, 5, 20, 1, false).await), Errno::EAGAIN);
    race.end().await;
}

#[tokio::test]
async fn an_extended_attribute_is_created_once() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    let root = Caller::root();
    race.lose_to(move |other| async move {
        other.set_xattr(&Caller::root(), f, b"user.a", b"theirs", XattrMode::Create).await.unwrap();
    });
    assert_eq!(errno(race.meta.set_xattr(&root, f, b"user.a", b"mine", XattrMode::Create).await), Errno::EEXIST);
    // An attribute of a file that is gone would stay for ever.
    race.lose_to(|other| async move { assert!(Shell(&other).rm(ROOT, "f").await.freed) });
    assert_eq!(errno(race.meta.set_xattr(&root, f, b"user.b", b"late", XattrMode::Set).await), Errno::ENOENT);
    race.end().await;
}

#[tokio::test]
async fn a_lease_is_taken_once() {
    let race = Race::new(false).await;
    let lease = Counter::LastCleanupFiles;
    race.lose_to(move |other| async move { assert!(other.take_lease(lease, 3240).await.unwrap()) });
    assert!(!race.meta.take_lease(lease, 3240).await.unwrap());
    race.end().await;
}

#[tokio::test]
async fn a_new_node_inherits_the_rule_that_stands() {
    let race = Race::new(false).await;
    let d = race.sh().dir(ROOT, "d").await;
    let rule = AclRule { owner: 7, group: 5, mask: 5, other: 0, users: vec![(9, 7)], groups: vec![] };
    let value = acl::format(&rule);
    race.lose_to(move |other| async move {
        other.set_acl(&Caller::root(), d, AclKind::Default, &value).await.unwrap();
    });
    let made = race.meta.create(&Caller::root(), d, &name("f"), &node(Kind::File)).await.unwrap();
    let inherited = acl::parse(&race.meta.get_acl(made.ino, AclKind::Access).await.unwrap()).unwrap();
    assert_eq!(inherited.users, rule.users);
    race.end().await;
}

#[tokio::test]
async fn two_clients_that_need_a_new_rule_make_two() {
    let race = Race::new(false).await;
    let (f, g) = (race.sh().file(ROOT, "f").await, race.sh().file(ROOT, "g").await);
    let rule =
        |user| acl::format(&AclRule { owner: 7, group: 5, mask: 5, other: 0, users: vec![(user, 7)], groups: vec![] });
    race.lose_to(move |other| async move {
        other.set_acl(&Caller::root(), g, AclKind::Access, &rule(8)).await.unwrap();
    });
    race.meta.set_acl(&Caller::root(), f, AclKind::Access, &rule(9)).await.unwrap();
    for (ino, user) in [(f, 9), (g, 8)] {
        for client in [&race.meta, &race.other] {
            let value = client.get_acl(ino, AclKind::Access).await.unwrap();
            assert_eq!(acl::parse(&value).unwrap().users, [(user, 7)]);
        }
    }
    race.end().await;
}

#[tokio::test]
async fn a_tree_is_removed_with_what_came_meanwhile() {
    let race = Race::new(false).await;
    let d = race.sh().dir(ROOT, "d").await;
    race.lose_to(move |other| async move { Shell(&other).file(d, "late").await });
    assert_eq!(race.meta.remove_tree(&Caller::root(), ROOT, &name("d"), true, 2, &|_| {}).await.unwrap(), 2);
    assert_eq!(errno(race.meta.lookup(&Caller::root(), ROOT, &name("d")).await), Errno::ENOENT);
    // And without what somebody else removed.
    let d = race.sh().dir(ROOT, "d").await;
    race.sh().file(d, "f").await;
    race.lose_to(move |other| async move { Shell(&other).rm(d, "f").await });
    assert_eq!(race.meta.remove_tree(&Caller::root(), ROOT, &name("d"), true, 2, &|_| {}).await.unwrap(), 1);
    race.end().await;
}

#[tokio::test]
async fn slices_kept_for_the_trash_are_let_go_once() {
    let race = Race::new(true).await;
    let (f, read) = written_thrice(&race.meta, "f", 1).await;
    // A second reference to each slice, which letting go twice would take too.
    let g = race.sh().file(ROOT, "g").await;
    race.meta.copy_range(&Caller::root(), f, 0, g, 0, 26).await.unwrap();
    assert_ne!(compact(&race.meta, f, &read, 50).await, Replaced::Changed);
    for client in [&race.meta, &race.other] {
        client.set_rules(Rules { trash_days: 0, ..client.rules() });
    }
    tokio::time::sleep(Duration::from_millis(1100)).await;
    let removed = Arc::new(Removed::default());
    // Dropped, it would count as given.
    let (_stopper, stop) = stop_signal();
    let removal = || Removal::new(removed.clone(), 1, stop.clone());
    let others = removal();
    race.lose_to(move |other| async move { other.clean_trash(&others).await.unwrap() });
    race.meta.clean_trash(&removal()).await.unwrap();
    assert!(removed.slices.lock().is_empty(), "still in use: {:?}", removed.slices.lock());
    race.end().await;
}

/// Whose reply was lost looks whether the name is gone; one that was made anew meanwhile is another file's.
#[tokio::test]
async fn a_name_made_anew_after_a_removal_without_a_reply_stays() {
    for with_trash in [false, true] {
        let race = Race::new(with_trash).await;
        race.sh().file(ROOT, "f").await;
        // Makes the trash ready, if there is one: that takes a commit as well.
        race.sh().file(ROOT, "g").await;
        race.sh().rm(ROOT, "g").await;
        let other = race.other.clone();
        let (send, made) = tokio::sync::oneshot::channel();
        race.interrupt.lost_reply(async move { send.send(Shell(&other).file(ROOT, "f").await).unwrap() });
        race.sh().rm(ROOT, "f").await;
        let made = made.await.expect("the reply was lost");
        let found = race.meta.lookup(&Caller::root(), ROOT, &name("f")).await;
        assert_eq!(found.map(|entry| entry.ino).map_err(|stop| stop.errno()), Ok(made));
        race.end().await;
    }
}

/// Its transaction is out of date then, which is no reason to give up.
#[tokio::test]
async fn a_client_that_stood_still_before_a_commit_tries_it_again() {
    let race = Race::new(false).await;
    let f = race.sh().file(ROOT, "f").await;
    race.lose_to(move |other| async move {
        other.truncate(&Caller::root(), f, 100, true).await.unwrap();
        tokio::time::pause();
        tokio::time::advance(Duration::from_secs(60)).await;
        tokio::time::resume();
    });
    let slice = Slice { pos: 0, id: SliceId(9), size: 10, off: 0, len: 10 };
    race.meta.append_slice(f, FIRST, slice, Timestamp::default()).await.unwrap();
    assert_eq!(race.meta.getattr(f).await.unwrap().length, 100);
    race.end().await;
}
