//! Finds a harness by its name.

use sluicefs::fuzzing::HARNESSES;
use std::sync::OnceLock;

/// One target runs one harness.
pub fn run(name: &str, data: &[u8]) {
    static HARNESS: OnceLock<fn(&[u8])> = OnceLock::new();
    let run = HARNESS.get_or_init(|| {
        let harness = HARNESSES.iter().find(|harness| harness.name == name).expect("a harness");
        if let Ok(directory) = std::env::var("SEED_DIR") {
            for (number, seed) in (harness.corpus)().iter().enumerate() {
                std::fs::write(format!("{directory}/seed-{number:04}"), seed).expect("a seed is written");
            }
        }
        harness.run
    });
    run(data);
}
