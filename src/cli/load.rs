//! `load META-URL [FILE]`: a dump into an empty database, or what a binary dump holds (`spec/surface.md` 5.22).

use super::{open, progress};
use crate::base::{Errno, Fault, Stop};
use crate::buf::{Budget, Payload, Pool};
use crate::config::seal::{Secret, data_key_passphrase};
use crate::config::volume::VolumeFormat;
use crate::meta::dump::stream::{Ahead, Packing};
use crate::meta::dump::{Loaded, binary_load, json_load};
use crate::object::Envelope;
use anyhow::{Context as _, bail};
use bytes::Bytes;
use std::fs::File;
use std::io::{Cursor, Read};
use std::path::{Path, PathBuf};

/// An encrypted dump is opened as a whole.
const ENCRYPTED_BYTES_MAX: u64 = 4 << 30;

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is to be; with --stat, the file
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// The dump, compressed if its name ends in .gz, .zst or .zstd [default: standard input]
    #[arg(value_name = "FILE")]
    file: Option<PathBuf>,
    /// The private key (PEM) of the volume, for an automatic backup of an encrypted one
    #[arg(long, value_name = "FILE")]
    encrypt_rsa_key: Option<PathBuf>,
    /// How the volume is encrypted: aes256gcm-rsa, chacha20-rsa, sm4gcm
    #[arg(long, value_name = "CIPHER", default_value = "aes256gcm-rsa")]
    encrypt_algo: String,
    /// The dump is of the binary form
    #[arg(long)]
    binary: bool,
    /// Commits under way at a time, of both forms; more than 64 are as good as 64
    #[arg(short = 'p', long, value_name = "N", default_value_t = 10, value_parser = clap::value_parser!(u16).range(1..=1000))]
    threads: u16,
    /// Show what a binary dump holds, and load nothing
    #[arg(long)]
    stat: bool,
    /// With --stat: -1 shows where the segments are as well
    #[arg(long, value_name = "N", default_value_t = 0, allow_negative_numbers = true)]
    offset: i64,
}

pub async fn run(args: Args) -> anyhow::Result<()> {
    if args.stat {
        return show(&args);
    }
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    if let Some(format) = open::stored_format(&meta).await? {
        bail!("database {uri} is used by volume {}", format.name);
    }
    let input = opened(&args, args.file.as_deref())?;
    let place = args.file.as_ref().map_or("STDIN".into(), |file| format!("\"{}\"", file.display()));
    let admitted = |document: &[u8]| -> Result<Bytes, Fault> { admit(document).map(|format| format.to_json().into()) };
    let (engine, threads) = (meta.engine(), usize::from(args.threads));
    let mut input = Some(input);
    let done = progress::watched(async |watch| {
        let ahead = |input| Ahead::new(input, watch.stop.clone());
        let opened = input.take().context("the dump is read once").and_then(|input| Ok(ahead(input)?));
        let mut input = opened.map_err(|error| Fault::unavailable("read dump").source(error))?;
        let done = match args.binary {
            true => binary_load::load(engine, &mut input, &admitted, threads, &watch.course()).await,
            false => json_load::load(engine, &mut input, &admitted, threads, &watch.course()).await,
        };
        // That it was stopped may be seen first by whoever waited for the next bytes.
        done.map_err(|stop| if watch.stop.is_stopped() { Errno::ECANCELED.into() } else { stop })
    })
    .await?;
    let Loaded { inodes, space, left_out } = match done {
        Ok(loaded) => loaded,
        Err(Stop::Errno(Errno::ECANCELED)) => bail!("interrupted: nothing was loaded"),
        Err(stop) => {
            if args.encrypt_rsa_key.is_none() && packing_is_wrong(&stop) {
                tracing::warn!("is it a backup of an encrypted volume? Those are opened with --encrypt-rsa-key");
            }
            return Err(stop).with_context(|| format!("load {place}"));
        }
    };
    let format = open::existing_format(&meta).await?;
    for secret in format.secrets_removed() {
        tracing::warn!("the {secret} was removed from the dump; please set it with the `config` command");
    }
    if left_out > 0 {
        tracing::warn!(
            "{left_out} extended attributes were left out: {} cannot hold them, and the dump still does",
            engine.name()
        );
    }
    tracing::info!("load metadata from {place} succeed ({inodes} inodes, {space} bytes)");
    Ok(())
}

/// The first bytes cannot be unpacked.
fn packing_is_wrong(stop: &Stop) -> bool {
    matches!(stop, Stop::Fault(fault) if fault.to_string().starts_with("read dump failed (corrupt): byte=0"))
}

/// The format document of a dump: of a volume that this build knows how to keep. Whether it may use it is asked when it
/// does.
fn admit(document: &[u8]) -> Result<VolumeFormat, Fault> {
    let refused = |error| Fault::corrupt("load dump").source(error);
    let format = VolumeFormat::from_json(document).map_err(refused)?;
    format.check_layout().map_err(refused)?;
    Ok(format)
}

/// What is in the file, out of its envelope and unpacked.
fn opened(args: &Args, file: Option<&Path>) -> anyhow::Result<Box<dyn Read + Send>> {
    let packing = file.map_or(Packing::Plain, Packing::of);
    let mut packed: Box<dyn Read + Send> = match file {
        Some(path) => Box::new(File::open(path).with_context(|| format!("failed to open file {}", path.display()))?),
        None => Box::new(std::io::stdin()),
    };
    if let Some(key) = &args.encrypt_rsa_key {
        let pem = std::fs::read_to_string(key).with_context(|| format!("load key from path {}", key.display()))?;
        let pem = Secret::new(pem);
        let passphrase = data_key_passphrase();
        let envelope = Envelope::new(&args.encrypt_algo, pem.expose(), passphrase.as_ref().map(Secret::expose))?;
        let mut sealed = Vec::new();
        packed.take(ENCRYPTED_BYTES_MAX + 1).read_to_end(&mut sealed).context("read dump")?;
        if sealed.len() as u64 > ENCRYPTED_BYTES_MAX {
            bail!("an encrypted dump of more than {ENCRYPTED_BYTES_MAX} bytes cannot be opened");
        }
        let pool = Pool::new(Budget::new(2 * ENCRYPTED_BYTES_MAX));
        let body = envelope.open(&Payload::from(sealed), &pool).context("open the encrypted dump")?;
        packed = Box::new(Cursor::new(body));
    }
    packing.reader(packed).context("unpack the dump")
}

/// The table of what a binary dump holds.
fn show(args: &Args) -> anyhow::Result<()> {
    if !args.binary {
        bail!("--stat shows binary dumps only; please add `--binary`");
    }
    if args.offset > 0 {
        bail!("showing a single segment is not in this build; --offset may be 0, or -1 for all offsets");
    }
    let path = PathBuf::from(&args.meta);
    tracing::info!("load backup from \"{}\"", path.display());
    let mut input = opened(args, Some(&path))?;
    let contents = binary_load::contents(&mut input)?;
    println!("Backup Version: {}", binary_load::VERSION);
    let wide = args.offset < 0;
    let rule = if wide { "-----------------------------------" } else { "-----------------------" };
    println!("{rule}");
    println!("{:<9} | {:<9} {}", "Name", "Num", if wide { "| Offset" } else { "" });
    println!("{rule}");
    for (name, info) in contents {
        let offsets: Vec<String> = info.offsets.iter().map(u64::to_string).collect();
        println!("{name:<9} | {:<9} | {}", info.records, if wide { offsets.join(" ") } else { String::new() });
    }
    Ok(())
}
