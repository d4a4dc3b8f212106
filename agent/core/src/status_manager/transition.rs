//! Check of container states: a container that ended for good does not run again.
//!
//! In: two consecutive statuses and the pod's specification. Out: yes, or the container that contradicts.
//! Pure. Upstream: `checkContainerStateTransition` of pkg/kubelet/status/status_manager.go.

use agent_types::pod::status_at;
use agent_types::runtime::view::{SlotKind, slots};
use k8s_openapi::api::core::v1::{ContainerStatus, Pod, PodStatus};

use crate::pod_actions::ended::{ContainerExit, restarts};
use crate::pod_actions::may_restart_all;

/// True if `after` may follow `before`. Without a specification every transition is allowed.
pub(super) fn check<'a>(
    before: Option<&'a PodStatus>,
    after: &'a PodStatus,
    pod: Option<&Pod>,
) -> Result<(), String> {
    let Some(pod) = pod else { return Ok(()) };
    let Some(before) = before else { return Ok(()) };
    if may_restart_all(pod) {
        return Ok(());
    }
    for slot in slots(pod).iter().filter(|s| s.kind != SlotKind::Sidecar) {
        let list = |status: &'a PodStatus| match slot.kind {
            SlotKind::Regular => &status.container_statuses,
            SlotKind::Init | SlotKind::Sidecar => &status.init_container_statuses,
            SlotKind::Ephemeral => &status.ephemeral_container_statuses,
        };
        let find = |status| list(status).as_deref().and_then(|all| status_at(all, slot.index, &slot.name));
        let Some(exit_code) = find(before).and_then(exit_code) else { continue };
        let how = if exit_code == 0 { ContainerExit::Succeeded } else { ContainerExit::Failed(exit_code) };
        let comes_back = slot.kind != SlotKind::Ephemeral
            && slot.spec(pod).is_some_and(|spec| restarts(pod, slot, &spec, how));
        if !comes_back && find(after).is_some_and(|c| self::exit_code(c).is_none()) {
            return Err(format!("container {} ended for good and is said not to have", slot.name));
        }
    }
    Ok(())
}

fn exit_code(container: &ContainerStatus) -> Option<i32> {
    container.state.as_ref()?.terminated.as_ref().map(|t| t.exit_code)
}
