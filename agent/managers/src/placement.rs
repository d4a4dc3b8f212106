//! The placement of a pod: the hints of all managers are merged, then each manager assigns its resources.
//!
//! In: a pod in admission. Out: assignments in the managers' states, or a refusal with upstream's reason and message.
//! Invariants: a pod that is placed again keeps its resources; other pods that are placed while a pod waits for a device plugin take
//! nothing of it, nor its right to use the parts of its init containers again; after a refusal the assignments of earlier containers stay
//! until the pod is not active, as upstream. Upstream: pkg/kubelet/cm/topologymanager (`scope_*.go`), KEP-693.

use std::collections::{BTreeMap, BTreeSet};

use crate::counts::{Alignment, Counts};
use crate::cpu_set::CpuSet;
use crate::cpus::manager::{self as cpus, CpuManager};
use crate::devices::allocation::{AllocateQuestion, AllocationStep};
use crate::devices::choice::PreferredQuestion;
use crate::devices::manager::DeviceManager;
use crate::hints::merge::Nodes;
use crate::hints::policy::Policy;
use crate::hints::{Hint, Hints, lists};
use crate::memory::manager::{MemoryManager, Reusable};
use crate::request::{ContainerRequest, PodRequest};

/// `topologyManagerScope`.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Scope {
    /// Each container has its own placement.
    Container,
    /// All containers are on the same nodes.
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

/// Reason for which a pod is refused; reason and message of its status are upstream's.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Refusal {
    /// The policy admits no placement.
    #[error("Resources cannot be allocated with Topology locality")]
    Affinity,
    /// `full-pcpus-only`.
    #[error("{0}")]
    SmtAlignment(String),
    /// A manager has too few resources.
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
    /// Devices of plugins.
    pub devices: DeviceManager,
    /// Counters of placements.
    pub counts: Counts,
    /// Placements that are not finished, by pod.
    pub unfinished: BTreeMap<String, UnfinishedPlacement>,
}

/// The caller's next step for a pod's placement.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum PlaceStep {
    /// Ask the plugin, then call [`Managers::answered`] with [`DeviceManager::preferred`].
    AskPreferred(PreferredQuestion),
    /// Ask the plugin, then call [`Managers::answered`] with [`DeviceManager::allocated`].
    AskAllocate(AllocateQuestion),
    /// Write the device manager's checkpoint, then call [`Managers::answered`] with [`DeviceManager::written`].
    WriteCheckpoint,
    /// All containers have their resources.
    Placed,
    /// The pod is refused.
    Refused(Refusal),
}

/// A placement that waits for a device plugin, or for the device manager's checkpoint.
#[derive(Clone, Debug)]
pub struct UnfinishedPlacement {
    pod: PodRequest,
    /// Containers that ran when the agent started.
    runs_already: BTreeSet<String>,
    /// The hint of scope `pod`.
    whole: Option<Hint>,
    /// The hint of the container at `next`.
    hint: Hint,
    /// Index of the container whose devices are being allocated.
    next: usize,
    /// Parts of its init containers that later containers may have.
    reusable: ReusableParts,
}

/// Processors and memory of a pod's init containers that its later containers may have. Each manager knows those of the last pod only,
/// as upstream, where no other pod is placed while a pod waits.
#[derive(Clone, Debug, Default)]
struct ReusableParts {
    cpus: CpuSet,
    memory: Reusable,
}

impl Managers {
    /// Assigns resources to the pod's containers, without questions to plugins: a pod that waits for a plugin counts as placed. For
    /// checks, and for nodes without device plugins.
    ///
    /// # Errors
    /// The pod is refused.
    pub fn place(&mut self, pod: &PodRequest) -> Result<(), Refusal> {
        match self.begin(pod.clone(), BTreeSet::new()) {
            PlaceStep::Refused(refusal) => Err(refusal),
            _ => Ok(()),
        }
    }

    /// Starts to assign resources to the pod's containers. `runs_already` names the containers that ran when the agent started.
    pub fn begin(&mut self, pod: PodRequest, runs_already: BTreeSet<String>) -> PlaceStep {
        let uid = pod.uid.clone();
        self.devices.forget_reusable(&uid);
        let whole = match self.whole_hint(&pod) {
            Ok(whole) => whole,
            Err(refusal) => return self.over(&uid, Err(refusal)),
        };
        let reusable = ReusableParts::default();
        let mut placing =
            UnfinishedPlacement { pod, runs_already, whole, hint: Hint::NONE, next: 0, reusable };
        match self.begin_next(&mut placing) {
            Ok(Some(step)) => self.go_on(placing, step),
            Ok(None) => self.over(&uid, Ok(())),
            Err(refusal) => self.over(&uid, Err(refusal)),
        }
    }

    /// Continues the placement after the device manager got the answer for which the pod waits; `None`: the pod waits for none.
    pub fn answered(
        &mut self,
        uid: &str,
        answer: impl FnOnce(&mut DeviceManager) -> AllocationStep,
    ) -> Option<PlaceStep> {
        let mut placing = self.unfinished.remove(uid)?;
        self.resume(uid, std::mem::take(&mut placing.reusable));
        let step = answer(&mut self.devices);
        Some(self.go_on(placing, step))
    }

    /// Begins to allocate the devices that a container of an admitted pod lacks when it is about to be created. The merged hint is
    /// computed again: that of the admission knew nothing of these devices. It refuses nothing, as upstream. Steps are answered with
    /// [`Managers::answered_at_start`].
    pub fn begin_at_start(&mut self, pod: &PodRequest, container: &str) -> AllocationStep {
        let Some(container) = pod.container(container) else { return AllocationStep::Done };
        let nodes = self.hint_at_start(pod, container).nodes;
        let step = self.devices.begin(&pod.uid, container, nodes, false);
        self.after_step_at_start(&pod.uid, step)
    }

    /// The device manager got the answer that the start of a container waits for.
    pub fn answered_at_start(
        &mut self,
        uid: &str,
        answer: impl FnOnce(&mut DeviceManager) -> AllocationStep,
    ) -> AllocationStep {
        let step = answer(&mut self.devices);
        self.after_step_at_start(uid, step)
    }

    fn hint_at_start(&self, pod: &PodRequest, container: &ContainerRequest) -> Hint {
        let Some(topology) = &self.topology else { return Hint::NONE };
        let hints = match topology.scope {
            Scope::Pod => self.pod_hints(pod),
            Scope::Container => self.container_hints(pod, container),
        };
        topology.policy.place(&topology.nodes, &lists(&hints)).0
    }

    /// Devices are used again during the pod's admission only.
    fn after_step_at_start(&mut self, uid: &str, step: AllocationStep) -> AllocationStep {
        if step == AllocationStep::Done {
            self.devices.forget_reusable(uid);
        }
        step
    }

    /// Frees all resources of the pod, and drops its unfinished placement.
    pub fn take_back(&mut self, uid: &str) {
        self.unfinished.remove(uid);
        self.devices.give_up(uid);
        self.devices.forget_reusable(uid);
        self.keep_only(|other, _| other != uid);
    }

    fn over(&mut self, uid: &str, placed: Result<(), Refusal>) -> PlaceStep {
        self.devices.forget_reusable(uid);
        self.counts.admissions.count(placed != Err(Refusal::Affinity));
        match placed {
            Ok(()) => PlaceStep::Placed,
            Err(refusal) => PlaceStep::Refused(refusal),
        }
    }

    /// The hint for the pod as a whole, with scope `pod`.
    fn whole_hint(&mut self, pod: &PodRequest) -> Result<Option<Hint>, Refusal> {
        let Some(topology) = self.topology.as_ref().filter(|of| of.scope == Scope::Pod) else {
            return Ok(None);
        };
        let judged = topology.judge(&self.pod_hints(pod));
        self.count_node(Alignment::PodNumaNode, judged.is_ok());
        judged.map(Some)
    }

    fn container_hint(
        &mut self,
        placing: &UnfinishedPlacement,
        container: &ContainerRequest,
    ) -> Result<Hint, Refusal> {
        match (&self.topology, placing.whole) {
            (_, Some(whole)) => Ok(whole),
            (Some(topology), None) => {
                let judged = topology.judge(&self.container_hints(&placing.pod, container));
                self.count_node(Alignment::ContainerNumaNode, judged.is_ok());
                judged
            }
            (None, None) => Ok(Hint::NONE),
        }
    }

    /// Starts the allocation of the next container's devices; `None`: all containers have their resources.
    fn begin_next(&mut self, placing: &mut UnfinishedPlacement) -> Result<Option<AllocationStep>, Refusal> {
        let Some(container) = placing.pod.containers.get(placing.next).cloned() else { return Ok(None) };
        placing.hint = self.container_hint(placing, &container)?;
        let runs_already = placing.runs_already.contains(&container.name);
        Ok(Some(self.devices.begin(&placing.pod.uid, &container, placing.hint.nodes, runs_already)))
    }

    /// Serves container after container until a plugin must be asked. `step` is the step of the next container's devices.
    fn go_on(&mut self, mut placing: UnfinishedPlacement, mut step: AllocationStep) -> PlaceStep {
        loop {
            let waits_for = match step {
                AllocationStep::AskPreferred(question) => PlaceStep::AskPreferred(question),
                AllocationStep::AskAllocate(question) => PlaceStep::AskAllocate(question),
                AllocationStep::WriteCheckpoint => PlaceStep::WriteCheckpoint,
                AllocationStep::Refused(message) => {
                    return self.over(&placing.pod.uid, Err(Refusal::Unexpected(message)));
                }
                AllocationStep::Done => {
                    let given = self.give_container(&placing);
                    placing.next += 1;
                    match given.and_then(|()| self.begin_next(&mut placing)) {
                        Ok(Some(next)) => step = next,
                        Ok(None) => return self.over(&placing.pod.uid, Ok(())),
                        Err(refusal) => return self.over(&placing.pod.uid, Err(refusal)),
                    }
                    continue;
                }
            };
            placing.reusable = self.reusable(&placing.pod.uid);
            self.unfinished.insert(placing.pod.uid.clone(), placing);
            return waits_for;
        }
    }

    fn reusable(&self, uid: &str) -> ReusableParts {
        let cpus = self.cpus.as_ref().map(|cpus| cpus.reusable(uid)).unwrap_or_default();
        let memory = self.memory.as_ref().map(|memory| memory.all_reusable(uid)).unwrap_or_default();
        ReusableParts { cpus, memory }
    }

    /// The placement of this pod goes on: other pods may have been placed meanwhile.
    fn resume(&mut self, uid: &str, reusable: ReusableParts) {
        if let Some(cpus) = &mut self.cpus {
            cpus.reuse(uid, reusable.cpus);
        }
        if let Some(memory) = &mut self.memory {
            memory.reuse(reusable.memory);
        }
    }

    /// Assigns processors and memory to the next container.
    fn give_container(&mut self, placing: &UnfinishedPlacement) -> Result<(), Refusal> {
        let Some(container) = placing.pod.containers.get(placing.next) else { return Ok(()) };
        self.give_cpus(&placing.pod, container, placing.hint)?;
        self.give_memory(&placing.pod, container, placing.hint)
    }

    /// Counts an alignment to one node, which only `single-numa-node` promises.
    fn count_node(&mut self, kind: Alignment, admitted: bool) {
        if self.topology.as_ref().is_some_and(|topology| topology.policy == Policy::SingleNumaNode) {
            self.counts.aligned(kind, admitted);
        }
    }

    fn give_cpus(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        hint: Hint,
    ) -> Result<(), Refusal> {
        let Some(cpus) = &mut self.cpus else { return Ok(()) };
        if !pod.is_eligible() || container.whole_cpus() == 0 {
            return Ok(());
        }
        let had = cpus.state().own(&pod.uid, &container.name).is_some();
        let given = cpus.allocate(pod, container, hint.nodes);
        self.counts.cpus.count(given.is_ok());
        if cpus.options().full_cores_only {
            self.counts.aligned(Alignment::PhysicalCpu, given.is_ok());
        }
        if !had && given.is_ok() && cpus.is_in_one_uncore(&pod.uid, &container.name) {
            self.counts.aligned(Alignment::UncoreCache, true);
        }
        Ok(given?)
    }

    fn give_memory(
        &mut self,
        pod: &PodRequest,
        container: &ContainerRequest,
        hint: Hint,
    ) -> Result<(), Refusal> {
        let Some(memory) = &mut self.memory else { return Ok(()) };
        if !pod.is_eligible() {
            return Ok(());
        }
        let given = memory.allocate(pod, container, hint);
        self.counts.memory.count(given.is_ok());
        given.map_err(|error| Refusal::Unexpected(error.to_string()))
    }

    fn pod_hints(&self, pod: &PodRequest) -> Vec<Vec<Hints>> {
        let cpus = self.cpus.as_ref().map(|cpus| cpus.pod_hints(pod)).unwrap_or_default();
        let memory = self.memory.as_ref().map(|memory| memory.pod_hints(pod)).unwrap_or_default();
        vec![self.devices.pod_hints(pod), cpus, memory]
    }

    fn container_hints(&self, pod: &PodRequest, container: &ContainerRequest) -> Vec<Vec<Hints>> {
        let cpus = self.cpus.as_ref().map(|cpus| cpus.container_hints(pod, container)).unwrap_or_default();
        let memory =
            self.memory.as_ref().map(|memory| memory.container_hints(pod, container)).unwrap_or_default();
        vec![self.devices.container_hints(pod, container), cpus, memory]
    }

    /// Frees the processors and memory of containers that no active pod has, and the devices of pods that are not active
    /// (`is_active` without a container). True if something changed.
    pub fn keep_only(&mut self, is_active: impl Fn(&str, Option<&str>) -> bool) -> bool {
        let of_container = |uid: &str, name: &str| is_active(uid, Some(name));
        let devices = self.devices.keep_only(|uid| is_active(uid, None));
        let cpus = self.cpus.as_mut().is_some_and(|cpus| cpus.keep_only(of_container));
        let memory = self.memory.as_mut().is_some_and(|memory| memory.keep_only(of_container));
        cpus || memory || devices
    }
}

#[cfg(test)]
mod tests;
