//! The pod manager while the machine is about to stop.
//!
//! In: orders of [`node_shutdown`]. Out: the list of pods, kills. Invariants: no pod
//! starts meanwhile: pods of the API are rejected, so that controllers make replacements elsewhere; static
//! pods wait, because no controller would replace them; if the shutdown is cancelled, ended static pods start
//! again, pods of the API stay ended.

use std::collections::BTreeSet;

use agent_types::ids::PodUid;
use agent_types::kill::KillReason;
use agent_types::machine::Outbox;
use agent_types::pod;
use k8s_openapi::api::core::v1::Pod;

use super::{ManagerAction, PodManager, tell};
use crate::admission::Rejection;
use crate::node_shutdown::{self, LeavingPod};
use crate::pod_worker::PodEvent;

/// What is ordered.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum ShutdownOrder {
    /// Stop admitting pods, and return the list of pods.
    Close,
    /// End this pod with at most this much grace, seconds.
    End(PodUid, u32),
    /// The machine does not stop.
    Open,
}

/// Whether it stops.
#[derive(Clone, Debug, Default)]
pub(super) struct Shutdown {
    closed: bool,
    /// Static pods that were ended for it.
    ended: BTreeSet<PodUid>,
}

impl Shutdown {
    /// The pod waits until the machine has stopped or does not stop.
    pub(super) fn holds_up(&self, p: &Pod) -> bool {
        self.closed && pod::is_static(p) && p.metadata.deletion_timestamp.is_none()
    }

    /// Rejects every new pod.
    pub(super) fn refuses(&self) -> Result<(), Rejection> {
        if self.closed { Err(Rejection::shutdown()) } else { Ok(()) }
    }
}

impl PodManager {
    /// An earlier agent ended this static pod for a shutdown: it starts again when the shutdown is cancelled,
    /// or at once if that was before the first list of the runtime (simulation, stopping, seed 61).
    pub(super) fn resumed_end(&mut self, uid: &PodUid, out: &mut Outbox<ManagerAction>) {
        if self.shutdown.closed {
            self.shutdown.ended.insert(uid.clone());
        } else {
            tell(uid, PodEvent::Kill { reason: KillReason::Removed, grace_s: None }, out);
        }
    }

    pub(super) fn ordered(&mut self, order: ShutdownOrder, out: &mut Outbox<ManagerAction>) {
        match order {
            ShutdownOrder::Close => {
                self.shutdown.closed = true;
                let here = self.workers.values().filter(|worker| worker.is_active());
                let leaving = here.map(|worker| LeavingPod {
                    key: worker.key.clone(),
                    priority: worker.pod().map_or(0, node_shutdown::priority),
                });
                out.push(ManagerAction::Leaving(leaving.collect()));
            }
            ShutdownOrder::End(uid, grace_s) => {
                let Some(worker) = self.workers.get(&uid) else { return };
                let again = worker.pod().is_some_and(pod::is_static);
                if again {
                    self.shutdown.ended.insert(uid.clone());
                }
                self.leave(&uid, out);
                let reason = KillReason::Shutdown { again };
                tell(&uid, PodEvent::Kill { reason, grace_s: Some(grace_s) }, out);
            }
            ShutdownOrder::Open => {
                self.shutdown.closed = false;
                self.room_came("periodic_retry");
                // What is wanted and has no worker any more begins again.
                for uid in std::mem::take(&mut self.shutdown.ended) {
                    if self.workers.contains_key(&uid) {
                        tell(&uid, PodEvent::Kill { reason: KillReason::Removed, grace_s: None }, out);
                    }
                }
            }
        }
    }
}
