//! What kubectl shows of updates: conditions and annotation of the Node, labels, events.
//!
//! In: the plan, the boot record. Out: texts and objects under names in upstream's manner. Pure. Invariant: a failure stays to be
//! seen until a version is committed or another update begins to be tried.

use agent_types::event::EventKind;
use orlop_config::slots::{BootRecord, SlotName};

use super::plan::{UpdateEnd, UpdatePhase, UpdatePlan};

/// Label of the Node: the version that runs.
pub const VERSION_LABEL: &str = "orlop.org/version";
/// Annotation of the Node: one line about updates.
pub const STATE: &str = "orlop.org/update-state";
/// Annotation of the Node while it is cordoned for an update: the update's identifier. Without it nothing is uncordoned.
pub const CORDONED: &str = "orlop.org/update-cordon";
/// Annotation with which an operator permits the reboot for one update: its identifier.
pub const PERMIT: &str = "orlop.org/reboot-permit";
/// Annotation with which an operator names a version: the one to be taken, or gone back to.
pub const UPDATE_TO: &str = "orlop.org/update-to";
/// Annotation with which an operator has a node leave a version: that version. The node goes back to the one before.
pub const ROLLBACK: &str = "orlop.org/rollback";
/// Annotation with which an operator stops updates: `true`.
pub const PAUSED: &str = "orlop.org/update-paused";
/// Type of the Node's condition while an update is under way.
pub const PROGRESSING: &str = "UpdateProgressing";
/// Type of the Node's condition after an update failed.
pub const FAILED: &str = "UpdateFailed";
/// Longest message, characters.
const MESSAGE_CHARS_MAX: usize = 400;

fn cut(text: &str) -> String {
    text.chars().take(MESSAGE_CHARS_MAX).collect()
}

/// The update that a message is about. A plan that was lost, or that never was, has no identifier and perhaps no version.
fn subject(plan: &UpdatePlan) -> String {
    match (plan.update.as_str(), plan.version.as_str()) {
        ("", "") => {
            "no update is under way, and the node still looks for remains of an earlier one".to_owned()
        }
        ("", version) => format!("update to {version}"),
        (update, _) => format!("update {update}"),
    }
}

/// An event about the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateNotice {
    /// Its severity.
    pub kind: EventKind,
    /// Its reason.
    pub reason: &'static str,
    /// Its message, for people.
    pub message: String,
}

impl UpdateNotice {
    fn new(kind: EventKind, reason: &'static str, message: &str) -> UpdateNotice {
        UpdateNotice { kind, reason, message: cut(message) }
    }

    /// A version is in the other slot, and its update begins.
    #[must_use]
    pub fn staged(plan: &UpdatePlan) -> UpdateNotice {
        let message = format!("version {} is staged, update {} begins", plan.version, plan.update);
        UpdateNotice::new(EventKind::Normal, "UpdateStaged", &message)
    }

    /// The update waits.
    #[must_use]
    pub fn waits(plan: &UpdatePlan, words: &str) -> UpdateNotice {
        UpdateNotice::new(EventKind::Normal, "UpdateWaits", &format!("{}: {words}", subject(plan)))
    }

    /// A pod's budget has outlasted the patience of the drain.
    #[must_use]
    pub fn drain_blocked(plan: &UpdatePlan, words: &str) -> UpdateNotice {
        UpdateNotice::new(EventKind::Warning, "UpdateDrainBlocked", &format!("{}: {words}", subject(plan)))
    }

    /// The event about the plan's end; none if it has not ended, or if its end has been told.
    #[must_use]
    pub fn of_end(plan: &UpdatePlan) -> Option<UpdateNotice> {
        let warning = |reason, words: &String| Some(UpdateNotice::new(EventKind::Warning, reason, words));
        match &plan.end {
            UpdateEnd::Open | UpdateEnd::Aborted(_) | UpdateEnd::PutOff(_) => None,
            UpdateEnd::Committed => {
                let message = format!("version {} is committed", plan.version);
                Some(UpdateNotice::new(EventKind::Normal, "UpdateCommitted", &message))
            }
            UpdateEnd::Returned(words) | UpdateEnd::Cut(words) => warning("UpdateRolledBack", words),
            UpdateEnd::Refused(words) => warning("UpdateRefused", words),
            UpdateEnd::Doubtful(words) => warning(
                "UpdateRolledBack",
                &format!(
                    "{words}; the old version passes this check, and the cluster may have been at fault"
                ),
            ),
            UpdateEnd::Inconclusive(words) => warning(
                "UpdateRolledBack",
                &format!("{words}; the old version fails this check as well: tried again once it passes"),
            ),
        }
    }
}

/// One of the two conditions of the Node.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct UpdateCondition {
    /// [`PROGRESSING`] or [`FAILED`].
    pub kind: &'static str,
    /// Its status is True.
    pub is_true: bool,
    /// Its reason.
    pub reason: &'static str,
    /// Its message, for people.
    pub message: String,
}

/// What the Node shows.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct UpdateShown {
    /// Value of [`VERSION_LABEL`].
    pub version: String,
    /// Value of [`STATE`].
    pub state: String,
    /// [`PROGRESSING`] is True: reason and message.
    pub progressing: Option<(&'static str, String)>,
    /// [`FAILED`] is True: its message.
    pub failed: Option<String>,
}

impl UpdateShown {
    pub(super) fn of(plan: &UpdatePlan, record: &BootRecord, booted: SlotName, waits: &str) -> UpdateShown {
        let version = record.slot(booted).version.clone();
        let on_trial = record.trial_of(booted).is_some();
        // Without a plan the node only looks whether something is left of an update.
        let of_phase = reason(plan.phase).filter(|_| !plan.version.is_empty());
        let reason = if on_trial { Some("OnTrial") } else { of_phase };
        let progressing = reason.map(|reason| {
            let more = if waits.is_empty() { String::new() } else { format!(": {waits}") };
            let to = if on_trial { &version } else { &plan.version };
            (reason, cut(&format!("update to {to}{more}")))
        });
        let failed = match &plan.end {
            UpdateEnd::Returned(words) | UpdateEnd::Cut(words) => Some(words.as_str()),
            end => end.failure().or((!plan.failure.is_empty()).then_some(plan.failure.as_str())),
        };
        let failed = failed.filter(|_| !on_trial && plan.end != UpdateEnd::Committed).map(cut);
        let state = match (&progressing, &failed) {
            (Some((reason, message)), _) => format!("{reason}: {message}"),
            (None, Some(words)) => format!("Failed: {words}"),
            (None, None) => "Idle".to_owned(),
        };
        UpdateShown { version, state: cut(&state), progressing, failed }
    }

    /// The two conditions of `status.conditions`, without times.
    #[must_use]
    pub fn conditions(&self) -> [UpdateCondition; 2] {
        let condition = |kind: &'static str, is_true: bool, reason: &'static str, message: &str| {
            UpdateCondition { kind, is_true, reason, message: message.to_owned() }
        };
        let progressing = match &self.progressing {
            Some((reason, message)) => condition(PROGRESSING, true, reason, message),
            None => condition(PROGRESSING, false, "NoUpdate", "no update is under way"),
        };
        let failed = match &self.failed {
            Some(message) => condition(FAILED, true, "UpdateFailed", message),
            None => condition(FAILED, false, "NoFailure", "no update has failed"),
        };
        [progressing, failed]
    }
}

fn reason(phase: UpdatePhase) -> Option<&'static str> {
    match phase {
        UpdatePhase::Idle => None,
        UpdatePhase::Window => Some("WaitingForWindow"),
        UpdatePhase::Permit => Some("WaitingForPermit"),
        UpdatePhase::Cordon | UpdatePhase::Drain | UpdatePhase::Confirm => Some("Draining"),
        UpdatePhase::Arm | UpdatePhase::Reboot => Some("Rebooting"),
        UpdatePhase::Withdraw | UpdatePhase::Uncordon | UpdatePhase::Settle | UpdatePhase::Release => {
            Some("Finishing")
        }
        UpdatePhase::Examine => Some("Examining"),
    }
}
