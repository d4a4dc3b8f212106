//! Resizes of pods in the simulated world: users request other resources, in steps so large that not all fit.
//!
//! In: random numbers of its own, so that runs without resizes do not change. Out: changed pods in the API, and the
//! input of the checkers ALLOC-CAP, ALLOC-DURABLE and RESIZE-TOLD: resources of running containers, resources on disk
//! before that, and resources in statuses. New pods always fit: the large steps leave more than all new pods request.
//! Upstream: the subresource `resize`.

use std::collections::BTreeMap;

use agent_core::allocation::Allocations;
use agent_core::allocation::actuate::ActuateStep;
use agent_core::pod_worker::effect::{EffectError, EffectOk, EffectResult};
use agent_core::status::{PENDING_RESIZE, PROGRESS_OF_RESIZE};
use agent_types::api::ObjectName;
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, PodKey, PodUid};
use agent_types::resources::amounts::Amounts;
use agent_types::runtime::observed::{ContainerState, PodSnapshot};
use agent_types::{Quantity, pod};
use k8s_openapi::api::core::v1::{Pod, PodCondition, ResourceRequirements};
use serde_json::{Value, json};

use crate::calls::Call;
use crate::defects::Defect;
use crate::fake_api::Resource;
use crate::fake_api::resource::text;
use crate::rng::Rng;
use crate::world::World;

/// Large requests are multiples of this, thousandths of a core.
const UNIT: i64 = 7_000;
/// Allocatable processor time, thousandths of a core: the largest request never fits, and new pods always fit.
const CAPACITY: i64 = 15 * UNIT - 100;

/// State of a run with resizes.
#[derive(Clone, Debug)]
pub(crate) struct Resizing {
    rng: Rng,
    /// Resources of each instance.
    has: BTreeMap<ContainerId, Amounts>,
    /// Processor time of pods with pod-level resources, thousandths of a core.
    pod_has: BTreeMap<PodUid, i64>,
    /// All allocations that were ever on disk, of a container or of the pod itself (`None`).
    written: BTreeMap<(PodUid, Option<String>), Vec<Amounts>>,
}

fn amounts(resources: &ResourceRequirements) -> Amounts {
    Amounts::of(Some(resources))
}

fn milli(resources: &ResourceRequirements) -> i64 {
    amounts(resources).cpu_request_milli
}

/// A request for processor time and, if `memory`, a random memory limit.
fn resources(rng: &mut Rng, cpu: &str, memory: bool) -> Value {
    let mut wanted = json!({"requests": {"cpu": cpu}});
    if memory {
        let memory = format!("{}Mi", rng.between(10, 60));
        wanted["requests"]["memory"] = memory.clone().into();
        wanted["limits"] = json!({ "memory": memory });
    }
    wanted
}

impl Resizing {
    fn write(&mut self, uid: &PodUid, name: Option<&str>, amounts: Amounts) {
        let written = self.written.entry((uid.clone(), name.map(str::to_owned))).or_default();
        if !written.contains(&amounts) {
            written.push(amounts);
        }
    }
}

impl World {
    /// From now on pods request resources, and other resources while they run.
    pub fn resize_pods(&mut self, seed: u64) {
        let rng = Rng::new(seed ^ 0xA110C);
        let (has, pod_has, written) = Default::default();
        self.resizing = Some(Box::new(Resizing { rng, has, pod_has, written }));
    }

    /// Allocatable resources; a broken agent does not know them.
    pub(crate) fn allocatable(&self) -> BTreeMap<String, Quantity> {
        let knows = self.resizing.is_some() && self.defect != Some(Defect::GivesTooMuch);
        knows.then(|| ("cpu".to_owned(), Quantity::from_milli(CAPACITY))).into_iter().collect()
    }

    /// Gives requests and limits to the containers of a pod, if this run has them.
    pub(crate) fn give_amounts(&mut self, pod: &mut Value) {
        let Some(resizing) = &mut self.resizing else { return };
        let never = text(pod, "/spec/restartPolicy") == "Never";
        let memory = resizing.rng.chance(500);
        for list in ["/spec/containers", "/spec/initContainers"] {
            for container in pod.pointer_mut(list).and_then(Value::as_array_mut).into_iter().flatten() {
                let cpu = format!("{}m", resizing.rng.between(3, 30));
                container["resources"] = resources(&mut resizing.rng, &cpu, memory);
                if !never && list == "/spec/containers" && resizing.rng.chance(300) {
                    container["resizePolicy"] =
                        json!([{"resourceName": "cpu", "restartPolicy": "RestartContainer"}]);
                }
            }
        }
        if resizing.rng.chance(250) {
            let cpu = format!("{}m", resizing.rng.between(100, 200));
            pod["spec"]["resources"] = json!({"requests": {"cpu": cpu}});
        }
    }

    /// A user may resize one of the pods.
    pub(crate) fn somebody_resizes(&mut self) {
        let pods = self.runnable_api_pods();
        let Some(resizing) = &mut self.resizing else { return };
        let rng = &mut resizing.rng;
        for one in pods.iter().filter(|p| p.metadata.deletion_timestamp.is_none()) {
            if !rng.chance(400) {
                continue;
            }
            let cpu = |rng: &mut Rng| match rng.below(14) {
                0..=3 => format!("{}m", rng.between(3, 30)),
                units => format!("{}m", i64::try_from(units).unwrap_or(4).saturating_sub(3) * UNIT),
            };
            if pod::spec(one).resources.is_some() && rng.chance(700) {
                let Ok(shown) = serde_json::to_value(one) else { continue };
                let patch = json!({"spec": {"resources": {"requests": {"cpu": cpu(rng)}}}});
                self.disturb();
                self.patch(&shown, patch);
                return;
            }
            let mut containers = Vec::new();
            for c in pod::containers(one) {
                let limited = c.resources.as_ref().is_some_and(|r| amounts(r).memory_limit > 0);
                let (cpu, memory) = (cpu(rng), limited && rng.chance(700));
                containers.push(json!({"name": c.name, "resources": resources(rng, &cpu, memory)}));
            }
            let Ok(shown) = serde_json::to_value(one) else { continue };
            let patch = json!({ "spec": { "containers": containers } });
            self.disturb();
            self.patch(&shown, patch);
            return;
        }
    }

    /// Adds the remembered resources of the pod's containers to a snapshot.
    pub(crate) fn remember_amounts(&self, snapshot: &mut PodSnapshot) {
        let Some(pod) = self.disk.actuated.get(&snapshot.pod.uid) else { return };
        snapshot.actuated = pod.recall(&mut snapshot.containers);
    }

    /// The agent records the resources that a container, or the pod itself, has or is about to get.
    pub(crate) fn actuate(&mut self, key: &PodKey, name: Option<&str>, resources: &ResourceRequirements) {
        if milli(resources) == 0 {
            return;
        }
        let pod = self.disk.actuated.entry(key.uid.clone()).or_default();
        match name {
            Some(name) => drop(pod.containers.insert(name.to_owned(), resources.clone())),
            None => {
                pod.pod = Some(resources.clone());
                if let Some(resizing) = &mut self.resizing {
                    resizing.pod_has.insert(key.uid.clone(), milli(resources));
                }
            }
        }
    }

    /// A container was created with these resources.
    pub(crate) fn made_with(&mut self, result: &EffectResult, resources: &ResourceRequirements) {
        if let (Some(resizing), Ok(EffectOk::Container(id))) = (&mut self.resizing, result) {
            resizing.has.entry(id.clone()).or_insert_with(|| amounts(resources));
        }
    }

    /// The allocations are on disk.
    pub(crate) fn allocations_written(&mut self, all: &Allocations) {
        self.disk.allocated = all.clone();
        let Some(resizing) = &mut self.resizing else { return };
        for (uid, pod) in all {
            for (name, resources) in &pod.containers {
                resizing.write(uid, Some(name), amounts(resources));
            }
            if let Some(own) = &pod.pod {
                resizing.write(uid, None, amounts(own));
            }
        }
    }

    /// Carries out the steps of a resize. The agent may die between any two steps.
    pub(crate) fn resize(&mut self, key: &PodKey, steps: &[ActuateStep], call: &Call) -> EffectResult {
        for step in steps {
            if call.incarnation != self.incarnation {
                break;
            }
            if let (ActuateStep::CheckMemory { .. }, Some(resizing)) = (step, &mut self.resizing)
                && self.faults.error_before_apply > 0
                && resizing.rng.chance(300)
            {
                let message = "cannot decrease memory limits: they are in use".to_owned();
                return Err(EffectError { class: Class::Conflict, message });
            }
            if let ActuateStep::PodCgroup(cgroup) = step {
                self.set_cgroup(key, cgroup);
            }
            if let ActuateStep::PodLevel { record } = step {
                self.was_written(key, None, None, record);
                self.actuate(key, None, record);
            }
            let ActuateStep::Container { id, name, record, .. } = step else { continue };
            let runs = self.runtime.containers.get(id).map(|c| c.observed.state);
            if runs != Some(ContainerState::Running) {
                let message = format!("container {id} is not running");
                return Err(EffectError { class: Class::NotFound, message });
            }
            let had = self.resizing.as_ref().and_then(|resizing| resizing.has.get(id).copied());
            self.was_written(key, Some(name), had, record);
            let Some(resizing) = &mut self.resizing else { continue };
            resizing.has.insert(id.clone(), amounts(record));
            if self.rng.chance(self.faults.crash_before_ack) {
                self.crash();
                break;
            }
            self.actuate(key, Some(name), record);
        }
        Ok(EffectOk::Done)
    }

    /// ALLOC-DURABLE: an allocation is on disk before a container gets it. `had`: what the container has so far, if it is one.
    fn was_written(
        &mut self,
        key: &PodKey,
        name: Option<&str>,
        had: Option<Amounts>,
        record: &ResourceRequirements,
    ) {
        let Some(resizing) = &self.resizing else { return };
        let now = amounts(record);
        let all = resizing.written.get(&(key.uid.clone(), name.map(str::to_owned)));
        let was = |is_it: &dyn Fn(&Amounts) -> bool| all.is_some_and(|all| all.iter().any(is_it));
        // A resize changes memory before processor time: a container may have the last written memory, and not yet the last written
        // processor time. It keeps its own until then, which was never on disk if the first record of a new pod failed: such a pod starts
        // all the same.
        let cpu = |a: &Amounts| a.cpu_request_milli == now.cpu_request_milli;
        let memory =
            |a: &Amounts| (a.memory_request, a.memory_limit) == (now.memory_request, now.memory_limit);
        if !(was(&cpu) || had.as_ref().is_some_and(cpu)) || !was(&memory) {
            let whose = name.unwrap_or("the whole");
            let text = format!("{whose} of {key} is given {now:?}, which was never on disk");
            self.checks.report("ALLOC-DURABLE", text);
        }
    }

    /// ALLOC-CAP: running containers do not have more than the allocatable resources. CGROUP-MATCH: no running container has a
    /// higher memory limit than its pod's cgroup.
    pub(crate) fn look_at_amounts(&mut self) {
        let Some(resizing) = &self.resizing else { return };
        let runs = |id: &ContainerId| {
            let c = self.runtime.containers.get(id);
            c.is_some_and(|c| c.observed.state == ContainerState::Running)
        };
        let mut pods: BTreeMap<&PodUid, i64> = BTreeMap::new();
        let mut above = None;
        for (id, has) in resizing.has.iter().filter(|(id, _)| runs(id)) {
            let Some(c) = self.runtime.containers.get(id) else { continue };
            *pods.entry(&c.pod.uid).or_default() += has.cpu_request_milli;
            let limit = self.disk.cgroups.get(&c.pod.uid).and_then(|values| values.memory_max);
            if limit.is_some_and(|limit| i64::try_from(limit).is_ok_and(|limit| limit < has.memory_limit)) {
                above = Some(format!(
                    "{id} of {} is limited to {} bytes, its pod to {limit:?}",
                    c.pod, has.memory_limit
                ));
            }
        }
        // A pod-level request replaces the sum of the containers.
        let sum: i64 = pods.iter().map(|(uid, sum)| resizing.pod_has.get(*uid).unwrap_or(sum)).sum();
        if sum > CAPACITY {
            self.checks.report("ALLOC-CAP", format!("{sum}m are given of {CAPACITY}m: {pods:?}"));
        }
        if let Some(text) = above {
            self.checks.report("CGROUP-MATCH", text);
        }
    }

    /// RESIZE-TOLD: a status has the newest generation, and no condition of a deferred resize or of one in progress. A client takes
    /// the resize for complete, so running containers must have the requested resources. A restored server gives generations twice.
    pub(crate) fn look_at_told(&mut self, name: &ObjectName) {
        let (Some(resizing), Some(api)) = (&self.resizing, &self.api) else { return };
        let shown = self.stored(Resource::Pods, &name.namespace, &name.name);
        let Some(shown) = shown.and_then(|shown| serde_json::from_value::<Pod>(shown.clone()).ok()) else {
            return;
        };
        let status = shown.status.clone().unwrap_or_default();
        let open = |c: &PodCondition| [PENDING_RESIZE, PROGRESS_OF_RESIZE].contains(&c.type_.as_str());
        let over = matches!(status.phase.as_deref(), Some("Succeeded" | "Failed"));
        if api.went_back
            || over
            || shown.metadata.deletion_timestamp.is_some()
            || status.observed_generation != shown.metadata.generation
            || status.conditions.iter().flatten().any(open)
        {
            return;
        }
        let uid = pod::key(&shown).uid;
        let mut wrong = Vec::new();
        for (id, c) in self.runtime.containers.iter().filter(|(_, c)| c.pod.uid == uid) {
            let mut all = pod::containers(&shown).iter().chain(pod::init_containers(&shown));
            let spec = all.find(|spec| spec.name == c.observed.name);
            let wanted = spec.and_then(|spec| spec.resources.as_ref()).map(amounts);
            let has = resizing.has.get(id).copied();
            if c.observed.state == ContainerState::Running && wanted != has {
                wrong.push(format!("{} has {has:?} and is to have {wanted:?}", c.observed.name));
            }
        }
        if !wrong.is_empty() {
            let generation = shown.metadata.generation.unwrap_or_default();
            let text = format!("{} is told to be at {generation}: {}", pod::key(&shown), wrong.join(", "));
            self.checks.report("RESIZE-TOLD", text);
        }
    }

    /// Long after all faults have healed: running containers that do not have the allocated resources.
    pub(crate) fn unresized(&self) -> Vec<String> {
        let Some(resizing) = &self.resizing else { return Vec::new() };
        let mut wrong = Vec::new();
        for (id, c) in self.runtime.containers.iter() {
            let given = self.disk.allocated.get(&c.pod.uid).and_then(|p| p.containers.get(&c.observed.name));
            let (Some(given), Some(has)) = (given.map(amounts), resizing.has.get(id)) else { continue };
            if c.observed.state == ContainerState::Running && given != *has {
                wrong.push(format!("{} of {} has {has:?} and was given {given:?}", c.observed.name, c.pod));
            }
            let own = self.disk.allocated.get(&c.pod.uid).and_then(|p| p.pod.as_ref()).map(milli);
            let has = resizing.pod_has.get(&c.pod.uid).copied();
            if c.observed.state == ContainerState::Running && own != has {
                wrong.push(format!("{} has {has:?}m itself and was given {own:?}m", c.pod));
            }
        }
        wrong
    }
}
