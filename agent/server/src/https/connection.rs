//! One connection: handshake, then HTTP/2 or HTTP/1.1 as was agreed, until it ends, is idle for too long, stays a
//! stranger's for too long, loses its place, or does not take what is sent on it.

use std::net::SocketAddr;
use std::pin::pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::sending::{CountedBody, RequestGuard, SENDING, stalled};
use super::{Https, Limits, Peer, Spawn};
use crate::connections::ConnectionPermit;

/// A connection that was asked to end has this long.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// A peer of an HTTP/2 connection shows now and then that it is there.
const PING: Duration = Duration::from_secs(30);
/// It has this long to answer.
const PONG: Duration = Duration::from_secs(20);
/// What a client may send of requests' bodies before they are read: the least that HTTP/2 has for a connection.
const WINDOW: u32 = 65_535;

pub(super) async fn serve(
    of: Https,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    from: SocketAddr,
    permit: ConnectionPermit,
) {
    let end = permit.end();
    tokio::select! {
        // Dropped wherever it is: its place is another connection's now.
        () = end.cancelled() => tracing::debug!(%from, "a stranger's connection made room for another one"),
        () = talk(of, acceptor, stream, from, permit) => {}
    }
}

async fn talk(
    of: Https,
    acceptor: TlsAcceptor,
    stream: TcpStream,
    from: SocketAddr,
    permit: ConnectionPermit,
) {
    // Small pieces of logs and streams must not wait for more.
    let _ = stream.set_nodelay(true);
    let stream = match timeout(of.limits.handshake, acceptor.accept(stream)).await {
        Ok(Ok(stream)) => stream,
        Ok(Err(error)) => {
            tracing::debug!(%from, %error, "TLS handshake failed");
            return;
        }
        Err(_) => {
            tracing::debug!(%from, "TLS handshake took too long");
            return;
        }
    };
    let session = stream.get_ref().1;
    let chain = session.peer_certificates().unwrap_or_default();
    let chain = chain.iter().map(|c| c.clone().into_owned()).collect();
    let is_http2 = session.alpn_protocol() == Some(b"h2");
    let peer = Peer { address: from, chain, permit: Arc::new(permit) };
    if of.handler.knows(&peer) {
        peer.admitted();
    }
    let (active, idle) = watch::channel(0_usize);
    let active = Arc::new(active);
    let ends = CloseSignals { idle, known: peer.permit.known(), limits: of.limits };
    let handler = of.handler.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = RequestGuard::new(&active);
        let answer = handler.handle(&peer, request);
        async move {
            let answer = answer.await;
            Ok::<_, std::convert::Infallible>(answer.map(|body| CountedBody::new(body, busy)))
        }
    });
    if is_http2 {
        http2(&of, stream, service, ends).await;
    } else {
        let (sending, seen) = watch::channel(None);
        tokio::select! {
            () = SENDING.scope(sending, http1(&of, stream, service, ends)) => {}
            () = stalled(seen, of.limits.stalled) => tracing::debug!(%from, "the client takes nothing of its answer"),
        }
    }
}

async fn http2<S, F>(of: &Https, stream: TlsStream<TcpStream>, service: S, ends: CloseSignals)
where
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<CountedBody>,
            Error = std::convert::Infallible,
            Future = F,
        >,
    F: Future<Output = Result<Response<CountedBody>, std::convert::Infallible>> + Send + 'static,
{
    let limits = of.limits;
    let known = *ends.known.borrow();
    let executor = Executor { spawner: of.spawner.clone(), stalled: limits.stalled };
    let connection = http2::Builder::new(executor)
        .timer(TokioTimer::new())
        .initial_stream_window_size(WINDOW)
        .initial_connection_window_size(WINDOW)
        .max_header_list_size(limits.head_bytes)
        .max_concurrent_streams(if known { limits.streams } else { limits.streams_of_strangers })
        .keep_alive_interval(Some(PING))
        .keep_alive_timeout(PONG)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // An error here is the client's.
        _ = connection.as_mut() => return,
        () = ends.come() => connection.as_mut().graceful_shutdown(),
    }
    let _ = timeout(LAST_WAIT, connection).await;
}

async fn http1<S, F>(of: &Https, stream: TlsStream<TcpStream>, service: S, ends: CloseSignals)
where
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<CountedBody>,
            Error = std::convert::Infallible,
            Future = F,
        >,
    F: Future<Output = Result<Response<CountedBody>, std::convert::Infallible>> + Send + 'static,
{
    let head_bytes = usize::try_from(of.limits.head_bytes).unwrap_or(usize::MAX);
    let connection = http1::Builder::new()
        .timer(TokioTimer::new())
        .header_read_timeout(of.limits.head)
        .max_buf_size(head_bytes)
        .serve_connection(TokioIo::new(stream), service)
        .with_upgrades();
    let mut connection = pin!(connection);
    tokio::select! {
        // An error here is the client's.
        _ = connection.as_mut() => return,
        () = ends.come() => connection.as_mut().graceful_shutdown(),
    }
    let _ = timeout(LAST_WAIT, connection).await;
}

/// Returns once no request has been under way for `limit`.
async fn is_idle(mut active: watch::Receiver<usize>, limit: Duration) {
    loop {
        // An error means that the service is gone, and the connection with it.
        if active.wait_for(|count| *count == 0).await.is_err() {
            return std::future::pending().await;
        }
        match timeout(limit, active.changed()).await {
            Ok(Ok(())) => {}
            Ok(Err(_)) => return std::future::pending().await,
            Err(_) => return,
        }
    }
}

/// When a connection is asked to end.
struct CloseSignals {
    idle: watch::Receiver<usize>,
    known: watch::Receiver<bool>,
    limits: Limits,
}

impl CloseSignals {
    async fn come(self) {
        tokio::select! {
            () = is_idle(self.idle, self.limits.idle) => {}
            () = stays_unknown(self.known, self.limits.life_of_strangers) => {}
        }
    }
}

/// Returns if the connection is still a stranger's after `limit`.
async fn stays_unknown(mut known: watch::Receiver<bool>, limit: Duration) {
    if timeout(limit, known.wait_for(|known| *known)).await.is_ok() {
        std::future::pending().await
    }
}

/// HTTP/2 needs tasks of its own for streams: each ends with its answer, or when its client takes nothing of it. What is
/// dropped here is reset.
#[derive(Clone)]
struct Executor {
    spawner: Arc<dyn Spawn>,
    stalled: Duration,
}

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        let limit = self.stalled;
        let (sending, seen) = watch::channel(None);
        self.spawner.spawn(Box::pin(async move {
            tokio::select! {
                _ = SENDING.scope(sending, task) => {}
                () = stalled(seen, limit) => tracing::debug!("the client takes nothing of an answer"),
            }
        }));
    }
}
