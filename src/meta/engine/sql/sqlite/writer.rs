//! Writing: one connection that commits, and the queue in front of it.
//!
//! Who finds nobody writing commits at once, on its own thread: a commit is some tens of microseconds, most of it
//! copying pages into the system's cache, and a hop to another thread and back would cost as much again. Everybody
//! else queues, and a thread of the engine's own commits what has gathered in one transaction (group commit), so that
//! writers never compete for SQLite's lock and the pages that all of them touch are written once. Guards of one batch
//! see the changes of the batches before it.
//!
//! Other processes may hold the lock. The thread waits for them up to a deadline; a caller's own thread never does.
//! Commits are not synced (`synchronous = NORMAL`, as JuiceFS runs it): a crash of the process loses nothing, a crash of
//! the machine may lose the last commits, but never their order. `Engine::sync` is for those who need more.

use super::Volume;
use super::change::Step;
use super::checkpoint::Checkpoints;
use super::connection::{self, Readers, Role};
use super::fault::Failed;
use super::read::Reading;
use crate::base::Fault;
use crate::meta::engine::{Batch, Committed, EngineError, EngineResult};
use crate::meta::record::Counter;
use parking_lot::{Condvar, Mutex, MutexGuard};
use rusqlite::Connection;
use std::cell::Cell;
use std::collections::VecDeque;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::time::{Duration, Instant};
use tokio::sync::{OwnedSemaphorePermit, Semaphore, oneshot};

/// How long anything may wait for another process that holds the database.
pub const BUSY_DEADLINE: Duration = Duration::from_secs(60);
/// Batches that may wait; callers beyond it wait for a place.
const QUEUE_MAX: usize = 1024;
/// Batches of one transaction: enough to share its cost, few enough to keep the first ones from waiting for the rest.
const GROUP_MAX: usize = 64;
/// How long a caller waits for a reader that has borrowed the writer's connection before it queues.
const BORROWED_WAIT: Duration = Duration::from_micros(200);
/// Nobody wrote or read for this long: memory is given back.
const REST_AFTER: Duration = Duration::from_secs(10);
/// Pauses between tries to begin while another process writes, growing to the longest. Short, for most transactions
/// are; SQLite's own pauses grow to a tenth of a second.
const BUSY_PAUSE_FIRST: Duration = Duration::from_micros(200);
const BUSY_PAUSE_MAX: Duration = Duration::from_millis(10);

/// What is to be done in a write transaction.
pub enum Work {
    Commit(Batch),
    Allocate(Counter, u64),
    Prepare,
    Erase,
}

/// What came of it.
pub enum Answer {
    Committed(Committed),
    First(u64),
    Done,
}

struct Job {
    work: Work,
    since: Instant,
    answer: oneshot::Sender<EngineResult<Answer>>,
    /// Its place in the queue, free again when the job is taken.
    place: OwnedSemaphorePermit,
}

#[derive(Default)]
struct Queue {
    jobs: VecDeque<Job>,
    closed: bool,
}

pub struct Writer {
    volume: Arc<Volume>,
    readers: Arc<Readers>,
    checkpoints: Checkpoints,
    /// Opened by the first who needs it. Lock order: this, then `queue`.
    conn: Arc<Mutex<Option<Connection>>>,
    /// The connection's lock is held for a transaction, not merely borrowed by a reader.
    committing: AtomicBool,
    queue: Mutex<Queue>,
    /// How many jobs wait: read without the lock by those who would rather commit in place.
    waiting: AtomicUsize,
    arrived: Condvar,
    places: Arc<Semaphore>,
}

thread_local! {
    /// Pages in the log after the commit that this thread has just made, 0 when it made none. SQLite's hook reports
    /// them, and hooks are plain functions.
    static LOG_PAGES: Cell<u32> = const { Cell::new(0) };
}

impl Writer {
    /// Starts the thread.
    pub fn start(volume: Arc<Volume>, readers: Arc<Readers>) -> Result<Arc<Writer>, Fault> {
        let conn = Arc::new(Mutex::new(None));
        let writer = Arc::new(Writer {
            checkpoints: Checkpoints::new(volume.path.clone(), conn.clone()),
            volume,
            readers,
            conn,
            committing: AtomicBool::new(false),
            queue: Mutex::default(),
            waiting: AtomicUsize::new(0),
            arrived: Condvar::new(),
            places: Arc::new(Semaphore::new(QUEUE_MAX)),
        });
        let own = writer.clone();
        std::thread::Builder::new()
            .name("sqlite-writer".to_owned())
            .spawn(move || own.run())
            .map_err(|error| Fault::unavailable("start thread").with("thread", "sqlite-writer").source(error))?;
        Ok(writer)
    }

    /// Ends the thread and closes the connections. Closed here and not by the thread, so that a command which is done
    /// with its engine leaves no log behind: the last connection to close moves it into the database.
    pub fn close(&self) {
        self.queue.lock().closed = true;
        self.arrived.notify_all();
        self.readers.close();
        *self.conn.lock() = None;
    }

    pub async fn submit(&self, work: Work) -> EngineResult<Answer> {
        let work = match self.in_place(work) {
            Ok(answer) => return answer,
            Err(work) => work,
        };
        let since = Instant::now();
        let late = |fault: Fault| fault.with("engine", "sqlite").with("waited_s", since.elapsed().as_secs());
        let place = match tokio::time::timeout(BUSY_DEADLINE, self.places.clone().acquire_owned()).await {
            Ok(place) => place.expect("the places are never closed"),
            Err(_) => return Err(late(Fault::timeout("queue commit")).into()),
        };
        let (answer, answered) = oneshot::channel();
        {
            let mut queue = self.queue.lock();
            queue.jobs.push_back(Job { work, since, answer, place });
            self.waiting.store(queue.jobs.len(), Ordering::Release);
        }
        self.arrived.notify_one();
        // The thread answers in time whatever other processes do; more than that means that the disk hangs.
        match tokio::time::timeout(BUSY_DEADLINE * 2, answered).await {
            Ok(Ok(answer)) => answer,
            Ok(Err(_)) => Err(EngineError::Undetermined(late(Fault::internal("await writer thread")))),
            Err(_) => Err(EngineError::Undetermined(late(Fault::undetermined("await commit")))),
        }
    }

    /// On the caller's thread, if nobody writes; gives the work back otherwise.
    fn in_place(&self, work: Work) -> Result<EngineResult<Answer>, Work> {
        if self.waiting.load(Ordering::Acquire) > 0 || self.committing.load(Ordering::Relaxed) {
            return Err(work);
        }
        let Some(mut held) = self.conn.try_lock_for(BORROWED_WAIT) else { return Err(work) };
        let _committing = Committing::mark(&self.committing);
        let conn = match self.opened(&mut held, &work) {
            Ok(conn) => conn,
            Err(failed) if failed.busy() => return Err(work),
            Err(failed) => return Ok(Err(self.error(failed))),
        };
        match begin(conn) {
            Ok(()) => {}
            Err(failed) if failed.busy() => return Err(work),
            Err(failed) => return Ok(Err(self.error(failed))),
        }
        let answer = self.transact(conn, &[&work]).pop().expect("one answer for one piece of work");
        drop(held);
        self.checkpoints.offer(LOG_PAGES.get());
        Ok(answer)
    }

    /// The connection, if nobody has it: its cache is warm with what was just written. For reads.
    pub fn borrow(&self) -> Option<MutexGuard<'_, Option<Connection>>> {
        if self.waiting.load(Ordering::Relaxed) > 0 {
            return None;
        }
        self.conn.try_lock()
    }

    fn run(&self) {
        let mut rested_at = None;
        loop {
            let jobs = self.next_group();
            if jobs.is_empty() {
                if self.queue.lock().closed {
                    return;
                }
                self.rest(&mut rested_at);
                continue;
            }
            self.work_off(jobs);
        }
    }

    /// Waits for work; comes back without any after a while, and when the queue is closed.
    fn next_group(&self) -> Vec<Job> {
        let mut queue = self.queue.lock();
        if queue.jobs.is_empty() && !queue.closed {
            self.arrived.wait_for(&mut queue, REST_AFTER);
        }
        let count = queue.jobs.len().min(GROUP_MAX);
        let group = queue.jobs.drain(..count).collect();
        self.waiting.store(queue.jobs.len(), Ordering::Release);
        group
    }

    fn work_off(&self, jobs: Vec<Job>) {
        let mut held = self.conn.lock();
        let _committing = Committing::mark(&self.committing);
        let begun = self.begin_patiently(&mut held, &jobs);
        let (answers, works): (Vec<_>, Vec<_>) = jobs
            .into_iter()
            .map(|job| {
                drop(job.place);
                (job.answer, job.work)
            })
            .unzip();
        let results = match (begun, held.as_ref()) {
            (Ok(()), Some(conn)) => self.transact(conn, &works.iter().collect::<Vec<_>>()),
            (Ok(()), None) => unreachable!("a transaction was begun on a connection"),
            (Err(failed), _) => self.all(works.len(), failed, false),
        };
        drop(held);
        for (answer, result) in answers.into_iter().zip(results) {
            // Whoever no longer waits does not want to know.
            let _ = answer.send(result);
        }
        self.checkpoints.offer(LOG_PAGES.get());
    }

    /// Begins a transaction, waiting for other processes until the oldest job has waited long enough.
    fn begin_patiently(&self, held: &mut Option<Connection>, jobs: &[Job]) -> Result<(), Failed> {
        let since = jobs.iter().map(|job| job.since).min().expect("a group has a job");
        let mut pause = BUSY_PAUSE_FIRST;
        loop {
            let begun = jobs.iter().try_for_each(|job| self.opened(held, &job.work).map(|_| ())).and_then(|()| {
                let conn = held.as_ref().expect("every job opened the connection");
                begin(conn)
            });
            match begun {
                Err(failed) if failed.busy() && since.elapsed() < BUSY_DEADLINE => {
                    std::thread::sleep(pause);
                    pause = (pause * 2).min(BUSY_PAUSE_MAX);
                }
                begun => return begun,
            }
        }
    }

    /// The connection, opened if need be. Only `prepare` makes a file that is not there.
    fn opened<'a>(&self, held: &'a mut Option<Connection>, work: &Work) -> Result<&'a Connection, Failed> {
        if held.is_none() {
            let role = match work {
                Work::Prepare => Role::Maker,
                Work::Commit(_) | Work::Allocate(..) | Work::Erase => Role::Writer,
            };
            if role == Role::Writer && !self.volume.exists() {
                return Err(self.volume.missing("open database").into());
            }
            let conn = connection::open(&self.volume.path, role)?;
            conn.wal_hook(Some(|_, pages| {
                LOG_PAGES.set(pages.unsigned_abs());
                Ok(())
            }));
            *held = Some(conn);
        }
        Ok(held.as_ref().expect("opened above"))
    }

    /// Does the work inside the transaction that was begun, and ends it. One answer for each piece.
    fn transact(&self, conn: &Connection, works: &[&Work]) -> Vec<EngineResult<Answer>> {
        let reading = self.volume.reading(conn);
        let mut results = Vec::with_capacity(works.len());
        let mut changed = false;
        for work in works {
            match perform(&reading, work) {
                Step::Done(answer) => {
                    changed = true;
                    results.push(Ok(answer));
                }
                Step::Refused(failed) => results.push(Err(self.error(failed))),
                Step::Spoiled(failed) => {
                    rollback(conn);
                    return if works.len() == 1 {
                        vec![Err(self.error(failed))]
                    } else {
                        tracing::debug!("a batch stopped half-way, its group commits one by one");
                        self.one_by_one(conn, works)
                    };
                }
            }
        }
        if !changed {
            rollback(conn);
            return results;
        }
        match conn.prepare_cached("COMMIT").and_then(|mut commit| commit.execute(())) {
            Ok(_) => results,
            Err(error) => {
                rollback(conn);
                let failed = Failed::from(error);
                // Part of the log may be on disk: another process, or the next start, might find a whole commit there.
                let undetermined = failed.io();
                self.all(works.len(), failed, undetermined)
            }
        }
    }

    fn one_by_one(&self, conn: &Connection, works: &[&Work]) -> Vec<EngineResult<Answer>> {
        works
            .iter()
            .map(|work| {
                begin(conn).map_err(|failed| self.error(failed))?;
                self.transact(conn, &[work]).pop().expect("one answer for one piece of work")
            })
            .collect()
    }

    /// The same failure for each of a group.
    fn all(&self, count: usize, failed: Failed, undetermined: bool) -> Vec<EngineResult<Answer>> {
        let fault = match self.error(failed) {
            EngineError::Fault(fault) | EngineError::Undetermined(fault) => fault,
            EngineError::Conflict => unreachable!("beginning and committing check no guards"),
        };
        let again = |fault: &Fault| Fault::new(fault.kind(), "commit group").source(fault.to_string());
        (1..count)
            .map(|_| again(&fault))
            .collect::<Vec<_>>()
            .into_iter()
            .chain([again(&fault)])
            .map(|fault| if undetermined { Err(EngineError::Undetermined(fault)) } else { Err(fault.into()) })
            .collect()
    }

    fn error(&self, failed: Failed) -> EngineError {
        failed.into_engine_error("commit", &self.volume.path)
    }

    /// Gives memory back when nobody has used the engine since the last look.
    fn rest(&self, rested_at: &mut Option<u64>) {
        let used = self.readers.used();
        if *rested_at != Some(used) {
            *rested_at = Some(used);
            return;
        }
        self.readers.rest();
        if let Some(held) = self.conn.try_lock()
            && let Some(conn) = held.as_ref()
        {
            connection::shrink(conn);
        }
    }
}

/// The mark that a transaction runs, taken back on every way out.
struct Committing<'a>(&'a AtomicBool);

impl Committing<'_> {
    fn mark(flag: &AtomicBool) -> Committing<'_> {
        flag.store(true, Ordering::Relaxed);
        Committing(flag)
    }
}

impl Drop for Committing<'_> {
    fn drop(&mut self) {
        self.0.store(false, Ordering::Relaxed);
    }
}

fn begin(conn: &Connection) -> Result<(), Failed> {
    // A panic in the middle of an earlier transaction would have left it open.
    if !conn.is_autocommit() {
        rollback(conn);
    }
    LOG_PAGES.set(0);
    conn.prepare_cached("BEGIN IMMEDIATE")?.execute(())?;
    Ok(())
}

/// SQLite has rolled back by itself after some errors.
fn rollback(conn: &Connection) {
    if !conn.is_autocommit()
        && let Err(error) = conn.execute_batch("ROLLBACK")
    {
        tracing::warn!("sqlite did not roll back: {error}");
    }
}

fn perform(reading: &Reading<'_>, work: &Work) -> Step<Answer> {
    let outright = |result: Result<Answer, Failed>| match result {
        Ok(answer) => Step::Done(answer),
        Err(failed) => Step::Spoiled(failed),
    };
    match work {
        Work::Commit(batch) => match reading.commit(batch) {
            Step::Done(committed) => Step::Done(Answer::Committed(committed)),
            Step::Refused(failed) => Step::Refused(failed),
            Step::Spoiled(failed) => Step::Spoiled(failed),
        },
        Work::Allocate(counter, count) => outright(reading.allocate(*counter, *count).map(Answer::First)),
        Work::Prepare => outright(reading.complete_layout().map(|()| Answer::Done)),
        Work::Erase => outright(reading.erase_layout().map(|()| Answer::Done)),
    }
}
