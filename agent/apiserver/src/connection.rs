//! A connection to the API server, and its replacement.
//!
//! ```text
//! request ─► live connection? ─ yes ─► send ─► answer
//!                 │ no                  └─ not sent, or refused unprocessed ─► once more on a new one
//!                 └─► dial, shared by all who wait
//! ```
//! With HTTP/1.1 (`DISABLE_HTTP2`) it is a connection for each request under way ([`crate::http1`]), by the same rules.
//!
//! In: requests; new [`Access`]. Out: answers; a generation number that watches follow.
//! Invariants: a request goes out on the newest identity; replacing the identity fails no request: those under way
//! finish on the old connection, which closes by itself after the last of them; no request goes out from an address
//! that the node lost; a request is repeated only if the server certainly did not act on it, or if it only reads;
//! locks are held for moments, never across an await.

use std::net::IpAddr;
use std::sync::Arc;
use std::sync::atomic::{AtomicU64, Ordering};

use agent_types::lock::Lock;
use bytes::Bytes;
use futures_util::FutureExt;
use futures_util::future::{BoxFuture, Shared};
use http_body_util::Full;
use hyper::body::Incoming;
use hyper::{Request, Response};
use orlop_config::error_chain::chain;
use rustls::ClientConfig;
use tokio::sync::watch;

use crate::access::{Access, Server};
use crate::connect::{self, ConnectError, Dialer, Protocol, Sender};
use crate::http1;
use crate::tls::{self, TlsError};

/// As many calls in a row without an answer close the connection: it may be dead without knowing it.
const FAILURES_MAX: u32 = 3;

/// Why a request has no answer.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum SendError {
    /// It was not sent.
    #[error(transparent)]
    NotSent(#[from] ConnectError),
    /// It may have arrived.
    #[error("the connection broke before the answer: {0}")]
    Broken(String),
}

/// Which server, who we are to it, and the TLS configuration for both. Connections of one client share it.
#[derive(Clone)]
pub(crate) struct Identity {
    pub(crate) access: Arc<Access>,
    tls: Arc<ClientConfig>,
}

impl Identity {
    pub(crate) fn new(access: Access, protocol: Protocol) -> Result<Identity, TlsError> {
        let tls = tls::client_config(&access, protocol)?;
        Ok(Identity { access: Arc::new(access), tls })
    }
}

#[derive(Clone)]
struct Live {
    number: u64,
    sender: Sender,
    local: Option<IpAddr>,
}

type Dial = Shared<BoxFuture<'static, Result<Live, ConnectError>>>;

struct ConnectionState {
    access: Arc<Access>,
    tls: Arc<ClientConfig>,
    live: Option<Live>,
    dialing: Option<Dial>,
    /// Of HTTP/1.1.
    pool: http1::Pool,
    /// Counts what the pool is emptied for.
    epoch: u64,
    failures: u32,
    /// The last call got no answer.
    silent: bool,
}

/// Owns the connection; cheap to share.
pub(crate) struct Connection {
    state: Lock<ConnectionState>,
    dialer: Dialer,
    protocol: Protocol,
    numbers: AtomicU64,
    /// Bumped when everybody should move to a new connection.
    generation: watch::Sender<u64>,
    /// Bumped when the server answers again.
    returned: watch::Sender<u64>,
}

impl Connection {
    /// None is dialled before the first request.
    pub(crate) fn new(identity: Identity, dialer: Dialer, protocol: Protocol) -> Connection {
        let state = ConnectionState {
            access: identity.access,
            tls: identity.tls,
            live: None,
            dialing: None,
            pool: http1::Pool::default(),
            epoch: 0,
            failures: 0,
            silent: false,
        };
        Connection {
            state: Lock::new(state),
            dialer,
            protocol,
            numbers: AtomicU64::new(0),
            generation: watch::Sender::new(0),
            returned: watch::Sender::new(0),
        }
    }

    pub(crate) fn access(&self) -> Arc<Access> {
        Arc::clone(&self.state.lock().access)
    }

    pub(crate) fn server(&self) -> Server {
        self.state.lock().access.server.clone()
    }

    /// How many connections were made.
    pub(crate) fn count(&self) -> u64 {
        self.numbers.load(Ordering::Relaxed)
    }

    /// Changes when watches should move to a new connection.
    pub(crate) fn generation(&self) -> watch::Receiver<u64> {
        self.generation.subscribe()
    }

    /// Takes a new identity: later requests go out on a new connection.
    pub(crate) fn replace(&self, identity: Identity) {
        let mut state = self.state.lock();
        state.access = identity.access;
        state.tls = identity.tls;
        drop(state);
        self.close();
    }

    /// Lets go of the connection: requests under way finish on it, the next request dials again.
    pub(crate) fn close(&self) {
        let mut state = self.state.lock();
        state.live = None;
        state.dialing = None;
        state.pool = http1::Pool::default();
        state.epoch += 1;
        state.failures = 0;
        drop(state);
        self.generation.send_modify(|g| *g += 1);
    }

    /// Changes when a server that did not answer does: a task that waits to try again need not wait any longer.
    pub(crate) fn returned(&self) -> watch::Receiver<u64> {
        self.returned.subscribe()
    }

    /// Notes that a call got an answer, or none.
    pub(crate) fn answered(&self, answered: bool) {
        let mut state = self.state.lock();
        state.failures = if answered { 0 } else { state.failures.saturating_add(1) };
        let returned = std::mem::replace(&mut state.silent, !answered) && answered;
        let held = state.live.is_some() || (self.protocol == Protocol::Http1 && !answered);
        let dead = state.failures >= FAILURES_MAX && held;
        drop(state);
        if returned {
            self.returned.send_modify(|n| *n += 1);
        }
        if dead {
            self.close();
        }
    }

    /// Sends a request, on a second connection if the first did not take it.
    pub(crate) async fn send(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        if self.protocol == Protocol::Http1 {
            return self.send_alone(http1::to_origin(request)).await;
        }
        let mut again = true;
        loop {
            let mut live = self.live().await?;
            match live.sender.try_send_request(request.clone()).await {
                Ok(response) => return Ok(response),
                Err(mut failed) => {
                    let unprocessed = failed.take_message().is_some() || is_unprocessed(failed.error());
                    // A reset stream says nothing about the others; anything else may be the connection's end.
                    if unprocessed || live.sender.is_closed() || !is_reset(failed.error()) {
                        self.forget(live.number);
                    }
                    // Reading twice is reading once.
                    if (unprocessed || request.method() == hyper::Method::GET) && again {
                        again = false;
                        continue;
                    }
                    let reason = chain(failed.error());
                    if unprocessed {
                        return Err(self.not_sent(reason));
                    }
                    return Err(SendError::Broken(reason));
                }
            }
        }
    }

    /// The same over HTTP/1.1: on a connection for this request only.
    async fn send_alone(&self, request: Request<Full<Bytes>>) -> Result<Response<Incoming>, SendError> {
        let mut again = true;
        loop {
            let (kept, epoch) = {
                let mut state = self.state.lock();
                (state.pool.take(), state.epoch)
            };
            let mut kept = match kept {
                Some(kept) => kept,
                None => self.dial_alone().await?,
            };
            match kept.sender.try_send_request(request.clone()).await {
                Ok(response) => {
                    let mut state = self.state.lock();
                    // One that was let go of meanwhile ends with its answer.
                    if state.epoch == epoch {
                        state.pool.put(kept);
                    }
                    return Ok(response);
                }
                Err(mut failed) => {
                    let unprocessed = failed.take_message().is_some();
                    if (unprocessed || request.method() == hyper::Method::GET) && again {
                        again = false;
                        continue;
                    }
                    let reason = chain(failed.error());
                    return Err(if unprocessed { self.not_sent(reason) } else { SendError::Broken(reason) });
                }
            }
        }
    }

    async fn dial_alone(&self) -> Result<http1::PooledConnection, ConnectError> {
        let (access, tls) = {
            let state = self.state.lock();
            (Arc::clone(&state.access), Arc::clone(&state.tls))
        };
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let dialed = connect::dial_http1(&access, tls, &self.dialer).await?;
        keep(number, access, dialed.task);
        Ok(http1::PooledConnection { sender: dialed.sender, local: dialed.local })
    }

    fn not_sent(&self, reason: String) -> SendError {
        let server = self.server().to_string();
        SendError::NotSent(ConnectError::Protocol { server, protocol: self.protocol, reason })
    }

    fn forget(&self, number: u64) {
        let mut state = self.state.lock();
        if state.live.as_ref().is_some_and(|l| l.number == number) {
            state.live = None;
        }
    }

    async fn live(&self) -> Result<Live, ConnectError> {
        let local = self.state.lock().live.as_ref().and_then(|live| live.local);
        if let Some(gone) = local.filter(|local| !connect::is_of_host(*local)) {
            tracing::info!(address = %gone, "the node lost the address of its connection to the API server");
            self.close();
        }
        let dial = {
            let mut state = self.state.lock();
            match &state.live {
                Some(live) if !live.sender.is_closed() => return Ok(live.clone()),
                _ => state.live = None,
            }
            match &state.dialing {
                Some(dial) => dial.clone(),
                None => {
                    let dial = self.dial(&state);
                    state.dialing = Some(dial.clone());
                    dial
                }
            }
        };
        let outcome = dial.clone().await;
        let mut state = self.state.lock();
        // Only the dial of this identity counts: another may have been begun meanwhile.
        if state.dialing.as_ref().is_some_and(|d| d.ptr_eq(&dial)) {
            state.dialing = None;
            state.live = outcome.as_ref().ok().cloned();
        }
        outcome
    }

    fn dial(&self, state: &ConnectionState) -> Dial {
        let (access, tls, dialer) = (Arc::clone(&state.access), Arc::clone(&state.tls), self.dialer.clone());
        let number = self.numbers.fetch_add(1, Ordering::Relaxed) + 1;
        let dial = async move {
            let dialed = connect::dial(&access, tls, &dialer).await?;
            keep(number, access, dialed.task);
            Ok(Live { number, sender: dialed.sender, local: dialed.local })
        };
        dial.boxed().shared()
    }
}

/// The connection lives in a task of its own, the only one this crate starts: it ends when the last handle is
/// gone and the last answer read, or when the connection breaks; either way by itself.
fn keep(
    number: u64,
    access: Arc<Access>,
    task: impl Future<Output = Result<(), hyper::Error>> + Send + 'static,
) {
    tokio::spawn(async move {
        let outcome = task.await;
        let server = access.server.to_string();
        match outcome {
            Ok(()) => tracing::debug!(number, server, "connection to the API server closed"),
            Err(error) => {
                tracing::info!(number, server, error = chain(&error), "connection to the API server broke");
            }
        }
    });
}

fn h2_error(error: &hyper::Error) -> Option<&h2::Error> {
    let mut next = std::error::Error::source(error);
    while let Some(cause) = next {
        if let Some(h2) = cause.downcast_ref::<h2::Error>() {
            return Some(h2);
        }
        next = cause.source();
    }
    None
}

/// True if only this request's stream ended.
fn is_reset(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(h2::Error::is_reset)
}

/// True if the server certainly did not act on the request: it said so by refusing the stream, or by going away
/// with a smaller stream number.
fn is_unprocessed(error: &hyper::Error) -> bool {
    h2_error(error).is_some_and(|h2| {
        let said = |reason| h2.is_remote() && h2.reason() == Some(reason);
        h2.is_reset() && said(h2::Reason::REFUSED_STREAM) || h2.is_go_away() && said(h2::Reason::NO_ERROR)
    })
}
