//! What the format says of directories beyond their entries: times that may lag a little, and records that a removed
//! directory takes with it.

use super::{Shell, clean, client, name};
use crate::base::{Errno, Ino, Kind, Outcome};
use crate::meta::engine::{Batch, Change};
use crate::meta::ops::rename::RenameMode;
use crate::meta::record::{Key, Quota, QuotaOwner, Record};
use crate::meta::testing::{self, Store};
use crate::meta::{Caller, Meta, MetaSettings};
use crate::util::clock::ManualClock;
use std::sync::Arc;
use std::time::Duration;

/// Entries that come in a burst touch their directory once in a tenth of a second; a change of its links always does.
#[tokio::test]
async fn times_of_a_directory_may_lag_by_a_tenth_of_a_second() {
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
    let settings = MetaSettings { read_only: false, skip_dir_mtime: Duration::from_millis(100) };
    let meta = Meta::new(Store::new().await.engine().await, clock.clone(), settings, testing::plain_rules());
    meta.format(b"{}").await.expect("a volume");
    let sh = Shell(&meta);
    let dir = sh.dir(Ino::ROOT, "d").await;
    let made = sh.attr(dir).await;
    clock.advance(Duration::from_millis(99));
    sh.file(dir, "a").await;
    sh.mv((dir, "a"), (dir, "b"), RenameMode::Replace).await.expect("renamed");
    sh.rm(dir, "b").await;
    assert_eq!((sh.attr(dir).await.mtime, sh.attr(dir).await.ctime), (made.mtime, made.ctime));
    sh.make(dir, "sub", Kind::Directory).await;
    let linked = sh.attr(dir).await;
    assert!(linked.mtime > made.mtime && linked.ctime == linked.mtime);
    clock.advance(Duration::from_millis(100));
    sh.file(dir, "c").await;
    let touched = sh.attr(dir).await;
    assert!(touched.mtime > linked.mtime && touched.ctime == touched.mtime);
    clean(&meta).await;
}

async fn holds(meta: &Meta, key: Key) -> bool {
    meta.engine().read(&[key]).await.expect("readable")[0].is_some()
}

/// Removed, sent to the trash or replaced: the quota is gone, and a directory that comes back has none.
#[tokio::test]
async fn a_directory_takes_its_quota_with_it() {
    for with_trash in [false, true] {
        let meta = client(Store::new().await.engine().await, with_trash).await;
        let sh = Shell(&meta);
        let quota = |ino| Key::Quota(QuotaOwner::Directory(ino));
        let mut dirs = Vec::new();
        for text in ["removed", "replaced", "mover"] {
            let ino = sh.dir(Ino::ROOT, text).await;
            let limits = Quota { max_space: 1 << 30, max_inodes: 10, used_space: 0, used_inodes: 0 };
            let (txn, _) = meta.engine().begin(&[]).await.expect("begin");
            let changes = vec![Change::Put(quota(ino), Record::Quota(limits))];
            txn.commit(Batch { guards: Vec::new(), changes }).await.expect("stored");
            assert!(holds(&meta, quota(ino)).await && holds(&meta, Key::DirStat(ino)).await);
            dirs.push(ino);
        }
        sh.rmdir(Ino::ROOT, "removed").await.expect("it is empty");
        sh.mv((Ino::ROOT, "mover"), (Ino::ROOT, "replaced"), RenameMode::Replace).await.expect("renamed over");
        let kept: Vec<bool> = [
            holds(&meta, quota(dirs[0])).await,
            holds(&meta, Key::DirStat(dirs[0])).await,
            holds(&meta, quota(dirs[1])).await,
            holds(&meta, quota(dirs[2])).await,
        ]
        .into();
        assert_eq!(kept, [false, false, false, true], "trash: {with_trash}");
        let gone: Outcome<_> = meta.lookup(&Caller::root(), Ino::ROOT, &name("mover")).await;
        assert_eq!(gone.unwrap_err().errno(), Errno::ENOENT);
        clean(&meta).await;
    }
}
