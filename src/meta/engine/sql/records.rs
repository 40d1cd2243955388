//! Records as column values, for every SQL database alike: integers are signed 64-bit numbers, bytes are bytes.
//! No driver is known here; what does not decode is `None`, and the caller names the key.

use crate::base::{Attr, Ino, Kind, Timestamp};
use crate::meta::record::{Counter, QuotaOwner};

/// The columns of a node beside its number, in the order of the statements that write and read them.
pub type NodeColumns = [i64; 18];

const NANOS_PER_MICRO: i128 = 1000;

/// A time is stored in microseconds, with the 0..=999 nanoseconds that are left in a column beside it.
pub fn split_time(time: Timestamp) -> (i64, i64) {
    let nanos = time.as_nanos();
    // Times that do not fit (past the year 294,000) stop at the end of the range.
    let micros = nanos.div_euclid(NANOS_PER_MICRO).clamp(i64::MIN.into(), i64::MAX.into()) as i64;
    (micros, nanos.rem_euclid(NANOS_PER_MICRO) as i64)
}

/// The rest may be negative: other clients divide towards zero, which shows before 1970.
fn join_time(micros: i64, rest: i64) -> Timestamp {
    let nanos = i128::from(micros) * NANOS_PER_MICRO + i128::from(rest);
    Timestamp::new(nanos.div_euclid(1_000_000_000) as i64, nanos.rem_euclid(1_000_000_000) as u32)
}

pub fn node_columns(attr: &Attr) -> NodeColumns {
    let [atime, mtime, ctime] = [attr.atime, attr.mtime, attr.ctime].map(split_time);
    [
        attr.kind.code().into(),
        attr.flags.into(),
        attr.mode.into(),
        attr.uid.into(),
        attr.gid.into(),
        atime.0,
        mtime.0,
        ctime.0,
        atime.1,
        mtime.1,
        ctime.1,
        attr.nlink.into(),
        attr.length as i64,
        attr.rdev.into(),
        attr.parent.0 as i64,
        attr.access_acl.into(),
        attr.default_acl.into(),
        attr.tier.into(),
    ]
}

/// `None` for an unknown kind, a number that its field cannot hold, or an impossible length.
pub fn attr_of(columns: &NodeColumns) -> Option<Attr> {
    let [kind, flags, mode, uid, gid, atime, mtime, ctime, atime_rest, mtime_rest, ctime_rest, nlink, length, rdev, ..] =
        *columns;
    let [.., parent, access_acl, default_acl, tier] = *columns;
    let attr = Attr {
        flags: flags.try_into().ok()?,
        kind: Kind::from_code(kind.try_into().ok()?)?,
        mode: u16::try_from(mode).ok()? & 0o7777,
        uid: uid.try_into().ok()?,
        gid: gid.try_into().ok()?,
        atime: join_time(atime, atime_rest),
        mtime: join_time(mtime, mtime_rest),
        ctime: join_time(ctime, ctime_rest),
        nlink: nlink.try_into().ok()?,
        length: length as u64,
        rdev: rdev.try_into().ok()?,
        parent: Ino(parent as u64),
        access_acl: access_acl.try_into().ok()?,
        default_acl: default_acl.try_into().ok()?,
        tier: tier.try_into().ok()?,
    };
    attr.is_possible().then_some(attr)
}

/// The stored name of a counter. `AclMaxId` has none: rules are numbered by their table (`spec/metadata.md` 1.2).
pub fn counter_name(counter: Counter) -> Option<&'static str> {
    Some(match counter {
        Counter::NextInode => "nextInode",
        Counter::NextSlice => "nextChunk",
        Counter::NextSession => "nextSession",
        Counter::NextTrash => "nextTrash",
        Counter::AclMaxId => return None,
        Counter::UsedSpace => "usedSpace",
        Counter::TotalInodes => "totalInodes",
        Counter::LastCleanupSessions => "lastCleanupSessions",
        Counter::LastCleanupFiles => "lastCleanupFiles",
        Counter::LastCleanupTrash => "lastCleanupTrash",
        Counter::LastCleanupSlices => "nextCleanupSlices",
    })
}

/// How much larger the stored number is than the last id handed out, which is what the seam speaks of: inode and
/// slice counters hold the first number that is free.
pub fn counter_shift(counter: Counter) -> i64 {
    match counter {
        Counter::NextInode | Counter::NextSlice => 1,
        _ => 0,
    }
}

/// The stored number of a counter that was never written.
pub fn counter_start(counter: Counter) -> i64 {
    match counter {
        // Inode 1 is the root's.
        Counter::NextInode => 2,
        other => counter_shift(other),
    }
}

/// Where the quota of a user or group lies: (qtype, qkey). Directories have a table of their own.
pub fn quota_key(owner: QuotaOwner) -> Option<(i64, i64)> {
    match owner {
        QuotaOwner::Directory(_) => None,
        QuotaOwner::User(uid) => Some((USER_QUOTA, uid.into())),
        QuotaOwner::Group(gid) => Some((GROUP_QUOTA, gid.into())),
    }
}

pub const USER_QUOTA: i64 = 1;
pub const GROUP_QUOTA: i64 = 2;

/// `ltype` of a flock: a letter.
pub fn flock_letter(exclusive: bool) -> i64 {
    i64::from(if exclusive { b'W' } else { b'R' })
}

pub fn flock_exclusive(letter: i64) -> Option<bool> {
    match u8::try_from(letter) {
        Ok(b'W') => Some(true),
        Ok(b'R') => Some(false),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_are_microseconds_and_the_rest() {
        // As a volume of JuiceFS has them: 1795968751.802140652.
        let time = Timestamp::new(1_795_968_751, 802_140_652);
        assert_eq!(split_time(time), (1_795_968_751_802_140, 652));
        assert_eq!(join_time(1_795_968_751_802_140, 652), time);
        for time in [Timestamp::new(-1, 999_999_999), Timestamp::new(-5, 1), Timestamp::new(0, 0)] {
            let (micros, rest) = split_time(time);
            assert_eq!(join_time(micros, rest), time);
        }
        // -1.5 µs, divided towards zero.
        assert_eq!(join_time(-1, -500), Timestamp::new(-1, 999_998_500));
        assert_eq!(split_time(Timestamp::new(i64::MAX, 0)).0, i64::MAX);
    }

    #[test]
    fn attributes_survive_their_columns() {
        let attr = Attr {
            flags: 33,
            kind: Kind::CharDevice,
            mode: 0o4755,
            uid: 3_000_000_000,
            gid: 7,
            atime: Timestamp::new(1, 2),
            mtime: Timestamp::new(3, 4_005),
            ctime: Timestamp::new(-6, 7),
            nlink: 3,
            length: 1 << 40,
            rdev: 0x8000_0001,
            parent: Ino::TRASH,
            access_acl: 4,
            default_acl: 5,
            tier: 2,
        };
        assert_eq!(attr_of(&node_columns(&attr)), Some(attr));
        let mut unknown = node_columns(&attr);
        unknown[0] = 9;
        assert_eq!(attr_of(&unknown), None);
        let mut negative = node_columns(&attr);
        negative[3] = -1;
        assert_eq!(attr_of(&negative), None);
        let mut long = node_columns(&attr);
        long[12] = i64::MAX;
        assert_eq!(attr_of(&long), None);
    }

    #[test]
    fn locks_are_letters() {
        assert_eq!((flock_letter(true), flock_letter(false)), (87, 82));
        assert_eq!([82, 87, 85, -1].map(flock_exclusive), [Some(false), Some(true), None, None]);
    }
}
