//! Preemption for critical pods: new ones, and running ones that request more.
//!
//! In: chosen victims, ended victims. Out: pods that still wait. Invariants: a pod is chosen as a victim
//! once; a pod is not judged before all its victims have ended, and until then counts as running, so that no
//! new pod takes its resources. Upstream ends the victims one by one and blocks everything else meanwhile.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_types::ids::{PodKey, PodUid};
use agent_types::kill::KillReason;
use agent_types::machine::Outbox;
use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;

use super::state::Worker;
use super::{ManagerAction, PodManager, tell};
use crate::admission::{self, AdmissionContext, Rejection};
use crate::pod_worker::PodEvent;

/// The room that is being made.
#[derive(Clone, Debug, Default)]
pub(super) struct Preemption {
    /// Chosen, and not at their end.
    going: BTreeSet<PodUid>,
    /// Room is made for them.
    waiting: BTreeMap<PodUid, Arc<Pod>>,
}

impl Preemption {
    /// Room is made for the pod, and not made yet.
    pub(super) fn holds_up(&self, uid: &PodUid) -> bool {
        !self.going.is_empty() && self.waiting.contains_key(uid)
    }

    /// Its room becomes free without an action.
    pub(super) fn is_going(&self, uid: &PodUid) -> bool {
        self.going.contains(uid)
    }

    /// True if resources are reserved for the whole request of the pod, of which its present resources are a
    /// part.
    pub(super) fn keeps_for(&self, uid: &PodUid) -> bool {
        self.waiting.contains_key(uid)
    }

    /// Pods with reserved resources, except this one.
    pub(super) fn kept_for(&self, uid: &PodUid) -> impl Iterator<Item = &Pod> {
        self.waiting.iter().filter(move |(other, _)| *other != uid).map(|(_, pod)| &**pod)
    }

    /// The pod waits for its room.
    pub(super) fn wait(&mut self, uid: PodUid, pod: Arc<Pod>) {
        self.waiting.insert(uid, pod);
    }

    /// The pod was chosen to make room.
    pub(super) fn going(&mut self, uid: PodUid) {
        self.going.insert(uid);
    }

    /// The pod has its room, or wants none any more.
    pub(super) fn settled(&mut self, uid: &PodUid) {
        self.waiting.remove(uid);
    }

    /// The pod needs no room any more.
    pub(super) fn gone(&mut self, uid: &PodUid) {
        self.going.remove(uid);
    }
}

impl PodManager {
    /// Ends other pods if this one needs their resources; it waits then.
    pub(super) fn judge(
        &mut self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        out: &mut Outbox<ManagerAction>,
    ) -> Result<(), Rejection> {
        // A pod that has to end needs no permission, only its end.
        if pod.metadata.deletion_timestamp.is_some() {
            return Ok(());
        }
        self.shutdown.refuses()?;
        let admission = self.admission_of(uid);
        admission::may_be_placed(pod, &admission)?;
        self.placing.judge(pod, self.devices.ran(uid))?;
        let admission = self.without_devices(admission, pod);
        let beside = |(_, worker)| Worker::room(worker);
        let kept = || self.kept_for(uid);
        // No other pod has to end in place of pods that are already ending.
        let staying = || self.staying().filter_map(beside);
        let victims = admission::admit(pod, staying().chain(kept()), &admission)?;
        if victims.is_empty() {
            if self.preemption.going.is_empty() {
                return Ok(());
            }
            let now = admission::admit(pod, self.takers().filter_map(beside).chain(kept()), &admission);
            if !pod::is_critical(pod) || now.as_ref().is_ok_and(Vec::is_empty) {
                return now.map(|_| ());
            }
        }
        let short_of = admission::short_of(pod, staying().chain(kept()), &self.admission);
        let victims: Vec<PodKey> = victims.into_iter().map(pod::key).collect();
        self.make_room(uid, pod, victims, short_of.as_deref(), out);
        Ok(())
    }

    /// Ends other pods if the request of this critical pod needs their resources; the request waits then.
    ///
    /// # Errors
    /// Why the request has to wait all the same, even without the other pods.
    pub(super) fn make_room_for_resize(
        &mut self,
        uid: &PodUid,
        wanted: &Arc<Pod>,
        out: &mut Outbox<ManagerAction>,
    ) -> Result<(), Rejection> {
        self.shutdown.refuses()?;
        let staying = self.staying().filter(|(other, _)| *other != uid).filter_map(|(_, w)| Worker::room(w));
        let others: Vec<&Pod> = staying.chain(self.kept_for(uid)).collect();
        let admission = self.without_devices(Arc::clone(&self.admission), wanted);
        let victims = admission::admit(wanted, others.iter().copied(), &admission)?;
        let victims: Vec<PodKey> = victims.into_iter().map(pod::key).collect();
        let short_of = admission::short_of(wanted, others, &admission);
        self.make_room(uid, wanted, victims, short_of.as_deref(), out);
        Ok(())
    }

    /// Pods with reserved resources, except this one: pods that wait for room, and pods that wait for device plugins.
    pub(super) fn kept_for(&self, uid: &PodUid) -> impl Iterator<Item = &Pod> {
        self.preemption.kept_for(uid).chain(self.devices.kept_for(uid))
    }

    /// The node without the amounts that the device manager counts itself, device by device.
    pub(super) fn without_devices(
        &self,
        admission: Arc<AdmissionContext>,
        pod: &Pod,
    ) -> Arc<AdmissionContext> {
        let managed = self.placing.resource_managers().managed_resources(pod);
        if managed.iter().all(|name| !admission.allocatable.contains_key(*name)) {
            return admission;
        }
        let mut admission = AdmissionContext::clone(&admission);
        admission.allocatable.retain(|name, _| !managed.contains(name.as_str()));
        Arc::new(admission)
    }

    /// Running pods that use resources, without those that have resources reserved.
    pub(super) fn takers(&self) -> impl Iterator<Item = (&PodUid, &Worker)> {
        self.workers.iter().filter(|(uid, worker)| worker.needs_room() && !self.preemption.keeps_for(uid))
    }

    fn staying(&self) -> impl Iterator<Item = (&PodUid, &Worker)> {
        self.takers().filter(|(uid, _)| !self.preemption.is_going(uid))
    }

    /// `victims` end, and `pod` waits for that.
    fn make_room(
        &mut self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        victims: Vec<PodKey>,
        short_of: Option<&str>,
        out: &mut Outbox<ManagerAction>,
    ) {
        self.preemption.wait(uid.clone(), Arc::clone(pod));
        for key in victims {
            // A pod that waits for resources itself is judged again.
            self.preemption.settled(&key.uid);
            if !self.workers.contains_key(&key.uid) {
                continue;
            }
            self.leave(&key.uid, out);
            let told = Rejection::preempted();
            tell(&key.uid, PodEvent::Kill { reason: reason(&told), grace_s: None }, out);
            self.preemption.going(key.uid.clone());
            let short_of = short_of.map(str::to_owned);
            out.push(ManagerAction::Rejected { key, rejection: told, short_of });
        }
    }
}

/// Why a chosen pod ends.
fn reason(told: &Rejection) -> KillReason {
    KillReason::Failed {
        reason: told.reason.clone(),
        message: told.message.clone(),
        disruption: Some("Pod was preempted by Kubelet to accommodate a critical pod.".to_owned()),
    }
}
