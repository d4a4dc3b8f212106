//! Pods with exclusive processors and memory: a machine of two NUMA nodes, eight processors and static managers.
//!
//! In: random numbers of its own, so that other runs do not change. Out: the checkers of assignments. ALLOC-EXCL: no processor belongs
//! exclusively to two pods. ALLOC-CAP: a container has the requested number of processors, and no reserved one. ALLOC-DURABLE: the
//! assignment was on disk before its container was created. At rest no container without exclusive processors runs on an exclusive
//! one. Upstream: pkg/kubelet/cm/cpumanager, memorymanager.

use std::collections::{BTreeMap, BTreeSet};

use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use agent_core::resource_managers::{CPU_STATIC, MEMORY_STATIC, ManagerRecords, ResourceManagers};
use agent_managers::checkpoint;
use agent_managers::cpu_set::CpuSet;
use agent_managers::cpus::manager::CpuManager;
use agent_managers::cpus::options::CpuOptions;
use agent_managers::cpus::start::Reservation;
use agent_managers::cpus::state::CpuState;
use agent_managers::memory::manager::MemoryManager;
use agent_managers::memory::start::{MEMORY, NodeMemory};
use agent_managers::placement::Managers;
use agent_managers::topology::{Cpu, CpuTopology};
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, PodKey};
use agent_types::runtime::observed::ContainerState;
use serde_json::{Value, json};

use crate::defects::Defect;
use crate::rng::Rng;
use crate::world::World;

/// Number of processors that are not reserved.
const EXCLUSIVE: u32 = 7;
/// Number of processors of the machine.
const PROCESSORS: u32 = 8;
/// Most processors that a pod requests.
const PROCESSORS_OF_POD: u32 = 6;
/// Reason of a pod that is rejected because there are too few processors.
const REFUSED: &str = "UnexpectedAdmissionError";
const NODE_BYTES: u64 = 1 << 30;
const RESERVED_BYTES: u64 = 64 << 20;
const RESERVED_MILLI: u64 = 1000;

/// State of a run with static managers.
#[derive(Clone, Debug)]
pub(crate) struct Placing {
    rng: Rng,
    /// The state files.
    record: ManagerRecords,
    /// Processors of each instance, as the runtime has them.
    cpus: BTreeMap<ContainerId, CpuSet>,
    /// Instances that have exclusive processors.
    exclusive: BTreeSet<ContainerId>,
    /// Number of processors that static pods may still request. No record of a rejection survives the agent, so static pods request
    /// few enough that none is rejected.
    left_for_static: u32,
    /// A record could not be written, or its answer was lost: the agent continues without it, as upstream.
    unwritten: bool,
}

impl Placing {
    fn cpu_state(&self) -> CpuState {
        let record = self.record.cpus.as_ref();
        record.and_then(|text| checkpoint::cpus::read(CPU_STATIC, text).ok()).unwrap_or_default()
    }
}

/// Two sockets, each a NUMA node with two cores of two threads: thread `t` of core `c` is processor `4t + c`. A broken agent
/// counts more threads.
fn topology(processors: u32) -> CpuTopology {
    let cpu = |n: u32| {
        let core = n % 4;
        (n, Cpu { core, socket: core / 2, node: core / 2, uncore: core / 2 })
    };
    CpuTopology::new((0..processors).map(cpu).collect(), 2)
}

/// The managers that an agent starts from these files.
fn managers(record: &ManagerRecords, processors: u32) -> Managers {
    let cpus = record.cpus.as_ref().and_then(|text| checkpoint::cpus::read(CPU_STATIC, text).ok());
    let memory = record.memory.as_ref().and_then(|text| checkpoint::memory::read(MEMORY_STATIC, text).ok());
    let reservation = Reservation { milli: RESERVED_MILLI, cpus: CpuSet::new() };
    let amount = |bytes: u64| BTreeMap::from([(MEMORY.to_owned(), bytes)]);
    let nodes =
        (0..2).map(|id| (id, NodeMemory { total: NODE_BYTES, huge_pages: BTreeMap::new() })).collect();
    let reserved = BTreeMap::from([(0, amount(RESERVED_BYTES))]);
    Managers {
        cpus: CpuManager::start(topology(processors), CpuOptions::default(), &reservation, cpus).ok(),
        memory: MemoryManager::start(&nodes, &reserved, &amount(RESERVED_BYTES), memory).ok(),
        ..Managers::default()
    }
}

impl World {
    /// From now on the node has static managers, and pods request whole processors.
    pub fn place_pods(&mut self, seed: u64) {
        self.placing = Some(Box::new(Placing {
            rng: Rng::new(seed ^ 0x0CBA),
            record: ManagerRecords::default(),
            cpus: BTreeMap::new(),
            exclusive: BTreeSet::new(),
            left_for_static: if self.api.is_some() { 0 } else { EXCLUSIVE },
            unwritten: false,
        }));
    }

    /// The managers of a new agent.
    pub(crate) fn managers(&mut self) -> ResourceManagers {
        let Some(placing) = &mut self.placing else { return self.restore_devices(Managers::default()) };
        placing.unwritten = false;
        let more = if self.defect == Some(Defect::CountsTooMuch) { PROCESSORS } else { 0 };
        let managers = managers(&placing.record, PROCESSORS + more);
        if managers.cpus.is_none() || managers.memory.is_none() {
            self.checks.report("ALLOC-DURABLE", "the agent cannot start with the state on disk".to_owned());
        }
        self.restore_devices(managers)
    }

    /// Makes a new pod request processors and memory, if this run has managers.
    pub(crate) fn ask_for_processors(&mut self, pod: &mut Value, is_static: bool) {
        let Some(placing) = &mut self.placing else { return };
        // A pod has at most three containers and three init containers, each with exclusive processors.
        if !placing.rng.chance(600) || (is_static && placing.left_for_static < PROCESSORS_OF_POD) {
            return;
        }
        if is_static {
            placing.left_for_static -= PROCESSORS_OF_POD;
        }
        for list in ["/spec/containers", "/spec/initContainers"] {
            for container in pod.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let cpu = if placing.rng.chance(600) { "1" } else { "500m" };
                let memory = format!("{}Mi", placing.rng.between(8, 64));
                let amounts = json!({"cpu": cpu, "memory": memory});
                container["resources"] = json!({"requests": amounts, "limits": amounts});
            }
        }
    }

    pub(crate) fn managers_written(&mut self, news: &ManagerRecords) {
        let Some(placing) = &mut self.placing else { return };
        let ManagerRecords { cpus, memory } = news.clone();
        placing.record.cpus = cpus.or_else(|| placing.record.cpus.take());
        placing.record.memory = memory.or_else(|| placing.record.memory.take());
    }

    /// A record was not written, or the agent does not know that it was.
    pub(crate) fn managers_unwritten(&mut self) {
        if let Some(placing) = &mut self.placing {
            placing.unwritten = true;
        }
    }

    /// A container was created.
    pub(crate) fn placed(&mut self, key: &PodKey, effect: &Effect, result: &EffectResult) {
        let (Some(placing), Effect::CreateContainer { config, .. }, Ok(EffectOk::Container(id))) =
            (&mut self.placing, effect, result)
        else {
            return;
        };
        if placing.cpus.contains_key(id) {
            return;
        }
        let Ok(cpus) = config.resources.cpuset_cpus.parse::<CpuSet>() else { return };
        placing.cpus.insert(id.clone(), cpus.clone());
        let resources = &config.resources;
        let (unwritten, state) = (placing.unwritten, placing.cpu_state());
        let text = |why: &str| format!("{} of {key} is created on {cpus}: {why}", config.name);
        if cpus.is_empty() {
            return self.checks.report("ALLOC-CAP", text("no processor"));
        }
        if cpus.iter().any(|cpu| cpu >= PROCESSORS) {
            self.checks.report("ALLOC-CAP", text("the machine does not have all of them"));
        }
        // A container with exclusive processors has no quota; its shares give their number.
        if resources.cpu_quota_us >= 0 {
            return;
        }
        placing.exclusive.insert(id.clone());
        let wanted = resources.cpu_shares / 1024;
        if i64::try_from(cpus.len()).ok() != Some(wanted) || cpus.contains(0) {
            self.checks.report("ALLOC-CAP", text(&format!("it asked for {wanted}, and 0 is reserved")));
        }
        if !unwritten && state.own(key.uid.as_str(), &config.name) != Some(&cpus) {
            self.checks.report("ALLOC-DURABLE", text(&format!("not on disk: {state:?}")));
        }
    }

    /// Moves running containers to other processors. A broken agent moves none.
    pub(crate) fn set_cpus(&mut self, cpus: &BTreeMap<ContainerId, String>) -> EffectResult {
        if self.defect == Some(Defect::MovesNoContainer) {
            return Ok(EffectOk::Done);
        }
        for (id, text) in cpus {
            let runs = self.runtime.containers.get(id).map(|c| c.observed.state);
            let text = if self.defect == Some(Defect::MovesAllToOne) { "1" } else { text.as_str() };
            let Ok(set) = text.parse::<CpuSet>() else {
                return Err(EffectError { class: Class::Invalid, message: format!("{text:?} is no cpuset") });
            };
            if runs == Some(ContainerState::Running)
                && let Some(placing) = &mut self.placing
            {
                placing.cpus.insert(id.clone(), set);
            }
        }
        Ok(EffectOk::Done)
    }

    fn running_on(&self) -> Vec<(&ContainerId, &PodKey, &CpuSet, bool)> {
        let Some(placing) = &self.placing else { return Vec::new() };
        let mut all = Vec::new();
        for (id, cpus) in &placing.cpus {
            let found = self.runtime.containers.get(id);
            if let Some(c) = found.filter(|c| c.observed.state == ContainerState::Running) {
                all.push((id, &c.pod, cpus, placing.exclusive.contains(id)));
            }
        }
        all
    }

    /// Checks ALLOC-EXCL after each event.
    pub(crate) fn look_at_processors(&mut self) {
        let mut owners: BTreeMap<u32, (&ContainerId, &PodKey)> = BTreeMap::new();
        let mut twice = None;
        for (id, key, cpus, _) in self.running_on().into_iter().filter(|(.., exclusive)| *exclusive) {
            for cpu in cpus.iter() {
                if let Some((other, of)) = owners.insert(cpu, (id, key))
                    && of.uid != key.uid
                {
                    twice = Some(format!("processor {cpu} belongs to {id} of {key} and to {other} of {of}"));
                }
            }
        }
        if let Some(text) = twice {
            self.checks.report("ALLOC-EXCL", text);
        }
    }

    /// Long after all faults have healed: containers without exclusive processors that do not run on the shared ones.
    pub(crate) fn misplaced(&self) -> Vec<String> {
        let Some(placing) = &self.placing else { return Vec::new() };
        let shared = placing.cpu_state().shared;
        if placing.record.cpus.is_none() {
            return Vec::new();
        }
        let wrong = |(id, key, cpus, exclusive): (&ContainerId, &PodKey, &CpuSet, bool)| {
            (!exclusive && *cpus != shared)
                .then(|| format!("{id} of {key} is on {cpus}, shared are {shared}"))
        };
        self.running_on().into_iter().filter_map(wrong).collect()
    }

    /// True if the pod may have been rejected because other pods have the processors.
    pub(crate) fn may_be_refused(&self, reason: Option<&str>) -> bool {
        self.placing.is_some() && reason == Some(REFUSED)
    }
}
