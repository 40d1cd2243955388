//! Gathers what a dump holds and commits it, batch by batch, into an empty database. [`super::commits`] keeps several of
//! them under way.

use super::commits::Commits;
use super::seen::Seen;
use super::{Admit, Course};
use crate::base::{Attr, ChunkIndex, Errno, Fault, Ino, Name, Outcome, Slice, SliceId, Stop};
use crate::meta::engine::{Change, Engine, Scan};
use crate::meta::outside;
use crate::meta::record::{Counter, Key, Record};
use crate::meta::txn;
use bytes::Bytes;
use std::collections::HashMap;
use std::sync::Arc;

/// Changes of one commit, where the engine takes as many.
const CHANGES_MAX: usize = 2000;
/// Bytes of the changes in one commit.
const BYTES_MAX: usize = 1 << 20;
/// What is left out is said one by one so many times, and counted after that.
const LEFT_OUT_TOLD_MAX: u64 = 20;

/// What is gathered for the next commit.
pub struct Loader<'a> {
    commits: &'a mut Commits,
    course: &'a Course,
    changes: Vec<Change>,
    bytes: usize,
    /// Nodes to be put, by number: one may be changed before it is committed.
    attrs: HashMap<Ino, Attr>,
    /// References to be counted, and whether the slice was met for the first time.
    references: HashMap<(SliceId, u32), (bool, i64)>,
    slices: Seen,
    pub last_slice: u64,
    /// Extended attributes that the engine cannot hold.
    pub left_out: u64,
}

/// Changes of one commit: what an engine takes, and not so many that one of them keeps the others waiting.
fn changes_at_a_time(engine: &dyn Engine) -> usize {
    engine.batch_max().min(CHANGES_MAX)
}

/// Refuses a database in which something is.
pub async fn ensure_empty(engine: &dyn Engine) -> Outcome<()> {
    let occupied = |what: &str| {
        Fault::config("load metadata")
            .with("engine", engine.name())
            .source(format!("the database is not empty: {what}"))
    };
    if let [Some(_)] = txn::read(engine, &[Key::Setting]).await?[..] {
        return Err(occupied("it holds a volume").into());
    }
    for scan in [Scan::Attrs, Scan::AllDentries, Scan::Chunks, Scan::SliceRefs, Scan::DeletedFiles, Scan::Quotas] {
        let mut after = None;
        loop {
            let page = outside(engine.scan_readable(&scan, after.as_ref(), 100).await)?;
            if !page.rows.is_empty() || !page.unreadable.is_empty() {
                let what = "it holds metadata without a volume, perhaps of a load that was cut short; empty it first";
                return Err(occupied(what).into());
            }
            match page.next {
                Some(next) => after = Some(next),
                None => break,
            }
        }
    }
    Ok(())
}

/// Runs a load with up to `at_a_time` commits under way, and removes what it wrote when it fails.
pub async fn whole_or_nothing<T>(
    engine: &Arc<dyn Engine>,
    at_a_time: usize,
    course: &Course,
    load: impl AsyncFnOnce(&mut Commits) -> Outcome<T>,
) -> Outcome<T> {
    ensure_empty(&**engine).await?;
    outside(engine.prepare().await)?;
    let mut commits = Commits::new(engine.clone(), at_a_time, course.stop.clone());
    let failed = match load(&mut commits).await {
        Ok(loaded) => return Ok(loaded),
        Err(failed) => failed,
    };
    commits.settle().await;
    match outside(engine.erase().await) {
        Ok(()) => tracing::warn!("what had been loaded was removed again"),
        Err(error) => tracing::error!(
            "what had been loaded could not be removed; empty the database before it is used again: {error}"
        ),
    }
    Err(failed)
}

impl<'a> Loader<'a> {
    pub fn new(commits: &'a mut Commits, course: &'a Course) -> Loader<'a> {
        Loader {
            commits,
            course,
            changes: Vec::new(),
            bytes: 0,
            attrs: HashMap::new(),
            references: HashMap::new(),
            slices: Seen::default(),
            last_slice: 0,
            left_out: 0,
        }
    }

    pub fn change(&mut self, change: Change) {
        self.bytes += weight(&change);
        self.changes.push(change);
    }

    pub fn put(&mut self, key: Key, record: Record) {
        if let (Key::Xattr(ino, name), Record::Bytes(value)) = (&key, &record)
            && let Some(why) = self.commits.engine().unstorable_xattr(name, value)
        {
            self.leave_out(*ino, name, why);
            return;
        }
        self.change(Change::Put(key, record));
    }

    /// The file is worth more than one of its attributes.
    fn leave_out(&mut self, ino: Ino, name: &Name, why: &str) {
        self.left_out += 1;
        if self.left_out <= LEFT_OUT_TOLD_MAX {
            let (name, engine) = (name.as_bytes().escape_ascii().to_string(), self.commits.engine().name());
            tracing::warn!(%ino, "the extended attribute {name:?} is left out: {engine} stores {why}");
        }
        if self.left_out == LEFT_OUT_TOLD_MAX {
            tracing::warn!("further ones that are left out are only counted");
        }
    }

    pub fn put_node(&mut self, ino: Ino, attr: Attr) {
        self.attrs.insert(ino, attr);
    }

    /// A node that was put before.
    pub async fn node(&mut self, ino: Ino) -> Outcome<Option<Attr>> {
        if let Some(attr) = self.attrs.get(&ino) {
            return Ok(Some(*attr));
        }
        self.commits.node_ends(ino).await?;
        Ok(match txn::read(&**self.commits.engine(), &[Key::Attr(ino)]).await?.pop() {
            Some(Some(Record::Attr(attr))) => Some(attr),
            _ => None,
        })
    }

    /// Puts a chunk and counts what it refers to. A hole is no slice.
    pub fn put_chunk(&mut self, ino: Ino, index: ChunkIndex, slices: Vec<Slice>) {
        for slice in slices.iter().filter(|slice| !slice.is_hole()) {
            let new = self.slices.insert(slice.id.0);
            self.references.entry((slice.id, slice.size)).or_insert((new, 0)).1 += 1;
            self.last_slice = self.last_slice.max(slice.id.0);
        }
        self.put(Key::Chunk(ino, index), Record::Slices(slices));
    }

    /// A slice that is mentioned in no chunk so far.
    pub fn is_unmentioned(&self, id: SliceId) -> bool {
        !self.slices.has(id.0)
    }

    /// Commits once enough is gathered. `phase` and `done` tell of the progress.
    pub async fn go_on(&mut self, phase: &'static str, done: u64) -> Outcome<()> {
        let gathered = self.changes.len() + self.attrs.len() + self.references.len();
        if gathered >= changes_at_a_time(&**self.commits.engine()) || self.bytes >= BYTES_MAX {
            self.flush().await?;
        }
        self.course.step(phase, done)
    }

    /// Begins to commit everything that was gathered.
    async fn flush(&mut self) -> Outcome<()> {
        let mut changes = std::mem::take(&mut self.changes);
        self.bytes = 0;
        // In the order in which stores keep them.
        let mut attrs: Vec<(Ino, Attr)> = self.attrs.drain().collect();
        attrs.sort_unstable_by_key(|(ino, _)| *ino);
        changes.extend(attrs.into_iter().map(|(ino, attr)| Change::Put(Key::Attr(ino), Record::Attr(attr))));
        let mut references: Vec<_> = self.references.drain().collect();
        references.sort_unstable_by_key(|(slice, _)| *slice);
        changes.extend(references.into_iter().map(|((id, size), (new, count))| match new {
            true => Change::Put(Key::SliceRef(id, size), Record::Number(count)),
            false => Change::AddSliceRef { id, size, delta: count },
        }));
        // One long record must not drag a whole batch of them along.
        let most = changes_at_a_time(&**self.commits.engine()).max(1);
        let mut rest = changes.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while let Some(change) = rest.next_if(|_| part.len() < most && bytes < BYTES_MAX) {
                bytes += weight(&change);
                part.push(change);
            }
            self.commits.begin(part).await?;
        }
        Ok(())
    }

    /// Everything that was gathered is committed.
    pub async fn complete(&mut self) -> Outcome<()> {
        self.flush().await?;
        self.commits.all_end().await
    }

    /// The last words: the counters, and then what makes it a volume.
    pub async fn finish(&mut self, counters: &[(Counter, i64)], setting: Bytes) -> Outcome<()> {
        for (counter, last) in counters {
            self.put(Key::Counter(*counter), Record::Number(*last));
        }
        self.complete().await?;
        if self.course.stop.is_stopped() {
            return Err(Errno::ECANCELED.into());
        }
        self.commits.begin(vec![Change::Put(Key::Setting, Record::Bytes(setting))]).await?;
        self.commits.all_end().await?;
        outside(self.commits.engine().sync().await)
    }
}

/// About how many bytes a change takes on its way.
fn weight(change: &Change) -> usize {
    match change {
        Change::Put(_, Record::Bytes(bytes)) => bytes.len() + 64,
        Change::Put(_, Record::Slices(slices)) => 24 * slices.len() + 64,
        _ => 96,
    }
}

/// What a dump's format document asks of a load.
#[derive(Clone, Copy, Debug, Default)]
pub struct Wishes {
    pub dir_stats: bool,
    pub owner_quotas: bool,
}

/// Admits the format document, and looks what it asks for.
pub fn admitted(admit: &Admit, document: &[u8]) -> Result<(Bytes, Wishes), Fault> {
    let setting = admit(document)?;
    let value: serde_json::Value = serde_json::from_slice(&setting)
        .map_err(|_| Fault::corrupt("load dump").source("the format document of the volume is no JSON"))?;
    let is_on = |key: &str| value.get(key).and_then(serde_json::Value::as_bool).unwrap_or(false);
    Ok((setting, Wishes { dir_stats: is_on("DirStats"), owner_quotas: is_on("UserGroupQuota") }))
}

/// A sentence about what is wrong, where there is nothing to add.
pub fn wrong(why: impl Into<String>) -> Stop {
    Fault::corrupt("load dump").source(why.into()).into()
}
