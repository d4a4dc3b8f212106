//! Devices of resource claims (`dynamic_resources`), as the pod resources API lists them.
//!
//! In: claims that a pod names, claims of the node. Out: for a container, one entry for each claim that it uses, in the order of the
//! specification. Invariants: pure; nothing is read from the API server; a claim of another pod does not appear. A container with a claim
//! that is not prepared yet has no entries, as upstream. Departures from upstream: a container has the devices of the requests that it
//! names (upstream: all devices of the claim), and a device has its own CDI names (upstream: also those of the devices before it).
//! Upstream: `GetDynamicResources` of pkg/kubelet/cm/container_manager_linux.go.

use std::collections::BTreeMap;

use agent_core::resource_claims::api::{ClaimView, ClaimedDevice, ClaimsView};
use agent_types::ids::PodUid;
use agent_types::resource_claims::claims_of;
use agent_types::runtime::claims::{ClaimUse, ClaimsOfPod};
use k8s_openapi::api::core::v1::Pod;
use orlop_proto::pod_resources::v1;

/// Entries of all containers of the pod, by container name. `extended`: the claim of extended resources counts (DRAExtendedResource).
pub(super) fn of_pod(
    pod: &Pod,
    extended: bool,
    view: &ClaimsView,
) -> BTreeMap<String, Vec<v1::DynamicResource>> {
    // Claims without names are not there yet.
    let Ok(claims) = claims_of(pod, extended) else { return BTreeMap::new() };
    let uid = PodUid::from(claims.uid.as_str());
    let used = claims.containers.iter().map(|user| {
        let entries = of_container(&claims, &uid, &user.uses, view).unwrap_or_default();
        (user.name.clone(), entries)
    });
    used.collect()
}

/// `None`: the node does not have one of the claims.
fn of_container(
    claims: &ClaimsOfPod,
    pod: &PodUid,
    uses: &[ClaimUse],
    view: &ClaimsView,
) -> Option<Vec<v1::DynamicResource>> {
    let mut entries: Vec<v1::DynamicResource> = Vec::new();
    for claim in &claims.claims {
        let requests: Vec<&str> =
            uses.iter().filter(|used| used.claim == claim.name).map(|used| used.request.as_str()).collect();
        if requests.is_empty() || entries.iter().any(|entry| entry.claim_name == claim.name) {
            continue;
        }
        let key = (claims.namespace.clone(), claim.name.clone());
        let found = view.claims.get(&key).filter(|found| found.pods.contains(pod))?;
        entries.push(v1::DynamicResource {
            claim_name: claim.name.clone(),
            claim_namespace: claims.namespace.clone(),
            claim_resources: devices(found, &requests),
        });
    }
    Some(entries)
}

/// Devices of the claim for these requests; an empty request stands for all.
fn devices(claim: &ClaimView, requests: &[&str]) -> Vec<v1::ClaimResource> {
    let is_for = |device: &&ClaimedDevice| {
        device.requests.is_empty()
            || requests
                .iter()
                .any(|request| request.is_empty() || device.requests.iter().any(|of| of == request))
    };
    let mut all = Vec::new();
    for (driver, devices) in &claim.devices {
        all.extend(devices.iter().filter(is_for).map(|device| v1::ClaimResource {
            cdi_devices: device.cdi_devices.iter().map(|name| v1::CdiDevice { name: name.clone() }).collect(),
            driver_name: driver.clone(),
            pool_name: device.pool.clone(),
            device_name: device.device.clone(),
            share_id: device.share_id.clone(),
        }));
    }
    all
}

#[cfg(test)]
mod tests {
    use serde_json::json;

    use super::*;

    fn pod() -> Pod {
        let uses = |claims: serde_json::Value| json!({"claims": claims});
        serde_json::from_value(json!({
            "metadata": {"name": "p", "namespace": "ns", "uid": "u"},
            "spec": {
                "resourceClaims": [{"name": "own", "resourceClaimTemplateName": "t"}, {"name": "all", "resourceClaimName": "shared"}],
                "containers": [
                    {"name": "both", "resources": uses(json!([{"name": "all"}, {"name": "own", "request": "a"}]))},
                    {"name": "one", "resources": uses(json!([{"name": "own", "request": "b"}]))},
                    {"name": "none"}],
            },
            "status": {"resourceClaimStatuses": [{"name": "own", "resourceClaimName": "p-own"}]},
        }))
        .unwrap()
    }

    fn device(name: &str, requests: &[&str]) -> ClaimedDevice {
        ClaimedDevice {
            pool: "node".to_owned(),
            device: name.to_owned(),
            share_id: None,
            requests: requests.iter().map(|&request| request.to_owned()).collect(),
            cdi_devices: vec![format!("vendor/class={name}")],
        }
    }

    fn view(claims: &[(&str, &str, Vec<ClaimedDevice>)]) -> ClaimsView {
        let claim = |(name, pod, devices): &(&str, &str, Vec<ClaimedDevice>)| {
            let devices = [("driver".to_owned(), devices.clone())].into();
            (("ns".to_owned(), (*name).to_owned()), ClaimView { pods: [PodUid::from(*pod)].into(), devices })
        };
        ClaimsView { claims: claims.iter().map(claim).collect(), ..ClaimsView::default() }
    }

    /// `claim: device=CDI name…; …` of a container.
    fn shown(view: &ClaimsView, container: &str) -> String {
        let entries = of_pod(&pod(), true, view).remove(container).unwrap_or_default();
        let resource = |of: &v1::ClaimResource| {
            let names: Vec<&str> = of.cdi_devices.iter().map(|device| device.name.as_str()).collect();
            format!(" {}/{}/{}={}", of.driver_name, of.pool_name, of.device_name, names.join(","))
        };
        let entry = |of: &v1::DynamicResource| {
            format!(
                "{}/{}:{}",
                of.claim_namespace,
                of.claim_name,
                of.claim_resources.iter().map(resource).collect::<String>()
            )
        };
        entries.iter().map(entry).collect::<Vec<_>>().join("; ")
    }

    #[test]
    fn a_container_has_the_devices_of_its_requests_in_the_order_of_the_specification() {
        let own = vec![device("d0", &["a"]), device("d1", &["b"]), device("d2", &["a"])];
        let view = view(&[("p-own", "u", own), ("shared", "u", vec![device("s", &[])])]);
        assert_eq!(
            shown(&view, "both"),
            "ns/p-own: driver/node/d0=vendor/class=d0 driver/node/d2=vendor/class=d2; ns/shared: driver/node/s=vendor/class=s"
        );
        assert_eq!(shown(&view, "one"), "ns/p-own: driver/node/d1=vendor/class=d1");
        assert_eq!(shown(&view, "none"), "");
    }

    #[test]
    fn a_claim_that_is_not_prepared_hides_the_others_of_the_container_only() {
        let own = vec![device("d1", &["b"])];
        let without_shared = view(&[("p-own", "u", own.clone())]);
        assert_eq!(shown(&without_shared, "both"), "");
        assert_eq!(shown(&without_shared, "one"), "ns/p-own: driver/node/d1=vendor/class=d1");
        let of_another = view(&[("p-own", "another", own)]);
        assert_eq!(shown(&of_another, "one"), "", "a claim of the same name that another pod had");
    }

    #[test]
    fn claims_without_names_are_not_there_yet() {
        let mut pod = pod();
        pod.status = None;
        assert_eq!(of_pod(&pod, true, &view(&[("shared", "u", vec![device("s", &[])])])), BTreeMap::new());
    }
}
