//! Connections to one server: opened when they are needed, kept while they are of use, never more than agreed.
//!
//! Not the pool of the driver's crate: that one asks the server for a sign of life with each connection that is given
//! back, and keeps requests waiting long after a server has come back.

use parking_lot::Mutex;
use sqlx::{ConnectOptions, Connection};
use std::sync::Arc;
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore};

/// One attempt to connect.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(5);
/// Pauses between attempts, doubling to the longest.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_millis(500);

/// How long connections are kept.
#[derive(Clone, Copy, Debug)]
pub struct Keep {
    /// Unused.
    pub idle: Duration,
    /// In all, if that has an end.
    pub life: Option<Duration>,
    /// So many unused ones at most.
    pub most: usize,
}

pub struct Pool<C: Connection> {
    options: <C as Connection>::Options,
    idle: Mutex<Vec<Kept<C>>>,
    places: Arc<Semaphore>,
    keep: Keep,
}

struct Kept<C> {
    conn: C,
    born: Instant,
    used: Instant,
}

/// A connection in use, with its place. Dropping it closes it.
pub struct Held<C> {
    pub conn: C,
    /// It has just been opened, and nothing was said to the server yet.
    pub fresh: bool,
    born: Instant,
    _place: OwnedSemaphorePermit,
}

/// Why there is no connection.
#[derive(Debug)]
pub enum NoConnection {
    /// All were busy until the deadline.
    Busy,
    /// The last attempt's error.
    Failed(sqlx::Error),
    /// The server did not answer.
    Silent,
}

impl<C: Connection> Pool<C> {
    pub fn new(options: <C as Connection>::Options, most: usize, keep: Keep) -> Pool<C> {
        Pool { options, idle: Mutex::default(), places: Arc::new(Semaphore::new(most)), keep }
    }

    /// A connection. While the server is away it is tried again until the deadline; `passes` tells from an error
    /// whether that is of any use.
    pub async fn get(&self, deadline: Instant, passes: impl Fn(&sqlx::Error) -> bool) -> Result<Held<C>, NoConnection> {
        let place = match tokio::time::timeout_at(deadline.into(), self.places.clone().acquire_owned()).await {
            Ok(place) => place.expect("the places are never closed"),
            Err(_) => return Err(NoConnection::Busy),
        };
        if let Some(Kept { conn, born, .. }) = self.take() {
            return Ok(Held { conn, fresh: false, born, _place: place });
        }
        let mut pause = PAUSE_FIRST;
        loop {
            let failed = match tokio::time::timeout(CONNECT_TIMEOUT, self.options.connect()).await {
                Ok(Ok(conn)) => return Ok(Held { conn, fresh: true, born: Instant::now(), _place: place }),
                Ok(Err(error)) if !passes(&error) => return Err(NoConnection::Failed(error)),
                Ok(Err(error)) => NoConnection::Failed(error),
                Err(_) => NoConnection::Silent,
            };
            if Instant::now() + pause >= deadline {
                return Err(failed);
            }
            tokio::time::sleep(pause).await;
            pause = (pause * 2).min(PAUSE_MAX);
        }
    }

    /// The one that was used last, if it is still good.
    fn take(&self) -> Option<Kept<C>> {
        let mut idle = self.idle.lock();
        let kept = idle.pop()?;
        if self.is_good(&kept) {
            return Some(kept);
        }
        // The others are older still.
        idle.clear();
        None
    }

    fn is_good(&self, kept: &Kept<C>) -> bool {
        kept.used.elapsed() < self.keep.idle && self.keep.life.is_none_or(|life| kept.born.elapsed() < life)
    }

    /// Gives a connection back that is good for the next one.
    pub fn put(&self, held: Held<C>) {
        let mut idle = self.idle.lock();
        if idle.len() < self.keep.most {
            idle.push(Kept { conn: held.conn, born: held.born, used: Instant::now() });
        }
    }

    /// All that are unused are of no more use: the server was away.
    pub fn forget(&self) {
        self.idle.lock().clear();
    }

    /// Closes what was not used for long.
    pub fn tidy(&self) {
        self.idle.lock().retain(|kept| self.is_good(kept));
    }
}
