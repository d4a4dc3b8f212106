//! The devices of containers as the pod status, podresources and the fit check show them.
//!
//! In: lists and records. Out: health, ids with nodes, amounts. Invariant: ids and resources are sorted. Upstream: manager.go
//! (`UpdateAllocatedResourcesStatus`, `GetAllocatableDevices`, `sanitizeNodeAllocatable`), KEP-4680, KEP-2403.

use std::collections::{BTreeMap, BTreeSet};

use super::manager::DeviceManager;
use super::plugin::HEALTHY;
use super::records::NO_NODE;
use crate::request::ResourceName;

/// Devices of one resource with their NUMA nodes; no nodes: no topology.
pub type DeviceNodes = BTreeMap<String, BTreeSet<i64>>;

impl DeviceManager {
    /// `allocatedResourcesStatus` of a container: by resource and id, true if the device is healthy. A device that its plugin does
    /// not list any more counts as healthy, and so do the devices of a plugin that is away.
    #[must_use]
    pub fn health(&self, uid: &str, container: &str) -> BTreeMap<ResourceName, BTreeMap<String, bool>> {
        let is_healthy = |resource: &str, id: &str| {
            self.inventory.device(resource, id).is_none_or(|device| device.health == HEALTHY)
        };
        let records = self.records.container(uid, container).into_iter().flatten();
        let of_record = |(resource, ids): (&ResourceName, BTreeSet<String>)| {
            let ids = ids.into_iter().map(|id| {
                let healthy = is_healthy(resource, &id);
                (id, healthy)
            });
            (resource.clone(), ids.collect())
        };
        records.map(|(resource, record)| of_record((resource, record.devices()))).collect()
    }

    /// A container's devices, with their nodes at the time of the allocation.
    #[must_use]
    pub fn devices_of(&self, uid: &str, container: &str) -> BTreeMap<ResourceName, DeviceNodes> {
        let mut all: BTreeMap<ResourceName, DeviceNodes> = BTreeMap::new();
        for (resource, record) in self.records.container(uid, container).into_iter().flatten() {
            let devices = all.entry(resource.clone()).or_default();
            for (node, ids) in &record.ids {
                for id in ids {
                    let nodes = devices.entry(id.clone()).or_default();
                    nodes.extend((*node != NO_NODE).then_some(*node));
                }
            }
        }
        all
    }

    /// All healthy devices with their present nodes.
    #[must_use]
    pub fn allocatable_devices(&self) -> BTreeMap<ResourceName, DeviceNodes> {
        let of_resource = |(resource, ids): (&ResourceName, &BTreeSet<String>)| {
            let nodes = ids.iter().map(|id| (id.clone(), self.inventory.nodes_of(resource, id)));
            (resource.clone(), nodes.collect())
        };
        self.inventory.all_healthy().iter().map(of_resource).collect()
    }

    /// Amounts to which the fit check raises the node's allocatable, so that a pod with devices fits while its plugin is away; none if
    /// the pod has no devices.
    #[must_use]
    pub fn raised_allocatable(&self, uid: &str) -> BTreeMap<ResourceName, usize> {
        if self.records.has_pod(uid) { self.records.counts() } else { BTreeMap::new() }
    }
}

#[cfg(test)]
mod tests;
