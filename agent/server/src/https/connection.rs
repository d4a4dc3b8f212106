//! One connection: handshake, then HTTP/2 or HTTP/1.1 as was agreed, until it ends or is idle for too long.

use std::net::SocketAddr;
use std::pin::{Pin, pin};
use std::sync::Arc;
use std::task::{Context, Poll};
use std::time::Duration;

use bytes::Bytes;
use hyper::body::{Frame, Incoming, SizeHint};
use hyper::server::conn::{http1, http2};
use hyper::service::service_fn;
use hyper::{Request, Response};
use hyper_util::rt::{TokioIo, TokioTimer};
use tokio::net::TcpStream;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use super::{Https, Peer, Spawn};
use crate::body::{Body, Broken};

/// A connection that was told to go has this long.
const LAST_WAIT: Duration = Duration::from_secs(1);
/// A peer of an HTTP/2 connection shows now and then that it is there.
const PING: Duration = Duration::from_secs(30);
/// It has this long to answer.
const PONG: Duration = Duration::from_secs(20);

pub(super) async fn serve(of: Https, acceptor: TlsAcceptor, stream: TcpStream, from: SocketAddr) {
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
    let peer = Peer { address: from, chain: chain.iter().map(|c| c.clone().into_owned()).collect() };
    let (active, idle) = watch::channel(0_usize);
    let active = Arc::new(active);
    let handler = of.handler.clone();
    let service = service_fn(move |request: Request<Incoming>| {
        let busy = Busy::new(&active);
        let answer = handler.handle(&peer, request);
        async move {
            let answer = answer.await;
            Ok::<_, std::convert::Infallible>(answer.map(|body| Counted { body, _busy: busy }))
        }
    });
    if session.alpn_protocol() == Some(b"h2") {
        http2(&of, stream, service, idle).await;
    } else {
        http1(&of, stream, service, idle).await;
    }
}

async fn http2<S, F>(of: &Https, stream: TlsStream<TcpStream>, service: S, idle: watch::Receiver<usize>)
where
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<Counted>,
            Error = std::convert::Infallible,
            Future = F,
        >,
    F: Future<Output = Result<Response<Counted>, std::convert::Infallible>> + Send + 'static,
{
    let connection = http2::Builder::new(Executor(of.spawner.clone()))
        .timer(TokioTimer::new())
        .max_header_list_size(of.limits.head_bytes)
        .max_concurrent_streams(of.limits.streams)
        .keep_alive_interval(Some(PING))
        .keep_alive_timeout(PONG)
        .serve_connection(TokioIo::new(stream), service);
    let mut connection = pin!(connection);
    tokio::select! {
        // An error here is the client's.
        _ = connection.as_mut() => return,
        () = is_idle(idle, of.limits.idle) => connection.as_mut().graceful_shutdown(),
    }
    let _ = timeout(LAST_WAIT, connection).await;
}

async fn http1<S, F>(of: &Https, stream: TlsStream<TcpStream>, service: S, idle: watch::Receiver<usize>)
where
    S: hyper::service::Service<
            Request<Incoming>,
            Response = Response<Counted>,
            Error = std::convert::Infallible,
            Future = F,
        >,
    F: Future<Output = Result<Response<Counted>, std::convert::Infallible>> + Send + 'static,
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
        () = is_idle(idle, of.limits.idle) => connection.as_mut().graceful_shutdown(),
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

/// A request under way, until its answer was sent to the end.
struct Busy(Arc<watch::Sender<usize>>);

impl Busy {
    fn new(active: &Arc<watch::Sender<usize>>) -> Busy {
        active.send_modify(|count| *count += 1);
        Busy(active.clone())
    }
}

impl Drop for Busy {
    fn drop(&mut self) {
        self.0.send_modify(|count| *count -= 1);
    }
}

/// An answer's body that holds its connection busy.
struct Counted {
    body: Body,
    _busy: Busy,
}

impl hyper::body::Body for Counted {
    type Data = Bytes;
    type Error = Broken;

    fn poll_frame(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
    ) -> Poll<Option<Result<Frame<Bytes>, Broken>>> {
        Pin::new(&mut self.body).poll_frame(cx)
    }

    fn is_end_stream(&self) -> bool {
        self.body.is_end_stream()
    }

    fn size_hint(&self) -> SizeHint {
        self.body.size_hint()
    }
}

/// HTTP/2 needs tasks of its own for streams.
#[derive(Clone)]
struct Executor(Arc<dyn Spawn>);

impl<F> hyper::rt::Executor<F> for Executor
where
    F: Future + Send + 'static,
    F::Output: Send,
{
    fn execute(&self, task: F) {
        self.0.spawn(Box::pin(async move {
            task.await;
        }));
    }
}
