//! For unit tests: a fresh volume on the in-memory engine.

use super::engine::mem::MemEngine;
use super::{Meta, MetaSettings, Rules};
use crate::util::clock::SystemClock;
use std::sync::Arc;
use std::time::Duration;

/// Rules of a volume without limits and without a trash.
pub fn plain_rules() -> Rules {
    Rules { trash_days: 0, capacity_bytes: 0, inodes_max: 0, acl: true, dir_stats: true }
}

/// An empty volume in memory.
pub async fn volume() -> Arc<Meta> {
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::ZERO };
    let meta = Meta::new(Arc::new(MemEngine::default()), Arc::new(SystemClock), settings, plain_rules());
    meta.format(b"{}").await.expect("the in-memory engine takes any volume");
    meta
}
