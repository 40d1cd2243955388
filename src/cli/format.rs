//! `format META-URL NAME`: makes a volume (`spec/surface.md` 5.1).
//!
//! The order keeps a mistake harmless: everything typed is checked first, then the store is tried, an occupied prefix is
//! refused, and the record, which makes the volume exist, is written last. On an existing volume what was given and may
//! change is changed, as the peer still does; `--no-update` leaves it alone.

use super::open;
use super::options::{StorageOptions, size_in_gib, size_in_kib};
use crate::buf::Payload;
use crate::config::seal::data_key_passphrase;
use crate::config::volume::{NewSecrets, VolumeFormat, check_name, round_block_kib};
use crate::config::{ConfigResult, Secret, Size, client, volume};
use crate::object::{Envelope, ObjectStore, probe};
use anyhow::{Context as _, bail};
use std::path::{Path, PathBuf};

#[derive(clap::Args)]
pub struct Args {
    /// Where the metadata is
    #[arg(value_name = "META-URL", required = true)]
    meta: String,
    /// Name of the volume and of its directory in the bucket
    #[arg(value_name = "NAME", required = true)]
    name: String,
    /// Overwrite an existing volume record
    #[arg(long)]
    force: bool,
    /// Leave an existing volume as it is
    #[arg(long)]
    no_update: bool,
    #[command(flatten)]
    storage: StorageOptions,
    /// Block size in KiB, 64K to 16M [default: 4M]
    #[arg(long, value_name = "SIZE", value_parser = size_in_kib, help_heading = "Data format")]
    block_size: Option<Size>,
    /// Compression of blocks: none, lz4, zstd [default: none]
    #[arg(long, value_name = "ALGORITHM", help_heading = "Data format")]
    compress: Option<String>,
    /// Encrypt data; FILE is the private key, in PEM form (passphrase in JFS_RSA_PASSPHRASE)
    #[arg(long, value_name = "FILE", help_heading = "Data format")]
    encrypt_rsa_key: Option<PathBuf>,
    /// Data encryption: aes256gcm-rsa, chacha20-rsa, sm4gcm [default: aes256gcm-rsa]
    #[arg(long, value_name = "ALGORITHM", help_heading = "Data format")]
    encrypt_algo: Option<String>,
    /// Put a hash in front of object names
    #[arg(long, help_heading = "Data format")]
    hash_prefix: bool,
    /// Spread objects over N buckets, named by %d in the bucket URL
    #[arg(long, value_name = "N", help_heading = "Data format")]
    shards: Option<u32>,
    #[command(flatten)]
    limits: LimitOptions,
}

/// Options that `format` and `config` share.
#[derive(clap::Args, Debug, Default)]
#[command(next_help_heading = "Management")]
pub struct LimitOptions {
    /// Space limit in GiB, 0 for none
    #[arg(long, value_name = "SIZE", value_parser = size_in_gib)]
    pub capacity: Option<Size>,
    /// Limit of the number of inodes, 0 for none
    #[arg(long, value_name = "N")]
    pub inodes: Option<u64>,
    /// Days after which removed files are gone, 0 for no trash [default: 1]
    #[arg(long, value_name = "N")]
    pub trash_days: Option<u32>,
    /// Allow POSIX ACLs, for good
    #[arg(long)]
    pub enable_acl: bool,
    /// Apache Ranger address (for the Hadoop SDK)
    #[arg(long, value_name = "URL")]
    pub ranger_rest_url: Option<String>,
    /// Apache Ranger service (for the Hadoop SDK)
    #[arg(long, value_name = "NAME")]
    pub ranger_service: Option<String>,
    /// Kerberos configuration (for the Hadoop SDK)
    #[arg(long, value_name = "FILE")]
    pub kerberos_config_file: Option<PathBuf>,
}

/// Environment variables in place of keys that should not be typed.
fn from_environment(typed: Option<String>, variable: &str) -> Option<String> {
    typed.or_else(|| std::env::var(variable).ok().filter(|value| !value.is_empty()))
}

pub async fn run(mut args: Args) -> anyhow::Result<()> {
    check_name(&args.name)?;
    args.storage.access_key = from_environment(args.storage.access_key, "ACCESS_KEY");
    args.storage.secret_key = from_environment(args.storage.secret_key, "SECRET_KEY");
    args.storage.session_token = from_environment(args.storage.session_token, "SESSION_TOKEN");
    let key = args.encrypt_rsa_key.as_deref().map(private_key).transpose()?;
    let uri = open::meta_uri(&args.meta)?;
    let meta = open::meta(&uri).await?;
    let stored = open::stored_format(&meta).await?;
    let format = match &stored {
        Some(stored) if args.no_update && !args.force => {
            tracing::debug!(volume = stored.name, "the volume exists already");
            return Ok(());
        }
        Some(stored) if !args.force => updated(stored, &args, key)?,
        Some(stored) => new_volume(&args, key, stored.uuid.clone())?,
        None => new_volume(&args, key, uuid::Uuid::new_v4().to_string())?,
    };
    let untested = std::env::var_os("JFS_NO_CHECK_OBJECT_STORAGE").is_some();
    let store = open::objects(&format).context("object storage")?;
    tracing::info!("Data use {}", store.name());
    if !untested {
        probe(&*store, None).await.with_context(|| format!("Storage {} is not configured correctly", store.name()))?;
        if stored.is_none() {
            refuse_occupied(&*store).await?;
            let uuid = Payload::from(format.uuid.clone().into_bytes());
            store.put("juicefs_uuid", uuid).await.context("put the volume's UUID into the object storage")?;
        }
    }
    meta.set_rules(open::rules(&format));
    meta.format(&format.to_json()).await.context("format")?;
    tracing::info!("Volume is formatted as {}", format.redacted());
    Ok(())
}

/// The text of a private key, as it goes into the record: to the byte what is in the file.
fn private_key(file: &Path) -> anyhow::Result<Secret> {
    let unread = || format!("read the private key {}", file.display());
    let text = std::fs::read_to_string(file).with_context(unread)?;
    // Only to see that it can be used; the cipher is looked at with the rest of the record.
    Envelope::new("", &text, data_key_passphrase().as_ref().map(Secret::expose)).with_context(unread)?;
    Ok(Secret::new(text))
}

/// A prefix with somebody's objects under it is not ours to use.
async fn refuse_occupied(store: &dyn ObjectStore) -> anyhow::Result<()> {
    // Test objects that a broken test left behind do not count, nor do empty directories of a file store.
    let mut after = String::new();
    loop {
        let page = store.list("", &after, 1000).await.context("list the object storage")?;
        if page.iter().any(|object| object.size > 0 && !object.key.starts_with("testing")) {
            bail!("Storage {} is not empty; please clean it up or pick another volume name", store.name());
        }
        match page.last() {
            Some(last) if page.len() >= 1000 => after.clone_from(&last.key),
            _ => return Ok(()),
        }
    }
}

fn new_volume(args: &Args, key: Option<Secret>, uuid: String) -> anyhow::Result<VolumeFormat> {
    let mut format = VolumeFormat::new(args.name.clone(), uuid);
    format.shards = args.shards.unwrap_or(0);
    format.hash_prefix = args.hash_prefix;
    apply_fixed(&mut format, args);
    if args.storage.bucket.is_none() && args.storage.storage.as_deref().is_none_or(is_file) {
        format.bucket = client::default_dir("/var/jfs", "local").to_string_lossy().into_owned();
    }
    apply_changeable(&mut format, args)?;
    if let Some(key) = key {
        format.replace_secrets(NewSecrets { encrypt_key: Some(key), ..NewSecrets::default() }, true)?;
    }
    format.check_new()?;
    Ok(format)
}

/// The stored record with what was given. What was given and is fixed for life is refused.
fn updated(stored: &VolumeFormat, args: &Args, key: Option<Secret>) -> anyhow::Result<VolumeFormat> {
    stored.admit(volume::Access::Read)?;
    // Scripts give the key whenever they format; the same one changes nothing.
    if let Some(key) = key
        && stored.open_secrets()?.encrypt_key != key
    {
        bail!("cannot update volume encryption key: what is written would not be readable any more");
    }
    let mut format = stored.clone();
    format.name.clone_from(&args.name);
    apply_fixed(&mut format, args);
    if let Some(shards) = args.shards {
        format.shards = shards;
    }
    format.hash_prefix |= args.hash_prefix;
    format.check_update(stored).context("update format")?;
    apply_changeable(&mut format, args)?;
    Ok(format)
}

fn apply_fixed(format: &mut VolumeFormat, args: &Args) {
    if let Some(size) = args.block_size {
        format.block_size_kib = round_block_kib(size.bytes());
    }
    if let Some(compression) = &args.compress {
        format.compression.clone_from(compression);
    }
    if let Some(algorithm) = &args.encrypt_algo {
        format.encrypt_algo.clone_from(algorithm);
    }
}

fn apply_changeable(format: &mut VolumeFormat, args: &Args) -> anyhow::Result<()> {
    apply_storage(format, &args.storage, true)?;
    if let Some(class) = &args.storage.storage_class {
        format.tiers.entry(0).or_default().storage_class.clone_from(class);
    }
    if args.storage.tag.is_some() {
        tracing::warn!("--tag has no effect on format; set it with the config command");
    }
    let limits = &args.limits;
    if let Some(capacity) = limits.capacity {
        format.capacity_bytes = capacity.bytes();
    }
    if let Some(inodes) = limits.inodes {
        format.inodes = inodes;
    }
    if let Some(days) = limits.trash_days {
        format.trash_days = days.into();
    }
    apply_features(format, limits)
}

/// Switches that raise the version that clients need.
pub fn apply_features(format: &mut VolumeFormat, limits: &LimitOptions) -> anyhow::Result<()> {
    if limits.enable_acl {
        format.enable_acl = true;
        format.require_client("1.2.0-A")?;
    }
    for (given, kept) in
        [(&limits.ranger_rest_url, &mut format.ranger_rest_url), (&limits.ranger_service, &mut format.ranger_service)]
    {
        if let Some(given) = given {
            kept.clone_from(given);
        }
    }
    if limits.ranger_rest_url.is_some() || limits.ranger_service.is_some() {
        format.require_client("1.3.0-A")?;
    }
    if let Some(file) = &limits.kerberos_config_file {
        format.kerb_conf = std::fs::read_to_string(file).with_context(|| format!("read {}", file.display()))?;
        format.require_client("1.4.0-A")?;
    }
    Ok(())
}

fn is_file(kind: &str) -> bool {
    kind.eq_ignore_ascii_case("file")
}

/// Takes over kind, bucket and keys. Secrets stay sealed if they were; `seal` seals them from now on.
pub fn apply_storage(format: &mut VolumeFormat, given: &StorageOptions, seal: bool) -> ConfigResult<()> {
    if let Some(kind) = &given.storage {
        format.storage.clone_from(kind);
    }
    if let Some(bucket) = &given.bucket {
        format.bucket.clone_from(bucket);
    }
    if is_file(&format.storage) && !format.bucket.is_empty() {
        format.bucket = directory(&format.bucket);
    }
    if let Some(key) = &given.access_key {
        format.access_key.clone_from(key);
    }
    if given.secret_key.is_none() && given.session_token.is_none() {
        return Ok(());
    }
    let secret = |given: &Option<String>| given.clone().map(Secret::new);
    let new = NewSecrets {
        secret_key: secret(&given.secret_key),
        session_token: secret(&given.session_token),
        encrypt_key: None,
    };
    format.replace_secrets(new, seal || format.key_encrypted)
}

/// The bucket of a file store: an absolute path that ends in `/`.
fn directory(path: &str) -> String {
    let path = path.strip_prefix("file://").unwrap_or(path);
    let mut path = std::path::absolute(path).map_or_else(|_| path.to_string(), |p| p.to_string_lossy().into_owned());
    if !path.ends_with('/') {
        path.push('/');
    }
    path
}
