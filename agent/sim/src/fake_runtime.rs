//! A container runtime in memory with the CRI state diagram of containerd 2.x.
//!
//! In: effects applied at a virtual time. Out: answers, and the processes whose exit the world must schedule. It keeps
//! the rules of a real runtime (names are reserved, a container needs a ready sandbox, removing kills first); it passes
//! the same contract suite as the real one (tests/runtime_contract.rs).

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult};
use agent_kubelet_api::drivers::PodObservation;
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, ImageId, PodKey, PodUid, SandboxId};
use agent_types::runtime::config::{ContainerConfig, NamespaceMode, SandboxConfig};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::labels;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, ListedPod, ListedSandbox, PodSnapshot, SandboxObserved, SandboxState,
};
use agent_types::time::{Mono, Now, Wall};

use crate::revised::Revised;

/// Behaviour of the first process of a container.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Program {
    /// Exits by itself after this many milliseconds with this code; `None` runs for ever.
    pub exits: Option<(u64, i32)>,
    /// Milliseconds from TERM to exit; `None` ignores TERM.
    pub term_ms: Option<u64>,
}

impl Default for Program {
    fn default() -> Self {
        Program { exits: None, term_ms: Some(50) }
    }
}

/// A sandbox with its pod and runtime handler.
#[derive(Clone, Debug)]
pub struct FakeSandbox {
    /// Pod to which it belongs.
    pub pod: PodKey,
    /// As observed by CRI.
    pub observed: SandboxObserved,
    /// Runtime handler of the sandbox; empty for the default one.
    pub handler: String,
    /// Group of pods that share a shim.
    pub shim_group: Option<String>,
}

/// A container and the behaviour of its process.
#[derive(Clone, Debug)]
pub struct FakeContainer {
    /// Pod to which it belongs.
    pub pod: PodKey,
    /// As observed by CRI.
    pub observed: ContainerObserved,
    /// Its process.
    pub program: Program,
}

/// The runtime.
#[derive(Debug, Default)]
pub struct FakeRuntime {
    /// By id.
    pub sandboxes: Revised<BTreeMap<SandboxId, FakeSandbox>>,
    /// By id.
    pub containers: Revised<BTreeMap<ContainerId, FakeContainer>>,
    /// Present images by reference.
    pub images: BTreeMap<String, ImageInfo>,
    /// Images that a pull finds.
    pub registry: BTreeMap<String, ImageInfo>,
    /// Behaviour of containers by container name; absent is [`Program::default`].
    pub programs: BTreeMap<String, Program>,
    next_id: u64,
}

fn refuse(class: Class, message: impl Into<String>) -> EffectResult {
    Err(EffectError { class, message: message.into() })
}

/// An image of a made-up size, present under `reference`.
#[must_use]
pub fn image(reference: &str) -> ImageInfo {
    ImageInfo {
        id: ImageId::from(format!("sha256:{reference}")),
        uid: Some(0),
        username: String::new(),
        size_bytes: 1 << 20,
        repo_tags: Vec::new(),
        repo_digests: Vec::new(),
        pinned: false,
    }
}

impl FakeRuntime {
    /// Applies one effect at once. The world splits `StopContainer`: SIGTERM now, [`Self::exit`] later. Effects that do not
    /// concern the runtime (pod directories), and `Inspect`, are `Invalid` here.
    pub fn apply(&mut self, now: Now, effect: &Effect) -> EffectResult {
        match effect {
            Effect::InspectImage { image, .. } => Ok(EffectOk::Image(self.images.get(image).cloned())),
            Effect::PullImage { image, .. } => self.pull(image),
            Effect::RunSandbox { config } => self.run_sandbox(now, config),
            Effect::StopSandbox { sandbox } => {
                self.stop_sandbox(now, sandbox);
                Ok(EffectOk::Done)
            }
            Effect::RemoveSandbox { sandbox } => {
                self.stop_sandbox(now, sandbox);
                self.containers.retain(|_, c| c.observed.sandbox != *sandbox);
                self.sandboxes.remove(sandbox);
                Ok(EffectOk::Done)
            }
            Effect::CreateContainer { sandbox, config, sandbox_config, .. } => {
                self.create(now, sandbox, config, &sandbox_config.log_directory)
            }
            Effect::StartContainer { container } => self.start(now, container),
            Effect::StopContainer { container, .. } => {
                let deaf = self.containers.get(container).is_some_and(|c| c.program.term_ms.is_none());
                self.exit(now, container, if deaf { 137 } else { 143 }, "Error");
                Ok(EffectOk::Done)
            }
            Effect::RemoveContainer { container, .. } => {
                self.exit(now, container, 137, "Error");
                self.containers.remove(container);
                Ok(EffectOk::Done)
            }
            other => refuse(Class::Invalid, format!("{} is not a runtime effect", other.verb())),
        }
    }

    fn id(&mut self, prefix: &str) -> String {
        self.next_id += 1;
        format!("{prefix}{:04}", self.next_id)
    }

    fn pull(&mut self, reference: &str) -> EffectResult {
        match self.registry.get(reference) {
            Some(found) => {
                self.images.insert(reference.to_owned(), found.clone());
                Ok(EffectOk::Pulled { image: found.clone(), took: Duration::ZERO })
            }
            None => refuse(Class::NotFound, format!("failed to resolve image {reference}: not found")),
        }
    }

    fn run_sandbox(&mut self, now: Now, config: &SandboxConfig) -> EffectResult {
        let same = |s: &&FakeSandbox| s.pod.uid == config.pod.uid && s.observed.attempt == config.attempt;
        if let Some(existing) = self.sandboxes.values().find(same) {
            return Ok(EffectOk::Sandbox(existing.observed.id.clone()));
        }
        let host_network = config.security.namespaces.network == NamespaceMode::Node;
        let id = SandboxId::from(self.id("s"));
        let ips = if host_network { Vec::new() } else { vec![format!("10.88.0.{}", self.next_id % 250 + 2)] };
        let observed = SandboxObserved {
            id: id.clone(),
            attempt: config.attempt,
            state: SandboxState::Ready,
            created: now.wall,
            ips,
            host_network,
            runtime_handler: config.runtime_handler.clone(),
        };
        self.sandboxes.insert(
            id.clone(),
            FakeSandbox {
                pod: config.pod.clone(),
                observed,
                handler: config.runtime_handler.clone(),
                shim_group: config.annotations.get(labels::SHIM_GROUP).cloned(),
            },
        );
        Ok(EffectOk::Sandbox(id))
    }

    fn stop_sandbox(&mut self, now: Now, id: &SandboxId) {
        self.sandbox_dies(now, id);
        if let Some(s) = self.sandboxes.get_mut(id) {
            // Its network namespace is gone, and with it the addresses.
            s.observed.ips.clear();
        }
    }

    fn live_in(&self, id: &SandboxId) -> Vec<ContainerId> {
        let of =
            |c: &&FakeContainer| c.observed.sandbox == *id && c.observed.state == ContainerState::Running;
        self.containers.values().filter(of).map(|c| c.observed.id.clone()).collect()
    }

    fn create(
        &mut self,
        now: Now,
        sandbox: &SandboxId,
        config: &ContainerConfig,
        log_directory: &str,
    ) -> EffectResult {
        let Some(home) = self.sandboxes.get(sandbox).cloned() else {
            return refuse(Class::NotFound, format!("sandbox {sandbox} not found"));
        };
        if home.observed.state != SandboxState::Ready {
            return refuse(Class::Conflict, format!("sandbox {sandbox} is not ready"));
        }
        let same = |c: &&FakeContainer| {
            // A runtime reserves the container's name for the pod, not for the sandbox.
            c.pod.uid == home.pod.uid
                && c.observed.name == config.name
                && c.observed.attempt == config.attempt
        };
        if let Some(existing) = self.containers.values().find(same) {
            let (id, elsewhere) = (existing.observed.id.clone(), existing.observed.sandbox != *sandbox);
            return if elsewhere {
                let words = format!("attempt {} exists already as {id} in another sandbox", config.attempt);
                refuse(Class::AlreadyExists, words)
            } else {
                Ok(EffectOk::Container(id))
            };
        }
        if !self.images.values().any(|i| i.id == config.image) {
            return refuse(Class::NotFound, format!("image {} not found", config.image));
        }
        let id = ContainerId::from(self.id("c"));
        let observed = ContainerObserved {
            image: config.user_specified_image.clone(),
            image_ref: config.image.to_string(),
            log_path: format!("{log_directory}/{}", config.log_path),
            annotations: config.annotations.clone(),
            stop_signal: config.stop_signal.clone(),
            ..ContainerObserved::created(id.clone(), sandbox.clone(), &config.name, config.attempt, now.wall)
        };
        let program = self.programs.get(&config.name).cloned().unwrap_or_default();
        self.containers.insert(id.clone(), FakeContainer { pod: home.pod, observed, program });
        Ok(EffectOk::Container(id))
    }

    fn start(&mut self, now: Now, id: &ContainerId) -> EffectResult {
        let Some(c) = self.containers.get_mut(id) else {
            return refuse(Class::NotFound, format!("container {id} not found"));
        };
        let home = self.sandboxes.get(&c.observed.sandbox);
        if home.is_none_or(|s| s.observed.state != SandboxState::Ready) {
            return refuse(
                Class::Conflict,
                format!("sandbox {} of container {id} is not ready", c.observed.sandbox),
            );
        }
        if c.observed.state != ContainerState::Created {
            return refuse(Class::Conflict, format!("container {id} is in {:?} state", c.observed.state));
        }
        c.observed.state = ContainerState::Running;
        c.observed.started = Some(now.wall);
        Ok(EffectOk::Done)
    }

    /// The first process of a container ended. Ignored unless the container runs, or its state is unknown.
    pub fn exit(&mut self, now: Now, id: &ContainerId, code: i32, reason: &str) {
        if let Some(c) = self.containers.get_mut(id)
            && matches!(c.observed.state, ContainerState::Running | ContainerState::Unknown)
        {
            c.observed.state = ContainerState::Exited;
            c.observed.finished = Some(now.wall);
            c.observed.exit_code = code;
            c.observed.reason = reason.to_owned();
        }
    }

    /// The sandbox's own process died: the sandbox is not ready and its containers have exited. `StopPodSandbox` must still
    /// release its network.
    pub fn sandbox_dies(&mut self, now: Now, id: &SandboxId) {
        for container in self.live_in(id) {
            self.exit(now, &container, 137, "Error");
        }
        if let Some(s) = self.sandboxes.get_mut(id) {
            s.observed.state = SandboxState::NotReady;
        }
    }

    /// A reboot: nothing runs any more, metadata stays (containerd keeps it on disk).
    pub fn reboot(&mut self, now: Now) {
        let all: Vec<SandboxId> = self.sandboxes.keys().cloned().collect();
        for id in &all {
            self.stop_sandbox(now, id);
        }
    }

    /// Sandboxes and containers of one pod, newest attempt first.
    #[must_use]
    pub fn observe(&self, uid: &PodUid) -> (Option<PodKey>, PodObservation) {
        let mut sandboxes: Vec<_> = self.sandboxes.values().filter(|s| s.pod.uid == *uid).collect();
        sandboxes.sort_by_key(|s| std::cmp::Reverse((s.observed.attempt, s.observed.created)));
        let mut containers: Vec<_> = self.containers.values().filter(|c| c.pod.uid == *uid).collect();
        containers.sort_by_key(|c| std::cmp::Reverse((c.observed.attempt, c.observed.created)));
        let key =
            sandboxes.first().map(|s| s.pod.clone()).or_else(|| containers.first().map(|c| c.pod.clone()));
        let observation = PodObservation {
            sandboxes: sandboxes.into_iter().map(|s| s.observed.clone()).collect(),
            containers: containers.into_iter().map(|c| c.observed.clone()).collect(),
            actuated: None,
        };
        (key, observation)
    }

    /// [`Self::observe`] as a snapshot with its time; `key` names the pod if the runtime has nothing of it.
    #[must_use]
    pub fn snapshot(&self, key: &PodKey, as_of: Mono) -> PodSnapshot {
        let (found, o) = self.observe(&key.uid);
        PodSnapshot {
            pod: found.unwrap_or_else(|| key.clone()),
            as_of,
            sandboxes: o.sandboxes,
            containers: o.containers,
            actuated: o.actuated,
        }
    }

    /// Every sandbox with its group.
    #[must_use]
    pub fn list_sandboxes(&self) -> Vec<ListedSandbox> {
        let listed = self.sandboxes.iter().map(|(id, sandbox)| ListedSandbox {
            id: id.clone(),
            uid: sandbox.pod.uid.clone(),
            attempt: sandbox.observed.attempt,
            ready: sandbox.observed.state == SandboxState::Ready,
            shim_group: sandbox.shim_group.clone(),
        });
        listed.collect()
    }

    /// The answer to a relist.
    #[must_use]
    pub fn list(&self) -> Vec<ListedPod> {
        let mut pods: BTreeMap<PodUid, ListedPod> = BTreeMap::new();
        let empty = |pod: &PodKey| ListedPod {
            pod: pod.clone(),
            sandboxes: BTreeMap::new(),
            containers: BTreeMap::new(),
        };
        for (id, s) in self.sandboxes.iter() {
            let entry = pods.entry(s.pod.uid.clone()).or_insert_with(|| empty(&s.pod));
            entry.sandboxes.insert(id.clone(), s.observed.state == SandboxState::Ready);
        }
        for (id, c) in self.containers.iter() {
            let entry = pods.entry(c.pod.uid.clone()).or_insert_with(|| empty(&c.pod));
            entry.containers.insert(id.clone(), state_number(c.observed.state));
        }
        pods.into_values().collect()
    }
}

/// The number of the CRI enum `ContainerState`.
#[must_use]
pub fn state_number(state: ContainerState) -> i32 {
    match state {
        ContainerState::Created => 0,
        ContainerState::Running => 1,
        ContainerState::Exited => 2,
        ContainerState::Unknown => 3,
    }
}

/// A pod key for tests.
#[must_use]
pub fn key(name: &str, uid: &str) -> PodKey {
    PodKey { namespace: Arc::from("default"), name: Arc::from(name), uid: PodUid::from(uid) }
}

/// Both clocks for a virtual monotonic time: the wall clock is 2026-01-01T00:00:00Z plus the time since start.
#[must_use]
pub fn now_at(mono: Mono) -> Now {
    const EPOCH_2026_NS: i64 = 1_767_225_600_000_000_000;
    Now { mono, wall: Wall(EPOCH_2026_NS.saturating_add_unsigned(mono.0)) }
}
