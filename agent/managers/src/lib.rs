//! agent-managers: assigns processors, memory and devices of the machine to containers.
//!
//! In: the machine's topology, requests of containers, earlier assignments. Out: assignments, hints, refusals. Invariants: no I/O, no
//! clock; the same input gives the same assignment as upstream's kubelet v1.36 (pkg/kubelet/cm/cpumanager, memorymanager,
//! topologymanager, devicemanager), because either may follow the other on one disk. `tests/golden.rs` compares them.
//!
//! A module uses modules of its own rank and of lower ranks; modules of one rank use each other in one direction (agent-tidy).
#![forbid(unsafe_code)]

// Rank 0: words.
pub mod counts;
pub mod cpu_set;
pub mod node_mask;

// Rank 1: facts: the machine, and the pods that want a part of it.
pub mod request;
pub mod topology;

// Rank 2: parts: hints of one resource, and their merge.
pub mod hints;

// Rank 3: managers: one resource each.
pub mod cpus;
pub mod devices;
pub mod memory;

// Rank 4: the placement of a pod by all managers, and the states on disk.
pub mod checkpoint;
pub mod placement;

// Rank 5: the managers as KubeletConfiguration sets them, on this machine.
pub mod settings;
