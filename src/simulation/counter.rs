//! A counter in a file, written under its lock only.

use super::bytes::OpenFile;
use super::model::Value;
use super::process::{COUNTER, Failed, Process, flat};
use super::{ERRANDS, ERRANDS_MAX, stand_still};
use crate::base::Errno;
use crate::meta::Caller;
use crate::meta::ops::plock::LockKind;
use rand::Rng;

impl Process {
    /// Reads the shared counter and writes it anew, under its lock: no two at once, and no value is lost.
    pub async fn count(&mut self) {
        self.make_room().await;
        let before = self.open.len();
        let up = self.client().clone();
        let ino = self.ino(COUNTER);
        let opened = self.tick();
        let answer = self.call(up.vfs.open(&Caller::root(), ino, libc::O_RDWR)).await;
        let handle = match answer {
            Ok(answer) => {
                self.opened(COUNTER, &answer, true, opened);
                answer.handle
            }
            Err(failed) => return self.excuse("open", COUNTER, &failed),
        };
        let owner = self.owner();
        // In most runs: who waits, asks on and on.
        let wait = self.random.random_bool(0.5) && !self.world.plan.is_faulty() && !self.world.plan.long_pauses;
        let lock = |kind| up.vfs.setlk(ino, owner, 0, i64::MAX as u64, kind, 1, wait);
        let locked = self.call(lock(LockKind::Write)).await;
        self.say(|| format!("lock {wait}: {}", flat(&locked)));
        match locked {
            Ok(()) => {
                let me = (up.incarnation, self.number);
                {
                    let mut holder = self.world.lock_holder.lock();
                    let may_have_ended = holder.is_none_or(|((slot, _), _)| self.world.may_fail(slot));
                    assert!(may_have_ended, "{me:?} got a lock that {holder:?} holds");
                    *holder = Some(me);
                }
                let open = OpenFile { file: COUNTER, handle, writes: true, opened: self.tick() };
                let found = self.read_on(&up, open, 0..1).await;
                let written = self.write_cells(open, 0..1).await;
                if let (Some(found), Some(effect)) = (found, written) {
                    let base = found.first().map_or(Value::Zero, |(_, value)| *value);
                    self.world.model.lock().counted(COUNTER, effect, base);
                }
                let stands_still = self.world.plan.long_pauses && self.number < ERRANDS && self.random.random_bool(0.5);
                if stands_still && self.world.errands.lock().len() < ERRANDS_MAX {
                    stand_still(&self.world, self.slot, &mut self.random);
                }
                {
                    let mut holder = self.world.lock_holder.lock();
                    if *holder == Some(me) {
                        *holder = None;
                    }
                }
                let unlocked = self.flushing(COUNTER, lock(LockKind::Unlock)).await;
                self.say(|| format!("unlock: {}", flat(&unlocked)));
                if let Err(failed) = unlocked {
                    self.excuse("unlock", COUNTER, &failed);
                }
                if let Some(lost) = self.world.model.lock().lost_count(COUNTER) {
                    panic!("c{}.{}: {lost}", self.slot, self.number);
                }
            }
            Err(Failed::Answer(Errno::EAGAIN)) if !wait => {}
            Err(failed) => self.excuse("lock", COUNTER, &failed),
        }
        self.come_up().await;
        if self.open.len() > before {
            self.close(before).await;
        }
    }
}
