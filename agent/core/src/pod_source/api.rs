//! Pods that the API server binds to this node: translates a watch to [`PodUpdate`]s.
//!
//! # For the shell
//! Watch pods with the field selector `spec.nodeName=<node>`, once the Node is known. Give every
//! [`WatchEvent<Pod>`] in order to this machine, to [`MirrorPods`](crate::mirror_pods::MirrorPods) and to
//! [`StatusManager`](crate::status_manager::StatusManager) (cloning shares the pods). Send each
//! [`ApiSourceAction::Deliver`] to the pod manager, whose expected sources contain [`Source::Api`] as long as
//! the node has an API server configured, reachable or not.
//!
//! In: [`ApiSourceEvent`]. Out: [`ApiSourceAction`]. Invariants: nothing is delivered before the first
//! complete list, which makes the source ready (an empty list too); the cost of a change does not grow with
//! the number of pods; pods stay as they are while the API server is unreachable; a pod of another node, or
//! one without a proper name, namespace and UID, is reported and ignored; every other pod is delivered, also
//! with faulty content: admission rejects pods that cannot run, so that the API shows the reason. Upstream:
//! pkg/kubelet/config/apiserver.go.

use std::sync::Arc;

use agent_types::api::WatchEvent;
use agent_types::machine::{Machine, Outbox};
use agent_types::pod;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::Pod;

use super::storage::DuplicateName;
use super::{PodStorage, PodUpdate, Source, validate};

/// What the source reacts to.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiSourceEvent {
    /// An event of the pod watch.
    Watch(WatchEvent<Pod>),
    /// Does nothing; there is no deadline.
    Tick,
}

/// A request of the source to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum ApiSourceAction {
    /// Send the pod manager an update.
    Deliver(PodUpdate),
    /// Report this in the log.
    Report(ApiSourceReport),
}

/// What people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ApiSourceReport {
    /// The first list has come; the number of pods in it.
    Ready(usize),
    /// A pod that cannot be this node's: its name as far as it has one, and why.
    Ignored {
        /// `name_namespace`, shortened.
        pod: String,
        /// What is wrong.
        problem: String,
    },
    /// Two pods of one name in one list.
    Duplicate(DuplicateName),
    /// The server cannot be reached; reported once until it is back.
    Lost(String),
}

/// The machine.
#[derive(Clone, Debug)]
pub struct ApiSource {
    node_name: String,
    storage: PodStorage,
    lost: bool,
}

impl ApiSource {
    /// The source of the pods of `node_name`.
    #[must_use]
    pub fn new(node_name: impl Into<String>) -> ApiSource {
        ApiSource { node_name: node_name.into(), storage: PodStorage::new(Source::Api), lost: false }
    }

    /// True after the first list.
    #[must_use]
    pub fn is_ready(&self) -> bool {
        self.storage.seen()
    }

    /// How many pods are bound to the node, mirror pods included.
    #[must_use]
    pub fn len(&self) -> usize {
        self.storage.pods().count()
    }

    /// True if no pod is bound to the node.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    fn listed(&mut self, pods: Vec<Arc<Pod>>, now: Now, out: &mut Outbox<ApiSourceAction>) {
        self.lost = false;
        let first = !self.is_ready();
        let ours: Vec<Arc<Pod>> = pods.into_iter().filter(|pod| self.takes(pod, out)).collect();
        if first {
            out.push(ApiSourceAction::Report(ApiSourceReport::Ready(ours.len())));
        }
        let (updates, duplicates) = self.storage.set(ours, now.wall);
        for duplicate in duplicates {
            out.push(ApiSourceAction::Report(ApiSourceReport::Duplicate(duplicate)));
        }
        deliver(updates, out);
    }

    fn takes(&self, pod: &Pod, out: &mut Outbox<ApiSourceAction>) -> bool {
        match refusal(pod, &self.node_name) {
            None => true,
            Some(problem) => {
                let pod: String = pod::full_name(pod).chars().take(128).collect();
                out.push(ApiSourceAction::Report(ApiSourceReport::Ignored { pod, problem }));
                false
            }
        }
    }
}

/// Why `pod` of the API is none that this node can speak of.
#[must_use]
pub fn refusal(pod: &Pod, node_name: &str) -> Option<String> {
    let mistakes = validate::identity(pod);
    if let Some(mistake) = mistakes.first() {
        return Some(mistake.to_string().chars().take(512).collect());
    }
    let bound_to = pod.spec.as_ref().and_then(|s| s.node_name.as_deref()).unwrap_or("");
    // A pod without spec has no node; it came through the node's selector and is answered with a status.
    if pod.spec.is_some() && bound_to != node_name {
        let bound_to: String = bound_to.chars().take(128).collect();
        return Some(format!("the pod is bound to node {bound_to:?}, this is {node_name:?}"));
    }
    None
}

fn deliver(updates: Vec<PodUpdate>, out: &mut Outbox<ApiSourceAction>) {
    for update in updates {
        out.push(ApiSourceAction::Deliver(update));
    }
}

impl Machine for ApiSource {
    type Event = ApiSourceEvent;
    type Action = ApiSourceAction;

    fn step(&mut self, now: Now, event: ApiSourceEvent, out: &mut Outbox<ApiSourceAction>) {
        match event {
            ApiSourceEvent::Watch(WatchEvent::Listed(pods)) => self.listed(pods, now, out),
            ApiSourceEvent::Watch(WatchEvent::Applied(pod)) if self.is_ready() => {
                self.lost = false;
                if self.takes(&pod, out) {
                    deliver(self.storage.apply(&pod, now.wall), out);
                }
            }
            ApiSourceEvent::Watch(WatchEvent::Deleted(pod)) if self.is_ready() => {
                self.lost = false;
                deliver(self.storage.remove(pod::uid(&pod)), out);
            }
            ApiSourceEvent::Watch(WatchEvent::Lost(why)) => {
                if !std::mem::replace(&mut self.lost, true) {
                    out.push(ApiSourceAction::Report(ApiSourceReport::Lost(why)));
                }
            }
            // Before the first list a change is a part of it.
            ApiSourceEvent::Watch(WatchEvent::Applied(_) | WatchEvent::Deleted(_)) | ApiSourceEvent::Tick => {
            }
        }
    }

    fn deadline(&self) -> Option<Mono> {
        None
    }
}

#[cfg(test)]
#[path = "api/tests.rs"]
mod tests;
