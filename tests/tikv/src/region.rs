//! Regions: who answers for which keys, and whether a client's idea of that is out of date.
//!
//! A request is refused as TiKV refuses it, so that a fault is a change of the regions and heals as it would there:
//! the client asks PD again. PD speaks of keys in their memcomparable form, the requests of the keys themselves.

use crate::mvcc::Key;
use crate::proto::{
    Context, EpochNotMatch, KeyNotInRegion, NotLeader, Peer, Region, RegionEpoch, RegionError, RegionNotFound,
    StoreNotMatch,
};

/// One region. An empty `end` has no end.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Area {
    pub id: u64,
    pub start: Key,
    pub end: Key,
    pub version: u64,
    /// The number of the store that answers, from 1.
    pub leader: u64,
}

impl Area {
    pub fn contains(&self, key: &[u8]) -> bool {
        *self.start <= *key && (self.end.is_empty() || *key < *self.end)
    }

    /// The end of what lies in both this region and a range up to `end`.
    pub fn end_within<'a>(&'a self, end: &'a [u8]) -> &'a [u8] {
        match (self.end.is_empty(), end.is_empty()) {
            (true, _) => end,
            (false, true) => &self.end,
            (false, false) => (&*self.end).min(end),
        }
    }

    pub fn start_within<'a>(&'a self, start: &'a [u8]) -> &'a [u8] {
        (&*self.start).max(start)
    }

    fn epoch(&self) -> RegionEpoch {
        RegionEpoch { conf_ver: 1, version: self.version }
    }

    fn peer(&self, store: u64) -> Peer {
        Peer { id: self.id * 100 + store, store_id: store }
    }

    pub fn leader(&self) -> Peer {
        self.peer(self.leader)
    }

    pub fn describe(&self, stores: u64) -> Region {
        let end_key = if self.end.is_empty() { Vec::new() } else { encode(&self.end) };
        let start_key = if self.start.is_empty() { Vec::new() } else { encode(&self.start) };
        let peers = (1..=stores).map(|store| self.peer(store)).collect();
        Region { id: self.id, start_key, end_key, region_epoch: Some(self.epoch()), peers }
    }
}

/// All regions, by their start.
#[derive(Debug)]
pub struct Regions {
    areas: Vec<Area>,
    next_id: u64,
    stores: u64,
}

impl Regions {
    pub fn new(stores: u64) -> Regions {
        let whole = Area { id: 2, start: Vec::new(), end: Vec::new(), version: 1, leader: 1 };
        Regions { areas: vec![whole], next_id: 3, stores }
    }

    pub fn stores(&self) -> u64 {
        self.stores
    }

    pub fn all(&self) -> &[Area] {
        &self.areas
    }

    fn fresh_id(&mut self) -> u64 {
        self.next_id += 1;
        self.next_id - 1
    }

    pub fn by_key(&self, key: &[u8]) -> &Area {
        let after = self.areas.partition_point(|area| *area.start <= *key);
        &self.areas[after - 1]
    }

    pub fn by_id(&self, id: u64) -> Option<&Area> {
        self.areas.iter().find(|area| area.id == id)
    }

    fn change(&mut self, id: u64, change: impl FnOnce(&mut Area)) {
        if let Some(area) = self.areas.iter_mut().find(|area| area.id == id) {
            change(area);
        }
    }

    /// The right part keeps the number, as TiKV splits by default; the left one is led by the next store.
    pub fn split_at(&mut self, key: &[u8]) {
        let at = self.areas.partition_point(|area| *area.start <= *key) - 1;
        if *self.areas[at].start == *key {
            return;
        }
        let mut left = self.areas[at].clone();
        left.id = self.fresh_id();
        left.end = key.to_vec();
        left.version += 1;
        left.leader = left.leader % self.stores + 1;
        let right = &mut self.areas[at];
        right.start = key.to_vec();
        right.version += 1;
        self.areas.insert(at, left);
    }

    /// What every client knows of this region is stale from now on.
    pub fn outdate(&mut self, id: u64) {
        self.change(id, |area| area.version += 1);
    }

    /// The region lives on with another number, as if it had been merged into another one.
    pub fn replace(&mut self, id: u64) {
        let fresh = self.fresh_id();
        self.change(id, |area| {
            area.id = fresh;
            area.version += 1;
        });
    }

    /// With one store alone nothing changes.
    pub fn move_leader(&mut self, id: u64) {
        let stores = self.stores;
        self.change(id, |area| area.leader = area.leader % stores + 1);
    }

    /// The region that a request means, if the store it went to may answer.
    pub fn check(&self, context: Option<&Context>, store: u64, keys: &[&[u8]]) -> Result<Area, RegionError> {
        let context = context.cloned().unwrap_or_default();
        let asked_store = context.peer.as_ref().map_or(0, |peer| peer.store_id);
        if asked_store != store {
            return Err(RegionError {
                message: format!("to store id {asked_store}, mine {store}"),
                store_not_match: Some(StoreNotMatch { request_store_id: asked_store, actual_store_id: store }),
                ..RegionError::default()
            });
        }
        let region_id = context.region_id;
        let Some(area) = self.by_id(region_id) else {
            return Err(RegionError {
                message: format!("region {region_id} is missing"),
                region_not_found: Some(RegionNotFound { region_id }),
                ..RegionError::default()
            });
        };
        if area.leader != store {
            return Err(not_leader(region_id, Some(area.leader())));
        }
        if context.region_epoch != Some(area.epoch()) {
            return Err(RegionError {
                message: format!("EpochNotMatch: region {region_id} is at {:?}", area.epoch()),
                epoch_not_match: Some(EpochNotMatch { current_regions: vec![area.describe(self.stores)] }),
                ..RegionError::default()
            });
        }
        match keys.iter().find(|key| !area.contains(key)) {
            Some(key) => Err(RegionError {
                message: format!("key {key:?} is not in region {region_id}"),
                key_not_in_region: Some(KeyNotInRegion { key: encode(key), region_id }),
                ..RegionError::default()
            }),
            None => Ok(area.clone()),
        }
    }
}

pub fn not_leader(region_id: u64, leader: Option<Peer>) -> RegionError {
    RegionError {
        message: format!("peer is not leader for region {region_id}"),
        not_leader: Some(NotLeader { region_id, leader }),
        ..RegionError::default()
    }
}

const GROUP: usize = 8;

/// Groups of eight bytes, each followed by a byte that tells how many of them count: sorts as the key itself does.
pub fn encode(key: &[u8]) -> Vec<u8> {
    let mut out = Vec::with_capacity((key.len() / GROUP + 1) * (GROUP + 1));
    for at in (0..=key.len()).step_by(GROUP) {
        let group = &key[at..key.len().min(at + GROUP)];
        out.extend_from_slice(group);
        out.resize(out.len() + GROUP - group.len(), 0);
        out.push(0xff - (GROUP - group.len()) as u8);
    }
    out
}

/// `None` if that is no encoded key. The empty key, which PD takes for the first one, stays empty.
pub fn decode(encoded: &[u8]) -> Option<Key> {
    let mut key = Vec::new();
    for chunk in encoded.chunks(GROUP + 1) {
        let (marker, group) = chunk.split_last().filter(|(_, group)| group.len() == GROUP)?;
        let padding = usize::from(0xff - marker);
        key.extend_from_slice(group.get(..GROUP.checked_sub(padding)?)?);
    }
    Some(key)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn encoded_keys_are_those_of_tikv_and_come_back() {
        assert_eq!(encode(b""), [0, 0, 0, 0, 0, 0, 0, 0, 247]);
        assert_eq!(encode(&[1, 2, 3]), [1, 2, 3, 0, 0, 0, 0, 0, 250]);
        assert_eq!(encode(&[1; 8]), [1, 1, 1, 1, 1, 1, 1, 1, 255, 0, 0, 0, 0, 0, 0, 0, 0, 247]);
        for bytes in [0, 1, 7, 8, 9, 16, 23] {
            let key = vec![0xfd; bytes];
            assert_eq!(decode(&encode(&key)), Some(key));
        }
        assert_eq!(decode(b"plain"), None);
        assert_eq!(decode(b""), Some(Vec::new()));
    }

    #[test]
    fn a_split_leaves_no_gap_and_outdates_both_parts() {
        let mut regions = Regions::new(2);
        regions.split_at(b"m");
        regions.split_at(b"m");
        regions.split_at(b"t");
        let ends: Vec<(&[u8], &[u8])> = regions.all().iter().map(|area| (&*area.start, &*area.end)).collect();
        assert_eq!(ends, [(&b""[..], &b"m"[..]), (b"m", b"t"), (b"t", b"")]);
        assert_eq!(regions.by_key(b"m").start, b"m");
        assert_eq!(regions.by_key(b"zz").id, 2);
        assert!(regions.all().iter().all(|area| area.version > 1));
    }

    #[test]
    fn stale_requests_are_refused_in_the_order_of_tikv() {
        let mut regions = Regions::new(2);
        let area = regions.by_key(b"k").clone();
        let context = Context {
            region_id: area.id,
            region_epoch: Some(area.epoch()),
            peer: Some(area.leader()),
            resolved_locks: Vec::new(),
        };
        assert_eq!(regions.check(Some(&context), 1, &[b"k"]), Ok(area.clone()));
        assert!(regions.check(Some(&context), 2, &[]).is_err_and(|error| error.store_not_match.is_some()));
        regions.move_leader(area.id);
        assert!(regions.check(Some(&context), 1, &[]).is_err_and(|error| error.not_leader.is_some()));
        regions.move_leader(area.id);
        regions.split_at(b"z");
        assert!(regions.check(Some(&context), 1, &[]).is_err_and(|error| error.epoch_not_match.is_some()));
        regions.replace(area.id);
        assert!(regions.check(Some(&context), 1, &[]).is_err_and(|error| error.region_not_found.is_some()));
    }
}
