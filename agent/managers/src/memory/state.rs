//! Memory of each NUMA node, and the blocks that containers have.
//!
//! In: charges and returns. Out: the machine's state. Invariants: `free + reserved = allocatable` on each node and resource; nodes whose
//! memory one block spans form a group, and each of them lists the group. Only sums over a group mean something: a block's
//! memory is taken from the first nodes of its group and may be given back to others. Upstream:
//! pkg/kubelet/cm/memorymanager/state.

use std::collections::BTreeMap;

use crate::node_mask::NodeMask;
use crate::request::ResourceName;

/// A resource of one node, bytes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct MemoryTable {
    /// Total amount of the node.
    pub total: u64,
    /// Kept for the system (`reservedMemory`).
    pub system_reserved: u64,
    /// Amount for pods.
    pub allocatable: u64,
    /// Part of `allocatable` that containers have.
    pub reserved: u64,
    /// Rest of `allocatable`.
    pub free: u64,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeState {
    /// Blocks that lie on it, at least in part.
    pub assignments: u64,
    /// Its resources.
    pub memory: BTreeMap<ResourceName, MemoryTable>,
    /// The group of nodes that it belongs to, itself included.
    pub group: NodeMask,
}

/// Memory that a container has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Block {
    /// NUMA nodes of the block.
    pub nodes: NodeMask,
    /// The resource.
    pub resource: ResourceName,
    /// Bytes.
    pub bytes: u64,
}

/// All nodes.
pub type Machine = BTreeMap<u32, NodeState>;
/// Blocks of containers: pod UID, container name.
pub type Blocks = BTreeMap<String, BTreeMap<String, Vec<Block>>>;

/// The state of the memory manager.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct MemoryState {
    /// NUMA nodes by id.
    pub machine: Machine,
    /// Blocks of containers.
    pub blocks: Blocks,
}

impl MemoryState {
    /// The container's blocks.
    #[must_use]
    pub fn own(&self, uid: &str, container: &str) -> Option<&[Block]> {
        Some(self.blocks.get(uid)?.get(container)?.as_slice())
    }
}

/// Sum over the nodes of a mask.
pub(super) fn sum(
    machine: &Machine,
    mask: NodeMask,
    resource: &str,
    of: impl Fn(&MemoryTable) -> u64,
) -> u64 {
    let tables = mask.nodes().filter_map(|node| machine.get(&node)?.memory.get(resource));
    tables.fold(0, |sum, table| sum.saturating_add(of(table)))
}

/// Charges a block to its nodes, the lowest first. `bytes` may be less than the block's size, because the container uses memory of an
/// init container again.
pub(super) fn charge(machine: &mut Machine, nodes: NodeMask, resource: &str, mut bytes: u64) {
    for node in nodes.nodes() {
        let Some(state) = machine.get_mut(&node) else { continue };
        state.assignments += 1;
        state.group = nodes;
        let Some(table) = state.memory.get_mut(resource) else { continue };
        let taken = bytes.min(table.free);
        table.free -= taken;
        table.reserved += taken;
        bytes -= taken;
    }
}

/// Frees a block.
pub(super) fn give_back(machine: &mut Machine, block: &Block) {
    let mut bytes = block.bytes;
    for node in block.nodes.nodes() {
        let Some(state) = machine.get_mut(&node) else { continue };
        state.assignments = state.assignments.saturating_sub(1);
        if state.assignments == 0 {
            state.group = NodeMask::of([node]);
        }
        let Some(table) = state.memory.get_mut(&block.resource) else { continue };
        let returned = bytes.min(table.reserved);
        table.reserved -= returned;
        table.free += returned;
        bytes -= returned;
    }
}
