//! For unit tests: a fresh volume on the in-memory engine.

use super::engine::mem::MemEngine;
use super::engine::{Batch, Committed, Cursor, Engine, EngineError, EngineResult, EngineTxn, Page, PlusPage, Scan};
use super::ops::create::NewNode;
use super::record::{Counter, Key, Record};
use super::{Caller, Meta, MetaSettings, Rules};
use crate::base::{Fault, FaultKind, Ino, Kind, Name};
use crate::util::clock::{SharedClock, SystemClock};
use async_trait::async_trait;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Rules of a volume without limits and without a trash.
pub fn plain_rules() -> Rules {
    Rules { trash_days: 0, capacity_bytes: 0, inodes_max: 0, acl: true, dir_stats: true }
}

/// An empty volume in memory.
pub async fn volume() -> Arc<Meta> {
    volume_on(Arc::new(MemEngine::default()), Arc::new(SystemClock)).await
}

/// One more client of the volume on `engine`, which is made if it is not there yet.
pub async fn volume_on(engine: Arc<dyn Engine>, clock: SharedClock) -> Arc<Meta> {
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let meta = Meta::new(engine, clock, settings, plain_rules());
    meta.format(b"{}").await.expect("the engine takes a volume");
    meta
}

/// An empty regular file in the root, owned by the superuser, mode 0644.
pub async fn file(meta: &Meta, name: &str) -> Ino {
    let name = Name::entry(name.as_bytes()).expect("a valid name");
    let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
    meta.create(&Caller::root(), Ino::ROOT, &name, &node).await.expect("the name is free").ino
}

/// An engine whose commits lose their reply now and then, before or after they are applied.
struct LosesReplies {
    inner: MemEngine,
    commits: Arc<AtomicU64>,
}

struct LosesRepliesTxn {
    inner: Box<dyn EngineTxn>,
    commits: Arc<AtomicU64>,
}

/// An empty volume on an engine that loses the reply of two commits in three: one is applied, one is not.
pub async fn lossy_volume() -> Arc<Meta> {
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let engine = LosesReplies { inner: MemEngine::default(), commits: Arc::default() };
    let meta = Meta::new(Arc::new(engine), Arc::new(SystemClock), settings, plain_rules());
    meta.format(b"{}").await.expect("the first commit gets its reply");
    meta
}

#[async_trait]
impl Engine for LosesReplies {
    fn name(&self) -> &'static str {
        "memory without replies"
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.inner.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.inner.read(keys).await
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let (inner, records) = self.inner.begin(first).await?;
        Ok((Box::new(LosesRepliesTxn { inner, commits: self.commits.clone() }), records))
    }

    async fn scan(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.inner.scan(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.inner.scan_plus(dir, after, limit).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.inner.allocate(counter, count).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.inner.sync().await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.inner.erase().await
    }
}

#[async_trait]
impl EngineTxn for LosesRepliesTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.inner.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let lost = || EngineError::Undetermined(Fault::new(FaultKind::Undetermined, "commit"));
        match self.commits.fetch_add(1, Ordering::Relaxed) % 3 {
            1 => Err(lost()),
            2 => self.inner.commit(batch).await.and_then(|_| Err(lost())),
            _ => self.inner.commit(batch).await,
        }
    }
}
