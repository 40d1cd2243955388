//! `Place`: where the objects of a volume are, as the user typed it, and how the bucket URL is taken apart
//! (`spec/surface.md` section 3). Text in, text out; nothing is contacted.

use crate::base::Fault;
use std::fmt;

/// Storage kind, bucket and credentials. Printing it shows no secret.
#[derive(Clone, Default)]
pub struct Place {
    /// `file`, `s3`, … in any case.
    pub storage: String,
    /// A directory, a URL or a bucket name, by kind. With shards it holds `%d`.
    pub bucket: String,
    pub access_key: String,
    pub secret_key: String,
    pub session_token: String,
    /// Buckets of a sharded volume; 0 or 1 for a plain one.
    pub shards: u32,
    /// For objects that are written, where the store has classes; empty for the bucket's own.
    pub storage_class: String,
}

impl fmt::Debug for Place {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let masked = |s: &str| if s.is_empty() { "" } else { "***" };
        f.debug_struct("Place")
            .field("storage", &self.storage)
            .field("bucket", &self.shown_bucket())
            .field("access_key", &self.access_key)
            .field("secret_key", &masked(&self.secret_key))
            .field("session_token", &masked(&self.session_token))
            .field("shards", &self.shards)
            .field("storage_class", &self.storage_class)
            .finish()
    }
}

impl Place {
    /// The bucket for messages. No store takes a login in its URL, but people type one.
    pub fn shown_bucket(&self) -> String {
        let Some((scheme, rest)) = self.bucket.split_once("://") else { return self.bucket.clone() };
        match rest.split('/').next().and_then(|host| host.rfind('@')) {
            Some(at) => format!("{scheme}://****{}", &rest[at..]),
            None => self.bucket.clone(),
        }
    }

    /// One place for each bucket: `%d` becomes 0, 1, … (`spec/data.md` 3.4).
    pub fn expand(&self) -> Result<Vec<Place>, Fault> {
        if self.shards <= 1 {
            return Ok(vec![self.clone()]);
        }
        if self.shards > 256 || !self.bucket.contains("%d") {
            return Err(Fault::config("open sharded store")
                .with("bucket", self.shown_bucket())
                .with("shards", self.shards)
                .source("shards need %d in the bucket and are at most 256"));
        }
        let part = |i: u32| Place { bucket: self.bucket.replacen("%d", &i.to_string(), 1), shards: 0, ..self.clone() };
        Ok((0..self.shards).map(part).collect())
    }
}

/// A bucket URL in parts.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct BucketUrl {
    /// `http` or `https`; `https` when none was given.
    pub scheme: String,
    /// Host and port; empty when only a bucket name was given.
    pub host: String,
    /// What follows the host, without slashes at its ends.
    pub path: String,
    /// Query parameters in order.
    pub query: Vec<(String, String)>,
}

impl BucketUrl {
    pub fn parse(text: &str) -> BucketUrl {
        let (text, query) = text.split_once('?').unwrap_or((text, ""));
        let query = query
            .split('&')
            .filter(|pair| !pair.is_empty())
            .map(|pair| pair.split_once('=').unwrap_or((pair, "")))
            .map(|(k, v)| (k.to_owned(), v.to_owned()))
            .collect();
        match text.split_once("://") {
            Some((scheme, rest)) => {
                let (host, path) = rest.split_once('/').unwrap_or((rest, ""));
                BucketUrl {
                    scheme: scheme.to_ascii_lowercase(),
                    host: host.to_owned(),
                    path: path.trim_matches('/').to_owned(),
                    query,
                }
            }
            // `host.name/bucket` and `host:9000/bucket` have a host, a plain word is a bucket.
            None => match text.split_once('/') {
                Some((host, path)) if host.contains(['.', ':']) => BucketUrl {
                    scheme: "https".into(),
                    host: host.to_owned(),
                    path: path.trim_matches('/').to_owned(),
                    query,
                },
                _ => BucketUrl {
                    scheme: "https".into(),
                    host: String::new(),
                    path: text.trim_matches('/').to_owned(),
                    query,
                },
            },
        }
    }

    /// The value of a query parameter.
    pub fn parameter(&self, name: &str) -> Option<&str> {
        self.query.iter().find(|(k, _)| k == name).map(|(_, v)| v.as_str())
    }

    pub fn is_set(&self, name: &str) -> bool {
        self.parameter(name) == Some("true")
    }

    /// Bucket and endpoint: the first part of the path under the host, else the first label of the host, else the
    /// plain name without an endpoint.
    pub fn bucket_and_endpoint(&self) -> Option<(String, Option<String>)> {
        let endpoint = |host: &str| Some(format!("{}://{host}", self.scheme));
        if self.host.is_empty() {
            return (!self.path.is_empty()).then(|| (self.path.clone(), None));
        }
        if let Some(bucket) = self.path.split('/').next().filter(|b| !b.is_empty()) {
            return Some((bucket.to_owned(), endpoint(&self.host)));
        }
        let name = self.host.split(':').next().unwrap_or_default();
        // An address has no label to spare.
        if name.parse::<std::net::IpAddr>().is_ok() || self.host.starts_with('[') {
            return None;
        }
        let (bucket, rest) = self.host.split_once('.')?;
        (!bucket.is_empty() && !rest.is_empty()).then(|| (bucket.to_owned(), endpoint(rest)))
    }
}

/// What an S3 bucket URL means.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct S3Bucket {
    pub bucket: String,
    /// None for AWS itself.
    pub endpoint: Option<String>,
    /// None: ask the environment.
    pub region: Option<String>,
    /// Bucket in the host name rather than in the path.
    pub virtual_host: bool,
}

/// Takes an S3 bucket URL apart. Endpoints that are not of AWS get path style, unless the vendor only has the other.
pub fn s3_bucket(url: &BucketUrl) -> Option<S3Bucket> {
    let host = url.host.split(':').next().unwrap_or_default();
    let aws = host.strip_suffix(".amazonaws.com").or_else(|| host.strip_suffix(".amazonaws.com.cn"));
    let Some(labels) = aws else {
        let (bucket, endpoint) = url.bucket_and_endpoint()?;
        let region = endpoint.as_deref().and_then(vendor_region);
        return Some(S3Bucket { bucket, virtual_host: endpoint.is_none(), endpoint, region });
    };
    // `s3.<region>`, `s3-<region>`, `s3`, `s3.dualstack.<region>`, each with the bucket before it or in the path.
    // Bucket names may hold dots and even "s3", so the last place counts.
    let (bucket, service) = match labels.rfind(".s3.").or_else(|| labels.rfind(".s3-")) {
        Some(at) => (labels[..at].to_owned(), &labels[at + 1..]),
        None => match labels.strip_suffix(".s3") {
            Some(bucket) => (bucket.to_owned(), "s3"),
            None => (url.path.split('/').next()?.to_owned(), labels),
        },
    };
    let region = service.strip_prefix("s3").map(|r| r.trim_start_matches(['.', '-']));
    let region = region.map(|r| r.strip_prefix("dualstack.").unwrap_or(r)).filter(|r| !r.is_empty());
    let china = host.ends_with(".cn");
    (!bucket.is_empty()).then(|| S3Bucket {
        bucket,
        // The region finds the endpoint, except in China, whose names end differently.
        endpoint: china.then(|| format!("{}://{service}.amazonaws.com.cn", url.scheme)),
        region: Some(region.unwrap_or("us-east-1").to_owned()),
        virtual_host: true,
    })
}

/// Regions that vendors write into their host names: `s3.<region>.wasabisys.com`, `<region>.digitaloceanspaces.com`,
/// `s3.<region>.scw.cloud`, `ks3-<region>.ksyuncs.com`, `oos-<region>.ctyunapi.cn`.
fn vendor_region(endpoint: &str) -> Option<String> {
    let host = endpoint.split("://").nth(1)?.split(':').next()?;
    let region = match host {
        _ if host.ends_with(".wasabisys.com") || host.ends_with(".scw.cloud") => {
            let (region, rest) = host.strip_prefix("s3.")?.split_once('.')?;
            // `s3.wasabisys.com` names none.
            if rest.contains('.') { region } else { return None }
        }
        _ if host.ends_with(".digitaloceanspaces.com") => host.split('.').next()?,
        _ if host.ends_with(".ksyuncs.com") => host.split('.').next()?.strip_prefix("ks3-")?,
        _ if host.ends_with(".ctyunapi.cn") => host.split('.').next()?.strip_prefix("oos-")?,
        _ => return None,
    };
    (!region.is_empty()).then(|| region.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn s3(text: &str) -> (String, String, String, bool) {
        let s = s3_bucket(&BucketUrl::parse(text)).unwrap_or_else(|| panic!("{text}"));
        (s.bucket, s.endpoint.unwrap_or_default(), s.region.unwrap_or_default(), s.virtual_host)
    }

    #[test]
    fn s3_urls_of_all_forms() {
        let case = |text, bucket: &str, endpoint: &str, region: &str, virtual_host| {
            assert_eq!(s3(text), (bucket.into(), endpoint.into(), region.into(), virtual_host), "{text}");
        };
        case("https://mybucket.s3.us-west-2.amazonaws.com", "mybucket", "", "us-west-2", true);
        case("https://my.s3.bucket.s3.eu-west-1.amazonaws.com/", "my.s3.bucket", "", "eu-west-1", true);
        case("https://s3.eu-west-1.amazonaws.com/b", "b", "", "eu-west-1", true);
        case("https://b.s3.amazonaws.com", "b", "", "us-east-1", true);
        case("https://b.s3-ap-south-1.amazonaws.com", "b", "", "ap-south-1", true);
        case("https://b.s3.dualstack.us-east-2.amazonaws.com", "b", "", "us-east-2", true);
        case(
            "https://b.s3.cn-north-1.amazonaws.com.cn",
            "b",
            "https://s3.cn-north-1.amazonaws.com.cn",
            "cn-north-1",
            true,
        );
        case("http://127.0.0.1:9000/b", "b", "http://127.0.0.1:9000", "", false);
        case("localhost:9000/b", "b", "https://localhost:9000", "", false);
        case("https://b.s3.wasabisys.com", "b", "https://s3.wasabisys.com", "", false);
        case("https://b.s3.eu-1.wasabisys.com", "b", "https://s3.eu-1.wasabisys.com", "eu-1", false);
        case("https://b.nyc3.digitaloceanspaces.com", "b", "https://nyc3.digitaloceanspaces.com", "nyc3", false);
        case("mybucket", "mybucket", "", "", true);
        assert_eq!(s3_bucket(&BucketUrl::parse("http://127.0.0.1:9000")), None);
    }

    #[test]
    fn parameters_are_not_part_of_the_bucket() {
        let url = BucketUrl::parse("http://h:1/b?tls-insecure-skip-verify=true&disable-checksum=true");
        assert!(url.is_set("tls-insecure-skip-verify") && url.is_set("disable-checksum"));
        assert_eq!(url.bucket_and_endpoint(), Some(("b".into(), Some("http://h:1".into()))));
    }

    #[test]
    fn shards_and_secrets() {
        let place = Place {
            storage: "s3".into(),
            bucket: "https://b-%d.example.com".into(),
            access_key: "AK".into(),
            secret_key: "hidden".into(),
            session_token: "hidden".into(),
            shards: 3,
            storage_class: String::new(),
        };
        let buckets: Vec<_> = place.expand().unwrap().into_iter().map(|p| p.bucket).collect();
        assert_eq!(buckets, ["https://b-0.example.com", "https://b-1.example.com", "https://b-2.example.com"]);
        assert!(Place { bucket: "b".into(), ..place.clone() }.expand().is_err());
        assert!(!format!("{place:?}").contains("hidden"));
    }
}
