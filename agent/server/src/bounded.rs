//! HTTP/1 on a listener within bounds: how many connections, how long for a request's head, how long at all.
//!
//! In: a listener, routes, bounds, the stop token. Out: answers. Everything runs inside the caller's one task, so
//! nothing outlives it. Invariants: at most `connections` are open, further ones wait in the kernel's queue; a
//! connection that says nothing (or says it too slowly) ends after `head`, one that never ends itself after
//! `lifetime`; on stop, what is being answered may finish within `last_wait`.
//!
//! ```text
//! accept ──► open connections (polled together) ──► end: own, head, lifetime, stop
//!    ▲______________ a place is free _________________│
//! ```

use std::io::{self, ErrorKind};
use std::net::SocketAddr;
use std::pin::pin;
use std::time::Duration;

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

/// What a client may use up.
#[derive(Clone, Copy, Debug)]
pub(crate) struct Bounds {
    /// Open connections.
    pub(crate) connections: usize,
    /// From the end of one request (or the connection's start) to the end of the next one's head.
    pub(crate) head: Duration,
    /// Of a connection; long enough for any answer the routes give.
    pub(crate) lifetime: Duration,
    /// For an answer under way when its time is over.
    pub(crate) last_wait: Duration,
}

/// How long until a failed listener is tried again (contract 1.2).
pub(crate) const RETRY: Duration = Duration::from_secs(5);

/// Serves at `address` until `stop`, and tries again where it cannot listen. `bound` tells the address once it is
/// listened on, `None` while it is not.
pub(crate) async fn serve_always(
    what: &'static str,
    address: SocketAddr,
    routes: Router,
    bounds: Bounds,
    bound: watch::Sender<Option<SocketAddr>>,
    stop: CancellationToken,
) {
    let listen = async || {
        let listener = TcpListener::bind(address).await?;
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
    let mut open = FuturesUnordered::new();
    loop {
        // `accept` and `next` lose nothing when dropped: what they had not taken stays in its queue.
        tokio::select! {
            () = stop.cancelled() => break,
            accepted = listener.accept(), if open.len() < bounds.connections => match accepted {
                Ok((stream, _)) => open.push(connection(stream, routes.clone(), bounds, stop)),
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

async fn connection(stream: TcpStream, routes: Router, bounds: Bounds, stop: &CancellationToken) {
    let service = TowerToHyperService::new(routes);
    let mut connection = pin!(
        http1::Builder::new()
            .timer(TokioTimer::new())
            .header_read_timeout(bounds.head)
            .serve_connection(TokioIo::new(stream), service)
    );
    tokio::select! {
        // An error here is the client's: it broke off, was too slow, or spoke no HTTP.
        _ = connection.as_mut() => return,
        _ = timeout(bounds.lifetime, stop.cancelled()) => connection.as_mut().graceful_shutdown(),
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
    use tokio::time::Instant;

    const BOUNDS: Bounds = Bounds {
        connections: 2,
        head: Duration::from_secs(10),
        lifetime: Duration::from_secs(60),
        last_wait: Duration::from_secs(1),
    };
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

    #[tokio::test]
    async fn beyond_the_limit_a_connection_waits_for_a_place() {
        with_client(|to| async move {
            let start = Instant::now();
            let _slow = (sent(to, b"GET").await, sent(to, b"GET").await);
            let mut third = sent(to, GET).await;
            let mut byte = [0];
            third.read_exact(&mut byte).await.unwrap();
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
            assert!(is_about(start.elapsed(), BOUNDS.lifetime + BOUNDS.last_wait), "{:?}", start.elapsed());
        })
        .await;
    }
}
