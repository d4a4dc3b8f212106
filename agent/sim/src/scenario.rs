//! One simulated run: warm-up, storm, heal, quiescence, liveness, a restart without visible effect, deletion of all
//! pods, leak check. A failure names its seed and the last events; the seed replays it.

use std::fmt;
use std::panic::{self, AssertUnwindSafe};
use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_worker::WorkerContext;
use agent_types::ids::PodUid;
use agent_types::node_context::NodeContext;
use agent_types::restart;
use agent_types::runtime::observed::ContainerState;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::{Pod, PodStatus};
use serde_json::{Value, json};

use crate::checks::Violation;
use crate::cluster::{Cluster, NODE};
use crate::defects::Defect;
use crate::fake_runtime::{Program, image};
use crate::faults::Faults;
use crate::node::{Node, key_of};
use crate::ownership::Ownership;
use crate::rng::Rng;
use crate::world::World;

/// Result of a run without violation.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Report {
    /// Seed of the run.
    pub seed: u64,
    /// Hash of the whole trace.
    pub hash: u64,
    /// Number of events and requests.
    pub steps: u64,
    /// Number of crashes of the agent.
    pub crashes: u32,
}

/// Result of a run with a violation.
#[derive(Clone, Debug)]
pub struct Failure {
    /// Seed of the run: it replays the run, together with the kind of run.
    pub seed: u64,
    /// Kind of run.
    pub variant: Variant,
    /// The first broken invariant.
    pub violation: Violation,
    /// The last events.
    pub tail: String,
}

impl fmt::Display for Failure {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let Failure { seed, variant, violation, tail } = self;
        let kind = variant.name();
        write!(f, "{tail}\n\nseed {seed}: {violation}\nreplay: cargo survey {kind} {seed}")
    }
}

pub(crate) fn context() -> Arc<WorkerContext> {
    let mut node = NodeContext::new("node");
    node.cgroup.no_quota_with_exclusive_cpus = true;
    Arc::new(WorkerContext {
        specs: Arc::new(node),
        request_timeout: Duration::from_secs(120),
        cpus_again: Duration::from_secs(10),
        crash_loop: restart::SERIES,
        runtime_name: "fake".to_owned(),
        host_ips: vec!["192.0.2.1".to_owned()],
        ipv6_first: false,
        agent_started: Now::default(),
    })
}

/// Runs one seed from beginning to end.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Plain)
}

/// [`run`] with pods that have probes and hooks.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_probing(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Probing)
}

/// [`run`] with pods that are changed while they run: ephemeral containers, RestartAllContainers.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_in_place(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::InPlace)
}

/// [`run`] with pods that have volumes.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_mounting(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Mounting)
}

/// [`run_mounting`] with pods that have an `fsGroup`, and volumes whose change of ownership takes long.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_ownership(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Ownership)
}

/// [`run`] with shutdowns of the machine.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_stopping(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Stopping)
}

/// [`run`] with pods that are resized while they run.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_resizing(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Resizing)
}

/// [`run`] with static managers, and pods that request exclusive processors and memory.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_placing(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Placing)
}

/// [`run`] with pods that have resource claims, and DRA drivers that fail and hang.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_claims(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Claims)
}

/// [`run`] with device plugins that hang, lie, vanish and come back, and pods that request devices.
///
/// # Errors
/// The first broken invariant, with the tail of the trace.
pub fn run_devices(seed: u64, defect: Option<Defect>) -> Result<Report, Failure> {
    play(seed, defect, None, Variant::Devices)
}

/// Runs one seed of a kind of run; a failure has the last `keep` events.
///
/// # Errors
/// The first broken invariant, with the last `keep` events.
pub fn run_and_tell(seed: u64, variant: Variant, keep: usize) -> Result<Report, Failure> {
    play(seed, None, Some(keep), variant)
}

/// Kind of run.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Variant {
    /// [`run`].
    Plain,
    /// [`run_probing`].
    Probing,
    /// [`run_in_place`].
    InPlace,
    /// [`run_mounting`].
    Mounting,
    /// [`run_ownership`].
    Ownership,
    /// [`run_stopping`].
    Stopping,
    /// [`run_resizing`].
    Resizing,
    /// [`run_placing`].
    Placing,
    /// [`run_claims`].
    Claims,
    /// [`run_devices`].
    Devices,
}

impl Variant {
    /// Every kind.
    const ALL: [Variant; 10] = [
        Variant::Plain,
        Variant::Probing,
        Variant::InPlace,
        Variant::Mounting,
        Variant::Ownership,
        Variant::Stopping,
        Variant::Resizing,
        Variant::Placing,
        Variant::Claims,
        Variant::Devices,
    ];

    /// The kind with this name.
    #[must_use]
    pub fn named(name: &str) -> Option<Variant> {
        Variant::ALL.into_iter().find(|kind| kind.name() == name)
    }

    /// Name of the kind, which is also the name of its file in `agent/sim/tests`.
    #[must_use]
    pub fn name(self) -> &'static str {
        match self {
            Variant::Plain => "seeds",
            Variant::Probing => "probing",
            Variant::InPlace => "in_place",
            Variant::Mounting => "mounting",
            Variant::Ownership => "ownership",
            Variant::Stopping => "stopping",
            Variant::Resizing => "resizing",
            Variant::Placing => "placing",
            Variant::Claims => "claims",
            Variant::Devices => "devices",
        }
    }
}

fn play(seed: u64, defect: Option<Defect>, keep: Option<usize>, variant: Variant) -> Result<Report, Failure> {
    let mut rng = Rng::new(seed);
    let faults = Faults::from_rng(&mut rng);
    let mut world = World::new(rng.next_u64(), Faults::default(), context(), defect);
    world.trace.keep = keep.unwrap_or(world.trace.keep);
    let joined = defect.map_or_else(|| rng.chance(700), Defect::needs_api);
    if joined {
        world.join();
    }
    match variant {
        Variant::Plain => {}
        Variant::Probing => world.probe(seed),
        Variant::InPlace => world.change_in_place(seed),
        Variant::Mounting => world.mount(seed),
        Variant::Ownership => world.own_volumes(seed),
        Variant::Stopping => world.can_stop(seed),
        Variant::Resizing => world.resize_pods(seed),
        Variant::Placing => world.place_pods(seed),
        Variant::Claims => world.claim_devices(seed),
        Variant::Devices => world.plug_in(seed),
    }
    let mut story = Story { rng, pods: 0 };
    let told = panic::catch_unwind(AssertUnwindSafe(|| story.tell(&mut world, faults)));
    let panicked = |_| Err(Violation { invariant: "PANIC", detail: "see above".to_owned() });
    match told.unwrap_or_else(panicked) {
        Ok(()) => {
            let (hash, steps) = (world.trace.hash(), world.trace.steps());
            Ok(Report { seed, hash, steps, crashes: world.incarnation })
        }
        Err(violation) => Err(Failure { seed, variant, violation, tail: world.trace.tail() }),
    }
}

pub(crate) struct Story {
    pub(crate) rng: Rng,
    pods: u32,
}

const MINUTE: Duration = Duration::from_secs(60);

impl Story {
    fn tell(&mut self, world: &mut World, faults: Faults) -> Result<(), Violation> {
        for i in 0..6 {
            let reference = format!("docker.io/library/image{i}:1");
            let store = if i < 4 { &mut world.runtime.images } else { &mut world.runtime.registry };
            store.insert(reference.clone(), image(&reference));
        }
        for _ in 0..self.rng.between(1, 4) {
            self.add(world);
        }
        world.run_for(MINUTE)?;
        world.set_faults(faults);
        world.plugins_go_wild();
        self.storm(world)?;
        world.set_faults(Faults::default());
        heal(world);
        // Time for the longest fence (4 min), the longest back-off (5 min), and the actions after both.
        world.run_for(MINUTE * 25)?;
        self.a_plugin_hangs(world)?;
        live(world)?;
        world.ready_at_rest()?;
        api_at_rest(world)?;
        world.remove_refused()?;
        world.crash_at_rest();
        world.run_for(MINUTE * 12)?;
        api_at_rest(world)?;
        let calls = world.api.as_ref().map_or(0, |api| api.pod_calls);
        world.run_for(MINUTE * 5)?;
        idle(world, calls)?;
        let all: Vec<PodUid> = world.disk.manifests.keys().cloned().collect();
        for uid in all {
            world.user_removes(&uid);
        }
        world.everything_is_deleted();
        world.run_for(MINUTE * 12)?;
        leaks(world)
    }

    fn storm(&mut self, world: &mut World) -> Result<(), Violation> {
        for _ in 0..self.rng.between(5, 40) {
            world.somebody_debugs();
            world.somebody_resizes();
            world.somebody_stops();
            if self.rng.chance(100) {
                world.space_runs_short();
            }
            let uids: Vec<PodUid> = world.disk.manifests.keys().cloned().collect();
            if world.api.is_some() && self.rng.chance(600) {
                self.user_acts(world);
                world.run_for(Duration::from_millis(self.rng.between(50, 40_000)))?;
                continue;
            }
            match self.rng.below(10) {
                0..=2 => self.add(world),
                3..=4 => {
                    if let Some(uid) = self.rng.pick(&uids).cloned() {
                        world.user_removes(&uid);
                    }
                }
                5 => {
                    // The pod is removed, and the same pod returns at once.
                    if let Some(uid) = self.rng.pick(&uids).cloned()
                        && let Some(pod) = world.disk.manifests.get(&uid).cloned()
                    {
                        world.user_removes(&uid);
                        world.run_for(Duration::from_millis(self.rng.below(3_000)))?;
                        world.user_adds(&pod);
                    }
                }
                6 => world.crash(),
                _ => {}
            }
            world.run_for(Duration::from_millis(self.rng.between(50, 40_000)))?;
        }
        Ok(())
    }

    fn add(&mut self, world: &mut World) {
        let mut pod = self.manifest(world);
        world.ask_for_processors(&mut pod, true);
        world.give_claims(&mut pod, true);
        world.ask_for_devices(&mut pod, true);
        let pod = serde_json::from_value::<Pod>(pod).expect("the literals are a pod");
        world.user_adds(&Arc::new(pod));
    }

    /// A static pod.
    pub(crate) fn manifest(&mut self, world: &mut World) -> Value {
        let mut pod = self.pod(world);
        let (number, uid) = (self.pods, format!("uid-{}", self.pods));
        pod["metadata"] = json!({
            "name": format!("pod{number}-node"), "namespace": "default", "uid": uid,
            "annotations": { "kubernetes.io/config.source": "file", "kubernetes.io/config.hash": uid },
        });
        pod["spec"]["nodeName"] = json!(NODE);
        pod
    }

    /// A pod with a random specification, without a name.
    pub(crate) fn pod(&mut self, world: &mut World) -> Value {
        self.pods += 1;
        let policy = ["Always", "OnFailure", "Never"][usize::try_from(self.rng.below(3)).unwrap_or(0)];
        let init = self.rng.below(3).saturating_sub(1);
        let number = self.pods;
        let mut containers = |kind: &str, n: u64, rng: &mut Rng| -> Vec<Value> {
            let one = |i: u64| {
                let cname = format!("{kind}{i}-{number}");
                world.runtime.programs.insert(cname.clone(), program(kind, rng));
                json!({
                    "name": cname, "image": format!("docker.io/library/image{}:1", rng.below(6)),
                    "imagePullPolicy": "IfNotPresent",
                    "terminationMessagePath": "/dev/termination-log", "terminationMessagePolicy": "File",
                })
            };
            (0..n).map(one).collect()
        };
        let n = self.rng.between(1, 3);
        let mut init = containers("init", init, &mut self.rng);
        for mut sidecar in containers("side", self.rng.below(8).saturating_sub(6), &mut self.rng) {
            sidecar["restartPolicy"] = json!("Always");
            let place = if self.rng.chance(500) { 0 } else { init.len() };
            init.insert(place, sidecar);
        }
        let regular = containers("app", n, &mut self.rng);
        let mut pod = json!({
            "apiVersion": "v1", "kind": "Pod",
            "spec": {
                "restartPolicy": policy, "terminationGracePeriodSeconds": self.rng.below(40),
                "dnsPolicy": "Default", "initContainers": init, "containers": regular,
            },
        });
        world.decorate(&mut pod);
        world.give_rules(&mut pod);
        world.give_amounts(&mut pod);
        world.add_volumes(&mut pod);
        world.give_priority(&mut pod);
        pod
    }
}

fn program(kind: &str, rng: &mut Rng) -> Program {
    let term_ms = (!rng.chance(150)).then(|| rng.below(4_000));
    let code = if rng.chance(500) { 0 } else { 1 };
    let exits = if kind == "init" {
        Some((rng.below(3_000), i32::from(rng.chance(200))))
    } else {
        rng.chance(300).then(|| (rng.below(30_000), code))
    };
    Program { exits, term_ms }
}

/// All faults end; every new process runs without faults.
fn heal(world: &mut World) {
    world.calm();
    world.calm_logind();
    world.calm_claims();
    world.calm_plugins();
    for (name, program) in &mut world.runtime.programs {
        program.exits = name.starts_with("init").then_some((100, 0));
    }
}

/// After the faults have healed: pods that should run do run, and ended pods stay ended.
fn live(world: &mut World) -> Result<(), Violation> {
    let statics: Vec<Arc<Pod>> = world.disk.manifests.values().cloned().collect();
    for pod in statics {
        let status = world.status_of(&key_of(&pod).uid);
        let may_fail = world.lacks_devices(&pod, &status);
        lives(world, &pod, &status, may_fail);
    }
    let went_back = world.api.as_ref().is_some_and(|api| api.went_back);
    for pod in world.runnable_api_pods() {
        let status = pod.status.clone().unwrap_or_default();
        // The agent terminated the pods that the server lacked for a while, and a terminal phase stays.
        let ended_by_node =
            matches!(status.reason.as_deref(), Some("DeadlineExceeded" | "Terminated" | "NodeShutdown"));
        // The record of its allocation was lost with the agent, and its request does not fit any more; or a static pod, which is
        // critical, preempted it.
        let no_room =
            world.resizing.is_some() && matches!(status.reason.as_deref(), Some("OutOfcpu" | "Preempting"));
        let no_room =
            no_room || world.may_be_refused(status.reason.as_deref()) || world.lacks_devices(&pod, &status);
        let may_fail = went_back || ended_by_node || no_room;
        lives(world, &pod, &status, may_fail);
    }
    for wrong in world.unresized() {
        world.checks.report("LIVENESS", wrong);
    }
    for wrong in world.misplaced() {
        world.checks.report("LIVENESS", wrong);
    }
    for wrong in world.too_small() {
        world.checks.report("CGROUP-MATCH", wrong);
    }
    for missing in world.undebugged() {
        world.checks.report("LIVENESS", format!("ephemeral container {missing}"));
    }
    world.checks.verdict()
}

fn lives(world: &mut World, pod: &Pod, status: &PodStatus, may_fail: bool) {
    let key = key_of(pod);
    let phase = status.phase.as_deref().unwrap_or_default();
    let spec = pod.spec.clone().unwrap_or_default();
    let always = spec.restart_policy.as_deref() == Some("Always");
    let running = |name: &str| {
        world.runtime.containers.values().any(|c| {
            c.pod.uid == key.uid && c.observed.name == name && c.observed.state == ContainerState::Running
        })
    };
    // Containers that wait for devices may stay so; the others of the pod have begun.
    let excused = world.excused_by_devices(pod, status);
    let has_begun = |name: &str| {
        let mut of = status.container_statuses.iter().flatten().filter(|of| of.name == name);
        of.any(|of| of.state.as_ref().is_some_and(|state| state.waiting.is_none()))
    };
    let fine = match phase {
        "Pending" | "Running" if !excused.is_empty() => {
            let mut others = spec.containers.iter().filter(|c| !excused.contains(&c.name));
            others.all(|c| running(&c.name) || (!always && has_begun(&c.name)))
        }
        "Running" if always => spec.containers.iter().all(|c| running(&c.name)),
        "Running" => spec.containers.iter().any(|c| running(&c.name)),
        "Succeeded" | "Failed" => !always || may_fail,
        _ => false,
    };
    if !fine {
        world.checks.report("LIVENESS", format!("{key} is {phase:?} long after everything healed"));
    }
}

/// After the faults have healed: the API shows the real state.
fn api_at_rest(world: &mut World) -> Result<(), Violation> {
    for (invariant, problem) in world.untruths() {
        world.checks.report(invariant, problem);
    }
    world.checks.verdict()
}

/// While nothing changes, the agent sends heartbeats only.
fn idle(world: &mut World, calls: u64) -> Result<(), Violation> {
    let now = world.api.as_ref().map_or(0, |api| api.pod_calls);
    if now > calls {
        world.checks.report("IDLE", format!("{} calls about pods while nothing happened", now - calls));
    }
    world.checks.verdict()
}

/// After the deletion of all pods nothing is left.
fn leaks(world: &mut World) -> Result<(), Violation> {
    let left = [
        ("workers", world.node.as_ref().map_or(0, |n| n.workers().len())),
        ("sandboxes", world.runtime.sandboxes.len()),
        ("containers", world.runtime.containers.len()),
        ("pod directories", world.disk.dirs.len()),
        ("mounts of pods", world.disk.mounts.len()),
        ("volumes of drivers", world.volumes.as_ref().map_or(0, |v| v.drivers.left())),
        (
            "walks of pods",
            world.volumes.as_ref().and_then(|v| v.ownership.as_ref()).map_or(0, Ownership::left),
        ),
        ("cgroups of pods", world.disk.cgroups.len()),
        ("references to claims and prepared claims", world.claims_left()),
        ("devices of pods", world.devices_left()),
        ("terminating records", world.disk.records.len()),
        ("pods of the API", world.left_in_api()),
        ("statuses", world.node.as_ref().and_then(Node::cluster).map_or(0, Cluster::remembered)),
    ];
    for (what, n) in left {
        if n > 0 {
            world.checks.report("LEAK", format!("{n} {what} left after every pod was deleted"));
        }
    }
    world.checks.verdict()
}
