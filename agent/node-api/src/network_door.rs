//! The way in by the network: TCP, TLS with raw public keys, and an identity by the key.
//!
//! ```text
//! TCP ─► accept ─► handshake (bounded, the oldest goes) ─► key ─► api.admins ─┬─► Connection, a place of administrators
//!                                                                             └─► Connection, one of few places of strangers
//!                                                                                   └─ a token of the cluster ─► a place of its users
//! ```
//! Invariants: strangers take no place of administrators: handshakes are displaced by newer ones, and a key that the configuration does
//! not have gets a place of its own kind; a handshake has [`HANDSHAKE_MAX`]; a key is looked up in the present configuration.

use std::collections::VecDeque;
use std::io;
use std::net::{IpAddr, Ipv6Addr, SocketAddr};
use std::sync::Arc;
use std::time::Duration;

use futures_util::future::{AbortHandle, BoxFuture, FutureExt as _, abortable};
use futures_util::stream::{self, BoxStream, FuturesUnordered, StreamExt as _};
use orlop_config::admin_key;
use rustls::ServerConfig;
use socket2::Socket;
use tokio::net::{TcpListener, TcpStream};
use tokio::time::{Instant, sleep_until, timeout};
use tokio_rustls::TlsAcceptor;
use tokio_rustls::server::TlsStream;

use crate::collect::node_config;
use crate::connection::{CallPeer, Connection, DoorPlaces};
use crate::doors::{CONNECTIONS_MAX, DoorDeps, RETRY, is_of_peer};
use crate::facts::{accepts_cluster, admins};
use crate::guard::{Door, Peer, identify_key};
use crate::tls::fingerprint;

/// A handshake takes so long at most.
const HANDSHAKE_MAX: Duration = Duration::from_secs(5);
/// Handshakes at once, of all sources and of one.
const HANDSHAKES_MAX: (usize, usize) = (64, 4);
/// Connections of keys that the configuration does not have: each is worth one refusal.
const STRANGERS_MAX: usize = 4;

/// A handshake: its number, its address, and the stream if it ended well.
type Handshake = BoxFuture<'static, (u64, SocketAddr, Option<TlsStream<TcpStream>>)>;

/// What counts as one source: an IPv4 address, or a network of 64 bits, in which a machine takes as many IPv6 addresses as it likes.
fn source_of(address: SocketAddr) -> IpAddr {
    match address.ip().to_canonical() {
        IpAddr::V6(ip) => IpAddr::V6(Ipv6Addr::from_bits(ip.to_bits() & (u128::MAX << 64))),
        ip @ IpAddr::V4(_) => ip,
    }
}

/// The door.
struct NetworkDoor {
    listener: TcpListener,
    acceptor: TlsAcceptor,
    deps: DoorDeps,
    places: DoorPlaces,
    strangers: DoorPlaces,
    /// Of users of the cluster.
    users: DoorPlaces,
    handshakes: FuturesUnordered<Handshake>,
    /// The same handshakes, the oldest first.
    begun: VecDeque<(u64, IpAddr, AbortHandle)>,
    number: u64,
    /// Nothing is accepted until then.
    paused: Option<Instant>,
}

/// The connections of a TCP socket, without an end.
///
/// # Errors
/// The socket cannot be used.
pub(crate) fn connections(
    socket: Socket,
    tls: Arc<ServerConfig>,
    deps: DoorDeps,
) -> io::Result<BoxStream<'static, io::Result<Connection>>> {
    socket.set_nonblocking(true)?;
    let door = NetworkDoor {
        listener: TcpListener::from_std(std::net::TcpListener::from(socket))?,
        acceptor: TlsAcceptor::from(tls),
        places: DoorPlaces::new(CONNECTIONS_MAX, deps.open.clone()),
        strangers: DoorPlaces::new(STRANGERS_MAX, deps.open.clone()),
        users: DoorPlaces::new(CONNECTIONS_MAX, deps.open.clone()),
        deps,
        handshakes: FuturesUnordered::new(),
        begun: VecDeque::new(),
        number: 0,
        paused: None,
    };
    let taken = stream::unfold(door, |mut door| async move {
        let connection = door.next().await;
        Some((Ok(connection), door))
    });
    Ok(taken.boxed())
}

impl NetworkDoor {
    async fn next(&mut self) -> Connection {
        loop {
            let paused = self.paused;
            tokio::select! {
                // Cancel-safe: a connection that is not taken stays in the queue.
                accepted = self.listener.accept(), if paused.is_none() => match accepted {
                    Ok((stream, address)) => self.begin(stream, address),
                    Err(error) if is_of_peer(&error) => {}
                    Err(error) => {
                        tracing::error!(%error, "no connection is accepted by TCP; the next try is in 5 s");
                        self.paused = Some(Instant::now() + RETRY);
                    }
                },
                // Cancel-safe: the time stays. Handshakes go on meanwhile.
                () = sleep_until(paused.unwrap_or_else(Instant::now)), if paused.is_some() => {
                    self.paused = None;
                }
                // Cancel-safe: it only takes what has ended.
                Some((number, address, stream)) = self.handshakes.next(), if !self.handshakes.is_empty() => {
                    self.begun.retain(|(other, _, _)| *other != number);
                    if let Some(connection) = stream.and_then(|stream| self.connection(stream, address)) {
                        return connection;
                    }
                }
            }
        }
    }

    /// Begins a handshake; an older one goes if there are too many.
    fn begin(&mut self, stream: TcpStream, address: SocketAddr) {
        let source = source_of(address);
        let of_source = self.begun.iter().filter(|(_, ip, _)| *ip == source).count();
        let displaced = if of_source >= HANDSHAKES_MAX.1 {
            self.begun.iter().position(|(_, ip, _)| *ip == source)
        } else {
            (self.begun.len() >= HANDSHAKES_MAX.0).then_some(0)
        };
        if let Some((_, _, handshake)) = displaced.and_then(|at| self.begun.remove(at)) {
            handshake.abort();
        }
        // A connection without it is slower.
        let _ = stream.set_nodelay(true);
        self.number = self.number.wrapping_add(1);
        let number = self.number;
        let (handshake, handle) = abortable(timeout(HANDSHAKE_MAX, self.acceptor.accept(stream)));
        self.begun.push_back((number, source, handle));
        let ended = async move {
            // Displaced, too late, or no TLS of ours: nobody to answer.
            let stream = handshake.await.ok().and_then(Result::ok).and_then(Result::ok);
            (number, address, stream)
        };
        self.handshakes.push(ended.boxed());
    }

    /// `None` if there is no place.
    fn connection(&self, stream: TlsStream<TcpStream>, address: SocketAddr) -> Option<Connection> {
        let shown = stream.get_ref().1.peer_certificates().and_then(|keys| keys.first());
        let key = shown.map(|key| AsRef::<[u8]>::as_ref(key).to_vec()).unwrap_or_default();
        // A socket of both families shows IPv4 addresses inside of IPv6's.
        let address = SocketAddr::new(address.ip().to_canonical(), address.port());
        let peer = Peer::Network { address };
        let config = node_config(&self.deps.root);
        let known = admins(&config);
        let (key, fingerprint) = (admin_key::render(&key), fingerprint(&key));
        let identity = identify_key(peer, &key, &fingerprint, &known);
        let places = if identity.is_ok() { &self.places } else { &self.strangers };
        let Some(place) = places.take() else {
            self.deps.gate.say_closed(
                Door::Tcp,
                peer,
                "there are as many connections of its kind as the door takes",
            );
            return None;
        };
        let may_prove = identity.is_err() && accepts_cluster(&config);
        let caller = CallPeer::new(Door::Tcp, peer, identity).with_key(key);
        Some(match may_prove {
            true => Connection::of_stranger(stream, caller, place, self.users.clone()),
            false => Connection::new(stream, caller, place),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn addresses_of_one_machine_are_one_source() {
        for (address, source) in [
            ("192.0.2.7:5", "192.0.2.7"),
            ("[::ffff:192.0.2.7]:5", "192.0.2.7"),
            ("[2001:db8:1:2:3:4:5:6]:5", "2001:db8:1:2::"),
            ("[2001:db8:1:2::1]:5", "2001:db8:1:2::"),
            ("[2001:db8:1:3::1]:5", "2001:db8:1:3::"),
        ] {
            assert_eq!(source_of(address.parse().unwrap()), source.parse::<IpAddr>().unwrap(), "{address}");
        }
    }
}
