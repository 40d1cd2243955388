//! Where the metadata is: the meta URL (`spec/surface.md` 2).
//!
//! Redis and SQLite are understood; the other engines of the format are recognised and refused with a sentence that says
//! what this build has. `Display` masks the password and is the only form for logs, titles and messages; the engines take
//! the parts. A password that the URL does not carry comes from the environment, so that it need not be typed.

use super::{ConfigError, ConfigResult, Secret};
use std::fmt;
use std::path::{Path, PathBuf};

/// A parsed meta URL.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MetaUri {
    Redis(RedisUri),
    Sqlite(SqliteUri),
}

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

/// `sqlite3://path[?options]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteUri {
    pub path: PathBuf,
    /// Driver options in their order (`_journal`, `_timeout`, `cache`, `table_prefix` …).
    pub options: Vec<(String, String)>,
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

const REDIS_PORT: u16 = 6379;
const SENTINEL_PORT: u16 = 26379;

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
        match scheme {
            "redis" | "rediss" | "unix" if !cfg!(feature = "redis") => Err(not_built(scheme)),
            "sqlite3" if !cfg!(feature = "sqlite") => Err(not_built(scheme)),
            "redis" | "rediss" => redis(rest, scheme == "rediss", passwords).map(MetaUri::Redis),
            "unix" => unix(rest, passwords).map(MetaUri::Redis),
            "sqlite3" => sqlite(rest).map(MetaUri::Sqlite),
            "mysql" | "postgres" | "tikv" | "etcd" | "fdb" | "badger" | "memkv" => Err(not_built(scheme)),
            // The scheme may be a password that was typed in the wrong place; it is not repeated.
            _ => Err(ConfigError::new(
                "the scheme of the meta URL is not known; this build supports redis://, rediss://, unix:// and sqlite3://",
            )),
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
        }
    }

    fn text(&self, show: impl Fn(&Secret) -> String) -> String {
        match self {
            MetaUri::Redis(redis) => redis.text(show),
            MetaUri::Sqlite(sqlite) => format!("sqlite3://{}{}", sqlite.path.display(), query(&sqlite.options)),
        }
    }
}

/// The URL with `****` in place of the password.
impl fmt::Display for MetaUri {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.text(|_| "****".to_string()))
    }
}

impl RedisUri {
    /// The value of a query option, by its name with `-`.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    fn text(&self, show: impl Fn(&Secret) -> String) -> String {
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

impl SqliteUri {
    /// A data base that lives in the memory of one process.
    pub fn is_memory(&self) -> bool {
        self.path.as_os_str() == ":memory:"
    }

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

fn not_built(scheme: &str) -> ConfigError {
    let has = match (cfg!(feature = "redis"), cfg!(feature = "sqlite")) {
        (true, true) => "redis://, rediss://, unix:// and sqlite3://",
        (true, false) => "redis://, rediss:// and unix://",
        (false, true) => "sqlite3://",
        (false, false) => "no metadata engine at all",
    };
    ConfigError::new(format!("the metadata engine {scheme}:// is not in this build, which supports {has}"))
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

/// The password of the environment for Redis: its own variable first, then those that serve every engine.
fn outside_password(passwords: &dyn Passwords) -> ConfigResult<Option<Secret>> {
    if let Some(password) = passwords.variable("REDIS_PASSWORD").or_else(|| passwords.variable("META_PASSWORD")) {
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
        None => outside_password(passwords)?.filter(|password| !password.is_empty()),
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

fn redis_options(text: &str) -> ConfigResult<Vec<(String, String)>> {
    Ok(parse_query(text)?.into_iter().map(|(key, value)| (key.replace('_', "-"), value)).collect())
}

fn db_number(text: &str) -> ConfigResult<u32> {
    let wrong = || ConfigError::new("the data base in the meta URL, after the last /, is not a number");
    // Servers count in 31 bits.
    text.parse().ok().filter(|db| *db <= i32::MAX as u32).ok_or_else(wrong)
}

fn redis(rest: &str, tls: bool, passwords: &dyn Passwords) -> ConfigResult<RedisUri> {
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

fn unix(rest: &str, passwords: &dyn Passwords) -> ConfigResult<RedisUri> {
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

fn sqlite(rest: &str) -> ConfigResult<SqliteUri> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(ConfigError::new("the meta URL sqlite3:// names no file"));
    }
    Ok(SqliteUri { path: path.into(), options: parse_query(options)? })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::HashMap;

    #[derive(Default)]
    struct Given(HashMap<&'static str, &'static str>);

    impl Passwords for Given {
        fn variable(&self, name: &str) -> Option<String> {
            self.0.get(name).map(|value| value.to_string())
        }

        fn file(&self, path: &str) -> ConfigResult<String> {
            self.variable(path).ok_or_else(|| ConfigError::new("no such file"))
        }
    }

    fn parse(text: &str) -> MetaUri {
        MetaUri::parse_with(text, &Given::default()).unwrap()
    }

    fn redis_of(text: &str) -> RedisUri {
        match parse(text) {
            MetaUri::Redis(redis) => redis,
            other => panic!("{other}"),
        }
    }

    #[test]
    fn redis_urls_have_their_parts() {
        let uri = redis_of("redis://bob:p%40ss@10.0.0.1:7000/3?read_timeout=5s&client-cache=true");
        assert_eq!(uri.address, RedisAddress::Tcp(vec![("10.0.0.1".into(), 7000)]));
        assert_eq!((uri.username.as_deref(), uri.password.as_ref().unwrap().expose()), (Some("bob"), "p@ss"));
        assert_eq!((uri.db, uri.option("read-timeout"), uri.option("client-cache")), (3, Some("5s"), Some("true")));
        let plain = redis_of("localhost/1");
        assert_eq!(
            (plain.address, plain.db, plain.tls),
            (RedisAddress::Tcp(vec![("localhost".into(), 6379)]), 1, false)
        );
        assert!(redis_of("rediss://:x@h").tls);
        assert_eq!(redis_of("redis://[::1]:6380").address, RedisAddress::Tcp(vec![("::1".into(), 6380)]));
        let cluster = redis_of("redis://a:1,b:2,c/0");
        assert_eq!(cluster.address, RedisAddress::Tcp(vec![("a".into(), 1), ("b".into(), 2), ("c".into(), 6379)]));
        let sentinel = redis_of("redis://mymaster,a,b:5000/2").address;
        let expected = vec![("a".into(), 5000), ("b".into(), 5000)];
        assert_eq!(sentinel, RedisAddress::Sentinel { master: "mymaster".into(), sentinels: expected, password: None });
        let unix = redis_of("unix:///run/r.sock?db=4");
        assert_eq!((unix.address, unix.db), (RedisAddress::Unix("/run/r.sock".into()), 4));
    }

    #[test]
    fn passwords_of_the_environment_fill_in_what_the_url_leaves_out() {
        let with = |text, given: &[(&'static str, &'static str)]| match MetaUri::parse_with(
            text,
            &Given(given.iter().copied().collect()),
        )
        .unwrap()
        {
            MetaUri::Redis(redis) => redis.password.map(|p| p.expose().to_string()),
            other => panic!("{other}"),
        };
        assert_eq!(with("h", &[("META_PASSWORD", "m"), ("REDIS_PASSWORD", "r")]).as_deref(), Some("r"));
        assert_eq!(with("h", &[("META_PASSWORD", "m")]).as_deref(), Some("m"));
        assert_eq!(with("redis://u:@h", &[("META_PASSWORD_FILE", "f"), ("f", "line\nmore")]).as_deref(), Some("line"));
        assert_eq!(with("redis://:own@h", &[("META_PASSWORD", "m")]).as_deref(), Some("own"));
        assert!(MetaUri::parse_with("h", &Given([("META_PASSWORD_FILE", "f")].into())).is_err());
    }

    #[test]
    fn display_masks_the_password_and_the_full_form_keeps_it() {
        for text in ["redis://bob:p%40ss@h:6379/3?read-timeout=5s", "unix://:p%40ss@/run/r.sock?db=4"] {
            let uri = parse(text);
            assert!(!uri.to_string().contains("p%40ss") && uri.to_string().contains(":****@"), "{uri}");
            assert!(!format!("{uri:?}").contains("p@ss"));
            assert_eq!(uri.with_password().expose(), text);
            assert_eq!(parse(uri.with_password().expose()), uri);
        }
        assert_eq!(parse("localhost").to_string(), "redis://localhost:6379/0");
    }

    #[test]
    fn hostile_urls_are_refused_in_one_sentence_without_what_was_typed() {
        for text in [
            "redis://:hunter2",
            "redis://user:hunter2/1",
            "redis://h/hunter2",
            "redis://h:99999/hunter2",
            "redis://:hunter2@h:-1",
            "redis://:hunter2@h:65536/0",
            "redis://:hunter2@h/99999999999",
            "redis://:hunter2@h/2147483648",
            "redis://:hunter2@h o s t",
            "redis://:hunter2@[::1",
            "redis://:hunter2@[::1]x",
            "redis://:hunter2@h#fragment",
            "redis://:hunter2@,h",
            "redis://:hunter2%zz@h",
            "redis://:hunter2%ff@h",
            "redis://:hunter2@h\n/1",
            "redis://:hunter2\0@h",
            "unix://user:hunter2/x@/run/redis.sock",
            "unix://hunter2",
            "unix:///run/%0a.sock",
            "sqlite3://?hunter2",
            "sqlite3://a\u{1b}[2J.db",
            "hunter2://h",
            "hunter2://",
            "://hunter2",
        ] {
            let error = MetaUri::parse_with(text, &Given::default()).expect_err(text).to_string();
            assert!(!error.contains("hunter2") && error.lines().count() == 1, "{text:?}: {error}");
        }
    }

    /// Passwords may hold anything; what is handed to a child process says the same.
    #[test]
    fn passwords_with_the_marks_of_a_url_survive() {
        for password in ["p@ss", "a:b", "a/b", "a?b=c&d", "100%", "#", "[x]", " ", "\n", "ü,", "@@", "://"] {
            let encoded: String = password.bytes().map(|byte| format!("%{byte:02x}")).collect();
            let uri = redis_of(&format!("redis://u:{encoded}@h:1/2?x=y"));
            assert_eq!(uri.password.as_ref().map(Secret::expose), Some(password));
            let again = MetaUri::Redis(uri.clone()).with_password();
            assert_eq!(redis_of(again.expose()), uri, "{again:?}");
            assert!(
                !again.expose()["redis://u:".len()..].trim_end_matches("@h:1/2?x=y").contains(['/', '@', '?', '#'])
            );
        }
        let typed = redis_of("redis://:p@ss:word@[::1]:1");
        assert_eq!(typed.password.as_ref().map(Secret::expose), Some("p@ss:word"));
        let socket = redis_of("unix:///run/a%20b%3f.sock");
        assert_eq!(socket.address, RedisAddress::Unix("/run/a b?.sock".into()));
        assert_eq!(MetaUri::Redis(socket).to_string(), "unix:///run/a%20b%3F.sock?db=0");
    }

    #[test]
    fn sqlite_paths_become_absolute() {
        let uri = parse("sqlite3://my.db?_timeout=1000").absolute(Path::new("/home/x"));
        assert_eq!(uri.to_string(), "sqlite3:///home/x/my.db?_timeout=1000");
        assert_eq!(uri.clone().absolute(Path::new("/other")), uri);
        let MetaUri::Sqlite(memory) = parse("sqlite3://:memory:").absolute(Path::new("/x")) else { panic!() };
        assert!(memory.is_memory());
    }

    #[test]
    fn other_engines_are_known_and_refused() {
        let refused = |text| MetaUri::parse_with(text, &Given::default()).unwrap_err().to_string();
        assert!(refused("mysql://u:secret@(h:3306)/db").contains("mysql:// is not in this build"));
        assert!(refused("tikv://h").contains("sqlite3://"));
        assert!(!refused("mysql://u:secret@(h:3306)/db").contains("secret"));
        for wrong in [
            "redis://",
            "redis://h/x",
            "redis://h:port",
            "redis://:%zz@h",
            "sqlite3://?x=1",
            "what://x",
            "redis://[::1",
        ] {
            refused(wrong);
        }
    }
}
