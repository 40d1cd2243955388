//! The connection: one multiplexed socket ([`super::link`]) that all callers share, made again when it breaks.
//!
//! Reads are repeated on a new connection until their deadline. A commit is sent once: when its reply is lost it is
//! `Undetermined`, for it may have been applied. Every wait ends: connecting, answering and backing off have bounds.
//!
//! Where another server may take over ([`super::route`]), a server that says that it cannot serve (it was demoted, its
//! slot has moved) is left for the one that can, and a commit that it refused is sent to that.
//!
//! Road not taken: the crate's `ConnectionManager`. It reconnects as well, but answers the commands of the broken
//! connection with the same error whether or not they may be repeated, and its pauses are not ours to bound.

use super::codec::Prefix;
use super::link::{Endpoint, Link};
use super::replicas::Replicas;
use super::route::{Route, redirection};
use super::url::Target;
use crate::base::{Fault, FaultKind};
use crate::meta::engine::{EngineError, EngineResult};
use crate::util::outage::Outage;
use parking_lot::Mutex;
use redis::{Arg, Cmd, ErrorKind, Pipeline, RedisError, ServerError, ServerErrorKind, Value};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// A new connection gets this long for TCP, TLS, AUTH and SELECT.
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);
/// Reads are begun again, and connections made again, until this long after the call. The metadata layer retries
/// above this, so it covers a restart or a failover of the server, not an outage.
pub(super) const RETRY_DEADLINE: Duration = Duration::from_secs(15);
/// As above before the first connection was made: the URL may name the wrong server, and who typed it waits.
const FIRST_DEADLINE: Duration = Duration::from_secs(5);
/// An outage of at least this long is worth two lines in the log: when it is noticed and when it is over.
const OUTAGE: Duration = Duration::from_secs(1);
/// A server that has been away for this long is not waited for any more: a request fails with the next attempt to
/// connect, or at once when one has just failed. Whoever came at the beginning gets the answer at about this time; who
/// comes later would only stand in line (the kernel lets one caller at a time into a directory that creates a file), each
/// for as long again.
const PATIENCE: Duration = Duration::from_secs(25);
/// What requests get then.
const IMPATIENT_DEADLINE: Duration = Duration::from_secs(1);
/// Failures this far apart are not one outage: nobody has asked in between.
const APART: Duration = Duration::from_secs(60);
/// While the slot of the volume moves from one node of a cluster to another, whatever needs keys of both waits, and keys
/// that do not exist are on neither. That takes as long as the slot is large; after this long requests fail again.
const MOVING_PATIENCE: Duration = Duration::from_secs(600);
/// A slot of which nobody has heard for this long does not move any more.
const MOVING_APART: Duration = Duration::from_secs(10);
/// So often in a row a node is left at once for the one that it names. Then two nodes name each other, or one itself.
const MOVED_MAX: u32 = 3;
/// Being sent on so much later is another matter.
const MOVED_APART: Duration = Duration::from_secs(1);
/// For so long after a commit of unknown outcome, what is read is answered only when replicas have it: it may be what that
/// commit has written, and then this read is its acknowledgement.
const DOUBT: Duration = Duration::from_secs(60);
/// Before a server that cannot serve now is asked again.
const PASSING_PAUSE: Duration = Duration::from_millis(100);

static SNAPSHOT: &str = include_str!("snapshot.lua");

pub(super) struct Connection {
    route: Route,
    target: Target,
    /// The server takes scripts.
    scripts: AtomicBool,
    /// For commits without scripts.
    pool: super::plain::Pool,
    /// To the node that a slot is being moved to.
    asking: Mutex<Option<(Endpoint, Arc<Link>)>>,
    current: Mutex<Current>,
    /// One task connects at a time; the others wait for it.
    connecting: tokio::sync::Mutex<()>,
    /// One connection of several to a server tells the log of its outages.
    announces: bool,
    /// The server has no memory for what takes some.
    full: Outage,
    replicas: Replicas,
    /// Finds out about failovers for this one as well, which sends nothing that only a master takes: the old master goes on
    /// to answer reads.
    leader: Option<Arc<Connection>>,
    /// When the outcome of a commit was last unknown.
    doubted: Mutex<Option<Instant>>,
    /// Since when the slot of the volume has been on its way, and when that was last heard.
    moving: Mutex<Option<(Instant, Instant)>>,
    /// How many times in a row we were sent on to another node, and when last.
    moved: Mutex<Option<(u32, Instant)>>,
}

#[derive(Default)]
struct Current {
    link: Option<Arc<Link>>,
    /// Counts connections, so that a late failure of an old one does not discard its successor.
    generation: u64,
    /// The leader's at that time.
    led_by: u64,
    /// Attempts to connect that failed in a row, and when the first and the last did.
    failures: u32,
    failing: Option<(Instant, Instant)>,
    /// Why the last one did.
    error: Option<RedisError>,
    /// The log has the outage that is going on, if it is told of those of this connection.
    reported: bool,
}

impl Current {
    /// A new connection: the outage, if there was one, is over.
    fn connected(&mut self, link: Arc<Link>, led_by: u64, address: &str) -> u64 {
        if self.reported
            && let Some((since, _)) = self.failing
        {
            tracing::info!(address, "redis can be reached again after {:.1} s", since.elapsed().as_secs_f64());
        }
        let generation = self.generation + 1;
        *self = Current { link: Some(link), generation, led_by, ..Current::default() };
        generation
    }

    fn failed(&mut self, error: RedisError, address: &str, announce: bool) {
        let now = Instant::now();
        let since = self.failing.filter(|(_, last)| now - *last < APART).map_or(now, |(since, _)| since);
        self.failing = Some((since, now));
        self.failures = self.failures.saturating_add(1);
        if announce && !self.reported && now - since >= OUTAGE {
            self.reported = true;
            tracing::warn!(address, "redis cannot be reached, requests wait for it: {error}");
        }
        self.error = Some(error);
    }

    /// Whether the server has been away for longer than requests wait.
    fn is_given_up(&self) -> bool {
        self.failing.is_some_and(|(since, last)| since.elapsed() > PATIENCE && last.elapsed() < APART)
    }
}

impl Connection {
    /// Nothing is sent yet.
    pub(super) fn new(target: Target) -> Connection {
        Connection::led_by(target, None)
    }

    /// For long reads, at the server of another connection.
    pub(super) fn behind(leader: &Arc<Connection>) -> Connection {
        Connection::led_by(leader.target.clone(), Some(leader.clone()))
    }

    fn led_by(target: Target, leader: Option<Arc<Connection>>) -> Connection {
        let announces = leader.is_none();
        // Scans decide nothing.
        let (wanted, asked_for) = if announces { target.wait_replicas() } else { (0, false) };
        Connection {
            route: Route::new(&target),
            replicas: Replicas::new(wanted, asked_for),
            leader,
            doubted: Mutex::default(),
            target,
            scripts: AtomicBool::new(true),
            pool: super::plain::Pool::default(),
            asking: Mutex::default(),
            current: Mutex::new(Current::default()),
            connecting: tokio::sync::Mutex::new(()),
            announces,
            full: Outage::default(),
            moving: Mutex::default(),
            moved: Mutex::default(),
        }
    }

    /// What the keys of the volume begin with.
    pub(super) fn prefix(&self) -> &Prefix {
        &self.target.prefix
    }

    pub(super) fn is_cluster(&self) -> bool {
        self.route.is_cluster()
    }

    pub(super) fn route(&self) -> &Route {
        &self.route
    }

    pub(super) fn has_scripts(&self) -> bool {
        self.scripts.load(Ordering::Relaxed)
    }

    pub(super) fn set_without_scripts(&self) {
        self.scripts.store(false, Ordering::Relaxed);
    }

    pub(super) fn pool(&self) -> &super::plain::Pool {
        &self.pool
    }

    /// The next request finds out anew where the volume is.
    pub(super) fn look_again(&self) {
        self.current.lock().link = None;
    }

    /// A read: repeated on a new connection when the old one breaks, and while the server says that it cannot serve
    /// now (it loads its data, a script keeps it busy).
    pub(super) async fn query(&self, cmd: &Cmd) -> EngineResult<Value> {
        Ok(self.query_at(cmd).await?.0)
    }

    /// A change that does no harm when it is made twice: as a read, and what it answers outlives the server.
    pub(super) async fn query_lasting(&self, cmd: &Cmd) -> EngineResult<Value> {
        Ok(self.ask_until_answered(cmd, true).await?.0)
    }

    /// The same as a read, and which server answered: see [`Link::identity`].
    pub(super) async fn query_at(&self, cmd: &Cmd) -> EngineResult<(Value, u64)> {
        self.ask_until_answered(cmd, false).await
    }

    async fn ask_until_answered(&self, cmd: &Cmd, lasting: bool) -> EngineResult<(Value, u64)> {
        let mut deadline = Instant::now() + RETRY_DEADLINE;
        loop {
            let (link, generation) = self.get(deadline).await?;
            let answered = self.answer(&link, cmd).await;
            match self.vouched(&link, answered, lasting).await {
                Ok(value) => return Ok((value, link.identity())),
                Err(error) => self.judge(error, generation, &mut deadline, "read").await?,
            }
        }
    }

    /// An answer that outlives the server where that matters.
    async fn vouched<T>(&self, link: &Link, answered: Result<T, RedisError>, lasting: bool) -> Result<T, RedisError> {
        let answered = answered?;
        let in_doubt = || self.doubted.lock().is_some_and(|doubted| doubted.elapsed() < DOUBT);
        if self.replicas.are_waited_for() && (lasting || in_doubt()) {
            let assured = self.replicas.assure(&self.route, link).await;
            if assured.is_err() {
                tokio::time::sleep(PASSING_PAUSE).await;
            }
            assured?;
        }
        Ok(answered)
    }

    /// After a change: answered only when replicas have it.
    pub(super) async fn assure(&self, link: &Link, generation: u64, operation: &'static str) -> EngineResult<()> {
        self.replicas.assure(&self.route, link).await.map_err(|error| {
            self.discard(generation);
            self.undetermined(operation, error)
        })
    }

    /// What the server answers, or the node of a cluster to which it sends this one request.
    async fn answer(&self, link: &Link, cmd: &Cmd) -> Result<Value, RedisError> {
        match link.send(cmd).await.and_then(Value::extract_error) {
            Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) => self.ask(cmd, error).await,
            answered => answered,
        }
    }

    async fn ask(&self, cmd: &Cmd, sent: RedisError) -> Result<Value, RedisError> {
        let Some(endpoint) = redirection(&sent) else { return Err(sent) };
        let known = self.asking.lock().clone().filter(|(known, _)| *known == endpoint);
        let link = match known {
            Some((_, link)) => link,
            None => {
                // That it cannot be reached has nothing to do with the connection to who sent us.
                let link = Arc::new(self.route.connect_to(&endpoint).await.map_err(|_| sent)?);
                *self.asking.lock() = Some((endpoint, link.clone()));
                link
            }
        };
        let mut pipeline = Pipeline::with_capacity(2);
        pipeline.add_command(redis::cmd("ASKING")).add_command(cmd.clone());
        let answered = link.send_all(&pipeline, 1, 1).await;
        if answered.as_ref().is_err_and(is_broken) {
            *self.asking.lock() = None;
        }
        answered?.pop().unwrap_or(Value::Nil).extract_error()
    }

    /// A script that writes nothing, by its hash; by its text where the server does not know it (it was restarted, or
    /// its cache flushed). Nil where a part of the keys is on the way to another node of a cluster: the keys that the
    /// script derives may be on either.
    pub(super) async fn query_script(&self, by_hash: &Cmd, by_text: impl Fn() -> Cmd) -> EngineResult<Value> {
        let mut deadline = Instant::now() + RETRY_DEADLINE;
        loop {
            let (link, generation) = self.get(deadline).await?;
            let answered = match link.send(by_hash).await.and_then(Value::extract_error) {
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::NoScript) => {
                    link.send(&by_text()).await.and_then(Value::extract_error)
                }
                Err(error) if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) => Ok(Value::Nil),
                answered => answered,
            };
            match self.vouched(&link, answered, false).await {
                Ok(value) => return Ok(value),
                Err(error) => self.judge(error, generation, &mut deadline, "read").await?,
            }
        }
    }

    /// Several reads in one trip; `atomic` makes them one snapshot. Errors of single commands stay in their places.
    pub(super) async fn query_all(&self, pipeline: &Pipeline, atomic: bool) -> EngineResult<Vec<Value>> {
        Ok(self.ask_all_until_answered(pipeline, atomic, false).await?.0)
    }

    /// As [`Connection::query_lasting`], in one transaction.
    pub(super) async fn query_all_lasting(&self, pipeline: &Pipeline) -> EngineResult<Vec<Value>> {
        Ok(self.ask_all_until_answered(pipeline, true, true).await?.0)
    }

    /// Several reads, and which server answered.
    pub(super) async fn query_all_at(&self, pipeline: &Pipeline, atomic: bool) -> EngineResult<(Vec<Value>, u64)> {
        self.ask_all_until_answered(pipeline, atomic, false).await
    }

    async fn ask_all_until_answered(
        &self,
        pipeline: &Pipeline,
        atomic: bool,
        lasting: bool,
    ) -> EngineResult<(Vec<Value>, u64)> {
        let mut deadline = Instant::now() + RETRY_DEADLINE;
        let count = pipeline.len();
        let (skipped, wanted) = if atomic { (count + 1, 1) } else { (0, count) };
        loop {
            let (link, generation) = self.get(deadline).await?;
            let answered = match link.send_all(pipeline, skipped, wanted).await {
                Ok(mut values) if atomic => match values.pop() {
                    Some(Value::Array(values)) if values.len() == count => Ok(values),
                    Some(Value::ServerError(error)) => Err(error.into()),
                    _ => return Err(self.odd_reply("read")),
                },
                Ok(mut values) if values.len() == count => match self.follow(pipeline, &mut values).await {
                    Some(error) => Err(error),
                    None => Ok(values),
                },
                Ok(_) => return Err(self.odd_reply("read")),
                Err(error) => Err(error),
            };
            let answered = match answered {
                Err(error) if atomic && is_refused_transaction(&error) => Ok(match self.has_scripts() {
                    true => self.query_by_script(pipeline).await?,
                    false => super::plain::snapshot(self, pipeline).await?,
                }),
                answered => answered,
            };
            let error = match self.vouched(&link, answered, lasting).await {
                Ok(values) => return Ok((values, link.identity())),
                Err(error) => error,
            };
            self.judge(error, generation, &mut deadline, "read").await?;
        }
    }

    /// Asks again where a node has sent single reads; answers the first reply that says that the server cannot serve now.
    async fn follow(&self, pipeline: &Pipeline, values: &mut [Value]) -> Option<RedisError> {
        for (cmd, value) in pipeline.cmd_iter().zip(values.iter_mut()) {
            let Some(mut error) = passing(value) else { continue };
            if error.kind() == ErrorKind::Server(ServerErrorKind::Ask) {
                match self.ask(cmd, error).await {
                    Ok(answered) => {
                        *value = answered;
                        continue;
                    }
                    Err(refused) => error = refused,
                }
            }
            return Some(error);
        }
        None
    }

    /// As [`Connection::query_all`] with `atomic`, where the server takes no transaction; see the script.
    async fn query_by_script(&self, pipeline: &Pipeline) -> EngineResult<Vec<Value>> {
        let mut cmd = redis::cmd("EVAL");
        // In a cluster the keys say which node is asked, and are told apart where one of them has moved.
        let keys: Vec<&[u8]> = pipeline.cmd_iter().filter_map(key_of).collect();
        cmd.arg(SNAPSHOT).arg(keys.len()).arg(keys);
        for one in pipeline.cmd_iter() {
            cmd.arg(one.args_iter().len());
            for arg in one.args_iter() {
                match arg {
                    Arg::Simple(bytes) => cmd.arg(bytes),
                    _ => return Err(Fault::internal("read").source("a cursor inside a transaction").into()),
                };
            }
        }
        match self.query(&cmd).await? {
            Value::Array(values) if values.len() == pipeline.len() => Ok(values),
            _ => Err(self.odd_reply("read")),
        }
    }

    /// A change, sent once. `Err(Undetermined)` when it is not known whether it was applied. A server that has refused
    /// it because another one is to serve now is left for that one.
    pub(super) async fn send(&self, cmd: &Cmd, operation: &'static str) -> EngineResult<Result<Value, RedisError>> {
        let mut deadline = Instant::now() + RETRY_DEADLINE;
        loop {
            let (link, generation) = self.get(deadline).await?;
            match self.answer(&link, cmd).await {
                Err(error) if is_broken(&error) => {
                    self.discard(generation);
                    return Err(self.undetermined(operation, error));
                }
                Err(error) if is_passing(&error) && self.route.has_others() => {
                    self.judge(error, generation, &mut deadline, operation).await?;
                }
                Err(error) => {
                    if is_demoted(&error) {
                        self.discard(generation);
                    }
                    return Ok(Err(error));
                }
                // Nothing was changed.
                Ok(Value::Int(0)) => return Ok(Ok(Value::Int(0))),
                Ok(answer) => {
                    self.assure(&link, generation, operation).await?;
                    return Ok(Ok(answer));
                }
            }
        }
    }

    pub(super) fn undetermined(&self, operation: &'static str, error: RedisError) -> EngineError {
        *self.doubted.lock() = Some(Instant::now());
        let fault = Fault::undetermined(operation).with("engine", "redis").with("address", &self.target.address);
        EngineError::Undetermined(fault.source(error))
    }

    /// Takes note of how a change ended that takes memory.
    pub(super) fn note_room(&self, refused: Option<&Fault>) {
        let address = &self.target.address;
        match refused {
            Some(fault) if fault.kind() == FaultKind::Full => {
                if self.full.failed() {
                    tracing::warn!(address, "redis has no memory left, only reads and removals go on: {fault}");
                }
            }
            Some(_) => {}
            None => {
                if let Some(over) = self.full.succeeded() {
                    let seconds = over.lasted.as_secs_f64();
                    tracing::info!(
                        address,
                        "redis takes changes again, {} were refused within {seconds:.1} s",
                        over.failures
                    );
                }
            }
        }
    }

    pub(super) fn odd_reply(&self, operation: &'static str) -> EngineError {
        Fault::internal(operation).with("address", &self.target.address).source("a reply of another shape").into()
    }

    /// After a failed read: `Ok` when it may be tried again, until a deadline that is put off while the slot is moving.
    pub(super) async fn judge(
        &self,
        error: RedisError,
        generation: u64,
        deadline: &mut Instant,
        operation: &'static str,
    ) -> EngineResult<()> {
        let passing = is_passing(&error);
        if !is_broken(&error) && !passing {
            return Err(fault(error, operation).with("address", &self.target.address).into());
        }
        let follows = match is_halfway(&error) {
            // This is still the node to ask: a new connection would lead back to it.
            true => {
                if self.note_moving(&error) {
                    *deadline = (*deadline).max(Instant::now() + RETRY_DEADLINE);
                }
                false
            }
            // The next connection may lead to a server that is better off.
            false => {
                self.route.redirected(&error);
                let left = self.discard(generation);
                redirection(&error).is_some() && !(left && self.was_moved_in_circles())
            }
        };
        if Instant::now() >= *deadline {
            return Err(fault(error, operation).with("address", &self.target.address).into());
        }
        tracing::debug!(address = %self.target.address, "redis cannot be read, trying again: {error}");
        // A node that knows better is asked at once.
        if passing && !follows {
            tokio::time::sleep(PASSING_PAUSE).await;
        }
        Ok(())
    }

    /// Takes note that the slot of the volume is on its way; whether it is waited for any longer.
    fn note_moving(&self, error: &RedisError) -> bool {
        let now = Instant::now();
        let mut moving = self.moving.lock();
        let since = match *moving {
            Some((since, last)) if now - last < MOVING_APART => since,
            _ => {
                if self.announces {
                    let address = &self.target.address;
                    tracing::warn!(address, "the slot of the volume is moving, what needs all of it waits: {error}");
                }
                now
            }
        };
        *moving = Some((since, now));
        now - since < MOVING_PATIENCE
    }

    /// Counts that a node has sent us on to another.
    fn was_moved_in_circles(&self) -> bool {
        if let Some((since, last)) = self.moving.lock().take()
            && self.announces
            && last.elapsed() < MOVING_APART
        {
            let seconds = since.elapsed().as_secs_f64();
            tracing::info!(address = %self.target.address, "the slot of the volume has moved, within {seconds:.1} s");
        }
        let mut moved = self.moved.lock();
        let before = moved.filter(|(_, last)| last.elapsed() < MOVED_APART).map_or(0, |(count, _)| count);
        *moved = Some((before + 1, Instant::now()));
        before >= MOVED_MAX
    }

    /// Whether it was the current connection.
    pub(super) fn discard(&self, generation: u64) -> bool {
        let mut current = self.current.lock();
        current.generation == generation && current.link.take().is_some()
    }

    /// The current connection, or a new one.
    pub(super) async fn get(&self, deadline: Instant) -> EngineResult<(Arc<Link>, u64)> {
        let led_by = match &self.leader {
            Some(leader) => Box::pin(leader.get(deadline)).await?.1,
            None => 0,
        };
        let ready = || {
            let current = self.current.lock();
            let link = current.link.clone().filter(|_| current.led_by == led_by);
            link.map(|link| (link, current.generation))
        };
        if let Some(ready) = ready() {
            return Ok(ready);
        }
        let given_up = self.current.lock().is_given_up();
        let deadline = if given_up { deadline.min(Instant::now() + IMPATIENT_DEADLINE) } else { deadline };
        let waited = tokio::time::timeout_at(deadline.into(), self.connecting.lock()).await;
        let Ok(_connecting) = waited else { return Err(self.unreachable()) };
        let first_deadline = Instant::now() + FIRST_DEADLINE;
        loop {
            if let Some(ready) = ready() {
                return Ok(ready);
            }
            let pause = self.pause();
            if Instant::now() + pause > deadline {
                return Err(self.unreachable());
            }
            tokio::time::sleep(pause).await;
            let error = match self.route.connect(CONNECT_TIMEOUT).await {
                Ok(link) => {
                    let link = Arc::new(link);
                    let generation = self.current.lock().connected(link.clone(), led_by, &self.target.address);
                    return Ok((link, generation));
                }
                Err(error) => error,
            };
            tracing::debug!(address = %self.target.address, "connecting to redis failed: {error}");
            let passing = is_passing(&error);
            let lasting = !is_broken(&error) && !passing;
            let never_reached = {
                let mut current = self.current.lock();
                current.failed(error, &self.target.address, self.announces);
                current.generation == 0 && !passing
            };
            let deadline = if never_reached { deadline.min(first_deadline) } else { deadline };
            if lasting || Instant::now() >= deadline {
                return Err(self.unreachable());
            }
        }
    }

    /// With the reason why the last attempt to connect failed.
    fn unreachable(&self) -> EngineError {
        let (error, given_up) = {
            let current = self.current.lock();
            (current.error.clone(), current.is_given_up())
        };
        let fault = match error {
            Some(error) => fault(error, "connect"),
            None => Fault::unavailable("connect").with("engine", "redis"),
        };
        let fault = fault.with("address", &self.target.address);
        if given_up { fault.final_already() } else { fault }.into()
    }

    /// How long to wait before the next attempt: doubling with each failure, jittered, from the last one on.
    fn pause(&self) -> Duration {
        let current = self.current.lock();
        let Some((_, failed_at)) = current.failing else { return Duration::ZERO };
        let doubled = self.target.backoff_min.saturating_mul(1 << current.failures.min(16));
        let ceiling = doubled.min(self.target.backoff_max).min(RETRY_DEADLINE / 4);
        let jittered = ceiling.mul_f64(rand::random_range(0.5..=1.0));
        jittered.saturating_sub(failed_at.elapsed())
    }
}

/// The key of a command that has it behind its name, as those of `codec::wish` do.
pub(super) fn key_of(cmd: &Cmd) -> Option<&[u8]> {
    match cmd.args_iter().nth(1) {
        Some(Arg::Simple(key)) => Some(key),
        _ => None,
    }
}

/// The connection is of no more use, or never was.
pub(super) fn is_broken(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse)
}

/// The server has refused a part of a transaction: for lack of memory, or for a reason that the part was told, whose
/// answer is not read.
fn is_refused_transaction(error: &RedisError) -> bool {
    error.code() == Some("EXECABORT") || fault(error.clone(), "read").kind() == FaultKind::Full
}

/// The server is no longer the primary. After a failover the name of the server leads to another one, so the next
/// request connects anew.
fn is_demoted(error: &RedisError) -> bool {
    error.kind() == ErrorKind::Server(ServerErrorKind::ReadOnly)
}

/// A part of the keys is on the way from this node to another, or none of them is anywhere yet.
fn is_halfway(error: &RedisError) -> bool {
    matches!(error.kind(), ErrorKind::Server(ServerErrorKind::Ask | ServerErrorKind::TryAgain))
}

/// The server says that it cannot serve now, or not any more.
pub(super) fn is_passing(error: &RedisError) -> bool {
    server_kind(error.code().unwrap_or_default(), error.detail().unwrap_or_default()) == FaultKind::Unavailable
}

/// As `is_passing`, for one answer of several.
fn passing(value: &Value) -> Option<RedisError> {
    let Value::ServerError(error) = value else { return None };
    Some(RedisError::from(error.clone())).filter(is_passing)
}

/// What a server's error means for us. The code is the first word of the error; servers before 7 wrap the error of a
/// script's command into one of code ERR.
fn server_kind(code: &str, detail: &str) -> FaultKind {
    let says = |word: &str| code == word || (code == "ERR" && detail.contains(word));
    let any = |words: &[&str]| words.iter().any(|word| says(word));
    if any(&["OOM"]) {
        FaultKind::Full
    } else if any(&["WRONGTYPE", "CORRUPT"]) {
        FaultKind::Corrupt
    } else if any(&[
        "NOAUTH",
        "Authentication required",
        "WRONGPASS",
        "NOPERM",
        "DENIED",
        // As scripts are told.
        "can't run this command",
        "invalid password",
        "without any password configured",
    ]) {
        FaultKind::Denied
    } else if any(&[
        "LOADING",
        "loading the dataset",
        "READONLY",
        "BUSY",
        "MASTERDOWN",
        "NOREPLICAS",
        "MISCONF",
        "TRYAGAIN",
        "CLUSTERDOWN",
        // A node of a cluster that does not have the keys, or not all of them: the slot is moving, or has moved.
        "MOVED",
        "ASK",
        "access a non local key",
        // A transaction of which the server refused a part; the reason is in that part's answer, which is not read.
        "EXECABORT",
        "max number of clients",
    ]) {
        FaultKind::Unavailable
    } else if any(&["unknown command", "CROSSSLOT", "cluster support disabled"]) {
        FaultKind::Unsupported
    } else if any(&["DB index is out of range"]) {
        FaultKind::Config
    } else {
        FaultKind::Internal
    }
}

/// The fault of an error that the server answered.
pub(super) fn server_fault(error: &ServerError, operation: &'static str) -> Fault {
    let detail = error.details().unwrap_or_default();
    Fault::new(server_kind(error.code(), detail), operation)
        .with("engine", "redis")
        .source(format!("{} {detail}", error.code()))
}

/// The fault of any error of the crate. None of its texts holds a password.
pub(super) fn fault(error: RedisError, operation: &'static str) -> Fault {
    let kind = match error.kind() {
        ErrorKind::Io if error.is_timeout() => FaultKind::Timeout,
        ErrorKind::Io | ErrorKind::Parse => FaultKind::Unavailable,
        ErrorKind::AuthenticationFailed => FaultKind::Denied,
        ErrorKind::InvalidClientConfig => FaultKind::Config,
        ErrorKind::RESP3NotSupported => FaultKind::Unsupported,
        _ => match error.clone().into_server_errors() {
            Some(errors) if !errors.is_empty() => return server_fault(&errors[0].1, operation),
            _ => server_kind(error.code().unwrap_or_default(), error.detail().unwrap_or_default()),
        },
    };
    Fault::new(kind, operation).with("engine", "redis").source(error)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_the_server_have_a_meaning() {
        for (code, detail, kind) in [
            ("OOM", "command not allowed when used memory > 'maxmemory'.", FaultKind::Full),
            ("ERR", "Error running script: @user_script:9: OOM command not allowed", FaultKind::Full),
            ("WRONGTYPE", "Operation against a key holding the wrong kind of value", FaultKind::Corrupt),
            ("CORRUPT", "i5", FaultKind::Corrupt),
            ("READONLY", "You can't write against a read only replica.", FaultKind::Unavailable),
            ("LOADING", "Redis is loading the dataset in memory", FaultKind::Unavailable),
            ("ERR", "max number of clients reached", FaultKind::Unavailable),
            ("MOVED", "1584 127.0.0.1:7001", FaultKind::Unavailable),
            ("ASK", "1584 127.0.0.1:7001", FaultKind::Unavailable),
            ("CLUSTERDOWN", "The cluster is down", FaultKind::Unavailable),
            ("ERR", "Script attempted to access a non local key in a cluster node script: x", FaultKind::Unavailable),
            ("NOAUTH", "Authentication required.", FaultKind::Denied),
            ("ERR", "Redis server refused to switch database: Authentication required.", FaultKind::Denied),
            ("WRONGPASS", "invalid username-password pair or user is disabled.", FaultKind::Denied),
            ("ERR", "unknown command 'HRANDFIELD'", FaultKind::Unsupported),
            ("ERR", "syntax error", FaultKind::Internal),
        ] {
            assert_eq!(server_kind(code, detail), kind, "{code} {detail}");
        }
    }
}
