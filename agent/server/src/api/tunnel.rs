//! An upgraded connection, led through to the runtime's streaming server byte by byte.
//!
//! ```text
//! client ─ upgrade ─► node ─ the same upgrade ─► runtime (loopback)
//!    ▲  101, its headers ◄──────────────────────────┘
//!    └─────────────── bytes, both ways ─────────────┘  until the runtime ends, or nothing moves for the idle time
//! ```
//! In: the client's request, the URL that the runtime gave. Out: the runtime's answer; if that is 101, a task that moves
//! bytes. Invariants: this module does not look into the protocols (SPDY/3.1, WebSocket); a client that closes its half
//! closes the runtime's, and still receives; the runtime's end is the stream's, also if the client still sends; memory
//! is two buffers a connection.

use std::sync::Arc;
use std::time::Duration;

use bytes::Bytes;
use http_body_util::{BodyExt, Empty, Limited};
use hyper::body::Incoming;
use hyper::client::conn::http1;
use hyper::header::{HOST, HeaderMap, HeaderValue};
use hyper::{Method, Request, Response, StatusCode, Uri};
use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;

use crate::body::{Body, text, whole};
use crate::https::Spawn;
use crate::moving::{Moving, linger, quiet};

/// For the runtime's answer to the upgrade.
pub(super) const ANSWER: Duration = Duration::from_secs(30);
const BUFFER_BYTES: usize = 16 * 1024;
/// Of a runtime's refusal only the beginning matters.
const REFUSAL_MAX: usize = 64 * 1024;

/// Passes the request on to `url` and connects what comes after the upgrade.
pub(super) async fn lead(
    client: Request<Incoming>,
    url: &str,
    idle: Duration,
    spawner: Arc<dyn Spawn>,
) -> Response<Body> {
    match timeout(ANSWER, upgrade(client, url, idle, spawner)).await {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => {
            tracing::warn!(problem, "a stream could not be led to the runtime");
            text(StatusCode::BAD_GATEWAY, format!("{problem}\n"))
        }
        Err(_) => text(StatusCode::GATEWAY_TIMEOUT, "the runtime's streaming server does not answer\n"),
    }
}

async fn upgrade(
    mut client: Request<Incoming>,
    url: &str,
    idle: Duration,
    spawner: Arc<dyn Spawn>,
) -> Result<Response<Body>, String> {
    let on_client = hyper::upgrade::on(&mut client);
    let (parts, _body) = client.into_parts();
    let mut headers = parts.headers;
    // Who the client is to the node is no business of the runtime's.
    headers.remove(hyper::header::AUTHORIZATION);
    let mut answer = ask(url, parts.method, headers, &*spawner).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refused(answer).await);
    }
    let on_runtime = hyper::upgrade::on(&mut answer);
    let mut response = switching();
    *response.headers_mut() = answer.headers().clone();
    spawner.spawn(Box::pin(async move {
        let (Ok(client), Ok(runtime)) = tokio::join!(on_client, on_runtime) else { return };
        join(TokioIo::new(client), TokioIo::new(runtime), idle).await;
    }));
    Ok(response)
}

/// 101, without headers.
pub(super) fn switching() -> Response<Body> {
    let mut response = Response::new(Empty::new().map_err(|never| match never {}).boxed_unsync());
    *response.status_mut() = StatusCode::SWITCHING_PROTOCOLS;
    response
}

/// Sends a request without a body to the runtime's streaming server.
///
/// # Errors
/// Why there is no answer.
pub(super) async fn ask(
    url: &str,
    method: Method,
    headers: HeaderMap,
    spawner: &dyn Spawn,
) -> Result<Response<Incoming>, String> {
    let url: Uri = url.parse().map_err(|e| format!("the runtime's streaming URL is none: {e}"))?;
    let authority = url.authority().ok_or("the runtime's streaming URL names no server")?.clone();
    if url.scheme_str() != Some("http") {
        return Err("the runtime's streaming server wants TLS, which is not supported".to_owned());
    }
    let address = (authority.host().trim_matches(['[', ']']).to_owned(), authority.port_u16().unwrap_or(80));
    let stream = TcpStream::connect((address.0.as_str(), address.1)).await;
    let stream = stream.map_err(|e| format!("connect to the runtime's streaming server: {e}"))?;
    // Keys that are typed must not wait for more.
    let _ = stream.set_nodelay(true);
    let said = |e: hyper::Error| format!("the runtime's streaming server: {e}");
    let (mut send, connection) = http1::handshake(TokioIo::new(stream)).await.map_err(said)?;
    spawner.spawn(Box::pin(async move {
        // The tasks that wait for the answer or for the bytes see its end.
        let _ = connection.with_upgrades().await;
    }));
    let target = url.path_and_query().map_or("/", |p| p.as_str());
    let request = Request::builder().method(method).uri(target).body(Empty::<Bytes>::new());
    let mut request = request.map_err(|e| e.to_string())?;
    *request.headers_mut() = headers;
    let host = HeaderValue::try_from(authority.as_str()).map_err(|e| e.to_string())?;
    request.headers_mut().insert(HOST, host);
    send.send_request(request).await.map_err(said)
}

pub(super) async fn refused(answer: Response<Incoming>) -> Response<Body> {
    let status = answer.status();
    whole(status, "text/plain; charset=utf-8", refusal(answer).await)
}

/// The runtime's words.
pub(super) async fn refusal(answer: Response<Incoming>) -> Bytes {
    let body = Limited::new(answer.into_body(), REFUSAL_MAX).collect().await;
    body.map(|b| b.to_bytes()).unwrap_or_default()
}

/// Moves bytes until the runtime has said all, the client breaks off or takes no more, or nothing has moved for `idle`. A
/// client that has closed its half still hears; a runtime that has closed its own has nothing more to do with what the client
/// sends, however much that is (upstream ends a stream when either half ends).
async fn join<C, R>(client: C, runtime: R, idle: Duration)
where
    C: AsyncRead + AsyncWrite + Unpin,
    R: AsyncRead + AsyncWrite + Unpin,
{
    let (moved, seen) = watch::channel(());
    let (mut client_reads, client_writes) = split(Moving::new(client, moved));
    let (runtime_reads, runtime_writes) = split(runtime);
    let has_all = {
        let up = async {
            if pass(&mut client_reads, runtime_writes).await != DirectionEnd::Broken {
                // A runtime that takes no more may still have something to say.
                std::future::pending().await
            }
        };
        tokio::select! {
            ended = pass(runtime_reads, client_writes) => ended != DirectionEnd::Refused,
            () = up => false,
            () = quiet(seen, idle) => {
                tracing::debug!("a stream was idle for too long");
                false
            }
        }
    };
    if has_all {
        linger(client_reads).await;
    }
}

/// How one direction ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum DirectionEnd {
    /// Its sender closed its half, and the receiver knows.
    Closed,
    /// Its sender broke off.
    Broken,
    /// Its receiver takes no more.
    Refused,
}

async fn pass(mut from: impl AsyncRead + Unpin, mut to: impl AsyncWrite + Unpin) -> DirectionEnd {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        let (bytes, ended) = match from.read(&mut buffer).await {
            Ok(read) if read > 0 => (&buffer[..read], None),
            Ok(_) => (&buffer[..0], Some(DirectionEnd::Closed)),
            Err(_) => (&buffer[..0], Some(DirectionEnd::Broken)),
        };
        let taken = match ended {
            None => to.write_all(bytes).await.is_ok() && to.flush().await.is_ok(),
            Some(_) => to.shutdown().await.is_ok(),
        };
        match ended {
            _ if !taken => return DirectionEnd::Refused,
            Some(ended) => return ended,
            None => {}
        }
    }
}

#[cfg(test)]
pub(super) mod tests;
