//! A machine under test: real directories, a fake runtime, a fake API server if it has one, and tokio's paused time,
//! which passes only while everybody waits. Agents come and go.

// Each test file uses its own part; a test's helpers fail by panicking, as the test itself does.
#![allow(dead_code, unreachable_pub, clippy::unwrap_used)]

pub mod api;
pub mod cgroups;
pub mod device_plugin;

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::admission::AdmissionContext;
use agent_core::images::pull_records;
use agent_core::node_status::addresses;
use agent_core::pod_source::file::FileSourceConfig;
use agent_core::pod_worker::WorkerContext;
use agent_core::resource_claims::api::ClaimGates;
use agent_linux::clock::Clock;
use agent_sim::driver::FakeDriver;
use agent_sim::fake_runtime::{FakeRuntime, image};
use agent_types::node_context::NodeContext;
use agent_types::resources::machine::{HostNetwork, InterfaceAddress, MachineFacts};
use agent_types::resources::node_allocatable::MachineAmounts;
use agent_types::restart;
use agent_types::runtime::observed::{ContainerState, RuntimeSignal};
use agent_types::runtime::status::RuntimeHandler;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_agent::claims::ClaimsPlan;
use orlop_agent::cluster::feeds::NodeFactsSource;
use orlop_agent::images;
use orlop_agent::images::pulls::PullLimits;
use orlop_agent::node::host_channel::Host;
use orlop_agent::pods::pod_dirs::on_disk::Directories;
use orlop_agent::pods::probes_and_hooks::PodHandlers;
use orlop_agent::pods::status::PodViews;
use orlop_agent::process::node::{Drivers, Node, Plan, PodDrivers};
use orlop_agent::runtime::pleg::Signals;
use orlop_agent::runtime::runtime_state::{ContextSource, RuntimeState};
use orlop_agent::runtime::shim_groups::SharedShims;
use orlop_agent::serving::metrics::Metrics;
use orlop_agent::tasks::actor::Tasks;
use orlop_agent::testing::VirtualClock;
use orlop_agent::volumes::csi::Csi;
use orlop_config::kubelet::enums::ImagePullCredentialsVerificationPolicy as Verification;
use tokio::sync::{Notify, mpsc, watch};
use tokio_util::sync::CancellationToken;

use api::TestApi;
use cgroups::Hierarchy;

pub const IMAGE: &str = "localhost/orlop/hello:1";
/// Virtual time; a pod that needs longer than this for any step is stuck.
pub const SOON: Duration = Duration::from_secs(120);

/// A runtime without events: everything is found by relisting.
struct NoEvents;

impl Signals for NoEvents {
    fn signals(&self) -> (mpsc::Receiver<RuntimeSignal>, impl Future<Output = ()> + Send + 'static) {
        let (to, signals) = mpsc::channel(1);
        (signals, async move {
            let _ = to.send(RuntimeSignal::Unsupported).await;
        })
    }
}

struct Facts(NodeContext);

impl ContextSource for Facts {
    fn worker_context(&self, shown: &[NodeAddress], _: &[RuntimeHandler]) -> anyhow::Result<WorkerContext> {
        Ok(WorkerContext {
            specs: Arc::new(self.0.clone()),
            request_timeout: Duration::from_secs(120),
            cpus_again: Duration::from_secs(10),
            crash_loop: restart::SERIES,
            runtime_name: "fake".to_owned(),
            agent_started: Now::default(),
            host_ips: addresses::host_ips(shown),
            ipv6_first: false,
        })
    }
}

impl NodeFactsSource for Facts {
    fn machine_facts(&self) -> anyhow::Result<MachineFacts> {
        let amounts = MachineAmounts { cpus: 2, memory_bytes: 4 << 30, ..MachineAmounts::default() };
        Ok(MachineFacts {
            boot_id: "boot".to_owned(),
            architecture: "amd64".to_owned(),
            amounts,
            ..Default::default()
        })
    }

    fn host_network(&self, _: bool) -> anyhow::Result<HostNetwork> {
        let address = InterfaceAddress { interface: "eth0".to_owned(), ip: IpAddr::from([192, 0, 2, 1]) };
        Ok(HostNetwork {
            addresses: vec![address],
            default_v4: vec!["eth0".to_owned()],
            ..Default::default()
        })
    }

    fn network_changes(&self, _: &Tasks) -> Arc<Notify> {
        Arc::default()
    }
}

/// Claims with all gates of the defaults.
pub fn claims_plan() -> ClaimsPlan {
    let gates = ClaimGates { health: true, health_message: true, workload_claims: false };
    ClaimsPlan { gates, first_of_boot: false }
}

/// A machine: its disk, its runtime, its clock.
pub struct Machine {
    pub dir: tempfile::TempDir,
    pub driver: FakeDriver,
    pub clock: Arc<VirtualClock>,
    pub cgroups: Hierarchy,
    /// Metrics over all agents.
    pub metrics: Metrics,
    /// Its cluster.
    pub api: Option<TestApi>,
}

/// One run of the agent.
pub struct Agent {
    pub node: Node<FakeDriver, FakeDriver>,
    pub tasks: Tasks,
    pub pods: watch::Receiver<PodViews>,
}

impl Machine {
    pub fn new() -> Machine {
        let dir = tempfile::tempdir().unwrap();
        std::fs::create_dir(dir.path().join("manifests")).unwrap();
        let clock = Arc::new(VirtualClock::new());
        let mut runtime = FakeRuntime::default();
        // A container may name the image in either form.
        for name in [IMAGE, "hello"] {
            runtime.images.insert(name.to_owned(), image(IMAGE));
        }
        let time = clock.clone();
        let driver = FakeDriver::new(runtime, move || time.now());
        let metrics = Metrics::new(clock.clone());
        Machine { dir, driver, clock, cgroups: Hierarchy::default(), metrics, api: None }
    }

    pub fn path(&self, below: &str) -> PathBuf {
        self.dir.path().join(below)
    }

    pub async fn agent(&self, fence_until: Mono) -> Agent {
        let tasks = Tasks::new(self.clock.clone(), CancellationToken::new());
        let mut node = NodeContext::new("node");
        node.root_dir = self.path("kubelet").display().to_string();
        node.pod_logs_dir = self.path("logs").display().to_string();
        let plan = Plan {
            node_name: "node".to_owned(),
            static_pods: Some(FileSourceConfig {
                path: self.path("manifests").display().to_string(),
                node_name: "node".to_owned(),
                check_period: Duration::from_secs(20),
            }),
            manifests: None,
            directories: Directories {
                root_dir: self.path("kubelet"),
                pod_logs_dir: self.path("logs"),
                log_links_dir: self.path("links"),
                device_plugins_dir: self.path("device-plugins"),
            },
            users: Default::default(),
            images: images::Plan {
                pulls: PullLimits { at_once: 1, qps: 0, burst: 0 },
                pull_policy: pull_records::Policy {
                    verification: Some(Verification::NeverVerifyPreloadedImages),
                    allowlist: Vec::new(),
                },
                plugins: Vec::new(),
                plugins_dir: PathBuf::new(),
            },
            fence_until,
            pod_output: false,
            admission: Arc::new(AdmissionContext {
                node_name: "node".to_owned(),
                max_pods: Some(200),
                ..AdmissionContext::default()
            }),
            shutdown: None,
            eviction: Default::default(),
            managers: Default::default(),
            claims: claims_plan(),
        };
        let driver = Arc::new(self.driver.clone());
        let drivers = Drivers {
            runtime: driver.clone(),
            state: RuntimeState::ask(&*driver).await,
            pods: PodDrivers {
                signals: NoEvents,
                handlers: Arc::new(PodHandlers::new(driver.clone()).unwrap()),
                amounts: driver.clone(),
                shims: SharedShims::new(driver.clone(), 1),
                cgroups: Some(self.cgroups.plan()),
            },
            images: driver,
            facts: Arc::new(Facts(node)),
            senses: None,
            metrics: self.metrics.clone(),
            csi: Csi::new(&tasks),
            cluster: self.api.as_ref().map(|api| (api::plan(), api.connect(&tasks))),
        };
        let host = Host::new(tasks.clone(), &self.path("run"), None);
        let mut node = Node::start(plan, drivers, host, tasks.clone()).await.unwrap();
        // No task follows CSI plugins here.
        node.node_events().storage(Ok(()));
        tokio::time::timeout(SOON, node.ready()).await.expect("not ready");
        let pods = node.statuses().subscribe();
        Agent { node, tasks, pods }
    }

    pub fn write(&self, name: &str, command: &str) {
        let text = format!(
            "apiVersion: v1\nkind: Pod\nmetadata:\n  name: {name}\nspec:\n  containers:\n  - name: main\n    \
             image: {IMAGE}\n    command: [{command}]\n"
        );
        put(&self.path(&format!("manifests/{name}.yaml")), &text);
    }

    pub fn remove(&self, name: &str) {
        std::fs::remove_file(self.path(&format!("manifests/{name}.yaml"))).unwrap();
    }

    /// Ids of running containers, which a restart of the agent must not change.
    pub fn running(&self) -> Vec<String> {
        self.driver.with(|r| {
            let live = r.containers.values().filter(|c| c.observed.state == ContainerState::Running);
            live.map(|c| c.observed.id.to_string()).collect()
        })
    }

    pub fn is_empty(&self) -> bool {
        self.driver.with(|r| r.sandboxes.is_empty() && r.containers.is_empty())
    }
}

pub fn put(path: &Path, text: &str) {
    let new = path.with_extension("new");
    std::fs::write(&new, text).unwrap();
    std::fs::rename(&new, path).unwrap();
}

impl Agent {
    pub async fn until(&mut self, what: &str, wanted: impl FnMut(&PodViews) -> bool) {
        let seen = tokio::time::timeout(SOON, self.pods.wait_for(wanted)).await.is_ok();
        if !seen {
            panic!("not {what}: {:#?}", self.pods.borrow().values().collect::<Vec<_>>());
        }
    }

    pub async fn running(&mut self, count: usize) {
        self.until("running", |pods| pods.len() == count && pods.values().all(|p| p.phase() == "Running"))
            .await;
    }

    /// Lets virtual time pass, so that every timer fires.
    pub async fn pass(&self, seconds: u64) {
        self.tasks.wait_until(self.tasks.now().mono.after(Duration::from_secs(seconds))).await;
    }

    /// Like kill -9: drops all work of the agent at once.
    pub async fn kill(self) {
        self.tasks.stop().cancel();
        drop(self.node);
        self.tasks.drain(Duration::from_secs(1)).await;
    }
}
