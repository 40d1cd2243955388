//! Commits what a dump holds, batch by batch, into an empty database.
//!
//! Nobody else writes meanwhile, so nothing is guarded. A batch that certainly was not applied is committed again; one
//! that may have been ends the load, for numbers in it would be added twice.

use super::seen::Seen;
use super::{Admit, Course};
use crate::base::{Attr, ChunkIndex, Errno, Fault, Ino, Outcome, Slice, SliceId, Stop};
use crate::meta::engine::{Batch, Change, Engine, EngineError, Scan};
use crate::meta::outside;
use crate::meta::record::{Counter, Key, Record};
use crate::meta::txn;
use bytes::Bytes;
use std::collections::HashMap;
use std::time::Duration;

/// Changes of one commit, where the engine takes as many.
const CHANGES_MAX: usize = 2000;
/// Bytes of the changes in one commit.
const BYTES_MAX: usize = 1 << 20;
/// Tries of one commit, and the pause between them.
const TRIES_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(200);

/// What is gathered for the next commit.
pub struct Loader<'a> {
    engine: &'a dyn Engine,
    course: &'a Course,
    changes: Vec<Change>,
    bytes: usize,
    /// Nodes to be put, by number: one may be changed before it is committed.
    attrs: HashMap<Ino, Attr>,
    /// References to be counted, and whether the slice was met for the first time.
    references: HashMap<(SliceId, u32), (bool, i64)>,
    slices: Seen,
    pub last_slice: u64,
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

/// Runs a load, and removes what it wrote when it fails.
pub async fn whole_or_nothing<T>(engine: &dyn Engine, load: impl Future<Output = Outcome<T>>) -> Outcome<T> {
    ensure_empty(engine).await?;
    outside(engine.prepare().await)?;
    let failed = match load.await {
        Ok(loaded) => return Ok(loaded),
        Err(failed) => failed,
    };
    match outside(engine.erase().await) {
        Ok(()) => tracing::warn!("what had been loaded was removed again"),
        Err(error) => tracing::error!(
            "what had been loaded could not be removed; empty the database before it is used again: {error}"
        ),
    }
    Err(failed)
}

impl<'a> Loader<'a> {
    pub fn new(engine: &'a dyn Engine, course: &'a Course) -> Loader<'a> {
        Loader {
            engine,
            course,
            changes: Vec::new(),
            bytes: 0,
            attrs: HashMap::new(),
            references: HashMap::new(),
            slices: Seen::default(),
            last_slice: 0,
        }
    }

    pub fn change(&mut self, change: Change) {
        self.bytes += weight(&change);
        self.changes.push(change);
    }

    pub fn put(&mut self, key: Key, record: Record) {
        if let (Key::Xattr(ino, name), Record::Bytes(value)) = (&key, &record)
            && value.is_empty()
            && !self.engine.stores_empty_values()
        {
            let engine = self.engine.name();
            tracing::warn!(
                %ino,
                "the extended attribute {:?} is empty, and {engine} stores no empty values: it is left out",
                name.as_bytes().escape_ascii().to_string()
            );
            return;
        }
        self.change(Change::Put(key, record));
    }

    pub fn put_node(&mut self, ino: Ino, attr: Attr) {
        self.attrs.insert(ino, attr);
    }

    /// A node that was put before.
    pub async fn node(&mut self, ino: Ino) -> Outcome<Option<Attr>> {
        if let Some(attr) = self.attrs.get(&ino) {
            return Ok(Some(*attr));
        }
        Ok(match txn::read(self.engine, &[Key::Attr(ino)]).await?.pop() {
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
        if gathered >= changes_at_a_time(self.engine) || self.bytes >= BYTES_MAX {
            self.flush().await?;
        }
        self.course.step(phase, done)
    }

    pub async fn flush(&mut self) -> Outcome<()> {
        let mut changes = std::mem::take(&mut self.changes);
        self.bytes = 0;
        changes.extend(self.attrs.drain().map(|(ino, attr)| Change::Put(Key::Attr(ino), Record::Attr(attr))));
        changes.extend(self.references.drain().map(|((id, size), (new, count))| match new {
            true => Change::Put(Key::SliceRef(id, size), Record::Number(count)),
            false => Change::AddSliceRef { id, size, delta: count },
        }));
        // One long record must not drag a whole batch of them along.
        let most = changes_at_a_time(self.engine).max(1);
        let mut rest = changes.into_iter().peekable();
        while rest.peek().is_some() {
            let (mut part, mut bytes) = (Vec::new(), 0);
            while let Some(change) = rest.next_if(|_| part.len() < most && bytes < BYTES_MAX) {
                bytes += weight(&change);
                part.push(change);
            }
            commit(self.engine, part).await?;
        }
        Ok(())
    }

    /// The last words: the counters, and then what makes it a volume.
    pub async fn finish(&mut self, counters: &[(Counter, i64)], setting: Bytes) -> Outcome<()> {
        for (counter, last) in counters {
            self.put(Key::Counter(*counter), Record::Number(*last));
        }
        self.flush().await?;
        if self.course.stop.is_stopped() {
            return Err(Errno::ECANCELED.into());
        }
        commit(self.engine, vec![Change::Put(Key::Setting, Record::Bytes(setting))]).await?;
        outside(self.engine.sync().await)
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

async fn commit(engine: &dyn Engine, changes: Vec<Change>) -> Outcome<()> {
    let mut tries = 1;
    loop {
        let batch = Batch { guards: Vec::new(), changes: changes.clone() };
        let done = match engine.begin(&[]).await {
            Ok((txn, _)) => txn.commit(batch).await.map(|_| ()),
            Err(error) => Err(error),
        };
        let fault = match done {
            Ok(()) => return Ok(()),
            Err(EngineError::Undetermined(fault)) => return Err(fault.into()),
            Err(EngineError::Fault(fault)) if fault.retry() == crate::base::Retry::Never => return Err(fault.into()),
            Err(EngineError::Fault(fault)) => fault,
            Err(EngineError::Conflict) => {
                Fault::conflict("load metadata").source("somebody else writes to the database")
            }
        };
        if tries >= TRIES_MAX {
            return Err(fault.into());
        }
        tracing::debug!(tries, "a commit is tried again: {fault}");
        tries += 1;
        tokio::time::sleep(PAUSE).await;
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
