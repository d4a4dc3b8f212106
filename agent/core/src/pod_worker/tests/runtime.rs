//! The container runtime of the tests' world: it applies effects at once.

use std::collections::BTreeMap;
use std::time::Duration;

use agent_types::failure::Class;
use agent_types::ids::{ContainerId, IdMapping, ImageId, SandboxId};
use agent_types::objects;
use agent_types::resources::amounts::Amounts;
use agent_types::runtime::claims::{ClaimUser, ClaimsOfPod, ContainerClaims, PodClaims};
use agent_types::runtime::config::ContainerConfig;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::{ContainerObserved, ContainerState, SandboxObserved, SandboxState};
use agent_types::time::Wall;
use k8s_openapi::api::core::v1::ResourceRequirements;

use crate::allocation::actuate::ActuateStep;
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult, Mounted};

#[derive(Clone, Debug, Default)]
pub(super) struct Runtime {
    pub(super) sandboxes: BTreeMap<SandboxId, SandboxObserved>,
    pub(super) containers: BTreeMap<ContainerId, ContainerObserved>,
    /// Verbs that fail from now on, with their error.
    pub(super) refuse: BTreeMap<&'static str, EffectError>,
    pub(super) absent_images: Vec<String>,
    /// Processors of containers.
    pub(super) cpus: BTreeMap<ContainerId, String>,
    /// The pod's claims are prepared.
    pub(super) prepared: bool,
    /// CDI devices of containers.
    pub(super) cdi_devices: BTreeMap<ContainerId, Vec<String>>,
    next: u64,
}

fn error(class: Class, message: &str) -> EffectResult {
    Err(EffectError { class, message: message.to_owned() })
}

/// Each pull of the fake runtime takes so long, without waiting.
pub(super) const PULL_TOOK: Duration = Duration::from_millis(1_250);

fn image_info(reference: &str) -> ImageInfo {
    ImageInfo {
        id: ImageId::from(format!("id:{reference}")),
        uid: None,
        username: String::new(),
        size_bytes: 7,
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        pinned: false,
    }
}

impl Runtime {
    pub(super) fn apply(&mut self, wall: Wall, effect: &Effect) -> EffectResult {
        if let Some(e) = self.refuse.get(effect.verb()) {
            return Err(e.clone());
        }
        match effect {
            Effect::InspectImage { image, .. } => {
                let found = (!self.absent_images.contains(image)).then(|| image_info(image));
                Ok(EffectOk::Image(found))
            }
            Effect::PullImage { image, .. } => {
                self.absent_images.retain(|i| i != image);
                Ok(EffectOk::Pulled { image: image_info(image), took: PULL_TOOK })
            }
            Effect::RunSandbox { config } => Ok(EffectOk::Sandbox(self.run(wall, config.attempt))),
            Effect::StopSandbox { sandbox } => {
                self.stop_sandbox(wall, sandbox);
                Ok(EffectOk::Done)
            }
            Effect::RemoveSandbox { sandbox } => {
                self.stop_sandbox(wall, sandbox);
                self.containers.retain(|_, c| c.sandbox != *sandbox);
                self.sandboxes.remove(sandbox);
                Ok(EffectOk::Done)
            }
            Effect::CreateContainer { sandbox, config, actuates, .. } => {
                let made = self.create(wall, sandbox, config);
                if let Ok(EffectOk::Container(id)) = &made {
                    self.give(id, actuates);
                    self.cpus.entry(id.clone()).or_insert_with(|| config.resources.cpuset_cpus.clone());
                    self.cdi_devices.insert(id.clone(), config.cdi_devices.clone());
                }
                made
            }
            Effect::Resize { steps } => {
                for step in steps {
                    if let ActuateStep::Container { id, record, .. } = step {
                        self.give(id, record);
                    }
                }
                Ok(EffectOk::Done)
            }
            Effect::StartContainer { container } => self.start(wall, container),
            Effect::StopContainer { container, .. } => {
                self.exit(wall, container, 143);
                Ok(EffectOk::Done)
            }
            Effect::RemoveContainer { container, .. } => {
                self.containers.remove(container);
                Ok(EffectOk::Done)
            }
            Effect::RunHook { .. } => Ok(EffectOk::Hook { fell_back: None }),
            Effect::FetchObjects { .. } => Ok(EffectOk::Objects(objects::Objects::new())),
            Effect::MapUsers { handler } if handler.as_deref() == Some("plain") => {
                Err(EffectError { class: Class::Invalid, message: "no user namespaces".to_owned() })
            }
            Effect::MapUsers { .. } => {
                Ok(EffectOk::Users(IdMapping { host_id: 131_072, container_id: 0, length: 65_536 }))
            }
            Effect::ReadEnvFiles { .. } => Ok(EffectOk::EnvFiles(Default::default())),
            Effect::SetUpVolume { .. } => Ok(EffectOk::Volume(Mounted::default())),
            Effect::ResolveClaim { claim } => Ok(EffectOk::Claim(Err(claim.unprocessed("PVC is not bound")))),
            Effect::SetCpus { cpus } => {
                self.cpus.extend(cpus.clone());
                Ok(EffectOk::Done)
            }
            Effect::PrepareClaims { claims } => {
                self.prepared = true;
                Ok(EffectOk::Claims(Box::new(self.claims_of(claims))))
            }
            Effect::FindClaims { claims } => Ok(EffectOk::Claims(Box::new(self.claims_of(claims)))),
            Effect::UnprepareClaims => {
                self.prepared = false;
                Ok(EffectOk::Done)
            }
            Effect::TearDownVolumes
            | Effect::PreStartDevices { .. }
            | Effect::AllocateDevices { .. }
            | Effect::EnsureCgroup { .. }
            | Effect::RemoveCgroup
            | Effect::MountSubPaths { .. }
            | Effect::CreatePodDirs { .. }
            | Effect::RemovePodDirs { .. }
            | Effect::Inspect => Ok(EffectOk::Done),
        }
    }

    /// One device for each use; none while the claims are not prepared.
    fn claims_of(&self, claims: &ClaimsOfPod) -> PodClaims {
        let one = |user: &ClaimUser| {
            let of = match self.prepared {
                true => ContainerClaims {
                    cdi_devices: user.uses.iter().map(|of| format!("x.io/c={}", of.claim)).collect(),
                    ..ContainerClaims::default()
                },
                false => {
                    ContainerClaims { missing: Some("unknown".to_owned()), ..ContainerClaims::default() }
                }
            };
            (user.name.clone(), of)
        };
        PodClaims { containers: claims.containers.iter().map(one).collect() }
    }

    fn run(&mut self, wall: Wall, attempt: u32) -> SandboxId {
        if let Some(s) = self.sandboxes.values().find(|s| s.attempt == attempt) {
            return s.id.clone();
        }
        self.next += 1;
        let id = SandboxId::from(format!("s{}", self.next));
        let s = SandboxObserved {
            id: id.clone(),
            attempt,
            state: SandboxState::Ready,
            created: wall,
            ips: vec!["10.0.0.9".to_owned()],
            host_network: false,
            runtime_handler: String::new(),
        };
        self.sandboxes.insert(id.clone(), s);
        id
    }

    pub(super) fn stop_sandbox(&mut self, wall: Wall, id: &SandboxId) {
        for c in self.containers.values_mut().filter(|c| c.sandbox == *id) {
            end(wall, c, 137);
        }
        if let Some(s) = self.sandboxes.get_mut(id) {
            s.state = SandboxState::NotReady;
            s.ips.clear();
        }
    }

    fn create(&mut self, wall: Wall, sandbox: &SandboxId, config: &ContainerConfig) -> EffectResult {
        if self.sandboxes.get(sandbox).is_none_or(|s| s.state != SandboxState::Ready) {
            return error(Class::NotFound, "no such sandbox");
        }
        let same = |c: &&ContainerObserved| {
            c.sandbox == *sandbox && c.name == config.name && c.attempt == config.attempt
        };
        if let Some(c) = self.containers.values().find(same) {
            return Ok(EffectOk::Container(c.id.clone()));
        }
        self.next += 1;
        let id = ContainerId::from(format!("c{}", self.next));
        let c = ContainerObserved {
            image: config.user_specified_image.clone(),
            image_ref: config.image.to_string(),
            annotations: config.annotations.clone(),
            ..ContainerObserved::created(id.clone(), sandbox.clone(), &config.name, config.attempt, wall)
        };
        self.containers.insert(id.clone(), c);
        Ok(EffectOk::Container(id))
    }

    fn give(&mut self, id: &ContainerId, resources: &ResourceRequirements) {
        let amounts = Amounts::of(Some(resources));
        if let Some(c) = self.containers.get_mut(id).filter(|_| amounts != Amounts::default()) {
            c.actuated = Some(amounts);
        }
    }

    fn start(&mut self, wall: Wall, id: &ContainerId) -> EffectResult {
        let Some(c) = self.containers.get_mut(id) else { return error(Class::NotFound, "no such container") };
        if c.state != ContainerState::Created {
            return error(Class::Conflict, "container is not in created state");
        }
        c.state = ContainerState::Running;
        c.started = Some(wall);
        Ok(EffectOk::Done)
    }

    pub(super) fn exit(&mut self, wall: Wall, id: &ContainerId, code: i32) {
        if let Some(c) = self.containers.get_mut(id) {
            end(wall, c, code);
        }
    }

    pub(super) fn running(&self, name: &str) -> Vec<ContainerId> {
        let live = |c: &&ContainerObserved| c.name == name && c.state == ContainerState::Running;
        self.containers.values().filter(live).map(|c| c.id.clone()).collect()
    }
}

fn end(wall: Wall, c: &mut ContainerObserved, code: i32) {
    if c.state == ContainerState::Running {
        c.state = ContainerState::Exited;
        c.finished = Some(wall);
        c.exit_code = code;
        c.reason = if code == 0 { "Completed" } else { "Error" }.to_owned();
    }
}
