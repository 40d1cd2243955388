//! Open directories. A stream keeps what it has read from the metadata, so that the offsets it gave out stay valid
//! however the directory changes meanwhile; going back to the start reads afresh, as rewinddir(3) asks.

use crate::base::{Attr, Ino, Kind, Name, Outcome};
use crate::meta::Meta;
use crate::meta::engine::Cursor;
use std::collections::HashSet;

/// Entries read per trip.
const PAGE_ENTRIES: usize = 4096;

/// One entry as readdir answers it.
#[derive(Clone, Debug)]
pub struct DirItem {
    pub ino: Ino,
    pub kind: Kind,
    pub name: Name,
    /// Missing when attributes were not asked for, or when the node is gone.
    pub attr: Option<Attr>,
    /// Where the next call goes on after this entry.
    pub next: u64,
}

enum Progress {
    Fresh,
    At(Cursor),
    End,
}

pub struct DirStream {
    dir: Ino,
    parent: Ino,
    items: Vec<DirItem>,
    /// Names seen, kept from the second page on: hash-ordered engines may repeat an entry across pages.
    seen: Option<HashSet<Name>>,
    progress: Progress,
}

impl DirStream {
    pub fn new(dir: Ino, parent: Ino) -> DirStream {
        DirStream { dir, parent, items: Vec::new(), seen: None, progress: Progress::Fresh }
    }

    /// Up to `limit` entries after `offset`; empty at the end. Offset 0 starts anew.
    pub async fn read(&mut self, meta: &Meta, offset: u64, limit: usize) -> Outcome<&[DirItem]> {
        if offset == 0 {
            self.rewind();
        }
        let from = usize::try_from(offset).unwrap_or(usize::MAX);
        // `.` and `..` do not make an answer of their own: the kernel would have to come again for the first entry.
        while self.items.len() <= from.max(2) && !matches!(self.progress, Progress::End) {
            self.load(meta).await?;
        }
        let items = self.items.get(from..).unwrap_or(&[]);
        Ok(&items[..items.len().min(limit)])
    }

    fn rewind(&mut self) {
        self.items.clear();
        self.seen = None;
        self.progress = Progress::Fresh;
        self.push(Name::stored(*b"."), self.dir, Kind::Directory, None);
        self.push(Name::stored(*b".."), self.parent, Kind::Directory, None);
    }

    fn push(&mut self, name: Name, ino: Ino, kind: Kind, attr: Option<Attr>) {
        let next = self.items.len() as u64 + 1;
        self.items.push(DirItem { ino, kind, name, attr, next });
    }

    async fn load(&mut self, meta: &Meta) -> Outcome<()> {
        let after = match &self.progress {
            Progress::Fresh => None,
            Progress::At(cursor) => Some(cursor),
            Progress::End => return Ok(()),
        };
        let first = after.is_none();
        let page = meta.list(self.dir, after, PAGE_ENTRIES).await?;
        if !first && self.seen.is_none() {
            self.seen = Some(self.items.iter().map(|item| item.name.clone()).collect());
        }
        for (name, dentry, attr) in page.entries {
            if self.seen.as_mut().is_none_or(|seen| seen.insert(name.clone())) {
                self.push(name, dentry.ino, dentry.kind, attr);
            }
        }
        self.progress = page.next.map_or(Progress::End, Progress::At);
        Ok(())
    }
}
