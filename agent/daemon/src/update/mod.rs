//! Updates of the node: the driver of [`agent_core::node_update`].
//!
//! ```text
//! boot record (polled) ──► Record ─┐              ┌─► Do ──► UpdateWorker ─► plan, record and ESP, Node, evictions, ConfigMap, logind
//! Node's annotations ────► Orders ─┼─ NodeUpdate ─┼─► Trial ─► verdict.json ─► orlop-init guard
//! GateSenses ─► gate ────► Gate ───┘              └─► Show, Event ─► Node object, recorder, consoles, host, metrics
//! NodeUpdate ─► Staging ─► orlop-update (a named version that the other slot does not hold)
//! ```
//! In: [`Deps`]. Out: tasks that live until the node stops. Invariants: work on the disk has a thread of its own, because a disk may
//! hang; calls to the API server go in the general lane, never in the heartbeat's; without the API server a trial is judged and said
//! to the guard all the same; a machine that was not booted from a slot has no driver. Docs: docs/internals/agent/updates.md.

pub mod cluster_side;
pub mod gate;
pub mod probe;
pub mod problems;
pub mod senses;
pub mod settings;
pub mod shell;
pub mod slots;
pub mod staging;
pub mod words;
pub mod worker;

use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::events::Fact;
use agent_core::node_update::orders::{OrdersSeen, WrongOrder, read_orders};
use agent_core::node_update::plan::UpdatePlan;
use agent_core::node_update::{NodeUpdate, UpdateEvent, UpdateOrders};
use agent_linux::files;
use agent_linux::logind::{Logind, LogindError};
use agent_types::api::ApiServer;
use agent_types::event::EventKind;
use agent_types::failure::Class;
use futures_util::FutureExt;
use k8s_openapi::api::core::v1::Node;
use orlop_config::slots::{BootRecord, SlotName};
use orlop_update::service::bytes::UpdateBytes;
use tokio::sync::{Notify, watch};
use tokio::time::timeout;

use cluster_side::ClusterSide;
use gate::{GateLoop, GateWish};
use senses::GateSenses;
use settings::UpdateSettings;
use shell::UpdateShell;
use slots::Slots;
use staging::Staging;
use worker::{AskReboot, UpdateFiles, UpdateWorker};

use crate::node::host_channel::Host;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::{ActivePods, DesiredPods};
use crate::pods::pod_dirs::chain;
use crate::pods::status::PodViews;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

/// The boot record is read this often: the updater and the guard write it as well.
const LOOK: Duration = Duration::from_secs(30);
/// The same while a slot is on trial, when the guard is about to write.
const LOOK_ON_TRIAL: Duration = Duration::from_secs(5);
/// A node of a cluster waits so long for its Node, whose annotations may say that updates are paused.
const NODE_WAIT: Duration = Duration::from_secs(60);
/// Reason of the event about an annotation that orders nothing.
const ORDER_REFUSED: &str = "UpdateOrderRefused";
/// Name of the updater's count among the sources of metrics that may hang.
const BYTES_SOURCE: &str = "bytes of updates";
/// Longest plan that is read, bytes.
const PLAN_BYTES_MAX: u64 = 64 << 10;

/// Places of the driver.
#[derive(Clone, Debug)]
pub struct UpdatePaths {
    /// Plan and baseline.
    pub files: UpdateFiles,
    /// Where the guard reads the agent's words.
    pub words: PathBuf,
    /// Where the management API reads of a failed update.
    pub problems: PathBuf,
    /// The updater's socket.
    pub updater: PathBuf,
    /// Directory of what the updater keeps.
    pub kept: PathBuf,
}

/// Inputs of [`start`].
pub struct Deps<A> {
    /// Settings.
    pub settings: UpdateSettings,
    /// Boot record and ESP.
    pub slots: Slots,
    /// None on a standalone node.
    pub cluster: Option<ClusterSide<A>>,
    /// Facts of the gate.
    pub senses: Arc<dyn GateSenses>,
    /// This node can run a probe pod.
    pub can_probe: bool,
    /// The pods that the node wants.
    pub desired: watch::Receiver<DesiredPods>,
    /// Whether all sources were read.
    pub active: watch::Receiver<ActivePods>,
    /// Pods' statuses.
    pub statuses: watch::Receiver<PodViews>,
    /// Events, conditions, metrics.
    pub node_events: NodeEvents,
    /// Host and consoles.
    pub host: Host,
    /// Asks for a reboot.
    pub reboot: AskReboot,
    /// Places.
    pub paths: UpdatePaths,
    /// The node's tasks.
    pub tasks: Tasks,
}

/// Asks systemd-logind for a reboot, unless the machine is about to stop already: it waits for the node's pods, as at any other reboot
/// in order.
#[must_use]
pub fn reboot_by_logind() -> AskReboot {
    Arc::new(|| {
        async {
            let asked = async {
                let logind = Logind::connect().await?;
                if logind.is_stopping().await? { Ok(()) } else { logind.reboot().await }
            };
            asked.await.map_err(|e: LogindError| chain(&e))
        }
        .boxed()
    })
}

/// Starts the driver: reads the plan, then begins.
pub fn start<A: ApiServer>(deps: Deps<A>) {
    let (tasks, plan) = (deps.tasks.clone(), deps.paths.files.plan.clone());
    let reader = tasks.clone();
    tasks.start(async move {
        let kept = read_plan(&plan, &reader).await;
        begin(deps, kept);
    });
}

fn begin<A: ApiServer>(deps: Deps<A>, kept: Option<UpdatePlan>) {
    let Deps {
        settings, slots, cluster, senses, desired, active, statuses, node_events, host, reboot, ..
    } = deps;
    let (paths, tasks, can_probe) = (deps.paths, deps.tasks, deps.can_probe);
    let (own, inbox) = tasks.mailbox();
    let look = Arc::new(Notify::new());
    let node = cluster.as_ref().map(|cluster| cluster.node.clone());
    let baseline = paths.files.baseline.clone();
    let (wish, wishes) = watch::channel(GateWish::default());
    let (words, newest) = watch::channel(None);
    let (record_view, record) = watch::channel(None);
    let (stage, wanted) = watch::channel(None);
    let (problems, present) = watch::channel(Vec::new());
    tasks.start(problems::keep(paths.problems, present, tasks.clone()));
    tasks.start(words::write(paths.words, newest, tasks.clone()));
    let gate =
        GateLoop { senses: Arc::clone(&senses), baseline, can_probe, to: own.clone(), tasks: tasks.clone() };
    tasks.start(gate.follow(wishes.clone()));
    let looked = Arc::new(Notify::new());
    let metrics = node_events.metrics().clone();
    tasks.start(count_bytes(paths.kept, Arc::clone(&looked), metrics, tasks.clone()));
    let watched = RecordWatch {
        slots: slots.clone(),
        node: node.clone(),
        pin: settings.pin.clone(),
        look: Arc::clone(&look),
        wishes,
        looked,
        view: record_view,
        node_events: node_events.clone(),
        to: own.clone(),
        tasks: tasks.clone(),
    };
    tasks.start(watched.follow());
    let (pin, has_source) = (settings.pin, settings.has_source);
    let (booted, to) = (slots.booted(), own.clone());
    let orders = OrderWatch { node, record, pin, booted, node_events: node_events.clone(), to };
    tasks.start(orders.follow());
    let staging = Staging {
        socket: paths.updater,
        node_events: node_events.clone(),
        look: Arc::clone(&look),
        tasks: tasks.clone(),
    };
    tasks.start(staging.follow(wanted));
    let machine = NodeUpdate::new(settings.config, slots.booted(), kept);
    let files = paths.files;
    let worker = Arc::new(UpdateWorker {
        slots,
        cluster,
        desired,
        active,
        statuses,
        senses,
        files,
        reboot,
        look,
        began: tasks.now().mono,
        tasks: tasks.clone(),
    });
    let shell = UpdateShell {
        own,
        worker,
        node_events,
        host,
        words,
        problems,
        wish,
        stage,
        has_source,
        decided: None,
        phase: None,
    };
    tasks.own(machine, shell, inbox);
}

/// The plan that an earlier agent, or the slot before, has left; none if there is none or it is not understood.
async fn read_plan(path: &Path, tasks: &Tasks) -> Option<UpdatePlan> {
    let file = path.to_owned();
    match tasks.blocking_update(move || files::read_capped(&file, PLAN_BYTES_MAX)).await? {
        Ok(text) => serde_json::from_slice(&text)
            .inspect_err(
                |error| tracing::warn!(path = %path.display(), %error, "the plan of an update is damaged"),
            )
            .ok(),
        Err(error) if error.class() == Class::NotFound => None,
        Err(error) => {
            tracing::warn!(error = chain(&error), "the plan of an update is lost");
            None
        }
    }
}

/// The Node as its watch shows it; none on a standalone node.
type WatchedNode = Option<watch::Receiver<Option<Arc<Node>>>>;

/// Follows the boot record.
struct RecordWatch {
    slots: Slots,
    node: WatchedNode,
    pin: Option<String>,
    look: Arc<Notify>,
    wishes: watch::Receiver<GateWish>,
    looked: Arc<Notify>,
    view: watch::Sender<Option<BootRecord>>,
    node_events: NodeEvents,
    to: Sender<UpdateEvent>,
    tasks: Tasks,
}

impl RecordWatch {
    async fn follow(mut self) {
        let mut failure = String::new();
        loop {
            match self.slots.run(|slots| slots.record()).await {
                Ok(record) => {
                    failure.clear();
                    self.tell(record).await;
                }
                Err(error) if error != failure => {
                    tracing::warn!(error, "the boot record is not read");
                    failure = error;
                }
                Err(_) => {}
            }
            self.looked.notify_one();
            let wish = *self.wishes.borrow_and_update();
            let every = if wish.on_trial { LOOK_ON_TRIAL } else { LOOK };
            let until = self.tasks.now().mono.after(every);
            tokio::select! {
                // All of them only wait.
                () = self.tasks.wait_until(until) => {}
                () = self.look.notified() => {}
                changed = self.wishes.changed() => {
                    if changed.is_err() {
                        return;
                    }
                }
            }
        }
    }

    async fn tell(&mut self, record: BootRecord) {
        let is_first = self.view.borrow().is_none();
        if self.view.borrow().as_ref() == Some(&record) {
            return;
        }
        self.node_events.metrics().slots(&record);
        // A trial waits for nobody.
        if is_first && record.trial_of(self.slots.booted()).is_none() {
            let orders = self.first_orders(&record).await;
            self.to.send(UpdateEvent::Orders(orders));
        }
        self.view.send_replace(Some(record.clone()));
        self.to.send(UpdateEvent::Record(Box::new(record)));
    }

    /// The orders come before the record: an update that begins without the Node's annotations could be one that somebody has paused,
    /// or of another version than the one that somebody has named.
    async fn first_orders(&mut self, record: &BootRecord) -> UpdateOrders {
        let (pin, booted) = (self.pin.as_deref(), self.slots.booted());
        let Some(node) = &mut self.node else { return orders_of(None, pin, record, booted).orders };
        match timeout(NODE_WAIT, node.wait_for(Option::is_some)).await {
            Ok(Ok(node)) => orders_of(node.as_deref(), pin, record, booted).orders,
            Ok(Err(_)) | Err(_) => UpdateOrders { is_paused: true, ..UpdateOrders::default() },
        }
    }
}

/// Shows where the bytes of staged releases came from, after each look at the record. It has a task and a thread of its own: the state
/// partition may hang, and the record does not wait for it.
async fn count_bytes(kept: PathBuf, looked: Arc<Notify>, metrics: Metrics, tasks: Tasks) {
    loop {
        looked.notified().await;
        let kept = kept.clone();
        if let Some(bytes) = tasks.blocking_machine(BYTES_SOURCE, move || UpdateBytes::read(&kept)).await {
            metrics.update_bytes(bytes);
        }
    }
}

/// The orders that this Node carries.
fn orders_of(node: Option<&Node>, pin: Option<&str>, record: &BootRecord, booted: SlotName) -> OrdersSeen {
    let annotations = node.and_then(|node| node.metadata.annotations.as_ref());
    read_orders(annotations, pin, record, booted)
}

/// Follows the orders of operators.
struct OrderWatch {
    node: WatchedNode,
    record: watch::Receiver<Option<BootRecord>>,
    pin: Option<String>,
    booted: SlotName,
    node_events: NodeEvents,
    to: Sender<UpdateEvent>,
}

impl OrderWatch {
    async fn follow(mut self) {
        let (mut told, mut refused) = (None, Vec::new());
        loop {
            let node = self.node.as_mut().and_then(|node| node.borrow_and_update().clone());
            let record = self.record.borrow_and_update().clone();
            let is_known = self.node.is_none() || node.is_some();
            if let Some(record) = record.filter(|_| is_known) {
                let seen = orders_of(node.as_deref(), self.pin.as_deref(), &record, self.booted);
                self.refuse(&seen.wrong, &refused);
                refused = seen.wrong;
                let orders = seen.orders;
                if told.as_ref() != Some(&orders) {
                    self.to.send(UpdateEvent::Orders(orders.clone()));
                    told = Some(orders);
                }
            }
            let ended = tokio::select! {
                // Both only wait.
                changed = self.record.changed() => changed.is_err(),
                changed = changed(self.node.as_mut()) => changed.is_err(),
            };
            if ended {
                return;
            }
        }
    }

    /// Says once of each annotation that it orders nothing; `before` are those of the last look.
    fn refuse(&self, wrong: &[WrongOrder], before: &[WrongOrder]) {
        for order in wrong.iter().filter(|order| !before.contains(*order)) {
            self.node_events.of_node(Fact::of_node(EventKind::Warning, ORDER_REFUSED, order.message()));
        }
    }
}

/// Waits for another Node; for ever on a standalone node.
async fn changed(
    node: Option<&mut watch::Receiver<Option<Arc<Node>>>>,
) -> Result<(), watch::error::RecvError> {
    match node {
        Some(node) => node.changed().await,
        None => std::future::pending().await,
    }
}

#[cfg(test)]
mod tests;
