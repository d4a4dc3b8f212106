//! The client: calls with their limits, and what the calls have in common with watches.
//!
//! In: [`Access`], [`Options`], calls. Out: answers. Implements [`ApiServer`].
//! Invariants: a call ends within its limit, waiting for the node's own limiter and for a connection included;
//! an answer is read up to a limit; `managedFields` are dropped on the way in.

use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};
use std::time::{Duration, Instant as StdInstant};

use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, ApiServer};
use agent_types::failure::Class;
use agent_types::lock::Lock;
use bytes::{Bytes, BytesMut};
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::header::{ACCEPT, AUTHORIZATION, HeaderValue, USER_AGENT};
use hyper::{Request, Response, StatusCode, Uri};
use k8s_openapi::List;
use k8s_openapi::api::core::v1::Pod;
use k8s_openapi::apimachinery::pkg::apis::meta::v1::ObjectMeta;
use kube::Resource;
use orlop_config::error_chain::chain;
use orlop_config::node::Secret;
use serde::de::DeserializeOwned;
use tokio::time::{Instant, sleep_until, timeout_at};

use crate::access::{Access, Credentials, Server};
use crate::connect::{ConnectError, Dialer, Protocol};
use crate::connection::{Connection, Identity, SendError};
use crate::limiter::Limiter;
use crate::reach::{ApiReach, reach};
use crate::request::{self, Lane};
use crate::tls::TlsError;
use crate::{error, json};

/// An answer to a call: etcd takes objects of 1.5 MiB at most, JSON makes them larger.
const ANSWER_MAX: usize = 8 * 1024 * 1024;
/// Of a refusal only the beginning matters.
const REFUSAL_MAX: usize = 64 * 1024;
/// A token file is read again after this (client-go does the same).
const TOKEN_FILE_AGE_MAX: Duration = Duration::from_secs(60);

/// Gets each request, for metrics. Called from the tasks that send them: it must not wait.
pub trait RequestObserver: Send + Sync + 'static {
    /// The server began to answer with `code`, or there was no answer; watches included.
    fn answered(&self, method: &str, host: &str, code: Option<u16>, took: Duration);

    /// A request waited for the client's own limits.
    fn waited(&self, method: &str, host: &str, took: Duration);
}

/// The observer of requests, if there is one.
#[derive(Clone, Default)]
pub struct Observer(pub Option<Arc<dyn RequestObserver>>);

impl std::fmt::Debug for Observer {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "Observer({})", self.0.is_some())
    }
}

/// A request that is under way; dropped before its answer it has none.
struct Observed<'a> {
    by: &'a Observer,
    method: String,
    host: String,
    began: Instant,
    code: Option<u16>,
}

impl Drop for Observed<'_> {
    fn drop(&mut self) {
        if let Some(by) = &self.by.0 {
            by.answered(&self.method, &self.host, self.code, self.began.elapsed());
        }
    }
}

/// Options of a new client.
#[derive(Clone, Debug)]
pub struct Options {
    /// `User-Agent`, `orlop/<version>`.
    pub user_agent: String,
    /// Limit of one call.
    pub timeout: Duration,
    /// `kubeAPIQPS` and `kubeAPIBurst`; a rate below zero means no limit.
    pub api_rate: (i32, i32),
    /// `eventRecordQPS` and `eventBurst`; 0 or below means no limit, as upstream has it.
    pub event_rate: (i32, i32),
    /// HTTP/1.1 where the environment has `DISABLE_HTTP2`.
    pub protocol: Protocol,
    /// Who hears of requests.
    pub observer: Observer,
}

impl Options {
    /// Upstream's defaults under our name.
    #[must_use]
    pub fn new(version: &str) -> Options {
        Options {
            user_agent: format!("orlop/{version}"),
            timeout: Duration::from_secs(10),
            api_rate: (50, 100),
            event_rate: (50, 100),
            protocol: Protocol::Http2,
            observer: Observer::default(),
        }
    }
}

/// Health of the server, by the rules of upstream's certificate manager (client-go/util/certificate, `ServerHealthy`):
/// a node with an expired certificate gives up unless the server is unhealthy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Health {
    /// The server answers.
    Healthy,
    /// The server does not answer, or reports an internal error.
    Unhealthy,
}

/// What happened since the client was made.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Stats {
    /// Requests sent, watches included.
    pub requests: u64,
    /// Connections dialled.
    pub connections: u64,
}

/// A client of one API server; clones share everything.
#[derive(Clone)]
pub struct ApiClient(pub(crate) Arc<Inner>);

pub(crate) struct Inner {
    /// Of everything but reviews.
    pub(crate) connection: Connection,
    /// Of reviews ([`Lane::Reviews`]): strangers cause them, and no heartbeat and no status waits behind them.
    reviews: Connection,
    protocol: Protocol,
    user_agent: HeaderValue,
    timeout: Duration,
    general: Option<Limiter>,
    events: Option<Limiter>,
    token: Lock<Option<(std::path::PathBuf, StdInstant, Secret)>>,
    requests: AtomicU64,
    observer: Observer,
}

impl std::fmt::Debug for ApiClient {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(f, "ApiClient({})", self.0.connection.server())
    }
}

impl ApiClient {
    /// Makes a client; it connects at first use, inside a tokio runtime.
    ///
    /// # Errors
    /// Certificates, key or CA bundle cannot be used.
    pub fn new(access: Access, options: &Options) -> Result<ApiClient, TlsError> {
        ApiClient::over(access, options, Dialer::Tcp)
    }

    pub(crate) fn over(access: Access, options: &Options, dialer: Dialer) -> Result<ApiClient, TlsError> {
        let user_agent = HeaderValue::try_from(&options.user_agent).map_err(|_| TlsError::Unusable {
            what: "user agent",
            reason: format!("{:?} is no header value", options.user_agent),
        })?;
        let identity = Identity::new(access, options.protocol)?;
        Ok(ApiClient(Arc::new(Inner {
            connection: Connection::new(identity.clone(), dialer.clone(), options.protocol),
            reviews: Connection::new(identity, dialer, options.protocol),
            protocol: options.protocol,
            user_agent,
            timeout: options.timeout,
            general: Limiter::new(options.api_rate.0, options.api_rate.1),
            events: Limiter::new(options.event_rate.0, options.event_rate.1),
            token: Lock::default(),
            requests: AtomicU64::new(0),
            observer: options.observer.clone(),
        })))
    }

    /// The server it talks to.
    #[must_use]
    pub fn server(&self) -> Server {
        self.0.connection.server()
    }

    /// Takes a new identity or new trust at run time; `Ok(false)` if nothing is new. New requests go out on a new
    /// connection, those under way finish on the old one, watches move over without losing an event.
    ///
    /// # Errors
    /// The new one cannot be used; the old one stays.
    pub fn set_access(&self, access: Access) -> Result<bool, TlsError> {
        if *self.0.connection.access() == access {
            return Ok(false);
        }
        let identity = Identity::new(access, self.0.protocol)?;
        self.0.connection.replace(identity.clone());
        self.0.reviews.replace(identity);
        Ok(true)
    }

    /// Lets go of all connections, as upstream does after repeated heartbeat failures: the next request dials.
    pub fn close_connections(&self) {
        self.0.connection.close();
        self.0.reviews.close();
    }

    /// Tries a new connection, beside those of this client and without its credentials.
    pub async fn reach(&self) -> ApiReach {
        reach(&self.0.connection.access(), &Dialer::Tcp).await
    }

    /// Counters.
    #[must_use]
    pub fn stats(&self) -> Stats {
        let connections = self.0.connection.count() + self.0.reviews.count();
        Stats { requests: self.0.requests.load(Ordering::Relaxed), connections }
    }

    /// Asks `/healthz`, within the client's limit.
    pub async fn health(&self) -> Health {
        match self.get_raw("/healthz").await {
            Ok((code, _)) => match code.as_u16() {
                200..=299 | 401 | 403 | 404 => Health::Healthy,
                _ => Health::Unhealthy,
            },
            Err(_) => Health::Unhealthy,
        }
    }

    /// GET of any path, body up to a limit; a refusal is an answer here.
    pub(crate) async fn get_raw(&self, path: &str) -> Result<(StatusCode, Bytes), SendError> {
        let deadline = Instant::now() + self.0.timeout;
        let exchange = async {
            let request =
                Request::get(path).body(Vec::new()).map_err(|e| SendError::Broken(e.to_string()))?;
            let response = self.exchange(request).await?;
            let code = response.status();
            let body = read(response.into_body(), ANSWER_MAX).await.map_err(SendError::Broken)?;
            Ok((code, body))
        };
        timeout_at(deadline, exchange).await.unwrap_or_else(|_| {
            Err(SendError::NotSent(ConnectError::TimedOut {
                server: self.server().to_string(),
                seconds: self.0.timeout.as_secs(),
            }))
        })
    }

    /// Changes when a server that did not answer answers again.
    pub(crate) fn returned(&self) -> tokio::sync::watch::Receiver<u64> {
        self.0.connection.returned()
    }

    /// Sends a request of ours with what all have in common, on the connection of everything but reviews.
    pub(crate) async fn exchange(&self, request: Request<Vec<u8>>) -> Result<Response<Incoming>, SendError> {
        self.exchange_on(&self.0.connection, request).await
    }

    async fn exchange_on(
        &self,
        connection: &Connection,
        request: Request<Vec<u8>>,
    ) -> Result<Response<Incoming>, SendError> {
        let (mut parts, body) = request.into_parts();
        let access = connection.access();
        let path = parts.uri.path_and_query().map_or("/", |p| p.as_str()).trim_end_matches(['?', '&']);
        let full = format!("https://{}{}{path}", access.server.authority(), access.server.prefix);
        parts.uri = Uri::try_from(full).map_err(|e| SendError::Broken(e.to_string()))?;
        parts.headers.insert(USER_AGENT, self.0.user_agent.clone());
        parts.headers.insert(ACCEPT, HeaderValue::from_static("application/json"));
        if let Some(token) = self.token(&access).await {
            // A token with a line end in it is no token: the server says 401.
            if let Ok(mut value) = HeaderValue::try_from(format!("Bearer {}", token.reveal())) {
                value.set_sensitive(true);
                parts.headers.insert(AUTHORIZATION, value);
            }
        }
        self.0.requests.fetch_add(1, Ordering::Relaxed);
        let mut observed = Observed {
            by: &self.0.observer,
            method: parts.method.to_string(),
            host: access.server.authority(),
            began: Instant::now(),
            code: None,
        };
        let request = Request::from_parts(parts, Full::new(Bytes::from(body)));
        let outcome = connection.send(request).await;
        observed.code = outcome.as_ref().ok().map(|response| response.status().as_u16());
        drop(observed);
        connection.answered(outcome.is_ok());
        outcome
    }

    async fn token(&self, access: &Access) -> Option<Secret> {
        let path = match &access.credentials {
            Credentials::Token(token) => return Some(token.clone()),
            Credentials::TokenFile(path) => path,
            _ => return None,
        };
        let cached = || self.0.token.lock();
        if let Some((of, read, token)) = cached().as_ref()
            && of == path
            && read.elapsed() < TOKEN_FILE_AGE_MAX
        {
            return Some(token.clone());
        }
        match tokio::fs::read_to_string(path).await {
            Ok(text) => {
                let token = Secret::new(text.trim());
                *cached() = Some((path.clone(), StdInstant::now(), token.clone()));
                Some(token)
            }
            // The last one known may still be good.
            Err(error) => {
                tracing::warn!(path = %path.display(), %error, "token file cannot be read");
                cached().as_ref().filter(|(of, ..)| of == path).map(|(.., token)| token.clone())
            }
        }
    }

    async fn send(&self, call: &ApiCall, on: &Connection, request: Request<Vec<u8>>) -> ApiResult {
        let response = self.exchange_on(on, request).await.map_err(|e| error::unanswered(call, &e))?;
        let (parts, body) = response.into_parts();
        if !parts.status.is_success() {
            // A refusal stands even if its words get lost.
            let body = read_start(body, REFUSAL_MAX).await;
            return Err(error::refused(call.describe(), parts.status, &parts.headers, &body));
        }
        let unreadable = |why: String| error::unreadable(call, parts.status, &why);
        let body = read(body, ANSWER_MAX).await.map_err(unreadable)?;
        reply(call, &body).map_err(unreadable)?.ok_or_else(|| error::not_found(call))
    }
}

impl ApiServer for ApiClient {
    async fn call(&self, call: &ApiCall) -> ApiResult {
        let began = Instant::now();
        let deadline = began + self.0.timeout;
        let request = request::build(call)
            .map_err(|message| ApiError::without_status(call, Class::Invalid, message))?;
        let (on, limiter) = match request::lane(call) {
            Lane::Heartbeat => (&self.0.connection, &None),
            Lane::Reviews => (&self.0.reviews, &None),
            Lane::Events => (&self.0.connection, &self.0.events),
            Lane::General => (&self.0.connection, &self.0.general),
        };
        if let Some(limiter) = limiter {
            let wait = limiter.reserve(began, self.0.timeout).map_err(|w| error::throttled(call, w))?;
            if let Some(observer) = &self.0.observer.0 {
                observer.waited(request.method().as_str(), &self.server().authority(), wait);
            }
            if !wait.is_zero() {
                sleep_until(began + wait).await;
            }
        }
        match timeout_at(deadline, self.send(call, on, request)).await {
            Ok(outcome) => outcome,
            Err(_) => {
                on.answered(false);
                Err(error::too_late(call, self.0.timeout))
            }
        }
    }
}

/// What the answer says; `None` for a list in which nothing was found.
fn reply(call: &ApiCall, body: &[u8]) -> Result<Option<ApiReply>, String> {
    Ok(Some(match call {
        ApiCall::FindPod { .. } => return Ok(first(body)?.map(ApiReply::Pod)),
        ApiCall::GetNode { .. }
        | ApiCall::CreateNode(_)
        | ApiCall::PatchNode { .. }
        | ApiCall::PatchNodeStatus { .. } => ApiReply::Node(object(body)?),
        ApiCall::GetLease { .. } | ApiCall::CreateLease(_) | ApiCall::ReplaceLease(_) => {
            ApiReply::Lease(object(body)?)
        }
        ApiCall::CreatePod(_) | ApiCall::PatchPodStatus { .. } => ApiReply::Pod(object(body)?),
        // The object or a Status: neither says more than the code.
        ApiCall::DeletePod { .. }
        | ApiCall::EvictPod { .. }
        | ApiCall::DeleteCsiNode { .. }
        | ApiCall::DeleteResourceSlices { .. } => ApiReply::Done,
        ApiCall::CreateEvent(_) | ApiCall::PatchEvent { .. } => ApiReply::Event(object(body)?),
        ApiCall::CreateCsr(_) | ApiCall::GetCsr { .. } => ApiReply::Csr(object(body)?),
        ApiCall::GetConfigMap(_) | ApiCall::CreateConfigMap(_) | ApiCall::ReplaceConfigMap(_) => {
            ApiReply::ConfigMap(object(body)?)
        }
        ApiCall::GetSecret(_) => ApiReply::Secret(object(body)?),
        ApiCall::GetServiceAccount(_) => ApiReply::ServiceAccount(object(body)?),
        ApiCall::GetClaim(_) | ApiCall::PatchClaimStatus { .. } => ApiReply::Claim(object(body)?),
        ApiCall::GetVolume { .. } => ApiReply::Volume(object(body)?),
        ApiCall::GetCsiDriver { .. } => ApiReply::CsiDriver(object(body)?),
        ApiCall::GetAttachment { .. } => ApiReply::Attachment(object(body)?),
        ApiCall::GetCsiNode { .. } | ApiCall::CreateCsiNode(_) | ApiCall::ReplaceCsiNode(_) => {
            ApiReply::CsiNode(object(body)?)
        }
        ApiCall::GetResourceClaim(_) => ApiReply::ResourceClaim(object(body)?),
        // It has no name: what asked for it has the account's.
        ApiCall::CreateToken { .. } => ApiReply::Token(json::read(body)?),
        ApiCall::CreatePodCertificate(_) => ApiReply::PodCertificate(object(body)?),
        ApiCall::ReviewToken(_) => ApiReply::TokenReview(object(body)?),
        ApiCall::ReviewAccess(_) => ApiReply::AccessReview(object(body)?),
    }))
}

fn first(body: &[u8]) -> Result<Option<Box<Pod>>, String> {
    let found: List<Pod> = json::read(body)?;
    Ok(found.items.into_iter().next().map(|mut pod| {
        forget_managed_fields(&mut pod.metadata);
        Box::new(pod)
    }))
}

fn object<K: DeserializeOwned + Resource>(body: &[u8]) -> Result<Box<K>, String> {
    let mut object: Box<K> = json::read(body)?;
    forget_managed_fields(object.meta_mut());
    Ok(object)
}

/// They are often the larger half of an object, and nothing here reads them.
pub(crate) fn forget_managed_fields(meta: &mut ObjectMeta) {
    meta.managed_fields = None;
}

/// The whole body, if it is no longer than `max`.
pub(crate) async fn read(mut body: Incoming, max: usize) -> Result<Bytes, String> {
    let mut bytes = BytesMut::new();
    while let Some(frame) = body.frame().await {
        let frame = frame.map_err(|e| format!("it broke off: {}", chain(&e)))?;
        if let Ok(data) = frame.into_data() {
            if bytes.len() + data.len() > max {
                return Err(format!("it is longer than {max} bytes"));
            }
            bytes.extend_from_slice(&data);
        }
    }
    Ok(bytes.freeze())
}

/// At most `max` bytes of the body's start.
pub(crate) async fn read_start(mut body: Incoming, max: usize) -> Bytes {
    let mut bytes = BytesMut::new();
    while bytes.len() < max {
        let Some(Ok(frame)) = body.frame().await else { break };
        if let Ok(data) = frame.into_data() {
            bytes.extend_from_slice(&data[..data.len().min(max - bytes.len())]);
        }
    }
    bytes.freeze()
}
