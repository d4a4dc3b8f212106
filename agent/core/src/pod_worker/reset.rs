//! RestartAllContainers (KEP-5532): removes all containers of the pod; sandbox, volumes and ephemeral
//! containers stay.
//!
//! In: a plan that resets. Out: chains and hooks are given up; at the very end the containers that requested
//! the reset are removed. Invariant: these are removed only when a snapshot shows no other container, and no
//! call in flight can still create one (the runtime's record of them shows that the reset is not over). See
//! `pod_actions::reset`.

use agent_types::machine::Outbox;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::hooks;
use super::ledger::{Purpose, Target};
use super::state::Syncing;
use crate::pod_actions::PodActions;
use crate::pod_worker::effect::Effect;

/// Starts nothing more of the pod, and gives up pulls and hooks.
pub(super) fn begin(s: &mut Syncing, b: &mut Base, out: &mut Outbox<PodAction>) {
    s.chain = None;
    s.waiting.clear();
    for id in b.ledger.abandon_pulls() {
        out.push(PodAction::Cancel(id));
    }
    hooks::cancel(b, |flight| matches!(flight.purpose, Purpose::Hook { .. }), out);
}

/// Removes the containers that requested the reset, once everything else is certainly gone.
pub(super) fn finish(
    s: &mut Syncing,
    b: &mut Base,
    actions: &PodActions,
    snapshot: &PodSnapshot,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    if actions.remove_last.is_empty() || b.ledger.any_container_busy() {
        return;
    }
    if !b.ledger.all_fresh(snapshot.as_of) {
        b.want_snapshot_after(b.ledger.known_after());
        return;
    }
    if !b.may_conclude_absence(b.ledger.all_absent_after(), now) {
        return;
    }
    for (name, id) in &actions.remove_last {
        let target = Target::Container(name.clone());
        if !b.may_act(&target, now) {
            continue;
        }
        let ended = snapshot.containers.iter().find(|c| c.id == *id).and_then(|c| c.finished);
        s.reset_ends.insert(name.clone(), ended.unwrap_or(now.wall));
        let effect = Effect::RemoveContainer { container: id.clone(), log: None };
        b.issue(now, target, Purpose::Remove(id.clone()), effect, out);
    }
}
