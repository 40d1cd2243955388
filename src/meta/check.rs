//! The tree checker: walks everything a volume stores and reports what does not fit together. Tests end with it, and
//! `fsck` is the same code.
//!
//! It reads in pages and keeps about a hundred bytes per node and per shared slice. The pages are not one snapshot:
//! on a volume in use a finding may be a change that went by. It changes nothing.
//!
//! What is stored and does not decode is a finding, too. What it may stand for is unknown then, so nothing is said of
//! the others that could be its fault: an entry whose node cannot be read is not called dangling.

mod in_use;
mod locks;

use super::engine::{Cursor, Engine, Scan};
use super::outside;
use super::record::{Counter, Dentry, DirStat, Key, Record};
use crate::base::{Attr, ChunkIndex, Fault, Ino, Kind, Name, Outcome, SessionId, Slice, SliceId};
use std::collections::{BTreeMap, HashMap, HashSet};
use std::fmt;
use std::hash::{BuildHasher as _, RandomState};

use in_use::InUse;
pub(super) use in_use::raised;
pub(super) use locks::is_held_by;

/// Records asked for at a time.
const PAGE_RECORDS: usize = 4096;

/// One thing that does not fit.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Finding {
    /// The entry names a node that is not there.
    DanglingDentry {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    /// The entry lies in a directory that is not there.
    DentryInMissing {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    DentryInNonDirectory {
        parent: Ino,
        name: Name,
        ino: Ino,
    },
    WrongKind {
        parent: Ino,
        name: Name,
        ino: Ino,
        entry: Kind,
        node: Kind,
    },
    /// No entry and no open handle leads to the node.
    Orphan {
        ino: Ino,
        kind: Kind,
    },
    WrongLinks {
        ino: Ino,
        kind: Kind,
        stored: u32,
        counted: u32,
    },
    WrongParent {
        ino: Ino,
        stored: Ino,
        found: Ino,
    },
    WrongLinkParent {
        ino: Ino,
        parent: Ino,
        stored: i64,
        counted: i64,
    },
    /// A directory that does not reach the root.
    Cycle {
        ino: Ino,
    },
    WrongDirStat {
        dir: Ino,
        stored: DirStat,
        counted: DirStat,
    },
    WrongCounter {
        counter: Counter,
        stored: i64,
        counted: i64,
    },
    /// Recorded as deleted, and yet the node is there.
    DeletedButAlive {
        ino: Ino,
        length: u64,
    },
    /// Data of a file that is neither there nor recorded as deleted.
    LostChunk {
        ino: Ino,
        index: ChunkIndex,
    },
    WrongReferences {
        id: SliceId,
        size: u32,
        stored: i64,
        counted: i64,
    },
    /// References are counted for a slice that nothing mentions.
    LostSlice {
        id: SliceId,
        size: u32,
        stored: i64,
    },
    BadSlice {
        ino: Ino,
        index: ChunkIndex,
        slice: Slice,
    },
    LostXattrs {
        ino: Ino,
    },
    LostLinkParents {
        ino: Ino,
    },
    LostDirStat {
        dir: Ino,
    },
    MissingTarget {
        ino: Ino,
    },
    SustainedMissing {
        session: SessionId,
        ino: Ino,
    },
    /// The counter is below a number that something is stored under (zero: below all numbers), and will give it out
    /// again.
    LowCounter {
        counter: Counter,
        used: i64,
    },
    /// A lock that nobody gives back: the clean-up of its session, which is not there, does not come.
    LockOfNobody {
        session: SessionId,
        ino: Ino,
        sort: LockSort,
    },
    /// The node has an ACL of which there is no rule; the first of the nodes that have it.
    MissingAclRule {
        id: u32,
        ino: Ino,
    },
    /// Something is stored that is no record.
    Unreadable {
        why: String,
    },
}

/// Which of the two families of locks.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum LockSort {
    Flock,
    Posix,
}

impl LockSort {
    /// The record of all who hold such a lock on the node.
    pub fn key(self, ino: Ino) -> Key {
        match self {
            LockSort::Flock => Key::Flocks(ino),
            LockSort::Posix => Key::Plocks(ino),
        }
    }
}

impl fmt::Display for Finding {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        use Finding::*;
        match self {
            DanglingDentry { parent, name, ino } => {
                write!(f, "entry {name} of {parent} names {ino}, which is not there")
            }
            DentryInMissing { parent, name, ino } => {
                write!(f, "entry {name} ({ino}) lies in directory {parent}, which is not there")
            }
            DentryInNonDirectory { parent, name, ino } => {
                write!(f, "entry {name} ({ino}) lies in {parent}, which is no directory")
            }
            WrongKind { parent, name, ino, entry, node } => {
                write!(f, "entry {name} of {parent} says that {ino} is a {entry:?}, the node says {node:?}")
            }
            Orphan { ino, kind } => write!(f, "{kind:?} {ino} has no entry and is not held open"),
            WrongLinks { ino, kind, stored, counted } => {
                write!(f, "{kind:?} {ino} says it has {stored} links, there are {counted}")
            }
            WrongParent { ino, stored, found } => {
                write!(f, "node {ino} says its parent is {stored}, its entry is in {found}")
            }
            WrongLinkParent { ino, parent, stored, counted } => {
                write!(f, "node {ino} says it has {stored} entries in {parent}, there are {counted}")
            }
            Cycle { ino } => write!(f, "directory {ino} does not reach the root"),
            WrongDirStat { dir, stored, counted } => {
                write!(f, "statistics of directory {dir} are {stored:?}, counted {counted:?}")
            }
            WrongCounter { counter, stored, counted } => write!(f, "{counter:?} is {stored}, counted {counted}"),
            DeletedButAlive { ino, length } => write!(f, "{ino} (length {length}) is recorded as deleted and is there"),
            LostChunk { ino, index } => write!(f, "chunk {index} belongs to {ino}, which is not there"),
            WrongReferences { id, size, stored, counted } => {
                write!(f, "slice {id} of {size} bytes is counted {stored} times and mentioned {counted} times")
            }
            LostSlice { id, size, stored } => {
                write!(f, "slice {id} of {size} bytes is counted {stored} times and mentioned nowhere")
            }
            BadSlice { ino, index, slice } => write!(f, "chunk {index} of {ino} has an impossible record {slice:?}"),
            LostXattrs { ino } => write!(f, "extended attributes of {ino}, which is not there"),
            LostLinkParents { ino } => write!(f, "link parents of {ino}, which is not there"),
            LostDirStat { dir } => write!(f, "statistics of directory {dir}, which is not there"),
            MissingTarget { ino } => write!(f, "symlink {ino} has no target"),
            SustainedMissing { session, ino } => write!(f, "session {session} holds {ino} open, which is not there"),
            LowCounter { counter, used: 0 } => write!(f, "{counter:?} is below zero, where no number is"),
            LowCounter { counter, used } => {
                write!(f, "{counter:?} is lower than {used}, which is in use and would be given out once more")
            }
            LockOfNobody { session, ino, sort } => {
                write!(f, "session {session} holds a lock ({sort:?}) of {ino}, and there is no such session")
            }
            MissingAclRule { id, ino } => {
                write!(f, "node {ino} has the ACL {id}, which is not there: its mode alone counts")
            }
            Unreadable { why } => write!(f, "a record cannot be read: {why}"),
        }
    }
}

/// What a check saw.
#[derive(Clone, Debug, Default)]
pub struct Report {
    pub nodes: u64,
    pub entries: u64,
    pub slices: u64,
    pub findings: Vec<Finding>,
}

impl Report {
    pub fn is_clean(&self) -> bool {
        self.findings.is_empty()
    }
}

/// One line per finding after a line of totals.
impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (nodes, entries, slices, found) = (self.nodes, self.entries, self.slices, self.findings.len());
        write!(f, "{nodes} nodes, {entries} entries, {slices} slices, {found} findings")?;
        self.findings.iter().try_for_each(|finding| write!(f, "\n{finding}"))
    }
}

/// What is kept of a node.
struct Node {
    kind: Kind,
    nlink: u32,
    parent: Ino,
    length: u64,
    entries: u32,
    subdirectories: u32,
    /// Of the children; directories only.
    stat: DirStat,
}

impl Node {
    fn new(attr: &Attr) -> Node {
        let Attr { kind, nlink, parent, length, .. } = *attr;
        Node { kind, nlink, parent, length, entries: 0, subdirectories: 0, stat: DirStat::default() }
    }

    fn stat(&self) -> DirStat {
        if self.kind == Kind::File {
            let space = crate::base::align4k(self.length) as i64;
            DirStat { length: self.length as i64, space, inodes: 1 }
        } else {
            DirStat { length: 0, space: 4096, inodes: 1 }
        }
    }
}

/// What is not known in full, for some of it cannot be read.
#[derive(Default)]
struct Gaps {
    nodes: bool,
    entries: bool,
    link_parents: bool,
    slices: bool,
    deleted: bool,
    sessions: bool,
    rules: bool,
}

impl Gaps {
    fn at(&mut self, key: &Scan) {
        match key {
            Scan::Attrs => self.nodes = true,
            Scan::AllDentries => self.entries = true,
            Scan::AllLinkParents => self.link_parents = true,
            Scan::Chunks | Scan::DelayedSlices => self.slices = true,
            Scan::DeletedFiles => self.deleted = true,
            Scan::Sessions | Scan::Sustained(_) => self.sessions = true,
            Scan::AclRules => self.rules = true,
            _ => {}
        }
    }

    /// Whether what is missing may be the reason of the finding.
    fn explain(&self, finding: &Finding) -> bool {
        use Finding::*;
        match finding {
            DanglingDentry { .. }
            | DentryInMissing { .. }
            | LostXattrs { .. }
            | LostLinkParents { .. }
            | LostDirStat { .. }
            | SustainedMissing { .. }
            | WrongCounter { .. } => self.nodes,
            LostChunk { .. } => self.nodes || self.deleted,
            WrongLinks { .. } | WrongDirStat { .. } => self.nodes || self.entries,
            Orphan { .. } => self.entries || self.sessions,
            LockOfNobody { .. } => self.sessions,
            MissingAclRule { .. } => self.rules,
            WrongLinkParent { .. } => self.entries || self.link_parents,
            WrongReferences { .. } | LostSlice { .. } => self.slices,
            DentryInNonDirectory { .. }
            | WrongKind { .. }
            | WrongParent { .. }
            | Cycle { .. }
            | DeletedButAlive { .. }
            | BadSlice { .. }
            | MissingTarget { .. }
            | LowCounter { .. }
            | Unreadable { .. } => false,
        }
    }
}

struct Checker<'a> {
    engine: &'a dyn Engine,
    gaps: Gaps,
    report: Report,
    nodes: HashMap<Ino, Node>,
    /// Entries by (node, directory), of nodes with several parents.
    link_parents: BTreeMap<Ino, BTreeMap<Ino, i64>>,
    sessions: HashSet<SessionId>,
    sustained: HashSet<Ino>,
    deleted: HashSet<Ino>,
    mentions: HashMap<(SliceId, u32), i64>,
    /// The rules of ACLs that nodes name, each with the first of those nodes.
    named_rules: BTreeMap<u32, Ino>,
    in_use: InUse,
}

/// Checks everything the engine stores. The report is the answer; an error means that it could not be read.
pub async fn check(engine: &dyn Engine) -> Outcome<Report> {
    let mut checker = Checker {
        engine,
        gaps: Gaps::default(),
        report: Report::default(),
        nodes: HashMap::new(),
        link_parents: BTreeMap::new(),
        sessions: HashSet::new(),
        sustained: HashSet::new(),
        deleted: HashSet::new(),
        mentions: HashMap::new(),
        named_rules: BTreeMap::new(),
        in_use: InUse::default(),
    };
    checker.attrs().await?;
    checker.entries().await?;
    checker.sustained().await?;
    checker.deleted_files().await?;
    checker.links();
    checker.cycles();
    checker.parents().await?;
    checker.ledgers().await?;
    checker.leftovers().await?;
    checker.slices().await?;
    checker.locks().await?;
    checker.counters().await?;
    let Checker { mut report, gaps, .. } = checker;
    report.findings.retain(|finding| !gaps.explain(finding));
    Ok(report)
}

fn odd(key: Key, record: Record) -> Fault {
    Fault::internal("check").with("key", format_args!("{key:?}")).with("record", format_args!("{record:?}"))
}

impl Checker<'_> {
    fn found(&mut self, finding: Finding) {
        self.report.findings.push(finding);
    }

    fn unreadable(&mut self, fault: &Fault) {
        let finding = Finding::Unreadable { why: fault.to_string() };
        if !self.report.findings.contains(&finding) {
            self.found(finding);
        }
    }

    /// The records of keys; those that cannot be read are findings and count as missing.
    async fn read(&mut self, keys: &[Key]) -> Outcome<Vec<Option<Record>>> {
        let answers = outside(self.engine.read_readable(keys).await)?;
        let record = |answer: Result<Option<Record>, Fault>| {
            answer.unwrap_or_else(|fault| {
                self.unreadable(&fault);
                None
            })
        };
        Ok(answers.into_iter().map(record).collect())
    }

    /// All rows of a scan, page by page.
    async fn each(&mut self, scan: Scan, mut row: impl FnMut(&mut Self, Key, Record) -> Outcome<()>) -> Outcome<()> {
        let mut after: Option<Cursor> = None;
        loop {
            let page = outside(self.engine.scan_readable(&scan, after.as_ref(), PAGE_RECORDS).await)?;
            for fault in &page.unreadable {
                self.gaps.at(&scan);
                self.unreadable(fault);
            }
            for (key, record) in page.rows {
                row(self, key, record)?;
            }
            match page.next {
                Some(next) => after = Some(next),
                None => return Ok(()),
            }
        }
    }

    async fn attrs(&mut self) -> Outcome<()> {
        self.each(Scan::Attrs, |this, key, record| match (key, record) {
            (Key::Attr(ino), Record::Attr(attr)) => {
                this.nodes.insert(ino, Node::new(&attr));
                this.in_use.inode(ino);
                for id in [attr.access_acl, attr.default_acl].into_iter().filter(|id| *id != 0) {
                    let first = this.named_rules.entry(id).or_insert(ino);
                    *first = ino.min(*first);
                }
                Ok(())
            }
            (key, record) => Err(odd(key, record).into()),
        })
        .await?;
        self.report.nodes = self.nodes.len() as u64;
        Ok(())
    }

    async fn entries(&mut self) -> Outcome<()> {
        // An engine may answer an entry twice when it rearranges its store during a scan. A hash
        // stands for a name, to save memory. Two entries hardly ever share one, and each walk has a key of its own, so
        // that the next one would not be mistaken in the same way.
        let (mut seen, hash) = (HashSet::new(), RandomState::new());
        self.each(Scan::AllDentries, |this, key, record| match (key, record) {
            (Key::Dentry(parent, name), Record::Dentry(dentry)) => {
                if seen.insert(hash.hash_one((parent, &name))) {
                    this.entry(parent, name, dentry);
                }
                Ok(())
            }
            (key, record) => Err(odd(key, record).into()),
        })
        .await
    }

    fn entry(&mut self, parent: Ino, name: Name, Dentry { kind, ino }: Dentry) {
        self.report.entries += 1;
        let Some(node) = self.nodes.get_mut(&ino) else {
            return self.found(Finding::DanglingDentry { parent, name, ino });
        };
        node.entries += 1;
        let (stat, node_kind, stored) = (node.stat(), node.kind, node.parent);
        if node_kind != kind {
            self.found(Finding::WrongKind { parent, name: name.clone(), ino, entry: kind, node: node_kind });
        }
        if stored == Ino::MANY {
            *self.link_parents.entry(ino).or_default().entry(parent).or_default() += 1;
        } else if stored != parent {
            self.found(Finding::WrongParent { ino, stored, found: parent });
        }
        match self.nodes.get_mut(&parent) {
            None => self.found(Finding::DentryInMissing { parent, name, ino }),
            Some(dir) if dir.kind != Kind::Directory => self.found(Finding::DentryInNonDirectory { parent, name, ino }),
            Some(dir) => {
                dir.subdirectories += u32::from(node_kind == Kind::Directory);
                dir.stat.length += stat.length;
                dir.stat.space += stat.space;
                dir.stat.inodes += stat.inodes;
            }
        }
    }

    async fn sustained(&mut self) -> Outcome<()> {
        self.each(Scan::Sessions, |this, key, record| match key {
            Key::Session(session) => {
                this.sessions.insert(session);
                this.in_use.session(session);
                Ok(())
            }
            key => Err(odd(key, record).into()),
        })
        .await?;
        let mut sessions: Vec<SessionId> = self.sessions.iter().copied().collect();
        sessions.sort();
        for session in sessions {
            self.each(Scan::Sustained(session), |this, key, record| match key {
                Key::Sustained(_, ino) => {
                    this.sustained.insert(ino);
                    if !this.nodes.contains_key(&ino) {
                        this.found(Finding::SustainedMissing { session, ino });
                    }
                    Ok(())
                }
                key => Err(odd(key, record).into()),
            })
            .await?;
        }
        Ok(())
    }

    async fn deleted_files(&mut self) -> Outcome<()> {
        self.each(Scan::DeletedFiles, |this, key, record| match key {
            Key::DeletedFile(ino, length) => {
                this.deleted.insert(ino);
                this.in_use.inode(ino);
                if this.nodes.contains_key(&ino) {
                    this.found(Finding::DeletedButAlive { ino, length });
                }
                Ok(())
            }
            key => Err(odd(key, record).into()),
        })
        .await
    }

    fn links(&mut self) {
        let mut findings = Vec::new();
        for (&ino, node) in &self.nodes {
            if ino == Ino::ROOT || ino == Ino::TRASH {
                // The trash root counts no sub-directories.
                let counted = 2 + if ino == Ino::ROOT { node.subdirectories } else { 0 };
                if node.nlink != counted {
                    findings.push(Finding::WrongLinks { ino, kind: node.kind, stored: node.nlink, counted });
                }
                continue;
            }
            if node.entries == 0 && !self.sustained.contains(&ino) {
                findings.push(Finding::Orphan { ino, kind: node.kind });
                continue;
            }
            let counted = match node.kind {
                // Nor do the hourly directories.
                Kind::Directory if ino.is_trash() => 2,
                Kind::Directory => 2 + node.subdirectories,
                _ => node.entries,
            };
            if node.nlink != counted {
                findings.push(Finding::WrongLinks { ino, kind: node.kind, stored: node.nlink, counted });
            }
        }
        findings.sort_by_key(|finding| format!("{finding:?}"));
        self.report.findings.extend(findings);
    }

    fn cycles(&mut self) {
        // Whatever reached the root once need not be walked again.
        let mut reaching: HashSet<Ino> = HashSet::from([Ino::ROOT, Ino::TRASH]);
        let mut cyclic: HashSet<Ino> = HashSet::new();
        for (&start, node) in &self.nodes {
            if node.kind != Kind::Directory || node.entries == 0 {
                continue;
            }
            let (mut walk, mut ino) = (Vec::new(), start);
            let reaches = loop {
                if reaching.contains(&ino) {
                    break true;
                }
                // A missing parent is another finding.
                let Some(dir) = self.nodes.get(&ino) else { break true };
                if cyclic.contains(&ino) || walk.contains(&ino) {
                    break false;
                }
                walk.push(ino);
                ino = dir.parent;
            };
            if reaches { reaching.extend(walk) } else { cyclic.extend(walk) }
        }
        let mut cyclic: Vec<Ino> = cyclic.into_iter().collect();
        cyclic.sort();
        self.report.findings.extend(cyclic.into_iter().map(|ino| Finding::Cycle { ino }));
    }

    /// Link-parent counts, asked for by node: some engines derive them.
    async fn parents(&mut self) -> Outcome<()> {
        let counted = std::mem::take(&mut self.link_parents);
        let counted: Vec<(Ino, BTreeMap<Ino, i64>)> = counted.into_iter().collect();
        for chunk in counted.chunks(PAGE_RECORDS) {
            let keys: Vec<Key> = chunk.iter().map(|(ino, _)| Key::LinkParents(*ino)).collect();
            let records = self.read(&keys).await?;
            for ((ino, counted), record) in chunk.iter().zip(records) {
                let stored: BTreeMap<Ino, i64> = match record {
                    Some(Record::LinkParents(parents)) => parents.into_iter().filter(|(_, count)| *count > 0).collect(),
                    _ => BTreeMap::new(),
                };
                let parents: HashSet<Ino> = stored.keys().chain(counted.keys()).copied().collect();
                for parent in parents {
                    let count = |of: &BTreeMap<Ino, i64>| of.get(&parent).copied().unwrap_or(0);
                    if count(&stored) != count(counted) {
                        let (stored, counted) = (count(&stored), count(counted));
                        self.found(Finding::WrongLinkParent { ino: *ino, parent, stored, counted });
                    }
                }
            }
        }
        Ok(())
    }

    /// Statistics of directories and of the volume, and quotas.
    async fn ledgers(&mut self) -> Outcome<()> {
        self.each(Scan::DirStats, |this, key, record| match (key, record) {
            (Key::DirStat(dir), Record::DirStat(stored)) => {
                match this.nodes.get(&dir).map(|node| node.stat) {
                    None => this.found(Finding::LostDirStat { dir }),
                    Some(counted) if counted != stored => this.found(Finding::WrongDirStat { dir, stored, counted }),
                    Some(_) => {}
                }
                Ok(())
            }
            (key, record) => Err(odd(key, record).into()),
        })
        .await?;
        let counted = self.nodes.iter().filter(|(ino, _)| ![Ino::ROOT, Ino::TRASH].contains(ino));
        let (space, inodes) =
            counted.fold((0, 0), |(space, inodes), (_, node)| (space + node.stat().space, inodes + 1));
        let counters = [(Counter::UsedSpace, space), (Counter::TotalInodes, inodes)];
        let stored = self.read(&counters.map(|(counter, _)| Key::Counter(counter))).await?;
        for ((counter, counted), record) in counters.into_iter().zip(stored) {
            let stored = if let Some(Record::Number(stored)) = record { stored } else { 0 };
            if stored != counted {
                self.found(Finding::WrongCounter { counter, stored, counted });
            }
        }
        // What they count is best effort, and whose they are is for their owner to say.
        self.each(Scan::Quotas, |_, _, _| Ok(())).await
    }

    /// Parts of nodes that are not there, and nodes that lack a part.
    async fn leftovers(&mut self) -> Outcome<()> {
        self.each(Scan::AllXattrs, |this, key, record| match key {
            Key::Xattrs(ino) => {
                if !this.nodes.contains_key(&ino) {
                    this.found(Finding::LostXattrs { ino });
                }
                Ok(())
            }
            key => Err(odd(key, record).into()),
        })
        .await?;
        self.each(Scan::AllLinkParents, |this, key, record| match (key, record) {
            (Key::LinkParents(ino), Record::LinkParents(parents)) => {
                if !this.nodes.contains_key(&ino) && parents.iter().any(|(_, count)| *count > 0) {
                    this.found(Finding::LostLinkParents { ino });
                }
                Ok(())
            }
            (key, record) => Err(odd(key, record).into()),
        })
        .await?;
        let mut symlinks: Vec<Ino> =
            self.nodes.iter().filter(|(_, node)| node.kind == Kind::Symlink).map(|(ino, _)| *ino).collect();
        symlinks.sort();
        for chunk in symlinks.chunks(PAGE_RECORDS) {
            let keys: Vec<Key> = chunk.iter().map(|ino| Key::Symlink(*ino)).collect();
            let records = self.read(&keys).await?;
            for (ino, _) in chunk.iter().zip(records).filter(|(_, record)| record.is_none()) {
                self.found(Finding::MissingTarget { ino: *ino });
            }
        }
        // A rule is there before a node has its number, and stays; the nodes were read before.
        self.each(Scan::AclRules, |this, key, record| match key {
            Key::AclRule(id) => {
                this.named_rules.remove(&id);
                this.in_use.rule(id);
                Ok(())
            }
            key => Err(odd(key, record).into()),
        })
        .await?;
        for (id, ino) in std::mem::take(&mut self.named_rules) {
            self.found(Finding::MissingAclRule { id, ino });
        }
        Ok(())
    }

    async fn slices(&mut self) -> Outcome<()> {
        let mut seen: HashSet<(Ino, ChunkIndex)> = HashSet::new();
        self.each(Scan::Chunks, |this, key, record| match (key, record) {
            (Key::Chunk(ino, index), Record::Slices(slices)) => {
                if seen.insert((ino, index)) {
                    this.chunk(ino, index, &slices);
                }
                Ok(())
            }
            (key, record) => Err(odd(key, record).into()),
        })
        .await?;
        self.each(Scan::DelayedSlices, |this, key, record| match record {
            // Each stays counted until its time has come.
            Record::Slices(slices) => {
                slices.iter().for_each(|slice| this.mention(slice));
                slices.iter().for_each(|slice| this.in_use.slice(slice.id));
                Ok(())
            }
            record => Err(odd(key, record).into()),
        })
        .await?;
        self.report.slices = self.mentions.len() as u64;
        self.each(Scan::SliceRefs, |this, key, record| match (key, record) {
            // Holes are no slice; a loader of the peer counts them all the same (`spec/metadata.md` 9.1).
            (Key::SliceRef(SliceId(0), _), Record::Number(_)) => Ok(()),
            (Key::SliceRef(id, size), Record::Number(stored)) => {
                this.in_use.slice(id);
                match this.mentions.remove(&(id, size)) {
                    Some(counted) if counted != stored => {
                        this.found(Finding::WrongReferences { id, size, stored, counted });
                    }
                    // Zero and less wait for their objects to be removed.
                    None if stored > 0 => this.found(Finding::LostSlice { id, size, stored }),
                    _ => {}
                }
                Ok(())
            }
            (key, record) => Err(odd(key, record).into()),
        })
        .await?;
        // Without a record a slice has one reference.
        let mut uncounted: Vec<_> = self.mentions.drain().filter(|(_, counted)| *counted != 1).collect();
        uncounted.sort();
        for ((id, size), counted) in uncounted {
            self.found(Finding::WrongReferences { id, size, stored: 1, counted });
        }
        Ok(())
    }

    fn chunk(&mut self, ino: Ino, index: ChunkIndex, slices: &[Slice]) {
        if !self.nodes.contains_key(&ino) && !self.deleted.contains(&ino) {
            self.found(Finding::LostChunk { ino, index });
            self.in_use.inode(ino);
        }
        for slice in slices {
            if slice.is_possible() {
                self.in_use.slice(slice.id);
            } else {
                self.found(Finding::BadSlice { ino, index, slice: *slice });
            }
            self.mention(slice);
        }
    }

    fn mention(&mut self, slice: &Slice) {
        if slice.id != SliceId(0) {
            *self.mentions.entry((slice.id, slice.size)).or_default() += 1;
        }
    }
}
