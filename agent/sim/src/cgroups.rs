//! Pods' cgroups, and CGROUP-MATCH: no sandbox and no container is made without the pod's cgroup, none is removed under a live
//! container, and at rest each has the weight of what its pod was given.
//!
//! In: what the agent asks of cgroups. Out: violations. The weight is computed here from the amounts on disk and the order of
//! containers, not by the agent's own sums. A cgroup may be larger than need be (an agent that died between two steps of a
//! resize, docs/resize.md), never smaller.

use std::collections::BTreeMap;

use agent_core::allocation::{Amounts, PodAllocation};
use agent_core::resources::cgroups::pod::PodCgroup;
use agent_core::resources::cgroups::values::weight_of;
use agent_core::runtime::PodKey;
use agent_core::runtime::effect::Effect;
use agent_core::runtime::observed::ContainerState;
use agent_core::types::pod;
use k8s_openapi::api::core::v1::{Pod, ResourceRequirements};

use crate::defects::Defect;
use crate::fake_runtime::FakeContainer;
use crate::world::World;

impl World {
    /// The pod's cgroup is made, or given these values.
    pub(crate) fn set_cgroup(&mut self, key: &PodKey, cgroup: &PodCgroup) {
        let known = self.disk.cgroups.contains_key(&key.uid);
        match self.defect {
            Some(Defect::ForgetsCgroups) => return,
            Some(Defect::KeepsOldWeights) if known => return,
            _ => {}
        }
        self.disk.cgroups.insert(key.uid.clone(), cgroup.values.clone());
    }

    /// Whatever runs in it would be killed.
    pub(crate) fn remove_cgroup(&mut self, key: &PodKey) {
        let runs = |c: &&FakeContainer| c.pod.uid == key.uid && c.observed.state == ContainerState::Running;
        if let Some(c) = self.runtime.containers.values().find(runs) {
            let text = format!("the cgroup of {key} is removed while {} runs", c.observed.id);
            self.checks.report("CGROUP-MATCH", text);
        }
        self.disk.cgroups.remove(&key.uid);
    }

    /// What is made in a pod's cgroup finds it.
    pub(crate) fn wants_cgroup(&mut self, key: &PodKey, effect: &Effect) {
        let makes = matches!(effect, Effect::RunSandbox { .. } | Effect::CreateContainer { .. });
        if makes && !self.disk.cgroups.contains_key(&key.uid) {
            self.checks.report("CGROUP-MATCH", format!("{} of {key} without a cgroup", effect.verb()));
        }
    }

    /// What the container manager does now and then: once every source was read, cgroups of pods without a worker go. An
    /// agent that died before it had made the pod's directory leaves one of which nobody else knows.
    pub(crate) fn sweep_cgroups(&mut self) {
        if let Some(node) = self.node.as_ref().filter(|node| node.is_synced()) {
            self.disk.cgroups.retain(|uid, _| node.workers().contains_key(uid));
        }
    }

    /// Long after everything healed: the cgroups of pods that run whose weight is less than that of what they were given.
    pub(crate) fn underweight(&self) -> Vec<String> {
        let mut wrong = Vec::new();
        for p in self.runnable_api_pods() {
            let key = pod::key(&p);
            let runs =
                |c: &FakeContainer| c.pod.uid == key.uid && c.observed.state == ContainerState::Running;
            let Some(given) = self.disk.allocated.get(&key.uid) else { continue };
            let Some(values) = self.disk.cgroups.get(&key.uid) else { continue };
            let (milli, has) = (given_milli(&p, given), values.cpu_weight.unwrap_or_default());
            if self.runtime.containers.values().any(runs) && has < weight_of(milli) {
                wrong.push(format!(
                    "the cgroup of {key} has the weight {has} and was given {milli}m: {}",
                    weight_of(milli)
                ));
            }
        }
        wrong
    }
}

/// Thousandths of a core that a pod was given: its own, or the most that its containers have at one time.
fn given_milli(p: &Pod, given: &PodAllocation) -> i64 {
    let milli = |resources: &ResourceRequirements| Amounts::of(Some(resources)).cpu_request_milli;
    if let Some(own) = &given.pod {
        return milli(own);
    }
    let of: BTreeMap<&str, i64> =
        given.containers.iter().map(|(name, r)| (name.as_str(), milli(r))).collect();
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
