//! What meta URLs say of TLS, against servers that take nothing else; the peer reads and makes the same volumes by the
//! same URLs.

use super::*;
use crate::base::FaultKind;
use crate::base::Stop;
use crate::meta::record::Key;
use crate::meta::testing::{program, skip};
use sluice_test_servers::Certificates;
use sluice_test_servers::etcd::Etcd;
use sluice_test_servers::mariadb::{self, Mariadb};
use sluice_test_servers::postgres::{self, Postgres};
use std::process::Command;
use std::time::Instant;

fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().chain(&Certificates::PROGRAMS).find(|name| program(name).is_none());
    missing.inspect(|name| skip(&format!("{name} is not installed"))).is_none()
}

/// Starting servers takes seconds, and so does ending them.
async fn apart<T: Send + 'static>(what: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(what).await.unwrap()
}

/// Whether there is a volume behind the URL.
async fn volume_at(url: &str) -> Outcome<bool> {
    let engine = open_engine(&MetaUri::parse(url).unwrap()).await?;
    Ok(outside(engine.read(&[Key::Setting]).await)?.pop().flatten().is_some())
}

/// A refusal comes soon, is of this kind and says this; never the password.
async fn refused(url: &str, kind: FaultKind, said: &str) {
    let begun = Instant::now();
    let fault = match volume_at(url).await {
        Err(Stop::Fault(fault)) => fault,
        other => panic!("{url}: {other:?}"),
    };
    let text = fault.to_string();
    assert!(fault.kind() == kind && text.contains(said), "{url}: {:?}: {text}", fault.kind());
    assert!(!text.contains(mariadb::PASSWORD) && !text.contains("hunter"), "{text}");
    assert!(begun.elapsed().as_secs() < 10, "{url}: {:?}", begun.elapsed());
}

/// `juicefs format`, with an authority that the system believes.
fn format_by_the_peer(url: &str, certificates: &Certificates) {
    let Some(peer) = program("juicefs") else {
        return skip("nothing is compared with the peer: juicefs is not installed");
    };
    let dir = tempfile::tempdir().unwrap();
    let bucket = format!("{}/", dir.path().display());
    let mut command = Command::new(peer);
    command.args(["format", "--storage", "file", "--bucket", &bucket, url, "peer"]);
    let made = command.env("SSL_CERT_FILE", certificates.path("authority.pem")).output().unwrap();
    assert!(made.status.success(), "{url}: {}", String::from_utf8_lossy(&made.stderr));
}

/// Certificates, and others of an authority of their own.
async fn certificates() -> (Arc<Certificates>, Certificates) {
    apart(|| (Arc::new(Certificates::make()), Certificates::make())).await
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn mysql_is_encrypted_and_believed_as_the_url_says() {
    if !installed(&Mariadb::PROGRAMS) {
        return;
    }
    let (made, others) = certificates().await;
    let server = apart({
        let made = made.clone();
        move || Mariadb::start_tls(&made)
    })
    .await;
    let database = server.next_database();
    let at = |user: &str, host: &str, options: &str| {
        let (password, port) = (mariadb::PASSWORD, server.port);
        format!("mysql://{user}:{password}@({host}:{port})/{database}{options}")
    };
    let url = |options: &str| at(mariadb::USER, "127.0.0.1", options);
    let trust = format!("sslrootcert={}", made.path("authority.pem"));

    for options in ["", "?tls=false"] {
        refused(&url(options), FaultKind::Denied, "tls=true").await;
    }
    refused(&url("?tls=true"), FaultKind::Config, "UnknownIssuer").await;
    let stranger = format!("?tls=true&sslrootcert={}", others.path("authority.pem"));
    refused(&url(&stranger), FaultKind::Config, "sslrootcert").await;
    refused(&at(mariadb::USER, "127.0.0.2", &format!("?tls=true&{trust}")), FaultKind::Config, "not valid for name")
        .await;
    refused(&url("?tls=true&sslrootcert=/no/such/file"), FaultKind::Config, "/no/such/file").await;
    refused(&url(&format!("?tls=true&sslcert={}", made.path("client.pem"))), FaultKind::Config, "belong together")
        .await;

    apart({
        let (url, made) = (url("?tls=skip-verify"), made.clone());
        move || format_by_the_peer(&url, &made)
    })
    .await;
    for options in ["?tls=skip-verify", "?tls=preferred", &format!("?tls=true&{trust}")] {
        assert!(volume_at(&url(options)).await.unwrap(), "{options}");
    }
    // The peer with what the system believes, and the same volume.
    apart({
        let (url, made) = (url("?tls=true"), made.clone());
        move || format_by_the_peer(&url, &made)
    })
    .await;

    let password = mariadb::PASSWORD;
    server.execute(&format!(
        "CREATE USER shown@'%' IDENTIFIED BY '{password}' REQUIRE X509; GRANT ALL ON *.* TO shown@'%'"
    ));
    let shown = |options: &str| at("shown", "127.0.0.1", options);
    refused(&shown("?tls=skip-verify"), FaultKind::Denied, "sslcert, sslkey").await;
    let identity = format!("sslcert={}&sslkey={}", made.path("client.pem"), made.path("client.key"));
    assert!(volume_at(&shown(&format!("?tls=true&{trust}&{identity}"))).await.unwrap());
    apart(move || drop(server)).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn postgres_is_encrypted_and_believed_as_the_url_says() {
    if !installed(&Postgres::PROGRAMS) {
        return;
    }
    let (made, others) = certificates().await;
    let [server, strict] = apart({
        let made = made.clone();
        move || [false, true].map(|clients| Postgres::start_tls(&made, clients))
    })
    .await;
    let database = server.next_database();
    let at = |port: u16, host: &str, options: &str| {
        let (user, password) = (postgres::USER, postgres::PASSWORD);
        format!("postgres://{user}:{password}@{host}:{port}/{database}{options}")
    };
    let url = |options: &str| at(server.port, "127.0.0.1", options);
    let trust = format!("sslrootcert={}", made.path("authority.pem"));
    let stranger = format!("sslrootcert={}", others.path("authority.pem"));

    refused(&url("?sslmode=disable"), FaultKind::Denied, "sslmode").await;
    for mode in ["require", "verify-ca", "verify-full"] {
        refused(&url(&format!("?sslmode={mode}&{stranger}")), FaultKind::Config, "sslrootcert").await;
    }
    refused(&url("?sslmode=verify-full"), FaultKind::Config, "UnknownIssuer").await;
    let elsewhere = |mode: &str| at(server.port, "127.0.0.2", &format!("?sslmode={mode}&{trust}"));
    refused(&elsewhere("verify-full"), FaultKind::Config, "not valid for name").await;
    refused(&url("?sslmode=verify-ca&sslrootcert=/no/such/file"), FaultKind::Config, "/no/such/file").await;
    refused(&url("?sslmode=maybe"), FaultKind::Config, "verify-full").await;

    let full = url(&format!("?sslmode=verify-full&{trust}"));
    apart({
        let (url, made) = (full.clone(), made.clone());
        move || format_by_the_peer(&url, &made)
    })
    .await;
    assert!(volume_at(&full).await.unwrap());
    assert!(volume_at(&elsewhere("verify-ca")).await.unwrap(), "the name is of no matter");
    for options in ["", "?sslmode=allow", "?sslmode=prefer", "?sslmode=require"] {
        assert!(volume_at(&url(options)).await.unwrap(), "{options}");
    }

    strict.execute("postgres", &format!("CREATE DATABASE {database}"));
    let shown = |options: &str| at(strict.port, "127.0.0.1", &format!("?sslmode=verify-full&{trust}{options}"));
    refused(&shown(""), FaultKind::Denied, "certificate").await;
    let [theirs, ours] = [&others, &*made]
        .map(|from| format!("&sslcert={}&sslkey={}", from.path("client.pem"), from.path("client.key")));
    refused(&shown(&theirs), FaultKind::Denied, "certificate").await;
    apart({
        let (url, made) = (shown(&ours), made.clone());
        move || format_by_the_peer(&url, &made)
    })
    .await;
    assert!(volume_at(&shown(&ours)).await.unwrap());
    apart(move || drop([server, strict])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn etcd_is_encrypted_and_believed_as_the_url_says() {
    if !installed(&Etcd::PROGRAMS) {
        return;
    }
    let (made, others) = certificates().await;
    let [server, strict] = apart({
        let made = made.clone();
        move || [false, true].map(|clients| Etcd::start_tls(&made, clients))
    })
    .await;
    let plain = server.next_url();
    let url = |options: &str| format!("{plain}{options}");
    let trust = format!("cacert={}", made.path("authority.pem"));

    // The server hangs up, which a server that starts does too.
    refused(&plain, FaultKind::Unavailable, "may want TLS").await;
    refused(&url(&format!("?cacert={}", others.path("authority.pem"))), FaultKind::Config, "cacert").await;
    refused(&url(&format!("?{trust}&server-name=etcd.test")), FaultKind::Config, "server-name").await;
    refused(&url("?cacert=/no/such/file"), FaultKind::Config, "/no/such/file").await;
    refused(&url(&format!("?{trust}&cert=/no/such/file")), FaultKind::Config, "belong together").await;
    let verified = url(&format!("?{trust}&server-name=localhost"));
    apart({
        let (url, made) = (verified.clone(), made.clone());
        move || format_by_the_peer(&url, &made)
    })
    .await;
    for url in [verified, url(&format!("?{trust}")), url("?insecure-skip-verify=1")] {
        assert!(volume_at(&url).await.unwrap(), "{url}");
    }

    let plain = strict.next_url();
    let shown = |options: &str| format!("{plain}?{trust}{options}");
    refused(&shown(""), FaultKind::Unavailable, "cert and key").await;
    let [theirs, ours] =
        [&others, &*made].map(|from| format!("&cert={}&key={}", from.path("client.pem"), from.path("client.key")));
    refused(&shown(&theirs), FaultKind::Unavailable, "cert and key").await;
    apart({
        let (url, made) = (shown(&ours), made.clone());
        move || format_by_the_peer(&url, &made)
    })
    .await;
    assert!(volume_at(&shown(&ours)).await.unwrap());
    apart(move || drop([server, strict])).await;
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn unused_connections_are_kept_as_the_url_says() {
    if program(Postgres::PROGRAMS[0]).is_none() {
        return skip("postgres is not installed");
    }
    let server = apart(|| Postgres::start_with(&["fsync=off"])).await;
    let database = server.next_database();
    let connections = || {
        let sql =
            format!("SELECT count(*) FROM pg_stat_activity WHERE usename = current_user AND datname = '{database}'");
        server.execute("postgres", &sql).trim().parse::<usize>().unwrap()
    };
    for (options, wanted) in [("&max_idle_conns=2", 0..=2), ("", 3..=16), ("&max_idle_conns=0", 0..=0)] {
        let engine =
            open_engine(&MetaUri::parse(&format!("{}{options}", server.url(&database))).unwrap()).await.unwrap();
        outside(engine.prepare().await).unwrap();
        let keys = [Key::Setting];
        futures::future::try_join_all((0..64).map(|_| engine.read(&keys))).await.unwrap();
        // Those that are not kept are closed a moment later.
        let begun = Instant::now();
        while !wanted.contains(&connections()) {
            assert!(begun.elapsed().as_secs() < 10, "{options}: {} connections", connections());
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
        drop(engine);
        while connections() > 0 {
            assert!(begun.elapsed().as_secs() < 20, "{options}: they stay");
            tokio::time::sleep(Duration::from_millis(50)).await;
        }
    }
    apart(move || drop(server)).await;
}
