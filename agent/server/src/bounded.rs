//! Plain HTTP/1 within bounds, for the ports without authentication: places by source, a time limit for a
//! request's head, and the end of connections without traffic.
//!
//! In: an address, routes, bounds, the stop token. Out: answers. Everything runs inside the caller's one
//! task, so nothing outlives it. Invariants: at most [`Bounds::connections`] connections are open, by the rules of
//! [`agent_kubelet_api::server_policy::ConnectionSlots`], where every client is a stranger: one source cannot take all
//! places; a connection without a complete head ends after `head`, one without traffic (a client that does
//! not read its answer) after `still`; on stop, requests in progress may finish within `last_wait`.
//!
//! ```text
//! accept ─► a place? ─ yes ─► open connections (polled together) ─► end: own, head, still, displaced, stop
//!              └─ no ─► closed
//! ```

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

use agent_kubelet_api::server_policy::ConnectionLimits;
use axum::Router;
use futures_util::StreamExt;
use futures_util::stream::FuturesUnordered;
use hyper::server::conn::http1;
use hyper_util::rt::{TokioIo, TokioTimer};
use hyper_util::service::TowerToHyperService;
use tokio::net::{TcpListener, TcpStream};
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_util::sync::CancellationToken;

use crate::connections::{ConnectionLimiter, ConnectionPermit};
use crate::listening::listen;
use crate::moving::{Moving, quiet};

/// What clients may use up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Open connections.
    pub(crate) connections: ConnectionLimits,
    /// From the end of one request (or the connection's start) to the end of the next one's head.
    pub(crate) head: Duration,
    /// Without a byte that moves either way; long enough for any answer to be made.
    pub(crate) still: Duration,
    /// For an answer under way when the node stops.
    pub(crate) last_wait: Duration,
}

/// Of healthz and the read-only port: probes and monitoring ask once in a while, a few at a time.
pub(crate) const BOUNDS: Bounds = Bounds {
    connections: ConnectionLimits { all: 32, strangers: 32, per_source: 8 },
    head: Duration::from_secs(10),
    still: Duration::from_secs(30),
    last_wait: Duration::from_secs(1),
};

/// Time until a failed listener is tried again; upstream's healthz port has the same (cmd/kubelet/app/server.go).
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// Serves at `address` until `stop`, and tries again where it cannot listen. `bound` has the address while it is
/// listened on, otherwise `None`.
pub(crate) async fn serve_always(
    what: &'static str,
    address: SocketAddr,
    routes: Router,
    bounds: Bounds,
    bound: watch::Sender<Option<SocketAddr>>,
    stop: CancellationToken,
) {
    let listen = async || {
        let listener = listen(address).await?;
        bound.send_replace(Some(listener.local_addr()?));
        serve(listener, routes.clone(), bounds, &stop).await
    };
    while !stop.is_cancelled() {
        if let Err(error) = listen().await {
            tracing::error!(%address, %error, "{what} does not listen; trying again in 5 s");
        }
        bound.send_replace(None);
        // Waits for the stop, with the retry as its deadline.
        let _ = timeout(RETRY, stop.cancelled()).await;
    }
}

/// Serves until `stop`.
///
/// # Errors
/// If the listener fails; what is then open is dropped.
pub(crate) async fn serve(
    listener: TcpListener,
    routes: Router,
    bounds: Bounds,
    stop: &CancellationToken,
) -> io::Result<()> {
    let limiter = ConnectionLimiter::new(bounds.connections);
    let mut open = FuturesUnordered::new();
    loop {
        // `accept` and `next` lose nothing when dropped: what they had not taken stays in its queue.
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept() => match accepted {
                Ok((stream, from)) => match limiter.take(from.ip()) {
                    Some(permit) => open.push(connection(stream, permit, routes.clone(), bounds, stop)),
                    None => tracing::debug!(%from, "no place for the connection; it is closed"),
                },
                // The client went away while it waited.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(e) => return Err(e),
            },
            Some(()) = open.next() => {}
        }
    }
    drop(listener);
    while open.next().await.is_some() {}
    Ok(())
}

async fn connection(
    stream: TcpStream,
    permit: ConnectionPermit,
    routes: Router,
    bounds: Bounds,
    stop: &CancellationToken,
) {
    let end = permit.end();
    tokio::select! {
        // Dropped wherever it is: its place is another connection's now.
        () = end.cancelled() => {}
        () = talk(stream, routes, bounds, stop) => {}
    }
}

async fn talk(stream: TcpStream, routes: Router, bounds: Bounds, stop: &CancellationToken) {
    let service = TowerToHyperService::new(routes);
    let (moved, seen) = watch::channel(());
    let stream = TokioIo::new(Moving::new(stream, moved));
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .serve_connection(stream, service)
    );
    tokio::select! {
        // An error here is the client's: it broke off, was too slow, or spoke no HTTP.
        _ = connection.as_mut() => return,
        () = quiet(seen, bounds.still) => return,
        () = stop.cancelled() => connection.as_mut().graceful_shutdown(),
    }
    // Late answers are dropped with their connection.
    let _ = timeout(bounds.last_wait, connection).await;
}

#[cfg(test)]
mod tests {
    use super::*;
    use axum::routing::get;
    use std::net::{Ipv4Addr, SocketAddr};
    use tokio::io::{AsyncReadExt, AsyncWriteExt};
    use tokio::net::TcpSocket;
    use tokio::time::Instant;

    const BOUNDS: Bounds =
        Bounds { connections: ConnectionLimits { all: 4, strangers: 4, per_source: 2 }, ..super::BOUNDS };
    const GET: &[u8] = b"GET / HTTP/1.1\r\nHost: node\r\n\r\n";
    /// More than the timer's grain, less than any difference that matters here.
    const GRAIN: Duration = Duration::from_millis(50);

    /// Runs a server and a client with the clock paused: time passes only while both wait for it.
    async fn with_client<F: Future<Output = ()>>(client: impl FnOnce(SocketAddr) -> F) {
        let listener = TcpListener::bind((Ipv4Addr::LOCALHOST, 0)).await.unwrap();
        let address = listener.local_addr().unwrap();
        tokio::time::pause();
        let stop = CancellationToken::new();
        let client = async {
            client(address).await;
            stop.cancel();
        };
        let routes = Router::new().route("/", get(|| async { "ok" }));
        let (served, ()) = tokio::join!(serve(listener, routes, BOUNDS, &stop), client);
        served.unwrap();
    }

    async fn sent(to: SocketAddr, bytes: &[u8]) -> TcpStream {
        let mut stream = TcpStream::connect(to).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    /// Everything until the server closes; how long that took. A reset ends it as well.
    async fn until_closed(stream: &mut TcpStream) -> (String, Duration) {
        let start = Instant::now();
        let mut bytes = Vec::new();
        let _ = stream.read_to_end(&mut bytes).await;
        (String::from_utf8(bytes).unwrap(), start.elapsed())
    }

    fn is_about(took: Duration, expected: Duration) -> bool {
        took >= expected && took < expected + GRAIN
    }

    #[tokio::test]
    async fn a_head_that_does_not_come_ends_the_connection() {
        with_client(|to| async move {
            for (bytes, answered) in [(&b""[..], false), (b"GET / HTTP/1.1\r\nHost: n", false), (GET, true)] {
                let (answer, took) = until_closed(&mut sent(to, bytes).await).await;
                assert_eq!(answer.ends_with("\r\n\r\nok"), answered, "{answer}");
                assert!(is_about(took, BOUNDS.head), "{bytes:?}: {took:?}");
            }
        })
        .await;
    }

    /// A connection of another source: the whole of 127.0.0.0/8 is the host's.
    async fn sent_from(source: [u8; 4], to: SocketAddr, bytes: &[u8]) -> TcpStream {
        let socket = TcpSocket::new_v4().unwrap();
        socket.bind(SocketAddr::from((source, 0))).unwrap();
        let mut stream = socket.connect(to).await.unwrap();
        stream.write_all(bytes).await.unwrap();
        stream
    }

    #[tokio::test]
    async fn one_source_does_not_take_the_places_of_others() {
        with_client(|to| async move {
            let start = Instant::now();
            let mut slow = Vec::new();
            for _ in 0..6 {
                slow.push(sent(to, b"GET").await);
            }
            // Requests from other sources are answered at once, and so is another request from that source.
            for source in [[127, 0, 0, 2], [127, 0, 0, 3], [127, 0, 0, 1]] {
                let mut byte = [0];
                sent_from(source, to, GET).await.read_exact(&mut byte).await.unwrap();
            }
            assert!(start.elapsed() < GRAIN, "{:?}", start.elapsed());
            // The oldest have made room, the newest one has not.
            for stream in &mut slow[..5] {
                until_closed(stream).await;
            }
            assert!(start.elapsed() < GRAIN, "{:?}", start.elapsed());
            until_closed(&mut slow[5]).await;
            assert!(is_about(start.elapsed(), BOUNDS.head), "{:?}", start.elapsed());
        })
        .await;
    }

    #[tokio::test]
    async fn a_free_place_is_given_at_once() {
        with_client(|to| async move {
            let start = Instant::now();
            let _slow = sent(to, b"GET").await;
            for _ in 0..5 {
                let mut second = sent(to, GET).await;
                let mut byte = [0];
                second.read_exact(&mut byte).await.unwrap();
            }
            assert!(start.elapsed() < GRAIN, "{:?}", start.elapsed());
        })
        .await;
    }

    #[tokio::test]
    async fn a_client_that_never_reads_loses_its_place() {
        with_client(|to| async move {
            let start = Instant::now();
            let mut stream = TcpStream::connect(to).await.unwrap();
            // Answers fill the buffers until the server can neither write nor read on.
            while stream.write_all(GET).await.is_ok() {}
            assert!(is_about(start.elapsed(), BOUNDS.still), "{:?}", start.elapsed());
        })
        .await;
    }
}
