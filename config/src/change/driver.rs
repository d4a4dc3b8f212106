//! The driver's next step, from what the record says and what the node runs with.
//!
//! Level-triggered: the step depends on nothing that the driver remembers, so a driver that was killed goes on where it was. The
//! driver carries out one step, and asks again.

use super::record::{ChangeRecord, ChangeStage, ChangeTime, DocumentText};

/// Longest wait between two looks, milliseconds: a confirmation ends the driver no later.
pub const LOOK_MS: u64 = 2000;

/// What the driver does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverStep {
    /// Nothing until the next change: the node runs with the confirmed document.
    Rest,
    /// It looks again after so many milliseconds.
    Wait(u64),
    /// It has the node run with the document that counts ([`ChangeRecord::counts`]); a failure of one on trial is
    /// [`ChangeRecord::failed`].
    Run,
    /// It writes the record after this event.
    Note(DriverNote),
    /// It starts the machine again: what is taken back acts at a boot only.
    Reboot,
}

/// An event that the driver sees.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum DriverNote {
    /// The record is one of an earlier boot, because init could not write it.
    Booted,
    /// The node runs with the document on trial.
    Applied,
    /// The deadline is over.
    Expired,
    /// The node runs with the confirmed document again.
    Reverted,
}

impl ChangeRecord {
    /// The record after this event.
    pub fn note(&mut self, note: DriverNote, now: ChangeTime<'_>) {
        match note {
            DriverNote::Booted => {
                self.boot(now);
            }
            DriverNote::Applied => self.applied(now),
            DriverNote::Expired => self.expire(now),
            DriverNote::Reverted => self.reverted(now),
        }
    }
}

/// Whether a driver that cannot go on has to start the machine again: the node runs with something else than what counts. Without it a
/// disk that takes no record would keep a document for ever whose deadline is over. Never again and again: a boot begins with what
/// counts.
#[must_use]
pub fn needs_restart(record: &ChangeRecord, running: Option<&str>, now: ChangeTime<'_>) -> bool {
    let is_driven = record.open.as_ref().is_some_and(|open| open.stage != ChangeStage::Waiting);
    is_driven && record.counts(now) != running
}

/// The next step. `running` is the node's own document among the sources that the node runs with.
#[must_use]
pub fn next_step(record: &ChangeRecord, running: Option<&str>, now: ChangeTime<'_>) -> DriverStep {
    let is_running = |document: &Option<DocumentText>| document.as_ref().map(|d| d.0.as_str()) == running;
    let settled = if is_running(&record.confirmed) { DriverStep::Rest } else { DriverStep::Run };
    let Some(open) = &record.open else { return settled };
    match &open.stage {
        ChangeStage::Waiting => settled,
        ChangeStage::Trying { boot, .. } if boot != now.boot => DriverStep::Note(DriverNote::Booted),
        ChangeStage::Trying { deadline_ms, .. } if now.up_ms >= *deadline_ms => {
            DriverStep::Note(DriverNote::Expired)
        }
        ChangeStage::Trying { .. } if !is_running(&open.document) => DriverStep::Run,
        ChangeStage::Trying { applied_ms: None, .. } => DriverStep::Note(DriverNote::Applied),
        ChangeStage::Trying { deadline_ms, .. } => DriverStep::Wait((deadline_ms - now.up_ms).min(LOOK_MS)),
        ChangeStage::Reverting { .. } if is_running(&record.confirmed) => {
            DriverStep::Note(DriverNote::Reverted)
        }
        ChangeStage::Reverting { .. } if open.at_boot => DriverStep::Reboot,
        ChangeStage::Reverting { .. } => DriverStep::Run,
    }
}
