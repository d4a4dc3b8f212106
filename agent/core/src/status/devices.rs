//! Health of devices in container statuses (KEP-4680).
//!
//! In: the devices of the pod's containers. Out: `allocatedResourcesStatus`, sorted by resource and id. Invariant: regular containers
//! have it, others do not, as upstream. Upstream: `UpdateAllocatedResourcesStatus` of pkg/kubelet/cm/devicemanager/manager.go.

use std::collections::BTreeMap;

use agent_types::runtime::placement::ContainerDevices;
use agent_types::runtime::view::{Slot, SlotKind};
use k8s_openapi::api::core::v1::{ResourceHealth, ResourceStatus};

const HEALTHY: &str = "Healthy";
const UNHEALTHY: &str = "Unhealthy";

/// The field of one container; `None` without devices.
pub(super) fn shown(
    devices: Option<&BTreeMap<String, ContainerDevices>>,
    slot: &Slot,
) -> Option<Vec<ResourceStatus>> {
    let own = devices.filter(|_| slot.kind == SlotKind::Regular)?.get(&slot.name)?;
    let device = |(id, healthy): (&String, &bool)| ResourceHealth {
        health: Some(if *healthy { HEALTHY } else { UNHEALTHY }.to_owned()),
        resource_id: id.clone(),
        ..ResourceHealth::default()
    };
    let resource = |(name, ids): (&String, &BTreeMap<String, bool>)| ResourceStatus {
        name: name.clone(),
        resources: Some(ids.iter().map(device).collect()),
    };
    let all: Vec<ResourceStatus> = own.health.iter().map(resource).collect();
    (!all.is_empty()).then_some(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn regular_containers_show_the_health_of_each_device() {
        let health = BTreeMap::from([("b".to_owned(), false), ("a".to_owned(), true)]);
        let devices = ContainerDevices {
            envs: BTreeMap::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            annotations: BTreeMap::new(),
            cdi_devices: Vec::new(),
            pre_start: Ok(Vec::new()),
            health: BTreeMap::from([("example.com/gpu".to_owned(), health)]),
        };
        let all = BTreeMap::from([("c".to_owned(), devices)]);
        let slot = |kind, name: &str| Slot { name: name.to_owned(), kind, index: 0 };
        let of = |kind, name: &str| shown(Some(&all), &slot(kind, name));
        let found = serde_json::to_value(of(SlotKind::Regular, "c")).unwrap();
        let expected = serde_json::json!([{"name": "example.com/gpu", "resources": [
            {"resourceID": "a", "health": "Healthy"}, {"resourceID": "b", "health": "Unhealthy"}]}]);
        assert_eq!(found, expected);
        assert_eq!(of(SlotKind::Sidecar, "c"), None);
        assert_eq!(of(SlotKind::Regular, "d"), None);
        assert_eq!(shown(None, &slot(SlotKind::Regular, "c")), None, "the gate is off");
    }
}
