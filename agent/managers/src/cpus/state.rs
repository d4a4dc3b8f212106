//! Processors of containers.
//!
//! In: assignments and releases. Out: the shared set and each container's exclusive set. Invariant (kept by [`super::manager`]): no
//! processor is both shared and exclusive, and containers of two pods have none in common. Upstream: pkg/kubelet/cm/cpumanager/state.

use std::collections::BTreeMap;

use crate::cpu_set::CpuSet;

/// The assignments of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// Shared processors, for containers without exclusive ones.
    pub shared: CpuSet,
    /// Exclusive processors of containers: pod UID, container name.
    pub assignments: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl CpuState {
    /// The container's exclusive processors.
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.assignments.get(uid)?.get(container)
    }

    pub(super) fn assign(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.shared = self.shared.difference(&cpus);
        self.assignments.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    /// Frees the container's processors, except those that other containers of its pod also have.
    pub(super) fn release(&mut self, uid: &str, container: &str) {
        let Some(of_pod) = self.assignments.get_mut(uid) else { return };
        let Some(cpus) = of_pod.remove(container) else { return };
        let free = of_pod.values().fold(cpus, |free, theirs| free.difference(theirs));
        if of_pod.is_empty() {
            self.assignments.remove(uid);
        }
        self.shared = self.shared.union(&free);
    }
}
