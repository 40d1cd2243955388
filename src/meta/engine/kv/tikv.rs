//! The TiKV back end.
//!
//! Everything an attempt reads is read at the timestamp it began with. Its commit is optimistic: TiKV refuses the keys it
//! writes when they have a version younger than that, and, because snapshots alone let two transactions each decide on
//! what the other changes, the keys it only looked at are locked along with them, which refuses them alike. A lock-only
//! key stores no value, so the volume's format is untouched.
//!
//! Ranges cannot be locked. Whoever decides on all keys of an inode's family (is the directory empty? which attributes
//! are there?) locks the attributes of the inode, and so does whoever adds a key to a family; whoever removes the inode
//! deletes them. The peer reads the same attributes and deletes them as well.
//!
//! **A commit that fails** in any way but a conflict may have been carried out. It is not rolled back, for that could undo
//! half of what is decided; it is looked at instead. A read of a key that it has locked waits until the lock is decided
//! or has expired, and after that every key tells: all have our values, or those we wanted to change have their old ones.
//! What fits neither is `Undetermined`.
//!
//! Roads not taken. Asynchronous and one-phase commit: in this version of the client the one fails when the server
//! declines it and the other does not fall back. Sixteen lock-only keys per directory, so that creates which leave the
//! directory's times alone do not meet: the peer knows nothing of them and removes the directory all the same.
//!
//! **Locks without a primary.** Locks go out to all regions at once; when the first of them has not arrived and the client
//! dies, the crate asks for a transaction that nobody knows and gives up on the key for ever. Such locks are cleared
//! here, once they are older than a living client's first phase can be. Whoever was alive all the same has a conflict.
//!
//! Garbage (old versions) is collected by the clients of a cluster without TiDB, so this one does, as the peer's do.
//! Servers do not refuse reads below the safe point, they have holes: an attempt that has become that old begins again.

use super::batch::Writes;
use super::codec;
use super::view::{Listed, Stored, View, Want};
use super::{Attempt, Ended, Kv, KvEngine, KvTxn};
use crate::base::{Fault, FaultKind, Retry};
use crate::meta::engine::{EngineError, EngineResult};
use crate::util::outage::Outage;
use async_trait::async_trait;
use bytes::Bytes;
use std::collections::BTreeSet;
use std::future::Future;
use std::path::PathBuf;
use std::sync::{Arc, Weak};
use std::time::{Duration, Instant};
use tikv_client::transaction::ResolveLocksOptions;
use tikv_client::{
    BoundRange, CheckLevel, Config, Error, Key as TikvKey, KvPair, SecurityManager, Snapshot, Timestamp, TimestampExt,
    Transaction, TransactionClient, TransactionOptions,
};

/// One request to a store or to PD.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(4);
/// Reads are begun again until this long after the call, over elections and moves of regions; above this the metadata
/// layer tries again.
const RETRY_DEADLINE: Duration = Duration::from_secs(15);
/// As above for the first contact, all servers together and then each of them: the URL may name the wrong servers, and who typed it waits.
const FIRST_DEADLINE: Duration = Duration::from_secs(3);
/// To find out the reason of a failure.
const WHY_TIMEOUT: Duration = Duration::from_secs(1);
const RETRY_PAUSE: Duration = Duration::from_millis(100);
/// Locks of a commit whose fate is not known are waited for so long; they live for three seconds, and longer the more
/// they write.
const LOOK_DEADLINE: Duration = Duration::from_secs(30);
/// Undoing the first half of a commit that has met another. What is left undone expires.
const ROLLBACK_TIMEOUT: Duration = Duration::from_secs(3);
/// Locks of a first phase live for three seconds.
const ORPHAN_AGE: Duration = Duration::from_secs(4);
/// Clearing them looks at all locks of the volume.
const CLEAR_TIMEOUT: Duration = Duration::from_secs(10);
/// The least that others keep versions for is ten minutes, TiDB's default.
const SNAPSHOT_AGE_MAX: Duration = Duration::from_secs(300);
/// Keys per page: a scan asks every region of its range at once, each for so many.
const PAGE: u32 = 1024;
/// Keys that `erase` removes in one transaction.
const ERASED_AT_ONCE: usize = 512;
/// Far more than a reply can be that was asked for with a limit.
const REPLY_BYTES_MAX: usize = 256 << 20;
/// Separates the prefix of a volume from its keys. No path has this byte.
const SEPARATOR: u8 = 0xFD;

/// Where a cluster is.
#[derive(Clone, Debug)]
pub struct TikvOptions {
    /// `host:port` of the placement drivers.
    pub members: Vec<String>,
    pub path: String,
    /// Certificate of the authority, of this client, and its key.
    pub tls: Option<[PathBuf; 3]>,
    /// How long versions are kept; `None`: collected by others.
    pub gc_interval: Option<Duration>,
}

/// A volume under a prefix of a TiKV cluster.
struct Volume {
    client: TransactionClient,
    prefix: Vec<u8>,
    outage: Outage,
}

/// Opens the volume under the path of the options.
pub async fn open(options: &TikvOptions) -> EngineResult<KvEngine> {
    Ok(KvEngine::new(Arc::new(Tikv(open_volume(options).await?))))
}

async fn open_volume(options: &TikvOptions) -> EngineResult<Arc<Volume>> {
    let mut config =
        Config::default().with_timeout(REQUEST_TIMEOUT).with_grpc_max_decoding_message_size(REPLY_BYTES_MAX);
    if let Some([ca, cert, key]) = &options.tls {
        config = config.with_security(ca, cert, key);
    }
    let client = connect(options, config).await?;
    let volume = Arc::new(Volume { client, prefix: prefix_of(&options.path), outage: Outage::default() });
    if let Some(interval) = options.gc_interval {
        collect_while_alive(Arc::downgrade(&volume), interval);
    }
    Ok(volume)
}

/// The crate waits without end for a member that takes connections and says nothing, or that takes no notice, even when
/// others would answer; so those are asked one by one when all of them together did not answer.
async fn connect(options: &TikvOptions, config: Config) -> EngineResult<TransactionClient> {
    let members = &options.members;
    let of = |members: Vec<String>| {
        let config = config.clone();
        async move {
            let client = TransactionClient::new_with_config(members, config).await?;
            client.current_timestamp().await?;
            Ok::<_, Error>(client)
        }
    };
    let mut last = match tokio::time::timeout(FIRST_DEADLINE, of(members.clone())).await {
        Ok(Ok(client)) => return Ok(client),
        Ok(Err(error)) => fault("open tikv", &error),
        Err(_) => Fault::unavailable("open tikv").with("engine", "tikv").source("no answer in time"),
    };
    if members.len() > 1 {
        let each = members.iter().map(|member| Box::pin(of(vec![member.clone()])));
        match tokio::time::timeout(FIRST_DEADLINE, futures::future::select_ok(each)).await {
            Ok(Ok((client, _))) => return Ok(client),
            Ok(Err(_)) | Err(_) => {}
        }
    }
    // The crate says why in its log only.
    if let Some((kind, said)) = why_not(options).await {
        last = Fault::new(kind, "open tikv").with("engine", "tikv").source(said);
    }
    Err(last.with("addresses", members.join(",")).into())
}

/// What is in the way of a connection to the first member that gives a reason.
async fn why_not(options: &TikvOptions) -> Option<(FaultKind, String)> {
    let security = match &options.tls {
        Some([ca, cert, key]) => match SecurityManager::load(ca, cert, key) {
            Ok(security) => security,
            Err(error) => return Some((FaultKind::Config, one_line(&error))),
        },
        None => SecurityManager::default(),
    };
    let mut taken = None;
    for member in &options.members {
        match tokio::time::timeout(WHY_TIMEOUT, security.connect(member, drop)).await {
            Ok(Ok(())) => taken = taken.or(Some(member)),
            Ok(Err(error)) => {
                let said = one_line(&error);
                let (kind, said) = match options.tls.is_some() && said.contains("certificate") {
                    true => (FaultKind::Config, format!("the certificates are not believed (ca, cert, key): {said}")),
                    false => (FaultKind::Unavailable, said),
                };
                return Some((kind, format!("{member}: {said}")));
            }
            Err(_) => {}
        }
    }
    let wanted = match options.tls {
        Some(_) => "does not believe our certificate (cert, key), or is no PD",
        None => "wants TLS (ca, cert and key of the meta URL), or is no PD",
    };
    taken.map(|member| (FaultKind::Unavailable, format!("{member} takes connections and does not answer: it {wanted}")))
}

/// The path of the URL without its leading slashes, and the separator.
fn prefix_of(path: &str) -> Vec<u8> {
    let mut prefix = path.trim_start_matches('/').as_bytes().to_vec();
    prefix.push(SEPARATOR);
    prefix
}

/// Has versions collected that are older than the interval, about once per interval, while the volume is in use. Mounts
/// that were started together do not do so together.
fn collect_while_alive(volume: Weak<Volume>, interval: Duration) {
    tokio::spawn(async move {
        loop {
            tokio::time::sleep(interval.mul_f64(crate::util::rng::random_range(0.7..=1.0))).await;
            let Some(volume) = volume.upgrade() else { return };
            match tokio::time::timeout(interval, collect(&volume.client, interval)).await {
                Ok(Ok(true)) => tracing::debug!("tikv: old versions were collected"),
                Ok(Ok(false)) => tracing::debug!("tikv: others have collected later versions, or need older ones"),
                Ok(Err(error)) => tracing::warn!("tikv: old versions were not collected: {}", one_line(&error)),
                Err(_) => tracing::warn!("tikv: old versions were not collected in time"),
            }
        }
    });
}

/// First the locks of clients that died before the safe point are decided, all over the cluster: below it nobody could
/// tell any more. Then PD is told. False: the safe point is another one than this.
pub(super) async fn collect(client: &TransactionClient, keep: Duration) -> Result<bool, Error> {
    let mut safe_point = client.current_timestamp().await?;
    safe_point.physical -= i64::try_from(keep.as_millis()).unwrap_or(i64::MAX).min(safe_point.physical);
    client.gc(safe_point).await
}

fn options() -> TransactionOptions {
    // One that is dropped has only read, or its locks expire.
    TransactionOptions::new_optimistic().drop_check(CheckLevel::None)
}

/// What the client says, without its structure.
fn one_line(error: &Error) -> String {
    let mut text = match error {
        // It says that there is an error, and its causes say which.
        Error::Grpc(error) => {
            let mut last: &(dyn std::error::Error + 'static) = error;
            while let Some(cause) = last.source() {
                last = cause;
            }
            last.to_string()
        }
        error => error.to_string(),
    };
    if text.len() > 400 {
        let end = (0..=400).rev().find(|at| text.is_char_boundary(*at)).unwrap_or(0);
        text.truncate(end);
    }
    text
}

fn fault(operation: &'static str, error: &Error) -> Fault {
    Fault::new(kind_of(error), operation).with("engine", "tikv").source(one_line(error))
}

/// What an error means for us. The client has tried for a while before it says anything.
fn kind_of(error: &Error) -> FaultKind {
    match error {
        Error::UndeterminedError(inner) | Error::PessimisticLockError { inner, .. } => kind_of(inner),
        Error::ExtractedErrors(errors) | Error::MultipleKeyErrors(errors) => {
            errors.first().map_or(FaultKind::Internal, kind_of)
        }
        Error::GrpcAPI(status) => match status.code() as i32 {
            // PermissionDenied, Unauthenticated; Unimplemented.
            7 | 16 => FaultKind::Denied,
            12 => FaultKind::Unsupported,
            _ => FaultKind::Unavailable,
        },
        Error::RegionError(region) if region.raft_entry_too_large.is_some() => FaultKind::Unsupported,
        Error::RegionError(region) if region.disk_full.is_some() => FaultKind::Full,
        Error::Url(_) | Error::KeyspaceNotFound(_) => FaultKind::Config,
        Error::Unimplemented | Error::UnsupportedMode | Error::InvalidTransactionType => FaultKind::Internal,
        _ => FaultKind::Unavailable,
    }
}

/// When the transaction began whose lock is in the way and whose primary was never locked.
fn orphan_of(error: &Error) -> Option<u64> {
    match error {
        Error::KeyError(error) => error.txn_not_found.as_ref().map(|unknown| unknown.start_ts),
        Error::TxnNotFound(unknown) => Some(unknown.start_ts),
        Error::ExtractedErrors(errors) | Error::MultipleKeyErrors(errors) => errors.iter().find_map(orphan_of),
        Error::UndeterminedError(inner) | Error::PessimisticLockError { inner, .. } => orphan_of(inner),
        _ => None,
    }
}

/// Whether somebody else has written, or is writing, one of the keys: the first phase was refused, and the second has
/// not begun.
fn is_conflict(error: &Error) -> bool {
    match error {
        Error::KeyError(error) => error.conflict.is_some() || error.already_exist.is_some(),
        Error::ExtractedErrors(errors) | Error::MultipleKeyErrors(errors) => {
            !errors.is_empty() && errors.iter().all(is_conflict)
        }
        Error::DuplicateKeyInsertion | Error::ResolveLockError(_) => true,
        _ => false,
    }
}

impl Volume {
    fn physical(&self, key: &[u8]) -> Vec<u8> {
        [&self.prefix, key].concat()
    }

    fn logical(&self, pair: KvPair) -> EngineResult<(Vec<u8>, Bytes)> {
        let KvPair(key, value) = pair;
        let key: Vec<u8> = key.into();
        match key.strip_prefix(&self.prefix[..]) {
            Some(key) => Ok((key.to_vec(), value.into())),
            None => {
                let fault = Fault::internal("ask tikv").with("engine", "tikv");
                Err(fault.source("a key of another volume").into())
            }
        }
    }

    fn range(&self, from: &[u8], to: &[u8]) -> BoundRange {
        (self.physical(from)..self.physical(to)).into()
    }

    /// Has something done that may be done again, until the deadline.
    async fn again<T, F>(&self, operation: &'static str, mut what: impl FnMut() -> F) -> EngineResult<T>
    where
        F: Future<Output = Result<T, Fault>>,
    {
        let deadline = Instant::now() + RETRY_DEADLINE;
        loop {
            let left = deadline.saturating_duration_since(Instant::now()).max(REQUEST_TIMEOUT);
            let fault = match tokio::time::timeout(left, what()).await {
                Ok(Ok(done)) => {
                    self.answered();
                    return Ok(done);
                }
                Ok(Err(fault)) => fault,
                Err(_) => Fault::timeout(operation).with("engine", "tikv"),
            };
            if !matches!(fault.kind(), FaultKind::Unavailable | FaultKind::Timeout) {
                return Err(fault.into());
            }
            self.silent(&fault);
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(fault.into());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    fn answered(&self) {
        if let Some(over) = self.outage.succeeded() {
            tracing::info!("tikv can be reached again after {:.1} s", over.lasted.as_secs_f64());
        }
    }

    fn silent(&self, fault: &Fault) {
        if self.outage.failed() {
            tracing::warn!("tikv cannot be reached, requests wait for it: {fault}");
        }
    }

    async fn snapshot(&self) -> Result<Snapshot, Error> {
        let now = self.client.current_timestamp().await?;
        Ok(self.client.snapshot(now, options().read_only()))
    }

    /// The fault of a read. If a lock without a primary was in its way, it is cleared as soon as that may be.
    async fn failed(&self, operation: &'static str, error: Error) -> Fault {
        if let Some(start) = orphan_of(&error) {
            match tokio::time::timeout(CLEAR_TIMEOUT, self.clear_orphans(start)).await {
                Ok(Ok(())) => {}
                Ok(Err(error)) => tracing::warn!("tikv: a dead client's locks were not cleared: {}", one_line(&error)),
                Err(_) => tracing::warn!("tikv: a dead client's locks were not cleared in time"),
            }
        }
        fault(operation, &error)
    }

    async fn clear_orphans(&self, start: u64) -> Result<(), Error> {
        let began = Timestamp::from_version(start);
        let age_ms = self.client.current_timestamp().await?.physical.saturating_sub(began.physical);
        if age_ms < ORPHAN_AGE.as_millis() as i64 {
            return Ok(());
        }
        let range = self.range(&[], &[u8::MAX; 2]);
        self.client.cleanup_locks(range, &began, ResolveLocksOptions::default()).await.map(drop)
    }

    /// Reads at the timestamp of a transaction.
    async fn read_at(&self, txn: &mut Transaction, wants: &[Want]) -> EngineResult<View> {
        let failed = |error: Error| self.failed("read", error);
        let mut view = View::default();
        let keys: Vec<&Vec<u8>> = wants
            .iter()
            .filter_map(|want| match want {
                Want::Key(key) => Some(key),
                Want::All(_) | Want::Any(_) => None,
            })
            .collect();
        if !keys.is_empty() {
            for key in &keys {
                view.put_key((*key).clone(), None);
            }
            let physical: Vec<TikvKey> = keys.iter().map(|key| self.physical(key).into()).collect();
            let pairs: Vec<KvPair> = match txn.batch_get(physical).await {
                Ok(pairs) => pairs.collect(),
                Err(error) => return Err(failed(error).await.into()),
            };
            for pair in pairs {
                let (key, value) = self.logical(pair)?;
                view.put_key(key, Some(Stored { value, revision: 0 }));
            }
        }
        for want in wants {
            let (prefix, limit) = match want {
                Want::Key(_) => continue,
                Want::All(prefix) => (prefix, PAGE),
                Want::Any(prefix) => (prefix, 1),
            };
            let (mut from, end) = (prefix.clone(), codec::end_of(prefix));
            let mut rows = Vec::new();
            loop {
                let range = self.range(&from, &end);
                let pairs: Vec<KvPair> = match txn.scan(range, limit).await {
                    Ok(pairs) => pairs.collect(),
                    Err(error) => return Err(failed(error).await.into()),
                };
                let mut page = pairs.into_iter().map(|pair| self.logical(pair)).collect::<EngineResult<Vec<_>>>()?;
                page.sort_unstable_by(|one, other| one.0.cmp(&other.0));
                // Each region has answered with as many; those after the last of a full page are asked for again.
                let full = page.len() >= limit as usize;
                page.truncate(limit as usize);
                if let Some((last, _)) = page.last() {
                    from = [&last[..], &[0]].concat();
                }
                rows.extend(page.into_iter().map(|(key, value)| (key, Stored { value, revision: 0 })));
                if !full || matches!(want, Want::Any(_)) {
                    break;
                }
            }
            view.put_list(want.clone(), Listed { rows, revision: 0 });
        }
        Ok(view)
    }

    /// Every key that must not have changed and is not written.
    fn locks(&self, attempt: &Attempt<'_>) -> Vec<TikvKey> {
        let mut keys: BTreeSet<Vec<u8>> = BTreeSet::new();
        for want in attempt.checks {
            match want {
                Want::Key(key) => drop(keys.insert(key.clone())),
                Want::All(prefix) | Want::Any(prefix) => {
                    keys.extend(codec::anchor(prefix));
                    let listed = attempt.view.list(want).map(|listed| &listed.rows[..]).unwrap_or_default();
                    keys.extend(listed.iter().map(|(key, _)| key.clone()));
                }
            }
        }
        let added = attempt.writes.iter().filter(|(_, value)| value.is_some());
        keys.extend(added.filter_map(|(key, _)| codec::anchor(key)));
        keys.into_iter().filter(|key| !attempt.writes.contains_key(key)).map(|key| self.physical(&key).into()).collect()
    }

    async fn write(&self, txn: &mut Transaction, attempt: &Attempt<'_>) -> Result<(), Error> {
        for (key, value) in attempt.writes {
            let key = self.physical(key);
            match value {
                Some(value) => txn.put(key, value.clone()).await?,
                None => txn.delete(key).await?,
            }
        }
        txn.lock_keys(self.locks(attempt)).await?;
        txn.commit().await.map(drop)
    }

    /// Whether an attempt of which nothing is known was carried out. True: it was; false: it was not, and will not be.
    async fn look(&self, view: &View, checks: &BTreeSet<Want>, writes: &Writes) -> Option<bool> {
        let wants: Vec<Want> = writes.keys().map(|key| Want::Key(key.clone())).collect();
        if wants.is_empty() {
            return Some(false);
        }
        let deadline = Instant::now() + LOOK_DEADLINE;
        let now = loop {
            let read = async {
                let mut txn = self.client.begin_with_options(options()).await.map_err(|error| fault("look", &error))?;
                self.read_at(&mut txn, &wants).await
            };
            match tokio::time::timeout(RETRY_DEADLINE, read).await {
                Ok(Ok(now)) => break now,
                _ if Instant::now() >= deadline => return None,
                _ => tokio::time::sleep(RETRY_PAUSE).await,
            }
        };
        let (mut ours, mut before, mut compared) = (true, true, false);
        for (key, value) in writes {
            let found = now.key(key).flatten().map(|stored| &stored.value[..]);
            ours &= found == value.as_deref();
            // What was not looked at may have had any value.
            if let (true, Some(was)) = (checks.contains(&Want::Key(key.clone())), view.key(key)) {
                compared = true;
                before &= was.map(|stored| &stored.value[..]) == found;
            }
        }
        match (ours, before && compared) {
            (true, false) => Some(true),
            (false, true) => Some(false),
            _ => None,
        }
    }
}

/// The back end; clones share the volume.
#[derive(Clone)]
struct Tikv(Arc<Volume>);

#[async_trait]
impl Kv for Tikv {
    fn name(&self) -> &'static str {
        "tikv"
    }

    /// Transactions are bounded by their bytes, far above what an operation changes.
    fn operations_max(&self) -> usize {
        usize::MAX
    }

    fn stores_empty_values(&self) -> bool {
        false
    }

    async fn read(&self, wants: &[Want]) -> EngineResult<View> {
        self.begin().await?.read(wants).await
    }

    async fn begin(&self) -> EngineResult<Box<dyn KvTxn>> {
        Ok(Box::new(TikvTxn { volume: self.0.clone(), txn: None }))
    }

    async fn scan(&self, from: &[u8], to: &[u8], limit: usize) -> EngineResult<Vec<(Vec<u8>, Bytes)>> {
        let page = || async {
            let mut snapshot = self.0.snapshot().await.map_err(|error| fault("scan", &error))?;
            match snapshot.scan(self.0.range(from, to), limit as u32).await {
                Ok(pairs) => Ok(pairs.collect::<Vec<KvPair>>()),
                Err(error) => Err(self.0.failed("scan", error).await),
            }
        };
        let pairs = self.0.again("scan", page).await?;
        let mut rows = pairs.into_iter().map(|pair| self.0.logical(pair)).collect::<EngineResult<Vec<_>>>()?;
        rows.sort_unstable_by(|one, other| one.0.cmp(&other.0));
        rows.truncate(limit);
        Ok(rows)
    }

    async fn erase(&self) -> EngineResult<()> {
        loop {
            let rows = self.scan(&[], &[u8::MAX; 2], ERASED_AT_ONCE).await?;
            if rows.is_empty() {
                return Ok(());
            }
            let remove = || async {
                let failed = |error: Error| fault("erase", &error);
                let mut txn = self.0.client.begin_with_options(options()).await.map_err(failed)?;
                for (key, _) in &rows {
                    txn.delete(self.0.physical(key)).await.map_err(failed)?;
                }
                txn.commit().await.map(drop).map_err(failed)
            };
            self.0.again("erase", remove).await?;
        }
    }
}

/// One attempt: the transaction begins with the first read, so that nothing that waits before makes it old.
struct TikvTxn {
    volume: Arc<Volume>,
    txn: Option<(Transaction, Instant)>,
}

impl TikvTxn {
    /// What it reads, and the versions that its commit is compared with, may have been collected.
    fn is_too_old(&self) -> bool {
        self.txn.as_ref().is_some_and(|(_, began)| began.elapsed() >= SNAPSHOT_AGE_MAX)
    }

    async fn begun(&mut self) -> EngineResult<&mut Transaction> {
        if self.txn.is_none() {
            let volume = self.volume.clone();
            let begin =
                || async { volume.client.begin_with_options(options()).await.map_err(|error| fault("begin", &error)) };
            self.txn = Some((self.volume.again("begin", begin).await?, Instant::now()));
        }
        self.txn.as_mut().map(|(txn, _)| txn).ok_or_else(|| Fault::internal("begin").with("engine", "tikv").into())
    }
}

#[async_trait]
impl KvTxn for TikvTxn {
    /// Asked again at the same timestamp.
    async fn read(&mut self, wants: &[Want]) -> EngineResult<View> {
        if self.is_too_old() {
            return Err(EngineError::Conflict);
        }
        let volume = self.volume.clone();
        let deadline = Instant::now() + RETRY_DEADLINE;
        loop {
            let txn = self.begun().await?;
            let fault = match tokio::time::timeout(RETRY_DEADLINE, volume.read_at(txn, wants)).await {
                Ok(Ok(view)) => {
                    volume.answered();
                    return Ok(view);
                }
                Ok(Err(EngineError::Fault(fault))) if fault.kind() == FaultKind::Unavailable => fault,
                Ok(Err(error)) => return Err(error),
                Err(_) => Fault::timeout("read").with("engine", "tikv"),
            };
            volume.silent(&fault);
            if Instant::now() + RETRY_PAUSE >= deadline {
                return Err(fault.into());
            }
            tokio::time::sleep(RETRY_PAUSE).await;
        }
    }

    async fn commit(mut self: Box<Self>, attempt: Attempt<'_>) -> EngineResult<Ended> {
        self.begun().await?;
        let volume = self.volume.clone();
        let again = || Ended::Changed(Box::new(TikvTxn { volume: volume.clone(), txn: None }), None);
        if self.is_too_old() {
            return Ok(again());
        }
        let Some((mut txn, _)) = self.txn.take() else {
            return Err(Fault::internal("commit").with("engine", "tikv").into());
        };
        let fault = match tokio::time::timeout(RETRY_DEADLINE, volume.write(&mut txn, &attempt)).await {
            Ok(Ok(())) => {
                volume.answered();
                return Ok(Ended::Applied);
            }
            Ok(Err(error)) if is_conflict(&error) => {
                // Nothing is decided, so the locks of the first phase may go at once.
                let _ = tokio::time::timeout(ROLLBACK_TIMEOUT, txn.rollback()).await;
                return Ok(again());
            }
            Ok(Err(error)) if orphan_of(&error).is_some() => {
                // The first phase has met the lock.
                let met = volume.failed("commit", error).await;
                tracing::debug!("tikv: begins again: {met}");
                let _ = tokio::time::timeout(ROLLBACK_TIMEOUT, txn.rollback()).await;
                return Ok(again());
            }
            Ok(Err(error)) => fault("commit", &error),
            Err(_) => Fault::timeout("commit").with("engine", "tikv"),
        };
        if fault.retry() != Retry::Never {
            volume.silent(&fault);
        }
        match volume.look(attempt.view, attempt.checks, attempt.writes).await {
            Some(true) => Ok(Ended::Applied),
            // It was not, and would not be the next time.
            Some(false) if fault.retry() == Retry::Never => Err(fault.into()),
            Some(false) => Ok(again()),
            None => {
                let fault = Fault::undetermined("commit").with("engine", "tikv").source(fault);
                Err(EngineError::Undetermined(fault))
            }
        }
    }
}

#[cfg(test)]
mod tests;
