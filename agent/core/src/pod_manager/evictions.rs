//! The pod manager while the node runs short of something.
//!
//! In: pressures, who has to go. Out: kills. Invariants: what ran before this agent began is never refused for pressure,
//! so that a restart ends nothing; a pod that has nothing to end is said to be gone. See [`crate::eviction`].

use std::sync::Arc;

use agent_types::ids::PodUid;
use agent_types::kill::{EVICTED, KillReason};
use agent_types::machine::Outbox;
use agent_types::pressures::Pressures;

use super::{ManagerAction, PodManager, tell};
use crate::admission::AdmissionContext;
use crate::eviction::Victim;
use crate::pod_worker::PodEvent;

impl PodManager {
    /// What the pod is judged by.
    pub(super) fn admission_of(&self, uid: &PodUid) -> Arc<AdmissionContext> {
        if self.unknown.contains_key(uid) {
            return Arc::new(self.admission.pressed(Pressures::default()));
        }
        Arc::clone(&self.admission)
    }

    /// The pod fails, with what was found wrong.
    pub(super) fn evict(&mut self, victim: Box<Victim>, out: &mut Outbox<ManagerAction>) {
        let uid = &victim.key.uid;
        if self.workers.get(uid).is_none_or(|worker| worker.ended) {
            out.push(ManagerAction::NotThere(uid.clone()));
            return;
        }
        let reason = KillReason::Failed {
            reason: EVICTED.to_owned(),
            message: victim.message.clone(),
            disruption: victim.disrupted.then(|| victim.message.clone()),
        };
        self.leave(uid, out);
        tell(uid, PodEvent::Kill { reason, grace_s: victim.grace_s }, out);
        out.push(ManagerAction::Evicted(victim));
    }
}
