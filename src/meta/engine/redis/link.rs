//! One connection to a server: whoever has something to send writes it to the socket.
//!
//! The crate's multiplexed connection is a queue and a driver that moves requests from the queue to the socket and
//! replies back. As a task of its own the driver costs each request a wake-up of another thread before anything is
//! sent, which on a virtual machine with sleeping processors takes longer than the request. Here a sender that has put
//! its request into the queue polls the driver itself; only replies wake a thread, the one that waits for the network.
//!
//! TLS connections are the crate's own and are driven by its task.

use futures::future::select_ok;
use futures::task::AtomicWaker;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Client, Cmd, ConnectionAddr, Pipeline, RedisError, RedisResult, Value};
use std::cell::Cell;
use std::future::{Future, poll_fn};
use std::io;
use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll, Wake, Waker};
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::{TcpStream, UnixStream};
use tokio::task::AbortHandle;

/// A connection. When it is dropped its socket is closed.
pub(super) struct Link {
    connection: MultiplexedConnection,
    /// None when the crate drives.
    own: Option<(Arc<Driver>, AbortHandle)>,
}

impl Drop for Link {
    fn drop(&mut self) {
        if let Some((driver, task)) = &self.own {
            task.abort();
            // The socket holds wakers that hold the driver, which holds the socket.
            driver.stop();
        }
    }
}

impl Link {
    /// Connects, authenticates and selects the database, within `timeout` in all.
    pub(super) async fn connect(
        client: &Client,
        config: &AsyncConnectionConfig,
        timeout: Duration,
    ) -> RedisResult<Link> {
        let connected = tokio::time::timeout(timeout, Link::connect_unbounded(client, config)).await;
        connected.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::TimedOut).into()))
    }

    async fn connect_unbounded(client: &Client, config: &AsyncConnectionConfig) -> RedisResult<Link> {
        match client.get_connection_info().addr() {
            ConnectionAddr::Tcp(host, port) => {
                let addresses = tokio::net::lookup_host((host.as_str(), *port)).await?;
                Link::to_first(addresses, client, config).await
            }
            ConnectionAddr::Unix(path) => Link::over(UnixStream::connect(path).await?, client, config).await,
            _ => {
                let connection = client.get_multiplexed_async_connection_with_config(config).await?;
                Ok(Link { connection, own: None })
            }
        }
    }

    /// All addresses at once, and the first that answers as a server does: another may lead to a host that is gone, or
    /// to something that accepts connections and says nothing.
    async fn to_first(
        addresses: impl Iterator<Item = SocketAddr>,
        client: &Client,
        config: &AsyncConnectionConfig,
    ) -> RedisResult<Link> {
        let connecting: Vec<_> = addresses
            .map(|address| {
                Box::pin(async move {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    Link::over(stream, client, config).await
                })
            })
            .collect();
        if connecting.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into());
        }
        Ok(select_ok(connecting).await?.0)
    }

    async fn over<S>(stream: S, client: &Client, config: &AsyncConnectionConfig) -> RedisResult<Link>
    where
        S: AsyncRead + AsyncWrite + Unpin + Send + 'static,
    {
        let settings = client.get_connection_info().redis_settings();
        let (connection, work) = MultiplexedConnection::new_with_config(settings, stream, config.clone()).await?;
        let driver = Driver::new(work);
        let task = tokio::spawn(driver.clone().run()).abort_handle();
        Ok(Link { connection, own: Some((driver, task)) })
    }

    /// One command, one reply. Errors of the server are values.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        let mut connection = self.connection.clone();
        self.sent(connection.send_packed_command(cmd)).await
    }

    /// Several commands in one trip; of the replies the first `skipped` are dropped.
    pub(super) async fn send_all(&self, pipeline: &Pipeline, skipped: usize, wanted: usize) -> RedisResult<Vec<Value>> {
        let mut connection = self.connection.clone();
        self.sent(connection.send_packed_commands(pipeline, skipped, wanted)).await
    }

    async fn sent<T>(&self, request: impl Future<Output = Result<T, RedisError>>) -> Result<T, RedisError> {
        let Some((driver, _)) = &self.own else { return request.await };
        let mut request = pin!(request);
        let mut queued = false;
        poll_fn(|cx| {
            if queued {
                return request.as_mut().poll(cx);
            }
            queued = true;
            // The queue tells the driver of the request; this thread is about to see to that itself.
            let polled = quietly(|| request.as_mut().poll(cx));
            if polled.is_pending() {
                driver.advance();
            }
            polled
        })
        .await
    }
}

thread_local! {
    /// This thread polls the driver next, so nobody needs to be woken for it.
    static QUIET: Cell<bool> = const { Cell::new(false) };
}

fn quietly<T>(work: impl FnOnce() -> T) -> T {
    struct Loud(bool);
    impl Drop for Loud {
        fn drop(&mut self) {
            QUIET.set(self.0);
        }
    }
    let _loud = Loud(QUIET.replace(true));
    work()
}

/// How often in a row one thread polls for others.
const ROUNDS_MAX: usize = 32;

type Work = Pin<Box<dyn Future<Output = ()> + Send>>;

/// The crate's driver of a connection, polled by whoever has a reason to.
struct Driver {
    /// None when it has ended: the connection is of no more use.
    work: Mutex<Option<Work>>,
    /// Calls to `advance` that have not been seen to. The first caller polls for those that come meanwhile.
    calls: AtomicUsize,
    /// The task that polls when the socket is ready.
    task: AtomicWaker,
}

impl Driver {
    fn new(work: impl Future<Output = ()> + Send + 'static) -> Arc<Driver> {
        Arc::new(Driver {
            work: Mutex::new(Some(Box::pin(work))),
            calls: AtomicUsize::new(0),
            task: AtomicWaker::new(),
        })
    }

    /// Moves what can be moved: requests to the socket, replies to those who wait for them.
    fn advance(self: &Arc<Driver>) {
        if self.calls.fetch_add(1, Ordering::AcqRel) > 0 {
            return;
        }
        let mut seen_to = 1;
        for _round in 0..ROUNDS_MAX {
            let waker = Waker::from(self.clone());
            let mut work = self.work.lock();
            if let Some(running) = work.as_mut()
                && running.as_mut().poll(&mut Context::from_waker(&waker)).is_ready()
            {
                *work = None;
                self.task.wake();
            }
            drop(work);
            let calls = self.calls.fetch_sub(seen_to, Ordering::AcqRel);
            if calls == seen_to {
                return;
            }
            seen_to = calls - seen_to;
        }
        // Others have kept this thread long enough. Whoever counts on it is seen to by the task.
        self.calls.store(0, Ordering::Release);
        self.task.wake();
    }

    fn stop(&self) {
        let work = self.work.lock().take();
        drop(work);
    }

    async fn run(self: Arc<Driver>) {
        poll_fn(|cx| {
            self.task.register(cx.waker());
            self.advance();
            // Whoever has it locked tells this task when it ends.
            let ended = self.work.try_lock().is_some_and(|work| work.is_none());
            if ended { Poll::Ready(()) } else { Poll::Pending }
        })
        .await;
    }
}

/// Wakes the task, unless the thread that does so polls the driver anyway.
impl Wake for Driver {
    fn wake(self: Arc<Driver>) {
        self.wake_by_ref();
    }

    fn wake_by_ref(self: &Arc<Driver>) {
        if !QUIET.get() {
            self.task.wake();
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpListener;

    /// Says yes to everything, as a server does to what a new connection asks.
    async fn agree(listener: TcpListener) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut asked = [0; 4096];
                while let Ok(n) = stream.read(&mut asked).await
                    && n > 0
                {
                    let commands = asked[..n].iter().filter(|byte| **byte == b'*').count();
                    stream.write_all("+OK\r\n".repeat(commands).as_bytes()).await.unwrap();
                }
            });
        }
    }

    #[tokio::test]
    async fn of_several_addresses_the_one_that_answers_is_taken() {
        let (silent, server) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let refusing: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let addresses = [silent.local_addr().unwrap(), refusing, server.local_addr().unwrap()];
        tokio::spawn(agree(server));
        let client = Client::open("redis://127.0.0.1:1/1").unwrap();
        let config = AsyncConnectionConfig::new();
        for from in 0..addresses.len() {
            let order = addresses.iter().cycle().skip(from).take(addresses.len()).copied();
            let connecting = Link::to_first(order, &client, &config);
            let link = tokio::time::timeout(Duration::from_secs(20), connecting).await.expect("in time").unwrap();
            let mut ping = Cmd::new();
            ping.arg("PING");
            assert_eq!(link.send(&ping).await.unwrap(), Value::Okay);
        }
        assert!(Link::to_first([refusing].into_iter(), &client, &config).await.is_err());
        assert!(Link::to_first([].into_iter(), &client, &config).await.is_err());
    }
}
