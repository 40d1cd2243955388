//! The rules one by one, and random interleavings of two-phase commits against a plain list of versions.

use proptest::prelude::*;

use super::*;

fn mutation(op: Op, key: &str, value: &str) -> Mutation {
    Mutation { op: op as i32, key: key.into(), value: value.into(), assertion: Assertion::None as i32 }
}

fn prewrite(op: Op, key: &str, start_ts: Ts) -> Prewrite {
    let value = if matches!(op, Op::Put | Op::Insert) { format!("v{start_ts}") } else { String::new() };
    Prewrite {
        mutations: vec![mutation(op, key, &value)],
        primary: key.into(),
        start_ts,
        ttl_ms: 100,
        ..Prewrite::default()
    }
}

fn lock(key: &str, start_ts: Ts, for_update_ts: Ts) -> PessimisticLock {
    PessimisticLock {
        mutations: vec![mutation(Op::PessimisticLock, key, "")],
        primary: key.into(),
        start_ts,
        ttl_ms: 100,
        for_update_ts,
        ..PessimisticLock::default()
    }
}

fn keys(keys: &[&str]) -> Vec<Key> {
    keys.iter().map(|key| key.as_bytes().to_vec()).collect()
}

fn put(mvcc: &mut Mvcc, key: &str, start_ts: Ts, commit_ts: Ts) {
    mvcc.prewrite(&prewrite(Op::Put, key, start_ts)).unwrap();
    mvcc.commit(&keys(&[key]), start_ts, commit_ts).unwrap();
}

fn get(mvcc: &Mvcc, key: &str, version: Ts) -> Option<String> {
    mvcc.get(key.as_bytes(), version, &[]).unwrap().map(|value| String::from_utf8(value).unwrap())
}

fn status(primary: &str, lock_ts: Ts, current_ts: Ts) -> StatusCheck {
    StatusCheck { primary: primary.into(), lock_ts, current_ts, verify_is_primary: true, ..StatusCheck::default() }
}

#[test]
fn a_read_sees_what_was_committed_at_its_version() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "k", 10, 20);
    put(&mut mvcc, "k", 30, 40);
    mvcc.prewrite(&prewrite(Op::Del, "k", 50)).unwrap();
    mvcc.commit(&keys(&["k"]), 50, 60).unwrap();
    let seen: Vec<Option<String>> = [19, 20, 39, 40, 59, 60].map(|version| get(&mvcc, "k", version)).into();
    let old = Some("v10".to_owned());
    let new = Some("v30".to_owned());
    assert_eq!(seen, [None, old.clone(), old, new.clone(), new, None]);
}

#[test]
fn a_lock_blocks_readers_that_are_not_older() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "k", 10, 20);
    mvcc.prewrite(&prewrite(Op::Put, "k", 30)).unwrap();
    assert_eq!(get(&mvcc, "k", 29), Some("v10".to_owned()));
    assert!(matches!(mvcc.get(b"k", 30, &[]), Err(Refusal::Locked(info)) if info.lock_version == 30));
    assert!(mvcc.get(b"k", 99, &[30]).is_ok(), "known to be resolved");
    let scanned = mvcc.scan((b"a", b"z"), 10, false, 99, &[]).unwrap();
    assert!(matches!(&scanned[..], [(_, Err(Refusal::Locked(_)))]));
    mvcc.rollback(&keys(&["k"]), 30).unwrap();
    mvcc.prewrite(&prewrite(Op::Lock, "k", 40)).unwrap();
    assert_eq!(get(&mvcc, "k", 99), Some("v10".to_owned()));
}

#[test]
fn a_newer_record_of_any_kind_is_a_conflict() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "put", 10, 20);
    mvcc.prewrite(&prewrite(Op::Lock, "lock", 10)).unwrap();
    mvcc.commit(&keys(&["lock"]), 10, 20).unwrap();
    mvcc.rollback(&keys(&["rollback"]), 20).unwrap();
    for key in ["put", "lock", "rollback"] {
        for op in [Op::Put, Op::Del, Op::Lock, Op::Insert, Op::CheckNotExists] {
            let refusals = mvcc.prewrite(&prewrite(op, key, 15)).unwrap_err();
            let expected = ConflictReason::Optimistic;
            assert!(matches!(&refusals[..], [Refusal::Conflict { reason, .. }] if *reason == expected), "{refusals:?}");
        }
    }
    mvcc.prewrite(&prewrite(Op::Put, "put", 25)).unwrap();
}

#[test]
fn requests_are_all_or_nothing() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "b", 10, 20);
    let mut both = prewrite(Op::Put, "a", 15);
    both.mutations.push(mutation(Op::Put, "b", "v"));
    assert!(mvcc.prewrite(&both).is_err());
    assert!(mvcc.locks(b"", b"", Ts::MAX, 0).is_empty());
    mvcc.prewrite(&prewrite(Op::Put, "a", 30)).unwrap();
    assert!(matches!(mvcc.commit(&keys(&["a", "b"]), 30, 40), Err(Refusal::TxnLockNotFound { .. })));
    assert!(mvcc.is_locked(b"a", 30));
}

#[test]
fn prewrites_and_commits_may_be_repeated() {
    let mut mvcc = Mvcc::default();
    let request = prewrite(Op::Put, "k", 10);
    mvcc.prewrite(&request).unwrap();
    mvcc.prewrite(&request).unwrap();
    mvcc.commit(&keys(&["k"]), 10, 20).unwrap();
    mvcc.commit(&keys(&["k"]), 10, 20).unwrap();
    // Late, and committed by somebody else meanwhile: not a conflict with itself.
    mvcc.prewrite(&request).unwrap();
    assert!(!mvcc.is_locked(b"k", 10));
    assert_eq!(mvcc.writes_of(b"k").len(), 1);
    assert!(mvcc.rollback(&keys(&["k"]), 10).is_err());
}

#[test]
fn a_rollback_forbids_what_comes_later() {
    let mut mvcc = Mvcc::default();
    mvcc.rollback(&keys(&["k"]), 10).unwrap();
    mvcc.rollback(&keys(&["k"]), 10).unwrap();
    let refusals = mvcc.prewrite(&prewrite(Op::Put, "k", 10)).unwrap_err();
    assert!(matches!(&refusals[..], [Refusal::Conflict { reason: ConflictReason::SelfRolledBack, .. }]));
    assert!(mvcc.commit(&keys(&["k"]), 10, 20).is_err());
    assert!(matches!(mvcc.pessimistic_lock(&lock("k", 10, 15)), Err(Refusal::Abort(_))));
}

#[test]
fn inserts_want_absence() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "k", 10, 20);
    for op in [Op::Insert, Op::CheckNotExists] {
        let refusals = mvcc.prewrite(&prewrite(op, "k", 30)).unwrap_err();
        assert_eq!(refusals, [Refusal::AlreadyExists { key: b"k".to_vec() }]);
    }
    mvcc.prewrite(&prewrite(Op::CheckNotExists, "absent", 30)).unwrap();
    assert!(mvcc.locks(b"", b"", Ts::MAX, 0).is_empty(), "a check leaves no lock");
    let mut insert = lock("k", 30, 30);
    insert.mutations[0].assertion = Assertion::NotExist as i32;
    assert!(matches!(mvcc.pessimistic_lock(&insert), Err(Refusal::AlreadyExists { .. })));
}

#[test]
fn pessimistic_locks_see_the_newest_value_and_keep_others_out() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "k", 20, 30);
    let conflict = mvcc.pessimistic_lock(&lock("k", 10, 25)).unwrap_err();
    assert!(matches!(conflict, Refusal::Conflict { reason: ConflictReason::PessimisticRetry, commit_ts: 30, .. }));
    assert_eq!(mvcc.pessimistic_lock(&lock("k", 10, 35)).unwrap(), [Some(b"v20".to_vec())]);
    assert!(matches!(mvcc.pessimistic_lock(&lock("k", 40, 40)), Err(Refusal::Locked(_))));
    assert!(matches!(&mvcc.prewrite(&prewrite(Op::Put, "k", 40)).unwrap_err()[..], [Refusal::Locked(_)]));
    assert_eq!(get(&mvcc, "k", 99), Some("v20".to_owned()));
    let mut request = prewrite(Op::Put, "k", 10);
    request.for_update_ts = 35;
    request.actions = vec![PessimisticAction::DoPessimisticCheck as i32];
    mvcc.prewrite(&request).unwrap();
    mvcc.commit(&keys(&["k"]), 10, 50).unwrap();
    assert_eq!(get(&mvcc, "k", 50), Some("v10".to_owned()));
}

#[test]
fn a_lost_pessimistic_lock_is_made_up_for_while_nobody_wrote() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "k", 5, 8);
    let mut request = prewrite(Op::Put, "k", 10);
    request.for_update_ts = 12;
    request.actions = vec![PessimisticAction::DoPessimisticCheck as i32];
    mvcc.prewrite(&request).unwrap();
    mvcc.rollback(&keys(&["k"]), 10).unwrap();
    put(&mut mvcc, "other", 20, 30);
    request.mutations[0].key = b"other".to_vec();
    assert!(matches!(&mvcc.prewrite(&request).unwrap_err()[..], [Refusal::PessimisticLockNotFound { .. }]));
}

#[test]
fn a_pessimistic_rollback_takes_pessimistic_locks_alone() {
    let mut mvcc = Mvcc::default();
    mvcc.pessimistic_lock(&lock("a", 10, 12)).unwrap();
    mvcc.prewrite(&prewrite(Op::Put, "b", 10)).unwrap();
    mvcc.pessimistic_rollback(&keys(&["a", "b"]), 10, 11);
    assert!(mvcc.is_locked(b"a", 10), "locked again since");
    mvcc.pessimistic_rollback(&keys(&["a", "b"]), 10, 12);
    assert!(!mvcc.is_locked(b"a", 10) && mvcc.is_locked(b"b", 10));
    assert!(mvcc.writes_of(b"a").is_empty());
    assert_eq!(mvcc.take_released().len(), 1);
}

#[test]
fn time_to_live_decides_by_the_timestamps() {
    let start_ts = compose(1000, 1);
    let mut mvcc = Mvcc::default();
    mvcc.prewrite(&prewrite(Op::Put, "k", start_ts)).unwrap();
    let alive = mvcc.check_txn_status(&status("k", start_ts, compose(1100, 0))).unwrap();
    assert!(matches!(alive, TxnStatus::Locked { info, .. } if info.lock_ttl == 100));
    assert_eq!(mvcc.heart_beat(b"k", start_ts, 500), Ok(500));
    assert_eq!(mvcc.heart_beat(b"k", start_ts, 300), Ok(500));
    assert!(matches!(mvcc.check_txn_status(&status("k", start_ts, compose(1500, 0))), Ok(TxnStatus::Locked { .. })));
    let dead = mvcc.check_txn_status(&status("k", start_ts, compose(1501, 0))).unwrap();
    assert_eq!(dead, TxnStatus::RolledBack(Action::TtlExpireRollback));
    assert_eq!(mvcc.check_txn_status(&status("k", start_ts, 0)).unwrap(), TxnStatus::RolledBack(Action::NoAction));
    assert!(matches!(mvcc.heart_beat(b"k", start_ts, 500), Err(Refusal::TxnNotFound { .. })));
    assert!(mvcc.commit(&keys(&["k"]), start_ts, compose(2000, 0)).is_err());
}

#[test]
fn an_unknown_transaction_is_rolled_back_only_when_asked_to() {
    let mut mvcc = Mvcc::default();
    let mut check = status("k", 10, Ts::MAX);
    assert_eq!(mvcc.check_txn_status(&check), Err(Refusal::TxnNotFound { start_ts: 10, key: b"k".to_vec() }));
    check.rollback_if_not_exist = true;
    check.resolving_pessimistic_lock = true;
    assert_eq!(mvcc.check_txn_status(&check), Ok(TxnStatus::RolledBack(Action::LockNotExistDoNothing)));
    check.resolving_pessimistic_lock = false;
    assert_eq!(mvcc.check_txn_status(&check), Ok(TxnStatus::RolledBack(Action::LockNotExistRollback)));
    assert!(mvcc.prewrite(&prewrite(Op::Put, "k", 10)).is_err());
}

#[test]
fn the_primary_decides_and_others_follow() {
    let mut mvcc = Mvcc::default();
    let mut request = prewrite(Op::Put, "a", 10);
    request.mutations.push(mutation(Op::Put, "b", "v10"));
    mvcc.prewrite(&request).unwrap();
    assert!(matches!(mvcc.check_txn_status(&status("b", 10, 0)), Err(Refusal::PrimaryMismatch(_))));
    mvcc.commit(&keys(&["a"]), 10, 20).unwrap();
    assert_eq!(mvcc.latest().len(), 2);
    assert_eq!(mvcc.check_txn_status(&status("a", 10, Ts::MAX)), Ok(TxnStatus::Committed(20)));
    mvcc.resolve(b"", b"", 10, 20).unwrap();
    assert_eq!(get(&mvcc, "b", 20), Some("v10".to_owned()));
    assert_eq!(mvcc.check_secondaries(&keys(&["b"]), 10), Secondaries::Committed(20));
    assert_eq!(mvcc.check_secondaries(&keys(&["c"]), 10), Secondaries::RolledBack);
}

#[test]
fn garbage_is_what_no_read_above_the_safe_point_sees() {
    let mut mvcc = Mvcc::default();
    put(&mut mvcc, "k", 10, 20);
    put(&mut mvcc, "k", 30, 40);
    put(&mut mvcc, "k", 50, 60);
    put(&mut mvcc, "gone", 10, 20);
    mvcc.prewrite(&prewrite(Op::Del, "gone", 30)).unwrap();
    mvcc.commit(&keys(&["gone"]), 30, 40).unwrap();
    assert_eq!(mvcc.collect_garbage(55), 55);
    assert_eq!(mvcc.collect_garbage(15), 55);
    assert_eq!(mvcc.writes_of(b"k").into_iter().map(|(ts, _)| ts).collect::<Vec<_>>(), [40, 60]);
    assert!(mvcc.writes_of(b"gone").is_empty());
    assert_eq!(get(&mvcc, "k", 55), Some("v30".to_owned()));
    assert!(matches!(mvcc.get(b"k", 54, &[]), Err(Refusal::Abort(_))));
}

/// A step of one of a few transactions; which step that is depends on how far it has got.
#[derive(Clone, Copy, Debug)]
enum Step {
    Advance(usize),
    Abandon(usize),
    Resolve(usize),
}

fn steps() -> impl Strategy<Value = Vec<Step>> {
    let txn = 0..4_usize;
    let step = prop_oneof![
        8 => txn.clone().prop_map(Step::Advance),
        1 => txn.clone().prop_map(Step::Abandon),
        2 => txn.prop_map(Step::Resolve),
    ];
    prop::collection::vec(step, 1..80)
}

#[derive(Clone, Copy, Debug, PartialEq)]
enum Stage {
    Idle,
    Begun,
    Prewritten,
    /// Its primary.
    Committed(Ts),
}

/// Two-phase commits of the keys `a` and `b`, primary first, in any interleaving, with others that resolve.
#[derive(Debug)]
struct World {
    mvcc: Mvcc,
    clock: Ts,
    txns: [(Ts, Stage); 4],
    committed: BTreeMap<Ts, Ts>,
}

impl World {
    fn tick(&mut self) -> Ts {
        self.clock += 1;
        self.clock
    }

    fn request(start_ts: Ts) -> Prewrite {
        let mut request = prewrite(Op::Put, "a", start_ts);
        request.mutations.push(mutation(Op::Put, "b", &format!("v{start_ts}")));
        request
    }

    fn advance(&mut self, at: usize) {
        let (start_ts, stage) = self.txns[at];
        let next = match stage {
            Stage::Idle => {
                self.txns[at].0 = self.tick();
                Stage::Begun
            }
            Stage::Begun => match self.mvcc.prewrite(&World::request(start_ts)) {
                Ok(()) => Stage::Prewritten,
                Err(_) => Stage::Idle,
            },
            Stage::Prewritten => {
                let commit_ts = self.tick();
                match self.mvcc.commit(&keys(&["a"]), start_ts, commit_ts) {
                    Ok(()) => {
                        self.committed.insert(commit_ts, start_ts);
                        Stage::Committed(commit_ts)
                    }
                    Err(_) => Stage::Idle,
                }
            }
            Stage::Committed(commit_ts) => {
                self.mvcc.commit(&keys(&["b"]), start_ts, commit_ts).expect("a committed transaction stays so");
                Stage::Idle
            }
        };
        self.txns[at].1 = next;
    }

    /// As a reader would that meets a lock and takes its transaction for dead.
    fn resolve(&mut self, at: usize) {
        let locks = self.mvcc.locks(b"", b"", Ts::MAX, 0);
        let Some(start_ts) = locks.get(at % 2).map(|lock| lock.lock_version) else { return };
        let commit_ts = match self.mvcc.check_txn_status(&status("a", start_ts, Ts::MAX)).expect("a status") {
            TxnStatus::Committed(commit_ts) => commit_ts,
            TxnStatus::RolledBack(_) => 0,
            TxnStatus::Locked { .. } => panic!("alive at the end of time"),
        };
        self.mvcc.resolve(b"", b"", start_ts, commit_ts).expect("resolved");
    }

    fn check(&self) {
        for version in 1..=self.clock {
            let last = self.committed.range(..=version).next_back().map(|(_, start_ts)| format!("v{start_ts}"));
            for key in ["a", "b"] {
                match self.mvcc.get(key.as_bytes(), version, &[]) {
                    Ok(value) => assert_eq!(value.map(|value| String::from_utf8(value).unwrap()), last, "{self:?}"),
                    Err(Refusal::Locked(_)) => {}
                    Err(refusal) => panic!("{refusal:?}"),
                }
            }
        }
    }
}

proptest! {
    #[test]
    fn any_interleaving_looks_like_one_after_the_other(steps in steps()) {
        let mut world = World {
            mvcc: Mvcc::default(),
            clock: 0,
            txns: [(0, Stage::Idle); 4],
            committed: BTreeMap::new(),
        };
        for step in steps {
            match step {
                Step::Advance(at) => world.advance(at),
                Step::Abandon(at) => world.txns[at].1 = Stage::Idle,
                Step::Resolve(at) => world.resolve(at),
            }
            world.check();
        }
        // Nobody overwrote what it had not seen.
        let spans: Vec<(Ts, Ts)> = world.committed.iter().map(|(commit_ts, start_ts)| (*start_ts, *commit_ts)).collect();
        prop_assert!(spans.windows(2).all(|pair| pair[0].1 < pair[1].0), "{spans:?}");
    }
}
