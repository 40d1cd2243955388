//! TLS towards a cluster, as the options of the meta URL have it.

use super::link::TlsOptions;
use crate::base::Fault;
use crate::meta::engine::EngineResult;
use crate::meta::engine::unverified::Unverified;
use std::path::Path;
use std::sync::Arc;
use tonic::transport::{Certificate, ClientTlsConfig, Endpoint, Error, Identity};

/// The endpoint with TLS. The outer error: a file that cannot be read; the inner: one that is no certificate.
pub(super) fn apply(endpoint: Endpoint, options: &TlsOptions) -> EngineResult<Result<Endpoint, Error>> {
    let mut config = ClientTlsConfig::new();
    if let Some(name) = &options.server_name {
        config = config.domain_name(name);
    }
    if let Some((certificate, key)) = &options.identity {
        config = config.identity(Identity::from_pem(file(certificate)?, file(key)?));
    }
    if options.skip_verify {
        tracing::warn!("etcd: the certificates of the servers are not verified, as the meta URL asks");
        let verifier = Arc::new(Unverified::new(Arc::new(rustls::crypto::ring::default_provider())));
        return Ok(endpoint.tls_config_with_verifier(config, verifier));
    }
    config = match &options.ca {
        Some(ca) => config.ca_certificate(Certificate::from_pem(file(ca)?)),
        None => config.with_native_roots(),
    };
    Ok(endpoint.tls_config(config))
}

fn file(path: &Path) -> EngineResult<Vec<u8>> {
    std::fs::read(path).map_err(|error| Fault::config("open etcd").with("file", path.display()).source(error).into())
}
