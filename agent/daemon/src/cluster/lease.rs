//! The shell of the node lease.
//!
//! In: the Node's UID. Out: calls; the lease's problem for `ClusterProblems`. Decisions are in [`agent_core::lease`].

use std::sync::Arc;
use std::sync::atomic::{AtomicU32, Ordering};

use agent_core::lease::{LeaseAction, LeaseEvent, LeaseFact, NodeLease};
use agent_types::api::ApiServer;
use agent_types::time::Now;
use tokio::sync::Notify;

use super::calls::Caller;
use crate::node::cluster_problems::{ClusterProblems, Part};
use crate::tasks::actor::Shell;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// The lease's surroundings.
pub struct LeaseShell<A> {
    caller: Caller<A>,
    own: Sender<LeaseEvent>,
    /// Asks for new connections.
    reconnect: Arc<Notify>,
    cluster_problems: ClusterProblems,
    /// Renewals since the agent began; read without a lock.
    renewals: Arc<AtomicU32>,
}

impl<A> LeaseShell<A> {
    /// `own` is the lease's own mailbox, for answers; `renewals` counts.
    #[must_use]
    pub fn new(
        caller: Caller<A>,
        own: Sender<LeaseEvent>,
        reconnect: Arc<Notify>,
        cluster_problems: ClusterProblems,
        renewals: Arc<AtomicU32>,
    ) -> LeaseShell<A> {
        LeaseShell { caller, own, reconnect, cluster_problems, renewals }
    }
}

impl<A: ApiServer> Shell for LeaseShell<A> {
    type Machine = NodeLease;

    fn tick(&self) -> LeaseEvent {
        LeaseEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: LeaseAction) {
        match action {
            LeaseAction::Call { id, call } => {
                let own = self.own.clone();
                self.caller.send(call, move |result| {
                    own.send(LeaseEvent::Answered { id, result });
                });
            }
            LeaseAction::CloseConnections => self.reconnect.notify_one(),
            LeaseAction::Fact(LeaseFact::Created | LeaseFact::Renewed) => {
                self.cluster_problems.say(Part::Lease, "");
                self.renewals.fetch_add(1, Ordering::Relaxed);
            }
            LeaseAction::Fact(LeaseFact::Failed { message }) => {
                self.cluster_problems.say(Part::Lease, &format!("node lease not renewed: {message}"));
            }
        }
    }
}

impl Coalesce for LeaseEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (LeaseEvent::Registered { .. }, LeaseEvent::Registered { .. })
            | (LeaseEvent::Tick, LeaseEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}
