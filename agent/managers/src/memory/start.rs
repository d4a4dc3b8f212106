//! The start of the static memory policy: memory of each NUMA node, and the check of an earlier state against this machine.
//!
//! In: the nodes' memory, `reservedMemory`, the state of an earlier agent (or an upstream kubelet). Out: a [`MemoryManager`], or the
//! reason why the agent must not start, with upstream's text. Invariant: an accepted state has the amounts that its blocks give on
//! this machine, group by group. Upstream: policy_static.go (`NewPolicyStatic`, `validateState`), memory_manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;

use super::manager::MemoryManager;
use super::state::{Blocks, Machine, MemoryState, MemoryTable, NodeState, charge, sum};
use crate::node_mask::NodeMask;
use crate::request::ResourceName;
pub use crate::topology::machine::NodeMemory;

/// The resource for memory without huge pages.
pub const MEMORY: &str = "memory";

/// `reservedMemory`: bytes by node and resource.
pub type Reserved = BTreeMap<u32, BTreeMap<ResourceName, u64>>;

/// An amount as upstream prints a quantity with a binary suffix: `16Gi`, `1717986918`, `0`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Bytes(pub u64);

impl fmt::Display for Bytes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let suffixes = [(60, "Ei"), (50, "Pi"), (40, "Ti"), (30, "Gi"), (20, "Mi"), (10, "Ki")];
        match suffixes.into_iter().find(|(shift, _)| self.0 != 0 && self.0.is_multiple_of(1 << shift)) {
            Some((shift, suffix)) => write!(f, "{}{suffix}", self.0 >> shift),
            None => write!(f, "{}", self.0),
        }
    }
}

/// Reason for which the policy cannot start.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StartError {
    /// A reservation names a node that does not exist.
    #[error(
        "the reserved memory configuration references a NUMA node {0} that does not exist on this machine"
    )]
    UnknownNode(u32),
    /// The sum of the NUMA nodes' reservations differs from the reservation of the machine.
    #[error(
        "the total amount \"{given}\" of type \"{resource}\" is not equal to the value \"{wanted}\" determined by Node Allocatable feature"
    )]
    OtherTotal {
        /// Sum over the nodes.
        given: Bytes,
        /// The resource.
        resource: ResourceName,
        /// systemReserved + kubeReserved + evictionHard.
        wanted: Bytes,
    },
    /// No memory is reserved.
    #[error("[memorymanager] you should specify the system reserved memory")]
    NothingReserved,
    /// Blocks without a machine.
    #[error("[memorymanager] machine state can not be empty when it has memory assignments")]
    NoMachine,
    /// A block on a node that does not exist.
    #[error(
        "[memorymanager] (pod: {0}, container: {1}) the memory assignment uses the NUMA that does not exist"
    )]
    BlockWithoutNode(String, String),
    /// A block of a resource that its node does not have.
    #[error(
        "[memorymanager] (pod: {0}, container: {1}) the memory assignment uses memory resource that does not exist"
    )]
    BlockWithoutResource(String, String),
    /// The machine has other memory now, or the state was not written by a kubelet.
    #[error("[memorymanager] the expected machine state is different from the real one")]
    OtherMachine,
}

impl MemoryManager {
    /// Starts with the state of an earlier agent; `None`: there is none. `wanted` is the node's reservation in all: systemReserved,
    /// kubeReserved and the hard eviction threshold, by resource.
    ///
    /// # Errors
    /// The reservation or the state does not fit the machine.
    pub fn start(
        nodes: &BTreeMap<u32, NodeMemory>,
        reserved: &Reserved,
        wanted: &BTreeMap<ResourceName, u64>,
        state: Option<MemoryState>,
    ) -> Result<MemoryManager, StartError> {
        if let Some(unknown) = reserved.keys().find(|node| !nodes.contains_key(node)) {
            return Err(StartError::UnknownNode(*unknown));
        }
        let given = |resource: &str| reserved.values().filter_map(|of| of.get(resource)).sum::<u64>();
        let named: BTreeSet<&ResourceName> =
            reserved.values().flat_map(BTreeMap::keys).chain(wanted.keys()).collect();
        for resource in named {
            let (given, wanted) = (given(resource), wanted.get(resource).copied().unwrap_or(0));
            if given != wanted {
                let (given, wanted) = (Bytes(given), Bytes(wanted));
                return Err(StartError::OtherTotal { given, resource: resource.clone(), wanted });
            }
        }
        if given(MEMORY) == 0 {
            return Err(StartError::NothingReserved);
        }
        let fresh = machine(nodes, reserved);
        let state = state.unwrap_or_default();
        if state.machine.is_empty() {
            if !state.blocks.is_empty() {
                return Err(StartError::NoMachine);
            }
            return Ok(MemoryManager::with_state(MemoryState { machine: fresh, ..state }));
        }
        let expected = with_blocks(fresh, &state.blocks)?;
        if !agree(&state.machine, &expected) {
            return Err(StartError::OtherMachine);
        }
        Ok(MemoryManager::with_state(state))
    }

    /// Starts after a boot of the machine. The kernel's own memory lies elsewhere at each boot, so the nodes' amounts differ. No
    /// container runs, so the policy also accepts a state that does not fit: pods keep the blocks that still fit, and get new ones at
    /// their admission otherwise. Upstream does not start then.
    ///
    /// # Errors
    /// The reservation does not fit the machine.
    pub fn start_after_boot(
        nodes: &BTreeMap<u32, NodeMemory>,
        reserved: &Reserved,
        wanted: &BTreeMap<ResourceName, u64>,
        state: Option<MemoryState>,
    ) -> Result<MemoryManager, StartError> {
        if let Ok(manager) = MemoryManager::start(nodes, reserved, wanted, state.clone()) {
            return Ok(manager);
        }
        let mut manager = MemoryManager::start(nodes, reserved, wanted, None)?;
        for (pod, containers) in &state.unwrap_or_default().blocks {
            for (container, blocks) in containers {
                manager.keep(pod, container, blocks);
            }
        }
        Ok(manager)
    }
}

/// A machine without blocks. A reservation above the existing memory leaves zero (upstream's numbers wrap around).
fn machine(nodes: &BTreeMap<u32, NodeMemory>, reserved: &Reserved) -> Machine {
    let mut machine = Machine::new();
    for (id, node) in nodes {
        let kept = |resource: &str| reserved.get(id).and_then(|of| of.get(resource)).copied().unwrap_or(0);
        let table = |total: u64, resource: &str, elsewhere: u64| {
            let system_reserved = kept(resource);
            let allocatable = total.saturating_sub(system_reserved).saturating_sub(elsewhere);
            MemoryTable { total, system_reserved, allocatable, reserved: 0, free: allocatable }
        };
        let huge: u64 = node.huge_pages.values().sum();
        let pages = node.huge_pages.iter().map(|(name, total)| (name.clone(), table(*total, name, 0)));
        let mut memory: BTreeMap<ResourceName, MemoryTable> = pages.collect();
        memory.insert(MEMORY.to_owned(), table(node.total, MEMORY, huge));
        machine.insert(*id, NodeState { assignments: 0, memory, group: NodeMask::of([*id]) });
    }
    machine
}

fn with_blocks(mut machine: Machine, blocks: &Blocks) -> Result<Machine, StartError> {
    for (pod, containers) in blocks {
        for (container, blocks) in containers {
            for block in blocks {
                for node in block.nodes.nodes() {
                    let at = || (pod.clone(), container.clone());
                    let Some(node) = machine.get(&node) else {
                        let (pod, container) = at();
                        return Err(StartError::BlockWithoutNode(pod, container));
                    };
                    if !node.memory.contains_key(&block.resource) {
                        let (pod, container) = at();
                        return Err(StartError::BlockWithoutResource(pod, container));
                    }
                }
                charge(&mut machine, block.nodes, &block.resource, block.bytes);
            }
        }
    }
    Ok(machine)
}

/// True if both have the same nodes, resources, totals and groups, and the same sums over each group.
fn agree(real: &Machine, expected: &Machine) -> bool {
    let same_node = |(id, a): (&u32, &NodeState)| {
        let Some(b) = expected.get(id) else { return false };
        let fixed = |table: &MemoryTable| (table.total, table.system_reserved, table.allocatable);
        let same_table = |(resource, table): (&ResourceName, &MemoryTable)| {
            b.memory.get(resource).is_some_and(|other| fixed(table) == fixed(other))
                && sum(real, a.group, resource, |of| of.free)
                    == sum(expected, a.group, resource, |of| of.free)
                && sum(real, a.group, resource, |of| of.reserved)
                    == sum(expected, a.group, resource, |of| of.reserved)
        };
        (a.assignments, a.group, a.memory.len()) == (b.assignments, b.group, b.memory.len())
            && a.memory.iter().all(same_table)
    };
    real.len() == expected.len() && real.iter().all(same_node)
}

#[cfg(test)]
mod tests;
