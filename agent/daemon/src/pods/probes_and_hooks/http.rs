//! GET requests to containers: one connection each, no proxy, no verification of certificates, bodies cut off. The same
//! client asks the server of `staticPodURL`, whose certificate it verifies.
//!
//! In: an [`HttpGet`]. Out: status and the beginning of the body, or a failure in upstream's words. The client follows
//! redirects to the same host only, ten at most. Upstream: pkg/probe/http.

use std::time::Duration;

use agent_core::probe::Outcome;
use agent_core::probe::check::{HttpGet, Scheme};
use anyhow::Context;
use bytes::Bytes;
use http_body_util::{BodyExt, Empty};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{ACCEPT, CONNECTION, HOST, HeaderMap, HeaderName, HeaderValue, LOCATION, USER_AGENT};
use hyper::{Request, Response};
use hyper_util::rt::TokioIo;
use rustls::pki_types::ServerName;
use tokio::io::{AsyncRead, AsyncWrite};
use tokio::time::timeout;
use tokio_rustls::TlsConnector;

use super::names::Names;
use super::{ANSWER_BYTES_MAX, net, tls};

/// `User-Agent` of probes.
pub const PROBE_AGENT: &str = "kube-probe/1.36";
/// Redirects after which it is enough, the first request counted.
const REDIRECTS_MAX: usize = 10;

/// Why there is no answer.
#[derive(Debug, thiserror::Error)]
pub enum HttpError {
    /// No request was answered.
    #[error("Get {url:?}: {message}")]
    Get {
        /// URL of the last request.
        url: String,
        /// The failure.
        message: String,
    },
    /// The server does not speak TLS.
    #[error("Get {url:?}: http: server gave HTTP response to HTTPS client")]
    NoTls {
        /// URL of the last request.
        url: String,
    },
    /// The body ended before its end.
    #[error("{0}")]
    Body(String),
}

impl HttpError {
    /// The failure, without the URL.
    #[must_use]
    pub fn reason(&self) -> &str {
        match self {
            HttpError::Get { message, .. } | HttpError::Body(message) => message,
            HttpError::NoTls { .. } => "http: server gave HTTP response to HTTPS client",
        }
    }
}

/// An answer.
#[derive(Debug)]
pub struct HttpResponse {
    /// Status code of the last answer.
    pub status: u16,
    /// The first bytes of its body, [`ANSWER_BYTES_MAX`] of a container's.
    pub body: Vec<u8>,
}

/// Sends one request to a server whose certificate is verified. The headers are secret and go to no other server, so a
/// redirect counts as the answer. Reads at most `body_max` bytes of the body.
///
/// # Errors
/// [`HttpError`], which names no headers; the machine's certificate authorities cannot be read.
pub(crate) async fn fetch(get: &HttpGet, agent: &str, body_max: usize) -> Result<HttpResponse, HttpError> {
    let tls = match get.scheme {
        // Read the authorities each time: the file may change, and is too large to keep.
        Scheme::Https => agent_apiserver::machine_client()
            .map_err(|e| HttpError::Get { url: get.url(), message: e.to_string() })?,
        Scheme::Http => {
            tls::client().map_err(|e| HttpError::Get { url: get.url(), message: e.to_string() })?
        }
    };
    let client = HttpClient { tls: TlsConnector::from(tls), names: Names::of_system() };
    match client.ask(get, agent, |_| None, body_max).await? {
        RedirectStep::Answered(answer) => Ok(answer),
        RedirectStep::Redirected(next) => {
            Err(HttpError::Get { url: next.url(), message: "redirected".to_owned() })
        }
    }
}

/// Sends requests; holds no connections.
pub struct HttpClient {
    tls: TlsConnector,
    names: Names,
}

impl HttpClient {
    /// A client.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new() -> anyhow::Result<HttpClient> {
        let config = tls::client().context("set up TLS for probes")?;
        Ok(HttpClient { tls: TlsConnector::from(config), names: Names::of_system() })
    }

    /// The look-ups of host names, which all connections to containers share.
    pub(super) fn names(&self) -> &Names {
        &self.names
    }

    /// 200 to 299 is success, 300 to 399 one with a warning.
    pub(super) async fn probe(&self, get: &HttpGet, within: Duration) -> Outcome {
        let Ok(result) = timeout(within, self.get(get, PROBE_AGENT)).await else {
            return Outcome::Failure(format!(
                "Get {:?}: context deadline exceeded (Client.Timeout exceeded while awaiting headers)",
                get.url()
            ));
        };
        match result {
            Ok(HttpResponse { status: 200..=299, .. }) => Outcome::Success,
            Ok(HttpResponse { status: 300..=399, body }) => Outcome::Warning(format!(
                "Probe terminated redirects, Response body: {}",
                String::from_utf8_lossy(&body)
            )),
            Ok(HttpResponse { status, .. }) => {
                Outcome::Failure(format!("HTTP probe failed with statuscode: {status}"))
            }
            Err(error @ (HttpError::Get { .. } | HttpError::NoTls { .. })) => {
                Outcome::Failure(error.to_string())
            }
            Err(error @ HttpError::Body(_)) => Outcome::Broken(error.to_string()),
        }
    }

    /// Asks, and follows redirects.
    ///
    /// # Errors
    /// [`HttpError`]: no connection, no HTTP, a body that broke off, too many redirects.
    pub async fn get(&self, get: &HttpGet, agent: &str) -> Result<HttpResponse, HttpError> {
        let mut at = get.clone();
        for _ in 0..REDIRECTS_MAX {
            match self.once(&at, agent, &get.host).await? {
                RedirectStep::Redirected(next) => at = *next,
                RedirectStep::Answered(answer) => return Ok(answer),
            }
        }
        let message = format!("stopped after {REDIRECTS_MAX} redirects");
        Err(HttpError::Get { url: at.target, message })
    }

    async fn once(&self, get: &HttpGet, agent: &str, host: &str) -> Result<RedirectStep, HttpError> {
        let follow = |response: &Response<Incoming>| {
            let next = get.redirected(redirection(response)?)?;
            // The answer of another host says nothing about this container.
            (next.host == host).then_some(next)
        };
        self.ask(get, agent, follow, ANSWER_BYTES_MAX).await
    }

    async fn ask(
        &self,
        get: &HttpGet,
        agent: &str,
        follow: impl Fn(&Response<Incoming>) -> Option<HttpGet>,
        body_max: usize,
    ) -> Result<RedirectStep, HttpError> {
        let failed = |message: String| HttpError::Get { url: get.url(), message };
        let request = request(get, agent).map_err(failed)?;
        let stream = net::dial(&self.names, &get.host, get.port).await.map_err(failed)?;
        match get.scheme {
            Scheme::Http => exchange(stream, request, follow, failed, body_max).await,
            Scheme::Https => {
                let name = ServerName::try_from(get.host.clone()).map_err(|e| failed(e.to_string()))?;
                let stream =
                    self.tls.connect(name, stream).await.map_err(|e| match tls::is_plain_text(&e) {
                        true => HttpError::NoTls { url: get.url() },
                        false => failed(tls::words(&e)),
                    })?;
                exchange(stream, request, follow, failed, body_max).await
            }
        }
    }
}

enum RedirectStep {
    Redirected(Box<HttpGet>),
    Answered(HttpResponse),
}

/// Sends one request and returns the relevant parts of the response. The function also drives the connection, which
/// ends with it.
async fn exchange<S>(
    stream: S,
    request: Request<Empty<Bytes>>,
    follow: impl Fn(&Response<Incoming>) -> Option<HttpGet>,
    failed: impl Fn(String) -> HttpError,
    body_max: usize,
) -> Result<RedirectStep, HttpError>
where
    S: AsyncRead + AsyncWrite + Unpin + Send,
{
    // Names as Go writes them: there are servers that compare them by case.
    let shaken = http1::Builder::new().title_case_headers(true).handshake(TokioIo::new(stream)).await;
    let (mut sender, connection) = shaken.map_err(|e| failed(innermost(&e)))?;
    let talk = async {
        let response = sender.send_request(request).await.map_err(|e| failed(innermost(&e)))?;
        match follow(&response) {
            Some(next) => Ok(RedirectStep::Redirected(Box::new(next))),
            None => read(response, body_max).await.map(RedirectStep::Answered),
        }
    };
    tokio::pin!(talk, connection);
    tokio::select! {
        // Dropping either branch loses nothing: the other one finishes here, or no caller waits for it.
        biased;
        done = &mut talk => done,
        // The request reports the end of the connection as well.
        _ = &mut connection => talk.await,
    }
}

async fn read(response: Response<Incoming>, body_max: usize) -> Result<HttpResponse, HttpError> {
    let (status, mut incoming) = (response.status().as_u16(), response.into_body());
    let mut body = Vec::new();
    while body.len() < body_max {
        match incoming.frame().await {
            None => break,
            Some(Err(error)) => return Err(HttpError::Body(innermost(&error))),
            Some(Ok(frame)) => {
                if let Some(data) = frame.data_ref() {
                    let room = body_max - body.len();
                    body.extend_from_slice(&data[..data.len().min(room)]);
                }
            }
        }
    }
    Ok(HttpResponse { status, body })
}

/// `Location` of an answer that asks to go elsewhere with the same method.
fn redirection(response: &Response<Incoming>) -> Option<&str> {
    let moved = matches!(response.status().as_u16(), 301 | 302 | 303 | 307 | 308);
    response.headers().get(LOCATION).filter(|_| moved)?.to_str().ok()
}

fn request(get: &HttpGet, agent: &str) -> Result<Request<Empty<Bytes>>, String> {
    if get.is_opaque() {
        return Err("http: no Host in request URL".to_owned());
    }
    let mut headers = HeaderMap::new();
    for (name, value) in &get.headers {
        let bad = |_| format!("net/http: invalid header field {name:?}");
        let name = HeaderName::from_bytes(name.as_bytes()).map_err(|e| bad(e.to_string()))?;
        let value = HeaderValue::from_bytes(value.as_bytes()).map_err(|e| bad(e.to_string()))?;
        headers.append(name, value);
    }
    for (name, default) in [(USER_AGENT, agent), (ACCEPT, "*/*")] {
        match headers.get(&name).map(HeaderValue::is_empty) {
            None => drop(headers.insert(name, HeaderValue::from_str(default).map_err(|e| e.to_string())?)),
            // An empty value removes the header.
            Some(true) => drop(headers.remove(name)),
            Some(false) => {}
        }
    }
    if headers.get(HOST).is_none_or(HeaderValue::is_empty) {
        let host = HeaderValue::from_str(&get.authority()).map_err(|e| e.to_string())?;
        headers.insert(HOST, host);
    }
    headers.insert(CONNECTION, HeaderValue::from_static("close"));
    let mut request = Request::get(&get.target).body(Empty::new()).map_err(|e| e.to_string())?;
    *request.headers_mut() = headers;
    Ok(request)
}

/// The innermost message: hyper's own message names the part of the protocol, its source the cause.
fn innermost(error: &hyper::Error) -> String {
    let mut words: &dyn std::error::Error = error;
    while let Some(source) = words.source() {
        words = source;
    }
    words.to_string()
}
