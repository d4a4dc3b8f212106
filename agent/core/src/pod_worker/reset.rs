//! RestartAllContainers (KEP-5532): removes all containers of the pod; sandbox, volumes and ephemeral
//! containers stay.
//!
//! In: a plan that resets. Out: chains, hooks and requests for devices are given up; at the very end the containers that requested
//! the reset are removed. Invariant: these are removed only when a snapshot shows no other container, and no
//! call in flight can still create one (the runtime's record of them shows that the reset is not over). See
//! `pod_actions::reset`.

use agent_types::runtime::observed::PodSnapshot;

use super::api::PodAction;
use super::hooks;
use super::tracker::{Flight, Purpose, Target};
use crate::pod_actions::PodActions;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::pass::Pass;

/// Starts nothing more of the pod, and gives up pulls, hooks and requests for devices, whose plugin may hang.
pub(super) fn begin(pass: &mut Pass<'_>) {
    pass.state.chain = None;
    pass.state.waiting.clear();
    for id in pass.base.tracker.abandon_pulls() {
        pass.out.push(PodAction::Cancel(id));
    }
    let is_given_up =
        |flight: &Flight| matches!(flight.purpose, Purpose::Hook { .. } | Purpose::AllocateDevices);
    hooks::cancel(pass.base, is_given_up, pass.out);
}

/// Removes the containers that requested the reset, once everything else is certainly gone.
pub(super) fn finish(pass: &mut Pass<'_>, actions: &PodActions, snapshot: &PodSnapshot) {
    if actions.remove_last.is_empty() || pass.base.tracker.any_container_busy() {
        return;
    }
    if !pass.base.tracker.all_fresh(snapshot.as_of) {
        pass.base.want_snapshot_after(pass.base.tracker.known_after());
        return;
    }
    if !pass.base.may_conclude_absence(pass.base.tracker.all_absent_after(), pass.now) {
        return;
    }
    for (name, id) in &actions.remove_last {
        let target = Target::Container(name.clone());
        if !pass.base.may_act(&target, pass.now) {
            continue;
        }
        let ended = snapshot.containers.iter().find(|c| c.id == *id).and_then(|c| c.finished);
        pass.state.reset_ends.insert(name.clone(), ended.unwrap_or(pass.now.wall));
        let effect = Effect::RemoveContainer { container: id.clone(), log: None };
        pass.issue(target, Purpose::Remove(id.clone()), effect);
    }
}
