//! The connection to a plugin of a DRA driver: connect, watch, connect again.
//!
//! In: the path of a socket. Out: [`ConnectionState`]. Invariants: the keeper notices the end of the stream at once, also without a call; a
//! plugin that accepts and closes again and again costs one attempt in some seconds. tonic does not expose the state of a connection, so
//! this module watches the stream of bytes. Upstream: Go's gRPC (`ClientConn`, its back-off is 1 s, times 1.6, to 120 s).

use std::io;
use std::path::{Path, PathBuf};
use std::pin::Pin;
use std::task::{Context, Poll};
use std::time::Duration;

use hyper_util::rt::TokioIo;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until, timeout};
use tonic::transport::{Channel, Endpoint};

/// Time limit for the first bytes of a plugin.
const CONNECT_MAX: Duration = Duration::from_secs(20);
/// First and longest wait between two attempts. The longest is far below the 30 s after which a driver's ResourceSlices are deleted.
const AGAIN: (Duration, Duration) = (Duration::from_secs(1), Duration::from_secs(8));
/// Error text of Go's gRPC for a call after the end of the registration.
pub(super) const CLOSING: &str = "grpc: the client connection is closing";

/// The state of a connection.
#[derive(Clone, Debug)]
pub(super) enum ConnectionState {
    /// An attempt to connect runs.
    Connecting,
    /// The plugin has sent bytes.
    Connected(Link),
    /// There is no connection, for this reason.
    Down(String),
}

impl ConnectionState {
    pub(super) fn is_connected(&self) -> bool {
        matches!(self, ConnectionState::Connected(_))
    }
}

/// A connection.
#[derive(Clone, Debug)]
pub(super) struct Link {
    pub(super) channel: Channel,
    phase: watch::Receiver<Phase>,
}

impl Link {
    /// True if the stream has ended.
    pub(super) fn has_ended(&self) -> bool {
        *self.phase.borrow() == Phase::Ended
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    /// No bytes came yet.
    Silent,
    Speaking,
    Ended,
}

/// Keeps a connection to a plugin. The connection closes when the keeper is dropped.
#[derive(Debug)]
pub struct DraKeeper {
    endpoint: PathBuf,
    state: watch::Sender<ConnectionState>,
}

impl DraKeeper {
    pub(super) fn new(endpoint: PathBuf, state: watch::Sender<ConnectionState>) -> DraKeeper {
        DraKeeper { endpoint, state }
    }

    /// Connects, and connects again whenever the connection ends; never returns.
    pub async fn run(self) {
        let (first, longest) = AGAIN;
        let mut wait = first;
        loop {
            self.state.send_replace(ConnectionState::Connecting);
            let began = Instant::now();
            match connect(&self.endpoint).await {
                Ok(link) => {
                    let mut phase = link.phase.clone();
                    self.state.send_replace(ConnectionState::Connected(link));
                    // The sender lives in the stream: an error means that the stream is gone.
                    let _ = phase.wait_for(|phase| *phase == Phase::Ended).await;
                    // A connection that lasted counts as a success: the next attempt comes at once.
                    if began.elapsed() >= first {
                        wait = first;
                        continue;
                    }
                    self.down("error reading from server: EOF".to_owned());
                }
                Err(why) => self.down(format!("connection error: desc = {why:?}")),
            }
            sleep_until(Instant::now() + wait).await;
            wait = (wait * 2).min(longest);
        }
    }

    fn down(&self, why: String) {
        self.state.send_replace(ConnectionState::Down(why));
    }
}

impl Drop for DraKeeper {
    fn drop(&mut self) {
        self.down(CLOSING.to_owned());
    }
}

async fn connect(endpoint: &Path) -> Result<Link, String> {
    let silent = |_| "error reading server preface: i/o timeout".to_owned();
    timeout(CONNECT_MAX, attempt(endpoint)).await.map_err(silent)?
}

async fn attempt(endpoint: &Path) -> Result<Link, String> {
    let stream = UnixStream::connect(endpoint).await.map_err(|error| {
        format!(
            "transport: Error while dialing: dial unix {}: connect: {}",
            endpoint.display(),
            words(&error)
        )
    })?;
    let (to, mut phase) = watch::channel(Phase::Silent);
    // A channel has one stream. A second stream could belong to another plugin, and nothing would watch it.
    let mut stream = Some(TokioIo::new(WatchedStream { stream, phase: to }));
    let connector = tower::service_fn(move |_| {
        let once = stream.take().ok_or_else(|| io::Error::other("the plugin closed its connection"));
        std::future::ready(once)
    });
    // A UNIX socket does not need the authority, but gRPC servers refuse an unusual one.
    let channel = Endpoint::from_static("http://localhost").connect_with_connector(connector).await;
    let channel = channel.map_err(|error| format!("transport: {error}"))?;
    let ended = || "error reading server preface: EOF".to_owned();
    let first = phase.wait_for(|phase| *phase != Phase::Silent).await.map(|phase| *phase);
    match first {
        Ok(Phase::Speaking) => Ok(Link { channel, phase }),
        Ok(Phase::Silent | Phase::Ended) | Err(_) => Err(ended()),
    }
}

/// The system's error text as Go prints it: in lower case, without the number.
fn words(error: &io::Error) -> String {
    let text = error.to_string();
    let text = text.split(" (os error").next().unwrap_or_default();
    let mut letters = text.chars();
    letters.next().map(|first| first.to_lowercase().chain(letters).collect()).unwrap_or_default()
}

/// A stream that reports its first bytes and its end.
struct WatchedStream {
    stream: UnixStream,
    phase: watch::Sender<Phase>,
}

impl WatchedStream {
    fn note(&self, now: Phase) {
        self.phase.send_if_modified(|phase| {
            let is_news = *phase != now && *phase != Phase::Ended;
            if is_news {
                *phase = now;
            }
            is_news
        });
    }
}

impl Drop for WatchedStream {
    fn drop(&mut self) {
        self.note(Phase::Ended);
    }
}

impl AsyncRead for WatchedStream {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let (before, room) = (buffer.filled().len(), buffer.remaining());
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        match &read {
            Poll::Ready(Ok(())) if buffer.filled().len() > before => self.note(Phase::Speaking),
            Poll::Ready(Ok(())) if room == 0 => {}
            Poll::Ready(_) => self.note(Phase::Ended),
            Poll::Pending => {}
        }
        read
    }
}

impl AsyncWrite for WatchedStream {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_write_vectored(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        bytes: &[io::IoSlice<'_>],
    ) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write_vectored(cx, bytes)
    }

    fn is_write_vectored(&self) -> bool {
        self.stream.is_write_vectored()
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
