//! The transport over the `fuser` crate: the only file that names it.
//!
//! Each of fuser's threads reads a request, hands it to the dispatcher and reads on; replies are sent from wherever they
//! become ready. What fuser 0.18 cannot do shapes what is asked of the kernel: it does not tell flock from fcntl locks,
//! which is read behind its back (`raw.rs`); it refuses interrupts, so every request has a
//! deadline of ours (`attend.rs`); it has one time-out for entry and attributes in create and in listings with
//! attributes, so those get the shorter one. Capabilities that it accepts but does not handle are never requested
//! (SETXATTR_EXT, HANDLE_KILLPRIV_V2, SECURITY_CTX, CREATE_SUPP_GROUP, ALLOW_IDMAP, OVER_IO_URING, RESEND,
//! REQUEST_TIMEOUT).

use super::convert::{self, PREFERRED_IO_BYTES};
use super::dispatch::Dispatcher;
use super::mount::{Channel, Options};
use super::raw::{self, Told};
use super::reply::contiguous;
use super::transport::{Answer, Changes, KernelCache, Listed, NewTime, Opening, Origin, RangeLock, Reply, Request};
use crate::base::{Attr, Errno, Fault, Ino, Kind};
use crate::vfs::seen::SeenFiles;
use crate::vfs::{Handle, Numbers};
use fuser::{FileHandle, FopenFlags, INodeNo, InitFlags};
use std::ffi::OsStr;
use std::io;
use std::os::unix::ffi::OsStrExt;
use std::path::Path;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// Inodes are never reused, so one generation is enough.
const GENERATION: fuser::Generation = fuser::Generation(0);

/// A connection that is being served.
pub struct Serving {
    thread: std::thread::JoinHandle<()>,
    cache: Arc<dyn KernelCache>,
}

impl Serving {
    /// Shakes hands with the kernel and starts the threads. `ended` is called once, when the connection is gone.
    pub fn start(
        channel: Channel,
        options: &Options,
        dispatcher: Arc<Dispatcher>,
        ended: impl FnOnce(io::Result<()>) + Send + 'static,
    ) -> Result<Serving, Fault> {
        let refused = |error: io::Error| Fault::unavailable("start FUSE session").source(error);
        let numbers = dispatcher.numbers();
        let kernel = Arc::new(Kernel { numbers, told: SeenFiles::default(), notices: OnceLock::new() });
        let files = Files { dispatcher, wishes: Wishes::of(options), kernel: kernel.clone() };
        let session = match channel {
            Channel::Device(device) => fuser::Session::from_fd(files, device, acl(options), config(options, &[])),
            Channel::Helper(point) => fuser::Session::new(files, &point, &config(options, &helper_options(options))),
        }
        .map_err(refused)?;
        let cache = kernel.notices.get_or_init(|| Arc::new(Notices { notifier: session.notifier(), numbers })).clone();
        let thread = std::thread::Builder::new()
            .name("fuse-session".into())
            .spawn(move || ended(session.run()))
            .map_err(refused)?;
        Ok(Serving { thread, cache })
    }

    pub fn cache(&self) -> Arc<dyn KernelCache> {
        self.cache.clone()
    }

    /// Waits for the threads; soon over once the connection is gone.
    pub fn join(self) -> Result<(), Fault> {
        self.thread.join().map_err(|_| Fault::internal("FUSE session thread panicked"))
    }
}

fn acl(options: &Options) -> fuser::SessionACL {
    if options.allow_other { fuser::SessionACL::All } else { fuser::SessionACL::Owner }
}

fn config(options: &Options, mount_options: &[fuser::MountOption]) -> fuser::Config {
    let mut config = fuser::Config::default();
    config.mount_options = mount_options.to_vec();
    config.acl = acl(options);
    config.n_threads = Some(options.threads);
    config.clone_fd = true;
    config
}

/// The same mount as `mount.rs` makes itself, as options of the `fusermount3` helper.
fn helper_options(options: &Options) -> Vec<fuser::MountOption> {
    use fuser::MountOption;
    let mut list = vec![MountOption::FSName(options.source()), MountOption::Subtype(super::mount::SUBTYPE.into())];
    list.extend(options.kernel_options().into_iter().map(MountOption::CUSTOM));
    list.extend(options.flag_names().into_iter().map(|name| MountOption::CUSTOM(name.into())));
    list
}

/// What we ask of the kernel when the connection is made.
struct Wishes {
    io_bytes_max: u32,
    background_max: u16,
    capabilities: InitFlags,
}

impl Wishes {
    fn of(options: &Options) -> Wishes {
        let mut capabilities = InitFlags::FUSE_ASYNC_READ
            | InitFlags::FUSE_BIG_WRITES
            | InitFlags::FUSE_MAX_PAGES
            | InitFlags::FUSE_POSIX_LOCKS
            | InitFlags::FUSE_FLOCK_LOCKS
            | InitFlags::FUSE_EXPORT_SUPPORT
            | InitFlags::FUSE_AUTO_INVAL_DATA
            // Never without: listings are loaded with attributes anyway, and the kernel's own choice (AUTO) asks for
            // every other part of a large directory without them, so that each entry of it costs a lookup.
            | InitFlags::FUSE_DO_READDIRPLUS
            | InitFlags::FUSE_PARALLEL_DIROPS
            | InitFlags::FUSE_CACHE_SYMLINKS;
        if options.async_dio {
            capabilities |= InitFlags::FUSE_ASYNC_DIO;
        }
        if options.writeback_cache {
            capabilities |= InitFlags::FUSE_WRITEBACK_CACHE;
        }
        if options.acl {
            capabilities |= InitFlags::FUSE_POSIX_ACL;
        }
        if options.acl || options.umask.is_some() {
            // The umask arrives beside the mode instead of within it: a default ACL takes its place, or ours does.
            capabilities |= InitFlags::FUSE_DONT_MASK;
        }
        if options.ioctl {
            capabilities |= InitFlags::FUSE_HAS_IOCTL_DIR;
        }
        Wishes { io_bytes_max: options.io_bytes_max, background_max: options.background_max, capabilities }
    }
}

/// fuser's idea of a file system: every call becomes a request.
struct Files {
    dispatcher: Arc<Dispatcher>,
    wishes: Wishes,
    kernel: Arc<Kernel>,
}

/// What was said to the kernel, and the way to say more.
struct Kernel {
    numbers: Numbers,
    /// The kernel keeps attributes for a while and does not ask again when a file is opened. What open finds in the
    /// metadata is held against this table, so that a process that opens a file after another client closed it sees
    /// that client's length at once (close-to-open), and no request is spent when nothing changed.
    told: SeenFiles,
    /// Empty until the session is set up.
    notices: OnceLock<Arc<Notices>>,
}

impl Kernel {
    /// Before the session is set up there is nothing that it could remember.
    fn forget_attributes(&self, ino: Ino) {
        if let Some(notices) = self.notices.get() {
            notices.forget_attributes(ino);
        }
    }
}

impl Files {
    fn serve(&self, req: &fuser::Request, request: Request<'_>, reply: Slot) {
        let origin = Origin { unique: req.unique().0, uid: req.uid(), gid: req.gid(), pid: req.pid() };
        self.dispatcher.serve(origin, request, Answering { slot: reply, kernel: self.kernel.clone() });
    }

    fn ino(&self, number: INodeNo) -> Ino {
        self.kernel.numbers.stored(Ino(number.0))
    }
}

fn number(numbers: Numbers, ino: Ino) -> INodeNo {
    INodeNo(numbers.shown(ino).0)
}

fn handle(number: FileHandle) -> Handle {
    Handle(number.0)
}

fn new_time(time: fuser::TimeOrNow) -> NewTime {
    match time {
        fuser::TimeOrNow::Now => NewTime::Now,
        fuser::TimeOrNow::SpecificTime(time) => NewTime::At(convert::wire_time(time)),
    }
}

impl fuser::Filesystem for Files {
    fn init(&mut self, _req: &fuser::Request, config: &mut fuser::KernelConfig) -> io::Result<()> {
        for (name, capability) in self.wishes.capabilities.iter_names() {
            if config.add_capabilities(capability).is_err() {
                tracing::debug!(capability = name, "the kernel does not offer it");
            }
        }
        // The nearest possible number is as good as the one wished for.
        if let Err(nearest) = config.set_max_write(self.wishes.io_bytes_max) {
            let _ = config.set_max_write(nearest);
        }
        if let Err(nearest) = config.set_max_background(self.wishes.background_max) {
            let _ = config.set_max_background(nearest);
        }
        tracing::debug!(kernel = ?config.kernel_abi(), "FUSE connection made");
        Ok(())
    }

    fn lookup(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEntry) {
        self.serve(req, Request::Lookup { parent: self.ino(parent), name: name.as_bytes() }, Slot::Entry(reply));
    }

    fn getattr(&self, req: &fuser::Request, node: INodeNo, fh: Option<FileHandle>, reply: fuser::ReplyAttr) {
        self.serve(req, Request::GetAttr { ino: self.ino(node), handle: fh.map(handle) }, Slot::Attr(reply));
    }

    fn setattr(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        mode: Option<u32>,
        uid: Option<u32>,
        gid: Option<u32>,
        size: Option<u64>,
        atime: Option<fuser::TimeOrNow>,
        mtime: Option<fuser::TimeOrNow>,
        ctime: Option<SystemTime>,
        fh: Option<FileHandle>,
        _crtime: Option<SystemTime>,
        _chgtime: Option<SystemTime>,
        _bkuptime: Option<SystemTime>,
        _flags: Option<fuser::BsdFileFlags>,
        reply: fuser::ReplyAttr,
    ) {
        let changes = Changes {
            mode,
            uid,
            gid,
            size,
            atime: atime.map(new_time),
            mtime: mtime.map(new_time),
            ctime: ctime.map(convert::wire_time),
        };
        self.serve(req, Request::SetAttr { ino: self.ino(node), handle: fh.map(handle), changes }, Slot::Attr(reply));
    }

    fn readlink(&self, req: &fuser::Request, node: INodeNo, reply: fuser::ReplyData) {
        self.serve(req, Request::ReadLink { ino: self.ino(node) }, Slot::Data(reply));
    }

    fn mknod(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        rdev: u32,
        reply: fuser::ReplyEntry,
    ) {
        let request = Request::MakeNode { parent: self.ino(parent), name: name.as_bytes(), mode, umask, rdev };
        self.serve(req, request, Slot::Entry(reply));
    }

    fn mkdir(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        reply: fuser::ReplyEntry,
    ) {
        let request = Request::MakeDir { parent: self.ino(parent), name: name.as_bytes(), mode, umask };
        self.serve(req, request, Slot::Entry(reply));
    }

    fn unlink(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.serve(req, Request::Unlink { parent: self.ino(parent), name: name.as_bytes() }, Slot::Empty(reply));
    }

    fn rmdir(&self, req: &fuser::Request, parent: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.serve(req, Request::RemoveDir { parent: self.ino(parent), name: name.as_bytes() }, Slot::Empty(reply));
    }

    fn symlink(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        link_name: &OsStr,
        target: &Path,
        reply: fuser::ReplyEntry,
    ) {
        let target = target.as_os_str().as_bytes();
        let request = Request::Symlink { parent: self.ino(parent), name: link_name.as_bytes(), target };
        self.serve(req, request, Slot::Entry(reply));
    }

    fn rename(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        newparent: INodeNo,
        newname: &OsStr,
        flags: fuser::RenameFlags,
        reply: fuser::ReplyEmpty,
    ) {
        let request = Request::Rename {
            parent: self.ino(parent),
            name: name.as_bytes(),
            new_parent: self.ino(newparent),
            new_name: newname.as_bytes(),
            flags: flags.bits(),
        };
        self.serve(req, request, Slot::Empty(reply));
    }

    fn link(&self, req: &fuser::Request, node: INodeNo, newparent: INodeNo, newname: &OsStr, reply: fuser::ReplyEntry) {
        let request = Request::Link { ino: self.ino(node), parent: self.ino(newparent), name: newname.as_bytes() };
        self.serve(req, request, Slot::Entry(reply));
    }

    fn open(&self, req: &fuser::Request, node: INodeNo, flags: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.serve(req, Request::Open { ino: self.ino(node), flags: flags.0 }, Slot::Open(reply));
    }

    fn read(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        size: u32,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyData,
    ) {
        let request = Request::Read { ino: self.ino(node), handle: handle(fh), offset, len: size };
        self.serve(req, request, Slot::Data(reply));
    }

    fn write(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        data: &[u8],
        _write_flags: fuser::WriteFlags,
        _flags: fuser::OpenFlags,
        _lock_owner: Option<fuser::LockOwner>,
        reply: fuser::ReplyWrite,
    ) {
        let request = Request::Write { ino: self.ino(node), handle: handle(fh), offset, data };
        self.serve(req, request, Slot::Write(reply));
    }

    fn flush(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        lock_owner: fuser::LockOwner,
        reply: fuser::ReplyEmpty,
    ) {
        let request = Request::Flush { ino: self.ino(node), handle: handle(fh), owner: lock_owner.0 };
        self.serve(req, request, Slot::Empty(reply));
    }

    fn release(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        flags: fuser::OpenFlags,
        lock_owner: Option<fuser::LockOwner>,
        _flush: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let owner = lock_owner.map(|owner| owner.0);
        let request = Request::Release { ino: self.ino(node), handle: handle(fh), flags: flags.0, owner };
        self.serve(req, request, Slot::Empty(reply));
    }

    fn fsync(&self, req: &fuser::Request, node: INodeNo, fh: FileHandle, datasync: bool, reply: fuser::ReplyEmpty) {
        self.serve(req, Request::Fsync { ino: self.ino(node), handle: handle(fh), datasync }, Slot::Empty(reply));
    }

    fn opendir(&self, req: &fuser::Request, node: INodeNo, flags: fuser::OpenFlags, reply: fuser::ReplyOpen) {
        self.serve(req, Request::OpenDir { ino: self.ino(node), flags: flags.0 }, Slot::Open(reply));
    }

    fn readdir(&self, req: &fuser::Request, node: INodeNo, fh: FileHandle, offset: u64, reply: fuser::ReplyDirectory) {
        let request = Request::ReadDir { ino: self.ino(node), handle: handle(fh), offset, plus: false };
        self.serve(req, request, Slot::Directory(reply));
    }

    fn readdirplus(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        reply: fuser::ReplyDirectoryPlus,
    ) {
        let request = Request::ReadDir { ino: self.ino(node), handle: handle(fh), offset, plus: true };
        self.serve(req, request, Slot::DirectoryPlus(reply));
    }

    fn releasedir(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        _flags: fuser::OpenFlags,
        reply: fuser::ReplyEmpty,
    ) {
        self.serve(req, Request::ReleaseDir { ino: self.ino(node), handle: handle(fh) }, Slot::Empty(reply));
    }

    fn fsyncdir(&self, req: &fuser::Request, node: INodeNo, fh: FileHandle, datasync: bool, reply: fuser::ReplyEmpty) {
        self.serve(req, Request::FsyncDir { ino: self.ino(node), handle: handle(fh), datasync }, Slot::Empty(reply));
    }

    fn statfs(&self, req: &fuser::Request, node: INodeNo, reply: fuser::ReplyStatfs) {
        self.serve(req, Request::StatFs { ino: self.ino(node) }, Slot::Statfs(reply));
    }

    fn setxattr(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        name: &OsStr,
        value: &[u8],
        flags: i32,
        _position: u32,
        reply: fuser::ReplyEmpty,
    ) {
        let request = Request::SetXattr { ino: self.ino(node), name: name.as_bytes(), value, flags };
        self.serve(req, request, Slot::Empty(reply));
    }

    fn getxattr(&self, req: &fuser::Request, node: INodeNo, name: &OsStr, size: u32, reply: fuser::ReplyXattr) {
        self.serve(req, Request::GetXattr { ino: self.ino(node), name: name.as_bytes(), size }, Slot::Xattr(reply));
    }

    fn listxattr(&self, req: &fuser::Request, node: INodeNo, size: u32, reply: fuser::ReplyXattr) {
        self.serve(req, Request::ListXattr { ino: self.ino(node), size }, Slot::Xattr(reply));
    }

    fn removexattr(&self, req: &fuser::Request, node: INodeNo, name: &OsStr, reply: fuser::ReplyEmpty) {
        self.serve(req, Request::RemoveXattr { ino: self.ino(node), name: name.as_bytes() }, Slot::Empty(reply));
    }

    fn access(&self, req: &fuser::Request, node: INodeNo, mask: fuser::AccessFlags, reply: fuser::ReplyEmpty) {
        self.serve(req, Request::Access { ino: self.ino(node), mask: mask.bits() }, Slot::Empty(reply));
    }

    fn create(
        &self,
        req: &fuser::Request,
        parent: INodeNo,
        name: &OsStr,
        mode: u32,
        umask: u32,
        flags: i32,
        reply: fuser::ReplyCreate,
    ) {
        let request = Request::Create { parent: self.ino(parent), name: name.as_bytes(), mode, umask, flags };
        self.serve(req, request, Slot::Create(reply));
    }

    fn getlk(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        lock_owner: fuser::LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        reply: fuser::ReplyLock,
    ) {
        let lock = RangeLock { start, end, kind: typ, pid };
        let request = Request::GetLock { ino: self.ino(node), handle: handle(fh), owner: lock_owner.0, lock };
        self.serve(req, request, Slot::Lock(reply));
    }

    fn setlk(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        lock_owner: fuser::LockOwner,
        start: u64,
        end: u64,
        typ: i32,
        pid: u32,
        sleep: bool,
        reply: fuser::ReplyEmpty,
    ) {
        let (ino, owner, lock) = (self.ino(node), lock_owner.0, RangeLock { start, end, kind: typ, pid });
        let told = Told { unique: req.unique().0, handle: fh.0, owner, start, end, kind: typ, pid };
        let request = match raw::is_flock(req, &told) {
            Some(true) => Request::Flock { ino, handle: handle(fh), owner, kind: typ, wait: sleep },
            Some(false) => Request::SetLock { ino, handle: handle(fh), owner, lock, wait: sleep },
            None => {
                tracing::error!(%ino, "a lock is refused: it cannot be told whether flock or fcntl asks for it");
                return reply.error(fuser::Errno::ENOLCK);
            }
        };
        self.serve(req, request, Slot::Empty(reply));
    }

    fn ioctl(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        _flags: fuser::IoctlFlags,
        cmd: u32,
        in_data: &[u8],
        out_size: u32,
        reply: fuser::ReplyIoctl,
    ) {
        let (ino, handle) = (self.ino(node), handle(fh));
        let request = Request::Ioctl { ino, handle, command: cmd, input: in_data, output_bytes: out_size };
        self.serve(req, request, Slot::Ioctl(reply));
    }

    fn fallocate(
        &self,
        req: &fuser::Request,
        node: INodeNo,
        fh: FileHandle,
        offset: u64,
        length: u64,
        mode: i32,
        reply: fuser::ReplyEmpty,
    ) {
        let request = Request::Allocate { ino: self.ino(node), handle: handle(fh), mode, offset, len: length };
        self.serve(req, request, Slot::Empty(reply));
    }

    fn copy_file_range(
        &self,
        req: &fuser::Request,
        ino_in: INodeNo,
        fh_in: FileHandle,
        offset_in: u64,
        ino_out: INodeNo,
        fh_out: FileHandle,
        offset_out: u64,
        len: u64,
        flags: fuser::CopyFileRangeFlags,
        reply: fuser::ReplyWrite,
    ) {
        let request = Request::CopyRange {
            from: (self.ino(ino_in), handle(fh_in), offset_in),
            to: (self.ino(ino_out), handle(fh_out), offset_out),
            len,
            flags: flags.bits(),
        };
        self.serve(req, request, Slot::Write(reply));
    }

    /// Not ours: ENOSYS makes the kernel find data and holes by itself, without the warning of the default.
    fn lseek(
        &self,
        _req: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _offset: i64,
        _whence: i32,
        reply: fuser::ReplyLseek,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }

    /// As `lseek`: files are always ready.
    fn poll(
        &self,
        _req: &fuser::Request,
        _ino: INodeNo,
        _fh: FileHandle,
        _ph: fuser::PollNotifier,
        _events: fuser::PollEvents,
        _flags: fuser::PollFlags,
        reply: fuser::ReplyPoll,
    ) {
        reply.error(fuser::Errno::ENOSYS);
    }
}

/// fuser's typed replies behind one type.
enum Slot {
    Attr(fuser::ReplyAttr),
    Create(fuser::ReplyCreate),
    Data(fuser::ReplyData),
    Directory(fuser::ReplyDirectory),
    DirectoryPlus(fuser::ReplyDirectoryPlus),
    Empty(fuser::ReplyEmpty),
    Entry(fuser::ReplyEntry),
    Ioctl(fuser::ReplyIoctl),
    Lock(fuser::ReplyLock),
    Open(fuser::ReplyOpen),
    Statfs(fuser::ReplyStatfs),
    Write(fuser::ReplyWrite),
    Xattr(fuser::ReplyXattr),
}

/// A reply that keeps account of what the kernel is told.
struct Answering {
    slot: Slot,
    kernel: Arc<Kernel>,
}

impl Reply for Answering {
    fn answer(self, answer: Answer) {
        self.slot.answer(answer, &self.kernel);
    }

    fn refuse(self, errno: Errno) {
        self.slot.refuse(errno);
    }
}

impl Slot {
    fn answer(self, answer: Answer, kernel: &Kernel) {
        match (self, answer) {
            (Slot::Empty(reply), Answer::Done) => reply.ok(),
            (Slot::Empty(reply), Answer::Locked(ino)) => {
                // Whoever looks at the length under the lock sees what the last holder left.
                kernel.forget_attributes(ino);
                reply.ok();
            }
            (Slot::Entry(reply), Answer::Node(node)) => {
                kernel.told.note_attr(node.ino, &node.attr);
                reply.entry_with_ttls(
                    &node.belief.attr,
                    &node.belief.entry,
                    &file_attr(number(kernel.numbers, node.ino), &node.attr),
                    GENERATION,
                );
            }
            (Slot::Entry(reply), Answer::NoNode(ttl)) => reply.entry(&ttl, &no_node(), GENERATION),
            (Slot::Attr(reply), Answer::Attr(node)) => {
                kernel.told.note_attr(node.ino, &node.attr);
                reply.attr(&node.belief.attr, &file_attr(number(kernel.numbers, node.ino), &node.attr));
            }
            (Slot::Data(reply), Answer::Target(target)) => reply.data(&target),
            (Slot::Data(reply), Answer::Data(payload)) => contiguous(&payload, |bytes| reply.data(bytes)),
            (Slot::Open(reply), Answer::Opened(opening)) => {
                if let Some((ino, seen)) = opening.seen
                    && !kernel.told.knows(ino, seen)
                {
                    kernel.forget_attributes(ino);
                }
                reply.opened(FileHandle(opening.handle.0), open_flags(&opening));
            }
            (Slot::Create(reply), Answer::Created(node, opening)) => {
                kernel.told.note_attr(node.ino, &node.attr);
                let (ttl, attr) = (node.belief.joined(), file_attr(number(kernel.numbers, node.ino), &node.attr));
                reply.created(&ttl, &attr, GENERATION, FileHandle(opening.handle.0), open_flags(&opening));
            }
            (Slot::Write(reply), Answer::Written(bytes)) => reply.written(bytes),
            (Slot::Directory(mut reply), Answer::Listing(entries)) => {
                for Listed { item, .. } in &entries {
                    let name = OsStr::from_bytes(item.name.as_bytes());
                    if reply.add(number(kernel.numbers, item.ino), item.next, file_type(item.kind), name) {
                        break;
                    }
                }
                reply.ok();
            }
            (Slot::DirectoryPlus(mut reply), Answer::Listing(entries)) => {
                for Listed { item, belief } in &entries {
                    let name = OsStr::from_bytes(item.name.as_bytes());
                    // Of `.` and `..` the kernel takes number and kind only. Others without attributes have inode 0: the
                    // name is listed, and looked up when it is needed.
                    let dots = item.name.is_dot() || item.name.is_dot_dot();
                    let (ttl, attr) = match item.attr {
                        Some(attr) => (belief.joined(), file_attr(number(kernel.numbers, item.ino), &attr)),
                        None => {
                            let ino = if dots { number(kernel.numbers, item.ino) } else { INodeNo(0) };
                            (Duration::ZERO, fuser::FileAttr { ino, kind: file_type(item.kind), ..no_node() })
                        }
                    };
                    if reply.add(attr.ino, item.next, name, &ttl, &attr, GENERATION) {
                        break;
                    }
                    if let Some(attr) = &item.attr {
                        kernel.told.note_attr(item.ino, attr);
                    }
                }
                reply.ok();
            }
            (Slot::Statfs(reply), Answer::Space(space)) => reply.statfs(
                space.blocks,
                space.blocks_free,
                space.blocks_free,
                space.files,
                space.files_free,
                space.block_bytes,
                space.name_bytes_max,
                space.block_bytes,
            ),
            (Slot::Lock(reply), Answer::Lock(lock)) => reply.locked(lock.start, lock.end, lock.kind, lock.pid),
            (Slot::Xattr(reply), Answer::Xattr(value)) => reply.data(&value),
            (Slot::Xattr(reply), Answer::XattrSize(size)) => reply.size(size),
            (Slot::Ioctl(reply), Answer::Ioctl(output)) => reply.ioctl(0, &output),
            (slot, answer) => {
                tracing::error!(?answer, "answer does not belong to the request");
                slot.refuse(Errno::EIO);
            }
        }
    }

    fn refuse(self, errno: Errno) {
        let errno = fuser::Errno::from_i32(errno.raw());
        match self {
            Slot::Attr(reply) => reply.error(errno),
            Slot::Create(reply) => reply.error(errno),
            Slot::Data(reply) => reply.error(errno),
            Slot::Directory(reply) => reply.error(errno),
            Slot::DirectoryPlus(reply) => reply.error(errno),
            Slot::Empty(reply) => reply.error(errno),
            Slot::Entry(reply) => reply.error(errno),
            Slot::Ioctl(reply) => reply.error(errno),
            Slot::Lock(reply) => reply.error(errno),
            Slot::Open(reply) => reply.error(errno),
            Slot::Statfs(reply) => reply.error(errno),
            Slot::Write(reply) => reply.error(errno),
            Slot::Xattr(reply) => reply.error(errno),
        }
    }
}

fn open_flags(opening: &Opening) -> FopenFlags {
    let mut flags = FopenFlags::empty();
    flags.set(FopenFlags::FOPEN_KEEP_CACHE, opening.keep_cache);
    flags.set(FopenFlags::FOPEN_DIRECT_IO, opening.direct_io);
    flags.set(FopenFlags::FOPEN_CACHE_DIR, opening.cache_dir);
    flags
}

fn file_type(kind: Kind) -> fuser::FileType {
    match kind {
        Kind::File => fuser::FileType::RegularFile,
        Kind::Directory => fuser::FileType::Directory,
        Kind::Symlink => fuser::FileType::Symlink,
        Kind::Fifo => fuser::FileType::NamedPipe,
        Kind::BlockDevice => fuser::FileType::BlockDevice,
        Kind::CharDevice => fuser::FileType::CharDevice,
        Kind::Socket => fuser::FileType::Socket,
    }
}

fn file_attr(ino: INodeNo, attr: &Attr) -> fuser::FileAttr {
    fuser::FileAttr {
        ino,
        size: attr.length,
        blocks: convert::blocks(attr),
        atime: convert::system_time(attr.atime),
        mtime: convert::system_time(attr.mtime),
        ctime: convert::system_time(attr.ctime),
        crtime: SystemTime::UNIX_EPOCH,
        kind: file_type(attr.kind),
        perm: attr.mode,
        nlink: attr.nlink,
        uid: attr.uid,
        gid: attr.gid,
        rdev: attr.rdev,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

/// Inode 0: no such node.
fn no_node() -> fuser::FileAttr {
    fuser::FileAttr {
        ino: INodeNo(0),
        size: 0,
        blocks: 0,
        atime: SystemTime::UNIX_EPOCH,
        mtime: SystemTime::UNIX_EPOCH,
        ctime: SystemTime::UNIX_EPOCH,
        crtime: SystemTime::UNIX_EPOCH,
        kind: fuser::FileType::RegularFile,
        perm: 0,
        nlink: 0,
        uid: 0,
        gid: 0,
        rdev: 0,
        blksize: PREFERRED_IO_BYTES,
        flags: 0,
    }
}

struct Notices {
    notifier: fuser::Notifier,
    numbers: Numbers,
}

impl Notices {
    /// The kernel forgets the attributes of a node and keeps its data. May be called while it waits for an answer about
    /// the node: a negative offset leaves the pages alone, and with them the locks that a read under way holds.
    fn forget_attributes(&self, ino: Ino) {
        if let Err(error) = self.notifier.inval_inode(number(self.numbers, ino), -1, 0) {
            tracing::debug!(%ino, %error, "the kernel kept attributes until their time is over");
        }
    }
}

impl KernelCache for Notices {
    fn forget_entry(&self, parent: Ino, name: &[u8]) {
        if let Err(error) = self.notifier.inval_entry(number(self.numbers, parent), OsStr::from_bytes(name)) {
            tracing::debug!(%parent, %error, "the kernel kept an entry until its time is over");
        }
    }
}
