//! What the client makes of faults, and what the server has then.

use std::time::Instant;

use sluice_test_tikv::{Calls, Fault, Plan, Rpc, TestTikv};

use super::*;

const SPLITS: [&[u8]; 2] = [b"h", b"q"];

async fn put(client: &TransactionClient, key: &str, value: &str) -> tikv_client::Result<()> {
    let mut txn = begin(client, optimistic()).await;
    txn.put(key.to_owned(), value.to_owned()).await?;
    txn.put(format!("z{key}"), value.to_owned()).await?;
    txn.commit().await.map(drop)
}

#[tokio::test]
async fn one_lost_answer_of_any_call_is_made_up_for() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    for fault in [Fault::FailBefore, Fault::FailAfter, Fault::CutBefore, Fault::CutAfter] {
        for rpc in [Rpc::Prewrite, Rpc::Commit, Rpc::Get, Rpc::Scan] {
            let injected = tikv.inject(Plan::once(rpc, fault));
            let value = format!("{rpc:?} {fault:?}");
            put(&client, "k", &value).await.unwrap_or_else(|error| panic!("{value}: {error:?}"));
            assert_eq!(read(&client, "k").await.as_ref(), Some(&value));
            let mut txn = begin(&client, optimistic().read_only()).await;
            assert_eq!(txn.scan("k".to_owned().."l".to_owned(), 5).await.unwrap().count(), 1);
            assert_eq!(injected.hits(), 1, "{value}");
        }
    }
}

/// The answers of all attempts to commit the primary are lost: the client does not know, and it is committed.
#[tokio::test]
async fn a_commit_whose_answers_are_all_lost_has_happened() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    for fault in [Fault::FailAfter, Fault::CutAfter] {
        let injected = tikv.inject(Plan::always(Rpc::Commit, fault));
        let error = put(&client, "k", "v").await.unwrap_err();
        // Not `UndeterminedError`: that is kept for errors of the connection itself.
        assert!(matches!(error, Error::GrpcAPI(_)), "{error:?}");
        assert!(injected.hits() > 5);
        tikv.heal();
        assert_eq!(tikv.dump_latest().get(&b"k"[..]).map(Vec::as_slice), Some(&b"v"[..]));
        assert_eq!(read(&client, "zk").await.as_deref(), Some("v"));
        write(&client, &[("k", None), ("zk", None)]).await;
    }
}

#[tokio::test]
async fn a_commit_that_never_arrived_has_not_happened() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    tikv.inject(Plan::always(Rpc::Commit, Fault::FailBefore));
    let error = put(&client, "k", "v").await.unwrap_err();
    assert!(matches!(error, Error::GrpcAPI(_)), "{error:?}");
    tikv.heal();
    assert_eq!(tikv.locks().len(), 2);
    tikv.advance(Duration::from_secs(10));
    assert_eq!(read(&client, "zk").await, None);
    assert_eq!(read(&client, "k").await, None);
    assert_eq!(tikv.locks(), []);
}

#[tokio::test]
async fn stale_regions_heal() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    for fault in [Fault::EpochNotMatch, Fault::NotLeader, Fault::RegionNotFound, Fault::Split] {
        for rpc in [Rpc::Prewrite, Rpc::Commit, Rpc::Get] {
            let injected = tikv.inject(Plan::once(rpc, fault));
            let value = format!("{rpc:?} {fault:?}");
            put(&client, "k", &value).await.unwrap_or_else(|error| panic!("{value}: {error:?}"));
            assert_eq!(read(&client, "k").await.as_ref(), Some(&value));
            assert_eq!(injected.hits(), 1, "{value}");
        }
    }
    assert!(tikv.regions().len() > 3);
}

#[tokio::test]
async fn a_busy_server_is_not_asked_again() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    tikv.inject(Plan::once(Rpc::Get, Fault::ServerIsBusy));
    let mut txn = begin(&client, optimistic().read_only()).await;
    let error = txn.get("k".to_owned()).await.unwrap_err();
    assert!(matches!(&error, Error::RegionError(error) if error.server_is_busy.is_some()), "{error:?}");
    assert_eq!(txn.get("k".to_owned()).await.unwrap(), None);
}

#[tokio::test]
async fn regions_split_while_clients_work() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    let keys: Vec<String> = (0..60).map(|at| format!("key{at:02}")).collect();
    for (at, key) in keys.iter().enumerate() {
        if at % 5 == 0 {
            tikv.split_at(keys[(at * 7) % 60].as_bytes());
        }
        put(&client, key, key).await.unwrap();
        let mut txn = begin(&client, optimistic().read_only()).await;
        let found = txn.scan_keys("key".to_owned().."kez".to_owned(), 100).await.unwrap().count();
        assert_eq!(found, at + 1);
    }
    assert_eq!(tikv.regions().len(), 13);
}

#[tokio::test]
async fn late_timestamps_delay_and_harm_nothing() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    let late = tikv.inject(Plan::always(Rpc::Tso, Fault::Delay(Duration::from_millis(150))));
    let started = Instant::now();
    put(&client, "k", "v").await.unwrap();
    // One to begin with, one to commit with.
    assert!(started.elapsed() >= Duration::from_millis(300));
    assert_eq!(late.hits(), 2);
    tikv.heal();
    assert_eq!(read(&client, "k").await.as_deref(), Some("v"));
}

/// A timestamp that does not come is waited for without an end: the client has a limit for TiKV and for the other calls
/// of PD, not for this one.
#[tokio::test]
async fn nobody_but_the_caller_limits_the_wait_for_a_timestamp() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    tikv.inject(Plan::once(Rpc::Tso, Fault::Delay(Duration::from_secs(60))));
    assert!(tokio::time::timeout(Duration::from_secs(4), client.current_timestamp()).await.is_err());
}

#[tokio::test]
async fn an_outage_ends_for_the_same_client() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    put(&client, "k", "before").await.unwrap();
    tikv.go_down();
    let answer = tokio::time::timeout(Duration::from_secs(3), client.current_timestamp()).await;
    assert!(!matches!(answer, Ok(Ok(_))));
    tikv.come_up();
    let started = Instant::now();
    while started.elapsed() < Duration::from_secs(20) {
        match tokio::time::timeout(Duration::from_secs(5), client.current_timestamp()).await {
            Ok(Ok(_)) => break,
            _ => tokio::time::sleep(Duration::from_millis(100)).await,
        }
    }
    put(&client, "k", "after").await.unwrap();
    assert_eq!(read(&client, "k").await.as_deref(), Some("after"));
    println!("back after {:?}", started.elapsed());
}

#[tokio::test]
async fn everything_fails_now_and_then_and_nothing_gets_lost() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    let faults = [
        (Fault::EpochNotMatch, 7),
        (Fault::NotLeader, 11),
        (Fault::RegionNotFound, 13),
        (Fault::CutAfter, 17),
        (Fault::CutBefore, 19),
        (Fault::FailAfter, 23),
        (Fault::Split, 29),
    ];
    let injected = faults.map(|(fault, every)| tikv.inject(Plan::always(Calls::Kv, fault).after(every).every(every)));
    for at in 0..100 {
        put(&client, &format!("{}{at}", (b'a' + at % 26) as char), "v").await.unwrap();
    }
    assert!(injected.iter().all(|injected| injected.hits() > 0));
    tikv.heal();
    let mut txn = begin(&client, optimistic().read_only()).await;
    assert_eq!(txn.scan_keys("".to_owned()..="zzz".to_owned(), 1000).await.unwrap().count(), 200);
}

/// The client connects to PD again a second after the last time at the earliest, and until then each wish for a timestamp
/// fails at once: the caller has to wait and try again.
#[tokio::test]
async fn a_broken_connection_to_pd_is_made_again_after_a_second() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    client.current_timestamp().await.unwrap();
    for fault in [Fault::CutBefore, Fault::FailBefore] {
        tikv.inject(Plan::once(Rpc::Tso, fault));
        let started = Instant::now();
        let mut failures = 0;
        while let Err(error) = client.current_timestamp().await {
            failures += 1;
            assert!(started.elapsed() < Duration::from_secs(10), "{error:?}");
            tokio::time::sleep(Duration::from_millis(100)).await;
        }
        println!("{fault:?}: {failures} failures, back after {:?}", started.elapsed());
        put(&client, "k", "v").await.unwrap();
    }
}

#[tokio::test]
async fn lost_answers_about_regions_are_asked_for_again() {
    let tikv = TestTikv::start_split(&SPLITS);
    for rpc in [Rpc::GetRegion, Rpc::GetStore] {
        for fault in [Fault::FailAfter, Fault::CutBefore] {
            let client = connect(&tikv).await;
            tokio::time::sleep(Duration::from_millis(1100)).await;
            let injected = tikv.inject(Plan::once(rpc, fault));
            let started = Instant::now();
            let answer = put(&client, "k", "v").await;
            println!("{rpc:?} {fault:?}: {answer:?} after {:?}", started.elapsed());
            assert_eq!(injected.hits(), 1);
            put(&client, "k", "v").await.unwrap();
        }
    }
}
