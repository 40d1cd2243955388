//! Serves a [`MountRequest`] until it is unmounted or told to end.
//!
//! The order at the end: unmount, so that nothing new comes; flush what was written; end the session. A signal while
//! that is going on changes nothing; the flush has deadlines of its own.

use super::daemon::Ready;
use super::mount::MountRequest;
use super::signal::Termination;
use crate::base::Ino;
use crate::cache::CacheMetrics;
use crate::config::client::Squash as ConfigSquash;
use crate::fuse::{AccessLog, Fuse, Mounted, Options, Squash};
use crate::telemetry::metrics::Registry;
use crate::util::clock::{Clock as _, SystemClock};
use crate::vfs::client::Client;
use crate::vfs::control::{Control, ControlSettings};
use anyhow::{Context as _, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Requests under way when the mount goes get this long to finish.
const GRACE: Duration = Duration::from_secs(30);

pub fn run(request: MountRequest, mut ready: Ready) -> anyhow::Result<()> {
    let cores = std::thread::available_parallelism().map_or(2, |n| n.get());
    let runtime = tokio::runtime::Builder::new_multi_thread()
        .worker_threads(cores.clamp(2, 16))
        .thread_name("sluice-io")
        .enable_all()
        .build()
        .context("start the runtime")?;
    let served = runtime.block_on(serve(&request, &mut ready));
    if let Err(error) = &served {
        ready.failed(&format!("{error:#}"));
    }
    // What is still running belongs to nobody now.
    runtime.shutdown_timeout(Duration::from_secs(5));
    served
}

async fn serve(request: &MountRequest, ready: &mut Ready) -> anyhow::Result<()> {
    let mut termination = Termination::listen()?;
    let point = request.mount_point.display().to_string();
    let client = Client::open(&request.meta, &request.settings, &point).await?;
    let mounted = match mount(request, &client).await {
        Ok(mounted) => mounted,
        Err(error) => {
            if let Err(stop) = client.close().await {
                tracing::warn!("closing the volume again: {stop}");
            }
            return Err(error);
        }
    };
    ready.serving(&client.format.name, &request.mount_point);
    let ended = tokio::select! {
        ended = mounted.wait(GRACE) => ended,
        signal = termination.received() => {
            tracing::info!("{signal}: unmounting");
            unmount(&mounted).await
        }
        () = client.gone() => unmount(&mounted).await,
    };
    drop(mounted);
    client.close().await.context("flush and close the volume")?;
    ended.context("serve the mount")
}

async fn unmount(mounted: &Mounted) -> Result<(), crate::base::Fault> {
    mounted.unmount()?;
    mounted.wait(GRACE).await
}

async fn mount(request: &MountRequest, client: &Client) -> anyhow::Result<Mounted> {
    let settings = &request.settings;
    if let Some(subdir) = &settings.subdir {
        bail!("--subdir {subdir} is not in this build");
    }
    let root = client.vfs.getattr(Ino::ROOT).await.context("find the root of the volume")?;
    if !root.is_dir() {
        bail!("the root of volume {} is not a directory: the metadata is damaged", client.format.name);
    }
    // A volume that never had its trash on has no trash root.
    let trash = client.vfs.getattr(Ino::TRASH).await.is_ok();
    let log = AccessLog::new(Arc::new(SystemClock), None);
    let registry = registry(client, &request.mount_point.display().to_string());
    let config = super::mount_config::text(request, client);
    let control = Control::new(
        client.vfs.clone(),
        ControlSettings {
            volume: client.format.name.clone(),
            prefixed: settings.prefix_internal,
            hidden: settings.hide_internal,
            trash,
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            mounted_at: SystemClock.now(),
            config: Arc::new(move || config.clone().into_bytes()),
            stats: Arc::new(move || registry.stats_text().into_bytes()),
            log: log.clone(),
        },
    );
    let runtime = tokio::runtime::Handle::current();
    let (vfs, options) = (client.vfs.clone(), options(request, client));
    // Mounting waits for the kernel's first request, which is answered on this runtime.
    let mounted = tokio::task::spawn_blocking(move || Fuse::mount(vfs, control, log, options, runtime));
    mounted.await.context("mount")?.map_err(Into::into)
}

fn options(request: &MountRequest, client: &Client) -> Options {
    let settings = &request.settings;
    let squash = |to: Option<ConfigSquash>| to.map(|to| (to.uid, to.gid));
    let mut options = Options::new(client.format.name.clone(), request.mount_point.clone());
    options.read_only = settings.read_only;
    options.default_permissions = !settings.non_default_permission;
    options.io_bytes_max = u32::try_from(settings.max_fuse_io.bytes()).unwrap_or(u32::MAX);
    options.acl = client.format.enable_acl;
    options.xattr = settings.enable_xattr || client.format.enable_acl;
    options.security_capability = settings.enable_cap;
    options.security_selinux = settings.enable_selinux;
    options.ioctl = settings.enable_ioctl;
    options.umask = settings.umask;
    options.squash = Squash { root: squash(settings.root_squash), all: squash(settings.all_squash) };
    options.attr_cache = settings.attr_cache;
    options.entry_cache = settings.entry_cache;
    options.dir_entry_cache = settings.dir_entry_cache;
    options.negative_entry_cache = settings.negative_entry_cache;
    options.readdir_cache = settings.readdir_cache;
    for list in &request.fuse_options {
        options.add(list);
    }
    options
}

/// The numbers that `.stats` shows.
fn registry(client: &Client, point: &str) -> Arc<Registry> {
    use crate::telemetry::metrics::Kind::{Counter, Gauge};
    let registry =
        Registry::new([("mp".to_owned(), point.to_owned()), ("vol_name".to_owned(), client.format.name.clone())]);
    registry.register_process();
    let meta = client.vfs.meta().clone();
    registry
        .read("used_space", "Used space of the volume in bytes.", Gauge, &[], move || Some(meta.usage().space as f64));
    let meta = client.vfs.meta().clone();
    registry.read("used_inodes", "Nodes of the volume.", Gauge, &[], move || Some(meta.usage().inodes as f64));
    let vfs = client.vfs.clone();
    registry.read("fuse_open_handlers", "Open handles.", Gauge, &[], move || Some(vfs.open_handles() as f64));
    let data = client.vfs.data().clone();
    registry.read("used_buffer_size_bytes", "Bytes in buffers.", Gauge, &[], move || Some(data.budget().used() as f64));
    let data = client.vfs.data().clone();
    registry.read("store_cache_size_bytes", "Bytes of blocks in memory.", Gauge, &[], move || {
        Some(data.cache().memory().bytes() as f64)
    });
    let load = |n: &AtomicU64| n.load(Ordering::Relaxed) as f64;
    let cache = |name, help, number: fn(&CacheMetrics, &dyn Fn(&AtomicU64) -> f64) -> f64| {
        let data = client.vfs.data().clone();
        registry.read(name, help, Counter, &[], move || Some(number(&data.cache().metrics, &load)));
    };
    cache("blockcache_hits", "Blocks found in the cache.", |m, load| load(&m.memory_hits) + load(&m.disk_hits));
    cache("blockcache_hit_bytes", "Bytes found in the cache.", |m, load| {
        load(&m.memory_hit_bytes) + load(&m.disk_hit_bytes)
    });
    cache("blockcache_miss", "Blocks not found in the cache.", |m, load| load(&m.misses));
    cache("blockcache_miss_bytes", "Bytes not found in the cache.", |m, load| load(&m.miss_bytes));
    for method in ["GET", "PUT", "DELETE"] {
        let readings = |client: &Client| {
            let metrics = client.objects.metrics.clone();
            move || match method {
                "GET" => metrics.get.read(),
                "PUT" => metrics.put.read(),
                _ => metrics.delete.read(),
            }
        };
        let labels = [("method", method)];
        let read = readings(client);
        registry.read(
            "object_request_durations_histogram_seconds_total",
            "Object requests.",
            Counter,
            &labels,
            move || Some(read().requests as f64),
        );
        let read = readings(client);
        registry.read(
            "object_request_durations_histogram_seconds_sum",
            "Seconds in object requests.",
            Counter,
            &labels,
            move || Some(read().seconds),
        );
        let read = readings(client);
        registry.read("object_request_data_bytes", "Bytes of object requests.", Counter, &labels, move || {
            Some(read().bytes as f64)
        });
        let read = readings(client);
        registry.read("object_request_errors", "Object requests that failed.", Counter, &labels, move || {
            Some(read().errors as f64)
        });
    }
    Arc::new(registry)
}
