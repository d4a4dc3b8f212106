//! The pod worker's side of its volumes: set up before containers start, looked through when sources change, torn down
//! when the pod's containers have ended.
//!
//! In: the pod, answers of set-ups. Out: effects, events. Invariants: see [`agent_volumes`]; a pod without volumes costs
//! nothing here.

use agent_types::event::{EventFact, EventKind};
use agent_types::kill::KillReason;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::time::{Mono, Now};
use agent_volumes::account::{self, ASK_AFTER};
use agent_volumes::claim::{self, ClaimError};
use agent_volumes::csi::limits::ATTACH_LIMIT;
use agent_volumes::references::parts_of_pod;
use agent_volumes::{DesiredVolume, Resize, SetUpError, inline};
use k8s_openapi::api::core::v1::Pod;

use super::api::PodAction;
use super::base::Base;
use super::tracker::{Purpose, Target};
use crate::admission::Rejection;
use crate::pod_worker::effect::{Effect, EffectOk, EffectResult, Mounted};

/// Upstream's documentation of the setting that avoids this work.
const GIVING_ADVICE: &str = "https://kubernetes.io/docs/tasks/configure-pod-container/security-context/\
    #configure-volume-permission-and-ownership-change-policy-for-pods";

/// Most set-ups of one pod in flight at the same time.
const SET_UPS_MAX: usize = 4;

/// Takes the new pod `p`; `before` is the previous one.
pub(super) fn desired(b: &mut Base, before: Option<&Pod>, p: &Pod, now: Now) {
    // An image is mounted by the runtime, with its containers.
    let volumes = pod::spec(p).volumes.iter().flatten().filter(|v| v.image.is_none());
    let volumes = volumes.filter(|v| !inline::is_idle(p, v));
    b.volumes.desire(volumes.map(|v| DesiredVolume {
        name: &v.name,
        claimed: inline::is_inline(v) || claim::has_one(v),
        account: account::is_account(v),
        not_before: if account::asks(v) { now.mono.after(ASK_AFTER) } else { Mono(0) },
    }));
    let shown = |p: &Pod| (p.metadata.labels.clone(), p.metadata.annotations.clone());
    // A claim may have grown: as upstream, a pod that changes is a reason to look.
    let has_claims = pod::spec(p).volumes.iter().flatten().any(claim::has_one);
    if (reads_itself(p) || has_claims) && before.is_some_and(|old| shown(old) != shown(p)) {
        b.volumes.sources_changed();
    }
}

/// A volume shows the pod's own labels or annotations.
fn reads_itself(p: &Pod) -> bool {
    let whole = pod::spec(p).volumes.iter().flatten().any(|volume| volume.downward_api.is_some());
    whole || parts_of_pod(p).any(|part| part.downward_api.is_some())
}

/// Starts the due set-ups.
pub(super) fn advance(b: &mut Base, p: &Pod, now: Now, out: &mut Outbox<PodAction>) {
    for name in b.volumes.due(now.mono) {
        if b.tracker.volumes_busy() >= SET_UPS_MAX {
            break; // The answer of one of them makes the next pass.
        }
        if let Some(claim) = claim::of_pod(p, &name).filter(|_| b.volumes.is_unbound(&name)) {
            b.volumes.began(&name);
            let (target, purpose) = (Target::Volume(name.clone()), Purpose::ResolveClaim(name));
            b.issue(now, target, purpose, Effect::ResolveClaim { claim }, out);
            continue;
        }
        if b.volumes.is_unbound(&name) && !bind(b, p, &name, now, out) {
            continue;
        }
        match b.ctx.specs.volume(p, &name, b.volumes.claims()) {
            Ok(mut volume) => {
                b.volumes.began(&name);
                volume.work.say_why(b.volumes.is_overdue(&name));
                if let Some(global) = volume.work.global() {
                    b.volumes.maps(&name, [global.to_owned(), volume.path.clone()]);
                }
                let (target, purpose) = (Target::Volume(name.clone()), Purpose::SetUpVolume(name));
                b.issue(now, target, purpose, Effect::SetUpVolume { volume: Box::new(volume) }, out);
            }
            Err(SetUpError::Failed(why)) => failed(b, &name, &why, now, out),
            Err(SetUpError::Unprocessed(why)) => unprocessed(b, &name, &why, now, out),
        }
    }
    if let Some(at) = b.volumes.deadline(now.mono) {
        b.wake_at(at, now);
    }
}

/// Resolves a volume that is not a claim's. False: the volume is unusable, and an event has the reason.
fn bind(b: &mut Base, p: &Pod, name: &str, now: Now, out: &mut Outbox<PodAction>) -> bool {
    let volume = pod::spec(p).volumes.iter().flatten().find(|v| v.name == name);
    match volume.and_then(|volume| inline::bound(p, volume)) {
        Some(Ok(bound)) => b.volumes.bound(name, bound),
        Some(Err(why)) => {
            unresolved(b, name, &why.to_string(), now, out);
            return false;
        }
        // The pod does not name the volume any more: its set-up reports the error.
        None => {}
    }
    true
}

/// The sandbox may be made.
pub(super) fn let_sandbox(b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    b.volumes.let_sandbox() || mounted(b, now, out)
}

/// True if containers may start. If not, an event names the missing volumes from time to time.
pub(super) fn mounted(b: &mut Base, now: Now, out: &mut Outbox<PodAction>) -> bool {
    if b.volumes.all_mounted() {
        b.volumes.waited();
        return true;
    }
    if let Some(text) = b.volumes.wait(now.mono) {
        b.event(EventKind::Warning, "FailedMount", text, None, out);
    }
    if let Some(at) = b.volumes.deadline(now.mono) {
        b.wake_at(at, now);
    }
    false
}

/// The pod must end: the node's attach limit excludes one of its volumes.
pub(super) fn refused(b: &mut Base, out: &mut Outbox<PodAction>) -> Option<KillReason> {
    let rejection = Rejection { reason: ATTACH_LIMIT.to_owned(), message: b.volumes.no_room()? };
    b.event(EventKind::Warning, ATTACH_LIMIT, rejection.message.clone(), None, out);
    Some(rejection.into())
}

/// A set-up of `name` or the tearing down was answered.
pub(super) fn answered(
    b: &mut Base,
    purpose: &Purpose,
    result: &EffectResult,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    match (purpose, result) {
        (Purpose::ResolveClaim(name), Ok(EffectOk::Claim(Ok(bound)))) => {
            b.volumes.bound(name, (**bound).clone());
        }
        (Purpose::ResolveClaim(name), Ok(EffectOk::Claim(Err(e @ ClaimError::Refused { .. })))) => {
            b.volumes.failed(name, now.mono);
            b.event(EventKind::Warning, "FailedMount", e.to_string(), None, out);
        }
        (Purpose::ResolveClaim(name), Ok(EffectOk::Claim(Err(e)))) => {
            unresolved(b, name, &e.to_string(), now, out)
        }
        (Purpose::ResolveClaim(name), Err(e)) => unresolved(b, name, &e.message, now, out),
        (Purpose::SetUpVolume(name), Ok(EffectOk::Unattached { full })) => {
            b.volumes.unattached(name, *full, now.mono);
        }
        (Purpose::SetUpVolume(name), Ok(EffectOk::Unprocessed { why })) => {
            unprocessed(b, name, why, now, out);
        }
        (Purpose::SetUpVolume(name), Ok(EffectOk::Giving { path, entries, took })) => {
            if let Some(first) = b.volumes.giving(name, *took) {
                tell_giving(b, path, first, *entries, out);
            }
        }
        (Purpose::SetUpVolume(name), Ok(ok)) => {
            let (mut renew, mut is_labelled) = (None, false);
            if let EffectOk::Volume(Mounted { renew_after, warning, resize, labelled }) = ok {
                renew = renew_after.map(|after| now.mono.after(after));
                is_labelled = *labelled;
                if let Some(warning) = warning {
                    b.event(EventKind::Warning, "AlreadyMountedVolume", warning, None, out);
                }
                if let Some(resize) = resize {
                    tell_resize(b, name, resize, out);
                }
            }
            tell_mapped(b, name, out);
            b.volumes.succeeded(name, renew, is_labelled);
        }
        (Purpose::SetUpVolume(name), Err(e)) => failed(b, name, &e.message, now, out),
        (Purpose::TearDownVolumes, Ok(_)) => b.volumes.gone(),
        _ => {}
    }
}

/// The volume of a claim is unknown, or cannot be used.
fn unresolved(b: &mut Base, name: &str, why: &str, now: Now, out: &mut Outbox<PodAction>) {
    b.volumes.failed(name, now.mono);
    b.event(EventKind::Warning, "FailedMount", b.volumes.wait_ended(why), None, out);
}

/// A volume was not set up.
fn failed(b: &mut Base, name: &str, why: &str, now: Now, out: &mut Outbox<PodAction>) {
    tell_failure(b, name, why, out);
    b.volumes.failed(name, now.mono);
}

/// No known plugin handles the volume.
fn unprocessed(b: &mut Base, name: &str, why: &str, now: Now, out: &mut Outbox<PodAction>) {
    b.volumes.unprocessed(name, now.mono);
    b.event(EventKind::Warning, "FailedMount", b.volumes.wait_ended(why), None, out);
}

/// Upstream's path in this message begins at the pod's UID.
fn tell_giving(b: &mut Base, path: &str, first: bool, entries: u64, out: &mut Outbox<PodAction>) {
    let uid = b.key.uid.as_str();
    let from = path.find(uid).filter(|_| !uid.is_empty()).unwrap_or(0);
    let place = path.get(from..).unwrap_or(path);
    let text = match first {
        true => format!(
            "Setting volume ownership for {place} is taking longer than expected, consider using OnRootMismatch - {GIVING_ADVICE}"
        ),
        false => format!("Setting volume ownership for {place}, processed {entries} files."),
    };
    b.event(EventKind::Warning, "VolumePermissionChangeInProgress", text, None, out);
}

/// A claim's volume is called as its PersistentVolume is.
fn tell_failure(b: &Base, name: &str, why: &str, out: &mut Outbox<PodAction>) {
    let bound = b.volumes.claims().get(name);
    let block = bound.is_some_and(|bound| bound.block);
    let name = bound.map_or(name, |bound| bound.volume.as_str());
    let (step, reason) = if block {
        (agent_volumes::SET_UP_DEVICE, "FailedMapVolume")
    } else {
        (agent_volumes::SET_UP, "FailedMount")
    };
    let text = agent_volumes::step_failed(step, name, why);
    b.event(EventKind::Warning, reason, text, None, out);
}

/// A block device is mapped: upstream's event has its paths on the node and in the pod's directory.
fn tell_mapped(b: &mut Base, name: &str, out: &mut Outbox<PodAction>) {
    let Some([global, pod]) = b.volumes.mapped(name) else { return };
    let of = b.volumes.claims().get(name).map_or(name, |bound| bound.volume.as_str());
    let said = [("globalMapPath", global), ("volumeMapPath", pod)]
        .map(|(what, at)| format!("MapVolume.MapPodDevice succeeded for volume {of:?} {what} {at:?}"));
    for text in said {
        b.event(EventKind::Normal, "SuccessfulMountVolume", text, None, out);
    }
}

fn tell_resize(b: &mut Base, name: &str, resize: &Resize, out: &mut Outbox<PodAction>) {
    let of = b.volumes.claims().get(name).map_or(name, |bound| bound.volume.as_str());
    match resize {
        Resize::Done { node, claim } => {
            let text = format!("MountVolume.NodeExpandVolume succeeded for volume {of:?} {node}");
            let fact = b.fact(EventKind::Normal, "FileSystemResizeSuccessful", text, None);
            out.push(PodAction::Event(EventFact { claim: Some(claim.clone()), ..fact }));
        }
        // Upstream: `expandVolumeDuringMount` of pkg/volume/util/operationexecutor/operation_generator.go.
        Resize::ReadOnly { claim } => {
            let text = format!(
                "MountVolume.NodeExpandVolume failed for volume {of:?} requested read-only file system"
            );
            let fact = b.fact(EventKind::Warning, "FileSystemResizeFailed", text, None);
            out.push(PodAction::Event(EventFact { claim: Some(claim.clone()), ..fact }));
        }
        Resize::Failed(why) => {
            let text = agent_volumes::step_failed("NodeExpandVolume.NodeExpandVolume", of, why);
            b.event(EventKind::Warning, "VolumeResizeFailed", text, None, out);
        }
    }
}

/// There are none, or they were taken away.
pub(super) fn are_released(b: &Base, p: Option<&Pod>) -> bool {
    let has_none = p.is_some_and(|p| pod::spec(p).volumes.as_ref().is_none_or(Vec::is_empty));
    has_none || b.volumes.are_gone()
}

/// No process of the pod runs: tears its volumes down. True once they are gone. For a pod without a
/// specification (`None`) only the disk lists its volumes.
pub(super) fn torn_down(b: &mut Base, p: Option<&Pod>, now: Now, out: &mut Outbox<PodAction>) -> bool {
    if are_released(b, p) {
        return true;
    }
    if b.tracker.volumes_busy() > 0 || b.tracker.busy(&Target::Volumes) {
        return false;
    }
    if let Some(held) = b.tracker.held_until(&Target::Volumes, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    b.issue(now, Target::Volumes, Purpose::TearDownVolumes, Effect::TearDownVolumes, out);
    false
}
