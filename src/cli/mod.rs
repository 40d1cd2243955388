//! The commands: parse, run, answer.
//!
//! One file per command. [`main`] turns the words of the command line into a command, runs it and makes its result the
//! exit code: 0, or 1 with one FATAL line that says why. Options keep the names, places and defaults that scripts written
//! for the peer use ([`args`], [`options`]). Results go to standard output, log lines to standard error; no secret goes to
//! either.

pub mod args;
pub mod compact;
pub mod config;
pub mod control;
pub mod daemon;
pub mod destroy;
pub mod dump;
pub mod format;
pub mod fsck;
pub mod fstab;
#[cfg(any(test, feature = "fuzzing"))]
pub mod fuzz;
pub mod gc;
pub mod helper;
pub mod info;
pub mod load;
pub mod mount;
pub mod open;
pub mod options;
pub mod progress;
pub mod restore;
pub mod rmr;
pub mod serve;
pub mod signal;
pub mod status;
pub mod umount;

use crate::base::fault::one_line;
use crate::config::volume::COMPATIBLE_VERSION;
use crate::telemetry::log::{self, FATAL, LogSettings};
use anyhow::Context as _;
use args::Usage;
use clap::{ArgAction, CommandFactory, FromArgMatches, Parser, Subcommand};
use std::ffi::OsString;
use std::io::IsTerminal as _;
use std::process::ExitCode;
use tracing_subscriber::filter::LevelFilter;

/// A POSIX file system over object storage, byte-compatible with JuiceFS volumes.
#[derive(Parser)]
#[command(name = "sluice", version = version_text(), disable_version_flag = true, args_override_self = true)]
pub struct Cli {
    #[command(flatten)]
    globals: Globals,
    #[command(subcommand)]
    command: Option<Command>,
}

#[derive(clap::Args, Default)]
#[command(next_help_heading = "Global options")]
pub struct Globals {
    /// Show debug messages
    #[arg(short, long, alias = "debug")]
    verbose: bool,
    /// Show warnings and errors only
    #[arg(short, long)]
    quiet: bool,
    /// Show everything
    #[arg(long)]
    trace: bool,
    /// Wins over the three above
    #[arg(long, value_name = "LEVEL", hide = true)]
    log_level: Option<String>,
    /// Put this in front of every log line; "random" for a new UUID
    #[arg(long, value_name = "ID")]
    log_id: Option<String>,
    /// Accepted: there is no profiling agent to switch off
    #[arg(long)]
    no_agent: bool,
    /// Accepted without effect
    #[arg(long, value_name = "ADDR", hide = true)]
    pyroscope: Option<String>,
    /// No colours
    #[arg(long)]
    no_color: bool,
    /// Print the version
    #[arg(short = 'V', long, action = ArgAction::Version)]
    version: Option<bool>,
}

#[derive(Subcommand)]
enum Command {
    /// Make a volume
    Format(format::Args),
    /// Show or change the configuration of a volume
    Config(config::Args),
    /// Show a volume and who uses it
    Status(status::Args),
    /// Remove a volume with all its data
    Destroy(destroy::Args),
    /// Show what a file is made of
    Info(info::Args),
    /// Mount a volume
    Mount(Box<mount::Args>),
    /// Unmount a volume
    Umount(umount::Args),
    /// Check a volume, and repair it
    Fsck(fsck::Args),
    /// Find what the store holds for nobody, and remove it
    Gc(gc::Args),
    /// Rewrite chunks of many slices as one each
    Compact(compact::Args),
    /// Remove directories with everything in them, fast
    Rmr(rmr::Args),
    /// Bring back what lies in the trash
    Restore(restore::Args),
    /// Write the metadata of a volume into a file
    Dump(dump::Args),
    /// Load a dump into an empty metadata engine
    Load(load::Args),
    /// Show the version
    Version,
}

fn version_text() -> String {
    format!("{} (volumes of JuiceFS {COMPATIBLE_VERSION})", env!("CARGO_PKG_VERSION"))
}

impl Globals {
    fn log_settings(&self) -> anyhow::Result<LogSettings> {
        let level = match &self.log_level {
            Some(name) => log::level_by_name(name).with_context(|| format!("unknown log level: \"{name}\""))?,
            None if self.trace => LevelFilter::TRACE,
            None if self.verbose => LevelFilter::DEBUG,
            None if self.quiet => LevelFilter::WARN,
            None => LevelFilter::INFO,
        };
        let id = match self.log_id.as_deref() {
            Some("random") => Some(uuid::Uuid::new_v4().to_string()),
            other => other.filter(|id| !id.is_empty()).map(str::to_string),
        };
        Ok(LogSettings { level, id, color: !self.no_color && std::io::stderr().is_terminal() })
    }
}

/// Runs the program: `words` is its command line with its own name first.
pub fn main(words: Vec<OsString>) -> ExitCode {
    // Before anything is allocated, if it can be; a mount does it once more, and tells when it can not.
    let _told_by_the_mount = mount::without_huge_pages();
    let mut words = words.into_iter();
    let name = words.next().unwrap_or_default();
    let words: Vec<OsString> = words.collect();
    let words = if helper::is_called_by(&name) {
        match helper::translate(&words) {
            Ok(words) => words,
            Err(error) => return give_up(&LogSettings::default(), &format!("{error:#}")),
        }
    } else {
        words
    };
    let mut root = Cli::command();
    root.build();
    let parsed = match args::prepare(&root, words) {
        Ok(words) => words,
        Err(Usage::Arguments(lines)) => {
            println!("{lines}");
            return ExitCode::FAILURE;
        }
        Err(usage) => {
            if let Usage::UnknownCommand { command, .. } = &usage {
                println!("No help topic for '{}'", one_line(command));
            }
            return give_up(&LogSettings::default(), &usage.to_string());
        }
    };
    let cli = match root.try_get_matches_from(parsed).and_then(|mut matches| Cli::from_arg_matches_mut(&mut matches)) {
        Ok(cli) => cli,
        Err(error) if !error.use_stderr() => {
            // Help or version; that standard output is closed is no reason to fail.
            let _ = error.print();
            return ExitCode::SUCCESS;
        }
        Err(error) => {
            let text = error.to_string();
            let line = text.lines().next().unwrap_or_default();
            return give_up(&LogSettings::default(), line.strip_prefix("error: ").unwrap_or(line));
        }
    };
    let settings = match cli.globals.log_settings() {
        Ok(settings) => settings,
        Err(error) => return give_up(&LogSettings::default(), &format!("{error:#}")),
    };
    log::start(&settings);
    if cli.globals.pyroscope.is_some() {
        tracing::warn!("pyroscope has no effect in this build");
    }
    let Some(command) = cli.command else {
        let _ = Cli::command().print_help();
        return ExitCode::SUCCESS;
    };
    match run(command) {
        Ok(code) => code,
        Err(error) => give_up(&settings, &format!("{error:#}")),
    }
}

fn run(command: Command) -> anyhow::Result<ExitCode> {
    match command {
        Command::Format(args) => block_on(format::run(args))?,
        Command::Config(args) => block_on(config::run(args))?,
        Command::Status(args) => block_on(status::run(args))?,
        Command::Destroy(args) => block_on(destroy::run(args))?,
        Command::Info(args) => info::run(args)?,
        Command::Mount(args) => return mount::run(*args),
        Command::Umount(args) => umount::run(args)?,
        Command::Fsck(args) => return block_on(fsck::run(args)),
        Command::Gc(args) => block_on(gc::run(args))?,
        Command::Compact(args) => compact::run(args)?,
        Command::Rmr(args) => rmr::run(args)?,
        Command::Restore(args) => block_on(restore::run(args))?,
        Command::Dump(args) => block_on(dump::run(args))?,
        Command::Load(args) => block_on(load::run(args))?,
        Command::Version => println!("sluice {}", version_text()),
    }
    Ok(ExitCode::SUCCESS)
}

/// Runs a tool that does a little I/O: one thread is enough.
fn block_on<T>(future: impl Future<Output = anyhow::Result<T>>) -> anyhow::Result<T> {
    let runtime = tokio::runtime::Builder::new_multi_thread().worker_threads(1).enable_all().build();
    runtime.context("start the runtime")?.block_on(future)
}

fn give_up(settings: &LogSettings, why: &str) -> ExitCode {
    log::start(settings);
    tracing::error!(target: FATAL, "{}", one_line(why));
    ExitCode::FAILURE
}

/// Asks on standard output and reads one line of standard input; the end of input is a no.
fn proceed_anyway() -> anyhow::Result<()> {
    use std::io::Write as _;
    print!("Proceed anyway? [y/N]: ");
    std::io::stdout().flush().context("ask")?;
    let mut line = String::new();
    std::io::stdin().read_line(&mut line).context("read the answer")?;
    match line.trim().to_lowercase().as_str() {
        "y" | "yes" => Ok(()),
        _ => anyhow::bail!("Aborted."),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_command_line_is_consistent() {
        Cli::command().debug_assert();
    }

    #[test]
    fn every_option_has_a_long_name() {
        // `args::prepare` writes options by their long names.
        let mut root = Cli::command();
        root.build();
        for command in root.get_subcommands().chain([&root]) {
            for arg in command.get_arguments().filter(|arg| !arg.is_positional()) {
                assert!(arg.get_long().is_some(), "{} {}", command.get_name(), arg.get_id());
            }
        }
    }
}
