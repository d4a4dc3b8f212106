//! The routes of the HTTPS API and their handlers.
//!
//! In: requests that [`crate::auth`] allowed, [`NodeApi`]. Out: answers. Invariants: the router compares the
//! path as it is on the wire, the same text that was authorized; an endpoint that is not implemented answers
//! 501; without debugging handlers their paths answer 405 or 404, as upstream's do. Upstream:
//! pkg/kubelet/server/server.go.

mod bridged;
mod debug;
mod healthz;
mod logs;
mod streams;
#[cfg(test)]
mod tests;
mod tools;
mod tunnel;
mod zpages;

use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_kubelet_api::logs::LogOptions;
use agent_kubelet_api::stats::exposition;
use agent_types::api::ApiServer;
use agent_types::time::Wall;
use bytes::Bytes;
use hyper::body::Incoming;
use hyper::header::{ACCEPT, ALLOW, HeaderValue};
use hyper::{Method, Request, Response, StatusCode};
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use percent_encoding::percent_decode_str;
use serde_json::{Value, json};
use tokio::sync::mpsc;

use crate::auth::{Clock, Guard};
use crate::body::{Body, Broken, json as json_answer, text, whole};
use crate::https::{Handler, Peer, Spawn};

pub use streams::{StreamRequest, StreamTo};
pub use tools::{ContainerOf, NodeFile, NodeFileError, NodeTools};

/// A health check's name and what is wrong, if something is.
pub type Check = (&'static str, Result<(), String>);

/// Pieces of a log; a send fails when the client is gone.
pub type LogPieces = mpsc::Receiver<Result<Bytes, Broken>>;

/// One container's log.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct LogRequest {
    /// UID of the pod.
    pub uid: String,
    /// Name of the container, for messages.
    pub container: String,
    /// CRI id of the instance.
    pub container_id: String,
    /// What of it.
    pub options: LogOptions,
}

/// The node as its API shows it.
pub trait NodeApi: Send + Sync + 'static {
    /// The checks of `/healthz`, in order.
    fn health(&self) -> impl Future<Output = Vec<Check>> + Send;

    /// Every pod that the node wants, with its status.
    fn pods(&self) -> impl Future<Output = Vec<Pod>> + Send;

    /// The pod of this name, and its status once it has one; `None` if the node has no such pod.
    fn pod(&self, namespace: &str, name: &str) -> Option<(Arc<Pod>, Arc<PodStatus>)>;

    /// What the runtime runs, as pods.
    ///
    /// # Errors
    /// The runtime's words.
    fn running_pods(&self) -> impl Future<Output = Result<Vec<Pod>, String>> + Send;

    /// What `/metrics`, `/metrics/probes`, `/metrics/slis` and `/metrics/node` say.
    fn metrics(&self, of: MetricsOf) -> impl Future<Output = String> + Send;

    /// A health check was asked for and answered: for the metrics.
    fn checked(&self, check: &str, healthy: bool);

    /// A request has come, refused ones too; [`NodeApi::answered`] follows for each.
    fn requested(&self, method: &str, path: &str);

    /// A request was answered after this time, or its client is gone.
    fn answered(&self, method: &str, path: &str, took: Duration);

    /// What `/stats/summary` says, as JSON; with `only_cpu_and_memory` nothing else.
    ///
    /// # Errors
    /// The words of what could not be asked.
    fn summary(&self, only_cpu_and_memory: bool) -> impl Future<Output = Result<String, String>> + Send;

    /// What `/metrics/resource` says.
    fn resource_metrics(&self) -> impl Future<Output = String> + Send;

    /// What `/metrics/cadvisor` says.
    fn cadvisor_metrics(&self) -> impl Future<Output = String> + Send;

    /// The effective KubeletConfiguration, secrets left out.
    fn configuration(&self) -> Value;

    /// Opens a log.
    ///
    /// # Errors
    /// Why it cannot be read.
    fn open_log(&self, request: LogRequest) -> impl Future<Output = Result<LogPieces, String>> + Send;

    /// Where the runtime waits for a stream.
    ///
    /// # Errors
    /// Why there can be none.
    fn stream_url(&self, request: StreamRequest) -> impl Future<Output = Result<String, String>> + Send;

    /// A stream (`exec`, `attach`, `portforward`) is spoken with in WebSocket by this node itself.
    fn took_websocket(&self, subresource: &'static str);
}

/// What metrics are asked for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum MetricsOf {
    /// The node's own: `/metrics`.
    Node,
    /// Probes of containers: `/metrics/probes`.
    Probes,
    /// Health checks: `/metrics/slis`.
    Slis,
    /// The machine and its operating system, under node_exporter's names: `/metrics/node`.
    OperatingSystem,
}

/// What streams need in addition.
#[derive(Clone)]
pub struct Streams {
    /// `streamingConnectionIdleTimeout`.
    pub idle: Duration,
    /// Who moves their bytes.
    pub spawner: Arc<dyn Spawn>,
    /// The gate ExtendWebSocketsToKubelet: WebSocket `v5.channel.k8s.io` and SPDY within WebSocket are spoken here.
    pub extended: bool,
}

/// What of the configuration decides about paths.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Paths {
    /// `enableDebuggingHandlers`.
    pub debugging: bool,
    /// `enableSystemLogHandler`.
    pub system_log: bool,
    /// `enableSystemLogQuery`.
    pub system_log_query: bool,
    /// `enableProfilingHandler`.
    pub profiling: bool,
    /// `enableDebugFlagsHandler`.
    pub debug_flags: bool,
    /// The gate PodLogsQuerySplitStreams.
    pub split_logs: bool,
    /// The gate ContainerCheckpoint.
    pub checkpoint: bool,
}

/// Answer to a request while the debugging handlers are off; `None` for a path that is served in any case. Upstream:
/// `InstallDebuggingDisabledHandlers`, which names some of the paths; the server does not know the others.
fn debugging_disabled(segments: &[&str]) -> Option<Response<Body>> {
    match segments {
        ["run" | "exec" | "attach" | "portForward" | "containerLogs" | "runningpods" | "logs", ..]
        | ["debug", "pprof", ..] => {
            Some(text(StatusCode::METHOD_NOT_ALLOWED, "Debug endpoints are disabled.\n"))
        }
        ["configz" | "checkpoint" | "debug" | "statusz" | "flagz", ..] => {
            Some(text(StatusCode::NOT_FOUND, "404 page not found\n"))
        }
        _ => None,
    }
}

/// The API behind its guard.
pub struct Api<N, A> {
    inner: Arc<Inner<N, A>>,
}

struct Inner<N, A> {
    node: Arc<N>,
    guard: Guard<A>,
    paths: Paths,
    streams: Streams,
    clock: Clock,
}

impl<N: NodeApi, A: ApiServer> Api<N, A> {
    /// The node's API.
    #[must_use]
    pub fn new(node: Arc<N>, guard: Guard<A>, paths: Paths, streams: Streams, clock: Clock) -> Api<N, A> {
        Api { inner: Arc::new(Inner { node, guard, paths, streams, clock }) }
    }
}

impl<N: NodeApi + NodeTools, A: ApiServer> Handler for Api<N, A> {
    fn knows(&self, peer: &Peer) -> bool {
        self.inner.guard.knows(&peer.chain)
    }

    fn handle(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>> {
        let (inner, peer) = (self.inner.clone(), peer.clone());
        Box::pin(async move {
            let _counted = InFlightRequest::new(inner.clone(), &request);
            // A body is not read (but for a log level): it is dropped with the request, or what a stream begins with.
            let (parts, body) = request.into_parts();
            match inner.guard.admit(&peer.chain, &parts).await {
                Ok(user) => {
                    peer.admitted();
                    tracing::debug!(user = user.name, method = %parts.method, path = parts.uri.path(), "request");
                    if inner.paths.debugging && streams::is_stream(parts.uri.path()) {
                        let request = Request::from_parts(parts, body);
                        return streams::answer(&*inner.node, request, inner.streams.clone()).await;
                    }
                    if debug::is_level(&inner.paths, parts.uri.path()) {
                        return debug::level(&*inner.node, &parts.method, body).await;
                    }
                    let query = parts.uri.query().unwrap_or_default();
                    let now = (inner.clock)().wall;
                    let asked = RequestHead {
                        method: &parts.method,
                        path: parts.uri.path(),
                        query,
                        accept: accept(&parts),
                    };
                    answer(&*inner.node, inner.paths, asked, now).await
                }
                Err(refusal) => {
                    tracing::debug!(?refusal, method = %parts.method, path = parts.uri.path(), "request refused");
                    refusal.response()
                }
            }
        })
    }
}

/// A request without its body.
#[derive(Clone, Copy, Debug)]
pub(crate) struct RequestHead<'a> {
    pub(crate) method: &'a Method,
    /// As it is on the wire.
    pub(crate) path: &'a str,
    pub(crate) query: &'a str,
    pub(crate) accept: Option<&'a str>,
}

fn accept(parts: &hyper::http::request::Parts) -> Option<&str> {
    parts.headers.get(ACCEPT)?.to_str().ok()
}

/// A request that is under way; the metrics count its end, also if the client is gone.
struct InFlightRequest<N: NodeApi, A> {
    inner: Arc<Inner<N, A>>,
    method: Method,
    path: String,
    began: Instant,
}

impl<N: NodeApi, A> InFlightRequest<N, A> {
    fn new(inner: Arc<Inner<N, A>>, request: &Request<Incoming>) -> InFlightRequest<N, A> {
        let (method, path) = (request.method().clone(), request.uri().path().to_owned());
        inner.node.requested(method.as_str(), &path);
        InFlightRequest { inner, method, path, began: Instant::now() }
    }
}

impl<N: NodeApi, A> Drop for InFlightRequest<N, A> {
    fn drop(&mut self) {
        self.inner.node.answered(self.method.as_str(), &self.path, self.began.elapsed());
    }
}

/// The answer to a request that may be answered.
pub(crate) async fn answer<N: NodeApi + NodeTools>(
    node: &N,
    paths: Paths,
    asked: RequestHead<'_>,
    now: Wall,
) -> Response<Body> {
    let RequestHead { method, path, query, accept } = asked;
    let segments: Vec<&str> = path.split('/').skip(1).collect();
    if !paths.debugging
        && let Some(disabled) = debugging_disabled(&segments)
    {
        return disabled;
    }
    let (get, post) = (method == Method::GET, method == Method::POST);
    match segments.as_slice() {
        ["healthz", rest @ ..] if get => {
            healthz::answer(&node.health().await, rest, query, |check, healthy| node.checked(check, healthy))
        }
        ["pods"] | ["pods", ""] if get => pod_list(node.pods().await),
        ["runningpods"] | ["runningpods", ""] if get => match node.running_pods().await {
            Ok(pods) => pod_list(pods),
            Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, problem),
        },
        ["configz"] if get => json_answer(StatusCode::OK, &json!({ "kubeletconfig": node.configuration() })),
        ["containerLogs", rest @ ..] if get => logs::answer(node, rest, query, (now, paths.split_logs)).await,
        ["metrics"] if get => metrics(node, MetricsOf::Node).await,
        ["metrics", "probes"] if get => metrics(node, MetricsOf::Probes).await,
        ["metrics", "slis"] if get => metrics(node, MetricsOf::Slis).await,
        ["metrics", "node"] if get => metrics(node, MetricsOf::OperatingSystem).await,
        ["stats", "summary"] if get || post => summary(node, query).await,
        ["metrics", "cadvisor"] if get => {
            whole(StatusCode::OK, exposition::CONTENT_TYPE, node.cadvisor_metrics().await.into())
        }
        ["metrics", "resource"] if get => {
            whole(StatusCode::OK, exposition::CONTENT_TYPE, node.resource_metrics().await.into())
        }
        ["logs", ..] if !paths.system_log => {
            text(StatusCode::METHOD_NOT_ALLOWED, "logs endpoint is disabled.\n")
        }
        ["logs", rest @ ..] if get => tools::node_logs(node, rest, query, paths.system_log_query).await,
        ["run", rest @ ..] if post => tools::run(node, rest, query).await,
        ["checkpoint", ..] if !paths.checkpoint => text(StatusCode::NOT_FOUND, "404 page not found\n"),
        ["checkpoint", rest @ ..] if post => tools::checkpoint(node, rest, query).await,
        ["statusz"] if get => zpages::statusz(node, accept, now),
        ["flagz"] if get => zpages::flagz(node, accept),
        ["run" | "checkpoint", ..] if !post => not_allowed("POST"),
        ["stats", "summary"]
        | ["logs", ..]
        | ["statusz" | "flagz"]
        | ["metrics", "resource" | "cadvisor" | "probes" | "slis" | "node"]
        | ["metrics"]
        | ["healthz", ..]
        | ["pods", ..]
        | ["runningpods", ..]
        | ["configz"]
        | ["containerLogs", ..]
            if !get =>
        {
            not_allowed("GET")
        }
        ["debug", "flags", "v"] => debug::level_without_body(paths.debug_flags, method),
        ["debug", "pprof", ..] if !paths.profiling => {
            text(StatusCode::METHOD_NOT_ALLOWED, "profiling endpoint is disabled.\n")
        }
        ["debug", "pprof", name] if get => debug::profile(node, name),
        ["debug", "pprof", ..] if !get => not_allowed("GET"),
        _ => text(StatusCode::NOT_FOUND, "404 page not found\n"),
    }
}

fn not_allowed(allowed: &'static str) -> Response<Body> {
    let mut response = text(StatusCode::METHOD_NOT_ALLOWED, "405: Method Not Allowed");
    response.headers_mut().insert(ALLOW, HeaderValue::from_static(allowed));
    response
}

async fn metrics<N: NodeApi>(node: &N, of: MetricsOf) -> Response<Body> {
    whole(StatusCode::OK, exposition::CONTENT_TYPE, node.metrics(of).await.into())
}

/// Bodies are not read: a form in one is not seen.
async fn summary<N: NodeApi>(node: &N, query: &str) -> Response<Body> {
    let given: Vec<String> =
        pairs(query).into_iter().filter(|(key, _)| key == "only_cpu_and_memory").map(|(_, v)| v).collect();
    match node.summary(given == ["true"]).await {
        Ok(document) => whole(StatusCode::OK, "application/json", document.into()),
        Err(problem) => text(StatusCode::INTERNAL_SERVER_ERROR, format!("Internal Error: {problem}")),
    }
}

fn pod_list(pods: Vec<Pod>) -> Response<Body> {
    let item = |pod: Pod| {
        let mut item = serde_json::to_value(pod).unwrap_or_default();
        // Items of a list name neither, as upstream sends them.
        if let Some(item) = item.as_object_mut() {
            item.remove("apiVersion");
            item.remove("kind");
        }
        item
    };
    let items: Vec<Value> = pods.into_iter().map(item).collect();
    json_answer(
        StatusCode::OK,
        &json!({ "kind": "PodList", "apiVersion": "v1", "metadata": {}, "items": items }),
    )
}

/// Key and value of each pair of a query, decoded; pairs that are no text are left out.
fn pairs(query: &str) -> Vec<(String, String)> {
    let pairs = query.split('&').filter(|pair| !pair.is_empty());
    let split = pairs.map(|pair| pair.split_once('=').unwrap_or((pair, "")));
    split.filter_map(|(key, value)| Some((decoded(key, true)?, decoded(value, true)?))).collect()
}

/// Percent-decoded; `None` if it is no UTF-8, or if a percent sign begins no escape (the crate leaves such a sign as it is).
fn decoded(text: &str, plus_is_space: bool) -> Option<String> {
    let escapes =
        |rest: &str| rest.as_bytes().get(..2).is_some_and(|two| two.iter().all(u8::is_ascii_hexdigit));
    if !text.split('%').skip(1).all(escapes) {
        return None;
    }
    let spaced = plus_is_space.then(|| text.replace('+', " "));
    let decoded = percent_decode_str(spaced.as_deref().unwrap_or(text)).decode_utf8().ok()?;
    Some(decoded.into_owned())
}
