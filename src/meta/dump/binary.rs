//! Writes the binary form (`spec/metadata.md` 9.2): records as they are stored, in segments of some thousands, and a
//! footer that says where each sort of them is.
//!
//! Records are asked for by scans and come in the engine's order, sorted within each page. Symlinks and link parents
//! have no scan on every engine; they follow the page of nodes that they belong to.

use super::json::sustained_of;
use super::messages::*;
use super::{Course, DumpOptions, Dumped, Out, PAGE_LONG_RECORDS, PAGE_RECORDS, Pages, Sink};
use crate::base::{Ino, Kind, Outcome, SessionId, Slice};
use crate::meta::engine::{Engine, Scan};
use crate::meta::record::{self, Key, QuotaOwner, Record};
use crate::meta::txn;
use prost::Message;
use std::collections::BTreeMap;

const PHASE: &str = "dumped records";
/// Records asked for by their keys at a time.
const KEYS_AT_A_TIME: usize = 1000;

/// The counters by their names in a dump, and how much larger than the last number used they are there.
pub(super) const COUNTERS: [(&str, record::Counter, i64); 6] = [
    ("usedSpace", record::Counter::UsedSpace, 0),
    ("totalInodes", record::Counter::TotalInodes, 0),
    ("nextInode", record::Counter::NextInode, 1),
    ("nextChunk", record::Counter::NextSlice, 1),
    ("nextSession", record::Counter::NextSession, 0),
    ("nextTrash", record::Counter::NextTrash, 0),
];

/// Writes a dump of the whole volume.
pub async fn dump(engine: &dyn Engine, options: &DumpOptions, sink: &mut dyn Sink, course: &Course) -> Outcome<Dumped> {
    let mut writer =
        Writer { engine, out: Out::new(sink), segments: BTreeMap::new(), course, dumped: Dumped::default() };
    let mut format = Segment::new(Sort::Format);
    Format { data: options.setting.clone() }.encode_raw(&mut format.body);
    format.records = 1;
    writer.write(format).await?;
    writer.counters().await?;
    writer.nodes().await?;
    writer.plain(Sort::Edge, Scan::AllDentries, PAGE_RECORDS).await?;
    writer.plain(Sort::Chunk, Scan::Chunks, PAGE_LONG_RECORDS).await?;
    writer.plain(Sort::SliceRef, Scan::SliceRefs, PAGE_RECORDS).await?;
    writer.sustained().await?;
    writer.plain(Sort::DelFile, Scan::DeletedFiles, PAGE_RECORDS).await?;
    writer.plain(Sort::Xattr, Scan::AllXattrs, PAGE_LONG_RECORDS).await?;
    writer.plain(Sort::Acl, Scan::AclRules, PAGE_RECORDS).await?;
    writer.plain(Sort::Stat, Scan::DirStats, PAGE_RECORDS).await?;
    writer.plain(Sort::Quota, Scan::Quotas, PAGE_RECORDS).await?;
    writer.footer().await?;
    Ok(writer.dumped)
}

/// A segment being filled.
struct Segment {
    sort: Sort,
    body: Vec<u8>,
    records: u64,
}

impl Segment {
    fn new(sort: Sort) -> Segment {
        Segment { sort, body: Vec::new(), records: 0 }
    }

    fn add(&mut self, record: &impl Message) {
        self.add_as(self.sort.field(), record);
    }

    fn add_as(&mut self, field: u32, record: &impl Message) {
        prost::encoding::message::encode(field, record, &mut self.body);
        self.records += 1;
    }

    /// Adds a row of a scan.
    fn add_row(&mut self, key: Key, record: Record) {
        match (key, record) {
            (Key::Dentry(parent, name), Record::Dentry(dentry)) => self.add(&Edge {
                parent: parent.0,
                inode: dentry.ino.0,
                name: name.as_bytes().to_vec(),
                kind: dentry.kind.code().into(),
            }),
            (Key::Chunk(ino, index), Record::Slices(slices)) => {
                self.add(&Chunk { inode: ino.0, index: index.0, slices: Slice::encode_list(&slices) });
            }
            // One reference is what a slice has without a record; slice 0 is no slice.
            (Key::SliceRef(id, size), Record::Number(refs)) if refs != 1 && id.0 != 0 => {
                self.add(&SliceRef { id: id.0, size, refs });
            }
            (Key::DeletedFile(ino, length), Record::Number(expire)) => {
                self.add(&DelFile { inode: ino.0, length, expire });
            }
            (Key::Xattrs(ino), Record::Xattrs(all)) => {
                for (name, value) in all {
                    self.add(&Xattr { inode: ino.0, name: name.as_bytes().to_vec(), value: value.to_vec() });
                }
            }
            (Key::AclRule(id), Record::AclRule(rule)) => self.add(&Acl { id, data: rule.encode() }),
            (Key::DirStat(ino), Record::DirStat(stat)) => {
                self.add(&Stat { inode: ino.0, length: stat.length, space: stat.space, inodes: stat.inodes });
            }
            (Key::Quota(owner), Record::Quota(quota)) => {
                let (field, key, kind) = match owner {
                    QuotaOwner::Directory(ino) => (Sort::Quota.field(), ino.0, 0),
                    QuotaOwner::User(uid) => (USER_QUOTA_FIELD, uid.into(), 1),
                    QuotaOwner::Group(gid) => (GROUP_QUOTA_FIELD, gid.into(), 2),
                };
                let record::Quota { max_space, max_inodes, used_space, used_inodes } = quota;
                self.add_as(field, &Quota { key, max_space, max_inodes, used_space, used_inodes, kind });
            }
            _ => {}
        }
    }
}

/// Rows of one page in an order that says nothing of the engine.
fn sorted(mut rows: Vec<(Key, Record)>) -> Vec<(Key, Record)> {
    let place = |(key, _): &(Key, Record)| match key {
        Key::Attr(ino) | Key::Xattrs(ino) | Key::DirStat(ino) => (ino.0, 0, Vec::new()),
        Key::Dentry(ino, name) => (ino.0, 0, name.as_bytes().to_vec()),
        Key::Chunk(ino, index) => (ino.0, index.0.into(), Vec::new()),
        Key::SliceRef(id, size) => (id.0, (*size).into(), Vec::new()),
        Key::DeletedFile(ino, length) => (ino.0, *length, Vec::new()),
        Key::AclRule(id) => ((*id).into(), 0, Vec::new()),
        Key::Quota(QuotaOwner::Directory(ino)) => (0, ino.0, Vec::new()),
        Key::Quota(QuotaOwner::User(uid)) => (1, (*uid).into(), Vec::new()),
        Key::Quota(QuotaOwner::Group(gid)) => (2, (*gid).into(), Vec::new()),
        _ => (0, 0, Vec::new()),
    };
    rows.sort_by_cached_key(place);
    rows
}

struct Writer<'a> {
    engine: &'a dyn Engine,
    out: Out<'a>,
    segments: BTreeMap<Sort, SegInfo>,
    course: &'a Course,
    dumped: Dumped,
}

impl Writer<'_> {
    async fn write(&mut self, segment: Segment) -> Outcome<()> {
        let info = self.segments.entry(segment.sort).or_default();
        info.offsets.push(self.out.position());
        info.records += segment.records;
        self.out.put(&(segment.sort as u32).to_be_bytes());
        self.out.put(&(segment.body.len() as u64).to_be_bytes());
        self.out.put(&segment.body);
        self.dumped.entries += segment.records;
        self.out.pass_on().await?;
        self.course.step(PHASE, segment.records)
    }

    async fn counters(&mut self) -> Outcome<()> {
        let keys = COUNTERS.map(|(_, counter, _)| Key::Counter(counter));
        let mut segment = Segment::new(Sort::Counter);
        for ((name, counter, shift), stored) in COUNTERS.iter().zip(txn::read(self.engine, &keys).await?) {
            let stored = match stored {
                Some(Record::Number(stored)) => stored,
                _ => i64::from(*counter == record::Counter::NextInode),
            };
            segment.add(&Counter { key: (*name).to_owned(), value: stored.saturating_add(*shift) });
        }
        self.write(segment).await
    }

    /// A sort whose records are the rows of a scan.
    async fn plain(&mut self, sort: Sort, scan: Scan, limit: usize) -> Outcome<()> {
        let mut pages = Pages::new(self.engine, scan, limit);
        while let Some(page) = pages.next().await? {
            let mut segment = Segment::new(sort);
            for (key, record) in sorted(page.rows) {
                if let Record::Xattrs(all) = &record {
                    let odd = all.iter().filter(|(name, _)| std::str::from_utf8(name.as_bytes()).is_err());
                    self.dumped.odd_names += odd.count() as u64;
                }
                segment.add_row(key, record);
            }
            if segment.records > 0 {
                self.write(segment).await?;
            }
            self.course.step(PHASE, 0)?;
        }
        Ok(())
    }

    async fn nodes(&mut self) -> Outcome<()> {
        let mut pages = Pages::new(self.engine, Scan::Attrs, PAGE_RECORDS);
        while let Some(page) = pages.next().await? {
            let mut nodes = Segment::new(Sort::Node);
            let mut keys = Vec::new();
            for row in sorted(page.rows) {
                let (Key::Attr(ino), Record::Attr(attr)) = row else { continue };
                nodes.add(&Node { inode: ino.0, data: attr.encode() });
                if attr.kind == Kind::Symlink {
                    keys.push(Key::Symlink(ino));
                }
                if attr.parent == Ino::MANY {
                    keys.push(Key::LinkParents(ino));
                }
            }
            if nodes.records > 0 {
                self.write(nodes).await?;
            }
            self.parts(keys).await?;
        }
        Ok(())
    }

    async fn parts(&mut self, keys: Vec<Key>) -> Outcome<()> {
        let (mut symlinks, mut parents) = (Segment::new(Sort::Symlink), Segment::new(Sort::Parent));
        for keys in keys.chunks(KEYS_AT_A_TIME) {
            for (key, record) in keys.iter().zip(txn::read(self.engine, keys).await?) {
                match (key, record) {
                    (Key::Symlink(ino), Some(Record::Bytes(target))) => {
                        symlinks.add(&Symlink { inode: ino.0, target: target.to_vec() });
                    }
                    (Key::LinkParents(ino), Some(Record::LinkParents(all))) => {
                        // Counts that fell to nothing may still be stored.
                        for (parent, count) in all.into_iter().filter(|(_, count)| *count > 0) {
                            parents.add(&Parent { inode: ino.0, parent: parent.0, count });
                        }
                    }
                    _ => {}
                }
            }
        }
        for segment in [symlinks, parents] {
            if segment.records > 0 {
                self.write(segment).await?;
            }
        }
        Ok(())
    }

    async fn sustained(&mut self) -> Outcome<()> {
        let mut sessions: Vec<SessionId> = Vec::new();
        let mut pages = Pages::new(self.engine, Scan::Sessions, PAGE_RECORDS);
        while let Some(page) = pages.next().await? {
            sessions.extend(page.rows.into_iter().filter_map(|(key, _)| match key {
                Key::Session(session) => Some(session),
                _ => None,
            }));
        }
        sessions.sort_unstable();
        sessions.dedup();
        let mut segment = Segment::new(Sort::Sustained);
        for session in sessions {
            let inodes = sustained_of(self.engine, session).await?;
            if !inodes.is_empty() {
                segment.add(&Sustained { sid: session.0, inodes: inodes.into_iter().map(|ino| ino.0).collect() });
            }
        }
        if segment.records > 0 {
            self.write(segment).await?;
        }
        Ok(())
    }

    async fn footer(&mut self) -> Outcome<()> {
        let segments = std::mem::take(&mut self.segments);
        let segments = segments.into_iter().map(|(sort, info)| (sort.name().to_owned(), info)).collect();
        let footer = Footer { magic: MAGIC, version: VERSION, segments }.encode_to_vec();
        self.out.put(&MAGIC.to_be_bytes());
        self.out.put(&footer);
        self.out.put(&(footer.len() as u64).to_be_bytes());
        self.out.finish().await
    }
}
