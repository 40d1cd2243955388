//! The connection to a cluster: one channel to each member, of which one is in use; requests, tokens, outages.
//!
//! A request goes to the member in use. When that cannot be reached, does not answer in time or says that it cannot
//! serve (it has lost its leader, it is cut off), the next one is in use, and reads are asked again until their
//! deadline. A change is sent once by [`Link::once`], and whoever sends it decides what its silence means.

use super::messages::{AuthenticateRequest, AuthenticateResponse};
use crate::base::{Fault, FaultKind};
use crate::meta::engine::handshake::{self, TlsNames};
use crate::meta::engine::{EngineError, EngineResult};
use parking_lot::Mutex;
use prost::Message;
use std::error::Error;
use std::path::PathBuf;
use std::time::{Duration, Instant};
use tonic::client::Grpc;
use tonic::codegen::http::uri::PathAndQuery;
use tonic::metadata::{Ascii, MetadataValue};
use tonic::transport::{Channel, Endpoint};
use tonic::{Code, Status};
use tonic_prost::ProstCodec;

/// One member gets this long to answer; an election takes one or two seconds.
const REQUEST_TIMEOUT: Duration = Duration::from_secs(5);
const CONNECT_TIMEOUT: Duration = Duration::from_secs(3);
/// A member that says nothing for so long is asked whether it is there, and given so long to answer.
const KEEP_ALIVE: (Duration, Duration) = (Duration::from_secs(5), Duration::from_secs(3));
/// Requests are begun again until this long after the call. The metadata layer retries above this, so it covers an
/// election or the restart of a member, not an outage.
pub(super) const RETRY_DEADLINE: Duration = Duration::from_secs(15);
/// As above before any member has answered: the URL may name the wrong servers, and who typed it waits.
const FIRST_DEADLINE: Duration = Duration::from_secs(5);
/// A cluster that has been away for this long is not waited for any more: requests fail with the next attempt.
const PATIENCE: Duration = Duration::from_secs(25);
const IMPATIENT_DEADLINE: Duration = Duration::from_secs(1);
/// An outage of at least this long is worth two lines in the log: when it is noticed and when it is over.
const OUTAGE: Duration = Duration::from_secs(1);
/// Failures this far apart are not one outage: nobody has asked in between.
const APART: Duration = Duration::from_secs(60);
/// Between attempts, once every member was tried: doubling, jittered.
const PAUSE_FIRST: Duration = Duration::from_millis(20);
const PAUSE_MAX: Duration = Duration::from_secs(1);
const TLS_NAMES: TlsNames = TlsNames { trust: "cacert, server-name", identity: "cert and key" };
/// Far more than a reply can be that was asked for with a limit.
const REPLY_BYTES_MAX: usize = 256 << 20;

/// Where a cluster is and who asks. The password must not be shown, so none of this is.
#[derive(Clone)]
pub struct EtcdOptions {
    pub members: Vec<(String, u16)>,
    /// What follows the addresses, without the slash before it.
    pub path: String,
    pub user: Option<(String, String)>,
    pub tls: Option<TlsOptions>,
}

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct TlsOptions {
    /// Whom to believe; `None`: whom the system believes.
    pub ca: Option<PathBuf>,
    /// A certificate of our own, and its key.
    pub identity: Option<(PathBuf, PathBuf)>,
    pub server_name: Option<String>,
    pub skip_verify: bool,
}

/// What requests carry; nothing where everybody may do everything.
type Token = Option<MetadataValue<Ascii>>;

struct Member {
    address: String,
    channel: Channel,
}

pub(super) struct Link {
    members: Vec<Member>,
    user: Option<(String, String)>,
    is_plain: bool,
    state: Mutex<State>,
    /// One task asks for a token at a time.
    authenticating: tokio::sync::Mutex<()>,
}

#[derive(Default)]
struct State {
    in_use: usize,
    /// Not asked for yet, or refused since.
    token: Option<Token>,
    /// Counts tokens, so that a late refusal of an old one does not discard its successor.
    tokens: u64,
    reached: bool,
    /// When the first and the last request of an outage failed.
    failing: Option<(Instant, Instant)>,
    reported: bool,
}

/// Why a request has no answer.
pub(super) enum Failed {
    /// It was not sent, or the server says that nothing was done.
    Refused(Fault),
    /// It may come to another answer from another member, or later; nothing was done.
    Unsent(Fault),
    /// As above, and it may have been carried out.
    Silent(Fault),
}

impl Link {
    /// Nothing is sent yet.
    pub fn new(options: &EtcdOptions) -> EngineResult<Link> {
        let member = |(host, port): &(String, u16)| {
            let host = if host.contains(':') { format!("[{host}]") } else { host.clone() };
            let address = format!("{host}:{port}");
            let channel = endpoint(&address, options.tls.as_ref())?.connect_lazy();
            Ok(Member { address, channel })
        };
        let members = options.members.iter().map(member).collect::<EngineResult<Vec<_>>>()?;
        if members.is_empty() {
            return Err(Fault::config("open etcd").source("the meta URL names no server").into());
        }
        let user = options.user.clone();
        let is_plain = options.tls.is_none();
        Ok(Link { members, user, is_plain, state: Mutex::default(), authenticating: tokio::sync::Mutex::default() })
    }

    /// How long requests that begin now are tried.
    pub fn deadline(&self) -> Instant {
        let state = self.state.lock();
        let given_up = state.failing.is_some_and(|(since, last)| since.elapsed() > PATIENCE && last.elapsed() < APART);
        Instant::now()
            + match state.reached {
                _ if given_up => IMPATIENT_DEADLINE,
                true => RETRY_DEADLINE,
                false => FIRST_DEADLINE,
            }
    }

    /// A read: asked again until the deadline.
    pub async fn ask<Q, A>(&self, path: &'static str, request: &Q) -> EngineResult<A>
    where
        Q: Message + Clone + Default + 'static,
        A: Message + Default + 'static,
    {
        let deadline = self.deadline();
        let mut tries = 0;
        loop {
            match self.once(path, request).await {
                Ok(answer) => return Ok(answer),
                Err(Failed::Refused(fault)) => return Err(fault.into()),
                Err(Failed::Unsent(fault) | Failed::Silent(fault)) => {
                    tries += 1;
                    if !self.pause(tries, deadline).await {
                        return Err(self.given_up(fault));
                    }
                }
            }
        }
    }

    /// The end of all attempts.
    pub fn given_up(&self, fault: Fault) -> EngineError {
        let state = self.state.lock();
        let final_already = state.failing.is_some_and(|(since, _)| since.elapsed() > PATIENCE);
        if final_already { fault.final_already() } else { fault }.into()
    }

    /// Waits before another attempt; false when there is none.
    pub async fn pause(&self, tries: u32, deadline: Instant) -> bool {
        let pause = match tries as usize >= self.members.len() {
            true => PAUSE_FIRST.saturating_mul(1 << tries.min(8)).min(PAUSE_MAX),
            false => Duration::ZERO,
        };
        let pause = pause.mul_f64(crate::util::rng::random_range(0.5..=1.0));
        if Instant::now() + pause > deadline {
            return false;
        }
        tokio::time::sleep(pause).await;
        true
    }

    /// One request to the member in use; twice when the first is refused for its token, before anything was done.
    pub async fn once<Q, A>(&self, path: &'static str, request: &Q) -> Result<A, Failed>
    where
        Q: Message + Clone + Default + 'static,
        A: Message + Default + 'static,
    {
        let mut refreshed = false;
        loop {
            let (number, token, tokens) = {
                let state = self.state.lock();
                (state.in_use, state.token.clone(), state.tokens)
            };
            let token = match (&self.user, token) {
                (Some(user), None) => self.authenticate(user, number, tokens).await?,
                (_, token) => token.flatten(),
            };
            let member = &self.members[number];
            match send(&member.channel, path, request.clone(), token).await {
                Ok(answer) => {
                    self.answered();
                    return Ok(answer);
                }
                Err(status) if self.user.is_some() && !refreshed && is_about_token(&status) => {
                    refreshed = true;
                    let mut state = self.state.lock();
                    if state.tokens == tokens {
                        state.token = None;
                    }
                }
                Err(status) => return Err(self.judge(&status, number)),
            }
        }
    }

    /// A token, of this request or of one that came before.
    async fn authenticate(&self, user: &(String, String), number: usize, tokens: u64) -> Result<Token, Failed> {
        let _authenticating = self.authenticating.lock().await;
        {
            let state = self.state.lock();
            if let (true, Some(token)) = (state.tokens != tokens, &state.token) {
                return Ok(token.clone());
            }
        }
        let (name, password) = user.clone();
        let request = AuthenticateRequest { name, password };
        let path = "/etcdserverpb.Auth/Authenticate";
        let answer: Result<AuthenticateResponse, Status> =
            send(&self.members[number].channel, path, request, None).await;
        let token = match answer {
            Ok(answer) => {
                let token = answer.token.parse();
                Some(token.map_err(|_| Failed::Refused(fault(FaultKind::Denied, "authenticate", "an odd token")))?)
            }
            // Everybody may do everything.
            Err(status) if status.message().contains("authentication is not enabled") => None,
            Err(status) => return Err(self.judge(&status, number)),
        };
        let mut state = self.state.lock();
        state.token = Some(token.clone());
        state.tokens += 1;
        Ok(token)
    }

    fn answered(&self) {
        let mut state = self.state.lock();
        state.reached = true;
        if let Some((since, _)) = state.failing.take()
            && std::mem::take(&mut state.reported)
        {
            tracing::info!("etcd can be reached again after {:.1} s", since.elapsed().as_secs_f64());
        }
    }

    /// What an error means. After one that another member might not give, that one is in use.
    fn judge(&self, status: &Status, number: usize) -> Failed {
        let kind = kind_of(status);
        let member = &self.members[number];
        let mut fault = fault(kind, "ask etcd", &text_of(status)).with("address", &member.address);
        // Once it has worked it may pass, as when certificates are renewed.
        let refusal = handshake::refusal(status, &TLS_NAMES).filter(|_| !self.state.lock().reached);
        if let Some((kind, said)) = &refusal {
            fault = self::fault(*kind, "connect", said).with("address", &member.address);
            if self.members.len() == 1 {
                return Failed::Refused(fault);
            }
        } else if was_hung_up(status) && !self.state.lock().reached {
            // Over TLS the reason that the server gives is lost on the way here.
            let wanted = match self.is_plain {
                true => "TLS (cacert of the meta URL)",
                false => "a certificate of this client that it believes (cert and key of the meta URL)",
            };
            let said = format!("{}; the server may want {wanted}", text_of(status));
            fault = self::fault(kind, "connect", &said).with("address", &member.address);
        }
        if !matches!(kind, FaultKind::Unavailable | FaultKind::Throttled) {
            return Failed::Refused(fault);
        }
        let now = Instant::now();
        let mut state = self.state.lock();
        let since = state.failing.filter(|(_, last)| now - *last < APART).map_or(now, |(since, _)| since);
        state.failing = Some((since, now));
        if now - since >= OUTAGE && !state.reported {
            state.reported = true;
            tracing::warn!("etcd cannot be reached, requests wait for it: {fault}");
        }
        if state.in_use == number {
            state.in_use = (number + 1) % self.members.len();
        }
        if kind == FaultKind::Throttled || was_refused(status) || refusal.is_some() {
            Failed::Unsent(fault)
        } else {
            Failed::Silent(fault)
        }
    }

    pub fn addresses(&self) -> String {
        self.members.iter().map(|member| member.address.as_str()).collect::<Vec<_>>().join(",")
    }
}

async fn send<Q, A>(channel: &Channel, path: &'static str, request: Q, token: Token) -> Result<A, Status>
where
    Q: Message + Default + 'static,
    A: Message + Default + 'static,
{
    let mut request = tonic::Request::new(request);
    // A member that is cut off from the others says so at once.
    request.metadata_mut().insert("hasleader", MetadataValue::from_static("true"));
    if let Some(token) = token {
        request.metadata_mut().insert("token", token);
    }
    let answer = async {
        let mut client = Grpc::new(channel.clone()).max_decoding_message_size(REPLY_BYTES_MAX);
        client.ready().await.map_err(|error| Status::from_error(Box::new(error)))?;
        client.unary(request, PathAndQuery::from_static(path), ProstCodec::<Q, A>::default()).await
    };
    match tokio::time::timeout(REQUEST_TIMEOUT, answer).await {
        Ok(answer) => answer.map(tonic::Response::into_inner),
        Err(_) => Err(Status::deadline_exceeded("no answer in time")),
    }
}

fn endpoint(address: &str, tls: Option<&TlsOptions>) -> EngineResult<Endpoint> {
    let config =
        |error: tonic::transport::Error| Fault::config("open etcd").with("address", address).source(last_cause(&error));
    let scheme = if tls.is_some() { "https" } else { "http" };
    let mut endpoint = Endpoint::from_shared(format!("{scheme}://{address}"))
        .map_err(config)?
        .connect_timeout(CONNECT_TIMEOUT)
        .http2_keep_alive_interval(KEEP_ALIVE.0)
        .keep_alive_timeout(KEEP_ALIVE.1)
        .keep_alive_while_idle(true)
        .tcp_nodelay(true);
    if let Some(tls) = tls {
        endpoint = super::tls::apply(endpoint, tls)?.map_err(config)?;
    }
    Ok(endpoint)
}

pub(super) fn fault(kind: FaultKind, operation: &'static str, said: &str) -> Fault {
    Fault::new(kind, operation).with("engine", "etcd").source(said.to_owned())
}

fn last_cause(error: &(dyn Error + 'static)) -> String {
    let mut last = error;
    while let Some(cause) = last.source() {
        last = cause;
    }
    last.to_string()
}

fn text_of(status: &Status) -> String {
    match status.source() {
        Some(cause) => last_cause(cause),
        None => format!("{}: {}", status.code(), status.message()),
    }
}

/// No connection was made, so nothing was sent over it.
fn was_refused(status: &Status) -> bool {
    let mut cause = status.source();
    while let Some(error) = cause {
        if let Some(io) = error.downcast_ref::<std::io::Error>()
            && io.kind() == std::io::ErrorKind::ConnectionRefused
        {
            return true;
        }
        cause = error.source();
    }
    false
}

/// Somebody took the connection and ended it at the first words.
fn was_hung_up(status: &Status) -> bool {
    let said = text_of(status);
    ["connection closed", "connection reset", "broken pipe", "frame", "fatal alert"]
        .iter()
        .any(|end| said.to_lowercase().contains(end))
}

/// The token has expired, the member that gave it is gone, or users were changed since.
fn is_about_token(status: &Status) -> bool {
    status.code() == Code::Unauthenticated
        || ["invalid auth token", "revision in header is old", "user name is empty"]
            .iter()
            .any(|said| status.message().contains(said))
}

/// What an error of a member means for us.
fn kind_of(status: &Status) -> FaultKind {
    let says = |words: &[&str]| words.iter().any(|word| status.message().contains(word));
    match status.code() {
        Code::PermissionDenied | Code::Unauthenticated => FaultKind::Denied,
        Code::InvalidArgument if says(&["authentication failed", "user name is empty", "auth"]) => FaultKind::Denied,
        Code::FailedPrecondition if says(&["auth"]) => FaultKind::Denied,
        Code::InvalidArgument if says(&["too large", "too many operations"]) => FaultKind::Unsupported,
        Code::ResourceExhausted if says(&["space exceeded"]) => FaultKind::Full,
        Code::ResourceExhausted if says(&["larger than max"]) => FaultKind::Unsupported,
        Code::ResourceExhausted => FaultKind::Throttled,
        Code::Unimplemented => FaultKind::Unsupported,
        Code::InvalidArgument | Code::FailedPrecondition | Code::NotFound | Code::AlreadyExists => FaultKind::Internal,
        // A snapshot that was compacted away while it was read: a later one is there.
        Code::OutOfRange => FaultKind::Unavailable,
        Code::Unavailable
        | Code::DeadlineExceeded
        | Code::Cancelled
        | Code::Unknown
        | Code::Aborted
        | Code::Internal
        | Code::DataLoss => FaultKind::Unavailable,
        Code::Ok => FaultKind::Internal,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn errors_of_a_member_have_a_meaning() {
        for (code, said, kind) in [
            (Code::ResourceExhausted, "etcdserver: mvcc: database space exceeded", FaultKind::Full),
            (Code::ResourceExhausted, "etcdserver: too many requests", FaultKind::Throttled),
            (Code::InvalidArgument, "etcdserver: request is too large", FaultKind::Unsupported),
            (Code::InvalidArgument, "etcdserver: too many operations in txn request", FaultKind::Unsupported),
            (
                Code::InvalidArgument,
                "etcdserver: authentication failed, invalid user ID or password",
                FaultKind::Denied,
            ),
            (Code::PermissionDenied, "etcdserver: permission denied", FaultKind::Denied),
            (Code::Unavailable, "etcdserver: no leader", FaultKind::Unavailable),
            (Code::Unavailable, "etcdserver: request timed out", FaultKind::Unavailable),
            (Code::Unimplemented, "unknown service etcdserverpb.KV", FaultKind::Unsupported),
        ] {
            assert_eq!(kind_of(&Status::new(code, said)), kind, "{said}");
        }
        assert!(is_about_token(&Status::unauthenticated("etcdserver: invalid auth token")));
        assert!(is_about_token(&Status::invalid_argument("auth: revision in header is old")));
    }
}
