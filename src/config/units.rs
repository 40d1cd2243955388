//! Sizes, durations, bandwidths and the other small values of the command line (`spec/surface.md` 1.2).
//!
//! The accepted forms are those of the peer, so that scripts carry over. One difference is wanted: a duration that does
//! not parse is refused, where the peer warns and goes on with zero, which silently switches a cache off.

use super::{ConfigError, ConfigResult};
use std::fmt;
use std::str::FromStr;
use std::time::Duration;

/// A number of bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Size(pub u64);

/// What a size without a letter is counted in; each option has its own.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    Byte,
    KiB,
    MiB,
    GiB,
}

impl Unit {
    fn shift(self) -> u32 {
        match self {
            Unit::Byte => 0,
            Unit::KiB => 10,
            Unit::MiB => 20,
            Unit::GiB => 30,
        }
    }
}

impl Size {
    pub const fn mib(count: u64) -> Size {
        Size(count << 20)
    }

    pub const fn gib(count: u64) -> Size {
        Size(count << 30)
    }

    pub fn bytes(self) -> u64 {
        self.0
    }

    /// A number, decimals allowed, and at most one letter of `B K M G T P E` (powers of 1024, either case).
    pub fn parse(text: &str, unit: Unit) -> ConfigResult<Size> {
        let wrong = |why: &str| {
            ConfigError::new(format!(
                "invalid size \"{text}\": {why}; expected a number with at most one letter of B K M G T P E, such as 300M"
            ))
        };
        let text = text.trim();
        let last = text.chars().last().ok_or_else(|| wrong("it is empty"))?;
        let (number, shift) = match last.to_ascii_uppercase() {
            'B' => (&text[..text.len() - 1], 0),
            'K' => (&text[..text.len() - 1], 10),
            'M' => (&text[..text.len() - 1], 20),
            'G' => (&text[..text.len() - 1], 30),
            'T' => (&text[..text.len() - 1], 40),
            'P' => (&text[..text.len() - 1], 50),
            'E' => (&text[..text.len() - 1], 60),
            _ => (text, unit.shift()),
        };
        if let Ok(whole) = number.parse::<u64>() {
            let bytes = whole.checked_mul(1 << shift).ok_or_else(|| wrong("it is too large"))?;
            return Ok(Size(bytes));
        }
        let number = decimal(number).ok_or_else(|| wrong("it is not a number"))?;
        let bytes = number * (1u64 << shift) as f64;
        if bytes >= u64::MAX as f64 { Err(wrong("it is too large")) } else { Ok(Size(bytes as u64)) }
    }
}

/// `10 GiB`, `1.5 MiB`, `0 B`: one decimal below ten, as the peer prints them.
impl fmt::Display for Size {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        if self.0 < 10 {
            return write!(f, "{} B", self.0);
        }
        let mut value = self.0 as f64;
        let mut names = ["B", "KiB", "MiB", "GiB", "TiB", "PiB", "EiB"].into_iter();
        let mut name = names.next().expect("the list is not empty");
        while value >= 1024.0 {
            let Some(next) = names.next() else { break };
            (value, name) = (value / 1024.0, next);
        }
        let value = (value * 10.0 + 0.5).floor() / 10.0;
        if value < 10.0 { write!(f, "{value:.1} {name}") } else { write!(f, "{value:.0} {name}") }
    }
}

/// A bandwidth in whole Mbit/s (10^6 bits), as the volume record stores it; 0 is "no limit".
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Bandwidth(pub i64);

impl Bandwidth {
    /// Whole Mbit/s, 0 for "no limit".
    pub fn mbps(self) -> u64 {
        u64::try_from(self.0).unwrap_or(0)
    }

    /// The limit in bytes per second, `None` for "no limit".
    pub fn bytes_per_second(self) -> Option<u64> {
        Some(self.mbps()).filter(|mbps| *mbps > 0).map(|mbps| mbps.saturating_mul(1_000_000 / 8))
    }
}

/// A number and at most one letter of `M G T P` (powers of 1000 of Mbit/s).
impl FromStr for Bandwidth {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Bandwidth> {
        let wrong = || {
            ConfigError::new(format!(
                "invalid bandwidth \"{text}\": expected Mbit/s as a number with at most one letter of M G T P, such as 800 or 10G"
            ))
        };
        let text = text.trim();
        let (number, factor) = match text.chars().last().ok_or_else(wrong)?.to_ascii_uppercase() {
            'M' => (&text[..text.len() - 1], 1.0),
            'G' => (&text[..text.len() - 1], 1e3),
            'T' => (&text[..text.len() - 1], 1e6),
            'P' => (&text[..text.len() - 1], 1e9),
            _ => (text, 1.0),
        };
        let mbps = decimal(number).ok_or_else(wrong)? * factor;
        if mbps > 1e15 { Err(wrong()) } else { Ok(Bandwidth(mbps as i64)) }
    }
}

/// `100.0 Mbps`, `1.5 Gbps`.
impl fmt::Display for Bandwidth {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let mut value = self.0 as f64;
        let mut name = "Mbps";
        for next in ["Gbps", "Tbps", "Pbps"] {
            if value < 1000.0 {
                break;
            }
            (value, name) = (value / 1000.0, next);
        }
        write!(f, "{value:.1} {name}")
    }
}

/// A non-negative decimal number without exponent, sign, `inf` or `nan`, which `f64::from_str` would all take.
fn decimal(text: &str) -> Option<f64> {
    let plain = !text.is_empty() && text.bytes().all(|b| b.is_ascii_digit() || b == b'.');
    if plain { text.parse().ok() } else { None }
}

/// A plain number is seconds; otherwise Go's form (`1h30m`, `300ms`), optionally after a number of days (`1d12h`).
pub fn parse_duration(text: &str) -> ConfigResult<Duration> {
    let wrong = |why: &str| {
        ConfigError::new(format!(
            "invalid duration \"{text}\": {why}; expected seconds or a form such as 300ms, 1h30m or 1d12h"
        ))
    };
    let trimmed = text.trim();
    let seconds = |value: f64| Duration::try_from_secs_f64(value).map_err(|_| wrong("it is too long"));
    if let Some(value) = decimal(trimmed) {
        return seconds(value);
    }
    let (days, rest) = match trimmed.split_once('d') {
        Some((days, rest)) => (decimal(days).ok_or_else(|| wrong("the days are not a number"))?, rest),
        None => (0.0, trimmed),
    };
    let total = seconds(days * 86400.0)?;
    if rest.is_empty() && trimmed.ends_with('d') {
        return Ok(total);
    }
    let rest = parse_go_duration(rest).map_err(|why| wrong(&why))?;
    total.checked_add(rest).ok_or_else(|| wrong("it is too long"))
}

/// Go's form only, for the options that take nothing else. Returns the reason in a few words.
pub fn parse_go_duration(text: &str) -> Result<Duration, String> {
    if text == "0" {
        return Ok(Duration::ZERO);
    }
    if text.is_empty() {
        return Err("it is empty".into());
    }
    let mut total = Duration::ZERO;
    let mut rest = text;
    while !rest.is_empty() {
        let digits = rest.find(|c: char| !c.is_ascii_digit() && c != '.').unwrap_or(rest.len());
        let number = decimal(&rest[..digits]).ok_or_else(|| format!("a number is missing before \"{rest}\""))?;
        let after = &rest[digits..];
        let letters = after.find(|c: char| c.is_ascii_digit() || c == '.').unwrap_or(after.len());
        let factor = match &after[..letters] {
            "ns" => 1e-9,
            "us" | "µs" | "μs" => 1e-6,
            "ms" => 1e-3,
            "s" => 1.0,
            "m" => 60.0,
            "h" => 3600.0,
            "" => return Err("a unit is missing after the number".into()),
            unit => return Err(format!("the unit \"{unit}\" is unknown")),
        };
        let part = Duration::try_from_secs_f64(number * factor).map_err(|_| "it is too long".to_string())?;
        total = total.checked_add(part).ok_or_else(|| "it is too long".to_string())?;
        rest = &after[letters..];
    }
    Ok(total)
}

/// Permission bits in octal (`0600`, `600`, `0o600`).
pub fn parse_octal(text: &str) -> ConfigResult<u16> {
    let digits = text.strip_prefix("0o").unwrap_or(text);
    u16::from_str_radix(digits, 8)
        .ok()
        .filter(|mode| *mode <= 0o7777 && !digits.starts_with('+'))
        .ok_or_else(|| ConfigError::new(format!("invalid mode \"{text}\": expected an octal number such as 0600")))
}

/// Hours of a day between which something may happen. `start > end` wraps around midnight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Hours {
    pub start: u8,
    pub end: u8,
}

/// `start-end` or `start,end`, each 0 to 23.
impl FromStr for Hours {
    type Err = ConfigError;

    fn from_str(text: &str) -> ConfigResult<Hours> {
        let hour = |part: &str| part.trim().parse::<u8>().ok().filter(|hour| *hour < 24);
        text.split_once(['-', ','])
            .and_then(|(start, end)| Some(Hours { start: hour(start)?, end: hour(end)? }))
            .filter(|hours| hours.start != hours.end)
            .ok_or_else(|| {
                ConfigError::new(format!("invalid hours \"{text}\": expected start-end within 0-23, such as 2-6"))
            })
    }
}

impl fmt::Display for Hours {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{},{}", self.start, self.end)
    }
}

/// `key:value;key:value`.
pub fn parse_labels(text: &str) -> ConfigResult<Vec<(String, String)>> {
    text.split(';')
        .filter(|part| !part.is_empty())
        .map(|part| match part.split_once(':') {
            Some((key, value)) if !key.is_empty() => Ok((key.to_string(), value.to_string())),
            _ => Err(ConfigError::new(format!("invalid label \"{part}\": expected key:value;key:value"))),
        })
        .collect()
}

/// `key=value`, or nothing.
pub fn parse_tag(text: &str) -> ConfigResult<String> {
    match text.split_once('=') {
        _ if text.is_empty() => Ok(String::new()),
        Some((key, value)) if !key.is_empty() && !value.contains('=') => Ok(text.to_string()),
        _ => Err(ConfigError::new(format!("invalid tag \"{text}\": expected key=value"))),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_take_one_letter_and_the_unit_of_their_option() {
        let size = |text, unit| Size::parse(text, unit).map(Size::bytes);
        assert_eq!(size("300", Unit::MiB), Ok(300 << 20));
        assert_eq!(size("300M", Unit::KiB), Ok(300 << 20));
        assert_eq!(size("1.5g", Unit::Byte), Ok(3 << 29));
        assert_eq!(size("0", Unit::GiB), Ok(0));
        assert_eq!(size("128b", Unit::GiB), Ok(128));
        assert_eq!(size("15E", Unit::Byte), Ok(15 << 60));
        for wrong in ["", "5KiB", "5MB", "-1", "1e3", "M", "16E", "nan", "1.2.3", "5é", "é"] {
            assert!(size(wrong, Unit::MiB).is_err(), "{wrong}");
        }
    }

    #[test]
    fn sizes_print_as_the_peer_prints_them() {
        let text = |bytes| Size(bytes).to_string();
        assert_eq!(text(0), "0 B");
        assert_eq!(text(1 << 30), "1.0 GiB");
        assert_eq!(text(10 << 30), "10 GiB");
        assert_eq!(text(1536), "1.5 KiB");
        assert_eq!(text(1000), "1000 B");
    }

    #[test]
    fn durations_take_seconds_go_form_and_days() {
        let parse = |text| parse_duration(text).map(|d| d.as_millis());
        assert_eq!(parse("1.5"), Ok(1500));
        assert_eq!(parse("1.0s"), Ok(1000));
        assert_eq!(parse("300ms"), Ok(300));
        assert_eq!(parse("1h30m"), Ok(5_400_000));
        assert_eq!(parse("2d"), Ok(172_800_000));
        assert_eq!(parse("1d12h"), Ok(129_600_000));
        assert_eq!(parse("0"), Ok(0));
        for wrong in ["", "d", "1x", "h", "-1s", "1h30", "1d12", "é", "999999999999999999999999999d"] {
            assert!(parse(wrong).is_err(), "{wrong}");
        }
    }

    #[test]
    fn bandwidths_are_megabits() {
        assert_eq!("800".parse(), Ok(Bandwidth(800)));
        assert_eq!("1.5G".parse(), Ok(Bandwidth(1500)));
        assert_eq!("2t".parse(), Ok(Bandwidth(2_000_000)));
        assert_eq!(Bandwidth(800).bytes_per_second(), Some(100_000_000));
        assert_eq!(Bandwidth(0).bytes_per_second(), None);
        assert_eq!(Bandwidth(100).to_string(), "100.0 Mbps");
        assert_eq!(Bandwidth(1500).to_string(), "1.5 Gbps");
        for wrong in ["", "1K", "fast", "-5", "9999999999P"] {
            assert!(wrong.parse::<Bandwidth>().is_err(), "{wrong}");
        }
    }

    #[test]
    fn octal_hours_labels_and_tags() {
        assert_eq!(parse_octal("0600"), Ok(0o600));
        assert_eq!(parse_octal("22"), Ok(0o22));
        assert!(parse_octal("0900").is_err() && parse_octal("").is_err() && parse_octal("77777").is_err());
        assert_eq!("2-6".parse(), Ok(Hours { start: 2, end: 6 }));
        assert_eq!("22,4".parse(), Ok(Hours { start: 22, end: 4 }));
        assert!("24-3".parse::<Hours>().is_err() && "3".parse::<Hours>().is_err() && "3-3".parse::<Hours>().is_err());
        assert_eq!(parse_labels("a:b;c:d:e"), Ok(vec![("a".into(), "b".into()), ("c".into(), "d:e".into())]));
        assert!(parse_labels("nope").is_err());
        assert_eq!(parse_tag("k=v"), Ok("k=v".to_string()));
        assert!(parse_tag("kv").is_err());
    }
}
