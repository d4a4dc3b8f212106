//! Processors of running containers: sends them to the runtime when they change.
//!
//! In: placements from the pod manager, snapshots. Out: [`Effect::SetCpus`]. Invariants: one effect at a time; a container that did not
//! take its processors is tried again after `cpuManagerReconcilePeriod`; after a start of the agent each running container gets its
//! processors once, because the agent does not know those that it has. Upstream: `reconcileState` of
//! pkg/kubelet/cm/cpumanager/cpu_manager.go, which looks at all pods every period and leaves ephemeral containers out.

use std::collections::BTreeMap;

use agent_types::ids::ContainerId;
use agent_types::machine::Outbox;
use agent_types::runtime::observed::ContainerState;
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::tracker::{Flight, Purpose, Target};
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};

/// Begins the effect if a running container does not have its processors.
pub(super) fn advance(b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    if b.placing.wanted.shared_cpus.is_none() || b.tracker.busy(&Target::Cpus) {
        return;
    }
    let Some(snapshot) = b.snapshot.clone() else { return };
    if !b.placing.sent.is_empty() && b.tracker.all_fresh(snapshot.as_of) {
        let ids = snapshot.containers.ids();
        b.placing.sent.retain(|id, _| ids.contains(id));
    }
    let mut cpus: BTreeMap<ContainerId, String> = BTreeMap::new();
    for c in snapshot.containers.iter().filter(|c| c.state == ContainerState::Running) {
        let wanted = b.placing.wanted.cpus_of(&c.name);
        if b.placing.sent.get(&c.id).is_none_or(|sent| sent != wanted) {
            cpus.insert(c.id.clone(), wanted.to_owned());
        }
    }
    if cpus.is_empty() {
        return;
    }
    if let Some(held) = b.tracker.held_until(&Target::Cpus, now.mono) {
        b.wake_at(held, now);
        return;
    }
    b.placing.asked.clone_from(&cpus);
    b.issue(now, Target::Cpus, Purpose::SetCpus, Effect::SetCpus { cpus }, out);
}

/// A container was created with its processors, or running ones were sent theirs.
pub(super) fn answered(b: &mut Base, flight: &Flight, result: &EffectResult, now: Now) {
    match (&flight.purpose, result) {
        (Purpose::Create, Ok(EffectOk::Container(id))) => {
            let cpus = std::mem::take(&mut b.placing.creating);
            b.placing.sent.insert(id.clone(), cpus);
        }
        (Purpose::SetCpus, Ok(_)) => b.placing.sent.append(&mut b.placing.asked),
        (Purpose::SetCpus, Err(_)) => {
            // Some containers may have moved (simulation, placing, seed 39): the processors of all of them are unknown.
            let asked = std::mem::take(&mut b.placing.asked);
            b.placing.sent.retain(|id, _| !asked.contains_key(id));
            let again = now.mono.after(b.ctx.cpus_again);
            b.tracker.hold(&Target::Cpus, again);
        }
        _ => {}
    }
}
