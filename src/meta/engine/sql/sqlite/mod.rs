//! The SQLite engine: one database file, in WAL mode, shared with other mounts of this machine and with JuiceFS.
//!
//! Promises: loads are snapshots and never wait for commits; commits of this process queue in order and never compete;
//! nobody is told "database is locked", for what another process holds is waited for up to a deadline. Leaves to others:
//! durability against power loss of each single commit (see [`writer`]), and files on network file systems, on which
//! SQLite's locks do not work.
//!
//! **Blocking calls on async threads** are deliberate. A lookup takes some microseconds on pages that the system has in
//! its cache, a hop to a blocking pool ten times that; cold pages come from a local disk, as they would for any
//! `stat`. What can take long (locks of other processes, syncs, checkpoints) happens on other threads or is awaited.
//!
//! Road not taken: one connection per operation with `BEGIN IMMEDIATE` around the decision, as a server would be used.
//! Decisions await between their loads, and a lock held across that would serialise all mounts.
//!
//! Never open or close the database or its `-shm` file by other means in this process: POSIX drops all of a process's
//! locks on a file when any of its descriptors is closed. Open the engine after a daemon has forked, not before.

mod change;
mod checkpoint;
mod connection;
mod fault;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
mod layout;
mod read;
mod writer;

#[cfg(test)]
mod tests;

use super::dialect::SQLITE;
use super::schema;
use super::texts::Texts;
use crate::base::{Fault, Ino};
use crate::meta::engine::{
    Batch, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Page, PlusPage, Scan,
};
use crate::meta::record::{Counter, Key, Record};
use async_trait::async_trait;
use connection::Readers;
use fault::Failed;
use read::Reading;
use rusqlite::Connection;
use std::io;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};
use writer::{Answer, BUSY_DEADLINE, Work, Writer};

/// What a `sqlite3://` URL may ask for beside the path.
#[derive(Clone, Debug, Default)]
pub struct SqliteOptions {
    /// Puts the volume's tables under names of their own, so that one file may hold several volumes.
    pub table_prefix: Option<String>,
}

/// One volume in a database file; clones share everything.
#[derive(Clone)]
pub struct SqliteEngine(Arc<Shared>);

struct Shared {
    volume: Arc<Volume>,
    readers: Arc<Readers>,
    writer: Arc<Writer>,
    syncs: Syncs,
}

/// Which volume in which file.
struct Volume {
    path: PathBuf,
    prefix: String,
    texts: Texts,
}

impl Volume {
    fn reading<'a>(&'a self, conn: &'a Connection) -> Reading<'a> {
        Reading { conn, texts: &self.texts, prefix: &self.prefix }
    }

    fn exists(&self) -> bool {
        self.path.exists()
    }

    fn missing(&self, attempted: &'static str) -> Fault {
        Fault::not_found(attempted)
            .with("engine", "sqlite")
            .with("path", self.path.display())
            .with("because", "there is no such file")
    }
}

impl SqliteEngine {
    /// Opens a database file. One that is not there is a volume without records until `prepare` makes it, so that a
    /// mistyped path leaves no empty file behind; its directory must exist.
    pub fn open(path: &Path, options: SqliteOptions) -> Result<SqliteEngine, Fault> {
        let fault = |because: &str| {
            Fault::config("open database")
                .with("engine", "sqlite")
                .with("path", path.display())
                .with("because", because)
        };
        if let Some(prefix) = &options.table_prefix
            && !prefix.chars().all(|c| c.is_ascii_alphanumeric() || matches!(c, '_' | '-'))
        {
            return Err(fault("table_prefix may hold letters, digits, '_' and '-'"));
        }
        // An absolute path also keeps SQLite from seeing `:memory:` or a URI in it, and survives a change of directory.
        let absolute = std::path::absolute(path).map_err(|error| fault("the path is not usable").source(error))?;
        if absolute.is_dir() {
            return Err(fault("the path is a directory"));
        }
        if !absolute.parent().is_some_and(Path::is_dir) {
            return Err(fault("the directory of the database file does not exist"));
        }
        let prefix = schema::prefix(options.table_prefix.as_deref());
        let texts = Texts::new(&SQLITE, &prefix);
        let volume = Arc::new(Volume { path: absolute.clone(), prefix, texts });
        let readers = Arc::new(Readers::new(absolute));
        if volume.exists() {
            // What is no database should be said now, not by the first lookup.
            match readers.with(|conn| Ok(conn.query_row("SELECT COUNT(*) FROM sqlite_master", (), |_| Ok(()))?)) {
                Ok(()) => {}
                Err(failed) if failed.busy() => {}
                Err(Failed::Sqlite(error)) => return Err(fault::fault_of(error, "open database", &volume.path)),
                Err(Failed::Fault(fault)) => return Err(fault),
                Err(Failed::Conflict) => unreachable!("nothing was guarded"),
            }
        }
        let writer = Writer::start(volume.clone(), readers.clone())?;
        Ok(SqliteEngine(Arc::new(Shared { volume, readers, writer, syncs: Syncs::default() })))
    }
}

impl Drop for Shared {
    fn drop(&mut self) {
        self.writer.close();
    }
}

/// The first pause of a read that met a lock; they grow to the longest.
const READ_PAUSE_FIRST: Duration = Duration::from_micros(200);
const READ_PAUSE_MAX: Duration = Duration::from_millis(20);

impl Shared {
    /// Reads in place. Readers meet a lock only while another process recovers the log or closes the file as the last
    /// one; that is awaited. `None`: there is no such volume.
    async fn read<T>(
        &self,
        attempted: &'static str,
        read: impl Fn(&Reading<'_>) -> Result<T, Failed>,
    ) -> EngineResult<Option<T>> {
        let mut since = None;
        let mut pause = READ_PAUSE_FIRST;
        loop {
            match self.read_once(&read) {
                Ok(answer) => return Ok(Some(answer)),
                Err(failed) if failed.table_missing() || (failed.cannot_open() && !self.volume.exists()) => {
                    return Ok(None);
                }
                Err(failed) if failed.busy() && since.get_or_insert_with(Instant::now).elapsed() < BUSY_DEADLINE => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(READ_PAUSE_MAX);
                }
                Err(failed) => return Err(failed.into_engine_error(attempted, &self.volume.path)),
            }
        }
    }

    fn read_once<T>(&self, read: &impl Fn(&Reading<'_>) -> Result<T, Failed>) -> Result<T, Failed> {
        if let Some(held) = self.writer.borrow()
            && let Some(conn) = held.as_ref()
        {
            self.readers.count();
            return read(&self.volume.reading(conn));
        }
        self.readers.with(|conn| read(&self.volume.reading(conn)))
    }

    async fn load(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let records = self.read("load records", |reading| reading.snapshot(keys)).await?;
        Ok(records.unwrap_or_else(|| vec![None; keys.len()]))
    }
}

fn unfit(answer: &'static str) -> EngineError {
    Fault::internal("await writer").with("engine", "sqlite").with("expected", answer).into()
}

#[async_trait]
impl Engine for SqliteEngine {
    fn name(&self) -> &'static str {
        "sqlite"
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.0.writer.submit(Work::Prepare).await.map(|_| ())
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.0.load(keys).await
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let records = if first.is_empty() { Vec::new() } else { self.0.load(first).await? };
        Ok((Box::new(SqliteTxn(self.0.clone())), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        let page = self.0.read("scan records", |reading| reading.scan(scan, after, limit)).await?;
        Ok(page.unwrap_or_default())
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        let page = self.0.read("scan directory", |reading| reading.scan_plus(dir, after, limit)).await?;
        Ok(page.unwrap_or_default())
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        match self.0.writer.submit(Work::Allocate(counter, count)).await? {
            Answer::First(first) => Ok(first),
            Answer::Committed(_) | Answer::Done => Err(unfit("first id")),
        }
    }

    async fn sync(&self) -> EngineResult<()> {
        Ok(self.0.syncs.sync(&self.0.volume.path).await?)
    }

    async fn erase(&self) -> EngineResult<()> {
        if !self.0.volume.exists() {
            return Ok(());
        }
        self.0.writer.submit(Work::Erase).await.map(|_| ())
    }
}

/// Loads see the database as it is; the guards of the commit make up for it.
struct SqliteTxn(Arc<Shared>);

#[async_trait]
impl EngineTxn for SqliteTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.0.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        match self.0.writer.submit(Work::Commit(batch)).await? {
            Answer::Committed(committed) => Ok(committed),
            Answer::First(_) | Answer::Done => Err(unfit("commit")),
        }
    }
}

/// Syncs of the log, shared by those who ask at the same time.
#[derive(Default)]
struct Syncs {
    asked: AtomicU64,
    /// The latest request that a finished sync covers; held during a sync.
    covered: tokio::sync::Mutex<u64>,
}

impl Syncs {
    async fn sync(&self, path: &Path) -> Result<(), Fault> {
        let mine = self.asked.fetch_add(1, Ordering::SeqCst) + 1;
        let fault = |fault: Fault| fault.with("engine", "sqlite").with("path", path.display());
        let work = async {
            let mut covered = self.covered.lock().await;
            if *covered >= mine {
                return Ok(());
            }
            let all = self.asked.load(Ordering::SeqCst);
            let mut log = path.as_os_str().to_owned();
            log.push("-wal");
            // What is no longer in the log was synced on its way into the database. Closing this file drops locks on
            // the log alone, and SQLite keeps its locks on the other files.
            let synced = tokio::task::spawn_blocking(move || match std::fs::File::open(log) {
                Ok(log) => log.sync_data(),
                Err(error) if error.kind() == io::ErrorKind::NotFound => Ok(()),
                Err(error) => Err(error),
            });
            match synced.await {
                Ok(Ok(())) => {
                    *covered = all;
                    Ok(())
                }
                Ok(Err(error)) => Err(fault(Fault::unavailable("sync log").source(error))),
                Err(error) => Err(fault(Fault::internal("sync log").source(error))),
            }
        };
        match tokio::time::timeout(BUSY_DEADLINE, work).await {
            Ok(done) => done,
            Err(_) => Err(fault(Fault::timeout("sync log"))),
        }
    }
}
