//! Pod conditions that the node writes; conditions of other owners stay.
//!
//! In: inputs and the generated container statuses. Out: conditions, whose transition time changes only with
//! their status. Upstream: pkg/kubelet/status/generate.go.

use agent_types::pod::{self, named};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, PodCondition, PodStatus};

use super::{Phase, StatusInputs, api_time, reset};
use crate::pod_actions::{may_restart_all, usable_sandbox};
use crate::status::previous::{before, was_true};

const OWNED: [&str; 5] =
    ["PodReadyToStartContainers", "Initialized", "Ready", "ContainersReady", "PodScheduled"];

/// A condition that the node may set at the end of a pod, and others too.
pub const DISRUPTION_TARGET: &str = "DisruptionTarget";

/// The pod has a request that is not granted now.
pub const PENDING_RESIZE: &str = "PodResizePending";
/// It was given amounts that its containers do not have yet.
pub const PROGRESS_OF_RESIZE: &str = "PodResizeInProgress";

struct Finding {
    truth: bool,
    reason: &'static str,
    message: String,
}

impl Finding {
    fn yes() -> Finding {
        Finding { truth: true, reason: "", message: String::new() }
    }

    fn no(reason: &'static str, message: String) -> Finding {
        Finding { truth: false, reason, message }
    }
}

/// All conditions of the pod in upstream's order: those of other owners, resizes, `DisruptionTarget`, the node's own.
pub(super) fn conditions(inputs: &StatusInputs<'_>, phase: Phase, status: &PodStatus) -> Vec<PodCondition> {
    let containers_ready = containers_ready(inputs, phase, status);
    let findings = [
        Finding { truth: sandbox_ready(inputs), reason: "", message: String::new() },
        initialized(inputs, phase, status),
        ready(inputs, &containers_ready),
        containers_ready,
        Finding::yes(),
    ];
    let disruption = inputs.verdict.and_then(|verdict| verdict.disruption.clone());
    let own = |name: &str| {
        [PENDING_RESIZE, PROGRESS_OF_RESIZE].contains(&name)
            || OWNED.contains(&name)
            || name == reset::CONDITION
            || (disruption.is_some() && name == DISRUPTION_TARGET)
    };
    let foreign = inputs.pod.status.as_ref().and_then(|s| s.conditions.as_ref());
    let mut out: Vec<PodCondition> =
        foreign.into_iter().flatten().filter(|c| !own(&c.type_)).cloned().collect();
    if !phase.is_terminal() {
        resizes(inputs, &mut out);
    }
    if let Some(message) = disruption {
        let finding = Finding { truth: true, reason: "TerminationByKubelet", message };
        out.push(condition(inputs, DISRUPTION_TARGET, finding));
    }
    out.extend(OWNED.iter().zip(findings).map(|(name, finding)| condition(inputs, name, finding)));
    if may_restart_all(inputs.pod) {
        let (truth, reason, message) = reset::condition(inputs, phase);
        out.push(condition(inputs, reset::CONDITION, Finding { truth, reason, message: message.to_owned() }));
    }
    out
}

fn condition(inputs: &StatusInputs<'_>, name: &str, finding: Finding) -> PodCondition {
    let status = if finding.truth { "True" } else { "False" };
    let kept =
        before(inputs, name).filter(|c| c.status == status).and_then(|c| c.last_transition_time.clone());
    PodCondition {
        type_: name.to_owned(),
        status: status.to_owned(),
        reason: Some(finding.reason.to_owned()).filter(|r| !r.is_empty()),
        message: Some(finding.message).filter(|m| !m.is_empty()),
        last_transition_time: kept.or_else(|| api_time(inputs.now)),
        observed_generation: inputs.pod.metadata.generation,
        last_probe_time: None,
    }
}

/// Conditions that are there only while they are true; since when they are is since when their reason is.
fn resizes(inputs: &StatusInputs<'_>, out: &mut Vec<PodCondition>) {
    let pending =
        inputs.resize.pending.map(|p| (PENDING_RESIZE, p.reason.clone(), p.message.clone(), p.generation));
    let progress = inputs.resize.progress.map(|p| {
        let reason = if p.error.is_some() { "Error" } else { "" };
        (PROGRESS_OF_RESIZE, reason.to_owned(), p.error.clone().unwrap_or_default(), p.generation)
    });
    for (name, reason, message, generation) in pending.into_iter().chain(progress) {
        let (reason, message) =
            (Some(reason).filter(|r| !r.is_empty()), Some(message).filter(|m| !m.is_empty()));
        let before = before(inputs, name).filter(|c| c.reason == reason);
        let kept = before.and_then(|c| c.last_transition_time.clone());
        let same = before.filter(|c| c.message == message && c.observed_generation == generation);
        let probed = same.and_then(|c| c.last_probe_time.clone());
        out.push(PodCondition {
            type_: name.to_owned(),
            status: "True".to_owned(),
            reason,
            message,
            last_transition_time: kept.or_else(|| api_time(inputs.now)),
            observed_generation: generation,
            last_probe_time: probed.or_else(|| api_time(inputs.now)),
        });
    }
}

fn sandbox_ready(inputs: &StatusInputs<'_>) -> bool {
    inputs.snapshot.is_some_and(|snapshot| usable_sandbox(inputs.pod, snapshot).is_some())
}

fn bracketed(names: &[&str]) -> String {
    format!("[{}]", names.join(" "))
}

fn initialized(inputs: &StatusInputs<'_>, phase: Phase, status: &PodStatus) -> Finding {
    if phase == Phase::Succeeded {
        return Finding { truth: true, reason: "PodCompleted", message: String::new() };
    }
    let started = |s: &ContainerStatus| {
        let s = s.state.as_ref();
        s.is_some_and(|x| x.running.is_some() || x.terminated.is_some())
    };
    if status.container_statuses.iter().flatten().any(started) {
        return Finding::yes();
    }
    let statuses = status.init_container_statuses.as_deref().unwrap_or(&[]);
    let complete = |(index, c): (usize, &Container)| {
        let is = |s: &ContainerStatus| if pod::is_sidecar(c) { s.started == Some(true) } else { s.ready };
        pod::status_at(statuses, index, &c.name).is_some_and(is)
    };
    let all = pod::init_containers(inputs.pod).iter().enumerate();
    let incomplete: Vec<&str> = all.filter(|c| !complete(*c)).map(|(_, c)| c.name.as_str()).collect();
    // A pod that was initialized stays so, also while its init containers run again in another sandbox or in a reset.
    if incomplete.is_empty() || was_true(inputs, "Initialized") {
        return Finding::yes();
    }
    let message = format!("containers with incomplete status: {}", bracketed(&incomplete));
    Finding::no("ContainersNotInitialized", message)
}

fn containers_ready(inputs: &StatusInputs<'_>, phase: Phase, status: &PodStatus) -> Finding {
    match phase {
        Phase::Succeeded => return Finding::no("PodCompleted", String::new()),
        Phase::Failed => return Finding::no("PodFailed", String::new()),
        Phase::Pending | Phase::Running => {}
    }
    let init = status.init_container_statuses.as_deref().unwrap_or_default();
    let regular = status.container_statuses.as_deref().unwrap_or_default();
    let sidecars = pod::init_containers(inputs.pod).iter().enumerate().filter(|(_, c)| pod::is_sidecar(c));
    let sidecars = sidecars.map(|(index, c)| (c, pod::status_at(init, index, &c.name)));
    let others = pod::containers(inputs.pod).iter().map(|c| (c, named(regular, &c.name)));
    let (mut unknown, mut unready) = (Vec::new(), Vec::new());
    for (c, shown) in sidecars.chain(others) {
        match shown {
            None => unknown.push(c.name.as_str()),
            Some(s) if !s.ready => unready.push(c.name.as_str()),
            Some(_) => {}
        }
    }
    let mut parts = Vec::new();
    if !unknown.is_empty() {
        parts.push(format!("containers with unknown status: {}", bracketed(&unknown)));
    }
    if !unready.is_empty() {
        parts.push(format!("containers with unready status: {}", bracketed(&unready)));
    }
    if parts.is_empty() { Finding::yes() } else { Finding::no("ContainersNotReady", parts.join(", ")) }
}

fn ready(inputs: &StatusInputs<'_>, containers: &Finding) -> Finding {
    if !containers.truth {
        return Finding::no(containers.reason, containers.message.clone());
    }
    let given = inputs.pod.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or(&[]);
    let gates = pod::spec(inputs.pod).readiness_gates.as_deref().unwrap_or(&[]);
    let problems: Vec<String> = gates
        .iter()
        .filter_map(|gate| {
            let name = &gate.condition_type;
            match given.iter().find(|c| c.type_ == *name) {
                None => {
                    Some(format!("corresponding condition of pod readiness gate \"{name}\" does not exist."))
                }
                Some(c) if c.status != "True" => Some(format!(
                    "the status of pod readiness gate \"{name}\" is not \"True\", but {}",
                    c.status
                )),
                Some(_) => None,
            }
        })
        .collect();
    if problems.is_empty() {
        Finding::yes()
    } else {
        Finding::no("ReadinessGatesNotReady", problems.join(", "))
    }
}
