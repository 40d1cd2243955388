//! What is acknowledged is on the replicas that may take over. Redis answers first and replicates then, so a master that
//! dies, or that is relieved while it takes writes, loses what it acknowledged last. A commit is answered to the caller
//! only when all replicas that follow have it ([`Replicas::assure`]), or as many as the URL asks for (`wait-replicas`).
//!
//! All of them, because nobody knows which one will be promoted: a replica that was is no replica any more and confirms
//! nothing, so that one confirmation fewer than before is the sign of it. Then the sentinels (or other nodes of the
//! cluster) are asked who the master is. It is another one: the connection is given up, the commit is of unknown outcome,
//! and the metadata layer looks at the new master. A failover is going on: we wait for its end. Neither: a replica is gone
//! or too slow; the log is told, and we go on with those that are left, or none, and count again from time to time
//! (semi-synchronous, as MySQL's).
//!
//! WAIT blocks its connection, so it has one of its own, to the same run of the same server. One round (ROLE, WAIT, ROLE)
//! serves all commits that were answered before it began. The numbers are those of ROLE: which offset the master was at,
//! and how far each replica had confirmed afterwards; servers differ in what WAIT counts, it only says when to look. So it
//! does not matter who has written, and what a read has found is assured in the same way.
//!
//! Not covered: a request that a node of a cluster sends on (ASK) to where a slot is moving to, a master that is cut off
//! from its replicas and from all sentinels and only reached by us, and replicas that hold data in memory alone when all
//! of them die together. A replica that was left out may be promoted by hand.
//!
//! Road not taken: WAIT behind each commit in the same write. It saves the lone commit a trip, but the next commits and
//! all reads of the mount would stand in line behind it.

use super::conn;
use super::link::Link;
use super::route::{Route, Standing};
use crate::base::FaultKind;
use crate::util::outage::Outage;
use redis::{Pipeline, RedisError, RedisResult, Value};
use std::io;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// A replica that has not confirmed after this long is left out.
const CONFIRM_TIMEOUT: Duration = Duration::from_secs(1);
/// Each later time in one round.
const AGAIN_TIMEOUT: Duration = Duration::from_millis(200);
/// For the rest of a round: a server that says nothing is as good as gone.
const ANSWER_TIMEOUT: Duration = Duration::from_millis(1500);
/// A failover that is going on is waited for so long.
const FAILOVER_TIMEOUT: Duration = Duration::from_secs(15);
/// Where not all who could know of another master can be asked: they tell each other within two seconds.
const HEARSAY: Duration = Duration::from_secs(5);
/// For those before in line.
const TURN_TIMEOUT: Duration = Duration::from_secs(20);
/// A replica that was left out counts again this long after.
const LEFT_OUT: Duration = Duration::from_secs(10);
/// How often replicas are looked for where there is none.
const ALONE: Duration = Duration::from_secs(1);
const PAUSE: Duration = Duration::from_millis(20);

pub(super) struct Replicas {
    /// As many as follow, but no more than this; 0 where nothing is waited for.
    wanted: usize,
    /// That there is none is worth a warning.
    expects_some: bool,
    /// Rounds that have begun.
    begun: AtomicU64,
    /// The user may not ask for what is needed.
    forbidden: AtomicBool,
    missing: Outage,
    state: tokio::sync::Mutex<State>,
}

#[derive(Default)]
struct State {
    witness: Option<Witness>,
    /// The last round that failed, at which run of a server.
    failed: Option<(u64, u64, RedisError)>,
}

/// Our connection to the master for nothing else.
struct Witness {
    link: Link,
    /// How many replicas have to confirm.
    expected: usize,
    /// The last round that went well.
    assured: u64,
    /// When a replica was left out.
    left_out: Option<Instant>,
    /// When there was none.
    alone: Option<Instant>,
}

/// What ROLE says of a master.
struct Seen {
    offset: i64,
    /// Up to where each replica has confirmed.
    confirmed: Vec<i64>,
}

impl Seen {
    fn with(&self, offset: i64) -> usize {
        self.confirmed.iter().filter(|confirmed| **confirmed >= offset).count()
    }
}

impl Replicas {
    pub(super) fn new(wanted: usize, expects_some: bool) -> Replicas {
        Replicas {
            wanted,
            expects_some,
            begun: AtomicU64::new(0),
            forbidden: AtomicBool::new(false),
            missing: Outage::default(),
            state: tokio::sync::Mutex::default(),
        }
    }

    pub(super) fn are_waited_for(&self) -> bool {
        self.wanted > 0 && !self.forbidden.load(Ordering::Relaxed)
    }

    /// All that the server of `link` has executed so far is on its replicas when this returns. An error says that nobody
    /// knows, and that the server is to be left.
    pub(super) async fn assure(&self, route: &Route, link: &Link) -> RedisResult<()> {
        if !self.are_waited_for() {
            return Ok(());
        }
        let before = self.begun.load(Ordering::SeqCst);
        let mut state = tokio::time::timeout(TURN_TIMEOUT, self.state.lock())
            .await
            .map_err(|_| lost(io::ErrorKind::TimedOut, "replicas are waited for by too many"))?;
        if let Some((round, server, error)) = &state.failed
            && *round > before
            && *server == link.identity()
        {
            return Err(error.clone());
        }
        if let Some(witness) = state.witness.as_ref().filter(|witness| witness.link.identity() == link.identity())
            && (witness.assured > before || witness.is_alone())
        {
            return Ok(());
        }
        let round = self.begun.fetch_add(1, Ordering::SeqCst) + 1;
        match self.round(route, link, &mut state.witness).await {
            Ok(()) => {
                if let Some(witness) = &mut state.witness {
                    witness.assured = round;
                }
                Ok(())
            }
            Err(error) => {
                state.witness = None;
                state.failed = Some((round, link.identity(), error.clone()));
                Err(error)
            }
        }
    }

    async fn round(&self, route: &Route, link: &Link, kept: &mut Option<Witness>) -> RedisResult<()> {
        let begun = Instant::now();
        let mut fresh = false;
        let mut timeout = CONFIRM_TIMEOUT;
        loop {
            let witness = match kept.take().filter(|witness| witness.link.identity() == link.identity()) {
                Some(witness) => kept.insert(witness),
                None => {
                    fresh = true;
                    kept.insert(self.connect(route, link).await?)
                }
            };
            let (at, seen) = match witness.ask(timeout).await {
                Ok(answered) => answered,
                // Servers end connections that have been idle.
                Err(error) if conn::is_broken(&error) && !error.is_timeout() && !fresh => {
                    *kept = None;
                    continue;
                }
                Err(error) => return self.refused(error),
            };
            timeout = AGAIN_TIMEOUT;
            let caught_up = seen.with(at);
            let is_short = caught_up < witness.expected;
            if !is_short && !fresh && witness.expected > 0 {
                self.count_again(witness, &seen, route);
                return Ok(());
            }
            // Nobody follows, or one less: or a server that has slept, and been relieved meanwhile.
            let waits = match route.standing(link).await {
                Standing::Replaced => {
                    return Err(lost(
                        io::ErrorKind::NotConnected,
                        "the master has been replaced before replicas confirmed",
                    ));
                }
                Standing::Relieved if begun.elapsed() < FAILOVER_TIMEOUT => true,
                Standing::Relieved => {
                    return Err(lost(io::ErrorKind::TimedOut, "a failover does not come to its end"));
                }
                Standing::Unheard if is_short || (fresh && seen.confirmed.is_empty()) => begun.elapsed() < HEARSAY,
                Standing::Master if is_short => begun.elapsed() < CONFIRM_TIMEOUT,
                Standing::Unheard | Standing::Master => false,
            };
            if !waits && is_short {
                self.leave_out(witness, caught_up, route);
                return Ok(());
            }
            if !waits {
                let knew = witness.expected > 0;
                self.count_again(witness, &seen, route);
                // Those that have just been found have not been waited for.
                if knew || witness.expected == 0 || seen.with(at) >= witness.expected {
                    return Ok(());
                }
                (fresh, timeout) = (false, CONFIRM_TIMEOUT);
            }
            tokio::time::sleep(PAUSE).await;
        }
    }

    async fn connect(&self, route: &Route, link: &Link) -> RedisResult<Witness> {
        let endpoint = link.endpoint().ok_or_else(|| lost(io::ErrorKind::NotFound, "the server has no address"))?;
        let witness = route.connect_to(endpoint).await?;
        if witness.identity() != link.identity() {
            return Err(lost(io::ErrorKind::NotConnected, "another run of the server is at its address"));
        }
        Ok(Witness { link: witness, expected: 0, assured: 0, left_out: None, alone: None })
    }

    /// After a round that found all that it expected: as many as follow now are expected from here on.
    fn count_again(&self, witness: &mut Witness, seen: &Seen, route: &Route) {
        let follow = seen.confirmed.len().min(self.wanted);
        if follow > witness.expected && witness.left_out.is_none_or(|since| since.elapsed() >= LEFT_OUT) {
            (witness.expected, witness.left_out) = (follow, None);
        }
        if witness.expected == 0 {
            witness.alone = Some(Instant::now());
            self.warn(witness, route);
        } else if let Some(over) = self.missing.succeeded() {
            let seconds = over.lasted.as_secs_f64();
            let address = witness.link.address();
            tracing::info!(address, "{} redis replicas confirm changes, after {seconds:.1} s", witness.expected);
        }
    }

    fn leave_out(&self, witness: &mut Witness, caught_up: usize, route: &Route) {
        witness.expected = caught_up;
        let now = Some(Instant::now());
        (witness.left_out, witness.alone) = (now, now);
        self.warn(witness, route);
    }

    fn warn(&self, witness: &Witness, route: &Route) {
        let expects_some = self.expects_some || !route.is_cluster();
        if (expects_some || witness.expected > 0) && self.missing.failed() {
            let address = witness.link.address();
            match witness.expected {
                0 => tracing::warn!(
                    address,
                    "no replica of redis confirms changes: what is acknowledged now is lost if the master dies"
                ),
                left => tracing::warn!(address, "a redis replica confirms no changes in time, {left} still do"),
            }
        }
    }

    /// What is forbidden is not tried again.
    fn refused(&self, error: RedisError) -> RedisResult<()> {
        let fault = conn::fault(error.clone(), "wait for replicas");
        match fault.kind() {
            FaultKind::Denied | FaultKind::Unsupported => {
                self.forbidden.store(true, Ordering::Relaxed);
                tracing::warn!(
                    "changes are not confirmed by replicas: allow ROLE and WAIT, or set wait-replicas=0: {fault}"
                );
                Ok(())
            }
            _ if conn::is_broken(&error) => Err(error),
            _ => Err(io::Error::new(io::ErrorKind::NotConnected, format!("waiting for replicas: {error}")).into()),
        }
    }
}

impl Witness {
    /// There was no replica a moment ago.
    fn is_alone(&self) -> bool {
        self.expected == 0 && self.alone.is_some_and(|since| since.elapsed() < ALONE)
    }

    /// Where the master was when it was asked, and how far its replicas are now.
    async fn ask(&mut self, timeout: Duration) -> RedisResult<(i64, Seen)> {
        let mut pipeline = Pipeline::with_capacity(3);
        pipeline.cmd("ROLE");
        if self.expected > 0 {
            pipeline.cmd("WAIT").arg(self.expected).arg(timeout.as_millis() as u64).cmd("ROLE");
        }
        let asked = tokio::time::timeout(timeout + ANSWER_TIMEOUT, self.link.send_all(&pipeline, 0, pipeline.len()));
        let answers = asked.await.unwrap_or_else(|_| Err(lost(io::ErrorKind::TimedOut, "no answer to WAIT")))?;
        let mut roles = Vec::with_capacity(2);
        for answer in answers {
            match answer.extract_error()? {
                Value::Array(role) => roles.push(read_role(&role)?),
                Value::Int(_) => {}
                _ => return Err(odd()),
            }
        }
        let last = roles.pop().ok_or_else(odd)?;
        Ok((roles.first().map_or(last.offset, |first| first.offset), last))
    }
}

fn lost(kind: io::ErrorKind, why: &'static str) -> RedisError {
    io::Error::new(kind, why).into()
}

fn odd() -> RedisError {
    lost(io::ErrorKind::InvalidData, "ROLE or WAIT answered something else")
}

fn read_role(role: &[Value]) -> RedisResult<Seen> {
    let number = |value: &Value| match value {
        Value::Int(number) => Some(*number),
        Value::BulkString(bytes) => std::str::from_utf8(bytes).ok()?.parse().ok(),
        _ => None,
    };
    match role {
        [Value::BulkString(name), offset, Value::Array(replicas)] if name == b"master" => {
            let confirmed = |replica: &Value| match replica {
                Value::Array(parts) => parts.get(2).and_then(number),
                _ => None,
            };
            let confirmed: Option<Vec<i64>> = replicas.iter().map(confirmed).collect();
            Ok(Seen { offset: number(offset).ok_or_else(odd)?, confirmed: confirmed.ok_or_else(odd)? })
        }
        [Value::BulkString(name), ..] if name != b"master" => {
            Err(lost(io::ErrorKind::NotConnected, "the master has become a replica before replicas confirmed"))
        }
        _ => Err(odd()),
    }
}
