//! The record of a removal: a pod that was kept after its end is removed, and no later agent may take its remains for
//! another run.
//!
//! In: a pod that has ended, answers of the disk. Out: the terminating record with `ended`. Invariants: nothing of a pod that
//! may come back under its UID is removed before the disk says that the pod is to go, unless the disk refuses again and again;
//! a worker that resumes such a record begins in `Terminated`, because a status never goes back from a terminal phase.
//! Only static pods come back so; of a pod that no source has, the worker does not know.

use agent_types::kill::TerminatingRecord;
use agent_types::machine::Outbox;
use agent_types::pod;
use agent_types::runtime::observed::PodSnapshot;
use agent_types::time::Now;

use super::api::PodAction;
use super::base::Base;
use super::state::{Record, Removal, Terminated, Terminating};
use super::terminate;
use super::tracker::Target;

/// Refusals of the disk after which the pod is removed without a record: a full disk must keep nothing.
const REFUSALS_MAX: u32 = 3;

impl Removal {
    /// The removal that follows a termination.
    pub(super) fn after(t: &Terminating) -> Removal {
        Removal {
            record: if t.on_disk == Some(true) { Record::Written } else { Record::Needed },
            failures: 0,
            kept: t.recorded.is_some_and(|(_, remove)| !remove),
            since: t.since,
            grace_s: t.grace_s,
        }
    }

    /// The record was written, or could not be. Another answer belongs to the termination.
    pub(super) fn answered(&mut self, written: bool) {
        if self.record != Record::Writing {
            return;
        }
        self.failures += u32::from(!written);
        let again = !written && self.failures < REFUSALS_MAX;
        self.record = if again { Record::Needed } else { Record::Written };
    }
}

/// True if the removal may begin. Otherwise has its record written.
pub(super) fn recorded(
    t: &mut Terminated,
    b: &mut Base,
    snapshot: &PodSnapshot,
    now: Now,
    out: &mut Outbox<PodAction>,
) -> bool {
    let comes_back = t.pod.as_deref().is_none_or(pod::is_static);
    let remains = !(snapshot.containers.is_empty() && snapshot.sandboxes.is_empty());
    match t.removal.record {
        Record::Written => return true,
        Record::Needed if !comes_back || !(remains || t.removal.kept) => return true,
        Record::Needed if !b.tracker.busy(&Target::Record) => {}
        Record::Needed | Record::Writing => return false,
    }
    if let Some(held) = b.tracker.held_until(&Target::Record, now.mono) {
        b.wake_at(held, now);
        return false;
    }
    t.removal.record = Record::Writing;
    let record = TerminatingRecord {
        pod: b.key.clone(),
        reason: t.reason.clone(),
        grace_s: t.removal.grace_s,
        since: terminate::began(t.removal.since, now),
        remove: true,
        ended: true,
    };
    terminate::persist(b, record, now, out);
    false
}
