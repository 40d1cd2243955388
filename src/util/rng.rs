//! Randomness, drawn in one place so that any run can be repeated: code asks here and never the system. A thread that a
//! test has seeded gets the numbers of its seed; everybody else gets the system's.

use rand::distr::uniform::{SampleRange, SampleUniform};
use rand::{Rng, RngCore};

#[cfg(test)]
thread_local! {
    static SEEDED: std::cell::RefCell<Option<rand::rngs::StdRng>> = const { std::cell::RefCell::new(None) };
}

/// From now on this thread draws the numbers of `seed`; `None`: the system's again.
#[cfg(test)]
pub fn seed_thread(seed: Option<u64>) {
    use rand::SeedableRng;
    SEEDED.with_borrow_mut(|seeded| *seeded = seed.map(rand::rngs::StdRng::seed_from_u64));
}

/// Whether all that happens on this thread is to be the same for the same seed. Work on other threads is not: it ends
/// at another moment each time.
#[cfg(test)]
pub fn is_seeded() -> bool {
    SEEDED.with_borrow(|seeded| seeded.is_some())
}

#[cfg(not(test))]
pub const fn is_seeded() -> bool {
    false
}

fn draw<T>(from: impl FnOnce(&mut dyn RngCore) -> T) -> T {
    #[cfg(test)]
    {
        SEEDED.with_borrow_mut(|seeded| match seeded {
            Some(seeded) => from(seeded),
            None => from(&mut rand::rng()),
        })
    }
    #[cfg(not(test))]
    from(&mut rand::rng())
}

/// A number of the range, all equally likely.
pub fn random_range<T: SampleUniform>(range: impl SampleRange<T>) -> T {
    draw(|random| random.random_range(range))
}

/// Sixty-four random bits.
pub fn random() -> u64 {
    draw(|random| random.next_u64())
}
