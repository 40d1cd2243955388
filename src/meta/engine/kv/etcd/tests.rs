//! Users, tokens and TLS, against servers of our own, and what an outage looks like.

use super::link::{Failed, Link};
use super::messages::{AuthenticateRequest, Nothing, StatusRequest};
use super::*;
use crate::base::Ino;
use crate::meta::engine::Engine;
use crate::meta::engine::kv::tests::etcd_options;
use crate::meta::record::{Counter, Key};
use crate::meta::testing::{program, skip};
use sluice_test_servers::Certificates;
use sluice_test_servers::etcd::Etcd as Server;
use std::time::{Duration, Instant};

fn installed(programs: &[&str]) -> bool {
    let missing = programs.iter().find(|name| program(name).is_none());
    missing.inspect(|name| skip(&format!("{name} is not installed"))).is_none()
}

async fn start() -> Server {
    tokio::task::spawn_blocking(|| Server::start(1)).await.unwrap()
}

async fn refusal(options: &EtcdOptions) -> Fault {
    match open(options).await.map(drop) {
        Err(EngineError::Fault(fault)) => fault,
        other => panic!("{other:?}"),
    }
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn users_have_tokens_that_are_asked_for_again() {
    if !installed(&[Server::PROGRAMS[0], Certificates::PROGRAMS[0]]) {
        return;
    }
    let made = Certificates::make();
    let ca = made.file("authority.pem");
    let mut server = tokio::task::block_in_place(|| Server::start_tls(&made, false));
    // Passwords do not go over the wire as they are.
    let tls = Some(TlsOptions { ca: Some(ca), ..TlsOptions::default() });
    let open_to_all = EtcdOptions { tls, ..etcd_options(&server.next_url()) };
    let as_root =
        |password: &str| EtcdOptions { user: Some(("root".to_owned(), password.to_owned())), ..open_to_all.clone() };
    // A password where nobody needs one is no mistake.
    open(&as_root("whatever")).await.unwrap();
    let link = Link::new(&open_to_all).unwrap();
    // Adding a user, giving a role and authenticating have the same two fields.
    for (call, one, other) in [("UserAdd", "root", "hunter2hunter2"), ("UserGrantRole", "root", "root")] {
        let request = AuthenticateRequest { name: one.to_owned(), password: other.to_owned() };
        let path: &'static str = format!("/etcdserverpb.Auth/{call}").leak();
        let _: Nothing = link.ask(path, &request).await.unwrap();
    }
    let _: Nothing = link.ask("/etcdserverpb.Auth/AuthEnable", &StatusRequest {}).await.unwrap();

    let engine = open(&as_root("hunter2hunter2")).await.unwrap();
    assert_eq!(engine.allocate(Counter::NextInode, 5).await.unwrap(), 2);
    // Tokens die with the server that gave them.
    tokio::task::block_in_place(|| {
        server.kill_node(0);
        server.start_node(0);
    });
    assert_eq!(engine.allocate(Counter::NextInode, 5).await.unwrap(), 7);

    for options in [as_root("hunter3hunter3"), open_to_all] {
        let refused = match open(&options).await {
            Err(error) => Err(error),
            // Where the version may be read without a password, nothing else may.
            Ok(engine) => engine.read(&[Key::Attr(Ino::ROOT)]).await.map(drop),
        };
        let Err(EngineError::Fault(fault)) = refused else { panic!("{refused:?}") };
        assert_eq!(fault.kind(), FaultKind::Denied, "{fault}");
        assert!(!fault.to_string().contains("hunter"), "{fault}");
    }
    drop(engine);
    tokio::task::block_in_place(|| drop(server));
}

#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
async fn a_restart_is_waited_for_and_a_wrong_address_is_not_for_long() {
    if !installed(&Server::PROGRAMS) {
        return;
    }
    let mut server = start().await;
    let options = etcd_options(&server.next_url());
    let engine = open(&options).await.unwrap();
    tokio::task::block_in_place(|| server.kill_node(0));
    let asking = {
        let engine = engine.clone();
        tokio::spawn(async move { engine.allocate(Counter::NextSession, 1).await })
    };
    tokio::time::sleep(Duration::from_millis(1500)).await;
    tokio::task::block_in_place(|| server.start_node(0));
    assert_eq!(asking.await.unwrap().unwrap(), 1);
    tokio::task::block_in_place(|| server.kill_node(0));
    let begun = Instant::now();
    let fault = refusal(&options).await;
    assert_eq!(fault.kind(), FaultKind::Unavailable, "{fault}");
    assert!(begun.elapsed() < Duration::from_secs(9), "{:?}", begun.elapsed());
    let link = Link::new(&options).unwrap();
    let asked = link.once::<StatusRequest, StatusResponse>(STATUS, &StatusRequest {}).await;
    assert!(matches!(asked, Err(Failed::Unsent(_))), "nothing was sent");
    drop(engine);
    tokio::task::block_in_place(|| drop(server));
}

#[test]
fn the_prefix_is_the_path_with_its_slash() {
    assert_eq!(prefix_of(""), b"\xfd");
    assert_eq!(prefix_of("jfsroot"), b"/jfsroot\xfd");
    assert_eq!(prefix_of("a/b"), b"/a/b\xfd");
}

#[test]
fn old_servers_are_refused() {
    for version in ["3.3.0", "3.4.23", "3.10.1", "4.0.0-alpha"] {
        check_version(version).unwrap();
    }
    for version in ["3.2.9", "2.3", ""] {
        check_version(version).unwrap_err();
    }
}
