//! Ephemeral containers: added to a running pod to debug it (`kubectl debug`).
//!
//! In: [`Inputs`] and the sandbox. Out: starts, kills and removals appended to the plan. Invariants: an
//! ephemeral container starts at most once, however it ended; once the API shows that it ran, neither a
//! forgetful runtime nor a restart of the agent starts it again; it waits for no init container and keeps no
//! pod alive. Upstream: `computePodActions` (EphemeralContainersToStart) of
//! pkg/kubelet/kuberuntime/kuberuntime_manager.go.

use agent_types::ids::{ContainerId, SandboxId};
use agent_types::pod::{self, named};
use agent_types::runtime::observed::{ContainerState, PodSnapshot};
use agent_types::runtime::view::{SlotKind, is_live, newest, slots};
use k8s_openapi::api::core::v1::{ContainerState as ApiState, Pod};

use super::{Inputs, PodActions};
use crate::pod_actions::steps::{adopt_created, kill, start_fresh};

/// Appends the actions for the pod's ephemeral containers in the sandbox `home`.
pub(super) fn plan(inputs: &Inputs<'_>, home: &SandboxId, actions: &mut PodActions) {
    for slot in slots(inputs.pod).iter().filter(|s| s.kind == SlotKind::Ephemeral) {
        match newest(inputs.snapshot, &slot.name) {
            None if has_run(inputs.pod, &slot.name) => {}
            None => start_fresh(inputs, slot, actions),
            // It was made and has not run yet.
            Some(c) if c.state == ContainerState::Created => adopt_created(inputs, home, slot, c, actions),
            Some(c) if c.state == ContainerState::Unknown && c.sandbox == *home => {
                kill(slot, c, false, actions);
            }
            Some(_) => {}
        }
    }
}

/// The API shows that the ephemeral container `name` ran.
#[must_use]
pub fn has_run(p: &Pod, name: &str) -> bool {
    let shown = p.status.as_ref().and_then(|s| s.ephemeral_container_statuses.as_ref());
    let of = shown.and_then(|all| named(all, name));
    let ran = |state: Option<&ApiState>| state.is_some_and(|s| s.running.is_some() || s.terminated.is_some());
    of.is_some_and(|c| ran(c.state.as_ref()) || ran(c.last_state.as_ref()))
}

/// The container whose process namespace the ephemeral container `name` enters, if it names one.
///
/// # Errors
/// The target does not exist; the text is for the status.
pub fn target(p: &Pod, name: &str, snapshot: &PodSnapshot) -> Result<Option<ContainerId>, String> {
    let of = pod::ephemeral_containers(p).iter().find(|c| c.name == name);
    let Some(target) = of.and_then(|c| c.target_container_name.as_deref()).filter(|t| !t.is_empty()) else {
        return Ok(None);
    };
    let all = snapshot.containers.of(target).iter();
    // Of two instances the live one: a dead one has no namespace to enter.
    let best = all.max_by_key(|c| (is_live(c.state), c.attempt, c.created));
    best.map(|c| Some(c.id.clone())).ok_or_else(|| format!("unable to find target container {target}"))
}
