//! Merges the worker's status into the API's status.
//!
//! In: the API's pod, a normalised status. Out: the status to write. Pure. Invariants: conditions and fields
//! of other owners stay as they are; a terminal phase is withheld while a container may run and never left
//! again; a pod in a terminal phase is not ready; the start time does not change. Upstream: `mergePodStatus`
//! and `updateStatusInternal` of pkg/kubelet/status/status_manager.go.

use agent_types::time::Wall;
use k8s_openapi::api::core::v1::{Pod, PodCondition, PodStatus};

use crate::status::{DISRUPTION_TARGET, Phase, api_time};

/// Conditions that the node owns (upstream: `PodConditionByKubelet` of pkg/kubelet/types/pod_status.go).
const OWNED: [&str; 8] = [
    "PodScheduled",
    "Ready",
    "Initialized",
    "ContainersReady",
    "PodReadyToStartContainers",
    "PodResizeInProgress",
    "PodResizePending",
    "AllContainersRestarting",
];

/// True for a condition that only the node writes.
#[must_use]
pub fn is_owned_condition(name: &str) -> bool {
    OWNED.contains(&name)
}

/// What surrounds a status.
#[derive(Clone, Copy, Debug)]
pub struct MergeInputs<'a> {
    /// The API's pod.
    pub shown: &'a Pod,
    /// It is the mirror of the pod that the status is about.
    pub mirror: bool,
    /// A container of the pod may run.
    pub may_run: bool,
    /// Transition time of changed conditions.
    pub now: Wall,
}

/// The status to write.
#[must_use]
pub fn merge(inputs: &MergeInputs<'_>, mut status: PodStatus) -> PodStatus {
    let empty = PodStatus::default();
    let before = inputs.shown.status.as_ref().unwrap_or(&empty);
    let terminal = |s: &PodStatus| Phase::end(s).is_some();
    let ends = !terminal(before) && terminal(&status);
    status.conditions = Some(conditions(inputs, before, &status, ends));
    status.resource_claim_statuses.clone_from(&before.resource_claim_statuses);
    status.extended_resource_claim_status.clone_from(&before.extended_resource_claim_status);
    status.nominated_node_name.clone_from(&before.nominated_node_name);
    if before.start_time.is_some() {
        status.start_time.clone_from(&before.start_time);
    }
    status.observed_generation = status.observed_generation.max(before.observed_generation);
    // A static pod's end is not final: its next run shows through the same mirror pod.
    let absorbed = terminal(before) && !inputs.mirror;
    if absorbed || (ends && inputs.may_run) {
        status.phase.clone_from(&before.phase);
        status.reason.clone_from(&before.reason);
        status.message.clone_from(&before.message);
    }
    if terminal(&status) {
        not_ready(inputs, before, &mut status);
    }
    keep_order(before, &mut status);
    status
}

fn conditions(
    inputs: &MergeInputs<'_>,
    before: &PodStatus,
    status: &PodStatus,
    ends: bool,
) -> Vec<PodCondition> {
    let shown = before.conditions.as_deref().unwrap_or(&[]);
    let mut all: Vec<PodCondition> =
        shown.iter().filter(|c| !is_owned_condition(&c.type_)).cloned().collect();
    for new in status.conditions.iter().flatten() {
        let old = shown.iter().find(|c| c.type_ == new.type_);
        let mut new = new.clone();
        if is_owned_condition(&new.type_) {
            // A restarted agent does not know since when a static pod's conditions hold; the mirror pod does.
            if let Some(old) = old.filter(|old| inputs.mirror && old.status == new.status) {
                new.last_transition_time.clone_from(&old.last_transition_time);
            }
            all.push(new);
        } else if new.type_ == DISRUPTION_TARGET && ends && !inputs.may_run {
            let same = old.filter(|old| old.status == new.status);
            new.last_transition_time =
                same.map_or_else(|| api_time(inputs.now), |old| old.last_transition_time.clone());
            match all.iter_mut().find(|c| c.type_ == DISRUPTION_TARGET) {
                Some(old) => *old = new,
                None => all.push(new),
            }
        }
    }
    all
}

/// A list of conditions that only stands in another order is no change worth a patch: it keeps the API's order.
fn keep_order(before: &PodStatus, status: &mut PodStatus) {
    let shown = before.conditions.as_deref().unwrap_or(&[]);
    let all = status.conditions.as_deref().unwrap_or(&[]);
    if all.len() == shown.len() && all.iter().all(|c| shown.contains(c)) {
        status.conditions = Some(shown.to_vec());
    }
}

fn not_ready(inputs: &MergeInputs<'_>, before: &PodStatus, status: &mut PodStatus) {
    let reason = if status.phase.as_deref() == Some("Succeeded") { "PodCompleted" } else { "PodFailed" };
    for condition in status.conditions.iter_mut().flatten() {
        let about = matches!(condition.type_.as_str(), "Ready" | "ContainersReady");
        if about && condition.status == "True" {
            condition.status = "False".to_owned();
            condition.reason = Some(reason.to_owned());
            condition.message = None;
            let old = before.conditions.iter().flatten().find(|c| c.type_ == condition.type_);
            let since = old.filter(|c| c.status == "False").and_then(|c| c.last_transition_time.clone());
            condition.last_transition_time = since.or_else(|| api_time(inputs.now));
        }
    }
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn status(conditions: &[(&str, &str)]) -> PodStatus {
        let all: Vec<Value> =
            conditions.iter().map(|(name, is)| json!({"type": name, "status": is})).collect();
        serde_json::from_value(json!({"phase": "Running", "conditions": all})).unwrap()
    }

    #[test]
    fn conditions_stand_in_upstreams_order_as_soon_as_one_of_them_changes() {
        let merged = |shown: PodStatus| {
            let shown = Pod { status: Some(shown), ..Pod::default() };
            let inputs = MergeInputs { shown: &shown, mirror: false, may_run: true, now: Wall(0) };
            let said = status(&[("Initialized", "True"), ("Ready", "True"), ("PodScheduled", "True")]);
            let all = merge(&inputs, said).conditions.unwrap();
            all.into_iter().map(|c| c.type_).collect::<Vec<_>>()
        };
        let first = merged(status(&[("PodScheduled", "True"), ("x/gate", "False")]));
        assert_eq!(first, ["x/gate", "Initialized", "Ready", "PodScheduled"]);
        let changes =
            merged(status(&[("PodScheduled", "True"), ("Ready", "False"), ("Initialized", "True")]));
        assert_eq!(changes, ["Initialized", "Ready", "PodScheduled"]);
        let same = merged(status(&[("PodScheduled", "True"), ("Ready", "True"), ("Initialized", "True")]));
        assert_eq!(same, ["PodScheduled", "Ready", "Initialized"], "the order alone is worth no patch");
    }
}
