//! Mending what the tree checker found ([`super::check`]), one finding at a time (`spec/metadata.md` 11).
//!
//! Nothing that may be somebody's data is thrown away: what no directory leads to is put into `lost+found` in the root,
//! and data that belongs to no file is recorded as deleted, so that it takes the way of all deleted data. On a volume in
//! use a finding that went by is left alone: each is asked for once more ([`super::verify`]), and its mending is a
//! transaction with what it saw as its guard.
//!
//! Findings depend on each other: a directory that lost its node makes its parent's link count look wrong as well. So
//! they are mended in stages ([`stage`]), the structure first, then what is counted of it, and the caller checks anew
//! after each. What cannot be mended without a decision of the owner is said to be left.

use super::check::{Finding, raised};
use super::engine::Change;
use super::format::first_directory;
use super::ops::create::NewNode;
use super::record::{Dentry, Key, Record};
use super::session::DropLocks;
use super::txn::{
    AttrOf, ChunkOf, CounterOf, DentryOf, DirStatOf, LinkParentsOf, Operation, Peek, RecordOf, Seen, SessionOf,
    Settled, SustainedOf, TargetOf, Tx,
};
use super::{Caller, Meta, outside};
use crate::base::{
    Attr, AttrPatch, CHUNK_BYTES, ChunkIndex, Errno, FieldMask, Ino, Kind, Mode, Name, Outcome, Slice, Stop,
};
use std::collections::{HashMap, HashSet};

/// Where nodes go that no directory leads to.
const LOST_AND_FOUND: &[u8] = b"lost+found";
/// A directory without an entry is left alone for a day: one that is being cloned gets its entry when all of it is there
/// (`spec/metadata.md` 6). So is a file without links, which somebody may be removing.
const ORPHAN_AGE_SECONDS: i64 = 86_400;
/// A rebuilt file shows its bytes to the superuser until somebody knows whose it was.
const REBUILT_FILE_MODE: Mode = 0o600;
/// Longer than any path; a walk towards the root ends here in a damaged tree.
const ANCESTORS_MAX: usize = 4096;

/// Nothing of a volume is mended while a part of it cannot be read.
pub const UNREADABLE: &str = "what it says is not known, and the rest cannot be judged without it; bring the record back \
                              from a backup of the metadata, or remove it there by hand while no client is at work, \
                              and repair the volume then";

/// It is made for the first finding that asks for it with this answer.
const NO_HOME: Mended = Mended::Left("there is no lost+found");

/// What became of a finding.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Mended {
    /// What was done.
    Done(String),
    /// It no longer holds.
    Gone,
    /// Why nothing was done.
    Left(&'static str),
}

/// Whether a node without an entry may be nobody's fault; `ctime` and `now` in seconds.
pub fn may_be_in_the_making(kind: Kind, nlink: u32, ctime: i64, now: i64) -> bool {
    (kind == Kind::Directory || nlink == 0) && ctime > now - ORPHAN_AGE_SECONDS
}

/// When a finding is mended: a later stage is worth judging only when the earlier ones have nothing left to do.
pub fn stage(finding: &Finding) -> u8 {
    match finding {
        Finding::DanglingDentry { .. }
        | Finding::DentryInMissing { .. }
        | Finding::DentryInNonDirectory { .. }
        | Finding::WrongKind { .. }
        | Finding::Orphan { .. }
        | Finding::Cycle { .. }
        | Finding::DeletedButAlive { .. }
        | Finding::LostChunk { .. }
        | Finding::SustainedMissing { .. }
        // What is repaired may need numbers.
        | Finding::LowCounter { .. } => 0,
        Finding::WrongParent { .. } => 1,
        Finding::WrongLinks { .. }
        | Finding::WrongLinkParent { .. }
        | Finding::WrongReferences { .. }
        | Finding::LostSlice { .. }
        | Finding::BadSlice { .. }
        | Finding::LostXattrs { .. }
        | Finding::LostLinkParents { .. }
        | Finding::LockOfNobody { .. }
        | Finding::MissingAclRule { .. }
        | Finding::MissingTarget { .. } => 2,
        Finding::WrongDirStat { .. } | Finding::WrongCounter { .. } | Finding::LostDirStat { .. } => 3,
        // Before all others, and nothing is done about it.
        Finding::Unreadable { .. } => 0,
    }
}

/// One finding to mend, with what had to be found out outside the transaction.
struct Mend<'a> {
    finding: &'a Finding,
    dir_mode: Mode,
    /// The last chunk of a node that is missing.
    last_chunk: Option<ChunkIndex>,
    /// Made when it is needed.
    lost_and_found: Option<Ino>,
    /// The names of the node in the directory that it says is its parent.
    names: Vec<Name>,
    /// Its name in the directory where it was found.
    found_as: Option<Name>,
    /// The node has entries in several directories.
    scattered: bool,
}

impl Operation for Mend<'_> {
    const NAME: &'static str = "mend";
    type Output = Mended;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Mended> {
        match self.finding {
            Finding::DanglingDentry { parent, name, ino } => self.rebuild(tx, *parent, name, *ino).await,
            Finding::DentryInMissing { parent, .. } => self.rebuild_lost_directory(tx, *parent).await,
            Finding::DentryInNonDirectory { parent, name, ino } => self.take_out(tx, *parent, name, *ino).await,
            Finding::WrongKind { parent, name, ino, .. } => wrong_kind(tx, *parent, name, *ino).await,
            Finding::Orphan { ino, .. } => self.adopt(tx, *ino).await,
            Finding::Cycle { ino } => self.cut(tx, *ino).await,
            Finding::WrongParent { ino, stored, found } => self.wrong_parent(tx, *ino, *stored, *found).await,
            Finding::WrongLinks { ino, stored, counted, .. } => {
                let Some(node) = there(tx, *ino).await?.filter(|node| node.nlink() == *stored) else {
                    return Ok(Mended::Gone);
                };
                tx.patch(node.ino(), AttrPatch::new().add_nlink(counted.wrapping_sub(*stored) as i32));
                Ok(Mended::Done(format!("{ino} has {counted} links now")))
            }
            Finding::WrongLinkParent { ino, parent, stored, counted } => {
                let parents = tx.load(LinkParentsOf(*ino)).await?;
                let now = parents.iter().find(|(dir, _)| dir == parent).map_or(0, |(_, count)| *count);
                // Counts below zero count as none.
                if now.max(0) != *stored {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::AddLinkParent { ino: *ino, parent: *parent, delta: counted - now });
                Ok(Mended::Done(format!("{ino} is counted {counted} times in {parent} now")))
            }
            Finding::WrongDirStat { dir, stored, counted } => {
                if tx.load(DirStatOf(*dir)).await? != Some(*stored) {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::Put(Key::DirStat(*dir), Record::DirStat(*counted)));
                Ok(Mended::Done(format!("statistics of directory {dir} are {counted:?} now")))
            }
            Finding::WrongCounter { counter, stored, counted } => {
                if tx.load(CounterOf(*counter)).await? != *stored {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::AddCounter(*counter, counted - stored));
                Ok(Mended::Done(format!("{counter:?} is {counted} now")))
            }
            Finding::DeletedButAlive { ino, length } => {
                let record = tx.load(RecordOf(Key::DeletedFile(*ino, *length))).await?;
                if there(tx, *ino).await?.is_none() || record.is_none() {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::Delete(Key::DeletedFile(*ino, *length)));
                Ok(Mended::Done(format!("{ino} is no longer recorded as deleted")))
            }
            Finding::LostChunk { ino, index } => self.lost_chunk(tx, *ino, *index).await,
            Finding::WrongReferences { id, size, stored, counted } => {
                let key = Key::SliceRef(*id, *size);
                // Without a record a slice has one reference.
                let now = match tx.load(RecordOf(key.clone())).await? {
                    Some(Record::Number(references)) => references,
                    _ => 1,
                };
                if now != *stored {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::Put(key, Record::Number(*counted)));
                Ok(Mended::Done(format!("slice {id} is counted {counted} times now")))
            }
            Finding::LostSlice { id, size, stored } => {
                let key = Key::SliceRef(*id, *size);
                if tx.load(RecordOf(key.clone())).await? != Some(Record::Number(*stored)) {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::Put(key, Record::Number(0)));
                Ok(Mended::Done(format!("slice {id} waits to be removed now")))
            }
            Finding::LostXattrs { ino } => self.leftover(tx, *ino, Key::Xattrs(*ino)).await,
            Finding::LostLinkParents { ino } => self.leftover(tx, *ino, Key::LinkParents(*ino)).await,
            Finding::LostDirStat { dir } => self.leftover(tx, *dir, Key::DirStat(*dir)).await,
            Finding::SustainedMissing { session, ino } => {
                let (node, sustained) = tx.load((AttrOf(*ino), SustainedOf(*session, *ino))).await?;
                if node.into_option().is_some() || sustained.is_none() {
                    return Ok(Mended::Gone);
                }
                tx.change(Change::Delete(Key::Sustained(*session, *ino)));
                Ok(Mended::Done(format!("session {session} no longer holds {ino}")))
            }
            Finding::LowCounter { counter, used } => {
                let last = tx.load(CounterOf(*counter)).await?;
                if last >= *used {
                    return Ok(Mended::Gone);
                }
                let to = raised(*counter, *used);
                tx.change(Change::AddCounter(*counter, to - last));
                Ok(Mended::Done(format!("{counter:?} is {to} now")))
            }
            Finding::LockOfNobody { session, ino, sort } => {
                if tx.load(SessionOf(*session)).await?.is_some() {
                    return Ok(Mended::Gone);
                }
                DropLocks { session: *session, key: sort.key(*ino) }.run(tx).await?;
                Ok(Mended::Done(format!("session {session} no longer holds a lock of {ino}")))
            }
            Finding::MissingAclRule { .. } => {
                Ok(Mended::Left("what it allowed is not known; set the ACLs of such nodes anew, or remove them"))
            }
            Finding::Unreadable { .. } => Ok(Mended::Left(UNREADABLE)),
            Finding::BadSlice { .. } => Ok(Mended::Left("the bytes it stood for are not known")),
            Finding::MissingTarget { .. } => {
                Ok(Mended::Left("its target is not known; remove the link and make it anew"))
            }
        }
    }

    /// Each mending looks whether its finding still holds, so it may be run again.
    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<Mended>> {
        Ok(Settled::NotApplied)
    }
}

async fn there(tx: &mut Tx<'_>, ino: Ino) -> Outcome<Option<Seen>> {
    Ok(tx.load(AttrOf(ino)).await?.into_option())
}

/// The name of a node in `lost+found`.
fn found_name(ino: Ino) -> Name {
    Name::stored(format!("#{ino}").into_bytes())
}

async fn wrong_kind(tx: &mut Tx<'_>, parent: Ino, name: &Name, ino: Ino) -> Outcome<Mended> {
    let (dentry, node) = tx.load((DentryOf(parent, name), AttrOf(ino))).await?;
    match (dentry, node.into_option()) {
        (Some(dentry), Some(node)) if dentry.ino == ino && dentry.kind != node.kind() => {
            tx.put_dentry(parent, name, ino, node.kind());
            Ok(Mended::Done(format!("entry {name} of {parent} says {:?} now", node.kind())))
        }
        _ => Ok(Mended::Gone),
    }
}

impl Mend<'_> {
    /// The node that an entry names, made anew from what is left of it.
    async fn rebuild(&self, tx: &mut Tx<'_>, parent: Ino, name: &Name, ino: Ino) -> Outcome<Mended> {
        let chunk = self.last_chunk.map(|index| ChunkOf(ino, index));
        let (dentry, node, target, chunk) =
            tx.load((DentryOf(parent, name), AttrOf(ino), TargetOf(ino), chunk)).await?;
        let Some(dentry) = dentry.filter(|dentry| dentry.ino == ino) else { return Ok(Mended::Gone) };
        if node.into_option().is_some() {
            return Ok(Mended::Gone);
        }
        let fresh = Attr { parent, nlink: 1, kind: dentry.kind, ..first_directory(REBUILT_FILE_MODE, tx.now()) };
        match (dentry.kind, target, chunk) {
            (Kind::Directory, ..) => {
                tx.put_attr(ino, &Attr { parent, ..first_directory(self.dir_mode, tx.now()) });
                Ok(Mended::Done(format!("directory {ino} ({name} of {parent}) has a node again")))
            }
            (Kind::Symlink, Some(target), _) => {
                tx.put_attr(ino, &Attr { mode: 0o777, length: target.len() as u64, ..fresh });
                Ok(Mended::Done(format!("symlink {ino} ({name} of {parent}) has a node again")))
            }
            (Kind::File, _, Some(slices)) => {
                let index = self.last_chunk.map_or(0, |index| u64::from(index.0));
                let length = index * CHUNK_BYTES + slices.iter().map(Slice::end).max().unwrap_or(0);
                tx.put_attr(ino, &Attr { length, ..fresh });
                let whose = format!("file {ino} ({name} of {parent})");
                Ok(Mended::Done(format!("{whose} has a node again, with the {length} bytes that were found of it")))
            }
            _ => {
                tx.delete_dentry(parent, name);
                Ok(Mended::Done(format!("entry {name} of {parent} is removed: nothing is left of {ino}")))
            }
        }
    }

    /// A directory that only its entries tell of.
    async fn rebuild_lost_directory(&self, tx: &mut Tx<'_>, ino: Ino) -> Outcome<Mended> {
        if ino == Ino::ROOT {
            if tx.load(AttrOf(ino)).await?.into_option().is_some() {
                return Ok(Mended::Gone);
            }
            tx.put_attr(ino, &Attr { parent: ino, ..first_directory(self.dir_mode, tx.now()) });
            return Ok(Mended::Done("the root directory has a node again".to_owned()));
        }
        let Some(home) = self.lost_and_found else { return Ok(NO_HOME) };
        let name = found_name(ino);
        let (node, taken) = tx.load((AttrOf(ino), DentryOf(home, &name))).await?;
        if node.into_option().is_some() {
            return Ok(Mended::Gone);
        }
        if taken.is_some_and(|taken| taken.ino != ino) {
            return Ok(Mended::Left("its name in lost+found is taken"));
        }
        tx.put_attr(ino, &Attr { parent: home, ..first_directory(self.dir_mode, tx.now()) });
        tx.put_dentry(home, &name, ino, Kind::Directory);
        Ok(Mended::Done(format!("directory {ino} is lost+found/{name} now")))
    }

    /// An entry of what is no directory: the node goes to `lost+found`.
    async fn take_out(&self, tx: &mut Tx<'_>, parent: Ino, name: &Name, ino: Ino) -> Outcome<Mended> {
        let (dir, dentry) = tx.load((AttrOf(parent), DentryOf(parent, name))).await?;
        let no_directory = dir.into_option().is_some_and(|dir| dir.kind() != Kind::Directory);
        if !no_directory || dentry.is_none_or(|dentry| dentry.ino != ino) {
            return Ok(Mended::Gone);
        }
        let Some(node) = there(tx, ino).await? else {
            tx.delete_dentry(parent, name);
            return Ok(Mended::Done(format!("entry {name} of {parent} is removed: there is no {ino}")));
        };
        let mended = self.bring_home(tx, &node).await?;
        if matches!(mended, Mended::Done(_)) {
            tx.delete_dentry(parent, name);
            if node.parent() == Ino::MANY {
                tx.change(Change::AddLinkParent { ino, parent, delta: -1 });
            }
        }
        Ok(mended)
    }

    /// A node without an entry. Without links it is a deleted file that nobody holds open any more.
    async fn adopt(&self, tx: &mut Tx<'_>, ino: Ino) -> Outcome<Mended> {
        let Some(node) = there(tx, ino).await? else { return Ok(Mended::Gone) };
        if may_be_in_the_making(node.kind(), node.nlink(), node.ctime().seconds, tx.now().seconds) {
            return Ok(Mended::Left("it changed within a day, so somebody may be making or removing it"));
        }
        if node.kind() == Kind::File && node.nlink() == 0 {
            let length = node.length();
            tx.delete_attr(ino);
            tx.change(Change::Put(Key::DeletedFile(ino, length), Record::Number(tx.now().seconds)));
            return Ok(Mended::Done(format!("file {ino} without links is recorded as deleted")));
        }
        self.bring_home(tx, &node).await
    }

    /// Gives the node an entry in `lost+found`.
    async fn bring_home(&self, tx: &mut Tx<'_>, node: &Seen) -> Outcome<Mended> {
        let Some(home) = self.lost_and_found else { return Ok(NO_HOME) };
        let (ino, name) = (node.ino(), found_name(node.ino()));
        if tx.load(DentryOf(home, &name)).await?.is_some() {
            return Ok(Mended::Left("its name in lost+found is taken"));
        }
        tx.put_dentry(home, &name, ino, node.kind());
        match node.parent() {
            Ino::MANY => tx.change(Change::AddLinkParent { ino, parent: home, delta: 1 }),
            _ => tx.patch(ino, AttrPatch::new().set_parent(home)),
        }
        Ok(Mended::Done(format!("{:?} {ino} is lost+found/{name} now", node.kind())))
    }

    /// One directory of a circle comes out of it.
    async fn cut(&self, tx: &mut Tx<'_>, ino: Ino) -> Outcome<Mended> {
        let Some(node) = there(tx, ino).await? else { return Ok(Mended::Gone) };
        node.saw(FieldMask::ALL);
        if self.lost_and_found.is_none() {
            return Ok(NO_HOME);
        }
        let parent = node.parent();
        for name in &self.names {
            if tx.load(DentryOf(parent, name)).await?.is_some_and(|dentry| dentry.ino == ino) {
                tx.delete_dentry(parent, name);
            }
        }
        self.bring_home(tx, &node).await
    }

    async fn wrong_parent(&self, tx: &mut Tx<'_>, ino: Ino, stored: Ino, found: Ino) -> Outcome<Mended> {
        let Some(found_as) = &self.found_as else { return Ok(Mended::Gone) };
        let here = self.names.first().map(|name| DentryOf(stored, name));
        let (node, there, here) = tx.load((AttrOf(ino), DentryOf(found, found_as), here)).await?;
        let Some(node) = node.into_option().filter(|node| node.parent() == stored) else { return Ok(Mended::Gone) };
        let leads = |entry: Option<Dentry>| entry.is_some_and(|dentry| dentry.ino == ino);
        if !leads(there) || (!self.names.is_empty() && !leads(here.flatten())) {
            return Ok(Mended::Gone);
        }
        if node.kind() == Kind::Directory {
            if !self.names.is_empty() || self.scattered {
                return Ok(Mended::Left("a directory with several entries; remove those that are not wanted"));
            }
        } else if !self.names.is_empty() || self.scattered {
            // The counts follow in the next stage.
            tx.patch(ino, AttrPatch::new().set_parent(Ino::MANY));
            return Ok(Mended::Done(format!("{ino} is known to have several parents now")));
        }
        tx.patch(ino, AttrPatch::new().set_parent(found));
        Ok(Mended::Done(format!("the parent of {ino} is {found} now")))
    }

    /// Data without a file is recorded as deleted, once for all chunks.
    async fn lost_chunk(&self, tx: &mut Tx<'_>, ino: Ino, index: ChunkIndex) -> Outcome<Mended> {
        if self.last_chunk != Some(index) {
            return Ok(Mended::Gone);
        }
        let (node, slices) = tx.load((AttrOf(ino), ChunkOf(ino, index))).await?;
        if node.into_option().is_some() || slices.is_empty() {
            return Ok(Mended::Gone);
        }
        let length = u64::from(index.0) * CHUNK_BYTES + slices.iter().map(Slice::end).max().unwrap_or(0);
        tx.change(Change::Put(Key::DeletedFile(ino, length), Record::Number(tx.now().seconds)));
        Ok(Mended::Done(format!("the data of {ino} is recorded as deleted")))
    }

    /// A part of a node that is not there.
    async fn leftover(&self, tx: &mut Tx<'_>, ino: Ino, key: Key) -> Outcome<Mended> {
        let (node, part) = tx.load((AttrOf(ino), Peek(RecordOf(key.clone())))).await?;
        if node.into_option().is_some() || part.is_none() {
            return Ok(Mended::Gone);
        }
        tx.change(Change::Delete(key));
        Ok(Mended::Done(format!("what was left of {ino} is removed")))
    }
}

impl Meta {
    /// Mends the findings of the earliest stage among `findings`, and answers what became of each of them; those of
    /// later stages are not answered. `dir_mode` is for directories that are made anew.
    pub async fn mend(&self, findings: &[Finding], dir_mode: Mode) -> Outcome<Vec<(Finding, Mended)>> {
        self.writable()?;
        let Some(now) = findings.iter().map(stage).min() else { return Ok(Vec::new()) };
        let mut last_chunks: HashMap<Ino, ChunkIndex> = HashMap::new();
        let mut parents: HashMap<Ino, HashSet<Ino>> = HashMap::new();
        for finding in findings {
            match finding {
                Finding::LostChunk { ino, index } => {
                    let last = last_chunks.entry(*ino).or_insert(*index);
                    *last = (*last).max(*index);
                }
                Finding::WrongParent { ino, found, .. } => {
                    parents.entry(*ino).or_default().insert(*found);
                }
                _ => {}
            }
        }
        let mut due: Vec<&Finding> = findings.iter().filter(|finding| stage(finding) == now).collect();
        // Numbers come before what may be made with them, and a node that an entry names is made again before its parts
        // are looked at.
        due.sort_by_key(|finding| match finding {
            Finding::LowCounter { .. } => 0,
            Finding::DanglingDentry { .. } => 1,
            _ => 2,
        });
        // Nothing has a place before the root has.
        let is_of_root = |finding: &&Finding| matches!(finding, Finding::DentryInMissing { parent: Ino::ROOT, .. });
        if let Some(of_root) = due.iter().copied().find(is_of_root) {
            due = vec![of_root];
        }
        let mut done = Vec::with_capacity(due.len());
        let (mut home, mut cut) = (None, false);
        for finding in due {
            if !self.holds(finding).await? {
                done.push((finding.clone(), Mended::Gone));
                continue;
            }
            let circle;
            let mut mend = Mend {
                finding,
                dir_mode,
                last_chunk: None,
                lost_and_found: home,
                names: Vec::new(),
                found_as: None,
                scattered: false,
            };
            match finding {
                Finding::DanglingDentry { ino, .. } | Finding::LostChunk { ino, .. } => {
                    mend.last_chunk = last_chunks.get(ino).copied();
                }
                Finding::WrongParent { ino, stored, found } => {
                    mend.names = self.names_in(*stored, *ino, false).await?;
                    mend.found_as = self.names_in(*found, *ino, true).await?.into_iter().next();
                    mend.scattered = parents.get(ino).is_some_and(|parents| parents.len() > 1);
                }
                // One cut opens a circle; whether others are left shows the next check.
                Finding::Cycle { .. } if cut => continue,
                Finding::Cycle { ino } => {
                    let Some((ino, parent)) = self.circle_at(*ino).await? else {
                        done.push((finding.clone(), Mended::Gone));
                        continue;
                    };
                    cut = true;
                    mend.names = self.names_in(parent, ino, false).await?;
                    circle = Finding::Cycle { ino };
                    mend.finding = &circle;
                }
                _ => {}
            }
            let mut mended = self.run(&mend).await?;
            if mended == NO_HOME {
                home = Some(self.lost_and_found().await?);
                mend.lost_and_found = home;
                mended = self.run(&mend).await?;
            }
            done.push((finding.clone(), mended));
        }
        Ok(done)
    }

    /// The directory `lost+found` in the root, made when it is not there.
    async fn lost_and_found(&self) -> Outcome<Ino> {
        let (caller, name) = (Caller::root(), Name::stored(LOST_AND_FOUND));
        match self.lookup(&caller, Ino::ROOT, &name).await {
            Ok(entry) if entry.attr.is_dir() => return Ok(entry.ino),
            Ok(_) => return Err(Errno::ENOTDIR.into()),
            Err(Stop::Errno(Errno::ENOENT)) => {}
            Err(stop) => return Err(stop),
        }
        let node = NewNode { kind: Kind::Directory, mode: 0o700, umask: 0, rdev: 0, target: None };
        Ok(self.create(&caller, Ino::ROOT, &name, &node).await?.ino)
    }

    /// A directory on the circle that the walk up from `start` runs into, and its parent.
    pub(super) async fn circle_at(&self, start: Ino) -> Outcome<Option<(Ino, Ino)>> {
        let (mut met, mut ino) = (HashSet::new(), start);
        for _ in 0..ANCESTORS_MAX {
            let Some(Record::Attr(attr)) = outside(self.engine().read(&[Key::Attr(ino)]).await)?.pop().flatten() else {
                return Ok(None);
            };
            if !met.insert(ino) {
                return Ok(Some((ino, attr.parent)));
            }
            if attr.parent == Ino::ROOT || attr.parent.is_trash() {
                return Ok(None);
            }
            ino = attr.parent;
        }
        Ok(None)
    }
}

/// Statistics are best effort (`spec/metadata.md` 1.15): wrong ones do not make a volume broken.
pub fn is_statistic(finding: &Finding) -> bool {
    stage(finding) == 3
}

#[cfg(test)]
mod tests;
