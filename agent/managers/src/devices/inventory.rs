//! The resources of device plugins: connections, device lists, and the amounts for the node status.
//!
//! In: connections, lists, ends of connections, the time. Out: capacity and allocatable. Invariants: a resource has one connection, the
//! newest; a resource without a connection has no healthy device; a resource whose plugin is away for [`STOP_GRACE`] is removed
//! when the node status is computed next, and appears as removed once. Upstream: manager.go (`GetCapacity`,
//! `genericDeviceUpdateCallback`, `markResourceUnhealthy`), endpoint.go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::plugin::{Connection, HEALTHY, PluginDevice, PluginOptions};
use crate::request::ResourceName;

/// Time after the end of a plugin until its resource is removed.
pub const STOP_GRACE: Duration = Duration::from_secs(5 * 60);

/// The plugin of one resource.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Endpoint {
    /// `None`: a resource of the checkpoint, whose plugin has not registered since the agent's start.
    pub(super) connection: Option<Connection>,
    /// `None`: not known.
    pub(super) options: Option<PluginOptions>,
    /// Time at which the connection ended.
    pub(super) stopped_at: Option<Duration>,
}

impl Endpoint {
    /// The connection if the plugin can be asked.
    pub(super) fn open(&self) -> Option<Connection> {
        self.connection.filter(|_| self.stopped_at.is_none())
    }
}

/// Amounts of device plugins' resources for the node status.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeDevices {
    /// Number of all devices.
    pub capacity: BTreeMap<ResourceName, i64>,
    /// Number of healthy devices.
    pub allocatable: BTreeMap<ResourceName, i64>,
    /// Resources that this call removed: capacity 0. The caller must write the checkpoint if there are some.
    pub removed: BTreeSet<ResourceName>,
}

/// The changes of a new list.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub(super) struct ListChange {
    pub(super) resource: ResourceName,
    /// Devices whose health changed, and devices that are new in the list.
    pub(super) changed: BTreeSet<String>,
}

/// All resources of device plugins.
#[derive(Clone, Debug, Default)]
pub(super) struct Inventory {
    endpoints: BTreeMap<ResourceName, Endpoint>,
    /// Latest lists. A list outlives its connection, for the topology and the health of devices in use.
    devices: BTreeMap<ResourceName, BTreeMap<String, PluginDevice>>,
    healthy: BTreeMap<ResourceName, BTreeSet<String>>,
    unhealthy: BTreeMap<ResourceName, BTreeSet<String>>,
    connections: u64,
}

impl Inventory {
    /// The resources of a checkpoint, without devices until the plugins register.
    pub(super) fn restored(resources: impl IntoIterator<Item = ResourceName>, now: Duration) -> Inventory {
        let mut inventory = Inventory::default();
        for name in resources {
            let endpoint = Endpoint { connection: None, options: None, stopped_at: Some(now) };
            inventory.endpoints.insert(name.clone(), endpoint);
            inventory.healthy.insert(name.clone(), BTreeSet::new());
            inventory.unhealthy.insert(name, BTreeSet::new());
        }
        inventory
    }

    /// A plugin registered and stated its options.
    pub(super) fn connect(&mut self, resource: &str, options: PluginOptions) -> Connection {
        self.connections += 1;
        let connection = Connection(self.connections);
        self.connect_as(connection, resource, options);
        connection
    }

    /// The same with a number that the caller chooses.
    pub(super) fn connect_as(&mut self, connection: Connection, resource: &str, options: PluginOptions) {
        let endpoint = Endpoint { connection: Some(connection), options: Some(options), stopped_at: None };
        self.endpoints.insert(resource.to_owned(), endpoint);
    }

    /// True if no plugin has registered and the checkpoint has no resource.
    pub(super) fn is_empty(&self) -> bool {
        self.endpoints.is_empty() && self.devices.is_empty()
    }

    /// The time after which the next resource counts as removed.
    pub(super) fn next_removal(&self) -> Option<Duration> {
        let has_amounts =
            |name: &String| self.healthy.contains_key(name) || self.unhealthy.contains_key(name);
        let stopped = self.endpoints.iter().filter(|(name, _)| has_amounts(name));
        stopped.filter_map(|(_, endpoint)| endpoint.stopped_at).min().map(|at| at.saturating_add(STOP_GRACE))
    }

    /// Replaces the list; `None` if the new list says the same, or if the connection is not open any more.
    pub(super) fn replace(
        &mut self,
        connection: Connection,
        list: impl IntoIterator<Item = PluginDevice>,
    ) -> Option<ListChange> {
        let resource = self.resource_of(connection)?;
        let devices: BTreeMap<String, PluginDevice> =
            list.into_iter().map(|device| (device.id.clone(), device)).collect();
        let ids = |wanted: bool| {
            let of_health = devices.values().filter(|device| (device.health == HEALTHY) == wanted);
            of_health.map(|device| device.id.clone()).collect::<BTreeSet<String>>()
        };
        let (healthy, unhealthy) = (ids(true), ids(false));
        let old = self.devices.get(&resource);
        // The list of a new connection may be the old one, while the end of the former has changed what is healthy.
        let is_same = old == Some(&devices)
            && self.healthy.get(&resource) == Some(&healthy)
            && self.unhealthy.get(&resource) == Some(&unhealthy);
        if is_same {
            return None;
        }
        let same = |device: &PluginDevice| {
            old.and_then(|old| old.get(&device.id)).is_some_and(|old| old.health == device.health)
        };
        let changed =
            devices.values().filter(|device| !same(device)).map(|device| device.id.clone()).collect();
        self.healthy.insert(resource.clone(), healthy);
        self.unhealthy.insert(resource.clone(), unhealthy);
        self.devices.insert(resource.clone(), devices);
        Some(ListChange { resource, changed })
    }

    /// Ends the connection: no device is healthy then. False if the connection is not open any more.
    pub(super) fn end(&mut self, connection: Connection, now: Duration) -> bool {
        let Some(resource) = self.resource_of(connection) else { return false };
        if let Some(endpoint) = self.endpoints.get_mut(&resource) {
            endpoint.stopped_at = Some(now);
        }
        // A plugin that never sent a list has no healthy devices in the table, as upstream: pods do not wait for its resource.
        let healthy = self.healthy.get_mut(&resource).map(std::mem::take).unwrap_or_default();
        self.unhealthy.entry(resource).or_default().extend(healthy);
        true
    }

    pub(super) fn resource_of(&self, connection: Connection) -> Option<ResourceName> {
        let mut open = self.endpoints.iter().filter(|(_, endpoint)| endpoint.open() == Some(connection));
        open.next().map(|(resource, _)| resource.clone())
    }

    /// Amounts for the node status; removes the resources whose plugins are away for too long.
    pub(super) fn amounts(&mut self, now: Duration) -> NodeDevices {
        let expired =
            |endpoint: &Endpoint| endpoint.stopped_at.is_some_and(|at| now.saturating_sub(at) > STOP_GRACE);
        let resources = self.healthy.keys().chain(self.unhealthy.keys());
        let removed: BTreeSet<ResourceName> =
            resources.filter(|name| self.endpoints.get(*name).is_none_or(expired)).cloned().collect();
        for name in &removed {
            self.endpoints.remove(name);
            self.healthy.remove(name);
            self.unhealthy.remove(name);
        }
        let mut allocatable = lengths(&self.healthy);
        let mut capacity = allocatable.clone();
        for (name, count) in lengths(&self.unhealthy) {
            allocatable.entry(name.clone()).or_default();
            *capacity.entry(name).or_default() += count;
        }
        NodeDevices { capacity, allocatable, removed }
    }

    pub(super) fn endpoint(&self, resource: &str) -> Option<&Endpoint> {
        self.endpoints.get(resource)
    }

    /// Healthy devices by resource, for the checkpoint.
    pub(super) fn all_healthy(&self) -> &BTreeMap<ResourceName, BTreeSet<String>> {
        &self.healthy
    }

    /// Healthy devices; `None`: no plugin has registered the resource, or the plugin is away for too long.
    pub(super) fn healthy(&self, resource: &str) -> Option<&BTreeSet<String>> {
        self.healthy.get(resource)
    }

    /// The latest list.
    pub(super) fn devices(&self, resource: &str) -> impl Iterator<Item = &PluginDevice> {
        self.devices.get(resource).into_iter().flat_map(BTreeMap::values)
    }

    /// The device in the latest list.
    pub(super) fn device(&self, resource: &str, id: &str) -> Option<&PluginDevice> {
        self.devices.get(resource)?.get(id)
    }

    /// NUMA nodes of the device; none if the latest list does not have it.
    pub(super) fn nodes_of(&self, resource: &str, id: &str) -> BTreeSet<i64> {
        self.device(resource, id).map(|device| device.nodes.clone()).unwrap_or_default()
    }

    /// True if a device of the resource has NUMA nodes.
    pub(super) fn has_topology(&self, resource: &str) -> bool {
        self.devices(resource).any(|device| !device.nodes.is_empty())
    }
}

fn lengths(of: &BTreeMap<ResourceName, BTreeSet<String>>) -> BTreeMap<ResourceName, i64> {
    of.iter().map(|(name, ids)| (name.clone(), i64::try_from(ids.len()).unwrap_or(i64::MAX))).collect()
}

#[cfg(test)]
mod tests;
