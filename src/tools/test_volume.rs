//! For unit tests of the tools: a volume on the engine under test, its objects in memory with times of their own.

use super::{Progress, Volume, Watch};
use crate::base::slice::resolve;
use crate::base::{CHUNK_BYTES, ChunkIndex, Fault, Ino, Name, Slice, SliceId};
use crate::buf::{Budget, Payload, Pool};
use crate::cache::{BlockCache, CacheOptions};
use crate::chunk::{ChunkOptions, ChunkStore, layout};
use crate::meta::engine::Change;
use crate::meta::ops::create::NewNode;
use crate::meta::testing::Store;
use crate::meta::txn::{AttrOf, Operation, Tx};
use crate::meta::{Caller, Meta};
use crate::object::mem::MemStore;
use crate::object::{Capabilities, Listed, ObjectMeta, ObjectStore};
use crate::util::clock::SystemClock;
use crate::util::task::{Stopper, stop_signal};
use async_trait::async_trait;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::ops::Range;
use std::sync::Arc;
use std::time::{Duration, SystemTime};

pub const BLOCK: u32 = 64 << 10;

/// A store that says of some objects that they are older than they are, and can do something before a listing.
#[derive(Default)]
pub struct AgingStore {
    inner: MemStore,
    ages: Mutex<HashMap<String, Duration>>,
    /// The age of everything that is put.
    pub age: Mutex<Duration>,
    before_list: Mutex<Option<futures::future::BoxFuture<'static, ()>>>,
}

impl AgingStore {
    pub fn before_list(&self, what: impl Future<Output = ()> + Send + 'static) {
        *self.before_list.lock() = Some(Box::pin(what));
    }

    fn aged(&self, key: &str, mtime: SystemTime) -> SystemTime {
        mtime - self.ages.lock().get(key).copied().unwrap_or_default()
    }
}

#[async_trait]
impl ObjectStore for AgingStore {
    fn name(&self) -> &str {
        "aging"
    }

    fn capabilities(&self) -> Capabilities {
        self.inner.capabilities()
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        self.inner.get(key, range).await
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        let age = *self.age.lock();
        self.ages.lock().insert(key.to_owned(), if key.starts_with("testing/") { Duration::ZERO } else { age });
        self.inner.put_as(key, body, class).await
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        self.inner.delete(key).await
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        let found = self.inner.head(key).await?;
        Ok(found.map(|meta| ObjectMeta { mtime: self.aged(key, meta.mtime), ..meta }))
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        let what = self.before_list.lock().take();
        if let Some(what) = what {
            what.await;
        }
        let page = self.inner.list(prefix, after, limit).await?;
        Ok(page.into_iter().map(|l| Listed { mtime: self.aged(&l.key, l.mtime), ..l }).collect())
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        self.inner.create_bucket().await
    }
}

pub struct TestVolume {
    pub volume: Volume,
    pub store: Arc<AgingStore>,
    pub place: Store,
}

impl TestVolume {
    pub async fn new() -> TestVolume {
        let place = Store::new().await;
        let meta = place.client(Arc::new(SystemClock)).await;
        let store = Arc::new(AgingStore::default());
        *store.age.lock() = Duration::from_secs(7200);
        let pool = Pool::new(Budget::new(64 << 20));
        let options = ChunkOptions { block_size: BLOCK, ..ChunkOptions::default() };
        let cache = BlockCache::open(&CacheOptions::default(), &pool);
        let data = ChunkStore::new(store.clone(), cache, pool, options);
        TestVolume { volume: Volume { meta, store: store.clone(), data }, store, place }
    }

    pub fn meta(&self) -> &Arc<Meta> {
        &self.volume.meta
    }

    pub fn watch(&self) -> (Watch, Stopper) {
        let (stopper, stop) = stop_signal();
        (Watch { progress: Arc::new(Progress::default()), stop }, stopper)
    }

    pub fn content(&self, len: u32) -> Vec<u8> {
        (0..len).map(|i| (i % 251 + 1) as u8).collect()
    }

    pub async fn file(&self, name: &str) -> Ino {
        let name = Name::entry(name.as_bytes()).unwrap();
        let node = NewNode { kind: crate::base::Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
        match self.meta().lookup(&Caller::root(), Ino::ROOT, &name).await {
            Ok(entry) => entry.ino,
            Err(_) => self.meta().create(&Caller::root(), Ino::ROOT, &name, &node).await.unwrap().ino,
        }
    }

    /// Puts the objects of a slice without a record of it.
    pub async fn objects(&self, len: u32) -> (SliceId, u32) {
        let id = self.meta().next_slice().await.unwrap();
        let mut writer = self.volume.data.writer(Some(id), 0);
        writer.write_at(0, &self.content(len)).unwrap();
        assert_eq!(writer.finish().await.unwrap(), len);
        (id, len)
    }

    /// Writes `len` bytes at `at` of a file in the root as one slice.
    pub async fn write(&self, name: &str, at: u64, len: u32) -> (Ino, (SliceId, u32)) {
        let ino = self.file(name).await;
        let (id, size) = self.objects(len).await;
        let slice = Slice { pos: (at % CHUNK_BYTES) as u32, id, size, off: 0, len };
        let index = ChunkIndex((at / CHUNK_BYTES) as u32);
        self.meta().append_slice(ino, index, slice, self.meta().now()).await.unwrap();
        (ino, (id, size))
    }

    pub fn block(&self, (id, size): (SliceId, u32), index: u32) -> String {
        layout::block_key(id, size, BLOCK, index).name(false)
    }

    pub async fn read_len(&self, name: &str) -> u64 {
        let ino = self.file(name).await;
        self.meta().getattr(ino).await.unwrap().length
    }

    /// The first chunk of a file.
    pub async fn read(&self, name: &str) -> Vec<u8> {
        let ino = self.file(name).await;
        let length = self.meta().getattr(ino).await.unwrap().length as usize;
        let mut out = vec![0; length];
        for piece in resolve(&self.meta().read_chunk(ino, ChunkIndex(0)).await.unwrap()) {
            let bytes = self.volume.data.read(piece.id, piece.size, piece.off, piece.len).await.unwrap();
            let mut part = vec![0; piece.len as usize];
            bytes.copy_to(&mut part);
            let from = piece.pos as usize;
            let to = (from + part.len()).min(length);
            out[from..to].copy_from_slice(&part[..to - from]);
        }
        out
    }

    /// Puts records as they are.
    pub async fn put(&self, changes: Vec<Change>) {
        struct Put(Vec<Change>);
        impl Operation for Put {
            const NAME: &'static str = "put";
            type Output = ();
            async fn run(&self, tx: &mut Tx<'_>) -> crate::base::Outcome<()> {
                tx.load(AttrOf(Ino::ROOT)).await?;
                self.0.iter().for_each(|change| tx.change(change.clone()));
                Ok(())
            }
        }
        self.meta().run(&Put(changes)).await.unwrap();
    }

    pub async fn names(&self) -> Vec<String> {
        let page = self.store.list("", "", 100_000).await.unwrap();
        page.into_iter().map(|listed| listed.key).collect()
    }
}
