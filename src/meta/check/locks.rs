//! Locks that nobody gives back: those of sessions that are not there. The clean-up of a session drops its locks before
//! its record, so one whose record is gone holds nothing, unless something went wrong.

use super::{Checker, Finding, LockSort, odd};
use crate::base::{Ino, Outcome, SessionId};
use crate::meta::engine::Scan;
use crate::meta::record::{Key, Record};

/// Whether the lock record has the session among those who hold something.
pub(in crate::meta) fn is_held_by(record: &Record, session: SessionId) -> bool {
    holders(record).contains(&session)
}

fn holders(record: &Record) -> Vec<SessionId> {
    match record {
        Record::Flocks(holders) => holders.iter().map(|holder| holder.session).collect(),
        Record::Plocks(holders) => holders.iter().map(|holder| holder.session).collect(),
        _ => Vec::new(),
    }
}

impl Checker<'_> {
    /// Comes after the sessions.
    pub(super) async fn locks(&mut self) -> Outcome<()> {
        let mut strange: Vec<(SessionId, Ino, LockSort)> = Vec::new();
        self.each(Scan::AllLocks, |this, key, record| {
            let (ino, sort) = match key {
                Key::Flocks(ino) => (ino, LockSort::Flock),
                Key::Plocks(ino) => (ino, LockSort::Posix),
                key => return Err(odd(key, record).into()),
            };
            // A client without a session, as those that only read, has the number zero.
            let strangers = holders(&record).into_iter().filter(|sid| sid.0 != 0 && !this.sessions.contains(sid));
            strange.extend(strangers.map(|session| (session, ino, sort)));
            Ok(())
        })
        .await?;
        strange.sort_unstable();
        strange.dedup();
        for (session, ino, sort) in strange {
            // It may have come since the sessions were read.
            if self.read(&[Key::Session(session)]).await? == [None] {
                self.found(Finding::LockOfNobody { session, ino, sort });
            }
        }
        Ok(())
    }
}
