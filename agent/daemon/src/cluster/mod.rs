//! The part of a node that belongs to a cluster: everything that speaks to the API server.
//!
//! ```text
//! node watch ─► node object ─► calls        facts of the machine, runtime, PLEG ─► node object
//! pod watch ──► API source ─► manager       workers ─► status manager, mirror pods, recorder ─► calls
//! ```
//! In: [`ClusterPlan`], [`ApiDrivers`]. Out: owners that run until the node stops. Invariant: nothing here can stop a
//! pod by itself; without the API server every owner waits and the pods go on. See docs/join.md.

mod bootstrap;
pub mod calls;
pub mod events;
pub mod feeds;
pub mod identity;
pub mod keys;
pub mod lease;
pub mod node_object;
pub mod plan;
pub mod pods;
pub mod watches;

use std::sync::Arc;

use agent_core::admission::NodeMarks;
use agent_core::events::{Rate, Recorder, RecorderEvent};
use agent_core::lease::{LeaseConfig, LeaseEvent, NodeLease};
use agent_core::mirror_pods::{MirrorEvent, MirrorPods};
use agent_core::node_shutdown::ShutdownEvent;
use agent_core::node_status::{NodeStatus, NodeStatusConfig, NodeStatusEvent};
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::api::{ApiSource, ApiSourceEvent};
use agent_core::status_manager::{StatusEvent, StatusManager};
use agent_types::api::{ApiCall, ApiReply, ApiServer, WatchEvent};
use k8s_openapi::api::core::v1::{Node, NodeAddress, Pod};
use tokio::sync::{Notify, mpsc, watch};

use calls::Caller;
use events::RecorderShell;
use lease::LeaseShell;
use node_object::{NodeListeners, NodeObjectShell};
use pods::{ApiSourceShell, MirrorShell, PodWatchers, StatusShell};

use crate::node::cluster_problems::Board;
use crate::node::node_events::ApiOutlets;
use crate::pods::pod_values::{ObjectPolicy, ObjectWatches};
use crate::process::watchdog::Owner;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::{Inbox, Sender};
use crate::volumes::csi::volumes::CsiVolumes;

/// What the cluster's part is made from, besides its drivers.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The Node object.
    pub node: NodeStatusConfig,
    /// The lease.
    pub lease: LeaseConfig,
    /// `eventRecordQPS`, `eventBurst`.
    pub events: Rate,
    /// How changes of Secrets and ConfigMaps are noticed.
    pub objects: ObjectPolicy,
    /// Volumes may have trust anchors of the cluster.
    pub trust_bundles: bool,
    /// Volumes may have certificates for their pods; a number that spreads the nodes' requests.
    pub pod_certificates: Option<u64>,
}

/// The API server as the node sees it.
pub struct ApiDrivers<A> {
    /// `None` until the node has an identity.
    pub client: watch::Receiver<Option<Arc<A>>>,
    /// The watch on the node's pods.
    pub pods: mpsc::Receiver<WatchEvent<Pod>>,
    /// The watch on the own Node.
    pub node: mpsc::Receiver<WatchEvent<Node>>,
    /// Watches on single objects.
    pub objects: Arc<dyn ObjectWatches>,
    /// Asks the driver for new connections.
    pub reconnect: Arc<Notify>,
    /// Where trouble is shown.
    pub board: Board,
}

/// An owner's mailbox, both ends.
type Ends<E> = (Sender<E>, Inbox<E>);

/// The owners' mailboxes; made before anybody sends.
pub struct Mailboxes {
    source: Ends<ApiSourceEvent>,
    status: Ends<StatusEvent>,
    mirrors: Ends<MirrorEvent>,
    recorder: Ends<RecorderEvent>,
    lease: Ends<LeaseEvent>,
    node: Ends<NodeStatusEvent>,
    read_node: Arc<Notify>,
    shutdown: Option<Sender<ShutdownEvent>>,
}

/// What others need of the cluster's part.
pub struct ClusterHandles {
    /// News for the Node object.
    pub node: Sender<NodeStatusEvent>,
    /// Whether the API server shows the node as ready.
    pub ready: watch::Receiver<bool>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: watch::Receiver<Vec<String>>,
    /// `status.addresses`, as the API server has them.
    pub addresses: watch::Receiver<Vec<NodeAddress>>,
    /// For the watchdog.
    pub owners: Vec<Owner>,
}

impl Mailboxes {
    /// All of them, empty. `shutdown` hears what is untold.
    #[must_use]
    pub fn new(tasks: &Tasks, shutdown: Option<Sender<ShutdownEvent>>) -> Mailboxes {
        Mailboxes {
            source: tasks.mailbox(),
            status: tasks.mailbox(),
            mirrors: tasks.mailbox(),
            recorder: tasks.mailbox(),
            lease: tasks.mailbox(),
            node: tasks.mailbox(),
            read_node: Arc::new(Notify::new()),
            shutdown,
        }
    }

    /// Where pods' owners send.
    #[must_use]
    pub fn outlets(&self) -> ApiOutlets {
        ApiOutlets {
            status: self.status.0.clone(),
            mirrors: self.mirrors.0.clone(),
            recorder: self.recorder.0.clone(),
            node: self.node.0.clone(),
            read_node: self.read_node.clone(),
        }
    }
}

/// Starts every owner of the cluster's part.
pub fn start<A: ApiServer>(
    plan: ClusterPlan,
    mailboxes: Mailboxes,
    drivers: ApiDrivers<A>,
    (to_manager, volumes): (Sender<ManagerEvent>, CsiVolumes),
    (tasks, metrics): (&Tasks, &Metrics),
) -> ClusterHandles {
    let Mailboxes { source, status, mirrors, recorder, lease, node, read_node, shutdown } = mailboxes;
    let caller = Caller::new(tasks.clone(), drivers.client);
    let name = plan.node.node_name.to_string();
    let (ready_view, ready) = watch::channel(false);
    let (cidr_view, pod_cidrs) = watch::channel(Vec::new());
    let (address_view, addresses) = watch::channel(Vec::new());
    let handles = ClusterHandles {
        node: node.0.clone(),
        ready,
        pod_cidrs,
        addresses,
        owners: vec![
            ("api source", Box::new(source.0.clone())),
            ("status manager", Box::new(status.0.clone())),
            ("mirror pods", Box::new(mirrors.0.clone())),
            ("event recorder", Box::new(recorder.0.clone())),
            ("lease", Box::new(lease.0.clone())),
            ("node status", Box::new(node.0.clone())),
        ],
    };
    let watchers = PodWatchers {
        source: source.0.clone(),
        status: status.0.clone(),
        mirrors: mirrors.0.clone(),
        metrics: metrics.clone(),
    };
    tasks.start(hear_pods(drivers.pods, watchers));
    tasks.start(hear_node(drivers.node, node.0.clone(), address_view, (volumes, to_manager.clone())));
    tasks.start(answer_manager(read_node, name.clone(), caller.clone(), to_manager.clone()));
    let listeners = NodeListeners {
        recorder: recorder.0.clone(),
        lease: lease.0.clone(),
        mirrors: mirrors.0.clone(),
        manager: to_manager.clone(),
        ready: ready_view,
        pod_cidrs: cidr_view,
        reconnect: drivers.reconnect.clone(),
        board: drivers.board.clone(),
        metrics: metrics.clone(),
    };
    let shell = ApiSourceShell { manager: to_manager, recorder: recorder.0.clone() };
    tasks.own(ApiSource::new(name.clone()), shell, source.1);
    tasks.own(
        StatusManager::new(name.clone()),
        StatusShell {
            caller: caller.clone(),
            own: status.0,
            mirrors: mirrors.0.clone(),
            metrics: metrics.clone(),
            shutdown,
        },
        status.1,
    );
    tasks.own(
        MirrorPods::new(name.clone()),
        MirrorShell { caller: caller.clone(), own: mirrors.0 },
        mirrors.1,
    );
    tasks.own(
        Recorder::new(name, plan.events),
        RecorderShell { caller: caller.clone(), own: recorder.0 },
        recorder.1,
    );
    let lease_shell = LeaseShell::new(caller.clone(), lease.0.clone(), drivers.reconnect, drivers.board);
    tasks.own(NodeLease::new(plan.lease), lease_shell, lease.1);
    let shell = NodeObjectShell { caller, own: node.0.clone(), listeners };
    tasks.own(NodeStatus::new(plan.node), shell, node.1);
    // The first tick starts the work.
    lease.0.send(LeaseEvent::Tick);
    node.0.send(NodeStatusEvent::Tick);
    handles
}

async fn hear_pods(mut events: mpsc::Receiver<WatchEvent<Pod>>, watchers: PodWatchers) {
    while let Some(event) = events.recv().await {
        watchers.hear(&event);
    }
}

async fn hear_node(
    mut events: mpsc::Receiver<WatchEvent<Node>>,
    to: Sender<NodeStatusEvent>,
    addresses: watch::Sender<Vec<NodeAddress>>,
    (volumes, manager): (CsiVolumes, Sender<ManagerEvent>),
) {
    while let Some(event) = events.recv().await {
        if let Some(now) = addresses_in(&event) {
            addresses.send_if_modified(|known| {
                let differ = *known != now;
                *known = now;
                differ
            });
        }
        // Pods whose volumes are attached now need not wait for the clock.
        let pods = volumes.node_says(&event).await;
        if !pods.is_empty() {
            manager.send(ManagerEvent::SourcesChanged(pods));
        }
        to.send(NodeStatusEvent::Watched(event));
    }
}

/// Reads the Node whenever the manager asks for it. A question that nobody can answer is answered with nothing.
async fn answer_manager<A: ApiServer>(
    asked: Arc<Notify>,
    node: String,
    caller: Caller<A>,
    to: Sender<ManagerEvent>,
) {
    loop {
        asked.notified().await;
        let to = to.clone();
        caller.send(ApiCall::GetNode { name: Arc::from(node.as_str()) }, move |result| {
            let marks = match result {
                Ok(ApiReply::Node(node)) => Some(NodeMarks::of(&node)),
                _ => None,
            };
            to.send(ManagerEvent::NodeRead(marks));
        });
    }
}

/// The Node's addresses, if the watch says which they are; a Node that is gone or has none yet keeps its last.
fn addresses_in(event: &WatchEvent<Node>) -> Option<Vec<NodeAddress>> {
    let node = match event {
        WatchEvent::Listed(nodes) => nodes.first()?,
        WatchEvent::Applied(node) => node,
        WatchEvent::Deleted(_) | WatchEvent::Lost(_) => return None,
    };
    let addresses = node.status.as_ref()?.addresses.clone()?;
    (!addresses.is_empty()).then_some(addresses)
}
