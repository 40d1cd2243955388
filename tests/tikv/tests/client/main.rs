//! The real `tikv-client` against the test server: what it does when all is well, in contention, and with faults.
//! That the client accepts the answers shows that the server speaks as TiKV does; what the client then sees and
//! leaves behind shows that the rules hold.

use std::time::Duration;

use sluice_test_tikv::TestTikv;
use tikv_client::{
    Backoff, CheckLevel, Config, Error, ProtoKeyError, RetryOptions, Transaction, TransactionClient, TransactionOptions,
};

mod basics;
mod contention;
mod faults;
mod leftovers;
mod model;

async fn connect(tikv: &TestTikv) -> TransactionClient {
    let config = Config::default().with_timeout(Duration::from_secs(3));
    TransactionClient::new_with_config(vec![tikv.pd_address()], config).await.expect("a connection to the test server")
}

fn optimistic() -> TransactionOptions {
    TransactionOptions::new_optimistic().drop_check(CheckLevel::None)
}

fn pessimistic() -> TransactionOptions {
    TransactionOptions::new_pessimistic().drop_check(CheckLevel::None)
}

/// Waits a few milliseconds at most for locks and regions, where a test wants to see that something is in the way.
fn impatient() -> RetryOptions {
    let backoff = Backoff::no_jitter_backoff(1, 2, 3);
    RetryOptions { region_backoff: backoff.clone(), lock_backoff: backoff }
}

async fn begin(client: &TransactionClient, options: TransactionOptions) -> Transaction {
    client.begin_with_options(options).await.expect("a timestamp")
}

/// Commits these; `None` deletes.
async fn write(client: &TransactionClient, writes: &[(&str, Option<&str>)]) {
    let mut txn = begin(client, optimistic()).await;
    for (key, value) in writes {
        match value {
            Some(value) => txn.put(key.to_string(), value.to_string()).await.expect("a buffered put"),
            None => txn.delete(key.to_string()).await.expect("a buffered delete"),
        }
    }
    txn.commit().await.expect("a commit");
}

async fn read(client: &TransactionClient, key: &str) -> Option<String> {
    let mut txn = begin(client, optimistic().read_only()).await;
    txn.get(key.to_string()).await.expect("a read").map(text)
}

fn text(bytes: Vec<u8>) -> String {
    String::from_utf8(bytes).expect("text")
}

/// All errors about keys that lie somewhere within.
fn key_errors(error: &Error) -> Vec<&ProtoKeyError> {
    match error {
        Error::KeyError(error) => vec![error],
        Error::ExtractedErrors(errors) | Error::MultipleKeyErrors(errors) => {
            errors.iter().flat_map(key_errors).collect()
        }
        Error::UndeterminedError(inner) | Error::PessimisticLockError { inner, .. } => key_errors(inner),
        _ => Vec::new(),
    }
}

fn is_conflict(error: &Error) -> bool {
    key_errors(error).iter().any(|error| error.conflict.is_some())
}

fn already_exists(error: &Error) -> bool {
    key_errors(error).iter().any(|error| error.already_exist.is_some())
}
