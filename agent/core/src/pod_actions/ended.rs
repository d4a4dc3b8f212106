//! Ended containers: whether a container has ended, and whether its restart policy starts it again.

use agent_types::pod::{self, named};
use agent_types::restart;
use agent_types::runtime::labels;
use agent_types::runtime::observed::{ContainerObserved, ContainerState};
use agent_types::runtime::view::{Slot, SlotKind, newest};
use k8s_openapi::api::core::v1::{Container, Pod};

use crate::pod_actions::{Inputs, rules};

/// How a container that is not live ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ContainerExit {
    /// Exit code 0.
    Succeeded,
    /// Anything else, with its exit code.
    Failed(i32),
}

/// How the instance ended; `None` while it is live or was never started. An init container failed if the
/// kernel killed one of its processes (upstream: `isInitContainerFailed`); for the others only the exit code
/// counts.
#[must_use]
pub fn ended(kind: SlotKind, c: &ContainerObserved) -> Option<ContainerExit> {
    let killed = kind == SlotKind::Init && c.reason == "OOMKilled";
    match c.state {
        ContainerState::Exited if c.exit_code == 0 && !killed => Some(ContainerExit::Succeeded),
        ContainerState::Exited => Some(ContainerExit::Failed(c.exit_code)),
        ContainerState::Created | ContainerState::Running | ContainerState::Unknown => None,
    }
}

/// Whether the policy brings a container back that ended like this: its own rules first, then its own
/// policy, then the pod's (`Always` unless set). Regular init containers restart on failure only.
#[must_use]
pub fn restarts(p: &Pod, slot: &Slot, container: &Container, how: ContainerExit) -> bool {
    let exit_code = match how {
        ContainerExit::Succeeded => 0,
        ContainerExit::Failed(code) => code,
    };
    if rules::restarts(container, exit_code) {
        return slot.kind != SlotKind::Init || how != ContainerExit::Succeeded;
    }
    match (policy(p, container), how) {
        ("Never", _) | ("OnFailure", ContainerExit::Succeeded) => false,
        (_, ContainerExit::Succeeded) => slot.kind != SlotKind::Init,
        _ => true,
    }
}

/// The container's own restart policy, else the pod's.
pub(super) fn policy<'a>(p: &'a Pod, container: &'a Container) -> &'a str {
    let of_pod = pod::spec(p).restart_policy.as_deref().unwrap_or("Always");
    container.restart_policy.as_deref().unwrap_or(of_pod)
}

/// True if the API shows that the container ended for good. This stays true after the runtime forgot the
/// container: the API server does not let a client revert it, and a container that must run once must not run
/// twice.
pub(super) fn ended_for_good(p: &Pod, slot: &Slot, container: &Container) -> bool {
    let shown = p.status.as_ref().and_then(|s| s.container_statuses.as_ref());
    let shown = shown.and_then(|all| named(all, &slot.name));
    let terminated = shown.and_then(|c| c.state.as_ref()).and_then(|s| s.terminated.as_ref());
    terminated.is_some_and(|t| {
        let how =
            if t.exit_code == 0 { ContainerExit::Succeeded } else { ContainerExit::Failed(t.exit_code) };
        // Where all containers may restart, no end is for good.
        slot.kind == SlotKind::Regular && !restarts(p, slot, container, how) && !rules::may_restart_all(p)
    })
}

/// The definition changed if name and image hash differently; a container without our annotation counts as
/// unchanged (another tool made it).
pub(super) fn changed(inputs: &Inputs<'_>, slot: &Slot, c: &ContainerObserved) -> bool {
    let Some(spec) = slot.spec(inputs.pod) else { return false };
    let Some(have) = c.annotations.get(labels::CONTAINER_HASH) else { return false };
    *have != (inputs.hash)(&slot.name, spec.image.as_deref().unwrap_or(""))
}

/// A container's resources as stable text, for the back-off key.
#[must_use]
fn resources_text(container: &Container) -> String {
    container.resources.as_ref().and_then(|r| serde_json::to_string(r).ok()).unwrap_or_default()
}

/// The crash-loop key of a slot (upstream: `GetBackoffKey` of pkg/kubelet/kuberuntime/helpers.go).
#[must_use]
pub fn back_off_key(p: &Pod, slot: &Slot) -> String {
    let (image, resources) = slot
        .spec(p)
        .map_or_else(Default::default, |c| (c.image.clone().unwrap_or_default(), resources_text(&c)));
    restart::key(pod::uid(p), &slot.name, &image, &resources)
}

/// The newest instance of the container, in any sandbox, if its end requests a reset.
pub(super) fn ended_asking<'a>(inputs: &Inputs<'a>, slot: &Slot) -> Option<&'a ContainerObserved> {
    let c = newest(inputs.snapshot, &slot.name).filter(|c| c.state == ContainerState::Exited)?;
    let spec = slot.spec(inputs.pod)?;
    rules::restarts_all(&spec, c.exit_code).then_some(c)
}
