//! Small tools without an opinion about file systems.

pub mod clock;
pub mod directories;
pub mod fileio;
pub mod lately;
pub mod outage;
pub mod publish;
pub mod rng;
pub mod task;
