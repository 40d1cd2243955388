//! Tests of sessions: registration, heartbeats, and what is left of dead ones.

use super::*;
use crate::base::{ChunkIndex, Slice, SliceId, Timestamp};
use crate::meta::ops::plock::LockKind;
use crate::meta::testing::{Store, Sustain, file, volume, volume_on};
use crate::util::clock::ManualClock;
use crate::util::task::stop_signal;
use parking_lot::Mutex;

const HEARTBEAT: Duration = Duration::from_secs(12);

fn info(host: &str) -> SessionInfo {
    SessionInfo {
        version: "1.4.2+2026-10-26.pypi".into(),
        host_name: host.into(),
        ip_addrs: vec!["10.0.0.1".into()],
        mount_point: "/mnt/jfs".into(),
        mount_time: "2026-11-29T12:00:00.123456789Z".into(),
        process_id: 4980,
    }
}

/// Two clients of one volume and the clock of both.
async fn pair() -> (Arc<Meta>, Arc<Meta>, Arc<ManualClock>) {
    let store = Store::new().await;
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
    let here = store.client(clock.clone()).await;
    let there = store.client(clock.clone()).await;
    here.start_session(info("here"), HEARTBEAT).await.unwrap();
    there.start_session(info("there"), HEARTBEAT).await.unwrap();
    (here, there, clock)
}

/// `ino` loses its last name while `meta` has it open.
async fn sustain(meta: &Meta, ino: Ino) {
    meta.open_file(ino);
    let name = crate::base::Name::entry(b"open").unwrap();
    meta.unlink(&crate::meta::Caller::root(), Ino::ROOT, &name, true).await.unwrap();
    assert!(meta.getattr(ino).await.is_ok(), "sustained");
}

#[test]
fn the_description_has_the_stored_form() {
    let text = r#"{"Version":"1.4.2+2026-10-26.pypi","HostName":"h","IPAddrs":["10.0.0.1"],"MountPoint":"/mnt/jfs","MountTime":"2026-11-29T12:00:00.123456789Z","ProcessID":4980}"#;
    assert_eq!(serde_json::to_string(&info("h")).unwrap(), text);
    assert_eq!(serde_json::from_str::<SessionInfo>(text).unwrap(), info("h"));
    let without = serde_json::to_string(&SessionInfo { ip_addrs: Vec::new(), ..info("h") }).unwrap();
    assert!(!without.contains("IPAddrs"));
    assert_eq!(serde_json::from_str::<SessionInfo>(r#"{"HostName":"h","New":1}"#).unwrap().host_name, "h");
}

#[tokio::test]
async fn sessions_are_numbered_and_listed() {
    let (here, there, clock) = pair().await;
    assert_eq!((here.session(), there.session()), (SessionId(1), SessionId(2)));
    let listed = here.sessions().await.unwrap();
    assert_eq!(listed.len(), 2);
    assert_eq!(listed[1].info, Some(info("there")));
    assert_eq!(listed[0].expire, crate::util::clock::Clock::now(&*clock).seconds + 60);
    assert_eq!(here.session_detail(SessionId(9)).await.unwrap_err().errno(), Errno::ENOENT);
}

#[tokio::test]
async fn a_client_that_went_without_a_word_is_cleaned_up_after_and_a_live_one_is_not() {
    let (here, there, clock) = pair().await;
    let (_stopper, stop) = stop_signal();
    let ino = file(&there, "open").await;
    let locked = file(&there, "locked").await;
    there.set_plock(locked, 7, LockKind::Write, 0, 9, 1, false).await.unwrap();
    there.flock(locked, 8, LockKind::Read, false).await.unwrap();
    here.flock(locked, 8, LockKind::Read, false).await.unwrap();
    sustain(&there, ino).await;
    let detail = here.session_detail(there.session()).await.unwrap();
    assert_eq!(detail.sustained, [ino]);
    assert_eq!((detail.flocks.len(), detail.plocks.len()), (1, 1));
    assert_eq!(detail.plocks[0].1, 7);

    clock.advance(Duration::from_secs(61));
    // `here` beats, `there` is gone.
    assert_eq!(here.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap(), Verdict::Continue);
    assert_eq!(here.clean_stale_sessions(Duration::ZERO, &stop).await.unwrap(), 1);
    assert_eq!(here.sessions().await.unwrap().len(), 1);
    assert_eq!(here.getattr(ino).await.unwrap_err().errno(), Errno::ENOENT);
    assert!(here.reclaim_waiting() > 0);
    here.set_plock(locked, 1, LockKind::Write, 0, 9, 1, false).await.unwrap();
    here.flock(locked, 8, LockKind::Write, false).await.unwrap();
    assert_eq!(here.clean_stale_sessions(Duration::ZERO, &stop).await.unwrap(), 0);
}

#[tokio::test]
async fn a_client_taken_for_dead_learns_so_and_registers_again() {
    let (here, there, clock) = pair().await;
    let (_stopper, stop) = stop_signal();
    clock.advance(Duration::from_secs(61));
    here.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
    here.clean_stale_sessions(Duration::ZERO, &stop).await.unwrap();
    let heard = Mutex::new(Vec::new());
    let listen = |news| {
        heard.lock().push(news);
        Verdict::Continue
    };
    there.beat(HEARTBEAT, &listen).await.unwrap();
    there.beat(HEARTBEAT, &listen).await.unwrap();
    let setting = SessionNews::Setting(Bytes::from_static(b"{}"));
    assert_eq!(*heard.lock(), [SessionNews::WasDead, setting.clone(), setting]);
    assert_eq!(here.sessions().await.unwrap()[1].info, Some(info("there")));
}

/// What a client that stood still had under way in a session that was cleaned meanwhile is refused, by the metadata
/// itself, and the number of the session never comes back.
#[tokio::test]
async fn nothing_that_was_begun_in_a_session_is_committed_after_its_end() {
    let (here, there, clock) = pair().await;
    let (_stopper, stop) = stop_signal();
    let ino = file(&there, "f").await;
    let session = there.session();
    let slice = |id| Slice { pos: 0, id: SliceId(id), size: 10, off: 0, len: 10 };
    let append = async |session, id| {
        there.append_slices_of(session, ino, vec![(ChunkIndex(0), slice(id))], Timestamp::default(), None).await
    };
    append(session, 1).await.unwrap();
    clock.advance(Duration::from_secs(61));
    here.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
    here.clean_stale_sessions(Duration::ZERO, &stop).await.unwrap();

    let refused = append(session, 2).await.unwrap_err();
    assert!(matches!(refused, Stop::Errno(Errno::EIO)), "{refused}: and so its objects can go");
    let read = there.read_chunk(ino, ChunkIndex(0)).await.unwrap();
    let merged = there.replace_slices(session, ino, ChunkIndex(0), &read, 0, slice(3)).await.unwrap_err();
    assert_eq!(merged.errno(), Errno::EIO);
    let locked = there.set_plock(ino, 1, LockKind::Write, 0, 9, 1, false).await.unwrap_err();
    assert_eq!(locked.errno(), Errno::EIO, "nobody would ever drop it");
    assert_eq!(there.flock(ino, 1, LockKind::Write, false).await.unwrap_err().errno(), Errno::EIO);
    there.set_plock(ino, 1, LockKind::Unlock, 0, 9, 1, false).await.unwrap();

    there.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
    assert_ne!(there.session(), session);
    assert_eq!(append(session, 4).await.unwrap_err().errno(), Errno::EIO, "still");
    append(there.session(), 5).await.unwrap();
    there.set_plock(ino, 1, LockKind::Write, 0, 9, 1, false).await.unwrap();
    assert_eq!(here.read_chunk(ino, ChunkIndex(0)).await.unwrap(), [slice(1), slice(5)]);
}

#[tokio::test]
async fn what_late_operations_leave_in_a_dead_session_is_cleaned_by_its_client() {
    let (here, there, clock) = pair().await;
    let (_stopper, stop) = stop_signal();
    let (kept, open) = (file(&there, "kept").await, file(&there, "open").await);
    clock.advance(Duration::from_secs(61));
    here.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
    here.clean_stale_sessions(Duration::ZERO, &stop).await.unwrap();
    // A file that is open goes with its last name: the session keeps nothing any more.
    there.open_file(open);
    let name = crate::base::Name::entry(b"open").unwrap();
    assert!(there.unlink(&crate::meta::Caller::root(), Ino::ROOT, &name, true).await.unwrap().freed);
    assert_eq!(here.getattr(open).await.unwrap_err().errno(), Errno::ENOENT);
    // A commit that did not ask whether the session was still there keeps a file for nobody.
    there.run(&Sustain(kept, there.session())).await.unwrap();
    there.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
    assert_eq!(here.getattr(kept).await.unwrap_err().errno(), Errno::ENOENT);
}

/// Either the heartbeat or the clean-up succeeds, never both.
#[tokio::test]
async fn a_session_that_comes_back_while_it_is_cleaned_up_stays_or_is_gone_for_good() {
    for claimed_first in [false, true] {
        let store = Store::new().await;
        let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
        let (engine, interrupt) = store.interrupted_engine().await;
        let here = volume_on(engine, clock.clone()).await;
        let there = store.client(clock.clone()).await;
        there.start_session(info("there"), HEARTBEAT).await.unwrap();
        let ino = file(&there, "f").await;
        there.flock(ino, 1, LockKind::Write, false).await.unwrap();
        clock.advance(Duration::from_secs(61));
        let (_stopper, stop) = stop_signal();
        let late = there.clone();
        let beat = async move {
            late.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
        };
        if claimed_first {
            let expire = here.sessions().await.unwrap()[0].expire;
            let claim = ClaimSession { sid: there.session(), expire };
            assert!(here.run(&claim).await.unwrap());
        }
        let before = there.session();
        interrupt.before_commit(beat);
        here.clean_stale_sessions(Duration::ZERO, &stop).await.unwrap();
        assert!(interrupt.has_happened());
        assert_eq!(there.session() == before, !claimed_first);
        let locks = outside(here.engine().read(&[Key::Flocks(ino)]).await).unwrap();
        assert_eq!(locks[0].is_some(), !claimed_first, "a session that lives keeps its locks");
        assert_eq!(here.sessions().await.unwrap().len(), 1);
    }
}

/// A client whose clock is behind by more than a session lives writes heartbeats that look past to everybody else.
#[tokio::test]
async fn a_client_whose_clock_is_wrong_but_that_is_heard_of_is_alive() {
    let store = Store::new().await;
    let (behind, ahead) = (ManualClock::at(1_700_000_000_000_000_000), ManualClock::at(1_700_000_300_000_000_000));
    let behind = Arc::new(behind);
    let here = store.client(Arc::new(ahead)).await;
    let there = store.client(behind.clone()).await;
    there.start_session(info("there"), HEARTBEAT).await.unwrap();
    let (_stopper, stop) = stop_signal();
    const UNHEARD: Duration = Duration::from_millis(400);
    let late = there.clone();
    let beats = tokio::spawn(async move {
        for _ in 0..3 {
            tokio::time::sleep(UNHEARD / 4).await;
            behind.advance(HEARTBEAT);
            late.beat(HEARTBEAT, &|_| Verdict::Continue).await.unwrap();
        }
    });
    assert_eq!(here.clean_stale_sessions(UNHEARD, &stop).await.unwrap(), 0, "it was heard of meanwhile");
    beats.await.unwrap();
    assert_eq!(here.sessions().await.unwrap().len(), 1);
    assert_eq!(here.clean_stale_sessions(UNHEARD, &stop).await.unwrap(), 1, "and now it was not");
}

/// The records where a session holds a lock are found by it, where the store keeps a list of them (Redis); others hold
/// locks in the same records.
#[tokio::test]
async fn a_session_lists_the_locks_it_holds_and_no_others() {
    let (here, there, _) = pair().await;
    let ino = file(&here, "f").await;
    for client in [&here, &there] {
        client.flock(ino, 1, LockKind::Read, false).await.unwrap();
        client.flock(ino, 2, LockKind::Read, false).await.unwrap();
        client.set_plock(ino, 1, LockKind::Read, 0, 9, 1, false).await.unwrap();
    }
    let (mine, theirs) = (here.session(), there.session());
    let listed = async |sid| here.scan_all(&Scan::LocksOf(sid)).await.unwrap().len();
    here.flock(ino, 1, LockKind::Unlock, false).await.unwrap();
    assert_eq!(listed(mine).await, 2, "a flock of another owner, and a range");
    here.flock(ino, 2, LockKind::Unlock, false).await.unwrap();
    here.set_plock(ino, 1, LockKind::Unlock, 0, 9, 1, false).await.unwrap();
    assert_eq!(listed(mine).await, 0);
    here.flock(ino, 1, LockKind::Read, false).await.unwrap();
    here.clean_session(theirs).await.unwrap();
    assert_eq!((listed(mine).await, listed(theirs).await), (1, 0));
}

#[tokio::test]
async fn the_end_of_a_session_leaves_nothing_of_it() {
    let (here, there, _) = pair().await;
    let ino = file(&here, "open").await;
    here.flock(ino, 1, LockKind::Write, false).await.unwrap();
    sustain(&here, ino).await;
    here.close_session().await.unwrap();
    assert_eq!(here.session(), SessionId(0));
    assert_eq!(there.sessions().await.unwrap().len(), 1);
    assert_eq!(there.getattr(ino).await.unwrap_err().errno(), Errno::ENOENT);
    let locks = outside(there.engine().read(&[Key::Flocks(ino)]).await).unwrap();
    assert_eq!(locks, [None]);
}

#[tokio::test]
async fn the_heartbeat_ends_when_the_volume_is_another_or_when_told() {
    let meta = volume().await;
    meta.start_session(info("h"), Duration::from_secs(1)).await.unwrap();
    let (stopper, stop) = stop_signal();
    let end = meta.clone().run_session(Duration::from_secs(1), |_| Verdict::Exit, stop.clone()).await;
    assert_eq!(end, SessionEnd::Exit);
    stopper.stop();
    assert_eq!(meta.run_session(HEARTBEAT, |_| Verdict::Continue, stop).await, SessionEnd::Stopped);
}

#[test]
fn heartbeats_are_kept_within_reason() {
    let of = |ms| clamp_heartbeat(Duration::from_millis(ms)).as_millis();
    assert_eq!([0, 10, 12_000, 3_600_000].map(of), [0, 1000, 12_000, 600_000]);
}
