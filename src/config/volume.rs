//! The volume's own record: the `setting` document (`spec/metadata.md` 1.11, `spec/data.md` 2).
//!
//! Other programs, older and newer, share this document, so reading is tolerant and writing is careful: keys that we do
//! not know are kept with their values and their place, known keys are written in the peer's order and left out when the
//! peer would leave them out, and the layout is the peer's. The secrets are held as stored (sealed or plain);
//! [`VolumeFormat::open_secrets`] opens them, [`VolumeFormat::redacted`] is the only view to print.
//!
//! [`VolumeFormat::admit`] decides whether this build may use the volume at all.

use super::seal::{self, REMOVED, Secret};
pub use super::version::{COMPATIBLE_VERSION, SESSION_VERSION, Version};
use super::{ConfigError, ConfigResult};
use serde::Serialize;
use serde_json::ser::PrettyFormatter;
use serde_json::{Map, Value, json};
use std::collections::BTreeMap;
use std::fmt;

/// The newest layout of the metadata that we know.
pub const META_VERSION: i64 = 1;

/// Objects of one slice stay countable and one block still fits a request: the peer's bounds, in KiB.
const BLOCK_KIB_MIN: u64 = 64;
const BLOCK_KIB_MAX: u64 = 16 << 10;

/// A storage tier: a class and a tag for the objects written under it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Tier {
    pub id: u8,
    pub storage_class: String,
    pub tag: String,
    unknown: Vec<Unknown>,
}

impl Tier {
    pub fn new(id: u8, storage_class: impl Into<String>, tag: impl Into<String>) -> Tier {
        Tier { id, storage_class: storage_class.into(), tag: tag.into(), unknown: Vec::new() }
    }
}

/// A key that we do not know, and the known key it stood behind.
#[derive(Clone, Debug, PartialEq)]
struct Unknown {
    after: Option<&'static str>,
    key: String,
    value: Value,
}

impl Eq for Unknown {}

/// The record of a volume. `Debug` shows no secret.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct VolumeFormat {
    pub name: String,
    pub uuid: String,
    pub storage: String,
    /// Only the source of tier 0 in records from before tiers; see [`VolumeFormat::storage_class`].
    pub storage_class_legacy: String,
    pub tiers: BTreeMap<u8, Tier>,
    pub bucket: String,
    pub access_key: String,
    /// As stored: sealed when `key_encrypted`. So are the session token and the encryption key.
    pub secret_key: Secret,
    pub session_token: Secret,
    pub block_size_kib: u64,
    pub compression: String,
    pub shards: u32,
    pub hash_prefix: bool,
    pub capacity_bytes: u64,
    pub inodes: u64,
    pub encrypt_key: Secret,
    pub encrypt_algo: String,
    pub key_encrypted: bool,
    pub upload_limit_mbps: i64,
    pub download_limit_mbps: i64,
    pub trash_days: i64,
    pub meta_version: i64,
    pub min_client_version: String,
    pub max_client_version: String,
    pub dir_stats: bool,
    pub user_group_quota: bool,
    pub enable_acl: bool,
    pub ranger_rest_url: String,
    pub ranger_service: String,
    pub change_log: bool,
    pub change_log_max_age_s: i64,
    pub change_log_max_lines: i64,
    pub kerb_conf: String,
    unknown: Vec<Unknown>,
}

/// What is set when a volume is made and nothing is asked for.
impl Default for VolumeFormat {
    fn default() -> VolumeFormat {
        VolumeFormat {
            name: String::new(),
            uuid: String::new(),
            storage: "file".into(),
            storage_class_legacy: String::new(),
            tiers: BTreeMap::from([(0, Tier::default())]),
            bucket: String::new(),
            access_key: String::new(),
            secret_key: Secret::default(),
            session_token: Secret::default(),
            // 4 MiB: one block is one request, large enough for the store and small enough to be read in part.
            block_size_kib: 4096,
            compression: "none".into(),
            shards: 0,
            hash_prefix: false,
            capacity_bytes: 0,
            inodes: 0,
            encrypt_key: Secret::default(),
            // Written even without a key, as the peer does; only the key switches encryption on.
            encrypt_algo: "aes256gcm-rsa".into(),
            key_encrypted: false,
            upload_limit_mbps: 0,
            download_limit_mbps: 0,
            // One day to notice a mistake.
            trash_days: 1,
            meta_version: META_VERSION,
            min_client_version: "1.1.0-A".into(),
            max_client_version: String::new(),
            dir_stats: true,
            user_group_quota: false,
            enable_acl: false,
            ranger_rest_url: String::new(),
            ranger_service: String::new(),
            change_log: false,
            change_log_max_age_s: 0,
            change_log_max_lines: 0,
            kerb_conf: String::new(),
            unknown: Vec::new(),
        }
    }
}

/// The credentials of the object store and the key of the data, opened.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct OpenSecrets {
    pub secret_key: Secret,
    pub session_token: Secret,
    pub encrypt_key: Secret,
}

/// Secrets to put in the place of stored ones; what is `None` stays.
#[derive(Clone, Debug, Default)]
pub struct NewSecrets {
    pub secret_key: Option<Secret>,
    pub session_token: Option<Secret>,
    pub encrypt_key: Option<Secret>,
}

/// What a client wants to do with a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Access {
    Read,
    Write,
}

/// Known keys in the order in which they are written.
const KEYS: [&str; 33] = [
    "Name",
    "UUID",
    "Storage",
    "StorageClass",
    "Tiers",
    "Bucket",
    "AccessKey",
    "SecretKey",
    "SessionToken",
    "BlockSize",
    "Compression",
    "Shards",
    "HashPrefix",
    "Capacity",
    "Inodes",
    "EncryptKey",
    "EncryptAlgo",
    "KeyEncrypted",
    "UploadLimit",
    "DownloadLimit",
    "TrashDays",
    "MetaVersion",
    "MinClientVersion",
    "MaxClientVersion",
    "DirStats",
    "UserGroupQuota",
    "EnableACL",
    "RangerRestUrl",
    "RangerService",
    "ChangeLog",
    "ChangeLogMaxAge",
    "ChangeLogMaxLines",
    "KerbConf",
];

/// Keys that are written even when zero.
const KEPT: [&str; 7] = ["Name", "UUID", "Storage", "Tiers", "Bucket", "BlockSize", "TrashDays"];

/// Reads the fields of one object and remembers what it did not know.
struct Reader {
    object: Map<String, Value>,
}

impl Reader {
    /// Takes a key; `null` counts as absent, as it does for the peer.
    fn take(&mut self, key: &'static str) -> Option<Value> {
        // The order of the remaining keys matters no more once `unknown_keys` has seen the whole document.
        self.object.swap_remove(key).filter(|value| !value.is_null())
    }

    fn field<T>(&mut self, key: &'static str, read: impl Fn(&Value) -> Option<T>) -> ConfigResult<Option<T>> {
        match self.take(key) {
            None => Ok(None),
            Some(value) => read(&value).map(Some).ok_or_else(|| {
                let kind = match value {
                    Value::Null => "nothing",
                    Value::Bool(_) => "a boolean",
                    Value::Number(_) => "a number out of range",
                    Value::String(_) => "a text",
                    Value::Array(_) => "a list",
                    Value::Object(_) => "an object",
                };
                ConfigError::new(format!("the volume record does not decode: \"{key}\" must not be {kind}"))
            }),
        }
    }

    fn text(&mut self, key: &'static str) -> ConfigResult<String> {
        Ok(self.field(key, |v| v.as_str().map(str::to_string))?.unwrap_or_default())
    }

    fn secret(&mut self, key: &'static str) -> ConfigResult<Secret> {
        Ok(Secret::new(self.text(key)?))
    }

    fn int(&mut self, key: &'static str) -> ConfigResult<i64> {
        Ok(self.field(key, Value::as_i64)?.unwrap_or_default())
    }

    fn unsigned(&mut self, key: &'static str) -> ConfigResult<u64> {
        Ok(self.field(key, Value::as_u64)?.unwrap_or_default())
    }

    fn flag(&mut self, key: &'static str) -> ConfigResult<bool> {
        Ok(self.field(key, Value::as_bool)?.unwrap_or_default())
    }
}

/// The keys of `object` that are not in `known`, each with the known key before it.
fn unknown_keys(object: &Map<String, Value>, known: &[&'static str]) -> Vec<Unknown> {
    let mut after = None;
    let mut unknown = Vec::new();
    for (key, value) in object {
        match known.iter().find(|known| *known == key) {
            Some(known) => after = Some(*known),
            None => unknown.push(Unknown { after, key: key.clone(), value: value.clone() }),
        }
    }
    unknown
}

/// Puts `unknown` back: each behind the known key it was found behind, or behind where that key would stand.
fn weave(known: impl IntoIterator<Item = (&'static str, Option<Value>)>, unknown: &[Unknown]) -> Map<String, Value> {
    let mut out = Map::new();
    let put_after = |out: &mut Map<String, Value>, after| {
        for u in unknown.iter().filter(|u| u.after == after) {
            out.insert(u.key.clone(), u.value.clone());
        }
    };
    put_after(&mut out, None);
    for (key, value) in known {
        if let Some(value) = value {
            out.insert(key.to_string(), value);
        }
        put_after(&mut out, Some(key));
    }
    out
}

const TIER_KEYS: [&str; 3] = ["ID", "StorageClass", "Tag"];

fn read_tiers(value: Option<Value>, legacy_class: &str) -> ConfigResult<BTreeMap<u8, Tier>> {
    let wrong = || ConfigError::new("the volume record does not decode: \"Tiers\" must map ids 0..255 to tiers");
    let mut tiers = BTreeMap::new();
    match value {
        None => {}
        Some(Value::Object(object)) => {
            for (id, tier) in object {
                let id: u8 = id.parse().map_err(|_| wrong())?;
                let Value::Object(object) = tier else { return Err(wrong()) };
                let unknown = unknown_keys(&object, &TIER_KEYS);
                let mut r = Reader { object };
                let _ = r.take("ID");
                tiers.insert(id, Tier { id, storage_class: r.text("StorageClass")?, tag: r.text("Tag")?, unknown });
            }
        }
        Some(_) => return Err(wrong()),
    }
    if tiers.is_empty() {
        tiers.insert(0, Tier::new(0, legacy_class, ""));
    }
    Ok(tiers)
}

impl VolumeFormat {
    /// The record of a new volume, with the defaults in everything else.
    pub fn new(name: impl Into<String>, uuid: impl Into<String>) -> VolumeFormat {
        VolumeFormat { name: name.into(), uuid: uuid.into(), ..VolumeFormat::default() }
    }

    /// Reads the stored document. Missing keys are zero (not the defaults of a new volume), unknown ones are kept.
    pub fn from_json(bytes: &[u8]) -> ConfigResult<VolumeFormat> {
        let object = match serde_json::from_slice(bytes) {
            Ok(Value::Object(object)) => object,
            Ok(_) => return Err(ConfigError::new("the volume record does not decode: it is not a JSON object")),
            // The reason has line and column only, never the text around them, which may be a secret.
            Err(e) => return Err(ConfigError::new(format!("the volume record does not decode: {e}"))),
        };
        let unknown = unknown_keys(&object, &KEYS);
        let mut r = Reader { object };
        let storage_class_legacy = r.text("StorageClass")?;
        let tiers = r.take("Tiers");
        let shards = r.unsigned("Shards")?;
        Ok(VolumeFormat {
            name: r.text("Name")?,
            uuid: r.text("UUID")?,
            storage: r.text("Storage")?,
            tiers: read_tiers(tiers, &storage_class_legacy)?,
            storage_class_legacy,
            bucket: r.text("Bucket")?,
            access_key: r.text("AccessKey")?,
            secret_key: r.secret("SecretKey")?,
            session_token: r.secret("SessionToken")?,
            block_size_kib: r.unsigned("BlockSize")?,
            compression: r.text("Compression")?,
            shards: u32::try_from(shards)
                .map_err(|_| ConfigError::new("the volume record does not decode: \"Shards\" is out of range"))?,
            hash_prefix: r.flag("HashPrefix")?,
            capacity_bytes: r.unsigned("Capacity")?,
            inodes: r.unsigned("Inodes")?,
            encrypt_key: r.secret("EncryptKey")?,
            encrypt_algo: r.text("EncryptAlgo")?,
            key_encrypted: r.flag("KeyEncrypted")?,
            upload_limit_mbps: r.int("UploadLimit")?,
            download_limit_mbps: r.int("DownloadLimit")?,
            trash_days: r.int("TrashDays")?,
            meta_version: r.int("MetaVersion")?,
            min_client_version: r.text("MinClientVersion")?,
            max_client_version: r.text("MaxClientVersion")?,
            dir_stats: r.flag("DirStats")?,
            user_group_quota: r.flag("UserGroupQuota")?,
            enable_acl: r.flag("EnableACL")?,
            ranger_rest_url: r.text("RangerRestUrl")?,
            ranger_service: r.text("RangerService")?,
            change_log: r.flag("ChangeLog")?,
            change_log_max_age_s: r.int("ChangeLogMaxAge")?,
            change_log_max_lines: r.int("ChangeLogMaxLines")?,
            kerb_conf: r.text("KerbConf")?,
            unknown,
        })
    }

    /// Whether a key of the document is one of those that have a meaning here.
    pub fn knows(key: &str) -> bool {
        KEYS.contains(&key)
    }

    /// The document as it is stored: the peer's order and omissions, a line break after every token, no indentation.
    pub fn to_json(&self) -> Vec<u8> {
        go_json(&Value::Object(self.object(false)), "").into_bytes()
    }

    /// The document to show: secrets are `removed`.
    pub fn redacted(&self) -> Redacted<'_> {
        Redacted(self)
    }

    pub(super) fn object(&self, redact: bool) -> Map<String, Value> {
        let secret = |s: &Secret| json!(if redact && !s.is_empty() { REMOVED } else { s.expose() });
        let tiers: Map<String, Value> = self
            .tiers
            .iter()
            .map(|(id, tier)| {
                let values = [json!(tier.id), json!(tier.storage_class), json!(tier.tag)];
                let known = TIER_KEYS.into_iter().zip(values.map(Some));
                (id.to_string(), Value::Object(weave(known, &tier.unknown)))
            })
            .collect();
        let values = [
            json!(self.name),
            json!(self.uuid),
            json!(self.storage),
            json!(self.storage_class_legacy),
            Value::Object(tiers),
            json!(self.bucket),
            json!(self.access_key),
            secret(&self.secret_key),
            secret(&self.session_token),
            json!(self.block_size_kib),
            json!(self.compression),
            json!(self.shards),
            json!(self.hash_prefix),
            json!(self.capacity_bytes),
            json!(self.inodes),
            secret(&self.encrypt_key),
            json!(self.encrypt_algo),
            json!(self.key_encrypted),
            json!(self.upload_limit_mbps),
            json!(self.download_limit_mbps),
            json!(self.trash_days),
            json!(self.meta_version),
            json!(self.min_client_version),
            json!(self.max_client_version),
            json!(self.dir_stats),
            json!(self.user_group_quota),
            json!(self.enable_acl),
            json!(self.ranger_rest_url),
            json!(self.ranger_service),
            json!(self.change_log),
            json!(self.change_log_max_age_s),
            json!(self.change_log_max_lines),
            json!(self.kerb_conf),
        ];
        let keep = |key: &str, value: &Value| match value {
            _ if KEPT.contains(&key) || key == "EnableACL" => true,
            Value::String(text) => !text.is_empty(),
            Value::Bool(flag) => *flag,
            Value::Number(number) => number.as_i64() != Some(0),
            Value::Null | Value::Array(_) | Value::Object(_) => true,
        };
        weave(KEYS.into_iter().zip(values).map(|(k, v)| (k, Some(v).filter(|v| keep(k, v)))), &self.unknown)
    }

    pub fn block_bytes(&self) -> u64 {
        self.block_size_kib << 10
    }

    /// The storage class of data written without a tier.
    pub fn storage_class(&self) -> &str {
        self.tiers.get(&0).map_or(&self.storage_class_legacy, |tier| &tier.storage_class)
    }

    pub fn is_encrypted(&self) -> bool {
        !self.encrypt_key.is_empty()
    }

    /// Opens the three secrets.
    pub fn open_secrets(&self) -> ConfigResult<OpenSecrets> {
        Ok(OpenSecrets {
            secret_key: self.open_secret(&self.secret_key, "secret key")?,
            session_token: self.open_secret(&self.session_token, "session token")?,
            encrypt_key: self.open_secret(&self.encrypt_key, "encryption key")?,
        })
    }

    fn open_secret(&self, stored: &Secret, field: &str) -> ConfigResult<Secret> {
        match stored.expose() {
            REMOVED => Err(seal::removed(field)),
            _ if self.key_encrypted => seal::open(stored, &self.uuid, &self.encrypt_algo, field),
            _ => Ok(stored.clone()),
        }
    }

    /// Stores secrets, sealed when `sealed`. A volume without any secret is not marked as sealed, as the peer does it.
    pub fn set_secrets(&mut self, secrets: &OpenSecrets, sealed: bool) -> ConfigResult<()> {
        let OpenSecrets { secret_key, session_token, encrypt_key } = secrets.clone();
        let all = [secret_key, session_token, encrypt_key].map(Some);
        let [secret_key, session_token, encrypt_key] = all;
        self.replace_secrets(NewSecrets { secret_key, session_token, encrypt_key }, sealed)
    }

    /// Stores some secrets, and all of them sealed when `sealed`. Of the others nothing is lost: one that was stripped
    /// by a dump, and so cannot be opened, stays marked as such.
    pub fn replace_secrets(&mut self, new: NewSecrets, sealed: bool) -> ConfigResult<()> {
        let store = |new: Option<Secret>, stored: &Secret, field| match new {
            None if stored.expose() == REMOVED || sealed == self.key_encrypted => Ok(stored.clone()),
            None if !sealed => self.open_secret(stored, field),
            None => seal::seal(&self.open_secret(stored, field)?, &self.uuid, &self.encrypt_algo),
            Some(new) if sealed => seal::seal(&new, &self.uuid, &self.encrypt_algo),
            Some(new) => Ok(new),
        };
        let secret_key = store(new.secret_key, &self.secret_key, "secret key")?;
        let session_token = store(new.session_token, &self.session_token, "session token")?;
        let encrypt_key = store(new.encrypt_key, &self.encrypt_key, "encryption key")?;
        let any = ![&secret_key, &session_token, &encrypt_key].into_iter().all(Secret::is_empty);
        (self.secret_key, self.session_token, self.encrypt_key) = (secret_key, session_token, encrypt_key);
        self.key_encrypted = sealed && any;
        Ok(())
    }

    /// Refuses a volume whose records we do not know the layout of. Nothing of it may be written, not even its removal:
    /// what we do not know would stay behind.
    pub fn check_layout(&self) -> ConfigResult<()> {
        if self.meta_version > META_VERSION {
            return Err(ConfigError::new(format!(
                "incompatible metadata version: {}; this client knows up to {META_VERSION}, please upgrade it",
                self.meta_version
            )));
        }
        Ok(())
    }

    /// Decides whether this build may use the volume, and says why not.
    pub fn admit(&self, access: Access) -> ConfigResult<()> {
        let refuse = |why: String| Err(ConfigError::new(why));
        self.check_layout()?;
        // It is the prefix of all objects, and must not lead out of the bucket.
        if self.name.contains('/') || matches!(self.name.as_str(), "." | "..") {
            return refuse(format!("the volume's record is damaged: its name is {:?}", self.name));
        }
        let ours = Version::ours();
        if !self.min_client_version.is_empty() && ours < self.min_client_version.parse()? {
            return refuse(format!(
                "the volume asks for clients of version {} or newer, and this client counts as {ours}; please upgrade it",
                self.min_client_version
            ));
        }
        if !self.max_client_version.is_empty() && ours > self.max_client_version.parse()? {
            return refuse(format!(
                "the volume asks for clients of version {} or older, and this client counts as {ours}",
                self.max_client_version
            ));
        }
        if self.is_encrypted() {
            check_cipher(&self.encrypt_algo)?;
        }
        check_compression(&self.compression)?;
        check_block_kib(self.block_size_kib)?;
        if access == Access::Write && self.change_log {
            return refuse(
                "the volume keeps a change log, which this build cannot write, so it would miss our changes; \
                 mount it read-only or switch the change log off"
                    .into(),
            );
        }
        Ok(())
    }

    /// Checks a record that is about to be stored for a new volume.
    pub fn check_new(&self) -> ConfigResult<()> {
        check_name(&self.name)?;
        check_compression(&self.compression)?;
        check_cipher(&self.encrypt_algo)?;
        check_block_kib(self.block_size_kib)?;
        if self.shards > 256 {
            return Err(ConfigError::new("too many shards: at most 256 are possible"));
        }
        if self.shards > 1 && !self.bucket.contains("%d") {
            return Err(ConfigError::new(format!(
                "cannot spread over {} buckets with the bucket {}: it needs a %d where the number goes",
                self.shards, self.bucket
            )));
        }
        if self.trash_days < 0 {
            return Err(ConfigError::new("the number of trash days must not be negative"));
        }
        Ok(())
    }

    /// Checks that `self`, meant to replace `stored` without force, changes nothing that is fixed for the volume's life.
    pub fn check_update(&self, stored: &VolumeFormat) -> ConfigResult<()> {
        fn same<T: PartialEq + fmt::Display>(field: &str, old: T, new: T) -> ConfigResult<()> {
            if old == new {
                Ok(())
            } else {
                Err(ConfigError::new(format!("cannot update volume {field} from {old} to {new}")))
            }
        }
        same("name", &stored.name, &self.name)?;
        same("block size", stored.block_size_kib, self.block_size_kib)?;
        same("compression", plain_compression(&stored.compression), plain_compression(&self.compression))?;
        same("shards", stored.shards.max(1), self.shards.max(1))?;
        same("hash prefix", stored.hash_prefix, self.hash_prefix)?;
        // Also of a volume that is not encrypted: its secrets are sealed by it.
        same("encryption algorithm", &stored.encrypt_algo, &self.encrypt_algo)?;
        same("meta version", stored.meta_version, self.meta_version)
    }

    /// Raises the version that clients need to at least `version`; it is never lowered.
    pub fn require_client(&mut self, version: &str) -> ConfigResult<()> {
        let wanted: Version = version.parse()?;
        if self.min_client_version.is_empty() || self.min_client_version.parse::<Version>()? < wanted {
            self.min_client_version = version.to_string();
        }
        Ok(())
    }
}

/// `none` and nothing are the same, and the case does not matter.
fn plain_compression(name: &str) -> String {
    if name.is_empty() { "none".into() } else { name.to_lowercase() }
}

fn check_compression(name: &str) -> ConfigResult<()> {
    match plain_compression(name).as_str() {
        "none" | "lz4" | "zstd" => Ok(()),
        _ => Err(ConfigError::new(format!("unsupported compress algorithm: \"{name}\"; lz4, zstd and none are known"))),
    }
}

fn check_cipher(name: &str) -> ConfigResult<()> {
    match name {
        "" | "aes256gcm-rsa" | "chacha20-rsa" | "sm4gcm" => Ok(()),
        _ => Err(ConfigError::new(format!(
            "unsupported cipher: \"{name}\"; aes256gcm-rsa, chacha20-rsa and sm4gcm are known"
        ))),
    }
}

fn check_block_kib(kib: u64) -> ConfigResult<()> {
    if kib.is_power_of_two() && (BLOCK_KIB_MIN..=BLOCK_KIB_MAX).contains(&kib) {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "unusable block size: {kib} KiB is not a power of two between {BLOCK_KIB_MIN} KiB and {BLOCK_KIB_MAX} KiB"
    )))
}

/// The block size that a wish becomes: rounded down to a power of two within the bounds (`spec/data.md` 1.3), in KiB.
pub fn round_block_kib(bytes: u64) -> u64 {
    let kib = (bytes >> 10).clamp(BLOCK_KIB_MIN, BLOCK_KIB_MAX);
    1 << kib.ilog2()
}

/// `^[a-z0-9][a-z0-9\-]{1,61}[a-z0-9]$`
pub fn check_name(name: &str) -> ConfigResult<()> {
    let bytes = name.as_bytes();
    let plain = |b: &u8| b.is_ascii_lowercase() || b.is_ascii_digit();
    let ok = (3..=63).contains(&bytes.len())
        && bytes.iter().all(|b| plain(b) || *b == b'-')
        && bytes.first().is_some_and(plain)
        && bytes.last().is_some_and(plain);
    if ok {
        return Ok(());
    }
    Err(ConfigError::new(format!(
        "invalid name: {name:?}, only lower-case letters, digits and - are allowed (no - at the ends), \
         and the length should be 3 to 63 characters"
    )))
}

/// A volume record to be shown: `Display` is indented JSON, `Serialize` the object, both with secrets `removed`.
#[derive(Clone, Copy)]
pub struct Redacted<'a>(&'a VolumeFormat);

impl Redacted<'_> {
    pub fn to_value(self) -> Value {
        Value::Object(self.0.object(true))
    }
}

impl fmt::Display for Redacted<'_> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&go_json(&self.to_value(), "  "))
    }
}

impl Serialize for Redacted<'_> {
    fn serialize<S: serde::Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        self.to_value().serialize(serializer)
    }
}

/// JSON in the layout of the peer's writer: one token a line, `indent` per level, and `<`, `>`, `&` escaped.
pub fn go_json(value: &Value, indent: &str) -> String {
    let mut out = Vec::new();
    let mut serializer =
        serde_json::Serializer::with_formatter(&mut out, PrettyFormatter::with_indent(indent.as_bytes()));
    value.serialize(&mut serializer).expect("a JSON value always serialises into memory");
    let text = String::from_utf8(out).expect("JSON is UTF-8");
    // Outside of strings JSON has none of these characters.
    if text.contains(['<', '>', '&']) {
        text.replace('<', "\\u003c").replace('>', "\\u003e").replace('&', "\\u0026")
    } else {
        text
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// What the peer stored for `format … --access-key AK --secret-key SKTEST`.
    const STORED: &str = "{\n\"Name\": \"vpeer\",\n\"UUID\": \"58e59682-7faf-4d9f-a900-6d35c920d84b\",\n\"Storage\": \"file\",\n\"Tiers\": {\n\"0\": {\n\"ID\": 0,\n\"StorageClass\": \"\",\n\"Tag\": \"\"\n}\n},\n\"Bucket\": \"/tmp/clipeer/b/\",\n\"AccessKey\": \"AK\",\n\"SecretKey\": \"K8rzTD6X2X+Wysky1C8RJXuKGXcpLNnX8INvPEZ/RMkKqA==\",\n\"BlockSize\": 4096,\n\"Compression\": \"none\",\n\"EncryptAlgo\": \"aes256gcm-rsa\",\n\"KeyEncrypted\": true,\n\"TrashDays\": 1,\n\"MetaVersion\": 1,\n\"MinClientVersion\": \"1.1.0-A\",\n\"DirStats\": true,\n\"EnableACL\": false\n}";

    fn stored() -> VolumeFormat {
        VolumeFormat::from_json(STORED.as_bytes()).unwrap()
    }

    #[test]
    fn the_record_of_the_peer_round_trips_byte_for_byte() {
        let format = stored();
        assert_eq!(String::from_utf8(format.to_json()).unwrap(), STORED);
        assert_eq!(format.open_secrets().unwrap().secret_key.expose(), "SKTEST");
        format.admit(Access::Write).unwrap();
    }

    #[test]
    fn a_new_volume_is_written_as_the_peer_writes_one() {
        let mut format = VolumeFormat {
            name: "vpeer".into(),
            uuid: "58e59682-7faf-4d9f-a900-6d35c920d84b".into(),
            bucket: "/tmp/clipeer/b/".into(),
            access_key: "AK".into(),
            ..VolumeFormat::default()
        };
        let secrets = OpenSecrets { secret_key: Secret::new("SKTEST"), ..OpenSecrets::default() };
        format.set_secrets(&secrets, true).unwrap();
        assert_eq!(format.open_secrets().unwrap(), secrets);
        format.secret_key = stored().secret_key;
        assert_eq!(String::from_utf8(format.to_json()).unwrap(), STORED);
        format.check_new().unwrap();
    }

    #[test]
    fn a_secret_is_replaced_without_losing_the_others() {
        let mut format = stored();
        let only = |key: &str| NewSecrets { encrypt_key: Some(Secret::new(key)), ..NewSecrets::default() };
        format.replace_secrets(only("PEM"), true).unwrap();
        let opened = format.open_secrets().unwrap();
        assert_eq!((opened.secret_key.expose(), opened.encrypt_key.expose()), ("SKTEST", "PEM"));
        // What a dump stripped stays so until it is given, and the key of the data stays what it was.
        let sealed = format.encrypt_key.clone();
        format.secret_key = Secret::new(REMOVED);
        assert!(format.open_secrets().unwrap_err().to_string().contains("config"));
        let token = NewSecrets { session_token: Some(Secret::new("T")), ..NewSecrets::default() };
        format.replace_secrets(token, true).unwrap();
        assert_eq!((format.secret_key.expose(), &format.encrypt_key), (REMOVED, &sealed));
        let key = NewSecrets { secret_key: Some(Secret::new("NEW")), ..NewSecrets::default() };
        format.replace_secrets(key, true).unwrap();
        let opened = format.open_secrets().unwrap();
        assert_eq!(
            [&opened.secret_key, &opened.session_token, &opened.encrypt_key].map(Secret::expose),
            ["NEW", "T", "PEM"]
        );
        // Plain secrets become sealed together.
        let mut plain = stored();
        plain.set_secrets(&opened, false).unwrap();
        assert!(!plain.key_encrypted && plain.encrypt_key.expose() == "PEM");
        plain.replace_secrets(NewSecrets::default(), true).unwrap();
        assert!(plain.key_encrypted && plain.encrypt_key.expose() != "PEM");
        assert_eq!(plain.open_secrets().unwrap(), opened);
    }

    #[test]
    fn unknown_keys_keep_their_place_and_value() {
        let text = r#"{"First":{"b":1,"a":[1.50,null]},"Name":"abc","Later":18446744073709551615,"UUID":"u",
            "Tiers":{"0":{"ID":0,"New":"x","StorageClass":"IA","Tag":""}},"TrashDays":2,"Zz":null}"#;
        let mut format = VolumeFormat::from_json(text.as_bytes()).unwrap();
        format.trash_days = 3;
        format.capacity_bytes = 7;
        let out: Value = serde_json::from_slice(&format.to_json()).unwrap();
        let keys: Vec<_> = out.as_object().unwrap().keys().map(String::as_str).collect();
        assert_eq!(
            keys,
            [
                "First",
                "Name",
                "Later",
                "UUID",
                "Storage",
                "Tiers",
                "Bucket",
                "BlockSize",
                "Capacity",
                "TrashDays",
                "Zz",
                "EnableACL"
            ]
        );
        assert_eq!(out["First"].to_string(), r#"{"b":1,"a":[1.5,null]}"#);
        assert_eq!(out["Later"], json!(u64::MAX));
        assert_eq!(out["Tiers"]["0"].to_string(), r#"{"ID":0,"New":"x","StorageClass":"IA","Tag":""}"#);
        assert_eq!(format.storage_class(), "IA");
    }

    #[test]
    fn records_from_before_tiers_and_without_versions_are_read() {
        let format = VolumeFormat::from_json(
            br#"{"Name":"old","UUID":"u","Storage":"s3","StorageClass":"IA",
            "Tiers":null,"Bucket":"b","BlockSize":4096,"SecretKey":"plain","TrashDays":0}"#,
        );
        let format = format.unwrap();
        assert_eq!((format.storage_class(), format.meta_version, format.dir_stats), ("IA", 0, false));
        assert_eq!(format.open_secrets().unwrap().secret_key.expose(), "plain");
        format.admit(Access::Write).unwrap();
    }

    #[test]
    fn a_record_that_does_not_decode_names_the_key_and_no_value() {
        for (text, key) in [
            (r#"{"Name":5}"#, "Name"),
            (r#"{"BlockSize":-1}"#, "BlockSize"),
            (r#"{"BlockSize":1.5}"#, "BlockSize"),
            (r#"{"SecretKey":["hunter2"]}"#, "SecretKey"),
            (r#"{"Tiers":[]}"#, "Tiers"),
            (r#"{"Tiers":{"x":{}}}"#, "Tiers"),
            (r#"{"Shards":99999999999}"#, "Shards"),
            (r#"["hunter2"]"#, "object"),
            ("", "decode"),
        ] {
            let error = VolumeFormat::from_json(text.as_bytes()).unwrap_err().to_string();
            assert!(error.contains(key) && !error.contains("hunter2"), "{text}: {error}");
        }
    }

    #[test]
    fn nothing_printed_shows_a_secret() {
        let mut format = stored();
        format.key_encrypted = false;
        format.secret_key = Secret::new("hunter2");
        format.encrypt_key = Secret::new("hunter2");
        let shown = format!("{} {format:?} {}", format.redacted(), format.redacted().to_value());
        assert!(!shown.contains("hunter2"));
        assert!(format.redacted().to_string().contains("  \"SecretKey\": \"removed\",\n"));
        assert!(!format.redacted().to_string().contains("SessionToken"));
    }

    #[test]
    fn the_gates_of_a_volume_are_kept() {
        let refused = |change: fn(&mut VolumeFormat), access| {
            let mut format = stored();
            change(&mut format);
            format.admit(access).unwrap_err().to_string()
        };
        assert!(refused(|f| f.meta_version = 2, Access::Read).contains("metadata version"));
        for name in ["..", ".", "../other", "a/b", "/"] {
            let format = VolumeFormat { name: name.into(), ..stored() };
            assert!(format.admit(Access::Read).unwrap_err().to_string().contains("its name is"), "{name}");
        }
        assert!(refused(|f| f.min_client_version = "1.5.0-A".into(), Access::Read).contains("1.5.0-A or newer"));
        assert!(refused(|f| f.max_client_version = "1.4.1".into(), Access::Read).contains("1.4.1 or older"));
        assert!(refused(|f| f.min_client_version = "one".into(), Access::Read).contains("version string"));
        let unknown = |f: &mut VolumeFormat| (f.encrypt_key, f.encrypt_algo) = (Secret::new("k"), "rot13".into());
        assert!(refused(unknown, Access::Read).contains("rot13"));
        assert!(refused(|f| f.compression = "brotli".into(), Access::Read).contains("brotli"));
        assert!(refused(|f| f.block_size_kib = 0, Access::Read).contains("block size"));
        assert!(refused(|f| f.change_log = true, Access::Write).contains("change log"));
        let mut logged = stored();
        logged.change_log = true;
        logged.admit(Access::Read).unwrap();
    }

    #[test]
    fn versions_compare_as_the_gates_do() {
        let v = |text: &str| text.parse::<Version>().unwrap();
        assert!(v("1.2.0-A") < v("1.2.0-beta1") && v("1.2.0-beta1") < v("1.2.0") && v("1.2.0") < v("1.10.0-A"));
        assert_eq!(v("1.4.2+2026-10-26.pypi"), v("1.4.2"));
        assert_eq!(v(SESSION_VERSION), Version::ours());
        assert_eq!(v("1.4.0-A").to_string(), "1.4.0-A");
        for wrong in ["", "foo", "1.2", "1.2.3.4", "1.x.3"] {
            assert!(wrong.parse::<Version>().is_err(), "{wrong}");
        }
        let mut format = stored();
        format.require_client("1.2.0-A").unwrap();
        format.require_client("1.1.0-A").unwrap();
        assert_eq!(format.min_client_version, "1.2.0-A");
    }

    #[test]
    fn what_is_fixed_for_life_cannot_be_updated() {
        let text = |change: fn(&mut VolumeFormat)| {
            let mut format = stored();
            change(&mut format);
            format.check_update(&stored()).map_err(|e| e.to_string())
        };
        assert_eq!(text(|f| f.block_size_kib = 8192), Err("cannot update volume block size from 4096 to 8192".into()));
        assert_eq!(text(|f| f.name = "other".into()), Err("cannot update volume name from vpeer to other".into()));
        assert_eq!(
            text(|f| f.compression = "lz4".into()),
            Err("cannot update volume compression from none to lz4".into())
        );
        assert!(text(|f| f.shards = 4).is_err() && text(|f| f.hash_prefix = true).is_err());
        assert!(text(|f| f.encrypt_algo = "sm4gcm".into()).is_err());
        assert_eq!(text(|f| (f.trash_days, f.bucket, f.compression) = (9, "x".into(), String::new())), Ok(()));
    }

    #[test]
    fn names_and_block_sizes_have_bounds() {
        for good in ["abc", "a-b", "0a9", &"x".repeat(63)] {
            check_name(good).unwrap();
        }
        for bad in ["", "ab", "A_b", "-ab", "ab-", "a.b", "äbc", &"x".repeat(64)] {
            assert!(check_name(bad).is_err(), "{bad}");
        }
        assert_eq!([0, 5 << 20, 4 << 20, 1 << 40, 100 << 10].map(round_block_kib), [64, 4096, 4096, 16384, 64]);
    }
}
