//! Processors, memory and devices that pods have for themselves: gives them, takes them back, sends workers the placements.
//!
//! In: pods in admission, ended pods. Out: [`PodEvent::Placed`], records for the disk. Invariants: a worker gets its pod after the
//! record with the pod's parts is on disk, and the placement before the pod; nothing is taken back before every source was read and
//! the runtime listed, because a pod that no source has named yet may still run; a pod keeps its parts until its containers have
//! ended, even if no source wants it any more (upstream gives them away while such a pod is being killed). When the shared
//! processors change, the workers learn it at once; upstream's containers wait for the next reconciliation.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::runtime::placement::Placement;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::Pod;

use super::{ManagerAction, PodManager, tell};
use crate::admission::Rejection;
use crate::pod_worker::PodEvent;
use crate::resource_managers::{GiveOutcome, ManagerRecords, ResourceManagers};

/// The managers, and what the workers know of them.
#[derive(Clone, Debug, Default)]
pub(super) struct Placing {
    managers: ResourceManagers,
    /// The placement that each worker has.
    sent: BTreeMap<PodUid, Arc<Placement>>,
    /// A pod may have become inactive.
    check: bool,
    /// Placements changed since the workers got them.
    changed: bool,
    /// Counts the changes.
    revision: u64,
}

impl Placing {
    pub(super) fn new(managers: ResourceManagers) -> Placing {
        Placing { managers, check: true, revision: 1, ..Placing::default() }
    }

    /// Whether the pod would get its parts.
    pub(super) fn judge(&self, pod: &Pod, ran: bool) -> Result<(), Rejection> {
        Ok(self.managers.judge(pod, ran)?)
    }

    /// The managers.
    pub(super) fn resource_managers(&self) -> &ResourceManagers {
        &self.managers
    }

    /// The managers, to change them; [`Placing::note_change`] follows.
    pub(super) fn managers_mut(&mut self) -> &mut ResourceManagers {
        &mut self.managers
    }

    /// Contents of the state files.
    pub(super) fn records(&self) -> ManagerRecords {
        self.managers.records()
    }

    /// A pod may have become inactive.
    pub(super) fn check(&mut self) {
        self.check = true;
    }

    /// Placements changed.
    pub(super) fn note_change(&mut self) {
        self.changed = true;
        self.revision += 1;
    }
}

impl PodManager {
    /// The managers of processors and memory.
    #[must_use]
    pub fn resource_managers(&self) -> &ResourceManagers {
        &self.placing.managers
    }

    /// Differs from the last one if the managers may have changed.
    #[must_use]
    pub fn resources_revision(&self) -> u64 {
        self.placing.revision
    }

    /// Gives the pod its parts; true if they have to be recorded before the pod starts. `None`: the pod waits for a device plugin.
    ///
    /// # Errors
    /// Why it gets none; admission has asked before, so there was a reason to expect success.
    pub(super) fn place(
        &mut self,
        uid: &PodUid,
        pod: &Arc<Pod>,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) -> Result<Option<bool>, Rejection> {
        let ran = self.devices.ran(uid);
        let given = self.placing.managers.give(pod, ran);
        self.placing.revision += 1;
        match given? {
            GiveOutcome::Parts { changed } => {
                self.placing.changed |= changed;
                Ok(Some(changed || self.devices.take_placed(uid)))
            }
            GiveOutcome::Waits(step) => {
                self.wait_for_devices(pod, step, now, out);
                Ok(None)
            }
        }
    }

    /// Admission refused the pod: if for want of its parts, counts that.
    pub(super) fn count_refusal(&mut self, uid: &PodUid, pod: &Pod) {
        let ran = self.devices.ran(uid);
        if self.placing.managers.judge(pod, ran).is_err() && self.placing.managers.give(pod, ran).is_err() {
            self.placing.revision += 1;
        }
    }

    /// A container of the pod is about to be created.
    pub(super) fn creates(&mut self, uid: &PodUid, container: &str) {
        let Some(pod) = self.workers.get(uid).and_then(|worker| worker.pod.clone()) else { return };
        if self.placing.managers.creates(&pod, container) {
            self.allocating.record_later();
            self.placing.note_change();
        }
    }

    /// Sends the worker its placement, if it has another one. Before its pod. Devices that are being allocated for the start of a
    /// container are not in it before they are on disk.
    pub(super) fn tell_placement(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        if self.placing.managers.are_idle() {
            return;
        }
        let pod = self.workers.get(uid).and_then(|worker| worker.pod());
        let mut placement = self.placing.managers.placement(uid.as_str(), pod);
        if self.allocates_at_start(uid)
            && let Some(sent) = self.placing.sent.get(uid)
        {
            placement.devices.clone_from(&sent.devices);
        }
        let placement = Arc::new(placement);
        let has_this = match self.placing.sent.get(uid) {
            Some(sent) => *sent == placement,
            // A worker begins with an empty one.
            None => *placement == Placement::default(),
        };
        if !has_this {
            self.placing.sent.insert(uid.clone(), Arc::clone(&placement));
            tell(uid, PodEvent::Placed(placement), out);
        }
    }

    /// The worker has ended.
    pub(super) fn forget_placement(&mut self, uid: &PodUid) {
        self.placing.sent.remove(uid);
        self.placing.check();
    }

    /// Takes back the parts of inactive pods: before waiting pods are judged, and at the end of a step.
    pub(super) fn take_back_parts(&mut self) {
        if self.placing.managers.are_idle() {
            return;
        }
        if self.all_is_known() && std::mem::take(&mut self.placing.check) {
            let active = self.active_containers();
            let is_active = |uid: &str, name: Option<&str>| {
                let has = |pod: &Option<Arc<Pod>>| {
                    pod.as_ref().zip(name).is_none_or(|(pod, name)| has_container(pod, name))
                };
                active.get(uid).is_some_and(has)
            };
            let had_devices = self.placing.managers.has_devices();
            if self.placing.managers.keep_only(is_active) {
                self.allocating.record_later();
                self.placing.note_change();
                if had_devices {
                    self.devices.note_change();
                }
            }
        }
    }

    /// At the end of a step: sends changed placements.
    pub(super) fn settle_placements(&mut self, out: &mut Outbox<ManagerAction>) {
        self.take_back_parts();
        if self.placing.managers.are_idle() || !std::mem::take(&mut self.placing.changed) {
            return;
        }
        let have: Vec<PodUid> =
            self.workers.keys().filter(|uid| self.may_have_another(uid)).cloned().collect();
        for uid in have {
            self.tell_placement(&uid, out);
        }
    }

    /// A worker that has a placement, or whose pod names a resource for which a plugin has registered since. A worker whose pod is not on
    /// disk yet gets its placement with the pod.
    fn may_have_another(&self, uid: &PodUid) -> bool {
        let wants_devices = |pod: &Pod| !self.placing.managers.managed_resources(pod).is_empty();
        let worker = self.workers.get(uid).filter(|worker| !worker.leaving && !self.is_untold(uid));
        self.placing.sent.contains_key(uid)
            || worker.and_then(|worker| worker.pod()).is_some_and(wants_devices)
    }

    /// The active pods, which keep their parts. `None`: no source has named the pod, so the names of its containers are unknown.
    fn active_containers(&self) -> BTreeMap<String, Option<Arc<Pod>>> {
        let known = |uid: &PodUid| match self.workers.get(uid) {
            Some(worker) if worker.is_active() => worker.pod.clone(),
            _ => self.desired.get(uid).filter(|_| self.waiting.contains(uid)).cloned(),
        };
        self.active_pods().into_iter().map(|uid| (uid.as_str().to_owned(), known(&uid))).collect()
    }
}

fn has_container(pod: &Pod, name: &str) -> bool {
    use agent_types::pod::{containers, init_containers};
    init_containers(pod).iter().chain(containers(pod)).any(|container| container.name == name)
}
