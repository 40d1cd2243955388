//! Which server has the volume now: the one of the URL, the node of a cluster that serves the volume's slot, or the
//! master that sentinels know. Asked again for every new connection, so that a failover, or a slot that moves, needs no
//! more than that the old connection is given up.
//!
//! Whoever answers is only asked: a sentinel's master says itself whether it is one (ROLE), and a node that does not have
//! the slot any more answers MOVED to the first request, which leads on ([`Route::redirected`]).
//!
//! Road not taken: the crate's cluster and sentinel clients. All keys of a volume are in one slot, so a cluster is one
//! connection here, with the same promises about what is sent twice as to a single server.

use super::link::{Access, Endpoint, Link};
use super::url::{Place, Target};
use parking_lot::Mutex;
use redis::{Cmd, ErrorKind, RedisError, RedisResult, ServerErrorKind, Value};
use std::io;
use std::time::Duration;

/// For one of several servers to accept a connection and say something: the others are asked after that.
const STEP_TIMEOUT: Duration = Duration::from_millis(1500);
/// Nodes of a cluster that are remembered to be asked.
const NODES_MAX: usize = 256;
/// Nodes of a cluster of which one should know that a slot has another master.
const WITNESSES_MAX: usize = 5;

/// What others say of a server that calls itself the master.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Standing {
    Master,
    /// Another one is being chosen, or has just been.
    Relieved,
    /// Another one is.
    Replaced,
    /// Nobody says anything else, but not everybody could be asked.
    Unheard,
}

pub(super) struct Route {
    place: Place,
    access: Access,
    /// Whom to ask, in a cluster: the seeds of the URL, then the nodes that were seen last.
    nodes: Mutex<Vec<Endpoint>>,
    /// Where a node of the cluster has sent us.
    hint: Mutex<Option<Endpoint>>,
    slot: u16,
}

impl Route {
    pub(super) fn new(target: &Target) -> Route {
        let nodes = match &target.place {
            Place::Cluster(seeds) => seeds.clone(),
            _ => Vec::new(),
        };
        Route {
            place: target.place.clone(),
            access: target.access.clone(),
            nodes: Mutex::new(nodes),
            hint: Mutex::default(),
            slot: target.prefix.slot(),
        }
    }

    /// Whether another server may take over.
    pub(super) fn has_others(&self) -> bool {
        !matches!(self.place, Place::Server(_))
    }

    pub(super) fn is_cluster(&self) -> bool {
        matches!(self.place, Place::Cluster(_))
    }

    /// A new connection to the server that has the volume, within `connecting` in all.
    pub(super) async fn connect(&self, connecting: Duration) -> RedisResult<Link> {
        let connected = async {
            let link = match &self.place {
                Place::Server(endpoint) => Link::connect(endpoint, &self.access, connecting).await?,
                Place::Cluster(_) => self.to_owner().await?,
                Place::Sentinel { master, sentinels, access } => self.to_master(master, sentinels, access).await?,
            };
            link.identify().await
        };
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        tokio::time::timeout(connecting, connected).await.unwrap_or_else(|_| timed_out())
    }

    /// A connection to where a node has sent one request (ASK): a part of the slot is there already.
    pub(super) async fn connect_to(&self, endpoint: &Endpoint) -> RedisResult<Link> {
        let connected = async { Link::connect(endpoint, &self.access, STEP_TIMEOUT).await?.identify().await };
        let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
        tokio::time::timeout(STEP_TIMEOUT, connected).await.unwrap_or_else(|_| timed_out())
    }

    /// Whether the server of a connection is still the master, by what all others say who could know. If it is not, the
    /// next connection is made to the one that is.
    pub(super) async fn standing(&self, link: &Link) -> Standing {
        let Some(endpoint) = link.endpoint() else { return Standing::Unheard };
        let (standing, other) = match &self.place {
            Place::Server(_) => (Standing::Master, None),
            Place::Cluster(_) => self.standing_in_cluster(endpoint).await,
            Place::Sentinel { master, sentinels, access } => {
                let asked = sentinels.iter().map(|sentinel| hear(sentinel, master, access));
                judge_by(&futures::future::join_all(asked).await, endpoint)
            }
        };
        if let Some(other) = other {
            *self.hint.lock() = Some(other);
        }
        standing
    }

    async fn standing_in_cluster(&self, endpoint: &Endpoint) -> (Standing, Option<Endpoint>) {
        let mut nodes = self.nodes.lock().clone();
        nodes.retain(|node| node != endpoint);
        if nodes.is_empty() {
            return (Standing::Unheard, None);
        }
        let first = rand::random_range(0..nodes.len());
        nodes.rotate_left(first);
        let asked = nodes.iter().take(WITNESSES_MAX).map(|node| async move {
            let link = Link::connect(node, &self.access, STEP_TIMEOUT).await.ok()?;
            let slots = ask(&link, redis::cmd("CLUSTER").arg("SLOTS")).await.ok()?;
            read_slots(&slots, self.slot, node).0
        });
        let heard: Vec<Endpoint> = futures::future::join_all(asked).await.into_iter().flatten().collect();
        match heard.iter().find(|owner| *owner != endpoint) {
            Some(other) => (Standing::Replaced, Some(other.clone())),
            None if heard.is_empty() => (Standing::Unheard, None),
            None => (Standing::Master, None),
        }
    }

    /// Remembers where a node says that the slot is (MOVED).
    pub(super) fn redirected(&self, error: &RedisError) {
        if error.kind() == ErrorKind::Server(ServerErrorKind::Moved) {
            *self.hint.lock() = redirection(error).filter(|_| self.is_cluster());
        }
    }

    // --- cluster ---------------------------------------------------------------------------------------------------

    async fn to_owner(&self) -> RedisResult<Link> {
        let hint = self.hint.lock().take();
        if let Some(hint) = hint
            && let Ok(link) = Link::connect(&hint, &self.access, STEP_TIMEOUT).await
        {
            return Ok(link);
        }
        let mut nodes = self.nodes.lock().clone();
        // One that is gone should not be the first to be asked each time.
        let count = nodes.len().max(1);
        nodes.rotate_left(rand::random_range(0..count));
        let mut last = nowhere("no node of the cluster is known");
        for node in nodes {
            match self.owner_says(&node).await {
                Ok(link) => return Ok(link),
                // Whatever the next node says, these are not what it depends on.
                Err(error) if is_refusal(&error) => return Err(error),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    /// Asks a node for the one with the slot, and connects to that.
    async fn owner_says(&self, node: &Endpoint) -> RedisResult<Link> {
        let link = Link::connect(node, &self.access, STEP_TIMEOUT).await?;
        let slots = ask(&link, redis::cmd("CLUSTER").arg("SLOTS")).await?;
        let (owner, seen) = read_slots(&slots, self.slot, node);
        self.remember(seen);
        match owner {
            Some(owner) if owner == *node => Ok(link),
            Some(owner) => Link::connect(&owner, &self.access, STEP_TIMEOUT).await,
            None => Err(nowhere("no node of the cluster serves the slot of the volume")),
        }
    }

    fn remember(&self, seen: Vec<Endpoint>) {
        let Place::Cluster(seeds) = &self.place else { return };
        let mut nodes = seeds.clone();
        for node in seen {
            if nodes.len() < NODES_MAX && !nodes.contains(&node) {
                nodes.push(node);
            }
        }
        *self.nodes.lock() = nodes;
    }

    // --- sentinel --------------------------------------------------------------------------------------------------

    async fn to_master(&self, master: &str, sentinels: &[Endpoint], access: &Access) -> RedisResult<Link> {
        let hint = self.hint.lock().take();
        if let Some(hint) = hint
            && let Ok(link) = self.as_master(&hint).await
        {
            return Ok(link);
        }
        let first = rand::random_range(0..sentinels.len().max(1));
        let mut last = nowhere("no sentinel is known");
        for sentinel in sentinels[first..].iter().chain(&sentinels[..first]) {
            match self.master_by(sentinel, master, access).await {
                Ok(link) => return Ok(link),
                Err(error) => last = error,
            }
        }
        Err(last)
    }

    async fn master_by(&self, sentinel: &Endpoint, master: &str, access: &Access) -> RedisResult<Link> {
        let asked = Link::connect(sentinel, access, STEP_TIMEOUT).await?;
        self.as_master(&master_address(&asked, master).await?).await
    }

    /// A connection to a server that says that it is a master.
    async fn as_master(&self, endpoint: &Endpoint) -> RedisResult<Link> {
        let link = Link::connect(endpoint, &self.access, STEP_TIMEOUT).await?;
        match ask(&link, &redis::cmd("ROLE")).await {
            Ok(Value::Array(role)) if role.first().and_then(text).as_deref() != Some("master") => {
                Err(nowhere("the master that a sentinel knows is none (yet, or any more)"))
            }
            // A user may be forbidden to ask; then the first change tells.
            Ok(_) => Ok(link),
            Err(error) if error.code() == Some("NOPERM") => Ok(link),
            Err(error) => Err(error),
        }
    }
}

async fn master_address(sentinel: &Link, master: &str) -> RedisResult<Endpoint> {
    let answer = ask(sentinel, redis::cmd("SENTINEL").arg("GET-MASTER-ADDR-BY-NAME").arg(master)).await?;
    let found = match answer {
        Value::Array(parts) => match &parts[..] {
            [host, port] => text(host).zip(text(port).and_then(|port| port.parse().ok())),
            _ => None,
        },
        Value::Nil => return Err(nowhere("the sentinels know no master of this name")),
        _ => None,
    };
    let (host, port) = found.ok_or_else(|| nowhere("a sentinel answered something else than an address"))?;
    Ok(Endpoint::Tcp(host, port))
}

/// What one sentinel knows.
struct Heard {
    master: Endpoint,
    /// Of two that name different masters, the one with the greater number is right.
    epoch: u64,
    is_relieved: bool,
}

async fn hear(sentinel: &Endpoint, master: &str, access: &Access) -> Option<Heard> {
    let link = Link::connect(sentinel, access, STEP_TIMEOUT).await.ok()?;
    // First the state: a failover that ends in between shows in the address.
    let state = ask(&link, redis::cmd("SENTINEL").arg("MASTER").arg(master)).await;
    let master = master_address(&link, master).await.ok()?;
    let fields = match state {
        Ok(Value::Array(fields)) => fields,
        // Forbidden to this user.
        _ => Vec::new(),
    };
    let field = |name: &str| {
        fields.chunks_exact(2).find(|pair| text(&pair[0]).as_deref() == Some(name)).and_then(|pair| text(&pair[1]))
    };
    let flags = field("flags").unwrap_or_default();
    let is_relieved = flags.split(',').any(|flag| matches!(flag, "failover_in_progress" | "o_down"));
    Some(Heard { master, epoch: field("config-epoch").and_then(|epoch| epoch.parse().ok()).unwrap_or(0), is_relieved })
}

/// Makes up our mind from what the sentinels say of a server, and answers which other one it is.
fn judge_by(answers: &[Option<Heard>], endpoint: &Endpoint) -> (Standing, Option<Endpoint>) {
    let heard = || answers.iter().flatten();
    match heard().max_by_key(|heard| (heard.epoch, heard.master != *endpoint)) {
        Some(last) if last.master != *endpoint => (Standing::Replaced, Some(last.master.clone())),
        Some(_) if heard().any(|heard| heard.is_relieved) => (Standing::Relieved, None),
        Some(_) if heard().count() == answers.len() => (Standing::Master, None),
        _ => (Standing::Unheard, None),
    }
}

async fn ask(link: &Link, cmd: &Cmd) -> RedisResult<Value> {
    let timed_out = || Err(io::Error::from(io::ErrorKind::TimedOut).into());
    let asked = async { link.send(cmd).await?.extract_error() };
    tokio::time::timeout(STEP_TIMEOUT, asked).await.unwrap_or_else(|_| timed_out())
}

/// Not found this time.
fn nowhere(why: &'static str) -> RedisError {
    io::Error::new(io::ErrorKind::NotConnected, why).into()
}

/// The servers of a cluster have the same users, certificates and settings.
fn is_refusal(error: &RedisError) -> bool {
    !matches!(error.kind(), ErrorKind::Io | ErrorKind::Parse) && !super::conn::is_passing(error)
}

/// Where MOVED and ASK lead.
pub(super) fn redirection(error: &RedisError) -> Option<Endpoint> {
    let (address, _slot) = error.redirect_node()?;
    let (host, port) = address.rsplit_once(':')?;
    let host = host.trim_start_matches('[').trim_end_matches(']');
    // Without a host it is the one that was asked, under another port; asking anew finds it.
    (!host.is_empty()).then_some(())?;
    Some(Endpoint::Tcp(host.to_owned(), port.parse().ok()?))
}

fn text(value: &Value) -> Option<String> {
    match value {
        Value::BulkString(bytes) => String::from_utf8(bytes.clone()).ok(),
        Value::SimpleString(text) => Some(text.clone()),
        _ => None,
    }
}

/// `CLUSTER SLOTS`: (first, last, master, replica…)…, a node as (host, port, …). Answers the master of a slot and all
/// nodes. A node that does not know its own address leaves the host out: it is then the one that was asked.
fn read_slots(slots: &Value, slot: u16, asked: &Endpoint) -> (Option<Endpoint>, Vec<Endpoint>) {
    let (mut owner, mut seen) = (None, Vec::new());
    let node = |value: &Value| {
        let Value::Array(parts) = value else { return None };
        let (Some(host), Some(Value::Int(port))) = (parts.first(), parts.get(1)) else { return None };
        let host = text(host).filter(|host| !host.is_empty()).or_else(|| match asked {
            Endpoint::Tcp(host, _) => Some(host.clone()),
            Endpoint::Unix(_) => None,
        })?;
        Some(Endpoint::Tcp(host, u16::try_from(*port).ok()?))
    };
    let Value::Array(ranges) = slots else { return (None, seen) };
    for range in ranges {
        let Value::Array(parts) = range else { continue };
        let [Value::Int(first), Value::Int(last), nodes @ ..] = &parts[..] else { continue };
        if (*first..=*last).contains(&i64::from(slot)) {
            owner = nodes.first().and_then(node);
        }
        seen.extend(nodes.iter().filter_map(node));
    }
    (owner, seen)
}

/// Whether the node that answered `CLUSTER NODES` has all keys of a slot: it is the slot's, and none of it is on the
/// way to another node or from there.
pub(super) fn owns_all_of_slot(nodes: &Value, slot: u16) -> bool {
    let Some(nodes) = text(nodes) else { return false };
    let of_myself = |line: &&str| line.split(' ').nth(2).is_some_and(|flags| flags.split(',').any(|f| f == "myself"));
    let Some(line) = nodes.lines().find(of_myself) else { return false };
    let mut owns = false;
    for range in line.split(' ').skip(8) {
        if let Some(moving) = range.strip_prefix('[') {
            if moving.split('-').next().and_then(|moving| moving.parse().ok()) == Some(slot) {
                return false;
            }
            continue;
        }
        let (first, last) = range.split_once('-').unwrap_or((range, range));
        if let (Ok(first), Ok(last)) = (first.parse::<u16>(), last.parse::<u16>()) {
            owns |= (first..=last).contains(&slot);
        }
    }
    owns
}

#[cfg(test)]
mod tests {
    use super::*;

    fn tcp(host: &str, port: u16) -> Endpoint {
        Endpoint::Tcp(host.to_owned(), port)
    }

    #[test]
    fn the_owner_of_a_slot_is_found() {
        let node = |host: &str, port| Value::Array(vec![Value::BulkString(host.into()), Value::Int(port)]);
        let range =
            |first, last, nodes: &[Value]| Value::Array([&[Value::Int(first), Value::Int(last)], nodes].concat());
        let slots = Value::Array(vec![
            range(0, 99, &[node("a", 1), node("b", 2)]),
            range(100, 16383, &[node("", 3)]),
            Value::Nil,
        ]);
        let asked = tcp("asked", 9);
        assert_eq!(read_slots(&slots, 99, &asked).0, Some(tcp("a", 1)));
        let (owner, seen) = read_slots(&slots, 100, &asked);
        assert_eq!((owner, seen), (Some(tcp("asked", 3)), vec![tcp("a", 1), tcp("b", 2), tcp("asked", 3)]));
        assert_eq!(read_slots(&Value::Nil, 100, &asked), (None, vec![]));
    }

    #[test]
    fn a_slot_on_its_way_is_not_whole() {
        let nodes = |slots: &str| {
            let others = "07c3 127.0.0.1:30004@31004 slave e7d1 0 1426238317239 4 connected\n";
            let line = format!("e7d1 127.0.0.1:30001@31001,host myself,master - 0 0 1 connected{slots}\n");
            Value::BulkString([others, &line].concat().into_bytes())
        };
        for (slots, whole) in [
            (" 0-5460", true),
            (" 0-92 93 94-100", true),
            (" 0-92 94-100", false),
            (" 0-5460 [93->-67ed]", false),
            (" [93-<-67ed]", false),
            (" 0-5460 [94->-67ed]", true),
            ("", false),
        ] {
            assert_eq!(owns_all_of_slot(&nodes(slots), 93), whole, "{slots}");
        }
    }

    #[test]
    fn the_sentinel_that_knows_of_the_last_failover_is_right() {
        let (ours, other) = (tcp("a", 1), tcp("b", 2));
        let says = |master: &Endpoint, epoch, is_relieved| Some(Heard { master: master.clone(), epoch, is_relieved });
        for (answers, standing) in [
            (vec![says(&ours, 3, false), says(&ours, 3, false)], Standing::Master),
            (vec![says(&ours, 3, false), None], Standing::Unheard),
            (vec![None, None], Standing::Unheard),
            (vec![says(&ours, 3, false), says(&ours, 3, true), None], Standing::Relieved),
            (vec![says(&ours, 3, false), says(&other, 4, true)], Standing::Replaced),
            (vec![says(&ours, 3, false), says(&other, 3, true)], Standing::Replaced),
            // It has been away.
            (vec![says(&ours, 3, false), says(&other, 2, false)], Standing::Master),
        ] {
            let judged = judge_by(&answers, &ours);
            let hint = (standing == Standing::Replaced).then(|| other.clone());
            assert_eq!(judged, (standing, hint));
        }
    }

    #[test]
    fn redirections_are_read() {
        for (detail, endpoint) in [
            ("3999 127.0.0.1:6381", Some(tcp("127.0.0.1", 6381))),
            ("3999 ::1:6381", Some(tcp("::1", 6381))),
            ("3999 :6381", None),
            ("3999", None),
        ] {
            let line = format!("-MOVED {detail}\r\n");
            let error = redis::parse_redis_value(line.as_bytes()).and_then(Value::extract_error).unwrap_err();
            assert_eq!(redirection(&error), endpoint, "{detail}");
        }
    }
}
