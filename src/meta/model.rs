//! A small reference tree, and sequences of operations run on it and on a volume side by side: every answer has to be
//! the same, and so has the tree at the end.

use super::ops::create::NewNode;
use super::ops::rename::RenameMode;
use super::testing::{block_on, cases, volume};
use super::{Caller, Meta};
use crate::base::{Errno, Ino, Kind, Name};
use bytes::Bytes;
use proptest::prelude::*;
use proptest::strategy::ValueTree;
use proptest::test_runner::{Config, RngAlgorithm, TestRng, TestRunner};
use std::collections::BTreeMap;

/// One operation; directories are chosen among those there are, names among few.
#[derive(Clone, Debug)]
pub(super) struct Step {
    what: What,
    dir: usize,
    other: usize,
    old: u8,
    new: u8,
}

#[derive(Clone, Copy, Debug)]
enum What {
    Create(Kind),
    Link,
    Unlink { skip_trash: bool },
    Rmdir { skip_trash: bool },
    Rename(RenameMode),
}

fn step() -> impl Strategy<Value = Step> {
    let what = prop_oneof![
        3 => Just(What::Create(Kind::File)),
        4 => Just(What::Create(Kind::Directory)),
        1 => Just(What::Create(Kind::Symlink)),
        1 => Just(What::Create(Kind::Fifo)),
        2 => Just(What::Link),
        2 => any::<bool>().prop_map(|skip_trash| What::Unlink { skip_trash }),
        2 => any::<bool>().prop_map(|skip_trash| What::Rmdir { skip_trash }),
        5 => Just(What::Rename(RenameMode::Replace)),
        2 => Just(What::Rename(RenameMode::Exchange)),
        1 => Just(What::Rename(RenameMode::NoReplace)),
    ];
    (what, 0usize..64, 0usize..64, 0u8..4, 0u8..4).prop_map(|(what, dir, other, old, new)| Step {
        what,
        dir,
        other,
        old,
        new,
    })
}

fn steps(length: usize) -> impl Strategy<Value = Vec<Step>> {
    prop::collection::vec(step(), 0..length)
}

/// The tree as it should be: directories with their entries, by inode number.
struct Model {
    dirs: BTreeMap<Ino, BTreeMap<Name, (Ino, Kind)>>,
}

impl Model {
    fn new() -> Model {
        Model { dirs: BTreeMap::from([(Ino::ROOT, BTreeMap::new())]) }
    }

    fn dir(&self, index: usize) -> Ino {
        *self.dirs.keys().nth(index % self.dirs.len()).expect("the root at least")
    }

    fn get(&self, dir: Ino, name: &Name) -> Option<(Ino, Kind)> {
        self.dirs[&dir].get(name).copied()
    }

    fn set(&mut self, dir: Ino, name: &Name, entry: Option<(Ino, Kind)>) {
        let entries = self.dirs.get_mut(&dir).expect("a directory of the model");
        match entry {
            Some(entry) => drop(entries.insert(name.clone(), entry)),
            None => drop(entries.remove(name)),
        }
    }

    fn is_empty(&self, dir: Ino) -> bool {
        self.dirs[&dir].is_empty()
    }

    /// `dir` is `above` or lies below it.
    fn below(&self, dir: Ino, above: Ino) -> bool {
        dir == above
            || self.dirs.get(&above).is_some_and(|entries| {
                entries.values().any(|(ino, kind)| *kind == Kind::Directory && self.below(dir, *ino))
            })
    }

    fn unlink(&mut self, dir: Ino, name: &Name) -> Result<Ino, Errno> {
        let (ino, kind) = self.get(dir, name).ok_or(Errno::ENOENT)?;
        if kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        self.set(dir, name, None);
        Ok(ino)
    }

    fn rmdir(&mut self, dir: Ino, name: &Name) -> Result<Ino, Errno> {
        let (ino, kind) = self.get(dir, name).ok_or(Errno::ENOENT)?;
        if kind != Kind::Directory {
            return Err(Errno::ENOTDIR);
        }
        if !self.is_empty(ino) {
            return Err(Errno::ENOTEMPTY);
        }
        self.set(dir, name, None);
        self.dirs.remove(&ino);
        Ok(ino)
    }

    fn link(&mut self, from: Ino, old: &Name, to: Ino, new: &Name) -> Result<Ino, Errno> {
        let (ino, kind) = self.get(from, old).ok_or(Errno::ENOENT)?;
        if kind == Kind::Directory {
            return Err(Errno::EPERM);
        }
        if self.get(to, new).is_some() {
            return Err(Errno::EEXIST);
        }
        self.set(to, new, Some((ino, kind)));
        Ok(ino)
    }

    fn rename(&mut self, from: Ino, old: &Name, to: Ino, new: &Name, how: RenameMode) -> Result<Ino, Errno> {
        let moved = self.get(from, old).ok_or(Errno::ENOENT)?;
        let taken = self.get(to, new);
        match (how, taken) {
            (RenameMode::NoReplace, Some(_)) => return Err(Errno::EEXIST),
            (RenameMode::Exchange, None) => return Err(Errno::ENOENT),
            _ => {}
        }
        if taken.is_some_and(|taken| taken.0 == moved.0) {
            return Ok(moved.0);
        }
        let exchange = how == RenameMode::Exchange;
        let is_dir = |entry: (Ino, Kind)| entry.1 == Kind::Directory;
        if let Some(taken) = taken.filter(|_| !exchange) {
            match (is_dir(moved), is_dir(taken)) {
                (true, false) => return Err(Errno::ENOTDIR),
                (false, true) => return Err(Errno::EISDIR),
                _ => {}
            }
        }
        if is_dir(moved) && self.below(to, moved.0) {
            return Err(Errno::EINVAL);
        }
        if let Some(taken) = taken.filter(|taken| is_dir(*taken)) {
            if exchange && self.below(from, taken.0) {
                return Err(Errno::EINVAL);
            }
            if !exchange && !self.is_empty(taken.0) {
                return Err(Errno::ENOTEMPTY);
            }
        }
        if let Some(taken) = taken.filter(|taken| is_dir(*taken) && !exchange) {
            self.dirs.remove(&taken.0);
        }
        self.set(from, old, taken.filter(|_| exchange));
        self.set(to, new, Some(moved));
        Ok(moved.0)
    }

    async fn step(&mut self, meta: &Meta, step: &Step) {
        let caller = Caller::root();
        let (dir, other) = (self.dir(step.dir), self.dir(step.other));
        let [old, new] = [step.old, step.new].map(|n| Name::entry(format!("n{n}").as_bytes()).expect("a name"));
        let (wanted, got) = match step.what {
            What::Create(kind) => {
                let target = (kind == Kind::Symlink).then(|| Bytes::from_static(b"target"));
                let node = NewNode { kind, mode: 0o755, umask: 0, rdev: 0, target };
                let got = meta.create(&caller, dir, &old, &node).await.map(|entry| entry.ino);
                if self.get(dir, &old).is_some() {
                    (Err(Errno::EEXIST), got)
                } else {
                    if let Ok(ino) = got {
                        self.set(dir, &old, Some((ino, kind)));
                        if kind == Kind::Directory {
                            self.dirs.insert(ino, BTreeMap::new());
                        }
                    }
                    (got.as_ref().map(|ino| *ino).map_err(|stop| stop.errno()), got)
                }
            }
            What::Link => {
                let got = match meta.lookup(&caller, dir, &old).await {
                    Ok(entry) => meta.link(&caller, entry.ino, other, &new).await.map(|_| entry.ino),
                    Err(stop) => Err(stop),
                };
                (self.link(dir, &old, other, &new), got)
            }
            What::Unlink { skip_trash } => {
                (self.unlink(dir, &old), meta.unlink(&caller, dir, &old, skip_trash).await.map(|removed| removed.ino))
            }
            What::Rmdir { skip_trash } => (self.rmdir(dir, &old), meta.rmdir(&caller, dir, &old, skip_trash).await),
            What::Rename(how) => (
                self.rename(dir, &old, other, &new, how),
                meta.rename(&caller, dir, &old, other, &new, how).await.map(|renamed| renamed.ino),
            ),
        };
        assert_eq!(got.map_err(|stop| stop.errno()), wanted, "{step:?}");
    }

    /// The volume shows this tree and no other.
    async fn compare(&self, meta: &Meta) {
        let mut names: BTreeMap<Ino, u32> = BTreeMap::new();
        self.dirs
            .values()
            .flat_map(|entries| entries.values())
            .for_each(|(ino, _)| *names.entry(*ino).or_default() += 1);
        for (dir, entries) in &self.dirs {
            let (mut listed, mut after) = (BTreeMap::new(), None);
            loop {
                let page = meta.list(*dir, after.as_ref(), 3).await.expect("list");
                for (name, dentry, attr) in page.entries {
                    let attr = attr.expect("no entry without a node");
                    let links = match self.dirs.get(&dentry.ino) {
                        None => names[&dentry.ino],
                        Some(entries) => {
                            2 + entries.values().filter(|(_, kind)| *kind == Kind::Directory).count() as u32
                        }
                    };
                    assert_eq!((attr.kind, attr.nlink), (dentry.kind, links), "{name} in {dir}");
                    listed.insert(name, (dentry.ino, dentry.kind));
                }
                match page.next {
                    Some(next) => after = Some(next),
                    None => break,
                }
            }
            assert_eq!(&listed, entries, "entries of {dir}");
        }
    }
}

async fn run_steps(meta: &Meta, steps: &[Step]) {
    let mut model = Model::new();
    for step in steps {
        model.step(meta, step).await;
    }
    model.compare(meta).await;
}

/// A sequence of its own for each seed, on an empty volume.
pub(super) async fn run(meta: &Meta, seed: u8) {
    let random = TestRng::from_seed(RngAlgorithm::ChaCha, &[seed; 32]);
    let mut runner = TestRunner::new_with_rng(Config::default(), random);
    let steps = prop::collection::vec(step(), 80).new_tree(&mut runner).expect("steps need no luck").current();
    run_steps(meta, &steps).await;
}

proptest! {
    #![proptest_config(Config { failure_persistence: None, cases: cases(96), ..Config::default() })]

    #[test]
    fn the_volume_answers_like_the_model(steps in steps(120), with_trash: bool) {
        block_on(async {
            let meta = volume().await;
            if with_trash {
                meta.set_rules(super::Rules { trash_days: 1, ..meta.rules() });
            }
            run_steps(&meta, &steps).await;
            let report = super::check::check(&**meta.engine()).await.expect("check");
            assert!(report.is_clean(), "{report}");
        });
    }
}
