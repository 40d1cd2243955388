//! What the requests to `.control` do.
//!
//! Each runs as a task of its own, counts what it has done, and reports every 300 ms and once at its end. It stops where
//! it is when the client closes the handle.

use super::protocol::{CacheAction, Command, Progress, Verdict};
use super::{Control, Session};
use crate::base::slice::resolve;
use crate::base::{Attr, CHUNK_BYTES, ChunkIndex, Errno, Fault, Ino, Kind, Name, Outcome, Slice, Stop};
use crate::chunk::layout;
use crate::config::volume::{Tier, VolumeFormat};
use crate::meta::Caller;
use crate::meta::record::{FlockHolder, PlockHolder, PlockRange};
use crate::vfs::Vfs;
use futures::{StreamExt, TryStreamExt};
use serde_json::{Value, json};
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::Duration;

/// Between two progress messages.
const REPORT: Duration = Duration::from_millis(300);
/// Entries of a directory read at a time.
const PAGE_ENTRIES: usize = 1024;
/// Deeper than any path the kernel resolves; a damaged tree ends here.
const DEPTH_MAX: usize = 2048;
/// Limits of a summary (`spec/surface.md` 5.10).
const SUMMARY_DEPTH_MAX: u8 = 10;
const SUMMARY_ENTRIES_MAX: u8 = 100;
/// Bytes asked of a slice at a time while warming up: one block of the usual size.
const WARM_BYTES: u32 = 4 << 20;

/// The two numbers of a progress message.
#[derive(Default)]
struct Counters(AtomicU64, AtomicU64);

impl Counters {
    fn add(&self, first: u64, second: u64) {
        self.0.fetch_add(first, Ordering::Relaxed);
        self.1.fetch_add(second, Ordering::Relaxed);
    }

    fn progress(&self) -> Progress {
        Progress(self.0.load(Ordering::Relaxed), self.1.load(Ordering::Relaxed))
    }
}

/// Runs one request and puts its responses into the stream.
pub(super) async fn run(control: Arc<Control>, caller: Caller, command: Command, session: Arc<Session>) {
    let counters = Counters::default();
    let asked = format!("{command:?}");
    let work = execute(&control, &caller, command, &counters);
    let mut work = std::pin::pin!(work);
    let verdict = loop {
        match tokio::time::timeout(REPORT, work.as_mut()).await {
            Ok(verdict) => break verdict,
            Err(_) => session.stream.lock().progress(counters.progress()),
        }
    };
    let verdict = verdict.unwrap_or_else(|stop| {
        if let Stop::Fault(fault) = &stop {
            tracing::warn!(request = %asked, %fault, "control request failed");
        }
        Verdict::Failed(stop.errno())
    });
    let mut stream = session.stream.lock();
    if counters.progress() != Progress::default() {
        stream.progress(counters.progress());
    }
    stream.finish(&verdict);
}

async fn execute(control: &Control, caller: &Caller, command: Command, counters: &Counters) -> Outcome<Verdict> {
    let vfs = &control.vfs;
    let numbers = vfs.numbers();
    match command {
        Command::Remove { parent, name, skip_trash, threads } => {
            let parent = numbers.stored(parent);
            if skip_trash && !caller.is_root() {
                return Err(Errno::EPERM.into());
            }
            if control.find(parent, name.as_bytes()).is_some() {
                return Err(Errno::EPERM.into());
            }
            let count = |removed| counters.add(removed, 0);
            let removed = vfs.meta().remove_tree(caller, parent, &name, skip_trash, threads.into(), &count).await;
            if let Some(kernel) = control.kernel.get().cloned() {
                // Not on a runtime thread: the kernel may wait for a request that we answer.
                let told = tokio::task::spawn_blocking(move || kernel.forget_entry(parent, &name)).await;
                if let Err(error) = told {
                    tracing::warn!(%error, "kernel was not told of a removal");
                }
            }
            removed.map(|_| Verdict::Done)
        }
        Command::Info { ino, recursive, raw, strict: _ } => {
            let info = Info { control, counters }.gather(numbers.stored(ino), recursive, raw).await;
            Ok(Verdict::Data(info.to_json().to_string().into()))
        }
        Command::LegacyInfo { ino, recursive, raw } => {
            let info =
                Info { control, counters: &Counters::default() }.gather(numbers.stored(ino), recursive, raw).await;
            Ok(Verdict::Text(info.to_text().into()))
        }
        Command::Summary { ino, depth, entries, strict: _ } => {
            let ino = numbers.stored(ino);
            let (depth, entries) = (depth.min(SUMMARY_DEPTH_MAX), entries.min(SUMMARY_ENTRIES_MAX));
            let summed = match vfs.meta().getattr(ino).await {
                Ok(attr) => branch(vfs, counters, ino, attr, Vec::new(), depth, entries.into(), 0).await,
                Err(stop) => Err(stop),
            };
            let (errno, tree) = match summed {
                Ok(tree) => (0, Branch { kind: Kind::Directory, ..tree }),
                Err(stop) => (stop.errno().raw(), Branch::empty(ino)),
            };
            Ok(Verdict::Data(json!({ "Errno": errno, "Tree": tree.to_json() }).to_string().into()))
        }
        Command::Compact { ino, threads } => {
            let work = |ino, attr| async move {
                counters.add(1, 0);
                compact(vfs, ino, attr).await?;
                counters.add(0, 1);
                Ok(())
            };
            each_file(vfs, numbers.stored(ino), threads.max(1).into(), &work).await?;
            Ok(Verdict::Done)
        }
        Command::Cache { paths, threads, background, action } => {
            let work = Warmth { vfs: vfs.clone(), caller: caller.clone(), action, width: threads.max(1).into() };
            if background {
                tokio::spawn(async move {
                    let found = work.run(&paths, &Counters::default()).await;
                    if let Err(stop) = found {
                        tracing::warn!(%stop, "background cache request failed");
                    }
                });
                return Ok(Verdict::Data(Found::default().to_json().to_string().into()));
            }
            let found = work.run(&paths, counters).await?;
            Ok(Verdict::Data(found.to_json().to_string().into()))
        }
        // A clone is a metadata operation that does not exist yet.
        Command::Clone { .. } => Err(Errno::EOPNOTSUPP.into()),
    }
}

type Boxed<'a, T> = Pin<Box<dyn Future<Output = Outcome<T>> + Send + 'a>>;

/// All entries of a directory with their attributes; those that went meanwhile are left out.
async fn children(vfs: &Vfs, dir: Ino) -> Outcome<Vec<(Name, Ino, Attr)>> {
    let (mut found, mut cursor) = (Vec::new(), None);
    loop {
        let page = vfs.meta().list(dir, cursor.as_ref(), PAGE_ENTRIES).await?;
        for (name, dentry, attr) in page.entries {
            let attr = match attr {
                Some(attr) => Some(attr),
                None => known(vfs.meta().getattr(dentry.ino).await)?,
            };
            found.extend(attr.map(|attr| (name, dentry.ino, attr)));
        }
        match page.next {
            Some(next) => cursor = Some(next),
            None => return Ok(found),
        }
    }
}

/// `None` for what does not exist.
fn known<T>(outcome: Outcome<T>) -> Outcome<Option<T>> {
    match outcome {
        Ok(value) => Ok(Some(value)),
        Err(Stop::Errno(Errno::ENOENT)) => Ok(None),
        Err(stop) => Err(stop),
    }
}

fn too_deep(ino: Ino) -> Stop {
    Fault::corrupt("walk directory tree").with("inode", ino).source("deeper than any tree can be").into()
}

/// Does `work` for every regular file at or below `ino`, `width` at a time.
fn each_file<'a, W, F>(vfs: &'a Vfs, ino: Ino, width: usize, work: &'a W) -> Boxed<'a, ()>
where
    W: Fn(Ino, Attr) -> F + Sync,
    F: Future<Output = Outcome<()>> + Send,
{
    Box::pin(async move {
        let mut waiting = vec![(ino, vfs.meta().getattr(ino).await?)];
        while let Some((at, attr)) = waiting.pop() {
            match attr.kind {
                Kind::Directory => {
                    let (dirs, rest): (Vec<_>, Vec<_>) =
                        children(vfs, at).await?.into_iter().partition(|(_, _, attr)| attr.is_dir());
                    waiting.extend(dirs.into_iter().map(|(_, ino, attr)| (ino, attr)));
                    let files = rest.into_iter().filter(|(_, _, attr)| attr.is_file());
                    let works: Vec<_> = files.map(|(_, ino, attr)| work(ino, attr)).collect();
                    futures::stream::iter(works).buffer_unordered(width).try_collect::<Vec<()>>().await?;
                }
                Kind::File => work(at, attr).await?,
                Kind::Symlink | Kind::Fifo | Kind::BlockDevice | Kind::CharDevice | Kind::Socket => {}
            }
        }
        Ok(())
    })
}

async fn compact(vfs: &Vfs, ino: Ino, attr: Attr) -> Outcome<()> {
    for index in chunks(&attr) {
        vfs.compact_chunk(ino, index).await?;
    }
    Ok(())
}

fn chunks(attr: &Attr) -> impl Iterator<Item = ChunkIndex> + use<> {
    (0..attr.length.div_ceil(CHUNK_BYTES)).map(|index| ChunkIndex(index as u32))
}

/// The slices that show in a file, chunk by chunk, cut at its end.
async fn visible(vfs: &Vfs, ino: Ino, attr: &Attr) -> Outcome<Vec<(ChunkIndex, Slice)>> {
    let mut found = Vec::new();
    for index in chunks(attr) {
        let end = attr.length - u64::from(index.0) * CHUNK_BYTES;
        for piece in resolve(&vfs.meta().read_chunk(ino, index).await?) {
            let len = u64::from(piece.len).min(end.saturating_sub(piece.pos.into())) as u32;
            if len > 0 {
                found.push((index, Slice { len, ..piece }));
            }
        }
    }
    Ok(found)
}

/// What is known about one node, for `info`.
#[derive(Default)]
struct Told {
    ino: u64,
    reason: Option<String>,
    length: u64,
    size: u64,
    files: u64,
    dirs: u64,
    paths: Vec<String>,
    chunks: Option<Vec<(ChunkIndex, Slice)>>,
    objects: Option<Vec<(ChunkIndex, String, u32, u32, u32)>>,
    flocks: Vec<FlockHolder>,
    plocks: Vec<PlockHolder>,
    tier: Tier,
    /// The store has no classes, so that an object cannot be in another one than none.
    classless: bool,
}

struct Info<'a> {
    control: &'a Control,
    counters: &'a Counters,
}

impl Info<'_> {
    async fn gather(&self, ino: Ino, recursive: bool, raw: bool) -> Told {
        let shown = self.control.vfs.numbers().shown(ino).0;
        let mut told = Told { ino: shown, ..Told::default() };
        if let Err(stop) = self.fill(&mut told, ino, recursive, raw).await {
            told = Told { ino: shown, reason: Some(stop.to_string()), ..Told::default() };
        }
        told
    }

    async fn fill(&self, told: &mut Told, ino: Ino, recursive: bool, raw: bool) -> Outcome<()> {
        let vfs = &self.control.vfs;
        let attr = vfs.meta().getattr(ino).await?;
        told.tier = self.tier(attr.tier).await?;
        told.classless = vfs.data().is_local();
        (told.flocks, told.plocks) = vfs.meta().locks_on(ino).await?;
        self.count(told, ino, attr, recursive).await?;
        let paths = vfs.meta().paths_of(ino).await?;
        told.paths = paths.iter().map(|path| String::from_utf8_lossy(path).into_owned()).collect();
        if !attr.is_file() {
            return Ok(());
        }
        let pieces = visible(vfs, ino, &attr).await?;
        if raw {
            told.chunks = Some(pieces);
            return Ok(());
        }
        let options = vfs.data().options();
        let objects = pieces.iter().filter(|(_, piece)| !piece.is_hole()).flat_map(|(index, piece)| {
            let blocks = layout::split(piece.id, piece.size, options.block_size, piece.off, piece.len);
            blocks.map(|(key, range)| {
                let name = format!("{}/{}", self.control.settings.volume, key.name(options.hash_prefix));
                (*index, name, key.size, range.start, range.end - range.start)
            })
        });
        told.objects = Some(objects.collect());
        Ok(())
    }

    /// As the volume defines it now; a tier that it does not define has only its number.
    async fn tier(&self, id: u8) -> Outcome<Tier> {
        let undefined = Tier::new(id, "", "");
        let Some(setting) = self.control.vfs.meta().setting().await? else { return Ok(undefined) };
        let read = VolumeFormat::from_json(&setting);
        let format = read.map_err(|error| Fault::corrupt("read the volume record").source(error))?;
        Ok(format.tiers.get(&id).cloned().unwrap_or(undefined))
    }

    /// Nothing is taken from the statistics of directories, which are best effort: the peer does so unless it is asked
    /// to be strict, and answers then what is answered here.
    async fn count(&self, told: &mut Told, ino: Ino, attr: Attr, recursive: bool) -> Outcome<()> {
        let mut waiting = vec![(ino, attr, 0)];
        while let Some((at, attr, depth)) = waiting.pop() {
            let (dirs, files, length) = if attr.is_dir() { (1, 0, 0) } else { (0, 1, file_length(&attr)) };
            told.dirs += dirs;
            told.files += files;
            told.length += length;
            told.size += attr.space();
            self.counters.add(1, attr.space());
            // Without recursion: the directory and what it lists.
            if attr.is_dir() && (recursive || depth == 0) {
                if depth > DEPTH_MAX {
                    return Err(too_deep(at));
                }
                let below = children(&self.control.vfs, at).await?;
                waiting.extend(below.into_iter().map(|(_, ino, attr)| (ino, attr, depth + 1)));
            }
        }
        Ok(())
    }
}

fn file_length(attr: &Attr) -> u64 {
    if attr.is_file() { attr.length } else { 0 }
}

impl Told {
    fn to_json(&self) -> Value {
        let ok = self.reason.is_none();
        let list = |found: &[Value]| if ok { Value::from(found.to_vec()) } else { Value::Null };
        let paths: Vec<Value> = self.paths.iter().cloned().map(Value::from).collect();
        let chunks = self.chunks.as_ref().map(|chunks| {
            let rows = chunks.iter().map(|(index, piece)| {
                json!({ "ChunkIndex": index.0, "Id": piece.id.0, "Size": piece.size, "Off": piece.off, "Len": piece.len })
            });
            rows.collect::<Vec<_>>()
        });
        let objects = self.objects.as_ref().map(|objects| {
            let rows = objects.iter().map(|(index, key, size, off, len)| {
                json!({ "ChunkIndex": index.0, "Key": key, "Size": size, "Off": off, "Len": len })
            });
            rows.collect::<Vec<_>>()
        });
        let class = &self.tier.storage_class;
        // What is said of the objects where it is known, as the peer says it.
        let class = match (self.objects.is_some(), class.is_empty()) {
            (true, true) if self.tier.id == 0 => "actual()".to_owned(),
            (true, false) if self.classless => format!("expected({class}),actual()"),
            _ => class.clone(),
        };
        let flocks = self.flocks.iter().map(|held| {
            let kind = if held.exclusive { "W" } else { "R" };
            json!({ "Sid": held.session.0, "Owner": held.owner, "Type": kind })
        });
        let plocks = self.plocks.iter().flat_map(|holder| {
            holder.ranges.iter().map(|range| {
                let PlockRange { exclusive, pid, start, end } = *range;
                // The kernel's numbers of the two kinds.
                let (sid, owner, kind) = (holder.session.0, holder.owner, u8::from(exclusive));
                json!({ "Sid": sid, "Owner": owner, "Type": kind, "Pid": pid, "Start": start, "End": end })
            })
        });
        json!({
            "Ino": self.ino,
            "Failed": !ok,
            "Reason": self.reason.as_deref().unwrap_or(""),
            "Summary": { "Length": self.length, "Size": self.size, "Files": self.files, "Dirs": self.dirs },
            "Paths": list(&paths),
            "Chunks": chunks,
            "Objects": objects,
            "PLocks": list(&plocks.collect::<Vec<_>>()),
            "FLocks": list(&flocks.collect::<Vec<_>>()),
            "Tier": { "ID": self.tier.id, "StorageClass": class, "Tag": self.tier.tag },
            "RestoreStatus": "",
        })
    }

    fn to_text(&self) -> String {
        use std::fmt::Write;
        if let Some(reason) = &self.reason {
            return format!("info: {reason}\n");
        }
        let mib = |bytes: u64| format!("{} ({bytes} Bytes)", human(bytes));
        let mut text = format!(
            "  inode: {}\n  files: {}\n   dirs: {}\n length: {}\n   size: {}\n",
            self.ino,
            self.files,
            self.dirs,
            mib(self.length),
            mib(self.size)
        );
        match self.paths.as_slice() {
            [] => text.push_str("   path: unknown\n"),
            [path] => text.push_str(&format!("   path: {path}\n")),
            paths => {
                text.push_str("  paths:\n");
                paths.iter().for_each(|path| text.push_str(&format!("\t{path}\n")));
            }
        }
        // Writing to a string cannot fail.
        if let Some(objects) = &self.objects {
            text.push_str("objects:\n");
            for (index, key, size, off, len) in objects {
                let _ = writeln!(text, "\t{index}:\t{key}\t{size}\t{off}\t{len}");
            }
        }
        if let Some(chunks) = &self.chunks {
            text.push_str(" chunks:\n");
            for (index, Slice { id, size, off, len, .. }) in chunks {
                let _ = writeln!(text, "\t{index}:\t{id}\t{size}\t{off}\t{len}");
            }
        }
        text
    }
}

/// `5.00 MiB`.
fn human(bytes: u64) -> String {
    let (mut value, mut unit) = (bytes as f64, 0);
    const UNITS: [&str; 7] = ["Bytes", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"];
    while value >= 1024.0 && unit + 1 < UNITS.len() {
        value /= 1024.0;
        unit += 1;
    }
    if unit == 0 { format!("{bytes} {}", UNITS[0]) } else { format!("{value:.2} {}", UNITS[unit]) }
}

/// A node of a summary and everything below it.
struct Branch {
    ino: Ino,
    path: Vec<u8>,
    kind: Kind,
    size: u64,
    files: u64,
    dirs: u64,
    children: Vec<Branch>,
}

impl Branch {
    fn empty(ino: Ino) -> Branch {
        Branch { ino, path: Vec::new(), kind: Kind::Directory, size: 0, files: 0, dirs: 0, children: Vec::new() }
    }

    fn to_json(&self) -> Value {
        // The format knows directories and the rest.
        let kind = if self.kind == Kind::Directory { 2 } else { 1 };
        let mut value = json!({
            "Inode": self.ino.0,
            "Path": String::from_utf8_lossy(&self.path),
            "Type": kind,
            "Size": self.size,
            "Files": self.files,
            "Dirs": self.dirs,
        });
        if !self.children.is_empty() {
            value["Children"] = self.children.iter().map(Branch::to_json).collect();
        }
        value
    }

    fn join(path: &[u8], name: &[u8]) -> Vec<u8> {
        if path.is_empty() { name.to_vec() } else { [path, b"/", name].concat() }
    }
}

/// Sums up a tree; names the `entries` largest children of a directory down to `depth`, the others as `...`.
#[expect(clippy::too_many_arguments, reason = "what a recursion carries")]
fn branch<'a>(
    vfs: &'a Vfs,
    counters: &'a Counters,
    ino: Ino,
    attr: Attr,
    path: Vec<u8>,
    depth: u8,
    entries: usize,
    level: usize,
) -> Boxed<'a, Branch> {
    Box::pin(async move {
        counters.add(1, attr.space());
        let (files, dirs) = if attr.is_dir() { (0, 1) } else { (1, 0) };
        let mut sum = Branch { ino, path, kind: attr.kind, size: attr.space(), files, dirs, children: Vec::new() };
        if !attr.is_dir() {
            return Ok(sum);
        }
        if level > DEPTH_MAX {
            return Err(too_deep(ino));
        }
        let below = children(vfs, ino).await?;
        let works: Vec<_> = below
            .into_iter()
            .map(|(name, ino, attr)| {
                let path = Branch::join(&sum.path, name.as_bytes());
                branch(vfs, counters, ino, attr, path, depth.saturating_sub(1), entries, level + 1)
            })
            .collect();
        let mut found: Vec<Branch> = futures::stream::iter(works).buffer_unordered(8).try_collect().await?;
        for child in &found {
            sum.size += child.size;
            sum.files += child.files;
            sum.dirs += child.dirs;
        }
        if depth == 0 {
            return Ok(sum);
        }
        found.sort_by(|a, b| b.size.cmp(&a.size).then_with(|| a.path.cmp(&b.path)));
        if found.len() > entries {
            let mut rest = Branch { kind: Kind::File, path: Branch::join(&sum.path, b"..."), ..Branch::empty(Ino(0)) };
            for child in found.split_off(entries) {
                rest.size += child.size;
                rest.files += child.files;
                rest.dirs += child.dirs;
            }
            found.push(rest);
        }
        sum.children = found;
        Ok(sum)
    })
}

/// What a cache request has found.
#[derive(Default)]
struct Found {
    files: AtomicU64,
    slices: AtomicU64,
    bytes: AtomicU64,
    missing: AtomicU64,
}

impl Found {
    fn to_json(&self) -> Value {
        let number = |n: &AtomicU64| n.load(Ordering::Relaxed);
        json!({
            "FileCount": number(&self.files),
            "SliceCount": number(&self.slices),
            "TotalBytes": number(&self.bytes),
            "MissBytes": number(&self.missing),
            "Locations": {},
        })
    }
}

/// Warm-up, eviction and check of the block cache.
struct Warmth {
    vfs: Arc<Vfs>,
    caller: Caller,
    action: CacheAction,
    width: usize,
}

impl Warmth {
    async fn run(&self, paths: &[Vec<u8>], counters: &Counters) -> Outcome<Found> {
        let found = Found::default();
        for path in paths {
            let ino = self.resolve(path).await?;
            let (found, vfs) = (&found, &*self.vfs);
            let work = |ino, attr: Attr| async move {
                let pieces = visible(vfs, ino, &attr).await?;
                for (_, piece) in pieces.iter().filter(|(_, piece)| !piece.is_hole()) {
                    found.slices.fetch_add(1, Ordering::Relaxed);
                    self.treat(piece, found).await?;
                }
                found.files.fetch_add(1, Ordering::Relaxed);
                found.bytes.fetch_add(attr.length, Ordering::Relaxed);
                counters.add(1, attr.length);
                Ok(())
            };
            each_file(vfs, ino, self.width, &work).await?;
        }
        Ok(found)
    }

    async fn treat(&self, piece: &Slice, found: &Found) -> Outcome<()> {
        let data = self.vfs.data();
        let blocks = layout::split(piece.id, piece.size, data.block_size(), piece.off, piece.len);
        match self.action {
            CacheAction::Check => {
                for (key, range) in blocks {
                    if !data.cache().contains(&key) {
                        found.missing.fetch_add(u64::from(range.end - range.start), Ordering::Relaxed);
                    }
                }
            }
            CacheAction::Evict => {
                for (key, _) in blocks {
                    data.cache().remove(&key).await;
                }
            }
            CacheAction::WarmUp => {
                let (mut at, end) = (piece.off, piece.off + piece.len);
                while at < end {
                    let len = (end - at).min(WARM_BYTES);
                    data.read(piece.id, piece.size, at, len).await?;
                    at += len;
                }
            }
        }
        Ok(())
    }

    /// `inode:N`, or a path from the root of the mount.
    async fn resolve(&self, path: &[u8]) -> Outcome<Ino> {
        if let Some(number) = path.strip_prefix(b"inode:") {
            let number = std::str::from_utf8(number).ok().and_then(|n| n.parse().ok());
            return Ok(self.vfs.numbers().stored(Ino(number.ok_or(Errno::EINVAL)?)));
        }
        Ok(self.vfs.meta().resolve(&self.caller, self.vfs.root(), path).await?.ino)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_read_as_the_command_line_shows_them() {
        assert_eq!([5242880, 1024, 1000, 0].map(human), ["5.00 MiB", "1.00 KiB", "1000 Bytes", "0 Bytes"]);
    }

    #[test]
    fn what_failed_says_so_and_lists_nothing() {
        let told = Told { ino: 9, reason: Some("no such file or directory".into()), ..Told::default() };
        let expected = r#"{"Ino":9,"Failed":true,"Reason":"no such file or directory","Summary":{"Length":0,"Size":0,"Files":0,"Dirs":0},"Paths":null,"Chunks":null,"Objects":null,"PLocks":null,"FLocks":null,"Tier":{"ID":0,"StorageClass":"","Tag":""},"RestoreStatus":""}"#;
        assert_eq!(told.to_json().to_string(), expected);
    }
}
