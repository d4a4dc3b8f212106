//! The watch over a trial, and the examination by the old slot afterwards.
//!
//! In: the gate's verdict and the time since the boot (or since the examination began). Out: commit, return, hold or wait; and
//! refused, doubtful or inconclusive. Invariants: nothing is committed that was not green for the whole soak; a trial ends at the
//! latest `deadline` after the longest hold; an examination ends at its deadline at the latest, or once its check was green for
//! the soak; a failure that seemed to be the cluster's never refuses a version.

use std::time::Duration;

use super::check::{FailedCheck, TrialFault};
use super::gate::GateVerdict;

/// How long a trial may take.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TrialLimits {
    /// From the boot to green.
    pub deadline: Duration,
    /// Green without a break, before the commit.
    pub soak: Duration,
    /// Longest hold for a cluster that is away, from the boot.
    pub hold_max: Duration,
}

impl Default for TrialLimits {
    fn default() -> TrialLimits {
        TrialLimits {
            deadline: Duration::from_secs(600),
            soak: Duration::from_secs(60),
            hold_max: Duration::from_secs(6 * 3600),
        }
    }
}

/// What is done about a trial.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum TrialDecision {
    /// Nothing yet.
    Wait,
    /// Neither commit nor return, although the deadline is over: the cluster is away.
    Hold {
        /// What is awaited, for people.
        words: String,
    },
    /// The version is good.
    Commit,
    /// Back to the old slot.
    Return {
        /// The check that failed.
        failed: FailedCheck,
        /// Why, for people.
        words: String,
    },
}

/// An agent that starts late in a trial gets so many soaks, until it has made all checks.
const START_SOAKS: u32 = 2;

/// The watch over one trial boot. A new agent begins a new one.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TrialWatch {
    limits: TrialLimits,
    /// The first look.
    began: Option<Duration>,
    green_since: Option<Duration>,
    /// When the cluster was away last.
    away: Option<Duration>,
}

impl TrialWatch {
    /// A watch that has seen nothing.
    #[must_use]
    pub fn new(limits: TrialLimits) -> TrialWatch {
        TrialWatch { limits, began: None, green_since: None, away: None }
    }

    /// Decides, `up` after the boot.
    pub fn observe(&mut self, up: Duration, verdict: &GateVerdict) -> TrialDecision {
        let began = *self.began.get_or_insert(up);
        let (failed, words) = match verdict {
            GateVerdict::Green => {
                let since = *self.green_since.get_or_insert(up);
                let is_over = up.saturating_sub(since) >= self.limits.soak;
                return if is_over { TrialDecision::Commit } else { TrialDecision::Wait };
            }
            GateVerdict::Red { failed, words } => (*failed, words.clone()),
        };
        self.green_since = None;
        let TrialLimits { deadline, hold_max, .. } = self.limits;
        let limit = if failed.fault == TrialFault::Cluster {
            self.away = Some(up.min(hold_max));
            hold_max.max(deadline)
        } else {
            // A cluster that comes back gives the node as long as a boot does.
            let limit = self.away.map_or(deadline, |away| away.saturating_add(deadline));
            // An agent that dies again and again does not hold the trial for ever.
            let start = began.saturating_add(self.limits.soak.saturating_mul(START_SOAKS));
            limit.max(start.min(hold_max.max(deadline)))
        };
        if up >= limit {
            TrialDecision::Return { failed, words }
        } else if up >= deadline && failed.fault == TrialFault::Cluster {
            TrialDecision::Hold { words }
        } else {
            TrialDecision::Wait
        }
    }
}

/// What the old slot found out about a check that failed in the new one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum ExaminationEnd {
    /// It passes here: the version is at fault, and is not taken again.
    Refused,
    /// It passes here, and it may have been the cluster's fault then.
    Doubtful,
    /// It fails here as well: the version is tried again once it passes.
    Inconclusive,
}

/// The examination of a check.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Examination {
    /// The check, and whose fault it seemed to be.
    pub failed: FailedCheck,
    limits: TrialLimits,
    green_since: Option<Duration>,
}

impl Examination {
    /// An examination that begins.
    #[must_use]
    pub fn new(failed: FailedCheck, limits: TrialLimits) -> Examination {
        Examination { failed, limits, green_since: None }
    }

    /// `after` its beginning; `green`: the check passes now, none if it was not made. The end, if it has one.
    pub fn observe(&mut self, after: Duration, green: Option<bool>) -> Option<ExaminationEnd> {
        match green {
            Some(true) => {
                let since = *self.green_since.get_or_insert(after);
                let passes = match self.failed.fault {
                    TrialFault::Slot => ExaminationEnd::Refused,
                    TrialFault::Cluster | TrialFault::Unclear => ExaminationEnd::Doubtful,
                };
                (after.saturating_sub(since) >= self.limits.soak).then_some(passes)
            }
            Some(false) | None => {
                if green.is_some() {
                    self.green_since = None;
                }
                let is_over = after >= self.limits.deadline && self.green_since.is_none();
                let is_long_over = after >= self.limits.deadline.saturating_add(self.limits.soak);
                (is_over || is_long_over).then_some(ExaminationEnd::Inconclusive)
            }
        }
    }

    /// When it ends at the latest, after its beginning.
    #[must_use]
    pub fn longest(&self) -> Duration {
        self.limits.deadline.saturating_add(self.limits.soak)
    }
}
