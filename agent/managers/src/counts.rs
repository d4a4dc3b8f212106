//! Counters of the managers' decisions, for upstream's metrics.
//!
//! In: outcomes of placements. Out: totals since the start of the agent. Upstream: `kubelet_cpu_manager_pinning_*`,
//! `kubelet_memory_manager_pinning_*`, `kubelet_topology_manager_admission_*`, `kubelet_container_aligned_compute_resources_*`
//! of pkg/kubelet/metrics.

use std::collections::BTreeMap;

/// A kind of alignment: upstream's labels `scope` and `boundary`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Alignment {
    /// A container has whole cores (`full-pcpus-only`).
    PhysicalCpu,
    /// A container's processors share one uncore cache.
    UncoreCache,
    /// A container is on one NUMA node (`single-numa-node`).
    ContainerNumaNode,
    /// A pod is on one NUMA node (`single-numa-node`, scope pod).
    PodNumaNode,
}

impl Alignment {
    /// Labels `scope` and `boundary`.
    #[must_use]
    pub fn labels(self) -> (&'static str, &'static str) {
        match self {
            Alignment::PhysicalCpu => ("container", "physical_cpu"),
            Alignment::UncoreCache => ("container", "uncore_cache"),
            Alignment::ContainerNumaNode => ("container", "numa_node"),
            Alignment::PodNumaNode => ("pod", "numa_node"),
        }
    }
}

/// Attempts and failures.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempts {
    /// Number of attempts.
    pub all: u64,
    /// Number of failures.
    pub failed: u64,
}

impl Attempts {
    pub(crate) fn count(&mut self, succeeded: bool) {
        self.all += 1;
        self.failed += u64::from(!succeeded);
    }
}

/// The counters.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Counts {
    /// Admissions through the topology manager with any policy; failures are refusals because of topology.
    pub admissions: Attempts,
    /// Assignments of exclusive processors to containers.
    pub cpus: Attempts,
    /// Assignments of memory to containers of Guaranteed pods.
    pub memory: Attempts,
    /// Placements by kind of alignment: number of aligned ones, number of others.
    pub alignments: BTreeMap<Alignment, (u64, u64)>,
}

impl Counts {
    /// Kinds of alignment that appear with zero from the start.
    pub fn expect(&mut self, kinds: impl IntoIterator<Item = Alignment>) {
        for kind in kinds {
            self.alignments.entry(kind).or_default();
        }
    }

    pub(crate) fn aligned(&mut self, kind: Alignment, has_it: bool) {
        let (aligned, not) = self.alignments.entry(kind).or_default();
        if has_it { *aligned += 1 } else { *not += 1 }
    }
}
