//! The part of a node that works on pods: sources, manager, executor, cgroups, PLEG.
//!
//! ```text
//! static pods, URL ─► manager ─► pod workers ─► executor ─► runtime, images, disk
//!                        ▲                          │
//!                        └───────── PLEG ◄──────────┘
//! ```
//! In: [`Deps`]. Out: [`Pods`], whose owners run until the node stops.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_core::pod_manager::{Leftovers, PodManager};
use agent_core::pod_source::Source;
use agent_core::pod_worker::WorkerContext;
use agent_kubelet_api::drivers::{ImageService, Runtime};
use tokio::sync::watch;

use crate::claims::ClaimsHandle;
use crate::devices::DevicePlugins;
use crate::images::Images;
use crate::node::NodeHandles;
use crate::node::container_manager::{ContainerManager, KnownPods};
use crate::node::host_channel::Host;
use crate::node::system_oom;
use crate::pods::execute::{self, Executor};
use crate::pods::manager_task::{self, ManagerHandles};
use crate::pods::pod_dirs::log_links;
use crate::pods::pod_dirs::on_disk::OnDisk;
use crate::pods::pod_values::Sources;
use crate::pods::{pod_output, pod_values, static_pods, url_source};
use crate::process::node::{Plan, PodDrivers};
use crate::process::wiring::PodMailboxes;
use crate::runtime::pleg::{self, PlegHandles, Signals};
use crate::tasks::alive::Owner;

/// Inputs of [`start`].
pub(super) struct Deps<'a, R, I, S> {
    /// Handles of the node.
    pub(super) node: &'a NodeHandles,
    /// The configuration's part.
    pub(super) plan: &'a Plan,
    /// The pods' directories, with the records of an earlier run of the agent.
    pub(super) on_disk: OnDisk,
    /// CRI RuntimeService.
    pub(super) runtime: Arc<R>,
    /// Drivers that only pods are worked on with.
    pub(super) drivers: PodDrivers<S>,
    /// Readiness of the network before the start.
    pub(super) network: Result<(), String>,
    /// The images.
    pub(super) images: Images<I>,
    /// Values of Secrets, ConfigMaps and tokens.
    pub(super) sources: Arc<dyn Sources>,
    /// The context that workers share.
    pub(super) context: watch::Receiver<Arc<WorkerContext>>,
    /// Device plugins.
    pub(super) plugins: DevicePlugins,
    /// Resource claims.
    pub(super) claims: &'a ClaimsHandle,
    /// Pods of an API server are expected.
    pub(super) in_cluster: bool,
    /// Mailboxes of this part.
    pub(super) mail: PodMailboxes,
    /// The host, which may want pods' output.
    pub(super) host: &'a Host,
}

/// The pods' part, running.
pub(super) struct Pods<R, I> {
    pub(super) executor: Executor<R, I>,
    pub(super) manager: ManagerHandles,
    pub(super) pleg: PlegHandles,
    /// For the watchdog.
    pub(super) owners: Vec<Owner>,
}

/// Starts the pods' part. Workers do not act on any pod before all sources were read and the runtime was listed.
pub(super) fn start<R: Runtime, I: ImageService, S: Signals>(deps: Deps<'_, R, I, S>) -> Pods<R, I> {
    let Deps { node, plan, on_disk, runtime, network, images, sources, .. } = deps;
    let OnDisk { dirs, directories, records, allocated, actuated } = on_disk;
    let PodDrivers { signals, handlers, amounts, shims, cgroups } = deps.drivers;
    let mail = deps.mail;
    let (tasks, metrics) = (&node.tasks, node.node_events.metrics());
    let mut owners =
        vec![Owner::new("manager", node.manager.clone()), Owner::new("pleg", mail.to_pleg.clone())];
    let links = log_links::start(dirs.clone(), tasks);
    let container_manager = cgroups.map(|plan| ContainerManager::new(plan, metrics, tasks));
    let executor = Executor::new(execute::Deps {
        runtime,
        images,
        handlers,
        amounts,
        shims,
        dirs,
        sources: sources.clone(),
        cgroups: container_manager.as_ref().map(ContainerManager::pods),
        plugins: deps.plugins.clone(),
        claims: Arc::new(deps.claims.clone()),
        pleg: mail.to_pleg.clone(),
        metrics: metrics.clone(),
        tasks: tasks.clone(),
    });
    let (known_view, known) = watch::channel(KnownPods::default());
    owners.extend(container_manager.map(|cgroups| cgroups.start(known, node.node_events.clone(), tasks)));
    let mut expected: BTreeSet<Source> = deps.in_cluster.then_some(Source::Api).into_iter().collect();
    owners.extend(start_static(plan, &mut expected, node));
    let leftovers = Leftovers {
        records,
        directories,
        fence_until: plan.fence_until,
        allocated,
        actuated,
        managers: deps.plugins.restore(plan.managers.clone()),
    };
    let manager = manager_task::start(manager_task::Deps {
        node,
        machine: PodManager::new(expected, leftovers, plan.admission.clone(), network),
        inbox: mail.manager,
        executor: executor.clone(),
        context: deps.context,
        known: known_view,
        plugins: deps.plugins,
        has_static_pods: plan.static_pods.is_some(),
    });
    deps.claims.follow(manager.active.clone());
    pod_values::start(sources, manager.desired.clone(), node);
    tasks.start(system_oom::follow(node.node_events.clone(), executor.observer().kills()));
    let output = plan.pod_output.then(|| pod_output::start(deps.host, tasks)).flatten();
    let (own, inbox) = (mail.to_pleg, mail.pleg);
    let (signals, observer) = (&signals, executor.observer());
    let pleg = pleg::start(pleg::Deps { node, signals, observer, own, inbox, output, links });
    Pods { executor, manager, pleg, owners }
}

/// Starts the sources of static pods in the configuration; the manager waits for the first update of each.
fn start_static(plan: &Plan, expected: &mut BTreeSet<Source>, node: &NodeHandles) -> Vec<Owner> {
    let mut owners = Vec::new();
    if let Some(config) = plan.static_pods.clone() {
        expected.insert(Source::File);
        owners.push(static_pods::start(config, node));
    }
    if let Some(manifests) = plan.manifests.clone() {
        expected.insert(Source::Http);
        owners.push(url_source::start(manifests, &plan.node_name, node));
    }
    owners
}
