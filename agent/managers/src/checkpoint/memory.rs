//! `memory_manager_state`, version 1.
//!
//! In: policy and state, or bytes. Out: bytes, or the state. Invariants: those of [`super`]. Blocks of a container are written in the
//! order of their resources (upstream: in any).

use std::collections::BTreeMap;

use orlop_config::fnv::fnv32;
use serde::{Deserialize, Serialize};

use super::{CheckpointError, spew_list, spew_map};
use crate::memory::state::{Block, MemoryState, MemoryTable, NodeState};
use crate::node_mask::NodeMask;

#[derive(Deserialize, Serialize)]
struct File {
    #[serde(rename = "policyName", default)]
    policy: String,
    #[serde(rename = "machineState", default)]
    machine: BTreeMap<u32, NodeText>,
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    entries: BTreeMap<String, BTreeMap<String, Vec<BlockText>>>,
    #[serde(default)]
    checksum: u64,
}

#[derive(Deserialize, Serialize)]
struct NodeText {
    #[serde(rename = "numberOfAssignments")]
    assignments: u64,
    #[serde(rename = "memoryMap")]
    memory: BTreeMap<String, TableText>,
    cells: Vec<u32>,
}

#[derive(Deserialize, Serialize)]
struct TableText {
    total: u64,
    #[serde(rename = "systemReserved")]
    system_reserved: u64,
    allocatable: u64,
    reserved: u64,
    free: u64,
}

#[derive(Deserialize, Serialize)]
struct BlockText {
    #[serde(rename = "numaAffinity")]
    nodes: Vec<u32>,
    #[serde(rename = "type")]
    resource: String,
    size: u64,
}

fn numbers(all: &[u32]) -> String {
    spew_list(all.iter().map(ToString::to_string))
}

impl NodeText {
    fn spew(&self) -> String {
        let tables = self.memory.iter().map(|(name, of)| {
            let TableText { total, system_reserved, allocatable, reserved, free } = of;
            let text = format!(
                "<*>{{TotalMemSize:(uint64){total} SystemReserved:(uint64){system_reserved} \
                 Allocatable:(uint64){allocatable} Reserved:(uint64){reserved} Free:(uint64){free}}}"
            );
            (name.clone(), text)
        });
        format!(
            "<*>{{NumberOfAssignments:(int){} MemoryMap:(map[v1.ResourceName]*state.MemoryTable){} Cells:([]int){}}}",
            self.assignments,
            spew_map(tables),
            numbers(&self.cells)
        )
    }
}

impl BlockText {
    fn spew(&self) -> String {
        let BlockText { nodes, resource, size } = self;
        let nodes = numbers(nodes);
        format!("{{NUMAAffinity:([]int){nodes} Type:(v1.ResourceName){resource} Size:(uint64){size}}}")
    }
}

impl File {
    fn checksum(&self) -> u32 {
        let nodes = self.machine.iter().map(|(id, node)| (id.to_string(), node.spew()));
        let pods = self.entries.iter().map(|(uid, containers)| {
            let blocks = |(name, blocks): (&String, &Vec<BlockText>)| {
                (name.clone(), spew_list(blocks.iter().map(BlockText::spew)))
            };
            (uid.clone(), spew_map(containers.iter().map(blocks)))
        });
        let printed = format!(
            "(*state.MemoryManagerCheckpoint){{PolicyName:(string){} MachineState:(state.NUMANodeMap){} \
             Entries:(state.ContainerMemoryAssignments){} Checksum:(checksum.Checksum)0}}",
            self.policy,
            spew_map(nodes),
            spew_map(pods)
        );
        fnv32(printed.as_bytes())
    }
}

/// The file's bytes.
#[must_use]
pub fn write(policy: &str, state: &MemoryState) -> String {
    let table = |of: &MemoryTable| TableText {
        total: of.total,
        system_reserved: of.system_reserved,
        allocatable: of.allocatable,
        reserved: of.reserved,
        free: of.free,
    };
    let node = |node: &NodeState| NodeText {
        assignments: node.assignments,
        memory: node.memory.iter().map(|(name, of)| (name.clone(), table(of))).collect(),
        cells: node.group.nodes().collect(),
    };
    let block = |block: &Block| BlockText {
        nodes: block.nodes.nodes().collect(),
        resource: block.resource.clone(),
        size: block.bytes,
    };
    let containers = |containers: &BTreeMap<String, Vec<Block>>| {
        containers.iter().map(|(name, blocks)| (name.clone(), blocks.iter().map(block).collect())).collect()
    };
    let mut file = File {
        policy: policy.to_owned(),
        machine: state.machine.iter().map(|(id, of)| (*id, node(of))).collect(),
        entries: state.blocks.iter().map(|(uid, of)| (uid.clone(), containers(of))).collect(),
        checksum: 0,
    };
    file.checksum = file.checksum().into();
    serde_json::to_string(&file).unwrap_or_default()
}

/// The state of a file that `policy` may use. A checksum of 0 is accepted, as upstream accepts it.
///
/// # Errors
/// The file cannot be used; see [`super::cpus::read`].
pub fn read(policy: &str, bytes: &str) -> Result<MemoryState, CheckpointError> {
    let file: File =
        serde_json::from_str(bytes).map_err(|error| CheckpointError::NotJson(error.to_string()))?;
    if file.checksum != 0 && file.checksum != u64::from(file.checksum()) {
        return Err(CheckpointError::Corrupted);
    }
    if file.policy != policy {
        let (configured, found) = (policy.to_owned(), file.policy);
        return Err(CheckpointError::OtherPolicy { prefix: "[memorymanager] ", configured, found });
    }
    let table = |of: TableText| MemoryTable {
        total: of.total,
        system_reserved: of.system_reserved,
        allocatable: of.allocatable,
        reserved: of.reserved,
        free: of.free,
    };
    let node = |node: NodeText| NodeState {
        assignments: node.assignments,
        memory: node.memory.into_iter().map(|(name, of)| (name, table(of))).collect(),
        group: NodeMask::of(node.cells),
    };
    let block =
        |of: BlockText| Block { nodes: NodeMask::of(of.nodes), resource: of.resource, bytes: of.size };
    let containers = |containers: BTreeMap<String, Vec<BlockText>>| {
        containers.into_iter().map(|(name, blocks)| (name, blocks.into_iter().map(block).collect())).collect()
    };
    Ok(MemoryState {
        machine: file.machine.into_iter().map(|(id, of)| (id, node(of))).collect(),
        blocks: file.entries.into_iter().map(|(uid, of)| (uid, containers(of))).collect(),
    })
}
