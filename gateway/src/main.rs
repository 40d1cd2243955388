//! The S3 gateway of SluiceFS. Today it only answers `--version`; the gateway itself is not built yet.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("--version" | "-V") => {
            println!("sluice-gateway version {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("sluice-gateway: the S3 gateway is not available in this version; only --version is answered");
            ExitCode::FAILURE
        }
    }
}
