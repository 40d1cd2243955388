//! PostgreSQL: one server, a database per test.

use crate::Certificates;
use crate::process::{Kept, free_port, program, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::Duration;
use tempfile::TempDir;

/// Whom clients connect as, over TCP.
pub const USER: &str = "sluice";
pub const PASSWORD: &str = "sluice-test";

/// A running server. Dropping it ends it and removes its data.
pub struct Postgres {
    pub port: u16,
    dir: PathBuf,
    databases_taken: AtomicU32,
    server: Option<Kept>,
}

/// The server refuses to run as the superuser of the system.
fn as_postgres(name: &str) -> Command {
    let program = program(name).unwrap_or_else(|| panic!("{name} is installed"));
    let mut command = Command::new("setpriv");
    command.args(["--reuid=postgres", "--regid=postgres", "--clear-groups", "--"]).arg(program);
    command
}

fn data(dir: &Path) -> PathBuf {
    dir.join("data")
}

impl Postgres {
    /// The programs it takes.
    pub const PROGRAMS: [&str; 4] = ["postgres", "initdb", "psql", "setpriv"];

    /// The server of all tests of this process.
    pub fn shared() -> &'static Postgres {
        static SERVER: OnceLock<Postgres> = OnceLock::new();
        SERVER.get_or_init(|| Postgres::start_with(&["fsync=off", "synchronous_commit=off", "full_page_writes=off"]))
    }

    /// A server that takes encrypted connections only, over TCP, and those of clients with a certificate only, if so.
    pub fn start_tls(certificates: &Certificates, clients: bool) -> Postgres {
        let how = if clients { "scram-sha-256 clientcert=verify-ca" } else { "scram-sha-256" };
        let rules = format!("local all all scram-sha-256\nhostssl all all 127.0.0.0/8 {how}\n");
        let settings = ["ssl=on", "ssl_ca_file=authority.pem", "ssl_cert_file=server.pem", "ssl_key_file=server.key"];
        Postgres::start_prepared(&settings, |data| {
            certificates.copy_to(data);
            std::fs::write(data.join("pg_hba.conf"), rules).expect("the rules are written");
        })
    }

    /// A server with the settings named.
    pub fn start_with(settings: &[&str]) -> Postgres {
        Postgres::start_prepared(settings, |_| {})
    }

    /// It listens at 127.0.0.2 too, which is in no certificate of the tests.
    fn start_prepared(settings: &[&str], prepare: impl FnOnce(&Path)) -> Postgres {
        let dir = TempDir::new().expect("a temporary directory").keep();
        std::fs::write(dir.join("password"), PASSWORD).expect("a file with the password");
        run(Command::new("chown").arg("-R").arg("postgres:postgres").arg(&dir));
        run(as_postgres("initdb")
            .args(["--no-sync", "--encoding=UTF8", "--locale=C", "--auth=scram-sha-256", "-U", USER, "-D"])
            .arg(data(&dir))
            .arg(format!("--pwfile={}", dir.join("password").display())));
        let mut conf =
            format!("unix_socket_directories = '{}'\nlisten_addresses = '127.0.0.1,127.0.0.2'\n", dir.display());
        conf += "max_connections = 500\nshared_buffers = 256MB\n";
        for setting in settings {
            let (name, value) = setting.split_once('=').expect("name=value");
            conf += &format!("{name} = '{value}'\n");
        }
        let file = data(&dir).join("postgresql.auto.conf");
        std::fs::write(&file, conf).expect("the settings are written");
        prepare(&data(&dir));
        run(Command::new("chown").arg("-R").arg("postgres:postgres").arg(&dir));
        let mut postgres = Postgres { port: free_port(), dir, databases_taken: AtomicU32::new(0), server: None };
        postgres.serve();
        postgres
    }

    fn serve(&mut self) {
        let mut server = as_postgres("postgres");
        server.arg("-D").arg(data(&self.dir)).arg(format!("--port={}", self.port));
        self.server = Some(Kept::start(&self.dir, &server, true));
        self.wait();
    }

    /// Kills the server as a crash would and starts it again over its data.
    pub fn restart(&mut self) {
        self.restart_after(Duration::from_millis(100));
        self.wait();
    }

    /// The same, after a while; it may still recover when this returns.
    pub fn restart_after(&mut self, pause: Duration) {
        let kept = self.server.as_mut().expect("a running server");
        kept.kill();
        std::thread::sleep(pause);
        // The crash left its lock behind.
        let _ = std::fs::remove_file(data(&self.dir).join("postmaster.pid"));
        kept.start_again();
        kept.wait_for_port("postgres", self.port);
    }

    fn wait(&mut self) {
        let (dir, port) = (self.dir.clone(), self.port);
        let answers = || psql(&dir, port, "SELECT 1").output().is_ok_and(|out| out.status.success());
        self.server.as_mut().expect("a running server").wait_until("postgres", answers);
    }

    /// Runs statements as the superuser and answers what they print, without names of columns.
    pub fn execute(&self, database: &str, sql: &str) -> String {
        let mut command = psql(&self.dir, self.port, sql);
        run(command.args(["-d", database]))
    }

    /// The name of a fresh, empty database.
    pub fn next_database(&self) -> String {
        let name = format!("t{}", self.databases_taken.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE DATABASE {name}"));
        name
    }

    /// The name of a fresh, empty schema in the database `postgres`.
    pub fn next_schema(&self) -> String {
        let name = format!("s{}", self.databases_taken.fetch_add(1, Ordering::Relaxed));
        self.execute("postgres", &format!("CREATE SCHEMA {name}"));
        name
    }

    /// The meta URL of a database.
    pub fn url(&self, database: &str) -> String {
        format!("postgres://{USER}:{PASSWORD}@127.0.0.1:{}/{database}?sslmode=disable", self.port)
    }
}

fn psql(dir: &Path, port: u16, sql: &str) -> Command {
    let mut command = Command::new(program("psql").expect("psql is installed"));
    command.env("PGPASSWORD", PASSWORD).args(["-X", "-q", "-A", "-t", "-v", "ON_ERROR_STOP=1", "-U", USER]);
    command.args(["-d", "postgres", "-h"]).arg(dir).args(["-p", &port.to_string(), "-c", sql]);
    command
}

impl Drop for Postgres {
    fn drop(&mut self) {
        self.server = None;
        let _ = std::fs::remove_dir_all(&self.dir);
    }
}
