//! MySQL, MariaDB and PostgreSQL: one engine over a database server, shared with any number of mounts and with JuiceFS.
//!
//! Everything is a [`script`]: a load is one text with a query for each family of keys, a commit one text that locks and
//! compares what is guarded, changes what is to be changed, and commits. So each takes one trip, whatever it is about,
//! and nothing is locked while a client thinks.
//!
//! **How a commit keeps the contract.** It runs under READ COMMITTED, so each statement sees what was committed before
//! it. First the nodes that it is about are locked, in the order of their numbers: for change if the batch changes them
//! (or their locks), shared if it only guards some of their fields; in the same statement the guarded fields are
//! compared, and a node that is not as it was makes the script fail. Then the other records that are guarded are locked
//! and compared. What nobody may have put meanwhile is kept out by unique indexes, an empty directory by the lock of its
//! node, which every client takes to put an entry into it. Shared locks let siblings work in one directory at the same
//! time; only who touches its times or links waits for them.
//! A script that failed for what it required, for a duplicate or for a deadlock is a conflict, and the driver of
//! operations begins anew.
//!
//! **What is not in the transaction** are the counters of the volume's usage and the statistics of directories, whose rows
//! every commit (in the directory) would lock until it is on disk: they are gathered
//! ([`crate::meta::engine::gathered`]).
//!
//! Left to others: durability is the server's (`synchronous_commit`, `innodb_flush_log_at_trx_commit`). No statement is
//! prepared on the server, so a PgBouncer may pool by transaction, if it lets `SET` at connect apply to all of them.
//!
//! Road not taken: prepared statements one after the other inside `BEGIN … COMMIT`, the way a driver is commonly used: a
//! trip for each, and locks held over all of them.

mod commit;
mod driver;
mod layout;
mod load;
mod pool;
mod scan;
mod script;
#[cfg(test)]
mod tests;

use super::dialect::{MYSQL, POSTGRES, ServerDialect};
use super::records::{counter_name, counter_shift};
use super::schema;
use super::texts::Texts;
use crate::base::{Fault, FaultKind, Ino, Name};
use crate::meta::engine::gathered::{Gathered, Gathers, flush, flush_while_alive, is_named_by, take_note, wanted};
use crate::meta::engine::{
    Batch, Change, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan,
};
use crate::meta::record::{Counter, Key, Record};
use async_trait::async_trait;
use driver::{Driver, Failed};
use script::Script;
use std::path::PathBuf;
use std::sync::Arc;

/// What a column of the type BLOB holds.
const MYSQL_XATTR_BYTES_MAX: usize = 65_535;

/// Which database it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ServerKind {
    /// MySQL or MariaDB.
    Mysql,
    Postgres,
}

/// How far a connection is secured.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Tls {
    #[default]
    Off,
    /// If the server has it.
    Preferred,
    /// Encrypted, whoever the server is.
    Unverified,
    /// The server's certificate is signed by an authority that is trusted.
    Authority,
    /// And is made out for its name.
    Full,
}

/// Where the server is, and how to talk to it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerOptions {
    pub kind: ServerKind,
    pub host: String,
    pub port: u16,
    /// Instead of host and port. For PostgreSQL the directory of the socket.
    pub socket: Option<PathBuf>,
    pub username: Option<String>,
    pub password: Option<String>,
    pub database: String,
    /// Puts the volume's tables under names of their own, so that a database may hold several volumes.
    pub table_prefix: Option<String>,
    /// PostgreSQL: the schema of the tables.
    pub search_path: Option<String>,
    pub tls: Tls,
    pub authority_file: Option<PathBuf>,
    pub certificate_file: Option<PathBuf>,
    pub key_file: Option<PathBuf>,
    /// 0: as many as the engine finds right.
    pub max_open_conns: u32,
    /// Unused connections that are kept; where nothing is said, all.
    pub max_idle_conns: Option<u32>,
    pub max_idle_seconds: Option<u64>,
    pub max_life_seconds: Option<u64>,
}

impl ServerKind {
    pub fn name(self) -> &'static str {
        match self {
            ServerKind::Mysql => "mysql",
            ServerKind::Postgres => "postgres",
        }
    }

    fn dialect(self) -> &'static ServerDialect {
        match self {
            ServerKind::Mysql => &MYSQL,
            ServerKind::Postgres => &POSTGRES,
        }
    }
}

impl ServerOptions {
    fn address(&self) -> String {
        match &self.socket {
            Some(socket) => format!("{}/{}", socket.display(), self.database),
            None => format!("{}:{}/{}", self.host, self.port, self.database),
        }
    }
}

/// One volume in a database; clones share everything.
#[derive(Clone)]
pub struct ServerEngine(Arc<Shared>);

struct Shared {
    driver: Arc<Driver>,
    kind: ServerKind,
    dialect: &'static ServerDialect,
    prefix: String,
    texts: Texts,
    usage: Gathered,
}

impl ServerEngine {
    /// Connects to the server and sees whether it serves. A database without a volume is one without records.
    pub async fn open(options: &ServerOptions) -> EngineResult<ServerEngine> {
        if let Some(prefix) = &options.table_prefix
            && !prefix.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        {
            let fault = Fault::config("open database").with("engine", options.kind.name());
            return Err(fault.with("because", "table_prefix may hold letters, digits, '_' and '-'").into());
        }
        let driver = Arc::new(Driver::new(options)?);
        driver.check().await.map_err(|failed| read_error(failed, "connect"))?;
        let dialect = options.kind.dialect();
        let prefix = schema::prefix(options.table_prefix.as_deref());
        let texts = Texts::new(&dialect.of, &prefix);
        let shared = Shared { driver, kind: options.kind, dialect, prefix, texts, usage: Gathered::default() };
        let shared = Arc::new(shared);
        flush_while_alive(Arc::downgrade(&shared));
        Ok(ServerEngine(shared))
    }
}

/// Of a request that changes nothing.
fn read_error(failed: Failed, attempted: &'static str) -> EngineError {
    match failed {
        Failed::Conflict => EngineError::Conflict,
        Failed::Broken(fault) | Failed::Fault(fault) => EngineError::Fault(fault),
        Failed::MissingTable => {
            EngineError::Fault(Fault::not_found(attempted).with("because", "the database holds no volume"))
        }
    }
}

/// Of a request that changes something, and was sent.
fn write_error(failed: Failed, attempted: &'static str) -> EngineError {
    match failed {
        Failed::Broken(fault) => EngineError::Undetermined(Fault::undetermined(attempted).source(fault)),
        failed => read_error(failed, attempted),
    }
}

impl Shared {
    fn script(&self) -> Script {
        Script::new(self.dialect)
    }

    /// A table's name as it stands in statements.
    fn table(&self, name: &str) -> String {
        self.dialect.of.quoted(&format!("{}{name}", self.prefix))
    }

    fn fault(&self, kind: FaultKind, attempted: &'static str) -> Fault {
        self.driver.fault(kind, attempted)
    }

    /// A transaction of its own; answers the stored number afterwards.
    async fn add_counter(&self, counter: Counter, delta: i64) -> EngineResult<i64> {
        let Some(name) = counter_name(counter) else {
            return Err(self
                .fault(FaultKind::Internal, "add to a counter")
                .with("counter", format!("{counter:?}"))
                .into());
        };
        let mut script = self.script();
        script.raw(self.dialect.begin);
        commit::add_to_counter(&mut script, self.dialect, &self.table("counter"), name, counter, delta);
        let answer = script.add(&self.texts.counter, &[script::Value::Text(name.as_bytes())]);
        script.raw("COMMIT");
        let answers = self.driver.run(script.text, "add to a counter").await;
        let answers = answers.map_err(|failed| write_error(failed, "add to a counter"))?;
        use super::rows::Columns;
        match answers.get(answer).and_then(|rows| rows.first()?.int(0)) {
            Some(value) => Ok(value),
            None => {
                Err(self.fault(FaultKind::Internal, "add to a counter").source("an answer of another shape").into())
            }
        }
    }

    /// As `add_counter`, again after conflicts: nobody above tries again.
    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        const TRIES: u32 = 20;
        let signed = i64::try_from(count).map_err(|_| self.fault(FaultKind::Internal, "allocate ids"))?;
        for attempt in 0.. {
            let after = match counter {
                Counter::AclMaxId => self.allocate_rules(count).await,
                _ => self.add_counter(counter, signed).await.map(|after| after - counter_shift(counter)),
            };
            match after {
                // Ids that nobody heard of are lost, which the format allows.
                Err(EngineError::Conflict | EngineError::Undetermined(_)) if attempt < TRIES => {
                    let ceiling = 1u64 << attempt.min(7);
                    let pause = crate::util::rng::random_range(0..=ceiling);
                    tokio::time::sleep(std::time::Duration::from_millis(pause)).await;
                }
                after => return Ok((after? - signed + 1) as u64),
            }
        }
        unreachable!("the last attempt returns")
    }
}

impl Gathers for Shared {
    fn gathered(&self) -> &Gathered {
        &self.usage
    }

    fn tidy(&self) {
        self.driver.tidy();
    }

    async fn store(&self, changes: Vec<Change>) -> EngineResult<()> {
        self.commit(&Batch { guards: Vec::new(), changes }, true).await.map(drop)
    }
}

#[async_trait]
impl Engine for ServerEngine {
    fn name(&self) -> &'static str {
        self.0.kind.name()
    }

    fn unstorable_xattr(&self, name: &Name, value: &[u8]) -> Option<&'static str> {
        if std::str::from_utf8(name.as_bytes()).is_err() {
            return Some("only names that are text (UTF-8)");
        }
        let too_long = self.0.kind == ServerKind::Mysql && value.len() > MYSQL_XATTR_BYTES_MAX;
        too_long.then_some("no attribute of more than 65535 bytes")
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.0.complete_layout().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        if !wanted(keys) {
            return self.0.load(keys).await;
        }
        let _still = self.0.usage.still().await;
        let mut records = self.0.load(keys).await?;
        self.0.usage.add_to(keys, &mut records);
        Ok(records)
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        self.0.lookup(parent, name).await.map(Some)
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let mut txn = ServerTxn(self.0.clone());
        let records = txn.load(first).await?;
        Ok((Box::new(txn), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        if matches!(scan, Scan::DirStats) {
            flush(&*self.0).await?;
        }
        self.0.scan(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.0.scan_plus(dir, after, limit).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.0.allocate(counter, count).await
    }

    /// The usage that was gathered; everything else is as durable as the server is when its commit is answered.
    async fn sync(&self) -> EngineResult<()> {
        flush(&*self.0).await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.0.usage.forget();
        self.0.erase_layout().await
    }
}

/// A handle: the guards of the commit carry all that a transaction knows.
struct ServerTxn(Arc<Shared>);

#[async_trait]
impl EngineTxn for ServerTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        // Who decides on the usage of the volume decides on what is stored.
        if wanted(keys) {
            flush(&*self.0).await?;
        }
        self.0.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let whole = is_named_by(&batch);
        if whole {
            flush(&*self.0).await?;
        }
        let reports = self.0.commit(&batch, whole).await?;
        take_note(&*self.0, &batch.changes, whole).await;
        Ok(reports)
    }
}
