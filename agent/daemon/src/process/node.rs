//! The composition root: every state owner of a node, and the mailboxes between them.
//!
//! ```text
//! static pods ─► sources ─► manager ─► pod workers ─► executor ─► runtime, images, disk
//!         cluster (API pods) ─┘▲   ▲          └─► NodeEvents ─► statuses (ledger, host), cluster
//!           runtime state ─────┘   └── pleg ◄── event stream, relist
//! ```
//! In: a [`Plan`] and the drivers. Out: a [`Node`] that runs until it is stopped. Each subsystem is one block that
//! starts it from its `Deps` and gives handles; `wiring` has the mailboxes that several of them send to. Invariant:
//! this folder is the only place that sees all owners; each of them sees only the mailboxes it sends to.

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::sync::atomic::AtomicU32;
use std::time::Duration;

use agent_core::admission::AdmissionContext;
use agent_core::eviction::EvictionConfig;
use agent_core::images::gc;
use agent_core::pleg::PlegEvent;
use agent_core::plugin_registrations::sockets::PluginSockets;
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::file::FileSourceConfig;
use agent_core::resource_managers::{ResourceManagers, ResourcesView};
use agent_kubelet_api::drivers::{ImageService, ImagesInUse, Runtime, Statistics};
use agent_kubelet_api::logs::rotation::RunningLogs;
use agent_types::api::ApiServer;
use agent_types::resources::user_ranges::UserRanges;
use agent_types::time::Mono;
use anyhow::Context;
use k8s_openapi::api::core::v1::{self, NodeAddress};
use tokio::sync::watch;

use crate::claims::{self, ClaimsHandle, ClaimsPlan};
use crate::cluster::calls::Caller;
use crate::cluster::feeds::{FeedSources, NodeFactsSource};
use crate::cluster::{self, ApiDrivers, ClusterHandles, ClusterPlan};
use crate::devices::DevicePlugins;
use crate::images;
use crate::images::garbage_collection::{self, Requests, Surroundings};
use crate::node::NodeHandles;
use crate::node::container_manager::ContainerManagerPlan;
use crate::node::eviction::{self, Senses};
use crate::node::host_channel::{self, Host};
use crate::node::node_events::NodeEvents;
use crate::node::shutdown::{self, Departure, ShutdownHandles, ShutdownPlan};
use crate::plugin_watcher;
use crate::pods::desired_pods::{ActivePods, DesiredPods};
use crate::pods::execute::ContainerAmounts;
use crate::pods::pod_dirs::on_disk::{Directories, OnDisk};
use crate::pods::pod_values;
use crate::pods::probes_and_hooks::Handlers;
use crate::pods::status::StatusStore;
use crate::pods::url_source::Manifests;
use crate::process::heap_trim;
use crate::process::pods::{self, Pods};
use crate::process::wiring::Wiring;
use crate::runtime::pleg::Signals;
use crate::runtime::runtime_state::{self, ContextSource, RuntimeState};
use crate::runtime::shim_groups::SharedShims;
use crate::serving::metrics::Metrics;
use crate::serving::pod_resources::ClaimsReader;
use crate::tasks::actor::Tasks;
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::Sender;
use crate::volumes::csi::{Csi, volume_table};
use crate::volumes::local_volumes::LocalVolumes;

/// How long calls that change the runtime may take to finish once the agent stops.
const SETTLE: Duration = Duration::from_secs(2);

/// Configuration of a node, without its drivers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// Name of the node.
    pub node_name: String,
    /// `staticPodPath` with `fileCheckFrequency`; `None` for a node without static pods.
    pub static_pods: Option<FileSourceConfig>,
    /// `staticPodURL` with its headers, and `httpCheckFrequency`.
    pub manifests: Option<Manifests>,
    /// The node's directories.
    pub directories: Directories,
    /// Ids for pods with user namespaces.
    pub users: UserRanges,
    /// Pulls, their records, credentials.
    pub images: images::Plan,
    /// When all calls of the last run are over.
    pub fence_until: Mono,
    /// Pods' output goes to the host channel.
    pub pod_output: bool,
    /// Facts about the node that admission uses.
    pub admission: Arc<AdmissionContext>,
    /// Settings of the node's shutdown; `None` if the machine does not wait for pods.
    pub shutdown: Option<ShutdownPlan>,
    /// Eviction thresholds.
    pub eviction: EvictionConfig,
    /// Processors and memory that pods have for themselves.
    pub managers: ResourceManagers,
    /// Resource claims.
    pub claims: ClaimsPlan,
}

/// Drivers of a node.
pub struct Drivers<R, I, S, C, A> {
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// Runtime status.
    pub state: RuntimeState,
    /// CRI ImageService.
    pub images: Arc<I>,
    /// Drivers that only pods use.
    pub pods: PodDrivers<S>,
    /// Source of the facts about the machine that pod workers share.
    pub facts: Arc<C>,
    /// Sensors of the eviction manager; `None`: the node evicts no pod.
    pub senses: Option<Arc<dyn Senses>>,
    /// Counters.
    pub metrics: Metrics,
    /// CSI drivers, and the volumes that they have mounted.
    pub csi: Csi,
    /// The API server, and the node's part in its cluster; `None` for a standalone node.
    pub cluster: Option<(ClusterPlan, ApiDrivers<A>)>,
}

/// Drivers that only pods use.
pub struct PodDrivers<S> {
    /// CRI event stream.
    pub signals: S,
    /// Probes and hooks.
    pub handlers: Arc<dyn Handlers>,
    /// Resources of running containers: reads and updates.
    pub amounts: Arc<dyn ContainerAmounts>,
    /// Groups of pods that share a shim.
    pub shims: SharedShims,
    /// Pods' cgroups; `None` where they have none (`cgroupsPerQOS: false`).
    pub cgroups: Option<ContainerManagerPlan>,
}

/// A running node.
pub struct Node<R, I> {
    handles: NodeHandles,
    statuses: StatusStore,
    pods: Pods<R, I>,
    cluster: Option<ClusterHandles>,
    plugins: DevicePlugins,
    claims: ClaimsHandle,
    runtime: watch::Receiver<RuntimeState>,
    shutdown: Option<ShutdownHandles>,
    owners: Vec<Owner>,
}

impl<R: Runtime, I: ImageService> Node<R, I> {
    /// Starts every owner. Owners do not act on any pod before all sources were read and the runtime was listed.
    ///
    /// # Errors
    /// The machine or the pod directories cannot be read.
    pub async fn start<S: Signals, C: ContextSource + NodeFactsSource, A: ApiServer>(
        plan: Plan,
        drivers: Drivers<R, I, S, C, A>,
        host: Host,
        tasks: Tasks,
    ) -> anyhow::Result<Node<R, I>> {
        let Drivers { runtime, state, images: service, facts, metrics, csi, cluster, .. } = drivers;
        let (context_view, context) = watch::channel(Arc::new(facts.worker_context(&[], &state.handlers)?));
        let mut on_disk = OnDisk::read(&plan.directories, plan.users.clone())?;
        let wiring = Wiring::new(&plan, drivers.senses, cluster.is_some(), &metrics, &tasks);
        let Wiring { statuses, shutdown, eviction, .. } = wiring;
        on_disk.records = shutdown::still_ending(shutdown.as_ref(), on_disk.records, &on_disk.dirs);
        let (dirs, going) = (on_disk.dirs.clone(), eviction::still_going(&on_disk.records));
        let sources = pod_values::of_cluster(cluster.as_ref(), csi.clone(), &tasks);
        let images = images::start(images::Deps {
            plan: &plan.images,
            service: service.clone(),
            root_dir: &plan.directories.root_dir,
            sources: sources.clone(),
            node: &wiring.node,
        })
        .await;
        let (shutdown, owner) = shutdown.map(|shutdown| shutdown.start(&wiring.node)).unzip();
        let mut owners: Vec<Owner> = owner.into_iter().collect();
        facts.warnings().into_iter().for_each(|fact| wiring.node.node_events.of_node(fact));
        let plugins = DevicePlugins::new(plan.directories.device_plugins_dir.clone(), &wiring.node);
        let api = cluster.as_ref().map(|(_, api)| Caller::new(tasks.clone(), api.client.clone()));
        let claims = start_claims(&plan, api, &wiring.node)?;
        let pods = pods::start(pods::Deps {
            plugins: plugins.clone(),
            claims: &claims,
            node: &wiring.node,
            plan: &plan,
            on_disk,
            runtime: runtime.clone(),
            drivers: drivers.pods,
            network: state.network.clone(),
            images,
            sources,
            context,
            in_cluster: cluster.is_some(),
            mail: wiring.pods,
            host: &host,
        });
        // After the checkpoint was read, and before a plugin can see that the agent has started.
        plugins.start().context("serve the registration socket of device plugins")?;
        let (desired, pleg) = (pods.manager.desired.clone(), pods.pleg.health.clone());
        owners.extend(eviction.map(|eviction| {
            eviction.start(eviction::Deps { node: &wiring.node, going, desired, statuses: statuses.clone() })
        }));
        let cluster = cluster.zip(wiring.cluster).map(|((plan, api), mailboxes)| {
            let (node, volumes) = (&wiring.node, csi.volumes.clone());
            let (runtime, facts) = (runtime.clone(), facts.clone());
            let sources = FeedSources { runtime, images: service, facts, pleg };
            cluster::start(cluster::Deps { node, plan, mailboxes, api, volumes, sources })
        });
        let to_node = cluster.as_ref().map(|cluster| cluster.node.clone());
        owners.extend(volume_table::start(dirs, csi, to_node, &tasks));
        let addresses = cluster.as_ref().map(|cluster| cluster.addresses.clone());
        let (node, context) = (&wiring.node, context_view);
        let runtime =
            runtime_state::start(runtime_state::Deps { node, runtime, state, facts, addresses, context });
        tasks.start(host_channel::stamp_running(host, statuses.subscribe()));
        tasks.start(heap_trim::after_bursts(statuses.subscribe(), agent_linux::heap::give_back));
        Ok(Node { handles: wiring.node, statuses, pods, cluster, plugins, claims, runtime, shutdown, owners })
    }

    /// Waits until the node's own sources were read, the runtime was listed, and the runtime is ready. The wait does
    /// not include the API server: a node runs its static pods without it.
    pub async fn ready(&mut self) {
        // The senders live as long as the node's tasks: an error means that it is being stopped.
        let _ = self.pods.manager.synced.wait_for(|synced| *synced).await;
        let _ = self.runtime.wait_for(|state| state.runtime.is_ok()).await;
    }

    /// Takes the delay lock of logind once the node is ready: before that there are no pods to wait for, and the bus comes up
    /// at the same time as the node.
    pub fn follow_logind(&mut self) {
        if let Some(follower) = self.shutdown.as_mut().and_then(|shutdown| shutdown.follower.take()) {
            self.handles.tasks.start(follower.follow(self.handles.tasks.clone()));
        }
    }

    /// Ends the pods when the machine stops and logind did not wait; `None` if pods have no grace period at all.
    pub fn take_departure(&mut self) -> Option<Departure> {
        self.shutdown.as_mut().and_then(|shutdown| shutdown.departure.take())
    }

    /// Whether the API server shows the node as ready; `None` on a standalone node.
    #[must_use]
    pub fn shown_ready(&self) -> Option<watch::Receiver<bool>> {
        self.cluster.as_ref().map(|cluster| cluster.ready.clone())
    }

    /// `spec.podCIDRs` of the Node; `None` on a standalone node.
    #[must_use]
    pub fn pod_cidrs(&self) -> Option<watch::Receiver<Vec<String>>> {
        self.cluster.as_ref().map(|cluster| cluster.pod_cidrs.clone())
    }

    /// `status.addresses` of the Node; `None` on a standalone node.
    #[must_use]
    pub fn addresses(&self) -> Option<watch::Receiver<Vec<NodeAddress>>> {
        self.cluster.as_ref().map(|cluster| cluster.addresses.clone())
    }

    /// The Node as its watch shows it; `None` on a standalone node.
    #[must_use]
    pub fn object(&self) -> Option<watch::Receiver<Option<Arc<v1::Node>>>> {
        self.cluster.as_ref().map(|cluster| cluster.object.clone())
    }

    /// Renewals of the node's lease since the agent began; `None` on a standalone node.
    #[must_use]
    pub fn lease_renewals(&self) -> Option<Arc<AtomicU32>> {
        self.cluster.as_ref().map(|cluster| Arc::clone(&cluster.renewals))
    }

    /// The runtime's last status.
    #[must_use]
    pub fn runtime_state(&self) -> watch::Receiver<RuntimeState> {
        self.runtime.clone()
    }

    /// Processors and memory that pods have for themselves.
    #[must_use]
    pub fn resources(&self) -> watch::Receiver<Arc<ResourcesView>> {
        self.pods.manager.resources.clone()
    }

    /// Reads the node's resource claims.
    #[must_use]
    pub fn claims_reader(&self) -> ClaimsReader {
        let claims = self.claims.clone();
        Arc::new(move || claims.view())
    }

    /// Device plugins.
    #[must_use]
    pub fn device_plugins(&self) -> DevicePlugins {
        self.plugins.clone()
    }

    /// Resource claims.
    #[must_use]
    pub fn claims(&self) -> &ClaimsHandle {
        &self.claims
    }

    /// Starts the plugin watcher below the kubelet's root, and shows the sockets of plugins in the metrics.
    pub fn watch_plugins(&self, root_dir: PathBuf, handlers: plugin_watcher::Handlers) {
        let NodeHandles { tasks, node_events, .. } = &self.handles;
        let mut sockets = plugin_watcher::start(root_dir, handlers, tasks);
        let metrics = node_events.metrics().clone();
        tasks.start(async move {
            // An error means that the watcher has ended.
            while sockets.changed().await.is_ok() {
                let PluginSockets { desired, actual } = &**sockets.borrow_and_update();
                metrics.plugin_sockets(desired.iter().map(String::as_str), actual.iter().map(String::as_str));
            }
        });
    }

    /// The pods that sources want.
    #[must_use]
    pub fn desired(&self) -> watch::Receiver<DesiredPods> {
        self.pods.manager.desired.clone()
    }

    /// The pods that may use something of the node.
    #[must_use]
    pub fn active_pods(&self) -> watch::Receiver<ActivePods> {
        self.pods.manager.active.clone()
    }

    /// Paths of volumes of type `local`.
    #[must_use]
    pub fn local_volumes(&self) -> LocalVolumes {
        self.pods.executor.local_volumes()
    }

    /// The subscribers to events of pods and of the node.
    #[must_use]
    pub fn node_events(&self) -> NodeEvents {
        self.handles.node_events.clone()
    }

    /// All pods' statuses.
    #[must_use]
    pub fn statuses(&self) -> StatusStore {
        self.statuses.clone()
    }

    /// Whether PLEG is healthy.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Result<(), String>> {
        self.pods.pleg.health.clone()
    }

    /// PLEG's mailbox.
    #[must_use]
    pub fn pleg(&self) -> Sender<PlegEvent> {
        self.pods.pleg.events.clone()
    }

    /// Starts the collection of unused images and dead containers, periodic and on request.
    pub fn collect_garbage<G: ImageService + ImagesInUse + Statistics>(
        &self,
        policy: gc::Policy,
        images: Arc<G>,
        requests: Requests,
    ) {
        let around = Surroundings {
            images,
            uses: self.pods.executor.image_uses(),
            records: self.pods.executor.records(),
            node_events: self.handles.node_events.clone(),
            tasks: self.handles.tasks.clone(),
            containers: self.pods.manager.unused.clone(),
        };
        garbage_collection::start(policy, around, requests);
    }

    /// The containers' logs that are being written to.
    #[must_use]
    pub fn running_logs(&self) -> watch::Receiver<RunningLogs> {
        self.pods.pleg.running_logs.clone()
    }

    /// The main owners, for the watchdog; to be taken once.
    pub fn take_owners(&mut self) -> Vec<Owner> {
        let mut owners = std::mem::take(&mut self.owners);
        owners.append(&mut self.pods.owners);
        if let Some(cluster) = &mut self.cluster {
            owners.append(&mut cluster.owners);
        }
        owners
    }

    /// Stops the agent's work, not the containers. True if no call was abandoned; then the next run need not wait for
    /// any.
    pub async fn stop(self) -> bool {
        self.handles.tasks.stop().cancel();
        self.pods.executor.settle(SETTLE).await
    }
}

/// Starts the owner of resource claims.
fn start_claims<A: ApiServer>(
    plan: &Plan,
    caller: Option<Caller<A>>,
    node: &NodeHandles,
) -> anyhow::Result<ClaimsHandle> {
    let (metrics, manager) = (node.node_events.metrics().clone(), node.manager.clone());
    claims::start(claims::Deps {
        root_dir: &plan.directories.root_dir,
        node_name: plan.node_name.as_str().into(),
        plan: plan.claims,
        caller,
        changed: Box::new(move |uid, claims| {
            manager.send(ManagerEvent::Claims { uid, claims: Arc::new(claims) });
        }),
        called: Arc::new(move |driver, method, code, took| metrics.dra_called(driver, method, code, took)),
        tasks: node.tasks.clone(),
    })
}

/// Directory of init's run-time state.
#[must_use]
pub fn run_dir() -> &'static Path {
    Path::new("/run/orlop")
}
