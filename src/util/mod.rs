//! Small tools without an opinion about file systems.

pub mod clock;
pub mod fileio;
pub mod lately;
pub mod outage;
pub mod rng;
pub mod task;
