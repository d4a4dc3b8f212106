//! The shell of one pod worker: its effects, its status, its events, its end.
//!
//! In: the worker's actions. Out: effects started, statuses and Kubernetes events in `NodeEvents`, and
//! [`ManagerEvent::Finished`] when the pod has no containers and no files any more. See [`agent_core::pod_worker`].

use std::collections::BTreeMap;

use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_worker::effect::Effect;
use agent_core::pod_worker::{PodAction, PodEvent, PodWorker};
use agent_core::probe::{ProbeCall, ProbeId};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::EffectId;
use agent_types::time::{Mono, Now};
use tokio_util::sync::CancellationToken;

use crate::node::node_events::NodeEvents;
use crate::pods::execute::Executor;
use crate::serving::metrics::{Lifecycle, Round};
use crate::tasks::actor::Shell;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// The shell of one pod worker.
pub struct WorkerShell<R, I> {
    key: PodKey,
    executor: Executor<R, I>,
    own: Sender<PodEvent>,
    manager: Sender<ManagerEvent>,
    node_events: NodeEvents,
    /// The cancellation of each effect in progress.
    cancels: BTreeMap<EffectId, Cancel>,
    /// The same for each probe in progress.
    probes: BTreeMap<ProbeId, RunningProbe>,
    rounds: Rounds,
    state: &'static str,
    ended: bool,
    released: bool,
    /// The worker was requested to remove dead containers, and has not finished.
    stripping: bool,
    finished: bool,
}

/// How an effect in progress is cancelled.
enum Cancel {
    /// The executor performs the effect.
    Token(CancellationToken),
    /// The pod manager allocates devices.
    Manager,
}

impl Cancel {
    /// Cancels effect `id` of the pod; the answer is what the pod manager has to learn.
    fn cancel(&self, uid: &PodUid, id: EffectId) -> Option<ManagerEvent> {
        match self {
            Cancel::Token(token) => {
                token.cancel();
                None
            }
            Cancel::Manager => Some(ManagerEvent::GiveUpStart { uid: uid.clone(), id }),
        }
    }
}

/// A probe that is being asked.
struct RunningProbe {
    cancel: CancellationToken,
    call: Box<ProbeCall>,
    since: Mono,
}

/// Rounds of work: from the first call for the pod until none is under way.
#[derive(Default)]
struct Rounds {
    since: Option<Mono>,
    /// The round's subject, known once the step that began it is over.
    about: Option<Round>,
    /// The first round is over.
    created: bool,
    /// This step changed the pod's spec.
    updated: bool,
}

impl Rounds {
    fn before(&mut self, event: &PodEvent) {
        self.updated = matches!(event, PodEvent::Desired(_));
    }

    fn begin(&mut self, now: Mono) {
        self.since.get_or_insert(now);
    }

    /// After a step; a round that is over, and how long it took.
    fn after(&mut self, now: Mono, state: &str, idle: bool) -> Option<(Round, std::time::Duration)> {
        let since = self.since?;
        let about = *self.about.get_or_insert(match (Lifecycle::of(state), self.created, self.updated) {
            (Lifecycle::Terminating, ..) => Round::Kill,
            (Lifecycle::Terminated, ..) => Round::Terminated,
            (Lifecycle::Sync, false, _) => Round::Create,
            (Lifecycle::Sync, true, true) => Round::Update,
            (Lifecycle::Sync, true, false) => Round::Sync,
        });
        if !idle {
            return None;
        }
        *self = Rounds { created: true, ..Rounds::default() };
        Some((about, now.since(since)))
    }
}

impl<R, I> WorkerShell<R, I> {
    /// `own` is the worker's own mailbox, for answers.
    #[must_use]
    pub fn new(
        key: PodKey,
        executor: Executor<R, I>,
        own: Sender<PodEvent>,
        manager: Sender<ManagerEvent>,
        node_events: NodeEvents,
    ) -> WorkerShell<R, I> {
        let cancels = BTreeMap::new();
        WorkerShell {
            key,
            executor,
            own,
            manager,
            node_events,
            cancels,
            probes: BTreeMap::new(),
            rounds: Rounds::default(),
            state: "",
            ended: false,
            released: false,
            stripping: false,
            finished: false,
        }
    }
}

impl<R, I> WorkerShell<R, I> {
    /// A container with memory of its own is created when the init containers before it have ended: the manager takes back their
    /// memory.
    fn report_creation(&self, effect: &Effect) {
        if let Effect::CreateContainer { config, .. } = effect
            && !config.resources.cpuset_mems.is_empty()
        {
            let (uid, container) = (self.key.uid.clone(), config.name.clone());
            self.manager.send(ManagerEvent::Creates { uid, container });
        }
    }
}

impl<R: Runtime, I: ImageService> Shell for WorkerShell<R, I> {
    type Machine = PodWorker;

    fn tick(&self) -> PodEvent {
        PodEvent::Tick
    }

    fn before(&mut self, now: Now, event: &PodEvent) {
        self.rounds.before(event);
        match event {
            PodEvent::DeleteUnused => self.stripping = true,
            PodEvent::EffectDone { id, .. } => drop(self.cancels.remove(id)),
            PodEvent::ProbeDone { id, outcome } => {
                if let Some(asked) = self.probes.remove(id) {
                    let took = now.mono.since(asked.since);
                    self.node_events.metrics().probed(&self.key, &asked.call, outcome, took);
                }
            }
            _ => {}
        }
    }

    fn perform(&mut self, now: Now, action: PodAction) {
        match action {
            PodAction::Effect { id, effect: Effect::AllocateDevices { container }, .. } => {
                self.rounds.begin(now.mono);
                // The pod manager answers, also if the worker cancels.
                self.cancels.insert(id, Cancel::Manager);
                self.manager.send(ManagerEvent::LacksDevices { uid: self.key.uid.clone(), container, id });
            }
            PodAction::Effect { id, effect, deadline } => {
                self.rounds.begin(now.mono);
                let cancel = CancellationToken::new();
                self.cancels.insert(id, Cancel::Token(cancel.clone()));
                self.report_creation(&effect);
                self.executor.start(&self.key, id, effect, deadline, cancel, self.own.clone());
            }
            PodAction::Cancel(id) => {
                let cancel = self.cancels.get(&id);
                if let Some(event) = cancel.and_then(|cancel| cancel.cancel(&self.key.uid, id)) {
                    self.manager.send(event);
                }
            }
            PodAction::Probe { id, call } => {
                let cancel = CancellationToken::new();
                let asked = RunningProbe { cancel: cancel.clone(), call: call.clone(), since: now.mono };
                self.probes.insert(id, asked);
                self.executor.probe(id, *call, cancel, self.own.clone());
            }
            PodAction::CancelProbe(id) => {
                if let Some(asked) = self.probes.remove(&id) {
                    asked.cancel.cancel();
                }
            }
            PodAction::Persist { id, record } => self.executor.persist(id, record, self.own.clone()),
            PodAction::PublishStatus(status) => self.node_events.published(&self.key, status),
            PodAction::Actuated(pod) => drop(self.manager.send(ManagerEvent::Actuated(pod))),
            PodAction::Event(fact) => self.node_events.event(&self.key, &fact),
            PodAction::Finished { .. } => self.finished = true,
        }
    }

    fn after(&mut self, now: Now, worker: &PodWorker) -> bool {
        if let Some((about, took)) = self.rounds.after(now.mono, worker.state_name(), self.cancels.is_empty())
        {
            self.node_events.metrics().round(about, took);
        }
        if worker.state_name() != self.state {
            self.state = worker.state_name();
            self.node_events.metrics().worker_is(&self.key.uid, Lifecycle::of(self.state));
            tracing::info!(
                pod = %self.key.name, namespace = %self.key.namespace, uid = %self.key.uid, state = self.state,
                "pod worker"
            );
        }
        if worker.is_terminated() && !std::mem::replace(&mut self.ended, true) {
            // The pod needs no resources any more, even if it is kept until its deletion.
            self.manager.send(ManagerEvent::Ended(self.key.uid.clone()));
            self.node_events.terminated(&self.key);
            self.node_events.metrics().probes_over(&self.key);
        }
        if worker.is_released() && !std::mem::replace(&mut self.released, true) {
            self.node_events.released(&self.key.uid);
        }
        if self.stripping && worker.is_stripped() {
            self.stripping = false;
            self.manager.send(ManagerEvent::Stripped(self.key.uid.clone()));
        }
        if self.finished {
            self.node_events.finished(&self.key);
            self.manager.send(ManagerEvent::Finished(self.key.uid.clone()));
        }
        !self.finished
    }
}

impl Coalesce for PodEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (PodEvent::Desired(_), PodEvent::Desired(_))
            | (PodEvent::Network(_), PodEvent::Network(_))
            | (PodEvent::Context(_), PodEvent::Context(_))
            | (PodEvent::ResizePending(_), PodEvent::ResizePending(_))
            | (PodEvent::Placed(_), PodEvent::Placed(_))
            | (PodEvent::ClaimsChanged(_), PodEvent::ClaimsChanged(_))
            | (PodEvent::SourcesChanged, PodEvent::SourcesChanged)
            | (PodEvent::DeleteUnused, PodEvent::DeleteUnused)
            | (PodEvent::Tick, PodEvent::Tick) => Relation::Supersedes,
            (PodEvent::Observed(a), PodEvent::Observed(b)) if a.as_of <= b.as_of => Relation::Supersedes,
            (PodEvent::Kill { reason: a, grace_s: g }, PodEvent::Kill { reason: b, grace_s: h })
                if (a, g) == (b, h) =>
            {
                Relation::Supersedes
            }
            // A new spec and a termination must keep their order.
            (PodEvent::Desired(_), PodEvent::Kill { .. }) | (PodEvent::Kill { .. }, PodEvent::Desired(_)) => {
                Relation::Ordered
            }
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_types::kill::KillReason;
    use std::sync::Arc;

    #[test]
    fn rounds_of_work() {
        let at = |s: u64| Mono(s * 1_000_000_000);
        let took = |about, s| Some((about, std::time::Duration::from_secs(s)));
        let mut rounds = Rounds::default();
        rounds.before(&PodEvent::Desired(Arc::default()));
        assert_eq!(rounds.after(at(1), "pending", true), None, "nothing was called");
        rounds.begin(at(1));
        assert_eq!(rounds.after(at(1), "syncing", false), None);
        rounds.begin(at(3));
        assert_eq!(rounds.after(at(4), "syncing", true), took(Round::Create, 3));
        rounds.before(&PodEvent::Desired(Arc::default()));
        rounds.begin(at(5));
        assert_eq!(rounds.after(at(5), "syncing", false), None);
        rounds.before(&PodEvent::Tick);
        assert_eq!(rounds.after(at(7), "terminating", true), took(Round::Update, 2), "as it began");
        for (state, about) in
            [("syncing", Round::Sync), ("terminating", Round::Kill), ("terminated", Round::Terminated)]
        {
            rounds.before(&PodEvent::Tick);
            rounds.begin(at(8));
            assert_eq!(rounds.after(at(9), state, true), took(about, 1));
        }
    }

    #[test]
    fn a_cancelled_effect_ends_where_it_is_performed() {
        let (uid, token) = (PodUid::from("u"), CancellationToken::new());
        assert!(Cancel::Token(token.clone()).cancel(&uid, EffectId(7)).is_none());
        assert!(token.is_cancelled());
        let told = Cancel::Manager.cancel(&uid, EffectId(7));
        assert!(matches!(&told, Some(ManagerEvent::GiveUpStart { uid: of, id: EffectId(7) }) if *of == uid));
    }

    #[test]
    fn wanted_and_kill_keep_their_order() {
        let desired = || PodEvent::Desired(Arc::default());
        let kill = || PodEvent::Kill { reason: KillReason::Removed, grace_s: None };
        let orphan = PodEvent::Kill { reason: KillReason::Orphan, grace_s: None };
        assert_eq!(desired().relation(&desired()), Relation::Supersedes);
        assert_eq!(desired().relation(&kill()), Relation::Ordered);
        assert_eq!(kill().relation(&desired()), Relation::Ordered);
        assert_eq!(kill().relation(&kill()), Relation::Supersedes);
        assert_eq!(kill().relation(&orphan), Relation::Independent);
    }
}
