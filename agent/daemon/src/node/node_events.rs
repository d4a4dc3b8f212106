//! What pods' owners tell the owners that speak to the API server; nobody on a standalone node.
//!
//! In: what the manager and the workers did. Out: events in the mailboxes of mirror pods, status manager and event
//! recorder. Clones share them. Invariant: events of one pod keep their order in every mailbox.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_core::admission::Rejection;
use agent_core::events::{Fact, InvolvedObject, RecorderEvent};
use agent_core::eviction::{EvictionEvent, Victim};
use agent_core::mirror_pods::MirrorEvent;
use agent_core::node_shutdown::{LastEnd, LeavingPod, ShutdownEvent};
use agent_core::node_status::{NodeInput, NodeStatusEvent};
use agent_core::pod_source::PodUpdate;
use agent_core::pod_source::storage::DuplicateName;
use agent_core::status_manager::StatusEvent;
use agent_types::event::{EventFact, EventKind};
use agent_types::ids::{PodKey, PodUid};
use agent_types::pressures::Pressures;
use k8s_openapi::api::core::v1::PodStatus;
use tokio::sync::Notify;

use crate::pods::status::StatusStore;
use crate::serving::metrics::Metrics;
use crate::tasks::mailbox::Sender;

/// Who wants to know.
#[derive(Clone)]
pub struct NodeEvents {
    statuses: StatusStore,
    metrics: Metrics,
    api: Option<ApiMailboxes>,
    shutdown: Option<Sender<ShutdownEvent>>,
    eviction: Option<Sender<EvictionEvent>>,
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
    /// `api` is `None` on a standalone node, `shutdown` where pods are not waited for when the machine stops, `eviction`
    /// where nothing is looked for.
    #[must_use]
    pub fn new(
        statuses: StatusStore,
        metrics: Metrics,
        api: Option<ApiMailboxes>,
        shutdown: Option<Sender<ShutdownEvent>>,
        eviction: Option<Sender<EvictionEvent>>,
    ) -> NodeEvents {
        NodeEvents { statuses, metrics, api, shutdown, eviction }
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

    /// How many certificates for pods stand how.
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

    /// Whether a stop of the machine would wait for the pods, or why not.
    pub fn shutdown_delay(&self, delay: Result<(), String>) {
        self.to_node(NodeInput::ShutdownDelay(delay));
    }

    /// Asks what the API server has not been told; where there is none, there is nothing to tell.
    pub fn ask_untold(&self) {
        match (&self.api, &self.shutdown) {
            (Some(api), _) => drop(api.status.send(StatusEvent::AskUntold)),
            (None, Some(shutdown)) => drop(shutdown.send(ShutdownEvent::Untold(BTreeSet::new()))),
            (None, None) => {}
        }
    }

    /// Whether nobody is about to stop the machine: then what earlier shutdowns left at the API server is taken away.
    pub fn machine_stays(&self, stays: bool) {
        self.to_status(StatusEvent::MachineStays(stays));
    }

    /// The pods that have something to end.
    pub fn leaving(&self, pods: Vec<LeavingPod>) {
        if let Some(shutdown) = &self.shutdown {
            shutdown.send(ShutdownEvent::Leaving(pods));
        }
    }

    /// Nothing of the pod runs, and its volumes are released.
    pub fn released(&self, uid: &PodUid) {
        if let Some(shutdown) = &self.shutdown {
            shutdown.send(ShutdownEvent::Released(uid.clone()));
        }
        self.not_there(uid);
    }

    /// Nothing of the pod takes room on the node.
    pub fn not_there(&self, uid: &PodUid) {
        if let Some(eviction) = &self.eviction {
            eviction.send(EvictionEvent::Released(uid.clone()));
        }
    }

    /// A pod has to go.
    pub fn evicted(&self, victim: &Victim) {
        self.metrics.evicted(victim.signal);
        self.record(&victim.key, Fact::evicted(victim));
    }

    /// What the node runs short of, for its conditions.
    pub fn pressures(&self, pressures: Pressures) {
        self.to_node(NodeInput::Pressures(pressures));
    }

    /// The manager wants to know the Node as it is now.
    pub fn read_node(&self) {
        if let Some(api) = &self.api {
            api.read_node.notify_one();
        }
    }

    /// Who counts.
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

    /// A worker has ended and is forgotten.
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

    /// Nothing of the pod runs or will run.
    pub fn terminated(&self, key: &PodKey) {
        self.to_status(StatusEvent::Terminated(key.clone()));
    }

    /// Nothing of the pod is left.
    pub fn finished(&self, key: &PodKey) {
        self.statuses.remove(&key.uid);
        self.to_status(StatusEvent::Finished(key.clone()));
    }

    /// Something to record as a Kubernetes event; it is in the log in any case.
    pub fn event(&self, key: &PodKey, fact: &EventFact) {
        self.record(key, Fact::of_pod(key, fact));
        if let Some(fact) = Fact::of_claim_beside(key, fact) {
            self.to_recorder(fact);
        }
        if let Some(fact) = Fact::of_node_beside(fact) {
            self.of_node(fact);
        }
    }

    /// Something about the node itself.
    pub fn of_node(&self, fact: Fact) {
        match fact.kind {
            EventKind::Normal => tracing::info!(reason = fact.reason, message = fact.message, "node event"),
            EventKind::Warning => tracing::warn!(reason = fact.reason, message = fact.message, "node event"),
        }
        self.to_recorder(fact);
    }

    /// A pod was left out: another one of its source has its name.
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
