//! Reads and writes with nobody else around.

use std::collections::BTreeMap;

use sluice_test_tikv::{Rpc, TestTikv};
use tikv_client::TimestampExt;

use super::*;

const SPLITS: [&[u8]; 3] = [b"c", b"m", b"t"];

#[tokio::test]
async fn what_is_put_is_read_and_what_is_deleted_is_not() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    write(&client, &[("a", Some("1")), ("d", Some("2")), ("z", Some("3"))]).await;
    write(&client, &[("d", None), ("n", Some("4")), ("z", Some("5"))]).await;
    for (key, value) in [("a", Some("1")), ("d", None), ("n", Some("4")), ("z", Some("5")), ("q", None)] {
        assert_eq!(read(&client, key).await.as_deref(), value, "{key}");
    }
    let mut txn = begin(&client, optimistic().read_only()).await;
    let pairs = txn.batch_get(["a", "d", "n", "z"].map(str::to_owned)).await.unwrap();
    let got: BTreeMap<_, _> = pairs.map(|pair| (text(pair.0.into()), text(pair.1))).collect();
    assert_eq!(got, [("a", "1"), ("n", "4"), ("z", "5")].map(|(k, v)| (k.to_owned(), v.to_owned())).into());
    let dump = tikv.dump_latest();
    assert_eq!(dump.len(), 3);
    assert_eq!(dump[&b"z"[..]], b"5");
    assert_eq!(tikv.versions(b"d").len(), 2);
}

#[tokio::test]
async fn scans_run_over_regions_in_both_directions() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    let keys: Vec<String> = ('a'..='z').map(String::from).collect();
    let writes: Vec<(&str, Option<&str>)> = keys.iter().map(|key| (&**key, Some("v"))).collect();
    write(&client, &writes).await;
    let mut txn = begin(&client, optimistic().read_only()).await;
    let range = || "b".to_owned().."y".to_owned();
    let scanned: Vec<String> = txn.scan_keys(range(), 100).await.unwrap().map(|key| text(key.into())).collect();
    assert_eq!(scanned, keys[1..24]);
    let scanned: Vec<String> = txn.scan(range(), 13).await.unwrap().map(|pair| text(pair.0.into())).collect();
    assert_eq!(scanned, keys[1..14]);
    let scanned = txn.scan_reverse(range(), 3).await.unwrap().map(|pair| text(pair.0.into()));
    assert_eq!(scanned.collect::<Vec<_>>(), ["x", "w", "v"]);
    let scanned = txn.scan_keys_reverse(range(), 100).await.unwrap().map(|key| text(key.into()));
    assert_eq!(scanned.collect::<Vec<_>>(), keys[1..24].iter().rev().cloned().collect::<Vec<_>>());
    // Each region of the range is asked each time, whatever the limit.
    assert_eq!(tikv.calls(Rpc::Scan), 16);
    let empty: Vec<_> = txn.scan("bb".to_owned().."bc".to_owned(), 10).await.unwrap().collect();
    assert_eq!(empty, []);
}

#[tokio::test]
async fn a_snapshot_stays_as_it_was() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    write(&client, &[("k", Some("old")), ("gone", Some("here"))]).await;
    let mut txn = begin(&client, optimistic().read_only()).await;
    let ts = client.current_timestamp().await.unwrap();
    write(&client, &[("k", Some("new")), ("gone", None)]).await;
    assert_eq!(txn.get("k".to_owned()).await.unwrap(), Some(b"old".to_vec()));
    let mut snapshot = client.snapshot(ts, optimistic());
    assert_eq!(snapshot.get("gone".to_owned()).await.unwrap(), Some(b"here".to_vec()));
    assert_eq!(read(&client, "k").await.as_deref(), Some("new"));
    assert_eq!(read(&client, "gone").await, None);
}

#[tokio::test]
async fn a_rolled_back_transaction_leaves_nothing() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    for options in [optimistic(), pessimistic()] {
        let mut txn = begin(&client, options).await;
        txn.put("k".to_owned(), "v".to_owned()).await.unwrap();
        txn.rollback().await.unwrap();
        assert_eq!(read(&client, "k").await, None);
        assert_eq!(tikv.locks(), []);
    }
}

#[tokio::test]
async fn an_insert_of_an_existing_key_is_refused_with_its_name() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    write(&client, &[("k", Some("v"))]).await;
    let mut txn = begin(&client, optimistic()).await;
    txn.insert("k".to_owned(), "w".to_owned()).await.unwrap();
    let error = txn.commit().await.unwrap_err();
    assert!(already_exists(&error), "{error:?}");
    txn.rollback().await.unwrap();
    let mut txn = begin(&client, pessimistic()).await;
    let error = txn.insert("k".to_owned(), "w".to_owned()).await.unwrap_err();
    assert!(already_exists(&error), "{error:?}");
    txn.insert("new".to_owned(), "w".to_owned()).await.unwrap();
    txn.commit().await.unwrap();
    assert_eq!(read(&client, "new").await.as_deref(), Some("w"));
    assert_eq!(read(&client, "k").await.as_deref(), Some("v"));
}

#[tokio::test]
async fn an_empty_value_and_a_long_key_are_refused() {
    let tikv = TestTikv::start();
    let client = connect(&tikv).await;
    for (key, value) in [("k".to_owned(), ""), ("k".repeat(9 << 10), "v")] {
        let mut txn = begin(&client, optimistic()).await;
        txn.put(key, value.to_owned()).await.unwrap();
        let error = txn.commit().await.unwrap_err();
        assert!(key_errors(&error).iter().any(|error| !error.abort.is_empty()), "{error:?}");
    }
}

#[tokio::test]
async fn garbage_goes_with_the_safe_point_and_reads_below_it_are_refused() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    for value in ["1", "2", "3"] {
        write(&client, &[("k", Some(value)), ("x", Some(value))]).await;
    }
    write(&client, &[("x", None)]).await;
    let mut old = begin(&client, optimistic().read_only()).await;
    let safe_point = client.current_timestamp().await.unwrap();
    assert!(client.gc(safe_point.clone()).await.unwrap());
    assert_eq!(tikv.versions(b"k").len(), 1);
    assert_eq!(tikv.versions(b"x").len(), 0);
    assert_eq!(read(&client, "k").await.as_deref(), Some("3"));
    assert!(old.get("k".to_owned()).await.is_err());
    // A safe point that has passed already is told, and stays.
    let earlier = tikv_client::Timestamp::from_version(safe_point.version() - 1);
    assert!(!client.gc(earlier).await.unwrap());
}

#[tokio::test]
async fn a_range_can_be_destroyed_at_once() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    write(&client, &[("a", Some("1")), ("d", Some("2")), ("z", Some("3"))]).await;
    client.unsafe_destroy_range("b".to_owned().."y".to_owned()).await.unwrap();
    assert_eq!(tikv.dump_latest().into_keys().collect::<Vec<_>>(), [b"a".to_vec(), b"z".to_vec()]);
}

/// The client splits what it sends at 16 KiB, so that one commit becomes many requests to one region.
#[tokio::test]
async fn a_large_transaction_is_committed_as_one() {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    let mut txn = begin(&client, optimistic()).await;
    for at in 0..2000 {
        txn.put(format!("{}{at}", (b'a' + (at % 26) as u8) as char), vec![b'v'; 100]).await.unwrap();
    }
    txn.commit().await.unwrap();
    let mut txn = begin(&client, optimistic().read_only()).await;
    assert_eq!(txn.scan_keys("".to_owned()..="zz".to_owned(), 10_000).await.unwrap().count(), 2000);
    assert!(tikv.calls(Rpc::Prewrite) > 10);
}
