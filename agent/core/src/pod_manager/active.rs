//! Active pods: the pods that may use something of the node.
//!
//! In: desired pods, workers, pods of the runtime. Out: UIDs. Invariant: everything that a pod can have for itself (processors, memory,
//! devices, resource claims) follows this one set, and so does the list of the pod resources API. A pod is active from its arrival until
//! its worker has ended all of its containers. A pod that had ended before this agent came, or that no source wants, is active only if
//! containers of it may run: its status may be another writer's. Dead containers that the runtime still lists keep nothing.
//!
//! Departure from upstream: a pod that no source wants any more is active until its containers have ended; upstream gives its parts away
//! while it is being ended. Upstream: `filterOutInactivePods` of pkg/kubelet/kubelet_pods.go.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

use super::PodManager;
use super::state::{PodStanding, is_over};

impl PodManager {
    /// Every source was read and the runtime listed.
    pub(super) fn all_is_known(&self) -> bool {
        self.listed && self.expected.is_empty()
    }

    /// The UIDs of the active pods, as far as they are known; all of them once [`PodManager::is_synced`] is true.
    #[must_use]
    pub fn active_pods(&self) -> BTreeSet<PodUid> {
        let working = self.workers.iter().filter(|(_, worker)| worker.is_active()).map(|(uid, _)| uid);
        let will_run = |uid: &PodUid| match self.desired.get(uid) {
            Some(pod) => !is_over(pod),
            // A source may still name it.
            None => !self.all_is_known(),
        };
        let has_something = |uid: &&PodUid| will_run(uid) || self.may_run(uid);
        let others = self.waiting.iter().chain(self.unknown.keys()).filter(has_something);
        working.chain(others).cloned().collect()
    }

    /// The active pods whose requests admission counts.
    pub fn admitted(&self) -> impl Iterator<Item = &Arc<Pod>> {
        let workers = self.workers.values().filter(|worker| worker.needs_room());
        workers.filter_map(|worker| worker.room.as_ref().or(worker.pod.as_ref()))
    }

    /// Differs from the last one if [`PodManager::active_pods`], [`PodManager::admitted`] or [`PodManager::is_synced`] may answer
    /// otherwise: these are the parts of the state that they read.
    #[must_use]
    pub fn active_revision(&self) -> u64 {
        let parts = [
            self.workers.revision(),
            self.waiting.revision(),
            self.desired.revision(),
            self.unknown.revision(),
            self.live.revision(),
            u64::from(self.synced),
        ];
        parts.into_iter().sum()
    }

    /// Containers from before this agent may run until the pod's worker has looked. An earlier agent's last calls may still bring
    /// containers that the runtime did not list; the worker waits for these calls.
    pub(super) fn may_run(&self, uid: &PodUid) -> bool {
        let leftovers = &self.leftovers;
        let had_calls = leftovers.fence_until > Mono(0) && leftovers.directories.contains(uid);
        had_calls || self.live.contains(uid)
    }

    /// The runtime shows the pod, which has no worker yet, and containers of it may run.
    pub(super) fn is_found_running(&self, uid: &PodUid) -> bool {
        self.unknown.contains_key(uid) && self.may_run(uid)
    }

    /// What a pod that ended before this agent came has of the node until its worker has looked.
    pub(super) fn standing_of_ended(&self, uid: &PodUid) -> PodStanding {
        if self.may_run(uid) { PodStanding::Remains } else { PodStanding::Ended }
    }

    /// The worker of a pod that an earlier agent was ending was started. The worker of a pod that `has_ended`, by that agent's record,
    /// has nothing to wait for.
    pub(super) fn resume_standing(&mut self, uid: &PodUid, has_ended: bool) {
        let had_calls = !has_ended && self.leftovers.fence_until > Mono(0);
        let is_over = self.desired.get(uid).is_some_and(|pod| is_over(pod));
        let may_run = had_calls || self.live.contains(uid);
        if let Some(worker) = self.workers.get_mut(uid) {
            if !may_run {
                worker.standing = PodStanding::Ended;
            } else if is_over {
                worker.standing = PodStanding::Remains;
            }
        }
    }

    /// The first list of the runtime shows running containers of these pods.
    pub(super) fn first_running(&mut self, pods: BTreeSet<PodUid>) {
        *self.live = pods.clone();
        self.devices.note_running(pods);
    }

    /// A snapshot of a pod without worker shows whether containers of it may run.
    pub(super) fn note_live(&mut self, uid: &PodUid, is_live: bool) {
        if is_live == self.live.contains(uid) {
            return;
        }
        if is_live {
            self.live.insert(uid.clone());
        } else {
            self.live.remove(uid);
            self.placing.check();
        }
    }
}
