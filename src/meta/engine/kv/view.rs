//! What was read of a store, and what it was when it was read: the ground that a commit stands on.

use super::codec::{self, Place};
use crate::base::Name;
use crate::meta::record::{Key, Record, Session};
use bytes::Bytes;
use std::collections::HashMap;

/// Something to read.
#[derive(Clone, Debug, PartialEq, Eq, Hash, PartialOrd, Ord)]
pub(super) enum Want {
    Key(Vec<u8>),
    /// All keys that begin so.
    All(Vec<u8>),
    /// The first key that begins so.
    Any(Vec<u8>),
}

/// A value, and by what the back end tells whether it is still the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Stored {
    pub value: Bytes,
    pub revision: i64,
}

/// The keys that a prefix has, at one moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct Listed {
    pub rows: Vec<(Vec<u8>, Stored)>,
    /// The store's own revision at that moment.
    pub revision: i64,
}

/// Everything that was read.
#[derive(Debug, Default)]
pub(super) struct View {
    keys: HashMap<Vec<u8>, Option<Stored>>,
    lists: HashMap<Want, Listed>,
}

/// A stored value that is no record.
#[derive(Debug)]
pub(super) struct Undecodable;

impl View {
    pub fn put_key(&mut self, key: Vec<u8>, stored: Option<Stored>) {
        self.keys.insert(key, stored);
    }

    pub fn put_list(&mut self, want: Want, listed: Listed) {
        self.lists.insert(want, listed);
    }

    /// What was read later replaces what was read before.
    pub fn add(&mut self, later: View) {
        self.keys.extend(later.keys);
        self.lists.extend(later.lists);
    }

    pub fn has(&self, want: &Want) -> bool {
        match want {
            Want::Key(key) => self.keys.contains_key(key),
            list => self.lists.contains_key(list),
        }
    }

    /// `None`: it was not read.
    pub fn key(&self, key: &[u8]) -> Option<Option<&Stored>> {
        self.keys.get(key).map(Option::as_ref)
    }

    pub fn list(&self, want: &Want) -> Option<&Listed> {
        self.lists.get(want)
    }

    fn value(&self, key: &[u8]) -> Option<&Bytes> {
        self.key(key).flatten().map(|stored| &stored.value)
    }

    /// The record of a key whose wants were read.
    pub fn record(&self, key: &Key) -> Result<Option<Record>, Undecodable> {
        match codec::place(key) {
            Place::Key(stored) => match self.value(&stored) {
                None => Ok(None),
                Some(value) => match codec::decode(key, value).ok_or(Undecodable)? {
                    // Locks that nobody holds are no record.
                    Record::Flocks(holders) if holders.is_empty() => Ok(None),
                    Record::Plocks(holders) if holders.is_empty() => Ok(None),
                    record => Ok(Some(record)),
                },
            },
            Place::Pair(expire, info) => match self.value(&expire) {
                None => Ok(None),
                Some(value) => match codec::decode(key, value).ok_or(Undecodable)? {
                    Record::Session(session) => {
                        let info = self.value(&info).cloned().unwrap_or_default();
                        Ok(Some(Record::Session(Session { info, ..session })))
                    }
                    _ => Err(Undecodable),
                },
            },
            Place::Any(prefix) => match self.lists.get(&Want::Any(prefix)).and_then(|listed| listed.rows.first()) {
                None => Ok(None),
                Some((_, stored)) => codec::decode(key, &stored.value).ok_or(Undecodable).map(Some),
            },
            Place::All(prefix) => match self.lists.get(&Want::All(prefix)) {
                None => Ok(None),
                Some(listed) => collected(key, listed.rows.iter().map(|(key, stored)| (&key[..], &stored.value))),
            },
        }
    }
}

/// The record of a collecting key.
pub(super) fn collected<'a>(
    key: &Key,
    rows: impl Iterator<Item = (&'a [u8], &'a Bytes)>,
) -> Result<Option<Record>, Undecodable> {
    match key {
        Key::LinkParents(_) => {
            let count = |(key, value): (&[u8], &Bytes)| Some((codec::parent_in(key)?, codec::decode_count(value)?));
            let mut parents: Vec<_> = rows.map(count).collect::<Option<_>>().ok_or(Undecodable)?;
            parents.sort_unstable();
            Ok(Some(Record::LinkParents(parents)).filter(|record| *record != Record::LinkParents(Vec::new())))
        }
        Key::Xattrs(_) => {
            let xattr = |(key, value): (&[u8], &Bytes)| match codec::parse_key(key) {
                Some(Key::Xattr(_, name)) => Some((name, value.clone())),
                _ => None,
            };
            let all: Vec<(Name, Bytes)> = rows.map(xattr).collect::<Option<_>>().ok_or(Undecodable)?;
            Ok(Some(Record::Xattrs(all)).filter(|record| *record != Record::Xattrs(Vec::new())))
        }
        _ => Err(Undecodable),
    }
}

/// What has to be read to know a record.
pub(super) fn wants_of(key: &Key) -> impl Iterator<Item = Want> + use<> {
    let (first, second) = match codec::place(key) {
        Place::Key(stored) => (Want::Key(stored), None),
        Place::Pair(one, other) => (Want::Key(one), Some(Want::Key(other))),
        Place::All(prefix) => (Want::All(prefix), None),
        Place::Any(prefix) => (Want::Any(prefix), None),
    };
    std::iter::once(first).chain(second)
}
