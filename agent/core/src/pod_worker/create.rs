//! Creates one container, after its image and its files are present.
//!
//! In: a chain. Out: the effects that read the objects and files of its environment and mount its parts of
//! volumes, if there are any, then the effect that creates the container. Invariants: the instance is created
//! from the values that were read for it; an unresolvable reference becomes the container's waiting reason,
//! and the worker tries again later.

use agent_types::event::EventKind;
use agent_types::machine::Outbox;
use agent_types::objects::Objects;
use agent_types::resources::requests::resources_in_pod;
use agent_types::runtime::config::{ContainerConfig, NamespaceMode};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::view::{Slot, SlotKind};
use agent_types::spec_error::SpecError;
use agent_types::time::Now;
use agent_volumes::env_file::EnvFiles;

use super::api::PodAction;
use super::base::Base;
use super::ledger::{Purpose, Target};
use super::state::{Chain, Syncing};
use super::users;
use crate::container_spec::given::Given;
use crate::pod_actions;
use crate::pod_actions::ended::back_off_key;
use crate::pod_worker::back_off::{RESTART_BACK_OFF, noted_back_off};
use crate::pod_worker::chain::fail;
use crate::pod_worker::effect::Effect;

/// The files are there: has the environment's objects fetched, if there are any.
pub(super) fn fetch(s: &mut Syncing, b: &mut Base, now: Now, out: &mut Outbox<PodAction>) {
    let Some(chain) = &s.chain else { return };
    let objects = b.ctx.specs.objects(&s.pod, chain.start.slot.container_ref());
    if objects.is_empty() {
        return fetched(s, b, Objects::new(), now, out);
    }
    let target = Target::Container(chain.start.slot.name.clone());
    b.issue(now, target, Purpose::FetchObjects, Effect::FetchObjects { objects }, out);
}

/// The objects are known: has the environment's files read, if there are any.
pub(super) fn fetched(
    s: &mut Syncing,
    b: &mut Base,
    objects: Objects,
    now: Now,
    out: &mut Outbox<PodAction>,
) {
    let Some(chain) = &mut s.chain else { return };
    chain.objects = objects;
    let slot = chain.start.slot.clone();
    match b.ctx.specs.env_files(&s.pod, slot.container_ref()) {
        Ok(files) if files.is_empty() => read(s, b, EnvFiles::new(), now, out),
        Ok(files) => {
            let target = Target::Container(slot.name);
            b.issue(now, target, Purpose::ReadEnvFiles, Effect::ReadEnvFiles { files }, out);
        }
        Err(e) => refuse(s, b, &slot.name, e, now, out),
    }
}

/// The environment is known: has parts of volumes mounted, if there are any.
pub(super) fn read(s: &mut Syncing, b: &mut Base, files: EnvFiles, now: Now, out: &mut Outbox<PodAction>) {
    let Some(chain) = &mut s.chain else { return };
    chain.files = files;
    let chain = chain.clone();
    let slot = &chain.start.slot;
    let Some(image) = &chain.found else { return };
    let ips = b.shown_ips();
    let given = given(b, &chain, image, &ips);
    match b.ctx.specs.sub_paths(&s.pod, slot.container_ref(), given) {
        Ok(parts) if parts.is_empty() => create(s, b, &chain, now, out),
        Ok(parts) => {
            let target = Target::Container(slot.name.clone());
            b.issue(now, target, Purpose::MountSubPaths, Effect::MountSubPaths { parts }, out);
        }
        Err(e) => refuse(s, b, &slot.name, e, now, out),
    }
}

fn given<'a>(b: &'a Base, chain: &'a Chain, image: &'a ImageInfo, pod_ips: &'a [String]) -> Given<'a> {
    Given {
        image,
        pod_ips,
        objects: &chain.objects,
        files: &chain.files,
        claims: b.volumes.claims(),
        images: &chain.images,
        recursive_read_only: b.makes_read_only(),
    }
}

/// A reference of the pod cannot be resolved.
fn refuse(s: &mut Syncing, b: &mut Base, name: &str, e: SpecError, now: Now, out: &mut Outbox<PodAction>) {
    b.event(EventKind::Warning, "Failed", format!("Error: {}", e.message), Some(name), out);
    fail(s, b, name, e.reason, e.message, now, out);
}

/// All inputs are present: creates the container.
pub(super) fn create(s: &mut Syncing, b: &mut Base, chain: &Chain, now: Now, out: &mut Outbox<PodAction>) {
    let (slot, attempt) = (&chain.start.slot, chain.start.attempt);
    let Some(image) = &chain.found else { return };
    let specs = b.ctx.specs.clone();
    let ips = b.shown_ips();
    let given = given(b, chain, image, &ips);
    let built = specs.sandbox(&s.pod, chain.sandbox_attempt, b.volumes.claims()).and_then(|mut sandbox| {
        let mut c = specs.container(&s.pod, slot.container_ref(), attempt, given)?;
        users::of_sandbox(s, &mut sandbox);
        users::of_container(s, &mut c);
        look_at(s, b, slot, &mut c)?;
        Ok((sandbox, c))
    });
    let (sandbox_config, mut config) = match built {
        Ok(both) => both,
        Err(e) => return refuse(s, b, &slot.name, e, now, out),
    };
    if let Some(delay) = count_restart(s, chain, now) {
        let note = noted_back_off(&back_off_key(&s.pod, slot), delay);
        config.annotations.insert(RESTART_BACK_OFF.to_owned(), note);
    }
    let effect = Effect::CreateContainer {
        sandbox: chain.sandbox.clone(),
        config: Box::new(config),
        sandbox_config: Box::new(sandbox_config),
        actuates: Box::new(slot.spec(&s.pod).map(|c| resources_in_pod(&s.pod, &c)).unwrap_or_default()),
    };
    b.issue(now, Target::Container(slot.name.clone()), Purpose::Create, effect, out);
}

/// An ephemeral container enters the process namespace of its target. The target must exist; with a shared
/// process namespace there is nothing to enter.
fn look_at(s: &Syncing, b: &Base, slot: &Slot, c: &mut ContainerConfig) -> Result<(), SpecError> {
    let Some(snapshot) = b.snapshot.as_deref().filter(|_| slot.kind == SlotKind::Ephemeral) else {
        return Ok(());
    };
    let target = pod_actions::target(&s.pod, &slot.name, snapshot).map_err(SpecError::container)?;
    if c.security.namespaces.pid == NamespaceMode::Container {
        c.security.pid_target = target;
    }
    Ok(())
}

/// Counts the restart once for each attempt, however often its creation has to be repeated; answers the delay that is in
/// force from then on.
fn count_restart(s: &mut Syncing, chain: &Chain, now: Now) -> Option<std::time::Duration> {
    let (slot, attempt) = (&chain.start.slot, chain.start.attempt);
    let key = back_off_key(&s.pod, slot);
    let counts = chain.start.counts || s.reset_ends.contains_key(&slot.name);
    if !counts || s.counted.insert(slot.name.clone(), attempt) == Some(attempt) {
        return s.back_off.delay(&key);
    }
    Some(s.back_off.restarted(&key, now))
}
