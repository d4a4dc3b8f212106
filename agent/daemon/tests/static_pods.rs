//! The whole daemon over a fake runtime: static pods through a real directory, the agent dropped and started
//! again over the same runtime. Time is tokio's, paused: it passes only while everybody waits.

// A test's helpers fail by panicking, as the test itself does.
#![allow(clippy::unwrap_used)]

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::admission::AdmissionContext;
use agent_core::container_spec::NodeContext;
use agent_core::pod_worker::WorkerContext;
use agent_core::restart;
use agent_core::runtime::observed::ContainerState;
use agent_core::time::Mono;
use agent_linux::clock::Clock;
use agent_sim::driver::FakeDriver;
use agent_sim::fake_runtime::{FakeRuntime, image};
use orlop_agent::actor::Tasks;
use orlop_agent::host::Host;
use orlop_agent::node::{Drivers, Node, Plan};
use orlop_agent::pleg::{RuntimeSignal, Signals};
use orlop_agent::runtime_state::ContextSource;
use orlop_agent::status::PodViews;
use orlop_agent::testing::VirtualClock;
use tokio::sync::{mpsc, watch};
use tokio_util::sync::CancellationToken;

const IMAGE: &str = "localhost/orlop/hello:1";
/// Virtual time; a pod that needs longer than this for anything here is stuck.
const SOON: Duration = Duration::from_secs(120);

/// A runtime without events: everything is found by relisting.
struct NoEvents;

impl Signals for NoEvents {
    fn signals(&self) -> (mpsc::Receiver<RuntimeSignal>, impl Future<Output = ()> + Send + 'static) {
        let (to, signals) = mpsc::channel(1);
        (signals, async move {
            let _ = to.send(RuntimeSignal::Lost).await;
        })
    }
}

struct Facts(NodeContext);

impl ContextSource for Facts {
    fn worker_context(&self) -> anyhow::Result<WorkerContext> {
        Ok(WorkerContext {
            specs: Arc::new(self.0.clone()),
            request_timeout: Duration::from_secs(120),
            crash_loop: restart::Policy::default(),
            runtime_name: "fake".to_owned(),
            host_ips: Vec::new(),
        })
    }
}

/// A machine: its disk, its runtime, its clock. Agents come and go.
struct Machine {
    dir: tempfile::TempDir,
    driver: FakeDriver,
    clock: Arc<VirtualClock>,
}

/// One run of the agent.
struct Agent {
    node: Node<FakeDriver, FakeDriver>,
    tasks: Tasks,
    pods: watch::Receiver<PodViews>,
}

impl Machine {
    fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        let clock = Arc::new(VirtualClock::new());
        let mut runtime = FakeRuntime::default();
        // What the container wants is what the pod spells; both forms lead to the image.
        for name in [IMAGE, "hello"] {
            runtime.images.insert(name.to_owned(), image(IMAGE));
        }
        let time = clock.clone();
        let driver = FakeDriver::new(runtime, move || time.now());
        Machine { dir, driver, clock }
    }

    fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    async fn agent(&self, fence_until: Mono) -> Agent {
        let tasks = Tasks::new(self.clock.clone(), CancellationToken::new());
        let mut node = NodeContext::new("node");
        node.root_dir = self.path("kubelet").display().to_string();
        node.pod_logs_dir = self.path("logs").display().to_string();
        let plan = Plan {
            static_pods: Some(self.path("manifests").display().to_string()),
            check_period: Duration::from_secs(20),
            node_name: "node".to_owned(),
            root_dir: self.path("kubelet"),
            pod_logs_dir: self.path("logs"),
            pulls: 1,
            fence_until,
            pod_output: false,
            admission: Arc::new(AdmissionContext {
                node_name: "node".to_owned(),
                max_pods: Some(200),
                ..AdmissionContext::default()
            }),
        };
        let driver = Arc::new(self.driver.clone());
        let drivers = Drivers {
            runtime: driver.clone(),
            images: driver,
            signals: NoEvents,
            facts: Arc::new(Facts(node)),
        };
        let host = Host::new(tasks.clone(), &self.path("run"), None);
        let mut node = Node::start(plan, drivers, host, tasks.clone()).await.unwrap();
        tokio::time::timeout(SOON, node.ready()).await.expect("not ready");
        let pods = node.statuses().subscribe();
        Agent { node, tasks, pods }
    }

    fn write(&self, name: &str, command: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n    \
             image: {IMAGE}\n    command: [{command}]\n"
        );
        put(&self.path(&format!("manifests/{name}.yaml")), &text);
    }

    fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(&format!("manifests/{name}.yaml"))).unwrap();
    }

    /// Ids of running containers: what must not change when the agent is restarted.
    fn running(&self) -> Vec<String> {
        self.driver.with(|r| {
            let live = r.containers.values().filter(|c| c.observed.state == ContainerState::Running);
            live.map(|c| c.observed.id.to_string()).collect()
        })
    }

    fn is_empty(&self) -> bool {
        self.driver.with(|r| r.sandboxes.is_empty() && r.containers.is_empty())
    }
}

fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

impl Agent {
    async fn until(&mut self, what: &str, wanted: impl FnMut(&PodViews) -> bool) {
        let seen = tokio::time::timeout(SOON, self.pods.wait_for(wanted)).await.is_ok();
        if !seen {
            panic!("not {what}: {:#?}", self.pods.borrow().values().collect::<Vec<_>>());
        }
    }

    async fn running(&mut self, count: usize) {
        self.until("running", |pods| pods.len() == count && pods.values().all(|p| p.phase() == "Running"))
            .await;
    }

    /// Virtual time passes; everything that has a timer gets its turn.
    async fn pass(&self, seconds: u64) {
        self.tasks.wait_until(self.tasks.now().mono.after(Duration::from_secs(seconds))).await;
    }

    /// As kill -9 does: everything it was doing is dropped where it stands.
    async fn kill(self) {
        self.tasks.stop().cancel();
        drop(self.node);
        self.tasks.drain(Duration::from_secs(1)).await;
    }
}

#[tokio::test(start_paused = true)]
async fn added_changed_removed() {
    let machine = Machine::new();
    let mut agent = machine.agent(Mono(0)).await;
    machine.write("web", "one");
    agent.running(1).await;
    let first = machine.running();
    assert_eq!(first.len(), 1);
    let uid = agent.pods.borrow().keys().next().unwrap().clone();
    assert!(machine.path("kubelet/pods").join(uid.as_str()).is_dir());

    machine.write("web", "two");
    agent.until("replaced", |pods| pods.len() == 1 && !pods.contains_key(&uid)).await;
    agent.running(1).await;
    let second = machine.running();
    assert_eq!(second.len(), 1);
    assert_ne!(first, second);
    assert!(!machine.path("kubelet/pods").join(uid.as_str()).exists());

    machine.remove("web");
    agent.until("gone", PodViews::is_empty).await;
    assert!(machine.is_empty());
    assert_eq!(std::fs::read_dir(machine.path("kubelet/pods")).unwrap().count(), 0);
    assert_eq!(std::fs::read_dir(machine.path("logs")).unwrap().count(), 0);
    assert!(agent.node.stop().await);
}

#[tokio::test(start_paused = true)]
async fn a_restarted_agent_changes_nothing_that_runs() {
    let machine = Machine::new();
    for name in ["a", "b", "c"] {
        machine.write(name, name);
    }
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(3).await;
    let before = machine.running();
    assert_eq!(before.len(), 3);
    for fence_s in [0, 10, 240] {
        agent.kill().await;
        let fence_until = machine.clock.now().mono.after(Duration::from_secs(fence_s));
        agent = machine.agent(fence_until).await;
        // Adopted at once, however long absence has to wait.
        let adopted = tokio::time::timeout(Duration::from_secs(2), agent.running(3)).await;
        assert!(adopted.is_ok(), "fence of {fence_s} s");
        agent.pass(400).await;
        assert_eq!(machine.running(), before);
    }
}

#[tokio::test(start_paused = true)]
async fn what_changed_while_the_agent_was_down_is_caught_up() {
    let machine = Machine::new();
    for name in ["gone", "changed", "stays"] {
        machine.write(name, name);
    }
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(3).await;
    let before = machine.running();
    agent.kill().await;
    machine.remove("gone");
    machine.write("changed", "other");
    machine.write("new", "new");
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(3).await;
    agent.pass(60).await;
    let names: Vec<String> = agent.pods.borrow().values().map(|p| p.key.name.to_string()).collect();
    assert_eq!(names.len(), 3);
    for name in ["changed-node", "new-node", "stays-node"] {
        assert!(names.iter().any(|n| n == name), "{names:?}");
    }
    let after = machine.running();
    assert_eq!(after.len(), 3);
    assert_eq!(after.iter().filter(|id| before.contains(id)).count(), 1, "only the unchanged one stays");
}

#[tokio::test(start_paused = true)]
async fn killed_at_every_moment_of_a_pods_start_and_end() {
    let machine = Machine::new();
    for round in 0..12u64 {
        machine.write("web", "x");
        let agent = machine.agent(machine.clock.now().mono.after(Duration::from_secs(10))).await;
        // A different number of steps of the start each time; nothing waits on real time here.
        for _ in 0..round * 7 {
            tokio::task::yield_now().await;
        }
        agent.kill().await;
        machine.remove("web");
        let agent = machine.agent(machine.clock.now().mono.after(Duration::from_secs(10))).await;
        for _ in 0..round * 5 {
            tokio::task::yield_now().await;
        }
        agent.kill().await;
    }
    let mut agent = machine.agent(machine.clock.now().mono.after(Duration::from_secs(10))).await;
    agent.until("gone", PodViews::is_empty).await;
    agent.pass(30).await;
    assert!(machine.is_empty(), "something was left behind");
    machine.write("web", "x");
    agent.running(1).await;
    assert_eq!(machine.running().len(), 1);
}

#[tokio::test(start_paused = true)]
async fn a_hundred_pods() {
    let machine = Machine::new();
    for n in 0..100 {
        machine.write(&format!("pod-{n}"), "x");
    }
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(100).await;
    assert_eq!(machine.running().len(), 100);
    for n in 0..100 {
        machine.remove(&format!("pod-{n}"));
    }
    agent.until("gone", PodViews::is_empty).await;
    assert!(machine.is_empty());
}

#[tokio::test(start_paused = true)]
async fn a_broken_manifest_hides_no_other_and_its_repair_counts() {
    let machine = Machine::new();
    put(&machine.path("manifests/bad.yaml"), "kind: Pod\nmetadata: [");
    machine.write("good", "x");
    let mut agent = machine.agent(Mono(0)).await;
    agent.running(1).await;
    machine.write("bad", "x");
    agent.running(2).await;
}
