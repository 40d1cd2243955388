//! Log lines on standard error, one event a line (`spec/surface.md` 1.3):
//!
//! ```text
//! [log-id ]2026/11/29 13:01:12.655196 sluicefs[19126] <INFO>: message key=value [module@file.rs:645]
//! ```
//!
//! A background process has its standard error open on its log file, so there is one sink. Local time, as people read
//! logs beside clocks. Other crates are heard from WARN on: what they say below that may repeat requests, and requests
//! carry credentials. A place that warns again and again is heard a few times a minute ([`super::damper`]).

use super::damper::Damper;
use std::fmt;
use tracing::{Event, Level, Subscriber};
use tracing_subscriber::filter::{LevelFilter, Targets};
use tracing_subscriber::fmt::format::Writer;
use tracing_subscriber::fmt::{FmtContext, FormatEvent, FormatFields, FormattedFields};
use tracing_subscriber::layer::SubscriberExt;
use tracing_subscriber::registry::LookupSpan;
use tracing_subscriber::util::SubscriberInitExt;

/// The name in front of every line.
const PROCESS: &str = "sluicefs";

/// An event with this target is the last word of a process that gives up: it is shown as FATAL.
pub const FATAL: &str = "sluicefs::fatal";

/// Events with this target say that something took long: no faults, but as many as those when everything does.
pub const SLOW: &str = "sluicefs::slow";

/// Events with this target are what a command was asked for, such as the findings of a check: each line counts, however
/// many there are.
pub const REPORT: &str = "sluicefs::report";

/// What is logged, and how.
#[derive(Clone, Debug)]
pub struct LogSettings {
    pub level: LevelFilter,
    /// Stands before every line.
    pub id: Option<String>,
    pub color: bool,
}

impl Default for LogSettings {
    fn default() -> LogSettings {
        LogSettings { level: LevelFilter::INFO, id: None, color: false }
    }
}

/// A level by the peer's name for it. FATAL and PANIC have no level of their own and are always shown.
pub fn level_by_name(name: &str) -> Option<LevelFilter> {
    Some(match name.to_lowercase().as_str() {
        "trace" => LevelFilter::TRACE,
        "debug" => LevelFilter::DEBUG,
        "info" => LevelFilter::INFO,
        "warn" | "warning" => LevelFilter::WARN,
        "error" | "fatal" | "panic" => LevelFilter::ERROR,
        _ => return None,
    })
}

/// Starts logging for the whole process; a second call changes nothing.
pub fn start(settings: &LogSettings) {
    let others = settings.level.min(LevelFilter::WARN);
    let filter = Targets::new()
        .with_default(others)
        // It calls an error that the kernel takes no reply to a request whose caller was killed, or to a mount that is
        // gone; neither is one.
        .with_target("fuser::reply", LevelFilter::OFF)
        // In unoptimised builds it calls every upload that is given up, as by an unmount amid a compaction, a bug.
        .with_target("opendal_core::layers::complete", LevelFilter::ERROR)
        .with_target("sluicefs", settings.level)
        .with_target("sluice", settings.level)
        .with_target(FATAL, LevelFilter::ERROR);
    let lines = tracing_subscriber::fmt::layer()
        .with_writer(std::io::stderr)
        .with_ansi(settings.color)
        .event_format(Lines::new(settings.id.clone(), std::process::id(), settings.color));
    // Fails only when a subscriber is already there, as in tests that run commands in one process.
    let _ = tracing_subscriber::registry().with(filter).with(lines).try_init();
}

struct Lines {
    id: Option<String>,
    pid: u32,
    color: bool,
    damper: Damper,
}

impl Lines {
    fn new(id: Option<String>, pid: u32, color: bool) -> Lines {
        Lines { id, pid, color, damper: Damper::default() }
    }

    fn level(&self, writer: &mut Writer<'_>, level: &Level, fatal: bool) -> fmt::Result {
        let (name, color) = match *level {
            _ if fatal => ("FATAL", 31),
            Level::TRACE => ("TRACE", 36),
            Level::DEBUG => ("DEBUG", 37),
            Level::INFO => ("INFO", 34),
            Level::WARN => ("WARNING", 33),
            Level::ERROR => ("ERROR", 31),
        };
        if self.color { write!(writer, "\x1b[1;{color}m<{name}>\x1b[0m") } else { write!(writer, "<{name}>") }
    }
}

impl<S, N> FormatEvent<S, N> for Lines
where
    S: Subscriber + for<'a> LookupSpan<'a>,
    N: for<'a> FormatFields<'a> + 'static,
{
    fn format_event(&self, ctx: &FmtContext<'_, S, N>, mut writer: Writer<'_>, event: &Event<'_>) -> fmt::Result {
        let metadata = event.metadata();
        // Nothing written is no line.
        let Some(left_out) = self.damper.admit(metadata) else { return Ok(()) };
        if let Some(id) = &self.id {
            write!(writer, "[{id}] ")?;
        }
        let now = jiff::Zoned::now();
        write!(writer, "{} {PROCESS}[{}] ", now.strftime("%Y/%m/%d %H:%M:%S%.6f"), self.pid)?;
        self.level(&mut writer, metadata.level(), metadata.target() == FATAL)?;
        writer.write_str(": ")?;
        ctx.format_fields(writer.by_ref(), event)?;
        for span in ctx.event_scope().into_iter().flatten() {
            if let Some(fields) = span.extensions().get::<FormattedFields<N>>()
                && !fields.is_empty()
            {
                write!(writer, " {fields}")?;
            }
        }
        if left_out > 0 {
            write!(writer, " ({left_out} lines like this were left out)")?;
        }
        let module = metadata.module_path().and_then(|path| path.rsplit("::").next()).unwrap_or("main");
        let file = metadata.file().and_then(|path| path.rsplit('/').next()).unwrap_or("?");
        writeln!(writer, " [{module}@{file}:{}]", metadata.line().unwrap_or(0))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::io::Write;
    use std::sync::{Arc, Mutex};

    #[derive(Clone, Default)]
    struct Sink(Arc<Mutex<Vec<u8>>>);

    impl Write for Sink {
        fn write(&mut self, bytes: &[u8]) -> std::io::Result<usize> {
            self.0.lock().unwrap().write(bytes)
        }

        fn flush(&mut self) -> std::io::Result<()> {
            Ok(())
        }
    }

    fn logged(lines: Lines, emit: impl FnOnce()) -> String {
        let sink = Sink::default();
        let writer = sink.clone();
        let layer =
            tracing_subscriber::fmt::layer().with_writer(move || writer.clone()).with_ansi(false).event_format(lines);
        tracing::subscriber::with_default(tracing_subscriber::registry().with(layer), emit);
        String::from_utf8(sink.0.lock().unwrap().clone()).unwrap()
    }

    #[test]
    fn a_line_has_the_form_that_scripts_parse() {
        let text = logged(Lines::new(Some("job".into()), 42, false), || {
            let _span = tracing::error_span!("mount", inode = 7).entered();
            tracing::warn!(key = "x", "slow block");
        });
        let (head, rest) = text.split_once(" sluicefs[42] ").unwrap();
        assert!(rest.starts_with("<WARNING>: slow block key=\"x\" inode=7 [tests@log.rs:"), "{rest}");
        assert!(rest.ends_with("]\n"));
        let time = head.strip_prefix("[job] ").unwrap();
        assert_eq!(time.len(), "2026/11/29 13:01:12.655196".len(), "{time}");
        let digits = |c: char| if c.is_ascii_digit() { '9' } else { c };
        assert_eq!(time.chars().map(digits).collect::<String>(), "9999/99/99 99:99:99.999999");
    }

    #[test]
    fn a_flood_is_one_place_s_own() {
        let text = logged(Lines::new(None, 1, false), || {
            for n in 0..1000 {
                tracing::warn!(n, "the same again");
            }
            tracing::warn!("another");
            for n in 0..1000 {
                tracing::info!(n, "no fault");
            }
        });
        let count = |words: &str| text.lines().filter(|line| line.contains(words)).count();
        assert!((1..=20).contains(&count("the same again")), "{}", count("the same again"));
        assert_eq!((count("another"), count("no fault")), (1, 1000));
    }

    #[test]
    fn the_last_word_is_fatal() {
        let text = logged(Lines::new(None, 1, true), || tracing::error!(target: FATAL, "gave up"));
        assert!(text.contains("\x1b[1;31m<FATAL>\x1b[0m: gave up ["), "{text}");
    }

    #[test]
    fn levels_have_the_names_of_the_peer() {
        assert_eq!(level_by_name("Warn"), Some(LevelFilter::WARN));
        assert_eq!(level_by_name("fatal"), Some(LevelFilter::ERROR));
        assert_eq!(level_by_name("loud"), None);
    }
}
