//! Redis: single servers, a cluster, and a master with replicas and sentinels. Nothing is kept over a crash: a server that
//! is started again is empty, and a node of a cluster does not come back to it.

pub use crate::Certificates;
use crate::process::{Kept, free_port, program, run};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use std::time::{Duration, Instant};
use tempfile::TempDir;

const SLOTS: usize = 16384;
/// Far more than a loaded machine needs.
const SETTLE_DEADLINE: Duration = Duration::from_secs(120);
/// The name under which sentinels know their master.
pub const MASTER: &str = "volumes";
/// Databases of a single server.
const DATABASES: u32 = 4096;

/// Lines of configuration of a server that takes no scripts.
pub const WITHOUT_SCRIPTS: [&str; 2] = ["rename-command EVAL \"\"", "rename-command EVALSHA \"\""];

/// One server process. Dropping it ends it; its directory goes with it.
pub struct Redis {
    pub port: u16,
    dir: PathBuf,
    configuration: String,
    is_sentinel: bool,
    databases_taken: AtomicU32,
    server: Option<Kept>,
    /// Where it speaks TLS as well.
    tls_port: Option<u16>,
}

impl Redis {
    /// The programs it takes.
    pub const PROGRAMS: [&str; 2] = ["redis-server", "redis-cli"];

    /// A server with these lines of configuration besides its own.
    pub fn start(lines: &[&str]) -> Redis {
        Redis::start_as(lines, false)
    }

    /// The server without scripts of all tests of this process.
    pub fn shared_without_scripts() -> &'static Redis {
        static SERVER: OnceLock<Redis> = OnceLock::new();
        SERVER.get_or_init(|| Redis::start(&WITHOUT_SCRIPTS))
    }

    fn start_as(lines: &[&str], is_sentinel: bool) -> Redis {
        let (dir, port) = (TempDir::new().expect("a temporary directory").keep(), free_port());
        let mut text = format!("bind 127.0.0.1\nport {port}\ndir {}\n", dir.display());
        if !is_sentinel {
            text += &format!("save \"\"\nappendonly no\nunixsocket {}\n", dir.join("socket").display());
            text += "repl-diskless-sync-delay 0\nclient-output-buffer-limit replica 0 0 0\n";
            if !lines.contains(&"cluster-enabled yes") {
                text += &format!("databases {DATABASES}\n");
            }
        }
        let configuration = text + &lines.join("\n") + "\n";
        let mut redis = Redis {
            port,
            dir,
            configuration,
            is_sentinel,
            databases_taken: AtomicU32::new(0),
            server: None,
            tls_port: None,
        };
        redis.restart();
        redis
    }

    /// With TLS at a port of its own, where there are certificates; it then takes TLS to other servers as well.
    fn start_tls(lines: &[&str], is_sentinel: bool, certificates: Option<&Certificates>) -> Redis {
        let Some(certificates) = certificates else { return Redis::start_as(lines, is_sentinel) };
        let port = free_port();
        let tls = certificates.lines(port, false);
        let tls: Vec<&str> = tls.iter().map(String::as_str).chain(["tls-replication yes"]).collect();
        let server = Redis::start_as(&[lines, &tls].concat(), is_sentinel);
        Redis { tls_port: Some(port), ..server }
    }

    /// Where other servers find it, and clients of the same kind.
    fn peer_port(&self) -> u16 {
        self.tls_port.unwrap_or(self.port)
    }

    /// Starts it again after [`Redis::kill`].
    pub fn restart(&mut self) {
        std::fs::create_dir_all(&self.dir).expect("a directory");
        std::fs::write(self.dir.join("conf"), &self.configuration).expect("a file of configuration");
        let mut command = Command::new(program("redis-server").expect("redis-server is installed"));
        command.arg(self.dir.join("conf"));
        if self.is_sentinel {
            command.arg("--sentinel");
        }
        let mut kept = Kept::start(&self.dir, &command, false);
        let socket = self.dir.join("socket");
        match self.is_sentinel {
            true => kept.wait_for_port("redis-server", self.port),
            false => kept.wait_until("redis-server", || std::os::unix::net::UnixStream::connect(&socket).is_ok()),
        }
        self.server = Some(kept);
    }

    /// Ends it at once.
    pub fn kill(&mut self) {
        self.server = None;
    }

    pub fn socket(&self) -> PathBuf {
        self.dir.join("socket")
    }

    /// Runs a command and answers what `redis-cli` prints; an answer that is an error is printed as well.
    pub fn run(&self, words: &[&str]) -> String {
        let client = program("redis-cli").expect("redis-cli is installed");
        let mut command = Command::new(client);
        match self.is_sentinel {
            true => command.args(["-p", &self.port.to_string()]),
            false => command.arg("-s").arg(self.socket()),
        };
        run(command.args(words)).trim_end().to_owned()
    }

    pub fn address(&self) -> String {
        format!("127.0.0.1:{}", self.port)
    }

    /// The meta URL of a database.
    pub fn url(&self, db: u32) -> String {
        format!("redis://{}/{db}", self.address())
    }

    /// The meta URL of a fresh, empty database.
    pub fn next_url(&self) -> String {
        let number = self.databases_taken.fetch_add(1, Ordering::Relaxed);
        assert!(number < DATABASES, "the tests need more databases");
        self.url(number)
    }
}

fn settles(what: &str, mut settled: impl FnMut() -> bool) {
    let begun = Instant::now();
    while !settled() {
        assert!(begun.elapsed() < SETTLE_DEADLINE, "{what}");
        std::thread::sleep(Duration::from_millis(50));
    }
}

/// A cluster whose masters share the slots in equal parts.
pub struct Cluster {
    /// The masters, then the replicas of the first, of the second, …
    pub nodes: Vec<Redis>,
    masters: usize,
    databases_taken: AtomicU32,
}

impl Cluster {
    /// Three masters, for all tests of this process.
    pub fn shared() -> &'static Cluster {
        static CLUSTER: OnceLock<Cluster> = OnceLock::new();
        CLUSTER.get_or_init(|| Cluster::start(3, 0))
    }

    pub fn start(masters: usize, replicas: usize) -> Cluster {
        Cluster::start_tls(masters, replicas, &[], None)
    }

    /// With these lines of configuration for each node, and TLS where there are certificates.
    pub fn start_tls(masters: usize, replicas: usize, lines: &[&str], certificates: Option<&Certificates>) -> Cluster {
        let node = || {
            let bus = format!("cluster-port {}", free_port());
            let own = ["cluster-enabled yes", "cluster-config-file nodes.conf", "cluster-node-timeout 1500", &bus];
            let tls = certificates.map(|_| "tls-cluster yes");
            Redis::start_tls(&[lines, &own, tls.as_slice()].concat(), false, certificates)
        };
        let nodes: Vec<Redis> = (0..masters * (1 + replicas)).map(|_| node()).collect();
        for (i, node) in nodes.iter().enumerate() {
            node.run(&["CLUSTER", "SET-CONFIG-EPOCH", &(i + 1).to_string()]);
            if i < masters {
                let (first, end) = (SLOTS * i / masters, SLOTS * (i + 1) / masters);
                node.run(&["CLUSTER", "ADDSLOTSRANGE", &first.to_string(), &(end - 1).to_string()]);
            }
            let bus = nodes[0].run(&["CONFIG", "GET", "cluster-port"]);
            let bus = bus.lines().last().expect("a port");
            node.run(&["CLUSTER", "MEET", "127.0.0.1", &nodes[0].peer_port().to_string(), bus]);
        }
        let cluster = Cluster { nodes, masters, databases_taken: AtomicU32::new(0) };
        let count = format!("cluster_known_nodes:{}", cluster.nodes.len());
        settles("the nodes of the cluster do not find each other", || {
            let knows_all = |node: &Redis| {
                let info = node.run(&["CLUSTER", "INFO"]);
                info.contains("cluster_state:ok") && info.lines().any(|line| line.trim_end() == count)
            };
            cluster.nodes.iter().all(knows_all)
        });
        for (i, node) in cluster.nodes.iter().enumerate().skip(masters) {
            node.run(&["CLUSTER", "REPLICATE", &cluster.id((i - masters) / replicas)]);
        }
        for node in &cluster.nodes[masters..] {
            settles("a replica does not follow", || node.run(&["INFO", "replication"]).contains("link_status:up"));
        }
        // Not all of them have heard of it.
        for node in &cluster.nodes {
            let replicas = masters * replicas;
            settles("the replicas are not known", || {
                node.run(&["CLUSTER", "NODES"]).matches("slave").count() == replicas
            });
        }
        cluster
    }

    /// What the cluster calls a node.
    pub fn id(&self, node: usize) -> String {
        self.nodes[node].run(&["CLUSTER", "MYID"])
    }

    /// The master that had a slot in the beginning.
    pub fn master_of(&self, slot: u16) -> usize {
        let has = |i: &usize| (SLOTS * i / self.masters..SLOTS * (i + 1) / self.masters).contains(&usize::from(slot));
        (0..self.masters).find(has).expect("a slot")
    }

    /// Prepares both nodes for the move of a slot, and leaves its keys where they are.
    pub fn begin_move(&self, slot: u16, from: usize, to: usize) {
        let name = slot.to_string();
        self.nodes[to].run(&["CLUSTER", "SETSLOT", &name, "IMPORTING", &self.id(from)]);
        self.nodes[from].run(&["CLUSTER", "SETSLOT", &name, "MIGRATING", &self.id(to)]);
    }

    /// Moves a slot with all its keys, as tools for it do; `pause` before each part of the keys.
    pub fn move_slot(&self, slot: u16, from: usize, to: usize, pause: Duration) {
        let (name, source, target) = (slot.to_string(), &self.nodes[from], &self.nodes[to]);
        self.begin_move(slot, from, to);
        loop {
            std::thread::sleep(pause);
            let keys = source.run(&["CLUSTER", "GETKEYSINSLOT", &name, "10"]);
            let keys: Vec<&str> = keys.lines().filter(|key| !key.is_empty()).collect();
            if keys.is_empty() {
                break;
            }
            let port = target.port.to_string();
            let moved = [&["MIGRATE", "127.0.0.1", &port, "", "0", "5000", "KEYS"][..], &keys].concat();
            source.run(&moved);
        }
        let new = self.id(to);
        for node in [target, source].into_iter().chain(&self.nodes[..self.masters]) {
            node.run(&["CLUSTER", "SETSLOT", &name, "NODE", &new]);
        }
    }

    /// The meta URL of a volume, by all masters.
    pub fn url(&self, db: u32) -> String {
        let addresses: Vec<String> = self.nodes[..self.masters].iter().map(Redis::address).collect();
        format!("redis://{}/{db}", addresses.join(","))
    }

    /// The same over TLS, for a user.
    pub fn tls_url(&self, user: &str, db: u32, certificates: &Certificates) -> String {
        let hosts: Vec<String> =
            self.nodes[..self.masters].iter().map(|node| format!("127.0.0.1:{}", node.peer_port())).collect();
        let trust = certificates.path("authority.pem");
        format!("rediss://{user}@{}/{db}?tls-ca-cert-file={trust}", hosts.join(","))
    }

    /// The meta URL of a fresh volume: all nodes, or one.
    pub fn next_url(&self) -> String {
        let db = self.databases_taken.fetch_add(1, Ordering::Relaxed);
        if db % 2 == 0 { self.url(db) } else { self.nodes[0].url(db) }
    }
}

/// A master and replicas that three sentinels watch.
pub struct Watched {
    pub servers: Vec<Redis>,
    pub sentinels: Vec<Redis>,
    databases_taken: AtomicU32,
}

impl Watched {
    /// A master with two replicas, for all tests of this process that end nothing.
    pub fn shared() -> &'static Watched {
        static WATCHED: OnceLock<Watched> = OnceLock::new();
        WATCHED.get_or_init(|| Watched::start(&[]))
    }

    /// With these lines of configuration for each of the servers.
    pub fn start(lines: &[&str]) -> Watched {
        Watched::start_tls(lines, None)
    }

    /// The same, and TLS where there are certificates.
    pub fn start_tls(lines: &[&str], certificates: Option<&Certificates>) -> Watched {
        let master = Redis::start_tls(lines, false, certificates);
        let follows = format!("replicaof 127.0.0.1 {}", master.peer_port());
        let replica = || Redis::start_tls(&[lines, &[follows.as_str()]].concat(), false, certificates);
        let (one, two) = (replica(), replica());
        for server in [&one, &two] {
            settles("a replica does not follow", || server.run(&["INFO", "replication"]).contains("link_status:up"));
        }
        let monitor = format!("sentinel monitor {MASTER} 127.0.0.1 {} 2", master.peer_port());
        let options = [
            monitor,
            format!("sentinel down-after-milliseconds {MASTER} 1000"),
            format!("sentinel failover-timeout {MASTER} 4000"),
            format!("sentinel parallel-syncs {MASTER} 2"),
        ];
        let options: Vec<&str> = options.iter().map(String::as_str).collect();
        let sentinels: Vec<Redis> = (0..3).map(|_| Redis::start_tls(&options, true, certificates)).collect();
        for sentinel in &sentinels {
            settles("a sentinel does not know all others", || {
                let says = |of: &str| sentinel.run(&["SENTINEL", of, MASTER]).lines().filter(|l| *l == "name").count();
                says("REPLICAS") == 2 && says("SENTINELS") == 2
            });
        }
        Watched { servers: vec![master, one, two], sentinels, databases_taken: AtomicU32::new(0) }
    }

    /// Which of the servers is the master, as the sentinels have it.
    pub fn master(&self) -> usize {
        let address = self.sentinels[0].run(&["SENTINEL", "GET-MASTER-ADDR-BY-NAME", MASTER]);
        let port = address.lines().last().and_then(|port| port.parse().ok());
        self.servers.iter().position(|server| Some(server.peer_port()) == port).expect("one of the servers")
    }

    /// The meta URL of a database.
    pub fn url(&self, db: u32) -> String {
        let addresses: Vec<String> = self.sentinels.iter().map(Redis::address).collect();
        format!("redis://{MASTER},{}/{db}", addresses.join(","))
    }

    /// The same over TLS, for a user.
    pub fn tls_url(&self, user: &str, db: u32, certificates: &Certificates) -> String {
        let hosts: Vec<String> =
            self.sentinels.iter().map(|sentinel| format!("127.0.0.1:{}", sentinel.peer_port())).collect();
        let trust = certificates.path("authority.pem");
        format!("rediss://{user}@{MASTER},{}/{db}?tls-ca-cert-file={trust}", hosts.join(","))
    }

    /// Hands over to a replica, and waits until it has been.
    pub fn fail_over(&self) {
        let before = self.master();
        settles("no failover begins", || self.sentinels[1].run(&["SENTINEL", "FAILOVER", MASTER]) == "OK");
        self.wait_for_another_than(before);
    }

    pub fn wait_for_another_than(&self, master: usize) {
        settles("no failover", || self.master() != master);
    }

    /// The meta URL of a fresh, empty database.
    pub fn next_url(&self) -> String {
        self.url(self.databases_taken.fetch_add(1, Ordering::Relaxed))
    }
}

impl Certificates {
    /// Lines of configuration of a server that listens for TLS at a port, and asks clients for certificates or not.
    pub fn lines(&self, port: u16, clients: bool) -> Vec<String> {
        vec![
            format!("tls-port {port}"),
            format!("tls-cert-file {}", self.path("server.pem")),
            format!("tls-key-file {}", self.path("server.key")),
            format!("tls-ca-cert-file {}", self.path("authority.pem")),
            format!("tls-auth-clients {}", if clients { "yes" } else { "no" }),
        ]
    }
}
