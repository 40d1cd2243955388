//! A seeded world: several clients, each a whole `vfs`, on one metadata engine and one object store, in one thread on
//! virtual time. One seed is one run, and the same seed is the same run to the last step. The engine is the one that
//! `SLUICE_TEST_META` names (`meta::testing`); what differs for one that is no memory is in `real`.
//!
//! `plan` says what a seed stands for; `network` is what lies between clients and services (latency, losses, outages);
//! `world` has the clients, which crash, stand still and have clocks of their own; `process` and, for bytes, locks and
//! names, `bytes`, `counter` and `tree` are the programs on them, and judge every answer; `model` knows what files may
//! contain, `pages` what kernels keep of them; `end` puts the world in order and counts what is left. What is asserted:
//!
//! - what fsync or close acknowledged is there after any crash, and in every client that opens the file later;
//! - a read shows bytes that were written there, or zeros where nothing need be seen, never anything else;
//! - an operation that failed has happened or has not, whole; one that may not fail does not;
//! - at the end the tree checker is content, nothing that is referenced is missing in the store, and what is left there
//!   unreferenced is explained by a crash or by a request whose end nobody heard of;
//! - what a kernel is told to keep over an open is what that open would find;
//! - locks exclude, also a holder that stood still until others took it for dead: what it then stores is refused;
//! - everything ends within a bound of virtual time.
//!
//! `SLUICE_SIM_SEED=n` repeats one run and shows its last steps. `SLUICE_SIM_SEEDS` says how many runs there are and
//! `SLUICE_SIM_START` where they begin; without it they begin where nobody has been before.

mod bytes;
mod counter;
mod end;
mod model;
mod network;
mod pages;
mod plan;
mod process;
mod real;
mod tree;
mod world;

use crate::meta::session::unheard;
use crate::meta::testing::is_in_memory;
use crate::util::clock::{Clock, SystemClock};
use crate::util::rng::seed_thread;
use crate::util::task::stop_signal;
use network::{Held, Outage};
use parking_lot::Mutex;
use plan::Plan;
use process::Process;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::cell::RefCell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, Once};
use std::time::{Duration, Instant};
use world::{Up, World};

/// Seeds that have failed at some time.
const FAILED_ONCE: &[u64] = &[
    67,
    116,
    126,
    172,
    177,
    190,
    212,
    262,
    311,
    443,
    596,
    17960401770619,
    17960401770731,
    17960401770786,
    17960401770860,
    17960401771282,
    17960401771781,
    18000000014587,
    18000000015520,
    18000000023460,
    18000000029363,
    18000000055639,
    18000000062655,
    18000000074627,
    18000000107387,
    18000000060564,
    18000000107406,
];
/// Runs without being asked for more.
const SEEDS: u64 = 50;
/// Runs where all tests are asked for.
const SEEDS_ALL: u64 = 2000;
/// On an engine that takes real time seeds are begun for so long if nobody says how many, and there are at least so
/// many.
const REAL_SECONDS: u64 = 12;
const REAL_SEEDS_MIN: u64 = 4;
/// Processes with this number and higher ones run errands.
const ERRANDS: usize = 10;
/// Clients that stand still in a run.
const ERRANDS_MAX: usize = 2;
/// No run takes that long, on any machine: it is stuck.
const STUCK: Duration = Duration::from_secs(300);

thread_local! {
    /// The first panic of this thread's run. Those of tasks that nobody waits for are heard of in no other way.
    static PANIC: RefCell<Option<String>> = const { RefCell::new(None) };
}

fn listen_to_panics() {
    static ONCE: Once = Once::new();
    ONCE.call_once(|| {
        let before = std::panic::take_hook();
        std::panic::set_hook(Box::new(move |info| {
            let ours = PANIC.with_borrow_mut(|panic| match panic {
                Some(first) if first.is_empty() => {
                    *first = info.to_string();
                    true
                }
                Some(_) => true,
                None => false,
            });
            if !ours {
                before(info);
            }
        }));
    });
}

/// Steps of the run and its sum.
type Sum = (usize, u64);

/// Runs a plan to its end; an error is the story of what went wrong.
fn run(plan: Plan) -> Result<Sum, String> {
    listen_to_panics();
    seed_thread(Some(plan.seed));
    PANIC.set(Some(String::new()));
    let seed = plan.seed;
    let described = format!("{plan:?}");
    let world: Mutex<Option<Arc<World>>> = Mutex::new(None);
    let runtime = tokio::runtime::Builder::new_current_thread().enable_time().start_paused(true).build();
    let runtime = runtime.expect("a runtime");
    let sum = catch_unwind(AssertUnwindSafe(|| {
        runtime.block_on(async {
            let made = World::new(plan).await;
            *world.lock() = Some(made.clone());
            live(&made).await;
            made.sum().await
        })
    }));
    let steps = world.lock().take().map(|world| world.last_steps()).unwrap_or_default();
    // Ends what still waits.
    let ended = catch_unwind(AssertUnwindSafe(|| drop(runtime)));
    let panic = PANIC.take().unwrap_or_default();
    seed_thread(None);
    match (sum, ended, panic.is_empty()) {
        (Ok(sum), Ok(()), true) => Ok(sum),
        _ => Err(format!("{steps}{panic}\n{described}\nseed {seed} failed; SLUICE_SIM_SEED={seed} repeats it")),
    }
}

async fn live(world: &Arc<World>) {
    let random = &mut StdRng::seed_from_u64(world.plan.seed ^ 0x5EED);
    for slot in 0..world.plan.clients {
        world.set_skew(slot, random.random_range(-world.plan.skew_ms..=world.plan.skew_ms));
        world.open(slot).await;
    }
    let first = world.up(0).await;
    let shared = world.make_dir(&first, "shared").await;
    world.dir.set(shared).expect("it is made once");
    world.make_files(&first).await;
    let mut processes = Vec::new();
    for slot in 0..world.plan.clients {
        for number in 0..world.plan.processes {
            let dir = world.make_dir(&first, &format!("p{slot}{number}")).await;
            processes.push(Process::new(world, slot, number, dir, shared));
        }
    }
    drop(first);
    world.net.set(world.plan.chances.clone());
    let running: Vec<_> = processes.into_iter().map(|process| tokio::spawn(process.run())).collect();
    let events = tokio::spawn(befall(world.clone(), StdRng::seed_from_u64(random.random())));
    let mut trees = Vec::new();
    for process in running {
        trees.push(ended(process.await));
    }
    ended(events.await);
    loop {
        let Some(errand) = world.errands.lock().pop() else { break };
        ended(errand.await);
    }
    end::put_in_order(world, random).await;
    end::judge(world, trees).await;
}

fn ended<T>(task: Result<T, tokio::task::JoinError>) -> T {
    task.unwrap_or_else(|error| std::panic::resume_unwind(error.into_panic()))
}

/// What happens to clients, services and clocks while processes run.
async fn befall(world: Arc<World>, mut random: StdRng) {
    let plan = &world.plan;
    let length = plan.steps as u64 * (plan.think_ms / 2 + 40);
    for _ in 0..plan.events {
        tokio::time::sleep(Duration::from_millis(random.random_range(0..=length / plan.events as u64 * 2))).await;
        let slot = random.random_range(0..plan.clients);
        match random.random_range(0..6) {
            0 | 1 if plan.crashes => {
                world.crash(slot).await;
                if random.random_bool(0.3) {
                    tokio::time::sleep(Duration::from_millis(random.random_range(0..30_000))).await;
                }
                world.open(slot).await;
            }
            2 if plan.pauses => {
                let length = random.random_range(100..30_000);
                world.step(|| format!("client {slot} is held for {length} ms"));
                world.hold(slot, Duration::from_millis(length), Held::Everything);
            }
            2 | 5 if plan.long_pauses && world.errands.lock().len() < ERRANDS_MAX => {
                stand_still(&world, slot, &mut random)
            }
            3 if !plan.outages.is_empty() => {
                let outage: Outage = plan.outages[random.random_range(0..plan.outages.len())];
                let length = random.random_range(100..40_000);
                world.step(|| format!("{outage:?} for {length} ms"));
                world.net.begin(outage, Duration::from_millis(length));
            }
            4 => {
                let skew = random.random_range(-plan.skew_ms..=plan.skew_ms);
                world.step(|| format!("the clock of client {slot} is off by {skew} ms"));
                world.set_skew(slot, skew);
            }
            _ => {
                if let Some(up) = world.up_now(slot) {
                    chores(&world, &up).await;
                }
            }
        }
    }
}

/// What clients do for all, done now by one of them.
async fn chores(world: &World, up: &Up) {
    let slot = up.incarnation.0;
    world.step(|| format!("chores of client {slot}"));
    let remover = Arc::new(end::Remover(up.vfs.data().clone()));
    let (stopper, stop) = stop_signal();
    let meta = up.vfs.meta();
    let chores = async {
        meta.clean_stale_sessions(unheard(Duration::ZERO), &stop).await?;
        meta.clean_up(remover, 2, stop.clone()).await
    };
    let done = tokio::select! {
        biased;
        () = world.gone(up.incarnation) => None,
        done = chores => Some(done),
    };
    drop(stopper);
    if let Some(Err(stop)) = done {
        assert!(world.may_fail(slot), "chores of client {slot}: {stop}");
    }
}

/// A client stands still until its session has ended; meanwhile another one cleans up after it, and counts on.
fn stand_still(world: &Arc<World>, slot: usize, random: &mut StdRng) {
    let length = random.random_range(105_000..170_000);
    let what = if random.random_bool(0.6) { Held::Engine } else { Held::Everything };
    let other = (slot + random.random_range(1..world.plan.clients)) % world.plan.clients;
    let later = Duration::from_millis(random.random_range(61_000..75_000));
    world.step(|| format!("client {slot} stands still for {length} ms: {what:?}"));
    world.hold(slot, Duration::from_millis(length), what);
    let number = ERRANDS + world.errands.lock().len();
    let errand = {
        let world = world.clone();
        async move {
            tokio::time::sleep(later).await;
            let up = world.up(other).await;
            chores(&world, &up).await;
            let dir = *world.dir.get().expect("it was made at the start");
            let mut process = Process::new(&world, other, number, dir, dir);
            for _ in 0..2 {
                process.come_up().await;
                process.count().await;
            }
        }
    };
    world.errands.lock().push(tokio::spawn(errand));
}

fn number(variable: &str) -> Option<u64> {
    let text = std::env::var(variable).ok()?;
    Some(text.parse().unwrap_or_else(|_| panic!("{variable}={text}: a number is wanted")))
}

/// Runs seeds on all processors, the ones after `least` only as long as there is time; answers what failed.
fn run_all(seeds: Vec<u64>, least: u64, time: Duration) -> Vec<String> {
    let threads = std::thread::available_parallelism().map_or(2, |n| n.get()).min(seeds.len().max(1));
    let begun = Instant::now();
    let (next, failed) = (AtomicU64::new(0), Mutex::new(Vec::new()));
    let under_way: Vec<Mutex<Option<(u64, Instant)>>> = (0..threads).map(|_| Mutex::new(None)).collect();
    let (seeds, next, failed, under_way) = (&seeds, &next, &failed, &under_way);
    std::thread::scope(|scope| {
        for mine in under_way {
            scope.spawn(move || {
                loop {
                    if next.load(Ordering::Relaxed) >= least && begun.elapsed() > time {
                        break;
                    }
                    let Some(&seed) = seeds.get(next.fetch_add(1, Ordering::Relaxed) as usize) else { break };
                    *mine.lock() = Some((seed, Instant::now()));
                    if let Err(story) = run(Plan::of(seed)) {
                        eprintln!("{story}");
                        failed.lock().push(story);
                    }
                    *mine.lock() = None;
                }
                *mine.lock() = Some((u64::MAX, Instant::now()));
            });
        }
        while under_way.iter().any(|thread| !matches!(*thread.lock(), Some((u64::MAX, _)))) {
            std::thread::sleep(Duration::from_millis(100));
            for thread in under_way {
                if let Some((seed, since)) = *thread.lock()
                    && seed != u64::MAX
                    && since.elapsed() > STUCK
                {
                    eprintln!("seed {seed} is stuck; SLUICE_SIM_SEED={seed} repeats it");
                    std::process::abort();
                }
            }
        }
    });
    let runs = (next.load(Ordering::Relaxed) as usize).min(seeds.len());
    println!("{runs} runs in {:.1} s on {threads} threads", begun.elapsed().as_secs_f64());
    std::mem::take(&mut *failed.lock())
}

#[test]
fn worlds_of_many_seeds_hold_together() {
    let seeds: Vec<u64> = match number("SLUICE_SIM_SEED") {
        Some(seed) => vec![seed],
        None => {
            let all = std::env::var_os("SLUICE_TEST_ALL").is_some();
            let count = number("SLUICE_SIM_SEEDS").unwrap_or(if all { SEEDS_ALL } else { SEEDS });
            // Ten thousand seeds for each second, so that no two runs take the same ones.
            let start = number("SLUICE_SIM_START").unwrap_or_else(|| SystemClock.now().seconds as u64 * 10_000);
            // What failed once did in memory; where runs take longer, others tell more.
            let again = if is_in_memory() { FAILED_ONCE } else { &[] };
            println!("seeds {start} to {}, and {} that failed once", start + count - 1, again.len());
            again.iter().copied().chain(start..start + count).collect()
        }
    };
    let bounded = !is_in_memory() && number("SLUICE_SIM_SEEDS").is_none();
    let (least, time) =
        if bounded { (REAL_SEEDS_MIN, Duration::from_secs(REAL_SECONDS)) } else { (u64::MAX, Duration::MAX) };
    let failed = run_all(seeds, least, time);
    assert!(failed.is_empty(), "{} runs failed, see above", failed.len());
}

#[test]
fn a_seed_is_a_run() {
    for seed in if is_in_memory() { 1..9 } else { 1..3 } {
        let (first, second) = (run(Plan::of(seed)), run(Plan::of(seed)));
        assert_eq!(first, second, "seed {seed}");
    }
}
