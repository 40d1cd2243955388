//! How full the volume is: a cached figure that growing operations are checked against without a trip, and the
//! figures of statfs (`spec/metadata.md` 1.15, 7.15).
//!
//! The cache is the volume's counters as of the last heartbeat plus what this client has committed since; the
//! driver reports that (`txn::Done::usage`), so no operation does its own book-keeping. Other clients' growth shows
//! up a heartbeat late, as it does for the peer: limits are near, not exact.

use super::engine::{Change, Scan};
use super::record::{Counter, Key, QuotaOwner, Record};
use super::{Meta, outside};
use crate::base::{Errno, Ino, Outcome};
use parking_lot::Mutex;
use std::ops::{AddAssign, SubAssign};
use std::sync::atomic::{AtomicBool, Ordering};

/// Bytes as accounted, and nodes; also a change of both.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Usage {
    pub space: i64,
    pub inodes: i64,
}

impl Usage {
    /// What a batch does to the volume's counters.
    pub(super) fn changed_by(changes: &[Change]) -> Usage {
        let mut usage = Usage::default();
        for change in changes {
            match change {
                Change::AddCounter(Counter::UsedSpace, delta) => usage += Usage { space: *delta, inodes: 0 },
                Change::AddCounter(Counter::TotalInodes, delta) => usage += Usage { space: 0, inodes: *delta },
                _ => {}
            }
        }
        usage
    }
}

/// Saturating: a counter may hold anything, and is a figure, not a pointer.
impl AddAssign for Usage {
    fn add_assign(&mut self, other: Usage) {
        self.space = self.space.saturating_add(other.space);
        self.inodes = self.inodes.saturating_add(other.inodes);
    }
}

impl SubAssign for Usage {
    fn sub_assign(&mut self, other: Usage) {
        self.space = self.space.saturating_sub(other.space);
        self.inodes = self.inodes.saturating_sub(other.inodes);
    }
}

/// The cached usage of the volume.
#[derive(Default)]
pub(super) struct UsageCache {
    known: Mutex<Known>,
    /// Whether any directory of the volume has a quota: without, statfs need not look at ancestors.
    quotas: AtomicBool,
}

#[derive(Default)]
struct Known {
    /// The counters at the last refresh.
    counted: Usage,
    /// What this client committed that `counted` may not contain.
    own: Usage,
}

impl UsageCache {
    /// What a commit of this client changed.
    pub fn committed(&self, delta: Usage) {
        if delta != Usage::default() {
            self.known.lock().own += delta;
        }
    }

    fn now(&self) -> Usage {
        let known = self.known.lock();
        let mut usage = known.counted;
        usage += known.own;
        usage
    }
}

/// What statfs answers; spaces in bytes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct StatFs {
    pub total: u64,
    pub avail: u64,
    pub used: u64,
    pub inodes_used: u64,
    pub inodes_avail: u64,
}

/// Size of a volume without a limit: 1 PiB, doubled until it looks at most 80 % full.
const UNLIMITED_BYTES: u64 = 1 << 50;
/// Nodes of a volume without a limit: 10 Mi, doubled until they are at least a quarter of the nodes in use.
const UNLIMITED_INODES: u64 = 10 << 20;
/// Deeper than any path can be: a walk towards the root ends here even in a damaged tree.
const ANCESTORS_MAX: usize = 4096;

fn volume_figures(usage: Usage, capacity: u64, inodes_max: u64) -> StatFs {
    let used = usage.space.max(0) as u64;
    let inodes_used = usage.inodes.max(0) as u64;
    let total = match capacity {
        0 => {
            let mut total = UNLIMITED_BYTES;
            // In 128 bits, for the product outgrows 64 before the volume does.
            while u128::from(total) * 8 < u128::from(used) * 10 {
                total = total.saturating_mul(2);
            }
            total
        }
        capacity => capacity.max(used),
    };
    let inodes_avail = match inodes_max {
        0 => {
            let mut avail = UNLIMITED_INODES;
            while u128::from(inodes_used) > u128::from(avail) * 4 {
                avail = avail.saturating_mul(2);
            }
            avail
        }
        limit => limit.saturating_sub(inodes_used),
    };
    StatFs { total, avail: total - used, used, inodes_used, inodes_avail }
}

/// Counter values in the order asked for; counters never touched are zero.
fn numbers(records: &[Option<Record>]) -> Usage {
    let number = |record: Option<&Option<Record>>| match record {
        Some(Some(Record::Number(n))) => *n,
        _ => 0,
    };
    Usage { space: number(records.first()), inodes: number(records.get(1)) }
}

const COUNTERS: [Key; 2] = [Key::Counter(Counter::UsedSpace), Key::Counter(Counter::TotalInodes)];

impl Meta {
    /// ENOSPC when the volume's limits have no room for so many more bytes (as accounted) and nodes. Shrinking
    /// always fits. From memory.
    pub fn check_space(&self, space: i64, inodes: i64) -> Outcome<()> {
        let rules = self.rules();
        if rules.capacity_bytes == 0 && rules.inodes_max == 0 {
            return Ok(());
        }
        let usage = self.usage.now();
        let full = |limit: u64, used: i64, more: i64| {
            limit > 0 && more > 0 && i128::from(used) + i128::from(more) > i128::from(limit)
        };
        if full(rules.capacity_bytes, usage.space, space) || full(rules.inodes_max, usage.inodes, inodes) {
            return Err(Errno::ENOSPC.into());
        }
        Ok(())
    }

    /// The usage this client believes in, from memory.
    pub fn usage(&self) -> Usage {
        self.usage.now()
    }

    /// Reads the volume's counters anew, and whether it has directory quotas.
    pub async fn refresh_usage(&self) -> Outcome<()> {
        // What was committed before the counters are read is contained in them. What is committed meanwhile may be
        // counted twice until the next refresh, and is never forgotten.
        let contained = self.usage.known.lock().own;
        let records = self.read(&COUNTERS).await?;
        {
            let mut known = self.usage.known.lock();
            known.counted = numbers(&records);
            known.own -= contained;
        }
        let mut after = None;
        let mut quotas = false;
        loop {
            let page = outside(self.engine().scan(&Scan::Quotas, after.as_ref(), 1000).await)?;
            quotas |= page.rows.iter().any(|(key, _)| matches!(key, Key::Quota(QuotaOwner::Directory(_))));
            after = page.next;
            if quotas || after.is_none() {
                break;
            }
        }
        self.usage.quotas.store(quotas, Ordering::Relaxed);
        Ok(())
    }

    /// The size of the volume as seen from a directory: quotas on the way to the root show as its limits. One trip,
    /// and one per ancestor on volumes with directory quotas.
    pub async fn statfs(&self, ino: Ino) -> Outcome<StatFs> {
        let rules = self.rules();
        let [space, inodes] = COUNTERS;
        let of = |ino| [Key::Quota(QuotaOwner::Directory(ino)), Key::Attr(ino)];
        let [quota, attr] = of(ino);
        let mut records = self.read(&[space, inodes, quota, attr]).await?;
        let mut figures = volume_figures(numbers(&records), rules.capacity_bytes, rules.inodes_max);
        let (mut space_known, mut inodes_known) = (false, false);
        let mut at = ino;
        for _ in 0..ANCESTORS_MAX {
            let parent = match records.pop().flatten() {
                Some(Record::Attr(attr)) => attr.parent,
                _ => Ino::ROOT,
            };
            if let Some(Record::Quota(quota)) = records.pop().flatten() {
                if quota.max_space > 0 {
                    let (max, used) = (quota.max_space as u64, quota.used_space.max(0) as u64);
                    figures.avail = figures.avail.min(max.saturating_sub(used));
                    if !std::mem::replace(&mut space_known, true) {
                        (figures.total, figures.used) = (max.max(used), used);
                    }
                }
                if quota.max_inodes > 0 {
                    let (max, used) = (quota.max_inodes as u64, quota.used_inodes.max(0) as u64);
                    figures.inodes_avail = figures.inodes_avail.min(max.saturating_sub(used));
                    if !std::mem::replace(&mut inodes_known, true) {
                        figures.inodes_used = used;
                    }
                }
            }
            // Several parents (a hard-linked file) lead nowhere in particular; the volume's own figures stand.
            if at == Ino::ROOT || parent == Ino::MANY || !self.usage.quotas.load(Ordering::Relaxed) {
                break;
            }
            at = parent;
            records = self.read(&of(at)).await?;
        }
        Ok(figures)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Rules;
    use crate::meta::engine::counting::{CountingEngine, Trips};
    use crate::meta::record::Quota;
    use crate::meta::testing::{Store, file, plain_rules, volume_on};
    use crate::meta::txn::{AttrOf, Operation, Tx};
    use crate::util::clock::SystemClock;
    use std::sync::Arc;

    #[test]
    fn a_volume_without_limits_grows_with_its_use() {
        let of = |space, inodes| volume_figures(Usage { space, inodes }, 0, 0);
        assert_eq!((of(0, 0).total, of(0, 0).inodes_avail), (1 << 50, 10 << 20));
        let nearly = (1i64 << 50) / 10 * 8;
        assert_eq!(of(nearly, 40 << 20).total, 1 << 50);
        assert_eq!(of(nearly + 4096, 0).total, 1 << 51);
        assert_eq!(of(0, 40 << 20).inodes_avail, 10 << 20);
        assert_eq!(of(0, (40 << 20) + 1).inodes_avail, 20 << 20);
        assert_eq!(of(-4096, -1), of(0, 0), "drifted counters are not shown");
        let full = volume_figures(Usage { space: 9000, inodes: 7 }, 8000, 5);
        assert_eq!((full.total, full.avail, full.used, full.inodes_avail), (9000, 0, 9000, 0));
    }

    #[tokio::test]
    async fn own_growth_counts_at_once_and_that_of_others_after_a_refresh() {
        let store = Store::new().await;
        let here = store.client(Arc::new(SystemClock)).await;
        let there = store.client(Arc::new(SystemClock)).await;
        here.set_rules(Rules { capacity_bytes: 4 * 4096, inodes_max: 3, ..plain_rules() });
        file(&here, "a").await;
        file(&there, "b").await;
        assert_eq!(here.usage(), Usage { space: 4096, inodes: 1 });
        here.check_space(3 * 4096, 0).unwrap();
        assert_eq!(here.check_space(3 * 4096 + 1, 0).unwrap_err().errno(), Errno::ENOSPC);
        here.refresh_usage().await.unwrap();
        assert_eq!(here.usage(), Usage { space: 2 * 4096, inodes: 2 });
        here.refresh_usage().await.unwrap();
        assert_eq!(here.usage(), Usage { space: 2 * 4096, inodes: 2 });
        here.check_space(4096, 1).unwrap();
        assert_eq!(here.check_space(0, 2).unwrap_err().errno(), Errno::ENOSPC);
        here.check_space(-4096, -1).unwrap();
    }

    #[tokio::test]
    async fn quotas_on_the_way_to_the_root_are_what_statfs_shows() {
        struct Limit(Ino, i64, i64);
        impl Operation for Limit {
            const NAME: &'static str = "limit";
            type Output = ();
            async fn run(&self, tx: &mut Tx<'_>) -> Outcome<()> {
                tx.load(AttrOf(self.0)).await?;
                let quota = Quota { max_space: self.1, max_inodes: self.2, used_space: 4096, used_inodes: 1 };
                tx.change(Change::Put(Key::Quota(QuotaOwner::Directory(self.0)), Record::Quota(quota)));
                Ok(())
            }
        }
        let engine = Arc::new(CountingEngine::new(Store::new().await.engine().await));
        let meta = volume_on(engine.clone(), Arc::new(SystemClock)).await;
        let ino = file(&meta, "f").await;
        engine.take();
        assert_eq!(meta.statfs(ino).await.unwrap().total, 1 << 50);
        assert_eq!(engine.take(), Trips { read: 1, ..Trips::default() });
        meta.run(&Limit(Ino::ROOT, 1 << 20, -1)).await.unwrap();
        meta.run(&Limit(ino, 1 << 30, 10)).await.unwrap();
        meta.refresh_usage().await.unwrap();
        let shown = meta.statfs(ino).await.unwrap();
        assert_eq!((shown.total, shown.used), (1 << 30, 4096), "the nearest quota");
        assert_eq!(shown.avail, (1 << 20) - 4096, "the smallest room");
        assert_eq!((shown.inodes_used, shown.inodes_avail), (1, 9));
    }
}
