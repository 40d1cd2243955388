//! Tests of the leased background jobs.

use super::*;
use crate::base::{Ino, Timestamp};
use crate::meta::Rules;
use crate::meta::reclaim::tests::{FILE, Put, Removed, deleted_file, rows, slice};
use crate::meta::testing::{Store, file, plain_rules};
use crate::util::clock::{Clock, ManualClock};

async fn setup() -> (Arc<Meta>, Arc<ManualClock>, Arc<Removed>, Removal, crate::util::task::Stopper) {
    setup_on(&Store::new().await).await
}

async fn setup_on(store: &Store) -> (Arc<Meta>, Arc<ManualClock>, Arc<Removed>, Removal, crate::util::task::Stopper) {
    let clock = Arc::new(ManualClock::at(1_700_000_000_000_000_000));
    let meta = store.client(clock.clone()).await;
    let removed = Arc::new(Removed::default());
    let (stopper, stop) = stop_signal();
    let removal = Removal::new(removed.clone(), 2, stop);
    (meta, clock, removed, removal, stopper)
}

#[tokio::test]
async fn deleted_files_are_left_alone_for_an_hour() {
    let (meta, clock, removed, removal, _stopper) = setup().await;
    meta.run(&deleted_file(clock.now())).await.unwrap();
    assert_eq!(meta.clean_deleted_files(&removal).await.unwrap(), 0);
    clock.advance(Duration::from_secs(3601));
    assert_eq!(meta.clean_deleted_files(&removal).await.unwrap(), 1);
    assert_eq!(removed.slices.lock().len(), 2);
    assert_eq!(rows(&meta, Scan::DeletedFiles).await, []);
    assert!(meta.getattr(FILE).await.is_err());
}

#[tokio::test]
async fn replaced_slices_outlive_the_trash_and_no_longer() {
    let (meta, clock, removed, removal, _stopper) = setup().await;
    meta.set_rules(Rules { trash_days: 1, ..plain_rules() });
    let now = clock.now().seconds;
    let kept = Change::Put(Key::DelayedSlices(SliceId(9), now), Record::Slices(vec![slice(1), slice(2)]));
    let count = |id, n| Change::Put(Key::SliceRef(SliceId(id), 100), Record::Number(n));
    meta.run(&Put(vec![kept, count(1, 1), count(2, 2)])).await.unwrap();
    assert_eq!(meta.clean_delayed_slices(&removal).await.unwrap(), 0);
    clock.advance(Duration::from_secs(86_401));
    assert_eq!(meta.clean_delayed_slices(&removal).await.unwrap(), 1);
    assert_eq!(rows(&meta, Scan::DelayedSlices).await, []);
    assert_eq!(removed.slices.lock().iter().map(|(id, _)| id.0).collect::<Vec<_>>(), [1]);
}

#[tokio::test]
async fn removed_names_leave_the_trash_after_their_days() {
    let (meta, clock, _, removal, _stopper) = setup().await;
    meta.set_rules(Rules { trash_days: 1, ..plain_rules() });
    meta.format(b"{}").await.unwrap();
    let ino = file(&meta, "f").await;
    let name = crate::base::Name::entry(b"f").unwrap();
    meta.unlink(&crate::meta::Caller::root(), Ino::ROOT, &name, false).await.unwrap();
    clock.advance(Duration::from_secs(25 * 3600));
    meta.clean_trash(&removal).await.unwrap();
    assert!(meta.getattr(ino).await.is_ok(), "a day and two hours");
    clock.advance(Duration::from_secs(2 * 3600));
    assert!(meta.clean_trash(&removal).await.unwrap() > 0);
    assert_eq!(rows(&meta, Scan::DeletedFiles).await, [Key::DeletedFile(ino, 0)]);
    assert_eq!(meta.reclaim_waiting(), 1);
}

#[tokio::test]
async fn a_volume_that_never_had_a_trash_has_nothing_to_purge() {
    let (meta, _, _, removal, _stopper) = setup().await;
    assert_eq!(meta.clean_trash(&removal).await.unwrap(), 0);
}

#[tokio::test]
async fn a_turn_belongs_to_one_client() {
    let store = Store::new().await;
    let (meta, clock, removed, removal, _stopper) = setup_on(&store).await;
    let turn = |meta: &Arc<Meta>| {
        let timed = Timed {
            meta: meta.clone(),
            chore: Chore::DeletedFiles,
            period: HOUR,
            distance_seconds: HOURLY_DISTANCE_SECONDS,
            removal: removal.clone(),
        };
        async move {
            let (_stopper, stop) = stop_signal();
            timed.turn(&stop).await.unwrap()
        }
    };
    let other = store.client(clock.clone()).await;
    meta.run(&deleted_file(Timestamp::new(1_600_000_000, 0))).await.unwrap();
    assert_eq!(turn(&meta).await, Some(1));
    assert_eq!(turn(&other).await, None);
    assert_eq!(removed.slices.lock().len(), 2);
    clock.advance(Duration::from_secs(3240));
    assert_eq!(turn(&other).await, Some(0));
}

#[tokio::test]
async fn a_client_that_may_not_delete_only_looks_for_dead_ones() {
    let (meta, _, removed, _, _stopper) = setup().await;
    let names = |max| -> Vec<&'static str> {
        meta.background_jobs(removed.clone(), Duration::from_secs(12), max).iter().map(|job| job.name()).collect()
    };
    assert_eq!(names(0), ["cleanupSessions"]);
    assert_eq!(names(10), ["cleanupSessions", "cleanupDeletedFiles", "cleanupSlices", "cleanupTrash"]);
}
