//! Commits and snapshots on servers that refuse scripts (EVAL renamed or forbidden, managed services without Lua), by
//! WATCH, MULTI and EXEC.
//!
//! The steps are those of `commit.lua` and mean the same; here they are checked with what was read under WATCH, and their
//! writes are one transaction. A watched key that changed in between makes EXEC do nothing, and the whole is done again:
//! only the checks say whether it is a conflict. That takes two trips and a connection of its own for each commit that is
//! under way, and clients that change the same directory disturb each other: with scripts neither is so.
//!
//! Watched is what guards and patches read. What only makes sure that a key has the right type, or that a directory has
//! statistics to add to, is read and not watched: counters change with every commit of every client. A directory that
//! loses its statistics at that moment loses its attributes as well, and those are watched.
//!
//! A server whose memory is full takes no transaction at all, so that nothing can be removed there either; as a script it
//! could.

use super::batch::{Encoded, Steps};
use super::conn::{self, Connection};
use super::link::Link;
use crate::base::{Fault, FaultKind};
use crate::meta::engine::{EngineError, EngineResult};
use parking_lot::Mutex;
use redis::{Cmd, Pipeline, RedisError, RedisResult, ServerError, Value};
use std::collections::HashMap;
use std::time::{Duration, Instant};
use tokio::sync::{Semaphore, SemaphorePermit};

/// Commits that may be under way, each on a connection of its own; more wait.
const CONNECTIONS_MAX: usize = 32;
const CONNECT_TIMEOUT: Duration = Duration::from_secs(6);
/// A commit whose keys change all the time is begun again until this long after the call. Then it counts as a conflict,
/// for the metadata layer to decide anew.
const DEADLINE: Duration = Duration::from_secs(15);
/// Before a transaction is begun again, at most.
const PAUSE_MAX: Duration = Duration::from_millis(20);
/// Attributes before the tail: parent, ACL ids, tier.
const HEAD_BYTES: usize = 63;

/// Connections that one caller at a time has for itself.
pub(super) struct Pool {
    room: Semaphore,
    /// With the generation of the shared connection at whose time they were made.
    free: Mutex<Vec<(Link, u64)>>,
}

impl Default for Pool {
    fn default() -> Pool {
        Pool { room: Semaphore::new(CONNECTIONS_MAX), free: Mutex::default() }
    }
}

/// One of them. Dropped half-way, which leaves something under way, it is closed.
struct Owned<'a> {
    link: Link,
    generation: u64,
    pool: &'a Pool,
    _room: SemaphorePermit<'a>,
}

impl Owned<'_> {
    /// Nothing is under way.
    fn give_back(self) {
        self.pool.free.lock().push((self.link, self.generation));
    }
}

impl Pool {
    async fn take(&self, connection: &Connection, mut deadline: Instant) -> EngineResult<Owned<'_>> {
        loop {
            let late = || Fault::new(FaultKind::Timeout, "commit").with("engine", "redis");
            let room = tokio::time::timeout_at(deadline.into(), self.room.acquire()).await;
            let room = room.map_err(|_| late().source("all connections are in use"))?;
            let room = room.map_err(|_| late().source("the engine is closed"))?;
            // The shared connection knows of outages, waits and tells the log.
            let (_, generation) = connection.get(deadline).await?;
            let kept = {
                let mut free = self.free.lock();
                free.retain(|(_, of)| *of == generation);
                free.pop()
            };
            let made = match kept {
                Some((link, _)) => Ok(link),
                None => connection.route().connect(CONNECT_TIMEOUT).await,
            };
            match made {
                Ok(link) => return Ok(Owned { link, generation, pool: self, _room: room }),
                Err(error) => connection.judge(error, generation, &mut deadline, "connect").await?,
            }
        }
    }
}

/// Replies to a transaction, or to what came before it.
enum Ended {
    Done(Vec<Value>),
    /// Something changed that was watched.
    Disturbed,
    /// Some of it was refused, and Redis undoes nothing of the rest: a key has changed its type since it was looked at.
    InPart(ServerError),
}

/// What `commit.lua` answers: the reports of the changes; `Conflict` when a check does not hold.
pub(super) async fn commit(connection: &Connection, encoded: &Encoded) -> EngineResult<Vec<Value>> {
    let (checks, changes) = (parse(encoded.checks(), check_args)?, parse(encoded.changes(), change_args)?);
    let mut deadline = Instant::now() + DEADLINE;
    loop {
        let owned = connection.pool().take(connection, deadline).await?;
        let generation = owned.generation;
        let answers = match read(&owned.link, &checks, &changes).await {
            Ok(answers) => answers,
            Err(error) => {
                connection.judge(error, generation, &mut deadline, "commit").await?;
                continue;
            }
        };
        let mut answers = answers.into_iter();
        let attrs = match check(&checks, &mut answers)? {
            Some(attrs) => attrs,
            None => {
                owned.link.send(&redis::cmd("UNWATCH")).await.ok().map(|_| owned.give_back());
                return Err(EngineError::Conflict);
            }
        };
        let (pipeline, reports) = write(&changes, attrs, &mut answers)?;
        match execute(&owned.link, &pipeline).await {
            Ok(Ended::Done(values)) => {
                connection.assure(&owned.link, generation, "commit").await?;
                owned.give_back();
                return reports.into_iter().map(|report| report.of(&values)).collect();
            }
            Ok(Ended::Disturbed) => owned.give_back(),
            Ok(Ended::InPart(error)) => {
                owned.give_back();
                let fault = conn::server_fault(&error, "commit");
                return Err(fault.source("one change was refused and the others were made: run sluice fsck").into());
            }
            Err(error) if conn::is_broken(&error) => {
                connection.discard(generation);
                return Err(connection.undetermined("commit", error));
            }
            // Refused as a whole.
            Err(error) if conn::is_passing(&error) && connection.route().has_others() => {
                connection.judge(error, generation, &mut deadline, "commit").await?;
            }
            Err(error) => {
                owned.give_back();
                return Err(conn::fault(error, "commit").into());
            }
        }
        if Instant::now() >= deadline {
            return Err(EngineError::Conflict);
        }
        tokio::time::sleep(PAUSE_MAX.mul_f64(rand::random_range(0.0..=1.0))).await;
    }
}

/// Reads that see one moment, where the server takes neither scripts nor (it has no memory left) commands inside of
/// MULTI: they stand before an empty transaction that says whether anything changed since.
pub(super) async fn snapshot(connection: &Connection, reads: &Pipeline) -> EngineResult<Vec<Value>> {
    let mut deadline = Instant::now() + DEADLINE;
    let mut watch = redis::cmd("WATCH");
    for key in reads.cmd_iter().filter_map(conn::key_of) {
        watch.arg(key);
    }
    let mut pipeline = Pipeline::with_capacity(reads.len() + 3);
    pipeline.add_command(watch);
    for cmd in reads.cmd_iter() {
        pipeline.add_command(cmd.clone());
    }
    pipeline.cmd("MULTI").cmd("EXEC");
    while Instant::now() < deadline {
        let owned = connection.pool().take(connection, deadline).await?;
        let mut values = match owned.link.send_all(&pipeline, 0, pipeline.len()).await.and_then(first_error) {
            Ok(values) => values,
            Err(error) => {
                connection.judge(error, owned.generation, &mut deadline, "read").await?;
                continue;
            }
        };
        owned.give_back();
        if !matches!(values.pop(), Some(Value::Nil)) && values.len() == reads.len() + 2 {
            values.pop();
            values.remove(0);
            return Ok(values);
        }
    }
    Err(Fault::new(FaultKind::Timeout, "read")
        .with("engine", "redis")
        .source("what is read changes all the time")
        .into())
}

/// WATCH refused, or EXEC: then nothing of the rest counts. Errors of reads stay in their places.
fn first_error(values: Vec<Value>) -> RedisResult<Vec<Value>> {
    for value in [values.first(), values.last()].into_iter().flatten() {
        if let Value::ServerError(error) = value {
            return Err(error.clone().into());
        }
    }
    Ok(values)
}

async fn execute(link: &Link, pipeline: &Pipeline) -> RedisResult<Ended> {
    let mut values = link.send_all(pipeline, 0, pipeline.len()).await?;
    match values.pop() {
        Some(Value::Nil) => Ok(Ended::Disturbed),
        Some(Value::Array(done)) => {
            let refused = done.iter().find_map(|value| match value {
                Value::ServerError(error) => Some(error.clone()),
                _ => None,
            });
            Ok(refused.map_or(Ended::Done(done), Ended::InPart))
        }
        // EXECABORT; why is in the answer to the part that was refused.
        Some(Value::ServerError(error)) => {
            let refused = values.into_iter().find_map(|value| value.extract_error().err());
            Err(refused.unwrap_or_else(|| error.into()))
        }
        _ => Err(std::io::Error::new(std::io::ErrorKind::InvalidData, "EXEC answered something else").into()),
    }
}

// --- steps ---------------------------------------------------------------------------------------------------------

struct Step<'a> {
    op: u8,
    key: &'a [u8],
    args: Vec<&'a [u8]>,
}

fn internal(why: &'static str) -> EngineError {
    Fault::internal("commit").with("engine", "redis").source(why).into()
}

fn number(arg: Option<&&[u8]>) -> Option<usize> {
    std::str::from_utf8(arg?).ok()?.parse().ok()
}

/// `args_of`: whether a letter takes a key, how many arguments come first, and which of those counts how many of them
/// follow, in pairs or one by one.
fn parse<'a>(steps: &'a Steps, args_of: impl Fn(u8) -> Option<Shape>) -> EngineResult<Vec<Step<'a>>> {
    let (mut keys, mut args, mut parsed) = (steps.keys(), steps.args(), Vec::new());
    while let Some(op) = args.next() {
        let read = || {
            let op = *op.first()?;
            let shape = args_of(op)?;
            let key = if shape.has_key { keys.next()? } else { &[][..] };
            let mut own: Vec<&[u8]> = args.by_ref().take(shape.args).collect();
            if let Some((counter, each, more)) = shape.counted {
                let count = number(own.get(counter))? * each + more;
                own.extend(args.by_ref().take(count));
            }
            Some(Step { op, key, args: own })
        };
        parsed.push({ read }().ok_or_else(|| internal("a step that is none"))?);
    }
    Ok(parsed)
}

struct Shape {
    has_key: bool,
    args: usize,
    counted: Option<(usize, usize, usize)>,
}

fn shape(has_key: bool, args: usize) -> Option<Shape> {
    Some(Shape { has_key, args, counted: None })
}

fn check_args(op: u8) -> Option<Shape> {
    match op {
        b'F' | b'n' => shape(true, 0),
        b'c' => shape(false, 0),
        b'f' => shape(false, 2),
        b'k' | b'm' => shape(false, 1),
        b't' => shape(false, 3),
        b'h' | b'w' | b'i' | b'E' | b'G' | b'l' | b'p' => shape(true, 1),
        b'H' | b'M' | b'Z' | b'L' => shape(true, 2),
        b'D' => shape(true, 3),
        b'A' => Some(Shape { has_key: true, args: 1, counted: Some((0, 2, 0)) }),
        _ => None,
    }
}

fn change_args(op: u8) -> Option<Shape> {
    match op {
        b'o' | b'U' => shape(true, 0),
        b's' | b'+' | b'x' | b'S' | b'a' | b'r' | b'y' => shape(true, 1),
        b'h' | b'i' | b'c' | b'R' | b'z' => shape(true, 2),
        b'P' => Some(Shape { has_key: true, args: 1, counted: Some((0, 2, 6)) }),
        b'C' => Some(Shape { has_key: true, args: 1, counted: Some((0, 1, 0)) }),
        b'A' | b'T' => Some(Shape { has_key: true, args: 2, counted: Some((1, 1, 0)) }),
        _ => None,
    }
}

// --- reading -------------------------------------------------------------------------------------------------------

fn cmd(name: &str, key: &[u8], rest: &[&[u8]]) -> Cmd {
    let mut cmd = redis::cmd(name);
    cmd.arg(key);
    for arg in rest {
        cmd.arg(arg);
    }
    cmd
}

/// Watches, and asks all that the checks and the changes need to know, in one trip.
async fn read(link: &Link, checks: &[Step<'_>], changes: &[Step<'_>]) -> RedisResult<Vec<Value>> {
    let (mut watch, mut reads) = (redis::cmd("WATCH"), Pipeline::new());
    for step in checks {
        if matches!(step.op, b'F' | b'H' | b'h' | b'D' | b'E' | b'G' | b'M' | b'Z' | b'A' | b'L' | b'l' | b'p') {
            watch.arg(step.key);
        }
        match step.op {
            b'F' | b'n' | b'G' => reads.add_command(cmd("GET", step.key, &[])),
            b'H' | b'D' | b'i' => reads.add_command(cmd("HGET", step.key, &step.args[..1])),
            b'h' => reads.add_command(cmd("HEXISTS", step.key, &step.args[..1])),
            b'w' => reads.add_command(cmd(&String::from_utf8_lossy(step.args[0]), step.key, &[])),
            b'E' => reads.add_command(cmd("EXISTS", step.key, &[])),
            b'M' => reads.add_command(cmd("SISMEMBER", step.key, &step.args[..1])),
            b'Z' => reads.add_command(cmd("ZSCORE", step.key, &step.args[..1])),
            b'A' => reads.add_command(cmd("HGETALL", step.key, &[])),
            b'L' => reads.add_command(cmd("LRANGE", step.key, &[b"0", b"-1"])),
            b'l' | b'p' => reads.add_command(cmd("LLEN", step.key, &[])),
            _ => &mut reads,
        };
    }
    for step in changes {
        match step.op {
            b'c' => reads.add_command(cmd("HEXISTS", step.key, &step.args[..1])),
            b'R' => {
                watch.arg(step.key);
                reads.add_command(cmd("HGET", step.key, &step.args[..1]))
            }
            _ => &mut reads,
        };
    }
    let mut pipeline = Pipeline::with_capacity(reads.len() + 1);
    // It takes one key at least.
    let watches = watch.args_iter().len() > 1;
    pipeline.add_command(if watches { watch } else { redis::cmd("UNWATCH") });
    for read in reads.cmd_iter() {
        pipeline.add_command(read.clone());
    }
    let mut values = link.send_all(&pipeline, 0, pipeline.len()).await?;
    values.remove(0).extract_error()?;
    // The server or the slot may be another one now: that is no matter of a single key.
    let passing = values.iter().find_map(|value| match value {
        Value::ServerError(error) => Some(RedisError::from(error.clone())).filter(conn::is_passing),
        _ => None,
    });
    match passing {
        Some(error) => Err(error),
        None => Ok(values),
    }
}

/// Attributes by key, as the changes see them.
type Attrs<'a> = HashMap<&'a [u8], Vec<u8>>;

fn next(answers: &mut impl Iterator<Item = Value>) -> EngineResult<Value> {
    match answers.next() {
        Some(Value::ServerError(error)) => Err(conn::server_fault(&error, "commit").into()),
        Some(value) => Ok(value),
        None => Err(internal("too few answers")),
    }
}

fn bytes(value: Value) -> Option<Vec<u8>> {
    match value {
        Value::BulkString(bytes) => Some(bytes),
        _ => None,
    }
}

fn is_int(value: &Value, wanted: &[u8]) -> bool {
    matches!(value, Value::Int(n) if n.to_string().as_bytes() == wanted)
}

/// What INCRBY and HINCRBY take, with room for any delta below 10^18.
fn is_number(value: &Option<Vec<u8>>) -> bool {
    let Some(value) = value else { return true };
    super::codec::parse::<i64>(value).is_some_and(|n| n.unsigned_abs() < 1_000_000_000_000_000_000)
}

fn corrupt(step: &Step<'_>) -> EngineError {
    let key = String::from_utf8_lossy(step.key).into_owned();
    Fault::corrupt("commit").with("engine", "redis").with("key", key).into()
}

/// `None` when a check does not hold.
fn check<'a>(checks: &[Step<'a>], answers: &mut impl Iterator<Item = Value>) -> EngineResult<Option<Attrs<'a>>> {
    let (mut attrs, mut v): (Attrs<'a>, Vec<u8>) = Default::default();
    let mut holds = true;
    for step in checks {
        let args = &step.args;
        holds &= match step.op {
            b'F' => match bytes(next(answers)?) {
                Some(value) => {
                    attrs.insert(step.key, value.clone());
                    v = value;
                    true
                }
                // What follows is about a node that is not there.
                None => return Ok(None),
            },
            b'f' => {
                let at = number(args.first()).unwrap_or(1).saturating_sub(1);
                v.get(at..at + args[1].len()) == Some(args[1])
            }
            b'k' => v.get(1).copied().unwrap_or(0) >> 4 == number(args.first()).unwrap_or(usize::MAX) as u8,
            b'm' => {
                let byte = |at: usize| usize::from(v.get(at).copied().unwrap_or(0));
                Some((byte(1) & 15) << 8 | byte(2)) == number(args.first())
            }
            b't' => {
                let (parent, acls, tier) = tail_of(&v);
                let same = |wanted: &[u8], is: &[u8]| wanted.is_empty() || wanted == is;
                same(args[0], &parent) && same(args[1], &acls) && same(args[2], &[tier])
            }
            b'H' => bytes(next(answers)?).as_deref() == Some(args[1]),
            b'D' => bytes(next(answers)?).as_deref().unwrap_or(args[1]) == args[2],
            b'h' => is_int(&next(answers)?, b"0"),
            b'w' => next(answers).map(|_| true)?,
            b'n' | b'i' => match is_number(&bytes(next(answers)?)) {
                true => true,
                false => return Err(corrupt(step)),
            },
            b'c' if v.len() < HEAD_BYTES => return Err(corrupt(step)),
            b'c' => true,
            b'E' | b'l' => is_int(&next(answers)?, args[0]),
            b'G' => bytes(next(answers)?).as_deref() == Some(args[0]),
            b'M' => is_int(&next(answers)?, args[1]),
            b'Z' => match bytes(next(answers)?) {
                Some(score) => super::codec::parse_score(&score).is_some_and(|n| n.to_string().as_bytes() == args[1]),
                None => args[1].is_empty(),
            },
            b'A' => {
                let fields = super::codec::pairs(next(answers)?).unwrap_or_default();
                let wanted = args[1..].chunks_exact(2);
                let has = |pair: &[&[u8]]| fields.iter().any(|(field, value)| field == pair[0] && value == pair[1]);
                fields.len() == wanted.len() && wanted.into_iter().all(has)
            }
            b'L' => {
                let Value::Array(list) = next(answers)? else { return Err(corrupt(step)) };
                let count = number(args.first()).unwrap_or(usize::MAX);
                let enough = list.len() >= count.max(1);
                enough && list.into_iter().take(count).filter_map(bytes).collect::<Vec<_>>().concat() == args[1]
            }
            b'p' => match next(answers)? {
                Value::Int(length) => length >= number(args.first()).unwrap_or(usize::MAX).max(1) as i64,
                _ => false,
            },
            _ => return Err(internal("a check that is none")),
        };
        if !holds {
            return Ok(None);
        }
    }
    Ok(Some(attrs))
}

/// Parent, ACL ids and tier, whatever variant of the record this is.
fn tail_of(v: &[u8]) -> ([u8; 8], [u8; 8], u8) {
    let eight = |at: usize| v.get(at..at + 8).and_then(|bytes| bytes.try_into().ok()).unwrap_or_default();
    match v.len() {
        ..71 => ([0; 8], [0; 8], 0),
        71..79 => (eight(63), [0; 8], v.get(71).copied().unwrap_or(0)),
        _ => (eight(63), eight(71), v.get(79).copied().unwrap_or(0)),
    }
}

// --- writing -------------------------------------------------------------------------------------------------------

/// Where a report comes from.
enum Report {
    /// The reply at this place.
    Reply(usize),
    Known(i64),
}

impl Report {
    fn of(self, values: &[Value]) -> EngineResult<Value> {
        match self {
            Report::Known(n) => Ok(Value::Int(n)),
            Report::Reply(at) => match values.get(at) {
                Some(Value::Int(n)) => Ok(Value::Int(*n)),
                _ => Err(internal("a change reported no number")),
            },
        }
    }
}

/// The transaction, and what is to be reported of it.
fn write<'a>(
    changes: &[Step<'a>],
    mut attrs: Attrs<'a>,
    answers: &mut impl Iterator<Item = Value>,
) -> EngineResult<(Pipeline, Vec<Report>)> {
    let (mut pipeline, mut reports) = (Pipeline::new(), Vec::new());
    pipeline.cmd("MULTI");
    // What this batch does to fields that later changes of it ask for.
    let mut fields: HashMap<(&[u8], &[u8]), bool> = HashMap::new();
    let mut references: HashMap<(&[u8], &[u8]), i64> = HashMap::new();
    let mut skipped = 0;
    for step in changes {
        let (key, args) = (step.key, &step.args[..]);
        if skipped > 0 {
            skipped -= 1;
            continue;
        }
        let mut add = |name: &str, rest: &[&[u8]]| {
            pipeline.add_command(cmd(name, key, rest));
        };
        match step.op {
            b'h' => {
                fields.insert((key, args[0]), true);
                add("HSET", args);
                super::codec::parse(args[1]).map(|put| references.insert((key, args[0]), put));
            }
            b'x' => {
                fields.insert((key, args[0]), false);
                add("HDEL", args);
                references.insert((key, args[0]), 0);
            }
            b'i' => {
                fields.insert((key, args[0]), true);
                add("HINCRBY", args);
            }
            b'o' => add("HDEL", &[b""]),
            b's' => {
                attrs.insert(key, args[0].to_vec());
                add("SET", args);
            }
            b'P' => {
                let old = attrs.get(key).filter(|old| old.len() >= HEAD_BYTES).ok_or_else(|| corrupt(step))?;
                let new = patched(old, args).ok_or_else(|| internal("a patch that is none"))?;
                add("SET", &[&new]);
                attrs.insert(key, new);
            }
            b'+' => add("INCRBY", args),
            b'A' => {
                add(if args[0] == b"1" { "RPUSHX" } else { "RPUSH" }, &args[2..]);
                reports.push(Report::Reply(pipeline.len() - 2));
            }
            b'c' => {
                let is_there = is_int(&next(answers)?, b"1");
                if !fields.get(&(key, args[0])).copied().unwrap_or(is_there) {
                    skipped = number(args.get(1)).unwrap_or(0);
                }
            }
            b'R' => {
                let stored = bytes(next(answers)?);
                let before = match (references.get(&(key, args[0])), stored) {
                    (Some(before), _) => *before,
                    (None, Some(stored)) => super::codec::parse::<i64>(&stored).ok_or_else(|| corrupt(step))?,
                    (None, None) => 0,
                };
                let delta = super::codec::parse::<i64>(args[1]).ok_or_else(|| internal("a delta that is none"))?;
                let left = before + delta;
                references.insert((key, args[0]), left);
                match left {
                    0 => add("HDEL", &args[..1]),
                    _ => add("HSET", &[args[0], left.to_string().as_bytes()]),
                }
                reports.push(Report::Known(left + 1));
            }
            b'U' => {
                attrs.remove(key);
                add("UNLINK", &[]);
            }
            b'S' => add("SET", args),
            b'a' => add("SADD", args),
            b'r' => add("SREM", args),
            b'z' => add("ZADD", args),
            b'y' => add("ZREM", args),
            b'C' => {
                add("UNLINK", &[]);
                if args.len() > 1 {
                    add("RPUSH", &args[1..]);
                }
            }
            b'T' => {
                add("LTRIM", &[args[0], b"-1"]);
                if args.len() > 2 {
                    add("LPUSH", &args[2..]);
                }
            }
            _ => return Err(internal("a change that is none")),
        }
    }
    pipeline.cmd("EXEC");
    Ok((pipeline, reports))
}

/// Step `P` of `commit.lua`: ranges, then the relative changes, then the tail.
fn patched(old: &[u8], args: &[&[u8]]) -> Option<Vec<u8>> {
    let ranges = number(args.first())?;
    let mut head: [u8; HEAD_BYTES] = old.get(..HEAD_BYTES)?.try_into().ok()?;
    let (ranges, rest) = args[1..].split_at_checked(2 * ranges)?;
    for range in ranges.chunks_exact(2) {
        let at = number(range.first())?.checked_sub(1)?;
        head.get_mut(at..at + range[1].len())?.copy_from_slice(range[1]);
    }
    let [mode, nlink, length, set_parent, set_acls, set_tier] = rest else { return None };
    if let Some(mode) = number(Some(mode)) {
        head[1] = head[1] & 0xF0 | (mode >> 8) as u8 & 0x0F;
        head[2] = mode as u8;
    }
    if let Some(added) = super::codec::parse::<i64>(nlink) {
        let links = i64::from(u32::from_be_bytes(head[47..51].try_into().ok()?)) + added;
        head[47..51].copy_from_slice(&(links.clamp(0, u32::MAX.into()) as u32).to_be_bytes());
    }
    // Numbers of equal length are in the order of their bytes.
    if !length.is_empty() && head[51..59] < **length {
        head[51..59].copy_from_slice(length);
    }
    let (parent, acls, tier) = tail_of(old);
    let or = |set: &[u8], old: &[u8]| if set.is_empty() { old.to_vec() } else { set.to_vec() };
    let (acls, tier) = (or(set_acls, &acls), or(set_tier, &[tier]));
    let mut new = [&head[..], &or(set_parent, &parent)].concat();
    if acls != [0; 8] {
        new.extend(acls);
    }
    if tier != [0] {
        new.extend(tier);
    }
    new.push(0);
    Some(new)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::engine::redis::RedisEngine;
    use sluice_test_servers::program;
    use sluice_test_servers::redis::{Redis, WITHOUT_SCRIPTS};

    /// A key that changes its type between what was looked at and EXEC leaves the rest of the transaction applied.
    #[tokio::test]
    async fn a_transaction_applied_in_part_is_told() {
        if program("redis-server").is_none() {
            return sluice_test_servers::skip("redis-server is not installed");
        }
        let server = Redis::start(&WITHOUT_SCRIPTS);
        let engine = RedisEngine::open(&server.url(0)).await.unwrap();
        let (link, _) = engine.main.get(Instant::now() + DEADLINE).await.unwrap();
        server.run(&["SET", "hash", "no hash"]);
        let mut pipeline = Pipeline::new();
        pipeline.cmd("MULTI");
        pipeline.add_command(cmd("INCRBY", b"number", &[b"1"])).add_command(cmd(
            "HSET",
            b"hash",
            &[b"field", b"value"],
        ));
        pipeline.cmd("EXEC");
        match execute(&link, &pipeline).await {
            Ok(Ended::InPart(error)) => assert_eq!(error.code(), "WRONGTYPE"),
            Ok(Ended::Done(values)) => panic!("counts as applied: {values:?}"),
            Ok(Ended::Disturbed) => panic!("nothing was watched"),
            Err(error) => panic!("{error}"),
        }
        assert_eq!(server.run(&["GET", "number"]), "1");
    }
}
