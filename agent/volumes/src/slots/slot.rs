//! One volume of a pod: whether the pod has it, and the set-up that is to come or under way.
//!
//! ```text
//! Missing ─► Due ─► Busy ─┬─ succeeded ─► Fresh ─ a source changed, a token old ─► Stale: Due ─► Busy ─┬─► Fresh
//!             ▲           └─ failed, not attached, files on their way to a group ─┐                     │
//!             └───────────────────────────────────────────────────────────────────┘ ◄───────────────────┘
//! ```
//! In: what came of set-ups, news about sources. Out: when the next set-up is due, and why. Invariants: a reason exists only for a
//! set-up that is to come or under way; only one that is under way can be overtaken; a volume that the pod has stays so.

use std::time::Duration;

use agent_types::backoff::Backoff;
use agent_types::time::Mono;

/// Waits for a claim: a node may not watch claims, and upstream asks ten times a second.
const CLAIM_BACKOFF: Backoff = Backoff { max: Duration::from_secs(8), ..Backoff::OPERATION };

/// What is special about a volume.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Kind {
    /// Nothing.
    Plain,
    /// It is a claim's.
    Claim,
    /// Only containers wait for it, unless it has failed.
    Account,
}

/// Why a volume is to be set up.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum SetUpReason {
    /// It is new, failed, or a source changed.
    Stale,
    /// It was not attached to the node.
    Unattached {
        /// It will not be: the node has no room for it.
        full: bool,
        /// Containers have waited long: the next set-up finds out the reason.
        overdue: bool,
    },
    /// No plugin for it was known.
    Unprocessed,
    /// Its files are being given to a group.
    Giving {
        /// An event says so once that has taken this long.
        event: Duration,
    },
}

/// A set-up that is to come, or under way.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Work {
    Due {
        not_before: Mono,
        why: SetUpReason,
    },
    Busy {
        /// A source changed since it began: another set-up follows at once.
        overtaken: bool,
        /// Why it began.
        why: SetUpReason,
    },
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) enum SlotState {
    /// The pod does not have the volume.
    Missing {
        work: Work,
        /// Of a block device: where the node and the pod have it once it is there.
        maps: Option<[String; 2]>,
    },
    /// The pod has the volume, which is to be set up or looked through again.
    Stale(Work),
    /// The pod has the volume.
    Fresh {
        /// A token in it is renewed then.
        renew: Option<Mono>,
    },
}

/// One volume.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Slot {
    pub(super) kind: Kind,
    pub(super) state: SlotState,
    /// Set-ups that failed since the last one that did not.
    pub(super) failures: u32,
}

impl Slot {
    pub(super) fn new(kind: Kind, not_before: Mono) -> Slot {
        let work = Work::Due { not_before, why: SetUpReason::Stale };
        Slot { kind, state: SlotState::Missing { work, maps: None }, failures: 0 }
    }

    pub(super) fn work(&self) -> Option<&Work> {
        match &self.state {
            SlotState::Missing { work, .. } | SlotState::Stale(work) => Some(work),
            SlotState::Fresh { .. } => None,
        }
    }

    pub(super) fn is_mounted(&self) -> bool {
        !matches!(self.state, SlotState::Missing { .. })
    }

    /// Why it is to be set up, unless that is under way.
    pub(super) fn why(&self) -> Option<SetUpReason> {
        match self.work() {
            Some(Work::Due { why, .. }) => Some(*why),
            _ => None,
        }
    }

    pub(super) fn is_unattached(&self) -> bool {
        matches!(self.why(), Some(SetUpReason::Unattached { .. }))
    }

    /// When it is to be set up; `None`: it is up to date for good, or a set-up is under way.
    pub(super) fn due(&self) -> Option<Mono> {
        match &self.state {
            SlotState::Missing { work: Work::Due { not_before, .. }, .. }
            | SlotState::Stale(Work::Due { not_before, .. }) => Some(*not_before),
            SlotState::Fresh { renew } => *renew,
            _ => None,
        }
    }

    pub(super) fn set(&mut self, work: Work) {
        match &mut self.state {
            SlotState::Missing { work: own, .. } => *own = work,
            state => *state = SlotState::Stale(work),
        }
    }

    /// The reason for the set-up that is to come or under way.
    pub(super) fn why_mut(&mut self) -> Option<&mut SetUpReason> {
        match &mut self.state {
            SlotState::Missing { work: Work::Due { why, .. } | Work::Busy { why, .. }, .. }
            | SlotState::Stale(Work::Due { why, .. } | Work::Busy { why, .. }) => Some(why),
            SlotState::Fresh { .. } => None,
        }
    }

    /// A set-up failed, or could not begin: the next one waits, unless a source changed meanwhile.
    pub(super) fn failed(&mut self, why: SetUpReason, now: Mono) {
        let series = if self.kind == Kind::Claim { CLAIM_BACKOFF } else { Backoff::OPERATION };
        let wait = series.next(self.failures);
        self.failures = self.failures.saturating_add(1);
        let overtaken = matches!(self.work(), Some(Work::Busy { overtaken: true, .. }));
        let not_before = if overtaken { Mono(0) } else { now.after(wait) };
        self.set(Work::Due { not_before, why });
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_series_of_waits_for_a_claim() {
        let millis = [0, 1, 2, 3, 4, 5, 40].map(|n| CLAIM_BACKOFF.next(n).as_millis());
        assert_eq!(millis, [500, 1000, 2000, 4000, 8000, 8000, 8000]);
    }
}
