//! Creates one container, after its image and its files are present.
//!
//! In: a chain. Out: the effects that read the objects and files of its environment, mount its parts of
//! volumes and call the plugins of its devices, if there are any, then the effect that creates the container. Invariants: the instance is created
//! from the values that were read for it; an unresolvable reference becomes the container's waiting reason,
//! and the worker tries again later.

use agent_types::event::EventKind;
use agent_types::objects::Objects;
use agent_types::resources::requests::resources_in_pod;
use agent_types::runtime::config::{ContainerConfig, NamespaceMode};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::view::{Slot, SlotKind};
use agent_types::spec_error::SpecError;
use agent_types::time::Now;
use agent_volumes::env_file::EnvFiles;

use super::base::Base;
use super::state::{Chain, Syncing};
use super::tracker::{Purpose, Target};
use super::{claims, users};
use crate::container_spec::inputs::ContainerInputs;
use crate::pod_actions;
use crate::pod_actions::ended::back_off_key;
use crate::pod_worker::back_off::{RESTART_BACK_OFF, noted_back_off};
use crate::pod_worker::chain::fail;
use crate::pod_worker::effect::Effect;
use crate::pod_worker::pass::Pass;

/// The files are there: has the environment's objects fetched, if there are any.
pub(super) fn fetch(pass: &mut Pass<'_>) {
    let Some(chain) = &pass.state.chain else { return };
    let objects = pass.base.ctx.specs.objects(&pass.state.pod, chain.start.slot.container_ref());
    if objects.is_empty() {
        return fetched(pass, Objects::new());
    }
    let target = Target::Container(chain.start.slot.name.clone());
    pass.issue(target, Purpose::FetchObjects, Effect::FetchObjects { objects });
}

/// The objects are known: has the environment's files read, if there are any.
pub(super) fn fetched(pass: &mut Pass<'_>, objects: Objects) {
    let Some(chain) = &mut pass.state.chain else { return };
    chain.objects = objects;
    let slot = chain.start.slot.clone();
    match pass.base.ctx.specs.env_files(&pass.state.pod, slot.container_ref()) {
        Ok(files) if files.is_empty() => read(pass, EnvFiles::new()),
        Ok(files) => {
            let target = Target::Container(slot.name);
            pass.issue(target, Purpose::ReadEnvFiles, Effect::ReadEnvFiles { files });
        }
        Err(e) => refuse(pass, &slot.name, e),
    }
}

/// The environment is known: has parts of volumes mounted, if there are any.
pub(super) fn read(pass: &mut Pass<'_>, files: EnvFiles) {
    let Some(chain) = &mut pass.state.chain else { return };
    chain.files = files;
    let chain = chain.clone();
    let slot = &chain.start.slot;
    let Some(image) = &chain.found else { return };
    let ips = pass.base.shown_ips();
    let given = given(pass.base, &chain, image, &ips);
    match pass.base.ctx.specs.sub_paths(&pass.state.pod, slot.container_ref(), given) {
        Ok(parts) if parts.is_empty() => pre_start(pass, &chain),
        Ok(parts) => {
            let target = Target::Container(slot.name.clone());
            pass.issue(target, Purpose::MountSubPaths, Effect::MountSubPaths { parts });
        }
        Err(e) => refuse(pass, &slot.name, e),
    }
}

fn given<'a>(
    b: &'a Base,
    chain: &'a Chain,
    image: &'a ImageInfo,
    pod_ips: &'a [String],
) -> ContainerInputs<'a> {
    ContainerInputs {
        image,
        pod_ips,
        objects: &chain.objects,
        files: &chain.files,
        claims: b.volumes.claims(),
        images: &chain.images,
        placement: &b.placing.wanted,
        resource_claims: claims::of_container(b, &chain.start.slot.name),
        recursive_read_only: b.makes_read_only(),
    }
}

/// A reference of the pod cannot be resolved.
fn refuse(pass: &mut Pass<'_>, name: &str, e: SpecError) {
    pass.event(EventKind::Warning, "Failed", format!("Error: {}", e.message), Some(name));
    fail(pass, name, e.reason, e.message);
}

/// The files are there, and the claims' devices are known: reports the start to the plugins of the container's devices that want to know of
/// it.
pub(super) fn pre_start(pass: &mut Pass<'_>, chain: &Chain) {
    let name = &chain.start.slot.name;
    if let Some(why) = claims::missing(pass.base, name) {
        return refuse(pass, name, SpecError::container(why));
    }
    let devices = pass.base.placing.wanted.devices.get(name);
    match devices.map(|devices| devices.pre_start.clone()) {
        None => allocate(pass, chain),
        Some(Ok(calls)) if calls.is_empty() => allocate(pass, chain),
        Some(Ok(calls)) => {
            let target = Target::Container(name.clone());
            pass.issue(target, Purpose::PreStartDevices, Effect::PreStartDevices { calls });
        }
        Some(Err(why)) => refuse(pass, name, SpecError::container(why)),
    }
}

/// The plugins know of the start: has the devices allocated that the container lacks, because their plugin registered after the pod's
/// admission.
pub(super) fn allocate(pass: &mut Pass<'_>, chain: &Chain) {
    let name = &chain.start.slot.name;
    if !lacks_devices(pass.base, name) {
        return create(pass, chain);
    }
    let effect = Effect::AllocateDevices { container: name.clone() };
    pass.issue(Target::Container(name.clone()), Purpose::AllocateDevices, effect);
}

/// The pod manager has allocated the devices, and the placement came before its answer.
pub(super) fn allocated(pass: &mut Pass<'_>, chain: &Chain) {
    let name = &chain.start.slot.name;
    if lacks_devices(pass.base, name) {
        let why = format!("the devices of container {name} are not allocated");
        return refuse(pass, name, SpecError::container(why));
    }
    create(pass, chain);
}

fn lacks_devices(b: &Base, container: &str) -> bool {
    b.placing.wanted.devices.get(container).is_some_and(|devices| devices.lacks_some)
}

/// All inputs are present: creates the container, unless another one gives something back first. Then the chain begins again
/// later.
pub(super) fn create(pass: &mut Pass<'_>, chain: &Chain) {
    if pass.base.resize.gives_back {
        pass.state.chain = None;
        return;
    }
    let (slot, attempt) = (&chain.start.slot, chain.start.attempt);
    let Some(image) = &chain.found else { return };
    let specs = pass.base.ctx.specs.clone();
    let ips = pass.base.shown_ips();
    let given = given(pass.base, chain, image, &ips);
    let built = specs.sandbox(&pass.state.pod, chain.sandbox_attempt, pass.base.volumes.claims()).and_then(
        |mut sandbox| {
            let mut c = specs.container(&pass.state.pod, slot.container_ref(), attempt, given)?;
            users::of_sandbox(pass.state, &mut sandbox);
            users::of_container(pass.state, &mut c);
            look_at(pass.state, pass.base, slot, &mut c)?;
            Ok((sandbox, c))
        },
    );
    let (sandbox_config, mut config) = match built {
        Ok(both) => both,
        Err(e) => return refuse(pass, &slot.name, e),
    };
    if let Some(delay) = count_restart(pass.state, chain, pass.now) {
        let note = noted_back_off(&back_off_key(&pass.state.pod, slot), delay);
        config.annotations.insert(RESTART_BACK_OFF.to_owned(), note);
    }
    pass.base.placing.creating.clone_from(&config.resources.cpuset_cpus);
    let effect = Effect::CreateContainer {
        sandbox: chain.sandbox.clone(),
        config: Box::new(config),
        sandbox_config: Box::new(sandbox_config),
        actuates: Box::new(
            slot.spec(&pass.state.pod).map(|c| resources_in_pod(&pass.state.pod, &c)).unwrap_or_default(),
        ),
    };
    pass.issue(Target::Container(slot.name.clone()), Purpose::Create, effect);
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
