//! Server processes that end with the test process.

use std::fs::File;
use std::io::Write;
use std::net::{TcpListener, TcpStream};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::sync::atomic::{AtomicU16, Ordering};
use std::time::{Duration, Instant};

/// Far more than a loaded machine needs.
const READY_DEADLINE: Duration = Duration::from_secs(120);
/// Ports that clients are not given, by default.
const FIRST_PORT: u16 = 12_000;
const PORTS: u16 = 17_001;
const LOOK_EVERY: Duration = Duration::from_millis(20);

/// Says why a test cannot run here. With SLUICE_TEST_ALL=1 that is a failure.
pub fn skip(why: &str) {
    assert!(std::env::var_os("SLUICE_TEST_ALL").is_none(), "cannot be skipped: {why}");
    eprintln!("SKIPPED: {why}");
}

/// A program of the system, or of the test environment that `tools/test.sh` makes. Servers also lie where only the
/// superuser's shell looks, and where Debian keeps those of which there may be several versions.
pub fn program(name: &str) -> Option<PathBuf> {
    let extra = std::env::var_os("SLUICE_TEST_BIN").map(PathBuf::from);
    let path = std::env::var_os("PATH").unwrap_or_default();
    let versions = std::fs::read_dir("/usr/lib/postgresql").into_iter().flatten().flatten();
    let versions = versions.map(|version| version.path().join("bin"));
    let fixed = ["/usr/sbin", "/usr/local/sbin"].map(PathBuf::from);
    extra
        .into_iter()
        .chain(std::env::split_paths(&path))
        .chain(fixed)
        .chain(versions)
        .map(|dir| dir.join(name))
        .find(|file| file.is_file())
}

/// A port that nobody listens on now. Not one that the system gives to clients: whoever tries to connect to such a port
/// while its server is away may be given that very port, be connected to itself, and keep the server from coming back.
pub fn free_port() -> u16 {
    static TAKEN: AtomicU16 = AtomicU16::new(0);
    // Other processes begin elsewhere.
    let begin = std::process::id() % u32::from(PORTS);
    for _ in 0..PORTS {
        let next = TAKEN.fetch_add(1, Ordering::Relaxed);
        let port = FIRST_PORT + ((begin + u32::from(next) * 7) % u32::from(PORTS)) as u16;
        if is_ours(port) && TcpListener::bind(("127.0.0.1", port)).is_ok() {
            return port;
        }
    }
    panic!("no port is free");
}

/// Takes a port for as long as this process lives: one whose server is away for a while is not for another process's.
fn is_ours(port: u16) -> bool {
    let dir = std::env::temp_dir().join("sluice-test-ports");
    std::fs::create_dir_all(&dir).expect("a directory for locks of ports");
    let lock = File::create(dir.join(port.to_string())).expect("a lock of a port");
    let taken = lock.try_lock().is_ok();
    if taken {
        // Closing it would let go of it.
        std::mem::forget(lock);
    }
    taken
}

/// `sh -c KEEPER DIRECTORY SERVER ARGUMENT…`: runs a server until the keeper's own input ends, which it does with the
/// process that started it, however that ends (what is static in a test process is never dropped); then removes the
/// directory, if it is to. `kill` and `start` on its input do that to the server.
const KEEPER: &str = r#"
trap '' INT
"$@" </dev/null & server=$!
while read -r word; do
    case $word in
        kill) kill -KILL $server; wait $server ;;
        start) "$@" </dev/null & server=$! ;;
    esac
done 2>/dev/null
kill -KILL $server
wait $server 2>/dev/null
[ -z "$keep" ] && rm -rf "$0"
:
"#;

/// A server process. Dropping it kills it at once.
pub struct Kept {
    keeper: Child,
    dir: PathBuf,
}

impl Kept {
    /// Runs a command until this is dropped or the process ends. Its output goes to `log` in `dir`, its own directory,
    /// which goes with it unless `keeps_dir`.
    pub fn start(dir: &Path, command: &Command, keeps_dir: bool) -> Kept {
        let log = File::options().create(true).append(true).open(dir.join("log")).expect("a log file");
        let keeper = Command::new("sh")
            .args(["-c", KEEPER])
            .arg(dir)
            .arg(command.get_program())
            .args(command.get_args())
            .envs(command.get_envs().filter_map(|(name, value)| Some((name, value?))))
            .env("keep", if keeps_dir { "yes" } else { "" })
            .current_dir("/")
            .stdin(Stdio::piped())
            .stdout(log.try_clone().expect("a second descriptor"))
            .stderr(log)
            .spawn()
            .expect("a shell");
        Kept { keeper, dir: dir.to_owned() }
    }

    /// Kills the server as a crash would.
    pub fn kill(&mut self) {
        self.tell("kill\n");
    }

    /// Starts a server that was killed again. Not by a new child of this process: that would close its copies of the files
    /// that the process has open before it became the server, and wait for those on a mount whose server is away.
    pub fn start_again(&mut self) {
        self.tell("start\n");
    }

    fn tell(&mut self, word: &str) {
        let input = self.keeper.stdin.as_mut().expect("the keeper listens");
        input.write_all(word.as_bytes()).expect("the keeper is there");
    }

    /// Waits until it answers, as `ready` tells. A server that ended, or that takes minutes, is a failure of the test.
    pub fn wait_until(&mut self, what: &str, mut ready: impl FnMut() -> bool) {
        let started = Instant::now();
        while !ready() {
            let ended = self.keeper.try_wait().expect("the state of the keeper").is_some();
            if ended || started.elapsed() > READY_DEADLINE {
                let log = std::fs::read_to_string(self.dir.join("log")).unwrap_or_default();
                panic!("{what} does not come up:\n{log}");
            }
            std::thread::sleep(LOOK_EVERY);
        }
    }

    /// Waits until something listens on a port of loopback.
    pub fn wait_for_port(&mut self, what: &str, port: u16) {
        self.wait_until(what, || TcpStream::connect(("127.0.0.1", port)).is_ok());
    }
}

impl Drop for Kept {
    fn drop(&mut self) {
        // The end of its input is the sign.
        drop(self.keeper.stdin.take());
        let _ = self.keeper.wait();
    }
}

/// Runs a command to its end; anything but success is a failure of the test.
#[track_caller]
pub(crate) fn run(command: &mut Command) -> String {
    let output = command.stdin(Stdio::null()).output().unwrap_or_else(|error| panic!("{command:?}: {error}"));
    let text = |bytes: &[u8]| String::from_utf8_lossy(bytes).into_owned();
    assert!(
        output.status.success(),
        "{command:?}: {}\n{}{}",
        output.status,
        text(&output.stdout),
        text(&output.stderr)
    );
    text(&output.stdout)
}
