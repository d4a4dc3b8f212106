//! Resource usage of the node, its pods and its containers, in three formats (docs/reference/stats.md).
//!
//! ```text
//! cgroup files ─► cgroup ─┐
//! the runtime's figures ──┼─► Snapshot ─► rates ─┬─► resource ─► text
//! texts of /proc ─► host ─┘                      ├─► cadvisor ─► text
//! file systems, log files, volumes ─► Measured ──┴─► summary ──► JSON
//! pods and statuses ─► Shown ────────────────────┘
//! ```
//! In: texts of files, measured amounts, pods and statuses. Out: texts. Pure: agent-linux reads the files.
//! Invariants: a container that does not run has no values; an amount that could not be read is left out,
//! never zero.

pub mod cadvisor;
pub mod cgroup;
pub mod disk;
pub mod exposition;
pub mod host;
pub mod rates;
pub mod resource;
pub mod shown;
pub mod summary;
pub mod usage;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;

use agent_types::resources::cgroups::name;
use agent_types::time::Wall;

pub use host::Network;
pub use shown::{ShownContainer, ShownPod, ShownVolume};
pub use usage::Usage;

use disk::Layer;

/// A pod and those in it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct PodUsage {
    /// [`name::pod_of`] its cgroup's name.
    pub pod: String,
    /// Usage of the whole pod, from its cgroup; `None` on a node without pod cgroups, where the containers
    /// are summed up.
    pub usage: Option<Usage>,
    /// Containers, the sandbox's own among them, by CRI id.
    pub containers: Vec<(String, Usage)>,
    /// What went through its network namespace; of a pod with the host's network, the host's.
    pub network: Option<Network>,
}

/// The machine at a moment.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Snapshot {
    /// Usage of the machine.
    pub node: Usage,
    /// The machine's network.
    pub network: Option<Network>,
    /// Parts of the machine by upstream's names: `kubelet`, `runtime`, `misc`, `pods`.
    pub system: Vec<(&'static str, Usage)>,
    /// Cgroups above the pods', that of all pods among them.
    pub groups: Vec<Usage>,
    /// Pods that run.
    pub pods: Vec<PodUsage>,
}

/// A container in the runtime's statistics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct RuntimeUsage {
    /// CRI id of the container.
    pub id: String,
    /// Processor, memory and swap.
    pub usage: Usage,
    /// Its writable layer.
    pub layer: Option<Layer>,
}

impl Snapshot {
    /// For a machine whose pods have no readable cgroups: the runtime's values of the listed containers.
    #[must_use]
    pub fn of_runtime(node: Usage, shown: &[ShownPod], figures: &[RuntimeUsage]) -> Snapshot {
        let by_id: BTreeMap<&str, &RuntimeUsage> = figures.iter().map(|f| (f.id.as_str(), f)).collect();
        let pod = |pod: &ShownPod| {
            let containers = pod.containers.iter().filter_map(|container| {
                let found = by_id.get(container.id.as_str())?;
                Some((container.id.clone(), found.usage.clone()))
            });
            PodUsage { pod: name::key(&pod.uid), containers: containers.collect(), ..PodUsage::default() }
        };
        let pods = shown.iter().map(pod).filter(|pod| !pod.containers.is_empty()).collect();
        Snapshot { node, pods, ..Snapshot::default() }
    }

    /// The pod of this UID.
    #[must_use]
    pub fn pod(&self, uid: &str) -> Option<&PodUsage> {
        let key = name::key(uid);
        self.pods.iter().find(|pod| pod.pod == key)
    }
}

impl PodUsage {
    /// The sandbox's own container: the oldest one that is not listed.
    #[must_use]
    pub fn sandbox(&self, shown: &ShownPod) -> Option<(&str, &Usage)> {
        let others = self.containers.iter().filter(|(id, _)| shown.containers.iter().all(|c| c.id != *id));
        let first = others.min_by(|a, b| (a.1.created, &a.0).cmp(&(b.1.created, &b.0)))?;
        // A single remaining container may be one that has just ended.
        (shown.containers.is_empty() || self.containers.len() > 1).then_some((first.0.as_str(), &first.1))
    }

    /// Of all of it: its cgroup's account, or the sum of the shown containers', as upstream adds them up.
    #[must_use]
    pub fn whole(&self, shown: &ShownPod) -> Usage {
        if let Some(usage) = &self.usage {
            return usage.clone();
        }
        let of_shown = |id: &String| shown.containers.iter().any(|c| c.id == *id);
        let of: Vec<&Usage> =
            self.containers.iter().filter(|(id, _)| of_shown(id)).map(|(_, usage)| usage).collect();
        let sum = |amount: fn(&Usage) -> Option<u64>| usage::sum(of.iter().copied(), amount);
        let mut whole = Usage { at: of.iter().map(|u| u.at).max().unwrap_or(Wall(0)), ..Usage::default() };
        whole.cpu.total_ns = sum(|u| u.cpu.total_ns);
        whole.cpu.nano_cores = sum(|u| u.cpu.nano_cores);
        whole.memory.usage = sum(|u| u.memory.usage);
        whole.memory.working_set = sum(|u| u.memory.working_set);
        whole.memory.available = sum(|u| u.memory.available);
        whole.memory.rss = sum(|u| u.memory.rss);
        whole.memory.page_faults = sum(|u| u.memory.page_faults);
        whole.memory.major_page_faults = sum(|u| u.memory.major_page_faults);
        whole.swap.usage = sum(|u| u.swap.usage);
        whole.swap.limit = sum(|u| u.swap.limit);
        whole
    }

    /// What a container uses.
    #[must_use]
    pub fn container(&self, id: &str) -> Option<&Usage> {
        self.containers.iter().find(|(found, _)| found == id).map(|(_, usage)| usage)
    }
}
