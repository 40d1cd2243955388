//! Checkpoints: moving what the write-ahead log holds into the database file, away from those who commit.
//!
//! SQLite would checkpoint inside every thousandth page's commit, and that commit would wait for two syncs of the disk.
//! Here a thread of its own does it beside the writers (`PASSIVE` waits for nobody and keeps nobody waiting). The log
//! starts anew with the first commit after a checkpoint that reached its end; under a stream of commits none does, and
//! when the log has grown too long a last piece is moved while writers are held.

use super::connection::{self, Role};
use super::fault::Failed;
use parking_lot::Mutex;
use rusqlite::Connection;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU32, Ordering};

/// A checkpoint is due each time the log has grown by this many pages (16 MiB): rare enough that pages which change
/// all the time are moved once for many commits, often enough that a burst leaves little to do.
const STEP_PAGES: u32 = 4 << 10;
/// From this many pages (128 MiB) on, writers are held for the last piece.
const HOLD_PAGES: u32 = 32 << 10;

pub struct Checkpoints {
    shared: Arc<Shared>,
}

struct Shared {
    path: PathBuf,
    /// The writer's connection: who holds its lock holds the writers of this process.
    writer: Arc<Mutex<Option<Connection>>>,
    running: AtomicBool,
    /// Pages of the log when the last checkpoint began.
    last: AtomicU32,
}

impl Checkpoints {
    pub fn new(path: PathBuf, writer: Arc<Mutex<Option<Connection>>>) -> Checkpoints {
        let shared = Shared { path, writer, running: AtomicBool::new(false), last: AtomicU32::new(0) };
        Checkpoints { shared: Arc::new(shared) }
    }

    /// Says how long the log is; starts a checkpoint if one is due. Called without any lock.
    pub fn offer(&self, pages: u32) {
        let last = self.shared.last.load(Ordering::Relaxed);
        if pages < last {
            // It has started anew.
            self.shared.last.store(0, Ordering::Relaxed);
        }
        let due = pages >= STEP_PAGES && (pages < last || pages - last >= STEP_PAGES);
        if !due || self.shared.running.swap(true, Ordering::Acquire) {
            return;
        }
        self.shared.last.store(pages, Ordering::Relaxed);
        let shared = self.shared.clone();
        let started = std::thread::Builder::new().name("sqlite-checkpoint".to_owned()).spawn(move || {
            if let Err(failed) = shared.run(pages) {
                // The next step of growth tries again; nothing is lost meanwhile.
                tracing::warn!(path = %shared.path.display(), "checkpoint failed: {failed:?}");
            }
            shared.running.store(false, Ordering::Release);
        });
        if let Err(error) = started {
            tracing::warn!("no thread for a checkpoint: {error}");
            self.shared.running.store(false, Ordering::Release);
        }
    }
}

impl Shared {
    fn run(&self, pages: u32) -> Result<(), Failed> {
        let conn = connection::open(&self.path, Role::Checkpointer)?;
        let moved = checkpoint(&conn)?;
        tracing::debug!(pages, complete = moved, "checkpoint");
        if !moved && pages >= HOLD_PAGES {
            let _held = self.writer.lock();
            checkpoint(&conn)?;
        }
        Ok(())
    }
}

/// Whether it reached the end of the log.
fn checkpoint(conn: &Connection) -> Result<bool, Failed> {
    let (busy, log, moved): (i64, i64, i64) =
        conn.query_row("PRAGMA wal_checkpoint(PASSIVE)", (), |row| Ok((row.get(0)?, row.get(1)?, row.get(2)?)))?;
    Ok(busy == 0 && log == moved)
}
