//! The part of a node that belongs to a cluster: all clients of the API server.
//!
//! ```text
//! node watch ─► node object ─► calls        facts of the machine, runtime, PLEG ─► node object
//! pod watch ──► API source ─► manager       workers ─► status manager, mirror pods, recorder ─► calls
//! ```
//! In: [`ClusterPlan`], [`ApiDrivers`]. Out: owners that run until the node stops. Invariant: nothing here can stop a
//! pod by itself; without the API server every owner waits and the pods go on. See docs/internals/join.md.

mod bootstrap_credentials;
pub mod calls;
pub mod clock;
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
use std::sync::atomic::AtomicU32;

use agent_core::admission::NodeMarks;
use agent_core::events::{Rate, Recorder, RecorderEvent};
use agent_core::lease::{LeaseConfig, LeaseEvent, NodeLease};
use agent_core::mirror_pods::{MirrorEvent, MirrorPods};
use agent_core::node_shutdown::ShutdownEvent;
use agent_core::node_status::{NodeStatus, NodeStatusConfig, NodeStatusEvent};
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::api::{ApiSource, ApiSourceEvent};
use agent_core::status_manager::{StatusEvent, StatusManager};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::api::{ApiCall, ApiReply, ApiServer, WatchEvent};
use k8s_openapi::api::core::v1::{Node, NodeAddress, Pod};
use tokio::sync::{Notify, watch};

use calls::Caller;
use events::RecorderShell;
use feeds::{FeedSources, Feeds, NodeFactsSource};
use lease::LeaseShell;
use node_object::{NodeListeners, NodeObjectShell};
use pods::{ApiSourceShell, MirrorShell, PodWatchers, StatusShell};
use watches::Opening;

use crate::node::NodeHandles;
use crate::node::cluster_problems::ClusterProblems;
use crate::node::node_events::ApiMailboxes;
use crate::pods::pod_values::{ObjectPolicy, ObjectWatches};
use crate::tasks::actor::Tasks;
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::{Inbox, Sender};
use crate::volumes::csi::volumes::CsiVolumes;

/// Configuration of the cluster's part, without its drivers.
#[derive(Clone, Debug)]
pub struct ClusterPlan {
    /// The Node object.
    pub node: NodeStatusConfig,
    /// The lease.
    pub lease: LeaseConfig,
    /// `eventRecordQPS`, `eventBurst`.
    pub events: Rate,
    /// How the node notices changes of Secrets and ConfigMaps.
    pub objects: ObjectPolicy,
    /// Pods may have trust bundles of the cluster as volumes.
    pub trust_bundles: bool,
    /// Pods may have certificates as volumes; the number spreads the requests of the nodes.
    pub pod_certificates: Option<u64>,
}

/// The API server as the node sees it.
pub struct ApiDrivers<A> {
    /// `None` until the node has an identity.
    pub client: watch::Receiver<Option<Arc<A>>>,
    /// The watch on the node's pods.
    pub pods: Opening<Pod>,
    /// The watch on the own Node.
    pub node: Opening<Node>,
    /// Watches on single objects.
    pub objects: Arc<dyn ObjectWatches>,
    /// Requests new connections from the driver.
    pub reconnect: Arc<Notify>,
    /// Shows problems with the cluster.
    pub cluster_problems: ClusterProblems,
}

/// An owner's mailbox, both ends.
type MailboxEnds<E> = (Sender<E>, Inbox<E>);

/// The owners' mailboxes; made before the first sender exists.
pub struct Mailboxes {
    source: MailboxEnds<ApiSourceEvent>,
    status: MailboxEnds<StatusEvent>,
    mirrors: MailboxEnds<MirrorEvent>,
    recorder: MailboxEnds<RecorderEvent>,
    lease: MailboxEnds<LeaseEvent>,
    node: MailboxEnds<NodeStatusEvent>,
    read_node: Arc<Notify>,
    shutdown: Option<Sender<ShutdownEvent>>,
}

/// Handles of the cluster's part for other subsystems.
pub struct ClusterHandles {
    /// Inputs of the Node object.
    pub node: Sender<NodeStatusEvent>,
    /// Whether the API server shows the node as ready.
    pub ready: watch::Receiver<bool>,
    /// `spec.podCIDRs`.
    pub pod_cidrs: watch::Receiver<Vec<String>>,
    /// `status.addresses`, as the API server has them.
    pub addresses: watch::Receiver<Vec<NodeAddress>>,
    /// The Node as its watch shows it; none before the first list, and while there is none.
    pub object: watch::Receiver<Option<Arc<Node>>>,
    /// Renewals of the lease since the agent began.
    pub renewals: Arc<AtomicU32>,
    /// For the watchdog.
    pub owners: Vec<Owner>,
}

impl Mailboxes {
    /// All mailboxes, empty. The status manager reports unsent statuses to `shutdown`.
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

    /// Senders for the owners of pods.
    #[must_use]
    pub fn node_events(&self) -> ApiMailboxes {
        ApiMailboxes {
            status: self.status.0.clone(),
            mirrors: self.mirrors.0.clone(),
            recorder: self.recorder.0.clone(),
            node: self.node.0.clone(),
            read_node: self.read_node.clone(),
        }
    }

    fn owners(&self) -> Vec<Owner> {
        vec![
            Owner::new("api source", self.source.0.clone()),
            Owner::new("status manager", self.status.0.clone()),
            Owner::new("mirror pods", self.mirrors.0.clone()),
            Owner::new("event recorder", self.recorder.0.clone()),
            Owner::new("lease", self.lease.0.clone()),
            Owner::new("node status", self.node.0.clone()),
        ]
    }

    fn watchers(&self, node: &NodeHandles) -> PodWatchers {
        PodWatchers {
            source: self.source.0.clone(),
            status: self.status.0.clone(),
            mirrors: self.mirrors.0.clone(),
            metrics: node.node_events.metrics().clone(),
        }
    }
}

/// Inputs of [`start`].
pub struct Deps<'a, R, I, C, A> {
    /// Handles of the node.
    pub node: &'a NodeHandles,
    /// The configuration's part.
    pub plan: ClusterPlan,
    /// The owners' mailboxes.
    pub mailboxes: Mailboxes,
    /// The API server.
    pub api: ApiDrivers<A>,
    /// Volumes of CSI drivers; the watch on the Node reports their attachment.
    pub volumes: CsiVolumes,
    /// Sources of the feeds.
    pub sources: FeedSources<R, I, C>,
}

/// Starts every owner of the cluster's part, and the feeds of the Node object.
pub fn start<R: Runtime, I: ImageService, C: NodeFactsSource, A: ApiServer>(
    deps: Deps<'_, R, I, C, A>,
) -> ClusterHandles {
    let Deps { node, plan, mailboxes, api, volumes, sources } = deps;
    let (ready_view, ready) = watch::channel(false);
    let (cidr_view, pod_cidrs) = watch::channel(Vec::new());
    let (address_view, addresses) = watch::channel(Vec::new());
    let (object_view, object) = watch::channel(None);
    let renewals = Arc::new(AtomicU32::new(0));
    let tasks = &node.tasks;
    let network_changed = sources.facts.network_changes(tasks);
    let to = mailboxes.node.0.clone();
    let owners = mailboxes.owners();
    let watchers = mailboxes.watchers(node);
    tasks.start(hear_pods(api.pods, watchers));
    let listener = NodeListener {
        status: to.clone(),
        addresses: address_view,
        object: object_view,
        volumes,
        manager: node.manager.clone(),
    };
    tasks.start(listener.hear(api.node));
    let caller = Caller::new(tasks.clone(), api.client);
    let name = plan.node.node_name.to_string();
    tasks.start(answer_manager(mailboxes.read_node.clone(), name, caller.clone(), node.manager.clone()));
    let listeners = NodeListeners {
        recorder: mailboxes.recorder.0.clone(),
        lease: mailboxes.lease.0.clone(),
        mirrors: mailboxes.mirrors.0.clone(),
        manager: node.manager.clone(),
        ready: ready_view,
        pod_cidrs: cidr_view,
        reconnect: api.reconnect.clone(),
        cluster_problems: api.cluster_problems.clone(),
        metrics: node.node_events.metrics().clone(),
    };
    start_machines(plan, mailboxes, &caller, listeners, node, Arc::clone(&renewals));
    let feeds = Feeds { sources, ready: ready.clone(), network_changed, to: to.clone() };
    feeds.start(tasks);
    ClusterHandles { node: to, ready, pod_cidrs, addresses, object, renewals, owners }
}

/// Starts the machines that call the API server; the first ticks start the work.
fn start_machines<A: ApiServer>(
    plan: ClusterPlan,
    mailboxes: Mailboxes,
    caller: &Caller<A>,
    listeners: NodeListeners,
    node: &NodeHandles,
    renewals: Arc<AtomicU32>,
) {
    let Mailboxes { source, status, mirrors, recorder, lease, node: own, shutdown, .. } = mailboxes;
    let name = plan.node.node_name.to_string();
    let (tasks, metrics) = (&node.tasks, node.node_events.metrics());
    let shell = ApiSourceShell { manager: node.manager.clone(), recorder: recorder.0.clone() };
    tasks.own(ApiSource::new(name.clone()), shell, source.1);
    let shell = StatusShell {
        caller: caller.clone(),
        own: status.0,
        mirrors: mirrors.0.clone(),
        metrics: metrics.clone(),
        shutdown,
    };
    tasks.own(StatusManager::new(name.clone()), shell, status.1);
    let shell = MirrorShell { caller: caller.clone(), own: mirrors.0 };
    tasks.own(MirrorPods::new(name.clone()), shell, mirrors.1);
    let shell = RecorderShell { caller: caller.clone(), own: recorder.0 };
    tasks.own(Recorder::new(name, plan.events), shell, recorder.1);
    let (reconnect, cluster_problems) = (listeners.reconnect.clone(), listeners.cluster_problems.clone());
    let shell = LeaseShell::new(caller.clone(), lease.0.clone(), reconnect, cluster_problems, renewals);
    tasks.own(NodeLease::new(plan.lease), shell, lease.1);
    let shell = NodeObjectShell { caller: caller.clone(), own: own.0.clone(), listeners };
    tasks.own(NodeStatus::new(plan.node), shell, own.1);
    lease.0.send(LeaseEvent::Tick);
    own.0.send(NodeStatusEvent::Tick);
}

async fn hear_pods(opening: Opening<Pod>, watchers: PodWatchers) {
    // The sender is dropped when the node stops.
    let Ok(mut events) = opening.await else { return };
    while let Some(event) = events.recv().await {
        watchers.hear(&event);
    }
}

/// Receives the watch on the own Node.
struct NodeListener {
    status: Sender<NodeStatusEvent>,
    addresses: watch::Sender<Vec<NodeAddress>>,
    object: watch::Sender<Option<Arc<Node>>>,
    volumes: CsiVolumes,
    manager: Sender<ManagerEvent>,
}

impl NodeListener {
    async fn hear(self, opening: Opening<Node>) {
        // The sender is dropped when the node stops.
        let Ok(mut events) = opening.await else { return };
        while let Some(event) = events.recv().await {
            if let Some(now) = addresses_in(&event) {
                self.addresses.send_if_modified(|known| {
                    let differ = *known != now;
                    *known = now;
                    differ
                });
            }
            if let Some(object) = object_in(&event) {
                self.object.send_replace(object);
            }
            // Pods whose volumes are now attached are synchronised at once, without waiting for the next retry.
            let pods = self.volumes.node_says(&event).await;
            if !pods.is_empty() {
                self.manager.send(ManagerEvent::SourcesChanged(pods));
            }
            self.status.send(NodeStatusEvent::Watched(event));
        }
    }
}

/// Reads the Node whenever the manager requests it. If the API server does not answer, the manager gets `None`.
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

/// The Node after an event of the watch; `None` if the event says nothing about it.
fn object_in(event: &WatchEvent<Node>) -> Option<Option<Arc<Node>>> {
    match event {
        WatchEvent::Listed(nodes) => Some(nodes.first().cloned()),
        WatchEvent::Applied(node) => Some(Some(Arc::clone(node))),
        WatchEvent::Deleted(_) => Some(None),
        WatchEvent::Lost(_) => None,
    }
}

/// The Node's addresses in an event of the watch; `None` if the Node is gone or has none yet, so the last addresses
/// stay.
fn addresses_in(event: &WatchEvent<Node>) -> Option<Vec<NodeAddress>> {
    let node = match event {
        WatchEvent::Listed(nodes) => nodes.first()?,
        WatchEvent::Applied(node) => node,
        WatchEvent::Deleted(_) | WatchEvent::Lost(_) => return None,
    };
    let addresses = node.status.as_ref()?.addresses.clone()?;
    (!addresses.is_empty()).then_some(addresses)
}
