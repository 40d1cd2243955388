//! Numbers that could be confused with one another, each a type of its own.

use std::fmt;

macro_rules! number {
    ($(#[$doc:meta])* $name:ident($inner:ty)) => {
        $(#[$doc])*
        #[derive(Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Default)]
        pub struct $name(pub $inner);

        impl fmt::Display for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                fmt::Display::fmt(&self.0, f)
            }
        }

        impl fmt::Debug for $name {
            fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
                write!(f, concat!(stringify!($name), "({})"), self.0)
            }
        }
    };
}

number! {
    /// The number of a node. 0 is never stored; as a parent it means "several parents" (`spec/metadata.md` 1.1).
    Ino(u64)
}
number! {
    /// The number of a slice, unique in the volume and never reused; 0 stands for a hole.
    SliceId(u64)
}
number! {
    /// Which 64 MiB window of a file.
    ChunkIndex(u32)
}
number! {
    /// One mounted client; 0 for clients that register no session.
    SessionId(u64)
}

impl Ino {
    pub const ROOT: Ino = Ino(1);
    /// As a parent: the node has several, see its link-parent records.
    pub const MANY: Ino = Ino(0);
    /// The first of the client-local virtual files, which are never stored.
    pub const VIRTUAL_FIRST: Ino = Ino(0x7FFF_FFFF_0000_0001);
    /// The trash root; hourly directories follow it.
    pub const TRASH: Ino = Ino(0x7FFF_FFFF_1000_0000);

    /// The trash root or one of its hourly directories.
    pub fn is_trash(self) -> bool {
        self >= Ino::TRASH
    }

    /// An hourly directory of the trash; a node whose parent is one "lies in the trash".
    pub fn is_hourly(self) -> bool {
        self > Ino::TRASH
    }
}
