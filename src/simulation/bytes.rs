//! What processes do to the bytes of files, and what must come of it.

use super::model::{CELL_BYTES, CELLS, Last, Model, Reader, Value, What, cell_bytes, is_zero, parse};
use super::pages;
use super::plan::Bent;
use super::process::{COUNTER, Failed, Process, call, flat};
use super::world::{Up, World};
use crate::base::{CHUNK_BYTES, ChunkIndex, Errno, Outcome, Timestamp};
use crate::meta::Caller;
use crate::meta::ops::attr::{SetAttr, SetTime};
use crate::vfs::{Handle, Opened};
use bytes::Bytes;
use rand::Rng;
use std::ops::Range;

#[derive(Clone, Copy)]
pub struct OpenFile {
    pub file: usize,
    pub handle: Handle,
    pub writes: bool,
    pub opened: u64,
}

impl Process {
    /// A file was opened or made by this process.
    pub fn opened(&mut self, file: usize, answer: &Opened, writes: bool, opened: u64) {
        pages::opened(&self.world, self.client().incarnation, file, answer.keep_cache, opened);
        self.open.push(OpenFile { file, handle: answer.handle, writes, opened });
    }

    pub async fn open_any(&mut self) {
        self.make_room().await;
        let files = self.world.model.lock().files.len();
        let hot = if self.world.plan.bent == Bent::Names { 3 } else { 7 };
        let file = match self.random.random_range(0..10) {
            draw if draw < hot => self.random.random_range(1..=self.world.plan.hot_files),
            _ => self.random.random_range(0..files),
        };
        let writes = self.random.random_bool(0.7);
        let flags = if writes { libc::O_RDWR } else { libc::O_RDONLY };
        let up = self.client().clone();
        let opened = self.tick();
        if let Some(answer) = self.open_on(&up, file, flags).await {
            self.opened(file, &answer, writes, opened);
        }
    }

    async fn open_on(&self, up: &Up, file: usize, flags: i32) -> Option<Opened> {
        let ino = self.ino(file);
        let answer = call(&self.world, up, up.vfs.open(&Caller::root(), ino, flags)).await;
        self.say(|| format!("open f{file} {ino} {flags} on {}: {}", up.incarnation.0, flat(&answer)));
        match answer {
            Ok(answer) => return Some(answer),
            // EPERM: it lies in the trash, where nobody writes.
            Err(Failed::Answer(Errno::ENOENT | Errno::EPERM))
                if self.world.model.lock().files[file].going.is_some() => {}
            Err(failed) => self.excuse_on(up, "open", file, &failed),
        }
        None
    }

    /// What is seen by who opens the file now, on any client.
    async fn look_again(&mut self, file: usize) {
        let slot = self.random.random_range(0..self.world.slots.len());
        let Some(up) = self.world.up_now(slot) else { return };
        let cells = if self.random.random_bool(0.3) { 0..CELLS } else { self.cells() };
        let opened = self.tick();
        let Some(answer) = self.open_on(&up, file, libc::O_RDONLY).await else { return };
        pages::opened(&self.world, up.incarnation, file, answer.keep_cache, opened);
        let open = OpenFile { file, handle: answer.handle, writes: false, opened };
        self.read_on(&up, open, cells).await;
        if let Err(failed) = call(&self.world, &up, up.vfs.release(self.ino(file), answer.handle)).await {
            self.excuse_on(&up, "release", file, &failed);
        }
    }

    fn pick(&mut self, writes: bool) -> Option<OpenFile> {
        let fit: Vec<OpenFile> = self.open.iter().filter(|open| open.writes || !writes).copied().collect();
        if fit.is_empty() { None } else { Some(fit[self.random.random_range(0..fit.len())]) }
    }

    /// Cells next to one another.
    fn cells(&mut self) -> Range<u32> {
        let most = [2, 8, 8, 60, 300][self.random.random_range(0..5)];
        let len = self.random.random_range(1..=most);
        let within = if self.random.random_bool(0.6) { 200 } else { CELLS };
        let start = self.random.random_range(0..within.min(CELLS - len));
        start..start + len
    }

    pub async fn write(&mut self) {
        let Some(open) = self.pick(true) else { return self.open_any().await };
        if open.file == COUNTER {
            return;
        }
        let cells = self.cells();
        self.write_cells(open, cells).await;
    }

    /// The effect, when the bytes were taken.
    pub async fn write_cells(&mut self, open: OpenFile, cells: Range<u32>) -> Option<usize> {
        let up = self.client().clone();
        let by = up.incarnation;
        let generation = self.world.pages.lock().writing(by, open.file, cells.clone());
        let (ino, off, effect, version, data) = {
            let mut model = self.world.model.lock();
            let version = model.version();
            let effect = model.begin(open.file, up.incarnation, What::Write { version }, cells.clone());
            let mut data = Vec::with_capacity(cells.len() * CELL_BYTES);
            cells.clone().for_each(|cell| data.extend_from_slice(&cell_bytes(open.file as u32, cell, version)));
            let file = &model.files[open.file];
            (file.ino, file.offset(cells.start), effect, version, data)
        };
        let answer = match up.vfs.try_write(ino, open.handle, off, &data) {
            Some(answer) => self.call(async { answer }).await,
            None => self.call(up.vfs.write(ino, open.handle, off, Bytes::from(data))).await,
        };
        self.say(|| format!("write f{} {cells:?} #{effect}: {}", open.file, flat(&answer)));
        if let Err(failed) = &answer {
            self.excuse("write", open.file, failed);
        }
        if !matches!(answer, Err(Failed::Gone)) {
            self.world.model.lock().returned(open.file, effect, answer.is_ok());
        }
        let written = |cell| (cell, Value::Written { file: open.file as u32, cell, version });
        let values = answer.is_ok().then(|| cells.map(written));
        self.world.pages.lock().wrote(by, open.file, generation, values);
        answer.is_ok().then_some(effect)
    }

    pub async fn read(&mut self) {
        let Some(open) = self.pick(false) else { return self.open_any().await };
        let cells = if self.random.random_bool(0.3) { 0..CELLS } else { self.cells() };
        let up = self.client().clone();
        self.read_on(&up, open, cells).await;
    }

    /// What the cells show, as far as the file reaches.
    pub async fn read_on(&self, up: &Up, open: OpenFile, cells: Range<u32>) -> Option<Vec<(u32, Value)>> {
        let generation = self.world.pages.lock().generation(up.incarnation, open.file);
        let (ino, off, start) = {
            let mut model = self.world.model.lock();
            let start = model.tick();
            let file = &model.files[open.file];
            (file.ino, file.offset(cells.start), start)
        };
        let len = (cells.end - cells.start) * CELL_BYTES as u32;
        let answer = call(&self.world, up, up.vfs.read(ino, open.handle, off, len)).await;
        self.say(|| {
            let got = answer.as_ref().map_or(0, |payload| payload.len());
            format!("read f{} {cells:?} on {}: {} {got}", open.file, up.incarnation.0, flat(&answer))
        });
        match answer {
            Ok(payload) => {
                let reader = Reader { by: up.incarnation, opened: open.opened, start };
                let values = judge(&self.world, open.file, cells, &payload.into_bytes(), reader);
                self.world.pages.lock().read(up.incarnation, open.file, generation, &values);
                Some(values)
            }
            Err(failed) => {
                self.excuse_on(up, "read", open.file, &failed);
                None
            }
        }
    }

    /// Carries out something that stores what was written before; `Ok` acknowledges it.
    pub async fn flushing<T>(&self, file: usize, request: impl Future<Output = Outcome<T>>) -> Result<T, Failed> {
        let by = self.client().incarnation;
        let writes = self.world.model.lock().unsettled(file, by);
        let answer = self.call(request).await;
        if !matches!(answer, Err(Failed::Gone)) {
            let flushed = self.world.model.lock().flushed(file, &writes, answer.is_ok());
            if let Err(why) = flushed {
                panic!("c{}.{} file {file}: {why}", self.slot, self.number);
            }
        }
        answer
    }

    pub async fn fsync(&mut self) {
        let Some(open) = self.pick(true) else { return };
        let (up, ino) = (self.client().clone(), self.ino(open.file));
        let answer = self.flushing(open.file, up.vfs.fsync(ino, open.handle, false)).await;
        self.say(|| format!("fsync f{}: {}", open.file, flat(&answer)));
        match answer {
            Ok(()) if self.looks_again() => self.look_again(open.file).await,
            Ok(()) => {}
            Err(failed) => self.excuse("fsync", open.file, &failed),
        }
    }

    pub async fn close(&mut self, which: usize) {
        let open = self.open.swap_remove(which);
        let (up, ino, owner) = (self.client().clone(), self.ino(open.file), self.owner());
        let answer = if open.writes {
            self.flushing(open.file, up.vfs.flush(ino, open.handle, owner)).await
        } else {
            self.call(up.vfs.flush(ino, open.handle, owner)).await
        };
        self.say(|| format!("close f{}: {}", open.file, flat(&answer)));
        if let Err(failed) = &answer {
            self.excuse("close", open.file, failed);
        }
        if answer.is_ok() && open.writes && self.looks_again() {
            self.look_again(open.file).await;
        }
        // The kernel sends this whatever the answer was, and nobody hears of it.
        if let Err(failed) = self.call(up.vfs.release(ino, open.handle)).await {
            self.excuse("release", open.file, &failed);
        }
    }

    fn looks_again(&mut self) -> bool {
        let chance = if self.world.plan.bent == Bent::Bytes { 0.5 } else { 0.15 };
        self.random.random_bool(chance)
    }

    pub fn owner(&self) -> u64 {
        self.number as u64 + 1
    }

    pub async fn truncate(&mut self) {
        let Some(open) = self.pick(true) else { return };
        if open.file == COUNTER {
            return;
        }
        let cell = match self.random.random_range(0..4) {
            0 => 0,
            1 => self.random.random_range(0..CELLS),
            _ => self.random.random_range(0..200),
        };
        self.truncate_to(open, cell).await;
    }

    /// What lay between comes back as zeros.
    pub async fn shrink_and_grow(&mut self) {
        let Some(open) = self.pick(true) else { return };
        if open.file == COUNTER {
            return;
        }
        let shorter = self.random.random_range(0..CELLS / 2);
        let longer = self.random.random_range(shorter + 1..CELLS);
        let up = self.client().clone();
        if self.random.random_bool(0.5) {
            self.read_on(&up, open, shorter..longer).await;
        }
        self.truncate_to(open, shorter).await;
        if self.client_is(&up) {
            self.truncate_to(open, longer).await;
        }
        if self.client_is(&up) {
            self.read_on(&up, open, shorter..longer).await;
        }
    }

    /// Whether the client of this step is still up.
    fn client_is(&self, up: &Up) -> bool {
        self.world.up_now(self.slot).is_some_and(|now| now.incarnation == up.incarnation)
    }

    async fn truncate_to(&mut self, open: OpenFile, cell: u32) {
        let up = self.client().clone();
        let (ino, length, effect) = {
            let mut model = self.world.model.lock();
            let effect = model.begin(open.file, up.incarnation, What::Clear, cell..CELLS);
            let file = &model.files[open.file];
            (file.ino, file.length_before(cell), effect)
        };
        // By its name nobody changes a file in the trash.
        let by_handle = self.random.random_bool(0.5) || self.world.model.lock().files[open.file].going.is_some();
        let handle = by_handle.then_some(open.handle);
        let (root, nothing) = (Caller::root(), SetAttr::default());
        let request = up.vfs.setattr(&root, ino, handle, Some(length), &nothing);
        let answer = self.applying(open.file, effect, request).await;
        self.say(|| format!("truncate f{} {cell} #{effect}: {}", open.file, flat(&answer)));
    }

    /// Sets the time of change to one that it had before, as programs do that unpack or copy.
    pub async fn touch(&mut self) {
        let Some(open) = self.pick(true) else { return };
        let (up, ino) = (self.client().clone(), self.ino(open.file));
        let set = SetAttr { mtime: Some(SetTime::At(Timestamp::new(1_600_000_000, 5))), ..SetAttr::default() };
        let root = Caller::root();
        let answer = self.flushing(open.file, up.vfs.setattr(&root, ino, Some(open.handle), None, &set)).await;
        self.say(|| format!("touch f{}: {}", open.file, flat(&answer)));
        if let Err(failed) = answer {
            // By its name nobody changes a file in the trash.
            if self.world.model.lock().files[open.file].going.is_none() {
                self.excuse("touch", open.file, &failed);
            }
        }
    }

    pub async fn compact(&mut self) {
        let Some(open) = self.pick(false) else { return };
        let cell = self.cells().start;
        let (ino, off) = {
            let file = &self.world.model.lock().files[open.file];
            (file.ino, file.offset(cell))
        };
        let up = self.client().clone();
        let answer = self.call(up.vfs.compact_chunk(ino, ChunkIndex((off / CHUNK_BYTES) as u32))).await;
        self.say(|| format!("compact f{}: {}", open.file, flat(&answer)));
        match answer {
            // It does no harm: what it was about to rewrite, another client has rewritten or removed.
            Ok(_) | Err(Failed::Fault(_)) => {}
            Err(failed) => self.excuse("compact", open.file, &failed),
        }
    }

    /// Carries out a change of the metadata that is an effect of the model.
    async fn applying<T>(
        &self,
        file: usize,
        effect: usize,
        request: impl Future<Output = Outcome<T>>,
    ) -> Result<T, Failed> {
        let by = self.client().incarnation;
        let writes = self.world.model.lock().unsettled(file, by);
        self.world.pages.lock().drop_all(by, file);
        let answer = self.call(request).await;
        self.world.pages.lock().drop_all(by, file);
        if let Err(failed) = &answer {
            self.excuse("change", file, failed);
        }
        if !matches!(answer, Err(Failed::Gone)) {
            let mut model = self.world.model.lock();
            if answer.is_ok()
                && let Err(why) = model.flushed(file, &writes, true)
            {
                panic!("c{}.{} file {file}: {why}", self.slot, self.number);
            }
            model.applied(file, effect, answer.is_ok());
        }
        answer
    }

    pub async fn fallocate(&mut self) {
        let Some(open) = self.pick(true) else { return };
        if open.file == COUNTER {
            return;
        }
        let cells = self.cells();
        let keep = libc::FALLOC_FL_KEEP_SIZE as u32;
        let (mode, clears) = match self.random.random_range(0..4) {
            0 => (0, false),
            1 => (libc::FALLOC_FL_ZERO_RANGE as u32, true),
            _ => (libc::FALLOC_FL_PUNCH_HOLE as u32 | keep, true),
        };
        let up = self.client().clone();
        let (ino, off, effect) = {
            let mut model = self.world.model.lock();
            let cleared = if clears { cells.clone() } else { 0..0 };
            let effect = model.begin(open.file, up.incarnation, What::Clear, cleared);
            let file = &model.files[open.file];
            (file.ino, file.offset(cells.start), effect)
        };
        let len = u64::from(cells.end - cells.start) * CELL_BYTES as u64;
        let root = Caller::root();
        let request = up.vfs.fallocate(&root, ino, open.handle, mode, off, len);
        let answer = self.applying(open.file, effect, request).await;
        self.say(|| format!("fallocate f{} {cells:?} {mode} #{effect}: {}", open.file, flat(&answer)));
    }

    pub async fn copy(&mut self) {
        let (Some(from), Some(to)) = (self.pick(false), self.pick(true)) else { return };
        if to.file == COUNTER {
            return;
        }
        let source = self.cells();
        let len = source.end - source.start;
        let at = self.random.random_range(0..CELLS - len);
        if from.file == to.file && at < source.end && source.start < at + len {
            return;
        }
        let up = self.client().clone();
        let (effect, from_off, to_off, of_source) = {
            let mut model = self.world.model.lock();
            let what = What::Copy { file: from.file as u32, cell: source.start, to: at };
            let effect = model.begin(to.file, up.incarnation, what, at..at + len);
            let of_source = model.unsettled(from.file, up.incarnation);
            (effect, model.files[from.file].offset(source.start), model.files[to.file].offset(at), of_source)
        };
        let bytes = u64::from(len) * CELL_BYTES as u64;
        let root = Caller::root();
        let request = up.vfs.copy_file_range(&root, from.handle, from_off, to.handle, to_off, bytes);
        let answer = self.applying_copy(from.file, to.file, effect, request).await;
        self.say(|| {
            let copied = answer.as_ref().map_or(0, |copied| *copied);
            format!("copy f{} {source:?} to f{} {at} #{effect}: {} {copied}", from.file, to.file, flat(&answer))
        });
        if let Ok(copied) = answer {
            let mut model = self.world.model.lock();
            assert_eq!(copied % CELL_BYTES as u64, 0, "files end with a cell");
            model.cut_copy(to.file, effect, at + (copied / CELL_BYTES as u64) as u32);
            let flushed = model.flushed(from.file, &of_source, true);
            drop(model);
            flushed.unwrap_or_else(|why| panic!("c{}.{} file {}: {why}", self.slot, self.number, from.file));
        }
    }

    async fn applying_copy<T>(
        &self,
        from: usize,
        to: usize,
        effect: usize,
        request: impl Future<Output = Outcome<T>>,
    ) -> Result<T, Failed> {
        // Either file may be the one whose end explains a failure.
        let going = {
            let model = self.world.model.lock();
            model.files[from].going.is_some()
        };
        let by = self.client().incarnation;
        let writes = self.world.model.lock().unsettled(to, by);
        self.world.pages.lock().drop_all(by, to);
        let answer = self.call(request).await;
        self.world.pages.lock().drop_all(by, to);
        if let Err(failed) = &answer
            && !going
        {
            self.excuse_either("copy", from, to, failed);
        }
        if !matches!(answer, Err(Failed::Gone)) {
            let mut model = self.world.model.lock();
            if answer.is_ok()
                && let Err(why) = model.flushed(to, &writes, true)
            {
                panic!("c{}.{} file {to}: {why}", self.slot, self.number);
            }
            model.applied(to, effect, answer.is_ok());
        }
        answer
    }

    fn excuse_either(&self, what: &str, from: usize, to: usize, failed: &Failed) {
        let of_source = self.world.model.lock().files[from].going.is_some();
        if !of_source {
            self.excuse(what, to, failed);
        }
    }
}

/// Looks at what a read answered; what is missing at the end shows nothing, as zeros do.
pub fn judge(world: &World, file: usize, cells: Range<u32>, bytes: &[u8], reader: Reader) -> Vec<(u32, Value)> {
    let found = judge_cells(&mut world.model.lock(), file, cells, bytes, reader);
    found.unwrap_or_else(|why| panic!("{why}"))
}

fn judge_cells(
    model: &mut Model,
    file: usize,
    cells: Range<u32>,
    bytes: &[u8],
    reader: Reader,
) -> Result<Vec<(u32, Value)>, String> {
    if bytes.len() % CELL_BYTES != 0 {
        return Err(format!("file {file} ends with a part of a cell: {} bytes from cell {}", bytes.len(), cells.start));
    }
    let mut values = Vec::with_capacity(bytes.len() / CELL_BYTES);
    let mut shown = bytes.chunks(CELL_BYTES);
    let mut last = Last::default();
    for cell in cells {
        let bytes = shown.next().unwrap_or(&[]);
        let value = if model.files[file].is_written(cell) {
            let value = parse(bytes)
                .map_err(|why| format!("file {file}, cell {cell}: {why}\n{}", model.history(file, cell)))?;
            model.judge_next(file, cell, value, reader, &mut last)?;
            value
        } else if is_zero(bytes) {
            Value::Zero
        } else {
            return Err(format!("file {file}, cell {cell}, where nobody wrote: {bytes:02x?}"));
        };
        if !bytes.is_empty() {
            values.push((cell, value));
        }
    }
    Ok(values)
}
