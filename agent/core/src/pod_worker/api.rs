//! Events and actions of a pod worker, as plain data.
//!
//! In: [`PodEvent`]. Out: [`PodAction`]. The shell routes by pod UID. Invariant: events and actions borrow
//! nothing, so they can be queued, replayed and written to a trace.

use std::sync::Arc;
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::event::EventFact;
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::machine::EffectId;
use agent_types::runtime::claims::PodClaims;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::placement::Placement;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::allocation::resize::PendingResize;
use crate::pod_specs::PodSpecs;
use crate::pod_worker::effect::{Effect, EffectResult};
use crate::probe::{Outcome, ProbeCall, ProbeId};

/// What a pod worker reacts to.
#[derive(Clone, Debug)]
pub enum PodEvent {
    /// The desired pod; the first one starts the worker, later ones replace it.
    Desired(Arc<Pod>),
    /// Take it down. A later kill can only shorten the grace, never undo.
    Kill {
        /// Reason of the kill.
        reason: KillReason,
        /// Overrides the pod's own grace, seconds.
        grace_s: Option<u32>,
    },
    /// What the runtime has of this pod (from PLEG, or the answer to [`Effect::Inspect`]).
    Observed(Arc<PodSnapshot>),
    /// The answer to an effect or to a [`PodAction::Persist`]; exactly one each.
    EffectDone {
        /// Identifier from the action.
        id: EffectId,
        /// Read after the effect was over.
        completed_at: Mono,
        /// Result of the effect.
        result: EffectResult,
    },
    /// The answer to a [`PodAction::Probe`].
    ProbeDone {
        /// Identifier from [`PodAction::Probe`].
        id: ProbeId,
        /// Outcome of the probe.
        outcome: Outcome,
    },
    /// Whether the node's network is ready; `Err` has the runtime's message. The latest event counts; ready
    /// before the first.
    Network(Result<(), String>),
    /// Disk space is short: the worker of an ended pod removes its unused containers and logs. See
    /// [`PodWorker::is_stripped`].
    ///
    /// [`PodWorker::is_stripped`]: super::PodWorker::is_stripped
    DeleteUnused,
    /// A requested resize that the node does not allocate now; `None`: no resize is pending.
    ResizePending(Option<PendingResize>),
    /// Processors, memory nodes and devices of the pod's containers; none before the first.
    Placed(Arc<Placement>),
    /// The health of devices of the pod's claims changed.
    ClaimsChanged(Arc<PodClaims>),
    /// Something that the pod gets values from changed: a Secret, a ConfigMap.
    SourcesChanged,
    /// What all workers share changed (the node got another address).
    Context(Arc<WorkerContext>),
    /// The deadline has passed.
    Tick,
}

/// A request of a pod worker to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum PodAction {
    /// Do this, answer [`PodEvent::EffectDone`].
    Effect {
        /// To be sent back.
        id: EffectId,
        /// Effect to carry out.
        effect: Effect,
        /// No call for it may be sent or still be in progress after this; `None` for pulls.
        deadline: Option<Mono>,
    },
    /// The worker no longer waits for this effect: drop the call, answer `DeadlineExceeded` (or its real
    /// answer). A shell that cannot cancel may ignore it.
    Cancel(EffectId),
    /// Run this probe, and answer with [`PodEvent::ProbeDone`] unless it is cancelled.
    Probe {
        /// To be sent back.
        id: ProbeId,
        /// Action and target of the probe.
        call: Box<ProbeCall>,
    },
    /// The worker no longer waits for this probe: drop it; an answer is ignored.
    CancelProbe(ProbeId),
    /// Write this durably, then answer [`PodEvent::EffectDone`] with `Done`. Replaces an earlier record.
    Persist {
        /// To be sent back.
        id: EffectId,
        /// Record to write; [`Effect::RemovePodDirs`] removes it.
        record: TerminatingRecord,
    },
    /// The status changed.
    PublishStatus(Arc<PodStatus>),
    /// The running containers have the resources of this pod.
    Actuated(Arc<Pod>),
    /// Something to record as a Kubernetes event.
    Event(EventFact),
    /// Nothing of the pod is left; drop the worker.
    Finished {
        /// The pod became desired again during its termination: start a new worker for it.
        desired_again: bool,
    },
}

/// Work of one worker that grows with the number of the pod's containers.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WorkerCounts {
    /// Passes over the whole pod.
    pub passes: u64,
    /// Statuses that were generated.
    pub statuses: u64,
}

/// What all pod workers of a node share.
#[derive(Clone, Debug)]
pub struct WorkerContext {
    /// Builds runtime configurations from pods.
    pub specs: Arc<dyn PodSpecs>,
    /// `runtimeRequestTimeout`.
    pub request_timeout: Duration,
    /// `cpuManagerReconcilePeriod`: a container that did not take its processors is tried again after this time.
    pub cpus_again: Duration,
    /// Crash-loop back-off: 10 s to `maxContainerRestartPeriod`.
    pub crash_loop: Backoff,
    /// Scheme of container ids, for example `containerd`.
    pub runtime_name: String,
    /// The node's addresses, the primary first.
    pub host_ips: Vec<String>,
    /// True if the first address of `--node-ip` is IPv6: pods' IPv6 addresses then precede their IPv4
    /// addresses.
    pub ipv6_first: bool,
    /// When this agent started: containers older than it were started by another.
    pub agent_started: Now,
}
