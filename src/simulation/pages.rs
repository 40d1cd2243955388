//! What the kernels of the clients keep of files from one open to the next. An open that answers `keep_cache` vouches
//! for all of it: it must be what a reader may see who opens the file now.
//!
//! Other reads here ask the client each time, as direct ones do, so that both are judged.

use super::model::{CELLS, Incarnation, Last, Reader, Value};
use super::world::World;
use std::collections::HashMap;
use std::ops::Range;

/// Pages of one file in one client.
struct File {
    cells: Vec<Option<Value>>,
    /// Moves with everything after which a read that was under way may not leave its bytes here.
    generation: u64,
    /// Writes that have not returned. They hold their pages, so a kernel does not read those meanwhile; a read here
    /// that begins amid one may, and leaves nothing.
    writing: usize,
}

/// Of a read that leaves nothing.
const NOTHING: u64 = u64::MAX;

impl Default for File {
    fn default() -> File {
        File { cells: vec![None; CELLS as usize], generation: 0, writing: 0 }
    }
}

#[derive(Default)]
pub struct Pages(HashMap<(Incarnation, usize), File>);

impl Pages {
    fn file(&mut self, by: Incarnation, file: usize) -> &mut File {
        self.0.entry((by, file)).or_default()
    }

    /// Wanted back by `read`.
    pub fn generation(&mut self, by: Incarnation, file: usize) -> u64 {
        let file = self.file(by, file);
        if file.writing > 0 { NOTHING } else { file.generation }
    }

    /// A read has brought these; what was there before stays as it is.
    pub fn read(&mut self, by: Incarnation, file: usize, generation: u64, values: &[(u32, Value)]) {
        let file = self.file(by, file);
        if file.generation == generation {
            for (cell, value) in values {
                file.cells[*cell as usize].get_or_insert(*value);
            }
        }
    }

    /// A write of this client begins: what it covers is in doubt until it ends. Its number is wanted back by `wrote`.
    pub fn writing(&mut self, by: Incarnation, file: usize, cells: Range<u32>) -> u64 {
        let file = self.file(by, file);
        (file.generation, file.writing) = (file.generation + 1, file.writing + 1);
        file.cells[cells.start as usize..cells.end as usize].fill(None);
        file.generation
    }

    /// It has ended; with these values if it has ended well.
    pub fn wrote(
        &mut self,
        by: Incarnation,
        file: usize,
        generation: u64,
        values: Option<impl Iterator<Item = (u32, Value)>>,
    ) {
        let file = self.file(by, file);
        file.writing -= 1;
        let Some(values) = values else { return };
        if file.generation == generation {
            values.for_each(|(cell, value)| file.cells[cell as usize] = Some(value));
        }
    }

    /// The file changes in this client by more than a write, or is read afresh.
    pub fn drop_all(&mut self, by: Incarnation, file: usize) {
        let file = self.file(by, file);
        file.generation += 1;
        file.cells.fill(None);
    }
}

/// A client has answered an open that was asked for at the tick `opened`.
pub fn opened(world: &World, by: Incarnation, file: usize, keep_cache: bool, opened: u64) {
    let mut pages = world.pages.lock();
    // A time of change that was set back says of the pages what is not so; the kernel goes by it as well.
    if !keep_cache || world.plan.touches {
        return pages.drop_all(by, file);
    }
    let reader = Reader { by, opened, start: opened };
    let model = world.model.lock();
    let mut last = Last::default();
    for (cell, value) in (0..).zip(&pages.file(by, file).cells) {
        let Some(value) = *value else { continue };
        if !model.may_keep(file, cell, value, reader, &mut last) {
            let history = model.history(file, cell);
            drop(model);
            panic!(
                "the kernel of {by:?} was told to keep cell {cell} of file {file}: {value:?} at {opened}\n{history}"
            );
        }
    }
}
