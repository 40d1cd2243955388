//! The access log: one line per finished operation, for whoever has `.accesslog` open (`spec/surface.md` 6.2).
//!
//! Each reader has a queue of its own that drops new lines when it is full, so a slow reader costs nobody anything. With
//! no reader a line is not even formatted. An operation of ten seconds or more is also logged as slow.

use crate::base::{Errno, Timestamp};
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::fmt;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Lines that wait for one reader.
const QUEUE_LINES: usize = 10_240;

/// From here on an operation is worth a line in the client's own log.
const SLOW: Duration = Duration::from_secs(10);

/// One finished operation. `arguments` has no parentheses (`1,name`), `result` is what stands behind the colon or is
/// empty, so the names of both follow the table of the format.
pub struct Operation<'a> {
    /// When it ended.
    pub end: Timestamp,
    pub uid: u32,
    pub gid: u32,
    pub pid: u32,
    pub name: &'a str,
    pub arguments: &'a dyn fmt::Display,
    pub result: &'a dyn fmt::Display,
    pub status: Result<(), Errno>,
    pub elapsed: Duration,
}

impl fmt::Display for Operation<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let zone = jiff::tz::TimeZone::system();
        let time = jiff::Timestamp::new(self.end.seconds, self.end.nanos as i32).unwrap_or_default().to_zoned(zone);
        write!(
            f,
            "{} [uid:{},gid:{},pid:{}] {} ({})",
            time.strftime("%Y.%m.%d %H:%M:%S%.6f"),
            self.uid,
            self.gid,
            self.pid,
            self.name,
            self.arguments
        )?;
        let result = self.result.to_string();
        if !result.is_empty() {
            write!(f, ": {result}")?;
        }
        match self.status {
            Ok(()) => f.write_str(" - OK")?,
            Err(errno) => write!(f, " - {errno}")?,
        }
        write!(f, " <{:.6}>", self.elapsed.as_secs_f64())
    }
}

/// A file name as the log shows it: as it is when every character is plain, else quoted with escapes.
pub fn shown_name(name: &[u8]) -> String {
    let plain = |b: &u8| b.is_ascii_graphic() && !matches!(b, b'"' | b'\\' | b',' | b'(' | b')');
    match std::str::from_utf8(name) {
        Ok(text) if name.iter().all(plain) => text.to_string(),
        Ok(text) => format!("\"{}\"", text.chars().map(escaped).collect::<String>()),
        Err(_) => {
            let mut out = String::from("\"");
            for chunk in name.utf8_chunks() {
                out.extend(chunk.valid().chars().map(escaped));
                out.extend(chunk.invalid().iter().map(|byte| format!("\\x{byte:02x}")));
            }
            out.push('"');
            out
        }
    }
}

fn escaped(c: char) -> String {
    match c {
        '"' => "\\\"".into(),
        '\\' => "\\\\".into(),
        '\n' => "\\n".into(),
        '\r' => "\\r".into(),
        '\t' => "\\t".into(),
        c if c.is_control() && (c as u32) < 0x80 => format!("\\x{:02x}", c as u32),
        c if c.is_control() => format!("\\u{:04x}", c as u32),
        c => c.to_string(),
    }
}

#[derive(Default)]
struct Reader {
    lines: VecDeque<String>,
    dropped: u64,
}

/// The readers and their queues.
#[derive(Default)]
pub struct AccessLog {
    readers: Mutex<Readers>,
    /// How many readers there are, so that the usual case (none) takes no lock.
    watching: AtomicUsize,
}

#[derive(Default)]
struct Readers {
    next: u64,
    queues: HashMap<u64, Reader>,
}

impl AccessLog {
    pub fn new() -> AccessLog {
        AccessLog::default()
    }

    /// Whether anybody reads; a caller that has to work for the texts asks first.
    pub fn is_watched(&self) -> bool {
        self.watching.load(Ordering::Relaxed) > 0
    }

    /// Writes one operation to every reader.
    pub fn record(&self, operation: &Operation<'_>) {
        let slow = operation.elapsed >= SLOW;
        if !slow && !self.is_watched() {
            return;
        }
        let line = operation.to_string();
        if slow {
            tracing::warn!("slow operation: {line}");
        }
        for reader in self.readers.lock().queues.values_mut() {
            if reader.lines.len() < QUEUE_LINES {
                reader.lines.push_back(format!("{line}\n"));
            } else {
                reader.dropped += 1;
            }
        }
    }

    /// Keeps lines for a new reader from now on.
    pub fn subscribe(&self) -> u64 {
        let mut readers = self.readers.lock();
        readers.next += 1;
        let id = readers.next;
        readers.queues.insert(id, Reader::default());
        self.watching.store(readers.queues.len(), Ordering::Relaxed);
        id
    }

    pub fn unsubscribe(&self, reader: u64) {
        let mut readers = self.readers.lock();
        if let Some(gone) = readers.queues.remove(&reader)
            && gone.dropped > 0
        {
            tracing::debug!(lines = gone.dropped, "a reader of the access log was too slow");
        }
        self.watching.store(readers.queues.len(), Ordering::Relaxed);
    }

    /// Whole lines, at most `len` bytes of them; a line longer than `len` is cut. Empty when there are none now.
    pub fn take(&self, reader: u64, len: usize) -> Bytes {
        let mut readers = self.readers.lock();
        let Some(Reader { lines, .. }) = readers.queues.get_mut(&reader) else { return Bytes::new() };
        let mut out = BytesMut::new();
        while let Some(line) = lines.front() {
            if out.len() + line.len() > len {
                break;
            }
            out.extend_from_slice(line.as_bytes());
            lines.pop_front();
        }
        if out.is_empty()
            && len > 0
            && let Some(line) = lines.pop_front()
        {
            out.extend_from_slice(&line.as_bytes()[..len.min(line.len())]);
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn operation<'a>(status: Result<(), Errno>, result: &'a &'static str) -> Operation<'a> {
        Operation {
            end: Timestamp::new(1_796_000_000, 209_239_000),
            uid: 0,
            gid: 0,
            pid: 26409,
            name: "read",
            arguments: &"2051,4096,0,9",
            result,
            status,
            elapsed: Duration::from_micros(198),
        }
    }

    #[test]
    fn a_line_has_the_form_that_profilers_parse() {
        let line = operation(Ok(()), &"(3)").to_string();
        let (time, rest) = line.split_at("2026.11.29 12:30:43.209239".len());
        assert!(time.ends_with(".209239") && time.starts_with("2026.11.3"), "{time}");
        assert_eq!(rest, " [uid:0,gid:0,pid:26409] read (2051,4096,0,9): (3) - OK <0.000198>");
        let line = operation(Err(Errno::ENOENT), &"").to_string();
        assert!(line.ends_with("read (2051,4096,0,9) - no such file or directory <0.000198>"), "{line}");
    }

    #[test]
    fn names_are_quoted_when_they_need_it() {
        assert_eq!(shown_name(b"plain.txt"), "plain.txt");
        assert_eq!(shown_name(b"a b"), "\"a b\"");
        assert_eq!(shown_name(b"tab\there\"\x01"), "\"tab\\there\\\"\\x01\"");
        assert_eq!(shown_name(b"\xff\xfe"), "\"\\xff\\xfe\"");
    }

    #[test]
    fn each_reader_has_its_own_bounded_queue() {
        let log = AccessLog::new();
        log.record(&operation(Ok(()), &""));
        let (a, b) = (log.subscribe(), log.subscribe());
        assert!(log.is_watched() && log.take(a, 1 << 20).is_empty());
        for _ in 0..QUEUE_LINES + 5 {
            log.record(&operation(Ok(()), &""));
        }
        let line = operation(Ok(()), &"").to_string().len() + 1;
        assert_eq!(log.take(a, 2 * line + 3).len(), 2 * line, "whole lines only");
        assert_eq!(log.take(a, 10).len(), 10, "a line that does not fit is cut rather than never shown");
        assert_eq!(log.take(b, usize::MAX).len(), QUEUE_LINES * line);
        log.unsubscribe(a);
        log.unsubscribe(b);
        assert!(!log.is_watched() && log.take(a, 100).is_empty());
    }
}
