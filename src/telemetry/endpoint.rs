//! The endpoint that a scraper asks: `GET /metrics` over HTTP (`spec/surface.md` 7.1).
//!
//! It serves whoever can reach the address, so the numbers hold no names of users and no contents. A scraper that is
//! slow or silent costs a connection for a bounded time, and there are few connections.

use super::metrics::Registry;
use bytes::Bytes;
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::header::CONTENT_TYPE;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::sync::Arc;
use std::time::Duration;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::Semaphore;
use tokio::task::AbortHandle;

/// Where it listens unless told otherwise; when another mount has the port, on any free one.
const DEFAULT_ADDRESS: &str = "127.0.0.1:9567";
const ANY_PORT: &str = "127.0.0.1:0";

/// Scrapers served at a time; others wait to be accepted.
const CONNECTIONS_MAX: usize = 16;
/// For the head of a request, and for all of it with its answer.
const HEAD_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECTION_TIMEOUT: Duration = Duration::from_secs(30);
/// After a connection could not be accepted: the process may be out of descriptors.
const ACCEPT_PAUSE: Duration = Duration::from_secs(1);

/// Serves until it is dropped.
pub struct Endpoint {
    address: SocketAddr,
    task: AbortHandle,
}

impl Drop for Endpoint {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Endpoint {
    /// Listens where `asked` says (`host:port`; `:port` means every address of this host), or at the default. Must be
    /// called inside a runtime.
    pub async fn start(asked: Option<&str>, registry: Arc<Registry>) -> io::Result<Endpoint> {
        let listener = match asked {
            Some(address) => {
                let every = format!("0.0.0.0{address}");
                TcpListener::bind(if address.starts_with(':') { &every } else { address }).await?
            }
            None => match TcpListener::bind(DEFAULT_ADDRESS).await {
                Ok(listener) => listener,
                Err(error) if error.kind() == io::ErrorKind::AddrInUse => TcpListener::bind(ANY_PORT).await?,
                Err(error) => return Err(error),
            },
        };
        let address = listener.local_addr()?;
        Ok(Endpoint { address, task: tokio::spawn(accept(listener, registry)).abort_handle() })
    }

    pub fn address(&self) -> SocketAddr {
        self.address
    }
}

async fn accept(listener: TcpListener, registry: Arc<Registry>) {
    let places = Arc::new(Semaphore::new(CONNECTIONS_MAX));
    loop {
        let place = places.clone().acquire_owned().await.expect("the semaphore is never closed");
        match listener.accept().await {
            Ok((stream, _)) => {
                let registry = registry.clone();
                tokio::spawn(async move {
                    serve(stream, registry).await;
                    drop(place);
                });
            }
            Err(error) => {
                tracing::debug!("metrics endpoint: {error}");
                tokio::time::sleep(ACCEPT_PAUSE).await;
            }
        }
    }
}

async fn serve(stream: TcpStream, registry: Arc<Registry>) {
    let answer = service_fn(|request| {
        let response = respond(&request, &registry);
        async move { Ok::<_, Infallible>(response) }
    });
    let connection = hyper::server::conn::http1::Builder::new()
        .keep_alive(false)
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_TIMEOUT)
        .serve_connection(TokioIo::new(stream), answer);
    match tokio::time::timeout(CONNECTION_TIMEOUT, connection).await {
        Ok(Ok(())) => {}
        Ok(Err(error)) => tracing::debug!("metrics endpoint: {error}"),
        Err(_) => tracing::debug!("metrics endpoint: a request took too long"),
    }
}

fn respond(request: &Request<Incoming>, registry: &Registry) -> Response<Full<Bytes>> {
    let (status, text) = match (request.method(), request.uri().path()) {
        (&Method::GET | &Method::HEAD, "/metrics") => (StatusCode::OK, registry.prometheus_text()),
        (_, "/metrics") => (StatusCode::METHOD_NOT_ALLOWED, "only GET\n".to_owned()),
        _ => (StatusCode::NOT_FOUND, "the numbers are at /metrics\n".to_owned()),
    };
    let mut response = Response::new(Full::new(Bytes::from(text)));
    *response.status_mut() = status;
    let kind = hyper::header::HeaderValue::from_static("text/plain; version=0.0.4; charset=utf-8");
    response.headers_mut().insert(CONTENT_TYPE, kind);
    response
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::telemetry::metrics::Kind;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    async fn ask(address: SocketAddr, head: &str) -> String {
        let mut stream = TcpStream::connect(address).await.unwrap();
        stream.write_all(format!("{head} HTTP/1.1\r\nHost: h\r\n\r\n").as_bytes()).await.unwrap();
        let mut answer = String::new();
        stream.read_to_string(&mut answer).await.unwrap();
        answer
    }

    #[tokio::test]
    async fn numbers_are_scraped_and_nothing_else() {
        let registry = Arc::new(Registry::new([("vol_name".to_owned(), "v\"1".to_owned())]));
        registry.read("used_space", "Bytes.", Kind::Gauge, &[], || Some(4096.0));
        let endpoint = Endpoint::start(Some("127.0.0.1:0"), registry.clone()).await.unwrap();
        let answer = ask(endpoint.address(), "GET /metrics").await;
        assert!(answer.starts_with("HTTP/1.1 200 OK\r\n") && answer.contains("text/plain; version=0.0.4"), "{answer}");
        let body = "# TYPE juicefs_used_space gauge\njuicefs_used_space{vol_name=\"v\\\"1\"} 4096\n";
        assert!(answer.contains(body), "{answer}");
        assert!(ask(endpoint.address(), "GET /").await.starts_with("HTTP/1.1 404"));
        assert!(ask(endpoint.address(), "POST /metrics").await.starts_with("HTTP/1.1 405"));
        assert!(ask(endpoint.address(), "nonsense").await.starts_with("HTTP/1.1 400"));

        let busy = endpoint.address().to_string();
        assert_eq!(
            Endpoint::start(Some(&busy), registry.clone()).await.err().unwrap().kind(),
            io::ErrorKind::AddrInUse
        );
        let address = endpoint.address();
        drop(endpoint);
        let gone = async {
            while TcpStream::connect(address).await.is_ok() {
                tokio::task::yield_now().await
            }
        };
        tokio::time::timeout(Duration::from_secs(5), gone).await.expect("nobody listens any more");
    }

    #[tokio::test]
    async fn silent_connections_do_not_keep_others_out() {
        let registry = Arc::new(Registry::new([]));
        let endpoint = Endpoint::start(Some("127.0.0.1:0"), registry).await.unwrap();
        let mut silent = Vec::new();
        for _ in 0..CONNECTIONS_MAX {
            silent.push(TcpStream::connect(endpoint.address()).await.unwrap());
        }
        let answer = tokio::time::timeout(2 * HEAD_TIMEOUT, ask(endpoint.address(), "GET /metrics")).await;
        assert!(answer.expect("in time").starts_with("HTTP/1.1 200"));
    }
}
