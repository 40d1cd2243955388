//! What people and programs type: meta URLs, values of options, requests to the control file.

use super::{sentence, texts};
use crate::config::client::{AtimeMode, CacheChecksum, CacheDirs, CacheEviction, Squash};
use crate::config::units::{self, Bandwidth, Hours, Size, Unit};
use crate::config::uri::{MetaUri, Passwords};
use crate::config::{ConfigError, ConfigResult, Version};
use crate::vfs::control::protocol::{Asked, Progress, Stream, Verdict};
use std::fmt::Display;
use std::str::FromStr;

/// An environment without passwords.
struct Nothing;

impl Passwords for Nothing {
    fn variable(&self, _name: &str) -> Option<String> {
        None
    }

    fn file(&self, path: &str) -> ConfigResult<String> {
        Err(ConfigError::new(format!("{path} is not there")))
    }
}

pub fn meta_urls() -> Vec<Vec<u8>> {
    texts(&[
        "redis://127.0.0.1:6380/3",
        "localhost",
        "redis://:hunter2hunter2@localhost:7/1?read-timeout=3s&min_retry_backoff=5ms",
        "rediss://user:p%40ss%3Aword%2Fwith%3Feverything@[::1]:6390/2?x=y&&z",
        "redis://:pass@word@host:1/0",
        "redis://:hunter2hunter2@master,host1,[::1]:26379/4294967295",
        "redis://h1:1,h2:2,h3/0",
        "unix://user:hunter2hunter2@/run/redis.sock?db=5",
        "sqlite3:///var/a b/meta.db?_journal=WAL&table_prefix=abc",
        "sqlite3://:memory:",
        "mysql://u:hunter2hunter2@(h:1)/d",
    ])
}

/// What stands where a password would: after the scheme, between a colon and the last `@`.
fn typed_password(text: &str) -> Option<&str> {
    let rest = text.split_once("://").map_or(text, |(_, rest)| rest);
    rest.rsplit_once('@')?.0.split_once(':').map(|(_, password)| password)
}

pub fn meta_url(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let uri = match MetaUri::parse_with(text, &Nothing) {
        Ok(uri) => uri,
        Err(error) => {
            let said = sentence(&error);
            // Shorter ones may be part of any sentence. One that is a piece of what is said of other passwords, too, has
            // not been told either.
            if let Some(password) = typed_password(text).filter(|password| password.len() > 12) {
                let other = text.replacen(password, &"x".repeat(password.len()), 1);
                let is_ours = || MetaUri::parse_with(&other, &Nothing).is_err_and(|e| e.to_string().contains(password));
                assert!(!said.contains(password) || is_ours(), "{said}");
            }
            return;
        }
    };
    let shown = uri.to_string();
    assert!(!shown.chars().any(|c| c.is_control()), "{shown:?}");
    let again = MetaUri::parse_with(uri.with_password().expose(), &Nothing);
    assert_eq!(again.as_ref(), Ok(&uri), "{:?} from {text:?}", uri.with_password().expose());
    let masked = MetaUri::parse_with(&shown, &Nothing).expect("what is shown is a URL");
    assert_eq!(masked.has_password(), uri.has_password());
    if let MetaUri::Redis(redis) = &masked {
        assert!(redis.password.as_ref().is_none_or(|password| password.expose() == "****"), "{shown}");
        #[cfg(feature = "redis")]
        crate::meta::engine::redis::fuzz::url(uri.with_password().expose());
    }
}

pub fn value_texts() -> Vec<Vec<u8>> {
    texts(&[
        "300M",
        "1.5G",
        "16E",
        "0",
        "1h30m",
        "300ms",
        "1d12h",
        "5us",
        "0600",
        "0o777",
        "22-6",
        "1,5",
        "10G",
        "800",
        "k:v;k2:v2",
        "key=value",
        "1000:1000",
        ":",
        "/a:/b",
        "memory",
        "1.4.2-beta+x",
        "noatime",
        "2-random",
        "extend",
        "9999999999999999999999h",
        "1e5s",
    ])
}

fn outcome<T, E: Display>(text: &str, parsed: Result<T, E>) -> Option<T> {
    match parsed {
        Ok(value) => Some(value),
        // What was typed may be repeated; the harness of a long text looks at the length of the sentence alone.
        Err(error) => {
            if text.len() < 150 {
                sentence(&error);
            } else {
                assert!(!error.to_string().chars().any(char::is_control));
            }
            None
        }
    }
}

fn shown<T: FromStr + Display + PartialEq>(text: &str)
where
    T::Err: Display,
{
    if let Some(value) = outcome(text, text.parse::<T>()) {
        assert!(value.to_string().parse::<T>().is_ok_and(|again| again == value));
    }
}

pub fn values(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    for unit in [Unit::Byte, Unit::KiB, Unit::MiB, Unit::GiB] {
        if let Some(size) = outcome(text, Size::parse(text, unit)) {
            let _ = size.to_string();
        }
    }
    outcome(text, units::parse_duration(text));
    if let Err(why) = units::parse_go_duration(text) {
        assert!(!why.is_empty());
    }
    outcome(text, units::parse_octal(text));
    outcome(text, units::parse_labels(text));
    outcome(text, units::parse_tag(text));
    if let Some(bandwidth) = outcome(text, text.parse::<Bandwidth>()) {
        let _ = (bandwidth.to_string(), bandwidth.bytes_per_second());
    }
    outcome(text, text.parse::<Hours>());
    outcome(text, text.parse::<Squash>());
    outcome(text, text.parse::<CacheDirs>());
    shown::<Version>(text);
    shown::<AtimeMode>(text);
    shown::<CacheChecksum>(text);
    shown::<CacheEviction>(text);
}

pub fn control_requests() -> Vec<Vec<u8>> {
    let request = |op: u32, body: &[u8]| [&op.to_be_bytes()[..], &(body.len() as u32).to_be_bytes(), body].concat();
    let ino = 7u64.to_be_bytes();
    vec![
        request(1002, &[&ino[..], &[3, b'a', b'b', b'c', 1, 9]].concat()),
        request(1003, &[&ino[..], &[1, 0]].concat()),
        request(1004, &[&8u32.to_be_bytes()[..], b"a/b\n\nc d", &[0, 50, 1, 2]].concat()),
        request(1005, &[&ino[..], &[1, 0, 1]].concat()),
        request(1006, &[&ino[..], &ino, &ino, &[1, b'n', 0, 18, 1, 4]].concat()),
        request(1007, &[&ino[..], &[2, 7, 1]].concat()),
        request(1008, &[&ino[..], &[0, 10]].concat()),
        request(1008, &[0xFF; 10]),
    ]
}

/// Any bytes, in any pieces, with operations that end between them.
pub fn control(data: &[u8]) {
    let mut stream = Stream::default();
    let piece = 1 + usize::from(data.first().copied().unwrap_or(0)) % 40;
    let mut at = 0;
    for written in data.chunks(piece) {
        if let Asked::Run(_) = stream.write(written) {
            stream.progress(Progress(u64::MAX, 1));
            stream.finish(&Verdict::Data(bytes::Bytes::from_static(b"{}")));
        }
        at += stream.read(at, 64).len() as u64;
    }
    stream.read(u64::MAX, 64);
    stream.read(0, usize::MAX);
}
