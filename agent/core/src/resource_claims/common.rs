//! State that the preparations and unpreparations of all pods share.
//!
//! In: requests of one pod's work. Out: numbers of questions, what waits for a write. Invariant: a question has one number.

use std::collections::BTreeMap;
use std::sync::Arc;

use agent_types::ids::PodUid;
use k8s_openapi::api::resource::v1::ResourceClaim;

use super::api::ClaimResult;
use super::cache::ClaimCache;
use super::drivers::Drivers;
use super::turns::ClaimTurns;
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
    /// The work waits for another event.
    Waits,
    /// The work is done.
    Done,
}

/// State that the work of all pods shares.
#[derive(Clone, Debug, Default)]
pub(super) struct Common {
    pub(super) cache: ClaimCache,
    pub(super) drivers: Drivers,
    pub(super) writes: CheckpointWrites,
    /// Who works on which claim.
    pub(super) turns: ClaimTurns,
    /// Gate DRAWorkloadResourceClaims.
    pub(super) workload_claims: bool,
    /// The number of the last question.
    questions: u64,
    /// Questions without an answer yet, and the pods that asked.
    open: BTreeMap<u64, PodUid>,
    /// Pods that have dropped references, and the write for which they wait.
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

    /// The pod has dropped references in memory. The pod's own write updates the file. After a restart before this write the agent
    /// drops the references again, which changes nothing.
    pub(super) fn returned(&mut self, pod: &PodUid) {
        self.unsaved.insert(pod.clone(), u64::MAX);
    }

    /// Requests the write of the references that the pod has dropped. Returns the number to wait for.
    pub(super) fn save_return(&mut self, pod: &PodUid) -> Option<u64> {
        let write = self.writes.ask(&self.cache);
        match write {
            Some(write) => self.unsaved.insert(pod.clone(), write),
            None => self.unsaved.remove(pod),
        };
        write
    }

    /// True if references that the pod has dropped may still be in the file.
    pub(super) fn is_unsaved(&self, pod: &PodUid) -> bool {
        self.unsaved.contains_key(pod)
    }

    /// A write for all requests up to this number has succeeded.
    pub(super) fn saved(&mut self, met: u64) {
        self.unsaved.retain(|_, write| *write > met);
    }
}
