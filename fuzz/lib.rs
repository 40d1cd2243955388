//! Finds a harness by its name.

use sluicefs::fuzzing::HARNESSES;
use std::sync::OnceLock;

/// One target runs one harness.
pub fn run(name: &str, data: &[u8]) {
    static HARNESS: OnceLock<fn(&[u8])> = OnceLock::new();
    let run = HARNESS.get_or_init(|| HARNESSES.iter().find(|harness| harness.name == name).expect("a harness").run);
    run(data);
}
