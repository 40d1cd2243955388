//! What dead transactions leave behind, and how the living deal with it.

use sluice_test_tikv::{Crash, Rpc, TestTikv};
use tikv_client::transaction::ResolveLocksOptions;
use tikv_client::{Timestamp, TimestampExt};

use super::*;

const SPLITS: [&[u8]; 2] = [b"m", b"t"];
const NEW: Option<&[u8]> = Some(b"new");

async fn prepare() -> (TestTikv, TransactionClient) {
    let tikv = TestTikv::start_split(&SPLITS);
    let client = connect(&tikv).await;
    write(&client, &[("a", Some("old")), ("n", Some("old")), ("z", Some("old"))]).await;
    (tikv, client)
}

async fn scan(client: &TransactionClient) -> Vec<String> {
    let mut txn = begin(client, optimistic().read_only()).await;
    txn.scan("a".to_owned()..="z".to_owned(), 100).await.expect("a scan").map(|pair| text(pair.1)).collect()
}

#[tokio::test]
async fn a_committed_primary_is_rolled_forward() {
    let (tikv, client) = prepare().await;
    tikv.crash(&[(b"a", NEW), (b"n", NEW), (b"z", None)], Crash::AfterPrimary);
    assert_eq!(tikv.locks().len(), 2);
    assert_eq!(read(&client, "n").await.as_deref(), Some("new"));
    assert_eq!(scan(&client).await, ["new", "new"]);
    assert_eq!(tikv.locks(), []);
    assert!(tikv.calls(Rpc::ResolveLock) >= 2);
}

#[tokio::test]
async fn an_expired_transaction_is_rolled_back_for_ever() {
    let (tikv, client) = prepare().await;
    let start_ts = tikv.crash(&[(b"a", NEW), (b"n", NEW), (b"z", None)], Crash::BeforeCommit { ttl: Duration::ZERO });
    tokio::time::sleep(Duration::from_millis(5)).await;
    assert_eq!(read(&client, "n").await.as_deref(), Some("old"));
    assert!(!tikv.finish(start_ts), "committed after it was rolled back");
    assert_eq!(scan(&client).await, ["old", "old", "old"]);
    assert_eq!(tikv.locks(), []);
}

#[tokio::test]
async fn a_living_transaction_is_waited_for() {
    let (tikv, client) = prepare().await;
    let ttl = Duration::from_secs(20);
    let start_ts = tikv.crash(&[(b"a", NEW), (b"n", NEW)], Crash::BeforeCommit { ttl });
    let reader = tokio::spawn({
        let client = client.clone();
        async move { scan(&client).await }
    });
    tokio::time::sleep(Duration::from_millis(150)).await;
    assert!(!reader.is_finished());
    assert!(tikv.finish(start_ts));
    // The reader's snapshot is older than the commit.
    assert_eq!(reader.await.unwrap(), ["old", "old", "old"]);
    assert_eq!(scan(&client).await, ["new", "new", "old"]);
}

#[tokio::test]
async fn waiting_has_an_end_and_the_clock_of_pd_decides() {
    let (tikv, client) = prepare().await;
    let ttl = Duration::from_secs(20);
    tikv.crash(&[(b"a", NEW), (b"n", NEW)], Crash::BeforeCommit { ttl });
    let mut txn = begin(&client, optimistic().read_only().retry_options(impatient())).await;
    let error = txn.get("n".to_owned()).await.unwrap_err();
    assert!(matches!(error, Error::ResolveLockError(_)), "{error:?}");
    // A key that is not locked can be read all the time.
    assert_eq!(read(&client, "z").await.as_deref(), Some("old"));
    tikv.advance(Duration::from_secs(21));
    assert_eq!(read(&client, "n").await.as_deref(), Some("old"));
}

#[tokio::test]
async fn writers_clear_the_way_as_readers_do() {
    let (tikv, client) = prepare().await;
    tikv.crash(&[(b"a", NEW), (b"n", NEW)], Crash::AfterPrimary);
    tikv.crash(&[(b"z", NEW)], Crash::BeforeCommit { ttl: Duration::ZERO });
    tokio::time::sleep(Duration::from_millis(5)).await;
    write(&client, &[("n", Some("newer")), ("z", Some("newer"))]).await;
    assert_eq!(scan(&client).await, ["new", "newer", "newer"]);
    // A pessimistic lock finds a lock of the dead too.
    tikv.crash(&[(b"a", NEW), (b"n", None)], Crash::AfterPrimary);
    let mut txn = begin(&client, pessimistic()).await;
    assert_eq!(txn.get_for_update("n".to_owned()).await.unwrap(), None);
    txn.commit().await.unwrap();
}

#[tokio::test]
async fn garbage_collection_clears_all_locks_below_the_safe_point() {
    let (tikv, client) = prepare().await;
    // Not even a living transaction outlasts a safe point.
    tikv.crash(&[(b"z", NEW)], Crash::BeforeCommit { ttl: Duration::from_secs(20) });
    tikv.crash(&[(b"a", NEW), (b"n", NEW), (b"y", NEW)], Crash::AfterPrimary);
    let safe_point = client.current_timestamp().await.unwrap();
    let locks = client.scan_locks(&safe_point, "".to_owned().., 100).await.unwrap();
    assert_eq!(locks.len(), 3);
    assert!(client.gc(safe_point).await.unwrap());
    assert_eq!(tikv.locks(), []);
    assert_eq!(scan(&client).await, ["new", "new", "new", "old"]);
}

/// The server says that it knows nothing of the transaction, and that it may be rolled back if asked to; the client does
/// not recognise that answer and never asks, so the lock stays however old it is. Only a clean-up asks.
#[tokio::test]
async fn a_lock_without_a_primary_stays_until_it_is_cleaned_up() {
    let (tikv, client) = prepare().await;
    let start_ts = tikv.crash(&[(b"a", NEW), (b"n", NEW)], Crash::WithoutPrimary { ttl: Duration::from_secs(3) });
    tikv.advance(Duration::from_secs(60));
    let mut txn = begin(&client, optimistic().read_only()).await;
    let error = txn.get("n".to_owned()).await.unwrap_err();
    let unknown = key_errors(&error)[0].txn_not_found.as_ref().map(|unknown| unknown.start_ts);
    assert_eq!(unknown, Some(start_ts), "{error:?}");
    // Locks that are not younger than this one, whose time was over long ago.
    let safe_point = Timestamp::from_version(start_ts);
    let cleaned = client.cleanup_locks("n".to_owned()..="n".to_owned(), &safe_point, ResolveLocksOptions::default());
    assert_eq!(cleaned.await.unwrap().resolved_locks, 1);
    assert_eq!(txn.get("n".to_owned()).await.unwrap(), Some(b"old".to_vec()));
    assert!(!tikv.finish(start_ts));
}
