//! Services that run next to a node: collection of garbage, rotation of logs, the APIs, CSI plugins, updates, the watchdog.
//!
//! In: a [`Node`] that has started. Out: tasks that run until the node stops.

use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_apiserver::ApiClient;
use agent_cri::CriClient;
use agent_kubelet_api::server_policy::policy::AccessPolicy;
use orlop_node_api::server::FINGERPRINT_FILE;
use orlop_proto::node_api::{AGENT_SOCKET, SOCKET};
use tokio::sync::watch;

use crate::cluster::calls::Caller;
use crate::images::garbage_collection::{self, Requests};
use crate::node::api_key::{self, ApiKeyPaths};
use crate::node::console::{NodeParts, is_appliance};
use crate::node::host_channel::Host;
use crate::node::log_rotation;
use crate::plugin_watcher::Handlers;
use crate::pods::pod_network::{self, RuntimesFile};
use crate::process::begin::Process;
use crate::process::node::{Node, run_dir};
use crate::process::node_updates;
use crate::process::watchdog::{HealthCheck, beat};
use crate::runtime::lost_shims;
use crate::serving::pod_resources::{PodResourceViews, PodResources};
use crate::serving::reviews::{NodeReviews, TellEvent};
use crate::serving::{self, Views};
use crate::update::slots::Slots;
use crate::volumes::csi::{self, Csi};

/// Inputs of the services.
pub(super) struct Deps {
    /// The CRI client of the runtime.
    pub(super) runtime: Arc<CriClient>,
    /// The CRI client of the images.
    pub(super) images: Arc<CriClient>,
    /// The API server; `None` on a standalone node.
    pub(super) client: Option<watch::Receiver<Option<Arc<ApiClient>>>>,
    /// Whether NTP or the API server vouches for the clock; `None` on a standalone node.
    pub(super) clock: Option<watch::Receiver<bool>>,
    /// CSI drivers.
    pub(super) csi: Csi,
    /// The cgroup in which all pods' cgroups are.
    pub(super) kubepods: String,
    /// Requests for a collection of garbage.
    pub(super) garbage: Requests,
    /// The slots of the disk; `None` on a machine that was not booted from one.
    pub(super) slots: Option<Slots>,
    /// The last agent of this boot did not end in order.
    pub(super) crashed: bool,
}

/// Starts them all.
///
/// # Errors
/// A file, an address or a TLS setting that cannot be used.
pub(super) async fn start(
    deps: Deps,
    process: &Process,
    node: &mut Node<CriClient, CriClient>,
) -> anyhow::Result<()> {
    let Deps { runtime, images, client, clock, csi, kubepods, garbage, slots, crashed } = deps;
    let (settings, tasks, metrics) = (&process.settings, &process.tasks, &process.metrics);
    let kubelet = &settings.kubelet;
    if let Some(rotation) = log_rotation::Settings::of(kubelet) {
        tasks.start(log_rotation::follow(rotation, node.running_logs(), runtime.clone(), tasks.clone()));
    }
    node.collect_garbage(garbage_collection::policy(kubelet), images.clone(), garbage);
    let socket = agent_cri::socket_path(&kubelet.container_runtime_endpoint)?;
    tasks.start(lost_shims::follow(socket, tasks.clone()));
    serving::start_healthz(kubelet, tasks)?;
    let shown = PodResourceViews {
        desired: node.desired(),
        active: node.active_pods(),
        resources: node.resources(),
        claims: node.claims_reader(),
    };
    let resources = PodResources::new(settings, shown, metrics.clone(), tasks.clone());
    resources.start(Path::new(&settings.options.root_dir)).await;
    let api = serving::Deps {
        settings: settings.clone(),
        node_name: process.node_name.clone(),
        client: client.clone(),
        verified_clock: clock,
        views: views(node, process, &csi, kubepods),
        runtime: runtime.clone(),
        images,
        tasks: tasks.clone(),
    };
    serving::start(api).await?;
    if let Some(client) = client.clone().filter(|_| is_appliance(run_dir())) {
        help_node_api(client, process, node).await;
    }
    if let Some(slots) = slots {
        node_updates::start(slots, crashed, client.clone(), process, node).await;
    }
    let csi = client.map(|client| {
        let caller = Caller::new(tasks.clone(), client);
        csi::start(process.node_name.as_str().into(), caller, csi, node.node_events(), tasks)
    });
    let handlers =
        Handlers { csi, devices: node.device_plugins(), claims: Some(node.claims().plugins().clone()) };
    node.watch_plugins(PathBuf::from(&settings.options.root_dir), handlers);
    if let Some(console) = &process.console {
        console.follow_node(node_parts(node));
    }
    if let Some(shown) = node.shown_ready() {
        tasks.start(stamp_ready(shown, process.host.clone()));
    }
    if let Some(ranges) = node.pod_cidrs() {
        let file = RuntimesFile::of_appliance(run_dir());
        tasks.start(pod_network::tell(runtime, ranges, file, tasks.clone()));
    }
    if let Some(period) = process.watchdog {
        let checks = vec![HealthCheck { name: "device-plugin", state: node.device_plugins().health() }];
        tasks.start(beat(process.notifier.clone(), period, node.take_owners(), checks, tasks.clone()));
    }
    Ok(())
}

/// What the management API needs of the agent: reviews of tokens, and its key in the Node.
async fn help_node_api(
    client: watch::Receiver<Option<Arc<ApiClient>>>,
    process: &Process,
    node: &Node<CriClient, CriClient>,
) {
    let (settings, tasks) = (&process.settings, &process.tasks);
    let policy = AccessPolicy::new(&settings.kubelet, &settings.gates);
    let node_events = node.node_events();
    let tell: TellEvent = Arc::new(move |fact| node_events.of_node(fact));
    let reviews = NodeReviews::new(&process.node_name, policy, client, tell);
    reviews.start(Path::new(AGENT_SOCKET), tasks.clone()).await;
    let paths = ApiKeyPaths {
        node_config: run_dir().join("node-config.json"),
        fingerprint: PathBuf::from(FINGERPRINT_FILE),
        socket: PathBuf::from(SOCKET),
    };
    tasks.start(api_key::follow(paths, node.node_events(), tasks.clone()));
}

/// What the consoles show of the node.
fn node_parts(node: &Node<CriClient, CriClient>) -> NodeParts {
    NodeParts {
        statuses: node.statuses().subscribe(),
        desired: node.desired(),
        manifests: node.node_events().follow_manifests(),
        ready: node.shown_ready(),
        object: node.object(),
    }
}

fn views(node: &Node<CriClient, CriClient>, process: &Process, csi: &Csi, kubepods: String) -> Views {
    Views {
        desired: node.desired(),
        statuses: node.statuses(),
        health: node.health(),
        pleg: node.pleg(),
        device_plugins: node.device_plugins().health(),
        addresses: node.addresses(),
        kubepods,
        metrics: process.metrics.clone(),
        claims: node.claims_reader(),
        csi: csi.clone(),
        node_events: node.node_events(),
        local_volumes: node.local_volumes(),
        cluster_problems: process.cluster_problems.clone(),
    }
}

/// The ledger's last line of a node that belongs to a cluster.
async fn stamp_ready(mut shown: watch::Receiver<bool>, host: Host) {
    if shown.wait_for(|ready| *ready).await.is_ok() {
        host.stamp("node.ready", "").await;
    }
}
