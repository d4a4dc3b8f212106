//! Starts one container: check or pull the image, write files, create, start.
//!
//! In: a [`Start`] of the plan, then the answers of its effects one by one. Out: the next effect, events, a
//! waiting reason on failure. Invariants: one chain at a time in a pod; the back-off counts a restart once;
//! the worker abandons a chain whose container changed in the meantime. Upstream: `startContainer` of
//! pkg/kubelet/kuberuntime/kuberuntime_container.go, pkg/kubelet/images/image_manager.go.

use agent_types::event::EventKind;
use agent_types::ids::{ContainerId, SandboxId};
use agent_types::objects::Objects;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::view;
use agent_types::spec_error::CREATE_CONTAINER_CONFIG_ERROR;
use agent_types::time::Mono;
use agent_volumes::env_file::EnvFiles;

use super::base::Base;
use super::state::{Chain, Syncing};
use super::tracker::{Flight, Purpose, Target};
use super::{create, hooks, pull};
use crate::container_spec::inputs::ImageVolumes;
use crate::images::{self, PullDecision};
use crate::pod_actions::{PodActions, Start};
use crate::pod_worker::chain::{fail, step, told_error};
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use crate::pod_worker::pass::Pass;
use crate::status::WaitingReason;

/// Begins the first start of the plan that may begin, unless a chain is active.
pub(super) fn begin_next(pass: &mut Pass<'_>, home: &SandboxId, actions: &PodActions) {
    for start in &actions.start {
        if pass.state.chain.is_some() {
            return;
        }
        let target = Target::Container(start.slot.name.clone());
        // The worker is about to give up a hook of the previous instance.
        let hooked = pass.base.tracker.busy(&Target::Hook(start.slot.name.clone()));
        if hooked || !pass.base.may_act(&target, pass.now) {
            continue;
        }
        let fence = pass.base.tracker.absent_after(&target);
        if start.created.is_none() && !pass.base.may_conclude_absence(fence, pass.now) {
            continue;
        }
        let Some(sandbox_attempt) = sandbox_attempt(pass.base, home) else { return };
        begin(pass, start, home.clone(), sandbox_attempt);
    }
}

fn sandbox_attempt(b: &Base, home: &SandboxId) -> Option<u32> {
    let snapshot = b.snapshot.as_ref()?;
    snapshot.sandboxes.iter().find(|x| x.id == *home).map(|x| x.attempt)
}

fn begin(pass: &mut Pass<'_>, start: &Start, sandbox: SandboxId, sandbox_attempt: u32) {
    let Some(spec) = start.slot.spec(&pass.state.pod) else { return };
    let (own, mounted) = match pull::wanted(&pass.state.pod, &spec) {
        Ok(wanted) => wanted,
        Err((written, is_own, e)) => {
            let text = format!("Failed to apply default image tag \"{written}\": {e}");
            let about = is_own.then_some(start.slot.name.as_str());
            pass.event(EventKind::Warning, "InspectFailed", text.clone(), about);
            told_error(pass.base, &start.slot.name, "InvalidImageName", pass.out);
            fail(pass, &start.slot.name, "InvalidImageName", text);
            return;
        }
    };
    pass.state.chain = Some(Chain {
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
        Some(id) => issue_start(pass, id.clone()),
        None => pull::look(pass),
    }
}

fn issue_start(pass: &mut Pass<'_>, container: ContainerId) {
    let Some(chain) = &mut pass.state.chain else { return };
    chain.instance = Some(container.clone());
    let target = Target::Container(chain.start.slot.name.clone());
    pass.issue(target, Purpose::Start(container.clone()), Effect::StartContainer { container });
}

/// An effect of a container's chain was answered.
pub(super) fn answered(pass: &mut Pass<'_>, flight: &Flight, result: EffectResult) {
    let Some(chain) = pass.state.chain.clone() else { return };
    let name = chain.start.slot.name.clone();
    let of_chain = match &flight.purpose {
        Purpose::Hook { id, .. } => chain.hooked && chain.instance.as_ref() == Some(id),
        _ => flight.target == Target::Container(name.clone()),
    };
    if !of_chain {
        return;
    }
    if given_up(pass.state, &chain) {
        pass.state.chain = None;
        return;
    }
    match (&flight.purpose, result) {
        (Purpose::InspectImage, Ok(EffectOk::Image(found))) => inspected(pass, &chain, found),
        (Purpose::FetchPullSecrets, Ok(EffectOk::Objects(secrets))) => {
            pull::secrets_known(pass, &secrets);
        }
        (Purpose::PullImage, Ok(EffectOk::Pulled { image, took })) => {
            let text = format!(
                "Successfully pulled image \"{}\" in {} ({} including waiting). Image size: {} bytes.",
                chain.wanted().written(),
                whole_millis(took),
                whole_millis(pass.now.mono.since(flight.issued)),
                image.size_bytes
            );
            pass.event(EventKind::Normal, "Pulled", text, pull::about(&chain));
            pass.state.images.forget_expired(pass.now.mono);
            image_ready(pass, image);
        }
        (Purpose::ContainerFiles, Ok(EffectOk::Files { newest_log: Some(newest) }))
            if is_first(pass.base, &chain.start) && newest >= chain.start.attempt =>
        {
            // The runtime has forgotten an instance that its logs show; the next attempt needs new files.
            if let Some(chain) = &mut pass.state.chain {
                chain.start.attempt = newest.saturating_add(1);
            }
            step(pass, Purpose::ContainerFiles);
        }
        (Purpose::ContainerFiles, Ok(_)) => create::fetch(pass),
        (Purpose::FetchObjects, Ok(EffectOk::Objects(objects))) => create::fetched(pass, objects),
        (Purpose::ReadEnvFiles, Ok(EffectOk::EnvFiles(files))) => create::read(pass, files),
        (Purpose::MountSubPaths, Ok(_)) => create::pre_start(pass, &chain),
        (Purpose::PreStartDevices, Ok(_)) => create::allocate(pass, &chain),
        (Purpose::AllocateDevices, Ok(_)) => create::allocated(pass, &chain),
        (Purpose::Create, Ok(EffectOk::Container(id))) => {
            pass.event(EventKind::Normal, "Created", "Container created", Some(&name));
            issue_start(pass, id);
        }
        (Purpose::Start(_), Ok(_)) => {
            pass.event(EventKind::Normal, "Started", "Container started", Some(&name));
            if !hooks::post_start(pass) {
                pass.state.chain = None;
            }
        }
        (Purpose::Hook { .. }, Ok(_)) => pass.state.chain = None,
        (Purpose::Hook { .. }, Err(_)) if flight.cancelled => pass.state.chain = None,
        (Purpose::Hook { id, .. }, Err(e)) => {
            pass.state.hook_failed.insert(id.clone());
            let message = e.message.replace(id.as_str(), &name);
            pass.state
                .waiting
                .insert(name, WaitingReason { reason: hooks::POST_START_ERROR.to_owned(), message });
            pass.state.chain = None;
        }
        // A stop of the hook's container, or a removal at the same time.
        _ if chain.hooked => {}
        (purpose, Err(e)) => failed(pass, &chain, purpose, &e),
        (purpose, Ok(other)) => {
            let e = EffectError {
                class: agent_types::failure::Class::Invalid,
                message: format!("unexpected answer to {purpose:?}: {other:?}"),
            };
            failed(pass, &chain, purpose, &e);
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

fn inspected(pass: &mut Pass<'_>, chain: &Chain, found: Option<ImageInfo>) {
    let (name, wanted) = (&chain.start.slot.name, chain.wanted());
    match (images::pull_decision(wanted.policy, found.is_some()), found) {
        (PullDecision::UsePresent, Some(info)) => {
            let text = format!(
                "Container image \"{}\" already present on machine and can be accessed by the pod",
                wanted.written()
            );
            pass.event(EventKind::Normal, "Pulled", text, pull::about(chain));
            image_ready(pass, info);
        }
        (PullDecision::NeverPull, _) => {
            let text =
                format!("Container image \"{}\" is not present with pull policy of Never", wanted.written());
            pass.event(EventKind::Warning, "ErrImageNeverPull", text.clone(), pull::about(chain));
            told_error(pass.base, name, "ErrImageNeverPull", pass.out);
            fail(pass, name, "ErrImageNeverPull", text);
        }
        _ => match pass.state.images.wait(wanted.written(), pass.now.mono) {
            Some(due) => back_off_pull(pass, chain, due),
            None => pull::begin(pass.base, chain, pass.now, pass.out),
        },
    }
}

fn back_off_pull(pass: &mut Pass<'_>, chain: &Chain, due: Mono) {
    let name = &chain.start.slot.name;
    let image = chain.wanted().written();
    let text = format!("Back-off pulling image \"{image}\"");
    pass.event(EventKind::Normal, "BackOff", text.clone(), pull::about(chain));
    told_error(pass.base, name, "ImagePullBackOff", pass.out);
    // Whichever container of the pod saw the pull fail.
    let message = match pass.state.images.why(image) {
        Some(why) => format!("{text}: {why}"),
        None => text,
    };
    pass.state.waiting.insert(name.clone(), WaitingReason { reason: "ImagePullBackOff".to_owned(), message });
    pass.base.tracker.hold(&Target::Container(name.clone()), due);
    pass.base.wake_at(due, pass.now);
    pass.state.chain = None;
}

fn image_ready(pass: &mut Pass<'_>, found: ImageInfo) {
    let Some(chain) = &mut pass.state.chain else { return };
    if let Some(volume) = chain.wanted().volume.clone() {
        chain.images.insert(volume, found.id);
        return step(pass, Purpose::InspectImage);
    }
    chain.found = Some(found);
    step(pass, Purpose::ContainerFiles);
}

fn failed(pass: &mut Pass<'_>, chain: &Chain, purpose: &Purpose, e: &EffectError) {
    let name = chain.start.slot.name.as_str();
    let (reason, text) = match purpose {
        Purpose::InspectImage => {
            // Upstream leaves the name empty in this message.
            let text = format!("Failed to inspect image \"{}\": {}", chain.wanted().written(), e.message);
            pass.event(EventKind::Warning, "InspectFailed", text.clone(), pull::about(chain));
            ("ImageInspectError", text)
        }
        Purpose::PullImage => {
            let image = chain.wanted().written();
            let text = format!("Failed to pull image \"{image}\": {}", e.message);
            pass.event(EventKind::Warning, "Failed", text, pull::about(chain));
            let (reason, message) = pull_error(image, &e.message);
            let why = format!("{reason}: {message}");
            let due = pass.state.images.failed(image, why, pass.now.mono);
            // First the status shows ErrImagePull for a moment, then the back-off with its end.
            let look = pass.now.mono.after(std::time::Duration::from_secs(2)).min(due);
            pass.base.tracker.release(&Target::Container(name.to_owned()), look);
            (reason, message)
        }
        Purpose::ContainerFiles => {
            let text = format!("error making container files: {}", e.message);
            (CREATE_CONTAINER_CONFIG_ERROR, text)
        }
        Purpose::MountSubPaths
        | Purpose::ReadEnvFiles
        | Purpose::PreStartDevices
        | Purpose::AllocateDevices => (CREATE_CONTAINER_CONFIG_ERROR, e.message.clone()),
        Purpose::Create => ("CreateContainerError", e.message.clone()),
        _ => ("RunContainerError", e.message.clone()),
    };
    let of_image = matches!(purpose, Purpose::PullImage | Purpose::InspectImage);
    told_error(pass.base, name, if of_image { reason } else { &text }, pass.out);
    pass.state.waiting.insert(name.to_owned(), WaitingReason { reason: reason.to_owned(), message: text });
    pass.state.chain = None;
}

/// Waiting reason and message of a pull that failed. A runtime (CRI-O) begins its message with the kind of the failure,
/// if it knows it. Upstream: `evalCRIPullErr` of pkg/kubelet/images/image_manager.go.
fn pull_error(image: &str, message: &str) -> (&'static str, String) {
    let kinds = [
        ("RegistryUnavailable", "the registry is unavailable"),
        ("SignatureValidationFailed", "the signature validation failed"),
    ];
    let known = kinds.into_iter().find_map(|(kind, what)| {
        let detail = message.strip_prefix(kind)?;
        Some((kind, format!("image pull failed for {image} because {what}{detail}")))
    });
    known.unwrap_or_else(|| ("ErrImagePull", message.to_owned()))
}

/// The duration as Go prints it, without parts of a millisecond (upstream: `Truncate(time.Millisecond)`).
fn whole_millis(d: std::time::Duration) -> orlop_config::Duration {
    orlop_config::Duration::from_millis(i64::try_from(d.as_millis()).unwrap_or(i64::MAX))
}
