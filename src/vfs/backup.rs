//! Automatic backups of the metadata (`spec/metadata.md` section 6, `spec/data.md` 15.4): a JSON dump among the objects
//! of the volume, made by one client of all, and old ones thinned out.
//!
//! The dump is packed in memory, a tenth of its text, because a store takes an object as a whole. Secrets of the store are
//! left out of it; on an encrypted volume the object lies in an envelope like all others. A backup that fails is made by
//! whoever has the next turn; half an object is never seen.

use super::client::{rules_of, stored_format};
use crate::base::{Fault, Ino, Outcome, Timestamp};
use crate::config::volume::VolumeFormat;
use crate::meta::dump::stream::{Packing, Pipe};
use crate::meta::dump::{Course, DumpOptions, json};
use crate::meta::record::{Counter, Key, Record};
use crate::meta::{Meta, outside};
use crate::object::SharedStore;
use crate::util::task::{Job, StopSignal, jittered};
use async_trait::async_trait;
use jiff::civil::DateTime;
use jiff::tz::TimeZone;
use std::collections::HashSet;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;
use tokio::time::Instant;

/// Below the volume's prefix.
const FOLDER: &str = "meta/";
const NAME_FORMAT: &str = "dump-%Y-%m-%d-%H%M%S.json.gz";
/// A volume of more nodes is not dumped as often as this: it would be all that the metadata engine does.
const INTERVAL_OF_SMALL: Duration = Duration::from_secs(3600);
const SMALL_INODES_MAX: i64 = 1_000_000;
/// As all background jobs.
const RUN_TIME_MAX: Duration = Duration::from_secs(50 * 60);
/// Few enough to leave the engine to the mount's own requests.
const THREADS: usize = 4;
const LIST_OBJECTS: usize = 1000;

const DAY: i64 = 86_400;
/// All backups of the last two days stay,
const ALL_SECONDS: i64 = 2 * DAY;
/// one a day for two weeks,
const DAILY_SECONDS: i64 = 14 * DAY;
/// one a week for two months,
const WEEKLY_SECONDS: i64 = 60 * DAY;
/// and one a month for two years.
const MONTHLY_SECONDS: i64 = 730 * DAY;

/// What is told of backups; zero before the first one.
#[derive(Default)]
pub struct BackupNews {
    /// Unix seconds.
    pub last_success: AtomicU64,
    pub last_duration_ms: AtomicU64,
}

/// Makes the backups of one client.
pub struct Backup {
    pub meta: Arc<Meta>,
    pub store: SharedStore,
    pub interval: Duration,
    pub skip_trash: bool,
    pub news: Arc<BackupNews>,
}

#[async_trait]
impl Job for Backup {
    fn name(&self) -> &'static str {
        "backup"
    }

    async fn run(&self, stop: StopSignal) {
        // Often enough that no backup is late by much when the client whose turn it was is gone.
        while stop.sleep(jittered(self.interval / 10)).await {
            let turn = tokio::time::timeout(RUN_TIME_MAX, self.turn(&stop));
            let done = tokio::select! {
                biased;
                // It may wait for an engine or a store that is away, and whatever was done is harmless.
                () = stop.stopped() => return,
                done = turn => done,
            };
            match done {
                Ok(Ok(_)) => {}
                Ok(Err(error)) => tracing::warn!("the metadata backup is left for the next turn: {error}"),
                Err(_) => tracing::warn!("the metadata backup takes longer than {RUN_TIME_MAX:?} and is given up"),
            }
        }
    }
}

impl Backup {
    /// Makes a backup if one is due and it is this client's turn; answers its name.
    pub async fn turn(&self, stop: &StopSignal) -> Outcome<Option<String>> {
        if self.interval <= INTERVAL_OF_SMALL {
            let inodes = outside(self.meta.engine().read(&[Key::Counter(Counter::TotalInodes)]).await)?.pop();
            if let Some(Some(Record::Number(inodes))) = inodes
                && inodes > SMALL_INODES_MAX
            {
                tracing::warn!(
                    "no metadata backup of {inodes} nodes every {:?}: use a longer --backup-meta, or `sluice dump`",
                    self.interval
                );
                return Ok(None);
            }
        }
        if !self.meta.take_backup_turn(self.interval).await? {
            return Ok(None);
        }
        let (began, now) = (Instant::now(), self.meta.now());
        let name = name_of(now);
        let packed = self.dump(stop).await?;
        let bytes = packed.len();
        self.store.put(&format!("{FOLDER}{name}"), packed.into()).await?;
        self.news.last_success.store(u64::try_from(now.seconds).unwrap_or(0), Ordering::Relaxed);
        let duration = began.elapsed();
        self.news.last_duration_ms.store(duration.as_millis() as u64, Ordering::Relaxed);
        tracing::info!("backup of the metadata: {name}, {bytes} bytes in {duration:?}");
        if let Err(fault) = self.thin_out(now).await {
            tracing::warn!("old metadata backups stay for now: {fault}");
        }
        Ok(Some(name))
    }

    async fn dump(&self, stop: &StopSignal) -> Outcome<Vec<u8>> {
        let engine = &**self.meta.engine();
        // Not as it was when the volume was opened.
        let format: Option<VolumeFormat> = stored_format(engine).await?;
        let format = format.ok_or_else(|| Fault::not_found("back up metadata").source("the volume is gone"))?;
        self.meta.set_rules(rules_of(&format));
        let options = DumpOptions {
            setting: format.dumped(false, false),
            top: Ino::ROOT,
            skip_trash: self.skip_trash,
            threads: THREADS,
        };
        let course = Course { tell: Arc::new(|_, _| ()), stop: stop.clone() };
        let mut pipe = Pipe::new(Packing::Gzip, Vec::new())?;
        json::dump(engine, &options, &mut pipe, &course).await?;
        Ok(pipe.finish().await?)
    }

    async fn thin_out(&self, now: Timestamp) -> Result<(), Fault> {
        let (mut backups, mut after) = (Vec::new(), String::new());
        loop {
            let listed = self.store.list(FOLDER, &after, LIST_OBJECTS).await?;
            let ended = listed.len() < LIST_OBJECTS;
            if let Some(last) = listed.last() {
                after.clone_from(&last.key);
            }
            for object in listed {
                let name = object.key.strip_prefix(FOLDER).unwrap_or(&object.key).to_owned();
                match time_of(&name) {
                    Some(time) => backups.push((time, name)),
                    // Somebody keeps something here.
                    None => tracing::debug!(name, "no metadata backup: left alone"),
                }
            }
            if ended {
                break;
            }
        }
        backups.sort();
        for name in too_many(&backups, now.seconds) {
            self.store.delete(&format!("{FOLDER}{name}")).await?;
            tracing::info!("removed the old metadata backup {name}");
        }
        Ok(())
    }
}

fn name_of(time: Timestamp) -> String {
    let time = jiff::Timestamp::from_second(time.seconds).unwrap_or_default();
    time.strftime(NAME_FORMAT).to_string()
}

/// The time in the name of a backup, in Unix seconds.
fn time_of(name: &str) -> Option<i64> {
    let time = DateTime::strptime(NAME_FORMAT, name).ok()?.to_zoned(TimeZone::UTC).ok()?.timestamp();
    let time = Timestamp::new(time.as_second(), 0);
    // Exactly as they are written, and nothing that only looks so.
    (name_of(time) == name).then_some(time.seconds)
}

/// Which backups go, of all in the order of time. The first one of each period stays.
fn too_many(backups: &[(i64, String)], now: i64) -> Vec<&str> {
    let mut kept = HashSet::new();
    let newest = backups.last().map(|(time, _)| *time);
    let goes = |time: i64| {
        let date = jiff::Timestamp::from_second(time).unwrap_or_default().to_zoned(TimeZone::UTC);
        let day = time.div_euclid(DAY);
        let period = match now.saturating_sub(time) {
            age if age <= ALL_SECONDS => return false,
            age if age <= DAILY_SECONDS => ("day", day),
            // Weeks begin on Mondays; the first day of all was a Thursday.
            age if age <= WEEKLY_SECONDS => ("week", (day + 3).div_euclid(7)),
            age if age <= MONTHLY_SECONDS => ("month", 12 * i64::from(date.year()) + i64::from(date.month())),
            _ => return true,
        };
        !kept.insert(period)
    };
    let mut goes = goes;
    backups.iter().filter(|(time, _)| goes(*time) && Some(*time) != newest).map(|(_, name)| name.as_str()).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::dump::json_load;
    use crate::meta::engine::mem::MemEngine;
    use crate::meta::testing::{Store, file};
    use crate::object::mem::MemStore;
    use crate::util::clock::ManualClock;
    use crate::util::task::stop_signal;
    use bytes::Bytes;
    use std::io::Read as _;

    const NOW: i64 = 1_796_086_800;

    #[test]
    fn names_are_those_of_the_peer() {
        let name = name_of(Timestamp::new(NOW, 5));
        assert_eq!(name, "dump-2026-12-01-010000.json.gz");
        assert_eq!((name.len(), time_of(&name)), (30, Some(NOW)));
        for other in
            ["dump-2026-12-01-010000.json", "dump-2026-13-01-010000.json.gz", "x", "dump-2026-12-1-010000.json.gz"]
        {
            assert_eq!(time_of(other), None, "{other}");
        }
    }

    #[test]
    fn old_backups_are_thinned_out() {
        // One every hour for three years.
        let mut kept: Vec<(i64, String)> = Vec::new();
        let mut now = NOW - 3 * 365 * DAY;
        while now < NOW {
            kept.push((now, name_of(Timestamp::new(now, 0))));
            if (now / 3600) % 24 == 5 {
                let gone: HashSet<String> = too_many(&kept, now).into_iter().map(str::to_owned).collect();
                kept.retain(|(_, name)| !gone.contains(name));
            }
            now += 3600;
        }
        let gone: HashSet<String> = too_many(&kept, now).into_iter().map(str::to_owned).collect();
        kept.retain(|(_, name)| !gone.contains(name));
        let within = |from: i64, to: i64| kept.iter().filter(|(time, _)| (from..to).contains(&(now - time))).count();
        assert_eq!(within(0, ALL_SECONDS), 47, "every hour of two days, but for the one that comes now");
        let days = within(ALL_SECONDS, DAILY_SECONDS);
        let weeks = within(DAILY_SECONDS, WEEKLY_SECONDS);
        let months = within(WEEKLY_SECONDS, MONTHLY_SECONDS + DAY);
        assert!((11..=14).contains(&days), "{days} in two weeks");
        assert!((5..=9).contains(&weeks), "{weeks} in two months");
        assert!((20..=25).contains(&months), "{months} in two years");
        assert_eq!(within(MONTHLY_SECONDS + DAY, i64::MAX), 0);
        // The only one is not removed, however old it is.
        assert_eq!(too_many(&[(0, "old".into())], NOW), Vec::<&str>::new());
    }

    fn backup(meta: Arc<Meta>, store: SharedStore, interval: u64) -> Backup {
        let interval = Duration::from_secs(interval);
        Backup { meta, store, interval, skip_trash: false, news: Arc::default() }
    }

    #[tokio::test]
    async fn one_client_makes_a_backup_that_can_be_loaded() {
        let clock = Arc::new(ManualClock::at(NOW * 1_000_000_000));
        let place = Store::new().await;
        let (one, other) = (place.client(clock.clone()).await, place.client(clock.clone()).await);
        let setting = br#"{"Name":"vol","UUID":"u","SecretKey":"hunter2","SessionToken":"hunter3","DirStats":true}"#;
        one.format(setting).await.unwrap();
        file(&one, "f").await;
        let store: SharedStore = Arc::new(MemStore::default());
        for old in ["dump-2020-01-01-000000.json.gz", "dump-2026-11-30-000000.json.gz", "somebody's"] {
            store.put(&format!("meta/{old}"), Bytes::from_static(b"x").into()).await.unwrap();
        }
        let (first, second) = (backup(one, store.clone(), 3600), backup(other, store.clone(), 3600));
        let (_stopper, stop) = stop_signal();
        let name = first.turn(&stop).await.unwrap().unwrap();
        assert_eq!(name, "dump-2026-12-01-010000.json.gz");
        assert_eq!(second.turn(&stop).await.unwrap(), None, "it was made already");
        assert_eq!(first.news.last_success.load(Ordering::Relaxed), NOW as u64);
        let left: Vec<String> =
            store.list("meta/", "", 10).await.unwrap().into_iter().map(|object| object.key).collect();
        assert_eq!(left, ["meta/dump-2026-11-30-000000.json.gz", &format!("meta/{name}"), "meta/somebody's"]);

        let packed = store.get(&format!("meta/{name}"), None).await.unwrap().into_bytes();
        let mut text = String::new();
        Packing::Gzip.reader(std::io::Cursor::new(packed)).unwrap().read_to_string(&mut text).unwrap();
        assert!(!text.contains("hunter") && text.contains("\"SecretKey\": \"removed\""), "{text}");
        let engine: Arc<dyn crate::meta::engine::Engine> = Arc::new(MemEngine::default());
        let course = Course { tell: Arc::new(|_, _| ()), stop };
        let admit = |document: &[u8]| Ok(Bytes::copy_from_slice(document));
        let loaded = json_load::load(&engine, &mut text.as_bytes(), &admit, 1, &course).await.unwrap();
        assert_eq!(loaded.inodes, 1);
    }

    #[tokio::test]
    async fn a_large_volume_is_not_dumped_every_hour() {
        use crate::meta::engine::{Batch, Change};
        let clock = Arc::new(ManualClock::at(NOW * 1_000_000_000));
        let meta = Store::new().await.client(clock).await;
        meta.format(br#"{"Name":"vol"}"#).await.unwrap();
        let (txn, _) = meta.engine().begin(&[]).await.unwrap();
        let many = Change::Put(Key::Counter(Counter::TotalInodes), Record::Number(SMALL_INODES_MAX + 1));
        txn.commit(Batch { guards: Vec::new(), changes: vec![many] }).await.unwrap();
        let store: SharedStore = Arc::new(MemStore::default());
        let (_stopper, stop) = stop_signal();
        assert_eq!(backup(meta.clone(), store.clone(), 3600).turn(&stop).await.unwrap(), None);
        assert!(backup(meta, store, 7200).turn(&stop).await.unwrap().is_some());
    }
}
