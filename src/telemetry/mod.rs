//! What the program says about itself: log lines ([`log`]) and numbers ([`metrics`]), which a scraper reads at an
//! [`endpoint`].
//!
//! Their texts are read by scripts and dashboards written for the peer, so the forms are the peer's
//! (`spec/surface.md` 1.3, 6.3, 7). The access log is told by the requests themselves, so it stands with `fuse`.

mod damper;
pub mod endpoint;
pub mod log;
pub mod metrics;
