//! Container statuses, from the runtime and the previous status.
//!
//! In: inputs. Out: [`Statuses`], regular ones ordered by name, init ones in specification order. Invariants:
//! only the two newest instances are shown; a restart count never falls; a container that ran and cannot be
//! found any more is reported as lost, never as new. Upstream: `convertToAPIContainerStatuses` of
//! pkg/kubelet/kubelet_pods.go.

use agent_types::pod;
use agent_types::runtime::labels;
use agent_types::runtime::observed::{ContainerObserved, ContainerState};
use agent_types::runtime::view::{Slot, SlotKind, slots};
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{
    Container, ContainerState as ApiState, ContainerStateRunning, ContainerStateTerminated,
    ContainerStateWaiting, ContainerStatus, PodStatus,
};

use super::{StatusInputs, api_time, devices, instance, reset};
use crate::pod_actions::ended::{ended, restarts};
use crate::status::previous::Statuses;

const LOST: &str = "ContainerStatusUnknown";
const LOST_TERMINATED: &str = "The container could not be located when the pod was terminated";
const LOST_DELETED: &str =
    "The container could not be located when the pod was deleted.  The container used to be Running";
const INIT_LOST: &str = "Unable to get init container status from container runtime and pod has been \
                         initialized, treat it as exited normally";

/// All container statuses of the pod.
pub(super) fn statuses(inputs: &StatusInputs<'_>) -> Statuses {
    let mut out = Statuses::default();
    let initialized = pod::containers(inputs.pod).iter().any(|c| !instances(inputs, &c.name).is_empty());
    for slot in slots(inputs.pod) {
        let Some(spec) = slot.spec(inputs.pod) else { continue };
        let status = one(inputs, &slot, &spec, initialized);
        match slot.kind {
            SlotKind::Regular => out.regular.push(status),
            SlotKind::Init | SlotKind::Sidecar => out.init.push(status),
            SlotKind::Ephemeral => out.ephemeral.push(status),
        }
    }
    out.regular.sort_by(|a, b| a.name.cmp(&b.name));
    out.ephemeral.sort_by(|a, b| a.name.cmp(&b.name));
    // They live as long as the pod, and a list of one takes the room of four.
    [&mut out.init, &mut out.regular, &mut out.ephemeral].into_iter().for_each(Vec::shrink_to_fit);
    out
}

/// The newest first.
fn instances<'a>(inputs: &StatusInputs<'a>, name: &str) -> &'a [ContainerObserved] {
    inputs.snapshot.map_or(&[], |s| s.containers.of(name))
}

fn one(inputs: &StatusInputs<'_>, slot: &Slot, spec: &Container, initialized: bool) -> ContainerStatus {
    let found = instances(inputs, &slot.name);
    let before = previous(inputs, slot);
    let mut status = match found.first() {
        Some(newest) => observed(inputs, slot, spec, newest),
        None => absent(inputs, slot, spec, before, initialized),
    };
    if never_seen_to_run(found.first(), before) {
        status.state =
            Some(ApiState { waiting: Some(ContainerStateWaiting::default()), ..ApiState::default() });
    }
    // Another instance than the one that ended before this.
    let after = before.filter(|b| {
        let ended = b.state.as_ref().is_some_and(|s| s.terminated.is_some());
        ended && b.container_id != status.container_id && !found.is_empty()
    });
    if let Some(older) = found.get(1) {
        status.last_state = Some(state_of(inputs, older));
    } else if let Some(b) = after {
        // The runtime has dropped the older instance; its known state stays.
        status.last_state.clone_from(&b.state);
    } else if status.last_state.is_none() {
        let same = |b: &&ContainerStatus| {
            let is_instance = status.container_id.is_some() && b.container_id == status.container_id;
            is_instance || b.restart_count == status.restart_count
        };
        status.last_state = before.filter(same).and_then(|b| b.last_state.clone());
    }
    if let Some(b) = before {
        let counted_anew = after.is_some() && newest_runs(found) && b.restart_count >= status.restart_count;
        let lost_now = was_running(b) && found.first().is_some_and(|c| c.state == ContainerState::Unknown);
        let known = b.restart_count.saturating_add(i32::from(counted_anew || lost_now));
        status.restart_count = status.restart_count.max(known);
    }
    status.volume_mounts = instance::volume_mounts(spec, inputs.recursive_read_only);
    instance::fill(spec, found.first(), before, &mut status);
    status.stop_signal.take_if(|_| !inputs.stop_signals);
    status.allocated_resources_status = devices::shown(inputs.devices, spec, before, slot);
    waiting_to_restart(inputs, slot, spec, found.first(), &mut status);
    status
}

fn newest_runs(found: &[ContainerObserved]) -> bool {
    found.first().is_some_and(|c| c.state == ContainerState::Running)
}

fn was_running(status: &ContainerStatus) -> bool {
    status.state.as_ref().is_some_and(|s| s.running.is_some())
}

fn previous<'a>(inputs: &StatusInputs<'a>, slot: &Slot) -> Option<&'a ContainerStatus> {
    let list = |s: &'a PodStatus| match slot.kind {
        SlotKind::Regular => s.container_statuses.as_ref(),
        SlotKind::Init | SlotKind::Sidecar => s.init_container_statuses.as_ref(),
        SlotKind::Ephemeral => s.ephemeral_container_statuses.as_ref(),
    };
    [inputs.previous, inputs.pod.status.as_ref()]
        .into_iter()
        .flatten()
        .filter_map(list)
        .find_map(|all| pod::status_at(all, slot.index, &slot.name))
}

fn observed(
    inputs: &StatusInputs<'_>,
    slot: &Slot,
    spec: &Container,
    newest: &ContainerObserved,
) -> ContainerStatus {
    let running = newest.state == ContainerState::Running;
    // A running container is started and ready unless one of its probes has not succeeded.
    let started = running && !inputs.probes.starting.contains(&newest.id);
    let ready = match slot.kind {
        SlotKind::Init => newest.state == ContainerState::Exited && newest.exit_code == 0,
        SlotKind::Sidecar | SlotKind::Regular => started && !inputs.probes.unready.contains(&newest.id),
        SlotKind::Ephemeral => false,
    };
    let annotated =
        newest.annotations.get(labels::CONTAINER_RESTART_COUNT).and_then(|t| t.parse::<i32>().ok());
    let from_attempt = i32::try_from(newest.attempt).unwrap_or(i32::MAX);
    ContainerStatus {
        name: slot.name.clone(),
        image: if newest.image.is_empty() {
            spec.image.clone().unwrap_or_default()
        } else {
            newest.image.clone()
        },
        image_id: newest.image_ref.clone(),
        container_id: Some(container_id(inputs, newest)),
        restart_count: annotated.unwrap_or(from_attempt),
        ready,
        // An ephemeral container has no `started`.
        started: (slot.kind != SlotKind::Ephemeral).then_some(started),
        state: Some(state_of(inputs, newest)),
        ..ContainerStatus::default()
    }
}

fn container_id(inputs: &StatusInputs<'_>, c: &ContainerObserved) -> String {
    format!("{}://{}", inputs.runtime_name, c.id)
}

fn state_of(inputs: &StatusInputs<'_>, c: &ContainerObserved) -> ApiState {
    match c.state {
        ContainerState::Running => ApiState {
            running: Some(ContainerStateRunning { started_at: c.started.and_then(api_time) }),
            ..ApiState::default()
        },
        ContainerState::Exited => ApiState { terminated: Some(terminated(inputs, c)), ..ApiState::default() },
        ContainerState::Created => waiting(inputs, &c.name),
        ContainerState::Unknown => {
            ApiState { terminated: Some(lost(c.started, c.finished, LOST_TERMINATED)), ..ApiState::default() }
        }
    }
}

fn terminated(inputs: &StatusInputs<'_>, c: &ContainerObserved) -> ContainerStateTerminated {
    let fallback = if c.exit_code == 0 { "Completed" } else { "Error" };
    ContainerStateTerminated {
        container_id: Some(container_id(inputs, c)),
        exit_code: c.exit_code,
        signal: None,
        reason: Some(if c.reason.is_empty() { fallback.to_owned() } else { c.reason.clone() }),
        message: Some(c.message.clone()).filter(|m| !m.is_empty()),
        started_at: c.started.and_then(api_time),
        finished_at: c.finished.and_then(api_time),
    }
}

fn lost(started: Option<Wall>, finished: Option<Wall>, message: &str) -> ContainerStateTerminated {
    ContainerStateTerminated {
        exit_code: 137,
        reason: Some(LOST.to_owned()),
        message: Some(message.to_owned()),
        started_at: started.and_then(api_time),
        finished_at: finished.and_then(api_time),
        ..ContainerStateTerminated::default()
    }
}

/// The waiting state: a known reason, else the default one.
fn waiting(inputs: &StatusInputs<'_>, name: &str) -> ApiState {
    let known = inputs.waiting.get(name);
    let default =
        if pod::init_containers(inputs.pod).is_empty() { "ContainerCreating" } else { "PodInitializing" };
    ApiState {
        waiting: Some(ContainerStateWaiting {
            reason: Some(known.map_or(default, |w| &w.reason).to_owned()),
            message: known.map(|w| w.message.clone()).filter(|m| !m.is_empty()),
        }),
        ..ApiState::default()
    }
}

fn absent(
    inputs: &StatusInputs<'_>,
    slot: &Slot,
    spec: &Container,
    before: Option<&ContainerStatus>,
    initialized: bool,
) -> ContainerStatus {
    let mut status = ContainerStatus {
        name: slot.name.clone(),
        image: spec.image.clone().unwrap_or_default(),
        started: (slot.kind != SlotKind::Ephemeral).then_some(false),
        state: Some(waiting(inputs, &slot.name)),
        restart_count: before.map_or(0, |b| b.restart_count),
        ..ContainerStatus::default()
    };
    if slot.kind != SlotKind::Ephemeral
        && reset::under_way(inputs)
        && before.is_some_and(|b| reset::removed(b, &mut status))
    {
        return status;
    }
    if slot.kind == SlotKind::Init && initialized && !reset::under_way(inputs) {
        status.ready = true;
        let message = Some(INIT_LOST.to_owned());
        let done = ContainerStateTerminated {
            reason: Some("Completed".to_owned()),
            message,
            ..ContainerStateTerminated::default()
        };
        status.state = Some(ApiState { terminated: Some(done), ..ApiState::default() });
        return status;
    }
    let Some(b) = before else { return status };
    if let Some(over) = b.state.as_ref().and_then(|s| s.terminated.clone()) {
        // Its end is known; the removal of the container does not change that.
        status.image.clone_from(&b.image);
        status.image_id.clone_from(&b.image_id);
        status.container_id.clone_from(&b.container_id);
        status.ready = b.ready && slot.kind == SlotKind::Init;
        status.state = Some(ApiState { terminated: Some(over), ..ApiState::default() });
        status.last_state.clone_from(&b.last_state);
    } else if was_running(b) {
        went_missing(inputs, slot.kind, b, &mut status);
    }
    status
}

/// It ran when last seen, and the runtime does not know it any more.
fn went_missing(
    inputs: &StatusInputs<'_>,
    kind: SlotKind,
    before: &ContainerStatus,
    status: &mut ContainerStatus,
) {
    // An ephemeral container does not start again: it is over, also if the pod goes on.
    if inputs.terminating || kind == SlotKind::Ephemeral {
        let over = lost(None, None, LOST_TERMINATED);
        status.state = Some(ApiState { terminated: Some(over), ..ApiState::default() });
    } else if before.last_state.as_ref().is_some_and(|s| s.terminated.is_some()) {
        // A known end is more useful than an unknown end of the next instance.
        status.last_state.clone_from(&before.last_state);
    } else {
        let over = lost(None, None, LOST_DELETED);
        status.last_state = Some(ApiState { terminated: Some(over), ..ApiState::default() });
        status.restart_count = status.restart_count.saturating_add(1);
    }
}

/// An instance with an unknown state that was never seen running is waiting: it cannot be reported as run and
/// failed.
fn never_seen_to_run(newest: Option<&ContainerObserved>, before: Option<&ContainerStatus>) -> bool {
    let ran = |s: &ApiState| s.running.is_some() || s.terminated.is_some();
    newest.is_some_and(|c| c.state == ContainerState::Unknown)
        && !before.and_then(|b| b.state.as_ref()).is_some_and(ran)
}

/// An ended container that will start again is waiting, with its end as the last state.
fn waiting_to_restart(
    inputs: &StatusInputs<'_>,
    slot: &Slot,
    spec: &Container,
    newest: Option<&ContainerObserved>,
    status: &mut ContainerStatus,
) {
    if inputs.terminating || slot.kind == SlotKind::Ephemeral {
        return;
    }
    let Some((id, how)) = newest.and_then(|c| Some((&c.id, ended(slot.kind, c)?))) else { return };
    let comes_back = if restarts(inputs.pod, slot, spec, how) {
        inputs.waiting.contains_key(&slot.name)
    } else {
        // Otherwise its end would be reported as final, which no client may revert.
        inputs.replaced.contains_key(id)
    };
    if !comes_back {
        return;
    }
    if let Some(state) = status.state.take_if(|s| s.terminated.is_some()) {
        status.last_state = Some(state);
    }
    status.state = Some(waiting(inputs, &slot.name));
}
