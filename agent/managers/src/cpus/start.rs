//! The start of the static CPU policy: reserved processors, and the check of an earlier state against this machine.
//!
//! In: the machine, options, reservation, the state of an earlier agent (or an upstream kubelet). Out: a [`CpuManager`], or the reason
//! why the agent must not start, with upstream's text. Invariant: an accepted state has each processor of the machine.
//! Upstream: policy_static.go (`NewStaticPolicy`, `validateState`), cpu_manager.go (`NewManager`).

use super::manager::{CpuManager, take};
use super::options::CpuOptions;
use super::state::CpuState;
use crate::cpu_set::CpuSet;
use crate::topology::CpuTopology;

/// Reason for which the policy cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// Neither systemReserved nor kubeReserved nor reservedSystemCPUs has processors.
    #[error("[cpumanager] unable to determine reserved CPU resources for static policy")]
    NothingReserved,
    /// The machine cannot provide the reservation.
    #[error(
        "new static policy error: [cpumanager] unable to reserve the required amount of CPUs (size of {reserved} did not equal {wanted})"
    )]
    CannotReserve {
        /// Processors that were found.
        reserved: CpuSet,
        /// Requested number.
        wanted: usize,
    },
    /// A reserved processor does not exist.
    #[error(
        "new static policy error: [cpumanager] unable to build the reserved physical CPUs from the reserved set: unknown CPU ID: {0}"
    )]
    UnknownCpu(u32),
    /// `align-by-socket` on a machine whose nodes have several sockets.
    #[error(
        "new static policy error: Align by socket is not compatible with hardware where number of sockets are more than number of NUMA"
    )]
    SocketsPerNode,
    /// The state has processors of containers and no shared ones.
    #[error("default cpuset cannot be empty")]
    NoShared,
    /// The state is from before `strict-cpu-reservation`.
    #[error("some of strictly reserved cpus: \"{wrong}\" are present in defaultCpuSet: \"{shared}\"")]
    ReservedShared {
        /// Processors that are reserved and shared.
        wrong: CpuSet,
        /// The shared set.
        shared: CpuSet,
    },
    /// The state is from another reservation.
    #[error("not all reserved cpus: \"{reserved}\" are present in defaultCpuSet: \"{shared}\"")]
    ReservedAway {
        /// Reserved processors.
        reserved: CpuSet,
        /// The shared set.
        shared: CpuSet,
    },
    /// A processor is both shared and exclusive.
    #[error("pod: {pod}, container: {container} cpuset: \"{own}\" overlaps with default cpuset \"{shared}\"")]
    Overlap {
        /// UID.
        pod: String,
        /// Name.
        container: String,
        /// Processors of the container.
        own: CpuSet,
        /// The shared set.
        shared: CpuSet,
    },
    /// The machine has other processors now.
    #[error("current set of available CPUs \"{machine}\" doesn't match with CPUs in state \"{state}\"")]
    OtherMachine {
        /// Processors of the machine.
        machine: CpuSet,
        /// Processors of the state.
        state: CpuSet,
    },
}

/// Processors kept for the system: `systemReserved` plus `kubeReserved`, or `reservedSystemCPUs`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Reservation {
    /// Sum of the reservations, thousandths of a processor.
    pub milli: u64,
    /// `reservedSystemCPUs`; empty: not set.
    pub cpus: CpuSet,
}

impl CpuManager {
    /// Starts with the state of an earlier agent; `None`: there is none.
    ///
    /// # Errors
    /// The reservation or the state does not fit the machine.
    pub fn start(
        topology: CpuTopology,
        options: CpuOptions,
        reservation: &Reservation,
        state: Option<CpuState>,
    ) -> Result<CpuManager, StartError> {
        if reservation.milli == 0 {
            return Err(StartError::NothingReserved);
        }
        if options.align_by_socket && topology.sockets() > topology.nodes() {
            return Err(StartError::SocketsPerNode);
        }
        let wanted = usize::try_from(reservation.milli.div_ceil(1000)).unwrap_or(usize::MAX);
        let all = topology.cpus().set();
        let reserved = if reservation.cpus.is_empty() {
            take(&topology, options, &all, wanted).unwrap_or_default()
        } else {
            reservation.cpus.clone()
        };
        if reserved.len() != wanted {
            return Err(StartError::CannotReserve { reserved, wanted });
        }
        if let Some(unknown) = reserved.difference(&all).iter().next() {
            return Err(StartError::UnknownCpu(unknown));
        }
        let usable = if options.strict_reservation { all.difference(&reserved) } else { all };
        let mut state = state.unwrap_or_default();
        if state.shared.is_empty() {
            if !state.assignments.is_empty() {
                return Err(StartError::NoShared);
            }
            state.shared = usable;
        } else {
            validate(&state, &reserved, options.strict_reservation, usable)?;
        }
        Ok(CpuManager::with_state(topology, options, reserved, state))
    }

    /// Starts after a boot of the machine. No container runs, so the policy also accepts a state that does not fit: pods keep processors that
    /// are still free, and get new ones at their admission otherwise. Upstream does not start then.
    ///
    /// # Errors
    /// The reservation does not fit the machine.
    pub fn start_after_boot(
        topology: CpuTopology,
        options: CpuOptions,
        reservation: &Reservation,
        state: Option<CpuState>,
    ) -> Result<CpuManager, StartError> {
        if let Ok(manager) = CpuManager::start(topology.clone(), options, reservation, state.clone()) {
            return Ok(manager);
        }
        let mut manager = CpuManager::start(topology, options, reservation, None)?;
        for (pod, containers) in &state.unwrap_or_default().assignments {
            for (container, own) in containers {
                manager.keep(pod, container, own);
            }
        }
        Ok(manager)
    }
}

fn validate(state: &CpuState, reserved: &CpuSet, strict: bool, machine: CpuSet) -> Result<(), StartError> {
    let shared = &state.shared;
    let both = reserved.intersection(shared);
    if strict && !both.is_empty() {
        return Err(StartError::ReservedShared { wrong: both, shared: shared.clone() });
    }
    if !strict && both != *reserved {
        return Err(StartError::ReservedAway { reserved: reserved.clone(), shared: shared.clone() });
    }
    let mut known = shared.clone();
    for (pod, containers) in &state.assignments {
        for (container, own) in containers {
            if !own.intersection(shared).is_empty() {
                let (pod, container) = (pod.clone(), container.clone());
                return Err(StartError::Overlap { pod, container, own: own.clone(), shared: shared.clone() });
            }
            known = known.union(own);
        }
    }
    if known != machine {
        return Err(StartError::OtherMachine { machine, state: known });
    }
    Ok(())
}

#[cfg(test)]
mod tests;
