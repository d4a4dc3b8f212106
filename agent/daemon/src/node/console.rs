//! What the node writes on its consoles, by way of the kernel's log.
//!
//! ```text
//! cluster problems, state, addresses, Node, manifests, static pods ─► Console ─► lines ─┐
//! pods' output (`console.podOutput`) ────────────────────────────────────────────────────┴─► queue ─► /dev/kmsg ─► consoles
//!                                                      └─► problems with pods ─► agent-problems.json ─► management API
//! ```
//! Decisions are in [`agent_core::console`]. Invariants: an agent that orlop-initrd did not boot writes nothing: the kernel's log
//! is another system's; a console that is slow delays no owner, its lines wait in a bounded queue and are dropped when it is
//! full. See docs/reference/boot.md, "Consoles".

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::console::banner::{ClusterPlace, NodeTitle, root_of};
use agent_core::console::problem::{self, ConsoleProblem, ProblemSource, ShownProblem};
use agent_core::console::{Console, ConsoleEvent, ConsoleLines, LineLevel};
use agent_linux::files::{Durability, write_atomic};
use agent_linux::kernel_log::{self, KernelLogWriter};
use agent_linux::network;
use agent_types::ids::{PodKey, PodUid};
use agent_types::pod::is_static;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::{Node, Pod};
use orlop_config::boot_trust::TRUST_PHASE;
use orlop_config::ledger::Ledger;
use tokio::sync::{Notify, mpsc, watch};

use crate::node::cluster_problems::Problems;
use crate::node::facts_sources::watch_network;
use crate::node::node_events::ManifestProblems;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::pod_dirs::chain;
use crate::pods::status::{PodView, PodViews};
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// Records waiting for the kernel: several banners and a burst of pods' output.
const QUEUE_MAX: usize = 512;
/// Addresses are looked up again after this without a hint, and no sooner than the second one after a hint.
const ADDRESSES_EVERY: (Duration, Duration) = (Duration::from_secs(60), Duration::from_secs(1));
/// Sources of the problems that only the agent knows; the management API reads the others where they are.
const OF_PODS: &[ProblemSource] = &[ProblemSource::Manifests, ProblemSource::StaticPods];
/// Their file is written no sooner than this after the last time.
const PROBLEMS_EVERY: Duration = Duration::from_secs(1);
/// The kernel's levels of what an update says (KERN_WARNING, KERN_NOTICE).
const LEVEL_WARNING: u8 = 4;
const LEVEL_NOTICE: u8 = 5;
/// The kernel's level of pods' output (KERN_INFO).
const LEVEL_OUTPUT: u8 = 6;

/// Writes records to the kernel's log; clones share the queue.
#[derive(Clone, Debug)]
pub struct ConsoleWriter(mpsc::Sender<(u8, String)>);

impl ConsoleWriter {
    /// A writer to the kernel's log of a machine that orlop-initrd has booted; `None` on another machine.
    #[must_use]
    pub fn of_appliance(run_dir: &Path, tasks: &Tasks) -> Option<ConsoleWriter> {
        is_appliance(run_dir).then(|| ConsoleWriter::new(PathBuf::from(kernel_log::PATH), tasks))
    }

    fn new(path: PathBuf, tasks: &Tasks) -> ConsoleWriter {
        let (sender, records) = mpsc::channel(QUEUE_MAX);
        tasks.start(write(path, records, tasks.clone()));
        ConsoleWriter(sender)
    }

    /// Queues a line of a pod's output; false if it had to be dropped.
    #[must_use]
    pub fn output(&self, line: String) -> bool {
        self.write(LEVEL_OUTPUT, line)
    }

    /// Queues a line about an update of the node; false if it had to be dropped.
    #[must_use]
    pub fn update(&self, is_warning: bool, line: String) -> bool {
        self.write(if is_warning { LEVEL_WARNING } else { LEVEL_NOTICE }, line)
    }

    fn write(&self, level: u8, text: String) -> bool {
        self.0.try_send((level, text)).is_ok()
    }
}

/// Whether orlop-initrd booted this machine.
#[must_use]
pub fn is_appliance(run_dir: &Path) -> bool {
    run_dir.join("boot.json").exists()
}

async fn write(path: PathBuf, mut records: mpsc::Receiver<(u8, String)>, tasks: Tasks) {
    let opened = tasks.blocking(move || KernelLogWriter::open(&path)).await;
    let mut log = match opened {
        Some(Ok(log)) => log,
        Some(Err(error)) => {
            tracing::warn!(error = chain(&error), "nothing is written on the consoles");
            return;
        }
        None => return,
    };
    let mut batch = Vec::new();
    while records.recv_many(&mut batch, QUEUE_MAX).await > 0 {
        let all = std::mem::take(&mut batch);
        let written = tasks.blocking(move || {
            let result = all.iter().try_for_each(|(level, text)| log.write(*level, text));
            (log, result)
        });
        let Some((back, result)) = written.await else { return };
        log = back;
        if let Err(error) = result {
            tracing::warn!(error = chain(&error), "lines for the consoles were lost");
        }
    }
}

/// What the console needs to know from the start.
pub struct Deps {
    /// Directory of init's run-time state.
    pub run_dir: PathBuf,
    /// Name of the node.
    pub node_name: String,
    /// The configuration names a cluster.
    pub in_cluster: bool,
    /// Where its lines go.
    pub writer: ConsoleWriter,
    /// Problems with the cluster.
    pub cluster_problems: watch::Receiver<Problems>,
    /// What the agent does.
    pub state: watch::Receiver<&'static str>,
}

/// The running console; it learns about the node when that has started.
#[derive(Clone)]
pub struct NodeConsole {
    own: Sender<ConsoleEvent>,
    tasks: Tasks,
}

/// The node's parts that the console shows.
pub struct NodeParts {
    /// Statuses of all pods.
    pub statuses: watch::Receiver<PodViews>,
    /// The pods that the node wants.
    pub desired: watch::Receiver<DesiredPods>,
    /// Manifests that are not used as they are written.
    pub manifests: watch::Receiver<ManifestProblems>,
    /// Whether the API server shows the node as ready; `None` on a standalone node.
    pub ready: Option<watch::Receiver<bool>>,
    /// The Node as its watch shows it; `None` on a standalone node.
    pub object: Option<watch::Receiver<Option<Arc<Node>>>>,
}

/// Starts the console; it lives until the node stops.
#[must_use]
pub fn start(deps: Deps, tasks: &Tasks) -> NodeConsole {
    let (own, inbox) = tasks.mailbox();
    let console = NodeConsole { own, tasks: tasks.clone() };
    tasks.start(follow_cluster(deps.cluster_problems.clone(), console.own.clone()));
    tasks.start(follow_state(deps.state.clone(), console.own.clone()));
    tasks.start(follow_addresses(console.own.clone(), tasks.clone()));
    let (problems, present) = watch::channel(Vec::new());
    tasks.start(keep_problems(deps.run_dir.join(problem::FILE), present, tasks.clone()));
    tasks.start(console.clone().begin(deps, problems, inbox));
    console
}

impl NodeConsole {
    /// Reads what init has left, then starts the machine. Events wait in the mailbox meanwhile.
    async fn begin(self, deps: Deps, problems: watch::Sender<Vec<ShownProblem>>, inbox: Inbox<ConsoleEvent>) {
        let (run_dir, name) = (deps.run_dir, deps.node_name);
        let read = self.tasks.blocking(move || (title(name, &run_dir), configuration(&run_dir))).await;
        let Some((title, configuration)) = read else { return };
        self.own.send(ConsoleEvent::Problems(ProblemSource::Configuration, configuration));
        let member = ClusterPlace::Member { ready: false };
        let cluster = if deps.in_cluster { member } else { ClusterPlace::Standalone };
        let state = *deps.state.borrow();
        let shell = ConsoleShell { writer: deps.writer, problems };
        self.tasks.own(Console::new(title, state, cluster), shell, inbox);
        self.own.send(ConsoleEvent::Tick);
    }

    /// Shows the node's parts from now on.
    pub fn follow_node(&self, parts: NodeParts) {
        let NodeParts { statuses, desired, manifests, ready, object } = parts;
        self.tasks.start(follow_static_pods(statuses, desired, self.own.clone()));
        self.tasks.start(follow_manifests(manifests, self.own.clone()));
        if let Some(ready) = ready {
            self.tasks.start(follow_ready(ready, self.own.clone()));
        }
        if let Some(object) = object {
            self.tasks.start(follow_reason(object, self.own.clone()));
        }
    }
}

/// The machine's surroundings.
struct ConsoleShell {
    writer: ConsoleWriter,
    /// Problems with pods.
    problems: watch::Sender<Vec<ShownProblem>>,
}

impl Shell for ConsoleShell {
    type Machine = Console;

    fn tick(&self) -> ConsoleEvent {
        ConsoleEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: ConsoleLines) {
        let level = match action.level {
            LineLevel::Warning => 4,
            LineLevel::Notice => 5,
        };
        for line in action.lines {
            if !self.writer.write(level, line) {
                tracing::warn!("a line for the consoles was lost: they are too slow");
            }
        }
    }

    fn after(&mut self, _now: Now, console: &Console) -> bool {
        let present: Vec<ShownProblem> = console.present(OF_PODS).map(ShownProblem::from).collect();
        self.problems.send_if_modified(|last| {
            let changed = *last != present;
            *last = present;
            changed
        });
        true
    }
}

/// Keeps the file of problems as they are now.
async fn keep_problems(path: PathBuf, mut problems: watch::Receiver<Vec<ShownProblem>>, tasks: Tasks) {
    loop {
        let (path, text) = (path.clone(), problem::render(&problems.borrow_and_update()));
        let written =
            tasks.blocking(move || write_atomic(&path, text.as_bytes(), 0o644, Durability::Rebuildable));
        match written.await {
            Some(Ok(())) => {}
            Some(Err(error)) => {
                tracing::warn!(error = chain(&error), "the management API does not show problems of pods");
            }
            None => return,
        }
        tasks.wait_until(tasks.now().mono.after(PROBLEMS_EVERY)).await;
        if problems.changed().await.is_err() {
            return;
        }
    }
}

impl Coalesce for ConsoleEvent {
    fn relation(&self, newer: &Self) -> Relation {
        let same = match (self, newer) {
            (ConsoleEvent::Problems(a, _), ConsoleEvent::Problems(b, _)) => a == b,
            _ => std::mem::discriminant(self) == std::mem::discriminant(newer),
        };
        if same { Relation::Supersedes } else { Relation::Independent }
    }
}

fn title(name: String, run_dir: &Path) -> NodeTitle {
    let read = |path: &Path| std::fs::read_to_string(path).unwrap_or_default();
    let ledger = Ledger::parse(&read(&run_dir.join("boot.json"))).unwrap_or_default();
    let of =
        |phase: &str| ledger.entries.iter().find(|entry| entry.phase == phase).map(|entry| &entry.detail);
    let root = of("init.verity").map_or_else(String::new, |detail| root_of(detail));
    let firmware = of(TRUST_PHASE).cloned().unwrap_or_default();
    NodeTitle { name, version: image_version(&read(Path::new("/usr/lib/os-release"))), root, firmware }
}

/// `IMAGE_VERSION` of an os-release file; the agent's own version in an image without it.
fn image_version(os_release: &str) -> String {
    let value = os_release.lines().find_map(|line| line.strip_prefix("IMAGE_VERSION="));
    value.map_or(env!("CARGO_PKG_VERSION"), |v| v.trim_matches('"')).to_owned()
}

fn configuration(run_dir: &Path) -> Vec<ConsoleProblem> {
    let document = std::fs::read_to_string(run_dir.join("node-config.json")).unwrap_or_default();
    problem::of_configuration(&document)
}

/// Shows the problem nearest to the cause: those of later parts follow from it.
async fn follow_cluster(mut problems: watch::Receiver<Problems>, own: Sender<ConsoleEvent>) {
    loop {
        let first = problems.borrow_and_update().iter().next().map(|(part, sentence)| {
            ConsoleProblem::sentence(part.runbook(), &format!("cluster, {}", part.as_str()), sentence)
        });
        own.send(ConsoleEvent::Problems(ProblemSource::Cluster, first.into_iter().collect()));
        if problems.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_state(mut state: watch::Receiver<&'static str>, own: Sender<ConsoleEvent>) {
    loop {
        let present = *state.borrow_and_update();
        own.send(ConsoleEvent::State(present));
        if state.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_ready(mut ready: watch::Receiver<bool>, own: Sender<ConsoleEvent>) {
    loop {
        let present = *ready.borrow_and_update();
        own.send(ConsoleEvent::Cluster(ClusterPlace::Member { ready: present }));
        if ready.changed().await.is_err() {
            return;
        }
    }
}

async fn follow_reason(mut object: watch::Receiver<Option<Arc<Node>>>, own: Sender<ConsoleEvent>) {
    loop {
        let message = object.borrow_and_update().as_deref().and_then(why_not_ready).unwrap_or_default();
        own.send(ConsoleEvent::NotReady(message));
        if object.changed().await.is_err() {
            return;
        }
    }
}

/// Message of the condition Ready, unless it is True.
fn why_not_ready(node: &Node) -> Option<String> {
    let conditions = node.status.as_ref()?.conditions.as_ref()?;
    let ready = conditions.iter().find(|condition| condition.type_ == "Ready")?;
    ready.message.clone().filter(|_| ready.status != "True")
}

async fn follow_manifests(mut manifests: watch::Receiver<ManifestProblems>, own: Sender<ConsoleEvent>) {
    loop {
        let present = manifests.borrow_and_update().values().flatten().cloned().collect();
        own.send(ConsoleEvent::Problems(ProblemSource::Manifests, present));
        if manifests.changed().await.is_err() {
            return;
        }
    }
}

/// The pod's status; an empty one while its worker has published none.
fn view(uid: &PodUid, pod: &Pod, statuses: &PodViews) -> PodView {
    statuses.get(uid).cloned().unwrap_or_else(|| {
        let word = |word: Option<&str>| -> Arc<str> { word.unwrap_or_default().into() };
        let (namespace, name) = (word(pod.metadata.namespace.as_deref()), word(pod.metadata.name.as_deref()));
        PodView { key: PodKey { namespace, name, uid: uid.clone() }, status: Arc::default() }
    })
}

async fn follow_static_pods(
    mut statuses: watch::Receiver<PodViews>,
    mut desired: watch::Receiver<DesiredPods>,
    own: Sender<ConsoleEvent>,
) {
    loop {
        let present = {
            let (desired, statuses) = (desired.borrow_and_update(), statuses.borrow_and_update());
            let of_static = desired.iter().filter(|(_, pod)| is_static(pod));
            let views: Vec<PodView> = of_static.map(|(uid, pod)| view(uid, pod, &statuses)).collect();
            problem::of_static_pods(views.iter().map(|view| (&view.key, &*view.status)))
        };
        own.send(ConsoleEvent::Problems(ProblemSource::StaticPods, present));
        tokio::select! {
            // Both branches only signal a change; the senders live as long as the node.
            Ok(()) = statuses.changed() => {}
            Ok(()) = desired.changed() => {}
            else => return,
        }
    }
}

async fn follow_addresses(own: Sender<ConsoleEvent>, tasks: Tasks) {
    let changed = Arc::new(Notify::new());
    tasks.start(watch_network(changed.clone()));
    loop {
        let Some(found) = tasks.blocking(network::node_addresses).await else { return };
        own.send(ConsoleEvent::Addresses(found.iter().map(ToString::to_string).collect()));
        let (at_most, at_least) = ADDRESSES_EVERY;
        let now = tasks.now().mono;
        tokio::select! {
            // Both are cancel-safe: a hint that comes later is kept for the next wait.
            () = changed.notified() => {}
            () = tasks.wait_until(now.after(at_most)) => {}
        }
        // A node whose pods come and go has many hints.
        tasks.wait_until(now.after(at_least)).await;
    }
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeMap;

    use k8s_openapi::api::core::v1::{ContainerState, ContainerStateWaiting, ContainerStatus, PodStatus};
    use tokio_util::sync::CancellationToken;

    use super::*;
    use crate::node::cluster_problems::{ClusterProblems, Part};
    use crate::pods::status::StatusStore;
    use crate::testing::VirtualClock;

    const VERITY: &str = r#"{"boot_id":"b","entries":[{"phase":"init.verity","at_ms":1,"detail":"/dev/vda2 root hash 00112233445566778899"}]}"#;
    const CONFIG: &str = r#"{"problems":[{"source":"fw_cfg","line":4,"path":"kubelet.maxPods","reason":"must be an integer"}]}"#;

    /// A static pod, and its container's reason to wait.
    fn waits(reason: &str) -> (PodKey, Arc<Pod>, Arc<PodStatus>) {
        let key = PodKey { namespace: "default".into(), name: "web-n".into(), uid: "u".into() };
        let mut pod = Pod::default();
        pod.metadata.annotations =
            Some(BTreeMap::from([("kubernetes.io/config.source".to_owned(), "file".to_owned())]));
        let waiting = ContainerStateWaiting { reason: Some(reason.to_owned()), message: None };
        let state = Some(ContainerState { waiting: Some(waiting), ..ContainerState::default() });
        let container = ContainerStatus { name: "c".to_owned(), state, ..ContainerStatus::default() };
        let status = PodStatus { container_statuses: Some(vec![container]), ..PodStatus::default() };
        (key, Arc::new(pod), Arc::new(status))
    }

    #[tokio::test(start_paused = true)]
    async fn the_kernel_s_log_has_problems_and_a_banner() {
        let dir = tempfile::tempdir().unwrap();
        let kmsg = dir.path().join("kmsg");
        std::fs::write(&kmsg, "").unwrap();
        std::fs::write(dir.path().join("boot.json"), VERITY).unwrap();
        std::fs::write(dir.path().join("node-config.json"), CONFIG).unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        let (problems, (state, shown)) = (ClusterProblems::default(), watch::channel("starting"));
        let console = start(
            Deps {
                run_dir: dir.path().to_owned(),
                node_name: "edge-7".to_owned(),
                in_cluster: true,
                writer: ConsoleWriter::new(kmsg.clone(), &tasks),
                cluster_problems: problems.subscribe(),
                state: shown,
            },
            &tasks,
        );
        problems.say(Part::Node, "no\u{1b}server");
        problems.say(Part::Identity, "no token");
        state.send_replace("running");
        let statuses = StatusStore::default();
        let (key, pod, status) = waits("ErrImagePull");
        let (_desired, desired) = watch::channel(DesiredPods::from([(key.uid.clone(), pod)]));
        let (_manifests, manifests) = watch::channel(ManifestProblems::new());
        let (ready_view, ready) = watch::channel(false);
        let lacks: Node =
            serde_json::from_value(serde_json::json!({"metadata": {}, "status": {"conditions": [
            {"type": "Ready", "status": "False", "message": "cni plugin not initialized"}]}}))
            .unwrap();
        let (_object, object) = watch::channel(Some(Arc::new(lacks)));
        console.follow_node(NodeParts {
            statuses: statuses.subscribe(),
            desired,
            manifests,
            ready: Some(ready),
            object: Some(object),
        });
        statuses.publish(&key, status);
        // Blocking work needs real time, which a paused clock does not give: the log is looked at until it has all.
        let read = || std::fs::read_to_string(&kmsg).unwrap();
        for _ in 0..200 {
            tasks.wait_until(tasks.now().mono.after(Duration::from_secs(1))).await;
            tasks.blocking(|| ()).await.unwrap();
            if read().contains("problem: static pod default/web-n, container c: ErrImagePull") {
                break;
            }
        }
        let text = read();
        for line in [
            "<4>orlop-agent: problem: cluster, identity: no token",
            "<4>orlop-agent: problem: configuration, 1 of 1: fw_cfg:4: kubelet.maxPods: must be an integer; ",
            "<5>orlop-agent: -- edge-7 -- Orlop ",
            " -- slot A (vda2), root hash 001122334455 -- up ",
            "<5>orlop-agent:    node agent: ready",
            "<5>orlop-agent:    cluster: the Node is NOT READY: cni plugin not initialized",
            "<4>orlop-agent: problem: static pod default/web-n, container c: ErrImagePull",
        ] {
            assert!(text.contains(line), "{line}: {text}");
        }
        assert!(!text.contains('\u{1b}') && !text.contains("no server"), "{text}");
        let file = dir.path().join(problem::FILE);
        let kept = || problem::parse(&std::fs::read_to_string(&file).unwrap_or_default());
        for _ in 0..200 {
            if !kept().is_empty() {
                break;
            }
            tasks.wait_until(tasks.now().mono.after(Duration::from_secs(1))).await;
            tasks.blocking(|| ()).await.unwrap();
        }
        let kept: Vec<String> = kept().into_iter().map(|problem| problem.subject).collect();
        assert_eq!(kept, ["static pod default/web-n, container c"]);
        drop(ready_view);
        tasks.stop().cancel();
    }

    #[tokio::test]
    async fn another_system_s_log_is_left_alone() {
        let dir = tempfile::tempdir().unwrap();
        let tasks = Tasks::new(Arc::new(VirtualClock::new()), CancellationToken::new());
        assert!(ConsoleWriter::of_appliance(dir.path(), &tasks).is_none());
    }

    #[test]
    fn the_version_of_the_image() {
        assert_eq!(image_version("ID=orlop\nIMAGE_VERSION=\"0.4.0\"\n"), "0.4.0");
        assert_eq!(image_version(""), env!("CARGO_PKG_VERSION"));
    }
}
