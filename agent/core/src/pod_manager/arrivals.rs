//! Pods that wait for their start: the verdict of admission, their parts, and the start of their workers.
//!
//! In: waiting pods, the state of the node. Out: workers to start, their first events. Invariants: those of the pod manager about names,
//! sources and admission; a verdict is final once a worker has started. Upstream: `HandlePodAdditions` of pkg/kubelet/kubelet.go.

use std::collections::BTreeSet;
use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::time::Now;
use k8s_openapi::api::core::v1::Pod;

use super::state::{PodStanding, is_over};
use super::{Beginning, ManagerAction, PodManager, tell};
use crate::admission::Rejection;
use crate::pod_worker::PodEvent;

impl PodManager {
    /// Starts waiting pods whose name is free. The verdict on the pods of `answered` is final.
    pub(super) fn start_waiting(
        &mut self,
        answered: &BTreeSet<PodUid>,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) {
        self.shrinking.lapse(now.mono);
        let waiting = if self.waiting.is_empty() { Vec::new() } else { std::mem::take(&mut *self.waiting) };
        for uid in waiting {
            let Some(wanted) = self.desired.get(&uid).map(Arc::clone) else { continue };
            let pod = self.allocating.allocated(&wanted);
            let key = pod::key(&pod);
            if pod::is_static(&pod) {
                self.take_down_predecessors(&key, out);
            }
            let over = is_over(&pod);
            let is_leaving = pod.metadata.deletion_timestamp.is_some();
            if is_leaving {
                self.give_up_devices(&uid);
            }
            let held = self.names.is_taken(&key)
                || self.preemption.holds_up(&uid)
                || self.devices.holds_up(&uid)
                || self.shutdown.holds_up(&pod);
            if held
                || self.node.must_be_heard_for(&pod)
                || (!over && self.waits_for_shrinking(&uid, &pod, now.mono))
            {
                self.waiting.push(uid);
                continue;
            }
            // A pod that an earlier agent ended does not run any more: it needs no resources.
            let refused = self.devices.take_refusal(&uid);
            let verdict = match &refused {
                _ if over => Ok(()),
                Some(rejection) => Err(rejection.clone()),
                None => self.judge(&uid, &pod, out),
            };
            let doubtful =
                |rejection: &Rejection| !answered.contains(&uid) && self.node.doubts(&uid, &pod, rejection);
            if self.preemption.holds_up(&uid) || verdict.as_ref().is_err_and(doubtful) {
                self.waiting.push(uid);
                continue;
            }
            self.preemption.settled(&uid);
            let verdict = match verdict {
                Ok(()) if !over && !is_leaving => match self.give(&uid, &wanted, &pod, now, out) {
                    Some(given) => given,
                    None => {
                        self.waiting.push(uid);
                        continue;
                    }
                },
                Err(rejection) => {
                    if refused.is_none() {
                        self.count_refusal(&uid, &pod);
                    }
                    Err(rejection)
                }
                Ok(()) => Ok(()),
            };
            self.begin(&wanted, pod, over, verdict, out);
        }
        let waiting = &self.waiting;
        self.shrinking.retain(|uid| waiting.contains(uid));
        if self.node.asks() {
            out.push(ManagerAction::ReadNode);
        }
    }

    /// The verdict on the pod is final: starts its worker, which ends a refused pod at once.
    fn begin(
        &mut self,
        wanted: &Arc<Pod>,
        pod: Arc<Pod>,
        over: bool,
        verdict: Result<(), Rejection>,
        out: &mut Outbox<ManagerAction>,
    ) {
        let key = pod::key(&pod);
        let uid = key.uid.clone();
        self.devices.settled(&uid);
        // A refused pod whose containers run keeps its parts until they have ended.
        let standing = match &verdict {
            _ if over => self.standing_of_ended(&uid),
            Err(_) if !self.is_found_running(&uid) => PodStanding::Ended,
            _ => PodStanding::Admitted,
        };
        if !standing.is_active() {
            self.placing.check();
        }
        self.start(key.clone(), Beginning::Fresh, out);
        if let Some(worker) = self.workers.get_mut(&uid) {
            worker.standing = standing;
            worker.pod = Some(pod);
        }
        self.occupy(&uid);
        self.tell_desired(&uid, wanted, out);
        if let Err(rejection) = verdict {
            self.leave(&uid, out);
            tell(&uid, PodEvent::Kill { reason: rejection.clone().into(), grace_s: None }, out);
            out.push(ManagerAction::Rejected { key, rejection, short_of: None });
        }
    }

    /// Gives an admitted pod all that it gets: processors, memory and devices of its own, and its requests. `None`: it waits for a
    /// device plugin.
    fn give(
        &mut self,
        uid: &PodUid,
        wanted: &Arc<Pod>,
        pod: &Arc<Pod>,
        now: Now,
        out: &mut Outbox<ManagerAction>,
    ) -> Option<Result<(), Rejection>> {
        let is_new = match self.place(uid, pod, now, out) {
            Ok(is_new) => is_new?,
            Err(rejection) => return Some(Err(rejection)),
        };
        self.allocate(uid, wanted);
        if is_new {
            self.allocating.record_first(uid);
        }
        Some(Ok(()))
    }
}
