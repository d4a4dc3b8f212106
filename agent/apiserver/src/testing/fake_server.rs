//! The fake API server: agent-sim's objects behind HTTP/2 and TLS, with faults.
//!
//! ```text
//! TCP or memory ─► TLS (who is it?) ─► fault? ─► cluster-info, healthz, objects, watches
//! ```
//! In: connections. Out: answers. Invariants: authorisation is the real one's for nodes; every request is noted with
//! who made it; a fault is used up by the request that it hits.

use std::collections::VecDeque;
use std::net::{Ipv4Addr, SocketAddr};
use std::sync::{Arc, MutexGuard};
use std::time::{SystemTime, UNIX_EPOCH};

use agent_sim::fake_api::{FakeApi, Status};
use agent_types::lock::Lock;
use agent_types::time::Wall;
use bytes::Bytes;
use http_body_util::combinators::UnsyncBoxBody;
use http_body_util::{BodyExt, Full};
use hyper::body::Incoming;
use hyper::{Request, Response, StatusCode};
use hyper_util::rt::{TokioExecutor, TokioIo};
use orlop_config::node::Secret;
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use serde_json::{Value, json};
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::net::TcpListener;
use tokio::sync::watch;
use tokio_rustls::TlsAcceptor;

use super::authn::{Authenticator, Caller};
use super::network::MemoryNetwork;
use super::pki::{TestPki, Validity};
use super::review_load::ReviewLoad;
use super::route::{RequestTarget, route};
use super::watching;
use crate::access::{Access, Credentials, Server};
use crate::client::{ApiClient, Options};
use crate::connect::{Dialer, Protocol};
use crate::discovery;

pub(super) type Body = UnsyncBoxBody<Bytes, std::io::Error>;

/// What goes wrong with the next request whose path contains a text.
#[derive(Clone, Debug, PartialEq)]
pub enum Fault {
    /// This code with a Status of this reason; `Retry-After` if there is one.
    Refuse(u16, &'static str, Option<u32>),
    /// This code and body, as they are.
    Raw(u16, Vec<u8>),
    /// No answer, nothing done.
    Silence,
    /// Done, and no answer.
    DoneAndSilence,
    /// The connection is cut before anything is done.
    Cut,
    /// A body without end, in lines if asked for, with this status.
    Endless(u16, bool),
    /// Headers of this many bytes.
    Headers(usize),
}

/// One request as it arrived.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RecordedRequest {
    /// `GET`.
    pub method: String,
    /// With its query.
    pub path: String,
    /// `User-Agent`.
    pub user_agent: String,
    /// Who it came from, as the certificate says.
    pub who: String,
    /// Number of the connection, from 1.
    pub connection: u64,
}

pub(super) struct ServerState {
    api: Lock<FakeApi>,
    authn: Authenticator,
    faults: Lock<VecDeque<(String, Fault)>>,
    seen: Lock<Vec<RecordedRequest>>,
    cluster_info: Lock<Option<Value>>,
    /// No `sendInitialEvents`, as servers before 1.32.
    plain_lists: Lock<bool>,
    tls: Lock<Arc<ServerConfig>>,
    connections: Lock<u64>,
    open: watch::Sender<u64>,
    reviews: ReviewLoad,
    /// Requests at once on one HTTP/2 connection.
    streams: Lock<u32>,
    pub(super) changed: watch::Sender<u64>,
    pub(super) cut: watch::Sender<u64>,
}

impl ServerState {
    pub(super) fn api(&self) -> MutexGuard<'_, FakeApi> {
        self.api.lock()
    }
}

/// A running fake. Stops when dropped.
pub struct FakeServer {
    /// Its authority.
    pub pki: Arc<TestPki>,
    server: Server,
    network: Option<MemoryNetwork>,
    shared: Arc<ServerState>,
    task: tokio::task::JoinHandle<()>,
}

impl Drop for FakeServer {
    fn drop(&mut self) {
        self.task.abort();
        self.cut_connections();
    }
}

fn now() -> Wall {
    let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
    Wall(i64::try_from(since.as_nanos()).unwrap_or(i64::MAX))
}

impl FakeServer {
    /// Listens on a free port of the loopback.
    ///
    /// # Errors
    /// No port.
    pub async fn start(pki: Arc<TestPki>) -> std::io::Result<FakeServer> {
        let listener = TcpListener::bind(SocketAddr::from((Ipv4Addr::LOCALHOST, 0))).await?;
        let server = Server::parse(&format!("https://{}", listener.local_addr()?)).expect("an address");
        let shared = shared(&pki);
        let accepting = Arc::clone(&shared);
        let task = tokio::spawn(async move {
            while let Ok((stream, _)) = listener.accept().await {
                serve(Arc::clone(&accepting), stream);
            }
        });
        Ok(FakeServer { pki, server, network: None, shared, task })
    }

    /// Listens in memory, for tests with a paused clock.
    #[must_use]
    pub fn in_memory(pki: Arc<TestPki>) -> FakeServer {
        let (network, shared) = (MemoryNetwork::default(), shared(&pki));
        let (mut listener, accepting) = (network.listen(), Arc::clone(&shared));
        let task = tokio::spawn(async move {
            while let Some(stream) = listener.recv().await {
                serve(Arc::clone(&accepting), stream);
            }
        });
        let server = Server::parse("https://localhost:6443").expect("an address");
        FakeServer { pki, server, network: Some(network), shared, task }
    }

    /// Where it is.
    #[must_use]
    pub fn server(&self) -> Server {
        self.server.clone()
    }

    pub(crate) fn dialer(&self) -> Dialer {
        self.network.clone().map_or(Dialer::Tcp, Dialer::Memory)
    }

    /// A client with a certificate of this name and organization.
    #[must_use]
    pub fn client(&self, common_name: &str, organization: &str) -> ApiClient {
        self.client_with(self.pki.access(self.server(), common_name, organization))
    }

    /// A client with any access.
    #[must_use]
    pub fn client_with(&self, access: Access) -> ApiClient {
        ApiClient::over(access, &Options::new("test"), self.dialer()).expect("usable access")
    }

    /// A client that speaks HTTP/1.1.
    #[must_use]
    pub fn client_of_http1(&self, common_name: &str, organization: &str) -> ApiClient {
        let options = Options { protocol: Protocol::Http1, ..Options::new("test") };
        let access = self.pki.access(self.server(), common_name, organization);
        ApiClient::over(access, &options, self.dialer()).expect("usable access")
    }

    /// The client of a node.
    #[must_use]
    pub fn node(&self, name: &str) -> ApiClient {
        self.client(&format!("system:node:{name}"), "system:nodes")
    }

    /// The client of an administrator.
    #[must_use]
    pub fn admin(&self) -> ApiClient {
        self.client("admin", "system:masters")
    }

    /// Knows these bootstrap tokens and no other from now on; before that, every token is one.
    pub fn accept_tokens(&self, tokens: &[&str]) {
        self.shared.authn.accept_tokens(tokens);
    }

    /// A client with a token, or without any credentials.
    #[must_use]
    pub fn client_without_certificate(&self, token: Option<&str>) -> ApiClient {
        let credentials = token.map_or(Credentials::None, |t| Credentials::Token(Secret::new(t)));
        self.client_with(Access { server: self.server(), trust: self.pki.trust(), credentials })
    }

    /// Looks at or changes the objects directly; watches hear of it.
    pub fn with_api<R>(&self, act: impl FnOnce(&mut FakeApi, Wall) -> R) -> R {
        let outcome = act(&mut self.shared.api(), now());
        self.shared.changed.send_modify(|n| *n += 1);
        outcome
    }

    /// Lets the next request whose path contains `path` go wrong.
    pub fn fail(&self, path: &str, fault: Fault) {
        self.shared.faults.lock().push_back((path.to_owned(), fault));
    }

    /// Every request so far.
    #[must_use]
    pub fn seen(&self) -> Vec<RecordedRequest> {
        self.shared.seen.lock().clone()
    }

    /// Cuts every connection.
    pub fn cut_connections(&self) {
        self.shared.cut.send_modify(|n| *n += 1);
    }

    /// How many connections are open; waits for the number to change with [`watch::Receiver::wait_for`].
    #[must_use]
    pub fn open_connections(&self) -> watch::Receiver<u64> {
        self.shared.open.subscribe()
    }

    /// Refuses `sendInitialEvents` from now on.
    pub fn without_streamed_lists(&self) {
        *self.shared.plain_lists.lock() = true;
    }

    /// Answers reviews after `wait` from now on, and takes so many requests at once on new connections.
    pub fn review_slowly(&self, wait: std::time::Duration, streams: u32) {
        self.shared.reviews.set_wait(wait);
        *self.shared.streams.lock() = streams;
    }

    /// The most reviews that were under way at once.
    #[must_use]
    pub fn most_reviews_at_once(&self) -> usize {
        self.shared.reviews.most()
    }

    /// Presents another certificate to new connections.
    pub fn set_tls(&self, config: Arc<ServerConfig>) {
        *self.shared.tls.lock() = config;
    }

    /// Publishes cluster-info with a CA, signed with these tokens (`id.secret`).
    pub fn publish_cluster_info(&self, ca_pem: &str, tokens: &[&str]) {
        use base64::Engine;
        let ca = base64::engine::general_purpose::STANDARD.encode(ca_pem);
        let kubeconfig = format!(
            "apiVersion: v1\nclusters:\n- cluster:\n    certificate-authority-data: {ca}\n    server: {}\n  name: \"\"\n\
             contexts: null\ncurrent-context: \"\"\nkind: Config\npreferences: {{}}\nusers: null\n",
            self.server
        );
        let mut data = json!({});
        for token in tokens {
            let (id, secret) = token.split_once('.').unwrap_or((token, ""));
            let signature = discovery::sign(kubeconfig.as_bytes(), id, secret.as_bytes());
            data[format!("jws-kubeconfig-{id}")] = json!(signature);
        }
        data["kubeconfig"] = json!(kubeconfig);
        self.set_cluster_info(Some(
            json!({ "kind": "ConfigMap", "apiVersion": "v1", "metadata": { "name": "cluster-info" }, "data": data }),
        ));
    }

    /// Puts any ConfigMap, or none, in cluster-info's place.
    pub fn set_cluster_info(&self, config_map: Option<Value>) {
        *self.shared.cluster_info.lock() = config_map;
    }

    /// The ConfigMap as it is.
    #[must_use]
    pub fn cluster_info(&self) -> Option<Value> {
        self.shared.cluster_info.lock().clone()
    }
}

fn shared(pki: &TestPki) -> Arc<ServerState> {
    Arc::new(ServerState {
        api: Lock::default(),
        authn: Authenticator::new(pki.clients()),
        faults: Lock::default(),
        seen: Lock::default(),
        cluster_info: Lock::default(),
        plain_lists: Lock::new(false),
        tls: Lock::new(pki.server_config(&["localhost", "127.0.0.1"], Validity::default())),
        connections: Lock::new(0),
        open: watch::Sender::new(0),
        reviews: ReviewLoad::default(),
        // As kube-apiserver.
        streams: Lock::new(100),
        changed: watch::Sender::new(0),
        cut: watch::Sender::new(0),
    })
}

fn serve<S: AsyncRead + AsyncWrite + Unpin + Send + 'static>(shared: Arc<ServerState>, stream: S) {
    let mut cut = shared.cut.subscribe();
    tokio::spawn(async move {
        let acceptor = TlsAcceptor::from(Arc::clone(&*shared.tls.lock()));
        let Ok(stream) = acceptor.accept(stream).await else { return };
        let shown = stream.get_ref().1.peer_certificates();
        let shown = Arc::new(shown.and_then(|chain| chain.first()).map(|c| c.clone().into_owned()));
        let number = {
            let mut connections = shared.connections.lock();
            *connections += 1;
            *connections
        };
        shared.open.send_modify(|n| *n += 1);
        let handling = Arc::clone(&shared);
        let service = hyper::service::service_fn(move |request| {
            let (shared, shown) = (Arc::clone(&handling), Arc::clone(&shown));
            async move { answer(&shared, shown.as_ref().as_ref(), number, request).await }
        });
        let agreed = stream.get_ref().1.alpn_protocol() == Some(b"h2");
        let stream = TokioIo::new(stream);
        let connection = async {
            if agreed {
                let server = hyper::server::conn::http2::Builder::new(TokioExecutor::new())
                    .max_header_list_size(1 << 20)
                    .max_concurrent_streams(*shared.streams.lock())
                    .serve_connection(stream, service);
                return server.await;
            }
            hyper::server::conn::http1::Builder::new().serve_connection(stream, service).await
        };
        tokio::select! {
            // Dropping the connection is what cutting means.
            _ = connection => {}
            _ = cut.changed() => {}
        }
        shared.open.send_modify(|n| *n -= 1);
    });
}

fn whole(code: u16, value: impl Into<Bytes>) -> Response<Body> {
    let body = Full::new(value.into()).map_err(|never| match never {}).boxed_unsync();
    let mut response = Response::new(body);
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::INTERNAL_SERVER_ERROR);
    response
}

fn refusal(status: &Status) -> Response<Body> {
    let mut response = whole(status.code, status.body().to_string());
    if let Some(seconds) = status.retry_after_s {
        response.headers_mut().insert(hyper::header::RETRY_AFTER, seconds.into());
    }
    response
}

async fn answer(
    shared: &Arc<ServerState>,
    shown: Option<&CertificateDer<'static>>,
    connection: u64,
    request: Request<Incoming>,
) -> Result<Response<Body>, std::io::Error> {
    let header = |name| request.headers().get(name).and_then(|v| v.to_str().ok()).map(ToOwned::to_owned);
    let (who, name) = shared.authn.caller(shown, header(hyper::header::AUTHORIZATION).as_deref());
    let path = request.uri().path_and_query().map(ToString::to_string).unwrap_or_default();
    shared.seen.lock().push(RecordedRequest {
        method: request.method().to_string(),
        path: path.clone(),
        user_agent: header(hyper::header::USER_AGENT).unwrap_or_default(),
        who: name,
        connection,
    });
    let fault = {
        let mut faults = shared.faults.lock();
        faults.iter().position(|(part, _)| path.contains(part.as_str())).and_then(|at| faults.remove(at))
    };
    let (parts, body) = request.into_parts();
    let body = body.collect().await.map_err(std::io::Error::other)?.to_bytes();
    shared.reviews.take_time(parts.uri.path()).await;
    let respond = || {
        let query = parts.uri.query().unwrap_or_default();
        respond(shared, &who, &parts.method, (parts.uri.path(), query), &body)
    };
    match fault.map(|(_, fault)| fault) {
        None => Ok(respond()),
        Some(Fault::Refuse(code, reason, retry_after_s)) => {
            let message = format!("injected {code}");
            Ok(refusal(&Status { code, reason, message, retry_after_s }))
        }
        Some(Fault::Raw(code, body)) => Ok(whole(code, body)),
        Some(Fault::Silence) => std::future::pending().await,
        Some(Fault::DoneAndSilence) => {
            respond();
            std::future::pending().await
        }
        Some(Fault::Cut) => {
            shared.cut.send_modify(|n| *n += 1);
            std::future::pending().await
        }
        Some(Fault::Endless(code, lines)) => Ok(endless(code, lines)),
        Some(Fault::Headers(size)) => {
            let mut response = respond();
            let value =
                hyper::header::HeaderValue::try_from("x".repeat(size)).map_err(std::io::Error::other)?;
            response.headers_mut().insert("x-large", value);
            Ok(response)
        }
    }
}

fn endless(code: u16, lines: bool) -> Response<Body> {
    let piece = if lines { Bytes::from("garbage\n".repeat(512)) } else { Bytes::from(vec![b'x'; 16 * 1024]) };
    let frames = futures_util::stream::unfold((), move |()| {
        let piece = piece.clone();
        async move {
            // Others on this thread want to run, too.
            tokio::task::yield_now().await;
            Some((Ok(hyper::body::Frame::data(piece)), ()))
        }
    });
    let mut response = Response::new(BodyExt::boxed_unsync(http_body_util::StreamBody::new(frames)));
    *response.status_mut() = StatusCode::from_u16(code).unwrap_or(StatusCode::OK);
    response
}

/// The answer to a review, if the path is one's.
fn review(shared: &ServerState, path: &str, body: &[u8]) -> Option<Response<Body>> {
    let mut api = shared.api();
    let answer = match path {
        "/apis/authentication.k8s.io/v1/tokenreviews" => {
            serde_json::from_slice(body).map(|review| json!(api.reviews.token(review)))
        }
        "/apis/authorization.k8s.io/v1/subjectaccessreviews" => {
            serde_json::from_slice(body).map(|review| json!(api.reviews.access(review)))
        }
        _ => return None,
    };
    Some(match answer {
        Ok(review) => whole(201, review.to_string()),
        Err(error) => refusal(&Status::bad_request(&error.to_string())),
    })
}

fn respond(
    shared: &Arc<ServerState>,
    caller: &Caller,
    method: &hyper::Method,
    (path, query): (&str, &str),
    body: &[u8],
) -> Response<Body> {
    let no = |code, reason, message: &str| {
        refusal(&Status { code, reason, message: message.to_owned(), retry_after_s: None })
    };
    // Before anything is shown, even to anybody: who shows something must be known by it.
    if matches!(caller, Caller::Unknown) {
        return no(401, "Unauthorized", "Unauthorized");
    }
    if path == "/healthz" {
        return whole(200, "ok");
    }
    if path == "/api/v1/namespaces/kube-public/configmaps/cluster-info" {
        return match &*shared.cluster_info.lock() {
            Some(config_map) => whole(200, config_map.to_string()),
            None => whole(404, r#"{"kind":"Status","code":404,"reason":"NotFound","message":"not found"}"#),
        };
    }
    let Caller::Known(who) = caller else {
        return no(403, "Forbidden", "forbidden: the user cannot do anything");
    };
    if let Some(answer) = review(shared, path, body) {
        return answer;
    }
    let outcome = route(method, path, query, body).and_then(|wanted| match wanted {
        RequestTarget::One(key, verb) => {
            let created = matches!(verb, agent_sim::fake_api::Verb::Create(_));
            let object = shared.api().serve(now(), who, &key, &verb)?;
            shared.changed.send_modify(|n| *n += 1);
            Ok(whole(if created { 201 } else { 200 }, object.to_string()))
        }
        RequestTarget::List(resource, selector) => {
            let api = shared.api();
            api.may_watch(who, resource, &selector)?;
            let (items, version) = api.list(resource, &selector);
            let list = json!({
                "kind": format!("{}List", resource.kind()), "apiVersion": resource.api_version(),
                "metadata": { "resourceVersion": version.to_string() }, "items": items,
            });
            Ok(whole(200, list.to_string()))
        }
        RequestTarget::Watch(resource, selector, options) => {
            shared.api().may_watch(who, resource, &selector)?;
            if options.initial && *shared.plain_lists.lock() {
                return Err(Status {
                    code: 422,
                    reason: "Invalid",
                    message: "sendInitialEvents: Forbidden".to_owned(),
                    retry_after_s: None,
                });
            }
            Ok(Response::new(watching::body(shared, resource, selector, &options)))
        }
    });
    outcome.unwrap_or_else(|status| refusal(&status))
}
