//! The work of each pod, in order.
//!
//! In: questions of workers. Out: the next work. Invariants: the works of one pod run one after the other, those of different pods at
//! the same time; a question joins the last work of its pod if that is the same work; a question belongs to one work, whose end answers
//! it.

use std::collections::{BTreeMap, VecDeque};
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::runtime::claims::ClaimsOfPod;

use super::api::ClaimAction;
use super::common::{Common, Progress, WorkEvent};
use super::preparing::Preparing;
use super::unpreparing::Unpreparing;

/// One work, and the questions that its end answers.
#[derive(Clone, Debug)]
pub(super) enum Work {
    /// A preparation, and its questions with the claims that their workers named.
    Prepare(Preparing, Vec<(u64, Arc<ClaimsOfPod>)>),
    Unprepare(Unpreparing, Vec<u64>),
}

impl Work {
    pub(super) fn go_on(
        &mut self,
        event: WorkEvent,
        common: &mut Common,
        out: &mut Outbox<ClaimAction>,
    ) -> Result<Progress, String> {
        match self {
            Work::Prepare(work, _) => work.go_on(event, common, out),
            Work::Unprepare(work, _) => work.go_on(event, common, out),
        }
    }
}

/// The works of all pods. The first work of a pod is under way.
#[derive(Clone, Debug, Default)]
pub(super) struct WorkQueue {
    pods: BTreeMap<PodUid, VecDeque<Work>>,
}

impl WorkQueue {
    /// A worker requests a preparation. True if its work is the first one and begins now.
    pub(super) fn prepare(&mut self, ask: u64, pod: Arc<ClaimsOfPod>) -> bool {
        let works = self.pods.entry(PodUid::from(pod.uid.as_str())).or_default();
        match works.back_mut() {
            Some(Work::Prepare(work, asks)) if work.is_for(&pod) => asks.push((ask, pod)),
            _ => works.push_back(Work::Prepare(Preparing::new(Arc::clone(&pod)), vec![(ask, pod)])),
        }
        works.len() == 1
    }

    /// A worker (`ask`) or the reconciliation (`None`) requests an unpreparation. True if its work is the first one and begins now.
    pub(super) fn unprepare(&mut self, ask: Option<u64>, uid: &PodUid) -> bool {
        let works = self.pods.entry(uid.clone()).or_default();
        match works.back_mut() {
            Some(Work::Unprepare(_, asks)) => asks.extend(ask),
            _ => {
                let work = Unpreparing::new(uid.clone());
                works.push_back(Work::Unprepare(work, ask.into_iter().collect()));
            }
        }
        works.len() == 1
    }

    /// The current work of the pod.
    pub(super) fn current(&mut self, uid: &PodUid) -> Option<&mut Work> {
        self.pods.get_mut(uid)?.front_mut()
    }

    /// Ends the current work of the pod and returns it.
    pub(super) fn end(&mut self, uid: &PodUid) -> Option<Work> {
        let works = self.pods.get_mut(uid)?;
        let ended = works.pop_front();
        if works.is_empty() {
            self.pods.remove(uid);
        }
        ended
    }

    pub(super) fn has(&self, uid: &PodUid) -> bool {
        self.pods.contains_key(uid)
    }

    /// Pods with work.
    pub(super) fn pods(&self) -> Vec<PodUid> {
        self.pods.keys().cloned().collect()
    }
}
