//! What happened lately, to which of very many things: a table of bounded size that forgets.

use std::collections::HashMap;
use std::hash::Hash;
use std::time::Duration;
use tokio::time::Instant;

/// When each key was last noted, for at least `memory` and at most twice that long. It never holds more than `2 * max`
/// keys; what it had to forget early counts as noted.
pub struct Lately<K> {
    memory: Duration,
    max: usize,
    recent: HashMap<K, Instant>,
    before: HashMap<K, Instant>,
    turned: Instant,
    /// When anything was noted last.
    last: Option<Instant>,
    /// Of what was noted earlier nothing is known.
    forgotten: Instant,
}

impl<K: Eq + Hash> Lately<K> {
    pub fn new(memory: Duration, max: usize) -> Lately<K> {
        let now = Instant::now();
        Lately { memory, max, recent: HashMap::new(), before: HashMap::new(), turned: now, last: None, forgotten: now }
    }

    pub fn note(&mut self, key: K) {
        let now = Instant::now();
        let age = now - self.turned;
        if age >= self.memory {
            // Once more as long ago, and what was recent then is of no use either.
            let recent = std::mem::take(&mut self.recent);
            self.before = if age < 2 * self.memory { recent } else { HashMap::new() };
            self.turned = now;
        }
        if self.recent.len() >= self.max {
            self.recent.clear();
            self.forgotten = now;
        }
        self.recent.insert(key, now);
        self.last = Some(now);
    }

    /// Whether anything was noted since then, or may have been.
    pub fn any_since(&self, then: Instant) -> bool {
        self.forgotten > then || self.last.is_some_and(|last| last >= then)
    }

    /// Whether the key was noted since then, or may have been. `then` lies less than `memory` back.
    pub fn since(&self, key: &K, then: Instant) -> bool {
        let after = |at: Option<&Instant>| at.is_some_and(|at| *at >= then);
        self.forgotten > then || after(self.recent.get(key)) || after(self.before.get(key))
    }

    /// Keys held.
    #[cfg(test)]
    pub fn len(&self) -> usize {
        self.recent.len() + self.before.len()
    }

    /// Frees what it holds: nothing was noted lately that matters.
    pub fn clear(&mut self) {
        *self = Lately::new(self.memory, self.max);
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const MEMORY: Duration = Duration::from_secs(5);

    #[tokio::test(start_paused = true)]
    async fn what_was_noted_is_known_for_the_time_and_not_for_ever() {
        let mut lately = Lately::new(MEMORY, 100);
        tokio::time::advance(Duration::from_secs(1)).await;
        let then = Instant::now();
        lately.note(1);
        for second in 0..20 {
            assert!(lately.since(&1, then) || second > 5, "after {second} seconds");
            assert!(!lately.since(&7, then));
            tokio::time::advance(Duration::from_secs(1)).await;
            lately.note(2);
        }
        assert!(!lately.since(&1, then), "it forgets");
        assert!(!lately.since(&2, Instant::now() + Duration::from_secs(1)), "since then, not ever");
        assert!(lately.any_since(then) && !lately.any_since(Instant::now() + Duration::from_secs(1)));
    }

    #[tokio::test(start_paused = true)]
    async fn what_is_forgotten_early_may_be_anything() {
        let mut lately = Lately::new(MEMORY, 10);
        tokio::time::advance(Duration::from_secs(1)).await;
        let then = Instant::now();
        tokio::time::advance(Duration::from_secs(1)).await;
        (0..11).for_each(|key| lately.note(key));
        assert!(lately.len() <= 20);
        assert!(lately.since(&77, then) && lately.since(&1, then), "before it forgot");
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!lately.since(&77, Instant::now()));
        lately.clear();
        tokio::time::advance(Duration::from_secs(1)).await;
        assert!(!lately.since(&10, Instant::now()));
    }
}
