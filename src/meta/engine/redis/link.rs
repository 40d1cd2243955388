//! One connection to a server, shared by all callers: requests go out in the order of their coming, and replies come
//! back in the same.
//!
//! Whoever has something to send writes it to the socket. The crate's multiplexed connection is a queue and a task that
//! moves requests from the queue to the socket and replies back, which costs each request a wake-up of another thread
//! before anything is sent; on a virtual machine with sleeping processors that takes longer than the request. Here only
//! replies wake a thread, the one that waits for the network, which parses them ([`super::resp`]). Requests that come
//! while another thread writes are written by that thread, all in one.
//!
//! Over TLS ([`super::tls`]) the connection is the crate's.

use super::resp::Replies;
use super::tls::Tls;
use futures::future::select_ok;
use parking_lot::Mutex;
use redis::aio::MultiplexedConnection;
use redis::{AsyncConnectionConfig, Cmd, Pipeline, RedisConnectionInfo, RedisError, RedisResult, Value};
use std::collections::VecDeque;
use std::fmt;
use std::hash::{DefaultHasher, Hash, Hasher};
use std::io;
use std::net::SocketAddr;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;
use tokio::io::{AsyncRead, AsyncReadExt};
use tokio::net::{TcpStream, UnixStream, tcp, unix};
use tokio::sync::{Notify, OwnedSemaphorePermit, Semaphore, oneshot};
use tokio::task::AbortHandle;

/// The memory of a request larger than this is not kept for the next.
const KEEP_BYTES: usize = 64 << 10;
/// Requests that may be under way; more make their callers wait.
const UNDER_WAY_MAX: usize = 1024;

/// Where a server listens.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum Endpoint {
    Tcp(String, u16),
    Unix(PathBuf),
}

impl fmt::Display for Endpoint {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Endpoint::Tcp(host, port) if host.contains(':') => write!(f, "[{host}]:{port}"),
            Endpoint::Tcp(host, port) => write!(f, "{host}:{port}"),
            Endpoint::Unix(path) => write!(f, "{}", path.display()),
        }
    }
}

/// How servers let us in.
#[derive(Clone)]
pub(super) struct Access {
    /// User, password, and the database.
    pub(super) login: RedisConnectionInfo,
    pub(super) tls: Option<Arc<Tls>>,
    /// For all of the answer to one request.
    pub(super) timeout: Duration,
}

/// A connection. When it is dropped its socket is closed.
pub(super) struct Link {
    wire: Wire,
    timeout: Duration,
    /// Tells this run of this server from all others, when it is known; see [`Link::identify`].
    identity: u64,
    endpoint: Option<Endpoint>,
}

enum Wire {
    Plain(Arc<Plain>, AbortHandle),
    Tls(MultiplexedConnection, AbortHandle),
}

impl Drop for Link {
    fn drop(&mut self) {
        match &self.wire {
            Wire::Plain(_, task) | Wire::Tls(_, task) => task.abort(),
        }
    }
}

fn timed_out() -> RedisError {
    io::Error::from(io::ErrorKind::TimedOut).into()
}

impl Link {
    /// Connects, authenticates and selects the database, within `connecting` in all.
    pub(super) async fn connect(endpoint: &Endpoint, access: &Access, connecting: Duration) -> RedisResult<Link> {
        let connected = tokio::time::timeout(connecting, Link::connect_unbounded(endpoint, access)).await;
        let mut link = connected.unwrap_or_else(|_| Err(timed_out()))?;
        link.endpoint = Some(endpoint.clone());
        Ok(link)
    }

    async fn connect_unbounded(endpoint: &Endpoint, access: &Access) -> RedisResult<Link> {
        match endpoint {
            Endpoint::Tcp(host, port) => {
                let addresses = tokio::net::lookup_host((host.as_str(), *port)).await?;
                Link::to_first(addresses, host, access).await
            }
            Endpoint::Unix(path) => {
                let (reading, writing) = UnixStream::connect(path).await?.into_split();
                Link::over(reading, Half::Unix(writing), &access.login, access.timeout).await
            }
        }
    }

    /// All addresses at once, and the first that answers as a server does: another may lead to a host that is gone, or
    /// to something that accepts connections and says nothing.
    async fn to_first(addresses: impl Iterator<Item = SocketAddr>, host: &str, access: &Access) -> RedisResult<Link> {
        let connecting: Vec<_> = addresses
            .map(|address| {
                Box::pin(async move {
                    let stream = TcpStream::connect(address).await?;
                    stream.set_nodelay(true)?;
                    if let Some(tls) = &access.tls {
                        return Link::over_tls(stream, address, host, tls, access).await;
                    }
                    let (reading, writing) = stream.into_split();
                    Link::over(reading, Half::Tcp(writing), &access.login, access.timeout).await
                })
            })
            .collect();
        if connecting.is_empty() {
            return Err(io::Error::new(io::ErrorKind::NotFound, "the name has no address").into());
        }
        Ok(select_ok(connecting).await?.0)
    }

    async fn over_tls(
        stream: TcpStream,
        address: SocketAddr,
        host: &str,
        tls: &Tls,
        access: &Access,
    ) -> RedisResult<Link> {
        let stream = tls.shake_hands(stream, address, host).await?;
        let config = AsyncConnectionConfig::new()
            .set_response_timeout(Some(access.timeout))
            .set_pipeline_buffer_size(UNDER_WAY_MAX);
        // The login needs the connection's task, which is ours to run.
        let login = RedisConnectionInfo::default().set_skip_set_lib_name();
        let (connection, task) = MultiplexedConnection::new_with_config(&login, stream, config).await?;
        let task = tokio::spawn(task).abort_handle();
        let link = Link { wire: Wire::Tls(connection, task), timeout: access.timeout, identity: 0, endpoint: None };
        link.log_in(&access.login).await.map_err(|error| tls.refused(error))?;
        Ok(link)
    }

    /// Asks which run of which server this is: cursors of scans mean nothing to another.
    pub(super) async fn identify(mut self) -> RedisResult<Link> {
        if let Value::BulkString(info) = self.send(redis::cmd("INFO").arg("server")).await? {
            let run = String::from_utf8_lossy(&info);
            if let Some(run) = run.lines().find_map(|line| line.strip_prefix("run_id:")) {
                let mut hasher = DefaultHasher::new();
                run.hash(&mut hasher);
                self.identity = hasher.finish();
            }
        }
        Ok(self)
    }

    pub(super) fn identity(&self) -> u64 {
        self.identity
    }

    /// Where it leads.
    pub(super) fn endpoint(&self) -> Option<&Endpoint> {
        self.endpoint.as_ref()
    }

    /// The same for the log.
    pub(super) fn address(&self) -> String {
        self.endpoint.as_ref().map(Endpoint::to_string).unwrap_or_default()
    }

    async fn over<R>(reading: R, writing: Half, login: &RedisConnectionInfo, timeout: Duration) -> RedisResult<Link>
    where
        R: AsyncRead + Unpin + Send + 'static,
    {
        let plain = Arc::new(Plain {
            half: writing,
            state: Mutex::default(),
            stalled: Notify::new(),
            room: Arc::new(Semaphore::new(UNDER_WAY_MAX)),
        });
        let task = tokio::spawn(plain.clone().attend(reading)).abort_handle();
        let link = Link { wire: Wire::Plain(plain, task), timeout, identity: 0, endpoint: None };
        link.log_in(login).await?;
        Ok(link)
    }

    async fn log_in(&self, login: &RedisConnectionInfo) -> RedisResult<()> {
        if let Some(password) = login.password() {
            let auth = |user: Option<&str>| {
                let mut auth = redis::cmd("AUTH");
                user.iter().for_each(|user| {
                    auth.arg(*user);
                });
                auth.arg(password).clone()
            };
            let mut answered = self.send(&auth(login.username())).await?.extract_error();
            // Servers before 6 know no users.
            if login.username().is_some()
                && answered.as_ref().is_err_and(|e| e.detail().is_some_and(|d| d.contains("wrong number of arguments")))
            {
                answered = self.send(&auth(None)).await?.extract_error();
            }
            answered?;
        }
        // For the server's `CLIENT LIST`. Servers before 7.2 do not know it, and some users may not.
        let mut rest = Pipeline::new();
        rest.cmd("CLIENT").arg("SETINFO").arg("LIB-NAME").arg("sluicefs");
        if login.db() != 0 {
            rest.cmd("SELECT").arg(login.db());
        }
        // None is skipped: the crate's connection waits without end where nothing is left that is wanted.
        let mut answers = self.send_all(&rest, 0, rest.len()).await?.into_iter();
        let _is_known = answers.next();
        answers.next().unwrap_or(Value::Okay).extract_error().map(|_| ())
    }

    /// One command, one reply. Errors of the server are values.
    pub(super) async fn send(&self, cmd: &Cmd) -> RedisResult<Value> {
        match &self.wire {
            Wire::Plain(plain, _) => {
                let mut values = plain.ask(cmd.get_packed_command(), 0, 1, self.timeout).await?;
                Ok(values.pop().unwrap_or(Value::Nil))
            }
            Wire::Tls(connection, _) => connection.clone().send_packed_command(cmd).await,
        }
    }

    /// Several commands in one trip; of the replies the first `skipped` are dropped.
    pub(super) async fn send_all(&self, pipeline: &Pipeline, skipped: usize, wanted: usize) -> RedisResult<Vec<Value>> {
        match &self.wire {
            Wire::Plain(plain, _) => plain.ask(pipeline.get_packed_pipeline(), skipped, wanted, self.timeout).await,
            Wire::Tls(connection, _) => connection.clone().send_packed_commands(pipeline, skipped, wanted).await,
        }
    }
}

/// The half of a socket that is written to.
enum Half {
    Tcp(tcp::OwnedWriteHalf),
    Unix(unix::OwnedWriteHalf),
}

impl Half {
    fn try_write(&self, bytes: &[u8]) -> io::Result<usize> {
        match self {
            Half::Tcp(half) => half.try_write(bytes),
            Half::Unix(half) => half.try_write(bytes),
        }
    }

    async fn writable(&self) -> io::Result<()> {
        match self {
            Half::Tcp(half) => half.writable().await,
            Half::Unix(half) => half.writable().await,
        }
    }
}

/// A connection that is ours.
struct Plain {
    half: Half,
    state: Mutex<State>,
    /// The socket takes no more: the task waits until it does.
    stalled: Notify,
    room: Arc<Semaphore>,
}

#[derive(Default)]
struct State {
    /// Requests that whoever is writing has not taken yet.
    unsent: Vec<u8>,
    /// Somebody is writing, or the task waits to go on with it.
    writing: bool,
    /// What the socket did not take, for the task.
    rest: Vec<u8>,
    /// Callers in the order of their requests.
    waiting: VecDeque<Waiting>,
    /// Why the connection is of no more use.
    broken: Option<RedisError>,
}

struct Waiting {
    /// Replies to come that nobody wants.
    skipped: usize,
    wanted: usize,
    values: Vec<Value>,
    answer: oneshot::Sender<RedisResult<Vec<Value>>>,
    _room: OwnedSemaphorePermit,
}

impl Plain {
    /// Sends a request and returns `wanted` replies, which come after `skipped` others.
    async fn ask(&self, request: Vec<u8>, skipped: usize, wanted: usize, timeout: Duration) -> RedisResult<Vec<Value>> {
        let asked = async {
            let room = match self.room.clone().try_acquire_owned() {
                Ok(room) => room,
                Err(_) => self.room.clone().acquire_owned().await.expect("the room is never closed"),
            };
            let (answer, answered) = oneshot::channel();
            let values = Vec::with_capacity(wanted);
            self.send(&request, Waiting { skipped, wanted, values, answer, _room: room })?;
            // The connection is dropped with everything that waits for it.
            answered.await.unwrap_or_else(|_| Err(io::Error::from(io::ErrorKind::ConnectionAborted).into()))
        };
        tokio::time::timeout(timeout, asked).await.unwrap_or_else(|_| Err(timed_out()))
    }

    fn send(&self, request: &[u8], waiting: Waiting) -> RedisResult<()> {
        let unsent = {
            let mut state = self.state.lock();
            if let Some(error) = &state.broken {
                return Err(error.clone());
            }
            state.waiting.push_back(waiting);
            state.unsent.extend_from_slice(request);
            if std::mem::replace(&mut state.writing, true) {
                return Ok(());
            }
            std::mem::take(&mut state.unsent)
        };
        self.write(unsent);
        Ok(())
    }

    /// Writes `unsent` and what others add meanwhile. For whoever has set `writing`.
    fn write(&self, mut unsent: Vec<u8>) {
        loop {
            let mut written = 0;
            while written < unsent.len() {
                match self.half.try_write(&unsent[written..]) {
                    Ok(0) => return self.fail(io::Error::from(io::ErrorKind::WriteZero).into()),
                    Ok(n) => written += n,
                    Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                    Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                        unsent.drain(..written);
                        self.state.lock().rest = unsent;
                        self.stalled.notify_one();
                        return;
                    }
                    Err(e) => return self.fail(e.into()),
                }
            }
            let mut state = self.state.lock();
            if state.unsent.is_empty() {
                state.writing = false;
                unsent.clear();
                // Its memory serves the next request.
                if unsent.capacity() <= KEEP_BYTES {
                    state.unsent = unsent;
                }
                return;
            }
            unsent = std::mem::take(&mut state.unsent);
        }
    }

    /// The connection is of no more use: everybody who waits, and who comes, is told.
    fn fail(&self, error: RedisError) {
        let waiting = {
            let mut state = self.state.lock();
            state.broken.get_or_insert(error.clone());
            (state.unsent, state.rest) = Default::default();
            std::mem::take(&mut state.waiting)
        };
        for waiting in waiting {
            // Who has gone does not want to know.
            let _gone = waiting.answer.send(Err(error.clone()));
        }
    }

    /// Reads replies, and writes what the socket did not take at once, until the connection breaks.
    async fn attend<R: AsyncRead + Unpin>(self: Arc<Plain>, reading: R) {
        let error = tokio::select! {
            error = self.read(reading) => error,
            error = self.write_rest() => error,
        };
        self.fail(error);
    }

    async fn write_rest(&self) -> RedisError {
        loop {
            self.stalled.notified().await;
            if let Err(error) = self.half.writable().await {
                return error.into();
            }
            let rest = std::mem::take(&mut self.state.lock().rest);
            self.write(rest);
        }
    }

    async fn read<R: AsyncRead + Unpin>(&self, mut reading: R) -> RedisError {
        let mut replies = Replies::default();
        loop {
            match reading.read_buf(replies.room()).await {
                Ok(0) => return io::Error::from(io::ErrorKind::UnexpectedEof).into(),
                Ok(_) => {}
                Err(error) => return error.into(),
            }
            loop {
                match replies.next() {
                    Ok(None) => break,
                    Ok(Some(value)) => {
                        if let Err(error) = self.deliver(value) {
                            return error;
                        }
                    }
                    Err(error) => return error,
                }
            }
        }
    }

    fn deliver(&self, value: Value) -> RedisResult<()> {
        let served = {
            let mut state = self.state.lock();
            let Some(first) = state.waiting.front_mut() else {
                let said = value.extract_error().err().map_or(String::new(), |error| format!(": {error}"));
                let what = format!("the server answered without a question{said}");
                return Err(io::Error::new(io::ErrorKind::InvalidData, what).into());
            };
            if first.skipped > 0 {
                first.skipped -= 1;
            } else {
                first.values.push(value);
            }
            if first.skipped > 0 || first.values.len() < first.wanted {
                return Ok(());
            }
            state.waiting.pop_front()
        };
        if let Some(served) = served {
            // Who has gone does not want to know.
            let _gone = served.answer.send(Ok(served.values));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::time::Instant;
    use tokio::io::AsyncWriteExt;
    use tokio::net::TcpListener;

    const LONG: Duration = Duration::from_secs(20);

    fn access(timeout: Duration) -> Access {
        Access { login: RedisConnectionInfo::default().set_db(1), tls: None, timeout }
    }

    fn echo(text: impl AsRef<[u8]>) -> Cmd {
        redis::cmd("ECHO").arg(text.as_ref()).clone()
    }

    /// Answers as a server does to what a new connection asks, and `ECHO` with its word; ends at `HANGUP`, says nothing to
    /// `SLEEP`, and something unasked after `TALK`. Reads nothing for `pause` after each read.
    async fn serve(listener: TcpListener, pause: Duration) {
        loop {
            let (mut stream, _) = listener.accept().await.unwrap();
            tokio::spawn(async move {
                let mut asked = Replies::default();
                while stream.read_buf(asked.room()).await.is_ok_and(|n| n > 0) {
                    tokio::time::sleep(pause).await;
                    while let Some(Value::Array(words)) = asked.next().unwrap() {
                        let word = |at: usize| match &words[at] {
                            Value::BulkString(word) => word.as_slice(),
                            other => panic!("{other:?}"),
                        };
                        let mut answer = b"+OK\r\n".to_vec();
                        match word(0) {
                            b"ECHO" => {
                                answer = format!("${}\r\n", word(1).len()).into_bytes();
                                answer.extend([word(1), b"\r\n"].concat());
                            }
                            b"HANGUP" => return,
                            b"SLEEP" => answer.clear(),
                            b"TALK" => answer.extend(b"-ERR the end is near\r\n"),
                            _ => {}
                        }
                        if stream.write_all(&answer).await.is_err() {
                            return;
                        }
                    }
                }
            });
        }
    }

    async fn link(pause: Duration, timeout: Duration) -> Arc<Link> {
        let listener = TcpListener::bind("127.0.0.1:0").await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::spawn(serve(listener, pause));
        Arc::new(Link::to_first([address].into_iter(), "", &access(timeout)).await.unwrap())
    }

    #[tokio::test]
    async fn of_several_addresses_the_one_that_answers_is_taken() {
        let (silent, server) =
            (TcpListener::bind("127.0.0.1:0").await.unwrap(), TcpListener::bind("127.0.0.1:0").await.unwrap());
        let refusing: SocketAddr = "127.0.0.1:1".parse().unwrap();
        let addresses = [silent.local_addr().unwrap(), refusing, server.local_addr().unwrap()];
        tokio::spawn(serve(server, Duration::ZERO));
        for from in 0..addresses.len() {
            let order = addresses.iter().cycle().skip(from).take(addresses.len()).copied();
            let access = access(LONG);
            let connecting = Link::to_first(order, "", &access);
            let link = tokio::time::timeout(Duration::from_secs(20), connecting).await.expect("in time").unwrap();
            assert_eq!(link.send(&redis::cmd("PING")).await.unwrap(), Value::Okay);
        }
        assert!(Link::to_first([refusing].into_iter(), "", &access(LONG)).await.is_err());
        assert!(Link::to_first([].into_iter(), "", &access(LONG)).await.is_err());
    }

    /// More than sockets hold, to a server that is slow to read, from more callers than may ask at a time.
    #[tokio::test(flavor = "multi_thread", worker_threads = 4)]
    async fn each_gets_its_own_answer() {
        let link = link(Duration::from_millis(1), LONG).await;
        let asking = (0..2 * UNDER_WAY_MAX as u32).map(|n| {
            let link = link.clone();
            tokio::spawn(async move {
                let text = n.to_be_bytes().repeat(if n % 100 == 0 { 200_000 } else { n as usize % 50 });
                assert_eq!(link.send(&echo(&text)).await.unwrap(), Value::BulkString(text));
                let mut pipeline = Pipeline::new();
                (0..4).for_each(|k| {
                    pipeline.add_command(echo(format!("{n}-{k}")));
                });
                let wanted = [2, 3].map(|k| Value::BulkString(format!("{n}-{k}").into_bytes()));
                assert_eq!(link.send_all(&pipeline, 2, 2).await.unwrap(), wanted);
            })
        });
        for done in futures::future::join_all(asking.collect::<Vec<_>>()).await {
            done.unwrap();
        }
        let Wire::Plain(plain, _) = &link.wire else { panic!("not encrypted") };
        assert_eq!(plain.room.available_permits(), UNDER_WAY_MAX);
    }

    /// Who gives up leaves its answer to nobody, not to the next.
    #[tokio::test]
    async fn an_answer_that_nobody_waits_for_is_dropped() {
        let link = link(Duration::from_millis(20), LONG).await;
        for n in 0..5 {
            let (given_up, kept) = (echo("given up"), echo(format!("{n}")));
            let short = tokio::time::timeout(Duration::from_millis(1), link.send(&given_up));
            let (late, answered) = tokio::join!(short, link.send(&kept));
            assert!(late.is_err());
            assert_eq!(answered.unwrap(), Value::BulkString(format!("{n}").into_bytes()));
        }
    }

    #[tokio::test]
    async fn when_it_breaks_everybody_is_told() {
        let link = link(Duration::ZERO, LONG).await;
        let asking = |word: &'static str| {
            let link = link.clone();
            tokio::spawn(async move { link.send(&redis::cmd(word)).await })
        };
        let mut asked: Vec<_> = (0..20).map(|_| asking("SLEEP")).collect();
        tokio::time::sleep(Duration::from_millis(20)).await;
        let begun = Instant::now();
        asked.push(asking("HANGUP"));
        for asked in asked {
            assert!(asked.await.unwrap().unwrap_err().is_io_error());
        }
        assert!(link.send(&echo("x")).await.is_err(), "nor is it of any use later");
        assert!(begun.elapsed() < LONG / 2);
    }

    #[tokio::test]
    async fn an_answer_without_a_question_ends_it() {
        let link = link(Duration::ZERO, LONG).await;
        assert_eq!(link.send(&redis::cmd("TALK")).await.unwrap(), Value::Okay);
        tokio::time::sleep(Duration::from_millis(100)).await;
        let error = link.send(&echo("x")).await.unwrap_err();
        assert!(error.is_io_error() && error.to_string().contains("the end is near"), "{error}");
    }

    #[tokio::test]
    async fn silence_has_an_end() {
        let link = link(Duration::ZERO, Duration::from_millis(50)).await;
        let error = link.send(&redis::cmd("SLEEP")).await.unwrap_err();
        assert!(error.is_timeout(), "{error}");
    }
}
