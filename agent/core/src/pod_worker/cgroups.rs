//! The pod's own cgroup: created before its sandbox, removed when no process of the pod runs.
//!
//! In: the pod. Out: the effects that create and remove its cgroup. Invariants: the worker creates nothing
//! for a pod before this incarnation has ensured its cgroup, and no sandbox if an earlier incarnation's
//! removal may have come after that; the cgroup is removed after the volumes, whose memory is charged to
//! it, and before the pod's directory. A node without pod cgroups (`cgroupsPerQOS: false`) does neither.
//! Upstream: pkg/kubelet/cm/pod_container_manager_linux.go, `SyncPod` and `SyncTerminatedPod` of
//! pkg/kubelet/kubelet.go.

use std::sync::Arc;

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::tracker::{Flight, Purpose, Target};
use crate::allocation::actuate::{self, Actual};
use crate::pod_worker::effect::{Effect, EffectResult};
use crate::pod_worker::parts::Cgroup;
use crate::pod_worker::pass::Pass;

/// The cgroup exists. After the calls of earlier incarnations are over, the worker ensures it once more: the
/// last of these calls may have removed it.
fn is_made(b: &Base, now: Now) -> bool {
    let fence = b.tracker.fence();
    matches!(b.cgroup, Cgroup::Made(at) if at > fence || now.mono <= fence)
}

/// True if nothing is missing. `actual`: what the pod has in the newest snapshot.
pub(super) fn made(pass: &mut Pass<'_>, actual: &Actual<'_>) -> bool {
    if pass.base.tracker.busy(&Target::Cgroup) {
        return false;
    }
    let cgroup = if actual.differs() {
        let specs = pass.base.ctx.specs.clone();
        actuate::large_enough(&pass.state.pod, actual, &*specs)
    } else {
        pass.base.wanted_cgroup(&pass.state.pod).map(Arc::unwrap_or_clone)
    };
    let Some(cgroup) = cgroup else { return true };
    let enough = |has: &CgroupValues| actuate::raised(has, &cgroup.values) == *has;
    if is_made(pass.base, pass.now) && pass.base.resize.cgroup.as_ref().is_some_and(enough) {
        return true;
    }
    // A container that is being made or started has its earlier amounts, which no snapshot shows yet: other values of the
    // cgroup may be too low for it (simulation, resizing, seed 40015).
    if pass.base.resize.cgroup.is_some() && pass.base.tracker.making(pass.base.as_of()) {
        return false;
    }
    if let Some(held) = pass.base.tracker.held_until(&Target::Cgroup, pass.now.mono) {
        pass.base.wake_at(held, pass.now);
        return false;
    }
    pass.base.resize.asked = Some(cgroup.values.clone());
    let is_unknown = pass.base.snapshot.as_ref().is_none_or(|seen| seen.actuated.is_none());
    let own = pod::spec(&pass.state.pod).resources.clone().filter(|_| is_unknown);
    let effect = Effect::EnsureCgroup { cgroup: Box::new(cgroup), actuates: own.map(Box::new) };
    pass.issue(Target::Cgroup, Purpose::EnsureCgroup, effect);
    false
}

/// No process of the pod runs: removes its cgroup. True once the cgroup is gone.
pub(super) fn removed(b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    if b.cgroup == Cgroup::Removed || !b.ctx.specs.has_cgroups() {
        return true;
    }
    if b.tracker.busy(&Target::Cgroup) {
        return false;
    }
    if let Some(held) = b.tracker.held_until(&Target::Cgroup, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    b.issue(now, Target::Cgroup, Purpose::RemoveCgroup, Effect::RemoveCgroup, out);
    false
}

/// The cgroup was made or removed, or could not be.
pub(super) fn answered(b: &mut Base, flight: &Flight, result: &EffectResult, out: &mut Outbox<PodAction>) {
    match (&flight.purpose, result) {
        (Purpose::EnsureCgroup, Ok(_)) => {
            b.cgroup = Cgroup::Made(flight.issued);
            b.resize.cgroup = b.resize.asked.take();
        }
        (Purpose::EnsureCgroup, Err(e)) => {
            let text = format!("unable to ensure pod container exists: {}", e.message);
            b.event(EventKind::Warning, "FailedCreatePodContainer", text, None, out);
        }
        (Purpose::RemoveCgroup, Ok(_)) => b.cgroup = Cgroup::Removed,
        _ => {}
    }
}
