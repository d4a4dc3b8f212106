//! Invented machines for tests.

use std::collections::BTreeMap;

use super::{Cpu, CpuTopology};

/// A regular machine: core `c` of `C` in all, thread `t` of core `c` is processor `t·C + c`; nodes and sockets take consecutive
/// cores, and so do uncore caches where `uncore` (cores of one) is given.
#[derive(Clone, Copy)]
pub(crate) struct Regular {
    pub(crate) sockets: u32,
    pub(crate) nodes: u32,
    pub(crate) cores_of_node: u32,
    pub(crate) threads: u32,
    pub(crate) uncore: Option<u32>,
}

impl Regular {
    pub(crate) fn topology(self) -> CpuTopology {
        let cores = self.nodes * self.cores_of_node;
        let mut cpus = BTreeMap::new();
        for core in 0..cores {
            let socket = core / (cores / self.sockets);
            let node = core / self.cores_of_node;
            let uncore = self.uncore.map_or(socket, |size| core / size);
            for thread in 0..self.threads {
                cpus.insert(thread * cores + core, Cpu { core, socket, node, uncore });
            }
        }
        CpuTopology::new(cpus, self.sockets as usize)
    }
}
