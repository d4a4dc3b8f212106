//! The agent as a process: start-up order, readiness, stop. Upstream: cmd/kubelet/app/server.go.
//!
//! In: [`Settings`] and the service manager's environment. Out: a node that runs until SIGTERM or SIGINT; its
//! containers keep running, unless the machine itself stops. Every failure before readiness ends the process
//! with its reason.

use std::net::IpAddr;
use std::path::{Path, PathBuf};
use std::sync::Arc;

use agent_apiserver::{ApiClient, Observer, Protocol};
use agent_core::events::Fact;
use agent_core::eviction::EvictionConfig;
use agent_core::images::pull_records;
use agent_core::node_shutdown::{self, Group};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_kubelet_api::logs;
use agent_linux::clock::LinuxClock;
use agent_linux::network_changes::{NetworkChanges, NetworkChangesError};
use agent_linux::notify::{Notifier, watchdog_interval};
use agent_linux::volumes::shared_root;
use agent_linux::{host_channel, network, node_info, process};
use agent_types::resources::machine::{HostNetwork, MachineFacts};
use agent_types::resources::user_ranges::{self, UserRanges};
use agent_types::runtime::status::RuntimeHandler;
use agent_volumes::mount_table::Sharing;
use anyhow::{Context, anyhow, bail};
use k8s_openapi::api::core::v1::NodeAddress;
use orlop_config::credential_provider::{Provider, TOKEN_GATE};
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};
use orlop_config::ledger::HostMessage;
use tokio::signal::unix::{Signal, SignalKind, signal};
use tokio::sync::{Notify, watch};
use tokio_util::sync::CancellationToken;

use crate::cluster::calls::Caller;
use crate::cluster::feeds::NodeFactsSource;
use crate::cluster::{ApiDrivers, ClusterPlan, identity, plan, watches};
use crate::images::pulls::PullLimits;
use crate::images::{credential_plugins, garbage_collection};
use crate::node::cluster_problems::Board;
use crate::node::eviction::{LinuxSenses, Senses};
use crate::node::host_channel::Host;
use crate::node::node_settings::{self, NodeFacts, check_machine};
use crate::node::shutdown::{self, ShutdownPlan};
use crate::node::{container_manager, log_rotation};
use crate::pods::pod_dirs::chain;
use crate::pods::pod_network::{self, RuntimesFile};
use crate::pods::probes_and_hooks::PodHandlers;
use crate::pods::url_source::Manifests;
use crate::process::cli::Settings;
use crate::process::cluster_settings::ClusterSettings;
use crate::process::incarnation::Incarnation;
use crate::process::node::{Drivers, Node, Plan, run_dir};
use crate::process::watchdog::{beat, tell};
use crate::runtime::events::{CriSignals, connect};
use crate::runtime::lost_shims;
use crate::runtime::runtime_state::{ContextSource, RuntimeState};
use crate::serving::metrics::Metrics;
use crate::serving::pod_resources::PodResources;
use crate::serving::{self, Views};
use crate::tasks::actor::Tasks;
use crate::volumes::csi::{self, Csi};
use crate::volumes::flex;

/// What the service manager put into the environment, read once.
#[derive(Clone, Debug, Default)]
pub struct Environment {
    /// `NOTIFY_SOCKET`.
    pub notify_socket: Option<String>,
    /// `WATCHDOG_USEC`.
    pub watchdog_usec: Option<String>,
    /// `WATCHDOG_PID`.
    pub watchdog_pid: Option<String>,
    /// `JOURNAL_STREAM` is set: stderr goes to the journal.
    pub under_journald: bool,
    /// `DISABLE_HTTP2` is set to something: the API server is spoken to in HTTP/1.1.
    pub disable_http2: bool,
}

impl Environment {
    /// Reads it.
    #[must_use]
    pub fn of_process() -> Environment {
        let get = |name| std::env::var(name).ok();
        Environment {
            notify_socket: get("NOTIFY_SOCKET"),
            watchdog_usec: get("WATCHDOG_USEC"),
            watchdog_pid: get("WATCHDOG_PID"),
            under_journald: std::env::var_os("JOURNAL_STREAM").is_some(),
            disable_http2: std::env::var_os("DISABLE_HTTP2").is_some_and(|value| !value.is_empty()),
        }
    }
}

impl ContextSource for NodeFacts {
    fn worker_context(
        &self,
        shown: &[NodeAddress],
        handlers: &[RuntimeHandler],
    ) -> anyhow::Result<agent_core::pod_worker::WorkerContext> {
        NodeFacts::worker_context(self, shown, handlers)
    }
}

impl NodeFactsSource for NodeFacts {
    fn machine_facts(&self) -> anyhow::Result<MachineFacts> {
        Ok(node_info::machine_facts(self.storage())?)
    }

    fn host_network(&self, look_up: bool) -> anyhow::Result<HostNetwork> {
        Ok(network::host_network(self.name_to_look_up().filter(|_| look_up)))
    }

    fn warnings(&self) -> Vec<Fact> {
        NodeFacts::warnings(self)
    }

    fn network_changes(&self, tasks: &Tasks) -> Arc<Notify> {
        let changed = Arc::new(Notify::new());
        tasks.start(watch_network(changed.clone()));
        changed
    }
}

/// Passes the kernel's hints on; without them the timer of the readers has to do.
async fn watch_network(changed: Arc<Notify>) {
    let listened = async {
        let mut changes = NetworkChanges::open()?;
        loop {
            changes.changed().await?;
            changed.notify_one();
        }
    };
    let ended: Result<(), NetworkChangesError> = listened.await;
    if let Err(error) = ended {
        tracing::warn!(error = %chain(&error), "changes of addresses are noticed by the timer only");
    }
}

/// SIGTERM and SIGINT.
struct Stop {
    term: Signal,
    int: Signal,
}

impl Stop {
    fn listen() -> anyhow::Result<Stop> {
        let on = |kind| signal(kind).context("listen for signals");
        Ok(Stop { term: on(SignalKind::terminate())?, int: on(SignalKind::interrupt())? })
    }

    async fn asked(&mut self) -> &'static str {
        tokio::select! {
            _ = self.term.recv() => "SIGTERM",
            _ = self.int.recv() => "SIGINT",
        }
    }
}

/// Runs the agent until it is asked to stop.
///
/// # Errors
/// Why it could not start.
pub async fn run(settings: Settings, environment: Environment) -> anyhow::Result<()> {
    let kubelet = settings.kubelet.clone();
    let watchdog = watchdog_interval(
        environment.watchdog_usec.as_deref(),
        environment.watchdog_pid.as_deref(),
        std::process::id(),
    )?;
    let notifier = Arc::new(Notifier::new(environment.notify_socket.as_deref())?);
    for warning in &settings.warnings {
        tracing::warn!("{warning}");
    }
    check_machine(&kubelet)?;
    let mut stop = Stop::listen()?;
    let tasks = Tasks::new(Arc::new(LinuxClock), CancellationToken::new());
    let metrics = Metrics::new(Arc::new(LinuxClock));
    let started = tasks.now();
    let port = host_channel::find_port(Path::new("/sys"), Path::new("/dev"));
    let host = Host::new(tasks.clone(), run_dir(), port);
    for message in settings.warnings.clone() {
        host.tell(HostMessage::Problem { source: "agent".to_owned(), message });
    }
    host.stamp("agent.started", "").await;
    tracing::info!(version = env!("CARGO_PKG_VERSION"), reason = "Starting", "starting orlop-agent");
    let (base_view, base) = watch::channel("waiting for the container runtime");
    let board = Board::default();
    tasks.start(board.clone().follow(base, notifier.clone(), host.clone()));
    let settings = Arc::new(settings);
    let node_name = node_settings::node_name(&settings)?;
    let cluster = settings.cluster.as_ref();
    let protocol = if environment.disable_http2 { Protocol::Http1 } else { Protocol::Http2 };
    if cluster.is_some() && protocol != Protocol::Http2 {
        tracing::info!(%protocol, "DISABLE_HTTP2 is set; the API server is spoken to in this protocol");
    }
    let root_dir = PathBuf::from(&settings.options.root_dir);
    share_root(&root_dir)?;
    let early = container_manager::plan::begin_early(&kubelet, &root_dir, &tasks)?;
    // The identity and the first answers of the API server come while the runtime is asked.
    let cluster = cluster
        .map(|of| join((of, protocol), &settings, &node_name, &board, (&tasks, &metrics)))
        .transpose()?;
    let (runtime, images) = tokio::select! {
        // Dropping the connection attempt loses nothing; the identity's files are whole or not there.
        connected = connect(&kubelet, &metrics) => connected?,
        signal = stop.asked() => {
            tracing::info!(signal, "stopped before the container runtime answered");
            return Ok(());
        }
    };
    let (version, driver, state) =
        tokio::join!(runtime.version(), runtime.cgroup_driver(), RuntimeState::ask(&*runtime));
    let version = version.context("ask the runtime for its version")?;
    let driver = driver.context("ask the runtime for its cgroup driver")?;
    let facts = Arc::new(NodeFacts::new(settings.clone(), driver, &version, started)?);
    adjust_process(&kubelet);
    let groups = shutdown_groups(&settings);
    let waits = !groups.is_empty();
    let judge = |last: &str, stopped| {
        waits.then(|| shutdown::judge(&root_dir, Path::new(serving::LOGS), last, stopped))
    };
    let cgroups = container_manager::plan::settle(early, &kubelet, &root_dir, facts.cgroup_driver(), &tasks)?;
    let incarnation = Incarnation::begin(&root_dir, &process::boot_id()?, tasks.now().mono, judge)?;
    let plan = node_plan(&settings, &facts, &incarnation, groups)?;
    let (network, log_writer) = (runtime.clone(), runtime.clone());
    let image_service = images.clone();
    let client = cluster.as_ref().map(|(_, drivers)| drivers.client.clone());
    let csi = Csi {
        attaches: cluster.is_some() && kubelet.enable_controller_attach_detach,
        flex: flex::Drivers::new(Path::new(&kubelet.volume_plugin_dir)),
        ..Csi::default()
    };
    let kubepods = facts.kubepods();
    let services = (network.clone(), image_service.clone());
    let (garbage, asked) = garbage_collection::requests();
    let senses = LinuxSenses::new(&settings, &node_name, kubepods.clone(), services, garbage, tasks.clone());
    let senses = Some(Arc::new(senses) as Arc<dyn Senses>);
    let handlers = Arc::new(PodHandlers::new(runtime.clone())?);
    let signals = CriSignals(runtime.clone());
    let amounts = runtime.clone();
    let drivers = Drivers {
        signals,
        runtime,
        state,
        images,
        handlers,
        amounts,
        facts,
        cgroups,
        senses,
        metrics: metrics.clone(),
        csi: csi.clone(),
        cluster,
    };
    let mut node = Node::start(plan, drivers, host.clone(), tasks.clone()).await?;
    if let Some(settings) = log_rotation::Settings::of(&kubelet) {
        tasks.start(log_rotation::follow(settings, node.running_logs(), log_writer, tasks.clone()));
    }
    node.collect_garbage(garbage_collection::policy(&kubelet), image_service.clone(), asked);
    let socket = agent_cri::socket_path(&kubelet.container_runtime_endpoint)?;
    tasks.start(lost_shims::follow(socket, tasks.clone()));
    start_healthz(&kubelet, &tasks)?;
    let views = Views {
        desired: node.desired(),
        statuses: node.statuses(),
        health: node.health(),
        addresses: node.addresses(),
        kubepods,
        metrics,
        csi: csi.clone(),
        outlets: node.outlets(),
        local_volumes: node.local_volumes(),
        board: board.clone(),
    };
    let resources =
        PodResources::new(&settings, node.desired(), node.statuses(), views.metrics.clone(), tasks.clone());
    resources.start(Path::new(&settings.options.root_dir)).await;
    let (client_of_plugins, outlets) = (client.clone(), node.outlets());
    let services = (network.clone(), image_service);
    serving::start(&settings, &node_name, client, views, services, &tasks).await?;
    if let Some(client) = client_of_plugins {
        let caller = Caller::new(tasks.clone(), client);
        tasks.start(csi::follow(root_dir, node_name.as_str().into(), caller, (csi, outlets), tasks.clone()));
    }
    if let Some(shown) = node.shown_ready() {
        tasks.start(stamp_ready(shown, host.clone()));
    }
    if let Some(ranges) = node.pod_cidrs() {
        let file = RuntimesFile::of_appliance(run_dir());
        tasks.start(pod_network::tell(network, ranges, file, tasks.clone()));
    }
    if let Some(period) = watchdog {
        tasks.start(beat(notifier.clone(), period, node.take_owners(), tasks.clone()));
    }
    base_view.send_replace("waiting for pod sources and the container runtime");
    let signal = tokio::select! {
        // `ready` only waits; dropping it changes nothing.
        () = node.ready() => {
            tell(&notifier, "READY=1");
            base_view.send_replace("running");
            node.follow_logind();
            host.stamp("agent.ready", "").await;
            log_usage();
            stop.asked().await
        }
        signal = stop.asked() => signal,
    };
    tracing::info!(signal, "stopping");
    tell(&notifier, "STOPPING=1");
    if let Some(departure) = node.take_departure() {
        departure.leave(&notifier, stop.asked()).await;
    }
    end(node, &incarnation).await;
    Ok(())
}

/// Starts looking for the node's identity; what speaks to the API server waits for it.
fn join(
    (cluster, protocol): (&ClusterSettings, Protocol),
    settings: &Settings,
    node_name: &str,
    board: &Board,
    (tasks, metrics): (&Tasks, &Metrics),
) -> anyhow::Result<(ClusterPlan, ApiDrivers<ApiClient>)> {
    let kubelet = &settings.kubelet;
    let (client_view, client) = watch::channel(None);
    let (pods, node) = watches::start(client.clone(), node_name, tasks);
    let reconnect = Arc::new(Notify::new());
    tasks.start(identity::reconnect(client.clone(), reconnect.clone()));
    identity::start(
        cluster.clone(),
        plan::client_options(kubelet, protocol, Observer(Some(Arc::new(metrics.clone())))),
        plan::client_certificate(kubelet, node_name),
        client_view,
        board.clone(),
        (tasks, metrics),
    )?;
    let objects = Arc::new(watches::Objects::new(client.clone(), node_name, tasks));
    let drivers = ApiDrivers { client, pods, node, objects, reconnect, board: board.clone() };
    Ok((plan::plan(settings, node_name)?, drivers))
}

/// The ledger's last line of a node that belongs to a cluster.
async fn stamp_ready(mut shown: watch::Receiver<bool>, host: Host) {
    if shown.wait_for(|ready| *ready).await.is_ok() {
        host.stamp("node.ready", "").await;
    }
}

async fn end<R: Runtime, I: ImageService>(node: Node<R, I>, incarnation: &Incarnation) {
    if !node.stop().await {
        tracing::warn!("calls to the runtime were given up; the next run will look before it concludes");
        return;
    }
    if let Err(error) = incarnation.end_clean() {
        tracing::warn!(error = %chain(&error), "clean stop not recorded");
    }
}

fn node_plan(
    settings: &Settings,
    facts: &NodeFacts,
    incarnation: &Incarnation,
    groups: Vec<Group>,
) -> anyhow::Result<Plan> {
    let kubelet = &settings.kubelet;
    let path = kubelet.static_pod_path.trim_end_matches('/').to_owned();
    Ok(Plan {
        static_pods: (!path.is_empty()).then_some(path),
        check_period: kubelet.file_check_frequency.to_std(),
        manifests: Manifests::of(kubelet)?,
        node_name: facts.node_name().to_owned(),
        root_dir: PathBuf::from(settings.options.root_dir.trim_end_matches('/')),
        pod_logs_dir: PathBuf::from(kubelet.pod_logs_dir.trim_end_matches('/')),
        log_links_dir: PathBuf::from(logs::links::DIRECTORY),
        users: user_ranges(kubelet)?,
        pulls: PullLimits::of(kubelet),
        pull_policy: pull_records::Policy {
            verification: kubelet.image_pull_credentials_verification_policy,
            allowlist: kubelet.preloaded_images_verification_allowlist.clone(),
        },
        plugins: plugins(settings)?,
        plugins_dir: PathBuf::from(
            settings.options.image_credential_provider_bin_dir.clone().unwrap_or_default(),
        ),
        fence_until: incarnation.fence_until(),
        pod_output: settings.pod_output,
        admission: Arc::new(facts.admission_context()?),
        shutdown: shutdown_plan(settings, incarnation, groups),
        eviction: eviction(kubelet)?,
    })
}

/// The configuration was validated when it was read.
fn eviction(kubelet: &KubeletConfiguration) -> anyhow::Result<EvictionConfig> {
    EvictionConfig::new(kubelet).map_err(|problems| {
        let words = problems.iter().map(|problem| format!("{} {}", problem.path, problem.reason));
        anyhow!("eviction thresholds: {}", words.collect::<Vec<_>>().join("; "))
    })
}

/// Lets containers share mounts below the root directory (`mountPropagation`), before anything is mounted there.
fn share_root(root_dir: &Path) -> anyhow::Result<()> {
    let found = shared_root::share(root_dir)
        .with_context(|| format!("make {} a shared mount", root_dir.display()))?;
    if let Sharing::Held(mounts) = found {
        tracing::warn!(
            root_dir = %root_dir.display(), mounts,
            "the root directory lies on a private mount and pods have mounts below it: mountPropagation has no effect until \
             the node is drained and the agent restarted"
        );
    }
    Ok(())
}

/// What pods have when the machine stops; nothing if the configuration gives them no time, or the gate is off.
fn shutdown_groups(settings: &Settings) -> Vec<Group> {
    let kubelet = &settings.kubelet;
    let gates = FeatureGates::of(kubelet);
    if !gates.enabled("GracefulNodeShutdown") {
        return Vec::new();
    }
    node_shutdown::groups(kubelet, gates.enabled("GracefulNodeShutdownBasedOnPodPriority"))
}

/// `None` if pods have no time.
fn shutdown_plan(settings: &Settings, incarnation: &Incarnation, groups: Vec<Group>) -> Option<ShutdownPlan> {
    (!groups.is_empty()).then(|| ShutdownPlan {
        groups,
        boot_id: incarnation.boot_id().to_owned(),
        last_end: incarnation.last_end().map(|(end, is_news)| (end.clone(), is_news)),
        root_dir: PathBuf::from(settings.options.root_dir.trim_end_matches('/')),
    })
}

/// Credential-provider plugins. Both flags are needed if one is given, as upstream needs them.
fn plugins(settings: &Settings) -> anyhow::Result<Vec<Provider>> {
    let options = &settings.options;
    let given = |flag: &'_ Option<String>| flag.clone().filter(|text| !text.is_empty());
    let config = given(&options.image_credential_provider_config);
    let directory = given(&options.image_credential_provider_bin_dir);
    match (config, directory) {
        (None, None) => Ok(Vec::new()),
        (Some(config), Some(directory)) => {
            let tokens = FeatureGates::of(&settings.kubelet).enabled(TOKEN_GATE);
            credential_plugins::load(Path::new(&config), Path::new(&directory), tokens)
        }
        (Some(_), None) => {
            bail!("--image-credential-provider-config needs --image-credential-provider-bin-dir")
        }
        (None, Some(_)) => {
            bail!("--image-credential-provider-bin-dir needs --image-credential-provider-config")
        }
    }
}

/// Ids for user namespaces: the subordinate ones of user `kubelet` if there is such a user, else all but the host's own.
fn user_ranges(kubelet: &KubeletConfiguration) -> anyhow::Result<UserRanges> {
    const USER: &str = "kubelet";
    let read = |path: &str| std::fs::read_to_string(path).with_context(|| format!("read {path}"));
    let is_user = |text: String| text.lines().any(|l| l.split(':').next() == Some(USER));
    let subordinate = if read("/etc/passwd").is_ok_and(is_user) {
        let ids = user_ranges::subordinate_ids(&read("/etc/subuid")?, USER)?;
        if ids != user_ranges::subordinate_ids(&read("/etc/subgid")?, USER)? {
            bail!("/etc/subuid and /etc/subgid give user {USER} different ids: give it the same");
        }
        Some(ids)
    } else {
        None
    };
    let ids = u32::try_from(kubelet.ids_per_pod()).context("userNamespaces.idsPerPod")?;
    let pods = u32::try_from(kubelet.max_pods).unwrap_or(0);
    Ok(UserRanges::new(ids, subordinate, pods)?)
}

/// Limits and OOM score of the agent itself. Without the privilege it runs on with what it has.
fn adjust_process(kubelet: &KubeletConfiguration) {
    if !process::is_root() {
        tracing::warn!("not running as root: most of what pods need will be refused");
    }
    if let Err(error) = process::set_oom_score_adj(kubelet.oom_score_adj) {
        tracing::warn!(value = kubelet.oom_score_adj, error = %chain(&error), "oom_score_adj not set");
    }
    let files = u64::try_from(kubelet.max_open_files).unwrap_or(0);
    if let Err(error) = process::set_open_files_limit(files) {
        tracing::warn!(files, %error, "open file limit not set");
    }
}

fn start_healthz(kubelet: &KubeletConfiguration, tasks: &Tasks) -> anyhow::Result<()> {
    let bind: IpAddr = kubelet
        .healthz_bind_address
        .parse()
        .with_context(|| format!("healthzBindAddress {:?}", kubelet.healthz_bind_address))?;
    let port = u16::try_from(kubelet.healthz_port).context("healthzPort")?;
    if let Some(address) = agent_server::healthz::address(bind, port) {
        let (bound, _) = watch::channel(None);
        tasks.finish(agent_server::healthz::serve(address, bound, tasks.stop().clone()));
    }
    Ok(())
}

fn log_usage() {
    match process::usage() {
        Ok(usage) => tracing::info!(
            resident_kib = usage.resident_bytes / 1024,
            anonymous_kib = usage.anonymous_bytes / 1024,
            cpu_ms = usage.cpu.as_millis(),
            "ready"
        ),
        Err(error) => tracing::warn!(error = %chain(&error), "ready; own use cannot be read"),
    }
}

/// How many threads carry the agent: the work is waiting, two are enough for a node full of pods.
pub const WORKER_THREADS: usize = 2;
