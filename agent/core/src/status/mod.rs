//! A pod's status for the API, from the desired pod, the observed containers and the errors.
//!
//! In: [`StatusInputs`]. Out: `PodStatus`. Pure: equal inputs give an equal status; the timestamp of an
//! unchanged condition comes from the previous status. Invariants: a terminal phase never reverts; a terminal
//! phase is withheld while a container may still run; `restartCount` never falls. Upstream:
//! pkg/kubelet/kubelet_pods.go, pkg/kubelet/status.

mod amounts;
mod conditions;
mod containers;
mod devices;
mod instance;
pub mod last_words;
mod phase;
mod previous;
mod reset;
mod terminated;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::net::IpAddr;

use agent_types::pod;
use agent_types::runtime::observed::{PodSnapshot, SandboxState};
use agent_types::runtime::view::{is_live, newest_in, newest_sandbox};
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{HostIP, Pod, PodIP, PodStatus};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::Time;

pub use amounts::PodCgroupState;
pub use conditions::{DISRUPTION_TARGET, PENDING_RESIZE, PROGRESS_OF_RESIZE};
pub use devices::DevicesShown;
pub use phase::{Phase, phase};
pub use terminated::terminated_status;

use crate::allocation::resize::PendingResize;
use crate::pod_actions::Replaced;
use crate::probe::Verdicts;

/// Reason and message of a container's waiting state.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct WaitingReason {
    /// For example `CrashLoopBackOff`.
    pub reason: String,
    /// Detailed error.
    pub message: String,
}

/// A phase that was decided about the pod, not computed from its containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Verdict {
    /// For example `Evicted`, `DeadlineExceeded`, `OutOfcpu`.
    pub reason: String,
    /// Message for people.
    pub message: String,
    /// Message of the condition `DisruptionTarget`, if the pod gets it.
    pub disruption: Option<String>,
}

/// A resize that is under way.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Progress {
    /// Generation of the pod with the request.
    pub generation: Option<i64>,
    /// What went wrong last.
    pub error: Option<String>,
}

/// What a status shows of resizes.
#[derive(Clone, Copy, Debug, Default)]
pub struct ResizeShown<'a> {
    /// One that waits, or will never be.
    pub pending: Option<&'a PendingResize>,
    /// One that is under way.
    pub progress: Option<&'a Progress>,
    /// The pod's cgroup; `None` if statuses do not show the amounts of whole pods (gate
    /// InPlacePodLevelResourcesVerticalScaling).
    pub whole: Option<PodCgroupState<'a>>,
}

/// What a status is generated from.
#[derive(Clone, Copy)]
pub struct StatusInputs<'a> {
    /// The desired pod; its own `status` is the API's last one.
    pub pod: &'a Pod,
    /// The runtime; `None` before the first observation.
    pub snapshot: Option<&'a PodSnapshot>,
    /// Waiting reasons by container name.
    pub waiting: &'a BTreeMap<String, WaitingReason>,
    /// The status generated before this one.
    pub previous: Option<&'a PodStatus>,
    /// No container of the pod will be started again.
    pub terminating: bool,
    /// A start may be under way that the snapshot does not show yet.
    pub may_start: bool,
    /// Decided failure, if any.
    pub verdict: Option<&'a Verdict>,
    /// Verdicts of probes about the running instances.
    pub probes: &'a Verdicts,
    /// All containers are being restarted (RestartAllContainers).
    pub resetting: bool,
    /// Instances that were killed to come back, however they end.
    pub replaced: &'a Replaced,
    /// What is going on about its amounts.
    pub resize: ResizeShown<'a>,
    /// Statuses show by which signal containers end (`ContainerStopSignals`).
    pub stop_signals: bool,
    /// Devices of containers, with their health; `None`: statuses do not show it (gate ResourceHealthStatus).
    pub devices: Option<DevicesShown<'a>>,
    /// Read-only mounts can be read-only all the way down.
    pub recursive_read_only: bool,
    /// The node's addresses, the primary first.
    pub host_ips: &'a [String],
    /// Pods' IPv6 addresses come before their IPv4 ones.
    pub ipv6_first: bool,
    /// Scheme of container ids, for example `containerd`.
    pub runtime_name: &'a str,
    /// When the node first took the pod up.
    pub start_time: Wall,
    /// Now.
    pub now: Wall,
}

/// A wall time as the API writes it: whole seconds.
#[must_use]
pub fn api_time(wall: Wall) -> Option<Time> {
    jiff::Timestamp::from_second(wall.0.div_euclid(1_000_000_000)).ok().map(Time)
}

/// Generates the status.
#[must_use]
pub fn generate(inputs: &StatusInputs<'_>) -> PodStatus {
    let mut containers = containers::statuses(inputs);
    let (phase, reason, message) = decide_phase(inputs, &containers);
    if was_refused(inputs) {
        containers = previous::Statuses::default();
    }
    let mut status = PodStatus {
        phase: Some(phase.as_str().to_owned()),
        reason,
        message,
        observed_generation: inputs.pod.metadata.generation,
        start_time: api_time(inputs.start_time),
        qos_class: Some(qos_class(inputs.pod)),
        init_container_statuses: some_unless_empty(containers.init),
        container_statuses: some_unless_empty(containers.regular),
        ephemeral_container_statuses: some_unless_empty(containers.ephemeral),
        ..PodStatus::default()
    };
    addresses(inputs, &mut status);
    amounts::fill(inputs, phase, &mut status);
    status.conditions = Some(conditions::conditions(inputs, phase, &status));
    status
}

/// The end that [`generate`] shows for these inputs, without the rest of the status; `None` if the pod has not ended.
#[must_use]
pub fn ended(inputs: &StatusInputs<'_>) -> Option<Phase> {
    let known = [inputs.previous, inputs.pod.status.as_ref()];
    if let Some(end) = known.into_iter().flatten().find_map(Phase::end) {
        return Some(end);
    }
    // An end is withheld, whatever the statuses of all containers amount to.
    if inputs.may_start || may_run(inputs.snapshot) {
        return None;
    }
    let (phase, _, _) = decide_phase(inputs, &containers::statuses(inputs));
    Some(phase).filter(|phase| phase.is_terminal())
}

fn some_unless_empty<T>(v: Vec<T>) -> Option<Vec<T>> {
    if v.is_empty() { None } else { Some(v) }
}

fn qos_class(p: &Pod) -> String {
    agent_types::resources::qos_class(p).to_string()
}

/// The API's or the previous terminal phase wins, then a verdict, then the containers; a terminal phase is
/// withheld while something may still run.
fn decide_phase(
    inputs: &StatusInputs<'_>,
    containers: &previous::Statuses,
) -> (Phase, Option<String>, Option<String>) {
    let known = [inputs.previous, inputs.pod.status.as_ref()];
    for status in known.into_iter().flatten() {
        if let Some(p) = Phase::end(status) {
            return (p, status.reason.clone(), status.message.clone());
        }
    }
    let computed = match inputs.verdict {
        Some(v) => (Phase::Failed, Some(v.reason.clone()), Some(v.message.clone())),
        None => {
            let initialized = is_initialized(inputs);
            kept_words(inputs, phase(inputs.pod, containers, inputs.terminating, initialized))
        }
    };
    if !computed.0.is_terminal() || !(inputs.may_start || may_run(inputs.snapshot)) {
        return computed;
    }
    let before = known.into_iter().flatten().find_map(|s| s.phase.as_deref());
    kept_words(inputs, before.and_then(Phase::parse).unwrap_or(Phase::Pending))
}

/// Reason and message of other writers for this phase stay: the node lifecycle controller writes `NodeLost`
/// so.
fn kept_words(inputs: &StatusInputs<'_>, phase: Phase) -> (Phase, Option<String>, Option<String>) {
    let shown = inputs.pod.status.as_ref().filter(|s| s.phase.as_deref() == Some(phase.as_str()));
    shown.map_or((phase, None, None), |s| (phase, s.reason.clone(), s.message.clone()))
}

/// A regular container was made in the sandbox that the pod has.
fn is_initialized(inputs: &StatusInputs<'_>) -> bool {
    let Some(snapshot) = inputs.snapshot else { return false };
    let home = newest_sandbox(snapshot).filter(|s| s.state == SandboxState::Ready);
    let is_made = |name: &str| home.is_some_and(|home| newest_in(snapshot, name, &home.id).is_some());
    pod::containers(inputs.pod).iter().any(|c| is_made(&c.name))
}

/// True if the pod was rejected before any of its containers existed or was reported: statuses of them would
/// suggest that they will run, and clients show these instead of the reason. Upstream: `rejectPod` of
/// pkg/kubelet/kubelet.go.
fn was_refused(inputs: &StatusInputs<'_>) -> bool {
    let known = [inputs.previous, inputs.pod.status.as_ref()];
    let known = || known.into_iter().flatten();
    // One that an agent before this one refused shows its end.
    let is_refused = inputs.verdict.is_some() || known().any(|s| Phase::end(s).is_some());
    let Some(snapshot) = inputs.snapshot.filter(|_| inputs.terminating && is_refused) else { return false };
    let none = |s: &PodStatus| {
        let all = [&s.init_container_statuses, &s.container_statuses, &s.ephemeral_container_statuses];
        all.into_iter().flatten().flatten().next().is_none()
    };
    inputs.waiting.is_empty() && snapshot.containers.is_empty() && known().all(none)
}

fn may_run(snapshot: Option<&PodSnapshot>) -> bool {
    snapshot.is_some_and(|s| s.containers.iter().any(|c| is_live(c.state)))
}

/// The first address of the family that goes first, then the first of the other one, in their canonical text: the API
/// takes no more. What is no address is left out. Upstream: sortPodIPs.
#[must_use]
pub fn one_of_each_family(ips: &[String], ipv6_first: bool) -> Vec<String> {
    let parsed = || ips.iter().filter_map(|ip| Some(ip.parse::<IpAddr>().ok()?.to_canonical()));
    let families = [ipv6_first, !ipv6_first].into_iter();
    families.filter_map(|v6| parsed().find(|ip| ip.is_ipv6() == v6)).map(|ip| ip.to_string()).collect()
}

fn addresses(inputs: &StatusInputs<'_>, status: &mut PodStatus) {
    if let Some(first) = inputs.host_ips.first() {
        status.host_ip = Some(first.clone());
        status.host_ips = Some(inputs.host_ips.iter().map(|ip| HostIP { ip: ip.clone() }).collect());
    }
    let observed = inputs.snapshot.and_then(newest_sandbox).map(|s| s.ips.clone()).unwrap_or_default();
    let ips = if pod::host_network(inputs.pod) {
        inputs.host_ips.to_vec()
    } else if observed.is_empty() {
        // A sandbox that was stopped has lost its addresses; the status keeps them.
        let kept = inputs.previous.or(inputs.pod.status.as_ref()).and_then(|s| s.pod_ips.clone());
        kept.unwrap_or_default().into_iter().map(|ip| ip.ip).collect()
    } else {
        one_of_each_family(&observed, inputs.ipv6_first)
    };
    status.pod_ip = ips.first().cloned();
    status.pod_ips = some_unless_empty(ips.into_iter().map(|ip| PodIP { ip }).collect());
}
