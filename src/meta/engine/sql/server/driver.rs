//! Scripts on their way to the server and back, and what the database's errors mean.
//!
//! A script runs in a task of its own. Whoever asked may go away (a request that was cancelled); the script still comes
//! to its end, and no connection goes back to the pool in the middle of a transaction.

use super::pool::{Keep, NoConnection, Pool};
use super::{ServerKind, ServerOptions, Tls};
use crate::base::{Fault, FaultKind};
use crate::meta::engine::handshake::{self, TlsNames};
use crate::meta::engine::sql::rows::Columns;
use crate::util::outage::Outage;
use futures::{Stream, TryStreamExt};
use sqlx::mysql::{MySqlConnectOptions, MySqlConnection, MySqlDatabaseError, MySqlRow, MySqlSslMode};
use sqlx::postgres::{PgConnectOptions, PgConnection, PgRow, PgSslMode};
use sqlx::{AssertSqlSafe, ConnectOptions, Either, Executor, Row, TypeInfo, ValueRef};
use std::path::PathBuf;
use std::pin::pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

/// How long a request waits for a connection: while the server is restarted, or all connections are busy.
const CONNECT_DEADLINE: Duration = Duration::from_secs(15);
/// The same for the first one: an address that is wrong should be said soon.
const FIRST_DEADLINE: Duration = Duration::from_secs(5);
/// A script that takes longer is given up with its connection.
const SCRIPT_DEADLINE: Duration = Duration::from_secs(60);
/// The server gives up on a lock earlier, so that the deadline above means that it hangs.
const LOCK_SECONDS: u32 = 10;
/// Pauses between tries to read from a server that is away.
const PAUSE_FIRST: Duration = Duration::from_millis(50);
const PAUSE_MAX: Duration = Duration::from_secs(1);
/// Connections where the URL does not say how many: enough for the requests of a busy mount, few enough for a hundred
/// mounts to share a server of usual settings.
const CONNECTIONS: usize = 16;
/// Kept open while nothing is asked.
const IDLE_SECONDS: u64 = 300;

const TLS_NAMES: TlsNames = TlsNames { trust: "sslrootcert", identity: "sslcert and sslkey" };

/// A value of a row.
#[derive(Clone, Debug, PartialEq)]
pub enum Cell {
    Null,
    Int(i64),
    Bytes(Vec<u8>),
}

/// A row of either driver.
#[derive(Clone, Debug, PartialEq)]
pub struct Cells(Vec<Cell>);

/// The rows of each statement of a script, in order.
pub type Answers = Vec<Vec<Cells>>;

impl Columns for Cells {
    fn is_null(&self, column: usize) -> bool {
        matches!(self.0.get(column), Some(Cell::Null))
    }

    fn int(&self, column: usize) -> Option<i64> {
        match self.0.get(column)? {
            Cell::Null => Some(0),
            Cell::Int(number) => Some(*number),
            Cell::Bytes(_) => None,
        }
    }

    fn bytes(&self, column: usize) -> Option<&[u8]> {
        match self.0.get(column)? {
            Cell::Null => Some(&[]),
            Cell::Bytes(bytes) => Some(bytes),
            Cell::Int(_) => None,
        }
    }
}

/// Why a script did not come to its end.
#[derive(Debug)]
pub enum Failed {
    /// Something that the script requires did not hold, or another transaction was in its way; nothing was applied.
    Conflict,
    /// A table of the volume is missing: there is no volume.
    MissingTable,
    /// The connection is gone, and nobody knows how far the script came.
    Broken(Fault),
    /// Nothing was applied.
    Fault(Fault),
}

enum Connections {
    Mysql(Pool<MySqlConnection>),
    Postgres(Pool<PgConnection>),
}

pub struct Driver {
    connections: Connections,
    /// What a connection is told first.
    setup: String,
    kind: ServerKind,
    /// Where the server is, for messages.
    address: String,
    away: Outage,
    /// A connection was made before: what is wrong with TLS now may pass, as when certificates are renewed.
    reached: AtomicBool,
}

impl Driver {
    /// Nothing is connected yet.
    pub fn new(options: &ServerOptions) -> Result<Driver, Fault> {
        check_files(options)?;
        let most = match options.max_open_conns as usize {
            0 => CONNECTIONS,
            most => most.min(tokio::sync::Semaphore::MAX_PERMITS),
        };
        let idle = match options.max_idle_seconds {
            None => Duration::from_secs(IDLE_SECONDS),
            // For ever.
            Some(0) => Duration::MAX,
            Some(seconds) => Duration::from_secs(seconds),
        };
        let life = options.max_life_seconds.filter(|seconds| *seconds > 0).map(Duration::from_secs);
        let keep = Keep { idle, life, most: options.max_idle_conns.map_or(most, |most| most as usize) };
        let (connections, setup) = match options.kind {
            ServerKind::Mysql => (Connections::Mysql(Pool::new(mysql(options), most, keep)), mysql_setup()),
            ServerKind::Postgres => {
                let setup = postgres_setup(options.search_path.as_deref());
                (Connections::Postgres(Pool::new(postgres(options), most, keep)), setup)
            }
        };
        let (kind, address) = (options.kind, options.address());
        Ok(Driver { connections, setup, kind, address, away: Outage::default(), reached: AtomicBool::new(false) })
    }

    pub fn fault(&self, kind: FaultKind, attempted: &'static str) -> Fault {
        Fault::new(kind, attempted).with("engine", self.kind.name()).with("address", &self.address)
    }

    /// Runs a script once.
    pub async fn run(self: &Arc<Driver>, text: String, attempted: &'static str) -> Result<Answers, Failed> {
        self.run_soon(text, attempted, CONNECT_DEADLINE).await
    }

    /// The same, with so much time for a connection.
    async fn run_soon(
        self: &Arc<Driver>,
        text: String,
        attempted: &'static str,
        wait: Duration,
    ) -> Result<Answers, Failed> {
        let driver = self.clone();
        let ran = tokio::spawn(async move { driver.run_here(text, attempted, wait).await }).await;
        ran.unwrap_or_else(|error| Err(Failed::Broken(self.fault(FaultKind::Internal, attempted).source(error))))
    }

    /// Runs a script that changes nothing: again, when the connection breaks, until the server has been away for too
    /// long.
    pub async fn read(self: &Arc<Driver>, text: String, attempted: &'static str) -> Result<Answers, Failed> {
        let since = Instant::now();
        let mut pause = PAUSE_FIRST;
        loop {
            match self.run(text.clone(), attempted).await {
                Err(Failed::Broken(_) | Failed::Conflict) if since.elapsed() < CONNECT_DEADLINE => {
                    tokio::time::sleep(pause).await;
                    pause = (pause * 2).min(PAUSE_MAX);
                }
                ran => return ran,
            }
        }
    }

    /// Whether the server answers, soon.
    pub async fn check(self: &Arc<Driver>) -> Result<(), Failed> {
        self.run_soon("SELECT 1".to_owned(), "connect", FIRST_DEADLINE).await.map(drop)
    }

    async fn run_here(&self, text: String, attempted: &'static str, wait: Duration) -> Result<Answers, Failed> {
        macro_rules! run_on {
            ($pool:expr, $cells:path) => {{
                let passes = |error: &sqlx::Error| matches!(self.meaning(error), Meaning::Broken);
                let mut held = match $pool.get(Instant::now() + wait, passes).await {
                    Ok(held) => held,
                    Err(error) => return Err(self.unreachable(error, attempted)),
                };
                let script = async {
                    if held.fresh {
                        held.conn.execute(AssertSqlSafe(self.setup.clone())).await.map_err(|error| (error, false))?;
                    }
                    let sent = sqlx::raw_sql(AssertSqlSafe(text)).fetch_many(&mut held.conn);
                    answers(sent, $cells).await.map_err(|error| (error, true))
                };
                match tokio::time::timeout(SCRIPT_DEADLINE, script).await {
                    Ok(Ok(answers)) => {
                        $pool.put(held);
                        self.answered();
                        Ok(answers)
                    }
                    Ok(Err((error, sent))) => {
                        let failed = match self.failed(error, attempted) {
                            // The script was not sent yet.
                            Failed::Broken(fault) if !sent => Failed::Fault(fault),
                            failed => failed,
                        };
                        if matches!(failed, Failed::Broken(_)) {
                            $pool.forget();
                        } else if held.conn.execute("ROLLBACK").await.is_ok() {
                            // What the script began does not meet the next one.
                            $pool.put(held);
                        }
                        Err(failed)
                    }
                    Err(_) => Err(Failed::Broken(self.fault(FaultKind::Timeout, attempted))),
                }
            }};
        }
        match &self.connections {
            Connections::Mysql(pool) => run_on!(pool, mysql_cells),
            Connections::Postgres(pool) => run_on!(pool, postgres_cells),
        }
    }

    /// No connection could be had: nothing was sent.
    fn unreachable(&self, error: NoConnection, attempted: &'static str) -> Failed {
        let failed = match error {
            NoConnection::Failed(error) => match self.failed(error, attempted) {
                Failed::Broken(fault) | Failed::Fault(fault) => fault,
                Failed::Conflict | Failed::MissingTable => self.fault(FaultKind::Unavailable, attempted),
            },
            NoConnection::Silent => self.fault(FaultKind::Timeout, attempted).source("the server does not answer"),
            NoConnection::Busy => self.fault(FaultKind::Timeout, attempted).source("all connections were busy"),
        };
        if failed.kind() == FaultKind::Unavailable && self.away.failed() {
            tracing::warn!(address = self.address, "{} cannot be reached: {failed}", self.kind.name());
        }
        Failed::Fault(failed)
    }

    /// Closes connections that were not used for long.
    pub fn tidy(&self) {
        match &self.connections {
            Connections::Mysql(pool) => pool.tidy(),
            Connections::Postgres(pool) => pool.tidy(),
        }
    }

    fn answered(&self) {
        self.reached.store(true, Ordering::Relaxed);
        if let Some(over) = self.away.succeeded() {
            let seconds = over.lasted.as_secs_f64();
            let name = self.kind.name();
            tracing::info!(
                address = self.address,
                "{name} can be reached again, {} requests failed within {seconds:.1} s",
                over.failures
            );
        }
    }

    fn meaning(&self, error: &sqlx::Error) -> Meaning {
        if let Some((kind, said)) = handshake::refusal(error, &TLS_NAMES) {
            let passes = self.reached.load(Ordering::Relaxed);
            return if passes { Meaning::Broken } else { Meaning::Tls(kind, said) };
        }
        match error {
            sqlx::Error::Database(database) => match database.try_downcast_ref::<MySqlDatabaseError>() {
                Some(mysql) => mysql_meaning(mysql.number()),
                None => postgres_meaning(database.code().as_deref().unwrap_or_default()),
            },
            sqlx::Error::Tls(_) | sqlx::Error::Configuration(_) => Meaning::Fault(FaultKind::Config, ""),
            sqlx::Error::ColumnDecode { .. } | sqlx::Error::Decode(_) => Meaning::Fault(FaultKind::Corrupt, ""),
            _ => Meaning::Broken,
        }
    }

    /// None of the texts of the drivers holds a password.
    fn failed(&self, error: sqlx::Error, attempted: &'static str) -> Failed {
        let fault = |kind| self.fault(kind, attempted);
        match self.meaning(&error) {
            Meaning::Conflict => Failed::Conflict,
            Meaning::MissingTable => Failed::MissingTable,
            Meaning::Broken => Failed::Broken(fault(FaultKind::Unavailable).source(error)),
            Meaning::Tls(kind, said) => Failed::Fault(fault(kind).source(said)),
            Meaning::Fault(kind, "") => Failed::Fault(fault(kind).source(error)),
            Meaning::Fault(kind, why) => Failed::Fault(fault(kind).with("because", why).source(error)),
        }
    }
}

enum Meaning {
    Tls(FaultKind, String),
    Conflict,
    MissingTable,
    Broken,
    Fault(FaultKind, &'static str),
}

const NUMBER_TOO_LARGE: &str =
    "a number does not fit its column: owners, groups and device numbers end at 2147483647 on this database";
const TOO_LONG: &str = "a value is longer than its column: extended attributes end at 65535 bytes on this database";
const NOT_TEXT: &str =
    "names of extended attributes, and settings, have to be text that the database's character set has";
const CASE: &str = "another extended attribute has this name but for its case, and the column of this volume does not \
                    tell them apart";
const ENCRYPTED_ONLY: &str = "the server takes encrypted connections only: the meta URL needs tls=true, or skip-verify";
const NOT_LET_IN: &str = "the user or the password is wrong, or this user is let in only encrypted (tls=true or \
                          skip-verify), with a certificate of its own (sslcert, sslkey), or from elsewhere";
const NOT_LISTED: &str = "the server lets this user in from here only otherwise, or not at all: encrypted (sslmode), or \
                          with a certificate of its own (sslcert, sslkey)";
const READ_ONLY: &str = "the server takes no changes: it is a standby, or was set to read only";

fn postgres_meaning(state: &str) -> Meaning {
    match state {
        // division_by_zero is how scripts fail on purpose.
        "22012" | "23505" | "40001" | "40P01" | "55P03" => Meaning::Conflict,
        "42P01" | "3F000" => Meaning::MissingTable,
        "57P01" | "57P02" | "57P03" | "57014" | "53300" => Meaning::Broken,
        state if state.starts_with("08") => Meaning::Broken,
        "25006" => Meaning::Fault(FaultKind::Unavailable, READ_ONLY),
        "22003" => Meaning::Fault(FaultKind::Unsupported, NUMBER_TOO_LARGE),
        "22021" | "22P05" => Meaning::Fault(FaultKind::Unsupported, NOT_TEXT),
        "22001" => Meaning::Fault(FaultKind::Unsupported, TOO_LONG),
        "28000" => Meaning::Fault(FaultKind::Denied, NOT_LISTED),
        "28P01" | "42501" => Meaning::Fault(FaultKind::Denied, ""),
        "3D000" => Meaning::Fault(FaultKind::Config, "there is no such database"),
        "53100" | "53200" | "54000" => Meaning::Fault(FaultKind::Full, ""),
        _ => Meaning::Fault(FaultKind::Internal, ""),
    }
}

fn mysql_meaning(number: u16) -> Meaning {
    match number {
        // ER_SUBQUERY_NO_1_ROW is how scripts fail on purpose.
        1242 | 1062 | 1213 | 1205 | 1020 => Meaning::Conflict,
        1146 => Meaning::MissingTable,
        1040 | 1053 | 1158..=1161 | 1317 | 1927 | 2006 | 2013 | 3169 => Meaning::Broken,
        1290 | 1792 | 1836 => Meaning::Fault(FaultKind::Unavailable, READ_ONLY),
        1264 => Meaning::Fault(FaultKind::Unsupported, NUMBER_TOO_LARGE),
        1406 => Meaning::Fault(FaultKind::Unsupported, TOO_LONG),
        // ER_DATA_OUT_OF_RANGE, on purpose as well.
        1690 => Meaning::Fault(FaultKind::Unsupported, CASE),
        1300 | 1366 | 3988 => Meaning::Fault(FaultKind::Unsupported, NOT_TEXT),
        1045 | 1698 => Meaning::Fault(FaultKind::Denied, NOT_LET_IN),
        1044 | 1142 | 1143 | 1227 => Meaning::Fault(FaultKind::Denied, ""),
        // ER_SECURE_TRANSPORT_REQUIRED, of MySQL and of MariaDB.
        3159 | 4031 => Meaning::Fault(FaultKind::Config, ENCRYPTED_ONLY),
        1049 => Meaning::Fault(FaultKind::Config, "there is no such database"),
        1021 | 1114 | 1041 => Meaning::Fault(FaultKind::Full, ""),
        _ => Meaning::Fault(FaultKind::Internal, ""),
    }
}

/// Rows by statement.
async fn answers<Q, R>(
    stream: impl Stream<Item = sqlx::Result<Either<Q, R>>>,
    cells: impl Fn(&R) -> sqlx::Result<Cells>,
) -> sqlx::Result<Answers> {
    let mut stream = pin!(stream);
    let (mut answers, mut rows) = (Answers::new(), Vec::new());
    while let Some(item) = stream.try_next().await? {
        match item {
            Either::Right(row) => rows.push(cells(&row)?),
            Either::Left(_) => answers.push(std::mem::take(&mut rows)),
        }
    }
    Ok(answers)
}

fn postgres_cells(row: &PgRow) -> sqlx::Result<Cells> {
    let cell = |column| {
        let (null, name) = {
            let value = row.try_get_raw(column)?;
            (value.is_null(), value.type_info().name().to_owned())
        };
        Ok(match (null, name.as_str()) {
            (true, _) => Cell::Null,
            (_, "INT8") => Cell::Int(row.try_get(column)?),
            (_, "INT4") => Cell::Int(row.try_get::<i32, _>(column)?.into()),
            (_, "BYTEA") => Cell::Bytes(row.try_get(column)?),
            _ => Cell::Bytes(row.try_get_unchecked::<String, _>(column)?.into_bytes()),
        })
    };
    (0..row.len()).map(cell).collect::<sqlx::Result<_>>().map(Cells)
}

fn mysql_cells(row: &MySqlRow) -> sqlx::Result<Cells> {
    let cell = |column| {
        let (null, is_int) = {
            let value = row.try_get_raw(column)?;
            (value.is_null(), value.type_info().name().contains("INT"))
        };
        Ok(match (null, is_int) {
            (true, _) => Cell::Null,
            (_, true) => Cell::Int(row.try_get_unchecked(column)?),
            _ => Cell::Bytes(row.try_get_unchecked(column)?),
        })
    };
    (0..row.len()).map(cell).collect::<sqlx::Result<_>>().map(Cells)
}

/// The drivers read these files with each connection, and would take one that is missing for a server that is away.
fn check_files(options: &ServerOptions) -> Result<(), Fault> {
    let fault = || Fault::config("open database").with("engine", options.kind.name());
    if options.certificate_file.is_some() != options.key_file.is_some() {
        return Err(fault().source("sslcert and sslkey of the meta URL belong together"));
    }
    let files = [&options.authority_file, &options.certificate_file, &options.key_file];
    let read = |file: &PathBuf| match std::fs::read(file) {
        Ok(pem) if pem.windows(10).any(|window| window == b"-----BEGIN") => Ok(()),
        Ok(_) => Err(fault().with("file", file.display()).source("nothing in PEM form is in it")),
        Err(error) => Err(fault().with("file", file.display()).source(error)),
    };
    files.into_iter().flatten().try_for_each(read)
}

fn mysql(options: &ServerOptions) -> MySqlConnectOptions {
    let mode = match options.tls {
        Tls::Off => MySqlSslMode::Disabled,
        Tls::Preferred => MySqlSslMode::Preferred,
        Tls::Unverified => MySqlSslMode::Required,
        Tls::Authority => MySqlSslMode::VerifyCa,
        Tls::Full => MySqlSslMode::VerifyIdentity,
    };
    let mut connect = MySqlConnectOptions::new()
        .database(&options.database)
        .ssl_mode(mode)
        // What its crate sets on its own is set by `mysql_setup`, in the same trip.
        .pipes_as_concat(false)
        .no_engine_substitution(false)
        .timezone(None)
        .charset("utf8mb4")
        .disable_statement_logging();
    connect = match &options.socket {
        Some(socket) => connect.socket(socket),
        None => connect.host(&options.host).port(options.port),
    };
    if let Some(user) = &options.username {
        connect = connect.username(user);
    }
    if let Some(password) = &options.password {
        connect = connect.password(password);
    }
    if let Some(file) = &options.authority_file {
        connect = connect.ssl_ca(file);
    }
    if let (Some(certificate), Some(key)) = (&options.certificate_file, &options.key_file) {
        connect = connect.ssl_client_cert(certificate).ssl_client_key(key);
    }
    connect
}

/// Reads see one moment, nothing is cut to fit, and no lock is waited for without end.
fn mysql_setup() -> String {
    format!(
        "SET SESSION sql_mode = 'STRICT_ALL_TABLES,NO_ENGINE_SUBSTITUTION', SESSION innodb_lock_wait_timeout = {LOCK_SECONDS}; \
         SET SESSION TRANSACTION ISOLATION LEVEL REPEATABLE READ"
    )
}

fn postgres(options: &ServerOptions) -> PgConnectOptions {
    let mode = match options.tls {
        Tls::Off => PgSslMode::Disable,
        Tls::Preferred => PgSslMode::Prefer,
        Tls::Unverified => PgSslMode::Require,
        Tls::Authority => PgSslMode::VerifyCa,
        Tls::Full => PgSslMode::VerifyFull,
    };
    // Without the environment of libpq: the URL says it all.
    let mut connect = PgConnectOptions::new_without_pgpass()
        .host(&options.host)
        .port(options.port)
        .database(&options.database)
        .application_name("sluicefs")
        .ssl_mode(mode)
        .disable_statement_logging();
    if let Some(socket) = &options.socket {
        connect = connect.socket(socket);
    }
    if let Some(user) = &options.username {
        connect = connect.username(user);
    }
    if let Some(password) = &options.password {
        connect = connect.password(password);
    }
    if let Some(file) = &options.authority_file {
        connect = connect.ssl_root_cert(file);
    }
    if let (Some(certificate), Some(key)) = (&options.certificate_file, &options.key_file) {
        connect = connect.ssl_client_cert(certificate).ssl_client_key(key);
    }
    connect
}

fn postgres_setup(search_path: Option<&str>) -> String {
    let mut setup =
        format!("SET lock_timeout = '{LOCK_SECONDS}s'; SET statement_timeout = '{}s'", SCRIPT_DEADLINE.as_secs());
    setup += "; SET client_min_messages = 'error'";
    if let Some(schema) = search_path {
        setup += &format!("; SET search_path TO \"{}\"", schema.replace('"', "\"\""));
    }
    setup
}
