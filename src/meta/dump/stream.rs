//! The bytes of a dump on their way to a file and back: compression by the name of the file, and a thread that
//! compresses and writes while the next records are read.

use super::Sink;
use crate::base::Fault;
use crate::util::task::StopSignal;
use async_trait::async_trait;
use std::io::{self, BufReader, Read, Write};
use std::path::Path;
use std::time::Duration;
use tokio::sync::{mpsc, oneshot};

/// How the bytes lie in the file.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Packing {
    Plain,
    Gzip,
    Zstd,
}

/// The peer's choice for both: dumps shrink a lot at any level, and time is what counts.
const GZIP_LEVEL: u32 = 1;
const ZSTD_LEVEL: i32 = 1;
/// Pieces that may wait for the thread.
const QUEUED_MAX: usize = 4;
const READ_BYTES: usize = 256 << 10;

impl Packing {
    /// What the name of a file says: `.gz`, `.zst` and `.zstd` are compressed.
    pub fn of(path: &Path) -> Packing {
        match path.extension().and_then(|extension| extension.to_str()) {
            Some("gz") => Packing::Gzip,
            Some("zst" | "zstd") => Packing::Zstd,
            _ => Packing::Plain,
        }
    }

    /// What the packed bytes hold.
    pub fn reader(self, packed: impl Read + Send + 'static) -> io::Result<Box<dyn Read + Send>> {
        let packed = BufReader::with_capacity(READ_BYTES, packed);
        Ok(match self {
            Packing::Plain => Box::new(packed),
            // Several members one after the other are one file, as for gzip itself.
            Packing::Gzip => Box::new(flate2::bufread::MultiGzDecoder::new(packed)),
            Packing::Zstd => Box::new(zstd::Decoder::with_buffer(packed)?),
        })
    }
}

/// Reads ahead in a thread of its own, so that whoever waits for a slow file (a pipe, a file system that is away) can be
/// stopped, and unpacking goes on while records are committed.
pub struct Ahead {
    pieces: std::sync::mpsc::Receiver<io::Result<Vec<u8>>>,
    piece: io::Cursor<Vec<u8>>,
    stop: StopSignal,
}

/// Between two looks at the signal.
const LOOK: Duration = Duration::from_millis(100);

impl Ahead {
    pub fn new(mut from: Box<dyn Read + Send>, stop: StopSignal) -> io::Result<Ahead> {
        let (sender, pieces) = std::sync::mpsc::sync_channel(QUEUED_MAX);
        std::thread::Builder::new().name("read dump".into()).spawn(move || {
            loop {
                let mut piece = Vec::new();
                let read = from.by_ref().take(READ_BYTES as u64).read_to_end(&mut piece).map(|_| piece);
                let last = !matches!(&read, Ok(piece) if !piece.is_empty());
                // Nobody listens any more: the load has ended.
                if sender.send(read).is_err() || last {
                    return;
                }
            }
        })?;
        Ok(Ahead { pieces, piece: io::Cursor::default(), stop })
    }
}

impl Read for Ahead {
    fn read(&mut self, out: &mut [u8]) -> io::Result<usize> {
        use std::sync::mpsc::RecvTimeoutError::{Disconnected, Timeout};
        loop {
            let count = self.piece.read(out)?;
            if count > 0 || out.is_empty() {
                return Ok(count);
            }
            match self.pieces.recv_timeout(LOOK) {
                Ok(piece) => {
                    let piece = piece?;
                    if piece.is_empty() {
                        return Ok(0);
                    }
                    self.piece = io::Cursor::new(piece);
                }
                Err(Disconnected) => return Ok(0),
                Err(Timeout) if self.stop.is_stopped() => return Err(io::Error::other("told to stop")),
                Err(Timeout) => {}
            }
        }
    }
}

/// Packs what it is given; one piece after the other.
enum Packer<W: Write> {
    Plain(W),
    Gzip(flate2::write::GzEncoder<W>),
    Zstd(zstd::Encoder<'static, W>),
}

impl<W: Write> Packer<W> {
    fn new(packing: Packing, out: W) -> io::Result<Packer<W>> {
        Ok(match packing {
            Packing::Plain => Packer::Plain(out),
            Packing::Gzip => Packer::Gzip(flate2::write::GzEncoder::new(out, flate2::Compression::new(GZIP_LEVEL))),
            Packing::Zstd => {
                let mut encoder = zstd::Encoder::new(out, ZSTD_LEVEL)?;
                encoder.include_checksum(true)?;
                Packer::Zstd(encoder)
            }
        })
    }

    fn write(&mut self, bytes: &[u8]) -> io::Result<()> {
        match self {
            Packer::Plain(out) => out.write_all(bytes),
            Packer::Gzip(out) => out.write_all(bytes),
            Packer::Zstd(out) => out.write_all(bytes),
        }
    }

    fn finish(self) -> io::Result<W> {
        let mut out = match self {
            Packer::Plain(out) => out,
            Packer::Gzip(out) => out.finish()?,
            Packer::Zstd(out) => out.finish()?,
        };
        out.flush()?;
        Ok(out)
    }
}

/// A thread that packs and writes. Without `finish` what was written is half a file. Nobody waits for a thread that was
/// left in the middle of it, as by a pipe that nobody reads.
pub struct Pipe<W> {
    pieces: Option<mpsc::Sender<Vec<u8>>>,
    written: Option<oneshot::Receiver<io::Result<W>>>,
}

impl<W: Write + Send + 'static> Pipe<W> {
    pub fn new(packing: Packing, out: W) -> Result<Pipe<W>, Fault> {
        let (pieces, mut queue) = mpsc::channel::<Vec<u8>>(QUEUED_MAX);
        let (tell, written) = oneshot::channel();
        let work = move || {
            let mut packer = Packer::new(packing, out)?;
            while let Some(piece) = queue.blocking_recv() {
                packer.write(&piece)?;
            }
            packer.finish()
        };
        let thread = std::thread::Builder::new().name("write dump".into());
        // Whoever asked may be gone.
        let thread = thread.spawn(move || drop(tell.send(work())));
        thread.map_err(|error| Fault::unavailable("write dump").source(error))?;
        Ok(Pipe { pieces: Some(pieces), written: Some(written) })
    }

    /// Waits for everything to be written; answers where it went.
    pub async fn finish(mut self) -> Result<W, Fault> {
        self.pieces = None;
        self.ended().await
    }

    async fn ended(&mut self) -> Result<W, Fault> {
        let failed = || Fault::unavailable("write dump");
        match self.written.take() {
            Some(written) => match written.await {
                Ok(written) => written.map_err(|error| failed().source(error)),
                Err(_) => Err(failed().source("the writer broke off")),
            },
            None => Err(failed().source("it has failed before")),
        }
    }
}

#[async_trait]
impl<W: Write + Send + 'static> Sink for Pipe<W> {
    async fn take(&mut self, bytes: Vec<u8>) -> Result<(), Fault> {
        let sent = match &self.pieces {
            Some(pieces) => pieces.send(bytes).await.is_ok(),
            None => false,
        };
        if sent {
            return Ok(());
        }
        // The thread ends before its queue only with an error.
        match self.ended().await {
            Ok(_) => Err(Fault::internal("write dump").source("the writer ended too early")),
            Err(fault) => Err(fault),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const ALL: [(&str, Packing); 5] = [
        ("a.json", Packing::Plain),
        ("a", Packing::Plain),
        ("a.json.gz", Packing::Gzip),
        ("a.zst", Packing::Zstd),
        ("a.bin.zstd", Packing::Zstd),
    ];

    #[tokio::test]
    async fn what_is_packed_is_read_again() {
        let pieces: Vec<Vec<u8>> = (0..20u8).map(|n| vec![n; 50_000]).collect();
        for (name, packing) in ALL {
            assert_eq!(Packing::of(Path::new(name)), packing, "{name}");
            let mut pipe = Pipe::new(packing, Vec::new()).unwrap();
            for piece in &pieces {
                pipe.take(piece.clone()).await.unwrap();
            }
            let packed = pipe.finish().await.unwrap();
            let mut read = Vec::new();
            packing.reader(io::Cursor::new(packed.clone())).unwrap().read_to_end(&mut read).unwrap();
            assert!(read == pieces.concat(), "{name}");
            if packing != Packing::Plain {
                assert!(packed.len() < 50_000, "{name}");
                let cut = packed[..packed.len() - 5].to_vec();
                let cut = packing.reader(io::Cursor::new(cut)).unwrap().read_to_end(&mut read);
                assert!(cut.is_err(), "{name} is cut");
            }
        }
    }

    /// A pipe to which nobody writes.
    #[test]
    fn who_waits_for_a_slow_file_can_be_stopped() {
        let (stopper, stop) = crate::util::task::stop_signal();
        let mut ahead = Ahead::new(Box::new(io::Cursor::new(vec![7; 600_000])), stop.clone()).unwrap();
        let mut read = Vec::new();
        ahead.read_to_end(&mut read).unwrap();
        assert!(read == vec![7; 600_000] && ahead.read(&mut [0]).unwrap() == 0);
        let (silent, _held) = std::os::unix::net::UnixStream::pair().unwrap();
        let mut ahead = Ahead::new(Box::new(silent), stop).unwrap();
        let waiting = std::thread::spawn(move || ahead.read(&mut [0; 10]));
        std::thread::sleep(Duration::from_millis(50));
        stopper.stop();
        assert!(waiting.join().unwrap().unwrap_err().to_string().contains("told to stop"));
    }

    struct Full;

    impl Write for Full {
        fn write(&mut self, _: &[u8]) -> io::Result<usize> {
            Err(io::ErrorKind::StorageFull.into())
        }

        fn flush(&mut self) -> io::Result<()> {
            Ok(())
        }
    }

    #[tokio::test]
    async fn a_full_disk_is_told() {
        let mut pipe = Pipe::new(Packing::Plain, Full).unwrap();
        let mut failed = None;
        for _ in 0..20 {
            if let Err(fault) = pipe.take(vec![0; 1000]).await {
                failed = Some(fault.to_string());
                break;
            }
        }
        assert!(failed.unwrap().contains("write dump"));
        assert!(pipe.finish().await.is_err());
    }
}
