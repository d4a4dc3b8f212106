//! The shell of the Node object: calls, node events, and the components that need the registration.
//!
//! In: the machine's actions, the watch on the own Node. Out: calls; the Node's UID to the lease and the mirror pods;
//! facts in log and ledger. Decisions are in [`agent_core::node_status`].

use std::sync::Arc;

use agent_core::admission::NodeMarks;
use agent_core::events::{Fact, RecorderEvent};
use agent_core::lease::LeaseEvent;
use agent_core::mirror_pods::{MirrorEvent, NodeView};
use agent_core::node_status::{NodeFact, NodeInput, NodeStatus, NodeStatusAction, NodeStatusEvent};
use agent_core::pod_manager::ManagerEvent;
use agent_types::api::{ApiCall, ApiServer};
use agent_types::time::Now;
use tokio::sync::{Notify, watch};

use super::calls::Caller;
use crate::node::cluster_problems::{ClusterProblems, Part};
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Shell;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// Receivers of the Node's events.
pub struct NodeListeners {
    /// The event recorder.
    pub recorder: Sender<RecorderEvent>,
    /// The lease.
    pub lease: Sender<LeaseEvent>,
    /// The mirror pods.
    pub mirrors: Sender<MirrorEvent>,
    /// The pod manager: labels and taints decide about pods.
    pub manager: Sender<ManagerEvent>,
    /// Whether the API server shows the node as ready.
    pub ready: watch::Sender<bool>,
    /// `spec.podCIDRs` of the Node.
    pub pod_cidrs: watch::Sender<Vec<String>>,
    /// Asks for new connections.
    pub reconnect: Arc<Notify>,
    /// Shows problems with the cluster.
    pub cluster_problems: ClusterProblems,
    /// Metrics of the node.
    pub metrics: Metrics,
}

/// The Node object's surroundings.
pub struct NodeObjectShell<A> {
    /// The way to the API server.
    pub caller: Caller<A>,
    /// Its own mailbox, for answers.
    pub own: Sender<NodeStatusEvent>,
    /// Receivers of the Node's events.
    pub listeners: NodeListeners,
}

impl<A: ApiServer> Shell for NodeObjectShell<A> {
    type Machine = NodeStatus;

    fn tick(&self) -> NodeStatusEvent {
        NodeStatusEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &NodeStatusEvent) {
        if let NodeStatusEvent::Watched(event) = event
            && let Some(view) = NodeView::heard(event)
        {
            if let NodeView::Present { uid } = &view {
                self.listeners.lease.send(LeaseEvent::Registered { uid: uid.clone() });
            }
            self.listeners.mirrors.send(MirrorEvent::Node(view));
        }
        if let NodeStatusEvent::Watched(event) = event
            && let Some(marks) = NodeMarks::heard(event)
        {
            self.listeners.manager.send(ManagerEvent::Node(marks));
        }
    }

    fn perform(&mut self, _now: Now, action: NodeStatusAction) {
        match action {
            NodeStatusAction::Call { id, call } => {
                if matches!(call, ApiCall::CreateNode(_)) {
                    self.listeners.metrics.registering();
                }
                let own = self.own.clone();
                self.caller.send(call, move |result| {
                    own.send(NodeStatusEvent::Answered { id, result });
                });
            }
            NodeStatusAction::Event(event) => {
                tracing::info!(reason = event.reason, message = event.message, "node event");
                self.listeners.recorder.send(RecorderEvent::Record(Fact::of_node_event(event)));
            }
            NodeStatusAction::PodCidr(ranges) => {
                self.listeners.pod_cidrs.send_replace(ranges);
            }
            NodeStatusAction::CloseConnections => self.listeners.reconnect.notify_one(),
            NodeStatusAction::Fact(fact) => self.fact(fact),
        }
    }
}

impl<A> NodeObjectShell<A> {
    fn fact(&self, fact: NodeFact) {
        match fact {
            NodeFact::Registered { uid, created } => {
                self.listeners.cluster_problems.say(Part::Node, "");
                tracing::info!(uid, created, "node registered");
                if created {
                    self.listeners.metrics.registered();
                }
                self.listeners.lease.send(LeaseEvent::Registered { uid: uid.clone() });
                self.listeners.mirrors.send(MirrorEvent::Node(NodeView::Present { uid }));
            }
            NodeFact::Reported { ready } => {
                self.listeners.cluster_problems.say(Part::Node, "");
                if self.listeners.ready.send_replace(ready) != ready {
                    tracing::info!(ready, "node status reported");
                }
                if ready {
                    self.listeners.metrics.node_ready();
                }
            }
            NodeFact::Failed { message } => {
                self.listeners
                    .cluster_problems
                    .say(Part::Node, &format!("node status not reported yet: {message}"));
            }
            NodeFact::Problem { message } => tracing::warn!(message, "part of the node's status is missing"),
            NodeFact::Deleted => {
                tracing::warn!("the Node object was deleted; it is registered again");
                self.listeners.mirrors.send(MirrorEvent::Node(NodeView::Missing));
            }
        }
    }
}

impl Coalesce for NodeStatusEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (NodeStatusEvent::Input(a), NodeStatusEvent::Input(b)) => input_relation(a, b),
            (NodeStatusEvent::Watched(_), NodeStatusEvent::Watched(_)) => Relation::Ordered,
            (NodeStatusEvent::Tick, NodeStatusEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

/// Only the latest input of each source counts.
fn input_relation(queued: &NodeInput, newer: &NodeInput) -> Relation {
    if std::mem::discriminant(queued) == std::mem::discriminant(newer) {
        Relation::Supersedes
    } else {
        Relation::Independent
    }
}

#[cfg(test)]
mod tests {
    use agent_types::api::WatchEvent;
    use agent_types::pressures::Pressures;

    use super::*;

    #[test]
    fn news_of_one_source_replace_each_other() {
        let pleg = || NodeStatusEvent::Input(NodeInput::Pleg(Ok(())));
        let other = NodeStatusEvent::Input(NodeInput::Pressures(Pressures::default()));
        assert_eq!(pleg().relation(&pleg()), Relation::Supersedes);
        assert_eq!(pleg().relation(&other), Relation::Independent);
        let watched = || NodeStatusEvent::Watched(WatchEvent::Listed(Vec::new()));
        assert_eq!(watched().relation(&watched()), Relation::Ordered);
    }
}
