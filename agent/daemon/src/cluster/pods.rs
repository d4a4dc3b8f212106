//! The owners of pods' API side: the API source, the status manager, the mirror pods.
//!
//! ```text
//! pod watch ─┬─► ApiSource ─► manager
//!            ├─► StatusManager ─► calls
//!            └─► MirrorPods ───► calls
//! ```
//! In: watch events, actions of workers ([`crate::node::node_events`]). Out: calls, desired pods, log lines. Decisions
//! are in [`agent_core::pod_source::api`], [`agent_core::status_manager`], [`agent_core::mirror_pods`].

use agent_core::events::{Fact, RecorderEvent};
use agent_core::mirror_pods::{MirrorAction, MirrorEvent, MirrorPods, MirrorReport};
use agent_core::node_shutdown::ShutdownEvent;
use agent_core::pod_manager::ManagerEvent;
use agent_core::pod_source::api::{ApiSource, ApiSourceAction, ApiSourceEvent, ApiSourceReport};
use agent_core::status_manager::{StatusAction, StatusEvent, StatusManager, StatusReport};
use agent_types::api::{ApiServer, WatchEvent};
use agent_types::time::Now;
use k8s_openapi::api::core::v1::Pod;

use super::calls::Caller;
use crate::serving::metrics::Metrics;
use crate::tasks::actor::Shell;
use crate::tasks::mailbox::{Coalesce, Relation, Sender};

/// Receivers of the pod watch.
#[derive(Clone)]
pub struct PodWatchers {
    /// The API source.
    pub source: Sender<ApiSourceEvent>,
    /// The status manager.
    pub status: Sender<StatusEvent>,
    /// The mirror pods.
    pub mirrors: Sender<MirrorEvent>,
    /// Metrics of the node.
    pub metrics: Metrics,
}

impl PodWatchers {
    /// Sends one event to all receivers; they share the pods.
    pub fn hear(&self, event: &WatchEvent<Pod>) {
        self.metrics.watched(event);
        // The status manager first: it must know a pod before the pod's worker publishes a status.
        self.status.send(StatusEvent::Watch(event.clone()));
        self.mirrors.send(MirrorEvent::Watch(event.clone()));
        self.source.send(ApiSourceEvent::Watch(event.clone()));
    }
}

/// The API source's surroundings.
pub struct ApiSourceShell {
    /// The pod manager.
    pub manager: Sender<ManagerEvent>,
    /// The event recorder.
    pub recorder: Sender<RecorderEvent>,
}

impl Shell for ApiSourceShell {
    type Machine = ApiSource;

    fn tick(&self) -> ApiSourceEvent {
        ApiSourceEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: ApiSourceAction) {
        match action {
            ApiSourceAction::Deliver(update) => {
                self.manager.send(ManagerEvent::Update(update));
            }
            ApiSourceAction::Report(ApiSourceReport::Ready(pods)) => {
                tracing::info!(pods, "pods of the API server are known");
            }
            ApiSourceAction::Report(ApiSourceReport::Ignored { pod, problem }) => {
                tracing::error!(pod, problem, "pod of the API server ignored");
            }
            ApiSourceAction::Report(ApiSourceReport::Duplicate(duplicate)) => {
                let fact = Fact::left_out(&duplicate);
                tracing::error!(reason = fact.reason, message = fact.message, "event");
                self.recorder.send(RecorderEvent::Record(fact));
            }
            ApiSourceAction::Report(ApiSourceReport::Lost(problem)) => {
                tracing::warn!(
                    problem,
                    "pods of the API server are not watched; running pods stay as they are"
                );
            }
        }
    }
}

/// The status manager's surroundings.
pub struct StatusShell<A> {
    /// The way to the API server.
    pub caller: Caller<A>,
    /// Its own mailbox, for answers.
    pub own: Sender<StatusEvent>,
    /// The mirror pods.
    pub mirrors: Sender<MirrorEvent>,
    /// Metrics of the node.
    pub metrics: Metrics,
    /// Receives the statuses that are not sent yet.
    pub shutdown: Option<Sender<ShutdownEvent>>,
}

impl<A: ApiServer> Shell for StatusShell<A> {
    type Machine = StatusManager;

    fn tick(&self) -> StatusEvent {
        StatusEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: StatusAction) {
        match action {
            StatusAction::Call { id, call } => {
                let own = self.own.clone();
                self.caller.send(call, move |result| {
                    own.send(StatusEvent::Answer { id, result });
                });
            }
            StatusAction::Outdated { name, uid } => {
                tracing::info!(pod = %name.name, namespace = %name.namespace, uid, "mirror pod of an earlier run");
                self.mirrors.send(MirrorEvent::Outdated { name, uid });
            }
            StatusAction::Untold(untold) => {
                if let Some(shutdown) = &self.shutdown {
                    shutdown.send(ShutdownEvent::Untold(untold));
                }
            }
            StatusAction::Report(StatusReport::Failed { pod, error }) => tracing::warn!(
                pod = %pod.name, namespace = %pod.namespace, uid = %pod.uid, %error, "status not written yet"
            ),
            StatusAction::Report(StatusReport::Illegal { pod, problem }) => tracing::error!(
                pod = %pod.name, namespace = %pod.namespace, uid = %pod.uid, problem, "status refused"
            ),
            StatusAction::Report(StatusReport::Told { took }) => self.metrics.status_told(took),
            StatusAction::Report(StatusReport::Deleted(pod)) => tracing::info!(
                pod = %pod.name, namespace = %pod.namespace, uid = %pod.uid, "pod is over; its object is deleted"
            ),
        }
    }
}

/// The mirror pods' surroundings.
pub struct MirrorShell<A> {
    /// The way to the API server.
    pub caller: Caller<A>,
    /// Its own mailbox, for answers.
    pub own: Sender<MirrorEvent>,
}

impl<A: ApiServer> Shell for MirrorShell<A> {
    type Machine = MirrorPods;

    fn tick(&self) -> MirrorEvent {
        MirrorEvent::Tick
    }

    fn perform(&mut self, _now: Now, action: MirrorAction) {
        match action {
            MirrorAction::Call { id, call } => {
                let own = self.own.clone();
                self.caller.send(call, move |result| {
                    own.send(MirrorEvent::Answer { id, result });
                });
            }
            MirrorAction::Report(MirrorReport::Created(name)) => {
                tracing::info!(pod = %name.name, namespace = %name.namespace, "mirror pod created");
            }
            MirrorAction::Report(MirrorReport::Deleted(name)) => {
                tracing::info!(pod = %name.name, namespace = %name.namespace, "mirror pod deleted");
            }
            MirrorAction::Report(MirrorReport::NameTaken(name)) => tracing::warn!(
                pod = %name.name, namespace = %name.namespace,
                "a pod that is no mirror pod has the name of a static pod: the static pod is not shown"
            ),
            MirrorAction::Report(MirrorReport::Failed(error)) => {
                tracing::warn!(%error, "mirror pod not up to date yet");
            }
        }
    }
}

/// A complete list makes everything that was queued before it superfluous; single pods must stay in order.
fn watch_relation(queued: &WatchEvent<Pod>, newer: &WatchEvent<Pod>) -> Relation {
    match (queued, newer) {
        (WatchEvent::Listed(_), WatchEvent::Listed(_)) | (WatchEvent::Lost(_), WatchEvent::Lost(_)) => {
            Relation::Supersedes
        }
        _ => Relation::Ordered,
    }
}

impl Coalesce for ApiSourceEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (ApiSourceEvent::Watch(a), ApiSourceEvent::Watch(b)) => watch_relation(a, b),
            (ApiSourceEvent::Tick, ApiSourceEvent::Tick) => Relation::Supersedes,
            _ => Relation::Independent,
        }
    }
}

impl Coalesce for StatusEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (StatusEvent::Watch(a), StatusEvent::Watch(b)) => watch_relation(a, b),
            (StatusEvent::Tick, StatusEvent::Tick)
            | (StatusEvent::MachineStays(_), StatusEvent::MachineStays(_)) => Relation::Supersedes,
            (StatusEvent::Published { pod: a, .. }, StatusEvent::Published { pod: b, .. })
                if a.uid == b.uid =>
            {
                Relation::Supersedes
            }
            // Events of one pod keep their order.
            (StatusEvent::Published { .. } | StatusEvent::Terminated(_) | StatusEvent::Finished(_), _)
                if !matches!(
                    newer,
                    StatusEvent::Answer { .. } | StatusEvent::Tick | StatusEvent::Watch(_)
                ) =>
            {
                if uid(self) == uid(newer) {
                    Relation::Ordered
                } else {
                    Relation::Independent
                }
            }
            // The status manager must know a pod before its status.
            (StatusEvent::Watch(_), StatusEvent::Published { .. }) => Relation::Ordered,
            _ => Relation::Independent,
        }
    }
}

fn uid(event: &StatusEvent) -> Option<&agent_types::ids::PodUid> {
    match event {
        StatusEvent::Published { pod, .. } | StatusEvent::Terminated(pod) | StatusEvent::Finished(pod) => {
            Some(&pod.uid)
        }
        StatusEvent::Watch(_)
        | StatusEvent::Answer { .. }
        | StatusEvent::MachineStays(_)
        | StatusEvent::AskUntold
        | StatusEvent::Tick => None,
    }
}

impl Coalesce for MirrorEvent {
    fn relation(&self, newer: &Self) -> Relation {
        match (self, newer) {
            (MirrorEvent::Watch(a), MirrorEvent::Watch(b)) => watch_relation(a, b),
            (MirrorEvent::Node(_), MirrorEvent::Node(_)) | (MirrorEvent::Tick, MirrorEvent::Tick) => {
                Relation::Supersedes
            }
            (MirrorEvent::Answer { .. }, _) | (_, MirrorEvent::Answer { .. }) => Relation::Independent,
            (MirrorEvent::Tick, _) | (_, MirrorEvent::Tick) => Relation::Independent,
            _ => Relation::Ordered,
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use agent_types::ids::PodKey;

    use super::*;

    fn key(uid: &str) -> PodKey {
        PodKey { namespace: "ns".into(), name: "web".into(), uid: uid.into() }
    }

    #[test]
    fn the_newest_status_wins_and_the_end_is_never_overtaken() {
        let published = |uid: &str| StatusEvent::Published { pod: key(uid), status: Arc::default() };
        let terminated = |uid: &str| StatusEvent::Terminated(key(uid));
        for (queued, newer, relation) in [
            (published("a"), published("a"), Relation::Supersedes),
            (published("a"), published("b"), Relation::Independent),
            (published("a"), terminated("a"), Relation::Ordered),
            (terminated("a"), published("a"), Relation::Ordered),
            (terminated("a"), published("b"), Relation::Independent),
            (StatusEvent::Finished(key("a")), published("a"), Relation::Ordered),
            (StatusEvent::Watch(WatchEvent::Listed(Vec::new())), published("a"), Relation::Ordered),
            (StatusEvent::Tick, published("a"), Relation::Independent),
            (StatusEvent::Tick, StatusEvent::Tick, Relation::Supersedes),
        ] {
            assert_eq!(queued.relation(&newer), relation, "{queued:?} then {newer:?}");
        }
    }

    #[test]
    fn single_changes_of_a_watch_keep_their_order() {
        let applied = || WatchEvent::Applied(Arc::<Pod>::default());
        let listed = || WatchEvent::<Pod>::Listed(Vec::new());
        assert_eq!(watch_relation(&applied(), &applied()), Relation::Ordered);
        assert_eq!(watch_relation(&listed(), &applied()), Relation::Ordered);
        assert_eq!(watch_relation(&listed(), &listed()), Relation::Supersedes);
    }
}
