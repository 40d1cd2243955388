//! Connections, and how a gRPC call gets from a path to the function that answers it.
//!
//! The connections are hyper's, not those of tonic's own server, because faults need to break them one by one.

use std::convert::Infallible;
use std::path::Path;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::Notify;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::rustls::pki_types::pem::PemObject;
use tokio_rustls::rustls::pki_types::{CertificateDer, PrivateKeyDer};
use tokio_rustls::rustls::server::WebPkiClientVerifier;
use tokio_rustls::rustls::{RootCertStore, ServerConfig, crypto};
use tonic::body::Body;
use tonic::server::{Grpc, StreamingService, UnaryService};
use tonic::{Request, Response, Status, Streaming};
use tonic_prost::ProstCodec;

use crate::Shared;
use crate::inject::{Fault, Rpc};

/// What listens behind a port.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) enum Role {
    Pd,
    /// With the number of the store.
    Store(u64),
}

/// The connection that a request came by.
#[derive(Clone, Debug)]
pub(crate) struct Cut(Arc<Notify>);

impl Cut {
    /// Breaks the connection; nobody hears of this request again.
    async fn now<T>(&self) -> T {
        self.0.notify_one();
        std::future::pending().await
    }
}

/// Accepts until the runtime goes.
pub(crate) async fn listen(listener: TcpListener, role: Role, shared: Arc<Shared>) {
    loop {
        // Out of file descriptors, say: others may give some back.
        let Ok((stream, _)) = listener.accept().await else {
            tokio::time::sleep(Duration::from_millis(10)).await;
            continue;
        };
        if *shared.down.borrow() {
            continue;
        }
        let _ = stream.set_nodelay(true);
        let shared = shared.clone();
        tokio::spawn(async move {
            match shared.tls.clone() {
                None => connection(stream, role, shared).await,
                // Who does not come to an understanding is gone.
                Some(acceptor) => {
                    if let Ok(stream) = acceptor.accept(stream).await {
                        connection(stream, role, shared).await;
                    }
                }
            }
        });
    }
}

/// TLS of a cluster: clients show a certificate of the same authority.
pub(crate) fn acceptor(authority: &Path, certificate: &Path, key: &Path) -> TlsAcceptor {
    let chain = |file: &Path| -> Vec<CertificateDer<'static>> {
        let read = CertificateDer::pem_file_iter(file).expect("a file of certificates");
        read.collect::<Result<_, _>>().expect("certificates")
    };
    let mut roots = RootCertStore::empty();
    roots.add_parsable_certificates(chain(authority));
    let provider = Arc::new(crypto::ring::default_provider());
    let clients = WebPkiClientVerifier::builder_with_provider(Arc::new(roots), provider.clone());
    let mut config = ServerConfig::builder_with_provider(provider)
        .with_safe_default_protocol_versions()
        .expect("versions of TLS")
        .with_client_cert_verifier(clients.build().expect("an authority"))
        .with_single_cert(chain(certificate), PrivateKeyDer::from_pem_file(key).expect("a key"))
        .expect("a certificate and its key");
    config.alpn_protocols = vec![b"h2".to_vec()];
    TlsAcceptor::from(Arc::new(config))
}

async fn connection(stream: impl AsyncRead + AsyncWrite + Unpin + Send, role: Role, shared: Arc<Shared>) {
    let cut = Cut(Arc::new(Notify::new()));
    let mut down = shared.down.subscribe();
    let notify = cut.0.clone();
    let service = service_fn(move |request| route(request, role, shared.clone(), cut.clone()));
    let served =
        hyper::server::conn::http2::Builder::new(TokioExecutor::new()).serve_connection(TokioIo::new(stream), service);
    tokio::select! {
        // How a connection ends is the business of the client.
        _ = served => {}
        _ = notify.notified() => {}
        _ = down.changed() => {}
    }
}

async fn route(
    request: http::Request<Incoming>,
    role: Role,
    shared: Arc<Shared>,
    cut: Cut,
) -> Result<http::Response<Body>, Infallible> {
    let path = request.uri().path().to_owned();
    let answer = match role {
        Role::Pd => crate::pd::answer(&path, request, shared, cut).await,
        Role::Store(store) => crate::kv::answer(&path, request, store, shared, cut).await,
    };
    Ok(answer.unwrap_or_else(|| Status::unimplemented(format!("the test server has no {path}")).into_http()))
}

/// A function as the service that tonic asks for.
struct Answering<F>(F);

impl<F, Q, A, Fut> UnaryService<Q> for Answering<F>
where
    F: FnMut(Q) -> Fut,
    Fut: Future<Output = Result<A, Status>> + Send + 'static,
    A: Send + 'static,
{
    type Response = A;
    type Future = futures::future::BoxFuture<'static, Result<Response<A>, Status>>;

    fn call(&mut self, request: Request<Q>) -> Self::Future {
        let answer = (self.0)(request.into_inner());
        Box::pin(async move { answer.await.map(Response::new) })
    }
}

impl<F, Q, A, S> StreamingService<Q> for Answering<F>
where
    F: FnMut(Streaming<Q>) -> S,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
{
    type Response = A;
    type ResponseStream = S;
    type Future = futures::future::Ready<Result<Response<S>, Status>>;

    fn call(&mut self, request: Request<Streaming<Q>>) -> Self::Future {
        futures::future::ready(Ok(Response::new((self.0)(request.into_inner()))))
    }
}

pub(crate) async fn unary<Q, A, Fut>(
    request: http::Request<Incoming>,
    answer: impl FnMut(Q) -> Fut + Send,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    Fut: Future<Output = Result<A, Status>> + Send + 'static,
{
    let mut grpc = Grpc::new(ProstCodec::<A, Q>::default()).max_decoding_message_size(usize::MAX);
    grpc.unary(Answering(answer), request).await
}

pub(crate) async fn streaming<Q, A, S>(
    request: http::Request<Incoming>,
    answer: impl FnMut(Streaming<Q>) -> S + Send,
) -> http::Response<Body>
where
    Q: Message + Default + Send + 'static,
    A: Message + Default + Send + 'static,
    S: Stream<Item = Result<A, Status>> + Send + 'static,
{
    Grpc::new(ProstCodec::<A, Q>::default()).streaming(Answering(answer), request).await
}

/// What befalls a call before it is carried out. Answers with the fault, for `after` and for those of regions.
pub(crate) async fn before(shared: &Shared, cut: &Cut, rpc: Rpc) -> Result<Option<Fault>, Status> {
    let fault = shared.faults.next(rpc);
    match fault {
        Some(Fault::FailBefore) => Err(Status::unavailable("injected: not carried out")),
        Some(Fault::CutBefore) => cut.now().await,
        Some(Fault::Delay(time)) => {
            tokio::time::sleep(time).await;
            Ok(fault)
        }
        _ => Ok(fault),
    }
}

/// What befalls an answer.
pub(crate) async fn after<A>(fault: Option<Fault>, cut: &Cut, answer: A) -> Result<A, Status> {
    match fault {
        Some(Fault::FailAfter) => Err(Status::unavailable("injected: carried out")),
        Some(Fault::CutAfter) => cut.now().await,
        _ => Ok(answer),
    }
}
