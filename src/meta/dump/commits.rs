//! The commits of a load: several under way at a time, so that nobody waits for a trip while there is something to send.
//!
//! They may be applied in any order, but for what several of them are about: a node that is put again, the references of
//! a slice, the parents of a node. A commit with one of those begins when the one before has ended, as does whoever
//! reads a node back.
//!
//! Nobody else writes meanwhile, so nothing is guarded. A batch that certainly was not applied is committed again; one
//! that may have been ends the load, for numbers in it would be added twice. After the first failure none begins, none
//! is tried again, and [`Commits::settle`] waits for those under way, so that nothing arrives after what removes it all.

use crate::base::{Errno, Fault, Ino, Outcome, SliceId, Stop};
use crate::meta::engine::{Batch, Change, Engine, EngineError};
use crate::meta::record::Key;
use crate::util::task::StopSignal;
use std::collections::{HashMap, HashSet};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::task::{Id, JoinSet};

/// However many are asked for: each of them holds up to a megabyte or two, and a connection of the server.
const UNDER_WAY_MAX: usize = 64;
/// Tries of one commit, and the pause after the first of them. It doubles.
const TRIES_MAX: u32 = 10;
const PAUSE: Duration = Duration::from_millis(5);

/// What more than one commit may be about.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
enum Subject {
    Node(Ino),
    Parents(Ino),
    Slice(SliceId),
}

pub struct Commits {
    engine: Arc<dyn Engine>,
    stop: StopSignal,
    under_way_max: usize,
    running: JoinSet<Outcome<()>>,
    /// The commits under way, by what they are about.
    subjects: HashMap<Subject, Id>,
    subjects_of: HashMap<Id, Vec<Subject>>,
    given_up: Arc<AtomicBool>,
}

impl Commits {
    /// `at_a_time`: how many may be under way.
    pub fn new(engine: Arc<dyn Engine>, at_a_time: usize, stop: StopSignal) -> Commits {
        Commits {
            engine,
            stop,
            under_way_max: at_a_time.clamp(1, UNDER_WAY_MAX),
            running: JoinSet::new(),
            subjects: HashMap::new(),
            subjects_of: HashMap::new(),
            given_up: Arc::default(),
        }
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.engine
    }

    /// Begins a commit once there is room for it and nothing under way is about the same. Answers the failure of any.
    pub async fn begin(&mut self, changes: Vec<Change>) -> Outcome<()> {
        let subjects: HashSet<Subject> = changes.iter().filter_map(subject).collect();
        while let Some(ended) = self.running.try_join_next_with_id() {
            self.ended(ended)?;
        }
        while self.running.len() >= self.under_way_max || subjects.iter().any(|one| self.subjects.contains_key(one)) {
            self.one_ends().await?;
        }
        let work = commit(self.engine.clone(), changes, self.given_up.clone());
        let id = self.running.spawn(work).id();
        self.subjects.extend(subjects.iter().map(|subject| (*subject, id)));
        self.subjects_of.insert(id, subjects.into_iter().collect());
        Ok(())
    }

    /// What was begun about a node has been applied.
    pub async fn node_ends(&mut self, ino: Ino) -> Outcome<()> {
        while self.subjects.contains_key(&Subject::Node(ino)) {
            self.one_ends().await?;
        }
        Ok(())
    }

    /// Everything that was begun has been applied.
    pub async fn all_end(&mut self) -> Outcome<()> {
        while !self.running.is_empty() {
            self.one_ends().await?;
        }
        Ok(())
    }

    /// After a failure, which is told already: nothing is under way any more.
    pub async fn settle(&mut self) {
        self.given_up.store(true, Ordering::Relaxed);
        while let Some(ended) = self.running.join_next_with_id().await {
            if let Err(stop) = self.ended(ended) {
                tracing::debug!("a commit beside the one that failed: {stop}");
            }
        }
    }

    async fn one_ends(&mut self) -> Outcome<()> {
        let ended = tokio::select! {
            biased;
            () = self.stop.stopped() => return Err(Errno::ECANCELED.into()),
            ended = self.running.join_next_with_id() => ended,
        };
        ended.map_or(Ok(()), |ended| self.ended(ended))
    }

    fn ended(&mut self, ended: Result<(Id, Outcome<()>), tokio::task::JoinError>) -> Outcome<()> {
        let (id, outcome) = match ended {
            Ok(ended) => ended,
            Err(error) => {
                let id = error.id();
                (id, Err(Stop::from(Fault::internal("load metadata").source(error))))
            }
        };
        for subject in self.subjects_of.remove(&id).unwrap_or_default() {
            self.subjects.remove(&subject);
        }
        outcome
    }
}

/// `None`: no other commit is about it.
fn subject(change: &Change) -> Option<Subject> {
    match change {
        Change::Put(Key::Attr(ino), _) => Some(Subject::Node(*ino)),
        Change::AddLinkParent { ino, .. } => Some(Subject::Parents(*ino)),
        Change::Put(Key::SliceRef(id, _), _) | Change::AddSliceRef { id, .. } => Some(Subject::Slice(*id)),
        _ => None,
    }
}

async fn commit(engine: Arc<dyn Engine>, changes: Vec<Change>, given_up: Arc<AtomicBool>) -> Outcome<()> {
    let (mut tries, mut pause) = (1, PAUSE);
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
        if tries >= TRIES_MAX || given_up.load(Ordering::Relaxed) {
            return Err(fault.into());
        }
        tracing::debug!(tries, "a commit is tried again: {fault}");
        tries += 1;
        tokio::time::sleep(crate::util::task::jittered(pause)).await;
        pause *= 2;
    }
}
