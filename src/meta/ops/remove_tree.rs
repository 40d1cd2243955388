//! Removing whole trees, and the expired part of the trash (`spec/metadata.md` 7.7, section 6). Each entry goes by the
//! rules of `unlink` and `rmdir`; what others remove meanwhile is no error.

use super::list::PAGE_ENTRIES;
use crate::base::{Errno, Ino, Kind, Name, Outcome, Stop};
use crate::meta::record::Dentry;
use crate::meta::{Caller, Meta, trash};
use futures::future::BoxFuture;
use futures::stream::{self, StreamExt, TryStreamExt};
use std::sync::atomic::{AtomicU64, Ordering};
use tokio::sync::Semaphore;

/// A directory that fills up again as fast as it is emptied is given up as not empty after this many passes.
const PASSES_MAX: u32 = 16;

/// One removal of a tree.
struct Removing<'a> {
    meta: &'a Meta,
    caller: &'a Caller,
    skip_trash: bool,
    threads: usize,
    /// Unlinks at once, over the whole tree.
    unlinks: Semaphore,
    /// Directories at once, over the whole tree, besides the one path that always goes on: what is held in memory is
    /// a page for each of them and for each directory above them.
    directories: Semaphore,
    removed: AtomicU64,
    progress: &'a (dyn Fn(u64) + Sync),
    cancelled: &'a (dyn Fn() -> bool + Sync),
}

impl Removing<'_> {
    fn count(&self) {
        self.removed.fetch_add(1, Ordering::Relaxed);
        (self.progress)(1);
    }

    /// Empties a directory page by page.
    fn empty(&self, dir: Ino) -> BoxFuture<'_, Outcome<()>> {
        Box::pin(async move {
            let mut after = None;
            loop {
                if (self.cancelled)() {
                    return Err(Errno::ECANCELED.into());
                }
                let page = self.meta.list_names(dir, after.as_ref(), PAGE_ENTRIES).await?;
                let (directories, others): (Vec<_>, Vec<_>) =
                    page.entries.into_iter().partition(|(_, dentry)| dentry.kind == Kind::Directory);
                self.at_once(self.threads, others.into_iter().map(|(name, _)| self.other(dir, name)).collect()).await?;
                let more: Vec<_> =
                    directories.iter().skip(1).map_while(|_| self.directories.try_acquire().ok()).collect();
                let each = |(name, dentry): (Name, Dentry)| -> BoxFuture<'_, Outcome<()>> {
                    Box::pin(async move { self.directory(dir, &name, dentry.ino).await })
                };
                self.at_once(1 + more.len(), directories.into_iter().map(each).collect()).await?;
                match page.next {
                    Some(next) => after = Some(next),
                    None => return Ok(()),
                }
            }
        })
    }

    async fn at_once(&self, limit: usize, all: Vec<BoxFuture<'_, Outcome<()>>>) -> Outcome<()> {
        stream::iter(all).buffer_unordered(limit).try_collect::<()>().await
    }

    /// Anything but a directory.
    fn other(&self, parent: Ino, name: Name) -> BoxFuture<'_, Outcome<()>> {
        Box::pin(async move {
            let _permit = self.unlinks.acquire().await;
            match self.meta.unlink(self.caller, parent, &name, self.skip_trash).await {
                Ok(_) => {
                    self.count();
                    Ok(())
                }
                Err(Stop::Errno(Errno::ENOENT)) => Ok(()),
                Err(stop) => Err(stop),
            }
        })
    }

    /// A directory with everything in it; one that others changed meanwhile is emptied again.
    async fn directory(&self, parent: Ino, name: &Name, ino: Ino) -> Outcome<()> {
        for _ in 0..PASSES_MAX {
            self.empty(ino).await?;
            match self.meta.remove_directory(self.caller, parent, name, self.skip_trash).await {
                Ok(_) => {
                    self.count();
                    return Ok(());
                }
                Err(Stop::Errno(Errno::ENOENT)) => return Ok(()),
                Err(Stop::Errno(Errno::ENOTEMPTY)) => {}
                Err(stop) => return Err(stop),
            }
        }
        Err(Errno::ENOTEMPTY.into())
    }
}

impl Meta {
    /// Removes a name with everything below it; answers how many entries went. `progress` hears of each as it goes.
    pub async fn remove_tree(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        skip_trash: bool,
        threads: usize,
        progress: &(dyn Fn(u64) + Sync),
    ) -> Outcome<u64> {
        if name.is_dot() || name.is_dot_dot() {
            return Err(Errno::EINVAL.into());
        }
        if trash::protected(parent, name) || parent == Ino::TRASH || (parent.is_trash() && !caller.is_root()) {
            return Err(Errno::EPERM.into());
        }
        self.writable()?;
        let entry = self.lookup(caller, parent, name).await?;
        let removing = self.removing(caller, skip_trash, threads, progress, &|| false);
        match entry.attr.kind {
            Kind::Directory => removing.directory(parent, name, entry.ino).await?,
            _ => removing.other(parent, name.clone()).await?,
        }
        Ok(removing.removed.into_inner())
    }

    fn removing<'a>(
        &'a self,
        caller: &'a Caller,
        skip_trash: bool,
        threads: usize,
        progress: &'a (dyn Fn(u64) + Sync),
        cancelled: &'a (dyn Fn() -> bool + Sync),
    ) -> Removing<'a> {
        let threads = threads.max(1);
        Removing {
            meta: self,
            caller,
            skip_trash,
            threads,
            unlinks: Semaphore::new(threads),
            directories: Semaphore::new(threads),
            removed: AtomicU64::new(0),
            progress,
            cancelled,
        }
    }

    /// Removes the hourly directories of the trash that began before `before` (Unix seconds), oldest first, and
    /// answers how many entries went. `cancelled` is asked now and then: what is gone by then stays gone, and the
    /// answer is the number so far.
    pub async fn purge_trash(
        &self,
        before: i64,
        threads: usize,
        cancelled: &(dyn Fn() -> bool + Sync),
    ) -> Outcome<u64> {
        self.writable()?;
        let mut hours = Vec::new();
        let mut after = None;
        loop {
            let page = self.list_names(Ino::TRASH, after.as_ref(), PAGE_ENTRIES).await?;
            hours.extend(page.entries);
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
        // Numbers are handed out in the order of time: the first one that is young enough ends the search.
        hours.sort_by_key(|(_, dentry)| dentry.ino);
        let caller = Caller::root();
        let removing = self.removing(&caller, true, threads, &|_| {}, cancelled);
        for (name, dentry) in hours {
            match trash::hour_start(&name) {
                // Not ours to judge.
                None => continue,
                Some(start) if start >= before => break,
                Some(_) => {}
            }
            match removing.directory(Ino::TRASH, &name, dentry.ino).await {
                Err(Stop::Errno(Errno::ECANCELED)) => break,
                other => other?,
            }
        }
        Ok(removing.removed.into_inner())
    }
}
