//! Servers, volumes and mounts for the tests, all on loopback and in temporary directories, all gone when dropped.

use sluice_test_servers::etcd::Etcd;
use sluice_test_servers::mariadb::Mariadb;
use sluice_test_servers::postgres::Postgres;
use sluice_test_servers::redis::Cluster;
pub use sluice_test_servers::{free_port, program, skip};
use std::fs::File;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Output, Stdio};
use std::sync::OnceLock;
use std::time::{Duration, Instant};
use tempfile::TempDir;

/// The binary under test.
pub const SLUICE: &str = env!("CARGO_BIN_EXE_sluice");
/// Options of a mount, ours or the peer's, that shows at once what another one has done.
pub const UNCACHED: [&str; 6] = ["--attr-cache", "0", "--entry-cache", "0", "--dir-entry-cache", "0"];

const BUSY_MAX: Duration = Duration::from_secs(10);
const READY_DEADLINE: Duration = Duration::from_secs(60);

/// Where metadata goes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Engine {
    Sqlite,
    /// A server of the volume's own, as the tests take it away.
    Redis,
    /// A database of the server that all tests share; the same for the next two.
    Mariadb,
    Postgres,
    Etcd,
    /// A volume of the three nodes that all tests share.
    RedisCluster,
}

impl Engine {
    pub const ALL: [Engine; 6] =
        [Engine::Sqlite, Engine::Redis, Engine::Mariadb, Engine::Postgres, Engine::Etcd, Engine::RedisCluster];

    /// The programs it takes.
    pub fn programs(self) -> &'static [&'static str] {
        match self {
            Engine::Sqlite => &[],
            Engine::Redis | Engine::RedisCluster => &["redis-server", "redis-cli"],
            Engine::Mariadb => &Mariadb::PROGRAMS,
            Engine::Postgres => &Postgres::PROGRAMS,
            Engine::Etcd => &Etcd::PROGRAMS,
        }
    }
}

/// Where objects go.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Store {
    File,
    S3,
}

/// Whether mounts are possible: root, /dev/fuse, and the programs named.
pub fn ready(programs: &[&str]) -> bool {
    // SAFETY: geteuid has no preconditions.
    if unsafe { libc::geteuid() } != 0 {
        skip("mounting needs root");
        return false;
    }
    if !Path::new("/dev/fuse").exists() {
        skip("there is no /dev/fuse");
        return false;
    }
    for name in programs {
        if program(name).is_none() {
            skip(&format!("{name} is not installed"));
            return false;
        }
    }
    true
}

/// A child process that is ended with its owner.
pub struct Server(Child);

impl Drop for Server {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn wait_for_port(port: u16, what: &str) {
    let started = Instant::now();
    while TcpStream::connect(("127.0.0.1", port)).is_err() {
        assert!(started.elapsed() < READY_DEADLINE, "{what} does not listen on port {port}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A Redis server of this test alone.
pub struct Redis {
    pub port: u16,
    server: Option<Server>,
    dir: TempDir,
}

impl Redis {
    pub fn start() -> Redis {
        let dir = TempDir::new().expect("a temporary directory");
        let mut redis = Redis { port: free_port(), server: None, dir };
        redis.serve();
        redis
    }

    fn serve(&mut self) {
        let child = Command::new(program("redis-server").expect("redis-server is installed"))
            .args(["--port", &self.port.to_string(), "--bind", "127.0.0.1", "--save", "", "--appendonly", "no"])
            .arg("--dir")
            .arg(self.dir.path())
            .stdout(Stdio::null())
            .spawn()
            .expect("redis-server starts");
        self.server = Some(Server(child));
        wait_for_port(self.port, "redis-server");
    }

    /// Away for a while, back with its data.
    fn interrupt(&mut self, pause: Duration) {
        run(Command::new("redis-cli").args(["-p", &self.port.to_string(), "shutdown", "save"]));
        self.server = None;
        std::thread::sleep(pause);
        self.serve();
    }
}

/// The S3 service that all tests of a run share; SeaweedFS needs seconds to start.
pub struct Weed {
    pub s3_port: u16,
    /// Holds the input of the server's keeper open.
    _keeper: Child,
}

/// `sh -c KEEPER DIRECTORY SERVER ARGUMENT...`: runs a server until its own input ends, which it does with the process
/// that started it, however that ends; then removes the directory. What is static in a test run is never dropped.
const KEEPER: &str = r#""$@" </dev/null & cat >/dev/null; kill $!; wait $!; rm -rf "$0""#;

pub const S3_KEY: &str = "sluicetest";
pub const S3_SECRET: &str = "sluicetestsecret";

impl Weed {
    pub fn shared() -> &'static Weed {
        static SHARED: OnceLock<Weed> = OnceLock::new();
        SHARED.get_or_init(Weed::start)
    }

    fn start() -> Weed {
        let dir = TempDir::new().expect("a temporary directory").keep();
        let identities = format!(
            r#"{{"identities":[{{"name":"t","credentials":[{{"accessKey":"{S3_KEY}","secretKey":"{S3_SECRET}"}}],"actions":["Admin","Read","Write","List","Tagging"]}}]}}"#
        );
        let config = dir.join("s3.json");
        std::fs::write(&config, identities).expect("the identities are written");
        // Each service has a twin port 10000 above.
        let base = (0..)
            .map(|_| 20000 + free_port() % 9000)
            .find(|base| {
                (0..4).all(|i| [0, 10000].iter().all(|twin| TcpListener::bind(("127.0.0.1", base + i + twin)).is_ok()))
            })
            .expect("free ports");
        let keeper = Command::new("sh")
            .args(["-c", KEEPER])
            .arg(&dir)
            .arg(program("weed").expect("weed is installed"))
            .args(["server", "-ip=127.0.0.1", "-ip.bind=127.0.0.1", "-master.telemetry=false", "-filer", "-s3"])
            .args(["-s3.port.iceberg=0", "-s3.port.lance=0", "-volume.max=200", "-master.volumeSizeLimitMB=512"])
            .arg(format!("-dir={}", dir.display()))
            .arg(format!("-s3.config={}", config.display()))
            .arg(format!("-master.port={base}"))
            .arg(format!("-volume.port={}", base + 1))
            .arg(format!("-filer.port={}", base + 2))
            .arg(format!("-s3.port={}", base + 3))
            .stdin(Stdio::piped())
            .stdout(Stdio::null())
            .stderr(File::create(dir.join("log")).expect("a log file"))
            .spawn()
            .expect("weed starts");
        wait_for_port(base + 3, "weed");
        std::thread::sleep(Duration::from_secs(5)); // its volumes come up after its port
        Weed { s3_port: base + 3, _keeper: keeper }
    }
}

/// A formatted volume.
pub struct Volume {
    pub name: String,
    pub meta_url: String,
    pub dir: TempDir,
    /// Where it was formatted to keep its objects.
    pub store: Store,
    /// Where the S3 service is reached, if not directly.
    pub s3_port: Option<u16>,
    /// The directory of a file store, if not beside the metadata.
    pub objects: Option<PathBuf>,
    pub redis: Option<Redis>,
    env: Vec<(String, String)>,
}

impl Volume {
    /// A fresh volume; `options` go to `format`.
    pub fn format(engine: Engine, store: Store, options: &[&str]) -> Volume {
        let volume = Volume { store, ..Volume::unformatted(engine) };
        volume.run_format(SLUICE, store, options);
        volume
    }

    /// Only the place for one; whoever formats it calls `run_format`.
    pub fn unformatted(engine: Engine) -> Volume {
        let dir = TempDir::new().expect("a temporary directory");
        let (meta_url, redis) = match engine {
            Engine::Sqlite => (format!("sqlite3://{}/meta.db", dir.path().display()), None),
            Engine::Redis => {
                let redis = Redis::start();
                (format!("redis://127.0.0.1:{}/1", redis.port), Some(redis))
            }
            Engine::Mariadb => {
                let server = Mariadb::shared();
                (server.url(&server.next_database()), None)
            }
            Engine::Postgres => {
                let server = Postgres::shared();
                (server.url(&server.next_database()), None)
            }
            Engine::Etcd => (Etcd::shared().next_url(), None),
            Engine::RedisCluster => (Cluster::shared().next_url(), None),
        };
        let unique = dir.path().file_name().expect("a name").to_string_lossy().to_lowercase();
        let name = format!("t{}", unique.chars().filter(char::is_ascii_alphanumeric).collect::<String>());
        let env = vec![("ACCESS_KEY".into(), S3_KEY.into()), ("SECRET_KEY".into(), S3_SECRET.into())];
        Volume { name, meta_url, dir, store: Store::File, s3_port: None, objects: None, redis, env }
    }

    /// All commands on this volume get a variable in their environment.
    pub fn with_env(mut self, name: &str, value: &str) -> Volume {
        self.env.push((name.into(), value.into()));
        self
    }

    pub fn run_format(&self, binary: impl AsRef<Path>, store: Store, options: &[&str]) {
        let (storage, bucket) = match store {
            Store::File => {
                // With shards each has its number in the name.
                let number = if options.contains(&"--shards") { "%d" } else { "" };
                let objects = self.objects.clone().unwrap_or_else(|| self.dir.path().join("objects"));
                ("file", format!("{}{number}/", objects.display()))
            }
            Store::S3 => {
                let port = self.s3_port.unwrap_or_else(|| Weed::shared().s3_port);
                ("s3", format!("http://127.0.0.1:{port}/{}-bucket", self.name))
            }
        };
        let mut command = self.command(binary);
        command.args(["format", "--storage", storage, "--bucket", &bucket]).args(options);
        run(command.arg(&self.meta_url).arg(&self.name));
    }

    /// The URL of the Redis server itself, where `meta_url` leads through a proxy.
    pub fn direct_url(&self) -> String {
        format!("redis://127.0.0.1:{}/1", self.redis.as_ref().expect("an engine with a server").port)
    }

    /// A command with the environment of this volume.
    pub fn command(&self, binary: impl AsRef<Path>) -> Command {
        let mut command = Command::new(binary.as_ref());
        command.envs(self.env.iter().map(|(k, v)| (k, v)));
        if store_needs_no_keys(&self.meta_url) {
            command.env_remove("META_PASSWORD");
        }
        command
    }

    /// Kills the server of the metadata, with all that it held.
    pub fn lose_engine(&mut self) {
        drop(self.redis.take().expect("an engine with a server"));
    }

    /// The server of the metadata goes away for a while and comes back.
    pub fn interrupt_engine(&mut self, pause: Duration) {
        self.redis.as_mut().expect("an engine with a server").interrupt(pause);
    }

    /// Runs `sluice` on this volume and answers its standard output.
    pub fn sluice(&self, args: &[&str]) -> String {
        run(self.command(SLUICE).args(args))
    }

    /// Mounts the volume; each mount of a volume has a cache of its own.
    pub fn mount(&self, options: &[&str]) -> Mount {
        self.mount_with(SLUICE, options)
    }

    pub fn mount_with(&self, binary: impl AsRef<Path>, options: &[&str]) -> Mount {
        let dir = TempDir::new().expect("a temporary directory");
        let point = dir.path().join("mnt");
        std::fs::create_dir(&point).expect("a mount point");
        let log = dir.path().join("log");
        let mut command = self.command(&binary);
        command.args(["mount", "-d", "--log"]).arg(&log).arg("--cache-dir").arg(dir.path().join("cache"));
        command.args(["--cache-size", "1024"]).args(options).arg(&self.meta_url).arg(&point);
        let output = command.output().expect("mount runs");
        assert!(
            output.status.success(),
            "mount failed: {}{}\nlog: {}",
            String::from_utf8_lossy(&output.stdout),
            String::from_utf8_lossy(&output.stderr),
            std::fs::read_to_string(&log).unwrap_or_default()
        );
        assert!(is_mounted(&point), "mount returned before {} is mounted", point.display());
        Mount { point, log, binary: binary.as_ref().to_owned(), _dir: dir }
    }
}

fn store_needs_no_keys(meta_url: &str) -> bool {
    meta_url.starts_with("sqlite3://")
}

pub fn is_mounted(point: &Path) -> bool {
    let mounts = std::fs::read_to_string("/proc/self/mounts").expect("/proc is there");
    mounts.lines().any(|line| line.split(' ').nth(1) == point.to_str())
}

/// A mounted volume.
pub struct Mount {
    pub point: PathBuf,
    pub log: PathBuf,
    binary: PathBuf,
    _dir: TempDir,
}

impl Mount {
    pub fn path(&self, name: impl AsRef<Path>) -> PathBuf {
        self.point.join(name)
    }

    pub fn log_text(&self) -> String {
        std::fs::read_to_string(&self.log).unwrap_or_default()
    }

    /// Unmounts as a user does, and waits until the client has ended. Whatever this process has open on the mount is open
    /// for a moment in every program that another test starts meanwhile, so that it may be busy.
    pub fn umount(&self) {
        let started = Instant::now();
        loop {
            let ended = output(Command::new(&self.binary).arg("umount").arg(&self.point));
            if ended.status.success() {
                break;
            }
            let text = String::from_utf8_lossy(&ended.stderr);
            let busy = text.contains("busy") || text.contains("in use");
            assert!(busy && started.elapsed() < BUSY_MAX, "{} is not unmounted: {text}", self.point.display());
            std::thread::sleep(Duration::from_millis(50));
        }
        assert!(!is_mounted(&self.point), "umount returned while {} is mounted", self.point.display());
        self.wait_for_exit();
    }

    /// The client's processes name their log on their command line; its end, with the mount point, is lost with the peer
    /// where it hides what is secret in the URL before it.
    pub fn pids(&self) -> Vec<i32> {
        let wanted = self.log.as_os_str().as_encoded_bytes();
        let entries = std::fs::read_dir("/proc").expect("/proc is there");
        entries
            .filter_map(|entry| entry.ok()?.file_name().to_str()?.parse().ok())
            .filter(|pid: &i32| {
                let line = std::fs::read(format!("/proc/{pid}/cmdline")).unwrap_or_default();
                let words: Vec<&[u8]> = line.split(|b| *b == 0 || *b == b' ').collect();
                words.contains(&wanted) && words.contains(&&b"mount"[..])
            })
            .collect()
    }

    /// Sends a signal to the client with all its processes.
    pub fn signal(&self, signal: i32) {
        for pid in self.pids() {
            // SAFETY: kill has no preconditions; the processes are those of this mount.
            unsafe { libc::kill(pid, signal) };
        }
    }

    /// `kill -9` of the client with all its processes, and the dead mount off its point.
    pub fn kill(&self) {
        self.signal(libc::SIGKILL);
        self.wait_for_exit();
        run(Command::new("umount").arg("-l").arg(&self.point));
    }

    pub fn wait_for_exit(&self) {
        let started = Instant::now();
        while !self.pids().is_empty() {
            assert!(started.elapsed() < READY_DEADLINE, "the client is still running after umount");
            std::thread::sleep(Duration::from_millis(20));
        }
    }
}

impl Drop for Mount {
    fn drop(&mut self) {
        if is_mounted(&self.point) {
            let _ = Command::new(&self.binary).arg("umount").arg(&self.point).output();
        }
        if is_mounted(&self.point) {
            let _ = Command::new("umount").arg("-l").arg(&self.point).output();
        }
        if std::thread::panicking() {
            eprintln!("--- log of {}\n{}", self.point.display(), self.log_text());
        }
    }
}

/// Runs a command to its end and answers its standard output; anything but success is a failure of the test.
#[track_caller]
pub fn run(command: &mut Command) -> String {
    let output = output(command);
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        String::from_utf8_lossy(&output.stdout),
        String::from_utf8_lossy(&output.stderr)
    );
    String::from_utf8_lossy(&output.stdout).into_owned()
}

pub fn output(command: &mut Command) -> Output {
    command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"))
}

/// Runs a line of shell in a directory.
#[track_caller]
pub fn sh(dir: &Path, line: &str) -> String {
    run(Command::new("bash").args(["-euo", "pipefail", "-c", line]).current_dir(dir))
}
