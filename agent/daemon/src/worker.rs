//! The shell of one pod worker: its effects, its status, its events, its end.
//!
//! In: the worker's actions. Out: effects started, statuses and Kubernetes events in their outlets, and
//! [`ManagerEvent::Finished`] when nothing of the pod is left. See [`agent_core::pod_worker`].

use std::collections::BTreeMap;

use agent_core::drivers::{ImageService, Runtime};
use agent_core::machine::EffectId;
use agent_core::pod_worker::{PodAction, PodEvent, PodWorker};
use agent_core::probe::ProbeId;
use agent_core::runtime::PodKey;
use agent_core::time::Now;
use tokio_util::sync::CancellationToken;

use crate::actor::Shell;
use crate::execute::Executor;
use crate::mailbox::{Coalesce, Relation, Sender};
use crate::outlets::Outlets;
use agent_core::pod_manager::ManagerEvent;

/// One pod worker's surroundings.
pub struct WorkerShell<R, I> {
    key: PodKey,
    executor: Executor<R, I>,
    own: Sender<PodEvent>,
    manager: Sender<ManagerEvent>,
    outlets: Outlets,
    /// For each effect in flight, what cancels it.
    cancels: BTreeMap<EffectId, CancellationToken>,
    /// The same for each probe that is being asked.
    probes: BTreeMap<ProbeId, CancellationToken>,
    state: &'static str,
    ended: bool,
    finished: bool,
}

impl<R, I> WorkerShell<R, I> {
    /// `own` is the worker's own mailbox, for answers.
    #[must_use]
    pub fn new(
        key: PodKey,
        executor: Executor<R, I>,
        own: Sender<PodEvent>,
        manager: Sender<ManagerEvent>,
        outlets: Outlets,
    ) -> WorkerShell<R, I> {
        let cancels = BTreeMap::new();
        WorkerShell {
            key,
            executor,
            own,
            manager,
            outlets,
            cancels,
            probes: BTreeMap::new(),
            state: "",
            ended: false,
            finished: false,
        }
    }
}

impl<R: Runtime, I: ImageService> Shell for WorkerShell<R, I> {
    type Machine = PodWorker;

    fn tick(&self) -> PodEvent {
        PodEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &PodEvent) {
        match event {
            PodEvent::EffectDone { id, .. } => drop(self.cancels.remove(id)),
            PodEvent::ProbeDone { id, .. } => drop(self.probes.remove(id)),
            _ => {}
        }
    }

    fn perform(&mut self, _now: Now, action: PodAction) {
        match action {
            PodAction::Effect { id, effect, deadline } => {
                let cancel = CancellationToken::new();
                self.cancels.insert(id, cancel.clone());
                self.executor.start(&self.key, (id, effect, deadline), cancel, self.own.clone());
            }
            PodAction::Cancel(id) => {
                if let Some(cancel) = self.cancels.get(&id) {
                    cancel.cancel();
                }
            }
            PodAction::Probe { id, call } => {
                let cancel = CancellationToken::new();
                self.probes.insert(id, cancel.clone());
                self.executor.probe(id, *call, cancel, self.own.clone());
            }
            PodAction::CancelProbe(id) => {
                if let Some(cancel) = self.probes.remove(&id) {
                    cancel.cancel();
                }
            }
            PodAction::Persist { id, record } => self.executor.persist(id, record, self.own.clone()),
            PodAction::PublishStatus(status) => self.outlets.published(&self.key, *status),
            PodAction::Event(fact) => self.outlets.event(&self.key, &fact),
            PodAction::Finished { .. } => self.finished = true,
        }
    }

    fn after(&mut self, _now: Now, worker: &PodWorker) -> bool {
        if worker.state_name() != self.state {
            self.state = worker.state_name();
            tracing::info!(
                pod = %self.key.name, namespace = %self.key.namespace, uid = %self.key.uid, state = self.state,
                "pod worker"
            );
        }
        if worker.is_terminated() && !std::mem::replace(&mut self.ended, true) {
            // It needs no room any more, even if it is kept until it is removed.
            self.manager.send(ManagerEvent::Ended(self.key.uid.clone()));
            self.outlets.terminated(&self.key.uid);
        }
        if self.finished {
            self.outlets.finished(&self.key);
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
            | (PodEvent::SourcesChanged, PodEvent::SourcesChanged)
            | (PodEvent::Tick, PodEvent::Tick) => Relation::Supersedes,
            (PodEvent::Observed(a), PodEvent::Observed(b)) if a.as_of <= b.as_of => Relation::Supersedes,
            (PodEvent::Kill { reason: a, grace_s: g }, PodEvent::Kill { reason: b, grace_s: h })
                if (a, g) == (b, h) =>
            {
                Relation::Supersedes
            }
            // "Wanted again" and "take it down" mean something else in another order.
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
    use agent_core::pod_worker::KillReason;
    use std::sync::Arc;

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
