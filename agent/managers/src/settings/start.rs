//! The managers of this machine, built from the settings.
//!
//! In: settings, the machine, the node's reservation, states of an earlier agent. Out: [`Managers`], or the reason why the agent must not
//! start, with upstream's text. Invariant: a mistake in the settings is reported before any state is read, because upstream
//! constructs all managers before it starts one.

use std::collections::BTreeMap;

use super::{ManagerSettings, TopologySettings};
use crate::cpu_set::CpuSet;
use crate::cpus::manager::CpuManager;
use crate::cpus::start::{self as cpus, Reservation};
use crate::cpus::state::CpuState;
use crate::hints::merge::Nodes;
use crate::memory::manager::MemoryManager;
use crate::memory::start as memory;
use crate::memory::state::MemoryState;
use crate::placement::{Managers, Topology};
use crate::request::ResourceName;
use crate::topology::machine::MachineTopology;

/// The node's reservation: the sum of `systemReserved`, `kubeReserved` and the hard eviction threshold; with `reservedSystemCPUs` the
/// number of these processors. Upstream: `GetNodeAllocatableReservation`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeReservation {
    /// Thousandths of a processor.
    pub cpu_milli: u64,
    /// Memory and huge pages, bytes.
    pub memory: BTreeMap<ResourceName, u64>,
}

/// States that an earlier agent, or an upstream kubelet, left on the disk.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct ManagerStates {
    /// `cpu_manager_state`.
    pub cpus: Option<CpuState>,
    /// `memory_manager_state`.
    pub memory: Option<MemoryState>,
}

/// Reason for which the managers cannot start on this machine; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ManagersError {
    /// The machine's topology names no processor.
    #[error("could not detect number of cpus")]
    NoCpus,
    /// A processor of `reservedSystemCPUs` is offline or does not exist.
    #[error("reserved-cpus: {given} is not a subset of online-cpus: {online}")]
    ReservedOffline {
        /// The setting as it was written.
        given: String,
        /// Processors of the machine.
        online: CpuSet,
    },
    /// `prefer-closest-numa-nodes`, and a node reports no distances.
    #[error("cannot discover NUMA topology: error getting NUMA distances from cadvisor")]
    NoDistances,
    /// `max-allowable-numa-nodes`.
    #[error("unsupported on machines with more than {0} NUMA Nodes")]
    TooManyNodes(u64),
    /// The CPU manager.
    #[error(transparent)]
    Cpus(#[from] cpus::StartError),
    /// The memory manager.
    #[error(transparent)]
    Memory(#[from] memory::StartError),
}

impl ManagerSettings {
    /// The managers of this machine with the states of an earlier agent.
    ///
    /// # Errors
    /// A setting or a state does not fit the machine.
    pub fn managers(
        &self,
        machine: &MachineTopology,
        reservation: &NodeReservation,
        states: ManagerStates,
    ) -> Result<Managers, ManagersError> {
        self.build(machine, reservation, ManagerStates::default(), false)?;
        self.build(machine, reservation, states, false)
    }

    /// The managers after a boot of the machine, when no container of an earlier boot runs: parts of states that do not fit are
    /// dropped.
    ///
    /// # Errors
    /// A setting does not fit the machine.
    pub fn managers_after_boot(
        &self,
        machine: &MachineTopology,
        reservation: &NodeReservation,
        states: ManagerStates,
    ) -> Result<Managers, ManagersError> {
        self.build(machine, reservation, ManagerStates::default(), false)?;
        self.build(machine, reservation, states, true)
    }

    fn build(
        &self,
        machine: &MachineTopology,
        reservation: &NodeReservation,
        states: ManagerStates,
        after_boot: bool,
    ) -> Result<Managers, ManagersError> {
        let online = machine.cpus.cpus().set();
        if online.is_empty() {
            return Err(ManagersError::NoCpus);
        }
        let reserved = self.reserved_system_cpus.clone().unwrap_or_default();
        if !reserved.is_subset(&online) {
            return Err(ManagersError::ReservedOffline { given: self.reserved_text.clone(), online });
        }
        let mut managers = Managers::default();
        if let Some(topology) = &self.topology {
            managers.topology = Some(topology.on(machine)?);
        }
        if let Some(options) = self.cpus {
            let reservation = Reservation { milli: reservation.cpu_milli, cpus: reserved };
            let start = if after_boot { CpuManager::start_after_boot } else { CpuManager::start };
            managers.cpus = Some(start(machine.cpus.clone(), options, &reservation, states.cpus)?);
        }
        if let Some(reserved) = &self.memory {
            let start = if after_boot { MemoryManager::start_after_boot } else { MemoryManager::start };
            managers.memory = Some(start(&machine.memory(), reserved, &reservation.memory, states.memory)?);
        }
        Ok(managers)
    }
}

impl TopologySettings {
    /// The topology of this machine, with nodes without processors.
    fn on(&self, machine: &MachineTopology) -> Result<Topology, ManagersError> {
        let mut nodes = Nodes::new(machine.nodes.keys().copied());
        if self.options.prefer_closest {
            let mut distances = BTreeMap::new();
            for (from, node) in &machine.nodes {
                let row = node.distances.as_ref().ok_or(ManagersError::NoDistances)?;
                distances.extend(row.iter().map(|(to, distance)| ((*from, *to), *distance)));
            }
            nodes = nodes.with_distances(distances);
        }
        let most = self.options.nodes_max;
        if u64::try_from(machine.nodes.len()).is_ok_and(|count| count > most) {
            return Err(ManagersError::TooManyNodes(most));
        }
        Ok(Topology { policy: self.policy, scope: self.scope, nodes })
    }
}
