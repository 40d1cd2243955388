//! flock(2): one lock on the whole file, shared or exclusive (`spec/metadata.md` section 8).
//!
//! A lock belongs to (session, owner); the owner is the caller's choice and must only be unique within the session
//! (the peer takes the kernel's lock owner combined with the handle). Waiting is polling, as for POSIX locks.

use super::plock::{LockKind, Pauses, locking_session};
use crate::base::{Errno, Ino, Outcome, SessionId};
use crate::meta::Meta;
use crate::meta::engine::Change;
use crate::meta::session::require_alive;
use crate::meta::txn::{AttrOf, FlocksOf, Operation, Peek, Settled, Tx};

struct SetFlock {
    session: SessionId,
    ino: Ino,
    owner: u64,
    kind: LockKind,
}

impl Operation for SetFlock {
    const NAME: &'static str = "flock";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        let session = locking_session(self.session, self.kind);
        let (node, holders, session) = tx.load((Peek(AttrOf(self.ino)), FlocksOf(self.ino), session)).await?;
        require_alive(&session)?;
        let is_mine = |session, owner| (session, owner) == (self.session, self.owner);
        let mine = holders.iter().find(|holder| is_mine(holder.session, holder.owner));
        let mut others = holders.iter().filter(|holder| !is_mine(holder.session, holder.owner));
        let exclusive = match self.kind {
            LockKind::Unlock => None,
            kind => {
                node.exists()?;
                let exclusive = kind == LockKind::Write;
                if others.clone().any(|other| exclusive || other.exclusive) {
                    return Err(Errno::EAGAIN.into());
                }
                Some(exclusive)
            }
        };
        if mine.map(|holder| holder.exclusive) != exclusive {
            let last = exclusive.is_none() && !others.any(|other| other.session == self.session);
            let (ino, session, owner) = (self.ino, self.session, self.owner);
            tx.change(Change::SetFlock { ino, session, owner, exclusive, last });
        }
        Ok(())
    }

    /// Setting a lock twice sets it once.
    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        Ok(Settled::NotApplied)
    }
}

impl Meta {
    /// Takes, changes or drops the lock of `owner`. EAGAIN when somebody else is in the way and `wait` is off. To
    /// unlock what was never locked through here costs no trip, so that every close may ask for it.
    pub async fn flock(&self, ino: Ino, owner: u64, kind: LockKind, wait: bool) -> Outcome<()> {
        if kind == LockKind::Unlock {
            if !self.flock_notes.has(ino, owner) {
                return Ok(());
            }
        } else {
            self.flock_notes.note(ino, owner);
        }
        let op = SetFlock { session: self.session(), ino, owner, kind };
        let mut pauses = Pauses::new();
        loop {
            match self.run(&op).await {
                Ok(()) => break,
                Err(stop) if wait && stop.errno() == Errno::EAGAIN => pauses.wait().await,
                Err(stop) => return Err(stop),
            }
        }
        if kind == LockKind::Unlock {
            self.flock_notes.clear(ino, owner);
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::testing::{file, volume};
    use std::time::Duration;

    #[tokio::test]
    async fn shared_locks_stand_together_and_an_exclusive_one_alone() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        let lock = |owner, kind| meta.flock(ino, owner, kind, false);
        lock(1, LockKind::Read).await.unwrap();
        lock(2, LockKind::Read).await.unwrap();
        assert_eq!(lock(1, LockKind::Write).await.unwrap_err().errno(), Errno::EAGAIN, "no upgrade beside a reader");
        lock(2, LockKind::Unlock).await.unwrap();
        lock(1, LockKind::Write).await.unwrap();
        assert_eq!(lock(2, LockKind::Read).await.unwrap_err().errno(), Errno::EAGAIN);
        lock(1, LockKind::Read).await.unwrap();
        lock(2, LockKind::Read).await.unwrap();
        lock(1, LockKind::Unlock).await.unwrap();
        lock(2, LockKind::Unlock).await.unwrap();
        lock(3, LockKind::Write).await.unwrap();
    }

    #[tokio::test]
    async fn a_waiter_gets_the_lock_when_it_is_free() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        meta.flock(ino, 1, LockKind::Write, false).await.unwrap();
        let (got, ()) = tokio::join!(
            tokio::time::timeout(Duration::from_secs(60), meta.flock(ino, 2, LockKind::Read, true)),
            async {
                tokio::time::sleep(Duration::from_millis(20)).await;
                meta.flock(ino, 1, LockKind::Unlock, false).await.unwrap();
            }
        );
        got.expect("within the time").unwrap();
    }
}
