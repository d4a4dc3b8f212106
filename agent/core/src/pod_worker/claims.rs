//! The pod worker's side of resource claims (dynamic resource allocation).
//!
//! ```text
//! volumes mounted ──PrepareClaims──► sandbox ──► containers with CDI devices ──► containers ended ──UnprepareClaims──► final status
//!                    sandbox of an earlier agent ──FindClaims──┘
//! ```
//! In: the pod, answers of the owner of claims, health of devices. Out: effects, events, the devices of containers. Invariants: a pod that
//! uses claims gets no sandbox before its claims are prepared for that sandbox, and no container before their devices are known; claims are
//! given back after the last container has ended and before the final status; one effect on claims at a time; a pod without claims costs
//! nothing, but of a pod whose specification is unknown only the owner of claims knows whether it has some. Upstream:
//! `PrepareDynamicResources` and `UnprepareDynamicResources` in pkg/kubelet/kubelet.go and kuberuntime_manager.go.

use std::sync::Arc;
use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::resource_claims::{claims_of, uses_claims};
use agent_types::restart;
use agent_types::runtime::claims::{ContainerClaims, PodClaims};
use agent_types::time::Now;
use k8s_openapi::api::core::v1::{Container, Pod};

use super::api::PodAction;
use super::base::Base;
use super::parts::GiveBack;
use super::tracker::{Purpose, Target};
use super::volumes;
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult};
use crate::pod_worker::pass::Pass;

/// Waits between attempts to prepare. Upstream tries again at the pod's next periodic sync, after 60 to 90 s.
const PREPARE_AGAIN: Backoff = Backoff::doubling(Duration::from_secs(5), Duration::from_secs(60));
/// The pod manager takes the claim of extended resources out of pods if the node does not have the feature (gate DRAExtendedResource).
const WITH_EXTENDED: bool = true;

/// Takes the new pod `p`; `before` is the previous one. Other claims, or names that were missing: asks again at once.
pub(super) fn desired(b: &mut Base, before: Option<&Pod>, p: &Pod, now: Now) {
    let Some(before) = before.filter(|old| uses_claims(old) || uses_claims(p)) else { return };
    if claims_of(before, WITH_EXTENDED) == claims_of(p, WITH_EXTENDED) {
        return;
    }
    let is_stale = b.tracker.busy(&Target::Claims);
    let claims = &mut b.claims;
    (claims.known, claims.prepared_for, claims.failures, claims.is_stale) = (None, None, 0, is_stale);
    b.tracker.release(&Target::Claims, now.mono);
}

/// The sandbox of this attempt may be made, as far as claims matter.
pub(super) fn prepared(pass: &mut Pass<'_>, attempt: u32) -> bool {
    if pass.base.claims.prepared_for == Some(attempt) || !uses_claims(&pass.state.pod) {
        return true;
    }
    if !volumes::mounted(pass.base, pass.now, pass.out) || !pass.base.may_act(&Target::Claims, pass.now) {
        return false;
    }
    match claims_of(&pass.state.pod, WITH_EXTENDED) {
        Ok(claims) if claims.claims.is_empty() => {
            pass.base.claims.known = Some(Arc::default());
            return true;
        }
        Ok(claims) => {
            let effect = Effect::PrepareClaims { claims: Box::new(claims) };
            pass.issue(Target::Claims, Purpose::PrepareClaims(attempt), effect);
        }
        Err(why) => failed(pass.base, &why, pass.now, pass.out),
    }
    false
}

/// The devices of claims are known for containers in the sandbox that lives. An earlier agent prepared the claims for this sandbox.
pub(super) fn found(pass: &mut Pass<'_>) -> bool {
    if pass.base.claims.known.is_some() || !uses_claims(&pass.state.pod) {
        return true;
    }
    if !pass.base.may_act(&Target::Claims, pass.now) {
        return false;
    }
    match claims_of(&pass.state.pod, WITH_EXTENDED) {
        Ok(claims) if !claims.claims.is_empty() => {
            let effect = Effect::FindClaims { claims: Box::new(claims) };
            pass.issue(Target::Claims, Purpose::FindClaims, effect);
            return false;
        }
        Ok(_) => pass.base.claims.known = Some(Arc::default()),
        Err(why) => pass.base.claims.known = Some(Arc::new(nameless(&pass.state.pod, &why))),
    }
    true
}

/// No container that uses claims can be created for this reason.
fn nameless(p: &Pod, why: &str) -> PodClaims {
    let uses = |c: &&Container| {
        c.resources.as_ref().is_some_and(|of| of.claims.as_ref().is_some_and(|l| !l.is_empty()))
    };
    let users = pod::init_containers(p).iter().chain(pod::containers(p)).filter(uses);
    let missing = || ContainerClaims { missing: Some(why.to_owned()), ..ContainerClaims::default() };
    PodClaims { containers: users.map(|c| (c.name.clone(), missing())).collect() }
}

/// What claims give the container.
pub(super) fn of_container<'a>(b: &'a Base, container: &str) -> Option<&'a ContainerClaims> {
    b.claims.known.as_ref()?.containers.get(container)
}

/// The reason why the container cannot be created now: the node does not know one of its claims. The next attempt asks again.
pub(super) fn missing(b: &mut Base, container: &str) -> Option<String> {
    let why = of_container(b, container)?.missing.clone()?;
    b.claims.known = None;
    Some(why)
}

/// The owner of claims has reported other health.
pub(super) fn changed(b: &mut Base, claims: Arc<PodClaims>) {
    // Without claims in memory the news may be about names that the pod had before: the next question brings the health, too.
    if b.claims.give_back != GiveBack::Done && b.claims.known.is_some() {
        b.claims.known = Some(claims);
    }
}

/// An effect on claims was answered.
pub(super) fn answered(
    b: &mut Base,
    purpose: &Purpose,
    result: &EffectResult,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    match (purpose, result) {
        (Purpose::PrepareClaims(_) | Purpose::FindClaims, _) if std::mem::take(&mut b.claims.is_stale) => {
            // The question was about other claims.
            b.tracker.release(&Target::Claims, now.mono);
        }
        (Purpose::PrepareClaims(attempt), Ok(EffectOk::Claims(claims))) => {
            b.claims.known = Some(Arc::new((**claims).clone()));
            (b.claims.prepared_for, b.claims.failures) = (Some(*attempt), 0);
        }
        (Purpose::PrepareClaims(_), Ok(other)) => {
            failed(b, &format!("unexpected answer: {other:?}"), now, out)
        }
        (Purpose::PrepareClaims(_), Err(e)) => failed(b, &e.message, now, out),
        (Purpose::FindClaims, Ok(EffectOk::Claims(claims))) => {
            b.claims.known = Some(Arc::new((**claims).clone()));
        }
        (Purpose::FindClaims, Ok(_)) => b.tracker.hold(&Target::Claims, now.mono.after(restart::REQUEUE)),
        (Purpose::UnprepareClaims, Ok(_)) => {
            (b.claims.known, b.claims.give_back) = (Some(Arc::default()), GiveBack::Done);
        }
        _ => {}
    }
}

/// The claims were not prepared: an event, and another attempt later. The pod's containers wait as they did.
fn failed(b: &mut Base, why: &str, now: Now, out: &mut Outbox<PodAction>) {
    let text = format!("Failed to prepare dynamic resources: prepare dynamic resources: {why}");
    b.event(EventKind::Warning, "FailedPrepareDynamicResources", text, None, out);
    let failures = b.claims.failures;
    let wait = restart::jittered(PREPARE_AGAIN.next(failures), b.key.uid.as_str(), u64::from(failures));
    b.claims.failures = failures.saturating_add(1);
    let again = now.mono.after(wait);
    b.tracker.release(&Target::Claims, again);
    b.wake_at(again, now);
}

/// No process of the pod runs: gives its claims back. True once they are.
pub(super) fn given_back(b: &mut Base, p: Option<&Pod>, now: Now, out: &mut Outbox<PodAction>) -> bool {
    let has_some = p.is_none_or(uses_claims) || b.claims.known.is_some();
    if b.claims.give_back == GiveBack::Done || !has_some {
        return true;
    }
    if b.claims.give_back == GiveBack::Unasked && !b.tracker.busy(&Target::Claims) {
        // A wait between attempts to prepare does not count any more.
        b.tracker.release(&Target::Claims, now.mono);
        b.claims.give_back = GiveBack::Asked;
    }
    if b.may_act(&Target::Claims, now) {
        b.issue(now, Target::Claims, Purpose::UnprepareClaims, Effect::UnprepareClaims, out);
    }
    false
}
