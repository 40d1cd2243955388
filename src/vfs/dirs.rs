//! Open directories. A stream keeps what it has read from the metadata, so that the offsets it gave out stay valid
//! however the directory changes meanwhile; going back to the start reads afresh, as rewinddir(3) asks.

use crate::base::{Attr, Errno, Ino, Kind, Name, Outcome};
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
    items: Vec<DirItem>,
    /// Names seen, kept from the second page on: hash-ordered engines may repeat an entry across pages.
    seen: Option<HashSet<Name>>,
    progress: Progress,
}

impl DirStream {
    /// Nothing is asked before the first read: it tells whether the directory is there.
    pub fn new(dir: Ino) -> DirStream {
        DirStream { dir, items: Vec::new(), seen: None, progress: Progress::Fresh }
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
        let page = if first {
            // What the directory is itself costs no trip of its own.
            let (attr, page) = tokio::join!(meta.getattr(self.dir), meta.list(self.dir, None, PAGE_ENTRIES));
            let attr = attr?;
            if !attr.is_dir() {
                return Err(Errno::ENOTDIR.into());
            }
            let page = page?;
            self.push(Name::stored(*b"."), self.dir, Kind::Directory, None);
            self.push(Name::stored(*b".."), attr.parent, Kind::Directory, None);
            page
        } else {
            meta.list(self.dir, after, PAGE_ENTRIES).await?
        };
        if !first && self.seen.is_none() {
            self.seen = Some(self.items.iter().map(|item| item.name.clone()).collect());
        }
        let mut left_out = 0;
        for (name, dentry, attr) in page.entries {
            if !name.is_possible_entry() {
                left_out += 1;
                if left_out == 1 {
                    tracing::warn!(dir = %self.dir, %name, "an entry is left out of listings: it cannot have this name");
                }
                continue;
            }
            if self.seen.as_mut().is_none_or(|seen| seen.insert(name.clone())) {
                self.push(name, dentry.ino, dentry.kind, attr);
            }
        }
        self.progress = page.next.map_or(Progress::End, Progress::At);
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::meta::engine::{Batch, Change};
    use crate::meta::record::{Dentry, Key, Record};
    use crate::meta::testing::{file, volume};

    /// Bytes, control characters and the marks of other systems are names; what no program could say is left out, and
    /// the others are listed all the same.
    #[tokio::test]
    async fn impossible_names_spoil_no_listing() {
        let meta = volume().await;
        let ino = file(&meta, "plain").await;
        let long = [b'n'; 255];
        let good: [&[u8]; 6] = [b"plain", b"\xff\xfe", b"a\nb\x1b[2J", b"...", b"\\", &long];
        let bad: [&[u8]; 6] = [b"", b".", b"..", b"a/b", b"nul\0", &[b'n'; 256]];
        for name in good.into_iter().chain(bad) {
            let (txn, _) = meta.engine().begin(&[]).await.unwrap();
            let entry = Record::Dentry(Dentry { kind: Kind::File, ino });
            let changes = vec![Change::Put(Key::Dentry(Ino::ROOT, Name::stored(name)), entry)];
            txn.commit(Batch { guards: Vec::new(), changes }).await.unwrap();
        }
        let mut stream = DirStream::new(Ino::ROOT);
        let items = stream.read(&meta, 0, 100).await.unwrap();
        let mut listed: Vec<&[u8]> = items.iter().skip(2).map(|item| item.name.as_bytes()).collect();
        listed.sort_unstable();
        let mut expected = good.to_vec();
        expected.sort_unstable();
        assert_eq!(listed, expected);
        assert!(items.iter().enumerate().all(|(at, item)| item.next == at as u64 + 1), "offsets have no gaps");
    }
}
