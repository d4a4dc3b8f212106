//! Health of devices in container statuses (KEP-4680).
//!
//! In: the devices of the pod's containers, of device plugins and of resource claims. Out: `allocatedResourcesStatus`, sorted by name and
//! id. Invariants: regular containers have it, others do not, as upstream; while the devices of claims are not known, the status keeps what
//! it showed of them. Upstream: `UpdateAllocatedResourcesStatus` of pkg/kubelet/cm/devicemanager/manager.go and pkg/kubelet/cm/dra/manager.go.

use std::collections::BTreeMap;

use agent_types::runtime::claims::{ClaimedDeviceHealth, PodClaims};
use agent_types::runtime::placement::ContainerDevices;
use agent_types::runtime::view::{Slot, SlotKind};
use k8s_openapi::api::core::v1::{Container, ContainerStatus, ResourceHealth, ResourceStatus};

const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";
/// Beginning of the names of claims.
const CLAIM: &str = "claim:";

/// Devices of the pod's containers.
#[derive(Clone, Copy, Debug)]
pub struct DevicesShown<'a> {
    /// Of device plugins, by container.
    pub of_plugins: &'a BTreeMap<String, ContainerDevices>,
    /// Of resource claims; `None`: not known now.
    pub of_claims: Option<&'a PodClaims>,
}

/// The field of one container; `None` without devices. `before` is the container's last status.
pub(super) fn shown(
    devices: Option<DevicesShown<'_>>,
    spec: &Container,
    before: Option<&ContainerStatus>,
    slot: &Slot,
) -> Option<Vec<ResourceStatus>> {
    let devices = devices.filter(|_| slot.kind == SlotKind::Regular)?;
    let of_plugins = devices.of_plugins.get(&slot.name).into_iter().flat_map(|own| own.health.iter());
    let mut all: Vec<ResourceStatus> = of_plugins.map(of_plugin).collect();
    match devices.of_claims {
        Some(claims) => {
            let own = claims.containers.get(&slot.name);
            all.extend(own.into_iter().flat_map(|own| own.health.iter()).map(of_claim));
        }
        None if uses_claims(spec) => all.extend(claims_shown(before)),
        None => {}
    }
    all.sort_by(|a, b| a.name.cmp(&b.name));
    (!all.is_empty()).then_some(all)
}

fn of_plugin((name, ids): (&String, &BTreeMap<String, bool>)) -> ResourceStatus {
    let device = |(id, healthy): (&String, &bool)| ResourceHealth {
        health: Some(if *healthy { HEALTHY } else { UNHEALTHY }.to_owned()),
        resource_id: id.clone(),
        ..ResourceHealth::default()
    };
    ResourceStatus { name: name.clone(), resources: Some(ids.iter().map(device).collect()) }
}

fn of_claim((name, devices): (&String, &Vec<ClaimedDeviceHealth>)) -> ResourceStatus {
    let device = |device: &ClaimedDeviceHealth| ResourceHealth {
        health: Some(device.health.clone()),
        message: device.message.clone(),
        resource_id: device.resource_id.clone(),
    };
    ResourceStatus { name: name.clone(), resources: Some(devices.iter().map(device).collect()) }
}

fn uses_claims(spec: &Container) -> bool {
    spec.resources.as_ref().and_then(|of| of.claims.as_ref()).is_some_and(|claims| !claims.is_empty())
}

fn claims_shown(before: Option<&ContainerStatus>) -> impl Iterator<Item = ResourceStatus> {
    let all = before.into_iter().flat_map(|status| status.allocated_resources_status.iter().flatten());
    all.filter(|resource| resource.name.starts_with(CLAIM)).cloned()
}

#[cfg(test)]
mod tests {
    use agent_types::runtime::claims::ContainerClaims;

    use super::*;

    fn plugins() -> BTreeMap<String, ContainerDevices> {
        let health = BTreeMap::from([("b".to_owned(), false), ("a".to_owned(), true)]);
        let devices = ContainerDevices {
            envs: BTreeMap::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            annotations: BTreeMap::new(),
            cdi_devices: Vec::new(),
            pre_start: Ok(Vec::new()),
            lacks_some: false,
            health: BTreeMap::from([("example.com/gpu".to_owned(), health)]),
        };
        BTreeMap::from([("c".to_owned(), devices)])
    }

    fn slot(kind: SlotKind, name: &str) -> Slot {
        Slot { name: name.to_owned(), kind, index: 0 }
    }

    #[test]
    fn regular_containers_show_the_health_of_each_device() {
        let all = plugins();
        let devices = DevicesShown { of_plugins: &all, of_claims: None };
        let spec = Container::default();
        let of = |kind, name: &str| shown(Some(devices), &spec, None, &slot(kind, name));
        let found = serde_json::to_value(of(SlotKind::Regular, "c")).unwrap();
        let expected = serde_json::json!([{"name": "example.com/gpu", "resources": [
            {"resourceID": "a", "health": "Healthy"}, {"resourceID": "b", "health": "Unhealthy"}]}]);
        assert_eq!(found, expected);
        assert_eq!(of(SlotKind::Sidecar, "c"), None);
        assert_eq!(of(SlotKind::Regular, "d"), None);
        assert_eq!(shown(None, &spec, None, &slot(SlotKind::Regular, "c")), None, "the gate is off");
    }

    #[test]
    fn devices_of_claims_come_beside_those_of_plugins() {
        let plugins = plugins();
        let device = |health: &str, message: Option<&str>| ClaimedDeviceHealth {
            resource_id: "v/c=1".to_owned(),
            health: health.to_owned(),
            message: message.map(str::to_owned),
        };
        let health = BTreeMap::from([("claim:a".to_owned(), vec![device("Unhealthy", Some("hot"))])]);
        let own = ContainerClaims { health, ..ContainerClaims::default() };
        let claims = PodClaims { containers: BTreeMap::from([("c".to_owned(), own)]) };
        let spec: Container = serde_json::from_value(
            serde_json::json!({"name": "c", "resources": {"claims": [{"name": "a"}]}}),
        )
        .unwrap();
        let of = |of_claims, before| {
            let devices = DevicesShown { of_plugins: &plugins, of_claims };
            shown(Some(devices), &spec, before, &slot(SlotKind::Regular, "c")).unwrap()
        };
        let both = of(Some(&claims), None);
        assert_eq!(
            serde_json::to_value(&both[0]).unwrap(),
            serde_json::json!({"name": "claim:a", "resources": [{"resourceID": "v/c=1", "health": "Unhealthy", "message": "hot"}]})
        );
        assert_eq!(both[1].name, "example.com/gpu");
        let before =
            ContainerStatus { allocated_resources_status: Some(both.clone()), ..ContainerStatus::default() };
        assert_eq!(of(None, Some(&before)), both, "a new agent keeps what is shown until it knows");
        assert_eq!(of(Some(&PodClaims::default()), Some(&before)).len(), 1, "claims were given back");
    }
}
