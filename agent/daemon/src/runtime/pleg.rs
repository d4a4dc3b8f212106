//! The shell of PLEG: lists the runtime, receives its event stream, forwards changes.
//!
//! ```text
//! CRI event stream ──► signals ──┐                          ┌─► manager (which pods changed, first list)
//! relist, inspect ──► answers ───┴─► mailbox ─► Pleg ───────┴─► pod output, links to logs, running logs
//! ```
//! See [`agent_core::pleg`] for the decisions.

use std::future::Future;
use std::sync::Arc;

use agent_core::pleg::{Pleg, PlegAction, PlegEvent};
use agent_core::pod_manager::ManagerEvent;
use agent_kubelet_api::drivers::Runtime;
use agent_kubelet_api::logs::rotation::{self, RunningLogs};
use agent_types::ids::{PodKey, PodUid};
use agent_types::runtime::observed::{ListedPod, PodSnapshot, RelistReason, RuntimeSignal};
use agent_types::time::{Mono, Now};
use tokio::sync::{mpsc, watch};

use crate::node::NodeHandles;
use crate::pods::pod_dirs::log_links::Observed;
use crate::runtime::inspect::Observer;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

/// CRI's number of `CONTAINER_RUNNING`.
const RUNNING: i32 = 1;

/// Inputs of PLEG.
pub struct Deps<'a, R, S> {
    /// Handles of the node.
    pub node: &'a NodeHandles,
    /// The runtime's event stream.
    pub signals: &'a S,
    /// Lists and inspects pods.
    pub observer: Observer<R>,
    /// PLEG's mailbox, for answers and for the runtime's signals.
    pub own: Sender<PlegEvent>,
    /// The receiving end of the mailbox.
    pub inbox: Inbox<PlegEvent>,
    /// Follows containers' output, if the host wants it.
    pub output: Option<mpsc::Sender<Arc<PodSnapshot>>>,
    /// Keeps links to containers' logs.
    pub links: Sender<Observed>,
}

/// Views of PLEG.
pub struct PlegHandles {
    /// Whether PLEG is healthy, for checks and conditions.
    pub health: watch::Receiver<Result<(), String>>,
    /// The logs that are being written to.
    pub running_logs: watch::Receiver<RunningLogs>,
    /// Its mailbox.
    pub events: Sender<PlegEvent>,
}

/// Starts PLEG; changes go to the manager.
pub fn start<R: Runtime, S: Signals>(deps: Deps<'_, R, S>) -> PlegHandles {
    let Deps { node, signals, observer, own, inbox, output, links } = deps;
    let NodeHandles { manager, node_events, tasks } = node.clone();
    let health = watch::Sender::new(Err("pleg has yet to be successful".to_owned()));
    let logs = watch::Sender::default();
    let handles =
        PlegHandles { health: health.subscribe(), running_logs: logs.subscribe(), events: own.clone() };
    let shell = PlegShell {
        observer,
        tasks: tasks.clone(),
        metrics: node_events.metrics().clone(),
        own: own.clone(),
        manager,
        output,
        links,
        logs,
        health,
        listed: false,
    };
    tasks.own(Pleg::new(agent_core::pleg::Config::default()), shell, inbox);
    let (receiver, driver) = signals.signals();
    tasks.start(driver);
    tasks.start(listen(receiver, own));
    handles
}

/// PLEG's surroundings.
struct PlegShell<R> {
    observer: Observer<R>,
    tasks: Tasks,
    metrics: Metrics,
    own: Sender<PlegEvent>,
    manager: Sender<ManagerEvent>,
    /// Receives snapshots to follow containers' output, if output is followed; a full queue loses only a hint.
    output: Option<mpsc::Sender<Arc<PodSnapshot>>>,
    links: Sender<Observed>,
    /// Which logs are being written to.
    logs: watch::Sender<RunningLogs>,
    /// When the runtime was last listed, for health checks.
    health: watch::Sender<Result<(), String>>,
    listed: bool,
}

impl<R: Runtime> PlegShell<R> {
    fn relist(&self) {
        let (observer, tasks, own) = (self.observer.clone(), self.tasks.clone(), self.own.clone());
        let metrics = self.metrics.clone();
        self.tasks.start(async move {
            let as_of = tasks.now().mono;
            let result = observer.list().await.map_err(|e| e.to_string());
            metrics.listed(result.as_deref().ok(), tasks.now().mono.since(as_of));
            if let Err(error) = &result {
                tracing::warn!(error, "relist failed");
            }
            own.send(PlegEvent::Listed { as_of, result });
        });
    }

    fn inspect(&self, uid: PodUid) {
        let (observer, tasks, own) = (self.observer.clone(), self.tasks.clone(), self.own.clone());
        let metrics = self.metrics.clone();
        self.tasks.start(async move {
            let as_of = tasks.now().mono;
            let inspected = observer.inspect(&uid).await;
            metrics.looked_at(tasks.now().mono.since(as_of));
            let event = match inspected {
                Ok((key, observation)) => PlegEvent::Inspected(Arc::new(PodSnapshot {
                    pod: key.unwrap_or_else(|| PodKey { namespace: "".into(), name: "".into(), uid }),
                    as_of,
                    sandboxes: observation.sandboxes,
                    containers: observation.containers,
                    actuated: observation.actuated,
                })),
                Err(error) => {
                    tracing::warn!(%uid, %error, "inspection failed");
                    PlegEvent::InspectFailed { uid }
                }
            };
            own.send(event);
        });
    }
}

impl<R: Runtime> Shell for PlegShell<R> {
    type Machine = Pleg;

    fn tick(&self) -> PlegEvent {
        PlegEvent::Tick
    }

    fn before(&mut self, _now: Now, event: &PlegEvent) {
        if let PlegEvent::Inspected(snapshot) = event {
            self.metrics.inspected(snapshot);
        }
        // The first list shows the manager the pods that an earlier incarnation left in the runtime.
        if let PlegEvent::Listed { result: Ok(pods), .. } = event
            && !std::mem::replace(&mut self.listed, true)
        {
            let runs = |pod: &&ListedPod| pod.containers.values().any(|state| *state == RUNNING);
            let running = pods.iter().filter(runs).map(|p| p.pod.uid.clone()).collect();
            self.manager.send(ManagerEvent::Running(running));
            self.manager.send(ManagerEvent::Listed(pods.iter().map(|p| p.pod.clone()).collect()));
        }
    }

    fn perform(&mut self, _now: Now, action: PlegAction) {
        match action {
            PlegAction::Relist => self.relist(),
            PlegAction::Inspect { uid } => self.inspect(uid),
            PlegAction::Changed(snapshot) => {
                if let Some(output) = &self.output {
                    // A full queue means that the receiver is busy; the pod's next change is sent again.
                    let _ = output.try_send(snapshot.clone());
                }
                self.logs.send_if_modified(|logs| rotation::observe(logs, &snapshot));
                self.links.send(Observed(snapshot.clone()));
                self.manager.send(ManagerEvent::Changed(snapshot));
            }
        }
    }

    fn after(&mut self, now: Now, pleg: &Pleg) -> bool {
        let health = pleg.health(now.mono);
        self.health.send_if_modified(|h| std::mem::replace(h, health.clone()) != health);
        true
    }
}

/// Carries signals into PLEG's mailbox until the stream's driver ends.
async fn listen(mut signals: mpsc::Receiver<RuntimeSignal>, to: Sender<PlegEvent>) {
    while let Some(signal) = signals.recv().await {
        to.send(match signal {
            RuntimeSignal::Hint(hint) => PlegEvent::Hint(hint),
            RuntimeSignal::Relist(RelistReason::Lost) => PlegEvent::StreamDown,
            RuntimeSignal::Relist(RelistReason::Established | RelistReason::Unnamed) => PlegEvent::StreamUp,
            RuntimeSignal::Unsupported => {
                tracing::warn!("the runtime has no event stream: changes are seen by relisting only");
                PlegEvent::StreamDown
            }
        });
    }
}

/// A source of the runtime's events: the CRI client in production, fakes in tests.
pub trait Signals: Send + Sync + 'static {
    /// The signals, and the future that produces them.
    fn signals(&self) -> (mpsc::Receiver<RuntimeSignal>, impl Future<Output = ()> + Send + 'static);
}

impl Coalesce for PlegEvent {
    fn relation(&self, newer: &Self) -> Relation {
        let at = |s: &PodSnapshot| (s.pod.uid.clone(), s.as_of);
        match (self, newer) {
            (PlegEvent::Hint(a), PlegEvent::Hint(b)) if a.uid == b.uid => Relation::Supersedes,
            (PlegEvent::Tick, PlegEvent::Tick) | (PlegEvent::Scraped, PlegEvent::Scraped) => {
                Relation::Supersedes
            }
            (PlegEvent::StreamUp | PlegEvent::StreamDown, _)
            | (_, PlegEvent::StreamUp | PlegEvent::StreamDown) => Relation::Ordered,
            (PlegEvent::Inspected(a), PlegEvent::Inspected(b)) if supersedes(at(a), at(b)) => {
                Relation::Supersedes
            }
            _ => Relation::Independent,
        }
    }
}

/// A newer snapshot of the same pod replaces an older one.
fn supersedes(older: (PodUid, Mono), newer: (PodUid, Mono)) -> bool {
    older.0 == newer.0 && older.1 <= newer.1
}

#[cfg(test)]
mod tests {
    use super::*;
    use agent_types::runtime::observed::RuntimeHint;

    #[test]
    fn hints_of_one_pod_coalesce_but_not_across_a_break_of_the_stream() {
        let hint = |uid: &str| PlegEvent::Hint(RuntimeHint { uid: uid.into() });
        assert_eq!(hint("a").relation(&hint("a")), Relation::Supersedes);
        assert_eq!(hint("a").relation(&hint("b")), Relation::Independent);
        assert_eq!(PlegEvent::StreamUp.relation(&hint("a")), Relation::Ordered);
        assert_eq!(hint("a").relation(&PlegEvent::StreamDown), Relation::Ordered);
    }

    #[test]
    fn many_scrapes_are_one_event() {
        assert_eq!(PlegEvent::Scraped.relation(&PlegEvent::Scraped), Relation::Supersedes);
        assert_eq!(PlegEvent::Tick.relation(&PlegEvent::Scraped), Relation::Independent);
    }
}
