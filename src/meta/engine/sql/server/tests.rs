//! The suite of engines on MariaDB and PostgreSQL, and what is particular to a server.

use super::*;
use crate::base::{AttrPatch, ChunkIndex, Errno, FaultKind, FieldMask, Kind, Slice, SliceId, Timestamp};
use crate::meta::engine::counting::CountingEngine;
use crate::meta::engine::suite::{Opened, engine_suite};
use crate::meta::engine::{Change, Guard};
use crate::meta::ops::create::NewNode;
use crate::meta::ops::rename::RenameMode;
use crate::meta::ops::xattr::XattrMode;
use crate::meta::testing::{file, next_mysql, next_postgres, program, server_options, skip, volume_on};
use crate::meta::{Caller, Meta};
use crate::util::clock::SystemClock;
use sluice_test_servers::mariadb::Mariadb;
use sluice_test_servers::postgres::Postgres;
use std::process::Command;
use std::time::{Duration, Instant};

fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| program(name).is_none());
    missing.inspect(|name| skip(&format!("{name} is not installed"))).is_none()
}

async fn opened(options: ServerOptions) -> Opened {
    let engine = ServerEngine::open(&options).await.expect("the server of the tests");
    engine.prepare().await.expect("tables");
    let mut script = engine.0.script();
    script.raw(&format!("DELETE FROM {}", engine.0.table("counter")));
    engine.0.driver.run(script.text, "remove the first counters").await.expect("removed");
    Opened { engine: Arc::new(engine), derives_link_parents: true, keep: Box::new(()) }
}

mod mysql {
    use super::*;

    async fn open() -> Option<Opened> {
        if !installed(&Mariadb::PROGRAMS) {
            return None;
        }
        Some(opened(next_mysql()).await)
    }

    engine_suite!(open);
}

mod postgres {
    use super::*;

    async fn open() -> Option<Opened> {
        if !installed(&Postgres::PROGRAMS) {
            return None;
        }
        Some(opened(next_postgres()).await)
    }

    engine_suite!(open);
}

/// The options of a fresh volume on each of the two.
fn fresh() -> Vec<ServerOptions> {
    let mut all = Vec::new();
    if installed(&Mariadb::PROGRAMS) {
        all.push(next_mysql());
    }
    if installed(&Postgres::PROGRAMS) {
        all.push(next_postgres());
    }
    all
}

async fn client(options: &ServerOptions) -> Arc<Meta> {
    volume_on(Arc::new(ServerEngine::open(options).await.expect("the server of the tests")), Arc::new(SystemClock))
        .await
}

/// `juicefs format` of a fresh database.
fn format_by_the_peer(url: &str) -> bool {
    let Some(peer) = program("juicefs") else {
        skip("nothing is compared with the peer: juicefs is not installed");
        return false;
    };
    let dir = tempfile::tempdir().expect("a temporary directory");
    let bucket = format!("{}/", dir.path().display());
    let made = Command::new(peer).args(["format", "--storage", "file", "--bucket", &bucket, url, "peer"]).output();
    let made = made.expect("the peer runs");
    assert!(made.status.success(), "{}", String::from_utf8_lossy(&made.stderr));
    true
}

/// Tables, columns, types, defaults and indexes.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn the_schema_is_that_of_the_peer() {
    if installed(&Mariadb::PROGRAMS) {
        let server = Mariadb::shared();
        let (own, peers) = (server.next_database(), server.next_database());
        let described = |database: &str| {
            server.execute(&format!(
                "SELECT table_name, column_name, column_type, is_nullable, column_default, extra FROM \
                 information_schema.columns WHERE table_schema = '{database}' ORDER BY 1, ordinal_position; \
                 SELECT table_name, index_name, non_unique, seq_in_index, column_name FROM information_schema.statistics \
                 WHERE table_schema = '{database}' ORDER BY 1, 2, 4"
            ))
        };
        let options = server_options(ServerKind::Mysql, server.port, own.clone());
        ServerEngine::open(&options).await.expect("opened").prepare().await.expect("tables");
        if format_by_the_peer(&server.url(&peers)) {
            assert_eq!(described(&own), described(&peers));
        }
        // Of an older client: what is missing is added, by name.
        server.execute(&format!(
            "USE {own}; ALTER TABLE jfs_node DROP COLUMN tier_id; DROP TABLE jfs_detached_node; \
             DROP INDEX IDX_jfs_edge_inode ON jfs_edge"
        ));
        ServerEngine::open(&options).await.expect("opened").prepare().await.expect("tables");
        assert!(described(&own).contains("tier_id") && described(&own).contains("IDX_jfs_edge_inode"));
        assert!(described(&own).contains("jfs_detached_node"));
    }
    if installed(&Postgres::PROGRAMS) {
        let server = Postgres::shared();
        let (own, peers) = (server.next_database(), server.next_database());
        let described = |database: &str| {
            server.execute(
                database,
                "SELECT table_name, column_name, data_type, character_maximum_length, is_nullable, column_default FROM \
                 information_schema.columns WHERE table_schema = 'public' ORDER BY 1, ordinal_position; \
                 SELECT tablename, indexname, indexdef FROM pg_indexes WHERE schemaname = 'public' ORDER BY 1, 2",
            )
        };
        let options = server_options(ServerKind::Postgres, server.port, own.clone());
        ServerEngine::open(&options).await.expect("opened").prepare().await.expect("tables");
        if format_by_the_peer(&server.url(&peers)) {
            for (own, peers) in described(&own).lines().zip(described(&peers).lines()) {
                assert_eq!(own, peers);
            }
            assert_eq!(described(&own).lines().count(), described(&peers).lines().count());
        }
    }
}

/// `design.md` section 5: a trip for what an operation loads and one for its commit, less what is known already.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn operations_take_few_trips() {
    for options in fresh() {
        let engine = Arc::new(CountingEngine::new(Arc::new(ServerEngine::open(&options).await.expect("opened"))));
        let meta = volume_on(engine.clone(), Arc::new(SystemClock)).await;
        let (root, node) = (Caller::root(), NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None });
        let name = |text: &str| Name::entry(text.as_bytes()).expect("a name");
        file(&meta, "numbers").await;
        let other = client(&options).await;
        engine.take();
        let made = meta.create(&root, Ino::ROOT, &name("f"), &node).await.expect("made");
        assert!(engine.take().total() <= 2, "create");
        let slice = Slice { pos: 0, id: SliceId(900), size: 10, off: 0, len: 10 };
        meta.append_slice(made.ino, ChunkIndex(0), slice, Timestamp::default()).await.expect("written");
        assert!(engine.take().total() <= 2, "slice commit");
        // Of what another client made nothing is known.
        file(&other, "g").await;
        engine.take();
        let (from, to) = (name("g"), name("h"));
        meta.rename(&root, Ino::ROOT, &from, Ino::ROOT, &to, RenameMode::Replace).await.expect("moved");
        assert!(engine.take().total() <= 3, "rename");
        file(&other, "i").await;
        engine.take();
        meta.unlink(&root, Ino::ROOT, &name("i"), true).await.expect("removed");
        assert!(engine.take().total() <= 3, "unlink");
    }
}

/// What the columns cannot hold is refused with a reason, and what they can is exact.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn what_does_not_fit_is_refused() {
    for options in fresh() {
        let meta = client(&options).await;
        let ino = file(&meta, "f").await;
        let fault_of = |stop: crate::base::Stop| match stop {
            crate::base::Stop::Fault(fault) => fault,
            crate::base::Stop::Errno(errno) => panic!("{errno:?}"),
        };
        let set = crate::meta::ops::attr::SetAttr { uid: Some(3_000_000_000), ..Default::default() };
        let fault = fault_of(meta.setattr(&Caller::root(), ino, &set).await.expect_err("an owner that does not fit"));
        assert_eq!(fault.kind(), FaultKind::Unsupported);
        assert!(fault.to_string().contains("2147483647"), "{fault}");
        let root = Caller::root();
        for (name, value) in [(&b"user.K"[..], &b"upper"[..]), (b"user.k", b"lower")] {
            meta.set_xattr(&root, ino, name, value, XattrMode::Create).await.expect("names differ in case");
        }
        assert_eq!(meta.get_xattr(&root, ino, b"user.K").await.expect("there"), "upper");
        let large = vec![7; 65_536];
        match options.kind {
            ServerKind::Mysql => {
                let refused = meta.set_xattr(&root, ino, b"user.large", &large, XattrMode::Set).await;
                let fault = fault_of(refused.expect_err("longer than its column"));
                assert!(fault.to_string().contains("65535"), "{fault}");
            }
            ServerKind::Postgres => {
                meta.set_xattr(&root, ino, b"user.large", &large, XattrMode::Set).await.expect("it fits");
            }
        }
        let mtime = Timestamp::new(1_600_000_000, 123_456_789);
        let set = crate::meta::ops::attr::SetAttr {
            mtime: Some(crate::meta::ops::attr::SetTime::At(mtime)),
            ..Default::default()
        };
        meta.setattr(&root, ino, &set).await.expect("set");
        assert_eq!(meta.getattr(ino).await.expect("there").mtime, mtime);
    }
}

/// In a table of the peer's, whose names fold: one of the two is refused, and the other one stays.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn names_that_a_table_does_not_tell_apart_are_refused() {
    if !installed(&Mariadb::PROGRAMS) {
        return;
    }
    let options = next_mysql();
    let meta = client(&options).await;
    let sql = "ALTER TABLE jfs_xattr MODIFY name VARCHAR(255) CHARACTER SET latin1 COLLATE latin1_swedish_ci NOT NULL";
    Mariadb::shared().execute(&format!("USE {}; {sql}", options.database));
    let (ino, root) = (file(&meta, "f").await, Caller::root());
    meta.set_xattr(&root, ino, b"user.K", b"upper", XattrMode::Set).await.expect("set");
    let refused =
        meta.set_xattr(&root, ino, b"user.k", b"lower", XattrMode::Set).await.expect_err("it would be the same");
    assert!(refused.to_string().contains("but for its case"), "{refused}");
    assert_eq!(meta.get_xattr(&root, ino, b"user.K").await.expect("there"), "upper");
    assert_eq!(meta.get_xattr(&root, ino, b"user.k").await.expect_err("not there").errno(), Errno::ENODATA);
}

/// A server that was restarted while nothing was asked, and while something was.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restarted_server_is_used_again() {
    if !installed(&Postgres::PROGRAMS) {
        return;
    }
    let mut server = Postgres::start_with(&["fsync=off"]);
    let options = server_options(ServerKind::Postgres, server.port, server.next_database());
    let meta = client(&options).await;
    file(&meta, "before").await;
    let server = tokio::task::spawn_blocking(move || {
        server.restart();
        server
    });
    let _server = server.await.expect("restarted");
    let ino = file(&meta, "after").await;
    assert_eq!(meta.getattr(ino).await.expect("there").nlink, 1);
    let batch = Batch { guards: Vec::new(), changes: vec![Change::Delete(Key::Attr(ino))] };
    let (txn, _) = meta.engine().begin(&[]).await.expect("begun");
    txn.commit(batch).await.expect("committed");
}

#[tokio::test]
async fn what_is_wrong_with_an_address_is_said() {
    if !installed(&Postgres::PROGRAMS) || !installed(&Mariadb::PROGRAMS) {
        return;
    }
    for good in fresh() {
        for (bad, kind) in [
            (ServerOptions { password: Some("hunter2".into()), ..good.clone() }, FaultKind::Denied),
            (ServerOptions { database: "nowhere".into(), ..good.clone() }, FaultKind::Config),
            (ServerOptions { port: 1, ..good.clone() }, FaultKind::Unavailable),
            (ServerOptions { tls: Tls::Unverified, ..good.clone() }, FaultKind::Config),
            (ServerOptions { table_prefix: Some("a`b".into()), ..good.clone() }, FaultKind::Config),
        ] {
            let begun = Instant::now();
            let Err(EngineError::Fault(fault)) = ServerEngine::open(&bad).await else { panic!("opened: {bad:?}") };
            assert_eq!(fault.kind(), kind, "{fault}");
            assert!(!fault.to_string().contains("hunter2"), "{fault}");
            assert!(begun.elapsed().as_secs() < 10, "{fault}");
        }
    }
}

/// Many clients see at the same moment that their directory is to be touched: the first one does it, and the others need
/// neither touch it nor wait for each other's commits.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn who_comes_late_leaves_the_touch_and_waits_for_nobody() {
    const SHORT: Duration = Duration::from_millis(1500);
    for options in fresh() {
        let meta = client(&options).await;
        let engine = ServerEngine::open(&options).await.expect("the server of the tests");
        let seen = meta.getattr(Ino::ROOT).await.expect("there");
        let times = |seconds: i64| Timestamp::new(seen.mtime.seconds + seconds, 5000);
        let touch = |now, since| AttrPatch::new().touch_unless_fresh(now, since);
        let commit = async |patch: AttrPatch, uid: u32| {
            let kind = Guard::Fields(Ino::ROOT, seen, FieldMask::KIND | FieldMask::MODE);
            let other = Change::Put(Key::Counter(Counter::NextSession), Record::Number(uid.into()));
            let batch = Batch { guards: vec![kind], changes: vec![other, Change::Patch(Ino::ROOT, patch)] };
            let (txn, _) = engine.begin(&[]).await.expect("begun");
            txn.commit(batch).await.expect("committed");
            let counted = engine.read(&[Key::Counter(Counter::NextSession)]).await.expect("read").pop().flatten();
            assert_eq!(counted, Some(Record::Number(uid.into())), "the rest is done in any case");
            let attr = meta.getattr(Ino::ROOT).await.expect("there");
            (attr.mtime, attr.uid)
        };
        let name = options.kind.name();
        assert_eq!(commit(touch(times(10), times(9)), 1).await.0, times(10), "{name}: it was due");
        assert_eq!(commit(touch(times(11), times(9)), 2).await.0, times(10), "{name}: somebody has touched it");
        assert_eq!(commit(touch(times(20), times(10)), 3).await.0, times(20), "{name}: that moment counts as before");
        let more = touch(times(21), times(9)).set_uid(5);
        assert_eq!(commit(more, 4).await, (times(21), 5), "{name}: more than a touch is no touch");

        // Others are in the middle of commits that guard the directory, or were too late to touch it.
        let (sleep, kept) = match options.kind {
            ServerKind::Postgres => ("SELECT pg_sleep(3)", "FOR SHARE"),
            ServerKind::Mysql => ("SELECT SLEEP(3)", "FOR UPDATE"),
        };
        let late = format!("AND mtime <= {}", seen.mtime.as_nanos() / 1000);
        let row = format!("SELECT 1 FROM {} WHERE inode >= 1 AND inode <= 1", engine.0.table("node"));
        let condition = if kept == "FOR SHARE" { "" } else { &late };
        let other = format!("{}; {row} {condition} {kept}; {sleep}; COMMIT", engine.0.dialect.begin);
        let holder = tokio::spawn({
            let engine = engine.clone();
            async move { engine.0.driver.run(other, "hold").await.map(drop) }
        });
        tokio::time::sleep(Duration::from_millis(500)).await;
        let begun = Instant::now();
        assert_eq!(commit(touch(times(30), times(9)), 5).await.0, times(21), "{name}");
        assert!(begun.elapsed() < SHORT, "{name}: waited for {:?}", begun.elapsed());
        assert!(holder.await.expect("its task").is_ok(), "{name}");
    }
}
