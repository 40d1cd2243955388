//! POSIX record locks of a mount: the owner is the kernel's, the lock itself is the volume's.
//!
//! flock(2) stays local to the mount: the FUSE transport of today cannot tell it from fcntl(2) locks, so the kernel is
//! not asked to send it here.

use super::Vfs;
use crate::base::{Ino, Outcome};
use crate::meta::ops::plock::LockKind;
use crate::meta::record::PlockRange;

impl Vfs {
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
        let file = self.files.get(ino);
        if let (Some(file), LockKind::Unlock) = (&file, kind) {
            self.flush_file(file).await?;
        }
        self.meta.set_plock(ino, owner, kind, start, end, pid, wait).await?;
        if let (Some(file), LockKind::Read | LockKind::Write) = (&file, kind) {
            let version = file.version();
            let mut attr = self.meta.getattr(ino).await?;
            file.observe(&mut attr, version);
        }
        Ok(())
    }
}
