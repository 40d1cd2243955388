//! Sessions: this client as the others see it, and what becomes of clients that went without a word
//! (`spec/metadata.md` section 5).
//!
//! A session is a number, a time until which it is believed alive, and a description. Whoever finds the time past
//! (the peer's clients too) cleans up: locks are dropped, sustained files released, the records removed. A client
//! that was away for too long learns so at its next heartbeat, and its caller is told, because what others did
//! meanwhile cannot be undone.

use super::engine::{Change, Scan};
use super::open::Release;
use super::record::{FlockHolder, Key, PlockHolder, PlockRange, Record, Session};
use super::txn::{FlocksOf, Operation, PlocksOf, SessionOf, Settled, Tx};
use super::{Meta, outside};
use crate::base::{Errno, Ino, Outcome, SessionId, Stop};
use crate::util::task::{StopSignal, jittered};
use bytes::Bytes;
use serde::{Deserialize, Serialize};
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

/// A session is believed alive for so many heartbeats after the last one.
const HEARTBEATS_ALIVE: i64 = 5;
/// Without heartbeats a session is believed alive for a year.
const ALIVE_FOREVER_SECONDS: i64 = 365 * 86_400;
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
const HEARTBEAT_MAX: Duration = Duration::from_secs(600);
/// Stale sessions cleaned in one go.
const STALE_MAX: usize = 1000;
const SCAN_PAGE: usize = 1000;

/// Who this client is: the session-info document, in the peer's words.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "PascalCase", default)]
pub struct SessionInfo {
    pub version: String,
    pub host_name: String,
    #[serde(rename = "IPAddrs", skip_serializing_if = "Vec::is_empty")]
    pub ip_addrs: Vec<String>,
    pub mount_point: String,
    /// RFC 3339 with nanoseconds.
    pub mount_time: String,
    #[serde(rename = "ProcessID")]
    pub process_id: u32,
}

/// A session of the volume, as listed.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionEntry {
    pub sid: SessionId,
    /// Unix seconds.
    pub expire: i64,
    /// `None` when there is no description, or none that can be read.
    pub info: Option<SessionInfo>,
}

/// A session with what it holds.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SessionDetail {
    pub entry: SessionEntry,
    pub sustained: Vec<Ino>,
    pub flocks: Vec<(Ino, FlockHolder)>,
    /// (inode, owner, ranges)
    pub plocks: Vec<(Ino, u64, Vec<PlockRange>)>,
}

/// What a heartbeat found out.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum SessionNews {
    /// The volume's format document, as stored now.
    Setting(Bytes),
    /// There is no format document any more: the volume was destroyed.
    SettingGone,
    /// Other clients took this one for dead: its locks and its open files without names may be gone. The session is
    /// registered again.
    WasDead,
}

/// What the client makes of the news.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Verdict {
    Continue,
    /// The volume is not the one that was mounted: stop at once.
    Exit,
}

/// Why the heartbeat ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum SessionEnd {
    Stopped,
    Exit,
}

struct PutSession {
    sid: SessionId,
    expire: i64,
    info: Bytes,
    /// Registering for the first time: the number must be free.
    new: bool,
}

/// What a registration found under its number.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Found {
    Ours,
    Nothing,
    Taken,
}

impl Operation for PutSession {
    const NAME: &'static str = "put_session";
    type Output = Found;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Found> {
        let found = match tx.load(SessionOf(self.sid)).await? {
            Some(_) if self.new => return Ok(Found::Taken),
            Some(session) if !session.info.is_empty() => Found::Ours,
            _ => Found::Nothing,
        };
        let session = Session { expire: self.expire, info: self.info.clone() };
        tx.change(Change::Put(Key::Session(self.sid), Record::Session(session)));
        Ok(found)
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Found>> {
        let ours = Session { expire: self.expire, info: self.info.clone() };
        Ok(match tx.load(SessionOf(self.sid)).await? {
            Some(session) if session == ours => Settled::Applied(Found::Ours),
            _ => Settled::NotApplied,
        })
    }
}

/// Drops everything a session holds on one inode, of one sort of lock.
struct DropLocks {
    session: SessionId,
    key: Key,
}

impl Operation for DropLocks {
    const NAME: &'static str = "drop_locks";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        let session = self.session;
        let of_session = |holders: Vec<(SessionId, u64)>| -> Vec<u64> {
            holders.into_iter().filter(|(sid, _)| *sid == session).map(|(_, owner)| owner).collect()
        };
        match self.key {
            Key::Flocks(ino) => {
                let holders: Vec<FlockHolder> = tx.load(FlocksOf(ino)).await?;
                let owners = of_session(holders.iter().map(|h| (h.session, h.owner)).collect());
                for (i, &owner) in owners.iter().enumerate() {
                    let last = i + 1 == owners.len();
                    tx.change(Change::SetFlock { ino, session, owner, exclusive: None, last });
                }
            }
            Key::Plocks(ino) => {
                let holders: Vec<PlockHolder> = tx.load(PlocksOf(ino)).await?;
                let owners = of_session(holders.iter().map(|h| (h.session, h.owner)).collect());
                for (i, &owner) in owners.iter().enumerate() {
                    let last = i + 1 == owners.len();
                    tx.change(Change::SetPlock { ino, session, owner, ranges: Vec::new(), last });
                }
            }
            _ => {}
        }
        Ok(())
    }

    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        Ok(Settled::NotApplied)
    }
}

/// Removes the record of a session, unless it came back to life.
struct DropSession {
    sid: SessionId,
    /// Only when it expired before this; `None`: in any case.
    expired_before: Option<i64>,
}

impl Operation for DropSession {
    const NAME: &'static str = "drop_session";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        if let Some(session) = tx.load(SessionOf(self.sid)).await?
            && self.expired_before.is_none_or(|time| session.expire < time)
        {
            tx.change(Change::Delete(Key::Session(self.sid)));
        }
        Ok(())
    }

    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<()>> {
        Ok(Settled::NotApplied)
    }
}

/// The heartbeat as it is kept: zero means none, anything else within 1 s and 10 min.
pub fn clamp_heartbeat(heartbeat: Duration) -> Duration {
    if heartbeat.is_zero() { heartbeat } else { heartbeat.clamp(HEARTBEAT_MIN, HEARTBEAT_MAX) }
}

impl Meta {
    fn expiry(&self, heartbeat: Duration) -> i64 {
        let alive = match clamp_heartbeat(heartbeat) {
            Duration::ZERO => ALIVE_FOREVER_SECONDS,
            // Rounded up, so that a heartbeat of 1.5 s is not taken for one of a second.
            beat => HEARTBEATS_ALIVE * beat.as_millis().div_ceil(1000) as i64,
        };
        self.now().seconds + alive
    }

    /// Registers this client. A read-only client stays unregistered, with session 0.
    pub async fn start_session(&self, info: SessionInfo, heartbeat: Duration) -> Outcome<SessionId> {
        self.refresh_usage().await?;
        if self.settings().read_only {
            return Ok(SessionId(0));
        }
        let info = Bytes::from(serde_json::to_vec(&info).expect("a session info is plain data"));
        let sid = loop {
            let sid = SessionId(outside(self.engine().allocate(super::Counter::NextSession, 1).await)?);
            let op = PutSession { sid, expire: self.expiry(heartbeat), info: info.clone(), new: true };
            // A number that is taken was restored from somewhere; the counter goes on until it is past those.
            if self.run(&op).await? != Found::Taken {
                break sid;
            }
        };
        *self.session_info.lock() = info;
        self.session.store(sid.0, Ordering::Relaxed);
        Ok(sid)
    }

    /// Keeps the session alive until it is told to stop: at each heartbeat rewrites its expiry, reads the format
    /// document and the usage anew, and releases what could not be released before. `on_news` judges what was
    /// found; it is called on this task and must not block. Other clients' stale sessions are a background job
    /// ([`super::jobs`]).
    pub async fn run_session(
        self: Arc<Self>,
        heartbeat: Duration,
        on_news: impl Fn(SessionNews) -> Verdict + Send + Sync,
        stop: StopSignal,
    ) -> SessionEnd {
        let heartbeat = clamp_heartbeat(heartbeat);
        // Without heartbeats the format document is still followed, at the peer's default pace.
        let pause = if heartbeat.is_zero() { Duration::from_secs(12) } else { heartbeat };
        while stop.sleep(jittered(pause)).await {
            match self.beat(heartbeat, &on_news).await {
                Ok(Verdict::Continue) => {}
                Ok(Verdict::Exit) => return SessionEnd::Exit,
                Err(error) => tracing::warn!(session = %self.session(), "heartbeat failed: {error}"),
            }
        }
        SessionEnd::Stopped
    }

    async fn beat(
        &self,
        heartbeat: Duration,
        on_news: &(impl Fn(SessionNews) -> Verdict + Send + Sync),
    ) -> Outcome<Verdict> {
        let sid = self.session();
        if sid.0 > 0 {
            let info = self.session_info.lock().clone();
            let op = PutSession { sid, expire: self.expiry(heartbeat), info, new: false };
            if self.run(&op).await? == Found::Nothing {
                tracing::warn!(session = %sid, "other clients took this one for dead; registered again");
                if on_news(SessionNews::WasDead) == Verdict::Exit {
                    return Ok(Verdict::Exit);
                }
            }
        }
        let news = self.setting().await?.map_or(SessionNews::SettingGone, SessionNews::Setting);
        if on_news(news) == Verdict::Exit {
            return Ok(Verdict::Exit);
        }
        self.refresh_usage().await?;
        self.release_left_behind().await;
        Ok(Verdict::Continue)
    }

    /// Ends this client's session: its locks, its open files without names, and its records go.
    pub async fn close_session(&self) -> Outcome<()> {
        let sid = self.session();
        if sid.0 == 0 {
            return Ok(());
        }
        self.clean_session(sid).await?;
        self.session.store(0, Ordering::Relaxed);
        Ok(())
    }

    /// Removes a session with all that it holds, whether it is alive or not.
    pub async fn clean_session(&self, sid: SessionId) -> Outcome<()> {
        self.clean(sid, None).await
    }

    async fn clean(&self, sid: SessionId, expired_before: Option<i64>) -> Outcome<()> {
        // Each part is tried even if another failed; the record goes last, so that a failure is tried again.
        let mut failed: Option<Stop> = None;
        for (key, _) in self.scan_all(&Scan::LocksOf(sid)).await? {
            if let Err(stop) = self.run(&DropLocks { session: sid, key }).await {
                failed = Some(stop);
            }
        }
        for (key, _) in self.scan_all(&Scan::Sustained(sid)).await? {
            let Key::Sustained(_, ino) = key else { continue };
            match self.run(&Release { session: sid, ino }).await {
                Ok(Some(length)) => self.queue_deleted_file(ino, length),
                Ok(None) => {}
                Err(stop) => failed = Some(stop),
            }
        }
        match failed {
            Some(stop) => Err(stop),
            None => self.run(&DropSession { sid, expired_before }).await,
        }
    }

    /// Cleans sessions whose time is past, up to a thousand. Answers how many went.
    pub async fn clean_stale_sessions(&self, stop: &StopSignal) -> Outcome<usize> {
        let now = self.now().seconds;
        let stale = |session: &Session| session.expire < now;
        let mut cleaned = 0;
        for (key, record) in self.scan_all(&Scan::Sessions).await? {
            let (Key::Session(sid), Record::Session(session)) = (key, record) else { continue };
            if !stale(&session) || sid == self.session() {
                continue;
            }
            if stop.is_stopped() || cleaned == STALE_MAX {
                break;
            }
            // It may have come back since the scan.
            match outside(self.engine().read(&[Key::Session(sid)]).await)?.pop().flatten() {
                Some(Record::Session(session)) if stale(&session) => {}
                _ => continue,
            }
            match self.clean(sid, Some(now)).await {
                Ok(()) => {
                    tracing::info!(session = %sid, "cleaned up after a client that is gone");
                    cleaned += 1;
                }
                Err(error) => tracing::warn!(session = %sid, "stale session is left for later: {error}"),
            }
        }
        Ok(cleaned)
    }

    /// All sessions of the volume.
    pub async fn sessions(&self) -> Outcome<Vec<SessionEntry>> {
        let mut entries: Vec<SessionEntry> = self
            .scan_all(&Scan::Sessions)
            .await?
            .into_iter()
            .filter_map(|row| match row {
                (Key::Session(sid), Record::Session(session)) => Some(entry(sid, &session)),
                _ => None,
            })
            .collect();
        entries.sort_by_key(|entry| entry.sid);
        entries.dedup_by_key(|entry| entry.sid);
        Ok(entries)
    }

    /// One session with its sustained files and locks; ENOENT when there is none of that number.
    pub async fn session_detail(&self, sid: SessionId) -> Outcome<SessionDetail> {
        let Some(Record::Session(session)) = outside(self.engine().read(&[Key::Session(sid)]).await)?.pop().flatten()
        else {
            return Err(Errno::ENOENT.into());
        };
        let mut detail = SessionDetail {
            entry: entry(sid, &session),
            sustained: Vec::new(),
            flocks: Vec::new(),
            plocks: Vec::new(),
        };
        for (key, _) in self.scan_all(&Scan::Sustained(sid)).await? {
            if let Key::Sustained(_, ino) = key {
                detail.sustained.push(ino);
            }
        }
        for row in self.scan_all(&Scan::LocksOf(sid)).await? {
            match row {
                (Key::Flocks(ino), Record::Flocks(holders)) => {
                    detail.flocks.extend(holders.into_iter().filter(|h| h.session == sid).map(|h| (ino, h)));
                }
                (Key::Plocks(ino), Record::Plocks(holders)) => {
                    let mine = holders.into_iter().filter(|h| h.session == sid);
                    detail.plocks.extend(mine.map(|h| (ino, h.owner, h.ranges)));
                }
                _ => {}
            }
        }
        Ok(detail)
    }

    /// A whole scan: only for families that are small (sessions, locks of one session).
    async fn scan_all(&self, scan: &Scan) -> Outcome<Vec<(Key, Record)>> {
        let mut rows = Vec::new();
        let mut after = None;
        loop {
            let page = outside(self.engine().scan(scan, after.as_ref(), SCAN_PAGE).await)?;
            rows.extend(page.rows);
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(rows),
            }
        }
    }
}

fn entry(sid: SessionId, session: &Session) -> SessionEntry {
    SessionEntry { sid, expire: session.expire, info: serde_json::from_slice(&session.info).ok() }
}

#[cfg(test)]
mod tests;
