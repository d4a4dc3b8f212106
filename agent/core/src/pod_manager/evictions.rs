//! The pod manager under pressure of the node.
//!
//! In: pressures, victims. Out: kills. Invariants: a pod that ran before this agent started is never rejected
//! for pressure, so a restart ends nothing; a victim without containers is reported as gone. See
//! [`crate::eviction`].

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

    /// Fails the pod, with the message of the eviction.
    pub(super) fn evict(&mut self, victim: Box<Victim>, out: &mut Outbox<ManagerAction>) {
        let uid = &victim.key.uid;
        if self.workers.get(uid).is_none_or(|worker| !worker.is_active()) {
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
