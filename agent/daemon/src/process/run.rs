//! The agent as a process: start-up order, readiness, stop. Upstream: cmd/kubelet/app/server.go.
//!
//! ```text
//! Process::begin ─► join (identity, watches) ─► runtime ─► plan, drivers ─► Node::start ─► services ─► ready ─► signal ─► stop
//! ```
//! In: [`Settings`] and the service manager's environment. Out: a node that runs until SIGTERM or SIGINT;
//! its containers are left running, unless the machine itself goes down. Every failure before readiness ends the process with its reason.

use std::path::Path;
use std::sync::Arc;

use agent_apiserver::{ApiClient, Observer, Options};
use agent_core::console::banner::RUNNING;
use agent_core::node_shutdown::Group;
use agent_cri::CriClient;
use agent_kubelet_api::drivers::Runtime;
use agent_linux::process;
use agent_linux::volumes::shared_root;
use agent_volumes::mount_table::Sharing;
use anyhow::Context;
use orlop_config::kubelet::KubeletConfiguration;
use tokio::sync::{Notify, watch};

use crate::cluster::{ApiDrivers, ClusterPlan, clock, identity, plan, watches};
use crate::images::garbage_collection::{self, GarbageCollection};
use crate::node::container_manager;
use crate::node::eviction::{LinuxSenses, Senses};
use crate::node::node_settings::NodeFacts;
use crate::node::service_manager::notify;
use crate::node::shutdown;
use crate::pods::pod_dirs::chain;
use crate::pods::probes_and_hooks::PodHandlers;
use crate::process::begin::Process;
use crate::process::environment::Stop;
use crate::process::incarnation::Incarnation;
use crate::process::node::{Drivers, Node, PodDrivers};
use crate::process::node_plan::{node_plan, shutdown_groups};
use crate::process::{node_updates, services};
use crate::runtime::cri_clients::{CriSignals, connect};
use crate::runtime::runtime_state::RuntimeState;
use crate::runtime::shim_groups::SharedShims;
use crate::serving;
use crate::settings::{ClusterSettings, Settings};
use crate::tasks::actor::Tasks;
use crate::update::slots::Slots;
use crate::volumes::csi::Csi;
use crate::volumes::flex;

pub use crate::process::environment::Environment;

/// Number of threads of the agent: its work is mostly waiting, two are enough for a node full of pods.
pub const WORKER_THREADS: usize = 2;

/// The API server's part of a plan and of the drivers.
type Joined = (ClusterPlan, ApiDrivers<ApiClient>);

/// Runs the agent until it is asked to stop.
///
/// # Errors
/// Why it could not start.
pub async fn run(settings: Settings, environment: Environment) -> anyhow::Result<()> {
    let settings = Arc::new(settings);
    let mut stop = Stop::listen()?;
    let process = Process::begin(settings.clone(), &environment).await?;
    let (tasks, root_dir) = (process.tasks.clone(), Path::new(&settings.options.root_dir));
    share_root(root_dir)?;
    let early = container_manager::plan::begin_early(&settings, &tasks)?;
    let early_voice = node_updates::speak_early(&process);
    // The identity and the first answers of the API server come while the runtime is asked.
    let (cluster, clock) = join(&process)?.unzip();
    let (runtime, images) = tokio::select! {
        // Dropping the connection attempt loses nothing; the identity's files are whole or absent.
        connected = connect(&settings.kubelet, &process.metrics) => connected?,
        signal = stop.asked() => {
            tracing::info!(signal, "stopped before the container runtime answered");
            return Ok(());
        }
    };
    let (facts, state) = ask_runtime(&runtime, &process).await?;
    adjust_process(&settings.kubelet);
    let groups = shutdown_groups(&settings);
    let cgroups = container_manager::plan::settle(early, &settings, facts.cgroup_driver(), &tasks)?;
    let incarnation = begin_incarnation(&process, &groups)?;
    let plan = node_plan(&settings, &facts, &incarnation, groups)?;
    let (client, kubepods) = (cluster.as_ref().map(|(_, api)| api.client.clone()), facts.kubepods());
    let csi = csi(&settings, &tasks);
    let (garbage, requests) = garbage_collection::requests();
    let drivers = Drivers {
        runtime: runtime.clone(),
        state,
        images: images.clone(),
        pods: PodDrivers {
            signals: CriSignals(runtime.clone()),
            handlers: Arc::new(PodHandlers::new(runtime.clone())?),
            amounts: runtime.clone(),
            shims: SharedShims::new(runtime.clone(), settings.pods_per_shim),
            cgroups,
        },
        senses: Some(senses(&process, kubepods.clone(), &runtime, &images, garbage)),
        facts,
        metrics: process.metrics.clone(),
        csi: csi.clone(),
        cluster,
    };
    let mut node = Node::start(plan, drivers, process.host.clone(), tasks).await?;
    let slots = Slots::of_machine(&process.tasks).await;
    let next_to_node = services::Deps {
        runtime,
        images,
        client,
        clock,
        csi,
        kubepods,
        garbage: requests,
        slots: slots.clone(),
        crashed: incarnation.follows_crash(),
    };
    services::start(next_to_node, &process, &mut node).await?;
    early_voice.cancel();
    serve_until_stopped(node, &process, &mut stop, &incarnation, slots).await;
    Ok(())
}

/// Starts the search for the node's identity; clients of the API server wait for it. Out, with the API server's part: whether NTP or
/// the API server vouches for the clock. `None` for a standalone node.
fn join(process: &Process) -> anyhow::Result<Option<(Joined, watch::Receiver<bool>)>> {
    let Process { settings, node_name, cluster_problems, metrics, tasks, .. } = process;
    let Some(cluster) = settings.cluster.clone() else { return Ok(None) };
    let kubelet = &settings.kubelet;
    let (client_view, client) = watch::channel(None);
    let pods = watches::pods(client.clone(), node_name, tasks);
    let node = watches::node(client.clone(), node_name, tasks);
    let reconnect = Arc::new(Notify::new());
    tasks.start(identity::reconnect(client.clone(), reconnect.clone()));
    let observer = Observer(Some(Arc::new(metrics.clone())));
    let options = plan::client_options(kubelet, process.protocol, observer);
    let clock = follow_clock(process, &cluster, &options);
    identity::start(identity::Deps {
        settings: cluster,
        options,
        clock: clock.clone(),
        config: plan::client_certificate(kubelet, node_name),
        client: client_view,
        cluster_problems: cluster_problems.clone(),
        tasks: tasks.clone(),
        metrics: metrics.clone(),
    })?;
    let objects = Arc::new(watches::Objects::new(client.clone(), node_name, tasks));
    let drivers =
        ApiDrivers { client, pods, node, objects, reconnect, cluster_problems: cluster_problems.clone() };
    Ok(Some(((plan::plan(settings, node_name)?, drivers), clock)))
}

/// Starts the machine of the clock, where the agent can have the clock set. Out: whether NTP or the API server vouches for the clock.
fn follow_clock(process: &Process, cluster: &ClusterSettings, options: &Options) -> watch::Receiver<bool> {
    let directory = Path::new(clock::DIRECTORY);
    let is_appliance = directory.is_dir();
    let (verified, view) = watch::channel(!is_appliance);
    if is_appliance {
        clock::start(clock::Deps {
            settings: cluster.clone(),
            options: options.clone(),
            floor: plan::clock_floor(),
            directory: directory.to_owned(),
            synchronized: clock::SYNCHRONIZED.into(),
            verified,
            cluster_problems: process.cluster_problems.clone(),
            tasks: process.tasks.clone(),
        });
    }
    view
}

/// The facts of the node and the state of the runtime, when the runtime has answered.
async fn ask_runtime(
    runtime: &CriClient,
    process: &Process,
) -> anyhow::Result<(Arc<NodeFacts>, RuntimeState)> {
    let (version, driver, state) =
        tokio::join!(runtime.version(), runtime.cgroup_driver(), RuntimeState::ask(runtime));
    let version = version.context("ask the runtime for its version")?;
    let driver = driver.context("ask the runtime for its cgroup driver")?;
    let facts = NodeFacts::new(process.settings.clone(), driver, &version, process.started)?;
    Ok((Arc::new(facts), state))
}

/// Begins this run of the agent. If pods have grace periods at a shutdown, determines how the last boot ended.
fn begin_incarnation(process: &Process, groups: &[Group]) -> anyhow::Result<Incarnation> {
    let root_dir = Path::new(&process.settings.options.root_dir);
    let waits = !groups.is_empty();
    let judge = |last: &str, stopped| {
        waits.then(|| shutdown::judge(root_dir, Path::new(serving::LOGS), last, stopped))
    };
    Ok(Incarnation::begin(root_dir, &process::boot_id()?, process.tasks.now().mono, judge)?)
}

fn csi(settings: &Settings, tasks: &Tasks) -> Csi {
    let kubelet = &settings.kubelet;
    Csi {
        attaches: settings.cluster.is_some() && kubelet.enable_controller_attach_detach,
        flex: flex::Drivers::new(Path::new(&kubelet.volume_plugin_dir)),
        ..Csi::new(tasks)
    }
}

fn senses(
    process: &Process,
    kubepods: String,
    runtime: &Arc<CriClient>,
    images: &Arc<CriClient>,
    garbage: GarbageCollection,
) -> Arc<dyn Senses> {
    let Process { settings, node_name, tasks, .. } = process;
    let (runtime, images) = (runtime.clone(), images.clone());
    Arc::new(LinuxSenses::new(settings, node_name, kubepods, runtime, images, garbage, tasks.clone()))
}

/// Reports when the node is ready, waits for the signal to stop, and stops.
async fn serve_until_stopped(
    mut node: Node<CriClient, CriClient>,
    process: &Process,
    stop: &mut Stop,
    incarnation: &Incarnation,
    slots: Option<Slots>,
) {
    let Process { notifier, state, host, .. } = process;
    state.send_replace("waiting for pod sources and the container runtime");
    let signal = tokio::select! {
        // `ready` only waits; dropping it loses nothing.
        () = node.ready() => {
            notify(notifier, "READY=1");
            state.send_replace(RUNNING);
            node.follow_logind();
            host.stamp("agent.ready", "").await;
            log_usage();
            if let Some(slots) = slots.clone() {
                process.tasks.start(slots.boot_is_ready());
            }
            stop.asked().await
        }
        signal = stop.asked() => signal,
    };
    tracing::info!(signal, "stopping");
    notify(notifier, "STOPPING=1");
    let kind = match node.take_departure() {
        Some(departure) => departure.leave(notifier, stop.asked()).await,
        None if slots.is_some() => shutdown::stop_of_machine().await,
        None => None,
    };
    // A soft reboot does not end the boot.
    if let (Some(slots), Some(_)) = (slots, kind.filter(|kind| kind != "soft-reboot")) {
        slots.boot_ends().await;
    }
    end(node, incarnation).await;
}

async fn end(node: Node<CriClient, CriClient>, incarnation: &Incarnation) {
    let has_settled = node.stop().await;
    if !has_settled {
        tracing::warn!("calls to the runtime were given up; the next run will look before it concludes");
    }
    let noted = if has_settled { incarnation.end_clean() } else { incarnation.end_with_calls() };
    if let Err(error) = noted {
        tracing::warn!(error = %chain(&error), "clean stop not recorded");
    }
}

/// Lets containers share mounts below the root directory (`mountPropagation`); must run before the first mount there.
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

/// Sets limits and OOM score of the agent itself. Without the privilege the agent keeps its present values.
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
