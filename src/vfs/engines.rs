//! From a meta URL to its engine: what the options of each kind of URL mean. An option that is not known is refused, for
//! what was asked for is not done then.

use crate::base::{Fault, Outcome};
use crate::config::uri::{MetaUri, Server, ServerAddress, ServerUri};
use crate::meta::engine::Engine;
use crate::meta::outside;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Opens the metadata engine of a URL.
pub async fn open_engine(uri: &MetaUri) -> Outcome<Arc<dyn Engine>> {
    match uri {
        #[cfg(feature = "redis")]
        MetaUri::Redis(_) => {
            let engine = crate::meta::engine::redis::RedisEngine::open(uri.with_password().expose()).await;
            Ok(outside(engine)?)
        }
        #[cfg(feature = "sqlite")]
        MetaUri::Sqlite(sqlite) => {
            use crate::meta::engine::sql::sqlite::{SqliteEngine, SqliteOptions};
            let options = SqliteOptions { table_prefix: sqlite.option("table_prefix").map(str::to_owned) };
            Ok(Arc::new(SqliteEngine::open(&sqlite.path, options)?))
        }
        #[cfg(feature = "etcd")]
        MetaUri::Server(server) if server.server == Server::Etcd => {
            let engine = crate::meta::engine::kv::etcd::open(&etcd_options(server)?).await;
            Ok(Arc::new(outside(engine)?))
        }
        #[cfg(feature = "tikv")]
        MetaUri::Server(server) if server.server == Server::Tikv => {
            let engine = crate::meta::engine::kv::tikv::open(&tikv_options(server)?).await;
            Ok(Arc::new(outside(engine)?))
        }
        #[cfg(any(feature = "mysql", feature = "postgres"))]
        MetaUri::Server(server) if matches!(server.server, Server::Mysql | Server::Postgres) => {
            let engine = crate::meta::engine::sql::server::ServerEngine::open(&sql_options(server)?).await;
            Ok(Arc::new(outside(engine)?))
        }
        #[allow(unreachable_patterns, reason = "which engines there are is decided by features")]
        _ => Err(Fault::unsupported("open metadata engine").source("this build was made without it").into()),
    }
}

/// An etcd cluster as its meta URL has it. TLS is on as soon as the URL has an option of it.
#[cfg(feature = "etcd")]
fn etcd_options(uri: &ServerUri) -> Outcome<crate::meta::engine::kv::etcd::EtcdOptions> {
    use crate::meta::engine::kv::etcd::{EtcdOptions, TlsOptions};
    const KNOWN: [&str; 5] = ["cacert", "cert", "key", "server-name", "insecure-skip-verify"];
    if let Some((unknown, _)) = uri.options.iter().find(|(name, _)| !KNOWN.contains(&name.as_str())) {
        let said = format!("the meta URL has the option {unknown}; known are {}", KNOWN.join(", "));
        return Err(Fault::config("open etcd").source(said).into());
    }
    let path = |name| uri.option(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    let identity = match (path("cert"), path("key")) {
        (Some(certificate), Some(key)) => Some((certificate, key)),
        (None, None) => None,
        _ => return Err(Fault::config("open etcd").source("cert and key of the meta URL belong together").into()),
    };
    let is_set = |name| uri.option(name).is_some_and(|value| !["", "0", "false"].contains(&value));
    let tls = TlsOptions {
        ca: path("cacert"),
        identity,
        server_name: uri.option("server-name").filter(|name| !name.is_empty()).map(str::to_owned),
        skip_verify: is_set("insecure-skip-verify"),
    };
    let password = uri.password.as_ref().map(|password| password.expose().to_owned()).unwrap_or_default();
    Ok(EtcdOptions {
        members: members_of(uri),
        path: uri.path.clone(),
        user: uri.username.clone().map(|name| (name, password)),
        tls: (tls != TlsOptions::default()).then_some(tls),
    })
}

/// A TiKV cluster as its meta URL has it.
#[cfg(feature = "tikv")]
fn tikv_options(uri: &ServerUri) -> Outcome<crate::meta::engine::kv::tikv::TikvOptions> {
    /// What the peer's clients do when the URL says nothing, and the least they accept.
    const GC_DEFAULT: Duration = Duration::from_secs(3 * 3600);
    const GC_MIN: Duration = Duration::from_secs(3600);
    let wrong = |said: String| Fault::config("open tikv").source(said);
    let tls = match ["ca", "cert", "key"].map(|name| uri.option(name).filter(|path| !path.is_empty())) {
        [Some(ca), Some(cert), Some(key)] => Some([ca, cert, key].map(PathBuf::from)),
        [None, None, None] => None,
        _ => return Err(wrong("ca, cert and key of the meta URL belong together".into()).into()),
    };
    let mut gc_interval = Some(GC_DEFAULT);
    for (name, value) in &uri.options {
        match name.as_str() {
            "ca" | "cert" | "key" => {}
            // How the peer's client asks for timestamps.
            "open-tso-follower-proxy" | "max-tso-batch-wait-interval" => {}
            "gc-interval" if value == "0" => gc_interval = None,
            "gc-interval" => {
                let interval = crate::config::units::parse_duration(value).map_err(|error| wrong(error.to_string()))?;
                if interval < GC_MIN {
                    return Err(wrong(format!("gc-interval of the meta URL is {value}, at least 1h is needed")).into());
                }
                gc_interval = Some(interval);
            }
            "verify-cn" => {
                let said = "verify-cn of the meta URL: this build does not compare the names in certificates of TiKV";
                return Err(Fault::unsupported("open tikv").source(said).into());
            }
            unknown => {
                let known = "ca, cert, key, gc-interval";
                return Err(wrong(format!("the meta URL has the option {unknown}; known are {known}")).into());
            }
        }
    }
    let member = |(host, port): (String, u16)| match host.contains(':') {
        true => format!("[{host}]:{port}"),
        false => format!("{host}:{port}"),
    };
    let members = members_of(uri).into_iter().map(member).collect();
    Ok(crate::meta::engine::kv::tikv::TikvOptions { members, path: uri.path.clone(), tls, gc_interval })
}

/// The servers of a cluster.
#[cfg(any(feature = "etcd", feature = "tikv"))]
fn members_of(uri: &ServerUri) -> Vec<(String, u16)> {
    match &uri.address {
        ServerAddress::Tcp(members) => members.clone(),
        ServerAddress::Unix(_) => Vec::new(),
    }
}

/// A MySQL, MariaDB or PostgreSQL database as its meta URL has it (`spec/surface.md` 2).
#[cfg(any(feature = "mysql", feature = "postgres"))]
fn sql_options(uri: &ServerUri) -> Outcome<crate::meta::engine::sql::server::ServerOptions> {
    use crate::meta::engine::sql::server::{ServerKind, ServerOptions, Tls};
    // The files of certificates have the names of PostgreSQL on both; the peer's driver of MySQL has none.
    const BOTH: [&str; 8] = [
        "max_open_conns",
        "max_idle_conns",
        "max_idle_time",
        "max_life_time",
        "table_prefix",
        "sslrootcert",
        "sslcert",
        "sslkey",
    ];
    const MYSQL: [&str; 1] = ["tls"];
    const POSTGRES: [&str; 3] = ["sslmode", "search_path", "host"];
    // How the peer's driver talks to the server; ours has its own ways.
    const IGNORED: [&str; 9] = [
        "charset",
        "collation",
        "parseTime",
        "loc",
        "timeout",
        "readTimeout",
        "writeTimeout",
        "connect_timeout",
        "application_name",
    ];
    let refused = |said: String| Fault::config("open database").with("engine", uri.server.scheme()).source(said);
    let own: &[&str] = if uri.server == Server::Mysql { &MYSQL } else { &POSTGRES };
    for (name, _) in &uri.options {
        if IGNORED.contains(&name.as_str()) {
            tracing::warn!(option = name, "this option of the meta URL has no meaning for this client");
        } else if !BOTH.contains(&name.as_str()) && !own.contains(&name.as_str()) {
            let known = BOTH.iter().chain(own).copied().collect::<Vec<_>>().join(", ");
            return Err(refused(format!("the meta URL has the option {name}; known are {known}")).into());
        }
    }
    let number = |name| match uri.option(name).map(str::parse::<u64>) {
        None => Ok(None),
        Some(Ok(number)) => Ok(Some(number)),
        Some(Err(_)) => Err(refused(format!("the option {name} of the meta URL is not a number"))),
    };
    let unknown = |name: &str, known: &str| refused(format!("the option {name} of the meta URL may be {known}"));
    let tls = match uri.server {
        Server::Mysql => match uri.option("tls") {
            None | Some("false") => Tls::Off,
            Some("true") => Tls::Full,
            Some("skip-verify") => Tls::Unverified,
            Some("preferred") => Tls::Preferred,
            Some(_) => return Err(unknown("tls", "true, false, skip-verify or preferred").into()),
        },
        _ => match uri.option("sslmode") {
            Some("disable") => Tls::Off,
            // As the peer has it where nothing is said.
            None | Some("allow" | "prefer") => Tls::Preferred,
            // As the peer's driver has it, and libpq: whoever names an authority means it.
            Some("require") if uri.option("sslrootcert").is_some_and(|file| !file.is_empty()) => Tls::Authority,
            Some("require") => Tls::Unverified,
            Some("verify-ca") => Tls::Authority,
            Some("verify-full") => Tls::Full,
            Some(_) => {
                return Err(unknown("sslmode", "disable, allow, prefer, require, verify-ca or verify-full").into());
            }
        },
    };
    let (host, port, socket) = match &uri.address {
        ServerAddress::Tcp(hosts) => {
            let (host, port) = hosts.first().cloned().unwrap_or_default();
            (host, port, None)
        }
        ServerAddress::Unix(path) => (String::new(), 5432, Some(path.clone())),
    };
    let search_path = uri.option("search_path").map(str::to_owned);
    if search_path.as_ref().is_some_and(|path| path.contains(',')) {
        return Err(refused("search_path may name one schema".to_owned()).into());
    }
    let path = |name| uri.option(name).filter(|path| !path.is_empty()).map(PathBuf::from);
    Ok(ServerOptions {
        kind: if uri.server == Server::Mysql { ServerKind::Mysql } else { ServerKind::Postgres },
        host,
        port,
        socket,
        username: uri.username.clone(),
        password: uri.password.as_ref().map(|password| password.expose().to_owned()),
        database: uri.path.clone(),
        table_prefix: uri.option("table_prefix").map(str::to_owned),
        search_path,
        tls,
        authority_file: path("sslrootcert"),
        certificate_file: path("sslcert"),
        key_file: path("sslkey"),
        max_open_conns: number("max_open_conns")?.map_or(0, |number| u32::try_from(number).unwrap_or(u32::MAX)),
        max_idle_conns: number("max_idle_conns")?.map(|number| u32::try_from(number).unwrap_or(u32::MAX)),
        max_idle_seconds: number("max_idle_time")?,
        max_life_seconds: number("max_life_time")?,
    })
}

#[cfg(test)]
mod tests;
