//! `kill -9` of a mount under load, again and again on one volume.
//!
//! What must hold when the volume is mounted anew:
//! - every change of the tree that was answered is there, and the one that was under way is there or is not;
//! - what fsync or close acknowledged is there byte for byte;
//! - what was written and not acknowledged is there or is not, cell by cell: the file shows an old or a new byte at each
//!   place, never one that nobody wrote there, and it ends at its old end or somewhere in what was appended, without a
//!   hole;
//! - at the end `fsck` finds nothing missing, `gc` finds what the killed mounts left and removes it, and nothing else.
//!
//! A few rounds by default; `SLUICE_KILL_ROUNDS=50` for a run that means it. The seed is printed with a failure and can
//! be given again as `SLUICE_KILL_SEED`; how threads interleave is not in it.

use crate::cells::{CELL, Version, cells, versions};
use crate::harness::{Engine, Mount, SLUICE, Store, UNCACHED, Volume, output, program, ready, run};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::collections::{BTreeMap, BTreeSet, HashMap};
use std::fs::{File, Metadata, OpenOptions};
use std::io;
use std::ops::Range;
use std::os::fd::IntoRawFd;
use std::os::unix::fs::{FileExt, MetadataExt};
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

const ROUNDS: usize = 4;
const WRITERS: u32 = 6;
/// Files of a writer beyond which it removes more than it makes.
const FILES_MAX: usize = 30;
/// Cells of the longest file: some blocks of 256 KiB.
const CELLS_MAX: usize = (1 << 20) / CELL;
/// Cells of a write, mostly; one in ten is longer.
const WRITE_CELLS: usize = 400;
/// Dead mounts are cleaned up after so long.
const CLEANED: Duration = Duration::from_secs(200);

/// A regular file as its writer knows it.
#[derive(Clone, Debug, Default)]
struct Content {
    /// 0 while it is not known: its creation was under way.
    ino: u64,
    /// What was acknowledged.
    firm: Vec<Version>,
    /// Written since, in order.
    loose: Vec<(Range<usize>, Version)>,
    /// A truncate under way: the length in cells that it asked for.
    truncating: Option<usize>,
}

impl Content {
    /// As a reader of the living mount sees it.
    fn shown(&self) -> Vec<Version> {
        let mut shown = self.firm.clone();
        for (range, version) in &self.loose {
            shown.resize(shown.len().max(range.end), 0);
            shown[range.clone()].fill(*version);
        }
        shown
    }

    fn acknowledge(&mut self) {
        self.firm = self.shown();
        self.loose.clear();
    }

    fn truncate(&mut self, len: usize) {
        self.firm.resize(len, 0);
    }

    /// What is wrong with `found`, the file's cells after a crash.
    fn judge(&self, found: &[Version]) -> Result<(), String> {
        let firm = self.firm.len();
        let longest = self.loose.iter().map(|(range, _)| range.end).max().unwrap_or(0).max(firm);
        let in_order = (firm..=longest).contains(&found.len());
        if !in_order && self.truncating != Some(found.len()) {
            return Err(format!("{} cells, acknowledged {firm}, written up to {longest}", found.len()));
        }
        for (at, &version) in found.iter().enumerate() {
            let old = self.firm.get(at).copied();
            let grown = self.truncating.is_some() && at >= firm && version == 0;
            let new = || self.loose.iter().any(|(range, new)| range.contains(&at) && *new == version);
            if old != Some(version) && !grown && !new() {
                return Err(format!("cell {at} is of write {version}, acknowledged is {old:?} of {firm} cells"));
            }
        }
        Ok(())
    }
}

/// A change of the tree.
#[derive(Clone, Debug)]
enum Change {
    Create(String, u32),
    Unlink(String),
    Rename(String, String),
    Link(String, String),
    Mkdir(String),
    Rmdir(String),
}

/// Names of one writer, and the files behind them.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
struct Tree {
    names: BTreeMap<String, u32>,
    dirs: BTreeSet<String>,
}

impl Tree {
    fn apply(&mut self, change: &Change) {
        match change {
            Change::Create(name, file) => {
                self.names.insert(name.clone(), *file);
            }
            Change::Unlink(name) => {
                self.names.remove(name);
            }
            Change::Rename(from, to) => {
                let file = self.names.remove(from).expect("it is there");
                self.names.insert(to.clone(), file);
            }
            Change::Link(from, to) => {
                self.names.insert(to.clone(), self.names[from]);
            }
            Change::Mkdir(dir) => {
                self.dirs.insert(dir.clone());
            }
            Change::Rmdir(dir) => {
                self.dirs.remove(dir);
            }
        }
    }
}

/// One writer, with a directory of its own.
struct Writer {
    number: u32,
    random: StdRng,
    tree: Tree,
    files: HashMap<u32, Content>,
    next_file: u32,
    next_version: Version,
    /// Under way when the mount died.
    doubt: Option<Change>,
    /// Open over several steps, with unacknowledged writes.
    held: Option<(File, u32)>,
    /// Appended to and synced most often.
    journal: Option<u32>,
    done: usize,
}

type Step = io::Result<()>;

fn close(file: File) -> Step {
    // SAFETY: the descriptor is ours, and is not used after this.
    if unsafe { libc::close(file.into_raw_fd()) } == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Writer {
    fn new(number: u32, seed: u64) -> Writer {
        let (tree, files) = Default::default();
        let random = StdRng::seed_from_u64(seed);
        let (next_file, next_version, doubt, held, journal, done) = (1, 1, None, None, None, 0);
        Writer { number, random, tree, files, next_file, next_version, doubt, held, journal, done }
    }

    fn dir(&self, point: &Path) -> PathBuf {
        point.join(format!("writer-{}", self.number))
    }

    /// Works until the mount is gone or it is told to end. `killed` is set before the mount is killed: an error earlier
    /// than that is a failure.
    fn work(&mut self, point: &Path, killed: &AtomicBool, end: &AtomicBool) {
        let root = self.dir(point);
        let mut steps = || {
            if !root.exists() {
                std::fs::create_dir(&root)?;
            }
            while !end.load(Ordering::SeqCst) {
                self.step(&root)?;
                self.done += 1;
            }
            if let Some((open, file)) = self.held.take() {
                close(open)?;
                self.acknowledged(file);
            }
            Ok(())
        };
        let ended: Step = steps();
        if let Err(error) = ended {
            assert!(killed.load(Ordering::SeqCst), "writer {}: {error}", self.number);
        }
        self.held = None;
    }

    fn step(&mut self, root: &Path) -> Step {
        let crowded = self.tree.names.len() > FILES_MAX;
        match self.random.random_range(0..100) {
            0..16 if !crowded => self.create(root),
            0..16 => self.unlink(root),
            16..36 => self.append_to_journal(root),
            36..50 => self.overwrite(root),
            50..58 => self.truncate(root),
            58..66 => self.rename(root),
            66..72 => self.unlink(root),
            72..76 => self.link(root),
            76..82 => self.make_or_remove_directory(root),
            82..94 => self.hold(root),
            _ => self.read(root),
        }
    }

    fn change(&mut self, change: Change, call: impl FnOnce() -> Step) -> Step {
        self.doubt = Some(change.clone());
        call()?;
        self.doubt = None;
        self.tree.apply(&change);
        let named: BTreeSet<u32> = self.tree.names.values().copied().collect();
        let held = self.held.as_ref().map(|(_, file)| *file);
        self.files.retain(|file, _| named.contains(file) || held == Some(*file));
        Ok(())
    }

    /// A name for something new, sometimes one that is taken.
    fn new_name(&mut self) -> String {
        let number = self.random.random_range(0..1000);
        let count = self.tree.dirs.len();
        match self.tree.dirs.iter().nth(self.random.random_range(0..=count)) {
            Some(dir) => format!("{dir}/f{number}"),
            None => format!("f{number}"),
        }
    }

    fn some_name(&mut self) -> Option<String> {
        let count = self.tree.names.len();
        (count > 0).then(|| self.tree.names.keys().nth(self.random.random_range(0..count)).expect("inside").clone())
    }

    /// A file without unacknowledged writes, with one of its names.
    fn settled_file(&mut self) -> Option<(String, u32)> {
        let name = self.some_name()?;
        let file = self.tree.names[&name];
        self.files[&file].loose.is_empty().then_some((name, file))
    }

    fn write(&mut self, open: &File, file: u32, first: usize) -> Step {
        let longest = if self.random.random_bool(0.1) { CELLS_MAX / 2 } else { WRITE_CELLS };
        let count = self.random.random_range(1..=longest.min(CELLS_MAX - first));
        let version = self.next_version;
        self.next_version += 1;
        self.files.get_mut(&file).expect("known").loose.push((first..first + count, version));
        open.write_all_at(&cells(file, first, count, version), (first * CELL) as u64)
    }

    fn acknowledged(&mut self, file: u32) {
        self.files.get_mut(&file).expect("known").acknowledge();
    }

    fn create_file(&mut self, root: &Path) -> io::Result<Option<(File, u32)>> {
        let name = self.new_name();
        if self.tree.names.contains_key(&name) {
            return Ok(None);
        }
        let file = self.number << 20 | self.next_file;
        self.next_file += 1;
        self.files.insert(file, Content::default());
        let mut open = None;
        self.change(Change::Create(name.clone(), file), || {
            open = Some(OpenOptions::new().read(true).write(true).create_new(true).open(root.join(&name))?);
            Ok(())
        })?;
        let open: File = open.expect("it was opened");
        self.files.get_mut(&file).expect("known").ino = open.metadata()?.ino();
        Ok(Some((open, file)))
    }

    fn create(&mut self, root: &Path) -> Step {
        let Some((open, file)) = self.create_file(root)? else { return Ok(()) };
        for _ in 0..self.random.random_range(0..3) {
            let first = self.files[&file].shown().len();
            if first < CELLS_MAX {
                self.write(&open, file, first)?;
            }
        }
        close(open)?;
        self.acknowledged(file);
        Ok(())
    }

    fn append_to_journal(&mut self, root: &Path) -> Step {
        let journal = self.journal.and_then(|file| {
            let mut names = self.tree.names.iter();
            names.find(|(_, named)| **named == file).map(|(name, _)| (name.clone(), file))
        });
        let (name, file) = match journal {
            Some(journal) if self.files[&journal.1].firm.len() + 8 < CELLS_MAX => journal,
            _ => match self.settled_file() {
                Some(other) => other,
                None => return Ok(()),
            },
        };
        self.journal = Some(file);
        if !self.files[&file].loose.is_empty() {
            return Ok(());
        }
        let open = OpenOptions::new().append(true).open(root.join(name))?;
        for _ in 0..3 {
            let first = self.files[&file].firm.len();
            if first + 8 >= CELLS_MAX {
                break;
            }
            let version = self.next_version;
            self.next_version += 1;
            self.files.get_mut(&file).expect("known").loose.push((first..first + 8, version));
            io::Write::write_all(&mut &open, &cells(file, first, 8, version))?;
            open.sync_all()?;
            self.acknowledged(file);
        }
        close(open)
    }

    fn overwrite(&mut self, root: &Path) -> Step {
        let Some((name, file)) = self.settled_file() else { return Ok(()) };
        let open = OpenOptions::new().write(true).open(root.join(name))?;
        for _ in 0..self.random.random_range(1..4) {
            let first = self.random.random_range(0..=self.files[&file].shown().len().min(CELLS_MAX - 1));
            self.write(&open, file, first)?;
        }
        open.sync_data()?;
        self.acknowledged(file);
        close(open)
    }

    fn truncate(&mut self, root: &Path) -> Step {
        let Some((name, file)) = self.settled_file() else { return Ok(()) };
        let len = self.random.random_range(0..(self.files[&file].firm.len() * 5 / 4 + 2).min(CELLS_MAX));
        self.files.get_mut(&file).expect("known").truncating = Some(len);
        let open = OpenOptions::new().write(true).open(root.join(name))?;
        open.set_len((len * CELL) as u64)?;
        let content = self.files.get_mut(&file).expect("known");
        content.truncating = None;
        content.truncate(len);
        close(open)
    }

    fn rename(&mut self, root: &Path) -> Step {
        let Some(from) = self.some_name() else { return Ok(()) };
        // Half of them over another file.
        let to = match self.some_name().filter(|_| self.random.random_bool(0.5)) {
            Some(to) => to,
            None => self.new_name(),
        };
        // Two names of one file stay as they are.
        if self.tree.names.get(&to) == Some(&self.tree.names[&from]) {
            return Ok(());
        }
        self.change(Change::Rename(from.clone(), to.clone()), || std::fs::rename(root.join(from), root.join(to)))
    }

    fn unlink(&mut self, root: &Path) -> Step {
        let Some(name) = self.some_name() else { return Ok(()) };
        self.change(Change::Unlink(name.clone()), || std::fs::remove_file(root.join(name)))
    }

    fn link(&mut self, root: &Path) -> Step {
        let (Some(from), to) = (self.some_name(), self.new_name()) else { return Ok(()) };
        if self.tree.names.contains_key(&to) {
            return Ok(());
        }
        self.change(Change::Link(from.clone(), to.clone()), || std::fs::hard_link(root.join(from), root.join(to)))
    }

    fn make_or_remove_directory(&mut self, root: &Path) -> Step {
        let dir = format!("d{}", self.random.random_range(0..6));
        if !self.tree.dirs.contains(&dir) {
            return self.change(Change::Mkdir(dir.clone()), || std::fs::create_dir(root.join(dir)));
        }
        let inside = format!("{dir}/");
        if self.tree.names.keys().any(|name| name.starts_with(&inside)) {
            return Ok(());
        }
        self.change(Change::Rmdir(dir.clone()), || std::fs::remove_dir(root.join(dir)))
    }

    /// Goes on with a file that stays open without being synced, also when its names go.
    fn hold(&mut self, root: &Path) -> Step {
        let Some((open, file)) = self.held.take() else {
            self.held = match self.settled_file() {
                Some((name, file)) if self.random.random_bool(0.5) => {
                    Some((OpenOptions::new().read(true).write(true).open(root.join(name))?, file))
                }
                _ => self.create_file(root)?,
            };
            return Ok(());
        };
        match self.random.random_range(0..10) {
            0 => {
                // The file descriptor is gone whatever close answers.
                close(open)?;
                self.acknowledged(file);
                return Ok(());
            }
            1 => {
                open.sync_all()?;
                self.acknowledged(file);
            }
            2 => {
                let shown = self.files[&file].shown();
                self.compare(&open, file, &shown)?;
            }
            _ => {
                let len = self.files[&file].shown().len();
                let first = if self.random.random_bool(0.6) { len } else { self.random.random_range(0..=len) };
                if first < CELLS_MAX {
                    self.write(&open, file, first)?;
                }
            }
        }
        self.held = Some((open, file));
        Ok(())
    }

    fn read(&mut self, root: &Path) -> Step {
        let Some(name) = self.some_name() else { return Ok(()) };
        let file = self.tree.names[&name];
        let shown = self.files[&file].shown();
        self.compare(&File::open(root.join(name))?, file, &shown)
    }

    fn compare(&self, open: &File, file: u32, shown: &[Version]) -> Step {
        let mut bytes = vec![0; shown.len() * CELL];
        open.read_exact_at(&mut bytes, 0)?;
        let found = versions(file, 0, &bytes).unwrap_or_else(|why| panic!("in the living mount: {why}"));
        assert!(found == shown, "file {file:#x} of the living mount does not show what was written");
        Ok(())
    }

    /// Compares the volume with what must be there, and goes on from what is there.
    fn verify(&mut self, point: &Path) {
        let root = self.dir(point);
        let mut found = Tree::default();
        let mut inodes: HashMap<u64, (u32, u64)> = HashMap::new();
        let mut doubted = self.tree.clone();
        if let Some(change) = &self.doubt {
            doubted.apply(change);
        }
        let mut waiting = if root.exists() { vec![String::new()] } else { Vec::new() };
        while let Some(dir) = waiting.pop() {
            for entry in std::fs::read_dir(root.join(&dir)).expect("the directory is listed") {
                let entry = entry.expect("an entry");
                let name = format!("{dir}{}", entry.file_name().to_str().expect("our names are text"));
                let meta = entry.path().symlink_metadata().unwrap_or_else(|error| panic!("{name}: {error}"));
                if meta.is_dir() {
                    waiting.push(format!("{name}/"));
                    found.dirs.insert(name);
                    continue;
                }
                let file = self.identify(&root, &name, &meta, &doubted);
                let (known, links) = inodes.entry(meta.ino()).or_insert((file, 0));
                assert_eq!(*known, file, "writer {}: {name} shares an inode with another file", self.number);
                *links += 1;
                let names = |tree: &Tree| tree.names.values().filter(|named| **named == file).count() as u64;
                let right = [names(&self.tree), names(&doubted)];
                assert!(right.contains(&meta.nlink()), "{name}: {} links, {right:?} names", meta.nlink());
                found.names.insert(name, file);
            }
        }
        assert!(
            found == self.tree || found == doubted,
            "writer {}: the tree is another one\nfound {found:?}\nwas {:?}\nunder way {:?}",
            self.number,
            self.tree,
            self.doubt
        );
        let mut files: Vec<u32> = inodes.values().map(|(file, _)| *file).collect();
        files.sort_unstable();
        assert!(files.windows(2).all(|two| two[0] != two[1]), "one file has become two inodes: {files:?}");
        self.tree = found;
        self.doubt = None;
        self.files.retain(|file, _| files.contains(file));
    }

    /// Reads a file and judges it as the one that has this name, before or after what was under way.
    fn identify(&mut self, root: &Path, name: &str, meta: &Metadata, doubted: &Tree) -> u32 {
        let (number, len, ino) = (self.number, meta.len(), meta.ino());
        assert_eq!(len % CELL as u64, 0, "writer {number}: {name} has {len} bytes, which is no number of cells");
        let bytes = std::fs::read(root.join(name)).unwrap_or_else(|error| panic!("{name} cannot be read: {error}"));
        assert_eq!(bytes.len() as u64, len, "writer {number}: {name} ends elsewhere than it says");
        let candidates: BTreeSet<u32> =
            [&self.tree, doubted].into_iter().filter_map(|tree| tree.names.get(name)).copied().collect();
        let mut reasons = Vec::new();
        for file in candidates {
            let content = self.files.get_mut(&file).expect("known");
            if content.ino != 0 && content.ino != ino {
                reasons.push(format!("file {file:#x} is inode {}, not {ino}", content.ino));
                continue;
            }
            match versions(file, 0, &bytes).and_then(|found| content.judge(&found).map(|()| found)) {
                Ok(found) => {
                    *content = Content { ino, firm: found, ..Content::default() };
                    return file;
                }
                Err(why) => reasons.push(format!("file {file:#x}: {why}")),
            }
        }
        panic!("writer {number}: {name} is none of what it may be: {reasons:?}; under way {:?}", self.doubt);
    }
}

fn rounds() -> usize {
    std::env::var("SLUICE_KILL_ROUNDS").ok().and_then(|n| n.parse().ok()).unwrap_or(ROUNDS)
}

fn verify_all(writers: &mut [Writer], mount: &Mount) {
    std::thread::scope(|scope| {
        for writer in writers {
            scope.spawn(|| writer.verify(&mount.point));
        }
    });
}

fn kill_again_and_again(engine: Engine) {
    if !ready(&[&["juicefs"], engine.programs()].concat()) {
        return;
    }
    let peer = program("juicefs").expect("it was looked for");
    let seed = std::env::var("SLUICE_KILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("SLUICE_KILL_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let volume = Volume::format(engine, Store::File, &["--trash-days", "0", "--block-size", "256"]);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, random.random())).collect();
    for round in 0..rounds() {
        if round % 5 == 4 {
            let theirs = volume.mount_with(&peer, &["--heartbeat", "2"]);
            verify_all(&mut writers, &theirs);
            theirs.umount();
        }
        let mount = volume.mount(&["--heartbeat", "2"]);
        verify_all(&mut writers, &mount);
        let (before, killed, end) = (steps(&writers), AtomicBool::new(false), AtomicBool::new(false));
        std::thread::scope(|scope| {
            for writer in &mut writers {
                scope.spawn(|| writer.work(&mount.point, &killed, &end));
            }
            std::thread::sleep(Duration::from_millis(random.random_range(300..3000)));
            killed.store(true, Ordering::SeqCst);
            mount.kill();
        });
        println!("round {round}: {} steps", steps(&writers) - before);
        assert!(!mount.log_text().contains("<ERROR>"), "the log has errors:\n{}", mount.log_text());
    }
    // The dead mounts' sessions end, and with them the files that only they held.
    let last = volume.mount(&["--heartbeat", "2"]);
    verify_all(&mut writers, &last);
    sessions_end(&volume, 1);
    last.umount();
    collect_and_check(&volume, &peer);
    let again = volume.mount(&[]);
    verify_all(&mut writers, &again);
    again.umount();
}

/// Waits until there are no more sessions than those of the living mounts.
pub fn sessions_end(volume: &Volume, living: usize) {
    let begun = Instant::now();
    while volume.sluice(&["status", &volume.meta_url]).matches("\"Sid\"").count() > living {
        assert!(begun.elapsed() < CLEANED, "dead sessions are still there");
        std::thread::sleep(Duration::from_millis(500));
    }
}

/// A mount of ours and one of the peer, each with writers of its own: one of the two is killed, in turn, and the other
/// one goes on. What the dead one acknowledged is there for the living one, and for who comes after.
fn kill_one_of_two(engine: Engine) {
    if !ready(&[&["juicefs"], engine.programs()].concat()) {
        return;
    }
    let programs = [PathBuf::from(SLUICE), program("juicefs").expect("it was looked for")];
    let seed = std::env::var("SLUICE_KILL_SEED").ok().and_then(|s| s.parse().ok()).unwrap_or_else(rand::random);
    println!("SLUICE_KILL_SEED={seed}");
    let mut random = StdRng::seed_from_u64(seed);
    let volume = Volume::format(engine, Store::File, &["--trash-days", "0", "--block-size", "256"]);
    let mut writers: Vec<Writer> = (0..WRITERS).map(|number| Writer::new(number, random.random())).collect();
    let mount = |program| volume.mount_with(program, &[&UNCACHED[..], &["--heartbeat", "2"]].concat());
    let mut mounts = programs.each_ref().map(mount);
    for round in 0..rounds() {
        let dies = round % 2;
        let (killed, never, end) = (AtomicBool::new(false), AtomicBool::new(false), AtomicBool::new(false));
        let before: Vec<usize> = writers.iter().map(|writer| writer.done).collect();
        std::thread::scope(|scope| {
            for writer in &mut writers {
                let mine = writer.number as usize % 2;
                let (point, killed) = (&mounts[mine].point, if mine == dies { &killed } else { &never });
                let end = &end;
                scope.spawn(move || writer.work(point, killed, end));
            }
            std::thread::sleep(Duration::from_millis(random.random_range(300..2000)));
            killed.store(true, Ordering::SeqCst);
            mounts[dies].kill();
            std::thread::sleep(Duration::from_millis(1500)); // the other one goes on
            end.store(true, Ordering::SeqCst);
        });
        let done: Vec<usize> = writers.iter().zip(before).map(|(writer, before)| writer.done - before).collect();
        println!("round {round}: steps of each writer {done:?}");
        verify_all(&mut writers, &mounts[1 - dies]);
        mounts[dies] = mount(&programs[dies]);
        verify_all(&mut writers, &mounts[dies]);
        assert!(!mounts[0].log_text().contains("<ERROR>"), "the log has errors:\n{}", mounts[0].log_text());
    }
    sessions_end(&volume, 2);
    mounts.iter().for_each(Mount::umount);
    collect_and_check(&volume, &programs[1]);
    let again = volume.mount(&[]);
    verify_all(&mut writers, &again);
    again.umount();
}

fn steps(writers: &[Writer]) -> usize {
    writers.iter().map(|writer| writer.done).sum()
}

/// Nothing is missing; what is left over is found, removed, and not found again, by us and by the peer.
pub fn collect_and_check(volume: &Volume, peer: &Path) {
    let programs = [Path::new(SLUICE), peer];
    let check =
        || programs.iter().for_each(|program| drop(run(volume.command(program).args(["fsck", &volume.meta_url]))));
    let gc = |program: &Path, options: &[&str]| {
        let mut command = volume.command(program);
        command.env("JFS_GC_SKIPPEDTIME", "0").arg("gc").args(options).arg(&volume.meta_url);
        let output = output(&mut command);
        let text = String::from_utf8_lossy(&[output.stdout, output.stderr].concat()).into_owned();
        assert!(output.status.success(), "gc: {text}");
        text.lines().find(|line| line.contains("scanned ")).unwrap_or_else(|| panic!("no sum of gc: {text}")).to_owned()
    };
    check();
    println!("{}", gc(programs[0], &["--delete"]));
    for program in programs {
        let sum = gc(program, &[]);
        assert!(sum.contains(" 0 leaked") && sum.contains(" 0 pending delete"), "{}: {sum}", program.display());
    }
    check();
}

#[test]
fn a_redis_volume_outlives_its_mounts() {
    kill_again_and_again(Engine::Redis);
}

#[test]
fn a_sqlite_volume_outlives_its_mounts() {
    kill_again_and_again(Engine::Sqlite);
}

#[test]
fn one_of_two_on_a_redis_volume_is_killed() {
    kill_one_of_two(Engine::Redis);
}

#[test]
fn one_of_two_on_a_sqlite_volume_is_killed() {
    kill_one_of_two(Engine::Sqlite);
}
