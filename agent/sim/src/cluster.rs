//! The machines of a node that belongs to a cluster, wired in the order of the daemon.
//!
//! ```text
//! pod watch ──► status manager, mirror pods, API source ─► pod manager        workers ─► status manager, recorder
//! node watch ─► lease, mirror pods, node object           manager ─► mirror pods      all of them ─► calls
//! ```
//! In: the events of the daemon's `cluster` module and of its node events. Out: [`ClusterAction`]s. This module decides
//! nothing.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_core::admission::Rejection;
use agent_core::events::{Fact, Rate, Recorder, RecorderAction, RecorderEvent};
use agent_core::lease::{LeaseAction, LeaseConfig, LeaseEvent, NodeLease};
use agent_core::mirror_pods::{MirrorAction, MirrorEvent, MirrorPods, NodeView};
use agent_core::node_status::{
    NodeFact, NodeInput, NodeStatus, NodeStatusAction, NodeStatusConfig, NodeStatusEvent,
};
use agent_core::pod_source::api::{ApiSource, ApiSourceAction, ApiSourceEvent};
use agent_core::pod_source::{PodUpdate, Source};
use agent_core::status_manager::{StatusAction, StatusEvent, StatusManager};
use agent_types::api::{ApiCall, ApiResult, WatchEvent};
use agent_types::event::{EventFact, EventKind};
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Node, Pod, PodStatus};
use orlop_config::kubelet::flags::args::Options;
use orlop_config::kubelet::{FeatureGates, KubeletConfiguration};

/// Name of the simulated node.
pub const NODE: &str = "node";

/// Machine that sent a call and gets its answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub enum Owner {
    /// The status manager.
    Status,
    /// The mirror pods.
    Mirrors,
    /// The event recorder.
    Recorder,
    /// The lease.
    Lease,
    /// The Node object.
    Node,
    /// The pod manager, which asks for the Node.
    Manager,
}

/// Actions of these machines for the node.
#[derive(Clone, Debug)]
pub enum ClusterAction {
    /// Send a call.
    Call {
        /// Machine that gets the answer.
        owner: Owner,
        /// Identifier to return with the answer.
        id: EffectId,
        /// Call to the API server.
        call: ApiCall,
    },
    /// Pass the update to the pod manager.
    Deliver(PodUpdate),
    /// Connections to the API server may be dead: make new ones.
    CloseConnections,
    /// Pods whose last status the API server does not have.
    Untold(BTreeSet<PodUid>),
}

/// An event of a pod on the node, as the daemon's `NodeEvents` report it.
#[derive(Debug)]
pub enum PodNews {
    /// A worker was started.
    Started(PodKey),
    /// Its worker has ended and is forgotten.
    Forgotten(PodUid),
    /// Every source was read.
    Synced,
    /// A status was published.
    Published(PodKey, Arc<PodStatus>),
    /// No container of the pod runs or will run.
    Terminated(PodKey),
    /// Nothing of the pod is left.
    Finished(PodKey),
    /// A fact for the event recorder.
    Event(PodKey, EventFact),
    /// Admission rejected the pod.
    Rejected(PodKey, Rejection),
}

/// The machines.
pub struct Cluster {
    source: ApiSource,
    status: StatusManager,
    mirrors: MirrorPods,
    recorder: Recorder,
    lease: NodeLease,
    node: NodeStatus,
}

type Out = Vec<ClusterAction>;

impl Cluster {
    /// The machines of a new incarnation, without any state.
    ///
    /// # Panics
    /// Never: the configuration is the default one.
    #[must_use]
    pub fn new(seed: u64) -> Cluster {
        let kubelet = KubeletConfiguration::default();
        let node = NodeStatusConfig::new(
            NODE,
            &kubelet,
            &FeatureGates::default(),
            &Options::default(),
            "v1.36.0-sim",
            seed,
        );
        Cluster {
            source: ApiSource::new(NODE),
            status: StatusManager::new(NODE),
            mirrors: MirrorPods::new(NODE),
            recorder: Recorder::new(NODE, Rate { per_second: 50, burst: 100 }),
            lease: NodeLease::new(LeaseConfig { node_name: NODE.into(), duration_s: 40, seed }),
            node: NodeStatus::new(node.expect("the default configuration has no addresses to refuse")),
        }
    }

    /// The first ticks start the work.
    pub fn start(&mut self, now: Now, out: &mut Out) {
        self.lease(now, LeaseEvent::Tick, out);
        self.node(now, NodeStatusEvent::Tick, out);
    }

    /// Handles an event of the pod watch. The status manager gets it first: it must know a pod before the pod's worker publishes
    /// a status.
    pub fn pods(&mut self, now: Now, event: &WatchEvent<Pod>, out: &mut Out) {
        self.status(now, StatusEvent::Watch(event.clone()), out);
        self.mirrors(now, MirrorEvent::Watch(event.clone()), out);
        let mut actions = Outbox::new();
        self.source.step(now, ApiSourceEvent::Watch(event.clone()), &mut actions);
        for action in actions.drain() {
            if let ApiSourceAction::Deliver(update) = action {
                out.push(ClusterAction::Deliver(update));
            }
        }
    }

    /// Handles an event of the watch on the own Node.
    pub fn own_node(&mut self, now: Now, event: WatchEvent<Node>, out: &mut Out) {
        if let Some(view) = NodeView::heard(&event) {
            if let NodeView::Present { uid } = &view {
                self.lease(now, LeaseEvent::Registered { uid: uid.clone() }, out);
            }
            self.mirrors(now, MirrorEvent::Node(view), out);
        }
        self.node(now, NodeStatusEvent::Watched(event), out);
    }

    /// News for the Node object.
    pub fn input(&mut self, now: Now, input: NodeInput, out: &mut Out) {
        self.node(now, NodeStatusEvent::Input(input), out);
    }

    /// Records an event about the node.
    pub fn of_node(&mut self, now: Now, kind: EventKind, reason: &str, message: &str, out: &mut Out) {
        self.recorder(now, RecorderEvent::Record(Fact::of_node(kind, reason, message)), out);
    }

    /// Asks the status manager for the pods whose last status the API server does not have; the shutdown waits for them.
    pub fn ask_untold(&mut self, now: Now, out: &mut Out) {
        self.status(now, StatusEvent::AskUntold, out);
    }

    /// Passes on whether the machine stays up.
    pub fn machine_stays(&mut self, now: Now, stays: bool, out: &mut Out) {
        self.status(now, StatusEvent::MachineStays(stays), out);
    }

    /// Handles the answer to a call.
    pub fn answered(&mut self, now: Now, (owner, id): (Owner, EffectId), result: ApiResult, out: &mut Out) {
        match owner {
            Owner::Status => self.status(now, StatusEvent::Answer { id, result }, out),
            Owner::Mirrors => self.mirrors(now, MirrorEvent::Answer { id, result }, out),
            Owner::Recorder => self.recorder(now, RecorderEvent::Answer { id, result }, out),
            Owner::Lease => self.lease(now, LeaseEvent::Answered { id, result }, out),
            Owner::Node => self.node(now, NodeStatusEvent::Answered { id, result }, out),
            // The node passes the answer to the pod manager itself.
            Owner::Manager => {}
        }
    }

    /// The static pods changed.
    pub fn static_pods(&mut self, now: Now, update: &PodUpdate, out: &mut Out) {
        if update.source != Source::Api {
            self.mirrors(now, MirrorEvent::Static(update.clone()), out);
        }
    }

    /// Something happened to a pod.
    pub fn pod_news(&mut self, now: Now, news: PodNews, out: &mut Out) {
        match news {
            PodNews::Started(key) => self.mirrors(now, MirrorEvent::Worker(key), out),
            PodNews::Forgotten(uid) => self.mirrors(now, MirrorEvent::Forgotten(uid), out),
            PodNews::Synced => self.mirrors(now, MirrorEvent::Synced, out),
            PodNews::Published(pod, status) => {
                self.status(now, StatusEvent::Published { pod, status }, out);
            }
            PodNews::Terminated(key) => self.status(now, StatusEvent::Terminated(key), out),
            PodNews::Finished(key) => self.status(now, StatusEvent::Finished(key), out),
            PodNews::Event(key, fact) => {
                self.recorder(now, RecorderEvent::Record(Fact::of_pod(&key, &fact)), out);
            }
            PodNews::Rejected(key, rejection) => {
                self.recorder(now, RecorderEvent::Record(Fact::rejected(&key, &rejection)), out);
            }
        }
    }

    /// The nearest timer.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        let all = [
            self.status.deadline(),
            self.mirrors.deadline(),
            self.recorder.deadline(),
            self.lease.deadline(),
            self.node.deadline(),
        ];
        all.into_iter().flatten().min()
    }

    /// Sends a tick to each machine whose deadline has come.
    pub fn tick(&mut self, now: Now, out: &mut Out) {
        let due = |deadline: Option<Mono>| deadline.is_some_and(|d| d <= now.mono);
        if due(self.status.deadline()) {
            self.status(now, StatusEvent::Tick, out);
        }
        if due(self.mirrors.deadline()) {
            self.mirrors(now, MirrorEvent::Tick, out);
        }
        if due(self.recorder.deadline()) {
            self.recorder(now, RecorderEvent::Tick, out);
        }
        if due(self.lease.deadline()) {
            self.lease(now, LeaseEvent::Tick, out);
        }
        if due(self.node.deadline()) {
            self.node(now, NodeStatusEvent::Tick, out);
        }
    }

    /// Pods that the status manager remembers, for leak checks.
    #[must_use]
    pub fn remembered(&self) -> usize {
        self.status.len()
    }

    fn status(&mut self, now: Now, event: StatusEvent, out: &mut Out) {
        let mut actions = Outbox::new();
        self.status.step(now, event, &mut actions);
        for action in actions.drain() {
            match action {
                StatusAction::Call { id, call } => {
                    out.push(ClusterAction::Call { owner: Owner::Status, id, call });
                }
                StatusAction::Outdated { name, uid } => {
                    self.mirrors(now, MirrorEvent::Outdated { name, uid }, out);
                }
                StatusAction::Untold(untold) => out.push(ClusterAction::Untold(untold)),
                StatusAction::Report(_) => {}
            }
        }
    }

    fn mirrors(&mut self, now: Now, event: MirrorEvent, out: &mut Out) {
        let mut actions = Outbox::new();
        self.mirrors.step(now, event, &mut actions);
        for action in actions.drain() {
            if let MirrorAction::Call { id, call } = action {
                out.push(ClusterAction::Call { owner: Owner::Mirrors, id, call });
            }
        }
    }

    fn recorder(&mut self, now: Now, event: RecorderEvent, out: &mut Out) {
        let mut actions = Outbox::new();
        self.recorder.step(now, event, &mut actions);
        for action in actions.drain() {
            if let RecorderAction::Call { id, call } = action {
                out.push(ClusterAction::Call { owner: Owner::Recorder, id, call });
            }
        }
    }

    fn lease(&mut self, now: Now, event: LeaseEvent, out: &mut Out) {
        let mut actions = Outbox::new();
        self.lease.step(now, event, &mut actions);
        for action in actions.drain() {
            match action {
                LeaseAction::Call { id, call } => {
                    out.push(ClusterAction::Call { owner: Owner::Lease, id, call });
                }
                LeaseAction::CloseConnections => out.push(ClusterAction::CloseConnections),
                LeaseAction::Fact(_) => {}
            }
        }
    }

    fn node(&mut self, now: Now, event: NodeStatusEvent, out: &mut Out) {
        let mut actions = Outbox::new();
        self.node.step(now, event, &mut actions);
        for action in actions.drain() {
            match action {
                NodeStatusAction::Call { id, call } => {
                    out.push(ClusterAction::Call { owner: Owner::Node, id, call });
                }
                NodeStatusAction::Event(event) => {
                    self.recorder(now, RecorderEvent::Record(Fact::of_node_event(event)), out);
                }
                NodeStatusAction::CloseConnections => out.push(ClusterAction::CloseConnections),
                NodeStatusAction::Fact(NodeFact::Registered { uid, .. }) => {
                    self.lease(now, LeaseEvent::Registered { uid: uid.clone() }, out);
                    self.mirrors(now, MirrorEvent::Node(NodeView::Present { uid }), out);
                }
                NodeStatusAction::Fact(NodeFact::Deleted) => {
                    self.mirrors(now, MirrorEvent::Node(NodeView::Missing), out);
                }
                NodeStatusAction::PodCidr(_) | NodeStatusAction::Fact(_) => {}
            }
        }
    }
}
