//! Carries out probes and hooks: commands through the runtime, connections over the pod's network.
//!
//! In: a [`ProbeCall`]. Out: its [`Outcome`], always within the call's timeout (a command: within the runtime's
//! deadline). In: a [`HookCall`], which has no time limit here. Dropping a future ends its call. Invariants: bounded
//! numbers at once (`EXECS_MAX`, `CONNECTIONS_MAX`; the timeout begins with the call's turn), bounded memory for a
//! container's answer. Upstream: pkg/kubelet/prober/prober.go, pkg/probe, pkg/kubelet/lifecycle
//! (docs/internals/agent/probes-and-hooks.md).

mod command;
mod grpc;
mod hook;
pub mod http;
mod names;
mod net;
mod tls;

use std::sync::Arc;

use agent_core::lifecycle_hooks::{HookCall, HookFailure};
use agent_core::probe::check::Check;
use agent_core::probe::{Outcome, ProbeCall};
use agent_kubelet_api::drivers::Exec;
use futures_util::future::BoxFuture;
use tokio::sync::Semaphore;

use self::http::HttpClient;

/// Commands at once: each is a process that the runtime starts.
const EXECS_MAX: usize = 16;
/// Connections at once: an unanswered probe holds one for its timeout, and must not delay the others.
const CONNECTIONS_MAX: usize = 256;
/// Bytes of an answer that are looked at.
pub const ANSWER_BYTES_MAX: usize = 10 * 1024;

/// Carries out probes and hooks.
pub trait Handlers: Send + Sync + 'static {
    /// Asks once.
    fn probe<'a>(&'a self, call: &'a ProbeCall) -> BoxFuture<'a, Outcome>;

    /// Runs a hook to its end; the caller has the time limit. Returns the server of an https hook that answered in
    /// plain text and was asked again over http, or the failure of the hook.
    fn hook<'a>(&'a self, call: &'a HookCall) -> BoxFuture<'a, Result<Option<String>, HookFailure>>;
}

/// [`Handlers`] of a real node.
pub struct PodHandlers<E> {
    exec: Arc<E>,
    http: HttpClient,
    execs: Semaphore,
    connections: Semaphore,
}

impl<E: Exec> PodHandlers<E> {
    /// Commands go to `exec`.
    ///
    /// # Errors
    /// TLS cannot be set up.
    pub fn new(exec: Arc<E>) -> anyhow::Result<PodHandlers<E>> {
        Ok(PodHandlers {
            exec,
            http: HttpClient::new()?,
            execs: Semaphore::new(EXECS_MAX),
            connections: Semaphore::new(CONNECTIONS_MAX),
        })
    }

    async fn ask(&self, call: &ProbeCall) -> Outcome {
        let turns = match call.check {
            Check::Exec { .. } => &self.execs,
            _ => &self.connections,
        };
        // Neither is ever closed.
        let _turn = turns.acquire().await;
        match &call.check {
            Check::Exec { command } => {
                command::probe(&*self.exec, &call.container, command, call.timeout).await
            }
            Check::HttpGet(get) => self.http.probe(get, call.timeout).await,
            Check::TcpSocket { host, port } => net::probe(self.http.names(), host, *port, call.timeout).await,
            Check::Grpc { host, port, service } => grpc::probe(host, *port, service, call.timeout).await,
        }
    }
}

impl<E: Exec> Handlers for PodHandlers<E> {
    fn probe<'a>(&'a self, call: &'a ProbeCall) -> BoxFuture<'a, Outcome> {
        Box::pin(self.ask(call))
    }

    fn hook<'a>(&'a self, call: &'a HookCall) -> BoxFuture<'a, Result<Option<String>, HookFailure>> {
        Box::pin(hook::run(&*self.exec, &self.http, call))
    }
}

#[cfg(test)]
mod tests;
