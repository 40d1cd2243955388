//! The `.config` document of a mount (`spec/surface.md` 6.4): what is in effect, for people and for the tools that look
//! for its keys (watchdogs, CSI, unmounting). Durations are nanoseconds, secrets are `removed`.

use super::client::{CacheDirs, ClientSettings};
use super::volume::{SESSION_VERSION, VolumeFormat, go_json};
use serde_json::{Value, json};
use std::path::Path;
use std::time::Duration;

/// What a mount knows beyond its settings.
pub struct Facts<'a> {
    pub mount_point: &'a Path,
    pub session: u64,
    pub pid: u32,
    /// The source in the mount table.
    pub source: &'a str,
    pub allow_other: bool,
    pub fuse_options: &'a [String],
}

/// A umask that was not given.
const NO_UMASK: u16 = 65_535;

fn nanos(time: Duration) -> u64 {
    u64::try_from(time.as_nanos()).unwrap_or(u64::MAX)
}

/// The text of `.config`.
pub fn document(settings: &ClientSettings, format: &VolumeFormat, facts: &Facts<'_>) -> String {
    let mut text = go_json(&value(settings, format, facts), " ");
    text.push('\n');
    text
}

fn value(s: &ClientSettings, format: &VolumeFormat, facts: &Facts<'_>) -> Value {
    let mut shown = format.clone();
    if let Some(storage) = &s.storage {
        shown.storage.clone_from(storage);
    }
    if let Some(bucket) = &s.bucket {
        shown.bucket.clone_from(bucket);
    }
    let mount_point = facts.mount_point.to_string_lossy();
    let cache_dir = match &s.cache_dirs {
        CacheDirs::Memory => "memory".to_string(),
        CacheDirs::Dirs(dirs) => {
            let dirs = dirs.iter().map(|dir| dir.join(&format.uuid).to_string_lossy().into_owned());
            dirs.collect::<Vec<_>>().join(":")
        }
    };
    let limit = |own: Option<super::Bandwidth>, volume: i64| {
        own.unwrap_or(super::Bandwidth(volume)).bytes_per_second().unwrap_or(0)
    };
    let squash =
        |squash: Option<super::client::Squash>| squash.map(|squash| json!({"Uid": squash.uid, "Gid": squash.gid}));
    let mut out = json!({
        "Meta": {
            "Retries": s.io_retries,
            "MaxDeletes": s.max_deletes,
            "SkipDirNlink": s.skip_dir_nlink,
            "CaseInsensi": false,
            "ReadOnly": s.read_only,
            "NoBGJob": s.no_bgjob,
            "OpenCache": nanos(s.open_cache),
            "OpenCacheLimit": s.open_cache_limit,
            "Heartbeat": nanos(s.heartbeat),
            "MountPoint": mount_point,
            "Subdir": s.subdir.as_deref().unwrap_or_default(),
            "AtimeMode": s.atime_mode.to_string(),
            "DirStatFlushPeriod": nanos(Duration::from_secs(1)),
            "SkipDirMtime": nanos(s.skip_dir_mtime),
            "Sid": facts.session,
            "SortDir": s.sort_dir,
            "FastStatfs": s.fast_statfs,
            "NetworkInterfaces": (!s.network_interfaces.is_empty()).then_some(&s.network_interfaces),
        },
        "Format": shown.redacted(),
        "Chunk": {
            "CacheDir": cache_dir,
            "CacheMode": s.cache_mode,
            "CacheSize": s.cache_size.bytes(),
            "CacheItems": s.cache_items,
            "CacheChecksum": s.verify_cache_checksum.to_string(),
            "CacheEviction": s.cache_eviction.to_string(),
            "CacheScanInterval": nanos(s.cache_scan_interval),
            "CacheExpire": nanos(s.cache_expire),
            "OSCache": true,
            "FreeSpace": s.free_space_ratio,
            "AutoCreate": true,
            "Compress": format.compression,
            "MaxUpload": s.max_uploads,
            "MaxDownload": s.max_downloads,
            "MaxStageWrite": s.max_stage_write,
            "MaxRetries": s.io_retries,
            "UploadLimit": limit(s.upload_limit, format.upload_limit_mbps),
            "DownloadLimit": limit(s.download_limit, format.download_limit_mbps),
            // In effect, not as asked for: this build writes through.
            "Writeback": false,
            "WritebackThresholdSize": s.writeback_threshold_size.bytes(),
            "UploadDelay": nanos(s.upload_delay),
            "UploadHours": s.upload_hours.map(|hours| hours.to_string()).unwrap_or_default(),
            "HashPrefix": format.hash_prefix,
            "BlockSize": format.block_bytes(),
            "GetTimeout": nanos(s.get_timeout),
            "PutTimeout": nanos(s.put_timeout),
            "CacheFullBlock": !s.cache_partial_only,
            "CacheLargeWrite": s.cache_large_write,
            "BufferSize": s.buffer_size.bytes(),
            "Readahead": s.readahead_bytes(format.block_bytes()),
            "Prefetch": s.prefetch,
        },
        "Security": {"EnableCap": s.enable_cap, "EnableSELinux": s.enable_selinux},
        "Port": {"PrometheusAgent": "", "DebugAgent": ""},
        "Version": SESSION_VERSION,
        "AttrTimeout": nanos(s.attr_cache),
        "DirEntryTimeout": nanos(s.dir_entry_cache),
        "NegEntryTimeout": nanos(s.negative_entry_cache),
        "EntryTimeout": nanos(s.entry_cache),
        "ReaddirCache": s.readdir_cache,
        "BackupMeta": nanos(s.backup_meta),
        "BackupSkipTrash": s.backup_skip_trash,
        "PrefixInternal": s.prefix_internal,
        "HideInternal": s.hide_internal,
    });
    let map = out.as_object_mut().expect("the document was just made as an object");
    for (key, value) in [("RootSquash", squash(s.root_squash)), ("AllSquash", squash(s.all_squash))] {
        if let Some(value) = value {
            map.insert(key.into(), value);
        }
    }
    if s.non_default_permission {
        map.insert("NonDefaultPermission".into(), json!(true));
    }
    for (key, value) in [
        ("UMask", json!(s.umask.unwrap_or(NO_UMASK))),
        ("Pid", json!(facts.pid)),
        // No supervisor: the process that serves is the one to signal.
        ("PPid", json!(facts.pid)),
        ("CommPath", json!("")),
        ("StatePath", json!("")),
        (
            "FuseOpts",
            json!({
                "AllowOther": facts.allow_other,
                "Options": facts.fuse_options,
                "MaxWrite": s.max_fuse_io.bytes(),
                "FsName": facts.source,
                "Name": "sluicefs",
            }),
        ),
        ("Mountpoint", json!(mount_point)),
    ] {
        map.insert(key.into(), value);
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::config::Secret;

    #[test]
    fn tools_find_their_keys_and_no_secret() {
        let mut format = VolumeFormat::new("vol", "u-u");
        format.secret_key = Secret::new("hunter2");
        let settings = ClientSettings {
            cache_dirs: "/a:/b".parse().unwrap(),
            bucket: Some("https://other".into()),
            root_squash: Some("1:2".parse().unwrap()),
            ..ClientSettings::default()
        };
        let facts = Facts {
            mount_point: Path::new("/mnt"),
            session: 7,
            pid: 42,
            source: "SluiceFS:vol",
            allow_other: true,
            fuse_options: &[],
        };
        let text = document(&settings, &format, &facts);
        assert!(text.starts_with("{\n \"Meta\": {\n  \"Retries\": 10,") && !text.contains("hunter2"), "{text}");
        let value: Value = serde_json::from_str(&text).unwrap();
        assert_eq!(value["Format"]["Name"], "vol");
        assert_eq!(value["Format"]["Bucket"], "https://other");
        assert_eq!(value["Format"]["SecretKey"], "removed");
        assert_eq!((&value["Meta"]["Sid"], &value["Pid"], &value["UMask"]), (&json!(7), &json!(42), &json!(65535)));
        assert_eq!(value["Chunk"]["CacheDir"], "/a/u-u:/b/u-u");
        assert_eq!((&value["AttrTimeout"], &value["RootSquash"]["Uid"]), (&json!(1_000_000_000u64), &json!(1)));
        assert_eq!(value["Mountpoint"], "/mnt");
    }
}
