//! Active pods: the pods that may use something of the node.
//!
//! In: desired pods, workers, pods of the runtime. Out: UIDs. Invariant: everything that a pod can have for itself (processors, memory,
//! devices, resource claims) follows this one set, and so does the list of the pod resources API. A pod is active from its arrival until
//! its worker has ended all of its containers; a pod that had ended before this agent came is not active, unless the runtime has
//! containers of it.
//!
//! Departure from upstream: a pod that no source wants any more is active until its containers have ended; upstream gives its parts away
//! while it is being ended. Upstream: `filterOutInactivePods` of pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeSet;

use agent_types::ids::PodUid;

use super::PodManager;
use super::state::is_over;

impl PodManager {
    /// UIDs of the active pods: what belongs to other pods may be taken back. `None` before every source was read and the runtime listed.
    #[must_use]
    pub fn active_uids(&self) -> Option<BTreeSet<PodUid>> {
        self.all_is_known().then(|| self.active_pods())
    }

    /// Every source was read and the runtime listed.
    pub(super) fn all_is_known(&self) -> bool {
        self.listed && self.expected.is_empty()
    }

    /// The UIDs of the active pods, as far as they are known.
    #[must_use]
    pub fn active_pods(&self) -> BTreeSet<PodUid> {
        let working = self.workers.iter().filter(|(_, worker)| !worker.ended).map(|(uid, _)| uid);
        let may_begin = |uid: &&PodUid| self.desired.get(*uid).is_some_and(|pod| !is_over(pod));
        let waiting = self.waiting.iter().filter(may_begin);
        working.chain(waiting).chain(self.unknown.keys()).cloned().collect()
    }
}
