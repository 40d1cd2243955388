//! Questions over many records, in pages by the order of the keys.
//!
//! A cursor is the last key that was seen. Families that lie among the keys of the nodes (entries, chunks, extended
//! attributes of the whole volume) are picked out of all of them: a page may come back with few rows, and costs what
//! the keys of all families in its part of the volume cost.

use super::Kv;
use super::batch::attr;
use super::codec::{self, Place};
use super::view::{View, Want, collected, wants_of};
use crate::base::{Fault, Ino};
use crate::meta::engine::{Cursor, EngineResult, Page, PlusPage, Scan};
use crate::meta::record::{Key, Record, Session};
use bytes::Bytes;

/// Most keys of one trip, whatever the caller asked for: replies have a size.
const PAGE_MAX: usize = 2048;

type Row = Result<(Key, Record), Fault>;

/// Keys and values of a part of the store, and the key to go on after.
struct Part {
    rows: Vec<(Vec<u8>, Bytes)>,
    next: Option<Cursor>,
}

/// The next keys of the first prefix that has any left.
async fn part(kv: &dyn Kv, prefixes: &[Vec<u8>], after: Option<&Cursor>, limit: usize) -> EngineResult<Part> {
    let limit = limit.clamp(1, PAGE_MAX);
    for (number, prefix) in prefixes.iter().enumerate() {
        let end = codec::end_of(prefix);
        let from = match after {
            Some(Cursor(last)) if last[..] >= end[..] => continue,
            Some(Cursor(last)) if last[..] >= prefix[..] => [last, &[0][..]].concat(),
            _ => prefix.clone(),
        };
        let rows = kv.scan(&from, &end, limit).await?;
        let is_last = number + 1 == prefixes.len();
        let next = match rows.last() {
            Some((last, _)) if rows.len() >= limit || !is_last => Some(Cursor(last.clone().into())),
            None if !is_last => continue,
            _ => None,
        };
        return Ok(Part { rows, next });
    }
    Ok(Part { rows: Vec::new(), next: None })
}

fn corrupt(kv: &dyn Kv, key: &Key) -> Fault {
    Fault::corrupt("read record").with("engine", kv.name()).with("key", format_args!("{key:?}"))
}

fn row(kv: &dyn Kv, key: Key, value: &[u8]) -> Row {
    match codec::decode(&key, value) {
        Some(record) => Ok((key, record)),
        None => Err(corrupt(kv, &key)),
    }
}

fn is_asked(scan: &Scan, key: &Key) -> bool {
    match scan {
        Scan::Dentries(_) | Scan::AllDentries => matches!(key, Key::Dentry(..)),
        Scan::Attrs => matches!(key, Key::Attr(_)),
        Scan::Chunks | Scan::ChunksOf(_) => matches!(key, Key::Chunk(..)),
        Scan::SliceRefs => matches!(key, Key::SliceRef(..)),
        Scan::Sessions => matches!(key, Key::Session(_)),
        Scan::Sustained(_) => matches!(key, Key::Sustained(..)),
        Scan::DeletedFiles => matches!(key, Key::DeletedFile(..)),
        Scan::DelayedSlices => matches!(key, Key::DelayedSlices(..)),
        Scan::DirStats => matches!(key, Key::DirStat(_)),
        Scan::Quotas => matches!(key, Key::Quota(_)),
        Scan::AclRules => matches!(key, Key::AclRule(_)),
        Scan::LocksOf(_) | Scan::AllLocks => matches!(key, Key::Flocks(_) | Key::Plocks(_)),
        Scan::AllXattrs => matches!(key, Key::Xattr(..)),
        Scan::AllLinkParents => matches!(key, Key::LinkParents(_)),
    }
}

/// Whether a record belongs into the answer that only its value can tell.
fn is_found(scan: &Scan, row: &Row) -> bool {
    let holds = |session| match row {
        Ok((_, Record::Flocks(holders))) => holders.iter().any(|h| h.session == session),
        Ok((_, Record::Plocks(holders))) => holders.iter().any(|h| h.session == session),
        _ => true,
    };
    match (scan, row) {
        (Scan::LocksOf(session), _) => holds(*session),
        (Scan::AllLocks, Ok((_, Record::Flocks(holders)))) => !holders.is_empty(),
        (Scan::AllLocks, Ok((_, Record::Plocks(holders)))) => !holders.is_empty(),
        _ => true,
    }
}

pub(super) async fn page(kv: &dyn Kv, scan: &Scan, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let part = part(kv, &codec::prefixes(scan), after, limit).await?;
    match scan {
        Scan::AllXattrs | Scan::AllLinkParents => whole_inodes(kv, scan, part).await,
        Scan::Sessions => sessions(kv, part).await,
        _ => {
            let asked = part.rows.iter().filter_map(|(stored, value)| {
                let key = codec::parse_key(stored).filter(|key| is_asked(scan, key))?;
                Some(row(kv, key, value)).filter(|row| is_found(scan, row))
            });
            Ok(Page::of(asked, part.next))
        }
    }
}

/// Records that are several keys of one inode. The page may end among those of its last inode, which is therefore read
/// by itself, and gone on after.
async fn whole_inodes(kv: &dyn Kv, scan: &Scan, mut part: Part) -> EngineResult<Page> {
    let owner = |stored: &[u8]| match codec::parse_key(stored).filter(|key| is_asked(scan, key)) {
        Some(Key::Xattr(ino, _)) => Some(Key::Xattrs(ino)),
        other => other,
    };
    let last = part.rows.last().and_then(|(stored, _)| owner(stored));
    if let (Some(Place::All(prefix)), Some(_)) = (last.map(|key| codec::place(&key)), &part.next) {
        let rest = Want::All(prefix.clone());
        let view = kv.read(std::slice::from_ref(&rest)).await?;
        part.rows.retain(|(stored, _)| !stored.starts_with(&prefix));
        let listed = view.list(&rest).map(|listed| &listed.rows[..]).unwrap_or_default();
        part.rows.extend(listed.iter().map(|(key, stored)| (key.clone(), stored.value.clone())));
        // Every key of the family lies before this one.
        part.next = Some(Cursor([&prefix[..], &[0xFF; 256]].concat().into()));
    }
    let mut rows: Vec<Row> = Vec::new();
    let mut at = 0;
    while at < part.rows.len() {
        let Some(key) = owner(&part.rows[at].0) else {
            at += 1;
            continue;
        };
        let parts = part.rows[at..].iter().take_while(|(stored, _)| owner(stored).as_ref() == Some(&key));
        let count = parts.clone().count();
        match collected(&key, parts.map(|(stored, value)| (&stored[..], value))) {
            Ok(Some(record)) => rows.push(Ok((key, record))),
            Ok(None) => {}
            Err(_) => rows.push(Err(corrupt(kv, &key))),
        }
        at += count;
    }
    Ok(Page::of(rows, part.next))
}

/// Sessions, then what they say of themselves.
async fn sessions(kv: &dyn Kv, part: Part) -> EngineResult<Page> {
    let found: Vec<(Key, &Bytes)> = part
        .rows
        .iter()
        .filter_map(|(stored, value)| Some((codec::parse_key(stored)?, value)))
        .filter(|(key, _)| matches!(key, Key::Session(_)))
        .collect();
    let infos: Vec<Want> = found.iter().filter_map(|(key, _)| wants_of(key).nth(1)).collect();
    let view = if infos.is_empty() { View::default() } else { kv.read(&infos).await? };
    let rows = found.into_iter().zip(&infos).map(|((key, value), info)| {
        let info = match info {
            Want::Key(key) => view.key(key).flatten().map(|stored| stored.value.clone()).unwrap_or_default(),
            Want::All(_) | Want::Any(_) => Bytes::new(),
        };
        row(kv, key, value).map(|(key, record)| match record {
            Record::Session(session) => (key, Record::Session(Session { info, ..session })),
            other => (key, other),
        })
    });
    Ok(Page::of(rows, part.next))
}

/// The entries of a page, then the attributes of their nodes: two trips.
pub(super) async fn plus_page(kv: &dyn Kv, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<PlusPage> {
    let part = part(kv, &codec::prefixes(&Scan::Dentries(dir)), after, limit).await?;
    let mut entries = Vec::with_capacity(part.rows.len());
    for (stored, value) in &part.rows {
        let Some(key @ Key::Dentry(..)) = codec::parse_key(stored) else { continue };
        match row(kv, key, value)? {
            (Key::Dentry(_, name), Record::Dentry(dentry)) => entries.push((name, dentry)),
            (key, _) => return Err(corrupt(kv, &key).into()),
        }
    }
    let wants: Vec<Want> = entries.iter().flat_map(|(_, dentry)| wants_of(&Key::Attr(dentry.ino))).collect();
    let view = if wants.is_empty() { View::default() } else { kv.read(&wants).await? };
    let entries = entries.into_iter().map(|(name, dentry)| {
        let key = Key::Attr(dentry.ino);
        let node = attr(view.record(&key).map_err(|_| corrupt(kv, &key))?);
        Ok((name, dentry, node))
    });
    Ok(PlusPage { entries: entries.collect::<EngineResult<_>>()?, next: part.next })
}
