//! Bringing up one container: image present or pulled, files, create, start.
//!
//! In: a [`Start`] of the plan, then the answers of its effects one by one. Out: the next effect, events, a
//! waiting reason on failure. Invariants: one chain at a time in a pod; the restart is counted by the
//! back-off once; a chain whose container changed meanwhile is given up. Upstream: startContainer,
//! image manager (contract 7.2, 7.4).

use agent_types::event::EventKind;
use agent_types::ids::{ContainerId, SandboxId};
use agent_types::machine::Outbox;
use agent_types::objects::Objects;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::view;
use agent_types::spec_error::CREATE_CONTAINER_CONFIG_ERROR;
use agent_types::time::{Mono, Now};
use agent_volumes::env_file::EnvFiles;

use super::api::PodAction;
use super::base::Base;
use super::ledger::{Flight, Purpose, Target};
use super::state::{Chain, Syncing};
use super::{create, hooks, pull};
use crate::container_spec::given::ImageVolumes;
use crate::images::{self, PullDecision};
use crate::pod_actions::{PodActions, Start};
use crate::pod_worker::chain::{fail, step, told_error};
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use crate::status::WaitingReason;

/// Begins the first start of the plan that may begin, unless one is under way.
pub(super) fn begin_next(
    s: &mut Syncing,
    b: &mut Base,
    home: &SandboxId,
    actions: &PodActions,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    for start in &actions.start {
        if s.chain.is_some() {
            return;
        }
        let target = Target::Container(start.slot.name.clone());
        // A hook of the instance before it is about to be given up.
        let hooked = b.ledger.busy(&Target::Hook(start.slot.name.clone()));
        if hooked || !b.may_act(&target, now) {
            continue;
        }
        let fence = b.ledger.absent_after(&target);
        if start.created.is_none() && !b.may_conclude_absence(fence, now) {
            continue;
        }
        let Some(sandbox_attempt) = sandbox_attempt(b, home) else { return };
        begin(s, b, start, home.clone(), sandbox_attempt, now, out);
    }
}

fn sandbox_attempt(b: &Base, home: &SandboxId) -> Option<u32> {
    let snapshot = b.snapshot.as_ref()?;
    snapshot.sandboxes.iter().find(|x| x.id == *home).map(|x| x.attempt)
}

fn begin(
    s: &mut Syncing,
    b: &mut Base,
    start: &Start,
    sandbox: SandboxId,
    sandbox_attempt: u32,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let Some(spec) = start.slot.spec(&s.pod) else { return };
    let (own, mounted) = match pull::wanted(&s.pod, &spec) {
        Ok(wanted) => wanted,
        Err((written, is_own, e)) => {
            let text = format!("Failed to apply default image tag \"{written}\": {e}");
            let about = is_own.then_some(start.slot.name.as_str());
            b.event(EventKind::Warning, "InspectFailed", text.clone(), about, out);
            told_error(b, &start.slot.name, "InvalidImageName", out);
            fail(s, b, &start.slot.name, "InvalidImageName", text, now, out);
            return;
        }
    };
    s.chain = Some(Chain {
        start: start.clone(),
        sandbox,
        sandbox_attempt,
        own,
        found: None,
        mounted,
        images: ImageVolumes::new(),
        objects: Objects::new(),
        files: EnvFiles::new(),
        instance: None,
        hooked: false,
    });
    match &start.created {
        Some(id) => issue_start(s, b, id.clone(), now, out),
        None => pull::look(s, b, now, out),
    }
}

fn issue_start(s: &mut Syncing, b: &mut Base, container: ContainerId, now: Now, out: &mut Outbox<PodAction>) {
    let Some(chain) = &mut s.chain else { return };
    chain.instance = Some(container.clone());
    let target = Target::Container(chain.start.slot.name.clone());
    b.issue(now, target, Purpose::Start(container.clone()), Effect::StartContainer { container }, out);
}

/// An effect of a container's chain was answered.
pub(super) fn answered(
    s: &mut Syncing,
    b: &mut Base,
    flight: &Flight,
    result: EffectResult,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let Some(chain) = s.chain.clone() else { return };
    let name = chain.start.slot.name.clone();
    let of_chain = match &flight.purpose {
        Purpose::Hook { id, .. } => chain.hooked && chain.instance.as_ref() == Some(id),
        _ => flight.target == Target::Container(name.clone()),
    };
    if !of_chain {
        return;
    }
    if given_up(s, &chain) {
        s.chain = None;
        return;
    }
    match (&flight.purpose, result) {
        (Purpose::InspectImage, Ok(EffectOk::Image(found))) => inspected(s, b, &chain, found, now, out),
        (Purpose::FetchPullSecrets, Ok(EffectOk::Objects(secrets))) => {
            pull::secrets_known(s, b, &secrets, now, out);
        }
        (Purpose::PullImage, Ok(EffectOk::Image(Some(found)))) => {
            let took = whole_millis(now.mono.since(flight.issued));
            let text = format!(
                "Successfully pulled image \"{}\" in {took} ({took} including waiting). Image size: {} bytes.",
                chain.wanted().image,
                found.size_bytes
            );
            b.event(EventKind::Normal, "Pulled", text, pull::about(&chain), out);
            s.images.succeeded(&chain.wanted().image);
            image_ready(s, b, found, now, out);
        }
        (Purpose::ContainerFiles, Ok(EffectOk::Files { newest_log: Some(newest) }))
            if is_first(b, &chain.start) && newest >= chain.start.attempt =>
        {
            // The runtime has forgotten what its logs tell of; the files are made anew for the attempt that follows.
            if let Some(chain) = &mut s.chain {
                chain.start.attempt = newest.saturating_add(1);
            }
            step(s, b, Purpose::ContainerFiles, now, out);
        }
        (Purpose::ContainerFiles, Ok(_)) => create::fetch(s, b, now, out),
        (Purpose::FetchObjects, Ok(EffectOk::Objects(objects))) => create::fetched(s, b, objects, now, out),
        (Purpose::ReadEnvFiles, Ok(EffectOk::EnvFiles(files))) => create::read(s, b, files, now, out),
        (Purpose::MountSubPaths, Ok(_)) => create::create(s, b, &chain, now, out),
        (Purpose::Create, Ok(EffectOk::Container(id))) => {
            b.event(EventKind::Normal, "Created", "Container created", Some(&name), out);
            issue_start(s, b, id, now, out);
        }
        (Purpose::Start(_), Ok(_)) => {
            b.event(EventKind::Normal, "Started", "Container started", Some(&name), out);
            if !hooks::post_start(s, b, now, out) {
                s.chain = None;
            }
        }
        (Purpose::Hook { .. }, Ok(_)) => s.chain = None,
        (Purpose::Hook { .. }, Err(_)) if flight.cancelled => s.chain = None,
        (Purpose::Hook { id, .. }, Err(e)) => {
            s.hook_failed.insert(id.clone());
            let message = e.message.replace(id.as_str(), &name);
            s.waiting.insert(name, WaitingReason { reason: hooks::POST_START_ERROR.to_owned(), message });
            s.chain = None;
        }
        // A stop of what the hook belongs to, or a removal beside it.
        _ if chain.hooked => {}
        (purpose, Err(e)) => failed(s, b, &chain, purpose, &e, now, out),
        (purpose, Ok(other)) => {
            let e = EffectError {
                class: agent_types::failure::Class::Invalid,
                message: format!("unexpected answer to {purpose:?}: {other:?}"),
            };
            failed(s, b, &chain, purpose, &e, now, out);
        }
    }
}

/// The runtime has no instance of the container.
fn is_first(b: &Base, start: &Start) -> bool {
    let has = |s: &PodSnapshot| view::newest(s, &start.slot.name).is_some();
    start.created.is_none() && !b.snapshot.as_deref().is_some_and(has)
}

/// The container's image was changed, or the container removed, while its chain was under way.
fn given_up(s: &Syncing, chain: &Chain) -> bool {
    let now_wanted = chain.start.slot.spec(&s.pod).and_then(|c| c.image.clone());
    now_wanted.and_then(|i| images::normalize(&i).ok()).as_deref() != Some(chain.own.image.as_str())
}

fn inspected(
    s: &mut Syncing,
    b: &mut Base,
    chain: &Chain,
    found: Option<ImageInfo>,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let (name, wanted) = (&chain.start.slot.name, chain.wanted());
    match (images::pull_decision(wanted.policy, found.is_some()), found) {
        (PullDecision::UsePresent, Some(info)) => {
            let text = format!(
                "Container image \"{}\" already present on machine and can be accessed by the pod",
                wanted.image
            );
            b.event(EventKind::Normal, "Pulled", text, pull::about(chain), out);
            image_ready(s, b, info, now, out);
        }
        (PullDecision::NeverPull, _) => {
            let text =
                format!("Container image \"{}\" is not present with pull policy of Never", wanted.image);
            b.event(EventKind::Warning, "ErrImageNeverPull", text.clone(), pull::about(chain), out);
            told_error(b, name, "ErrImageNeverPull", out);
            fail(s, b, name, "ErrImageNeverPull", text, now, out);
        }
        _ => match s.images.wait(&wanted.image, now.mono) {
            Some(due) => back_off_pull(s, b, chain, due, now, out),
            None => pull::begin(b, chain, now, out),
        },
    }
}

fn back_off_pull(
    s: &mut Syncing,
    b: &mut Base,
    chain: &Chain,
    due: Mono,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let name = &chain.start.slot.name;
    let text = format!("Back-off pulling image \"{}\"", chain.wanted().image);
    b.event(EventKind::Normal, "BackOff", text.clone(), pull::about(chain), out);
    told_error(b, name, "ImagePullBackOff", out);
    let cause = s.waiting.get(name).filter(|w| !w.message.starts_with("Back-off")).cloned();
    let message = match (cause, s.waiting.get(name)) {
        (Some(w), _) if w.reason != "CrashLoopBackOff" => format!("{text}: {}: {}", w.reason, w.message),
        (_, Some(w)) if w.reason == "ImagePullBackOff" => w.message.clone(),
        _ => text,
    };
    s.waiting.insert(name.clone(), WaitingReason { reason: "ImagePullBackOff".to_owned(), message });
    b.ledger.hold(&Target::Container(name.clone()), due);
    b.wake_at(due, now);
    s.chain = None;
}

fn image_ready(s: &mut Syncing, b: &mut Base, found: ImageInfo, now: Now, out: &mut Outbox<PodAction>) {
    let Some(chain) = &mut s.chain else { return };
    if let Some(volume) = chain.wanted().volume.clone() {
        chain.images.insert(volume, found.id);
        return step(s, b, Purpose::InspectImage, now, out);
    }
    chain.found = Some(found);
    step(s, b, Purpose::ContainerFiles, now, out);
}

fn failed(
    s: &mut Syncing,
    b: &mut Base,
    chain: &Chain,
    purpose: &Purpose,
    e: &EffectError,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let name = chain.start.slot.name.as_str();
    let (reason, text) = match purpose {
        Purpose::InspectImage => {
            let text = format!("Failed to inspect image \"{}\": {}", chain.wanted().image, e.message);
            b.event(EventKind::Warning, "InspectFailed", text.clone(), pull::about(chain), out);
            ("ImageInspectError", text)
        }
        Purpose::PullImage => {
            let text = format!("Failed to pull image \"{}\": {}", chain.wanted().image, e.message);
            b.event(EventKind::Warning, "Failed", text, pull::about(chain), out);
            let due = s.images.failed(&chain.wanted().image, now.mono);
            // A short while as ErrImagePull, then the status says that it is backing off until when.
            let look = now.mono.after(std::time::Duration::from_secs(2)).min(due);
            b.ledger.release(&Target::Container(name.to_owned()), look);
            (pull_reason(&e.message), e.message.clone())
        }
        Purpose::ContainerFiles => {
            let text = format!("error making container files: {}", e.message);
            (CREATE_CONTAINER_CONFIG_ERROR, text)
        }
        Purpose::MountSubPaths | Purpose::ReadEnvFiles => (CREATE_CONTAINER_CONFIG_ERROR, e.message.clone()),
        Purpose::Create => ("CreateContainerError", e.message.clone()),
        _ => ("RunContainerError", e.message.clone()),
    };
    let of_image = matches!(purpose, Purpose::PullImage | Purpose::InspectImage);
    told_error(b, name, if of_image { reason } else { &text }, out);
    s.waiting.insert(name.to_owned(), WaitingReason { reason: reason.to_owned(), message: text });
    s.chain = None;
}

/// Runtimes put the kind of a pull failure in front of their message.
fn pull_reason(message: &str) -> &'static str {
    ["RegistryUnavailable", "SignatureValidationFailed"]
        .into_iter()
        .find(|known| message.contains(known))
        .unwrap_or("ErrImagePull")
}

/// The duration as Go prints it, without parts of a millisecond (upstream: `Truncate(time.Millisecond)`).
fn whole_millis(d: std::time::Duration) -> orlop_config::Duration {
    orlop_config::Duration::from_millis(i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
