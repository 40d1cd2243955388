//! Rows as records, whatever driver they come from. What is no record is `None`, and the caller names the key.

use super::records::{NodeColumns, attr_of, flock_exclusive};
use crate::base::acl::{ABSENT, AclRule, decode_entries};
use crate::base::{Attr, Ino, Kind, SessionId};
use crate::meta::record::{Dentry, DirStat, FlockHolder, PlockHolder, PlockRange, Quota, Session};
use bytes::Bytes;

/// A row of a driver.
pub trait Columns {
    fn is_null(&self, column: usize) -> bool;
    /// A number; NULL counts as zero.
    fn int(&self, column: usize) -> Option<i64>;
    /// Bytes or text; NULL counts as none.
    fn bytes(&self, column: usize) -> Option<&[u8]>;

    fn owned(&self, column: usize) -> Option<Bytes> {
        self.bytes(column).map(Bytes::copy_from_slice)
    }

    fn ino(&self, column: usize) -> Option<Ino> {
        self.int(column).map(|n| Ino(n as u64))
    }
}

/// The columns of a node (`texts::NODE`) from one on.
pub fn attr(row: &impl Columns, first: usize) -> Option<Attr> {
    let mut columns: NodeColumns = [0; _];
    for (at, column) in columns.iter_mut().enumerate() {
        *column = row.int(first + at)?;
    }
    attr_of(&columns)
}

pub fn dentry(row: &impl Columns, ino_at: usize, kind_at: usize) -> Option<Dentry> {
    let kind = Kind::from_code(row.int(kind_at)?.try_into().ok()?)?;
    Some(Dentry { kind, ino: row.ino(ino_at)? })
}

pub fn acl(row: &impl Columns) -> Option<AclRule> {
    // A permission that was never written is not present.
    let perm = |column| match row.is_null(column) {
        true => Some(ABSENT),
        false => row.int(column)?.try_into().ok(),
    };
    Some(AclRule {
        owner: perm(0)?,
        group: perm(1)?,
        mask: perm(2)?,
        other: perm(3)?,
        users: decode_entries(row.bytes(4)?)?,
        groups: decode_entries(row.bytes(5)?)?,
    })
}

pub fn dir_stat(row: &impl Columns, first: usize) -> Option<DirStat> {
    Some(DirStat { length: row.int(first)?, space: row.int(first + 1)?, inodes: row.int(first + 2)? })
}

pub fn quota(row: &impl Columns) -> Option<Quota> {
    Some(Quota { max_space: row.int(0)?, max_inodes: row.int(1)?, used_space: row.int(2)?, used_inodes: row.int(3)? })
}

pub fn session(row: &impl Columns, first: usize) -> Option<Session> {
    Some(Session { expire: row.int(first)?, info: row.owned(first + 1)? })
}

pub fn flock_holder(row: &impl Columns) -> Option<FlockHolder> {
    Some(FlockHolder {
        session: SessionId(row.int(0)? as u64),
        owner: row.int(1)? as u64,
        exclusive: flock_exclusive(row.int(2)?)?,
    })
}

pub fn plock_holder(row: &impl Columns) -> Option<PlockHolder> {
    Some(PlockHolder {
        session: SessionId(row.int(0)? as u64),
        owner: row.int(1)? as u64,
        ranges: PlockRange::decode_list(row.bytes(2)?)?,
    })
}

/// Owners are unsigned, their column is not: the database cannot sort them.
pub fn flock_holders(mut holders: Vec<FlockHolder>) -> Vec<FlockHolder> {
    holders.sort_unstable_by_key(|holder| (holder.session, holder.owner));
    holders
}

/// As `flock_holders`; an owner without a range holds nothing.
pub fn plock_holders(mut holders: Vec<PlockHolder>) -> Vec<PlockHolder> {
    holders.retain(|holder| !holder.ranges.is_empty());
    holders.sort_unstable_by_key(|holder| (holder.session, holder.owner));
    holders
}
