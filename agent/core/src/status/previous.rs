//! The statuses that a pod had before.

use k8s_openapi::api::core::v1::{ContainerStatus, PodCondition};

use crate::status::StatusInputs;

/// The statuses of both lists.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct Statuses {
    /// Of `spec.initContainers`, in order.
    pub init: Vec<ContainerStatus>,
    /// Of `spec.containers`, by name.
    pub regular: Vec<ContainerStatus>,
    /// Of `spec.ephemeralContainers`, by name; part of no phase and no readiness.
    pub ephemeral: Vec<ContainerStatus>,
}

pub(super) fn before<'a>(inputs: &StatusInputs<'a>, name: &str) -> Option<&'a PodCondition> {
    [inputs.previous, inputs.pod.status.as_ref()]
        .into_iter()
        .flatten()
        .filter_map(|s| s.conditions.as_ref())
        .find_map(|all| all.iter().find(|c| c.type_ == name))
}

/// The condition is True in the status that is known best.
pub(super) fn was_true(inputs: &StatusInputs<'_>, name: &str) -> bool {
    let before = inputs.previous.or(inputs.pod.status.as_ref()).and_then(|s| s.conditions.as_ref());
    before.is_some_and(|all| all.iter().any(|c| c.type_ == name && c.status == "True"))
}
