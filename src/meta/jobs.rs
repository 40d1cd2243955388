//! The background jobs of a volume that any client may do for all: cleaning up after dead clients, and freeing what
//! the trash and the deleted files hold (`spec/metadata.md` section 6).
//!
//! Each job has a timer, give or take 5 %, and a lease ([`super::lease`]) that lets one client per period do it. A
//! job that fails or is stopped is done again in the next period, here or elsewhere, so each is harmless when done
//! twice or cut short at any point. None runs for longer than 50 minutes, for the next client may take the lease after
//! 54.

use super::engine::{Change, Cursor, Scan};
use super::reclaim::{Removal, SliceRemover, unreference, unreferenced};
use super::record::{Counter, Key, Record};
use super::session::{pace, unheard};
use super::txn::{DelayedSlicesOf, Operation, Settled, Tx};
use super::{Meta, outside};
use crate::base::{Ino, Outcome, SliceId};
use crate::util::task::{Job, StopSignal, jittered, stop_signal};
use async_trait::async_trait;
use std::collections::HashSet;
use std::sync::Arc;
use std::time::Duration;

const HOUR: Duration = Duration::from_secs(3600);
/// At most one run in nine tenths of an hour, over all clients.
const HOURLY_DISTANCE_SECONDS: i64 = 3240;
const RUN_TIME_MAX: Duration = Duration::from_secs(50 * 60);
/// A deleted file is left to the client that deleted it for so long.
const FILE_AGE_SECONDS: i64 = 3600;
/// Deleted files looked at in one run.
const FILES_MAX: usize = 600_000;
const SECONDS_PER_DAY: i64 = 86_400;
/// Names removed from the trash at once: the mount's own requests go before.
const PURGE_THREADS: usize = 4;
const SCAN_PAGE: usize = 1000;

/// One sort of background job.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Chore {
    StaleSessions,
    DeletedFiles,
    Slices,
    Trash,
}

impl Chore {
    fn lease(self) -> Counter {
        match self {
            Chore::StaleSessions => Counter::LastCleanupSessions,
            Chore::DeletedFiles => Counter::LastCleanupFiles,
            Chore::Slices => Counter::LastCleanupSlices,
            Chore::Trash => Counter::LastCleanupTrash,
        }
    }
}

struct Timed {
    meta: Arc<Meta>,
    chore: Chore,
    period: Duration,
    distance_seconds: i64,
    removal: Removal,
}

#[async_trait]
impl Job for Timed {
    /// The peer's names, which its metrics carry.
    fn name(&self) -> &'static str {
        match self.chore {
            Chore::StaleSessions => "cleanupSessions",
            Chore::DeletedFiles => "cleanupDeletedFiles",
            Chore::Slices => "cleanupSlices",
            Chore::Trash => "cleanupTrash",
        }
    }

    async fn run(&self, stop: StopSignal) {
        while stop.sleep(jittered(self.period)).await {
            match self.turn(&stop).await {
                Ok(Some(done)) if done > 0 => tracing::info!(job = self.name(), done, "background job done"),
                Ok(_) => {}
                Err(error) => tracing::warn!(job = self.name(), "background job is left for the next turn: {error}"),
            }
        }
    }
}

impl Timed {
    /// One turn: `None` when another client has the lease.
    async fn turn(&self, stop: &StopSignal) -> Outcome<Option<usize>> {
        if !self.meta.take_lease(self.chore.lease(), self.distance_seconds).await? {
            return Ok(None);
        }
        // The signal of this turn comes with the owner's stop and with the end of the time.
        let (stopper, turn) = stop_signal();
        let removal = self.removal.until(turn.clone());
        let work = async {
            match self.chore {
                Chore::StaleSessions => self.meta.clean_stale_sessions(unheard(self.period), &turn).await,
                Chore::DeletedFiles => self.meta.clean_deleted_files(&removal).await,
                Chore::Slices => self.meta.clean_slices(&removal).await,
                Chore::Trash => self.meta.clean_trash(&removal).await,
            }
        };
        let timer = async {
            stop.sleep(RUN_TIME_MAX).await;
            stopper.stop();
            // The work ends by itself, at its next look at the signal.
            std::future::pending::<()>().await
        };
        tokio::select! {
            biased;
            done = work => done.map(Some),
            () = timer => Ok(Some(0)),
        }
    }
}

/// One record of slices kept for the trash whose time is over.
struct ExpireDelayed {
    id: SliceId,
    time: i64,
}

impl Operation for ExpireDelayed {
    const NAME: &'static str = "expire_delayed_slices";
    /// In the order of the `AddSliceRef` changes.
    type Output = Vec<(SliceId, u32)>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Vec<(SliceId, u32)>> {
        let slices = tx.load(DelayedSlicesOf(self.id, self.time)).await?;
        if slices.is_empty() {
            return Ok(Vec::new());
        }
        tx.change(Change::Delete(Key::DelayedSlices(self.id, self.time)));
        Ok(unreference(tx, slices.iter().map(|slice| (slice.id, slice.size))))
    }

    /// The counts are not known then; slices without references are found by their own job.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Vec<(SliceId, u32)>>> {
        Ok(match tx.load(DelayedSlicesOf(self.id, self.time)).await?.is_empty() {
            true => Settled::Applied(Vec::new()),
            false => Settled::NotApplied,
        })
    }
}

/// What a clean-up removed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct CleanedUp {
    /// Names and replaced slices whose time in the trash was over.
    pub trash: usize,
    /// Deleted files whose data went.
    pub files: usize,
    /// Slices without references.
    pub slices: usize,
}

impl Meta {
    /// The leased jobs that a client with background jobs runs; the caller spawns each ([`crate::util::task::Tasks`]).
    /// `max_deletes` as for `run_reclaim`: with zero, the jobs that remove objects are left out.
    pub fn background_jobs(
        self: &Arc<Self>,
        remover: Arc<dyn SliceRemover>,
        heartbeat: Duration,
        max_deletes: usize,
    ) -> Vec<Arc<dyn Job>> {
        if self.settings().read_only {
            return Vec::new();
        }
        // Without a heartbeat of its own a client looks for dead ones at the default pace.
        let heartbeat = pace(heartbeat);
        // The signal is replaced in each turn.
        let removal = Removal::new(remover, max_deletes, stop_signal().1);
        let job = |chore, period, distance_seconds| -> Arc<dyn Job> {
            Arc::new(Timed { meta: self.clone(), chore, period, distance_seconds, removal: removal.clone() })
        };
        let between_sessions = (heartbeat.as_secs_f64() * 0.9) as i64;
        let mut jobs = vec![job(Chore::StaleSessions, heartbeat, between_sessions)];
        if max_deletes > 0 {
            for chore in [Chore::DeletedFiles, Chore::Slices, Chore::Trash] {
                jobs.push(job(chore, HOUR, HOURLY_DISTANCE_SECONDS));
            }
        }
        jobs
    }

    /// Does at once what the hourly jobs do in their turns: what is too old goes out of the trash, and the data of
    /// deleted files and replaced slices that nothing refers to is removed. Once more is harmless, so no lease is taken.
    pub async fn clean_up(
        &self,
        remover: Arc<dyn SliceRemover>,
        parallel: usize,
        stop: StopSignal,
    ) -> Outcome<CleanedUp> {
        self.writable()?;
        let removal = Removal::new(remover, parallel.max(1), stop);
        let trash = self.clean_trash(&removal).await?;
        let files = self.clean_deleted_files(&removal).await?;
        let slices = self.clean_slices(&removal).await?;
        Ok(CleanedUp { trash, files, slices })
    }

    /// Removes what is left of these deleted files, however long ago they were deleted. Answers how many were done.
    pub async fn remove_deleted_files(
        &self,
        inodes: &HashSet<Ino>,
        remover: Arc<dyn SliceRemover>,
        parallel: usize,
        stop: StopSignal,
    ) -> Outcome<usize> {
        let removal = Removal::new(remover, parallel.max(1), stop);
        self.clean_deleted(&removal, |ino, _| inodes.contains(&ino)).await
    }

    /// Removes the objects and records of slices that nobody refers to any more. Answers how many went.
    pub async fn remove_slices(
        &self,
        slices: Vec<(SliceId, u32)>,
        remover: Arc<dyn SliceRemover>,
        parallel: usize,
        stop: StopSignal,
    ) -> usize {
        self.reclaim_slices(slices, &Removal::new(remover, parallel.max(1), stop)).await
    }

    /// Pages of a scan, until its end or until told to stop.
    async fn next_page(
        &self,
        scan: &Scan,
        after: &mut Option<Cursor>,
        ended: &mut bool,
    ) -> Outcome<Vec<(Key, Record)>> {
        let page = outside(self.engine().scan(scan, after.as_ref(), SCAN_PAGE).await)?;
        *ended = page.next.is_none();
        *after = page.next;
        Ok(page.rows)
    }

    /// Removes the data of files deleted over an hour ago. Answers how many files were done.
    pub(super) async fn clean_deleted_files(&self, removal: &Removal) -> Outcome<usize> {
        let before = self.now().seconds - FILE_AGE_SECONDS;
        self.clean_deleted(removal, |_, deleted| deleted < before).await
    }

    async fn clean_deleted(&self, removal: &Removal, due: impl Fn(Ino, i64) -> bool) -> Outcome<usize> {
        let (mut after, mut ended, mut done) = (None, false, 0);
        while !ended && done < FILES_MAX {
            let rows = self.next_page(&Scan::DeletedFiles, &mut after, &mut ended).await?;
            let files = rows.into_iter().filter_map(|row| match row {
                (Key::DeletedFile(ino, length), Record::Number(deleted)) if due(ino, deleted) => Some((ino, length)),
                _ => None,
            });
            done += self.reclaim_files(files.collect(), removal).await;
            if removal.is_stopped() {
                return Ok(done);
            }
        }
        Ok(done)
    }

    /// Removes slices whose count says that nothing refers to them. Answers how many went.
    pub(super) async fn clean_slices(&self, removal: &Removal) -> Outcome<usize> {
        let (mut after, mut ended, mut done) = (None, false, 0);
        while !ended && !removal.is_stopped() {
            let rows = self.next_page(&Scan::SliceRefs, &mut after, &mut ended).await?;
            let slices = rows.into_iter().filter_map(|row| match row {
                (Key::SliceRef(id, size), Record::Number(references)) if references <= 0 => Some((id, size)),
                _ => None,
            });
            done += self.reclaim_slices(slices.collect(), removal).await;
        }
        Ok(done)
    }

    /// Empties what is too old out of the trash: removed names, then replaced slices. Answers how many of both went.
    pub(super) async fn clean_trash(&self, removal: &Removal) -> Outcome<usize> {
        // The two hours keep the whole last hour of the last day, and a clock that is a little off.
        let before = self.now().seconds - (24 * i64::from(self.rules().trash_days) + 2) * 3600;
        let names = self.purge_trash(before, PURGE_THREADS, &|| removal.is_stopped()).await;
        // Neither is kept from its work by the other's trouble.
        let slices = self.clean_delayed_slices(removal).await;
        Ok(names? as usize + slices?)
    }

    async fn clean_delayed_slices(&self, removal: &Removal) -> Outcome<usize> {
        let before = self.now().seconds - i64::from(self.rules().trash_days) * SECONDS_PER_DAY;
        let (mut after, mut ended, mut done) = (None, false, 0);
        while !ended {
            for (key, _) in self.next_page(&Scan::DelayedSlices, &mut after, &mut ended).await? {
                let Key::DelayedSlices(id, time) = key else { continue };
                if time >= before {
                    continue;
                }
                if removal.is_stopped() {
                    return Ok(done);
                }
                let (slices, committed) = self.run_reporting(&ExpireDelayed { id, time }).await?;
                done += self.reclaim_slices(unreferenced(slices, &committed.references), removal).await;
            }
        }
        Ok(done)
    }
}

#[cfg(test)]
mod tests;
