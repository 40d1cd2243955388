//! TiKV: the calls of `tikvpb.Tikv` that transactions use, over the rules of `mvcc.rs`.

use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use parking_lot::MutexGuard;
use prost::Message;
use tonic::Status;
use tonic::body::Body;

use crate::inject::{Fault, Rpc};
use crate::mvcc::{self, Key, Mvcc, Refusal, Secondaries, StatusCheck, Ts, TxnStatus};
use crate::proto::*;
use crate::region::{Area, not_leader};
use crate::serve::{Cut, after, before, unary};
use crate::waiting::Woken;
use crate::{Shared, State};

/// `pessimistic-txn.wait-for-lock-timeout` of TiKV.
const LOCK_WAIT: Duration = Duration::from_secs(1);
/// `pessimistic-txn.wake-up-delay-duration` of TiKV: for those who were not first.
const WAKE_UP_DELAY: Duration = Duration::from_millis(20);
/// `raftstore.raft-entry-max-size` of TiKV.
const ENTRY_BYTES_MAX: usize = 8 << 20;

/// A request to a region.
pub(crate) trait Question: Message + Default + 'static {
    type Answer: Answer;
    const RPC: Rpc;
    fn context(&self) -> Option<&Context>;
    /// Keys that must lie in the region.
    fn keys(&self) -> Vec<&[u8]>;
    fn run(self, mvcc: &mut Mvcc, area: &Area) -> Self::Answer;
}

pub(crate) trait Answer: Message + Default + 'static {
    fn refused(error: RegionError) -> Self;
}

macro_rules! answers {
    ($($answer:ident),*) => {
        $(impl Answer for $answer {
            fn refused(error: RegionError) -> Self {
                $answer { region_error: Some(error), ..$answer::default() }
            }
        })*
    };
}

answers!(
    GetResponse,
    BatchGetResponse,
    ScanResponse,
    PrewriteResponse,
    PessimisticLockResponse,
    PessimisticRollbackResponse,
    CommitResponse,
    BatchRollbackResponse,
    CheckTxnStatusResponse,
    CheckSecondaryLocksResponse,
    ResolveLockResponse,
    TxnHeartBeatResponse,
    ScanLockResponse,
    UnsafeDestroyRangeResponse
);

/// `None`: there is no such call.
pub(crate) async fn answer(
    path: &str,
    request: http::Request<Incoming>,
    store: u64,
    shared: Arc<Shared>,
    cut: Cut,
) -> Option<http::Response<Body>> {
    let to = To { store, shared, cut };
    Some(match path.strip_prefix("/tikvpb.Tikv/")? {
        "KvGet" => to.call::<GetRequest>(request).await,
        "KvBatchGet" => to.call::<BatchGetRequest>(request).await,
        "KvScan" => to.call::<ScanRequest>(request).await,
        "KvPrewrite" => to.call::<PrewriteRequest>(request).await,
        "KvPessimisticLock" => unary(request, |question| lock_or_wait(to.clone(), question)).await,
        "KVPessimisticRollback" => to.call::<PessimisticRollbackRequest>(request).await,
        "KvCommit" => to.call::<CommitRequest>(request).await,
        "KvBatchRollback" => to.call::<BatchRollbackRequest>(request).await,
        "KvCheckTxnStatus" => to.call::<CheckTxnStatusRequest>(request).await,
        "KvCheckSecondaryLocks" => to.call::<CheckSecondaryLocksRequest>(request).await,
        "KvResolveLock" => to.call::<ResolveLockRequest>(request).await,
        "KvTxnHeartBeat" => to.call::<TxnHeartBeatRequest>(request).await,
        "KvScanLock" => to.call::<ScanLockRequest>(request).await,
        "UnsafeDestroyRange" => unary(request, |question| destroy_range(to.clone(), question)).await,
        _ => return None,
    })
}

/// Where a request arrived.
#[derive(Clone)]
struct To {
    store: u64,
    shared: Arc<Shared>,
    cut: Cut,
}

impl To {
    async fn call<Q: Question>(self, request: http::Request<Incoming>) -> http::Response<Body> {
        unary(request, |question: Q| {
            let to = self.clone();
            async move {
                let fault = before(&to.shared, &to.cut, Q::RPC).await?;
                let answer = to.carry_out(fault, question);
                after(fault, &to.cut, answer).await
            }
        })
        .await
    }

    fn carry_out<Q: Question>(&self, fault: Option<Fault>, question: Q) -> Q::Answer {
        let mut state = self.shared.state.lock();
        match self.admit(fault, &question, &mut state) {
            Ok(area) => {
                let answer = question.run(&mut state.mvcc, &area);
                state.wake();
                answer
            }
            Err(error) => Q::Answer::refused(error),
        }
    }

    /// The region, if the request reached the right place; with a fault of regions it does not.
    fn admit<Q: Question>(
        &self,
        fault: Option<Fault>,
        question: &Q,
        state: &mut MutexGuard<'_, State>,
    ) -> Result<Area, RegionError> {
        let regions = &mut state.regions;
        let keys = question.keys();
        let id = question.context().map_or(0, |context| context.region_id);
        match fault {
            Some(Fault::EpochNotMatch) => regions.outdate(id),
            Some(Fault::RegionNotFound) => regions.replace(id),
            // With a single store there is no other leader: there is none for a moment.
            Some(Fault::NotLeader) if regions.stores() == 1 => return Err(not_leader(id, None)),
            Some(Fault::NotLeader) => regions.move_leader(id),
            Some(Fault::Split) => keys.first().into_iter().for_each(|key| regions.split_at(key)),
            Some(Fault::ServerIsBusy) => return Err(busy()),
            Some(Fault::StaleCommand) => {
                let stale_command = Some(StaleCommand {});
                return Err(RegionError { message: "stale command".into(), stale_command, ..RegionError::default() });
            }
            Some(Fault::DiskFull) => {
                let disk_full = Some(DiskFull { store_id: vec![self.store], reason: "injected".into() });
                return Err(RegionError { message: "disk full".into(), disk_full, ..RegionError::default() });
            }
            _ => {}
        }
        let entry_size = question.encoded_len();
        if entry_size > ENTRY_BYTES_MAX {
            return Err(RegionError {
                message: format!("raft entry is too large, region {id}, entry size {entry_size}"),
                raft_entry_too_large: Some(RaftEntryTooLarge { region_id: id, entry_size: entry_size as u64 }),
                ..RegionError::default()
            });
        }
        regions.check(question.context(), self.store, &keys)
    }
}

fn busy() -> RegionError {
    let reason = "injected".to_owned();
    RegionError {
        message: "server is busy".to_owned(),
        server_is_busy: Some(ServerIsBusy { reason }),
        ..RegionError::default()
    }
}

/// Not meant for a region, but for all that a store has; the stores here share everything.
async fn destroy_range(to: To, question: UnsafeDestroyRangeRequest) -> Result<UnsafeDestroyRangeResponse, Status> {
    let fault = before(&to.shared, &to.cut, Rpc::UnsafeDestroyRange).await?;
    {
        let mut state = to.shared.state.lock();
        state.mvcc.destroy_range(&question.start_key, &question.end_key);
        state.wake();
    }
    after(fault, &to.cut, UnsafeDestroyRangeResponse::default()).await
}

fn error(refusal: Refusal) -> Option<KeyError> {
    Some(refusal.into())
}

fn resolved(context: &Option<Context>) -> &[Ts] {
    context.as_ref().map_or(&[], |context| &context.resolved_locks)
}

fn pair(key: Key, answer: Result<Vec<u8>, Refusal>) -> KvPair {
    match answer {
        Ok(value) => KvPair { error: None, key, value },
        Err(refusal) => KvPair { error: error(refusal), key, value: Vec::new() },
    }
}

fn slices(keys: &[Key]) -> Vec<&[u8]> {
    keys.iter().map(Vec::as_slice).collect()
}

impl Question for GetRequest {
    type Answer = GetResponse;
    const RPC: Rpc = Rpc::Get;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        vec![&self.key]
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> GetResponse {
        match mvcc.get(&self.key, self.version, resolved(&self.context)) {
            Ok(Some(value)) => GetResponse { value, ..GetResponse::default() },
            Ok(None) => GetResponse { not_found: true, ..GetResponse::default() },
            Err(refusal) => GetResponse { error: error(refusal), ..GetResponse::default() },
        }
    }
}

impl Question for BatchGetRequest {
    type Answer = BatchGetResponse;
    const RPC: Rpc = Rpc::BatchGet;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        slices(&self.keys)
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> BatchGetResponse {
        let version = self.version;
        let get = |key: &Key| Some((key.clone(), mvcc.get(key, version, resolved(&self.context)).transpose()?));
        let pairs = self.keys.iter().filter_map(get).map(|(key, answer)| pair(key, answer)).collect();
        BatchGetResponse { pairs, ..BatchGetResponse::default() }
    }
}

impl Question for ScanRequest {
    type Answer = ScanResponse;
    const RPC: Rpc = Rpc::Scan;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    /// The range may reach over the region's end; where it starts to be read must lie inside. For a reverse scan that
    /// is its upper end, which is excluded and may be the region's.
    fn keys(&self) -> Vec<&[u8]> {
        if self.reverse { vec![&self.end_key] } else { vec![&self.start_key] }
    }

    fn run(self, mvcc: &mut Mvcc, area: &Area) -> ScanResponse {
        let (low, high) = match self.reverse {
            false => (&self.start_key, &self.end_key),
            true => (&self.end_key, &self.start_key),
        };
        let range = (area.start_within(low), area.end_within(high));
        match mvcc.scan(range, self.limit as usize, self.reverse, self.version, resolved(&self.context)) {
            Ok(found) => {
                let mut pairs: Vec<KvPair> = found.into_iter().map(|(key, answer)| pair(key, answer)).collect();
                if self.key_only {
                    pairs.iter_mut().for_each(|pair| pair.value.clear());
                }
                ScanResponse { pairs, ..ScanResponse::default() }
            }
            Err(refusal) => ScanResponse { error: error(refusal), ..ScanResponse::default() },
        }
    }
}

impl Question for PrewriteRequest {
    type Answer = PrewriteResponse;
    const RPC: Rpc = Rpc::Prewrite;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        self.mutations.iter().map(|mutation| mutation.key.as_slice()).collect()
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> PrewriteResponse {
        let request = mvcc::Prewrite {
            mutations: self.mutations,
            actions: self.pessimistic_actions,
            primary: self.primary_lock,
            start_ts: self.start_version,
            ttl_ms: self.lock_ttl,
            for_update_ts: self.for_update_ts,
            min_commit_ts: self.min_commit_ts,
            txn_size: self.txn_size,
            skip_constraint_check: self.skip_constraint_check,
        };
        let refusals = mvcc.prewrite(&request).err().unwrap_or_default();
        let errors = refusals.into_iter().map(KeyError::from).collect();
        PrewriteResponse { errors, ..PrewriteResponse::default() }
    }
}

impl Question for PessimisticRollbackRequest {
    type Answer = PessimisticRollbackResponse;
    const RPC: Rpc = Rpc::PessimisticRollback;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        slices(&self.keys)
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> PessimisticRollbackResponse {
        mvcc.pessimistic_rollback(&self.keys, self.start_version, self.for_update_ts);
        PessimisticRollbackResponse::default()
    }
}

impl Question for CommitRequest {
    type Answer = CommitResponse;
    const RPC: Rpc = Rpc::Commit;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        slices(&self.keys)
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> CommitResponse {
        match mvcc.commit(&self.keys, self.start_version, self.commit_version) {
            Ok(()) => CommitResponse { commit_version: self.commit_version, ..CommitResponse::default() },
            Err(refusal) => CommitResponse { error: error(refusal), ..CommitResponse::default() },
        }
    }
}

impl Question for BatchRollbackRequest {
    type Answer = BatchRollbackResponse;
    const RPC: Rpc = Rpc::BatchRollback;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        slices(&self.keys)
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> BatchRollbackResponse {
        let error = mvcc.rollback(&self.keys, self.start_version).err().and_then(error);
        BatchRollbackResponse { error, ..BatchRollbackResponse::default() }
    }
}

impl Question for CheckTxnStatusRequest {
    type Answer = CheckTxnStatusResponse;
    const RPC: Rpc = Rpc::CheckTxnStatus;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        vec![&self.primary_key]
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> CheckTxnStatusResponse {
        let check = StatusCheck {
            primary: self.primary_key,
            lock_ts: self.lock_ts,
            caller_start_ts: self.caller_start_ts,
            current_ts: self.current_ts,
            rollback_if_not_exist: self.rollback_if_not_exist,
            resolving_pessimistic_lock: self.resolving_pessimistic_lock,
            verify_is_primary: self.verify_is_primary,
        };
        let mut answer = CheckTxnStatusResponse::default();
        match mvcc.check_txn_status(&check) {
            Ok(TxnStatus::Committed(commit_ts)) => answer.commit_version = commit_ts,
            Ok(TxnStatus::RolledBack(action)) => answer.action = action as i32,
            Ok(TxnStatus::Locked { info, pushed }) => {
                let action = if pushed { Action::MinCommitTsPushed } else { Action::NoAction };
                answer.action = action as i32;
                answer.lock_ttl = info.lock_ttl;
                answer.lock_info = Some(info);
            }
            Err(refusal) => answer.error = error(refusal),
        }
        answer
    }
}

impl Question for CheckSecondaryLocksRequest {
    type Answer = CheckSecondaryLocksResponse;
    const RPC: Rpc = Rpc::CheckSecondaryLocks;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        slices(&self.keys)
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> CheckSecondaryLocksResponse {
        let mut answer = CheckSecondaryLocksResponse::default();
        match mvcc.check_secondaries(&self.keys, self.start_version) {
            Secondaries::Locked(locks) => answer.locks = locks,
            Secondaries::Committed(commit_ts) => answer.commit_ts = commit_ts,
            Secondaries::RolledBack => {}
        }
        answer
    }
}

impl Question for ResolveLockRequest {
    type Answer = ResolveLockResponse;
    const RPC: Rpc = Rpc::ResolveLock;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        slices(&self.keys)
    }

    fn run(self, mvcc: &mut Mvcc, area: &Area) -> ResolveLockResponse {
        let mut decided: Vec<(Ts, Ts)> = self.txn_infos.iter().map(|info| (info.txn, info.status)).collect();
        if decided.is_empty() {
            decided.push((self.start_version, self.commit_version));
        }
        let resolve = |(start_ts, commit_ts)| match self.keys.is_empty() {
            true => mvcc.resolve(&area.start, &area.end, start_ts, commit_ts),
            false => mvcc.resolve_keys(&self.keys, start_ts, commit_ts),
        };
        let error = decided.into_iter().try_for_each(resolve).err().and_then(error);
        ResolveLockResponse { error, ..ResolveLockResponse::default() }
    }
}

impl Question for TxnHeartBeatRequest {
    type Answer = TxnHeartBeatResponse;
    const RPC: Rpc = Rpc::TxnHeartBeat;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        vec![&self.primary_lock]
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> TxnHeartBeatResponse {
        match mvcc.heart_beat(&self.primary_lock, self.start_version, self.advise_lock_ttl) {
            Ok(lock_ttl) => TxnHeartBeatResponse { lock_ttl, ..TxnHeartBeatResponse::default() },
            Err(refusal) => TxnHeartBeatResponse { error: error(refusal), ..TxnHeartBeatResponse::default() },
        }
    }
}

impl Question for ScanLockRequest {
    type Answer = ScanLockResponse;
    const RPC: Rpc = Rpc::ScanLock;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        vec![&self.start_key]
    }

    fn run(self, mvcc: &mut Mvcc, area: &Area) -> ScanLockResponse {
        let end = area.end_within(&self.end_key);
        let locks = mvcc.locks(&self.start_key, end, self.max_version, self.limit as usize);
        ScanLockResponse { locks, ..ScanLockResponse::default() }
    }
}

impl Question for PessimisticLockRequest {
    type Answer = PessimisticLockResponse;
    const RPC: Rpc = Rpc::PessimisticLock;

    fn context(&self) -> Option<&Context> {
        self.context.as_ref()
    }

    fn keys(&self) -> Vec<&[u8]> {
        self.mutations.iter().map(|mutation| mutation.key.as_slice()).collect()
    }

    fn run(self, mvcc: &mut Mvcc, _: &Area) -> PessimisticLockResponse {
        let request = mvcc::PessimisticLock {
            mutations: self.mutations,
            primary: self.primary_lock,
            start_ts: self.start_version,
            ttl_ms: self.lock_ttl,
            for_update_ts: self.for_update_ts,
            min_commit_ts: self.min_commit_ts,
        };
        let values = match mvcc.pessimistic_lock(&request) {
            Ok(values) => values,
            Err(refusal) => return refused(refusal),
        };
        let mut answer = PessimisticLockResponse::default();
        if self.return_values || self.check_existence {
            answer.not_founds = values.iter().map(Option::is_none).collect();
        }
        if self.return_values {
            answer.values = values.into_iter().map(Option::unwrap_or_default).collect();
        }
        answer
    }
}

fn refused(refusal: Refusal) -> PessimisticLockResponse {
    PessimisticLockResponse { errors: vec![refusal.into()], ..PessimisticLockResponse::default() }
}

/// TiKV keeps such a request until the lock is gone, and then tells the client to start over with a newer
/// `for_update_ts`: what it would read may have changed.
async fn lock_or_wait(to: To, question: PessimisticLockRequest) -> Result<PessimisticLockResponse, Status> {
    let fault = before(&to.shared, &to.cut, Rpc::PessimisticLock).await?;
    let (start_ts, primary) = (question.start_version, question.primary_lock.clone());
    let patience = match question.wait_timeout {
        0 => LOCK_WAIT,
        millis => LOCK_WAIT.min(Duration::from_millis(millis.max(0) as u64)),
    };
    let mut answer = to.carry_out(fault, question);
    if let Some(lock) = answer.errors.iter().find_map(|error| error.locked.clone()).filter(|_| !patience.is_zero()) {
        if let Some(refusal) = wait(&to.shared, start_ts, primary, &lock, patience).await {
            answer = refused(refusal);
        }
    }
    after(fault, &to.cut, answer).await
}

/// `None`: the lock is still there.
async fn wait(shared: &Shared, start_ts: Ts, primary: Key, lock: &LockInfo, patience: Duration) -> Option<Refusal> {
    let (key, holder) = (&lock.key, lock.lock_version);
    let woken = {
        let mut state = shared.state.lock();
        if !state.mvcc.is_locked(key, holder) {
            return Some(start_over(start_ts, primary, key, holder, 0));
        }
        match state.waiting.wait(start_ts, key, holder) {
            Some(woken) => woken,
            None => return Some(Refusal::Deadlock { lock_ts: holder, key: key.clone() }),
        }
    };
    let place = Place { shared, start_ts, key, holder };
    let answer = tokio::time::timeout(patience, woken).await;
    drop(place);
    let Woken { released, first } = answer.ok()?.ok()?;
    if !first {
        tokio::time::sleep(WAKE_UP_DELAY).await;
    }
    Some(start_over(start_ts, primary, key, released.start_ts, released.commit_ts))
}

fn start_over(start_ts: Ts, primary: Key, key: &[u8], conflict_ts: Ts, commit_ts: Ts) -> Refusal {
    let reason = ConflictReason::PessimisticRetry;
    Refusal::Conflict { start_ts, conflict_ts, commit_ts, key: key.to_vec(), primary, reason }
}

/// A place in the queue, given up in any case: when the client goes away, the call is dropped.
struct Place<'a> {
    shared: &'a Shared,
    start_ts: Ts,
    key: &'a [u8],
    holder: Ts,
}

impl Drop for Place<'_> {
    fn drop(&mut self) {
        self.shared.state.lock().waiting.leave(self.start_ts, self.key, self.holder);
    }
}
