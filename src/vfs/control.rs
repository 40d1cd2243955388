//! The virtual files of a mount: `.accesslog`, `.stats`, `.config` and `.control` (`spec/surface.md` section 6).
//!
//! They have inode numbers of their own, which are never stored, and handles of their own. Whoever serves a mount asks
//! here first: [`Control::find`] for a name, [`Control::owns`] for an inode. Reading them costs nobody anything; the
//! access log is written only while somebody reads it.
//!
//! `.control` carries requests of the command line (remove a tree, warm up, tell about a file) to this client.
//! [`protocol`] is the stream, [`serve`] what the requests do.

pub mod protocol;
mod serve;

use crate::base::mode::Mode;
use crate::base::{Attr, Errno, Ino, Kind, Name, Outcome, Timestamp};
use crate::meta::Caller;
use crate::vfs::handle::Handle;
use crate::vfs::{Opened, Vfs};
use bytes::Bytes;
use parking_lot::Mutex;
use protocol::{Asked, Stream};
use std::collections::HashMap;
use std::sync::atomic::{AtomicU64, Ordering};
use std::sync::{Arc, OnceLock};
use std::time::Duration;

/// Which virtual file; the numbers are those of the inodes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Node {
    AccessLog = 0x7FFF_FFFF_0000_0001,
    Control = 0x7FFF_FFFF_0000_0002,
    Stats = 0x7FFF_FFFF_0000_0003,
    Config = 0x7FFF_FFFF_0000_0004,
}

impl Node {
    const ALL: [Node; 4] = [Node::AccessLog, Node::Control, Node::Stats, Node::Config];

    fn of(ino: Ino) -> Option<Node> {
        Node::ALL.into_iter().find(|node| node.ino() == ino)
    }

    fn ino(self) -> Ino {
        Ino(self as u64)
    }

    fn name(self) -> &'static str {
        match self {
            Node::AccessLog => "accesslog",
            Node::Control => "control",
            Node::Stats => "stats",
            Node::Config => "config",
        }
    }

    fn mode(self) -> Mode {
        match self {
            Node::AccessLog | Node::Config => 0o400,
            Node::Control => 0o666,
            Node::Stats => 0o444,
        }
    }
}

/// What a file shows, made when it is opened.
pub type Text = Arc<dyn Fn() -> Vec<u8> + Send + Sync>;

/// Where the lines of `.accesslog` come from: each reader has a bounded queue that drops lines when it is full.
pub trait OperationLog: Send + Sync {
    /// Keeps lines for a new reader from now on.
    fn subscribe(&self) -> u64;
    fn unsubscribe(&self, reader: u64);
    /// Whole lines, at most `len` bytes of them; empty when there are none now.
    fn take(&self, reader: u64, len: usize) -> Bytes;
}

/// What may be told to the kernel.
pub trait EntryCache: Send + Sync {
    fn forget_entry(&self, parent: Ino, name: &Name);
}

/// What the virtual files are made of.
#[derive(Clone)]
pub struct ControlSettings {
    /// The volume's name, under which its objects lie.
    pub volume: String,
    /// `.jfs.stats` instead of `.stats`.
    pub prefixed: bool,
    /// Left out of listings, still reachable.
    pub hidden: bool,
    /// Whether the trash is reachable from the root.
    pub trash: bool,
    pub uid: u32,
    pub gid: u32,
    pub mounted_at: Timestamp,
    pub config: Text,
    pub stats: Text,
    pub log: Arc<dyn OperationLog>,
}

impl ControlSettings {
    fn name(&self, bare: &str) -> Name {
        Name::stored(format!("{}{bare}", if self.prefixed { ".jfs." } else { "." }).into_bytes())
    }
}

/// How long a reader of an idle access log waits for its `#` line, and how often it looks.
const IDLE_LINE: Duration = Duration::from_secs(1);
const LOG_POLL: Duration = Duration::from_millis(20);

enum Open {
    Text(Bytes),
    Log(u64),
    Control(Arc<Session>),
}

/// One open `.control`.
struct Session {
    stream: Mutex<Stream>,
    running: Mutex<Option<tokio::task::AbortHandle>>,
}

impl Session {
    /// Closing or flushing the handle cancels what runs for it.
    fn cancel(&self) {
        if let Some(task) = self.running.lock().take() {
            task.abort();
        }
    }
}

/// The virtual files of one mount.
pub struct Control {
    settings: ControlSettings,
    names: HashMap<Name, Ino>,
    vfs: Arc<Vfs>,
    kernel: OnceLock<Arc<dyn EntryCache>>,
    handles: Mutex<HashMap<Handle, Open>>,
    next: AtomicU64,
}

impl Control {
    pub fn new(vfs: Arc<Vfs>, settings: ControlSettings) -> Arc<Control> {
        let mut names: HashMap<Name, Ino> =
            Node::ALL.into_iter().map(|node| (settings.name(node.name()), node.ino())).collect();
        if settings.trash {
            names.insert(settings.name("trash"), Ino::TRASH);
        }
        Arc::new(Control {
            settings,
            names,
            vfs,
            kernel: OnceLock::new(),
            handles: Mutex::default(),
            next: AtomicU64::new(1),
        })
    }

    /// Lets removals tell the kernel. Once, by whoever mounts.
    pub fn connect(&self, kernel: Arc<dyn EntryCache>) {
        if self.kernel.set(kernel).is_err() {
            tracing::warn!("virtual files were connected to a kernel before");
        }
    }

    /// What the root lists besides its own entries.
    pub fn listed(&self) -> Vec<(Name, Ino, Kind)> {
        let settings = &self.settings;
        if settings.hidden {
            return Vec::new();
        }
        let files = [Node::AccessLog, Node::Stats, Node::Config];
        let files = files.map(|node| (settings.name(node.name()), node.ino(), Kind::File));
        let trash = settings.trash.then(|| (settings.name("trash"), Ino::TRASH, Kind::Directory));
        files.into_iter().chain(trash).collect()
    }

    /// The node a name leads to, if it is one of the names kept here: a virtual file, or the trash. `.control` is
    /// found in every directory, the others in the root.
    pub fn find(&self, parent: Ino, name: &[u8]) -> Option<Ino> {
        // Most names do not begin with a dot.
        if name.first() != Some(&b'.') {
            return None;
        }
        let ino = *self.names.get(name)?;
        (parent == self.vfs.root() || ino == Node::Control.ino()).then_some(ino)
    }

    /// Whether the inode is a virtual file. The trash is not: it is stored.
    pub fn owns(&self, ino: Ino) -> bool {
        Node::of(ino).is_some()
    }

    pub fn getattr(&self, ino: Ino) -> Outcome<Attr> {
        let node = Node::of(ino).ok_or(Errno::ENOENT)?;
        let time = self.settings.mounted_at;
        Ok(Attr {
            flags: 0,
            kind: Kind::File,
            mode: node.mode(),
            uid: self.settings.uid,
            gid: self.settings.gid,
            atime: time,
            mtime: time,
            ctime: time,
            nlink: 1,
            length: if node == Node::Config { (self.settings.config)().len() as u64 } else { 0 },
            rdev: 0,
            parent: Ino::ROOT,
            access_acl: 0,
            default_acl: 0,
            tier: 0,
        })
    }

    /// Opens a virtual file. Their contents change without the kernel's knowledge, so nothing of them is cached.
    pub fn open(&self, ino: Ino, flags: i32) -> Outcome<Opened> {
        let node = Node::of(ino).ok_or(Errno::ENOENT)?;
        if node != Node::Control && flags & libc::O_ACCMODE != libc::O_RDONLY {
            return Err(Errno::EACCES.into());
        }
        let open = match node {
            Node::AccessLog => Open::Log(self.settings.log.subscribe()),
            Node::Stats => Open::Text((self.settings.stats)().into()),
            Node::Config => Open::Text((self.settings.config)().into()),
            Node::Control => Open::Control(Arc::new(Session { stream: Mutex::default(), running: Mutex::default() })),
        };
        let handle = Handle(self.next.fetch_add(1, Ordering::Relaxed));
        self.handles.lock().insert(handle, open);
        Ok(Opened { handle, keep_cache: false, direct_io: true, seen: None })
    }

    pub async fn read(&self, handle: Handle, offset: u64, len: usize) -> Outcome<Bytes> {
        let reader = {
            let handles = self.handles.lock();
            match handles.get(&handle).ok_or(Errno::EBADF)? {
                Open::Text(text) => {
                    let from = text.len().min(usize::try_from(offset).unwrap_or(usize::MAX));
                    return Ok(text.slice(from..text.len().min(from.saturating_add(len))));
                }
                Open::Control(session) => return Ok(session.stream.lock().read(offset, len)),
                Open::Log(reader) => *reader,
            }
        };
        let idle = tokio::time::Instant::now() + IDLE_LINE;
        loop {
            let lines = self.settings.log.take(reader, len);
            if !lines.is_empty() {
                return Ok(lines);
            }
            if tokio::time::Instant::now() >= idle {
                return Ok(Bytes::from_static(b"#\n").slice(..len.min(2)));
            }
            tokio::time::sleep(LOG_POLL).await;
        }
    }

    /// Takes a piece of a request to `.control` and starts what it asks for once it is complete.
    pub fn write(self: &Arc<Self>, caller: &Caller, handle: Handle, data: &[u8]) -> Outcome<u32> {
        let session = match self.handles.lock().get(&handle).ok_or(Errno::EBADF)? {
            Open::Control(session) => session.clone(),
            Open::Text(_) | Open::Log(_) => return Err(Errno::EBADF.into()),
        };
        let asked = session.stream.lock().write(data);
        if let Asked::Run(command) = asked {
            let work = serve::run(self.clone(), caller.clone(), command, session.clone());
            *session.running.lock() = Some(tokio::spawn(work).abort_handle());
        }
        Ok(data.len() as u32)
    }

    pub fn flush(&self, handle: Handle) -> Outcome<()> {
        if let Open::Control(session) = self.handles.lock().get(&handle).ok_or(Errno::EBADF)? {
            session.cancel();
        }
        Ok(())
    }

    pub fn release(&self, handle: Handle) -> Outcome<()> {
        match self.handles.lock().remove(&handle).ok_or(Errno::EBADF)? {
            Open::Text(_) => {}
            Open::Log(reader) => self.settings.log.unsubscribe(reader),
            Open::Control(session) => session.cancel(),
        }
        Ok(())
    }
}
