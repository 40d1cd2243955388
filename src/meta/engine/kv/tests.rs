//! Against real servers: the shared suite, the stored bytes, the trips, and what happens when many want the same key or
//! a server goes away.

use super::etcd::{self, EtcdOptions};
use super::{Kv, KvEngine, codec};
use crate::base::acl::AclRule;
use crate::base::{
    Attr, AttrPatch, ChunkIndex, Errno, FaultKind, Ino, Kind, Name, SessionId, Slice, SliceId, Timestamp,
};
use crate::meta::engine::suite::{Opened, engine_suite};
use crate::meta::engine::{Batch, Change, Committed, Engine, EngineError, EngineResult, Guard, Scan};
use crate::meta::record::{Counter, Dentry, DirStat, Key, PlockRange, Quota, QuotaOwner, Record, Session};
use crate::meta::testing::{program, skip};
use bytes::Bytes;
use sluice_test_servers::etcd::Etcd;
use std::process::Command;
use std::sync::Arc;

/// Where a meta URL of the test servers leads.
pub fn etcd_options(url: &str) -> EtcdOptions {
    let (hosts, path) = url.strip_prefix("etcd://").and_then(|rest| rest.split_once('/')).expect("an etcd URL");
    let member = |host: &str| {
        let (host, port) = host.rsplit_once(':').expect("host:port");
        (host.to_owned(), port.parse().expect("a port"))
    };
    EtcdOptions { members: hosts.split(',').map(member).collect(), path: path.to_owned(), user: None, tls: None }
}

/// The meta URL of a fresh prefix; `None`: announced as skipped.
fn fresh() -> Option<String> {
    if program("etcd").is_none() {
        skip("etcd is not installed");
        return None;
    }
    Some(Etcd::shared().next_url())
}

async fn engine(url: &str) -> KvEngine {
    etcd::open(&etcd_options(url)).await.expect("the server of the tests")
}

mod on_etcd {
    use super::*;

    async fn open() -> Option<Opened> {
        let engine = Arc::new(engine(&fresh()?).await);
        Some(Opened { engine, derives_link_parents: false, keep: Box::new(()) })
    }

    engine_suite!(open);
}
