//! The life of an operation, as a machine. Pure.
//!
//! ```text
//!             due             systemd said yes         another boot, or the service has a new run
//! Scheduled ─────► Asking ──────────────────► Waiting ───────────────────────────────────────► Finished
//!     │ called off    │ systemd said no          │ too late
//!     ▼               ▼                          ▼
//! Cancelled         Failed                     Failed
//! ```
//! A version of the system has two more steps. `Staging` comes before `Asking`: the updater writes the version, which may take hours. And
//! the next boot does not end the operation but the verdict of its trial, which may come some boots later.
//!
//! # For the driver
//! Call [`OperationLife::next`] with the time, do what it says, and give the result back by the method that the action names. After a
//! start of the server: [`OperationLife::recovered`]. Invariants: systemd is asked once at most, and only when the record of that is on
//! the disk (unless the request said that it need not be); a life that was interrupted never asks again; an operation ends once, and
//! each one ends if the driver runs long enough.

use std::time::Duration;

use agent_core::node_shutdown::Receipt;
use agent_types::time::Mono;
use orlop_config::slots::{ResetEnd, SlotState};
use orlop_update::service::protocol::SlotsSeen;

use super::record::{OperationFailure, OperationPhase, OperationRecord, OperationVerb, PodsOutcome};

/// Longest time from the request of a stop to the machine's end: logind waits five minutes for the pods, the targets have three, the
/// hardware watchdog has three more (docs/reference/shutdown.md).
pub const STOP_MAX: Duration = Duration::from_secs(15 * 60);
/// Longest time of a restart: the service's stop and start have half a minute or more each.
pub const RESTART_MAX: Duration = Duration::from_secs(180);
/// Longest time in which the updater writes a version. It goes on where it was if it is asked again.
pub const STAGE_MAX: Duration = Duration::from_secs(4 * 3600);
/// Longest wait for the verdict of a trial in one life of the server: a deadline of a day at most, and the reboots around it.
pub const TRIAL_MAX: Duration = Duration::from_secs(26 * 3600);
/// An operation that is later than this, because the server was away, is not carried out any more.
pub const LATE_MAX: Duration = Duration::from_secs(60);
/// Between two looks.
pub const LOOK_EVERY: Duration = Duration::from_secs(1);
/// The same while a version is on trial: the updater reads the disk for it.
pub const LOOK_AT_TRIAL_EVERY: Duration = Duration::from_secs(5);

/// When and where the driver is.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationNow {
    /// Clock of this boot.
    pub mono: Mono,
    /// RFC 3339.
    pub at: String,
    /// This boot.
    pub boot_id: String,
}

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum LifeAction {
    /// Write the record and sync it; then [`OperationLife::kept`].
    Keep,
    /// Ask the updater for the version, without waiting for its end; then [`OperationLife::stage_begun`].
    Stage,
    /// Ask systemd; then [`OperationLife::answered`].
    Ask,
    /// Look how far it is: [`OperationLife::seen_receipt`], [`OperationLife::seen_unit`], [`OperationLife::seen_slots`], or in phase
    /// `Staging` [`OperationLife::stage_goes_on`] and [`OperationLife::staged`]. Again at that time.
    Look {
        /// By the clock of this boot.
        again: Mono,
    },
    /// Nothing before that time.
    Wait {
        /// By the clock of this boot.
        until: Mono,
    },
    /// It has ended.
    Over,
}

/// What systemd said.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum AskOutcome {
    /// Yes.
    Accepted,
    /// No, in these words.
    Refused(String),
    /// Nothing in time: it may do it all the same.
    Silent,
}

/// What the updater has come to.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum StageOutcome {
    /// This version is in the other slot.
    Staged(String),
    /// There is nothing to do, in these words: the node runs the version that it may take.
    Nothing(String),
    /// It failed, in these words.
    Failed(String),
}

/// A service as systemd shows it.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UnitLook {
    /// InvocationID.
    pub invocation: String,
    /// ActiveState.
    pub active: String,
    /// ActiveState, and how it ended, for people.
    pub words: String,
    /// Result is `success`.
    pub succeeded: bool,
    /// systemd has a job of it.
    pub has_job: bool,
}

/// An operation that has not ended, or has just ended.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct OperationLife {
    record: OperationRecord,
    /// The disk has the record.
    is_kept: bool,
    /// This life, or an earlier one, may have asked systemd.
    has_asked: bool,
    /// This life has asked the updater.
    has_staged: bool,
}

impl OperationLife {
    /// A new operation. `record` has no phase yet: it is scheduled, or begins at once if it is due.
    #[must_use]
    pub fn begin(mut record: OperationRecord, now: &OperationNow) -> OperationLife {
        let is_due = record.due <= now.mono;
        record.phase = if is_due { first_phase(&record.what) } else { OperationPhase::Scheduled };
        record.boot_id_before.clone_from(&now.boot_id);
        record.accepted_at.clone_from(&now.at);
        OperationLife { record, is_kept: false, has_asked: false, has_staged: false }
    }

    /// The operation of a record that an earlier server has left. `receipt` is the agent's newest one.
    #[must_use]
    pub fn recovered(
        record: OperationRecord,
        now: &OperationNow,
        receipt: Option<&Receipt>,
    ) -> OperationLife {
        let mut life = OperationLife { record, is_kept: true, has_asked: true, has_staged: false };
        if life.record.phase.has_ended() {
            return life;
        }
        if life.record.boot_id_before != now.boot_id {
            life.after_boot(now, receipt);
        } else if matches!(life.record.phase, OperationPhase::Scheduled | OperationPhase::Staging) {
            // The updater is asked again: it goes on where it was.
            life.has_asked = false;
        } else if life.record.phase == OperationPhase::Asking {
            // Whether systemd heard it is not known: what happens will tell.
            life.enter(OperationPhase::Waiting);
        }
        life
    }

    /// The record as it is.
    #[must_use]
    pub const fn record(&self) -> &OperationRecord {
        &self.record
    }

    /// The disk has the record, or cannot have it.
    #[must_use]
    pub const fn is_kept(&self) -> bool {
        self.is_kept
    }

    /// What to do at this time.
    pub fn next(&mut self, now: &OperationNow) -> LifeAction {
        self.pass(now);
        if !self.is_kept {
            return LifeAction::Keep;
        }
        match self.record.phase {
            OperationPhase::Scheduled => LifeAction::Wait { until: self.record.due },
            OperationPhase::Staging if !self.has_staged => LifeAction::Stage,
            OperationPhase::Asking if !self.has_asked => LifeAction::Ask,
            OperationPhase::Staging | OperationPhase::Asking | OperationPhase::Waiting => {
                let every = if self.is_in_trial() { LOOK_AT_TRIAL_EVERY } else { LOOK_EVERY };
                LifeAction::Look { again: now.mono.after(every).min(self.deadline()) }
            }
            OperationPhase::Finished | OperationPhase::Failed | OperationPhase::Cancelled => LifeAction::Over,
        }
    }

    /// The record was written, or not.
    pub fn kept(&mut self, is_written: bool, now: &OperationNow) {
        self.is_kept = true;
        let must_be =
            self.record.phase == OperationPhase::Asking && !self.has_asked && !self.record.unrecorded;
        if !is_written && must_be {
            let message = "the state partition cannot keep the record, so nothing was done";
            self.fail(OperationFailure::NotRecorded, message, now);
            // The disk has the older record, which a later server ends.
            self.is_kept = true;
        }
    }

    /// The updater was asked.
    pub fn stage_begun(&mut self) {
        self.has_staged = true;
    }

    /// What the updater does. Not kept: it is of interest to those who wait.
    pub fn stage_goes_on(&mut self, words: &str) {
        if self.record.phase == OperationPhase::Staging {
            words.clone_into(&mut self.record.message);
        }
    }

    /// The updater has ended.
    pub fn staged(&mut self, outcome: StageOutcome, now: &OperationNow) {
        if self.record.phase != OperationPhase::Staging {
            return;
        }
        self.record.message.clear();
        let is_all = matches!(self.record.what, OperationVerb::Stage { .. });
        match outcome {
            StageOutcome::Failed(words) => self.fail(OperationFailure::NotStaged, &words, now),
            StageOutcome::Nothing(words) if is_all => {
                self.record.message = words;
                self.finish(now);
            }
            StageOutcome::Nothing(words) => self.fail(OperationFailure::NotStaged, &words, now),
            StageOutcome::Staged(version) if is_all => {
                self.record.message = format!("{version} is in the other slot; nothing boots it");
                self.finish(now);
            }
            StageOutcome::Staged(version) => {
                if let OperationVerb::Upgrade { to, .. } = &mut self.record.what {
                    *to = version;
                }
                // The hours of the updater are no delay of the reboot.
                self.record.due = now.mono;
                self.enter(OperationPhase::Asking);
            }
        }
    }

    /// Both slots, in a boot after the one in which a trial was ordered: the verdict, once there is one.
    pub fn seen_slots(&mut self, seen: &SlotsSeen, now: &OperationNow) {
        let Some(to) = self.record.what.tried().map(str::to_owned) else { return };
        let is_after = self.record.phase == OperationPhase::Waiting && !self.record.boot_id_after.is_empty();
        if !is_after || !seen.trial.is_empty() {
            return;
        }
        let runs = &seen.running_version;
        if *runs == to {
            let is_home = seen.desired == seen.running && seen.running_state == SlotState::Good.name();
            // Without a verdict for it, the guard is about to return to the other slot.
            if is_home {
                self.record.message = format!("{to} is committed");
                self.finish(now);
            }
            return;
        }
        let is_there = seen.other_version == to;
        let (failure, message) = match seen.other_reason.as_str() {
            // Also one that was committed, and that another version has followed before a client came.
            "" if is_there && seen.other_state == SlotState::Good.name() => {
                let message = format!(
                    "the node runs {runs}; {to} is in the other slot, and no failed trial of it is on record"
                );
                (OperationFailure::DidNotHappen, message)
            }
            "" if is_there => {
                let message = format!("the machine has started again with {runs}, and {to} was not tried");
                (OperationFailure::DidNotHappen, message)
            }
            why if is_there => {
                (OperationFailure::Returned, format!("the node runs {runs} again; {to} has failed: {why}"))
            }
            _ => {
                let message = format!("{to} is in no slot any more; how its trial has ended is not known");
                (OperationFailure::Interrupted, message)
            }
        };
        self.fail(failure, &message, now);
    }

    /// systemd was asked.
    pub fn answered(&mut self, outcome: AskOutcome, now: &OperationNow) {
        self.has_asked = true;
        match outcome {
            AskOutcome::Accepted | AskOutcome::Silent => self.enter(OperationPhase::Waiting),
            AskOutcome::Refused(words) => self.fail(OperationFailure::Refused, &words, now),
        }
    }

    /// The agent's receipt of a stop that is under way. Not kept: the next boot reads it again.
    pub fn seen_receipt(&mut self, receipt: Option<&Receipt>) {
        let own = receipt.filter(|receipt| receipt.boot_id == self.record.boot_id_before);
        if let Some(receipt) = own.filter(|_| !self.record.phase.has_ended()) {
            self.record.pods = Some(PodsOutcome::of(receipt));
        }
    }

    /// The service that is restarted.
    pub fn seen_unit(&mut self, unit: &UnitLook, now: &OperationNow) {
        let OperationVerb::Restart { invocation, .. } = &self.record.what else { return };
        if unit.has_job || self.record.phase != OperationPhase::Waiting {
            return;
        }
        let is_new = !unit.invocation.is_empty() && unit.invocation != *invocation;
        match unit.active.as_str() {
            "active" if is_new => self.finish(now),
            // A service that does its work and ends.
            "inactive" if is_new && unit.succeeded => self.finish(now),
            "inactive" | "failed" => {
                let message = format!("it does not run after the restart: {}", unit.words);
                self.fail(OperationFailure::UnitFailed, &message, now);
            }
            _ => {}
        }
    }

    /// What init says about the last factory reset, in the boot that follows one. A reset that the boot has not carried out has failed.
    pub fn seen_reset(&mut self, end: Option<&ResetEnd>, now: &OperationNow) {
        let is_new = self.record.phase.has_ended() && !self.is_kept;
        if !is_new || !matches!(self.record.what, OperationVerb::Reset { .. }) {
            return;
        }
        match end.filter(|end| end.id == self.record.id) {
            // Also one of which it was not known whether systemd had heard it.
            Some(end) if end.refused.is_empty() => {
                self.record.failure = None;
                self.record.message.clear();
                self.finish(now);
            }
            Some(end) => self.fail(OperationFailure::Refused, &end.refused, now),
            None if self.record.phase != OperationPhase::Finished => {}
            None => {
                let message = "the machine has started again, and no reset was carried out";
                self.fail(OperationFailure::DidNotHappen, message, now);
            }
        }
    }

    /// Calls it off; false if it is too late.
    pub fn cancel(&mut self, now: &OperationNow) -> bool {
        self.pass(now);
        // The updater may go on with the slot that nothing boots.
        if !matches!(self.record.phase, OperationPhase::Scheduled | OperationPhase::Staging) {
            return false;
        }
        self.record.message.clear();
        self.end(OperationPhase::Cancelled, now);
        true
    }

    /// What the time alone does.
    fn pass(&mut self, now: &OperationNow) {
        match self.record.phase {
            OperationPhase::Scheduled | OperationPhase::Asking
                if !self.has_asked && now.mono > self.record.due.after(LATE_MAX) =>
            {
                let message = "its time was over before the server was there again";
                self.fail(OperationFailure::Missed, message, now);
            }
            OperationPhase::Scheduled if now.mono >= self.record.due => {
                self.enter(first_phase(&self.record.what));
            }
            OperationPhase::Staging if now.mono >= self.deadline() => {
                let message = "the updater has not written the version in time; what is written stays";
                self.fail(OperationFailure::NotStaged, message, now);
            }
            OperationPhase::Waiting if now.mono >= self.deadline() => {
                let message = match &self.record.what {
                    OperationVerb::Restart { .. } | OperationVerb::Stage { .. } => {
                        "the service was not restarted in time"
                    }
                    OperationVerb::Upgrade { .. } | OperationVerb::Rollback { .. } if self.is_in_trial() => {
                        "the trial has no verdict in time; `orlopctl get slots` shows what runs"
                    }
                    OperationVerb::Upgrade { .. } | OperationVerb::Rollback { .. } => {
                        "the machine did not stop in time; if the trial was ordered, its next boot begins it"
                    }
                    OperationVerb::Reset { .. } => {
                        "the machine did not stop in time; if the reset was ordered, its next boot carries it out"
                    }
                    OperationVerb::Reboot | OperationVerb::Shutdown => "the machine did not stop in time",
                };
                self.fail(OperationFailure::DidNotHappen, message, now);
            }
            _ => {}
        }
    }

    fn deadline(&self) -> Mono {
        let longest = match self.record.phase {
            OperationPhase::Staging => STAGE_MAX,
            _ if self.is_in_trial() => TRIAL_MAX,
            _ if self.record.what.stops_machine() => STOP_MAX,
            _ => RESTART_MAX,
        };
        self.record.due.after(LATE_MAX).after(longest)
    }

    /// The machine has started again, and the verdict of a trial ends the operation.
    fn is_in_trial(&self) -> bool {
        self.record.what.tried().is_some() && !self.record.boot_id_after.is_empty()
    }

    /// The machine has started again.
    fn after_boot(&mut self, now: &OperationNow, receipt: Option<&Receipt>) {
        let own = receipt.filter(|receipt| receipt.boot_id == self.record.boot_id_before);
        let seen_before = self.record.pods.take();
        self.record.pods = own.map(PodsOutcome::of);
        let interrupted = match self.record.phase {
            OperationPhase::Scheduled => Some("the machine stopped before its time came"),
            OperationPhase::Staging => {
                Some("the machine stopped while the version was written; the next request goes on with it")
            }
            // Whether a trial was ordered, and how it ends, is in the boot record.
            OperationPhase::Asking | OperationPhase::Waiting if self.record.what.tried().is_some() => {
                // Some boots may follow, and the receipt is that of the last one.
                if self.record.pods.is_none() {
                    self.record.pods = seen_before;
                }
                self.record.boot_id_after.clone_from(&now.boot_id);
                self.record.due = now.mono;
                self.enter(OperationPhase::Waiting);
                return;
            }
            _ if !self.record.what.stops_machine() => Some("the machine stopped meanwhile"),
            // Without a shutdown on record, the power may have failed before systemd heard it.
            OperationPhase::Asking if own.is_none() => {
                Some("the machine stopped while systemd was asked; by what is not known")
            }
            _ => None,
        };
        self.record.boot_id_after.clone_from(&now.boot_id);
        match interrupted {
            Some(message) => self.fail(OperationFailure::Interrupted, message, now),
            None => self.finish(now),
        }
    }

    fn enter(&mut self, phase: OperationPhase) {
        self.record.phase = phase;
        self.is_kept = false;
    }

    fn finish(&mut self, now: &OperationNow) {
        self.end(OperationPhase::Finished, now);
    }

    fn fail(&mut self, failure: OperationFailure, message: &str, now: &OperationNow) {
        self.record.failure = Some(failure);
        message.clone_into(&mut self.record.message);
        self.end(OperationPhase::Failed, now);
    }

    fn end(&mut self, phase: OperationPhase, now: &OperationNow) {
        self.record.ended_at.clone_from(&now.at);
        self.enter(phase);
    }
}

/// The phase in which the work begins.
fn first_phase(what: &OperationVerb) -> OperationPhase {
    if what.has_to_stage() { OperationPhase::Staging } else { OperationPhase::Asking }
}

#[cfg(test)]
mod tests;
