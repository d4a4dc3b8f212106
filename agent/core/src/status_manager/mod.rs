//! The status manager: writes the statuses of the pod workers to the API server, and deletes a pod from the
//! API after its end.
//!
//! # For the shell
//! One machine for a node that has an API server. Feed it:
//! 1. [`StatusEvent::Watch`]: every event of the pod watch (see [`crate::pod_source::api`]);
//! 2. [`StatusEvent::Published`] for each `PodAction::PublishStatus`, static pods too;
//!    [`StatusEvent::Terminated`] once `PodWorker::is_terminated`; [`StatusEvent::Finished`] for each
//!    `PodAction::Finished`, after the two others. Events of one pod keep their order; the older of two
//!    `Published` of one pod with no event between them may be dropped;
//! 3. exactly one [`StatusEvent::Answer`] for each [`StatusAction::Call`], and [`StatusEvent::Tick`] at the
//!    deadline.
//!
//! [`StatusAction::Outdated`] goes to the mirror pods as
//! [`MirrorEvent::Outdated`](crate::mirror_pods::MirrorEvent::Outdated).
//!
//! A patch carries `metadata.uid` and its base's `metadata.resourceVersion`. The server answers 409 if the
//! base was stale; only then the machine reads the pod with a list of the one name (upstream reads it every
//! time). After [`CONFLICTS_MAX`] such answers in a row a patch omits the version, as all of upstream's do.
//!
//! In: facts of workers, the API's pods, answers. Out: GET and PATCH of pod status, the final DELETE.
//! Invariants: one call in flight for each pod, the newest status wins; a status that the API shows already
//! is not sent; a terminal phase is sent only after no container of the pod can run, and never reverted
//! (STATUS-MONO); fields of other owners stay; DELETE (grace 0, UID precondition) is sent exactly if deletion
//! was requested, the API shows a terminal phase and the worker has finished (DELETE-LAST), never for a
//! mirror pod, and for a pod left over from a finished shutdown
//! ([`is_left_over`](crate::node_shutdown::is_left_over)) once none of its containers runs; while the server
//! does not answer, the machine probes it with one call at a time; foreign changes of a status are corrected
//! at most once in [`RECONCILE`]. Upstream: pkg/kubelet/status/status_manager.go.

mod decide;
mod entries;
mod merge;
mod patch;
mod transition;

#[cfg(test)]
mod tests;

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;
use std::time::Duration;

use agent_types::api::retry::Retry;
use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, ObjectName, WatchEvent};
use agent_types::failure::Class;
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::pod;
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Pod, PodStatus};

pub use merge::{MergeInputs, is_owned_condition, merge};
pub use patch::{Guard, status_patch};

use entries::{ApiPods, Flight, StatusEntry, Via};

use crate::status::Phase;
use crate::status_manager::entries::StatusCall;

/// Least time between two corrections of a status that another client keeps changing.
pub const RECONCILE: Duration = Duration::from_secs(10);
/// So often in a row a pod's status may be refused because others write to it all the time.
pub const CONFLICTS_MAX: u32 = 4;
/// For a pod with more containers than this, patches are collected instead of one for each change.
pub const MANY_CONTAINERS: usize = 20;
/// Time between two patches for each container of such a pod. A patch of a pod with a thousand containers
/// contains all of them, and the pod changes a thousand times while it starts.
pub const PACE: Duration = Duration::from_millis(2);
/// Most calls in flight at the same time.
pub const CALLS_MAX: usize = 16;

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum StatusEvent {
    /// An event of the pod watch.
    Watch(WatchEvent<Pod>),
    /// A worker published a status.
    Published {
        /// Of which pod; for a static pod its own UID, not the mirror pod's.
        pod: PodKey,
        /// The new status.
        status: Arc<PodStatus>,
    },
    /// No container of the pod runs or will run. It may come before any status: a worker that continues a
    /// termination knows its pod only after the first list of the API server.
    Terminated(PodKey),
    /// Nothing of the pod is left on the node; its worker is gone.
    Finished(PodKey),
    /// The answer to a call.
    Answer {
        /// Identifier from the action.
        id: EffectId,
        /// The answer.
        result: ApiResult,
    },
    /// Whether a shutdown of the machine is excluded or pending; without this event the manager assumes
    /// neither.
    MachineStays(bool),
    /// Answer [`StatusAction::Untold`], and again after each change, for good.
    AskUntold,
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum StatusAction {
    /// Send this, answer [`StatusEvent::Answer`].
    Call {
        /// To be sent back.
        id: EffectId,
        /// Call to send.
        call: ApiCall,
    },
    /// A mirror pod shows an earlier run of its static pod as ended for good, which the API server does not
    /// let a client revert: it must be created again. Goes to [`MirrorPods`](crate::mirror_pods::MirrorPods).
    Outdated {
        /// The mirror pod.
        name: ObjectName,
        /// Its UID in the API.
        uid: String,
    },
    /// The pods whose latest status the API server does not have.
    Untold(BTreeSet<PodUid>),
    /// Report for logs and metrics.
    Report(StatusReport),
}

/// What people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StatusReport {
    /// A call failed; the manager will retry it.
    Failed {
        /// About which pod.
        pod: PodKey,
        /// Error of the call.
        error: ApiError,
    },
    /// The manager rejected a worker's status: it contradicts an earlier one.
    Illegal {
        /// Of which pod.
        pod: PodKey,
        /// What is wrong.
        problem: String,
    },
    /// The pod is over and its object deleted.
    Deleted(PodKey),
    /// The API server accepted a worker's status.
    Told {
        /// Time since the worker's status; of several merged statuses, since the first.
        took: Duration,
    },
}

/// The status manager as a state machine.
#[derive(Clone, Debug)]
pub struct StatusManager {
    api: ApiPods,
    pods: BTreeMap<PodUid, StatusEntry>,
    /// Pods about which something may have to be done.
    dirty: BTreeSet<PodUid>,
    flights: BTreeMap<EffectId, Flight>,
    /// Whether the server answers.
    gate: Retry,
    next_id: u64,
    wake: Option<Mono>,
    /// No shutdown is pending: pods left over from earlier shutdowns are deleted.
    stays: bool,
    /// The last reported set of pods whose status the API does not have; `None` before a component asked for
    /// it.
    untold: Option<BTreeSet<PodUid>>,
}

impl StatusManager {
    /// The statuses of the pods of `node_name`.
    #[must_use]
    pub fn new(node_name: impl Into<String>) -> StatusManager {
        StatusManager {
            api: ApiPods::new(node_name.into()),
            pods: BTreeMap::new(),
            dirty: BTreeSet::new(),
            flights: BTreeMap::new(),
            gate: Retry::default(),
            next_id: 0,
            wake: None,
            stays: false,
            untold: None,
        }
    }

    /// Calls that have not been answered yet, at most [`CALLS_MAX`] (checker BOUNDED).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    /// Pods that are remembered.
    #[must_use]
    pub fn len(&self) -> usize {
        self.pods.len()
    }

    /// True if no pod is remembered.
    #[must_use]
    pub fn is_empty(&self) -> bool {
        self.pods.is_empty()
    }

    /// True if the API has everything that it can take.
    #[must_use]
    pub fn is_settled(&self) -> bool {
        self.dirty.is_empty() && self.flights.is_empty()
    }

    fn published(&mut self, key: PodKey, status: Arc<PodStatus>, now: Mono, out: &mut Outbox<StatusAction>) {
        let uid = key.uid.clone();
        let entry = self.pods.entry(uid.clone()).or_insert_with(|| StatusEntry::new(key));
        let api = self.api.of(&entry.key);
        // A mirror pod may show an earlier run; the manager checks that when it writes.
        let shown = api.filter(|(_, via)| *via == Via::Itself).and_then(|(pod, _)| pod.status.as_ref());
        let before = entry.status.as_deref().filter(|_| !entry.is_over()).or(shown);
        if let Err(problem) = transition::check(before, &status, api.map(|(pod, _)| pod)) {
            out.push(StatusAction::Report(StatusReport::Illegal { pod: entry.key.clone(), problem }));
            return;
        }
        entry.published(status, now);
        self.dirty.insert(uid);
    }

    fn finished(&mut self, key: PodKey) {
        let uid = key.uid.clone();
        self.pods.entry(uid.clone()).or_insert_with(|| StatusEntry::new(key)).finished();
        self.dirty.insert(uid);
    }

    fn terminated(&mut self, key: PodKey) {
        let uid = key.uid.clone();
        self.pods.entry(uid.clone()).or_insert_with(|| StatusEntry::new(key)).terminated();
        self.dirty.insert(uid);
    }

    fn machine_stays(&mut self, stays: bool) {
        if stays && !self.stays {
            self.dirty
                .extend(self.pods.iter().filter(|(_, entry)| !entry.may_run()).map(|(uid, _)| uid.clone()));
        }
        self.stays = stays;
    }

    fn watched(&mut self, event: WatchEvent<Pod>) {
        let touched = match event {
            WatchEvent::Listed(pods) => {
                self.gate.release();
                self.api.listed(&pods);
                // What was deleted and is there again came from a backup of the server.
                self.pods.values_mut().for_each(|entry| entry.deleted = false);
                self.pods.keys().cloned().collect()
            }
            WatchEvent::Applied(pod) => self.api.applied(&pod),
            WatchEvent::Deleted(pod) => self.api.deleted(&pod),
            WatchEvent::Lost(_) => Vec::new(),
        };
        self.dirty.extend(touched.into_iter().filter(|uid| self.pods.contains_key(uid)));
    }

    fn answered(&mut self, id: EffectId, result: ApiResult, now: Now, out: &mut Outbox<StatusAction>) {
        let Some(flight) = self.flights.remove(&id) else { return };
        match &result {
            Err(e) if is_unreachable(e.class) => self.gate.failed(now.mono, e.class, "api"),
            _ => self.gate.succeeded(),
        }
        let Some(entry) = self.pods.get_mut(&flight.pod) else { return };
        entry.in_flight = false;
        self.dirty.insert(flight.pod.clone());
        match (flight.need, result) {
            (StatusCall::Find, Ok(ApiReply::Pod(pod))) => {
                self.api.read(&flight.api_uid, &pod);
                entry.read();
            }
            (StatusCall::Patch { version }, Ok(ApiReply::Pod(pod))) => {
                self.api.read(&flight.api_uid, &pod);
                if let Some(took) = entry.written(version, flight.api_uid, now.mono) {
                    out.push(StatusAction::Report(StatusReport::Told { took }));
                }
            }
            (StatusCall::Delete, Ok(_)) => {
                entry.deleted = true;
                out.push(StatusAction::Report(StatusReport::Deleted(entry.key.clone())));
            }
            (StatusCall::Find, Err(e)) if e.class == Class::NotFound => self.api.gone(&flight.api_uid),
            (StatusCall::Delete, Err(e)) if e.class == Class::NotFound => entry.deleted = true,
            (need, Err(error)) => {
                let (class, seed) = (entry.class(&need, &error), entry.key.uid.as_str().to_owned());
                entry.failed(&need, class, now.mono, &seed);
                let stale = matches!(class, Class::Conflict | Class::NotFound) && need != StatusCall::Find;
                if !stale {
                    out.push(StatusAction::Report(StatusReport::Failed { pod: entry.key.clone(), error }));
                }
            }
            (need, Ok(_)) => {
                let seed = entry.key.uid.as_str().to_owned();
                entry.failed(&need, Class::Unavailable, now.mono, &seed);
            }
        }
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<StatusAction>) {
        self.wake = None;
        let candidates: Vec<PodUid> = self.dirty.iter().cloned().collect();
        for uid in candidates {
            let Some(entry) = self.pods.get(&uid) else {
                self.dirty.remove(&uid);
                continue;
            };
            if entry.in_flight {
                continue;
            }
            if self.api.is_listed() && entry.is_over() && self.api.of(&entry.key).is_none() {
                self.pods.remove(&uid);
                self.dirty.remove(&uid);
                continue;
            }
            if let Some((name, api_uid)) = decide::outdated(entry, &self.api) {
                self.dirty.remove(&uid);
                self.outdated(&uid, name, api_uid, out);
                continue;
            }
            // Comes before the patch is computed: for many containers that is the expensive part.
            let shown = self.api.of(&entry.key);
            if let Some(held) = shown.and_then(|(shown, _)| entry.paced(pod::uid(shown), now.mono)) {
                self.wake_at(held);
                continue;
            }
            if !self.may_call() {
                break;
            }
            if let Some(held) = self.gate.held(now.mono) {
                self.wake_at(held);
                break;
            }
            match decide::decide(entry, &self.api, self.stays, now) {
                None => {
                    self.dirty.remove(&uid);
                    self.settle(&uid);
                }
                Some(wanted) => {
                    let until = [wanted.not_before, entry.retry.held(now.mono)];
                    match until.into_iter().flatten().max().filter(|t| *t > now.mono) {
                        Some(until) => self.wake_at(until),
                        None => self.issue(&uid, wanted, out),
                    }
                }
            }
        }
    }

    fn outdated(&mut self, pod: &PodUid, name: ObjectName, uid: String, out: &mut Outbox<StatusAction>) {
        if let Some(entry) = self.pods.get_mut(pod).filter(|e| e.outdated.as_ref() != Some(&uid)) {
            entry.outdated = Some(uid.clone());
            out.push(StatusAction::Outdated { name, uid });
        }
    }

    /// While the server does not answer, one call probes it.
    fn may_call(&self) -> bool {
        let limit = if self.gate.failures() > 0 { 1 } else { CALLS_MAX };
        self.flights.len() < limit
    }

    fn say_untold(&mut self, asked: bool, out: &mut Outbox<StatusAction>) {
        if !asked && self.untold.is_none() {
            return;
        }
        let under_way = self.flights.values().map(|flight| &flight.pod);
        // A new agent does not publish an end that it may not contradict: the API server learns of such an
        // end when the object is removed. Before the first list of the API's pods, none of them was published.
        let shows_end = |entry: &StatusEntry| match self.api.of(&entry.key) {
            Some((p, _)) => p.status.as_ref().and_then(Phase::end).is_some(),
            None => self.api.is_listed(),
        };
        let unended =
            self.pods.iter().filter(|(_, entry)| !entry.may_run() && !entry.deleted && !shows_end(entry));
        let unended = unended.map(|(uid, _)| uid);
        let untold: BTreeSet<PodUid> = self.dirty.iter().chain(under_way).chain(unended).cloned().collect();
        if asked || self.untold.as_ref() != Some(&untold) {
            out.push(StatusAction::Untold(untold.clone()));
            self.untold = Some(untold);
        }
    }

    fn settle(&mut self, uid: &PodUid) {
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.settled();
        }
    }

    fn wake_at(&mut self, at: Mono) {
        self.wake = Some(self.wake.map_or(at, |w| w.min(at)));
    }

    fn issue(&mut self, uid: &PodUid, wanted: decide::PendingCall, out: &mut Outbox<StatusAction>) {
        let id = EffectId(self.next_id);
        self.next_id += 1;
        if let Some(entry) = self.pods.get_mut(uid) {
            entry.in_flight = true;
        }
        self.dirty.remove(uid);
        let decide::PendingCall { need, call, api_uid, .. } = wanted;
        self.flights.insert(id, Flight { pod: uid.clone(), api_uid, need });
        out.push(StatusAction::Call { id, call });
    }
}

/// No connection, no answer, or a server that asks for a pause.
fn is_unreachable(class: Class) -> bool {
    matches!(
        class,
        Class::Unavailable | Class::Interrupted | Class::DeadlineExceeded | Class::Retryable { .. }
    )
}

fn object_name(key: &PodKey) -> ObjectName {
    ObjectName { namespace: Arc::clone(&key.namespace), name: Arc::clone(&key.name) }
}

fn name_of(p: &Pod) -> ObjectName {
    ObjectName { namespace: pod::namespace(p).into(), name: pod::name(p).into() }
}

impl Machine for StatusManager {
    type Event = StatusEvent;
    type Action = StatusAction;

    fn step(&mut self, now: Now, event: StatusEvent, out: &mut Outbox<StatusAction>) {
        let asked = matches!(event, StatusEvent::AskUntold);
        match event {
            StatusEvent::Watch(event) => self.watched(event),
            StatusEvent::Published { pod, status } => self.published(pod, status, now.mono, out),
            StatusEvent::Terminated(key) => self.terminated(key),
            StatusEvent::Finished(key) => self.finished(key),
            StatusEvent::Answer { id, result } => self.answered(id, result, now, out),
            StatusEvent::MachineStays(stays) => self.machine_stays(stays),
            StatusEvent::AskUntold => {}
            StatusEvent::Tick => {}
        }
        self.advance(now, out);
        self.say_untold(asked, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}
