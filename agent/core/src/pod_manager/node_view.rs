//! The pod manager's view of the Node object, whose labels decide about the API's pods.
//!
//! In: events of the watch, verdicts. Out: waiting pods, and when to read the Node. Invariants: a pod of the
//! API is judged only after the Node was received; `NodeAffinity` is final only after an answer to a request
//! sent after the pod arrived, because label and pod arrive by different watches. Upstream: `generalFilter`
//! of pkg/kubelet/lifecycle/predicate.go, which reads the Node again before it rejects a pod for that reason.

use std::collections::BTreeSet;

use agent_types::ids::PodUid;
use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;

use crate::admission::Rejection;

/// The view; on a standalone node it knows all there is.
#[derive(Clone, Debug)]
pub(super) struct NodeView {
    clustered: bool,
    heard: bool,
    /// Rejected for now; the request for their Node is not sent yet.
    doubted: BTreeSet<PodUid>,
    /// Whom the question that is on its way is put for.
    asked: Option<BTreeSet<PodUid>>,
}

impl NodeView {
    pub(super) fn new(clustered: bool) -> NodeView {
        NodeView { clustered, heard: false, doubted: BTreeSet::new(), asked: None }
    }

    /// The watch has delivered the Node.
    pub(super) fn hear(&mut self) {
        self.heard = true;
    }

    /// The end of a pod needs no permission, and a static pod belongs to the node.
    pub(super) fn must_be_heard_for(&self, pod: &Pod) -> bool {
        self.clustered && !self.heard && is_judged_by_labels(pod)
    }

    /// True if this rejection may only be due to a stale Node.
    pub(super) fn doubts(&mut self, uid: &PodUid, pod: &Pod, rejection: &Rejection) -> bool {
        let doubts = self.clustered && is_judged_by_labels(pod) && rejection.reason == "NodeAffinity";
        if doubts && !self.asked.as_ref().is_some_and(|asked| asked.contains(uid)) {
            self.doubted.insert(uid.clone());
        }
        doubts
    }

    /// True if the Node must be read now: one request at a time.
    pub(super) fn asks(&mut self) -> bool {
        if self.asked.is_some() || self.doubted.is_empty() {
            return false;
        }
        self.asked = Some(std::mem::take(&mut self.doubted));
        true
    }

    /// The request was answered: returns the pods whose verdict is now final.
    pub(super) fn answered(&mut self) -> BTreeSet<PodUid> {
        self.asked.take().unwrap_or_default()
    }
}

fn is_judged_by_labels(pod: &Pod) -> bool {
    !pod::is_static(pod) && pod.metadata.deletion_timestamp.is_none()
}
