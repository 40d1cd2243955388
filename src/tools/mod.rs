//! The repair tools of a volume, without their command lines: [`fsck`] compares metadata with itself and with the
//! store, [`gc`] finds and removes what nothing refers to, [`restore`] brings back what lies in the trash.
//!
//! They are a layer of their own because they look at names and objects at once, which neither `meta` nor `chunk` may,
//! and because they are no clients: they hold no session, cache nothing, and read a volume from end to end. Both
//! volumes and stores may be too large for memory, so everything is streamed; [`slices`] says what is kept.
//!
//! Work can be ended at any time ([`StopSignal`]): everything that was done by then stays done and is reported.

mod below;
pub mod fsck;
pub mod gc;
pub mod listing;
pub mod lost;
mod references;
pub mod restore;
pub mod slices;
mod subtree;
#[cfg(test)]
mod test_volume;

use crate::base::{Errno, Fault, Outcome, SliceId};
use crate::cache::BlockKey;
use crate::chunk::{ChunkStore, layout};
use crate::meta::engine::Scan;
use crate::meta::reclaim::SliceRemover;
use crate::meta::record::{Key, Record};
use crate::meta::{Meta, outside};
use crate::object::SharedStore;
use crate::util::task::StopSignal;
use async_trait::async_trait;
use parking_lot::Mutex;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

/// Records asked for at a time.
const PAGE_RECORDS: usize = 10_000;

/// What the tools work on.
#[derive(Clone)]
pub struct Volume {
    pub meta: Arc<Meta>,
    /// Below the volume's prefix.
    pub store: SharedStore,
    /// To read what is left of broken files, and to compact.
    pub data: ChunkStore,
}

impl Volume {
    fn block_size(&self) -> u32 {
        self.data.options().block_size
    }

    fn name_of(&self, key: &BlockKey) -> String {
        key.name(self.data.options().hash_prefix)
    }

    /// Whether an object of this size can hold the block. Compressed ones may have any size but none.
    fn fits(&self, key: &BlockKey, bytes: u64) -> bool {
        match self.data.options().compression {
            crate::chunk::Compression::None => bytes >= u64::from(key.size),
            _ => bytes > 0,
        }
    }
}

/// Removes slices from the store of a volume that nothing is cached of.
struct StoreRemover(Volume);

#[async_trait]
impl SliceRemover for StoreRemover {
    async fn remove(&self, id: SliceId, size: u32) -> Result<(), Fault> {
        let mut last = Ok(());
        for key in layout::blocks(id, size, self.0.block_size()).filter(|key| key.slice.0 != 0) {
            if let Err(fault) = self.0.store.delete(&self.0.name_of(&key)).await {
                last = Err(fault);
            }
        }
        last
    }
}

/// How far a tool has come: written by the tool, shown by whoever runs it.
#[derive(Default)]
pub struct Progress {
    phase: Mutex<&'static str>,
    done: AtomicU64,
}

impl Progress {
    fn phase(&self, name: &'static str) {
        *self.phase.lock() = name;
        self.done.store(0, Ordering::Relaxed);
    }

    fn add(&self, count: u64) {
        self.done.fetch_add(count, Ordering::Relaxed);
    }

    /// What is being done, and how many things of it are done.
    pub fn now(&self) -> (&'static str, u64) {
        (*self.phase.lock(), self.done.load(Ordering::Relaxed))
    }
}

/// What becomes of a walk over records of which one does not decode.
#[derive(Clone, Copy, Debug)]
pub enum OnUnreadable {
    /// It ends: what is not known could be in use.
    Fail,
    /// It goes on, for what does not decode is a finding already.
    Skip,
}

/// How a tool is watched and ended.
#[derive(Clone)]
pub struct Watch {
    pub progress: Arc<Progress>,
    pub stop: StopSignal,
}

impl Watch {
    /// The same for dumps, which are made below this layer.
    pub fn course(&self) -> crate::meta::dump::Course {
        let progress = self.progress.clone();
        let tell = Arc::new(move |phase, done| {
            if progress.now().0 != phase {
                progress.phase(phase);
            }
            progress.add(done);
        });
        crate::meta::dump::Course { tell, stop: self.stop.clone() }
    }

    /// ECANCELED once the tool was told to stop.
    fn go_on(&self) -> Outcome<()> {
        if self.stop.is_stopped() { Err(Errno::ECANCELED.into()) } else { Ok(()) }
    }

    /// All rows of a scan, page by page.
    async fn each(&self, meta: &Meta, scan: Scan, row: impl FnMut(Key, Record)) -> Outcome<()> {
        self.each_or(OnUnreadable::Fail, meta, scan, row).await
    }

    async fn each_or(
        &self,
        on_unreadable: OnUnreadable,
        meta: &Meta,
        scan: Scan,
        mut row: impl FnMut(Key, Record),
    ) -> Outcome<()> {
        let mut after = None;
        loop {
            self.go_on()?;
            let page = outside(match on_unreadable {
                OnUnreadable::Fail => meta.engine().scan(&scan, after.as_ref(), PAGE_RECORDS).await,
                OnUnreadable::Skip => meta.engine().scan_readable(&scan, after.as_ref(), PAGE_RECORDS).await,
            })?;
            self.progress.add(page.rows.len() as u64);
            page.rows.into_iter().for_each(|(key, record)| row(key, record));
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }
}

/// A number of things and their bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tally {
    pub count: u64,
    pub bytes: u64,
}

impl Tally {
    fn add(&mut self, bytes: u64) {
        self.count += 1;
        self.bytes += bytes;
    }
}
