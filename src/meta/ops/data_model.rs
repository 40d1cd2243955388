//! A test: random writes, truncates, punches, copies and compactions on two files, compared byte by byte with a model
//! that knows nothing of chunks. Offsets lie around the borders of chunks, where the arithmetic is.

use super::compact::{Replaced, plan_compaction};
use super::slices::chunk_start;
use crate::base::slice::resolve;
use crate::base::{CHUNK_BYTES, ChunkIndex, Errno, Ino, Slice, SliceId, Timestamp};
use crate::meta::check::check;
use crate::meta::engine::Scan;
use crate::meta::record::{Key, Record};
use crate::meta::testing::{block_on, cases, file, lossy_volume, references, rows, volume};
use crate::meta::{Caller, Meta};
use proptest::prelude::*;
use std::collections::{BTreeMap, HashMap};

#[derive(Clone, Debug)]
enum Step {
    Write { file: usize, at: u64, len: u32 },
    Truncate { file: usize, length: u64 },
    Punch { file: usize, at: u64, len: u64 },
    Zero { file: usize, at: u64, len: u64 },
    Copy { from: usize, at: u64, to: usize, to_at: u64, len: u64 },
    Compact { file: usize, index: u32 },
}

/// Within 40 bytes of one of the first borders.
fn offset() -> impl Strategy<Value = u64> {
    (0u64..4, 0u64..80).prop_map(|(chunk, at)| (chunk * CHUNK_BYTES + at).saturating_sub(40))
}

fn length() -> impl Strategy<Value = u64> {
    prop_oneof![3 => 1u64..60, 1 => (0u64..3, 0u64..60).prop_map(|(chunks, more)| chunks * CHUNK_BYTES + more + 1)]
}

fn step() -> impl Strategy<Value = Step> {
    prop_oneof![
        4 => (0usize..2, offset(), 1u32..60).prop_map(|(file, at, len)| Step::Write { file, at, len }),
        2 => (0usize..2, offset()).prop_map(|(file, length)| Step::Truncate { file, length }),
        1 => (0usize..2, offset(), length()).prop_map(|(file, at, len)| Step::Punch { file, at, len }),
        1 => (0usize..2, offset(), length()).prop_map(|(file, at, len)| Step::Zero { file, at, len }),
        2 => (0usize..2, offset(), 0usize..2, offset(), length())
            .prop_map(|(from, at, to, to_at, len)| Step::Copy { from, at, to, to_at, len }),
        2 => (0usize..2, 0u32..4).prop_map(|(file, index)| Step::Compact { file, index }),
    ]
}

/// The bytes of a file that are not zero, and its length.
#[derive(Clone, Debug, Default, PartialEq)]
struct Model {
    bytes: BTreeMap<u64, u8>,
    length: u64,
}

impl Model {
    fn clear(&mut self, from: u64, to: u64) {
        self.bytes.retain(|at, _| *at < from || *at >= to);
    }
}

struct World {
    meta: std::sync::Arc<Meta>,
    files: [Ino; 2],
    models: [Model; 2],
    /// The bytes of each slice that are not zero: what the object store would hold.
    slices: HashMap<SliceId, BTreeMap<u32, u8>>,
}

impl World {
    async fn take(&mut self, step: &Step) {
        let (meta, root) = (self.meta.clone(), Caller::root());
        match *step {
            Step::Write { file, at, len } => {
                let mut put = Vec::new();
                let end = at + u64::from(len);
                let mut from = at;
                while from < end {
                    let index = ChunkIndex((from / CHUNK_BYTES) as u32);
                    let len = (end.min(chunk_start(index) + CHUNK_BYTES) - from) as u32;
                    let id = meta.next_slice().await.unwrap();
                    let byte = |i: u32| (id.0 * 31 + u64::from(i)) as u8 | 1;
                    self.slices.insert(id, (0..len).map(|i| (i, byte(i))).collect());
                    self.models[file].bytes.extend((0..len).map(|i| (from + u64::from(i), byte(i))));
                    put.push((index, Slice { pos: (from - chunk_start(index)) as u32, id, size: len, off: 0, len }));
                    from += u64::from(len);
                }
                self.models[file].length = self.models[file].length.max(end);
                meta.append_slices(self.files[file], put, Timestamp::new(1, 0)).await.unwrap();
            }
            Step::Truncate { file, length } => {
                meta.truncate(&root, self.files[file], length, true).await.unwrap();
                self.models[file].clear(length, u64::MAX);
                self.models[file].length = length;
            }
            Step::Punch { file, at, len } => {
                let mode = (libc::FALLOC_FL_PUNCH_HOLE | libc::FALLOC_FL_KEEP_SIZE) as u32;
                meta.fallocate(&root, self.files[file], mode, at, len).await.unwrap();
                self.models[file].clear(at, at + len);
            }
            Step::Zero { file, at, len } => {
                meta.fallocate(&root, self.files[file], libc::FALLOC_FL_ZERO_RANGE as u32, at, len).await.unwrap();
                self.models[file].clear(at, at + len);
                self.models[file].length = self.models[file].length.max(at + len);
            }
            Step::Copy { from, at, to, to_at, len } => {
                let result = meta.copy_range(&root, self.files[from], at, self.files[to], to_at, len).await;
                if from == to && at < to_at + len && to_at < at + len {
                    assert_eq!(result.unwrap_err().errno(), Errno::EINVAL);
                    return;
                }
                let len = len.min(self.models[from].length.saturating_sub(at));
                if len > 0 {
                    let moved: Vec<_> =
                        self.models[from].bytes.range(at..at + len).map(|(i, byte)| (i - at + to_at, *byte)).collect();
                    let model = &mut self.models[to];
                    model.clear(to_at, to_at + len);
                    model.bytes.extend(moved);
                    model.length = model.length.max(to_at + len);
                }
                assert_eq!(result.unwrap(), (len, self.models[to].length));
            }
            Step::Compact { file, index } => {
                let (ino, index) = (self.files[file], ChunkIndex(index));
                let records = meta.read_chunk(ino, index).await.unwrap();
                let Some(plan) = plan_compaction(&records) else { return };
                let id = meta.next_slice().await.unwrap();
                let bytes = plan.pieces.iter().flat_map(|piece| {
                    self.shown(piece).map(move |(at, byte)| (at - plan.pos, byte)).collect::<Vec<_>>()
                });
                let bytes: BTreeMap<u32, u8> = bytes.collect();
                self.slices.insert(id, bytes);
                let new = Slice { pos: plan.pos, id, size: plan.size, off: 0, len: plan.size };
                let read = &records[..plan.read];
                match meta.replace_slices(meta.session(), ino, index, read, plan.skipped, new).await.unwrap() {
                    Replaced::Done { garbage } => garbage.iter().for_each(|(id, _)| drop(self.slices.remove(id))),
                    Replaced::Changed => panic!("nobody else is here"),
                }
            }
        }
    }

    /// The bytes of a piece that are not zero, by their place in the chunk.
    fn shown(&self, piece: &Slice) -> impl Iterator<Item = (u32, u8)> {
        let piece = *piece;
        let bytes = match piece.is_hole() {
            true => None,
            false => Some(self.slices.get(&piece.id).expect("a slice in use was called garbage")),
        };
        let range = piece.off..piece.off + piece.len;
        bytes
            .into_iter()
            .flat_map(move |b| b.range(range.clone()).map(move |(i, byte)| (i - piece.off + piece.pos, *byte)))
    }

    async fn check(&self) {
        for (ino, model) in self.files.iter().zip(&self.models) {
            let length = self.meta.getattr(*ino).await.unwrap().length;
            let mut bytes = BTreeMap::new();
            for (index, records) in self.meta.read_chunks(*ino, ChunkIndex(0)..ChunkIndex(8)).await.unwrap() {
                for piece in resolve(&records) {
                    let at = |at: u32| chunk_start(index) + u64::from(at);
                    bytes.extend(self.shown(&piece).map(|(i, byte)| (at(i), byte)).filter(|(i, _)| *i < length));
                }
            }
            assert_eq!(Model { bytes, length }, *model);
        }
    }

    /// Each slice is counted as often as records name it.
    async fn check_references(&self) {
        let mut named: BTreeMap<(SliceId, u32), i64> = BTreeMap::new();
        for (_, record) in rows(&self.meta, Scan::Chunks).await {
            if let Record::Slices(records) = record {
                for slice in records.iter().filter(|s| !s.is_hole()) {
                    *named.entry((slice.id, slice.size)).or_default() += 1;
                }
            }
        }
        for (key, record) in rows(&self.meta, Scan::SliceRefs).await {
            if let (Key::SliceRef(id, size), Record::Number(counted)) = (key, record) {
                assert_eq!(counted, named.get(&(id, size)).copied().unwrap_or(0), "references of {id}");
            }
        }
        for ((id, size), count) in named {
            assert_eq!(references(&self.meta, id, size).await, count, "references of {id}");
        }
    }
}

fn run(steps: &[Step], lossy: bool) {
    block_on(async {
        let meta = if lossy { lossy_volume().await } else { volume().await };
        let files = [file(&meta, "a").await, file(&meta, "b").await];
        let mut world = World { meta, files, models: Default::default(), slices: HashMap::new() };
        for step in steps {
            world.take(step).await;
            world.check().await;
        }
        world.check_references().await;
        let report = check(&**world.meta.engine()).await.unwrap();
        assert!(report.is_clean(), "{report}");
    });
}

proptest! {
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: cases(300), ..ProptestConfig::default() })]
    #[test]
    fn files_hold_what_was_put_into_them(steps in proptest::collection::vec(step(), 1..40)) {
        run(&steps, false);
    }
}

proptest! {
    // Few: each lost reply costs a pause.
    #![proptest_config(ProptestConfig { failure_persistence: None, cases: 4, max_shrink_iters: 0, ..ProptestConfig::default() })]
    #[test]
    fn lost_replies_change_nothing(steps in proptest::collection::vec(step(), 10..20)) {
        run(&steps, true);
    }
}
