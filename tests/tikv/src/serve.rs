//! Connections, and how a gRPC call gets from a path to the function that answers it.
//!
//! The connections are hyper's, not those of tonic's own server, because faults need to break them one by one.

use std::convert::Infallible;
use std::sync::Arc;
use std::time::Duration;

use futures::Stream;
use hyper::body::Incoming;
use hyper::service::service_fn;
use hyper_util::rt::{TokioExecutor, TokioIo};
use prost::Message;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Notify;
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
        if !*shared.down.borrow() {
            tokio::spawn(connection(stream, role, shared.clone()));
        }
    }
}

async fn connection(stream: TcpStream, role: Role, shared: Arc<Shared>) {
    let _ = stream.set_nodelay(true);
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
