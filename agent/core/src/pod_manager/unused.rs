//! Dead containers of pods that are over, while space is short.
//!
//! In: the eviction manager's wish. Out: workers that are told, one answer when the last of them is done. Invariant: only
//! workers whose pods have ended are told; what is wanted again meanwhile joins those that are not done. Upstream:
//! `DeleteAllUnusedContainers`, pkg/kubelet/container/container_gc.go.

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;

use super::{ManagerAction, PodManager, tell};
use crate::pod_worker::PodEvent;

impl PodManager {
    pub(super) fn delete_unused(&mut self, out: &mut Outbox<ManagerAction>) {
        let ended = self.workers.iter().filter(|(_, worker)| worker.ended).map(|(uid, _)| uid.clone());
        let ended: Vec<PodUid> = ended.collect();
        for uid in ended {
            tell(&uid, PodEvent::DeleteUnused, out);
            self.stripping.insert(uid);
        }
        if self.stripping.is_empty() {
            out.push(ManagerAction::UnusedDeleted);
        }
    }

    pub(super) fn stripped(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        if self.stripping.remove(uid) && self.stripping.is_empty() {
            out.push(ManagerAction::UnusedDeleted);
        }
    }
}
