//! The processors of the machine with core, socket, NUMA node and uncore cache.
//!
//! In: one description of each processor ([`Cpu`]). Out: groups of processors, and the averages that upstream compares with to decide
//! whether a core or socket is free. Invariants: a core's id is the lowest number of its processors; averages are integer quotients of
//! the totals, so on a machine with cores of different kinds they fit no core, as upstream. Upstream:
//! pkg/kubelet/cm/cpumanager/topology.

use std::collections::{BTreeMap, BTreeSet};

use crate::cpu_set::CpuSet;

pub mod machine;

/// The place of one processor.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Cpu {
    /// Lowest number of the core's processors.
    pub core: u32,
    /// Physical package.
    pub socket: u32,
    /// NUMA node.
    pub node: u32,
    /// Cache that several cores share and that is smaller than the node; the socket where there is none.
    pub uncore: u32,
}

/// A kind of group of processors.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Unit {
    /// Threads of one core.
    Core,
    /// A physical package.
    Socket,
    /// A NUMA node.
    Node,
    /// Cores that share a cache.
    Uncore,
}

impl Cpu {
    /// The id of the processor's group of this kind.
    #[must_use]
    pub fn id(&self, unit: Unit) -> u32 {
        match unit {
            Unit::Core => self.core,
            Unit::Socket => self.socket,
            Unit::Node => self.node,
            Unit::Uncore => self.uncore,
        }
    }
}

/// Processors with their places: all processors of the machine, or the free ones.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Cpus(BTreeMap<u32, Cpu>);

impl Cpus {
    /// Number of processors.
    #[must_use]
    pub fn len(&self) -> usize {
        self.0.len()
    }

    /// True if there is none.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }

    /// The processor's place.
    #[must_use]
    pub fn get(&self, cpu: u32) -> Option<&Cpu> {
        self.0.get(&cpu)
    }

    /// Numbers of the processors.
    #[must_use]
    pub fn set(&self) -> CpuSet {
        self.0.keys().copied().collect()
    }

    /// The processors of a set.
    #[must_use]
    pub fn only(&self, set: &CpuSet) -> Cpus {
        Cpus(self.0.iter().filter(|(cpu, _)| set.contains(**cpu)).map(|(cpu, of)| (*cpu, *of)).collect())
    }

    /// Removes these processors.
    pub fn remove(&mut self, set: &CpuSet) {
        for cpu in set.iter() {
            self.0.remove(&cpu);
        }
    }

    /// Ids of all groups of a kind that have a processor here.
    #[must_use]
    pub fn ids(&self, unit: Unit) -> BTreeSet<u32> {
        self.0.values().map(|cpu| cpu.id(unit)).collect()
    }

    /// Ids of the groups of kind `unit` within the group `id` of kind `within`.
    #[must_use]
    pub fn ids_within(&self, unit: Unit, within: Unit, id: u32) -> BTreeSet<u32> {
        self.0.values().filter(|cpu| cpu.id(within) == id).map(|cpu| cpu.id(unit)).collect()
    }

    /// Processors of a group.
    #[must_use]
    pub fn in_group(&self, unit: Unit, id: u32) -> CpuSet {
        self.in_groups(unit, &BTreeSet::from([id]))
    }

    /// Processors of several groups.
    #[must_use]
    pub fn in_groups(&self, unit: Unit, ids: &BTreeSet<u32>) -> CpuSet {
        self.0.iter().filter(|(_, of)| ids.contains(&of.id(unit))).map(|(cpu, _)| *cpu).collect()
    }

    /// Number of processors of each group.
    #[must_use]
    pub fn sizes(&self, unit: Unit) -> BTreeMap<u32, usize> {
        let mut sizes = BTreeMap::new();
        for cpu in self.0.values() {
            *sizes.entry(cpu.id(unit)).or_default() += 1;
        }
        sizes
    }
}

/// The processors of a machine.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct CpuTopology {
    cpus: Cpus,
    sockets: usize,
    cores: usize,
}

impl CpuTopology {
    /// The machine with these processors. `sockets` is the number of physical packages that the machine reports, including packages whose
    /// processors are all offline.
    #[must_use]
    pub fn new(cpus: BTreeMap<u32, Cpu>, sockets: usize) -> CpuTopology {
        let cpus = Cpus(cpus);
        // Two nodes may share a core number in the kernel. The id here is a processor's number, so it belongs to one node.
        let cores = cpus.ids(Unit::Core).len();
        CpuTopology { cpus, sockets, cores }
    }

    /// All processors.
    #[must_use]
    pub fn cpus(&self) -> &Cpus {
        &self.cpus
    }

    /// Physical packages.
    #[must_use]
    pub fn sockets(&self) -> usize {
        self.sockets
    }

    /// NUMA nodes with processors.
    #[must_use]
    pub fn nodes(&self) -> usize {
        self.cpus.ids(Unit::Node).len()
    }

    /// Average number of processors of a core; 0 without any.
    #[must_use]
    pub fn cpus_per_core(&self) -> usize {
        self.cpus.len().checked_div(self.cores).unwrap_or(0)
    }

    /// Average number of processors of a socket; 0 without any.
    #[must_use]
    pub fn cpus_per_socket(&self) -> usize {
        self.cpus.len().checked_div(self.sockets).unwrap_or(0)
    }

    /// Average number of processors that share an uncore cache; 0 without any.
    #[must_use]
    pub fn cpus_per_uncore(&self) -> usize {
        self.cpus.len().checked_div(self.cpus.ids(Unit::Uncore).len()).unwrap_or(0)
    }
}

#[cfg(test)]
pub(crate) mod testing;
