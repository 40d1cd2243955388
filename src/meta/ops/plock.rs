//! POSIX locks: fcntl(F_GETLK, F_SETLK, F_SETLKW) on ranges of a file (`spec/metadata.md` section 8).
//!
//! A lock belongs to (session, owner), and all ranges of one owner are one record, sorted and without overlap. Waiting
//! is polling, for the format has no way to be called back; the future may be dropped at any time (an interrupted
//! system call). If that happens during a commit the lock may have been set; the owner's release removes it, as the
//! note of what may be locked is made before the first try.

use crate::base::{Errno, Ino, Outcome, SessionId};
use crate::meta::Meta;
use crate::meta::engine::Change;
use crate::meta::record::{FlockHolder, Key, PlockHolder, PlockRange, Record};
use crate::meta::session::{require_alive, session_of};
use crate::meta::txn::{AttrOf, Operation, Peek, PlocksOf, SessionOf, Settled, Tx};
use parking_lot::Mutex;
use std::collections::HashSet;
use std::time::Duration;

/// What is asked of a lock.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LockKind {
    Read,
    Write,
    Unlock,
}

/// Who may hold locks through this client: (inode, owner) from before the first try until the release. Closing a
/// file that was never locked costs no trip. As large as what the kernel holds.
#[derive(Default)]
pub(in crate::meta) struct LockNotes(Mutex<HashSet<(Ino, u64)>>);

impl LockNotes {
    pub(in crate::meta::ops) fn note(&self, ino: Ino, owner: u64) {
        self.0.lock().insert((ino, owner));
    }

    pub(in crate::meta::ops) fn has(&self, ino: Ino, owner: u64) -> bool {
        self.0.lock().contains(&(ino, owner))
    }

    pub(in crate::meta::ops) fn clear(&self, ino: Ino, owner: u64) {
        self.0.lock().remove(&(ino, owner));
    }

    /// Every inode on which something may be locked.
    pub(in crate::meta::ops) fn inodes(&self) -> HashSet<Ino> {
        self.0.lock().iter().map(|(ino, _)| *ino).collect()
    }
}

/// The pauses between two looks at a lock that somebody else holds: short at first, for most locks are held shortly.
pub(in crate::meta::ops) struct Pauses(Duration);

const PAUSE_MIN: Duration = Duration::from_millis(1);
/// How late a waiter may notice that the lock is free; a hundred waiters cost a thousand trips a second then.
const PAUSE_MAX: Duration = Duration::from_millis(100);

impl Pauses {
    pub(in crate::meta::ops) fn new() -> Pauses {
        Pauses(PAUSE_MIN)
    }

    pub(in crate::meta::ops) async fn wait(&mut self) {
        tokio::time::sleep(self.0).await;
        self.0 = self.0.mul_f64(1.5).min(PAUSE_MAX);
    }
}

/// The first range of somebody else that `wanted` cannot stand beside.
fn conflicting<'a>(
    holders: &'a [PlockHolder],
    session: SessionId,
    owner: u64,
    wanted: &PlockRange,
) -> Option<(&'a PlockHolder, PlockRange)> {
    holders.iter().filter(|holder| (holder.session, holder.owner) != (session, owner)).find_map(|holder| {
        let clash = |held: &&PlockRange| {
            held.start <= wanted.end && wanted.start <= held.end && (held.exclusive || wanted.exclusive)
        };
        holder.ranges.iter().find(clash).map(|held| (holder, *held))
    })
}

/// The list with `[start, end]` taken out of it and, for a lock, `set` put there; neighbours of one kind and pid
/// become one.
pub(crate) fn replace(ranges: &[PlockRange], start: u64, end: u64, set: Option<PlockRange>) -> Vec<PlockRange> {
    let mut list = Vec::with_capacity(ranges.len() + 2);
    for held in ranges {
        if held.start < start {
            list.push(PlockRange { end: held.end.min(start - 1), ..*held });
        }
        if held.end > end {
            list.push(PlockRange { start: held.start.max(end + 1), ..*held });
        }
    }
    list.extend(set);
    list.sort_by_key(|range| range.start);
    list.dedup_by(|later, earlier| {
        let joins = (later.exclusive, later.pid) == (earlier.exclusive, earlier.pid)
            && earlier.end.checked_add(1) == Some(later.start);
        if joins {
            earlier.end = later.end;
        }
        joins
    });
    list
}

/// The session that must be alive for a lock to be taken in it: nobody would ever clean up after a dead one again. To
/// unlock is always right. A client without a session has none.
pub(in crate::meta::ops) fn locking_session(session: SessionId, kind: LockKind) -> Vec<SessionOf> {
    if kind == LockKind::Unlock { Vec::new() } else { session_of(session) }
}

struct SetPlock {
    session: SessionId,
    ino: Ino,
    owner: u64,
    kind: LockKind,
    start: u64,
    end: u64,
    pid: u32,
}

impl Operation for SetPlock {
    const NAME: &'static str = "set_plock";
    /// Whether the owner holds anything afterwards.
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        let session = locking_session(self.session, self.kind);
        let (node, holders, session) = tx.load((Peek(AttrOf(self.ino)), PlocksOf(self.ino), session)).await?;
        require_alive(&session)?;
        let set = match self.kind {
            LockKind::Unlock => None,
            kind => {
                // SQL volumes keep no locks of nodes that are gone; nobody else would see them either.
                node.exists()?;
                let exclusive = kind == LockKind::Write;
                Some(PlockRange { exclusive, pid: self.pid, start: self.start, end: self.end })
            }
        };
        if let Some(wanted) = &set
            && conflicting(&holders, self.session, self.owner, wanted).is_some()
        {
            return Err(Errno::EAGAIN.into());
        }
        let mine = holders.iter().find(|holder| (holder.session, holder.owner) == (self.session, self.owner));
        let held = mine.map_or(&[][..], |holder| &holder.ranges);
        let ranges = replace(held, self.start, self.end, set);
        let holds = !ranges.is_empty();
        if ranges != held {
            let others = holders.iter().any(|h| h.session == self.session && h.owner != self.owner);
            tx.change(Change::SetPlock {
                ino: self.ino,
                session: self.session,
                owner: self.owner,
                ranges,
                last: !holds && !others,
            });
        }
        Ok(holds)
    }

    /// Setting a lock twice sets it once.
    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        Ok(Settled::NotApplied)
    }
}

impl Meta {
    /// Inodes on which this client may hold locks, of either kind.
    pub fn locked_inodes(&self) -> HashSet<Ino> {
        let mut inodes = self.plock_notes.inodes();
        inodes.extend(self.flock_notes.inodes());
        inodes
    }

    /// All locks on a file: flock(2) and POSIX.
    pub async fn locks_on(&self, ino: Ino) -> Outcome<(Vec<FlockHolder>, Vec<PlockHolder>)> {
        let mut found = (Vec::new(), Vec::new());
        for record in self.read(&[Key::Flocks(ino), Key::Plocks(ino)]).await? {
            match record {
                Some(Record::Flocks(holders)) => found.0 = holders,
                Some(Record::Plocks(holders)) => found.1 = holders,
                _ => {}
            }
        }
        Ok(found)
    }

    /// F_GETLK: what stands in the way of `wanted`, if anything. The pid is known only for locks of this session.
    pub async fn get_plock(&self, ino: Ino, owner: u64, wanted: PlockRange) -> Outcome<Option<PlockRange>> {
        let holders = match self.read(&[Key::Plocks(ino)]).await?.pop().flatten() {
            Some(Record::Plocks(holders)) => holders,
            _ => return Ok(None),
        };
        let session = self.session();
        Ok(conflicting(&holders, session, owner, &wanted)
            .map(|(holder, held)| if holder.session == session { held } else { PlockRange { pid: 0, ..held } }))
    }

    /// F_SETLK, with `wait` F_SETLKW: locks or unlocks `[start, end]` (inclusive; `i64::MAX` reaches to the end of the
    /// file). EAGAIN when somebody else is in the way and `wait` is off.
    #[expect(clippy::too_many_arguments, reason = "the arguments of fcntl")]
    pub async fn set_plock(
        &self,
        ino: Ino,
        owner: u64,
        kind: LockKind,
        start: u64,
        end: u64,
        pid: u32,
        wait: bool,
    ) -> Outcome<()> {
        if start > end {
            return Err(Errno::EINVAL.into());
        }
        if kind == LockKind::Unlock {
            if !self.plock_notes.has(ino, owner) {
                return Ok(());
            }
        } else {
            self.plock_notes.note(ino, owner);
        }
        let op = SetPlock { session: self.session(), ino, owner, kind, start, end, pid };
        let mut pauses = Pauses::new();
        loop {
            match self.run(&op).await {
                // The note stays, though nothing is locked any more: a lock of the same owner may be on its way.
                Ok(_) => return Ok(()),
                Err(stop) if wait && stop.errno() == Errno::EAGAIN => pauses.wait().await,
                Err(stop) => return Err(stop),
            }
        }
    }

    /// Drops all locks of an owner on a file: a descriptor was closed. No trip when it never had any through here.
    pub async fn release_plocks(&self, ino: Ino, owner: u64) -> Outcome<()> {
        if !self.plock_notes.has(ino, owner) {
            return Ok(());
        }
        self.set_plock(ino, owner, LockKind::Unlock, 0, u64::MAX, 0, false).await?;
        self.plock_notes.clear(ino, owner);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::engine::counting::{CountingEngine, Trips};
    use crate::meta::testing::{Store, file, volume, volume_on};
    use crate::util::clock::SystemClock;
    use proptest::prelude::*;
    use std::sync::Arc;
    use std::time::Duration;

    const EOF: u64 = i64::MAX as u64;

    fn range(exclusive: bool, start: u64, end: u64) -> PlockRange {
        PlockRange { exclusive, pid: 1, start, end }
    }

    proptest! {
        /// Byte by byte: each byte shows the last call that covered it, and the list is sorted and has no seams.
        #[test]
        fn the_last_call_over_a_byte_wins(calls in proptest::collection::vec((0u64..30, 0u64..12, 0u32..3, 1u32..3), 0..25)) {
            let mut list = Vec::new();
            let mut bytes = [None; 45];
            for (start, more, kind, pid) in calls {
                let set = (kind < 2).then(|| PlockRange { exclusive: kind == 1, pid, start, end: start + more });
                list = replace(&list, start, start + more, set);
                bytes[start as usize..=(start + more) as usize].fill(set.map(|s| (s.exclusive, s.pid)));
                let mut shown = [None; 45];
                for held in &list {
                    prop_assert!(held.start <= held.end);
                    shown[held.start as usize..=held.end as usize].fill(Some((held.exclusive, held.pid)));
                }
                prop_assert_eq!(shown, bytes);
                for pair in list.windows(2) {
                    prop_assert!(pair[0].end < pair[1].start);
                    let same = (pair[0].exclusive, pair[0].pid) == (pair[1].exclusive, pair[1].pid);
                    prop_assert!(!same || pair[0].end + 1 < pair[1].start, "neighbours are merged");
                }
            }
        }
    }

    #[test]
    fn ranges_reach_the_ends_of_the_file() {
        let whole = replace(&[], 0, u64::MAX, Some(range(true, 0, u64::MAX)));
        assert_eq!(replace(&whole, 0, 0, None), [range(true, 1, u64::MAX)]);
        assert_eq!(replace(&whole, 5, u64::MAX, None), [range(true, 0, 4)]);
    }

    #[tokio::test]
    async fn readers_share_and_a_writer_excludes() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        let set = |owner, kind, start, end| meta.set_plock(ino, owner, kind, start, end, owner as u32, false);
        set(1, LockKind::Read, 0, 99).await.unwrap();
        set(2, LockKind::Read, 50, EOF).await.unwrap();
        assert_eq!(set(3, LockKind::Write, 99, 99).await.unwrap_err().errno(), Errno::EAGAIN);
        let held = meta.get_plock(ino, 3, range(true, 60, 60)).await.unwrap().unwrap();
        assert_eq!((held.exclusive, held.pid, held.start, held.end), (false, 1, 0, 99));
        assert_eq!(meta.get_plock(ino, 3, range(false, 60, 60)).await.unwrap(), None);
        set(1, LockKind::Unlock, 10, 99).await.unwrap();
        set(1, LockKind::Write, 0, 49).await.unwrap();
        assert_eq!(set(2, LockKind::Read, 49, 49).await.unwrap_err().errno(), Errno::EAGAIN);
        meta.release_plocks(ino, 1).await.unwrap();
        set(2, LockKind::Write, 0, EOF).await.unwrap();
        assert_eq!(set(1, LockKind::Read, 0, 0).await.unwrap_err().errno(), Errno::EAGAIN);
        let gone = meta.set_plock(Ino(99), 1, LockKind::Write, 0, 1, 1, false).await;
        assert_eq!(gone.unwrap_err().errno(), Errno::ENOENT);
    }

    #[tokio::test]
    async fn a_waiter_gets_the_lock_when_it_is_free_and_leaves_nothing_when_it_gives_up() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        meta.set_plock(ino, 1, LockKind::Write, 0, 9, 1, false).await.unwrap();
        let wait = |owner| meta.set_plock(ino, owner, LockKind::Write, 0, 9, 2, true);
        assert!(tokio::time::timeout(Duration::from_millis(30), wait(2)).await.is_err());
        let (got, _) = tokio::join!(tokio::time::timeout(Duration::from_secs(60), wait(3)), async {
            tokio::time::sleep(Duration::from_millis(20)).await;
            meta.release_plocks(ino, 1).await.unwrap();
        });
        got.expect("within the time").unwrap();
        meta.release_plocks(ino, 3).await.unwrap();
        assert_eq!(meta.get_plock(ino, 9, range(true, 0, EOF)).await.unwrap(), None);
    }

    #[tokio::test]
    async fn only_what_was_locked_costs_trips_to_unlock() {
        let engine = Arc::new(CountingEngine::new(Store::new().await.engine().await));
        let meta = volume_on(engine.clone(), Arc::new(SystemClock)).await;
        let ino = file(&meta, "f").await;
        engine.take();
        meta.open_file(ino);
        meta.release_plocks(ino, 1).await.unwrap();
        meta.flock(ino, 1, LockKind::Unlock, false).await.unwrap();
        meta.close_file(ino).await.unwrap();
        assert_eq!(engine.take(), Trips::default());
        let two = Trips { begin: 1, commit: 1, ..Trips::default() };
        meta.set_plock(ino, 1, LockKind::Write, 0, 9, 1, false).await.unwrap();
        assert_eq!(engine.take(), two);
        meta.release_plocks(ino, 1).await.unwrap();
        assert_eq!(engine.take(), two);
    }
}
