//! What files may contain: for each cell of each file, everything that was done to it, when, and how it ended.
//!
//! A cell is 256 bytes that say which file, which cell and which write they belong to, so that a cell in the wrong place
//! or of two writes shows itself. The model holds *effects*: a write, or a change made by the metadata (truncate, holes,
//! copies). An effect begins when it is asked for, `returned` when the caller was answered, and is `settled` when
//! nothing can change any more whether it happened: after the flush that stored it, or after the client that had it in
//! memory is gone. It is `certain` when it was acknowledged as durable, `failed` when it was not and may be missing.
//!
//! A reader may see an effect unless it must see another one that came definitely later. It must see what was durable
//! before it opened the file (close-to-open), and what its own client did before. Moments are ticks of a counter that
//! moves at every event, so no two are equal.

use crate::base::{CHUNK_BYTES, Ino};
use std::ops::Range;

pub const CELL_BYTES: usize = 256;
/// A cell repeats itself.
const PART_BYTES: usize = 32;
/// Cells of a file: several blocks.
pub const CELLS: u32 = 800;
/// Where the cells of some files begin: around the border of the first two chunks.
/// No cell lies on both sides, for what is written to two chunks may be lost in one of them.
const BORDER: u64 = CHUNK_BYTES - 400 * CELL_BYTES as u64;
/// How far copies of copies are followed; beyond that everything is believed.
const COPIES_MAX: u32 = 5;

/// A client incarnation: slot and number.
pub type Incarnation = (usize, u32);

/// What a cell shows.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Value {
    Zero,
    /// Written as this cell of this file by the write of this number.
    Written {
        file: u32,
        cell: u32,
        version: u32,
    },
}

#[derive(Clone, Debug)]
pub enum What {
    Write {
        version: u32,
    },
    Clear,
    /// Cells from `cell` of `file` on were copied to `to` and following.
    Copy {
        file: u32,
        cell: u32,
        to: u32,
    },
}

#[derive(Clone, Debug)]
pub struct Effect {
    pub what: What,
    pub by: Incarnation,
    pub start: u64,
    pub returned: Option<u64>,
    pub settled: Option<u64>,
    pub certain: bool,
    pub failed: bool,
    /// A reader of the same client did not find it, so no flush may acknowledge it any more.
    pub missed: bool,
}

pub struct FileModel {
    pub ino: Ino,
    /// Cells begin so many bytes into the file: not at the borders of blocks, and far enough in some files to lie in two
    /// chunks.
    first: u64,
    effects: Vec<Effect>,
    /// Writes and copies, by cell.
    cells: Vec<Vec<usize>>,
    /// What was cleared, mostly to the end of the file.
    clears: Vec<(Range<u32>, usize)>,
    /// The tick at which its last name began to go.
    pub going: Option<u64>,
    /// Whose unlink that was.
    pub going_by: Option<Incarnation>,
    /// Writes by who had read what is told here, and held the lock of the file.
    counts: Vec<(usize, Value)>,
}

/// Who reads, and since when it must see what others did.
#[derive(Clone, Copy, Debug)]
pub struct Reader {
    pub by: Incarnation,
    pub opened: u64,
    pub start: u64,
}

/// All files of a run.
#[derive(Default)]
pub struct Model {
    pub files: Vec<FileModel>,
    versions: u32,
    tick: u64,
}

fn mix(a: u64) -> u64 {
    let a = (a ^ (a >> 31)).wrapping_mul(0x9E37_79B9_7F4A_7C15);
    a ^ (a >> 29)
}

fn checksum(file: u32, cell: u32, version: u32) -> u64 {
    mix(mix(u64::from(file) << 32 | u64::from(cell)) ^ u64::from(version)) | 1
}

/// The bytes of a written cell.
pub fn cell_bytes(file: u32, cell: u32, version: u32) -> [u8; CELL_BYTES] {
    let mut part = [0; PART_BYTES];
    let sum = checksum(file, cell, version);
    part[..4].copy_from_slice(&file.to_le_bytes());
    part[4..8].copy_from_slice(&cell.to_le_bytes());
    part[8..12].copy_from_slice(&version.to_le_bytes());
    part[12..20].copy_from_slice(&sum.to_le_bytes());
    part[20..28].copy_from_slice(&sum.rotate_left(17).to_le_bytes());
    let mut bytes = [0; CELL_BYTES];
    for (number, place) in bytes.chunks_exact_mut(PART_BYTES).enumerate() {
        part[28..].copy_from_slice(&(number as u32).to_be_bytes());
        place.copy_from_slice(&part);
    }
    bytes
}

/// As the end of a file and holes show themselves.
pub fn is_zero(bytes: &[u8]) -> bool {
    const ZEROS: [u8; CELL_BYTES] = [0; CELL_BYTES];
    bytes.len() <= CELL_BYTES && *bytes == ZEROS[..bytes.len()]
}

/// What a cell read from a file shows; an error when it is no cell that was ever written anywhere.
pub fn parse(bytes: &[u8]) -> Result<Value, String> {
    if is_zero(bytes) {
        return Ok(Value::Zero);
    }
    if bytes.len() != CELL_BYTES {
        return Err(format!("{} bytes of a cell", bytes.len()));
    }
    let number = |at: usize| u32::from_le_bytes(bytes[at..at + 4].try_into().expect("four bytes"));
    let (file, cell, version) = (number(0), number(4), number(8));
    if bytes != cell_bytes(file, cell, version) {
        return Err(format!("no cell: {:02x?}", &bytes[..2 * PART_BYTES]));
    }
    Ok(Value::Written { file, cell, version })
}

impl FileModel {
    /// Where a cell begins.
    pub fn offset(&self, cell: u32) -> u64 {
        self.first + u64::from(cell) * CELL_BYTES as u64
    }

    /// The length that ends before a cell.
    pub fn length_before(&self, cell: u32) -> u64 {
        if cell == 0 { 0 } else { self.offset(cell) }
    }

    fn certainly_after(&self, later: &Effect, earlier: &Effect) -> bool {
        earlier.settled.is_some_and(|settled| settled < later.start)
            || (earlier.by == later.by && earlier.returned.is_some_and(|returned| returned < later.start))
    }

    /// Cells that something was written to.
    pub fn written(&self) -> impl Iterator<Item = u32> + '_ {
        (0..).zip(&self.cells).filter(|(_, effects)| !effects.is_empty()).map(|(cell, _)| cell)
    }

    pub fn is_written(&self, cell: u32) -> bool {
        self.cells.get(cell as usize).is_some_and(|effects| !effects.is_empty())
    }

    /// Numbers of effects: writes and copies first, then what cleared the cell.
    fn numbers_on(&self, cell: u32) -> impl Iterator<Item = usize> + '_ {
        let written = self.cells.get(cell as usize).into_iter().flatten().copied();
        written.chain(self.clears.iter().filter(move |(cells, _)| cells.contains(&cell)).map(|(_, number)| *number))
    }

    fn effects_on(&self, cell: u32) -> Vec<&Effect> {
        self.numbers_on(cell).map(|number| &self.effects[number]).collect()
    }
}

/// The last cell that was judged. The next one, if it has the same history and shows the same, is as good: cells come
/// in long runs, and judging each would take most of a run's time.
#[derive(Default)]
pub struct Last {
    numbers: Vec<usize>,
    next: Vec<usize>,
    /// File, version and, relative to where it was found, the cell that it showed; `Some(None)` for zeros.
    shown: Option<Option<(u32, u32, u32)>>,
}

impl Last {
    fn is_repeated(&mut self, file: &FileModel, cell: u32, value: Value) -> bool {
        self.next.clear();
        self.next.extend(file.numbers_on(cell));
        let shown = match value {
            Value::Zero => None,
            Value::Written { file, cell: of, version } => Some((file, version, of.wrapping_sub(cell))),
        };
        if self.shown == Some(shown) && self.numbers == self.next {
            return true;
        }
        std::mem::swap(&mut self.numbers, &mut self.next);
        // What a copy shows, each cell has from elsewhere.
        let copies = self.numbers.iter().any(|number| matches!(file.effects[*number].what, What::Copy { .. }));
        self.shown = (!copies).then_some(shown);
        false
    }
}

impl Model {
    pub fn tick(&mut self) -> u64 {
        self.tick += 1;
        self.tick
    }

    pub fn add_file(&mut self, ino: Ino, phase: u64) -> usize {
        let at_border = phase % 3 == 1;
        let file = FileModel {
            ino,
            first: if at_border { BORDER } else { phase },
            effects: Vec::new(),
            cells: vec![Vec::new(); CELLS as usize],
            clears: Vec::new(),
            going: None,
            going_by: None,
            counts: Vec::new(),
        };
        self.files.push(file);
        self.files.len() - 1
    }

    /// The number of a new write.
    pub fn version(&mut self) -> u32 {
        self.versions += 1;
        self.versions
    }

    /// Something is asked for that may change `cells` of a file.
    pub fn begin(&mut self, file: usize, by: Incarnation, what: What, cells: Range<u32>) -> usize {
        let start = self.tick();
        let file = &mut self.files[file];
        let clears = matches!(what, What::Clear);
        file.effects.push(Effect {
            what,
            by,
            start,
            returned: None,
            settled: None,
            certain: false,
            failed: false,
            missed: false,
        });
        let number = file.effects.len() - 1;
        if clears {
            file.clears.push((cells, number));
        } else {
            cells.for_each(|cell| file.cells[cell as usize].push(number));
        }
        number
    }

    /// A write was taken, or refused; a part of it may have been taken then.
    pub fn returned(&mut self, file: usize, effect: usize, ok: bool) {
        let now = self.tick();
        let effect = &mut self.files[file].effects[effect];
        effect.returned = Some(now);
        effect.failed |= !ok;
    }

    /// A change of the metadata ended. `failed`: whether it was applied is not known.
    pub fn applied(&mut self, file: usize, effect: usize, ok: bool) {
        self.returned(file, effect, ok);
        let now = self.tick();
        let effect = &mut self.files[file].effects[effect];
        effect.settled = Some(now);
        effect.certain = ok;
    }

    /// A copy ended before this cell.
    pub fn cut_copy(&mut self, file: usize, effect: usize, before: u32) {
        for effects in self.files[file].cells.iter_mut().skip(before as usize) {
            effects.retain(|number| *number != effect);
        }
    }

    /// Writes of this client to the file that a flush beginning now must store.
    pub fn unsettled(&self, file: usize, by: Incarnation) -> Vec<usize> {
        let effects = self.files[file].effects.iter().enumerate();
        let waiting = |effect: &Effect| {
            effect.by == by
                && effect.returned.is_some()
                && effect.settled.is_none()
                && matches!(effect.what, What::Write { .. })
        };
        effects.filter(|(_, effect)| waiting(effect)).map(|(number, _)| number).collect()
    }

    /// A flush of these writes ended. An error when it acknowledges what was seen to be lost.
    pub fn flushed(&mut self, file: usize, writes: &[usize], ok: bool) -> Result<(), String> {
        let now = self.tick();
        for number in writes {
            let effect = &mut self.files[file].effects[*number];
            if effect.settled.is_some() {
                continue;
            }
            effect.settled = Some(now);
            effect.failed |= !ok;
            effect.certain = !effect.failed;
            if ok && effect.missed && !effect.failed {
                return Err(format!("a flush acknowledged a write that a read had not found: {effect:?}"));
            }
        }
        Ok(())
    }

    /// Under the lock of the file, `effect` put another value in the place of `base`.
    pub fn counted(&mut self, file: usize, effect: usize, base: Value) {
        self.files[file].counts.push((effect, base));
    }

    /// Two values that were acknowledged and came of the same one: whoever wrote the later did not hold the lock any
    /// more, or had not seen what the other had written.
    pub fn lost_count(&self, file: usize) -> Option<String> {
        let file = &self.files[file];
        let certain: Vec<_> = file.counts.iter().filter(|(effect, _)| file.effects[*effect].certain).collect();
        certain.iter().enumerate().find_map(|(at, (later, base))| {
            let (earlier, _) = certain[..at].iter().find(|(_, other)| other == base)?;
            let (one, other) = (&file.effects[*earlier], &file.effects[*later]);
            Some(format!("two acknowledged writes came of {base:?}:\n    {one:?}\n    {other:?}"))
        })
    }

    /// A client is no more: what it had not flushed may be missing.
    pub fn crashed(&mut self, by: Incarnation) {
        for effect in self.files.iter_mut().flat_map(|file| &mut file.effects) {
            if effect.by == by && effect.settled.is_none() {
                effect.failed = true;
            }
        }
    }

    /// Nothing of a client that is no more is on its way any longer.
    pub fn settle(&mut self, by: Incarnation) {
        let now = self.tick();
        for effect in self.files.iter_mut().flat_map(|file| &mut file.effects) {
            if effect.by == by && effect.settled.is_none() {
                effect.settled = Some(now);
            }
        }
    }

    /// A reader found `value` in a cell, after what it found in the one before.
    pub fn judge_next(
        &mut self,
        file: usize,
        cell: u32,
        value: Value,
        reader: Reader,
        last: &mut Last,
    ) -> Result<(), String> {
        if last.is_repeated(&self.files[file], cell, value) {
            return Ok(());
        }
        self.judge(file, cell, value, reader)
    }

    /// A reader found `value` in a cell.
    pub fn judge(&mut self, file: usize, cell: u32, value: Value, reader: Reader) -> Result<(), String> {
        if self.may_show(file, cell, value, reader, u64::MAX, true, 0) {
            return Ok(());
        }
        // What only this client knows of may have been lost in the background; then no flush will acknowledge it.
        if self.may_show(file, cell, value, reader, u64::MAX, false, 0) {
            let model = &mut self.files[file];
            for number in model.cells.get(cell as usize).into_iter().flatten() {
                let effect = &mut model.effects[*number];
                if effect.by == reader.by
                    && effect.settled.is_none()
                    && effect.returned.is_some_and(|r| r < reader.start)
                {
                    effect.missed = true;
                }
            }
            return Ok(());
        }
        Err(format!(
            "file {file} ({}), cell {cell}: {value:?} for {reader:?}\n{}",
            self.files[file].ino,
            self.history(file, cell)
        ))
    }

    /// Whether a kernel may go on showing this to who opens the file now.
    pub fn may_keep(&self, file: usize, cell: u32, value: Value, reader: Reader, last: &mut Last) -> bool {
        last.is_repeated(&self.files[file], cell, value)
            || [true, false].into_iter().any(|own| self.may_show(file, cell, value, reader, u64::MAX, own, 0))
    }

    /// What was done to a cell.
    pub fn history(&self, file: usize, cell: u32) -> String {
        self.files[file].effects_on(cell).into_iter().map(|effect| format!("    {effect:?}\n")).collect()
    }

    #[expect(clippy::too_many_arguments, reason = "the parts of one question")]
    fn may_show(
        &self,
        file: usize,
        cell: u32,
        value: Value,
        reader: Reader,
        before: u64,
        own_unflushed: bool,
        depth: u32,
    ) -> bool {
        if depth > COPIES_MAX {
            return true;
        }
        let Some(model) = self.files.get(file) else { return false };
        let effects = model.effects_on(cell);
        let must_see = |effect: &Effect| {
            let durable = |by: u64| effect.certain && effect.settled.is_some_and(|settled| settled < by);
            let own = || {
                own_unflushed
                    && effect.by == reader.by
                    && !effect.failed
                    && effect.returned.is_some_and(|returned| returned < reader.start)
            };
            durable(reader.opened) || (effect.by == reader.by && durable(reader.start)) || own()
        };
        let must: Vec<&&Effect> = effects.iter().filter(|effect| must_see(effect)).collect();
        if value == Value::Zero && must.is_empty() {
            return true;
        }
        effects.iter().any(|effect| {
            effect.start < before
                && self.shows(file, cell, effect, value, depth)
                && !must.iter().any(|later| model.certainly_after(later, effect))
        })
    }

    fn shows(&self, at: usize, cell: u32, effect: &Effect, value: Value, depth: u32) -> bool {
        match effect.what {
            What::Clear => value == Value::Zero,
            What::Write { version } => value == Value::Written { file: at as u32, cell, version },
            What::Copy { file, cell: from, to } => {
                let reader = Reader { by: effect.by, opened: effect.start, start: effect.start };
                let before = effect.returned.unwrap_or(u64::MAX);
                self.may_show(file as usize, from + (cell - to), value, reader, before, true, depth + 1)
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: Incarnation = (0, 1);
    const B: Incarnation = (1, 1);

    fn written(version: u32) -> Value {
        Value::Written { file: 0, cell: 3, version }
    }

    fn write(model: &mut Model, by: Incarnation) -> (u32, usize) {
        let version = model.version();
        let effect = model.begin(0, by, What::Write { version }, 3..4);
        model.returned(0, effect, true);
        (version, effect)
    }

    fn reader(model: &mut Model, by: Incarnation) -> Reader {
        let opened = model.tick();
        Reader { by, opened, start: model.tick() }
    }

    #[test]
    fn what_was_flushed_is_seen_by_who_opens_later_and_may_be_seen_before() {
        let mut model = Model::default();
        model.add_file(Ino(9), 5);
        let early = reader(&mut model, B);
        let (first, effect) = write(&mut model, A);
        let own = reader(&mut model, A);
        assert!(model.judge(0, 3, written(first), own).is_ok());
        assert!(model.judge(0, 3, Value::Zero, early).is_ok());
        assert!(model.judge(0, 3, written(first), early).is_ok(), "it may have been committed already");
        assert!(model.judge(0, 3, written(77), early).is_err(), "never written");
        assert!(model.judge(0, 4, written(first), early).is_err(), "written elsewhere");
        model.flushed(0, &[effect], true).unwrap();
        let late = reader(&mut model, B);
        assert!(model.judge(0, 3, Value::Zero, late).is_err(), "durable and not seen");
        assert!(model.judge(0, 3, Value::Zero, early).is_ok());
        let (second, _) = write(&mut model, B);
        let own = reader(&mut model, B);
        assert!(model.judge(0, 3, written(second), own).is_ok());
        assert!(model.judge(0, 3, written(first), late).is_ok(), "the other is not committed yet");
    }

    #[test]
    fn what_a_crash_took_may_be_there_or_not_and_what_a_read_missed_cannot_be_acknowledged() {
        let mut model = Model::default();
        model.add_file(Ino(9), 0);
        let (lost, effect) = write(&mut model, A);
        model.crashed(A);
        model.settle(A);
        let late = reader(&mut model, B);
        assert!(model.judge(0, 3, Value::Zero, late).is_ok() && model.judge(0, 3, written(lost), late).is_ok());
        assert!(model.flushed(0, &[effect], true).is_ok(), "settled by the crash");
        let (missed, effect) = write(&mut model, B);
        let own = reader(&mut model, B);
        assert!(model.judge(0, 3, written(lost), own).is_ok(), "lost in the background, perhaps");
        assert!(model.flushed(0, &[effect], true).is_err(), "{missed}");
    }

    #[test]
    fn copies_show_what_their_source_showed() {
        let mut model = Model::default();
        model.add_file(Ino(9), 0);
        model.add_file(Ino(10), 0);
        let (version, effect) = write(&mut model, A);
        model.flushed(0, &[effect], true).unwrap();
        let copy = model.begin(1, B, What::Copy { file: 0, cell: 3, to: 8 }, 8..9);
        model.applied(1, copy, true);
        let late = reader(&mut model, A);
        assert!(model.judge(1, 8, written(version), late).is_ok());
        assert!(model.judge(1, 8, Value::Zero, late).is_err());
        let (newer, _) = write(&mut model, A);
        assert!(model.judge(1, 8, written(newer), late).is_err(), "written after the copy");
    }

    #[test]
    fn cells_say_what_they_are() {
        let bytes = cell_bytes(1, 2, 3);
        assert_eq!(parse(&bytes), Ok(Value::Written { file: 1, cell: 2, version: 3 }));
        assert_eq!(parse(&[0; CELL_BYTES]), Ok(Value::Zero));
        let mut torn = bytes;
        torn[64..].copy_from_slice(&cell_bytes(1, 2, 4)[64..]);
        assert!(parse(&torn).is_err());
    }
}
