//! The trash: hourly directories below the trash root, the names of what lies in them, and how many links a node
//! shows that has names there (`spec/metadata.md` 1.1, 7.5).
//!
//! The stored link count includes entries in the trash. What a program sees is the links outside: a file it has open
//! and has removed shows none. What is reached through `.trash` itself shows at least one.

use super::engine::Change;
use super::record::{DirStat, Key, Record};
use super::txn::{AttrOf, DentryOf, LoadSet, Operation, Settled, Tx, Watches};
use super::{Meta, outside};
use crate::base::name::NAME_BYTES_MAX;
use crate::base::{Attr, Fault, Ino, Kind, Name, Outcome};
use crate::meta::record::Counter;
use parking_lot::Mutex;

/// The name under the root that clients resolve to the trash root; it is stored nowhere.
pub const TRASH_NAME: &[u8] = b".trash";

const HOUR_SECONDS: i64 = 3600;

/// `.trash` in the root is nobody's to make, move or remove.
pub(crate) fn protected(parent: Ino, name: &Name) -> bool {
    parent == Ino::ROOT && name.as_bytes() == TRASH_NAME
}

/// Name of the hourly directory that holds what was removed at this time (UTC).
fn hour_name(seconds: i64) -> Outcome<Name> {
    let time = jiff::Timestamp::from_second(seconds)
        .map_err(|error| Fault::internal("name an hourly trash directory").with("seconds", seconds).source(error))?;
    Ok(Name::stored(time.strftime("%Y-%m-%d-%H").to_string().into_bytes()))
}

/// The beginning of the hour that a directory of the trash root stands for; `None` for any other name.
pub(crate) fn hour_start(name: &Name) -> Option<i64> {
    let text = std::str::from_utf8(name.as_bytes()).ok()?;
    let mut parts = text.split('-').map(|part| part.parse::<i16>().ok());
    let (year, month, day, hour) = (parts.next()??, parts.next()??, parts.next()??, parts.next()??);
    if parts.next().is_some() {
        return None;
    }
    let (month, day, hour) = (month.try_into().ok()?, day.try_into().ok()?, hour.try_into().ok()?);
    let start = jiff::civil::DateTime::new(year, month, day, hour, 0, 0, 0).ok()?;
    Some(jiff::tz::Offset::UTC.to_timestamp(start).ok()?.as_second())
}

/// Where a removed entry goes in the trash.
pub(crate) struct Spot {
    pub hourly: Ino,
    pub name: Name,
    /// There is such an entry already.
    pub taken: bool,
}

/// The wish for a spot; answered with `None` when the hourly directory is no more.
pub(crate) struct SpotOf {
    hourly: Ino,
    name: Name,
}

impl SpotOf {
    /// `None` when there is no trash to go to.
    pub fn new(hourly: Option<Ino>, parent: Ino, ino: Ino, name: &Name) -> Option<SpotOf> {
        hourly.map(|hourly| {
            let mut bytes = format!("{parent}-{ino}-").into_bytes();
            bytes.extend(name.as_bytes());
            bytes.truncate(NAME_BYTES_MAX);
            SpotOf { hourly, name: Name::stored(bytes) }
        })
    }
}

impl LoadSet for SpotOf {
    type Out = Option<Spot>;

    fn keys(&self, out: &mut Vec<Key>) {
        AttrOf(self.hourly).keys(out);
        DentryOf(self.hourly, &self.name).keys(out);
    }

    fn answer(self, records: &mut std::vec::IntoIter<Option<Record>>, watches: &mut Watches) -> Outcome<Option<Spot>> {
        let hourly = LoadSet::answer(AttrOf(self.hourly), records, watches)?.into_option();
        let taken = LoadSet::answer(DentryOf(self.hourly, &self.name), records, watches)?.is_some();
        // Looking at the kind guards that the directory is still there at the commit.
        Ok(hourly.filter(|dir| dir.kind() == Kind::Directory).map(|_| Spot {
            hourly: self.hourly,
            name: self.name,
            taken,
        }))
    }
}

/// The hourly directory was purged while a removal still relied on it.
pub(crate) struct Vanished;

/// From the answer of an optional `SpotOf`: no trash, a spot, or a directory that is no more.
pub(crate) fn spot(loaded: Option<Option<Spot>>) -> Result<Option<Spot>, Vanished> {
    match loaded {
        None => Ok(None),
        Some(Some(spot)) => Ok(Some(spot)),
        Some(None) => Err(Vanished),
    }
}

/// How many of a node's names lie in the trash, from its link parents.
pub(crate) fn links_in(parents: &[(Ino, i64)]) -> u32 {
    let counts = parents.iter().filter(|(parent, _)| parent.is_hourly()).map(|(_, count)| (*count).max(0));
    counts.fold(0u32, |links, count| links.saturating_add(u32::try_from(count).unwrap_or(u32::MAX)))
}

/// The hourly directory this client used last.
#[derive(Default)]
pub(crate) struct TrashCache {
    /// (hours since the epoch, directory)
    current: Mutex<Option<(i64, Ino)>>,
    /// One search at a time; the others wait for it.
    searching: tokio::sync::Mutex<()>,
}

/// Finds the directory of an hour, or makes it under a number allocated before.
struct Hourly {
    name: Name,
    fresh: Option<Ino>,
}

impl Operation for Hourly {
    const NAME: &'static str = "trash_dir";
    /// `None`: there is none, and no number to make it with.
    type Output = Option<Ino>;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Option<Ino>> {
        let (root, dentry) = tx.load((AttrOf(Ino::TRASH), DentryOf(Ino::TRASH, &self.name))).await?;
        if let Some(dentry) = dentry {
            if tx.load(AttrOf(dentry.ino)).await?.into_option().is_some() {
                return Ok(Some(dentry.ino));
            }
            // An entry without a node: damage, repaired by making the node.
            self.make(tx, dentry.ino);
            return Ok(Some(dentry.ino));
        }
        let Some(fresh) = self.fresh else { return Ok(None) };
        if root.into_option().is_none() {
            // The trash was switched on by a client that does not make its root at once.
            tx.put_attr(Ino::TRASH, &Attr { parent: Ino::ROOT, ..directory(tx) });
        }
        tx.put_dentry(Ino::TRASH, &self.name, fresh, Kind::Directory);
        self.make(tx, fresh);
        Ok(Some(fresh))
    }

    /// Whoever made it: the directory is there or not.
    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Option<Ino>>> {
        Ok(match tx.load(DentryOf(Ino::TRASH, &self.name)).await? {
            Some(dentry) => Settled::Applied(Some(dentry.ino)),
            None => Settled::NotApplied,
        })
    }
}

impl Hourly {
    /// The trash root's own attributes stay as they are.
    fn make(&self, tx: &mut Tx<'_>, ino: Ino) {
        tx.put_attr(ino, &directory(tx));
        tx.change(Change::Put(Key::DirStat(ino), Record::DirStat(DirStat::default())));
        tx.add_dir_stat(Ino::TRASH, super::ops::rmdir::DIRECTORY_STAT);
        tx.add_usage(4096, 1);
    }
}

fn directory(tx: &Tx<'_>) -> Attr {
    let now = tx.now();
    Attr {
        flags: 0,
        kind: Kind::Directory,
        mode: 0o555,
        uid: 0,
        gid: 0,
        atime: now,
        mtime: now,
        ctime: now,
        nlink: 2,
        length: 4096,
        rdev: 0,
        parent: Ino::TRASH,
        access_acl: 0,
        default_acl: 0,
        tier: 0,
    }
}

impl Meta {
    /// The directory for what is removed in this hour; made when it is not there yet. From memory but for the first
    /// time in an hour.
    pub(crate) async fn trash_dir(&self) -> Outcome<Ino> {
        if let Some(ino) = self.cached_trash_dir() {
            return Ok(ino);
        }
        let _searching = self.trash.searching.lock().await;
        if let Some(ino) = self.cached_trash_dir() {
            return Ok(ino);
        }
        let hour = self.hour();
        let name = hour_name(hour * HOUR_SECONDS)?;
        let found = self.run(&Hourly { name: name.clone(), fresh: None }).await?;
        let ino = match found {
            Some(ino) => ino,
            None => {
                let number = outside(self.engine().allocate(Counter::NextTrash, 1).await)?;
                let fresh = Some(Ino(Ino::TRASH.0 + number));
                let made = self.run(&Hourly { name, fresh }).await?;
                made.ok_or_else(|| Fault::internal("make the hourly trash directory").with("hour", hour))?
            }
        };
        *self.trash.current.lock() = Some((hour, ino));
        Ok(ino)
    }

    /// As `trash_dir`, from memory only.
    pub(crate) fn cached_trash_dir(&self) -> Option<Ino> {
        let hour = self.hour();
        self.trash.current.lock().filter(|(known, _)| *known == hour).map(|(_, ino)| ino)
    }

    fn hour(&self) -> i64 {
        self.now().seconds.div_euclid(HOUR_SECONDS)
    }

    /// The cached hourly directory turned out to be gone.
    pub(crate) fn forget_trash_dir(&self) {
        *self.trash.current.lock() = None;
    }

    /// Attributes as a program sees them: links in the trash do not count. Costs a trip only for nodes with several
    /// links on volumes with a trash.
    pub async fn shown(&self, ino: Ino, attr: Attr) -> Outcome<Attr> {
        let links = if self.shows_by_parents(ino, &attr) {
            match self.read(&[Key::LinkParents(ino)]).await?.pop().flatten() {
                Some(Record::LinkParents(parents)) => links_in(&parents),
                _ => 0,
            }
        } else {
            0
        };
        Ok(self.shown_with(ino, attr, links))
    }

    /// The shown links depend on the link parents.
    pub(crate) fn shows_by_parents(&self, ino: Ino, attr: &Attr) -> bool {
        attr.parent == Ino::MANY
            && !attr.is_dir()
            && self.rules().trash_days > 0
            && (attr.nlink > 1 || (attr.nlink == 1 && self.is_open(ino)))
    }

    /// As `shown`, when it is known how many names lie in the trash (asked for only where `shows_by_parents`).
    pub(crate) fn shown_with(&self, ino: Ino, attr: Attr, in_trash: u32) -> Attr {
        if attr.is_dir() || attr.nlink == 0 {
            return attr;
        }
        let outside = if attr.parent.is_hourly() { 0 } else { attr.nlink.saturating_sub(in_trash) };
        // Without a handle there is only one way to it: through the trash.
        let least = u32::from(!self.is_open(ino));
        Attr { nlink: outside.max(least), ..attr }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn damaged_counts_of_links_are_only_many() {
        let many = [(Ino(Ino::TRASH.0 + 1), i64::MAX), (Ino(Ino::TRASH.0 + 2), 7), (Ino(Ino::TRASH.0 + 3), i64::MIN)];
        assert_eq!((links_in(&many), links_in(&many[1..]), links_in(&[(Ino(5), 9)])), (u32::MAX, 7, 0));
    }

    #[test]
    fn hours_have_names_and_names_have_hours() {
        let name = hour_name(1_795_953_600 + 59 * 60).unwrap();
        assert_eq!(name.as_bytes(), b"2026-11-29-12");
        assert_eq!(hour_start(&name), Some(1_795_953_600));
        for other in ["2026-11-29", "2026-11-29-12-1", "2026-13-29-12", "x", "2026-11-29-24"] {
            assert_eq!(hour_start(&Name::stored(other.as_bytes())), None, "{other}");
        }
    }

    #[test]
    fn trash_names_are_cut_to_a_name() {
        let long = Name::entry(&[b'n'; 255]).unwrap();
        let spot = SpotOf::new(Some(Ino(9)), Ino(1), Ino(22), &long).unwrap();
        assert_eq!(spot.name.as_bytes().len(), 255);
        assert!(spot.name.as_bytes().starts_with(b"1-22-nnn"));
        assert!(SpotOf::new(None, Ino(1), Ino(22), &long).is_none());
    }
}
