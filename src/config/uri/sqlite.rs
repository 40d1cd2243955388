//! Meta URLs of SQLite: a file.

use super::{ConfigError, ConfigResult, parse_query};
use std::path::PathBuf;

/// `sqlite3://path[?options]`.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct SqliteUri {
    pub path: PathBuf,
    /// Driver options in their order (`_journal`, `_timeout`, `cache`, `table_prefix` …).
    pub options: Vec<(String, String)>,
}

impl SqliteUri {
    /// A data base that lives in the memory of one process.
    pub fn is_memory(&self) -> bool {
        self.path.as_os_str() == ":memory:"
    }

    pub fn option(&self, name: &str) -> Option<&str> {
        self.options.iter().rev().find(|(key, _)| key == name).map(|(_, value)| value.as_str())
    }
}

pub(super) fn parse(rest: &str) -> ConfigResult<SqliteUri> {
    let (path, options) = rest.split_once('?').unwrap_or((rest, ""));
    if path.is_empty() {
        return Err(ConfigError::new("the meta URL sqlite3:// names no file"));
    }
    Ok(SqliteUri { path: path.into(), options: parse_query(options)? })
}
