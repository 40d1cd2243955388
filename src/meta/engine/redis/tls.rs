//! TLS to a server (`rediss://`): what is trusted, what we show of ourselves, and what goes wrong in a handshake.
//!
//! The configuration is made once, when the URL is read, so that a wrong file is told before anything is connected.

use crate::base::Fault;
use crate::meta::engine::EngineResult;
use crate::meta::engine::unverified::Unverified;
use redis::{RedisError, RedisResult};
use rustls::pki_types::pem::PemObject;
use rustls::pki_types::{CertificateDer, PrivateKeyDer, ServerName};
use rustls::{ClientConfig, RootCertStore};
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncReadExt, AsyncWriteExt};
use tokio::net::TcpStream;
use tokio_rustls::TlsConnector;
use tokio_rustls::client::TlsStream;

/// A server that does not speak TLS takes the first message for the beginning of a command and waits for its end.
const HANDSHAKE_TIMEOUT: Duration = Duration::from_secs(3);
/// Then it is asked something that it understands.
const PLAIN_TIMEOUT: Duration = Duration::from_secs(1);

/// The options of a URL, files read.
#[derive(Default)]
pub(super) struct TlsOptions {
    pub(super) certificate: Option<Vec<u8>>,
    pub(super) key: Option<Vec<u8>>,
    /// Trusted instead of what the system trusts.
    pub(super) authority: Option<Vec<u8>>,
    /// Instead of the host's.
    pub(super) server_name: Option<String>,
    pub(super) skip_verify: bool,
}

pub(super) struct Tls {
    connector: TlsConnector,
    /// We show a certificate if we are asked for one.
    has_identity: bool,
    server_name: Option<ServerName<'static>>,
}

fn bad(option: &'static str, why: impl std::fmt::Display) -> Fault {
    Fault::config("open redis").with("option", option).source(why.to_string())
}

impl Tls {
    pub(super) fn new(options: TlsOptions) -> EngineResult<Tls> {
        let provider = Arc::new(rustls::crypto::ring::default_provider());
        let builder = ClientConfig::builder_with_provider(provider.clone())
            .with_safe_default_protocol_versions()
            .map_err(|error| bad("rediss", error))?;
        let builder = match options.skip_verify {
            true => builder.dangerous().with_custom_certificate_verifier(Arc::new(Unverified::new(provider))),
            false => builder.with_root_certificates(roots(options.authority.as_deref())?),
        };
        let has_identity = options.certificate.is_some();
        let config = match (options.certificate, options.key) {
            (Some(certificate), Some(key)) => {
                let chain = certificates("tls-cert-file", &certificate)?;
                let key = PrivateKeyDer::from_pem_slice(&key).map_err(|error| bad("tls-key-file", error))?;
                builder.with_client_auth_cert(chain, key).map_err(|error| bad("tls-cert-file", error))?
            }
            (None, None) => builder.with_no_client_auth(),
            _ => return Err(bad("tls-cert-file", "tls-cert-file and tls-key-file go together").into()),
        };
        let name = |name| ServerName::try_from(name).map_err(|error| bad("tls-server-name", error));
        let server_name = options.server_name.map(name).transpose()?;
        Ok(Tls { connector: TlsConnector::from(Arc::new(config)), has_identity, server_name })
    }

    /// What to say of a connection that broke when it was first used: a server that misses our certificate lets the
    /// handshake end and goes away.
    pub(super) fn refused(&self, error: RedisError) -> RedisError {
        match error.kind() == redis::ErrorKind::Io && !self.has_identity && !error.is_timeout() {
            true => {
                let why = format!(
                    "the server ended the TLS connection; it may ask for a certificate (tls-cert-file, tls-key-file): {error}"
                );
                io::Error::new(io::ErrorKind::ConnectionAborted, why).into()
            }
            false => error,
        }
    }

    /// The error says what to change, where that can be found out.
    pub(super) async fn shake_hands(
        &self,
        stream: TcpStream,
        address: SocketAddr,
        host: &str,
    ) -> RedisResult<TlsStream<TcpStream>> {
        let name = match &self.server_name {
            Some(name) => name.clone(),
            None => {
                let name = ServerName::try_from(host.to_owned());
                name.map_err(|error| io::Error::new(io::ErrorKind::InvalidInput, error))?
            }
        };
        let shaking = self.connector.connect(name, stream);
        let error = match tokio::time::timeout(HANDSHAKE_TIMEOUT, shaking).await {
            Ok(Ok(stream)) => return Ok(stream),
            Ok(Err(error)) => error,
            Err(_) => io::Error::new(io::ErrorKind::TimedOut, "no answer to the TLS handshake"),
        };
        if tokio::time::timeout(PLAIN_TIMEOUT, is_plain(address)).await.unwrap_or(false) {
            return Err(lasting("the server does not speak TLS at this port: use redis:// or its TLS port"));
        }
        let refused = error.get_ref().and_then(|error| error.downcast_ref::<rustls::Error>());
        match refused {
            // Neither the certificate nor what we trust will be another one in a moment.
            Some(rustls::Error::InvalidCertificate(_)) => Err(lasting(&format!("the server's certificate: {error}"))),
            _ => Err(io::Error::new(error.kind(), format!("TLS handshake: {error}")).into()),
        }
    }
}

/// An error that trying again does not help against.
fn lasting(text: &str) -> RedisError {
    RedisError::from((redis::ErrorKind::InvalidClientConfig, "TLS", text.to_owned()))
}

/// Whether a server answers without TLS.
async fn is_plain(address: SocketAddr) -> bool {
    let asked = async {
        let mut stream = TcpStream::connect(address).await?;
        stream.write_all(b"PING\r\n").await?;
        stream.read_u8().await
    };
    let answered: io::Result<u8> = asked.await;
    // A status or an error; TLS begins its own errors with 21.
    matches!(answered, Ok(b'+' | b'-'))
}

fn certificates(option: &'static str, pem: &[u8]) -> EngineResult<Vec<CertificateDer<'static>>> {
    let read: Result<Vec<_>, _> = CertificateDer::pem_slice_iter(pem).collect();
    let certificates = read.map_err(|error| bad(option, error))?;
    match certificates.is_empty() {
        true => Err(bad(option, "the file has no certificate in PEM form").into()),
        false => Ok(certificates),
    }
}

fn roots(authority: Option<&[u8]>) -> EngineResult<RootCertStore> {
    let mut roots = RootCertStore::empty();
    match authority {
        Some(pem) => {
            for certificate in certificates("tls-ca-cert-file", pem)? {
                roots.add(certificate).map_err(|error| bad("tls-ca-cert-file", error))?;
            }
        }
        None => {
            // Some of a system's certificates may be unreadable; what is not there is not trusted.
            roots.add_parsable_certificates(rustls_native_certs::load_native_certs().certs);
        }
    }
    Ok(roots)
}
