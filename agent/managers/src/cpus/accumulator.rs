//! Selects the processors for a request for `n` exclusive ones: whole NUMA nodes and sockets first, then whole caches and cores, then
//! single processors.
//!
//! In: the topology, the free processors, the requested number, the options. Out: a set of exactly this size, or the reason why there is
//! none. Invariants: each order is ascending by free processors of the group, then by id, so that groups with few free processors are
//! used first; a request gets the same processors as upstream's on the same machine (golden data in `tests/golden.rs`).
//! Upstream: pkg/kubelet/cm/cpumanager/cpu_assignment.go (`takeByTopologyNUMAPacked`).

use std::collections::BTreeMap;

use crate::cpu_set::CpuSet;
use crate::topology::{CpuTopology, Cpus, Unit};

/// The order in which single processors are taken.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Sorting {
    /// Cores that are partly used first; a core's threads together.
    #[default]
    Packed,
    /// By number within a socket, so that threads lie on different cores (`distribute-cpus-across-cores`).
    Spread,
}

/// Reason for which a request gets no processors; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum TakeError {
    /// Fewer processors are free.
    #[error("not enough cpus available to satisfy request: requested={requested}, available={available}")]
    NotEnough {
        /// Requested number.
        requested: usize,
        /// Number of free processors.
        available: usize,
    },
    /// The machine's description contradicts itself.
    #[error("failed to allocate cpus")]
    Failed,
    /// A distribution over NUMA nodes does not add up.
    #[error("accounting error, not enough CPUs allocated, remaining: {0}")]
    Accounting(usize),
}

/// Takes `requested` processors out of `available`, packed.
///
/// # Errors
/// Fewer are free.
pub fn take_packed(
    topology: &CpuTopology,
    available: &CpuSet,
    requested: usize,
    sorting: Sorting,
    align_by_uncore: bool,
) -> Result<CpuSet, TakeError> {
    let mut run = Run::new(topology, available, requested)?;
    let numa_first = topology.sockets() >= topology.nodes();
    let levels = if numa_first { [Unit::Node, Unit::Socket] } else { [Unit::Socket, Unit::Node] };
    for unit in levels {
        if !run.is_satisfied() {
            run.take_whole(unit);
        }
    }
    if align_by_uncore && !run.is_satisfied() {
        run.take_uncore_caches();
    }
    if sorting == Sorting::Packed && !run.is_satisfied() {
        run.take_whole(Unit::Core);
    }
    if !run.is_satisfied() {
        run.take_single(sorting);
    }
    if run.is_satisfied() { Ok(run.taken) } else { Err(TakeError::Failed) }
}

/// The state of a request in progress.
pub(super) struct Run<'t> {
    topology: &'t CpuTopology,
    /// Processors that are still free.
    pub(super) free: Cpus,
    needed: usize,
    taken: CpuSet,
}

impl<'t> Run<'t> {
    pub(super) fn new(
        topology: &'t CpuTopology,
        available: &CpuSet,
        requested: usize,
    ) -> Result<Run<'t>, TakeError> {
        let free = topology.cpus().only(available);
        if requested > free.len() {
            return Err(TakeError::NotEnough { requested, available: available.len() });
        }
        Ok(Run { topology, free, needed: requested, taken: CpuSet::new() })
    }

    pub(super) fn is_satisfied(&self) -> bool {
        self.needed == 0
    }

    /// Number of processors that are still needed.
    pub(super) fn needed(&self) -> usize {
        self.needed
    }

    pub(super) fn taken(self) -> CpuSet {
        self.taken
    }

    pub(super) fn take(&mut self, cpus: &CpuSet) {
        self.needed = self.needed.saturating_sub(cpus.len());
        self.free.remove(cpus);
        self.taken.extend(cpus.iter());
    }

    /// Takes each group that is wholly free and not larger than the request, in order.
    fn take_whole(&mut self, unit: Unit) {
        let (all, free) = (self.topology.cpus(), self.free.sizes(unit));
        let whole = |id: &u32| {
            let size = match unit {
                // Sockets and cores are compared with the machine's average.
                Unit::Socket => self.topology.cpus_per_socket(),
                Unit::Core => self.topology.cpus_per_core(),
                Unit::Node | Unit::Uncore => all.in_group(unit, *id).len(),
            };
            free.get(id) == Some(&size)
        };
        let whole: Vec<u32> = self.order(unit).into_iter().filter(whole).collect();
        for id in whole {
            let cpus = all.in_group(unit, id);
            // A socket that lies in several nodes is listed with each of them.
            if cpus.len() <= self.needed && cpus.iter().all(|cpu| self.free.get(cpu).is_some()) {
                self.take(&cpus);
            }
        }
    }

    /// `prefer-align-cpus-by-uncorecache`: whole caches, then a part of one.
    fn take_uncore_caches(&mut self) {
        for uncore in self.order(Unit::Uncore) {
            if self.needed >= self.topology.cpus_per_uncore() {
                self.take_whole(Unit::Uncore);
            }
            if !self.is_satisfied() {
                self.take_part_of(uncore);
            }
            if self.is_satisfied() {
                return;
            }
        }
    }

    /// Takes all needed processors from the lowest cores of one cache, or none.
    fn take_part_of(&mut self, uncore: u32) {
        let per_core = self.topology.cpus_per_core();
        if per_core == 0 {
            return;
        }
        let cores = self.free.ids_within(Unit::Core, Unit::Uncore, uncore);
        let cores = cores.into_iter().take(self.needed.div_ceil(per_core)).collect();
        let mut cpus = self.free.in_groups(Unit::Core, &cores);
        let odd = !self.needed.is_multiple_of(2);
        if odd && per_core > 1 && cpus.len() > self.needed {
            // Upstream drops one processor, the last: the other thread of the last core stays free.
            let keep = cpus.len() - 1;
            cpus = cpus.iter().take(keep).collect();
        }
        if cpus.len() == self.needed {
            self.take(&cpus);
        }
    }

    fn take_single(&mut self, sorting: Sorting) {
        let unit = match sorting {
            Sorting::Packed => Unit::Core,
            Sorting::Spread => Unit::Socket,
        };
        let groups = self.order(unit);
        let cpus: Vec<u32> = groups
            .into_iter()
            .flat_map(|id| self.free.in_group(unit, id).iter().collect::<Vec<_>>())
            .collect();
        for cpu in cpus {
            if self.is_satisfied() {
                return;
            }
            if self.free.get(cpu).is_some() {
                self.take(&CpuSet::from_iter([cpu]));
            }
        }
    }

    /// Groups that have a free processor, in the order in which they are used.
    pub(super) fn order(&self, unit: Unit) -> Vec<u32> {
        let numa_first = self.topology.sockets() >= self.topology.nodes();
        match (unit, numa_first) {
            (Unit::Node, true) | (Unit::Socket, false) => sorted(self.free.ids(unit), &self.free.sizes(unit)),
            (Unit::Socket, true) | (Unit::Uncore, _) => self.order_within(unit, Unit::Node),
            (Unit::Node, false) => self.order_within(unit, Unit::Socket),
            (Unit::Core, true) => self.order_within(unit, Unit::Socket),
            (Unit::Core, false) => self.order_within(unit, Unit::Node),
        }
    }

    /// Groups of the kind `unit`, by the order of the outer groups and then by their own order.
    fn order_within(&self, unit: Unit, outer: Unit) -> Vec<u32> {
        let sizes = self.free.sizes(unit);
        let inner = |id| sorted(self.free.ids_within(unit, outer, id), &sizes);
        self.order(outer).into_iter().flat_map(inner).collect()
    }
}

/// Ascending by free processors, then by id.
fn sorted(ids: impl IntoIterator<Item = u32>, sizes: &BTreeMap<u32, usize>) -> Vec<u32> {
    let mut ids: Vec<u32> = ids.into_iter().collect();
    ids.sort_by_key(|id| (sizes.get(id).copied().unwrap_or(0), *id));
    ids
}

#[cfg(test)]
pub(crate) mod tests;
