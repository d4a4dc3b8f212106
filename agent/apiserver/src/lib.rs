//! agent-apiserver: the node's client of the API server.
//!
//! In: a kubeconfig or a first-boot token, calls as values ([`agent_types::api::ApiCall`]). Out: answers, watch
//! events, certificates on disk. Decisions (when to ask for a certificate, what to write) are in agent-core; here
//! is only what touches TCP, TLS and the certificate directory. See docs/internals/join.md.
//!
//! ```text
//! kubeconfig ─► Access ─► ApiClient ─┬─► call() ─► limiter ─┐
//! discovery ──►              ▲       ├─► watch_*() ─────────┴─► connection (one, HTTP/2) ─► TLS ─► TCP
//! certificates ─► files ─► refresh   └─► call() of reviews ───► another one, made when it is needed
//! ```
//!
//! Requests are built by kube's core. Its client is not used: it loses `Retry-After`, fails a whole list for one
//! object that does not decode, reads lines and bodies without a limit, and owns connections in a pool that keeps them
//! after the certificate was replaced. HTTP/2 connections of our own do all four: one for the node's own work, and one
//! for reviews of callers of the node, which strangers cause.
//!
//! Invariants:
//! - Nothing the server sends makes this crate panic or hold more than a bounded amount of memory.
//! - No token and no private key reaches a log or an error message.
//! - A failure after which a write may have been applied is `DeadlineExceeded`, never anything weaker.
#![forbid(unsafe_code)]

mod access;
pub mod certificates;
mod client;
mod connect;
mod connection;
pub mod discovery;
mod error;
mod http1;
mod json;
pub mod kubeconfig;
mod limiter;
mod random;
mod reach;
mod refresh;
mod request;
mod server_clock;
#[cfg(feature = "testing")]
pub mod testing;
#[cfg(test)]
mod tests;
mod tls;
mod watch;

pub use access::{Access, Credentials, KeyPem, Server, ServerError, Trust};
pub use client::{ApiClient, Health, Observer, Options, RequestObserver, Stats};
pub use connect::{ConnectError, Protocol};
pub use reach::ApiReach;
pub use refresh::{Refreshed, keep_fresh};
pub use server_clock::{ServerClockError, pinned_since, server_clock};
pub use tls::{SYSTEM_BUNDLE, TlsError, Unverified, machine_client, provider};
pub use watch::Watched;
