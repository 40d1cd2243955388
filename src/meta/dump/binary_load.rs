//! Loads the binary form (`spec/metadata.md` 9.2) into an empty database.
//!
//! Segments come in any order and may hold a whole sort each, so they are read record by record. Two things are counted
//! anew instead of being believed. References of slices: each engine leaves other ones out, and counts of volumes that
//! the peer has restored may be wrong. Link parents, where the dump has none: engines that derive them write none.
//!
//! A session that kept deleted files alive is not in a dump. It comes back as one that has ended long ago, so that the
//! next client cleans up after it.

use super::binary::COUNTERS;
use super::loader::{Loader, admitted, whole_or_nothing, wrong};
use super::messages::*;
pub use super::messages::{SegInfo, VERSION};
use super::{Admit, Course, Loaded, Pages};
use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Fault, Ino, Kind, Name, Outcome, SessionId, Slice, SliceId};
use crate::meta::engine::{Change, Engine, Scan};
use crate::meta::record::{self, Dentry, DirStat, Key, QuotaOwner, Record};
use bytes::Bytes;
use prost::Message;
use std::collections::{BTreeMap, HashMap, HashSet};
use std::io::Read;
use std::sync::Arc;

const PHASE: &str = "loaded records";
/// A chunk of very many slices, or a large attribute, is a few megabytes.
const RECORD_BYTES_MAX: u64 = 64 << 20;
const FOOTER_BYTES_MAX: usize = 256 << 20;
/// Beyond this a number is damage.
const NUMBER_MAX: i64 = i64::MAX / 2;

/// Loads a dump with up to `at_a_time` commits under way. On failure nothing of it stays.
pub async fn load(
    engine: &Arc<dyn Engine>,
    input: &mut (dyn Read + Send),
    admit: &Admit,
    at_a_time: usize,
    course: &Course,
) -> Outcome<Loaded> {
    whole_or_nothing(engine, at_a_time, course, async |commits| {
        let mut loading = Loading {
            loader: Loader::new(commits, course),
            setting: None,
            counters: HashMap::new(),
            unreferenced: HashMap::new(),
            many: HashSet::new(),
            parents: HashSet::new(),
            last_rule: 0,
            last_inode: 1,
            loaded: Loaded::default(),
        };
        let mut reader = Reader { input, at: 0 };
        while let Some((sort, length)) = reader.segment()? {
            loading.segment(&mut reader, sort, length, admit).await?;
        }
        reader.footer()?;
        loading.finish(&**engine).await
    })
    .await
}

/// What the footer of a dump says there is.
pub fn contents(input: &mut (dyn Read + Send)) -> Result<BTreeMap<String, SegInfo>, Fault> {
    let mut reader = Reader { input, at: 0 };
    while let Some((_, length)) = reader.segment()? {
        reader.pass(length)?;
    }
    reader.footer().map(|footer| footer.segments)
}

/// Reads segments and remembers where it is.
struct Reader<'a> {
    input: &'a mut (dyn Read + Send),
    at: u64,
}

impl Reader<'_> {
    fn wrong(&self, why: &str) -> Fault {
        Fault::corrupt("load dump").with("byte", self.at).source(why.to_owned())
    }

    fn fill(&mut self, out: &mut [u8]) -> Result<(), Fault> {
        self.input.read_exact(out).map_err(|error| match error.kind() {
            std::io::ErrorKind::UnexpectedEof => self.wrong("the file ends too early"),
            _ => Fault::corrupt("read dump").with("byte", self.at).source(error),
        })?;
        self.at += out.len() as u64;
        Ok(())
    }

    fn bytes(&mut self, length: u64) -> Result<Vec<u8>, Fault> {
        let mut out = Vec::new();
        // Not by what the file says: it may say anything.
        let read = self.input.take(length).read_to_end(&mut out);
        read.map_err(|error| Fault::corrupt("read dump").with("byte", self.at).source(error))?;
        self.at += out.len() as u64;
        if out.len() as u64 == length { Ok(out) } else { Err(self.wrong("the file ends too early")) }
    }

    fn pass(&mut self, length: u64) -> Result<(), Fault> {
        let passed = std::io::copy(&mut self.input.take(length), &mut std::io::sink());
        let passed = passed.map_err(|error| Fault::corrupt("read dump").with("byte", self.at).source(error))?;
        self.at += passed;
        if passed == length { Ok(()) } else { Err(self.wrong("the file ends too early")) }
    }

    /// The sort and the length of the next segment, `None` behind the last one.
    fn segment(&mut self) -> Result<Option<(Sort, u64)>, Fault> {
        let (mut sort, mut length) = ([0; 4], [0; 8]);
        self.fill(&mut sort)?;
        let sort = u32::from_be_bytes(sort);
        if sort == MAGIC {
            return Ok(None);
        }
        let known = Sort::of(sort).ok_or_else(|| {
            let hint = if self.at == 4 { "this is no binary dump" } else { "a segment is of no sort that there is" };
            self.wrong(hint)
        })?;
        self.fill(&mut length)?;
        Ok(Some((known, u64::from_be_bytes(length))))
    }

    /// A number of the encoding of messages, and how many bytes it has.
    fn varint(&mut self) -> Result<(u64, u64), Fault> {
        let mut number = 0;
        for length in 1..=10 {
            let mut byte = [0];
            self.fill(&mut byte)?;
            number |= u64::from(byte[0] & 0x7f) << (7 * (length - 1));
            if byte[0] & 0x80 == 0 {
                return Ok((number, length));
            }
        }
        Err(self.wrong("a number has no end"))
    }

    /// The next record of a segment and the field that it is, `None` at its end.
    fn record(&mut self, left: &mut u64) -> Result<Option<(u32, Vec<u8>)>, Fault> {
        if *left == 0 {
            return Ok(None);
        }
        let (key, key_bytes) = self.varint()?;
        let (length, length_bytes) = self.varint()?;
        // Messages are all there is in a segment.
        if key & 7 != 2 || key >> 3 == 0 || key >> 3 > 1000 {
            return Err(self.wrong("a segment does not hold what segments hold"));
        }
        let whole = length.checked_add(key_bytes + length_bytes).filter(|whole| whole <= left);
        let Some(whole) = whole.filter(|_| length <= RECORD_BYTES_MAX) else {
            return Err(self.wrong("a record is longer than its segment, or than any can be"));
        };
        *left -= whole;
        Ok(Some(((key >> 3) as u32, self.bytes(length)?)))
    }

    /// What follows the last segment.
    fn footer(&mut self) -> Result<Footer, Fault> {
        let mut rest = Vec::new();
        let read = self.input.take(FOOTER_BYTES_MAX as u64).read_to_end(&mut rest);
        read.map_err(|error| Fault::corrupt("read dump").with("byte", self.at).source(error))?;
        let Some((message, length)) = rest.split_last_chunk::<8>() else {
            return Err(self.wrong("the file ends too early"));
        };
        if u64::from_be_bytes(*length) != message.len() as u64 {
            return Err(self.wrong("the footer is not as long as it says"));
        }
        let footer = Footer::decode(message).map_err(|_| self.wrong("the footer does not decode"))?;
        if footer.magic != MAGIC || footer.version != VERSION {
            return Err(self.wrong("the footer is of no version that is known"));
        }
        Ok(footer)
    }
}

struct Loading<'a> {
    loader: Loader<'a>,
    setting: Option<Bytes>,
    counters: HashMap<&'static str, i64>,
    /// Slices that wait to be removed.
    unreferenced: HashMap<(SliceId, u32), i64>,
    /// Nodes that have several parents, and those of which the dump says some.
    many: HashSet<Ino>,
    parents: HashSet<Ino>,
    last_rule: u32,
    last_inode: u64,
    loaded: Loaded,
}

/// A record that does not say what it must.
fn odd(sort: Sort) -> String {
    format!("a record of the sort \"{}\" does not decode", sort.name())
}

impl Loading<'_> {
    async fn segment(&mut self, reader: &mut Reader<'_>, sort: Sort, length: u64, admit: &Admit) -> Outcome<()> {
        if sort == Sort::ChangeLog {
            // The log begins anew with the volume.
            return Ok(reader.pass(length)?);
        }
        let mut left = length;
        while let Some((field, record)) = reader.record(&mut left)? {
            let taken = match sort {
                Sort::Format => self.format(&record, admit)?,
                sort => self.record(sort, field, &record),
            };
            if taken.is_none() {
                return Err(reader.wrong(&odd(sort)).into());
            }
            self.loader.go_on(PHASE, 1).await?;
        }
        Ok(())
    }

    /// The one record of the segment is the document itself.
    fn format(&mut self, document: &[u8], admit: &Admit) -> Result<Option<()>, Fault> {
        let (setting, _) = admitted(admit, document)?;
        Ok(self.setting.replace(setting).is_none().then_some(()))
    }

    /// `None` when it does not decode, or cannot be.
    fn record(&mut self, sort: Sort, field: u32, bytes: &[u8]) -> Option<()> {
        if field != sort.field() && !(sort == Sort::Quota && [USER_QUOTA_FIELD, GROUP_QUOTA_FIELD].contains(&field)) {
            return None;
        }
        match sort {
            Sort::Counter => {
                let Counter { key, value } = Counter::decode(bytes).ok()?;
                if let Some((name, _, _)) = COUNTERS.iter().find(|(name, ..)| *name == key) {
                    // Negative usage is a miscount that its owner's jobs mend.
                    (-NUMBER_MAX..=NUMBER_MAX).contains(&value).then(|| self.counters.insert(name, value))?;
                }
            }
            Sort::Node => self.node(Node::decode(bytes).ok()?)?,
            Sort::Edge => {
                let Edge { parent, inode, name, kind } = Edge::decode(bytes).ok()?;
                let kind = u8::try_from(kind).ok().and_then(Kind::from_code)?;
                let name = Name::entry(&name).ok().filter(Name::is_possible_entry)?;
                let (parent, ino) = (stored(parent)?, stored(inode)?);
                self.loader.put(Key::Dentry(parent, name), Record::Dentry(Dentry { kind, ino }));
            }
            Sort::Chunk => {
                let Chunk { inode, index, slices } = Chunk::decode(bytes).ok()?;
                let slices = Slice::decode_list(&slices)?;
                let possible = |slice: &Slice| slice.is_possible() && slice.id.0 <= NUMBER_MAX as u64;
                slices.iter().all(possible).then_some(())?;
                if !slices.is_empty() {
                    self.loader.put_chunk(stored(inode)?, ChunkIndex(index), slices);
                }
            }
            Sort::SliceRef => {
                let SliceRef { id, size, refs } = SliceRef::decode(bytes).ok()?;
                (id <= NUMBER_MAX as u64).then_some(())?;
                if refs <= 0 && id != 0 {
                    self.unreferenced.insert((SliceId(id), size), refs);
                    self.loader.last_slice = self.loader.last_slice.max(id);
                }
            }
            Sort::Symlink => {
                let Symlink { inode, target } = Symlink::decode(bytes).ok()?;
                self.loader.put(Key::Symlink(stored(inode)?), Record::Bytes(target.into()));
            }
            Sort::Sustained => {
                let Sustained { sid, inodes } = Sustained::decode(bytes).ok()?;
                let session = (sid <= NUMBER_MAX as u64).then_some(SessionId(sid))?;
                let ended = record::Session { expire: 1, info: Bytes::new() };
                self.loader.put(Key::Session(session), Record::Session(ended));
                for inode in inodes {
                    self.loader.put(Key::Sustained(session, stored(inode)?), Record::Number(1));
                }
            }
            Sort::DelFile => {
                let DelFile { inode, length, expire } = DelFile::decode(bytes).ok()?;
                (length <= crate::base::attr::LENGTH_BYTES_POSSIBLE).then_some(())?;
                self.loader.put(Key::DeletedFile(stored(inode)?, length), Record::Number(expire));
            }
            Sort::Xattr => {
                let Xattr { inode, name, value } = Xattr::decode(bytes).ok()?;
                let name = Name::xattr(&name).ok()?;
                self.loader.put(Key::Xattr(stored(inode)?, name), Record::Bytes(value.into()));
            }
            Sort::Acl => {
                let Acl { id, data } = Acl::decode(bytes).ok()?;
                self.last_rule = self.last_rule.max(id);
                self.loader.put(Key::AclRule(id), Record::AclRule(AclRule::decode(&data)?));
            }
            Sort::Stat => {
                let Stat { inode, length, space, inodes } = Stat::decode(bytes).ok()?;
                self.loader.put(Key::DirStat(stored(inode)?), Record::DirStat(DirStat { length, space, inodes }));
            }
            Sort::Quota => self.quota(field, Quota::decode(bytes).ok()?)?,
            Sort::Parent => {
                let Parent { inode, parent, count } = Parent::decode(bytes).ok()?;
                let (ino, parent) = (stored(inode)?, stored(parent)?);
                if count > 0 {
                    self.parents.insert(ino);
                    self.loader.change(Change::AddLinkParent { ino, parent, delta: count });
                }
            }
            Sort::Format | Sort::ChangeLog => return None,
        }
        Some(())
    }

    fn node(&mut self, node: Node) -> Option<()> {
        let (ino, attr) = (stored(node.inode)?, Attr::decode(&node.data)?);
        if attr.parent == Ino::MANY && !attr.is_dir() {
            self.many.insert(ino);
        }
        if !ino.is_trash() {
            self.last_inode = self.last_inode.max(ino.0);
        }
        if ino != Ino::ROOT && ino != Ino::TRASH {
            self.loaded.inodes += 1;
            self.loaded.space = self.loaded.space.saturating_add(attr.space());
        }
        self.loader.put_node(ino, attr);
        Some(())
    }

    fn quota(&mut self, field: u32, quota: Quota) -> Option<()> {
        let number = || u32::try_from(quota.key).ok();
        let owner = match field {
            USER_QUOTA_FIELD => QuotaOwner::User(number()?),
            GROUP_QUOTA_FIELD => QuotaOwner::Group(number()?),
            _ => QuotaOwner::Directory(stored(quota.key)?),
        };
        let Quota { max_space, max_inodes, used_space, used_inodes, .. } = quota;
        let quota = record::Quota { max_space, max_inodes, used_space, used_inodes };
        self.loader.put(Key::Quota(owner), Record::Quota(quota));
        Some(())
    }

    async fn finish(&mut self, engine: &dyn Engine) -> Outcome<Loaded> {
        let Some(setting) = self.setting.take() else {
            return Err(wrong("there is no format document of a volume in it"));
        };
        self.loader.complete().await?;
        if self.loader.node(Ino::ROOT).await?.is_none_or(|root| !root.is_dir()) {
            return Err(wrong("there is no root directory in it"));
        }
        for ((id, size), refs) in std::mem::take(&mut self.unreferenced) {
            if self.loader.is_unmentioned(id) {
                self.loader.put(Key::SliceRef(id, size), Record::Number(refs));
                self.loader.go_on(PHASE, 0).await?;
            }
        }
        self.missing_parents(engine).await?;
        let used = |counter| match counter {
            record::Counter::NextInode => self.last_inode as i64,
            record::Counter::NextSlice => self.loader.last_slice as i64,
            _ => i64::MIN,
        };
        let mut counters: Vec<(record::Counter, i64)> = COUNTERS
            .iter()
            .filter_map(|(name, counter, shift)| {
                let last = self.counters.get(name).map_or(i64::MIN, |value| value - shift).max(used(*counter));
                (last > i64::MIN).then_some((*counter, last))
            })
            .collect();
        if self.last_rule > 0 {
            counters.push((record::Counter::AclMaxId, self.last_rule.into()));
        }
        self.loader.finish(&counters, setting).await?;
        Ok(Loaded { left_out: self.loader.left_out, ..self.loaded })
    }

    /// Counts the parents of nodes with several of which the dump says none.
    async fn missing_parents(&mut self, engine: &dyn Engine) -> Outcome<()> {
        let missing: HashSet<Ino> = self.many.drain().filter(|ino| !self.parents.contains(ino)).collect();
        if missing.is_empty() {
            return Ok(());
        }
        self.loader.complete().await?;
        let mut pages = Pages::new(engine, Scan::AllDentries, super::PAGE_RECORDS);
        while let Some(page) = pages.next().await? {
            for row in page.rows {
                if let (Key::Dentry(parent, _), Record::Dentry(dentry)) = row
                    && missing.contains(&dentry.ino)
                {
                    self.loader.change(Change::AddLinkParent { ino: dentry.ino, parent, delta: 1 });
                }
            }
            self.loader.go_on(PHASE, 0).await?;
        }
        Ok(())
    }
}

/// A number that a node can be stored under.
fn stored(number: u64) -> Option<Ino> {
    (number != 0 && number <= i64::MAX as u64).then_some(Ino(number))
}
