//! The NUMA nodes that can serve a request for memory.
//!
//! In: the pod, the state. Out: hints for the topology manager. Invariants: a set of nodes is a hint only if it is one node without a
//! group, or exactly a group, or nodes without any block; each resource of a request has the same hints. Upstream:
//! pkg/kubelet/cm/memorymanager/policy_static.go (`calculateHints`, `regenerateHints`).

use std::collections::BTreeMap;

use super::manager::MemoryManager;
use super::state::{Block, Machine};
use crate::hints::{Hint, Hints};
use crate::node_mask::{NODES_MAX, NodeMask};
use crate::request::{ContainerRequest, Kind, PodRequest, ResourceName};

/// Bytes of each resource.
pub(super) type Amounts = BTreeMap<ResourceName, u64>;

impl MemoryManager {
    /// Hints for one container, one list for each resource.
    #[must_use]
    pub fn container_hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Vec<Hints> {
        if !pod.is_eligible() {
            return Vec::new();
        }
        match self.state().own(&pod.uid, &container.name) {
            Some(own) => as_they_are(own, &container.memory),
            None => self.lists(pod, &container.memory),
        }
    }

    /// Hints for the pod as a whole.
    #[must_use]
    pub fn pod_hints(&self, pod: &PodRequest) -> Vec<Hints> {
        let wanted = if pod.is_eligible() { peak(pod) } else { Amounts::new() };
        if wanted.is_empty() {
            return Vec::new();
        }
        let stored = pod.containers.iter().find_map(|container| self.state().own(&pod.uid, &container.name));
        match stored {
            Some(own) => as_they_are(own, &wanted),
            None => self.lists(pod, &wanted),
        }
    }

    /// Without a set of nodes there is no preference. The allocation refuses the request later, as upstream.
    fn lists(&self, pod: &PodRequest, wanted: &Amounts) -> Vec<Hints> {
        let hints = self.nodes_for(&pod.uid, wanted);
        if hints.is_empty() { Vec::new() } else { wanted.keys().map(|_| Hints::On(hints.clone())).collect() }
    }

    /// Sets of nodes that have the amounts; none if there are none.
    pub(super) fn nodes_for(&self, uid: &str, wanted: &Amounts) -> Vec<Hint> {
        if wanted.is_empty() {
            return Vec::new();
        }
        let machine = &self.state().machine;
        let nodes: Vec<u32> = machine.keys().copied().collect();
        let amounts: Vec<OfResource> =
            wanted.iter().map(|(resource, bytes)| OfResource::new(machine, resource, *bytes)).collect();
        let could = |mask: &NodeMask| amounts.iter().all(|of| of.sum(*mask, |node| node.0) >= of.wanted);
        let subsets: Vec<NodeMask> = NodeMask::subsets(&nodes).into_iter().filter(could).collect();
        let least = subsets.iter().map(|mask| mask.count()).min().unwrap_or(0);
        let has = |mask: &NodeMask| {
            amounts.iter().all(|of| {
                let free = of.sum(*mask, |node| node.1);
                free.saturating_add(self.reusable(uid, *mask, of.resource)) >= of.wanted
            })
        };
        subsets
            .into_iter()
            .filter(|mask| self.may_span(*mask) && has(mask))
            .map(|mask| Hint { nodes: Some(mask), preferred: mask.count() == least })
            .collect()
    }

    /// True if no block of another group lies on these nodes.
    fn may_span(&self, mask: NodeMask) -> bool {
        if mask.count() > 1 {
            return !self.violates_groups(mask);
        }
        mask.nodes().all(|node| self.state().machine.get(&node).is_none_or(|node| node.group.count() <= 1))
    }

    /// True if the mask has several nodes and a block on one of them does not lie on exactly these nodes.
    pub(super) fn violates_groups(&self, mask: NodeMask) -> bool {
        let used = |node: u32| self.state().machine.get(&node).filter(|node| node.assignments > 0);
        mask.count() > 1
            && mask.nodes().filter_map(used).any(|node| node.group.count() == 1 || node.group != mask)
    }
}

/// One resource of all nodes, by node id: a machine of sixteen nodes has 65,535 sets of them.
struct OfResource<'r> {
    resource: &'r str,
    wanted: u64,
    /// Allocatable and free bytes.
    nodes: [(u64, u64); NODES_MAX as usize],
}

impl<'r> OfResource<'r> {
    fn new(machine: &Machine, resource: &'r str, wanted: u64) -> OfResource<'r> {
        let mut nodes = [(0, 0); NODES_MAX as usize];
        for (id, node) in machine {
            if let (Some(place), Some(table)) = (nodes.get_mut(*id as usize), node.memory.get(resource)) {
                *place = (table.allocatable, table.free);
            }
        }
        OfResource { resource, wanted, nodes }
    }

    fn sum(&self, mask: NodeMask, of: impl Fn(&(u64, u64)) -> u64) -> u64 {
        let nodes = mask.nodes().filter_map(|node| self.nodes.get(node as usize));
        nodes.fold(0, |sum, node| sum.saturating_add(of(node)))
    }
}

/// Hints that keep a container on its nodes; no preference if its request has changed.
fn as_they_are(own: &[Block], wanted: &Amounts) -> Vec<Hints> {
    let same = own.len() == wanted.len()
        && own.iter().all(|block| wanted.get(&block.resource) == Some(&block.bytes));
    if !same {
        return Vec::new();
    }
    let hint = |block: &Block| Hints::On(vec![Hint { nodes: Some(block.nodes), preferred: true }]);
    own.iter().map(hint).collect()
}

/// The largest amounts that containers of the pod have at one time, of the resources that an app container requests.
pub(super) fn peak(pod: &PodRequest) -> Amounts {
    let apps = pod.containers.iter().filter(|container| container.kind == Kind::App);
    let names = apps.flat_map(|container| container.memory.keys().cloned());
    let most = |name: &ResourceName| pod.peak(|container| container.memory.get(name).copied().unwrap_or(0));
    names.map(|name| (name.clone(), most(&name))).collect()
}
