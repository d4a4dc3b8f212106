//! Allocations: the resources that the node has granted to each pod, and requests for other amounts
//! (KEP-1287).
//!
//! ```text
//! admitted, resized ──► given ──Allocated──► disk ──► durable ──► Tell(Desired) with the allocation
//! ```
//! In: desired pods, answers of the disk, resizes that workers carried out. Out: records to write, pods with
//! their allocated resources, the state of pending requests. Invariants: a worker gets an allocation only
//! after it is on disk; a pod between two amounts uses the resources of both; a record that cannot be written
//! is tried again, and a new pod does not wait for it, as upstream's do not; pending requests are judged
//! again when resources become free, and every three minutes. A pod without requests has nothing to lose: its
//! record is written with the next one. Upstream: pkg/kubelet/allocation/allocation_manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::placing::Placing;
use super::state::{PodStanding, Worker, is_over};
use super::{ManagerAction, PodManager, tell};
use crate::allocation::resize::{self, Change, DEFERRED, PendingResize, Refusal, Waiting};
use crate::allocation::{Allocations, PodAllocation, message};
use crate::pod_worker::PodEvent;
use crate::resource_managers::ManagerRecords;

/// Longest time until pending requests are judged again.
const RETRY: Duration = Duration::from_secs(3 * 60);
/// A record that could not be written is tried again after as long.
const WRITE_AGAIN: Duration = Duration::from_secs(10);
/// Longest time until a record is written that no worker waits for.
const WRITE_LATE: Duration = Duration::from_secs(30);

/// What is counted of resizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeNote {
    /// An amount was changed in the API.
    Requested(Change),
    /// It will never be; upstream's word for why.
    Infeasible(&'static str),
    /// A deferred request was granted; with upstream's name of the trigger.
    DeferredAccepted(&'static str),
}

/// Resources allocated to each admitted pod.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocating {
    given: Allocations,
    /// On disk, or as good.
    durable: Allocations,
    /// What is being written.
    writing: Option<Arc<Allocations>>,
    /// The managers' states in the record that is being written.
    writing_managers: ManagerRecords,
    /// The managers' states on disk, as far as this agent wrote them.
    durable_managers: ManagerRecords,
    /// `given` differs from the record, and a worker waits for it.
    urgent: bool,
    /// The same, and no worker waits.
    changed: bool,
    /// Time to write a record that no worker waits for.
    late_at: Option<Mono>,
    /// The last record could not be written; time of the next try.
    again_at: Option<Mono>,
    /// Workers that get their pod once it is on disk.
    untold: BTreeSet<PodUid>,
    /// Pods that got parts of their own while a record without these parts was being written: the next record has them.
    in_next_record: BTreeSet<PodUid>,
    /// Requests that wait.
    queue: BTreeSet<PodUid>,
    /// Last state of the pending requests that workers have.
    said: BTreeMap<PodUid, PendingResize>,
    /// Granted requests that were pending: their workers learn it with the allocation.
    granted: BTreeSet<PodUid>,
    /// The generation of the pod that each worker has.
    told: BTreeMap<PodUid, Option<i64>>,
    /// Why they are to be judged now.
    trigger: Option<&'static str>,
    retry_at: Option<Mono>,
    /// Resources of the containers at the agent's start, until their worker reports them.
    actuated: Allocations,
}

impl Allocating {
    pub(super) fn new(given: Allocations, actuated: Allocations) -> Allocating {
        Allocating { durable: given.clone(), given, actuated, ..Allocating::default() }
    }

    /// The pod with its allocated resources.
    pub(super) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let given = self.given.get(&pod::key(pod).uid);
        given.map_or_else(|| Arc::clone(pod), |given| given.apply(pod))
    }

    /// The pod for its worker; `None` while its allocation is not on disk. The status contains the generation
    /// that the worker has: while the request of a generation is undecided, this is the previous one, because
    /// clients would take the resize for complete.
    fn known(&mut self, uid: &PodUid, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        let mut known = match (self.durable.get(uid), self.given.contains_key(uid)) {
            (Some(durable), _) => durable.apply(pod),
            (None, true) => return None,
            (None, false) => Arc::clone(pod),
        };
        if self.undecided(uid, pod) {
            let shown = || pod.status.as_ref().and_then(|status| status.observed_generation);
            let told = *self.told.entry(uid.clone()).or_insert_with(shown);
            Arc::make_mut(&mut known).metadata.generation = told;
        } else {
            self.told.insert(uid.clone(), pod.metadata.generation);
        }
        Some(known)
    }

    /// True if the request of the pod is neither granted and with its worker, nor refused.
    fn undecided(&self, uid: &PodUid, pod: &Pod) -> bool {
        let refused = || self.said.get(uid).is_some_and(|said| said.generation == pod.metadata.generation);
        let given = || self.durable.get(uid) == self.given.get(uid);
        pod.metadata.deletion_timestamp.is_none()
            && if self.queue.contains(uid) { !refused() } else { !given() }
    }

    /// Admits the pod with its requests, unless it was admitted before.
    fn admit(&mut self, uid: &PodUid, pod: &Pod) {
        if self.given.contains_key(uid) {
            return;
        }
        let given = PodAllocation::of(pod);
        if given.is_empty() {
            self.durable.insert(uid.clone(), given.clone());
        } else {
            self.urgent = true;
        }
        self.given.insert(uid.clone(), given);
    }

    /// The pod with the larger of requested and allocated amounts.
    fn at_least(&self, uid: &PodUid, wanted: &Arc<Pod>) -> Arc<Pod> {
        let given = self.given.get(uid);
        given.map_or_else(
            || Arc::clone(wanted),
            |given| PodAllocation::of(wanted).at_least(given).apply(wanted),
        )
    }

    /// What the pod's containers may still have, if that is something else.
    fn room(&self, uid: &PodUid, pod: &Arc<Pod>) -> Option<Arc<Pod>> {
        let (given, had) = (self.given.get(uid)?, self.actuated.get(uid)?);
        let room = given.at_least(had).apply(pod);
        (!Arc::ptr_eq(&room, pod)).then_some(room)
    }

    /// The request of the pod is granted; returns its last pending state, from this agent or an earlier one.
    fn waits_no_more(&mut self, uid: &PodUid, wanted: &Pod) -> Option<PendingResize> {
        let conditions = wanted.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let shown = conditions.iter().any(|c| c.type_ == crate::status::PENDING_RESIZE);
        let said = self.said.remove(uid);
        if said.is_some() || shown {
            self.granted.insert(uid.clone());
        }
        said
    }

    /// Queues the pod if its request differs from its allocation.
    fn ask(&mut self, uid: &PodUid, wanted: &Pod) {
        if self.given.get(uid).is_some_and(|given| given.differs(wanted)) {
            self.queue.insert(uid.clone());
            return;
        }
        self.queue.remove(uid);
        self.waits_no_more(uid, wanted);
    }

    fn forget(&mut self, uid: &PodUid) {
        self.changed |= self.given.remove(uid).is_some_and(|given| !given.is_empty());
        self.durable.remove(uid);
        self.actuated.remove(uid);
        self.untold.remove(uid);
        self.in_next_record.remove(uid);
        self.queue.remove(uid);
        self.said.remove(uid);
        self.granted.remove(uid);
        self.told.remove(uid);
    }

    /// The managers' states changed, and no worker waits for their record.
    pub(super) fn record_later(&mut self) {
        self.changed = true;
    }

    /// The pod's worker waits until the managers' states are on disk.
    pub(super) fn record_first(&mut self, uid: &PodUid) {
        self.durable.remove(uid);
        if self.writing.is_some() {
            self.in_next_record.insert(uid.clone());
        }
        self.urgent = true;
    }

    fn write(&mut self, now: Now, placing: &Placing, out: &mut Outbox<ManagerAction>) {
        if self.changed && self.late_at.is_none() {
            self.late_at = Some(now.mono.after(WRITE_LATE));
        }
        let due = |at: Option<Mono>| at.is_some_and(|at| at <= now.mono);
        let wanted = self.urgent || (self.changed && due(self.late_at));
        if self.writing.is_some() || !wanted || !(self.again_at.is_none() || due(self.again_at)) {
            return;
        }
        let all = Arc::new(self.given.clone());
        self.writing = Some(Arc::clone(&all));
        (self.urgent, self.changed) = (false, false);
        (self.late_at, self.again_at) = (None, None);
        self.writing_managers = placing.records();
        let news = self.writing_managers.since(&self.durable_managers);
        out.push(ManagerAction::Allocated(all, Box::new(news)));
    }

    pub(super) fn deadline(&self) -> Option<Mono> {
        let retry = self.retry_at.filter(|_| !self.queue.is_empty());
        let write = if self.urgent { self.again_at } else { self.late_at };
        write.filter(|_| self.writing.is_none()).into_iter().chain(retry).min()
    }
}

impl PodManager {
    /// A pod that has a worker is wanted otherwise than before.
    pub(super) fn wanted(&mut self, old: Option<Arc<Pod>>, new: &Arc<Pod>, out: &mut Outbox<ManagerAction>) {
        let uid = pod::key(new).uid;
        for change in old.iter().flat_map(|old| resize::changes(old, new)) {
            out.push(ManagerAction::Resize(ResizeNote::Requested(change)));
        }
        self.allocating.ask(&uid, new);
        let changed = old.is_some_and(|old| {
            old.metadata.generation != new.metadata.generation || PodAllocation::of(&old).differs(new)
        });
        let asks = self.allocating.queue.contains(&uid);
        if changed || !asks {
            // Resources that become free for another request are not for this one.
            self.preemption.settled(&uid);
        }
        if changed && asks {
            self.allocating.trigger = Some("pod_updated");
        }
        if let Some(worker) = self.workers.get_mut(&uid) {
            // For a pod that has been ending since before this agent, this is the first event with its
            // specification.
            if worker.pod.is_none() && is_over(new) {
                worker.standing = worker.standing.max(PodStanding::Remains);
            }
            worker.pod = Some(self.allocating.allocated(new));
            self.tell_desired(&uid, new, out);
        }
    }

    /// Allocates the requests of the pod.
    pub(super) fn allocate(&mut self, uid: &PodUid, wanted: &Arc<Pod>) {
        self.allocating.admit(uid, wanted);
        self.allocating.ask(uid, wanted);
        if self.allocating.queue.contains(uid) {
            self.allocating.trigger.get_or_insert("pods_added");
        }
    }

    /// Sends the worker its pod with the allocation, now or when it is on disk.
    pub(super) fn tell_desired(&mut self, uid: &PodUid, wanted: &Arc<Pod>, out: &mut Outbox<ManagerAction>) {
        let allocating = &mut self.allocating;
        match allocating.known(uid, wanted) {
            Some(pod) => {
                self.tell_placement(uid, out);
                tell(uid, PodEvent::Desired(pod), out);
            }
            None => drop(allocating.untold.insert(uid.clone())),
        }
        let allocating = &mut self.allocating;
        // Later than the pod: between the two the resize must not look complete.
        if allocating.durable.get(uid) == allocating.given.get(uid) && allocating.granted.remove(uid) {
            tell(uid, PodEvent::ResizePending(None), out);
        }
    }

    /// The worker is about to get the end of its pod: it needs the pod first.
    pub(super) fn tell_before_end(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        if self.allocating.untold.remove(uid)
            && let Some(pod) = self.desired.get(uid)
        {
            tell(uid, PodEvent::Desired(self.allocating.allocated(pod)), out);
        }
    }

    /// The worker waits until its pod's record is on disk.
    pub(super) fn is_untold(&self, uid: &PodUid) -> bool {
        self.allocating.untold.contains(uid)
    }

    /// The pod has an allocation.
    pub(super) fn was_given(&self, uid: &PodUid) -> bool {
        self.allocating.given.contains_key(uid)
    }

    /// The worker was started: the resources of its containers from before this agent count, too.
    pub(super) fn occupy(&mut self, uid: &PodUid) {
        let Some(worker) = self.workers.get_mut(uid) else { return };
        worker.room = worker.pod.as_ref().and_then(|pod| self.allocating.room(uid, pod));
    }

    /// Only containers of the pod are left: their resources count until they are gone.
    pub(super) fn occupy_unknown(&mut self, uid: &PodUid) {
        let Some(had) = self.allocating.actuated.get(uid) else { return };
        let one = |(name, resources): (&String, &ResourceRequirements)| Container {
            name: name.clone(),
            resources: Some(resources.clone()),
            ..Container::default()
        };
        let containers = had.containers.iter().map(one).collect();
        let spec = PodSpec { containers, ..PodSpec::default() };
        if let Some(worker) = self.workers.get_mut(uid).filter(|w| w.pod.is_none()) {
            worker.room = Some(Arc::new(Pod { spec: Some(spec), ..Pod::default() }));
        }
    }

    /// The record was written, or could not be.
    pub(super) fn recorded(&mut self, written: bool, now: Now, out: &mut Outbox<ManagerAction>) {
        let Some(all) = self.allocating.writing.take() else { return };
        let allocating = &mut self.allocating;
        let mut news = std::mem::take(&mut allocating.untold);
        let later = std::mem::take(&mut allocating.in_next_record);
        allocating.untold = news.intersection(&later).cloned().collect();
        news.retain(|uid| !later.contains(uid));
        if written {
            allocating.durable_managers = std::mem::take(&mut allocating.writing_managers);
            let is_due = |uid: &PodUid| allocating.given.contains_key(uid) && !later.contains(uid);
            let due: Vec<_> = all.iter().filter(|(uid, _)| is_due(uid)).collect();
            for (uid, given) in due {
                if allocating.durable.insert(uid.clone(), given.clone()).is_some_and(|old| old != *given) {
                    news.insert(uid.clone());
                }
            }
        } else {
            // Running pods keep their allocation; new ones start, as they would if the record were lost with
            // the disk.
            for uid in &news {
                if let (Some(given), false) = (all.get(uid), allocating.durable.contains_key(uid)) {
                    allocating.durable.insert(uid.clone(), given.clone());
                }
            }
            (allocating.urgent, allocating.again_at) = (true, Some(now.mono.after(WRITE_AGAIN)));
        }
        for uid in news {
            if let Some(pod) = self.desired.get(&uid).map(Arc::clone)
                && self.workers.contains_key(&uid)
            {
                self.tell_desired(&uid, &pod, out);
            }
        }
    }

    /// The pod's containers have the resources of `pod`.
    pub(super) fn actuated(&mut self, uid: &PodUid, pod: &Pod) {
        let up_to_date = self.allocating.given.get(uid).is_some_and(|given| !given.differs(pod));
        if let Some(worker) = self.workers.get_mut(uid).filter(|_| up_to_date) {
            self.allocating.actuated.remove(uid);
            if worker.room.take().is_some() {
                self.allocating.trigger.get_or_insert("pod_resized");
            }
        }
    }

    /// Room has come; or not, then it costs nothing.
    pub(super) fn room_came(&mut self, why: &'static str) {
        if !self.allocating.queue.is_empty() {
            self.allocating.trigger.get_or_insert(why);
        }
    }

    /// Nothing of the pod is left.
    pub(super) fn give_back(&mut self, uid: &PodUid) {
        self.allocating.forget(uid);
    }

    /// Forgets pods that have no worker and that no source wants.
    pub(super) fn forget_strangers(&mut self) {
        let allocating = &self.allocating;
        let known = |uid: &PodUid| self.workers.contains_key(uid) || self.desired.contains_key(uid);
        let strangers: Vec<PodUid> = allocating.given.keys().filter(|uid| !known(uid)).cloned().collect();
        for uid in strangers {
            self.allocating.forget(&uid);
        }
    }

    /// At the end of a step: judges requests if there is a reason, and starts due writes.
    pub(super) fn settle_allocations(&mut self, now: Now, out: &mut Outbox<ManagerAction>) {
        if self.allocating.retry_at.is_some_and(|at| at <= now.mono) {
            self.allocating.trigger.get_or_insert("periodic_retry");
        }
        if self.synced
            && let Some(trigger) = self.allocating.trigger.take()
        {
            self.retry(trigger, out);
            self.allocating.retry_at = Some(now.mono.after(RETRY));
        }
        self.allocating.write(now, &self.placing, out);
    }

    fn retry(&mut self, trigger: &'static str, out: &mut Outbox<ManagerAction>) {
        for uid in self.in_order() {
            let Some(wanted) = self.desired.get(&uid).map(Arc::clone) else { continue };
            match self.judge_resize(&uid, &wanted) {
                None => {
                    self.preemption.settled(&uid);
                    self.allocating.queue.remove(&uid);
                    self.tell_decided(&uid, out);
                }
                Some(Ok(())) => {
                    self.preemption.settled(&uid);
                    self.grant(&uid, &wanted, trigger, out);
                }
                // The room is being made.
                Some(Err(_)) if self.preemption.holds_up(&uid) => {}
                Some(Err(Refusal::Deferred(_))) if pod::is_critical(&wanted) => {
                    let all = self.allocating.at_least(&uid, &wanted);
                    if let Err(rejection) = self.make_room_for_resize(&uid, &all, out) {
                        self.preemption.settled(&uid);
                        self.refuse(&uid, &wanted, &Refusal::Deferred(rejection), out);
                    }
                }
                Some(Err(refusal)) => self.refuse(&uid, &wanted, &refusal, out),
            }
        }
    }

    /// Pods with a request, in the order of judgement.
    fn in_order(&self) -> Vec<PodUid> {
        let find = |uid: &PodUid| {
            Some((uid.clone(), self.desired.get(uid)?, self.workers.get(uid)?.pod.as_deref()?))
        };
        let mut all: Vec<_> = self.allocating.queue.iter().filter_map(find).collect();
        all.sort_by(|a, b| {
            let (x, y) = (Waiting { desired: a.1, allocated: a.2 }, Waiting { desired: b.1, allocated: b.2 });
            x.order(&y)
        });
        all.into_iter().map(|(uid, ..)| uid).collect()
    }

    /// `None` if the pod has no request any more.
    fn judge_resize(&self, uid: &PodUid, wanted: &Pod) -> Option<Result<(), Refusal>> {
        let worker = self.workers.get(uid).filter(|w| w.needs_room() && !w.leaving)?;
        let given = self.allocating.given.get(uid).filter(|given| given.differs(wanted))?;
        if wanted.metadata.deletion_timestamp.is_some() || worker.pod.is_none() {
            return None;
        }
        let others = self.takers().filter(|(other, _)| *other != uid);
        let promised = self.promised();
        let others = others.filter_map(|(_, w)| Worker::room(w)).chain(self.kept_for(uid));
        let others = others.chain(promised.iter().map(|pod| &**pod));
        // Its devices are its own, also where their plugin has lost some since.
        let admission = self.without_devices(Arc::clone(&self.admission), wanted);
        let verdict = resize::judge(wanted, given, &others.collect::<Vec<_>>(), &admission);
        Some(verdict.and_then(|()| self.shutdown.refuses().map_err(Refusal::Deferred)))
    }

    fn grant(
        &mut self,
        uid: &PodUid,
        wanted: &Arc<Pod>,
        trigger: &'static str,
        out: &mut Outbox<ManagerAction>,
    ) {
        let allocating = &mut self.allocating;
        let (new, old) = (PodAllocation::of(wanted), allocating.given.get(uid).cloned().unwrap_or_default());
        if let Some(worker) = self.workers.get_mut(uid) {
            let had = worker.room.as_deref().map_or(old, PodAllocation::of);
            let room = new.at_least(&had).apply(wanted);
            worker.room = (!Arc::ptr_eq(&room, wanted)).then_some(room);
            worker.pod = Some(Arc::clone(wanted));
        }
        allocating.given.insert(uid.clone(), new);
        allocating.queue.remove(uid);
        allocating.urgent = true;
        if allocating.waits_no_more(uid, wanted).is_some_and(|said| said.reason == DEFERRED) {
            out.push(ManagerAction::Resize(ResizeNote::DeferredAccepted(trigger)));
        }
        // What it had before a change that never came to the disk is there already.
        self.tell_decided(uid, out);
    }

    fn refuse(&mut self, uid: &PodUid, wanted: &Pod, refusal: &Refusal, out: &mut Outbox<ManagerAction>) {
        let (reason, generation) = (refusal.reason(), wanted.metadata.generation);
        let event = message::of(&refusal.event(), wanted, generation, refusal.message());
        let (reason, message) = (reason.to_owned(), refusal.message().to_owned());
        let said = PendingResize { reason, message, generation, event };
        if let Refusal::Infeasible(_, detail) = refusal {
            self.allocating.queue.remove(uid);
            out.push(ManagerAction::Resize(ResizeNote::Infeasible(detail)));
        }
        self.allocating.granted.remove(uid);
        if self.allocating.said.insert(uid.clone(), said.clone()).as_ref() != Some(&said) {
            tell(uid, PodEvent::ResizePending(Some(said)), out);
        }
        self.tell_decided(uid, out);
    }

    /// The request of the pod was decided: its worker gets it now, unless it has it already.
    fn tell_decided(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        let Some(pod) = self.desired.get(uid).map(Arc::clone) else { return };
        let allocating = &self.allocating;
        let late = allocating.told.get(uid).is_some_and(|told| *told != pod.metadata.generation)
            || allocating.granted.contains(uid);
        if late && !allocating.undecided(uid, &pod) && self.workers.contains_key(uid) {
            self.tell_desired(uid, &pod, out);
        }
    }
}
