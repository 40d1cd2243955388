//! Sessions: this client as the others see it, and what becomes of clients that went without a word
//! (`spec/metadata.md` section 5).
//!
//! A session is a number, a time until which it is believed alive, and a description. Whoever finds the time past
//! (the peer's clients too) cleans up: locks are dropped, sustained files released, the records removed.
//!
//! A client that was away for too long (stopped, suspended, cut off) must not go on as if nothing had happened: others
//! may hold its locks now, and what it has stored but not committed may be gone. So a number that was cleaned never
//! comes back: commits of data name the session that they were begun in and fail when it is gone, the next heartbeat
//! tells the caller and registers anew under another number. Our clients claim a session, by an expiry of zero, before
//! they take anything from it, and so a heartbeat and a clean-up never both succeed; the peer's cannot be kept from
//! cleaning a session that comes back at that very moment.

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
/// For so many heartbeats a session that looks past is watched before it is cleaned.
const HEARTBEATS_UNHEARD: u32 = 3;
/// The heartbeat of a client that says nothing else.
const DEFAULT_HEARTBEAT: Duration = Duration::from_secs(12);
const HEARTBEAT_MIN: Duration = Duration::from_secs(1);
const HEARTBEAT_MAX: Duration = Duration::from_secs(600);
/// Stale sessions cleaned in one go.
const STALE_MAX: usize = 1000;
const SCAN_PAGE: usize = 1000;
/// For so many heartbeats a session of ours that others cleaned is cleaned after them: what was under way in it may
/// still have stored records. Longer than any operation takes.
const SWEEPS: u32 = 5;

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
    /// Other clients took this one for dead: its locks and its open files without names are gone, and nothing that
    /// was begun in the session can be committed any more. Told before this client is registered under a new number.
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
    /// Registering for the first time: the number must be free. Otherwise it must still be ours.
    new: bool,
}

/// What became of a registration or of a heartbeat.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Put {
    Done,
    /// The number is somebody else's.
    Taken,
    /// The session was cleaned, or is about to be.
    Gone,
}

/// The expiry of a session that is being cleaned: past for everybody, and never written by a heartbeat.
const CLAIMED: i64 = 0;

fn is_alive(session: &Session) -> bool {
    session.expire != CLAIMED
}

/// The wish for a session, if there is one, to hand to `require_alive`. Guarded whole: the rare commit that meets a
/// heartbeat is tried again.
pub(in crate::meta) fn session_of(session: SessionId) -> Vec<SessionOf> {
    (session.0 > 0).then_some(SessionOf(session)).into_iter().collect()
}

/// EIO when one of the sessions, as loaded, is gone or about to be: what was begun in it must not be committed.
pub(in crate::meta) fn require_alive(sessions: &[Option<Session>]) -> Outcome<()> {
    if sessions.iter().all(|session| session.as_ref().is_some_and(is_alive)) { Ok(()) } else { Err(Errno::EIO.into()) }
}

impl Operation for PutSession {
    const NAME: &'static str = "put_session";
    type Output = Put;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<Put> {
        match tx.load(SessionOf(self.sid)).await? {
            Some(_) if self.new => return Ok(Put::Taken),
            None if !self.new => return Ok(Put::Gone),
            Some(session) if !is_alive(&session) || session.info.is_empty() => return Ok(Put::Gone),
            _ => {}
        }
        let session = Session { expire: self.expire, info: self.info.clone() };
        tx.change(Change::Put(Key::Session(self.sid), Record::Session(session)));
        Ok(Put::Done)
    }

    async fn settle(&self, tx: &mut Tx<'_>) -> Outcome<Settled<Put>> {
        let ours = Session { expire: self.expire, info: self.info.clone() };
        Ok(match tx.load(SessionOf(self.sid)).await? {
            Some(session) if session == ours => Settled::Applied(Put::Done),
            _ => Settled::NotApplied,
        })
    }
}

/// Takes a session for cleaning that has this expiry. False when it was heard of since, or is gone.
struct ClaimSession {
    sid: SessionId,
    expire: i64,
}

impl Operation for ClaimSession {
    const NAME: &'static str = "claim_session";
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        match tx.load(SessionOf(self.sid)).await? {
            Some(session) if session.expire == self.expire || session.expire == CLAIMED => {
                if is_alive(&session) {
                    let claimed = Session { expire: CLAIMED, ..session };
                    tx.change(Change::Put(Key::Session(self.sid), Record::Session(claimed)));
                }
                Ok(true)
            }
            _ => Ok(false),
        }
    }

    /// A claim is the same whoever made it.
    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        Ok(Settled::NotApplied)
    }
}

/// Drops everything a session holds on one inode, of one sort of lock.
pub(super) struct DropLocks {
    pub session: SessionId,
    /// `Key::Flocks` or `Key::Plocks`.
    pub key: Key,
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

/// Removes the record of a session.
struct DropSession(SessionId);

impl Operation for DropSession {
    const NAME: &'static str = "drop_session";
    type Output = ();

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
        if tx.load(SessionOf(self.0)).await?.is_some() {
            tx.change(Change::Delete(Key::Session(self.0)));
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

/// How long a session that looks past is watched by a client, or a tool, with this heartbeat. Others are taken to have
/// a similar one.
pub fn unheard(heartbeat: Duration) -> Duration {
    HEARTBEATS_UNHEARD * pace(heartbeat)
}

/// How often a client with this heartbeat does what belongs to one: at the default pace when it has none.
pub(super) fn pace(heartbeat: Duration) -> Duration {
    match clamp_heartbeat(heartbeat) {
        Duration::ZERO => DEFAULT_HEARTBEAT,
        beat => beat,
    }
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
        *self.session_info.lock() = Bytes::from(serde_json::to_vec(&info).expect("a session info is plain data"));
        self.register(heartbeat).await
    }

    /// Takes a new number for this client.
    async fn register(&self, heartbeat: Duration) -> Outcome<SessionId> {
        let info = self.session_info.lock().clone();
        loop {
            let sid = SessionId(outside(self.engine().allocate(super::Counter::NextSession, 1).await)?);
            let op = PutSession { sid, expire: self.expiry(heartbeat), info: info.clone(), new: true };
            // A number that is taken was restored from somewhere; the counter goes on until it is past those.
            if self.run(&op).await? == Put::Done {
                self.session.store(sid.0, Ordering::Release);
                return Ok(sid);
            }
        }
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
        // Without heartbeats the format document is still followed.
        let pause = pace(heartbeat);
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
            if self.run(&op).await? == Put::Gone {
                if on_news(SessionNews::WasDead) == Verdict::Exit {
                    return Ok(Verdict::Exit);
                }
                self.note_former_session(sid);
                let new = self.register(heartbeat).await?;
                tracing::warn!(was = %sid, session = %new, "other clients took this one for dead: registered anew");
            }
        }
        self.sweep_former_sessions().await?;
        let news = self.setting().await?.map_or(SessionNews::SettingGone, SessionNews::Setting);
        if on_news(news) == Verdict::Exit {
            return Ok(Verdict::Exit);
        }
        self.refresh_usage().await?;
        self.release_left_behind().await;
        Ok(Verdict::Continue)
    }

    fn note_former_session(&self, sid: SessionId) {
        let mut former = self.former_sessions.lock();
        former.retain(|(known, _)| *known != sid);
        former.push((sid, SWEEPS));
    }

    async fn sweep_former_sessions(&self) -> Outcome<()> {
        let former = self.former_sessions.lock().clone();
        for (sid, _) in former {
            self.clean_session(sid).await?;
        }
        self.former_sessions.lock().retain_mut(|(_, left)| {
            *left -= 1;
            *left > 0
        });
        Ok(())
    }

    /// Ends this client's session: its locks, its open files without names, and its records go.
    pub async fn close_session(&self) -> Outcome<()> {
        let sid = self.session();
        if sid.0 == 0 {
            return Ok(());
        }
        self.sweep_former_sessions().await?;
        self.clean_session(sid).await?;
        self.session.store(0, Ordering::Release);
        Ok(())
    }

    /// Removes a session with all that it holds, whether it is alive or not.
    pub async fn clean_session(&self, sid: SessionId) -> Outcome<()> {
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
            None => self.run(&DropSession(sid)).await,
        }
    }

    /// Cleans sessions whose time is past and that nothing was heard of for another `unheard`, up to a thousand. Answers
    /// how many went.
    ///
    /// The time is by the other client's clock, which may be behind ours by more than a session lives. So a session that
    /// looks past is watched by our clock alone: while it still writes its heartbeats, it is alive.
    pub async fn clean_stale_sessions(&self, unheard: Duration, stop: &StopSignal) -> Outcome<usize> {
        let now = self.now().seconds;
        let mut past = Vec::new();
        for (key, record) in self.scan_all(&Scan::Sessions).await? {
            let (Key::Session(sid), Record::Session(session)) = (key, record) else { continue };
            if session.expire < now && sid != self.session() && past.len() < STALE_MAX {
                past.push((sid, session.expire));
            }
        }
        let watched = past.is_empty() || unheard.is_zero() || stop.sleep(unheard).await;
        if !watched {
            return Ok(0);
        }
        let mut cleaned = 0;
        for (sid, expire) in past {
            if stop.is_stopped() {
                break;
            }
            if !self.run(&ClaimSession { sid, expire }).await? {
                continue;
            }
            match self.clean_session(sid).await {
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
