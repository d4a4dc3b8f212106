//! The composition root: every state owner of a node, and who sends what to whom.
//!
//! ```text
//! static pods ─► sources ─► manager ─► pod workers ─► executor ─► runtime, images, disk
//!         cluster (API pods) ─┘▲   ▲          └─► outlets ─► statuses (ledger, host), cluster
//!           runtime state ─────┘   └── pleg ◄── event stream, relist
//! ```
//! In: a [`Plan`] and the drivers. Out: a [`Node`] that runs until it is stopped. Invariant: this is the only
//! place that sees all owners; each of them sees only the mailboxes it sends to.

use std::collections::BTreeSet;
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::admission::AdmissionContext;
use agent_core::eviction::EvictionConfig;
use agent_core::images::gc;
use agent_core::images::pull_records::Policy;
use agent_core::pleg::{Pleg, PlegEvent};
use agent_core::pod_manager::{Leftovers, ManagerEvent, PodManager};
use agent_core::pod_source::file::FileSourceConfig;
use agent_core::pod_source::{FileSource, Source};
use agent_kubelet_api::drivers::{ImageService, ImagesInUse, Runtime, Statistics};
use agent_kubelet_api::logs::rotation::RunningLogs;
use agent_types::api::ApiServer;
use agent_types::resources::user_ranges::UserRanges;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_config::credential_provider::Provider;
use tokio::sync::{mpsc, watch};

use crate::cluster::feeds::{Feeds, NodeFactsSource};
use crate::cluster::{self, ApiDrivers, ClusterPlan, Mailboxes};
use crate::images::credential_plugins::Plugins;
use crate::images::garbage_collection::{self, Requests, Surroundings, UnusedContainers};
use crate::images::pull_records::{self, PullRecords};
use crate::images::pulls::PullLimits;
use crate::node::container_manager::{ContainerManager, ContainerManagerPlan, KnownPods};
use crate::node::eviction::{self, Senses};
use crate::node::host_channel::{self, Host};
use crate::node::node_events::Outlets;
use crate::node::shutdown::{self, Departure, Follower, Shutdown, ShutdownPlan};
use crate::node::system_oom;
use crate::pods::execute::{ContainerAmounts, Executor};
use crate::pods::manager_task::{DesiredPods, ManagerShell, Synced};
use crate::pods::pod_dirs::log_links::{self, Observed};
use crate::pods::pod_dirs::{PodDirs, chain};
use crate::pods::probes_and_hooks::Handlers;
use crate::pods::static_pods::{SourceShell, read_in_order, watch as watch_source};
use crate::pods::status::StatusStore;
use crate::pods::url_source::{self, Manifests};
use crate::pods::{pod_output, pod_values};
use crate::process::heap_trim;
use crate::process::watchdog::Owner;
use crate::runtime::inspect::Observer;
use crate::runtime::pleg::{PlegShell, Signals, listen};
use crate::runtime::runtime_state::{self, ContextSource, RuntimeState};
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::{Inbox, Sender};
use crate::volumes::csi::{Csi, stages};
use crate::volumes::local_volumes::LocalVolumes;

/// How long calls that change the runtime may take to finish once the agent stops.
const SETTLE: Duration = Duration::from_secs(2);

/// What a node is made from, besides its drivers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `staticPodPath`; `None` for a node without static pods.
    pub static_pods: Option<String>,
    /// `fileCheckFrequency`.
    pub check_period: Duration,
    /// `staticPodURL` with its headers, and `httpCheckFrequency`.
    pub manifests: Option<Manifests>,
    /// Name of the node.
    pub node_name: String,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Where links to containers' logs go.
    pub log_links_dir: PathBuf,
    /// Ids for pods with user namespaces.
    pub users: UserRanges,
    /// Image pulls at once, and a second.
    pub pulls: PullLimits,
    /// Who may use images that were pulled.
    pub pull_policy: Policy,
    /// Credential-provider plugins.
    pub plugins: Vec<Provider>,
    /// `--image-credential-provider-bin-dir`.
    pub plugins_dir: PathBuf,
    /// Calls of the last run are over then.
    pub fence_until: Mono,
    /// Pods' output goes to the host.
    pub pod_output: bool,
    /// What admission knows about the node.
    pub admission: Arc<AdmissionContext>,
    /// How it ends; `None` if the machine does not wait for pods.
    pub shutdown: Option<ShutdownPlan>,
    /// When pods have to go.
    pub eviction: EvictionConfig,
}

/// The world as a node sees it.
pub struct Drivers<R, I, S, C, A> {
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// What it said of itself.
    pub state: RuntimeState,
    /// CRI ImageService.
    pub images: Arc<I>,
    /// Who carries out probes and hooks.
    pub handlers: Arc<dyn Handlers>,
    /// What containers that run have, and are given.
    pub amounts: Arc<dyn ContainerAmounts>,
    /// CRI event stream.
    pub signals: S,
    /// What workers share, made from the machine.
    pub facts: Arc<C>,
    /// Pods' cgroups; `None` where they have none (`cgroupsPerQOS: false`).
    pub cgroups: Option<ContainerManagerPlan>,
    /// What eviction sees; `None`: nothing is looked for.
    pub senses: Option<Arc<dyn Senses>>,
    /// Who counts.
    pub metrics: Metrics,
    /// Who mounts volumes, and what they have mounted.
    pub csi: Csi,
    /// The API server, and what to be there; `None` for a standalone node.
    pub cluster: Option<(ClusterPlan, ApiDrivers<A>)>,
}

/// What a node of a cluster shows.
struct ClusterView {
    ready: watch::Receiver<bool>,
    pod_cidrs: watch::Receiver<Vec<String>>,
    addresses: watch::Receiver<Vec<NodeAddress>>,
}

/// A running node.
pub struct Node<R, I> {
    tasks: Tasks,
    executor: Executor<R, I>,
    statuses: StatusStore,
    desired: watch::Receiver<DesiredPods>,
    synced: watch::Receiver<bool>,
    cluster: Option<ClusterView>,
    runtime: watch::Receiver<RuntimeState>,
    health: watch::Receiver<Result<(), String>>,
    running_logs: watch::Receiver<RunningLogs>,
    outlets: Outlets,
    unused: UnusedContainers,
    owners: Vec<Owner>,
    shutdown: Option<Follower>,
    departure: Option<Departure>,
}

impl<R: Runtime, I: ImageService> Node<R, I> {
    /// Starts every owner. Nothing happens to any pod before all sources were read and the runtime listed.
    ///
    /// # Errors
    /// The machine or the pod directories cannot be read.
    pub async fn start<S: Signals, C: ContextSource + NodeFactsSource, A: ApiServer>(
        plan: Plan,
        drivers: Drivers<R, I, S, C, A>,
        host: Host,
        tasks: Tasks,
    ) -> anyhow::Result<Node<R, I>> {
        let state = drivers.state;
        let context = Arc::new(drivers.facts.worker_context(&[], &state.handlers)?);
        let (context_view, context) = watch::channel(context);
        let (to_manager, manager_inbox) = tasks.mailbox::<ManagerEvent>();
        let (to_pleg, pleg_inbox) = tasks.mailbox::<PlegEvent>();
        let dirs = PodDirs::new(&plan.root_dir, &plan.pod_logs_dir, &plan.log_links_dir);
        if let Err(error) = dirs.sweep_stages() {
            tracing::warn!(error = %chain(&error), "empty directories of volumes are left");
        }
        if let Err(error) = dirs.sweep_disks() {
            tracing::warn!(error = %chain(&error), "a disk that no pod has is still mounted");
        }
        let dirs = Arc::new(dirs.with_users(plan.users.clone())?);
        let (directories, records) = dirs.scan()?;
        let (allocated, actuated) = dirs.restore_allocations()?;
        let shutdown = plan.shutdown.clone().map(|plan| Shutdown::new(plan, &tasks));
        let records = shutdown::still_ending(shutdown.as_ref(), records, &dirs);
        let (to_links, observed) = tasks.mailbox();
        tasks.start(log_links::follow(observed, dirs.clone(), tasks.clone()));
        let images = drivers.images;
        let sources = pod_values::of_cluster(drivers.cluster.as_ref(), drivers.csi.clone(), &tasks);
        let pulls = Arc::new(PullRecords::new(&plan.root_dir, plan.pull_policy.clone()));
        pull_records::settle(&*images, &pulls, &tasks).await;
        tasks.start(pull_records::follow_images(
            images.clone(),
            pulls.clone(),
            drivers.metrics.clone(),
            tasks.clone(),
        ));
        let programs = (plan.plugins_dir.as_path(), plan.plugins.clone());
        let plugins = Plugins::new(programs, sources.clone(), drivers.metrics.clone(), tasks.clone());
        let plugins = Arc::new(plugins);
        let container_manager =
            drivers.cgroups.map(|plan| ContainerManager::new(plan, &drivers.metrics, &tasks));
        let pod_cgroups = container_manager.as_ref().map(ContainerManager::pods);
        let volume_dirs = dirs.clone();
        let executor = Executor::new(
            (drivers.runtime.clone(), images.clone(), drivers.handlers, drivers.amounts),
            (dirs, sources.clone(), pod_cgroups),
            (pulls, plugins),
            plan.pulls,
            (tasks.clone(), drivers.metrics.clone()),
            to_pleg.clone(),
        );
        let statuses = StatusStore::default();
        let mut owners: Vec<Owner> =
            vec![("manager", Box::new(to_manager.clone())), ("pleg", Box::new(to_pleg.clone()))];

        let mailboxes =
            drivers.cluster.as_ref().map(|_| Mailboxes::new(&tasks, shutdown.as_ref().map(Shutdown::sender)));
        let senses = drivers.senses.filter(|_| !plan.eviction.is_empty());
        let eviction = senses.map(|senses| (senses, tasks.mailbox()));
        let outlets = Outlets::new(
            statuses.clone(),
            drivers.metrics.clone(),
            mailboxes.as_ref().map(Mailboxes::outlets),
            shutdown.as_ref().map(Shutdown::sender),
            eviction.as_ref().map(|(_, ends)| ends.0.clone()),
        );
        outlets.metrics().shutdown(shutdown.as_ref().and_then(Shutdown::last));
        let shutdown = shutdown.map(|shutdown| {
            owners.push(("shutdown", Box::new(shutdown.sender())));
            shutdown.start(to_manager.clone(), outlets.clone(), &tasks)
        });
        let (shutdown, departure) = shutdown.unzip();
        drivers.facts.warnings().into_iter().for_each(|fact| outlets.of_node(fact));
        let mut expected = BTreeSet::new();
        if let Some(path) = plan.static_pods.clone() {
            expected.insert(Source::File);
            let to = (to_manager.clone(), outlets.clone());
            owners.push(("file source", start_source(path, &plan, &tasks, to)));
        }
        if let Some(manifests) = plan.manifests.clone() {
            expected.insert(Source::Http);
            let to = (to_manager.clone(), outlets.clone());
            owners.push(("url source", url_source::start(manifests, &plan.node_name, &tasks, to)));
        }
        if mailboxes.is_some() {
            expected.insert(Source::Api);
        }
        let going = eviction::still_going(&records);
        let leftovers =
            Leftovers { records, directories, fence_until: plan.fence_until, allocated, actuated };
        let manager = PodManager::new(expected, leftovers, plan.admission.clone(), state.network.clone());
        let (synced_view, synced) = watch::channel(false);
        let (desired_view, desired) = watch::channel(DesiredPods::new());
        let (known_view, known) = watch::channel(KnownPods::default());
        let (unused_view, deleted) = watch::channel(0);
        let unused = UnusedContainers { manager: to_manager.clone(), deleted };
        if let Some(container_manager) = container_manager {
            owners.push(("container manager", container_manager.start(known, outlets.clone(), &tasks)));
        }
        tasks.start(pod_values::follow(sources, desired.clone(), to_manager.clone(), outlets.clone()));
        if let Some((senses, ends)) = eviction {
            owners.push(("eviction", Box::new(ends.0.clone())));
            let views = (desired.clone(), statuses.clone());
            let listeners = (to_manager.clone(), outlets.clone());
            eviction::start((plan.eviction.clone(), going), senses, ends, views, listeners, &tasks);
        }
        tasks.start(system_oom::follow(outlets.clone(), executor.observer().kills()));
        let shell = ManagerShell::new(
            tasks.clone(),
            executor.clone(),
            to_manager.clone(),
            outlets.clone(),
            context,
            Synced::new(plan.static_pods.is_none(), synced_view),
            (desired_view, known_view, unused_view),
        );
        tasks.own(manager, shell, manager_inbox);

        let output = start_output(&plan, &host, &tasks);
        let (health, running_logs) = start_pleg(
            executor.observer(),
            &drivers.signals,
            (&tasks, &drivers.metrics),
            (to_pleg, pleg_inbox),
            &to_manager,
            (output, to_links),
        );
        let cluster = drivers.cluster.zip(mailboxes).map(|((plan, api), mailboxes)| {
            let handles = cluster::start(
                plan,
                mailboxes,
                api,
                (to_manager.clone(), drivers.csi.volumes.clone()),
                (&tasks, &drivers.metrics),
            );
            owners.extend(handles.owners);
            let (volumes, to) = (drivers.csi.clone(), Some(handles.node.clone()));
            tasks.start(stages::follow(volume_dirs.clone(), volumes, to, tasks.clone()));
            let feeds = Feeds {
                runtime: drivers.runtime.clone(),
                images: images.clone(),
                facts: drivers.facts.clone(),
                pleg: health.clone(),
                ready: handles.ready.clone(),
                network_changed: drivers.facts.network_changes(&tasks),
                to: handles.node,
            };
            feeds.start(&tasks);
            ClusterView { ready: handles.ready, pod_cidrs: handles.pod_cidrs, addresses: handles.addresses }
        });
        if cluster.is_none() {
            tasks.start(stages::follow(volume_dirs, drivers.csi, None, tasks.clone()));
        }
        let (runtime_view, runtime) = watch::channel(state);
        let addresses = cluster.as_ref().map(|cluster| cluster.addresses.clone());
        tasks.start(runtime_state::observe(
            drivers.runtime,
            runtime_state::Sources { facts: drivers.facts, addresses },
            runtime_view,
            context_view,
            to_manager,
            tasks.clone(),
        ));
        tasks.start(host_channel::stamp_running(host, statuses.subscribe()));
        tasks.start(heap_trim::after_bursts(statuses.subscribe(), agent_linux::heap::give_back));
        Ok(Node {
            tasks,
            executor,
            statuses,
            desired,
            synced,
            cluster,
            runtime,
            health,
            running_logs,
            outlets,
            unused,
            owners,
            shutdown,
            departure,
        })
    }

    /// Waits until the node's own sources were read, the runtime listed, and the runtime is ready. The API server
    /// is not waited for: a node runs its static pods without it.
    pub async fn ready(&mut self) {
        // The senders live as long as the node's tasks: an error means that it is being stopped.
        let _ = self.synced.wait_for(|synced| *synced).await;
        let _ = self.runtime.wait_for(|state| state.runtime.is_ok()).await;
    }

    /// From now on the machine waits for the pods when it stops. Not before the node is ready: nothing is to be waited for
    /// until then, and the bus comes up beside it.
    pub fn follow_logind(&mut self) {
        if let Some(follower) = self.shutdown.take() {
            self.tasks.start(follower.follow(self.tasks.clone()));
        }
    }

    /// Ends the pods when the machine goes down and nobody waited for them; `None` if they have no time at all.
    pub fn take_departure(&mut self) -> Option<Departure> {
        self.departure.take()
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

    /// The pods that sources want.
    #[must_use]
    pub fn desired(&self) -> watch::Receiver<DesiredPods> {
        self.desired.clone()
    }

    /// Where volumes of type `local` are.
    #[must_use]
    pub fn local_volumes(&self) -> LocalVolumes {
        self.executor.local_volumes()
    }

    /// Who is told what happens to pods.
    #[must_use]
    pub fn outlets(&self) -> Outlets {
        self.outlets.clone()
    }

    /// All pods' statuses.
    #[must_use]
    pub fn statuses(&self) -> StatusStore {
        self.statuses.clone()
    }

    /// Whether PLEG is healthy.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Result<(), String>> {
        self.health.clone()
    }

    /// Starts collecting what nobody needs, on time and whenever it is asked to.
    pub fn collect_garbage<G: ImageService + ImagesInUse + Statistics>(
        &self,
        policy: gc::Policy,
        images: Arc<G>,
        requests: Requests,
    ) {
        let around = Surroundings {
            images,
            uses: self.executor.image_uses(),
            records: self.executor.records(),
            outlets: self.outlets.clone(),
            tasks: self.tasks.clone(),
            containers: self.unused.clone(),
        };
        garbage_collection::start(policy, around, requests);
    }

    /// The containers' logs that are being written to.
    #[must_use]
    pub fn running_logs(&self) -> watch::Receiver<RunningLogs> {
        self.running_logs.clone()
    }

    /// The main owners, for the watchdog; to be taken once.
    pub fn take_owners(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.owners)
    }

    /// Stops the agent's work, not the containers. True if no call was given up, so that the next run need
    /// not wait for any.
    pub async fn stop(self) -> bool {
        self.tasks.stop().cancel();
        self.executor.settle(SETTLE).await
    }
}

fn start_source(
    path: String,
    plan: &Plan,
    tasks: &Tasks,
    (to, outlets): (Sender<ManagerEvent>, Outlets),
) -> crate::process::watchdog::BoxedOwner {
    let (to_source, inbox) = tasks.mailbox();
    let (to_reader, requests) = tasks.mailbox();
    let config = FileSourceConfig {
        path: path.clone(),
        node_name: plan.node_name.clone(),
        check_period: plan.check_period,
    };
    let at = PathBuf::from(path);
    tasks.own(FileSource::new(config), SourceShell::new(to_reader, to, outlets), inbox);
    tasks.start(read_in_order(at.clone(), requests, tasks.clone(), to_source.clone()));
    tasks.start(watch_source(at, tasks.clone(), to_source.clone()));
    // The first tick asks for the first list.
    to_source.send(agent_core::pod_source::file::FileEvent::Tick);
    Box::new(to_source)
}

fn start_output(plan: &Plan, host: &Host, tasks: &Tasks) -> Option<mpsc::Sender<Arc<PodSnapshot>>> {
    if !plan.pod_output || !host.is_connected() {
        return None;
    }
    let (sender, snapshots) = mpsc::channel(pod_output::SNAPSHOTS_MAX);
    tasks.start(pod_output::follow(snapshots, host.clone(), tasks.now().wall));
    Some(sender)
}

fn start_pleg<R: Runtime, S: Signals>(
    observer: Observer<R>,
    signals: &S,
    (tasks, metrics): (&Tasks, &Metrics),
    (to_pleg, inbox): (Sender<PlegEvent>, Inbox<PlegEvent>),
    to_manager: &Sender<ManagerEvent>,
    followers: (Option<mpsc::Sender<Arc<PodSnapshot>>>, Sender<Observed>),
) -> (watch::Receiver<Result<(), String>>, watch::Receiver<RunningLogs>) {
    let shell = PlegShell::new(
        observer,
        (tasks.clone(), metrics.clone()),
        to_pleg.clone(),
        to_manager.clone(),
        followers,
    );
    let (health, logs) = (shell.health(), shell.running_logs());
    tasks.own(Pleg::new(agent_core::pleg::Config::default()), shell, inbox);
    let (receiver, driver) = signals.signals();
    tasks.start(driver);
    tasks.start(listen(receiver, to_pleg));
    (health, logs)
}

/// Where init keeps run-time state.
#[must_use]
pub fn run_dir() -> &'static Path {
    Path::new("/run/orlop")
}
