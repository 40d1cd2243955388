//! Where the server is and how to reach it, from the URL (`spec/surface.md` section 2).
//!
//! The password is taken from the URL, else from `REDIS_PASSWORD`, `META_PASSWORD` or the first line of the file
//! `META_PASSWORD_FILE`. It is never printed: errors and logs name the address only.

use crate::base::Fault;
use crate::meta::engine::EngineResult;
use redis::io::tcp::TcpSettings;
use redis::{
    Client, ClientTlsConfig, ConnectionAddr, ConnectionInfo, IntoConnectionInfo, RedisConnectionInfo, TlsCertificates,
};
use std::time::Duration;

const BACKOFF_MIN: Duration = Duration::from_millis(20);
const BACKOFF_MAX: Duration = Duration::from_secs(10);
/// `read-timeout`: a script or a fork may hold the server up for a while, and a commit that is given up is a commit
/// of unknown outcome.
const RESPONSE_TIMEOUT: Duration = Duration::from_secs(30);

/// Options of the peer that change nothing here: we keep no client-side cache, read from the primary always, and
/// have one time-out for a whole request.
const WITHOUT_EFFECT: [&str; 6] =
    ["route-read", "write-timeout", "client-cache", "client-cache-size", "client-cache-expire", "client-cache-preload"];

pub(super) struct Target {
    info: ConnectionInfo,
    tls: Option<TlsCertificates>,
    /// For errors and logs: host and port, or the path of the socket, and the database.
    pub(super) address: String,
    pub(super) backoff_min: Duration,
    pub(super) backoff_max: Duration,
    pub(super) response_timeout: Duration,
}

impl Target {
    /// `env` looks up an environment variable.
    pub(super) fn parse(url: &str, env: impl Fn(&str) -> Option<String>) -> EngineResult<Target> {
        let url = if url.contains("://") { url.to_owned() } else { format!("redis://{url}") };
        let (place, query) = url.split_once('?').unwrap_or((&url, ""));
        let mut options: Vec<(String, String)> = Vec::new();
        for option in query.split('&').filter(|option| !option.is_empty()) {
            let (key, value) = option.split_once('=').unwrap_or((option, ""));
            options.push((key.replace('_', "-"), decode(value)?));
        }
        let mut info = match place.strip_prefix("unix://") {
            Some(path) => unix_socket(path, &options)?,
            None => network(place)?,
        };
        if info.redis_settings().password().is_none()
            && let Some(password) = password_from(env)?
        {
            let settings = info.redis_settings().clone().set_password(password);
            info = info.set_redis_settings(settings);
        }
        let mut target = Target {
            address: format!("{}/{}", info.addr(), info.redis_settings().db()),
            // Off by default in the crate: a small request would wait for the reply to the one before.
            info: info.set_tcp_settings(TcpSettings::default().set_nodelay(true)),
            tls: None,
            backoff_min: BACKOFF_MIN,
            backoff_max: BACKOFF_MAX,
            response_timeout: RESPONSE_TIMEOUT,
        };
        target.set_options(options)?;
        Ok(target)
    }

    fn set_options(&mut self, options: Vec<(String, String)>) -> EngineResult<()> {
        let (mut cert, mut key, mut ca) = (None, None, None);
        for (option, value) in options {
            match option.as_str() {
                "min-retry-backoff" => self.backoff_min = duration(&option, &value)?,
                "max-retry-backoff" => self.backoff_max = duration(&option, &value)?,
                "read-timeout" => self.response_timeout = duration(&option, &value)?.max(Duration::from_secs(1)),
                "tls-cert-file" => cert = Some(file(&option, &value)?),
                "tls-key-file" => key = Some(file(&option, &value)?),
                "tls-ca-cert-file" => ca = Some(file(&option, &value)?),
                "insecure-skip-verify" | "tls-server-name" => {
                    return Err(Fault::unsupported("open redis").with("option", option).into());
                }
                "db" | "protocol" => {}
                other if WITHOUT_EFFECT.contains(&other) => {}
                other => tracing::warn!(option = other, "unknown option in the Redis URL is ignored"),
            }
        }
        let client_tls = match (cert, key) {
            (Some(client_cert), Some(client_key)) => Some(ClientTlsConfig { client_cert, client_key }),
            (None, None) => None,
            _ => return Err(bad("tls-cert-file and tls-key-file go together")),
        };
        if client_tls.is_some() || ca.is_some() {
            self.tls = Some(TlsCertificates { client_tls, root_cert: ca });
        }
        Ok(())
    }

    pub(super) fn client(&self) -> EngineResult<Client> {
        let opened = match &self.tls {
            Some(tls) => Client::build_with_tls(self.info.clone(), tls.clone()),
            None => Client::open(self.info.clone()),
        };
        opened.map_err(|error| super::conn::fault(error, "open redis").with("address", &self.address).into())
    }
}

fn bad(why: &'static str) -> crate::meta::engine::EngineError {
    Fault::config("open redis").source(why).into()
}

/// `redis[s]://[[user]:password@]host[:port][/db]`.
fn network(place: &str) -> EngineResult<ConnectionInfo> {
    let (_, rest) = place.split_once("://").unwrap_or(("", place));
    let hosts = rest.rsplit_once('@').map_or(rest, |(_, hosts)| hosts);
    if hosts.contains(',') {
        let fault = Fault::unsupported("open redis").source("several hosts: neither Sentinel nor Cluster is served");
        return Err(fault.into());
    }
    // The crate's texts name no part of the URL.
    place.into_connection_info().map_err(|error| super::conn::fault(error, "open redis").into())
}

/// `unix://[[user]:password@]/path.sock?db=n`.
fn unix_socket(place: &str, options: &[(String, String)]) -> EngineResult<ConnectionInfo> {
    let (login, path) = match place.find('/').map(|at| place.split_at(at)) {
        Some((login, path)) => (login.strip_suffix('@'), path),
        None => return Err(bad("unix:// needs the absolute path of a socket")),
    };
    let mut settings = RedisConnectionInfo::default();
    if let Some(db) = options.iter().find(|(key, _)| key == "db") {
        settings = settings.set_db(db.1.parse().map_err(|_| bad("db is not a number"))?);
    }
    if let Some(login) = login {
        let (user, password) = login.split_once(':').unwrap_or((login, ""));
        if !user.is_empty() {
            settings = settings.set_username(decode(user)?);
        }
        if !password.is_empty() {
            settings = settings.set_password(decode(password)?);
        }
    }
    let info = ConnectionAddr::Unix(decode(path)?.into()).into_connection_info();
    Ok(info.map_err(|error| super::conn::fault(error, "open redis"))?.set_redis_settings(settings))
}

fn password_from(env: impl Fn(&str) -> Option<String>) -> EngineResult<Option<String>> {
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
            assert_eq!(target.info.redis_settings().password(), Some(password));
            assert!(target.info.tcp_settings().nodelay());
            target.client().unwrap();
        }
        let target = parse("redis://h?read-timeout=1m30s&max-retry-backoff=250ms&client-cache=true").unwrap();
        assert_eq!(target.response_timeout, Duration::from_secs(90));
        assert_eq!(target.backoff_max, Duration::from_millis(250));
        assert_eq!(target.backoff_min, BACKOFF_MIN);
    }

    #[test]
    fn what_is_not_served_is_refused_without_telling_the_password() {
        for url in [
            "redis://:hunter2@master,host1,host2:26379/1",
            "redis://:hunter2@host:6379/notanumber",
            "redis://:hunter2@host?read-timeout=soon",
            "rediss://:hunter2@host?insecure-skip-verify=true",
            "redis://:hunter2@host?tls-cert-file=/nowhere",
            "unix://:hunter2@nopath",
            "mysql://:hunter2@host/db",
        ] {
            let text = text(url);
            assert!(!text.contains("hunter2"), "{text}");
        }
    }
}
