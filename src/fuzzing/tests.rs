//! The short run of every harness: the corpus, everything that can happen to one byte of it, then damage at random until
//! the time is up. Each run has another seed, which is printed; `SLUICE_FUZZ_SEED` repeats it, and
//! `SLUICE_FUZZ_SECONDS` makes the run longer or shorter. What fails is printed as well, to be put into the corpus.

use super::{HARNESSES, Harness, mutate};
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::alloc::{GlobalAlloc, Layout, System};
use std::cell::Cell;
use std::panic::{AssertUnwindSafe, catch_unwind};
use std::time::{Duration, Instant};

/// All harnesses together, unless asked otherwise.
const SECONDS: u64 = 29;
/// What one input may allocate at a time beyond 64 times its own length: two blocks as they are tried here, and some.
const BYTES_MAX: usize = 8 << 20;
/// Time of the processor for one input; the usual is a thousandth of it, in a build that is not optimised.
const CPU_MAX: Duration = Duration::from_secs(2);

/// Counts what each thread holds, and the most it has held.
struct Counting;

thread_local! {
    static HELD: Cell<isize> = const { Cell::new(0) };
    static MOST: Cell<isize> = const { Cell::new(0) };
}

fn count(bytes: isize) {
    // Threads that are ending have no counters any more.
    let _ = HELD.try_with(|held| {
        held.set(held.get() + bytes);
        MOST.try_with(|most| most.set(most.get().max(held.get())))
    });
}

// SAFETY: all is left to the system's allocator.
unsafe impl GlobalAlloc for Counting {
    unsafe fn alloc(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as asked of us.
        unsafe { System.alloc(layout) }
    }

    unsafe fn alloc_zeroed(&self, layout: Layout) -> *mut u8 {
        count(layout.size() as isize);
        // SAFETY: as asked of us.
        unsafe { System.alloc_zeroed(layout) }
    }

    unsafe fn dealloc(&self, pointer: *mut u8, layout: Layout) {
        count(-(layout.size() as isize));
        // SAFETY: as asked of us.
        unsafe { System.dealloc(pointer, layout) }
    }

    unsafe fn realloc(&self, pointer: *mut u8, layout: Layout, size: usize) -> *mut u8 {
        count(size as isize - layout.size() as isize);
        // SAFETY: as asked of us.
        unsafe { System.realloc(pointer, layout, size) }
    }
}

#[global_allocator]
static ALLOCATOR: Counting = Counting;

fn cpu_time() -> Duration {
    let mut time = libc::timespec { tv_sec: 0, tv_nsec: 0 };
    // SAFETY: the call fills the time that it is given.
    let failed = unsafe { libc::clock_gettime(libc::CLOCK_THREAD_CPUTIME_ID, &mut time) };
    assert_eq!(failed, 0, "every thread has a clock");
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// What is wrong with how the harness took the input.
fn complaint(harness: &Harness, input: &[u8]) -> Option<String> {
    let (cpu, held) = (cpu_time(), HELD.get());
    MOST.set(held);
    let result = catch_unwind(AssertUnwindSafe(|| (harness.run)(input)));
    let (cpu, most) = (cpu_time() - cpu, (MOST.get() - held) as usize);
    match result {
        Err(panic) => {
            let text = panic.downcast_ref::<String>().map(String::as_str);
            let text = text.or_else(|| panic.downcast_ref::<&str>().copied()).unwrap_or("no text");
            Some(format!("panics: {text}"))
        }
        Ok(()) if cpu > CPU_MAX => Some(format!("takes {cpu:?}")),
        Ok(()) if most > BYTES_MAX + 64 * input.len() => Some(format!("takes {most} bytes")),
        Ok(()) => None,
    }
}

/// The complaints of a run, the first of each harness.
struct Run {
    seed: u64,
    complaints: Vec<String>,
}

impl Run {
    /// False once the harness has failed: the next inputs would say the same.
    fn check(&mut self, harness: &Harness, input: &[u8]) -> bool {
        let Some(complaint) = complaint(harness, input) else { return true };
        self.complaints.push(format!(
            "{} (SLUICE_FUZZ_SEED={}) {complaint}\non {} bytes: \"{}\"",
            harness.name,
            self.seed,
            input.len(),
            input[..input.len().min(2000)].escape_ascii(),
        ));
        false
    }

    fn give(&mut self, harness: &Harness, share: Duration, rng: &mut StdRng) {
        let started = Instant::now();
        let corpus = (harness.corpus)();
        if !self.check(harness, &[]) || !corpus.iter().all(|input| self.check(harness, input)) {
            return;
        }
        // At most half of the time for the places in their order; from an input of the seed's choosing, so that all are
        // met by and by.
        let (mut tried, mut first) = (0u64, if corpus.is_empty() { 0 } else { rng.random_range(0..corpus.len()) });
        for _ in 0..corpus.len() {
            for input in mutate::every(&corpus[first]) {
                if started.elapsed() > share / 2 {
                    break;
                }
                if !self.check(harness, &input) {
                    return;
                }
                tried += 1;
            }
            first = (first + 1) % corpus.len();
        }
        let in_order = tried;
        while started.elapsed() < share {
            if !self.check(harness, &mutate::some(rng, &corpus)) {
                return;
            }
            tried += 1;
        }
        eprintln!("{:14} {:7} in order, {:7} at random", harness.name, in_order, tried - in_order);
    }
}

fn variable(name: &str) -> Option<u64> {
    let value = std::env::var(name).ok()?;
    Some(value.parse().unwrap_or_else(|_| panic!("{name}={value} is not a number")))
}

#[test]
fn no_decoder_is_brought_down() {
    let seed = variable("SLUICE_FUZZ_SEED").unwrap_or_else(|| rand::rng().random());
    let time = Duration::from_secs(variable("SLUICE_FUZZ_SECONDS").unwrap_or(SECONDS));
    let share = time / HARNESSES.len() as u32;
    eprintln!("SLUICE_FUZZ_SEED={seed}");
    let mut run = Run { seed, complaints: Vec::new() };
    for (number, harness) in HARNESSES.iter().enumerate() {
        run.give(harness, share, &mut StdRng::seed_from_u64(seed.wrapping_add(number as u64)));
    }
    assert!(run.complaints.is_empty(), "{}", run.complaints.join("\n"));
}

/// Every byte another one and every length, of every record in the corpus. (Of the other harnesses the short run does
/// as much as it has time for.)
#[test]
fn no_record_minds_a_flipped_bit_or_a_cut() {
    const STORED: [&str; 15] = [
        "attr",
        "node_row",
        "sql_row",
        "slices",
        "delayed",
        "acl_rule",
        "acl_xattr",
        "plock",
        "name",
        "setting",
        "sealed",
        "session_info",
        "redis_reply",
        "redis_name",
        "block_name",
    ];
    /// Of longer records one bit of each byte.
    const ALL_BITS_BYTES_MAX: usize = 200;
    let mut run = Run { seed: 0, complaints: Vec::new() };
    let mut met = 0;
    for harness in HARNESSES.iter().filter(|harness| STORED.contains(&harness.name)) {
        met += 1;
        let (started, mut tried) = (cpu_time(), 0);
        'inputs: for input in (harness.corpus)() {
            for at in 0..input.len() {
                let all = input.len() <= ALL_BITS_BYTES_MAX;
                let bits = (0..8).map(|bit| 1u8 << bit).filter(|bit| all || *bit == 1 << (at % 8));
                for pattern in bits.chain([0xFF]) {
                    let mut flipped = input.clone();
                    flipped[at] ^= pattern;
                    tried += 1;
                    if !run.check(harness, &flipped) {
                        break 'inputs;
                    }
                }
                tried += 1;
                if !run.check(harness, &input[..at]) {
                    break 'inputs;
                }
            }
        }
        eprintln!("{:14} {tried:7} in {:?}", harness.name, cpu_time() - started);
    }
    assert_eq!(met, STORED.len());
    assert!(run.complaints.is_empty(), "{}", run.complaints.join("\n"));
}

#[test]
fn every_harness_has_a_file_for_cargo_fuzz() {
    let targets = std::path::Path::new(env!("CARGO_MANIFEST_DIR")).join("fuzz/fuzz_targets");
    let manifest = std::fs::read_to_string(targets.join("../Cargo.toml")).expect("the manifest of fuzz/");
    for harness in HARNESSES {
        let name = harness.name;
        let target = std::fs::read_to_string(targets.join(format!("{name}.rs"))).expect(name);
        assert!(target.contains(&format!("\"{name}\"")), "fuzz_targets/{name}.rs");
        assert!(manifest.contains(&format!("name = \"{name}\"")), "{name} in fuzz/Cargo.toml");
    }
}
