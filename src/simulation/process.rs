//! One process on one client: what programs do to files and names, step by step, and what must come of it.

use super::bytes::OpenFile;
use super::model::CELL_BYTES;
use super::tree::Tree;
use super::world::{OPERATION_MAX, Up, World};
use crate::base::{Errno, Ino, Kind, Name, Outcome, Stop};
use crate::meta::Caller;
use crate::meta::ops::create::NewNode;
use crate::meta::ops::rename::RenameMode;
use crate::vfs::Found;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::sync::Arc;
use std::time::Duration;

/// Handles that a process holds at most.
const OPEN_MAX: usize = 4;
/// The file whose first cell is only written under its lock.
pub const COUNTER: usize = 0;

/// What a process may do next.
#[derive(Clone, Copy)]
enum Action {
    Create,
    Open,
    Write,
    Read,
    Fsync,
    Close,
    Truncate,
    ShrinkAndGrow,
    Fallocate,
    Copy,
    Compact,
    Touch,
    Count,
    Unlink,
    Rename,
    Link,
    MakeDir,
    Look,
    Attributes,
    Shared,
}

impl Action {
    /// How often each is chosen by processes of each bent, in the order of `plan::Bent`.
    const ALL: [(Action, [u32; 3]); 20] = [
        (Action::Create, [4, 1, 8]),
        (Action::Open, [9, 14, 8]),
        (Action::Write, [16, 18, 8]),
        (Action::Read, [14, 16, 6]),
        (Action::Fsync, [6, 6, 2]),
        (Action::Close, [6, 12, 5]),
        (Action::Truncate, [6, 4, 2]),
        (Action::ShrinkAndGrow, [2, 4, 0]),
        (Action::Fallocate, [2, 3, 1]),
        (Action::Copy, [3, 3, 1]),
        (Action::Compact, [2, 5, 1]),
        (Action::Touch, [2, 3, 0]),
        (Action::Count, [2, 2, 1]),
        (Action::Unlink, [3, 1, 8]),
        (Action::Rename, [6, 1, 9]),
        (Action::Link, [2, 1, 4]),
        (Action::MakeDir, [3, 1, 5]),
        (Action::Look, [3, 1, 5]),
        (Action::Attributes, [2, 1, 3]),
        (Action::Shared, [2, 0, 3]),
    ];
}

/// Why a call did not do what it was to do.
pub enum Failed {
    /// The client crashed under it.
    Gone,
    Answer(Errno),
    Fault(String),
}

impl fmt::Display for Failed {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Failed::Gone => f.write_str("the client is gone"),
            Failed::Answer(errno) => write!(f, "{errno:?}"),
            Failed::Fault(fault) => f.write_str(fault),
        }
    }
}

pub struct Process {
    pub world: Arc<World>,
    pub slot: usize,
    pub number: usize,
    pub random: StdRng,
    pub up: Option<Up>,
    pub tree: Tree,
    shared: Ino,
    pub open: Vec<OpenFile>,
}

pub fn flat(result: &Result<impl Sized, Failed>) -> String {
    match result {
        Ok(_) => "ok".to_owned(),
        Err(failed) => failed.to_string(),
    }
}

impl Process {
    pub fn new(world: &Arc<World>, slot: usize, number: usize, dir: Ino, shared: Ino) -> Process {
        let seed = world.plan.seed.wrapping_mul(1000) + (slot * 10 + number) as u64 + 1;
        Process {
            world: world.clone(),
            slot,
            number,
            random: StdRng::seed_from_u64(seed),
            up: None,
            tree: Tree::new(dir),
            shared,
            open: Vec::new(),
        }
    }

    /// Takes all steps; answers what its names must be then.
    pub async fn run(mut self) -> Tree {
        for _ in 0..self.world.plan.steps {
            let think = self.world.plan.think_ms;
            if think > 0 {
                tokio::time::sleep(Duration::from_millis(self.random.random_range(0..=think))).await;
            }
            self.come_up().await;
            self.step().await;
        }
        self.come_up().await;
        self.settle_doubts().await;
        // Some leave their files open, as a killed process does not.
        if self.random.random_bool(0.7) {
            while !self.open.is_empty() {
                self.close(0).await;
            }
        }
        self.tree
    }

    /// Waits for the client and forgets what an earlier incarnation of it had open.
    pub async fn come_up(&mut self) {
        let up = self.world.up(self.slot).await;
        if self.up.as_ref().is_none_or(|known| known.incarnation != up.incarnation) {
            self.open.clear();
        }
        self.up = Some(up);
    }

    pub fn client(&self) -> &Up {
        self.up.as_ref().expect("steps are taken on a client that is up")
    }

    pub fn say(&self, what: impl FnOnce() -> String) {
        self.world.step(|| format!("c{}.{} {}", self.slot, self.number, what()));
    }

    /// A request of this process to its client.
    pub async fn call<T>(&self, request: impl Future<Output = Outcome<T>>) -> Result<T, Failed> {
        call(&self.world, self.client(), request).await
    }

    async fn step(&mut self) {
        self.settle_doubts().await;
        let weights = Action::ALL.map(|(action, weights)| (action, weights[self.world.plan.bent as usize]));
        let plan = &self.world.plan;
        let weight = |(action, weight): (Action, u32)| match action {
            Action::Shared => weight * plan.shared_weight,
            Action::Touch if !plan.touches => 0,
            Action::Count if plan.long_pauses => weight + 4,
            _ => weight,
        };
        let mut draw = self.random.random_range(0..weights.iter().copied().map(weight).sum());
        let mut chosen = Action::Write;
        for (action, of_bent) in weights {
            let weight = weight((action, of_bent));
            if draw < weight {
                chosen = action;
                break;
            }
            draw -= weight;
        }
        match chosen {
            Action::Create => self.create().await,
            Action::Open => self.open_any().await,
            Action::Write => self.write().await,
            Action::Read => self.read().await,
            Action::Fsync => self.fsync().await,
            Action::Close => {
                if !self.open.is_empty() {
                    let which = self.random.random_range(0..self.open.len());
                    self.close(which).await;
                }
            }
            Action::Truncate => self.truncate().await,
            Action::ShrinkAndGrow => self.shrink_and_grow().await,
            Action::Fallocate => self.fallocate().await,
            Action::Copy => self.copy().await,
            Action::Compact => self.compact().await,
            Action::Touch => self.touch().await,
            Action::Count => self.count().await,
            Action::Unlink => self.unlink().await,
            Action::Rename => self.rename().await,
            Action::Link => self.link().await,
            Action::MakeDir => self.make_or_remove_dir().await,
            Action::Look => self.look().await,
            Action::Attributes => self.attributes().await,
            Action::Shared => self.shared().await,
        }
    }

    pub fn tick(&self) -> u64 {
        self.world.model.lock().tick()
    }

    /// Panics when nothing explains that a request about a file failed.
    pub fn excuse(&self, what: &str, file: usize, failed: &Failed) {
        self.excuse_on(self.client(), what, file, failed);
    }

    /// As `excuse`, of a request to this client.
    pub fn excuse_on(&self, up: &Up, what: &str, file: usize, failed: &Failed) {
        let explained = match failed {
            Failed::Gone => true,
            _ if self.world.may_fail(up.incarnation.0) => true,
            _ => {
                // Only handles of the client that unlinks keep a file.
                let model = self.world.model.lock();
                let file = &model.files[file];
                file.going.is_some() && file.going_by != Some(up.incarnation)
            }
        };
        assert!(explained, "c{}.{} {what} of file {file} on {:?}: {failed}", self.slot, self.number, up.incarnation);
    }

    pub fn ino(&self, file: usize) -> Ino {
        self.world.model.lock().files[file].ino
    }

    pub fn forget_handles(&mut self) {
        self.open.clear();
    }

    pub async fn make_room(&mut self) {
        if self.open.len() >= OPEN_MAX {
            let which = self.random.random_range(0..self.open.len());
            self.close(which).await;
        }
    }

    // Names that all processes share: whatever they answer, the tree must hold together.

    async fn shared(&mut self) {
        let up = self.client().clone();
        let (dir, root) = (self.shared, Caller::root());
        let name = |random: &mut StdRng| {
            Name::entry(format!("s{}", random.random_range(0..5)).as_bytes()).expect("a valid name")
        };
        let (one, other) = (name(&mut self.random), name(&mut self.random));
        let action = self.random.random_range(0..12);
        let result = match action {
            0..=2 => {
                self.make_room().await;
                let opened = self.tick();
                let flags = libc::O_RDWR | libc::O_CREAT | if action == 0 { 0 } else { libc::O_EXCL };
                let made = self.call(up.vfs.create(&root, dir, &one, 0o644, 0, flags)).await;
                match made {
                    Ok((entry, answer)) => {
                        let file = self.world.file_of(entry.ino, self.random.random_range(0..CELL_BYTES as u64), true);
                        self.opened(file, &answer, true, opened);
                        Ok(())
                    }
                    Err(failed) => Err(failed),
                }
            }
            3 => {
                let node = NewNode { kind: Kind::Directory, mode: 0o755, umask: 0, rdev: 0, target: None };
                self.call(up.vfs.make(&root, dir, &one, &node)).await.map(drop)
            }
            4 | 5 => self.call(up.vfs.unlink(&root, dir, &one)).await,
            6 => self.call(up.vfs.rmdir(&root, dir, &one)).await,
            7 => self.call(up.vfs.rename(&root, dir, &one, dir, &other, RenameMode::Replace)).await,
            8 => self.call(up.vfs.rename(&root, dir, &one, dir, &other, RenameMode::Exchange)).await,
            9 | 10 => {
                // Into and out of a directory of the shared one, if that is what the name stands for.
                match self.call(up.vfs.lookup(&root, dir, &one)).await {
                    Ok(Found { entry, .. }) if entry.attr.is_dir() => {
                        let (from, to) = if action == 9 { (dir, entry.ino) } else { (entry.ino, dir) };
                        let how =
                            if self.random.random_bool(0.5) { RenameMode::Replace } else { RenameMode::NoReplace };
                        self.call(up.vfs.rename(&root, from, &other, to, &other, how)).await
                    }
                    Ok(Found { entry, .. }) => self.call(up.vfs.link(&root, entry.ino, dir, &other)).await.map(drop),
                    Err(failed) => Err(failed),
                }
            }
            _ => {
                let listed = async {
                    let opened = up.vfs.opendir(&root, dir).await?;
                    let items = up.vfs.readdir(dir, opened.handle, 0, true).await?;
                    up.vfs.releasedir(opened.handle).await?;
                    Ok(items)
                };
                self.call(listed).await.map(|items| assert!(items.len() >= 2))
            }
        };
        self.say(|| format!("shared {action} {one} {other}: {}", flat(&result)));
        let expected = [
            Errno::ENOENT,
            Errno::EEXIST,
            Errno::ENOTEMPTY,
            Errno::EISDIR,
            Errno::ENOTDIR,
            Errno::EINVAL,
            Errno::EPERM,
        ];
        match result {
            Ok(()) | Err(Failed::Gone) => {}
            Err(Failed::Answer(errno)) if expected.contains(&errno) => {}
            Err(failed) => assert!(self.world.may_fail(self.slot), "c{} shared {action}: {failed}", self.slot),
        }
    }
}

/// A request to a client, which may crash meanwhile; one that never ends is a failure.
pub async fn call<T>(world: &World, up: &Up, request: impl Future<Output = Outcome<T>>) -> Result<T, Failed> {
    tokio::select! {
        biased;
        () = world.gone(up.incarnation) => Err(Failed::Gone),
        answer = tokio::time::timeout(OPERATION_MAX, request) => match answer {
            Ok(Ok(answer)) => Ok(answer),
            Ok(Err(Stop::Errno(errno))) => Err(Failed::Answer(errno)),
            Ok(Err(Stop::Fault(fault))) => Err(Failed::Fault(fault.to_string())),
            Err(_late) => panic!("a request to client {} has not ended after {OPERATION_MAX:?}", up.incarnation.0),
        },
    }
}
