//! Which numbers a volume uses, and whether its counters are past them: a counter that is lower hands out a number for
//! the second time, and two files, or the bytes of two writes, become one.
//!
//! Counters only grow, and are read after everything that uses their numbers, so that what others do meanwhile makes
//! none of them look low.

use super::{Checker, Finding};
use crate::base::{Ino, Outcome, SessionId, SliceId};
use crate::meta::ids::{INODE_BATCH, SLICE_BATCH};
use crate::meta::outside;
use crate::meta::record::{Counter, Key, Record};

/// No volume comes near these: a number from there on is damage itself, and a counter that followed it would leave no
/// numbers for others.
const ID_END: u64 = 1 << 62;
const RULE_END: u32 = 1 << 30;
const HOUR_END: u64 = 1 << 32;

/// Batches of numbers that are left out when a counter is raised: clients hold batches that they were given before, and
/// have not used yet. (Objects of slices with such numbers are handed out from then on as far as `gc` can tell. Metadata
/// that came back from a backup is no such case: its counters are as old as the rest, and above it.)
const BATCHES_HELD: u64 = 128;

/// Counters of numbers, whatever else they are called.
const NUMBERING: [Counter; 5] =
    [Counter::NextInode, Counter::NextSlice, Counter::NextSession, Counter::NextTrash, Counter::AclMaxId];
/// Times of background jobs: they have to be numbers, and any will do.
const TIMES: [Counter; 4] =
    [Counter::LastCleanupSessions, Counter::LastCleanupFiles, Counter::LastCleanupTrash, Counter::LastCleanupSlices];

/// The highest number of each kind that something is stored under; zero for none.
#[derive(Default)]
pub(super) struct InUse {
    inode: u64,
    hour: u64,
    slice: u64,
    session: u64,
    rule: u32,
}

impl InUse {
    pub fn inode(&mut self, ino: Ino) {
        match ino.0.checked_sub(Ino::TRASH.0) {
            Some(hour) if hour < HOUR_END => self.hour = self.hour.max(hour),
            Some(_) => {}
            // The root has its number from nobody.
            None if ino > Ino::ROOT && ino.0 < ID_END => self.inode = self.inode.max(ino.0),
            None => {}
        }
    }

    pub fn slice(&mut self, id: SliceId) {
        if id.0 < ID_END {
            self.slice = self.slice.max(id.0);
        }
    }

    pub fn session(&mut self, sid: SessionId) {
        if sid.0 < ID_END {
            self.session = self.session.max(sid.0);
        }
    }

    pub fn rule(&mut self, id: u32) {
        if id < RULE_END {
            self.rule = self.rule.max(id);
        }
    }

    fn of(&self, counter: Counter) -> i64 {
        let highest = match counter {
            Counter::NextInode => self.inode,
            Counter::NextSlice => self.slice,
            Counter::NextSession => self.session,
            Counter::NextTrash => self.hour,
            Counter::AclMaxId => self.rule.into(),
            Counter::UsedSpace
            | Counter::TotalInodes
            | Counter::LastCleanupSessions
            | Counter::LastCleanupFiles
            | Counter::LastCleanupTrash
            | Counter::LastCleanupSlices => 0,
        };
        highest as i64
    }
}

/// What a counter is raised to that is lower than `used`.
pub(in crate::meta) fn raised(counter: Counter, used: i64) -> i64 {
    let batch = match counter {
        Counter::NextInode => INODE_BATCH,
        Counter::NextSlice => SLICE_BATCH,
        // Each is taken alone, and used at once.
        _ => 0,
    };
    used + (batch * BATCHES_HELD) as i64
}

impl Checker<'_> {
    /// Comes last.
    pub(super) async fn counters(&mut self) -> Outcome<()> {
        let keys: Vec<Key> = NUMBERING.into_iter().chain(TIMES).map(Key::Counter).collect();
        let answers = outside(self.engine.read_readable(&keys).await)?;
        for (key, answer) in keys.iter().zip(answers) {
            let last = match answer {
                Ok(Some(Record::Number(last))) => last,
                // It has given out nothing yet.
                Ok(_) => 0,
                Err(fault) => {
                    self.unreadable(&fault);
                    continue;
                }
            };
            match key {
                Key::Counter(counter) if NUMBERING.contains(counter) && last < self.in_use.of(*counter) => {
                    self.found(Finding::LowCounter { counter: *counter, used: self.in_use.of(*counter) });
                }
                _ => {}
            }
        }
        Ok(())
    }
}
