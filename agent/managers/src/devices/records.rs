//! Devices of containers.
//!
//! In: devices that plugins allocated, pods that are not active any more. Out: the devices of a container, and the devices in use of a
//! resource. Invariant: the devices in use are always those of the records; containers of one pod may share devices. Upstream:
//! pod_devices.go.

use std::collections::{BTreeMap, BTreeSet};

use super::plugin::AllocateResponse;
use crate::request::ResourceName;

/// The node under which a record has devices without topology.
pub const NO_NODE: i64 = -1;

/// Devices of one resource that a container has.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceRecord {
    /// Ids by NUMA node, as the plugin's list had them at the time of the allocation; a device of several nodes stands under each.
    pub ids: BTreeMap<i64, BTreeSet<String>>,
    /// The plugin's answer.
    pub response: AllocateResponse,
}

impl DeviceRecord {
    /// The ids.
    #[must_use]
    pub fn devices(&self) -> BTreeSet<String> {
        self.ids.values().flatten().cloned().collect()
    }

    /// Sorts the ids by the nodes that `nodes_of` returns.
    pub(super) fn new(
        ids: &BTreeSet<String>,
        nodes_of: impl Fn(&str) -> BTreeSet<i64>,
        response: AllocateResponse,
    ) -> DeviceRecord {
        let mut record = DeviceRecord { ids: BTreeMap::new(), response };
        for id in ids {
            let nodes = nodes_of(id);
            let nodes = if nodes.is_empty() { BTreeSet::from([NO_NODE]) } else { nodes };
            for node in nodes {
                record.ids.entry(node).or_default().insert(id.clone());
            }
        }
        record
    }
}

/// A container's devices, by resource.
pub type ContainerRecords = BTreeMap<ResourceName, DeviceRecord>;

/// The devices of all containers.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodRecords(BTreeMap<String, BTreeMap<String, ContainerRecords>>);

impl PodRecords {
    /// All records: pod UID, container name, resource.
    pub fn iter(&self) -> impl Iterator<Item = (&str, &str, &ResourceName, &DeviceRecord)> {
        self.0.iter().flat_map(|(uid, containers)| {
            containers.iter().flat_map(move |(container, records)| {
                records.iter().map(move |(name, record)| (uid.as_str(), container.as_str(), name, record))
            })
        })
    }

    /// The container's devices.
    #[must_use]
    pub fn container(&self, uid: &str, container: &str) -> Option<&ContainerRecords> {
        self.0.get(uid)?.get(container)
    }

    /// Ids of the container's devices of one resource.
    #[must_use]
    pub fn devices(&self, uid: &str, container: &str, resource: &str) -> Option<BTreeSet<String>> {
        Some(self.container(uid, container)?.get(resource)?.devices())
    }

    /// Ids of all devices of one resource that containers of the pod have.
    #[must_use]
    pub fn of_pod(&self, uid: &str, resource: &str) -> BTreeSet<String> {
        let containers = self.0.get(uid).into_iter().flatten();
        containers.filter_map(|(_, records)| records.get(resource)).flat_map(DeviceRecord::devices).collect()
    }

    /// Ids of all devices of one resource that are in use.
    #[must_use]
    pub fn in_use(&self, resource: &str) -> BTreeSet<String> {
        let records = self.iter().filter(|(_, _, name, _)| *name == resource);
        records.flat_map(|(_, _, _, record)| record.devices()).collect()
    }

    /// Number of devices in use, by resource.
    #[must_use]
    pub fn counts(&self) -> BTreeMap<ResourceName, usize> {
        let mut ids: BTreeMap<&ResourceName, BTreeSet<String>> = BTreeMap::new();
        for (_, _, resource, record) in self.iter() {
            ids.entry(resource).or_default().extend(record.devices());
        }
        ids.into_iter().map(|(resource, ids)| (resource.clone(), ids.len())).collect()
    }

    /// True if a container has devices of the resource.
    #[must_use]
    pub fn has_resource(&self, resource: &str) -> bool {
        self.iter().any(|(_, _, name, _)| name == resource)
    }

    /// True if a container of the pod has devices.
    #[must_use]
    pub fn has_pod(&self, uid: &str) -> bool {
        self.0.contains_key(uid)
    }

    /// UIDs of the pods that have one of these devices.
    #[must_use]
    pub fn holders(&self, resource: &str, ids: &BTreeSet<String>) -> BTreeSet<String> {
        let of_resource = self.iter().filter(|(_, _, name, _)| *name == resource);
        of_resource
            .filter(|(_, _, _, record)| record.ids.values().flatten().any(|id| ids.contains(id)))
            .map(|(uid, _, _, _)| uid.to_owned())
            .collect()
    }

    /// Replaces the container's devices of one resource.
    pub fn insert(&mut self, uid: &str, container: &str, resource: &str, record: DeviceRecord) {
        let of_pod = self.0.entry(uid.to_owned()).or_default();
        of_pod.entry(container.to_owned()).or_default().insert(resource.to_owned(), record);
    }

    /// Drops the container's devices of all resources but these.
    pub(super) fn keep_resources(&mut self, uid: &str, container: &str, kept: &BTreeSet<ResourceName>) {
        let Some(of_pod) = self.0.get_mut(uid) else { return };
        if let Some(records) = of_pod.get_mut(container) {
            records.retain(|resource, _| kept.contains(resource));
        }
        of_pod.retain(|_, records| !records.is_empty());
        if of_pod.is_empty() {
            self.0.remove(uid);
        }
    }

    /// Drops the records of all pods that are not active. True if there were some.
    pub(super) fn keep_only(&mut self, is_active: impl Fn(&str) -> bool) -> bool {
        let before = self.0.len();
        self.0.retain(|uid, _| is_active(uid));
        self.0.len() < before
    }
}
