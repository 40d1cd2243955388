//! More than one server that may have the volume, servers that refuse scripts, and servers behind TLS: the shared suite,
//! the names of the keys, and what happens when a server dies, hands over, or loses the slot while it is used.

use super::RedisEngine;
use crate::base::{FaultKind, Ino, Kind, Name};
use crate::meta::Meta;
use crate::meta::engine::suite::{Opened, engine_suite};
use crate::meta::engine::{Batch, Change, Engine, EngineError, EngineResult, Scan};
use crate::meta::record::{Counter, Dentry, Key, Record};
use crate::meta::testing::{file, program, skip, volume_on};
use crate::util::clock::SystemClock;
use sluice_test_servers::redis::{Certificates, Cluster, Redis, WITHOUT_SCRIPTS, Watched};
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| program(name).is_none());
    missing.inspect(|name| skip(&format!("{name} is not installed"))).is_none()
}

/// What takes seconds to come up does so where it holds up nobody else.
async fn started<T: Send + 'static>(start: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(start).await.unwrap()
}

async fn opened(url: String) -> Option<Opened> {
    let engine = RedisEngine::open(&url).await.unwrap();
    Some(Opened { engine, derives_link_parents: false, keep: Box::new(()) })
}

mod in_a_cluster {
    use super::*;

    async fn open() -> Option<Opened> {
        match installed(&Redis::PROGRAMS) {
            true => opened(started(|| Cluster::shared().next_url()).await).await,
            false => None,
        }
    }

    engine_suite!(open);
}

mod under_sentinels {
    use super::*;

    async fn open() -> Option<Opened> {
        match installed(&Redis::PROGRAMS) {
            true => opened(started(|| Watched::shared().next_url()).await).await,
            false => None,
        }
    }

    engine_suite!(open);
}

mod without_scripts {
    use super::*;

    async fn open() -> Option<Opened> {
        match installed(&Redis::PROGRAMS) {
            true => opened(started(|| Redis::shared_without_scripts().next_url()).await).await,
            false => None,
        }
    }

    engine_suite!(open);
}

async fn commit(engine: &RedisEngine, changes: Vec<Change>) -> EngineResult<()> {
    engine.commit(&Batch { guards: Vec::new(), changes }).await.map(drop)
}

fn fault_of<T>(result: EngineResult<T>) -> crate::base::Fault {
    match result {
        Err(EngineError::Fault(fault)) => fault,
        Err(other) => panic!("{other:?}"),
        Ok(_) => panic!("it succeeds"),
    }
}

fn keys(server: &Redis) -> BTreeSet<String> {
    server.run(&["KEYS", "*"]).lines().map(str::to_owned).collect()
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn keys_of_a_cluster_have_a_prefix_and_others_are_left_alone() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let cluster = started(|| Cluster::start(3, 0)).await;
    // {3} and {34} are of different slots, and what begins with the same letters is no key of ours.
    let engine = RedisEngine::open(&cluster.nodes[2].url(3)).await.unwrap();
    let other = RedisEngine::open(&cluster.url(34)).await.unwrap();
    let session = crate::base::SessionId(1);
    let entry = Record::Dentry(Dentry { kind: Kind::File, ino: Ino(2) });
    let changes = vec![
        Change::Put(Key::Setting, Record::Bytes("{}".into())),
        Change::Put(Key::Dentry(Ino(1), Name::stored(*b"n")), entry),
        Change::AddCounter(Counter::UsedSpace, 4096),
        Change::SetFlock { ino: Ino(2), session, owner: 1, exclusive: Some(true), last: false },
    ];
    commit(&engine, changes.clone()).await.unwrap();
    commit(&other, changes).await.unwrap();
    assert_eq!(engine.allocate(Counter::NextInode, 10).await.unwrap(), 2);
    assert_eq!(engine.allocate(Counter::NextTrash, 1).await.unwrap(), 1);
    let node = &cluster.nodes[cluster.master_of(1584)];
    let ours = ["d1", "locked1", "lockf2", "nextTrash", "nextinode", "setting", "usedSpace"];
    let ours: BTreeSet<String> = ours.iter().map(|name| format!("{{3}}{name}")).collect();
    let stored = || keys(node).into_iter().filter(|key| key.starts_with("{3}")).collect::<BTreeSet<_>>();
    assert_eq!(stored(), ours);
    assert_eq!(node.run(&["SMEMBERS", "{3}locked1"]), "{3}lockf2");
    assert_eq!(engine.scan(&Scan::LocksOf(session), None, 10).await.unwrap().rows.len(), 1);

    node.run(&["SET", "{3}cache", "1"]);
    engine.erase().await.unwrap();
    assert_eq!(stored(), BTreeSet::from(["{3}cache".to_owned()]));
    assert_eq!(other.read(&[Key::Setting]).await.unwrap(), [Some(Record::Bytes("{}".into()))]);
}

#[tokio::test]
async fn several_addresses_of_what_is_no_cluster_are_told() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let server = Redis::start(&[]);
    let url = format!("redis://{},{}/1", server.address(), server.address());
    let fault = fault_of(RedisEngine::open(&url).await);
    assert_eq!(fault.kind(), FaultKind::Unsupported, "{fault}");
    assert!(fault.to_string().contains("cluster support disabled"), "{fault}");
}

/// Clients that create files one after another in one directory until they are told to stop; answers the names that were
/// acknowledged. An operation that fails ends the test.
struct Load {
    stop: Arc<AtomicBool>,
    clients: Vec<tokio::task::JoinHandle<Vec<String>>>,
}

impl Load {
    async fn start(url: &str, clients: usize) -> Load {
        let stop = Arc::new(AtomicBool::new(false));
        let mut tasks = Vec::new();
        for client in 0..clients {
            let meta = volume_on(RedisEngine::open(url).await.unwrap(), Arc::new(SystemClock)).await;
            let stop = stop.clone();
            tasks.push(tokio::spawn(async move {
                let mut made = Vec::new();
                while !stop.load(Ordering::Relaxed) {
                    let name = format!("c{client}-{}", made.len());
                    file(&meta, &name).await;
                    made.push(name);
                    tokio::time::sleep(Duration::from_millis(1)).await;
                }
                made
            }));
        }
        Load { stop, clients: tasks }
    }

    async fn end(self) -> BTreeSet<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut made = BTreeSet::new();
        for client in self.clients {
            made.extend(client.await.expect("every operation succeeds"));
        }
        made
    }
}

/// Every acknowledged file is there once, nothing else is, and counters and attributes agree with the entries.
async fn is_consistent(url: &str, made: &BTreeSet<String>) {
    let engine = RedisEngine::open(url).await.unwrap();
    let meta: Arc<Meta> = volume_on(engine.clone(), Arc::new(SystemClock)).await;
    let mut found = BTreeSet::new();
    let mut inodes = BTreeSet::new();
    let mut after = None;
    loop {
        let page = engine.scan(&Scan::Dentries(Ino::ROOT), after.as_ref(), 1000).await.unwrap();
        for (key, record) in page.rows {
            let (Key::Dentry(_, name), Record::Dentry(entry)) = (key, record) else { panic!("no entry") };
            found.insert(String::from_utf8(name.as_bytes().to_vec()).unwrap());
            inodes.insert(entry.ino);
        }
        match page.next {
            Some(next) => after = Some(next),
            None => break,
        }
    }
    assert_eq!(made.difference(&found).count(), 0, "acknowledged and lost: {:?}", made.difference(&found));
    assert_eq!(found.difference(made).count(), 0, "made by nobody: {:?}", found.difference(made));
    assert_eq!(inodes.len(), found.len(), "an inode has two names");
    for ino in inodes {
        assert_eq!(meta.getattr(ino).await.unwrap().nlink, 1);
    }
    let counted = engine.read(&[Key::Counter(Counter::TotalInodes)]).await.unwrap();
    assert_eq!(counted, [Some(Record::Number(found.len() as i64))], "something was applied twice, or by half");
}

/// The load goes on while the master is replaced, and all that was acknowledged is at the new one.
async fn outlives(url: &str, mut watched: Watched, fail: impl FnOnce(&mut Watched) + Send + 'static) -> Watched {
    let load = Load::start(url, 4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let watched = started(move || {
        fail(&mut watched);
        watched
    })
    .await;
    tokio::time::sleep(Duration::from_secs(2)).await;
    let made = load.end().await;
    assert!(made.len() > 20, "{} files", made.len());
    is_consistent(url, &made).await;
    watched
}

fn die(watched: &mut Watched) {
    let master = watched.master();
    watched.servers[master].kill();
    watched.wait_for_another_than(master);
}

/// Handed over in peace the old master takes writes until it is told that it is a replica, after another one was promoted;
/// then it says READONLY. The one that dies has just acknowledged what no replica may have.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_outlive_a_failover_under_sentinels() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let watched = started(|| Watched::start(&[])).await;
    let watched = outlives(&watched.url(2), watched, |watched| watched.fail_over()).await;
    outlives(&watched.url(3), watched, die).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_outlive_a_failover_without_scripts() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let watched = started(|| Watched::start(&WITHOUT_SCRIPTS)).await;
    let watched = outlives(&watched.url(2), watched, |watched| watched.fail_over()).await;
    outlives(&watched.url(3), watched, die).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_outlive_a_failover_over_tls() {
    if !installed(&Redis::PROGRAMS) || !installed(&Certificates::PROGRAMS) {
        return;
    }
    let certificates = Certificates::make();
    // May ask what is needed to wait for replicas, and nothing else that is dangerous.
    let user = "user volume on >pw1 ~* &* +@all -@admin -@dangerous +info +role +wait";
    let watched = started({
        let certificates = certificates.clone();
        move || Watched::start_tls(&[user], Some(&certificates))
    })
    .await;
    let url = watched.tls_url("volume:pw1", 2, &certificates);
    let watched = outlives(&url, watched, |watched| watched.fail_over()).await;
    outlives(&watched.tls_url("volume:pw1", 3, &certificates), watched, die).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_cluster_behind_tls_serves_its_users() {
    if !installed(&Redis::PROGRAMS) || !installed(&Certificates::PROGRAMS) {
        return;
    }
    let certificates = Certificates::make();
    let user = "user volume on >pw1 ~* &* +@all -@admin -@dangerous +info +role +wait +cluster|slots +cluster|nodes";
    let cluster = started({
        let certificates = certificates.clone();
        move || Cluster::start_tls(3, 0, &[user], Some(&certificates))
    })
    .await;
    let url = cluster.tls_url("volume:pw1", 3, &certificates);
    let load = Load::start(&url, 4).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let made = load.end().await;
    assert!(made.len() > 20, "{} files", made.len());
    is_consistent(&url, &made).await;
    let fault = fault_of(RedisEngine::open(&cluster.tls_url("volume:pw2", 3, &certificates)).await);
    assert_eq!(fault.kind(), FaultKind::Denied, "{fault}");
    let untrusted = url.split_once('?').unwrap().0;
    let fault = fault_of(RedisEngine::open(untrusted).await);
    assert!(fault.to_string().contains("certificate"), "{fault}");
}

/// A change is answered when the replicas that follow have it: those that are held up hold it up, those that are gone do
/// so once, and those that are back do so again.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_change_is_acknowledged_when_replicas_have_it() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let mut watched = started(|| Watched::start(&["enable-debug-command local"])).await;
    let engine = RedisEngine::open(&watched.url(1)).await.unwrap();
    let hasty = RedisEngine::open(&format!("{}?wait-replicas=0", watched.url(1))).await.unwrap();
    let change = || vec![Change::AddCounter(Counter::UsedSpace, 1)];
    let takes = async |engine: &RedisEngine| {
        let begun = Instant::now();
        commit(engine, change()).await.unwrap();
        begun.elapsed()
    };
    takes(&engine).await;
    let asleep = |watched: &Watched| {
        let socket = watched.servers[1].socket();
        std::thread::spawn(move || {
            let client = program("redis-cli").unwrap();
            std::process::Command::new(client).arg("-s").arg(socket).args(["DEBUG", "SLEEP", "0.7"]).output().unwrap()
        })
    };
    let sleeping = asleep(&watched);
    tokio::time::sleep(Duration::from_millis(150)).await;
    let (quick, slow) = (takes(&hasty).await, takes(&engine).await);
    sleeping.join().unwrap();
    assert!(quick < Duration::from_millis(200) && slow > Duration::from_millis(200), "{quick:?} {slow:?}");
    for server in [1, 2] {
        watched.servers[server].kill();
    }
    takes(&engine).await;
    assert!(takes(&engine).await < Duration::from_millis(500), "nobody is waited for");
    let watched = started(move || {
        [1, 2].into_iter().for_each(|server| watched.servers[server].restart());
        watched
    })
    .await;
    let deadline = Instant::now() + Duration::from_secs(60);
    loop {
        takes(&engine).await;
        let sleeping = asleep(&watched);
        tokio::time::sleep(Duration::from_millis(150)).await;
        let slow = takes(&engine).await;
        sleeping.join().unwrap();
        if slow > Duration::from_millis(200) {
            break;
        }
        assert!(Instant::now() < deadline, "replicas that are back are waited for again");
    }
}

/// The old master answers reads as a replica does: scans, which change nothing, have to leave it as well.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn scans_leave_a_master_that_hands_over() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let watched = started(|| Watched::start(&[])).await;
    let engine = RedisEngine::open(&watched.url(1)).await.unwrap();
    let put =
        |ino| Change::Put(Key::Dentry(Ino(1), Name::stored(*b"n")), Record::Dentry(Dentry { kind: Kind::File, ino }));
    commit(&engine, vec![put(Ino(2))]).await.unwrap();
    let scan = async || engine.scan(&Scan::Dentries(Ino(1)), None, 10).await.unwrap().rows;
    assert_eq!(scan().await.len(), 1);
    let old = watched.master();
    let watched = started(move || {
        watched.fail_over();
        let begun = Instant::now();
        while watched.servers[old].run(&["ROLE"]).starts_with("master") {
            assert!(begun.elapsed() < Duration::from_secs(60), "it remains a master");
            std::thread::sleep(Duration::from_millis(50));
        }
        // It hears of nothing any more.
        watched.servers[old].run(&["REPLICAOF", "127.0.0.1", "1"]);
        watched
    })
    .await;
    // READONLY, and once more at the new master.
    let mut tries = 0;
    while commit(&engine, vec![put(Ino(3))]).await.is_err() {
        tries += 1;
        assert!(tries < 10, "no change is taken");
    }
    assert!(matches!(scan().await[..], [(_, Record::Dentry(Dentry { ino: Ino(3), .. }))]));
    drop(watched);
}

/// What waiting for replicas costs: `cargo test --lib -- --ignored --nocapture cost_of_replicas`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "a measurement"]
async fn cost_of_replicas() {
    let watched = started(|| Watched::start(&[])).await;
    for tasks in [1, 32] {
        for option in ["?wait-replicas=0", "?wait-replicas=1", ""] {
            let engine = RedisEngine::open(&format!("{}{option}", watched.url(1))).await.unwrap();
            let begun = Instant::now();
            let until = begun + Duration::from_secs(3);
            let work = (0..tasks).map(|_| {
                let engine = engine.clone();
                tokio::spawn(async move {
                    let mut done = 0u32;
                    while Instant::now() < until {
                        commit(&engine, vec![Change::AddCounter(Counter::UsedSpace, 1)]).await.unwrap();
                        done += 1;
                    }
                    done
                })
            });
            let done: u32 =
                futures::future::join_all(work.collect::<Vec<_>>()).await.into_iter().map(Result::unwrap).sum();
            println!("{tasks} tasks, {option:18} {:6.0} commits/s", f64::from(done) / begun.elapsed().as_secs_f64());
        }
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_outlive_a_failover_in_a_cluster() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let mut cluster = started(|| Cluster::start(3, 1)).await;
    let url = cluster.url(3);
    let load = Load::start(&url, 4).await;
    tokio::time::sleep(Duration::from_secs(1)).await;
    let master = cluster.master_of(1584);
    cluster.nodes[master].kill();
    let replica = 3 + master;
    let deadline = Instant::now() + Duration::from_secs(60);
    while !cluster.nodes[replica].run(&["ROLE"]).starts_with("master") {
        assert!(Instant::now() < deadline, "no failover");
        tokio::time::sleep(Duration::from_millis(50)).await;
    }
    tokio::time::sleep(Duration::from_secs(2)).await;
    let made = load.end().await;
    assert!(made.len() > 20, "{} files", made.len());
    let others: Vec<String> = cluster.nodes.iter().skip(1).map(Redis::address).collect();
    is_consistent(&format!("redis://{}/3", others.join(",")), &made).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_outlive_the_move_of_the_slot() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let cluster = started(|| Cluster::start(3, 0)).await;
    let url = cluster.url(3);
    let load = Load::start(&url, 4).await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let from = cluster.master_of(1584);
    let cluster = started(move || {
        cluster.move_slot(1584, from, (from + 1) % 3, Duration::from_millis(20));
        cluster
    })
    .await;
    tokio::time::sleep(Duration::from_millis(500)).await;
    let made = load.end().await;
    is_consistent(&url, &made).await;
    assert!(keys(&cluster.nodes[from]).iter().all(|key| !key.starts_with("{3}")));
}

/// A scan that goes on at a server that has not begun it finds everything that was there.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_scan_begins_again_at_another_server() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let cluster = started(|| Cluster::start(3, 0)).await;
    let engine = RedisEngine::open(&cluster.url(3)).await.unwrap();
    let attr = crate::meta::format::first_directory(0o755, crate::base::Timestamp::new(1, 2));
    let put = |ino| Change::Put(Key::Attr(Ino(ino)), Record::Attr(attr));
    commit(&engine, (1..500).map(put).collect()).await.unwrap();
    let begun = engine.scan(&Scan::Attrs, None, 100).await.unwrap();
    let mut after = begun.next;
    assert!(after.is_some());
    let from = cluster.master_of(1584);
    let cluster = started(move || {
        cluster.move_slot(1584, from, (from + 1) % 3, Duration::ZERO);
        cluster
    })
    .await;
    let mut found: BTreeSet<Ino> = BTreeSet::new();
    let mut add = |rows: Vec<(Key, Record)>| {
        found.extend(rows.into_iter().filter_map(|(key, _)| match key {
            Key::Attr(ino) => Some(ino),
            _ => None,
        }));
    };
    add(begun.rows);
    while let Some(cursor) = after {
        let page = engine.scan(&Scan::Attrs, Some(&cursor), 100).await.unwrap();
        add(page.rows);
        after = page.next;
    }
    assert_eq!(found.len(), 499);
    drop(cluster);
}

#[tokio::test]
async fn servers_behind_tls_are_verified_or_refused_with_a_reason() {
    if !installed(&Redis::PROGRAMS) || !installed(&Certificates::PROGRAMS) {
        return;
    }
    let (certificates, port) = (Certificates::make(), sluice_test_servers::free_port());
    let lines = certificates.lines(port, true);
    let server = Redis::start(&lines.iter().map(String::as_str).collect::<Vec<_>>());
    let own =
        format!("tls-cert-file={}&tls-key-file={}", certificates.path("client.pem"), certificates.path("client.key"));
    let trust = format!("tls-ca-cert-file={}", certificates.path("authority.pem"));
    for good in [
        format!("rediss://127.0.0.1:{port}/1?{own}&{trust}"),
        format!("rediss://localhost:{port}/1?{own}&{trust}"),
        format!("rediss://127.0.0.1:{port}/1?{own}&{trust}&tls-server-name=localhost"),
        format!("rediss://127.0.0.1:{port}/1?{own}&insecure-skip-verify=true"),
    ] {
        let engine = RedisEngine::open(&good).await.unwrap();
        commit(&engine, vec![Change::AddCounter(Counter::UsedSpace, 1)]).await.unwrap();
        assert_eq!(engine.read(&[Key::Setting, Key::AnyDentry(Ino(1))]).await.unwrap(), [None, None]);
    }
    assert_eq!(server.run(&["-n", "1", "GET", "usedSpace"]), "4");
    let begun = Instant::now();
    for (bad, why) in [
        (format!("rediss://127.0.0.1:{port}/1?{own}"), "certificate"),
        (format!("rediss://127.0.0.1:{port}/1?{own}&{trust}&tls-server-name=other"), "certificate"),
        (format!("rediss://127.0.0.1:{port}/1?{trust}"), "TLS"),
        (format!("rediss://127.0.0.1:{}/1?{own}&{trust}", server.port), "does not speak TLS"),
    ] {
        let fault = fault_of(RedisEngine::open(&bad).await);
        assert!(fault.to_string().contains(why), "{bad}: {fault}");
    }
    assert!(begun.elapsed() < Duration::from_secs(40));
}

#[tokio::test]
async fn users_may_do_what_they_are_allowed_to() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let server = Redis::start(&[]);
    server.run(&["ACL", "SETUSER", "all", "on", ">pw1", "~*", "&*", "+@all"]);
    server.run(&["ACL", "SETUSER", "plain", "on", ">pw2", "~*", "+@all", "-@scripting"]);
    server.run(&["ACL", "SETUSER", "reader", "on", ">pw3", "~*", "+@all", "-@write"]);
    let open = async |user: &str| RedisEngine::open(&format!("redis://{user}@{}/1", server.address())).await;
    let change = || vec![Change::AddCounter(Counter::UsedSpace, 1)];
    commit(&*open("all:pw1").await.unwrap(), change()).await.unwrap();
    let plain = open("plain:pw2").await.unwrap();
    assert!(!plain.main.has_scripts());
    commit(&plain, change()).await.unwrap();
    assert_eq!(server.run(&["-n", "1", "GET", "usedSpace"]), "2");
    let fault = fault_of(commit(&*open("reader:pw3").await.unwrap(), change()).await);
    assert_eq!(fault.kind(), FaultKind::Denied, "{fault}");
    assert!(fault.to_string().contains("can't run this command"), "{fault}");
    for wrong in ["all:pw2", "nobody:pw1"] {
        let fault = fault_of(open(wrong).await);
        assert_eq!(fault.kind(), FaultKind::Denied);
        assert!(!fault.to_string().contains("pw"), "{fault}");
    }
}

/// Reads are transactions, which a full server refuses.
#[tokio::test]
async fn a_full_server_without_scripts_is_read() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let server = Redis::start(&WITHOUT_SCRIPTS);
    let engine = RedisEngine::open(&server.url(0)).await.unwrap();
    let meta = volume_on(engine.clone(), Arc::new(SystemClock)).await;
    let ino = file(&meta, "f").await;
    server.run(&["CONFIG", "SET", "maxmemory", "1"]);
    let fault = fault_of(commit(&engine, vec![Change::AddCounter(Counter::UsedSpace, 1)]).await);
    assert_eq!(fault.kind(), FaultKind::Full, "{fault}");
    let read = engine.read(&[Key::Attr(ino), Key::AnyDentry(Ino::ROOT)]).await.unwrap();
    assert!(read.iter().all(Option::is_some), "{read:?}");
    // Inside of MULTI even a removal is refused.
    let fault = fault_of(commit(&engine, vec![Change::Delete(Key::Attr(ino))]).await);
    assert_eq!(fault.kind(), FaultKind::Full, "{fault}");
    server.run(&["CONFIG", "SET", "maxmemory", "0"]);
    commit(&engine, vec![Change::Delete(Key::Attr(ino))]).await.unwrap();
    assert_eq!(engine.read(&[Key::Attr(ino)]).await.unwrap(), [None]);
}

/// What has to wait for a slot that is half-way does not connect all the while, and is answered once the slot has moved.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_slot_half_way_is_waited_for_on_one_connection() {
    if !installed(&Redis::PROGRAMS) {
        return;
    }
    let cluster = started(|| Cluster::start(3, 0)).await;
    let engine = RedisEngine::open(&cluster.url(3)).await.unwrap();
    let attr = crate::meta::format::first_directory(0o755, crate::base::Timestamp::new(1, 2));
    let put = |ino| Change::Put(Key::Attr(Ino(ino)), Record::Attr(attr));
    commit(&engine, vec![put(5)]).await.unwrap();
    let from = cluster.master_of(1584);
    let to = (from + 1) % 3;
    cluster.begin_move(1584, from, to);
    let connections = || {
        let stats = cluster.nodes[from].run(&["INFO", "stats"]);
        let count = super::field(&stats, "total_connections_received").and_then(|count| count.parse::<u32>().ok());
        count.expect("a number")
    };
    // A snapshot, in which a key is nowhere, and a commit that makes one.
    let both = [Key::Attr(Ino(5)), Key::AnyDentry(Ino(9))];
    let reader = tokio::spawn({
        let (engine, both) = (engine.clone(), both.clone());
        async move { engine.read(&both).await }
    });
    let guard = crate::meta::engine::Guard::Same(Key::Attr(Ino(5)), Record::Attr(attr));
    let batch = Batch { guards: vec![guard], changes: vec![put(6)] };
    let writer = tokio::spawn({
        let engine = engine.clone();
        async move { engine.commit(&batch).await }
    });
    tokio::time::sleep(Duration::from_millis(500)).await;
    let before = connections();
    // Longer than requests wait for anything else.
    tokio::time::sleep(super::conn::RETRY_DEADLINE).await;
    let made = connections() - before;
    assert!(made < 10, "{made} connections");
    assert!(!reader.is_finished() && !writer.is_finished());
    // What lies wholly on one side is answered.
    assert_eq!(engine.read(&[Key::Attr(Ino(5))]).await.unwrap(), [Some(Record::Attr(attr))]);
    assert_eq!(engine.read(&[Key::Attr(Ino(7))]).await.unwrap(), [None]);
    cluster.move_slot(1584, from, to, Duration::ZERO);
    assert_eq!(reader.await.unwrap().unwrap()[0], Some(Record::Attr(attr)));
    writer.await.unwrap().unwrap();
    assert_eq!(engine.read(&[Key::Attr(Ino(6))]).await.unwrap(), [Some(Record::Attr(attr))]);
}
