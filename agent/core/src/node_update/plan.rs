//! The plan of an update: what the machine has on the state partition, and how it goes on after a death or a reboot.
//!
//! In: the plan that was kept, the boot record, the slot that runs. Out: the plan with which the machine goes on. Pure.
//! Invariants: the boot record is the truth and the plan only a memory: without a plan nothing is committed or refused that the
//! record does not say; each phase may be repeated.

use std::time::Duration;

use serde::{Deserialize, Serialize};

use orlop_config::slots::{BootRecord, SlotName, SlotState};

/// File of the plan.
pub const PLAN_FILE: &str = "/var/lib/orlop/update/plan.json";
/// File of the baseline ([`GateFacts`](super::check::GateFacts)).
pub const BASELINE_FILE: &str = "/var/lib/orlop/update/baseline.json";
/// Trials of one version in a day.
pub const TRIALS_A_DAY: usize = 3;
/// Failures of a version that may have been the cluster's, before it is not tried by itself any more.
pub const DOUBTS_MAX: u32 = 3;
/// Reboots for one trial that ended in the old slot without it.
pub const REBOOTS_MAX: u32 = 2;
const DAY_S: u64 = 24 * 3600;
/// A clock that runs for so long since the boot has been set, if anything sets it.
const CLOCK_SET: Duration = Duration::from_secs(3600);

/// Where an update is.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdatePhase {
    /// Nothing is under way.
    #[default]
    Idle,
    /// Waits for a window.
    Window,
    /// Asks for a slot of its group, or for a permit.
    Permit,
    /// Marks the node as unschedulable.
    Cordon,
    /// Evicts the pods.
    Drain,
    /// Asks whether it still has its slot of the group or its permit.
    Confirm,
    /// Writes the baseline, orders the trial in the boot record, and shows the slot to the loader.
    Arm,
    /// Reboots.
    Reboot,
    /// Takes an order back.
    Withdraw,
    /// The old slot makes the check that failed in the new one.
    Examine,
    /// The boot record gets what was found.
    Settle,
    /// Lets pods in again.
    Uncordon,
    /// Gives the slot of its group back.
    Release,
}

/// How a trial ended, or an update without one. The texts are for people.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum UpdateEnd {
    /// It has not ended.
    #[default]
    Open,
    /// The version is good.
    Committed,
    /// The node came back: the check that failed, and why.
    Returned(String),
    /// The trial ended without a verdict.
    Cut(String),
    /// It never came to a trial, because of a fault.
    Aborted(String),
    /// It never came to a trial, because somebody or something else came first. It begins again when it may.
    PutOff(String),
    /// The version is at fault, and is not taken again unless somebody names it.
    Refused(String),
    /// The check passes in the old slot, and may have failed because of the cluster.
    Doubtful(String),
    /// The check fails in the old slot as well.
    Inconclusive(String),
}

impl UpdateEnd {
    /// The failure for which a group of nodes is halted.
    #[must_use]
    pub fn failure(&self) -> Option<&str> {
        match self {
            UpdateEnd::Refused(words) | UpdateEnd::Doubtful(words) => Some(words),
            _ => None,
        }
    }
}

/// The plan.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "camelCase", default)]
pub struct UpdatePlan {
    /// Identifier of the update: the version and the time at which it began.
    pub update: String,
    /// The version that is to be tried.
    pub version: String,
    /// Where it is.
    pub phase: UpdatePhase,
    /// How it ended.
    pub end: UpdateEnd,
    /// Reboots for this trial.
    pub reboots: u32,
    /// Times of the trials of this version, seconds since 1970.
    pub trials: Vec<u64>,
    /// Failures of this version that may have been the cluster's.
    pub doubts: u32,
    /// The version does not begin by itself before this time, seconds since 1970.
    pub not_before: u64,
    /// It does not begin at all before this time, after an update that never came to its trial: a named version whose drain is
    /// blocked would evict pods without end.
    pub aborted_until: u64,
    /// The check that failed in both slots: the version is tried again once it passes.
    pub awaits: Option<String>,
    /// What the condition `UpdateFailed` says; empty if nothing failed.
    pub failure: String,
    /// The version that failed while an operator named it: that order does not count any more. Empty if there is none.
    pub spent: String,
}

impl UpdatePlan {
    /// Trials of a version in the last day. Times after `now` count: the clock was set back, or is not set yet. Those of more than
    /// a day after it do not once the node is `up` for an hour: the clock was wrong then.
    #[must_use]
    pub fn trials_of(&self, version: &str, now_s: u64, up: Duration) -> usize {
        if self.version != version {
            return 0;
        }
        let counts = |at: u64| at.saturating_add(DAY_S) > now_s && !is_wrong(at, now_s, DAY_S, up);
        self.trials.iter().filter(|at| counts(**at)).count()
    }

    /// The pause after the last update is over, `up` after the boot.
    #[must_use]
    pub fn is_pause_over(&self, now_s: u64, up: Duration, pauses: &UpdatePauses) -> bool {
        let longest = pauses.retry_s.max(pauses.abort_s).max(pauses.doubt_s);
        now_s >= self.not_before || is_wrong(self.not_before, now_s, longest, up)
    }

    /// The pause after an update that never came to its trial is over.
    #[must_use]
    pub fn is_abort_over(&self, now_s: u64, up: Duration, pauses: &UpdatePauses) -> bool {
        now_s >= self.aborted_until || is_wrong(self.aborted_until, now_s, pauses.abort_s, up)
    }

    /// Begins an update.
    pub(super) fn begin(&mut self, version: &str, now_s: u64) {
        if self.version != version {
            self.doubts = 0;
            self.trials.clear();
        }
        self.awaits = None;
        self.trials.retain(|at| at.saturating_add(DAY_S) > now_s);
        self.update = format!("{version}-{now_s}");
        version.clone_into(&mut self.version);
        (self.phase, self.end, self.reboots) = (UpdatePhase::Window, UpdateEnd::Open, 0);
    }

    /// The update is over: what follows from its end.
    pub(super) fn finish(&mut self, now_s: u64, pauses: &UpdatePauses) {
        let end = std::mem::take(&mut self.end);
        (self.phase, self.reboots) = (UpdatePhase::Idle, 0);
        match end {
            UpdateEnd::Open | UpdateEnd::PutOff(_) => {}
            UpdateEnd::Committed => {
                (self.doubts, self.not_before, self.awaits) = (0, 0, None);
                self.failure.clear();
                self.spent.clear();
            }
            UpdateEnd::Refused(words) => {
                self.failure = words;
                self.spent.clone_from(&self.version);
            }
            UpdateEnd::Doubtful(words) => {
                self.spent.clone_from(&self.version);
                self.doubts = self.doubts.saturating_add(1);
                self.not_before = now_s.saturating_add(pauses.doubt_s);
                self.failure = words;
            }
            UpdateEnd::Returned(words) | UpdateEnd::Inconclusive(words) | UpdateEnd::Cut(words) => {
                self.not_before = now_s.saturating_add(pauses.retry_s);
                self.failure = words;
            }
            UpdateEnd::Aborted(words) => {
                self.not_before = now_s.saturating_add(pauses.abort_s);
                self.aborted_until = self.not_before;
                self.failure = words;
            }
        }
    }

    /// The same memory for another update.
    fn of(mut self, update: String, version: String) -> UpdatePlan {
        if self.version != version {
            self.doubts = 0;
            self.trials.clear();
        }
        UpdatePlan { update, version, ..self }
    }

    fn goes(mut self, phase: UpdatePhase, end: UpdateEnd) -> UpdatePlan {
        (self.phase, self.end) = (phase, end);
        self
    }
}

/// Pauses after an update that did not end in a commit, seconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct UpdatePauses {
    /// After a trial without a verdict, or one whose check fails in both slots.
    pub retry_s: u64,
    /// After an update that never came to its trial.
    pub abort_s: u64,
    /// After a failure that may have been the cluster's.
    pub doubt_s: u64,
}

impl Default for UpdatePauses {
    fn default() -> UpdatePauses {
        UpdatePauses { retry_s: 600, abort_s: 3600, doubt_s: DAY_S }
    }
}

/// This time is so far in the future that it was written with a wrong clock. A clock that is not set yet says nothing.
fn is_wrong(at_s: u64, now_s: u64, most_s: u64, up: Duration) -> bool {
    up >= CLOCK_SET && at_s > now_s.saturating_add(most_s)
}

/// This slot is the one that the node boots, and it is good. In another one nothing begins, and nothing is found out: it is on
/// trial, it has ended its trial and the node is about to return, or the loader has gone astray.
pub(super) fn is_home(record: &BootRecord, booted: SlotName) -> bool {
    record.desired == booted && record.is_good(booted)
}

/// The plan with which the machine goes on in this boot. None kept: it was lost, or there never was one.
#[must_use]
pub fn resume(kept: Option<UpdatePlan>, record: &BootRecord, booted: SlotName) -> UpdatePlan {
    let is_lost = kept.is_none();
    let plan = kept.unwrap_or_default();
    let other = record.slot(booted.other());
    if let Some(trial) = &record.trial {
        let is_tried = matches!(plan.phase, UpdatePhase::Arm | UpdatePhase::Reboot);
        if trial.slot == booted {
            if is_tried && plan.update == trial.update {
                return plan;
            }
            // The plan was lost, or its withdrawal came too late, or it is of another update: the management API has ordered this
            // trial while the agent was dead.
            let (update, version) = (trial.update.clone(), record.slot(booted).version.clone());
            return plan.of(update, version).goes(UpdatePhase::Reboot, UpdateEnd::Open);
        }
        // Ordered, and not begun: again, unless this is not the plan's, or the loader does not take it.
        let is_own = is_tried && plan.update == trial.update;
        if plan.phase == UpdatePhase::Withdraw {
            return plan;
        }
        let update = trial.update.clone();
        return match (is_own, plan.reboots >= REBOOTS_MAX) {
            (true, false) => UpdatePlan { phase: UpdatePhase::Arm, ..plan },
            (true, true) => {
                let words = format!("the loader does not start slot {}", trial.slot);
                plan.goes(UpdatePhase::Withdraw, UpdateEnd::Aborted(words))
            }
            (false, _) => {
                let words = "an order of a trial without a plan".to_owned();
                UpdatePlan { update, ..plan }.goes(UpdatePhase::Withdraw, UpdateEnd::Aborted(words))
            }
        };
    }
    if is_lost && !is_home(record, booted) {
        return plan.goes(UpdatePhase::Uncordon, UpdateEnd::Open);
    }
    if !is_home(record, booted) {
        return astray(plan, booted);
    }
    let tried = matches!(plan.phase, UpdatePhase::Arm | UpdatePhase::Reboot);
    if tried && record.slot(booted).version == plan.version {
        return plan.goes(UpdatePhase::Uncordon, UpdateEnd::Committed);
    }
    let has_failed = !other.failed_check.is_empty();
    let is_settling =
        matches!(plan.phase, UpdatePhase::Examine | UpdatePhase::Settle | UpdatePhase::Uncordon);
    if has_failed && !is_settling {
        let words = format!("{} {}: {}", other.version, other.failed_check, other.reason);
        let version = other.version.clone();
        return UpdatePlan { version, ..plan }.goes(UpdatePhase::Examine, UpdateEnd::Returned(words));
    }
    let words = format!("{}: {}", other.version, other.reason);
    match plan.phase {
        _ if is_lost => plan.goes(UpdatePhase::Uncordon, UpdateEnd::Open),
        UpdatePhase::Arm | UpdatePhase::Reboot if other.state == SlotState::Refused => {
            plan.goes(UpdatePhase::Uncordon, UpdateEnd::Refused(words))
        }
        UpdatePhase::Arm | UpdatePhase::Reboot if !other.reason.is_empty() => {
            plan.goes(UpdatePhase::Examine, UpdateEnd::Cut(words))
        }
        // It was good since and the node has left it, or it was good before and its trial was never ordered. It begins again only if
        // somebody names it.
        UpdatePhase::Arm | UpdatePhase::Reboot if other.state == SlotState::Good => {
            let words = format!("the node has left version {} since", plan.version);
            plan.goes(UpdatePhase::Uncordon, UpdateEnd::PutOff(words))
        }
        // Never ordered. The node may have lost its turn meanwhile.
        UpdatePhase::Arm | UpdatePhase::Reboot => plan.goes(UpdatePhase::Confirm, UpdateEnd::Open),
        _ => plan,
    }
}

/// The plan in a slot that is not the home slot, and not on trial.
fn astray(plan: UpdatePlan, booted: SlotName) -> UpdatePlan {
    match plan.phase {
        UpdatePhase::Window
        | UpdatePhase::Permit
        | UpdatePhase::Cordon
        | UpdatePhase::Drain
        | UpdatePhase::Confirm => {
            let words = format!("slot {booted} runs, which is not the one that the node boots");
            plan.goes(UpdatePhase::Withdraw, UpdateEnd::PutOff(words))
        }
        // The home slot goes on with it.
        _ => plan,
    }
}
