//! The etcd back end.
//!
//! A read is one transaction of ranges, which is linearizable and does not go through the log; more keys than fit into
//! one are read at the revision of the first. A commit is one transaction: if the revision of every key that was looked
//! at is what it was (and no key has come into a range that was), then the changes, else the same reads again, so that
//! the next attempt needs no trip of its own.
//!
//! **A lost reply.** A commit that writes a key it compares can be sent again: it cannot be applied twice, for the first
//! time gives that key another revision. When it is refused the second time, the keys tell: all of them have our values
//! and one revision between them, then it was applied; one of them has its old revision, then it was not, and cannot be
//! any more. Only what fits neither, and commits that compare nothing they write, are `Undetermined`.
//!
//! Needs etcd 3.3 (comparisons of ranges); an older server would compare something else, so it is refused at once.
//!
//! `link` keeps the connection, `messages` are etcd's, `tls` is what the name says.

mod link;
mod messages;
#[cfg(test)]
mod tests;
mod tls;

pub use link::{EtcdOptions, TlsOptions};

use super::batch::Writes;
use super::codec;
use super::view::{Listed, Stored, View, Want};
use super::{Attempt, Ended, Kv, KvEngine, KvTxn};
use crate::base::{Fault, FaultKind};
use crate::meta::engine::{EngineError, EngineResult};
use async_trait::async_trait;
use bytes::Bytes;
use link::{Failed, Link};
use messages::{
    Compare, CompareResult, CompareTarget, Compared, DeleteRangeRequest, KeyValue, PutRequest, RangeRequest,
    RangeResponse, Request, RequestOp, Response, StatusRequest, StatusResponse, TxnRequest, TxnResponse,
};
use std::collections::BTreeSet;
use std::sync::Arc;

/// Operations that a server takes in one transaction unless it was told otherwise (`--max-txn-ops`).
const OPERATIONS_MAX: usize = 128;
/// Keys of one prefix that a commit removes one by one; more go as a range.
const REMOVALS_MAX: usize = 64;
/// Keys that `erase` removes at a time: removing millions at once would hold the cluster up.
const ERASED_AT_ONCE: usize = 2000;
/// Separates the prefix of a volume from its keys. No path has this byte.
const SEPARATOR: u8 = 0xFD;
/// The oldest server that compares ranges.
const VERSION_MIN: (u32, u32) = (3, 3);

const RANGE: &str = "/etcdserverpb.KV/Range";
const TXN: &str = "/etcdserverpb.KV/Txn";
const STATUS: &str = "/etcdserverpb.Maintenance/Status";

/// A volume under a prefix of an etcd cluster.
struct Volume {
    link: Link,
    prefix: Vec<u8>,
}

/// Opens the volume under the path of the options, and checks that the cluster can serve it.
pub async fn open(options: &EtcdOptions) -> EngineResult<KvEngine> {
    let etcd = Volume { link: Link::new(options)?, prefix: prefix_of(&options.path) };
    let status: StatusResponse = etcd.link.ask(STATUS, &StatusRequest {}).await?;
    check_version(&status.version)?;
    Ok(KvEngine::new(Arc::new(Etcd(Arc::new(etcd)))))
}

/// The path of the URL with its slash, and the separator.
fn prefix_of(path: &str) -> Vec<u8> {
    let mut prefix = Vec::new();
    if !path.is_empty() {
        prefix.push(b'/');
        prefix.extend(path.as_bytes());
    }
    prefix.push(SEPARATOR);
    prefix
}

fn check_version(version: &str) -> EngineResult<()> {
    let mut parts = version.split('.').map(|part| part.parse().unwrap_or(0));
    match (parts.next().unwrap_or(0), parts.next().unwrap_or(0)) >= VERSION_MIN {
        true => Ok(()),
        false => {
            let fault = Fault::unsupported("open etcd").with("version", version);
            Err(fault.source("etcd 3.3 or newer is needed, which compares ranges of keys").into())
        }
    }
}

fn op(request: Request) -> RequestOp {
    RequestOp { request: Some(request) }
}

fn compare(key: Bytes, range_end: Bytes, result: CompareResult, revision: i64) -> Compare {
    Compare {
        result: result.into(),
        target: CompareTarget::Mod.into(),
        key,
        range_end,
        to: Some(Compared::ModRevision(revision)),
    }
}

impl Volume {
    fn physical(&self, key: &[u8]) -> Bytes {
        [&self.prefix, key].concat().into()
    }

    fn logical(&self, key: &[u8]) -> EngineResult<Vec<u8>> {
        let key = key.strip_prefix(&self.prefix[..]);
        key.map(<[u8]>::to_vec).ok_or_else(|| self.odd_reply("a key of another volume"))
    }

    fn odd_reply(&self, said: &'static str) -> EngineError {
        let fault = Fault::internal("ask etcd").with("engine", "etcd").with("addresses", self.link.addresses());
        fault.source(said).into()
    }

    /// First key and end of a want; no end for a single key.
    fn range(&self, want: &Want) -> (Bytes, Bytes) {
        match want {
            Want::Key(key) => (self.physical(key), Bytes::new()),
            Want::All(prefix) | Want::Any(prefix) => (self.physical(prefix), self.physical(&codec::end_of(prefix))),
        }
    }

    fn range_request(&self, want: &Want, revision: i64) -> RangeRequest {
        let (key, range_end) = self.range(want);
        let limit = i64::from(matches!(want, Want::Any(_)));
        RangeRequest { key, range_end, limit, revision, keys_only: false }
    }

    fn reads(&self, wants: &[Want], revision: i64) -> Vec<RequestOp> {
        wants.iter().map(|want| op(Request::Range(self.range_request(want, revision)))).collect()
    }

    /// What a transaction of reads answers.
    fn view(&self, wants: &[Want], answer: TxnResponse) -> EngineResult<View> {
        let revision = answer.header.map_or(0, |header| header.revision);
        if answer.responses.len() != wants.len() {
            return Err(self.odd_reply("another number of answers"));
        }
        let mut view = View::default();
        for (want, answer) in wants.iter().zip(answer.responses) {
            let Some(Response::Range(range)) = answer.response else { return Err(self.odd_reply("no range")) };
            let stored = |kv: &KeyValue| Stored { value: kv.value.clone(), revision: kv.mod_revision };
            match want {
                Want::Key(key) => view.put_key(key.clone(), range.kvs.first().map(stored)),
                list => {
                    let rows = range.kvs.iter().map(|kv| Ok((self.logical(&kv.key)?, stored(kv))));
                    let rows = rows.collect::<EngineResult<_>>()?;
                    view.put_list(list.clone(), Listed { rows, revision });
                }
            }
        }
        Ok(view)
    }

    async fn read_part(&self, wants: &[Want], revision: i64) -> EngineResult<(View, i64)> {
        let request = TxnRequest { success: self.reads(wants, revision), ..TxnRequest::default() };
        let answer: TxnResponse = self.link.ask(TXN, &request).await?;
        let seen = answer.header.as_ref().map_or(0, |header| header.revision);
        Ok((self.view(wants, answer)?, seen))
    }

    /// What must hold, as etcd compares it.
    fn compares(&self, attempt: &Attempt<'_>, removed: &BTreeSet<Want>) -> Vec<Compare> {
        let mut compares = Vec::with_capacity(attempt.checks.len());
        let of_key = |key: &[u8], stored: Option<&Stored>| {
            let revision = stored.map_or(0, |stored| stored.revision);
            compare(self.physical(key), Bytes::new(), CompareResult::Equal, revision)
        };
        for want in attempt.checks {
            match want {
                Want::Key(key) => compares.push(of_key(key, attempt.view.key(key).flatten())),
                list => {
                    let Some(listed) = attempt.view.list(list) else { continue };
                    let (key, end) = self.range(list);
                    match (list, listed.rows.first()) {
                        // No key at all: every one would have a revision.
                        (_, None) => compares.push(compare(key, end, CompareResult::Equal, 0)),
                        (Want::Any(_), Some((key, stored))) => compares.push(of_key(key, Some(stored))),
                        (_, Some(_)) => {
                            // None that is newer, and each that there was.
                            compares.push(compare(key, end, CompareResult::Less, listed.revision.saturating_add(1)));
                            if !removed.contains(list) {
                                compares.extend(listed.rows.iter().map(|(key, stored)| of_key(key, Some(stored))));
                            }
                        }
                    }
                }
            }
        }
        compares
    }

    /// Ranges that a commit removes whole, and that are too many keys to be removed one by one.
    fn removed_ranges(attempt: &Attempt<'_>) -> BTreeSet<Want> {
        let is_removed = |want: &&Want| {
            let Some(listed) = attempt.view.list(want) else { return false };
            let Want::All(prefix) = want else { return false };
            let within = attempt.writes.range(prefix.clone()..codec::end_of(prefix));
            listed.rows.len() > REMOVALS_MAX && within.clone().count() >= listed.rows.len() && {
                let mut within = within;
                within.all(|(_, value)| value.is_none())
            }
        };
        attempt.checks.iter().filter(is_removed).cloned().collect()
    }

    fn changes(&self, writes: &Writes, removed: &BTreeSet<Want>) -> Vec<RequestOp> {
        let is_within =
            |key: &[u8]| removed.iter().any(|want| matches!(want, Want::All(prefix) if key.starts_with(prefix)));
        let single = writes.iter().filter(|(key, _)| !is_within(key)).map(|(key, value)| {
            let key = self.physical(key);
            op(match value {
                Some(value) => Request::Put(PutRequest { key, value: value.clone().into() }),
                None => Request::DeleteRange(DeleteRangeRequest { key, range_end: Bytes::new() }),
            })
        });
        let ranges = removed.iter().map(|want| {
            let (key, range_end) = self.range(want);
            op(Request::DeleteRange(DeleteRangeRequest { key, range_end }))
        });
        single.chain(ranges).collect()
    }

    fn transaction(&self, attempt: &Attempt<'_>) -> EngineResult<TxnRequest> {
        let removed = Volume::removed_ranges(attempt);
        let compare = self.compares(attempt, &removed);
        let success = self.changes(attempt.writes, &removed);
        let failure = match attempt.wants.len() <= OPERATIONS_MAX {
            true => self.reads(attempt.wants, 0),
            false => Vec::new(),
        };
        let operations = compare.len().max(success.len());
        if operations > OPERATIONS_MAX {
            let said = format!("it takes {operations} keys, and etcd takes {OPERATIONS_MAX} in one transaction");
            return Err(link::fault(FaultKind::Unsupported, "commit", &said).into());
        }
        Ok(TxnRequest { compare, success, failure })
    }

    /// Sends a commit until it has an answer or the deadline is over.
    async fn commit(&self, attempt: &Attempt<'_>) -> EngineResult<Committed> {
        let request = self.transaction(attempt)?;
        let repeatable = attempt.writes.is_empty()
            || attempt.writes.keys().any(|key| attempt.checks.contains(&Want::Key(key.clone())));
        let deadline = self.link.deadline();
        let (mut tries, mut silent) = (0, None);
        loop {
            let fault = match self.link.once::<TxnRequest, TxnResponse>(TXN, &request).await {
                Ok(answer) if answer.succeeded => return Ok(Committed::Applied),
                Ok(answer) => {
                    let now = match request.failure.is_empty() {
                        true => None,
                        false => Some(self.view(attempt.wants, answer)?),
                    };
                    return match silent {
                        None => Ok(Committed::Changed(now)),
                        Some(fault) => self.look(attempt, fault).await,
                    };
                }
                Err(Failed::Refused(fault)) => match silent {
                    None => return Err(fault.into()),
                    Some(earlier) => return Err(undetermined(earlier)),
                },
                Err(Failed::Unsent(fault)) => fault,
                Err(Failed::Silent(fault)) if !repeatable => return Err(undetermined(fault)),
                Err(Failed::Silent(fault)) => {
                    silent = Some(fault);
                    link::fault(FaultKind::Unavailable, "commit", "no reply")
                }
            };
            tries += 1;
            if !self.link.pause(tries, deadline).await {
                return Err(match silent {
                    Some(fault) => undetermined(fault),
                    None => self.link.given_up(fault),
                });
            }
        }
    }

    /// After a commit without a reply that was sent again and refused: whether the first had been applied.
    async fn look(&self, attempt: &Attempt<'_>, fault: Fault) -> EngineResult<Committed> {
        let written: Vec<Want> = attempt.writes.keys().map(|key| Want::Key(key.clone())).collect();
        let (view, _) = match self.read_part(&written, 0).await {
            Ok(read) => read,
            Err(_) => return Err(undetermined(fault)),
        };
        let mut revisions = BTreeSet::new();
        let mut ours = true;
        for (key, value) in attempt.writes {
            let now = view.key(key).flatten();
            let before = attempt.view.key(key);
            let checked = attempt.checks.contains(&Want::Key(key.clone()));
            if checked && before.is_some_and(|before| before == now) {
                // Applied, it would have another revision; and it can be applied no more, for something else has changed.
                return Ok(Committed::Changed(None));
            }
            match (value, now) {
                (Some(value), Some(now)) if now.value == value[..] => drop(revisions.insert(now.revision)),
                (None, None) => {}
                _ => ours = false,
            }
        }
        if ours && revisions.len() <= 1 { Ok(Committed::Applied) } else { Err(undetermined(fault)) }
    }
}

/// How a commit ended.
enum Committed {
    Applied,
    Changed(Option<View>),
}

fn undetermined(fault: Fault) -> EngineError {
    EngineError::Undetermined(Fault::undetermined("commit").with("engine", "etcd").source(fault))
}

/// The back end; clones share the volume.
#[derive(Clone)]
struct Etcd(Arc<Volume>);

#[async_trait]
impl Kv for Etcd {
    fn name(&self) -> &'static str {
        "etcd"
    }

    fn operations_max(&self) -> usize {
        OPERATIONS_MAX
    }

    fn stores_empty_values(&self) -> bool {
        true
    }

    async fn read(&self, wants: &[Want]) -> EngineResult<View> {
        let mut parts = wants.chunks(OPERATIONS_MAX);
        let Some(first) = parts.next() else { return Ok(View::default()) };
        let (mut view, revision) = self.0.read_part(first, 0).await?;
        for part in futures::future::join_all(parts.map(|part| self.0.read_part(part, revision))).await {
            view.add(part?.0);
        }
        Ok(view)
    }

    async fn begin(&self) -> EngineResult<Box<dyn KvTxn>> {
        Ok(Box::new(EtcdTxn(self.clone())))
    }

    async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> EngineResult<Vec<(Vec<u8>, Bytes)>> {
        let limit = i64::try_from(limit).unwrap_or(i64::MAX);
        let (key, range_end) = (self.0.physical(from), self.0.physical(to));
        let request = RangeRequest { key, range_end, limit, revision: 0, keys_only: false };
        let answer: RangeResponse = self.0.link.ask(RANGE, &request).await?;
        answer.kvs.into_iter().map(|kv| Ok((self.0.logical(&kv.key)?, kv.value))).collect()
    }

    async fn erase(&self) -> EngineResult<()> {
        let mut end = self.0.prefix.clone();
        *end.last_mut().expect("a prefix ends with its separator") = SEPARATOR + 1;
        loop {
            let limit = ERASED_AT_ONCE as i64;
            let (key, range_end) = (self.0.physical(&[]), Bytes::from(end.clone()));
            let request = RangeRequest { key: key.clone(), range_end, limit, revision: 0, keys_only: true };
            let answer: RangeResponse = self.0.link.ask(RANGE, &request).await?;
            let Some(last) = answer.kvs.last() else { return Ok(()) };
            // What is removed may be removed again.
            let range_end = [&last.key[..], &[0]].concat().into();
            let success = vec![op(Request::DeleteRange(DeleteRangeRequest { key, range_end }))];
            let request = TxnRequest { success, ..TxnRequest::default() };
            let _: TxnResponse = self.0.link.ask(TXN, &request).await?;
        }
    }
}

/// A handle: revisions carry all that a transaction knows.
struct EtcdTxn(Etcd);

#[async_trait]
impl KvTxn for EtcdTxn {
    async fn read(&mut self, wants: &[Want]) -> EngineResult<View> {
        self.0.read(wants).await
    }

    async fn commit(self: Box<Self>, attempt: Attempt<'_>) -> EngineResult<Ended> {
        Ok(match self.0.0.commit(&attempt).await? {
            Committed::Applied => Ended::Applied,
            Committed::Changed(now) => Ended::Changed(self, now),
        })
    }
}
