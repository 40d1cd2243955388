//! For unit tests: fresh volumes on the engine under test, which `SLUICE_TEST_META` names: `memory` (the default),
//! `redis`, `redis-cluster`, `redis-sentinel` (a master with replicas and sentinels), `redis-plain` (a server that takes
//! no scripts), `sqlite`, `mysql`, `postgres`, `etcd` or `tikv`. What a test needs of an engine it asks for here, so that it runs on each of them;
//! `engines_tests` sees to that.
//!
//! Redis is one server for the whole test process, without persistence, started at the first use and ended with the
//! process whatever its end; each store is a database of it. A SQLite store is a file in a directory of its own, one in
//! etcd or TiKV a prefix of a server that is shared alike (TiKV's is `tests/tikv`, in this process).

mod engines_tests;
pub mod paths;

use super::engine::mem::MemEngine;
use super::engine::sql::server::{ServerEngine, ServerKind, ServerOptions, Tls};
use super::engine::{
    Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan,
};
use super::ops::create::NewNode;
use super::record::{Counter, Key, Record};
use super::txn::{AttrOf, Operation, Tx};
use super::{Caller, Meta, MetaSettings, Rules};
use crate::base::{AttrPatch, Fault, Ino, Kind, Name, Outcome, SessionId, SliceId};
use crate::util::clock::{SharedClock, SystemClock};
use async_trait::async_trait;
use futures::future::BoxFuture;
use parking_lot::Mutex;
use sluice_test_servers::mariadb::Mariadb;
use sluice_test_servers::postgres::Postgres;
use sluice_test_servers::redis as servers;
pub use sluice_test_servers::{program, skip};
use std::future::Future;
use std::path::PathBuf;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;
use tokio::sync::OnceCell;

/// Names the engine under test.
pub const ENGINE_VARIABLE: &str = "SLUICE_TEST_META";

pub fn engine_under_test() -> String {
    std::env::var(ENGINE_VARIABLE).unwrap_or_else(|_| "memory".to_owned())
}

pub fn is_in_memory() -> bool {
    engine_under_test() == "memory"
}

/// How many random cases or steps to take where memory takes `in_memory`: a server or a file takes longer.
pub fn cases(in_memory: u32) -> u32 {
    if is_in_memory() { in_memory } else { in_memory.div_ceil(4) }
}

/// Runs a test's future where no attribute can: in the cases of proptest.
pub fn block_on<T>(future: impl Future<Output = T>) -> T {
    tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime").block_on(future)
}

/// A fresh, empty place for one volume on the engine under test. Each client of it has an engine of its own, as mounts
/// have.
#[derive(Clone)]
pub struct Store(Arc<Place>);

/// See `Store::stored_bytes`.
pub enum StoredBytes {
    Redis(String),
    Sqlite(PathBuf),
}

/// The file of a SQLite store.
const DATABASE: &str = "meta.db";

enum Place {
    Memory(MemEngine),
    /// The URL of a database.
    Redis(String),
    /// The same in a cluster, where the keys have a prefix, or by sentinels: no single server has it.
    RedisOfMany(String),
    Sqlite(TempDir),
    /// The URL of a prefix.
    Etcd(String),
    Tikv(String),
    /// A database of a server.
    Server(ServerOptions),
}

/// A database of the test server, over TCP.
pub fn server_options(kind: ServerKind, port: u16, database: String) -> ServerOptions {
    ServerOptions {
        kind,
        host: "127.0.0.1".to_owned(),
        port,
        socket: None,
        username: Some(sluice_test_servers::mariadb::USER.to_owned()),
        password: Some(sluice_test_servers::mariadb::PASSWORD.to_owned()),
        database,
        table_prefix: None,
        search_path: None,
        tls: Tls::Off,
        authority_file: None,
        certificate_file: None,
        key_file: None,
        max_open_conns: 0,
        max_idle_conns: None,
        max_idle_seconds: None,
        max_life_seconds: None,
    }
}

pub fn next_mysql() -> ServerOptions {
    let server = Mariadb::shared();
    server_options(ServerKind::Mysql, server.port, server.next_database())
}

pub fn next_postgres() -> ServerOptions {
    // A schema is made faster than a database.
    let server = Postgres::shared();
    let options = server_options(ServerKind::Postgres, server.port, "postgres".to_owned());
    ServerOptions { search_path: Some(server.next_schema()), ..options }
}

impl Store {
    pub async fn new() -> Store {
        Store(Arc::new(match engine_under_test().as_str() {
            "memory" => Place::Memory(MemEngine::default()),
            "redis" => Place::Redis(RedisServer::shared().await.next_database()),
            "redis-cluster" => Place::RedisOfMany(servers::Cluster::shared().next_url()),
            "redis-sentinel" => Place::RedisOfMany(servers::Watched::shared().next_url()),
            "redis-plain" => Place::Redis(servers::Redis::shared_without_scripts().next_url()),
            "sqlite" => Place::Sqlite(tempfile::tempdir().expect("a temporary directory")),
            "mysql" => Place::Server(next_mysql()),
            "postgres" => Place::Server(next_postgres()),
            "etcd" => Place::Etcd(sluice_test_servers::etcd::Etcd::shared().next_url()),
            "tikv" => Place::Tikv(next_tikv_path()),
            other => {
                panic!(
                    "{ENGINE_VARIABLE}={other}: it may be memory, redis, redis-cluster, redis-sentinel, redis-plain, sqlite, mysql, postgres, etcd or tikv"
                )
            }
        }))
    }

    /// The engine of one more client.
    pub async fn engine(&self) -> Arc<dyn Engine> {
        Arc::new(self.open().await)
    }

    /// The same, with usage that is stored when mounts store it: a moment later, or at `sync`.
    pub async fn gathering_engine(&self) -> Arc<dyn Engine> {
        Arc::new(TestEngine { gathers_usage: false, ..self.open().await })
    }

    /// The same, losing the reply of three commits in five.
    pub async fn lossy_engine(&self) -> Arc<dyn Engine> {
        Arc::new(TestEngine { commits: Some(Arc::default()), ..self.open().await })
    }

    /// The same, unable to list the chunks of a file whatever the engine can do.
    pub async fn unlisted_engine(&self) -> Arc<dyn Engine> {
        Arc::new(TestEngine { lists_chunks_of_file: false, ..self.open().await })
    }

    /// The same, taking little in one commit: what an operation changes anyway, and `BOUNDED_BATCH` records of a list.
    pub async fn bounded_engine(&self) -> Arc<dyn Engine> {
        Arc::new(TestEngine { batch_max: BOUNDED_BATCH, ..self.open().await })
    }

    /// As a mount has it: what the engine gathers is stored when the engine finds it right, not after each commit.
    pub async fn unsynced_engine(&self) -> Arc<dyn Engine> {
        Arc::new(TestEngine { gathers_usage: false, ..self.open().await })
    }

    /// The same, with a way to get in before it commits.
    pub async fn interrupted_engine(&self) -> (Arc<dyn Engine>, Interrupt) {
        let interrupt = Interrupt::default();
        (Arc::new(TestEngine { interrupt: Some(interrupt.clone()), ..self.open().await }), interrupt)
    }

    /// One more client of the volume, which is made if it is not there yet.
    pub async fn client(&self, clock: SharedClock) -> Arc<Meta> {
        volume_on(self.engine().await, clock).await
    }

    /// Where the bytes of the volume lie, for tests that damage them; `None` in memory.
    pub fn stored_bytes(&self) -> Option<StoredBytes> {
        match &*self.0 {
            Place::Memory(_) | Place::RedisOfMany(_) | Place::Etcd(_) | Place::Tikv(_) => None,
            Place::Redis(url) => Some(StoredBytes::Redis(url.clone())),
            Place::Sqlite(dir) => Some(StoredBytes::Sqlite(dir.path().join(DATABASE))),
            Place::Server(_) => None,
        }
    }

    /// A client that makes nothing and registers nowhere.
    pub async fn client_of_what_is_there(&self) -> Arc<Meta> {
        let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
        Meta::new(self.engine().await, Arc::new(SystemClock), settings, plain_rules())
    }

    async fn open(&self) -> TestEngine {
        let inner: Arc<dyn Engine> = match &*self.0 {
            Place::Memory(engine) => Arc::new(engine.clone()),
            #[cfg(feature = "redis")]
            Place::Redis(url) | Place::RedisOfMany(url) => {
                super::engine::redis::RedisEngine::open(url).await.expect("the server of the tests")
            }
            #[cfg(all(feature = "mysql", feature = "postgres"))]
            Place::Server(options) => Arc::new(ServerEngine::open(options).await.expect("the server of the tests")),
            #[cfg(feature = "sqlite")]
            Place::Sqlite(dir) => {
                use super::engine::sql::sqlite::{SqliteEngine, SqliteOptions};
                let path = dir.path().join(DATABASE);
                Arc::new(SqliteEngine::open(&path, SqliteOptions::default()).expect("a database in a fresh directory"))
            }
            #[cfg(feature = "etcd")]
            Place::Etcd(url) => {
                use super::engine::kv::{etcd, tests::etcd_options};
                Arc::new(etcd::open(&etcd_options(url)).await.expect("the server of the tests"))
            }
            #[cfg(feature = "tikv")]
            Place::Tikv(path) => {
                use super::engine::kv::tikv;
                let options = super::engine::kv::tests::on_tikv::options(tikv_server(), path);
                Arc::new(tikv::open(&options).await.expect("the server of the tests"))
            }
            #[cfg(not(all(
                feature = "redis",
                feature = "sqlite",
                feature = "etcd",
                feature = "tikv",
                feature = "mysql",
                feature = "postgres"
            )))]
            _ => panic!("{} is not built in", engine_under_test()),
        };
        let inner = paths::wrap(inner);
        let lists_chunks_of_file = inner.lists_chunks_of_file();
        let gathers_usage = matches!(*self.0, Place::Etcd(_) | Place::Tikv(_) | Place::Server(_));
        let place = self.0.clone();
        let batch_max = inner.batch_max();
        TestEngine {
            inner,
            _place: place,
            commits: None,
            interrupt: None,
            lists_chunks_of_file,
            gathers_usage,
            batch_max,
        }
    }
}

/// See `Store::bounded_engine`.
pub const BOUNDED_BATCH: usize = 16;
/// What an operation changes beside a list, as `engine::kv` allows for it.
const BESIDE_LIST: usize = 28;

/// Rules of a volume without limits and without a trash.
pub fn plain_rules() -> Rules {
    Rules { trash_days: 0, capacity_bytes: 0, inodes_max: 0, acl: true, dir_stats: true }
}

/// An empty volume.
pub async fn volume() -> Arc<Meta> {
    Store::new().await.client(Arc::new(SystemClock)).await
}

/// An empty volume on an engine that loses the reply of three commits in five.
pub async fn lossy_volume() -> Arc<Meta> {
    volume_on(Store::new().await.lossy_engine().await, Arc::new(SystemClock)).await
}

/// One more client of the volume on `engine`, which is made if it is not there yet.
pub async fn volume_on(engine: Arc<dyn Engine>, clock: SharedClock) -> Arc<Meta> {
    volume_with(engine, clock, plain_rules()).await
}

/// Numbers from 1 that tests may use for slices without having been given them.
const MADE_UP_MAX: u64 = 1000;

pub async fn volume_with(engine: Arc<dyn Engine>, clock: SharedClock, rules: Rules) -> Arc<Meta> {
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let meta = Meta::new(engine, clock, settings, rules);
    meta.format(b"{}").await.expect("the engine takes a volume");
    // Tests make up the numbers of their slices.
    meta.engine().allocate(Counter::NextSlice, MADE_UP_MAX).await.expect("numbers");
    meta
}

/// An empty regular file in the root, owned by the superuser, mode 0644.
pub async fn file(meta: &Meta, name: &str) -> Ino {
    let name = Name::entry(name.as_bytes()).expect("a valid name");
    let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
    meta.create(&Caller::root(), Ino::ROOT, &name, &node).await.expect("the name is free").ino
}

/// The last name of an open file goes, whatever has become of the session: what unlink commits for a living one.
pub struct Sustain(pub Ino, pub SessionId);

impl Operation for Sustain {
    const NAME: &'static str = "sustain";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        tx.load(AttrOf(self.0)).await?.exists()?;
        tx.patch(self.0, AttrPatch::new().add_nlink(-1));
        tx.change(Change::Put(Key::Sustained(self.1, self.0), Record::Number(1)));
        Ok(())
    }
}

/// All records of a scan.
pub async fn rows(meta: &Meta, scan: Scan) -> Vec<(Key, Record)> {
    let (mut rows, mut after) = (Vec::new(), None);
    loop {
        let page = meta.engine().scan(&scan, after.as_ref(), 1000).await.expect("scan");
        rows.extend(page.rows);
        match page.next {
            Some(next) => after = Some(next),
            None => return rows,
        }
    }
}

/// The references of a slice in use. The layouts of Redis and of key-value stores have no record for a single one
/// (`Change::Put`).
pub async fn references(meta: &Meta, id: SliceId, size: u32) -> i64 {
    match meta.engine().read(&[Key::SliceRef(id, size)]).await.expect("read").pop().flatten() {
        Some(Record::Number(references)) => references,
        None if ["redis", "etcd", "tikv"].contains(&meta.engine().name()) => 1,
        other => panic!("references of {id}: {other:?}"),
    }
}

/// The TiKV of all tests of this process.
pub fn tikv_server() -> &'static sluice_test_tikv::TestTikv {
    static SERVER: std::sync::OnceLock<sluice_test_tikv::TestTikv> = std::sync::OnceLock::new();
    SERVER.get_or_init(sluice_test_tikv::TestTikv::start)
}

/// A prefix of it that nothing is stored under.
pub fn next_tikv_path() -> String {
    static TAKEN: AtomicU32 = AtomicU32::new(0);
    format!("t{}", TAKEN.fetch_add(1, Ordering::Relaxed))
}

/// The Redis server of this process.
struct RedisServer {
    socket: PathBuf,
    databases_taken: AtomicU32,
    _shell: Child,
}

const DATABASES: u32 = 4096;

/// Ends the server when the other end of its input is gone, which the kernel sees to even if the tests are killed. (The
/// signal that a parent's death can send to a child goes by threads, and those of tests are short.)
const RUN_UNTIL_END_OF_INPUT: &str = r#"
trap '' INT
"$@" & server=$!
read -r _
kill -KILL $server
rm -f "$socket"
rmdir "$dir"
"#;

impl RedisServer {
    async fn shared() -> &'static RedisServer {
        static SERVER: OnceCell<RedisServer> = OnceCell::const_new();
        SERVER.get_or_init(RedisServer::start).await
    }

    /// On a socket in a directory of its own: two test processes cannot take the same one.
    async fn start() -> RedisServer {
        let server = program("redis-server").expect("redis-server is installed where Redis is asked for");
        let dir = tempfile::tempdir().expect("a temporary directory").keep();
        let socket = dir.join("redis.sock");
        let shell = Command::new("sh")
            .args(["-c", RUN_UNTIL_END_OF_INPUT, "sh"])
            .arg(server)
            .args(["--port", "0", "--save", "", "--appendonly", "no", "--databases", &DATABASES.to_string()])
            .arg("--unixsocket")
            .arg(&socket)
            .env("socket", &socket)
            .env("dir", &dir)
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .spawn()
            .expect("a shell");
        let started = Instant::now();
        while std::os::unix::net::UnixStream::connect(&socket).is_err() {
            assert!(started.elapsed() < Duration::from_secs(30), "redis-server does not come up");
            tokio::time::sleep(Duration::from_millis(10)).await;
        }
        RedisServer { socket, databases_taken: AtomicU32::new(0), _shell: shell }
    }

    fn next_database(&self) -> String {
        let number = self.databases_taken.fetch_add(1, Ordering::Relaxed);
        assert!(number < DATABASES, "the tests need more databases");
        format!("unix://{}?db={number}", self.socket.display())
    }
}

/// A client's engine, which keeps its store, and fails on request.
struct TestEngine {
    inner: Arc<dyn Engine>,
    /// Dropped after the engine.
    _place: Arc<Place>,
    /// Counts the commits of an engine that loses replies.
    commits: Option<Arc<AtomicU64>>,
    interrupt: Option<Interrupt>,
    lists_chunks_of_file: bool,
    /// The engine stores the usage of the volume a moment after a commit (`Change::AddCounter`). Tests have one client
    /// look at what another has just done, so here it is stored with every commit.
    gathers_usage: bool,
    batch_max: usize,
}

struct TestTxn {
    inner: Box<dyn EngineTxn>,
    /// Most changes and most guards of a commit.
    most: usize,
    syncs: Option<Arc<dyn Engine>>,
    commits: Option<Arc<AtomicU64>>,
    interrupt: Option<Interrupt>,
}

/// What somebody else does at a certain moment of an operation, once.
#[derive(Clone, Default)]
pub struct Interrupt {
    before_commit: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
    after_read: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
    after_commit: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
    lost_reply: Arc<Mutex<Option<BoxFuture<'static, ()>>>>,
}

impl Interrupt {
    /// Between the loads and the commit of the next transaction.
    pub fn before_commit(&self, what: impl Future<Output = ()> + Send + 'static) {
        *self.before_commit.lock() = Some(Box::pin(what));
    }

    /// Between the next read outside of a transaction and its answer.
    pub fn after_read(&self, what: impl Future<Output = ()> + Send + 'static) {
        *self.after_read.lock() = Some(Box::pin(what));
    }

    /// Between the next commit that is applied and its reply.
    pub fn after_commit(&self, what: impl Future<Output = ()> + Send + 'static) {
        *self.after_commit.lock() = Some(Box::pin(what));
    }

    /// After the next commit that is applied, whose reply is lost.
    pub fn lost_reply(&self, what: impl Future<Output = ()> + Send + 'static) {
        *self.lost_reply.lock() = Some(Box::pin(what));
    }

    pub fn has_happened(&self) -> bool {
        let moments = [&self.before_commit, &self.after_read, &self.after_commit, &self.lost_reply];
        moments.into_iter().all(|moment| moment.lock().is_none())
    }

    async fn happen(moment: &Mutex<Option<BoxFuture<'static, ()>>>) {
        let what = moment.lock().take();
        if let Some(what) = what {
            what.await;
        }
    }
}

#[async_trait]
impl Engine for TestEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn lists_chunks_of_file(&self) -> bool {
        self.lists_chunks_of_file
    }

    fn stores_empty_values(&self) -> bool {
        self.inner.stores_empty_values()
    }

    fn unstorable_xattr(&self, name: &Name, value: &[u8]) -> Option<&'static str> {
        self.inner.unstorable_xattr(name, value)
    }

    fn batch_max(&self) -> usize {
        self.batch_max
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.inner.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let records = self.inner.read(keys).await;
        if let Some(interrupt) = &self.interrupt {
            Interrupt::happen(&interrupt.after_read).await;
        }
        records
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        self.inner.lookup(parent, name).await
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let (inner, records) = self.inner.begin(first).await?;
        let syncs = self.gathers_usage.then(|| self.inner.clone());
        let most = self.batch_max.saturating_add(BESIDE_LIST);
        Ok(match (&self.commits, &self.interrupt, syncs) {
            (None, None, None) if most == usize::MAX => (inner, records),
            (commits, interrupt, syncs) => {
                let (commits, interrupt) = (commits.clone(), interrupt.clone());
                (Box::new(TestTxn { inner, most, syncs, commits, interrupt }), records)
            }
        })
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.inner.scan_readable(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.inner.scan_plus(dir, after, limit).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.inner.allocate(counter, count).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.inner.sync().await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.inner.erase().await
    }
}

impl TestTxn {
    async fn commit_and_sync(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let (guards, changes) = (batch.guards.len(), batch.changes.len());
        assert!(guards.max(changes) <= self.most, "{guards} guards and {changes} changes in one commit: {batch:?}");
        let done = self.inner.commit(batch).await?;
        if let Some(engine) = self.syncs {
            engine.sync().await?;
        }
        Ok(done)
    }
}

#[async_trait]
impl EngineTxn for TestTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.inner.load(keys).await
    }

    /// The first commit, which makes the volume, is heard of; then replies are lost once and twice in a row, of commits
    /// that were applied and of others.
    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        if let Some(interrupt) = &self.interrupt {
            Interrupt::happen(&interrupt.before_commit).await;
        }
        let lost = || EngineError::Undetermined(Fault::undetermined("commit").with("engine", "lossy"));
        let lost_reply = self.interrupt.as_ref().map(|interrupt| interrupt.lost_reply.clone());
        if let Some(moment) = lost_reply.filter(|moment| moment.lock().is_some()) {
            self.commit_and_sync(batch).await?;
            Interrupt::happen(&moment).await;
            return Err(lost());
        }
        match self.commits.as_ref().map_or(0, |commits| commits.fetch_add(1, Ordering::Relaxed) % 5) {
            0 | 3 => {
                let interrupt = self.interrupt.clone();
                let done = self.commit_and_sync(batch).await;
                if let (Ok(_), Some(interrupt)) = (&done, &interrupt) {
                    Interrupt::happen(&interrupt.after_commit).await;
                }
                done
            }
            1 => Err(lost()),
            _ => self.commit_and_sync(batch).await.and_then(|_| Err(lost())),
        }
    }
}
