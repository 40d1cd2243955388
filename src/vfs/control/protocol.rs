//! The protocol of `.control`: requests, responses, and the stream that carries both (`spec/surface.md` 6.6).
//!
//! The handle is one stream. What was written stands in it before what is answered, and the kernel's file offset moves
//! with the write, so that a plain read goes on right behind the request. A read at the end finds nothing yet and is
//! tried again by the client.

use crate::base::{Errno, Ino, Name};
use bytes::Bytes;

/// Longest body of a request: 10,240 paths of 1 KiB, as warm-up sends them.
const BODY_BYTES_MAX: usize = 16 << 20;
const HEADER_BYTES: usize = 8;
/// What a stream keeps for who may yet read it: the longest request and its answers.
const STREAM_BYTES_MAX: usize = 4 * BODY_BYTES_MAX;

/// What a client may ask for.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Command {
    Remove {
        parent: Ino,
        name: Name,
        skip_trash: bool,
        threads: u8,
    },
    /// Answered in text, for old clients.
    LegacyInfo {
        ino: Ino,
        recursive: bool,
        raw: bool,
    },
    Cache {
        paths: Vec<Vec<u8>>,
        threads: u16,
        background: bool,
        action: CacheAction,
    },
    Info {
        ino: Ino,
        recursive: bool,
        raw: bool,
        strict: bool,
    },
    Clone {
        source: Ino,
        source_parent: Ino,
        parent: Ino,
        name: Name,
        umask: u16,
        preserve: bool,
        threads: u8,
    },
    Summary {
        ino: Ino,
        depth: u8,
        entries: u8,
        strict: bool,
    },
    Compact {
        ino: Ino,
        threads: u16,
    },
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum CacheAction {
    WarmUp,
    Evict,
    Check,
}

impl Command {
    /// EINVAL for an unknown operation and for a body that does not hold what it must. Missing trailing fields have
    /// the values that clients without them mean.
    pub fn parse(op: u32, body: &[u8]) -> Result<Command, Errno> {
        let mut body = Body(body);
        Ok(match op {
            1002 => Command::Remove {
                parent: body.ino()?,
                name: body.name()?,
                skip_trash: body.u8().unwrap_or(0) & 1 != 0,
                threads: body.u8().unwrap_or(50),
            },
            1003 => Command::LegacyInfo {
                ino: body.ino()?,
                recursive: body.u8().unwrap_or(1) != 0,
                raw: body.u8().unwrap_or(0) != 0,
            },
            1004 => {
                let list = body.bytes32()?;
                let mut paths: Vec<_> = list.split(|byte| *byte == b'\n').map(<[u8]>::to_vec).collect();
                // The root of the mount is an empty path, alone.
                if paths.len() > 1 {
                    paths.retain(|path| !path.is_empty());
                }
                Command::Cache {
                    paths,
                    threads: body.u16().ok_or(Errno::EINVAL)?,
                    background: body.u8().ok_or(Errno::EINVAL)? != 0,
                    action: match body.u8().unwrap_or(0) {
                        0 => CacheAction::WarmUp,
                        1 => CacheAction::Evict,
                        2 => CacheAction::Check,
                        _ => return Err(Errno::EINVAL),
                    },
                }
            }
            1005 => Command::Info {
                ino: body.ino()?,
                recursive: body.u8().unwrap_or(1) != 0,
                raw: body.u8().unwrap_or(0) != 0,
                strict: body.u8().unwrap_or(0) != 0,
            },
            1006 => Command::Clone {
                source: body.ino()?,
                source_parent: body.ino()?,
                parent: body.ino()?,
                name: body.name()?,
                umask: body.u16().ok_or(Errno::EINVAL)?,
                preserve: body.u8().ok_or(Errno::EINVAL)? & 1 != 0,
                threads: body.u8().unwrap_or(4),
            },
            1007 => Command::Summary {
                ino: body.ino()?,
                depth: body.u8().unwrap_or(3),
                entries: body.u8().unwrap_or(10),
                strict: body.u8().unwrap_or(0) != 0,
            },
            1008 => Command::Compact { ino: body.ino()?, threads: body.u16().ok_or(Errno::EINVAL)? },
            _ => return Err(Errno::EINVAL),
        })
    }
}

struct Body<'a>(&'a [u8]);

impl<'a> Body<'a> {
    fn take<const N: usize>(&mut self) -> Option<[u8; N]> {
        let (head, rest) = self.0.split_first_chunk::<N>()?;
        self.0 = rest;
        Some(*head)
    }

    fn u8(&mut self) -> Option<u8> {
        self.take::<1>().map(|[byte]| byte)
    }

    fn u16(&mut self) -> Option<u16> {
        self.take().map(u16::from_be_bytes)
    }

    fn bytes(&mut self, len: usize) -> Result<&'a [u8], Errno> {
        let (head, rest) = self.0.split_at_checked(len).ok_or(Errno::EINVAL)?;
        self.0 = rest;
        Ok(head)
    }

    fn bytes32(&mut self) -> Result<&'a [u8], Errno> {
        let len = self.take().map(u32::from_be_bytes).ok_or(Errno::EINVAL)?;
        self.bytes(len as usize)
    }

    fn ino(&mut self) -> Result<Ino, Errno> {
        self.take().map(u64::from_be_bytes).map(Ino).ok_or(Errno::EINVAL)
    }

    fn name(&mut self) -> Result<Name, Errno> {
        let len = self.u8().ok_or(Errno::EINVAL)?;
        Name::entry(self.bytes(len.into())?)
    }
}

/// How far an operation is; what the two numbers count depends on it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Progress(pub u64, pub u64);

const PROGRESS: u8 = 0xFE;
const DATA: u8 = 0xFF;

/// What ends an operation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Verdict {
    Done,
    Failed(Errno),
    Data(Bytes),
    /// The old form: a length and text, without a marker.
    Text(Bytes),
}

/// What a write to the stream leads to.
#[derive(Debug, PartialEq, Eq)]
pub enum Asked {
    /// The request is not complete yet, or was refused; an answer to that is in the stream.
    Nothing,
    /// An operation is to be run; its responses go into the stream.
    Run(Command),
}

/// One open `.control`: all bytes that went through it, in order.
#[derive(Default)]
pub struct Stream {
    /// Bytes that were dropped from the front because the client has read past them.
    gone: u64,
    bytes: Vec<u8>,
    /// The request as far as it has come.
    request: Vec<u8>,
    running: bool,
}

impl Stream {
    /// Takes a piece of a request. Bytes past its end, and bytes while an operation runs, are answered with EIO.
    pub fn write(&mut self, data: &[u8]) -> Asked {
        // Who writes and never reads must not fill the memory; what lay before this is read by nobody.
        if self.bytes.len() > STREAM_BYTES_MAX {
            self.gone += self.bytes.len() as u64;
            self.bytes.clear();
        }
        self.bytes.extend_from_slice(data);
        if self.running {
            self.bytes.push(Errno::EIO.raw() as u8);
            return Asked::Nothing;
        }
        self.request.extend_from_slice(data);
        let Some((op, rest)) = self.request.split_first_chunk::<4>() else { return Asked::Nothing };
        let Some((len, body)) = rest.split_first_chunk::<4>() else { return Asked::Nothing };
        let (op, len) = (u32::from_be_bytes(*op), u32::from_be_bytes(*len) as usize);
        let asked = if len > BODY_BYTES_MAX || body.len() > len {
            Err(Errno::EIO)
        } else if body.len() < len {
            return Asked::Nothing;
        } else {
            Command::parse(op, body)
        };
        self.request.clear();
        match asked {
            Ok(command) => {
                self.running = true;
                Asked::Run(command)
            }
            Err(errno) => {
                self.bytes.push(errno.raw() as u8);
                Asked::Nothing
            }
        }
    }

    pub fn progress(&mut self, Progress(first, second): Progress) {
        self.bytes.push(PROGRESS);
        self.bytes.extend(first.to_be_bytes());
        self.bytes.extend(second.to_be_bytes());
    }

    pub fn finish(&mut self, verdict: &Verdict) {
        match verdict {
            Verdict::Done => self.bytes.push(0),
            // Every errno of Linux fits a byte.
            Verdict::Failed(errno) => self.bytes.push(errno.raw() as u8),
            Verdict::Data(data) => {
                self.bytes.push(DATA);
                self.bytes.extend((data.len() as u32).to_be_bytes());
                self.bytes.extend_from_slice(data);
            }
            Verdict::Text(text) => {
                self.bytes.extend((text.len() as u32).to_be_bytes());
                self.bytes.extend_from_slice(text);
            }
        }
        self.running = false;
    }

    /// Up to `len` bytes from `offset`; empty when there is nothing there yet.
    pub fn read(&mut self, offset: u64, len: usize) -> Bytes {
        let Some(from) = offset.checked_sub(self.gone).and_then(|at| usize::try_from(at).ok()) else {
            return Bytes::new();
        };
        let Some(rest) = self.bytes.get(from..) else { return Bytes::new() };
        let out = Bytes::copy_from_slice(&rest[..rest.len().min(len)]);
        // What lies before this read is not asked for again by a client that reads on; a long operation must not pile
        // up its progress.
        if from > HEADER_BYTES + BODY_BYTES_MAX / 16 {
            self.bytes.drain(..from);
            self.gone += from as u64;
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn request(op: u32, body: &[u8]) -> Vec<u8> {
        [&op.to_be_bytes()[..], &(body.len() as u32).to_be_bytes(), body].concat()
    }

    #[test]
    fn bodies_have_optional_trailing_fields() {
        let mut body = 7u64.to_be_bytes().to_vec();
        body.extend([3, b'a', b'b', b'c']);
        let remove = |skip_trash, threads| {
            Ok(Command::Remove { parent: Ino(7), name: Name::stored(*b"abc"), skip_trash, threads })
        };
        assert_eq!(Command::parse(1002, &body), remove(false, 50));
        body.push(1);
        assert_eq!(Command::parse(1002, &body), remove(true, 50));
        body.push(9);
        assert_eq!(Command::parse(1002, &body), remove(true, 9));
        let summary = Command::Summary { ino: Ino(1), depth: 3, entries: 10, strict: false };
        assert_eq!(Command::parse(1007, &1u64.to_be_bytes()), Ok(summary));
        let mut cache = 8u32.to_be_bytes().to_vec();
        cache.extend(b"a/b\n\nc d");
        cache.extend([0, 50, 1, 2]);
        let paths = vec![b"a/b".to_vec(), b"c d".to_vec()];
        let check = Command::Cache { paths, threads: 50, background: true, action: CacheAction::Check };
        assert_eq!(Command::parse(1004, &cache), Ok(check));
        assert_eq!(Command::parse(1002, b"short"), Err(Errno::EINVAL));
        assert_eq!(Command::parse(1000, b""), Err(Errno::EINVAL));
    }

    #[test]
    fn responses_follow_the_request_in_one_stream() {
        let mut stream = Stream::default();
        let sent = request(1008, &[0, 0, 0, 0, 0, 0, 0, 5, 0, 10]);
        assert_eq!(stream.write(&sent[..6]), Asked::Nothing);
        assert_eq!(stream.write(&sent[6..]), Asked::Run(Command::Compact { ino: Ino(5), threads: 10 }));
        let at = sent.len() as u64;
        assert!(stream.read(at, 100).is_empty(), "not ready yet");
        stream.progress(Progress(3, 1));
        stream.finish(&Verdict::Data(Bytes::from_static(b"{}")));
        let answers = stream.read(at, 100);
        assert_eq!(answers[0], 0xFE);
        assert_eq!(answers[1..17], [0, 0, 0, 0, 0, 0, 0, 3, 0, 0, 0, 0, 0, 0, 0, 1]);
        assert_eq!(answers[17..], [0xFF, 0, 0, 0, 2, b'{', b'}']);
        assert_eq!(stream.read(0, 4)[..], sent[..4], "the request itself stands in front");
    }

    #[test]
    fn unknown_operations_and_surplus_bytes_are_refused() {
        let mut stream = Stream::default();
        let sent = request(1, b"");
        assert_eq!(stream.write(&sent), Asked::Nothing);
        assert_eq!(stream.read(sent.len() as u64, 9)[..], [0x16]);
        let mut stream = Stream::default();
        let mut sent = request(1008, &[0; 10]);
        sent.push(0);
        assert_eq!(stream.write(&sent), Asked::Nothing);
        assert_eq!(stream.read(sent.len() as u64, 9)[..], [5]);
    }

    #[test]
    fn a_stream_that_nobody_reads_stays_small() {
        let mut stream = Stream::default();
        assert!(matches!(stream.write(&request(1008, &[0; 10])), Asked::Run(_)));
        let noise = vec![0; 4 << 20];
        for _ in 0..40 {
            stream.write(&noise);
        }
        assert!(stream.bytes.len() <= STREAM_BYTES_MAX + noise.len() + 1);
        assert_eq!(stream.gone + stream.bytes.len() as u64, 18 + 40 * (noise.len() as u64 + 1), "offsets stay");
    }

    #[test]
    fn a_stream_serves_one_request_after_another() {
        let mut stream = Stream::default();
        let sent = request(1008, &[0; 10]);
        for round in 0..3 {
            assert!(matches!(stream.write(&sent), Asked::Run(_)));
            stream.finish(&Verdict::Done);
            let at = (round + 1) * sent.len() as u64 + round;
            assert_eq!(stream.read(at, 9)[..], [0]);
        }
    }

    proptest! {
        #[test]
        fn no_bytes_make_the_parser_panic(op in 990u32..1020, body in proptest::collection::vec(any::<u8>(), 0..64)) {
            let _ = Command::parse(op, &body);
        }

        #[test]
        fn no_writes_make_the_stream_panic(
            pieces in proptest::collection::vec(proptest::collection::vec(any::<u8>(), 0..24), 0..12),
            offset in any::<u64>(),
        ) {
            let mut stream = Stream::default();
            for piece in &pieces {
                if let Asked::Run(_) = stream.write(piece) {
                    stream.finish(&Verdict::Done);
                }
            }
            stream.read(offset, 64);
        }

        #[test]
        fn a_request_may_come_in_any_pieces(cuts in proptest::collection::vec(1usize..5, 0..9)) {
            let mut stream = Stream::default();
            let sent = request(1007, &[0, 0, 0, 0, 0, 0, 0, 1, 2, 7, 1]);
            let mut rest = &sent[..];
            for cut in cuts {
                if cut >= rest.len() { break }
                let (piece, later) = rest.split_at(cut);
                prop_assert_eq!(stream.write(piece), Asked::Nothing);
                rest = later;
            }
            let asked = Command::Summary { ino: Ino(1), depth: 2, entries: 7, strict: true };
            prop_assert_eq!(stream.write(rest), Asked::Run(asked));
        }
    }
}
