//! The options that commands share, as typed: the object store of a volume, and the client options of everything that
//! serves one (`spec/surface.md` 4). What is not typed stays `None` and gets its default, with the reason for it, in
//! [`ClientSettings`].

use crate::config::client::{AtimeMode, CacheChecksum, CacheDirs, CacheEviction, ClientSettings, Squash};
use crate::config::units::{self, Bandwidth, Hours, Size, Unit};
use crate::config::{ConfigError, ConfigResult};
use std::time::Duration;

pub fn size_in_bytes(text: &str) -> ConfigResult<Size> {
    Size::parse(text, Unit::Byte)
}

pub fn size_in_kib(text: &str) -> ConfigResult<Size> {
    Size::parse(text, Unit::KiB)
}

pub fn size_in_mib(text: &str) -> ConfigResult<Size> {
    Size::parse(text, Unit::MiB)
}

pub fn size_in_gib(text: &str) -> ConfigResult<Size> {
    Size::parse(text, Unit::GiB)
}

fn ratio(text: &str) -> ConfigResult<f64> {
    text.parse().map_err(|_| ConfigError::new("it is not a number"))
}

/// Where the objects of a volume are.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Data storage")]
pub struct StorageOptions {
    /// Kind of object store (s3, gs, oss, file …) [default: file]
    #[arg(long, value_name = "KIND")]
    pub storage: Option<String>,
    /// Bucket URL, or the directory of a file store
    #[arg(long, value_name = "URL")]
    pub bucket: Option<String>,
    /// Access key of the object store (format: env ACCESS_KEY)
    #[arg(long, value_name = "KEY")]
    pub access_key: Option<String>,
    /// Secret key of the object store (format: env SECRET_KEY)
    #[arg(long, value_name = "KEY")]
    pub secret_key: Option<String>,
    /// Session token of the object store (format: env SESSION_TOKEN)
    #[arg(long, value_name = "TOKEN")]
    pub session_token: Option<String>,
    /// Storage class of new objects
    #[arg(long, value_name = "CLASS")]
    pub storage_class: Option<String>,
    /// Tag of new objects
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::parse_tag)]
    pub tag: Option<String>,
}

/// The client options.
#[derive(clap::Args, Clone, Debug, Default)]
pub struct ClientOptions {
    /// Mount this directory of the volume as root
    #[arg(long, value_name = "DIR", help_heading = "Metadata")]
    pub subdir: Option<String>,
    /// Interval of metadata backups, 0 for none [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata")]
    pub backup_meta: Option<Duration>,
    /// Leave the trash out of backups
    #[arg(long, help_heading = "Metadata")]
    pub backup_skip_trash: bool,
    /// Interval of heartbeats; a client is dead after five [default: 12s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata")]
    pub heartbeat: Option<Duration>,
    /// Allow lookups and reads only
    #[arg(long, help_heading = "Metadata")]
    pub read_only: bool,
    /// No background jobs in this client
    #[arg(long, help_heading = "Metadata")]
    pub no_bgjob: bool,
    /// When reads update the access time: noatime, relatime, strictatime [default: noatime]
    #[arg(long, value_name = "MODE", help_heading = "Metadata")]
    pub atime_mode: Option<AtimeMode>,
    /// Retries after which a directory's link count is left alone (key-value engines), 0 for never [default: 20]
    #[arg(long, value_name = "N", help_heading = "Metadata")]
    pub skip_dir_nlink: Option<u32>,
    /// Leave a directory's times alone when they are newer than this [default: 100ms]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata")]
    pub skip_dir_mtime: Option<Duration>,
    /// Sort directory listings by name
    #[arg(long, help_heading = "Metadata")]
    pub sort_dir: bool,
    /// Answer statfs from local counters
    #[arg(long, help_heading = "Metadata")]
    pub fast_statfs: bool,
    /// Interfaces whose addresses are shown to others [default: all]
    #[arg(long, value_name = "A,B", value_delimiter = ',', help_heading = "Metadata")]
    pub network_interfaces: Vec<String>,

    /// How long the kernel keeps attributes [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata cache")]
    pub attr_cache: Option<Duration>,
    /// How long the kernel keeps entries of files [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata cache")]
    pub entry_cache: Option<Duration>,
    /// How long the kernel keeps entries of directories [default: 1s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata cache")]
    pub dir_entry_cache: Option<Duration>,
    /// How long the kernel keeps that there is no entry [default: 0]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata cache")]
    pub negative_entry_cache: Option<Duration>,
    /// Let the kernel keep directory listings
    #[arg(long, help_heading = "Metadata cache")]
    pub readdir_cache: bool,
    /// How long attributes of opened files are used without asking [default: 0]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Metadata cache")]
    pub open_cache: Option<Duration>,
    /// How many opened files are kept so, 0 for any number [default: 10000]
    #[arg(long, value_name = "N", help_heading = "Metadata cache")]
    pub open_cache_limit: Option<u64>,

    /// Other kind of object store for this client
    #[arg(long, value_name = "KIND", help_heading = "Data storage")]
    pub storage: Option<String>,
    /// Other endpoint of the object store for this client
    #[arg(long, value_name = "URL", help_heading = "Data storage")]
    pub bucket: Option<String>,
    /// Storage class of what this client writes
    #[arg(long, value_name = "CLASS", help_heading = "Data storage")]
    pub storage_class: Option<String>,
    /// Tag of what this client writes
    #[arg(long, value_name = "KEY=VALUE", value_parser = units::parse_tag, help_heading = "Data storage")]
    pub tag: Option<String>,
    /// Longest download of an object [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Data storage")]
    pub get_timeout: Option<Duration>,
    /// Longest upload of an object [default: 60s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Data storage")]
    pub put_timeout: Option<Duration>,
    /// Retries after a failure [default: 10]
    #[arg(long, value_name = "N", help_heading = "Data storage")]
    pub io_retries: Option<u32>,
    /// Uploads at a time [default: 20]
    #[arg(long, value_name = "N", help_heading = "Data storage")]
    pub max_uploads: Option<u32>,
    /// Downloads at a time [default: 200]
    #[arg(long, value_name = "N", help_heading = "Data storage")]
    pub max_downloads: Option<u32>,
    /// Staging writes at a time (with writeback) [default: 1000]
    #[arg(long, value_name = "N", help_heading = "Data storage")]
    pub max_stage_write: Option<u32>,
    /// Deletions at a time, 0 to delete nothing [default: 10]
    #[arg(long, value_name = "N", help_heading = "Data storage")]
    pub max_deletes: Option<u32>,
    /// Upload bandwidth in Mbit/s [default: the volume's]
    #[arg(long, value_name = "MBPS", help_heading = "Data storage")]
    pub upload_limit: Option<Bandwidth>,
    /// Download bandwidth in Mbit/s [default: the volume's]
    #[arg(long, value_name = "MBPS", help_heading = "Data storage")]
    pub download_limit: Option<Bandwidth>,
    /// Test the object store before mounting
    #[arg(long, help_heading = "Data storage")]
    pub check_storage: bool,

    /// Read and write buffers together, in MiB [default: 300M]
    #[arg(long, value_name = "SIZE", value_parser = size_in_mib, help_heading = "Data cache")]
    pub buffer_size: Option<Size>,
    /// Read-ahead of one stream, in MiB [default: 8 blocks]
    #[arg(long, value_name = "SIZE", value_parser = size_in_mib, help_heading = "Data cache")]
    pub max_readahead: Option<Size>,
    /// Whole blocks fetched beside partial reads [default: 1]
    #[arg(long, value_name = "N", help_heading = "Data cache")]
    pub prefetch: Option<u32>,
    /// Upload in the background (this build writes through)
    #[arg(long, help_heading = "Data cache")]
    pub writeback: bool,
    /// Stage blocks smaller than this only, 0 for all [default: 0]
    #[arg(long, value_name = "SIZE", value_parser = size_in_bytes, help_heading = "Data cache")]
    pub writeback_threshold_size: Option<Size>,
    /// Delay of uploads (with writeback) [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Data cache")]
    pub upload_delay: Option<Duration>,
    /// Hours of uploads (with writeback)
    #[arg(long, value_name = "START-END", help_heading = "Data cache")]
    pub upload_hours: Option<Hours>,
    /// Cache directories, separated by colons, or "memory" [default: /var/jfsCache or ~/.juicefs/cache]
    #[arg(long, value_name = "DIR", help_heading = "Data cache")]
    pub cache_dir: Option<CacheDirs>,
    /// Permissions of cache files [default: 0600]
    #[arg(long, value_name = "MODE", value_parser = units::parse_octal, help_heading = "Data cache")]
    pub cache_mode: Option<u16>,
    /// Size of the cache in MiB, 0 for none [default: 100G]
    #[arg(long, value_name = "SIZE", value_parser = size_in_mib, help_heading = "Data cache")]
    pub cache_size: Option<Size>,
    /// Most blocks in the cache, 0 for as many as fit [default: 0]
    #[arg(long, value_name = "N", help_heading = "Data cache")]
    pub cache_items: Option<u64>,
    /// Share of the cache disk that stays free [default: 0.1]
    #[arg(long, value_name = "RATIO", value_parser = ratio, help_heading = "Data cache")]
    pub free_space_ratio: Option<f64>,
    /// Cache only blocks smaller than the block size
    #[arg(long, help_heading = "Data cache")]
    pub cache_partial_only: bool,
    /// Keep full blocks after upload
    #[arg(long, help_heading = "Data cache")]
    pub cache_large_write: bool,
    /// Checks of cached blocks: none, full, shrink, extend [default: extend]
    #[arg(long, value_name = "LEVEL", help_heading = "Data cache")]
    pub verify_cache_checksum: Option<CacheChecksum>,
    /// Which blocks leave the cache: none, 2-random, lru [default: 2-random]
    #[arg(long, value_name = "POLICY", help_heading = "Data cache")]
    pub cache_eviction: Option<CacheEviction>,
    /// Interval of scans of the cache [default: 1h]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Data cache")]
    pub cache_scan_interval: Option<Duration>,
    /// Blocks not read for this long leave the cache, 0 for never [default: 0s]
    #[arg(long, value_name = "TIME", value_parser = units::parse_duration, help_heading = "Data cache")]
    pub cache_expire: Option<Duration>,

    /// Address of the metrics endpoint
    #[arg(long, value_name = "ADDR", help_heading = "Metrics")]
    pub metrics: Option<String>,
    /// Further labels of all metrics
    #[arg(long, value_name = "K:V;K:V", help_heading = "Metrics")]
    pub custom_labels: Option<String>,
    /// Consul to register with
    #[arg(long, value_name = "ADDR", help_heading = "Metrics")]
    pub consul: Option<String>,
    /// Accepted: this build reports nothing
    #[arg(long, help_heading = "Metrics")]
    pub no_usage_report: bool,
}

/// The options of a mount that concern the kernel side.
#[derive(clap::Args, Debug, Default)]
pub struct FuseOptions {
    /// Allow extended attributes
    #[arg(long, help_heading = "FUSE")]
    pub enable_xattr: bool,
    /// Allow security.capability
    #[arg(long, help_heading = "FUSE")]
    pub enable_cap: bool,
    /// Allow security.selinux
    #[arg(long, help_heading = "FUSE")]
    pub enable_selinux: bool,
    /// Allow the ioctls of lsattr and chattr
    #[arg(long, help_heading = "FUSE")]
    pub enable_ioctl: bool,
    /// Take root for this user and group
    #[arg(long, value_name = "U[:G]", help_heading = "FUSE")]
    pub root_squash: Option<Squash>,
    /// Take everybody for this user and group
    #[arg(long, value_name = "U[:G]", help_heading = "FUSE")]
    pub all_squash: Option<Squash>,
    /// Special files are called .jfs.NAME
    #[arg(long, help_heading = "FUSE")]
    pub prefix_internal: bool,
    /// Leave special files out of listings
    #[arg(long, help_heading = "FUSE")]
    pub hide_internal: bool,
    /// Largest request of the kernel [default: 1M]
    #[arg(long, value_name = "SIZE", value_parser = size_in_bytes, help_heading = "FUSE")]
    pub max_fuse_io: Option<Size>,
    /// Permissions that new nodes do not get, in octal
    #[arg(long, value_name = "MODE", value_parser = units::parse_octal, help_heading = "FUSE")]
    pub umask: Option<u16>,
    /// The kernel judges no permissions
    #[arg(long, hide = true)]
    pub non_default_permission: bool,
    /// Options of mount(8) and FUSE, separated by commas
    #[arg(short = 'o', long = "o", value_name = "OPTIONS", action = clap::ArgAction::Append, help_heading = "FUSE")]
    pub o: Vec<String>,
}

impl ClientOptions {
    /// What the options mean together; not yet checked.
    pub fn settings(self, fuse: &FuseOptions) -> ConfigResult<ClientSettings> {
        let d = ClientSettings::default();
        let mount_options: Vec<&str> = fuse.o.iter().flat_map(|list| list.split(',')).map(str::trim).collect();
        let read_only = match mount_options.iter().rev().find(|option| matches!(**option, "ro" | "rw")) {
            Some(option) => *option == "ro" || self.read_only,
            None => self.read_only,
        };
        Ok(ClientSettings {
            subdir: self.subdir.filter(|dir| !dir.trim_matches('/').is_empty()),
            backup_meta: self.backup_meta.unwrap_or(d.backup_meta),
            backup_skip_trash: self.backup_skip_trash,
            heartbeat: self.heartbeat.unwrap_or(d.heartbeat),
            read_only,
            no_bgjob: self.no_bgjob,
            atime_mode: self.atime_mode.unwrap_or(d.atime_mode),
            skip_dir_nlink: self.skip_dir_nlink.unwrap_or(d.skip_dir_nlink),
            skip_dir_mtime: self.skip_dir_mtime.unwrap_or(d.skip_dir_mtime),
            sort_dir: self.sort_dir,
            fast_statfs: self.fast_statfs,
            network_interfaces: self.network_interfaces.into_iter().filter(|name| !name.is_empty()).collect(),
            attr_cache: self.attr_cache.unwrap_or(d.attr_cache),
            entry_cache: self.entry_cache.unwrap_or(d.entry_cache),
            dir_entry_cache: self.dir_entry_cache.unwrap_or(d.dir_entry_cache),
            negative_entry_cache: self.negative_entry_cache.unwrap_or(d.negative_entry_cache),
            readdir_cache: self.readdir_cache,
            open_cache: self.open_cache.unwrap_or(d.open_cache),
            open_cache_limit: self.open_cache_limit.unwrap_or(d.open_cache_limit),
            storage: self.storage,
            bucket: self.bucket,
            storage_class: self.storage_class,
            tag: self.tag,
            get_timeout: self.get_timeout.unwrap_or(d.get_timeout),
            put_timeout: self.put_timeout.unwrap_or(d.put_timeout),
            io_retries: self.io_retries.unwrap_or(d.io_retries),
            max_uploads: self.max_uploads.unwrap_or(d.max_uploads),
            max_downloads: self.max_downloads.unwrap_or(d.max_downloads),
            max_stage_write: self.max_stage_write.unwrap_or(d.max_stage_write),
            max_deletes: self.max_deletes.unwrap_or(d.max_deletes),
            upload_limit: self.upload_limit,
            download_limit: self.download_limit,
            check_storage: self.check_storage,
            buffer_size: self.buffer_size.unwrap_or(d.buffer_size),
            max_readahead: self.max_readahead,
            prefetch: self.prefetch.unwrap_or(d.prefetch),
            writeback: self.writeback,
            writeback_threshold_size: self.writeback_threshold_size.unwrap_or(d.writeback_threshold_size),
            upload_delay: self.upload_delay.unwrap_or(d.upload_delay),
            upload_hours: self.upload_hours,
            cache_dirs: self.cache_dir.unwrap_or(d.cache_dirs),
            cache_mode: self.cache_mode.unwrap_or(d.cache_mode),
            cache_size: self.cache_size.unwrap_or(d.cache_size),
            cache_items: self.cache_items.unwrap_or(d.cache_items),
            free_space_ratio: self.free_space_ratio.unwrap_or(d.free_space_ratio),
            cache_partial_only: self.cache_partial_only,
            cache_large_write: self.cache_large_write,
            verify_cache_checksum: self.verify_cache_checksum.unwrap_or(d.verify_cache_checksum),
            cache_eviction: self.cache_eviction.unwrap_or(d.cache_eviction),
            cache_scan_interval: self.cache_scan_interval.unwrap_or(d.cache_scan_interval),
            cache_expire: self.cache_expire.unwrap_or(d.cache_expire),
            metrics: self.metrics,
            custom_labels: self.custom_labels.as_deref().map(units::parse_labels).transpose()?.unwrap_or_default(),
            consul: self.consul,
            no_usage_report: self.no_usage_report,
            enable_xattr: fuse.enable_xattr,
            enable_cap: fuse.enable_cap,
            enable_selinux: fuse.enable_selinux,
            enable_ioctl: fuse.enable_ioctl,
            root_squash: fuse.root_squash,
            all_squash: fuse.all_squash,
            prefix_internal: fuse.prefix_internal,
            hide_internal: fuse.hide_internal,
            max_fuse_io: fuse.max_fuse_io.unwrap_or(d.max_fuse_io),
            umask: fuse.umask,
            non_default_permission: fuse.non_default_permission,
        })
    }
}
