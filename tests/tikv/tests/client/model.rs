//! Random transactions at the same time, with faults, and what snapshot isolation promises of all of them together.
//!
//! Each value is written once, so that every version of the server tells which transaction made it. Then:
//! a transaction has read what was committed last before it started; it is in the server with all of its keys, at one
//! timestamp, or with none; and nobody else has committed a key that it wrote or locked since its start or, in a
//! pessimistic one, since it got the lock.

use std::collections::{BTreeMap, BTreeSet};

use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use sluice_test_tikv::{Calls, Fault, Plan, TestTikv, Ts};
use tikv_client::transaction::ResolveLocksOptions;
use tikv_client::{Timestamp, TimestampExt};

use super::*;

const KEYS: usize = 8;
const CLIENTS: u64 = 4;
const TRANSACTIONS: usize = 60;

type Written = BTreeMap<usize, Option<String>>;

#[derive(Clone, Copy, Debug, PartialEq)]
enum End {
    Committed(Ts),
    Failed,
    /// The commit may have been applied, or not.
    Unknown,
}

#[derive(Debug)]
struct Done {
    start_ts: Ts,
    reads: BTreeMap<usize, Option<String>>,
    writes: Written,
    locks: BTreeSet<usize>,
    /// What a pessimistic transaction found when it got the lock.
    locked: Option<BTreeMap<usize, Option<String>>>,
    end: End,
}

fn name(key: usize) -> String {
    format!("key{key}")
}

/// Reads as the seed will have it: one by one, many, or a range.
async fn read_some(txn: &mut Transaction, rng: &mut StdRng) -> tikv_client::Result<BTreeMap<usize, Option<String>>> {
    let mut found: BTreeMap<usize, Option<String>> = BTreeMap::new();
    let first = rng.random_range(0..KEYS);
    let last = rng.random_range(first..KEYS);
    let number = |key: Vec<u8>| text(key)[3..].parse::<usize>().expect("a key of this test");
    match rng.random_range(0..3) {
        0 => {
            let value = txn.get(name(first)).await?;
            found.insert(first, value.map(text));
        }
        1 => {
            found.extend((first..=last).map(|key| (key, None)));
            let pairs = txn.batch_get((first..=last).map(name)).await?;
            found.extend(pairs.map(|pair| (number(pair.0.into()), Some(text(pair.1)))));
        }
        _ => {
            found.extend((first..=last).map(|key| (key, None)));
            let pairs = txn.scan(name(first)..=name(last), 100).await?;
            found.extend(pairs.map(|pair| (number(pair.0.into()), Some(text(pair.1)))));
        }
    }
    Ok(found)
}

async fn act(txn: &mut Transaction, rng: &mut StdRng, mark: &str, done: &mut Done) -> tikv_client::Result<()> {
    done.reads = read_some(txn, rng).await?;
    for _ in 0..rng.random_range(0..3) {
        let key = rng.random_range(0..KEYS);
        txn.lock_keys([name(key)]).await?;
        done.locks.insert(key);
    }
    for _ in 0..rng.random_range(1..4) {
        let key = rng.random_range(0..KEYS);
        if let Some(locked) = &mut done.locked {
            let value = txn.get_for_update(name(key)).await?;
            locked.insert(key, value.map(text));
        }
        let value = rng.random_bool(0.8).then(|| format!("{mark}/{key}"));
        match &value {
            Some(value) => txn.put(name(key), value.clone()).await?,
            None => txn.delete(name(key)).await?,
        }
        done.writes.insert(key, value);
    }
    Ok(())
}

async fn transaction(client: &TransactionClient, rng: &mut StdRng, mark: String) -> Done {
    let locking = rng.random_bool(0.3);
    let options = if locking { pessimistic() } else { optimistic() }.retry_options(RetryOptions {
        lock_backoff: Backoff::no_jitter_backoff(2, 40, 6),
        ..RetryOptions::default_optimistic()
    });
    let locked = locking.then(BTreeMap::new);
    let mut txn = begin(client, options).await;
    let mut done = Done {
        start_ts: txn.start_timestamp().version(),
        reads: BTreeMap::new(),
        writes: BTreeMap::new(),
        locks: BTreeSet::new(),
        locked,
        end: End::Failed,
    };
    let failed = match act(&mut txn, rng, &mark, &mut done).await {
        Ok(()) if rng.random_bool(0.9) => match txn.commit().await {
            Ok(commit_ts) => {
                done.end = End::Committed(commit_ts.expect("something to commit").version());
                return done;
            }
            Err(error) if refused(&error) => Some(error),
            // To roll it back now could undo a part of what is committed.
            Err(_) => {
                done.end = End::Unknown;
                return done;
            }
        },
        Ok(()) => None,
        Err(error) => Some(error),
    };
    // Without an answer some locks stay, which others have to deal with.
    txn.rollback().await.ok();
    if let Some(error) = failed {
        clean_up(client, &error).await;
    }
    done
}

/// Whether the server has answered that this cannot be committed.
fn refused(error: &Error) -> bool {
    !key_errors(error).is_empty() || matches!(error, Error::ResolveLockError(_))
}

/// Removes locks that have lost their primary, if they are older than any transaction of this test should be. One that
/// is alive nevertheless must find out when it commits.
async fn clean_up(client: &TransactionClient, error: &Error) {
    for unknown in key_errors(error).into_iter().filter_map(|error| error.txn_not_found.as_ref()) {
        let lost = Timestamp::from_version(unknown.start_ts);
        let now = client.current_timestamp().await.expect("a timestamp");
        if now.physical - lost.physical > 300 {
            client.cleanup_locks(.., &lost, ResolveLocksOptions::default()).await.ok();
        }
    }
}

fn inject_all(tikv: &TestTikv) {
    for (fault, every) in [
        (Fault::EpochNotMatch, 37),
        (Fault::NotLeader, 41),
        (Fault::RegionNotFound, 43),
        (Fault::CutAfter, 47),
        (Fault::CutBefore, 53),
        (Fault::FailAfter, 59),
        (Fault::Delay(Duration::from_millis(20)), 61),
        (Fault::Split, 301),
    ] {
        tikv.inject(Plan::always(Calls::Kv, fault).after(every).every(every));
    }
}

async fn run(seed: u64, faults: bool) -> (TestTikv, Vec<Done>) {
    let tikv = TestTikv::start_split(&[b"key2", b"key5"]);
    if faults {
        inject_all(&tikv);
    }
    let clients: Vec<_> = (0..CLIENTS)
        .map(|number| {
            let pd = tikv.pd_address();
            tokio::spawn(async move {
                let client = TransactionClient::new(vec![pd]).await.expect("a connection");
                let mut rng = StdRng::seed_from_u64(seed * 100 + number);
                let mut all = Vec::new();
                for at in 0..TRANSACTIONS {
                    all.push(transaction(&client, &mut rng, format!("{number}/{at}")).await);
                }
                all
            })
        })
        .collect();
    let mut all = Vec::new();
    for client in clients {
        all.extend(client.await.expect("a client"));
    }
    tikv.heal();
    (tikv, all)
}

/// What the server has of each key, oldest first.
fn history(tikv: &TestTikv) -> Vec<Vec<(Ts, Option<String>)>> {
    let versions = |key| tikv.versions(name(key).as_bytes());
    let readable = |version: Vec<(Ts, Option<Vec<u8>>)>| version.into_iter().map(|(ts, value)| (ts, value.map(text)));
    (0..KEYS).map(|key| readable(versions(key)).collect()).collect()
}

fn check(history: &[Vec<(Ts, Option<String>)>], done: &Done) {
    for (key, value) in &done.reads {
        let before = history[*key].iter().rev().find(|(ts, _)| *ts <= done.start_ts);
        assert_eq!(*value, before.and_then(|(_, value)| value.clone()), "a read of {key} in {done:?}");
    }
    // Deletions have no mark; the puts tell where a transaction whose end is unknown went.
    let place = |(key, value): (&usize, &Option<String>)| {
        let value = value.as_ref()?;
        Some(history[*key].iter().find(|(_, there)| there.as_ref() == Some(value)).map(|(ts, _)| *ts))
    };
    let places: BTreeSet<Option<Ts>> = done.writes.iter().filter_map(place).collect();
    assert!(places.len() <= 1, "committed in part or twice: {places:?} of {done:?}");
    let commit_ts = match done.end {
        End::Committed(commit_ts) => {
            for (key, value) in &done.writes {
                assert!(history[*key].contains(&(commit_ts, value.clone())), "key {key} of {done:?} is missing");
            }
            Some(commit_ts)
        }
        End::Failed => {
            assert!(!places.iter().any(Option::is_some), "{done:?} is there at {places:?}");
            None
        }
        End::Unknown => places.into_iter().next().flatten(),
    };
    let Some(commit_ts) = commit_ts else { return };
    let before = |key: usize| history[key].iter().rev().find(|(ts, _)| *ts < commit_ts);
    match &done.locked {
        Some(locked) => {
            for (key, value) in locked {
                let there = before(*key).and_then(|(_, value)| value.clone());
                assert_eq!(*value, there, "key {key} was changed under the lock of {done:?}");
            }
        }
        None => {
            for key in done.writes.keys().chain(&done.locks) {
                let since = before(*key).filter(|(ts, _)| *ts > done.start_ts);
                assert_eq!(since, None, "key {key} was changed unseen by {done:?}");
            }
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn random_transactions_keep_the_promises() {
    for (seed, faults) in [(1, false), (2, true)] {
        let (tikv, all) = run(seed, faults).await;
        let client = connect(&tikv).await;
        let safe_point = client.current_timestamp().await.expect("a timestamp");
        client.cleanup_locks(.., &safe_point, ResolveLocksOptions::default()).await.expect("a clean-up");
        let mut txn = begin(&client, optimistic().read_only()).await;
        let seen = txn.scan("key".to_owned().."kez".to_owned(), 100).await.expect("a scan").count();
        assert_eq!(seen, tikv.dump_latest().len());
        assert_eq!(tikv.locks(), []);
        let history = history(&tikv);
        all.iter().for_each(|done| check(&history, done));
        let committed = all.iter().filter(|done| matches!(done.end, End::Committed(_))).count();
        let unknown = all.iter().filter(|done| done.end == End::Unknown).count();
        eprintln!("seed {seed}: {committed} of {} committed, {unknown} unknown", all.len());
        assert!(committed > all.len() / 4);
    }
}
