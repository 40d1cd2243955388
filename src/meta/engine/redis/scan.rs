//! Questions over many records, in pages.
//!
//! SCAN and HSCAN promise what the seam asks for: what is there from the first page to the last is seen at least
//! once. A cursor of ours is the server's and says which server's, for it means nothing to another: after a restart or
//! a failover a scan begins again, which finds some records twice and misses none. Scans over the parts of many keys also
//! carry the keys that are begun. Keys are matched by pattern and then read strictly, for other keys begin with the same
//! letters. In a cluster SCAN sees the keys of one node, so each of its pages makes sure that the node has all of the
//! slot.

use super::codec::{self, *};
use super::conn::Connection;
use crate::base::{Attr, Fault, Ino, Name, SessionId};
use crate::meta::engine::{Cursor, EngineResult, Page, PlusPage, Scan};
use crate::meta::record::{Dentry, DirStat, Key, QuotaOwner, Record, Session};
use bytes::Bytes;
use redis::{Pipeline, Value};
use std::time::Duration;

/// Most records of one trip, whatever the caller asked for: a longer command would hold the server up for others.
const PAGE_MAX: usize = 10_000;
/// Attributes per MGET (`spec/metadata.md` 2.6).
const MGET_MAX: usize = 4096;
/// Entries of a directory that comes whole, by a script. Each keeps the server about 10 µs longer than the commands
/// that the script stands for (500 of them: 5.5 ms for 1.4 ms), so that more of them are worth the trip that it spares
/// neither to who waits for them nor to the others.
const SMALL_MAX: usize = 64;
/// Looks at a cluster for a node that has all of the volume's slot: a minute in all.
const WHOLE_SLOT_TRIES: u32 = 120;
const WHOLE_SLOT_PAUSE: Duration = Duration::from_millis(500);
/// Directories whose entries are read side by side by `Scan::AllDentries`.
const DIRS_AT_ONCE: usize = 128;

/// A page of a server's scan: its items and where it goes on (0: nowhere).
struct Step {
    next: At,
    items: Value,
}

/// A place in a scan of the server's.
#[derive(Clone, Copy, Default)]
struct At {
    /// Which server's; see `Link::identity`.
    server: u64,
    /// 0 at the beginning, and when there is no more.
    cursor: u64,
}

pub(super) async fn page(
    connection: &Connection,
    scan: &Scan,
    after: Option<&Cursor>,
    limit: usize,
) -> EngineResult<Page> {
    let limit = limit.clamp(1, PAGE_MAX);
    match scan {
        Scan::Dentries(dir) => dentries(connection, *dir, after, limit).await,
        Scan::AllDentries => all_dentries(connection, after, limit).await,
        Scan::Attrs => by_key(connection, "i[0-9]*", after, limit, |key| matches!(key, Key::Attr(_))).await,
        Scan::Chunks => by_key(connection, "c[0-9]*_*", after, limit, |key| matches!(key, Key::Chunk(..))).await,
        // The keys of one inode are spread over the whole key space: as dear as `Chunks`, so limits count for less.
        Scan::ChunksOf(ino) => {
            let of_ino = |key: &Key| matches!(key, Key::Chunk(other, _) if other == ino);
            by_key(connection, &format!("c{ino}_*"), after, PAGE_MAX, of_ino).await
        }
        Scan::AllXattrs => by_key(connection, "x[0-9]*", after, limit, |key| matches!(key, Key::Xattrs(_))).await,
        Scan::AllLinkParents => {
            by_key(connection, "p[0-9]*", after, limit, |key| matches!(key, Key::LinkParents(_))).await
        }
        Scan::SliceRefs => {
            let row = |field: Vec<u8>, value: Vec<u8>| number(parse_slice_ref(&field)?, &value, 1);
            fields(connection, SLICE_REFS, after, limit, row).await
        }
        Scan::DelayedSlices => {
            fields(connection, DELAYED_SLICES, after, limit, |f, v| record(parse_delayed(&f)?, v)).await
        }
        Scan::AclRules => fields(connection, ACL, after, limit, |f, v| record(Key::AclRule(parse(&f)?), v)).await,
        Scan::DeletedFiles => deleted_files(connection, after, limit).await,
        Scan::Sessions => sessions(connection, after, limit).await,
        Scan::Sustained(session) => sustained(connection, *session, after, limit).await,
        Scan::DirStats => dir_stats(connection, after, limit).await,
        Scan::Quotas => quotas(connection, after, limit).await,
        Scan::LocksOf(session) => locks_of(connection, *session).await,
        Scan::AllLocks => by_key(connection, "lock[fp][0-9]*", after, limit, is_lock).await,
    }
}

/// The directory's entries, then their attributes: two trips, or one for a small directory.
pub(super) async fn plus_page(
    connection: &Connection,
    dir: Ino,
    after: Option<&Cursor>,
    limit: usize,
) -> EngineResult<PlusPage> {
    let limit = limit.clamp(1, PAGE_MAX);
    let step = match after {
        Some(_) => dir_step(connection, dir, after, limit).await?,
        // Whether it is small is not waited for.
        None => match tokio::join!(small(connection, dir, limit), dir_step(connection, dir, None, limit)) {
            (Ok(Some(page)), _) => return Ok(page),
            (Ok(None), step) => step?,
            (Err(error), _) => return Err(error),
        },
    };
    let (rows, next) = (entries_of(connection, dir, step.items)?.collect::<EngineResult<_>>()?, going_on(step.next));
    let entries = named(rows);
    let inodes: Vec<Ino> = entries.iter().map(|(_, dentry)| dentry.ino).collect();
    let attrs = attrs_of(connection, &inodes).await?;
    let entries = entries.into_iter().zip(attrs).map(|((name, dentry), attr)| (name, dentry, attr)).collect();
    Ok(PlusPage { entries, next })
}

/// A whole directory in one trip; nothing when it is not small.
async fn small(connection: &Connection, dir: Ino, limit: usize) -> EngineResult<Option<PlusPage>> {
    let (key, most) = (connection.prefix().key(dir_key(dir)), text!("{}", limit.min(SMALL_MAX)));
    if !connection.has_scripts() {
        return Ok(None);
    }
    let by = |name, script: &str| command(name, &[script.as_bytes(), b"1", key.as_bytes(), most.as_bytes()]);
    let answer = connection.query_script(&by("EVALSHA", &super::LIST_SHA), || by("EVAL", super::LIST)).await?;
    let (items, attrs) = match answer {
        Value::Nil => return Ok(None),
        Value::Array(mut parts) if parts.len() == 2 => match (parts.pop(), parts.pop()) {
            (Some(Value::Array(attrs)), Some(items)) => (items, attrs),
            _ => return Err(connection.odd_reply("list")),
        },
        _ => return Err(connection.odd_reply("list")),
    };
    let rows: Vec<_> = entries_of(connection, dir, items)?.collect::<EngineResult<_>>()?;
    if rows.len() != attrs.len() {
        return Err(connection.odd_reply("list"));
    }
    let entry = |((name, dentry), value): ((Name, Dentry), Value)| {
        Ok((name, dentry, attr_in(connection, dentry.ino, Some(value))?))
    };
    let entries = named(rows).into_iter().zip(attrs).map(entry).collect::<EngineResult<_>>()?;
    Ok(Some(PlusPage { entries, next: None }))
}

fn named(rows: Vec<(Key, Record)>) -> Vec<(Name, Dentry)> {
    let named = |row| match row {
        (Key::Dentry(_, name), Record::Dentry(dentry)) => Some((name, dentry)),
        _ => None,
    };
    rows.into_iter().filter_map(named).collect()
}

/// Removes the keys of the volume, and no others.
pub(super) async fn erase(connection: &Connection) -> EngineResult<()> {
    let mut at = At::default();
    loop {
        let step = scan_step(connection, "SCAN", None, at, &[b"COUNT", b"10000"]).await?;
        let names: Vec<Vec<u8>> = strings(step.items).ok_or_else(|| connection.odd_reply("erase"))?;
        let ours: Vec<&[u8]> =
            names.iter().map(Vec::as_slice).filter(|key| connection.prefix().strip(key).is_some_and(is_ours)).collect();
        if !ours.is_empty() {
            connection.query(&command("UNLINK", &ours)).await?;
        }
        at = step.next;
        if at.cursor == 0 {
            return Ok(());
        }
    }
}

// --- cursors -------------------------------------------------------------------------------------------------------

/// Numbers, eight bytes each.
fn cursor_of(numbers: &[u64]) -> Cursor {
    Cursor(Bytes::from(numbers.iter().flat_map(|n| n.to_be_bytes()).collect::<Vec<u8>>()))
}

fn numbers_of(after: Option<&Cursor>) -> EngineResult<Vec<u64>> {
    let Some(Cursor(bytes)) = after else { return Ok(Vec::new()) };
    let (numbers, rest) = bytes.as_chunks::<8>();
    if !rest.is_empty() || numbers.is_empty() {
        return Err(Fault::internal("scan").source("a cursor of another engine").into());
    }
    Ok(numbers.iter().map(|n| u64::from_be_bytes(*n)).collect())
}

/// The server's cursor alone.
fn position(after: Option<&Cursor>) -> EngineResult<At> {
    Ok(at_in(&numbers_of(after)?))
}

/// The server and its cursor, which come first in every cursor of ours.
fn at_in(numbers: &[u64]) -> At {
    At { server: numbers.first().copied().unwrap_or(0), cursor: numbers.get(1).copied().unwrap_or(0) }
}

fn going_on(next: At) -> Option<Cursor> {
    (next.cursor != 0).then(|| cursor_of(&[next.server, next.cursor]))
}

// --- steps of the server's scans -----------------------------------------------------------------------------------

/// `key` with its prefix.
fn scan_command(name: &str, key: Option<&[u8]>, cursor: u64, options: &[&[u8]]) -> redis::Cmd {
    let cursor = text!("{cursor}");
    let args: Vec<&[u8]> = key.into_iter().chain([cursor.as_bytes()]).chain(options.iter().copied()).collect();
    command(name, &args)
}

async fn scan_step(
    connection: &Connection,
    name: &str,
    key: Option<&[u8]>,
    mut at: At,
    options: &[&[u8]],
) -> EngineResult<Step> {
    loop {
        let cmd = scan_command(name, key, at.cursor, options);
        let (value, server) = match key {
            None if connection.is_cluster() => whole_slot(connection, cmd).await?,
            _ => connection.query_at(&cmd).await?,
        };
        if at.cursor == 0 || at.server == server {
            return step_of(value, server).ok_or_else(|| connection.odd_reply("scan"));
        }
        tracing::debug!(name, "the scan goes on at another redis server and begins again");
        at = At::default();
    }
}

/// The answer of a node that has all keys of the volume's slot. While the slot is being moved each node has some.
async fn whole_slot(connection: &Connection, cmd: redis::Cmd) -> EngineResult<(Value, u64)> {
    let slot = connection.prefix().slot();
    let mut pipeline = Pipeline::with_capacity(2);
    pipeline.add_command(cmd).add_command(command("CLUSTER", &[b"NODES"]));
    for _ in 0..WHOLE_SLOT_TRIES {
        let (values, server) = connection.query_all_at(&pipeline, false).await?;
        let [page, nodes] = <[Value; 2]>::try_from(values).map_err(|_| connection.odd_reply("scan"))?;
        let page = page.extract_error().map_err(|error| super::conn::fault(error, "scan"))?;
        if super::route::owns_all_of_slot(&nodes, slot) {
            return Ok((page, server));
        }
        connection.look_again();
        tokio::time::sleep(WHOLE_SLOT_PAUSE).await;
    }
    let fault = Fault::unavailable("scan").with("engine", "redis").with("slot", slot);
    Err(fault.source("the volume's slot is being moved to another node of the cluster").into())
}

async fn collection_step(connection: &Connection, name: &str, key: &[u8], at: At, limit: usize) -> EngineResult<Step> {
    let key = connection.prefix().key(key);
    scan_step(connection, name, Some(key.as_bytes()), at, &[b"COUNT", text!("{limit}").as_bytes()]).await
}

fn step_of(value: Value, server: u64) -> Option<Step> {
    let Value::Array(mut parts) = value else { return None };
    let items = parts.pop()?;
    match parts.pop()? {
        Value::BulkString(next) => Some(Step { next: At { server, cursor: parse(&next)? }, items }),
        _ => None,
    }
}

fn strings(value: Value) -> Option<Vec<Vec<u8>>> {
    let Value::Array(items) = value else { return None };
    items
        .into_iter()
        .map(|item| match item {
            Value::BulkString(bytes) => Some(bytes),
            _ => None,
        })
        .collect()
}

// --- rows ----------------------------------------------------------------------------------------------------------

type Row = EngineResult<(Key, Record)>;

/// A row whose value is a number, stored less `less`.
fn number(key: Key, value: &[u8], less: i64) -> Option<Row> {
    let n = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
    Some(match n {
        Some(n) => Ok((key, Record::Number(n.saturating_add(less)))),
        None => Err(corrupt(&key)),
    })
}

/// A row whose value is the stored form of its record.
fn record(key: Key, value: Vec<u8>) -> Option<Row> {
    let mut replies = Replies::new(vec![Value::BulkString(value)]);
    Some(codec::answer(&key, &mut replies).and_then(|record| match record {
        Some(record) => Ok((key, record)),
        None => Err(Fault::internal("scan").source("a value that is there and not").into()),
    }))
}

/// Rows of one hash; fields that `row` does not know are left out.
async fn fields(
    connection: &Connection,
    hash: &str,
    after: Option<&Cursor>,
    limit: usize,
    row: impl Fn(Vec<u8>, Vec<u8>) -> Option<Row>,
) -> EngineResult<Page> {
    let step = collection_step(connection, "HSCAN", hash.as_bytes(), position(after)?, limit).await?;
    let pairs = pairs(step.items).ok_or_else(|| connection.odd_reply("scan"))?;
    Page::gather(pairs.into_iter().filter_map(|(field, value)| row(field, value)), going_on(step.next))
}

async fn dentries(connection: &Connection, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let step = dir_step(connection, dir, after, limit).await?;
    Page::gather(entries_of(connection, dir, step.items)?, going_on(step.next))
}

async fn dir_step(connection: &Connection, dir: Ino, after: Option<&Cursor>, limit: usize) -> EngineResult<Step> {
    collection_step(connection, "HSCAN", dir_key(dir).as_bytes(), position(after)?, limit).await
}

fn entries_of(connection: &Connection, dir: Ino, items: Value) -> EngineResult<impl Iterator<Item = Row>> {
    let pairs = pairs(items).ok_or_else(|| connection.odd_reply("list"))?;
    Ok(pairs.into_iter().map(move |(name, value)| {
        let key = Key::Dentry(dir, Name::stored(name));
        match decode_dentry(&value) {
            Some(dentry) => Ok((key, Record::Dentry(dentry))),
            None => Err(corrupt(&key)),
        }
    }))
}

/// The cursor is that of SCAN followed by (directory, HSCAN cursor) pairs of the directories found and not yet
/// read to their end. Small directories come whole, side by side; large ones share the pages.
async fn all_dentries(connection: &Connection, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let state = numbers_of(after)?;
    let mut next = at_in(&state);
    let mut open: Vec<(u64, u64)> =
        state.get(2..).unwrap_or(&[]).as_chunks::<2>().0.iter().map(|p| (p[0], p[1])).collect();
    if open.is_empty() {
        let count = text!("{limit}");
        let pattern = connection.prefix().key("d[0-9]*");
        let options: [&[u8]; 4] = [b"MATCH", pattern.as_bytes(), b"COUNT", count.as_bytes()];
        let step = scan_step(connection, "SCAN", None, next, &options).await?;
        let names = strings(step.items).ok_or_else(|| connection.odd_reply("scan"))?;
        next = step.next;
        open.extend(names.iter().filter_map(|key| match parse_key(connection.prefix().strip(key)?) {
            Some(Key::AnyDentry(dir)) => Some((dir.0, 0)),
            _ => None,
        }));
    }
    let mut rows = Vec::new();
    if !open.is_empty() {
        let now: Vec<(u64, u64)> = open.drain(..open.len().min(DIRS_AT_ONCE).min(limit)).collect();
        let count = text!("{}", (limit / now.len()).max(10));
        let mut pipeline = Pipeline::with_capacity(now.len());
        for (dir, cursor) in &now {
            let options: [&[u8]; 2] = [b"COUNT", count.as_bytes()];
            let key = connection.prefix().key(dir_key(Ino(*dir)));
            pipeline.add_command(scan_command("HSCAN", Some(key.as_bytes()), *cursor, &options));
        }
        let (values, server) = connection.query_all_at(&pipeline, false).await?;
        if server != next.server {
            // These directories are begun at another server.
            return Page::gather([], Some(cursor_of(&[server, 0])));
        }
        for ((dir, _), value) in now.into_iter().zip(values) {
            if let Value::ServerError(error) = &value {
                rows.push(Err(super::conn::server_fault(error, "scan").with("inode", dir).into()));
                continue;
            }
            let step = step_of(value, server).ok_or_else(|| connection.odd_reply("scan"))?;
            rows.extend(entries_of(connection, Ino(dir), step.items)?);
            if step.next.cursor != 0 {
                open.push((dir, step.next.cursor));
            }
        }
    }
    let ended = next.cursor == 0 && open.is_empty();
    let state: Vec<u64> =
        [next.server, next.cursor].into_iter().chain(open.into_iter().flat_map(|(dir, at)| [dir, at])).collect();
    Page::gather(rows, (!ended).then(|| cursor_of(&state)))
}

/// Records with a key of their own: the keys of one step, then what they hold.
async fn by_key(
    connection: &Connection,
    pattern: &str,
    after: Option<&Cursor>,
    limit: usize,
    wanted: impl Fn(&Key) -> bool,
) -> EngineResult<Page> {
    let count = text!("{limit}");
    let pattern = connection.prefix().key(pattern);
    let options: [&[u8]; 4] = [b"MATCH", pattern.as_bytes(), b"COUNT", count.as_bytes()];
    let step = scan_step(connection, "SCAN", None, position(after)?, &options).await?;
    let names = strings(step.items).ok_or_else(|| connection.odd_reply("scan"))?;
    let keys: Vec<Key> =
        names.iter().filter_map(|key| parse_key(connection.prefix().strip(key)?)).filter(wanted).collect();
    Page::gather(rows_of(connection, keys).await?, going_on(step.next))
}

/// What is stored under keys that were there a moment ago. Among several strings one of another type looks as if it were
/// not there, so what is missing is asked for once more by itself.
async fn rows_of(connection: &Connection, keys: Vec<Key>) -> EngineResult<Vec<Row>> {
    let mut rows = Vec::with_capacity(keys.len());
    for part in keys.chunks(MGET_MAX) {
        let mut replies = super::ask_by(connection, part).await?;
        let mut missing = Vec::new();
        for key in part {
            match codec::answer(key, &mut replies).transpose() {
                Some(row) => rows.push(row.map(|record| (key.clone(), record))),
                None if string_name(key).is_some() => missing.push(key.clone()),
                None => {}
            }
        }
        for key in missing {
            let record = super::load_by(connection, std::slice::from_ref(&key)).await.map(|mut records| records.pop());
            rows.extend(record.map(Option::flatten).transpose().map(|row| row.map(|record| (key, record))));
        }
    }
    Ok(rows)
}

/// Attributes in one trip, whatever their number: a pipeline of MGETs.
async fn attrs_of(connection: &Connection, inodes: &[Ino]) -> EngineResult<Vec<Option<Attr>>> {
    if inodes.is_empty() {
        return Ok(Vec::new());
    }
    let mut pipeline = Pipeline::new();
    for part in inodes.chunks(MGET_MAX) {
        let names: Vec<codec::Text> = part.iter().map(|ino| connection.prefix().key(attr_key(*ino))).collect();
        let args: Vec<&[u8]> = names.iter().map(codec::Text::as_bytes).collect();
        pipeline.add_command(command("MGET", &args));
    }
    let values = connection.query_all(&pipeline, false).await?;
    let mut values = values.into_iter().flat_map(|part| match part {
        Value::Array(values) => values,
        other => vec![other],
    });
    inodes.iter().map(|ino| attr_in(connection, *ino, values.next())).collect()
}

/// Attributes as MGET answers them.
fn attr_in(connection: &Connection, ino: Ino, value: Option<Value>) -> EngineResult<Option<Attr>> {
    match value {
        Some(Value::Nil) => Ok(None),
        Some(Value::BulkString(bytes)) => Attr::decode(&bytes).map(Some).ok_or_else(|| corrupt(&Key::Attr(ino))),
        Some(Value::ServerError(error)) => Err(super::conn::server_fault(&error, "read attributes").into()),
        _ => Err(connection.odd_reply("read attributes")),
    }
}

async fn deleted_files(connection: &Connection, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let step = collection_step(connection, "ZSCAN", DELETED_FILES.as_bytes(), position(after)?, limit).await?;
    let pairs = pairs(step.items).ok_or_else(|| connection.odd_reply("scan"))?;
    let row = |(member, score): (Vec<u8>, Vec<u8>)| {
        let key = parse_deleted(&member)?;
        Some(match parse_score(&score) {
            Some(time) => Ok((key, Record::Number(time))),
            None => Err(corrupt(&key)),
        })
    };
    Page::gather(pairs.into_iter().filter_map(row), going_on(step.next))
}

async fn sustained(
    connection: &Connection,
    session: SessionId,
    after: Option<&Cursor>,
    limit: usize,
) -> EngineResult<Page> {
    let step = collection_step(connection, "SSCAN", sustained_key(session).as_bytes(), position(after)?, limit).await?;
    let members = strings(step.items).ok_or_else(|| connection.odd_reply("scan"))?;
    let row = |ino: u64| Ok((Key::Sustained(session, Ino(ino)), Record::Number(1)));
    Page::gather(members.iter().filter_map(|m| parse(m)).map(row), going_on(step.next))
}

async fn sessions(connection: &Connection, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let step = collection_step(connection, "ZSCAN", ALL_SESSIONS.as_bytes(), position(after)?, limit).await?;
    let pairs = pairs(step.items).ok_or_else(|| connection.odd_reply("scan"))?;
    let mut found: Vec<(SessionId, Option<i64>)> = Vec::with_capacity(pairs.len());
    for (member, score) in &pairs {
        if let Some(session) = parse(member).map(SessionId) {
            found.push((session, parse_score(score)));
        }
    }
    let names: Vec<u64> = found.iter().map(|(session, _)| session.0).collect();
    let infos = hmget(connection, &[SESSION_INFOS], &names).await?;
    let row = |((session, expire), mut info): ((SessionId, Option<i64>), Vec<Option<Vec<u8>>>)| {
        let (key, info) = (Key::Session(session), info.pop().flatten().unwrap_or_default().into());
        let expire = expire.ok_or_else(|| corrupt(&key))?;
        Ok((key, Record::Session(Session { expire, info })))
    };
    Page::gather(found.into_iter().zip(infos).map(row), going_on(step.next))
}

async fn dir_stats(connection: &Connection, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let step = collection_step(connection, "HSCAN", DIR_SPACE.as_bytes(), position(after)?, limit).await?;
    let spaces = numbered(connection, step.items)?;
    let names: Vec<u64> = spaces.iter().map(|(ino, _)| *ino).collect();
    let rest = hmget(connection, &[DIR_LENGTH, DIR_INODES], &names).await?;
    let row = |((ino, space), rest): ((u64, Vec<u8>), Vec<Option<Vec<u8>>>)| {
        let key = Key::DirStat(Ino(ino));
        let n = |value: Option<&Vec<u8>>| {
            let text = std::str::from_utf8(value.map_or(b"0", Vec::as_slice)).ok();
            text.and_then(|text| text.parse().ok()).ok_or_else(|| corrupt(&key))
        };
        let stat = DirStat { space: n(Some(&space))?, length: n(rest[0].as_ref())?, inodes: n(rest[1].as_ref())? };
        Ok((key, Record::DirStat(stat)))
    };
    Page::gather(spaces.into_iter().zip(rest).map(row), going_on(step.next))
}

/// Directories, users, groups in turn; the cursor is a position and the family.
async fn quotas(connection: &Connection, after: Option<&Cursor>, limit: usize) -> EngineResult<Page> {
    let state = numbers_of(after)?;
    let (family, at) = (state.get(2).copied().unwrap_or(0), at_in(&state));
    let owner = |id: u64| match family {
        0 => Some(QuotaOwner::Directory(Ino(id))),
        1 => u32::try_from(id).ok().map(QuotaOwner::User),
        _ => u32::try_from(id).ok().map(QuotaOwner::Group),
    };
    let [limits, spaces, counts] = owner(0).map(quota_hashes).expect("zero is an owner of every family");
    let step = collection_step(connection, "HSCAN", counts.as_bytes(), at, limit).await?;
    let used = numbered(connection, step.items)?;
    let names: Vec<u64> = used.iter().map(|(id, _)| *id).collect();
    let rest = hmget(connection, &[limits, spaces], &names).await?;
    let row = |((id, inodes), mut rest): ((u64, Vec<u8>), Vec<Option<Vec<u8>>>)| {
        let key = Key::Quota(owner(id)?);
        let mut record = || {
            let parse = |value: &[u8]| {
                let n = std::str::from_utf8(value).ok().and_then(|text| text.parse::<i64>().ok());
                n.ok_or_else(|| corrupt(&key))
            };
            let space = rest.pop().flatten().map(|space| parse(&space)).transpose()?;
            quota_record(&key, rest.pop().flatten().as_deref(), space, parse(&inodes)?)
        };
        Some(record().map(|record| (key.clone(), record)))
    };
    let next = match step.next.cursor {
        0 if family == 2 => None,
        0 => Some(cursor_of(&[step.next.server, 0, family + 1])),
        cursor => Some(cursor_of(&[step.next.server, cursor, family])),
    };
    Page::gather(used.into_iter().zip(rest).filter_map(row), next)
}

/// Fields that are numbers, with their values.
fn numbered(connection: &Connection, items: Value) -> EngineResult<Vec<(u64, Vec<u8>)>> {
    let pairs = pairs(items).ok_or_else(|| connection.odd_reply("scan"))?;
    Ok(pairs.into_iter().filter_map(|(field, value)| Some((parse(&field)?, value))).collect())
}

/// For each field, its values in several hashes; one trip.
async fn hmget(connection: &Connection, hashes: &[&str], fields: &[u64]) -> EngineResult<Vec<Vec<Option<Vec<u8>>>>> {
    if fields.is_empty() {
        return Ok(Vec::new());
    }
    let names: Vec<codec::Text> = fields.iter().map(|field| text!("{field}")).collect();
    let mut pipeline = Pipeline::with_capacity(hashes.len());
    for hash in hashes {
        let args: Vec<&[u8]> = names.iter().map(codec::Text::as_bytes).collect();
        pipeline.add_command(keyed(connection.prefix(), "HMGET", hash.as_bytes(), &args));
    }
    let mut out: Vec<Vec<Option<Vec<u8>>>> = vec![Vec::with_capacity(hashes.len()); fields.len()];
    for value in connection.query_all(&pipeline, false).await? {
        let values = match value {
            Value::Array(values) if values.len() == fields.len() => values,
            Value::ServerError(error) => return Err(super::conn::server_fault(&error, "scan").into()),
            _ => return Err(connection.odd_reply("scan")),
        };
        for (row, value) in out.iter_mut().zip(values) {
            row.push(match value {
                Value::BulkString(bytes) => Some(bytes),
                _ => None,
            });
        }
    }
    Ok(out)
}

fn is_lock(key: &Key) -> bool {
    matches!(key, Key::Flocks(_) | Key::Plocks(_))
}

/// The lock records in which `locked{sid}` says the session holds something, in one page: a session holds few.
async fn locks_of(connection: &Connection, session: SessionId) -> EngineResult<Page> {
    let members =
        connection.query(&keyed(connection.prefix(), "SMEMBERS", locked_key(session).as_bytes(), &[])).await?;
    let names = strings(members).ok_or_else(|| connection.odd_reply("scan"))?;
    let keys: Vec<Key> =
        names.iter().filter_map(|key| parse_key(connection.prefix().strip(key)?)).filter(is_lock).collect();
    let mut rows = rows_of(connection, keys).await?;
    // The set may name a key where the session holds nothing any more.
    rows.retain(|row| match row {
        Ok((_, Record::Flocks(holders))) => holders.iter().any(|h| h.session == session),
        Ok((_, Record::Plocks(holders))) => holders.iter().any(|h| h.session == session),
        Ok(_) => false,
        Err(_) => true,
    });
    Page::gather(rows, None)
}
