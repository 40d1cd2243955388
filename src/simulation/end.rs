//! The end of a run: clients leave or crash, time passes, the jobs of the volume do their work, and everything is
//! counted.

use super::bytes::judge as judge_read;
use super::model::{CELL_BYTES, Reader};
use super::network::slice_of;
use super::process::COUNTER;
use super::tree::Tree;
use super::world::World;
use crate::base::{Fault, SliceId};
use crate::chunk::{ChunkStore, layout};
use crate::meta::Caller;
use crate::meta::check::check;
use crate::meta::engine::Scan;
use crate::meta::reclaim::SliceRemover;
use crate::meta::record::{Key, Record};
use crate::meta::session::SessionInfo;
use crate::object::ObjectStore;
use crate::util::task::{Job, StopSignal, Tasks};
use async_trait::async_trait;
use rand::Rng;
use rand::rngs::StdRng;
use std::collections::BTreeSet;
use std::sync::Arc;
use std::sync::atomic::Ordering;
use std::time::Duration;

const HOUR_MS: i64 = 3_600_000;
/// Requests to the store that nobody waits for any more have arrived after this.
const LATE_MAX: Duration = Duration::from_secs(120);
/// Long enough for each hourly job to come round three times.
const TIDY: Duration = Duration::from_secs(4 * 3600);
const JANITOR_HEARTBEAT: Duration = Duration::from_secs(600);

/// Removes slices through a store.
pub struct Remover(pub ChunkStore);

#[async_trait]
impl SliceRemover for Remover {
    async fn remove(&self, id: SliceId, size: u32) -> Result<(), Fault> {
        self.0.remove(id, size).await
    }
}

struct Reclaim(Arc<crate::meta::Meta>, Arc<dyn SliceRemover>);

#[async_trait]
impl Job for Reclaim {
    fn name(&self) -> &'static str {
        "reclaim"
    }

    async fn run(&self, stop: StopSignal) {
        self.0.clone().run_reclaim(self.1.clone(), 4, stop).await;
    }
}

/// All clients go, some without a word; then one that does nothing else cleans up after them.
pub async fn put_in_order(world: &World, random: &mut StdRng) {
    world.net.heal();
    for slot in 0..world.slots.len() {
        if world.plan.crashes && random.random_bool(0.3) {
            world.crash(slot).await;
        } else {
            world.close(slot).await;
        }
        world.set_skew(slot, 0);
    }
    tokio::time::sleep(LATE_MAX).await;
    // What lies in the trash is old now.
    let days = world.format().trash_days + 1;
    world.wall_ms.fetch_add((24 * days + 3) * HOUR_MS, Ordering::Relaxed);

    let line = world.net_line();
    let meta = world.meta(line.clone(), 0);
    let remover: Arc<dyn SliceRemover> = Arc::new(Remover(world.chunks(0, &line)));
    meta.start_session(SessionInfo::default(), JANITOR_HEARTBEAT).await.expect("nothing goes wrong any more");
    let mut tasks = Tasks::default();
    tasks.spawn(Arc::new(Reclaim(meta.clone(), remover.clone())));
    for job in meta.background_jobs(remover, JANITOR_HEARTBEAT, 4) {
        tasks.spawn(job);
    }
    tokio::time::sleep(TIDY).await;
    tasks.stop(Duration::from_secs(60)).await;
    meta.close_session().await.expect("nothing goes wrong any more");
    world.step(|| "all is tidy".to_owned());
}

/// Nothing is left that should not be, and everything is there that was promised.
pub async fn judge(world: &World, trees: Vec<Tree>) {
    let report = check(&*world.net.engine).await.expect("the engine answers who looks on");
    assert!(report.is_clean(), "{report}");
    for scan in [Scan::Sessions, Scan::DeletedFiles, Scan::DelayedSlices] {
        let rows = world.rows(&scan).await;
        assert!(rows.is_empty(), "{scan:?} after the clean-up: {rows:?}");
    }
    for (key, record) in world.rows(&Scan::Attrs).await {
        let Record::Attr(attr) = record else { continue };
        assert!(!attr.parent.is_hourly(), "{key:?} is still in the trash");
    }
    objects(world).await;

    let up = world.open(0).await;
    for mut tree in trees {
        tree.settle(world, &up, false).await.unwrap_or_else(|failed| panic!("look up: {failed}"));
        tree.verify(world, &up).await;
    }
    if let Some(lost) = world.model.lock().lost_count(COUNTER) {
        panic!("{lost}");
    }
    let files = world.model.lock().files.len();
    for file in 0..files {
        read_back(world, &up, file).await;
    }
    world.close(0).await;
}

/// The store has every block that is referenced, and others only with an excuse.
async fn objects(world: &World) {
    let listed = world.net.store.list("", "", usize::MAX).await.expect("a store in memory answers");
    let stored: BTreeSet<String> = listed.into_iter().map(|object| object.key).collect();
    let format = world.format();
    let mut wanted = BTreeSet::new();
    for (key, record) in world.rows(&Scan::Chunks).await {
        let Record::Slices(slices) = record else { continue };
        for slice in slices.iter().filter(|slice| !slice.is_hole()) {
            for block in layout::blocks(slice.id, slice.size, format.block_bytes() as u32) {
                let name = format!("sim/{}", block.name(format.hash_prefix));
                assert!(stored.contains(&name), "{key:?} refers to {name}, which is not in the store");
                wanted.insert(name);
            }
        }
    }
    for name in stored.difference(&wanted) {
        let slice = slice_of(name).unwrap_or_else(|| panic!("{name} is no block"));
        // What a client that stood still had under way may have arrived, and its answer be given up by then.
        let excused = world.net.is_excused(slice) || world.held_once.load(Ordering::Relaxed);
        assert!(excused, "{name} is left in the store and nothing explains it");
    }
}

/// All that was ever written to a file, as one sees it who opens it now.
async fn read_back(world: &World, up: &super::world::Up, file: usize) {
    let (ino, opened, cells) = {
        let mut model = world.model.lock();
        let opened = model.tick();
        let cells: Vec<u32> = model.files[file].written().collect();
        (model.files[file].ino, opened, cells)
    };
    let present = world.net.engine.read(&[Key::Attr(ino)]).await.expect("the engine answers who looks on");
    if !matches!(present[..], [Some(_)]) {
        assert!(
            world.model.lock().files[file].going.is_some(),
            "file {file} ({ino}) is not there, and nobody removed it"
        );
        return;
    }
    let opening = up.vfs.open(&Caller::root(), ino, libc::O_RDONLY).await;
    let handle = opening.unwrap_or_else(|stop| panic!("open file {file} ({ino}): {stop}")).handle;
    if let Some(last) = cells.last() {
        let (off, start) = {
            let mut model = world.model.lock();
            let start = model.tick();
            (model.files[file].offset(0), start)
        };
        let len = (last + 1) * CELL_BYTES as u32;
        let read = up.vfs.read(ino, handle, off, len).await;
        let bytes = read.unwrap_or_else(|stop| panic!("read file {file} ({ino}): {stop}")).into_bytes();
        judge_read(world, file, 0..last + 1, &bytes, Reader { by: up.incarnation, opened, start });
    }
    up.vfs.release(ino, handle).await.unwrap_or_else(|stop| panic!("close file {file} ({ino}): {stop}"));
}
