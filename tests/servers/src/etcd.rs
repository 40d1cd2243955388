//! etcd: one server or a cluster of three, a key prefix per test.

use crate::Certificates;
use crate::process::{Kept, free_port, program};
use std::path::PathBuf;
use std::process::Command;
use std::sync::OnceLock;
use std::sync::atomic::{AtomicU32, Ordering};
use tempfile::TempDir;

/// A cluster of one or more nodes. Dropping it ends them and removes their data.
pub struct Etcd {
    nodes: Vec<Node>,
    /// Options of TLS towards clients.
    tls: Vec<String>,
    prefixes_taken: AtomicU32,
}

struct Node {
    client_port: u16,
    peer_port: u16,
    dir: PathBuf,
    server: Option<Kept>,
}

impl Etcd {
    pub const PROGRAMS: [&str; 1] = ["etcd"];

    /// The server of all tests of this process: one node, without durability.
    pub fn shared() -> &'static Etcd {
        static SERVER: OnceLock<Etcd> = OnceLock::new();
        SERVER.get_or_init(|| Etcd::start(1))
    }

    /// A cluster of so many nodes.
    pub fn start(nodes: usize) -> Etcd {
        Etcd::start_with(nodes, Vec::new())
    }

    /// One node that speaks TLS, with clients that have a certificate only, if so.
    pub fn start_tls(certificates: &Certificates, clients: bool) -> Etcd {
        let option = |name: &str, file: &str| format!("--{name}={}", certificates.path(file));
        let mut tls = vec![option("cert-file", "server.pem"), option("key-file", "server.key")];
        if clients {
            tls.extend([option("trusted-ca-file", "authority.pem"), "--client-cert-auth".to_owned()]);
        }
        Etcd::start_with(1, tls)
    }

    fn start_with(nodes: usize, tls: Vec<String>) -> Etcd {
        let node = |_| Node {
            client_port: free_port(),
            peer_port: free_port(),
            dir: TempDir::new().expect("a temporary directory").keep(),
            server: None,
        };
        let mut etcd = Etcd { nodes: (0..nodes).map(node).collect(), tls, prefixes_taken: AtomicU32::new(0) };
        let commands: Vec<Command> = (0..nodes).map(|number| etcd.command(number, "new")).collect();
        for (node, command) in etcd.nodes.iter_mut().zip(&commands) {
            node.server = Some(Kept::start(&node.dir, command, true));
        }
        for number in 0..nodes {
            etcd.wait_for(number);
        }
        etcd
    }

    fn command(&self, number: usize, state: &str) -> Command {
        let name = |number: usize| format!("n{number}");
        let peer = |node: &Node| format!("http://127.0.0.1:{}", node.peer_port);
        let all: Vec<String> =
            self.nodes.iter().enumerate().map(|(number, node)| format!("{}={}", name(number), peer(node))).collect();
        let node = &self.nodes[number];
        let scheme = if self.tls.is_empty() { "http" } else { "https" };
        let client = format!("{scheme}://127.0.0.1:{}", node.client_port);
        let mut command = Command::new(program("etcd").expect("etcd is installed"));
        command.args(["--name", &name(number), "--data-dir"]).arg(node.dir.join("data"));
        command.args(["--listen-client-urls", &client, "--advertise-client-urls", &client]);
        command.args(["--listen-peer-urls", &peer(node), "--initial-advertise-peer-urls", &peer(node)]);
        command.args(["--initial-cluster", &all.join(","), "--initial-cluster-state", state, "--log-level", "error"]);
        // For tests with millions of keys; etcd itself ends at 2 GiB.
        command.args(["--quota-backend-bytes", "17179869184"]).args(&self.tls);
        if self.nodes.len() == 1 {
            command.arg("--unsafe-no-fsync");
        }
        command
    }

    fn wait_for(&mut self, number: usize) {
        let node = &mut self.nodes[number];
        let port = node.client_port;
        node.server.as_mut().expect("a running node").wait_for_port("etcd", port);
    }

    /// Kills one node, as a crash would.
    pub fn kill_node(&mut self, number: usize) {
        self.nodes[number].server.as_mut().expect("a running node").kill();
    }

    /// Starts a killed node again over its data.
    pub fn start_node(&mut self, number: usize) {
        self.nodes[number].server.as_mut().expect("a killed node").start_again();
        self.wait_for(number);
    }

    /// The client addresses, `host:port` with commas between them.
    pub fn addresses(&self) -> String {
        self.nodes.iter().map(|node| format!("127.0.0.1:{}", node.client_port)).collect::<Vec<_>>().join(",")
    }

    /// The meta URL of a prefix that nothing is stored under.
    pub fn next_url(&self) -> String {
        format!("etcd://{}/t{}", self.addresses(), self.prefixes_taken.fetch_add(1, Ordering::Relaxed))
    }
}

impl Drop for Etcd {
    fn drop(&mut self) {
        for node in &mut self.nodes {
            node.server = None;
            let _ = std::fs::remove_dir_all(&node.dir);
        }
    }
}
