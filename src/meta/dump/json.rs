//! Writes the JSON form (`spec/metadata.md` 9.1), byte for byte as the peer lays it out.
//!
//! The tree is walked with a stack of open directories, so it may be as deep as it likes. A directory's entries are in
//! the order of their names and nodes carry no trace of the engine, so the same tree is the same text on each of them.

use super::seen::Seen;
use super::text::{escape, json_string};
use super::tree::{Listing, NODES_AT_A_TIME, Node, Tree};
use super::{Course, DumpOptions, Dumped, Out, PAGE_RECORDS, Pages, Sink};
use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Fault, Ino, Kind, Outcome, SessionId, Slice};
use crate::meta::engine::{Engine, Scan};
use crate::meta::record::{Counter, Key, Quota, QuotaOwner, Record};
use crate::meta::txn;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use std::collections::{BTreeMap, HashMap};
use std::fmt::Write as _;

const PHASE: &str = "dumped entries";

/// What the form calls the kinds of nodes.
pub fn kind_name(kind: Kind) -> &'static str {
    match kind {
        Kind::File => "regular",
        Kind::Directory => "directory",
        Kind::Symlink => "symlink",
        Kind::Fifo => "fifo",
        Kind::BlockDevice => "blockdev",
        Kind::CharDevice => "chardev",
        Kind::Socket => "socket",
    }
}

/// Writes a dump of the volume, or of the directory at `options.top`.
pub async fn dump(engine: &dyn Engine, options: &DumpOptions, sink: &mut dyn Sink, course: &Course) -> Outcome<Dumped> {
    let mut writer = Writer {
        engine,
        tree: Tree::new(engine, options.threads),
        out: Out::new(sink),
        rules: rules(engine).await?,
        directories: Seen::default(),
        course,
        dumped: Dumped::default(),
    };
    writer.out.text("{\n  \"Setting\": ");
    writer.out.put(&options.setting);
    writer.counters().await?;
    writer.sustained().await?;
    writer.deleted_files().await?;
    writer.quotas(options.top == Ino::ROOT).await?;
    let top = writer.tree.node(options.top).await?;
    let top = top.filter(|node| node.attr.is_dir()).ok_or_else(|| {
        Fault::corrupt("dump metadata").with("inode", options.top).source("there is no such directory in the volume")
    })?;
    writer.out.text(",\n  \"FSTree\": ");
    writer.tree_of(options.top, top).await?;
    if options.top == Ino::ROOT
        && !options.skip_trash
        && let Some(trash) = writer.tree.node(Ino::TRASH).await?
    {
        writer.out.text(",\n  \"Trash\": ");
        writer.tree_of(Ino::TRASH, trash).await?;
    }
    writer.out.text("\n}\n");
    writer.out.finish().await?;
    Ok(writer.dumped)
}

/// All ACL rules; nodes share them, so there are few.
async fn rules(engine: &dyn Engine) -> Outcome<HashMap<u32, AclRule>> {
    let mut rules = HashMap::new();
    let mut pages = Pages::new(engine, Scan::AclRules, PAGE_RECORDS);
    while let Some(page) = pages.next().await? {
        rules.extend(page.rows.into_iter().filter_map(|row| match row {
            (Key::AclRule(id), Record::AclRule(rule)) => Some((id, rule)),
            _ => None,
        }));
    }
    Ok(rules)
}

struct Writer<'a> {
    engine: &'a dyn Engine,
    tree: Tree<'a>,
    out: Out<'a>,
    rules: HashMap<u32, AclRule>,
    /// Written already: one that is moved meanwhile is met again, and nothing is loaded that has it twice.
    directories: Seen,
    course: &'a Course,
    dumped: Dumped,
}

/// A directory whose entries are being written.
struct Open {
    listing: Listing,
    /// The next entry to read.
    next: usize,
    /// Entries that were read, the first of them last.
    read: Vec<(usize, Node)>,
    first: bool,
}

impl Writer<'_> {
    async fn counters(&mut self) -> Outcome<()> {
        // Inodes and slices in the sense of "the first one free".
        const COUNTERS: [(&str, Counter, i64); 6] = [
            ("usedSpace", Counter::UsedSpace, 0),
            ("usedInodes", Counter::TotalInodes, 0),
            ("nextInodes", Counter::NextInode, 1),
            ("nextChunk", Counter::NextSlice, 1),
            ("nextSession", Counter::NextSession, 0),
            ("nextTrash", Counter::NextTrash, 0),
        ];
        let keys = COUNTERS.map(|(_, counter, _)| Key::Counter(counter));
        let records = txn::read(self.engine, &keys).await?;
        self.out.text(",\n  \"Counters\": {");
        let mut separator = "";
        for ((name, _, shift), record) in COUNTERS.iter().zip(records) {
            let stored = match record {
                Some(Record::Number(stored)) => stored,
                // Inode 1 is the root's.
                _ => i64::from(*name == "nextInodes"),
            };
            self.out.text(&format!("{separator}\n    \"{name}\": {}", stored.saturating_add(*shift)));
            separator = ",";
        }
        self.out.text("\n  }");
        Ok(())
    }

    async fn sustained(&mut self) -> Outcome<()> {
        let mut sessions: Vec<SessionId> = Vec::new();
        let mut pages = Pages::new(self.engine, Scan::Sessions, PAGE_RECORDS);
        while let Some(page) = pages.next().await? {
            sessions.extend(page.rows.into_iter().filter_map(|row| match row {
                (Key::Session(session), _) => Some(session),
                _ => None,
            }));
        }
        sessions.sort_unstable();
        sessions.dedup();
        self.out.text(",\n  \"Sustained\": [");
        let mut separator = "";
        for session in sessions {
            let mut inodes = sustained_of(self.engine, session).await?;
            if inodes.is_empty() {
                continue;
            }
            inodes.sort_unstable();
            let inodes: Vec<String> = inodes.iter().map(|ino| format!("\n        {ino}")).collect();
            self.out.text(&format!(
                "{separator}\n    {{\n      \"sid\": {session},\n      \"inodes\": [{}\n      ]\n    }}",
                inodes.join(",")
            ));
            separator = ",";
        }
        self.out.text(if separator.is_empty() { "]" } else { "\n  ]" });
        Ok(())
    }

    async fn deleted_files(&mut self) -> Outcome<()> {
        self.out.text(",\n  \"DelFiles\": [");
        let mut separator = "";
        let mut pages = Pages::new(self.engine, Scan::DeletedFiles, PAGE_RECORDS);
        while let Some(mut page) = pages.next().await? {
            let place = |(key, _): &(Key, Record)| match key {
                Key::DeletedFile(ino, length) => (*ino, *length),
                _ => (Ino(0), 0),
            };
            page.rows.sort_by_key(place);
            for row in page.rows {
                let (Key::DeletedFile(ino, length), Record::Number(time)) = row else { continue };
                self.out.text(&format!(
                    "{separator}\n    {{\n      \"inode\": {ino},\n      \"length\": {length},\n      \"expire\": {time}\n    }}"
                ));
                separator = ",";
            }
            self.out.pass_on().await?;
            self.course.step("dumped deleted files", 0)?;
        }
        self.out.text(if separator.is_empty() { "]" } else { "\n  ]" });
        Ok(())
    }

    /// Those of users and groups belong to the whole volume.
    async fn quotas(&mut self, whole: bool) -> Outcome<()> {
        let (mut dirs, mut users, mut groups) = (BTreeMap::new(), BTreeMap::new(), BTreeMap::new());
        let mut pages = Pages::new(self.engine, Scan::Quotas, PAGE_RECORDS);
        while let Some(page) = pages.next().await? {
            for row in page.rows {
                let (Key::Quota(owner), Record::Quota(quota)) = row else { continue };
                // The record of an owner without limits is about usage alone.
                let limited = quota.max_space >= 0 || quota.max_inodes >= 0;
                match owner {
                    QuotaOwner::Directory(ino) => drop(dirs.insert(ino.0, quota)),
                    QuotaOwner::User(uid) if limited && whole => drop(users.insert(u64::from(uid), quota)),
                    QuotaOwner::Group(gid) if limited && whole => drop(groups.insert(u64::from(gid), quota)),
                    QuotaOwner::User(_) | QuotaOwner::Group(_) => {}
                }
            }
        }
        for (name, quotas) in [("Quotas", dirs), ("UserQuotas", users), ("GroupQuotas", groups)] {
            self.quotas_of(name, &quotas);
        }
        Ok(())
    }

    fn quotas_of(&mut self, name: &str, quotas: &BTreeMap<u64, Quota>) {
        if quotas.is_empty() {
            return;
        }
        // The peer's library sorts keys as texts.
        let mut sorted: Vec<(String, &Quota)> = quotas.iter().map(|(key, quota)| (key.to_string(), quota)).collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        let quotas: Vec<String> = sorted
            .iter()
            .map(|(key, quota)| {
                let Quota { max_space, max_inodes, .. } = quota;
                format!(
                    "\n    \"{key}\": {{\n      \"maxSpace\": {max_space},\n      \"maxInodes\": {max_inodes}\n    }}"
                )
            })
            .collect();
        self.out.text(&format!(",\n  \"{name}\": {{{}\n  }}", quotas.join(",")));
    }

    /// Writes the object of a directory with everything below it.
    async fn tree_of(&mut self, ino: Ino, top: Node) -> Outcome<()> {
        let mut stack: Vec<Open> = Vec::new();
        self.directories.insert(ino.0);
        self.node(ino, &top, 1);
        stack.push(self.open(ino, top).await?);
        while let Some(open) = stack.last_mut() {
            if open.read.is_empty() && open.next < open.listing.len() {
                self.read_on(open).await?;
                continue;
            }
            let depth = stack.len();
            let Some(open) = stack.last_mut() else { break };
            let Some((index, node)) = open.read.pop() else {
                // The end of a directory: of its entries, and of its object.
                self.out.text("\n");
                self.indent(2 * depth);
                self.out.text("}\n");
                self.indent(2 * depth - 1);
                self.out.text("}");
                stack.pop();
                continue;
            };
            let ino = open.listing.ino(index);
            if node.attr.is_dir() && !self.directories.insert(ino.0) {
                let name = open.listing.name(index).escape_ascii();
                tracing::warn!(%name, %ino, "left out: a directory that was dumped already; it was moved meanwhile");
                continue;
            }
            self.out.text(if open.first { "\n" } else { ",\n" });
            open.first = false;
            self.indent(2 * depth + 1);
            self.out.put(b"\"");
            escape(&mut self.out.gathered, open.listing.name(index));
            self.out.text("\": ");
            self.node(ino, &node, 2 * depth + 1);
            if node.attr.is_dir() {
                let open = self.open(ino, node).await?;
                stack.push(open);
            } else {
                self.out.text("\n");
                self.indent(2 * depth + 1);
                self.out.text("}");
            }
            self.out.pass_on().await?;
        }
        Ok(())
    }

    async fn open(&mut self, ino: Ino, node: Node) -> Outcome<Open> {
        let listing = match node.ahead {
            Some(listing) => {
                self.tree.used(&listing);
                listing
            }
            None => self.tree.listing(ino).await?,
        };
        Ok(Open { listing, next: 0, read: Vec::new(), first: true })
    }

    /// Reads the next nodes of a directory.
    async fn read_on(&mut self, open: &mut Open) -> Outcome<()> {
        let range = open.next..open.listing.len().min(open.next + NODES_AT_A_TIME);
        let nodes = self.tree.nodes(&open.listing, range.clone()).await?;
        open.next = range.end;
        for (index, node) in range.zip(nodes).rev() {
            match node {
                Some(node) => open.read.push((index, node)),
                None => {
                    let name = open.listing.name(index).escape_ascii();
                    tracing::warn!(%name, ino = %open.listing.ino(index), "left out: an entry without a node");
                    self.dumped.dangling += 1;
                }
            }
        }
        self.dumped.entries += open.read.len() as u64;
        self.course.step(PHASE, open.read.len() as u64)
    }

    fn indent(&mut self, levels: usize) {
        for _ in 0..levels {
            self.out.text("  ");
        }
    }

    /// The object of a node up to its end, which follows the entries of a directory. `level` is that of its brace.
    fn node(&mut self, ino: Ino, node: &Node, level: usize) {
        let key = |writer: &mut Self, name: &str| {
            writer.out.text(",\n");
            writer.indent(level + 1);
            writer.out.text(&format!("\"{name}\": "));
        };
        self.out.text("{\n");
        self.indent(level + 1);
        self.out.text(&attr_text(ino, &node.attr));
        if node.attr.kind == Kind::Symlink {
            key(self, "symlink");
            self.out.put(b"\"");
            escape(&mut self.out.gathered, &node.target);
            self.out.put(b"\"");
        }
        if !node.xattrs.is_empty() {
            key(self, "xattrs");
            self.xattrs(&node.xattrs);
        }
        for (name, id) in [("posix_acl_access", node.attr.access_acl), ("posix_acl_default", node.attr.default_acl)] {
            if id == 0 {
                continue;
            }
            match self.rules.get(&id) {
                Some(rule) => {
                    let text = rule_text(rule);
                    key(self, name);
                    self.out.text(&text);
                }
                None => tracing::warn!(%ino, id, "left out: an ACL rule that is not there"),
            }
        }
        if node.attr.is_file() && !node.chunks.is_empty() {
            key(self, "chunks");
            self.chunks(&node.chunks, level + 1);
        }
        if node.attr.is_dir() {
            key(self, "entries");
            self.out.text("{");
        }
    }

    fn xattrs(&mut self, xattrs: &[(crate::base::Name, Bytes)]) {
        let mut sorted: Vec<_> = xattrs.iter().collect();
        sorted.sort_by(|a, b| a.0.cmp(&b.0));
        for (at, (name, value)) in sorted.into_iter().enumerate() {
            self.out.text(if at == 0 { "[{\"name\":" } else { ",{\"name\":" });
            json_string(&mut self.out.gathered, name.as_bytes());
            if std::str::from_utf8(name.as_bytes()).is_err() {
                self.out.text(&format!(",\"raw\":\"{}\"", BASE64.encode(name.as_bytes())));
            }
            let mut escaped = Vec::with_capacity(value.len());
            escape(&mut escaped, value);
            self.out.text(",\"value\":");
            json_string(&mut self.out.gathered, &escaped);
            self.out.text("}");
        }
        self.out.text("]");
    }

    /// One chunk stands on the line of its key; several have a line each.
    fn chunks(&mut self, chunks: &[(ChunkIndex, Vec<Slice>)], level: usize) {
        if let [(index, slices)] = chunks {
            self.out.text(&format!("[{}]", chunk_text(*index, slices)));
            return;
        }
        self.out.text("[");
        for (at, (index, slices)) in chunks.iter().enumerate() {
            self.out.text(if at == 0 { "\n" } else { ",\n" });
            self.indent(level + 1);
            self.out.text(&chunk_text(*index, slices));
        }
        self.out.text("\n");
        self.indent(level);
        self.out.text("]");
    }
}

/// The inodes that a session keeps alive.
pub(super) async fn sustained_of(engine: &dyn Engine, session: SessionId) -> Outcome<Vec<Ino>> {
    let mut inodes = Vec::new();
    let mut pages = Pages::new(engine, Scan::Sustained(session), PAGE_RECORDS);
    while let Some(page) = pages.next().await? {
        inodes.extend(page.rows.into_iter().filter_map(|(key, _)| match key {
            Key::Sustained(_, ino) => Some(ino),
            _ => None,
        }));
    }
    inodes.sort_unstable();
    inodes.dedup();
    Ok(inodes)
}

/// `"attr": {…}`, on one line. The parent follows from the tree, and so does the length of what is no file.
fn attr_text(ino: Ino, attr: &Attr) -> String {
    let mut text = format!("\"attr\": {{\"inode\":{ino}");
    // Writing into a String cannot fail.
    let field = |text: &mut String, name: &str, value: u64| {
        let _ = write!(text, ",\"{name}\":{value}");
    };
    let unless_zero = |text: &mut String, name: &str, value: u64| {
        if value != 0 {
            field(text, name, value);
        }
    };
    unless_zero(&mut text, "flags", attr.flags.into());
    let _ = write!(text, ",\"type\":\"{}\"", kind_name(attr.kind));
    field(&mut text, "mode", attr.mode.into());
    field(&mut text, "uid", attr.uid.into());
    field(&mut text, "gid", attr.gid.into());
    for (name, time) in [("atime", attr.atime), ("mtime", attr.mtime), ("ctime", attr.ctime)] {
        let _ = write!(text, ",\"{name}\":{}", time.seconds);
    }
    unless_zero(&mut text, "atimensec", attr.atime.nanos.into());
    unless_zero(&mut text, "mtimensec", attr.mtime.nanos.into());
    unless_zero(&mut text, "ctimensec", attr.ctime.nanos.into());
    field(&mut text, "nlink", attr.nlink.into());
    field(&mut text, "length", if attr.is_file() { attr.length } else { 0 });
    unless_zero(&mut text, "rdev", attr.rdev.into());
    unless_zero(&mut text, "tier", attr.tier.into());
    text.push('}');
    text
}

fn rule_text(rule: &AclRule) -> String {
    let entries = |entries: &[(u32, u16)]| {
        if entries.is_empty() {
            return "null".to_owned();
        }
        let all: Vec<String> = entries.iter().map(|(id, perm)| format!("{{\"id\":{id},\"perm\":{perm}}}")).collect();
        format!("[{}]", all.join(","))
    };
    format!(
        "{{\"owner\":{},\"group\":{},\"other\":{},\"mask\":{},\"users\":{},\"groups\":{}}}",
        rule.owner,
        rule.group,
        rule.other,
        rule.mask,
        entries(&rule.users),
        entries(&rule.groups)
    )
}

fn chunk_text(index: ChunkIndex, slices: &[Slice]) -> String {
    let mut text = format!("{{\"index\":{index},\"slices\":[");
    for (at, slice) in slices.iter().enumerate() {
        let _ = write!(text, "{}{{\"id\":{}", if at == 0 { "" } else { "," }, slice.id);
        if slice.pos != 0 {
            let _ = write!(text, ",\"pos\":{}", slice.pos);
        }
        let _ = write!(text, ",\"size\":{}", slice.size);
        if slice.off != 0 {
            let _ = write!(text, ",\"off\":{}", slice.off);
        }
        let _ = write!(text, ",\"len\":{}}}", slice.len);
    }
    text.push_str("]}");
    text
}
