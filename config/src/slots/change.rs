//! Changes of the boot record on the running system: a trial is ordered, committed, ended or refused.
//!
//! In: the record and the slot that runs. Out: the record with the change, or why not. The arbiter of init makes the changes of
//! a boot. Invariants: at each moment the desired slot is good; a slot becomes good only by a commit of the slot that runs; the
//! floor never falls.

use super::record::{BootRecord, SlotName, SlotState, SlotTrial};
use crate::release::floor_after_commit;
use serde_json::Map;

/// Boots of a version on trial that end without a verdict; then the version is refused.
pub const ATTEMPTS_MAX: u32 = 3;

/// Why a record is not changed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum SlotChangeError {
    /// The slot that runs is not the desired one, or it is not good: there would be no way back.
    #[error("slot {0} runs, and it is not the good slot that the node boots")]
    NotAtHome(SlotName),
    /// The slot holds no whole version that may be tried.
    #[error("slot {slot} is {holds}, so it cannot be tried", holds = .state.name())]
    NotToBeTried {
        /// The slot.
        slot: SlotName,
        /// What it holds.
        state: SlotState,
    },
    /// Another trial was ordered and has no verdict.
    #[error("another trial of slot {0} has no verdict yet")]
    OtherTrial(SlotName),
    /// The slot that runs is not on trial.
    #[error("slot {0} runs, and it is not on trial")]
    NotOnTrial(SlotName),
    /// A factory reset was ordered and has not ended.
    #[error("a factory reset was ordered before and has not ended yet")]
    ResetBegun,
    /// The order of a factory reset was carried out, or refused, before.
    #[error("a factory reset with this identifier has ended; order another one by another identifier")]
    ResetOver,
}

impl BootRecord {
    /// The slot that `booted` is on trial in this boot.
    #[must_use]
    pub fn trial_of(&self, booted: SlotName) -> Option<&SlotTrial> {
        self.trial
            .as_ref()
            .filter(|trial| trial.slot == booted && self.slot(booted).state == SlotState::Trial)
    }

    /// Orders a trial of the other slot. Ordered again with the same identifier, it stays as it is.
    ///
    /// # Errors
    /// The other slot cannot be tried, `booted` is no slot to which the node could return, or a factory reset was ordered.
    pub fn order_trial(
        &mut self,
        booted: SlotName,
        update: &str,
        deadline_s: u32,
    ) -> Result<(), SlotChangeError> {
        if self.desired != booted || !self.is_good(booted) {
            return Err(SlotChangeError::NotAtHome(booted));
        }
        if self.reset.is_some() {
            return Err(SlotChangeError::ResetBegun);
        }
        let slot = booted.other();
        if let Some(trial) = &self.trial {
            let same = trial.slot == slot && trial.update == update;
            return if same { Ok(()) } else { Err(SlotChangeError::OtherTrial(trial.slot)) };
        }
        let state = self.slot(slot).state;
        if !matches!(state, SlotState::Staged | SlotState::Good) {
            return Err(SlotChangeError::NotToBeTried { slot, state });
        }
        let was_good = state == SlotState::Good;
        let tried = self.slot_mut(slot);
        tried.state = SlotState::Trial;
        tried.failed_check.clear();
        tried.reason.clear();
        let (update, started, kept) = (update.to_owned(), false, Map::new());
        self.trial = Some(SlotTrial { slot, from: booted, update, deadline_s, started, was_good, kept });
        Ok(())
    }

    /// Takes back an order of a trial that has not begun: the slot is what it was before.
    pub fn withdraw_trial(&mut self, booted: SlotName) {
        let begun = self.trial.as_ref().is_none_or(|trial| trial.started || trial.slot == booted);
        if let Some(trial) = self.trial.take_if(|_| !begun) {
            self.slot_mut(trial.slot).state =
                if trial.was_good { SlotState::Good } else { SlotState::Staged };
        }
    }

    /// Commits the slot on trial that runs: it is good from now on, and the node boots it. `revokes`: a generation below which
    /// nothing is taken any more, also if that closes the way back; that of the slot's release counts as well.
    ///
    /// # Errors
    /// The slot that runs is not on trial.
    pub fn commit_trial(&mut self, booted: SlotName, revokes: Option<u64>) -> Result<(), SlotChangeError> {
        if self.trial_of(booted).is_none() {
            return Err(SlotChangeError::NotOnTrial(booted));
        }
        self.trial = None;
        self.desired = booted;
        let slot = self.slot_mut(booted);
        slot.state = SlotState::Good;
        slot.attempts = 0;
        slot.reason.clear();
        slot.failed_check.clear();
        (self.redirect, self.unready, self.redirects, self.disagreements) = (None, 0, 0, 0);
        let good = SlotName::ALL.into_iter().filter(|slot| self.is_good(*slot));
        let generations: Vec<u64> = good.map(|slot| self.slot(slot).generation).collect();
        let revokes = revokes.max(Some(self.slot(booted).revokes));
        self.floor = floor_after_commit(self.floor, &generations, revokes);
        let (floor, old) = (self.floor, booted.other());
        if self.is_good(old) && self.slot(old).generation < floor {
            let slot = self.slot_mut(old);
            slot.state = SlotState::Refused;
            slot.reason = format!("generation {} is below the floor {floor}", slot.generation);
        }
        Ok(())
    }

    /// Ends the trial of the slot that runs: the node returns to the slot from which it came, and that one examines the check
    /// that failed. The end has a verdict, so the boot does not count as an attempt.
    ///
    /// # Errors
    /// The slot that runs is not on trial.
    pub fn return_from_trial(
        &mut self,
        booted: SlotName,
        check: &str,
        words: &str,
    ) -> Result<(), SlotChangeError> {
        if self.trial_of(booted).is_none() {
            return Err(SlotChangeError::NotOnTrial(booted));
        }
        self.trial = None;
        let slot = self.slot_mut(booted);
        slot.state = SlotState::Staged;
        slot.attempts = 0;
        check.clone_into(&mut slot.failed_check);
        words.clone_into(&mut slot.reason);
        Ok(())
    }

    /// Decides about the version in the slot that does not run, after its trial: refused, or to be tried again. A slot that holds
    /// something else by now is not decided about, and the check that failed there is of no interest any more.
    pub fn settle_trial(&mut self, booted: SlotName, refused: Option<&str>) {
        let slot = self.slot_mut(booted.other());
        slot.failed_check.clear();
        if slot.state != SlotState::Staged {
            return;
        }
        if let Some(reason) = refused {
            slot.state = SlotState::Refused;
            reason.clone_into(&mut slot.reason);
        }
    }

    /// The local checks of this boot are green: boots that were never ready are not counted on.
    pub fn boot_is_ready(&mut self, booted: SlotName) {
        if self.desired == booted && self.is_good(booted) {
            (self.unready, self.redirects) = (0, 0);
        }
    }

    /// This boot ends in order: what the next one finds is no power cut.
    pub fn boot_ends(&mut self) {
        self.boot_open = false;
    }

    /// The slot that runs has this version. An image that was written to a disk has a record without one, and the order of the
    /// loader needs it.
    pub fn learn_version(&mut self, booted: SlotName, version: &str) {
        let slot = self.slot_mut(booted);
        if slot.version.is_empty() {
            version.clone_into(&mut slot.version);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const A: SlotName = SlotName::A;
    const B: SlotName = SlotName::B;

    fn staged() -> BootRecord {
        let mut record = BootRecord::new(A);
        (record.a.generation, record.b.generation) = (3, 5);
        record.b.state = SlotState::Staged;
        record
    }

    fn on_trial() -> BootRecord {
        let mut record = staged();
        record.order_trial(A, "u-1", 600).expect("staged");
        record
    }

    #[test]
    fn a_trial_is_ordered_from_a_good_slot_only() {
        let mut record = on_trial();
        let trial = record.trial.clone().expect("ordered");
        assert_eq!((trial.slot, trial.from, trial.deadline_s, trial.started), (B, A, 600, false));
        assert_eq!((record.desired, record.b.state), (A, SlotState::Trial));
        assert_eq!(record.order_trial(A, "u-1", 600), Ok(()));
        assert_eq!(record.order_trial(A, "u-2", 600), Err(SlotChangeError::OtherTrial(B)));
        assert_eq!(staged().order_trial(B, "u-1", 600), Err(SlotChangeError::NotAtHome(B)));
        for state in [SlotState::Empty, SlotState::Writing, SlotState::Refused, SlotState::Trial] {
            let mut record = staged();
            record.b.state = state;
            let want = SlotChangeError::NotToBeTried { slot: B, state };
            assert_eq!(record.order_trial(A, "u-1", 600), Err(want));
        }
        let mut record = staged();
        record.a.state = SlotState::Refused;
        assert_eq!(record.order_trial(A, "u-1", 600), Err(SlotChangeError::NotAtHome(A)));
        // Back to the version before: a trial as well.
        let mut record = staged();
        record.b.state = SlotState::Good;
        assert_eq!(record.order_trial(A, "u-1", 600), Ok(()));
    }

    #[test]
    fn an_order_is_taken_back_before_it_begins() {
        let mut record = on_trial();
        record.withdraw_trial(A);
        assert_eq!((record.trial.is_none(), record.b.state), (true, SlotState::Staged));
        // The version before stays good.
        let mut record = staged();
        record.b.state = SlotState::Good;
        record.order_trial(A, "u-1", 600).expect("good");
        record.withdraw_trial(A);
        assert_eq!((record.trial.is_none(), record.b.state), (true, SlotState::Good));
        let mut record = on_trial();
        record.withdraw_trial(B);
        assert!(record.trial.is_some());
        if let Some(trial) = &mut record.trial {
            trial.started = true;
        }
        record.withdraw_trial(A);
        assert!(record.trial.is_some());
    }

    #[test]
    fn a_commit_raises_the_floor_and_keeps_the_way_back() {
        let mut record = on_trial();
        record.b.attempts = 2;
        assert_eq!(record.commit_trial(A, None), Err(SlotChangeError::NotOnTrial(A)));
        assert_eq!(record.commit_trial(B, None), Ok(()));
        assert_eq!((record.desired, record.a.state, record.b.state), (B, SlotState::Good, SlotState::Good));
        assert_eq!((record.floor, record.b.attempts, record.trial.is_none()), (3, 0, true));
        assert_eq!(record.commit_trial(B, None), Err(SlotChangeError::NotOnTrial(B)));
        let mut record = on_trial();
        record.commit_trial(B, Some(5)).expect("on trial");
        assert_eq!((record.floor, record.a.state), (5, SlotState::Refused));
        assert!(record.a.reason.contains("below the floor 5"));
        // As the release says.
        let mut record = on_trial();
        record.b.revokes = 4;
        record.commit_trial(B, None).expect("on trial");
        assert_eq!((record.floor, record.a.state), (4, SlotState::Refused));
    }

    #[test]
    fn a_return_names_the_check_and_the_old_slot_decides() {
        let mut record = on_trial();
        record.b.attempts = 1;
        assert_eq!(record.return_from_trial(A, "gateway", ""), Err(SlotChangeError::NotOnTrial(A)));
        record.return_from_trial(B, "gateway", "10.0.0.1 does not answer").expect("on trial");
        assert_eq!((record.desired, record.b.state, record.b.attempts), (A, SlotState::Staged, 0));
        assert_eq!((record.b.failed_check.as_str(), record.trial.is_none()), ("gateway", true));
        let mut again = record.clone();
        again.settle_trial(A, None);
        assert_eq!((again.b.state, again.b.failed_check.as_str()), (SlotState::Staged, ""));
        record.settle_trial(A, Some("gateway: 10.0.0.1 does not answer"));
        assert_eq!((record.b.state, record.b.failed_check.as_str()), (SlotState::Refused, ""));
        assert!(record.b.reason.starts_with("gateway"));
        // Nothing but a staged slot is decided about.
        (record.b.state, record.b.failed_check) = (SlotState::Good, "gateway".into());
        record.settle_trial(A, Some("x"));
        assert_eq!((record.b.state, record.b.failed_check.as_str()), (SlotState::Good, ""));
    }

    #[test]
    fn a_green_boot_of_the_desired_slot_ends_the_count() {
        let mut record = staged();
        (record.unready, record.redirects) = (2, 1);
        record.boot_is_ready(B);
        assert_eq!(record.unready, 2);
        record.boot_is_ready(A);
        assert_eq!((record.unready, record.redirects), (0, 0));
    }

    #[test]
    fn the_end_of_a_boot_and_its_version_are_noted() {
        let mut record = staged();
        record.boot_open = true;
        record.boot_ends();
        assert!(!record.boot_open);
        record.learn_version(A, "0.1.0");
        // What was staged knows better.
        record.learn_version(A, "0.3.0");
        assert_eq!((record.a.version.as_str(), record.b.version.as_str()), ("0.1.0", ""));
    }
}
