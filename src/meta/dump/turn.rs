//! Whose turn it is to make the backup (`spec/metadata.md` section 6): the time of the last one stands in an extended
//! attribute of the root, where the peer's clients look as well.
//!
//! As with leases, whoever finds it old enough writes the present time before the work begins, in a commit that is lost
//! to anybody who came first.

use crate::base::{Ino, Name, Outcome, Timestamp};
use crate::meta::Meta;
use crate::meta::engine::Change;
use crate::meta::record::{Key, Record};
use crate::meta::txn::{Operation, Settled, Tx, XattrOf};
use std::time::Duration;

/// Visible to users, as that of the peer is.
const ATTRIBUTE: &[u8] = b"lastBackup";
/// A time further ahead was written by a clock that is wrong; believing it would end the backups.
const AHEAD_SECONDS_MAX: i64 = 86_400;

struct TakeTurn {
    interval: Duration,
}

/// RFC 3339, in UTC.
fn written(time: Timestamp) -> String {
    let time = jiff::Timestamp::from_second(time.seconds).unwrap_or_default();
    time.strftime("%Y-%m-%dT%H:%M:%SZ").to_string()
}

/// What is no time is as good as none.
fn read(text: &[u8]) -> Option<i64> {
    let time: jiff::Timestamp = std::str::from_utf8(text).ok()?.parse().ok()?;
    Some(time.as_second())
}

impl Operation for TakeTurn {
    const NAME: &'static str = "take_backup_turn";
    type Output = bool;

    async fn run(&self, tx: &mut Tx<'_>) -> Outcome<bool> {
        let name = Name::stored(ATTRIBUTE);
        let last = tx.load(XattrOf(Ino::ROOT, &name)).await?.as_deref().and_then(read);
        let now = tx.now();
        let interval = i64::try_from(self.interval.as_secs()).unwrap_or(i64::MAX);
        let recent = |last: i64| {
            now.seconds.saturating_sub(last) < interval && last <= now.seconds.saturating_add(AHEAD_SECONDS_MAX)
        };
        if last.is_some_and(recent) {
            return Ok(false);
        }
        tx.change(Change::Put(Key::Xattr(Ino::ROOT, name), Record::Bytes(written(now).into())));
        Ok(true)
    }

    /// Whoever wrote it: the next turn comes soon enough.
    async fn settle(&self, _tx: &mut Tx<'_>) -> Outcome<Settled<bool>> {
        Ok(Settled::Applied(false))
    }
}

impl Meta {
    /// True when a backup is due and this client is to make it: the last one of any client lies at least `interval` back.
    pub async fn take_backup_turn(&self, interval: Duration) -> Outcome<bool> {
        self.writable()?;
        self.run(&TakeTurn { interval }).await
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::Caller;
    use crate::meta::ops::xattr::XattrMode;
    use crate::meta::testing::Store;
    use crate::util::clock::ManualClock;
    use std::sync::Arc;

    #[tokio::test]
    async fn one_client_has_the_turn_in_each_interval() {
        let clock = Arc::new(ManualClock::at(1_796_086_800_000_000_000));
        let store = Store::new().await;
        let (one, other) = (store.client(clock.clone()).await, store.client(clock.clone()).await);
        let hour = Duration::from_secs(3600);
        assert!(one.take_backup_turn(hour).await.unwrap(), "there was none");
        let last = one.get_xattr(&Caller::root(), Ino::ROOT, b"lastBackup").await.unwrap();
        assert_eq!(last, &b"2026-12-01T01:00:00Z"[..]);
        assert!(!other.take_backup_turn(hour).await.unwrap());
        clock.advance(Duration::from_secs(3599));
        assert!(!one.take_backup_turn(hour).await.unwrap());
        clock.advance(Duration::from_secs(1));
        assert!(other.take_backup_turn(hour).await.unwrap());
        assert!(!one.take_backup_turn(hour).await.unwrap());
        // As the peer writes it elsewhere; far ahead; no time at all.
        for (text, due) in [("2026-12-01T03:00:01+01:00", false), ("2036-12-01T03:00:00Z", true), ("yesterday", true)] {
            one.set_xattr(&Caller::root(), Ino::ROOT, b"lastBackup", text.as_bytes(), XattrMode::Set).await.unwrap();
            assert_eq!(one.take_backup_turn(hour).await.unwrap(), due, "{text}");
        }
    }
}
