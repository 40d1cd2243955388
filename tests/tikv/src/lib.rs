//! A PD and a TiKV for tests, in the process of the test: `tikv-client` connects to it as to a cluster.
//!
//! Real servers of TiKV are too large for a test machine to carry along, and no server can be told to lose the answer
//! of just this commit. So this one follows TiKV's rules as far as a client can see them:
//!
//! * **Versions.** Reads see what was committed at or before their timestamp, whatever is written meanwhile.
//! * **Two phases.** Locks with primary, time to live and `for_update_ts`; write conflicts against the newest record of
//!   a key, rollbacks included; commits and prewrites that may be repeated; rollback records that forbid a late
//!   prewrite for ever; a commit decided by its primary alone.
//! * **Pessimistic locks.** Requests wait for a second and are told to start over when the lock has gone; a circle of
//!   waiting transactions is refused as a deadlock; a lost lock is made up for when nothing was written.
//! * **The dead.** `CheckTxnStatus` by time to live against the timestamps of PD, `ResolveLock` forwards and backwards,
//!   `TxnHeartBeat`, `ScanLock`, a safe point below which versions are gone.
//! * **Regions.** Several, led by several stores on ports of their own, that split, move and change while clients work;
//!   requests with an old idea of them are refused in TiKV's order and words. PD takes encoded keys only.
//! * **Faults** (`inject.rs`): region errors, lost answers, broken connections before and after the deed, late
//!   timestamps, dead transactions that leave locks behind, and all of it away for a while.
//!
//! Not there: replication and its outages (a leader moves, and nothing is lost by it), asynchronous and one-phase
//! commit (declined), raw and coprocessor calls, keyspaces, TLS, `BatchCommands`. The client of SluiceFS uses none of
//! them. Three things are stricter than TiKV, to show mistakes: empty values are refused (clients for Go refuse them),
//! reads below the safe point are refused (as clients for Go do), and garbage is collected at once.
//!
//! `mvcc.rs` has the rules, without a network; `region.rs` the regions; `pd.rs` and `kv.rs` answer the calls;
//! `waiting.rs` queues pessimistic locks; `serve.rs` has the connections; `proto.rs` the messages.

use std::collections::{BTreeMap, HashMap};
use std::io;
use std::net::{Ipv4Addr, SocketAddr, TcpListener};
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use parking_lot::Mutex;
use tokio::sync::{oneshot, watch};
use tokio_rustls::TlsAcceptor;

mod inject;
mod kv;
mod mvcc;
mod pd;
mod proto;
mod region;
mod serve;
mod waiting;

pub use inject::{Calls, Fault, Injected, Plan, Rpc};
pub use mvcc::{Key, Ts, Value};
pub use region::Area;

use inject::Faults;
use mvcc::{Mvcc, Prewrite};
use pd::Oracle;
use region::Regions;
use serve::Role;
use waiting::Waiting;

const STORES: usize = 2;

#[derive(Debug)]
pub(crate) struct State {
    regions: Regions,
    mvcc: Mvcc,
    waiting: Waiting,
}

impl State {
    /// Tells those who wait for locks that have just gone.
    fn wake(&mut self) {
        for released in self.mvcc.take_released() {
            self.waiting.release(&released);
        }
    }
}

/// Lock order: `state` before `oracle`; the faults have a lock of their own, held for a moment.
pub(crate) struct Shared {
    state: Mutex<State>,
    oracle: Mutex<Oracle>,
    faults: Faults,
    down: watch::Sender<bool>,
    pd: SocketAddr,
    stores: Vec<SocketAddr>,
    tls: Option<TlsAcceptor>,
}

impl std::fmt::Debug for Shared {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Shared").field("pd", &self.pd).field("stores", &self.stores).finish_non_exhaustive()
    }
}

/// How far a transaction got before its client died.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Crash {
    /// Everything is locked and nothing committed; the locks count for this long.
    BeforeCommit { ttl: Duration },
    /// The first key is committed, and with it the transaction; the others are still locked.
    AfterPrimary,
    /// All but the first key are locked: locks go out to all regions at once, and that one did not arrive.
    WithoutPrimary { ttl: Duration },
}

/// A running server. It goes with this value, or with the process.
#[derive(Debug)]
pub struct TestTikv {
    shared: Arc<Shared>,
    /// The primaries and keys of the transactions that `crash` has left.
    left: Mutex<HashMap<Ts, Vec<Key>>>,
    /// Ends the server by being dropped.
    _stop: oneshot::Sender<()>,
}

impl TestTikv {
    /// With one region and two stores.
    pub fn start() -> TestTikv {
        TestTikv::with_stores(STORES).expect("a test server on loopback")
    }

    /// With regions that begin at these keys, and one before them.
    pub fn start_split(keys: &[&[u8]]) -> TestTikv {
        let tikv = TestTikv::start();
        keys.iter().for_each(|key| tikv.split_at(key));
        tikv
    }

    /// Behind TLS, for clients with a certificate of the same authority: its file, the server's certificate, and its key.
    pub fn start_tls(authority: &Path, certificate: &Path, key: &Path) -> TestTikv {
        let tls = serve::acceptor(authority, certificate, key);
        TestTikv::listen(STORES, Some(tls)).expect("a test server on loopback")
    }

    pub fn with_stores(stores: usize) -> io::Result<TestTikv> {
        TestTikv::listen(stores, None)
    }

    fn listen(stores: usize, tls: Option<TlsAcceptor>) -> io::Result<TestTikv> {
        let listen = || TcpListener::bind((Ipv4Addr::LOCALHOST, 0));
        let pd = listen()?;
        let listeners = (0..stores).map(|_| listen()).collect::<io::Result<Vec<_>>>()?;
        let shared = Arc::new(Shared {
            state: Mutex::new(State {
                regions: Regions::new(stores as u64),
                mvcc: Mvcc::default(),
                waiting: Waiting::default(),
            }),
            oracle: Mutex::default(),
            faults: Faults::default(),
            down: watch::Sender::new(false),
            pd: pd.local_addr()?,
            stores: listeners.iter().map(TcpListener::local_addr).collect::<io::Result<_>>()?,
            tls,
        });
        let mut roles = vec![(Role::Pd, pd)];
        roles.extend(listeners.into_iter().enumerate().map(|(at, store)| (Role::Store(at as u64 + 1), store)));
        roles.iter().try_for_each(|(_, listener)| listener.set_nonblocking(true))?;
        let (stop, stopped) = oneshot::channel();
        let serving = shared.clone();
        std::thread::Builder::new().name("test-tikv".to_owned()).spawn(move || run(roles, serving, stopped))?;
        Ok(TestTikv { shared, left: Mutex::default(), _stop: stop })
    }

    /// `127.0.0.1:port`, for `TransactionClient::new(vec![…])` and for meta URLs.
    pub fn pd_address(&self) -> String {
        self.shared.pd.to_string()
    }

    /// A timestamp as PD would give it.
    pub fn now(&self) -> Ts {
        self.shared.oracle.lock().take(1)
    }

    /// Lets PD's clock run ahead, so that locks expire without a wait.
    pub fn advance(&self, time: Duration) {
        self.shared.oracle.lock().advance(time);
    }
}

// Faults.
impl TestTikv {
    pub fn inject(&self, plan: Plan) -> Injected {
        self.shared.faults.add(plan)
    }

    /// Ends all faults.
    pub fn heal(&self) {
        self.shared.faults.clear();
    }

    /// How often this call has arrived, whatever became of it.
    pub fn calls(&self, rpc: Rpc) -> u64 {
        self.shared.faults.calls(rpc)
    }

    /// From now on a region begins at this key.
    pub fn split_at(&self, key: &[u8]) {
        self.shared.state.lock().regions.split_at(key);
    }

    /// Breaks all connections and takes none, until `come_up`. What was committed stays.
    pub fn go_down(&self) {
        self.shared.down.send_replace(true);
    }

    pub fn come_up(&self) {
        self.shared.down.send_replace(false);
    }

    /// Leaves the locks of a transaction whose client has died; the first key is its primary, `None` deletes.
    /// Answers with its start timestamp. Panics if something keeps it from locking.
    pub fn crash(&self, writes: &[(&[u8], Option<&[u8]>)], crash: Crash) -> Ts {
        let mut state = self.shared.state.lock();
        state.mvcc.settle();
        let start_ts = self.now();
        let ttl = match crash {
            Crash::BeforeCommit { ttl } | Crash::WithoutPrimary { ttl } => ttl,
            Crash::AfterPrimary => Duration::from_secs(20),
        };
        let skip = usize::from(matches!(crash, Crash::WithoutPrimary { .. }));
        let request = Prewrite {
            mutations: writes[skip..].iter().map(|(key, value)| mutation(key, *value)).collect(),
            primary: writes[0].0.to_vec(),
            start_ts,
            ttl_ms: ttl.as_millis() as u64,
            ..Prewrite::default()
        };
        state.mvcc.prewrite(&request).expect("locks of a transaction that crashes");
        let keys: Vec<Key> = writes.iter().map(|(key, _)| key.to_vec()).collect();
        if crash == Crash::AfterPrimary {
            state.mvcc.commit(&keys[..1], start_ts, self.now()).expect("a commit of the primary");
        }
        state.wake();
        self.left.lock().insert(start_ts, keys);
        start_ts
    }

    /// The client of this crashed transaction was alive after all, and commits it. `false` if others were faster.
    pub fn finish(&self, start_ts: Ts) -> bool {
        let keys = self.left.lock().remove(&start_ts).unwrap_or_default();
        let mut state = self.shared.state.lock();
        let done = state.mvcc.commit(&keys, start_ts, self.now()).is_ok();
        state.wake();
        done
    }
}

// A look inside, past all locks.
impl TestTikv {
    /// All keys and their newest committed values: what a reader would find who resolves the locks of transactions
    /// that are committed, and waits for no others.
    pub fn dump_latest(&self) -> BTreeMap<Key, Value> {
        self.shared.state.lock().mvcc.latest()
    }

    /// The keys that are locked, and the start timestamps of the transactions.
    pub fn locks(&self) -> Vec<(Key, Ts)> {
        let locks = self.shared.state.lock().mvcc.locks(b"", b"", Ts::MAX, 0);
        locks.into_iter().map(|lock| (lock.key, lock.lock_version)).collect()
    }

    /// When this key was written, by commit timestamp, oldest first; locks alone are no versions. Commits what is
    /// decided first.
    pub fn versions(&self, key: &[u8]) -> Vec<(Ts, Option<Value>)> {
        let mut state = self.shared.state.lock();
        state.mvcc.settle();
        state.wake();
        let writes = state.mvcc.writes_of(key);
        let version = |(commit_ts, write): (Ts, mvcc::Write)| match write.kind {
            mvcc::WriteKind::Put(value) => Some((commit_ts, Some(value))),
            mvcc::WriteKind::Delete => Some((commit_ts, None)),
            mvcc::WriteKind::Lock | mvcc::WriteKind::Rollback => None,
        };
        writes.into_iter().filter_map(version).collect()
    }

    pub fn regions(&self) -> Vec<Area> {
        self.shared.state.lock().regions.all().to_vec()
    }
}

fn mutation(key: &[u8], value: Option<&[u8]>) -> proto::Mutation {
    let op = if value.is_some() { proto::Op::Put } else { proto::Op::Del };
    proto::Mutation {
        op: op as i32,
        key: key.to_vec(),
        value: value.unwrap_or_default().to_vec(),
        assertion: proto::Assertion::None as i32,
    }
}

/// The thread of the server.
fn run(roles: Vec<(Role, TcpListener)>, shared: Arc<Shared>, stopped: oneshot::Receiver<()>) {
    let runtime = tokio::runtime::Builder::new_current_thread().enable_all().build().expect("a runtime");
    runtime.block_on(async move {
        for (role, listener) in roles {
            let listener = tokio::net::TcpListener::from_std(listener).expect("a listener");
            tokio::spawn(serve::listen(listener, role, shared.clone()));
        }
        // An error tells that the sender has been dropped, and nothing else is ever sent.
        let _ = stopped.await;
    });
}
