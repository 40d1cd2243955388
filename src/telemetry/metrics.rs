//! Numbers about the running client: a small registry and its two texts.
//!
//! Names, labels and buckets are the peer's (`spec/surface.md` 7.2), so that dashboards and `stats` scripts carry over.
//! [`Registry::stats_text`] is what `.stats` shows, [`Registry::prometheus_text`] what a scraper reads. A number is
//! changed with one relaxed atomic operation; values that live elsewhere are read when a text is made.
//!
//! Why not a metrics crate: the `.stats` form and the names with and without suffixes (`_total` for the count of a
//! histogram) fit none of them, and what is left is a list of atomics.

use parking_lot::Mutex;
use std::fmt::Write as _;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant};

/// In front of every name.
const PREFIX: &str = "juicefs_";

/// A number that only grows.
#[derive(Default)]
pub struct Counter(AtomicU64);

impl Counter {
    pub fn add(&self, n: u64) {
        self.0.fetch_add(n, Ordering::Relaxed);
    }

    pub fn increment(&self) {
        self.add(1);
    }

    pub fn get(&self) -> u64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// Time that only grows; shown in seconds.
#[derive(Default)]
pub struct TimeCounter(AtomicU64);

impl TimeCounter {
    pub fn add(&self, time: Duration) {
        self.0.fetch_add(u64::try_from(time.as_nanos()).unwrap_or(u64::MAX), Ordering::Relaxed);
    }

    pub fn seconds(&self) -> f64 {
        self.0.load(Ordering::Relaxed) as f64 / 1e9
    }
}

/// A number that goes up and down.
#[derive(Default)]
pub struct Gauge(std::sync::atomic::AtomicI64);

impl Gauge {
    pub fn set(&self, value: i64) {
        self.0.store(value, Ordering::Relaxed);
    }

    pub fn add(&self, delta: i64) {
        self.0.fetch_add(delta, Ordering::Relaxed);
    }

    pub fn get(&self) -> i64 {
        self.0.load(Ordering::Relaxed)
    }
}

/// How often values fell below each of a list of bounds, and their sum.
pub struct Histogram {
    bounds: Vec<f64>,
    buckets: Vec<AtomicU64>,
    count: AtomicU64,
    /// The bits of an `f64`.
    sum: AtomicU64,
}

impl Histogram {
    fn new(bounds: Vec<f64>) -> Histogram {
        Histogram {
            buckets: bounds.iter().map(|_| AtomicU64::new(0)).collect(),
            bounds,
            count: AtomicU64::new(0),
            sum: AtomicU64::new(0f64.to_bits()),
        }
    }

    pub fn observe(&self, value: f64) {
        if let Some(bucket) = self.buckets.get(self.bounds.partition_point(|bound| *bound < value)) {
            bucket.fetch_add(1, Ordering::Relaxed);
        }
        self.count.fetch_add(1, Ordering::Relaxed);
        let add = |sum| Some((f64::from_bits(sum) + value).to_bits());
        // Never fails: the closure always answers.
        let _ = self.sum.fetch_update(Ordering::Relaxed, Ordering::Relaxed, add);
    }

    pub fn observe_time(&self, time: Duration) {
        self.observe(time.as_secs_f64());
    }

    pub fn count(&self) -> u64 {
        self.count.load(Ordering::Relaxed)
    }

    pub fn sum(&self) -> f64 {
        f64::from_bits(self.sum.load(Ordering::Relaxed))
    }
}

/// `count` bounds, each `factor` times the one before.
pub fn exponential(start: f64, factor: f64, count: usize) -> Vec<f64> {
    std::iter::successors(Some(start), |bound| Some(bound * factor)).take(count).collect()
}

/// `count` bounds, each `width` more than the one before.
pub fn linear(start: f64, width: f64, count: usize) -> Vec<f64> {
    (0..count).map(|i| start + width * i as f64).collect()
}

/// The bucket lists of the format, by what they measure.
pub mod buckets {
    use super::{exponential, linear};

    pub fn transaction_seconds() -> Vec<f64> {
        exponential(0.0001, 1.5, 30)
    }

    pub fn fuse_seconds() -> Vec<f64> {
        exponential(0.00001, 1.8, 29)
    }

    pub fn fuse_bytes() -> Vec<f64> {
        linear(4096.0, 4096.0, 32)
    }

    pub fn cache_seconds() -> Vec<f64> {
        exponential(0.00001, 2.0, 20)
    }

    pub fn object_seconds() -> Vec<f64> {
        exponential(0.01, 1.5, 25)
    }

    pub fn compact_bytes() -> Vec<f64> {
        exponential(1024.0, 2.0, 16)
    }
}

/// A value that lives elsewhere and is read for each text; `None` leaves it out.
type Read = Box<dyn Fn() -> Option<f64> + Send + Sync>;

enum Value {
    Counter(Arc<Counter>),
    Time(Arc<TimeCounter>),
    Gauge(Arc<Gauge>),
    Histogram(Arc<Histogram>),
    Read(Read),
}

/// What a scraper is told a family is.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Kind {
    Counter,
    Gauge,
    Histogram,
}

type Labels = Vec<(&'static str, String)>;

struct Family {
    name: &'static str,
    help: &'static str,
    kind: Kind,
    children: Vec<(Labels, Value)>,
}

/// All numbers of one client. Asking for a number that is registered already answers the same one.
pub struct Registry {
    /// On every number that a scraper reads: instance, mount point, volume.
    constant: Vec<(String, String)>,
    families: Mutex<Vec<Family>>,
}

macro_rules! register {
    ($(#[$doc:meta])* $method:ident, $variant:ident($inner:ty), $kind:ident) => {
        $(#[$doc])*
        pub fn $method(&self, name: &'static str, help: &'static str, labels: &[(&'static str, &str)]) -> Arc<$inner> {
            self.child(name, help, Kind::$kind, labels, || Value::$variant(Arc::default()), |value| match value {
                Value::$variant(found) => Some(found.clone()),
                _ => None,
            })
        }
    };
}

impl Registry {
    /// Labels of the same name given later win, as the user's own labels do.
    pub fn new(constant: impl IntoIterator<Item = (String, String)>) -> Registry {
        let mut unique: Vec<(String, String)> = Vec::new();
        for (key, value) in constant {
            match unique.iter_mut().find(|(known, _)| *known == key) {
                Some(known) => known.1 = value,
                None => unique.push((key, value)),
            }
        }
        Registry { constant: unique, families: Mutex::default() }
    }

    register!(
        /// `name` is without the common prefix.
        counter, Counter(Counter), Counter
    );
    register!(
        /// As [`Registry::counter`], for time.
        time_counter, Time(TimeCounter), Counter
    );
    register!(
        /// As [`Registry::counter`], for what goes up and down.
        gauge, Gauge(Gauge), Gauge
    );

    /// As [`Registry::counter`], for a distribution.
    pub fn histogram(
        &self,
        name: &'static str,
        help: &'static str,
        labels: &[(&'static str, &str)],
        bounds: fn() -> Vec<f64>,
    ) -> Arc<Histogram> {
        let make = || Value::Histogram(Arc::new(Histogram::new(bounds())));
        self.child(name, help, Kind::Histogram, labels, make, |value| match value {
            Value::Histogram(found) => Some(found.clone()),
            _ => None,
        })
    }

    /// A number that lives elsewhere. A number that is there already is replaced.
    pub fn read(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &[(&'static str, &str)],
        read: impl Fn() -> Option<f64> + Send + Sync + 'static,
    ) {
        let mut families = self.families.lock();
        let family = family(&mut families, name, help, kind);
        family.children.retain(|(known, _)| !same(known, labels));
        family.children.push((owned(labels), Value::Read(Box::new(read))));
    }

    fn child<T>(
        &self,
        name: &'static str,
        help: &'static str,
        kind: Kind,
        labels: &[(&'static str, &str)],
        make: impl FnOnce() -> Value,
        pick: impl Fn(&Value) -> Option<T>,
    ) -> T {
        let mut families = self.families.lock();
        let family = family(&mut families, name, help, kind);
        let at = match family.children.iter().position(|(known, value)| same(known, labels) && pick(value).is_some()) {
            Some(at) => at,
            None => {
                family.children.push((owned(labels), make()));
                family.children.len() - 1
            }
        };
        pick(&family.children[at].1).expect("a child is found under the kind it was made with")
    }

    /// Uptime, processor time and memory of this process.
    pub fn register_process(&self) {
        let start = Instant::now();
        self.read("uptime", "Total running time in seconds.", Kind::Gauge, &[], move || {
            Some(start.elapsed().as_secs_f64())
        });
        self.read("cpu_usage", "Accumulated CPU usage in seconds.", Kind::Gauge, &[], cpu_seconds);
        self.read("memory", "Used memory in bytes.", Kind::Gauge, &[], resident_bytes);
    }

    /// One `name value` line per number: the labels `method` and `errno` are appended to the name, others are left out.
    pub fn stats_text(&self) -> String {
        let mut out = String::new();
        for family in self.families.lock().iter() {
            for (labels, value) in &family.children {
                let mut name = format!("{PREFIX}{}", family.name);
                for (_, value) in labels.iter().filter(|(key, _)| matches!(*key, "method" | "errno")) {
                    name.push('_');
                    name.push_str(value);
                }
                match value {
                    Value::Histogram(histogram) => {
                        line(&mut out, &format!("{name}_total"), "", histogram.count() as f64);
                        line(&mut out, &format!("{name}_sum"), "", histogram.sum());
                    }
                    other => {
                        if let Some(number) = other.number() {
                            line(&mut out, &name, "", number);
                        }
                    }
                }
            }
        }
        out
    }

    /// The Prometheus text format.
    pub fn prometheus_text(&self) -> String {
        let mut out = String::new();
        for family in self.families.lock().iter() {
            let kind = match family.kind {
                Kind::Counter => "counter",
                Kind::Gauge => "gauge",
                Kind::Histogram => "histogram",
            };
            let name = format!("{PREFIX}{}", family.name);
            let _ = writeln!(out, "# HELP {name} {}\n# TYPE {name} {kind}", family.help);
            for (labels, value) in &family.children {
                match value {
                    Value::Histogram(histogram) => {
                        let mut below = 0;
                        for (bound, bucket) in histogram.bounds.iter().zip(&histogram.buckets) {
                            below += bucket.load(Ordering::Relaxed);
                            let bound = bound.to_string();
                            line(&mut out, &format!("{name}_bucket"), &self.labels(labels, Some(&bound)), below as f64);
                        }
                        // A value observed meanwhile may be in a bucket and not yet in the count.
                        let count = histogram.count().max(below);
                        line(&mut out, &format!("{name}_bucket"), &self.labels(labels, Some("+Inf")), count as f64);
                        line(&mut out, &format!("{name}_sum"), &self.labels(labels, None), histogram.sum());
                        line(&mut out, &format!("{name}_count"), &self.labels(labels, None), count as f64);
                    }
                    other => {
                        if let Some(number) = other.number() {
                            line(&mut out, &name, &self.labels(labels, None), number);
                        }
                    }
                }
            }
        }
        out
    }

    fn labels(&self, own: &Labels, bound: Option<&str>) -> String {
        let constant = self.constant.iter().map(|(key, value)| (key.as_str(), value.as_str()));
        let own = own.iter().map(|(key, value)| (*key, value.as_str()));
        let pairs: Vec<String> = constant
            .chain(own)
            .chain(bound.map(|bound| ("le", bound)))
            .map(|(key, value)| {
                let value = value.replace('\\', "\\\\").replace('"', "\\\"").replace('\n', "\\n");
                format!("{key}=\"{value}\"")
            })
            .collect();
        if pairs.is_empty() { String::new() } else { format!("{{{}}}", pairs.join(",")) }
    }
}

impl Value {
    fn number(&self) -> Option<f64> {
        match self {
            Value::Counter(counter) => Some(counter.get() as f64),
            Value::Time(time) => Some(time.seconds()),
            Value::Gauge(gauge) => Some(gauge.get() as f64),
            Value::Read(read) => read(),
            Value::Histogram(_) => None,
        }
    }
}

fn family<'a>(families: &'a mut Vec<Family>, name: &'static str, help: &'static str, kind: Kind) -> &'a mut Family {
    let at = match families.binary_search_by(|family| family.name.cmp(name)) {
        Ok(at) => at,
        Err(at) => {
            families.insert(at, Family { name, help, kind, children: Vec::new() });
            at
        }
    };
    &mut families[at]
}

fn same(known: &Labels, labels: &[(&'static str, &str)]) -> bool {
    known.len() == labels.len() && known.iter().zip(labels).all(|(a, b)| a.0 == b.0 && a.1 == b.1)
}

fn owned(labels: &[(&'static str, &str)]) -> Labels {
    labels.iter().map(|(key, value)| (*key, value.to_string())).collect()
}

fn line(out: &mut String, name: &str, labels: &str, value: f64) {
    // `Display` of f64 is plain decimal, never with an exponent. Writing to a string does not fail.
    let _ = writeln!(out, "{name}{labels} {value}");
}

fn cpu_seconds() -> Option<f64> {
    let usage = nix::sys::resource::getrusage(nix::sys::resource::UsageWho::RUSAGE_SELF).ok()?;
    let seconds = |time: nix::sys::time::TimeVal| time.tv_sec() as f64 + time.tv_usec() as f64 / 1e6;
    Some(seconds(usage.user_time()) + seconds(usage.system_time()))
}

fn resident_bytes() -> Option<f64> {
    let pages: u64 = std::fs::read_to_string("/proc/self/statm").ok()?.split(' ').nth(1)?.parse().ok()?;
    let page = nix::unistd::sysconf(nix::unistd::SysconfVar::PAGE_SIZE).ok()??;
    Some((pages * u64::try_from(page).ok()?) as f64)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn registry() -> Registry {
        let registry = Registry::new([("mp".to_string(), "/mnt \"x\"".to_string())]);
        registry.counter("fuse_ops_total", "Operations.", &[("method", "read")]).add(224);
        registry.counter("fuse_ops_io_errors", "Errors.", &[("errno", "ENOENT")]).increment();
        registry
            .time_counter("fuse_ops_durations_seconds", "Time.", &[("method", "read")])
            .add(Duration::from_millis(1500));
        registry.gauge("used_space", "Used.", &[]).set(-3);
        let labels = [("method", "GET"), ("storage_class", "IA")];
        let gets =
            registry.histogram("object_request_durations_histogram_seconds", "GETs.", &labels, buckets::object_seconds);
        gets.observe_time(Duration::from_millis(200));
        gets.observe(1e9);
        registry
    }

    #[test]
    fn stats_lines_have_the_names_that_tools_read() {
        assert_eq!(
            registry().stats_text(),
            "juicefs_fuse_ops_durations_seconds_read 1.5\n\
             juicefs_fuse_ops_io_errors_ENOENT 1\n\
             juicefs_fuse_ops_total_read 224\n\
             juicefs_object_request_durations_histogram_seconds_GET_total 2\n\
             juicefs_object_request_durations_histogram_seconds_GET_sum 1000000000.2\n\
             juicefs_used_space -3\n"
        );
    }

    #[test]
    fn prometheus_sees_labels_types_and_cumulative_buckets() {
        let text = registry().prometheus_text();
        assert!(
            text.contains("# TYPE juicefs_used_space gauge\njuicefs_used_space{mp=\"/mnt \\\"x\\\"\"} -3\n"),
            "{text}"
        );
        let name = "juicefs_object_request_durations_histogram_seconds";
        let bucket = |le: &str| {
            format!("{name}_bucket{{mp=\"/mnt \\\"x\\\"\",method=\"GET\",storage_class=\"IA\",le=\"{le}\"}}")
        };
        assert!(text.contains(&format!("{} 0\n", bucket("0.01"))), "{text}");
        assert!(text.contains(&format!("{} 2\n", bucket("+Inf"))));
        assert_eq!(text.matches("_bucket{").count(), 26);
        assert_eq!(text.matches(" 1\n").count() > 10, true, "buckets are cumulative");
    }

    #[test]
    fn asking_twice_answers_the_same_number() {
        let registry = Registry::new([]);
        registry.counter("a", "A.", &[]).add(1);
        registry.counter("a", "A.", &[]).add(2);
        registry.counter("a", "A.", &[("method", "x")]).add(5);
        registry.read("b", "B.", Kind::Gauge, &[], || None);
        assert_eq!(registry.stats_text(), "juicefs_a 3\njuicefs_a_x 5\n");
    }

    #[test]
    fn later_constant_labels_win() {
        let registry =
            Registry::new([("mp", "a"), ("x", "y"), ("mp", "b")].map(|(k, v)| (k.to_string(), v.to_string())));
        registry.gauge("g", "G.", &[]);
        assert!(registry.prometheus_text().contains("juicefs_g{mp=\"b\",x=\"y\"} 0\n"));
    }

    #[test]
    fn the_process_has_numbers() {
        let registry = Registry::new([]);
        registry.register_process();
        let text = registry.stats_text();
        assert!(
            text.contains("juicefs_cpu_usage ") && text.contains("juicefs_memory ") && text.contains("juicefs_uptime ")
        );
    }

    #[test]
    fn bounds_follow_their_formulas() {
        assert_eq!(exponential(1.0, 2.0, 4), [1.0, 2.0, 4.0, 8.0]);
        assert_eq!(linear(4096.0, 4096.0, 2), [4096.0, 8192.0]);
    }
}
