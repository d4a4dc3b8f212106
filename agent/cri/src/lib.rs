//! The CRI client: everything that touches the container runtime's socket.
//!
//! In: the endpoint (`unix:///…`), and agent-core's configurations and ids. Out: [`CriClient`], which implements
//! [`agent_kubelet_api::drivers::Runtime`], [`agent_kubelet_api::drivers::ImageService`] and [`agent_kubelet_api::drivers::Exec`], and
//! the event stream ([`CriClient::events`]).
//!
//! Invariants (contract chapter 7.4a):
//! - Every call has a deadline, sent along with it, except `PullImage` and `ExecSync` without a timeout.
//! - A failure after which the call may have been applied is `Interrupted` (the connection broke) or `DeadlineExceeded`,
//!   never anything weaker.
//! - Creating is idempotent: a name that is taken is looked up by labels and attempt, and answered.
//! - A failure is logged here, once, and the same words at most once a minute; callers need not log it again.
//!
//! Upstream's counterpart is the package cri-client.

#![forbid(unsafe_code)]

mod amounts;
mod client;
mod connect;
pub mod convert;
mod error;
mod error_log;
mod events;
mod exec;
mod existing;
mod image;
mod known;
mod observe;
mod pod_network;
mod runtime;
mod statistics;
mod streaming;
#[cfg(feature = "testing")]
pub mod testing;

pub use client::{CallObserver, CriClient};
pub use connect::socket_path;
pub use error::CriError;
