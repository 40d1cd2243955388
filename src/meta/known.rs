//! What this client knows of records without asking: what it has just read, and what it has just committed.
//!
//! A program hardly ever does one thing with a name. The kernel looks it up, and then comes the operation that begins
//! with the very records which the lookup has read; the operation changes the directory, and then the kernel asks for
//! its attributes. Operations that change something ([`super::txn::Operation::OPTIMISTIC`]) decide on known records and
//! have them guarded at commit like those they load themselves: when somebody else has changed one meanwhile, the commit
//! is refused, and the operation starts anew with nothing known. So this saves trips and never decides anything. An
//! operation that would fail, or that has nothing to change, asks before it says so.
//!
//! Known are attributes, entries and sessions. All but sessions, which only their owner changes, are forgotten after
//! [`FRESH`]: fields that no decision looks at go into replies, and must not be older than that.

use super::engine::Change;
use super::record::{Key, Record};
use crate::base::{Attr, Ino};
use crate::util::lately::Lately;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::time::Duration;
use tokio::time::Instant;

/// How long a record counts as just read: from one request of a program to its next.
pub const FRESH: Duration = Duration::from_millis(100);
/// Records kept: some hundred kilobytes.
const RECORDS_MAX: usize = 4096;
/// How long own changes are remembered at least ([`Known::touched_since`]).
pub const TOUCHED_FOR: Duration = Duration::from_secs(5);
/// Changed nodes and entries remembered at a time, twice.
const TOUCHED_MAX: usize = 16_384;

pub struct Known {
    records: Mutex<HashMap<Key, Noted>>,
    /// Attributes and entries that this client has changed.
    touched: Mutex<Lately<Key>>,
}

struct Noted {
    /// None: there was no such record.
    record: Option<Record>,
    /// When the answer arrived that it comes from.
    at: Instant,
}

impl Default for Known {
    fn default() -> Known {
        Known { records: Mutex::default(), touched: Mutex::new(Lately::new(TOUCHED_FOR, TOUCHED_MAX)) }
    }
}

impl Known {
    fn holds(key: &Key) -> bool {
        matches!(key, Key::Attr(_) | Key::Dentry(..) | Key::Session(_))
    }

    /// Takes down an answer that has just arrived.
    pub fn note(&self, key: &Key, record: Option<&Record>) {
        if Known::holds(key) {
            let now = Instant::now();
            let mut records = self.records.lock();
            make_room(&mut records, now);
            records.insert(key.clone(), Noted { record: record.cloned(), at: now });
        }
    }

    /// What is known of a record: `None` is nothing, `Some(None)` that there is none.
    pub fn get(&self, key: &Key) -> Option<Option<Record>> {
        self.records.lock().get(key).filter(|noted| is_fresh(key, noted)).map(|noted| noted.record.clone())
    }

    /// Attributes, with their age.
    pub fn attr(&self, ino: Ino) -> Option<(Attr, Duration)> {
        let (key, records) = (Key::Attr(ino), self.records.lock());
        let noted = records.get(&key).filter(|noted| is_fresh(&key, noted))?;
        match &noted.record {
            Some(Record::Attr(attr)) => Some((*attr, noted.at.elapsed())),
            _ => None,
        }
    }

    pub fn forget<'a>(&self, keys: impl IntoIterator<Item = &'a Key>) {
        let mut records = self.records.lock();
        for key in keys {
            records.remove(key);
        }
    }

    /// Those of a commit's changes that `committed` wants to hear of.
    pub fn concerned(changes: &[Change]) -> Vec<Change> {
        let known = |change: &&Change| match change {
            Change::Put(key, _) | Change::Delete(key) => Known::holds(key),
            Change::Patch(..) => true,
            _ => false,
        };
        changes.iter().filter(known).cloned().collect()
    }

    /// A commit of this client has been answered, or its answer is lost (`certain` is false). `sent`: when it was sent;
    /// what was read since may show it already, or may not.
    pub fn committed(&self, changes: &[Change], sent: Instant, certain: bool) {
        let now = Instant::now();
        let (mut records, mut touched) = (self.records.lock(), self.touched.lock());
        make_room(&mut records, now);
        let mut set = |key: &Key, record: Option<&Record>| {
            let read_since = records.get(key).is_some_and(|noted| noted.at >= sent);
            match Known::holds(key) && certain && !read_since {
                true => records.insert(key.clone(), Noted { record: record.cloned(), at: now }),
                false => records.remove(key),
            };
        };
        for change in changes {
            match change {
                Change::Put(key, record) => set(key, Some(record)),
                Change::Delete(key) => set(key, None),
                _ => {}
            }
        }
        for change in changes {
            match change {
                Change::Put(key @ (Key::Attr(_) | Key::Dentry(..)), _)
                | Change::Delete(key @ (Key::Attr(_) | Key::Dentry(..))) => touched.note(key.clone()),
                Change::Patch(ino, patch) => {
                    let key = Key::Attr(*ino);
                    touched.note(key.clone());
                    match records.get_mut(&key) {
                        // It keeps its age: the rest of it was read then.
                        Some(Noted { record: Some(Record::Attr(attr)), at }) if certain && *at < sent => {
                            patch.apply(attr);
                        }
                        _ => {
                            records.remove(&key);
                        }
                    }
                }
                _ => {}
            }
        }
    }

    /// Whether this client has changed any attributes or entry since then, or may have.
    pub fn anything_touched_since(&self, then: Instant) -> bool {
        self.touched.lock().any_since(then)
    }

    /// Whether this client has changed attributes or an entry since then, or may have.
    pub fn touched_since(&self, key: &Key, then: Instant) -> bool {
        self.touched.lock().since(key, then)
    }
}

fn is_fresh(key: &Key, noted: &Noted) -> bool {
    matches!(key, Key::Session(_)) || noted.at.elapsed() < FRESH
}

fn make_room(records: &mut HashMap<Key, Noted>, now: Instant) {
    if records.len() >= RECORDS_MAX {
        records.retain(|key, noted| matches!(key, Key::Session(_)) || now - noted.at < FRESH);
        if records.len() >= RECORDS_MAX {
            records.clear();
        }
    }
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
