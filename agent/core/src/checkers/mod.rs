//! Invariants of a node, checked by independent observers of a trace: changes of the runtime, and requests
//! and reports of the agent. The simulator calls them after every step, the exhaustive search after every
//! choice; they do not know the agent's decisions.
//!
//! In: [`TraceEvent`] in order. Out: the first [`Violation`] of each [`Invariant`]. Invariant of this module:
//! a checker never reads the agent's own state, so it cannot share its mistakes. See docs/internals/agent/README.md.

mod agent;
mod api;
pub mod at_rest;
mod handlers;
mod in_place;
mod order;
mod ownership;
mod runtime;
mod shutdown;
mod volumes;

#[cfg(test)]
mod tests;

use std::time::Duration;

use agent_types::ids::{ContainerId, PodUid, SandboxId};
use agent_types::pod::{self, CONFIG_MIRROR};
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

pub use agent::{AbsorbTerm, BackOff, Bounded, RestartTransparent, StatusMono};
pub use api::{ApiStatusMono, DeleteLast, SecretScope, StatusTruth};
pub use handlers::{HookGrace, ProbeOwn};
pub use in_place::{EphemeralOnce, RestartAll};
pub use order::{GcSafe, Grace, InitContainer, Order};
pub use ownership::VolOwned;
pub use runtime::{NoOutlive, OneLive, OneSandbox};
pub use shutdown::{ShutdownBudget, ShutdownClosed, ShutdownOrder};
pub use volumes::VolHeld;

use crate::probe::Kind;

/// Something that happened in the world.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TraceEvent {
    /// A sandbox became ready.
    SandboxReady {
        /// UID of the pod.
        pod: PodUid,
        /// Id of the sandbox.
        id: SandboxId,
        /// Its attempt.
        attempt: u32,
    },
    /// A sandbox is not ready any more.
    SandboxStopped {
        /// Id of the sandbox.
        id: SandboxId,
    },
    /// A sandbox is gone.
    SandboxRemoved {
        /// Id of the sandbox.
        id: SandboxId,
    },
    /// A container was created.
    ContainerCreated {
        /// UID of the pod.
        pod: PodUid,
        /// Container name in the pod.
        name: String,
        /// Its attempt.
        attempt: u32,
        /// Id of the container.
        id: ContainerId,
    },
    /// Its process runs.
    ContainerStarted {
        /// Id of the container.
        id: ContainerId,
    },
    /// Its process ended.
    ContainerExited {
        /// Id of the container.
        id: ContainerId,
    },
    /// It ended badly; after [`TraceEvent::ContainerExited`].
    ContainerFailed {
        /// Id of the container.
        id: ContainerId,
    },
    /// It is gone.
    ContainerRemoved {
        /// Id of the container.
        id: ContainerId,
    },
    /// The runtime lost everything; attempts may start from 0 again.
    RuntimeEmptied,
    /// A new incarnation of the agent.
    AgentStarted {
        /// The world was at rest when the last one died and has not changed since.
        undisturbed: bool,
    },
    /// The first list of an incarnation shows the pod before its end, because it is old or from a restored
    /// server: a new agent cannot know better, and runs the pod again.
    ApiListedFirst {
        /// UID of the pod.
        pod: PodUid,
    },
    /// A cause other than the agent changed the world: a user, an exit, a fault.
    Disturbed,
    /// The agent issued an effect.
    EffectIssued {
        /// For which pod.
        pod: PodUid,
        /// `Effect::verb`.
        verb: &'static str,
        /// Object of the effect, to recognise repetitions.
        object: String,
    },
    /// Containers of a pod's specification, in their order.
    PodPlanned {
        /// UID of the pod.
        pod: PodUid,
        /// `spec.initContainers`, in order.
        init: Vec<InitContainer>,
    },
    /// Volumes of a pod's specification.
    VolumesPlanned {
        /// UID of the pod.
        pod: PodUid,
        /// `spec.volumes`.
        volumes: Vec<String>,
    },
    /// A volume of a pod is there, with all its files.
    VolumeMounted {
        /// UID of the pod.
        pod: PodUid,
        /// Which of its volumes.
        volume: String,
    },
    /// The agent begins to give a volume of a pod, with all its files, to the pod's group.
    WalkBegan {
        /// Which pod.
        pod: PodUid,
        /// Which of its volumes.
        volume: String,
    },
    /// Nothing is mounted for the pod any more.
    VolumesGone {
        /// UID of the pod.
        pod: PodUid,
    },
    /// The agent requested the stop of a container; in addition to [`TraceEvent::EffectIssued`].
    StopAsked {
        /// Of which pod.
        pod: PodUid,
        /// Id of the container.
        id: ContainerId,
        /// What its process is given to end, seconds.
        grace_s: u32,
    },
    /// The agent asked for a container to be removed; next to [`TraceEvent::EffectIssued`].
    RemovalAsked {
        /// Of which pod.
        pod: PodUid,
        /// Which container.
        id: ContainerId,
    },
    /// The pod's terminating record could not be written.
    RecordLost {
        /// UID of the pod.
        pod: PodUid,
    },
    /// A pod worker is in this state now (`PodWorker::state_name`).
    WorkerState {
        /// UID of the pod.
        pod: PodUid,
        /// State.
        state: &'static str,
    },
    /// A status was published.
    StatusPublished {
        /// Of which pod.
        pod: PodUid,
        /// `status.phase`.
        phase: String,
    },
    /// The API server applied a status that the agent wrote, or has a phase from the start.
    ApiStatus {
        /// UID of the pod in the API.
        pod: PodUid,
        /// `status.phase` as it is now.
        phase: String,
        /// Containers that the status shows as running.
        running: Vec<ContainerId>,
        /// It is a mirror pod.
        mirror: bool,
    },
    /// The pod got its `metadata.deletionTimestamp`.
    ApiDeletionAsked {
        /// UID of the pod.
        pod: PodUid,
    },
    /// The pod ended for a finished shutdown, and only its node removes it.
    ApiLeftOver {
        /// UID of the pod.
        pod: PodUid,
    },
    /// The API server applied a DELETE of the agent.
    ApiDeletedByAgent {
        /// UID of the pod.
        pod: PodUid,
        /// It is a mirror pod.
        mirror: bool,
    },
    /// The pod is gone from the API, deleted by any client.
    ApiGone {
        /// UID of the pod.
        pod: PodUid,
    },
    /// The agent sent a call to the API server.
    ApiAsked {
        /// `ApiCall::describe`.
        what: String,
        /// It is this node's business: its Node, its lease, its events, a pod that is or was bound to it.
        own: bool,
    },
    /// A container answered a probe.
    ProbeAnswered {
        /// Id of the container.
        id: ContainerId,
        /// Which probe.
        kind: Kind,
        /// True for a successful probe.
        good: bool,
    },
    /// A status shows a state of a container that only this probe can have reported.
    ShownFine {
        /// Id of the container.
        id: ContainerId,
        /// Which probe.
        kind: Kind,
    },
    /// The agent reports that it kills a container because of this probe.
    KilledFor {
        /// Id of the container.
        id: ContainerId,
        /// Which probe.
        kind: Kind,
    },
    /// The agent runs a preStop hook.
    HookStarted {
        /// UID of the pod.
        pod: PodUid,
        /// Id of the container.
        id: ContainerId,
        /// What was left of the grace, seconds.
        within_s: u32,
    },
    /// The agent knows that the hook is over.
    HookEnded {
        /// Id of the container.
        id: ContainerId,
    },
    /// The agent stops a container.
    StopIssued {
        /// Id of the container.
        id: ContainerId,
        /// With so much grace, seconds.
        grace_s: u32,
    },
    /// A user added an ephemeral container to a pod.
    EphemeralAdded {
        /// UID of the pod.
        pod: PodUid,
        /// Container name in the pod.
        name: String,
    },
    /// The end of a container restarts all containers of its pod.
    RestartAllAsked {
        /// UID of the pod.
        pod: PodUid,
        /// The container that ended.
        id: ContainerId,
    },
    /// The pod became desired again after all parts of it were gone: its history ends.
    PodForgotten {
        /// UID of the pod.
        pod: PodUid,
    },
    /// The agent got logind's signal that the machine is about to stop, for the first time.
    ShutdownTold {
        /// What pods have in all.
        budget: Duration,
    },
    /// A pod is ended for it.
    EndOrdered {
        /// UID of the pod.
        pod: PodUid,
        /// Place of its group, the lowest priority first.
        group: usize,
        /// What the group has.
        period: Duration,
    },
    /// The agent gave the delay lock back: the machine may stop.
    LockGivenBack,
    /// logind's own limit passed while the lock was held.
    StopNotAwaited,
    /// The shutdown was called off, its agent died, or the boot is over.
    ShutdownPast,
    /// The size of something that must not grow without bound.
    Gauge {
        /// Name of the invariant.
        name: &'static str,
        /// How many.
        value: usize,
        /// How many are allowed.
        limit: usize,
    },
}

impl TraceEvent {
    /// What the API server shows of `pod` after the agent wrote it.
    #[must_use]
    pub fn api_status(pod: &Pod) -> TraceEvent {
        let phase = pod.status.as_ref().and_then(|s| s.phase.clone()).unwrap_or_default();
        let running = pod.status.as_ref().map(at_rest::running).unwrap_or_default();
        let mirror = pod::annotation(pod, CONFIG_MIRROR).is_some();
        TraceEvent::ApiStatus { pod: PodUid::from(pod::uid(pod)), phase, running, mirror }
    }
}

/// A broken invariant.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[error("{invariant} broken at {} ns: {message}", at.0)]
pub struct Violation {
    /// Name, as in docs/internals/agent/README.md.
    pub invariant: &'static str,
    /// Time of the violation.
    pub at: Mono,
    /// What was seen.
    pub message: String,
}

/// One invariant as an observer.
pub trait Invariant: std::fmt::Debug {
    /// Its name, for example `ONE-LIVE`.
    fn name(&self) -> &'static str;

    /// Looks at one event.
    ///
    /// # Errors
    /// What is broken, in words.
    fn observe(&mut self, at: Mono, event: &TraceEvent) -> Result<(), String>;
}

/// A fresh observer for each invariant about the API server; worlds without a runtime feed only these.
#[must_use]
pub fn api_side() -> Vec<Box<dyn Invariant>> {
    vec![
        Box::new(ApiStatusMono::default()),
        Box::new(StatusTruth::default()),
        Box::new(DeleteLast::default()),
        Box::new(SecretScope),
    ]
}

/// A fresh observer for each invariant of this module.
#[must_use]
pub fn all() -> Vec<Box<dyn Invariant>> {
    let mut all: Vec<Box<dyn Invariant>> = vec![
        Box::new(OneLive::default()),
        Box::new(OneSandbox::default()),
        Box::new(NoOutlive::default()),
        Box::new(Order::default()),
        Box::new(Grace::default()),
        Box::new(GcSafe::default()),
        Box::new(AbsorbTerm::default()),
        Box::new(StatusMono::default()),
        Box::new(BackOff::default()),
        Box::new(RestartTransparent::default()),
        Box::new(Bounded),
        Box::new(ProbeOwn::default()),
        Box::new(HookGrace::default()),
        Box::new(EphemeralOnce::default()),
        Box::new(RestartAll::default()),
        Box::new(VolHeld::default()),
        Box::new(VolOwned::default()),
        Box::new(ShutdownOrder::default()),
        Box::new(ShutdownBudget::default()),
        Box::new(ShutdownClosed::default()),
    ];
    all.extend(api_side());
    all
}

/// Shows one event to every observer.
///
/// # Errors
/// The first violation.
pub fn observe_all(
    invariants: &mut [Box<dyn Invariant>],
    at: Mono,
    event: &TraceEvent,
) -> Result<(), Violation> {
    for invariant in invariants {
        let invariant_name = invariant.name();
        invariant.observe(at, event).map_err(|message| Violation {
            invariant: invariant_name,
            at,
            message,
        })?;
    }
    Ok(())
}
