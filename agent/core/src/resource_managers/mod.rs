//! resource_managers: the exclusive processors, memory and devices of the pods of this node.
//!
//! ```text
//! pod ──judge──► refusal, or the managers as they are with the pod ──give──► placement of its containers, records for the disk
//!                                                                    └─► question to a device plugin ──answered──► …
//! pods that are not active any more ──keep_only──► more for the others
//! ```
//! In: pods in admission, the set of active pods. Out: refusals, placements, records. Pure. Invariants: [`ResourceManagers::judge`]
//! changes nothing, so admission may call it at any time; a pod that is placed again keeps its resources; a refused pod keeps nothing.
//! The pod manager owns the value. agent-managers makes the decisions. Upstream: pkg/kubelet/cm/topologymanager, cpumanager,
//! memorymanager, devicemanager.

mod devices;
mod request;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_managers::checkpoint;
use agent_managers::counts::Counts;
use agent_managers::cpu_set::CpuSet;
use agent_managers::cpus::manager::CpuManager;
use agent_managers::devices::inventory::NodeDevices;
use agent_managers::devices::status::DeviceNodes;
use agent_managers::memory::manager::MemoryManager;
use agent_managers::node_mask::NodeMask;
use agent_managers::placement::{Managers, PlaceStep, Refusal};
use agent_types::runtime::placement::Placement;
use k8s_openapi::api::core::v1::Pod;

pub use devices::{ASK_TIME, ASK_TIMED_OUT, DeviceAction, DeviceEvent};
pub use request::pod_request;

/// File name of the CPU manager's state, in the root directory.
pub const CPU_STATE: &str = "cpu_manager_state";
/// File name of the memory manager's state, in the root directory.
pub const MEMORY_STATE: &str = "memory_manager_state";
/// `cpuManagerPolicy: static`, as the state file spells it.
pub const CPU_STATIC: &str = "static";
/// `memoryManagerPolicy: Static`, as the state file spells it.
pub const MEMORY_STATIC: &str = "Static";

/// Contents of the state files; `None`: the policy has no state, and the file does not change.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerRecords {
    /// [`CPU_STATE`].
    pub cpus: Option<String>,
    /// [`MEMORY_STATE`].
    pub memory: Option<String>,
}

impl ManagerRecords {
    /// The contents that differ from the written ones.
    #[must_use]
    pub fn since(&self, written: &ManagerRecords) -> ManagerRecords {
        let news = |now: &Option<String>, then: &Option<String>| {
            now.clone().filter(|now| then.as_ref() != Some(now))
        };
        ManagerRecords { cpus: news(&self.cpus, &written.cpus), memory: news(&self.memory, &written.memory) }
    }
}

/// The managers of this node, with the resources of its pods.
#[derive(Clone, Debug, Default)]
pub struct ResourceManagers {
    managers: Managers,
    /// Amounts of device plugins' resources, and the names that were removed since the agent's start.
    node_devices: NodeDevices,
}

/// Outcome of the placement of a pod.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum GiveOutcome {
    /// The pod has its resources.
    Parts {
        /// The records of processors or memory changed.
        changed: bool,
    },
    /// A plugin must be asked, or the checkpoint written; then call [`ResourceManagers::answered`].
    Waits(PlaceStep),
}

impl From<Managers> for ResourceManagers {
    fn from(managers: Managers) -> ResourceManagers {
        ResourceManagers { managers, node_devices: NodeDevices::default() }
    }
}

impl ResourceManagers {
    /// True if no manager assigns anything.
    #[must_use]
    pub fn are_idle(&self) -> bool {
        self.managers.cpus.is_none() && self.managers.memory.is_none() && self.managers.devices.is_unused()
    }

    /// The managers.
    #[must_use]
    pub fn managers(&self) -> &Managers {
        &self.managers
    }

    /// Checks whether the pod can get its resources, as far as this is known without its plugins. Changes nothing. `ran`: containers of the
    /// pod ran when the agent started.
    ///
    /// # Errors
    /// The reason for which the pod cannot get them.
    pub fn judge(&self, pod: &Pod, ran: bool) -> Result<(), Refusal> {
        if self.wants_nothing(pod) {
            return Ok(());
        }
        match self.managers.clone().begin(pod_request(pod), ResourceManagers::running_containers(pod, ran)) {
            PlaceStep::Refused(refusal) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Gives the pod its resources, or starts to. A pod that is refused at once gets nothing; the attempt counts in the metrics.
    ///
    /// # Errors
    /// The reason for which the pod gets none.
    pub fn give(&mut self, pod: &Pod, ran: bool) -> Result<GiveOutcome, Refusal> {
        if self.wants_nothing(pod) {
            // No manager can refuse this pod. The call counts the pod in the metrics.
            self.managers.begin(pod_request(pod), BTreeSet::new());
            return Ok(GiveOutcome::Parts { changed: false });
        }
        let mut tried = self.managers.clone();
        let step = tried.begin(pod_request(pod), ResourceManagers::running_containers(pod, ran));
        if let PlaceStep::Refused(refusal) = step {
            self.managers.counts = tried.counts;
            return Err(refusal);
        }
        let had = std::mem::replace(&mut self.managers, tried);
        if step != PlaceStep::Placed {
            return Ok(GiveOutcome::Waits(step));
        }
        let Managers { cpus, memory, .. } = &self.managers;
        let changed = had.cpus.as_ref().map(CpuManager::state) != cpus.as_ref().map(CpuManager::state)
            || had.memory.as_ref().map(MemoryManager::state) != memory.as_ref().map(MemoryManager::state);
        Ok(GiveOutcome::Parts { changed })
    }

    /// True if no manager assigns anything to the pod.
    fn wants_nothing(&self, pod: &Pod) -> bool {
        let Managers { cpus, memory, .. } = &self.managers;
        cpus.is_none() && memory.is_none() && self.managed_resources(pod).is_empty()
    }

    /// Frees the resources of containers that no active pod has; true if there were any. `is_active` gets `None` for the pod as a whole.
    pub fn keep_only(&mut self, is_active: impl Fn(&str, Option<&str>) -> bool) -> bool {
        self.managers.keep_only(is_active)
    }

    /// A container is about to be created: frees the memory of the init containers before it. True if there was any.
    pub fn creates(&mut self, pod: &Pod, container: &str) -> bool {
        let memory = self.managers.memory.as_mut();
        memory.is_some_and(|memory| memory.release_earlier(&pod_request(pod), container))
    }

    /// The processors, memory and devices of the containers of the pod `uid`.
    #[must_use]
    pub fn placement(&self, uid: &str, pod: Option<&Pod>) -> Placement {
        let text = |set: &dyn std::fmt::Display| Arc::from(set.to_string());
        let Managers { cpus, memory, .. } = &self.managers;
        let own = cpus.iter().filter_map(|cpus| cpus.state().assignments.get(uid)).flatten();
        let blocks = memory.iter().filter_map(|memory| memory.state().blocks.get(uid)).flatten();
        let nodes = blocks.map(|(name, blocks)| {
            let all = blocks.iter().flat_map(|block| block.nodes.nodes());
            (name, NodeMask::of(all).nodes().map(|node| node.to_string()).collect::<Vec<_>>().join(","))
        });
        Placement {
            cpus: own.map(|(name, cpus)| (name.clone(), text(cpus))).collect(),
            shared_cpus: cpus.as_ref().map(|cpus| text(&cpus.state().shared)),
            mems: nodes
                .filter(|(_, nodes)| !nodes.is_empty())
                .map(|(name, nodes)| (name.clone(), text(&nodes)))
                .collect(),
            devices: self.devices_of(uid, pod),
        }
    }

    /// The contents for the state files.
    #[must_use]
    pub fn records(&self) -> ManagerRecords {
        let Managers { cpus, memory, .. } = &self.managers;
        ManagerRecords {
            cpus: cpus.as_ref().map(|of| checkpoint::cpus::write(CPU_STATIC, of.state())),
            memory: memory.as_ref().map(|of| checkpoint::memory::write(MEMORY_STATIC, of.state())),
        }
    }

    /// Counters since the start of the agent.
    #[must_use]
    pub fn counts(&self) -> &Counts {
        &self.managers.counts
    }

    /// The view for the pod resources API and metrics.
    #[must_use]
    pub fn view(&self) -> ResourcesView {
        let Managers { cpus, memory, devices, counts, .. } = &self.managers;
        let mut view = ResourcesView { counts: counts.clone(), ..ResourcesView::default() };
        if let Some(cpus) = cpus {
            view.allocatable_cpus = cpus.allocatable();
            view.available_cpus = cpus.available();
            view.cpus.clone_from(&cpus.state().assignments);
            view.exclusive_cpus_by_node = cpus.exclusive_by_node();
        }
        if let Some(memory) = memory {
            let machine = &memory.state().machine;
            view.allocatable_memory = machine
                .iter()
                .flat_map(|(node, of)| {
                    of.memory.iter().map(move |(resource, table)| (*node, resource, table.allocatable))
                })
                .filter(|(_, _, bytes)| *bytes > 0)
                .map(|(node, resource, bytes)| MemoryPart {
                    resource: resource.clone(),
                    bytes,
                    nodes: NodeMask::of([node]),
                })
                .collect();
            let part = |block: &agent_managers::memory::state::Block| MemoryPart {
                resource: block.resource.clone(),
                bytes: block.bytes,
                nodes: block.nodes,
            };
            let parts = |containers: &BTreeMap<String, Vec<_>>| {
                containers.iter().map(|(name, of)| (name.clone(), of.iter().map(part).collect())).collect()
            };
            view.memory = memory.state().blocks.iter().map(|(uid, of)| (uid.clone(), parts(of))).collect();
        }
        view.node_devices.clone_from(&self.node_devices);
        view.allocatable_devices = devices.allocatable_devices();
        for (uid, container, _, _) in devices.records().iter() {
            let of_pod = view.devices.entry(uid.to_owned()).or_default();
            of_pod.entry(container.to_owned()).or_insert_with(|| devices.devices_of(uid, container));
        }
        view
    }
}

/// Memory that a container has, or that a node has for containers.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MemoryPart {
    /// `memory`, or a size of huge pages.
    pub resource: String,
    /// Amount.
    pub bytes: u64,
    /// NUMA nodes of the memory.
    pub nodes: NodeMask,
}

/// The managers' state for the pod resources API and metrics.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ResourcesView {
    /// Processors that may be exclusive; empty without static policy.
    pub allocatable_cpus: CpuSet,
    /// Processors that may become exclusive now.
    pub available_cpus: CpuSet,
    /// Processors of containers: pod UID, container name.
    pub cpus: BTreeMap<String, BTreeMap<String, CpuSet>>,
    /// Number of exclusive processors of each NUMA node that has any.
    pub exclusive_cpus_by_node: BTreeMap<u32, usize>,
    /// Memory for containers, by NUMA node and resource.
    pub allocatable_memory: Vec<MemoryPart>,
    /// Memory of containers: pod UID, container name.
    pub memory: BTreeMap<String, BTreeMap<String, Vec<MemoryPart>>>,
    /// Amounts of device plugins' resources.
    pub node_devices: NodeDevices,
    /// Healthy devices by resource.
    pub allocatable_devices: BTreeMap<String, DeviceNodes>,
    /// Devices of containers by resource: pod UID, container name.
    pub devices: BTreeMap<String, BTreeMap<String, BTreeMap<String, DeviceNodes>>>,
    /// Counters.
    pub counts: Counts,
}
