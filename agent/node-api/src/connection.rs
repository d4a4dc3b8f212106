//! One connection of any door, and the places of a door.
//!
//! Invariants: a door has a bounded number of connections at once; who says nothing within [`FIRST_BYTES_MAX`] loses its place; a
//! stranger, who gets refusals only, loses it after that time in any case, unless the cluster has let a token of the connection in: then
//! the connection has a place of another kind.

use std::io::{self, ErrorKind};
use std::pin::Pin;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::task::{Context, Poll};
use std::time::Duration;

use agent_linux::clock::boottime;
use agent_types::time::Mono;
use tokio::io::{AsyncRead, AsyncWrite, ReadBuf};
use tokio::sync::watch;
use tokio::time::{Instant, Sleep, sleep_until};
use tonic::transport::server::Connected;

use crate::guard::{Door, Identity, Peer};
use crate::refusal::Refusal;

/// HTTP/2 begins with so many bytes (RFC 9113, section 3.4).
const PREFACE: usize = 24;
/// A connection says them within this. One of a stranger ends then.
const FIRST_BYTES_MAX: Duration = Duration::from_secs(10);

/// Who a call is from.
#[derive(Clone, Debug)]
pub(crate) struct CallPeer {
    pub(crate) door: Door,
    pub(crate) peer: Peer,
    /// By the connection; in a call also by its token.
    pub(crate) identity: Result<Identity, Refusal>,
    /// The key that it has shown, as `api.admins` has it; empty: none.
    pub(crate) key: String,
    /// When the connection was taken.
    pub(crate) since: Mono,
    /// The call has taken a token of strangers for its own token of the cluster.
    pub(crate) is_counted: bool,
    /// A call of the connection had a token that the cluster has let in.
    proved: Arc<AtomicBool>,
}

impl CallPeer {
    /// One whose connection is taken now, without a key.
    pub(crate) fn new(door: Door, peer: Peer, identity: Result<Identity, Refusal>) -> CallPeer {
        let (key, since) = (String::new(), boottime());
        CallPeer { door, peer, identity, key, since, is_counted: false, proved: Arc::default() }
    }

    /// The same with the key that it has shown.
    pub(crate) fn with_key(self, key: String) -> CallPeer {
        CallPeer { key, ..self }
    }

    /// The cluster has let a token of the connection in.
    pub(crate) fn prove(&self) {
        self.proved.store(true, Ordering::SeqCst);
    }
}

/// The places of a door; clones are the same places.
#[derive(Clone, Debug)]
pub(crate) struct DoorPlaces {
    taken: Arc<AtomicUsize>,
    max: usize,
    /// Connections of all doors.
    open: watch::Sender<usize>,
}

impl DoorPlaces {
    pub(crate) fn new(max: usize, open: watch::Sender<usize>) -> DoorPlaces {
        DoorPlaces { taken: Arc::default(), max, open }
    }

    /// A place, if there is one.
    pub(crate) fn take(&self) -> Option<TakenPlace> {
        if self.taken.fetch_add(1, Ordering::SeqCst) >= self.max {
            self.taken.fetch_sub(1, Ordering::SeqCst);
            return None;
        }
        self.open.send_modify(|count| *count += 1);
        Some(TakenPlace(self.clone()))
    }
}

/// A place of a door, and one of all connections.
pub(crate) struct TakenPlace(DoorPlaces);

impl Drop for TakenPlace {
    fn drop(&mut self) {
        self.0.taken.fetch_sub(1, Ordering::SeqCst);
        self.0.open.send_modify(|count| *count = count.saturating_sub(1));
    }
}

/// Bytes of a connection.
pub(crate) trait DoorStream: AsyncRead + AsyncWrite + Send + Unpin + 'static {}

impl<T: AsyncRead + AsyncWrite + Send + Unpin + 'static> DoorStream for T {}

/// One connection.
pub(crate) struct Connection {
    stream: Box<dyn DoorStream>,
    caller: CallPeer,
    /// Bytes of the preface that have not come yet, and until when they may.
    missing: usize,
    deadline: Pin<Box<Sleep>>,
    place: ConnectionPlace,
}

/// The place of a connection.
enum ConnectionPlace {
    /// It stays.
    Kept { _place: TakenPlace },
    /// A stranger's; one of the others is taken when the cluster has let a token in.
    Stranger { _place: TakenPlace, others: DoorPlaces },
    /// There was none of the others.
    Refused,
}

impl Connection {
    pub(crate) fn new(stream: impl DoorStream, caller: CallPeer, place: TakenPlace) -> Connection {
        Connection {
            stream: Box::new(stream),
            caller,
            missing: PREFACE,
            deadline: Box::pin(sleep_until(Instant::now() + FIRST_BYTES_MAX)),
            place: ConnectionPlace::Kept { _place: place },
        }
    }

    /// One of a stranger, who may yet prove to be a user of the cluster: `others` has the places of those.
    pub(crate) fn of_stranger(
        stream: impl DoorStream,
        caller: CallPeer,
        place: TakenPlace,
        others: DoorPlaces,
    ) -> Connection {
        let place = ConnectionPlace::Stranger { _place: place, others };
        Connection {
            stream: Box::new(stream),
            caller,
            missing: PREFACE,
            deadline: Box::pin(sleep_until(Instant::now() + FIRST_BYTES_MAX)),
            place,
        }
    }
}

impl Connection {
    /// Whether its time is over; wakes the caller's task then.
    fn is_over(&mut self, cx: &mut Context<'_>) -> bool {
        let is_proved = self.caller.proved.load(Ordering::SeqCst);
        if let ConnectionPlace::Stranger { others, .. } = &self.place
            && is_proved
        {
            self.place = match others.take() {
                Some(place) => ConnectionPlace::Kept { _place: place },
                None => ConnectionPlace::Refused,
            };
        }
        if matches!(self.place, ConnectionPlace::Refused) {
            return true;
        }
        let is_stranger = self.caller.identity.is_err() && !is_proved;
        (self.missing > 0 || is_stranger) && self.deadline.as_mut().poll(cx).is_ready()
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
        if self.is_over(cx) {
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
        // Who reads nothing is not asked for more either.
        if self.is_over(cx) {
            return Poll::Ready(Err(ErrorKind::TimedOut.into()));
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
    use tokio::io::{AsyncReadExt as _, AsyncWriteExt as _};
    use tokio::time::timeout;

    use super::*;
    use crate::guard::Role;
    use crate::refusal::Reason;

    #[tokio::test(start_paused = true)]
    async fn a_silent_connection_and_a_stranger_s_end_and_another_stays() {
        let (open, connected) = watch::channel(0);
        let places = DoorPlaces::new(1, open);
        let root = || Ok(Identity { name: "uid 0".to_owned(), role: Role::Operator });
        let stranger = || Err(Refusal::new(Reason::NotTrusted, "uid 1", "no"));
        for (identity, speaks, ends) in [
            (root(), false, true),
            (root(), true, false),
            (stranger(), true, true),
            (stranger(), false, true),
        ] {
            let (near, mut far) = tokio::io::duplex(64);
            let caller = CallPeer::new(Door::Unix, Peer::Process { uid: 1, pid: None }, identity);
            let mut connection = Connection::new(near, caller, places.take().unwrap());
            assert!(places.take().is_none());
            if speaks {
                far.write_all(&[0; PREFACE]).await.unwrap();
                let mut preface = [0; PREFACE];
                connection.read_exact(&mut preface).await.unwrap();
            }
            let more = timeout(FIRST_BYTES_MAX * 2, connection.read_u8()).await;
            assert_eq!(matches!(more, Ok(Err(_))), ends, "{more:?}");
            assert_eq!(connection.write_all(b"x").await.is_err(), ends);
        }
        assert_eq!(*connected.borrow(), 0);
    }

    #[tokio::test(start_paused = true)]
    async fn a_stranger_whose_token_the_cluster_lets_in_stays_and_frees_the_stranger_s_place() {
        let (open, connected) = watch::channel(0);
        let (strangers, others) = (DoorPlaces::new(1, open.clone()), DoorPlaces::new(1, open));
        let mut stays = Vec::new();
        for stays_long in [true, false] {
            let (near, mut far) = tokio::io::duplex(64);
            let stranger = Err(Refusal::new(Reason::UnknownKey, "x", "no"));
            let caller = CallPeer::new(Door::Tcp, Peer::Machine { cid: 2 }, stranger);
            let place = strangers.take().unwrap();
            let mut connection = Connection::of_stranger(near, caller.clone(), place, others.clone());
            far.write_all(&[0; PREFACE]).await.unwrap();
            let mut preface = [0; PREFACE];
            connection.read_exact(&mut preface).await.unwrap();
            assert!(strangers.take().is_none());
            caller.prove();
            let more = timeout(FIRST_BYTES_MAX * 2, connection.read_u8()).await;
            // The second one finds no place of the other kind.
            assert_eq!(more.is_err(), stays_long, "{more:?}");
            assert!(strangers.take().is_some(), "the place is free again");
            stays.push((connection, far));
        }
        drop(stays);
        assert_eq!(*connected.borrow(), 0);
    }
}
