//! The placement of a pod: hints of all managers are merged, then each gives its part.
//!
//! In: a pod that wants to be admitted. Out: assignments in the managers' states, or a refusal with upstream's reason and message.
//! Invariants: a pod that has its parts keeps them when it is placed again; a refusal leaves the assignments of earlier containers
//! until the pod is not active, as upstream. Upstream: pkg/kubelet/cm/topologymanager (`scope_*.go`), KEP-693.

use crate::cpus::manager::{self as cpus, CpuManager};
use crate::hints::merge::Nodes;
use crate::hints::policy::Policy;
use crate::hints::{Hint, Hints, lists};
use crate::memory::manager::MemoryManager;
use crate::request::{ContainerRequest, PodRequest};

/// `topologyManagerScope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each container for itself.
    Container,
    /// All containers on the same nodes.
    Pod,
}

/// The topology manager's configuration.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Topology {
    /// `topologyManagerPolicy` other than none.
    pub policy: Policy,
    /// `topologyManagerScope`.
    pub scope: Scope,
    /// NUMA nodes of the machine, those without processors included.
    pub nodes: Nodes,
}

impl Topology {
    fn judge(&self, hints: &[Vec<Hints>]) -> Result<Hint, Refusal> {
        let (hint, admitted) = self.policy.place(&self.nodes, &lists(hints));
        if admitted { Ok(hint) } else { Err(Refusal::Affinity) }
    }
}

/// Why a pod is refused; reason and message of its status are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The policy admits no placement.
    #[error("Resources cannot be allocated with Topology locality")]
    Affinity,
    /// `full-pcpus-only`.
    #[error("{0}")]
    SmtAlignment(String),
    /// A manager has not enough.
    #[error("Allocate failed due to {0}, which is unexpected")]
    Unexpected(String),
}

impl Refusal {
    /// The reason in the pod's status.
    #[must_use]
    pub fn reason(&self) -> &'static str {
        match self {
            Refusal::Affinity => "TopologyAffinityError",
            Refusal::SmtAlignment(_) => "SMTAlignmentError",
            Refusal::Unexpected(_) => "UnexpectedAdmissionError",
        }
    }
}

impl From<cpus::AllocateError> for Refusal {
    fn from(error: cpus::AllocateError) -> Refusal {
        match error {
            cpus::AllocateError::NotWholeCores { .. } | cpus::AllocateError::TooFewCores { .. } => {
                Refusal::SmtAlignment(error.to_string())
            }
            cpus::AllocateError::Take(error) => Refusal::Unexpected(error.to_string()),
        }
    }
}

/// All managers of a node.
#[derive(Clone, Debug, Default)]
pub struct Managers {
    /// `None`: topologyManagerPolicy none.
    pub topology: Option<Topology>,
    /// `None`: cpuManagerPolicy none.
    pub cpus: Option<CpuManager>,
    /// `None`: memoryManagerPolicy None.
    pub memory: Option<MemoryManager>,
}

impl Managers {
    /// Gives the pod's containers their parts.
    ///
    /// # Errors
    /// The pod is refused.
    pub fn place(&mut self, pod: &PodRequest) -> Result<(), Refusal> {
        let whole = match &self.topology {
            Some(topology) if topology.scope == Scope::Pod => Some(topology.judge(&self.pod_hints(pod))?),
            _ => None,
        };
        for container in &pod.containers {
            let hint = match (&self.topology, whole) {
                (_, Some(whole)) => whole,
                (Some(topology), None) => topology.judge(&self.container_hints(pod, container))?,
                (None, None) => Hint::NONE,
            };
            if let Some(cpus) = &mut self.cpus {
                cpus.allocate(pod, container, hint.nodes)?;
            }
            if let Some(memory) = &mut self.memory {
                let given = memory.allocate(pod, container, hint);
                given.map_err(|error| Refusal::Unexpected(error.to_string()))?;
            }
        }
        Ok(())
    }

    fn pod_hints(&self, pod: &PodRequest) -> Vec<Vec<Hints>> {
        let cpus = self.cpus.as_ref().map(|cpus| cpus.pod_hints(pod)).unwrap_or_default();
        let memory = self.memory.as_ref().map(|memory| memory.pod_hints(pod)).unwrap_or_default();
        vec![cpus, memory]
    }

    fn container_hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Vec<Vec<Hints>> {
        let cpus = self.cpus.as_ref().map(|cpus| cpus.container_hints(pod, container)).unwrap_or_default();
        let memory =
            self.memory.as_ref().map(|memory| memory.container_hints(pod, container)).unwrap_or_default();
        vec![cpus, memory]
    }

    /// Takes back all parts of containers that no active pod has. True if something changed.
    pub fn keep_only(&mut self, is_active: impl Fn(&str, &str) -> bool) -> bool {
        let cpus = self.cpus.as_mut().is_some_and(|cpus| cpus.keep_only(&is_active));
        let memory = self.memory.as_mut().is_some_and(|memory| memory.keep_only(&is_active));
        cpus || memory
    }
}
