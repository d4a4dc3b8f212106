//! Removal of dead containers of ended pods, while disk space is short.
//!
//! In: a request of the eviction manager. Out: orders to workers, one answer when the last worker is done.
//! Invariant: only workers of ended pods get the order; a request that arrives meanwhile joins the active
//! one. Upstream: `DeleteAllUnusedContainers`, pkg/kubelet/container/container_gc.go.

use agent_types::ids::PodUid;
use agent_types::machine::Outbox;

use super::{ManagerAction, PodManager, tell};
use crate::pod_worker::PodEvent;

impl PodManager {
    pub(super) fn delete_unused(&mut self, out: &mut Outbox<ManagerAction>) {
        let ended = self.workers.iter().filter(|(_, worker)| !worker.is_active());
        let ended: Vec<PodUid> = ended.map(|(uid, _)| uid.clone()).collect();
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
