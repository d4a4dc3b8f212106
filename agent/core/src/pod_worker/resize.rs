//! In-place resize: changes the resources of running containers.
//!
//! In: the allocated pod, the resources of its containers, pending requests from the pod manager. Out: the
//! effect that carries a resize out, events, the conditions `PodResizePending` and `PodResizeInProgress`.
//! Invariants: one resize at a time, and no other effect on the pod's containers meanwhile; no container grows
//! or starts before others have given back what they are to give back; a resize is over when a snapshot later
//! than its last call shows no difference. `allocation::actuate` chooses the steps.
//! Upstream: `SyncPod` of pkg/kubelet/kubelet.go, pkg/kubelet/status, KEP-1287.

use std::sync::Arc;

use agent_types::event::EventKind;
use agent_types::failure::Class;
use agent_types::ids::SandboxId;
use agent_types::machine::Outbox;
use agent_types::resources::cgroups::CgroupValues;
use k8s_openapi::api::core::v1::Pod;

use super::api::PodAction;
use super::base::Base;
use super::tracker::{Flight, Purpose, Target};
use crate::allocation::actuate::{self, Actual, ActuateStep, Running};
use crate::allocation::resize::{INFEASIBLE, PendingResize};
use crate::allocation::{PodAllocation, message};
use crate::pod_actions::PodActions;
use crate::pod_worker::effect::{Effect, EffectResult};
use crate::pod_worker::pass::Pass;
use crate::status::{PENDING_RESIZE, PROGRESS_OF_RESIZE, Progress};

/// A new allocated pod is desired; `before` is the previous one.
pub(super) fn desired(b: &mut Base, before: Option<&Pod>, p: &Arc<Pod>, out: &mut Outbox<PodAction>) {
    let Some(before) = before else {
        let shown = p.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        for c in shown {
            let (reason, message) =
                (c.reason.clone().unwrap_or_default(), c.message.clone().unwrap_or_default());
            let generation = c.observed_generation;
            if c.type_ == PENDING_RESIZE {
                let event = String::new();
                b.resize.pending = Some(PendingResize { reason, message, generation, event });
            } else if c.type_ == PROGRESS_OF_RESIZE {
                let error = Some(message).filter(|_| !reason.is_empty());
                b.resize.progress = Some(Progress { generation, error });
            }
        }
        return;
    };
    if PodAllocation::of(before).differs(p) {
        let generation = p.metadata.generation;
        b.resize.progress = Some(Progress { generation, error: None });
        let text = message::of("Pod resize started", p, generation, "");
        b.event(EventKind::Normal, "ResizeStarted", text, None, out);
    }
}

/// The pod ends, and gets another allocation at the same time: its containers do not get it, and the status
/// does not show it.
pub(super) fn too_late(b: &mut Base, before: Option<&Pod>, p: &Pod) {
    if before.is_some_and(|before| PodAllocation::of(before).differs(p)) {
        let generation = p.metadata.generation;
        b.resize.progress.get_or_insert(Progress { generation, error: None });
    }
}

/// The pod manager's state of the request.
pub(super) fn pending(b: &mut Base, pending: Option<PendingResize>, out: &mut Outbox<PodAction>) {
    let key = |p: &PendingResize| (p.reason.clone(), p.generation);
    if let Some(now) = pending.as_ref().filter(|now| b.resize.pending.as_ref().map(key) != Some(key(now))) {
        let reason = if now.reason == INFEASIBLE { "ResizeInfeasible" } else { "ResizeDeferred" };
        b.event(EventKind::Warning, reason, now.event.clone(), None, out);
    }
    b.resize.pending = pending;
}

/// Notes whether anything differs.
pub(super) fn observe(pass: &mut Pass<'_>, actual: &Actual<'_>) {
    let wanted = pass.base.wanted_cgroup(&pass.state.pod);
    let too_large = |has: &CgroupValues| wanted.is_some_and(|wanted| wanted.values != *has);
    if actual.differs() || pass.base.resize.cgroup.as_ref().is_some_and(too_large) {
        let generation = pass.state.pod.metadata.generation;
        pass.base.resize.progress.get_or_insert(Progress { generation, error: None });
        pass.base.resize.settled = None;
        return;
    }
    // A container that has just started has the resources of its creation.
    if !pass.base.tracker.fresh(&Target::Resize, pass.base.as_of())
        || pass.base.tracker.making(pass.base.as_of())
    {
        return;
    }
    if let Some(done) = pass.base.resize.progress.take() {
        let text = message::of("Pod resize completed", &pass.state.pod, done.generation, "");
        pass.event(EventKind::Normal, "ResizeCompleted", text, None);
    }
    let given = PodAllocation::of(&pass.state.pod);
    if !given.is_empty() && pass.base.resize.settled.as_ref().is_none_or(|had| had.differs(&pass.state.pod)) {
        pass.base.resize.settled = Some(given);
        pass.out.push(PodAction::Actuated(pass.state.pod.clone()));
    }
}

/// Notes whether a container that runs gives requests back, in place or by its restart. Together the others would take more
/// than the pod had and has: a resize is granted by the new sum alone. A resize that cannot be carried out holds nothing up.
/// Upstream: `SyncPod` of pkg/kubelet/kuberuntime/kuberuntime_manager.go kills first, then resizes, then starts. True if
/// the restart is under way.
pub(super) fn give_back(pass: &mut Pass<'_>, actual: &Actual<'_>, actions: &PodActions) -> bool {
    let killed = |r: &Running<'_>| actions.kill.iter().any(|kill| kill.id == r.id);
    let giving = || actual.running.iter().filter(|r| r.gives_back());
    let restarting = giving().any(|r| r.restarts() && killed(r));
    let failed = pass.base.resize.progress.as_ref().is_some_and(|progress| progress.error.is_some());
    let in_place = !failed && giving().any(|r| !r.restarts());
    pass.base.resize.gives_back = restarting || in_place;
    restarting
}

/// Begins the next step; true if no other effect on the pod's containers may run before it is over.
pub(super) fn advance(pass: &mut Pass<'_>, actual: &Actual<'_>, home: &SandboxId) -> bool {
    let wanted = pass.base.wanted_cgroup(&pass.state.pod);
    let has = pass.base.resize.cgroup.as_ref();
    if !actual.differs() && has.zip(wanted.as_ref()).is_none_or(|(has, wanted)| *has == wanted.values) {
        return false;
    }
    let specs = pass.base.ctx.specs.clone();
    let steps = actuate::plan(&pass.state.pod, actual, home, &*specs, pass.base.resize.cgroup.as_ref());
    if steps.is_empty() || pass.base.tracker.any_container_busy() || pass.base.tracker.busy(&Target::Cgroup) {
        return false;
    }
    // The limits of a container that started since the last inspection are unknown.
    if pass.base.tracker.making(pass.base.as_of()) {
        return false;
    }
    if !pass.base.may_act(&Target::Resize, pass.now) {
        return false;
    }
    let last = steps.iter().rev().find_map(|step| match step {
        ActuateStep::PodCgroup(cgroup) => Some(cgroup.values.clone()),
        _ => None,
    });
    pass.base.resize.asked = last.or_else(|| pass.base.resize.cgroup.take());
    pass.base.resize.cgroup = None;
    pass.issue(Target::Resize, Purpose::Resize, Effect::Resize { steps });
    true
}

/// All steps succeeded, or one of them failed.
pub(super) fn answered(pass: &mut Pass<'_>, flight: &Flight, result: &EffectResult) {
    if flight.purpose != Purpose::Resize {
        return;
    }
    let asked = pass.base.resize.asked.take();
    match result {
        Ok(_) => pass.base.resize.cgroup = asked,
        // The container has ended: the next inspection decides.
        Err(e) if e.class == Class::NotFound => {}
        Err(e) => {
            let generation = pass.state.pod.metadata.generation;
            let progress = pass.base.resize.progress.get_or_insert(Progress { generation, error: None });
            if progress.error.as_ref() != Some(&e.message) {
                progress.error = Some(e.message.clone());
                let text = message::of("Pod resize error", &pass.state.pod, progress.generation, &e.message);
                pass.event(EventKind::Warning, "ResizeError", text, None);
            }
        }
    }
}
