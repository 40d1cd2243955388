//! The operations of a mounted volume. Most are the metadata's own; those that touch open files complete them.

use super::ahead::{Begun, Found, LISTING_MAX, Read};
use super::dirs::{DirItem, DirStream};
use super::file::File;
use super::handle::{DirHandle, FileHandle, Handle, Open};
use super::seen::Stamp;
use super::writer::FILE_BYTES_MAX;
use super::{Opened, Vfs};
use crate::base::mode::Mode;
use crate::base::{Attr, ChunkIndex, Errno, Ino, Kind, Name, Outcome};
use crate::meta::known::{Known, TOUCHED_FOR};
use crate::meta::ops::attr::SetAttr;
use crate::meta::ops::create::NewNode;
use crate::meta::ops::rename::RenameMode;
use crate::meta::ops::xattr::XattrMode;
use crate::meta::record::{Dentry, Key, Record};
use crate::meta::usage::StatFs;
use crate::meta::{Caller, Entry};
use bytes::Bytes;
use std::sync::{Arc, Weak};
use std::time::Duration;
use tokio::time::Instant;

/// Longest symlink target that FUSE can carry, in bytes.
const SYMLINK_BYTES_MAX: usize = 4095;
/// Entries answered to one readdir at most: what the kernel's buffer of 64 KiB holds with attributes and short names.
/// What does not fit is asked for again.
const READDIR_ENTRIES: usize = 430;
/// Attributes in a listing that are older are read once more, whatever the kernel believes. Own changes are remembered for
/// longer ([`TOUCHED_FOR`]).
const LISTED_FOR: Duration = TOUCHED_FOR.checked_div(2).expect("two is not zero");

/// A file is looked at this often when commits of this client come between.
const LOOKS_MAX: usize = 3;

impl Vfs {
    pub async fn lookup(&self, caller: &Caller, parent: Ino, name: &Name) -> Outcome<Found> {
        let mut found = match self.find_ahead(caller, parent, name) {
            Some(found) => found,
            None => {
                let entry = self.meta.lookup(caller, parent, name).await?;
                self.ahead.asked(entry.ino);
                if let Some(begun) = self.ahead.looked_up(parent) {
                    self.spawn(read_ahead(self.me.clone(), parent, begun));
                }
                Found { entry, age: Duration::ZERO }
            }
        };
        // The file was not known before the lookup, so its version is not either; only pending data is added.
        if let Some(file) = self.files.get(found.entry.ino) {
            file.complete(&mut found.entry.attr);
        }
        Ok(found)
    }

    fn find_ahead(&self, caller: &Caller, parent: Ino, name: &Name) -> Option<Found> {
        // Whether the caller may search the directory is not in its listing.
        if caller.check {
            return None;
        }
        let known = self.meta.known();
        let found = self.ahead.find(parent, name, known)?;
        // What follows a lookup begins with these; whether they still hold is found out then.
        let Entry { ino, attr } = found.entry;
        let asked = Instant::now().checked_sub(found.age)?;
        note_shown(known, parent, [(name.clone(), ino, attr, asked)]);
        Some(found)
    }

    /// As `getattr`, with the age of the answer. A kernel asks for the attributes of what it has changed, and they are
    /// known then. Those of an open file are always asked for.
    pub async fn getattr_for_kernel(&self, ino: Ino) -> Outcome<(Attr, Duration)> {
        if self.files.get(ino).is_none()
            && let Some(known) = self.meta.known_attr(ino, self.settings.belief)
        {
            return Ok(known);
        }
        Ok((self.getattr(ino).await?, Duration::ZERO))
    }

    pub async fn getattr(&self, ino: Ino) -> Outcome<Attr> {
        let file = self.files.get(ino);
        let version = file.as_ref().map(|file| file.version());
        let mut attr = self.meta.getattr(ino).await?;
        self.ahead.asked(ino);
        if let (Some(file), Some(version)) = (file, version) {
            file.observe(&mut attr, version);
        }
        Ok(attr)
    }

    /// chmod, chown, utimes, truncate: `size` first, as the format asks (`spec/metadata.md` 7.14).
    pub async fn setattr(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Option<Handle>,
        size: Option<u64>,
        set: &SetAttr,
    ) -> Outcome<Attr> {
        let file = self.files.get(ino);
        if let Some(file) = &file {
            // Pending data must not be committed over a later mtime or truncation.
            if size.is_some() || set.mtime.is_some() {
                self.flush_file(file).await?;
            }
        }
        let mut attr = None;
        if let Some(length) = size {
            attr = Some(self.truncate(caller, ino, file.as_ref(), length, handle.is_some()).await?);
        }
        if *set != SetAttr::default() {
            let version = file.as_ref().map(|file| file.version());
            let mut changed = self.meta.setattr(caller, ino, set).await?;
            if let (Some(file), Some(version)) = (&file, version) {
                let (pages_old, length, before) = {
                    let state = file.state();
                    (state.pages_old, state.length, state.seen)
                };
                file.observe(&mut changed, version);
                // That its times are others is our own doing.
                let is_ours = set.mtime.is_some() || before.is_some_and(|seen| seen.mtime == changed.mtime);
                if is_ours && changed.length == length {
                    file.state().pages_old = pages_old;
                }
            }
            attr = Some(changed);
        }
        match attr {
            Some(attr) => Ok(attr),
            None => self.getattr(ino).await,
        }
    }

    async fn truncate(
        &self,
        caller: &Caller,
        ino: Ino,
        file: Option<&Arc<File>>,
        length: u64,
        by_handle: bool,
    ) -> Outcome<Attr> {
        if length >= FILE_BYTES_MAX {
            return Err(Errno::EFBIG.into());
        }
        let before = file.and_then(|file| file.state().seen);
        let attr = self.meta.truncate(caller, ino, length, by_handle).await?;
        if let Some(file) = file {
            let mut state = file.state();
            state.forget_chunks();
            // Of an empty file there are no pages. Else what others did meanwhile has not shown itself.
            state.pages_old = length > 0;
            state.committed(&attr, before);
        }
        Ok(attr)
    }

    pub async fn readlink(&self, ino: Ino) -> Outcome<Bytes> {
        let target = self.meta.readlink(ino).await?;
        self.accessed_unseen(ino);
        Ok(target)
    }

    /// mknod, mkdir, symlink.
    pub async fn make(&self, caller: &Caller, parent: Ino, name: &Name, node: &NewNode) -> Outcome<Entry> {
        if node.target.as_ref().is_some_and(|target| target.len() > SYMLINK_BYTES_MAX) {
            return Err(Errno::ENAMETOOLONG.into());
        }
        self.meta.create(caller, parent, name, node).await
    }

    pub async fn link(&self, caller: &Caller, ino: Ino, parent: Ino, name: &Name) -> Outcome<Entry> {
        let file = self.files.get(ino);
        let version = file.as_ref().map(|file| file.version());
        let mut attr = self.meta.link(caller, ino, parent, name).await?;
        if let (Some(file), Some(version)) = (file, version) {
            file.observe(&mut attr, version);
        }
        Ok(Entry { ino, attr })
    }

    pub async fn unlink(&self, caller: &Caller, parent: Ino, name: &Name) -> Outcome<()> {
        let removed = self.meta.unlink(caller, parent, name, false).await?;
        if removed.freed {
            self.opened_before.forget(removed.ino);
        }
        Ok(())
    }

    pub async fn rmdir(&self, caller: &Caller, parent: Ino, name: &Name) -> Outcome<()> {
        self.meta.rmdir(caller, parent, name, false).await.map(drop)
    }

    pub async fn rename(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        new_parent: Ino,
        new_name: &Name,
        how: RenameMode,
    ) -> Outcome<()> {
        self.meta.rename(caller, parent, name, new_parent, new_name, how).await.map(drop)
    }

    /// open(2) with O_CREAT: makes the file, or opens the one that is there unless O_EXCL is set.
    pub async fn create(
        &self,
        caller: &Caller,
        parent: Ino,
        name: &Name,
        mode: Mode,
        umask: Mode,
        flags: i32,
    ) -> Outcome<(Entry, Opened)> {
        let node = NewNode { kind: Kind::File, mode, umask, rdev: 0, target: None };
        match self.meta.create_open(caller, parent, name, &node).await {
            Ok(made) => {
                let (file, mut attr) = (self.files.enter(made.ino), made.attr);
                // Nothing was committed through this client before the file was there.
                file.observe(&mut attr, 0);
                Ok((made, self.opened(file, Stamp::of(&made.attr), &attr, flags)))
            }
            Err(stop) if stop.errno() == Errno::EEXIST && flags & libc::O_EXCL == 0 => {
                let entry = self.meta.lookup(caller, parent, name).await?;
                if !entry.attr.is_file() {
                    return Err(Errno::EEXIST.into());
                }
                let opened = self.open(caller, entry.ino, flags).await?;
                Ok((entry, opened))
            }
            Err(stop) => Err(stop),
        }
    }

    pub async fn open(&self, caller: &Caller, ino: Ino, flags: i32) -> Outcome<Opened> {
        // Entered first: what is committed through another handle while the metadata answers must not be taken back.
        let file = self.files.enter(ino);
        // And counted first: a file that is removed from here now is kept for the handle that is about to be.
        self.meta.open_file(ino);
        match self.check_open(caller, &file, flags).await {
            Ok((stored, attr)) => Ok(self.opened(file, stored, &attr, flags)),
            Err(stop) => {
                self.files.leave(&file);
                self.meta.close_in_vain(ino).await;
                Err(stop)
            }
        }
    }

    /// Looks at a file that is being opened: the stamp that is stored, and its attributes with what only this client
    /// knows.
    async fn check_open(&self, caller: &Caller, file: &File, flags: i32) -> Outcome<(Stamp, Attr)> {
        let (version, is_new) = {
            let state = file.state();
            (state.version, state.seen.is_none())
        };
        // Most files are read from their beginning, as soon as they are open.
        let (mut attr, first) = match is_new && flags & libc::O_ACCMODE == libc::O_RDONLY {
            true => self.meta.check_open_to_read(caller, file.ino, flags).await?,
            false => (self.meta.check_open(caller, file.ino, flags).await?, None),
        };
        self.ahead.asked(file.ino);
        if flags & libc::O_ACCMODE != libc::O_WRONLY {
            self.accessed(file.ino, &mut attr).await;
        }
        let stored = Stamp::of(&attr);
        if !file.observe(&mut attr, version) {
            return self.look_again(file).await;
        }
        if let Some(records) = first {
            self.take_view(file, ChunkIndex(0), records, stored);
        }
        Ok((stored, attr))
    }

    /// Looks at an open file: the stamp that is stored, and its attributes with what only this client knows.
    pub(super) async fn look_again(&self, file: &File) -> Outcome<(Stamp, Attr)> {
        let mut looks = 0;
        loop {
            let version = file.version();
            let mut attr = self.meta.getattr(file.ino).await?;
            let stored = Stamp::of(&attr);
            looks += 1;
            if file.observe(&mut attr, version) || looks == LOOKS_MAX {
                return Ok((stored, attr));
            }
        }
    }

    /// A handle of a file that was looked at; it is counted by the metadata already. `stored` is without what is written
    /// here and not committed yet: that the kernel's pages have.
    fn opened(&self, file: Arc<File>, stored: Stamp, attr: &Attr, flags: i32) -> Opened {
        let ino = file.ino;
        let seen = Stamp::of(attr);
        let keep_cache = {
            let mut state = file.state();
            let keep_cache = !state.pages_old && self.opened_before.knows(ino, stored);
            // Those that are not kept are read anew.
            state.pages_old = false;
            keep_cache
        };
        self.opened_before.note(ino, stored);
        let (read_ahead, last_look) = Default::default();
        let handle = FileHandle { ino, file, flags, read_ahead, last_look };
        Opened {
            handle: self.handles.insert(Open::File(Arc::new(handle))),
            keep_cache,
            direct_io: flags & libc::O_DIRECT != 0,
            seen: Some(seen),
        }
    }

    /// close(2) of one descriptor: what was written is stored and visible to others when this returns, and the
    /// closer's POSIX locks are gone.
    pub async fn flush(&self, ino: Ino, handle: Handle, lock_owner: u64) -> Outcome<()> {
        let handle = self.handles.file(handle)?;
        let flushed = if handle.writes() { self.flush_file(&handle.file).await } else { Ok(()) };
        self.meta.release_plocks(ino, lock_owner).await?;
        flushed
    }

    /// fsync(2): stored, visible to others, and durable as far as store and engine can make it.
    pub async fn fsync(&self, _ino: Ino, handle: Handle, _datasync: bool) -> Outcome<()> {
        let handle = self.handles.file(handle)?;
        self.flush_file(&handle.file).await?;
        crate::meta::outside(self.meta.engine().sync().await)
    }

    /// The last descriptor of the handle is gone.
    pub async fn release(&self, ino: Ino, handle: Handle) -> Outcome<()> {
        let Some(Open::File(open)) = self.handles.remove(handle) else { return Err(Errno::EBADF.into()) };
        // The kernel has flushed on close; what a mapping wrote after that is still to be stored.
        let flushed = if open.writes() { self.flush_file(&open.file).await } else { Ok(()) };
        {
            let state = open.file.state();
            match state.seen {
                _ if state.pages_old => self.opened_before.forget(ino),
                Some(seen) if open.writes() => self.opened_before.note(ino, seen),
                _ => {}
            }
        }
        self.files.leave(&open.file);
        self.meta.close_file(ino).await?;
        flushed
    }

    pub async fn fallocate(
        &self,
        caller: &Caller,
        ino: Ino,
        handle: Handle,
        mode: u32,
        off: u64,
        len: u64,
    ) -> Outcome<()> {
        let handle = self.handles.file(handle)?;
        if !handle.writes() {
            return Err(Errno::EBADF.into());
        }
        if off.checked_add(len).is_none_or(|end| end >= FILE_BYTES_MAX) {
            return Err(Errno::EFBIG.into());
        }
        self.flush_file(&handle.file).await?;
        let before = handle.file.state().seen;
        let attr = self.meta.fallocate(caller, ino, mode, off, len).await?;
        let mut state = handle.file.state();
        state.forget_chunks();
        state.pages_old = true;
        state.committed(&attr, before);
        Ok(())
    }

    /// copy_file_range(2): shares slices, copies no byte. Answers how many bytes were taken over.
    #[allow(clippy::too_many_arguments)]
    pub async fn copy_file_range(
        &self,
        caller: &Caller,
        src: Handle,
        src_off: u64,
        dst: Handle,
        dst_off: u64,
        len: u64,
    ) -> Outcome<u64> {
        let (from, to) = (self.handles.file(src)?, self.handles.file(dst)?);
        if !to.writes() {
            return Err(Errno::EBADF.into());
        }
        // The reply carries 32 bits (`spec/data.md` 16.4).
        let len = len.min((1 << 32) - crate::base::CHUNK_BYTES);
        if src_off.checked_add(len).is_none() || dst_off.checked_add(len).is_none_or(|end| end >= FILE_BYTES_MAX) {
            return Err(Errno::EFBIG.into());
        }
        self.flush_file(&from.file).await?;
        self.flush_file(&to.file).await?;
        let (copied, _length) = self.meta.copy_range(caller, from.ino, src_off, to.ino, dst_off, len).await?;
        to.file.state().forget_chunks();
        self.look_again(&to.file).await?;
        Ok(copied)
    }

    pub async fn opendir(&self, _caller: &Caller, ino: Ino) -> Outcome<Opened> {
        // The first read looks at the directory; it is asked for here only for its time of access.
        if self.keeps_atime() {
            let mut attr = self.meta.getattr(ino).await?;
            self.accessed(ino, &mut attr).await;
        }
        let stream = tokio::sync::Mutex::new(DirStream::new(ino));
        let handle = self.handles.insert(Open::Dir(Arc::new(DirHandle { ino, stream })));
        Ok(Opened { handle, keep_cache: false, direct_io: false, seen: None })
    }

    /// Entries after `offset`; empty at the end. With attributes (`plus`) that are not older than half of what the kernel
    /// believes, nor than what this client has changed.
    pub async fn readdir(&self, ino: Ino, handle: Handle, offset: u64, plus: bool) -> Outcome<Vec<DirItem>> {
        let dir = self.handles.dir(handle)?;
        if dir.ino != ino {
            return Err(Errno::EBADF.into());
        }
        let mut stream = dir.stream.lock().await;
        let mut items = stream.read(&self.meta, offset, READDIR_ENTRIES).await?;
        drop(stream);
        self.ahead.listed(ino);
        if plus {
            self.refresh_listed(ino, &mut items).await?;
        }
        if plus {
            // What is listed is about to be worked on.
            let listed = items.iter().filter(|item| !item.name.is_dot() && !item.name.is_dot_dot());
            let listed = listed.filter_map(|item| Some((item.name.clone(), item.ino, item.attr?, item.asked)));
            note_shown(self.meta.known(), ino, listed);
        }
        for item in &mut items {
            if let (Some(attr), Some(file)) = (&mut item.attr, self.files.get(item.ino)) {
                file.complete(attr);
            }
        }
        Ok(items)
    }

    /// A stream reads more at a time than it is asked for, so what it has may be old by now.
    async fn refresh_listed(&self, dir: Ino, items: &mut [DirItem]) -> Outcome<()> {
        let (known, now) = (self.meta.known(), Instant::now());
        let old_after = match self.settings.belief {
            Duration::ZERO => LISTED_FOR,
            belief => LISTED_FOR.min(belief / 2),
        };
        let Some(oldest) = items.iter().map(|item| item.asked).min() else { return Ok(()) };
        let touched = known.anything_touched_since(oldest);
        if !touched && now - oldest < old_after {
            return Ok(());
        }
        let is_old = |item: &DirItem| {
            let touched = |key| touched && known.touched_since(&key, item.asked);
            now - item.asked >= old_after
                || touched(Key::Attr(item.ino))
                || touched(Key::Dentry(dir, item.name.clone()))
        };
        let old: Vec<usize> = (0..items.len()).filter(|&at| items[at].attr.is_some() && is_old(&items[at])).collect();
        if old.is_empty() {
            return Ok(());
        }
        let names: Vec<(Name, Ino)> = old.iter().map(|&at| (items[at].name.clone(), items[at].ino)).collect();
        let found = self.meta.listed_again(dir, &names).await?;
        for (at, attr) in old.into_iter().zip(found) {
            let item = &mut items[at];
            (item.attr, item.gone, item.asked) = (attr, attr.is_none(), now);
        }
        Ok(())
    }

    pub async fn releasedir(&self, handle: Handle) -> Outcome<()> {
        self.handles.remove(handle).map(drop).ok_or(Errno::EBADF.into())
    }

    /// Names are durable with the engine's own commits; this asks it to make them so.
    pub async fn fsyncdir(&self, handle: Handle) -> Outcome<()> {
        self.handles.dir(handle)?;
        crate::meta::outside(self.meta.engine().sync().await)
    }

    pub async fn statfs(&self, ino: Ino) -> Outcome<StatFs> {
        self.meta.statfs(ino).await
    }

    pub async fn get_xattr(&self, ino: Ino, name: &Name) -> Outcome<Bytes> {
        self.meta.get_xattr(&Caller::root(), ino, name.as_bytes()).await
    }

    /// `flags`: XATTR_CREATE, XATTR_REPLACE or none.
    pub async fn set_xattr(&self, caller: &Caller, ino: Ino, name: &Name, value: Bytes, flags: i32) -> Outcome<()> {
        let how = match flags {
            0 => XattrMode::Set,
            libc::XATTR_CREATE => XattrMode::Create,
            libc::XATTR_REPLACE => XattrMode::Replace,
            _ => return Err(Errno::EINVAL.into()),
        };
        self.meta.set_xattr(caller, ino, name.as_bytes(), &value, how).await
    }

    /// The names, each ended by a NUL, as listxattr(2) has them.
    pub async fn list_xattr(&self, ino: Ino) -> Outcome<Bytes> {
        let names = self.meta.list_xattr(ino).await?;
        Ok(names.iter().flat_map(|name| name.as_bytes().iter().copied().chain([0])).collect())
    }

    pub async fn remove_xattr(&self, caller: &Caller, ino: Ino, name: &Name) -> Outcome<()> {
        self.meta.remove_xattr(caller, ino, name.as_bytes()).await
    }

    /// The stored flags byte (`spec/metadata.md` 1.3).
    pub async fn get_flags(&self, ino: Ino) -> Outcome<u8> {
        Ok(self.meta.getattr(ino).await?.flags)
    }

    pub async fn set_flags(&self, caller: &Caller, ino: Ino, flags: u8) -> Outcome<()> {
        let set = SetAttr { flags: Some(flags), ..SetAttr::default() };
        self.meta.setattr(caller, ino, &set).await.map(drop)
    }

    pub async fn access(&self, caller: &Caller, ino: Ino, mask: u8) -> Outcome<()> {
        self.meta.access(caller, ino, mask).await
    }
}

/// Entries that a kernel is told of, with attributes as they are shown and the time when they were asked for, become
/// known: it takes them for looked up.
fn note_shown(known: &Known, dir: Ino, entries: impl IntoIterator<Item = (Name, Ino, Attr, Instant)>) {
    let mut unlike = Vec::new();
    let noted = entries.into_iter().flat_map(|(name, ino, attr, asked)| {
        let dentry = Record::Dentry(Dentry { kind: attr.kind, ino });
        // Links in the trash are stored and not shown.
        let as_stored = attr.is_dir() || !(attr.parent == Ino::MANY || attr.parent.is_hourly());
        if !as_stored {
            unlike.push(Key::Attr(ino));
        }
        let node = as_stored.then(|| (Key::Attr(ino), Record::Attr(attr), asked));
        [Some((Key::Dentry(dir, name), dentry, asked)), node].into_iter().flatten()
    });
    known.note_earlier(noted);
    known.forget(&unlike);
}

/// Reads a directory whose files are being looked up one by one. Nobody waits for it.
async fn read_ahead(vfs: Weak<Vfs>, dir: Ino, begun: Begun) {
    let lifetime = {
        let Some(vfs) = vfs.upgrade() else { return };
        let read = match vfs.meta.list(dir, None, LISTING_MAX).await {
            Ok(page) if page.next.is_some() => Read::TooMuch,
            Ok(page) => {
                // An entry whose node is missing has nothing to answer with.
                let node = |(name, dentry, attr): (Name, Dentry, Option<Attr>)| {
                    Some((name, Entry { ino: dentry.ino, attr: attr? }))
                };
                Read::All(page.entries.into_iter().filter_map(node).collect())
            }
            Err(stop) => {
                tracing::debug!(%dir, "not read ahead: {stop}");
                Read::Nothing
            }
        };
        vfs.ahead.put(dir, begun, read);
        vfs.ahead.lifetime()
    };
    tokio::time::sleep(lifetime).await;
    if let Some(vfs) = vfs.upgrade() {
        vfs.ahead.tidy();
    }
}
