//! Metrics, logs and the access log.
