//! Connections to the agent's unix sockets, for its gRPC servers.
//!
//! In: a listener. Out: connections, at most so many at a time. Invariants: a server outlives errors of accept, which a lack of free
//! descriptors causes; a new client always gets a place, because the oldest connection is closed for it: each client is a pod, and one
//! pod must take neither all descriptors of the agent nor all places of a socket for ever. Clients of these sockets connect again.

mod authority;

use std::collections::BTreeMap;
use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::task::{Context, Poll, ready};
use std::time::Duration;

use agent_types::lock::Lock;
use futures_util::{Stream, stream};
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::{UnixListener, UnixStream};
use tokio_util::sync::{CancellationToken, WaitForCancellationFutureOwned};
use tonic::transport::server::Connected;

use crate::tasks::actor::Tasks;
use authority::AuthorityFilter;

/// Time until the next try after a failed accept: descriptors become free meanwhile.
const RETRY: Duration = Duration::from_secs(5);

/// Open connections by their number; the token closes one.
type OpenConnections = Arc<Lock<BTreeMap<u64, CancellationToken>>>;

/// The connections that come, without an end. `socket` names the socket in the log.
pub(crate) fn accepted(
    socket: &'static str,
    listener: UnixListener,
    places: usize,
    tasks: Tasks,
) -> impl Stream<Item = io::Result<LocalConnection>> + Send {
    let state = (listener, OpenConnections::default(), 0_u64);
    stream::unfold(state, move |(listener, open, number)| {
        let tasks = tasks.clone();
        async move {
            let connection = loop {
                match listener.accept().await {
                    Ok((stream, _)) => break LocalConnection::new(stream, number, places, &open),
                    Err(error) => {
                        tracing::error!(socket, %error, "no connection is accepted; the agent tries again in 5 s");
                        tasks.wait_until(tasks.now().mono.after(RETRY)).await;
                    }
                }
            };
            Some((Ok(connection), (listener, open, number.wrapping_add(1))))
        }
    })
}

/// One connection; it ends when its place goes to a newer one.
pub(crate) struct LocalConnection {
    stream: UnixStream,
    number: u64,
    open: OpenConnections,
    closed: Pin<Box<WaitForCancellationFutureOwned>>,
    filter: AuthorityFilter,
    /// Bytes for the server that were not read yet.
    filtered: Vec<u8>,
}

/// Bytes that are read at once.
const PIECE: usize = 4096;

impl LocalConnection {
    fn new(stream: UnixStream, number: u64, places: usize, open: &OpenConnections) -> LocalConnection {
        let close = CancellationToken::new();
        let mut connections = open.lock();
        while connections.len() >= places
            && let Some((_, oldest)) = connections.pop_first()
        {
            oldest.cancel();
        }
        connections.insert(number, close.clone());
        drop(connections);
        let closed = Box::pin(close.cancelled_owned());
        let (filter, filtered) = (AuthorityFilter::new(), Vec::new());
        LocalConnection { stream, number, open: open.clone(), closed, filter, filtered }
    }

    fn is_closed(&mut self, cx: &mut Context<'_>) -> bool {
        self.closed.as_mut().poll(cx).is_ready()
    }
}

impl Drop for LocalConnection {
    fn drop(&mut self) {
        self.open.lock().remove(&self.number);
    }
}

impl Connected for LocalConnection {
    type ConnectInfo = ();

    fn connect_info(&self) -> Self::ConnectInfo {}
}

impl AsyncRead for LocalConnection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.is_closed(cx) {
            return Poll::Ready(Err(ErrorKind::ConnectionAborted.into()));
        }
        while self.filtered.is_empty() {
            let mut piece = [0; PIECE];
            let mut piece = ReadBuf::new(&mut piece);
            ready!(Pin::new(&mut self.stream).poll_read(cx, &mut piece))?;
            if piece.filled().is_empty() {
                return Poll::Ready(Ok(()));
            }
            let LocalConnection { filter, filtered, .. } = &mut *self;
            let fed = filter.feed(piece.filled(), filtered);
            fed.map_err(|error| io::Error::new(ErrorKind::InvalidData, error))?;
        }
        let length = self.filtered.len().min(buffer.remaining());
        buffer.put_slice(self.filtered.get(..length).unwrap_or_default());
        self.filtered.drain(..length);
        Poll::Ready(Ok(()))
    }
}

impl AsyncWrite for LocalConnection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        if self.is_closed(cx) {
            return Poll::Ready(Err(ErrorKind::ConnectionAborted.into()));
        }
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}

#[cfg(test)]
mod tests {
    use std::pin::pin;

    use futures_util::StreamExt;
    use tokio::io::{AsyncReadExt, AsyncWriteExt};

    use super::*;
    use crate::testing::VirtualClock;

    #[tokio::test]
    async fn the_oldest_connection_is_closed_for_a_new_one() {
        let dir = tempfile::tempdir().unwrap();
        let path = dir.path().join("a.sock");
        let listener = UnixListener::bind(&path).unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let mut connections = pin!(accepted("a.sock", listener, 2, tasks));
        let mut clients = Vec::new();
        let mut served = Vec::new();
        for _ in 0..3 {
            clients.push(UnixStream::connect(&path).await.unwrap());
            served.push(connections.next().await.unwrap().unwrap());
        }
        let closed = served[0].read_u8().await.unwrap_err();
        assert_eq!(closed.kind(), ErrorKind::ConnectionAborted);
        assert_eq!(served[0].write_u8(1).await.unwrap_err().kind(), ErrorKind::ConnectionAborted);
        for n in [1, 2] {
            clients[n].write_u8(b'P').await.unwrap();
            assert_eq!(served[n].read_u8().await.unwrap(), b'P');
        }
        // A place that became free costs no other client its connection.
        drop(served.remove(1));
        clients.push(UnixStream::connect(&path).await.unwrap());
        served.push(connections.next().await.unwrap().unwrap());
        clients[2].write_u8(b'R').await.unwrap();
        assert_eq!(served[1].read_u8().await.unwrap(), b'R');
    }
}
