//! One process on one client: what programs do to files and names, step by step, and what must come of it.

use super::model::{CELL_BYTES, CELLS, Model, Reader, What, cell_bytes, is_zero, parse};
use super::tree::Tree;
use super::world::{OPERATION_MAX, Up, World};
use crate::base::{Errno, Ino, Kind, Name, Outcome, Stop};
use crate::meta::Caller;
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::create::NewNode;
use crate::meta::ops::plock::LockKind;
use crate::meta::ops::rename::RenameMode;
use crate::vfs::Handle;
use bytes::Bytes;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::fmt;
use std::ops::Range;
use std::sync::Arc;
use std::time::Duration;

/// Handles that a process holds at most.
const OPEN_MAX: usize = 4;
/// The file whose first cell is only written under its lock.
pub const COUNTER: usize = 0;
/// How many files follow it that everybody uses.
pub const HOT_FILES: usize = 2;

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

#[derive(Clone, Copy)]
struct OpenFile {
    file: usize,
    handle: Handle,
    writes: bool,
    opened: u64,
}

pub struct Process {
    pub world: Arc<World>,
    pub slot: usize,
    pub number: usize,
    pub random: StdRng,
    pub up: Option<Up>,
    pub tree: Tree,
    shared: Ino,
    open: Vec<OpenFile>,
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
    async fn come_up(&mut self) {
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
        let shared = self.world.plan.shared_weight;
        let weights: [(u32, u32); 17] = [
            (0, 4),
            (1, 9),
            (2, 16),
            (3, 14),
            (4, 6),
            (5, 6),
            (6, 3),
            (7, 2),
            (8, 3),
            (9, 3),
            (10, 6),
            (11, 2),
            (12, 3),
            (13, 3),
            (14, 2),
            (15, 2 * shared),
            (16, 2),
        ];
        let mut draw = self.random.random_range(0..weights.iter().map(|(_, weight)| weight).sum());
        let mut chosen = 0;
        for (action, weight) in weights {
            if draw < weight {
                chosen = action;
                break;
            }
            draw -= weight;
        }
        match chosen {
            0 => self.create().await,
            1 => self.open_any().await,
            2 => self.write().await,
            3 => self.read().await,
            4 => self.fsync().await,
            5 => {
                if !self.open.is_empty() {
                    let which = self.random.random_range(0..self.open.len());
                    self.close(which).await;
                }
            }
            6 => self.truncate().await,
            7 => self.fallocate().await,
            8 => self.copy().await,
            9 => self.unlink().await,
            10 => self.rename().await,
            11 => self.link().await,
            12 => self.make_or_remove_dir().await,
            13 => self.look().await,
            14 => self.attributes().await,
            15 => self.shared().await,
            _ => self.count().await,
        }
    }

    // Data.

    fn tick(&self) -> u64 {
        self.world.model.lock().tick()
    }

    /// Panics when nothing explains that a request about a file failed.
    fn excuse(&self, what: &str, file: usize, failed: &Failed) {
        let explained = match failed {
            Failed::Gone => true,
            _ if self.world.plan.is_faulty() => true,
            _ => {
                // Only handles of the client that unlinks keep a file.
                let model = self.world.model.lock();
                let file = &model.files[file];
                file.going.is_some() && file.going_by != Some(self.client().incarnation)
            }
        };
        assert!(explained, "c{}.{} {what} of file {file}: {failed}", self.slot, self.number);
    }

    fn ino(&self, file: usize) -> Ino {
        self.world.model.lock().files[file].ino
    }

    /// A file was opened or made by this process.
    pub fn opened(&mut self, file: usize, handle: Handle, writes: bool, opened: u64) {
        self.open.push(OpenFile { file, handle, writes, opened });
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

    async fn open_any(&mut self) {
        self.make_room().await;
        let files = self.world.model.lock().files.len();
        let file = match self.random.random_range(0..10) {
            0..6 => self.random.random_range(1..=HOT_FILES),
            _ => self.random.random_range(0..files),
        };
        self.open_file(file).await;
    }

    async fn open_file(&mut self, file: usize) {
        let writes = self.random.random_bool(0.7);
        let flags = if writes { libc::O_RDWR } else { libc::O_RDONLY };
        let (ino, opened) = (self.ino(file), self.tick());
        let up = self.client().clone();
        let answer = self.call(up.vfs.open(&Caller::root(), ino, flags)).await;
        self.say(|| format!("open f{file} {ino} {writes}: {}", flat(&answer)));
        match answer {
            Ok(answer) => self.opened(file, answer.handle, writes, opened),
            // EPERM: it lies in the trash, where nobody writes.
            Err(Failed::Answer(Errno::ENOENT | Errno::EPERM))
                if self.world.model.lock().files[file].going.is_some() => {}
            Err(failed) => self.excuse("open", file, &failed),
        }
    }

    fn pick(&mut self, writes: bool) -> Option<OpenFile> {
        let fit: Vec<OpenFile> = self.open.iter().filter(|open| open.writes || !writes).copied().collect();
        if fit.is_empty() { None } else { Some(fit[self.random.random_range(0..fit.len())]) }
    }

    /// Cells next to one another.
    fn cells(&mut self) -> Range<u32> {
        let most = [2, 8, 8, 60, 300][self.random.random_range(0..5)];
        let len = self.random.random_range(1..=most);
        let within = if self.random.random_bool(0.6) { 200 } else { CELLS };
        let start = self.random.random_range(0..within.min(CELLS - len));
        start..start + len
    }

    async fn write(&mut self) {
        let Some(open) = self.pick(true) else { return self.open_any().await };
        if open.file == COUNTER {
            return;
        }
        let cells = self.cells();
        self.write_cells(open, cells).await;
    }

    async fn write_cells(&mut self, open: OpenFile, cells: Range<u32>) -> bool {
        let up = self.client().clone();
        let (ino, off, effect, data) = {
            let mut model = self.world.model.lock();
            let version = model.version();
            let effect = model.begin(open.file, up.incarnation, What::Write { version }, cells.clone());
            let mut data = Vec::with_capacity(cells.len() * CELL_BYTES);
            cells.clone().for_each(|cell| data.extend_from_slice(&cell_bytes(open.file as u32, cell, version)));
            let file = &model.files[open.file];
            (file.ino, file.offset(cells.start), effect, data)
        };
        let answer = match up.vfs.try_write(ino, open.handle, off, &data) {
            Some(answer) => self.call(async { answer }).await,
            None => self.call(up.vfs.write(ino, open.handle, off, Bytes::from(data))).await,
        };
        self.say(|| format!("write f{} {cells:?} #{effect}: {}", open.file, flat(&answer)));
        if let Err(failed) = &answer {
            self.excuse("write", open.file, failed);
        }
        if !matches!(answer, Err(Failed::Gone)) {
            self.world.model.lock().returned(open.file, effect, answer.is_ok());
        }
        answer.is_ok()
    }

    async fn read(&mut self) {
        let Some(open) = self.pick(false) else { return self.open_any().await };
        let cells = if self.random.random_bool(0.3) { 0..CELLS } else { self.cells() };
        self.read_cells(open, cells).await;
    }

    async fn read_cells(&mut self, open: OpenFile, cells: Range<u32>) {
        let up = self.client().clone();
        let (ino, off, start) = {
            let mut model = self.world.model.lock();
            let start = model.tick();
            let file = &model.files[open.file];
            (file.ino, file.offset(cells.start), start)
        };
        let len = (cells.end - cells.start) * CELL_BYTES as u32;
        let answer = self.call(up.vfs.read(ino, open.handle, off, len)).await;
        self.say(|| {
            let got = answer.as_ref().map_or(0, |payload| payload.len());
            format!("read f{} {cells:?}: {} {got}", open.file, flat(&answer))
        });
        match answer {
            Ok(payload) => {
                let reader = Reader { by: up.incarnation, opened: open.opened, start };
                judge(&self.world, open.file, cells, &payload.into_bytes(), reader);
            }
            Err(failed) => self.excuse("read", open.file, &failed),
        }
    }

    /// Carries out something that stores what was written before; `Ok` acknowledges it.
    async fn flushing<T>(&self, file: usize, request: impl Future<Output = Outcome<T>>) -> Result<T, Failed> {
        let by = self.client().incarnation;
        let writes = self.world.model.lock().unsettled(file, by);
        let answer = self.call(request).await;
        if !matches!(answer, Err(Failed::Gone)) {
            let flushed = self.world.model.lock().flushed(file, &writes, answer.is_ok());
            if let Err(why) = flushed {
                panic!("c{}.{} file {file}: {why}", self.slot, self.number);
            }
        }
        answer
    }

    async fn fsync(&mut self) {
        let Some(open) = self.pick(true) else { return };
        let (up, ino) = (self.client().clone(), self.ino(open.file));
        let answer = self.flushing(open.file, up.vfs.fsync(ino, open.handle, false)).await;
        self.say(|| format!("fsync f{}: {}", open.file, flat(&answer)));
        if let Err(failed) = answer {
            self.excuse("fsync", open.file, &failed);
        }
    }

    async fn close(&mut self, which: usize) {
        let open = self.open.swap_remove(which);
        let (up, ino, owner) = (self.client().clone(), self.ino(open.file), self.owner());
        let answer = if open.writes {
            self.flushing(open.file, up.vfs.flush(ino, open.handle, owner)).await
        } else {
            self.call(up.vfs.flush(ino, open.handle, owner)).await
        };
        self.say(|| format!("close f{}: {}", open.file, flat(&answer)));
        if let Err(failed) = &answer {
            self.excuse("close", open.file, failed);
        }
        // The kernel sends this whatever the answer was, and nobody hears of it.
        if let Err(failed) = self.call(up.vfs.release(ino, open.handle)).await {
            self.excuse("release", open.file, &failed);
        }
    }

    fn owner(&self) -> u64 {
        self.number as u64 + 1
    }

    async fn truncate(&mut self) {
        let Some(open) = self.pick(true) else { return };
        if open.file == COUNTER {
            return;
        }
        let cell = match self.random.random_range(0..4) {
            0 => 0,
            1 => self.random.random_range(0..CELLS),
            _ => self.random.random_range(0..200),
        };
        let up = self.client().clone();
        let (ino, length, effect) = {
            let mut model = self.world.model.lock();
            let effect = model.begin(open.file, up.incarnation, What::Clear, cell..CELLS);
            let file = &model.files[open.file];
            (file.ino, file.length_before(cell), effect)
        };
        // By its name nobody changes a file in the trash.
        let by_handle = self.random.random_bool(0.5) || self.world.model.lock().files[open.file].going.is_some();
        let handle = by_handle.then_some(open.handle);
        let (root, nothing) = (Caller::root(), SetAttr::default());
        let request = up.vfs.setattr(&root, ino, handle, Some(length), &nothing);
        let answer = self.applying(open.file, effect, request).await;
        self.say(|| format!("truncate f{} {cell} #{effect}: {}", open.file, flat(&answer)));
    }

    /// Carries out a change of the metadata that is an effect of the model.
    async fn applying<T>(
        &self,
        file: usize,
        effect: usize,
        request: impl Future<Output = Outcome<T>>,
    ) -> Result<T, Failed> {
        let by = self.client().incarnation;
        let writes = self.world.model.lock().unsettled(file, by);
        let answer = self.call(request).await;
        if let Err(failed) = &answer {
            self.excuse("change", file, failed);
        }
        if !matches!(answer, Err(Failed::Gone)) {
            let mut model = self.world.model.lock();
            if answer.is_ok()
                && let Err(why) = model.flushed(file, &writes, true)
            {
                panic!("c{}.{} file {file}: {why}", self.slot, self.number);
            }
            model.applied(file, effect, answer.is_ok());
        }
        answer
    }

    async fn fallocate(&mut self) {
        let Some(open) = self.pick(true) else { return };
        if open.file == COUNTER {
            return;
        }
        let cells = self.cells();
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        let (mode, clears) = match self.random.random_range(0..4) {
            0 => (0, false),
            1 => (libc::FALLOC_FL_ZERO_RANGE as u32, true),
            _ => (libc::FALLOC_FL_PUNCH_HOLE as u32 | keep, true),
        };
        let up = self.client().clone();
        let (ino, off, effect) = {
            let mut model = self.world.model.lock();
            let cleared = if clears { cells.clone() } else { 0..0 };
            let effect = model.begin(open.file, up.incarnation, What::Clear, cleared);
            let file = &model.files[open.file];
            (file.ino, file.offset(cells.start), effect)
        };
        let len = u64::from(cells.end - cells.start) * CELL_BYTES as u64;
        let root = Caller::root();
        let request = up.vfs.fallocate(&root, ino, open.handle, mode, off, len);
        let answer = self.applying(open.file, effect, request).await;
        self.say(|| format!("fallocate f{} {cells:?} {mode} #{effect}: {}", open.file, flat(&answer)));
    }

    async fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.pick(false), self.pick(true)) else { return };
        if to.file == COUNTER {
            return;
        }
        let source = self.cells();
        let len = source.end - source.start;
        let at = self.random.random_range(0..CELLS - len);
        if from.file == to.file && at < source.end && source.start < at + len {
            return;
        }
        let up = self.client().clone();
        let (effect, from_off, to_off, of_source) = {
            let mut model = self.world.model.lock();
            let what = What::Copy { file: from.file as u32, cell: source.start, to: at };
            let effect = model.begin(to.file, up.incarnation, what, at..at + len);
            let of_source = model.unsettled(from.file, up.incarnation);
            (effect, model.files[from.file].offset(source.start), model.files[to.file].offset(at), of_source)
        };
        let bytes = u64::from(len) * CELL_BYTES as u64;
        let root = Caller::root();
        let request = up.vfs.copy_file_range(&root, from.handle, from_off, to.handle, to_off, bytes);
        let answer = self.applying_copy(from.file, to.file, effect, request).await;
        self.say(|| {
            let copied = answer.as_ref().map_or(0, |copied| *copied);
            format!("copy f{} {source:?} to f{} {at} #{effect}: {} {copied}", from.file, to.file, flat(&answer))
        });
        if let Ok(copied) = answer {
            let mut model = self.world.model.lock();
            assert_eq!(copied % CELL_BYTES as u64, 0, "files end with a cell");
            model.cut_copy(to.file, effect, at + (copied / CELL_BYTES as u64) as u32);
            let flushed = model.flushed(from.file, &of_source, true);
            drop(model);
            flushed.unwrap_or_else(|why| panic!("c{}.{} file {}: {why}", self.slot, self.number, from.file));
        }
    }

    async fn applying_copy<T>(
        &self,
        from: usize,
        to: usize,
        effect: usize,
        request: impl Future<Output = Outcome<T>>,
    ) -> Result<T, Failed> {
        // Either file may be the one whose end explains a failure.
        let going = {
            let model = self.world.model.lock();
            model.files[from].going.is_some()
        };
        let by = self.client().incarnation;
        let writes = self.world.model.lock().unsettled(to, by);
        let answer = self.call(request).await;
        if let Err(failed) = &answer
            && !going
        {
            self.excuse_either("copy", from, to, failed);
        }
        if !matches!(answer, Err(Failed::Gone)) {
            let mut model = self.world.model.lock();
            if answer.is_ok()
                && let Err(why) = model.flushed(to, &writes, true)
            {
                panic!("c{}.{} file {to}: {why}", self.slot, self.number);
            }
            model.applied(to, effect, answer.is_ok());
        }
        answer
    }

    fn excuse_either(&self, what: &str, from: usize, to: usize, failed: &Failed) {
        let of_source = self.world.model.lock().files[from].going.is_some();
        if !of_source {
            self.excuse(what, to, failed);
        }
    }

    /// Reads the shared counter and writes it anew, under its lock: no two at once, and no value is lost.
    async fn count(&mut self) {
        self.make_room().await;
        let before = self.open.len();
        let up = self.client().clone();
        let ino = self.ino(COUNTER);
        let opened = self.tick();
        let answer = self.call(up.vfs.open(&Caller::root(), ino, libc::O_RDWR)).await;
        let handle = match answer {
            Ok(answer) => answer.handle,
            Err(failed) => return self.excuse("open", COUNTER, &failed),
        };
        self.opened(COUNTER, handle, true, opened);
        let owner = self.owner();
        let wait = self.random.random_bool(0.5) && !self.world.plan.is_faulty();
        let lock = |kind| up.vfs.setlk(ino, owner, 0, i64::MAX as u64, kind, 1, wait);
        let locked = self.call(lock(LockKind::Write)).await;
        self.say(|| format!("lock {wait}: {}", flat(&locked)));
        match locked {
            Ok(()) => {
                let may_end = self.world.plan.sessions_may_end();
                let me = (up.incarnation, self.number);
                {
                    let mut holder = self.world.lock_holder.lock();
                    assert!(may_end || holder.is_none(), "{me:?} got a lock that {holder:?} holds");
                    *holder = Some(me);
                }
                let open = OpenFile { file: COUNTER, handle, writes: true, opened: self.tick() };
                self.read_cells(open, 0..1).await;
                self.write_cells(open, 0..1).await;
                {
                    let mut holder = self.world.lock_holder.lock();
                    if *holder == Some(me) {
                        *holder = None;
                    }
                }
                let unlocked = self.flushing(COUNTER, lock(LockKind::Unlock)).await;
                self.say(|| format!("unlock: {}", flat(&unlocked)));
                if let Err(failed) = unlocked {
                    self.excuse("unlock", COUNTER, &failed);
                }
            }
            Err(Failed::Answer(Errno::EAGAIN)) if !wait => {}
            Err(failed) => self.excuse("lock", COUNTER, &failed),
        }
        self.come_up().await;
        if self.open.len() > before {
            self.close(before).await;
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
                        self.opened(file, answer.handle, true, opened);
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
                    Ok(entry) if entry.attr.is_dir() => {
                        let (from, to) = if action == 9 { (dir, entry.ino) } else { (entry.ino, dir) };
                        let how =
                            if self.random.random_bool(0.5) { RenameMode::Replace } else { RenameMode::NoReplace };
                        self.call(up.vfs.rename(&root, from, &other, to, &other, how)).await
                    }
                    Ok(entry) => self.call(up.vfs.link(&root, entry.ino, dir, &other)).await.map(drop),
                    Err(failed) => Err(failed),
                }
            }
            _ => {
                let listed = async {
                    let opened = up.vfs.opendir(&root, dir).await?;
                    let items = up.vfs.readdir(dir, opened.handle, 0).await?;
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
            Err(failed) => assert!(self.world.plan.is_faulty(), "c{} shared {action}: {failed}", self.slot),
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

/// Looks at what a read answered; what is missing at the end shows nothing, as zeros do.
pub fn judge(world: &World, file: usize, cells: Range<u32>, bytes: &[u8], reader: Reader) {
    let found = judge_cells(&mut world.model.lock(), file, cells, bytes, reader);
    found.unwrap_or_else(|why| panic!("{why}"));
}

fn judge_cells(model: &mut Model, file: usize, cells: Range<u32>, bytes: &[u8], reader: Reader) -> Result<(), String> {
    if bytes.len() % CELL_BYTES != 0 {
        return Err(format!("file {file} ends with a part of a cell: {} bytes from cell {}", bytes.len(), cells.start));
    }
    let mut shown = bytes.chunks(CELL_BYTES);
    for cell in cells {
        let bytes = shown.next().unwrap_or(&[]);
        if !model.files[file].is_written(cell) {
            if !is_zero(bytes) {
                return Err(format!("file {file}, cell {cell}, where nobody wrote: {bytes:02x?}"));
            }
            continue;
        }
        let value =
            parse(bytes).map_err(|why| format!("file {file}, cell {cell}: {why}\n{}", model.history(file, cell)))?;
        model.judge(file, cell, value, reader)?;
    }
    Ok(())
}
