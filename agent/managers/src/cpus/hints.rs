//! The NUMA nodes on which a request for exclusive processors can be served.
//!
//! In: the pod, the state. Out: hints for the topology manager. Invariant: a hint is preferred if no smaller number of nodes could hold
//! the request, even with all processors free. Upstream: policy_static.go (`GetTopologyHints`, `GetPodTopologyHints`).

use super::manager::CpuManager;
use crate::cpu_set::CpuSet;
use crate::hints::{Hint, Hints};
use crate::node_mask::NodeMask;
use crate::request::{ContainerRequest, PodRequest};
use crate::topology::Unit;

impl CpuManager {
    /// Hints for one container; none if it wants no exclusive processors.
    #[must_use]
    pub fn container_hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Vec<Hints> {
        let requested = if pod.is_eligible() { container.whole_cpus() } else { 0 };
        if requested == 0 {
            return Vec::new();
        }
        let hints = match self.state().own(&pod.uid, &container.name) {
            Some(own) if own.len() != requested => Vec::new(),
            Some(own) => self.nodes_for(own, &CpuSet::new(), requested),
            None => self.nodes_for(&self.available(), &self.reusable(&pod.uid), requested),
        };
        vec![Hints::On(hints)]
    }

    /// Hints for the pod as a whole.
    #[must_use]
    pub fn pod_hints(&self, pod: &PodRequest) -> Vec<Hints> {
        let requested = if pod.is_eligible() { peak(pod) } else { 0 };
        if requested == 0 {
            return Vec::new();
        }
        let mut assigned = CpuSet::new();
        for container in &pod.containers {
            let Some(own) = self.state().own(&pod.uid, &container.name) else { continue };
            if own.len() != container.whole_cpus() {
                return vec![Hints::On(Vec::new())];
            }
            assigned = assigned.union(own);
        }
        if assigned.len() == requested {
            return vec![Hints::On(self.nodes_for(&assigned, &CpuSet::new(), requested))];
        }
        let reusable = self.reusable(&pod.uid).union(&assigned);
        vec![Hints::On(self.nodes_for(&self.available(), &reusable, requested))]
    }

    /// Sets of nodes that have all of `reusable`, and together with it enough of `available`.
    fn nodes_for(&self, available: &CpuSet, reusable: &CpuSet, requested: usize) -> Vec<Hint> {
        let cpus = self.topology().cpus();
        let nodes: Vec<u32> = cpus.ids(Unit::Node).into_iter().collect();
        let (all, free) = (cpus.sizes(Unit::Node), cpus.only(available).sizes(Unit::Node));
        let reused = NodeMask::of(cpus.only(reusable).ids(Unit::Node));
        let sum = |sizes: &std::collections::BTreeMap<u32, usize>, mask: NodeMask| -> usize {
            mask.nodes().filter_map(|node| sizes.get(&node)).sum()
        };
        let subsets = NodeMask::subsets(&nodes);
        let could =
            subsets.iter().filter(|mask| sum(&all, **mask) >= requested).map(|mask| mask.count()).min();
        let least = could.unwrap_or(u32::MAX).min(u32::try_from(nodes.len()).unwrap_or(u32::MAX));
        let serves =
            |mask: &NodeMask| mask.includes(reused) && sum(&free, *mask) + reusable.len() >= requested;
        let judged = |mask: NodeMask| Hint {
            nodes: Some(mask),
            preferred: mask.count() == least || self.is_aligned_by_socket(mask, least),
        };
        subsets.into_iter().filter(serves).map(judged).collect()
    }

    /// `align-by-socket`: the nodes lie on no more sockets than the smallest set of nodes would.
    fn is_aligned_by_socket(&self, mask: NodeMask, least: u32) -> bool {
        let topology = self.topology();
        let nodes_of_socket = topology.nodes().checked_div(topology.sockets()).unwrap_or(0);
        if !self.options().align_by_socket || nodes_of_socket == 0 {
            return false;
        }
        let sockets = topology.cpus().only(&topology.cpus().in_groups(Unit::Node, &mask.nodes().collect()));
        sockets.ids(Unit::Socket).len() == (least as usize).div_ceil(nodes_of_socket)
    }
}

/// Exclusive processors that containers of the pod have at the same time.
pub(super) fn peak(pod: &PodRequest) -> usize {
    let whole = |container: &ContainerRequest| u64::try_from(container.whole_cpus()).unwrap_or(u64::MAX);
    usize::try_from(pod.peak(whole)).unwrap_or(usize::MAX)
}
