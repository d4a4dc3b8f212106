//! Mailboxes with several senders. They are made before any owner starts, so that every owner may send at once.

use std::sync::Arc;

use agent_core::pleg::PlegEvent;
use agent_core::pod_manager::ManagerEvent;

use crate::cluster::Mailboxes;
use crate::node::NodeHandles;
use crate::node::eviction::{self, PreparedEviction, Senses};
use crate::node::node_events::NodeEvents;
use crate::node::shutdown::Shutdown;
use crate::pods::status::StatusStore;
use crate::process::node::Plan;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::{Inbox, Sender};

/// Mailboxes of the part that works on pods.
pub(super) struct PodMailboxes {
    /// The manager's mailbox; the node's handles have the sender.
    pub(super) manager: Inbox<ManagerEvent>,
    /// Sender to PLEG for the containers' states that effects observed.
    pub(super) to_pleg: Sender<PlegEvent>,
    /// PLEG's own end.
    pub(super) pleg: Inbox<PlegEvent>,
}

/// The mailboxes, and the handles that lead to them.
pub(super) struct Wiring {
    /// Handles that every owner may use.
    pub(super) node: NodeHandles,
    /// Pods' statuses.
    pub(super) statuses: StatusStore,
    /// Mailboxes of the pods' part.
    pub(super) pods: PodMailboxes,
    /// Mailboxes of the owners that call the API server; `None` on a standalone node.
    pub(super) cluster: Option<Mailboxes>,
    /// The node's shutdown; `None` if the machine does not wait for pods.
    pub(super) shutdown: Option<Shutdown>,
    /// `None` if the configuration has no threshold, or the node has no signals.
    pub(super) eviction: Option<PreparedEviction>,
}

impl Wiring {
    /// All mailboxes, empty.
    pub(super) fn new(
        plan: &Plan,
        senses: Option<Arc<dyn Senses>>,
        in_cluster: bool,
        metrics: &Metrics,
        tasks: &Tasks,
    ) -> Wiring {
        let (manager, manager_inbox) = tasks.mailbox();
        let statuses = StatusStore::default();
        let shutdown = plan.shutdown.clone().map(|plan| Shutdown::new(plan, tasks));
        let to_shutdown = || shutdown.as_ref().map(Shutdown::sender);
        let eviction = eviction::prepare(plan.eviction.clone(), senses, tasks);
        let cluster = in_cluster.then(|| Mailboxes::new(tasks, to_shutdown()));
        let node_events = NodeEvents::new(
            statuses.clone(),
            metrics.clone(),
            cluster.as_ref().map(Mailboxes::node_events),
            to_shutdown(),
            eviction.as_ref().map(PreparedEviction::sender),
        );
        metrics.shutdown(shutdown.as_ref().and_then(Shutdown::last));
        let node = NodeHandles { manager, node_events, tasks: tasks.clone() };
        let (to_pleg, pleg) = tasks.mailbox();
        let pods = PodMailboxes { manager: manager_inbox, to_pleg, pleg };
        Wiring { node, statuses, pods, cluster, shutdown, eviction }
    }
}
