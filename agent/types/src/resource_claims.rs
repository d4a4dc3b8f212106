//! The resource claims that a pod names, and the containers that use them (dynamic resource allocation).
//!
//! In: the specification and the status of a pod. Out: [`ClaimsOfPod`], or upstream's text for claims without names.
//! Invariants: pure; claims and uses keep the order of the specification; ephemeral containers use no claims. Upstream:
//! `Name` of dynamic-resource-allocation/resourceclaim, `GetResources` of pkg/kubelet/cm/dra/manager.go. Source: KEP-4381, KEP-5004.

use k8s_openapi::api::core::v1::{
    Container, ContainerExtendedResourceRequest, Pod, PodExtendedResourceClaimStatus, PodResourceClaim,
    ResourceClaim,
};

use crate::pod;
use crate::resources::requests::{is_extended, request};
use crate::runtime::claims::{ClaimUse, ClaimUser, ClaimsOfPod, NamedClaim};

/// Prefix of a resource that stands for a device class: `deviceclass.resource.kubernetes.io/<class>`.
pub const DEVICE_CLASS_PREFIX: &str = "deviceclass.resource.kubernetes.io/";

/// True if a claim can provide the resource: an extended resource, or one that stands for a device class.
#[must_use]
pub fn is_claimable(resource: &str) -> bool {
    is_extended(resource) || resource.starts_with(DEVICE_CLASS_PREFIX)
}

/// True if the pod names claims, or has a claim for extended resources.
#[must_use]
pub fn uses_claims(p: &Pod) -> bool {
    let named = pod::spec(p).resource_claims.as_ref().is_some_and(|claims| !claims.is_empty());
    named || extended(p).is_some()
}

/// The claim of the pod's extended resources.
#[must_use]
pub fn extended(p: &Pod) -> Option<&PodExtendedResourceClaimStatus> {
    p.status.as_ref()?.extended_resource_claim_status.as_ref()
}

/// True if the claim of the pod's extended resources provides this resource of the container.
#[must_use]
pub fn is_claimed(p: &Pod, container: &str, resource: &str) -> bool {
    let mut mappings = extended(p).into_iter().flat_map(|claim| &claim.request_mappings);
    is_claimable(resource)
        && mappings.any(|mapping| mapping.container_name == container && mapping.resource_name == resource)
}

/// Claims of the pod, and their uses by its containers. Without `extended_gate` (DRAExtendedResource) the claim of extended resources
/// does not count.
///
/// # Errors
/// A claim has no name yet; the text is upstream's.
pub fn claims_of(p: &Pod, extended_gate: bool) -> Result<ClaimsOfPod, String> {
    let key = pod::key(p);
    let spec = pod::spec(p);
    let mut named: Vec<(&str, NamedClaim)> = Vec::new();
    for claim in spec.resource_claims.iter().flatten() {
        let found =
            name_of(p, claim).map_err(|why| format!("pod \"{}/{}\"{why}", key.namespace, key.name))?;
        named.extend(found.map(|found| (claim.name.as_str(), found)));
    }
    let extended = extended(p).filter(|_| extended_gate);
    let users = pod::init_containers(p)
        .iter()
        .map(|c| (c, false))
        .chain(pod::containers(p).iter().map(|c| (c, true)));
    let users = users.map(|(c, is_shown)| {
        let mut uses = uses_of(c, &named, is_shown);
        uses.extend(extended.into_iter().flat_map(|claim| extended_uses(c, claim)));
        ClaimUser { name: c.name.clone(), uses }
    });
    let containers = users.filter(|user| !user.uses.is_empty()).collect();
    let mut claims: Vec<NamedClaim> = named.into_iter().map(|(_, claim)| claim).collect();
    claims.extend(
        extended.map(|claim| NamedClaim { name: claim.resource_claim_name.clone(), is_of_template: false }),
    );
    Ok(ClaimsOfPod {
        namespace: key.namespace.to_string(),
        pod: key.name.to_string(),
        uid: key.uid.as_str().to_owned(),
        scheduling_group: spec.scheduling_group.as_ref().and_then(|group| group.pod_group_name.clone()),
        claims,
        containers,
    })
}

/// The claim that an entry of `spec.resourceClaims` stands for; `None`: the entry needs none. The error is the end of upstream's text.
fn name_of(p: &Pod, entry: &PodResourceClaim) -> Result<Option<NamedClaim>, String> {
    if let Some(name) = &entry.resource_claim_name {
        return Ok(Some(NamedClaim { name: name.clone(), is_of_template: false }));
    }
    if entry.resource_claim_template_name.is_none() {
        return Err(format!(", spec.resourceClaim {:?}: none of the supported fields are set", entry.name));
    }
    let statuses = p.status.as_ref().and_then(|status| status.resource_claim_statuses.as_ref());
    let made = statuses.into_iter().flatten().find(|made| made.name == entry.name);
    let made = made.ok_or_else(|| ": ResourceClaim not created yet".to_owned())?;
    Ok(made.resource_claim_name.clone().map(|name| NamedClaim { name, is_of_template: true }))
}

/// Uses of the pod's named claims by one container.
fn uses_of(container: &Container, named: &[(&str, NamedClaim)], is_shown: bool) -> Vec<ClaimUse> {
    let entries = container.resources.iter().flat_map(|resources| resources.claims.iter().flatten());
    let one = |entry: &ResourceClaim| {
        let (_, claim) = named.iter().find(|(name, _)| *name == entry.name)?;
        let request = entry.request.as_deref().unwrap_or_default();
        let status_name = match request {
            "" => format!("claim:{}", entry.name),
            request => format!("claim:{}/{request}", entry.name),
        };
        Some(ClaimUse {
            claim: claim.name.clone(),
            request: main_request(request).to_owned(),
            status_name: is_shown.then_some(status_name),
        })
    };
    entries.filter_map(one).collect()
}

/// Uses of the claim of extended resources by one container: for each resource that it requests.
fn extended_uses(container: &Container, claim: &PodExtendedResourceClaimStatus) -> Vec<ClaimUse> {
    let requested = |name: &str| request(container, name).is_some_and(|amount| !amount.is_zero());
    let own = claim.request_mappings.iter().filter(|mapping| {
        mapping.container_name == container.name
            && is_claimable(&mapping.resource_name)
            && requested(&mapping.resource_name)
    });
    let one = |mapping: &ContainerExtendedResourceRequest| ClaimUse {
        claim: claim.resource_claim_name.clone(),
        request: main_request(&mapping.request_name).to_owned(),
        status_name: None,
    };
    own.map(one).collect()
}

/// Drivers name the request without its subrequest (`request/subrequest`).
fn main_request(request: &str) -> &str {
    request.split_once('/').map_or(request, |(main, _)| main)
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn pod(spec: &Value, status: &Value) -> Pod {
        serde_json::from_value(
            json!({"metadata": {"name": "p", "namespace": "ns", "uid": "u"}, "spec": spec, "status": status}),
        )
        .unwrap()
    }

    fn claim(name: &str, is_of_template: bool) -> NamedClaim {
        NamedClaim { name: name.to_owned(), is_of_template }
    }

    fn used(claim: &str, request: &str, status_name: Option<&str>) -> ClaimUse {
        ClaimUse {
            claim: claim.to_owned(),
            request: request.to_owned(),
            status_name: status_name.map(str::to_owned),
        }
    }

    #[test]
    fn claims_have_the_names_of_the_specification_or_of_the_status() {
        let spec = json!({"containers": [{"name": "c"}], "schedulingGroup": {"podGroupName": "g"}, "resourceClaims": [
            {"name": "a", "resourceClaimName": "own"}, {"name": "b", "resourceClaimTemplateName": "t"},
            {"name": "unneeded", "resourceClaimTemplateName": "t"}]});
        let status = json!({"resourceClaimStatuses": [{"name": "unneeded"}, {"name": "b", "resourceClaimName": "made"}],
            "extendedResourceClaimStatus": {"resourceClaimName": "more", "requestMappings": []}});
        let found = claims_of(&pod(&spec, &status), true).unwrap();
        assert_eq!(found.claims, [claim("own", false), claim("made", true), claim("more", false)]);
        assert_eq!((found.namespace.as_str(), found.pod.as_str(), found.uid.as_str()), ("ns", "p", "u"));
        assert_eq!((found.scheduling_group.as_deref(), found.containers.len()), (Some("g"), 0));
        let found = claims_of(&pod(&spec, &status), false).unwrap();
        assert_eq!(found.claims, [claim("own", false), claim("made", true)]);
    }

    #[test]
    fn a_claim_without_a_name() {
        let with = |claims: Value| {
            claims_of(&pod(&json!({"containers": [], "resourceClaims": claims}), &json!({})), true)
        };
        let why = with(json!([{"name": "a", "resourceClaimTemplateName": "t"}])).unwrap_err();
        assert_eq!(why, "pod \"ns/p\": ResourceClaim not created yet");
        let why = with(json!([{"name": "a"}])).unwrap_err();
        assert_eq!(why, "pod \"ns/p\", spec.resourceClaim \"a\": none of the supported fields are set");
    }

    #[test]
    fn uses_of_containers() {
        let uses = |claims: Value| json!({"claims": claims});
        let spec = json!({
            "resourceClaims": [{"name": "a", "resourceClaimName": "x"}, {"name": "none", "resourceClaimTemplateName": "t"}],
            "initContainers": [{"name": "i", "resources": uses(json!([{"name": "a"}]))}],
            "ephemeralContainers": [{"name": "e", "resources": uses(json!([{"name": "a"}]))}],
            "containers": [
                {"name": "c", "resources": uses(json!([{"name": "a", "request": "r/s"}, {"name": "a"}, {"name": "none"}, {"name": "?"}]))},
                {"name": "d"}]});
        let found =
            claims_of(&pod(&spec, &json!({"resourceClaimStatuses": [{"name": "none"}]})), true).unwrap();
        let names: Vec<&str> = found.containers.iter().map(|user| user.name.as_str()).collect();
        assert_eq!(names, ["i", "c"]);
        assert_eq!(
            found.containers[0].uses,
            [used("x", "", None)],
            "statuses of init containers do not list claims"
        );
        assert_eq!(
            found.containers[1].uses,
            [used("x", "r", Some("claim:a/r/s")), used("x", "", Some("claim:a"))]
        );
    }

    #[test]
    fn uses_of_extended_resources() {
        let amounts = json!({"example.com/gpu": "1", "example.com/none": "0", "deviceclass.resource.kubernetes.io/c": "2", "cpu": "1"});
        let spec = json!({"containers": [{"name": "c", "resources": {"requests": amounts}}, {"name": "d"}]});
        let mapped = |container: &str, resource: &str, request: &str| json!({"containerName": container, "resourceName": resource, "requestName": request});
        let mappings = json!([
            mapped("c", "example.com/gpu", "r0"),
            mapped("c", "example.com/none", "r1"),
            mapped("c", "cpu", "r2"),
            mapped("c", "deviceclass.resource.kubernetes.io/c", "r3"),
            mapped("d", "example.com/gpu", "r4")
        ]);
        let status =
            json!({"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": mappings}});
        let p = pod(&spec, &status);
        let found = claims_of(&p, true).unwrap();
        assert_eq!(found.containers.len(), 1);
        assert_eq!(found.containers[0].uses, [used("x", "r0", None), used("x", "r3", None)]);
        assert!(
            is_claimed(&p, "c", "example.com/gpu")
                && !is_claimed(&p, "c", "cpu")
                && !is_claimed(&p, "e", "example.com/gpu")
        );
        assert_eq!(claims_of(&p, false).unwrap().containers, []);
    }

    #[test]
    fn pods_that_use_claims() {
        let plain = json!({"containers": [{"name": "c"}]});
        assert!(!uses_claims(&pod(&plain, &json!({}))));
        assert!(uses_claims(&pod(
            &plain,
            &json!({"extendedResourceClaimStatus": {"resourceClaimName": "x", "requestMappings": []}})
        )));
        let named = json!({"containers": [], "resourceClaims": [{"name": "a"}]});
        assert!(uses_claims(&pod(&named, &json!({}))));
    }
}
