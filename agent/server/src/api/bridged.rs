//! Streams whose protocol differs between client and runtime: WebSocket `v5.channel.k8s.io`, and SPDY within
//! WebSocket (KEP-4006).
//!
//! ```text
//! client ─ WebSocket ─► node: agent_kubelet_api::streaming::{channels, tunnel} ─ SPDY/3.1 ─► runtime (loopback)
//! ```
//! In: the client's request, the URL from the runtime. Out: 101, and a task that moves bytes. Invariants: a
//! direction reads again only after it has written its last bytes, so memory is four buffers of 16 KiB a
//! stream; a blocked direction does not block the other one; a command whose outputs have ended does not hold
//! its client for ever. Core decides about protocols.

use std::pin::pin;
use std::time::Duration;

use agent_kubelet_api::streaming::channels::{self, Translator};
use agent_kubelet_api::streaming::tunnel::{PREFIX, Tunnel};
use agent_kubelet_api::streaming::upgrade::UpgradeRequest;
use agent_kubelet_api::streaming::{Bridge, StreamOptions};
use agent_types::lock::Lock;
use base64::Engine as _;
use base64::engine::general_purpose::STANDARD;
use hyper::body::Incoming;
use hyper::header::{
    CONNECTION, HeaderMap, HeaderName, HeaderValue, SEC_WEBSOCKET_ACCEPT, SEC_WEBSOCKET_KEY,
    SEC_WEBSOCKET_PROTOCOL, SEC_WEBSOCKET_VERSION, UPGRADE,
};
use hyper::upgrade::OnUpgrade;
use hyper::{Method, Request, Response, StatusCode};
use hyper_util::rt::TokioIo;
use ring::digest::{SHA1_FOR_LEGACY_USE_ONLY, digest};
use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, AsyncWriteExt, split};
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use super::Streams;
use super::tunnel::{ANSWER, ask, refusal, refused, switching};
use crate::body::{Body, text};
use crate::https::Spawn;
use crate::moving::{linger, quiet};

/// Names the protocol within SPDY.
const STREAM_PROTOCOL: HeaderName = HeaderName::from_static("x-stream-protocol-version");
const SPDY: HeaderValue = HeaderValue::from_static("SPDY/3.1");
/// RFC 6455, 1.3.
const ACCEPT_SALT: &str = "258EAFA5-E914-47DA-95CA-C5AB0DC85B11";
const BUFFER_BYTES: usize = 16 * 1024;
/// How long a runtime may leave input untaken once the command's outputs have ended, before its word on how the command
/// ended is waited for no more. containerd leaves it for ever where a command ends without reading all of its input; the
/// daemon frees it within a few seconds (`exec_inputs`), and then the word arrives. This is for what else may hold it
/// back.
const UNTAKEN: Duration = Duration::from_secs(10);

/// What a request's headers ask for.
pub(super) fn wish(headers: &HeaderMap) -> UpgradeRequest<'_> {
    let text = |name: HeaderName| headers.get(name).and_then(|v| v.to_str().ok()).unwrap_or_default();
    UpgradeRequest {
        connection: text(CONNECTION),
        upgrade: text(UPGRADE),
        protocols: text(SEC_WEBSOCKET_PROTOCOL),
    }
}

/// Exec or attach: the client gets its WebSocket, and hears there what becomes of its wish.
pub(super) fn translated(
    mut client: Request<Incoming>,
    url: String,
    options: &StreamOptions,
    streams: Streams,
) -> Response<Body> {
    let response = match opened(&client, Some(channels::PROTOCOL)) {
        Ok(response) => response,
        Err(problem) => return text(StatusCode::BAD_REQUEST, format!("{problem}\n")),
    };
    let on_client = hyper::upgrade::on(&mut client);
    let mut translator = Translator::new(options);
    let Streams { idle, spawner, .. } = streams;
    let carrier = spawner.clone();
    spawner.spawn(Box::pin(async move {
        let Ok(client) = on_client.await else { return };
        let client = TokioIo::new(client);
        let mut first = Vec::new();
        translator.greet(&mut first);
        let runtime = async {
            let on_runtime = spdy_to(&url, &*carrier).await?;
            on_runtime.await.map_err(|e| format!("the runtime's streaming server: {e}"))
        };
        let runtime = timeout(ANSWER, runtime).await;
        match runtime.unwrap_or_else(|_| Err("the runtime's streaming server does not answer".to_owned())) {
            Ok(runtime) => carry(translator, client, TokioIo::new(runtime), first, idle).await,
            Err(problem) => {
                tracing::warn!(problem, "a stream could not be led to the runtime");
                translator.fail(&problem, &mut first);
                last_words(client, &first).await;
            }
        }
    }));
    response
}

/// Port-forward: the runtime is asked first, its refusal is the client's answer.
pub(super) async fn tunnelled(
    client: Request<Incoming>,
    url: &str,
    protocols: Vec<String>,
    streams: Streams,
) -> Response<Body> {
    match timeout(ANSWER, tunnel(client, url, protocols, streams)).await {
        Ok(Ok(response)) => response,
        Ok(Err(problem)) => {
            tracing::warn!(problem, "a stream could not be led to the runtime");
            text(StatusCode::BAD_GATEWAY, format!("{problem}\n"))
        }
        Err(_) => text(StatusCode::GATEWAY_TIMEOUT, "the runtime's streaming server does not answer\n"),
    }
}

async fn tunnel(
    mut client: Request<Incoming>,
    url: &str,
    protocols: Vec<String>,
    Streams { idle, spawner, .. }: Streams,
) -> Result<Response<Body>, String> {
    if let Err(problem) = opened(&client, None) {
        return Ok(text(StatusCode::BAD_REQUEST, format!("{problem}\n")));
    }
    let headers = spdy_headers(protocols.iter().map(String::as_str))?;
    let mut answer = ask(url, Method::POST, headers, &*spawner).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        return Ok(refused(answer).await);
    }
    let chosen = answer.headers().get(STREAM_PROTOCOL).and_then(|v| v.to_str().ok());
    let chosen =
        chosen.filter(|chosen| protocols.iter().any(|p| p == chosen)).map(|p| format!("{PREFIX}{p}"));
    let response = opened(&client, chosen.as_deref())?;
    let (on_client, on_runtime) = (hyper::upgrade::on(&mut client), hyper::upgrade::on(&mut answer));
    spawner.spawn(Box::pin(async move {
        let (Ok(client), Ok(runtime)) = tokio::join!(on_client, on_runtime) else { return };
        carry(Tunnel::default(), TokioIo::new(client), TokioIo::new(runtime), Vec::new(), idle).await;
    }));
    Ok(response)
}

/// The answer that opens a WebSocket.
fn opened(client: &Request<Incoming>, protocol: Option<&str>) -> Result<Response<Body>, &'static str> {
    let header = |name: HeaderName| client.headers().get(name).and_then(|v| v.to_str().ok());
    if client.method() != Method::GET {
        return Err("a WebSocket is opened with GET");
    }
    if header(SEC_WEBSOCKET_VERSION) != Some("13") {
        return Err("missing or bad WebSocket version: 13 is the one there is");
    }
    let key = header(SEC_WEBSOCKET_KEY).ok_or("no Sec-WebSocket-Key")?.trim();
    if STANDARD.decode(key).map_or(0, |bytes| bytes.len()) != 16 {
        return Err("Sec-WebSocket-Key is not 16 bytes in base64");
    }
    let accept = STANDARD.encode(digest(&SHA1_FOR_LEGACY_USE_ONLY, format!("{key}{ACCEPT_SALT}").as_bytes()));
    let mut response = switching();
    let headers = response.headers_mut();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, HeaderValue::from_static("websocket"));
    headers.insert(SEC_WEBSOCKET_ACCEPT, HeaderValue::try_from(accept).map_err(|_| "no answer to the key")?);
    if let Some(protocol) = protocol {
        let protocol = HeaderValue::try_from(protocol).map_err(|_| "a protocol that is none")?;
        headers.insert(SEC_WEBSOCKET_PROTOCOL, protocol);
    }
    Ok(response)
}

fn spdy_headers<'a>(protocols: impl IntoIterator<Item = &'a str>) -> Result<HeaderMap, String> {
    let mut headers = HeaderMap::new();
    headers.insert(CONNECTION, HeaderValue::from_static("Upgrade"));
    headers.insert(UPGRADE, SPDY);
    for protocol in protocols {
        headers.append(STREAM_PROTOCOL, HeaderValue::try_from(protocol).map_err(|e| e.to_string())?);
    }
    Ok(headers)
}

/// A connection to the runtime that speaks SPDY.
async fn spdy_to(url: &str, spawner: &dyn Spawn) -> Result<OnUpgrade, String> {
    let protocol = channels::RUNTIME_PROTOCOL;
    let mut answer = ask(url, Method::POST, spdy_headers([protocol])?, spawner).await?;
    if answer.status() != StatusCode::SWITCHING_PROTOCOLS {
        let status = answer.status();
        let words = refusal(answer).await;
        return Err(format!(
            "unable to upgrade connection: {status}: {}",
            String::from_utf8_lossy(&words).trim()
        ));
    }
    let chosen = answer.headers().get(STREAM_PROTOCOL).and_then(|v| v.to_str().ok());
    if chosen != Some(protocol) {
        return Err(format!("the runtime's streaming server speaks {chosen:?} instead of {protocol}"));
    }
    Ok(hyper::upgrade::on(&mut answer))
}

/// What both directions share.
struct BridgeInner<B> {
    bridge: Lock<B>,
    /// Something is due to the client, or to the runtime, that came from itself.
    to_client: Notify,
    to_runtime: Notify,
    /// The runtime has taken all streams.
    open: watch::Sender<bool>,
    moved: watch::Sender<()>,
    /// Something is being written to the runtime.
    writing: watch::Sender<bool>,
    /// The runtime's word is waited for no more.
    given_up: Notify,
}

/// Moves bytes until the client has all of them, one side breaks off, or nothing has moved for `idle`. `to_client` is
/// sent first.
pub(super) async fn carry<B, C, R>(bridge: B, client: C, runtime: R, to_client: Vec<u8>, idle: Duration)
where
    B: Bridge,
    C: AsyncRead + AsyncWrite + Send,
    R: AsyncRead + AsyncWrite + Send,
{
    let (moved, seen) = watch::channel(());
    let shared = BridgeInner {
        bridge: Lock::new(bridge),
        to_client: Notify::new(),
        to_runtime: Notify::new(),
        open: watch::channel(false).0,
        moved,
        writing: watch::channel(false).0,
        given_up: Notify::new(),
    };
    let (mut client_reads, client_writes) = split(client);
    let (runtime_reads, runtime_writes) = split(runtime);
    let is_told = {
        let mut up = pin!(up(&shared, &mut client_reads, runtime_writes));
        let down = down(&shared, runtime_reads, client_writes, to_client);
        tokio::select! {
            told = down => told,
            () = up.as_mut() => false,
            () = untaken(&shared) => false,
            () = quiet(seen, idle) => {
                tracing::debug!("a stream was idle for too long");
                false
            }
        }
    };
    if is_told {
        linger(client_reads).await;
    }
}

/// Client to runtime. Returns when the client has gone.
async fn up<B: Bridge>(
    shared: &BridgeInner<B>,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
) {
    let mut out = Vec::new();
    shared.bridge.lock().begin(&mut out);
    let mut takes = send(&mut to, &mut out).await;
    // An error cannot come: the sender is shared.
    let _ = shared.open.subscribe().wait_for(|open| *open).await;
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(read) if read > 0 => {
                    shared.moved.send_replace(());
                    shared.bridge.lock().client_sent(&mut buffer[..read], &mut out);
                }
                _ => return,
            },
            () = shared.to_runtime.notified() => {}
        }
        shared.bridge.lock().due_to_runtime(&mut out);
        // A runtime that takes no more may still have something to say.
        shared.writing.send_replace(true);
        takes = takes && send(&mut to, &mut out).await;
        shared.writing.send_replace(false);
        out.clear();
        shared.to_client.notify_one();
    }
}

/// Runtime to client. Returns true when the client has all bytes, or false when it takes no more.
async fn down<B: Bridge>(
    shared: &BridgeInner<B>,
    mut from: impl AsyncRead + Unpin,
    mut to: impl AsyncWrite + Unpin,
    mut out: Vec<u8>,
) -> bool {
    let mut buffer = vec![0; BUFFER_BYTES];
    loop {
        shared.bridge.lock().due_to_client(&mut out);
        if !send(&mut to, &mut out).await {
            return false;
        }
        let (is_open, is_done) = {
            let bridge = shared.bridge.lock();
            (bridge.is_open(), bridge.is_done())
        };
        if is_done {
            return to.shutdown().await.is_ok();
        }
        shared.open.send_if_modified(|open| !std::mem::replace(open, is_open) && is_open);
        tokio::select! {
            read = from.read(&mut buffer) => match read {
                Ok(read) if read > 0 => {
                    shared.moved.send_replace(());
                    shared.bridge.lock().runtime_sent(&buffer[..read], &mut out);
                    shared.to_runtime.notify_one();
                }
                _ => shared.bridge.lock().runtime_ended(&mut out),
            },
            () = shared.to_client.notified() => {}
            () = shared.given_up.notified() => shared.bridge.lock().give_up(&mut out),
        }
    }
}

/// Gives the runtime up when it takes no input although all outputs have ended. Never returns.
async fn untaken<B: Bridge>(shared: &BridgeInner<B>) {
    let mut writing = shared.writing.subscribe();
    loop {
        // An error cannot come: the sender is shared.
        let _ = writing.wait_for(|writing| *writing).await;
        let is_taken = timeout(UNTAKEN, writing.wait_for(|writing| !*writing)).await.is_ok();
        if !is_taken && shared.bridge.lock().awaits_end() {
            tracing::warn!("the runtime does not say how a command ended whose input it does not take");
            shared.given_up.notify_one();
            return std::future::pending().await;
        }
    }
}

/// Writes and empties a buffer; false if the receiver does not take it.
async fn send(to: &mut (impl AsyncWrite + Unpin), bytes: &mut Vec<u8>) -> bool {
    let taken = bytes.is_empty() || (to.write_all(bytes).await.is_ok() && to.flush().await.is_ok());
    bytes.clear();
    taken
}

async fn last_words(client: impl AsyncRead + AsyncWrite, words: &[u8]) {
    let (reads, mut writes) = split(client);
    if writes.write_all(words).await.is_ok() && writes.shutdown().await.is_ok() {
        linger(reads).await;
    }
}

#[cfg(test)]
mod tests;
