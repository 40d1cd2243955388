//! The client's end of the control file (`spec/surface.md` 6.6): one request is written, then progress and the result are
//! read from the same handle.
//!
//! The handle is a stream whose offset the kernel moves on with the write, so plain reads go on behind the request. A read
//! that answers nothing means "not ready yet": the wait between reads grows from 1 to 300 ms.

use crate::base::Errno;
use anyhow::{Context as _, bail};
use std::fs::{File, OpenOptions};
use std::io::{Read as _, Write as _};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

/// Longest silence before the mount is taken for hung: progress comes every 300 ms.
const SILENCE: Duration = Duration::from_secs(60);
const POLL_MAX: Duration = Duration::from_millis(300);

const PROGRESS: u8 = 0xFE;
const DATA: u8 = 0xFF;

/// The operations that commands use.
pub const REMOVE: u32 = 1002;
pub const INFO: u32 = 1005;
pub const COMPACT: u32 = 1008;

/// What came of a request.
#[derive(Debug, PartialEq, Eq)]
pub enum Answer {
    /// Done, without data.
    Done,
    Errno(Errno),
    /// JSON.
    Data(Vec<u8>),
}

/// The special file `name` (`.control`, `.stats` …) of the mount that `dir` lies in, under either of its names.
pub fn special(dir: &Path, name: &str) -> Option<PathBuf> {
    let found = |path: PathBuf| path.symlink_metadata().is_ok().then_some(path);
    found(dir.join(format!(".jfs{name}"))).or_else(|| found(dir.join(name)))
}

/// The control file as seen from `dir`, any directory of a mount.
pub fn open(dir: &Path) -> anyhow::Result<File> {
    let mut options = OpenOptions::new();
    options.read(true).write(true);
    options.open(dir.join(".jfs.control")).or_else(|_| options.open(dir.join(".control"))).map_err(|error| {
        anyhow::anyhow!("Open control file for {dir:?}: open {}: {error}", dir.join(".control").display())
    })
}

/// Sends one request and waits for its end; `progress` hears of the two numbers on the way.
pub fn request(file: &mut File, operation: u32, body: &[u8], progress: impl FnMut(u64, u64)) -> anyhow::Result<Answer> {
    let mut message = operation.to_be_bytes().to_vec();
    message.extend(u32::try_from(body.len()).context("the request is too long")?.to_be_bytes());
    message.extend(body);
    file.write_all(&message).context("write the request to the control file")?;
    let mut wait = Duration::from_millis(1);
    let mut heard = Instant::now();
    let mut read = || {
        let mut buffer = [0; 4096];
        loop {
            let n = file.read(&mut buffer).context("read from the control file")?;
            if n > 0 {
                (wait, heard) = (Duration::from_millis(1), Instant::now());
                return Ok(buffer[..n].to_vec());
            }
            if heard.elapsed() > SILENCE {
                bail!("the mount has not answered for {} s", SILENCE.as_secs());
            }
            std::thread::sleep(wait);
            wait = (wait * 2).min(POLL_MAX);
        }
    };
    answer(&mut read, progress)
}

/// Takes the answer apart; `read` gives the next bytes, never none.
pub(super) fn answer(
    read: &mut dyn FnMut() -> anyhow::Result<Vec<u8>>,
    mut progress: impl FnMut(u64, u64),
) -> anyhow::Result<Answer> {
    let mut bytes: Vec<u8> = Vec::new();
    loop {
        let mut need = |count: usize, bytes: &mut Vec<u8>| -> anyhow::Result<()> {
            while bytes.len() < count {
                bytes.extend(read()?);
            }
            Ok(())
        };
        need(1, &mut bytes)?;
        let number = |bytes: &[u8]| bytes.iter().fold(0u64, |n, byte| n << 8 | u64::from(*byte));
        match bytes[0] {
            PROGRESS => {
                need(17, &mut bytes)?;
                progress(number(&bytes[1..9]), number(&bytes[9..17]));
                // Work of days reports so often that all of it would not fit into memory.
                bytes.drain(..17);
            }
            DATA => {
                need(5, &mut bytes)?;
                let length = number(&bytes[1..5]) as usize;
                need(5 + length, &mut bytes)?;
                return Ok(Answer::Data(bytes[5..5 + length].to_vec()));
            }
            0 => return Ok(Answer::Done),
            errno => return Ok(Answer::Errno(Errno::from_raw(errno.into()))),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn answered(chunks: &[&[u8]]) -> (anyhow::Result<Answer>, Vec<(u64, u64)>) {
        let mut chunks = chunks.iter();
        let mut seen = Vec::new();
        let mut read = || chunks.next().map(|chunk| chunk.to_vec()).context("no more");
        let answer = answer(&mut read, |a, b| seen.push((a, b)));
        (answer, seen)
    }

    #[test]
    fn answers_are_put_together_from_any_pieces() {
        let mut progress = vec![PROGRESS];
        progress.extend(7u64.to_be_bytes());
        progress.extend(9u64.to_be_bytes());
        let (head, tail) = progress.split_at(5);
        let (answer, seen) = answered(&[head, tail, &[DATA, 0, 0], &[0, 2, b'{'], b"}"]);
        assert_eq!((answer.unwrap(), seen), (Answer::Data(b"{}".to_vec()), vec![(7, 9)]));
        assert_eq!(answered(&[&[0]]).0.unwrap(), Answer::Done);
        assert_eq!(answered(&[&[2]]).0.unwrap(), Answer::Errno(Errno::ENOENT));
        assert!(answered(&[&[DATA, 0]]).0.is_err());
    }
}
