//! The static CPU policy: containers of Guaranteed pods that request whole processors get exclusive ones.
//!
//! In: pods to admit, containers that are gone. Out: processors of each container. Invariants: reserved processors are never exclusive;
//! only a new admission changes a container's processors; later containers of a pod may use the processors of its init containers, but
//! not those of its sidecars. A failure frees nothing: [`CpuManager::keep_only`] does so after the pod is not active any more.
//! Upstream: pkg/kubelet/cm/cpumanager/policy_static.go.

use std::collections::BTreeMap;

use super::accumulator::{Sorting, TakeError, take_packed};
use super::distribution::take_distributed;
use super::options::CpuOptions;
use super::state::CpuState;
use crate::cpu_set::CpuSet;
use crate::node_mask::NodeMask;
use crate::request::{ContainerRequest, Kind, PodRequest};
use crate::topology::{CpuTopology, Unit};

/// Reason for which a container gets no processors; the texts are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum AllocateError {
    /// `full-pcpus-only`, and the number is not one of whole cores.
    #[error("SMT Alignment Error: requested {requested} cpus not multiple cpus per core = {per_core}")]
    NotWholeCores {
        /// Requested number.
        requested: usize,
        /// Processors of a core.
        per_core: usize,
    },
    /// `full-pcpus-only`, and too few cores are free of reserved processors.
    #[error(
        "SMT Alignment Error: not enough free physical CPUs: available physical CPUs = {available}, \
         requested CPUs = {requested}, CPUs per core = {per_core}"
    )]
    TooFewCores {
        /// Processors of free cores.
        available: usize,
        /// Requested number.
        requested: usize,
        /// Processors of a core.
        per_core: usize,
    },
    /// Too few processors are free.
    #[error(transparent)]
    Take(#[from] TakeError),
}

/// The manager with its state.
#[derive(Clone, Debug)]
pub struct CpuManager {
    topology: CpuTopology,
    options: CpuOptions,
    reserved: CpuSet,
    /// All threads of the cores that hold a reserved processor.
    reserved_cores: CpuSet,
    state: CpuState,
    /// Processors of init containers of the pod that is being admitted.
    reusable: Option<(String, CpuSet)>,
}

impl CpuManager {
    /// `state` was validated ([`super::start`]).
    pub(super) fn with_state(
        topology: CpuTopology,
        options: CpuOptions,
        reserved: CpuSet,
        state: CpuState,
    ) -> CpuManager {
        let cores = topology.cpus().only(&reserved).ids(Unit::Core);
        let reserved_cores = topology.cpus().in_groups(Unit::Core, &cores);
        CpuManager { topology, options, reserved, reserved_cores, state, reusable: None }
    }

    /// The machine's processors.
    #[must_use]
    pub fn topology(&self) -> &CpuTopology {
        &self.topology
    }

    /// Options of the policy.
    #[must_use]
    pub fn options(&self) -> CpuOptions {
        self.options
    }

    /// Assignments.
    #[must_use]
    pub fn state(&self) -> &CpuState {
        &self.state
    }

    /// Processors that may ever be exclusive (podresources, GetAllocatableResources).
    #[must_use]
    pub fn allocatable(&self) -> CpuSet {
        self.topology.cpus().set().difference(&self.reserved)
    }

    /// Processors that may become exclusive now.
    #[must_use]
    pub fn available(&self) -> CpuSet {
        self.state.shared.difference(&self.reserved)
    }

    /// The processors on which a container runs: its own or the shared ones.
    #[must_use]
    pub fn cpus_of(&self, uid: &str, container: &str) -> &CpuSet {
        self.state.own(uid, container).unwrap_or(&self.state.shared)
    }

    /// Number of exclusive processors of each NUMA node that has any.
    #[must_use]
    pub fn exclusive_by_node(&self) -> BTreeMap<u32, usize> {
        self.topology
            .cpus()
            .only(&self.topology.cpus().set().difference(&self.state.shared))
            .sizes(Unit::Node)
    }

    /// True if the container has exclusive processors that all share one uncore cache.
    #[must_use]
    pub fn is_in_one_uncore(&self, uid: &str, container: &str) -> bool {
        let own = self.state.own(uid, container);
        own.is_some_and(|own| self.topology.cpus().only(own).ids(Unit::Uncore).len() == 1)
    }

    /// Processors of the pod's init containers that its later containers may have, during its admission.
    pub(crate) fn reusable(&self, uid: &str) -> CpuSet {
        self.reusable.as_ref().filter(|(of, _)| of == uid).map(|(_, cpus)| cpus.clone()).unwrap_or_default()
    }

    /// The admission of this pod goes on after others: its later containers may have these processors.
    pub(crate) fn reuse(&mut self, uid: &str, cpus: CpuSet) {
        self.reusable = Some((uid.to_owned(), cpus));
    }

    /// Gives a container its processors, on these NUMA nodes if that is possible. A container with exclusive processors keeps them.
    ///
    /// # Errors
    /// Too few processors are free, or the request cannot get whole cores.
    pub fn allocate(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        nodes: Option<NodeMask>,
    ) -> Result<(), AllocateError> {
        let requested = if pod.is_eligible() { container.whole_cpus() } else { 0 };
        if requested == 0 {
            return Ok(());
        }
        self.check_cores(requested)?;
        let own = self.state.own(&pod.uid, &container.name).cloned();
        let cpus = match own {
            Some(own) => own,
            None => {
                let cpus = self.choose(requested, nodes, &self.reusable(&pod.uid))?;
                self.state.assign(&pod.uid, &container.name, cpus.clone());
                cpus
            }
        };
        self.note_reuse(pod, container, &cpus);
        Ok(())
    }

    fn check_cores(&self, requested: usize) -> Result<(), AllocateError> {
        let per_core = self.topology.cpus_per_core();
        if !self.options.full_cores_only {
            return Ok(());
        }
        if !requested.is_multiple_of(per_core.max(1)) {
            return Err(AllocateError::NotWholeCores { requested, per_core });
        }
        // Reusable processors of the pod count as used, as upstream counts them.
        let available = self.state.shared.difference(&self.reserved_cores).len();
        if requested > available {
            return Err(AllocateError::TooFewCores { available, requested, per_core });
        }
        Ok(())
    }

    fn choose(
        &self,
        requested: usize,
        nodes: Option<NodeMask>,
        reusable: &CpuSet,
    ) -> Result<CpuSet, TakeError> {
        let candidates = self.available().union(reusable);
        let mut chosen = CpuSet::new();
        if let Some(nodes) = nodes {
            let aligned = candidates.intersection(&self.near(nodes));
            chosen = self.take(&aligned, requested.min(aligned.len()))?;
        }
        let rest = self.take(&candidates.difference(&chosen), requested - chosen.len())?;
        Ok(chosen.union(&rest))
    }

    /// Processors of these nodes, or of all of their sockets (`align-by-socket`).
    fn near(&self, nodes: NodeMask) -> CpuSet {
        let cpus = self.topology.cpus();
        let of_nodes = cpus.in_groups(Unit::Node, &nodes.nodes().collect());
        if self.options.align_by_socket {
            cpus.in_groups(Unit::Socket, &cpus.only(&of_nodes).ids(Unit::Socket))
        } else {
            of_nodes
        }
    }

    fn take(&self, from: &CpuSet, count: usize) -> Result<CpuSet, TakeError> {
        take(&self.topology, self.options, from, count)
    }

    /// Processors that later containers of the same pod may have.
    fn note_reuse(&mut self, pod: &PodRequest, container: &ContainerRequest, cpus: &CpuSet) {
        let reusable = self.reusable(&pod.uid);
        let reusable = match container.kind {
            Kind::Init => reusable.union(cpus),
            Kind::Sidecar | Kind::App => reusable.difference(cpus),
        };
        self.reusable = Some((pod.uid.clone(), reusable));
    }

    /// Gives the container these processors if they are free, or belong to containers of its pod.
    pub(super) fn keep(&mut self, uid: &str, container: &str, cpus: &CpuSet) {
        let of_pod = self.state.assignments.get(uid).into_iter().flat_map(BTreeMap::values);
        let may_have = of_pod.fold(self.available(), |all, own| all.union(own));
        if !cpus.is_empty() && cpus.is_subset(&may_have) {
            self.state.assign(uid, container, cpus.clone());
        }
    }

    /// Frees the processors of all containers that no active pod has. True if something changed.
    pub fn keep_only(&mut self, is_active: impl Fn(&str, &str) -> bool) -> bool {
        let all = self.state.assignments.iter();
        let gone =
            all.flat_map(|(uid, containers)| containers.keys().map(move |name| (uid.clone(), name.clone())));
        let gone: Vec<(String, String)> = gone.filter(|(uid, name)| !is_active(uid, name)).collect();
        for (uid, name) in &gone {
            self.state.release(uid, name);
        }
        !gone.is_empty()
    }
}

/// Takes processors according to the options.
pub(super) fn take(
    topology: &CpuTopology,
    options: CpuOptions,
    from: &CpuSet,
    count: usize,
) -> Result<CpuSet, TakeError> {
    let sorting = if options.distribute_across_cores { Sorting::Spread } else { Sorting::Packed };
    if options.distribute_across_nodes {
        let group = if options.full_cores_only { topology.cpus_per_core() } else { 1 };
        return take_distributed(topology, from, count, group, sorting);
    }
    take_packed(topology, from, count, sorting, options.align_by_uncore)
}

#[cfg(test)]
mod tests;
