//! Locks of a mount: the owner is the kernel's, the lock itself is the volume's. POSIX record locks belong to a process,
//! flock(2) to an open file.

use super::{Handle, Vfs};
use crate::base::{Errno, Ino, Outcome};
use crate::meta::ops::plock::LockKind;
use crate::meta::record::PlockRange;
use std::time::Duration;
use tokio::time::Instant;

/// A look that took longer is taken once more. Nobody is taken for dead as soon as that.
const LOOK_MAX: Duration = Duration::from_secs(4);
const LOOKS_MAX: usize = 3;

impl Vfs {
    /// Other clients took this one for dead and dropped its locks. What is written but not committed must not be
    /// committed any more, and what was written under a lock must not be followed by more: such files answer EIO to
    /// every later write, flush and fsync until they are closed by all.
    pub(super) fn lose_session(&self) {
        let locked = self.meta.locked_inodes();
        let mut lost = 0;
        for file in self.files.all() {
            let mut state = file.state();
            if !state.pending.is_empty() || locked.contains(&file.ino) {
                state.fail(Errno::EIO);
                lost += 1;
            }
        }
        if lost > 0 {
            tracing::error!(
                files = lost,
                "this client was away for so long that others took it for dead: what these files had not committed \
                 is lost, and their locks are; programs see EIO until they open them again"
            );
        }
    }

    /// The first lock that stands in the way, if any.
    pub async fn getlk(&self, ino: Ino, owner: u64, range: PlockRange) -> Outcome<Option<PlockRange>> {
        self.meta.get_plock(ino, owner, range).await
    }

    /// Locks or unlocks `[start, end]`. Writes made under a lock are visible to others before it is given up, and
    /// what others wrote under theirs is seen once it is taken: that is what makes appending under a lock work
    /// between mounts.
    #[expect(clippy::too_many_arguments, reason = "the arguments of fcntl")]
    pub async fn setlk(
        &self,
        ino: Ino,
        owner: u64,
        start: u64,
        end: u64,
        kind: LockKind,
        pid: u32,
        wait: bool,
    ) -> Outcome<()> {
        self.between(ino, kind, self.meta.set_plock(ino, owner, kind, start, end, pid, wait)).await
    }

    /// Locks or unlocks the whole file for one open file, which has this handle and for the kernel this owner. The
    /// other promises are those of `setlk`.
    pub async fn flock(&self, ino: Ino, handle: Handle, owner: u64, kind: LockKind) -> Outcome<()> {
        // As the peer makes the owner that is stored.
        self.between(ino, kind, self.meta.flock(ino, owner ^ handle.0, kind, false)).await
    }

    /// What is written is stored before a lock is given up or shared with readers, and what is known is renewed once one
    /// is taken.
    async fn between(&self, ino: Ino, kind: LockKind, lock: impl Future<Output = Outcome<()>>) -> Outcome<()> {
        let file = self.files.get(ino);
        if let (Some(file), LockKind::Unlock | LockKind::Read) = (&file, kind) {
            self.flush_file(file).await?;
        }
        lock.await?;
        if let (Some(file), LockKind::Read | LockKind::Write) = (&file, kind) {
            // An answer that was long on its way, to a client that stood still, may be older than what others have
            // written since they took it for dead.
            for _ in 0..LOOKS_MAX {
                let begun = Instant::now();
                self.look_again(file).await?;
                if begun.elapsed() < LOOK_MAX {
                    break;
                }
            }
        }
        Ok(())
    }
}
