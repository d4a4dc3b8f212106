//! The shell of the pod manager: makes workers and knows their mailboxes.
//!
//! In: the manager's actions. Out: worker actors, events in their mailboxes, readiness. See
//! [`agent_core::pod_manager`] for the decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_core::drivers::{ImageService, Runtime};
use agent_core::pod_manager::{Beginning, ManagerAction, ManagerEvent, PodManager};
use agent_core::pod_worker::{PodEvent, PodWorker, WorkerContext};
use agent_core::runtime::{PodKey, PodUid};
use agent_core::time::{Mono, Now};
use tokio::sync::watch;

use crate::actor::{Shell, Tasks};
use crate::execute::Executor;
use crate::mailbox::{Coalesce, Relation, Sender};
use crate::status::StatusStore;
use crate::worker::WorkerShell;

/// The manager's surroundings.
pub struct ManagerShell<R, I> {
    tasks: Tasks,
    executor: Executor<R, I>,
    own: Sender<ManagerEvent>,
    statuses: StatusStore,
    workers: BTreeMap<PodUid, Sender<PodEvent>>,
    context: watch::Receiver<Arc<WorkerContext>>,
    synced: watch::Sender<bool>,
}

impl<R: Runtime, I: ImageService> ManagerShell<R, I> {
    /// `own` is the manager's own mailbox, for workers; `synced` becomes true when all is known.
    #[must_use]
    pub fn new(
        tasks: Tasks,
        executor: Executor<R, I>,
        own: Sender<ManagerEvent>,
        statuses: StatusStore,
        context: watch::Receiver<Arc<WorkerContext>>,
        synced: watch::Sender<bool>,
    ) -> ManagerShell<R, I> {
        ManagerShell { tasks, executor, own, statuses, workers: BTreeMap::new(), context, synced }
    }

    fn start(&mut self, key: PodKey, beginning: Beginning, fence_until: Mono, now: Now) {
        let context = self.context.borrow().clone();
        let (own, inbox) = self.tasks.mailbox();
        let worker = match beginning {
            Beginning::Fresh => PodWorker::new(key.clone(), context, fence_until),
            Beginning::Resume(record) => PodWorker::resume(&record, context, fence_until, now),
        };
        let shell = WorkerShell::new(
            key.clone(),
            self.executor.clone(),
            own.clone(),
            self.own.clone(),
            self.statuses.clone(),
        );
        self.tasks.own(worker, shell, inbox);
        // A resumed worker goes on by itself.
        own.send(PodEvent::Tick);
        self.workers.insert(key.uid, own);
    }
}

impl<R: Runtime, I: ImageService> Shell for ManagerShell<R, I> {
    type Machine = PodManager;

    fn tick(&self) -> ManagerEvent {
        ManagerEvent::Tick
    }

    fn perform(&mut self, now: Now, action: ManagerAction) {
        match action {
            ManagerAction::Start { key, beginning, fence_until } => {
                self.start(key, beginning, fence_until, now);
            }
            ManagerAction::Tell { uid, event } => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.send(event);
                }
            }
            ManagerAction::Rejected { key, rejection } => tracing::warn!(
                pod = %key.name, namespace = %key.namespace, uid = %key.uid,
                reason = rejection.reason, message = rejection.message, "event"
            ),
            ManagerAction::Forget(uid) => {
                self.workers.remove(&uid);
            }
            ManagerAction::Synced => {
                tracing::info!("sources read and runtime listed");
                self.synced.send_replace(true);
            }
        }
    }
}

impl Coalesce for ManagerEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ManagerEvent::Network(_), ManagerEvent::Network(_))
            | (ManagerEvent::Context(_), ManagerEvent::Context(_))
            | (ManagerEvent::Admission(_), ManagerEvent::Admission(_))
            | (ManagerEvent::Tick, ManagerEvent::Tick) => Relation::Supersedes,
            (ManagerEvent::Changed(a), ManagerEvent::Changed(b))
                if a.pod.uid == b.pod.uid && a.as_of <= b.as_of =>
            {
                Relation::Supersedes
            }
            _ => Relation::Independent,
        }
    }
}
