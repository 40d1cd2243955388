//! Names that one process alone changes: what each must be is known, but for operations without an answer, which have
//! happened or not, whole.

use super::model::CELL_BYTES;
use super::process::{Failed, Process, call, flat};
use super::world::{IN_FLIGHT_MAX, Up, World};
use crate::base::{Errno, Ino, Kind, Name, Outcome};
use crate::meta::Caller;
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::create::NewNode;
use crate::meta::ops::rename::RenameMode;
use crate::vfs::Found;
use bytes::Bytes;
use rand::Rng;
use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

/// Names in one directory.
const NAMES: u32 = 5;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Node {
    /// `None`: made by an operation that did not say so.
    ino: Option<Ino>,
    kind: Kind,
}

type Place = (Ino, String);
type Names = BTreeMap<Place, Option<Node>>;

/// An operation whose outcome is not known.
struct Doubt {
    what: String,
    before: Names,
    after: Names,
    /// It may still be on its way.
    gone: bool,
}

pub struct Tree {
    pub dir: Ino,
    names: BTreeMap<Place, Node>,
    doubt: Option<Doubt>,
    /// What an attribute may be: one value, or more after operations without an answer.
    modes: BTreeMap<Ino, BTreeSet<u16>>,
    xattrs: BTreeMap<Ino, BTreeSet<Option<u32>>>,
}

impl Tree {
    pub fn new(dir: Ino) -> Tree {
        Tree { dir, names: BTreeMap::new(), doubt: None, modes: BTreeMap::new(), xattrs: BTreeMap::new() }
    }

    fn get(&self, place: &Place) -> Option<Node> {
        self.names.get(place).copied()
    }

    fn links(&self, ino: Ino) -> usize {
        self.names.values().filter(|node| node.ino == Some(ino)).count()
    }

    fn has_entries(&self, dir: Option<Ino>) -> bool {
        self.names.keys().any(|(parent, _)| Some(*parent) == dir)
    }

    fn directories(&self) -> Vec<Ino> {
        let made = self.names.values().filter(|node| node.kind == Kind::Directory).filter_map(|node| node.ino);
        std::iter::once(self.dir).chain(made).collect()
    }

    fn set(&mut self, names: Names) {
        for (place, node) in names {
            match node {
                Some(node) => drop(self.names.insert(place, node)),
                None => drop(self.names.remove(&place)),
            }
        }
    }

    /// Compares all names with what a client sees.
    pub async fn verify(&self, world: &World, up: &Up) {
        for dir in self.directories() {
            let found = list(world, up, dir).await.unwrap_or_else(|failed| panic!("list {dir}: {failed}"));
            let expected: BTreeSet<&str> =
                self.names.keys().filter(|(parent, _)| *parent == dir).map(|(_, name)| name.as_str()).collect();
            let found: BTreeSet<&str> = found.iter().map(String::as_str).collect();
            assert_eq!(found, expected, "entries of {dir}");
        }
        for (place, node) in &self.names {
            let found = look(world, up, place).await.unwrap_or_else(|failed| panic!("look up {place:?}: {failed}"));
            let (ino, kind, nlink) = found.unwrap_or_else(|| panic!("{place:?} is not there"));
            assert_eq!((Some(ino), kind), (node.ino, node.kind), "{place:?}");
            if kind != Kind::Directory {
                assert_eq!(nlink as usize, self.links(ino), "links of {place:?}");
            }
        }
    }

    /// The doubtful operation has happened, or it has not: nothing between.
    pub async fn settle(&mut self, world: &World, up: &Up, wait: bool) -> Result<(), Failed> {
        let Some(doubt) = &mut self.doubt else { return Ok(()) };
        if doubt.gone && wait {
            tokio::time::sleep(IN_FLIGHT_MAX).await;
            doubt.gone = false;
        }
        let mut found = BTreeMap::new();
        for place in doubt.before.keys() {
            found.insert(place.clone(), look(world, up, place).await?);
        }
        let known: BTreeSet<Ino> = self.names.values().filter_map(|node| node.ino).collect();
        let fits = |names: &Names| {
            names.iter().all(|(place, expected)| match (expected, found[place]) {
                (None, None) => true,
                (Some(node), Some((ino, kind, _))) => {
                    node.kind == kind && node.ino.map_or(!known.contains(&ino), |expected| expected == ino)
                }
                _ => false,
            })
        };
        let after = fits(&doubt.after);
        if !after && !fits(&doubt.before) {
            panic!("{}: neither happened nor not: {found:?}", doubt.what);
        }
        let doubt = self.doubt.take().expect("looked at just now");
        world.step(|| format!("{}: {}", doubt.what, if after { "has happened" } else { "has not happened" }));
        if after {
            let seen = |place: &Place| found[place].map(|(ino, kind, _)| Node { ino: Some(ino), kind });
            let names = doubt.after.keys().map(|place| (place.clone(), seen(place))).collect();
            self.set(names);
        } else {
            let mut model = world.model.lock();
            for node in doubt.before.values().flatten() {
                let file = model.files.iter_mut().find(|file| Some(file.ino) == node.ino);
                if let Some(file) = file.filter(|file| file.going_by.is_some()) {
                    (file.going, file.going_by) = (None, None);
                }
            }
        }
        Ok(())
    }
}

async fn look(world: &World, up: &Up, place: &Place) -> Result<Option<(Ino, Kind, u32)>, Failed> {
    let name = name(&place.1);
    match call(world, up, up.vfs.lookup(&Caller::root(), place.0, &name)).await {
        Ok(Found { entry, .. }) => Ok(Some((entry.ino, entry.attr.kind, entry.attr.nlink))),
        Err(Failed::Answer(Errno::ENOENT)) => Ok(None),
        Err(failed) => Err(failed),
    }
}

async fn list(world: &World, up: &Up, dir: Ino) -> Result<Vec<String>, Failed> {
    let listed = async {
        let handle = up.vfs.opendir(&Caller::root(), dir).await?.handle;
        let (mut names, mut offset) = (Vec::new(), 0);
        loop {
            let items = up.vfs.readdir(dir, handle, offset, true).await?;
            let Some(last) = items.last() else { break };
            offset = last.next;
            names.extend(items.iter().map(|item| item.name.to_string()).filter(|name| name != "." && name != ".."));
        }
        up.vfs.releasedir(handle).await?;
        Ok(names)
    };
    call(world, up, listed).await
}

fn name(text: &str) -> Name {
    Name::entry(text.as_bytes()).expect("a valid name")
}

impl Process {
    fn place(&mut self) -> Place {
        let dirs = self.tree.directories();
        let dir = if self.random.random_bool(0.6) { dirs[0] } else { dirs[self.random.random_range(0..dirs.len())] };
        (dir, format!("n{}", self.random.random_range(0..NAMES)))
    }

    /// A place that is taken, if any is.
    fn taken(&mut self, fits: impl Fn(&Node) -> bool) -> Option<Place> {
        let taken: Vec<&Place> =
            self.tree.names.iter().filter(|(_, node)| fits(node)).map(|(place, _)| place).collect();
        if taken.is_empty() { None } else { Some(taken[self.random.random_range(0..taken.len())].clone()) }
    }

    /// Asks until it is known what became of the last operation.
    pub async fn settle_doubts(&mut self) {
        while self.tree.doubt.is_some() {
            let up = self.world.up(self.slot).await;
            let world = self.world.clone();
            match self.tree.settle(&world, &up, true).await {
                Ok(()) => {}
                Err(Failed::Gone) => {}
                Err(failed) => {
                    assert!(world.may_fail(self.slot), "look up: {failed}");
                    tokio::time::sleep(Duration::from_secs(1)).await;
                }
            }
        }
        // What it asked may not be the client of the step any more.
        let up = self.world.up(self.slot).await;
        if self.client().incarnation != up.incarnation {
            self.forget_handles();
        }
        self.up = Some(up);
    }

    /// Carries out an operation on names that must succeed with the names being `after` then, or must fail without a
    /// change (`None`).
    async fn change<T>(
        &mut self,
        what: String,
        after: Option<Names>,
        request: impl Future<Output = Outcome<T>>,
    ) -> Option<T> {
        if let Some(after) = &after {
            self.note_going(after, true);
        }
        let answer = self.call(request).await;
        self.say(|| format!("{what}: {}", flat(&answer)));
        let faulty = self.world.may_fail(self.slot);
        match (answer, after) {
            (Ok(done), Some(after)) => {
                self.tree.set(after);
                Some(done)
            }
            (Ok(_), None) => panic!("{what} succeeded and must not"),
            (Err(Failed::Answer(Errno::ENOSPC | Errno::EIO)), _) if !faulty => panic!("{what}: no space"),
            (Err(Failed::Answer(errno)), Some(_)) if ![Errno::ENOSPC, Errno::EIO].contains(&errno) => {
                panic!("{what} must succeed: {errno:?}")
            }
            (Err(Failed::Answer(_)), None) => None,
            (Err(failed), after) => {
                let gone = matches!(failed, Failed::Gone);
                assert!(gone || faulty, "{what}: {failed}");
                if let Some(after) = after {
                    let before = after.keys().map(|place| (place.clone(), self.tree.get(place))).collect();
                    self.tree.doubt = Some(Doubt { what, before, after, gone });
                }
                None
            }
        }
    }

    /// Files that lose their last name with `after`.
    fn note_going(&self, after: &Names, by_me: bool) {
        let mut model = self.world.model.lock();
        for place in after.keys() {
            let Some(node) = self.tree.get(place) else { continue };
            let Some(ino) = node.ino.filter(|_| node.kind == Kind::File) else { continue };
            let kept = |place: &Place, node: &Node| {
                let node = after.get(place).copied().unwrap_or(Some(*node));
                node.is_some_and(|node| node.ino == Some(ino))
            };
            let elsewhere = after.values().flatten().any(|node| node.ino == Some(ino));
            if elsewhere || self.tree.names.iter().any(|(place, node)| kept(place, node)) {
                continue;
            }
            let now = model.tick();
            if let Some(file) = model.files.iter_mut().find(|file| file.ino == ino) {
                file.going.get_or_insert(now);
                file.going_by = by_me.then_some(self.client().incarnation);
            }
        }
    }

    pub async fn create(&mut self) {
        self.make_room().await;
        self.settle_doubts().await;
        let place = self.place();
        let up = self.client().clone();
        let after = self.tree.get(&place).is_none().then(|| {
            let made = Node { ino: None, kind: Kind::File };
            Names::from([(place.clone(), Some(made))])
        });
        let phase = self.random.random_range(0..CELL_BYTES as u64);
        let opened = self.world.model.lock().tick();
        let flags = libc::O_RDWR | libc::O_CREAT | libc::O_EXCL;
        let stored = name(&place.1);
        let root = Caller::root();
        let request = up.vfs.create(&root, place.0, &stored, 0o644, 0, flags);
        let made = self.change(format!("create {place:?}"), after, request).await;
        if let Some((entry, answer)) = made {
            self.tree.names.insert(place, Node { ino: Some(entry.ino), kind: Kind::File });
            self.tree.modes.insert(entry.ino, BTreeSet::from([0o644]));
            let file = self.world.file_of(entry.ino, phase, false);
            self.opened(file, &answer, true, opened);
        }
    }

    pub async fn make_or_remove_dir(&mut self) {
        let up = self.client().clone();
        let root = Caller::root();
        if self.random.random_bool(0.6) {
            let place = (self.tree.dir, format!("n{}", self.random.random_range(0..NAMES)));
            let symlink = self.random.random_bool(0.2);
            let kind = if symlink { Kind::Symlink } else { Kind::Directory };
            let target = symlink.then(|| Bytes::from_static(b"to nowhere"));
            let node = NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target };
            let after =
                self.tree.get(&place).is_none().then(|| Names::from([(place.clone(), Some(Node { ino: None, kind }))]));
            let stored = name(&place.1);
            let request = up.vfs.make(&root, place.0, &stored, &node);
            if let Some(entry) = self.change(format!("make {kind:?} {place:?}"), after, request).await {
                self.tree.names.insert(place, Node { ino: Some(entry.ino), kind });
            }
        } else {
            let Some(place) = self.taken(|node| node.kind == Kind::Directory) else { return };
            let dir = self.tree.get(&place).and_then(|node| node.ino);
            let after = (!self.tree.has_entries(dir)).then(|| Names::from([(place.clone(), None)]));
            let stored = name(&place.1);
            let request = up.vfs.rmdir(&root, place.0, &stored);
            self.change(format!("rmdir {place:?}"), after, request).await;
        }
    }

    pub async fn unlink(&mut self) {
        let place = match self.taken(|node| node.kind != Kind::Directory) {
            Some(place) if self.random.random_bool(0.9) => place,
            _ => self.place(),
        };
        let up = self.client().clone();
        let after = self
            .tree
            .get(&place)
            .filter(|node| node.kind != Kind::Directory)
            .map(|_| Names::from([(place.clone(), None)]));
        let stored = name(&place.1);
        let root = Caller::root();
        let request = up.vfs.unlink(&root, place.0, &stored);
        self.change(format!("unlink {place:?}"), after, request).await;
    }

    pub async fn link(&mut self) {
        let Some(from) = self.taken(|node| node.kind == Kind::File) else { return };
        let to = self.place();
        let node = self.tree.get(&from).expect("it is taken");
        let Some(ino) = node.ino else { return };
        let up = self.client().clone();
        let after =
            self.tree.get(&to).is_none().then(|| Names::from([(from.clone(), Some(node)), (to.clone(), Some(node))]));
        let stored = name(&to.1);
        let root = Caller::root();
        let request = up.vfs.link(&root, ino, to.0, &stored);
        self.change(format!("link {from:?} {to:?}"), after, request).await;
    }

    pub async fn rename(&mut self) {
        let from = match self.taken(|_| true) {
            Some(place) if self.random.random_bool(0.95) => place,
            _ => self.place(),
        };
        let to = match self.taken(|_| true) {
            Some(place) if self.random.random_bool(0.6) => place,
            _ => self.place(),
        };
        let how = match self.random.random_range(0..5) {
            0 => RenameMode::NoReplace,
            1 => RenameMode::Exchange,
            _ => RenameMode::Replace,
        };
        let (old, new) = (self.tree.get(&from), self.tree.get(&to));
        let is_dir = |node: Option<Node>| node.is_some_and(|node| node.kind == Kind::Directory);
        // Directories stay in the first one, so that there are no deeper trees to keep account of.
        let stays = from.0 == self.tree.dir && to.0 == self.tree.dir;
        if from == to || ((is_dir(old) || is_dir(new)) && !stays) {
            return;
        }
        let after = match (old, new, how) {
            (None, ..) | (_, Some(_), RenameMode::NoReplace) | (_, None, RenameMode::Exchange) => None,
            (Some(old), Some(new), RenameMode::Exchange) => {
                Some(Names::from([(from.clone(), Some(new)), (to.clone(), Some(old))]))
            }
            (Some(old), Some(new), _) if old.ino == new.ino => {
                Some(Names::from([(from.clone(), Some(old)), (to.clone(), Some(new))]))
            }
            (Some(_), Some(new), _) if is_dir(old) != is_dir(Some(new)) => None,
            (Some(_), Some(new), _) if is_dir(Some(new)) && self.tree.has_entries(new.ino) => None,
            (Some(old), ..) => Some(Names::from([(from.clone(), None), (to.clone(), Some(old))])),
        };
        let up = self.client().clone();
        let (old_name, new_name) = (name(&from.1), name(&to.1));
        let root = Caller::root();
        let request = up.vfs.rename(&root, from.0, &old_name, to.0, &new_name, how);
        self.change(format!("rename {from:?} {to:?} {how:?}"), after, request).await;
    }

    /// What a name is, or what a directory holds, as another client sees it.
    pub async fn look(&mut self) {
        let slot = self.random.random_range(0..self.world.slots.len());
        let Some(up) = self.world.up_now(slot) else { return };
        let world = self.world.clone();
        if self.random.random_bool(0.5) {
            let dirs = self.tree.directories();
            let dir = dirs[self.random.random_range(0..dirs.len())];
            let found = list(&world, &up, dir).await;
            self.say(|| format!("list {dir} on {slot}: {}", flat(&found)));
            match found {
                Ok(mut found) => {
                    found.sort();
                    let here = self.tree.names.keys().filter(|(parent, _)| *parent == dir);
                    let expected: Vec<&String> = here.map(|(_, name)| name).collect();
                    assert_eq!(
                        found.iter().collect::<Vec<_>>(),
                        expected,
                        "entries of {dir} as client {slot} sees them"
                    );
                }
                Err(failed) => self.excuse_look(slot, &failed),
            }
        } else {
            let place = self.place();
            let found = look(&world, &up, &place).await;
            self.say(|| format!("look {place:?} on {slot}: {}", flat(&found)));
            match found {
                Ok(found) => {
                    let expected = self.tree.get(&place);
                    let seen = found.map(|(ino, kind, _)| Node { ino: Some(ino), kind });
                    assert_eq!(seen, expected, "{place:?} as client {slot} sees it");
                    if let Some((ino, kind, nlink)) = found.filter(|(_, kind, _)| *kind != Kind::Directory) {
                        assert_eq!(nlink as usize, self.tree.links(ino), "links of {kind:?} {place:?}");
                    }
                }
                Err(failed) => self.excuse_look(slot, &failed),
            }
        }
    }

    fn excuse_look(&self, slot: usize, failed: &Failed) {
        let gone = matches!(failed, Failed::Gone);
        assert!(gone || self.world.may_fail(slot), "c{}.{} look: {failed}", self.slot, self.number);
    }

    /// Modes and extended attributes.
    pub async fn attributes(&mut self) {
        let slot = self.slot;
        let Some(place) = self.taken(|node| node.kind == Kind::File) else { return };
        let Some(ino) = self.tree.get(&place).and_then(|node| node.ino) else { return };
        let up = self.client().clone();
        let (root, key) = (Caller::root(), Name::xattr(b"user.sim").expect("a valid name"));
        match self.random.random_range(0..4) {
            0 => {
                let mode = [0o600u16, 0o644, 0o755][self.random.random_range(0..3)];
                let set = SetAttr { mode: Some(mode), ..SetAttr::default() };
                let answer = self.call(up.vfs.setattr(&root, ino, None, None, &set)).await;
                self.say(|| format!("chmod {ino} {mode:o}: {}", flat(&answer)));
                let may_be = self.tree.modes.entry(ino).or_insert_with(|| BTreeSet::from([0o644]));
                match &answer {
                    Ok(attr) => {
                        assert_eq!(attr.mode, mode, "mode of {ino} after it was set");
                        *may_be = BTreeSet::from([mode]);
                    }
                    Err(failed) => {
                        may_be.insert(mode);
                        self.excuse_look(slot, failed);
                    }
                }
            }
            1 => {
                let value = self.random.random_range(0..100u32);
                let bytes = Bytes::copy_from_slice(&value.to_le_bytes());
                let answer = self.call(up.vfs.set_xattr(&root, ino, &key, bytes, 0)).await;
                self.say(|| format!("setxattr {ino} {value}: {}", flat(&answer)));
                let may_be = self.tree.xattrs.entry(ino).or_insert_with(|| BTreeSet::from([None]));
                match &answer {
                    Ok(()) => *may_be = BTreeSet::from([Some(value)]),
                    Err(failed) => {
                        may_be.insert(Some(value));
                        self.excuse_look(slot, failed);
                    }
                }
            }
            2 => {
                let answer = self.call(up.vfs.get_xattr(ino, &key)).await;
                self.say(|| format!("getxattr {ino}: {}", flat(&answer)));
                let found = match answer {
                    Ok(value) => Some(u32::from_le_bytes(value[..].try_into().expect("four bytes were set"))),
                    Err(Failed::Answer(Errno::ENODATA)) => None,
                    Err(failed) => return self.excuse_look(slot, &failed),
                };
                let may_be = self.tree.xattrs.entry(ino).or_insert_with(|| BTreeSet::from([None]));
                assert!(may_be.contains(&found), "xattr of {ino} is {found:?}, may be {may_be:?}");
            }
            _ => {
                let answer = self.call(up.vfs.getattr(ino)).await;
                self.say(|| format!("getattr {ino}: {}", flat(&answer)));
                match answer {
                    Ok(attr) => {
                        let may_be = self.tree.modes.entry(ino).or_insert_with(|| BTreeSet::from([0o644]));
                        assert!(may_be.contains(&attr.mode), "mode of {ino} is {:o}, may be {may_be:?}", attr.mode);
                        assert_eq!(attr.nlink as usize, self.tree.links(ino), "links of {ino}");
                    }
                    Err(failed) => self.excuse_look(slot, &failed),
                }
            }
        }
    }
}
