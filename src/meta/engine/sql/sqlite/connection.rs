//! Connections: how a database file is opened, and the pool of those that read.
//!
//! The pool is bounded by the threads that read, for a connection is used within one call and never across an await;
//! it keeps a few of them warm, and gives up all but one when the mount rests.

use super::fault::Failed;
use parking_lot::Mutex;
use rusqlite::{Connection, OpenFlags};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// More connections than this are not kept open between reads.
const IDLE_READERS_MAX: usize = 8;
/// In KiB. The pages that matter lie in the system's page cache anyway; this saves the copies from there.
const READER_CACHE_KIB: u32 = 2 << 10;
const WRITER_CACHE_KIB: u32 = 8 << 10;
/// Room for every statement there is.
const STATEMENTS_CACHED: usize = 128;
/// What is left of a log that once grew past this is cut off when it starts anew.
const LOG_KEPT_BYTES: u32 = 64 << 20;

/// What a connection is for.
#[derive(Clone, Copy, PartialEq, Eq)]
pub enum Role {
    Reader,
    /// Makes the file when it is not there.
    Maker,
    Writer,
    Checkpointer,
}

/// Opens a connection. No busy handler is set: who meets a lock decides by its own thread how to wait.
pub fn open(path: &Path, role: Role) -> Result<Connection, Failed> {
    // One thread uses a connection at a time, so SQLite need not lock it once more.
    let mut flags = OpenFlags::SQLITE_OPEN_READ_WRITE | OpenFlags::SQLITE_OPEN_NO_MUTEX;
    if role == Role::Maker {
        flags |= OpenFlags::SQLITE_OPEN_CREATE;
    }
    let conn = Connection::open_with_flags(path, flags)?;
    conn.busy_timeout(Duration::ZERO)?;
    conn.set_prepared_statement_cache_capacity(STATEMENTS_CACHED);
    let cache_kib = if matches!(role, Role::Writer | Role::Maker) { WRITER_CACHE_KIB } else { READER_CACHE_KIB };
    // No mmap: an I/O error would then be a signal that ends the mount instead of an answer.
    conn.execute_batch(&format!(
        "PRAGMA cache_size = -{cache_kib}; PRAGMA mmap_size = 0; PRAGMA temp_store = MEMORY; \
         PRAGMA synchronous = NORMAL; PRAGMA journal_size_limit = {LOG_KEPT_BYTES};"
    ))?;
    if role != Role::Reader {
        // Readers take the mode from the file. Checkpoints are the business of `checkpoint.rs`.
        let mode: String = conn.query_row("PRAGMA journal_mode = WAL", (), |row| row.get(0))?;
        if mode != "wal" {
            tracing::warn!(path = %path.display(), mode, "the database cannot keep a write-ahead log: reads wait for commits");
        }
        conn.execute_batch("PRAGMA wal_autocheckpoint = 0;")?;
    }
    Ok(conn)
}

/// Connections that read.
pub struct Readers {
    path: PathBuf,
    idle: Mutex<Vec<Connection>>,
    used: AtomicU64,
}

impl Readers {
    pub fn new(path: PathBuf) -> Readers {
        Readers { path, idle: Mutex::new(Vec::new()), used: AtomicU64::new(0) }
    }

    /// Runs one read. The connection goes back to the pool only after success: an error may have left it in the
    /// middle of something.
    pub fn with<T>(&self, read: impl FnOnce(&Connection) -> Result<T, Failed>) -> Result<T, Failed> {
        self.count();
        let kept = self.idle.lock().pop();
        let conn = match kept {
            Some(conn) => conn,
            None => open(&self.path, Role::Reader)?,
        };
        let answer = read(&conn)?;
        let mut idle = self.idle.lock();
        if idle.len() < IDLE_READERS_MAX {
            idle.push(conn);
        }
        Ok(answer)
    }

    /// Counts a read that used another connection.
    pub fn count(&self) {
        self.used.fetch_add(1, Ordering::Relaxed);
    }

    /// Reads so far; tells whether anybody read in between.
    pub fn used(&self) -> u64 {
        self.used.load(Ordering::Relaxed)
    }

    /// Closes what is idle.
    pub fn close(&self) {
        self.idle.lock().clear();
    }

    /// Gives memory back: one connection stays open, with an empty cache.
    pub fn rest(&self) {
        let mut closing = std::mem::take(&mut *self.idle.lock());
        if let Some(kept) = closing.pop() {
            shrink(&kept);
            self.idle.lock().push(kept);
        }
    }
}

/// Empties a connection's page cache.
pub fn shrink(conn: &Connection) {
    if let Err(error) = conn.execute_batch("PRAGMA shrink_memory") {
        tracing::debug!("sqlite kept its page cache: {error}");
    }
}
