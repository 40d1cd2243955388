//! Serves a [`MountRequest`] until it is unmounted or told to end.
//!
//! The order at the end: unmount, so that nothing new comes; flush what was written; end the session. A signal while
//! that is going on changes nothing; the flush has deadlines of its own.

use super::daemon::Ready;
use super::mount::MountRequest;
use super::signal::Termination;
use crate::cache::CacheMetrics;
use crate::config::ClientSettings;
use crate::config::client::Squash as ConfigSquash;
use crate::config::effective::{self, Facts};
use crate::config::volume::SESSION_VERSION;
use crate::fuse::{AccessLog, Fuse, FuseMetrics, Mounted, Options, Squash};
use crate::object::probe;
use crate::telemetry::endpoint::Endpoint;
use crate::telemetry::metrics::Registry;
use crate::util::clock::{Clock as _, SystemClock};
use crate::vfs::client::{Client, open_objects};
use crate::vfs::control::{Control, ControlSettings};
use anyhow::{Context as _, bail};
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

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
    let client = open(request, &point, ready.deadline(), &mut termination).await?;
    tracing::info!("Data use {}", client.objects.store.name());
    let registry = registry(request, &client);
    let mounted = match mount(request, &client, registry.clone(), ready.deadline()).await {
        Ok(mounted) => mounted,
        Err(error) => {
            if let Err(stop) = client.close().await {
                tracing::warn!("closing the volume again: {stop}");
            }
            return Err(error);
        }
    };
    let endpoint = metrics_endpoint(request, registry).await;
    ready.serving(&client.format.name, &request.mount_point);
    let ended = tokio::select! {
        ended = mounted.wait(GRACE) => ended,
        signal = termination.received() => {
            tracing::info!("{signal}: unmounting");
            unmount(&mounted).await
        }
        () = client.gone() => unmount(&mounted).await,
    };
    drop((mounted, endpoint));
    client.close().await.context("flush and close the volume")?;
    ended.context("serve the mount")
}

/// Opens the volume. A signal ends it.
async fn open(
    request: &MountRequest,
    point: &str,
    deadline: Option<Instant>,
    termination: &mut Termination,
) -> anyhow::Result<Client> {
    tracing::info!("Meta address: {}", request.meta);
    let opening = by(deadline, Client::open(&request.meta, &request.settings, point));
    tokio::select! {
        client = opening => match client {
            Some(client) => Ok(client?),
            None => bail!("{} does not answer; the log says more", request.meta),
        },
        signal = termination.received() => bail!("ended by {signal} while opening the volume"),
    }
}

/// What the work answers; nothing when the deadline came first.
async fn by<T>(deadline: Option<Instant>, work: impl Future<Output = T>) -> Option<T> {
    match deadline {
        Some(deadline) => tokio::time::timeout_at(deadline.into(), work).await.ok(),
        None => Some(work.await),
    }
}

/// Writes a small object, reads it back and removes it. Failures are not tried again behind its back, so that the
/// reason is known in time.
async fn check_storage(request: &MountRequest, client: &Client, deadline: Option<Instant>) -> anyhow::Result<()> {
    let settings = ClientSettings { io_retries: 0, ..request.settings.clone() };
    let objects = open_objects(&client.format, &settings, client.vfs.data().pool())?;
    match by(deadline, probe(&*objects.store, deadline)).await {
        Some(probed) => Ok(probed?),
        None => bail!("{} does not answer", objects.store.name()),
    }
}

async fn unmount(mounted: &Mounted) -> Result<(), crate::base::Fault> {
    mounted.unmount()?;
    mounted.wait(GRACE).await
}

async fn mount(
    request: &MountRequest,
    client: &Client,
    registry: Arc<Registry>,
    deadline: Option<Instant>,
) -> anyhow::Result<Mounted> {
    let settings = &request.settings;
    if settings.check_storage {
        check_storage(request, client, deadline).await.context("test the object storage")?;
    }
    let root = client.vfs.getattr(client.vfs.root()).await.context("find the root of the volume")?;
    if !root.is_dir() {
        bail!("the root of volume {} is not a directory: the metadata is damaged", client.format.name);
    }
    let log = AccessLog::new(Arc::new(SystemClock), Some(FuseMetrics::new(registry.clone())));
    let options = options(request, client);
    let facts = Facts {
        mount_point: &request.mount_point,
        session: client.vfs.meta().session().0,
        pid: std::process::id(),
        source: &options.source(),
        allow_other: options.allow_other,
        fuse_options: &request.fuse_options,
    };
    let config = effective::document(settings, &client.format, &facts);
    let control = Control::new(
        client.vfs.clone(),
        ControlSettings {
            volume: client.format.name.clone(),
            prefixed: settings.prefix_internal,
            hidden: settings.hide_internal,
            trash: settings.subdir.is_none(),
            uid: nix::unistd::geteuid().as_raw(),
            gid: nix::unistd::getegid().as_raw(),
            mounted_at: SystemClock.now(),
            config: Arc::new(move || config.clone().into_bytes()),
            stats: Arc::new(move || registry.stats_text().into_bytes()),
            log: log.clone(),
        },
    );
    let runtime = tokio::runtime::Handle::current();
    let vfs = client.vfs.clone();
    // Mounting waits for the kernel's first request, which is answered on this runtime.
    let mounted = tokio::task::spawn_blocking(move || Fuse::mount(vfs, control, log, options, runtime));
    mounted.await.context("mount")?.map_err(Into::into)
}

fn options(request: &MountRequest, client: &Client) -> Options {
    let settings = &request.settings;
    let squash = |to: Option<ConfigSquash>| to.map(|to| (to.uid, to.gid));
    let mut options = Options::new(client.format.name.clone(), request.mount_point.clone());
    options.read_only = settings.read_only;
    // The kernel would judge by who the caller is, not by who everybody is taken for.
    options.default_permissions = !settings.non_default_permission && settings.all_squash.is_none();
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

/// A mount without numbers is better than none.
async fn metrics_endpoint(request: &MountRequest, registry: Arc<Registry>) -> Option<Endpoint> {
    let asked = request.settings.metrics.as_deref();
    if asked == Some("") {
        return None;
    }
    match Endpoint::start(asked, registry).await {
        Ok(endpoint) => {
            tracing::info!("Prometheus metrics listening on {}", endpoint.address());
            Some(endpoint)
        }
        Err(error) => {
            tracing::error!("no metrics endpoint on {}: {error}", asked.unwrap_or("127.0.0.1"));
            None
        }
    }
}

/// The numbers that `.stats` and the metrics endpoint show.
fn registry(request: &MountRequest, client: &Client) -> Arc<Registry> {
    use crate::telemetry::metrics::Kind::{Counter, Gauge};
    let host = nix::unistd::gethostname().map(|name| name.to_string_lossy().into_owned()).unwrap_or_default();
    let constant = [
        ("instance", host),
        ("mp", request.mount_point.display().to_string()),
        ("vol_name", client.format.name.clone()),
        ("juicefs_version", SESSION_VERSION.to_owned()),
    ];
    let constant = constant.map(|(key, value)| (key.to_owned(), value)).into_iter();
    let registry = Registry::new(constant.chain(request.settings.custom_labels.iter().cloned()));
    registry.register_process();
    if let Some(subdir) = &request.settings.subdir {
        let labels = [("subdir", subdir.as_str())];
        registry.read("subdir_info", "The directory that is mounted.", Gauge, &labels, || Some(1.0));
    }
    let meta = client.vfs.meta().clone();
    registry
        .read("used_space", "Used space of the volume in bytes.", Gauge, &[], move || Some(meta.usage().space as f64));
    let meta = client.vfs.meta().clone();
    registry.read("used_inodes", "Nodes of the volume.", Gauge, &[], move || Some(meta.usage().inodes as f64));
    if let Some(news) = &client.backups {
        let (success, duration) = (news.clone(), news.clone());
        registry.read("last_successful_backup", "Unix time of the last metadata backup.", Gauge, &[], move || {
            Some(success.last_success.load(Ordering::Relaxed) as f64)
        });
        registry.read("last_backup_duration", "Seconds the last metadata backup took.", Gauge, &[], move || {
            Some(duration.last_duration_ms.load(Ordering::Relaxed) as f64 / 1000.0)
        });
    }
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
