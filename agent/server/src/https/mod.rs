//! The HTTPS listener: HTTP/2 and HTTP/1.1 over TLS, a task for each connection, within limits.
//!
//! ```text
//! accept ─(a place is free)─► connection task: handshake ─► requests ─► idle or ended ─► place is free
//! ```
//! In: address, TLS configuration, a handler, who starts tasks. Out: answers. Invariants: at most
//! [`Limits::connections`] are open, further ones wait in the kernel's queue; none of them costs more than
//! [`Limits::head_bytes`] before its request is judged; no request's body is read before it is judged; a listener that
//! cannot be had or fails is tried again and never stops the agent (upstream ends with exit code 1).

mod connection;
#[cfg(test)]
mod tests;

use std::future::Future;
use std::io::ErrorKind;
use std::net::SocketAddr;
use std::pin::Pin;
use std::sync::Arc;
use std::time::Duration;

use hyper::body::Incoming;
use hyper::{Request, Response};
use rustls::ServerConfig;
use rustls::pki_types::CertificateDer;
use tokio::net::TcpListener;
use tokio::sync::{Semaphore, watch};
use tokio::time::timeout;
use tokio_rustls::TlsAcceptor;
use tokio_util::sync::CancellationToken;

use crate::body::Body;

/// How long until a failed listener is tried again.
const RETRY: Duration = Duration::from_secs(5);

/// What clients may use up.
#[derive(Clone, Copy, Debug)]
pub struct Limits {
    /// Open connections.
    pub connections: usize,
    /// For the TLS handshake.
    pub handshake: Duration,
    /// For the head of a request, from its first byte or the one before's end.
    pub head: Duration,
    /// Without a request under way (contract 14.1).
    pub idle: Duration,
    /// Of a request's head.
    pub head_bytes: u32,
    /// Requests at once on one HTTP/2 connection.
    pub streams: u32,
}

impl Default for Limits {
    fn default() -> Self {
        Limits {
            connections: 1000,
            handshake: Duration::from_secs(10),
            head: Duration::from_secs(30),
            idle: Duration::from_secs(90),
            head_bytes: 64 * 1024,
            streams: 250,
        }
    }
}

/// Who is at the other end.
#[derive(Clone, Debug)]
pub struct Peer {
    /// Its address.
    pub address: SocketAddr,
    /// What it showed in the handshake, leaf first; it has the key of the first.
    pub chain: Arc<[CertificateDer<'static>]>,
}

/// Answers requests.
pub trait Handler: Send + Sync + 'static {
    /// One request; always answered.
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
    /// Serves until `stop`. `bound` tells the address once it is listened on, `None` while it is not.
    pub async fn serve(
        self,
        address: SocketAddr,
        bound: watch::Sender<Option<SocketAddr>>,
        stop: CancellationToken,
    ) {
        let places = Arc::new(Semaphore::new(self.limits.connections));
        while !stop.is_cancelled() {
            match self.listen(address, &bound, &places, &stop).await {
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
        places: &Arc<Semaphore>,
        stop: &CancellationToken,
    ) -> std::io::Result<()> {
        let listener = TcpListener::bind(address).await?;
        bound.send_replace(Some(listener.local_addr()?));
        tracing::info!(%address, "the HTTPS API listens");
        let acceptor = TlsAcceptor::from(self.tls.clone());
        loop {
            let accepted = async {
                // Closed by nobody, so this only waits.
                let place = places.clone().acquire_owned().await.ok();
                (listener.accept().await, place)
            };
            let (accepted, place) = tokio::select! {
                // A connection that is not taken stays in the kernel's queue.
                () = stop.cancelled() => return Ok(()),
                accepted = accepted => accepted,
            };
            match accepted {
                Ok((stream, from)) => {
                    let (this, acceptor) = (self.clone(), acceptor.clone());
                    self.spawner.spawn(Box::pin(async move {
                        connection::serve(this, acceptor, stream, from).await;
                        drop(place);
                    }));
                }
                // The client went away while it waited.
                Err(e) if matches!(e.kind(), ErrorKind::ConnectionAborted | ErrorKind::ConnectionReset) => {}
                Err(e) => return Err(e),
            }
        }
    }
}
