//! New pods that wait for resources which other pods are about to release.
//!
//! A pod with a reduced allocation counts with the amounts that its containers still have (ALLOC-CAP). The
//! scheduler counts with the amounts in the API, and while such a container restarts these are the allocated
//! ones: the scheduler may bind a pod that fits a moment later. A rejection would end this pod for good. In:
//! new pods, pods whose containers have more than their allocation. Out: whether a new pod is judged now or
//! later. Invariants: no pod waits longer than [`PATIENCE`]; a wait that is over has no deadline, even if something else holds the
//! pod up.

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

/// The pods that wait.
#[derive(Clone, Debug, Default)]
pub(super) struct Shrinking {
    /// The end of each pod's wait. `None`: the wait is over, and the pod does not wait again.
    until: BTreeMap<PodUid, Option<Mono>>,
}

impl Shrinking {
    /// Time at which the first wait ends.
    pub(super) fn deadline(&self) -> Option<Mono> {
        self.until.values().flatten().min().copied()
    }

    /// Ends the waits whose time is over. A pod that something else holds up is not judged meanwhile: with a deadline in the past
    /// the manager would be called again at once, without end (simulation, resizing, seed 62709).
    pub(super) fn lapse(&mut self, now: Mono) {
        for until in self.until.values_mut() {
            *until = until.filter(|until| now < *until);
        }
    }

    /// Only these wait.
    pub(super) fn retain(&mut self, waits: impl Fn(&PodUid) -> bool) {
        self.until.retain(|uid, _| waits(uid));
    }
}

impl PodManager {
    /// True if the new pod does not fit yet, but will fit once other pods have released what is no longer
    /// allocated to them.
    pub(super) fn waits_for_shrinking(&mut self, uid: &PodUid, pod: &Arc<Pod>, now: Mono) -> bool {
        let waits = self.fits_soon(uid, pod)
            && self.shrinking.until.entry(uid.clone()).or_insert(Some(now.after(PATIENCE))).is_some();
        if !waits {
            self.shrinking.until.remove(uid);
        }
        waits
    }

    /// Waiting pods with a claim to their allocation: an earlier agent had admitted them, or they will fit
    /// soon. A resize must not take their resources.
    pub(super) fn promised(&self) -> Vec<Arc<Pod>> {
        let waits = |uid: &PodUid| self.shrinking.until.get(uid).is_some_and(Option::is_some);
        let promised = |uid: &&PodUid| waits(uid) || self.was_given(uid);
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
