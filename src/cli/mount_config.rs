//! What `.config` shows: the settings of this mount as they took effect, secrets removed (`spec/surface.md` 6.4).

use super::mount::MountRequest;
use crate::config::client::CacheDirs;
use crate::config::volume::{SESSION_VERSION, go_json};
use crate::vfs::client::Client;
use serde_json::json;
use std::time::Duration;

/// Durations are nanoseconds in this document.
fn nanos(duration: Duration) -> u64 {
    u64::try_from(duration.as_nanos()).unwrap_or(u64::MAX)
}

/// The document, with one space of indent.
pub fn text(request: &MountRequest, client: &Client) -> String {
    let (s, format) = (&request.settings, &client.format);
    let cache_dir = match &s.cache_dirs {
        CacheDirs::Memory => "memory".to_owned(),
        CacheDirs::Dirs(dirs) => {
            dirs.iter().map(|dir| format!("{}/{}/", dir.display(), format.uuid)).collect::<Vec<_>>().join(":")
        }
    };
    let document = json!({
        "Meta": {
            "Retries": s.io_retries, "MaxDeletes": s.max_deletes, "SkipDirNlink": s.skip_dir_nlink,
            "CaseInsensi": false, "ReadOnly": s.read_only, "NoBGJob": s.no_bgjob, "OpenCache": nanos(s.open_cache),
            "OpenCacheLimit": s.open_cache_limit, "Heartbeat": nanos(s.heartbeat),
            "MountPoint": request.mount_point.display().to_string(), "Subdir": s.subdir.clone().unwrap_or_default(),
            "SkipDirMtime": nanos(s.skip_dir_mtime), "Sid": client.vfs.meta().session().0, "SortDir": s.sort_dir,
            "FastStatfs": s.fast_statfs,
        },
        "Format": format.redacted().to_value(),
        "Chunk": {
            "CacheDir": cache_dir, "CacheMode": s.cache_mode, "CacheSize": s.cache_size.bytes(), "CacheItems": s.cache_items,
            "CacheScanInterval": nanos(s.cache_scan_interval), "CacheExpire": nanos(s.cache_expire),
            "FreeSpace": s.free_space_ratio, "Compress": format.compression, "MaxUpload": s.max_uploads,
            "MaxDownload": s.max_downloads, "MaxRetries": s.io_retries, "Writeback": false,
            "HashPrefix": format.hash_prefix, "BlockSize": format.block_bytes(), "GetTimeout": nanos(s.get_timeout),
            "PutTimeout": nanos(s.put_timeout), "CacheFullBlock": !s.cache_partial_only,
            "CacheLargeWrite": s.cache_large_write, "BufferSize": s.buffer_size.bytes(),
            "Readahead": s.readahead_bytes(format.block_bytes()), "Prefetch": s.prefetch,
        },
        "Security": { "EnableCap": s.enable_cap, "EnableSELinux": s.enable_selinux },
        "Port": {},
        "Version": SESSION_VERSION,
        "AttrTimeout": nanos(s.attr_cache), "DirEntryTimeout": nanos(s.dir_entry_cache),
        "NegEntryTimeout": nanos(s.negative_entry_cache), "EntryTimeout": nanos(s.entry_cache),
        "ReaddirCache": s.readdir_cache, "PrefixInternal": s.prefix_internal, "HideInternal": s.hide_internal,
        "UMask": s.umask.map_or(65535, u32::from), "Pid": std::process::id(), "PPid": std::os::unix::process::parent_id(),
        "Mountpoint": request.mount_point.display().to_string(),
    });
    go_json(&document, " ")
}
