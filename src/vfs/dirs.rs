//! Open directories. A stream keeps what it has read from the metadata, so that the offsets it gave out stay valid
//! however the directory changes meanwhile; going back to the start reads afresh, as rewinddir(3) asks. How old the
//! entries are is told with them: attributes among them go into the kernel's caches, where nothing may be that this client
//! has changed since, nor what the kernel would not believe any more ([`super::ops`]).

mod past;

use crate::base::{Attr, Errno, Fault, Ino, Kind, Name, Outcome};
use crate::meta::Meta;
use crate::meta::engine::{Cursor, PlusPage};
use past::Past;
use std::collections::HashSet;
use std::ops::Range;
use std::sync::Arc;
use tokio::task::JoinHandle;
use tokio::time::Instant;

/// Entries read at first: about what one answer holds, so that who waits for it does not wait for the others. They
/// follow while the first are looked at.
const FIRST_ENTRIES: usize = 256;
/// Entries read at a time in the end; each page is larger than the one before.
const PAGE_ENTRIES: usize = 4096;
const GROWTH: usize = 4;

/// One entry as readdir answers it.
#[derive(Clone, Debug)]
pub struct DirItem {
    pub ino: Ino,
    pub kind: Kind,
    pub name: Name,
    /// Missing when attributes were not asked for, or when the node is gone.
    pub attr: Option<Attr>,
    /// The name had gone, or was another node's, when it was looked at once more: it is listed as it was, and whoever
    /// wants more than the name has to look it up.
    pub gone: bool,
    /// Since when this is known.
    pub asked: Instant,
    /// Where the next call goes on after this entry.
    pub next: u64,
}

enum Progress {
    Fresh,
    At(Cursor),
    /// The page that begins there is being read.
    Coming(Cursor, Reading),
    End,
}

/// A page on its way, and when it was asked for. Nobody waits for it any more when this is dropped.
struct Reading {
    asked: Instant,
    page: JoinHandle<Outcome<PlusPage>>,
}

impl Drop for Reading {
    fn drop(&mut self) {
        self.page.abort();
    }
}

impl Progress {
    /// A page is there that is not among the items yet.
    fn has_come(&self) -> bool {
        matches!(self, Progress::Coming(_, reading) if reading.page.is_finished())
    }
}

pub struct DirStream {
    dir: Ino,
    /// What was told, and what follows it. Attributes are kept of the latter alone, which is no more than some pages.
    past: Past,
    items: Vec<DirItem>,
    /// Names of `items`, kept from the second page on: hash-ordered engines may repeat an entry across pages.
    seen: Option<HashSet<Name>>,
    /// When the first page was asked for.
    began: Instant,
    progress: Progress,
    /// Where the last page begins among the items, and how many entries were asked for.
    last_page: (usize, usize),
    /// The last answer. The kernel takes what fits of it and goes on where it stopped.
    told: Range<usize>,
    /// How many entries the kernel takes at a time, as far as that is known, and some more.
    fits: usize,
}

impl DirStream {
    /// Nothing is asked before the first read: it tells whether the directory is there.
    pub fn new(dir: Ino) -> DirStream {
        DirStream {
            dir,
            past: Past::default(),
            items: Vec::new(),
            seen: None,
            began: Instant::now(),
            progress: Progress::Fresh,
            last_page: (0, 0),
            told: 0..0,
            fits: usize::MAX,
        }
    }

    /// Up to `limit` entries after `offset`; empty at the end. Offset 0 starts anew.
    pub async fn read(&mut self, meta: &Arc<Meta>, offset: u64, limit: usize) -> Outcome<Vec<DirItem>> {
        if offset == 0 {
            self.rewind();
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        if self.told.contains(&from) && from > self.told.start {
            let taken = from - self.told.start;
            // Names differ in length.
            self.fits = taken + taken / 4 + 8;
        } else if from == self.told.end && self.told.len() >= self.fits {
            self.fits = self.fits.saturating_mul(2);
        }
        let limit = limit.min(self.fits);
        self.pass(from);
        // `.` and `..` do not make an answer of their own: the kernel would have to come again for the first entry.
        while self.is_short(from, limit) {
            if let Err(stop) = self.load(meta).await {
                // Whoever comes for what is missing is told, if it is still so then.
                if self.there() > from.max(2) {
                    break;
                }
                return Err(stop);
            }
        }
        // Who reads on in the last page will come for the next one.
        if from >= self.last_page.0 {
            self.read_ahead(meta);
        }
        let items: Vec<DirItem> = match from.checked_sub(self.past.len()) {
            Some(at) => self.items.iter().skip(at).take(limit).cloned().collect(),
            None => (from..self.past.len()).take(limit).filter_map(|at| self.told_before(at)).collect(),
        };
        self.told = from..from + items.len();
        Ok(items)
    }

    /// How many entries were read.
    fn there(&self) -> usize {
        self.past.len() + self.items.len()
    }

    /// Whoever is at `from` has taken what lies before it.
    fn pass(&mut self, from: usize) {
        let passed = from.saturating_sub(self.past.len()).min(self.items.len());
        if passed < PAGE_ENTRIES {
            return;
        }
        for item in self.items.drain(..passed) {
            let indexed = self.seen.as_mut().is_some_and(|seen| seen.remove(&item.name));
            self.past.push(&item.name, item.ino, item.kind, indexed);
        }
    }

    /// An entry that was told and taken. What it has become is not known: whoever wants more than the name looks it up.
    fn told_before(&self, at: usize) -> Option<DirItem> {
        let (name, ino, kind) = self.past.get(at)?;
        Some(DirItem { ino, kind, name, attr: None, gone: true, asked: self.began, next: at as u64 + 1 })
    }

    /// Whether more is to be read before an answer: there is nothing to answer, or so little that the kernel would come
    /// again at once for what is on its way, or more has come already.
    fn is_short(&self, from: usize, limit: usize) -> bool {
        let there = self.there();
        match &self.progress {
            Progress::End => false,
            Progress::Fresh | Progress::At(_) => there <= from.max(2),
            Progress::Coming(..) => {
                let enough = if self.progress.has_come() { limit } else { limit / 2 };
                there < from.saturating_add(enough.max(1))
            }
        }
    }

    fn rewind(&mut self) {
        *self = DirStream { fits: self.fits, ..DirStream::new(self.dir) };
    }

    /// How many entries to ask for after the last page.
    fn grown(&self) -> usize {
        (self.last_page.1 * GROWTH).clamp(FIRST_ENTRIES, PAGE_ENTRIES)
    }

    /// Begins to read the page after the last one, if nobody has and there is one.
    fn read_ahead(&mut self, meta: &Arc<Meta>) {
        if let Progress::At(cursor) = &self.progress {
            let (meta, dir, after, entries) = (meta.clone(), self.dir, cursor.clone(), self.grown());
            let page = tokio::spawn(async move { meta.list(dir, Some(&after), entries).await });
            self.progress = Progress::Coming(cursor.clone(), Reading { asked: Instant::now(), page });
        }
    }

    fn push(&mut self, name: Name, ino: Ino, kind: Kind, attr: Option<Attr>, asked: Instant) {
        let next = self.there() as u64 + 1;
        self.items.push(DirItem { ino, kind, name, attr, gone: false, asked, next });
    }

    async fn load(&mut self, meta: &Arc<Meta>) -> Outcome<()> {
        let entries = self.grown();
        let first = matches!(self.progress, Progress::Fresh);
        self.read_ahead(meta);
        let (page, asked) = match &mut self.progress {
            Progress::Fresh => {
                let asked = Instant::now();
                // What the directory is itself costs no trip of its own.
                let (attr, page) = tokio::join!(meta.getattr(self.dir), meta.list(self.dir, None, entries));
                let attr = attr?;
                if !attr.is_dir() {
                    return Err(Errno::ENOTDIR.into());
                }
                let page = page?;
                self.push(Name::stored(*b"."), self.dir, Kind::Directory, None, asked);
                self.push(Name::stored(*b".."), attr.parent, Kind::Directory, None, asked);
                (page, asked)
            }
            Progress::Coming(cursor, reading) => {
                let read = (&mut reading.page).await;
                let (cursor, asked) = (cursor.clone(), reading.asked);
                // Whoever asks again after a failure begins there anew.
                self.progress = Progress::At(cursor);
                let page = read.unwrap_or_else(|e| Err(Fault::internal("read directory").source(e).into()))?;
                (page, asked)
            }
            Progress::At(_) | Progress::End => return Ok(()),
        };
        self.last_page = (if first { 0 } else { self.there() }, entries);
        if !first && self.seen.is_none() {
            self.seen = Some(self.items.iter().map(|item| item.name.clone()).collect());
        }
        let mut left_out = 0;
        for (name, dentry, attr) in page.entries {
            if !name.is_possible_entry() {
                left_out += 1;
                if left_out == 1 {
                    tracing::warn!(dir = %self.dir, %name, "an entry is left out of listings: it cannot have this name");
                }
                continue;
            }
            let new = self.seen.as_mut().is_none_or(|seen| !self.past.has(&name) && seen.insert(name.clone()));
            if new {
                self.push(name, dentry.ino, dentry.kind, attr, asked);
            }
        }
        self.progress = page.next.map_or(Progress::End, Progress::At);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Caller;
    use crate::meta::engine::mem::MemEngine;
    use crate::meta::engine::{Batch, Change};
    use crate::meta::ops::attr::SetAttr;
    use crate::meta::ops::create::NewNode;
    use crate::meta::ops::rename::RenameMode;
    use crate::meta::record::{Dentry, Key, Record};
    use crate::meta::testing::{file, volume};
    use crate::object::mem::MemStore;
    use crate::util::clock::SystemClock;
    use crate::vfs::tests::client_believing;
    use crate::vfs::{Handle, Vfs};
    use std::collections::HashMap;
    use std::time::Duration;

    /// Bytes, control characters and the marks of other systems are names; what no program could say is left out, and
    /// the others are listed all the same.
    #[tokio::test]
    async fn impossible_names_spoil_no_listing() {
        let meta = volume().await;
        let ino = file(&meta, "plain").await;
        let long = [b'n'; 255];
        let good: [&[u8]; 6] = [b"plain", b"\xff\xfe", b"a\nb\x1b[2J", b"...", b"\\", &long];
        let bad: [&[u8]; 6] = [b"", b".", b"..", b"a/b", b"nul\0", &[b'n'; 256]];
        for name in good.into_iter().chain(bad) {
            let (txn, _) = meta.engine().begin(&[]).await.unwrap();
            let entry = Record::Dentry(Dentry { kind: Kind::File, ino });
            let changes = vec![Change::Put(Key::Dentry(Ino::ROOT, Name::stored(name)), entry)];
            txn.commit(Batch { guards: Vec::new(), changes }).await.unwrap();
        }
        let mut stream = DirStream::new(Ino::ROOT);
        let items = stream.read(&meta, 0, 100).await.unwrap();
        let mut listed: Vec<&[u8]> = items.iter().skip(2).map(|item| item.name.as_bytes()).collect();
        listed.sort_unstable();
        let mut expected = good.to_vec();
        expected.sort_unstable();
        assert_eq!(listed, expected);
        assert!(items.iter().enumerate().all(|(at, item)| item.next == at as u64 + 1), "offsets have no gaps");
    }

    /// However much of an answer is taken.
    #[tokio::test]
    async fn every_entry_is_told_once_whatever_is_taken() {
        let meta = volume().await;
        let mut wanted: Vec<Name> = (0..3 * FIRST_ENTRIES).map(named).collect();
        for name in &wanted {
            file(&meta, std::str::from_utf8(name.as_bytes()).unwrap()).await;
        }
        wanted.sort_unstable();
        for takes in [&[1][..], &[7, 30, 1], &[FIRST_ENTRIES, 3], &[usize::MAX], &[25, 25, 25, 400]] {
            let mut stream = DirStream::new(Ino::ROOT);
            for _twice in 0..2 {
                let (mut told, mut offset, mut calls) = (Vec::new(), 0, 0);
                for take in takes.iter().cycle() {
                    let items = stream.read(&meta, offset, 430).await.unwrap();
                    assert!(items.len() <= 430);
                    let Some(last) = items.iter().take(*take).next_back() else { break };
                    offset = last.next;
                    told.extend(items.iter().take(*take).map(|item| item.name.clone()));
                    calls += 1;
                    if calls % 3 == 0 {
                        tokio::task::yield_now().await;
                    }
                }
                assert_eq!(told.len(), wanted.len() + 2);
                let mut told = told.split_off(2);
                told.sort_unstable();
                assert_eq!(told, wanted, "{takes:?}");
            }
        }
    }

    /// Attributes of what was told are not kept, its names and numbers are: going back in a stream finds them, and no
    /// entry that an engine repeats is told twice.
    #[tokio::test]
    async fn what_was_told_stays_without_its_attributes() {
        let meta = volume().await;
        let files = 3 * PAGE_ENTRIES;
        let mut changes = Vec::new();
        let ino = file(&meta, "f0").await;
        for number in 1..files {
            let entry = Record::Dentry(Dentry { kind: Kind::File, ino });
            changes.push(Change::Put(Key::Dentry(Ino::ROOT, named(number)), entry));
        }
        for changes in changes.chunks(100) {
            let (txn, _) = meta.engine().begin(&[]).await.unwrap();
            txn.commit(Batch { guards: Vec::new(), changes: changes.to_vec() }).await.unwrap();
        }
        let mut stream = DirStream::new(Ino::ROOT);
        let (mut told, mut offset) = (Vec::new(), 0);
        loop {
            let items = stream.read(&meta, offset, 430).await.unwrap();
            let Some(last) = items.last() else { break };
            offset = last.next;
            assert!(items.iter().skip(2).all(|item| item.attr.is_some() || item.name.is_dot_dot()));
            assert!(stream.items.len() <= 3 * PAGE_ENTRIES, "{}", stream.items.len());
            told.extend(items.into_iter().map(|item| item.name));
        }
        assert_eq!(told.len(), files + 2);
        assert!(stream.past.len() >= files - 2 * PAGE_ENTRIES, "{}", stream.past.len());
        for at in [1, 2, 100, PAGE_ENTRIES - 1, files] {
            let items = stream.read(&meta, at as u64, 5).await.unwrap();
            assert_eq!((&items[0].name, items[0].next), (&told[at], at as u64 + 1));
        }
        assert!(!stream.past.has(&named(files)) && stream.past.has(&told[2]));
    }

    /// What follows is read while the first entries are looked at, and no more than a page of it.
    #[tokio::test]
    async fn one_page_is_read_ahead() {
        let meta = volume().await;
        for number in 0..6 * FIRST_ENTRIES {
            file(&meta, &format!("f{number}")).await;
        }
        let mut stream = DirStream::new(Ino::ROOT);
        let first = stream.read(&meta, 0, 430).await.unwrap().len();
        assert_eq!(first, FIRST_ENTRIES + 2, "it does not wait for more");
        while !stream.progress.has_come() {
            tokio::task::yield_now().await;
        }
        let answer = stream.read(&meta, 200, 430).await.unwrap().len();
        assert_eq!(answer, 200 + 200 / 4 + 8, "from both pages, as much as fits");
        assert_eq!(stream.items.len(), 2 + FIRST_ENTRIES * (1 + GROWTH));
        assert!(matches!(stream.progress, Progress::At(_)), "the last page is not begun");
        stream.read(&meta, 300, 430).await.unwrap();
        assert!(matches!(stream.progress, Progress::Coming(..)));
    }

    const BELIEF: Duration = Duration::from_secs(1);
    /// More than two answers hold, no more than two pages.
    const FILES: usize = 1000;

    fn named(number: usize) -> Name {
        Name::stored(format!("f{number}").into_bytes())
    }

    /// Two clients of a directory of `FILES` files, which the first has begun to list.
    async fn listing_begun() -> (Arc<Vfs>, Arc<Vfs>, Handle, Vec<DirItem>) {
        let (engine, objects) = (Arc::new(MemEngine::default()), Arc::new(MemStore::new()));
        let client = || client_believing(engine.clone(), objects.clone(), Arc::new(SystemClock), BELIEF);
        let (lister, other) = (client().await, client().await);
        for number in 0..FILES {
            let node = NewNode { kind: Kind::File, mode: 0o644, umask: 0, rdev: 0, target: None };
            other.meta().create(&Caller::root(), Ino::ROOT, &named(number), &node).await.unwrap();
        }
        let handle = lister.opendir(&Caller::root(), Ino::ROOT).await.unwrap().handle;
        let mut told = lister.readdir(Ino::ROOT, handle, 0, true).await.unwrap();
        // The second answer comes from the second page, which holds more than it.
        told.extend(lister.readdir(Ino::ROOT, handle, told.last().unwrap().next, true).await.unwrap());
        assert!(told.len() < FILES * 3 / 4, "{}", told.len());
        (lister, other, handle, told)
    }

    /// What stands in the rest of the listing under a name.
    async fn rest(vfs: &Vfs, handle: Handle, mut items: Vec<DirItem>) -> HashMap<Name, DirItem> {
        let mut found = HashMap::new();
        while let Some(last) = items.last() {
            items = vfs.readdir(Ino::ROOT, handle, last.next, true).await.unwrap();
            found.extend(items.iter().map(|item| (item.name.clone(), item.clone())));
        }
        found
    }

    /// Changes three files of which the listing has not told yet: one gets another mode, one goes, one takes the
    /// place of another.
    async fn change(vfs: &Vfs, told: &[DirItem]) -> [Name; 3] {
        let root = Caller::root();
        let mut left = (0..FILES).map(named).filter(|name| told.iter().all(|item| item.name != *name));
        let names = [(); 3].map(|()| left.next().unwrap());
        let ino = vfs.lookup(&root, Ino::ROOT, &names[0]).await.unwrap().entry.ino;
        vfs.setattr(&root, ino, None, None, &SetAttr { mode: Some(0o600), ..SetAttr::default() }).await.unwrap();
        vfs.unlink(&root, Ino::ROOT, &names[1]).await.unwrap();
        let last = left.last().unwrap();
        vfs.rename(&root, Ino::ROOT, &last, Ino::ROOT, &names[2], RenameMode::Replace).await.unwrap();
        names
    }

    fn is_told(found: &HashMap<Name, DirItem>, [mode, gone, replaced]: &[Name; 3]) -> [bool; 3] {
        let unsure = |name| found[name].attr.is_none() && found[name].gone;
        [found[mode].attr.unwrap().mode == 0o600, unsure(gone), unsure(replaced)]
    }

    /// The kernel would believe the old attributes otherwise, over the change that it has just sent.
    #[tokio::test(start_paused = true)]
    async fn a_listing_under_way_tells_own_changes_at_once() {
        let (lister, _, handle, first) = listing_begun().await;
        let names = change(&lister, &first).await;
        let found = rest(&lister, handle, first).await;
        assert_eq!(is_told(&found, &names), [true; 3]);
        assert_eq!(found.values().filter(|item| item.attr.is_none()).count(), 3, "only what has gone is unsure");
    }

    #[tokio::test(start_paused = true)]
    async fn a_listing_under_way_tells_what_others_changed_before_the_kernel_doubts_it() {
        let (lister, other, handle, first) = listing_begun().await;
        let names = change(&other, &first).await;
        let found = rest(&lister, handle, first.clone()).await;
        assert_eq!(is_told(&found, &names), [false; 3], "nobody has told it");
        tokio::time::advance(BELIEF / 2).await;
        let found = rest(&lister, handle, first).await;
        assert_eq!(is_told(&found, &names), [true; 3]);
        assert!(found.values().all(|item| item.asked.elapsed() < BELIEF / 2));
    }
}
