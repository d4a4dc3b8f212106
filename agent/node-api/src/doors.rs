//! The ways in: listening sockets of systemd as connections with an identity.
//!
//! ```text
//! unix, vsock ─► accept ─► peer by the kernel ─► guard ─┬─► Connection ─► gRPC
//!                                                       └─► closed: no place, or nobody that is heard
//! ```
//! Invariants: a door has [`CONNECTIONS_MAX`] connections at once; who says nothing within [`FIRST_BYTES_MAX`] loses its place; errors of
//! accept, which a lack of descriptors causes, end nothing; identity comes from the kernel alone.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::PathBuf;
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use futures_util::stream::{self, BoxStream, StreamExt as _};
use socket2::{SockAddr, Socket};
use tokio::io::unix::AsyncFd;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::transport::server::Connected;

use crate::collect::node_config;
use crate::facts::trusts_vsock_host;
use crate::guard::{Door, Identity, Peer, Trust, identify, is_heard};
use crate::refusal::Refusal;
use crate::server::Gate;

/// Connections of one door at once. Only root and the host get one at all.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// HTTP/2 begins with so many bytes (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// A connection says them within this.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(10);
/// Time until the next try after a failed accept: descriptors become free meanwhile.
const RETRY: Duration = Duration::from_secs(5);

/// Who a call is from.
#[derive(Clone, Debug)]
pub(crate) struct CallPeer {
    pub(crate) door: Door,
    pub(crate) peer: Peer,
    pub(crate) identity: Result<Identity, Refusal>,
}

/// What all doors share.
#[derive(Clone)]
pub(crate) struct DoorDeps {
    /// The root directory, for the configuration.
    pub(crate) root: PathBuf,
    /// The user that is believed on the unix socket.
    pub(crate) uid: u32,
    /// Says what was not taken.
    pub(crate) gate: Arc<Gate>,
    /// Connections of all doors.
    pub(crate) open: watch::Sender<usize>,
}

/// The connections of a socket that systemd passed, without an end.
///
/// # Errors
/// The socket cannot be used.
pub(crate) fn connections(
    socket: OwnedFd,
    deps: DoorDeps,
) -> io::Result<BoxStream<'static, io::Result<Connection>>> {
    let socket = Socket::from(socket);
    socket.set_nonblocking(true)?;
    let is_vsock = socket.local_addr()?.as_vsock_address().is_some();
    let door = if is_vsock { Door::Vsock } else { Door::Unix };
    let listener = AsyncFd::new(socket)?;
    let state = (listener, deps, Arc::new(AtomicUsize::new(0)));
    let taken = stream::unfold(state, move |(listener, deps, places)| async move {
        let connection = loop {
            let (socket, address) = match accept(&listener).await {
                Ok(accepted) => accepted,
                Err(error) => {
                    tracing::error!(%door, %error, "no connection is accepted; the next try is in 5 s");
                    sleep_until(Instant::now() + RETRY).await;
                    continue;
                }
            };
            match Connection::new(door, socket, &address, &deps, &places) {
                Ok(Some(connection)) => break connection,
                Ok(None) => {}
                Err(error) => tracing::warn!(%door, %error, "a connection cannot be used"),
            }
        };
        Some((Ok(connection), (listener, deps, places)))
    });
    Ok(taken.boxed())
}

async fn accept(listener: &AsyncFd<Socket>) -> io::Result<(Socket, SockAddr)> {
    loop {
        let mut ready = listener.readable().await?;
        match ready.try_io(|inner| inner.get_ref().accept()) {
            Ok(accepted) => return accepted,
            // Another process took it, or it is gone.
            Err(_would_block) => {}
        }
    }
}

/// A place of a door, and one of all connections.
struct TakenPlace {
    door: Arc<AtomicUsize>,
    open: watch::Sender<usize>,
}

impl TakenPlace {
    fn take(door: &Arc<AtomicUsize>, open: &watch::Sender<usize>) -> Option<TakenPlace> {
        if door.fetch_add(1, Ordering::SeqCst) >= CONNECTIONS_MAX {
            door.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        open.send_modify(|count| *count += 1);
        Some(TakenPlace { door: door.clone(), open: open.clone() })
    }
}

impl Drop for TakenPlace {
    fn drop(&mut self) {
        self.door.fetch_sub(1, Ordering::SeqCst);
        self.open.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// One connection.
pub(crate) struct Connection {
    stream: UnixStream,
    caller: CallPeer,
    /// Bytes of the preface that have not come yet, and until when they may.
    missing: usize,
    deadline: Pin<Box<Sleep>>,
    _place: TakenPlace,
}

impl Connection {
    /// `None` if it is closed at once.
    fn new(
        door: Door,
        socket: Socket,
        address: &SockAddr,
        deps: &DoorDeps,
        places: &Arc<AtomicUsize>,
    ) -> io::Result<Option<Connection>> {
        socket.set_nonblocking(true)?;
        // Streams of both families are read and written alike; nothing below asks for an address of the unix family.
        let stream = UnixStream::from_std(StdUnixStream::from(OwnedFd::from(socket)))?;
        let peer = match address.as_vsock_address() {
            Some((cid, _)) => Peer::Machine { cid },
            None => {
                let credentials = stream.peer_cred()?;
                Peer::Process { uid: credentials.uid(), pid: credentials.pid() }
            }
        };
        if !is_heard(peer) {
            deps.gate.say_closed(door, peer, "only the host of the machine is heard");
            return Ok(None);
        }
        let Some(place) = TakenPlace::take(places, &deps.open) else {
            deps.gate.say_closed(door, peer, "there are as many connections as the door takes");
            return Ok(None);
        };
        let vsock_host = door == Door::Vsock && trusts_vsock_host(&node_config(&deps.root));
        let identity = identify(peer, Trust { uid: deps.uid, vsock_host });
        Ok(Some(Connection {
            stream,
            caller: CallPeer { door, peer, identity },
            missing: PREFACE,
            deadline: Box::pin(sleep_until(Instant::now() + FIRST_BYTES_MAX)),
            _place: place,
        }))
    }
}

impl Connected for Connection {
    type ConnectInfo = CallPeer;

    fn connect_info(&self) -> CallPeer {
        self.caller.clone()
    }
}

impl AsyncRead for Connection {
    fn poll_read(
        mut self: Pin<&mut Self>,
        cx: &mut Context<'_>,
        buffer: &mut ReadBuf<'_>,
    ) -> Poll<io::Result<()>> {
        if self.missing > 0 && self.deadline.as_mut().poll(cx).is_ready() {
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
        }
        let before = buffer.filled().len();
        let read = Pin::new(&mut self.stream).poll_read(cx, buffer);
        self.missing = self.missing.saturating_sub(buffer.filled().len() - before);
        read
    }
}

impl AsyncWrite for Connection {
    fn poll_write(mut self: Pin<&mut Self>, cx: &mut Context<'_>, bytes: &[u8]) -> Poll<io::Result<usize>> {
        Pin::new(&mut self.stream).poll_write(cx, bytes)
    }

    fn poll_flush(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_flush(cx)
    }

    fn poll_shutdown(mut self: Pin<&mut Self>, cx: &mut Context<'_>) -> Poll<io::Result<()>> {
        Pin::new(&mut self.stream).poll_shutdown(cx)
    }
}
