//! A wrapper that counts the round trips of an engine, for tests and benches that say how many an operation may make.

use super::{Batch, Committed, Cursor, Engine, EngineResult, EngineTxn, Looked, Page, PlusPage, Scan};
use crate::base::{Ino, Name};
use crate::meta::record::{Counter, Key, Record};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;

/// Trips by call.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Trips {
    pub read: u64,
    /// Those that load something; one that does not asks nobody (TiKV: for a timestamp).
    pub begin: u64,
    pub load: u64,
    pub commit: u64,
    /// Both kinds of scans, one for each page.
    pub scan: u64,
    pub allocate: u64,
    /// prepare, sync, erase.
    pub other: u64,
}

impl Trips {
    pub fn total(&self) -> u64 {
        self.read + self.begin + self.load + self.commit + self.scan + self.allocate + self.other
    }
}

/// Counts the calls that go through it.
pub struct CountingEngine {
    inner: Arc<dyn Engine>,
    trips: Arc<Mutex<Trips>>,
}

impl CountingEngine {
    pub fn new(inner: Arc<dyn Engine>) -> CountingEngine {
        CountingEngine { inner, trips: Arc::default() }
    }

    /// The trips since the last call of this.
    pub fn take(&self) -> Trips {
        std::mem::take(&mut self.trips.lock())
    }

    fn count(&self, call: impl FnOnce(&mut Trips)) {
        call(&mut self.trips.lock());
    }
}

#[async_trait]
impl Engine for CountingEngine {
    fn name(&self) -> &'static str {
        self.inner.name()
    }

    fn lists_chunks_of_file(&self) -> bool {
        self.inner.lists_chunks_of_file()
    }

    fn stores_empty_values(&self) -> bool {
        self.inner.stores_empty_values()
    }

    fn unstorable_xattr(&self, name: &Name, value: &[u8]) -> Option<&'static str> {
        self.inner.unstorable_xattr(name, value)
    }

    fn batch_max(&self) -> usize {
        self.inner.batch_max()
    }

    async fn prepare(&self) -> EngineResult<()> {
        self.count(|trips| trips.other += 1);
        self.inner.prepare().await
    }

    async fn read(&self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.count(|trips| trips.read += 1);
        self.inner.read(keys).await
    }

    async fn lookup(&self, parent: Ino, name: &Name) -> EngineResult<Option<Looked>> {
        let looked = self.inner.lookup(parent, name).await?;
        if looked.is_some() {
            self.count(|trips| trips.read += 1);
        }
        Ok(looked)
    }

    async fn begin(&self, first: &[Key]) -> EngineResult<(Box<dyn EngineTxn>, Vec<Option<Record>>)> {
        if !first.is_empty() {
            self.count(|trips| trips.begin += 1);
        }
        let (inner, records) = self.inner.begin(first).await?;
        Ok((Box::new(CountingTxn { inner, trips: self.trips.clone() }), records))
    }

    async fn scan_readable(&self, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
        self.count(|trips| trips.scan += 1);
        self.inner.scan_readable(scan, after, limit).await
    }

    async fn scan_plus(&self, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
        self.count(|trips| trips.scan += 1);
        self.inner.scan_plus(dir, after, limit).await
    }

    async fn allocate(&self, counter: Counter, count: u64) -> EngineResult<u64> {
        self.count(|trips| trips.allocate += 1);
        self.inner.allocate(counter, count).await
    }

    async fn sync(&self) -> EngineResult<()> {
        self.count(|trips| trips.other += 1);
        self.inner.sync().await
    }

    async fn erase(&self) -> EngineResult<()> {
        self.count(|trips| trips.other += 1);
        self.inner.erase().await
    }
}

struct CountingTxn {
    inner: Box<dyn EngineTxn>,
    trips: Arc<Mutex<Trips>>,
}

#[async_trait]
impl EngineTxn for CountingTxn {
    async fn load(&mut self, keys: &[Key]) -> EngineResult<Vec<Option<Record>>> {
        self.trips.lock().load += 1;
        self.inner.load(keys).await
    }

    async fn commit(self: Box<Self>, batch: Batch) -> EngineResult<Committed> {
        self.trips.lock().commit += 1;
        self.inner.commit(batch).await
    }
}
