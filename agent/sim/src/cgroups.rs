//! Pods' cgroups, and CGROUP-MATCH: no sandbox and no container is made without the pod's cgroup, none is removed under
//! a live container, no container is limited to more memory than its pod, and at rest each has the weight and the
//! memory limit of its pod's allocation.
//!
//! In: the agent's operations on cgroups. Out: violations. The weight is computed here from the resources on disk and
//! the order of containers, not by the agent's own sums. A cgroup may be too large (an agent died between two steps of
//! a resize, docs/internals/resize.md), never too small.

use std::collections::BTreeMap;

use agent_core::allocation::PodAllocation;
use agent_core::pod_worker::effect::Effect;
use agent_types::ids::{PodKey, PodUid};
use agent_types::pod;
use agent_types::resources::amounts::Amounts;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::resources::cgroups::pod::PodCgroup;
use agent_types::resources::cgroups::values::weight_of;
use agent_types::runtime::observed::ContainerState;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use crate::calls::Ask;
use crate::defects::Defect;
use crate::fake_runtime::FakeContainer;
use crate::world::World;

impl World {
    /// Creates the pod's cgroup, or sets its values.
    pub(crate) fn set_cgroup(&mut self, key: &PodKey, cgroup: &PodCgroup) {
        let known = self.disk.cgroups.contains_key(&key.uid);
        match self.defect {
            Some(Defect::ForgetsCgroups) => return,
            Some(Defect::KeepsOldWeights) if known => return,
            _ => {}
        }
        let mut values = cgroup.values.clone();
        if let (Some(Defect::KeepsOldLimits), Some(old)) = (self.defect, self.disk.cgroups.get(&key.uid)) {
            values.memory_max = old.memory_max;
        }
        self.disk.cgroups.insert(key.uid.clone(), values);
    }

    /// Removes the pod's cgroup. CGROUP-MATCH: the removal would kill containers that run in it.
    pub(crate) fn remove_cgroup(&mut self, key: &PodKey) {
        let runs = |c: &&FakeContainer| c.pod.uid == key.uid && c.observed.state == ContainerState::Running;
        if let Some(c) = self.runtime.containers.values().find(runs) {
            let text = format!("the cgroup of {key} is removed while {} runs", c.observed.id);
            self.checks.report("CGROUP-MATCH", text);
        }
        self.disk.cgroups.remove(&key.uid);
    }

    /// CGROUP-MATCH: a sandbox or a container is created only if the pod's cgroup exists.
    pub(crate) fn wants_cgroup(&mut self, key: &PodKey, effect: &Effect) {
        let makes = matches!(effect, Effect::RunSandbox { .. } | Effect::CreateContainer { .. });
        if makes && !self.disk.cgroups.contains_key(&key.uid) {
            self.checks.report("CGROUP-MATCH", format!("{} of {key} without a cgroup", effect.verb()));
        }
    }

    /// The periodic sweep of the container manager: once every source was read, it removes the cgroups of pods that have no worker
    /// and that no source has. An agent that dies before it creates a pod's directory leaves a cgroup that nothing else records. A
    /// running pod may wait for its worker (mounting, seed 30013: until the agent received the Node).
    pub(crate) fn sweep_cgroups(&mut self) {
        if let Some(node) = self.node.as_ref().filter(|node| node.is_synced()) {
            let is_known = |uid: &PodUid| node.workers().contains_key(uid) || node.wants(uid);
            let (kept, gone) =
                std::mem::take(&mut self.disk.cgroups).into_iter().partition(|(uid, _)| is_known(uid));
            self.disk.cgroups = kept;
            let gone: BTreeMap<PodUid, CgroupValues> = gone;
            let runs = |c: &&FakeContainer| {
                gone.contains_key(&c.pod.uid) && c.observed.state == ContainerState::Running
            };
            if let Some(c) = self.runtime.containers.values().find(runs) {
                let text = format!("the cgroup of {} is swept away while {} runs", c.pod, c.observed.id);
                self.checks.report("CGROUP-MATCH", text);
            }
        }
    }

    /// Long after all faults have healed: running pods whose cgroup has a smaller weight or memory limit than their allocation.
    pub(crate) fn too_small(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for p in self.runnable_api_pods() {
            let key = pod::key(&p);
            let runs =
                |c: &FakeContainer| c.pod.uid == key.uid && c.observed.state == ContainerState::Running;
            let Some(given) = self.disk.allocated.get(&key.uid) else { continue };
            let Some(values) = self.disk.cgroups.get(&key.uid) else { continue };
            if !self.runtime.containers.values().any(runs) {
                continue;
            }
            let milli = most_of(&p, given, |a| a.cpu_request_milli);
            let (has, wants) = (values.cpu_weight.unwrap_or_default(), weight_of(milli));
            if has < wants {
                wrong.push(format!(
                    "the cgroup of {key} has the weight {has} and was given {milli}m: {wants}"
                ));
            }
            let limit = most_of(&p, given, |a| a.memory_limit);
            let is_less = |max: u64| i64::try_from(max).is_ok_and(|max| max < limit);
            if values.memory_max.is_some_and(is_less) {
                wrong.push(format!(
                    "the cgroup of {key} has {:?} and was given {limit} bytes",
                    values.memory_max
                ));
            }
        }
        wrong
    }
}

/// True if the request removes a cgroup that does not exist. The agent looks at the directory before it calls PID 1, so no other
/// process gets this request (simulation, stopping, seed 60171).
pub(crate) fn removes_nothing(ask: &Ask, cgroups: &BTreeMap<PodUid, CgroupValues>) -> bool {
    matches!(ask, Ask::Effect { key, effect: Effect::RemoveCgroup, .. } if !cgroups.contains_key(&key.uid))
}

/// The allocation of one resource for a pod: the pod's own amount, or the largest sum of its containers that run at one time.
fn most_of(p: &Pod, given: &PodAllocation, amount: impl Fn(Amounts) -> i64) -> i64 {
    let amount = |resources: &ResourceRequirements| amount(Amounts::of(Some(resources)));
    if let Some(own) = given.pod.as_ref().map(&amount).filter(|own| *own > 0) {
        return own;
    }
    let of: BTreeMap<&str, i64> =
        given.containers.iter().map(|(name, r)| (name.as_str(), amount(r))).collect();
    let of = |name: &str| of.get(name).copied().unwrap_or_default();
    let (mut sidecars, mut most) = (0, 0);
    for init in pod::init_containers(p) {
        if init.restart_policy.as_deref() == Some("Always") {
            sidecars += of(&init.name);
            most = most.max(sidecars);
        } else {
            most = most.max(sidecars + of(&init.name));
        }
    }
    let regular: i64 = pod::containers(p).iter().map(|c| of(&c.name)).sum();
    most.max(sidecars + regular)
}
