//! Loads the JSON form (`spec/metadata.md` 9.1) into an empty database.
//!
//! The tree is read as it comes. A node is committed when its object ends, a directory after everything in it, so what
//! is in memory is the path to where the reader is. What a tree says of itself is counted anew: links, statistics,
//! usage of quotas, references of slices. Of a node with several names the first object counts, and the others are
//! links to it. A directory has one name, so its second object is left out: dumps of volumes in use may have one.
//!
//! Numbers of inodes and slices go on behind those of the dump or of its counters, whichever is higher: the peer starts
//! again behind the tree alone, and may hand out the slice of a file that was deleted a moment before the dump.

use super::loader::{Loader, Wishes, admitted, whole_or_nothing};
use super::pull::Pull;
use super::seen::Seen;
use super::text::unescape;
use super::{Admit, Course, Loaded};
use crate::base::acl::AclRule;
use crate::base::{Attr, ChunkIndex, Fault, Ino, Kind, Name, Outcome, Slice, SliceId, Timestamp};
use crate::meta::engine::{Change, Engine};
use crate::meta::record::{Counter, Dentry, DirStat, Key, Quota, QuotaOwner, Record};
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD as BASE64;
use bytes::Bytes;
use std::collections::HashMap;
use std::io::Read;
use std::sync::Arc;

const PHASE: &str = "loaded entries";
/// Directories inside of one another. A path of so many parts cannot even be said, and they are all in memory.
const DEPTH_MAX: usize = 1 << 20;
/// Counters beyond this are damage; what is handed out next must stay a number.
const COUNTER_MAX: i64 = i64::MAX / 2;

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
            pull: Pull::new(input),
            loader: Loader::new(commits, course),
            setting: None,
            counters: Counters::default(),
            limits: HashMap::new(),
            usage: HashMap::new(),
            inodes: Seen::default(),
            rules: HashMap::new(),
            in_trash: false,
            has_tree: false,
            last_inode: 1,
            last_hour: 0,
            inode_count: 0,
            space: 0,
        };
        loading.document(admit).await
    })
    .await
}

#[derive(Default)]
struct Counters {
    next_inode: i64,
    next_slice: i64,
    next_session: i64,
    next_trash: i64,
}

struct Loading<'a> {
    pull: Pull<'a>,
    loader: Loader<'a>,
    setting: Option<(Bytes, Wishes)>,
    counters: Counters,
    limits: HashMap<QuotaOwner, (i64, i64)>,
    /// Of users and groups.
    usage: HashMap<QuotaOwner, (i64, i64)>,
    inodes: Seen,
    rules: HashMap<AclRule, u32>,
    in_trash: bool,
    has_tree: bool,
    last_inode: u64,
    last_hour: u64,
    inode_count: u64,
    space: u64,
}

/// An object of the tree while it is read.
struct Node {
    /// Empty for the top of a tree.
    name: Vec<u8>,
    parent: Ino,
    /// What `attr` said; comes first.
    attr: Option<(Ino, Attr)>,
    /// Another object was there for the same node.
    again: bool,
    target: Option<Bytes>,
    /// Of a directory: what is in it, and what is below it.
    children: DirStat,
    directories: u32,
    below: DirStat,
    /// The name of the entry before, to notice when it comes twice.
    last: Vec<u8>,
}

impl Node {
    fn new(name: Vec<u8>, parent: Ino) -> Node {
        Node {
            name,
            parent,
            attr: None,
            again: false,
            target: None,
            children: DirStat::default(),
            directories: 0,
            below: DirStat::default(),
            last: Vec::new(),
        }
    }
}

impl Loading<'_> {
    async fn document(&mut self, admit: &Admit) -> Outcome<Loaded> {
        self.pull.object()?;
        let mut key = Vec::new();
        while self.pull.key(&mut key)? {
            match key.as_slice() {
                b"Setting" => {
                    let document = self.pull.raw()?;
                    self.setting = Some(admitted(admit, &document)?);
                }
                b"Counters" => self.counters()?,
                b"DelFiles" => self.deleted_files().await?,
                b"Quotas" => self.quotas(|number| Some(QuotaOwner::Directory(Ino(number))))?,
                b"UserQuotas" => self.quotas(|number| u32::try_from(number).ok().map(QuotaOwner::User))?,
                b"GroupQuotas" => self.quotas(|number| u32::try_from(number).ok().map(QuotaOwner::Group))?,
                b"FSTree" => {
                    if self.setting.is_none() {
                        return Err(self.pull.wrong("the tree comes before the format document of the volume").into());
                    }
                    if std::mem::replace(&mut self.has_tree, true) {
                        return Err(self.pull.wrong("there are two trees").into());
                    }
                    self.tree().await?;
                }
                b"Trash" if self.pull.null()? => {}
                b"Trash" => {
                    if !self.has_tree {
                        return Err(self.pull.wrong("the trash comes before the tree").into());
                    }
                    self.in_trash = true;
                    self.tree().await?;
                }
                // What lives in a session dies with it; and whatever comes in later versions.
                _ => self.pull.skip()?,
            }
        }
        self.pull.end()?;
        let Some((setting, wishes)) = self.setting.take() else {
            return Err(self.pull.wrong("there is no format document of a volume in it").into());
        };
        if !self.has_tree {
            return Err(self.pull.wrong("there is no tree in it").into());
        }
        self.owner_quotas(wishes);
        let Counters { next_inode, next_slice, next_session, next_trash } = self.counters;
        let last = |used: u64, counter: i64| i64::try_from(used).unwrap_or(COUNTER_MAX).max(counter);
        let counters = [
            (Counter::NextInode, last(self.last_inode, next_inode - 1)),
            (Counter::NextSlice, last(self.loader.last_slice, next_slice - 1)),
            (Counter::NextSession, next_session),
            (Counter::NextTrash, last(self.last_hour, next_trash)),
            (Counter::AclMaxId, self.rules.len() as i64),
            (Counter::UsedSpace, self.space as i64),
            (Counter::TotalInodes, self.inode_count as i64),
        ];
        // Without a rule there is no number of one.
        let counters: Vec<_> =
            counters.into_iter().filter(|(counter, last)| *counter != Counter::AclMaxId || *last > 0).collect();
        self.loader.finish(&counters, setting).await?;
        Ok(Loaded { inodes: self.inode_count, space: self.space, left_out: self.loader.left_out })
    }

    fn counters(&mut self) -> Result<(), Fault> {
        self.pull.object()?;
        let mut key = Vec::new();
        while self.pull.key(&mut key)? {
            let counter = match key.as_slice() {
                b"nextInodes" => &mut self.counters.next_inode,
                b"nextChunk" => &mut self.counters.next_slice,
                b"nextSession" => &mut self.counters.next_session,
                b"nextTrash" => &mut self.counters.next_trash,
                _ => {
                    self.pull.skip()?;
                    continue;
                }
            };
            *counter = self.pull.integer("Counters")?;
            if !(0..=COUNTER_MAX).contains(counter) {
                return Err(self.pull.wrong("a counter is out of range"));
            }
        }
        Ok(())
    }

    async fn deleted_files(&mut self) -> Outcome<()> {
        if self.pull.null()? {
            return Ok(());
        }
        self.pull.array()?;
        while self.pull.element()? {
            let (mut ino, mut length, mut time, mut key) = (0, 0, 0, Vec::new());
            self.pull.object()?;
            while self.pull.key(&mut key)? {
                match key.as_slice() {
                    b"inode" => ino = self.pull.integer("inode")?,
                    b"length" => length = self.pull.integer("length")?,
                    b"expire" => time = self.pull.integer("expire")?,
                    _ => self.pull.skip()?,
                }
            }
            if length > crate::base::attr::LENGTH_BYTES_POSSIBLE {
                return Err(self.pull.wrong("the length of a deleted file is out of range").into());
            }
            self.loader.put(Key::DeletedFile(Ino(ino), length), Record::Number(time));
            self.loader.go_on("loaded deleted files", 1).await?;
        }
        Ok(())
    }

    fn quotas(&mut self, owner: impl Fn(u64) -> Option<QuotaOwner>) -> Result<(), Fault> {
        if self.pull.null()? {
            return Ok(());
        }
        self.pull.object()?;
        let (mut number, mut key) = (Vec::new(), Vec::new());
        while self.pull.key(&mut number)? {
            let parsed = std::str::from_utf8(&number).ok().and_then(|text| text.parse().ok()).and_then(&owner);
            let Some(owner) = parsed else {
                return Err(self.pull.wrong("a quota belongs to something that is no number"));
            };
            let mut limits = (-1, -1);
            self.pull.object()?;
            while self.pull.key(&mut key)? {
                match key.as_slice() {
                    b"maxSpace" => limits.0 = self.pull.integer("maxSpace")?,
                    b"maxInodes" => limits.1 = self.pull.integer("maxInodes")?,
                    _ => self.pull.skip()?,
                }
            }
            self.limits.insert(owner, limits);
        }
        Ok(())
    }

    /// Reads one of the two trees.
    async fn tree(&mut self) -> Outcome<()> {
        let mut path: Vec<Node> = Vec::new();
        self.pull.object()?;
        let mut node = Node::new(Vec::new(), Ino::ROOT);
        let mut key = Vec::new();
        loop {
            if !self.pull.key(&mut key)? {
                // The end of an object. The next one of the directory follows, or that ends as well.
                let Some(parent) = path.last_mut() else { return self.finished(node, None).await };
                self.finished(node, Some(parent)).await?;
                node = self.next_in(&mut path)?;
                continue;
            }
            if key != b"entries" {
                self.part(&key, &mut node)?;
                continue;
            }
            if self.pull.null()? {
                continue;
            }
            let (_, attr) = self.identified(&node)?;
            if node.again {
                // See `finished`.
                self.pull.skip()?;
                continue;
            }
            if !attr.is_dir() {
                return Err(self.pull.wrong("what is no directory has entries").into());
            }
            if path.len() >= DEPTH_MAX {
                return Err(self.pull.wrong("directories lie deeper inside of one another than they can").into());
            }
            self.pull.object()?;
            path.push(node);
            node = self.next_in(&mut path)?;
        }
    }

    /// The next entry of the innermost directory, or that directory itself when it has no more.
    fn next_in(&mut self, path: &mut Vec<Node>) -> Outcome<Node> {
        let Some(dir) = path.last_mut() else { return Err(self.pull.wrong("an object ends that never began").into()) };
        let mut escaped = Vec::new();
        if !self.pull.key(&mut escaped)? {
            let dir = path.pop();
            return dir.ok_or_else(|| self.pull.wrong("an object ends that never began").into());
        }
        let name = unescape(&escaped);
        if !Name::stored(name.as_slice()).is_possible_entry() {
            return Err(self.pull.wrong("no entry can have this name").into());
        }
        if name == dir.last {
            return Err(self.pull.wrong("a directory has the same name twice").into());
        }
        dir.last.clone_from(&name);
        let (parent, _) = self.identified(path.last().unwrap_or(&Node::new(Vec::new(), Ino::ROOT)))?;
        self.pull.object()?;
        Ok(Node::new(name, parent))
    }

    fn identified(&self, node: &Node) -> Result<(Ino, Attr), Fault> {
        node.attr.ok_or_else(|| self.pull.wrong("the attributes of a node must come first"))
    }

    /// One key of a node's object.
    fn part(&mut self, key: &[u8], node: &mut Node) -> Outcome<()> {
        match key {
            b"attr" => self.attr(node)?,
            b"symlink" => {
                let mut text = Vec::new();
                self.pull.string(&mut text)?;
                node.target = Some(unescape(&text).into());
            }
            b"xattrs" => self.xattrs(node)?,
            b"posix_acl_access" => {
                let id = self.rule(node)?;
                if let Some((_, attr)) = &mut node.attr {
                    attr.access_acl = id;
                }
            }
            b"posix_acl_default" => {
                let id = self.rule(node)?;
                if let Some((_, attr)) = &mut node.attr {
                    attr.default_acl = id;
                }
            }
            b"chunks" => self.chunks(node)?,
            _ => self.pull.skip()?,
        }
        Ok(())
    }

    fn attr(&mut self, node: &mut Node) -> Outcome<()> {
        if node.attr.is_some() {
            return Err(self.pull.wrong("a node has its attributes twice").into());
        }
        let (ino, attr) = self.attributes()?;
        let top = node.name.is_empty();
        // The top of a dump of a directory becomes the root.
        let ino = if top && !self.in_trash { Ino::ROOT } else { ino };
        let hour = self.in_trash && node.parent == Ino::TRASH && ino.is_hourly() && attr.is_dir();
        let fits = match (top, self.in_trash) {
            (true, false) => attr.is_dir(),
            (true, true) => attr.is_dir() && ino == Ino::TRASH,
            (false, _) => hour || (ino > Ino::ROOT && ino < Ino::VIRTUAL_FIRST),
        };
        if !fits {
            return Err(self.pull.wrong(format!("a node of this kind cannot have the number {ino} here")).into());
        }
        let new = self.inodes.insert(ino.0);
        node.again = !new;
        if !ino.is_trash() {
            self.last_inode = self.last_inode.max(ino.0);
        } else {
            self.last_hour = self.last_hour.max(ino.0 - Ino::TRASH.0);
        }
        node.attr = Some((ino, Attr { parent: node.parent, ..attr }));
        Ok(())
    }

    fn attributes(&mut self) -> Result<(Ino, Attr), Fault> {
        let mut attr = Attr {
            flags: 0,
            kind: Kind::File,
            mode: 0,
            uid: 0,
            gid: 0,
            atime: Timestamp::default(),
            mtime: Timestamp::default(),
            ctime: Timestamp::default(),
            nlink: 1,
            length: 0,
            rdev: 0,
            parent: Ino::ROOT,
            access_acl: 0,
            default_acl: 0,
            tier: 0,
        };
        let (mut ino, mut kind, mut key, mut text) = (0, None, Vec::new(), Vec::new());
        let pull = &mut self.pull;
        pull.object()?;
        while pull.key(&mut key)? {
            match key.as_slice() {
                b"inode" => ino = pull.integer("inode")?,
                b"flags" => attr.flags = pull.integer("flags")?,
                b"type" => {
                    pull.string(&mut text)?;
                    kind = kind_of(&text);
                }
                b"mode" => attr.mode = pull.integer::<u16>("mode")? & crate::base::mode::PERMISSION_BITS,
                b"uid" => attr.uid = pull.integer("uid")?,
                b"gid" => attr.gid = pull.integer("gid")?,
                b"atime" => attr.atime.seconds = pull.integer("atime")?,
                b"mtime" => attr.mtime.seconds = pull.integer("mtime")?,
                b"ctime" => attr.ctime.seconds = pull.integer("ctime")?,
                b"atimensec" => attr.atime.nanos = pull.integer("atimensec")?,
                b"mtimensec" => attr.mtime.nanos = pull.integer("mtimensec")?,
                b"ctimensec" => attr.ctime.nanos = pull.integer("ctimensec")?,
                b"length" => attr.length = pull.integer("length")?,
                b"rdev" => attr.rdev = pull.integer("rdev")?,
                b"tier" => attr.tier = pull.integer("tier")?,
                _ => pull.skip()?,
            }
        }
        attr.kind = kind.ok_or_else(|| pull.wrong("the type of a node is none that there is"))?;
        if [attr.atime, attr.mtime, attr.ctime].iter().any(|time| time.nanos >= 1_000_000_000) {
            return Err(pull.wrong("a time has more nanoseconds than a second"));
        }
        match attr.kind {
            Kind::Directory => attr.length = 4096,
            Kind::File if !attr.is_possible() => return Err(pull.wrong("a file is longer than it can be")),
            Kind::File => {}
            // That of a symlink is set when its target was read.
            _ => attr.length = 0,
        }
        Ok((Ino(ino), attr))
    }

    fn xattrs(&mut self, node: &Node) -> Outcome<()> {
        if self.pull.null()? {
            return Ok(());
        }
        let (ino, _) = self.identified(node)?;
        let (mut key, mut text) = (Vec::new(), Vec::new());
        self.pull.array()?;
        while self.pull.element()? {
            let (mut name, mut raw, mut value) = (Vec::new(), None, Vec::new());
            self.pull.object()?;
            while self.pull.key(&mut key)? {
                match key.as_slice() {
                    b"name" => self.pull.string(&mut name)?,
                    b"value" => {
                        self.pull.string(&mut text)?;
                        value = unescape(&text);
                    }
                    b"raw" => {
                        self.pull.string(&mut text)?;
                        raw = BASE64.decode(&text).ok();
                    }
                    _ => self.pull.skip()?,
                }
            }
            let Ok(name) = Name::xattr(&raw.unwrap_or(name)) else {
                return Err(self.pull.wrong("no extended attribute can have this name").into());
            };
            if !node.again {
                self.loader.put(Key::Xattr(ino, name), Record::Bytes(value.into()));
            }
        }
        Ok(())
    }

    /// The number of a rule; equal ones share it. 0 for none.
    fn rule(&mut self, node: &Node) -> Outcome<u32> {
        if self.pull.null()? {
            return Ok(0);
        }
        self.identified(node)?;
        let mut rule = AclRule::empty();
        let mut key = Vec::new();
        self.pull.object()?;
        while self.pull.key(&mut key)? {
            match key.as_slice() {
                b"owner" => rule.owner = self.pull.integer("owner")?,
                b"group" => rule.group = self.pull.integer("group")?,
                b"mask" => rule.mask = self.pull.integer("mask")?,
                b"other" => rule.other = self.pull.integer("other")?,
                b"users" => rule.users = self.rule_entries()?,
                b"groups" => rule.groups = self.rule_entries()?,
                _ => self.pull.skip()?,
            }
        }
        if let Some(id) = self.rules.get(&rule) {
            return Ok(*id);
        }
        let id = self.rules.len() as u32 + 1;
        self.rules.insert(rule.clone(), id);
        self.loader.put(Key::AclRule(id), Record::AclRule(rule));
        Ok(id)
    }

    fn rule_entries(&mut self) -> Result<Vec<(u32, u16)>, Fault> {
        let mut entries = Vec::new();
        if self.pull.null()? {
            return Ok(entries);
        }
        let mut key = Vec::new();
        self.pull.array()?;
        while self.pull.element()? {
            let (mut id, mut perm) = (0, 0);
            self.pull.object()?;
            while self.pull.key(&mut key)? {
                match key.as_slice() {
                    b"id" => id = self.pull.integer("id")?,
                    b"perm" => perm = self.pull.integer("perm")?,
                    _ => self.pull.skip()?,
                }
            }
            entries.push((id, perm));
            if entries.len() > usize::from(u16::MAX) {
                return Err(self.pull.wrong("an ACL rule has more entries than any can have"));
            }
        }
        Ok(entries)
    }

    fn chunks(&mut self, node: &Node) -> Outcome<()> {
        if self.pull.null()? {
            return Ok(());
        }
        let (ino, attr) = self.identified(node)?;
        if !attr.is_file() {
            return Err(self.pull.wrong("what is no file has chunks").into());
        }
        let mut key = Vec::new();
        self.pull.array()?;
        while self.pull.element()? {
            let (mut index, mut slices) = (0, Vec::new());
            self.pull.object()?;
            while self.pull.key(&mut key)? {
                match key.as_slice() {
                    b"index" => index = self.pull.integer("index")?,
                    b"slices" => slices = self.slices()?,
                    _ => self.pull.skip()?,
                }
            }
            if !node.again && !slices.is_empty() {
                self.loader.put_chunk(ino, ChunkIndex(index), slices);
            }
        }
        Ok(())
    }

    fn slices(&mut self) -> Result<Vec<Slice>, Fault> {
        let mut slices = Vec::new();
        if self.pull.null()? {
            return Ok(slices);
        }
        let mut key = Vec::new();
        self.pull.array()?;
        while self.pull.element()? {
            let mut slice = Slice::hole(0, 0);
            self.pull.object()?;
            while self.pull.key(&mut key)? {
                match key.as_slice() {
                    // As very old dumps call it.
                    b"id" | b"chunkid" => slice.id = SliceId(self.pull.integer("id")?),
                    b"pos" => slice.pos = self.pull.integer("pos")?,
                    b"size" => slice.size = self.pull.integer("size")?,
                    b"off" => slice.off = self.pull.integer("off")?,
                    b"len" => slice.len = self.pull.integer("len")?,
                    _ => self.pull.skip()?,
                }
            }
            if !slice.is_possible() || slice.id.0 > COUNTER_MAX as u64 {
                return Err(self.pull.wrong("a slice reaches out of its chunk or of itself"));
            }
            slices.push(slice);
        }
        Ok(slices)
    }

    /// The object of a node has ended: it is put, and counted where it lies.
    async fn finished(&mut self, mut node: Node, parent: Option<&mut Node>) -> Outcome<()> {
        let (ino, mut attr) = self.identified(&node)?;
        if node.again && attr.is_dir() {
            let name = node.name.escape_ascii();
            tracing::warn!(%name, %ino, "left out: a directory that is there already; it was moved during the dump");
            return Ok(());
        }
        if attr.kind == Kind::Symlink {
            let Some(target) = node.target.take().filter(|target| !target.is_empty()) else {
                return Err(self.pull.wrong("a symlink has no target").into());
            };
            attr.length = target.len() as u64;
            if !node.again {
                self.loader.put(Key::Symlink(ino), Record::Bytes(target));
            }
        }
        if attr.is_dir() {
            self.directory_ended(ino, &mut attr, &node);
        }
        if node.again {
            attr = self.linked_again(ino, &node).await?;
        } else {
            self.loader.put_node(ino, attr);
            self.count(ino, &attr);
        }
        if let Some(parent) = parent {
            let name = Name::stored(node.name);
            self.loader.put(Key::Dentry(node.parent, name), Record::Dentry(Dentry { kind: attr.kind, ino }));
            let length = if attr.is_file() { attr.length as i64 } else { 0 };
            let own = DirStat { length, space: attr.space() as i64, inodes: 1 };
            parent.children = sum(parent.children, own);
            parent.below = sum(sum(parent.below, own), node.below);
            parent.directories += u32::from(attr.is_dir());
        }
        self.loader.go_on(PHASE, 1).await
    }

    fn directory_ended(&mut self, ino: Ino, attr: &mut Attr, node: &Node) {
        // The trash and its hours count no directories.
        attr.nlink = if ino.is_trash() { 2 } else { node.directories.saturating_add(2) };
        if self.setting.as_ref().is_some_and(|(_, wishes)| wishes.dir_stats) {
            self.loader.put(Key::DirStat(ino), Record::DirStat(node.children));
        }
        let owner = QuotaOwner::Directory(ino);
        if let Some((max_space, max_inodes)) = self.limits.get(&owner) {
            let (max_space, max_inodes) = (*max_space, *max_inodes);
            let quota = Quota { max_space, max_inodes, used_space: node.below.space, used_inodes: node.below.inodes };
            self.loader.put(Key::Quota(owner), Record::Quota(quota));
        }
    }

    /// One more name of a node; answers what is known of it.
    async fn linked_again(&mut self, ino: Ino, node: &Node) -> Outcome<Attr> {
        let Some(mut attr) = self.loader.node(ino).await? else {
            return Err(self.pull.wrong(format!("the node {ino} lies inside of itself")).into());
        };
        if node.attr.is_none_or(|(_, other)| other.kind != attr.kind) {
            return Err(self.pull.wrong(format!("the node {ino} is of two kinds")).into());
        }
        let add = |parent| Change::AddLinkParent { ino, parent, delta: 1 };
        if attr.parent != Ino::MANY {
            self.loader.change(add(attr.parent));
        }
        self.loader.change(add(node.parent));
        attr.parent = Ino::MANY;
        attr.nlink = attr.nlink.saturating_add(1);
        self.loader.put_node(ino, attr);
        Ok(attr)
    }

    fn count(&mut self, ino: Ino, attr: &Attr) {
        if ino == Ino::ROOT || ino == Ino::TRASH {
            return;
        }
        self.inode_count += 1;
        self.space = self.space.saturating_add(attr.space());
        if !self.in_trash && self.setting.as_ref().is_some_and(|(_, wishes)| wishes.owner_quotas) {
            for owner in [QuotaOwner::User(attr.uid), QuotaOwner::Group(attr.gid)] {
                let (space, inodes) = self.usage.entry(owner).or_default();
                *space = space.saturating_add(attr.space() as i64);
                *inodes += 1;
            }
        }
    }

    /// Whoever has limits or causes usage has a record.
    fn owner_quotas(&mut self, wishes: Wishes) {
        if !wishes.owner_quotas {
            return;
        }
        let limited = self.limits.keys().filter(|owner| !matches!(owner, QuotaOwner::Directory(_)));
        let owners: std::collections::BTreeSet<QuotaOwner> = limited.chain(self.usage.keys()).copied().collect();
        for owner in owners {
            let (max_space, max_inodes) = self.limits.get(&owner).copied().unwrap_or((-1, -1));
            let (used_space, used_inodes) = self.usage.get(&owner).copied().unwrap_or_default();
            let quota = Quota { max_space, max_inodes, used_space, used_inodes };
            self.loader.put(Key::Quota(owner), Record::Quota(quota));
        }
    }
}

fn sum(a: DirStat, b: DirStat) -> DirStat {
    DirStat {
        length: a.length.saturating_add(b.length),
        space: a.space.saturating_add(b.space),
        inodes: a.inodes.saturating_add(b.inodes),
    }
}

fn kind_of(name: &[u8]) -> Option<Kind> {
    (1..=7).filter_map(Kind::from_code).find(|kind| super::json::kind_name(*kind).as_bytes() == name)
}
