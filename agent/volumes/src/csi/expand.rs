//! Expansion of a claim's volume: whether the node must enlarge the file system, and the new status of the
//! claim.
//!
//! ```text
//! claim < volume, NodeResizePending ─► NodeResizeInProgress ─► the driver ─► capacity, no conditions of resizing
//!                                                                 └─ refused: NodeResizeError; FailedPrecondition: later
//!                                                                    for good, or unwanted by now: NodeResizeInfeasible
//! ```
//! In: claim and volume of the API server, the driver's answer. Out: the size, patches of the claim's status.
//! Invariants: a patch holds only for the version of the claim that was read (`resourceVersion`), except for
//! texts about a failure; it changes only fields that a node may change. A controller older than
//! `allocatedResourceStatuses` works too. Upstream: pkg/volume/util/operationexecutor/node_expander.go,
//! pkg/volume/util/resize_util.go, KEP-1790.

use agent_types::time::Wall;
use agent_types::{Quantity, api_time};
use k8s_openapi::api::core::v1::{PersistentVolume, PersistentVolumeClaim, PersistentVolumeClaimStatus};
use k8s_openapi::apimachinery::pkg::api::resource::Quantity as ApiQuantity;
use serde_json::{Value, json};

/// What is resized.
const STORAGE: &str = "storage";
/// It waits for the node.
const PENDING: &str = "NodeResizePending";
/// The node is at it.
const IN_PROGRESS: &str = "NodeResizeInProgress";
/// No node will do it: the controller is to think of something else, and nodes do not ask again before it has.
const INFEASIBLE: &str = "NodeResizeInfeasible";
/// The condition that says that a node's driver refused.
const FAILED: &str = "NodeResizeError";
/// Conditions that are removed when all is done.
const CONDITIONS: [&str; 4] = ["FileSystemResizePending", "Resizing", "ControllerResizeError", FAILED];

/// How what a volume holds is to grow.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Growth {
    /// How large, as the API has it.
    pub size: String,
    /// The same, bytes.
    pub bytes: i64,
    /// How large the claim says that it is, bytes.
    pub had: i64,
    /// It is to be said that the node is at it.
    pub announced: bool,
    /// The claim's status shows the expansion: a failure is reported there.
    pub recorded: bool,
    /// A node's driver refused it before, and the user wants another size by now: another refusal is the last.
    pub unwanted: bool,
}

/// True if the volume is larger than its claim's status says.
#[must_use]
pub fn is_larger(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> bool {
    let of_claim = claim.status.as_ref().and_then(|s| s.capacity.as_ref()?.get(STORAGE));
    let of_volume = volume.spec.as_ref().and_then(|s| s.capacity.as_ref()?.get(STORAGE));
    let size = |q: Option<&ApiQuantity>| q.and_then(|q| Quantity::parse(&q.0).ok());
    size(of_volume).is_some_and(|of_volume| size(of_claim).is_none_or(|has| has < of_volume))
}

/// What the node has to do; `None`: nothing, or not yet.
#[must_use]
pub fn needed(claim: &PersistentVolumeClaim, volume: &PersistentVolume) -> Option<Growth> {
    if !is_larger(claim, volume) {
        return None;
    }
    let status = claim.status.clone().unwrap_or_default();
    let size = |text: &str| Quantity::parse(text).ok();
    let of_claim = status.capacity.as_ref().and_then(|all| size(&all.get(STORAGE)?.0));
    let capacity = volume.spec.as_ref()?.capacity.as_ref()?.get(STORAGE)?;
    let stands = standing(&status);
    let growth = |text: &str, announced: bool, recorded: bool| {
        let bytes = size(text)?;
        let wanted = claim.spec.as_ref().and_then(|s| s.resources.as_ref()?.requests.as_ref()?.get(STORAGE));
        let other = wanted.and_then(|q| size(&q.0)).is_some_and(|wanted| wanted != bytes);
        let unwanted = other && status.conditions.iter().flatten().any(|c| c.type_ == FAILED);
        let had = of_claim.map(Quantity::value).unwrap_or_default();
        let bytes = bytes.value();
        Some(Growth { size: text.to_owned(), bytes, had, announced, recorded, unwanted })
    };
    match (stands, &status.allocated_resources) {
        (None, None) => growth(&capacity.0, false, false),
        (Some(PENDING), Some(given)) => growth(&given.get(STORAGE)?.0, true, true),
        (Some(IN_PROGRESS), Some(given)) => growth(&given.get(STORAGE)?.0, false, true),
        // The controller is not done, or has to think of something else.
        _ => None,
    }
}

fn standing(status: &PersistentVolumeClaimStatus) -> Option<&str> {
    status.allocated_resource_statuses.as_ref()?.get(STORAGE).map(String::as_str)
}

fn of_this(claim: &PersistentVolumeClaim, status: &Value) -> Value {
    json!({"metadata": {"resourceVersion": claim.metadata.resource_version}, "status": status})
}

/// The claim says that the node is at it.
#[must_use]
pub fn began(claim: &PersistentVolumeClaim) -> Value {
    of_this(claim, &json!({"allocatedResourceStatuses": {STORAGE: IN_PROGRESS}}))
}

/// The claim says that it is done.
#[must_use]
pub fn done(claim: &PersistentVolumeClaim, growth: &Growth) -> Value {
    let status = claim.status.clone().unwrap_or_default();
    let conditions = status.conditions.iter().flatten().map(|c| c.type_.as_str());
    let gone: Vec<Value> = conditions
        .filter(|kind| CONDITIONS.contains(kind))
        .map(|kind| json!({"$patch": "delete", "type": kind}))
        .collect();
    let mut patch = json!({"capacity": {STORAGE: growth.size}});
    if standing(&status).is_some() {
        patch["allocatedResourceStatuses"] = json!({STORAGE: null});
    }
    if !gone.is_empty() {
        patch["conditions"] = json!(gone);
    }
    of_this(claim, &patch)
}

/// The claim says why it is not done; with `infeasible`, that it will not be.
#[must_use]
pub fn refused(why: &str, infeasible: bool, now: Wall) -> Value {
    let condition = json!({"type": FAILED, "status": "True", "lastTransitionTime": api_time::api_time(now),
        "message": format!("failed to expand pvc with {why}")});
    let mut status = json!({"conditions": [condition]});
    if infeasible {
        status["allocatedResourceStatuses"] = json!({STORAGE: INFEASIBLE});
    }
    json!({"status": status})
}

#[cfg(test)]
mod tests {
    use super::*;

    fn claim(status: Value) -> PersistentVolumeClaim {
        serde_json::from_value(json!({"metadata": {"name": "c", "resourceVersion": "7"}, "status": status}))
            .unwrap()
    }

    fn volume(size: &str) -> PersistentVolume {
        let spec = json!({"capacity": {"storage": size}, "csi": {"driver": "d", "volumeHandle": "h"}});
        serde_json::from_value(json!({"metadata": {"name": "pv"}, "spec": spec})).unwrap()
    }

    #[test]
    fn the_node_is_asked_when_the_controller_is_done() {
        let stands = |status: Option<&str>, allocated: Option<&str>| {
            let mut all = json!({"capacity": {"storage": "1Gi"}});
            if let Some(status) = status {
                all["allocatedResourceStatuses"] = json!({"storage": status});
            }
            if let Some(allocated) = allocated {
                all["allocatedResources"] = json!({"storage": allocated});
            }
            claim(all)
        };
        let growth = |size: &str, announced, recorded| {
            let bytes = Quantity::parse(size).unwrap().value();
            Some(Growth { size: size.to_owned(), bytes, had: 1 << 30, announced, recorded, unwanted: false })
        };
        for (status, allocated, expected) in [
            (None, None, growth("2Gi", false, false)),
            (Some("NodeResizePending"), Some("2Gi"), growth("2Gi", true, true)),
            (Some("NodeResizeInProgress"), Some("1536Mi"), growth("1536Mi", false, true)),
            (Some("ControllerResizeInProgress"), Some("2Gi"), None),
            (Some("NodeResizeInfeasible"), Some("2Gi"), None),
            (Some("NodeResizePending"), None, None),
            (None, Some("2Gi"), None),
        ] {
            assert_eq!(
                needed(&stands(status, allocated), &volume("2Gi")),
                expected,
                "{status:?} {allocated:?}"
            );
        }
        let pending = stands(Some("NodeResizePending"), Some("2Gi"));
        assert_eq!(needed(&pending, &volume("1024Mi")), None, "it is as large already");
        assert_eq!(needed(&claim(json!({})), &volume("much")), None, "no size");
        for (has, larger) in [
            (json!({"capacity": {"storage": "1Gi"}}), false),
            (json!({"capacity": {"storage": "1023Mi"}}), true),
        ] {
            assert_eq!(is_larger(&claim(has), &volume("1024Mi")), larger);
        }
        assert!(is_larger(&claim(json!({})), &volume("1Gi")), "a claim without a size has none yet");
    }

    #[test]
    fn a_refusal_of_what_nobody_wants_any_more_is_the_last() {
        for (wanted, conditions, unwanted) in [
            ("2Gi", json!([{"type": "NodeResizeError", "status": "True"}]), false),
            ("2048Mi", json!([{"type": "NodeResizeError", "status": "True"}]), false),
            ("1500Mi", json!([{"type": "Resizing", "status": "True"}]), false),
            ("1500Mi", json!([{"type": "NodeResizeError", "status": "True"}]), true),
        ] {
            let claim: PersistentVolumeClaim = serde_json::from_value(json!({"metadata": {"name": "c"},
                "spec": {"resources": {"requests": {"storage": wanted}}}, "status": {"capacity": {"storage": "1Gi"},
                    "allocatedResources": {"storage": "2Gi"}, "conditions": conditions,
                    "allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}}}))
            .unwrap();
            assert_eq!(needed(&claim, &volume("2Gi")).unwrap().unwanted, unwanted, "{wanted} {conditions}");
        }
    }

    #[test]
    fn what_the_claim_says() {
        let pending = claim(json!({"capacity": {"storage": "1Gi"}, "allocatedResources": {"storage": "2Gi"},
            "allocatedResourceStatuses": {"storage": "NodeResizePending"},
            "conditions": [{"type": "FileSystemResizePending", "status": "True"}, {"type": "Mine", "status": "True"}]}));
        let of = json!({"resourceVersion": "7"});
        let at_it = json!({"allocatedResourceStatuses": {"storage": "NodeResizeInProgress"}});
        assert_eq!(began(&pending), json!({"metadata": of, "status": at_it}));
        let growth = needed(&pending, &volume("2Gi")).unwrap();
        let all = json!({"capacity": {"storage": "2Gi"}, "allocatedResourceStatuses": {"storage": null},
            "conditions": [{"$patch": "delete", "type": "FileSystemResizePending"}]});
        assert_eq!(done(&pending, &growth), json!({"metadata": of, "status": all}));
        let plain = claim(json!({"capacity": {"storage": "1Gi"}}));
        let all = json!({"capacity": {"storage": "2Gi"}});
        assert_eq!(done(&plain, &growth), json!({"metadata": of, "status": all}));
        let words = refused("no room", false, Wall(0));
        assert!(words["status"].get("allocatedResourceStatuses").is_none(), "it is tried again");
        let last = refused("no room", true, Wall(0));
        assert_eq!(last["status"]["conditions"], words["status"]["conditions"]);
        assert_eq!(last["status"]["allocatedResourceStatuses"], json!({"storage": "NodeResizeInfeasible"}));
        let condition = &words["status"]["conditions"][0];
        assert_eq!(
            (&condition["type"], &condition["message"]),
            (&json!("NodeResizeError"), &json!("failed to expand pvc with no room"))
        );
        assert_eq!(condition["lastTransitionTime"], "1970-01-01T00:00:00Z");
    }
}
