//! The Kubernetes CSI driver of SluiceFS. Today it only answers `--version`; the driver itself is not built yet.

use std::process::ExitCode;

fn main() -> ExitCode {
    match std::env::args().nth(1).as_deref() {
        Some("--version" | "-V") => {
            println!("sluice-csi version {}", env!("CARGO_PKG_VERSION"));
            ExitCode::SUCCESS
        }
        _ => {
            eprintln!("sluice-csi: the CSI driver is not available in this version; only --version is answered");
            ExitCode::FAILURE
        }
    }
}
