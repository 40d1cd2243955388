//! What a seed stands for: how many there are of everything, what goes wrong how often, and what processes are bent on.

use super::network::{Chances, Outage};
use crate::config::client::AtimeMode;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::time::Duration;

/// What processes mostly do.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Bent {
    Everything,
    /// Few files that everybody opens, writes, closes and reads again.
    Bytes,
    Names,
}

/// What a seed stands for.
#[derive(Clone, Debug)]
pub struct Plan {
    pub seed: u64,
    pub bent: Bent,
    pub clients: usize,
    pub processes: usize,
    pub steps: usize,
    /// Files that everybody uses.
    pub hot_files: usize,
    /// Between two steps of a process, at most.
    pub think_ms: u64,
    pub chances: Chances,
    pub outages: Vec<Outage>,
    /// Crashes, pauses, outages and jumps of clocks.
    pub events: usize,
    pub crashes: bool,
    pub pauses: bool,
    /// Clients stand still for longer than their sessions live, and others clean up after them.
    pub long_pauses: bool,
    /// Clocks differ by up to this, to both sides.
    pub skew_ms: i64,
    /// Somebody sets times of change, to one that was there before.
    pub touches: bool,
    pub compression: &'static str,
    pub hash_prefix: bool,
    pub trash_days: i64,
    pub cache_bytes: u64,
    pub buffer_bytes: u64,
    pub atime: AtimeMode,
    pub skip_dir_mtime: Duration,
    pub shared_weight: u32,
}

impl Plan {
    pub fn of(seed: u64) -> Plan {
        let random = &mut StdRng::seed_from_u64(seed);
        let mut chances = Chances { latency_ms: random.random_range(0..=12), ..Chances::default() };
        if random.random_bool(0.3) {
            chances.slow = 0.02;
        }
        let some =
            |random: &mut StdRng, most: f64| if random.random_bool(0.6) { random.random_range(0.0..most) } else { 0.0 };
        // A third of the runs meets latency, crashes and clients that stand still only: what happens in them is judged
        // without allowances.
        let calm = random.random_bool(0.35);
        let mut outages = Vec::new();
        if !calm {
            chances.engine_before = some(random, 0.05);
            chances.engine_lost = some(random, 0.08);
            chances.engine_away = some(random, 0.4);
            chances.store_before = some(random, 0.08);
            chances.store_after = some(random, 0.08);
            chances.store_stall = some(random, 0.02);
            chances.store_truncate = some(random, 0.25);
            for outage in [Outage::EngineDown, Outage::EngineFull, Outage::StoreDown, Outage::StoreFull] {
                if random.random_bool(0.25) {
                    outages.push(outage);
                }
            }
        }
        chances.engine_conflict = some(random, 0.1);
        let bent =
            [Bent::Everything, Bent::Everything, Bent::Bytes, Bent::Bytes, Bent::Names][random.random_range(0..5)];
        let clients = random.random_range(2..=4);
        let processes = random.random_range(1..=2);
        let all_steps = random.random_range(30..=100);
        Plan {
            seed,
            bent,
            clients,
            processes,
            steps: (all_steps / (clients * processes)).max(6),
            hot_files: random.random_range(1..=2),
            think_ms: [0, 20, 300, 3000][random.random_range(0..4)],
            outages,
            events: random.random_range(0..=4),
            crashes: random.random_bool(0.6),
            pauses: !calm && random.random_bool(0.4),
            long_pauses: random.random_bool(0.15),
            skew_ms: [0, 5, 2000, 20_000, 300_000][random.random_range(0..5)],
            touches: random.random_bool(0.3),
            compression: ["none", "none", "none", "none", "none", "none", "lz4", "zstd"][random.random_range(0..8)],
            hash_prefix: random.random_bool(0.2),
            trash_days: i64::from(random.random_bool(0.4)),
            cache_bytes: [0, 0, 128 << 10, 1 << 30][random.random_range(0..4)],
            buffer_bytes: if random.random_bool(0.2) { 256 << 10 } else { 32 << 20 },
            atime: if random.random_bool(0.2) { AtimeMode::Relative } else { AtimeMode::Never },
            skip_dir_mtime: if random.random_bool(0.5) { Duration::ZERO } else { Duration::from_millis(100) },
            shared_weight: random.random_range(0..=4),
            chances,
        }
    }

    /// Requests of any client may fail for reasons that an operation cannot outlive. A client that is held is another
    /// matter: what fails then are its own.
    pub fn is_faulty(&self) -> bool {
        let Chances { engine_before, engine_lost, store_before, store_after, store_stall, store_truncate, .. } =
            self.chances;
        let sum = engine_before + engine_lost + store_before + store_after + store_stall + store_truncate;
        sum > 0.0 || !self.outages.is_empty()
    }
}
