//! The shell of the event recorder: sends its calls to the API server, and logs the events that it drops.
//!
//! In: facts about pods and the node. Out: calls. Decisions are in [`agent_core::events`].

use agent_core::events::{Recorder, RecorderAction, RecorderEvent, RecorderReport};
use agent_types::api::ApiServer;
use agent_types::time::Now;

use super::calls::Caller;
use crate::tasks::actor::Shell;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// The recorder's surroundings.
pub struct RecorderShell<A> {
    /// The way to the API server.
    pub caller: Caller<A>,
    /// Its own mailbox, for answers.
    pub own: Sender<RecorderEvent>,
}

impl<A: ApiServer> Shell for RecorderShell<A> {
    type Machine = Recorder;

    fn tick(&self) -> RecorderEvent {
        RecorderEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: RecorderAction) {
        match action {
            RecorderAction::Call { id, call } => {
                let own = self.own.clone();
                self.caller.send(call, move |result| {
                    own.send(RecorderEvent::Answer { id, result });
                });
            }
            RecorderAction::Report(RecorderReport::Dropped(count)) => {
                tracing::warn!(count, "events dropped: more than the API server takes");
            }
            RecorderAction::Report(RecorderReport::Refused(error)) => {
                tracing::warn!(%error, "event not recorded");
            }
        }
    }
}

impl Coalesce for RecorderEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (RecorderEvent::Tick, RecorderEvent::Tick) => Relation::Supersedes,
            // The recorder bounds its memory; the mailbox only keeps the order.
            _ => Relation::Independent,
        }
    }
}
