//! The tests of the metadata operations, run again on the engines that need a server or a file: once on each, by this
//! test binary in a process of its own, because the engine under test is chosen for a whole process.

use super::{ENGINE_VARIABLE, Store, program, skip};
use sluice_test_servers::mariadb::Mariadb;
use sluice_test_servers::postgres::Postgres;
use std::process::Stdio;
use std::time::Duration;

/// Far more than a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(900);
/// Fewer mean that the filter no longer finds them.
const TESTS_MIN: usize = 90;

async fn run_on(engine: &str) {
    if let Ok(asked) = std::env::var(ENGINE_VARIABLE) {
        eprintln!("{ENGINE_VARIABLE} asks for {asked} alone");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = dir.path().join("output");
    let file = std::fs::File::create(&output).expect("a file for the output");
    // The engines' own tests open what they need themselves.
    let mut tests = tokio::process::Command::new(std::env::current_exe().expect("this binary"))
        .args([
            "meta::",
            "tools::",
            "simulation::",
            "--skip",
            "meta::engine::",
            "--skip",
            "meta::testing::engines_tests::run_",
            "--test-threads=4",
        ])
        .env(ENGINE_VARIABLE, engine)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second descriptor"))
        .stderr(file)
        .kill_on_drop(true)
        .spawn()
        .expect("this binary runs");
    let ended = tokio::time::timeout(DEADLINE, tests.wait()).await;
    let output = std::fs::read(output).expect("the output");
    let output = String::from_utf8_lossy(&output);
    let ended = ended.unwrap_or_else(|_| panic!("the tests on {engine} hang:\n{output}"));
    assert!(ended.expect("its status").success(), "the tests on {engine}:\n{output}");
    let passed = output.lines().find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next());
    let passed: usize = passed.and_then(|count| count.parse().ok()).expect("a line of results");
    assert!(passed >= TESTS_MIN, "only {passed} tests ran on {engine}:\n{output}");
}

#[tokio::test]
async fn run_on_redis() {
    if program("redis-server").is_none() {
        return skip("the metadata operations are not tested on Redis: redis-server is not installed");
    }
    run_on("redis").await;
}

#[tokio::test]
async fn run_on_etcd() {
    if program("etcd").is_none() {
        return skip("the metadata operations are not tested on etcd: etcd is not installed");
    }
    run_on("etcd").await;
}

#[tokio::test]
async fn run_on_tikv() {
    run_on("tikv").await;
}

#[tokio::test]
async fn run_on_redis_cluster() {
    if program("redis-server").is_none() || program("redis-cli").is_none() {
        return skip("the metadata operations are not tested on a cluster: redis-server or redis-cli is not installed");
    }
    run_on("redis-cluster").await;
}

/// On a server that takes no scripts.
#[tokio::test]
async fn run_on_redis_plain() {
    if program("redis-server").is_none() || program("redis-cli").is_none() {
        return skip("the metadata operations are not tested without scripts: redis-server is not installed");
    }
    run_on("redis-plain").await;
}

#[tokio::test]
async fn run_on_sqlite() {
    run_on("sqlite").await;
}

#[tokio::test]
async fn run_on_mysql() {
    match Mariadb::PROGRAMS.iter().find(|name| program(name).is_none()) {
        Some(name) => skip(&format!("the metadata operations are not tested on MariaDB: {name} is not installed")),
        None => run_on("mysql").await,
    }
}

#[tokio::test]
async fn run_on_postgres() {
    match Postgres::PROGRAMS.iter().find(|name| program(name).is_none()) {
        Some(name) => skip(&format!("the metadata operations are not tested on PostgreSQL: {name} is not installed")),
        None => run_on("postgres").await,
    }
}

#[tokio::test]
async fn the_engine_is_the_one_asked_for() {
    let asked = std::env::var(ENGINE_VARIABLE).unwrap_or_else(|_| "memory".to_owned());
    let name = asked.split('-').next().expect("there is always a first part");
    assert_eq!(Store::new().await.engine().await.name(), name);
}
