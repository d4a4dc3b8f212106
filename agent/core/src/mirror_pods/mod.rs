//! Mirror pods: API objects that show this node's static pods.
//!
//! # For the shell
//! One machine for a node that has an API server. Feed it:
//! 1. [`MirrorEvent::Static`]: every [`PodUpdate`] of the file and http sources, as the pod manager gets it;
//! 2. [`MirrorEvent::Watch`]: every event of the pod watch (see [`crate::pod_source::api`]);
//! 3. [`MirrorEvent::Node`]: the known state of the Node object, at each change;
//! 4. [`MirrorEvent::Worker`] for each `ManagerAction::Start`, [`MirrorEvent::Forgotten`] for each
//!    `ManagerAction::Forget`, [`MirrorEvent::Synced`] for `ManagerAction::Synced`, [`MirrorEvent::Outdated`]
//!    for `StatusAction::Outdated`;
//! 5. exactly one [`MirrorEvent::Answer`] for each [`MirrorAction::Call`], and [`MirrorEvent::Tick`] at the
//!    deadline.
//!
//! In: the desired mirror pods, the API's pods. Out: GET, POST and DELETE of pods. Invariants: one call in
//! flight for each name; no pod is created before the first list, nor while the Node is missing or being
//! deleted; an existing pod is deleted only by its UID and only if it is a mirror pod; a mirror pod outlives
//! the worker of its static pod; a mirror pod without a static pod is deleted only after every source was
//! read; a lost answer counts neither as success nor as failure. Upstream: pkg/kubelet/pod/mirror_client.go,
//! `tryReconcileMirrorPods` of pkg/kubelet/kubelet.go.

mod slot;

#[cfg(test)]
mod tests;

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::api::{ApiCall, ApiError, ApiReply, ApiResult, ObjectName, WatchEvent};
use agent_types::failure::Class;
use agent_types::ids::{PodKey, PodUid};
use agent_types::machine::{EffectId, Machine, Outbox};
use agent_types::pod::{self, CONFIG_HASH, CONFIG_MIRROR};
use agent_types::time::{Mono, Now};
use k8s_openapi::api::core::v1::{Node, Pod};
use k8s_openapi::apimachinery::pkg::apis::meta::v1::{ObjectMeta, OwnerReference};

use slot::{Mirror, MirrorCall, Slot};

use crate::pod_source::{PodOp, PodUpdate, api};

/// Calls in flight at one time.
const CALLS_MAX: usize = 8;

/// What is known of this node's Node object.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub enum NodeView {
    /// Not registered, or not known yet.
    #[default]
    Missing,
    /// `metadata.deletionTimestamp` is set.
    Deleting,
    /// It is there.
    Present {
        /// `metadata.uid`.
        uid: String,
    },
}

impl NodeView {
    /// The new state of the own Node from an event of its watch; `None` if it did not change.
    #[must_use]
    pub fn heard(event: &WatchEvent<Node>) -> Option<NodeView> {
        let of = |node: &Node| match (&node.metadata.deletion_timestamp, &node.metadata.uid) {
            (Some(_), _) => NodeView::Deleting,
            (None, Some(uid)) => NodeView::Present { uid: uid.clone() },
            (None, None) => NodeView::Missing,
        };
        match event {
            WatchEvent::Listed(nodes) => Some(nodes.first().map_or(NodeView::Missing, |node| of(node))),
            WatchEvent::Applied(node) => Some(of(node)),
            WatchEvent::Deleted(_) => Some(NodeView::Missing),
            WatchEvent::Lost(_) => None,
        }
    }
}

/// What the machine reacts to.
#[derive(Clone, Debug)]
pub enum MirrorEvent {
    /// A source of static pods changed; updates of other sources do nothing.
    Static(PodUpdate),
    /// An event of the pod watch.
    Watch(WatchEvent<Pod>),
    /// The Node object changed.
    Node(NodeView),
    /// A pod worker was started.
    Worker(PodKey),
    /// A pod worker has ended.
    Forgotten(PodUid),
    /// Every source was read: static pods that are not known do not exist.
    Synced,
    /// The mirror pod shows an earlier run that the API server does not let a client revert
    /// ([`StatusAction::Outdated`](crate::status_manager::StatusAction::Outdated)).
    Outdated {
        /// Name of the mirror pod.
        name: ObjectName,
        /// Its UID in the API.
        uid: String,
    },
    /// The answer to a call.
    Answer {
        /// Identifier from the action.
        id: EffectId,
        /// The answer.
        result: ApiResult,
    },
    /// The deadline has passed.
    Tick,
}

/// A request of the machine to its shell.
#[derive(Clone, Debug, PartialEq)]
pub enum MirrorAction {
    /// Send this, answer [`MirrorEvent::Answer`].
    Call {
        /// To be sent back.
        id: EffectId,
        /// Call to the API server.
        call: ApiCall,
    },
    /// Report this in the log.
    Report(MirrorReport),
}

/// What people should know.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum MirrorReport {
    /// A mirror pod was created.
    Created(ObjectName),
    /// A mirror pod was deleted.
    Deleted(ObjectName),
    /// A pod that is no mirror pod has the name of a static pod.
    NameTaken(ObjectName),
    /// A call failed; it is tried again.
    Failed(ApiError),
}

/// The machine.
#[derive(Clone, Debug)]
pub struct MirrorPods {
    node_name: String,
    node: NodeView,
    listed: bool,
    synced: bool,
    slots: BTreeMap<ObjectName, Slot>,
    workers: BTreeMap<PodUid, ObjectName>,
    flights: BTreeMap<EffectId, ObjectName>,
    next_id: u64,
    wake: Option<Mono>,
}

fn name_of(p: &Pod) -> ObjectName {
    ObjectName { namespace: pod::namespace(p).into(), name: pod::name(p).into() }
}

impl MirrorPods {
    /// The mirror pods of `node_name`.
    #[must_use]
    pub fn new(node_name: impl Into<String>) -> MirrorPods {
        MirrorPods {
            node_name: node_name.into(),
            node: NodeView::Missing,
            listed: false,
            synced: false,
            slots: BTreeMap::new(),
            workers: BTreeMap::new(),
            flights: BTreeMap::new(),
            next_id: 0,
            wake: None,
        }
    }

    /// UID of the mirror pod that mirrors the static pod `uid`, if the API has it.
    #[must_use]
    pub fn mirror_of(&self, name: &ObjectName, uid: &PodUid) -> Option<&str> {
        let mirror = self.slots.get(name)?.mirror.as_ref()?;
        (mirror.hash.as_deref() == Some(uid.as_str())).then_some(mirror.uid.as_str())
    }

    /// Calls that have not been answered yet (checker BOUNDED).
    #[must_use]
    pub fn in_flight(&self) -> usize {
        self.flights.len()
    }

    fn update(&mut self, update: &PodUpdate) {
        for pod in update.pods.iter().filter(|p| pod::is_static(p)) {
            let name = name_of(pod);
            if update.op == PodOp::Remove {
                let slot = self.slots.get_mut(&name);
                if let Some(slot) =
                    slot.filter(|s| s.wanted.as_ref().is_some_and(|w| pod::uid(w) == pod::uid(pod)))
                {
                    slot.wanted = None;
                }
            } else {
                let slot = self.slots.entry(name).or_default();
                slot.retry.release();
                slot.wanted = Some(Arc::clone(pod));
            }
        }
    }

    fn watched(&mut self, event: WatchEvent<Pod>) {
        match event {
            WatchEvent::Listed(pods) => {
                self.listed = true;
                let mut gone: Vec<&mut Slot> = self.slots.values_mut().collect();
                gone.iter_mut().for_each(|slot| slot.absent());
                for pod in pods {
                    self.seen(&pod);
                }
            }
            WatchEvent::Applied(pod) => self.seen(&pod),
            WatchEvent::Deleted(pod) => {
                if let Some(slot) = self.slots.get_mut(&name_of(&pod)) {
                    slot.deleted(pod::uid(&pod));
                }
            }
            WatchEvent::Lost(_) => {}
        }
    }

    fn seen(&mut self, pod: &Pod) {
        if api::refusal(pod, &self.node_name).is_some() {
            return;
        }
        let name = name_of(pod);
        let mirror = Mirror::of(pod);
        if mirror.is_mirror() || self.slots.contains_key(&name) {
            self.slots.entry(name).or_default().seen(mirror);
        }
    }

    fn answered(&mut self, id: EffectId, result: ApiResult, now: Now, out: &mut Outbox<MirrorAction>) {
        let Some(name) = self.flights.remove(&id) else { return };
        let Some(slot) = self.slots.get_mut(&name) else { return };
        let Some(need) = slot.flight.take() else { return };
        match (&need, result) {
            (MirrorCall::Create(_), Ok(ApiReply::Pod(pod))) => {
                slot.mirror = Some(Mirror::of(&pod));
                out.push(MirrorAction::Report(MirrorReport::Created(name)));
            }
            (MirrorCall::Look, Ok(ApiReply::Pod(pod))) => slot.looked(Some(Mirror::of(&pod))),
            (MirrorCall::Delete(uid), Ok(_)) => {
                slot.removed(uid);
                out.push(MirrorAction::Report(MirrorReport::Deleted(name)));
            }
            (MirrorCall::Look, Err(e)) if e.class == Class::NotFound => slot.looked(None),
            (MirrorCall::Delete(uid), Err(e)) if e.class == Class::NotFound => slot.removed(uid),
            // Another pod has the name now: the one that was meant is gone.
            (MirrorCall::Delete(uid), Err(e)) if e.class == Class::Conflict => {
                slot.removed(uid);
                slot.look = true;
            }
            (need, Err(e)) => {
                // Creating again finds out whether a lost call was carried out.
                slot.look |= matches!(need, MirrorCall::Create(_)) && e.class == Class::AlreadyExists;
                slot.retry.failed(now.mono, e.class, &name.name);
                if e.class != Class::AlreadyExists {
                    out.push(MirrorAction::Report(MirrorReport::Failed(e)));
                }
            }
            // The answer has no pod: read it again.
            (_, Ok(_)) => {
                slot.look = true;
                slot.retry.failed(now.mono, Class::Unavailable, &name.name);
            }
        }
    }

    /// What has to be done for a name, if anything can be done now.
    fn need(&self, name: &ObjectName, slot: &Slot) -> Option<MirrorCall> {
        if slot.look {
            return Some(MirrorCall::Look);
        }
        let mut holders = self.workers.iter().filter(|(_, n)| *n == name).map(|(uid, _)| uid.as_str());
        match (&slot.wanted, &slot.mirror) {
            (Some(wanted), mirror) => {
                // Until its predecessor has ended the name shows the predecessor.
                if holders.any(|uid| uid != pod::uid(wanted)) {
                    return None;
                }
                match mirror {
                    Some(m) if !m.is_mirror() => Some(MirrorCall::Look),
                    Some(m) if m.mirrors(wanted) && slot.outdated.as_ref() != Some(&m.uid) => None,
                    Some(m) => Some(MirrorCall::Delete(m.uid.clone())),
                    None => self.new_mirror(wanted).map(|pod| MirrorCall::Create(Box::new(pod))),
                }
            }
            (None, Some(m)) if m.is_mirror() && self.synced && holders.next().is_none() => {
                Some(MirrorCall::Delete(m.uid.clone()))
            }
            (None, _) => None,
        }
    }

    /// The mirror pod of a static pod, if one may be created now.
    fn new_mirror(&self, wanted: &Pod) -> Option<Pod> {
        let NodeView::Present { uid } = &self.node else { return None };
        if !self.listed {
            return None;
        }
        let mut annotations = pod::annotations(wanted).clone();
        let hash = annotations.get(CONFIG_HASH).cloned().unwrap_or_else(|| pod::uid(wanted).to_owned());
        annotations.insert(CONFIG_MIRROR.to_owned(), hash);
        let owner = OwnerReference {
            api_version: "v1".to_owned(),
            kind: "Node".to_owned(),
            name: self.node_name.clone(),
            uid: uid.clone(),
            controller: Some(true),
            block_owner_deletion: None,
        };
        let metadata = ObjectMeta {
            name: wanted.metadata.name.clone(),
            namespace: wanted.metadata.namespace.clone(),
            labels: wanted.metadata.labels.clone(),
            annotations: Some(annotations),
            owner_references: Some(vec![owner]),
            ..ObjectMeta::default()
        };
        let mut spec = wanted.spec.clone()?;
        // The API server computes it from the class, and rejects a pod with another value.
        spec.priority = None;
        spec.node_name = Some(self.node_name.clone());
        Some(Pod { metadata, spec: Some(spec), status: None })
    }

    fn advance(&mut self, now: Now, out: &mut Outbox<MirrorAction>) {
        self.wake = None;
        self.slots.retain(|_, slot| !slot.is_empty());
        let idle: Vec<ObjectName> =
            self.slots.iter().filter(|(_, s)| s.flight.is_none()).map(|(name, _)| name.clone()).collect();
        for name in idle {
            let Some(slot) = self.slots.get(&name) else { continue };
            let Some(need) = self.need(&name, slot) else {
                self.settle(&name);
                continue;
            };
            if let Some(held) = slot.retry.held(now.mono) {
                self.wake = Some(self.wake.map_or(held, |w| w.min(held)));
            } else if self.flights.len() < CALLS_MAX {
                self.issue(name, need, now, out);
            }
        }
    }

    /// Nothing is left to do: earlier failures do not count any more.
    fn settle(&mut self, name: &ObjectName) {
        if let Some(slot) = self.slots.get_mut(name)
            && slot.is_right()
        {
            slot.retry.succeeded();
        }
    }

    fn issue(&mut self, name: ObjectName, need: MirrorCall, now: Now, out: &mut Outbox<MirrorAction>) {
        let call = match &need {
            MirrorCall::Look => ApiCall::FindPod { pod: name.clone(), node: self.node_name.as_str().into() },
            MirrorCall::Create(pod) => ApiCall::CreatePod(pod.clone()),
            MirrorCall::Delete(uid) => {
                ApiCall::DeletePod { pod: name.clone(), uid: uid.clone(), resource_version: None, grace_s: 0 }
            }
        };
        if let Some(slot) = self.slots.get_mut(&name) {
            if slot.mirror.as_ref().is_some_and(|m| !m.is_mirror()) {
                // A pod that is no mirror pod has the name: look from time to time whether it is gone.
                slot.retry.failed(now.mono, Class::Invalid, &name.name);
                if !std::mem::replace(&mut slot.told_taken, true) {
                    out.push(MirrorAction::Report(MirrorReport::NameTaken(name.clone())));
                }
            }
            slot.flight = Some(need);
        }
        let id = EffectId(self.next_id);
        self.next_id += 1;
        self.flights.insert(id, name);
        out.push(MirrorAction::Call { id, call });
    }
}

impl Machine for MirrorPods {
    type Event = MirrorEvent;
    type Action = MirrorAction;

    fn step(&mut self, now: Now, event: MirrorEvent, out: &mut Outbox<MirrorAction>) {
        match event {
            MirrorEvent::Static(update) => self.update(&update),
            MirrorEvent::Watch(event) => self.watched(event),
            MirrorEvent::Node(view) => self.node = view,
            MirrorEvent::Worker(key) => {
                if !key.name.is_empty() {
                    let name = ObjectName { namespace: key.namespace, name: key.name };
                    self.workers.insert(key.uid, name);
                }
            }
            MirrorEvent::Forgotten(uid) => {
                self.workers.remove(&uid);
            }
            MirrorEvent::Synced => self.synced = true,
            MirrorEvent::Outdated { name, uid } => {
                if let Some(slot) = self.slots.get_mut(&name) {
                    slot.outdated = Some(uid);
                }
            }
            MirrorEvent::Answer { id, result } => self.answered(id, result, now, out),
            MirrorEvent::Tick => {}
        }
        self.advance(now, out);
    }

    fn deadline(&self) -> Option<Mono> {
        self.wake
    }
}
