//! Which files this client has open, and what becomes of those that lost their last name meanwhile
//! (`spec/metadata.md` 1.10, section 5).
//!
//! An unlink of the last name looks here: a file that is open is *sustained* (the node stays with no link and a record
//! under this session) and goes when its last handle is closed. Unlink and close may overlap: the unlink decides "it
//! is open", the last handle closes, and only then does the unlink commit. So whoever stored a sustained record says
//! so afterwards (`note_sustained`), under the same lock that counts handles; whichever of the two comes second
//! sees both facts and releases. A release that fails is tried again at each heartbeat, and the clean-up of the
//! session finds what is left.
//!
//! Only the handles of this client count; a file open in another client is not protected, as the format has it.

use super::Meta;
use super::engine::Change;
use super::ops::unlink::Removed;
use super::record::{Key, Record};
use super::txn::{AttrOf, Operation, Settled, SustainedOf, Tx};
use crate::base::{Ino, Kind, Outcome, SessionId};
use parking_lot::Mutex;
use std::collections::HashMap;

/// Enough that opens on many threads seldom meet.
const SHARDS: usize = 32;

/// The open files of this client, by inode. A lock is held for field updates only and no other is taken under it.
#[derive(Default)]
pub(super) struct OpenFiles([Mutex<HashMap<Ino, Open>>; SHARDS]);

#[derive(Default)]
struct Open {
    handles: usize,
    /// A sustained record of this session exists, or did not go when it should have.
    sustained: bool,
}

impl OpenFiles {
    fn shard(&self, ino: Ino) -> &Mutex<HashMap<Ino, Open>> {
        &self.0[ino.0 as usize % SHARDS]
    }

    fn open(&self, ino: Ino) {
        self.shard(ino).lock().entry(ino).or_default().handles += 1;
    }

    /// True when the last handle of a sustained file has gone: the caller releases it.
    fn close(&self, ino: Ino) -> bool {
        let mut files = self.shard(ino).lock();
        let Some(open) = files.get_mut(&ino) else { return false };
        open.handles = open.handles.saturating_sub(1);
        open.handles == 0 && files.remove(&ino).is_some_and(|open| open.sustained)
    }

    /// True when nothing is open any more: the caller releases.
    fn sustain(&self, ino: Ino) -> bool {
        let mut files = self.shard(ino).lock();
        match files.get_mut(&ino) {
            Some(open) if open.handles > 0 => {
                open.sustained = true;
                false
            }
            _ => {
                files.remove(&ino);
                true
            }
        }
    }

    fn keep_for_later(&self, ino: Ino) {
        self.shard(ino).lock().entry(ino).or_default().sustained = true;
    }

    /// Takes out what is sustained though nothing has it open.
    fn take_left_behind(&self) -> Vec<Ino> {
        let left_in = |shard: &Mutex<HashMap<Ino, Open>>| -> Vec<Ino> {
            shard.lock().extract_if(|_, open| open.handles == 0).map(|(ino, _)| ino).collect()
        };
        let mut left: Vec<Ino> = self.0.iter().flat_map(left_in).collect();
        left.sort();
        left
    }
}

/// Lets a sustained node go: node, usage and sustained record, in one commit. Answers the length of a file whose
/// data is to be removed now.
pub(super) struct Release {
    pub session: SessionId,
    pub ino: Ino,
}

impl Operation for Release {
    const NAME: &'static str = "release";
    type Output = Option<u64>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<u64>> {
        let (node, sustained) = tx.load((AttrOf(self.ino), SustainedOf(self.session, self.ino))).await?;
        if sustained.is_none() {
            return Ok(None);
        }
        tx.change(Change::Delete(Key::Sustained(self.session, self.ino)));
        // A node that got a name again (linkat) keeps living; one that is gone was released by somebody else.
        let Some(node) = node.into_option().filter(|node| node.nlink() == 0) else { return Ok(None) };
        let length = node.length();
        tx.delete_attr(self.ino);
        tx.change(Change::Put(Key::DeletedFile(self.ino, length), Record::Number(tx.now().seconds)));
        tx.add_usage(-(node.peek().space() as i64), -1);
        Ok(Some(length))
    }

    /// The length is gone with the node; the hourly job finds the data.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<u64>>> {
        Ok(match tx.load(SustainedOf(self.session, self.ino)).await? {
            None => Settled::Applied(None),
            Some(_) => Settled::NotApplied,
        })
    }
}

impl Meta {
    /// One more handle of the file is open here. Comes before the attributes are loaded for the open, so that
    /// an unlink from here that comes later sees it.
    pub fn open_file(&self, ino: Ino) {
        self.open.open(ino);
    }

    /// One handle fewer. A file without names goes with the last one.
    pub async fn close_file(&self, ino: Ino) -> Outcome<()> {
        if self.open.close(ino) { self.release(ino).await } else { Ok(()) }
    }

    /// A file was counted as open, and was not opened after all.
    pub async fn close_in_vain(&self, ino: Ino) {
        if let Err(stop) = self.close_file(ino).await {
            tracing::warn!(%ino, "file without names is not released yet: {stop}");
        }
    }

    /// Whether more than one handle of the file is open here.
    pub(super) fn is_open_twice(&self, ino: Ino) -> bool {
        self.open.shard(ino).lock().get(&ino).is_some_and(|open| open.handles > 1)
    }

    pub fn is_open(&self, ino: Ino) -> bool {
        self.open.shard(ino).lock().get(&ino).is_some_and(|open| open.handles > 0)
    }

    /// To be called after the commit of an operation that, seeing `is_open`, stored a sustained record: releases the
    /// file at once if its last handle was closed meanwhile, else when that happens.
    pub(crate) async fn note_sustained(&self, ino: Ino) -> Outcome<()> {
        if self.open.sustain(ino) { self.release(ino).await } else { Ok(()) }
    }

    /// What follows outside the commit for a node that lost a name: the data of a file that is gone is reclaimed, and
    /// one that is sustained is watched. The name is gone whatever happens here, so nothing here is an error.
    pub(crate) async fn after_removal(&self, removed: &Removed) {
        if removed.attr.kind != Kind::File || removed.attr.nlink > 0 {
            return;
        }
        if removed.freed {
            self.queue_deleted_file(removed.ino, removed.attr.length);
        } else if let Err(stop) = self.note_sustained(removed.ino).await {
            tracing::warn!(ino = %removed.ino, "file without names is not released yet: {stop}");
        }
    }

    async fn release(&self, ino: Ino) -> Outcome<()> {
        match self.run(&Release { session: self.session(), ino }).await {
            Ok(length) => {
                if let Some(length) = length {
                    self.queue_deleted_file(ino, length);
                }
                Ok(())
            }
            Err(stop) => {
                self.open.keep_for_later(ino);
                Err(stop)
            }
        }
    }

    /// Tries again what could not be released when it was closed.
    pub(super) async fn release_left_behind(&self) {
        for ino in self.open.take_left_behind() {
            if let Err(stop) = self.release(ino).await {
                tracing::warn!(%ino, "file without names is still not released: {stop}");
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::{AttrPatch, Errno, Name};
    use crate::meta::ops::rename::RenameMode;
    use crate::meta::record::Counter;
    use crate::meta::session::SessionInfo;
    use crate::meta::testing::{Sustain, file, volume};
    use crate::meta::txn::{AttrOf, SessionOf};
    use crate::meta::{Caller, Meta, outside};
    use std::time::Duration;

    async fn records(meta: &Meta, ino: Ino) -> (bool, bool, bool) {
        let keys = [Key::Attr(ino), Key::Sustained(meta.session(), ino), Key::DeletedFile(ino, 0)];
        let found = outside(meta.engine().read(&keys).await).unwrap();
        (found[0].is_some(), found[1].is_some(), found[2].is_some())
    }

    #[tokio::test]
    async fn the_last_close_releases_a_file_without_names() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        meta.open_file(ino);
        meta.open_file(ino);
        meta.run(&Sustain(ino, meta.session())).await.unwrap();
        meta.note_sustained(ino).await.unwrap();
        meta.close_file(ino).await.unwrap();
        assert_eq!(records(&meta, ino).await, (true, true, false), "one handle is left");
        meta.close_file(ino).await.unwrap();
        assert_eq!(records(&meta, ino).await, (false, false, true));
        assert!(!meta.is_open(ino));
        assert_eq!(meta.reclaim_waiting(), 1);
        let used = outside(meta.engine().read(&[Key::Counter(Counter::UsedSpace)]).await).unwrap();
        assert_eq!(used, [Some(Record::Number(0))]);
    }

    /// A name that others took away may be looked up in what is remembered here.
    #[tokio::test]
    async fn a_file_without_names_is_not_opened_anew() {
        let meta = volume().await;
        let (root, other) = (Caller::root(), Name::stored(*b"g"));
        let (single, several) = (file(&meta, "single").await, file(&meta, "several").await);
        meta.link(&root, several, Ino::ROOT, &other).await.unwrap();
        meta.unlink(&root, Ino::ROOT, &other, true).await.unwrap();
        let stranger = Caller { uid: 5, gid: 5, ..Caller::root() };
        for ino in [single, several] {
            meta.open_file(ino);
            meta.check_open(&root, ino, libc::O_RDONLY).await.unwrap();
            meta.run(&Sustain(ino, SessionId(77))).await.unwrap();
            for caller in [&root, &stranger] {
                let opened = meta.check_open(caller, ino, libc::O_RDONLY).await;
                assert_eq!(opened.map_err(|stop| stop.errno()), Err(Errno::ENOENT));
            }
            // By way of another handle, it is.
            meta.open_file(ino);
            meta.check_open(&root, ino, libc::O_RDONLY).await.unwrap();
        }
    }

    struct Forget(SessionId);

    impl Operation for Forget {
        const NAME: &'static str = "forget";
        type Output = ();

        async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
            tx.load(SessionOf(self.0)).await?;
            tx.change(Change::Delete(Key::Session(self.0)));
            Ok(())
        }
    }

    /// Nobody looks at the records of a session once it was cleaned.
    #[tokio::test]
    async fn a_session_that_is_gone_keeps_no_file() {
        for replaced in [false, true] {
            let meta = volume().await;
            meta.start_session(SessionInfo::default(), Duration::from_secs(12)).await.unwrap();
            let (ino, other) = (file(&meta, "f").await, file(&meta, "g").await);
            meta.open_file(ino);
            meta.run(&Forget(meta.session())).await.unwrap();
            let (root, name, new) = (Caller::root(), Name::stored(*b"f"), Name::stored(*b"g"));
            if replaced {
                meta.rename(&root, Ino::ROOT, &new, Ino::ROOT, &name, RenameMode::Replace).await.unwrap();
            } else {
                meta.unlink(&root, Ino::ROOT, &name, true).await.unwrap();
            }
            assert_eq!(records(&meta, ino).await, (false, false, true), "replaced {replaced}");
            assert_eq!(records(&meta, other).await, (true, false, false));
        }
    }

    #[tokio::test]
    async fn a_close_between_decision_and_commit_of_the_unlink_leaves_nothing_behind() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        meta.open_file(ino);
        assert!(meta.is_open(ino));
        meta.close_file(ino).await.unwrap();
        meta.run(&Sustain(ino, meta.session())).await.unwrap();
        meta.note_sustained(ino).await.unwrap();
        assert_eq!(records(&meta, ino).await, (false, false, true));
    }

    #[tokio::test]
    async fn a_file_that_got_a_name_again_outlives_its_handles() {
        let meta = volume().await;
        let ino = file(&meta, "f").await;
        meta.open_file(ino);
        meta.run(&Sustain(ino, meta.session())).await.unwrap();
        meta.note_sustained(ino).await.unwrap();
        struct Relink(Ino);
        impl Operation for Relink {
            const NAME: &'static str = "relink";
            type Output = ();
            async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
                tx.load(AttrOf(self.0)).await?.exists()?;
                tx.patch(self.0, AttrPatch::new().add_nlink(1));
                Ok(())
            }
        }
        meta.run(&Relink(ino)).await.unwrap();
        meta.close_file(ino).await.unwrap();
        assert_eq!(records(&meta, ino).await, (true, false, false));
    }
}
