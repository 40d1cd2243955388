//! Where the metadata is: the meta URL (`spec/surface.md` 2).
//!
//! Each family of engines has a module for its URLs; those of which this build has no engine are recognised and refused
//! with a sentence that says what it has. `Display` masks the password and is the only form for logs, titles and messages; the engines take
//! the parts. A password that the URL does not carry comes from the environment, so that it need not be typed.

mod redis;
mod server;
mod sqlite;
#[cfg(test)]
mod tests;

pub use redis::{RedisAddress, RedisUri};
pub use server::{Server, ServerAddress, ServerUri};
pub use sqlite::SqliteUri;

use super::{ConfigError, ConfigResult, Secret};
use std::fmt;
use std::path::Path;

/// A parsed meta URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaUri {
    Redis(RedisUri),
    Sqlite(SqliteUri),
    /// MySQL, PostgreSQL, etcd, TiKV.
    Server(ServerUri),
}

/// Where passwords come from besides the URL; the process environment outside of tests.
pub trait Passwords {
    fn variable(&self, name: &str) -> Option<String>;
    fn file(&self, path: &str) -> ConfigResult<String>;
}

/// The environment of this process.
pub struct Environment;

impl Passwords for Environment {
    fn variable(&self, name: &str) -> Option<String> {
        std::env::var(name).ok().filter(|value| !value.is_empty())
    }

    fn file(&self, path: &str) -> ConfigResult<String> {
        std::fs::read_to_string(path)
            .map_err(|e| ConfigError::new(format!("cannot read the password file {path} (META_PASSWORD_FILE): {e}")))
    }
}

impl MetaUri {
    /// Parses a URL and completes it with the password of the environment.
    pub fn parse(text: &str) -> ConfigResult<MetaUri> {
        MetaUri::parse_with(text, &Environment)
    }

    pub fn parse_with(text: &str, passwords: &dyn Passwords) -> ConfigResult<MetaUri> {
        if text.chars().any(char::is_control) {
            return Err(ConfigError::new("the meta URL holds a control character, such as the end of a line"));
        }
        let (scheme, rest) = text.split_once("://").unwrap_or(("redis", text));
        if rest.is_empty() {
            return Err(ConfigError::new("the meta URL says no place"));
        }
        let server = |server| ServerUri::parse(server, rest, passwords).map(MetaUri::Server);
        match scheme {
            scheme if PLANNED.contains(&scheme) => Err(not_built(scheme)),
            scheme if ENGINES.iter().any(|(known, built)| *known == scheme && !built) => Err(not_built(scheme)),
            "redis" | "rediss" => redis::tcp(rest, scheme == "rediss", passwords).map(MetaUri::Redis),
            "unix" => redis::unix(rest, passwords).map(MetaUri::Redis),
            "sqlite3" => sqlite::parse(rest).map(MetaUri::Sqlite),
            "mysql" => server(Server::Mysql),
            "postgres" => server(Server::Postgres),
            "etcd" => server(Server::Etcd),
            "tikv" => server(Server::Tikv),
            // The scheme may be a password that was typed in the wrong place; it is not repeated.
            _ => Err(ConfigError::new(format!(
                "the scheme of the meta URL is not known; this build supports {}",
                supported()
            ))),
        }
    }

    /// The same place seen from any working directory, for a process that is about to change its own.
    pub fn absolute(mut self, cwd: &Path) -> MetaUri {
        if let MetaUri::Sqlite(sqlite) = &mut self
            && sqlite.path.is_relative()
            && !sqlite.is_memory()
        {
            sqlite.path = cwd.join(&sqlite.path);
        }
        self
    }

    /// The URL with its password, to hand to a child process; never to a log.
    pub fn with_password(&self) -> Secret {
        Secret::new(self.text(|secret| secret.expose().to_string()))
    }

    pub fn has_password(&self) -> bool {
        match self {
            MetaUri::Redis(redis) => redis.password.is_some(),
            MetaUri::Sqlite(_) => false,
            MetaUri::Server(server) => server.password.is_some(),
        }
    }

    fn text(&self, show: impl Fn(&Secret) -> String) -> String {
        match self {
            MetaUri::Redis(redis) => redis.text(show),
            MetaUri::Sqlite(sqlite) => format!("sqlite3://{}{}", sqlite.path.display(), query(&sqlite.options)),
            MetaUri::Server(server) => server.text(show),
        }
    }
}

/// The URL with `****` in place of the password.
impl fmt::Display for MetaUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|_| "****".to_string()))
    }
}

/// The schemes and whether this build has their engine.
const ENGINES: &[(&str, bool)] = &[
    ("redis", cfg!(feature = "redis")),
    ("rediss", cfg!(feature = "redis")),
    ("unix", cfg!(feature = "redis")),
    ("mysql", cfg!(feature = "mysql")),
    ("postgres", cfg!(feature = "postgres")),
    ("tikv", cfg!(feature = "tikv")),
    ("etcd", cfg!(feature = "etcd")),
    ("sqlite3", cfg!(feature = "sqlite")),
];
/// Schemes of the format that no build has.
const PLANNED: &[&str] = &["fdb", "badger", "memkv"];

fn supported() -> String {
    let built: Vec<String> = ENGINES.iter().filter(|(_, built)| *built).map(|(name, _)| format!("{name}://")).collect();
    match &built[..] {
        [] => "no metadata engine at all".to_owned(),
        [one] => one.clone(),
        [others @ .., last] => format!("{} and {last}", others.join(", ")),
    }
}

fn not_built(scheme: &str) -> ConfigError {
    ConfigError::new(format!("the metadata engine {scheme}:// is not in this build, which supports {}", supported()))
}

fn query(options: &[(String, String)]) -> String {
    if options.is_empty() {
        return String::new();
    }
    let pairs: Vec<_> = options.iter().map(|(key, value)| format!("{}={}", encode(key), encode(value))).collect();
    format!("?{}", pairs.join("&"))
}

fn parse_query(text: &str) -> ConfigResult<Vec<(String, String)>> {
    text.split('&')
        .filter(|pair| !pair.is_empty())
        .map(|pair| {
            let (key, value) = pair.split_once('=').unwrap_or((pair, ""));
            Ok((decode(key)?, decode(value)?))
        })
        .collect()
}

/// Percent-encodes what would end a part of a URL.
fn encode(text: &str) -> String {
    let mut out = String::with_capacity(text.len());
    for byte in text.bytes() {
        match byte {
            b'A'..=b'Z' | b'a'..=b'z' | b'0'..=b'9' | b'-' | b'_' | b'.' | b'~' | b'/' | b',' | b'$' | b'!' | b'*' => {
                out.push(byte as char)
            }
            _ => out.push_str(&format!("%{byte:02X}")),
        }
    }
    out
}

fn decode(text: &str) -> ConfigResult<String> {
    // What is decoded may be a password, so the error does not repeat it.
    let wrong = || ConfigError::new("a part of the meta URL is not well percent-encoded");
    let mut out = Vec::with_capacity(text.len());
    let mut bytes = text.bytes();
    while let Some(byte) = bytes.next() {
        if byte == b'%' {
            let mut digit = || bytes.next().and_then(|b| (b as char).to_digit(16));
            let (high, low) = (digit().ok_or_else(wrong)?, digit().ok_or_else(wrong)?);
            out.push((high * 16 + low) as u8);
        } else {
            out.push(byte);
        }
    }
    String::from_utf8(out).map_err(|_| wrong())
}

/// The password of the environment: of an engine's own variable first, then of those that serve every engine.
fn outside_password(own: Option<&str>, passwords: &dyn Passwords) -> ConfigResult<Option<Secret>> {
    if let Some(password) = own.and_then(|own| passwords.variable(own)).or_else(|| passwords.variable("META_PASSWORD"))
    {
        return Ok(Some(Secret::new(password)));
    }
    match passwords.variable("META_PASSWORD_FILE") {
        None => Ok(None),
        Some(path) => Ok(passwords.file(&path)?.lines().next().map(|line| Secret::new(line.trim()))),
    }
}

fn credentials(user: Option<&str>, passwords: &dyn Passwords) -> ConfigResult<(Option<String>, Option<Secret>)> {
    let (name, password) = match user {
        None => (None, None),
        Some(user) => match user.split_once(':') {
            Some((name, password)) => (Some(decode(name)?), Some(decode(password)?)),
            None => (Some(decode(user)?), None),
        },
    };
    let password = match password.filter(|password| !password.is_empty()) {
        Some(password) => Some(Secret::new(password)),
        None => outside_password(Some("REDIS_PASSWORD"), passwords)?.filter(|password| !password.is_empty()),
    };
    Ok((name.filter(|name| !name.is_empty()), password))
}

/// Names and addresses consist of these; anything else belongs to another part of the URL.
fn is_host(text: &str) -> bool {
    text.chars().all(|c| c.is_alphanumeric() || matches!(c, '-' | '.' | '_' | ':'))
}

fn host_port(text: &str, default: u16) -> ConfigResult<(String, u16)> {
    // Not repeated: where the @ was forgotten it is a password.
    let wrong = || ConfigError::new("an address in the meta URL is not host:port; a password ends in @");
    let (host, port) = match text.strip_prefix('[') {
        Some(v6) => {
            let (host, rest) = v6.split_once(']').ok_or_else(wrong)?;
            (host, rest.strip_prefix(':').or(rest.is_empty().then_some("")).ok_or_else(wrong)?)
        }
        None => text.split_once(':').unwrap_or((text, "")),
    };
    if host.is_empty() && !text.is_empty() && port.is_empty() || !is_host(host) {
        return Err(wrong());
    }
    let port = if port.is_empty() { default } else { port.parse().map_err(|_| wrong())? };
    Ok((if host.is_empty() { "127.0.0.1".to_string() } else { host.to_string() }, port))
}
