//! MariaDB: one server, a database per test.

use crate::Certificates;
use crate::process::{Kept, free_port, program, run};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// Whom clients connect as, over TCP.
pub const USER: &str = "sluice";
pub const PASSWORD: &str = "sluice-test";

/// A running server. Dropping it ends it and removes its data.
pub struct Mariadb {
    pub port: u16,
    socket: PathBuf,
    databases_taken: AtomicU32,
    _server: Kept,
}

impl Mariadb {
    /// The programs it takes.
    pub const PROGRAMS: [&str; 3] = ["mariadbd", "mariadb-install-db", "mariadb"];

    /// The server of all tests of this process.
    pub fn shared() -> &'static Mariadb {
        static SERVER: OnceLock<Mariadb> = OnceLock::new();
        SERVER.get_or_init(Mariadb::start)
    }

    /// A server without durability: what the tests of engines need.
    pub fn start() -> Mariadb {
        Mariadb::start_with(&["--innodb-flush-log-at-trx-commit=0", "--skip-innodb-doublewrite"])
    }

    /// A server that takes encrypted connections only, over TCP.
    pub fn start_tls(certificates: &Certificates) -> Mariadb {
        let option = |name: &str, file: &str| format!("--ssl-{name}={}", certificates.path(file));
        let files = [option("ca", "authority.pem"), option("cert", "server.pem"), option("key", "server.key")];
        let options: Vec<&str> = files.iter().map(String::as_str).chain(["--require-secure-transport=ON"]).collect();
        Mariadb::start_with(&options)
    }

    /// A server with further options. It listens at 127.0.0.2 too, which is in no certificate of the tests.
    pub fn start_with(options: &[&str]) -> Mariadb {
        let dir = TempDir::new().expect("a temporary directory").keep();
        let found = |name: &str| program(name).unwrap_or_else(|| panic!("{name} is installed"));
        // A server that starts removes what looks like a temporary table of a dead one, and so those of its neighbours.
        let own = dir.join("tmp");
        std::fs::create_dir(&own).expect("a directory for temporary tables");
        run(Command::new(found("mariadb-install-db"))
            .env("TMPDIR", &own)
            .args(["--no-defaults", "--user=root", "--auth-root-authentication-method=normal", "--skip-test-db"])
            .arg(format!("--datadir={}", dir.join("data").display())));
        let (port, socket) = (free_port(), dir.join("socket"));
        let mut server = Command::new(found("mariadbd"));
        server
            .args(["--no-defaults", "--user=root", "--bind-address=127.0.0.1,127.0.0.2", "--max-connections=1000"])
            .args(["--innodb-buffer-pool-size=256M", "--innodb-log-file-size=64M"])
            .arg(format!("--datadir={}", dir.join("data").display()))
            .arg(format!("--tmpdir={}", own.display()))
            .arg(format!("--socket={}", socket.display()))
            .arg(format!("--port={port}"))
            .args(options);
        let mut kept = Kept::start(&dir, &server, false);
        kept.wait_for_port("mariadbd", port);
        let server = Mariadb { port, socket, databases_taken: AtomicU32::new(0), _server: kept };
        server
            .execute(&format!("CREATE USER '{USER}'@'%' IDENTIFIED BY '{PASSWORD}'; GRANT ALL ON *.* TO '{USER}'@'%'"));
        server
    }

    /// Runs statements as the superuser and answers what they print, tab separated and without names of columns.
    pub fn execute(&self, sql: &str) -> String {
        let client = program("mariadb").expect("mariadb is installed");
        run(Command::new(client).args(["--no-defaults", "-uroot", "-BN"]).arg("-S").arg(&self.socket).args(["-e", sql]))
    }

    /// The name of a fresh, empty database.
    pub fn next_database(&self) -> String {
        let name = format!("t{}", self.databases_taken.fetch_add(1, Ordering::Relaxed));
        self.execute(&format!("CREATE DATABASE {name}"));
        name
    }

    /// The meta URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("mysql://{USER}:{PASSWORD}@(127.0.0.1:{})/{database}", self.port)
    }
}
