//! Who waits for which pessimistic lock, and whether they wait for each other in a circle.

use std::collections::HashMap;

use tokio::sync::oneshot;

use crate::mvcc::{Key, Released, Ts};

#[derive(Debug)]
struct Waiter {
    start_ts: Ts,
    wake: oneshot::Sender<Woken>,
}

/// A lock has gone. TiKV lets the oldest transaction try first, the others a little later.
#[derive(Clone, Debug)]
pub struct Woken {
    pub released: Released,
    pub first: bool,
}

#[derive(Debug, Default)]
pub struct Waiting {
    by_key: HashMap<Key, Vec<Waiter>>,
    /// The transactions that each one waits for; several, when it locks keys of several regions at once.
    edges: HashMap<Ts, Vec<Ts>>,
}

impl Waiting {
    fn reaches(&self, from: Ts, to: Ts) -> bool {
        let mut seen = Vec::new();
        let mut next = vec![from];
        while let Some(ts) = next.pop() {
            if ts == to {
                return true;
            }
            if !seen.contains(&ts) {
                seen.push(ts);
                next.extend(self.edges.get(&ts).into_iter().flatten());
            }
        }
        false
    }

    /// `None` is a deadlock: the holder waits for this transaction already.
    pub fn wait(&mut self, start_ts: Ts, key: &[u8], holder: Ts) -> Option<oneshot::Receiver<Woken>> {
        if self.reaches(holder, start_ts) {
            return None;
        }
        let (wake, woken) = oneshot::channel();
        self.edges.entry(start_ts).or_default().push(holder);
        self.by_key.entry(key.to_vec()).or_default().push(Waiter { start_ts, wake });
        Some(woken)
    }

    /// This transaction does not wait for the holder any more, for whatever reason.
    pub fn leave(&mut self, start_ts: Ts, key: &[u8], holder: Ts) {
        if let Some(holders) = self.edges.get_mut(&start_ts) {
            if let Some(at) = holders.iter().position(|ts| *ts == holder) {
                holders.swap_remove(at);
            }
            if holders.is_empty() {
                self.edges.remove(&start_ts);
            }
        }
        if let Some(waiters) = self.by_key.get_mut(key) {
            waiters.retain(|waiter| !waiter.wake.is_closed());
            if waiters.is_empty() {
                self.by_key.remove(key);
            }
        }
    }

    pub fn release(&mut self, released: &Released) {
        let mut waiters = self.by_key.remove(&released.key).unwrap_or_default();
        waiters.sort_by_key(|waiter| waiter.start_ts);
        for (at, waiter) in waiters.into_iter().enumerate() {
            // One that has given up meanwhile does not listen.
            let _ = waiter.wake.send(Woken { released: released.clone(), first: at == 0 });
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_circle_is_found_and_a_queue_is_not_one() {
        let mut waiting = Waiting::default();
        let first = waiting.wait(10, b"a", 20);
        let second = waiting.wait(20, b"b", 30);
        assert!(first.is_some() && second.is_some());
        assert!(waiting.wait(30, b"c", 10).is_none());
        assert!(waiting.wait(40, b"a", 20).is_some());
        waiting.leave(20, b"b", 30);
        assert!(waiting.wait(30, b"c", 10).is_some());
    }

    #[test]
    fn the_oldest_transaction_is_woken_first() {
        let mut waiting = Waiting::default();
        let mut young = waiting.wait(30, b"k", 10).unwrap();
        let mut old = waiting.wait(20, b"k", 10).unwrap();
        waiting.release(&Released { key: b"k".to_vec(), start_ts: 10, commit_ts: 15 });
        assert!(old.try_recv().unwrap().first);
        assert!(!young.try_recv().unwrap().first);
    }
}
