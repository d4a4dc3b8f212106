//! The shell of the eviction manager: signals, active pods, victims. docs/reference/eviction.md.
//!
//! ```text
//! Senses (files of the kernel, statistics, the runtime) ─┐                  ┌─► Node's conditions, events
//! desired pods, statuses ────────────────────────────────┼─► Eviction ──────┼─► manager ─► worker ─► released ─┐
//! pressure stall information ────────────────────────────┘      ▲           └─► unused images are freed        │
//!                                                               └──────────────────────────────────────────────┘
//! ```
//! Decisions are in [`agent_core::eviction`]. Invariant: every request of the state machine gets one answer, even if no
//! value can be read.

mod senses;

use std::collections::BTreeSet;
use std::future::Future;
use std::pin::Pin;
use std::sync::Arc;

use agent_core::events::Fact;
use agent_core::eviction::{
    Eviction, EvictionAction, EvictionConfig, EvictionEvent, EvictionReport, Measure, Observed, Reclaim,
    THRESHOLD_MET, Uses,
};
use agent_core::pod_manager::ManagerEvent;
use agent_kubelet_api::stats::ShownPod;
use agent_kubelet_api::stats::shown::shown;
use agent_types::event::EventKind;
use agent_types::ids::PodUid;
use agent_types::kill::{EVICTED, KillReason, TerminatingRecord};
use agent_types::resources::observation::{Layout, Observations};
use agent_types::time::Now;
use k8s_openapi::api::core::v1::Pod;
use tokio::sync::watch;

use crate::node::NodeHandles;
use crate::node::node_events::NodeEvents;
use crate::pods::desired_pods::DesiredPods;
use crate::pods::status::StatusStore;
use crate::tasks::actor::{Shell, Tasks};
use crate::tasks::alive::Owner;
use crate::tasks::mailbox::{Coalesce, Inbox, Relation, Sender};

pub use crate::node::eviction::senses::LinuxSenses;

/// An answer that arrives later.
pub type EvictionFuture<'a, T> = Pin<Box<dyn Future<Output = T> + Send + 'a>>;

/// Signals of the eviction manager, and the means to free resources without ending a pod.
pub trait Senses: Send + Sync + 'static {
    /// Available resources, and the layout of the file systems.
    fn observe(&self) -> EvictionFuture<'_, (Observations, Option<Layout>)>;
    /// Usage of these pods; disks are walked only for [`Measure::Storage`].
    fn uses(&self, measure: Measure, pods: Vec<ShownPod>) -> EvictionFuture<'_, Result<Uses, String>>;
    /// Frees unused images and containers.
    fn reclaim(&self, what: Reclaim) -> EvictionFuture<'_, ()>;
    /// Returns when tasks wait for memory; never returns if the kernel does not report this.
    fn pressed(&self) -> EvictionFuture<'_, ()>;
}

/// Pods whose eviction had begun and had not finished when the last agent ended.
#[must_use]
pub fn still_going(records: &[TerminatingRecord]) -> BTreeSet<PodUid> {
    let evicted = |record: &&TerminatingRecord| matches!(&record.reason, KillReason::Failed { reason, .. } if reason == EVICTED);
    records.iter().filter(evicted).map(|record| record.pod.uid.clone()).collect()
}

/// The eviction manager before its start: its mailbox exists, so the owners of pods can report to it.
pub struct PreparedEviction {
    config: EvictionConfig,
    senses: Arc<dyn Senses>,
    own: Sender<EvictionEvent>,
    inbox: Inbox<EvictionEvent>,
}

/// The pods' part of the eviction manager's inputs.
pub struct Deps<'a> {
    /// Handles of the node.
    pub node: &'a NodeHandles,
    /// Pods whose eviction had begun and had not finished when the last agent ended.
    pub going: BTreeSet<PodUid>,
    /// Pods that sources want.
    pub desired: watch::Receiver<DesiredPods>,
    /// Pods' statuses.
    pub statuses: StatusStore,
}

/// Makes the mailbox; `None` if the configuration has no threshold, or the node has no signals.
#[must_use]
pub fn prepare(
    config: EvictionConfig,
    senses: Option<Arc<dyn Senses>>,
    tasks: &Tasks,
) -> Option<PreparedEviction> {
    let senses = senses.filter(|_| !config.is_empty())?;
    let (own, inbox) = tasks.mailbox();
    Some(PreparedEviction { config, senses, own, inbox })
}

impl PreparedEviction {
    /// The mailbox.
    #[must_use]
    pub fn sender(&self) -> Sender<EvictionEvent> {
        self.own.clone()
    }

    /// Starts the owner. It looks as soon as the pods that are ending have ended.
    pub fn start(self, deps: Deps<'_>) -> Owner {
        let PreparedEviction { config, senses, own, inbox } = self;
        let Deps { node, going, desired, statuses } = deps;
        let NodeHandles { manager, node_events, tasks } = node.clone();
        if config.minds_memory() {
            tasks.start(follow_pressure(senses.clone(), own.clone()));
        }
        let machine = Eviction::new(config).waiting_for(going, tasks.now().mono);
        let shell = EvictionShell {
            tasks: tasks.clone(),
            senses,
            own: own.clone(),
            desired,
            statuses,
            manager,
            node_events,
        };
        tasks.own(machine, shell, inbox);
        Owner::new("eviction", own)
    }
}

async fn follow_pressure(senses: Arc<dyn Senses>, to: Sender<EvictionEvent>) {
    loop {
        senses.pressed().await;
        to.send(EvictionEvent::Pressed);
    }
}

struct EvictionShell {
    tasks: Tasks,
    senses: Arc<dyn Senses>,
    own: Sender<EvictionEvent>,
    desired: watch::Receiver<DesiredPods>,
    statuses: StatusStore,
    manager: Sender<ManagerEvent>,
    node_events: NodeEvents,
}

impl EvictionShell {
    /// Pods that have started and have not ended.
    fn active(&self) -> Vec<Arc<Pod>> {
        let desired = self.desired.borrow();
        let statuses = self.statuses.subscribe();
        let statuses = statuses.borrow();
        let is_active = |uid: &PodUid| {
            statuses.get(uid).is_some_and(|view| !matches!(view.phase(), "Failed" | "Succeeded"))
        };
        desired.iter().filter(|(uid, _)| is_active(uid)).map(|(_, pod)| Arc::clone(pod)).collect()
    }

    fn shown(&self, only: Option<&BTreeSet<PodUid>>) -> Vec<ShownPod> {
        let desired = self.desired.borrow();
        let pods = desired.iter().filter(|(uid, _)| only.is_none_or(|only| only.contains(*uid)));
        pods.map(|(uid, pod)| shown(pod, self.statuses.get(uid).as_deref())).collect()
    }

    fn measure(&self, measure: Measure, only: Option<&BTreeSet<PodUid>>, answer: fn(Uses) -> EvictionEvent) {
        let (senses, own, pods) = (self.senses.clone(), self.own.clone(), self.shown(only));
        self.tasks.start(async move {
            let found = senses.uses(measure, pods).await.unwrap_or_else(|problem| {
                tracing::warn!(problem, "what pods use is not known; those who go are chosen without");
                Uses::new()
            });
            own.send(answer(found));
        });
    }

    fn report(report: &EvictionReport) {
        match report {
            EvictionReport::Resolved(resource) => {
                tracing::info!(resource = resource.as_str(), "enough was freed without ending a pod");
            }
            EvictionReport::Ranked(resource, pods) => {
                let order = pods.iter().map(ToString::to_string).collect::<Vec<_>>().join(", ");
                tracing::info!(resource = resource.as_str(), order, "a pod has to go; the first that may");
            }
            EvictionReport::Nobody(resource) => {
                tracing::warn!(resource = resource.as_str(), "the node is short of it and no pod may go");
            }
            EvictionReport::TimedOut(uid) => {
                tracing::warn!(%uid, "an evicted pod still takes its room; others may go now");
            }
        }
    }
}

impl Shell for EvictionShell {
    type Machine = Eviction;

    fn tick(&self) -> EvictionEvent {
        EvictionEvent::Tick
    }

    fn perform(&mut self, now: Now, action: EvictionAction) {
        match action {
            EvictionAction::Observe => {
                let (senses, own, pods) = (self.senses.clone(), self.own.clone(), self.active());
                self.tasks.start(async move {
                    let (signals, layout) = senses.observe().await;
                    own.send(EvictionEvent::Observed(Box::new(Observed { signals, layout, pods })));
                });
            }
            EvictionAction::Measure(measure) => self.measure(measure, None, EvictionEvent::Measured),
            EvictionAction::MeasureLimited(pods) => {
                self.measure(Measure::Storage, Some(&pods), EvictionEvent::Limited);
            }
            EvictionAction::Reclaim(what) => {
                let (senses, own) = (self.senses.clone(), self.own.clone());
                self.tasks.start(async move {
                    senses.reclaim(what).await;
                    own.send(EvictionEvent::Reclaimed);
                });
            }
            EvictionAction::Evict(victim) => drop(self.manager.send(ManagerEvent::Evict(victim))),
            EvictionAction::Pressures(pressures) => {
                // The manager first: admission must refuse pods before the pressure is published.
                self.manager.send(ManagerEvent::Pressures(pressures));
                self.node_events.pressures(pressures);
                let (memory, disk, pid) = (pressures.memory, pressures.disk, pressures.pid);
                tracing::info!(memory, disk, pid, "what the node is short of");
            }
            EvictionAction::ThresholdMet(message) => {
                self.node_events.of_node(Fact::of_node(EventKind::Warning, THRESHOLD_MET, message));
            }
            EvictionAction::Decided(signal, at) => {
                self.node_events.metrics().eviction_decided(signal.as_str(), now.wall.since(at));
            }
            EvictionAction::Report(report) => EvictionShell::report(&report),
        }
    }
}

impl Coalesce for EvictionEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (EvictionEvent::Tick, EvictionEvent::Tick) | (EvictionEvent::Pressed, EvictionEvent::Pressed) => {
                Relation::Supersedes
            }
            _ => Relation::Independent,
        }
    }
}

#[cfg(test)]
mod tests;
