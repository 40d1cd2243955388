//! The tree as a dump walks it: directories with their entries in the order of names, whatever the engine's order is,
//! and nodes with all that belongs to them, asked for many at a time.

use super::{PAGE_RECORDS, Pages};
use crate::base::{Attr, CHUNK_BYTES, ChunkIndex, Ino, Kind, Outcome, Slice};
use crate::meta::engine::{Engine, Scan};
use crate::meta::outside;
use crate::meta::record::{Dentry, Key, Record};
use crate::meta::txn;
use bytes::Bytes;
use futures::StreamExt as _;
use std::collections::HashMap;

/// Nodes asked for at a time.
pub const NODES_AT_A_TIME: usize = 256;
/// Directories up to this size are read ahead of their turn.
const AHEAD_ENTRIES_MAX: usize = 1000;
/// Entries that are read ahead, over all directories that are open.
const AHEAD_TOTAL_MAX: usize = 200_000;
/// The chunks of larger files are asked for by a scan: a file of many chunks may be sparse.
const CHUNKS_BY_NUMBER_MAX: u64 = 16;
/// Where the chunks of one file cannot be listed, those of all large files are listed once.
const CHUNKS_BY_NUMBER_UNLISTED_MAX: u64 = 4096;

/// The entries of one directory by name: all names behind one another, because a directory may have millions.
#[derive(Default)]
pub struct Listing {
    names: Vec<u8>,
    entries: Vec<Listed>,
}

#[derive(Clone, Copy)]
struct Listed {
    at: usize,
    length: u8,
    ino: Ino,
}

impl Listing {
    fn push(&mut self, name: &[u8], dentry: Dentry) {
        // Longer names than there can be are damage; the engines refuse them.
        let length = name.len().min(255) as u8;
        self.entries.push(Listed { at: self.names.len(), length, ino: dentry.ino });
        self.names.extend_from_slice(&name[..usize::from(length)]);
    }

    fn name_of(names: &[u8], entry: &Listed) -> std::ops::Range<usize> {
        debug_assert!(entry.at + usize::from(entry.length) <= names.len());
        entry.at..entry.at + usize::from(entry.length)
    }

    fn sort(&mut self) {
        let names = &self.names;
        let name = |entry: &Listed| &names[Listing::name_of(names, entry)];
        self.entries.sort_unstable_by(|a, b| name(a).cmp(name(b)));
        // A scan may show an entry twice.
        self.entries.dedup_by(|a, b| name(a) == name(b));
    }

    pub fn len(&self) -> usize {
        self.entries.len()
    }

    pub fn name(&self, index: usize) -> &[u8] {
        &self.names[Listing::name_of(&self.names, &self.entries[index])]
    }

    pub fn ino(&self, index: usize) -> Ino {
        self.entries[index].ino
    }
}

/// A node with all that is dumped of it.
pub struct Node {
    pub attr: Attr,
    pub xattrs: Vec<(crate::base::Name, Bytes)>,
    pub target: Bytes,
    pub chunks: Vec<(ChunkIndex, Vec<Slice>)>,
    /// The entries of a directory, when they were read ahead.
    pub ahead: Option<Listing>,
}

/// Reads the tree of one volume.
pub struct Tree<'a> {
    engine: &'a dyn Engine,
    threads: usize,
    /// Entries that were read ahead and not used yet.
    ahead: usize,
    /// Chunks of large files, once they were listed: only where the chunks of one file cannot be.
    large: Option<HashMap<Ino, Vec<u32>>>,
}

impl<'a> Tree<'a> {
    pub fn new(engine: &'a dyn Engine, threads: usize) -> Tree<'a> {
        Tree { engine, threads: threads.max(1), ahead: 0, large: None }
    }

    pub async fn listing(&self, dir: Ino) -> Outcome<Listing> {
        let mut listing = Listing::default();
        let mut pages = Pages::new(self.engine, Scan::Dentries(dir), PAGE_RECORDS);
        while let Some(page) = pages.next().await? {
            push_rows(&mut listing, page.rows);
        }
        listing.sort();
        Ok(listing)
    }

    /// What was read ahead is used now.
    pub fn used(&mut self, listing: &Listing) {
        self.ahead = self.ahead.saturating_sub(listing.len());
    }

    /// The nodes of some entries, `None` for one that is not there.
    pub async fn nodes(&mut self, listing: &Listing, entries: std::ops::Range<usize>) -> Outcome<Vec<Option<Node>>> {
        let entries = &listing.entries[entries];
        let keys: Vec<Key> = entries.iter().map(|entry| Key::Attr(entry.ino)).collect();
        let records = txn::read(self.engine, &keys).await?;
        let attrs = records.into_iter().map(|record| match record {
            Some(Record::Attr(attr)) => Some(attr),
            _ => None,
        });
        let known: Vec<(Ino, Option<Attr>)> = entries.iter().map(|entry| entry.ino).zip(attrs).collect();
        let mut nodes = self.parts(&known).await?;
        self.read_ahead(&known, &mut nodes).await?;
        Ok(nodes)
    }

    /// One node by itself.
    pub async fn node(&mut self, ino: Ino) -> Outcome<Option<Node>> {
        let attr = match txn::read(self.engine, &[Key::Attr(ino)]).await?.pop() {
            Some(Some(Record::Attr(attr))) => Some(attr),
            _ => None,
        };
        Ok(self.parts(&[(ino, attr)]).await?.pop().flatten())
    }

    async fn parts(&mut self, known: &[(Ino, Option<Attr>)]) -> Outcome<Vec<Option<Node>>> {
        let mut keys = Vec::new();
        for (ino, attr) in known.iter().filter_map(|(ino, attr)| Some((*ino, attr.as_ref()?))) {
            keys.push(Key::Xattrs(ino));
            match attr.kind {
                Kind::Symlink => keys.push(Key::Symlink(ino)),
                Kind::File => keys.extend((0..by_number(attr)).map(|index| Key::Chunk(ino, ChunkIndex(index)))),
                _ => {}
            }
        }
        let mut records = txn::read(self.engine, &keys).await?.into_iter();
        let mut keys = keys.into_iter().peekable();
        let mut nodes = Vec::with_capacity(known.len());
        for (ino, attr) in known {
            let Some(attr) = attr else {
                nodes.push(None);
                continue;
            };
            let mut node =
                Node { attr: *attr, xattrs: Vec::new(), target: Bytes::new(), chunks: Vec::new(), ahead: None };
            // The keys of a node begin with that of its attributes.
            let mut first = true;
            while let Some(key) = keys.next_if(|key| first || !matches!(key, Key::Xattrs(_))) {
                first = false;
                match (key, records.next().flatten()) {
                    (Key::Xattrs(_), Some(Record::Xattrs(all))) => node.xattrs = all,
                    (Key::Symlink(_), Some(Record::Bytes(target))) => node.target = target,
                    (Key::Chunk(_, index), Some(Record::Slices(slices))) => node.chunks.push((index, slices)),
                    _ => {}
                }
            }
            if attr.is_file() && by_number(attr) == 0 && attr.length > 0 {
                node.chunks = self.chunks_of_large(*ino, chunks_in(attr)).await?;
            }
            node.chunks.retain(|(_, slices)| !slices.is_empty());
            nodes.push(Some(node));
        }
        Ok(nodes)
    }

    async fn chunks_of_large(&mut self, ino: Ino, count: u64) -> Outcome<Vec<(ChunkIndex, Vec<Slice>)>> {
        let mut chunks = Vec::new();
        if self.engine.lists_chunks_of_file() {
            let mut pages = Pages::new(self.engine, Scan::ChunksOf(ino), super::PAGE_LONG_RECORDS);
            while let Some(page) = pages.next().await? {
                chunks.extend(page.rows.into_iter().filter_map(|row| match row {
                    (Key::Chunk(_, index), Record::Slices(slices)) => Some((index, slices)),
                    _ => None,
                }));
            }
        } else {
            let mut indexes: Vec<u32> = (0..count.min(CHUNKS_BY_NUMBER_UNLISTED_MAX) as u32).collect();
            if count > CHUNKS_BY_NUMBER_UNLISTED_MAX {
                indexes.extend(self.large_chunks().await?.get(&ino).into_iter().flatten());
            }
            for indexes in indexes.chunks(NODES_AT_A_TIME) {
                let keys: Vec<Key> = indexes.iter().map(|index| Key::Chunk(ino, ChunkIndex(*index))).collect();
                for (index, record) in indexes.iter().zip(txn::read(self.engine, &keys).await?) {
                    if let Some(Record::Slices(slices)) = record {
                        chunks.push((ChunkIndex(*index), slices));
                    }
                }
            }
        }
        chunks.sort_by_key(|(index, _)| *index);
        chunks.dedup_by_key(|(index, _)| *index);
        // What lies behind the end is not visible.
        chunks.retain(|(index, _)| u64::from(index.0) < count);
        Ok(chunks)
    }

    /// Which chunks there are far inside of files: read through the volume once, instead of asking for each number up to
    /// the end of a file that may be all hole.
    async fn large_chunks(&mut self) -> Outcome<&HashMap<Ino, Vec<u32>>> {
        if self.large.is_none() {
            let mut large: HashMap<Ino, Vec<u32>> = HashMap::new();
            let mut pages = Pages::new(self.engine, Scan::Chunks, PAGE_RECORDS);
            while let Some(page) = pages.next().await? {
                for (key, _) in page.rows {
                    if let Key::Chunk(ino, ChunkIndex(index)) = key
                        && u64::from(index) >= CHUNKS_BY_NUMBER_UNLISTED_MAX
                    {
                        large.entry(ino).or_default().push(index);
                    }
                }
            }
            self.large = Some(large);
        }
        Ok(self.large.get_or_insert_default())
    }

    /// Lists the small directories among the nodes, several at a time, before their turns come.
    async fn read_ahead(&mut self, known: &[(Ino, Option<Attr>)], nodes: &mut [Option<Node>]) -> Outcome<()> {
        if self.ahead >= AHEAD_TOTAL_MAX {
            return Ok(());
        }
        let engine = self.engine;
        let dirs = known.iter().enumerate().filter(|(_, (_, attr))| attr.is_some_and(|attr| attr.is_dir()));
        let dirs: Vec<(usize, Ino)> = dirs.map(|(index, (ino, _))| (index, *ino)).collect();
        let listings: Vec<Outcome<(usize, Option<Listing>)>> = futures::stream::iter(dirs)
            .map(move |(index, dir)| async move {
                let page = engine.scan(&Scan::Dentries(dir), None, AHEAD_ENTRIES_MAX).await;
                let page = outside(page)?;
                Ok((index, page.next.is_none().then(|| listing_of(page.rows))))
            })
            .buffer_unordered(self.threads)
            .collect()
            .await;
        for listing in listings {
            if let (index, Some(listing)) = listing?
                && let Some(node) = &mut nodes[index]
            {
                self.ahead += listing.len();
                node.ahead = Some(listing);
            }
        }
        Ok(())
    }
}

fn push_rows(listing: &mut Listing, rows: Vec<(Key, Record)>) {
    for row in rows {
        if let (Key::Dentry(_, name), Record::Dentry(dentry)) = row {
            listing.push(name.as_bytes(), dentry);
        }
    }
}

fn listing_of(rows: Vec<(Key, Record)>) -> Listing {
    let mut listing = Listing::default();
    push_rows(&mut listing, rows);
    listing.sort();
    listing
}

fn chunks_in(attr: &Attr) -> u64 {
    attr.length.div_ceil(CHUNK_BYTES)
}

/// How many chunks of a file are asked for by number; 0 for a file with too many.
fn by_number(attr: &Attr) -> u32 {
    let count = chunks_in(attr);
    if count <= CHUNKS_BY_NUMBER_MAX { count as u32 } else { 0 }
}
