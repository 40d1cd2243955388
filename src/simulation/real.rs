//! Real engines in a world on virtual time. Their calls run on another runtime, where time is real, while the thread of
//! the world stands still until the answer is there: to the world a call takes no time, whatever it took. No two calls
//! of a world overlap, so a seed is the same run as long as the engine answers the same questions alike. What lies
//! between is `network`'s as ever.

use crate::base::{Ino, Name};
use crate::meta::engine::{Batch, Committed, Cursor, Engine, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan};
use crate::meta::record::{Counter, Key, Record};
use crate::meta::testing::{Store, is_in_memory};
use async_trait::async_trait;
use std::sync::{Arc, LazyLock, mpsc};
use std::time::Duration;
use tokio::runtime::Runtime;

/// Longer than any engine goes on by itself.
const DEADLINE: Duration = Duration::from_secs(120);

static REAL_TIME: LazyLock<Runtime> = LazyLock::new(|| {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(2).enable_all().build();
    runtime.expect("a runtime")
});

/// Runs `work` where time is real; this thread, and the time of its world with it, stands still meanwhile.
fn really<T: Send + 'static>(work: impl Future<Output = T> + Send + 'static) -> T {
    let (send, done) = mpsc::sync_channel(1);
    let task = REAL_TIME.spawn(async move { send.send(work.await).expect("the world waits for it") });
    done.recv_timeout(DEADLINE).unwrap_or_else(|error| {
        let ended = task.is_finished();
        task.abort();
        panic!("a call of the engine has no answer: {error}{}", if ended { ": it panicked" } else { "" })
    })
}

/// Drops what belongs to an engine where it was made.
fn drop_there<T>(what: T) {
    let _there = REAL_TIME.enter();
    drop(what);
}

/// What clients of one world share.
pub struct Volume(Store);

impl Volume {
    pub fn new() -> Volume {
        Volume(really(Store::new()))
    }

    /// The engine of one more client. One in memory needs no other time.
    pub fn engine(&self) -> Arc<dyn Engine> {
        let store = self.0.clone();
        let engine = really(async move { store.engine().await });
        if is_in_memory() { engine } else { Arc::new(RealEngine(Some(engine))) }
    }
}

/// `None` only while it is dropped.
struct RealEngine(Option<Arc<dyn Engine>>);

impl RealEngine {
    fn inner(&self) -> &Arc<dyn Engine> {
        self.0.as_ref().expect("it is in use")
    }

    fn ask<T, W>(&self, call: impl FnOnce(Arc<dyn Engine>) -> W) -> T
    where
        T: Send + 'static,
        W: Future<Output = T> + Send + 'static,
    {
        really(call(self.inner().clone()))
    }
}

impl Drop for RealEngine {
    fn drop(&mut self) {
        drop_there(self.0.take());
    }
}

#[async_trait]
impl Engine for RealEngine {
    fn name(&self) -> &'static str {
        self.inner().name()
    }

    fn lists_chunks_of_file(&self) -> bool {
        self.inner().lists_chunks_of_file()
    }

    fn stores_empty_values(&self) -> bool {
        self.inner().stores_empty_values()
    }

    fn batch_max(&self) -> usize {
        self.inner().batch_max()
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.ask(|engine| async move { engine.prepare().await })
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let keys = keys.to_vec();
        self.ask(|engine| async move { engine.read(&keys).await })
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        let name = name.clone();
        self.ask(move |engine| async move { engine.lookup(parent, &name).await })
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        let first = first.to_vec();
        let (txn, records) = self.ask(|engine| async move { engine.begin(&first).await })?;
        Ok((Box::new(RealTxn(Some(txn))), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        let (scan, after) = (scan.clone(), after.cloned());
        self.ask(move |engine| async move { engine.scan_readable(&scan, after.as_ref(), limit).await })
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        let after = after.cloned();
        self.ask(move |engine| async move { engine.scan_plus(dir, after.as_ref(), limit).await })
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.ask(move |engine| async move { engine.allocate(counter, count).await })
    }

    async fn sync(&self) -> EngineResult<()> {
        self.ask(|engine| async move { engine.sync().await })
    }

    async fn erase(&self) -> EngineResult<()> {
        self.ask(|engine| async move { engine.erase().await })
    }
}

/// `None` once it is committed or dropped.
struct RealTxn(Option<Box<dyn EngineTxn>>);

impl Drop for RealTxn {
    fn drop(&mut self) {
        drop_there(self.0.take());
    }
}

#[async_trait]
impl EngineTxn for RealTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        let (mut txn, keys) = (self.0.take().expect("it is open"), keys.to_vec());
        let (txn, records) = really(async move {
            let records = txn.load(&keys).await;
            (txn, records)
        });
        self.0 = Some(txn);
        records
    }

    async fn commit(mut self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        let txn = self.0.take().expect("it is open");
        really(txn.commit(batch))
    }
}
