//! Reading ahead of lookups. A program that goes through the files of a directory by name has the metadata asked for
//! each of them, a trip a file. Once the lookups of a moment cost as much as reading the directory would, it is read
//! with all attributes, and the lookups that follow are answered from that listing.
//!
//! An answer is never older than what a kernel may believe anyway: a listing lives as long as names and attributes do
//! in the kernel's caches (a second, unless the mount says otherwise), and the kernel is told to believe an answer for
//! what is left of that time only. So a change by another client shows as soon as it would without listings. What this
//! client changes shows at once: neither an entry nor a node that it has changed since a listing was begun is
//! answered from it ([`Known::touched_since`]). And nothing is taken back: neither is what was
//! asked for by itself since. Open always asks, so close-to-open has nothing to do with this.
//!
//! The price is bounded: a listing that is not used makes the next one of its directory twice as hard to come by, and
//! directories of more than [`LISTING_MAX`] entries are left alone.

use crate::base::{Ino, Name};
use crate::meta::Entry;
use crate::meta::known::{Known, TOUCHED_FOR};
use crate::meta::record::Key;
use crate::util::lately::Lately;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Lookups within a lifetime that the first listing of a directory needs.
const WORTH_FIRST: usize = 16;
/// Entries of a listing that cost as much as one lookup: they come by the thousand in two trips.
const ENTRIES_PER_LOOKUP: usize = 16;
/// Entries of the longest listing.
pub const LISTING_MAX: usize = 4096;
/// Entries of all listings, and nodes asked for by themselves meanwhile: some megabytes.
const ENTRIES_MAX: usize = 4 * LISTING_MAX;
/// Directories whose lookups are counted.
const DIRS_MAX: usize = 256;
/// How long a directory that is too large is left alone.
const TOO_LARGE_FOR: Duration = Duration::from_secs(60);
/// A mount whose kernel believes for hours what it was told once has no use for listings that are as old.
/// Own changes are remembered for as long.
const LIFETIME_MAX: Duration = TOUCHED_FOR;

/// An answer from a listing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Found {
    pub entry: Entry,
    /// Since the listing was asked for.
    pub age: Duration,
}

/// A listing about to be read.
#[derive(Clone, Copy, Debug)]
pub struct Begun {
    number: u64,
    at: Instant,
}

pub struct Ahead {
    /// Zero for no listings at all.
    lifetime: Duration,
    /// Whether there may be a listing, or one is being read.
    any: AtomicBool,
    state: Mutex<State>,
}

struct State {
    dirs: HashMap<Ino, Dir>,
    /// Listings begun so far.
    begun: u64,
    /// Nodes asked for by themselves.
    asked: Lately<Ino>,
}

/// A directory in which names are looked up.
struct Dir {
    /// When counting began.
    since: Instant,
    /// Lookups since then that were asked for.
    lookups: usize,
    /// So many of them within a lifetime are worth a listing.
    worth: usize,
    listing: Listing,
}

enum Listing {
    None,
    /// With its number.
    Begun(u64),
    There {
        begun: Begun,
        nodes: HashMap<Name, Entry>,
        used: usize,
    },
    /// Until then.
    TooLarge(Instant),
}

impl Ahead {
    /// `belief`: how long the kernel believes names and attributes.
    pub fn new(belief: Duration) -> Ahead {
        let lifetime = belief.min(LIFETIME_MAX);
        let state = State { dirs: HashMap::new(), begun: 0, asked: Lately::new(lifetime, ENTRIES_MAX) };
        Ahead { lifetime, any: AtomicBool::new(false), state: Mutex::new(state) }
    }

    /// What a listing says of a name.
    pub fn find(&self, dir: Ino, name: &Name, known: &Known) -> Option<Found> {
        if !self.any.load(Ordering::Acquire) {
            return None;
        }
        let mut state = self.state.lock();
        let State { dirs, asked, .. } = &mut *state;
        let Listing::There { begun, nodes, used } = &mut dirs.get_mut(&dir)?.listing else { return None };
        let age = begun.at.elapsed();
        if age >= self.lifetime {
            return None;
        }
        let entry = *nodes.get(name)?;
        let touched = |key: &Key| known.touched_since(key, begun.at);
        if touched(&Key::Attr(entry.ino))
            || touched(&Key::Dentry(dir, name.clone()))
            || asked.since(&entry.ino, begun.at)
        {
            return None;
        }
        *used += 1;
        Some(Found { entry, age })
    }

    /// A name was looked up in the metadata. Tells to read the directory, and to `put` what came of it, when that has
    /// become worth it.
    pub fn looked_up(&self, dir: Ino) -> Option<Begun> {
        if self.lifetime.is_zero() {
            return None;
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        if state.dirs.len() >= DIRS_MAX && !state.dirs.contains_key(&dir) {
            state.tidy(now, self.lifetime);
            if state.dirs.len() >= DIRS_MAX {
                state.dirs.clear();
            }
        }
        let State { dirs, begun, .. } = &mut *state;
        let dir = dirs.entry(dir).or_insert_with(|| Dir {
            since: now,
            lookups: 0,
            worth: WORTH_FIRST,
            listing: Listing::None,
        });
        dir.end_listing(now, self.lifetime);
        if now - dir.since >= self.lifetime {
            (dir.since, dir.lookups) = (now, 0);
        }
        dir.lookups += 1;
        if dir.lookups < dir.worth || !matches!(dir.listing, Listing::None) {
            return None;
        }
        *begun += 1;
        dir.listing = Listing::Begun(*begun);
        self.any.store(true, Ordering::Release);
        Some(Begun { number: *begun, at: now })
    }

    /// What came of reading the directory.
    pub fn put(&self, dir: Ino, begun: Begun, read: Read) {
        let mut state = self.state.lock();
        let held: usize = state.dirs.values().map(|dir| dir.listing.len()).sum();
        let waits = |dir: &&mut Dir| matches!(dir.listing, Listing::Begun(number) if number == begun.number);
        let Some(dir) = state.dirs.get_mut(&dir).filter(waits) else { return };
        dir.lookups = 0;
        dir.listing = match read {
            Read::All(nodes) if held + nodes.len() <= ENTRIES_MAX => Listing::There { begun, nodes, used: 0 },
            Read::All(_) | Read::Nothing => Listing::None,
            Read::TooMuch => Listing::TooLarge(begun.at + TOO_LARGE_FOR),
        };
    }

    /// A node was asked for by itself: what a listing says of it may be older than that.
    pub fn asked(&self, ino: Ino) {
        if self.any.load(Ordering::Acquire) {
            self.state.lock().asked.note(ino);
        }
    }

    /// A directory was listed for the kernel, which may know all of it better now.
    pub fn listed(&self, dir: Ino) {
        if self.any.load(Ordering::Acquire) {
            self.state.lock().dirs.remove(&dir);
        }
    }

    /// How long a listing lives.
    pub fn lifetime(&self) -> Duration {
        self.lifetime
    }

    /// Frees what has had its time.
    pub fn tidy(&self) {
        let mut state = self.state.lock();
        if !state.tidy(Instant::now(), self.lifetime) {
            self.any.store(false, Ordering::Release);
            state.asked.clear();
        }
    }
}

/// What reading a directory brought.
pub enum Read {
    All(HashMap<Name, Entry>),
    /// There are more than [`LISTING_MAX`] entries.
    TooMuch,
    /// It failed; whoever looks a name up will be told why.
    Nothing,
}

impl State {
    /// Whether any listing is left.
    fn tidy(&mut self, now: Instant, lifetime: Duration) -> bool {
        let mut any = false;
        self.dirs.retain(|_, dir| {
            let live = match &dir.listing {
                Listing::None => false,
                Listing::Begun(_) => true,
                Listing::There { begun, .. } => now - begun.at < lifetime,
                Listing::TooLarge(until) => return now < *until,
            };
            any |= live;
            if !live {
                dir.end_listing(now, lifetime);
            }
            live || now - dir.since < TOO_LARGE_FOR
        });
        any
    }
}

impl Dir {
    /// Takes away a listing that nothing will be answered from any more, and learns from how it was used.
    fn end_listing(&mut self, now: Instant, lifetime: Duration) {
        match &self.listing {
            Listing::There { begun, nodes, used } if now - begun.at >= lifetime => {
                let cost = nodes.len() / ENTRIES_PER_LOOKUP;
                self.worth = if *used < cost.max(1) { self.worth.saturating_mul(2) } else { cost.max(WORTH_FIRST) };
                self.listing = Listing::None;
            }
            Listing::TooLarge(until) if now >= *until => self.listing = Listing::None,
            _ => {}
        }
    }
}

impl Listing {
    fn len(&self) -> usize {
        match self {
            Listing::There { nodes, .. } => nodes.len(),
            _ => 0,
        }
    }
}

#[cfg(test)]
#[path = "ahead_tests.rs"]
mod tests;
