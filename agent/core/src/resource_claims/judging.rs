//! Check of a fetched ResourceClaim: may this pod use it on this node?
//!
//! In: the pod's claims, the object. Out: the claim's UID and drivers, or upstream's error text. Invariants: pure; drivers are sorted.
//! Upstream: pkg/kubelet/cm/dra/manager.go prepareResources, k8s.io/dynamic-resource-allocation/resourceclaim.

use std::collections::BTreeSet;

use agent_types::runtime::claims::{ClaimsOfPod, NamedClaim};
use k8s_openapi::api::resource::v1::{ResourceClaim, ResourceClaimConsumerReference};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::OwnerReference;

/// API group of pod groups.
const SCHEDULING_GROUP: &str = "scheduling.k8s.io";

/// A claim that the pod may use.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct JudgedClaim {
    /// Name.
    pub(super) name: String,
    /// UID of the claim.
    pub(super) uid: String,
    /// Drivers of the allocation's results.
    pub(super) drivers: BTreeSet<String>,
}

/// Checks owner, reservation and allocation, in this order. `workload_claims` is the gate DRAWorkloadResourceClaims: the owner and the
/// reservation may be the pod's group.
///
/// # Errors
/// Upstream's text of the first check that fails.
pub(super) fn judge(
    pod: &ClaimsOfPod,
    named: &NamedClaim,
    claim: &ResourceClaim,
    workload_claims: bool,
) -> Result<JudgedClaim, String> {
    let group = pod.scheduling_group.as_deref().filter(|_| workload_claims);
    if named.is_of_template {
        check_owner(pod, claim, group)?;
    }
    let uid = claim.metadata.uid.clone().unwrap_or_default();
    let status = claim.status.as_ref();
    let reservations = status.and_then(|status| status.reserved_for.as_ref()).into_iter().flatten();
    if !reservations.into_iter().any(|reservation| is_for(reservation, &pod.uid, group)) {
        return Err(format!(
            "pod {} ({}) is not allowed to use ResourceClaim {} ({uid})",
            pod.pod, pod.uid, named.name
        ));
    }
    let Some(allocation) = status.and_then(|status| status.allocation.as_ref()) else {
        return Err(format!("ResourceClaim {}: not allocated", named.name));
    };
    let results = allocation.devices.as_ref().and_then(|devices| devices.results.as_ref());
    let drivers = results.into_iter().flatten().map(|result| result.driver.clone()).collect();
    Ok(JudgedClaim { name: named.name.clone(), uid, drivers })
}

/// A claim that was made from a template belongs to the pod, or to its group.
fn check_owner(pod: &ClaimsOfPod, claim: &ResourceClaim, group: Option<&str>) -> Result<(), String> {
    let namespace = claim.metadata.namespace.as_deref().unwrap_or_default();
    let claim_name = claim.metadata.name.as_deref().unwrap_or_default();
    let names = || format!("Pod {}/{}", pod.namespace, pod.pod);
    if namespace != pod.namespace {
        return Err(format!(
            "ResourceClaim {namespace}/{claim_name} is not in the same namespace as {}",
            names()
        ));
    }
    let owners = claim.metadata.owner_references.as_deref().unwrap_or_default();
    let controller = owners.iter().find(|owner| owner.controller == Some(true));
    let is_owner = controller
        .is_some_and(|owner| owner.uid == pod.uid || group.is_some_and(|group| is_pod_group(owner, group)));
    if is_owner {
        return Ok(());
    }
    let owner = match group {
        Some(group) => format!("neither Pod nor PodGroup {group} is the owner"),
        None => "Pod is not owner".to_owned(),
    };
    Err(format!("ResourceClaim {namespace}/{claim_name} was not created for {} ({owner})", names()))
}

fn is_pod_group(owner: &OwnerReference, group: &str) -> bool {
    let api_group = owner.api_version.split_once('/').map(|(api_group, _)| api_group);
    owner.kind == "PodGroup" && owner.name == group && api_group == Some(SCHEDULING_GROUP)
}

/// A pod does not know the UID of its group: a group's reservation is compared by name.
fn is_for(reservation: &ResourceClaimConsumerReference, uid: &str, group: Option<&str>) -> bool {
    let of_group = || {
        reservation.api_group.as_deref() == Some(SCHEDULING_GROUP)
            && reservation.resource == "podgroups"
            && group == Some(reservation.name.as_str())
    };
    reservation.uid == uid || of_group()
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod() -> ClaimsOfPod {
        ClaimsOfPod {
            namespace: "ns".to_owned(),
            pod: "p".to_owned(),
            uid: "pod-uid".to_owned(),
            ..ClaimsOfPod::default()
        }
    }

    fn claim(metadata: &Value, status: &Value) -> ResourceClaim {
        let mut metadata = metadata.clone();
        metadata["name"] = json!("c");
        metadata["uid"] = json!("claim-uid");
        let value = json!({"apiVersion": "resource.k8s.io/v1", "kind": "ResourceClaim", "metadata": metadata,
            "spec": {}, "status": status});
        serde_json::from_value(value).unwrap()
    }

    fn owner(kind: &str, api: &str, name: &str, uid: &str, controller: bool) -> Value {
        json!({"namespace": "ns", "ownerReferences": [
            {"apiVersion": api, "kind": kind, "name": name, "uid": uid, "controller": controller}]})
    }

    fn good() -> Value {
        json!({"reservedFor": [{"resource": "pods", "name": "other", "uid": "pod-uid"}],
            "allocation": {"devices": {"results": [
                {"driver": "b", "pool": "p", "device": "d", "request": "r"},
                {"driver": "a", "pool": "p", "device": "d", "request": "r"},
                {"driver": "b", "pool": "p", "device": "e", "request": "r"}]}}})
    }

    #[test]
    fn a_claim_that_is_reserved_and_allocated_gives_its_drivers() {
        let named = NamedClaim { name: "c".to_owned(), is_of_template: false };
        let judged = judge(&pod(), &named, &claim(&json!({"namespace": "ns"}), &good()), false).unwrap();
        assert_eq!(judged.uid, "claim-uid");
        assert_eq!(judged.drivers, ["a", "b"].map(str::to_owned).into());
        let none =
            json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}], "allocation": {}});
        let judged = judge(&pod(), &named, &claim(&json!({"namespace": "ns"}), &none), false).unwrap();
        assert!(judged.drivers.is_empty(), "an allocation without results has nobody to call");
    }

    #[test]
    fn refusals_have_upstreams_words() {
        let mine = owner("Pod", "v1", "p", "pod-uid", true);
        let group = owner("PodGroup", "scheduling.k8s.io/v1alpha2", "g", "x", true);
        let not_owner = "ResourceClaim ns/c was not created for Pod ns/p (Pod is not owner)";
        let neither =
            "ResourceClaim ns/c was not created for Pod ns/p (neither Pod nor PodGroup g is the owner)";
        let not_allowed = "pod p (pod-uid) is not allowed to use ResourceClaim c (claim-uid)";
        let other =
            json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "other"}], "allocation": {}});
        let unallocated = json!({"reservedFor": [{"resource": "pods", "name": "p", "uid": "pod-uid"}]});
        let groups = json!({"reservedFor": [
            {"apiGroup": "scheduling.k8s.io", "resource": "podgroups", "name": "g", "uid": "x"}], "allocation": {}});
        let elsewhere = json!({"namespace": "else"});
        let not_here = "ResourceClaim else/c is not in the same namespace as Pod ns/p";
        for (workload, is_of_template, metadata, status, refusal) in [
            (false, true, &mine, &good(), ""),
            (false, true, &elsewhere, &good(), not_here),
            (false, false, &json!({"namespace": "ns"}), &good(), ""),
            (false, true, &owner("Pod", "v1", "p", "pod-uid", false), &good(), not_owner),
            (false, true, &owner("Pod", "v1", "p", "other", true), &good(), not_owner),
            (false, true, &group, &good(), not_owner),
            (true, true, &group, &good(), ""),
            (true, true, &owner("PodGroup", "other.io/v1", "g", "x", true), &good(), neither),
            (true, true, &owner("PodGroup", "scheduling.k8s.io/v1", "h", "x", true), &good(), neither),
            (false, true, &mine, &other, not_allowed),
            (false, true, &mine, &json!({}), not_allowed),
            (false, true, &mine, &groups, not_allowed),
            (true, true, &mine, &groups, ""),
            (false, true, &mine, &unallocated, "ResourceClaim c: not allocated"),
        ] {
            let pod = ClaimsOfPod { scheduling_group: Some("g".to_owned()), ..pod() };
            let named = NamedClaim { name: "c".to_owned(), is_of_template };
            let judged = judge(&pod, &named, &claim(metadata, status), workload);
            assert_eq!(judged.err().unwrap_or_default(), refusal, "{metadata} {status}");
        }
    }
}
