//! Meta URLs of database servers: MySQL, PostgreSQL, etcd and TiKV. They differ in how addresses are written and in
//! whether what is written is percent-encoded; the parts are the same.

use super::{
    ConfigError, ConfigResult, Passwords, Secret, decode, encode, host_port, outside_password, parse_query, query,
};
use std::path::PathBuf;

/// Which server it is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Server {
    Mysql,
    Postgres,
    Etcd,
    Tikv,
}

/// `mysql://[user[:password]@](host:port)/db[?options]` (also `unix(/socket)`; nothing in it but the options is
/// percent-encoded, as the drivers of MySQL have it), `postgres://[user[:password]@]host[:port]/db[?options]`,
/// `etcd://[user:password@]host[:port][,host…][/prefix][?options]`, `tikv://host[:port][,host…][/prefix][?options]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct ServerUri {
    pub server: Server,
    pub username: Option<String>,
    pub password: Option<Secret>,
    pub address: ServerAddress,
    /// What follows the address: the database, or the prefix of the keys. Without the slash between them.
    pub path: String,
    /// Query options in their order, as they were written.
    pub options: Vec<(String, String)>,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ServerAddress {
    /// One server, or the members of a cluster.
    Tcp(Vec<(String, u16)>),
    /// MySQL, PostgreSQL.
    Unix(PathBuf),
}

/// Options whose values are secrets: they belong before the `@`, where they are masked.
const SECRET_OPTIONS: [&str; 2] = ["password", "passwd"];

impl Server {
    pub fn scheme(self) -> &'static str {
        match self {
            Server::Mysql => "mysql",
            Server::Postgres => "postgres",
            Server::Etcd => "etcd",
            Server::Tikv => "tikv",
        }
    }

    fn default_port(self) -> u16 {
        match self {
            Server::Mysql => 3306,
            Server::Postgres => 5432,
            Server::Etcd | Server::Tikv => 2379,
        }
    }

    fn is_one_server(self) -> bool {
        matches!(self, Server::Mysql | Server::Postgres)
    }

    /// Whether user, password and path are percent-encoded.
    fn is_encoded(self) -> bool {
        self != Server::Mysql
    }

    fn read(self, text: &str) -> ConfigResult<String> {
        if self.is_encoded() { decode(text) } else { Ok(text.to_owned()) }
    }

    fn write(self, text: &str) -> String {
        if self.is_encoded() { encode(text) } else { text.to_owned() }
    }
}

impl ServerUri {
    /// `rest` is what follows `scheme://`.
    pub(super) fn parse(server: Server, rest: &str, passwords: &dyn Passwords) -> ConfigResult<ServerUri> {
        // A bracket ends the address of MySQL; before it a password may hold anything.
        let options_from = match server {
            Server::Mysql => rest.rfind(')').unwrap_or(0),
            _ => rest.rfind('@').unwrap_or(0),
        };
        let (place, options) = match rest[options_from..].find('?') {
            Some(at) => (&rest[..options_from + at], &rest[options_from + at + 1..]),
            None => (rest, ""),
        };
        let options = parse_query(options)?;
        if options.iter().any(|(name, _)| SECRET_OPTIONS.contains(&name.to_ascii_lowercase().as_str())) {
            return Err(ConfigError::new("the password of the meta URL stands before the @, not among the options"));
        }
        let (user, place) = match place.rsplit_once('@') {
            Some((user, place)) => (Some(user), place),
            None => (None, place),
        };
        let (address, path) = match server {
            Server::Mysql => mysql_address(place)?,
            _ => {
                let (hosts, path) = place.split_once('/').unwrap_or((place, ""));
                (tcp(server, hosts)?, path)
            }
        };
        let path = server.read(path)?;
        if path.chars().any(char::is_control) {
            return Err(ConfigError::new("the meta URL holds a control character behind the address"));
        }
        if !server.is_encoded() && path.contains(['(', ')', '@', '?']) {
            return Err(ConfigError::new("the database of the meta URL holds a character that belongs to its address"));
        }
        if server.is_one_server() && path.is_empty() {
            return Err(ConfigError::new("the meta URL names no database after the address"));
        }
        let (username, password) = match user {
            None => (None, None),
            Some(user) => match user.split_once(':') {
                Some((name, password)) => (Some(server.read(name)?), Some(server.read(password)?)),
                None => (Some(server.read(user)?), None),
            },
        };
        let password = match password.filter(|password| !password.is_empty()) {
            Some(password) => Some(Secret::new(password)),
            None if server == Server::Tikv => None,
            None => outside_password(None, passwords)?.filter(|password| !password.is_empty()),
        };
        let username = username.filter(|name| !name.is_empty());
        let address = match (server, &address, options.iter().find(|(name, _)| name == "host")) {
            // The directory of the socket, as libpq has it.
            (Server::Postgres, ServerAddress::Tcp(_), Some((_, host))) if host.starts_with('/') => {
                ServerAddress::Unix(host.into())
            }
            _ => address,
        };
        Ok(ServerUri { server, username, password, address, path, options })
    }

    /// The value of a query option.
    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }

    pub(super) fn text(&self, show: impl Fn(&Secret) -> String) -> String {
        let write =
            |text: &str| self.server.write(text).replace('/', if self.server.is_encoded() { "%2F" } else { "/" });
        let user = match (&self.username, &self.password) {
            (None, None) => String::new(),
            (user, password) => {
                let password = password.as_ref().map(|p| match show(p).as_str() {
                    "****" => ":****".to_string(),
                    shown => format!(":{}", write(shown)),
                });
                format!("{}{}@", user.as_deref().map(write).unwrap_or_default(), password.unwrap_or_default())
            }
        };
        let host = |(host, port): &(String, u16)| match host.contains(':') {
            true => format!("[{host}]:{port}"),
            false => format!("{host}:{port}"),
        };
        let address = match (&self.address, self.server) {
            (ServerAddress::Tcp(hosts), Server::Mysql) => format!("({})", hosts.iter().map(host).collect::<String>()),
            (ServerAddress::Tcp(hosts), _) => hosts.iter().map(host).collect::<Vec<_>>().join(","),
            (ServerAddress::Unix(path), Server::Mysql) => format!("unix({})", path.display()),
            // It stands among the options.
            (ServerAddress::Unix(_), _) => String::new(),
        };
        let path = match self.path.as_str() {
            "" => String::new(),
            path => format!("/{}", self.server.write(path)),
        };
        format!("{}://{user}{address}{path}{}", self.server.scheme(), query(&self.options))
    }
}

fn tcp(server: Server, hosts: &str) -> ConfigResult<ServerAddress> {
    let hosts: Vec<_> =
        hosts.split(',').map(|host| host_port(host, server.default_port())).collect::<ConfigResult<_>>()?;
    if server.is_one_server() && hosts.len() > 1 {
        return Err(ConfigError::new(format!("the meta URL {}:// takes one server", server.scheme())));
    }
    Ok(ServerAddress::Tcp(hosts))
}

/// `(host:port)/db`, `tcp(host:port)/db`, `unix(/socket)/db`; the brackets may be missing around a host.
fn mysql_address(place: &str) -> ConfigResult<(ServerAddress, &str)> {
    let Some((kind, rest)) = place.split_once('(') else {
        let (host, path) = place.split_once('/').unwrap_or((place, ""));
        return Ok((tcp(Server::Mysql, host)?, path));
    };
    let wrong =
        || ConfigError::new("the address of the meta URL mysql:// is (host:port) or unix(/socket), then /database");
    let (inside, path) = rest.rsplit_once(')').ok_or_else(wrong)?;
    let path = path.strip_prefix('/').or(path.is_empty().then_some("")).ok_or_else(wrong)?;
    match kind {
        "" | "tcp" => Ok((tcp(Server::Mysql, inside)?, path)),
        "unix" if inside.starts_with('/') => Ok((ServerAddress::Unix(inside.into()), path)),
        _ => Err(wrong()),
    }
}
