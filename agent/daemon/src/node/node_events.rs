//! Forwards events of pods and of the node to the machines that subscribe to them; on a standalone node there are none
//! that use the API server.
//!
//! In: actions of the manager and the workers. Out: events in the mailboxes of mirror pods, status manager and event
//! recorder. Clones share the mailboxes. Invariant: events of one pod keep their order in every mailbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_core::admission::Rejection;
use agent_core::console::problem::ConsoleProblem;
use agent_core::events::{Fact, InvolvedObject, RecorderEvent};
use agent_core::eviction::{EvictionEvent, Victim};
use agent_core::mirror_pods::MirrorEvent;
use agent_core::node_shutdown::{LastEnd, LeavingPod, ShutdownEvent};
use agent_core::node_status::{DeviceResources, NodeInput, NodeStatusEvent};
use agent_core::node_update::report::UpdateShown;
use agent_core::pod_source::storage::DuplicateName;
use agent_core::pod_source::{PodUpdate, Source};
use agent_core::status_manager::StatusEvent;
use agent_managers::devices::inventory::NodeDevices;
use agent_types::event::{EventFact, EventKind};
use agent_types::ids::{PodKey, PodUid};
use agent_types::pressures::Pressures;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::{Notify, watch};

use crate::pods::status::StatusStore;
use crate::serving::metrics::Metrics;
use crate::tasks::mailbox::Sender;

/// Manifests that are not used as they are written, by source.
pub type ManifestProblems = BTreeMap<Source, Vec<ConsoleProblem>>;

/// Subscribers to node events.
#[derive(Clone)]
pub struct NodeEvents {
    statuses: StatusStore,
    metrics: Metrics,
    api: Option<ApiMailboxes>,
    shutdown: Option<Sender<ShutdownEvent>>,
    eviction: Option<Sender<EvictionEvent>>,
    manifests: Arc<watch::Sender<ManifestProblems>>,
}

/// The mailboxes of a node that has an API server.
#[derive(Clone)]
pub struct ApiMailboxes {
    /// The status manager.
    pub status: Sender<StatusEvent>,
    /// The mirror pods.
    pub mirrors: Sender<MirrorEvent>,
    /// The event recorder.
    pub recorder: Sender<RecorderEvent>,
    /// The Node object.
    pub node: Sender<NodeStatusEvent>,
    /// Asks for the Node object to be read for the manager.
    pub read_node: Arc<Notify>,
}

impl NodeEvents {
    /// `api` is `None` on a standalone node, `shutdown` if the machine does not wait for pods, `eviction` if the node
    /// evicts no pod.
    #[must_use]
    pub fn new(
        statuses: StatusStore,
        metrics: Metrics,
        api: Option<ApiMailboxes>,
        shutdown: Option<Sender<ShutdownEvent>>,
        eviction: Option<Sender<EvictionEvent>>,
    ) -> NodeEvents {
        let manifests = Arc::new(watch::Sender::new(ManifestProblems::new()));
        NodeEvents { statuses, metrics, api, shutdown, eviction, manifests }
    }

    /// All present problems with the manifests of a source, for the consoles.
    pub fn manifest_problems(&self, source: Source, problems: Vec<ConsoleProblem>) {
        self.manifests.send_if_modified(|all| {
            let changed = all.get(&source).map_or(&[] as &[ConsoleProblem], Vec::as_slice) != problems;
            if changed {
                all.insert(source, problems);
            }
            changed
        });
    }

    /// Follows the problems with manifests.
    #[must_use]
    pub fn follow_manifests(&self) -> watch::Receiver<ManifestProblems> {
        self.manifests.subscribe()
    }

    fn to_node(&self, input: NodeInput) {
        if let Some(api) = &self.api {
            api.node.send(NodeStatusEvent::Input(input));
        }
    }

    fn to_status(&self, event: StatusEvent) {
        if let Some(api) = &self.api {
            api.status.send(event);
        }
    }

    fn to_mirrors(&self, event: MirrorEvent) {
        if let Some(api) = &self.api {
            api.mirrors.send(event);
        }
    }

    fn to_recorder(&self, fact: Fact) {
        if let Some(api) = &self.api {
            api.recorder.send(RecorderEvent::Record(fact));
        }
    }

    /// Counts the certificates of pods by state.
    pub fn pod_certificates(&self, states: &BTreeMap<(&str, &'static str), u32>) {
        self.metrics.pod_certificates(states);
    }

    /// Whether the machine is about to stop, for the Node's readiness.
    pub fn node_shutdown(&self, ready: Result<(), String>) {
        self.to_node(NodeInput::Shutdown(ready));
    }

    /// Whether there is a CSINode, or why not, for the Node's readiness.
    pub fn storage(&self, there: Result<(), String>) {
        self.to_node(NodeInput::Storage(there));
    }

    /// How the last boot ended.
    pub fn last_end(&self, end: LastEnd) {
        self.to_node(NodeInput::LastEnd(end));
    }

    /// Fingerprint of the management API's key.
    pub fn api_key(&self, fingerprint: String) {
        self.to_node(NodeInput::ApiKey(fingerprint));
    }

    /// Where an update of the node is, and what has failed of it.
    pub fn update(&self, shown: UpdateShown) {
        self.to_node(NodeInput::Update(shown));
    }

    /// Whether a stop of the machine would wait for the pods, or why not.
    pub fn shutdown_delay(&self, delay: Result<(), String>) {
        self.to_node(NodeInput::ShutdownDelay(delay));
    }

    /// Requests the statuses that the API server does not have yet. A standalone node has none.
    pub fn ask_untold(&self) {
        match (&self.api, &self.shutdown) {
            (Some(api), _) => drop(api.status.send(StatusEvent::AskUntold)),
            (None, Some(shutdown)) => drop(shutdown.send(ShutdownEvent::Untold(BTreeSet::new()))),
            (None, None) => {}
        }
    }

    /// True if no shutdown is under way: then the status manager removes the marks of earlier shutdowns at the API
    /// server.
    pub fn machine_stays(&self, stays: bool) {
        self.to_status(StatusEvent::MachineStays(stays));
    }

    /// Pods that the shutdown has to end.
    pub fn leaving(&self, pods: Vec<LeavingPod>) {
        if let Some(shutdown) = &self.shutdown {
            shutdown.send(ShutdownEvent::Leaving(pods));
        }
    }

    /// The pod has no containers any more, and its volumes are released.
    pub fn released(&self, uid: &PodUid) {
        if let Some(shutdown) = &self.shutdown {
            shutdown.send(ShutdownEvent::Released(uid.clone()));
        }
        self.not_there(uid);
    }

    /// The pod uses no resources of the node.
    pub fn not_there(&self, uid: &PodUid) {
        if let Some(eviction) = &self.eviction {
            eviction.send(EvictionEvent::Released(uid.clone()));
        }
    }

    /// The eviction manager chose a pod.
    pub fn evicted(&self, victim: &Victim) {
        self.metrics.evicted(victim.signal);
        self.record(&victim.key, Fact::evicted(victim));
    }

    /// Pressures of the node, for its conditions.
    pub fn pressures(&self, pressures: Pressures) {
        self.to_node(NodeInput::Pressures(pressures));
    }

    /// Amounts of device plugins' resources, for the Node's status. The directory of device plugins is never empty while the agent
    /// runs, so earlier amounts of the Node stay until a plugin registers or its resource is removed.
    pub fn devices(&self, amounts: &NodeDevices) {
        self.to_node(NodeInput::Devices(DeviceResources {
            capacity: amounts.capacity.clone(),
            allocatable: amounts.allocatable.clone(),
            removed: amounts.removed.iter().cloned().collect(),
            has_checkpoint: true,
        }));
    }

    /// The manager requests the present Node.
    pub fn read_node(&self) {
        if let Some(api) = &self.api {
            api.read_node.notify_one();
        }
    }

    /// Metrics of the node.
    #[must_use]
    pub fn metrics(&self) -> &Metrics {
        &self.metrics
    }

    /// A source of static pods changed.
    pub fn static_pods(&self, update: &PodUpdate) {
        self.to_mirrors(MirrorEvent::Static(update.clone()));
    }

    /// A worker was started.
    pub fn started(&self, key: &PodKey) {
        self.metrics.worker_began(key);
        self.to_mirrors(MirrorEvent::Worker(key.clone()));
    }

    /// A worker has ended, and the manager has removed it.
    pub fn forgotten(&self, uid: &PodUid) {
        self.metrics.worker_ended(uid);
        self.to_mirrors(MirrorEvent::Forgotten(uid.clone()));
    }

    /// Every source was read.
    pub fn synced(&self) {
        self.to_mirrors(MirrorEvent::Synced);
    }

    /// A worker published a status.
    pub fn published(&self, key: &PodKey, status: Arc<PodStatus>) {
        self.metrics.published(key, self.statuses.get(&key.uid).as_deref(), &status);
        self.statuses.publish(key, status.clone());
        self.to_status(StatusEvent::Published { pod: key.clone(), status });
    }

    /// The pod runs no containers and will run none.
    pub fn terminated(&self, key: &PodKey) {
        self.to_status(StatusEvent::Terminated(key.clone()));
    }

    /// The pod has no containers and no files on the node.
    pub fn finished(&self, key: &PodKey) {
        self.statuses.remove(&key.uid);
        self.to_status(StatusEvent::Finished(key.clone()));
    }

    /// Records a Kubernetes event of a pod; the log has it in any case.
    pub fn event(&self, key: &PodKey, fact: &EventFact) {
        self.record(key, Fact::of_pod(key, fact));
        if let Some(fact) = Fact::of_claim_beside(key, fact) {
            self.to_recorder(fact);
        }
        if let Some(fact) = Fact::of_node_beside(fact) {
            self.of_node(fact);
        }
    }

    /// Records a Kubernetes event of the node itself.
    pub fn of_node(&self, fact: Fact) {
        match fact.kind {
            EventKind::Normal => tracing::info!(reason = fact.reason, message = fact.message, "node event"),
            EventKind::Warning => tracing::warn!(reason = fact.reason, message = fact.message, "node event"),
        }
        self.to_recorder(fact);
    }

    /// A source has two pods with this name; this pod was left out.
    pub fn left_out(&self, duplicate: &DuplicateName) {
        self.record(&duplicate.pod, Fact::left_out(duplicate));
    }

    /// Admission refused a pod.
    pub fn rejected(&self, key: &PodKey, rejection: &Rejection) {
        self.record(key, Fact::rejected(key, rejection));
    }

    fn record(&self, key: &PodKey, fact: Fact) {
        let InvolvedObject::Pod { field_path, .. } = &fact.about else { return };
        let object = field_path.as_deref().unwrap_or("");
        let (pod, namespace, uid) = (&*key.name, &*key.namespace, &key.uid);
        match fact.kind {
            EventKind::Normal => {
                tracing::info!(pod, namespace, %uid, object, reason = fact.reason, message = fact.message, "event");
            }
            EventKind::Warning => {
                tracing::warn!(pod, namespace, %uid, object, reason = fact.reason, message = fact.message, "event");
            }
        }
        self.to_recorder(fact);
    }
}
