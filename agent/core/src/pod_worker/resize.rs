//! In-place resize: changes the resources of running containers.
//!
//! In: the allocated pod, the resources of its containers, pending requests from the pod manager. Out: the
//! effect that carries a resize out, events, the conditions `PodResizePending` and `PodResizeInProgress`.
//! Invariants: one resize at a time, and no other effect on the pod's containers meanwhile; a resize is over
//! when a snapshot later than its last call shows no difference. `allocation::actuate` chooses the steps.
//! Upstream: `SyncPod` of pkg/kubelet/kubelet.go, pkg/kubelet/status, KEP-1287.

use std::sync::Arc;

use agent_types::event::EventKind;
use agent_types::failure::Class;
use agent_types::ids::SandboxId;
use agent_types::machine::Outbox;
use agent_types::resources::cgroups::CgroupValues;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::Pod;

use super::api::PodAction;
use super::base::Base;
use super::ledger::{Flight, Purpose, Target};
use super::state::Syncing;
use crate::allocation::actuate::{self, Actual, Step};
use crate::allocation::resize::{INFEASIBLE, PendingResize};
use crate::allocation::{PodAllocation, message};
use crate::pod_worker::effect::{Effect, EffectResult};
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
pub(super) fn observe(s: &Syncing, b: &mut Base, actual: &Actual<'_>, out: &mut Outbox<PodAction>) {
    let specs = b.ctx.specs.clone();
    let too_large = |has: &CgroupValues| specs.cgroup(&s.pod).is_some_and(|wanted| wanted.values != *has);
    if actual.differs() || b.resize.cgroup.as_ref().is_some_and(too_large) {
        let generation = s.pod.metadata.generation;
        b.resize.progress.get_or_insert(Progress { generation, error: None });
        b.resize.settled = None;
        return;
    }
    // A container that has just started has the resources of its creation.
    if !b.ledger.fresh(&Target::Resize, b.as_of()) || b.ledger.making(b.as_of()) {
        return;
    }
    if let Some(done) = b.resize.progress.take() {
        let text = message::of("Pod resize completed", &s.pod, done.generation, "");
        b.event(EventKind::Normal, "ResizeCompleted", text, None, out);
    }
    let given = PodAllocation::of(&s.pod);
    if !given.is_empty() && b.resize.settled.as_ref().is_none_or(|had| had.differs(&s.pod)) {
        b.resize.settled = Some(given);
        out.push(PodAction::Actuated(s.pod.clone()));
    }
}

/// Begins the next step; true if no other effect on the pod's containers may run before it is over.
pub(super) fn advance(
    s: &Syncing,
    b: &mut Base,
    actual: &Actual<'_>,
    home: &SandboxId,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    let specs = b.ctx.specs.clone();
    let steps = actuate::plan(&s.pod, actual, home, &*specs, b.resize.cgroup.as_ref());
    if steps.is_empty() || b.ledger.any_container_busy() || b.ledger.busy(&Target::Cgroup) {
        return false;
    }
    // The limits of a container that started since the last inspection are unknown.
    if b.ledger.making(b.as_of()) {
        return false;
    }
    if !b.may_act(&Target::Resize, now) {
        return false;
    }
    let last = steps.iter().rev().find_map(|step| match step {
        Step::PodCgroup(cgroup) => Some(cgroup.values.clone()),
        _ => None,
    });
    b.resize.asked = last.or_else(|| b.resize.cgroup.take());
    b.resize.cgroup = None;
    b.issue(now, Target::Resize, Purpose::Resize, Effect::Resize { steps }, out);
    true
}

/// All steps succeeded, or one of them failed.
pub(super) fn answered(
    s: &Syncing,
    b: &mut Base,
    flight: &Flight,
    result: &EffectResult,
    out: &mut Outbox<PodAction>,
) {
    if flight.purpose != Purpose::Resize {
        return;
    }
    let asked = b.resize.asked.take();
    match result {
        Ok(_) => b.resize.cgroup = asked,
        // The container has ended: the next inspection decides.
        Err(e) if e.class == Class::NotFound => {}
        Err(e) => {
            let generation = s.pod.metadata.generation;
            let progress = b.resize.progress.get_or_insert(Progress { generation, error: None });
            if progress.error.as_ref() != Some(&e.message) {
                progress.error = Some(e.message.clone());
                let text = message::of("Pod resize error", &s.pod, progress.generation, &e.message);
                b.event(EventKind::Warning, "ResizeError", text, None, out);
            }
        }
    }
}
