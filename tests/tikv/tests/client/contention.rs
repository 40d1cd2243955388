//! Transactions that want the same keys.

use std::sync::Arc;

use sluice_test_tikv::{Rpc, TestTikv};
use tikv_client::transaction::HeartbeatOption;

use super::*;

async fn number(txn: &mut Transaction, key: &str) -> u64 {
    let value = txn.get(key.to_owned()).await.expect("a read");
    value.map_or(0, |value| text(value).parse().expect("a number"))
}

#[tokio::test]
async fn the_second_of_two_writers_fails_with_a_conflict() {
    let tikv = TestTikv::start_split(&[b"m"]);
    let client = connect(&tikv).await;
    let mut first = begin(&client, optimistic()).await;
    let mut second = begin(&client, optimistic()).await;
    for (txn, value) in [(&mut first, "1"), (&mut second, "2")] {
        txn.put("k".to_owned(), value.to_owned()).await.unwrap();
        txn.put("z".to_owned(), value.to_owned()).await.unwrap();
    }
    first.commit().await.unwrap();
    let error = second.commit().await.unwrap_err();
    assert!(matches!(error, Error::MultipleKeyErrors(_)) && is_conflict(&error), "{error:?}");
    second.rollback().await.unwrap();
    assert_eq!(tikv.locks(), []);
    assert_eq!(read(&client, "z").await.as_deref(), Some("1"));
}

/// Adds one to a counter, again and again until it is committed.
async fn add_one_optimistic(client: &TransactionClient) {
    loop {
        let mut txn = begin(client, optimistic()).await;
        let count = number(&mut txn, "count").await;
        txn.put("count".to_owned(), (count + 1).to_string()).await.unwrap();
        match txn.commit().await {
            Ok(_) => return,
            Err(error) => {
                assert!(is_conflict(&error), "{error:?}");
                txn.rollback().await.unwrap();
            }
        }
    }
}

/// The lock is wanted again within the same transaction when somebody else was faster.
async fn lock(txn: &mut Transaction, key: &str) -> Option<Vec<u8>> {
    loop {
        match txn.get_for_update(key.to_owned()).await {
            Ok(value) => return value,
            Err(error) => assert!(is_conflict(&error) || matches!(error, Error::ResolveLockError(_)), "{error:?}"),
        }
    }
}

async fn add_one_pessimistic(client: &TransactionClient) {
    let mut txn = begin(client, pessimistic()).await;
    let count = lock(&mut txn, "count").await.map_or(0, |value| text(value).parse::<u64>().unwrap());
    txn.put("count".to_owned(), (count + 1).to_string()).await.unwrap();
    txn.commit().await.unwrap();
}

const COUNTERS: usize = 4;

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn optimistic_counters_miss_nothing() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    let counter = || {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                add_one_optimistic(&client).await;
            }
        })
    };
    let counters: Vec<_> = (0..COUNTERS).map(|_| counter()).collect();
    for counter in counters {
        counter.await.unwrap();
    }
    assert_eq!(read(&client, "count").await.as_deref(), Some("800"));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn pessimistic_counters_miss_nothing() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    let counter = || {
        let client = client.clone();
        tokio::spawn(async move {
            for _ in 0..200 {
                add_one_pessimistic(&client).await;
            }
        })
    };
    let counters: Vec<_> = (0..COUNTERS).map(|_| counter()).collect();
    for counter in counters {
        counter.await.unwrap();
    }
    assert_eq!(read(&client, "count").await.as_deref(), Some("800"));
    assert_eq!(tikv.locks(), []);
}

#[tokio::test]
async fn a_waiter_is_woken_by_the_commit_and_starts_over() {
    let tikv = Arc::new(TestTikv::start());
    let client = connect(&tikv).await;
    // An absent key can be locked as well.
    let mut holder = begin(&client, pessimistic()).await;
    assert_eq!(holder.get_for_update("k".to_owned()).await.unwrap(), None);
    let mut waiter = begin(&client, pessimistic()).await;
    let waiting = tokio::spawn(async move {
        let error = waiter.get_for_update("k".to_owned()).await.unwrap_err();
        (waiter, error)
    });
    tokio::time::sleep(Duration::from_millis(200)).await;
    assert!(!waiting.is_finished());
    holder.put("k".to_owned(), "v".to_owned()).await.unwrap();
    holder.commit().await.unwrap();
    let (mut waiter, error) = waiting.await.unwrap();
    let reason = key_errors(&error)[0].conflict.as_ref().map(|conflict| conflict.reason);
    assert_eq!(reason, Some(2), "a pessimistic retry: {error:?}");
    assert_eq!(waiter.get_for_update("k".to_owned()).await.unwrap(), Some(b"v".to_vec()));
    // The snapshot of the transaction is as old as before.
    assert_eq!(waiter.get("k".to_owned()).await.unwrap(), None);
    waiter.commit().await.unwrap();
    assert_eq!(tikv.locks(), []);
}

#[tokio::test]
async fn readers_pass_a_pessimistic_lock() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    write(&client, &[("k", Some("v"))]).await;
    let mut holder = begin(&client, pessimistic()).await;
    holder.put("k".to_owned(), "w".to_owned()).await.unwrap();
    assert_eq!(read(&client, "k").await.as_deref(), Some("v"));
    assert_eq!(tikv.calls(Rpc::CheckTxnStatus), 0);
    holder.commit().await.unwrap();
    assert_eq!(read(&client, "k").await.as_deref(), Some("w"));
}

#[tokio::test]
async fn two_that_wait_for_each_other_are_told() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    let mut first = begin(&client, pessimistic()).await;
    let mut second = begin(&client, pessimistic()).await;
    first.lock_keys(["a".to_owned()]).await.unwrap();
    second.lock_keys(["b".to_owned()]).await.unwrap();
    let waiting = tokio::spawn(async move {
        let answer = first.lock_keys(["b".to_owned()]).await;
        (first, answer)
    });
    tokio::time::sleep(Duration::from_millis(100)).await;
    let error = second.lock_keys(["a".to_owned()]).await.unwrap_err();
    assert!(key_errors(&error).iter().any(|error| error.deadlock.is_some()), "{error:?}");
    second.rollback().await.unwrap();
    let (mut first, answer) = waiting.await.unwrap();
    assert!(is_conflict(&answer.unwrap_err()));
    first.lock_keys(["b".to_owned()]).await.unwrap();
    first.commit().await.unwrap();
}

/// Two doctors are on call, and each goes home when the other one stays.
async fn on_call(tikv: &TestTikv, options: TransactionOptions, lock_what_is_read: bool) -> usize {
    let client = connect(tikv).await;
    write(&client, &[("doctor/a", Some("on call")), ("doctor/b", Some("on call"))]).await;
    let mut txns = [begin(&client, options.clone()).await, begin(&client, options).await];
    let mut home = [false; 2];
    for (at, (mine, other)) in [("doctor/a", "doctor/b"), ("doctor/b", "doctor/a")].into_iter().enumerate() {
        let txn = &mut txns[at];
        let stays = match lock_what_is_read {
            true => txn.get_for_update(other.to_owned()).await,
            false => txn.get(other.to_owned()).await,
        };
        if matches!(&stays, Ok(Some(state)) if state == b"on call") {
            home[at] = txn.put(mine.to_owned(), "home".to_owned()).await.is_ok();
        }
    }
    for (txn, home) in txns.iter_mut().zip(home) {
        if !home || txn.commit().await.is_err() {
            txn.rollback().await.unwrap();
        }
    }
    tikv.dump_latest().values().filter(|state| *state == b"home").count()
}

#[tokio::test]
async fn what_is_only_read_is_not_protected() {
    assert_eq!(on_call(&TestTikv::start(), optimistic(), false).await, 2);
    assert_eq!(on_call(&TestTikv::start(), pessimistic(), false).await, 2);
}

#[tokio::test]
async fn what_is_locked_is_protected() {
    assert_eq!(on_call(&TestTikv::start(), optimistic(), true).await, 1);
    let pessimists = on_call(&TestTikv::start(), pessimistic().retry_options(impatient()), true).await;
    assert!(pessimists <= 1, "{pessimists}");
}

/// In an optimistic transaction a lock is a promise for the commit: it fails if the key was written since the start,
/// also when the key does not exist.
#[tokio::test]
async fn an_optimistic_lock_guards_absence_too() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    let mut txn = begin(&client, optimistic()).await;
    assert_eq!(txn.get_for_update("absent".to_owned()).await.unwrap(), None);
    txn.put("k".to_owned(), "v".to_owned()).await.unwrap();
    write(&client, &[("absent", Some("no more"))]).await;
    let error = txn.commit().await.unwrap_err();
    assert!(is_conflict(&error), "{error:?}");
    txn.rollback().await.unwrap();
    // Locks alone can be committed, and leave no value.
    let mut txn = begin(&client, optimistic()).await;
    txn.lock_keys(["other".to_owned()]).await.unwrap();
    txn.commit().await.unwrap();
    assert_eq!(tikv.dump_latest().len(), 1);
}

#[tokio::test]
async fn heart_beats_keep_a_lock_alive() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    for (heart_beat, alive) in
        [(HeartbeatOption::FixedTime(Duration::from_millis(50)), true), (HeartbeatOption::NoHeartbeat, false)]
    {
        let before = tikv.calls(Rpc::TxnHeartBeat);
        let mut holder = begin(&client, pessimistic().heartbeat_option(heart_beat)).await;
        holder.put("k".to_owned(), "v".to_owned()).await.unwrap();
        tokio::time::sleep(Duration::from_millis(1000)).await;
        assert_eq!(tikv.calls(Rpc::TxnHeartBeat) > before, alive);
        // A lock of 20 s, set a second ago.
        tikv.advance(Duration::from_millis(19_500));
        let mut other = begin(&client, optimistic().retry_options(impatient())).await;
        other.put("k".to_owned(), "w".to_owned()).await.unwrap();
        assert_eq!(other.commit().await.is_err(), alive);
        other.rollback().await.ok();
        holder.rollback().await.unwrap();
    }
}
