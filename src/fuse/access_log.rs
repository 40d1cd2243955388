//! The access log: one line per operation for whoever has `.accesslog` open (`spec/surface.md` 6.2).
//!
//! Nobody reads most of the time: then an operation costs one atomic load here. Each reader has a queue of its own,
//! which drops lines when it is full: a slow reader loses lines and holds up nobody.

use super::attend::{Finished, Observer};
use crate::telemetry::log;
use crate::util::clock::SharedClock;
use crate::vfs::control::OperationLog;
use bytes::{Bytes, BytesMut};
use parking_lot::Mutex;
use std::collections::{HashMap, VecDeque};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::time::Duration;

/// Lines kept for a reader.
const QUEUE_LINES: usize = 10240;

/// Operations at least this long are also told to the client's own log.
const SLOW: Duration = Duration::from_secs(10);

pub struct AccessLog {
    clock: SharedClock,
    readers: AtomicUsize,
    queues: Mutex<Queues>,
    /// Metrics, or whoever else wants to know of every operation.
    next: Option<Arc<dyn Observer>>,
}

#[derive(Default)]
struct Queues {
    last: u64,
    open: HashMap<u64, VecDeque<Bytes>>,
}

impl AccessLog {
    /// What is seen here is passed on to `next`.
    pub fn new(clock: SharedClock, next: Option<Arc<dyn Observer>>) -> Arc<AccessLog> {
        Arc::new(AccessLog { clock, readers: AtomicUsize::new(0), queues: Mutex::default(), next })
    }

    fn line(&self, operation: &Finished<'_>, (arguments, result): (&str, &str)) -> String {
        let now = self.clock.now();
        let time = jiff::Timestamp::new(now.seconds, now.nanos as i32).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
        let time = time.to_zoned(jiff::tz::TimeZone::system()).strftime("%Y.%m.%d %H:%M:%S").to_string();
        let micros = now.nanos / 1000;
        let Finished { origin, operation, errno, took, .. } = operation;
        let status = errno.map_or_else(|| "OK".to_owned(), |errno| errno.to_string());
        format!(
            "{time}.{micros:06} [uid:{},gid:{},pid:{}] {operation} {arguments}{result} - {status} <{:.6}>\n",
            origin.uid,
            origin.gid,
            origin.pid,
            took.as_secs_f64()
        )
    }
}

impl Observer for AccessLog {
    fn reads(&self) -> bool {
        self.readers.load(Ordering::Relaxed) > 0
    }

    fn finished(&self, operation: Finished<'_>) {
        if operation.took >= SLOW {
            let seconds = operation.took.as_secs_f64();
            let arguments = operation.text.map_or("", |(arguments, _)| arguments);
            let operation = operation.operation;
            tracing::info!(target: log::SLOW, operation, arguments, seconds, "slow operation");
        }
        if let Some(text) = operation.text {
            let line = Bytes::from(self.line(&operation, text));
            for queue in self.queues.lock().open.values_mut().filter(|queue| queue.len() < QUEUE_LINES) {
                queue.push_back(line.clone());
            }
        }
        if let Some(next) = &self.next {
            next.finished(operation);
        }
    }
}

impl OperationLog for AccessLog {
    fn subscribe(&self) -> u64 {
        let mut queues = self.queues.lock();
        queues.last += 1;
        let reader = queues.last;
        queues.open.insert(reader, VecDeque::new());
        self.readers.store(queues.open.len(), Ordering::Relaxed);
        reader
    }

    fn unsubscribe(&self, reader: u64) {
        let mut queues = self.queues.lock();
        queues.open.remove(&reader);
        self.readers.store(queues.open.len(), Ordering::Relaxed);
    }

    fn take(&self, reader: u64, len: usize) -> Bytes {
        let mut queues = self.queues.lock();
        let Some(queue) = queues.open.get_mut(&reader) else { return Bytes::new() };
        let mut out = BytesMut::new();
        while let Some(line) = queue.pop_front() {
            if out.len() + line.len() <= len {
                out.extend_from_slice(&line);
            } else if out.is_empty() {
                // Longer than the reader's whole buffer: the rest of the line comes with the next read.
                queue.push_front(line.slice(len..));
                return line.slice(..len);
            } else {
                queue.push_front(line);
                break;
            }
        }
        out.freeze()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::Errno;
    use crate::fuse::transport::Origin;
    use crate::util::clock::ManualClock;

    fn finished(text: Option<(&'static str, &'static str)>) -> Finished<'static> {
        let origin = Origin { unique: 1, uid: 10, gid: 20, pid: 30 };
        let took = Duration::from_micros(198);
        Finished { origin, operation: "lookup", text, bytes: 0, errno: Some(Errno::ENOENT), took }
    }

    #[test]
    fn lines_go_to_those_who_read() {
        let log = AccessLog::new(Arc::new(ManualClock::at(1_500_000)), None);
        assert!(!log.reads());
        let reader = log.subscribe();
        assert!(log.reads());
        log.finished(finished(Some(("(1,a)", ""))));
        let line = String::from_utf8(log.take(reader, 1000).to_vec()).unwrap();
        let (time, rest) = line.split_at("1970.01.01 00:00:00.001500".len());
        assert!(time.starts_with("19") && time.ends_with(".001500"), "{time}");
        assert_eq!(rest, " [uid:10,gid:20,pid:30] lookup (1,a) - no such file or directory <0.000198>\n");
        assert!(log.take(reader, 1000).is_empty());
        log.unsubscribe(reader);
        assert!(!log.reads());
    }

    #[test]
    fn a_slow_reader_loses_lines_and_reads_whole_ones() {
        let log = AccessLog::new(Arc::new(ManualClock::at(0)), None);
        let reader = log.subscribe();
        for _ in 0..QUEUE_LINES + 5 {
            log.finished(finished(Some(("(1,a)", ""))));
        }
        let (mut lines, mut bytes) = (0, log.take(reader, 1000));
        while !bytes.is_empty() {
            assert!(bytes.ends_with(b"\n"));
            lines += bytes.iter().filter(|byte| **byte == b'\n').count();
            bytes = log.take(reader, 1000);
        }
        assert_eq!(lines, QUEUE_LINES);
    }
}
