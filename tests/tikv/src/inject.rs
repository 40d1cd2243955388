//! Faults on demand: which call is hit, by what, how often; and how often each kind of call was made.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

use parking_lot::Mutex;

/// The calls that the server answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Rpc {
    // PD
    GetMembers,
    Tso,
    GetRegion,
    GetRegionById,
    GetStore,
    GetAllStores,
    UpdateGcSafePoint,
    // TiKV
    Get,
    BatchGet,
    Scan,
    Prewrite,
    PessimisticLock,
    PessimisticRollback,
    Commit,
    BatchRollback,
    CheckTxnStatus,
    CheckSecondaryLocks,
    ResolveLock,
    TxnHeartBeat,
    ScanLock,
    UnsafeDestroyRange,
}

const RPCS: usize = Rpc::UnsafeDestroyRange as usize + 1;

impl Rpc {
    fn of_pd(self) -> bool {
        (self as usize) < Rpc::Get as usize
    }
}

/// Which calls a plan means.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Calls {
    One(Rpc),
    /// All that go to a region of TiKV.
    Kv,
    /// All, PD's too.
    All,
}

impl From<Rpc> for Calls {
    fn from(rpc: Rpc) -> Calls {
        Calls::One(rpc)
    }
}

impl Calls {
    fn contain(self, rpc: Rpc) -> bool {
        match self {
            Calls::One(one) => one == rpc,
            Calls::Kv => !rpc.of_pd() && rpc != Rpc::UnsafeDestroyRange,
            Calls::All => true,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fault {
    /// The region has changed since the client last asked PD.
    EpochNotMatch,
    /// Another store leads the region now.
    NotLeader,
    /// The region has gone; another one has its keys.
    RegionNotFound,
    /// Refused because of load. `tikv-client` gives up on this one at once.
    ServerIsBusy,
    /// The leader's term has ended while the request waited for its turn.
    StaleCommand,
    /// The store takes no writes.
    DiskFull,
    /// The gRPC status UNAVAILABLE; nothing has been done.
    FailBefore,
    /// The request is carried out, then the gRPC status UNAVAILABLE.
    FailAfter,
    /// The connection breaks; nothing has been done.
    CutBefore,
    /// The request is carried out, then the connection breaks.
    CutAfter,
    /// Answered, but late.
    Delay(Duration),
    /// A region that the request needs is split, at its first key, while the request is on its way.
    Split,
}

impl Fault {
    /// Whether it can befall a call that goes to no region.
    fn suits_pd(self) -> bool {
        use Fault::*;
        matches!(self, FailBefore | FailAfter | CutBefore | CutAfter | Delay(_))
    }
}

/// When to do what: `Plan::once(Rpc::Commit, Fault::CutAfter)`, then changed by the methods.
#[derive(Clone, Copy, Debug)]
pub struct Plan {
    calls: Calls,
    fault: Fault,
    skip: u64,
    every: u64,
    times: u64,
}

impl Plan {
    pub fn once(calls: impl Into<Calls>, fault: Fault) -> Plan {
        Plan { calls: calls.into(), fault, skip: 0, every: 1, times: 1 }
    }

    pub fn always(calls: impl Into<Calls>, fault: Fault) -> Plan {
        Plan::once(calls, fault).times(u64::MAX)
    }

    pub fn times(self, times: u64) -> Plan {
        Plan { times, ..self }
    }

    /// Lets the first `skip` calls through.
    pub fn after(self, skip: u64) -> Plan {
        Plan { skip, ..self }
    }

    /// Of the calls that are left, hits the first and then each `every`th one.
    pub fn every(self, every: u64) -> Plan {
        Plan { every: every.max(1), ..self }
    }
}

#[derive(Debug)]
struct Running {
    plan: Plan,
    seen: AtomicU64,
    hits: AtomicU64,
    stopped: AtomicU64,
}

impl Running {
    fn strike(&self, rpc: Rpc) -> Option<Fault> {
        let plan = &self.plan;
        let suits = plan.calls.contain(rpc) && (plan.fault.suits_pd() || Calls::Kv.contain(rpc));
        if !suits || self.stopped.load(Ordering::Relaxed) > 0 {
            return None;
        }
        let seen = self.seen.fetch_add(1, Ordering::Relaxed);
        let due = seen.checked_sub(plan.skip).is_some_and(|seen| seen % plan.every == 0);
        if !due || self.hits.load(Ordering::Relaxed) >= plan.times {
            return None;
        }
        self.hits.fetch_add(1, Ordering::Relaxed);
        Some(plan.fault)
    }
}

/// A plan that is being carried out.
#[derive(Clone, Debug)]
pub struct Injected(Arc<Running>);

impl Injected {
    /// How often it has struck.
    pub fn hits(&self) -> u64 {
        self.0.hits.load(Ordering::Relaxed)
    }

    pub fn stop(&self) {
        self.0.stopped.store(1, Ordering::Relaxed);
    }
}

#[derive(Debug)]
pub(crate) struct Faults {
    running: Mutex<Vec<Arc<Running>>>,
    calls: [AtomicU64; RPCS],
}

impl Default for Faults {
    fn default() -> Faults {
        Faults { running: Mutex::default(), calls: std::array::from_fn(|_| AtomicU64::new(0)) }
    }
}

impl Faults {
    pub fn add(&self, plan: Plan) -> Injected {
        let zero = || AtomicU64::new(0);
        let running = Arc::new(Running { plan, seen: zero(), hits: zero(), stopped: zero() });
        self.running.lock().push(running.clone());
        Injected(running)
    }

    pub fn clear(&self) {
        self.running.lock().drain(..).for_each(|running| running.stopped.store(1, Ordering::Relaxed));
    }

    /// Counts a call and tells what befalls it: of the plans that strike, the oldest one's fault.
    pub fn next(&self, rpc: Rpc) -> Option<Fault> {
        self.calls[rpc as usize].fetch_add(1, Ordering::Relaxed);
        // Not a lazy search: each plan counts each call.
        let struck: Vec<Fault> = self.running.lock().iter().filter_map(|running| running.strike(rpc)).collect();
        struck.first().copied()
    }

    pub fn calls(&self, rpc: Rpc) -> u64 {
        self.calls[rpc as usize].load(Ordering::Relaxed)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_plan_strikes_when_it_says_and_counts() {
        let faults = Faults::default();
        let injected = faults.add(Plan::once(Rpc::Commit, Fault::CutAfter).after(1).every(2).times(2));
        let struck: Vec<bool> = (0..8).map(|_| faults.next(Rpc::Commit).is_some()).collect();
        assert_eq!(struck, [false, true, false, true, false, false, false, false]);
        assert_eq!(faults.next(Rpc::Get), None);
        assert_eq!((injected.hits(), faults.calls(Rpc::Commit), faults.calls(Rpc::Get)), (2, 8, 1));
    }

    #[test]
    fn faults_of_regions_pass_pd_by() {
        let faults = Faults::default();
        let stale = faults.add(Plan::always(Calls::All, Fault::EpochNotMatch));
        assert_eq!(faults.next(Rpc::GetRegion), None);
        assert_eq!(faults.next(Rpc::Get), Some(Fault::EpochNotMatch));
        stale.stop();
        assert_eq!(faults.next(Rpc::Get), None);
    }
}
