//! The node lease's surroundings.
//!
//! In: the Node's UID. Out: calls; log lines at the first failure and when it works again. Decisions are in
//! [`agent_core::lease`].

use std::sync::Arc;

use agent_core::api::ApiServer;
use agent_core::lease::{LeaseAction, LeaseEvent, LeaseFact, NodeLease};
use agent_core::time::Now;
use tokio::sync::Notify;

use super::calls::Caller;
use crate::actor::Shell;
use crate::mailbox::{Coalesce, Relation, Sender};

/// The lease's surroundings.
pub struct LeaseShell<A> {
    caller: Caller<A>,
    own: Sender<LeaseEvent>,
    /// Asks for new connections.
    reconnect: Arc<Notify>,
    failing: bool,
}

impl<A> LeaseShell<A> {
    /// `own` is the lease's own mailbox, for answers.
    #[must_use]
    pub fn new(caller: Caller<A>, own: Sender<LeaseEvent>, reconnect: Arc<Notify>) -> LeaseShell<A> {
        LeaseShell { caller, own, reconnect, failing: false }
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
                if std::mem::replace(&mut self.failing, false) {
                    tracing::info!("node lease is renewed again");
                }
            }
            LeaseAction::Fact(LeaseFact::Failed { message }) => {
                if std::mem::replace(&mut self.failing, true) {
                    tracing::debug!(message, "node lease not renewed");
                } else {
                    tracing::warn!(message, "node lease not renewed; retried until it is");
                }
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
