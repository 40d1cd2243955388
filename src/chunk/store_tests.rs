//! Tests of `ChunkStore` and `SliceWriter` over real stores and caches.

use super::*;
use crate::base::FaultKind;
use crate::cache::{CacheOptions, DiskOptions};
use crate::object::file::FileStore;
use crate::object::layer::fault::{FaultPlan, FaultStore};
use crate::object::mem::MemStore;
use crate::object::{Encryption, Envelope, ObjectStore, StackOptions, stack};

const BLOCK: u32 = 64 << 10;

fn pool() -> Arc<Pool> {
    Pool::new(Budget::new(1 << 30))
}

/// Through all layers, and through a compaction; a tier that the volume does not define is as its own.
#[tokio::test]
async fn blocks_are_stored_as_the_tier_of_their_file_says() {
    let mem = Arc::new(MemStore::new());
    let pool = Pool::new(Budget::new(64 << 20));
    let stacked = stack(vec![mem.clone()], &StackOptions { prefix: "vol/".into(), ..StackOptions::default() });
    let classes = BTreeMap::from([(2, "COLD".to_owned())]);
    let options = ChunkOptions { classes, ..options(Compression::None) };
    let cache = BlockCache::open(&CacheOptions::default(), &pool);
    let store = ChunkStore::new(stacked.store, cache, pool, options);
    for (id, tier) in [(1, 0), (2, 2), (3, 3)] {
        let mut writer = store.writer(Some(SliceId(id)), tier);
        writer.write_at(0, &sample(BLOCK as usize + 5)).unwrap();
        writer.finish().await.unwrap();
    }
    let whole = Slice { pos: 0, id: SliceId(1), size: BLOCK + 5, off: 0, len: 10 };
    store.merge(&[whole], SliceId(4), 2).await.unwrap();
    let class = |id, size, index| {
        mem.class_of(&format!("vol/{}", layout::block_key(SliceId(id), size, BLOCK, index).name(false)))
    };
    for index in 0..2 {
        assert_eq!(class(1, BLOCK + 5, index), None);
        assert_eq!(class(2, BLOCK + 5, index).as_deref(), Some("COLD"));
        assert_eq!(class(3, BLOCK + 5, index), None);
    }
    assert_eq!(class(4, 10, 0).as_deref(), Some("COLD"));
}

fn options(compression: Compression) -> ChunkOptions {
    ChunkOptions { block_size: BLOCK, compression, ..ChunkOptions::default() }
}

fn over(objects: SharedStore, cache_bytes: u64, options: ChunkOptions) -> ChunkStore {
    ChunkStore::new(objects, BlockCache::in_memory(cache_bytes), pool(), options)
}

/// Bytes that differ from place to place, but compress.
fn sample(len: usize) -> Vec<u8> {
    (0..len as u32).map(|i| ((i / 7) ^ (i >> 8)) as u8).collect()
}

async fn write(store: &ChunkStore, id: u64, data: &[u8]) -> u32 {
    let mut writer = store.writer(Some(SliceId(id)), 0);
    for (i, piece) in data.chunks(10_000).enumerate() {
        writer.write_at(i as u32 * 10_000, piece).unwrap();
    }
    writer.finish().await.unwrap()
}

#[tokio::test]
async fn what_was_written_is_read_in_every_encoding() {
    let data = sample(300_000);
    for compression in [Compression::None, Compression::Lz4, Compression::Zstd] {
        let mem = Arc::new(MemStore::new());
        let writer = over(mem.clone(), 0, options(compression));
        assert_eq!(write(&writer, 9, &data).await, 300_000);
        assert_eq!(mem.list("chunks/0/0/9_", "", 99).await.unwrap().len(), 5);
        for cache_bytes in [0, 1 << 20] {
            let store = over(mem.clone(), cache_bytes, options(compression));
            for (off, len) in [(0, 300_000), (0, 1), (65_535, 2), (70_000, 5), (299_999, 1), (100, 200_000), (5, 0)] {
                let bytes = store.read(SliceId(9), 300_000, off, len).await.unwrap();
                assert!(bytes == data[off as usize..(off + len) as usize], "{compression:?} {off}+{len}");
            }
            assert_eq!(store.read(SliceId(9), 300_000, 299_999, 2).await.unwrap_err().kind(), FaultKind::Corrupt);
        }
        writer.remove(SliceId(9), 300_000).await.unwrap();
        assert!(mem.list("", "", 9).await.unwrap().is_empty());
    }
}

#[tokio::test]
async fn holes_are_zeros_and_cost_nothing() {
    let store = over(Arc::new(MemStore::new()), 0, options(Compression::None));
    assert!(store.probe(SliceId(0), 0, 0, 70_000).unwrap() == vec![0; 70_000][..]);
    assert_eq!(store.read(SliceId(0), 0, 5, 3).await.unwrap().len(), 3);
}

#[tokio::test]
async fn a_block_is_loaded_once_for_many_readers() {
    let mem = Arc::new(MemStore::new());
    write(&over(mem.clone(), 0, options(Compression::None)), 1, &sample(BLOCK as usize)).await;
    let slow = FaultPlan { latency_max: Duration::from_millis(200), ..FaultPlan::default() };
    let counted = Arc::new(FaultStore::new(mem, slow, 1));
    let store = over(counted.clone(), 1 << 20, options(Compression::None));
    let first = {
        let store = store.clone();
        tokio::spawn(async move { store.read(SliceId(1), BLOCK, 0, 10).await })
    };
    tokio::time::sleep(Duration::from_millis(1)).await;
    let others: Vec<_> = (0..20)
        .map(|i| {
            let store = store.clone();
            tokio::spawn(async move { store.read(SliceId(1), BLOCK, i * 100, 50).await })
        })
        .collect();
    first.abort();
    for reader in others {
        assert_eq!(reader.await.unwrap().unwrap().len(), 50, "the first reader's end does not end the load");
    }
    assert_eq!(counted.requests(), 1);
    assert!(store.probe(SliceId(1), BLOCK, 5, 1000).is_some());
}

#[tokio::test]
async fn of_an_encrypted_volume_a_small_read_loads_the_block_once() {
    const KEY: &str = include_str!("../object/envelope/testkeys/rsa-pkcs8.pem"); // a test key, it guards nothing
    let pool = pool();
    let mem = Arc::new(MemStore::new());
    let counted = Arc::new(FaultStore::new(mem.clone(), FaultPlan::default(), 1));
    let encryption = Encryption { envelope: Arc::new(Envelope::new("", KEY, None).unwrap()), pool: pool.clone() };
    let sealed = StackOptions { prefix: "v/".into(), encryption: Some(encryption), ..StackOptions::default() };
    let objects = stack(vec![counted.clone()], &sealed).store;
    let data = sample(BLOCK as usize);
    for compression in [Compression::None, Compression::Lz4] {
        write(&over(objects.clone(), 0, options(compression)), 1, &data).await;
        for (cache_bytes, loads) in [(1 << 20, 1), (0, 3)] {
            let store = over(objects.clone(), cache_bytes, options(compression));
            let before = counted.requests();
            for off in [1000, 40_000, 65_000] {
                let part = &data[off as usize..off as usize + 100];
                assert!(store.read(SliceId(1), BLOCK, off, 100).await.unwrap() == *part);
            }
            tokio::time::sleep(Duration::from_millis(50)).await;
            assert_eq!(counted.requests() - before, loads, "{compression:?}, cache of {cache_bytes} bytes");
            assert_eq!(store.metrics().range_reads.load(Ordering::Relaxed), 0);
        }
    }
    // What somebody changed in the bucket is a fault, whatever the codec would make of it.
    let name = format!("v/chunks/0/0/1_0_{BLOCK}");
    let mut bad = mem.get(&name, None).await.unwrap().into_bytes().to_vec();
    *bad.last_mut().unwrap() ^= 1;
    mem.put(&name, bad.into()).await.unwrap();
    let store = over(objects, 1 << 20, options(Compression::Lz4));
    let fault = store.read(SliceId(1), BLOCK, 1000, 100).await.unwrap_err();
    assert_eq!(fault.kind(), FaultKind::Integrity);
}

#[tokio::test]
async fn a_small_read_fetches_its_range_and_the_block_follows() {
    let mem = Arc::new(MemStore::new());
    let data = sample(BLOCK as usize);
    write(&over(mem.clone(), 0, options(Compression::None)), 1, &data).await;
    let store = over(mem, 1 << 20, options(Compression::None));
    assert!(store.read(SliceId(1), BLOCK, 1000, 100).await.unwrap() == data[1000..1100]);
    assert_eq!(store.metrics().range_reads.load(Ordering::Relaxed), 1);
    for _ in 0..200 {
        if store.probe(SliceId(1), BLOCK, 0, BLOCK).is_some() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(store.probe(SliceId(1), BLOCK, 0, BLOCK).unwrap() == data[..]);

    // A local directory is its own cache.
    let dir = tempfile::tempdir().unwrap();
    let files: SharedStore = Arc::new(FileStore::new(dir.path(), pool()));
    assert!(files.capabilities().is_local(), "temporary directories are on a disk of this machine, or in its memory");
    write(&over(files.clone(), 0, options(Compression::None)), 1, &data).await;
    let store = over(files, 1 << 20, options(Compression::None));
    assert!(store.read(SliceId(1), BLOCK, 1000, 100).await.unwrap() == data[1000..1100]);
    tokio::time::sleep(Duration::from_millis(50)).await;
    let metrics = store.metrics();
    assert_eq!((metrics.range_reads.load(Ordering::Relaxed), metrics.prefetches.load(Ordering::Relaxed)), (1, 0));
}

#[tokio::test]
async fn a_short_object_is_a_fault_and_a_long_one_is_cut() {
    let mem = Arc::new(MemStore::new());
    let store = over(mem.clone(), 1 << 20, options(Compression::None));
    let name = "chunks/0/0/1_0_1000";
    mem.put(name, vec![1; 999].into()).await.unwrap();
    assert_eq!(store.read(SliceId(1), 1000, 0, 1000).await.unwrap_err().kind(), FaultKind::Integrity);
    assert_eq!(store.read(SliceId(1), 1000, 990, 10).await.unwrap_err().kind(), FaultKind::Integrity);
    mem.put(name, vec![1; 1001].into()).await.unwrap();
    assert_eq!(store.read(SliceId(1), 1000, 0, 1000).await.unwrap().len(), 1000);
    let missing = store.read(SliceId(2), 1000, 0, 1000).await.unwrap_err();
    assert_eq!(missing.kind(), FaultKind::NotFound);
    assert!(missing.to_string().contains("chunks/0/0/2_0_1000"), "{missing}");
}

#[tokio::test]
async fn what_is_written_in_bulk_is_kept_only_when_that_is_asked_for() {
    for large in [false, true] {
        let options = ChunkOptions { cache_large_write: large, ..options(Compression::None) };
        let store = over(Arc::new(MemStore::new()), 1 << 20, options);
        write(&store, 1, &sample(BLOCK as usize + 5)).await;
        assert_eq!(store.probe(SliceId(1), BLOCK + 5, 0, 9).is_some(), large);
        assert!(store.probe(SliceId(1), BLOCK + 5, BLOCK, 5).is_some(), "a small block");
    }
}

#[tokio::test]
async fn a_hit_in_memory_copies_nothing() {
    let store = over(Arc::new(MemStore::new()), 1 << 20, options(Compression::None));
    write(&store, 1, &sample(BLOCK as usize)).await;
    store.read(SliceId(1), BLOCK, 0, BLOCK).await.unwrap();
    let one = store.probe(SliceId(1), BLOCK, 100, 100).unwrap();
    let two = store.probe(SliceId(1), BLOCK, 100, 100).unwrap();
    let at = |p: &Payload| p.iter().next().unwrap().as_ptr();
    assert_eq!(at(&one), at(&two), "the same bytes in the same place");
}

#[tokio::test]
async fn a_writer_takes_rewrites_gaps_and_a_late_id() {
    let mem = Arc::new(MemStore::new());
    let store = over(mem.clone(), 0, options(Compression::None));
    let mut writer = store.writer(None, 0);
    let mut want = vec![0; 3 * BLOCK as usize + 50];
    let mut put = |writer: &mut SliceWriter, at: usize, data: &[u8]| {
        writer.write_at(at as u32, data).unwrap();
        want[at..at + data.len()].copy_from_slice(data);
    };
    put(&mut writer, 0, &sample(100));
    put(&mut writer, 50, &[9; 20]);
    put(&mut writer, 2 * BLOCK as usize + 7, &[5; 3]); // jumps over a block and more
    put(&mut writer, 10, &[8; 2 * BLOCK as usize]);
    assert!(mem.list("", "", 9).await.unwrap().is_empty(), "nothing goes up without an id");
    assert!(writer.can_accept(0, 10));
    writer.set_id(SliceId(4));
    assert!(!writer.can_accept(0, 10), "the first blocks are being uploaded");
    assert!(writer.write_at(5, &[1]).is_err());
    assert!(writer.can_accept(2 * BLOCK, 10) && writer.can_accept(writer.len(), 10));
    assert!(!writer.can_accept(writer.len() + 1, 1), "no gaps by choice");
    put(&mut writer, 3 * BLOCK as usize, &[7; 50]);
    assert_eq!(writer.finish().await.unwrap() as usize, want.len());
    assert!(store.read(SliceId(4), want.len() as u32, 0, want.len() as u32).await.unwrap() == want[..]);
    assert!(store.writer(None, 0).write_at(SLICE_MAX - 1, &[1, 2]).is_err());
    assert_eq!(store.writer(None, 0).finish().await.unwrap(), 0);
}

const SLICE_MAX: u32 = crate::chunk::SLICE_BYTES_MAX;

#[tokio::test]
async fn a_failed_or_dropped_slice_leaves_no_objects() {
    let mem = Arc::new(MemStore::new());
    let faulty = Arc::new(FaultStore::new(mem.clone(), FaultPlan { after: 1.0, ..FaultPlan::default() }, 1));
    let store = over(faulty.clone(), 0, options(Compression::None));
    let mut writer = store.writer(Some(SliceId(1)), 0);
    writer.write_at(0, &sample(3 * BLOCK as usize + 5)).unwrap();
    assert_eq!(writer.finish().await.unwrap_err().kind(), FaultKind::Unavailable);
    faulty.set_plan(FaultPlan::default());

    let mut dropped = store.writer(Some(SliceId(2)), 0);
    dropped.write_at(0, &sample(2 * BLOCK as usize)).unwrap();
    tokio::time::sleep(Duration::from_millis(20)).await;
    dropped.abort();
    for _ in 0..200 {
        if mem.list("", "", 9).await.unwrap().is_empty() {
            break;
        }
        tokio::time::sleep(Duration::from_millis(5)).await;
    }
    assert!(mem.list("", "", 9).await.unwrap().is_empty());
    assert_eq!(store.budget().used(), 0, "all buffers are given back");
}

#[tokio::test]
async fn merging_joins_pieces_and_fills_holes() {
    let store = over(Arc::new(MemStore::new()), 1 << 20, options(Compression::Lz4));
    let (one, two) = (sample(100_000), vec![3; 50_000]);
    write(&store, 1, &one).await;
    write(&store, 2, &two).await;
    let pieces = [
        Slice { pos: 1000, id: SliceId(1), size: 100_000, off: 10, len: 90_000 },
        Slice::hole(91_000, 70_000),
        Slice { pos: 161_000, id: SliceId(2), size: 50_000, off: 49_000, len: 1000 },
    ];
    let size = store.merge(&pieces, SliceId(3), 0).await.unwrap();
    let want = [&one[10..90_010], &vec![0; 70_000], &two[49_000..]].concat();
    assert_eq!(size as usize, want.len());
    assert!(store.read(SliceId(3), size, 0, size).await.unwrap() == want[..]);
    assert_eq!(store.merge(&[], SliceId(4), 0).await.unwrap(), 0);
}

/// Where the store's disk is the cache's: nothing is copied there unless somebody asks for it.
#[tokio::test]
async fn what_lies_on_the_disk_already_is_not_copied() {
    for copy_to_disk in [false, true] {
        let (objects, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
        let files: SharedStore = Arc::new(FileStore::new(objects.path(), pool()));
        let dirs = vec![disk.path().into()];
        let on_disk = DiskOptions { dirs, uuid: "u".into(), free_space_ratio: 0.0, ..DiskOptions::default() };
        let cache = BlockCache::open(&CacheOptions { disk: Some(on_disk), ..CacheOptions::default() }, &pool());
        let options = ChunkOptions { copy_to_disk, ..options(Compression::None) };
        let store = ChunkStore::new(files, cache.clone(), pool(), options);
        let data = sample(100_000);
        write(&store, 1, &data).await;
        assert!(store.read(SliceId(1), 100_000, 0, 100_000).await.unwrap() == data[..]);
        cache.flush().await;
        assert_eq!(cache.disk_usage().0, if copy_to_disk { 2 } else { 0 });
        assert_eq!(store.warm_up(SliceId(1), 100_000).await.unwrap() > 0, !copy_to_disk);
        assert_eq!(cache.disk_usage().0, 2);
    }
}

#[tokio::test]
async fn the_disk_cache_serves_what_the_store_lost() {
    let (objects, disk) = (tempfile::tempdir().unwrap(), tempfile::tempdir().unwrap());
    let pool = pool();
    let files: SharedStore = Arc::new(FileStore::new(objects.path(), pool.clone()));
    let files = stack(vec![files], &StackOptions { prefix: "v/".into(), ..StackOptions::default() }).store;
    let cache_options = CacheOptions {
        disk: Some(DiskOptions {
            dirs: vec![disk.path().into()],
            uuid: "u".into(),
            free_space_ratio: 0.0,
            ..DiskOptions::default()
        }),
        ..CacheOptions::default()
    };
    let cache = BlockCache::open(&cache_options, &pool);
    let store = ChunkStore::new(files.clone(), cache, pool, options(Compression::Zstd));
    let data = sample(200_000);
    write(&store, 1, &data).await;
    assert!(objects.path().join("v/chunks/0/0/1_3_3392").exists());
    assert!(store.warm_up(SliceId(1), 200_000).await.unwrap() > 0);
    assert_eq!(store.cached_bytes(SliceId(1), 200_000), 200_000);
    for key in layout::blocks(SliceId(1), 200_000, BLOCK) {
        files.delete(&key.name(false)).await.unwrap();
    }
    assert!(store.read(SliceId(1), 200_000, 1, 199_999).await.unwrap() == data[1..]);
    store.evict(SliceId(1), 200_000).await;
    assert_eq!(store.cached_bytes(SliceId(1), 200_000), 0);
    assert!(store.read(SliceId(1), 200_000, 1, 199_999).await.is_err());
}

#[tokio::test]
async fn reading_ahead_brings_blocks_and_stays_bounded() {
    let mem = Arc::new(MemStore::new());
    let data = sample(10 * BLOCK as usize);
    write(&over(mem.clone(), 0, options(Compression::None)), 1, &data).await;
    let slow = FaultPlan { latency_max: Duration::from_millis(20), ..FaultPlan::default() };
    let store = over(
        Arc::new(FaultStore::new(mem, slow, 1)),
        1 << 20,
        ChunkOptions { readahead_blocks_max: 4, ..options(Compression::None) },
    );
    assert_eq!(store.warm(SliceId(1), 10 * BLOCK, 0, 10 * BLOCK), 6, "four are on their way");
    assert!(store.read(SliceId(1), 10 * BLOCK, 0, 4 * BLOCK).await.unwrap() == data[..4 * BLOCK as usize]);
    assert!(store.probe(SliceId(1), 10 * BLOCK, 0, 4 * BLOCK).is_some());
    assert!(store.metrics().block_loads.load(Ordering::Relaxed) == 4);
}

/// Numbers, not a test: `cargo test --release --lib chunk::store::tests::throughput -- --ignored --nocapture`.
#[tokio::test(flavor = "multi_thread", worker_threads = 2)]
#[ignore = "measures instead of testing"]
async fn throughput() {
    let objects = tempfile::tempdir().unwrap();
    let pool = Pool::new(Budget::new(300 << 20));
    let files: SharedStore = Arc::new(FileStore::new(objects.path(), pool.clone()));
    let files = stack(vec![files], &StackOptions { prefix: "v/".into(), ..StackOptions::default() }).store;
    let open =
        |memory| ChunkStore::new(files.clone(), BlockCache::in_memory(memory), pool.clone(), ChunkOptions::default());
    let gib =
        |bytes: u64, begun: std::time::Instant| bytes as f64 / (1u64 << 30) as f64 / begun.elapsed().as_secs_f64();
    let data = vec![7u8; 1 << 20];
    const SLICES: u64 = 32;
    const SIZE: u32 = 64 << 20;

    let store = open(100 << 20);
    let begun = std::time::Instant::now();
    let mut finishing = Vec::new();
    for id in 1..=SLICES {
        let mut writer = store.writer(Some(SliceId(id)), 0);
        for i in 0..64 {
            store.budget().wait_for_room(Duration::from_secs(30)).await.unwrap();
            writer.write_at(i << 20, &data).unwrap();
        }
        finishing.push(tokio::spawn(writer.finish()));
    }
    for task in finishing {
        task.await.unwrap().unwrap();
    }
    println!("sequential write: {:.2} GiB/s", gib(SLICES * u64::from(SIZE), begun));

    let store = open(100 << 20);
    let begun = std::time::Instant::now();
    for id in 1..=SLICES {
        for i in 0..64u32 {
            store.warm(SliceId(id), SIZE, i << 20, 17 << 20);
            assert_eq!(store.read(SliceId(id), SIZE, i << 20, 1 << 20).await.unwrap().len(), 1 << 20);
        }
    }
    println!("cold sequential read: {:.2} GiB/s", gib(SLICES * u64::from(SIZE), begun));

    let begun = std::time::Instant::now();
    let mut hits = 0u32;
    for i in 0..1_000_000u32 {
        hits += u32::from(store.probe(SliceId(SLICES), SIZE, (i * 7919 % 60) << 20, 4096).is_some());
    }
    println!("memory probe: {:.0} ns, {hits} hits", begun.elapsed().as_nanos() as f64 / 1e6);

    let begun = std::time::Instant::now();
    for i in 0..1000u64 {
        let mut writer = store.writer(Some(SliceId(1_000_000 + i)), 0);
        writer.write_at(0, &data[..4096]).unwrap();
        writer.finish().await.unwrap();
    }
    println!("small slice: {:.1} us", begun.elapsed().as_micros() as f64 / 1e3);
}
