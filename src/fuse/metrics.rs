//! Numbers of the operations that the kernel asks for (`spec/surface.md` 7.2): how many, how long, how large, and what
//! went wrong.

use super::attend::{Finished, Observer};
use super::trace::OPERATIONS;
use crate::base::Errno;
use crate::telemetry::metrics::{Counter, Histogram, Registry, TimeCounter, buckets};
use parking_lot::RwLock;
use std::collections::HashMap;
use std::sync::Arc;

/// Counts every operation into a registry.
pub struct FuseMetrics {
    registry: Arc<Registry>,
    methods: HashMap<&'static str, (Arc<Counter>, Arc<TimeCounter>)>,
    seconds: Arc<Histogram>,
    read_bytes: Arc<Histogram>,
    written_bytes: Arc<Histogram>,
    /// By errno, made when one first occurs.
    errors: RwLock<HashMap<Errno, Arc<Counter>>>,
}

impl FuseMetrics {
    pub fn new(registry: Arc<Registry>) -> Arc<FuseMetrics> {
        let method = |name: &'static str| {
            let labels = [("method", name)];
            let count = registry.counter("fuse_ops_total", "Operations of the kernel.", &labels);
            let time = registry.time_counter("fuse_ops_durations_seconds", "Seconds in operations.", &labels);
            (name, (count, time))
        };
        let seconds = registry.histogram(
            "fuse_ops_durations_histogram_seconds",
            "Durations of operations.",
            &[],
            buckets::fuse_seconds,
        );
        let size = |name, help| registry.histogram(name, help, &[], buckets::fuse_bytes);
        Arc::new(FuseMetrics {
            methods: OPERATIONS.into_iter().map(method).collect(),
            seconds,
            read_bytes: size("fuse_read_size_bytes", "Sizes of reads."),
            written_bytes: size("fuse_written_size_bytes", "Sizes of writes."),
            errors: RwLock::default(),
            registry,
        })
    }

    fn error(&self, errno: Errno) {
        if let Some(counter) = self.errors.read().get(&errno) {
            return counter.increment();
        }
        let name = format!("{errno:?}");
        let counter = self.registry.counter("fuse_ops_io_errors", "Operations by error.", &[("errno", &name)]);
        self.errors.write().entry(errno).or_insert(counter).increment();
    }
}

impl Observer for FuseMetrics {
    fn reads(&self) -> bool {
        false
    }

    fn finished(&self, operation: Finished<'_>) {
        if let Some((count, time)) = self.methods.get(operation.operation) {
            count.increment();
            time.add(operation.took);
        }
        self.seconds.observe_time(operation.took);
        match (operation.operation, operation.errno) {
            ("read", None) => self.read_bytes.observe(operation.bytes as f64),
            ("write", None) => self.written_bytes.observe(operation.bytes as f64),
            (_, Some(errno)) => self.error(errno),
            (_, None) => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuse::transport::Origin;
    use std::time::Duration;

    #[test]
    fn operations_are_counted_by_name_size_and_error() {
        let registry = Arc::new(Registry::new([]));
        let metrics = FuseMetrics::new(registry.clone());
        let origin = Origin { unique: 1, uid: 0, gid: 0, pid: 0 };
        let took = Duration::from_millis(2);
        let read = Finished { origin, operation: "read", text: None, bytes: 4096, errno: None, took };
        metrics.finished(read);
        metrics.finished(read);
        metrics.finished(Finished { operation: "lookup", bytes: 0, errno: Some(Errno::ENOENT), ..read });
        let stats = registry.stats_text();
        for line in [
            "juicefs_fuse_ops_total_read 2",
            "juicefs_fuse_ops_total_lookup 1",
            "juicefs_fuse_ops_io_errors_ENOENT 1",
            "juicefs_fuse_read_size_bytes_sum 8192",
            "juicefs_fuse_ops_durations_histogram_seconds_total 3",
        ] {
            assert!(stats.lines().any(|l| l == line), "{line} in\n{stats}");
        }
    }
}
