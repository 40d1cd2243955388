//! `Fault`: something *broke* below. It carries what was attempted, on what, why it failed, and whether trying
//! again can help. `Stop` is what an operation returns early with: an answer or a fault.

use super::Errno;
use std::borrow::Cow;
use std::error::Error;
use std::fmt;

/// What sort of thing broke. Each kind has one errno (`FaultKind::errno`) and one default retry class.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum FaultKind {
    /// Another client changed what the decision stood on.
    Conflict,
    /// The other side cannot be reached or says it cannot serve now.
    Unavailable,
    /// The other side asks for fewer requests.
    Throttled,
    /// A deadline of ours passed.
    Timeout,
    /// The request may or may not have been applied.
    Undetermined,
    /// Credentials or permissions are not enough.
    Denied,
    /// The thing itself (an object, a table) is not there.
    NotFound,
    /// Bytes came back that do not match their checksum or their length.
    Integrity,
    /// A stored record does not decode.
    Corrupt,
    /// The other side cannot do this at all.
    Unsupported,
    /// A setting is wrong.
    Config,
    /// The other side is full.
    Full,
    /// A broken promise of our own.
    Internal,
}

/// Whether trying again can help.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash)]
pub enum Retry {
    Now,
    Later,
    Never,
    /// The request may have been applied; look before trying again.
    Unknown,
}

impl FaultKind {
    pub fn retry(self) -> Retry {
        match self {
            FaultKind::Conflict => Retry::Now,
            FaultKind::Unavailable | FaultKind::Throttled | FaultKind::Timeout | FaultKind::Integrity => Retry::Later,
            FaultKind::Undetermined => Retry::Unknown,
            FaultKind::Denied
            | FaultKind::NotFound
            | FaultKind::Corrupt
            | FaultKind::Unsupported
            | FaultKind::Config
            | FaultKind::Full
            | FaultKind::Internal => Retry::Never,
        }
    }

    /// The answer an application sees for a fault of this kind.
    pub fn errno(self) -> Errno {
        match self {
            FaultKind::Conflict
            | FaultKind::Unavailable
            | FaultKind::Throttled
            | FaultKind::Timeout
            | FaultKind::Undetermined
            | FaultKind::NotFound
            | FaultKind::Integrity
            | FaultKind::Corrupt
            | FaultKind::Config
            | FaultKind::Internal => Errno::EIO,
            FaultKind::Denied => Errno::EACCES,
            FaultKind::Unsupported => Errno::EOPNOTSUPP,
            FaultKind::Full => Errno::ENOSPC,
        }
    }
}

/// The text on one line: control characters are escaped. What is told may come from a volume, a server or a command
/// line, and must neither end the line nor speak to the terminal.
pub fn one_line(text: &str) -> Cow<'_, str> {
    if !text.chars().any(char::is_control) {
        return Cow::Borrowed(text);
    }
    let shown = |c: char| if c.is_control() { c.escape_default().to_string() } else { c.to_string() };
    Cow::Owned(text.chars().map(shown).collect())
}

/// A failure of something below, with its story.
pub struct Fault(Box<Inner>);

struct Inner {
    kind: FaultKind,
    operation: Cow<'static, str>,
    /// Tried for long enough already, by others.
    is_final: bool,
    context: Vec<(&'static str, String)>,
    source: Option<Box<dyn Error + Send + Sync>>,
}

macro_rules! constructors {
    ($($name:ident => $kind:ident),* $(,)?) => {
        $(pub fn $name(operation: impl Into<Cow<'static, str>>) -> Fault {
            Fault::new(FaultKind::$kind, operation)
        })*
    };
}

impl Fault {
    /// `operation` says what was attempted, in the infinitive: "read block", "commit create".
    pub fn new(kind: FaultKind, operation: impl Into<Cow<'static, str>>) -> Fault {
        Fault(Box::new(Inner { kind, operation: operation.into(), is_final: false, context: Vec::new(), source: None }))
    }

    constructors! {
        conflict => Conflict, unavailable => Unavailable, throttled => Throttled, timeout => Timeout,
        undetermined => Undetermined, denied => Denied, not_found => NotFound, integrity => Integrity,
        corrupt => Corrupt, unsupported => Unsupported, config => Config, full => Full, internal => Internal,
    }

    /// Adds what it happened to: `.with("key", key)`. Never a secret: faults are logged.
    pub fn with(mut self, key: &'static str, value: impl fmt::Display) -> Fault {
        self.0.context.push((key, value.to_string()));
        self
    }

    /// Adds the cause.
    pub fn source(mut self, source: impl Into<Box<dyn Error + Send + Sync>>) -> Fault {
        self.0.source = Some(source.into());
        self
    }

    /// Trying again has been tried for as long as anybody should wait.
    pub fn final_already(mut self) -> Fault {
        self.0.is_final = true;
        self
    }

    pub fn kind(&self) -> FaultKind {
        self.0.kind
    }

    pub fn retry(&self) -> Retry {
        if self.0.is_final { Retry::Never } else { self.0.kind.retry() }
    }

    pub fn errno(&self) -> Errno {
        self.0.kind.errno()
    }
}

/// One line with the whole chain: `read block failed (unavailable): key=…: connection refused`.
impl fmt::Display for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{} failed ({})", self.0.operation, format!("{:?}", self.0.kind).to_lowercase())?;
        for (i, (key, value)) in self.0.context.iter().enumerate() {
            write!(f, "{}{key}={}", if i == 0 { ": " } else { ", " }, one_line(value))?;
        }
        let mut cause: Option<&(dyn Error + 'static)> = self.0.source.as_deref().map(|e| e as _);
        let mut last = String::new();
        while let Some(e) = cause {
            let said = e.to_string();
            // Many libraries say what their cause says.
            if said != last {
                write!(f, ": {}", one_line(&said))?;
            }
            (last, cause) = (said, e.source());
        }
        Ok(())
    }
}

impl fmt::Debug for Fault {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        fmt::Display::fmt(self, f)
    }
}

/// The chain is part of the text already, so no `source()` is offered that would print it twice.
impl Error for Fault {}

/// What an operation returns early with.
pub enum Stop {
    Errno(Errno),
    Fault(Fault),
}

/// The result of an operation of the file system.
pub type Outcome<T> = Result<T, Stop>;

impl Stop {
    /// The answer an application sees.
    pub fn errno(&self) -> Errno {
        match self {
            Stop::Errno(errno) => *errno,
            Stop::Fault(fault) => fault.errno(),
        }
    }
}

impl From<Errno> for Stop {
    fn from(errno: Errno) -> Stop {
        Stop::Errno(errno)
    }
}

impl From<Fault> for Stop {
    fn from(fault: Fault) -> Stop {
        Stop::Fault(fault)
    }
}

impl fmt::Display for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Errno(errno) => fmt::Display::fmt(errno, f),
            Stop::Fault(fault) => fmt::Display::fmt(fault, f),
        }
    }
}

impl fmt::Debug for Stop {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Stop::Errno(errno) => fmt::Debug::fmt(errno, f),
            Stop::Fault(fault) => fmt::Debug::fmt(fault, f),
        }
    }
}

impl Error for Stop {}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fault_tells_its_whole_story_in_one_line() {
        let fault = Fault::unavailable("read block")
            .with("key", "chunks/0/0/1_0_5")
            .with("try", 3)
            .source("connection refused");
        assert_eq!(
            fault.to_string(),
            "read block failed (unavailable): key=chunks/0/0/1_0_5, try=3: connection refused"
        );
        assert_eq!(Stop::from(fault).errno(), Errno::EIO);
        let hostile = Fault::corrupt("read").with("name", "a\nb\u{1b}[2J").source("x\r\ny");
        assert_eq!(hostile.to_string(), "read failed (corrupt): name=a\\nb\\u{1b}[2J: x\\r\\ny");
    }
}
