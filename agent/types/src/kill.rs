//! The reasons for which the node ends a pod, and the record of an end that survives a restart of the agent.
//!
//! In: orders of the sources, of admission, eviction, preemption and node shutdown. Out: plain data.

use serde::{Deserialize, Serialize};

use crate::ids::PodKey;
use crate::time::Wall;

/// Reason for which the node ends a pod.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// Its source does not have it any more.
    Removed,
    /// `metadata.deletionTimestamp` is set.
    Deleted,
    /// The pod runs, and no source has it (grace 1 s).
    Orphan,
    /// Its containers have ended, and none restarts.
    Ended,
    /// `spec.activeDeadlineSeconds` passed.
    DeadlineExceeded,
    /// The node refuses or ends it: admission, eviction, preemption. Becomes `status.reason` and `.message`.
    Failed {
        /// For example `Evicted`, `OutOfcpu`, `Preempting`.
        reason: String,
        /// Message of the pod's status, for people.
        message: String,
        /// Message of the condition `DisruptionTarget`, if the node ends the pod for the node's own sake.
        #[serde(default)]
        disruption: Option<String>,
    },
    /// The machine is about to stop.
    Shutdown {
        /// The pod starts again at the next boot, or if the shutdown is cancelled: no controller would
        /// replace it (static pods).
        again: bool,
    },
}

impl KillReason {
    /// True if the node keeps nothing of the pod; otherwise its dead containers and its directories stay
    /// until it is removed.
    #[must_use]
    pub fn removes(&self) -> bool {
        matches!(self, KillReason::Removed | KillReason::Deleted | KillReason::Orphan)
    }
}

/// The state of a termination that must survive a crash of the agent.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminatingRecord {
    /// Pod to end.
    pub pod: PodKey,
    /// Reason of the kill.
    pub reason: KillReason,
    /// Effective grace, seconds.
    pub grace_s: u32,
    /// Time at which the termination began.
    pub since: Wall,
    /// True if the node keeps nothing of the pod.
    pub remove: bool,
    /// True if no container of the pod runs or can start, and its end was published: only the removal of its remains is left.
    #[serde(default)]
    pub ended: bool,
}

/// `status.reason` of pods that the node refuses while it shuts down.
pub const REFUSED_REASON: &str = "NodeShutdown";

/// `status.reason` of pods that eviction ends or pressure refuses, and reason of their event.
pub const EVICTED: &str = "Evicted";
