//! The HTTPS listener: HTTP/2 and HTTP/1.1 over TLS, a task for each connection, within limits.
//!
//! ```text
//! accept ─► a place? ─ yes ─► connection task: handshake ─► requests ─► idle, ended or displaced ─► place is free
//!              └─ no ─► closed
//! ```
//! In: address, TLS configuration, a handler, the owner of tasks. Out: answers. Invariants: at most
//! [`Limits::connections`] connections are open, by the rules of [`agent_kubelet_api::server_policy::ConnectionSlots`]; a
//! connection without an admitted request and without a verified client certificate ends after
//! [`Limits::life_of_strangers`] in every case; a stream costs at most [`Limits::head_bytes`] before its
//! request is authorized; the body of a request is not read before that; an answer that the client does not
//! read ends after [`Limits::stalled`]; a listener that cannot open or fails is tried again and never stops
//! the agent (upstream ends with exit code 1).

mod connection;
mod sending;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use agent_kubelet_api::server_policy::ConnectionLimits;
use hyper::body::Incoming;
use hyper::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::sync::watch;
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::body::Body;
use crate::connections::{ConnectionLimiter, ConnectionPermit};
use crate::listening::listen;

/// How long until a failed listener is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What clients may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections, and how many of them strangers may have.
    pub connections: ConnectionLimits,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, from its first byte or the one before's end.
    pub head: Duration,
    /// Time without a request in progress; upstream's is 90 s (pkg/kubelet/server/server.go).
    pub idle: Duration,
    /// Of a request's head.
    pub head_bytes: u32,
    /// Requests at once on one HTTP/2 connection whose client certificate was verified.
    pub streams: u32,
    /// And on any other: clients with tokens and strangers. More connections are a client's way to more requests.
    pub streams_of_strangers: u32,
    /// Of a connection on which no request was admitted.
    pub life_of_strangers: Duration,
    /// For which a client may take nothing of an answer that is ready; upstream's limit of a whole answer. A pager that
    /// shows one page of a log takes nothing, either.
    pub stalled: Duration,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: ConnectionLimits::of(1000),
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            head_bytes: 64 * 1024,
            streams: 250,
            streams_of_strangers: 16,
            life_of_strangers: Duration::from_secs(60),
            stalled: Duration::from_secs(4 * 3600),
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// What it showed in the handshake, leaf first; it has the key of the first, unless that cannot be verified at all
    /// ([`crate::tls::clients`]).
    pub chain: Arc<[CertificateDer<'static>]>,
    permit: Arc<ConnectionPermit>,
}

impl Peer {
    /// It is no stranger: a request of it was admitted, or its certificate was verified.
    pub fn admitted(&self) {
        self.permit.know();
    }
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// True if the peer's certificate alone says who it is.
    fn knows(&self, peer: &Peer) -> bool;

    /// One request; always answered. An implementation that admits it calls [`Peer::admitted`].
    fn handle(
        &self,
        peer: &Peer,
        request: Request<Incoming>,
    ) -> Pin<Box<dyn Future<Output = Response<Body>> + Send + 'static>>;
}

/// Starts tasks that end with the node.
pub trait Spawn: Send + Sync + 'static {
    /// Starts one.
    fn spawn(&self, task: Pin<Box<dyn Future<Output = ()> + Send + 'static>>);
}

/// Shared by all connections.
#[derive(Clone)]
pub struct Https {
    /// TLS configuration.
    pub tls: Arc<ServerConfig>,
    /// Limits.
    pub limits: Limits,
    /// Who answers.
    pub handler: Arc<dyn Handler>,
    /// Who starts connections' tasks.
    pub spawner: Arc<dyn Spawn>,
}

impl Https {
    /// Serves until `stop`. `bound` has the address while it is listened on, otherwise `None`.
    pub async fn serve(
        self,
        address: SocketAddr,
        bound: watch::Sender<Option<SocketAddr>>,
        stop: CancellationToken,
    ) {
        let limiter = ConnectionLimiter::new(self.limits.connections);
        while !stop.is_cancelled() {
            match self.listen(address, &bound, &limiter, &stop).await {
                Ok(()) => {}
                Err(error) => {
                    tracing::error!(%address, %error, "the HTTPS API does not listen; trying again in 5 s");
                }
            }
            bound.send_replace(None);
            // Waits for the stop, with the retry as its deadline.
            let _ = timeout(RETRY, stop.cancelled()).await;
        }
    }

    async fn listen(
        &self,
        address: SocketAddr,
        bound: &watch::Sender<Option<SocketAddr>>,
        limiter: &ConnectionLimiter,
        stop: &CancellationToken,
    ) -> std::io::Result<()> {
        let listener = listen(address).await?;
        bound.send_replace(Some(listener.local_addr()?));
        tracing::info!(%address, "the HTTPS API listens");
        let acceptor = TlsAcceptor::from(self.tls.clone());
        loop {
            let accepted = tokio::select! {
                // A connection that is not taken stays in the kernel's queue.
                () = stop.cancelled() => return Ok(()),
                accepted = listener.accept() => accepted,
            };
            match accepted {
                Ok((stream, from)) => {
                    let Some(permit) = limiter.take(from.ip()) else {
                        tracing::debug!(%from, "no place for the connection; it is closed");
                        continue;
                    };
                    let (this, acceptor) = (self.clone(), acceptor.clone());
                    self.spawner.spawn(Box::pin(connection::serve(this, acceptor, stream, from, permit)));
                }
                // The client went away while it waited.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
