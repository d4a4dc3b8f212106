//! Hooks of a pod worker's containers: when a hook runs, how it reduces the grace period, how its failure
//! counts.
//!
//! In: a container that has just started, or a container to stop. Out: [`Effect::RunHook`], events, and
//! whether the stop may proceed. Invariants: a preStop hook runs at most once for an instance and
//! incarnation; the worker waits for it at most for the grace period, and the hook continues next to the stop
//! until its container is gone; GRACE, the time of the hook counts against the grace period, of which a stop
//! gets 2 s at least. Upstream: `killContainer` and `executePreStopHook` of
//! pkg/kubelet/kuberuntime/kuberuntime_container.go, pkg/kubelet/lifecycle.

use std::time::Duration;

use agent_types::event::EventKind;
use agent_types::ids::ContainerId;
use agent_types::machine::Outbox;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, PodSnapshot};
use agent_types::runtime::view::{newest, newest_sandbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::api::PodAction;
use super::base::Base;
use super::state::Chain;
use super::tracker::{Flight, Purpose, Target};
use crate::lifecycle_hooks::{Hook, HookCall, action, with_pre_stop};
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};
use crate::pod_worker::parts::PreStop;
use crate::pod_worker::pass::Pass;
use crate::status::WaitingReason;

/// Waiting reason of a container whose postStart hook failed.
pub(super) const POST_START_ERROR: &str = "PostStartHookError";

/// Runs the postStart hook of the chain's container; false if it has none.
pub(super) fn post_start(pass: &mut Pass<'_>) -> bool {
    let Some(chain) = &pass.state.chain else { return false };
    let spec = chain.start.slot.spec(&pass.state.pod);
    let handler = spec.as_ref().and_then(|c| c.lifecycle.as_ref()).and_then(|l| l.post_start.as_ref());
    let (Some(spec), Some(handler), Some(id)) = (spec.as_ref(), handler, chain.instance.clone()) else {
        return false;
    };
    let name = chain.start.slot.name.clone();
    match action(handler, spec, &pod_ip(pass.base)) {
        Ok(action) => {
            let call = HookCall { container: id.clone(), name: name.clone(), hook: Hook::PostStart, action };
            let effect = Effect::RunHook { call: Box::new(call), within_s: None };
            pass.issue(Target::Hook(name), Purpose::Hook { id, hook: Hook::PostStart }, effect);
            if let Some(chain) = &mut pass.state.chain {
                chain.hooked = true;
            }
            true
        }
        Err(message) => {
            pass.state.hook_failed.insert(id);
            tell_failure(pass.base, Hook::PostStart, &name, pass.out);
            pass.state.waiting.insert(name, WaitingReason { reason: POST_START_ERROR.to_owned(), message });
            false
        }
    }
}

/// Stops waiting for hooks whose container has ended.
pub(super) fn give_up(pass: &mut Pass<'_>, snapshot: &PodSnapshot) {
    drop_of_ended(pass.base, snapshot, pass.out);
    let Some(Chain { start, instance: Some(id), hooked: true, .. }) = &pass.state.chain else { return };
    let runs =
        newest(snapshot, &start.slot.name).is_some_and(|c| c.id == *id && c.state == ContainerState::Running);
    if runs || !pass.base.tracker.fresh(&Target::Container(start.slot.name.clone()), snapshot.as_of) {
        return;
    }
    cancel(pass.base, |flight| matches!(&flight.purpose, Purpose::Hook { id: of, .. } if of == id), pass.out);
}

/// Hooks of containers that have ended are not waited for.
pub(super) fn drop_of_ended(b: &mut Base, snapshot: &PodSnapshot, out: &mut Outbox<PodAction>) {
    let ended = |name: &str, id: &ContainerId| {
        snapshot.containers.of(name).iter().any(|c| c.id == *id && c.state == ContainerState::Exited)
    };
    let of_ended = |flight: &Flight| match (&flight.target, &flight.purpose) {
        (Target::Hook(name), Purpose::Hook { id, .. }) => ended(name, id),
        _ => false,
    };
    cancel(b, of_ended, out);
}

/// Whether `c` may be stopped now. If not, its preStop hook runs, for at most `left` from now on.
pub(super) fn may_stop(
    b: &mut Base,
    p: Option<&Pod>,
    c: &ContainerObserved,
    left: Duration,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    if let Some(known) = b.pre_stops.get_mut(&c.id) {
        let due = known.since.after(known.within).min(now.mono.after(left));
        known.over |= now.mono >= due;
        let over = known.over;
        if !over {
            b.wake_at(due, now);
        }
        return over;
    }
    let target = Target::Hook(c.name.clone());
    if b.tracker.busy(&target) {
        // The container's postStart hook: its result does not matter any more.
        cancel(b, |flight| flight.target == target, out);
        return false;
    }
    let Some((container, handler)) = with_pre_stop(p, c) else { return true };
    let begun = PreStop { since: now.mono, within: left, over: true };
    b.pre_stops.insert(c.id.clone(), begun);
    let seconds = left.as_secs() + u64::from(left.subsec_nanos() > 0);
    let within_s = u32::try_from(seconds).unwrap_or(u32::MAX);
    if within_s == 0 {
        return true;
    }
    let Ok(action) = action(&handler, &container, &pod_ip(b)) else {
        tell_failure(b, Hook::PreStop, &c.name, out);
        return true;
    };
    let call = HookCall { container: c.id.clone(), name: c.name.clone(), hook: Hook::PreStop, action };
    let effect = Effect::RunHook { call: Box::new(call), within_s: Some(within_s) };
    b.issue(now, target, Purpose::Hook { id: c.id.clone(), hook: Hook::PreStop }, effect, out);
    b.pre_stops.insert(c.id.clone(), PreStop { over: false, ..begun });
    b.wake_at(now.mono.after(left), now);
    false
}

/// Time at which the stop of an instance began, with its preStop hook, and its grace period then: a second
/// reason to stop, found while the hook runs, does not start a new period.
pub(super) fn begun(b: &Base, id: &ContainerId, grace: Duration, now: Now) -> (Mono, Duration) {
    b.pre_stops.get(id).map_or((now.mono, grace), |known| (known.since, known.within))
}

/// A hook's answer, in any state.
pub(super) fn answered(b: &mut Base, flight: &Flight, result: &EffectResult, out: &mut Outbox<PodAction>) {
    let (Purpose::Hook { id, hook }, Target::Hook(name)) = (&flight.purpose, &flight.target) else { return };
    let mut outlasted = false;
    if *hook == Hook::PreStop
        && let Some(known) = b.pre_stops.get_mut(id)
    {
        // One that the stop cut off did not fail.
        outlasted = std::mem::replace(&mut known.over, true);
    }
    match result {
        Ok(EffectOk::Hook { fell_back: Some(host) }) => {
            let text = format!(
                "request to HTTPS lifecycle hook {host} got HTTP response, retry with HTTP succeeded"
            );
            b.event(EventKind::Warning, "LifecycleHTTPFallback", text, None, out);
        }
        Ok(_) => {}
        Err(_) if flight.cancelled || outlasted => {}
        Err(_) => tell_failure(b, *hook, name, out),
    }
}

/// Pods on their way out wait for no postStart hook.
pub(super) fn drop_post_start(b: &mut Base, out: &mut Outbox<PodAction>) {
    let of_start = |flight: &Flight| matches!(flight.purpose, Purpose::Hook { hook: Hook::PostStart, .. });
    cancel(b, of_start, out);
}

pub(super) fn cancel(b: &mut Base, mut which: impl FnMut(&Flight) -> bool, out: &mut Outbox<PodAction>) {
    for (id, flight) in b.tracker.flights_mut().filter(|(_, f)| !f.cancelled) {
        if which(flight) {
            flight.cancelled = true;
            out.push(PodAction::Cancel(*id));
        }
    }
}

/// The event omits the hook's output: it may contain a secret.
fn tell_failure(b: &Base, hook: Hook, name: &str, out: &mut Outbox<PodAction>) {
    let (reason, text) = match hook {
        Hook::PostStart => ("FailedPostStartHook", "PostStartHook failed"),
        Hook::PreStop => ("FailedPreStopHook", "PreStopHook failed"),
    };
    b.event(EventKind::Warning, reason, text, Some(name), out);
}

/// The address that a hook without a host means.
fn pod_ip(b: &Base) -> String {
    let newest = b.snapshot.as_deref().and_then(newest_sandbox);
    let ips = match newest {
        Some(s) if s.host_network => b.ctx.host_ips.clone(),
        Some(_) => b.shown_ips(),
        None => return String::new(),
    };
    ips.into_iter().next().unwrap_or_default()
}
