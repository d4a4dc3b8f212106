//! The CRI client: the only crate that uses the container runtime's socket.
//!
//! In: the endpoint (`unix:///…`), and agent-core's configurations and ids. Out: [`CriClient`], which
//! implements [`agent_kubelet_api::drivers::Runtime`], [`agent_kubelet_api::drivers::ImageService`] and
//! [`agent_kubelet_api::drivers::Exec`], and the event stream ([`CriClient::events`]).
//!
//! Invariants:
//! - Every call has a deadline, which the request carries, except `PullImage` and `ExecSync` without a
//!   timeout. The deadlines are upstream's (cri-client/pkg/remote_runtime.go).
//! - A failure after which the runtime may have applied the call is `Interrupted` (the connection broke) or
//!   `DeadlineExceeded`, never a weaker class.
//! - Creating is idempotent: for a name that is taken the client looks up the object by labels and attempt,
//!   and returns it.
//! - This crate logs a failure once, and an equal message at most once a minute; callers need not log it
//!   again.
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
mod observe;
mod pod_network;
mod runtime;
mod statistics;
mod status_cache;
mod streaming;
#[cfg(feature = "testing")]
pub mod testing;

pub use client::{CallObserver, CriClient};
pub use connect::socket_path;
pub use error::CriError;
