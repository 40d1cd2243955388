//! The tests of the metadata operations, run again on the engines that need a server or a file: once on each, by this
//! test binary in a process of its own, because the engine under test is chosen for a whole process.

use super::paths::PATHS_VARIABLE;
use super::{ENGINE_VARIABLE, Store, program, skip};
use sluice_test_servers::mariadb::Mariadb;
use sluice_test_servers::postgres::Postgres;
use std::process::Stdio;
use std::time::Duration;

/// Far more than a loaded machine needs.
const DEADLINE: Duration = Duration::from_secs(900);
/// Fewer mean that the filter no longer finds them.
const TESTS_MIN: usize = 90;

/// What runs in each mode of `paths`.
const IN_MODES: [&str; 4] = ["meta::conformance::", "meta::testing::paths::", "--skip", "trips"];
/// What takes too long on a server with SQL to be run three times.
const LONG: [&str; 10] = [
    "--skip",
    "races::",
    "--skip",
    "random_sequences",
    "--skip",
    "colliding_",
    "--skip",
    "injected_",
    "--skip",
    "contention::many",
];
/// Fewer mean that the filter no longer finds them.
const IN_MODES_MIN: usize = 15;

async fn run_on(engine: &str) {
    let tests = [
        "meta::",
        "tools::",
        "simulation::",
        "--skip",
        // The engines' own tests open what they need themselves.
        "meta::engine::",
    ];
    run(engine, "fast", &tests, TESTS_MIN).await;
}

/// With the engine's fast paths off, and mixed.
async fn run_in_modes_on(engine: &str, but: &[&str]) {
    for paths in ["slow", "mixed"] {
        run(engine, paths, &[&IN_MODES[..], but].concat(), IN_MODES_MIN).await;
    }
}

/// Runs tests in a process of their own, and at least `least`.
async fn run(engine: &str, paths: &str, what: &[&str], least: usize) {
    if let Ok(asked) = std::env::var(ENGINE_VARIABLE) {
        eprintln!("{ENGINE_VARIABLE} asks for {asked} alone");
        return;
    }
    let dir = tempfile::tempdir().expect("a temporary directory");
    let output = dir.path().join("output");
    let file = std::fs::File::create(&output).expect("a file for the output");
    let mut tests = tokio::process::Command::new(std::env::current_exe().expect("this binary"))
        .args(what)
        .args(["--skip", "meta::testing::engines_tests::run_", "--test-threads=4"])
        .env(ENGINE_VARIABLE, engine)
        .env(PATHS_VARIABLE, paths)
        .stdin(Stdio::null())
        .stdout(file.try_clone().expect("a second descriptor"))
        .stderr(file)
        .kill_on_drop(true)
        .spawn()
        .expect("this binary runs");
    let ended = tokio::time::timeout(DEADLINE, tests.wait()).await;
    let output = std::fs::read(output).expect("the output");
    let output = String::from_utf8_lossy(&output);
    let ended = ended.unwrap_or_else(|_| panic!("the tests on {engine}, {paths}, hang:\n{output}"));
    // What failed and why, without the hundreds of lines of what passed.
    let told = output.find("\nfailures:\n").map_or(&*output, |at| &output[at..]);
    assert!(ended.expect("its status").success(), "the tests on {engine}, {paths}:{told}");
    let passed = output.lines().find_map(|line| line.strip_prefix("test result: ok. ")?.split(' ').next());
    let passed: usize = passed.and_then(|count| count.parse().ok()).expect("a line of results");
    assert!(passed >= least, "only {passed} tests ran on {engine}, {paths}:\n{output}");
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

#[tokio::test]
async fn run_on_redis_sentinel() {
    if program("redis-server").is_none() || program("redis-cli").is_none() {
        return skip("the metadata operations are not tested by sentinels: redis-server or redis-cli is not installed");
    }
    run_on("redis-sentinel").await;
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
async fn run_in_modes_on_redis() {
    if program("redis-server").is_none() {
        return skip("the fast paths of Redis are not tested against the slow ones: redis-server is not installed");
    }
    run_in_modes_on("redis", &[]).await;
}

/// Its listing is one, and what is known of it.
#[tokio::test]
async fn run_in_modes_on_sqlite() {
    run_in_modes_on("sqlite", &[]).await;
}

#[tokio::test]
async fn run_in_modes_on_mysql() {
    match Mariadb::PROGRAMS.iter().find(|name| program(name).is_none()) {
        Some(name) => skip(&format!("the fast paths of MariaDB are not tested: {name} is not installed")),
        None => run_in_modes_on("mysql", &LONG).await,
    }
}

#[tokio::test]
async fn run_in_modes_on_postgres() {
    match Postgres::PROGRAMS.iter().find(|name| program(name).is_none()) {
        Some(name) => skip(&format!("the fast paths of PostgreSQL are not tested: {name} is not installed")),
        None => run_in_modes_on("postgres", &LONG).await,
    }
}

#[tokio::test]
async fn the_engine_is_the_one_asked_for() {
    let asked = std::env::var(ENGINE_VARIABLE).unwrap_or_else(|_| "memory".to_owned());
    let name = asked.split('-').next().expect("there is always a first part");
    assert_eq!(Store::new().await.engine().await.name(), name);
}
