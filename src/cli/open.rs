//! Opens what a command works on: the metadata engine behind a URL, the record of the volume, its object store.

use crate::base::Stop;
use crate::buf::{Budget, Pool};
use crate::cache::{BlockCache, CacheOptions};
use crate::chunk::{ChunkOptions, ChunkStore, Compression};
use crate::config::volume::{Access, VolumeFormat};
use crate::config::{ClientSettings, MetaUri};
use crate::meta::engine::Engine;
use crate::meta::{Meta, MetaSettings, Rules};
use crate::object::SharedStore;
use crate::tools::Volume;
use crate::util::clock::SystemClock;
use crate::vfs::client::{self, classes_of, open_objects, rules_of};
use crate::vfs::engines::open_engine;
use anyhow::Context as _;
use std::sync::Arc;

/// A tool that writes or reads a few objects needs no more.
const BUFFER_BYTES: u64 = 64 << 20;

/// Parses a meta URL as typed, relative to the working directory.
pub fn meta_uri(text: &str) -> anyhow::Result<MetaUri> {
    let cwd = std::env::current_dir().context("find the working directory")?;
    Ok(MetaUri::parse(text)?.absolute(&cwd))
}

/// Connects to the metadata of a volume that need not exist yet. The place is logged, the password never.
pub async fn meta(uri: &MetaUri) -> anyhow::Result<Arc<Meta>> {
    tracing::info!("Meta address: {uri}");
    let engine: Arc<dyn Engine> = open_engine(uri).await.with_context(|| format!("open the metadata engine {uri}"))?;
    let settings = MetaSettings { read_only: false, skip_dir_mtime: ClientSettings::default().skip_dir_mtime };
    Ok(Meta::new(engine, Arc::new(SystemClock), settings, rules_of(&VolumeFormat::default())))
}

/// The record of the volume, if there is one.
pub async fn stored_format(meta: &Meta) -> anyhow::Result<Option<VolumeFormat>> {
    client::stored_format(&**meta.engine()).await.context("load setting")
}

/// The record of a volume that must exist; what operations need to know of it is put in place.
pub async fn existing_format(meta: &Meta) -> anyhow::Result<VolumeFormat> {
    let format = client::existing_format(&**meta.engine()).await?;
    meta.set_rules(rules_of(&format));
    Ok(format)
}

/// The record of a volume that this build may use.
pub async fn usable_format(meta: &Meta, access: Access) -> anyhow::Result<VolumeFormat> {
    let format = existing_format(meta).await?;
    format.admit(access)?;
    Ok(format)
}

/// The last words of a tool that has changed something: what the engine has gathered is stored.
pub async fn let_go(meta: &Meta) {
    if let Err(error) = meta.engine().sync().await {
        let fault = fault(error);
        tracing::warn!("the usage of the volume may be off, `fsck --repair` counts it anew: {fault:#}");
    }
}

/// The object store of a volume, under its prefix, for a tool.
pub fn objects(format: &VolumeFormat) -> Result<SharedStore, Stop> {
    let settings = ClientSettings { io_retries: 3, ..ClientSettings::default() };
    Ok(open_objects(format, &settings, &Pool::new(Budget::new(BUFFER_BYTES)))?.store)
}

/// A volume as the repair tools work on it: without a session, without a cache.
pub fn volume(meta: Arc<Meta>, format: &VolumeFormat) -> anyhow::Result<Volume> {
    let pool = Pool::new(Budget::new(BUFFER_BYTES));
    let settings = ClientSettings { io_retries: 3, ..ClientSettings::default() };
    let store = open_objects(format, &settings, &pool).context("object storage")?.store;
    tracing::info!("Data use {}", store.name());
    let compression = Compression::parse(&format.compression)
        .with_context(|| format!("the volume's compression \"{}\" is not known", format.compression))?;
    let options = ChunkOptions {
        block_size: u32::try_from(format.block_bytes()).context("the volume's block size")?,
        compression,
        hash_prefix: format.hash_prefix,
        classes: classes_of(format),
        ..ChunkOptions::default()
    };
    let cache = BlockCache::open(&CacheOptions::default(), &pool);
    let data = ChunkStore::new(store.clone(), cache, pool, options);
    Ok(Volume { meta, store, data })
}

/// The rules of a volume that is about to be made.
pub fn rules(format: &VolumeFormat) -> Rules {
    rules_of(format)
}

/// An engine's failure in the words of a fault.
pub fn fault(error: crate::meta::engine::EngineError) -> crate::base::Fault {
    use crate::meta::engine::EngineError;
    match error {
        EngineError::Conflict => crate::base::Fault::conflict("use the metadata engine"),
        EngineError::Undetermined(fault) | EngineError::Fault(fault) => fault,
    }
}
