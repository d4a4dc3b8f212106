//! The ways in on the machine: listening sockets of systemd as connections with an identity.
//!
//! ```text
//! unix, vsock, serial ─► accept ─► peer by the kernel ─► guard ─┬─► Connection ─► gRPC
//!                                                               └─► closed: no place, or a peer that may not ask
//! ```
//! Invariants: a door has [`CONNECTIONS_MAX`] connections at once; errors of accept, which a lack of descriptors causes, end nothing;
//! identity comes from the kernel alone. The serial door is a unix socket whose only client is the program of the virtio-serial port
//! ([`crate::serial_port`]): its control group says so.

use std::io::{self, ErrorKind};
use std::os::fd::OwnedFd;
use std::os::unix::net::UnixStream as StdUnixStream;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_linux::files::read_capped;
use futures_util::stream::{self, BoxStream, StreamExt as _};
use orlop_proto::node_api::SERIAL_SOCKET;
use socket2::{SockAddr, SockRef, Socket};
use tokio::io::Interest;
use tokio::net::UnixStream;
use tokio::sync::watch;
use tokio::time::{Instant, sleep_until};

use crate::collect::node_config;
use crate::connection::{CallPeer, Connection, DoorPlaces};
use crate::facts::trusts_vsock_host;
use crate::gate::Gate;
use crate::guard::{Door, Peer, Trust, identify, is_heard, is_port_program};

/// Connections of one door at once, of peers that may ask.
pub(crate) const CONNECTIONS_MAX: usize = 16;
/// Time until the next try after a failed accept: descriptors become free meanwhile.
pub(crate) const RETRY: Duration = Duration::from_secs(5);
/// A process's /proc/PID/cgroup is not longer, bytes.
const CGROUP_MAX: u64 = 4096;

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

/// The connections of a unix, vsock or serial socket, without an end.
///
/// # Errors
/// The socket cannot be used.
pub(crate) fn connections(
    socket: Socket,
    deps: DoorDeps,
) -> io::Result<BoxStream<'static, io::Result<Connection>>> {
    socket.set_nonblocking(true)?;
    let door = door_of(&socket.local_addr()?);
    let places = DoorPlaces::new(CONNECTIONS_MAX, deps.open.clone());
    // tokio waits for any socket as a stream; its listeners take no vsock address.
    let listener = UnixStream::from_std(StdUnixStream::from(OwnedFd::from(socket)))?;
    let state = (listener, deps, places);
    let taken = stream::unfold(state, move |(listener, deps, places)| async move {
        let connection = loop {
            let (socket, address) = match accept(&listener).await {
                Ok(accepted) => accepted,
                Err(error) if is_of_peer(&error) => continue,
                Err(error) => {
                    tracing::error!(%door, %error, "no connection is accepted; the next try is in 5 s");
                    sleep_until(Instant::now() + RETRY).await;
                    continue;
                }
            };
            match connection(door, socket, &address, &deps, &places) {
                Ok(Some(connection)) => break connection,
                Ok(None) => {}
                Err(error) => tracing::warn!(%door, %error, "a connection cannot be used"),
            }
        };
        Some((Ok(connection), (listener, deps, places)))
    });
    Ok(taken.boxed())
}

/// The serial door has a socket of its own name.
fn door_of(address: &SockAddr) -> Door {
    let name = address.as_pathname().and_then(Path::file_name);
    if address.as_vsock_address().is_some() {
        Door::Vsock
    } else if name.is_some() && name == Path::new(SERIAL_SOCKET).file_name() {
        Door::Serial
    } else {
        Door::Unix
    }
}

/// Whether the process at the other end is the program of the virtio-serial port. One that has ended is none.
fn is_of_port(deps: &DoorDeps, uid: u32, pid: Option<i32>) -> bool {
    let Some(pid) = pid.filter(|_| uid == deps.uid) else { return false };
    let cgroup = read_capped(&deps.root.join(format!("proc/{pid}/cgroup")), CGROUP_MAX);
    cgroup.is_ok_and(|text| is_port_program(&String::from_utf8_lossy(&text)))
}

async fn accept(listener: &UnixStream) -> io::Result<(Socket, SockAddr)> {
    loop {
        listener.readable().await?;
        match listener.try_io(Interest::READABLE, || SockRef::from(listener).accept()) {
            // Another process took it, or it is gone.
            Err(error) if error.kind() == ErrorKind::WouldBlock => {}
            accepted => return accepted,
        }
    }
}

/// Whether a connection is gone that was in the queue (accept(2) reports its error): the next one is taken at once. Peers cause such
/// errors; what the node lacks takes its time.
pub(crate) fn is_of_peer(error: &io::Error) -> bool {
    matches!(
        error.kind(),
        ErrorKind::ConnectionAborted
            | ErrorKind::ConnectionRefused
            | ErrorKind::ConnectionReset
            | ErrorKind::HostUnreachable
            | ErrorKind::Interrupted
            | ErrorKind::NetworkUnreachable
            | ErrorKind::NotConnected
            | ErrorKind::TimedOut
    )
}

/// `None` if it is closed at once.
fn connection(
    door: Door,
    socket: Socket,
    address: &SockAddr,
    deps: &DoorDeps,
    places: &DoorPlaces,
) -> io::Result<Option<Connection>> {
    socket.set_nonblocking(true)?;
    // Streams of both families are read and written alike; nothing below asks for an address of the unix family.
    let stream = UnixStream::from_std(StdUnixStream::from(OwnedFd::from(socket)))?;
    let peer = match address.as_vsock_address() {
        Some((cid, _)) => Peer::Machine { cid },
        None => {
            let credentials = stream.peer_cred()?;
            let (uid, pid) = (credentials.uid(), credentials.pid());
            if door == Door::Serial && is_of_port(deps, uid, pid) {
                Peer::Port
            } else {
                Peer::Process { uid, pid }
            }
        }
    };
    if door == Door::Serial && peer != Peer::Port {
        deps.gate.say_closed(door, peer, "only the program of the virtio-serial port is heard");
        return Ok(None);
    }
    if !is_heard(peer) {
        deps.gate.say_closed(door, peer, "only the host of the machine is heard");
        return Ok(None);
    }
    let Some(place) = places.take() else {
        deps.gate.say_closed(door, peer, "there are as many connections as the door takes");
        return Ok(None);
    };
    let is_of_host = matches!(door, Door::Vsock | Door::Serial);
    let vsock_host = is_of_host && trusts_vsock_host(&node_config(&deps.root));
    let identity = identify(peer, Trust { uid: deps.uid, vsock_host });
    Ok(Some(Connection::new(stream, CallPeer::new(door, peer, identity), place)))
}

#[cfg(test)]
mod tests {
    use nix::errno::Errno;

    use super::*;

    #[test]
    fn the_name_of_a_socket_is_its_door() {
        for (path, door) in [
            ("/run/orlop/api.sock", Door::Unix),
            ("/run/orlop/api-serial.sock", Door::Serial),
            ("/x/api-serial.sock.old", Door::Unix),
        ] {
            assert_eq!(door_of(&SockAddr::unix(path).unwrap()), door, "{path}");
        }
        assert_eq!(door_of(&SockAddr::vsock(2, 10270)), Door::Vsock);
    }

    #[test]
    fn a_peer_that_is_gone_stops_no_door() {
        let of = |errno: Errno| is_of_peer(&io::Error::from(errno));
        for errno in [Errno::ECONNABORTED, Errno::ECONNRESET, Errno::ETIMEDOUT, Errno::EHOSTUNREACH] {
            assert!(of(errno), "{errno}");
        }
        for errno in [Errno::EMFILE, Errno::ENFILE, Errno::ENOBUFS, Errno::ENOMEM, Errno::EINVAL] {
            assert!(!of(errno), "{errno}");
        }
    }
}
