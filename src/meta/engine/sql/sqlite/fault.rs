//! What SQLite says when it cannot, in the words of the engine: which errors pass by themselves, which are answers
//! about the place (full, read-only, not a database), and which are broken promises.

use crate::base::{Fault, FaultKind};
use crate::meta::engine::EngineError;
use rusqlite::ErrorCode;
use std::fmt::Debug;
use std::path::Path;

/// Why a step on a connection did not do what it was asked.
#[derive(Debug)]
pub enum Failed {
    /// A guard did not hold, or a change found its row missing.
    Conflict,
    Sqlite(rusqlite::Error),
    Fault(Fault),
}

impl From<rusqlite::Error> for Failed {
    fn from(error: rusqlite::Error) -> Failed {
        Failed::Sqlite(error)
    }
}

impl From<Fault> for Failed {
    fn from(fault: Fault) -> Failed {
        Failed::Fault(fault)
    }
}

impl Failed {
    /// A record that does not decode.
    pub fn corrupt(key: &dyn Debug) -> Failed {
        undecoded(key).into()
    }

    /// Why a record does not decode; every other failure stays one.
    pub fn into_corrupt(self) -> Result<Fault, Failed> {
        match self {
            Failed::Fault(fault) if fault.kind() == FaultKind::Corrupt => Ok(fault),
            failed => Err(failed),
        }
    }

    /// Somebody else holds a lock that is given up soon: another process commits, recovers or closes.
    pub fn busy(&self) -> bool {
        match self {
            Failed::Sqlite(error) => {
                matches!(error.sqlite_error_code(), Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked))
            }
            _ => false,
        }
    }

    /// The table is not there: no volume, or one of an older client.
    pub fn table_missing(&self) -> bool {
        matches!(self, Failed::Sqlite(error) if message(error).is_some_and(|m| m.starts_with("no such table")))
    }

    /// The file, or one beside it, cannot be opened.
    pub fn cannot_open(&self) -> bool {
        matches!(self, Failed::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::CannotOpen))
    }

    /// Input or output of the database broke in the middle.
    pub fn io(&self) -> bool {
        matches!(self, Failed::Sqlite(error) if error.sqlite_error_code() == Some(ErrorCode::SystemIoFailure))
    }

    pub fn into_engine_error(self, attempted: &'static str, path: &Path) -> EngineError {
        match self {
            Failed::Conflict => EngineError::Conflict,
            Failed::Fault(fault) => fault.into(),
            Failed::Sqlite(error) => fault_of(error, attempted, path).into(),
        }
    }
}

/// See `Failed::corrupt`.
pub fn undecoded(key: &dyn Debug) -> Fault {
    Fault::corrupt("decode record").with("engine", "sqlite").with("key", format_args!("{key:?}"))
}

fn message(error: &rusqlite::Error) -> Option<&str> {
    match error {
        rusqlite::Error::SqliteFailure(_, Some(message)) => Some(message),
        rusqlite::Error::SqlInputError { msg, .. } => Some(msg),
        _ => None,
    }
}

pub fn fault_of(error: rusqlite::Error, attempted: &'static str, path: &Path) -> Fault {
    let no_schema = message(&error).is_some_and(|m| m.starts_with("no such table") || m.starts_with("no such column"));
    let (fault, why) = match error.sqlite_error_code() {
        Some(ErrorCode::DiskFull) => (Fault::full(attempted), Some("no space is left for the database")),
        Some(ErrorCode::ReadOnly) => (Fault::denied(attempted), Some("the database file is read-only")),
        Some(ErrorCode::PermissionDenied | ErrorCode::AuthorizationForStatementDenied) => {
            (Fault::denied(attempted), Some("the database file may not be opened"))
        }
        Some(ErrorCode::CannotOpen) => {
            (Fault::unavailable(attempted), Some("the database file, or a file beside it, cannot be opened"))
        }
        Some(ErrorCode::NotADatabase) => (Fault::config(attempted), Some("the file is not a SQLite database")),
        Some(ErrorCode::DatabaseCorrupt) => (Fault::corrupt(attempted), Some("the database file is damaged")),
        Some(ErrorCode::DatabaseBusy | ErrorCode::DatabaseLocked) => {
            (Fault::timeout(attempted), Some("another process has held the database for too long"))
        }
        Some(
            ErrorCode::SystemIoFailure
            | ErrorCode::OutOfMemory
            | ErrorCode::FileLockingProtocolFailed
            | ErrorCode::SchemaChanged
            | ErrorCode::OperationAborted
            | ErrorCode::OperationInterrupted,
        ) => (Fault::unavailable(attempted), None),
        _ if no_schema => (Fault::not_found(attempted), Some("the database holds no such volume")),
        _ => (Fault::internal(attempted), None),
    };
    let fault = fault.with("engine", "sqlite").with("path", path.display());
    match why {
        Some(why) => fault.with("because", why),
        None => fault,
    }
    .source(error)
}
