//! The pod's own cgroup: made before its sandbox, removed when nothing of it runs.
//!
//! In: the pod. Out: the effects that make its cgroup and remove it. Invariants: nothing is created for a pod whose cgroup
//! this incarnation has not seen to; it is removed after the volumes, whose memory it is charged with, and before the pod's
//! directory. A node whose pods have no cgroups (`cgroupsPerQOS: false`) does neither. Upstream: pod_container_manager,
//! SyncPod, SyncTerminatedPod.

use super::api::{EventKind, PodAction};
use super::base::Base;
use super::ledger::{Flight, Purpose, Target};
use super::state::Syncing;
use crate::machine::Outbox;
use crate::runtime::effect::{Effect, EffectResult};
use crate::time::Now;

/// True if nothing is missing.
pub(super) fn made(s: &Syncing, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    if b.cgroup == Some(true) || b.ledger.busy(&Target::Cgroup) {
        return b.cgroup == Some(true);
    }
    let Some(cgroup) = b.ctx.specs.cgroup(&s.pod) else { return true };
    if let Some(held) = b.ledger.held_until(&Target::Cgroup, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    let effect = Effect::EnsureCgroup { cgroup: Box::new(cgroup) };
    b.issue(now, Target::Cgroup, Purpose::EnsureCgroup, effect, out);
    false
}

/// Nothing of the pod runs: has its cgroup removed. True once it is gone.
pub(super) fn removed(b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    if b.cgroup == Some(false) || !b.ctx.specs.has_cgroups() {
        return true;
    }
    if b.ledger.busy(&Target::Cgroup) {
        return false;
    }
    if let Some(held) = b.ledger.held_until(&Target::Cgroup, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    b.issue(now, Target::Cgroup, Purpose::RemoveCgroup, Effect::RemoveCgroup, out);
    false
}

/// The cgroup was made or removed, or could not be.
pub(super) fn answered(b: &mut Base, flight: &Flight, result: &EffectResult, out: &mut Outbox<PodAction>) {
    match (&flight.purpose, result) {
        (Purpose::EnsureCgroup, Ok(_)) => b.cgroup = Some(true),
        (Purpose::EnsureCgroup, Err(e)) => {
            let text = format!("unable to ensure pod container exists: {}", e.message);
            b.event(EventKind::Warning, "FailedCreatePodContainer", text, None, out);
        }
        (Purpose::RemoveCgroup, Ok(_)) => b.cgroup = Some(false),
        _ => {}
    }
}
