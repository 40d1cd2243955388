//! What this client knows of records without asking: what it has just read, and what it has just committed.
//!
//! A program hardly ever does one thing with a name. The kernel looks it up, and then comes the operation that begins
//! with the very records which the lookup has read; the operation changes the directory, and then the kernel asks for
//! its attributes. Operations that change something ([`super::txn::Operation::RELIES_ON`]) decide on known records and
//! have them guarded at commit like those they load themselves: when somebody else has changed one meanwhile, the commit
//! is refused, and the operation starts anew with nothing known. So this saves trips and never decides anything. An
//! operation that would fail, or that has nothing to change, asks before it says so.
//!
//! Known are attributes, entries and sessions. How old they may be depends on what they are for. An operation that
//! answers with attributes takes what is [`FRESH`], for fields that no decision looks at go into its reply; one that
//! answers with nothing takes what is [`USEFUL`]. A kernel that asks for attributes gets those that are no older than it
//! would have believed them itself, and is told their age. For that what is known must never be older than what a
//! kernel was told since: whatever tells a kernel of a node notes it here.

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
/// How long a record is worth relying on: from the listing of a directory to the removal of what is in it. The older it
/// is, the likelier a trip is lost to somebody else's change.
pub const USEFUL: Duration = Duration::from_secs(5);
/// Records kept: a megabyte or two.
const RECORDS_MAX: usize = 8192;
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

    /// Takes down what was asked for at a time that has passed and has arrived by now. Where another answer arrived or a
    /// change was made meanwhile, nobody can tell which is newer: then nothing is known, unless they agree.
    pub fn note_earlier(&self, items: impl IntoIterator<Item = (Key, Record, Instant)>) {
        let now = Instant::now();
        let (mut records, touched) = (self.records.lock(), self.touched.lock());
        for (key, record, at) in items {
            if !Known::holds(&key) {
                continue;
            }
            let record = Some(record);
            match records.get(&key) {
                Some(noted) if noted.at >= at && noted.record == record => {}
                Some(noted) if noted.at >= at => drop(records.remove(&key)),
                _ if touched.since(&key, at) => drop(records.remove(&key)),
                _ => {
                    make_room(&mut records, now);
                    records.insert(key, Noted { record, at });
                }
            }
        }
    }

    /// What is known of a record and no older than `within`: `None` is nothing, `Some(None)` that there is none.
    pub fn get(&self, key: &Key, within: Duration) -> Option<Option<Record>> {
        #[cfg(test)]
        if !super::testing::paths::takes_fast() {
            return None;
        }
        self.records.lock().get(key).filter(|noted| is_within(key, noted, within)).map(|noted| noted.record.clone())
    }

    /// Attributes no older than `within`, with their age.
    pub fn attr(&self, ino: Ino, within: Duration) -> Option<(Attr, Duration)> {
        #[cfg(test)]
        if !super::testing::paths::takes_fast() {
            return None;
        }
        let (key, records) = (Key::Attr(ino), self.records.lock());
        let noted = records.get(&key).filter(|noted| is_within(&key, noted, within))?;
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

/// Sessions are changed by their owner alone, and do not age.
fn is_within(key: &Key, noted: &Noted, within: Duration) -> bool {
    matches!(key, Key::Session(_)) || noted.at.elapsed() < within.min(USEFUL)
}

fn make_room(records: &mut HashMap<Key, Noted>, now: Instant) {
    for limit in [USEFUL, FRESH, Duration::ZERO] {
        if records.len() < RECORDS_MAX {
            return;
        }
        records.retain(|key, noted| matches!(key, Key::Session(_)) || now - noted.at < limit);
    }
}

#[cfg(test)]
#[path = "known_tests.rs"]
mod tests;
