//! Moving a volume between engines: dumps of all metadata in a file, and loading them into an empty database
//! (`spec/metadata.md` section 9). The files are those of the peer, both ways.
//!
//! Two forms. [`json`] is a tree that people can read; it says each node in full, and a reader counts everything anew
//! ([`json_load`]). [`binary`] is a list of records as they are stored, several times smaller and faster
//! ([`binary_load`]). Neither holds sessions, locks or slices that wait for the trash.
//!
//! Nothing here knows an engine: a dump asks for records, and [`loader`] commits batches of them. Memory is bounded by
//! the largest directory and not by the volume; what must be remembered of every node is one bit ([`seen`]).
//!
//! A dump of a volume in use is of no single moment: what moves meanwhile may be in it twice or not at all. As JSON it can
//! be loaded all the same, for everything is counted anew; of the binary form `fsck` tells what does not fit together.
//!
//! A load that fails leaves no volume behind. The format document is written last, so no client takes half a volume for
//! a whole one, and what was written before is removed again.
//!
//! Where we differ from the peer: a real U+FFFD in a name survives; targets of symlinks are kept as they are; holes are
//! not counted as slice 0; numbers of inodes and slices that were handed out are not handed out again; and names of
//! extended attributes that are no text, which the peer loses, are kept in a key of their own (`raw`).

pub mod binary;
pub mod binary_load;
mod commits;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod json;
pub mod json_load;
mod loader;
mod messages;
mod pull;
#[cfg(test)]
mod scale_tests;
mod seen;
pub mod stream;
#[cfg(test)]
mod tests;
mod text;
mod tree;
mod turn;

use super::engine::{Cursor, Engine, Page, Scan};
use super::outside;
use crate::base::{Errno, Fault, Ino, Outcome};
use crate::util::task::StopSignal;
use async_trait::async_trait;
use bytes::Bytes;
use std::sync::Arc;

/// Records asked for at a time; less where one may be long.
const PAGE_RECORDS: usize = 10_000;
const PAGE_LONG_RECORDS: usize = 1000;
/// What is gathered of a dump before it is handed to its sink.
const BUFFER_BYTES: usize = 256 << 10;

/// How the work is watched and ended.
#[derive(Clone)]
pub struct Course {
    /// Told what is being done, and how many things more of it are done.
    pub tell: Arc<dyn Fn(&'static str, u64) + Send + Sync>,
    pub stop: StopSignal,
}

impl Course {
    /// ECANCELED once the work was told to stop.
    fn step(&self, phase: &'static str, done: u64) -> Outcome<()> {
        (self.tell)(phase, done);
        if self.stop.is_stopped() { Err(Errno::ECANCELED.into()) } else { Ok(()) }
    }
}

/// What to dump.
#[derive(Clone)]
pub struct DumpOptions {
    /// The format document as it is to stand in the dump, without the secrets that are not to be in it.
    pub setting: Vec<u8>,
    /// The directory at the top; the root for the whole volume.
    pub top: Ino,
    pub skip_trash: bool,
    /// Directories read at a time.
    pub threads: usize,
}

/// What a dump holds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Dumped {
    /// Entries of directories, or records of the binary form.
    pub entries: u64,
    /// Entries whose node is not there; they are left out.
    pub dangling: u64,
    /// Names of extended attributes that are no text: the peer cannot load a binary dump with them.
    pub odd_names: u64,
}

/// What was loaded.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Loaded {
    pub inodes: u64,
    pub space: u64,
    /// Extended attributes that the engine cannot hold; they are left out.
    pub left_out: u64,
}

/// Turns the format document of a dump into the one to store, or says why it cannot be stored.
pub type Admit = dyn Fn(&[u8]) -> Result<Bytes, Fault> + Send + Sync;

/// Where the bytes of a dump go.
#[async_trait]
pub trait Sink: Send {
    async fn take(&mut self, bytes: Vec<u8>) -> Result<(), Fault>;
}

/// Into memory.
#[async_trait]
impl Sink for Vec<u8> {
    async fn take(&mut self, bytes: Vec<u8>) -> Result<(), Fault> {
        self.extend_from_slice(&bytes);
        Ok(())
    }
}

/// A dump on its way to the sink.
struct Out<'a> {
    gathered: Vec<u8>,
    taken: u64,
    sink: &'a mut dyn Sink,
}

impl<'a> Out<'a> {
    fn new(sink: &'a mut dyn Sink) -> Out<'a> {
        Out { gathered: Vec::with_capacity(BUFFER_BYTES), taken: 0, sink }
    }

    /// Bytes written so far.
    fn position(&self) -> u64 {
        self.taken + self.gathered.len() as u64
    }

    fn put(&mut self, bytes: &[u8]) {
        self.gathered.extend_from_slice(bytes);
    }

    fn text(&mut self, text: &str) {
        self.put(text.as_bytes());
    }

    /// Hands over what is gathered once it is enough. To be called between things that are small.
    async fn pass_on(&mut self) -> Outcome<()> {
        if self.gathered.len() >= BUFFER_BYTES { self.finish().await } else { Ok(()) }
    }

    async fn finish(&mut self) -> Outcome<()> {
        let bytes = std::mem::replace(&mut self.gathered, Vec::with_capacity(BUFFER_BYTES));
        self.taken += bytes.len() as u64;
        self.sink.take(bytes).await?;
        Ok(())
    }
}

/// Pages of a scan, one after the other.
struct Pages<'a> {
    engine: &'a dyn Engine,
    scan: Scan,
    limit: usize,
    after: Option<Cursor>,
    ended: bool,
}

impl<'a> Pages<'a> {
    fn new(engine: &'a dyn Engine, scan: Scan, limit: usize) -> Pages<'a> {
        Pages { engine, scan, limit, after: None, ended: false }
    }

    /// `None` at the end. What does not decode ends the dump: a backup that lacks something without a word is none.
    async fn next(&mut self) -> Outcome<Option<Page>> {
        if self.ended {
            return Ok(None);
        }
        let mut page = outside(self.engine.scan(&self.scan, self.after.as_ref(), self.limit).await)?;
        self.after = page.next.take();
        self.ended = self.after.is_none();
        Ok(Some(page))
    }
}
