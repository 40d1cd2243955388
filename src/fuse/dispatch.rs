//! From a request to the operation it asks for, and from the operation's outcome to the answer.
//!
//! [`Dispatcher::serve`] builds the future of an operation; `attend.rs` drives it and sends the answer. Names are copied
//! out of the transport's buffer on the way; file data of a write is not, unless the write has to wait.

use super::attend::{Attendant, Observer, Trace, Work, is_interrupted, status_of};
use super::convert;
use super::mount::Options;
use super::trace;
use super::transport::{
    Answer, Belief, Changes, Listed, NewTime, Node, Opening, Origin, RangeLock, Reply, Request, Space,
};
use crate::base::mode::{EXECUTE, Mode, READ, WRITE};
use crate::base::{Attr, Errno, Ino, Kind, Name, Outcome, Stop};
use crate::buf::{Payload, copied};
use crate::meta::ops::attr::{SetAttr, SetTime};
use crate::meta::ops::create::NewNode;
use crate::meta::ops::plock::LockKind;
use crate::meta::ops::rename::RenameMode;
use crate::meta::record::PlockRange;
use crate::meta::{Caller, Entry};
use crate::vfs::control::Control;
use crate::vfs::{DirItem, Numbers, Opened, Vfs};
use bytes::Bytes;
use futures::StreamExt;
use std::sync::Arc;
use std::time::{Duration, Instant};

/// Users that count as somebody else.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Squash {
    /// Who root is here.
    pub root: Option<(u32, u32)>,
    /// Who everybody is here.
    pub all: Option<(u32, u32)>,
}

/// Between two tries for a lock that somebody else holds.
const LOCK_PAUSE_FIRST: Duration = Duration::from_millis(2);
const LOCK_PAUSE_MAX: Duration = Duration::from_millis(100);

/// Attributes fetched one by one for a listing that came without them.
const ATTRS_AT_ONCE: usize = 16;

/// How long the kernel believes the virtual files: they change only in ways that reads do not ask it about.
const VIRTUAL_BELIEF: Duration = Duration::from_secs(3600);

/// Offsets of the virtual entries in the root: past any that the directory itself gives out, within what the kernel
/// takes for a file offset.
const LISTED_FROM: u64 = 1 << 62;

/// Turns requests into operations.
pub struct Dispatcher {
    vfs: Arc<Vfs>,
    control: Arc<Control>,
    attendant: Arc<Attendant>,
    settings: Settings,
    no_groups: Arc<[u32]>,
}

/// What of the mount's options concerns single requests.
struct Settings {
    kernel_judges: bool,
    squash: Squash,
    umask: Option<Mode>,
    xattr: bool,
    security_capability: bool,
    security_selinux: bool,
    ioctl: bool,
    attr: Duration,
    entry: Duration,
    dir_entry: Duration,
    negative: Duration,
    readdir_cache: bool,
    deadline: Duration,
}

impl Dispatcher {
    pub fn new(
        vfs: Arc<Vfs>,
        control: Arc<Control>,
        observer: Arc<dyn Observer>,
        options: &Options,
        runtime: tokio::runtime::Handle,
    ) -> Arc<Dispatcher> {
        let settings = Settings {
            // Everybody being somebody else, the kernel would judge the wrong user.
            kernel_judges: options.default_permissions && options.squash.all.is_none(),
            squash: options.squash,
            umask: options.umask,
            // ACLs travel as extended attributes.
            xattr: options.xattr || options.acl,
            security_capability: options.security_capability,
            security_selinux: options.security_selinux,
            ioctl: options.ioctl,
            attr: options.attr_cache,
            entry: options.entry_cache,
            dir_entry: options.dir_entry_cache,
            negative: options.negative_entry_cache,
            readdir_cache: options.readdir_cache,
            deadline: options.deadline,
        };
        let attendant = Attendant::new(runtime, observer, options.deadline);
        Arc::new(Dispatcher { vfs, control, attendant, settings, no_groups: Arc::new([]) })
    }

    /// How the kernel numbers the nodes of this mount.
    pub fn numbers(&self) -> Numbers {
        self.vfs.numbers()
    }

    /// Who answers the requests.
    pub fn attendant(&self) -> &Arc<Attendant> {
        &self.attendant
    }

    /// Answers one request, now or later.
    pub fn serve<R: Reply>(self: &Arc<Self>, origin: Origin, request: Request<'_>, reply: R) {
        let _runtime = self.attendant.enter();
        let mut trace = Trace::new(origin, trace::operation(&request), inode_of(&request));
        if self.attendant.wants_text() && !self.is_virtual(&request) {
            trace.arguments = Some(trace::arguments(&request));
        }
        if let Request::Write { ino, handle, offset, data } = request
            && !self.control.owns(ino)
            && let Some(outcome) = self.vfs.try_write(ino, handle, offset, data)
        {
            // Straight from the transport's buffer into the slice under construction.
            return self.attendant.finish(trace, reply, outcome.map(Answer::Written));
        }
        self.attendant.attend(trace, self.work(origin, request), reply);
    }

    /// Whether it is about a virtual file. A reader of the access log does not want to see that, least of all its own
    /// reading, of which there would be no end.
    fn is_virtual(&self, request: &Request<'_>) -> bool {
        match request {
            Request::Lookup { parent, name } => self.control.find(*parent, name).is_some(),
            request => inode_of(request).is_some_and(|ino| self.control.owns(ino)),
        }
    }

    /// Who asks, in the words of the metadata. Groups are looked up only when we judge: with the kernel judging they
    /// would cost every request a look into /proc for nothing.
    fn caller(&self, origin: Origin) -> Caller {
        let squashed = self.settings.squash.all.or(self.settings.squash.root.filter(|_| origin.uid == 0));
        let (uid, gid) = squashed.unwrap_or((origin.uid, origin.gid));
        // The kernel judged root, not whom root is made into.
        let check = !self.settings.kernel_judges || squashed.is_some();
        let groups = match check && uid != 0 && squashed.is_none() {
            true => groups_of(origin.pid).unwrap_or_else(|| self.no_groups.clone()),
            false => self.no_groups.clone(),
        };
        Caller { uid, gid, groups, pid: origin.pid, check }
    }

    /// As `caller`, for requests whose permissions the kernel never sees: those written to `.control`.
    fn checked_caller(&self, origin: Origin) -> Caller {
        let caller = self.caller(origin);
        let groups = match caller.check {
            true => caller.groups,
            false => groups_of(origin.pid).unwrap_or_else(|| self.no_groups.clone()),
        };
        Caller { check: true, groups, ..caller }
    }

    fn umask(&self, callers: u32) -> Mode {
        self.settings.umask.unwrap_or(convert::permission_bits(callers))
    }

    fn node(&self, ino: Ino, attr: Attr) -> Node {
        if self.control.owns(ino) {
            return Node { ino, attr, belief: Belief { attr: VIRTUAL_BELIEF, entry: VIRTUAL_BELIEF } };
        }
        let entry = if attr.is_dir() { self.settings.dir_entry } else { self.settings.entry };
        Node { ino, attr, belief: Belief { attr: self.settings.attr, entry } }
    }

    fn answer_entry(&self, entry: Entry) -> Answer {
        Answer::Node(self.node(entry.ino, entry.attr))
    }

    fn opening(&self, opened: Opened) -> Opening {
        let Opened { handle, keep_cache, direct_io, seen: _ } = opened;
        Opening { handle, keep_cache, direct_io, seen: None, cache_dir: false }
    }

    fn work(self: &Arc<Self>, origin: Origin, request: Request<'_>) -> Work {
        if let Some(ino) = inode_of(&request)
            && self.control.owns(ino)
        {
            return self.virtual_work(origin, request);
        }
        if let Some(refusal) = self.reserved(&request) {
            return refuse(refusal);
        }
        let this = self.clone();
        match request {
            Request::Lookup { parent, name } => {
                if let Some(ino) = self.control.find(parent, name) {
                    return Box::pin(async move {
                        let attr = match this.control.owns(ino) {
                            true => this.control.getattr(ino)?,
                            false => this.vfs.getattr(ino).await?,
                        };
                        Ok(Answer::Node(this.node(ino, attr)))
                    });
                }
                // Nothing lies above the mount.
                let name = if parent == self.vfs.root() && name == b".." { &b"."[..] } else { name };
                let (caller, name) = (self.caller(origin), Name::entry(name));
                Box::pin(async move {
                    match this.vfs.lookup(&caller, parent, &name?).await {
                        Ok(found) => Ok(Answer::Node(this.node(found.entry.ino, found.entry.attr).aged(found.age))),
                        Err(Stop::Errno(Errno::ENOENT)) if !this.settings.negative.is_zero() => {
                            Ok(Answer::NoNode(this.settings.negative))
                        }
                        Err(stop) => Err(stop),
                    }
                })
            }
            Request::GetAttr { ino, .. } => Box::pin(async move {
                let (attr, age) = this.vfs.getattr_for_kernel(ino).await?;
                Ok(Answer::Attr(this.node(ino, attr).aged(age)))
            }),
            Request::SetAttr { ino, handle, changes } => {
                let caller = self.caller(origin);
                Box::pin(async move {
                    let attr = this.vfs.setattr(&caller, ino, handle, changes.size, &set_attr(&changes)).await?;
                    Ok(Answer::Attr(this.node(ino, attr)))
                })
            }
            Request::ReadLink { ino } => Box::pin(async move { this.vfs.readlink(ino).await.map(Answer::Target) }),
            Request::MakeNode { parent, name, mode, umask, rdev } => {
                let kind = match convert::node_kind(mode) {
                    Ok(kind) => kind,
                    Err(errno) => return refuse(errno),
                };
                self.make(origin, parent, name, kind, mode, umask, rdev, None)
            }
            Request::MakeDir { parent, name, mode, umask } => {
                self.make(origin, parent, name, Kind::Directory, mode, umask, 0, None)
            }
            Request::Symlink { parent, name, target } => {
                let target = Some(Bytes::copy_from_slice(target));
                self.make(origin, parent, name, Kind::Symlink, 0o777, 0, 0, target)
            }
            Request::Link { ino, parent, name } => {
                let (caller, name) = (self.caller(origin), Name::entry(name));
                Box::pin(async move {
                    let entry = this.vfs.link(&caller, ino, parent, &name?).await?;
                    Ok(this.answer_entry(entry))
                })
            }
            Request::Unlink { parent, name } => {
                let (caller, name) = (self.caller(origin), Name::entry(name));
                Box::pin(async move { this.vfs.unlink(&caller, parent, &name?).await.map(|()| Answer::Done) })
            }
            Request::RemoveDir { parent, name } => {
                let (caller, name) = (self.caller(origin), Name::entry(name));
                Box::pin(async move { this.vfs.rmdir(&caller, parent, &name?).await.map(|()| Answer::Done) })
            }
            Request::Rename { parent, name, new_parent, new_name, flags } => {
                let (caller, name, new_name) = (self.caller(origin), Name::entry(name), Name::entry(new_name));
                Box::pin(async move {
                    let how = rename_mode(flags)?;
                    this.vfs.rename(&caller, parent, &name?, new_parent, &new_name?, how).await?;
                    Ok(Answer::Done)
                })
            }
            Request::Create { parent, name, mode, umask, flags } => {
                let (caller, name) = (self.caller(origin), Name::entry(name));
                let (mode, umask) = (convert::permission_bits(mode), self.umask(umask));
                Box::pin(async move {
                    let (entry, opened) = this.vfs.create(&caller, parent, &name?, mode, umask, flags).await?;
                    Ok(Answer::Created(this.node(entry.ino, entry.attr), this.opening(opened)))
                })
            }
            Request::Open { ino, flags } => {
                let caller = self.caller(origin);
                Box::pin(async move {
                    let opened = this.vfs.open(&caller, ino, flags).await?;
                    let seen = opened.seen.map(|seen| (ino, seen));
                    Ok(Answer::Opened(Opening { seen, ..this.opening(opened) }))
                })
            }
            Request::Read { ino, handle, offset, len } => {
                Box::pin(async move { this.vfs.read(ino, handle, offset, len).await.map(Answer::Data) })
            }
            Request::Write { ino, handle, offset, data } => {
                // Only writes that have to wait come here: their bytes must outlive the transport's buffer.
                copied(data.len());
                let data = Bytes::copy_from_slice(data);
                Box::pin(async move { this.vfs.write(ino, handle, offset, data).await.map(Answer::Written) })
            }
            Request::Flush { ino, handle, owner } => {
                Box::pin(async move { this.vfs.flush(ino, handle, owner).await.map(|()| Answer::Done) })
            }
            Request::Fsync { ino, handle, datasync } => {
                Box::pin(async move { this.vfs.fsync(ino, handle, datasync).await.map(|()| Answer::Done) })
            }
            Request::Release { ino, handle, owner, .. } => Box::pin(async move {
                let released = this.vfs.release(ino, handle).await;
                if let Some(owner) = owner {
                    this.vfs.flock(ino, handle, owner, LockKind::Unlock).await?;
                }
                released.map(|()| Answer::Done)
            }),
            Request::Allocate { ino, handle, mode, offset, len } => {
                let caller = self.caller(origin);
                Box::pin(async move {
                    let mode = u32::try_from(mode).map_err(|_| Errno::EINVAL)?;
                    this.vfs.fallocate(&caller, ino, handle, mode, offset, len).await?;
                    Ok(Answer::Done)
                })
            }
            Request::CopyRange { from, to, len, flags } => {
                let caller = self.caller(origin);
                Box::pin(async move {
                    if flags != 0 {
                        return Err(Errno::EINVAL.into());
                    }
                    let copied = this.vfs.copy_file_range(&caller, from.1, from.2, to.1, to.2, len).await?;
                    // The vfs takes over no more than the reply can tell.
                    Ok(Answer::Written(u32::try_from(copied).unwrap_or(u32::MAX)))
                })
            }
            Request::OpenDir { ino, .. } => {
                let caller = self.caller(origin);
                Box::pin(async move {
                    let opened = this.vfs.opendir(&caller, ino).await?;
                    let cache = this.settings.readdir_cache;
                    let opening = this.opening(opened);
                    Ok(Answer::Opened(Opening { keep_cache: cache, cache_dir: cache, ..opening }))
                })
            }
            Request::ReadDir { ino, handle, offset, plus } => Box::pin(async move {
                let is_root = ino == this.vfs.root();
                let mut items = match is_root && offset >= LISTED_FROM {
                    true => Vec::new(),
                    false => this.vfs.readdir(ino, handle, offset, plus).await?,
                };
                if items.is_empty() && is_root {
                    return this.listing(this.listed_after(offset), plus).await;
                }
                // Nothing lies above the mount.
                if let Some(above) = items.iter_mut().find(|item| is_root && item.name.is_dot_dot()) {
                    above.ino = ino;
                }
                this.listing(items, plus).await
            }),
            Request::ReleaseDir { handle, .. } => {
                Box::pin(async move { this.vfs.releasedir(handle).await.map(|()| Answer::Done) })
            }
            Request::FsyncDir { handle, .. } => {
                Box::pin(async move { this.vfs.fsyncdir(handle).await.map(|()| Answer::Done) })
            }
            Request::StatFs { ino } => Box::pin(async move { this.vfs.statfs(ino).await.map(|s| space(&s)) }),
            Request::Access { ino, mask } => {
                let caller = self.caller(origin);
                Box::pin(async move {
                    let want = mask & libc::c_int::from(READ | WRITE | EXECUTE);
                    this.vfs.access(&caller, ino, want as u8).await.map(|()| Answer::Done)
                })
            }
            Request::GetXattr { ino, name, size } => {
                if let Err(errno) = self.xattr_allowed(name) {
                    // Reading what is not kept finds nothing; the kernel asks for capabilities before every write.
                    return refuse(if errno == Errno::ENOSYS { errno } else { Errno::ENODATA });
                }
                let name = Name::xattr(name);
                Box::pin(async move { sized(this.vfs.get_xattr(ino, &name?).await?, size) })
            }
            Request::SetXattr { ino, name, value, flags } => {
                if let Err(errno) = self.xattr_allowed(name) {
                    return refuse(errno);
                }
                let (caller, name, value) = (self.caller(origin), Name::xattr(name), Bytes::copy_from_slice(value));
                Box::pin(
                    async move { this.vfs.set_xattr(&caller, ino, &name?, value, flags).await.map(|()| Answer::Done) },
                )
            }
            Request::ListXattr { ino, size } => {
                if !self.settings.xattr {
                    return refuse(Errno::ENOSYS);
                }
                Box::pin(async move { sized(this.vfs.list_xattr(ino).await?, size) })
            }
            Request::RemoveXattr { ino, name } => {
                if let Err(errno) = self.xattr_allowed(name) {
                    return refuse(errno);
                }
                let (caller, name) = (self.caller(origin), Name::xattr(name));
                Box::pin(async move { this.vfs.remove_xattr(&caller, ino, &name?).await.map(|()| Answer::Done) })
            }
            Request::GetLock { ino, owner, lock, .. } => Box::pin(async move {
                let RangeLock { start, end, kind, pid } = lock;
                let range = PlockRange { exclusive: kind == libc::F_WRLCK, pid, start, end };
                let held = this.vfs.getlk(ino, owner, range).await?;
                Ok(Answer::Lock(match held {
                    None => RangeLock { kind: libc::F_UNLCK, ..lock },
                    Some(PlockRange { exclusive, pid, start, end }) => {
                        RangeLock { start, end, kind: if exclusive { libc::F_WRLCK } else { libc::F_RDLCK }, pid }
                    }
                }))
            }),
            Request::SetLock { ino, owner, lock, wait, .. } => {
                let until = wait.then(|| Instant::now() + self.settings.deadline);
                let RangeLock { start, end, kind, pid } = lock;
                Box::pin(async move {
                    let vfs = &this.vfs;
                    let set = move |kind| vfs.setlk(ino, owner, start, end, kind, pid, false);
                    lock_by(origin, ino, kind, until, set).await
                })
            }
            Request::Flock { ino, handle, owner, kind, wait } => {
                let until = wait.then(|| Instant::now() + self.settings.deadline);
                Box::pin(async move {
                    let vfs = &this.vfs;
                    lock_by(origin, ino, kind, until, move |kind| vfs.flock(ino, handle, owner, kind)).await
                })
            }
            Request::Ioctl { ino, command, input, .. } => {
                if !self.settings.ioctl {
                    return refuse(Errno::ENOTTY);
                }
                if convert::GETFLAGS.contains(&command) {
                    return Box::pin(async move {
                        let word = convert::ioctl_flags(this.vfs.get_flags(ino).await?);
                        Ok(Answer::Ioctl(Bytes::copy_from_slice(&word.to_ne_bytes())))
                    });
                }
                if command == convert::GETXFLAGS {
                    return Box::pin(async move {
                        let record = convert::fsxattr(this.vfs.get_flags(ino).await?);
                        Ok(Answer::Ioctl(Bytes::copy_from_slice(&record)))
                    });
                }
                if !convert::SETFLAGS.contains(&command) {
                    return refuse(Errno::ENOTTY);
                }
                let Some(word) = input.first_chunk::<4>().copied().map(u32::from_ne_bytes) else {
                    return refuse(Errno::EINVAL);
                };
                let caller = self.caller(origin);
                Box::pin(async move {
                    this.vfs.set_flags(&caller, ino, convert::stored_flags(word)?).await?;
                    Ok(Answer::Ioctl(Bytes::new()))
                })
            }
        }
    }

    #[expect(clippy::too_many_arguments, reason = "the arguments of mknod, mkdir and symlink together")]
    fn make(
        self: &Arc<Self>,
        origin: Origin,
        parent: Ino,
        name: &[u8],
        kind: Kind,
        mode: u32,
        umask: u32,
        rdev: u32,
        target: Option<Bytes>,
    ) -> Work {
        let (this, caller, name) = (self.clone(), self.caller(origin), Name::entry(name));
        let node = NewNode { kind, mode: convert::permission_bits(mode), umask: self.umask(umask), rdev, target };
        Box::pin(async move {
            let entry = this.vfs.make(&caller, parent, &name?, &node).await?;
            Ok(this.answer_entry(entry))
        })
    }

    /// The virtual files' names cannot be given to anything else, nor taken from them.
    fn reserved(&self, request: &Request<'_>) -> Option<Errno> {
        let kept = |parent, name| self.control.find(parent, name).is_some();
        let (name, errno) = match *request {
            Request::MakeNode { parent, name, .. }
            | Request::MakeDir { parent, name, .. }
            | Request::Symlink { parent, name, .. }
            | Request::Link { parent, name, .. }
            | Request::Create { parent, name, .. } => ((parent, name), Errno::EEXIST),
            Request::Unlink { parent, name } | Request::RemoveDir { parent, name } => ((parent, name), Errno::EPERM),
            Request::Rename { parent, name, new_parent, new_name, .. } => {
                if kept(new_parent, new_name) {
                    return Some(Errno::EPERM);
                }
                ((parent, name), Errno::EPERM)
            }
            _ => return None,
        };
        kept(name.0, name.1).then_some(errno)
    }

    fn virtual_work(self: &Arc<Self>, origin: Origin, request: Request<'_>) -> Work {
        let this = self.clone();
        let answer = match request {
            Request::GetAttr { ino, .. } => self.control.getattr(ino).map(|attr| Answer::Attr(self.node(ino, attr))),
            // `echo > .control` truncates; there is nothing to change.
            Request::SetAttr { ino, changes, .. } => match changes {
                Changes { mode: None, uid: None, gid: None, .. } => {
                    self.control.getattr(ino).map(|attr| Answer::Attr(self.node(ino, attr)))
                }
                _ => Err(Errno::EPERM.into()),
            },
            Request::Open { ino, flags } => {
                self.control.open(ino, flags).map(|opened| Answer::Opened(self.opening(opened)))
            }
            Request::Read { handle, offset, len, .. } => {
                return Box::pin(async move {
                    let bytes = this.control.read(handle, offset, len as usize).await?;
                    Ok(Answer::Data(Payload::from(bytes)))
                });
            }
            Request::Write { handle, data, .. } => {
                self.control.write(&self.checked_caller(origin), handle, data).map(Answer::Written)
            }
            Request::Flush { handle, .. } => self.control.flush(handle).map(|()| Answer::Done),
            Request::Release { handle, .. } => self.control.release(handle).map(|()| Answer::Done),
            Request::Fsync { .. } => Ok(Answer::Done),
            Request::StatFs { .. } => {
                return Box::pin(async move { this.vfs.statfs(this.vfs.root()).await.map(|s| space(&s)) });
            }
            Request::Access { .. } => Ok(Answer::Done),
            Request::GetXattr { .. } | Request::RemoveXattr { .. } => Err(Errno::ENODATA.into()),
            Request::ListXattr { size, .. } => sized(Bytes::new(), size),
            Request::Ioctl { .. } => Err(Errno::ENOTTY.into()),
            _ => Err(Errno::EPERM.into()),
        };
        Box::pin(std::future::ready(answer))
    }

    /// ENOSYS makes the kernel stop asking at all; single names are refused with ENOTSUP.
    fn xattr_allowed(&self, name: &[u8]) -> Result<(), Errno> {
        if !self.settings.xattr {
            return Err(Errno::ENOSYS);
        }
        let kept = match name {
            b"security.capability" => self.settings.security_capability,
            b"security.selinux" => self.settings.security_selinux,
            _ => true,
        };
        if kept { Ok(()) } else { Err(Errno::ENOTSUP) }
    }

    /// The virtual entries of the root, which follow its own.
    fn listed_after(&self, offset: u64) -> Vec<DirItem> {
        let skipped = offset.saturating_sub(LISTED_FROM) as usize;
        let entries = self.control.listed().into_iter().enumerate().skip(skipped);
        let item = |(at, (name, ino, kind))| {
            let (asked, next) = (tokio::time::Instant::now(), LISTED_FROM + at as u64 + 1);
            DirItem { ino, kind, name, attr: None, gone: false, asked, next }
        };
        entries.map(item).collect()
    }

    /// Completes entries that came without attributes when they are wanted.
    async fn listing(&self, mut items: Vec<DirItem>, plus: bool) -> Outcome<Answer> {
        if plus {
            let without =
                |item: &DirItem| item.attr.is_none() && !item.gone && !item.name.is_dot() && !item.name.is_dot_dot();
            let missing: Vec<usize> = (0..items.len()).filter(|&at| without(&items[at])).collect();
            let fetch = missing.into_iter().map(|at| {
                let ino = items[at].ino;
                async move {
                    let attr = match self.control.owns(ino) {
                        true => self.control.getattr(ino),
                        false => self.vfs.getattr(ino).await,
                    };
                    (at, attr)
                }
            });
            let fetched: Vec<_> =
                futures::stream::iter(fetch.collect::<Vec<_>>()).buffered(ATTRS_AT_ONCE).collect().await;
            for (at, attr) in fetched {
                match attr {
                    Ok(attr) => items[at].attr = Some(attr),
                    // Removed since it was listed; the name is shown as readdir without attributes shows it.
                    Err(Stop::Errno(_)) => {}
                    Err(fault) => return Err(fault),
                }
            }
        }
        let listed = items.into_iter().map(|item| {
            let node = item.attr.map(|attr| self.node(item.ino, attr).aged(item.asked.elapsed()));
            let belief = node.map_or(Belief::default(), |node| node.belief);
            Listed { item, belief }
        });
        Ok(Answer::Listing(listed.collect()))
    }
}

/// Sets a lock; with a deadline, tries until it is there, the time is over, or the caller has a signal to attend to. The
/// transport cannot deliver interrupts, so the signal is looked for.
async fn lock_by<F: Future<Output = Outcome<()>>>(
    origin: Origin,
    ino: Ino,
    kind: i32,
    wait_until: Option<Instant>,
    set: impl Fn(LockKind) -> F,
) -> Outcome<Answer> {
    let kind = match kind {
        libc::F_RDLCK => LockKind::Read,
        libc::F_WRLCK => LockKind::Write,
        libc::F_UNLCK => LockKind::Unlock,
        _ => return Err(Errno::EINVAL.into()),
    };
    let mut pause = LOCK_PAUSE_FIRST;
    loop {
        let stop = match set(kind).await {
            Ok(()) if kind == LockKind::Unlock => return Ok(Answer::Done),
            Ok(()) => return Ok(Answer::Locked(ino)),
            Err(stop) => stop,
        };
        let Some(until) = wait_until else { return Err(stop) };
        if stop.errno() != Errno::EAGAIN {
            return Err(stop);
        }
        // A little early: past the deadline itself the request is answered for us, and a lock that came then would
        // belong to nobody.
        if Instant::now() + 2 * LOCK_PAUSE_MAX >= until || is_interrupted(origin.pid) {
            return Err(Errno::EINTR.into());
        }
        tokio::time::sleep(pause).await;
        pause = (pause * 2).min(LOCK_PAUSE_MAX);
    }
}

fn refuse(errno: Errno) -> Work {
    Box::pin(std::future::ready(Err(errno.into())))
}

/// The node a request is about, for the log and to tell virtual files apart.
fn inode_of(request: &Request<'_>) -> Option<Ino> {
    match *request {
        Request::Lookup { .. }
        | Request::MakeNode { .. }
        | Request::MakeDir { .. }
        | Request::Symlink { .. }
        | Request::Unlink { .. }
        | Request::RemoveDir { .. }
        | Request::Rename { .. }
        | Request::Create { .. } => None,
        Request::GetAttr { ino, .. }
        | Request::SetAttr { ino, .. }
        | Request::ReadLink { ino }
        | Request::Link { ino, .. }
        | Request::Open { ino, .. }
        | Request::Read { ino, .. }
        | Request::Write { ino, .. }
        | Request::Flush { ino, .. }
        | Request::Fsync { ino, .. }
        | Request::Release { ino, .. }
        | Request::Allocate { ino, .. }
        | Request::OpenDir { ino, .. }
        | Request::ReadDir { ino, .. }
        | Request::ReleaseDir { ino, .. }
        | Request::FsyncDir { ino, .. }
        | Request::StatFs { ino }
        | Request::Access { ino, .. }
        | Request::GetXattr { ino, .. }
        | Request::SetXattr { ino, .. }
        | Request::ListXattr { ino, .. }
        | Request::RemoveXattr { ino, .. }
        | Request::GetLock { ino, .. }
        | Request::SetLock { ino, .. }
        | Request::Flock { ino, .. }
        | Request::Ioctl { ino, .. } => Some(ino),
        Request::CopyRange { to, .. } => Some(to.0),
    }
}

fn set_attr(changes: &Changes) -> SetAttr {
    let time = |time: NewTime| match time {
        NewTime::Now => SetTime::Now,
        NewTime::At(time) => SetTime::At(time),
    };
    SetAttr {
        mode: changes.mode.map(convert::permission_bits),
        uid: changes.uid,
        gid: changes.gid,
        atime: changes.atime.map(time),
        mtime: changes.mtime.map(time),
        flags: None,
        tier: None,
    }
}

fn rename_mode(flags: u32) -> Result<RenameMode, Errno> {
    match flags {
        0 => Ok(RenameMode::Replace),
        libc::RENAME_NOREPLACE => Ok(RenameMode::NoReplace),
        libc::RENAME_EXCHANGE => Ok(RenameMode::Exchange),
        // Whiteouts, and flags that exclude one another.
        _ => Err(Errno::EINVAL),
    }
}

/// An extended attribute the way it is asked for: its size, or its bytes if they fit.
fn sized(value: Bytes, size: u32) -> Outcome<Answer> {
    if size == 0 {
        return Ok(Answer::XattrSize(value.len() as u32));
    }
    if value.len() > size as usize { Err(Errno::ERANGE.into()) } else { Ok(Answer::Xattr(value)) }
}

/// `spec/metadata.md` 7.15.
fn space(stat: &crate::meta::usage::StatFs) -> Answer {
    const BLOCK_BYTES: u64 = 4096;
    Answer::Space(Space {
        blocks: (stat.total / BLOCK_BYTES).max(1),
        blocks_free: stat.avail / BLOCK_BYTES,
        files: stat.inodes_used + stat.inodes_avail,
        files_free: stat.inodes_avail,
        block_bytes: BLOCK_BYTES as u32,
        name_bytes_max: crate::base::name::NAME_BYTES_MAX as u32,
    })
}

/// A process's supplementary groups; `None` when it is gone or belongs to another process space.
fn groups_of(pid: u32) -> Option<Arc<[u32]>> {
    let status = status_of(pid)?;
    let list = status.lines().find_map(|line| line.strip_prefix("Groups:"))?;
    Some(list.split_ascii_whitespace().filter_map(|gid| gid.parse().ok()).collect())
}
