//! Time that the decisions about large pods and about many pods take, without any runtime, disk or network.
//!
//! `cargo run --release --package agent-core --example large-pod` prints figures; no test depends on them. Each container has requests and
//! limits. Each call is answered after a millisecond of virtual time, one after the other.
//!
//! ```text
//! pods of 10, 100, 1000 containers, one pod worker each:
//!             start      all containers are created and started, one after the other
//!             look       the runtime is looked at, and nothing has changed
//!             restart    one container ends and is started again
//!             end        the pod is removed
//! 100, 500, 1000 pods of two containers each:
//!             arrival    the pod manager's steps until the worker of the last pod has its pod
//!             start      all pod workers start their containers
//! ```
#![allow(clippy::print_stdout, clippy::disallowed_types)] // it measures and prints

use std::collections::{BTreeMap, BTreeSet, VecDeque};
use std::error::Error;
use std::sync::Arc;
use std::time::{Duration, Instant};

use agent_core::admission::{AdmissionContext, NodeMarks};
use agent_core::pod_manager::{Leftovers, ManagerAction, ManagerEvent, PodManager};
use agent_core::pod_source::{PodOp, PodUpdate, Source};
use agent_core::pod_worker::effect::{Effect, EffectOk};
use agent_core::pod_worker::{PodAction, PodEvent, PodWorker, WorkerContext, WorkerCounts};
use agent_types::ids::{ContainerId, ImageId, PodKey, SandboxId};
use agent_types::kill::KillReason;
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::node_context::NodeContext;
use agent_types::objects::Objects;
use agent_types::runtime::config::ContainerConfig;
use agent_types::runtime::image::ImageInfo;
use agent_types::runtime::observed::{
    ContainerObserved, ContainerState, PodSnapshot, SandboxObserved, SandboxState,
};
use agent_types::time::{Mono, Now, Wall};
use agent_types::{Quantity, pod, restart};
use k8s_openapi::api::core::v1::Pod;
use serde_json::{Value, json};

/// Virtual time of a call.
const CALL: Duration = Duration::from_millis(1);
/// Looks without news that are measured.
const LOOKS: u32 = 100;
/// The clock of the wall at the start, nanoseconds.
const EPOCH: i64 = 1_700_000_000_000_000_000;

fn main() -> Result<(), Box<dyn Error>> {
    for containers in [10, 100, 1000] {
        large(containers)?;
    }
    for pods in [100, 500, 1000] {
        many(pods)?;
    }
    Ok(())
}

/// One pod of so many containers.
fn large(containers: usize) -> Result<(), Box<dyn Error>> {
    let pod = Arc::new(pod_of(0, containers)?);
    let mut node = Node::new(&pod);
    let (start, counts) = node.measure(|node| {
        node.step(PodEvent::Desired(pod.clone()));
        node.rest(containers)
    })?;
    let (looks, _) = node.measure(|node| {
        for _ in 0..LOOKS {
            let seen = Arc::new(node.runtime.snapshot(node.now()));
            node.step(PodEvent::Observed(seen));
        }
        Ok(())
    })?;
    let (again, _) = node.measure(|node| {
        node.runtime.exit("c0", node.now());
        let seen = Arc::new(node.runtime.snapshot(node.now()));
        node.step(PodEvent::Observed(seen));
        node.rest(containers)
    })?;
    let (end, _) = node.measure(|node| {
        node.step(PodEvent::Kill { reason: KillReason::Removed, grace_s: None });
        node.rest(containers)
    })?;
    let WorkerCounts { passes, statuses } = counts;
    println!(
        "{containers} containers: start {start:?} ({passes} passes, {statuses} statuses), look {:?}, restart {again:?}, end {end:?}",
        looks / LOOKS
    );
    Ok(())
}

/// So many pods.
fn many(pods: usize) -> Result<(), Box<dyn Error>> {
    let all = (0..pods).map(|number| pod_of(number, 2).map(Arc::new)).collect::<Result<Vec<_>, _>>()?;
    let mut manager = manager(pods)?;
    let began = Instant::now();
    for pod in &all {
        let update = PodUpdate { source: Source::Api, op: PodOp::Add, pods: vec![pod.clone()] };
        let mut actions = manage(&mut manager, ManagerEvent::Update(update));
        // Records reach the disk at once.
        while actions.iter().any(|action| matches!(action, ManagerAction::Allocated(..))) {
            actions = manage(&mut manager, ManagerEvent::Recorded(true));
        }
    }
    let arrival = began.elapsed();
    let mut start = Duration::ZERO;
    for pod in &all {
        let mut node = Node::new(pod);
        let (took, _) = node.measure(|node| {
            node.step(PodEvent::Desired(pod.clone()));
            node.rest(2)
        })?;
        start += took;
    }
    println!("{pods} pods: arrival {arrival:?}, start {start:?}");
    Ok(())
}

fn manager(pods: usize) -> Result<PodManager, Box<dyn Error>> {
    let mut allocatable = BTreeMap::new();
    for (name, amount) in [("cpu", "256"), ("memory", "1Ti"), ("ephemeral-storage", "1Ti")] {
        allocatable.insert(name.to_owned(), Quantity::parse(amount)?);
    }
    let max_pods = Some(u32::try_from(pods)?);
    let context = Arc::new(AdmissionContext { allocatable, max_pods, ..AdmissionContext::default() });
    let mut manager = PodManager::new(BTreeSet::from([Source::Api]), Leftovers::default(), context, Ok(()));
    manage(&mut manager, ManagerEvent::Listed(Vec::new()));
    manage(&mut manager, ManagerEvent::Node(Some(NodeMarks::default())));
    Ok(manager)
}

fn manage(manager: &mut PodManager, event: ManagerEvent) -> Vec<ManagerAction> {
    let mut out = Outbox::new();
    manager.step(Now { mono: Mono(1), wall: Wall(EPOCH) }, event, &mut out);
    out.drain().collect()
}

fn pod_of(number: usize, containers: usize) -> Result<Pod, serde_json::Error> {
    let container = |at: usize| {
        json!({"name": format!("c{at}"), "image": "registry.example/app:1", "resources": {
            "requests": {"cpu": "10m", "memory": "16Mi"}, "limits": {"cpu": "100m", "memory": "64Mi"}}})
    };
    let containers: Vec<Value> = (0..containers).map(container).collect();
    let metadata = json!({
        "name": format!("p{number}"), "namespace": "default", "uid": format!("u{number}"),
        "annotations": {"kubernetes.io/config.source": "api"},
    });
    serde_json::from_value(
        json!({"metadata": metadata, "spec": {"restartPolicy": "Always", "containers": containers}}),
    )
}

/// A pod worker and what is around it.
struct Node {
    worker: PodWorker,
    runtime: Runtime,
    /// Calls that are not answered; `None`: the terminating record.
    calls: VecDeque<(EffectId, Option<Effect>)>,
    mono: Mono,
    /// Time in the worker.
    work: Duration,
}

impl Node {
    fn new(pod: &Pod) -> Node {
        let key = pod::key(pod);
        let context = WorkerContext {
            specs: Arc::new(NodeContext::new("node")),
            request_timeout: Duration::from_secs(120),
            cpus_again: Duration::from_secs(10),
            crash_loop: restart::SERIES,
            runtime_name: "containerd".to_owned(),
            host_ips: vec!["192.0.2.1".to_owned()],
            ipv6_first: false,
            agent_started: Now { mono: Mono(0), wall: Wall(EPOCH) },
        };
        Node {
            worker: PodWorker::new(key.clone(), Arc::new(context), Mono(0)),
            runtime: Runtime::new(key),
            calls: VecDeque::new(),
            mono: Mono(1_000_000_000),
            work: Duration::ZERO,
        }
    }

    fn now(&self) -> Now {
        let since = i64::try_from(self.mono.0).unwrap_or(i64::MAX);
        Now { mono: self.mono, wall: Wall(EPOCH.saturating_add(since)) }
    }

    /// The time that the worker takes in `act`, and its counts after it.
    fn measure(
        &mut self,
        act: impl FnOnce(&mut Node) -> Result<(), Box<dyn Error>>,
    ) -> Result<(Duration, WorkerCounts), Box<dyn Error>> {
        let before = self.work;
        act(self)?;
        Ok((self.work.saturating_sub(before), self.worker.counts()))
    }

    fn step(&mut self, event: PodEvent) {
        self.mono = self.mono.after(CALL);
        let (now, mut out) = (self.now(), Outbox::new());
        let began = Instant::now();
        self.worker.step(now, event, &mut out);
        self.work += began.elapsed();
        for action in out.drain() {
            match action {
                PodAction::Effect { id, effect, .. } => self.calls.push_back((id, Some(effect))),
                PodAction::Persist { id, .. } => self.calls.push_back((id, None)),
                _ => {}
            }
        }
    }

    /// Answers calls and lets timers expire until there is neither.
    fn rest(&mut self, containers: usize) -> Result<(), Box<dyn Error>> {
        for _ in 0..1000 + 100 * containers {
            if let Some((id, effect)) = self.calls.pop_front() {
                let now = self.now();
                let result = Ok(effect.map_or(EffectOk::Done, |effect| self.runtime.answer(&effect, now)));
                self.mono = self.mono.after(CALL);
                self.step(PodEvent::EffectDone { id, completed_at: self.mono, result });
            } else if let Some(due) = self.worker.deadline() {
                self.mono = self.mono.max(due);
                self.step(PodEvent::Tick);
            } else {
                return Ok(());
            }
        }
        Err(format!("a pod of {containers} containers does not come to rest").into())
    }
}

/// A runtime that does everything at once.
struct Runtime {
    pod: PodKey,
    sandboxes: Vec<SandboxObserved>,
    containers: BTreeMap<ContainerId, ContainerObserved>,
    made: u64,
}

impl Runtime {
    fn new(pod: PodKey) -> Runtime {
        Runtime { pod, sandboxes: Vec::new(), containers: BTreeMap::new(), made: 0 }
    }

    fn snapshot(&self, now: Now) -> PodSnapshot {
        PodSnapshot {
            pod: self.pod.clone(),
            as_of: now.mono,
            sandboxes: self.sandboxes.clone(),
            containers: self.containers.values().cloned().collect(),
            actuated: None,
        }
    }

    fn exit(&mut self, name: &str, now: Now) {
        for c in self.containers.values_mut().filter(|c| c.name == name && c.state == ContainerState::Running)
        {
            (c.state, c.exit_code, c.finished) = (ContainerState::Exited, 1, Some(now.wall));
        }
    }

    fn create(&mut self, sandbox: &SandboxId, config: &ContainerConfig, now: Now) -> EffectOk {
        self.made += 1;
        let id = ContainerId::from(format!("{:064x}", self.made));
        let (name, attempt) = (&config.name, config.attempt);
        let container = ContainerObserved {
            image: config.user_specified_image.clone(),
            image_ref: config.image.to_string(),
            log_path: config.log_path.clone(),
            annotations: config.annotations.clone(),
            ..ContainerObserved::created(id.clone(), sandbox.clone(), name, attempt, now.wall)
        };
        self.containers.insert(id.clone(), container);
        EffectOk::Container(id)
    }

    fn answer(&mut self, effect: &Effect, now: Now) -> EffectOk {
        match effect {
            Effect::Inspect => EffectOk::Snapshot(Box::new(self.snapshot(now))),
            Effect::InspectImage { image, .. } => EffectOk::Image(Some(ImageInfo {
                id: ImageId::from(format!("sha256:{image}")),
                uid: Some(0),
                username: String::new(),
                size_bytes: 1 << 20,
                repo_tags: Vec::new(),
                repo_digests: Vec::new(),
                pinned: false,
            })),
            Effect::CreatePodDirs { .. } => EffectOk::Files { newest_log: None },
            Effect::FetchObjects { .. } => EffectOk::Objects(Objects::new()),
            Effect::RunSandbox { config } => {
                let sandbox = SandboxObserved {
                    id: "s".into(),
                    attempt: config.attempt,
                    state: SandboxState::Ready,
                    created: now.wall,
                    ips: vec!["10.0.0.2".to_owned()],
                    host_network: false,
                    runtime_handler: String::new(),
                };
                self.sandboxes = vec![sandbox];
                EffectOk::Sandbox("s".into())
            }
            Effect::StopSandbox { .. } => {
                for sandbox in &mut self.sandboxes {
                    sandbox.state = SandboxState::NotReady;
                    sandbox.ips.clear();
                }
                EffectOk::Done
            }
            Effect::RemoveSandbox { .. } => {
                self.sandboxes.clear();
                EffectOk::Done
            }
            Effect::CreateContainer { sandbox, config, .. } => self.create(sandbox, config, now),
            Effect::StartContainer { container } => {
                if let Some(c) = self.containers.get_mut(container) {
                    (c.state, c.started) = (ContainerState::Running, Some(now.wall));
                }
                EffectOk::Done
            }
            Effect::StopContainer { container, .. } => {
                if let Some(c) = self.containers.get_mut(container) {
                    (c.state, c.finished) = (ContainerState::Exited, Some(now.wall));
                }
                EffectOk::Done
            }
            Effect::RemoveContainer { container, .. } => {
                self.containers.remove(container);
                EffectOk::Done
            }
            _ => EffectOk::Done,
        }
    }
}
