//! Book-keeping of the pod manager: workers, and the full names that they hold.
//!
//! Invariant: a name is held as long as one worker of that name lives. A pod that is known only by its
//! directory has no name and holds none.

use std::collections::BTreeMap;
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
    /// It needs no room: refused, or its containers are over.
    pub(super) ended: bool,
}

impl Worker {
    pub(super) fn new(key: PodKey) -> Worker {
        Worker { key, pod: None, room: None, leaving: false, ended: false }
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
