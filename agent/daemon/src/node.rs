//! The composition root: every state owner of a node, and who sends what to whom.
//!
//! ```text
//! static pods ─► source ─► dispatcher ─► pod workers ─► executor ─► runtime, images, disk
//!                              ▲   ▲          └─► statuses ─► ledger, host
//!           runtime state ─────┘   └── pleg ◄── event stream, relist
//! ```
//! In: a [`Plan`] and the drivers. Out: a [`Node`] that runs until it is stopped. Invariant: this is the only
//! place that sees all owners; each of them sees only the mailboxes it sends to.

use std::collections::{BTreeMap, BTreeSet};
use std::path::{Path, PathBuf};
use std::sync::Arc;
use std::time::Duration;

use agent_core::drivers::{ImageService, Runtime};
use agent_core::pleg::{Pleg, PlegEvent};
use agent_core::pod_source::file::FileSourceConfig;
use agent_core::pod_source::{FileSource, Source};
use agent_core::pod_worker::{PodEvent, PodWorker, WorkerContext};
use agent_core::runtime::PodUid;
use agent_core::time::{Mono, Now};
use tokio::sync::{mpsc, watch};

use crate::actor::{Shell, Tasks};
use crate::dispatch::{Beginning, DispatchAction, DispatchEvent, Dispatcher, Leftovers};
use crate::execute::Executor;
use crate::host::{self, Host};
use crate::mailbox::{Inbox, Sender};
use crate::pleg::{PlegShell, Signals, listen};
use crate::pod_dirs::PodDirs;
use crate::pod_output;
use crate::runtime_state::{self, ContextSource, RuntimeState};
use crate::source::{SourceShell, read_in_order, watch as watch_source};
use crate::status::StatusStore;
use crate::watchdog::Owner;
use crate::worker::WorkerShell;

/// How long calls that change the runtime may take to finish once the agent stops.
const SETTLE: Duration = Duration::from_secs(2);

/// What a node is made from, besides its drivers.
#[derive(Clone, Debug)]
pub struct Plan {
    /// `staticPodPath`; `None` for a node without static pods.
    pub static_pods: Option<String>,
    /// `fileCheckFrequency`.
    pub check_period: Duration,
    /// Name of the node.
    pub node_name: String,
    /// `--root-dir`.
    pub root_dir: PathBuf,
    /// `podLogsDir`.
    pub pod_logs_dir: PathBuf,
    /// Image pulls at once.
    pub pulls: usize,
    /// Calls of the last run are over then.
    pub fence_until: Mono,
    /// Pods' output goes to the host.
    pub pod_output: bool,
}

/// The world as a node sees it.
pub struct Drivers<R, I, S, C> {
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// CRI ImageService.
    pub images: Arc<I>,
    /// CRI event stream.
    pub signals: S,
    /// What workers share, made from the machine.
    pub facts: Arc<C>,
}

/// A running node.
pub struct Node<R, I> {
    tasks: Tasks,
    executor: Executor<R, I>,
    statuses: StatusStore,
    synced: watch::Receiver<bool>,
    runtime: watch::Receiver<RuntimeState>,
    health: watch::Receiver<Result<(), String>>,
    owners: Vec<Owner>,
}

impl<R: Runtime, I: ImageService> Node<R, I> {
    /// Starts every owner. Nothing happens to any pod before all sources were read and the runtime listed.
    ///
    /// # Errors
    /// The machine or the pod directories cannot be read.
    pub async fn start<S: Signals, C: ContextSource>(
        plan: Plan,
        drivers: Drivers<R, I, S, C>,
        host: Host,
        tasks: Tasks,
    ) -> anyhow::Result<Node<R, I>> {
        let state = RuntimeState::ask(&*drivers.runtime).await;
        let context = Arc::new(drivers.facts.worker_context()?);
        let (context_view, context) = watch::channel(context);
        let (to_dispatcher, dispatcher_inbox) = tasks.mailbox::<DispatchEvent>();
        let (to_pleg, pleg_inbox) = tasks.mailbox::<PlegEvent>();
        let dirs = Arc::new(PodDirs::new(&plan.root_dir, &plan.pod_logs_dir));
        let (directories, records) = dirs.scan()?;
        let executor = Executor::new(
            (drivers.runtime.clone(), drivers.images),
            dirs,
            plan.pulls,
            tasks.clone(),
            to_pleg.clone(),
        );
        let statuses = StatusStore::default();
        let mut owners: Vec<Owner> =
            vec![("dispatcher", Box::new(to_dispatcher.clone())), ("pleg", Box::new(to_pleg.clone()))];

        let mut expected = BTreeSet::new();
        if let Some(path) = plan.static_pods.clone() {
            expected.insert(Source::File);
            owners.push(("file source", start_source(path, &plan, &tasks, to_dispatcher.clone())));
        }
        let leftovers = Leftovers { records, directories, fence_until: plan.fence_until };
        let dispatcher = Dispatcher::new(expected, leftovers, state.network.clone());
        let (synced_view, synced) = watch::channel(false);
        let shell = DispatchShell {
            tasks: tasks.clone(),
            executor: executor.clone(),
            own: to_dispatcher.clone(),
            statuses: statuses.clone(),
            workers: BTreeMap::new(),
            context,
            synced: synced_view,
        };
        tasks.own(dispatcher, shell, dispatcher_inbox);

        let output = start_output(&plan, &host, &tasks);
        let health = start_pleg(
            &drivers.runtime,
            &drivers.signals,
            &tasks,
            (to_pleg, pleg_inbox),
            &to_dispatcher,
            output,
        );
        let (runtime_view, runtime) = watch::channel(state);
        tasks.start(runtime_state::observe(
            drivers.runtime,
            drivers.facts,
            runtime_view,
            context_view,
            to_dispatcher,
            tasks.clone(),
        ));
        tasks.start(host::stamp_running(host, statuses.subscribe()));
        Ok(Node { tasks, executor, statuses, synced, runtime, health, owners })
    }

    /// Waits until every source was read, the runtime listed, and the runtime is ready.
    pub async fn ready(&mut self) {
        // The senders live as long as the node's tasks: an error means that it is being stopped.
        let _ = self.synced.wait_for(|synced| *synced).await;
        let _ = self.runtime.wait_for(|state| state.runtime.is_ok()).await;
    }

    /// All pods' statuses.
    #[must_use]
    pub fn statuses(&self) -> StatusStore {
        self.statuses.clone()
    }

    /// Whether PLEG is healthy.
    #[must_use]
    pub fn health(&self) -> watch::Receiver<Result<(), String>> {
        self.health.clone()
    }

    /// The main owners, for the watchdog; to be taken once.
    pub fn take_owners(&mut self) -> Vec<Owner> {
        std::mem::take(&mut self.owners)
    }

    /// Stops the agent's work, not the containers. True if no call was given up, so that the next run need
    /// not wait for any.
    pub async fn stop(self) -> bool {
        self.tasks.stop().cancel();
        self.executor.settle(SETTLE).await
    }
}

fn start_source(
    path: String,
    plan: &Plan,
    tasks: &Tasks,
    to: Sender<DispatchEvent>,
) -> crate::watchdog::BoxedOwner {
    let (to_source, inbox) = tasks.mailbox();
    let (to_reader, requests) = tasks.mailbox();
    let config = FileSourceConfig {
        path: path.clone(),
        node_name: plan.node_name.clone(),
        check_period: plan.check_period,
    };
    let at = PathBuf::from(path);
    tasks.own(FileSource::new(config), SourceShell::new(to_reader, to), inbox);
    tasks.start(read_in_order(at.clone(), requests, tasks.clone(), to_source.clone()));
    tasks.start(watch_source(at, tasks.clone(), to_source.clone()));
    // The first tick asks for the first list.
    to_source.send(agent_core::pod_source::file::FileEvent::Tick);
    Box::new(to_source)
}

fn start_output(
    plan: &Plan,
    host: &Host,
    tasks: &Tasks,
) -> Option<mpsc::Sender<Arc<agent_core::runtime::observed::PodSnapshot>>> {
    if !plan.pod_output || !host.is_connected() {
        return None;
    }
    let (sender, snapshots) = mpsc::channel(pod_output::SNAPSHOTS_MAX);
    tasks.start(pod_output::follow(snapshots, host.clone(), tasks.now().wall));
    Some(sender)
}

fn start_pleg<R: Runtime, S: Signals>(
    runtime: &Arc<R>,
    signals: &S,
    tasks: &Tasks,
    (to_pleg, inbox): (Sender<PlegEvent>, Inbox<PlegEvent>),
    to_dispatcher: &Sender<DispatchEvent>,
    output: Option<mpsc::Sender<Arc<agent_core::runtime::observed::PodSnapshot>>>,
) -> watch::Receiver<Result<(), String>> {
    let shell =
        PlegShell::new(runtime.clone(), tasks.clone(), to_pleg.clone(), to_dispatcher.clone(), output);
    let health = shell.health();
    tasks.own(Pleg::new(agent_core::pleg::Config::default()), shell, inbox);
    let (receiver, driver) = signals.signals();
    tasks.start(driver);
    tasks.start(listen(receiver, to_pleg));
    health
}

/// The dispatcher's surroundings: makes workers and knows their mailboxes.
struct DispatchShell<R, I> {
    tasks: Tasks,
    executor: Executor<R, I>,
    own: Sender<DispatchEvent>,
    statuses: StatusStore,
    workers: BTreeMap<PodUid, Sender<PodEvent>>,
    context: watch::Receiver<Arc<WorkerContext>>,
    synced: watch::Sender<bool>,
}

impl<R: Runtime, I: ImageService> Shell for DispatchShell<R, I> {
    type Machine = Dispatcher;

    fn tick(&self) -> DispatchEvent {
        DispatchEvent::Tick
    }

    fn perform(&mut self, now: Now, action: DispatchAction) {
        match action {
            DispatchAction::Start { key, beginning, fence_until } => {
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
            DispatchAction::Tell { uid, event } => {
                if let Some(worker) = self.workers.get(&uid) {
                    worker.send(event);
                }
            }
            DispatchAction::Forget(uid) => {
                self.workers.remove(&uid);
            }
            DispatchAction::Synced => {
                tracing::info!("sources read and runtime listed");
                self.synced.send_replace(true);
            }
        }
    }
}

/// Where init keeps run-time state.
#[must_use]
pub fn run_dir() -> &'static Path {
    Path::new("/run/orlop")
}
