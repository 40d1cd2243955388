//! What goes wrong between a mount and its servers, made to happen: a proxy for any protocol that refuses, resets or
//! falls silent, and one for HTTP that delays, cuts and replaces answers.

use parking_lot::Mutex;
use rand::rngs::StdRng;
use rand::{Rng, SeedableRng};
use std::io::{self, BufRead, BufReader, ErrorKind, Read, Write};
use std::net::{Shutdown, SocketAddr, TcpListener, TcpStream};
use std::os::fd::AsRawFd;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

/// How often a waiting thread looks whether something has changed.
const LOOK: Duration = Duration::from_millis(10);

/// What a wire does.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wire {
    Passes,
    /// Nobody listens, and what was connected is cut off.
    Refuses,
    /// Whoever connects is cut off.
    Resets,
    /// Connections are made, and nothing comes through in either direction.
    Silent,
    /// Requests arrive and are carried out; the answers are lost.
    Mute,
}

/// A wire to a server on this machine.
pub struct TcpProxy {
    pub port: u16,
    shared: Arc<Shared>,
    listener: Option<JoinHandle<()>>,
}

struct Shared {
    server: SocketAddr,
    wire: Mutex<Wire>,
    ended: AtomicBool,
    /// Both ends of each connection.
    connections: Mutex<Vec<[TcpStream; 2]>>,
}

/// Closes with RST.
fn reset(stream: &TcpStream) {
    let linger = libc::linger { l_onoff: 1, l_linger: 0 };
    // SAFETY: an open descriptor and a live structure of the size that is given.
    unsafe {
        let (level, name) = (libc::SOL_SOCKET, libc::SO_LINGER);
        libc::setsockopt(stream.as_raw_fd(), level, name, (&raw const linger).cast(), size_of_val(&linger) as u32);
    }
}

impl TcpProxy {
    pub fn to(server_port: u16) -> TcpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        let shared = Arc::new(Shared {
            server: ([127, 0, 0, 1], server_port).into(),
            wire: Mutex::new(Wire::Passes),
            ended: AtomicBool::new(false),
            connections: Mutex::default(),
        });
        let listening = shared.clone();
        let listener = Some(std::thread::spawn(move || listening.listen(port, Some(listener))));
        TcpProxy { port, shared, listener }
    }

    pub fn set(&self, wire: Wire) {
        *self.shared.wire.lock() = wire;
        let mut connections = self.shared.connections.lock();
        if matches!(wire, Wire::Refuses | Wire::Resets) {
            for end in connections.drain(..).flatten() {
                reset(&end);
                let _ = end.shutdown(Shutdown::Both);
            }
        }
    }
}

impl Drop for TcpProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        self.set(Wire::Refuses);
        if let Some(listener) = self.listener.take() {
            listener.join().expect("the listener ends");
        }
    }
}

impl Shared {
    fn listen(self: Arc<Shared>, port: u16, mut listener: Option<TcpListener>) {
        while !self.ended.load(Ordering::Relaxed) {
            if *self.wire.lock() == Wire::Refuses {
                listener = None;
                std::thread::sleep(LOOK);
                continue;
            }
            let listening = listener.get_or_insert_with(|| TcpListener::bind(("127.0.0.1", port)).expect("our port"));
            listening.set_nonblocking(true).expect("a socket option");
            match listening.accept() {
                Ok((client, _)) => self.clone().connect(client),
                Err(_) => std::thread::sleep(LOOK),
            }
        }
    }

    fn connect(self: Arc<Shared>, client: TcpStream) {
        if *self.wire.lock() == Wire::Resets {
            return reset(&client);
        }
        let Ok(server) = TcpStream::connect(self.server) else { return reset(&client) };
        let copy = |stream: &TcpStream| stream.try_clone().expect("a descriptor");
        for stream in [&client, &server] {
            stream.set_nonblocking(false).expect("a socket option");
            stream.set_nodelay(true).expect("a socket option");
        }
        self.connections.lock().push([copy(&client), copy(&server)]);
        let other = self.clone();
        let (from, to) = (copy(&client), copy(&server));
        std::thread::spawn(move || other.pump(from, to, Wire::Silent));
        std::thread::spawn(move || self.pump(server, client, Wire::Mute));
    }

    /// Copies until an end is closed. Bytes that meet a wire as silent as `lost` or more so are lost, and so is
    /// everything after them.
    fn pump(&self, mut from: TcpStream, mut to: TcpStream, lost: Wire) {
        let mut buffer = [0; 64 << 10];
        let mut silent = false;
        loop {
            let n = match from.read(&mut buffer) {
                Ok(0) | Err(_) => break,
                Ok(n) => n,
            };
            let wire = *self.wire.lock();
            silent |= wire == Wire::Silent || wire == lost;
            if !silent && to.write_all(&buffer[..n]).is_err() {
                break;
            }
        }
        let _ = to.shutdown(Shutdown::Both);
    }
}

/// What happens to one answer of a store.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Trouble {
    /// The request arrives nowhere, and there is no answer.
    Stall,
    /// The connection is cut off before the request arrives.
    Reset,
    /// The request is carried out, and the connection cut off instead of an answer.
    ResetAfter,
    /// Half of the body, and a length that says so.
    Short,
    /// Half of the body, and the length of all of it.
    Cut,
    /// Half of the body, then silence.
    Trickle,
    /// This status instead of an answer.
    Status(u16),
    /// The answer comes after this time.
    Late(Duration),
    /// One bit in the middle of the body of an object that is read is another one.
    Flip,
}

/// The troubles of an HTTP service, and how often they come.
#[derive(Clone, Debug, Default)]
pub struct Weather {
    pub troubles: Vec<Trouble>,
    pub chance: f64,
}

/// A proxy in front of an HTTP service on this machine.
pub struct HttpProxy {
    pub port: u16,
    shared: Arc<Http>,
    listener: Option<JoinHandle<()>>,
}

struct Http {
    server: SocketAddr,
    weather: Mutex<(Weather, StdRng)>,
    ended: AtomicBool,
    /// Answers that were spoilt.
    spoilt: AtomicU64,
}

impl HttpProxy {
    pub fn to(server_port: u16, seed: u64) -> HttpProxy {
        let listener = TcpListener::bind("127.0.0.1:0").expect("a free port");
        let port = listener.local_addr().expect("its address").port();
        listener.set_nonblocking(true).expect("a socket option");
        let shared = Arc::new(Http {
            server: ([127, 0, 0, 1], server_port).into(),
            weather: Mutex::new((Weather::default(), StdRng::seed_from_u64(seed))),
            ended: AtomicBool::new(false),
            spoilt: AtomicU64::new(0),
        });
        let http = shared.clone();
        let listener = std::thread::spawn(move || {
            while !http.ended.load(Ordering::Relaxed) {
                match listener.accept() {
                    Ok((client, _)) => {
                        let http = http.clone();
                        // An error is the end of a connection, which is what a client can see of it.
                        std::thread::spawn(move || drop(http.serve(client)));
                    }
                    Err(_) => std::thread::sleep(LOOK),
                }
            }
        });
        HttpProxy { port, shared, listener: Some(listener) }
    }

    pub fn set(&self, troubles: &[Trouble], chance: f64) {
        self.shared.weather.lock().0 = Weather { troubles: troubles.to_vec(), chance };
    }

    pub fn spoilt(&self) -> u64 {
        self.shared.spoilt.load(Ordering::Relaxed)
    }
}

impl Drop for HttpProxy {
    fn drop(&mut self) {
        self.shared.ended.store(true, Ordering::Relaxed);
        if let Some(listener) = self.listener.take() {
            listener.join().expect("the listener ends");
        }
    }
}

/// Longest silence of a stalled connection: longer than any time-out of a test, shorter than a run.
const STALL: Duration = Duration::from_secs(60);

impl Http {
    fn trouble(&self) -> Option<Trouble> {
        let (weather, random) = &mut *self.weather.lock();
        if weather.troubles.is_empty() || !random.random_bool(weather.chance) {
            return None;
        }
        self.spoilt.fetch_add(1, Ordering::Relaxed);
        Some(weather.troubles[random.random_range(0..weather.troubles.len())])
    }

    /// Waits, at most until the other side hangs up.
    fn wait(&self, client: &TcpStream, limit: Duration) -> io::Result<()> {
        let end = Instant::now() + limit;
        client.set_read_timeout(Some(LOOK))?;
        while Instant::now() < end && !self.ended.load(Ordering::Relaxed) {
            match client.peek(&mut [0]) {
                Ok(0) => return Err(ErrorKind::UnexpectedEof.into()),
                Err(error) if !matches!(error.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => {
                    return Err(error);
                }
                _ => std::thread::sleep(LOOK),
            }
        }
        client.set_read_timeout(None)
    }

    /// The requests of one connection.
    fn serve(&self, client: TcpStream) -> io::Result<()> {
        client.set_nonblocking(false)?;
        client.set_nodelay(true)?;
        let mut reader = BufReader::new(client.try_clone()?);
        let mut client = client;
        while let Some(mut request) = head(&mut reader)? {
            let mut body = vec![0; length(&request).unwrap_or(0)];
            reader.read_exact(&mut body)?;
            let reads = request.starts_with(b"GET ");
            let trouble = self.trouble();
            match trouble {
                Some(Trouble::Stall) => {
                    self.wait(&client, STALL)?;
                    return Ok(reset(&client));
                }
                Some(Trouble::Reset) => return Ok(reset(&client)),
                Some(Trouble::Status(status)) => {
                    let text = "<Error><Code>Trouble</Code></Error>";
                    write!(client, "HTTP/1.1 {status} Trouble\r\nContent-Length: {}\r\n\r\n{text}", text.len())?;
                    continue;
                }
                _ => {}
            }
            // The server ends its answer by closing, whatever form the answer has.
            let end = request.len() - 2;
            request.splice(end..end, b"Connection: close\r\n".iter().copied());
            let mut server = TcpStream::connect(self.server)?;
            server.write_all(&request)?;
            server.write_all(&body)?;
            let mut answer = BufReader::new(server);
            let Some(mut head) = head(&mut answer)? else { return Ok(()) };
            let mut body = Vec::new();
            answer.read_to_end(&mut body)?;
            let half = &body[..body.len() / 2];
            match trouble {
                Some(Trouble::ResetAfter) => return Ok(reset(&client)),
                Some(Trouble::Short) if !body.is_empty() && length(&head).is_some() => {
                    set_length(&mut head, half.len());
                    client.write_all(&head)?;
                    client.write_all(half)?;
                }
                Some(Trouble::Cut) => {
                    client.write_all(&head)?;
                    client.write_all(half)?;
                }
                Some(Trouble::Trickle) => {
                    client.write_all(&head)?;
                    client.write_all(half)?;
                    self.wait(&client, STALL)?;
                }
                Some(Trouble::Flip) => {
                    let middle = body.len() / 2;
                    if let Some(byte) = body.get_mut(middle).filter(|_| reads) {
                        *byte ^= 1;
                    }
                    client.write_all(&head)?;
                    client.write_all(&body)?;
                }
                Some(Trouble::Late(pause)) => {
                    self.wait(&client, pause)?;
                    client.write_all(&head)?;
                    client.write_all(&body)?;
                }
                _ => {
                    client.write_all(&head)?;
                    client.write_all(&body)?;
                }
            }
            // The answer says that the connection ends with it.
            return Ok(());
        }
        Ok(())
    }
}

/// Request or status line and headers, with the empty line; `None` at the end of the connection.
fn head(reader: &mut impl BufRead) -> io::Result<Option<Vec<u8>>> {
    let mut head = Vec::new();
    loop {
        let n = reader.read_until(b'\n', &mut head)?;
        if n == 0 {
            return if head.is_empty() { Ok(None) } else { Err(ErrorKind::UnexpectedEof.into()) };
        }
        if head.ends_with(b"\r\n\r\n") {
            return Ok(Some(head));
        }
    }
}

fn is_length(line: &str) -> bool {
    line.to_ascii_lowercase().starts_with("content-length:")
}

fn length(head: &[u8]) -> Option<usize> {
    let text = String::from_utf8_lossy(head);
    text.lines().find(|line| is_length(line))?.split_once(':')?.1.trim().parse().ok()
}

fn set_length(head: &mut Vec<u8>, length: usize) {
    let text = String::from_utf8_lossy(head).into_owned();
    let lines = text.split_inclusive("\r\n");
    let changed = |line: &str| {
        if is_length(line) { format!("Content-Length: {length}\r\n") } else { line.to_owned() }
    };
    *head = lines.map(changed).collect::<String>().into_bytes();
}
