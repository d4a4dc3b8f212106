//! Which container has which processors.
//!
//! In: assignments and releases. Out: the shared set and each container's own. Invariant (kept by [`super::manager`]): no processor is in
//! the shared set and in a container's, and containers of two pods have none in common. Upstream: pkg/kubelet/cm/cpumanager/state.

use std::collections::BTreeMap;

use crate::cpu_set::CpuSet;

/// The assignments of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct CpuState {
    /// Processors of all containers without their own.
    pub shared: CpuSet,
    /// Containers with their own processors: pod UID, container name.
    pub assignments: BTreeMap<String, BTreeMap<String, CpuSet>>,
}

impl CpuState {
    /// The container's own processors.
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> Option<&CpuSet> {
        self.assignments.get(uid)?.get(container)
    }

    pub(super) fn assign(&mut self, uid: &str, container: &str, cpus: CpuSet) {
        self.shared = self.shared.difference(&cpus);
        self.assignments.entry(uid.to_owned()).or_default().insert(container.to_owned(), cpus);
    }

    /// Takes the container's processors back; those that other containers of its pod have stay theirs.
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
