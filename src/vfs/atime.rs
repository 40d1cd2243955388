//! Access times (`spec/metadata.md` 6, `--atime-mode`): opening for reading, reading, listing a directory and following
//! a symlink move them when the mount's mode says that it is time. A reader neither waits for the record of it, but at
//! open, nor fails with it.

use super::Vfs;
use super::handle::FileHandle;
use crate::base::{Attr, Ino, Stop, Timestamp};
use crate::config::client::AtimeMode;
use parking_lot::Mutex;
use std::sync::Arc;
use std::time::Duration;

/// A handle that is read looks this often whether the time is to be moved.
const LOOK_EVERY: Duration = Duration::from_secs(1);

/// When a handle looked last.
#[derive(Default)]
pub struct LastLook(Mutex<Timestamp>);

impl LastLook {
    fn is_due(&self, now: Timestamp) -> bool {
        let mut last = self.0.lock();
        let due = now.since(*last) > LOOK_EVERY;
        if due {
            *last = now;
        }
        due
    }
}

/// Whether a node with these attributes, read now, wants its access time moved.
fn is_due(mode: AtimeMode, attr: &Attr, now: Timestamp) -> bool {
    let age = now.since(attr.atime);
    let relative = attr.mtime > attr.atime || attr.ctime > attr.atime || age > Duration::from_secs(24 * 60 * 60);
    match mode {
        AtimeMode::Never => false,
        AtimeMode::Relative => relative,
        AtimeMode::Strict => relative || age > Duration::from_secs(1),
    }
}

impl Vfs {
    pub(super) fn keeps_atime(&self) -> bool {
        self.settings.atime != AtimeMode::Never && !self.settings.read_only
    }

    /// A node with these attributes is being read.
    pub(super) async fn accessed(&self, ino: Ino, attr: &mut Attr) {
        let now = self.meta.now();
        if !self.keeps_atime() || !is_due(self.settings.atime, attr, now) {
            return;
        }
        match self.meta.touch_atime(ino, now).await {
            Ok(touched) => attr.atime = touched.atime,
            // Gone meanwhile.
            Err(Stop::Errno(_)) => {}
            Err(Stop::Fault(fault)) => tracing::warn!(%ino, "the access time stays as it was: {fault}"),
        }
    }

    /// As `accessed`, for a reader that has no attributes at hand and does not wait.
    pub(super) fn accessed_unseen(&self, ino: Ino) {
        if !self.keeps_atime() {
            return;
        }
        let Some(vfs) = self.me.upgrade() else { return };
        self.spawn(async move {
            if let Ok(mut attr) = vfs.meta.getattr(ino).await {
                vfs.accessed(ino, &mut attr).await;
            }
        });
    }

    /// As `accessed_unseen`, once in a while for all the reads of a handle.
    pub(super) fn accessed_through(&self, handle: &Arc<FileHandle>) {
        if self.keeps_atime() && handle.last_look.is_due(self.meta.now()) {
            self.accessed_unseen(handle.ino);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Kind;
    use crate::meta::ops::lookup::stub;

    #[test]
    fn times_move_when_the_mode_says_so() {
        let at = |seconds: i64| Timestamp::new(1_700_000_000 + seconds, 0);
        let touched = Attr { atime: at(10), ..stub(Kind::File) };
        let written = Attr { mtime: at(20), ..touched };
        assert!(is_due(AtimeMode::Relative, &written, at(21)), "changed since it was read");
        assert!(!is_due(AtimeMode::Relative, &touched, at(1000)));
        assert!(is_due(AtimeMode::Relative, &touched, at(90_000)));
        assert!(is_due(AtimeMode::Strict, &touched, at(12)) && !is_due(AtimeMode::Strict, &touched, at(11)));
        assert!(!is_due(AtimeMode::Never, &written, at(90_000)));
    }
}
