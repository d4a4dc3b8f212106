//! The machine at the start of the agent: processors, and NUMA nodes with memory and distances.
//!
//! In: nothing. Out: plain values that `agent-linux` makes from sysfs. Invariant: nodes without processors are in the list, because
//! they may have memory and devices. Upstream: cadvisor's `MachineInfo.Topology`.

use std::collections::BTreeMap;

use super::CpuTopology;
use crate::request::ResourceName;

/// Memory of a NUMA node, bytes.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NodeMemory {
    /// `MemTotal` of the node.
    pub total: u64,
    /// Bytes in huge pages, by resource name.
    pub huge_pages: BTreeMap<ResourceName, u64>,
}

/// A NUMA node.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NumaNode {
    /// Its memory.
    pub memory: NodeMemory,
    /// Distance to each node, by id; `None`: the machine reports none.
    pub distances: Option<BTreeMap<u32, u64>>,
}

/// Processors and NUMA nodes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct MachineTopology {
    /// Processors that are online.
    pub cpus: CpuTopology,
    /// NUMA nodes by id, those without processors included.
    pub nodes: BTreeMap<u32, NumaNode>,
}

impl MachineTopology {
    /// Memory of each node.
    #[must_use]
    pub fn memory(&self) -> BTreeMap<u32, NodeMemory> {
        self.nodes.iter().map(|(id, node)| (*id, node.memory.clone())).collect()
    }
}
