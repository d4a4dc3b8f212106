//! The status of a pod while all its containers restart (condition `AllContainersRestarting`, KEP-5532).
//!
//! In: inputs, the previous status. Out: the condition, the status of a container that was removed for the
//! restart. Invariant: a removed container is waiting, its end is the last state, and its restart counts
//! once. Upstream: `GenerateAllContainersRestartingCondition` of pkg/kubelet/status/generate.go,
//! `convertToAPIContainerStatuses` of pkg/kubelet/kubelet_pods.go.

use k8s_openapi::api::core::v1::{
    ContainerState, ContainerStateTerminated, ContainerStateWaiting, ContainerStatus,
};

use super::{Phase, StatusInputs};
use crate::status::previous::was_true;

/// Reason of the waiting state and of the last state of a container that was removed.
pub(super) const RESTARTING_ALL: &str = "RestartingAllContainers";
/// The condition.
pub(super) const CONDITION: &str = "AllContainersRestarting";
const STARTED: &str = "RestartAllContainersStarted";
const MESSAGE: &str = "The container is removed because RestartAllContainers in place";

/// Truth, reason and message of the condition.
pub(super) fn condition(inputs: &StatusInputs<'_>, phase: Phase) -> (bool, &'static str, &'static str) {
    match phase {
        Phase::Succeeded => (false, "PodCompleted", ""),
        Phase::Failed => (false, "PodFailed", ""),
        _ if inputs.resetting => (true, STARTED, "container exited with restart policy rule"),
        _ => (false, "", ""),
    }
}

/// A reset is under way, or was when the status was made that is known best: its last removals are seen now.
pub(super) fn under_way(inputs: &StatusInputs<'_>) -> bool {
    inputs.resetting || was_true(inputs, CONDITION)
}

/// The status of a container that the reset removed; false if `before` shows it as waiting already.
pub(super) fn removed(before: &ContainerStatus, status: &mut ContainerStatus) -> bool {
    if before.state.as_ref().is_none_or(|s| s.running.is_none() && s.terminated.is_none()) {
        return false;
    }
    let (reason, message) = (Some(RESTARTING_ALL.to_owned()), Some(MESSAGE.to_owned()));
    let waiting = ContainerStateWaiting { reason: reason.clone(), message: message.clone() };
    let over =
        ContainerStateTerminated { exit_code: 137, reason, message, ..ContainerStateTerminated::default() };
    status.state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
    status.last_state = Some(ContainerState { terminated: Some(over), ..ContainerState::default() });
    status.restart_count = before.restart_count.saturating_add(1);
    true
}
