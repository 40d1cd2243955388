//! The birth of a volume: the setting, the root and the trash root (`spec/metadata.md` 1.1, 2.4).

use super::engine::{Change, Engine};
use super::record::{DirStat, Key, Record};
use super::txn::{AttrOf, Operation, Peek, SettingOf, Tx};
use super::{Meta, outside};
use crate::base::{Attr, Ino, Kind, Mode, Outcome, Timestamp};
use bytes::Bytes;

struct Format {
    setting: Bytes,
    with_trash: bool,
    dir_stats: bool,
}

impl Operation for Format {
    const NAME: &'static str = "format";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        let (_, root, trash) = tx.load((Peek(SettingOf()), AttrOf(Ino::ROOT), AttrOf(Ino::TRASH))).await?;
        // Whole seconds, as the format asks of the first nodes.
        let now = Timestamp::new(tx.now().seconds, 0);
        if root.into_option().is_none() {
            tx.put_attr(Ino::ROOT, &first_directory(0o777, now));
            if self.dir_stats {
                // Changes are added to statistics that are there. The peer counts a directory without any when it
                // needs them first, and its check says that they are missing until then.
                tx.change(Change::Put(Key::DirStat(Ino::ROOT), Record::DirStat(DirStat::default())));
            }
        }
        if self.with_trash && trash.into_option().is_none() {
            tx.put_attr(Ino::TRASH, &first_directory(0o555, now));
        }
        tx.change(Change::Put(Key::Setting, Record::Bytes(self.setting.clone())));
        Ok(())
    }
}

/// The root or the trash root: its own parent is the root, and it is counted nowhere.
pub(crate) fn first_directory(mode: Mode, now: Timestamp) -> Attr {
    Attr {
        flags: 0,
        kind: Kind::Directory,
        mode,
        uid: 0,
        gid: 0,
        atime: now,
        mtime: now,
        ctime: now,
        nlink: 2,
        length: 4096,
        rdev: 0,
        parent: Ino::ROOT,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

impl Meta {
    /// Stores the volume's format document; on a new volume also makes the root, and with the trash on the trash
    /// root. What exists stays.
    pub async fn format(&self, setting: &[u8]) -> Outcome<()> {
        outside(self.engine().prepare().await)?;
        let rules = self.rules();
        let (with_trash, dir_stats) = (rules.trash_days > 0, rules.dir_stats);
        self.run(&Format { setting: Bytes::copy_from_slice(setting), with_trash, dir_stats }).await
    }

    /// The format document as stored; `None` when there is no volume here.
    pub async fn setting(&self) -> Outcome<Option<Bytes>> {
        stored_setting(&**self.engine()).await
    }
}

/// The format document that an engine holds; `None` when there is no volume.
pub async fn stored_setting(engine: &dyn Engine) -> Outcome<Option<Bytes>> {
    match outside(engine.read(&[Key::Setting]).await)?.pop().flatten() {
        Some(Record::Bytes(setting)) => Ok(Some(setting)),
        _ => Ok(None),
    }
}
