//! The shell of the machine of updates: starts its steps, passes on what it shows and says.
//!
//! In: the machine's actions. Out: one answer for each step; words for the guard; the Node's conditions, labels and annotations; events;
//! lines on the consoles; metrics. Decisions are in [`agent_core::node_update`].

use std::sync::Arc;

use agent_core::console::problem::ShownProblem;
use agent_core::console::text::clean;
use agent_core::events::Fact;
use agent_core::node_update::plan::UpdatePhase;
use agent_core::node_update::report::{UpdateNotice, UpdateShown};
use agent_core::node_update::watch::TrialDecision;
use agent_core::node_update::{NodeUpdate, UpdateAction, UpdateEvent};
use agent_types::api::ApiServer;
use agent_types::event::EventKind;
use agent_types::time::{Mono, Now};
use orlop_config::ledger::HostMessage;
use orlop_config::release::ReleaseVersion;
use tokio::sync::watch;

use super::gate::GateWish;
use super::problems;
use super::words::{NewestWord, word};
use super::worker::UpdateWorker;
use crate::node::host_channel::Host;
use crate::node::node_events::NodeEvents;
use crate::tasks::actor::Shell;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// Longest line on the consoles, characters.
const LINE_CHARS_MAX: usize = 480;

/// The machine's surroundings.
pub struct UpdateShell<A> {
    /// Its own mailbox, for answers.
    pub own: Sender<UpdateEvent>,
    /// Carries out the steps.
    pub worker: Arc<UpdateWorker<A>>,
    /// Conditions, labels, events and metrics.
    pub node_events: NodeEvents,
    /// Host and consoles.
    pub host: Host,
    /// For the guard of a trial.
    pub words: NewestWord,
    /// For the management API.
    pub problems: watch::Sender<Vec<ShownProblem>>,
    /// Whether the gate is wanted.
    pub wish: watch::Sender<GateWish>,
    /// What the updater has to stage.
    pub stage: watch::Sender<Option<ReleaseVersion>>,
    /// There is a server that a named version can be asked for.
    pub has_source: bool,
    /// The decision that was logged last.
    pub decided: Option<TrialDecision>,
    /// The phase that was logged last.
    pub phase: Option<UpdatePhase>,
}

impl<A: ApiServer> Shell for UpdateShell<A> {
    type Machine = NodeUpdate;

    fn tick(&self) -> UpdateEvent {
        UpdateEvent::Tick
    }

    fn perform(&mut self, now: Now, action: UpdateAction) {
        match action {
            UpdateAction::Do { step, work } => {
                let (own, worker) = (self.own.clone(), Arc::clone(&self.worker));
                self.worker.tasks.start(async move {
                    let result = worker.work(work, now.wall).await;
                    own.send(UpdateEvent::Answered { step, result });
                });
            }
            UpdateAction::Trial(decision) => self.decided(now, decision),
            UpdateAction::Show(shown) => {
                self.problems.send_replace(problems::shown(shown.failed.as_deref()));
                // An image that was written to a disk has a record that does not know its version yet.
                let is_known = !shown.version.is_empty();
                let version = if is_known { shown.version } else { self.worker.slots.version().to_owned() };
                self.node_events.update(UpdateShown { version, ..shown });
            }
            UpdateAction::Event(notice) => self.say(notice),
        }
    }

    fn after(&mut self, _now: Now, machine: &NodeUpdate) -> bool {
        let phase = machine.plan().phase;
        if self.phase != Some(phase) {
            tracing::info!(update = machine.plan().update, ?phase, "update of the node");
            self.node_events.metrics().update_phase(phase);
            self.phase = Some(phase);
        }
        let wish = GateWish::of(machine);
        self.wish.send_if_modified(|known| std::mem::replace(known, wish) != wish);
        let named = machine.to_stage().filter(|_| self.has_source);
        let version = named.and_then(|version| version.parse::<ReleaseVersion>().ok());
        self.stage.send_if_modified(|known| std::mem::replace(known, version) != version);
        true
    }
}

impl<A> UpdateShell<A> {
    fn decided(&mut self, now: Now, decision: TrialDecision) {
        if self.decided.as_ref() != Some(&decision) {
            tracing::info!(?decision, "the version on trial");
        }
        // The guard hears of the agent with each decision, also of an equal one.
        self.words.send_replace(Some(word(now.mono.since(Mono(0)), &decision)));
        self.decided = Some(decision);
    }

    fn say(&self, notice: UpdateNotice) {
        let UpdateNotice { kind, reason, message } = notice;
        let result = match reason {
            "UpdateCommitted" => Some("committed"),
            "UpdateRolledBack" => Some("rolled-back"),
            "UpdateRefused" => Some("refused"),
            _ => None,
        };
        if let Some(result) = result {
            self.node_events.metrics().update_ended(result);
        }
        let is_warning = matches!(kind, EventKind::Warning);
        if is_warning {
            self.host.tell(HostMessage::Problem { source: "update".to_owned(), message: message.clone() });
        }
        if let Some(console) = self.host.console() {
            let line = clean(&format!("update: {reason}: {message}"), LINE_CHARS_MAX);
            // A full queue loses the line; the event has it.
            let _ = console.update(is_warning, line);
        }
        self.node_events.of_node(Fact::of_node(kind, reason, message));
    }
}

impl Coalesce for UpdateEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (UpdateEvent::Record(_), UpdateEvent::Record(_))
            | (UpdateEvent::Gate { .. }, UpdateEvent::Gate { .. })
            | (UpdateEvent::Orders(_), UpdateEvent::Orders(_))
            | (UpdateEvent::Tick, UpdateEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}
