//! Whether bytes move on a connection, and how one ends.
//!
//! In: a stream. Out: the same, and a view that changes when bytes were read or written. Invariant: neither a side that waits
//! nor one that cannot write counts as movement.

use std::io;
use std::pin::Pin;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use tokio::io::{AsyncRead, AsyncReadExt, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::timeout;

/// Returns once nothing has moved for `limit`; the task that moves bytes holds the sender.
pub(crate) async fn quiet(mut seen: watch::Receiver<()>, limit: Duration) {
    while timeout(limit, seen.changed()).await.is_ok() {}
}

/// For what a client may still have on its way when it was sent all: a connection that is ended with bytes unread is reset,
/// and takes along what the client has not read.
const LINGER: Duration = Duration::from_secs(5);

/// Reads, for a while, bytes that still arrive.
pub(crate) async fn linger(mut client: impl AsyncRead + Unpin) {
    let mut buffer = [0; 1024];
    let rest = async { while matches!(client.read(&mut buffer).await, Ok(read) if read > 0) {} };
    // Who does not end by then is ended.
    let _ = timeout(LINGER, rest).await;
}

/// A stream that shows that bytes moved.
pub(crate) struct Moving<S> {
    of: S,
    moved: watch::Sender<()>,
}

impl<S> Moving<S> {
    pub(crate) fn new(of: S, moved: watch::Sender<()>) -> Moving<S> {
        Moving { of, moved }
    }
}

impl<S: AsyncRead + Unpin> AsyncRead for Moving<S> {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buf: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        let read = ready!(Pin::new(&mut self.of).poll_read(cx, buf));
        self.moved.send_replace(());
        Poll::Ready(read)
    }
}

impl<S: AsyncWrite + Unpin> AsyncWrite for Moving<S> {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        let written = ready!(Pin::new(&mut self.of).poll_write(cx, bytes));
        self.moved.send_replace(());
        Poll::Ready(written)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.of).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.of).poll_shutdown(cx)
    }
}
