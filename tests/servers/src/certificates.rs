//! Certificates for servers and clients of a test, made by openssl.

use crate::process::{program, run};
use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::Arc;
use tempfile::TempDir;

/// An authority, a certificate of it for localhost and 127.0.0.1, and one for a client, as files of a directory.
#[derive(Clone)]
pub struct Certificates(Arc<TempDir>);

impl Certificates {
    pub const PROGRAMS: [&str; 1] = ["openssl"];

    pub fn make() -> Certificates {
        let dir = TempDir::new().expect("a temporary directory");
        let openssl = |args: &[&str]| {
            run(Command::new(program("openssl").expect("openssl is installed")).args(args).current_dir(dir.path()));
        };
        let key = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"];
        let of = |name: &str| [format!("{name}.key"), format!("{name}.pem"), format!("/CN={name}")];
        let [out_key, out, subject] = of("authority");
        let made = ["req", "-x509", "-days", "30", "-keyout", &out_key, "-out", &out, "-subj", &subject];
        openssl(&[&made[..], &key].concat());
        std::fs::write(dir.path().join("names"), "subjectAltName=DNS:localhost,IP:127.0.0.1\n").expect("a file");
        for name in ["server", "client"] {
            let [out_key, out, subject] = of(name);
            openssl(&[&["req", "-new", "-keyout", &out_key, "-out", "request", "-subj", &subject][..], &key].concat());
            let signed = ["x509", "-req", "-in", "request", "-days", "30", "-CA", "authority.pem"];
            let by = ["-CAkey", "authority.key", "-CAcreateserial", "-extfile", "names", "-out", &out];
            openssl(&[&signed[..], &by].concat());
        }
        Certificates(Arc::new(dir))
    }

    pub fn path(&self, name: &str) -> String {
        self.file(name).display().to_string()
    }

    pub fn file(&self, name: &str) -> PathBuf {
        self.0.path().join(name)
    }

    /// Copies of the files that a server reads, in a directory of the server's own.
    pub(crate) fn copy_to(&self, dir: &Path) {
        for name in ["authority.pem", "server.pem", "server.key"] {
            std::fs::copy(self.file(name), dir.join(name)).expect("a copy of the file");
        }
    }
}
