//! A volume opened by this process: engine, store, cache, metadata and vfs put together, and the background work that
//! a client of a volume owes to it. Mounts, the gateway and tools all open volumes here.
//!
//! Closing drains: what was written is flushed, background jobs end, and the session is taken out of the volume.

use super::backup::{Backup, BackupNews};
use super::engines::open_engine;
use super::{Vfs, VfsSettings};
use crate::base::{Errno, Fault, Ino, Outcome, SliceId, Stop};
use crate::buf::{Budget, Pool};
use crate::cache::{BlockCache, CacheOptions, DiskOptions, Eviction, Verify};
use crate::chunk::{ChunkOptions, ChunkStore, Compression};
use crate::config::client::{CacheChecksum, CacheDirs, CacheEviction, ClientSettings};
use crate::config::seal::{Secret, data_key_passphrase};
use crate::config::units::Bandwidth;
use crate::config::uri::MetaUri;
use crate::config::volume::{Access, SESSION_VERSION, VolumeFormat};
use crate::meta::engine::Engine;
use crate::meta::reclaim::SliceRemover;
use crate::meta::session::{SessionEnd, SessionInfo, SessionNews, Verdict};
use crate::meta::{Caller, Meta, MetaSettings, Rules, outside};
use crate::object::place::Place;
use crate::object::service;
use crate::object::stack::{Stack, StackOptions, stack};
use crate::object::{Capabilities, Encryption, Envelope};
use crate::util::clock::{SharedClock, SystemClock};
use crate::util::fileio;
use crate::util::task::{Job, StopSignal, Tasks};
use async_trait::async_trait;
use std::collections::BTreeMap;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::sync::watch;

/// Slices compacted in the background at a time (`spec/metadata.md` 1.8).
const COMPACTIONS_MAX: usize = 10;
/// How often growing slices are looked at.
const TICK: Duration = Duration::from_millis(500);
/// Background work gets this long to end once it is told to. All of it is harmless when it is cut short, and one that
/// waits for an engine that is away ends no sooner by being waited for.
const STOP_DEADLINE: Duration = Duration::from_secs(5);
/// What was written gets this long to reach the store at the end: some tries with their time-outs.
const FLUSH_DEADLINE: Duration = Duration::from_secs(300);
/// The last words with the metadata engine. Whoever unmounts waits for them, and a session that stays is cleaned up
/// after by others.
const CLOSE_DEADLINE: Duration = Duration::from_secs(5);
/// Blocks that wait to be written to the local cache. Those that are late are read from the store next time.
const CACHE_DEADLINE: Duration = Duration::from_secs(5);
/// Part of the buffer memory that blocks may be kept in after use: most of it may serve readers, and what is being
/// written or fetched always finds the rest.
const MEMORY_CACHE_PART: u64 = 2;

/// What operations need to know of a volume's format.
pub fn rules_of(format: &VolumeFormat) -> Rules {
    Rules {
        trash_days: u32::try_from(format.trash_days).unwrap_or(0),
        capacity_bytes: format.capacity_bytes,
        inodes_max: format.inodes,
        acl: format.enable_acl,
        dir_stats: format.dir_stats,
    }
}

/// The buffers of a client. Blocks cached in memory are counted with the data in flight; a cache that is memory alone
/// gets its size on top of what reads and writes may use, or it would leave nothing to them once it is full.
pub fn pool_for(settings: &ClientSettings) -> Arc<Pool> {
    let cached = match settings.cache_dirs {
        CacheDirs::Memory => settings.cache_size.bytes(),
        CacheDirs::Dirs(_) => 0,
    };
    Pool::new(Budget::new(settings.buffer_size.bytes().saturating_add(cached)))
}

/// The storage classes of the tiers beside the volume's own, which the store is opened with.
pub fn classes_of(format: &VolumeFormat) -> BTreeMap<u8, String> {
    let others = format.tiers.iter().filter(|(id, _)| **id != 0);
    others.map(|(id, tier)| (*id, tier.storage_class.clone())).collect()
}

/// Opens the object store of a volume with all its layers.
pub fn open_objects(format: &VolumeFormat, settings: &ClientSettings, pool: &Arc<Pool>) -> Outcome<Stack> {
    let config = |error| Fault::config("open object store").source(error);
    let secrets = format.open_secrets().map_err(config)?;
    let place = Place {
        storage: settings.storage.clone().unwrap_or_else(|| format.storage.clone()),
        bucket: settings.bucket.clone().unwrap_or_else(|| format.bucket.clone()),
        access_key: format.access_key.clone(),
        secret_key: secrets.secret_key.expose().to_owned(),
        session_token: secrets.session_token.expose().to_owned(),
        shards: format.shards,
        storage_class: settings.storage_class.clone().unwrap_or_else(|| format.storage_class().to_owned()),
    };
    let encryption = if format.is_encrypted() {
        let passphrase = data_key_passphrase();
        let passphrase = passphrase.as_ref().map(Secret::expose);
        let envelope = Envelope::new(&format.encrypt_algo, secrets.encrypt_key.expose(), passphrase)?;
        Some(Encryption { envelope: Arc::new(envelope), pool: pool.clone() })
    } else {
        None
    };
    if format.tiers.values().any(|tier| !tier.tag.is_empty()) {
        tracing::warn!(
            "the objects that this client writes do not get the tags of the volume: that is not in this build"
        );
    }
    if classes_of(format).values().any(|class| !class.is_empty()) && !service::has_classes(&place.storage) {
        tracing::warn!(kind = place.storage, "storage classes of tiers are not set on stores of this kind");
    }
    // What this client was told counts, else what the volume says; below zero means no limit as well.
    let mbps = |own: Option<Bandwidth>, volume: i64| u64::try_from(own.map_or(volume, |own| own.0)).unwrap_or(0);
    let options = StackOptions {
        prefix: format!("{}/", format.name),
        encryption,
        max_downloads: settings.max_downloads as usize,
        max_uploads: settings.max_uploads as usize,
        max_deletes: (settings.max_deletes as usize).max(1),
        get_timeout: settings.get_timeout,
        put_timeout: settings.put_timeout,
        retries: settings.io_retries,
        upload_mbps: mbps(settings.upload_limit, format.upload_limit_mbps),
        download_mbps: mbps(settings.download_limit, format.download_limit_mbps),
        ..StackOptions::default()
    };
    Ok(stack(service::open(&place, pool)?, &options))
}

/// What a client is put together from.
pub struct Parts {
    pub engine: Arc<dyn Engine>,
    pub format: VolumeFormat,
    pub objects: Stack,
    /// The one that the local stores below `objects` read into.
    pub pool: Arc<Pool>,
    pub clock: SharedClock,
}

/// A volume in use by this process.
pub struct Client {
    pub vfs: Arc<Vfs>,
    pub format: VolumeFormat,
    pub objects: Stack,
    /// When this client makes backups of the metadata.
    pub backups: Option<Arc<BackupNews>>,
    tasks: Tasks,
    gone: watch::Receiver<bool>,
}

/// Where data that nothing refers to any more is removed.
struct Remover(ChunkStore);

#[async_trait]
impl SliceRemover for Remover {
    async fn remove(&self, id: SliceId, size: u32) -> Result<(), Fault> {
        self.0.remove(id, size).await
    }
}

/// Keeps the session alive and follows the volume's format.
struct Heartbeat {
    meta: Arc<Meta>,
    vfs: Weak<Vfs>,
    uuid: String,
    heartbeat: Duration,
    exit: watch::Sender<bool>,
}

#[async_trait]
impl Job for Heartbeat {
    fn name(&self) -> &'static str {
        "heartbeat"
    }

    async fn run(&self, stop: StopSignal) {
        let judge = |news| match news {
            SessionNews::WasDead => {
                if let Some(vfs) = self.vfs.upgrade() {
                    vfs.lose_session();
                }
                Verdict::Continue
            }
            news => judge(&self.meta, &self.uuid, news),
        };
        let stopped = stop.clone();
        let beating = self.meta.clone().run_session(self.heartbeat, judge, stop);
        // A beat that waits for an engine that is away is not waited for: the session ends next.
        let end = tokio::select! {
            end = beating => end,
            () = stopped.stopped() => SessionEnd::Stopped,
        };
        if end == SessionEnd::Exit {
            self.exit.send_replace(true);
        }
    }
}

/// Commits slices that have grown old.
struct Commits(Weak<Vfs>);

#[async_trait]
impl Job for Commits {
    fn name(&self) -> &'static str {
        "commit aged slices"
    }

    async fn run(&self, stop: StopSignal) {
        while stop.sleep(TICK).await {
            let Some(vfs) = self.0.upgrade() else { return };
            vfs.commit_aged();
        }
    }
}

/// Removes the data of deleted files and replaced slices.
struct Reclaim {
    meta: Arc<Meta>,
    remover: Arc<dyn SliceRemover>,
    max_deletes: usize,
}

#[async_trait]
impl Job for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    async fn run(&self, stop: StopSignal) {
        self.meta.clone().run_reclaim(self.remover.clone(), self.max_deletes, stop).await;
    }
}

impl Client {
    /// Opens a volume, registers a session unless `settings` are read-only, and starts the background work.
    /// `mount_point` is what others see of this client.
    pub async fn open(uri: &MetaUri, settings: &ClientSettings, mount_point: &str) -> Outcome<Client> {
        let engine = open_engine(uri).await?;
        let format = existing_format(&*engine).await?;
        let pool = pool_for(settings);
        let objects = open_objects(&format, settings, &pool)?;
        let parts = Parts { engine, format, objects, pool, clock: Arc::new(SystemClock) };
        Client::assemble(parts, settings, mount_point).await
    }

    /// As `open`, from parts that are open already.
    pub async fn assemble(parts: Parts, settings: &ClientSettings, mount_point: &str) -> Outcome<Client> {
        let Parts { engine, format, objects, pool, clock } = parts;
        let access = if settings.read_only { Access::Read } else { Access::Write };
        format
            .admit(access)
            .map_err(|error| Fault::config("open volume").with("volume", &format.name).source(error))?;
        let meta_settings = MetaSettings { read_only: settings.read_only, skip_dir_mtime: settings.skip_dir_mtime };
        let meta = Meta::new(engine, clock, meta_settings, rules_of(&format));
        if !settings.read_only {
            // Brings an older schema up to date; nothing that is there changes.
            outside(meta.engine().prepare().await)?;
        }

        let root = match &settings.subdir {
            Some(path) => subdirectory(&meta, path).await?,
            None => Ino::ROOT,
        };

        let cache_options = cache_options(&format, settings);
        let cache = BlockCache::open(&cache_options, &pool);
        let compression = Compression::parse(&format.compression)
            .ok_or_else(|| Fault::config("open volume").with("compression", &format.compression))?;
        let data = ChunkStore::new(
            objects.store.clone(),
            cache,
            pool,
            ChunkOptions {
                block_size: format.block_bytes() as u32,
                compression,
                hash_prefix: format.hash_prefix,
                classes: classes_of(&format),
                prefetch: settings.prefetch as usize,
                copy_to_disk: !is_beside_the_store(&cache_options, &objects.store.capabilities(), compression),
                cache_partial_only: settings.cache_partial_only,
                cache_large_write: settings.cache_large_write,
                ..ChunkOptions::default()
            },
        );
        meta.start_session(session_info(mount_point, &settings.network_interfaces), settings.heartbeat).await?;
        let vfs = Vfs::new(
            meta.clone(),
            data.clone(),
            VfsSettings {
                root,
                read_only: settings.read_only,
                atime: settings.atime_mode,
                max_readahead_bytes: settings.readahead_bytes(format.block_bytes()),
                compactions_max: if settings.read_only { 0 } else { COMPACTIONS_MAX },
                belief: settings.attr_cache.min(settings.entry_cache).min(settings.dir_entry_cache),
            },
        );
        let (exit, gone) = watch::channel(false);
        let mut tasks = Tasks::default();
        let mut backups = None;
        let (uuid, heartbeat) = (format.uuid.clone(), settings.heartbeat);
        tasks.spawn(Arc::new(Heartbeat { meta: meta.clone(), vfs: Arc::downgrade(&vfs), uuid, heartbeat, exit }));
        if !settings.read_only {
            tasks.spawn(Arc::new(Commits(Arc::downgrade(&vfs))));
            let max_deletes = settings.max_deletes as usize;
            let remover: Arc<dyn SliceRemover> = Arc::new(Remover(data));
            if max_deletes > 0 {
                tasks.spawn(Arc::new(Reclaim { meta: meta.clone(), remover: remover.clone(), max_deletes }));
            }
            if !settings.no_bgjob {
                for job in meta.background_jobs(remover, heartbeat, max_deletes) {
                    tasks.spawn(job);
                }
                if !settings.backup_meta.is_zero() {
                    let news = backups.insert(Arc::new(BackupNews::default())).clone();
                    let (store, interval) = (objects.store.clone(), settings.backup_meta);
                    tasks.spawn(Arc::new(Backup {
                        meta,
                        store,
                        interval,
                        skip_trash: settings.backup_skip_trash,
                        news,
                    }));
                }
            }
        }
        Ok(Client { vfs, format, objects, backups, tasks, gone })
    }

    /// Becomes ready when the volume is not ours to serve any more: destroyed, or replaced by another one.
    pub async fn gone(&self) {
        let mut gone = self.gone.clone();
        if gone.wait_for(|gone| *gone).await.is_err() {
            // The heartbeat has ended without such news, so none will come.
            std::future::pending::<()>().await;
        }
    }

    /// Flushes everything, ends the background work and takes the session out of the volume. The first failure is
    /// answered after everything has been tried. Each step has a deadline, so that a mount ends although its engine or
    /// its store is gone; a session left behind is cleaned by another client.
    pub async fn close(self) -> Outcome<()> {
        let meta = self.vfs.meta().clone();
        let flushed = in_time("flush what was written", FLUSH_DEADLINE, self.vfs.flush_all()).await;
        self.tasks.stop(STOP_DEADLINE).await;
        let _cached = tokio::time::timeout(CACHE_DEADLINE, self.vfs.data().cache().flush()).await;
        let closed = in_time("close the session", CLOSE_DEADLINE, meta.close_session()).await;
        let synced = in_time("sync the metadata", CLOSE_DEADLINE, async { outside(meta.engine().sync().await) }).await;
        flushed.and(closed).and(synced)
    }
}

async fn in_time(what: &'static str, limit: Duration, work: impl Future<Output = Outcome<()>>) -> Outcome<()> {
    let late = |_| Err(Fault::timeout(what).with("limit_s", limit.as_secs()).into());
    tokio::time::timeout(limit, work).await.unwrap_or_else(late)
}

/// The format of the volume that an engine holds; `None` when there is no volume.
pub async fn stored_format(engine: &dyn Engine) -> Outcome<Option<VolumeFormat>> {
    let Some(setting) = crate::meta::format::stored_setting(engine).await? else { return Ok(None) };
    let format = VolumeFormat::from_json(&setting);
    format.map(Some).map_err(|error| Fault::corrupt("read the volume's format").source(error).into())
}

/// The format of a volume that must exist. Programs look for the first words of what is said when it does not.
pub async fn existing_format(engine: &dyn Engine) -> Outcome<VolumeFormat> {
    let missing = "database is not formatted, please run `sluice format ...` first";
    stored_format(engine).await?.ok_or_else(|| Fault::config("open volume").source(missing).into())
}

/// The directory that a mount shows instead of the volume's root.
async fn subdirectory(meta: &Meta, path: &str) -> Outcome<Ino> {
    let failed = |why: &'static str| Fault::config("open subdirectory").with("subdir", path).source(why);
    if path.split('/').any(|part| part == "." || part == "..") {
        return Err(failed("`.` and `..` have no meaning here").into());
    }
    match meta.resolve(&Caller::root(), Ino::ROOT, path.as_bytes()).await {
        Ok(entry) if entry.attr.is_dir() && !entry.ino.is_trash() => Ok(entry.ino),
        Ok(_) | Err(Stop::Errno(Errno::ENOTDIR)) => Err(failed("not a directory of the volume").into()),
        Err(Stop::Errno(Errno::ENOENT)) => Err(failed("there is no such directory in the volume").into()),
        Err(stop) => Err(stop),
    }
}

fn judge(meta: &Meta, uuid: &str, news: SessionNews) -> Verdict {
    match news {
        SessionNews::SettingGone => {
            tracing::error!("the volume's format is gone from the metadata: stopping");
            Verdict::Exit
        }
        SessionNews::Setting(setting) => match VolumeFormat::from_json(&setting) {
            Ok(format) if format.uuid != uuid => {
                tracing::error!(was = uuid, is = format.uuid, "another volume was put in this one's place: stopping");
                Verdict::Exit
            }
            Ok(format) if format.meta_version > crate::config::volume::META_VERSION => {
                tracing::error!(version = format.meta_version, "the volume was upgraded past this client: stopping");
                Verdict::Exit
            }
            Ok(format) => {
                meta.set_rules(rules_of(&format));
                Verdict::Continue
            }
            Err(error) => {
                tracing::warn!("the volume's format cannot be read now, going on with what was read before: {error}");
                Verdict::Continue
            }
        },
        // Says nothing about the volume.
        SessionNews::WasDead => Verdict::Continue,
    }
}

fn session_info(mount_point: &str, interfaces: &[String]) -> SessionInfo {
    SessionInfo {
        version: SESSION_VERSION.to_owned(),
        host_name: nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default(),
        ip_addrs: addresses(interfaces),
        mount_point: mount_point.to_owned(),
        mount_time: jiff::Zoned::now().strftime("%Y-%m-%dT%H:%M:%S.%f%:z").to_string(),
        process_id: std::process::id(),
    }
}

/// This host's addresses but loopback, of the named interfaces or, when none is named, of all.
fn addresses(named: &[String]) -> Vec<String> {
    let interfaces = match nix::ifaddrs::getifaddrs() {
        Ok(interfaces) => interfaces,
        Err(error) => {
            tracing::debug!("addresses for the session's description: {error}");
            return Vec::new();
        }
    };
    let mut found: Vec<String> = interfaces
        .filter(|interface| named.is_empty() || named.contains(&interface.interface_name))
        .filter_map(|interface| interface.address)
        .filter_map(|address| {
            let ip = match (address.as_sockaddr_in(), address.as_sockaddr_in6()) {
                (Some(v4), _) => std::net::IpAddr::V4(v4.ip()),
                (_, Some(v6)) => std::net::IpAddr::V6(v6.ip()),
                _ => return None,
            };
            (!ip.is_loopback()).then(|| ip.to_string())
        })
        .collect();
    found.sort();
    found.dedup();
    found
}

fn cache_options(format: &VolumeFormat, settings: &ClientSettings) -> CacheOptions {
    let memory_bytes = settings.buffer_size.bytes() / MEMORY_CACHE_PART;
    let capacity = settings.cache_size.bytes();
    let dirs = match &settings.cache_dirs {
        _ if capacity == 0 => return CacheOptions::default(),
        CacheDirs::Memory => return CacheOptions { memory_bytes: capacity, memory_idle: None, disk: None },
        CacheDirs::Dirs(dirs) => dirs.clone(),
    };
    let interval = settings.cache_scan_interval;
    let disk = DiskOptions {
        dirs,
        uuid: format.uuid.clone(),
        capacity,
        items: settings.cache_items,
        free_space_ratio: settings.free_space_ratio,
        verify: match settings.verify_cache_checksum {
            CacheChecksum::None => Verify::None,
            CacheChecksum::Full => Verify::Full,
            CacheChecksum::Shrink => Verify::Shrink,
            CacheChecksum::Extend => Verify::Extend,
        },
        eviction: match settings.cache_eviction {
            CacheEviction::None => Eviction::None,
            CacheEviction::TwoRandom => Eviction::TwoRandom,
            CacheEviction::Lru => Eviction::Lru,
        },
        mode: u32::from(settings.cache_mode),
        hash_prefix: format.hash_prefix,
        scan_interval: (!interval.is_zero()).then_some(interval),
        expire: (!settings.cache_expire.is_zero()).then_some(settings.cache_expire),
        ..DiskOptions::default()
    };
    CacheOptions { memory_bytes, memory_idle: Some(Duration::from_secs(30)), disk: Some(disk) }
}

/// Whether all of the cache is on the disk where the store keeps the same blocks as they are.
fn is_beside_the_store(cache: &CacheOptions, store: &Capabilities, compression: Compression) -> bool {
    let Some(disk) = &cache.disk else { return false };
    let as_they_are = store.ranges && compression == Compression::None;
    let same = |dir: &PathBuf| store.is_local() && fileio::device_of(dir) == store.local_device;
    let beside = as_they_are && disk.dirs.iter().all(same);
    if beside {
        tracing::info!("the store is on the disk of the cache: blocks are not copied from the one to the other");
    }
    beside
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::units::Size;

    #[tokio::test]
    async fn nothing_is_copied_within_a_disk() {
        let (here, elsewhere) = (tempfile::tempdir().unwrap(), tempfile::tempdir_in("/dev/shm").unwrap());
        let device = fileio::device_of(here.path());
        assert_ne!(device, fileio::device_of(elsewhere.path()), "this test needs two file systems");
        let store = Capabilities { ranges: true, local_device: device };
        let cache = |dirs: &[&tempfile::TempDir]| {
            let dirs = dirs.iter().map(|dir| dir.path().join("not/yet")).collect();
            CacheOptions { disk: Some(DiskOptions { dirs, ..DiskOptions::default() }), ..CacheOptions::default() }
        };
        assert!(is_beside_the_store(&cache(&[&here]), &store, Compression::None));
        for (cache, store, compression) in [
            (cache(&[&elsewhere]), store, Compression::None),
            (cache(&[&here, &elsewhere]), store, Compression::None),
            (cache(&[&here]), store, Compression::Lz4),
            (cache(&[&here]), Capabilities { ranges: false, ..store }, Compression::None),
            (cache(&[&here]), Capabilities { local_device: None, ..store }, Compression::None),
            (CacheOptions::default(), store, Compression::None),
        ] {
            assert!(!is_beside_the_store(&cache, &store, compression), "{cache:?} {store:?} {compression:?}");
        }
    }

    #[tokio::test]
    async fn a_cache_leaves_room_for_what_is_written() {
        let dir = tempfile::tempdir().unwrap();
        let unusable = dir.path().join("file");
        std::fs::write(&unusable, b"no directory").unwrap();
        for cache_dirs in [CacheDirs::Memory, CacheDirs::Dirs(vec![unusable.join("cache")])] {
            let cache_size = Size::mib(8);
            let settings =
                ClientSettings { cache_dirs, cache_size, buffer_size: Size::mib(4), ..ClientSettings::default() };
            let pool = pool_for(&settings);
            let cache = BlockCache::open(&cache_options(&VolumeFormat::new("v", "u"), &settings), &pool);
            for id in 0..200 {
                let mut block = pool.take(1 << 20);
                block.append(&[7; 1 << 20]);
                let key = crate::cache::BlockKey { slice: SliceId(id), index: 0, size: 1 << 20 };
                cache.insert(key, block.freeze(), false);
            }
            assert!(cache.memory().bytes() > 0 && pool.budget().has_room(), "{:?}", settings.cache_dirs);
        }
    }
}
