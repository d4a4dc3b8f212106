//! What pods were given, and requests for other amounts.
//!
//! ```text
//! admitted, resized ──► given ──Allocated──► disk ──► durable ──► Tell(Desired) with what was given
//! ```
//! In: pods as they are wanted, answers of the disk, what workers carried out. Out: records to write, pods with the amounts
//! that they were given, what is said of requests that wait. Invariants: a worker is told of amounts only when they are on
//! disk; while a pod is between two amounts it takes the room of both; a record that cannot be written is tried again, and a
//! pod that is new does not wait for it, as upstream's do not; requests that wait are judged again when room comes, and every
//! three minutes. A pod that asks for nothing has nothing to lose: its record is written with the next one.
//! Upstream: allocation_manager.go.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Container, Pod, PodSpec, ResourceRequirements};

use super::state::{Worker, is_over};
use super::{ManagerAction, PodManager, tell};
use crate::allocation::resize::{self, Change, DEFERRED, PendingResize, Refusal, Waiting};
use crate::allocation::{Allocations, PodAllocation, message};
use crate::pod_worker::PodEvent;

/// Requests that wait are judged again after as long, whatever happens.
const RETRY: Duration = Duration::from_secs(3 * 60);
/// A record that could not be written is tried again after as long.
const WRITE_AGAIN: Duration = Duration::from_secs(10);
/// What nobody waits for is written after as long.
const WRITE_LATE: Duration = Duration::from_secs(30);

/// What is counted of resizes.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ResizeNote {
    /// An amount was changed in the API.
    Requested(Change),
    /// It will never be; upstream's word for why.
    Infeasible(&'static str),
    /// What was deferred came true; upstream's word for what made it be judged again.
    DeferredAccepted(&'static str),
}

/// The book of what pods were given.
#[derive(Clone, Debug, Default)]
pub(super) struct Allocating {
    given: Allocations,
    /// On disk, or as good.
    durable: Allocations,
    /// What is being written.
    writing: Option<Arc<Allocations>>,
    /// `given` has what no record has; somebody waits for it.
    urgent: bool,
    /// The same, and nobody waits.
    changed: bool,
    /// What nobody waits for is written then.
    late_at: Option<Mono>,
    /// The last record could not be written; the next one is tried then.
    again_at: Option<Mono>,
    /// Workers that are to be told of their pod once it is on disk.
    untold: BTreeSet<PodUid>,
    /// Requests that wait.
    queue: BTreeSet<PodUid>,
    /// What was last said of them.
    said: BTreeMap<PodUid, PendingResize>,
    /// Requests that are granted and waited before: their workers are told so with what they were given.
    granted: BTreeSet<PodUid>,
    /// The generation that each pod's worker was told of.
    told: BTreeMap<PodUid, Option<i64>>,
    /// Why they are to be judged now.
    trigger: Option<&'static str>,
    retry_at: Option<Mono>,
    /// What containers had when the agent began, until their worker says what they have.
    actuated: Allocations,
}

impl Allocating {
    pub(super) fn new(given: Allocations, actuated: Allocations) -> Allocating {
        Allocating { durable: given.clone(), given, actuated, ..Allocating::default() }
    }

    /// The pod with what it was given.
    pub(super) fn allocated(&self, pod: &Arc<Pod>) -> Arc<Pod> {
        let given = self.given.get(&pod::key(pod).uid);
        given.map_or_else(|| Arc::clone(pod), |given| given.apply(pod))
    }

    /// The pod as its worker may know it; `None` while that is not on disk. Its status says which generation it knows: while
    /// nothing is decided about what that asks for, it is the one before, or people would take the resize for done.
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

    /// The pod was neither given what it asks for, to be told of it, nor refused it.
    fn undecided(&self, uid: &PodUid, pod: &Pod) -> bool {
        let refused = || self.said.get(uid).is_some_and(|said| said.generation == pod.metadata.generation);
        let given = || self.durable.get(uid) == self.given.get(uid);
        pod.metadata.deletion_timestamp.is_none()
            && if self.queue.contains(uid) { !refused() } else { !given() }
    }

    /// The pod is admitted with what it asks for, unless it was before.
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

    /// The pod with what it asks for and what it was given, whichever is more.
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

    /// The pod was given what it asks for; what was said of its request, here or by an agent before.
    fn waits_no_more(&mut self, uid: &PodUid, wanted: &Pod) -> Option<PendingResize> {
        let conditions = wanted.status.as_ref().and_then(|s| s.conditions.as_deref()).unwrap_or_default();
        let shown = conditions.iter().any(|c| c.type_ == crate::status::PENDING_RESIZE);
        let said = self.said.remove(uid);
        if said.is_some() || shown {
            self.granted.insert(uid.clone());
        }
        said
    }

    /// Queues the pod if it asks for something else than it was given.
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
        self.queue.remove(uid);
        self.said.remove(uid);
        self.granted.remove(uid);
        self.told.remove(uid);
    }

    fn write(&mut self, now: Now, out: &mut Outbox<ManagerAction>) {
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
        out.push(ManagerAction::Allocated(all));
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
            // Room that is being made for another request is not for this one.
            self.preemption.settled(&uid);
        }
        if changed && asks {
            self.allocating.trigger = Some("pod_updated");
        }
        if let Some(worker) = self.workers.get_mut(&uid) {
            // Of a pod that is taken down since before this agent, this is the first that it hears.
            worker.ended |= worker.pod.is_none() && is_over(new);
            worker.pod = Some(self.allocating.allocated(new));
            self.tell_desired(&uid, new, out);
        }
    }

    /// The pod may begin with what it asks for.
    pub(super) fn allocate(&mut self, uid: &PodUid, wanted: &Arc<Pod>) {
        self.allocating.admit(uid, wanted);
        self.allocating.ask(uid, wanted);
        if self.allocating.queue.contains(uid) {
            self.allocating.trigger.get_or_insert("pods_added");
        }
    }

    /// Tells the worker of its pod with what it was given, now or when that is on disk.
    pub(super) fn tell_desired(&mut self, uid: &PodUid, wanted: &Arc<Pod>, out: &mut Outbox<ManagerAction>) {
        let book = &mut self.allocating;
        match book.known(uid, wanted) {
            Some(pod) => tell(uid, PodEvent::Desired(pod), out),
            None => drop(book.untold.insert(uid.clone())),
        }
        // Later than the pod: between the two nobody may believe that the resize is done.
        if book.durable.get(uid) == book.given.get(uid) && book.granted.remove(uid) {
            tell(uid, PodEvent::ResizePending(None), out);
        }
    }

    /// The worker is about to be told of its pod's end: it must know its pod.
    pub(super) fn tell_before_end(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        if self.allocating.untold.remove(uid)
            && let Some(pod) = self.desired.get(uid)
        {
            tell(uid, PodEvent::Desired(self.allocating.allocated(pod)), out);
        }
    }

    /// The pod has a place in the book.
    pub(super) fn was_given(&self, uid: &PodUid) -> bool {
        self.allocating.given.contains_key(uid)
    }

    /// The worker was started: what its containers had before this agent began takes room, too.
    pub(super) fn occupy(&mut self, uid: &PodUid) {
        let Some(worker) = self.workers.get_mut(uid) else { return };
        worker.room = worker.pod.as_ref().and_then(|pod| self.allocating.room(uid, pod));
    }

    /// Of a pod of which only its containers are left: what they had takes room until they are gone.
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
        let book = &mut self.allocating;
        let mut news = std::mem::take(&mut book.untold);
        if written {
            for (uid, given) in all.iter().filter(|(uid, _)| book.given.contains_key(*uid)) {
                if book.durable.insert(uid.clone(), given.clone()).is_some_and(|old| old != *given) {
                    news.insert(uid.clone());
                }
            }
        } else {
            // Those that run keep what they have; new ones begin, as they would if the record were lost with the disk.
            for uid in &news {
                if let (Some(given), false) = (all.get(uid), book.durable.contains_key(uid)) {
                    book.durable.insert(uid.clone(), given.clone());
                }
            }
            (book.urgent, book.again_at) = (true, Some(now.mono.after(WRITE_AGAIN)));
        }
        for uid in news {
            if let Some(pod) = self.desired.get(&uid).map(Arc::clone)
                && self.workers.contains_key(&uid)
            {
                self.tell_desired(&uid, &pod, out);
            }
        }
    }

    /// The pod's containers have what `pod` gives them.
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

    /// Nobody has a worker for these, nor wants them.
    pub(super) fn forget_strangers(&mut self) {
        let book = &self.allocating;
        let known = |uid: &PodUid| self.workers.contains_key(uid) || self.desired.contains_key(uid);
        let strangers: Vec<PodUid> = book.given.keys().filter(|uid| !known(uid)).cloned().collect();
        for uid in strangers {
            self.allocating.forget(&uid);
        }
    }

    /// At the end of a step: judges requests if there is a reason to, and has written what is to be.
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
        self.allocating.write(now, out);
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

    /// Those that ask, in the order in which they are judged.
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

    /// `None` if nothing is asked for any more.
    fn judge_resize(&self, uid: &PodUid, wanted: &Pod) -> Option<Result<(), Refusal>> {
        let worker = self.workers.get(uid).filter(|w| !w.ended && !w.leaving)?;
        let given = self.allocating.given.get(uid).filter(|given| given.differs(wanted))?;
        if wanted.metadata.deletion_timestamp.is_some() || worker.pod.is_none() {
            return None;
        }
        let others = self.takers().filter(|(other, _)| *other != uid);
        let promised = self.promised();
        let others = others.filter_map(|(_, w)| Worker::room(w)).chain(self.preemption.kept_for(uid));
        let others = others.chain(promised.iter().map(|pod| &**pod));
        Some(resize::judge(wanted, given, &others.collect::<Vec<_>>(), &self.admission))
    }

    fn grant(
        &mut self,
        uid: &PodUid,
        wanted: &Arc<Pod>,
        trigger: &'static str,
        out: &mut Outbox<ManagerAction>,
    ) {
        let book = &mut self.allocating;
        let (new, old) = (PodAllocation::of(wanted), book.given.get(uid).cloned().unwrap_or_default());
        if let Some(worker) = self.workers.get_mut(uid) {
            let had = worker.room.as_deref().map_or(old, PodAllocation::of);
            let room = new.at_least(&had).apply(wanted);
            worker.room = (!Arc::ptr_eq(&room, wanted)).then_some(room);
            worker.pod = Some(Arc::clone(wanted));
        }
        book.given.insert(uid.clone(), new);
        book.queue.remove(uid);
        book.urgent = true;
        if book.waits_no_more(uid, wanted).is_some_and(|said| said.reason == DEFERRED) {
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

    /// Something was decided about what the pod asks for: if its worker has not heard of that it does now.
    fn tell_decided(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        let Some(pod) = self.desired.get(uid).map(Arc::clone) else { return };
        let book = &self.allocating;
        let late = book.told.get(uid).is_some_and(|told| *told != pod.metadata.generation)
            || book.granted.contains(uid);
        if late && !book.undecided(uid, &pod) && self.workers.contains_key(uid) {
            self.tell_desired(uid, &pod, out);
        }
    }
}
