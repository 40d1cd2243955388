//! What a cluster does that is not one of its answers to an operation: TLS, garbage, locks of the dead, members that are
//! away, and refusals that trying again does not help against.

use super::super::tests::on_tikv::options;
use super::*;
use crate::meta::engine::{Batch, Change, Engine, Guard};
use crate::meta::record::{Key, Record};
use crate::meta::testing::{program, skip};
use sluice_test_servers::Certificates;
use sluice_test_tikv::{Crash, Fault as Injected, Plan, Rpc, TestTikv};
use std::net::TcpListener;

const SETTING: &[u8] = b"v\xfdsetting";

async fn set(engine: &KvEngine, value: Vec<u8>) -> EngineResult<()> {
    let changes = vec![Change::Put(Key::Setting, Record::Bytes(value.into()))];
    let (txn, mut found) = engine.begin(&[Key::Setting]).await?;
    let guard = match found.pop().flatten() {
        Some(record) => Guard::Same(Key::Setting, record),
        None => Guard::Absent(Key::Setting),
    };
    txn.commit(Batch { guards: vec![guard], changes }).await.map(drop)
}

async fn setting(engine: &KvEngine) -> Vec<u8> {
    match engine.read(&[Key::Setting]).await.unwrap().pop().flatten() {
        Some(Record::Bytes(bytes)) => bytes.to_vec(),
        other => panic!("{other:?}"),
    }
}

async fn with_setting(server: &TestTikv, value: &[u8]) -> KvEngine {
    let engine = open(&options(server, "v")).await.unwrap();
    set(&engine, value.to_vec()).await.unwrap();
    engine
}

async fn refusal(options: &TikvOptions) -> Fault {
    let begun = Instant::now();
    let refused = open(options).await.map(drop);
    assert!(begun.elapsed() < Duration::from_secs(10), "{:?}", begun.elapsed());
    match refused {
        Err(EngineError::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn certificates_are_believed_or_the_reason_is_said() {
    if let Some(missing) = Certificates::PROGRAMS.into_iter().find(|name| program(name).is_none()) {
        return skip(&format!("{missing} is not installed"));
    }
    let (made, others) = (Certificates::make(), Certificates::make());
    let [ca, cert, key] = ["authority.pem", "server.pem", "server.key"].map(|name| made.file(name));
    let server = TestTikv::start_tls(&ca, &cert, &key);
    let with = |from: &Certificates, authority: &Certificates| {
        let files = [authority.file("authority.pem"), from.file("client.pem"), from.file("client.key")];
        TikvOptions { tls: Some(files), ..options(&server, "v") }
    };
    let engine = open(&with(&made, &made)).await.unwrap();
    set(&engine, b"{}".to_vec()).await.unwrap();
    assert_eq!(setting(&engine).await, b"{}");

    let fault = refusal(&with(&made, &others)).await;
    assert!(fault.kind() == FaultKind::Config && fault.to_string().contains("ca, cert, key"), "{fault}");
    let fault = refusal(&with(&others, &made)).await;
    assert!(fault.to_string().contains("cert, key"), "{fault}");
    let fault = refusal(&options(&server, "v")).await;
    assert!(fault.to_string().contains("TLS"), "{fault}");
    let files = ["/no/such/file"; 3].map(PathBuf::from);
    let fault = refusal(&TikvOptions { tls: Some(files), ..options(&server, "v") }).await;
    assert!(fault.kind() == FaultKind::Config && fault.to_string().contains("/no/such/file"), "{fault}");
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn members_that_are_away_or_say_nothing_are_passed_by() {
    let server = TestTikv::start();
    // Connections are taken by the system, and nobody answers.
    let silent = TcpListener::bind("127.0.0.1:0").unwrap();
    let closed = format!("127.0.0.1:{}", sluice_test_servers::free_port());
    for away in [closed, silent.local_addr().unwrap().to_string()] {
        let members = vec![away.clone(), server.pd_address()];
        let engine = open(&TikvOptions { members, ..options(&server, "v") }).await;
        set(&engine.unwrap_or_else(|error| panic!("{away}: {error:?}")), b"{}".to_vec()).await.unwrap();
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_lock_whose_primary_never_arrived_is_cleared() {
    let server = TestTikv::start();
    let engine = with_setting(&server, b"old").await;
    let writes = [(&b"v\xfdA"[..], Some(&b"x"[..])), (SETTING, Some(b"never"))];
    server.crash(&writes, Crash::WithoutPrimary { ttl: Duration::from_secs(3) });
    server.advance(Duration::from_secs(60));
    assert_eq!(setting(&engine).await, b"old");
    // Writers clear the way too; the one that does so begins again.
    server.crash(&writes, Crash::WithoutPrimary { ttl: Duration::from_secs(3) });
    server.advance(Duration::from_secs(60));
    let changes = vec![Change::Put(Key::Setting, Record::Bytes("new".into()))];
    let met = engine.begin(&[]).await.unwrap().0.commit(Batch { guards: vec![], changes }).await.map(drop);
    assert!(matches!(met, Ok(()) | Err(EngineError::Conflict)), "{met:?}");
    set(&engine, b"new".to_vec()).await.unwrap();
    assert_eq!(setting(&engine).await, b"new");
    assert_eq!(server.locks(), []);
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn old_versions_are_collected_and_locks_of_the_dead_are_decided_first() {
    let server = TestTikv::start();
    let engine = with_setting(&server, b"1").await;
    set(&engine, b"2".to_vec()).await.unwrap();
    // One whose time is not over, and one that is committed and was not cleaned up after.
    server.crash(&[(b"v\xfdx", Some(b"x"))], Crash::BeforeCommit { ttl: Duration::from_secs(20) });
    server.crash(&[(b"v\xfda", Some(b"a")), (SETTING, Some(b"3"))], Crash::AfterPrimary);
    server.crash(&[(b"v\xfdb", Some(b"b")), (b"v\xfdc", Some(b"c"))], Crash::WithoutPrimary { ttl: Duration::ZERO });
    let client = TransactionClient::new(vec![server.pd_address()]).await.unwrap();
    assert!(collect(&client, Duration::ZERO).await.unwrap());
    assert_eq!(server.locks(), []);
    let values: Vec<_> = server.versions(SETTING).into_iter().map(|(_, value)| value).collect();
    assert_eq!(values, [Some(b"3".to_vec())]);
    assert_eq!(server.versions(b"v\xfdx"), []);
    assert_eq!(setting(&engine).await, b"3");
    // PD does not go back.
    assert!(!collect(&client, Duration::from_secs(3600)).await.unwrap());
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_a_store_cannot_take_is_said_and_what_passes_is_waited_for() {
    let server = TestTikv::start();
    let engine = with_setting(&server, b"old").await;
    let stale = server.inject(Plan::once(Rpc::Prewrite, Injected::StaleCommand).times(2));
    set(&engine, b"new".to_vec()).await.unwrap();
    assert_eq!(stale.hits(), 2);

    let Err(EngineError::Fault(fault)) = set(&engine, vec![b'x'; 9 << 20]).await else { panic!("9 MiB were taken") };
    assert!(fault.kind() == FaultKind::Unsupported && fault.to_string().contains("too large"), "{fault}");
    let full = server.inject(Plan::always(Rpc::Prewrite, Injected::DiskFull));
    let Err(EngineError::Fault(fault)) = set(&engine, b"more".to_vec()).await else { panic!("it was full") };
    assert!(fault.kind() == FaultKind::Full && fault.to_string().contains("disk full"), "{fault}");
    full.stop();
    assert_eq!(setting(&engine).await, b"new");
    set(&engine, b"again".to_vec()).await.unwrap();
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn an_attempt_as_old_as_the_versions_that_others_keep_begins_again() {
    let server = TestTikv::start();
    let volume = open_volume(&options(&server, "v")).await.unwrap();
    let wants = [Want::Key(b"setting".to_vec())];
    let mut txn = TikvTxn { volume, txn: None };
    txn.read(&wants).await.unwrap();
    let began = Instant::now().checked_sub(SNAPSHOT_AGE_MAX).expect("a machine that was not started just now");
    txn.txn.as_mut().unwrap().1 = began;
    assert!(matches!(txn.read(&wants).await, Err(EngineError::Conflict)));
    let attempt = Attempt { view: &View::default(), checks: &BTreeSet::new(), writes: &Writes::new(), wants: &[] };
    assert!(matches!(Box::new(txn).commit(attempt).await, Ok(Ended::Changed(..))));
}
