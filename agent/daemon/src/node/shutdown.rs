//! The machine's stop: logind, the receipt on disk, and the reports of the shutdown.
//!
//! ```text
//! logind ─► follow ─► NodeShutdown ─► manager (close, end, open) ─► workers ─► released ─┐
//!   ▲ lock   │            ▲  └─► Node object, events, receipt                          │
//!   └────────┘            └── untold ◄── status manager                  ◄─────────────┘
//! ```
//! In: logind's signals; the stop of the agent's unit. Out: pods that end in order, a receipt, the delay lock given
//! back. Decisions are in [`agent_core::node_shutdown`]. Invariants: without logind no shutdown is delayed and nothing
//! else changes; the agent connects again and again, and after a while a condition of the Node reports it. If logind
//! did not wait, pods end while the unit stops ([`Departure`]). See docs/reference/shutdown.md.

mod delay;
mod departure;
mod last_end;

use std::convert::Infallible;
use std::path::{Path, PathBuf};
use std::time::Duration;

use agent_core::events::Fact;
use agent_core::node_shutdown::{
    EVENT, FILE, Group, LastEnd, NodeShutdown, Receipt, ShutdownAction, ShutdownEvent, begins_anew, budget,
    died_of,
};
use agent_core::pod_manager::{ManagerEvent, ShutdownOrder};
use agent_linux::files::{self, Durability, FilesError};
use agent_linux::logind::{Logind, LogindError};
use agent_linux::pstore;
use agent_types::event::EventKind;
use agent_types::failure::Class;
use agent_types::kill::TerminatingRecord;
use agent_types::time::Now;
use tokio::sync::{mpsc, watch};

pub use crate::node::shutdown::departure::{Departure, stop_of_machine};

use crate::node::NodeHandles;
use crate::node::node_events::NodeEvents;
use crate::node::shutdown::delay::Delay;
use crate::pods::pod_dirs::{PodDirs, chain};
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// Time that logind waits in addition to the pods' periods: for status updates, the receipt, and outstanding answers.
const MARGIN: Duration = Duration::from_secs(5);
/// Folder of the drop-in that raises logind's limit until the next boot.
const DROP_INS: &str = "/run/systemd/logind.conf.d";
/// Enough for a receipt of some thousand pods.
const RECEIPT_BYTES_MAX: u64 = 1 << 20;
/// Largest number of receipts that wait to be written; a shutdown has two.
const RECEIPTS_MAX: usize = 16;

/// Settings of this node's shutdown.
#[derive(Clone, Debug)]
pub struct ShutdownPlan {
    /// Grace periods of pods by priority; never empty.
    pub groups: Vec<Group>,
    /// The kernel's id of this boot.
    pub boot_id: String,
    /// How the last boot ended, and whether that is still to be reported.
    pub last_end: Option<(LastEnd, bool)>,
    /// Directory of the receipt.
    pub root_dir: PathBuf,
}

fn read_receipt(root_dir: &Path) -> Option<Receipt> {
    let path = root_dir.join(FILE);
    let read = files::read_capped(&path, RECEIPT_BYTES_MAX);
    let bytes = match read {
        Ok(bytes) => bytes,
        Err(error) if error.class() == Class::NotFound => return None,
        Err(error) => {
            tracing::warn!(error = chain(&error), "what the last shutdown left cannot be read");
            return None;
        }
    };
    serde_json::from_slice(&bytes)
        .inspect_err(|error| {
            tracing::warn!(path = %path.display(), %error, "what the last shutdown left is damaged; ignored");
        })
        .ok()
}

/// How the boot `last` ended. The sources are its receipt, the record that its agent had `stopped` in order, and the
/// kernel's messages in pstore, which are copied to the node's `logs`.
#[must_use]
pub fn judge(root_dir: &Path, logs: &Path, last: &str, stopped: bool) -> LastEnd {
    let store = Path::new(pstore::STORE);
    let told = |error: &FilesError| {
        tracing::warn!(error = chain(error), "what the kernel kept of its log is not read");
    };
    let log = pstore::read(store).inspect_err(told).unwrap_or_default();
    let _ = pstore::archive(store, &logs.join("pstore").join(last)).inspect_err(told);
    LastEnd::of(last, read_receipt(root_dir).as_ref(), died_of(&log), stopped)
}

/// Whether the agent wants the delay lock. A new `count` asks for a new lock.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct DelayLockRequest {
    hold: bool,
    count: u64,
}

/// State that is read before any task starts.
pub struct Shutdown {
    plan: ShutdownPlan,
    machine: NodeShutdown,
    ends: (Sender<ShutdownEvent>, Inbox<ShutdownEvent>),
    last: Option<Receipt>,
}

impl Shutdown {
    /// Reads the receipt of the last shutdown.
    #[must_use]
    pub fn new(plan: ShutdownPlan, tasks: &Tasks) -> Shutdown {
        let last = read_receipt(&plan.root_dir);
        let machine = NodeShutdown::new(plan.groups.clone(), &plan.boot_id, last.clone(), tasks.now());
        Shutdown { plan, machine, ends: tasks.mailbox(), last }
    }

    /// Its mailbox.
    #[must_use]
    pub fn sender(&self) -> Sender<ShutdownEvent> {
        self.ends.0.clone()
    }

    /// The receipt of the last shutdown.
    #[must_use]
    pub fn last(&self) -> Option<&Receipt> {
        self.last.as_ref()
    }

    /// Starts the owner. From now on the owner ends pods when the machine stops.
    #[must_use]
    pub fn start(self, node: &NodeHandles) -> (ShutdownHandles, Owner) {
        let NodeHandles { manager, node_events, tasks } = node.clone();
        if let Some((end, is_news)) = self.plan.last_end.clone() {
            tasks.start(last_end::tell(end, is_news, node_events.clone(), tasks.clone()));
        }
        if self.machine.is_resumed() {
            manager.send(ManagerEvent::Shutdown(ShutdownOrder::Close));
        }
        let (own, inbox) = self.ends;
        let (wish, wishes) = watch::channel(DelayLockRequest::default());
        let (receipts, to_write) = mpsc::channel(RECEIPTS_MAX);
        let path = self.plan.root_dir.join(FILE);
        tasks.start(write_receipts(path, to_write, own.clone(), tasks.clone()));
        let (over_view, over) = watch::channel(false);
        let delay = Delay::new(node_events.clone(), tasks.now().mono);
        let shell = ShutdownShell { manager, node_events, wish, receipts, over: over_view };
        tasks.own(self.machine, shell, inbox);
        let needed = budget(&self.plan.groups) + MARGIN;
        let departure = Departure::new(own.clone(), over, needed);
        let owner = Owner::new("shutdown", own.clone());
        let follower = Follower { needed, wishes, to: own, delay, failures: 0 };
        (ShutdownHandles { follower: Some(follower), departure: Some(departure) }, owner)
    }
}

/// Handles of a shutdown that can begin.
pub struct ShutdownHandles {
    /// Follows logind; taken when the node is ready.
    pub follower: Option<Follower>,
    /// Ends the pods at a stop for which logind did not wait; it is taken at the stop.
    pub departure: Option<Departure>,
}

/// Terminations that still continue. Static pods that ended with an earlier shutdown start again, so their records of
/// that termination are removed.
#[must_use]
pub fn still_ending(
    shutdown: Option<&Shutdown>,
    records: Vec<TerminatingRecord>,
    dirs: &PodDirs,
) -> Vec<TerminatingRecord> {
    let resumed = shutdown.is_some_and(|shutdown| shutdown.machine.is_resumed());
    let (over, going): (Vec<_>, Vec<_>) =
        records.into_iter().partition(|record| begins_anew(record, resumed));
    for record in over {
        if let Err(error) = dirs.forget(&record.pod.uid) {
            tracing::warn!(pod = %record.pod, error = chain(&error), "the record of its end stays");
        }
    }
    going
}

/// Follows logind and holds the delay lock.
pub struct Follower {
    needed: Duration,
    wishes: watch::Receiver<DelayLockRequest>,
    to: Sender<ShutdownEvent>,
    delay: Delay,
    /// Failures since the last lock.
    failures: u32,
}

impl Follower {
    /// Listens until the node stops.
    pub async fn follow(mut self, tasks: Tasks) {
        let mut told = String::new();
        loop {
            let Err(error) = self.session().await;
            let error = chain(&error);
            // Log the first failure after a lock always, and later ones only if their text differs.
            if self.failures == 0 || error != told {
                tracing::warn!(error, "nobody waits for this node's pods until systemd-logind answers again");
            }
            let now = tasks.now().mono;
            self.delay.missing(now, &error);
            told = error;
            let pause = delay::pause(self.failures);
            self.failures = self.failures.saturating_add(1);
            tasks.wait_until(now.after(pause)).await;
        }
    }

    async fn session(&mut self) -> Result<Infallible, LogindError> {
        let mut logind = Logind::connect().await?;
        let limit = logind.raise_limit(self.needed, Path::new(DROP_INS)).await?;
        if limit < self.needed {
            tracing::warn!(
                needed_s = self.needed.as_secs(),
                limit_s = limit.as_secs(),
                "systemd-logind does not wait as long as pods were promised: shorten shutdownGracePeriod to its limit, or reboot"
            );
        }
        let mut lock = None;
        let stopping = logind.is_stopping().await?;
        self.to.send(ShutdownEvent::Told { stopping, kind: String::new() });
        loop {
            tokio::select! {
                said = logind.next() => {
                    let said = said?;
                    tracing::info!(stopping = said.stopping, kind = said.kind, "systemd-logind announces");
                    self.to.send(ShutdownEvent::Told { stopping: said.stopping, kind: said.kind });
                }
                changed = self.wishes.changed() => {
                    if changed.is_err() {
                        return std::future::pending().await;
                    }
                    // The old lock is released only when the new one is held.
                    let before = lock.take();
                    if self.wishes.borrow_and_update().hold {
                        lock = Some(logind.inhibit().await?);
                        self.failures = 0;
                        self.delay.held();
                        tracing::info!(limit_s = limit.as_secs(), "shutdown waits for this node's pods");
                    }
                    drop(before);
                }
            }
        }
    }
}

async fn write_receipts(
    path: PathBuf,
    mut receipts: mpsc::Receiver<Receipt>,
    to: Sender<ShutdownEvent>,
    tasks: Tasks,
) {
    while let Some(receipt) = receipts.recv().await {
        let ended = receipt.end_time.is_some();
        let path = path.clone();
        let write = move || {
            let text = serde_json::to_vec(&receipt).unwrap_or_default();
            files::write_atomic(&path, &text, 0o600, Durability::Synced)
        };
        if let Some(Err(error)) = tasks.blocking(write).await {
            tracing::error!(error = chain(&error), "what became of the pods is not written down");
        }
        if ended {
            to.send(ShutdownEvent::Written);
        }
    }
}

struct ShutdownShell {
    manager: Sender<ManagerEvent>,
    node_events: NodeEvents,
    wish: watch::Sender<DelayLockRequest>,
    receipts: mpsc::Sender<Receipt>,
    over: watch::Sender<bool>,
}

impl Shell for ShutdownShell {
    type Machine = NodeShutdown;

    fn tick(&self) -> ShutdownEvent {
        ShutdownEvent::Tick
    }

    fn after(&mut self, _now: Now, machine: &NodeShutdown) -> bool {
        self.over.send_if_modified(|over| std::mem::replace(over, machine.is_over()) != machine.is_over());
        true
    }

    fn perform(&mut self, _now: Now, action: ShutdownAction) {
        let order = |order| ManagerEvent::Shutdown(order);
        let wish =
            |hold| self.wish.send_modify(|wish| *wish = DelayLockRequest { hold, count: wish.count + 1 });
        match action {
            ShutdownAction::Close => {
                self.node_events.machine_stays(false);
                self.manager.send(order(ShutdownOrder::Close));
            }
            ShutdownAction::Open => drop(self.manager.send(order(ShutdownOrder::Open))),
            ShutdownAction::End { uid, grace_s } => {
                self.manager.send(order(ShutdownOrder::End(uid, grace_s)));
            }
            ShutdownAction::Node(ready) => self.node_events.node_shutdown(ready),
            ShutdownAction::Event(text) => {
                self.node_events.of_node(Fact::of_node(EventKind::Normal, EVENT, text));
            }
            ShutdownAction::AskTold => self.node_events.ask_untold(),
            ShutdownAction::Write(receipt) => {
                self.node_events.metrics().shutdown(Some(&receipt));
                log(&receipt);
                if self.receipts.try_send(receipt).is_err() {
                    tracing::error!("what became of the pods is not written down: the disk does not answer");
                }
            }
            ShutdownAction::Hold => {
                self.node_events.machine_stays(true);
                wish(true);
            }
            ShutdownAction::Release => {
                tracing::info!("the machine may stop");
                wish(false);
            }
        }
    }
}

fn log(receipt: &Receipt) {
    if receipt.end_time.is_none() {
        tracing::info!(kind = receipt.kind, "the machine is about to stop: pods end");
        return;
    }
    if receipt.boot_went_on {
        tracing::info!(
            kind = receipt.kind,
            "the boot goes on after its shutdown: its receipt says nothing of how it ends"
        );
        return;
    }
    for pod in receipt.pods.iter().filter(|pod| !pod.ended || !pod.told) {
        let (namespace, ended, told) = (&pod.namespace, pod.ended, pod.told);
        tracing::warn!(pod = pod.name, namespace, uid = pod.uid, ended, told, "the next boot sees to it");
    }
}

impl Coalesce for ShutdownEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ShutdownEvent::Untold(_), ShutdownEvent::Untold(_))
            | (ShutdownEvent::Tick, ShutdownEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}
