//! The one S3 request that OpenDAL does not offer: making a bucket. Signed with AWS Signature Version 4 in the header.

use super::place::S3Bucket;
use crate::base::Fault;
use ring::{digest, hmac};
use std::time::{Duration, SystemTime};

/// Longest wait for the answer.
const DEADLINE: Duration = Duration::from_secs(60);

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

fn sha256(text: &[u8]) -> String {
    hex(digest::digest(&digest::SHA256, text).as_ref())
}

fn mac(key: &[u8], text: &str) -> Vec<u8> {
    hmac::sign(&hmac::Key::new(hmac::HMAC_SHA256, key), text.as_bytes()).as_ref().to_vec()
}

/// What a signature covers.
struct Request<'a> {
    host: &'a str,
    path: &'a str,
    body: &'a str,
    region: &'a str,
    token: &'a str,
    /// `20130524T000000Z`
    time: &'a str,
}

/// The `Authorization` header of a PUT.
fn authorization(request: &Request, access_key: &str, secret_key: &str) -> String {
    let body = sha256(request.body.as_bytes());
    let mut headers = vec![("host", request.host), ("x-amz-content-sha256", &body), ("x-amz-date", request.time)];
    if !request.token.is_empty() {
        headers.push(("x-amz-security-token", request.token));
    }
    let names = headers.iter().map(|(name, _)| *name).collect::<Vec<_>>().join(";");
    let lines: String = headers.iter().map(|(name, value)| format!("{name}:{value}\n")).collect();
    let canonical = format!("PUT\n{}\n\n{lines}\n{names}\n{body}", request.path);
    let day = &request.time[..8];
    let scope = format!("{day}/{}/s3/aws4_request", request.region);
    let to_sign = format!("AWS4-HMAC-SHA256\n{}\n{scope}\n{}", request.time, sha256(canonical.as_bytes()));
    let key = [request.region, "s3", "aws4_request"]
        .iter()
        .fold(mac(format!("AWS4{secret_key}").as_bytes(), day), |key, part| mac(&key, part));
    let signature = hex(&mac(&key, &to_sign));
    format!("AWS4-HMAC-SHA256 Credential={access_key}/{scope},SignedHeaders={names},Signature={signature}")
}

/// `20130524T000000Z` of a time.
fn stamp(now: SystemTime) -> String {
    let now = jiff::Timestamp::try_from(now).unwrap_or(jiff::Timestamp::UNIX_EPOCH);
    now.strftime("%Y%m%dT%H%M%SZ").to_string()
}

/// Makes the bucket; that it is ours already is success.
pub(super) async fn create_bucket(
    client: &reqwest::Client,
    s3: &S3Bucket,
    access_key: &str,
    secret_key: &str,
    session_token: &str,
) -> Result<(), Fault> {
    const OPERATION: &str = "create bucket";
    if access_key.is_empty() || access_key == "anonymous" {
        return Err(Fault::denied(OPERATION).source("a bucket can only be made with an access key given by name"));
    }
    let region = s3.region.as_deref().unwrap_or("us-east-1");
    let aws = format!("https://s3.{region}.amazonaws.com");
    let endpoint = s3.endpoint.as_deref().unwrap_or(&aws);
    let (scheme, host) = endpoint.split_once("://").unwrap_or(("https", endpoint));
    let (host, path) = if s3.virtual_host {
        (format!("{}.{host}", s3.bucket), "/".to_owned())
    } else {
        (host.to_owned(), format!("/{}", s3.bucket))
    };
    // Everywhere but at home a bucket says where it wants to be.
    let body = if region == "us-east-1" {
        String::new()
    } else {
        format!(
            "<CreateBucketConfiguration xmlns=\"http://s3.amazonaws.com/doc/2006-03-01/\"><LocationConstraint>{region}\
             </LocationConstraint></CreateBucketConfiguration>"
        )
    };
    let time = stamp(SystemTime::now());
    let request = Request { host: &host, path: &path, body: &body, region, token: session_token, time: &time };
    let mut call = client
        .put(format!("{scheme}://{host}{path}"))
        .timeout(DEADLINE)
        .header("x-amz-date", &time)
        .header("x-amz-content-sha256", sha256(body.as_bytes()))
        .header("authorization", authorization(&request, access_key, secret_key));
    if !session_token.is_empty() {
        call = call.header("x-amz-security-token", session_token);
    }
    let answer = call.body(body).send().await.map_err(|e| Fault::unavailable(OPERATION).source(e))?;
    let status = answer.status();
    let text = answer.text().await.unwrap_or_default();
    match status.as_u16() {
        200..=299 => Ok(()),
        409 if text.contains("BucketAlreadyOwnedByYou") => Ok(()),
        401 | 403 | 409 => Err(Fault::denied(OPERATION).with("status", status).source(text)),
        _ => Err(Fault::unavailable(OPERATION).with("status", status).source(text)),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    /// The signature of a request of the same form, computed by hand with another implementation's primitives, would
    /// only repeat this code; the published derivation of the signing key is independent.
    #[test]
    fn the_signing_key_is_derived_as_published() {
        let parts = ["us-east-1", "iam", "aws4_request"];
        let first = mac(b"AWS4wJalrXUtnFEMI/K7MDENG+bPxRfiCYEXAMPLEKEY", "20120215");
        let key = parts.iter().fold(first, |key, part| mac(&key, part));
        assert_eq!(hex(&key), "f4780e2d9f65fa895f9c67b32ce1baf0b0d8a43505a000a1a9e090d414db404d");
    }

    #[test]
    fn the_header_names_what_was_signed_and_no_secret() {
        let request = Request {
            host: "h:1",
            path: "/b",
            body: "",
            region: "us-east-1",
            token: "TOKEN",
            time: "20130524T000000Z",
        };
        let header = authorization(&request, "AK", "SECRET");
        assert!(header.starts_with(
            "AWS4-HMAC-SHA256 Credential=AK/20130524/us-east-1/s3/aws4_request,\
             SignedHeaders=host;x-amz-content-sha256;x-amz-date;x-amz-security-token,Signature="
        ));
        assert!(!header.contains("SECRET"));
        assert_eq!(stamp(SystemTime::UNIX_EPOCH), "19700101T000000Z");
    }
}
