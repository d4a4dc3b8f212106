//! A world small enough to be cloned at every choice: one worker, one runtime, a queue of calls.
//!
//! In: effects of the worker. Out: answers, applied in virtual time. Zombies of dead incarnations stay and
//! may be applied until their deadline. agent-sim has the real simulated world; this one is for tables and
//! for exhaustive search.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::event::EventFact;
use agent_types::failure::Class;
use agent_types::ids::{ContainerId, IdMapping, ImageId, PodKey, SandboxId};
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::node_context::{Features, NodeContext};
use agent_types::resources::amounts::Amounts;
use agent_types::runtime::claims::{ClaimUser, ClaimsOfPod, ContainerClaims, PodClaims};
use agent_types::runtime::config::{
    ContainerConfig, ContainerSecurity, LinuxResources, SandboxConfig, SandboxSecurity,
};
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::labels;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, PodSnapshot, SandboxObserved, SandboxState,
};
use agent_types::runtime::pod_files::PodFiles;
use agent_types::spec_error::SpecError;
use agent_types::time::{Mono, Now, Wall};
use agent_types::{ContainerRef, objects, pod, restart};
use agent_volumes::env_file::EnvFile;
use agent_volumes::{bound, sub_path};
use k8s_openapi::api::core::v1::{Pod, PodStatus, ResourceRequirements};

use crate::allocation::actuate::ActuateStep;
use crate::container_spec;
use crate::container_spec::dns::DnsWarning;
use crate::container_spec::inputs::ContainerInputs;
use crate::lifecycle_hooks::HookCall;
use crate::pod_specs::PodSpecs;
use crate::pod_worker::effect::{Effect, EffectError, EffectOk, EffectResult, Mounted};
use crate::pod_worker::{PodAction, PodEvent, PodWorker, WorkerContext};
use crate::probe::{ProbeCall, ProbeId};

/// Specifications without anything but names.
#[derive(Debug)]
pub(super) struct TinySpecs;

impl PodSpecs for TinySpecs {
    fn features(&self) -> Features {
        Features { pod_level_resize: false, ..Features::default() }
    }

    fn sandbox(&self, p: &Pod, attempt: u32, _: &bound::Claims) -> Result<SandboxConfig, SpecError> {
        Ok(SandboxConfig {
            pod: pod::key(p),
            attempt,
            hostname: String::new(),
            log_directory: String::new(),
            dns: None,
            port_mappings: Vec::new(),
            labels: BTreeMap::new(),
            annotations: BTreeMap::new(),
            runtime_handler: String::new(),
            overhead: LinuxResources::default(),
            cgroup_parent: String::new(),
            sysctls: BTreeMap::new(),
            security: SandboxSecurity::default(),
            resources: LinuxResources::default(),
        })
    }

    fn container(
        &self,
        p: &Pod,
        container: ContainerRef<'_>,
        attempt: u32,
        ContainerInputs { image, pod_ips, placement, resource_claims, .. }: ContainerInputs<'_>,
    ) -> Result<ContainerConfig, SpecError> {
        let spec = container.find(p).expect("the worker asks for containers of the pod");
        assert!(!pod_ips.is_empty(), "a container is made when the pod has an address");
        if spec.working_dir.as_deref() == Some("bad") {
            return Err(SpecError {
                reason: "CreateContainerConfigError",
                message: "bad working dir".to_owned(),
            });
        }
        let image_name = spec.image.clone().unwrap_or_default();
        let annotations = BTreeMap::from([(
            labels::CONTAINER_HASH.to_owned(),
            self.container_hash(container.name(), &image_name),
        )]);
        Ok(ContainerConfig {
            name: container.name().to_owned(),
            attempt,
            image: image.id.clone(),
            user_specified_image: image_name,
            command: Vec::new(),
            args: Vec::new(),
            working_dir: String::new(),
            envs: Vec::new(),
            mounts: Vec::new(),
            devices: Vec::new(),
            cdi_devices: resource_claims.map(|of| of.cdi_devices.clone()).unwrap_or_default(),
            labels: BTreeMap::new(),
            annotations,
            log_path: String::new(),
            stdin: false,
            stdin_once: false,
            tty: false,
            stop_signal: None,
            resources: LinuxResources {
                cpuset_cpus: placement.cpus_of(container.name()).to_owned(),
                ..LinuxResources::default()
            },
            security: ContainerSecurity::default(),
        })
    }

    fn objects(&self, p: &Pod, container: ContainerRef<'_>) -> BTreeSet<objects::ObjectRef> {
        NodeContext::new("n").objects(p, container)
    }

    fn env_files(&self, p: &Pod, container: ContainerRef<'_>) -> Result<BTreeSet<EnvFile>, SpecError> {
        NodeContext::new("n").env_files(p, container)
    }

    fn sub_paths(
        &self,
        p: &Pod,
        container: ContainerRef<'_>,
        given: ContainerInputs<'_>,
    ) -> Result<Vec<sub_path::SubPath>, SpecError> {
        container_spec::sub_paths(p, container, given, &NodeContext::new("n"))
    }

    fn dns_warnings(&self, p: &Pod) -> Vec<DnsWarning> {
        let policy = pod::spec(p).dns_policy.iter().filter(|policy| *policy == "odd");
        policy.map(|_| DnsWarning { reason: "DNSConfigForming", message: "too long".to_owned() }).collect()
    }

    fn container_hash(&self, name: &str, image: &str) -> String {
        format!("{name}@{image}")
    }

    fn pod_dirs(&self, _: &Pod) -> PodFiles {
        PodFiles { log_directory: "/logs".to_owned(), dirs: Vec::new(), files: Vec::new(), log_of: None }
    }

    fn volume(
        &self,
        p: &Pod,
        name: &str,
        claims: &bound::Claims,
    ) -> Result<agent_volumes::SetUp, agent_volumes::SetUpError> {
        agent_volumes::plan::set_up(p, name, claims, &NodeContext::new("n"))
    }

    fn container_files(&self, _: &Pod, _: ContainerRef<'_>, _: u32, _: &[String]) -> PodFiles {
        PodFiles { log_directory: "/logs".to_owned(), dirs: Vec::new(), files: Vec::new(), log_of: None }
    }
}

pub(super) const REQUEST_TIMEOUT: Duration = Duration::from_secs(10);

pub(super) fn context() -> Arc<WorkerContext> {
    Arc::new(WorkerContext {
        specs: Arc::new(TinySpecs),
        request_timeout: REQUEST_TIMEOUT,
        cpus_again: Duration::from_secs(10),
        crash_loop: restart::SERIES,
        runtime_name: "tiny".to_owned(),
        host_ips: vec!["192.0.2.1".to_owned()],
        ipv6_first: false,
        agent_started: Now::default(),
    })
}

/// A pod from JSON of its spec.
pub(super) fn make_pod(spec: serde_json::Value) -> Arc<Pod> {
    let whole = serde_json::json!({
        "metadata": {"name": "p", "namespace": "default", "uid": "u1"},
        "spec": spec,
    });
    Arc::new(serde_json::from_value(whole).expect("a pod"))
}

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
                Ok(EffectOk::Image(Some(image_info(image))))
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

/// A call on its way.
#[derive(Clone, Debug)]
pub(super) struct Call {
    pub(super) effect: Effect,
    pub(super) deadline: Option<Mono>,
}

#[derive(Clone, Debug)]
pub(super) struct World {
    pub(super) now: Mono,
    pub(super) runtime: Runtime,
    pub(super) worker: PodWorker,
    pub(super) pending: BTreeMap<EffectId, Call>,
    pub(super) zombies: Vec<Call>,
    pub(super) record: Option<TerminatingRecord>,
    pub(super) dirs: bool,
    pub(super) events: Vec<EventFact>,
    pub(super) statuses: Vec<PodStatus>,
    /// Mutating verbs in the order applied, with their object.
    pub(super) applied: Vec<String>,
    pub(super) cancelled: Vec<EffectId>,
    /// Probes asked and not answered.
    pub(super) probes: Vec<(ProbeId, ProbeCall)>,
    /// Hooks that run.
    pub(super) hooks: Vec<(EffectId, HookCall, Option<Mono>)>,
    pub(super) finished: Option<bool>,
}

pub(super) const SECOND: u64 = 1_000_000_000;

impl World {
    pub(super) fn new() -> World {
        let key = PodKey { namespace: "default".into(), name: "p".into(), uid: "u1".into() };
        World {
            now: Mono(SECOND),
            runtime: Runtime::default(),
            worker: PodWorker::new(key, context(), Mono(0)),
            pending: BTreeMap::new(),
            zombies: Vec::new(),
            record: None,
            dirs: false,
            events: Vec::new(),
            statuses: Vec::new(),
            applied: Vec::new(),
            cancelled: Vec::new(),
            probes: Vec::new(),
            hooks: Vec::new(),
            finished: None,
        }
    }

    /// A world whose worker has the pod and has finished all its steps.
    pub(super) fn with(p: &Arc<Pod>) -> World {
        let mut w = World::new();
        w.desire(p);
        w.settle();
        w
    }

    pub(super) fn now(&self) -> Now {
        Now { mono: self.now, wall: self.wall() }
    }

    pub(super) fn wall(&self) -> Wall {
        Wall(i64::try_from(self.now.0).expect("small times") + 1_700_000_000_000_000_000)
    }

    pub(super) fn desire(&mut self, p: &Arc<Pod>) {
        self.step(PodEvent::Desired(p.clone()));
    }

    pub(super) fn kill(&mut self, reason: KillReason, grace_s: Option<u32>) {
        self.step(PodEvent::Kill { reason, grace_s });
    }

    pub(super) fn step(&mut self, event: PodEvent) {
        self.now.0 += 1_000_000;
        let mut out = Outbox::new();
        let now = self.now();
        self.worker.step(now, event, &mut out);
        for action in out.drain() {
            match action {
                PodAction::Effect { id, effect: Effect::RunHook { call, .. }, deadline } => {
                    self.hooks.push((id, *call, deadline));
                }
                PodAction::Effect { id, effect, deadline } => {
                    self.pending.insert(id, Call { effect, deadline });
                }
                PodAction::Persist { id, record } => {
                    let refused = self.runtime.refuse.get("persist").cloned();
                    if refused.is_none() {
                        self.record = Some(record);
                    }
                    self.pending.insert(id, Call { effect: Effect::Inspect, deadline: None });
                    self.answer_persist(id, refused);
                }
                PodAction::Cancel(id) => self.cancelled.push(id),
                PodAction::Probe { id, call } => self.probes.push((id, *call)),
                PodAction::CancelProbe(id) => self.probes.retain(|(asked, _)| *asked != id),
                PodAction::Actuated(_) => {}
                PodAction::PublishStatus(s) => self.statuses.push((*s).clone()),
                PodAction::Event(e) => self.events.push(e),
                PodAction::Finished { desired_again } => self.finished = Some(desired_again),
            }
        }
    }

    fn answer_persist(&mut self, id: EffectId, refused: Option<EffectError>) {
        self.pending.remove(&id);
        let completed_at = self.now;
        let result = refused.map_or(Ok(EffectOk::Done), Err);
        self.step(PodEvent::EffectDone { id, completed_at, result });
    }

    /// Applies a call to the world.
    pub(super) fn apply(&mut self, effect: &Effect) -> EffectResult {
        self.now.0 += 1_000_000;
        let wall = self.wall();
        if *effect == Effect::Inspect {
            if let Some(e) = self.runtime.refuse.get(effect.verb()) {
                return Err(e.clone());
            }
            let snapshot = self.snapshot();
            self.now.0 += 1_000_000;
            return Ok(EffectOk::Snapshot(Box::new(snapshot)));
        }
        let result = self.runtime.apply(wall, effect);
        match effect {
            _ if result.is_err() => {}
            Effect::CreatePodDirs { .. } => self.dirs = true,
            Effect::RemovePodDirs { .. } => (self.dirs, self.record) = (false, None),
            _ => {}
        }
        if result.is_ok() {
            self.applied.push(describe(effect));
        }
        result
    }

    pub(super) fn snapshot(&self) -> PodSnapshot {
        let mut sandboxes: Vec<_> = self.runtime.sandboxes.values().cloned().collect();
        sandboxes.sort_by_key(|s| std::cmp::Reverse(s.attempt));
        PodSnapshot {
            pod: self.worker.key().clone(),
            as_of: self.now,
            sandboxes,
            containers: self.runtime.containers.values().cloned().collect(),
            actuated: None,
        }
    }

    /// Performs one pending call and processes its answer.
    pub(super) fn perform(&mut self, id: EffectId) {
        let Some(call) = self.pending.remove(&id) else { return };
        let result = self.apply(&call.effect);
        self.answer(id, result);
    }

    pub(super) fn answer(&mut self, id: EffectId, result: EffectResult) {
        self.pending.remove(&id);
        self.now.0 += 1_000_000;
        let completed_at = self.now;
        self.step(PodEvent::EffectDone { id, completed_at, result });
    }

    /// Ends the oldest hook; answers which it was.
    pub(super) fn end_hook(&mut self, result: EffectResult) -> String {
        let (id, call, _) = self.hooks.remove(0);
        self.answer(id, result);
        self.settle();
        format!("{:?} {}", call.hook, call.name)
    }

    /// Performs calls until none is pending; passes due timers.
    pub(super) fn settle(&mut self) {
        for _ in 0..2_000 {
            if let Some(id) = self.pending.keys().next().copied() {
                self.perform(id);
            } else if self.worker.deadline().is_some_and(|d| d <= self.now) {
                self.step(PodEvent::Tick);
            } else {
                return;
            }
        }
        panic!("the worker does not come to rest: {:?}", self.applied);
    }

    /// Lets time pass, timer by timer.
    pub(super) fn wait(&mut self, d: Duration) {
        let end = self.now.after(d);
        self.settle();
        while let Some(due) = self.worker.deadline().filter(|t| *t <= end) {
            self.now = self.now.max(due);
            self.step(PodEvent::Tick);
            self.settle();
        }
        self.now = self.now.max(end);
    }

    /// PLEG noticed something.
    pub(super) fn observe(&mut self) {
        self.look();
        self.settle();
    }

    pub(super) fn look(&mut self) {
        self.now.0 += 1_000_000;
        let snapshot = Arc::new(self.snapshot());
        self.step(PodEvent::Observed(snapshot));
    }

    /// A container ends and the worker gets the snapshot; the resulting effects stay pending.
    pub(super) fn end(&mut self, name: &str, code: i32) {
        let wall = self.wall();
        for id in self.runtime.running(name) {
            self.runtime.exit(wall, &id, code);
        }
        self.look();
    }

    pub(super) fn exit(&mut self, name: &str, code: i32) {
        self.end(name, code);
        self.settle();
    }

    /// A new agent, which knows when it began.
    pub(super) fn restart_agent(&mut self) {
        self.crash(Mono(0));
        let context = WorkerContext { agent_started: self.now(), ..(*context()).clone() };
        self.step(PodEvent::Context(Arc::new(context)));
    }

    /// Kills the agent; its calls become zombies. The next incarnation starts with `fence_until`.
    pub(super) fn crash(&mut self, fence_until: Mono) {
        let calls = std::mem::take(&mut self.pending).into_values();
        self.zombies.extend(calls.filter(|c| c.effect != Effect::Inspect));
        let key = self.worker.key().clone();
        self.worker = match self.record.clone() {
            Some(record) => PodWorker::resume(&record, context(), fence_until, self.now()),
            None => PodWorker::new(key, context(), fence_until),
        };
    }

    pub(super) fn phase(&self) -> &str {
        self.statuses.last().and_then(|s| s.phase.as_deref()).unwrap_or("")
    }

    pub(super) fn waiting_reason(&self, name: &str) -> String {
        let all = self.statuses.last().and_then(|s| s.container_statuses.clone()).unwrap_or_default();
        let found = all.into_iter().find(|c| c.name == name).and_then(|c| c.state).and_then(|s| s.waiting);
        found.and_then(|w| w.reason).unwrap_or_default()
    }

    pub(super) fn events_of(&self, reason: &str) -> Vec<String> {
        self.events.iter().filter(|e| e.reason == reason).map(|e| e.message.clone()).collect()
    }

    pub(super) fn count(&self, verb: &str) -> usize {
        self.applied.iter().filter(|a| a.split(' ').next() == Some(verb)).count()
    }
}

fn describe(effect: &Effect) -> String {
    let object = match effect {
        Effect::RunSandbox { config } => format!("/{}", config.attempt),
        Effect::StopSandbox { sandbox } | Effect::RemoveSandbox { sandbox } => sandbox.to_string(),
        Effect::CreateContainer { config, .. } => format!("{}/{}", config.name, config.attempt),
        Effect::StartContainer { container } | Effect::RemoveContainer { container, .. } => {
            container.to_string()
        }
        Effect::StopContainer { container, grace_s } => format!("{container} {grace_s}"),
        Effect::RemovePodDirs { keep_logs: true } => "but the logs".to_owned(),
        _ => String::new(),
    };
    format!("{} {object}", effect.verb()).trim_end().to_owned()
}
