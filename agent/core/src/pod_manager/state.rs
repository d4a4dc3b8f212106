//! Book-keeping of the pod manager: workers, what their pods have of the node, and the full names that they hold.
//!
//! Invariants: a name is held as long as one worker of that name lives, and a pod that is known only by its directory has no name and
//! holds none; a pod that needs room is active; a pod that has nothing of the node any more stays so until its worker is gone.

use std::collections::BTreeMap;
use std::ops::{Deref, DerefMut};
use std::sync::Arc;

use agent_types::ids::PodKey;
use k8s_openapi::api::core::v1::Pod;

use crate::status::Phase;

/// A pod that has a worker.
#[derive(Clone, Debug)]
pub(super) struct Worker {
    pub(super) key: PodKey,
    /// The last desired pod with its allocation; `None` for orphans.
    pub(super) pod: Option<Arc<Pod>>,
    /// The pod with the resources that it uses, if these are more: its containers may still have an earlier
    /// allocation.
    pub(super) room: Option<Arc<Pod>>,
    /// True once the worker was ordered to end its pod.
    pub(super) leaving: bool,
    /// What its pod has of the node.
    pub(super) standing: PodStanding,
}

/// What a pod that has a worker has of the node. Admission asks [`PodStanding::needs_room`]; what belongs to a pod (claims, devices,
/// processors, memory) follows [`PodStanding::is_active`]. A pod only moves down this list.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord)]
pub(super) enum PodStanding {
    /// Its containers run or will run: admission counts its requests.
    Admitted,
    /// It is over, or refused, but containers from before this agent may run until the worker has ended them: they keep what they use,
    /// and admission does not count them.
    Remains,
    /// None of its containers runs or will run.
    Ended,
}

impl PodStanding {
    /// Admission counts the pod's requests against other pods.
    pub(super) fn needs_room(self) -> bool {
        self == PodStanding::Admitted
    }

    /// The pod is active: what belongs to it stays with it.
    pub(super) fn is_active(self) -> bool {
        self != PodStanding::Ended
    }
}

/// A part of the pod manager's state that counts its changes: an access that can write to the value counts as a change.
#[derive(Clone, Debug, Default)]
pub(super) struct Revised<T> {
    value: T,
    revision: u64,
}

impl<T> Revised<T> {
    /// Differs from an earlier one if the value may have changed. It only grows.
    pub(super) fn revision(&self) -> u64 {
        self.revision
    }
}

impl<T> Deref for Revised<T> {
    type Target = T;

    fn deref(&self) -> &T {
        &self.value
    }
}

impl<T> DerefMut for Revised<T> {
    fn deref_mut(&mut self) -> &mut T {
        self.revision += 1;
        &mut self.value
    }
}

impl Worker {
    pub(super) fn new(key: PodKey) -> Worker {
        Worker { key, pod: None, room: None, leaving: false, standing: PodStanding::Admitted }
    }

    /// Admission counts the pod's requests against other pods.
    pub(super) fn needs_room(&self) -> bool {
        self.standing.needs_room()
    }

    /// The pod is active: what belongs to it stays with it.
    pub(super) fn is_active(&self) -> bool {
        self.standing.is_active()
    }

    /// The pod as it counts against other pods' requests.
    pub(super) fn room(&self) -> Option<&Pod> {
        self.room.as_deref().or(self.pod.as_deref())
    }

    /// As last desired.
    pub(super) fn pod(&self) -> Option<&Pod> {
        self.pod.as_deref()
    }
}

/// True if an agent ended the pod and reported it: the pod does not run any more and needs no resources.
pub(super) fn is_over(pod: &Pod) -> bool {
    pod.status.as_ref().and_then(Phase::end).is_some()
}

/// Full names and how many workers hold each.
#[derive(Clone, Debug, Default)]
pub(super) struct Names(BTreeMap<(Arc<str>, Arc<str>), usize>);

impl Names {
    fn of(key: &PodKey) -> Option<(Arc<str>, Arc<str>)> {
        (!key.name.is_empty()).then(|| (Arc::clone(&key.namespace), Arc::clone(&key.name)))
    }

    pub(super) fn is_taken(&self, key: &PodKey) -> bool {
        Names::of(key).is_some_and(|name| self.0.contains_key(&name))
    }

    pub(super) fn take(&mut self, key: &PodKey) {
        if let Some(name) = Names::of(key) {
            *self.0.entry(name).or_insert(0) += 1;
        }
    }

    pub(super) fn give_back(&mut self, key: &PodKey) {
        let Some(name) = Names::of(key) else { return };
        if let Some(count) = self.0.get_mut(&name) {
            *count -= 1;
            if *count == 0 {
                self.0.remove(&name);
            }
        }
    }
}
