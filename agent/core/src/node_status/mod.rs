//! The Node object: the machine registers it and keeps its status current.
//!
//! # For the shell
//! Ask [`may_join`] first. Send news of each source as [`NodeStatusEvent::Input`], every event of the watch
//! on the own Node as [`NodeStatusEvent::Watched`], the answer to each [`NodeStatusAction::Call`] as
//! [`NodeStatusEvent::Answered`], and [`NodeStatusEvent::Tick`] at the deadline; the first tick starts the
//! work. The first `Machine`, `Network` and `Runtime` inputs and a healthy `Pleg` should come before it or
//! soon after: registration waits for them, at most a second, so that the node does not appear as not ready
//! first. A Node that the watch has shown by then is not created but updated, with one call instead of three.
//! - `Call`: send with the node's identity.
//! - `Event`: record a Kubernetes event about the Node.
//! - `PodCidr`: pass it to the runtime (`UpdateRuntimeConfig`); sent once for each change.
//! - `CloseConnections`: heartbeats failed more than once in a row, drop idle connections to the API server.
//! - `Fact`: for logs, metrics, the ledger; [`NodeFact::Registered`] also goes to the lease.
//!
//! While the node is not ready, ask the runtime for its status every 100 ms for up to 120 s after the start,
//! then every 5 s: an input that turns Ready true is patched at once. An input that makes addresses, Ready or
//! volumes in use differ from the API server's Node is patched at once too, at most every second (the first
//! time after registration without a wait); every other change waits for the 10 s cycle.
//!
//! Invariants: one call in flight; no PATCH if only heartbeats differ, unless the report period is over; at
//! most 5 tries a cycle; the spec of a Node never changes; the machine registers a deleted Node again
//! (upstream waits for a restart). Events of transitions are recorded after the API server has accepted the
//! status. Upstream: pkg/kubelet/kubelet_node_status.go, pkg/kubelet/nodestatus.

pub mod addresses;
pub mod condition_list;
mod conditions;
mod config;
mod inputs;
mod machine;
mod object;
mod patch;
mod setters;

#[cfg(test)]
mod tests;

use agent_types::api::{ApiCall, ApiResult, WatchEvent};
use agent_types::machine::EffectId;
use k8s_openapi::api::core::v1::Node;

pub use addresses::{AddressError, AddressPolicy};
pub use config::{JoinError, NodeStatusConfig, hostname_label, may_join};
pub use inputs::{DeviceResources, NodeImage, NodeInput};
pub use machine::NodeStatus;

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum NodeStatusEvent {
    /// News from one source.
    Input(NodeInput),
    /// The watch on the own Node (`metadata.name=<node>`).
    Watched(WatchEvent<Node>),
    /// The answer to [`NodeStatusAction::Call`].
    Answered {
        /// Of the call.
        id: EffectId,
        /// Result of the call.
        result: ApiResult,
    },
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum NodeStatusAction {
    /// Send it; answer [`NodeStatusEvent::Answered`] exactly once.
    Call {
        /// Comes back with the answer.
        id: EffectId,
        /// What to send.
        call: ApiCall,
    },
    /// Record an event about the Node.
    Event(NodeEvent),
    /// `spec.podCIDRs` changed.
    PodCidr(Vec<String>),
    /// Heartbeats failed more than once in a row: drop idle connections to the API server.
    CloseConnections,
    /// For logs, metrics and the ledger.
    Fact(NodeFact),
}

/// A Kubernetes event about the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NodeEvent {
    /// True for type `Warning`, false for `Normal`.
    pub warning: bool,
    /// For example `NodeReady`.
    pub reason: &'static str,
    /// Message for people.
    pub message: String,
}

/// What happened.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NodeFact {
    /// The Node is registered.
    Registered {
        /// `metadata.uid`.
        uid: String,
        /// True if it was created, false if it was there.
        created: bool,
    },
    /// The API server has taken a status.
    Reported {
        /// Ready or not.
        ready: bool,
    },
    /// A call failed; it is tried again.
    Failed {
        /// Failure, reason and remedy.
        message: String,
    },
    /// A part of the status cannot be set; reported again only when it changes.
    Problem {
        /// What and why.
        message: String,
    },
    /// The Node was deleted underneath; it is registered again.
    Deleted,
}
