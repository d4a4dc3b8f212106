//! New pods that wait for room which others are about to give up.
//!
//! A pod that was given less counts with what its containers still have (ALLOC-CAP). The scheduler counts with what the API
//! shows, and while such a container begins anew that is what the pod was given: it may bind a pod that fits a moment later.
//! To refuse it would end it for good. In: who is new, who still has more than it was given. Out: whether it is judged now or
//! later. Invariant: nobody waits for longer than [`PATIENCE`].

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
    /// When somebody has waited for long enough.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.since.values().min().map(|since| since.after(PATIENCE))
    }

    /// Only these wait.
    pub(super) fn retain(&mut self, waits: impl Fn(&PodUid) -> bool) {
        self.since.retain(|uid, _| waits(uid));
    }
}

impl PodManager {
    /// The new pod has no room yet, and will have when others have given up what they no longer have to have.
    pub(super) fn waits_for_shrinking(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Mono) -> bool {
        let waits = self.fits_soon(uid, pod)
            && now < self.shrinking.since.entry(uid.clone()).or_insert(now).after(PATIENCE);
        if !waits {
            self.shrinking.since.remove(uid);
        }
        waits
    }

    /// Pods that wait for their turn and have a right to what they were given: an agent before this one had admitted them, or
    /// they will fit soon. Whoever asks for more does not get their room.
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
            let others = others.into_iter().chain(self.preemption.kept_for(uid));
            admission::admit(pod, others, &admission).is_ok_and(|victims| victims.is_empty())
        };
        let as_it_is = self.takers().filter_map(|(_, worker)| worker.room());
        let soon = self.takers().filter_map(|(_, worker)| worker.pod().or_else(|| worker.room()));
        !fits(as_it_is.collect()) && fits(soon.collect())
    }
}
