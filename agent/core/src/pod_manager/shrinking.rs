//! New pods that wait for resources which other pods are about to release.
//!
//! A pod with a reduced allocation counts with the amounts that its containers still have (ALLOC-CAP). The
//! scheduler counts with the amounts in the API, and while such a container restarts these are the allocated
//! ones: the scheduler may bind a pod that fits a moment later. A rejection would end this pod for good. In:
//! new pods, pods whose containers have more than their allocation. Out: whether a new pod is judged now or
//! later. Invariant: no pod waits longer than [`PATIENCE`].

use std::collections::BTreeMap;
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::time::Mono;
use k8s_openapi::api::core::v1::Pod;

use super::PodManager;
use super::state::Worker;
use crate::admission;

/// So long at most; memory that is in use is not given up at all.
pub(super) const PATIENCE: Duration = Duration::from_secs(120);

/// Who waits, and since when.
#[derive(Clone, Debug, Default)]
pub(super) struct Shrinking {
    since: BTreeMap<PodUid, Mono>,
}

impl Shrinking {
    /// Time at which the first wait ends.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.since.values().min().map(|since| since.after(PATIENCE))
    }

    /// Only these wait.
    pub(super) fn retain(&mut self, waits: impl Fn(&PodUid) -> bool) {
        self.since.retain(|uid, _| waits(uid));
    }
}

impl PodManager {
    /// True if the new pod does not fit yet, but will fit once other pods have released what is no longer
    /// allocated to them.
    pub(super) fn waits_for_shrinking(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Mono) -> bool {
        let waits = self.fits_soon(uid, pod)
            && now < self.shrinking.since.entry(uid.clone()).or_insert(now).after(PATIENCE);
        if !waits {
            self.shrinking.since.remove(uid);
        }
        waits
    }

    /// Waiting pods with a claim to their allocation: an earlier agent had admitted them, or they will fit
    /// soon. A resize must not take their resources.
    pub(super) fn promised(&self) -> Vec<Arc<Pod>> {
        let promised = |uid: &&PodUid| self.shrinking.since.contains_key(*uid) || self.was_given(uid);
        let waiting = self.waiting.iter().filter(promised);
        waiting.filter_map(|uid| Some(self.allocating.allocated(self.desired.get(uid)?))).collect()
    }

    fn fits_soon(&self, uid: &PodUid, pod: &Pod) -> bool {
        let shrinks = |worker: &Worker| worker.room.is_some() && worker.pod.is_some();
        if pod.metadata.deletion_timestamp.is_some() || !self.takers().any(|(_, worker)| shrinks(worker)) {
            return false;
        }
        let admission = self.admission_of(uid);
        let fits = |others: Vec<&Pod>| {
            let others = others.into_iter().chain(self.kept_for(uid));
            admission::admit(pod, others, &admission).is_ok_and(|victims| victims.is_empty())
        };
        let as_it_is = self.takers().filter_map(|(_, worker)| worker.room());
        let soon = self.takers().filter_map(|(_, worker)| worker.pod().or_else(|| worker.room()));
        !fits(as_it_is.collect()) && fits(soon.collect())
    }
}
