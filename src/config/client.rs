//! What a client was told: the options shared by every command that serves a volume (`spec/surface.md` 4).
//!
//! Names and defaults are the peer's, so that scripts carry over; each default stands beside its reason. [`ClientSettings`]
//! is what the options mean, complete and typed; [`ClientSettings::check`] refuses what cannot work and returns the
//! warnings for what is accepted without effect. Options fall in three groups:
//!
//! - acted on: everything without a note below;
//! - accepted with a warning, because ignoring them is safe: `writeback` and its companions (`writeback-threshold-size`,
//!   `upload-delay`, `upload-hours`, `max-stage-write`) — blocks are written through, which is slower and never less
//!   durable; `consul`; `backup-meta` — this build makes no backups; `open-cache`, `sort-dir`;
//! - refused, because ignoring them would change what the user gets: `tag`.

use super::units::{Bandwidth, Hours, Size};
use super::{ConfigError, ConfigResult};
use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use std::time::Duration;

macro_rules! words {
    ($(#[$doc:meta])* $name:ident ($option:literal) { $($(#[$vdoc:meta])* $variant:ident = $word:literal),* $(,)? }) => {
        $(#[$doc])*
        #[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
        pub enum $name { $($(#[$vdoc])* #[serde(rename = $word)] $variant),* }

        impl std::str::FromStr for $name {
            type Err = ConfigError;

            fn from_str(text: &str) -> ConfigResult<$name> {
                match text {
                    $($word => Ok($name::$variant),)*
                    _ => Err(ConfigError::new(format!(
                        concat!("invalid ", $option, " \"{}\": expected one of {}"), text, [$($word),*].join(", ")
                    ))),
                }
            }
        }

        impl std::fmt::Display for $name {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                f.write_str(match self { $($name::$variant => $word),* })
            }
        }
    };
}

words! {
    /// When reading updates the access time.
    AtimeMode ("atime-mode") { Never = "noatime", Relative = "relatime", Strict = "strictatime" }
}
words! {
    /// How much of a cached block is checked against its checksums when it is read.
    CacheChecksum ("verify-cache-checksum") {
        None = "none",
        /// Only reads of whole blocks.
        Full = "full",
        /// The pages that a read covers completely.
        Shrink = "shrink",
        /// The pages that a read touches.
        Extend = "extend",
    }
}
words! {
    /// Which cached blocks leave first.
    CacheEviction ("cache-eviction") { None = "none", TwoRandom = "2-random", Lru = "lru" }
}

/// The size of the local cache directories and what they are called.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum CacheDirs {
    /// No files; blocks are held in memory.
    Memory,
    /// As typed: several directories, each possibly a pattern (`/mnt/disk*/cache`), not yet expanded.
    Dirs(Vec<PathBuf>),
}

impl std::str::FromStr for CacheDirs {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<CacheDirs> {
        if text == "memory" {
            return Ok(CacheDirs::Memory);
        }
        let dirs: Vec<PathBuf> = text.split(':').filter(|dir| !dir.is_empty()).map(PathBuf::from).collect();
        if dirs.is_empty() { Err(ConfigError::new("cache-dir names no directory")) } else { Ok(CacheDirs::Dirs(dirs)) }
    }
}

/// Whom a caller is taken for (`--root-squash`, `--all-squash`).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Squash {
    pub uid: u32,
    pub gid: u32,
}

/// `U[:G]`; empty parts are nobody and nogroup.
impl std::str::FromStr for Squash {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Squash> {
        const NOBODY: u32 = 65534;
        let id = |part: &str| match part.trim() {
            "" => Ok(NOBODY),
            part => part.parse().map_err(|_| {
                ConfigError::new(format!("invalid squash \"{text}\": expected uid or uid:gid, such as 1000:1000"))
            }),
        };
        let (uid, gid) = text.split_once(':').unwrap_or((text, ""));
        Ok(Squash { uid: id(uid)?, gid: id(gid)? })
    }
}

/// The client options, complete and typed.
#[derive(Clone, Debug, PartialEq)]
pub struct ClientSettings {
    // names and attributes
    pub subdir: Option<String>,
    pub backup_meta: Duration,
    pub backup_skip_trash: bool,
    pub heartbeat: Duration,
    pub read_only: bool,
    /// No cleaning of trash, sessions and deleted files by this client.
    pub no_bgjob: bool,
    pub atime_mode: AtimeMode,
    pub skip_dir_nlink: u32,
    pub skip_dir_mtime: Duration,
    pub sort_dir: bool,
    pub fast_statfs: bool,
    /// Interfaces whose addresses the session record shows; empty is all.
    pub network_interfaces: Vec<String>,
    // what the kernel and we remember of them
    pub attr_cache: Duration,
    pub entry_cache: Duration,
    pub dir_entry_cache: Duration,
    pub negative_entry_cache: Duration,
    pub readdir_cache: bool,
    pub open_cache: Duration,
    pub open_cache_limit: u64,
    // objects
    pub storage: Option<String>,
    pub bucket: Option<String>,
    pub storage_class: Option<String>,
    pub tag: Option<String>,
    pub get_timeout: Duration,
    pub put_timeout: Duration,
    pub io_retries: u32,
    pub max_uploads: u32,
    pub max_downloads: u32,
    pub max_stage_write: u32,
    /// 0: this client never deletes objects.
    pub max_deletes: u32,
    /// `None`: what the volume says.
    pub upload_limit: Option<Bandwidth>,
    pub download_limit: Option<Bandwidth>,
    pub check_storage: bool,
    // blocks
    pub buffer_size: Size,
    /// `None`: eight blocks.
    pub max_readahead: Option<Size>,
    pub prefetch: u32,
    pub writeback: bool,
    pub writeback_threshold_size: Size,
    pub upload_delay: Duration,
    pub upload_hours: Option<Hours>,
    pub cache_dirs: CacheDirs,
    pub cache_mode: u16,
    /// 0: no cache.
    pub cache_size: Size,
    /// 0: as many as the file system of the cache leaves room for.
    pub cache_items: u64,
    pub free_space_ratio: f64,
    pub cache_partial_only: bool,
    pub cache_large_write: bool,
    pub verify_cache_checksum: CacheChecksum,
    pub cache_eviction: CacheEviction,
    pub cache_scan_interval: Duration,
    /// 0: never.
    pub cache_expire: Duration,
    // numbers
    pub metrics: Option<String>,
    pub custom_labels: Vec<(String, String)>,
    pub consul: Option<String>,
    pub no_usage_report: bool,
    // FUSE
    pub enable_xattr: bool,
    pub enable_cap: bool,
    pub enable_selinux: bool,
    pub enable_ioctl: bool,
    pub root_squash: Option<Squash>,
    pub all_squash: Option<Squash>,
    pub prefix_internal: bool,
    pub hide_internal: bool,
    pub max_fuse_io: Size,
    /// `None`: what the application's process says.
    pub umask: Option<u16>,
    pub non_default_permission: bool,
}

/// Less than this and one reader and one writer of 4 MiB blocks block each other.
pub const BUFFER_SIZE_MIN: Size = Size::mib(32);
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
const HEARTBEAT_MAX: Duration = Duration::from_secs(600);
/// More frequent backups load the metadata engine more than they help.
const BACKUP_META_MIN: Duration = Duration::from_secs(300);

impl Default for ClientSettings {
    fn default() -> ClientSettings {
        ClientSettings {
            subdir: None,
            backup_meta: Duration::from_secs(3600),
            backup_skip_trash: false,
            // A client is dead after five of them: a minute without one loses its locks.
            heartbeat: Duration::from_secs(12),
            read_only: false,
            no_bgjob: false,
            // Data sets are read by thousands of clients; writing a time for each read would be the main load.
            atime_mode: AtimeMode::Never,
            skip_dir_nlink: 20,
            // Many files created at once in one directory need not each touch the directory.
            skip_dir_mtime: Duration::from_millis(100),
            sort_dir: false,
            fast_statfs: false,
            network_interfaces: Vec::new(),
            // One second hides the round trips of a path walk; another client's change is seen that late at most.
            attr_cache: Duration::from_secs(1),
            entry_cache: Duration::from_secs(1),
            dir_entry_cache: Duration::from_secs(1),
            // A file that another client just made must be found, so absence is not remembered.
            negative_entry_cache: Duration::ZERO,
            readdir_cache: false,
            // Zero keeps close-to-open consistency between clients.
            open_cache: Duration::ZERO,
            open_cache_limit: 10_000,
            storage: None,
            bucket: None,
            storage_class: None,
            tag: None,
            // A 4 MiB block at 70 kB/s; slower than that is broken.
            get_timeout: Duration::from_secs(60),
            put_timeout: Duration::from_secs(60),
            io_retries: 10,
            max_uploads: 20,
            max_downloads: 200,
            max_stage_write: 1000,
            max_deletes: 10,
            upload_limit: None,
            download_limit: None,
            check_storage: false,
            buffer_size: Size::mib(300),
            max_readahead: None,
            prefetch: 1,
            writeback: false,
            writeback_threshold_size: Size(0),
            upload_delay: Duration::ZERO,
            upload_hours: None,
            cache_dirs: CacheDirs::Dirs(vec![default_dir("/var/jfsCache", "cache")]),
            // What is cached is somebody's data: only the user of the mount may look.
            cache_mode: 0o600,
            cache_size: Size::gib(100),
            cache_items: 0,
            // The cache disk is often also the system's; a tenth stays free.
            free_space_ratio: 0.1,
            cache_partial_only: false,
            cache_large_write: false,
            verify_cache_checksum: CacheChecksum::Extend,
            // Nearly as good as LRU without a list that every hit has to move.
            cache_eviction: CacheEviction::TwoRandom,
            cache_scan_interval: Duration::from_secs(3600),
            cache_expire: Duration::ZERO,
            metrics: None,
            custom_labels: Vec::new(),
            consul: None,
            no_usage_report: false,
            enable_xattr: false,
            enable_cap: false,
            enable_selinux: false,
            enable_ioctl: false,
            root_squash: None,
            all_squash: None,
            prefix_internal: false,
            hide_internal: false,
            // The peer takes 128 KiB; buffered streams are a third faster with the largest request (1.3 against 2.1 GiB/s on
            // a null file system), and small requests stay small.
            max_fuse_io: Size(1 << 20),
            umask: None,
            non_default_permission: false,
        }
    }
}

/// The peer's places, so that a cache that is already filled is found: a system directory for root, otherwise a
/// directory in the home of the user.
pub fn default_dir(root: &str, home: &str) -> PathBuf {
    if nix::unistd::geteuid().is_root() {
        return root.into();
    }
    match std::env::var_os("HOME") {
        Some(dir) if !dir.is_empty() => PathBuf::from(dir).join(".juicefs").join(home),
        _ => root.into(),
    }
}

impl ClientSettings {
    /// Refuses what cannot work, brings the rest within bounds, and returns what the user should be warned of.
    pub fn check(&mut self) -> ConfigResult<Vec<String>> {
        let mut warnings = Vec::new();
        if self.buffer_size < BUFFER_SIZE_MIN {
            return Err(ConfigError::new(format!(
                "buffer-size {} is too small: at least {BUFFER_SIZE_MIN} are needed",
                self.buffer_size
            )));
        }
        let heartbeat = self.heartbeat.clamp(HEARTBEAT_MIN, HEARTBEAT_MAX);
        if heartbeat != self.heartbeat {
            warnings.push(format!("heartbeat {:?} is out of bounds, {heartbeat:?} is used", self.heartbeat));
            self.heartbeat = heartbeat;
        }
        let short_backups = std::env::var("SKIP_BACKUP_META_CHECK").is_ok_and(|value| value == "true");
        if !self.backup_meta.is_zero() && self.backup_meta < BACKUP_META_MIN && !short_backups {
            return Err(ConfigError::new(format!(
                "backup-meta {:?} is too short: at least 5 minutes are needed, 0 switches backups off",
                self.backup_meta
            )));
        }
        if !(0.0..=1.0).contains(&self.free_space_ratio) {
            return Err(ConfigError::new(format!("free-space-ratio {} is not between 0 and 1", self.free_space_ratio)));
        }
        for (name, value) in [("max-uploads", self.max_uploads), ("max-downloads", self.max_downloads)] {
            if value == 0 {
                return Err(ConfigError::new(format!("{name} must be at least 1")));
            }
        }
        for (name, value) in [("get-timeout", self.get_timeout), ("put-timeout", self.put_timeout)] {
            if value.is_zero() {
                return Err(ConfigError::new(format!("{name} must be longer than zero")));
            }
        }
        let fuse_io = Size(self.max_fuse_io.bytes().clamp(4096, 1 << 20));
        if fuse_io != self.max_fuse_io {
            warnings.push(format!("max-fuse-io {} is out of bounds, {fuse_io} is used", self.max_fuse_io));
            self.max_fuse_io = fuse_io;
        }
        if self.root_squash.is_some() && self.all_squash.is_some() {
            return Err(ConfigError::new("root-squash and all-squash exclude one another"));
        }
        for label in ["mp", "vol_name", "instance"] {
            if self.custom_labels.iter().any(|(key, _)| key == label) {
                warnings.push(format!("the custom label {label} replaces one of our own"));
            }
        }
        if self.writeback {
            warnings.push(
                "writeback is not in this build: blocks are written through to the object store, which is slower and \
                 never less durable"
                    .into(),
            );
        } else if !self.upload_delay.is_zero() || self.upload_hours.is_some() || self.writeback_threshold_size.0 > 0 {
            warnings.push(
                "upload-delay, upload-hours and writeback-threshold-size have no effect without writeback".into(),
            );
        }
        if self.tag.is_some() {
            return Err(ConfigError::new(
                "tag is not in this build yet, and going on without it would not be what was asked for",
            ));
        }
        let without_effect = [
            ("consul", self.consul.is_some(), "nothing is registered"),
            ("open-cache", !self.open_cache.is_zero(), "attributes are asked for at each open"),
            ("sort-dir", self.sort_dir, "listings come in the order of the metadata engine"),
        ];
        for (option, given, instead) in without_effect {
            if given {
                warnings.push(format!("{option} has no effect in this build: {instead}"));
            }
        }
        Ok(warnings)
    }

    /// The read-ahead of one sequential reader in a volume with blocks of this size.
    pub fn readahead_bytes(&self, block_bytes: u64) -> u64 {
        self.max_readahead.map_or(block_bytes.saturating_mul(8), Size::bytes)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn checked(change: impl Fn(&mut ClientSettings)) -> ConfigResult<(ClientSettings, Vec<String>)> {
        let mut settings = ClientSettings::default();
        change(&mut settings);
        settings.check().map(|warnings| (settings, warnings))
    }

    #[test]
    fn the_defaults_need_no_warning() {
        assert_eq!(checked(|_| {}).unwrap().1, Vec::<String>::new());
    }

    #[test]
    fn what_cannot_work_is_refused_with_its_name() {
        let refused = |change: fn(&mut ClientSettings)| checked(change).unwrap_err().to_string();
        assert!(refused(|s| s.buffer_size = Size::mib(31)).contains("buffer-size"));
        assert!(refused(|s| s.backup_meta = Duration::from_secs(60)).contains("backup-meta"));
        assert!(refused(|s| s.free_space_ratio = 1.5).contains("free-space-ratio"));
        assert!(refused(|s| s.free_space_ratio = f64::NAN).contains("free-space-ratio"));
        assert!(refused(|s| s.max_uploads = 0).contains("max-uploads"));
        assert!(refused(|s| s.get_timeout = Duration::ZERO).contains("get-timeout"));
        assert!(refused(|s| s.tag = Some("k=v".into())).contains("tag"));
        checked(|s| s.backup_meta = Duration::ZERO).unwrap();
    }

    #[test]
    fn the_rest_is_brought_within_bounds_and_said() {
        let (settings, warnings) = checked(|s| s.heartbeat = Duration::from_secs(3600)).unwrap();
        assert_eq!((settings.heartbeat, warnings.len()), (HEARTBEAT_MAX, 1));
        let (settings, _) = checked(|s| s.max_fuse_io = Size::gib(1)).unwrap();
        assert_eq!(settings.max_fuse_io, Size(1 << 20));
        let (_, warnings) = checked(|s| (s.writeback, s.consul) = (true, Some("x".into()))).unwrap();
        assert!(warnings[0].contains("written through") && warnings[1].contains("consul"));
    }

    #[test]
    fn words_and_squashes_parse() {
        assert_eq!("relatime".parse(), Ok(AtimeMode::Relative));
        assert!("sometimes".parse::<AtimeMode>().unwrap_err().to_string().contains("noatime, relatime, strictatime"));
        assert_eq!(CacheEviction::TwoRandom.to_string(), "2-random");
        assert_eq!("1000".parse(), Ok(Squash { uid: 1000, gid: 65534 }));
        assert_eq!(":7".parse(), Ok(Squash { uid: 65534, gid: 7 }));
        assert!("root".parse::<Squash>().is_err() && "1:2:3".parse::<Squash>().is_err());
        assert_eq!("memory".parse(), Ok(CacheDirs::Memory));
        assert_eq!("/a:/b".parse(), Ok(CacheDirs::Dirs(vec!["/a".into(), "/b".into()])));
        assert!(":".parse::<CacheDirs>().is_err());
    }
}
