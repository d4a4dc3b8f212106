//! What goes into a pod worker and what comes out, as plain data.
//!
//! In: [`PodEvent`]. Out: [`PodAction`]. The shell routes by pod UID. Invariant: nothing here borrows, so
//! events and actions can be queued, replayed and written to a trace.

use std::sync::Arc;
use std::time::Duration;

use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde::{Deserialize, Serialize};

use super::specs::PodSpecs;
use crate::allocation::resize::PendingResize;
use crate::machine::EffectId;
use crate::probe::{Outcome, ProbeCall, ProbeId};
use crate::restart;
use crate::runtime::PodKey;
use crate::runtime::effect::{Effect, EffectResult};
use crate::runtime::observed::PodSnapshot;
use crate::time::{Mono, Now, Wall};
use crate::volume::ClaimId;

/// Why a pod is taken down.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum KillReason {
    /// Its source does not have it any more.
    Removed,
    /// `metadata.deletionTimestamp` is set.
    Deleted,
    /// It runs, and no source has it (grace 1 s).
    Orphan,
    /// Its containers ended and none comes back.
    Ended,
    /// `spec.activeDeadlineSeconds` passed.
    DeadlineExceeded,
    /// The node refuses or ends it: admission, eviction, preemption. Becomes `status.reason` and `.message`.
    Failed {
        /// For example `Evicted`, `OutOfcpu`, `Preempting`.
        reason: String,
        /// For people.
        message: String,
        /// Message of the condition `DisruptionTarget`, if the node ends it for its own sake.
        #[serde(default)]
        disruption: Option<String>,
    },
    /// The machine is about to stop.
    Shutdown {
        /// It begins anew with the next boot, or if the machine does not stop after all: nobody else would bring it back
        /// (static pods).
        again: bool,
    },
}

impl KillReason {
    /// True if nothing of the pod is to be left on the node; otherwise its dead containers and its
    /// directories are kept until it is removed.
    #[must_use]
    pub fn removes(&self) -> bool {
        matches!(self, KillReason::Removed | KillReason::Deleted | KillReason::Orphan)
    }
}

/// What a pod worker reacts to.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// The pod as it should be; the first one starts it, later ones replace it.
    Desired(Arc<Pod>),
    /// Take it down. A later kill can only shorten the grace, never undo.
    Kill {
        /// Why.
        reason: KillReason,
        /// Overrides the pod's own grace, seconds.
        grace_s: Option<u32>,
    },
    /// What the runtime has of this pod (from PLEG, or the answer to [`Effect::Inspect`]).
    Observed(Arc<PodSnapshot>),
    /// The answer to an effect or to a [`PodAction::Persist`]; exactly one each.
    EffectDone {
        /// As issued.
        id: EffectId,
        /// Read after the effect was over.
        completed_at: Mono,
        /// The answer.
        result: EffectResult,
    },
    /// The answer to a [`PodAction::Probe`].
    ProbeDone {
        /// As asked.
        id: ProbeId,
        /// The answer.
        outcome: Outcome,
    },
    /// Whether the node's network is ready, `Err` with the runtime's words. Latest wins; ready until told.
    Network(Result<(), String>),
    /// Space is short: what is kept of a pod that is over, and that nobody needs, is to go. See [`PodWorker::is_stripped`].
    ///
    /// [`PodWorker::is_stripped`]: super::PodWorker::is_stripped
    DeleteUnused,
    /// The pod asks for other amounts than it was given, and does not get them now; `None`: it asks for nothing else.
    ResizePending(Option<PendingResize>),
    /// Something that the pod gets values from changed: a Secret, a ConfigMap.
    SourcesChanged,
    /// What all workers share changed (the node got another address).
    Context(Arc<WorkerContext>),
    /// The deadline came.
    Tick,
}

/// What a pod worker asks for.
#[derive(Clone, Debug, PartialEq)]
pub enum PodAction {
    /// Do this, answer [`PodEvent::EffectDone`].
    Effect {
        /// To be sent back.
        id: EffectId,
        /// What.
        effect: Effect,
        /// No call for it may be sent or still be in progress after this; `None` for pulls.
        deadline: Option<Mono>,
    },
    /// Nobody waits for this effect any more: drop the call, answer `DeadlineExceeded` (or its real answer).
    /// A shell that cannot cancel may ignore it.
    Cancel(EffectId),
    /// Ask this, answer [`PodEvent::ProbeDone`] unless it is cancelled.
    Probe {
        /// To be sent back.
        id: ProbeId,
        /// What to ask whom.
        call: Box<ProbeCall>,
    },
    /// Nobody waits for this probe any more: drop it; an answer is ignored.
    CancelProbe(ProbeId),
    /// Write this durably, then answer [`PodEvent::EffectDone`] with `Done`. Replaces an earlier record.
    Persist {
        /// To be sent back.
        id: EffectId,
        /// What to write; it goes away with [`Effect::RemovePodDirs`].
        record: TerminatingRecord,
    },
    /// The status changed.
    PublishStatus(Arc<PodStatus>),
    /// The containers that run have what this pod gives them.
    Actuated(Arc<Pod>),
    /// Something to record as a Kubernetes event.
    Event(EventFact),
    /// Nothing of the pod is left; drop the worker.
    Finished {
        /// The pod was desired again meanwhile: start a new worker for it.
        desired_again: bool,
    },
}

/// What must survive a crash of the agent during termination.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct TerminatingRecord {
    /// Which pod.
    pub pod: PodKey,
    /// Why.
    pub reason: KillReason,
    /// Effective grace, seconds.
    pub grace_s: u32,
    /// When termination began.
    pub since: Wall,
    /// Whether everything of the pod is to go.
    pub remove: bool,
}

/// Severity of a Kubernetes event.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub enum EventKind {
    /// For information.
    Normal,
    /// Something went wrong.
    Warning,
}

/// A Kubernetes event about the pod, without the bookkeeping of the API object.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
pub struct EventFact {
    /// Severity.
    pub kind: EventKind,
    /// Contract chapter 16.
    pub reason: &'static str,
    /// For people.
    pub message: String,
    /// The container it is about.
    pub container: Option<String>,
    /// Where the pod's specification has that container.
    pub list: ContainerList,
    /// A claim of the pod's of which the same is told.
    pub claim: Option<ClaimId>,
}

/// A list of containers of a pod's specification.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
pub enum ContainerList {
    /// `spec.containers`.
    #[default]
    Regular,
    /// `spec.initContainers`.
    Init,
    /// `spec.ephemeralContainers`.
    Ephemeral,
}

impl EventFact {
    /// `involvedObject.fieldPath`: where in the pod its container stands.
    #[must_use]
    pub fn field_path(&self) -> Option<String> {
        let list = match self.list {
            ContainerList::Regular => "containers",
            ContainerList::Init => "initContainers",
            ContainerList::Ephemeral => "ephemeralContainers",
        };
        self.container.as_ref().map(|name| format!("spec.{list}{{{name}}}"))
    }
}

/// What all pod workers of a node share.
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// Builds runtime configurations from pods.
    pub specs: Arc<dyn PodSpecs>,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
    /// Crash-loop back-off: 10 s to `maxContainerRestartPeriod`.
    pub crash_loop: restart::Policy,
    /// Scheme of container ids, for example `containerd`.
    pub runtime_name: String,
    /// The node's addresses, the primary first.
    pub host_ips: Vec<String>,
    /// Pods' IPv6 addresses come before their IPv4 ones: the first address of `--node-ip` is one.
    pub ipv6_first: bool,
    /// When this agent started: containers older than it were started by another.
    pub agent_started: Now,
}
