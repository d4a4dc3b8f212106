//! The NUMA nodes that have devices for a container.
//!
//! In: the pod, lists and records. Out: hints for the topology manager, one list for each resource. Invariants: only nodes with devices
//! of the resource count; a hint is preferred if no smaller number of nodes has as many devices, free or in use. Upstream:
//! topology_hints.go, KEP-693.

use std::collections::BTreeSet;

use super::manager::DeviceManager;
use crate::hints::{Hint, Hints};
use crate::node_mask::NodeMask;
use crate::request::{ContainerRequest, PodRequest, ResourceName};

impl DeviceManager {
    /// Hints for one container; none if it requests no devices. Resources that a claim provides count too, as upstream.
    #[must_use]
    pub fn container_hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Vec<Hints> {
        let limits = container.devices.limits.iter().filter(|(resource, _)| self.manages(resource));
        let of_resource = |(resource, limit): (&ResourceName, &u64)| {
            let own = self.records.devices(&pod.uid, &container.name, resource).unwrap_or_default();
            self.resource_hints(resource, *limit, &own, &self.reusable(&pod.uid, resource))
        };
        limits.map(of_resource).collect()
    }

    /// Hints for the pod as a whole.
    #[must_use]
    pub fn pod_hints(&self, pod: &PodRequest) -> Vec<Hints> {
        let containers = pod.containers.iter();
        let resources: BTreeSet<&ResourceName> =
            containers.flat_map(|container| container.devices.limits.keys()).collect();
        let limit = |container: &ContainerRequest, resource: &ResourceName| {
            container.devices.limits.get(resource).copied().unwrap_or(0)
        };
        let of_resource = |resource: &ResourceName| {
            let requested = pod.peak(|container| limit(container, resource));
            let own = self.records.of_pod(&pod.uid, resource);
            self.resource_hints(resource, requested, &own, &BTreeSet::new())
        };
        resources.into_iter().filter(|resource| self.manages(resource)).map(of_resource).collect()
    }

    fn resource_hints(
        &self,
        resource: &str,
        requested: u64,
        own: &BTreeSet<String>,
        reusable: &BTreeSet<String>,
    ) -> Hints {
        let requested = usize::try_from(requested).unwrap_or(usize::MAX);
        if !self.inventory.has_topology(resource) {
            return Hints::NoPreference;
        }
        if !own.is_empty() {
            let same = own.len() == requested;
            let nodes = same.then(|| self.nodes_for(resource, own, &BTreeSet::new(), requested));
            return Hints::On(nodes.unwrap_or_default());
        }
        let available = self.available(resource);
        if available.union(reusable).count() < requested {
            return Hints::On(Vec::new());
        }
        Hints::On(self.nodes_for(resource, &available, reusable, requested))
    }

    /// Sets of nodes that have all of `reusable`, and together with it enough of `available`.
    fn nodes_for(
        &self,
        resource: &str,
        available: &BTreeSet<String>,
        reusable: &BTreeSet<String>,
        requested: usize,
    ) -> Vec<Hint> {
        let masks_of = |ids: &BTreeSet<String>| {
            let masks = ids.iter().map(|id| mask(&self.inventory.nodes_of(resource, id)));
            masks.collect::<Vec<NodeMask>>()
        };
        let all: Vec<NodeMask> = self.inventory.devices(resource).map(|device| mask(&device.nodes)).collect();
        let with_topology = |id: &&String| !self.inventory.nodes_of(resource, id).is_empty();
        let reusable = masks_of(&reusable.iter().filter(with_topology).cloned().collect());
        let available = masks_of(available);
        let touching = |masks: &[NodeMask], nodes: NodeMask| {
            masks.iter().filter(|mask| !mask.and(nodes).is_empty()).count()
        };
        let of_devices =
            all.iter().fold(NodeMask::default(), |nodes, mask| nodes.or(*mask)).and(self.machine);
        let nodes = if of_devices.is_empty() { self.machine } else { of_devices };
        let subsets = NodeMask::subsets(&nodes.nodes().collect::<Vec<u32>>());
        let could = subsets.iter().filter(|nodes| touching(&all, **nodes) >= requested);
        let least = could.map(|nodes| nodes.count()).min().unwrap_or(u32::MAX).min(nodes.count());
        let serves = |nodes: &NodeMask| {
            touching(&reusable, *nodes) == reusable.len()
                && reusable.len() + touching(&available, *nodes) >= requested
        };
        let hint = |nodes: NodeMask| Hint { nodes: Some(nodes), preferred: nodes.count() == least };
        subsets.into_iter().filter(serves).map(hint).collect()
    }
}

fn mask(nodes: &BTreeSet<i64>) -> NodeMask {
    NodeMask::of(nodes.iter().filter_map(|node| u32::try_from(*node).ok()))
}

#[cfg(test)]
mod tests;
