//! One incarnation of the node agent in the simulated world: the real machines, wired without a runtime.
//!
//! In: [`NodeEvent`]. Out: [`NodeRequest`]s in order. It is dropped at a crash and made anew; what it knew is
//! gone, as in production. [`Defect`] breaks it on purpose, to prove that each checker can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use agent_core::admission::AdmissionContext;
use agent_core::machine::{EffectId, Machine, Outbox};
use agent_core::pleg::{Config as PlegConfig, Pleg, PlegAction, PlegEvent};
use agent_core::pod_manager::{Beginning, Leftovers, ManagerAction, ManagerEvent, PodManager};
use agent_core::pod_source::{PodOp, PodUpdate, Source};
use agent_core::pod_worker::{EventFact, PodAction, PodEvent, PodWorker, TerminatingRecord, WorkerContext};
use agent_core::runtime::effect::{Effect, EffectOk, EffectResult};
use agent_core::runtime::{PodKey, PodUid};
use agent_core::time::{Mono, Now};

use crate::trace::brief;
use k8s_openapi::api::core::v1::{Pod, PodStatus};

/// A deliberate fault in the agent, one for each checker.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Defect {
    /// Starts a second instance beside the first (ONE-LIVE).
    StartsTwice,
    /// Runs a second sandbox beside the first (ONE-SANDBOX).
    SandboxTwice,
    /// Starts a container of a pod that is being taken down (ABSORB-TERM).
    StartsWhileTerminating,
    /// Says that a pod is finished while it still runs (NO-OUTLIVE).
    FinishesEarly,
    /// Restarts what exited at once (BACKOFF).
    IgnoresBackOff,
    /// Stops a container whenever it starts up (RESTART-TRANSPARENT).
    StopsOnStart,
    /// Asks and asks (BOUNDED).
    AsksForEver,
}

/// What happens to the agent.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// Its first moment: the pods of the manifest directory.
    Start(Vec<Arc<Pod>>),
    /// A manifest appeared or changed.
    Desired(Arc<Pod>),
    /// A manifest is gone.
    Removed(Arc<Pod>),
    /// An answer.
    Reply {
        /// Whose.
        uid: PodUid,
        /// To what.
        id: EffectId,
        /// The answer.
        result: EffectResult,
    },
    /// For PLEG: the event stream, and the answers to its questions.
    Pleg(PlegEvent),
    /// The timer.
    Tick,
}

impl fmt::Debug for NodeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeRequest::Effect { key, id, effect, .. } => {
                write!(f, "  -> {} #{} {}", key.uid, id.0, brief(effect))
            }
            NodeRequest::Persist { id, record } => write!(f, "  -> {} #{} persist", record.pod.uid, id.0),
            NodeRequest::Inspect(uid) => write!(f, "  -> {uid} pleg inspect"),
            NodeRequest::Relist => f.write_str("  -> pleg relist"),
            NodeRequest::Status(key, s) => write!(f, "  -> {} is {:?}", key.uid, s.phase),
            NodeRequest::Event(key, e) => write!(f, "  -> {} event {} {}", key.uid, e.reason, e.message),
            NodeRequest::Worker { uid, state, in_flight } => {
                write!(f, "  -> {uid} {state}, {in_flight} in flight")
            }
        }
    }
}

/// What the agent wants.
#[derive(Clone)]
pub enum NodeRequest {
    /// An effect of a pod worker.
    Effect {
        /// Whose.
        key: PodKey,
        /// To be sent back.
        id: EffectId,
        /// What.
        effect: Effect,
        /// No call may be in progress after it.
        deadline: Option<Mono>,
    },
    /// A durable write of a pod worker.
    Persist {
        /// To be sent back.
        id: EffectId,
        /// What.
        record: TerminatingRecord,
    },
    /// PLEG looks at one pod.
    Inspect(PodUid),
    /// PLEG lists all pods.
    Relist,
    /// A status was published.
    Status(PodKey, Box<PodStatus>),
    /// A Kubernetes event was recorded.
    Event(PodKey, EventFact),
    /// A worker's state after a step.
    Worker {
        /// Whose.
        uid: PodUid,
        /// `PodWorker::state_name`.
        state: &'static str,
        /// Effects not answered yet.
        in_flight: usize,
    },
}

/// The agent.
pub struct Node {
    context: Arc<WorkerContext>,
    manager: PodManager,
    pleg: Pleg,
    workers: BTreeMap<PodUid, PodWorker>,
    defect: Option<Defect>,
    out: Vec<NodeRequest>,
}

impl Node {
    /// A fresh incarnation and what the last one left on disk.
    #[must_use]
    pub fn new(context: Arc<WorkerContext>, leftovers: Leftovers, defect: Option<Defect>) -> Node {
        let admission =
            Arc::new(AdmissionContext { node_name: "node".to_owned(), ..AdmissionContext::default() });
        Node {
            context,
            manager: PodManager::new(BTreeSet::from([Source::File]), leftovers, admission, Ok(())),
            pleg: Pleg::new(PlegConfig::default()),
            workers: BTreeMap::new(),
            defect,
            out: Vec::new(),
        }
    }

    /// Absorbs one event.
    pub fn handle(&mut self, now: Now, event: NodeEvent) -> Vec<NodeRequest> {
        match event {
            NodeEvent::Start(pods) => {
                self.source(now, PodOp::Add, pods);
                self.pleg(now, PlegEvent::Tick);
            }
            NodeEvent::Desired(pod) => self.source(now, PodOp::Add, vec![pod]),
            NodeEvent::Removed(pod) => self.source(now, PodOp::Remove, vec![pod]),
            NodeEvent::Reply { uid, id, result } => self.reply(now, &uid, id, result),
            NodeEvent::Pleg(event) => self.pleg(now, event),
            NodeEvent::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// The nearest timer of any machine.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        self.workers.values().filter_map(Machine::deadline).chain(self.pleg.deadline()).min()
    }

    /// Workers alive, for leak checks.
    #[must_use]
    pub fn workers(&self) -> &BTreeMap<PodUid, PodWorker> {
        &self.workers
    }

    fn source(&mut self, now: Now, op: PodOp, pods: Vec<Arc<Pod>>) {
        self.manage(now, ManagerEvent::Update(PodUpdate { source: Source::File, op, pods }));
    }

    fn reply(&mut self, now: Now, uid: &PodUid, id: EffectId, result: EffectResult) {
        if let Ok(EffectOk::Snapshot(snapshot)) = &result {
            self.pleg(now, PlegEvent::Inspected(Arc::from(snapshot.clone())));
        }
        self.step(now, uid, PodEvent::EffectDone { id, completed_at: now.mono, result });
    }

    fn pleg(&mut self, now: Now, event: PlegEvent) {
        let listed = match &event {
            PlegEvent::Listed { result: Ok(pods), .. } => Some(pods.iter().map(|p| p.pod.clone()).collect()),
            _ => None,
        };
        let mut actions = Outbox::new();
        self.pleg.step(now, event, &mut actions);
        if let Some(pods) = listed {
            self.manage(now, ManagerEvent::Listed(pods));
        }
        for action in actions.drain() {
            match action {
                PlegAction::Relist => self.out.push(NodeRequest::Relist),
                PlegAction::Inspect { uid } => self.out.push(NodeRequest::Inspect(uid)),
                PlegAction::Changed(snapshot) => self.manage(now, ManagerEvent::Changed(snapshot)),
            }
        }
    }

    fn manage(&mut self, now: Now, event: ManagerEvent) {
        let mut actions = Outbox::new();
        self.manager.step(now, event, &mut actions);
        for action in actions.drain() {
            match action {
                ManagerAction::Start { key, beginning, fence_until } => {
                    let context = self.context.clone();
                    let worker = match beginning {
                        Beginning::Fresh => PodWorker::new(key.clone(), context, fence_until),
                        Beginning::Resume(record) => PodWorker::resume(&record, context, fence_until, now),
                    };
                    self.workers.insert(key.uid.clone(), worker);
                    self.step(now, &key.uid, PodEvent::Tick);
                }
                ManagerAction::Tell { uid, event } => self.step(now, &uid, event),
                ManagerAction::Forget(uid) => {
                    self.workers.remove(&uid);
                }
                ManagerAction::Rejected { .. } | ManagerAction::Synced | ManagerAction::ReadNode => {}
            }
        }
    }

    fn tick(&mut self, now: Now) {
        let due = |w: &PodWorker| w.deadline().is_some_and(|d| d <= now.mono);
        let due: Vec<PodUid> = self.workers.iter().filter(|(_, w)| due(w)).map(|(u, _)| u.clone()).collect();
        for uid in due {
            self.step(now, &uid, PodEvent::Tick);
        }
        if self.pleg.deadline().is_some_and(|d| d <= now.mono) {
            self.pleg(now, PlegEvent::Tick);
        }
    }

    fn step(&mut self, now: Now, uid: &PodUid, event: PodEvent) {
        let mut actions = Outbox::new();
        let Some(worker) = self.workers.get_mut(uid) else { return };
        worker.step(now, event, &mut actions);
        let key = worker.key().clone();
        let (state, in_flight) = (worker.state_name(), worker.in_flight());
        self.out.push(NodeRequest::Worker { uid: uid.clone(), state, in_flight });
        let ended = worker.is_terminated();
        for action in actions.drain() {
            self.act(now, &key, action);
        }
        if ended {
            self.manage(now, ManagerEvent::Ended(uid.clone()));
        }
    }

    fn act(&mut self, now: Now, key: &PodKey, action: PodAction) {
        match action {
            PodAction::Effect { id, effect, deadline } => {
                self.misbehave(key, &effect, deadline);
                self.out.push(NodeRequest::Effect { key: key.clone(), id, effect, deadline });
            }
            // This shell cannot cancel: the real answer comes.
            PodAction::Cancel(_) => {}
            PodAction::Persist { id, record } => self.out.push(NodeRequest::Persist { id, record }),
            PodAction::PublishStatus(status) => self.out.push(NodeRequest::Status(key.clone(), status)),
            PodAction::Event(fact) => self.out.push(NodeRequest::Event(key.clone(), fact)),
            PodAction::Finished { .. } => self.manage(now, ManagerEvent::Finished(key.uid.clone())),
        }
    }

    /// Adds what the configured defect would do beside a correct `effect`.
    fn misbehave(&mut self, key: &PodKey, effect: &Effect, deadline: Option<Mono>) {
        // Ids that no worker ever opens: their answers are ignored.
        let mut also = |effect: Effect| {
            let id = EffectId(u64::MAX);
            self.out.push(NodeRequest::Effect { key: key.clone(), id, effect, deadline });
        };
        match (self.defect, effect) {
            (Some(Defect::SandboxTwice), Effect::RunSandbox { config }) => {
                let mut config = config.clone();
                config.attempt += 1;
                also(Effect::RunSandbox { config });
            }
            (Some(Defect::StartsWhileTerminating), Effect::StopContainer { container, .. }) => {
                also(Effect::StartContainer { container: container.clone() });
            }
            (Some(Defect::FinishesEarly), Effect::StopContainer { .. }) => {
                let uid = key.uid.clone();
                self.out.push(NodeRequest::Worker { uid, state: "finished", in_flight: 0 });
            }
            (Some(Defect::AsksForEver), Effect::RunSandbox { .. }) => {
                let looks = (0..20_000).map(|_| NodeRequest::Inspect(key.uid.clone()));
                self.out.extend(looks);
            }
            _ => {}
        }
    }
}

/// Name, namespace and UID of a pod with complete metadata.
#[must_use]
pub fn key_of(pod: &Pod) -> PodKey {
    let m = &pod.metadata;
    PodKey {
        namespace: Arc::from(m.namespace.as_deref().unwrap_or("default")),
        name: Arc::from(m.name.as_deref().unwrap_or_default()),
        uid: PodUid::from(m.uid.as_deref().unwrap_or_default()),
    }
}
