//! What the preparations and unpreparations of all pods have in common.
//!
//! In: requests of one pod's work. Out: numbers of questions, claims that nobody else works on. Invariants: a question has one number;
//! a claim is worked on for one pod at a time, and a pod gets all claims that it wants or none, so that no two pods wait for each other.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Arc;

use agent_types::ids::PodUid;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::api::ClaimResult;
use super::cache::{ClaimCache, ClaimKey};
use super::drivers::Drivers;
use super::writes::CheckpointWrites;

/// An event that a pod's work may wait for.
#[derive(Clone, Debug)]
pub(super) enum WorkEvent {
    /// The work may begin.
    Begin,
    /// A fetched claim, or the API error's text.
    Fetched(Result<Arc<ResourceClaim>, String>),
    /// Claims became free.
    Freed,
    /// The checkpoint has all that was asked up to this number, or could not be written.
    Written(u64, Result<(), String>),
    /// A driver's results, or the gRPC error's text.
    Called(Result<BTreeMap<String, ClaimResult>, String>),
}

/// The state of a pod's work after an event; an error is upstream's text and ends the work.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Progress {
    /// It waits for another event.
    Waits,
    /// It is done.
    Done,
}

/// What all pods' work shares.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    pub(super) cache: ClaimCache,
    pub(super) drivers: Drivers,
    pub(super) writes: CheckpointWrites,
    /// Gate DRAWorkloadResourceClaims.
    pub(super) workload_claims: bool,
    /// Claims that are being worked on, and for which pod.
    held: BTreeMap<ClaimKey, PodUid>,
    /// Claims became free, and work that waits for them was not told.
    freed: bool,
    /// The number of the last question.
    questions: u64,
    /// Questions without an answer yet, and the pods that asked.
    open: BTreeMap<u64, PodUid>,
    /// Pods that gave references back, and the write that they wait for.
    unsaved: BTreeMap<PodUid, u64>,
}

impl Common {
    /// No work yet.
    pub(super) fn new(writes: CheckpointWrites, workload_claims: bool) -> Common {
        Common { writes, workload_claims, ..Common::default() }
    }

    /// The number of a new question of the pod.
    pub(super) fn question(&mut self, pod: &PodUid) -> u64 {
        self.questions += 1;
        self.open.insert(self.questions, pod.clone());
        self.questions
    }

    /// The pod that asked this question; once.
    pub(super) fn answered(&mut self, question: u64) -> Option<PodUid> {
        self.open.remove(&question)
    }

    /// Holds all these claims for the pod's work, or none of them if one is held for another pod.
    pub(super) fn hold(&mut self, keys: &BTreeSet<ClaimKey>, pod: &PodUid) -> bool {
        let is_free = |key: &ClaimKey| self.held.get(key).is_none_or(|holder| holder == pod);
        if !keys.iter().all(is_free) {
            return false;
        }
        self.held.extend(keys.iter().map(|key| (key.clone(), pod.clone())));
        true
    }

    /// The pod's work needs no other claims than these any more.
    pub(super) fn hold_only(&mut self, keys: &BTreeSet<ClaimKey>, pod: &PodUid) {
        let before = self.held.len();
        self.held.retain(|key, holder| holder != pod || keys.contains(key));
        self.freed |= self.held.len() < before;
    }

    /// Claims became free since the last question about that.
    pub(super) fn take_freed(&mut self) -> bool {
        std::mem::take(&mut self.freed)
    }

    /// The pod gave references back in memory. The file follows with the pod's own write: until then they are given back again after a
    /// restart, which changes nothing.
    pub(super) fn returned(&mut self, pod: &PodUid) {
        self.unsaved.insert(pod.clone(), u64::MAX);
    }

    /// The file is to say what the pod gave back. The answer is the number to wait for.
    pub(super) fn save_return(&mut self, pod: &PodUid) -> Option<u64> {
        let write = self.writes.ask(&self.cache);
        match write {
            Some(write) => self.unsaved.insert(pod.clone(), write),
            None => self.unsaved.remove(pod),
        };
        write
    }

    /// References that the pod gave back may still be in the file.
    pub(super) fn is_unsaved(&self, pod: &PodUid) -> bool {
        self.unsaved.contains_key(pod)
    }

    /// A write succeeded that met all requests up to this number.
    pub(super) fn saved(&mut self, met: u64) {
        self.unsaved.retain(|_, write| *write > met);
    }
}
