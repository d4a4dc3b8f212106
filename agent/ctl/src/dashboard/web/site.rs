//! The page as HTTP: who may have it, what it may load, and its connections.
//!
//! In: the latest state. Out: the page, its events (Server-Sent Events) and the picture of the boot. Invariants: a request without the
//! secret in its path gets nothing, and neither does one for a host that is not this address: a name of a stranger may lead here (DNS
//! rebinding); GET is the only method; the page loads nothing from elsewhere, and runs only the script that this program has in it;
//! at most [`CONNECTIONS_MAX`] connections are open.

use std::convert::Infallible;
use std::io;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use hyper::body::{Body, Bytes, Frame, Incoming, SizeHint};
use hyper::header::{self, HeaderValue};
use hyper::server::conn::http1;
use hyper::service::service_fn;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::{TokioIo, TokioTimer};
use orlop_config::base64;
use ring::digest::{SHA256, digest};
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::task::JoinSet;
use tokio::time::{Instant, sleep_until};

use super::state::PageState;

/// The page; [`STATE`] in it becomes the state at the time of the request.
const PAGE: &str = include_str!("page.html");
const STATE: &str = "@STATE@";
/// Open connections: a page has one for its events, and one or two for the rest.
const CONNECTIONS_MAX: usize = 32;
/// From a connection's start, or the end of a request, to the end of the next one's head.
const HEAD_LIMIT: Duration = Duration::from_secs(10);
/// Bytes of a head.
const HEAD_BYTES_MAX: usize = 16 << 10;
/// Pause after a connection that could not be accepted, such as one for which there is no descriptor.
const RETRY: Duration = Duration::from_secs(1);
/// The port that browsers do not name.
const HTTP_PORT: u16 = 80;
/// Headers of each answer; the policy is the other one.
const HEADERS: [(&str, &str); 5] = [
    ("cache-control", "no-store"),
    ("cross-origin-resource-policy", "same-origin"),
    ("referrer-policy", "no-referrer"),
    ("x-content-type-options", "nosniff"),
    ("x-frame-options", "DENY"),
];

/// The latest state.
#[derive(Debug)]
pub(super) struct Published {
    document: Arc<str>,
    picture: Bytes,
}

impl Published {
    /// The state as it is now.
    pub(super) fn of(state: &PageState) -> Published {
        Published { document: state.document().into(), picture: state.picture().into() }
    }
}

/// What a request is for.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum PageRoute {
    Page,
    Events,
    Picture,
}

/// What is served, and at which address.
pub(super) struct Site {
    token: String,
    /// Values of the header `Host`.
    authorities: Vec<String>,
    policy: HeaderValue,
    latest: watch::Receiver<Published>,
}

impl Site {
    /// The site of an address, whose secret is `token`.
    pub(super) fn new(address: SocketAddr, token: String, latest: watch::Receiver<Published>) -> Site {
        let port = address.port();
        let mut authorities = vec![address.to_string(), format!("localhost:{port}")];
        if port == HTTP_PORT {
            let names = authorities.iter().filter_map(|name| name.strip_suffix(":80"));
            let short: Vec<String> = names.map(str::to_owned).collect();
            authorities.extend(short);
        }
        Site { token, authorities, policy: policy(PAGE), latest }
    }

    /// The address of the page.
    pub(super) fn url(&self) -> String {
        format!("http://{}/{}/", self.authorities.first().map_or("", String::as_str), self.token)
    }

    /// What a request is for, or the refusal.
    fn route<B>(&self, request: &Request<B>) -> Result<PageRoute, StatusCode> {
        let is_own =
            |host: &[u8]| self.authorities.iter().any(|own| host.eq_ignore_ascii_case(own.as_bytes()));
        let mut hosts = request.headers().get_all(header::HOST).iter();
        let (Some(host), None) = (hosts.next(), hosts.next()) else {
            return Err(StatusCode::BAD_REQUEST);
        };
        let authority = request.uri().authority();
        if !is_own(host.as_bytes()) || authority.is_some_and(|named| !is_own(named.as_str().as_bytes())) {
            return Err(StatusCode::MISDIRECTED_REQUEST);
        }
        let path = request.uri().path();
        let (token, rest) =
            path.strip_prefix('/').and_then(|path| path.split_once('/')).ok_or(StatusCode::NOT_FOUND)?;
        if !is_same(token.as_bytes(), self.token.as_bytes()) {
            return Err(StatusCode::NOT_FOUND);
        }
        let route = match rest {
            "" => PageRoute::Page,
            "events" => PageRoute::Events,
            "boot.svg" => PageRoute::Picture,
            _ => return Err(StatusCode::NOT_FOUND),
        };
        if request.method() == Method::GET { Ok(route) } else { Err(StatusCode::METHOD_NOT_ALLOWED) }
    }

    fn answer<B>(&self, request: &Request<B>) -> Response<PageBody> {
        let (status, kind, body) = match self.route(request) {
            Ok(PageRoute::Page) => (StatusCode::OK, "text/html; charset=utf-8", self.page()),
            Ok(PageRoute::Events) => {
                let mut latest = self.latest.clone();
                // The state as it is comes at once.
                latest.mark_changed();
                (StatusCode::OK, "text/event-stream", PageBody::Events(following(latest)))
            }
            Ok(PageRoute::Picture) => {
                let picture = self.latest.borrow().picture.clone();
                let status = if picture.is_empty() { StatusCode::NOT_FOUND } else { StatusCode::OK };
                (status, "image/svg+xml", PageBody::Whole(Some(picture)))
            }
            Err(status) => {
                let text = format!("{status}\n");
                (status, "text/plain; charset=utf-8", PageBody::Whole(Some(text.into())))
            }
        };
        let mut response = Response::new(body);
        *response.status_mut() = status;
        let headers = response.headers_mut();
        headers.insert(header::CONTENT_SECURITY_POLICY, self.policy.clone());
        headers.insert(header::CONTENT_TYPE, HeaderValue::from_static(kind));
        for (name, value) in HEADERS {
            headers.insert(name, HeaderValue::from_static(value));
        }
        response
    }

    fn page(&self) -> PageBody {
        let document = Arc::clone(&self.latest.borrow().document);
        PageBody::Whole(Some(PAGE.replacen(STATE, &document, 1).into()))
    }
}

/// Whether two texts are the same; how long that takes says nothing of where they differ.
fn is_same(one: &[u8], other: &[u8]) -> bool {
    one.len() == other.len() && one.iter().zip(other).fold(0_u8, |found, (a, b)| found | (a ^ b)) == 0
}

/// What the page may load and run: its own style and script, by their digests, and this address.
fn policy(page: &str) -> HeaderValue {
    let digest_of = |element: &str| {
        let (start, end) = (format!("<{element}>"), format!("</{element}>"));
        let inside = page.split_once(&start).and_then(|(_, rest)| rest.split_once(&end));
        let inside = inside.map_or("", |(inside, _)| inside);
        base64::encode(digest(&SHA256, inside.as_bytes()).as_ref())
    };
    let text = format!(
        "default-src 'none'; script-src 'sha256-{}'; style-src 'sha256-{}'; img-src 'self'; connect-src 'self'; \
         base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
        digest_of("script"),
        digest_of("style")
    );
    // The text has no character that a header may not have; else nothing runs.
    HeaderValue::try_from(text).unwrap_or_else(|_| HeaderValue::from_static("default-src 'none'"))
}

/// A change that has not come yet: the document, and where the next one comes from.
type NextDocument = Pin<Box<dyn Future<Output = Option<(Arc<str>, watch::Receiver<Published>)>> + Send>>;

fn following(mut latest: watch::Receiver<Published>) -> NextDocument {
    Box::pin(async move {
        latest.changed().await.ok()?;
        let document = Arc::clone(&latest.borrow_and_update().document);
        Some((document, latest))
    })
}

/// An event of a stream; a document is one line.
fn event(document: &str) -> Bytes {
    format!("data: {document}\n\n").into()
}

/// The body of an answer.
enum PageBody {
    Whole(Option<Bytes>),
    Events(NextDocument),
}

impl Body for PageBody {
    type Data = Bytes;
    type Error = Infallible;

    fn poll_frame(
        self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Infallible>>> {
        let body = self.get_mut();
        let next = match body {
            PageBody::Whole(bytes) => return Poll::Ready(bytes.take().map(|bytes| Ok(Frame::data(bytes)))),
            PageBody::Events(next) => ready!(next.as_mut().poll(cx)),
        };
        Poll::Ready(match next {
            Some((document, latest)) => {
                *body = PageBody::Events(following(latest));
                Some(Ok(Frame::data(event(&document))))
            }
            // The program ends.
            None => {
                *body = PageBody::Whole(None);
                None
            }
        })
    }

    fn is_end_stream(&self) -> bool {
        matches!(self, PageBody::Whole(None))
    }

    fn size_hint(&self) -> SizeHint {
        match self {
            PageBody::Whole(bytes) => {
                let length = bytes.as_ref().map_or(0, Bytes::len);
                SizeHint::with_exact(u64::try_from(length).unwrap_or(u64::MAX))
            }
            PageBody::Events(_) => SizeHint::default(),
        }
    }
}

/// Takes connections for ever.
pub(super) async fn serve(listener: &TcpListener, site: &Arc<Site>) -> Infallible {
    let mut open = JoinSet::new();
    loop {
        // Cancel-safe: a connection that was not taken stays in the listener's queue, an end in the set.
        tokio::select! {
            accepted = listener.accept(), if open.len() < CONNECTIONS_MAX => match accepted {
                Ok((stream, _)) => {
                    open.spawn(connection(stream, Arc::clone(site)));
                }
                // The client went away while it waited.
                Err(error) if error.kind() == io::ErrorKind::ConnectionAborted => {}
                Err(_) => sleep_until(Instant::now() + RETRY).await,
            },
            Some(_) = open.join_next() => {}
        }
    }
}

async fn connection(stream: TcpStream, site: Arc<Site>) {
    let service = service_fn(move |request: Request<Incoming>| {
        std::future::ready(Ok::<_, Infallible>(site.answer(&request)))
    });
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(HEAD_LIMIT)
        .max_buf_size(HEAD_BYTES_MAX)
        .serve_connection(TokioIo::new(stream), service);
    // An error is the client's: it broke off, was too slow, or spoke no HTTP.
    let _ = connection.await;
}

#[cfg(test)]
mod tests;
