//! Where the servers are and how to reach them, from the URL (`spec/surface.md` section 2).
//!
//! The password is taken from the URL, else from `REDIS_PASSWORD`, `META_PASSWORD` or the first line of the file
//! `META_PASSWORD_FILE`; that of sentinels from `SENTINEL_PASSWORD`. None is ever printed: errors and logs name the
//! address only.

use super::codec::Prefix;
use super::link::{Access, Endpoint};
use super::tls::{Tls, TlsOptions};
use crate::base::Fault;
use crate::meta::engine::EngineResult;
use redis::RedisConnectionInfo;
use std::sync::Arc;
use std::time::Duration;

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;
const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// `read-timeout`: a script or a fork may hold the server up for a while, and a commit that is given up is a commit
/// of unknown outcome.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of the peer that change nothing here: we keep no client-side cache and have one time-out for a whole request.
const WITHOUT_EFFECT: [&str; 5] =
    ["write-timeout", "client-cache", "client-cache-size", "client-cache-expire", "client-cache-preload"];

#[derive(Clone)]
pub(super) struct Target {
    pub(super) place: Place,
    pub(super) access: Access,
    pub(super) prefix: Prefix,
    /// For errors and logs: hosts and ports, or the path of the socket, and the database.
    pub(super) address: String,
    pub(super) backoff_min: Duration,
    pub(super) backoff_max: Duration,
    /// As many replicas as follow, but no more than this, have to confirm a change (`wait-replicas`).
    wait_replicas: Option<usize>,
    /// The number in the URL. A cluster has only one database, of which it names a part.
    db: u32,
}

/// Where the volume may be; `route` finds out where it is.
#[derive(Clone)]
pub(super) enum Place {
    Server(Endpoint),
    /// Any nodes of it.
    Cluster(Vec<Endpoint>),
    Sentinel {
        master: String,
        sentinels: Vec<Endpoint>,
        access: Access,
    },
}

impl Target {
    /// `env` looks up an environment variable.
    pub(super) fn parse(url: &str, env: impl Fn(&str) -> Option<String>) -> EngineResult<Target> {
        let url = if url.contains("://") { url.to_owned() } else { format!("redis://{url}") };
        let (url, query) = url.split_once('?').unwrap_or((&url, ""));
        let mut options: Vec<(String, String)> = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            options.push((key.replace('_', "-"), decode(value)?));
        }
        let (scheme, rest) = url.split_once("://").unwrap_or(("", url));
        let (login, rest) = match scheme {
            "unix" => match rest.find('/').map(|at| rest.split_at(at)) {
                Some((login, path)) => (login.strip_suffix('@'), path),
                None => return Err(bad("unix:// needs the absolute path of a socket")),
            },
            "redis" | "rediss" => rest.rsplit_once('@').map_or((None, rest), |(login, rest)| (Some(login), rest)),
            _ => return Err(bad("the URL begins with none of redis://, rediss:// and unix://")),
        };
        let mut settings = credentials(login.unwrap_or_default())?;
        if settings.password().is_none()
            && let Some(password) = password_from(&env)?
        {
            settings = settings.set_password(password);
        }
        let mut backoff = (BACKOFF_MIN, BACKOFF_MAX);
        let mut access = Access { login: settings, tls: None, timeout: RESPONSE_TIMEOUT };
        let tls = set_options(&options, &mut access, &mut backoff)?;
        let wait_replicas = match options.iter().rev().find(|(key, _)| key == "wait-replicas") {
            Some((_, value)) => Some(replicas(value)?),
            None => None,
        };
        if scheme == "rediss" {
            access.tls = Some(Arc::new(Tls::new(tls)?));
        }
        let db = |text: &str| text.parse::<u32>().map_err(|_| bad("the database is not a number"));
        let (place, db) = match scheme {
            "unix" => {
                let option = options.iter().find(|(key, _)| key == "db").map_or("0", |(_, value)| value);
                (Place::Server(Endpoint::Unix(decode(rest)?.into())), db(option)?)
            }
            _ => {
                let (hosts, number) = rest.split_once('/').unwrap_or((rest, ""));
                (network(hosts, &access, &env)?, db(if number.is_empty() { "0" } else { number })?)
            }
        };
        let address = format!("{}/{db}", place.text());
        let target = Target {
            place,
            access,
            prefix: Prefix::NONE,
            address,
            backoff_min: backoff.0,
            backoff_max: backoff.1,
            wait_replicas,
            db,
        };
        match target.place {
            Place::Cluster(_) => Ok(target.in_cluster()),
            _ => {
                let login = target.access.login.clone().set_db(i64::from(db));
                Ok(Target { access: Access { login, ..target.access.clone() }, ..target })
            }
        }
    }

    /// How many replicas are waited for, and whether that was asked for.
    pub(super) fn wait_replicas(&self) -> (usize, bool) {
        let default = if matches!(self.place, Place::Server(_)) { 0 } else { usize::MAX };
        (self.wait_replicas.unwrap_or(default), self.wait_replicas.is_some())
    }

    /// The same where the server has turned out to be a node of a cluster.
    pub(super) fn in_cluster(mut self) -> Target {
        if let Place::Server(endpoint) = &self.place {
            self.place = Place::Cluster(vec![endpoint.clone()]);
        }
        self.access.login = self.access.login.set_db(0);
        self.prefix = Prefix::of_cluster(self.db);
        self
    }
}

impl Place {
    fn text(&self) -> String {
        let all = |list: &[Endpoint]| list.iter().map(Endpoint::to_string).collect::<Vec<_>>().join(",");
        match self {
            Place::Server(endpoint) => endpoint.to_string(),
            Place::Cluster(seeds) => all(seeds),
            Place::Sentinel { master, sentinels, .. } => format!("{master},{}", all(sentinels)),
        }
    }
}

/// Those of TLS are left to be made something of together.
fn set_options(
    options: &[(String, String)],
    access: &mut Access,
    backoff: &mut (Duration, Duration),
) -> EngineResult<TlsOptions> {
    let mut tls = TlsOptions::default();
    for (option, value) in options {
        match option.as_str() {
            "min-retry-backoff" => backoff.0 = duration(option, value)?,
            "max-retry-backoff" => backoff.1 = duration(option, value)?,
            "read-timeout" => access.timeout = duration(option, value)?.max(Duration::from_secs(1)),
            "tls-cert-file" => tls.certificate = Some(file(option, value)?),
            "tls-key-file" => tls.key = Some(file(option, value)?),
            "tls-ca-cert-file" => tls.authority = Some(file(option, value)?),
            "tls-server-name" => tls.server_name = Some(value.clone()).filter(|name| !name.is_empty()),
            "insecure-skip-verify" => tls.skip_verify = !matches!(value.as_str(), "false" | "0"),
            "route-read" => {
                tracing::warn!("route-read in the Redis URL is ignored: a replica may be behind, the master is read");
            }
            // Read on its own.
            "db" | "wait-replicas" | "protocol" => {}
            other if WITHOUT_EFFECT.contains(&other) => {}
            other => tracing::warn!(option = other, "unknown option in the Redis URL is ignored"),
        }
    }
    if tls.certificate.is_some() != tls.key.is_some() {
        return Err(bad("tls-cert-file and tls-key-file go together"));
    }
    Ok(tls)
}

/// `wait-replicas`: a number, or `all`.
fn replicas(text: &str) -> EngineResult<usize> {
    match text {
        "all" => Ok(usize::MAX),
        number => Ok(number.parse().map_err(|_| bad("wait-replicas in the URL is neither a number nor all"))?),
    }
}

fn bad(why: &'static str) -> crate::meta::engine::EngineError {
    Fault::config("open redis").source(why).into()
}

/// `host[:port]`, `host:port,host:port…` (nodes of a cluster), `MASTER,host,host[:port]` (sentinels; a name before the
/// first comma that has no port is the master's).
fn network(hosts: &str, access: &Access, env: &impl Fn(&str) -> Option<String>) -> EngineResult<Place> {
    let is_sentinel = hosts.find(',').is_some_and(|comma| hosts.find(':').is_none_or(|colon| comma < colon));
    if !is_sentinel {
        let mut hosts = hosts.split(',').map(|host| host_port(host, REDIS_PORT)).collect::<EngineResult<Vec<_>>>()?;
        return Ok(if hosts.len() == 1 { Place::Server(hosts.remove(0)) } else { Place::Cluster(hosts) });
    }
    let (master, sentinels) = hosts.split_once(',').unwrap_or((hosts, ""));
    if master.is_empty() {
        return Err(bad("the URL names no master before the sentinels"));
    }
    // One port at the end is the port of all of them.
    let port = match sentinels.rsplit_once(':').filter(|(_, port)| !port.contains(']')) {
        Some((_, port)) => port.parse().map_err(|_| bad("a port in the URL is not a number"))?,
        None => SENTINEL_PORT,
    };
    let sentinels = sentinels.split(',').map(|host| host_port(host, port)).collect::<EngineResult<Vec<_>>>()?;
    let mut login = RedisConnectionInfo::default();
    if let Some(password) = env("SENTINEL_PASSWORD").filter(|password| !password.is_empty()) {
        login = login.set_password(password);
    }
    let access = Access { login, ..access.clone() };
    Ok(Place::Sentinel { master: master.to_owned(), sentinels, access })
}

/// `host`, `host:port`, `[v6]`, `[v6]:port`.
fn host_port(text: &str, default: u16) -> EngineResult<Endpoint> {
    let (host, port) = match text.strip_prefix('[').map(|rest| rest.split_once(']')) {
        Some(Some((host, rest))) => (host, rest.strip_prefix(':')),
        Some(None) => return Err(bad("an address in the URL has no closing bracket")),
        None => text.rsplit_once(':').map_or((text, None), |(host, port)| (host, Some(port))),
    };
    if host.is_empty() || host.chars().any(|c| c.is_control() || c.is_whitespace()) {
        return Err(bad("the URL names no host"));
    }
    let port = match port {
        Some(port) => port.parse().map_err(|_| bad("a port in the URL is not a number"))?,
        None => default,
    };
    Ok(Endpoint::Tcp(host.to_owned(), port))
}

/// `user:password`, `:password` or nothing.
fn credentials(login: &str) -> EngineResult<RedisConnectionInfo> {
    let mut settings = RedisConnectionInfo::default();
    let (user, password) = login.split_once(':').unwrap_or((login, ""));
    if !user.is_empty() {
        settings = settings.set_username(decode(user)?);
    }
    if !password.is_empty() {
        settings = settings.set_password(decode(password)?);
    }
    Ok(settings)
}

fn password_from(env: &impl Fn(&str) -> Option<String>) -> EngineResult<Option<String>> {
    let set = |name: &str| env(name).filter(|value| !value.is_empty());
    if let Some(password) = set("REDIS_PASSWORD").or_else(|| set("META_PASSWORD")) {
        return Ok(Some(password));
    }
    let Some(path) = set("META_PASSWORD_FILE") else { return Ok(None) };
    let text = std::fs::read_to_string(&path)
        .map_err(|error| Fault::config("read META_PASSWORD_FILE").with("path", &path).source(error))?;
    Ok(text.lines().next().map(|line| line.trim_end().to_owned()).filter(|line| !line.is_empty()))
}

fn file(option: &str, path: &str) -> EngineResult<Vec<u8>> {
    let read = std::fs::read(path);
    Ok(read
        .map_err(|error| Fault::config("read certificate").with("option", option).with("path", path).source(error))?)
}

/// Percent-encoding as in any URL.
fn decode(text: &str) -> EngineResult<String> {
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte != b'%' {
            out.push(byte);
            continue;
        }
        let mut digit = || bytes.next().and_then(|b| char::from(b).to_digit(16));
        match (digit(), digit()) {
            (Some(high), Some(low)) => out.push((high * 16 + low) as u8),
            _ => return Err(bad("a percent sign in the URL is not followed by two hexadecimal digits")),
        }
    }
    String::from_utf8(out).map_err(|_| bad("a part of the URL is not UTF-8"))
}

/// `20ms`, `10s`, `1m`, `1h`, or parts of them in a row; a bare number is seconds.
fn duration(option: &str, text: &str) -> EngineResult<Duration> {
    let wrong = || Fault::config("open redis").with("option", option).with("value", text).source("not a duration");
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let unit_at = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let (number, tail) = rest.split_at(unit_at);
        let next = tail.find(|c: char| c.is_ascii_digit()).unwrap_or(tail.len());
        let seconds = match &tail[..next] {
            "ms" => 0.001,
            "s" | "" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "us" | "µs" => 0.000_001,
            _ => return Err(wrong().into()),
        };
        let number: f64 = number.parse().map_err(|_| wrong())?;
        total += Duration::try_from_secs_f64(number * seconds).map_err(|_| wrong())?;
        rest = &tail[next..];
    }
    if text.is_empty() { Err(wrong().into()) } else { Ok(total) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::engine::EngineError;

    fn parse(url: &str) -> EngineResult<Target> {
        Target::parse(url, |name| (name == "META_PASSWORD").then(|| "from-env".to_owned()))
    }

    fn text(url: &str) -> String {
        match parse(url) {
            Err(EngineError::Fault(fault)) => fault.to_string(),
            Err(other) => panic!("{url}: {other:?}"),
            Ok(_) => panic!("{url} is accepted"),
        }
    }

    #[test]
    fn urls_name_the_server() {
        for (url, address, password) in [
            ("127.0.0.1:6380/3", "127.0.0.1:6380/3", "from-env"),
            ("redis://localhost", "localhost:6379/0", "from-env"),
            ("redis://:s%40crt@localhost:7/1?read-timeout=3s", "localhost:7/1", "s@crt"),
            ("rediss://u:pw@host:6390/2?min_retry_backoff=5ms", "host:6390/2", "pw"),
            ("unix:///run/redis.sock?db=5", "/run/redis.sock/5", "from-env"),
            ("unix://u:p%3aw@/run/redis.sock", "/run/redis.sock/0", "p:w"),
        ] {
            let target = parse(url).unwrap();
            assert_eq!(target.address, address);
            assert_eq!(target.access.login.password(), Some(password));
            assert_eq!(target.access.tls.is_some(), url.starts_with("rediss"));
        }
        let target = parse("redis://h?read-timeout=1m30s&max-retry-backoff=250ms&client-cache=true").unwrap();
        assert_eq!(target.access.timeout, Duration::from_secs(90));
        assert_eq!(target.backoff_max, Duration::from_millis(250));
        assert_eq!(target.backoff_min, BACKOFF_MIN);
    }

    #[test]
    fn replicas_are_waited_for_where_one_may_take_over() {
        for (url, waited) in [
            ("redis://h", (0, false)),
            ("redis://h?wait-replicas=1", (1, true)),
            ("redis://h:1,g:1", (usize::MAX, false)),
            ("redis://m,h:1", (usize::MAX, false)),
            ("redis://m,h:1?wait_replicas=0", (0, true)),
            ("redis://m,h:1?wait-replicas=all", (usize::MAX, true)),
        ] {
            assert_eq!(parse(url).unwrap().wait_replicas(), waited, "{url}");
        }
        assert!(text("redis://m,h:1?wait-replicas=some").contains("neither a number nor all"));
    }

    #[test]
    fn several_hosts_are_a_cluster_or_sentinels() {
        let endpoint = |host: &str, port| Endpoint::Tcp(host.to_owned(), port);
        let cluster = parse("redis://a:7,[::1]:8,c/3").unwrap();
        let Place::Cluster(seeds) = &cluster.place else { panic!("no cluster") };
        assert_eq!(*seeds, [endpoint("a", 7), endpoint("::1", 8), endpoint("c", 6379)]);
        assert_eq!((cluster.prefix.as_bytes(), cluster.access.login.db()), (&b"{3}"[..], 0));
        assert_eq!(cluster.address, "a:7,[::1]:8,c:6379/3");

        let env = |name: &str| (name == "SENTINEL_PASSWORD").then(|| "s".to_owned());
        let watched = Target::parse("rediss://u:p@mymaster,a,b:5000/2", env).unwrap();
        let Place::Sentinel { master, sentinels, access } = &watched.place else { panic!("no sentinels") };
        assert_eq!((&master[..], &sentinels[..]), ("mymaster", &[endpoint("a", 5000), endpoint("b", 5000)][..]));
        assert_eq!((access.login.password(), access.login.username(), access.login.db()), (Some("s"), None, 0));
        assert_eq!((watched.access.login.password(), watched.access.login.db()), (Some("p"), 2));
        assert!(access.tls.is_some() && watched.prefix.as_bytes().is_empty());
        let Place::Sentinel { sentinels, .. } = parse("m,a").unwrap().place else { panic!("no sentinels") };
        assert_eq!(sentinels, [endpoint("a", 26379)]);

        let found = parse("h:1/4").unwrap().in_cluster();
        assert_eq!((found.prefix.as_bytes(), found.access.login.db()), (&b"{4}"[..], 0));
    }

    #[test]
    fn what_is_not_served_is_refused_without_telling_the_password() {
        for url in [
            "redis://:hunter2@,host1,host2:26379/1",
            "redis://:hunter2@host:6379/notanumber",
            "redis://:hunter2@host:port",
            "redis://:hunter2@[::1",
            "redis://:hunter2@host?read-timeout=soon",
            "rediss://:hunter2@host?tls-server-name=not%20a%20name",
            "redis://:hunter2@host?tls-cert-file=/nowhere",
            "unix://:hunter2@nopath",
            "mysql://:hunter2@host/db",
        ] {
            let text = text(url);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
