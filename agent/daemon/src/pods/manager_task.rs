//! The pod manager's task: makes workers and knows their mailboxes.
//!
//! In: the manager's actions. Out: worker actors, events in their mailboxes, readiness. See
//! [`agent_core::pod_manager`] for the decisions.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_core::pod_manager::{Beginning, ManagerAction, ManagerEvent, PodManager};
use agent_core::pod_source::Source;
use agent_core::pod_worker::{PodEvent, PodWorker, WorkerContext};
use agent_core::resource_managers::{DeviceAction, DeviceEvent, ResourcesView};
use agent_kubelet_api::drivers::{ImageService, Runtime};
use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::KillReason;
use agent_types::time::{Mono, Now};
use tokio::sync::watch;

use crate::devices::DevicePlugins;
use crate::images::garbage_collection::UnusedContainers;
use crate::node::NodeHandles;
use crate::node::container_manager::KnownPods;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::{ActivePods, DesiredPods};
use crate::pods::execute::Executor;
use crate::pods::placement_times::PlacementTimes;
use crate::pods::worker_task::WorkerShell;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// What the manager is started from.
pub struct Deps<'a, R, I> {
    /// Handles of the node.
    pub node: &'a NodeHandles,
    /// The manager, which knows what an earlier run of the agent left.
    pub machine: PodManager,
    /// The manager's mailbox.
    pub inbox: Inbox<ManagerEvent>,
    /// Carries out the workers' effects.
    pub executor: Executor<R, I>,
    /// What workers share, as of now.
    pub context: watch::Receiver<Arc<WorkerContext>>,
    /// Shows which pods there are.
    pub known: watch::Sender<KnownPods>,
    /// Device plugins.
    pub plugins: DevicePlugins,
    /// There is a source of static pods, which is waited for.
    pub has_static_pods: bool,
}

/// What the manager shows.
pub struct ManagerHandles {
    /// Pods that sources want.
    pub desired: watch::Receiver<DesiredPods>,
    /// Pods that may use something of the node.
    pub active: watch::Receiver<ActivePods>,
    /// The node's own sources were read and the runtime listed.
    pub synced: watch::Receiver<bool>,
    /// Dead containers that no pod needs, for the garbage collection.
    pub unused: UnusedContainers,
    /// Processors and memory that pods have for themselves.
    pub resources: watch::Receiver<Arc<ResourcesView>>,
}

/// Starts the manager.
pub fn start<R: Runtime, I: ImageService>(deps: Deps<'_, R, I>) -> ManagerHandles {
    let Deps { node, machine, inbox, executor, context, known, plugins, has_static_pods } = deps;
    let NodeHandles { manager: own, node_events, tasks } = node.clone();
    let (synced_view, synced) = watch::channel(false);
    let (desired_view, desired) = watch::channel(DesiredPods::new());
    let (active_view, active) = watch::channel(ActivePods::default());
    let (unused_deleted, deleted) = watch::channel(0);
    let (resources_view, resources) = watch::channel(Arc::new(machine.resource_managers().view()));
    let unused = UnusedContainers { manager: own.clone(), deleted };
    let shell = ManagerShell {
        tasks: tasks.clone(),
        executor,
        own,
        node_events,
        workers: BTreeMap::new(),
        context,
        synced: Synced::new(!has_static_pods, synced_view),
        desired: desired_view,
        active: active_view,
        stale: false,
        known,
        plugins,
        is_synced_now: false,
        active_revision: 0,
        unused_deleted,
        resources: resources_view,
        resources_revision: 0,
        placement_times: PlacementTimes::default(),
    };
    tasks.own(machine, shell, inbox);
    ManagerHandles { desired, active, synced, unused, resources }
}

/// The manager's surroundings.
struct ManagerShell<R, I> {
    tasks: Tasks,
    executor: Executor<R, I>,
    own: Sender<ManagerEvent>,
    node_events: NodeEvents,
    workers: BTreeMap<PodUid, Sender<PodEvent>>,
    context: watch::Receiver<Arc<WorkerContext>>,
    synced: Synced,
    desired: watch::Sender<DesiredPods>,
    active: watch::Sender<ActivePods>,
    /// A source spoke: the view of desired pods may be out of date.
    stale: bool,
    /// For the tasks that look after the pods' cgroups, volumes and directories.
    known: watch::Sender<KnownPods>,
    /// Device plugins.
    plugins: DevicePlugins,
    /// All is known since this step.
    is_synced_now: bool,
    /// The revision of the active pods that readers have.
    active_revision: u64,
    /// How often the garbage collection removed all dead containers that no pod needs.
    unused_deleted: watch::Sender<u64>,
    /// For readers of the managers' assignments.
    resources: watch::Sender<Arc<ResourcesView>>,
    /// The revision that they have.
    resources_revision: u64,
    placement_times: PlacementTimes,
}

/// Whether the node knows what it needs to begin: its own sources and what the runtime holds.
struct Synced {
    read: bool,
    listed: bool,
    view: watch::Sender<bool>,
}

impl Synced {
    /// `read` is true from the start if there is no directory of static pods; other sources are not waited for; `view`
    /// becomes true when all is known.
    fn new(read: bool, view: watch::Sender<bool>) -> Synced {
        Synced { read, listed: false, view }
    }

    fn see(&mut self, event: &ManagerEvent) {
        match event {
            ManagerEvent::Update(update) => self.read |= update.source == Source::File,
            ManagerEvent::Listed(_) => self.listed = true,
            _ => return,
        }
        if self.read && self.listed && !*self.view.borrow() {
            tracing::info!("the node's own sources are read and the runtime is listed");
            self.view.send_replace(true);
        }
    }
}

impl<R: Runtime, I: ImageService> ManagerShell<R, I> {
    fn start(&mut self, key: PodKey, beginning: Beginning, fence_until: Mono, now: Now) {
        // Before its worker can do anything: who is not known here may be cleaned away.
        self.known.send_if_modified(|known| known.workers.insert(key.uid.clone()));
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
            self.node_events.clone(),
        );
        self.tasks.own(worker, shell, inbox);
        // A resumed worker goes on by itself.
        own.send(PodEvent::Tick);
        self.node_events.started(&key);
        self.workers.insert(key.uid, own);
    }

    fn show_active(&self, machine: &PodManager) {
        self.known.send_if_modified(|known| known.see(machine.admitted()));
        let active = ActivePods { uids: machine.active_pods(), synced: machine.is_synced() };
        self.active.send_if_modified(|shown| {
            let differs = *shown != active;
            *shown = active;
            differs
        });
    }

    fn note_placement_times(&mut self, now: Now, machine: &PodManager) {
        let step = self.tasks.now().mono.since(now.mono);
        let judged = machine.resource_managers().managers().counts.admissions.all;
        let waits = |uid: &PodUid| machine.waits_for_plugin(uid);
        for took in self.placement_times.after(now.mono, step, judged, waits) {
            self.node_events.metrics().placed(took);
        }
    }
}

impl<R: Runtime, I: ImageService> Shell for ManagerShell<R, I> {
    type Machine = PodManager;

    fn tick(&self) -> ManagerEvent {
        ManagerEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &ManagerEvent) {
        self.synced.see(event);
        if let ManagerEvent::Update(update) = event {
            self.node_events.metrics().update(update);
        }
        self.stale |= matches!(event, ManagerEvent::Update(_));
    }

    fn after(&mut self, now: Now, machine: &PodManager) -> bool {
        if std::mem::take(&mut self.stale) {
            self.desired.send_replace(machine.desired().clone());
            self.known.send_modify(|known| known.wanted = machine.desired().keys().cloned().collect());
        }
        if self.active_revision != machine.active_revision() {
            self.active_revision = machine.active_revision();
            self.show_active(machine);
        }
        if self.resources_revision != machine.resources_revision() {
            self.resources_revision = machine.resources_revision();
            self.note_placement_times(now, machine);
            let view = machine.resource_managers().view();
            self.node_events.metrics().resources(&view);
            self.node_events.devices(&view.node_devices);
            self.resources.send_replace(Arc::new(view));
        }
        // After the pods themselves: from now on, things of other pods may be cleaned away.
        if std::mem::take(&mut self.is_synced_now) {
            self.known.send_modify(|known| known.synced = true);
        }
        true
    }

    fn perform(&mut self, now: Now, action: ManagerAction) {
        match action {
            ManagerAction::Start { key, beginning, fence_until } => {
                self.start(key, beginning, fence_until, now);
            }
            ManagerAction::Tell { uid, event } => {
                match &event {
                    PodEvent::Desired(pod) => self.node_events.metrics().wanted(pod),
                    PodEvent::Kill { reason: KillReason::Orphan, .. } => {
                        self.node_events.metrics().orphan(&uid)
                    }
                    _ => {}
                }
                if let Some(worker) = self.workers.get(&uid) {
                    worker.send(event);
                }
            }
            ManagerAction::Allocated(all, managers) => {
                self.executor.record_allocations(all, managers, self.own.clone());
            }
            ManagerAction::Devices(action) => {
                if let DeviceAction::AskPreferred { uid, .. } | DeviceAction::AskAllocate { uid, .. } =
                    &action
                {
                    self.placement_times.asks(uid, now.mono);
                }
                self.plugins.perform(action);
            }
            ManagerAction::Resize(note) => self.node_events.metrics().resize(&note),
            ManagerAction::ReadNode => self.node_events.read_node(),
            ManagerAction::UnusedDeleted => self.unused_deleted.send_modify(|times| *times += 1),
            ManagerAction::Leaving(pods) => self.node_events.leaving(pods),
            ManagerAction::Rejected { key, rejection, short_of } => {
                match short_of {
                    Some(resource) => self.node_events.metrics().preempted(&resource),
                    None => self.node_events.metrics().rejected(&rejection),
                }
                self.node_events.rejected(&key, &rejection);
            }
            ManagerAction::Evicted(victim) => self.node_events.evicted(&victim),
            ManagerAction::NotThere(uid) => self.node_events.not_there(&uid),
            ManagerAction::Forget(uid) => {
                self.workers.remove(&uid);
                self.known.send_if_modified(|known| known.workers.remove(&uid));
                self.node_events.forgotten(&uid);
            }
            ManagerAction::Synced => {
                self.node_events.synced();
                self.is_synced_now = true;
                tracing::info!("every source is read and the runtime is listed");
            }
        }
    }
}

impl Coalesce for ManagerEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ManagerEvent::Network(_), ManagerEvent::Network(_))
            | (ManagerEvent::Context(_), ManagerEvent::Context(_))
            | (ManagerEvent::Node(_), ManagerEvent::Node(_))
            | (ManagerEvent::Pressures(_), ManagerEvent::Pressures(_))
            | (ManagerEvent::Tick, ManagerEvent::Tick) => Relation::Supersedes,
            (ManagerEvent::Claims { uid: a, .. }, ManagerEvent::Claims { uid: b, .. }) if a == b => {
                Relation::Supersedes
            }
            // A plugin that sends lists without end has one of them waiting.
            (
                ManagerEvent::Devices(DeviceEvent::Listed { connection: a, .. }),
                ManagerEvent::Devices(DeviceEvent::Listed { connection: b, .. }),
            ) if a == b => Relation::Supersedes,
            (ManagerEvent::Changed(a), ManagerEvent::Changed(b))
                if a.pod.uid == b.pod.uid && a.as_of <= b.as_of =>
            {
                Relation::Supersedes
            }
            _ => Relation::Independent,
        }
    }
}
