//! One incarnation of the node agent in the simulated world: the real machines, wired without a runtime.
//!
//! In: [`NodeEvent`]. Out: [`NodeRequest`]s in order. A crash drops it, and a new one starts without its memory, as in
//! production. A [`Defect`] breaks it, to prove that each checker can fail.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt;
use std::sync::Arc;

use agent_core::admission::{AdmissionContext, NodeMarks};
use agent_core::allocation::Allocations;
use agent_core::node_shutdown::{NodeShutdown, ShutdownAction, ShutdownEvent};
use agent_core::node_status::NodeInput;
use agent_core::pleg::{Config as PlegConfig, Pleg, PlegAction, PlegEvent};
use agent_core::pod_manager::{Beginning, Leftovers, ManagerAction, ManagerEvent, PodManager};
use agent_core::pod_source::{PodOp, PodUpdate, Source};
use agent_core::pod_worker::effect::{Effect, EffectOk, EffectResult, Mounted};
use agent_core::pod_worker::{PodAction, PodEvent, PodWorker, WorkerContext};
use agent_core::probe::{Outcome, ProbeCall, ProbeId};
use agent_core::resource_managers::{DeviceAction, DeviceEvent, ManagerRecords};
use agent_types::Quantity;
use agent_types::api::{ApiCall, ApiReply, ApiResult, ObjectName};
use agent_types::event::EventFact;
use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::TerminatingRecord;
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::runtime::claims::PodClaims;
use agent_types::runtime::observed::{ContainerState, ListedPod};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

use crate::api_watch::WatchDelivery;
use crate::cluster::{Cluster, ClusterAction, NODE, Owner, PodNews};
use crate::defects::Defect;
use crate::devices::AgentDevices;
use crate::fake_runtime::state_number;
use crate::trace::{brief, brief_call};

/// Events of the agent.
#[derive(Clone, Debug)]
pub enum NodeEvent {
    /// The agent starts, with the pods of the manifest directory.
    Start(Vec<Arc<Pod>>),
    /// A manifest appeared or changed.
    Desired(Arc<Pod>),
    /// A manifest is gone.
    Removed(Arc<Pod>),
    /// The result of an effect.
    Reply {
        /// UID of the pod.
        uid: PodUid,
        /// Identifier of the request.
        id: EffectId,
        /// The result.
        result: EffectResult,
    },
    /// A container answered a probe.
    ProbeDone {
        /// UID of the pod.
        uid: PodUid,
        /// Identifier of the request.
        id: ProbeId,
        /// The result.
        outcome: Outcome,
    },
    /// The allocations are on disk (true), or could not be written.
    Recorded(bool),
    /// An event of a device plugin.
    Devices(DeviceEvent),
    /// For PLEG: the event stream, and the answers to its questions.
    Pleg(PlegEvent),
    /// An event of a watch on the API server.
    Heard(WatchDelivery),
    /// The API server's answer.
    ApiReply {
        /// Machine that gets the answer.
        owner: Owner,
        /// Identifier of the request.
        id: EffectId,
        /// The result.
        result: Box<ApiResult>,
    },
    /// Objects from which these pods get values have changed.
    Sources(BTreeSet<PodUid>),
    /// The health of devices of a pod's claims changed.
    Claims(PodUid, Arc<PodClaims>),
    /// Disk space is short.
    DeleteUnused,
    /// An observation for the Node object.
    Input(Box<NodeInput>),
    /// A signal of logind, or the receipt was written.
    Shutdown(ShutdownEvent),
    /// The timer has expired.
    Tick,
}

impl fmt::Debug for NodeRequest {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            NodeRequest::Effect { key, id, effect, .. } => {
                write!(f, "  -> {} #{} {}", key.uid, id.0, brief(effect))
            }
            NodeRequest::Persist { id, record } => write!(f, "  -> {} #{} persist", record.pod.uid, id.0),
            NodeRequest::Allocated(all, _) => write!(f, "  -> record {} allocations", all.len()),
            NodeRequest::Devices(action) => write!(f, "  -> {action:?}"),
            NodeRequest::Cancel(uid, id) => write!(f, "  -> {uid} cancel #{}", id.0),
            NodeRequest::Probe(uid, id, call) => {
                write!(f, "  -> {uid} probe #{} {} of {}", id.0, call.kind, call.container)
            }
            NodeRequest::Inspect(uid) => write!(f, "  -> {uid} pleg inspect"),
            NodeRequest::Relist => f.write_str("  -> pleg relist"),
            NodeRequest::Status(key, s) => write!(f, "  -> {} is {:?}", key.uid, s.phase),
            NodeRequest::Api { owner, id, call } => {
                write!(f, "  -> {owner:?} #{} {}", id.0, brief_call(call))
            }
            NodeRequest::CloseConnections => f.write_str("  -> close connections"),
            NodeRequest::Event(key, e) => write!(f, "  -> {} event {} {}", key.uid, e.reason, e.message),
            NodeRequest::Shutdown(action) => write!(f, "  -> {action:?}"),
            NodeRequest::Worker { uid, state, in_flight } => {
                write!(f, "  -> {uid} {state}, {in_flight} in flight")
            }
        }
    }
}

/// Requests of the agent to its surroundings.
#[derive(Clone)]
pub enum NodeRequest {
    /// An effect of a pod worker.
    Effect {
        /// Identity of the pod.
        key: PodKey,
        /// Identifier to return with the answer.
        id: EffectId,
        /// Effect to carry out.
        effect: Effect,
        /// Time after which no call of the effect may be in progress.
        deadline: Option<Mono>,
    },
    /// A durable write of a pod worker.
    Persist {
        /// Identifier to return with the answer.
        id: EffectId,
        /// Record to write.
        record: TerminatingRecord,
    },
    /// A durable write of the pod manager.
    Allocated(Arc<Allocations>, Box<ManagerRecords>),
    /// A question to a device plugin, or a write of the checkpoint.
    Devices(DeviceAction),
    /// The worker does not wait for this effect any more.
    Cancel(PodUid, EffectId),
    /// Run a probe.
    Probe(PodUid, ProbeId, Box<ProbeCall>),
    /// PLEG inspects one pod.
    Inspect(PodUid),
    /// PLEG lists all pods.
    Relist,
    /// A status was published.
    Status(PodKey, Arc<PodStatus>),
    /// A Kubernetes event was recorded.
    Event(PodKey, EventFact),
    /// A call to the API server.
    Api {
        /// Machine that sends the call.
        owner: Owner,
        /// Identifier to return with the answer.
        id: EffectId,
        /// Call to the API server.
        call: ApiCall,
    },
    /// Connections to the API server may be dead: make new ones.
    CloseConnections,
    /// An action of the shutdown manager for logind or for the disk.
    Shutdown(ShutdownAction),
    /// A worker's state after a step.
    Worker {
        /// UID of the pod.
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
    pub(crate) manager: PodManager,
    pleg: Pleg,
    /// The runtime was listed once.
    listed: bool,
    pub(crate) devices: AgentDevices,
    pub(crate) workers: BTreeMap<PodUid, PodWorker>,
    /// Pods that were reported as ended: no container runs any more.
    ended: BTreeSet<PodUid>,
    /// Pods that were reported as released: their volumes are unmounted too.
    released: BTreeSet<PodUid>,
    /// Pods whose workers still remove unused containers.
    stripping: BTreeSet<PodUid>,
    /// The shutdown manager; `None` if a shutdown does not wait for pods.
    pub(crate) shutdown: Option<NodeShutdown>,
    /// Priorities of the pods that a shutdown terminates.
    pub(crate) priorities: BTreeMap<PodUid, i32>,
    pub(crate) cluster: Option<Cluster>,
    pub(crate) defect: Option<Defect>,
    pub(crate) out: Vec<NodeRequest>,
}

impl Node {
    /// A new incarnation with the state that the last one left on disk. `cluster` is `None` for a standalone node;
    /// `allocatable` has the resources for pods.
    #[must_use]
    pub fn new(
        context: Arc<WorkerContext>,
        leftovers: Leftovers,
        allocatable: BTreeMap<String, Quantity>,
        cluster: Option<Cluster>,
        defect: Option<Defect>,
    ) -> Node {
        let admission = Arc::new(AdmissionContext {
            node_name: NODE.to_owned(),
            allocatable,
            ..AdmissionContext::default()
        });
        let mut expected = BTreeSet::from([Source::File]);
        if cluster.is_some() {
            expected.insert(Source::Api);
        }
        Node {
            context,
            manager: PodManager::new(expected, leftovers, admission, Ok(())),
            pleg: Pleg::new(PlegConfig::default()),
            listed: false,
            devices: AgentDevices::default(),
            workers: BTreeMap::new(),
            ended: BTreeSet::new(),
            released: BTreeSet::new(),
            stripping: BTreeSet::new(),
            shutdown: None,
            priorities: BTreeMap::new(),
            cluster,
            defect,
            out: Vec::new(),
        }
    }

    /// Handles one event.
    pub fn handle(&mut self, now: Now, event: NodeEvent) -> Vec<NodeRequest> {
        match event {
            NodeEvent::Start(pods) => {
                self.resume_shutdown(now);
                self.source(now, PodOp::Add, pods);
                self.pleg(now, PlegEvent::Tick);
                self.tell_cluster(now, |cluster, out| cluster.start(now, out));
                if self.defect == Some(Defect::ReadsForeign) {
                    let pod = ObjectName { namespace: "kube-system".into(), name: "other".into() };
                    self.also_call(Owner::Status, ApiCall::FindPod { pod, node: NODE.into() });
                }
            }
            NodeEvent::Desired(pod) => self.source(now, PodOp::Add, vec![pod]),
            NodeEvent::Removed(pod) => self.source(now, PodOp::Remove, vec![pod]),
            NodeEvent::Reply { uid, id, result } => self.reply(now, &uid, id, result),
            NodeEvent::ProbeDone { uid, id, outcome } => {
                self.step(now, &uid, PodEvent::ProbeDone { id, outcome });
            }
            NodeEvent::Recorded(written) => self.manage(now, ManagerEvent::Recorded(written)),
            NodeEvent::Devices(event) => self.of_plugin(now, event),
            NodeEvent::Pleg(event) => self.pleg(now, event),
            NodeEvent::Heard(WatchDelivery::Pods(event)) => {
                self.tell_cluster(now, |cluster, out| cluster.pods(now, &event, out));
            }
            NodeEvent::Heard(WatchDelivery::Node(event)) => {
                let marks = NodeMarks::heard(&event);
                self.tell_cluster(now, |cluster, out| cluster.own_node(now, event, out));
                if let Some(marks) = marks {
                    self.manage(now, ManagerEvent::Node(marks));
                }
            }
            NodeEvent::ApiReply { owner: Owner::Manager, result, .. } => {
                let marks = match *result {
                    Ok(ApiReply::Node(node)) => Some(NodeMarks::of(&node)),
                    _ => None,
                };
                self.manage(now, ManagerEvent::NodeRead(marks));
            }
            NodeEvent::ApiReply { owner, id, result } => {
                self.tell_cluster(now, |cluster, out| cluster.answered(now, (owner, id), *result, out));
            }
            NodeEvent::Input(input) => {
                self.tell_cluster(now, |cluster, out| cluster.input(now, *input, out));
            }
            NodeEvent::Shutdown(event) => self.shut_down(now, event),
            NodeEvent::Sources(pods) => self.manage(now, ManagerEvent::SourcesChanged(pods)),
            NodeEvent::Claims(uid, claims) => self.manage(now, ManagerEvent::Claims { uid, claims }),
            NodeEvent::DeleteUnused => self.manage(now, ManagerEvent::DeleteUnused),
            NodeEvent::Tick => self.tick(now),
        }
        std::mem::take(&mut self.out)
    }

    /// The nearest timer of any machine.
    #[must_use]
    pub fn deadline(&self) -> Option<Mono> {
        let cluster = self.cluster.as_ref().and_then(Cluster::deadline);
        let shutdown = self.shutdown.as_ref().and_then(Machine::deadline);
        let workers = self.workers.values().filter_map(Machine::deadline);
        workers
            .chain(self.pleg.deadline())
            .chain(self.manager.deadline())
            .chain(cluster)
            .chain(shutdown)
            .min()
    }

    /// The machines of a node in a cluster, for leak checks.
    #[must_use]
    pub fn cluster(&self) -> Option<&Cluster> {
        self.cluster.as_ref()
    }

    /// True once every source was read and the runtime was listed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.manager.is_synced()
    }

    /// UIDs of the active pods; `None` before every source was read and the runtime was listed.
    #[must_use]
    pub fn active(&self) -> Option<BTreeSet<PodUid>> {
        self.manager.is_synced().then(|| self.manager.active_pods())
    }

    /// True if a source has the pod.
    #[must_use]
    pub fn wants(&self, uid: &PodUid) -> bool {
        self.manager.desired().contains_key(uid)
    }

    /// The workers, for leak checks.
    #[must_use]
    pub fn workers(&self) -> &BTreeMap<PodUid, PodWorker> {
        &self.workers
    }

    fn source(&mut self, now: Now, op: PodOp, pods: Vec<Arc<Pod>>) {
        let update = PodUpdate { source: Source::File, op, pods };
        self.tell_cluster(now, |cluster, out| cluster.static_pods(now, &update, out));
        self.deliver(now, update);
    }

    pub(crate) fn tell_cluster(&mut self, now: Now, say: impl FnOnce(&mut Cluster, &mut Vec<ClusterAction>)) {
        let Some(cluster) = &mut self.cluster else { return };
        let mut actions = Vec::new();
        say(cluster, &mut actions);
        for action in actions {
            match action {
                ClusterAction::Call { owner, id, call } => self.call(owner, id, call),
                ClusterAction::CloseConnections => self.out.push(NodeRequest::CloseConnections),
                ClusterAction::Deliver(update) => self.deliver(now, update),
                ClusterAction::Untold(untold) => self.shut_down(now, ShutdownEvent::Untold(untold)),
            }
        }
    }

    fn pod_news(&mut self, now: Now, news: PodNews) {
        self.tell_cluster(now, |cluster, out| cluster.pod_news(now, news, out));
    }

    fn reply(&mut self, now: Now, uid: &PodUid, id: EffectId, mut result: EffectResult) {
        if self.defect == Some(Defect::StartsDuringWalks) && matches!(result, Ok(EffectOk::Giving { .. })) {
            result = Ok(EffectOk::Volume(Mounted::default()));
        }
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
        let running = match &event {
            PlegEvent::Listed { result: Ok(pods), .. } if !self.listed => Some(running(pods)),
            _ => None,
        };
        let mut actions = Outbox::new();
        self.pleg.step(now, event, &mut actions);
        if let Some(running) = running {
            self.listed = true;
            self.manage(now, ManagerEvent::Running(running));
        }
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

    pub(crate) fn manage(&mut self, now: Now, event: ManagerEvent) {
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
                    self.pod_news(now, PodNews::Started(key.clone()));
                    self.step(now, &key.uid, PodEvent::Tick);
                }
                ManagerAction::Tell { uid, event } => self.step(now, &uid, event),
                ManagerAction::Forget(uid) => {
                    self.workers.remove(&uid);
                    self.ended.remove(&uid);
                    self.released.remove(&uid);
                    self.stripping.remove(&uid);
                    self.pod_news(now, PodNews::Forgotten(uid));
                }
                ManagerAction::Rejected { key, rejection, .. } => {
                    self.pod_news(now, PodNews::Rejected(key, rejection));
                }
                ManagerAction::Synced => self.pod_news(now, PodNews::Synced),
                ManagerAction::Allocated(all, managers) => self.record(now, all, managers),
                ManagerAction::Devices(action) => self.ask_plugin(now, action),
                ManagerAction::Resize(_) => {}
                ManagerAction::ReadNode if self.cluster.is_some() => {
                    self.call(Owner::Manager, EffectId(0), ApiCall::GetNode { name: NODE.into() });
                }
                ManagerAction::ReadNode | ManagerAction::Evicted(_) | ManagerAction::NotThere(_) => {}
                // Nothing waits for this action: the checkers only verify that no container in use is removed.
                ManagerAction::UnusedDeleted => {}
                ManagerAction::Leaving(pods) => self.shut_down(now, ShutdownEvent::Leaving(pods)),
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
        if self.manager.deadline().is_some_and(|d| d <= now.mono) {
            self.manage(now, ManagerEvent::Tick);
        }
        self.tell_cluster(now, |cluster, out| cluster.tick(now, out));
        if self.shutdown.as_ref().and_then(Machine::deadline).is_some_and(|d| d <= now.mono) {
            self.shut_down(now, ShutdownEvent::Tick);
        }
    }

    fn step(&mut self, now: Now, uid: &PodUid, event: PodEvent) {
        let mut actions = Outbox::new();
        let Some(worker) = self.workers.get_mut(uid) else { return };
        if matches!(event, PodEvent::DeleteUnused) {
            self.stripping.insert(uid.clone());
        }
        worker.step(now, event, &mut actions);
        let key = worker.key().clone();
        let (state, in_flight) = (worker.state_name(), worker.in_flight());
        self.out.push(NodeRequest::Worker { uid: uid.clone(), state, in_flight });
        let (ended, released) = (worker.is_terminated(), worker.is_released());
        let stripped = worker.is_stripped() && self.stripping.remove(uid);
        let mut finished = false;
        let mut lacking = Vec::new();
        for action in actions.drain() {
            finished |= matches!(action, PodAction::Finished { .. });
            match action {
                PodAction::Effect { id, effect: Effect::AllocateDevices { container }, .. } => {
                    lacking.push(ManagerEvent::LacksDevices { uid: uid.clone(), container, id });
                }
                PodAction::Cancel(id) => {
                    lacking.push(ManagerEvent::GiveUpStart { uid: uid.clone(), id });
                    self.act(now, &key, PodAction::Cancel(id));
                }
                action => self.act(now, &key, action),
            }
        }
        if self.defect == Some(Defect::FreesPartsEarly) && state == "terminating" {
            self.manage(now, ManagerEvent::Ended(uid.clone()));
        }
        // The same order as in the daemon's worker task.
        if ended && self.ended.insert(uid.clone()) {
            self.manage(now, ManagerEvent::Ended(uid.clone()));
            self.pod_news(now, PodNews::Terminated(key.clone()));
        }
        if released && self.released.insert(uid.clone()) {
            self.shut_down(now, ShutdownEvent::Released(uid.clone()));
        }
        if stripped {
            self.manage(now, ManagerEvent::Stripped(uid.clone()));
        }
        // The pod manager may answer at once: after the worker's other actions.
        for event in lacking {
            self.manage(now, event);
        }
        if finished {
            self.pod_news(now, PodNews::Finished(key));
            self.manage(now, ManagerEvent::Finished(uid.clone()));
        }
    }

    fn act(&mut self, now: Now, key: &PodKey, action: PodAction) {
        match action {
            PodAction::Effect { id, mut effect, deadline } => {
                self.distort(&mut effect);
                self.misbehave(key, &effect, deadline);
                if let Effect::CreateContainer { config, .. } = &effect
                    && !config.resources.cpuset_mems.is_empty()
                {
                    let (uid, container) = (key.uid.clone(), config.name.clone());
                    self.manage(now, ManagerEvent::Creates { uid, container });
                }
                self.out.push(NodeRequest::Effect { key: key.clone(), id, effect, deadline });
            }
            PodAction::Cancel(id) => self.out.push(NodeRequest::Cancel(key.uid.clone(), id)),
            PodAction::Probe { id, call } => self.out.push(NodeRequest::Probe(key.uid.clone(), id, call)),
            // The simulation does not cancel probes: the answer arrives, and the worker ignores it.
            PodAction::CancelProbe(_) => {}
            PodAction::Persist { id, record } => self.out.push(NodeRequest::Persist { id, record }),
            PodAction::PublishStatus(status) => {
                self.out.push(NodeRequest::Status(key.clone(), status.clone()));
                self.pod_news(now, PodNews::Published(key.clone(), status));
            }
            PodAction::Event(fact) => {
                self.out.push(NodeRequest::Event(key.clone(), fact.clone()));
                self.pod_news(now, PodNews::Event(key.clone(), fact));
            }
            PodAction::Actuated(pod) => self.manage(now, ManagerEvent::Actuated(pod)),
            PodAction::Finished { .. } => {}
        }
    }

    /// Requests the write of the allocations; a broken agent continues before it is done.
    fn record(&mut self, now: Now, all: Arc<Allocations>, managers: Box<ManagerRecords>) {
        if self.defect == Some(Defect::ActsBeforeItIsWritten) {
            self.manage(now, ManagerEvent::Recorded(true));
        } else {
            self.out.push(NodeRequest::Allocated(all, managers));
        }
    }
}

/// Pods with running containers.
fn running(pods: &[ListedPod]) -> BTreeSet<PodUid> {
    let number = state_number(ContainerState::Running);
    let runs = |pod: &&ListedPod| pod.containers.values().any(|state| *state == number);
    pods.iter().filter(runs).map(|pod| pod.pod.uid.clone()).collect()
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
