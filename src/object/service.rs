//! Every remote store that OpenDAL serves, from what the user typed.
//!
//! One OpenDAL operator per bucket, without OpenDAL's own retries, limits and timeouts: those are ours, see
//! [`super::stack`]. Connections come from one HTTP client of the process with *ring* for TLS, or from one of its own
//! for buckets with TLS parameters.
//!
//! On S3 stores the CRC-32C of the whole body travels as user metadata `crc32c` in decimal, is checked on whole reads,
//! and is neither asked for nor written with `?disable-checksum=true` (`spec/data.md` section 6).
//!
//! OpenDAL has the storage class in its operator and not in the request, so each class of the volume's tiers that is
//! written to has an operator of its own, made when it is first needed.
//!
//! OpenDAL cannot make buckets. For S3 stores that is one signed request of our own ([`super::sigv4`]); elsewhere the
//! bucket must exist.

use super::file::FileStore;
use super::mem::MemStore;
use super::place::{BucketUrl, Place, S3Bucket, s3_bucket};
use super::{Capabilities, Listed, ObjectMeta, ObjectStore, SharedStore, sigv4};
use crate::base::Fault;
use crate::buf::{Payload, Pool};
use async_trait::async_trait;
use futures::TryStreamExt;
use opendal::{Buffer, ErrorKind, Operator, options, services};
use opendal_http::ReqwestTransport;
use parking_lot::Mutex;
use std::collections::HashMap;
use std::error::Error as _;
use std::ops::Range;
use std::sync::{Arc, OnceLock};
use std::time::{Duration, SystemTime};

/// Kinds served through the S3 protocol. Their vendors offer it beside or instead of one of their own.
const S3_KINDS: [&str; 9] = ["s3", "minio", "ks3", "oos", "wasabi", "space", "scw", "eos", "storj"];
/// All kinds that can be opened.
pub const KINDS: [&str; 20] = [
    "file", "mem", "s3", "minio", "gs", "wasb", "oss", "cos", "obs", "b2", "tos", "swift", "webdav", "ks3", "oos",
    "wasabi", "space", "scw", "eos", "storj",
];

/// Opens all buckets of a place, in the order of their numbers. Nothing is contacted yet. `pool` gives the memory that
/// local stores read into.
pub fn open(place: &Place, pool: &Arc<Pool>) -> Result<Vec<SharedStore>, Fault> {
    place.expand()?.iter().map(|one| open_one(one, pool)).collect()
}

fn open_one(place: &Place, pool: &Arc<Pool>) -> Result<SharedStore, Fault> {
    let kind = place.storage.to_ascii_lowercase();
    match kind.as_str() {
        "" | "file" => return Ok(Arc::new(FileStore::new(place.bucket.trim_start_matches("file://"), pool.clone()))),
        "mem" => return Ok(Arc::new(MemStore::new())),
        kind if !KINDS.contains(&kind) => {
            return Err(Fault::config("open object store")
                .with("storage", kind)
                .source(format!("this storage kind is not known here; known are {}", KINDS.join(", "))));
        }
        _ => {}
    }
    let url = BucketUrl::parse(&place.bucket);
    let (operator, s3) = operator(&kind, place, &url).map_err(|e| {
        let text = words(&e, place);
        Fault::config("open object store").with("storage", &kind).with("bucket", place.shown_bucket()).source(text)
    })?;
    let client = client(&url)?;
    let operator = with_client(operator, &client);
    let checksum =
        s3.is_some() && operator.info().capability().write_with_user_metadata && !url.is_set("disable-checksum");
    Ok(Arc::new(Remote {
        name: format!("{kind}://{}/", operator.info().name()),
        kind: kind.clone(),
        classes: Mutex::default(),
        sorted: !matches!(kind.as_str(), "webdav" | "swift"),
        operator,
        checksum,
        s3,
        client,
        place: place.clone(),
    }))
}

fn with_client(operator: Operator, client: &reqwest::Client) -> Operator {
    let transport = opendal::HttpTransporter::new(ReqwestTransport::new(client.clone()));
    let context = operator.context().clone().with_http_transport(transport);
    operator.with_context(context)
}

/// Whether objects of this kind of store can have a storage class.
pub fn has_classes(kind: &str) -> bool {
    let kind = kind.to_ascii_lowercase();
    kind == "gs" || S3_KINDS.contains(&kind.as_str())
}

/// A setting that is missing or wrong, in OpenDAL's own error type so that both kinds of mistake take one way.
fn wrong(text: &str) -> opendal::Error {
    opendal::Error::new(ErrorKind::ConfigInvalid, text)
}

fn variable(names: &[&str]) -> Option<String> {
    names.iter().find_map(|name| std::env::var(name).ok().filter(|v| !v.is_empty()))
}

/// A key as given, else from the environment, else empty: then the service looks for itself.
fn key(given: &str, names: &[&str]) -> String {
    if given.is_empty() { variable(names).unwrap_or_default() } else { given.to_owned() }
}

fn operator(kind: &str, place: &Place, url: &BucketUrl) -> opendal::Result<(Operator, Option<S3Bucket>)> {
    let (ak, sk, token) = (place.access_key.as_str(), place.secret_key.as_str(), place.session_token.as_str());
    let split = || url.bucket_and_endpoint().ok_or_else(|| wrong("the bucket URL names no bucket"));
    let endpoint_of = |endpoint: Option<String>| {
        endpoint.ok_or_else(|| wrong("this storage kind needs a bucket URL of the form https://<bucket>.<endpoint>"))
    };
    if !place.storage_class.is_empty() && !has_classes(kind) {
        tracing::warn!(kind, class = place.storage_class, "the storage class is not set on stores of this kind yet");
    }
    let operator = match kind {
        kind if S3_KINDS.contains(&kind) => return s3_operator(kind, place, url).map(|(op, s3)| (op, Some(s3))),
        "gs" => {
            // `<bucket>[.region]`: the region only matters when the bucket is made.
            let bucket = if url.host.is_empty() { &url.path } else { &url.host };
            let name = bucket.split('.').next().unwrap_or_default();
            let mut builder = services::Gcs::default().bucket(name);
            if let Some(path) = variable(&["GOOGLE_APPLICATION_CREDENTIALS"]) {
                builder = builder.credential_path(&path);
            }
            if !place.storage_class.is_empty() {
                builder = builder.default_storage_class(&place.storage_class);
            }
            Operator::new(builder)?
        }
        "wasb" => {
            let builder = match variable(&["AZURE_STORAGE_CONNECTION_STRING"]) {
                Some(text) if ak.is_empty() => services::Azblob::from_connection_string(&text)?,
                _ => services::Azblob::default().account_name(ak).account_key(sk),
            };
            let (container, endpoint) = split()?;
            let builder = builder.container(&container);
            Operator::new(match endpoint {
                // `https://<container>.<endpoint>`, where the account's own name leads the endpoint of the service.
                Some(e) if !ak.is_empty() && !e.contains(ak) => {
                    builder.endpoint(&e.replacen("://", &format!("://{ak}."), 1))
                }
                Some(e) => builder.endpoint(&e),
                None if !ak.is_empty() => builder.endpoint(&format!("https://{ak}.blob.core.windows.net")),
                None => builder,
            })?
        }
        "oss" => {
            let (bucket, endpoint) = split()?;
            let region = variable(&["ALICLOUD_REGION_ID"]);
            let endpoint = endpoint.or_else(|| region.map(|r| format!("https://oss-{r}.aliyuncs.com")));
            let token = key(token, &["SECURITY_TOKEN"]);
            let mut builder = services::Oss::default()
                .bucket(&bucket)
                .endpoint(&endpoint_of(endpoint)?)
                .access_key_id(&key(ak, &["ALICLOUD_ACCESS_KEY_ID"]))
                .access_key_secret(&key(sk, &["ALICLOUD_ACCESS_KEY_SECRET"]));
            if !token.is_empty() {
                builder = builder.security_token(&token);
            }
            Operator::new(builder)?
        }
        "cos" => {
            let (bucket, endpoint) = split()?;
            let mut builder = services::Cos::default()
                .bucket(&bucket)
                .endpoint(&endpoint_of(endpoint)?)
                .secret_id(&key(ak, &["COS_SECRETID"]))
                .secret_key(&key(sk, &["COS_SECRETKEY"]));
            if !token.is_empty() {
                builder = builder.security_token(token);
            }
            Operator::new(builder)?
        }
        "obs" => {
            let (bucket, endpoint) = split()?;
            let region = variable(&["HWCLOUD_DEFAULT_REGION"]);
            let endpoint = endpoint.or_else(|| region.map(|r| format!("https://obs.{r}.myhuaweicloud.com")));
            Operator::new(
                services::Obs::default()
                    .bucket(&bucket)
                    .endpoint(&endpoint_of(endpoint)?)
                    .access_key_id(&key(ak, &["HWCLOUD_ACCESS_KEY"]))
                    .secret_access_key(&key(sk, &["HWCLOUD_SECRET_KEY"])),
            )?
        }
        "b2" => {
            let (bucket, _) = split()?;
            let id = url.parameter("bucket-id").map(str::to_owned).or_else(|| variable(&["B2_BUCKET_ID"]));
            let id = id.ok_or_else(|| wrong("b2 needs the bucket's id: ?bucket-id=… or B2_BUCKET_ID"))?;
            Operator::new(
                services::B2::default().bucket(&bucket).bucket_id(&id).application_key_id(ak).application_key(sk),
            )?
        }
        "tos" => {
            let (bucket, endpoint) = split()?;
            let endpoint = endpoint_of(endpoint)?;
            // `https://tos-<region>.volces.com`
            let region = endpoint.split("://tos-").nth(1).and_then(|r| r.split('.').next()).map(str::to_owned);
            let mut builder =
                services::Tos::default().bucket(&bucket).endpoint(&endpoint).access_key_id(ak).secret_access_key(sk);
            if let Some(region) = region {
                builder = builder.region(&region);
            }
            if !token.is_empty() {
                builder = builder.security_token(token);
            }
            Operator::new(builder)?
        }
        "swift" => {
            let (container, endpoint) = split()?;
            Operator::new(
                services::Swift::default().container(&container).endpoint(&endpoint_of(endpoint)?).token(token),
            )?
        }
        "webdav" => {
            let endpoint = format!("{}://{}", url.scheme, url.host);
            Operator::new(
                services::Webdav::default()
                    .endpoint(&endpoint)
                    .username(ak)
                    .password(sk)
                    .root(&format!("/{}/", url.path).replace("//", "/")),
            )?
        }
        _ => return Err(wrong("this storage kind has no service")),
    };
    Ok((operator, None))
}

fn s3_operator(kind: &str, place: &Place, url: &BucketUrl) -> opendal::Result<(Operator, S3Bucket)> {
    let mut s3 = s3_bucket(url).ok_or_else(|| wrong("the bucket URL names no bucket"))?;
    let vendor = |of: &str| -> Vec<String> {
        match kind {
            "minio" => vec![format!("MINIO_{of}")],
            "scw" => vec![format!("SCW_{of}")],
            "eos" => vec![format!("EOS_{of}")],
            _ => vec![],
        }
    };
    let from = |given: &str, of: &str| {
        let names = vendor(of);
        key(given, &names.iter().map(String::as_str).collect::<Vec<_>>())
    };
    let (ak, sk) = (from(&place.access_key, "ACCESS_KEY"), from(&place.secret_key, "SECRET_KEY"));
    let token = if kind == "eos" { key(&place.session_token, &["EOS_TOKEN"]) } else { place.session_token.clone() };
    let region = match s3.region.take() {
        Some(region) => region,
        None => variable(&["MINIO_REGION"])
            .filter(|_| kind == "minio")
            .or_else(|| variable(&["AWS_REGION", "AWS_DEFAULT_REGION"]))
            .unwrap_or_else(|| "us-east-1".to_owned()),
    };
    if variable(&["JFS_S3_VHOST_STYLE"]).is_some() {
        s3.virtual_host = true;
    }
    // Vendors whose S3 endpoints answer only to bucket host names.
    if matches!(kind, "ks3" | "oos" | "eos") {
        s3.virtual_host = true;
    }
    let mut builder = services::S3::default().bucket(&s3.bucket).region(&region);
    if let Some(endpoint) = &s3.endpoint {
        builder = builder.endpoint(endpoint);
    }
    if s3.virtual_host {
        builder = builder.enable_virtual_host_style();
    }
    if !place.storage_class.is_empty() {
        builder = builder.default_storage_class(&place.storage_class);
    }
    if ak == "anonymous" {
        builder = builder.skip_signature().disable_config_load().disable_ec2_metadata();
    } else if !ak.is_empty() {
        builder = builder.access_key_id(&ak).secret_access_key(&sk).disable_config_load().disable_ec2_metadata();
        if !token.is_empty() {
            builder = builder.session_token(&token);
        }
    }
    s3.region = Some(region);
    Ok((Operator::new(builder)?, s3))
}

/// The HTTP client for a bucket: the process's own, unless the URL has TLS parameters.
fn client(url: &BucketUrl) -> Result<reqwest::Client, Fault> {
    static SHARED: OnceLock<reqwest::Client> = OnceLock::new();
    let insecure = url.is_set("tls-insecure-skip-verify");
    let files = ["ca-certs", "ssl-cert", "ssl-key"].map(|name| url.parameter(name));
    let plain = !insecure && files.iter().all(Option::is_none);
    if plain && let Some(shared) = SHARED.get() {
        return Ok(shared.clone());
    }
    // Whoever installs a provider first wins; another part of the process may have, with the same one.
    let _installed = rustls::crypto::ring::default_provider().install_default();
    let broken = |e: String| Fault::config("set up HTTP client").source(e);
    let mut builder = reqwest::Client::builder()
        .user_agent(concat!("SluiceFS/", env!("CARGO_PKG_VERSION")))
        .connect_timeout(Duration::from_secs(5))
        // Idle connections cost the server more than us; a burst of reads opens them again.
        .pool_idle_timeout(Duration::from_secs(30))
        .pool_max_idle_per_host(64)
        .tcp_nodelay(true)
        // Large bodies over one multiplexed connection would share its window.
        .http1_only();
    if insecure {
        builder = builder.tls_danger_accept_invalid_certs(true);
    }
    if let [Some(ca), Some(cert), Some(key)] = files {
        let read = |path: &str| std::fs::read(path).map_err(|e| broken(format!("{path}: {e}")));
        let pem = |e: reqwest::Error| broken(e.to_string());
        let mut identity = read(cert)?;
        identity.push(b'\n');
        identity.extend(read(key)?);
        builder = builder.identity(reqwest::Identity::from_pem(&identity).map_err(pem)?);
        for root in reqwest::Certificate::from_pem_bundle(&read(ca)?).map_err(pem)? {
            builder = builder.add_root_certificate(root);
        }
    } else if files.iter().any(Option::is_some) {
        return Err(broken("ca-certs, ssl-cert and ssl-key are needed together".to_owned()));
    }
    let client = builder.build().map_err(|e| broken(e.to_string()))?;
    Ok(if plain { SHARED.get_or_init(|| client).clone() } else { client })
}

/// What a store's error says, in one line: its words and those of its causes, without the request and response that
/// OpenDAL adds to them.
fn words(error: &opendal::Error, place: &Place) -> String {
    let mut text = error.message().to_owned();
    let mut cause = error.source();
    while let Some(error) = cause {
        text = format!("{text}: {error}");
        cause = error.source();
    }
    // A proxy in between may have answered with a page.
    let mut line = text.split_whitespace().collect::<Vec<_>>().join(" ");
    if let Some((end, _)) = line.char_indices().nth(WORDS_MAX) {
        line.truncate(end);
        line.push('…');
    }
    scrub(&line, place)
}

/// Longest text of a store's error, in characters.
const WORDS_MAX: usize = 500;

/// Error texts hold the request's URL, and a URL may hold a signature.
fn scrub(text: &str, place: &Place) -> String {
    let secrets = [&place.secret_key, &place.session_token];
    secrets.iter().filter(|s| s.len() >= 4).fold(text.to_owned(), |text, secret| text.replace(secret.as_str(), "***"))
}

/// A bucket behind OpenDAL.
struct Remote {
    name: String,
    kind: String,
    operator: Operator,
    /// Operators of other classes than the place's; a volume has four at most.
    classes: Mutex<HashMap<String, Operator>>,
    /// Listings come in the order of keys.
    sorted: bool,
    checksum: bool,
    s3: Option<S3Bucket>,
    client: reqwest::Client,
    place: Place,
}

impl Remote {
    /// The operator that puts objects with the class.
    fn of_class(&self, class: Option<&str>) -> Result<Operator, Fault> {
        let Some(class) = class.filter(|class| has_classes(&self.kind) && *class != self.place.storage_class) else {
            return Ok(self.operator.clone());
        };
        let mut classes = self.classes.lock();
        if let Some(operator) = classes.get(class) {
            return Ok(operator.clone());
        }
        let place = Place { storage_class: class.to_owned(), ..self.place.clone() };
        let (made, _) = operator(&self.kind, &place, &BucketUrl::parse(&place.bucket))
            .map_err(|error| self.fault("open object store for a class", class, error))?;
        let made = with_client(made, &self.client);
        classes.insert(class.to_owned(), made.clone());
        Ok(made)
    }

    fn fault(&self, operation: &'static str, key: &str, error: opendal::Error) -> Fault {
        let fault = match error.kind() {
            ErrorKind::NotFound => Fault::not_found(operation),
            ErrorKind::PermissionDenied => Fault::denied(operation),
            ErrorKind::RateLimited => Fault::throttled(operation),
            ErrorKind::Unsupported => Fault::unsupported(operation),
            ErrorKind::ConfigInvalid => Fault::config(operation),
            // Stores answer oddly when they are overloaded, so the unexpected is worth another try.
            _ => Fault::unavailable(operation),
        };
        fault.with("store", &self.name).with("key", key).source(words(&error, &self.place))
    }
}

const CHECKSUM: &str = "crc32c";

fn crc(body: &Payload) -> u32 {
    body.iter().fold(0, |crc, piece| crc32c::crc32c_append(crc, piece))
}

fn payload(buffer: Buffer) -> Payload {
    buffer.collect()
}

#[async_trait]
impl ObjectStore for Remote {
    fn name(&self) -> &str {
        &self.name
    }

    fn capabilities(&self) -> Capabilities {
        Capabilities { ranges: true, local_device: None }
    }

    async fn get(&self, key: &str, range: Option<Range<u64>>) -> Result<Payload, Fault> {
        const OPERATION: &str = "get object";
        let failed = |e| self.fault(OPERATION, key, e);
        if let Some(range) = range {
            let options = options::ReadOptions { range: range.into(), ..Default::default() };
            return match self.operator.read_options(key, options).await {
                Ok(buffer) => Ok(payload(buffer)),
                Err(e) if e.kind() == ErrorKind::RangeNotSatisfied => Ok(Payload::new()),
                Err(e) => Err(failed(e)),
            };
        }
        let reader = self.operator.reader(key).await.map_err(failed)?;
        let body = payload(reader.read(..).await.map_err(failed)?);
        let stored = reader.metadata().filter(|_| self.checksum).and_then(|m| m.user_metadata());
        if let Some(wanted) = stored.and_then(|m| m.get(CHECKSUM).and_then(|c| c.parse::<u32>().ok())) {
            let got = crc(&body);
            if got != wanted {
                return Err(Fault::integrity(OPERATION)
                    .with("store", &self.name)
                    .with("key", key)
                    .with("crc32c", got)
                    .with("stored", wanted));
            }
        }
        Ok(body)
    }

    async fn put_as(&self, key: &str, body: Payload, class: Option<&str>) -> Result<(), Fault> {
        let mut options = options::WriteOptions::default();
        if self.checksum {
            options.user_metadata = Some(HashMap::from([(CHECKSUM.to_owned(), crc(&body).to_string())]));
        }
        let buffer: Buffer = body.iter().cloned().collect();
        let put = self.of_class(class)?.write_options(key, buffer, options).await;
        put.map(|_| ()).map_err(|e| self.fault("put object", key, e))
    }

    async fn delete(&self, key: &str) -> Result<(), Fault> {
        // A key that ends in `/` is a directory only for local stores.
        match self.operator.delete(key).await {
            Err(e) if e.kind() != ErrorKind::NotFound => Err(self.fault("delete object", key, e)),
            _ => Ok(()),
        }
    }

    async fn head(&self, key: &str) -> Result<Option<ObjectMeta>, Fault> {
        match self.operator.stat(key).await {
            Ok(meta) if meta.is_dir() => Ok(None),
            Ok(meta) => Ok(Some(ObjectMeta { size: meta.content_length(), mtime: mtime(&meta) })),
            Err(e) if e.kind() == ErrorKind::NotFound => Ok(None),
            Err(e) => Err(self.fault("head object", key, e)),
        }
    }

    async fn list(&self, prefix: &str, after: &str, limit: usize) -> Result<Vec<Listed>, Fault> {
        const OPERATION: &str = "list objects";
        let failed = |e| self.fault(OPERATION, prefix, e);
        // OpenDAL lists directories; what the prefix has beyond one is filtered here.
        let dir = prefix.rfind('/').map_or("", |at| &prefix[..=at]);
        let skips = self.operator.info().capability().list_with_start_after && !after.is_empty();
        let options = options::ListOptions {
            recursive: true,
            start_after: skips.then(|| after.to_owned()),
            ..Default::default()
        };
        let mut lister = match self.operator.lister_options(dir, options).await {
            Ok(lister) => lister,
            Err(e) if e.kind() == ErrorKind::NotFound => return Ok(Vec::new()),
            Err(e) => return Err(failed(e)),
        };
        let mut out = Vec::new();
        while let Some(entry) = lister.try_next().await.map_err(failed)? {
            let (key, meta) = entry.into_parts();
            if meta.is_file() && key.starts_with(prefix) && key.as_str() > after {
                out.push(Listed { key, size: meta.content_length(), mtime: mtime(&meta) });
                if self.sorted && out.len() == limit {
                    break;
                }
            }
        }
        if !self.sorted {
            out.sort_unstable_by(|a, b| a.key.cmp(&b.key));
            out.truncate(limit);
        }
        Ok(out)
    }

    async fn create_bucket(&self) -> Result<(), Fault> {
        let Some(s3) = &self.s3 else {
            return Err(Fault::unsupported("create bucket")
                .with("store", &self.name)
                .source("a bucket of this storage kind must be made beforehand"));
        };
        sigv4::create_bucket(
            &self.client,
            s3,
            &self.place.access_key,
            &self.place.secret_key,
            &self.place.session_token,
        )
        .await
        .map_err(|f| f.with("store", &self.name))
    }
}

fn mtime(meta: &opendal::Metadata) -> SystemTime {
    meta.last_modified().map_or(SystemTime::UNIX_EPOCH, Into::into)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::base::FaultKind;
    use crate::buf::Budget;

    fn open_kind(storage: &str, bucket: &str) -> Result<Vec<SharedStore>, Fault> {
        let place = Place {
            storage: storage.into(),
            bucket: bucket.into(),
            access_key: "AKTEST".into(),
            secret_key: "c2VjcmV0LXNlY3JldA==".into(),
            ..Place::default()
        };
        open(&place, &Pool::new(Budget::new(1 << 20)))
    }

    #[tokio::test]
    async fn every_known_kind_opens() {
        for kind in KINDS {
            let bucket = match kind {
                "file" => "/tmp/x/",
                "gs" => "bucket",
                "b2" => "bucket?bucket-id=1",
                "webdav" => "https://host/dir",
                "tos" => "https://bucket.tos-cn-beijing.volces.com",
                _ => "https://bucket.endpoint.example.com",
            };
            let stores = open_kind(kind, bucket).unwrap_or_else(|e| panic!("{kind}: {e}"));
            assert_eq!(stores.len(), 1, "{kind}");
        }
    }

    #[test]
    fn an_unknown_kind_is_named_together_with_the_known() {
        let fault = open_kind("floppy", "a").err().unwrap();
        assert_eq!(fault.kind(), FaultKind::Config);
        let text = fault.to_string();
        assert!(text.contains("floppy") && text.contains("s3") && text.contains("webdav"), "{text}");
        assert!(!text.contains("c2VjcmV0"), "{text}");
    }

    #[test]
    fn an_error_is_one_line_without_the_request() {
        let place = Place { secret_key: "hidden-secret".into(), ..Place::default() };
        let error = opendal::Error::new(ErrorKind::Unexpected, "S3Error {\n code: \"SlowDown\" }")
            .with_context("response", "Parts { status: 503, headers: {} }")
            .set_source(std::io::Error::other("no route for hidden-secret"));
        assert_eq!(words(&error, &place), "S3Error { code: \"SlowDown\" }: no route for ***");
        let page = opendal::Error::new(ErrorKind::Unexpected, "é".repeat(WORDS_MAX + 1));
        assert_eq!(words(&page, &place).chars().count(), WORDS_MAX + 1);
    }

    #[tokio::test]
    async fn a_store_that_refuses_says_so() {
        let bucket = "http://127.0.0.1:1/bucket";
        let fault = open_kind("s3", bucket).unwrap()[0].get("k", None).await.unwrap_err();
        assert_eq!(fault.kind(), FaultKind::Unavailable);
        let text = fault.to_string();
        assert!(text.contains("refused") && text.len() < 400, "{text}");
    }

    /// What goes over the wire: no server here keeps classes that could be asked for afterwards.
    #[tokio::test]
    async fn objects_are_put_with_the_storage_class() {
        use tokio::io::{AsyncReadExt, AsyncWriteExt};
        let listener = tokio::net::TcpListener::bind("127.0.0.1:0").await.unwrap();
        let place = Place {
            storage: "s3".into(),
            bucket: format!("http://{}/bucket", listener.local_addr().unwrap()),
            access_key: "AKTEST".into(),
            secret_key: "secret".into(),
            storage_class: "STANDARD_IA".into(),
            ..Place::default()
        };
        let store = open(&place, &Pool::new(Budget::new(1 << 20))).unwrap().remove(0);
        let answer = async || {
            let (mut stream, _) = listener.accept().await.unwrap();
            let mut head = Vec::new();
            while !head.windows(8).any(|end| end == b"\r\n\r\nbody") {
                assert!(stream.read_buf(&mut head).await.unwrap() > 0, "the request ends early");
            }
            let done = b"HTTP/1.1 200 OK\r\nETag: \"e\"\r\nConnection: close\r\nContent-Length: 0\r\n\r\n";
            stream.write_all(done).await.unwrap();
            String::from_utf8(head).unwrap().to_ascii_lowercase()
        };
        // That of the place, those of tiers, each as often as it likes, and none.
        let classes = [None, Some("GLACIER_IR"), Some("STANDARD_IA"), Some("GLACIER_IR"), Some("")];
        for class in classes {
            let (put, request) = tokio::join!(store.put_as("k", b"body".to_vec().into(), class), answer());
            put.unwrap();
            let class = class.unwrap_or("STANDARD_IA").to_ascii_lowercase();
            let wanted = format!("x-amz-storage-class: {class}\r\n");
            assert_eq!(request.contains(&wanted), !class.is_empty(), "{class}: {request}");
            assert_eq!(request.contains("x-amz-storage-class"), !class.is_empty(), "{class}: {request}");
        }
    }
}
