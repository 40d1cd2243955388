//! Client versions, as the gates of a volume compare them.

use super::{ConfigError, ConfigResult};
use std::fmt;
use std::str::FromStr;

/// What we are for the version gates of a volume: this build follows the rules of the peer's 1.4.2.
pub const COMPATIBLE_VERSION: &str = "1.4.2";

/// The version text of a session record: the part before `+` is what peers compare, the rest tells people who we are.
pub const SESSION_VERSION: &str = concat!("1.4.2+sluicefs-", env!("CARGO_PKG_VERSION"));

/// A client version: `major.minor.patch[-prerelease][+build]`. The order is that of the version gates: the build does not
/// count, a version without prerelease is above one with, two prereleases compare as text.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Version {
    numbers: [u64; 3],
    prerelease: Option<String>,
}

impl Version {
    /// What this client counts as.
    pub fn ours() -> Version {
        COMPATIBLE_VERSION.parse().expect("our own version is well-formed")
    }
}

impl FromStr for Version {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Version> {
        let parse = || {
            let text = text.strip_prefix('v').unwrap_or(text);
            let core = text.split_once('+').map_or(text, |(core, _)| core);
            let (numbers, prerelease) = match core.split_once('-') {
                Some((numbers, prerelease)) => (numbers, Some(prerelease.to_string())),
                None => (core, None),
            };
            let mut parts = numbers.split('.').map(|n| n.parse::<u64>().ok());
            let numbers = [parts.next()??, parts.next()??, parts.next()??];
            if parts.next().is_some() { None } else { Some(Version { numbers, prerelease }) }
        };
        parse().ok_or_else(|| ConfigError::new(format!("invalid version string: {text}")))
    }
}

impl Ord for Version {
    fn cmp(&self, other: &Version) -> std::cmp::Ordering {
        self.numbers.cmp(&other.numbers).then_with(|| match (&self.prerelease, &other.prerelease) {
            (None, None) => std::cmp::Ordering::Equal,
            (None, Some(_)) => std::cmp::Ordering::Greater,
            (Some(_), None) => std::cmp::Ordering::Less,
            (Some(a), Some(b)) => a.cmp(b),
        })
    }
}

impl PartialOrd for Version {
    fn partial_cmp(&self, other: &Version) -> Option<std::cmp::Ordering> {
        Some(self.cmp(other))
    }
}

impl fmt::Display for Version {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [major, minor, patch] = self.numbers;
        write!(f, "{major}.{minor}.{patch}")?;
        self.prerelease.iter().try_for_each(|pre| write!(f, "-{pre}"))
    }
}
