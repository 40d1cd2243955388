//! The messages of the binary form (`spec/metadata.md` 9.2), and which segment holds which of them.
//!
//! Names that the peer declares as texts are bytes here: they may be any, and a text that is none would be refused
//! without a word of why.

use std::collections::BTreeMap;

/// What follows the last segment, and the first field of the footer.
pub const MAGIC: u32 = 0x0074_7083;
pub const VERSION: u32 = 1;

macro_rules! messages {
    ($($(#[$doc:meta])* $name:ident { $($field:ident: $type:ty = $kind:tt $tag:literal;)* })*) => {
        $($(#[$doc])*
        #[derive(Clone, PartialEq, prost::Message)]
        pub struct $name { $(#[prost($kind, tag = $tag)] pub $field: $type,)* })*
    };
}

messages! {
    Counter { key: String = string "1"; value: i64 = int64 "2"; }
    Node { inode: u64 = uint64 "1"; data: Vec<u8> = bytes "2"; }
    Edge { parent: u64 = uint64 "1"; inode: u64 = uint64 "2"; name: Vec<u8> = bytes "3"; kind: u32 = uint32 "4"; }
    Chunk { inode: u64 = uint64 "1"; index: u32 = uint32 "2"; slices: Vec<u8> = bytes "3"; }
    SliceRef { id: u64 = uint64 "1"; size: u32 = uint32 "2"; refs: i64 = int64 "3"; }
    Xattr { inode: u64 = uint64 "1"; name: Vec<u8> = bytes "2"; value: Vec<u8> = bytes "3"; }
    Parent { inode: u64 = uint64 "1"; parent: u64 = uint64 "2"; count: i64 = int64 "3"; }
    Symlink { inode: u64 = uint64 "1"; target: Vec<u8> = bytes "2"; }
    DelFile { inode: u64 = uint64 "1"; length: u64 = uint64 "2"; expire: i64 = int64 "3"; }
    Stat { inode: u64 = uint64 "1"; length: i64 = int64 "2"; space: i64 = int64 "3"; inodes: i64 = int64 "4"; }
    Quota {
        key: u64 = uint64 "1";
        max_space: i64 = int64 "2";
        max_inodes: i64 = int64 "3";
        used_space: i64 = int64 "4";
        used_inodes: i64 = int64 "5";
        kind: u32 = uint32 "6";
    }
    Acl { id: u32 = uint32 "1"; data: Vec<u8> = bytes "2"; }
    Format { data: Vec<u8> = bytes "1"; }
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Sustained {
    #[prost(uint64, tag = "1")]
    pub sid: u64,
    #[prost(uint64, repeated, tag = "2")]
    pub inodes: Vec<u64>,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct SegInfo {
    /// Where each segment of the sort begins.
    #[prost(uint64, repeated, tag = "1")]
    pub offsets: Vec<u64>,
    #[prost(uint64, tag = "2")]
    pub records: u64,
}

#[derive(Clone, PartialEq, prost::Message)]
pub struct Footer {
    #[prost(uint32, tag = "1")]
    pub magic: u32,
    #[prost(uint32, tag = "2")]
    pub version: u32,
    #[prost(btree_map = "string, message", tag = "3")]
    pub segments: BTreeMap<String, SegInfo>,
}

/// The sorts of segments.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Sort {
    Format = 1,
    Counter,
    Node,
    Edge,
    Chunk,
    SliceRef,
    Symlink,
    Sustained,
    DelFile,
    Xattr,
    Acl,
    Stat,
    Quota,
    Parent,
    ChangeLog,
}

impl Sort {
    pub const ALL: [Sort; 15] = [
        Sort::Format,
        Sort::Counter,
        Sort::Node,
        Sort::Edge,
        Sort::Chunk,
        Sort::SliceRef,
        Sort::Symlink,
        Sort::Sustained,
        Sort::DelFile,
        Sort::Xattr,
        Sort::Acl,
        Sort::Stat,
        Sort::Quota,
        Sort::Parent,
        Sort::ChangeLog,
    ];

    pub fn of(number: u32) -> Option<Sort> {
        Sort::ALL.into_iter().find(|sort| *sort as u32 == number)
    }

    /// Its name in the footer.
    pub fn name(self) -> &'static str {
        match self {
            Sort::Format => "format",
            Sort::Counter => "counter",
            Sort::Node => "node",
            Sort::Edge => "edge",
            Sort::Chunk => "chunk",
            Sort::SliceRef => "sliceRef",
            Sort::Symlink => "symlink",
            Sort::Sustained => "sustained",
            Sort::DelFile => "delFile",
            Sort::Xattr => "xattr",
            Sort::Acl => "acl",
            Sort::Stat => "stat",
            Sort::Quota => "quota",
            Sort::Parent => "parent",
            Sort::ChangeLog => "changeLog",
        }
    }

    /// The field of a batch that its records are. The format document lies in no batch.
    pub fn field(self) -> u32 {
        match self {
            Sort::Format | Sort::Node => 1,
            Sort::Edge => 2,
            Sort::Chunk => 3,
            Sort::SliceRef => 4,
            Sort::Xattr => 5,
            Sort::Parent => 6,
            Sort::Symlink => 7,
            Sort::Sustained => 8,
            Sort::DelFile => 9,
            Sort::Stat => 10,
            Sort::Quota => 11,
            Sort::Acl => 12,
            Sort::Counter => 13,
            Sort::ChangeLog => 14,
        }
    }
}

/// Quotas of users and groups have fields of their own.
pub const USER_QUOTA_FIELD: u32 = 15;
pub const GROUP_QUOTA_FIELD: u32 = 16;
