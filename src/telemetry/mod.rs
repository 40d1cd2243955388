//! What the program says about itself: log lines ([`log`]), numbers ([`metrics`]) and the access log ([`access_log`]).
//!
//! Their texts are read by scripts and dashboards written for the peer, so the forms are the peer's
//! (`spec/surface.md` 1.3, 6.2, 6.3, 7).

pub mod access_log;
pub mod log;
pub mod metrics;
