//! Meta URLs of Redis: one server, a cluster, or a master that sentinels know.

use super::{
    ConfigError, ConfigResult, Passwords, Secret, credentials, decode, encode, host_port, is_host, parse_query, query,
};
use std::path::PathBuf;

/// `redis[s]://[[user]:password@]host[:port][,host…][/db][?options]` or `unix:///path.sock[?db=n]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RedisUri {
    pub tls: bool,
    pub address: RedisAddress,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub db: u32,
    /// Query options in their order, names with `-` (the peer takes `_` for it as well).
    pub options: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RedisAddress {
    /// One server, or the seeds of a cluster when there are several.
    Tcp(Vec<(String, u16)>),
    Unix(PathBuf),
    /// The master of this name is asked from the sentinels.
    Sentinel {
        master: String,
        sentinels: Vec<(String, u16)>,
        password: Option<Secret>,
    },
}

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

impl RedisUri {
    /// The value of a query option, by its name with `-`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self, show: impl Fn(&Secret) -> String) -> String {
        let user = match (&self.username, &self.password) {
            (None, None) => String::new(),
            (user, password) => {
                let encode = |text: &str| encode(text).replace('/', "%2F");
                let user = user.as_deref().map(encode).unwrap_or_default();
                let password = password.as_ref().map(|p| match show(p).as_str() {
                    "****" => ":****".to_string(),
                    shown => format!(":{}", encode(shown)),
                });
                format!("{user}{}@", password.unwrap_or_default())
            }
        };
        let scheme = if self.tls { "rediss" } else { "redis" };
        let hosts = |hosts: &[(String, u16)]| {
            let host = |(host, port): &(String, u16)| match host.contains(':') {
                true => format!("[{host}]:{port}"),
                false => format!("{host}:{port}"),
            };
            hosts.iter().map(host).collect::<Vec<_>>().join(",")
        };
        match &self.address {
            RedisAddress::Tcp(list) => format!("{scheme}://{user}{}/{}{}", hosts(list), self.db, query(&self.options)),
            RedisAddress::Sentinel { master, sentinels, .. } => {
                format!("{scheme}://{user}{master},{}/{}{}", hosts(sentinels), self.db, query(&self.options))
            }
            RedisAddress::Unix(path) => {
                let mut options = self.options.clone();
                options.insert(0, ("db".into(), self.db.to_string()));
                format!("unix://{user}{}{}", encode(&path.to_string_lossy()), query(&options))
            }
        }
    }
}

fn redis_options(text: &str) -> ConfigResult<Vec<(String, String)>> {
    Ok(parse_query(text)?.into_iter().map(|(key, value)| (key.replace('_', "-"), value)).collect())
}

fn db_number(text: &str) -> ConfigResult<u32> {
    let wrong = || ConfigError::new("the data base in the meta URL, after the last /, is not a number");
    // Servers count in 31 bits.
    text.parse().ok().filter(|db| *db <= i32::MAX as u32).ok_or_else(wrong)
}

pub(super) fn tcp(rest: &str, tls: bool, passwords: &dyn Passwords) -> ConfigResult<RedisUri> {
    let (user, rest) = match rest.rsplit_once('@') {
        Some((user, rest)) => (Some(user), rest),
        None => (None, rest),
    };
    let (rest, options) = rest.split_once('?').unwrap_or((rest, ""));
    let (hosts, db) = rest.split_once('/').unwrap_or((rest, ""));
    let db = if db.is_empty() { 0 } else { db_number(db)? };
    let (username, password) = credentials(user, passwords)?;
    // A name before the first comma that has no port is the master that the sentinels know.
    let is_sentinel = hosts.find(',').is_some_and(|comma| hosts.find(':').is_none_or(|colon| comma < colon));
    let address = if is_sentinel {
        let (master, sentinels) = hosts.split_once(',').expect("a comma was found above");
        // One port at the end is the port of all of them.
        let port = match sentinels.rsplit_once(':') {
            Some((_, port)) => host_port(&format!("x:{port}"), SENTINEL_PORT)?.1,
            None => SENTINEL_PORT,
        };
        let sentinels = sentinels.split(',').map(|host| host_port(host, port)).collect::<ConfigResult<Vec<_>>>()?;
        let password = passwords.variable("SENTINEL_PASSWORD").map(Secret::new);
        if master.is_empty() || !is_host(master) {
            return Err(ConfigError::new("the meta URL names no master before the sentinels"));
        }
        RedisAddress::Sentinel { master: master.to_string(), sentinels, password }
    } else {
        RedisAddress::Tcp(hosts.split(',').map(|host| host_port(host, REDIS_PORT)).collect::<ConfigResult<_>>()?)
    };
    Ok(RedisUri { tls, address, username, password, db, options: redis_options(options)? })
}

pub(super) fn unix(rest: &str, passwords: &dyn Passwords) -> ConfigResult<RedisUri> {
    let (user, rest) = match rest.split_once('@') {
        Some((user, rest)) if !user.contains('/') => (Some(user), rest),
        _ => (None, rest),
    };
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    let path = decode(path)?;
    if !path.starts_with('/') || path.chars().any(char::is_control) {
        return Err(ConfigError::new("the meta URL unix:// needs the absolute path of a socket"));
    }
    let (username, password) = credentials(user, passwords)?;
    let mut options = redis_options(options)?;
    let db = match options.iter().position(|(key, _)| key == "db") {
        Some(at) => db_number(&options.remove(at).1)?,
        None => 0,
    };
    Ok(RedisUri { tls: false, address: RedisAddress::Unix(path.into()), username, password, db, options })
}
