//! The device manager with its state.
//!
//! In: connections and lists of plugins, pods that are not active any more, a checkpoint. Out: the state that the neighbouring
//! modules read: allocation, hints, container start, status. Invariants: those of [`super`]. Upstream: manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::time::Duration;

use super::allocation::Allocation;
use super::inventory::{Inventory, NodeDevices};
use super::plugin::{Connection, PluginDevice, PluginOptions};
use super::records::PodRecords;
use crate::node_mask::NodeMask;
use crate::request::ResourceName;

/// Content of the checkpoint.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct DeviceState {
    /// Devices of containers.
    pub records: PodRecords,
    /// Healthy devices by resource. A later start uses the names only.
    pub registered: BTreeMap<ResourceName, BTreeSet<String>>,
}

/// The device manager.
#[derive(Clone, Debug, Default)]
pub struct DeviceManager {
    /// NUMA nodes of the machine.
    pub(super) machine: NodeMask,
    pub(super) inventory: Inventory,
    pub(super) records: PodRecords,
    /// Devices of init containers that later containers of the same pod may use, by pod, during its admission.
    pub(super) reusable: BTreeMap<String, BTreeMap<ResourceName, BTreeSet<String>>>,
    /// Allocations that wait for a plugin or for the checkpoint, by pod.
    pub(super) allocations: BTreeMap<String, Allocation>,
    /// Pods with devices that the checkpoint lacks: their allocation is going on, or has failed since. Their next one writes it.
    pub(super) unwritten: BTreeSet<String>,
}

impl DeviceManager {
    /// The manager at the agent's start. `now` is monotonic time since any fixed moment, here and everywhere.
    #[must_use]
    pub fn start(machine: NodeMask, earlier: Option<DeviceState>, now: Duration) -> DeviceManager {
        let DeviceState { records, registered } = earlier.unwrap_or_default();
        let inventory = Inventory::restored(registered.into_keys(), now);
        DeviceManager { machine, inventory, records, ..DeviceManager::default() }
    }

    /// A plugin registered and stated its options. The caller passes lists and the end of the plugin's stream under this number.
    pub fn connect(&mut self, resource: &str, options: PluginOptions) -> Connection {
        self.inventory.connect(resource, options)
    }

    /// The same with a number that the caller chooses, larger than all earlier ones.
    pub fn connect_as(&mut self, connection: Connection, resource: &str, options: PluginOptions) {
        self.inventory.connect_as(connection, resource, options);
    }

    /// A plugin sent its list. Returns the UIDs of the pods whose devices changed their health, which the agent syncs. `None`: nothing
    /// changes, because the list says the same as the one before, or because the connection has ended or was replaced. Otherwise the
    /// caller writes the checkpoint.
    pub fn list(
        &mut self,
        connection: Connection,
        devices: impl IntoIterator<Item = PluginDevice>,
    ) -> Option<BTreeSet<String>> {
        let change = self.inventory.replace(connection, devices)?;
        Some(self.records.holders(&change.resource, &change.changed))
    }

    /// The plugin's stream ended, or the watcher found its socket removed. False: the connection has ended or was replaced before,
    /// and nothing changes. The checkpoint does not change.
    pub fn end(&mut self, connection: Connection, now: Duration) -> bool {
        self.inventory.end(connection, now)
    }

    /// Amounts for the node status. The caller writes the checkpoint if resources were removed.
    pub fn node_devices(&mut self, now: Duration) -> NodeDevices {
        self.inventory.amounts(now)
    }

    /// Frees the devices of pods that are not active. The caller does this before an admission, before it asks for hints and before
    /// it answers podresources' List, once all pod sources are ready. The checkpoint does not change. True if something changed.
    pub fn keep_only(&mut self, is_active: impl Fn(&str) -> bool) -> bool {
        self.reusable.retain(|uid, _| is_active(uid));
        self.unwritten.retain(|uid| is_active(uid));
        self.records.keep_only(is_active)
    }

    /// Takes back the container's devices of all resources but these, and gives up the pod's unfinished allocation. The caller writes
    /// the checkpoint.
    pub fn undo(&mut self, uid: &str, container: &str, kept: &BTreeSet<ResourceName>) {
        self.give_up(uid);
        self.records.keep_resources(uid, container, kept);
    }

    /// Content for the checkpoint.
    #[must_use]
    pub fn state(&self) -> DeviceState {
        DeviceState { records: self.records.clone(), registered: self.inventory.all_healthy().clone() }
    }

    /// Devices of containers.
    #[must_use]
    pub fn records(&self) -> &PodRecords {
        &self.records
    }

    /// True for a resource that the manager allocates: a plugin registered it and sent a list, or containers have devices of it.
    #[must_use]
    pub fn manages(&self, resource: &str) -> bool {
        self.inventory.healthy(resource).is_some()
            || self.records.has_resource(resource)
            || self.allocations.values().any(|allocation| allocation.reserved(resource).is_some())
    }

    /// True if no plugin has registered and no container has devices.
    #[must_use]
    pub fn is_unused(&self) -> bool {
        self.inventory.is_empty() && self.records.iter().next().is_none()
    }

    /// Time at which the next resource is removed unless its plugin returns.
    #[must_use]
    pub fn next_removal(&self) -> Option<Duration> {
        self.inventory.next_removal()
    }

    /// The resource of a plugin that can be asked.
    #[must_use]
    pub fn resource_of(&self, connection: Connection) -> Option<ResourceName> {
        self.inventory.resource_of(connection)
    }

    /// Devices of the resource that unfinished allocations have chosen.
    pub(super) fn reserved(&self, resource: &str) -> BTreeSet<String> {
        self.allocations
            .values()
            .filter_map(|allocation| allocation.reserved(resource))
            .flatten()
            .cloned()
            .collect()
    }

    /// Healthy devices that no container has.
    pub(super) fn available(&self, resource: &str) -> BTreeSet<String> {
        let in_use = self.records.in_use(resource);
        let healthy = self.inventory.healthy(resource).into_iter().flatten();
        let reserved = self.reserved(resource);
        let is_free = |id: &&String| !in_use.contains(*id) && !reserved.contains(*id);
        healthy.filter(is_free).cloned().collect()
    }

    /// Devices of init containers of this pod that its next container may use.
    pub(super) fn reusable(&self, uid: &str, resource: &str) -> BTreeSet<String> {
        let ids = self.reusable.get(uid).and_then(|of_pod| of_pod.get(resource));
        ids.cloned().unwrap_or_default()
    }
}
