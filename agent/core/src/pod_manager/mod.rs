//! pod_manager: knows the desired pods of this node, starts their workers and sends each worker its events.
//!
//! In: [`ManagerEvent`]: pods of the sources, state of the runtime, results of workers. Out:
//! [`ManagerAction`]: workers to start and events for them. The real agent and the simulated node use the
//! same machine.
//!
//! ```text
//! PodUpdate ──► desired ──► name free? ──► admission ──► Start + Tell(Desired)        [+ Tell(Kill Failed), Rejected]
//! runtime, directories ──► unknown ──► Start + Tell(Kill Orphan)                      (once every source was read)
//! ```
//! Invariants:
//! - nothing starts before the first list of the runtime: a running pod keeps its place and its name;
//! - a pod waits until no other pod of its full name has a worker, in order of arrival (a changed static pod
//!   has a new UID); an unknown pod with the name of a static pod is its predecessor and is terminated at
//!   once;
//! - other unknown pods are orphans only after **every** expected source was read;
//! - a pod of one source does not wait for another source: static pods start without the API;
//! - admission judges a pod of the API by the labels and taints that its Node has in the API (`node_view`);
//! - a pod of the API does not start again after its worker finished, even if its deletion is no longer
//!   requested (a restored API server): the status manager reports its end; a static pod starts again;
//! - a critical pod without resources waits until the pods that it preempts have ended (`preemption`);
//! - no pod starts while the machine is about to stop (`shutdown`);
//! - pressure of the node keeps new pods away, never running ones (`evictions`);
//! - no processor, block of memory or device belongs to two pods, and a pod starts after its parts are on disk (`placing`);
//! - what belongs to a pod stays with it until its containers have ended; its status does not matter (`active`);
//! - a container whose device plugin registered after its pod was admitted gets its devices when it starts (`container_starts`);
//! - a device plugin that does not answer holds the pods that want its resource, for two minutes, and no others (`devices`).
//!
//! Upstream: pkg/kubelet/pod, the dispatch half of pkg/kubelet/pod_workers.go, `HandlePodCleanups` of
//! pkg/kubelet/kubelet_pods.go.

mod active;
mod allocating;
mod arrivals;
mod container_starts;
mod devices;
mod evictions;
mod node_view;
mod placing;
mod preemption;
mod shrinking;
mod shutdown;
mod state;
mod strays;
mod unused;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::{KillReason, TerminatingRecord};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::pod::{self, CONFIG_MIRROR};
use agent_types::pressures::Pressures;
use agent_types::runtime::claims::PodClaims;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::runtime::view::is_live;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

pub use allocating::ResizeNote;
pub use shutdown::ShutdownOrder;

use allocating::Allocating;
use devices::DeviceAsks;
use node_view::NodeView;
use placing::Placing;
use preemption::Preemption;
use shrinking::Shrinking;
use shutdown::Shutdown;
use state::{Names, PodStanding, Revised, Worker, is_over};

use crate::admission::{AdmissionContext, NodeMarks, Rejection};
use crate::allocation::Allocations;
use crate::eviction::Victim;
use crate::node_shutdown::LeavingPod;
use crate::pod_source::{PodOp, PodUpdate, Source};
use crate::pod_worker::{PodEvent, WorkerContext};
use crate::resource_managers::{DeviceAction, DeviceEvent, ManagerRecords, ResourceManagers};

/// What the manager reacts to.
#[derive(Clone, Debug)]
pub enum ManagerEvent {
    /// A source changed.
    Update(PodUpdate),
    /// The runtime was listed: it holds these pods.
    Listed(Vec<PodKey>),
    /// The first list of the runtime shows running containers of these pods; before [`ManagerEvent::Listed`].
    Running(BTreeSet<PodUid>),
    /// News of a device plugin.
    Devices(DeviceEvent),
    /// A pod changed in the runtime.
    Changed(Arc<PodSnapshot>),
    /// No container of the pod runs or will run: it is not active any more. Its worker lives on.
    Ended(PodUid),
    /// A worker is done; nothing of its pod is left.
    Finished(PodUid),
    /// The record of a [`ManagerAction::Allocated`] was written durably (true), or could not be.
    Recorded(bool),
    /// The containers of this pod have its resources.
    Actuated(Arc<Pod>),
    /// Whether the node's network is ready.
    Network(Result<(), String>),
    /// What these pods get values from changed.
    SourcesChanged(BTreeSet<PodUid>),
    /// What workers share changed.
    Context(Arc<WorkerContext>),
    /// The Node object as the watch has it, `None` if there is none; pods that were judged stay judged.
    Node(Option<NodeMarks>),
    /// The answer to [`ManagerAction::ReadNode`]; `None` if there is none.
    NodeRead(Option<NodeMarks>),
    /// The machine is about to stop, or is not any more.
    Shutdown(ShutdownOrder),
    /// What the node runs short of.
    Pressures(Pressures),
    /// This pod has to end.
    Evict(Box<Victim>),
    /// Disk space is short: remove unused dead containers. Answered by [`ManagerAction::UnusedDeleted`].
    DeleteUnused,
    /// A worker has removed its unused containers.
    Stripped(PodUid),
    /// A worker is about to create this container, and the init containers before it have ended.
    Creates {
        /// Pod of the worker.
        uid: PodUid,
        /// Name of the container.
        container: String,
    },
    /// A container lacks devices and is about to be created ([`Effect::AllocateDevices`](crate::pod_worker::effect::Effect)): the worker
    /// gets the answer to its effect.
    LacksDevices {
        /// Pod of the worker.
        uid: PodUid,
        /// Name of the container.
        container: String,
        /// The worker's effect.
        id: EffectId,
    },
    /// The worker has cancelled this effect, a [`ManagerEvent::LacksDevices`]; it gets its answer now. Nothing happens if the effect was
    /// answered before.
    GiveUpStart {
        /// Pod of the worker.
        uid: PodUid,
        /// The worker's effect.
        id: EffectId,
    },
    /// The health of devices of this pod's claims changed.
    Claims {
        /// Pod of the claims.
        uid: PodUid,
        /// The claims with the new health.
        claims: Arc<PodClaims>,
    },
    /// No event: checks whether a pod can start, and which allocations are due.
    Tick,
}

/// How a worker begins.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Beginning {
    /// Without any knowledge of the pod.
    Fresh,
    /// In the middle of a termination that an earlier incarnation began.
    Resume(Box<TerminatingRecord>),
}

/// A request of the manager to its shell.
#[derive(Clone, Debug)]
pub enum ManagerAction {
    /// Start a worker.
    Start {
        /// For which pod; name and namespace are empty if only its directory is known.
        key: PodKey,
        /// Initial state of the worker.
        beginning: Beginning,
        /// Calls of earlier incarnations for this pod are over then.
        fence_until: Mono,
    },
    /// Send a worker an event.
    Tell {
        /// Pod of the worker.
        uid: PodUid,
        /// Event for the worker.
        event: PodEvent,
    },
    /// Admission rejected the pod or preempts it for another (its worker has its event): an event of type
    /// Warning.
    Rejected {
        /// Identity of the pod.
        key: PodKey,
        /// Reason and message.
        rejection: Rejection,
        /// For a pod that has to end for another: the resource that there is not enough of (counts
        /// as `kubelet_preemptions`).
        short_of: Option<String>,
    },
    /// The pod is evicted: an event of type Warning (its worker has its event).
    Evicted(Box<Victim>),
    /// Nothing runs any more of a pod that had to end.
    NotThere(PodUid),
    /// The worker has ended; nothing more is sent to it.
    Forget(PodUid),
    /// Write the allocations and the managers' states durably, in place of the previous records, and answer
    /// [`ManagerEvent::Recorded`]. One at a time.
    Allocated(Arc<Allocations>, Box<ManagerRecords>),
    /// Something for device plugins, or for the device manager's checkpoint.
    Devices(DeviceAction),
    /// Something to count.
    Resize(ResizeNote),
    /// Read the Node object from the API server and answer [`ManagerEvent::NodeRead`], also after a failure.
    ReadNode,
    /// The answer to [`ShutdownOrder::Close`]: the pods that have something to end.
    Leaving(Vec<LeavingPod>),
    /// The request [`ManagerEvent::DeleteUnused`] is complete.
    UnusedDeleted,
    /// Every source was read and the runtime listed: clean-up of unknown things may begin.
    Synced,
}

/// What an earlier incarnation left behind.
#[derive(Clone, Debug, Default)]
pub struct Leftovers {
    /// Terminations that had begun.
    pub records: Vec<TerminatingRecord>,
    /// Pods that have a directory.
    pub directories: BTreeSet<PodUid>,
    /// When the last call of an earlier incarnation is over.
    pub fence_until: Mono,
    /// What pods were given.
    pub allocated: Allocations,
    /// What their containers have.
    pub actuated: Allocations,
    /// Processors and memory that pods have for themselves.
    pub managers: ResourceManagers,
}

/// The pod manager as a state machine.
#[derive(Clone, Debug)]
pub struct PodManager {
    /// Sources that were not read yet.
    expected: BTreeSet<Source>,
    listed: bool,
    synced: bool,
    leftovers: Leftovers,
    desired: Revised<BTreeMap<PodUid, Arc<Pod>>>,
    /// Desired pods without worker, in order of arrival.
    waiting: Revised<Vec<PodUid>>,
    workers: Revised<BTreeMap<PodUid, Worker>>,
    names: Names,
    /// Pods of the runtime that no source has named yet.
    unknown: Revised<BTreeMap<PodUid, PodKey>>,
    /// Pods with containers from before this agent that may run, as the runtime showed before they had a worker.
    live: Revised<BTreeSet<PodUid>>,
    /// Pods that are over: deleted, or of the API, and their worker finished; until their source forgets them.
    done: BTreeSet<PodUid>,
    network: Result<(), String>,
    admission: Arc<AdmissionContext>,
    node: NodeView,
    preemption: Preemption,
    shrinking: Shrinking,
    shutdown: Shutdown,
    /// Workers that are removing their unused containers.
    stripping: BTreeSet<PodUid>,
    allocating: Allocating,
    placing: Placing,
    devices: DeviceAsks,
}

impl PodManager {
    /// A manager that waits for `expected` sources and the first list of the runtime.
    #[must_use]
    pub fn new(
        expected: BTreeSet<Source>,
        leftovers: Leftovers,
        admission: Arc<AdmissionContext>,
        network: Result<(), String>,
    ) -> PodManager {
        let mut leftovers = leftovers;
        let (given, actuated) =
            (std::mem::take(&mut leftovers.allocated), std::mem::take(&mut leftovers.actuated));
        PodManager {
            allocating: Allocating::new(given, actuated),
            placing: Placing::new(std::mem::take(&mut leftovers.managers)),
            node: NodeView::new(expected.contains(&Source::Api)),
            expected,
            listed: false,
            synced: false,
            leftovers,
            desired: Revised::default(),
            waiting: Revised::default(),
            workers: Revised::default(),
            names: Names::default(),
            unknown: Revised::default(),
            live: Revised::default(),
            done: BTreeSet::new(),
            network,
            admission,
            preemption: Preemption::default(),
            shrinking: Shrinking::default(),
            shutdown: Shutdown::default(),
            stripping: BTreeSet::new(),
            devices: DeviceAsks::default(),
        }
    }

    /// True once every source was read and the runtime listed.
    #[must_use]
    pub fn is_synced(&self) -> bool {
        self.synced
    }

    /// The pods that sources want, by UID.
    #[must_use]
    pub fn desired(&self) -> &BTreeMap<PodUid, Arc<Pod>> {
        &self.desired
    }

    fn update(&mut self, update: PodUpdate, out: &mut Outbox<ManagerAction>) {
        self.expected.remove(&update.source);
        for pod in update.pods {
            // A mirror pod is the API's picture of a static pod; it never runs.
            if update.source == Source::Api && pod::annotation(&pod, CONFIG_MIRROR).is_some() {
                continue;
            }
            let pod = self.admission.with_known_claims(pod);
            let uid = pod::key(&pod).uid;
            if update.op == PodOp::Remove {
                self.desired.remove(&uid);
                self.done.remove(&uid);
                self.preemption.settled(&uid);
                self.waiting.retain(|w| *w != uid);
                self.give_up_devices(&uid);
                self.placing.check();
                if self.workers.contains_key(&uid) {
                    self.leave(&uid, out);
                    tell(&uid, PodEvent::Kill { reason: KillReason::Removed, grace_s: None }, out);
                }
                continue;
            }
            if is_over(&pod) {
                self.placing.check();
            }
            let old = self.desired.insert(uid.clone(), Arc::clone(&pod));
            if self.workers.contains_key(&uid) {
                self.wanted(old, &pod, out);
            } else if !self.waiting.contains(&uid) && !self.done.contains(&uid) {
                self.waiting.push(uid);
            }
        }
    }

    fn listed(&mut self, pods: Vec<PodKey>, out: &mut Outbox<ManagerAction>) {
        for key in pods {
            self.unknown.insert(key.uid.clone(), key);
        }
        if std::mem::replace(&mut self.listed, true) {
            return;
        }
        for record in std::mem::take(&mut self.leftovers.records) {
            let key = record.pod.clone();
            let (begins_anew, has_ended) =
                (record.reason == KillReason::Shutdown { again: true }, record.ended);
            self.start(key.clone(), Beginning::Resume(Box::new(record)), out);
            self.occupy_unknown(&key.uid);
            self.resume_standing(&key.uid, has_ended);
            if let Some(pod) = self.desired.get(&key.uid).map(Arc::clone) {
                if let Some(worker) = self.workers.get_mut(&key.uid) {
                    worker.pod = Some(self.allocating.allocated(&pod));
                    worker.leaving = true;
                }
                self.occupy(&key.uid);
                self.tell_desired(&key.uid, &pod, out);
                self.waiting.retain(|w| *w != key.uid);
            }
            if begins_anew {
                self.resumed_end(&key.uid, out);
            }
        }
        // Running pods have their resources already: they are judged before new ones.
        let (running, new): (Vec<_>, Vec<_>) =
            self.waiting.drain(..).partition(|uid| self.unknown.contains_key(uid));
        *self.waiting = [running, new].concat();
    }

    fn mark(&mut self, marks: Option<NodeMarks>) {
        if let Some(marks) = marks {
            self.admit_by(self.admission.marked(marks));
        }
    }

    /// Pods are judged by this from now on. Requests that wait are judged again, as in upstream's next retry.
    fn admit_by(&mut self, admission: AdmissionContext) {
        if *self.admission != admission {
            self.admission = Arc::new(admission);
            self.room_came("periodic_retry");
        }
    }

    fn start(&mut self, key: PodKey, beginning: Beginning, out: &mut Outbox<ManagerAction>) {
        let had_calls = self.leftovers.directories.contains(&key.uid) || beginning != Beginning::Fresh;
        let fence_until = if had_calls { self.leftovers.fence_until } else { Mono(0) };
        self.unknown.remove(&key.uid);
        self.names.take(&key);
        self.workers.insert(key.uid.clone(), Worker::new(key.clone()));
        out.push(ManagerAction::Start { key: key.clone(), beginning, fence_until });
        if self.network.is_err() {
            tell(&key.uid, PodEvent::Network(self.network.clone()), out);
        }
    }

    fn finished(&mut self, uid: PodUid, out: &mut Outbox<ManagerAction>) {
        let Some(worker) = self.workers.remove(&uid) else { return };
        self.names.give_back(&worker.key);
        self.preemption.gone(&uid);
        self.stripped(&uid, out);
        self.forget_start(&uid);
        self.give_back(&uid);
        self.forget_placement(&uid);
        self.note_live(&uid, false);
        self.room_came("pods_removed");
        self.leftovers.directories.remove(&uid);
        if let Some(pod) = self.desired.get(&uid) {
            if pod.metadata.deletion_timestamp.is_some() || !pod::is_static(pod) {
                self.done.insert(uid.clone());
            } else {
                self.waiting.push(uid.clone());
            }
        }
        out.push(ManagerAction::Forget(uid));
    }

    fn changed(&mut self, snapshot: Arc<PodSnapshot>, out: &mut Outbox<ManagerAction>) {
        let uid = snapshot.pod.uid.clone();
        if self.workers.contains_key(&uid) {
            tell(&uid, PodEvent::Observed(snapshot), out);
            return;
        }
        self.note_live(&uid, snapshot.containers.iter().any(|c| is_live(c.state)));
        if snapshot.sandboxes.is_empty() && snapshot.containers.is_empty() {
            self.unknown.remove(&uid);
        } else if self.listed {
            // A worker that is started for it looks for itself.
            self.unknown.insert(uid, snapshot.pod.clone());
        }
    }

    /// The pod is about to be ended.
    fn leave(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        self.tell_before_end(uid, out);
        if let Some(worker) = self.workers.get_mut(uid) {
            worker.leaving = true;
        }
    }

    fn tell_all(&self, event: &PodEvent, out: &mut Outbox<ManagerAction>) {
        for uid in self.workers.keys() {
            tell(uid, event.clone(), out);
        }
    }
}

fn tell(uid: &PodUid, event: PodEvent, out: &mut Outbox<ManagerAction>) {
    out.push(ManagerAction::Tell { uid: uid.clone(), event });
}

impl Machine for PodManager {
    type Event = ManagerEvent;
    type Action = ManagerAction;

    fn step(&mut self, now: Now, event: ManagerEvent, out: &mut Outbox<ManagerAction>) {
        let mut answered = BTreeSet::new();
        match event {
            ManagerEvent::Update(update) => self.update(update, out),
            ManagerEvent::Running(pods) => self.first_running(pods),
            ManagerEvent::Devices(event) => self.of_plugin(event, now, out),
            ManagerEvent::Listed(pods) => self.listed(pods, out),
            ManagerEvent::Changed(snapshot) => self.changed(snapshot, out),
            ManagerEvent::Ended(uid) => {
                if let Some(worker) = self.workers.get_mut(&uid) {
                    worker.standing = PodStanding::Ended;
                }
                self.give_up_start(&uid, now, out);
                self.note_live(&uid, false);
                self.preemption.gone(&uid);
                self.preemption.settled(&uid);
                self.placing.check();
                self.room_came("pod_terminated");
            }
            ManagerEvent::Recorded(written) => self.recorded(written, now, out),
            ManagerEvent::Actuated(pod) => self.actuated(&pod::key(&pod).uid, &pod),
            ManagerEvent::Finished(uid) => self.finished(uid, out),
            ManagerEvent::Network(network) if network != self.network => {
                self.network = network;
                self.tell_all(&PodEvent::Network(self.network.clone()), out);
            }
            ManagerEvent::Network(_) => {}
            ManagerEvent::SourcesChanged(uids) => {
                for uid in uids.into_iter().filter(|uid| self.workers.contains_key(uid)) {
                    out.push(ManagerAction::Tell { uid, event: PodEvent::SourcesChanged });
                }
            }
            ManagerEvent::Context(context) => self.tell_all(&PodEvent::Context(context), out),
            ManagerEvent::Node(marks) => {
                self.node.hear();
                self.mark(marks);
            }
            ManagerEvent::NodeRead(marks) => {
                self.mark(marks);
                answered = self.node.answered();
            }
            ManagerEvent::Shutdown(order) => self.ordered(order, out),
            ManagerEvent::Pressures(pressures) => self.admit_by(self.admission.pressed(pressures)),
            ManagerEvent::Evict(victim) => self.evict(victim, out),
            ManagerEvent::DeleteUnused => self.delete_unused(out),
            ManagerEvent::Stripped(uid) => self.stripped(&uid, out),
            ManagerEvent::Creates { uid, container } => self.creates(&uid, &container),
            ManagerEvent::LacksDevices { uid, container, id } => {
                self.allocate_at_start(&uid, &container, id, now, out);
            }
            ManagerEvent::GiveUpStart { uid, id } => self.cancel_start(&uid, id, now, out),
            ManagerEvent::Claims { uid, claims } if self.workers.contains_key(&uid) => {
                tell(&uid, PodEvent::ClaimsChanged(claims), out);
            }
            ManagerEvent::Claims { .. } | ManagerEvent::Tick => {}
        }
        self.end_waits_for_plugins(now, out);
        if self.listed {
            self.take_back_parts();
            self.start_waiting(&answered, now, out);
            self.clean_up(out);
        }
        self.settle_placements(out);
        self.settle_allocations(now, out);
        self.write_devices(out);
    }

    fn deadline(&self) -> Option<Mono> {
        let devices = self.devices_deadline();
        [self.allocating.deadline(), self.shrinking.deadline(), devices].into_iter().flatten().min()
    }
}
