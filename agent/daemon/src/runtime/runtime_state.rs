//! Polls the readiness of the runtime and its network, and the facts of the node.
//!
//! In: the runtime's `Status`, the machine. Out: [`ManagerEvent::Network`], [`ManagerEvent::Context`], and a view for
//! readiness. The period is 5 s while the runtime or its network is not ready (as upstream's `updateRuntimeUp`,
//! pkg/kubelet/kubelet.go), 30 s otherwise.

use std::sync::Arc;
use std::time::Duration;

use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_worker::WorkerContext;
use agent_kubelet_api::drivers::Runtime;
use agent_types::runtime::status::RuntimeHandler;
use k8s_openapi::api::core::v1::NodeAddress;
use tokio::sync::watch;

use crate::node::NodeHandles;
use crate::tasks::actor::Tasks;
use crate::tasks::mailbox::Sender;

const WHILE_NOT_READY: Duration = Duration::from_secs(5);
const WHILE_READY: Duration = Duration::from_secs(30);

/// The runtime's last status.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct RuntimeState {
    /// `RuntimeReady`, or why not (also: it does not answer).
    pub runtime: Result<(), String>,
    /// `NetworkReady`, or why not.
    pub network: Result<(), String>,
    /// The runtime's handlers, if it lists them.
    pub handlers: Vec<RuntimeHandler>,
}

impl RuntimeState {
    /// Asks the runtime once.
    pub async fn ask<R: Runtime>(runtime: &R) -> RuntimeState {
        match runtime.status().await {
            Ok(status) => RuntimeState {
                runtime: status.runtime_ready,
                network: status.network_ready,
                handlers: status.handlers,
            },
            Err(e) => RuntimeState {
                runtime: Err(format!("container runtime is down: {e}")),
                // The network is not the cause; pods that wait for the runtime notice its state themselves.
                network: Ok(()),
                handlers: Vec::new(),
            },
        }
    }

    fn is_ready(&self) -> bool {
        self.runtime.is_ok() && self.network.is_ok()
    }
}

/// Builds the workers' context from the machine's present state.
pub trait ContextSource: Send + Sync + 'static {
    /// The context as of now. `shown` are the node's addresses as its cluster shows them, empty before it does and on
    /// a standalone node; `handlers` are the runtime's. May block for small reads of /proc and /sys.
    ///
    /// # Errors
    /// Why the machine cannot be read; the old context stays.
    fn worker_context(
        &self,
        shown: &[NodeAddress],
        handlers: &[RuntimeHandler],
    ) -> anyhow::Result<WorkerContext>;
}

/// Inputs of the polling.
pub struct Deps<'a, R, C> {
    /// Handles of the node.
    pub node: &'a NodeHandles,
    /// CRI RuntimeService.
    pub runtime: Arc<R>,
    /// The runtime's status before the start.
    pub state: RuntimeState,
    /// The machine.
    pub facts: Arc<C>,
    /// The Node's addresses; none on a standalone node.
    pub addresses: Option<watch::Receiver<Vec<NodeAddress>>>,
    /// Shows the workers' context.
    pub context: watch::Sender<Arc<WorkerContext>>,
}

/// Starts the observation; the state of the runtime is shown, the manager is sent changes.
pub fn start<R: Runtime, C: ContextSource>(deps: Deps<'_, R, C>) -> watch::Receiver<RuntimeState> {
    let Deps { node, runtime, state, facts, addresses, context } = deps;
    let (view, shown) = watch::channel(state);
    let (manager, tasks) = (node.manager.clone(), node.tasks.clone());
    let observer = Observation { runtime, facts, addresses, view, context, manager, tasks };
    node.tasks.start(observer.follow());
    shown
}

struct Observation<R, C> {
    runtime: Arc<R>,
    facts: Arc<C>,
    addresses: Option<watch::Receiver<Vec<NodeAddress>>>,
    view: watch::Sender<RuntimeState>,
    context: watch::Sender<Arc<WorkerContext>>,
    manager: Sender<ManagerEvent>,
    tasks: Tasks,
}

impl<R: Runtime, C: ContextSource> Observation<R, C> {
    /// Keeps the views and the manager informed until the node stops.
    async fn follow(self) {
        let Observation { runtime, facts, mut addresses, view, context, manager: to, tasks } = self;
        loop {
            let every = if view.borrow().is_ready() { WHILE_READY } else { WHILE_NOT_READY };
            tokio::select! {
                // Both only wait.
                () = tasks.wait_until(tasks.now().mono.after(every)) => {}
                () = changed(addresses.as_mut()) => {}
            }
            let mut state = RuntimeState::ask(&*runtime).await;
            if state.runtime.is_err() {
                // A runtime that does not answer keeps its known handlers.
                state.handlers.clone_from(&view.borrow().handlers);
            }
            let handlers = state.handlers.clone();
            let before = view.send_replace(state.clone());
            if before != state {
                tracing::info!(runtime = ?state.runtime, network = ?state.network, "runtime state");
                to.send(ManagerEvent::Network(state.network));
            }
            let source = facts.clone();
            let shown = addresses.as_mut().map(|a| a.borrow_and_update().clone()).unwrap_or_default();
            match tasks.blocking(move || source.worker_context(&shown, &handlers)).await {
                Some(Ok(new)) => {
                    // The whole context is plain data; its text is its identity.
                    let old = context.borrow().clone();
                    if format!("{new:?}") != format!("{old:?}") {
                        tracing::info!(addresses = new.host_ips.join(" "), "node facts changed");
                        let new = Arc::new(new);
                        context.send_replace(new.clone());
                        to.send(ManagerEvent::Context(new));
                    }
                }
                Some(Err(error)) => tracing::warn!(error = format!("{error:#}"), "node facts cannot be read"),
                None => return,
            }
        }
    }
}

/// Waits for a change of the addresses; never returns if there can be none.
async fn changed(addresses: Option<&mut watch::Receiver<Vec<NodeAddress>>>) {
    let there = match addresses {
        Some(addresses) => addresses.changed().await.is_ok(),
        None => false,
    };
    if !there {
        std::future::pending::<()>().await;
    }
}
